/* SPDX-License-Identifier: MIT */
/* conv_depthwise.cl - convolutions whose channels are groups of their own, bound by memory.
 *
 *   atto_conv_depthwise         out = epilogue(sums of taps x image): forward and dx of all strides
 *   atto_conv_depthwise_filter  sums of dw over slices of the small image; atto_conv_finish of
 *                               conv.cl adds these up
 *
 * A work-item has ATTO_DEPTHWISE_ROWS results below one another, of one channel, or of four where
 * these are innermost: each element that it loads serves all results that it belongs to, and
 * neighbours load neighbours. For each column of taps it goes down the image once:
 *
 *     (o STEP + at + t) / DIVIDE     the row that tap t of result o meets, if it divides
 *
 * so that which rows meet which results is known to the compiler. Where it is not (a dilation, a
 * long filter, other strides: ATTO_DEPTHWISE_H 0) a work-item goes down the image once for each
 * tap.
 *
 *   -D                     default  meaning
 *   ATTO_A                 f32      storage of the image that is read; of dw: of the small image
 *   ATTO_B                 f32      storage of the filter; of dw: of the big image
 *   ATTO_C                 f32      storage of the result
 *   ATTO_ACT               attom_identity
 *   ATTO_CHANNELS          0        1: channels are innermost
 *   ATTO_A_VECTORS         0        1: then so that four of a are a vector
 *   ATTO_B_VECTORS         0        1: and four of b
 *   ATTO_DEPTHWISE_H       3        rows of taps, or 0
 *   ATTO_DEPTHWISE_STEP    1        STEP, of rows
 *   ATTO_DEPTHWISE_DIVIDE  1        DIVIDE, of rows and columns; 0: an argument
 *   ATTO_DEPTHWISE_ROWS    8        results of a work-item, a multiple of DIVIDE
 *   ATTO_DEPTHWISE_W       3        dw: columns of taps that a work-item adds up
 *   ATTO_DEPTHWISE_EACH    1 or 4   channels of a work-item: 1, or where they are innermost 2 or 4
 */
#include "atto_conv_out.h"

#ifndef ATTO_A
#define ATTO_A f32
#endif
#ifndef ATTO_CHANNELS
#define ATTO_CHANNELS 0
#endif
#ifndef ATTO_A_VECTORS
#define ATTO_A_VECTORS 0
#endif
#ifndef ATTO_B_VECTORS
#define ATTO_B_VECTORS 0
#endif
#ifndef ATTO_DEPTHWISE_H
#define ATTO_DEPTHWISE_H 3
#endif
#ifndef ATTO_DEPTHWISE_STEP
#define ATTO_DEPTHWISE_STEP 1
#endif
#ifndef ATTO_DEPTHWISE_DIVIDE
#define ATTO_DEPTHWISE_DIVIDE 1
#endif
#ifndef ATTO_DEPTHWISE_ROWS
#define ATTO_DEPTHWISE_ROWS 8
#endif
#ifndef ATTO_DEPTHWISE_W
#define ATTO_DEPTHWISE_W 3
#endif
#ifndef ATTO_DEPTHWISE_EACH
#define ATTO_DEPTHWISE_EACH (ATTO_CHANNELS ? 4 : 1)
#endif

#define ATTO_A_T ATTO_PASTE(atto_, ATTO_A)

/* Rows of taps in one go down the image, and rows of the image that these meet. */
#if ATTO_DEPTHWISE_H
#define ATTO_DEPTHWISE_TAPS ATTO_DEPTHWISE_H
#define ATTO_DEPTHWISE_INPUTS                                                   \
    (((ATTO_DEPTHWISE_ROWS - 1) * ATTO_DEPTHWISE_STEP + ATTO_DEPTHWISE_H - 1) / \
         ATTO_DEPTHWISE_DIVIDE +                                                \
     1)
/* The tap by which input i belongs to result r; less than 0 or more than there are: by none. */
#define ATTO_DEPTHWISE_TAP(i, r) ((int)(i)*ATTO_DEPTHWISE_DIVIDE - (int)(r)*ATTO_DEPTHWISE_STEP)
#else
#define ATTO_DEPTHWISE_TAPS      1
#define ATTO_DEPTHWISE_INPUTS    ATTO_DEPTHWISE_ROWS
#define ATTO_DEPTHWISE_TAP(i, r) ((i) == (r) ? 0 : -1)
#endif
#define ATTO_DEPTHWISE_MEETS(i, r) \
    (ATTO_DEPTHWISE_TAP(i, r) >= 0 && ATTO_DEPTHWISE_TAP(i, r) < ATTO_DEPTHWISE_TAPS)

/* The channels of a work-item as they are stored: a vector where they are one, else elements, of
 * which `count` are there, at least one. */
#if ATTO_DEPTHWISE_EACH == 4
#define ATTO_DEPTHWISE_VECTOR atto_quad_
#define ATTO_DEPTHWISE_WIDEN  atto_widen_quad_
#elif ATTO_DEPTHWISE_EACH == 2
#define ATTO_DEPTHWISE_VECTOR atto_pair_
#define ATTO_DEPTHWISE_WIDEN  atto_widen_pair_
#endif

#if ATTO_CHANNELS && ATTO_A_VECTORS
typedef ATTO_PASTE(ATTO_DEPTHWISE_VECTOR, ATTO_A) atto_depthwise_a;

ATTO_UNROLLED void atto_depthwise_none_a(atto_depthwise_a *raw)
{
    *raw = (atto_depthwise_a)(0);
}

ATTO_UNROLLED void atto_depthwise_load_a(__global const ATTO_A_T *p, atto_index at, uint count,
                                         atto_depthwise_a *raw)
{
    *raw = *(__global const atto_depthwise_a *)(p + at);
}

ATTO_UNROLLED void atto_depthwise_widen_a(const atto_depthwise_a *raw, float *v)
{
    ATTO_PASTE(ATTO_DEPTHWISE_WIDEN, ATTO_A)(*raw, v);
}
#else
typedef struct atto_depthwise_a {
    ATTO_A_T e[ATTO_DEPTHWISE_EACH];
} atto_depthwise_a;

ATTO_UNROLLED void atto_depthwise_none_a(atto_depthwise_a *raw)
{
#pragma unroll
    for (uint e = 0; e < ATTO_DEPTHWISE_EACH; e++) raw->e[e] = 0;
}

ATTO_UNROLLED void atto_depthwise_load_a(__global const ATTO_A_T *p, atto_index at, uint count,
                                         atto_depthwise_a *raw)
{
#pragma unroll
    for (uint e = 0; e < ATTO_DEPTHWISE_EACH; e++) raw->e[e] = e == 0 || e < count ? p[at + e] : 0;
}

ATTO_UNROLLED void atto_depthwise_widen_a(const atto_depthwise_a *raw, float *v)
{
#pragma unroll
    for (uint e = 0; e < ATTO_DEPTHWISE_EACH; e++)
        v[e] = ATTO_PASTE(atto_widen_, ATTO_A)(raw->e[e]);
}
#endif

#if ATTO_CHANNELS && ATTO_B_VECTORS
typedef ATTO_PASTE(ATTO_DEPTHWISE_VECTOR, ATTO_B) atto_depthwise_b;

ATTO_UNROLLED void atto_depthwise_none_b(atto_depthwise_b *raw)
{
    *raw = (atto_depthwise_b)(0);
}

ATTO_UNROLLED void atto_depthwise_load_b(__global const ATTO_B_T *p, atto_index at, uint count,
                                         atto_depthwise_b *raw)
{
    *raw = *(__global const atto_depthwise_b *)(p + at);
}

ATTO_UNROLLED void atto_depthwise_widen_b(const atto_depthwise_b *raw, float *v)
{
    ATTO_PASTE(ATTO_DEPTHWISE_WIDEN, ATTO_B)(*raw, v);
}
#else
typedef struct atto_depthwise_b {
    ATTO_B_T e[ATTO_DEPTHWISE_EACH];
} atto_depthwise_b;

ATTO_UNROLLED void atto_depthwise_none_b(atto_depthwise_b *raw)
{
#pragma unroll
    for (uint e = 0; e < ATTO_DEPTHWISE_EACH; e++) raw->e[e] = 0;
}

ATTO_UNROLLED void atto_depthwise_load_b(__global const ATTO_B_T *p, atto_index at, uint count,
                                         atto_depthwise_b *raw)
{
#pragma unroll
    for (uint e = 0; e < ATTO_DEPTHWISE_EACH; e++) raw->e[e] = e == 0 || e < count ? p[at + e] : 0;
}

ATTO_UNROLLED void atto_depthwise_widen_b(const atto_depthwise_b *raw, float *v)
{
#pragma unroll
    for (uint e = 0; e < ATTO_DEPTHWISE_EACH; e++)
        v[e] = ATTO_PASTE(atto_widen_, ATTO_B)(raw->e[e]);
}
#endif

/* window: what the first tap adds to a place, down and right, and how far taps are apart. ratio:
 * STEP and DIVIDE, each down and right. blocks of ATTO_DEPTHWISE_ROWS results, the first one `lead`
 * rows above the image, so that its first row divides; `rows` of results. */
#define ATTO_DEPTHWISE_PARAMETERS                                                         \
    const int4 window, const uint taps_down, const uint taps_right, const int4 ratio,     \
        const uint lead, const uint rows, const atto_index items, const atto_index width, \
        const uint width_magic, const uint width_shift, const atto_index blocks,          \
        const uint blocks_magic, const uint blocks_shift, const uint image_height,        \
        const uint image_width

/* A work-item's first result, and the image that its taps meet. */
typedef struct atto_depthwise {
    atto_index n, channel;
    int y, x;
    uint count; /* of channels */
} atto_depthwise;

/* From x + width (block + blocks n); returns n. */
ATTO_UNROLLED atto_index atto_depthwise_place(atto_depthwise *d, atto_index t, atto_index width,
                                              uint width_magic, uint width_shift, atto_index blocks,
                                              uint blocks_magic, uint blocks_shift, uint lead)
{
    const atto_index block = atto_divide(t, width, width_magic, width_shift);
    const atto_index n = atto_divide(block, blocks, blocks_magic, blocks_shift);
    d->x = (int)(t - block * width);
    d->y = (int)(block - n * blocks) * ATTO_DEPTHWISE_ROWS - (int)lead;
    return n;
}

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_conv_depthwise)

static inline bool atto_depthwise_divides(int n, int divide)
{
#if ATTO_DEPTHWISE_DIVIDE == 1
    return true;
#elif ATTO_DEPTHWISE_DIVIDE > 1
    return n % ATTO_DEPTHWISE_DIVIDE == 0;
#else
    return n % divide == 0;
#endif
}

/* n / divide, or -1 where it does not divide. */
static inline int atto_depthwise_divide(int n, int divide)
{
#if ATTO_DEPTHWISE_DIVIDE == 1
    return n;
#elif ATTO_DEPTHWISE_DIVIDE > 1
    return atto_depthwise_divides(n, divide) ? n / ATTO_DEPTHWISE_DIVIDE : -1;
#else
    return atto_depthwise_divides(n, divide) ? n / divide : -1;
#endif
}

/* Row of the image that is input i; top: that of the first one, before it is divided. */
static inline int atto_depthwise_row(int top, uint i, int step, int divide)
{
#if ATTO_DEPTHWISE_H
    return top / ATTO_DEPTHWISE_DIVIDE + (int)i;
#else
    return atto_depthwise_divide(top + (int)i * step, divide);
#endif
}

/* Whether a tap meets some rows of results only: where the kernel does not know which. */
#define ATTO_DEPTHWISE_SKIPS (!ATTO_DEPTHWISE_H && ATTO_DEPTHWISE_DIVIDE != 1)

/* A column of taps, and what they meet. Columns are loaded while the one before waits to be added,
 * which a compiler cannot undo: all loads of a column are under way together. */
typedef struct atto_depthwise_column {
    atto_depthwise_a v[ATTO_DEPTHWISE_INPUTS];
    atto_depthwise_b weight[ATTO_DEPTHWISE_TAPS];
#if ATTO_DEPTHWISE_SKIPS
    bool meets[ATTO_DEPTHWISE_INPUTS];
#endif
} atto_depthwise_column;

/* whole: all rows are there. */
ATTO_UNROLLED void atto_depthwise_fetch(atto_depthwise_column *c, __global const ATTO_A_T *x,
                                        atto_index at, atto_index row_stride, int top, int step,
                                        int divide, uint height, bool whole, uint count)
{
#pragma unroll
    for (uint i = 0; i < ATTO_DEPTHWISE_INPUTS; i++) {
        const int row = atto_depthwise_row(top, i, step, divide);
#if ATTO_DEPTHWISE_SKIPS
        c->meets[i] = atto_depthwise_divides(top + (int)i * step, divide);
#endif
        atto_depthwise_none_a(&c->v[i]);
        if (whole || (uint)row < height)
            atto_depthwise_load_a(x, at + (atto_index)row * row_stride, count, &c->v[i]);
    }
}

/* A tap that may be infinite is multiplied with zeros around the image, but not where it meets
 * nothing. */
ATTO_UNROLLED void atto_depthwise_sum(const atto_depthwise_column *c,
                                      float (*sum)[ATTO_DEPTHWISE_EACH])
{
    float weight[ATTO_DEPTHWISE_TAPS][ATTO_DEPTHWISE_EACH];
#pragma unroll
    for (uint t = 0; t < ATTO_DEPTHWISE_TAPS; t++) atto_depthwise_widen_b(&c->weight[t], weight[t]);
#pragma unroll
    for (uint i = 0; i < ATTO_DEPTHWISE_INPUTS; i++) {
#if ATTO_DEPTHWISE_SKIPS
        if (!c->meets[i]) continue;
#endif
        float v[ATTO_DEPTHWISE_EACH];
        atto_depthwise_widen_a(&c->v[i], v);
#pragma unroll
        for (uint r = 0; r < ATTO_DEPTHWISE_ROWS; r++) {
            if (!ATTO_DEPTHWISE_MEETS(i, r)) continue;
#pragma unroll
            for (uint e = 0; e < ATTO_DEPTHWISE_EACH; e++)
                sum[r][e] = fma(weight[ATTO_DEPTHWISE_TAP(i, r)][e], v[e], sum[r][e]);
        }
    }
}

/* ---- results: each stage for all rows ---- */

ATTO_UNROLLED void atto_depthwise_put(__global ATTO_C_T *p, atto_index at, atto_index4 stride,
                                      const atto_depthwise *d, uint rows, bool quads,
                                      float (*v)[ATTO_DEPTHWISE_EACH])
{
#pragma unroll
    for (uint r = 0; r < ATTO_DEPTHWISE_ROWS; r++) {
        const atto_index to = at + (atto_index)(d->y + (int)r) * stride.z;
        if ((uint)(d->y + (int)r) >= rows) continue;
#if ATTO_DEPTHWISE_EACH == 4
        if (quads) {
            ATTO_C_PUT(p, to, v[r]);
            continue;
        }
#endif
#pragma unroll
        for (uint e = 0; e < ATTO_DEPTHWISE_EACH; e++)
            if (e == 0 || e < d->count) p[to + e * stride.y] = ATTO_C_STORE(v[r][e]);
    }
}

ATTO_UNROLLED void atto_depthwise_add(__global const ATTO_C_T *p, atto_index at, atto_index4 stride,
                                      const atto_depthwise *d, uint rows,
                                      float (*v)[ATTO_DEPTHWISE_EACH])
{
#pragma unroll
    for (uint r = 0; r < ATTO_DEPTHWISE_ROWS; r++) {
        const atto_index from = at + (atto_index)(d->y + (int)r) * stride.z;
        if ((uint)(d->y + (int)r) >= rows) continue;
#pragma unroll
        for (uint e = 0; e < ATTO_DEPTHWISE_EACH; e++)
            if (e == 0 || e < d->count) v[r][e] += ATTO_C_LOAD(p[from + e * stride.y]);
    }
}

/* Of the column that results stand in. */
ATTO_UNROLLED atto_index atto_depthwise_at(const atto_depthwise *d, atto_index4 stride)
{
    return d->n * stride.x + d->channel * stride.y + (atto_index)d->x * stride.w;
}

ATTO_UNROLLED void atto_depthwise_store(const atto_conv_out *o, const atto_depthwise *d, uint rows,
                                        float (*v)[ATTO_DEPTHWISE_EACH])
{
    const bool quads = (o->flags & ATTO_CONV_QUADS) != 0; /* the same for all work-items */
    if (o->flags & ATTO_CONV_BIAS) {
#pragma unroll
        for (uint e = 0; e < ATTO_DEPTHWISE_EACH; e++) {
            const float bias = e == 0 || e < d->count ? atto_conv_bias(o, d->channel + e) : 0.0f;
#pragma unroll
            for (uint r = 0; r < ATTO_DEPTHWISE_ROWS; r++) v[r][e] += bias;
        }
    }
    if (o->flags & ATTO_CONV_Z)
        atto_depthwise_put(o->z, atto_depthwise_at(d, o->z_stride), o->z_stride, d, rows, quads, v);
#pragma unroll
    for (uint r = 0; r < ATTO_DEPTHWISE_ROWS; r++) {
#pragma unroll
        for (uint e = 0; e < ATTO_DEPTHWISE_EACH; e++) v[r][e] = ATTO_ACT(v[r][e], o->a, o->b);
    }
    if (o->flags & ATTO_CONV_RESIDUAL)
        atto_depthwise_add(o->residual, atto_depthwise_at(d, o->residual_stride),
                           o->residual_stride, d, rows, v);
    const atto_index at = atto_depthwise_at(d, o->c_stride);
    if (o->flags & ATTO_CONV_ADD) atto_depthwise_add(o->c, at, o->c_stride, d, rows, v);
    atto_depthwise_put(o->c, at, o->c_stride, d, rows, quads, v);
}

/* ---- the walk ---- */

/* Work-items count columns of results, then blocks of rows, then planes; where channels are
 * innermost these first. across: channels, or quads of them. w_first: from w_at to the first
 * tap. */
ATTO_KERNEL void atto_conv_depthwise(__global const ATTO_A_T *x, const ulong x_at,
                                     const atto_index4 x_stride, __global const ATTO_B_T *w,
                                     const ulong w_at, const atto_index4 w_stride,
                                     const atto_index w_first, const atto_index across,
                                     const uint across_magic, const uint across_shift,
                                     ATTO_DEPTHWISE_PARAMETERS, ATTO_CONV_OUT_PARAMETERS)
{
    atto_index t = (atto_index)get_global_id(0);
    if (t >= items) return;
    atto_depthwise d;
#if ATTO_CHANNELS
    const atto_index rest = atto_divide(t, across, across_magic, across_shift);
    d.channel = (t - rest * across) * ATTO_DEPTHWISE_EACH;
    d.n = atto_depthwise_place(&d, rest, width, width_magic, width_shift, blocks, blocks_magic,
                               blocks_shift, lead);
#else
    const atto_index plane = atto_depthwise_place(&d, t, width, width_magic, width_shift, blocks,
                                                  blocks_magic, blocks_shift, lead);
    d.n = atto_divide(plane, across, across_magic, across_shift);
    d.channel = plane - d.n * across;
#endif
    d.count = (uint)min(outputs - d.channel, (atto_index)ATTO_DEPTHWISE_EACH);
    x += x_at;
    w += w_at;
    float sum[ATTO_DEPTHWISE_ROWS][ATTO_DEPTHWISE_EACH];
#pragma unroll
    for (uint r = 0; r < ATTO_DEPTHWISE_ROWS; r++) {
#pragma unroll
        for (uint e = 0; e < ATTO_DEPTHWISE_EACH; e++) sum[r][e] = 0.0f;
    }
    const atto_index at = d.n * x_stride.x + d.channel * x_stride.y;
    atto_depthwise_column column;
    uint down = 0, right = 0;
    for (bool first = true;; first = false) {
        if (!first) {
            atto_depthwise_sum(&column, sum);
            if (++right == taps_right) {
                right = 0;
                down += ATTO_DEPTHWISE_TAPS;
            }
            if (down >= taps_down) break;
        }
        const int top = d.y * ratio.x + window.x + (int)down * window.z;
        const int bottom = top / max(ATTO_DEPTHWISE_DIVIDE, 1) + ATTO_DEPTHWISE_INPUTS;
        const bool whole = ATTO_DEPTHWISE_H > 0 && top >= 0 && bottom <= (int)image_height;
        const int left = d.x * ratio.y + window.y + (int)right * window.w;
        const bool meets = atto_depthwise_divides(left, ratio.w);
        const int across_at = atto_depthwise_divide(left, ratio.w);
        const bool there = (uint)across_at < image_width;
        const atto_index from = at + (atto_index)across_at * x_stride.w;
        const atto_index w_from =
            w_first + d.channel * w_stride.x + down * w_stride.z + right * w_stride.w;
#pragma unroll
        for (uint t = 0; t < ATTO_DEPTHWISE_TAPS; t++) {
            atto_depthwise_none_b(&column.weight[t]);
            if (meets)
                atto_depthwise_load_b(w, w_from + t * w_stride.z, d.count, &column.weight[t]);
        }
        if (whole && there)
            atto_depthwise_fetch(&column, x, from, x_stride.z, top, ratio.x, ratio.z, image_height,
                                 true, d.count);
        else
            atto_depthwise_fetch(&column, x, from, x_stride.z, top, ratio.x, ratio.z,
                                 there ? image_height : 0, false, d.count);
    }
    atto_conv_out out; /* of which spots are not used here */
    out.c = c + c_at;
    out.z = z + z_at;
    out.residual = residual + residual_at;
    out.bias = bias;
    out.bias_at = bias_at;
    out.c_stride = c_stride;
    out.z_stride = z_stride;
    out.residual_stride = residual_stride;
    out.flags = flags;
    out.a = act_a;
    out.b = act_b;
    atto_depthwise_store(&out, &d, rows, sum);
}
#endif

/* ---- dw ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_conv_depthwise_filter)

/* Work-items side by side that have other channels: 32 of them, where so many work-items are. */
#define ATTO_DEPTHWISE_WIDE \
    (32 / ATTO_DEPTHWISE_EACH < ATTO_WG ? 32 / ATTO_DEPTHWISE_EACH : ATTO_WG)
#define ATTO_DEPTHWISE_LANES (ATTO_CHANNELS ? ATTO_DEPTHWISE_WIDE : 1)
#define ATTO_DEPTHWISE_SUMS  (ATTO_DEPTHWISE_TAPS * ATTO_DEPTHWISE_W * ATTO_DEPTHWISE_EACH)

/* Where the sum of a row and a column of taps, of channel e, is among those of a work-item. */
#define ATTO_DEPTHWISE_SUM(row, column, e) \
    (((row)*ATTO_DEPTHWISE_W + (column)) * ATTO_DEPTHWISE_EACH + (e))

/* Results, and what their taps meet; loaded while those before wait to be added. */
typedef struct atto_depthwise_block {
    atto_depthwise_a small[ATTO_DEPTHWISE_ROWS];
    atto_depthwise_b v[ATTO_DEPTHWISE_W][ATTO_DEPTHWISE_INPUTS];
    uint rows; /* that there are */
} atto_depthwise_block;

/* whole: all rows are there. */
ATTO_UNROLLED void atto_depthwise_fetch_dw(atto_depthwise_block *b, uint j,
                                           __global const ATTO_B_T *x, atto_index at,
                                           atto_index row_stride, int top, int step, uint height,
                                           bool whole, uint count)
{
#pragma unroll
    for (uint i = 0; i < ATTO_DEPTHWISE_INPUTS; i++) {
        const int row = top + (int)i * (ATTO_DEPTHWISE_H ? 1 : step);
        atto_depthwise_none_b(&b->v[j][i]);
        if (whole || (uint)row < height)
            atto_depthwise_load_b(x, at + (atto_index)row * row_stride, count, &b->v[j][i]);
    }
}

/* Results that are not there are not multiplied by 0: x may be infinite. */
ATTO_UNROLLED void atto_depthwise_sum_dw(const atto_depthwise_block *b, float *sum)
{
#pragma unroll
    for (uint r = 0; r < ATTO_DEPTHWISE_ROWS; r++) {
        if (r >= b->rows) continue;
        float small[ATTO_DEPTHWISE_EACH];
        atto_depthwise_widen_a(&b->small[r], small);
#pragma unroll
        for (uint s = 0; s < ATTO_DEPTHWISE_INPUTS * ATTO_DEPTHWISE_W; s++) {
            const uint i = s / ATTO_DEPTHWISE_W, j = s % ATTO_DEPTHWISE_W;
            if (!ATTO_DEPTHWISE_MEETS(i, r)) continue;
            float v[ATTO_DEPTHWISE_EACH];
            atto_depthwise_widen_b(&b->v[j][i], v);
#pragma unroll
            for (uint e = 0; e < ATTO_DEPTHWISE_EACH; e++) {
                const uint to = ATTO_DEPTHWISE_SUM(ATTO_DEPTHWISE_TAP(i, r), j, e);
                sum[to] = fma(small[e], v[e], sum[to]);
            }
        }
    }
}

/* Work-groups count blocks of channels, then blocks of columns of taps, then of their rows, then
 * slices of items. sums: [slice][channel][columns], of which taps_down taps_right are taps. */
ATTO_KERNEL void atto_conv_depthwise_filter(__global const ATTO_A_T *small, const ulong small_at,
                                            const atto_index4 small_stride,
                                            __global const ATTO_B_T *x, const ulong x_at,
                                            const atto_index4 x_stride, const atto_index channels,
                                            const atto_index columns, const atto_index slice,
                                            ATTO_DEPTHWISE_PARAMETERS, __global float *sums)
{
    __local float partial[4][ATTO_WG];
    const uint id = get_local_id(0), lane = id % ATTO_DEPTHWISE_LANES,
               line = id / ATTO_DEPTHWISE_LANES;
    const uint lines = ATTO_WG / ATTO_DEPTHWISE_LANES;
    const atto_index each = ATTO_DEPTHWISE_LANES * ATTO_DEPTHWISE_EACH;
    const atto_index channel_blocks = (channels + each - 1) / each;
    const uint right_blocks = (taps_right + ATTO_DEPTHWISE_W - 1) / ATTO_DEPTHWISE_W;
    const uint down_blocks = taps_down / ATTO_DEPTHWISE_TAPS;
    const atto_index part = (atto_index)get_group_id(0) / channel_blocks;
    const uint right = (uint)(part % right_blocks) * ATTO_DEPTHWISE_W;
    const uint down = (uint)(part / right_blocks % down_blocks) * ATTO_DEPTHWISE_TAPS;
    const atto_index number = part / right_blocks / down_blocks;
    const atto_index channel =
        ((atto_index)get_group_id(0) % channel_blocks * ATTO_DEPTHWISE_LANES + lane) *
        ATTO_DEPTHWISE_EACH;
    const uint count =
        channel < channels ? (uint)min(channels - channel, (atto_index)ATTO_DEPTHWISE_EACH) : 0;
    const atto_index end = count > 0 ? min(items, (number + 1) * slice) : 0;
    small += small_at + channel * small_stride.y;
    x += x_at + channel * x_stride.y;

    float sum[ATTO_DEPTHWISE_SUMS];
#pragma unroll
    for (uint s = 0; s < ATTO_DEPTHWISE_SUMS; s++) sum[s] = 0.0f;
    atto_depthwise_block b;
    b.rows = 0;
    for (atto_index t = number * slice + line;; t += lines) {
        if (b.rows > 0) atto_depthwise_sum_dw(&b, sum);
        if (t >= end) break;
        atto_depthwise d;
        const atto_index n = atto_depthwise_place(&d, t, width, width_magic, width_shift, blocks,
                                                  blocks_magic, blocks_shift, 0);
        const int top = d.y * ratio.x + window.x + (int)down * window.z;
        b.rows = rows - (uint)d.y;
        const bool whole =
            ATTO_DEPTHWISE_H > 0 && top >= 0 && top + ATTO_DEPTHWISE_INPUTS <= (int)image_height;
        const atto_index from = n * small_stride.x + (atto_index)d.x * small_stride.w +
                                (atto_index)d.y * small_stride.z;
#pragma unroll
        for (uint r = 0; r < ATTO_DEPTHWISE_ROWS; r++) {
            atto_depthwise_none_a(&b.small[r]);
            if (r < b.rows)
                atto_depthwise_load_a(small, from + r * small_stride.z, count, &b.small[r]);
        }
#pragma unroll
        for (uint j = 0; j < ATTO_DEPTHWISE_W; j++) {
            const int column = d.x * ratio.y + window.y + (int)(right + j) * window.w;
            const bool there = right + j < taps_right && (uint)column < image_width;
            const atto_index at = n * x_stride.x + (atto_index)column * x_stride.w;
            if (whole && there)
                atto_depthwise_fetch_dw(&b, j, x, at, x_stride.z, top, ratio.x, image_height, true,
                                        count);
            else
                atto_depthwise_fetch_dw(&b, j, x, at, x_stride.z, top, ratio.x,
                                        there ? image_height : 0, false, count);
        }
    }
    /* Four sums at a time, halves onto halves; the same barriers for all. */
#pragma unroll
    for (uint s = 0; s < ATTO_DEPTHWISE_SUMS; s += 4) {
#pragma unroll
        for (uint e = 0; e < 4; e++)
            partial[e][id] = s + e < ATTO_DEPTHWISE_SUMS ? sum[s + e] : 0.0f;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint left = lines / 2; left > 0; left /= 2) {
            if (line < left) {
#pragma unroll
                for (uint e = 0; e < 4; e++)
                    partial[e][id] += partial[e][id + left * ATTO_DEPTHWISE_LANES];
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        if (line == 0) {
#pragma unroll
            for (uint e = 0; e < 4; e++) {
                const uint tap = (s + e) / ATTO_DEPTHWISE_EACH, c = (s + e) % ATTO_DEPTHWISE_EACH;
                const uint column = right + tap % ATTO_DEPTHWISE_W;
                if (s + e < ATTO_DEPTHWISE_SUMS && c < count && column < taps_right)
                    sums[(number * channels + channel + c) * columns +
                         (down + tap / ATTO_DEPTHWISE_W) * taps_right + column] = partial[e][id];
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}
#endif
