/* SPDX-License-Identifier: MIT */
/* Command lines of the examples: a table of options gives parsing, messages and the help text. */
#ifndef EXAMPLES_OPTIONS_H
#define EXAMPLES_OPTIONS_H

#include <stdint.h>

#include <attocl.h>

typedef enum option_kind {
    OPTION_TEXT,   /* const char * */
    OPTION_COUNT,  /* int64_t, decimal, min to max */
    OPTION_NUMBER, /* double, min to max */
    OPTION_SEED,   /* uint64_t, decimal or 0x, the whole range */
    OPTION_DTYPE,  /* atto_dtype: f32, f16 or bf16 */
    OPTION_FLAG    /* bool, takes no value */
} option_kind;

typedef struct option_row {
    const char *name; /* without the dashes */
    char letter;      /* short form, 0 for none */
    option_kind kind;
    void *value;          /* holds the default, which the help text shows */
    double min, max;      /* of OPTION_COUNT (up to 2^53) and OPTION_NUMBER */
    const char *argument; /* what the help text calls the value */
    const char *help;
} option_row;

/* What an example is, for messages and the help text. */
typedef struct option_page {
    const char *program;
    const char *about; /* lines, the last with its line end */
    const option_row *rows;
    int count; /* at most OPTIONS_MAX */
} option_page;

#define OPTIONS_MAX 32

/* Exit statuses of every example. OPTIONS_RUN is none: go on. */
enum { OPTIONS_RUN = -1, OPTIONS_OK = 0, OPTIONS_FAILED = 1, OPTIONS_USAGE = 2 };

/* Reads the command line into the values. --help (-h) prints the page to standard output and
 * returns OPTIONS_OK; a wrong option or value is explained on standard error, with option, value
 * and range, and returns OPTIONS_USAGE; else OPTIONS_RUN. Values may come as --name VALUE,
 * --name=VALUE,
 * -l VALUE or -lVALUE; names may be shortened. Texts point into argv. */
int options_parse(const option_page *page, int argc, char **argv);

/* The rows that most examples share. value points to a field of the right type. */
/* clang-format off */
#define OPTION_DEVICE(value) \
    { "device", 'd', OPTION_TEXT, value, 0, 0, "NAME", "auto, cpu, opencl, a number or a name (see attocl info)" }
#define OPTION_EPOCHS(value) \
    { "epochs", 'e', OPTION_COUNT, value, 1, 10000, "N", "passes over the training data" }
#define OPTION_BATCH(value, max) \
    { "batch", 'b', OPTION_COUNT, value, 1, max, "N", "items per step" }
#define OPTION_LR(value) \
    { "lr", 'l', OPTION_NUMBER, value, 0, 100, "X", "learning rate" }
#define OPTION_AMP(value) \
    { "amp", 'a', OPTION_DTYPE, value, 0, 0, "DTYPE", "mixed precision with f16 or bf16; f32 is none" }
#define OPTION_RANDOM(value) \
    { "seed", 's', OPTION_SEED, value, 0, 0, "N", "of everything random: same seed, same run" }
#define OPTION_CSV(value) \
    { "csv", 'c', OPTION_TEXT, value, 0, 0, "FILE", "write a row of figures per epoch" }
#define OPTION_PLOT(value) \
    { "plot", 'p', OPTION_TEXT, value, 0, 0, "FILE", "write the curves as SVG" }
#define OPTION_DATA(value) \
    { "data", 'D', OPTION_TEXT, value, 0, 0, "FOLDER", "where the data set is" }
/* clang-format on */

#endif
