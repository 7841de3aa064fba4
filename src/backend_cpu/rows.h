/* SPDX-License-Identifier: MIT */
/* Sums and maxima over a block of floats, in an order that depends on its length alone.
 *
 * Four running vectors side by side: one would wait for itself, each addition for the one
 * before. */
#ifndef ATTO_ROWS_H
#define ATTO_ROWS_H

#include "backend_cpu/loops.h"
#include "backend_cpu/vec.h"

#define ROWS_RUNNING 4
#define ROWS_STEP    (ROWS_RUNNING * VEC_LANES)

/* The largest of first and the block. NaN may get lost. */
static inline float block_max(float first, const float *v, int32_t n)
{
    vec top[ROWS_RUNNING];
    int32_t i = 0;
    VEC_UNROLL
    for (int32_t k = 0; k < ROWS_RUNNING; k++) top[k] = vec_all(first);
    for (; i + ROWS_STEP <= n; i += ROWS_STEP) {
        VEC_UNROLL
        for (int32_t k = 0; k < ROWS_RUNNING; k++)
            top[k] = vec_max(vec_load(v + i + k * VEC_LANES), top[k]);
    }
    for (; i + VEC_LANES <= n; i += VEC_LANES) top[0] = vec_max(vec_load(v + i), top[0]);
    float largest = vec_top(vec_max(vec_max(top[0], top[1]), vec_max(top[2], top[3])));
    for (; i < n; i++) largest = v[i] > largest ? v[i] : largest;
    return largest;
}

static inline float block_sum(const float *v, int32_t n)
{
    vec sum[ROWS_RUNNING] = { { 0 } };
    int32_t i = 0;
    for (; i + ROWS_STEP <= n; i += ROWS_STEP) {
        VEC_UNROLL
        for (int32_t k = 0; k < ROWS_RUNNING; k++) sum[k] += vec_load(v + i + k * VEC_LANES);
    }
    for (; i + VEC_LANES <= n; i += VEC_LANES) sum[0] += vec_load(v + i);
    float total = vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (; i < n; i++) total += v[i];
    return total;
}

/* The sum of products, in the same order. */
static inline float block_dot(const float *a, const float *b, int32_t n)
{
    vec sum[ROWS_RUNNING] = { { 0 } };
    int32_t i = 0;
    for (; i + ROWS_STEP <= n; i += ROWS_STEP) {
        VEC_UNROLL
        for (int32_t k = 0; k < ROWS_RUNNING; k++)
            sum[k] += vec_load(a + i + k * VEC_LANES) * vec_load(b + i + k * VEC_LANES);
    }
    for (; i + VEC_LANES <= n; i += VEC_LANES) sum[0] += vec_load(a + i) * vec_load(b + i);
    float total = vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (; i < n; i++) total += a[i] * b[i];
    return total;
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
