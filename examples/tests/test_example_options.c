/* SPDX-License-Identifier: MIT */
/* Command lines: what is taken, and what is said about what is not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "atto_test.h"
#include "options.h"

typedef struct values {
    const char *device;
    int64_t epochs;
    double lr;
    uint64_t seed;
    bool quiet;
    atto_dtype amp;
} values;

static values got;

/* Parses words separated by blanks, EMPTY being one without letters; what was printed lands in
 * said. */
static int parse(const char *line, char said[4096])
{
    const option_row rows[] = {
        OPTION_DEVICE(&got.device),
        OPTION_EPOCHS(&got.epochs),
        OPTION_LR(&got.lr),
        OPTION_RANDOM(&got.seed),
        OPTION_AMP(&got.amp),
        { "quiet", 0, OPTION_FLAG, &got.quiet, 0, 0, NULL, "say nothing" },
    };
    const option_page page = { "prog", "Does it.\n", rows, COUNT_OF(rows) };
    static char program[] = "prog", nothing[] = "", words[256]; /* texts point into argv */
    char *argv[16] = { program };
    int argc = 1;
    got = (values){ "auto", 5, 1e-3, 1, false, ATTO_F32 };
    snprintf(words, sizeof words, "%s", line);
    for (char *word = strtok(words, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = strcmp(word, "EMPTY") == 0 ? nothing : word;

    FILE *file = tmpfile();
    fflush(NULL);
    const int out = dup(1), err = dup(2);
    dup2(fileno(file), 1);
    dup2(fileno(file), 2);
    const int code = options_parse(&page, argc, argv);
    fflush(NULL);
    dup2(out, 1);
    dup2(err, 2);
    close(out), close(err);
    rewind(file);
    said[fread(said, 1, 4095, file)] = '\0';
    fclose(file);
    return code;
}

static void options_parse_takes_every_form(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        values wanted;
    } rows[] = {
        { "", { "auto", 5, 1e-3, 1, false, ATTO_F32 } },
        { "--device cpu --epochs 3 --lr 0.5 --seed 7 --quiet",
          { "cpu", 3, 0.5, 7, true, ATTO_F32 } },
        { "--device=opencl --epochs=10000 --lr=0 --seed=0",
          { "opencl", 10000, 0, 0, false, ATTO_F32 } },
        { "-d 2 -e1 -l 1e2 -s 0xff", { "2", 1, 100, 255, false, ATTO_F32 } },
        { "--ep 2 --qu", { "auto", 2, 1e-3, 1, true, ATTO_F32 } },
        { "--seed 18446744073709551615 -e 2 -e 3",
          { "auto", 3, 1e-3, UINT64_MAX, false, ATTO_F32 } },
        { "--amp f16", { "auto", 5, 1e-3, 1, false, ATTO_F16 } },
        { "-abf16", { "auto", 5, 1e-3, 1, false, ATTO_BF16 } },
        { "-a f16 --amp=f32", { "auto", 5, 1e-3, 1, false, ATTO_F32 } },
    };
    char said[4096];
    for (int i = 0; i < COUNT_OF(rows); i++) {
        const values *w = &rows[i].wanted;
        if (parse(rows[i].line, said) != OPTIONS_RUN) fail_msg("%s: %s", rows[i].line, said);
        assert_string_equal(said, "");
        assert_string_equal(got.device, w->device);
        assert_true(got.epochs == w->epochs && got.lr == w->lr && got.seed == w->seed &&
                    got.quiet == w->quiet && got.amp == w->amp);
    }
}

static void options_parse_names_option_value_and_range(void **state)
{
    (void)state;
    static const struct {
        const char *line, *said;
    } rows[] = {
        { "--epochs 0", "--epochs is '0', expected a whole number from 1 to 10000" },
        { "--epochs 10001", "--epochs is '10001', expected" },
        { "-e 99999999999999999999", "--epochs is '99999999999999999999', expected" },
        { "--epochs -1", "--epochs is '-1'" },
        { "--epochs 5x", "--epochs is '5x'" },
        { "--epochs 1e2", "--epochs is '1e2'" },
        { "--epochs EMPTY", "--epochs is ''" },
        { "--lr nan", "--lr is 'nan', expected a number from 0 to 100" },
        { "--lr -0.1", "--lr is '-0.1', expected" },
        { "--lr 1e3", "--lr is '1e3', expected" },
        { "--lr 0,5", "--lr is '0,5', expected" },
        { "--lr inf", "--lr is 'inf', expected" },
        { "--seed -1", "--seed is '-1', expected a whole number from 0 to 18446744073709551615" },
        { "--seed 18446744073709551616", "--seed is '18446744073709551616'" },
        { "--seed 0x", "--seed is '0x'" },
        { "--amp f64", "--amp is 'f64', expected f32, f16 or bf16" },
        { "--amp i32", "--amp is 'i32', expected" },
        { "--amp EMPTY", "--amp is ''" },
        { "--device EMPTY", "--device is ''" },
        { "--device", "'--device' needs a value" },
        { "-d", "'-d' needs a value" },
        { "--colour", "'--colour' is no option" },
        { "-x", "'-x' is no option" },
        { "--quiet=1", "'--quiet=1' is no option" },
        { "file", "unexpected argument 'file'" },
        { "-- --quiet", "unexpected argument '--quiet'" },
    };
    char said[4096];
    for (int i = 0; i < COUNT_OF(rows); i++) {
        if (parse(rows[i].line, said) != OPTIONS_USAGE || strstr(said, rows[i].said) == NULL)
            fail_msg("%s\n  said: %s  expected: %s", rows[i].line, said, rows[i].said);
        assert_true(strncmp(said, "prog: ", 6) == 0);
        assert_non_null(strstr(said, "; try prog --help\n"));
    }
}

static void options_parse_prints_help_with_defaults(void **state)
{
    (void)state;
    static const char *const parts[] = {
        "Usage: prog [OPTION]...\nDoes it.\n",
        "  -e, --epochs N        passes over the training data (default: 5)\n",
        "(default: auto)\n",
        "(default: 0.001)\n",
        "  -a, --amp DTYPE       mixed precision with f16 or bf16; f32 is none (default: f32)\n",
        "      --quiet           say nothing\n",
        "  -h, --help            this text\n",
        "Exit status: 0 success, 1 something failed, 2 wrong usage.\n",
    };
    char said[4096];
    assert_int_equal(parse("-e 7 --help --epochs 0", said), OPTIONS_OK);
    assert_null(strstr(said, "default: 5")); /* what was given so far is the default shown */
    assert_int_equal(parse("-h", said), OPTIONS_OK);
    for (int i = 0; i < COUNT_OF(parts); i++)
        if (strstr(said, parts[i]) == NULL) fail_msg("no '%s' in\n%s", parts[i], said);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(options_parse_takes_every_form),
    cmocka_unit_test(options_parse_names_option_value_and_range),
    cmocka_unit_test(options_parse_prints_help_with_defaults),
};
TEST_MAIN_HOST("example.options", tests)
