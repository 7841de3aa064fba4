/* SPDX-License-Identifier: MIT */
/* Reading the files of golden/, which golden/make_golden.py has made; a test reads one. What is not
 * as expected fails it. */
#ifndef GOLDEN_H
#define GOLDEN_H

#include <stdio.h>

#include "atto_test.h"

/* golden/<name>.txt behind its first two lines; NULL, with a message, where it cannot be opened.
 * Arrays have room for most numbers. */
FILE *golden_open(const char *name, int64_t most);

/* Ends the test: the file is not what make_golden.py writes. */
void golden_malformed(const char *what);

/* Whether there is another word; it is "case". */
bool golden_case_begins(FILE *file);

/* A rank and as many sizes. */
atto_shape golden_shape(FILE *file);
int64_t golden_numel(atto_shape shape);

/* That word, and n numbers behind it. */
void golden_numbers(FILE *file, const char *word, double *out, int64_t n);

/* A name, a number and as many numbers, at most as many as golden_open has said. Returns how many. */
int64_t golden_named(FILE *file, char name[32], double *out);

/* The oracle's answer to case number against PyTorch's. Both are double: a few dozen roundings of
 * 2^-53 of the terms. NaN is NaN. */
void golden_judge(int number, const char *what, const double *got, const double *want,
                  const double *terms, int64_t n);

/* The device's answer in t, if it was made, against PyTorch's: test_judge. */
void golden_expect(const test_tensor *t, const char *op, int64_t n, const double *want,
                   const double *terms);

#endif
