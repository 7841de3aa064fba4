/* SPDX-License-Identifier: MIT */
/* resize.cl - images of another height and width.
 *
 *   forward    y = sum of the up to four elements of x around its place, each times its share
 *   backward   dx = sum of dy over the elements of y that x's element is in, each times that share
 *              (+ dx)
 *
 * Images are [batch, channels, height, width], with any strides but the innermost. Work-item t has
 * one run of the result:
 *
 *   along width      t = ((batch * channels + channel) * height + row) * runs of a row + run
 *   along channels   t = ((batch * height + row) * width + column) * runs of a pixel + run
 *
 * The elements that are read are looked for: resize_at grows with y's place, so that those with a
 * share in one of x are neighbours.
 *
 *   -D             default  meaning
 *   ATTO_HOW       1        a number of atto_resize.h
 *   ATTO_CHANNELS  0        1: runs are along channels; 0: along width, where only the result's are
 *                           vectors
 *   ATTO_RUN, ATTO_VECTORS and the others of atto_kernel.h
 */
#include "atto_kernel.h"

#ifndef ATTO_HOW
#define ATTO_HOW 1
#endif
#ifndef ATTO_CHANNELS
#define ATTO_CHANNELS 0
#endif

#if ATTO_INDEX == 64
typedef long resize_place;
#else
typedef int resize_place;
#endif
#include "atto_resize.h"

#define AXIS_PARAMETERS(x) const atto_index x##_in, const atto_index x##_out, const float x##_scale
#define AXIS_OF(x)                                              \
    {                                                           \
        (resize_place) x##_in, (resize_place)x##_out, x##_scale \
    }

#define PARAMETERS                                                                            \
    __global const ATTO_T *from, const ulong from_at, __global ATTO_T *to, const ulong to_at, \
        const atto_index4 from_stride, const atto_index4 to_stride, AXIS_PARAMETERS(h),       \
        AXIS_PARAMETERS(w)
#define WALK_PARAMETERS \
    const atto_index n, const atto_index4 size, const uint4 magic, const uint4 shift

/* Where a run of the result is. */
typedef struct run {
    resize_place row, column;
    atto_index from, to; /* its image, or its plane, in both tensors; the rest of its own */
} run;

static inline run run_of(atto_index4 at, atto_index4 from_stride, atto_index4 to_stride)
{
    run r;
#if ATTO_CHANNELS
    const atto_index4 to = (atto_index4)(at.x, at.w, at.y, at.z);
#else
    const atto_index4 to = at;
#endif
    r.row = (resize_place)to.z;
    r.column = (resize_place)to.w;
    r.from = to.x * from_stride.x + to.y * from_stride.y;
    r.to = atto_dot(to, to_stride);
    return r;
}

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_resize_forward)
/* Two neighbours of x, where they are among its elements. */
typedef struct pair {
    size_t first, second;
    float part; /* of the second */
} pair;

static inline pair pair_of(resize_axis a, resize_place o, atto_index stride)
{
    pair p;
    const resize_place i = resize_at(ATTO_HOW, a, o, &p.part);
    p.first = (size_t)i * stride;
    p.second = i + 1 < a.in ? p.first + stride : p.first;
    return p;
}

/* The shares of two rows, of which x may have but one. */
static inline float mix_rows(resize_axis a, pair rows, float upper, float lower)
{
    return a.in == 1 ? upper : (1.0f - rows.part) * upper + rows.part * lower;
}

static inline float mix(__global const ATTO_T *x, pair columns)
{
    return (1.0f - columns.part) * atto_load(x, columns.first) +
           columns.part * atto_load(x, columns.second);
}

#if ATTO_CHANNELS
/* A pixel's run. */
ATTO_UNROLLED void value_of(__global const ATTO_T *x, resize_axis h, pair rows, pair columns,
                            float *v)
{
    const atto_raw raw = atto_load_unit(x, rows.first + columns.first);
    atto_widen_unit(raw, v);
#if ATTO_HOW != RESIZE_NEAREST
    float right[ATTO_RUN], lower[ATTO_RUN], last[ATTO_RUN];
    const atto_raw raw_right = atto_load_unit(x, rows.first + columns.second);
    const atto_raw raw_lower = atto_load_unit(x, rows.second + columns.first);
    const atto_raw raw_last = atto_load_unit(x, rows.second + columns.second);
    atto_widen_unit(raw_right, right);
    atto_widen_unit(raw_lower, lower);
    atto_widen_unit(raw_last, last);
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++)
        v[k] = mix_rows(h, rows, (1.0f - columns.part) * v[k] + columns.part * right[k],
                        (1.0f - columns.part) * lower[k] + columns.part * last[k]);
#endif
}
#endif

ATTO_KERNEL void atto_resize_forward(PARAMETERS, WALK_PARAMETERS)
{
    const atto_index t = get_global_id(0);
    if (t >= n) return;
    const resize_axis h = AXIS_OF(h), w = AXIS_OF(w);
    const atto_index4 at = atto_walk(t, size, magic, shift);
    const run r = run_of(at, from_stride, to_stride);
    const pair rows = pair_of(h, r.row, from_stride.z);
    float v[ATTO_RUN];
    from += from_at + r.from;
#if ATTO_CHANNELS
    value_of(from, h, rows, pair_of(w, r.column, from_stride.w), v);
#else
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) {
        const pair columns = pair_of(w, r.column + (resize_place)k, from_stride.w);
#if ATTO_HOW == RESIZE_NEAREST
        v[k] = atto_load(from, rows.first + columns.first);
#else
        v[k] = mix_rows(h, rows, mix(from + rows.first, columns), mix(from + rows.second, columns));
#endif
    }
#endif
    atto_store_run(to + to_at, r.to, 1, ATTO_RUN, v);
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_resize_backward)
/* The first place of y that begins at x's element i or behind it; guessed, and corrected. */
static inline resize_place first_from(resize_axis a, resize_place i)
{
    float part;
    if (i <= 0) return 0;
    if (i >= a.in) return a.out;
    const float half_pixel = ATTO_HOW == RESIZE_LINEAR ? 0.5f : 0.0f;
    const float guess = ((float)i + half_pixel) / a.scale - half_pixel;
    resize_place o = guess < (float)a.out ? (resize_place)guess : a.out; /* scale 0: a.out is 1 */
    while (o < a.out && resize_at(ATTO_HOW, a, o, &part) < i) o++;
    while (o > 0 && resize_at(ATTO_HOW, a, o - 1, &part) >= i) o--;
    return o;
}

/* Places of y with a share in x's element i: first to end - 1. */
typedef struct range {
    resize_place first, end;
} range;

static inline range range_of(resize_axis a, resize_place i)
{
    range r;
    r.first = first_from(a, ATTO_HOW == RESIZE_NEAREST ? i : i - 1);
    r.end = first_from(a, i + 1);
    return r;
}

static inline float share_of(resize_axis a, resize_place o, resize_place i)
{
    float part;
    const resize_place at = resize_at(ATTO_HOW, a, o, &part);
    return resize_share(a, at, part, i);
}

#if ATTO_CHANNELS || !ATTO_VECTORS
#define UNIT ATTO_RUN
#else
#define UNIT 1
#endif

/* sum += what x's element in that column, or its pixel's run, gets from a row of dy. */
ATTO_UNROLLED void add_row(__global const ATTO_T *dy, resize_axis w, range columns,
                           resize_place column, atto_index stride, float share, float *sum)
{
    float of_row[UNIT];
#pragma unroll
    for (uint k = 0; k < UNIT; k++) of_row[k] = 0.0f;
    for (resize_place o = columns.first; o < columns.end; o++) {
        const float mine = share_of(w, o, column);
        float v[UNIT];
#if UNIT == 1
        v[0] = atto_load(dy, (size_t)o * stride);
#else
        atto_widen_unit(atto_load_unit(dy, (size_t)o * stride), v);
#endif
#pragma unroll
        for (uint k = 0; k < UNIT; k++) of_row[k] += mine * v[k];
    }
#pragma unroll
    for (uint k = 0; k < UNIT; k++) sum[k] += share * of_row[k];
}

ATTO_KERNEL void atto_resize_backward(PARAMETERS, const uint add, WALK_PARAMETERS)
{
    const atto_index t = get_global_id(0);
    if (t >= n) return;
    const resize_axis h = AXIS_OF(h), w = AXIS_OF(w);
    const atto_index4 at = atto_walk(t, size, magic, shift);
    const run r = run_of(at, from_stride, to_stride);
    const range rows = range_of(h, r.row);
    float sum[ATTO_RUN];
    from += from_at + r.from;
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) sum[k] = 0.0f;
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k += UNIT) {
        const resize_place column = r.column + (UNIT == 1 ? (resize_place)k : 0);
        const range columns = range_of(w, column);
        for (resize_place o = rows.first; o < rows.end; o++)
            add_row(from + (size_t)o * from_stride.z, w, columns, column, from_stride.w,
                    share_of(h, o, r.row), sum + k);
    }
    atto_store_gradient(to + to_at, r.to, sum, add);
}
#endif
