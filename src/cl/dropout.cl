/* SPDX-License-Identifier: MIT */
/* dropout.cl - dropout on its own.
 *
 *   forward    y  = drop(x)
 *   backward   dx = drop(dy)   (+ dx)
 *
 * atto_kernel.h says which work-item does what. An output may be exactly an input: each element is
 * read before the same work-item writes it. Knobs: those of atto_kernel.h and atto_dropout.h.
 */
#include "atto_kernel.h"
#include "atto_dropout.h"

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_dropout_forward)
ATTO_KERNEL void atto_dropout_forward(__global const ATTO_T *x, const ulong x_at,
                                      __global ATTO_T *y, const ulong y_at,
                                      const atto_index n ATTO_DROPOUT_PARAMETERS)
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
#if ATTO_DROPOUT
            atto_drop_groups(v, mask, (ulong)at * ATTO_VEC);
#endif
            atto_put(y, at, atto_pack(v));
        }
    }

    const atto_index tail = atto_tail_element(n);
    if (tail < n) {
        float v = atto_load(x, tail);
#if ATTO_DROPOUT
        v = atto_drop(v, mask, tail);
#endif
        atto_store(y, tail, v);
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_dropout_forward_strided)
ATTO_KERNEL void
atto_dropout_forward_strided(__global const ATTO_T *x, const ulong x_at, __global ATTO_T *y,
                             const ulong y_at, ATTO_WALK_PARAMETERS, const atto_index4 x_stride,
                             const atto_index4 y_stride ATTO_DROPOUT_WALK_PARAMETERS)
{
    const atto_index t = get_global_id(0);
    if (t >= runs) return;
    const atto_index4 at = atto_walk(t, size, magic, shift);
    const atto_index count = row - at.w;

    float v[ATTO_RUN];
    atto_load_run(x + x_at, atto_dot(at, x_stride), x_stride.w, count, v);
#if ATTO_DROPOUT
    const atto_mask mask = ATTO_MASK;
    atto_drop_run(v, mask, atto_dot(at, index_stride), index_stride.w, grouped);
#endif
    atto_store_run(y + y_at, atto_dot(at, y_stride), y_stride.w, count, v);
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_dropout_backward)
ATTO_KERNEL void atto_dropout_backward(__global const ATTO_T *dy, const ulong dy_at,
                                       __global ATTO_T *dx, const ulong dx_at, const atto_index n,
                                       const uint add ATTO_DROPOUT_PARAMETERS)
{
    dy += dy_at;
    dx += dx_at;
    const atto_index vectors = n / ATTO_VEC;
    const atto_index first = atto_first_vector();
#if ATTO_DROPOUT
    const atto_mask mask = ATTO_MASK;
#endif

    uint4 raw_dy[ATTO_ITEMS], raw_dx[ATTO_ITEMS];
    atto_fetch_items(dy, first, vectors, raw_dy);
    if (add) atto_fetch_items(dx, first, vectors, raw_dx);
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++) {
        const atto_index at = first + j * ATTO_WG;
        if (at < vectors) {
            float v[ATTO_RUN], old[ATTO_RUN];
            atto_unpack(raw_dy[j], v);
#if ATTO_DROPOUT
            atto_drop_groups(v, mask, (ulong)at * ATTO_VEC);
#endif
            if (add) {
                atto_unpack(raw_dx[j], old);
                atto_add_run(v, old);
            }
            atto_put(dx, at, atto_pack(v));
        }
    }

    const atto_index tail = atto_tail_element(n);
    if (tail < n) {
        float v = atto_load(dy, tail);
#if ATTO_DROPOUT
        v = atto_drop(v, mask, tail);
#endif
        if (add) v += atto_load(dx, tail);
        atto_store(dx, tail, v);
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_dropout_backward_strided)
ATTO_KERNEL void atto_dropout_backward_strided(__global const ATTO_T *dy, const ulong dy_at,
                                               __global ATTO_T *dx, const ulong dx_at,
                                               ATTO_WALK_PARAMETERS, const atto_index4 dy_stride,
                                               const atto_index4 dx_stride,
                                               const uint add ATTO_DROPOUT_WALK_PARAMETERS)
{
    const atto_index t = get_global_id(0);
    if (t >= runs) return;
    const atto_index4 at = atto_walk(t, size, magic, shift);
    const atto_index count = row - at.w;
    const atto_index dx_first = atto_dot(at, dx_stride);

    float v[ATTO_RUN], old[ATTO_RUN];
    atto_load_run(dy + dy_at, atto_dot(at, dy_stride), dy_stride.w, count, v);
#if ATTO_DROPOUT
    const atto_mask mask = ATTO_MASK;
    atto_drop_run(v, mask, atto_dot(at, index_stride), index_stride.w, grouped);
#endif
    if (add) {
        atto_load_run(dx + dx_at, dx_first, dx_stride.w, count, old);
        atto_add_run(v, old);
    }
    atto_store_run(dx + dx_at, dx_first, dx_stride.w, count, v);
}
#endif
