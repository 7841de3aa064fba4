/* SPDX-License-Identifier: MIT */
/* Sums and maxima over the work-items that share a row, by a tree of fixed shape; no sub-groups and
 * no atomics.
 *
 *   -D          default  meaning
 *   ATTO_LANES  ATTO_WG  work-items of a row, a power of two; at most ATTO_WG are used. The first
 *                        ATTO_LANES work-items of a work-group have its first row, and so on
 *
 * The tree: the lanes of a block, up to 32 neighbours, by halves, lane i with lane i + 16, then i +
 * 8 and so on; then the blocks one after another. On NVIDIA GPUs a block is a warp and its lanes
 * swap registers; elsewhere numbers go through local memory, with the same bits.
 *
 * All work-items of a work-group call these functions together. scratch has ATTO_WG elements;
 * whoever passes it on has to be inlined too (ATTO_UNROLLED): PoCL 3.1 gives work-groups on
 * different threads one array, and now and then a wrong sum, where a function with barriers is
 * called twice. */
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

/* Lanes of a block, and blocks of a row. */
#define ATTO_BLOCK  (ATTO_LANES < 32 ? ATTO_LANES : 32)
#define ATTO_BLOCKS (ATTO_LANES / ATTO_BLOCK)

#define ATTO_ADD(a, b) ((a) + (b))

#if ATTO_NVIDIA >= 70 && ATTO_WG >= 32

/* v of the lane whose number differs by one bit. */
static inline float atto_swap(float v, uint bit)
{
    float other;
    __asm__ volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;"
                     : "=f"(other)
                     : "f"(v), "r"(bit));
    return other;
}

/* The work-items of a row meet; of rows side by side each has a barrier of its own. */
#if ATTO_ROWS > 1 && ATTO_ROWS <= 8 && ATTO_LANES > 32
#define ATTO_MEET()                                                                 \
    __asm__ volatile("bar.sync %0, %1;"                                             \
                     :                                                              \
                     : "r"(1 + (uint)get_local_id(0) / ATTO_LANES), "n"(ATTO_LANES) \
                     : "memory")
#else
#define ATTO_MEET() barrier(CLK_LOCAL_MEM_FENCE)
#endif

/* a = the block's v; an operation is ATTO_ADD or fmax. */
#define ATTO_FOLD_BLOCK(a, v, operation)                                                        \
    do {                                                                                        \
        a = v;                                                                                  \
        for (uint bit = ATTO_BLOCK / 2; bit > 0; bit /= 2) a = operation(a, atto_swap(a, bit)); \
    } while (0)

/* a = the row's v. */
#define ATTO_FOLD_ROW(a, v, scratch, operation)                                        \
    do {                                                                               \
        ATTO_FOLD_BLOCK(a, v, operation);                                              \
        if (ATTO_BLOCKS > 1) {                                                         \
            const uint here = get_local_id(0);                                         \
            const uint row = here / ATTO_LANES * ATTO_BLOCKS;                          \
            ATTO_MEET(); /* who still reads the last one */                            \
            if (here % ATTO_BLOCK == 0) scratch[here / ATTO_BLOCK] = a;                \
            ATTO_MEET();                                                               \
            a = scratch[row];                                                          \
            for (uint k = 1; k < ATTO_BLOCKS; k++) a = operation(a, scratch[row + k]); \
        }                                                                              \
    } while (0)

#else

/* Numbers of a block that the first of two steps leaves to the second; of all blocks about 16, so
 * that there are three barriers, where halving would take one for each power of two. */
#define ATTO_PARTS (ATTO_BLOCKS >= 8 ? 2 : ATTO_BLOCKS == 4 ? 4 : ATTO_BLOCK < 8 ? ATTO_BLOCK : 8)

/* t[0] = n numbers by halves; n is a constant power of two. */
#define ATTO_FOLD_HALVES(t, n, operation)             \
    for (uint half_ = (n) / 2; half_ > 0; half_ /= 2) \
        for (uint i_ = 0; i_ < half_; i_++) t[i_] = operation(t[i_], t[i_ + half_])

/* a = the row's v; an operation is ATTO_ADD or fmax. */
#define ATTO_FOLD_ROW(a, v, scratch, operation)                                                 \
    do {                                                                                        \
        const uint here = get_local_id(0);                                                      \
        const uint row = here - ATTO_LANE();                                                    \
        barrier(CLK_LOCAL_MEM_FENCE); /* who still reads the last one */                        \
        scratch[here] = v;                                                                      \
        barrier(CLK_LOCAL_MEM_FENCE);                                                           \
        if (ATTO_BLOCK > ATTO_PARTS) {                                                          \
            if (here % ATTO_BLOCK < ATTO_PARTS) {                                               \
                float t[ATTO_BLOCK / ATTO_PARTS];                                               \
                for (uint k = 0; k < ATTO_BLOCK / ATTO_PARTS; k++)                              \
                    t[k] = scratch[here + k * ATTO_PARTS];                                      \
                ATTO_FOLD_HALVES(t, ATTO_BLOCK / ATTO_PARTS, operation);                        \
                scratch[here] = t[0];                                                           \
            }                                                                                   \
            barrier(CLK_LOCAL_MEM_FENCE);                                                       \
        }                                                                                       \
        for (uint block = 0; block < ATTO_BLOCKS; block++) {                                    \
            float t[ATTO_PARTS];                                                                \
            for (uint k = 0; k < ATTO_PARTS; k++) t[k] = scratch[row + block * ATTO_BLOCK + k]; \
            ATTO_FOLD_HALVES(t, ATTO_PARTS, operation);                                         \
            a = block == 0 ? t[0] : operation(a, t[0]);                                         \
        }                                                                                       \
    } while (0)

#endif

#if ATTO_LANES > 1

ATTO_UNROLLED float atto_row_sum(float v, __local float *scratch)
{
    float a = v;
    ATTO_FOLD_ROW(a, v, scratch, ATTO_ADD);
    return a;
}

/* Drops NaN, as fmax does. */
ATTO_UNROLLED float atto_row_max(float v, __local float *scratch)
{
    float a = v;
    ATTO_FOLD_ROW(a, v, scratch, fmax);
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

/* A sum of e^(x - top) over the row, each lane's relative to a maximum of its own. (top, sum). */
ATTO_UNROLLED float2 atto_row_top_and_sum(float2 lane, __local float *scratch)
{
#if ATTO_NVIDIA >= 70 && ATTO_WG >= 32 && ATTO_LANES > 32
    /* Both in one exchange. */
    const uint here = get_local_id(0), row = here / ATTO_LANES * ATTO_BLOCKS;
    float top, sum;
    ATTO_FOLD_BLOCK(top, lane.x, fmax);
    const float share = lane.y * attop_exp_share(lane.x - top);
    ATTO_FOLD_BLOCK(sum, share, ATTO_ADD);
    ATTO_MEET();
    if (here % ATTO_BLOCK == 0) {
        scratch[here / ATTO_BLOCK] = top;
        scratch[ATTO_WG / ATTO_BLOCK + here / ATTO_BLOCK] = sum;
    }
    ATTO_MEET();
    top = scratch[row];
    for (uint k = 1; k < ATTO_BLOCKS; k++) top = fmax(top, scratch[row + k]);
    sum = 0.0f;
    for (uint k = 0; k < ATTO_BLOCKS; k++)
        sum += scratch[ATTO_WG / ATTO_BLOCK + row + k] * attop_exp_share(scratch[row + k] - top);
    return (float2)(top, sum);
#else
    const float top = atto_row_max(lane.x, scratch);
    return (float2)(top, atto_row_sum(lane.y * attop_exp_share(lane.x - top), scratch));
#endif
}

#if ATTO_NVIDIA >= 70 && ATTO_WG >= 32 && ATTO_LANES > 1
/* Both in one exchange; nobody reads scratch any more. */
ATTO_UNROLLED float2 atto_sum2_once(float2 v, __local float2 *scratch)
{
    for (uint bit = ATTO_BLOCK / 2; bit > 0; bit /= 2)
        v += (float2)(atto_swap(v.x, bit), atto_swap(v.y, bit));
#if ATTO_BLOCKS > 1
    const uint here = get_local_id(0), row = here / ATTO_LANES * ATTO_BLOCKS;
    if (here % ATTO_BLOCK == 0) scratch[here / ATTO_BLOCK] = v;
    ATTO_MEET();
    v = scratch[row];
    for (uint k = 1; k < ATTO_BLOCKS; k++) v += scratch[row + k];
#endif
    return v;
}
#endif

/* Two sums; scratch has ATTO_WG pairs. */
ATTO_UNROLLED float2 atto_row_sum2(float2 v, __local float2 *scratch)
{
#if ATTO_NVIDIA >= 70 && ATTO_WG >= 32 && ATTO_LANES > 1
    if (ATTO_BLOCKS > 1) ATTO_MEET(); /* who still reads the last one */
    return atto_sum2_once(v, scratch);
#else
    __local float *one = (__local float *)scratch;
    const float first = atto_row_sum(v.x, one);
    const float second = atto_row_sum(v.y, one + ATTO_WG);
    return (float2)(first, second);
#endif
}

/* Each of v[0] .. v[n - 1] over the work-items whose numbers are the same modulo `columns`, a power
 * of two up to 32; all of them get the results, or if not `everyone` the first columns work-items.
 * scratch has n * ATTO_WG elements; an operation is ATTO_ADD or fmax. */
#if ATTO_NVIDIA >= 70 && ATTO_WG >= 32
#define ATTO_FOLD_COLUMNS(v, n, columns, everyone, scratch, operation)                      \
    do {                                                                                    \
        const uint item = get_local_id(0);                                                  \
        for (uint bit = 16; bit >= (columns); bit /= 2)                                     \
            _Pragma("unroll") for (uint k = 0; k < (n); k++)(v)[k] =                        \
                operation((v)[k], atto_swap((v)[k], bit));                                  \
        barrier(CLK_LOCAL_MEM_FENCE); /* who still reads the last one */                    \
        if (item % 32 < (columns))                                                          \
            _Pragma("unroll") for (uint k = 0; k < (n); k++)(scratch)[k * ATTO_WG + item] = \
                (v)[k];                                                                     \
        barrier(CLK_LOCAL_MEM_FENCE);                                                       \
        if ((everyone) || item < (columns)) {                                               \
            __local const float *mine = (scratch) + item % (columns);                       \
            _Pragma("unroll") for (uint k = 0; k < (n); k++)                                \
            {                                                                               \
                (v)[k] = mine[k * ATTO_WG];                                                 \
                _Pragma("unroll") for (uint b = 32; b < ATTO_WG; b += 32)(v)[k] =           \
                    operation((v)[k], mine[k * ATTO_WG + b]);                               \
            }                                                                               \
        }                                                                                   \
    } while (0)
#else
#define ATTO_FOLD_COLUMNS(v, n, columns, everyone, scratch, operation)                             \
    do {                                                                                           \
        const uint item = get_local_id(0), column = item % (columns);                              \
        for (uint half_ = ATTO_WG / (columns) / 2; half_ > 0; half_ /= 2) { /* the same for all */ \
            barrier(CLK_LOCAL_MEM_FENCE);                                                          \
            _Pragma("unroll") for (uint k = 0; k < (n); k++)(scratch)[k * ATTO_WG + item] =        \
                (v)[k];                                                                            \
            barrier(CLK_LOCAL_MEM_FENCE);                                                          \
            if (item < half_ * (columns))                                                          \
                _Pragma("unroll") for (uint k = 0; k < (n); k++)(v)[k] =                           \
                    operation((v)[k], (scratch)[k * ATTO_WG + item + half_ * (columns)]);          \
        }                                                                                          \
        if (everyone) {                                                                            \
            barrier(CLK_LOCAL_MEM_FENCE);                                                          \
            if (item < (columns))                                                                  \
                _Pragma("unroll") for (uint k = 0; k < (n); k++)(scratch)[k * ATTO_WG + item] =    \
                    (v)[k];                                                                        \
            barrier(CLK_LOCAL_MEM_FENCE);                                                          \
            _Pragma("unroll") for (uint k = 0; k < (n); k++)(v)[k] =                               \
                (scratch)[k * ATTO_WG + column];                                                   \
        }                                                                                          \
    } while (0)
#endif

/* This work-item's share of a sum of n numbers that its work-group adds up: every ATTO_WG-th, so
 * many on their way at a time. */
ATTO_UNROLLED float atto_share_of_sum(__global const float *numbers, size_t n)
{
    float sum = 0.0f;
    for (size_t i = get_local_id(0); i < n; i += 16 * ATTO_WG) {
        float v[16];
#pragma unroll
        for (uint k = 0; k < 16; k++) v[k] = numbers[min(i + k * ATTO_WG, n - 1)];
#pragma unroll
        for (uint k = 0; k < 16; k++) sum += i + k * ATTO_WG < n ? v[k] : 0.0f;
    }
    return sum;
}

/* One sum of a loop, as below. */
ATTO_UNROLLED float atto_row_sum_in_turn(float v, __local float2 *scratch, uint turn)
{
    __local float *mine = (__local float *)(scratch + turn % 2 * ATTO_WG);
#if ATTO_NVIDIA >= 70 && ATTO_WG >= 32 && ATTO_LANES > 32
    const uint here = get_local_id(0), row = here / ATTO_LANES * ATTO_BLOCKS;
    ATTO_FOLD_BLOCK(v, v, ATTO_ADD);
    if (here % ATTO_BLOCK == 0) mine[here / ATTO_BLOCK] = v;
    ATTO_MEET();
    v = mine[row];
    for (uint k = 1; k < ATTO_BLOCKS; k++) v += mine[row + k];
    return v;
#else
    return atto_row_sum(v, mine);
#endif
}

/* The same in a loop, turn by turn. scratch has 2 * ATTO_WG pairs: who is late still reads those of
 * the last turn, so that there is one barrier instead of two. */
ATTO_UNROLLED float2 atto_row_sum2_in_turn(float2 v, __local float2 *scratch, uint turn)
{
    scratch += turn % 2 * ATTO_WG;
#if ATTO_NVIDIA >= 70 && ATTO_WG >= 32 && ATTO_LANES > 1
    return atto_sum2_once(v, scratch);
#else
    return atto_row_sum2(v, scratch);
#endif
}

#endif
