/* SPDX-License-Identifier: MIT */
/* A dense tensor seen along one of its dimensions. */
#ifndef ATTO_AXIS_H
#define ATTO_AXIS_H

#include <attocl/tensor.h>

/* [outer, size, step]: element i along dim of row r stands at (r / step * size + i) * step + r %
 * step. */
typedef struct atto__axis {
    int64_t outer, size, step;
} atto__axis;

/* dim is from -rank to rank - 1; a tensor of rank 0 has one dimension of size 1. */
static inline atto__axis atto__axis_of(const atto_tensor *t, int32_t dim)
{
    atto__axis axis = { 1, 1, 1 };
    const int32_t along = dim < 0 ? dim + t->rank : dim;
    for (int32_t d = 0; d < t->rank; d++) {
        if (d < along) axis.outer *= t->shape[d];
        if (d == along) axis.size = t->shape[d];
        if (d > along) axis.step *= t->shape[d];
    }
    return axis;
}

#endif
