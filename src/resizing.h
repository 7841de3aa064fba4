/* SPDX-License-Identifier: MIT */
/* What both backends derive from the arguments of resizing: the two axes. */
#ifndef ATTO_RESIZING_H
#define ATTO_RESIZING_H

#include <attocl/resize.h>

#include "cl/atto_math.h"

typedef int64_t resize_place;
#include "cl/atto_resize.h"

/* x [batch, channels, h.in, w.in], y [batch, channels, h.out, w.out]. */
typedef struct atto__resizing {
    int32_t how; /* of atto_resize.h */
    int64_t batch, channels;
    resize_axis h, w;
} atto__resizing;

/* A scale is left aside where the size stays, and by nearest where it doubles: as PyTorch's. */
static inline resize_axis atto__resize_axis_of(const struct atto_resize_args *a, int32_t at,
                                               int64_t in, int64_t out)
{
    resize_axis axis = { in, out, (float)in / (float)out };
    if (a->align_corners)
        axis.scale = out > 1 ? (float)(in - 1) / (float)(out - 1) : 0.0f;
    else if (a->scale[at] > 0.0 && out != in && !(a->mode == ATTO_RESIZE_NEAREST && out == 2 * in))
        axis.scale = (float)(1.0 / a->scale[at]);
    return axis;
}

/* Of x or dx and y or dy as the layout IMAGES gives them. */
static inline atto__resizing atto__resizing_of(const struct atto_resize_args *a,
                                               const atto_tensor *x, const atto_tensor *y)
{
    const resize_axis one = { 1, 1, 1.0f };
    const bool flat = a->dims == 1;
    return (atto__resizing){
        .how = a->mode == ATTO_RESIZE_NEAREST ? RESIZE_NEAREST
               : a->align_corners             ? RESIZE_ALIGNED
                                              : RESIZE_LINEAR,
        .batch = x->shape[0],
        .channels = x->shape[1],
        .h = flat ? one : atto__resize_axis_of(a, 0, x->shape[2], y->shape[2]),
        .w = atto__resize_axis_of(a, flat ? 0 : 1, x->shape[3], y->shape[3]),
    };
}

#endif
