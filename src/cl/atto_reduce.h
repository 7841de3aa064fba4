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

/* scratch[first of the row] = its elements folded with the expression, of which a and b are two. */
#define ATTO_FOLD(scratch, expression)                             \
    do {                                                           \
        const uint here = get_local_id(0);                         \
        for (uint apart = ATTO_LANES / 2; apart > 0; apart /= 2) { \
            barrier(CLK_LOCAL_MEM_FENCE);                          \
            if (ATTO_LANE() < apart) {                             \
                const float a = scratch[here];                     \
                const float b = scratch[here + apart];             \
                scratch[here] = (expression);                      \
            }                                                      \
        }                                                          \
        barrier(CLK_LOCAL_MEM_FENCE);                              \
    } while (0)

ATTO_UNROLLED float atto_row_sum(float v, __local float *scratch)
{
    barrier(CLK_LOCAL_MEM_FENCE); /* whoever still reads the last result */
    scratch[get_local_id(0)] = v;
    ATTO_FOLD(scratch, a + b);
    return scratch[get_local_id(0) - ATTO_LANE()];
}

/* Drops NaN, as fmax does. */
ATTO_UNROLLED float atto_row_max(float v, __local float *scratch)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    scratch[get_local_id(0)] = v;
    ATTO_FOLD(scratch, fmax(a, b));
    return scratch[get_local_id(0) - ATTO_LANE()];
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

#endif
