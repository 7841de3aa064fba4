/* SPDX-License-Identifier: MIT */
/* A walk of a convolution over an image: where its sums go, and what is fused behind them. */
#ifndef ATTO_CPU_CONV_PASS_H
#define ATTO_CPU_CONV_PASS_H

#include "backend_cpu/act.h"
#include "backend_cpu/conv_filter.h"
#include "backend_cpu/stream.h"

/* One product: windows times a filter, and where its sums go. Sums of a row, and of its bias, are
 * those of a spot (by_spots) or those of a channel. */
typedef struct pass {
    const conv *v;
    window_matrix windows;
    bool pixels;     /* of the image behind windows */
    const image *in; /* it, and as many zeros as a pixel has channels: pixels that do not exist; */
    const float *zeros; /* NULL: windows read nothing else */
    int64_t height, width;
    filter_matrix filter;
    const atto_tensor *out;
    const struct atto_conv_args *fused; /* NULL: a gradient, added to what is there or not */
    bool add, by_spots, streams;
    bool plain;                /* nothing is done to sums but to store them */
    int64_t channel, channels; /* the group's first of out, and how many it has */
    int64_t across; /* phases that the product has side by side along width; 0: one in all */
    atto__conv_walk h, w;
} pass;

/* Where a run of results goes: along width (every w.step-th), or along channels. */
typedef struct place {
    int64_t n, c, h, w;
} place;

static span run_at(const pass *p, const atto_tensor *t, const place *at, int32_t n)
{
    const int64_t step = p->by_spots ? 1 : p->w.step * t->stride[3];
    return (span){ element(t, at->n, at->c, at->h, at->w), step, n, t->dtype };
}

static void add_bias(const pass *p, int64_t channel, int32_t n, float *values)
{
    const atto_tensor *b = p->fused->b;
    float buffer[ATTO_BLOCK];
    const int32_t count = p->by_spots ? n : 1;
    const char *memory = atto__memory(b);
    const float *bias =
        load_block((span){ (void *)(uintptr_t)(memory + (b->offset + channel) *
                                                            (int64_t)atto_dtype_size(b->dtype)),
                           1, count, b->dtype },
                   buffer);
    if (count == n) {
        for (int32_t i = 0; i < n; i++) values[i] += bias[i];
    } else {
        for (int32_t i = 0; i < n; i++) values[i] += bias[0];
    }
}

/* From n sums to what is stored. */
static void finish_run(const pass *p, const place *at, int32_t n, float *values)
{
    const struct atto_conv_args *a = p->fused;
    float buffer[ATTO_BLOCK];
    if (a) {
        if (a->b) add_bias(p, at->c, n, values);
        if (a->z) store_block(values, run_at(p, a->z, at, n));
        if (a->act.kind != ATTO_ACT_IDENTITY)
            ATTO_LEVEL_NAME(act_loops)[a->act.kind].f(values, values, n, a->act.a, a->act.b);
        if (a->residual) accumulate_block(values, run_at(p, a->residual, at, n), buffer);
    } else if (p->add) {
        accumulate_block(values, run_at(p, p->out, at, n), buffer);
    }
    const span out = run_at(p, p->out, at, n);
    put_block(values, out, p->streams && out.stride == 1);
}

/* Of a spot in a channel of the group, or of a phase's channels. */
static place place_of(const pass *p, int64_t spot, int64_t channel)
{
    const int64_t row = spot / p->w.count;
    place at = { row / p->h.count, p->channel + channel, p->h.first + row % p->h.count * p->h.step,
                 p->w.first + spot % p->w.count * p->w.step };
    if (p->across == 0) return at;
    const int64_t phase = channel / p->channels;
    at.c = p->channel + channel % p->channels;
    at.h += phase / p->across;
    at.w += phase % p->across;
    return at;
}

/* Of n outputs along width those that exist: phases have not all as many. */
static int32_t existing(const pass *p, const place *at, int32_t n)
{
    if (at->h >= p->out->shape[2] || at->w >= p->out->shape[3]) return 0;
    return (int32_t)least(n, atto__divide_up(p->out->shape[3] - at->w, p->w.step));
}

static bool rows_follow(const atto_tensor *t)
{
    return !t || (t->stride[3] == 1 && t->stride[2] == t->shape[3]);
}

/* Whether rows of outputs that follow each other are one run. */
static bool joins_rows(const pass *p)
{
    return p->w.step == 1 && p->h.step == 1 && rows_follow(p->out) &&
           (!p->fused || (rows_follow(p->fused->z) && rows_follow(p->fused->residual)));
}

/* Whether sums are only stored. */
static bool is_plain(const pass *p)
{
    const struct atto_conv_args *a = p->fused;
    return a ? !a->b && !a->z && !a->residual && a->act.kind == ATTO_ACT_IDENTITY : !p->add;
}

/* Runs of neighbouring channels at the same spots. */
static void finish_runs(const pass *p, place at, int32_t rows, int32_t n, float *values,
                        int64_t stride)
{
    span out = run_at(p, p->out, &at, n);
    if (!p->plain || out.dtype != ATTO_F32) {
        for (int32_t i = 0; i < rows; i++, at.c++) finish_run(p, &at, n, values + i * stride);
        return;
    }
    float *to = out.first;
    for (int32_t i = 0; i < rows; i++, to += p->out->stride[1]) {
        out.first = to;
        put_block(values + i * stride, out, p->streams && out.stride == 1);
    }
}

/* Hook of sums by channels: spots of some of them. */
static void finish_spots(const void *job, int64_t channel, int32_t rows, int64_t spot, int32_t n,
                         float *values, int64_t stride)
{
    const pass *p = job;
    const int64_t width = joins_rows(p) ? p->h.count * p->w.count : p->w.count;
    for (int32_t i = 0; i < n;) {
        const int32_t run = (int32_t)least(width - (spot + i) % width, n - i);
        if (p->across == 0)
            finish_runs(p, place_of(p, spot + i, channel), rows, run, values + i, stride);
        for (int32_t row = 0; p->across > 0 && row < rows; row++) {
            const place at = place_of(p, spot + i, channel + row);
            const int32_t count = existing(p, &at, run);
            if (count > 0) finish_run(p, &at, count, values + row * stride + i);
        }
        i += run;
    }
}

/* Hook of sums by spots: channels of some of them. */
static void finish_channels(const void *job, int64_t spot, int32_t rows, int64_t channel, int32_t n,
                            float *values, int64_t stride)
{
    const pass *p = job;
    for (int32_t i = 0; i < n;) {
        const int64_t left = p->channels - (channel + i) % p->channels;
        const int32_t run = (int32_t)least(left, n - i);
        for (int32_t row = 0; row < rows; row++) {
            const place at = place_of(p, spot + row, channel + i);
            if (p->across == 0 || existing(p, &at, 1) > 0)
                finish_run(p, &at, run, values + row * stride + i);
        }
        i += run;
    }
}

#endif
