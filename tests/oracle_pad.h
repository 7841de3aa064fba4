/* SPDX-License-Identifier: MIT */
/* Padding from its definition. */
#ifndef ORACLE_PAD_H
#define ORACLE_PAD_H

#include <attocl.h>

typedef struct oracle_pad {
    atto_shape x;
    int64_t before[ATTO_MAX_RANK], after[ATTO_MAX_RANK];
    atto_pad_kind mode;
    double value;
} oracle_pad;

atto_shape oracle_pad_shape(const oracle_pad *q);

/* What each element of y is. */
void oracle_pad_forward(const oracle_pad *q, const double *x, double *y);

/* dx, the sizes of its terms, and how many the element with the most of them has. */
int64_t oracle_pad_backward(const oracle_pad *q, const double *dy, double *dx, double *terms);

#endif
