/* SPDX-License-Identifier: MIT */
/* What the kernels of pool.cl share, the table of whose knobs stands there: windows along an axis,
 * sums and maxima of runs, and how runs are moved. */
#ifndef ATTO_POOL_H
#define ATTO_POOL_H

#include "atto_kernel.h"

#ifndef ATTO_MAX
#define ATTO_MAX 0
#endif
#ifndef ATTO_INDEX_OUT
#define ATTO_INDEX_OUT 0
#endif
#ifndef ATTO_CHANNELS
#define ATTO_CHANNELS 0
#endif
#ifndef ATTO_WINDOW
#define ATTO_WINDOW 2
#endif

#if ATTO_INDEX == 64
typedef long place; /* along an axis: an index that may be below 0 */
#else
typedef int place;
#endif

#if ATTO_INDEX_OUT == 64
typedef long position_t;
typedef long2 positions_t; /* 16 bytes */
#define POSITIONS            2
#define ATTO_SPLIT_POSITIONS ATTO_SPLIT_2
#define ATTO_JOIN_POSITIONS  ATTO_JOIN_2
#else
typedef int position_t;
typedef int4 positions_t;
#define POSITIONS            4
#define ATTO_SPLIT_POSITIONS ATTO_SPLIT_4
#define ATTO_JOIN_POSITIONS  ATTO_JOIN_4
#endif

#define FILL (ATTO_MAX ? -INFINITY : 0.0f)

/* ---- windows ---- */

/* taps 0: window o is floor(o in / out) to ceil((o + 1) in / out) - 1. */
typedef struct axis {
    place in, out, taps, stride, padding, dilation;
    uint magic, shift; /* what divides by stride */
} axis;

#define AXIS_PARAMETERS(x)                                                                        \
    const atto_index x##_in, const atto_index x##_out, const atto_index x##_taps,                 \
        const atto_index x##_stride, const atto_index x##_padding, const atto_index x##_dilation, \
        const uint x##_magic, const uint x##_shift
#define AXIS_OF(x)                                                                              \
    {                                                                                           \
        (place) x##_in, (place)x##_out, (place)x##_taps, (place)x##_stride, (place)x##_padding, \
            (place)x##_dilation, x##_magic, x##_shift                                           \
    }

/* Elements begin, begin + dilation, ... before end. */
typedef struct window {
    place begin, end;
    place counted; /* with the padding; dilation 1 */
} window;

static inline window window_of(axis a, place o)
{
    window w;
    if (a.taps == 0) {
        w.begin = (place)((atto_index)(o * a.in) / (atto_index)a.out);
        w.end = (place)((atto_index)((o + 1) * a.in + a.out - 1) / (atto_index)a.out);
        w.counted = w.end - w.begin;
        return w;
    }
    w.begin = o * a.stride - a.padding;
    w.end = w.begin + (a.taps - 1) * a.dilation + 1;
    w.counted = min(w.end, a.in + a.padding) - w.begin;
    w.end = min(w.end, a.in);
    if (w.begin < 0) {
        if (a.dilation == 1) {
            w.begin = 0;
        } else {
            w.begin += (a.dilation - 1 - w.begin) / a.dilation * a.dilation;
        }
    }
    return w;
}

/* n / stride, n >= 0. */
static inline place by_stride(axis a, place n)
{
    return (place)atto_divide((atto_index)n, (atto_index)a.stride, a.magic, a.shift);
}

/* Outputs first to last: their windows reach over element i. */
static inline place first_of(axis a, place i)
{
    if (a.taps == 0) return (place)((atto_index)(i * a.out) / (atto_index)a.in);
    const place reach = i + a.padding - (a.taps - 1) * a.dilation;
    return reach <= 0 ? 0 : by_stride(a, reach + a.stride - 1);
}

static inline place last_of(axis a, place i)
{
    if (a.taps == 0)
        return (place)((atto_index)((i + 1) * a.out + a.in - 1) / (atto_index)a.in) - 1;
    return min(by_stride(a, i + a.padding), a.out - 1);
}

/* override: what sums are divided by, or 0; exclude: padding does not count. */
static inline float divisor_of(window h, window w, float override, uint exclude)
{
    if (override != 0.0f) return override;
    return exclude ? (float)(h.end - h.begin) * (float)(w.end - w.begin)
                   : (float)h.counted * (float)w.counted;
}

/* ---- folds ---- */

/* best = best and v. A NaN takes the place of anything, as in PyTorch. */
static inline void fold(float *best, place *at, float v, place position)
{
#if ATTO_MAX
    const int takes = (v > *best) | isnan(v); /* || would branch */
    *best = takes ? v : *best;
    *at = takes ? position : *at;
#else
    *best += v;
#endif
}

/* Results of two parts of a window, in any order; position -1 is of an empty part. */
static inline void join(float *best, place *at, float v, place position)
{
#if ATTO_MAX
    const int nan = isnan(v), best_nan = isnan(*best);
    const int larger = nan ? !best_nan || position > *at
                           : !best_nan && (v > *best || (v == *best && position < *at));
    const int takes = position >= 0 && (*at < 0 || larger);
    *best = takes ? v : *best;
    *at = takes ? position : *at;
#else
    *best += v;
#endif
}

ATTO_UNROLLED void begin_run(float *best, place *at, place none)
{
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) {
        best[k] = FILL;
        at[k] = none;
    }
}

ATTO_UNROLLED void fold_run(float *best, place *at, const float *v, place position)
{
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) fold(&best[k], &at[k], v[k], position);
}

/* ---- memory ---- */

/* 16 bytes of elements one by one. */
static inline uint4 raw_of(const ATTO_T *e)
{
#if ATTO_VEC == 4
    return as_uint4((float4)(ATTO_JOIN_4(e)));
#else
    return as_uint4((ushort8)(ATTO_JOIN_8(e)));
#endif
}

/* ATTO_VEC neighbours of which count exist, others are FILL; aligned: they begin at 16 bytes. As
 * they are stored: floats would have to be waited for before the branches meet. */
static inline uint4 fetch_part(__global const ATTO_T *p, atto_index at, place count, uint aligned)
{
    ATTO_T e[ATTO_VEC];
    if (aligned && count >= ATTO_VEC) return atto_fetch(p, at / ATTO_VEC);
#pragma unroll
    for (int k = 0; k < ATTO_VEC; k++) e[k] = k < count ? p[at + k] : atto_narrow(FILL);
    return raw_of(e);
}

#define SPAN (ATTO_VEC / 2)

/* SPAN neighbours of which count exist, others are 0; aligned: they begin at 8 bytes. As they are
 * stored. */
static inline uint2 fetch_span(__global const ATTO_T *p, atto_index at, place count, uint aligned)
{
    ATTO_T e[ATTO_VEC];
    if (aligned && count >= SPAN) return ((__global const uint2 *)p)[at / SPAN];
#pragma unroll
    for (int k = 0; k < ATTO_VEC; k++) e[k] = k < SPAN && k < count ? p[at + k] : atto_narrow(0.0f);
    return raw_of(e).xy;
}

ATTO_UNROLLED void widen_span(uint2 raw, float *v)
{
    float all[ATTO_VEC];
    atto_unpack((uint4)(raw.x, raw.y, 0, 0), all);
#pragma unroll
    for (int k = 0; k < SPAN; k++) v[k] = all[k];
}

ATTO_UNROLLED void store_part(__global ATTO_T *p, atto_index at, place count, uint aligned,
                              const float *v)
{
    if (aligned && count >= ATTO_VEC) {
        atto_put(p, at / ATTO_VEC, atto_pack(v));
    } else {
#pragma unroll
        for (int k = 0; k < ATTO_VEC; k++)
            if (k < count) atto_store(p, at + k, v[k]);
    }
}

/* ATTO_VEC indices of which count exist; others are -1. */
ATTO_UNROLLED void load_positions(__global const position_t *p, atto_index at, place count,
                                  uint aligned, position_t *v)
{
    if (aligned && count >= ATTO_VEC) {
#pragma unroll
        for (int k = 0; k < ATTO_VEC; k += POSITIONS) {
            const positions_t raw = *(__global const positions_t *)(p + at + k);
            ATTO_SPLIT_POSITIONS(raw, v + k);
        }
    } else {
#pragma unroll
        for (int k = 0; k < ATTO_VEC; k++) v[k] = k < count ? p[at + k] : (position_t)-1;
    }
}

/* SPAN of them. */
ATTO_UNROLLED void load_span_positions(__global const position_t *p, atto_index at, place count,
                                       uint aligned, position_t *v)
{
    if (aligned && count >= SPAN) {
#if ATTO_INDEX_OUT != 64 && SPAN == 2
        const int2 raw = *(__global const int2 *)(p + at);
        ATTO_SPLIT_2(raw, v);
#else
#pragma unroll
        for (int k = 0; k < SPAN; k += POSITIONS) {
            const positions_t raw = *(__global const positions_t *)(p + at + k);
            ATTO_SPLIT_POSITIONS(raw, v + k);
        }
#endif
    } else {
#pragma unroll
        for (int k = 0; k < SPAN; k++) v[k] = k < count ? p[at + k] : (position_t)-1;
    }
}

ATTO_UNROLLED void store_positions(__global position_t *p, atto_index at, place count, uint aligned,
                                   const place *place_of)
{
    position_t v[ATTO_VEC];
#pragma unroll
    for (int k = 0; k < ATTO_VEC; k++) v[k] = (position_t)place_of[k];
    if (aligned && count >= ATTO_VEC) {
#pragma unroll
        for (int k = 0; k < ATTO_VEC; k += POSITIONS)
            *(__global positions_t *)(p + at + k) = (positions_t)(ATTO_JOIN_POSITIONS(v + k));
    } else {
#pragma unroll
        for (int k = 0; k < ATTO_VEC; k++)
            if (k < count) p[at + k] = v[k];
    }
}

/* ATTO_RUN of them. */
ATTO_UNROLLED void store_run_positions(__global position_t *p, atto_index at, const place *place_of)
{
#if ATTO_VECTORS
    store_positions(p, at, ATTO_VEC, 1, place_of);
#else
    p[at] = (position_t)place_of[0];
#endif
}

ATTO_UNROLLED void load_run_positions(__global const position_t *p, atto_index at, position_t *v)
{
#if ATTO_VECTORS
    load_positions(p, at, ATTO_VEC, 1, v);
#else
    v[0] = p[at];
#endif
}

#endif
