/* SPDX-License-Identifier: MIT */
/* Tiles of the two operands of a product: from global memory through registers into local memory.
 *
 * A step of the sum takes ATTO_TILE_K values of k. Its tile of a lies in local memory as
 * [TILE_K][TILE_M], that of b as [TILE_K][TILE_N], so that what a work-item multiplies at one k is
 * contiguous, however the operand is stored. Work-item `lane` moves the vectors lane, lane +
 * ATTO_GROUP, ...: 16 bytes along the operand's rows, several work-items to a row.
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
 * Places in local memory. Row i of a stands at i ^ swizzle(k), so that a store of neighbouring k
 * and a load of neighbouring i both reach all banks. Column j of b goes to 4 (j mod 8) + j / 8 in
 * its block of 32, again with a swizzle: a work-item's four columns of a block are j, j + 8, j +
 * 16, j + 24 and come in one 16-byte load. */
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

/* What k does to a row's place: bits 2, 3 and 4 of k, reversed. */
static inline uint atto_a_swizzle(uint k)
{
    const uint swizzle = (k >> 2 & 1) * 16 ^ (k >> 3 & 1) * 8 ^ (k >> 4 & 1) * 4;
    return swizzle & (ATTO_TILE_M - 1) & (ATTO_TILE_K * 2 - 1 < 16 ? 16 : 28);
}

static inline uint atto_a_place(uint k, uint row)
{
    return k * ATTO_TILE_M + (row ^ atto_a_swizzle(k));
}

/* What k does to the place of a block's 16 bytes, and to the words in them. */
static inline uint atto_b_swizzle(uint k)
{
    return ATTO_TILE_K > 8 ? (k >> 3 & 7) * 4 : 0;
}

static inline uint atto_b_word(uint k, uint e)
{
    return e ^ (k >> 2 & 1) * 2;
}

/* The 16 bytes at k = 0 that hold columns column, column + 8, + 16, + 24; column mod 32 below 8. */
static inline uint atto_b_block(uint column)
{
    return (column & ~31u) + (column & 7) * 4;
}

static inline uint atto_b_place(uint k, uint column)
{
    return k * ATTO_TILE_N + (atto_b_block(column & ~24u) ^ atto_b_swizzle(k)) +
           atto_b_word(k, column >> 3 & 3);
}

/* This work-item's number; the mask tells the compiler its range. */
static inline uint atto_item(void)
{
    return (uint)get_local_id(0) & (ATTO_GROUP - 1);
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

/* Where this work-item's vectors of an operand come from and where in local memory they go. Both
 * move on from step to step, so that NVIDIA's compiler does not compute them from the work-item's
 * number anew in every step. */
typedef struct atto_route_a {
    __global const ATTO_A_T *from[ATTO_A_COUNT], *z_from[ATTO_A_COUNT];
    uint to[ATTO_A_COUNT];
} atto_route_a;

typedef struct atto_route_b {
    __global const ATTO_B_T *from[ATTO_B_COUNT];
    uint to[ATTO_B_COUNT];
} atto_route_b;

/* Offset of a vector in an operand stored [rows, k], or [k, rows]. A row that does not exist is
 * read as the last one: what it gives is never stored. */
static inline atto_index atto_offset(atto_index row, uint k, atto_index stride, atto_index rows,
                                     bool transposed, bool vectors, uint vector)
{
    if (!transposed) return min(row, rows - 1) * stride + k;
    return k * stride + (vectors ? min(row, rows - vector) : row);
}

/* How many of a vector's elements exist. In vectors all or none do. */
static inline uint atto_existing(atto_index row, atto_index k, atto_index rows, atto_index end,
                                 bool transposed, bool vectors, uint vector)
{
    if (!transposed) return atto_left(k, end, vector);
    if (k >= end) return 0;
    return vectors ? vector : atto_left(row, rows, vector);
}

/* This work-item's vectors of rows m0 .. of a (or z), stored at p, from k0. */
ATTO_UNROLLED void atto_route_from_a(__global const ATTO_A_T **from, __global const ATTO_A_T *p,
                                     atto_index stride, atto_index m0, atto_index k0, atto_index m)
{
    p += ATTO_A_TRANSPOSED ? k0 * stride : k0;
#pragma unroll
    for (uint i = 0; i < ATTO_A_COUNT; i++) {
        const uint v = atto_item() + i * ATTO_GROUP;
        from[i] = p + atto_offset(m0 + ATTO_A_ROW(v), ATTO_A_K(v), stride, m, ATTO_A_TRANSPOSED,
                                  ATTO_A_VECTORS, ATTO_A_VEC);
    }
}

/* tile: the number of the first float of the tile in local memory, a multiple of 32. */
ATTO_UNROLLED void atto_route_to_a(uint *to, uint tile)
{
#pragma unroll
    for (uint i = 0; i < ATTO_A_COUNT; i++) {
        const uint v = atto_item() + i * ATTO_GROUP;
        to[i] = tile + atto_a_place(ATTO_A_K(v), ATTO_A_ROW(v));
    }
}

ATTO_UNROLLED void atto_route_of_b(atto_route_b *r, __global const ATTO_B_T *p, atto_index stride,
                                   atto_index n0, atto_index k0, atto_index n, uint tile)
{
    p += ATTO_B_TRANSPOSED ? k0 * stride : k0;
#pragma unroll
    for (uint i = 0; i < ATTO_B_COUNT; i++) {
        const uint v = atto_item() + i * ATTO_GROUP;
        r->from[i] = p + atto_offset(n0 + ATTO_B_COLUMN(v), ATTO_B_K(v), stride, n,
                                     ATTO_B_TRANSPOSED, ATTO_B_VECTORS, ATTO_B_VEC);
        r->to[i] = tile + atto_b_place(ATTO_B_K(v), ATTO_B_COLUMN(v));
    }
}

/* Loads this work-item's vectors of the tile of a (or z) at row m0 and k0, and moves on. What does
 * not exist is 0: no branch, so that the compiler may spread the loads over the products of a step;
 * and Intel's compiler crashes (ocloc 22.43) where raw is written by some work-items only. */
ATTO_UNROLLED void atto_fetch_a(__global const ATTO_A_T **from, atto_index stride, atto_index m0,
                                atto_index k0, atto_index m, atto_index end, uint4 *raw)
{
#pragma unroll
    for (uint i = 0; i < ATTO_A_COUNT; i++) {
        const uint v = atto_item() + i * ATTO_GROUP;
        const uint count = !ATTO_A_HAS(v)
                               ? 0
                               : atto_existing(m0 + ATTO_A_ROW(v), k0 + ATTO_A_K(v), m, end,
                                               ATTO_A_TRANSPOSED, ATTO_A_VECTORS, ATTO_A_VEC);
        raw[i] = atto_a_vector(from[i], 0, count);
        from[i] += (ATTO_A_TRANSPOSED ? (size_t)stride : 1) * ATTO_TILE_K;
    }
}

ATTO_UNROLLED void atto_fetch_b(__global const ATTO_B_T **from, atto_index stride, atto_index n0,
                                atto_index k0, atto_index n, atto_index end, uint4 *raw)
{
#pragma unroll
    for (uint i = 0; i < ATTO_B_COUNT; i++) {
        const uint v = atto_item() + i * ATTO_GROUP;
        const uint count = !ATTO_B_HAS(v)
                               ? 0
                               : atto_existing(n0 + ATTO_B_COLUMN(v), k0 + ATTO_B_K(v), n, end,
                                               ATTO_B_TRANSPOSED, ATTO_B_VECTORS, ATTO_B_VEC);
        raw[i] = atto_b_vector(from[i], 0, count);
        from[i] += (ATTO_B_TRANSPOSED ? (size_t)stride : 1) * ATTO_TILE_K;
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

/* Stores the vectors and moves on by turn, to the other buffer. Places of a vector's other elements
 * follow from that of its first: its k, row or column is a multiple of the vector, so bits of the
 * place change. */
ATTO_UNROLLED void atto_stash_a(const uint4 *raw, const uint4 *raw_z, const atto_prologue *p,
                                __local float *memory, uint *to, atto_index m0, atto_index k0,
                                uint turn)
{
#pragma unroll
    for (uint i = 0; i < ATTO_A_COUNT; i++) {
        const uint vector = atto_item() + i * ATTO_GROUP;
        if (!ATTO_A_HAS(vector)) break;
        float v[ATTO_A_VEC];
        ATTO_A_UNPACK(raw[i], v);
        atto_prologue_vector(p, m0 + ATTO_A_ROW(vector), k0 + ATTO_A_K(vector), v, raw_z[i]);
#pragma unroll
        for (int e = 0; e < ATTO_A_VEC; e += 4) {
#if ATTO_A_TRANSPOSED
            __local float *at = ATTO_TILE_K <= 16 ? memory + to[i] + e : memory + (to[i] ^ e);
            *(__local float4 *)at = (float4)(ATTO_JOIN_4(v + e));
#else
            __local float *at = memory + (to[i] ^ atto_a_swizzle(e));
#pragma unroll
            for (int f = 0; f < 4; f++) at[(e + f) * ATTO_TILE_M] = v[e + f];
#endif
        }
        to[i] += turn;
    }
}

ATTO_UNROLLED void atto_stash_b(const uint4 *raw, __local float *memory, uint *to, uint turn)
{
#pragma unroll
    for (uint i = 0; i < ATTO_B_COUNT; i++) {
        const uint vector = atto_item() + i * ATTO_GROUP;
        if (!ATTO_B_HAS(vector)) break;
        float v[ATTO_B_VEC];
        ATTO_B_UNPACK(raw[i], v);
#pragma unroll
        for (int e = 0; e < ATTO_B_VEC; e += 4) {
#if ATTO_B_TRANSPOSED
#pragma unroll
            for (int f = 0; f < 4; f++) {
                const int bits = (e + f) * 4;
                *(ATTO_TILE_K == 8 ? memory + to[i] + bits : memory + (to[i] ^ bits)) = v[e + f];
            }
#else
            __local float *at = memory + (to[i] ^ e / 2);
#pragma unroll
            for (int f = 0; f < 4; f++) at[(e + f) * ATTO_TILE_N] = v[e + f];
#endif
        }
        to[i] += turn;
    }
}

#endif
