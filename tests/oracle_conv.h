/* SPDX-License-Identifier: MIT */
/* The answers of convolutions and of transposed ones, in double. */
#ifndef ORACLE_CONV_H
#define ORACLE_CONV_H

#include "oracle.h"

/* How elements outside the image are read. */
typedef enum oracle_rim {
    ORACLE_RIM_ZEROS,
    ORACLE_RIM_REFLECT,   /* 2 1 | 0 1 2 | 1 0 */
    ORACLE_RIM_REPLICATE, /* 0 0 | 0 1 2 | 2 2 */
    ORACLE_RIM_CIRCULAR   /* 1 2 | 0 1 2 | 0 1 */
} oracle_rim;

/* Along height and width; one dimension is height 1 with a kernel of 1. */
typedef struct oracle_conv_axis {
    int64_t in, out; /* of x and of y */
    int64_t kernel, stride, dilation;
    int64_t before; /* padding in front of the image; what is behind follows from out */
} oracle_conv_axis;

/* x [batch, channels, h.in, w.in], y [batch, outputs, h.out, w.out], dense. w is [outputs,
 * channels / groups, kernels] of a convolution and [channels, outputs / groups, kernels] of a
 * transposed one. */
typedef struct oracle_conv {
    bool transposed;
    oracle_rim rim; /* transposed: zeros */
    int64_t batch, channels, outputs, groups;
    oracle_conv_axis axis[2];
    const double *x, *w;
    const double *b; /* NULL = none */
    const double *dy;
} oracle_conv;

/* Sums, with the magnitudes of their terms; NULL = not wanted. */
typedef struct oracle_conv_answer {
    oracle_sum *y, *dx, *dw, *db;
} oracle_conv_answer;

void oracle_convolve(const oracle_conv *o, const oracle_conv_answer *a);

/* Elements of x, y and w. */
int64_t oracle_conv_x(const oracle_conv *o);
int64_t oracle_conv_y(const oracle_conv *o);
int64_t oracle_conv_w(const oracle_conv *o);

#endif
