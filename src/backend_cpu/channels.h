/* SPDX-License-Identifier: MIT */
/* What the norms of channels share on the CPU: blocks of dense tensors, moments, parameters. */
#ifndef ATTO_CPU_CHANNELS_H
#define ATTO_CPU_CHANNELS_H

#include "backend_cpu/row_norm.h"

/* Elements at..at+n of a dense tensor. */
static inline span span_at(const atto_tensor *t, int64_t at, int32_t n)
{
    char *memory = atto__memory(t);
    return (span){ memory + (t->offset + at) * (int64_t)atto_dtype_size(t->dtype), 1, n, t->dtype };
}

static inline int32_t block_length(int64_t left)
{
    return (int32_t)(left < ATTO_BLOCK ? left : ATTO_BLOCK);
}

/* ---- moments ---- */

/* Of n values: their mean, and the squares of their distances from it. Source: Chan, Golub, LeVeque 1979. */
typedef struct moments {
    double n, mean, squares;
} moments;

static inline void merge(moments *m, double n, double mean, double squares)
{
    if (n == 0.0) return;
    const double total = m->n + n, apart = mean - m->mean;
    m->mean += apart * (n / total);
    m->squares += squares + apart * apart * (m->n * (n / total));
    m->n = total;
}

/* The elements at..at+size of a channel. */
static inline void merge_run(moments *m, const atto_tensor *x, int64_t at, int64_t size)
{
    for (int64_t first = 0; first < size; first += ATTO_BLOCK) {
        const span s = span_at(x, at + first, block_length(size - first));
        const row_of block = { s.first, s.dtype };
        const double mean = sum_moments(block, s.n, 0.0f).sum / (double)s.n;
        const moment_sums about = sum_moments(block, s.n, (float)mean);
        const double rest = about.sum / (double)s.n;
        merge(m, (double)s.n, (double)(float)mean + rest, about.squares - about.sum * rest);
    }
}

/* One row more: share is 1 / rows with it. */
static inline void welford(const float *x, int32_t n, float share, float *mean, float *squares)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) {
        const float apart = x[i] - mean[i];
        mean[i] += apart * share;
        squares[i] += apart * (x[i] - mean[i]);
    }
}

/* Mean and squares of each channel over rows of them, the first of which begins at element at. */
static inline void moments_of_rows(const atto_tensor *x, int64_t at, int64_t rows, int64_t channels,
                                   float *mean, float *squares)
{
    for (int64_t c = 0; c < channels; c++) mean[c] = squares[c] = 0.0f;
    for (int64_t row = 0; row < rows; row++) {
        const float share = 1.0f / (float)(row + 1);
        for (int64_t first = 0; first < channels; first += ATTO_BLOCK) {
            float buffer[ATTO_BLOCK];
            const span s = span_at(x, at + row * channels + first, block_length(channels - first));
            welford(load_block(s, buffer), s.n, share, mean + first, squares + first);
        }
    }
}

/* ---- parameters ---- */

static inline float *floats_of(const atto_tensor *t)
{
    return t ? (float *)atto__memory(t) + t->offset : NULL;
}

/* [n] as floats: in place, converted, or constant. */
static inline const float *parameter_of(const atto_tensor *t, float standard, int64_t n,
                                        float *scratch)
{
    if (n == 0) return scratch;
    if (t && t->dtype == ATTO_F32) return floats_of(t);
    for (int64_t i = 0; !t && i < n; i++) scratch[i] = standard;
    for (int64_t first = 0; t && first < n; first += ATTO_BLOCK)
        load_block(span_at(t, first, block_length(n - first)), scratch + first);
    return scratch;
}

/* t = sums, or t += sums; NULL: not wanted. */
static inline void put_parameter(const atto_tensor *t, const float *sums, int64_t n, bool add)
{
    for (int64_t first = 0; t && first < n; first += ATTO_BLOCK) {
        float v[ATTO_BLOCK], old[ATTO_BLOCK];
        const span to = span_at(t, first, block_length(n - first));
        memcpy(v, sums + first, (size_t)to.n * sizeof *v);
        if (add) accumulate_block(v, to, old);
        store_block(v, to);
    }
}

#endif
