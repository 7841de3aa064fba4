/* SPDX-License-Identifier: MIT */
/* Reading the files of pretrained/, which scripts/make_pretrained.py has made. What is not as
 * expected fails the test. */
#ifndef PRETRAINED_H
#define PRETRAINED_H

#include "atto_test.h"

typedef struct pretrained_array {
    char name[48];
    char dtype[8]; /* f32, u8 or s16 */
    atto_shape shape;
    int64_t count;
    const unsigned char *data; /* little-endian, row-major */
    bool is_loaded;
} pretrained_array;

/* A network's weights, and behind them its outputs and inputs. */
typedef struct pretrained {
    pretrained_array arrays[192];
    int count;
    unsigned char *bytes;
} pretrained;

/* pretrained/<name>.txt and .bin. */
void pretrained_open(pretrained *p, const char *name);
void pretrained_close(pretrained *p);

/* Every parameter and buffer of m and of all modules below it gets the array that is named like its
 * key, with prefix and a dot in front unless prefix is "". Its shape must be the same, and no array
 * may be loaded twice. num_batches_tracked, which evaluation does not use, stays as it is. */
void pretrained_load(pretrained *p, const char *prefix, atto_module *m);

/* No weight has been left out. */
void pretrained_expect_all_loaded(const pretrained *p);

const pretrained_array *pretrained_find(pretrained *p, const char *name);

/* The elements as floats; release them with free. */
float *pretrained_floats(const pretrained_array *a);

#endif
