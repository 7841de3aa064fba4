/* SPDX-License-Identifier: MIT */
/* Sums and maxima over the work-items that share a row, by a tree of fixed shape in local memory; no
 * sub-groups and no atomics.
 *
 *   -D          default  meaning
 *   ATTO_LANES  ATTO_WG  work-items of a row, a power of two; at most ATTO_WG are used. The first
 *                        ATTO_LANES work-items of a work-group have its first row, and so on
 *
 * All work-items of a work-group call these functions together. scratch has ATTO_WG elements; whoever
 * passes it on has to be inlined too (ATTO_UNROLLED): PoCL 3.1 gives work-groups on different threads one
 * array, and now and then a wrong sum, where a function with barriers is called twice. */
#ifndef ATTO_REDUCE_H
#define ATTO_REDUCE_H

#include "atto_kernel.h"

#ifndef ATTO_LANES
#define ATTO_LANES ATTO_WG
#endif
#if ATTO_LANES > ATTO_WG
#undef ATTO_LANES
#define ATTO_LANES ATTO_WG
#endif

/* Rows of a work-group, and this work-item's place in its row. */
#define ATTO_ROWS   (ATTO_WG / ATTO_LANES)
#define ATTO_LANE() ((uint)get_local_id(0) % ATTO_LANES)

#if ATTO_LANES > 1

/* The row is folded in two steps, first ATTO_LANES / ATTO_FOLD numbers at a time, then ATTO_FOLD: three
 * barriers, where halving would take one for each power of two. */
#if ATTO_LANES >= 64
#define ATTO_FOLD 16
#else
#define ATTO_FOLD (ATTO_LANES >= 8 ? 8 : ATTO_LANES)
#endif

/* a = the row's v, folded with the expression of a and b. */
#define ATTO_FOLD_ROW(a, v, scratch, expression)                                \
    do {                                                                        \
        const uint here = get_local_id(0);                                      \
        barrier(CLK_LOCAL_MEM_FENCE); /* whoever still reads the last result */ \
        scratch[here] = v;                                                      \
        barrier(CLK_LOCAL_MEM_FENCE);                                           \
        a = v;                                                                  \
        if (ATTO_LANE() < ATTO_FOLD) {                                          \
            for (uint k = 1; k < ATTO_LANES / ATTO_FOLD; k++) {                 \
                const float b = scratch[here + k * ATTO_FOLD];                  \
                a = (expression);                                               \
            }                                                                   \
            scratch[here] = a;                                                  \
        }                                                                       \
        barrier(CLK_LOCAL_MEM_FENCE);                                           \
        a = scratch[here - ATTO_LANE()];                                        \
        for (uint k = 1; k < ATTO_FOLD; k++) {                                  \
            const float b = scratch[here - ATTO_LANE() + k];                    \
            a = (expression);                                                   \
        }                                                                       \
    } while (0)

ATTO_UNROLLED float atto_row_sum(float v, __local float *scratch)
{
    float a;
    ATTO_FOLD_ROW(a, v, scratch, a + b);
    return a;
}

/* Drops NaN, as fmax does. */
ATTO_UNROLLED float atto_row_max(float v, __local float *scratch)
{
    float a;
    ATTO_FOLD_ROW(a, v, scratch, fmax(a, b));
    return a;
}

#else

ATTO_UNROLLED float atto_row_sum(float v, __local float *scratch)
{
    (void)scratch;
    return v;
}

ATTO_UNROLLED float atto_row_max(float v, __local float *scratch)
{
    (void)scratch;
    return v;
}

#endif

/* Two sums; scratch has ATTO_WG pairs. */
ATTO_UNROLLED float2 atto_row_sum2(float2 v, __local float2 *scratch)
{
    __local float *one = (__local float *)scratch;
    const float first = atto_row_sum(v.x, one);
    const float second = atto_row_sum(v.y, one + ATTO_WG);
    return (float2)(first, second);
}

#endif
