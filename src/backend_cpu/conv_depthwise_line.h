/* SPDX-License-Identifier: MIT */
/* Depthwise outputs of a row, some of them in registers at a time, and the weights that they
 * take. */
#ifndef ATTO_CPU_CONV_DEPTHWISE_LINE_H
#define ATTO_CPU_CONV_DEPTHWISE_LINE_H

#include "backend_cpu/conv_depthwise_tile.h"

/* ---- weights ---- */

typedef struct deep_weights {
    const conv *v;
    float *to; /* [blocks][taps][VEC_LANES] */
} deep_weights;

/* Whether a channel's taps are one run in memory. */
static bool taps_are_run(const atto_tensor *w)
{
    return w->stride[3] == 1 && (w->shape[2] == 1 || w->stride[2] == w->shape[3]);
}

static void load_weights(const void *job, int64_t begin, int64_t end)
{
    const deep_weights *j = job;
    const atto_tensor *w = j->v->a->w;
    const int64_t kw = w->shape[3], taps = w->shape[2] * kw;
    const bool run = taps_are_run(w) && taps < INT32_MAX;
    for (int64_t b = begin; b < end; b++) {
        const int64_t c = b * VEC_LANES;
        float *to = j->to + b * taps * VEC_LANES;
        deep_planes planes = { element(w, c, 0, 0, 0), w->stride[0], 0,
                               (int32_t)least(VEC_LANES, j->v->c.groups - c), w->dtype };
        if (run) turn_in(&planes, (int32_t)taps, (int32_t)taps, to, 0);
        for (int64_t t = 0; !run && t < taps; t++) {
            planes.first = element(w, c, 0, t / kw, t % kw);
            turn_in(&planes, 1, 1, to + t * VEC_LANES, 0);
        }
    }
}

/* ---- lines ---- */

/* Outputs of a row that the same taps meet. */
typedef struct deep_line {
    const float *from;
    int64_t down, pixel; /* floats from a row of taps to the next, from a pixel to the next */
    const float *w;
    int64_t w_down, w_right;
    int64_t rows, taps, in_step, at_step; /* taps of a row */
    float *to;
    int64_t to_step, n;
    bool past_cache; /* results go to memory only */
} deep_line;

ATTO_INLINE void put_vec(const deep_line *l, int64_t x, vec v)
{
    if (l->past_cache)
        vec_stream(l->to + x * l->to_step, v);
    else
        vec_store(l->to + x * l->to_step, v);
}

/* Outputs that are added up side by side. */
#define DEEP_MOST (VEC_LANES == 16 ? 8 : 4)

/* `count` outputs, of which x is the first. Each loads the pixels that the one before has not. */
ATTO_INLINE void deep_outputs(const deep_line *l, int64_t x, int32_t count, int32_t taps,
                              int32_t step)
{
    const float *first = l->from + x * step * l->pixel, *w = l->w;
    const int64_t pixel = l->pixel;
    vec sum[8];
    VEC_UNROLL
    for (int32_t i = 0; i < count; i++) sum[i] = (vec){ 0 };
    for (int64_t row = 0; row < l->rows; row++, first += l->down, w += l->w_down) {
        const float *from = first;
        vec weight[8], in[24];
        VEC_UNROLL
        for (int32_t k = 0; k < taps; k++) weight[k] = vec_load(w + k * l->w_right);
        VEC_UNROLL
        for (int32_t k = 0; k < taps - step; k++, from += pixel) in[k] = vec_load(from);
        VEC_UNROLL
        for (int32_t i = 0; i < count; i++) {
            VEC_UNROLL
            for (int32_t k = 0; k < step; k++, from += pixel)
                in[i * step + taps - step + k] = vec_load(from);
            VEC_UNROLL
            for (int32_t k = 0; k < taps; k++) sum[i] += weight[k] * in[i * step + k];
        }
    }
    VEC_UNROLL
    for (int32_t i = 0; i < count; i++) put_vec(l, x + i, sum[i]);
}

/* The same for any taps. */
ATTO_INLINE void deep_outputs_any(const deep_line *l, int64_t x, int32_t count)
{
    const int64_t step = l->in_step * l->pixel;
    vec sum[DEEP_MOST];
    VEC_UNROLL
    for (int32_t i = 0; i < count; i++) sum[i] = (vec){ 0 };
    for (int64_t row = 0; row < l->rows; row++)
        for (int64_t k = 0; k < l->taps; k++) {
            const float *from = l->from + row * l->down + k * l->at_step * l->pixel + x * step;
            const vec weight = vec_load(l->w + row * l->w_down + k * l->w_right);
            VEC_UNROLL
            for (int32_t i = 0; i < count; i++) sum[i] += weight * vec_load(from + i * step);
        }
    VEC_UNROLL
    for (int32_t i = 0; i < count; i++) put_vec(l, x + i, sum[i]);
}

/* Some of the last outputs are computed twice. */
ATTO_INLINE void deep_line_by(const deep_line *l, int32_t count, int32_t taps, int32_t step)
{
    int64_t x = 0;
    for (; x + count <= l->n; x += count) deep_outputs(l, x, count, taps, step);
    if (l->n - x > 4) {
        deep_outputs(l, l->n - count, count, taps, step);
    } else if (l->n > x) {
        deep_outputs(l, l->n - (count < 4 ? count : 4), (count < 4 ? count : 4), taps, step);
    }
}

/* Two outputs at least. Images of networks often are 7 wide, or a multiple. */
ATTO_INLINE void deep_line_as(const deep_line *l, int32_t taps, int32_t step)
{
    if (DEEP_MOST > 7 && l->n % 7 == 0 && l->n % DEEP_MOST != 0) {
        deep_line_by(l, 7, taps, step);
    } else if (l->n >= DEEP_MOST) {
        deep_line_by(l, DEEP_MOST, taps, step);
    } else if (l->n >= 4) {
        deep_line_by(l, 4, taps, step);
    } else {
        deep_line_by(l, 2, taps, step);
    }
}

static void deep_line_any(const deep_line *l)
{
    int64_t x = 0;
    for (; x + DEEP_MOST <= l->n; x += DEEP_MOST) deep_outputs_any(l, x, DEEP_MOST);
    for (; x < l->n; x++) deep_outputs_any(l, x, 1);
}

static void run_line(const deep_line *l)
{
    const int64_t step = l->at_step == 1 || l->taps == 1 ? l->in_step : 0;
    switch (l->n > 1 && l->taps < 8 ? 8 * step + l->taps : 0) {
    case 8 + 1:
        deep_line_as(l, 1, 1);
        break;
    case 8 + 2:
        deep_line_as(l, 2, 1);
        break;
    case 8 + 3:
        deep_line_as(l, 3, 1);
        break;
    case 8 + 4:
        deep_line_as(l, 4, 1);
        break;
    case 8 + 5:
        deep_line_as(l, 5, 1);
        break;
    case 8 + 7:
        deep_line_as(l, 7, 1);
        break;
    case 16 + 3:
        deep_line_as(l, 3, 2);
        break;
    case 16 + 5:
        deep_line_as(l, 5, 2);
        break;
    case 16 + 7:
        deep_line_as(l, 7, 2);
        break;
    default:
        deep_line_any(l);
    }
}

#endif
