/* SPDX-License-Identifier: MIT */
/* Resizing from its definition. */
#ifndef ORACLE_RESIZE_H
#define ORACLE_RESIZE_H

#include <attocl.h>

/* x [planes, h, w], y [planes, oh, ow]; of one dimension h and oh are 1. */
typedef struct oracle_resize {
    atto_resize_kind mode;
    bool align_corners;
    double scale[2]; /* {height, width}; 0 = as the sizes are */
    int64_t planes, h, w, oh, ow;
} oracle_resize;

/* terms: what an element may be off by, in u (tolerance.c). */
void oracle_resize_forward(const oracle_resize *q, const double *x, double *y, double *terms);
void oracle_resize_backward(const oracle_resize *q, const double *dy, double *dx, double *terms);

#endif
