/* SPDX-License-Identifier: MIT */
/* reduce.cl - folds some dimensions of a tensor, and spreads gradients over them again.
 *
 *   fold          out = sum of in / divisor, maximum, position of the first maximum, or share /
 *                 ties
 *   fold_join     the first maximum of several slabs'
 *   spread        dx = dy / divisor               (+ dx)
 *   spread_ties   dx = (x == y) share             (+ dx)
 *
 * fold: a unit is ATTO_RUN neighbouring elements. `lanes` work-items share an output unit; a slab
 * is a stretch of per_slab units of the folded dimensions, and has `groups` work-groups.
 *
 *   rows: the innermost dimension is folded,        columns: it is kept,
 *   neighbouring work-items read along it           neighbouring work-items have other outputs
 *
 *       output 0: | lane 0 | lane 1 | lane 0 ..         lane 0: | output 0 | output 1 | ..
 *       output 1: | lane 0 | lane 1 | lane 0 ..         lane 1: | output 0 | output 1 | ..
 *
 * A lane folds its units in order, then the lanes of an output meet in a tree. With several slabs
 * the results are [slabs, outputs], which a second launch folds (fold_join for positions).
 *
 *   -D             default   meaning
 *   ATTO_FOLD      fold_sum  fold_sum, fold_max, fold_arg or fold_ties
 *   ATTO_ROWS      1         1: rows, 0: columns
 *   ATTO_OUT       f32       storage of out: f32 f16 bf16; for arg i32 i64
 *   ATTO_SHARE     0         1: out = share / sum (fold_sum, fold_ties)
 *   ATTO_FORMULA   -         what is summed is this function of a, b and in: attom_binary_mul_db
 *   ATTO_SCALAR    0         then: bit 0: the number value stands for a; bit 1: for b
 *   ATTO_SLABS     0         1, with fold_arg: values go to [slabs, outputs] as well
 *   and those of atto_kernel.h; ATTO_RUN is ATTO_VEC where ATTO_VECTORS, else 1
 */
#include "atto_kernel.h"
#include "atto_dropout.h"

#ifndef ATTO_FOLD
#define ATTO_FOLD fold_sum
#endif
#ifndef ATTO_ROWS
#define ATTO_ROWS 1
#endif
#ifndef ATTO_OUT
#define ATTO_OUT f32
#endif
#ifndef ATTO_SHARE
#define ATTO_SHARE 0
#endif
#ifndef ATTO_SCALAR
#define ATTO_SCALAR 0
#endif
#ifndef ATTO_SLABS
#define ATTO_SLABS 0
#endif

#define ATTO_NUMBER_fold_sum  0
#define ATTO_NUMBER_fold_max  1
#define ATTO_NUMBER_fold_arg  2
#define ATTO_NUMBER_fold_ties 3
#define ATTO_IS_MAX           (ATTO_PASTE(ATTO_NUMBER_, ATTO_FOLD) == 1)
#define ATTO_IS_ARG           (ATTO_PASTE(ATTO_NUMBER_, ATTO_FOLD) == 2)
#define ATTO_IS_TIES          (ATTO_PASTE(ATTO_NUMBER_, ATTO_FOLD) == 3)

typedef int atto_i32;
typedef long atto_i64;
#define out_t ATTO_PASTE(atto_, ATTO_OUT)

#define ATTO_UNITS 4 /* that a lane loads before it folds them */

/* Outputs that one work-item has, and results that meet in the tree. */
#define ATTO_RESULTS (ATTO_ROWS ? 1 : ATTO_RUN)

/* A float as an integer of the same order; NaN is above all, and -0 is 0. */
static inline int atto_rank(float v)
{
    const int bits = as_int(v + 0.0f);
    const int ordered = bits ^ ((bits >> 31) & 0x7fffffff);
    return isnan(v) ? INT_MAX : ordered;
}

/* Whether a value at a position takes the place of the best so far: larger, or equal and further in
 * front. */
static inline bool atto_beats(float v, atto_index at, float best, atto_index best_at)
{
    const int rank = atto_rank(v), best_rank = atto_rank(best);
    return rank > best_rank || (rank == best_rank && at < best_at);
}

static inline float atto_start(void)
{
    return ATTO_IS_MAX || ATTO_IS_ARG ? -INFINITY : 0.0f;
}

/* folded = folded and x, for one element. */
static inline void atto_fold_one(float *folded, atto_index *position, float x, atto_index at,
                                 float match)
{
#if ATTO_IS_MAX
    *folded = attop_max(*folded, x);
#elif ATTO_IS_ARG
    if (atto_beats(x, at, *folded, *position)) {
        *folded = x;
        *position = at;
    }
#elif ATTO_IS_TIES
    *folded += x == match ? 1.0f : 0.0f;
#else
    *folded += x;
#endif
}

/* Two results of the same output. */
static inline void atto_join(float *folded, atto_index *position, float x, atto_index at)
{
#if ATTO_IS_TIES
    *folded += x;
#else
    atto_fold_one(folded, position, x, at, 0.0f);
#endif
}

/* Coordinates of unit t. */
static inline atto_index4 atto_unit(atto_index t, atto_index4 size, uint4 magic, uint4 shift)
{
    atto_index4 at;
    const atto_index rows = atto_divide(t, size.w, magic.w, shift.w);
    at.w = t - rows * size.w;
    const atto_index planes = atto_divide(rows, size.z, magic.z, shift.z);
    at.z = rows - planes * size.z;
    at.x = atto_divide(planes, size.y, magic.y, shift.y);
    at.y = planes - at.x * size.y;
    return at;
}

/* ---- fold ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_fold)
ATTO_KERNEL void
atto_fold(__global const ATTO_T *in, const ulong in_at, __global out_t *out, const ulong out_at,
#ifdef ATTO_FORMULA
#if !(ATTO_SCALAR & 1)
          __global const ATTO_T *a, const ulong a_at, const atto_index4 kept_a,
          const atto_index4 folded_a,
#endif
#if !(ATTO_SCALAR & 2)
          __global const ATTO_T *b, const ulong b_at, const atto_index4 kept_b,
          const atto_index4 folded_b,
#endif
          const float value,
#endif
#if ATTO_IS_TIES
          __global const ATTO_T *match, const ulong match_at, const atto_index4 kept_match,
#endif
#if ATTO_SHARE
          __global const out_t *share, const ulong share_at, const atto_index4 kept_share,
#endif
#if ATTO_SLABS
          __global float *values,
#endif
          const uint lanes, const atto_index groups, const atto_index outputs,
          const atto_index4 kept_size, const uint4 kept_magic, const uint4 kept_shift,
          const atto_index4 kept_in, const atto_index4 kept_out, const atto_index length,
          const atto_index4 size, const uint4 magic, const uint4 shift, const atto_index4 folded_in,
          const atto_index4 index, const uint flat, const atto_index per_slab,
          const ulong slab_outputs, const float sign, const float out_sign, const float divisor,
          const uint add)
{
    const uint item = get_local_id(0);
    const uint columns = ATTO_WG / lanes;
    const uint lane = ATTO_ROWS ? item % lanes : item / columns;
    const uint column = ATTO_ROWS ? item / lanes : item % columns;
    const atto_index slab = (atto_index)get_group_id(0) / groups;
    const atto_index unit = ((atto_index)get_group_id(0) - slab * groups) * columns + column;
    const bool exists = unit < outputs;
    const atto_index first = slab * per_slab;
    const atto_index end = min(first + per_slab, length);
    atto_index4 kept = atto_unit(exists ? unit : 0, kept_size, kept_magic, kept_shift);
    if (!ATTO_ROWS) kept.w *= ATTO_RUN;
    in += in_at + atto_dot(kept, kept_in);
#if defined(ATTO_FORMULA) && !(ATTO_SCALAR & 1)
    a += a_at + atto_dot(kept, kept_a);
#endif
#if defined(ATTO_FORMULA) && !(ATTO_SCALAR & 2)
    b += b_at + atto_dot(kept, kept_b);
#endif

    float folded[ATTO_RUN], like[ATTO_RUN];
    atto_index position[ATTO_RUN];
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) {
        folded[k] = atto_start();
        position[k] = ~(atto_index)0;
        like[k] = 0.0f;
#if ATTO_IS_TIES
        if (exists)
            like[k] = atto_load(match + match_at,
                                atto_dot(kept, kept_match) + (ATTO_ROWS ? 0 : k * kept_match.w));
#endif
    }

    for (atto_index r = first + lane; exists && r < end; r += ATTO_UNITS * lanes) {
        float x[ATTO_UNITS][ATTO_RUN];
        atto_index4 at[ATTO_UNITS];
#pragma unroll
        for (uint j = 0; j < ATTO_UNITS; j++) {
            const atto_index u = r + j * lanes;
            if (u >= end) continue;
            if (flat) {
                at[j] = (atto_index4)(0, 0, 0, u);
            } else {
                at[j] = atto_unit(u, size, magic, shift);
            }
            if (ATTO_ROWS) at[j].w *= ATTO_RUN;
            const atto_index from = atto_dot(at[j], folded_in);
#if ATTO_VECTORS
            atto_unpack(atto_fetch(in, from / ATTO_VEC), x[j]);
#else
            x[j][0] = atto_load(in, from);
#endif
#ifdef ATTO_FORMULA
            float left[ATTO_RUN], right[ATTO_RUN];
#if ATTO_SCALAR & 1
#pragma unroll
            for (uint k = 0; k < ATTO_RUN; k++) left[k] = value;
#else
            atto_load_run(a, atto_dot(at[j], folded_a), ATTO_ROWS ? folded_a.w : kept_a.w, ATTO_RUN,
                          left);
#endif
#if ATTO_SCALAR & 2
#pragma unroll
            for (uint k = 0; k < ATTO_RUN; k++) right[k] = value;
#else
            atto_load_run(b, atto_dot(at[j], folded_b), ATTO_ROWS ? folded_b.w : kept_b.w, ATTO_RUN,
                          right);
#endif
#pragma unroll
            for (uint k = 0; k < ATTO_RUN; k++) x[j][k] = ATTO_FORMULA(left[k], right[k], x[j][k]);
#endif
        }
#pragma unroll
        for (uint j = 0; j < ATTO_UNITS; j++) {
            if (r + j * lanes >= end) continue;
            const atto_index counted = ATTO_IS_ARG ? atto_dot(at[j], index) : 0;
#pragma unroll
            for (uint k = 0; k < ATTO_RUN; k++)
                atto_fold_one(&folded[k], &position[k], sign * x[j][k],
                              counted + (ATTO_ROWS ? k * index.w : 0), like[k]);
        }
    }

#if ATTO_ROWS
#pragma unroll
    for (uint k = 1; k < ATTO_RUN; k++) atto_join(&folded[0], &position[0], folded[k], position[k]);
#endif
    __local float shared[ATTO_RESULTS][ATTO_WG];
#if ATTO_IS_ARG
    __local atto_index shared_position[ATTO_RESULTS][ATTO_WG];
#endif
    const uint apart = ATTO_ROWS ? 1 : columns; /* from lane to lane of an output */
    for (uint half_lanes = lanes / 2; half_lanes > 0; half_lanes /= 2) { /* the same for all */
#pragma unroll
        for (uint k = 0; k < ATTO_RESULTS; k++) {
            shared[k][item] = folded[k];
#if ATTO_IS_ARG
            shared_position[k][item] = position[k];
#endif
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < half_lanes) {
            const uint other = item + half_lanes * apart;
#pragma unroll
            for (uint k = 0; k < ATTO_RESULTS; k++) {
#if ATTO_IS_ARG
                atto_join(&folded[k], &position[k], shared[k][other], shared_position[k][other]);
#else
                atto_join(&folded[k], &position[k], shared[k][other], 0);
#endif
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    if (lane > 0 || !exists) return;
    out += out_at + slab * slab_outputs + atto_dot(kept, kept_out);
#pragma unroll
    for (uint k = 0; k < ATTO_RESULTS; k++) {
        const ulong to = (ulong)k * kept_out.w;
#if ATTO_IS_ARG
        out[to] = (out_t)position[k];
#if ATTO_SLABS
        values[slab * slab_outputs + atto_dot(kept, kept_out) + to] = folded[k];
#endif
#else
#if ATTO_SHARE
        const ulong from = share_at + atto_dot(kept, kept_share) + (ulong)k * kept_share.w;
        float v = ATTO_PASTE(atto_widen_, ATTO_OUT)(share[from]) / folded[k];
#else
        float v = out_sign * folded[k] / divisor;
#endif
        if (add) v += ATTO_PASTE(atto_widen_, ATTO_OUT)(out[to]);
        out[to] = ATTO_PASTE(atto_narrow_, ATTO_OUT)(v);
#endif
    }
}
#endif

/* The best of slabs for each output, a work-item each. Values and positions are [slabs,
 * outputs]. */
#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_fold_join)
#ifdef ATTO_ONE_KERNEL
#define join_t out_t
#else
#define join_t int
#endif
ATTO_KERNEL void atto_fold_join(__global const float *values, __global const long *positions,
                                __global join_t *out, const ulong out_at, const atto_index outputs,
                                const atto_index slabs, const atto_index4 kept_size,
                                const uint4 kept_magic, const uint4 kept_shift,
                                const atto_index4 kept_out)
{
    const atto_index t = get_global_id(0);
    if (t >= outputs) return;
    float best = values[t];
    atto_index best_at = positions[t];
    for (atto_index slab = 1; slab < slabs; slab++) {
        const float v = values[(ulong)slab * outputs + t];
        const atto_index at = positions[(ulong)slab * outputs + t];
        if (!atto_beats(v, at, best, best_at)) continue;
        best = v;
        best_at = at;
    }
    const atto_index4 kept = atto_unit(t, kept_size, kept_magic, kept_shift);
    out[out_at + atto_dot(kept, kept_out)] = (join_t)best_at;
}
#endif

/* ---- backward ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_spread)
#define ATTO_NAME      atto_spread
#define ATTO_INPUTS(F) F(dy)
#define ATTO_NUMBERS   , const float divisor
#define ATTO_VALUE(k)  (dy[k] / divisor)
#define ATTO_ADDS      1
#include "atto_elementwise.inc"
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_spread_ties)
#define ATTO_NAME      atto_spread_ties
#define ATTO_INPUTS(F) F(x) F(y) F(share)
#define ATTO_NUMBERS
#define ATTO_VALUE(k) ((x[k] == y[k] ? 1.0f : 0.0f) * share[k])
#define ATTO_ADDS     1
#include "atto_elementwise.inc"
#endif
