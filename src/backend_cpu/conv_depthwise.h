/* SPDX-License-Identifier: MIT */
/* Convolutions with a group for each channel, one input and one output: no product has enough to do,
 * so vectors go along width, or along channels, and taps are added up in registers.
 *
 *   rows       out[y][x]    = sum over taps of w[tap] plane[place(tap) + y row + x]
 *   channels   out[x][c]    = sum over taps of w[tap][c] image[place(tap) + x pixel + c]
 *   dw         rows: sums over rows of the small image, image by image; channels: over slabs of rows,
 *              and then of slabs in order
 */
#ifndef ATTO_CPU_CONV_DEPTHWISE_H
#define ATTO_CPU_CONV_DEPTHWISE_H

#include "backend_cpu/conv_pass.h"

static bool is_depthwise(const conv *v)
{
    return v->c.groups > 1 && v->c.small_channels == 1 && v->c.big_channels == 1;
}

typedef struct deep_job {
    const pass *p;
    const image *in;
    window_taps taps;     /* of the first channel */
    const float *weights; /* rows: [channels, taps]; channels: [taps, channels] */
} deep_job;

/* ---- weights ---- */

static atto_status deep_weights(const pass *p, float **out)
{
    const conv *v = p->v;
    const atto_tensor *w = v->a->w;
    const int64_t channels = v->c.groups, taps = p->h.taps * p->w.taps;
    ATTO_TRY(scratch_floats(v->dev, channels * taps, out));
    for (int64_t c = 0; c < channels; c++)
        for (int64_t i = 0; i < p->h.taps; i++)
            for (int64_t j = 0; j < p->w.taps; j++) {
                const int64_t tap = i * p->w.taps + j;
                const void *at =
                    element(w, c, 0, p->h.tap + i * p->h.tap_step, p->w.tap + j * p->w.tap_step);
                (*out)[v->channels_last ? tap * channels + c : c * taps + tap] =
                    vec_one_as(at, 0, w->dtype);
            }
    return ATTO_OK;
}

/* ---- small and big, rows ---- */

#define DEEP_VECS 4 /* of outputs that are added up at a time */

/* DEEP_VECS vectors of outputs; memory behind them may be read. */
ATTO_INLINE void deep_block(const float *from, const int64_t *start, const float *w, int64_t taps,
                            float *out)
{
    vec sum[DEEP_VECS];
    VEC_UNROLL
    for (int32_t i = 0; i < DEEP_VECS; i++) sum[i] = (vec){ 0 };
    for (int64_t t = 0; t < taps; t++) {
        const float *at = from + start[t];
        const vec weight = vec_all(w[t]);
        VEC_UNROLL
        for (int32_t i = 0; i < DEEP_VECS; i++) sum[i] += weight * vec_load(at + i * VEC_LANES);
    }
    VEC_UNROLL
    for (int32_t i = 0; i < DEEP_VECS; i++) vec_store(out + i * VEC_LANES, sum[i]);
}

/* The same operations in the same order for one output. */
static float deep_one(const float *from, const int64_t *start, const float *w, int64_t taps)
{
    vec sum = { 0 };
    for (int64_t t = 0; t < taps; t++) sum += vec_all(w[t]) * vec_all(from[start[t]]);
    return sum[0];
}

#define DEEP_RUN (ATTO_BLOCK / (DEEP_VECS * VEC_LANES) * (DEEP_VECS * VEC_LANES))

/* n <= DEEP_RUN outputs of a row. furthest: the last tap's place. */
static void deep_row(const deep_job *j, const float *from, const float *w, int64_t furthest,
                     int32_t n, float *out)
{
    const int64_t room = j->in->limit - from - furthest;
    int32_t x = 0;
    for (; x < n && x + DEEP_VECS * VEC_LANES <= room; x += DEEP_VECS * VEC_LANES)
        deep_block(from + x, j->taps.start, w, j->taps.count, out + x);
    for (; x < n; x++) out[x] = deep_one(from + x, j->taps.start, w, j->taps.count);
}

static void deep_rows(const void *job, int64_t begin, int64_t end)
{
    const deep_job *j = job;
    const pass *p = j->p;
    const int64_t channels = p->v->c.groups, taps = j->taps.count;
    int64_t furthest = 0;
    for (int64_t t = 0; t < taps; t++)
        if (j->taps.start[t] > furthest) furthest = j->taps.start[t];
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t y = unit % p->h.count, c = unit / p->h.count % channels;
        const int64_t n = unit / p->h.count / channels;
        const float *row = j->in->data + n * j->in->batch + c * j->in->channel + y * j->in->row;
        for (int64_t x = 0; x < p->w.count; x += DEEP_RUN) {
            float out[ATTO_BLOCK];
            const int32_t count = (int32_t)least(DEEP_RUN, p->w.count - x);
            deep_row(j, row + x, j->weights + c * taps, furthest, count, out);
            const place at = { n, c, p->h.first + y * p->h.step, p->w.first + x * p->w.step };
            finish_run(p, &at, count, out);
        }
    }
}

/* ---- small and big, channels ---- */

/* n channels of one spot, whose first is at `from`; step: from one tap's weights to the next one's. */
static void deep_spot(const deep_job *j, const float *from, const float *w, int64_t step, int32_t n,
                      float *out)
{
    int32_t c = 0;
    for (; c + VEC_LANES <= n; c += VEC_LANES) {
        vec sum = { 0 };
        for (int64_t t = 0; t < j->taps.count; t++)
            sum += vec_load(w + t * step + c) * vec_load(from + j->taps.start[t] + c);
        vec_store(out + c, sum);
    }
    for (; c < n; c++) {
        vec sum = { 0 };
        for (int64_t t = 0; t < j->taps.count; t++)
            sum += vec_all(w[t * step + c]) * vec_all(from[j->taps.start[t] + c]);
        out[c] = sum[0];
    }
}

static void deep_pixels(const void *job, int64_t begin, int64_t end)
{
    const deep_job *j = job;
    const pass *p = j->p;
    const int64_t channels = p->v->c.groups;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t y = unit % p->h.count, n = unit / p->h.count;
        const float *row = j->in->data + n * j->in->batch + y * p->h.in_step * j->in->row;
        for (int64_t x = 0; x < p->w.count; x++) {
            const float *spot = row + x * p->w.in_step * j->in->pixel;
            for (int64_t c = 0; c < channels; c += ATTO_BLOCK) {
                float out[ATTO_BLOCK];
                const int32_t count = (int32_t)least(ATTO_BLOCK, channels - c);
                deep_spot(j, spot + c, j->weights + c, channels, count, out);
                const place at = { n, c, p->h.first + y * p->h.step, p->w.first + x * p->w.step };
                finish_run(p, &at, count, out);
            }
        }
    }
}

/* A walk of all channels. */
static atto_status multiply_deep(pass *p, const image *in)
{
    const conv *v = p->v;
    const int32_t scratch = v->dev->scratch_count;
    float *weights;
    deep_job j = { .p = p, .in = in };
    p->channel = 0;
    ATTO_TRY(list_taps(v, in, &p->h, &p->w, 1, &j.taps));
    ATTO_TRY(deep_weights(p, &weights));
    j.weights = weights;
    const int64_t rows = v->c.batch * p->h.count, outputs = rows * p->w.count * v->c.groups;
    if (v->channels_last) {
        atto__parallel_for(threads_for(v, outputs), rows, deep_pixels, &j);
    } else {
        atto__parallel_for(threads_for(v, outputs), rows * v->c.groups, deep_rows, &j);
    }
    atto__scratch_release(v->dev, scratch);
    return ATTO_OK;
}

/* ---- dw ---- */

typedef struct deep_filter {
    const conv *v;
    const image *in;
    const atto_tensor *small;
    const atto__conv_walk *h, *w;
    window_taps taps;
    float *partial; /* rows: [channels, taps]; channels: [slabs, taps, channels] */
    int64_t slabs;  /* of SLAB_ROWS rows of an image */
} deep_filter;

#define SLAB_ROWS 8

/* A row of the small image as floats. */
static const float *small_row(const deep_filter *d, int64_t n, int64_t c, int64_t y, int64_t x,
                              int32_t count, float *buffer)
{
    return load_block((span){ element(d->small, n, c, y, x), 1, count, d->small->dtype }, buffer);
}

/* All taps of one channel. */
static void deep_filter_rows(const void *job, int64_t begin, int64_t end)
{
    const deep_filter *d = job;
    float buffer[ATTO_BLOCK];
    for (int64_t c = begin; c < end; c++) {
        float *sums = d->partial + c * d->taps.count;
        memset(sums, 0, (size_t)d->taps.count * sizeof *sums);
        for (int64_t row = 0; row < d->v->c.batch * d->h->count; row++) {
            const int64_t n = row / d->h->count, y = row % d->h->count;
            const float *big = d->in->data + n * d->in->batch + c * d->in->channel + y * d->in->row;
            for (int64_t x = 0; x < d->w->count; x += ATTO_BLOCK) {
                const int32_t count = (int32_t)least(ATTO_BLOCK, d->w->count - x);
                const float *dz = small_row(d, n, c, y, x, count, buffer);
                for (int64_t t = 0; t < d->taps.count; t++)
                    sums[t] += block_dot(dz, big + x + d->taps.start[t], count);
            }
        }
    }
}

/* sums[c] += dz[c] x[c] */
static void add_products(const float *dz, const float *x, int32_t n, float *sums)
{
    ATTO_SIMD
    for (int32_t c = 0; c < n; c++) sums[c] += dz[c] * x[c];
}

/* All taps and channels of one slab. */
static void deep_filter_slabs(const void *job, int64_t begin, int64_t end)
{
    const deep_filter *d = job;
    const int64_t channels = d->v->c.groups, taps = d->taps.count;
    float buffer[ATTO_BLOCK];
    for (int64_t slab = begin; slab < end; slab++) {
        float *sums = d->partial + slab * taps * channels;
        const int64_t n = slab / d->slabs, first = slab % d->slabs * SLAB_ROWS;
        memset(sums, 0, (size_t)(taps * channels) * sizeof *sums);
        for (int64_t y = first; y < least(first + SLAB_ROWS, d->h->count); y++)
            for (int64_t x = 0; x < d->w->count; x++) {
                const float *spot = d->in->data + n * d->in->batch +
                                    y * d->h->in_step * d->in->row +
                                    x * d->w->in_step * d->in->pixel;
                for (int64_t c = 0; c < channels; c += ATTO_BLOCK) {
                    const int32_t count = (int32_t)least(ATTO_BLOCK, channels - c);
                    const float *dz = small_row(d, n, c, y, x, count, buffer);
                    for (int64_t t = 0; t < taps; t++)
                        add_products(dz, spot + c + d->taps.start[t], count,
                                     sums + t * channels + c);
                }
            }
    }
}

/* Sums of slabs, and dw. */
static void store_deep_filter(const deep_filter *d)
{
    const atto_tensor *dw = d->v->a->dw;
    const int64_t channels = d->v->c.groups, taps = d->taps.count;
    const bool last = d->v->channels_last;
    const int64_t slabs = last ? d->v->c.batch * d->slabs : 1;
    for (int64_t c = 0; c < channels; c++)
        for (int64_t t = 0; t < taps; t++) {
            float sum = 0.0f, buffer[1];
            for (int64_t s = 0; s < slabs; s++)
                sum += d->partial[last ? (s * taps + t) * channels + c : c * taps + t];
            const span to = { element(dw, c, 0, t / d->w->taps, t % d->w->taps), 1, 1, dw->dtype };
            if (d->v->a->add_dw) accumulate_block(&sum, to, buffer);
            store_block(&sum, to);
        }
}

static atto_status multiply_deep_filter(const conv *v, const image *in, const atto_tensor *small,
                                        const atto__conv_walk *h, const atto__conv_walk *w)
{
    deep_filter d = { .v = v, .in = in, .small = small, .h = h, .w = w };
    d.slabs = atto__divide_up(h->count, SLAB_ROWS);
    ATTO_TRY(list_taps(v, in, h, w, 1, &d.taps));
    const int64_t parts = v->channels_last ? v->c.batch * d.slabs : 1;
    ATTO_TRY(scratch_floats(v->dev, parts * d.taps.count * v->c.groups, &d.partial));
    const int64_t work = atto_tensor_numel(small) * d.taps.count;
    if (v->channels_last) {
        atto__parallel_for(threads_for(v, work), parts, deep_filter_slabs, &d);
    } else {
        atto__parallel_for(threads_for(v, work), v->c.groups, deep_filter_rows, &d);
    }
    store_deep_filter(&d);
    return ATTO_OK;
}

#endif
