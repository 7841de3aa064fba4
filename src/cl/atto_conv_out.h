/* SPDX-License-Identifier: MIT */
/* Where the results of convolutions go, and what is added to them. */
#ifndef ATTO_CONV_OUT_H
#define ATTO_CONV_OUT_H

#include "atto_conv_flags.h"
#include "atto_epilogue.h"

/* out, z and residual have strides of their own, those of a step of the walk. outputs: channels of
 * a group. */
#define ATTO_CONV_OUT_PARAMETERS                                                                  \
    const atto_index outputs, __global ATTO_C_T *c, const ulong c_at, const atto_index4 c_stride, \
        __global const void *bias, const ulong bias_at, __global ATTO_C_T *z, const ulong z_at,   \
        const atto_index4 z_stride, __global const ATTO_C_T *residual, const ulong residual_at,   \
        const atto_index4 residual_stride, const uint flags, const float act_a, const float act_b

typedef struct atto_conv_out {
    __global ATTO_C_T *c, *z;
    __global const ATTO_C_T *residual;
    __global const void *bias;
    ulong bias_at;
    atto_index4 c_stride, z_stride, residual_stride;
    atto_index outputs, first; /* channels of a group; its first */
    atto_index spots, height, width;
    uint2 magic, shift;
    uint flags;
    float a, b;
} atto_conv_out;

static inline float atto_conv_bias(const atto_conv_out *o, atto_index channel)
{
    if (o->flags & ATTO_CONV_BIAS_F32)
        return ((__global const float *)o->bias)[o->bias_at + channel];
    return ATTO_PASTE(atto_widen_,
                      ATTO_B)(((__global const ATTO_B_T *)o->bias)[o->bias_at + channel]);
}

#endif
