/* SPDX-License-Identifier: MIT */
/* The innermost product of gemm.c: one panel of A times one panel of B, sums in registers. */
#ifndef ATTO_CPU_TILE_H
#define ATTO_CPU_TILE_H

#include "backend_cpu/gemm.h"
#include "backend_cpu/panel.h"

/* AVX-512 keeps the panel of A in the first-level cache and streams those of B past it, asking for
 * them some steps ahead. With the half as long vectors of AVX2 the load ports have no room for
 * that, and the panel of B stays instead. */
#define TILE_STREAMS_B (VEC_LANES == 16)
#define TILE_AHEAD     8 /* steps of k */

/* Height rows and width vectors of the tile, both constants at every call. */
ATTO_INLINE void multiply_panels(int32_t height, int32_t width, int32_t k, const float *a,
                                 const float *b, vec sum[TILE_ROWS][TILE_VECS])
{
    VEC_UNROLL
    for (int32_t i = 0; i < height; i++) {
        VEC_UNROLL
        for (int32_t j = 0; j < width; j++) sum[i][j] = (vec){ 0 };
    }
    for (int32_t step = 0; step < k; step++) {
        vec row[TILE_VECS];
        VEC_UNROLL
        for (int32_t j = 0; j < width; j++) {
            row[j] = vec_load(b + j * VEC_LANES);
            if (TILE_STREAMS_B) __builtin_prefetch(b + TILE_AHEAD * TILE_COLUMNS + j * VEC_LANES);
        }
        if (TILE_STREAMS_B) __builtin_prefetch(a + 2 * TILE_AHEAD * TILE_ROWS);
        VEC_UNROLL
        for (int32_t i = 0; i < height; i++) {
            const vec x = vec_all(a[i]);
            VEC_UNROLL
            for (int32_t j = 0; j < width; j++) sum[i][j] += x * row[j];
        }
        a += TILE_ROWS;
        b += TILE_COLUMNS;
    }
}

/* The whole tile at c. */
ATTO_INLINE void store_tile(vec sum[TILE_ROWS][TILE_VECS], float *c, int64_t stride, bool add)
{
    if (add) {
        VEC_UNROLL
        for (int32_t i = 0; i < TILE_ROWS; i++) {
            VEC_UNROLL
            for (int32_t j = 0; j < TILE_VECS; j++)
                sum[i][j] += vec_load(c + i * stride + j * VEC_LANES);
        }
    }
    VEC_UNROLL
    for (int32_t i = 0; i < TILE_ROWS; i++) {
        VEC_UNROLL
        for (int32_t j = 0; j < TILE_VECS; j++)
            vec_store(c + i * stride + j * VEC_LANES, sum[i][j]);
    }
}

static void whole_tile(int32_t k, const float *a, const float *b, float *c, int64_t stride,
                       bool add)
{
    vec sum[TILE_ROWS][TILE_VECS];
    VEC_UNROLL
    for (int32_t i = 0; i < TILE_ROWS; i++) {
        __builtin_prefetch(c + i * stride, 1);
        __builtin_prefetch(c + i * stride + TILE_COLUMNS - 1, 1);
    }
    multiply_panels(TILE_ROWS, TILE_VECS, k, a, b, sum);
    store_tile(sum, c, stride, add);
}

/* A part of a tile, into edge, [TILE_ROWS][TILE_COLUMNS]. */
ATTO_INLINE void part_of_tile(int32_t height, int32_t width, int32_t k, const float *a,
                              const float *b, float *edge)
{
    vec sum[TILE_ROWS][TILE_VECS];
    multiply_panels(height, width, k, a, b, sum);
    VEC_UNROLL
    for (int32_t i = 0; i < height; i++) {
        VEC_UNROLL
        for (int32_t j = 0; j < width; j++)
            vec_store(edge + i * TILE_COLUMNS + j * VEC_LANES, sum[i][j]);
    }
}

#define TILE_HALF    ((TILE_ROWS + 2) / 2) /* 8, 4, 3 rows */
#define TILE_QUARTER ((TILE_ROWS + 2) / 4) /* 4, 2, 1 */

/* What belongs to C of edge, [TILE_ROWS][TILE_COLUMNS]. */
static void copy_edge(const float *edge, float *c, int64_t stride, int32_t rows, int32_t columns,
                      bool add)
{
    for (int32_t i = 0; i < rows; i++) {
        for (int32_t j = 0; j < columns; j++) {
            const float sum = edge[i * TILE_COLUMNS + j];
            c[i * stride + j] = add ? sum + c[i * stride + j] : sum;
        }
    }
}

/* Where C ends within a tile. An element's bits do not depend on that: its sum is the same chain of
 * operations in every part of a tile. */
static void edge_tile(int32_t k, const float *a, const float *b, float *c, int64_t stride,
                      int32_t rows, int32_t columns, bool add)
{
    float edge[TILE_ROWS * TILE_COLUMNS];
    const bool narrow = columns <= VEC_LANES;
    if (rows <= TILE_QUARTER && narrow) {
        part_of_tile(TILE_QUARTER, 1, k, a, b, edge);
    } else if (rows <= TILE_QUARTER) {
        part_of_tile(TILE_QUARTER, TILE_VECS, k, a, b, edge);
    } else if (narrow) {
        part_of_tile(TILE_ROWS, 1, k, a, b, edge);
    } else if (rows <= TILE_HALF) {
        part_of_tile(TILE_HALF, TILE_VECS, k, a, b, edge);
    } else {
        part_of_tile(TILE_ROWS, TILE_VECS, k, a, b, edge);
    }
    copy_edge(edge, c, stride, rows, columns, add);
}

_Static_assert(TILE_ROWS <= ATTO_GEMM_ROWS, "a run has a row for each of a tile");

/* multiply_panels for rows of A where they lie. */
ATTO_INLINE void multiply_runs(const atto__gemm_run *runs, int32_t count, const float *b,
                               vec sum[TILE_ROWS][TILE_VECS])
{
    VEC_UNROLL
    for (int32_t i = 0; i < TILE_ROWS; i++) {
        VEC_UNROLL
        for (int32_t j = 0; j < TILE_VECS; j++) sum[i][j] = (vec){ 0 };
    }
    for (const atto__gemm_run *run = runs; run < runs + count; run++) {
        const float *next =
            run->rows[TILE_ROWS - 1] + run->n; /* panel, if rows follow each other */
        for (int32_t k = 0; k < run->n; k++) {
            vec row[TILE_VECS];
            __builtin_prefetch(next + k * TILE_ROWS);
            VEC_UNROLL
            for (int32_t j = 0; j < TILE_VECS; j++) {
                row[j] = vec_load(b + j * VEC_LANES);
                __builtin_prefetch(b + TILE_AHEAD * TILE_COLUMNS + j * VEC_LANES);
            }
            VEC_UNROLL
            for (int32_t i = 0; i < TILE_ROWS; i++) {
                const vec x = vec_all(run->rows[i][k]);
                VEC_UNROLL
                for (int32_t j = 0; j < TILE_VECS; j++) sum[i][j] += x * row[j];
            }
            b += TILE_COLUMNS;
        }
    }
}

/* multiply_tile for rows of A where they lie. */
static void multiply_tile_runs(const atto__gemm_run *runs, int32_t count, const float *b, float *c,
                               int64_t stride, int32_t rows, int32_t columns, bool add)
{
    vec sum[TILE_ROWS][TILE_VECS];
    float edge[TILE_ROWS * TILE_COLUMNS];
    multiply_runs(runs, count, b, sum);
    if (rows == TILE_ROWS && columns == TILE_COLUMNS) {
        store_tile(sum, c, stride, add);
        return;
    }
    store_tile(sum, edge, TILE_COLUMNS, false);
    copy_edge(edge, c, stride, rows, columns, add);
}

/* Panel times panel, of which rows and columns belong to C. */
static void multiply_tile(int32_t k, const float *a, const float *b, float *c, int64_t stride,
                          int32_t rows, int32_t columns, bool add)
{
    if (rows == TILE_ROWS && columns == TILE_COLUMNS) {
        whole_tile(k, a, b, c, stride, add);
    } else {
        edge_tile(k, a, b, c, stride, rows, columns, add);
    }
}

#endif
