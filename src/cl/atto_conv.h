/* SPDX-License-Identifier: MIT */
/* Spots and taps of conv.cl, and what stores its results. */
#ifndef ATTO_CONV_H
#define ATTO_CONV_H

#include "atto_conv_out.h"

/* ---- spots ---- */

/* The walk's spots: how many, of a row and of an image, and what divides by these; what a step of
 * spots is in the image that is read; that image's height and width. */
#define ATTO_SPOT_PARAMETERS                                                                \
    const atto_index spot_count, const atto_index spot_height, const atto_index spot_width, \
        const uint height_magic, const uint height_shift, const uint width_magic,           \
        const uint width_shift, const uint step_down, const uint step_right,                \
        const uint image_height, const uint image_width

typedef struct atto_spots {
    atto_index count, height, width;
    uint2 magic, shift;
    int2 step;
    atto_index4 stride; /* of the image */
    uint image_height, image_width;
} atto_spots;

#define ATTO_SPOTS_OF(stride)                                                                    \
    {                                                                                            \
        spot_count, spot_height, spot_width, (uint2)(height_magic, width_magic),                 \
            (uint2)(height_shift, width_shift), (int2)((int)step_down, (int)step_right), stride, \
            image_height, image_width                                                            \
    }

/* The small image itself: every element is a spot. */
#define ATTO_SMALL_SPOTS_OF(stride)                                              \
    {                                                                            \
        spot_count, spot_height, spot_width, (uint2)(height_magic, width_magic), \
            (uint2)(height_shift, width_shift), (int2)(1, 1), stride, ~0u, ~0u   \
    }

/* Where a spot's windows begin; far away where there is no such spot. */
typedef struct atto_origin {
    atto_index place, batch;
    int y, x;
} atto_origin;

#define ATTO_FAR (-(1 << 30))

static inline atto_index atto_origin_place(const atto_spots *s, const atto_origin *at)
{
    return at->batch + (atto_index)at->y * s->stride.z + (atto_index)at->x * s->stride.w;
}

static inline atto_origin atto_origin_of(const atto_spots *s, atto_index spot)
{
    const atto_index rows = atto_divide(spot, s->width, s->magic.y, s->shift.y);
    const atto_index batch = atto_divide(rows, s->height, s->magic.x, s->shift.x);
    atto_origin at;
    at.batch = batch * s->stride.x;
    at.y = spot < s->count ? (int)(rows - batch * s->height) * s->step.x : ATTO_FAR;
    at.x = (int)(spot - rows * s->width) * s->step.y;
    at.place = atto_origin_place(s, &at);
    return at;
}

/* On to the next spot, behind the last one too. */
static inline void atto_origin_next(const atto_spots *s, atto_origin *at)
{
    at->x += s->step.y;
    at->place += (atto_index)s->step.y * s->stride.w;
    if (at->x < (int)s->width * s->step.y) return;
    at->x = 0;
    at->y += s->step.x;
    if (at->y >= (int)s->height * s->step.x) {
        at->y = 0;
        at->batch += s->stride.x;
    }
    at->place = atto_origin_place(s, at);
}

/* A spot that moves on by ATTO_TILE_K in each step of a sum, without a division. */
typedef struct atto_mover {
    atto_index n, y, x;
} atto_mover;

/* ATTO_TILE_K = (n height + y) width + x; the same for all work-items. */
static inline atto_mover atto_stride_of(const atto_spots *s)
{
    const atto_index rows = ATTO_TILE_K / s->width, n = rows / s->height;
    const atto_mover stride = { n, rows - n * s->height, ATTO_TILE_K - rows * s->width };
    return stride;
}

static inline atto_mover atto_mover_of(const atto_spots *s, atto_index spot)
{
    const atto_index rows = atto_divide(spot, s->width, s->magic.y, s->shift.y);
    const atto_index n = atto_divide(rows, s->height, s->magic.x, s->shift.x);
    const atto_mover m = { n, rows - n * s->height, spot - rows * s->width };
    return m;
}

static inline void atto_move(const atto_spots *s, atto_mover stride, atto_mover *m)
{
    const atto_index x = m->x + stride.x, over = x >= s->width ? 1 : 0;
    const atto_index y = m->y + stride.y + over, above = y >= s->height ? 1 : 0;
    m->x = over ? x - s->width : x;
    m->y = above ? y - s->height : y;
    m->n += stride.n + above;
}

static inline atto_origin atto_origin_at(const atto_spots *s, const atto_mover *m)
{
    atto_origin at;
    at.batch = m->n * s->stride.x;
    at.y = (int)m->y * s->step.x;
    at.x = (int)m->x * s->step.y;
    at.place = atto_origin_place(s, &at);
    return at;
}

/* ---- taps: place as two words, distances down and right, elements of a vector ---- */

static inline bool atto_inside(const atto_spots *s, const atto_origin *at, int4 tap)
{
    const int y = at->y + (tap.z >> 16), x = at->x + (short)(tap.z & 0xffff);
    return (uint)y < s->image_height && (uint)x < s->image_width;
}

static inline atto_index atto_tap_place(const atto_origin *at, int4 tap)
{
#if ATTO_INDEX == 64
    return at->place + ((ulong)(uint)tap.x | (ulong)(uint)tap.y << 32);
#else
    return at->place + (uint)tap.x;
#endif
}

/* Elements as they are stored, packed as in memory. */
ATTO_UNROLLED uint4 atto_join_f32(const atto_f32 *e)
{
    return (uint4)(as_uint(e[0]), as_uint(e[1]), as_uint(e[2]), as_uint(e[3]));
}

ATTO_UNROLLED uint4 atto_join_f16(const atto_f16 *e)
{
    return (uint4)((uint)e[0] | (uint)e[1] << 16, (uint)e[2] | (uint)e[3] << 16,
                   (uint)e[4] | (uint)e[5] << 16, (uint)e[6] | (uint)e[7] << 16);
}

ATTO_UNROLLED uint4 atto_join_bf16(const atto_bf16 *e)
{
    return atto_join_f16(e);
}

/* ---- results ---- */

#define ATTO_CONV_OUT_OF(group)                                                                   \
    {                                                                                             \
        c + c_at, z + z_at, residual + residual_at, bias, bias_at, c_stride, z_stride,            \
            residual_stride, outputs, (group)*outputs, spot_count, spot_height, spot_width,       \
            (uint2)(height_magic, width_magic), (uint2)(height_shift, width_shift), flags, act_a, \
            act_b                                                                                 \
    }

/* A spot's coordinates. */
typedef struct atto_place {
    atto_index n, y, x;
    bool there;
} atto_place;

static inline atto_place atto_place_of(const atto_conv_out *o, atto_index spot)
{
    atto_place p;
    const atto_index rows = atto_divide(spot, o->width, o->magic.y, o->shift.y);
    p.n = atto_divide(rows, o->height, o->magic.x, o->shift.x);
    p.y = rows - p.n * o->height;
    p.x = spot - rows * o->width;
    p.there = spot < o->spots;
    return p;
}

static inline size_t atto_place_in(const atto_place *p, atto_index channel, atto_index4 stride)
{
    return p->n * stride.x + channel * stride.y + p->y * stride.z + p->x * stride.w;
}

/* v[i] at at[i] where there[i], or as one quad from at[0]. */
ATTO_UNROLLED void atto_conv_put(const float *v, __global ATTO_C_T *p, const size_t *at,
                                 const bool *there, bool quads)
{
    if (quads) {
        ATTO_C_PUT(p, at[0], v);
    } else {
#pragma unroll
        for (uint i = 0; i < 4; i++)
            if (there[i]) p[at[i]] = ATTO_C_STORE(v[i]);
    }
}

ATTO_UNROLLED void atto_conv_add(float *v, __global const ATTO_C_T *p, const size_t *at,
                                 const bool *there, bool quads)
{
    float old[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    if (quads) {
        ATTO_C_GET(p, at[0], old);
    } else {
#pragma unroll
        for (uint i = 0; i < 4; i++)
            if (there[i]) old[i] = ATTO_C_LOAD(p[at[i]]);
    }
#pragma unroll
    for (uint i = 0; i < 4; i++) v[i] += old[i];
}

/* Where four results are. */
#define ATTO_EACH_PLACE(stride)                                \
    do {                                                       \
        _Pragma("unroll") for (uint i = 0; i < 4; i++) at[i] = \
            atto_place_in(&place[i], channel[i], stride);      \
    } while (0)

/* From the sums of four results to what is stored. */
ATTO_UNROLLED void atto_conv_store(const atto_conv_out *o, const atto_place *place,
                                   const atto_index *channel, const bool *there, float *v)
{
    const bool quads = (o->flags & ATTO_CONV_QUADS) != 0; /* the same for all work-items */
    size_t at[4];
    if (o->flags & ATTO_CONV_BIAS) {
#pragma unroll
        for (uint i = 0; i < 4; i++)
            if (there[i]) v[i] += atto_conv_bias(o, channel[i]);
    }
    if (o->flags & ATTO_CONV_Z) {
        ATTO_EACH_PLACE(o->z_stride);
        atto_conv_put(v, o->z, at, there, quads);
    }
    atto_act_quad(v, o->a, o->b);
    if (o->flags & ATTO_CONV_RESIDUAL) {
        ATTO_EACH_PLACE(o->residual_stride);
        atto_conv_add(v, o->residual, at, there, quads);
    }
    ATTO_EACH_PLACE(o->c_stride);
    if (o->flags & ATTO_CONV_ADD) atto_conv_add(v, o->c, at, there, quads);
    atto_conv_put(v, o->c, at, there, quads);
}

/* Four spots of one channel of the group. */
ATTO_UNROLLED void atto_conv_store_spots(const atto_conv_out *o, const atto_place *place,
                                         atto_index row, float *v)
{
    if (row >= o->outputs || !place[0].there) return;
    atto_index channel[4];
    bool there[4];
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        channel[i] = o->first + row;
        there[i] = place[i].there;
    }
    atto_conv_store(o, place, channel, there, v);
}

/* Four channels of one spot. */
ATTO_UNROLLED void atto_conv_store_channels(const atto_conv_out *o, const atto_place *spot,
                                            atto_index column, float *v)
{
    if (column >= o->outputs || !spot->there) return;
    atto_place place[4];
    atto_index channel[4];
    bool there[4];
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        place[i] = *spot;
        channel[i] = o->first + column + i;
        there[i] = column + i < o->outputs;
    }
    atto_conv_store(o, place, channel, there, v);
}

#endif
