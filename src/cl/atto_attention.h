/* SPDX-License-Identifier: MIT */
/* Tiles of attention: products between rows of two tensors, and what hides and drops scores.
 *
 * A work-group has a tile of ATTO_M x ATTO_N scores: M rows of one tensor, which stay, against N rows of
 * another, which pass by. A work-item has ITEM_M x ITEM_N of them:
 *
 *     columns  4 tx .. 4 tx + 3 of each block of 4 TX
 *     rows     4 ty .. 4 ty + 3 of each block of 4 TY
 *
 * and of the M x C sums that a tile goes into the same rows, and columns W tx .. of each block of W TX.
 * Operands come through local memory, KD (or KZ) steps of a product at a time, two buffers in turn, so
 * that next to no memory depends on the head's size.
 *
 *   -D              default  meaning
 *   ATTO_HEAD       64       D, elements of a row of q and k
 *   ATTO_OUT        64       E, elements of a row of v
 *   ATTO_M          64       rows of a tile, a multiple of 8
 *   ATTO_N          64       its columns: 32 or 64
 *   ATTO_ITEM_M     8        rows of a work-item: 4 or 8
 *   ATTO_ITEM_N     4        its columns: 4 or 8, at most an eighth of ATTO_N
 *   ATTO_HIDING              ATTO_MASK_NONE, _BOOLEAN or _ADDED
 *   ATTO_HIDING_IN    f32      dtype of those numbers
 *   ATTO_SPLIT      0        forward: 1: a work-group has a part of the keys, and leaves sums for
 *                            atto_attention_join
 *   ATTO_UNROLL     256      1: loops over a work-item's scores and sums stay loops, where these need
 *                            not be in registers: on CPUs, whose compilers take long over them
 *   ATTO_DROPOUT             see atto_dropout.h
 *   ATTO_VECTORS             rows of all inputs begin at 16 bytes and are made of whole vectors
 *   and ATTO_DTYPE of atto_kernel.h
 */
#ifndef ATTO_ATTENTION_H
#define ATTO_ATTENTION_H

#ifndef ATTO_HEAD
#define ATTO_HEAD 64
#endif
#ifndef ATTO_OUT
#define ATTO_OUT 64
#endif
#ifndef ATTO_M
#define ATTO_M 64
#endif
#ifndef ATTO_N
#define ATTO_N 64
#endif
#ifndef ATTO_ITEM_M
#define ATTO_ITEM_M 8
#endif
#ifndef ATTO_ITEM_N
#define ATTO_ITEM_N 4
#endif
#ifndef ATTO_UNROLL
#define ATTO_UNROLL 256
#endif
#ifndef ATTO_SPLIT
#define ATTO_SPLIT 0
#endif
#ifndef ATTO_HIDING
#define ATTO_HIDING ATTO_MASK_NONE
#endif
#ifndef ATTO_HIDING_IN
#define ATTO_HIDING_IN f32
#endif
#ifndef ATTO_GROUP
#define ATTO_GROUP (ATTO_M / ATTO_ITEM_M * (ATTO_N / ATTO_ITEM_N))
#endif

#include "atto_attention_sizes.h"
#include "atto_dropout.h"

#define TX (ATTO_N / ATTO_ITEM_N) /* work-items side by side */
#define TY (ATTO_M / ATTO_ITEM_M) /* and above each other */

/* A buffer of operands: KD steps of a product of scores, or KZ of one of sums. */
#define KD          ATTO_ATTENTION_STEPS
#define STAGE       (KD * (ATTO_M + ATTO_N))
#define WIDTH(size) (((size) + TX - 1) / TX * TX) /* of sums: whole columns of work-items */
#define KZ(size)    (STAGE / WIDTH(size) >= 16 ? 16 : STAGE / WIDTH(size) >= 8 ? 8 : 4)
#define SHARE(size) (WIDTH(size) / TX) /* columns of a work-item */
#define WORD(size)  (SHARE(size) % 4 == 0 ? 4 : SHARE(size) % 2 == 0 ? 2 : 1) /* side by side */

#define MOST_SHARE SHARE(ATTO_HEAD > ATTO_OUT ? ATTO_HEAD : ATTO_OUT)

/* Steps of a product in a loop's body: loads of the next ones go before the sums of the last. */
#ifdef ATTO_NVIDIA
#define ATTO_STEPS 8
#define ATTO_FOURS 2
#elif ATTO_UNROLL > 4
#define ATTO_STEPS 4
#define ATTO_FOURS 1
#else
#define ATTO_STEPS 1
#define ATTO_FOURS 1
#endif

/* A work-item's place. In every 8 that load together 4 columns and 2 rows: see atto_tx of gemm.cl. */
typedef struct place {
    uint item, tx, ty;
} place;

static inline place place_of_item(void)
{
    const uint item = get_local_id(0);
    const place at = { item, (item & 3) | (item >> 3) % (TX / 4) << 2,
                       (item >> 3) / (TX / 4) * 2 + (item >> 2 & 1) };
    return at;
}

static inline uint row_of(place at, uint i)
{
    return i / 4 * (4 * TY) + at.ty * 4 + i % 4;
}

static inline uint score_column_of(place at, uint j)
{
    return j / 4 * (4 * TX) + at.tx * 4 + j % 4;
}

/* ---- words of local memory ---- */

ATTO_UNROLLED void load_word(__local const float *p, uint word, float *v)
{
    if (word == 4) {
        const float4 four = *(__local const float4 *)p;
        ATTO_SPLIT_4(four, v);
    } else if (word == 2) {
        const float2 two = *(__local const float2 *)p;
        ATTO_SPLIT_2(two, v);
    } else {
        v[0] = *p;
    }
}

ATTO_UNROLLED void store_word(__local float *p, uint word, const float *v)
{
    if (word == 4)
        *(__local float4 *)p = (float4)(v[0], v[1], v[2], v[3]);
    else
        *p = v[0];
}

/* ---- rows of a tensor to local memory ---- */

/* Rows of one head: the first one, elements from one to the next, how many. */
typedef struct rows {
    __global const ATTO_T *first;
    ulong step;
    uint count;
} rows;

#if ATTO_VECTORS
#define UNIT    ATTO_VEC
#define NO_UNIT ((uint4)(0))
#else
#define UNIT    1
#define NO_UNIT ((ATTO_T)0)
#endif

static inline atto_raw unit_at(rows r, uint row, uint column, uint size, uint exists)
{
    return exists && row < r.count && column < size ? atto_load_unit(r.first, row * r.step + column)
                                                    : NO_UNIT;
}

/* Units of a work-item for a buffer of n elements. */
#define UNITS(n) (((n) / UNIT + ATTO_GROUP - 1) / ATTO_GROUP)

/* Columns d .. d + KD - 1 of `height` rows, work-items side by side along a row; they become
 * [KD][height], with rows moved about so that these work-items meet different banks. */
static inline uint row_place(uint row, uint k, uint height)
{
    return row ^ (k / 4 * (128 / KD) & (height - 1));
}

ATTO_UNROLLED void fetch_across(rows r, uint row, uint d, uint size, uint height, uint item,
                                atto_raw *raw)
{
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < UNITS(KD * height); i++) {
        const uint u = item + i * ATTO_GROUP;
        raw[i] = unit_at(r, row + u / (KD / UNIT), d + u % (KD / UNIT) * UNIT, size,
                         u < KD * height / UNIT);
    }
}

ATTO_UNROLLED void stash_across(const atto_raw *raw, uint height, uint item, __local float *to)
{
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < UNITS(KD * height); i++) {
        const uint u = item + i * ATTO_GROUP;
        float v[UNIT];
        atto_widen_unit(raw[i], v);
        if (u >= KD * height / UNIT) break;
#pragma unroll ATTO_UNROLL
        for (uint e = 0; e < UNIT; e++) {
            const uint k = u % (KD / UNIT) * UNIT + e;
            to[k * height + row_place(u / (KD / UNIT), k, height)] = v[e];
        }
    }
}

/* KZ rows, as [KZ][WIDTH(size)]. */
ATTO_UNROLLED void fetch_along(rows r, uint row, uint size, uint item, atto_raw *raw)
{
    const uint across = WIDTH(size) / UNIT;
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < UNITS(KZ(size) * WIDTH(size)); i++) {
        const uint u = item + i * ATTO_GROUP;
        raw[i] = unit_at(r, row + u / across, u % across * UNIT, size, u < KZ(size) * across);
    }
}

ATTO_UNROLLED void stash_along(const atto_raw *raw, uint size, uint item, __local float *to)
{
    const uint across = WIDTH(size) / UNIT;
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < UNITS(KZ(size) * WIDTH(size)); i++) {
        const uint u = item + i * ATTO_GROUP;
        float v[UNIT];
        atto_widen_unit(raw[i], v);
        if (u >= KZ(size) * across) break;
#pragma unroll ATTO_UNROLL
        for (uint e = 0; e < UNIT; e += UNIT < 4 ? 1 : 4)
            store_word(to + u * UNIT + e, UNIT < 4 ? 1 : 4, v + e);
    }
}

/* ---- products ---- */

/* s[i][j] = sum over d < size of x[m0 + row][d] times y[n0 + column][d]. All work-items pass, and
 * leave, together; nobody reads stage then. */
ATTO_UNROLLED void score(rows x, uint m0, rows y, uint n0, uint size, place at,
                         __local float *stage, float (*s)[ATTO_ITEM_N])
{
    atto_raw of_x[UNITS(KD * ATTO_M)], of_y[UNITS(KD * ATTO_N)];
    fetch_across(x, m0, 0, size, ATTO_M, at.item, of_x);
    fetch_across(y, n0, 0, size, ATTO_N, at.item, of_y);
    stash_across(of_x, ATTO_M, at.item, stage);
    stash_across(of_y, ATTO_N, at.item, stage + KD * ATTO_M);
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < ATTO_ITEM_M; i++) {
#pragma unroll ATTO_UNROLL
        for (uint j = 0; j < ATTO_ITEM_N; j++) s[i][j] = 0.0f;
    }
#pragma unroll 1
    for (uint d = 0; d < size; d += KD) {
        __local float *here = stage + (d / KD & 1) * STAGE, *next = stage + (~(d / KD) & 1) * STAGE;
        if (d + KD < size) {
            fetch_across(x, m0, d + KD, size, ATTO_M, at.item, of_x);
            fetch_across(y, n0, d + KD, size, ATTO_N, at.item, of_y);
        }
#pragma unroll ATTO_FOURS
        for (uint k = 0; k < KD; k += 4) {
            __local const float *of_a[ATTO_ITEM_M / 4], *of_b[ATTO_ITEM_N / 4];
#pragma unroll ATTO_UNROLL
            for (uint i = 0; i < ATTO_ITEM_M; i += 4)
                of_a[i / 4] = here + k * ATTO_M + row_place(row_of(at, i), k, ATTO_M);
#pragma unroll ATTO_UNROLL
            for (uint j = 0; j < ATTO_ITEM_N; j += 4)
                of_b[j / 4] =
                    here + KD * ATTO_M + k * ATTO_N + row_place(score_column_of(at, j), k, ATTO_N);
#pragma unroll ATTO_UNROLL
            for (uint r = 0; r < 4; r++) {
                float a[ATTO_ITEM_M], b[ATTO_ITEM_N];
#pragma unroll ATTO_UNROLL
                for (uint i = 0; i < ATTO_ITEM_M; i += 4)
                    load_word(of_a[i / 4] + r * ATTO_M, 4, a + i);
#pragma unroll ATTO_UNROLL
                for (uint j = 0; j < ATTO_ITEM_N; j += 4)
                    load_word(of_b[j / 4] + r * ATTO_N, 4, b + j);
#pragma unroll ATTO_UNROLL
                for (uint j = 0; j < ATTO_ITEM_N; j++) {
#pragma unroll ATTO_UNROLL
                    for (uint step = 0; step < ATTO_ITEM_M; step++) {
                        const uint i = j & 1 ? ATTO_ITEM_M - 1 - step : step;
                        s[i][j] = fma(a[i], b[j], s[i][j]);
                    }
                }
            }
        }
        if (d + KD < size) {
            stash_across(of_x, ATTO_M, at.item, next);
            stash_across(of_y, ATTO_N, at.item, next + KD * ATTO_M);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

/* Where rows 4 quad .. 4 quad + 3 of column n of a tile stand: [ATTO_N][ATTO_M], with quads moved
 * about so that work-items side by side meet different banks. */
static inline uint quad_place(uint n, uint quad)
{
    return n * ATTO_M + ((quad ^ (n >> 2 & (ATTO_M / 4 - 1))) << 2);
}

ATTO_UNROLLED void put_tile(float (*s)[ATTO_ITEM_N], place at, __local float *tile)
{
#pragma unroll ATTO_UNROLL
    for (uint j = 0; j < ATTO_ITEM_N; j++) {
#pragma unroll ATTO_UNROLL
        for (uint i = 0; i < ATTO_ITEM_M; i += 4)
            *(__local float4 *)(tile + quad_place(score_column_of(at, j), row_of(at, i) / 4)) =
                (float4)(s[i][j], s[i + 1][j], s[i + 2][j], s[i + 3][j]);
    }
}

/* The same scores, which each work-item had put there itself. */
ATTO_UNROLLED void get_tile(float (*s)[ATTO_ITEM_N], place at, __local const float *tile)
{
#pragma unroll ATTO_UNROLL
    for (uint j = 0; j < ATTO_ITEM_N; j++) {
#pragma unroll ATTO_UNROLL
        for (uint i = 0; i < ATTO_ITEM_M; i += 4) {
            float v[4];
            load_word(tile + quad_place(score_column_of(at, j), row_of(at, i) / 4), 4, v);
#pragma unroll ATTO_UNROLL
            for (uint e = 0; e < 4; e++) s[i + e][j] = v[e];
        }
    }
}

/* Column of a work-item's sum number c. */
static inline uint column_of(place at, uint c, uint size)
{
    return (c / WORD(size) * TX + at.tx) * WORD(size) + c % WORD(size);
}

/* sums[i * SHARE + c] += sum over the tile's columns n of tile[n][row] times z[n0 + n][column]. The
 * tile was put by all; who comes here leaves together with them, and nobody reads it or stage then. */
ATTO_UNROLLED void weigh(__local const float *tile, rows z, uint n0, uint size, place at,
                         __local float *stage, float *sums)
{
    atto_raw raw[UNITS(STAGE)];
    const uint columns = min((uint)ATTO_N, z.count - n0);
    fetch_along(z, n0, size, at.item, raw);
    stash_along(raw, size, at.item, stage);
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll 1
    for (uint n = 0; n < columns; n += KZ(size)) {
        __local float *here = stage + (n / KZ(size) & 1) * STAGE;
        __local float *next = stage + (~(n / KZ(size)) & 1) * STAGE;
        if (n + KZ(size) < columns) fetch_along(z, n0 + n + KZ(size), size, at.item, raw);
#pragma unroll ATTO_FOURS
        for (uint k = 0; k < KZ(size); k += 4) {
            __local const float *of_tile[ATTO_ITEM_M / 4];
#pragma unroll ATTO_UNROLL
            for (uint i = 0; i < ATTO_ITEM_M; i += 4)
                of_tile[i / 4] = tile + quad_place(n + k, row_of(at, i) / 4);
#pragma unroll ATTO_UNROLL
            for (uint r = 0; r < 4; r++) {
                float a[ATTO_ITEM_M], b[MOST_SHARE];
#pragma unroll ATTO_UNROLL
                for (uint i = 0; i < ATTO_ITEM_M; i += 4)
                    load_word(of_tile[i / 4] + r * ATTO_M, 4, a + i);
#pragma unroll ATTO_UNROLL
                for (uint c = 0; c < SHARE(size); c += WORD(size))
                    load_word(here + (k + r) * WIDTH(size) + column_of(at, c, size), WORD(size),
                              b + c);
#pragma unroll ATTO_UNROLL
                for (uint c = 0; c < SHARE(size); c++) {
#pragma unroll ATTO_UNROLL
                    for (uint step = 0; step < ATTO_ITEM_M; step++) {
                        const uint i = c & 1 ? ATTO_ITEM_M - 1 - step : step;
                        sums[i * SHARE(size) + c] = fma(a[i], b[c], sums[i * SHARE(size) + c]);
                    }
                }
            }
        }
        if (n + KZ(size) < columns) stash_along(raw, size, at.item, next);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

/* ---- which keys, and which of those ---- */

/* Sizes and numbers of a call, of one head. */
typedef struct scene {
    uint queries, keys;
    long seen; /* keys that query 0 sees, and one more for each query, if is_causal */
    uint is_causal;
    float scale;
    ulong first_index; /* of the random number of query 0 and key 0 */
} scene;

static inline uint keys_seen(const scene *c, uint query)
{
    const long seen = c->seen + query;
    return !c->is_causal ? c->keys : seen < 0 ? 0 : seen < c->keys ? (uint)seen : c->keys;
}

#if ATTO_HIDING == ATTO_MASK_BOOLEAN
typedef int mask_t;
#else
typedef ATTO_PASTE(atto_, ATTO_HIDING_IN) mask_t;
#endif

/* mask of a head, and its steps along queries and keys. */
typedef struct mask {
    __global const mask_t *first;
    ulong query, key;
} mask;

#if ATTO_HIDING
#define ATTO_HIDING_PARAMETERS \
    , __global const mask_t *mask_in, const ulong mask_at, const ulong4 mask_step
#define MASK_OF(b, h)                                                                   \
    {                                                                                   \
        mask_in + mask_at + (b)*mask_step.x + (h)*mask_step.y, mask_step.z, mask_step.w \
    }
#else
#define ATTO_HIDING_PARAMETERS
#define MASK_OF(b, h) \
    {                 \
        0, 0, 0       \
    }
#endif

/* A scaled score as softmax takes it. */
static inline float masked(const scene *c, const mask *m, uint query, uint key, float z)
{
    if (key >= keys_seen(c, query) || query >= c->queries) return -INFINITY;
#if ATTO_HIDING == ATTO_MASK_BOOLEAN
    z = m->first[query * m->query + key * m->key] ? z : -INFINITY;
#elif ATTO_HIDING == ATTO_MASK_ADDED
    z += ATTO_PASTE(atto_widen_, ATTO_HIDING_IN)(m->first[query * m->query + key * m->key]);
#endif
    return z;
}

/* Scores of a tile as softmax takes them; its rows are queries and its columns keys, or the other way
 * round. What a query that is not there sees does not matter where no mask is read. */
ATTO_UNROLLED void mask_tile(const scene *c, const mask *m, uint m0, uint n0, uint rows_are_queries,
                             place at, float (*s)[ATTO_ITEM_N])
{
    const uint all_seen = !ATTO_HIDING && (rows_are_queries ? n0 + ATTO_N <= keys_seen(c, m0)
                                                            : m0 + ATTO_M <= keys_seen(c, n0));
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < ATTO_ITEM_M; i++) {
#pragma unroll ATTO_UNROLL
        for (uint j = 0; j < ATTO_ITEM_N; j++) s[i][j] *= c->scale;
    }
    if (all_seen) return;
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < ATTO_ITEM_M; i++) {
#pragma unroll ATTO_UNROLL
        for (uint j = 0; j < ATTO_ITEM_N; j++) {
            const uint row = m0 + row_of(at, i), column = n0 + score_column_of(at, j);
            s[i][j] = rows_are_queries ? masked(c, m, row, column, s[i][j])
                                       : masked(c, m, column, row, s[i][j]);
        }
    }
}

#if ATTO_DROPOUT
/* Bits of four neighbouring keys from a multiple of 4 on that dropout keeps. */
static inline uint kept_keys(const scene *c, atto_mask m, uint query, uint key)
{
    const ulong i = c->first_index + (ulong)query * c->keys + key;
#if ATTO_DROPOUT == 1
    if (c->keys % 4 == 0) { /* the same for all work-items */
        const attom_u32x4 words = atto_mask_words(m, m.offset + i / 4);
        return attom_keep(words.w0, m.threshold) | attom_keep(words.w1, m.threshold) << 1 |
               attom_keep(words.w2, m.threshold) << 2 | attom_keep(words.w3, m.threshold) << 3;
    }
#endif
    uint bits = 0;
    for (uint e = 0; e < 4; e++) bits |= (uint)atto_kept(m, i + e) << e;
    return bits;
}

/* Bit j: dropout keeps the score in a work-item's column j of a row, a query. */
static inline uint kept_columns(const scene *c, atto_mask m, uint query, uint n0, place at)
{
    uint bits = 0;
    for (uint j = 0; j < ATTO_ITEM_N; j += 4)
        bits |= kept_keys(c, m, query, n0 + score_column_of(at, j)) << j;
    return bits;
}
#endif

/* A bit for each of a work-item's scores. */
#if ATTO_ITEM_M * ATTO_ITEM_N > 32
typedef ulong item_bits;
#else
typedef uint item_bits;
#endif

/* ---- results ---- */

/* Rows of the result: sums times a factor of each row, or what stands there and that. */
ATTO_UNROLLED void store_sums(__global ATTO_T *first, ulong step, uint m0, uint count, uint size,
                              place at, const float *factor, uint add, const float *sums)
{
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < ATTO_ITEM_M; i++) {
        const uint row = m0 + row_of(at, i);
#pragma unroll ATTO_UNROLL
        for (uint c = 0; c < SHARE(size); c++) {
            const uint column = column_of(at, c, size);
            if (row >= count || column >= size) continue;
            const size_t to = row * step + column;
            const float v = sums[i * SHARE(size) + c] * factor[i];
            atto_store(first, to, add ? v + atto_load(first, to) : v);
        }
    }
}

#endif
