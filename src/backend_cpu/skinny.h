/* SPDX-License-Identifier: MIT */
/* Products of a few rows for gemm.c. B is read where it lies, once: reading it is all they cost.
 *
 * a holds the rows as floats, [m, k]. Sums of a block of n columns go to out, [m, n]. */
#ifndef ATTO_CPU_SKINNY_H
#define ATTO_CPU_SKINNY_H

#include "backend_cpu/gemm.h"
#include "backend_cpu/vec.h"

/* ---- B as [n, k]: dot products, vectors along k ---- */

/* Columns of a block: a multiple of every tile's. */
#define DOT_COLUMNS 24

/* So many floats of A at a time, which stay in the first-level cache while B passes by. */
#define DOT_FLOATS 4096

/* Sums of a block, by lanes: [row][column][lane]. */
typedef float dot_sums[ATTO_GEMM_SKINNY * DOT_COLUMNS * VEC_LANES];

/* Adds the products of whole vectors, k of them in all, to height x width sums. What is not there
 * (rows beyond m, columns beyond n) repeats the last one and is not kept. */
ATTO_INLINE void dot_tile(int32_t height, int32_t width, int32_t m, int32_t n, int64_t k,
                          const float *a, int64_t a_stride, const void *b, int64_t b_stride,
                          atto_dtype dtype, int64_t b_at, float *sums)
{
    const float *x[8];
    int64_t w[8];
    vec sum[8][8];
    VEC_UNROLL
    for (int32_t j = 0; j < width; j++) w[j] = b_at + (j < n ? j : n - 1) * b_stride;
    VEC_UNROLL
    for (int32_t i = 0; i < height; i++) {
        x[i] = a + (i < m ? i : m - 1) * a_stride;
        VEC_UNROLL
        for (int32_t j = 0; j < width; j++)
            sum[i][j] = vec_load(sums + (i * DOT_COLUMNS + j) * VEC_LANES);
    }
    for (int64_t at = 0; at + VEC_LANES <= k; at += VEC_LANES) {
        vec v[8];
        VEC_UNROLL
        for (int32_t j = 0; j < width; j++) {
            v[j] = vec_load_as(b, w[j] + at, dtype);
            /* the next tile's rows, where pieces of a row are short */
            if (height > 2) vec_prefetch_as(b, w[j] + at + width * b_stride, dtype);
        }
        VEC_UNROLL
        for (int32_t i = 0; i < height; i++) {
            const vec u = vec_load(x[i] + at);
            VEC_UNROLL
            for (int32_t j = 0; j < width; j++) sum[i][j] += u * v[j];
        }
    }
    VEC_UNROLL
    for (int32_t i = 0; i < height; i++) {
        VEC_UNROLL
        for (int32_t j = 0; j < width; j++)
            vec_store(sums + (i * DOT_COLUMNS + j) * VEC_LANES, sum[i][j]);
    }
}

/* Tiles that fit the registers: 32 of them at AVX-512, else 16. at is where B's first row
 * starts. */
ATTO_INLINE void dot_tiles(int32_t m, int32_t n, int64_t k, const float *a, int64_t a_stride,
                           const void *b, int64_t b_stride, atto_dtype dtype, int64_t at,
                           float *sums)
{
    const bool many = VEC_LANES == 16;
    const int32_t two = many ? 6 : 4, four = many ? 4 : 2;
    for (int32_t j = 0; j < n;) {
        float *to = sums + j * VEC_LANES;
        const int64_t from = at + j * b_stride;
        if (m == 1) {
            dot_tile(1, 8, m, n - j, k, a, a_stride, b, b_stride, dtype, from, to);
            j += 8;
        } else if (m == 2) {
            dot_tile(2, two, m, n - j, k, a, a_stride, b, b_stride, dtype, from, to);
            j += two;
        } else if (m > 4 && many) {
            dot_tile(8, 3, m, n - j, k, a, a_stride, b, b_stride, dtype, from, to);
            j += 3;
        } else {
            for (int32_t i = 0; i < m; i += 4)
                dot_tile(4, four, m - i, n - j, k, a + i * a_stride, a_stride, b, b_stride, dtype,
                         from, to + i * DOT_COLUMNS * VEC_LANES);
            j += four;
        }
    }
}

/* out[row * n + column], n <= DOT_COLUMNS. */
ATTO_INLINE void dot_block(int32_t m, int32_t n, int64_t k, const float *a, int64_t a_stride,
                           const atto__gemm_side *b, atto_dtype dtype, int64_t column, float *out)
{
    dot_sums sums;
    memset(sums, 0, sizeof sums);
    const int64_t first = column * b->stride, step = DOT_FLOATS / m / VEC_LANES * VEC_LANES;
    for (int64_t at = 0; at < k; at += step)
        dot_tiles(m, n, k - at < step ? k - at : step, a + at, a_stride, b->data, b->stride, dtype,
                  first + at, sums);
    for (int32_t i = 0; i < m; i++) {
        for (int32_t j = 0; j < n; j++) {
            float sum = vec_sum(vec_load(sums + (i * DOT_COLUMNS + j) * VEC_LANES));
            for (int64_t at = k - k % VEC_LANES; at < k; at++)
                sum +=
                    a[i * a_stride + at] * vec_one_as(b->data, first + j * b->stride + at, dtype);
            out[i * n + j] = sum;
        }
    }
}

/* ---- B as [k, n]: sums of rows, vectors along n ---- */

/* Steps of k ahead of which rows of B are asked for: a block's piece of a row is too short for the
 * processor to see the next one coming. */
#define ROWS_AHEAD 2

/* Floats of a block of sums, which stays in the first-level cache. */
#define SUM_FLOATS 2048

/* count rows of B times the factors of height rows of A, added to as many rows of sums. The few
 * products of an element are added up first: shorter sums, smaller rounding errors. */
ATTO_INLINE void add_rows(int32_t height, int32_t count, const float *a, int64_t a_stride,
                          const atto__gemm_side *b, atto_dtype dtype, int64_t at, int32_t n,
                          float *out)
{
    const void *data =
        b->data; /* local: a store to out could change b for all the compiler knows */
    const int64_t stride = b->stride;
    vec factor[4][8];
    VEC_UNROLL
    for (int32_t i = 0; i < height; i++) {
        VEC_UNROLL
        for (int32_t u = 0; u < count; u++) factor[i][u] = vec_all(a[i * a_stride + u]);
    }
    int32_t j = 0;
    for (; j + VEC_LANES <= n; j += VEC_LANES) {
        vec row[8];
        VEC_UNROLL
        for (int32_t u = 0; u < count; u++) {
            row[u] = vec_load_as(data, at + u * stride + j, dtype);
            vec_prefetch_as(data, at + (u + ROWS_AHEAD * count) * stride + j, dtype);
        }
        VEC_UNROLL
        for (int32_t i = 0; i < height; i++) {
            vec sum = factor[i][0] * row[0];
            VEC_UNROLL
            for (int32_t u = 1; u < count; u++) sum += factor[i][u] * row[u];
            vec_store(out + i * n + j, vec_load(out + i * n + j) + sum);
        }
    }
    for (; j < n; j++) {
        for (int32_t i = 0; i < height; i++) {
            float sum = 0.0f;
            for (int32_t u = 0; u < count; u++)
                sum += a[i * a_stride + u] * vec_one_as(data, at + u * stride + j, dtype);
            out[i * n + j] += sum;
        }
    }
}

/* The same for all rows of A, as many at a time as there are registers for their factors. */
ATTO_INLINE void add_rows_to_all(int32_t m, int32_t count, const float *a, int64_t a_stride,
                                 const atto__gemm_side *b, atto_dtype dtype, int64_t at, int32_t n,
                                 float *out)
{
    int32_t i = 0;
    if (VEC_LANES == 16)
        for (; i + 4 <= m; i += 4)
            add_rows(4, count, a + i * a_stride, a_stride, b, dtype, at, n, out + i * n);
    for (; i + 2 <= m; i += 2)
        add_rows(2, count, a + i * a_stride, a_stride, b, dtype, at, n, out + i * n);
    for (; i < m; i++) add_rows(1, count, a + i * a_stride, a_stride, b, dtype, at, n, out + i * n);
}

ATTO_INLINE void sum_block(int32_t m, int32_t n, int64_t k, const float *a, int64_t a_stride,
                           const atto__gemm_side *b, atto_dtype dtype, int64_t column, float *out)
{
    for (int32_t i = 0; i < m * n; i++) out[i] = 0.0f;
    int64_t row = 0;
    if (m == 1)
        for (; row + 8 <= k; row += 8)
            add_rows(1, 8, a + row, a_stride, b, dtype, row * b->stride + column, n, out);
    for (; row + 4 <= k; row += 4)
        add_rows_to_all(m, 4, a + row, a_stride, b, dtype, row * b->stride + column, n, out);
    for (; row < k; row++)
        add_rows_to_all(m, 1, a + row, a_stride, b, dtype, row * b->stride + column, n, out);
}

#endif
