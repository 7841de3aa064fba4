/* SPDX-License-Identifier: MIT */
/* One turn as both backends run it: forward of x to y, or backward, by the negative angle, of dy to dx. */
#ifndef ATTO_ROPE_H
#define ATTO_ROPE_H

#include <attocl/rope.h>

#include "device.h"
#include "indices.h"

typedef struct atto__turn {
    const atto_tensor *from, *to, *cos, *sin, *position; /* position: NULL = offset + l */
    int64_t batches, heads, length;                      /* B, H, L */
    int64_t d, half, rows;                               /* D, R / 2, P */
    int64_t offset;
    int64_t position_batch, position_step; /* strides of position */
    bool neighbours, add;
    float sign; /* of sin */
} atto__turn;

static inline atto__turn atto__turn_of(const struct atto_rope_args *a, bool backward)
{
    const atto_tensor *from = backward ? a->dy : a->x, *position = a->position;
    return (atto__turn){ .from = from,
                         .to = backward ? a->dx : a->y,
                         .cos = a->cos,
                         .sin = a->sin,
                         .position = position,
                         .batches = from->shape[0],
                         .heads = from->shape[1],
                         .length = from->shape[2],
                         .d = from->shape[3],
                         .half = a->cos->shape[1],
                         .rows = a->cos->shape[0],
                         .offset = a->offset,
                         .position_batch =
                             position && position->rank == 2 ? position->stride[0] : 0,
                         .position_step = position ? position->stride[position->rank - 1] : 0,
                         .neighbours = a->pairing == ATTO_ROPE_NEIGHBOURS,
                         .add = backward && a->add_dx,
                         .sign = backward ? -1.0f : 1.0f };
}

#endif
