/* SPDX-License-Identifier: MIT */
/* Tiles of the two operands of a product: from global memory through registers into local memory.
 *
 * A step of the sum takes ATTO_TILE_K values of k. Its tile of a lies in local memory as [TILE_K][TILE_M],
 * that of b as [TILE_K][TILE_N], so that what a work-item multiplies at one k is contiguous, however
 * the operand is stored. Work-item `lane` moves the vectors lane, lane + ATTO_GROUP, ...: 16 bytes along
 * the operand's rows, several work-items to a row.
 *
 *   -D                 default  meaning
 *   ATTO_A, ATTO_B     f32      storage of the operands
 *   ATTO_A_TRANSPOSED  0        0: a is stored [m, k]; 1: [k, m]
 *   ATTO_B_TRANSPOSED  0        0: b is stored [n, k]; 1: [k, n]
 *   ATTO_A_VECTORS     0        1: offset, stride and row length are whole vectors
 *   ATTO_B_VECTORS     0        the same of b
 *   ATTO_TILE_M        32       rows of a tile of c, a power of two
 *   ATTO_TILE_N        32       its columns, a multiple of 32
 *   ATTO_TILE_K        8        values of k in local memory, a power of two and a multiple of 8
 *   ATTO_ITEM_M        4        rows of a work-item, a multiple of 4
 *   ATTO_ITEM_N        4        its columns, ATTO_TILE_N / 8
 *   ATTO_SLICES        1        parts of a work-group, which share out the k of a step
 *   ATTO_PROLOGUE      0        1: a is the dy of atto_prologue.h, and what is multiplied is dz
 *
 * Places in local memory. Row i of a stands at i ^ swizzle(k), so that a store of neighbouring k and a
 * load of neighbouring i both reach all banks. Column j of b goes to 4 (j mod 8) + j / 8 in its block of
 * 32, again with a swizzle: a work-item's four columns of a block are j, j + 8, j + 16, j + 24 and come
 * in one 16-byte load. */
#ifndef ATTO_TILE_H
#define ATTO_TILE_H

#include "atto_prologue.h"
#include "atto_epilogue.h"

#ifndef ATTO_A_TRANSPOSED
#define ATTO_A_TRANSPOSED 0
#endif
#ifndef ATTO_B_TRANSPOSED
#define ATTO_B_TRANSPOSED 0
#endif
#ifndef ATTO_A_VECTORS
#define ATTO_A_VECTORS 0
#endif
#ifndef ATTO_B_VECTORS
#define ATTO_B_VECTORS 0
#endif
#ifndef ATTO_TILE_M
#define ATTO_TILE_M 32
#endif
#ifndef ATTO_TILE_N
#define ATTO_TILE_N 32
#endif
#ifndef ATTO_TILE_K
#define ATTO_TILE_K 8
#endif
#ifndef ATTO_ITEM_M
#define ATTO_ITEM_M 4
#endif
#ifndef ATTO_ITEM_N
#define ATTO_ITEM_N 4
#endif
#ifndef ATTO_SLICES
#define ATTO_SLICES 1
#endif

#define ATTO_GROUP (ATTO_TILE_M / ATTO_ITEM_M * 8 * ATTO_SLICES) /* work-items of a work-group */

#define ATTO_A_VEC    (16 / ATTO_PASTE(ATTO_BYTES_, ATTO_A)) /* elements of 16 bytes */
#define ATTO_B_VEC    (16 / ATTO_PASTE(ATTO_BYTES_, ATTO_B))
#define ATTO_A_TOTAL  (ATTO_TILE_M * ATTO_TILE_K / ATTO_A_VEC) /* vectors of a tile */
#define ATTO_B_TOTAL  (ATTO_TILE_N * ATTO_TILE_K / ATTO_B_VEC)
#define ATTO_A_COUNT  ((ATTO_A_TOTAL + ATTO_GROUP - 1) / ATTO_GROUP) /* of one work-item */
#define ATTO_B_COUNT  ((ATTO_B_TOTAL + ATTO_GROUP - 1) / ATTO_GROUP)
#define ATTO_A_HAS(v) (ATTO_A_TOTAL % ATTO_GROUP == 0 || (v) < ATTO_A_TOTAL)
#define ATTO_B_HAS(v) (ATTO_B_TOTAL % ATTO_GROUP == 0 || (v) < ATTO_B_TOTAL)
#define ATTO_A_UNPACK ATTO_PASTE(atto_unpack_, ATTO_A)
#define ATTO_B_UNPACK ATTO_PASTE(atto_unpack_, ATTO_B)

/* The first element of vector v of a tile: its row of a or column of b, and its k. */
#if ATTO_A_TRANSPOSED
#define ATTO_A_ROW(v) ((v) % (ATTO_TILE_M / ATTO_A_VEC) * ATTO_A_VEC)
#define ATTO_A_K(v)   ((v) / (ATTO_TILE_M / ATTO_A_VEC))
#else
#define ATTO_A_ROW(v) ((v) / (ATTO_TILE_K / ATTO_A_VEC))
#define ATTO_A_K(v)   ((v) % (ATTO_TILE_K / ATTO_A_VEC) * ATTO_A_VEC)
#endif
#if ATTO_B_TRANSPOSED
#define ATTO_B_COLUMN(v) ((v) % (ATTO_TILE_N / ATTO_B_VEC) * ATTO_B_VEC)
#define ATTO_B_K(v)      ((v) / (ATTO_TILE_N / ATTO_B_VEC))
#else
#define ATTO_B_COLUMN(v) ((v) / (ATTO_TILE_K / ATTO_B_VEC))
#define ATTO_B_K(v)      ((v) % (ATTO_TILE_K / ATTO_B_VEC) * ATTO_B_VEC)
#endif

/* ---- places in local memory ---- */

static inline uint atto_a_place(uint k, uint row)
{
    const uint swizzle = (k >> 2 & 1) * 16 ^ (k >> 3 & 1) * 8 ^ (k >> 4 & 1) * 4;
    return k * ATTO_TILE_M + (row ^ (swizzle & (ATTO_TILE_M - 1)));
}

/* The 16 bytes that hold columns column, column + 8, + 16, + 24; column mod 32 is below 8. */
static inline uint atto_b_block(uint k, uint column)
{
    return k * ATTO_TILE_N + (((column & ~31u) + (column & 7) * 4) ^ (k >> 3 & 7) * 4);
}

/* Which of the four words at that place belongs to column + 8 e. */
static inline uint atto_b_word(uint k, uint e)
{
    return e ^ (k >> 2 & 1) * 2;
}

static inline uint atto_b_place(uint k, uint column)
{
    return atto_b_block(k, (column & ~31u) + (column & 7)) + atto_b_word(k, column >> 3 & 3);
}

/* ---- global memory to registers ---- */

/* count elements from p[at], packed as in memory; missing ones are 0. */
ATTO_UNROLLED uint4 atto_gather_f32(__global const atto_f32 *p, size_t at, uint count)
{
    return (uint4)(count > 0 ? as_uint(p[at]) : 0, count > 1 ? as_uint(p[at + 1]) : 0,
                   count > 2 ? as_uint(p[at + 2]) : 0, count > 3 ? as_uint(p[at + 3]) : 0);
}

static inline uint atto_gather_pair(__global const ushort *p, size_t at, uint i, uint count)
{
    const uint low = i < count ? p[at + i] : 0, high = i + 1 < count ? p[at + i + 1] : 0;
    return low | high << 16;
}

ATTO_UNROLLED uint4 atto_gather_f16(__global const atto_f16 *p, size_t at, uint count)
{
    return (uint4)(atto_gather_pair(p, at, 0, count), atto_gather_pair(p, at, 2, count),
                   atto_gather_pair(p, at, 4, count), atto_gather_pair(p, at, 6, count));
}

ATTO_UNROLLED uint4 atto_gather_bf16(__global const atto_bf16 *p, size_t at, uint count)
{
    return atto_gather_f16(p, at, count);
}

ATTO_UNROLLED uint4 atto_a_vector(__global const ATTO_A_T *p, size_t at, uint count)
{
#if ATTO_A_VECTORS
    return count > 0 ? *(__global const uint4 *)(p + at) : (uint4)(0);
#else
    return ATTO_PASTE(atto_gather_, ATTO_A)(p, at, count);
#endif
}

ATTO_UNROLLED uint4 atto_b_vector(__global const ATTO_B_T *p, size_t at, uint count)
{
#if ATTO_B_VECTORS
    return count > 0 ? *(__global const uint4 *)(p + at) : (uint4)(0);
#else
    return ATTO_PASTE(atto_gather_, ATTO_B)(p, at, count);
#endif
}

/* Elements from i that exist, at most a vector's. */
static inline uint atto_left(atto_index i, atto_index n, uint vector)
{
    return i < n ? (uint)min(n - i, (atto_index)vector) : 0;
}

/* Where a vector lies in its operand, and how many of its elements exist. */
typedef struct atto_span {
    atto_index at;
    uint count;
} atto_span;

/* An operand stored [rows, k]. A row that does not exist is read as the last one: what it gives is
 * never stored. whole: all of the step's k exist. */
static inline atto_span atto_span_of(atto_index row, atto_index k, atto_index stride,
                                     atto_index rows, atto_index end, uint vector, bool whole)
{
    atto_span s;
    s.at = min(row, rows - 1) * stride + k;
    s.count = whole ? vector : atto_left(k, end, vector);
    return s;
}

/* The same stored [k, rows]. vectors: a row vector outside is read as the last one. */
static inline atto_span atto_span_transposed(atto_index row, atto_index k, atto_index stride,
                                             atto_index rows, atto_index end, uint vector,
                                             bool vectors, bool whole)
{
    atto_span s;
    s.count = vectors ? vector : atto_left(row, rows, vector);
    if (vectors) row = min(row, rows - vector);
    s.at = k * stride + row;
    if (!whole && k >= end) s.count = 0;
    return s;
}

/* This work-item's vectors of the tile of a (or z) at row m0 and k0. */
ATTO_UNROLLED void atto_fetch_a(__global const ATTO_A_T *p, atto_index stride, atto_index m0,
                                atto_index k0, atto_index m, atto_index end, bool whole, uint4 *raw)
{
#pragma unroll
    for (uint i = 0; i < ATTO_A_COUNT; i++) {
        const uint v = get_local_id(0) + i * ATTO_GROUP;
        if (!ATTO_A_HAS(v)) break;
        const atto_index row = m0 + ATTO_A_ROW(v), k = k0 + ATTO_A_K(v);
#if ATTO_A_TRANSPOSED
        const atto_span s =
            atto_span_transposed(row, k, stride, m, end, ATTO_A_VEC, ATTO_A_VECTORS, whole);
#else
        const atto_span s = atto_span_of(row, k, stride, m, end, ATTO_A_VEC, whole);
#endif
        raw[i] = atto_a_vector(p, s.at, s.count);
    }
}

ATTO_UNROLLED void atto_fetch_b(__global const ATTO_B_T *p, atto_index stride, atto_index n0,
                                atto_index k0, atto_index n, atto_index end, bool whole, uint4 *raw)
{
#pragma unroll
    for (uint i = 0; i < ATTO_B_COUNT; i++) {
        const uint v = get_local_id(0) + i * ATTO_GROUP;
        if (!ATTO_B_HAS(v)) break;
        const atto_index column = n0 + ATTO_B_COLUMN(v), k = k0 + ATTO_B_K(v);
#if ATTO_B_TRANSPOSED
        const atto_span s =
            atto_span_transposed(column, k, stride, n, end, ATTO_B_VEC, ATTO_B_VECTORS, whole);
#else
        const atto_span s = atto_span_of(column, k, stride, n, end, ATTO_B_VEC, whole);
#endif
        raw[i] = atto_b_vector(p, s.at, s.count);
    }
}

/* ---- registers to local memory ---- */

/* v: a vector of dy whose first element is row, k of a; becomes dz. */
ATTO_UNROLLED void atto_prologue_vector(const atto_prologue *p, atto_index row, atto_index k,
                                        float *v, uint4 raw_z)
{
#if ATTO_PROLOGUE
    float z[ATTO_A_VEC] = { 0.0f };
#if ATTO_READS_Z
    ATTO_A_UNPACK(raw_z, z);
#endif
#pragma unroll
    for (uint e = 0; e < ATTO_A_VEC; e += 4) {
#if ATTO_A_TRANSPOSED
        atto_prologue_quad(p, k, row + e, v + e, z + e);
#else
        atto_prologue_quad(p, row, k + e, v + e, z + e);
#endif
    }
#endif
}

ATTO_UNROLLED void atto_stash_a(const uint4 *raw, const uint4 *raw_z, const atto_prologue *p,
                                atto_index m0, atto_index k0, __local float *tile)
{
#pragma unroll
    for (uint i = 0; i < ATTO_A_COUNT; i++) {
        const uint vector = get_local_id(0) + i * ATTO_GROUP;
        if (!ATTO_A_HAS(vector)) break;
        const uint row = ATTO_A_ROW(vector), k = ATTO_A_K(vector);
        float v[ATTO_A_VEC];
        ATTO_A_UNPACK(raw[i], v);
        atto_prologue_vector(p, m0 + row, k0 + k, v, raw_z[i]);
#if ATTO_A_TRANSPOSED
#pragma unroll
        for (uint e = 0; e < ATTO_A_VEC; e += 4)
            *(__local float4 *)(tile + atto_a_place(k, row + e)) = (float4)(ATTO_JOIN_4(v + e));
#else
#pragma unroll
        for (uint e = 0; e < ATTO_A_VEC; e++) tile[atto_a_place(k + e, row)] = v[e];
#endif
    }
}

ATTO_UNROLLED void atto_stash_b(const uint4 *raw, __local float *tile)
{
#pragma unroll
    for (uint i = 0; i < ATTO_B_COUNT; i++) {
        const uint vector = get_local_id(0) + i * ATTO_GROUP;
        if (!ATTO_B_HAS(vector)) break;
        const uint column = ATTO_B_COLUMN(vector), k = ATTO_B_K(vector);
        float v[ATTO_B_VEC];
        ATTO_B_UNPACK(raw[i], v);
#pragma unroll
        for (uint e = 0; e < ATTO_B_VEC; e++) {
#if ATTO_B_TRANSPOSED
            tile[atto_b_place(k, column + e)] = v[e];
#else
            tile[atto_b_place(k + e, column)] = v[e];
#endif
        }
    }
}

#endif
