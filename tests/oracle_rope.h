/* SPDX-License-Identifier: MIT */
/* The answers of rope, in double. */
#ifndef ORACLE_ROPE_H
#define ORACLE_ROPE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct oracle_rope {
    int64_t batches, heads, length, d; /* of x */
    int64_t pairs, rows;               /* tables are [rows, pairs] */
    bool neighbours;
    int64_t offset;
    int32_t position_rank; /* 0: none; 1: [length]; 2: [batches, length] */
    const double *cos, *sin, *position;
} oracle_rope;

/* y of x. terms gets the sizes of what is added up. An element whose position names no row is NaN. */
void oracle_rope_forward(const oracle_rope *q, const double *x, double *y, double *terms);

/* dx of dy. */
void oracle_rope_backward(const oracle_rope *q, const double *dy, double *dx, double *terms);

#endif
