/* SPDX-License-Identifier: MIT */
/* pool.cl - means and maxima over windows of images, and their gradients.
 *
 *   forward    y = (sum of a window) / divisor, or its maximum and where that is
 *   backward   dx = sum over the windows that hold the element of dy / divisor, or of dy where the
 *              index is the element's; gathered in order, so there is nothing to add up by atomics
 *
 * Unit strides lie along channels (ATTO_CHANNELS) or along width. A run is ATTO_RUN elements there.
 *
 *   forward            work-item: a run of outputs; along width of one output
 *   forward_unrolled   along channels, windows of 2 x 2 and 3 x 3. Work-item: a vector of outputs
 *   forward_down       along channels, maxima of 3 x 3 with stride 2 along height. Work-item:
 *                      `down` vectors of outputs below each other; a row that two windows share is
 *                      read and compared once
 *   forward_lanes      lanes work-items: a run of outputs. They share out the window, `across` of
 *                      them along its width, and meet in a tree
 *   forward_paired     along width, stride 2, window 2 x 2 without or 3 x 3 with padding 1.
 *                      Work-item: ATTO_VEC neighbouring outputs, from two vectors of each row
 *   backward           along width. Work-item: a run of dx
 *   backward_channels  along channels. Work-item: a run of 2 x 2 pixels
 *   backward_unrolled  the same of vectors, and windows as in backward_paired
 *   backward_paired    as forward_paired: SPAN = ATTO_VEC / 2 windows and what they own, a vector
 *                      of two rows
 *   backward_whole     one window that is the image, whose rows follow each other. A work-group
 *                      writes ATTO_ITEMS runs a work-item of one image, along width of one channel
 *
 *        w0                                  w0 + VEC          windows of the row: w0 / 2 + 0 1 2
 *                                                          ...
 *        | 0   0 | 1   1 | 2   2 | ..        |                 2 x 2
 *      0 | 0  01 | 1  12 | 2  23 | ..        |                 3 x 3, padding 1
 *
 *   -D             default  meaning
 *   ATTO_MAX       0        1: maxima, 0: means
 *   ATTO_INDEX_OUT 0        bits of an index of maxima: 32, 64; 0: forward without
 *   ATTO_CHANNELS  0        1: unit stride along channels
 *   ATTO_WINDOW    2        paired and unrolled: edge of the window, 2 or 3, without dilation
 *   ATTO_ITEMS     2        lanes: loads before their values are used; whole: runs of a work-item
 *   and ATTO_DTYPE, ATTO_INDEX, ATTO_WG, ATTO_RUN, ATTO_VECTORS of atto_kernel.h
 */
#include "atto_pool.h"

/* ---- calls ---- */

/* Strides and coordinates of the walk: batch, then height, width, channels or channels, height,
 * width; and where an element lies behind REST_OF. */
#if ATTO_CHANNELS
#define HEIGHT_OF(v)        ((place)(v).y)
#define WIDTH_OF(v)         ((place)(v).z)
#define REST_OF(at, stride) ((at).x * (stride).x + (at).w)
#define PIXEL(r, q, stride) ((atto_index)(r) * (stride).y + (atto_index)(q) * (stride).z)
#else
#define HEIGHT_OF(v)        ((place)(v).z)
#define WIDTH_OF(v)         ((place)(v).w)
#define REST_OF(at, stride) ((at).x * (stride).x + (at).y * (stride).y)
#define PIXEL(r, q, stride) ((atto_index)(r) * (stride).z + (atto_index)(q) * (stride).w)
#endif

/* indices: NULL without ATTO_INDEX_OUT. */
#define FORWARD_PARAMETERS                                                                      \
    __global const ATTO_T *x, const ulong x_at, const atto_index4 x_stride, __global ATTO_T *y, \
        const ulong y_at, const atto_index4 y_stride, __global position_t *indices,             \
        const ulong indices_at, const atto_index4 indices_stride, ATTO_WALK_PARAMETERS,         \
        AXIS_PARAMETERS(h), AXIS_PARAMETERS(w), const float override, const uint exclude

#define BACKWARD_PARAMETERS                                                         \
    __global const ATTO_T *dy, const ulong dy_at, const atto_index4 dy_stride,      \
        __global ATTO_T *dx, const ulong dx_at, const atto_index4 dx_stride,        \
        __global const position_t *indices, const ulong indices_at,                 \
        const atto_index4 indices_stride, ATTO_WALK_PARAMETERS, AXIS_PARAMETERS(h), \
        AXIS_PARAMETERS(w), const float override, const uint exclude, const uint add

/* The images around the place `at` of a walk, and their windows. */
typedef struct forward {
    __global const ATTO_T *x;
    __global ATTO_T *y;
    __global position_t *indices;
    atto_index4 x_stride, y_stride, indices_stride;
    axis rows, columns;
    float override;
    uint exclude;
} forward;

#define FORWARD_AT(at)                                                              \
    {                                                                               \
        x + x_at + REST_OF(at, x_stride), y + y_at + REST_OF(at, y_stride),         \
            indices + indices_at + REST_OF(at, indices_stride), x_stride, y_stride, \
            indices_stride, AXIS_OF(h), AXIS_OF(w), override, exclude               \
    }

typedef struct backward {
    __global const ATTO_T *dy;
    __global ATTO_T *dx;
    __global const position_t *indices;
    atto_index4 dy_stride, dx_stride, indices_stride;
    axis rows, columns;
    float override;
    uint exclude, add;
} backward;

#define BACKWARD_AT(at)                                                               \
    {                                                                                 \
        dy + dy_at + REST_OF(at, dy_stride), dx + dx_at + REST_OF(at, dx_stride),     \
            indices + indices_at + REST_OF(at, indices_stride), dy_stride, dx_stride, \
            indices_stride, AXIS_OF(h), AXIS_OF(w), override, exclude, add            \
    }

/* ---- forward ---- */

static inline int is_inside(forward f, place r, place q)
{
    return r >= 0 && r < f.rows.in && q >= 0 && q < f.columns.in;
}

/* What output (oh, ow) is divided by. */
static inline float mean_of(forward f, place oh, place ow)
{
    return divisor_of(window_of(f.rows, oh), window_of(f.columns, ow), f.override, f.exclude);
}

/* Sums or maxima of a run of outputs. */
ATTO_UNROLLED void store_outputs(forward f, place oh, place ow, float *best, const place *best_at)
{
    if (!ATTO_MAX) {
        const float divisor = mean_of(f, oh, ow);
#pragma unroll
        for (uint k = 0; k < ATTO_RUN; k++) best[k] /= divisor;
    }
    atto_store_run(f.y, PIXEL(oh, ow, f.y_stride), 1, ATTO_RUN, best);
    if (ATTO_INDEX_OUT) store_run_positions(f.indices, PIXEL(oh, ow, f.indices_stride), best_at);
}

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_pool_forward)
ATTO_KERNEL void atto_pool_forward(FORWARD_PARAMETERS)
{
    const atto_index t = (atto_index)get_global_id(0);
    if (t >= runs) return;
    const atto_index4 at = atto_walk(t, size, magic, shift);
    const forward f = FORWARD_AT(at);
    const place oh = HEIGHT_OF(at), ow = WIDTH_OF(at);
    const window high = window_of(f.rows, oh), wide = window_of(f.columns, ow);
    const int is_empty = high.begin >= high.end || wide.begin >= wide.end;
    float best[ATTO_RUN];
    place best_at[ATTO_RUN];
    begin_run(best, best_at, is_empty ? -1 : high.begin * f.columns.in + wide.begin);
    for (place r = high.begin; r < high.end; r += f.rows.dilation)
        for (place q = wide.begin; q < wide.end; q += f.columns.dilation) {
            float v[ATTO_RUN];
            atto_widen_unit(atto_load_unit(f.x, PIXEL(r, q, f.x_stride)), v);
            fold_run(best, best_at, v, r * f.columns.in + q);
        }
    store_outputs(f, oh, ow, best, best_at);
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_pool_forward_unrolled)
#define TAPS (ATTO_WINDOW * ATTO_WINDOW)

ATTO_KERNEL void atto_pool_forward_unrolled(FORWARD_PARAMETERS)
{
    const atto_index t = (atto_index)get_global_id(0);
    if (t >= runs) return;
    const atto_index4 at = atto_walk(t, size, magic, shift);
    const forward f = FORWARD_AT(at);
    const place oh = HEIGHT_OF(at), ow = WIDTH_OF(at);
    const place top = oh * f.rows.stride - f.rows.padding;
    const place left = ow * f.columns.stride - f.columns.padding;
    uint4 raw[TAPS];
#pragma unroll
    for (int i = 0; i < TAPS; i++) {
        const place r = top + i / ATTO_WINDOW, q = left + i % ATTO_WINDOW;
        if (is_inside(f, r, q)) raw[i] = atto_fetch(f.x, PIXEL(r, q, f.x_stride) / ATTO_VEC);
    }
    float best[ATTO_RUN];
    place best_at[ATTO_RUN];
    begin_run(best, best_at, max(top, (place)0) * f.columns.in + max(left, (place)0));
#pragma unroll
    for (int i = 0; i < TAPS; i++) {
        const place r = top + i / ATTO_WINDOW, q = left + i % ATTO_WINDOW;
        float v[ATTO_VEC];
        if (!is_inside(f, r, q)) continue;
        atto_unpack(raw[i], v);
        fold_run(best, best_at, v, r * f.columns.in + q);
    }
    store_outputs(f, oh, ow, best, best_at);
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_pool_forward_down)
/* The three vectors of row r from column `left` on; what lies outside is not loaded. */
ATTO_UNROLLED void fetch_three(forward f, place r, place left, uint4 *raw)
{
#pragma unroll
    for (int i = 0; i < 3; i++)
        if (is_inside(f, r, left + i))
            raw[i] = atto_fetch(f.x, PIXEL(r, left + i, f.x_stride) / ATTO_VEC);
}

/* Their maxima. Of nothing but -infinity the first element inside is the one. */
ATTO_UNROLLED void max_three(forward f, place r, place left, const uint4 *raw, float *best,
                             place *best_at)
{
    begin_run(best, best_at, max(r, (place)0) * f.columns.in + max(left, (place)0));
#pragma unroll
    for (int i = 0; i < 3; i++) {
        float v[ATTO_VEC];
        if (!is_inside(f, r, left + i)) continue;
        atto_unpack(raw[i], v);
        fold_run(best, best_at, v, r * f.columns.in + left + i);
    }
}

/* best = best and a row below it. */
ATTO_UNROLLED void fold_below(float *best, place *best_at, const float *v, const place *at)
{
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) fold(&best[k], &best_at[k], v[k], at[k]);
}

/* size.y counts runs of `down` outputs. A window's maximum is that of its rows' maxima, in order,
 * so the same one as in order of elements. Its last row is the first of the window below. */
ATTO_KERNEL void atto_pool_forward_down(FORWARD_PARAMETERS, const uint down)
{
    const atto_index t = (atto_index)get_global_id(0);
    if (t >= runs) return;
    const atto_index4 at = atto_walk(t, size, magic, shift);
    const forward f = FORWARD_AT(at);
    const place first = HEIGHT_OF(at) * (place)down, ow = WIDTH_OF(at);
    const place end = min(first + (place)down, f.rows.out);
    const place left = ow * f.columns.stride - f.columns.padding;
    float best[ATTO_RUN], below[ATTO_RUN];
    place best_at[ATTO_RUN], below_at[ATTO_RUN];
    uint4 middle[3], last[3];
    place r = 2 * first - f.rows.padding;
    fetch_three(f, r, left, last);
    max_three(f, r, left, last, best, best_at);
    for (place oh = first; oh < end; oh++) {
        fetch_three(f, r + 1, left, middle);
        fetch_three(f, r + 2, left, last);
        max_three(f, r + 1, left, middle, below, below_at);
        fold_below(best, best_at, below, below_at);
        max_three(f, r + 2, left, last, below, below_at);
        fold_below(best, best_at, below, below_at);
        store_outputs(f, oh, ow, best, best_at);
        r += 2;
#pragma unroll
        for (uint k = 0; k < ATTO_RUN; k++) {
            best[k] = below[k];
            best_at[k] = below_at[k];
        }
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_pool_forward_lanes)
/* Elements first, first + along, ... of row r, before end. A part of `best` without a position
 * takes the first one that comes. */
ATTO_UNROLLED void fold_share(forward f, place r, place first, place end, place along, float *best,
                              place *best_at)
{
    for (place q = first; q < end; q += along * ATTO_ITEMS) {
        atto_raw raw[ATTO_ITEMS];
#pragma unroll
        for (int j = 0; j < ATTO_ITEMS; j++)
            if (q + j * along < end)
                raw[j] = atto_load_unit(f.x, PIXEL(r, q + j * along, f.x_stride));
#pragma unroll
        for (int j = 0; j < ATTO_ITEMS; j++) {
            float v[ATTO_RUN];
            if (q + j * along >= end) continue;
            atto_widen_unit(raw[j], v);
#pragma unroll
            for (uint k = 0; k < ATTO_RUN; k++) {
                const place apart = ATTO_CHANNELS ? 0 : (place)k;
                const place here = r * f.columns.in + q + j * along + apart;
                if (ATTO_MAX && best_at[k] < 0) best_at[k] = here;
                fold(&best[k], &best_at[k], v[k], here);
            }
        }
    }
}

#define KEPT (ATTO_CHANNELS ? ATTO_RUN : 1) /* outputs of a unit of lanes */

ATTO_UNROLLED void put_lane(__local float *values, __local place *places, const float *best,
                            const place *best_at)
{
#pragma unroll
    for (uint k = 0; k < KEPT; k++) {
        values[k * ATTO_WG + get_local_id(0)] = best[k];
        if (ATTO_MAX) places[k * ATTO_WG + get_local_id(0)] = best_at[k];
    }
}

/* Leaves what all lanes have in the first one. Neighbouring lanes are work-items `apart` from each
 * other. */
ATTO_UNROLLED void meet(__local float *values, __local place *places, uint lane, uint lanes,
                        uint apart, float *best, place *best_at)
{
    put_lane(values, places, best, best_at);
    for (uint half_lanes = lanes / 2; half_lanes > 0; half_lanes /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < half_lanes) {
            const uint other = (uint)get_local_id(0) + half_lanes * apart;
#pragma unroll
            for (uint k = 0; k < KEPT; k++)
                join(&best[k], &best_at[k], values[k * ATTO_WG + other],
                     ATTO_MAX ? places[k * ATTO_WG + other] : 0);
            put_lane(values, places, best, best_at);
        }
    }
}

/* Neighbouring work-items read neighbours: along channels other runs, along width other lanes.
 * There a vector is ATTO_VEC elements of one window, which begins and ends at 16 bytes. */
ATTO_KERNEL void atto_pool_forward_lanes(FORWARD_PARAMETERS, const uint lanes, const uint across)
{
    __local float values[KEPT * ATTO_WG];
    __local place places[ATTO_MAX ? KEPT * ATTO_WG : 1];
    const uint item = (uint)get_local_id(0), units = ATTO_WG / lanes;
    const uint unit = ATTO_CHANNELS ? item % units : item / lanes;
    const uint lane = ATTO_CHANNELS ? item / units : item % lanes;
    const atto_index t = (atto_index)get_group_id(0) * units + unit;
    const uint exists = t < runs;
    atto_index4 at = atto_walk(exists ? t : 0, size, magic, shift);
    if (!ATTO_CHANNELS) at.w /= ATTO_RUN; /* it counts outputs */
    const forward f = FORWARD_AT(at);
    const place oh = HEIGHT_OF(at), ow = WIDTH_OF(at);
    const window high = window_of(f.rows, oh), wide = window_of(f.columns, ow);

    float best[ATTO_RUN];
    place best_at[ATTO_RUN];
    begin_run(best, best_at, -1);
    const place step = f.columns.dilation * (ATTO_CHANNELS ? 1 : ATTO_RUN);
    const place down = (place)(lanes / across) * f.rows.dilation, along = (place)across * step;
    const place top = high.begin + (place)(lane / across) * f.rows.dilation;
    const place left = wide.begin + (place)(lane % across) * step;
    for (place r = top; exists && r < high.end; r += down)
        fold_share(f, r, left, wide.end, along, best, best_at);
    if (!ATTO_CHANNELS) { /* one output */
#pragma unroll
        for (uint k = 1; k < ATTO_RUN; k++) join(&best[0], &best_at[0], best[k], best_at[k]);
    }
    meet(values, places, lane, lanes, ATTO_CHANNELS ? units : 1, best, best_at);
    if (!exists || lane != 0) return; /* no barrier follows */
#if ATTO_CHANNELS
    store_outputs(f, oh, ow, best, best_at);
#else
    atto_store(f.y, PIXEL(oh, ow, f.y_stride), ATTO_MAX ? best[0] : best[0] / mean_of(f, oh, ow));
    if (ATTO_INDEX_OUT) f.indices[PIXEL(oh, ow, f.indices_stride)] = (position_t)best_at[0];
#endif
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_pool_forward_paired)
/* Row r from column `left` on, and the element before it, as they are stored; what does not exist
 * is FILL. */
ATTO_UNROLLED void fetch_row(forward f, place r, place left, uint aligned, uint4 *raw,
                             ATTO_T *before)
{
    const uint inside = r >= 0 && r < f.rows.in;
    const place count = inside ? f.columns.in - left : 0;
    const atto_index from = PIXEL(inside ? r : 0, left, f.x_stride);
    raw[0] = fetch_part(f.x, from, count, aligned);
    raw[1] = fetch_part(f.x, from + ATTO_VEC, count - ATTO_VEC, aligned);
    *before = ATTO_WINDOW == 3 && inside && left > 0 ? f.x[from - 1] : atto_narrow(FILL);
}

/* aligned: bit 0: rows of x begin at 16 bytes, 1: those of y, 2: those of indices. */
ATTO_KERNEL void atto_pool_forward_paired(FORWARD_PARAMETERS, const uint aligned)
{
    const atto_index t = (atto_index)get_global_id(0);
    if (t >= runs) return;
    const atto_index4 at = atto_walk(t, size, magic, shift);
    const forward f = FORWARD_AT(at);
    const place oh = HEIGHT_OF(at), ow = WIDTH_OF(at), edge = ATTO_WINDOW == 3;
    const place top = 2 * oh - edge, left = 2 * ow, count = f.columns.out - ow;
    uint4 raw[ATTO_WINDOW][2];
    ATTO_T raw_before[ATTO_WINDOW];
    float best[ATTO_VEC];
    place best_at[ATTO_VEC];
#pragma unroll
    for (int k = 0; k < ATTO_VEC; k++) {
        best[k] = FILL;
        best_at[k] = max(top, (place)0) * f.columns.in + max(left + 2 * k - edge, (place)0);
    }
#pragma unroll
    for (int i = 0; i < ATTO_WINDOW; i++)
        fetch_row(f, top + i, left, aligned & 1u, raw[i], &raw_before[i]);
#pragma unroll
    for (int i = 0; i < ATTO_WINDOW; i++) {
        const place first = (top + i) * f.columns.in + left;
        const float before = atto_widen(raw_before[i]);
        float v[2 * ATTO_VEC];
        atto_unpack(raw[i][0], v);
        atto_unpack(raw[i][1], v + ATTO_VEC);
#pragma unroll
        for (int k = 0; k < ATTO_VEC; k++) {
#if ATTO_WINDOW == 3
            fold(&best[k], &best_at[k], k == 0 ? before : v[k == 0 ? 0 : 2 * k - 1],
                 first + 2 * k - 1);
#endif
            fold(&best[k], &best_at[k], v[2 * k], first + 2 * k);
            fold(&best[k], &best_at[k], v[2 * k + 1], first + 2 * k + 1);
        }
    }
    if (!ATTO_MAX) {
#pragma unroll
        for (int k = 0; k < ATTO_VEC; k++) best[k] /= mean_of(f, oh, ow + k);
    }
    store_part(f.y, PIXEL(oh, ow, f.y_stride), count, aligned & 2u, best);
    if (ATTO_INDEX_OUT)
        store_positions(f.indices, PIXEL(oh, ow, f.indices_stride), count, aligned & 4u, best_at);
}
#endif

/* ---- backward ---- */

/* What the gradient of output (oh, ow) is multiplied by. */
static inline float share_of(backward b, place oh, place ow)
{
    if (b.override != 0.0f) return 1.0f / b.override;
    return 1.0f /
           divisor_of(window_of(b.rows, oh), window_of(b.columns, ow), b.override, b.exclude);
}

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_pool_backward)
/* Adds what elements (r, q), (r, q + 1), ... get from outputs of row oh. */
ATTO_UNROLLED void add_windows(backward b, place r, place q, place oh, float *sum)
{
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) {
        const place last = last_of(b.columns, q + (place)k);
        const position_t here = (position_t)(r * b.columns.in + q + (place)k);
        for (place ow = first_of(b.columns, q + (place)k); ow <= last; ow++) {
            const float v = atto_load(b.dy, PIXEL(oh, ow, b.dy_stride));
            if (ATTO_MAX)
                sum[k] += b.indices[PIXEL(oh, ow, b.indices_stride)] == here ? v : 0.0f;
            else
                sum[k] += v * share_of(b, oh, ow);
        }
    }
}

/* The same where only output (oh, ow) reaches over the run. */
ATTO_UNROLLED void add_window(backward b, place r, place q, place oh, place ow, float *sum)
{
    const float v = atto_load(b.dy, PIXEL(oh, ow, b.dy_stride));
    const position_t index = ATTO_MAX ? b.indices[PIXEL(oh, ow, b.indices_stride)] : 0;
    const window wide = window_of(b.columns, ow);
    const float part = ATTO_MAX ? v : v * share_of(b, oh, ow);
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) {
        const place here = q + (place)k;
        const int owns = ATTO_MAX ? index == (position_t)(r * b.columns.in + here)
                                  : here >= wide.begin && here < wide.end;
        sum[k] += owns ? part : 0.0f;
    }
}

ATTO_KERNEL void atto_pool_backward(BACKWARD_PARAMETERS)
{
    const atto_index t = (atto_index)get_global_id(0);
    if (t >= runs) return;
    const atto_index4 at = atto_walk(t, size, magic, shift);
    const backward b = BACKWARD_AT(at);
    const place r = HEIGHT_OF(at), q = WIDTH_OF(at), oh_last = last_of(b.rows, r);
    const place ow = first_of(b.columns, q);
    const int is_one = ATTO_RUN > 1 && ow == last_of(b.columns, q + ATTO_RUN - 1);
    float sum[ATTO_RUN] = { 0.0f };
    for (place oh = first_of(b.rows, r); oh <= oh_last; oh++) {
        if (is_one) /* large windows */
            add_window(b, r, q, oh, ow, sum);
        else
            add_windows(b, r, q, oh, sum);
    }
    atto_store_gradient(b.dx, PIXEL(r, q, b.dx_stride), sum, b.add);
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_pool_backward_channels)
/* Adds what pixel (r, q) gets from output (oh, ow). */
ATTO_UNROLLED void add_output(backward b, place r, place q, place oh, place ow, float *sum)
{
    const float share = ATTO_MAX ? 1.0f : share_of(b, oh, ow);
    const position_t here = (position_t)(r * b.columns.in + q);
    position_t index[ATTO_RUN];
    float v[ATTO_RUN];
    atto_widen_unit(atto_load_unit(b.dy, PIXEL(oh, ow, b.dy_stride)), v);
    if (ATTO_MAX) load_run_positions(b.indices, PIXEL(oh, ow, b.indices_stride), index);
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) {
        if (ATTO_MAX)
            sum[k] += index[k] == here ? v[k] : 0.0f;
        else
            sum[k] += v[k] * share;
    }
}

ATTO_KERNEL void atto_pool_backward_channels(BACKWARD_PARAMETERS)
{
    const atto_index t = (atto_index)get_global_id(0);
    if (t >= runs) return;
    const atto_index4 at = atto_walk(t, size, magic, shift);
    const backward b = BACKWARD_AT(at);
#pragma unroll
    for (int pixel = 0; pixel < 4; pixel++) {
        const place r = 2 * HEIGHT_OF(at) + pixel / 2, q = 2 * WIDTH_OF(at) + pixel % 2;
        const place oh_last = last_of(b.rows, r), ow_last = last_of(b.columns, q);
        float sum[ATTO_RUN] = { 0.0f };
        if (r >= b.rows.in || q >= b.columns.in) continue;
        for (place oh = first_of(b.rows, r); oh <= oh_last; oh++)
            for (place ow = first_of(b.columns, q); ow <= ow_last; ow++)
                add_output(b, r, q, oh, ow, sum);
        atto_store_gradient(b.dx, PIXEL(r, q, b.dx_stride), sum, b.add);
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_pool_backward_unrolled)
#define OWNERS  (ATTO_WINDOW - 1) /* windows along an axis that reach two pixels */
#define WINDOWS (OWNERS * OWNERS)

/* Adds what the pixel (down, right) of four gets from the windows; here: its index. */
ATTO_UNROLLED void add_owners(const uint4 *raw, const position_t (*index)[ATTO_VEC],
                              const float *share, int down, int right, position_t here, float *sum)
{
#pragma unroll
    for (int i = 0; i < WINDOWS; i++) {
        float v[ATTO_VEC];
        if (i / OWNERS > down || i % OWNERS > right) continue;
        atto_unpack(raw[i], v);
#pragma unroll
        for (uint k = 0; k < ATTO_VEC; k++) {
            if (ATTO_MAX)
                sum[k] += index[i][k] == here ? v[k] : 0.0f;
            else
                sum[k] += v[k] * share[i];
        }
    }
}

ATTO_KERNEL void atto_pool_backward_unrolled(BACKWARD_PARAMETERS)
{
    const atto_index t = (atto_index)get_global_id(0);
    if (t >= runs) return;
    const atto_index4 at = atto_walk(t, size, magic, shift);
    const backward b = BACKWARD_AT(at);
    /* The windows that own the pixels; what does not exist is 0, and no index. */
    uint4 raw[WINDOWS];
    position_t index[WINDOWS][ATTO_VEC];
    float share[WINDOWS];
#pragma unroll
    for (int i = 0; i < WINDOWS; i++) {
        const place oh = HEIGHT_OF(at) + i / OWNERS, ow = WIDTH_OF(at) + i % OWNERS;
        const uint exists = oh < b.rows.out && ow < b.columns.out;
        const atto_index from = PIXEL(oh, ow, b.indices_stride);
        raw[i] = exists ? atto_fetch(b.dy, PIXEL(oh, ow, b.dy_stride) / ATTO_VEC) : (uint4)(0);
        if (ATTO_MAX)
            load_positions(b.indices, from, exists ? ATTO_VEC : 0, 1, index[i]);
        else
            share[i] = exists ? share_of(b, oh, ow) : 0.0f;
    }
#pragma unroll
    for (int pixel = 0; pixel < 4; pixel++) {
        const int down = pixel / 2, right = pixel % 2;
        const place r = 2 * HEIGHT_OF(at) + down, q = 2 * WIDTH_OF(at) + right;
        float sum[ATTO_VEC] = { 0.0f };
        if (r >= b.rows.in || q >= b.columns.in) continue;
        add_owners(raw, index, share, down, right, (position_t)(r * b.columns.in + q), sum);
        atto_store_gradient(b.dx, PIXEL(r, q, b.dx_stride), sum, b.add);
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_pool_backward_whole)
/* Elements `to`, `to` + 1, ... of an image; its gradients at dy, their indices at `indices`. Along
 * channels those are a pixel's channels, in which `channel` counts. */
ATTO_UNROLLED void whole_run(__global const ATTO_T *dy, __global const position_t *indices,
                             axis channel, atto_index to, float override, float *g)
{
    position_t index[ATTO_RUN];
#if ATTO_CHANNELS
    const place pixel = by_stride(channel, (place)to);
    const atto_index first = to - (atto_index)(pixel * channel.stride);
    atto_widen_unit(atto_load_unit(dy, first), g);
    if (ATTO_MAX) load_run_positions(indices, first, index);
#endif
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) {
#if !ATTO_CHANNELS
        const place pixel = (place)(to + k);
        g[k] = atto_load(dy, 0);
        if (ATTO_MAX) index[k] = indices[0];
#endif
        if (ATTO_MAX)
            g[k] = index[k] == (position_t)pixel ? g[k] : 0.0f;
        else
            g[k] *= 1.0f / override;
    }
}

/* The walk is over work-groups, of which size.w have an image, or along width a channel of it; row:
 * elements of that. override: what sums are divided by. */
ATTO_KERNEL void atto_pool_backward_whole(BACKWARD_PARAMETERS)
{
    const axis channel = AXIS_OF(w);
    const atto_index4 at = atto_walk((atto_index)get_group_id(0), size, magic, shift);
    const atto_index first =
        at.w * (ATTO_ITEMS * ATTO_WG) + (atto_index)get_local_id(0) * ATTO_RUN; /* at.w: runs */
    const atto_index plane = ATTO_CHANNELS ? 0 : at.y;
    dy += dy_at + at.x * dy_stride.x + plane * dy_stride.y;
    dx += dx_at + at.x * dx_stride.x + plane * dx_stride.y;
    if (ATTO_MAX) indices += indices_at + at.x * indices_stride.x + plane * indices_stride.y;
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++) {
        const atto_index to = first + j * (ATTO_WG * ATTO_RUN);
        float g[ATTO_RUN];
        if (to >= row) continue;
        whole_run(dy, indices, channel, to, override, g);
        atto_store_gradient(dx, to, g, add);
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_pool_backward_paired)
/* Gradients of outputs ow to ow + SPAN of row oh, as they are stored, and indices; what does not
 * exist is 0, and no index. */
ATTO_UNROLLED void fetch_outputs(backward b, place oh, place ow, uint aligned, uint2 *span,
                                 ATTO_T *last, position_t *index)
{
    const uint inside = oh < b.rows.out;
    const place row = inside ? oh : 0, count = inside ? b.columns.out - ow : 0;
    const atto_index from = PIXEL(row, ow, b.dy_stride), at = PIXEL(row, ow, b.indices_stride);
    *span = fetch_span(b.dy, from, count, aligned & 2u);
    *last = ATTO_WINDOW == 3 && count > SPAN ? b.dy[from + SPAN] : atto_narrow(0.0f);
    if (!ATTO_MAX) return;
    load_span_positions(b.indices, at, count, aligned & 4u, index);
    index[SPAN] = ATTO_WINDOW == 3 && count > SPAN ? b.indices[at + SPAN] : (position_t)-1;
}

/* The gradients as their elements get them. */
ATTO_UNROLLED void widen_outputs(backward b, place oh, place ow, uint2 span, ATTO_T last, float *v)
{
    const place row = oh < b.rows.out ? oh : 0, count = oh < b.rows.out ? b.columns.out - ow : 0;
    widen_span(span, v);
    v[SPAN] = atto_widen(last);
    if (ATTO_MAX) return;
    const window high = window_of(b.rows, row);
#pragma unroll
    for (int k = 0; k <= SPAN; k++) {
        if (b.override != 0.0f)
            v[k] *= 1.0f / b.override;
        else if (k < count)
            v[k] /= divisor_of(high, window_of(b.columns, ow + k), b.override, b.exclude);
    }
}

/* What the elements of a row get from those outputs: down: the lower of the two rows; here: its
 * first index. */
ATTO_UNROLLED void sum_outputs(const float (*v)[SPAN + 1], const position_t (*index)[SPAN + 1],
                               int down, place here, float *sum)
{
#pragma unroll
    for (int k = 0; k < ATTO_VEC; k++) {
        sum[k] = 0.0f;
#pragma unroll
        for (int i = 0; i < ATTO_WINDOW - 1; i++)
#pragma unroll
            for (int o = 0; o < ATTO_WINDOW - 1; o++) {
                if (i > down || o > k % 2) continue;
                const int owns = !ATTO_MAX || index[i][k / 2 + o] == (position_t)(here + k);
                sum[k] += owns ? v[i][k / 2 + o] : 0.0f;
            }
    }
}

/* aligned: bit 0: rows of dx begin at 16 bytes, 1: those of dy, 2: those of indices. */
ATTO_KERNEL void atto_pool_backward_paired(BACKWARD_PARAMETERS, const uint aligned)
{
    const atto_index t = (atto_index)get_global_id(0);
    if (t >= runs) return;
    const atto_index4 at = atto_walk(t, size, magic, shift);
    const backward b = BACKWARD_AT(at);
    const place ow = WIDTH_OF(at) / 2, left = 2 * ow, count = b.columns.in - left;
    uint2 span[ATTO_WINDOW - 1];
    ATTO_T last[ATTO_WINDOW - 1];
    float v[ATTO_WINDOW - 1][SPAN + 1];
    position_t index[ATTO_WINDOW - 1][SPAN + 1];
#pragma unroll
    for (int i = 0; i < ATTO_WINDOW - 1; i++)
        fetch_outputs(b, HEIGHT_OF(at) + i, ow, aligned, &span[i], &last[i], index[i]);
#pragma unroll
    for (int i = 0; i < ATTO_WINDOW - 1; i++)
        widen_outputs(b, HEIGHT_OF(at) + i, ow, span[i], last[i], v[i]);
#pragma unroll
    for (int down = 0; down < 2; down++) {
        const place r = 2 * HEIGHT_OF(at) + down;
        const atto_index to = PIXEL(r, left, b.dx_stride);
        float sum[ATTO_VEC], old[ATTO_VEC];
        if (r >= b.rows.in) continue;
        sum_outputs(v, index, down, r * b.columns.in + left, sum);
        if (b.add) {
            atto_unpack(fetch_part(b.dx, to, count, aligned & 1u), old);
            atto_add_run(sum, old);
        }
        store_part(b.dx, to, count, aligned & 1u, sum);
    }
}
#endif
