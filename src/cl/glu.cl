/* SPDX-License-Identifier: MIT */
/* glu.cl - gated linear units.
 *
 *   forward    y = a act(b)
 *   backward   da = dy act(b),  db = dy a act'(b)     (+ dx)
 *
 * x and dx are [outer, 2, width], y and dy [outer, width]: of a row, a and b lie one behind the
 * other. Work-item t of a work-group takes runs t, t + ATTO_WG, ... of the work-group's ATTO_WG *
 * ATTO_ITEMS, a run being ATTO_RUN elements of a half; per_row of them are a half of a row.
 *
 *   -D        default         meaning
 *   ATTO_ACT  attom_identity  function of atto_math.h; its derivative is ATTO_ACT with _grad
 *   ATTO_RUN, ATTO_VECTORS of atto_kernel.h: a vector, or one element, which any width and offset
 *   allows and the others of atto_kernel.h
 */
#include "atto_kernel.h"

#ifndef ATTO_ACT
#define ATTO_ACT attom_identity
#endif
#define ATTO_ACT_GRAD ATTO_PASTE(ATTO_ACT, _grad)

/* Where run t lies in y and in x: its a, whose b is `width` behind it. */
typedef struct place {
    atto_index y, x;
} place;

static inline place place_of(atto_index t, atto_index per_row, uint magic, uint shift)
{
    const atto_index row = atto_divide(t, per_row, magic, shift);
    const place p = { t * ATTO_RUN, (t + row * per_row) * ATTO_RUN };
    return p;
}

static inline atto_index first_run(void)
{
    return (atto_index)get_group_id(0) * (ATTO_WG * ATTO_ITEMS) + (atto_index)get_local_id(0);
}

#define RUN_PARAMETERS                                                                         \
    const atto_index runs, const atto_index per_row, const atto_index width, const uint magic, \
        const uint shift, const float act_a, const float act_b

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_glu_forward)
ATTO_KERNEL void atto_glu_forward(__global const ATTO_T *x, const ulong x_at, __global ATTO_T *y,
                                  const ulong y_at, RUN_PARAMETERS)
{
    const atto_index first = first_run();
    x += x_at;
    y += y_at;
    atto_raw raw_a[ATTO_ITEMS], raw_b[ATTO_ITEMS];
    place at[ATTO_ITEMS];
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++) {
        if (first + j * ATTO_WG >= runs) continue;
        at[j] = place_of(first + j * ATTO_WG, per_row, magic, shift);
        raw_a[j] = atto_load_unit(x, at[j].x);
        raw_b[j] = atto_load_unit(x, at[j].x + width);
    }
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++) {
        if (first + j * ATTO_WG >= runs) continue;
        float a[ATTO_RUN], b[ATTO_RUN];
        atto_widen_unit(raw_a[j], a);
        atto_widen_unit(raw_b[j], b);
#pragma unroll
        for (uint k = 0; k < ATTO_RUN; k++) a[k] *= ATTO_ACT(b[k], act_a, act_b);
        atto_store_run(y, at[j].y, 1, ATTO_RUN, a);
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_glu_backward)
ATTO_KERNEL void atto_glu_backward(__global const ATTO_T *x, const ulong x_at,
                                   __global const ATTO_T *dy, const ulong dy_at,
                                   __global ATTO_T *dx, const ulong dx_at, RUN_PARAMETERS,
                                   const uint add)
{
    const atto_index first = first_run();
    x += x_at;
    dy += dy_at;
    dx += dx_at;
    atto_raw raw_a[ATTO_ITEMS], raw_b[ATTO_ITEMS], raw_dy[ATTO_ITEMS];
    place at[ATTO_ITEMS];
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++) {
        if (first + j * ATTO_WG >= runs) continue;
        at[j] = place_of(first + j * ATTO_WG, per_row, magic, shift);
        raw_a[j] = atto_load_unit(x, at[j].x);
        raw_b[j] = atto_load_unit(x, at[j].x + width);
        raw_dy[j] = atto_load_unit(dy, at[j].y);
    }
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++) {
        if (first + j * ATTO_WG >= runs) continue;
        float a[ATTO_RUN], b[ATTO_RUN], d[ATTO_RUN];
        atto_widen_unit(raw_a[j], a);
        atto_widen_unit(raw_b[j], b);
        atto_widen_unit(raw_dy[j], d);
#pragma unroll
        for (uint k = 0; k < ATTO_RUN; k++) {
            const float gate = ATTO_ACT(b[k], act_a, act_b);
            b[k] = ATTO_ACT_GRAD(b[k], act_a, act_b) * (a[k] * d[k]);
            a[k] = gate * d[k];
        }
        atto_store_gradient(dx, at[j].x, a, add);
        atto_store_gradient(dx, at[j].x + width, b, add);
    }
}
#endif
