/* SPDX-License-Identifier: MIT */
/* What both backends derive from the arguments of padding: axes as memory has them, merged. */
#ifndef ATTO_PADDING_H
#define ATTO_PADDING_H

#include <attocl/pad.h>

#include "backend.h"

#include "cl/atto_math.h"

typedef int64_t pad_place;
#include "cl/atto_pad.h"

_Static_assert((int)ATTO_PAD_CONSTANT == PAD_CONSTANT && (int)ATTO_PAD_REFLECT == PAD_REFLECT &&
                   (int)ATTO_PAD_REPLICATE == PAD_REPLICATE &&
                   (int)ATTO_PAD_CIRCULAR == PAD_CIRCULAR,
               "the kernels' numbers are the table's");

/* x [axis[0].in, axis[1].in, ...] and y [axis[0].out, ...] without gaps, the last one innermost. */
typedef struct atto__padding {
    int32_t count; /* 1 or more */
    pad_axis axis[ATTO_MAX_RANK];
    bool is_padded[ATTO_MAX_RANK];
} atto__padding;

/* Neighbours without padding are one axis; of constants, so is an axis and what it has inside. */
static inline void atto__padding_add(atto__padding *p, pad_axis a, bool is_padded, bool constant)
{
    pad_axis *outer = &p->axis[p->count > 0 ? p->count - 1 : 0];
    const bool follows = p->count > 0 && !is_padded;
    if (a.in == 1 && !is_padded) return;
    if (follows && (constant || !p->is_padded[p->count - 1])) {
        outer->in *= a.in;
        outer->out *= a.in;
        outer->before *= a.in;
        return;
    }
    p->axis[p->count] = a;
    p->is_padded[p->count++] = is_padded;
}

/* Of x or dx and y or dy as the layout CHANNELS gives them. */
static inline atto__padding atto__padding_of(const struct atto_pad_args *a, const atto_tensor *x,
                                             const atto_tensor *y, bool channels_last)
{
    atto__padding p = { .count = 0 };
    for (int32_t i = 0; i < x->rank; i++) {
        const int32_t last = x->rank - 1;
        const int32_t d = !channels_last || i == 0 ? i : i == last ? 1 : i + 1;
        const pad_axis axis = { x->shape[d], y->shape[d], a->before[d] };
        atto__padding_add(&p, axis, a->before[d] != 0 || a->after[d] != 0,
                          a->mode == ATTO_PAD_CONSTANT);
    }
    if (p.count == 0) p.axis[p.count++] = (pad_axis){ 1, 1, 0 };
    return p;
}

/* Elements of one tensor from one place of an axis to the next. */
static inline void atto__padding_steps(const atto__padding *p, bool of_x, int64_t *steps)
{
    int64_t step = 1;
    for (int32_t i = p->count - 1; i >= 0; i--) {
        steps[i] = step;
        step *= of_x ? p->axis[i].in : p->axis[i].out;
    }
}

#endif
