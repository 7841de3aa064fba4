/* SPDX-License-Identifier: MIT */
/* Sums and maxima over a block of floats, in an order that depends on its length alone.
 *
 * Sixteen running results side by side make vectors of every level without -ffast-math. */
#ifndef ATTO_ROWS_H
#define ATTO_ROWS_H

#include "backend_cpu/loops.h"

#define ATTO_LANES 16

/* The largest of first and the block. NaN may get lost. */
static inline float block_max(float first, const float *v, int32_t n)
{
    float top[ATTO_LANES];
    for (int32_t k = 0; k < ATTO_LANES; k++) top[k] = first;
    int32_t i = 0;
    for (; i + ATTO_LANES <= n; i += ATTO_LANES) {
        ATTO_SIMD
        for (int32_t k = 0; k < ATTO_LANES; k++) top[k] = v[i + k] > top[k] ? v[i + k] : top[k];
    }
    for (; i < n; i++) top[0] = v[i] > top[0] ? v[i] : top[0];
    for (int32_t half = ATTO_LANES / 2; half > 0; half /= 2)
        for (int32_t k = 0; k < half; k++) top[k] = top[k + half] > top[k] ? top[k + half] : top[k];
    return top[0];
}

static inline float block_sum(const float *v, int32_t n)
{
    float sum[ATTO_LANES] = { 0.0f };
    int32_t i = 0;
    for (; i + ATTO_LANES <= n; i += ATTO_LANES) {
        ATTO_SIMD
        for (int32_t k = 0; k < ATTO_LANES; k++) sum[k] += v[i + k];
    }
    for (; i < n; i++) sum[i % ATTO_LANES] += v[i];
    for (int32_t half = ATTO_LANES / 2; half > 0; half /= 2)
        for (int32_t k = 0; k < half; k++) sum[k] += sum[k + half];
    return sum[0];
}

/* The sum of products, in the same order. */
static inline float block_dot(const float *a, const float *b, int32_t n)
{
    float sum[ATTO_LANES] = { 0.0f };
    int32_t i = 0;
    for (; i + ATTO_LANES <= n; i += ATTO_LANES) {
        ATTO_SIMD
        for (int32_t k = 0; k < ATTO_LANES; k++) sum[k] += a[i + k] * b[i + k];
    }
    for (; i < n; i++) sum[i % ATTO_LANES] += a[i] * b[i];
    for (int32_t half = ATTO_LANES / 2; half > 0; half /= 2)
        for (int32_t k = 0; k < half; k++) sum[k] += sum[k + half];
    return sum[0];
}

typedef struct sum_job {
    const float *v;
    int64_t n;
    float *partial;
} sum_job;

static inline void sum_blocks(const void *job_, int64_t begin, int64_t end)
{
    const sum_job *job = job_;
    for (int64_t b = begin; b < end; b++) {
        const int64_t left = job->n - b * ATTO_BLOCK;
        job->partial[b] =
            block_sum(job->v + b * ATTO_BLOCK, (int32_t)(left < ATTO_BLOCK ? left : ATTO_BLOCK));
    }
}

/* The sum of n floats, in blocks that threads share out. partial has room for one float a block. */
static inline float sum_all(const float *v, int64_t n, float *partial, int32_t threads)
{
    const int64_t blocks = (n + ATTO_BLOCK - 1) / ATTO_BLOCK;
    const sum_job job = { v, n, partial };
    atto__parallel_for(blocks < 32 ? 1 : threads, blocks, sum_blocks, &job);
    double sum = 0.0;
    for (int64_t b = 0; b < blocks; b++) sum += (double)partial[b];
    return (float)sum;
}

#endif
