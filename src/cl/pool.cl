/* SPDX-License-Identifier: MIT */
/* pool.cl - means and maxima over windows of images, and their gradients.
 *
 *   forward    y = (sum of a window) / divisor, or its maximum and where that is
 *   backward   dx = sum over the windows that hold the element of dy / divisor, or of dy where the
 *              index is the element's; gathered in order, so there is nothing to add up by atomics
 *
 * Unit strides lie along channels (ATTO_CHANNELS) or along width. A run is ATTO_RUN elements there.
 *
 *   forward         work-item: a run of outputs; along width of one output
 *   forward_lanes   lanes work-items: such a run. They share out the window, `across` of them along its
 *                   width, and meet in a tree
 *   forward_paired  along width, stride 2, window 2 x 2 without or 3 x 3 with padding 1. Work-item:
 *                   ATTO_VEC neighbouring outputs, from two vectors of each row
 *   backward        work-item: a run of dx; along channels of 2 x 2 pixels
 *   backward_paired as forward_paired: SPAN = ATTO_VEC / 2 windows and what they own, a vector of two rows
 *   backward_whole  one window that is the image, whose rows follow each other. A work-group writes SPREAD
 *                   runs a work-item of one image, along width of one channel of it
 *
 *        w0                                  w0 + VEC          windows of the row: w0 / 2 + 0 1 2 ...
 *        | 0   0 | 1   1 | 2   2 | ..        |                 2 x 2
 *      0 | 0  01 | 1  12 | 2  23 | ..        |                 3 x 3, padding 1
 *
 *   -D             default  meaning
 *   ATTO_MAX       0        1: maxima, 0: means
 *   ATTO_INDEX_OUT 0        bits of an index of maxima: 32, 64; 0: forward without
 *   ATTO_CHANNELS  0        1: unit stride along channels
 *   ATTO_WINDOW    2        paired, and along channels: edge of the window, 2 or 3, without dilation, of
 *                           gradients along channels as the paired ones; 0: any window
 *   and ATTO_DTYPE, ATTO_INDEX, ATTO_WG, ATTO_RUN, ATTO_VECTORS of atto_kernel.h
 */
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
#define POSITIONS 2
#else
typedef int position_t;
typedef int4 positions_t;
#define POSITIONS 4
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
    const int takes = v > *best || isnan(v);
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

/* ---- memory ---- */

/* ATTO_RUN neighbours. */
ATTO_UNROLLED void load_run(__global const ATTO_T *p, atto_index at, float *v)
{
#if ATTO_VECTORS
    atto_unpack(atto_fetch(p, at / ATTO_VEC), v);
#else
    v[0] = atto_load(p, at);
#endif
}

ATTO_UNROLLED void store_run(__global ATTO_T *p, atto_index at, const float *v)
{
#if ATTO_VECTORS
    atto_put(p, at / ATTO_VEC, atto_pack(v));
#else
    atto_store(p, at, v[0]);
#endif
}

/* ATTO_VEC neighbours of which count exist; aligned: they begin at 16 bytes. */
ATTO_UNROLLED void load_part(__global const ATTO_T *p, atto_index at, place count, uint aligned,
                             float *v)
{
    if (aligned && count >= ATTO_VEC) {
        atto_unpack(atto_fetch(p, at / ATTO_VEC), v);
    } else {
#pragma unroll
        for (int k = 0; k < ATTO_VEC; k++) v[k] = k < count ? atto_load(p, at + k) : FILL;
    }
}

#define SPAN (ATTO_VEC / 2)

/* SPAN neighbours of which count exist, others are 0; aligned: they begin at 8 bytes. */
ATTO_UNROLLED void load_span(__global const ATTO_T *p, atto_index at, place count, uint aligned,
                             float *v)
{
    if (aligned && count >= SPAN) {
        const uint2 raw = ((__global const uint2 *)p)[at / SPAN];
        float all[ATTO_VEC];
        atto_unpack((uint4)(raw.x, raw.y, 0, 0), all);
#pragma unroll
        for (int k = 0; k < SPAN; k++) v[k] = all[k];
    } else {
#pragma unroll
        for (int k = 0; k < SPAN; k++) v[k] = k < count ? atto_load(p, at + k) : 0.0f;
    }
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

#if ATTO_INDEX_OUT == 64
#define ATTO_SPLIT_POSITIONS ATTO_SPLIT_2
#define ATTO_JOIN_POSITIONS  ATTO_JOIN_2
#else
#define ATTO_SPLIT_POSITIONS ATTO_SPLIT_4
#define ATTO_JOIN_POSITIONS  ATTO_JOIN_4
#endif

#if ATTO_INDEX_OUT
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
#if ATTO_INDEX_OUT == 32 && SPAN == 2
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
                                   const position_t *v)
{
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
    position_t v[ATTO_RUN];
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) v[k] = (position_t)place_of[k];
#if ATTO_VECTORS
    store_positions(p, at, ATTO_VEC, 1, v);
#else
    p[at] = v[0];
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

/* ---- parameters ---- */

/* Strides and coordinates of the walk: batch, then height, width, channels or channels, height, width. */
#if ATTO_CHANNELS
#define HEIGHT_OF(v)        ((v).y)
#define WIDTH_OF(v)         ((v).z)
#define REST_OF(at, stride) ((at).x * (stride).x + (at).w)
#else
#define HEIGHT_OF(v)        ((v).z)
#define WIDTH_OF(v)         ((v).w)
#define REST_OF(at, stride) ((at).x * (stride).x + (at).y * (stride).y)
#endif

/* Where an element lies behind REST_OF. */
#if ATTO_CHANNELS
#define PIXEL(r, q, stride) ((atto_index)(r) * (stride).y + (atto_index)(q) * (stride).z)
#else
#define PIXEL(r, q, stride) ((atto_index)(r) * (stride).z + (atto_index)(q))
#endif

#if ATTO_INDEX_OUT
#define INDEX_PARAMETERS(qualifier)                                 \
    __global qualifier position_t *indices, const ulong indices_at, \
        const atto_index4 indices_stride,
#else
#define INDEX_PARAMETERS(qualifier)
#endif

#define FORWARD_PARAMETERS                                                                      \
    __global const ATTO_T *x, const ulong x_at, const atto_index4 x_stride, __global ATTO_T *y, \
        const ulong y_at, const atto_index4 y_stride, INDEX_PARAMETERS() ATTO_WALK_PARAMETERS,  \
        AXIS_PARAMETERS(h), AXIS_PARAMETERS(w), const float override, const uint exclude

#define BACKWARD_PARAMETERS                                                                   \
    __global const ATTO_T *dy, const ulong dy_at, const atto_index4 dy_stride,                \
        __global ATTO_T *dx, const ulong dx_at, const atto_index4 dx_stride,                  \
        INDEX_PARAMETERS(const) ATTO_WALK_PARAMETERS, AXIS_PARAMETERS(h), AXIS_PARAMETERS(w), \
        const float override, const uint exclude, const uint add

/* ---- forward ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_pool_forward)
ATTO_KERNEL void atto_pool_forward(FORWARD_PARAMETERS)
{
    const atto_index t = (atto_index)get_global_id(0);
    if (t >= runs) return;
    const axis rows = AXIS_OF(h), columns = AXIS_OF(w);
    const atto_index4 at = atto_walk(t, size, magic, shift);
    const window high = window_of(rows, (place)HEIGHT_OF(at));
    const window wide = window_of(columns, (place)WIDTH_OF(at));
    const place none =
        high.begin < high.end && wide.begin < wide.end ? high.begin * columns.in + wide.begin : -1;
    float best[ATTO_RUN];
    place best_at[ATTO_RUN];
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) {
        best[k] = FILL;
        best_at[k] = none;
    }
    x += x_at + REST_OF(at, x_stride);
#if ATTO_CHANNELS && ATTO_WINDOW && ATTO_VECTORS
    const place top = (place)HEIGHT_OF(at) * rows.stride - rows.padding;
    const place left = (place)WIDTH_OF(at) * columns.stride - columns.padding;
    uint4 raw[ATTO_WINDOW * ATTO_WINDOW];
#pragma unroll
    for (int i = 0; i < ATTO_WINDOW * ATTO_WINDOW; i++) {
        const place r = top + i / ATTO_WINDOW, q = left + i % ATTO_WINDOW;
        if (r >= 0 && r < rows.in && q >= 0 && q < columns.in)
            raw[i] = atto_fetch(x, PIXEL(r, q, x_stride) / ATTO_VEC);
    }
#pragma unroll
    for (int i = 0; i < ATTO_WINDOW * ATTO_WINDOW; i++) {
        const place r = top + i / ATTO_WINDOW, q = left + i % ATTO_WINDOW;
        if (!(r >= 0 && r < rows.in && q >= 0 && q < columns.in)) continue;
        float v[ATTO_VEC];
        atto_unpack(raw[i], v);
#pragma unroll
        for (uint k = 0; k < ATTO_RUN; k++) fold(&best[k], &best_at[k], v[k], r * columns.in + q);
    }
#else
    for (place r = high.begin; r < high.end; r += rows.dilation)
        for (place q = wide.begin; q < wide.end; q += columns.dilation) {
            float v[ATTO_RUN];
            load_run(x, PIXEL(r, q, x_stride), v);
#pragma unroll
            for (uint k = 0; k < ATTO_RUN; k++)
                fold(&best[k], &best_at[k], v[k], r * columns.in + q);
        }
#endif
#if !ATTO_MAX
    const float divisor = divisor_of(high, wide, override, exclude);
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) best[k] /= divisor;
#endif
    const place oh = (place)HEIGHT_OF(at), ow = (place)WIDTH_OF(at);
    store_run(y + y_at + REST_OF(at, y_stride), PIXEL(oh, ow, y_stride), best);
#if ATTO_INDEX_OUT
    store_run_positions(indices + indices_at + REST_OF(at, indices_stride),
                        PIXEL(oh, ow, indices_stride), best_at);
#endif
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_pool_forward_lanes)
#define IN_FLIGHT 4 /* loads of a work-item before it folds them */

/* Neighbouring work-items read neighbours: along channels other runs, along width other lanes. There a
 * vector is ATTO_VEC elements of one window, which begins and ends at 16 bytes. */
ATTO_KERNEL void atto_pool_forward_lanes(FORWARD_PARAMETERS, const uint lanes, const uint across)
{
    __local float values[ATTO_WG];
#if ATTO_MAX
    __local place places[ATTO_WG];
#endif
    const uint item = (uint)get_local_id(0), units = ATTO_WG / lanes;
#if ATTO_CHANNELS
    const uint unit = item % units, lane = item / units, apart = units;
    const place take = 1;
#else
    const uint unit = item / lanes, lane = item % lanes, apart = 1;
    const place take = ATTO_VECTORS ? ATTO_VEC : 1;
#endif
    const atto_index t = (atto_index)get_group_id(0) * units + unit;
    const uint exists = t < runs;
    const axis rows = AXIS_OF(h), columns = AXIS_OF(w);
    atto_index4 at = atto_walk(exists ? t : 0, size, magic, shift);
    if (!ATTO_CHANNELS) at.w /= ATTO_RUN; /* it counts outputs */
    const window high = window_of(rows, (place)HEIGHT_OF(at));
    const window wide = window_of(columns, (place)WIDTH_OF(at));
    x += x_at + REST_OF(at, x_stride);

    float best[ATTO_RUN];
    place best_at[ATTO_RUN];
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) {
        best[k] = FILL;
        best_at[k] = -1;
    }
    const place down = (place)(lanes / across) * rows.dilation;
    const place along = (place)across * columns.dilation * take;
    const place top = high.begin + (place)(lane / across) * rows.dilation;
    const place left = wide.begin + (place)(lane % across) * columns.dilation * take;
    for (place r = top; exists && r < high.end; r += down)
        for (place q = left; q < wide.end; q += along * IN_FLIGHT) {
            float v[IN_FLIGHT][ATTO_RUN];
#pragma unroll
            for (int j = 0; j < IN_FLIGHT; j++)
                if (q + j * along < wide.end) load_run(x, PIXEL(r, q + j * along, x_stride), v[j]);
#pragma unroll
            for (int j = 0; j < IN_FLIGHT; j++) {
                if (q + j * along >= wide.end) continue;
#pragma unroll
                for (uint k = 0; k < ATTO_RUN; k++) {
                    const place here =
                        r * columns.in + q + j * along + (ATTO_CHANNELS ? 0 : (place)k);
                    if (ATTO_MAX && best_at[k] < 0) best_at[k] = here;
                    fold(&best[k], &best_at[k], v[j][k], here);
                }
            }
        }
#if !ATTO_CHANNELS && ATTO_VECTORS /* one output */
#pragma unroll
    for (uint k = 1; k < ATTO_RUN; k++) join(&best[0], &best_at[0], best[k], best_at[k]);
#endif

#pragma unroll
    for (uint k = 0; k < (ATTO_CHANNELS ? ATTO_RUN : 1); k++) {
        barrier(CLK_LOCAL_MEM_FENCE); /* whoever still reads the last one */
        values[item] = best[k];
#if ATTO_MAX
        places[item] = best_at[k];
#endif
        for (uint half_lanes = lanes / 2; half_lanes > 0; half_lanes /= 2) {
            barrier(CLK_LOCAL_MEM_FENCE);
            if (lane < half_lanes) {
                const uint other = item + half_lanes * apart;
#if ATTO_MAX
                join(&best[k], &best_at[k], values[other], places[other]);
                places[item] = best_at[k];
#else
                join(&best[k], &best_at[k], values[other], 0);
#endif
                values[item] = best[k];
            }
        }
    }
    if (!exists || lane != 0) return; /* no barrier follows */
#if !ATTO_MAX
    const float divisor = divisor_of(high, wide, override, exclude);
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) best[k] /= divisor;
#endif
    const place oh = (place)HEIGHT_OF(at), ow = (place)WIDTH_OF(at);
    y += y_at + REST_OF(at, y_stride);
#if ATTO_INDEX_OUT
    indices += indices_at + REST_OF(at, indices_stride);
#endif
#if ATTO_CHANNELS
    store_run(y, PIXEL(oh, ow, y_stride), best);
#if ATTO_INDEX_OUT
    store_run_positions(indices, PIXEL(oh, ow, indices_stride), best_at);
#endif
#else /* rows of outputs may have become columns */
    atto_store(y, (atto_index)oh * y_stride.z + (atto_index)ow * y_stride.w, best[0]);
#if ATTO_INDEX_OUT
    indices[(atto_index)oh * indices_stride.z + (atto_index)ow * indices_stride.w] =
        (position_t)best_at[0];
#endif
#endif
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_pool_forward_paired)
/* aligned: bit 0: rows of x begin at 16 bytes, 1: those of y, 2: those of indices. */
ATTO_KERNEL void atto_pool_forward_paired(FORWARD_PARAMETERS, const uint aligned)
{
    const atto_index t = (atto_index)get_global_id(0);
    if (t >= runs) return;
    const axis rows = AXIS_OF(h), columns = AXIS_OF(w);
    const atto_index4 at = atto_walk(t, size, magic, shift);
    const place oh = (place)at.z, ow = (place)at.w, edge = ATTO_WINDOW == 3;
    const place top = 2 * oh - edge, left = 2 * ow;
    float best[ATTO_VEC];
    place best_at[ATTO_VEC];
#pragma unroll
    for (int k = 0; k < ATTO_VEC; k++) {
        best[k] = FILL;
        best_at[k] = max(top, (place)0) * columns.in + max(left + 2 * k - edge, (place)0);
    }
    x += x_at + REST_OF(at, x_stride);
    float v[ATTO_WINDOW][2 * ATTO_VEC], before[ATTO_WINDOW];
#pragma unroll
    for (int i = 0; i < ATTO_WINDOW; i++) {
        const place r = top + i;
        const uint inside = r >= 0 && r < rows.in;
        const place count = inside ? columns.in - left : 0;
        const atto_index from = PIXEL(inside ? r : 0, left, x_stride);
        load_part(x, from, count, aligned & 1u, v[i]);
        load_part(x, from + ATTO_VEC, count - ATTO_VEC, aligned & 1u, v[i] + ATTO_VEC);
        before[i] = edge && inside && left > 0 ? atto_load(x, from - 1) : FILL;
    }
#pragma unroll
    for (int i = 0; i < ATTO_WINDOW; i++) {
        const place row = (top + i) * columns.in + left;
#pragma unroll
        for (int k = 0; k < ATTO_VEC; k++) {
#if ATTO_WINDOW == 3
            fold(&best[k], &best_at[k], k == 0 ? before[i] : v[i][k == 0 ? 0 : 2 * k - 1],
                 row + 2 * k - 1);
#endif
            fold(&best[k], &best_at[k], v[i][2 * k], row + 2 * k);
            fold(&best[k], &best_at[k], v[i][2 * k + 1], row + 2 * k + 1);
        }
    }
#if !ATTO_MAX
    const window high = window_of(rows, oh);
#pragma unroll
    for (int k = 0; k < ATTO_VEC; k++)
        best[k] /= divisor_of(high, window_of(columns, ow + k), override, exclude);
#endif
    const place count = columns.out - ow;
    store_part(y + y_at + REST_OF(at, y_stride), PIXEL(oh, ow, y_stride), count, aligned & 2u,
               best);
#if ATTO_INDEX_OUT
    position_t positions[ATTO_VEC];
#pragma unroll
    for (int k = 0; k < ATTO_VEC; k++) positions[k] = (position_t)best_at[k];
    store_positions(indices + indices_at + REST_OF(at, indices_stride),
                    PIXEL(oh, ow, indices_stride), count, aligned & 4u, positions);
#endif
}
#endif

/* ---- backward ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_pool_backward)
#define OWNERS (ATTO_WINDOW - 1) /* windows along an axis that reach two pixels */

#if !ATTO_MAX
/* What a window's gradient is multiplied by. */
static inline float share_of(axis rows, axis columns, place oh, place ow, float override,
                             uint exclude)
{
    if (override != 0.0f) return 1.0f / override;
    return 1.0f / divisor_of(window_of(rows, oh), window_of(columns, ow), override, exclude);
}
#endif

ATTO_KERNEL void atto_pool_backward(BACKWARD_PARAMETERS)
{
    const atto_index t = (atto_index)get_global_id(0);
    if (t >= runs) return;
    const axis rows = AXIS_OF(h), columns = AXIS_OF(w);
    const atto_index4 at = atto_walk(t, size, magic, shift);
    dy += dy_at + REST_OF(at, dy_stride);
    dx += dx_at + REST_OF(at, dx_stride);
#if ATTO_INDEX_OUT
    indices += indices_at + REST_OF(at, indices_stride);
#endif
#if ATTO_CHANNELS && ATTO_WINDOW && ATTO_VECTORS
    /* The windows that own the pixels; what does not exist is 0, and no index. */
    uint4 raw[OWNERS * OWNERS];
#if ATTO_MAX
    position_t index[OWNERS * OWNERS][ATTO_VEC];
#else
    float share[OWNERS * OWNERS];
#endif
#pragma unroll
    for (int i = 0; i < OWNERS * OWNERS; i++) {
        const place oh = (place)HEIGHT_OF(at) + i / OWNERS, ow = (place)WIDTH_OF(at) + i % OWNERS;
        const uint exists = oh < rows.out && ow < columns.out;
        raw[i] = exists ? atto_fetch(dy, PIXEL(oh, ow, dy_stride) / ATTO_VEC) : (uint4)(0);
#if ATTO_MAX
        load_positions(indices, PIXEL(oh, ow, indices_stride), exists ? ATTO_VEC : 0, 1, index[i]);
#else
        share[i] = exists ? share_of(rows, columns, oh, ow, override, exclude) : 0.0f;
#endif
    }
#pragma unroll
    for (int pixel = 0; pixel < 4; pixel++) {
        const int down = pixel / 2, right = pixel % 2;
        const place r = 2 * (place)HEIGHT_OF(at) + down, q = 2 * (place)WIDTH_OF(at) + right;
        if (r >= rows.in || q >= columns.in) continue;
        float sum[ATTO_VEC];
#pragma unroll
        for (uint k = 0; k < ATTO_VEC; k++) sum[k] = 0.0f;
#pragma unroll
        for (int i = 0; i < OWNERS * OWNERS; i++) {
            float v[ATTO_VEC];
            if (i / OWNERS > down || i % OWNERS > right) continue;
            atto_unpack(raw[i], v);
#pragma unroll
            for (uint k = 0; k < ATTO_VEC; k++) {
#if ATTO_MAX
                sum[k] += index[i][k] == (position_t)(r * columns.in + q) ? v[k] : 0.0f;
#else
                sum[k] += v[k] * share[i];
#endif
            }
        }
        const atto_index to = PIXEL(r, q, dx_stride);
        if (add) {
            float old[ATTO_VEC];
            load_run(dx, to, old);
            atto_add_run(sum, old);
        }
        store_run(dx, to, sum);
    }
}
#else
#if ATTO_CHANNELS
#pragma unroll
    for (int pixel = 0; pixel < 4; pixel++) {
        const place r = 2 * (place)HEIGHT_OF(at) + pixel / 2;
        const place q = 2 * (place)WIDTH_OF(at) + pixel % 2;
        if (r >= rows.in || q >= columns.in) continue;
#else
    {
        const place r = (place)HEIGHT_OF(at), q = (place)WIDTH_OF(at);
#endif
        float sum[ATTO_RUN];
#pragma unroll
        for (uint k = 0; k < ATTO_RUN; k++) sum[k] = 0.0f;
        const place oh_last = last_of(rows, r);
        for (place oh = first_of(rows, r); oh <= oh_last; oh++) {
#if ATTO_CHANNELS
            const place ow_last = last_of(columns, q);
            for (place ow = first_of(columns, q); ow <= ow_last; ow++) {
                float v[ATTO_RUN];
                load_run(dy, PIXEL(oh, ow, dy_stride), v);
#if ATTO_MAX
                position_t index[ATTO_RUN];
                load_run_positions(indices, PIXEL(oh, ow, indices_stride), index);
                const position_t here = (position_t)(r * columns.in + q);
#pragma unroll
                for (uint k = 0; k < ATTO_RUN; k++) sum[k] += index[k] == here ? v[k] : 0.0f;
#else
                const float share = share_of(rows, columns, oh, ow, override, exclude);
#pragma unroll
                for (uint k = 0; k < ATTO_RUN; k++) sum[k] += v[k] * share;
#endif
            }
#else
            const place reached = first_of(columns, q);
            if (ATTO_RUN > 1 && reached == last_of(columns, q + ATTO_RUN - 1)) { /* large windows */
                const float v = atto_load(dy, PIXEL(oh, reached, dy_stride));
#if ATTO_MAX
                const position_t index = indices[PIXEL(oh, reached, indices_stride)];
#pragma unroll
                for (uint k = 0; k < ATTO_RUN; k++)
                    sum[k] += index == (position_t)(r * columns.in + q + (place)k) ? v : 0.0f;
#else
                const window wide = window_of(columns, reached);
                const float part = v * share_of(rows, columns, oh, reached, override, exclude);
#pragma unroll
                for (uint k = 0; k < ATTO_RUN; k++)
                    sum[k] += q + (place)k >= wide.begin && q + (place)k < wide.end ? part : 0.0f;
#endif
                continue;
            }
#pragma unroll
            for (uint k = 0; k < ATTO_RUN; k++) {
                const place ow_last = last_of(columns, q + (place)k);
                for (place ow = first_of(columns, q + (place)k); ow <= ow_last; ow++) {
                    const float v = atto_load(dy, PIXEL(oh, ow, dy_stride));
#if ATTO_MAX
                    const position_t here = (position_t)(r * columns.in + q + (place)k);
                    sum[k] += indices[PIXEL(oh, ow, indices_stride)] == here ? v : 0.0f;
#else
                    sum[k] += v * share_of(rows, columns, oh, ow, override, exclude);
#endif
                }
            }
#endif
        }
        const atto_index to = PIXEL(r, q, dx_stride);
        if (add) {
            float old[ATTO_RUN];
            load_run(dx, to, old);
            atto_add_run(sum, old);
        }
        store_run(dx, to, sum);
    }
}
#endif
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_pool_backward_whole)
#define SPREAD 4

/* Elements `to`, `to` + 1, ... of an image; its gradients at dy, their indices at `indices`. */
ATTO_UNROLLED void whole_run(__global const ATTO_T *dy,
#if ATTO_MAX
                             __global const position_t *indices,
#endif
                             axis channel, atto_index to, float override, float *g)
{
#if ATTO_CHANNELS /* a pixel's channels, in which `channel` counts */
    const place pixel = by_stride(channel, (place)to);
    const atto_index first = to - (atto_index)(pixel * channel.stride);
    load_run(dy, first, g);
#endif
#if ATTO_MAX && ATTO_CHANNELS
    position_t index[ATTO_RUN];
    load_run_positions(indices, first, index);
#elif ATTO_MAX
    const position_t index = indices[0];
#endif
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) {
#if ATTO_MAX && ATTO_CHANNELS
        g[k] = index[k] == (position_t)pixel ? g[k] : 0.0f;
#elif ATTO_MAX
        g[k] = index == (position_t)(to + k) ? atto_load(dy, 0) : 0.0f;
#elif ATTO_CHANNELS
            g[k] *= 1.0f / override;
#else
            g[k] = atto_load(dy, 0) * (1.0f / override);
#endif
    }
}

/* The walk is over work-groups, of which size.w have an image, or along width a channel of it; row: elements of
 * that. override: what sums are divided by. */
ATTO_KERNEL void atto_pool_backward_whole(BACKWARD_PARAMETERS)
{
    const axis channel = AXIS_OF(w);
    const atto_index4 at = atto_walk((atto_index)get_group_id(0), size, magic, shift);
    const atto_index first =
        at.w * (SPREAD * ATTO_WG) + (atto_index)get_local_id(0) * ATTO_RUN; /* at.w: runs */
    dy += dy_at + (at.x * dy_stride.x + (ATTO_CHANNELS ? 0 : at.y * dy_stride.y));
    dx += dx_at + (at.x * dx_stride.x + (ATTO_CHANNELS ? 0 : at.y * dx_stride.y));
#if ATTO_MAX
    indices +=
        indices_at + (at.x * indices_stride.x + (ATTO_CHANNELS ? 0 : at.y * indices_stride.y));
#endif
#pragma unroll
    for (uint j = 0; j < SPREAD; j++) {
        const atto_index to = first + j * (ATTO_WG * ATTO_RUN);
        float g[ATTO_RUN];
        if (to >= row) continue;
#if ATTO_MAX
        whole_run(dy, indices, channel, to, override, g);
#else
        whole_run(dy, channel, to, override, g);
#endif
        if (add) {
            float old[ATTO_RUN];
            load_run(dx, to, old);
            atto_add_run(g, old);
        }
        store_run(dx, to, g);
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_pool_backward_paired)
/* aligned: bit 0: rows of dx begin at 16 bytes, 1: those of dy, 2: those of indices. */
ATTO_KERNEL void atto_pool_backward_paired(BACKWARD_PARAMETERS, const uint aligned)
{
    const atto_index t = (atto_index)get_global_id(0);
    if (t >= runs) return;
    const axis rows = AXIS_OF(h), columns = AXIS_OF(w);
    const atto_index4 at = atto_walk(t, size, magic, shift);
    const place ow = (place)at.w / 2, top = 2 * (place)at.z, left = 2 * ow;
    dy += dy_at + REST_OF(at, dy_stride);
    dx += dx_at + REST_OF(at, dx_stride);
#if ATTO_INDEX_OUT
    indices += indices_at + REST_OF(at, indices_stride);
#endif
    /* Outputs of a row; what does not exist is 0, and no index. */
    float v[ATTO_WINDOW - 1][SPAN + 1];
#if ATTO_MAX
    position_t index[ATTO_WINDOW - 1][SPAN + 1];
#endif
#pragma unroll
    for (int i = 0; i < ATTO_WINDOW - 1; i++) {
        const place oh = (place)at.z + i;
        const uint inside = oh < rows.out;
        const place count = inside ? columns.out - ow : 0;
        const atto_index from = PIXEL(inside ? oh : 0, ow, dy_stride);
        load_span(dy, from, count, aligned & 2u, v[i]);
        v[i][SPAN] = ATTO_WINDOW == 3 && count > SPAN ? atto_load(dy, from + SPAN) : 0.0f;
#if ATTO_MAX
        const atto_index at_indices = PIXEL(inside ? oh : 0, ow, indices_stride);
        load_span_positions(indices, at_indices, count, aligned & 4u, index[i]);
        index[i][SPAN] =
            ATTO_WINDOW == 3 && count > SPAN ? indices[at_indices + SPAN] : (position_t)-1;
#else
        const window high = window_of(rows, inside ? oh : 0);
#pragma unroll
        for (int k = 0; k <= SPAN; k++) {
            if (override != 0.0f) {
                v[i][k] *= 1.0f / override;
            } else if (k < count) {
                v[i][k] /= divisor_of(high, window_of(columns, ow + k), override, exclude);
            }
        }
#endif
    }

#pragma unroll
    for (int row = 0; row < 2; row++) {
        const place r = top + row;
        if (r >= rows.in) continue;
        float sum[ATTO_VEC];
#pragma unroll
        for (int k = 0; k < ATTO_VEC; k++) {
#if ATTO_MAX
            const position_t here = (position_t)(r * columns.in + left + k);
#endif
            sum[k] = 0.0f;
#pragma unroll
            for (int i = 0; i < (ATTO_WINDOW == 3 ? 1 + row : 1); i++)
#pragma unroll
                for (int o = k / 2; o < (ATTO_WINDOW == 3 ? k / 2 + 1 + k % 2 : k / 2 + 1); o++) {
#if ATTO_MAX
                    sum[k] += index[i][o] == here ? v[i][o] : 0.0f;
#else
                    sum[k] += v[i][o];
#endif
                }
        }
        const atto_index to = PIXEL(r, left, dx_stride);
        const place count = columns.in - left;
        if (add) {
            float old[ATTO_VEC];
            load_part(dx, to, count, aligned & 1u, old);
#pragma unroll
            for (int k = 0; k < ATTO_VEC; k++) sum[k] += old[k];
        }
        store_part(dx, to, count, aligned & 1u, sum);
    }
}
#endif
