/* SPDX-License-Identifier: MIT */
/* From a finished sum to the stored element of c:
 *
 *     z = sum + bias      (stored)      c = drop(act(z)) + residual + old c
 *
 * Everything is computed in f32, from the unrounded z, and rounded once.
 *
 *   -D             default         meaning
 *   ATTO_B         f32             storage of the bias, unless it is f32
 *   ATTO_C         f32             storage of c, z and residual
 *   ATTO_PROLOGUE  0               1: activation and dropout belong to the prologue, not here
 *   ATTO_ACT       attom_identity  function of atto_math.h
 *   and those of atto_kernel.h and atto_dropout.h
 */
#ifndef ATTO_EPILOGUE_H
#define ATTO_EPILOGUE_H

#include "atto_quad.h"
#include "atto_gemm_flags.h"

#ifndef ATTO_B
#define ATTO_B f32
#endif
#ifndef ATTO_C
#define ATTO_C f32
#endif
#ifndef ATTO_PROLOGUE
#define ATTO_PROLOGUE 0
#endif

#define ATTO_B_T ATTO_PASTE(atto_, ATTO_B)
#define ATTO_C_T ATTO_PASTE(atto_, ATTO_C)

#define ATTO_C_LOAD  ATTO_PASTE(atto_widen_, ATTO_C)
#define ATTO_C_STORE ATTO_PASTE(atto_narrow_, ATTO_C)
#define ATTO_C_GET   ATTO_PASTE(atto_get_quad_, ATTO_C)
#define ATTO_C_PUT   ATTO_PASTE(atto_put_quad_, ATTO_C)

/* At the end of a kernel's parameter list. c, z and residual are [rows, columns]. */
#define ATTO_EPILOGUE_PARAMETERS                                                                  \
    __global ATTO_C_T *c, const ulong c_at, const atto_index c_stride, __global const void *bias, \
        const ulong bias_at, __global ATTO_C_T *z, const ulong z_at, const atto_index z_stride,   \
        __global const ATTO_C_T *residual, const ulong residual_at,                               \
        const atto_index residual_stride, const uint flags, const float act_a,                    \
        const float act_b ATTO_DROPOUT_PARAMETERS

typedef struct atto_epilogue {
    __global ATTO_C_T *c, *z;
    __global const ATTO_C_T *residual;
    __global const void *bias;
    ulong bias_at;
    atto_index c_stride, z_stride, residual_stride;
    atto_index rows, columns;
    uint flags;
    float a, b;
#if ATTO_DROPOUT && !ATTO_PROLOGUE
    atto_mask mask;
#endif
} atto_epilogue;

#if ATTO_DROPOUT && !ATTO_PROLOGUE
#define ATTO_EPILOGUE_MASK , ATTO_MASK
#else
#define ATTO_EPILOGUE_MASK
#endif

/* The kernel's parameters as one value. */
#define ATTO_EPILOGUE_OF(rows, columns)                                                \
    {                                                                                  \
        c + c_at, z + z_at, residual + residual_at, bias, bias_at, c_stride, z_stride, \
            residual_stride, rows, columns, flags, act_a, act_b ATTO_EPILOGUE_MASK     \
    }

static inline float atto_epilogue_bias(const atto_epilogue *e, atto_index column)
{
    if (e->flags & ATTO_EPILOGUE_BIAS_F32)
        return ((__global const float *)e->bias)[e->bias_at + column];
    return ATTO_PASTE(atto_widen_,
                      ATTO_B)(((__global const ATTO_B_T *)e->bias)[e->bias_at + column]);
}

/* v[i] += p[at + i], i < count */
ATTO_UNROLLED void atto_epilogue_add(float *v, __global const ATTO_C_T *p, size_t at, uint count,
                                     bool quads)
{
    float old[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    if (quads) {
        ATTO_C_GET(p, at, old);
    } else {
#pragma unroll
        for (uint i = 0; i < 4; i++)
            if (i < count) old[i] = ATTO_C_LOAD(p[at + i]);
    }
#pragma unroll
    for (uint i = 0; i < 4; i++) v[i] += old[i];
}

ATTO_UNROLLED void atto_epilogue_put(const float *v, __global ATTO_C_T *p, size_t at, uint count,
                                     bool quads)
{
    if (quads) {
        ATTO_C_PUT(p, at, v);
    } else {
#pragma unroll
        for (uint i = 0; i < 4; i++)
            if (i < count) p[at + i] = ATTO_C_STORE(v[i]);
    }
}

/* Stores the sums v of row `row` and four columns from `column`, a multiple of 4; those that do not
 * exist are left out. */
ATTO_UNROLLED void atto_epilogue_store(const atto_epilogue *e, atto_index row, atto_index column,
                                       float *v)
{
    if (row >= e->rows || column >= e->columns) return;
    const bool quads = (e->flags & ATTO_EPILOGUE_QUADS) != 0;
    const uint count = (uint)min(e->columns - column, (atto_index)4);
    if (e->flags & ATTO_EPILOGUE_BIAS) {
#pragma unroll
        for (uint i = 0; i < 4; i++)
            if (i < count) v[i] += atto_epilogue_bias(e, column + i);
    }
    if (e->flags & ATTO_EPILOGUE_Z)
        atto_epilogue_put(v, e->z, row * e->z_stride + column, count, quads);
#if !ATTO_PROLOGUE
    atto_act_quad(v, e->a, e->b);
#if ATTO_DROPOUT
    atto_drop_quad(v, e->mask, (ulong)row * e->columns + column, e->columns % 4 == 0);
#endif
#endif
    if (e->flags & ATTO_EPILOGUE_RESIDUAL)
        atto_epilogue_add(v, e->residual, row * e->residual_stride + column, count, quads);
    const size_t at = row * e->c_stride + column;
    if (e->flags & ATTO_EPILOGUE_ADD) atto_epilogue_add(v, e->c, at, count, quads);
    atto_epilogue_put(v, e->c, at, count, quads);
}

#endif
