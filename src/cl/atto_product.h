/* SPDX-License-Identifier: MIT */
/* The product of two tiles in local memory (atto_tile.h), and the sums on their way out.
 *
 * In each 32 work-items 8 stand side by side and 4 above each other; a work-item has
 * ITEM_M x ITEM_N elements of the tile:
 *
 *     columns  tx, tx+8, tx+16, tx+24 of each block of 32      tx = 0 .. 7
 *     rows     4 ty .. 4 ty + 3 of each block of 4 TY          ty = 0 .. TY-1
 */
#ifndef ATTO_PRODUCT_H
#define ATTO_PRODUCT_H

#include "atto_tile.h"

/* Tiles are taken in bands of so many rows of tiles, so that groups at work share operands. */
#define ATTO_BAND 16

#define ATTO_TY      (ATTO_TILE_M / ATTO_ITEM_M)                 /* work-items above each other */
#define ATTO_STAGE   (ATTO_TILE_K * (ATTO_TILE_M + ATTO_TILE_N)) /* floats of a step's tiles */
#define ATTO_SLICE_K (ATTO_TILE_K / ATTO_SLICES) /* values of k in a step of a part of the group */

/* A work-item's place in its part of the work-group. In every 8 work-items that load together 4
 * columns and 2 rows: an H200 serves that twice as fast as 8 columns. */
static inline uint atto_tx(uint lane)
{
    return ATTO_TY % 4 == 0 ? (lane & 3) | (lane >> 3 & 1) << 2 : lane & 7;
}

static inline uint atto_ty(uint lane)
{
    return ATTO_TY % 4 == 0 ? (lane >> 5) * 4 + ((lane >> 2 & 1) | (lane >> 4 & 1) << 1)
                            : lane >> 3;
}

/* Row of c, in the tile, of a work-item's row i. */
static inline uint atto_tile_row(uint ty, uint i)
{
    return i / 4 * (4 * ATTO_TY) + ty * 4 + i % 4;
}

/* Number of the first row and column of a work-group's tile. */
static inline void atto_tile_corner(atto_index tile, atto_index m, atto_index n, atto_index *m0,
                                    atto_index *n0)
{
    const atto_index down = (m + ATTO_TILE_M - 1) / ATTO_TILE_M;
    const atto_index across = (n + ATTO_TILE_N - 1) / ATTO_TILE_N;
    const atto_index band = tile / (ATTO_BAND * across), inside = tile % (ATTO_BAND * across);
    const atto_index height = min(down - band * ATTO_BAND, (atto_index)ATTO_BAND);
    *m0 = (band * ATTO_BAND + inside % height) * ATTO_TILE_M;
    *n0 = inside / height * ATTO_TILE_N;
}

/* Places of a work-item's first row and column at each four k of its part: r then adds a constant,
 * which stands in the load itself. */
typedef struct atto_view {
    __local const float *a[ATTO_SLICE_K / 4], *b[ATTO_SLICE_K / 4];
} atto_view;

ATTO_UNROLLED void atto_view_of(atto_view *view, __local const float *memory, uint part, uint tx,
                                uint ty)
{
    const uint k0 = part * ATTO_SLICE_K;
#pragma unroll
    for (uint q = 0; q < ATTO_SLICE_K / 4; q++) {
        view->a[q] =
            memory + k0 * ATTO_TILE_M + (ty * 4 ^ atto_a_swizzle(k0) ^ atto_a_swizzle(q * 4));
        view->b[q] = memory + ATTO_TILE_K * ATTO_TILE_M + k0 * ATTO_TILE_N +
                     (tx * 4 ^ atto_b_swizzle(k0) ^ atto_b_swizzle(q * 4));
    }
}

ATTO_UNROLLED void atto_load_rows(__local const float *p, int r, float *a)
{
#pragma unroll
    for (int i = 0; i < ATTO_ITEM_M; i += 4) {
        const float4 v = *(__local const float4 *)(p + (r * ATTO_TILE_M + i * ATTO_TY));
        ATTO_SPLIT_4(v, a + i);
    }
}

ATTO_UNROLLED void atto_load_columns(__local const float *p, int r, float *b)
{
#pragma unroll
    for (int j = 0; j < ATTO_ITEM_N; j += 4) {
        const float4 v = *(__local const float4 *)(p + (r * ATTO_TILE_N + j * 8));
        float word[4];
        ATTO_SPLIT_4(v, word);
#pragma unroll
        for (int e = 0; e < 4; e++) b[j + e] = word[atto_b_word(r, e)];
    }
}

/* sum += a b^T over this part's k of one step. Columns outside and rows in alternating direction:
 * the order decides which registers meet in one instruction, and on NVIDIA a third of the speed. */
ATTO_UNROLLED void atto_multiply(atto_view *view, int turn, float (*sum)[ATTO_ITEM_N])
{
#pragma unroll
    for (int r = 0; r < ATTO_SLICE_K; r++) {
        float a[ATTO_ITEM_M], b[ATTO_ITEM_N];
        atto_load_rows(view->a[r / 4], r, a);
        atto_load_columns(view->b[r / 4], r, b);
#pragma unroll
        for (uint j = 0; j < ATTO_ITEM_N; j++) {
#pragma unroll
            for (uint step = 0; step < ATTO_ITEM_M; step++) {
                const uint i = j & 1 ? ATTO_ITEM_M - 1 - step : step;
                sum[i][j] = fma(a[i], b[j], sum[i][j]);
            }
        }
    }
#pragma unroll
    for (uint q = 0; q < ATTO_SLICE_K / 4; q++) {
        view->a[q] += turn;
        view->b[q] += turn;
    }
}

ATTO_UNROLLED void atto_clear(float (*sum)[ATTO_ITEM_N])
{
#pragma unroll
    for (uint i = 0; i < ATTO_ITEM_M; i++) {
#pragma unroll
        for (uint j = 0; j < ATTO_ITEM_N; j++) sum[i][j] = 0.0f;
    }
}

/* Element of a block of 32 columns in local memory; the swizzle keeps four neighbours together. */
static inline uint atto_block_place(uint part, uint row, uint column)
{
    return (part * ATTO_TILE_M + row) * 32 + (column ^ (row >> 2 & 3) * 8);
}

/* Puts columns j .. j + 3 of each work-item into local memory: a block of 32 columns of the
 * tile. */
ATTO_UNROLLED void atto_put_block(__local float *block, uint part, uint tx, uint ty, uint j,
                                  float (*sum)[ATTO_ITEM_N])
{
#pragma unroll
    for (uint i = 0; i < ATTO_ITEM_M; i++) {
#pragma unroll
        for (uint e = 0; e < 4; e++)
            block[atto_block_place(part, atto_tile_row(ty, i), tx + 8 * e)] = sum[i][j + e];
    }
}

/* Local memory holds two steps' tiles, and after the sum a block of 32 columns of each part. */
#define ATTO_BLOCK  (ATTO_SLICES * ATTO_TILE_M * 32)
#define ATTO_FLOATS (2 * ATTO_STAGE > ATTO_BLOCK ? 2 * ATTO_STAGE : ATTO_BLOCK)

/* Four neighbours of that block: the parts' sums in order. */
ATTO_UNROLLED void atto_take_quad(__local const float *block, uint row, uint column, float *v)
{
    float4 total = 0.0f;
#pragma unroll
    for (uint part = 0; part < ATTO_SLICES; part++)
        total += *(__local const float4 *)(block + atto_block_place(part, row, column));
    ATTO_SPLIT_4(total, v);
}

#endif
