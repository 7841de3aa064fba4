/* SPDX-License-Identifier: MIT */
/* What both backends derive from the arguments of batch norm. */
#ifndef ATTO_BATCH_NORM_H
#define ATTO_BATCH_NORM_H

#include <attocl/batch_norm.h>
#include <attocl/group_norm.h>

/* x as [n, channels, size], dense; channels_last it is [n * size, channels, 1]. */
typedef struct atto__batch_norm {
    int64_t n, channels, size;
    int64_t values; /* in each channel */
} atto__batch_norm;

static inline atto__batch_norm atto__batch_norm_of(const atto_tensor *x, bool channels_last)
{
    atto__batch_norm b = { x->shape[0], x->shape[1], 1, 0 };
    for (int32_t d = 2; d < x->rank; d++) *(channels_last ? &b.n : &b.size) *= x->shape[d];
    b.values = b.n * b.size;
    return b;
}

/* x as [n, channels, size], or [n, size, channels] where it is channels_last, in groups of
 * channels. */
typedef struct atto__group_norm {
    int64_t n, channels, size;
    int64_t values; /* in each group of an image */
} atto__group_norm;

static inline atto__group_norm atto__group_norm_of(const struct atto_group_norm_args *a)
{
    const atto__batch_norm b = atto__batch_norm_of(a->x, false);
    return (atto__group_norm){ b.n, b.channels, b.size, b.channels / a->groups * b.size };
}

#endif
