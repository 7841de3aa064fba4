/* SPDX-License-Identifier: MIT */
/* The filter of one group as the matrix [outputs, taps] that a walk multiplies: where it lies, or a
 * copy with the rows of all phases. */
#ifndef ATTO_CPU_CONV_FILTER_H
#define ATTO_CPU_CONV_FILTER_H

#include "backend_cpu/conv_image.h"
#include "backend_cpu/pack.h"

/* Element [output, tap] lies at data[output * step + places[tap]]. */
typedef struct filter_matrix {
    const void *data; /* the first weight */
    int64_t limit;    /* from data on so many elements may be read */
    atto_dtype dtype;
    int64_t step;
    const int64_t *places;
} filter_matrix;

/* Taps that are packed for some panels before the next ones: the outputs of a tap are neighbours, or
 * nearly so. */
#define FILTER_TAPS 16

/* A panel of n outputs from first on, over depth taps. Whole vectors of neighbours, in ascending
 * order: what spills over is overwritten by the next taps'; the last ones, behind which there are
 * too few, are cut. */
ATTO_INLINE void pack_filter_as(const filter_matrix *f, atto_dtype dtype, int64_t first,
                                const int64_t *places, int32_t n, int32_t depth, int32_t width,
                                float *to)
{
    const bool neighbours = f->step == 1 && n == width && dtype == ATTO_F32;
    const int32_t whole = (int32_t)round_up(width, VEC_LANES);
    for (int32_t i = 0; i < depth; i++, to += width) {
        const int64_t at = first * f->step + places[i];
        if (neighbours && (depth - i) * width >= whole && at + whole <= f->limit) {
            VEC_UNROLL
            for (int32_t j = 0; j < width; j += VEC_LANES)
                vec_store(to + j, vec_load((const float *)f->data + at + j));
        } else {
            for (int32_t j = 0; j < n; j++) to[j] = vec_one_as(f->data, at + j * f->step, dtype);
            for (int32_t j = n; j < width; j++) to[j] = 0.0f;
        }
    }
}

/* Asks for the outputs of a tap. */
ATTO_INLINE void fetch_filter(const filter_matrix *f, int64_t first, int64_t place, int32_t n)
{
    const int64_t line = f->dtype == ATTO_F32 ? 16 : 32, end = (first + n) * f->step + place;
    for (int64_t at = first * f->step + place; at<end; at += line> f->step ? line : f->step)
        vec_prefetch_as(f->data, at, f->dtype);
}

/* Panels of n outputs from first on, over depth taps from k on. */
ATTO_INLINE void pack_filter(const filter_matrix *f, int64_t first, int64_t k, int32_t n,
                             int32_t depth, int32_t width, float *to)
{
    for (int32_t tap = 0; tap < depth; tap += FILTER_TAPS) {
        const int32_t taps = (int32_t)least(FILTER_TAPS, depth - tap);
        const int64_t *places = f->places + k + tap;
        if (tap + FILTER_TAPS < depth) fetch_filter(f, first, places[FILTER_TAPS], n);
        for (int32_t at = 0; at < n; at += width) {
            const int32_t rows = (int32_t)least(width, n - at);
            float *panel = to + (int64_t)at * depth + (int64_t)tap * width;
            switch (f->dtype) {
            case ATTO_F16:
                pack_filter_as(f, ATTO_F16, first + at, places, rows, taps, width, panel);
                break;
            case ATTO_BF16:
                pack_filter_as(f, ATTO_BF16, first + at, places, rows, taps, width, panel);
                break;
            default:
                pack_filter_as(f, ATTO_F32, first + at, places, rows, taps, width, panel);
                break;
            }
        }
    }
}

/* Whether dimensions, the innermost first, follow each other without gaps. */
static bool are_one_run(const atto_tensor *t, const int32_t *dims, int32_t count)
{
    int64_t expected = 1;
    for (int32_t i = 0; i < count; i++) {
        if (t->shape[dims[i]] != 1 && t->stride[dims[i]] != expected) return false;
        expected *= t->shape[dims[i]];
    }
    return true;
}

/* Whether the taps of an output lie in the order in which windows have them. */
static bool has_runs_of_taps(const atto_tensor *w, bool pixels)
{
    static const int32_t rows[] = { 3, 2, 1 }, channels[] = { 1, 3, 2 };
    return are_one_run(w, pixels ? channels : rows, 3);
}

/* Taps of a walk from inputs, of which one is `input` elements from the next, in the order of
 * windows. */
static atto_status list_weights(const conv *v, const atto__conv_walk *h, const atto__conv_walk *w,
                                bool pixels, int64_t inputs, int64_t input, const int64_t **out)
{
    const int64_t down = v->a->w->stride[2] * h->tap_step, right = v->a->w->stride[3] * w->tap_step;
    const int64_t taps = h->taps * w->taps;
    int64_t *places;
    ATTO_TRY(scratch_places(v->dev, inputs * taps, &places));
    for (int64_t c = 0; c < inputs; c++)
        for (int64_t i = 0; i < h->taps; i++)
            for (int64_t j = 0; j < w->taps; j++)
                places[pixels ? (i * w->taps + j) * inputs + c : (c * h->taps + i) * w->taps + j] =
                    c * input + i * down + j * right;
    *out = places;
    return ATTO_OK;
}

static atto_status filter_of(const conv *v, const atto__conv_walk *h, const atto__conv_walk *w,
                             bool to_big, bool pixels, int64_t group, filter_matrix *out)
{
    const atto_tensor *t = v->a->w;
    const int64_t first = group * v->c.small_channels;
    const int64_t inputs = to_big ? v->c.small_channels : v->c.big_channels;
    const char *begin = element(t, first, 0, h->tap, w->tap);
    out->data = begin;
    out->limit = (end_of(t) - begin) / (int64_t)atto_dtype_size(t->dtype);
    out->dtype = t->dtype;
    out->step = t->stride[to_big ? 1 : 0];
    return list_weights(v, h, w, pixels, inputs, t->stride[to_big ? 0 : 1], &out->places);
}

/* ---- all phases ---- */

/* Input and weight of one output of a phase, at the taps of merged walks. */
static void copy_kernel(const conv *v, const atto__conv_walk *h, const atto__conv_walk *w,
                        int64_t before_h, int64_t before_w, const char *from, int64_t across,
                        int64_t step, float *to)
{
    const atto_tensor *t = v->a->w;
    const int64_t bytes = (int64_t)atto_dtype_size(t->dtype);
    for (int64_t i = 0; i < h->taps; i++)
        for (int64_t j = 0; j < w->taps; j++) {
            const int64_t row = h->tap + i * h->tap_step, column = w->tap + j * w->tap_step;
            const char *at = from + (row * t->stride[2] + column * t->stride[3]) * bytes;
            to[((before_h + i) * across + before_w + j) * step] = vec_one_as(at, 0, t->dtype);
        }
}

/* The rows [phase, big channel] for the walks of all phases: weights where a phase has a tap, zeros
 * elsewhere. */
static atto_status merged_filter(const conv *v, bool pixels, int64_t group, filter_matrix *out)
{
    const atto__conv_walk all_h = atto__conv_walk_phases(&v->c.h);
    const atto__conv_walk all_w = atto__conv_walk_phases(&v->c.w);
    const int64_t inputs = v->c.small_channels, taps = all_h.taps * all_w.taps;
    const int64_t across = atto__conv_phases(&v->c.w), channels = v->c.big_channels;
    const int64_t rows = atto__conv_phases(&v->c.h) * across * channels, floats = inputs * taps;
    float *to;
    ATTO_TRY(scratch_floats(v->dev, rows * floats, &to));
    memset(to, 0, (size_t)(rows * floats) * sizeof *to);
    for (int64_t row = 0; row < rows; row++) {
        const int64_t phase = row / channels;
        const atto__conv_walk h = atto__conv_walk_big(&v->c.h, phase / across);
        const atto__conv_walk w = atto__conv_walk_big(&v->c.w, phase % across);
        for (int64_t input = 0; input < inputs; input++)
            copy_kernel(v, &h, &w, h.at - all_h.at, w.at - all_w.at,
                        element(v->a->w, group * inputs + input, row % channels, 0, 0), all_w.taps,
                        pixels ? inputs : 1, to + row * floats + input * (pixels ? 1 : taps));
    }
    *out = (filter_matrix){ .data = to, .limit = rows * floats, .dtype = ATTO_F32, .step = floats };
    return ATTO_OK;
}

#endif
