/* SPDX-License-Identifier: MIT */
/* What the examples write: numbers, CSV, XML text, axes and pictures. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"
#include "axis.h"
#include "csv.h"
#include "curves.h"
#include "number.h"
#include "output.h"
#include "xml.h"

static const double nan_ = (double)NAN, inf_ = (double)INFINITY;

/* The file as text; the caller frees it. */
static char *contents(const char *path)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    const long n = ftell(file);
    rewind(file);
    char *text = calloc((size_t)n + 1, 1);
    assert_int_equal(fread(text, 1, (size_t)n, file), n);
    fclose(file);
    return text;
}

/* ---- numbers ---- */

static void number_text_has_a_point_in_every_locale(void **state)
{
    (void)state;
    static const struct {
        double value;
        int digits;
        const char *text;
    } rows[] = {
        { 0, 9, "0" },           { -1.5, 9, "-1.5" },           { 0.1, 9, "0.1" },
        { 1e-300, 3, "1e-300" }, { 123456789, 9, "123456789" }, { 2.5e20, 9, "2.5e+20" },
    };
    static const char *const localised[][2] = {
        { "-3,25", "-3.25" },
        { "1\331\253"
          "5e-05",
          "1.5e-05" },
        { "12", "12" },
        { "", "" },
    };
    char text[NUMBER_BYTES];
    for (int i = 0; i < COUNT_OF(rows); i++)
        assert_string_equal(number_text(rows[i].value, rows[i].digits, text), rows[i].text);
    assert_string_equal(number_text(nan_, 9, text), "nan");
    assert_string_equal(number_text(inf_, 9, text), "inf");
    assert_string_equal(number_text(-inf_, 9, text), "-inf");
    assert_true(strlen(number_text(-DBL_MAX, 17, text)) < NUMBER_BYTES);
    for (int i = 0; i < COUNT_OF(localised); i++) {
        snprintf(text, sizeof text, "%s", localised[i][0]);
        number_unlocalise(text);
        assert_string_equal(text, localised[i][1]);
    }
}

static void number_text_of_nine_digits_brings_floats_back(void **state)
{
    (void)state;
    uint64_t seed = 3;
    for (int i = 0; i < 20000; i++) {
        const uint32_t bits = (uint32_t)test_random(&seed);
        char text[NUMBER_BYTES];
        float value;
        memcpy(&value, &bits, sizeof value);
        if (isnan(value)) continue;
        const float back = strtof(number_text((double)value, 9, text), NULL);
        assert_memory_equal(&back, &value, sizeof value);
    }
}

/* ---- CSV ---- */

static void csv_writes_rows_and_quotes_names(void **state)
{
    (void)state;
    static const char *const names[] = { "epoch", "loss, mean", "a \"b\"" };
    const double rows[2][3] = { { 1, 0.5, nan_ }, { 2, -1e-7, inf_ } };
    csv c;
    assert_int_equal(csv_open(&c, "test_curves.csv", names, 3), ATTO_OK);
    assert_int_equal(csv_row(&c, rows[0]), ATTO_OK);
    char *first = contents("test_curves.csv"); /* before it is closed */
    assert_int_equal(csv_row(&c, rows[1]), ATTO_OK);
    assert_int_equal(csv_close(&c), ATTO_OK);
    assert_int_equal(csv_close(&c), ATTO_OK);
    char *all = contents("test_curves.csv");
    assert_string_equal(first, "epoch,\"loss, mean\",\"a \"\"b\"\"\"\n1,0.5,nan\n");
    assert_string_equal(all + strlen(first), "2,-1e-07,inf\n");
    free(first), free(all);
    remove("test_curves.csv");
}

static void files_that_cannot_be_written_are_named(void **state)
{
    (void)state;
    static const char *const names[] = { "x" };
    csv c;
    assert_int_equal(csv_open(&c, "/nowhere/x.csv", names, 1), ATTO_E_IO);
    assert_non_null(strstr(failure_message(), "/nowhere/x.csv: cannot be written: No such file"));
    assert_int_equal(csv_close(&c), ATTO_OK);
    assert_int_equal(curves_write("/nowhere/x.svg", "", NULL, 0), ATTO_E_IO);
    assert_non_null(strstr(failure_message(), "/nowhere/x.svg: cannot be written"));
    FILE *full = fopen("/dev/full", "w"); /* Linux: every write fails for want of space */
    if (full == NULL) return;
    fclose(full);
    assert_int_equal(csv_open(&c, "/dev/full", names, 1), ATTO_E_IO);
    assert_non_null(strstr(failure_message(), "No space"));
    csv_close(&c);
    assert_int_equal(curves_write("/dev/full", "", NULL, 0), ATTO_E_IO);
    full = fopen("/dev/full", "w");
    fputs("lost", full);
    assert_int_equal(output_flush(full, "it"), ATTO_E_IO);
    assert_string_equal(failure_message(), "it: cannot be written: No space left on device");
    fclose(full);
}

#define OUT "test_output.txt"

static void output_try_keeps_what_a_file_holds(void **state)
{
    (void)state;
    remove(OUT);
    assert_false(output_same(OUT, "./" OUT)); /* there is none yet */
    assert_int_equal(output_try(OUT), ATTO_OK);
    assert_true(output_same(OUT, "./" OUT));
    assert_false(output_same("/dev/null", "/dev/null"));
    FILE *file = fopen(OUT, "wb");
    fputs("kept", file);
    fclose(file);
    assert_int_equal(output_try(OUT), ATTO_OK);
    char *text = contents(OUT);
    assert_string_equal(text, "kept");
    free(text);
    remove(OUT);
    assert_int_equal(output_try("/nowhere/x"), ATTO_E_IO);
    assert_string_equal(failure_message(),
                        "/nowhere/x: cannot be written: No such file or directory");
}

/* ---- XML text ---- */

static void xml_text_escapes_and_replaces(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        { "", "" },
        { "a & b < c > d \"e\" 'f'", "a &amp; b &lt; c &gt; d &quot;e&quot; &#39;f&#39;" },
        { "\303\251 \342\202\254 \360\237\230\200", "\303\251 \342\202\254 \360\237\230\200" },
        { "tab\tbell\7del\177", "tab\tbell?del\177" },
        { "\377\200x\303", "??x?" },                       /* no UTF-8, cut at the end */
        { "\300\257", "??" },                              /* longer than needed */
        { "\355\240\200", "???" },                         /* a surrogate */
        { "\364\220\200\200", "????" },                    /* beyond U+10FFFF */
        { "\370\210\200\200\200", "?????" },               /* five bytes */
        { "\357\277\276\357\277\275", "???\357\277\275" }, /* U+FFFE, U+FFFD */
    };
    for (int i = 0; i < COUNT_OF(rows); i++) {
        FILE *file = fopen("test_curves.txt", "wb");
        assert_non_null(file);
        xml_text(file, rows[i][0]);
        fclose(file);
        char *text = contents("test_curves.txt");
        assert_string_equal(text, rows[i][1]);
        free(text);
    }
    remove("test_curves.txt");
}

/* ---- axes ---- */

static void axis_has_round_ticks_around_its_values(void **state)
{
    (void)state;
    static const struct {
        double low, high;
        bool whole_steps;
        double step;
        int64_t first, last;
    } rows[] = {
        { 0, 1, false, 0.2, 0, 5 },
        { 1, 10, true, 2, 0, 5 },
        { 0.912, 0.978, false, 0.02, 45, 49 },
        { -3, 4, true, 2, -2, 2 },
        { 1, 2, true, 1, 1, 2 },
        { 1, 1.5, true, 0.1, 10, 15 },
        { 1, 1, true, 1, 0, 2 },
        { 0, 0, false, 0.5, -2, 2 },
        { 1e-8, 3e-8, false, 5e-9, 2, 6 },
        { 0.5, 0.5, false, 0.01, 47, 53 },
        { -2e10, 1e10, false, 5e9, -4, 2 },
    };
    for (int i = 0; i < COUNT_OF(rows); i++) {
        axis_range range = axis_range_empty();
        axis_range_add(&range, rows[i].low);
        axis_range_add(&range, rows[i].high);
        const axis got = axis_around(range, rows[i].whole_steps);
        if (fabs(got.step / rows[i].step - 1) > 1e-12 || got.first != rows[i].first ||
            got.last != rows[i].last)
            fail_msg("%g to %g: step %g, ticks %d to %d", rows[i].low, rows[i].high, got.step,
                     (int)got.first, (int)got.last);
    }
    const axis none = axis_around(axis_range_empty(), true);
    assert_true(none.first == 0 && none.step * (double)none.last == 1);
}

/* Any two values, from 1e-300 to 1e300 apart: 2 to 9 ticks, and both on the axis. */
static void axis_shows_any_range(void **state)
{
    (void)state;
    uint64_t seed = 8;
    for (int i = 0; i < 20000; i++) {
        double v[2];
        axis_range range = axis_range_empty();
        for (int k = 0; k < 2; k++) {
            const double exponent = (double)(test_random(&seed) % 6000) / 10 - 300;
            v[k] = (i % 3 == k ? -1 : 1) * pow(10, exponent);
            if (k == 1 && i % 5 == 0) v[k] = v[0] * (1 + exponent * 1e-9);
            axis_range_add(&range, v[k]);
        }
        const axis a = axis_around(range, i % 2 == 0);
        assert_in_range(a.last - a.first, 1, 8);
        for (int k = 0; k < 2; k++) {
            assert_true(axis_position(&a, v[k]) >= -1e-6);
            assert_true(axis_position(&a, v[k]) <= 1 + 1e-6);
        }
    }
}

/* ---- pictures ---- */

#define SVG  "test_curves.svg"
#define MANY 100000

/* Writes one panel with one curve, has an XML parser read it, and returns its text. */
static char *draw(const double *x, const double *y, int64_t n, const char *title)
{
    const curve c = { title, x, y, n, 0 };
    const curve_panel p = { title, title, title, &c, 1 };
    if (curves_write(SVG, title, &p, 1) != ATTO_OK) fail_msg("%s", failure_message());
    char *text = contents(SVG);
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
#ifdef XML_CHECK
    assert_int_equal(system(XML_CHECK " " SVG), 0);
#endif
    remove(SVG);
    return text;
}

/* The commands of the curve: the d of the path that has a dash array and is no legend. */
static char *path_of(char *svg)
{
    char *at = strstr(svg, "stroke-linecap=\"round\" d=\"");
    assert_non_null(at);
    at += strlen("stroke-linecap=\"round\" d=\"");
    *strchr(at, '"') = '\0';
    return at;
}

static int count_char(const char *text, char c)
{
    int n = 0;
    for (; *text != '\0'; text++) n += *text == c;
    return n;
}

static void curves_draws_gaps_dots_and_nothing(void **state)
{
    (void)state;
    const double x[] = { 1, 2, 3, 4, 5, 6, 7 };
    const struct {
        double y[7];
        int n, moves, lines, dots;
    } rows[] = {
        { { 0 }, 0, 0, 0, 0 },
        { { 5 }, 1, 1, 0, 1 },
        { { 5, 6 }, 2, 1, 1, 0 },
        { { 7, 7, 7 }, 3, 1, 2, 0 }, /* constant */
        { { nan_, nan_ }, 2, 0, 0, 0 },
        { { 1, nan_, 2, 3, inf_, 4, -inf_ }, 7, 3, 1, 2 },
        { { nan_, 1, 2, 3e307, 3, 4, nan_ }, 7, 2, 2, 0 },
        { { 1e300, -1e300, 0, 1e-310, 1e-300 }, 5, 1, 4, 0 },
        { { 1e16, 1e16 + 2 }, 2, 1, 1, 0 },
    };
    for (int i = 0; i < COUNT_OF(rows); i++) {
        char *svg = draw(x, rows[i].y, rows[i].n, "t");
        const char *path = path_of(svg);
        if (count_char(path, 'M') != rows[i].moves || count_char(path, 'L') != rows[i].lines ||
            count_char(path, 'h') != rows[i].dots)
            fail_msg("row %d: %s", i, path);
        free(svg);
    }
}

/* The plot spans x 72 to 452 and y 72 to 312 (curves.c); up is less. */
static void curves_draws_points_where_they_belong(void **state)
{
    (void)state;
    const double x[] = { 0, 5, 10 }, y[] = { 0, 0.25, 1 };
    char *svg = draw(x, y, 3, "t");
    assert_string_equal(path_of(svg), "M72.0 312.0L262.0 252.0L452.0 72.0");
    free(svg);
}

static void curves_keeps_spikes_of_many_points(void **state)
{
    (void)state;
    double *x = calloc(MANY, sizeof *x), *y = calloc(MANY, sizeof *y);
    for (int i = 0; i < MANY; i++) x[i] = i;
    y[77777] = 1;
    y[33333] = -1;
    char *svg = draw(x, y, MANY, "t");
    assert_true(strlen(svg) < 40000);
    const char *path = path_of(svg);
    assert_non_null(strstr(path, " 72.0L"));
    assert_non_null(strstr(path, " 312.0L"));
    assert_in_range(count_char(path, 'L'), 400, CURVES_EACH);
    free(svg), free(x), free(y);
}

static void curves_escapes_texts_and_takes_any_number_of_series(void **state)
{
    (void)state;
    const double x[] = { 1, 2 }, y[] = { 3, 4 };
    free(draw(x, y, 2, "<&>\"'\1\377 \303\251 ]]> -->"));
    curve many[8];
    for (int i = 0; i < 8; i++) many[i] = (curve){ "series", x, y, 2, i % 2 * 7 };
    const curve_panel panels[] = { { "a", "b", "c", many, 8 },
                                   { "a", "b", "c", NULL, 0 },
                                   { "a", "b", "c", many, 1 } };
    for (int n = 0; n <= 3; n++) {
        assert_int_equal(curves_write(SVG, "title", panels, n), ATTO_OK);
#ifdef XML_CHECK
        assert_int_equal(system(XML_CHECK " " SVG), 0);
#endif
    }
    remove(SVG);
}

/* The parser above is asked whether it can fail at all. */
static void curves_parser_sees_malformed_xml(void **state)
{
    (void)state;
#ifdef XML_CHECK
    FILE *file = fopen(SVG, "wb");
    assert_non_null(file);
    fputs("<svg><text>a & b</text></svg>", file);
    fclose(file);
    assert_int_not_equal(system(XML_CHECK " " SVG " 2> /dev/null"), 0);
    remove(SVG);
#else
    print_message("neither xmllint nor python3: pictures were not parsed\n");
    skip();
#endif
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(number_text_has_a_point_in_every_locale),
    cmocka_unit_test(number_text_of_nine_digits_brings_floats_back),
    cmocka_unit_test(csv_writes_rows_and_quotes_names),
    cmocka_unit_test(files_that_cannot_be_written_are_named),
    cmocka_unit_test(output_try_keeps_what_a_file_holds),
    cmocka_unit_test(xml_text_escapes_and_replaces),
    cmocka_unit_test(axis_has_round_ticks_around_its_values),
    cmocka_unit_test(axis_shows_any_range),
    cmocka_unit_test(curves_draws_gaps_dots_and_nothing),
    cmocka_unit_test(curves_draws_points_where_they_belong),
    cmocka_unit_test(curves_keeps_spikes_of_many_points),
    cmocka_unit_test(curves_escapes_texts_and_takes_any_number_of_series),
    cmocka_unit_test(curves_parser_sees_malformed_xml),
};
TEST_MAIN_HOST("example.curves", tests)
