/* SPDX-License-Identifier: MIT */
/* Attention between a block of keys and a block of queries, for attention.c.
 *
 * Everything is transposed: a block of scores is [keys][queries], with queries in the lanes of
 * vectors. Maximum, exponential and sum of a query's keys need no horizontal step then, and what
 * comes out lies as the next product reads it.
 *
 *   level     tile   registers: sums, a row of b, the broadcast element of a
 *   AVX-512   8x32   16 + 2 + 1 of 32
 *   AVX2      4x16    8 + 2 + 1 of 16
 *   base      4x8     8 + 2 + 1 + 1 of 16
 */
#ifndef ATTO_CPU_ATTENTION_BLOCK_H
#define ATTO_CPU_ATTENTION_BLOCK_H

#include "attention.h"
#include "backend_cpu/loops.h"
#include "backend_cpu/mask.h"
#include "backend_cpu/pack.h"

/* A block of scores is 16 KiB, so that one of probabilities and one of gradients stay in a first-
 * level cache. */
#define BLOCK_QUERIES 32
#define BLOCK_KEYS    128
#define BLOCK_SCORES  (BLOCK_KEYS * BLOCK_QUERIES)

#if VEC_LANES == 16
#define ROWS 8
#else
#define ROWS 4
#endif
#define VECS    2
#define COLUMNS (VECS * VEC_LANES)

ATTO_INLINE int32_t round_up_to(int32_t n, int32_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* ---- products ---- */

/* sum[i][..] += a(i, step) * b(step, ..) over k steps. Strides of a are constants at every call, or
 * one of them is 1. */
ATTO_INLINE void multiply(int32_t k, const float *a, int32_t a_row, int32_t a_step, const float *b,
                          int32_t b_step, vec sum[ROWS][VECS])
{
    for (int32_t step = 0; step < k; step++) {
        vec row[VECS];
        VEC_UNROLL
        for (int32_t j = 0; j < VECS; j++) row[j] = vec_load(b + j * VEC_LANES);
        VEC_UNROLL
        for (int32_t i = 0; i < ROWS; i++) {
            const vec x = vec_all(a[i * a_row]);
            VEC_UNROLL
            for (int32_t j = 0; j < VECS; j++) sum[i][j] += x * row[j];
        }
        a += a_step;
        b += b_step;
    }
}

ATTO_INLINE void load_tile(const float *c, int32_t stride, vec sum[ROWS][VECS])
{
    VEC_UNROLL
    for (int32_t i = 0; i < ROWS; i++) {
        VEC_UNROLL
        for (int32_t j = 0; j < VECS; j++) sum[i][j] = vec_load(c + i * stride + j * VEC_LANES);
    }
}

ATTO_INLINE void store_tile(vec sum[ROWS][VECS], float *c, int32_t stride)
{
    VEC_UNROLL
    for (int32_t i = 0; i < ROWS; i++) {
        VEC_UNROLL
        for (int32_t j = 0; j < VECS; j++) vec_store(c + i * stride + j * VEC_LANES, sum[i][j]);
    }
}

/* scores[key][query] = sum over d of keys' panels[key / ROWS][d][key % ROWS] times queries[d][query];
 * as many of the block's queries as are there, whole tiles. */
static void score(const float *panels, const float *queries, int32_t d, int32_t keys, int32_t rows,
                  float *scores)
{
    for (int32_t key = 0; key < keys; key += ROWS) {
        for (int32_t q = 0; q < rows; q += COLUMNS) {
            vec sum[ROWS][VECS] = { { { 0 } } };
            multiply(d, panels + key * d, 1, ROWS, queries + q, BLOCK_QUERIES, sum);
            store_tile(sum, scores + key * BLOCK_QUERIES + q, BLOCK_QUERIES);
        }
    }
}

/* out[e][query] = out[e][query] * share[query] + sum over keys of values[key][e] times
 * p[key][query]; share NULL: 1. width: elements of a row of values, a multiple of ROWS. */
static void weigh(const float *values, int32_t width, const float *p, int32_t keys, int32_t rows,
                  const float *share, float *out)
{
    for (int32_t e = 0; e < width; e += ROWS) {
        for (int32_t q = 0; q < rows; q += COLUMNS) {
            float *to = out + e * BLOCK_QUERIES + q;
            vec sum[ROWS][VECS];
            load_tile(to, BLOCK_QUERIES, sum);
            VEC_UNROLL
            for (int32_t j = 0; share && j < VECS; j++) {
                const vec s = vec_load(share + q + j * VEC_LANES);
                VEC_UNROLL
                for (int32_t i = 0; i < ROWS; i++) sum[i][j] *= s;
            }
            multiply(keys, values + e, 1, width, p + q, BLOCK_QUERIES, sum);
            store_tile(sum, to, BLOCK_QUERIES);
        }
    }
}

/* out[key][e] += sum over queries of p[key][query] times rows_of[query][e]; width is a multiple of
 * COLUMNS. */
static void collect(const float *p, const float *rows_of, int32_t width, int32_t keys, int32_t rows,
                    float *out)
{
    for (int32_t e = 0; e < width; e += COLUMNS) {
        for (int32_t key = 0; key < keys; key += ROWS) {
            float *to = out + key * width + e;
            vec sum[ROWS][VECS];
            load_tile(to, width, sum);
            multiply(rows, p + key * BLOCK_QUERIES, BLOCK_QUERIES, 1, rows_of + e, width, sum);
            store_tile(sum, to, width);
        }
    }
}

/* ---- packing ---- */

static const char *element_of(const atto_tensor *t, int64_t at)
{
    return (const char *)atto__memory(t) + (t->offset + at) * (int64_t)atto_dtype_size(t->dtype);
}

/* Rows of size floats, stride apart in t from element at on, as [size][BLOCK_QUERIES]; columns that
 * are not there are 0. */
static void pack_columns(const atto_tensor *t, int64_t at, int64_t stride, int32_t rows,
                         int32_t size, float scale, float *to)
{
    pack_panels(element_of(t, at), stride, t->dtype, true, rows, size, BLOCK_QUERIES, to);
    if (scale == 1.0f) return;
    ATTO_SIMD
    for (int32_t i = 0; i < size * BLOCK_QUERIES; i++) to[i] *= scale;
}

/* The same as rows of `width` floats, of which size are there. */
static void pack_rows(const atto_tensor *t, int64_t at, int64_t stride, int32_t rows, int32_t size,
                      float scale, int32_t width, float *to)
{
    pack_panels(element_of(t, at), stride, t->dtype, false, size, rows, width, to);
    if (scale == 1.0f) return;
    ATTO_SIMD
    for (int32_t i = 0; i < rows * width; i++) to[i] *= scale;
}

/* The same as panels of ROWS of them. */
static void pack_keys(const atto_tensor *t, int64_t at, int64_t stride, int32_t keys, int32_t size,
                      float *to)
{
    pack_panels(element_of(t, at), stride, t->dtype, true, keys, size, ROWS, to);
}

/* ---- masks ---- */

/* What a block of scores needs to know of its place. */
typedef struct block {
    int32_t rows, keys;          /* how many queries and keys are there */
    int64_t key;                 /* number of the first */
    int32_t seen[BLOCK_QUERIES]; /* keys of this block that each query sees, mask aside */
    bool sees_all;
    const atto_tensor *mask; /* NULL: none */
    int64_t mask_at, mask_row, mask_key;
    const atto__mask *drop;    /* NULL: none */
    uint64_t index, index_row; /* logical index of the first query's key number 0; per query */
} block;

/* Scratch for masks: two blocks. */
#define MASK_FLOATS (2 * BLOCK_SCORES)

/* The mask's elements as they are stored, f32 or i32, or widened, as [keys][BLOCK_QUERIES]. */
static void load_mask(const block *b, float *to)
{
    const int64_t at = b->mask_at + b->key * b->mask_key;
    const atto_dtype dtype = b->mask->dtype == ATTO_I32 ? ATTO_F32 : b->mask->dtype;
    const char *from = element_of(b->mask, at);
    if (b->mask_key == 1) {
        pack_panels(from, b->mask_row, dtype, true, b->rows, b->keys, BLOCK_QUERIES, to);
        return;
    }
    memset(to, 0, BLOCK_QUERIES * sizeof *to);
    for (int32_t q = 0; q < b->rows; q++) to[q] = vec_one_as(from, q * b->mask_row, dtype);
    for (int32_t key = 1; key < b->keys; key++)
        memcpy(to + key * BLOCK_QUERIES, to, BLOCK_QUERIES * sizeof *to);
}

static void apply_mask(const block *b, float *room, float *scores)
{
    load_mask(b, room);
    const int32_t n = b->keys * BLOCK_QUERIES;
    if (b->mask->dtype == ATTO_I32) {
        ATTO_SIMD
        for (int32_t i = 0; i < n; i++) scores[i] = attop_bits(room[i]) ? scores[i] : -INFINITY;
    } else {
        ATTO_SIMD
        for (int32_t i = 0; i < n; i++) scores[i] += room[i];
    }
}

/* Hides the keys that a query does not see, and those behind the last one. keys: whole tiles. */
static void hide(const block *b, int32_t keys, float *scores)
{
    if (b->sees_all && keys == b->keys) return;
    for (int32_t key = 0; key < keys; key++) {
        float *row = scores + key * BLOCK_QUERIES;
        ATTO_SIMD
        for (int32_t q = 0; q < BLOCK_QUERIES; q++) row[q] = key < b->seen[q] ? row[q] : -INFINITY;
    }
}

/* What dropout makes of each probability: 0, or what it is scaled by, as [keys][BLOCK_QUERIES]; NULL
 * where there is none. */
static const float *factors_of(const block *b, float *room)
{
    if (!b->drop) return NULL;
    float *rows = room + BLOCK_SCORES;
    for (int32_t q = 0; q < b->rows; q++) {
        float *row = rows + q * BLOCK_KEYS;
        for (int32_t key = 0; key < b->keys; key++) row[key] = 1.0f;
        const uint64_t first = b->index + (uint64_t)q * b->index_row + (uint64_t)b->key;
        drop_values(row, b->keys, b->drop, first, 1);
    }
    pack_panels(rows, BLOCK_KEYS, ATTO_F32, true, b->rows, b->keys, BLOCK_QUERIES, room);
    return room;
}

/* ---- softmax ---- */

/* Of each query: the largest score yet, and the sum of e^(score - largest). */
typedef struct online {
    float top[BLOCK_QUERIES], sum[BLOCK_QUERIES];
} online;

/* Scores become e^(score - top), with the top of all scores yet; share: what that makes of sums
 * before. A query that has seen no key has top -inf and sum 0. */
static void exponentiate(online *o, int32_t keys, float *scores, float *share)
{
    float base[BLOCK_QUERIES], sum[BLOCK_QUERIES];
    for (int32_t q = 0; q < BLOCK_QUERIES; q += VEC_LANES) {
        vec top = vec_load(o->top + q);
        for (int32_t key = 0; key < keys; key++)
            top = vec_max(vec_load(scores + key * BLOCK_QUERIES + q), top);
        vec_store(base + q, top);
    }
    ATTO_SIMD
    for (int32_t q = 0; q < BLOCK_QUERIES; q++) {
        const float top = base[q], from = top == -INFINITY ? 0.0f : top;
        share[q] = attop_exp_neg(o->top[q] - from);
        sum[q] = o->sum[q] * share[q];
        o->top[q] = top;
        base[q] = from;
    }
    for (int32_t key = 0; key < keys; key++) {
        float *row = scores + key * BLOCK_QUERIES;
        ATTO_SIMD
        for (int32_t q = 0; q < BLOCK_QUERIES; q++) {
            const float e = attop_exp_neg(row[q] - base[q]);
            row[q] = e;
            sum[q] += e;
        }
    }
    memcpy(o->sum, sum, sizeof sum);
}

/* a *= b, element by element. */
static void scale_by(const float *b, int32_t n, float *a)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) a[i] *= b[i];
}

/* Of each query: the logarithm of its sum, what rounding took from that, and the sum of dy * y. */
typedef struct row_sums {
    float lse[BLOCK_QUERIES], lse_low[BLOCK_QUERIES], delta[BLOCK_QUERIES];
} row_sums;

/* Scores become probabilities, as dropout leaves them; d, gradients of those, becomes the gradient
 * of the scores. factors NULL: no dropout. */
static void differentiate(const row_sums *of, const float *factors, int32_t keys, float *scores,
                          float *d)
{
    for (int32_t key = 0; key < keys; key++) {
        const int32_t at = key * BLOCK_QUERIES;
        float *p = scores + at, *dp = d + at;
        if (factors) scale_by(factors + at, BLOCK_QUERIES, dp);
        ATTO_SIMD
        for (int32_t q = 0; q < BLOCK_QUERIES; q++) {
            const float e = attop_exp_neg((p[q] - of->lse[q]) - of->lse_low[q]);
            dp[q] = e * (dp[q] - of->delta[q]);
            p[q] = e;
        }
        if (factors) scale_by(factors + at, BLOCK_QUERIES, p);
    }
}

#endif
