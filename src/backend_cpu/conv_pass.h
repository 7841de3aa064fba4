/* SPDX-License-Identifier: MIT */
/* A walk of a convolution over an image: where its sums go, and what is fused behind them. */
#ifndef ATTO_CPU_CONV_PASS_H
#define ATTO_CPU_CONV_PASS_H

#include "backend_cpu/act.h"
#include "backend_cpu/conv_image.h"

/* One product: windows, and where its sums go. */
typedef struct pass {
    const conv *v;
    window_matrix windows;
    const atto_tensor *out;
    const struct atto_conv_args *fused; /* NULL: a gradient, added to what is there or not */
    bool add;
    int64_t channel; /* the group's first of out */
    atto__conv_walk h, w;
} pass;

/* Where a run of results goes: along width (every w.step-th), or along channels. */
typedef struct place {
    int64_t n, c, h, w;
} place;

static span run_at(const pass *p, const atto_tensor *t, const place *at, int32_t n)
{
    const int64_t step = p->v->channels_last ? 1 : p->w.step;
    return (span){ element(t, at->n, at->c, at->h, at->w), step, n, t->dtype };
}

static void add_bias(const pass *p, int64_t channel, int32_t n, float *values)
{
    const atto_tensor *b = p->fused->b;
    float buffer[ATTO_BLOCK];
    const int32_t count = p->v->channels_last ? n : 1;
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
    store_block(values, run_at(p, p->out, at, n));
}

static place place_of(const pass *p, int64_t spot, int64_t channel)
{
    const int64_t row = spot / p->w.count;
    return (place){ row / p->h.count, p->channel + channel,
                    p->h.first + row % p->h.count * p->h.step,
                    p->w.first + spot % p->w.count * p->w.step };
}

/* Hook of rows: a channel's spots. Rows of an output that follow each other are one run. */
static void finish_spots(const void *job, int64_t channel, int64_t spot, int32_t n, float *values)
{
    const pass *p = job;
    const atto_tensor *t = p->out;
    const bool joins = p->w.step == 1 && p->h.step == 1 && !p->fused && t->stride[2] == t->shape[3];
    const int64_t width = joins ? p->h.count * p->w.count : p->w.count;
    for (int32_t i = 0; i < n;) {
        const int32_t run = (int32_t)least(width - (spot + i) % width, n - i);
        const place at = place_of(p, spot + i, channel);
        finish_run(p, &at, run, values + i);
        i += run;
    }
}

/* Hook of channels: a spot's channels. */
static void finish_channels(const void *job, int64_t spot, int64_t channel, int32_t n,
                            float *values)
{
    const pass *p = job;
    const place at = place_of(p, spot, channel);
    finish_run(p, &at, n, values);
}

#endif
