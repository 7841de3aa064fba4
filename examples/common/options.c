/* SPDX-License-Identifier: MIT */
/* Command lines from a table, on top of getopt_long. */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "number.h"
#include "output.h"

/* ---- help ---- */

static void print_default(const option_row *row)
{
    char text[NUMBER_BYTES];
    const char *given = row->kind == OPTION_TEXT ? *(const char **)row->value : NULL;
    switch (row->kind) {
    case OPTION_TEXT:
        if (given != NULL) printf(" (default: %s)", given);
        break;
    case OPTION_COUNT:
        printf(" (default: %" PRId64 ")", *(int64_t *)row->value);
        break;
    case OPTION_NUMBER:
        printf(" (default: %s)", number_text(*(double *)row->value, 6, text));
        break;
    case OPTION_SEED:
        printf(" (default: %" PRIu64 ")", *(uint64_t *)row->value);
        break;
    case OPTION_DTYPE:
        printf(" (default: %s)", atto_dtype_name(*(atto_dtype *)row->value));
        break;
    case OPTION_FLAG:
        break;
    }
}

static void print_row(const option_row *row)
{
    char names[64], dash[8] = "    ";
    if (row->letter != 0) snprintf(dash, sizeof dash, "-%c, ", row->letter);
    snprintf(names, sizeof names, "%s--%s %s", dash, row->name,
             row->kind == OPTION_FLAG ? "" : row->argument);
    printf("  %-20s  %s", names, row->help);
    print_default(row);
    putchar('\n');
}

static void print_help(const option_page *page)
{
    printf("Usage: %s [OPTION]...\n%s\n", page->program, page->about);
    for (int i = 0; i < page->count; i++) print_row(&page->rows[i]);
    printf("  %-20s  %s\n", "-h, --help", "this text");
    puts("\nExit status: 0 success, 1 something failed, 2 wrong usage.");
}

/* ---- values ---- */

/* Text is all digits (or a hexadecimal number) and fits. */
static bool parse_seed(const char *text, uint64_t *out)
{
    char *end;
    if (*text < '0' || *text > '9') return false; /* strtoull takes blanks and signs */
    errno = 0;
    const bool hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    *out = strtoull(text, &end, hex ? 16 : 10);
    return errno == 0 && *end == '\0';
}

static bool parse_count(const option_row *row, const char *text, int64_t *out)
{
    char *end;
    if (*text < '0' || *text > '9') return false;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return errno == 0 && *end == '\0' && (double)*out >= row->min && (double)*out <= row->max;
}

static bool parse_number(const option_row *row, const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    if (end == text || *end != '\0' || strchr(" \t\n\v\f\r", *text) != NULL) return false;
    return *out >= row->min && *out <= row->max; /* false for NaN */
}

static bool parse_dtype(const char *text, atto_dtype *out)
{
    for (int dtype = ATTO_F32; dtype <= ATTO_BF16; dtype++) {
        *out = (atto_dtype)dtype;
        if (strcmp(text, atto_dtype_name(*out)) == 0) return true;
    }
    return false;
}

/* Stores the value, or says in expected what it should have been. */
static bool store(const option_row *row, const char *text, char expected[120])
{
    char low[NUMBER_BYTES], high[NUMBER_BYTES];
    union {
        int64_t count;
        uint64_t seed;
        double number;
        atto_dtype dtype;
    } v;
    number_text(row->min, 15, low);
    number_text(row->max, 15, high);
    switch (row->kind) {
    case OPTION_TEXT:
        snprintf(expected, 120, "some text");
        if (*text == '\0') return false;
        *(const char **)row->value = text;
        return true;
    case OPTION_COUNT:
        snprintf(expected, 120, "a whole number from %s to %s", low, high);
        if (!parse_count(row, text, &v.count)) return false;
        *(int64_t *)row->value = v.count;
        return true;
    case OPTION_NUMBER:
        snprintf(expected, 120, "a number from %s to %s", low, high);
        if (!parse_number(row, text, &v.number)) return false;
        *(double *)row->value = v.number;
        return true;
    case OPTION_SEED:
        snprintf(expected, 120, "a whole number from 0 to %" PRIu64, UINT64_MAX);
        if (!parse_seed(text, &v.seed)) return false;
        *(uint64_t *)row->value = v.seed;
        return true;
    case OPTION_DTYPE:
        snprintf(expected, 120, "f32, f16 or bf16");
        if (!parse_dtype(text, &v.dtype)) return false;
        *(atto_dtype *)row->value = v.dtype;
        return true;
    case OPTION_FLAG:
        *(bool *)row->value = true;
        return true;
    }
    return false;
}

/* ---- the command line ---- */

static int misuse(const option_page *page)
{
    fprintf(stderr, "; try %s --help\n", page->program);
    return OPTIONS_USAGE;
}

/* The table as getopt_long wants it; .val is 256 + the row's index, letters map to it below. */
static void make_getopt(const option_page *page, struct option *longs, char *letters)
{
    *letters++ = ':'; /* a missing value is ':' instead of '?' */
    for (int i = 0; i < page->count; i++) {
        const option_row *row = &page->rows[i];
        const int has_value = row->kind == OPTION_FLAG ? no_argument : required_argument;
        longs[i] = (struct option){ row->name, has_value, NULL, 256 + i };
        if (row->letter == 0) continue;
        *letters++ = row->letter;
        if (has_value) *letters++ = ':';
    }
    longs[page->count] = (struct option){ "help", no_argument, NULL, 'h' };
    longs[page->count + 1] = (struct option){ NULL, 0, NULL, 0 };
    strcpy(letters, "h");
}

static const option_row *find_row(const option_page *page, int code)
{
    if (code >= 256) return &page->rows[code - 256];
    for (int i = 0; i < page->count; i++)
        if (page->rows[i].letter == code) return &page->rows[i];
    return NULL;
}

/* What getopt_long refused: an unknown option, a shortened name that fits several, no value. */
static int refuse(const option_page *page, int code, const char *word)
{
    fprintf(stderr, "%s: ", page->program);
    if (optopt > 0 && optopt < 256)
        fprintf(stderr, "'-%c'", optopt);
    else
        fprintf(stderr, "'%s'", word);
    fputs(code == ':' ? " needs a value" : " is no option, or not only one", stderr);
    return misuse(page);
}

static int take(const option_page *page, const option_row *row)
{
    char expected[120];
    if (store(row, optarg, expected)) return OPTIONS_RUN;
    fprintf(stderr, "%s: --%s is '%s', expected %s", page->program, row->name, optarg, expected);
    return misuse(page);
}

int options_parse(const option_page *page, int argc, char **argv)
{
    struct option longs[OPTIONS_MAX + 2];
    char letters[2 * OPTIONS_MAX + 3];
    int code, result = OPTIONS_RUN;
    make_getopt(page, longs, letters);
    opterr = 0;
    optind = 0; /* start afresh, even after a call that stopped within a word */
    while (result == OPTIONS_RUN && (code = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
        if (code == 'h') {
            print_help(page);
            if (output_flush(stdout, "standard output") == ATTO_OK) return OPTIONS_OK;
            fprintf(stderr, "%s: %s\n", page->program, failure_message());
            return OPTIONS_FAILED;
        }
        const option_row *row = find_row(page, code);
        result = row != NULL ? take(page, row) : refuse(page, code, argv[optind - 1]);
    }
    if (result != OPTIONS_RUN || optind == argc) return result;
    fprintf(stderr, "%s: unexpected argument '%s'", page->program, argv[optind]);
    return misuse(page);
}
