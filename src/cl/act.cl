/* SPDX-License-Identifier: MIT */
/* act.cl - activations, with dropout behind them.
 *
 *   forward    y  = drop(act(x))
 *   backward   dx = drop(act'(x) * dy)   (+ dx)
 *
 * atto_kernel.h says which work-item does what. An output may be exactly an input: each element is
 * read before the same work-item writes it.
 *
 *   -D        default         meaning
 *   ATTO_ACT  attom_identity  function of atto_math.h; its derivative is ATTO_ACT with _grad
 *   and those of atto_kernel.h and atto_dropout.h
 */
#include "atto_kernel.h"
#include "atto_dropout.h"

#ifndef ATTO_ACT
#define ATTO_ACT attom_identity
#endif
#define ATTO_ACT_GRAD ATTO_PASTE(ATTO_ACT, _grad)

/* The derivative of the identity does not need x, so x is not read. */
#define ATTO_IGNORES_X_attom_identity 1
#define ATTO_READS_X                  (!ATTO_PASTE(ATTO_IGNORES_X_, ATTO_ACT))

/* v = act(v) */
ATTO_UNROLLED void act_run(float *v, float a, float b)
{
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) v[k] = ATTO_ACT(v[k], a, b);
}

/* v = act'(x) * v */
ATTO_UNROLLED void act_grad_run(float *v, const float *x, float a, float b)
{
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) v[k] = ATTO_ACT_GRAD(x[k], a, b) * v[k];
}

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_act_forward)
ATTO_KERNEL void atto_act_forward(__global const ATTO_T *x, const ulong x_at, __global ATTO_T *y,
                                  const ulong y_at, const atto_index n, const float a,
                                  const float b ATTO_DROPOUT_PARAMETERS)
{
    x += x_at;
    y += y_at;
    const atto_index vectors = n / ATTO_VEC;
    const atto_index first = atto_first_vector();
#if ATTO_DROPOUT
    const atto_mask mask = ATTO_MASK;
#endif

    uint4 raw[ATTO_ITEMS];
    atto_fetch_items(x, first, vectors, raw);
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++) {
        const atto_index at = first + j * ATTO_WG;
        if (at < vectors) {
            float v[ATTO_RUN];
            atto_unpack(raw[j], v);
            act_run(v, a, b);
#if ATTO_DROPOUT
            atto_drop_groups(v, mask, (ulong)at * ATTO_VEC);
#endif
            atto_put(y, at, atto_pack(v));
        }
    }

    const atto_index tail = atto_tail_element(n);
    if (tail < n) {
        float v = atto_load(x, tail);
        v = ATTO_ACT(v, a, b);
#if ATTO_DROPOUT
        v = atto_drop(v, mask, tail);
#endif
        atto_store(y, tail, v);
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_act_forward_strided)
ATTO_KERNEL void atto_act_forward_strided(__global const ATTO_T *x, const ulong x_at,
                                          __global ATTO_T *y, const ulong y_at,
                                          ATTO_WALK_PARAMETERS, const atto_index4 x_stride,
                                          const atto_index4 y_stride, const float a,
                                          const float b ATTO_DROPOUT_WALK_PARAMETERS)
{
    const atto_index t = get_global_id(0);
    if (t >= runs) return;
    const atto_index4 at = atto_walk(t, size, magic, shift);
    const atto_index count = row - at.w;

    float v[ATTO_RUN];
    atto_load_run(x + x_at, atto_dot(at, x_stride), x_stride.w, count, v);
    act_run(v, a, b);
#if ATTO_DROPOUT
    const atto_mask mask = ATTO_MASK;
    atto_drop_run(v, mask, atto_dot(at, index_stride), index_stride.w, grouped);
#endif
    atto_store_run(y + y_at, atto_dot(at, y_stride), y_stride.w, count, v);
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_act_backward)
ATTO_KERNEL void atto_act_backward(__global const ATTO_T *x, const ulong x_at,
                                   __global const ATTO_T *dy, const ulong dy_at,
                                   __global ATTO_T *dx, const ulong dx_at, const atto_index n,
                                   const float a, const float b,
                                   const uint add ATTO_DROPOUT_PARAMETERS)
{
    x += x_at;
    dy += dy_at;
    dx += dx_at;
    const atto_index vectors = n / ATTO_VEC;
    const atto_index first = atto_first_vector();
#if ATTO_DROPOUT
    const atto_mask mask = ATTO_MASK;
#endif

    uint4 raw_dy[ATTO_ITEMS], raw_dx[ATTO_ITEMS];
#if ATTO_READS_X
    uint4 raw_x[ATTO_ITEMS];
    atto_fetch_items(x, first, vectors, raw_x);
#endif
    atto_fetch_items(dy, first, vectors, raw_dy);
    if (add) atto_fetch_items(dx, first, vectors, raw_dx);
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++) {
        const atto_index at = first + j * ATTO_WG;
        if (at < vectors) {
            float v[ATTO_RUN], other[ATTO_RUN];
            atto_unpack(raw_dy[j], v);
#if ATTO_READS_X
            atto_unpack(raw_x[j], other);
            act_grad_run(v, other, a, b);
#endif
#if ATTO_DROPOUT
            atto_drop_groups(v, mask, (ulong)at * ATTO_VEC);
#endif
            if (add) {
                atto_unpack(raw_dx[j], other);
                atto_add_run(v, other);
            }
            atto_put(dx, at, atto_pack(v));
        }
    }

    const atto_index tail = atto_tail_element(n);
    if (tail < n) {
        float v = atto_load(dy, tail);
#if ATTO_READS_X
        v = ATTO_ACT_GRAD(atto_load(x, tail), a, b) * v;
#endif
#if ATTO_DROPOUT
        v = atto_drop(v, mask, tail);
#endif
        if (add) v += atto_load(dx, tail);
        atto_store(dx, tail, v);
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_act_backward_strided)
ATTO_KERNEL void atto_act_backward_strided(__global const ATTO_T *x, const ulong x_at,
                                           __global const ATTO_T *dy, const ulong dy_at,
                                           __global ATTO_T *dx, const ulong dx_at,
                                           ATTO_WALK_PARAMETERS, const atto_index4 x_stride,
                                           const atto_index4 dy_stride, const atto_index4 dx_stride,
                                           const float a, const float b,
                                           const uint add ATTO_DROPOUT_WALK_PARAMETERS)
{
    const atto_index t = get_global_id(0);
    if (t >= runs) return;
    const atto_index4 at = atto_walk(t, size, magic, shift);
    const atto_index count = row - at.w;
    const atto_index dx_first = atto_dot(at, dx_stride);

    float v[ATTO_RUN], other[ATTO_RUN];
    atto_load_run(dy + dy_at, atto_dot(at, dy_stride), dy_stride.w, count, v);
#if ATTO_READS_X
    atto_load_run(x + x_at, atto_dot(at, x_stride), x_stride.w, count, other);
    act_grad_run(v, other, a, b);
#endif
#if ATTO_DROPOUT
    const atto_mask mask = ATTO_MASK;
    atto_drop_run(v, mask, atto_dot(at, index_stride), index_stride.w, grouped);
#endif
    if (add) {
        atto_load_run(dx + dx_at, dx_first, dx_stride.w, count, other);
        atto_add_run(v, other);
    }
    atto_store_run(dx + dx_at, dx_first, dx_stride.w, count, v);
}
#endif
