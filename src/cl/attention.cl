/* SPDX-License-Identifier: MIT */
/* attention.cl - attention without a matrix of probabilities in memory.
 *
 *   atto_attention_forward   a work-group has ATTO_M queries of a head and goes over its keys: scores,
 *                            softmax as far as keys have come, their share of y
 *   atto_attention_join      where heads and queries are few, keys are shared out to work-groups: y from
 *                            the sums of theirs
 *   atto_attention_delta     the sum of dy * y of each query; work-groups of any size
 *   atto_attention_keys      dk and dv: a work-group has ATTO_M keys and goes over the queries of all
 *                            heads that share them, in order
 *   atto_attention_queries   dq: a work-group has ATTO_M queries and goes over their keys
 *
 * Backward computes scores and probabilities again in both of its large kernels: seven products for the
 * five of one that adds dq up in memory, where the order of sums would be chance. Tiles and knobs:
 * atto_attention.h.
 *
 * Work-groups count heads of all batches first, so that those with most to do under a causal mask start
 * first.
 *
 * Source: Dao et al. 2022, "FlashAttention"; Dao 2023, "FlashAttention-2".
 */
#include "atto_attention.h"
#include "atto_reduce.h"

/* What all large kernels need to know of the call. */
#define ATTO_SCENE_PARAMETERS                                                                    \
    , const uint heads, const uint shared, const uint queries, const uint keys, const long seen, \
        const uint is_causal,                                                                    \
        const float logit_scale ATTO_HIDING_PARAMETERS ATTO_DROPOUT_PARAMETERS

/* What dropout scales by; nothing where there is none. */
#if ATTO_DROPOUT
#define DROP_SCALE ATTO_MASK.scale
#else
#define DROP_SCALE 1.0f
#endif

#define SCENE_OF(b, h)                                                                        \
    {                                                                                         \
        queries, keys, seen, is_causal, logit_scale, ((ulong)(b)*heads + (h)) * queries *keys \
    }

/* Rows of head h of batch b. */
#define ROWS_OF(t, b, h, count)                                         \
    {                                                                   \
        t + t##_at + (b)*t##_step.x + (h)*t##_step.y, t##_step.z, count \
    }

#define MEMORY                                                    \
    __local float stage[2 * STAGE] __attribute__((aligned(128))); \
    __local float tile[ATTO_M * ATTO_N] __attribute__((aligned(128)))

/* ---- rows of a tile: each work-item has one number for each of its own, those side by side fold
 * theirs ---- */

#if ATTO_NVIDIA >= 70 && ATTO_GROUP >= 32
/* Lanes of a row differ in bits 0, 1, 3 and, of 16, 4 of their number. */
#define FOLD_ROWS(v, stage, at, operation)                           \
    do {                                                             \
        for (uint i = 0; i < ATTO_ITEM_M; i++) {                     \
            v[i] = operation(v[i], atto_swap(v[i], 1));              \
            v[i] = operation(v[i], atto_swap(v[i], 2));              \
            v[i] = operation(v[i], atto_swap(v[i], 8));              \
            if (TX > 8) v[i] = operation(v[i], atto_swap(v[i], 16)); \
        }                                                            \
    } while (0)
#else
#define FOLD_ROWS(v, stage, at, operation)                                                       \
    do {                                                                                         \
        for (uint i = 0; i < ATTO_ITEM_M; i++) stage[row_of(at, i) * TX + at.tx] = v[i];         \
        barrier(CLK_LOCAL_MEM_FENCE);                                                            \
        for (uint i = 0; i < ATTO_ITEM_M; i++) {                                                 \
            v[i] = stage[row_of(at, i) * TX];                                                    \
            for (uint x = 1; x < TX; x++) v[i] = operation(v[i], stage[row_of(at, i) * TX + x]); \
        }                                                                                        \
        barrier(CLK_LOCAL_MEM_FENCE);                                                            \
    } while (0)
#endif

/* Of a part of the keys, each row's sums with the largest score and the sum of e^(score - largest)
 * behind them. */
#define PART_FLOATS ATTO_ATTENTION_PART(ATTO_OUT)
#if ATTO_SPLIT
#define ATTO_SPLIT_PARAMETERS \
    , __global float *partial, const ulong partial_at, const uint part_keys
#else
#define ATTO_SPLIT_PARAMETERS
#endif

/* Logarithms of rows' sums, and what rounding took from them. given: bit 0: lse is there, 1: lse_low. */
#define ATTO_LSE_PARAMETERS(access)                                                            \
    __global access *lse, const ulong lse_at, const ulong4 lse_step, __global access *lse_low, \
        const ulong lse_low_at, const ulong4 lse_low_step, const uint lse_given

/* Of one row, whose sum is 0 where it sees nothing. */
static inline void put_lse(__global float *lse, __global float *lse_low, uint given, float top,
                           float sum)
{
    const float last = log(sum), rounded = top + last;
    if (given & 1) *lse = sum == 0.0f ? INFINITY : rounded;
    if (given & 2) *lse_low = sum == 0.0f ? 0.0f : (top - rounded) + last;
}

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_attention_forward)

/* Of each row: the largest score yet, and this work-item's part of the sum of e^(score - largest). */
typedef struct online {
    float top[ATTO_ITEM_M], sum[ATTO_ITEM_M];
} online;

/* Scores become e^(score - top), with the top of all scores yet; what stood before is rescaled. */
ATTO_UNROLLED void exponentiate(online *o, float (*s)[ATTO_ITEM_N], float *sums, place at,
                                __local float *stage)
{
    float top[ATTO_ITEM_M];
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < ATTO_ITEM_M; i++) {
        top[i] = s[i][0];
#pragma unroll ATTO_UNROLL
        for (uint j = 1; j < ATTO_ITEM_N; j++) top[i] = fmax(top[i], s[i][j]);
    }
    FOLD_ROWS(top, stage, at, fmax);
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < ATTO_ITEM_M; i++) {
        const float highest = fmax(top[i], o->top[i]);
        const float from = highest == -INFINITY ? 0.0f : highest;
        const float share = attop_exp_share(o->top[i] - from);
        float sum = o->sum[i] * share;
#pragma unroll ATTO_UNROLL
        for (uint j = 0; j < ATTO_ITEM_N; j++) {
            s[i][j] = attop_exp_share(s[i][j] - from);
            sum += s[i][j];
        }
        o->top[i] = highest;
        o->sum[i] = sum;
#pragma unroll ATTO_UNROLL
        for (uint c = 0; c < SHARE(ATTO_OUT); c++) sums[i * SHARE(ATTO_OUT) + c] *= share;
    }
}

#if ATTO_SPLIT
/* Sums of a part of the keys as they are. */
ATTO_UNROLLED void put_part(__global float *to, uint m0, uint count, place at, const online *o,
                            const float *sums)
{
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < ATTO_ITEM_M; i++) {
        const uint row = m0 + row_of(at, i);
        if (row >= count) continue;
#pragma unroll ATTO_UNROLL
        for (uint c = 0; c < SHARE(ATTO_OUT); c++)
            if (column_of(at, c, ATTO_OUT) < ATTO_OUT)
                to[row * (size_t)PART_FLOATS + column_of(at, c, ATTO_OUT)] =
                    sums[i * SHARE(ATTO_OUT) + c];
        if (at.tx > 0) continue;
        to[row * (size_t)PART_FLOATS + ATTO_OUT] = o->top[i];
        to[row * (size_t)PART_FLOATS + ATTO_OUT + 1] = o->sum[i];
    }
}
#else
/* What each row's sums are to be multiplied by. Where no key was seen they become 0, whatever v has
 * there. */
ATTO_UNROLLED void invert_sums(const online *o, float *inverse, float *sums)
{
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < ATTO_ITEM_M; i++) {
        inverse[i] = o->sum[i] == 0.0f ? 0.0f : 1.0f / o->sum[i];
        if (o->sum[i] != 0.0f) continue;
#pragma unroll ATTO_UNROLL
        for (uint c = 0; c < SHARE(ATTO_OUT); c++) sums[i * SHARE(ATTO_OUT) + c] = 0.0f;
    }
}

/* By the first work-item of each row. */
ATTO_UNROLLED void put_rows_lse(__global float *lse, ulong step, __global float *lse_low,
                                ulong low_step, uint given, uint m0, uint count, place at,
                                const online *o)
{
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < ATTO_ITEM_M; i++) {
        const uint row = m0 + row_of(at, i);
        if (row < count)
            put_lse(lse + row * step, lse_low + row * low_step, given, o->top[i], o->sum[i]);
    }
}
#endif

#if ATTO_DROPOUT
ATTO_UNROLLED void drop_rows(const scene *c, atto_mask m, uint m0, uint n0, place at,
                             float (*s)[ATTO_ITEM_N])
{
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < ATTO_ITEM_M; i++) {
        const uint kept = kept_columns(c, m, m0 + row_of(at, i), n0, at);
#pragma unroll ATTO_UNROLL
        for (uint j = 0; j < ATTO_ITEM_N; j++)
            s[i][j] = atto_drop_if(kept >> j & 1, s[i][j], m.scale);
    }
}
#endif

__kernel __attribute__((reqd_work_group_size(ATTO_GROUP, 1, 1))) void atto_attention_forward(
    __global const ATTO_T *q, const ulong q_at, const ulong4 q_step, __global const ATTO_T *k,
    const ulong k_at, const ulong4 k_step, __global const ATTO_T *v, const ulong v_at,
    const ulong4 v_step, __global ATTO_T *y, const ulong y_at, const ulong4 y_step,
    ATTO_LSE_PARAMETERS(float) ATTO_SPLIT_PARAMETERS, const uint batches ATTO_SCENE_PARAMETERS)
{
    MEMORY;
    const place at = place_of_item();
    const uint tiles = (queries + ATTO_M - 1) / ATTO_M, all = batches * heads;
    const uint number = get_group_id(0) / all, part = number / tiles;
    const uint m0 = (tiles - 1 - number % tiles) * ATTO_M;
    const uint head = get_group_id(0) % all, b = head / heads, h = head % heads;
    const rows of_q = ROWS_OF(q, b, h, queries), of_k = ROWS_OF(k, b, h / shared, keys);
    const rows of_v = ROWS_OF(v, b, h / shared, keys);
    const scene c = SCENE_OF(b, h);
    const mask m = MASK_OF(b, h);
    uint begin = 0, end = keys_seen(&c, min(m0 + ATTO_M, queries) - 1);
#if ATTO_SPLIT
    begin = part * part_keys;
    end = min(end, begin + part_keys);
#endif
    online o;
    float sums[ATTO_ITEM_M * SHARE(ATTO_OUT)];
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < ATTO_ITEM_M; i++) {
        o.top[i] = -INFINITY;
        o.sum[i] = 0.0f;
    }
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < ATTO_ITEM_M * SHARE(ATTO_OUT); i++) sums[i] = 0.0f;
#pragma unroll 1
    for (uint n0 = begin; n0 < end; n0 += ATTO_N) {
        float s[ATTO_ITEM_M][ATTO_ITEM_N];
        score(of_q, m0, of_k, n0, ATTO_HEAD, at, stage, s);
        mask_tile(&c, &m, m0, n0, 1, at, s);
        exponentiate(&o, s, sums, at, stage);
#if ATTO_DROPOUT
        drop_rows(&c, ATTO_MASK, m0, n0, at, s);
#endif
        put_tile(s, at, tile);
        weigh(tile, of_v, n0, ATTO_OUT, at, stage, sums);
    }
    FOLD_ROWS(o.sum, stage, at, ATTO_ADD);
#if ATTO_SPLIT
    put_part(partial + partial_at + ((size_t)part * all + head) * queries * PART_FLOATS, m0,
             queries, at, &o, sums);
#else
    float inverse[ATTO_ITEM_M];
    invert_sums(&o, inverse, sums);
    if (lse_given && at.tx == 0)
        put_rows_lse(lse + lse_at + b * lse_step.x + h * lse_step.y, lse_step.z,
                     lse_low + lse_low_at + b * lse_low_step.x + h * lse_low_step.y, lse_low_step.z,
                     lse_given, m0, queries, at, &o);
    store_sums(y + y_at + b * y_step.x + h * y_step.y, y_step.z, m0, queries, ATTO_OUT, at, inverse,
               0, sums);
#endif
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_attention_join)
/* A work-group has a row of [batches, heads, queries], each of which the parts have summed up. */
__kernel __attribute__((reqd_work_group_size(ATTO_GROUP, 1, 1))) void
atto_attention_join(__global const float *partial, const ulong partial_at, __global ATTO_T *y,
                    const ulong y_at, const ulong4 y_step, ATTO_LSE_PARAMETERS(float),
                    const uint parts, const uint heads, const uint queries,
                    const ulong rows_of_a_part)
{
    const size_t number = get_group_id(0), query = number % queries, head = number / queries;
    const size_t h = head % heads, b = head / heads, step = rows_of_a_part * PART_FLOATS;
    partial += partial_at + number * PART_FLOATS;
    float top = -INFINITY, sum = 0.0f;
    for (uint p = 0; p < parts; p++) top = fmax(top, partial[p * step + ATTO_OUT]);
    const float from = top == -INFINITY ? 0.0f : top;
    for (uint p = 0; p < parts; p++)
        sum +=
            partial[p * step + ATTO_OUT + 1] * attop_exp_share(partial[p * step + ATTO_OUT] - from);
    for (uint e = get_local_id(0); e < ATTO_OUT; e += ATTO_GROUP) {
        float v = 0.0f;
        for (uint p = 0; p < parts; p++)
            v += partial[p * step + e] * attop_exp_share(partial[p * step + ATTO_OUT] - from);
        atto_store(y, y_at + b * y_step.x + h * y_step.y + query * y_step.z + e,
                   sum == 0.0f ? 0.0f : v / sum);
    }
    if (get_local_id(0) == 0)
        put_lse(lse + lse_at + b * lse_step.x + h * lse_step.y + query * lse_step.z,
                lse_low + lse_low_at + b * lse_low_step.x + h * lse_low_step.y +
                    query * lse_low_step.z,
                lse_given, top, sum);
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_attention_delta)

/* delta is [batches, heads, queries]; count of its elements. */
__kernel __attribute__((reqd_work_group_size(ATTO_GROUP, 1, 1))) void
atto_attention_delta(__global const ATTO_T *y, const ulong y_at, const ulong4 y_step,
                     __global const ATTO_T *dy, const ulong dy_at, const ulong4 dy_step,
                     __global float *delta, const ulong delta_at, const uint heads,
                     const uint queries, const ulong count)
{
    __local float parts[ATTO_GROUP];
    const uint item = get_local_id(0);
    const size_t number = get_group_id(0) * (size_t)(ATTO_GROUP / ATTO_ATTENTION_ACROSS) +
                          item / ATTO_ATTENTION_ACROSS;
    float sum = 0.0f;
    if (number < count) {
        const size_t query = number % queries, head = number / queries;
        const size_t h = head % heads, b = head / heads;
        y += y_at + b * y_step.x + h * y_step.y + query * y_step.z;
        dy += dy_at + b * dy_step.x + h * dy_step.y + query * dy_step.z;
        for (uint e = item % ATTO_ATTENTION_ACROSS; e < ATTO_OUT; e += ATTO_ATTENTION_ACROSS)
            sum = fma(atto_load(y, e), atto_load(dy, e), sum);
    }
    parts[item] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item % ATTO_ATTENTION_ACROSS != 0 || number >= count) return;
    for (uint e = 1; e < ATTO_ATTENTION_ACROSS; e++) sum += parts[item + e];
    delta[delta_at + number] = sum;
}
#endif

/* ---- backward ---- */

/* Rows of lse, lse_low and delta of a head. */
typedef struct row_sums {
    __global const float *lse, *lse_low, *delta;
    ulong step, low_step; /* of lse and lse_low */
    uint has_low;
} row_sums;

#define ROW_SUMS_OF(b, h)                                                                       \
    {                                                                                           \
        lse + lse_at + (b)*lse_step.x + (h)*lse_step.y,                                         \
            lse_low + lse_low_at + (b)*lse_low_step.x + (h)*lse_low_step.y,                     \
            delta + delta_at + ((size_t)(b)*heads + (h)) * queries, lse_step.z, lse_low_step.z, \
            lse_given & 2                                                                       \
    }

/* Of a query that is not there: one whose probabilities are 0. */
static inline float lse_of(const scene *c, const row_sums *r, uint query)
{
    return query < c->queries ? r->lse[query * r->step] : INFINITY;
}

static inline float lse_low_of(const scene *c, const row_sums *r, uint query)
{
    return r->has_low && query < c->queries ? r->lse_low[query * r->low_step] : 0.0f;
}

static inline float delta_of(const scene *c, const row_sums *r, uint query)
{
    return query < c->queries ? r->delta[query] : 0.0f;
}

/* The gradient of a score: p its probability, d that of the dropped one. */
static inline float of_score(float p, float d, float delta, uint kept, float scale)
{
#if ATTO_DROPOUT
    d = atto_drop_if(kept, d, scale);
#endif
    return p * (d - delta);
}

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_attention_keys)
/* Scores become probabilities; columns are queries. */
ATTO_UNROLLED void exponentiate_columns(const scene *c, const row_sums *r, uint n0, place at,
                                        float (*s)[ATTO_ITEM_N])
{
#pragma unroll ATTO_UNROLL
    for (uint j = 0; j < ATTO_ITEM_N; j++) {
        const float top = lse_of(c, r, n0 + score_column_of(at, j));
        const float low = lse_low_of(c, r, n0 + score_column_of(at, j));
#pragma unroll ATTO_UNROLL
        for (uint i = 0; i < ATTO_ITEM_M; i++) s[i][j] = attop_exp_share((s[i][j] - top) - low);
    }
}

#if ATTO_DROPOUT
/* out: what dropout leaves of s. Returns which it keeps: bit i * ATTO_ITEM_N + j. */
ATTO_UNROLLED item_bits drop_columns(const scene *c, atto_mask m, uint m0, uint n0, place at,
                                     float (*s)[ATTO_ITEM_N], float (*out)[ATTO_ITEM_N])
{
    item_bits kept = 0;
#pragma unroll ATTO_UNROLL
    for (uint j = 0; j < ATTO_ITEM_N; j++) {
#pragma unroll ATTO_UNROLL
        for (uint i = 0; i < ATTO_ITEM_M; i += 4) {
            const uint keys_kept = kept_keys(c, m, n0 + score_column_of(at, j), m0 + row_of(at, i));
#pragma unroll ATTO_UNROLL
            for (uint e = 0; e < 4; e++) {
                kept |= (item_bits)(keys_kept >> e & 1) << ((i + e) * ATTO_ITEM_N + j);
                out[i + e][j] = atto_drop_if(keys_kept >> e & 1, s[i + e][j], m.scale);
            }
        }
    }
    return kept;
}
#endif

/* d, gradients of dropped probabilities, become those of scores; p: probabilities. */
ATTO_UNROLLED void differentiate_columns(const scene *c, const row_sums *r, uint n0, place at,
                                         float (*p)[ATTO_ITEM_N], item_bits kept, float drop_scale,
                                         float (*d)[ATTO_ITEM_N])
{
#pragma unroll ATTO_UNROLL
    for (uint j = 0; j < ATTO_ITEM_N; j++) {
        const float delta = delta_of(c, r, n0 + score_column_of(at, j));
#pragma unroll ATTO_UNROLL
        for (uint i = 0; i < ATTO_ITEM_M; i++)
            d[i][j] = of_score(p[i][j], d[i][j], delta, (uint)(kept >> (i * ATTO_ITEM_N + j)) & 1,
                               drop_scale);
    }
}

__kernel __attribute__((reqd_work_group_size(ATTO_GROUP, 1, 1))) void atto_attention_keys(
    __global const ATTO_T *q, const ulong q_at, const ulong4 q_step, __global const ATTO_T *k,
    const ulong k_at, const ulong4 k_step, __global const ATTO_T *v, const ulong v_at,
    const ulong4 v_step, __global const ATTO_T *dy, const ulong dy_at, const ulong4 dy_step,
    ATTO_LSE_PARAMETERS(const float), __global const float *delta, const ulong delta_at,
    __global ATTO_T *dk, const ulong dk_at, const ulong4 dk_step, __global ATTO_T *dv,
    const ulong dv_at, const ulong4 dv_step, const uint wanted, const uint add,
    const uint batches ATTO_SCENE_PARAMETERS)
{
    MEMORY;
    const place at = place_of_item();
    const uint all = batches * (heads / shared);
    const uint m0 = (uint)(get_group_id(0) / all) * ATTO_M;
    const uint head = get_group_id(0) % all, b = head / (heads / shared);
    const uint g = head % (heads / shared);
    const rows of_k = ROWS_OF(k, b, g, keys), of_v = ROWS_OF(v, b, g, keys);
    float of_dk[ATTO_ITEM_M * SHARE(ATTO_HEAD)], of_dv[ATTO_ITEM_M * SHARE(ATTO_OUT)];
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < ATTO_ITEM_M * SHARE(ATTO_HEAD); i++) of_dk[i] = 0.0f;
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < ATTO_ITEM_M * SHARE(ATTO_OUT); i++) of_dv[i] = 0.0f;
    const long first = is_causal ? (long)m0 + 1 - seen : 0; /* query that sees key m0 */
    const uint begin = first <= 0 ? 0 : first < queries ? (uint)first / ATTO_N * ATTO_N : queries;
#pragma unroll 1
    for (uint h = g * shared; h < (g + 1) * shared; h++) {
        const rows of_q = ROWS_OF(q, b, h, queries), of_dy = ROWS_OF(dy, b, h, queries);
        const scene c = SCENE_OF(b, h);
        const mask m = MASK_OF(b, h);
        const row_sums of_rows = ROW_SUMS_OF(b, h);
#pragma unroll 1
        for (uint n0 = begin; n0 < queries; n0 += ATTO_N) {
            float s[ATTO_ITEM_M][ATTO_ITEM_N], d[ATTO_ITEM_M][ATTO_ITEM_N];
            score(of_k, m0, of_q, n0, ATTO_HEAD, at, stage, s);
            mask_tile(&c, &m, m0, n0, 0, at, s);
            exponentiate_columns(&c, &of_rows, n0, at, s);
            item_bits kept = 0;
#if ATTO_DROPOUT
            kept = drop_columns(&c, ATTO_MASK, m0, n0, at, s, d);
#endif
            put_tile(ATTO_DROPOUT ? d : s, at, tile);
            weigh(tile, of_dy, n0, ATTO_OUT, at, stage, of_dv);
            score(of_v, m0, of_dy, n0, ATTO_OUT, at, stage, d);
            if (!ATTO_DROPOUT)
                get_tile(s, at, tile); /* registers for the product were worth more */
            differentiate_columns(&c, &of_rows, n0, at, s, kept, DROP_SCALE, d);
            put_tile(d, at, tile);
            weigh(tile, of_q, n0, ATTO_HEAD, at, stage, of_dk);
        }
    }
    float factor[ATTO_ITEM_M], one[ATTO_ITEM_M];
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < ATTO_ITEM_M; i++) {
        factor[i] = logit_scale;
        one[i] = 1.0f;
    }
    if (wanted & 1)
        store_sums(dk + dk_at + b * dk_step.x + g * dk_step.y, dk_step.z, m0, keys, ATTO_HEAD, at,
                   factor, add & 1, of_dk);
    if (wanted & 2)
        store_sums(dv + dv_at + b * dv_step.x + g * dv_step.y, dv_step.z, m0, keys, ATTO_OUT, at,
                   one, add & 2, of_dv);
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_attention_queries)
__kernel __attribute__((reqd_work_group_size(ATTO_GROUP, 1, 1))) void atto_attention_queries(
    __global const ATTO_T *q, const ulong q_at, const ulong4 q_step, __global const ATTO_T *k,
    const ulong k_at, const ulong4 k_step, __global const ATTO_T *v, const ulong v_at,
    const ulong4 v_step, __global const ATTO_T *dy, const ulong dy_at, const ulong4 dy_step,
    ATTO_LSE_PARAMETERS(const float), __global const float *delta, const ulong delta_at,
    __global ATTO_T *dq, const ulong dq_at, const ulong4 dq_step, const uint add,
    const uint batches ATTO_SCENE_PARAMETERS)
{
    MEMORY;
    const place at = place_of_item();
    const uint tiles = (queries + ATTO_M - 1) / ATTO_M, all = batches * heads;
    const uint m0 = (tiles - 1 - (uint)(get_group_id(0) / all)) * ATTO_M;
    const uint head = get_group_id(0) % all, b = head / heads, h = head % heads;
    const rows of_q = ROWS_OF(q, b, h, queries), of_dy = ROWS_OF(dy, b, h, queries);
    const rows of_k = ROWS_OF(k, b, h / shared, keys), of_v = ROWS_OF(v, b, h / shared, keys);
    const scene c = SCENE_OF(b, h);
    const mask m = MASK_OF(b, h);
    const uint end = keys_seen(&c, min(m0 + ATTO_M, queries) - 1);
    const row_sums of_rows = ROW_SUMS_OF(b, h);
    float top[ATTO_ITEM_M], low[ATTO_ITEM_M], sum[ATTO_ITEM_M], factor[ATTO_ITEM_M];
    float sums[ATTO_ITEM_M * SHARE(ATTO_HEAD)];
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < ATTO_ITEM_M; i++) {
        top[i] = lse_of(&c, &of_rows, m0 + row_of(at, i));
        low[i] = lse_low_of(&c, &of_rows, m0 + row_of(at, i));
        sum[i] = delta_of(&c, &of_rows, m0 + row_of(at, i));
        factor[i] = logit_scale;
    }
#pragma unroll ATTO_UNROLL
    for (uint i = 0; i < ATTO_ITEM_M * SHARE(ATTO_HEAD); i++) sums[i] = 0.0f;
#pragma unroll 1
    for (uint n0 = 0; n0 < end; n0 += ATTO_N) {
        float s[ATTO_ITEM_M][ATTO_ITEM_N], d[ATTO_ITEM_M][ATTO_ITEM_N];
        score(of_q, m0, of_k, n0, ATTO_HEAD, at, stage, s);
        mask_tile(&c, &m, m0, n0, 1, at, s);
#pragma unroll ATTO_UNROLL
        for (uint i = 0; i < ATTO_ITEM_M; i++) {
#pragma unroll ATTO_UNROLL
            for (uint j = 0; j < ATTO_ITEM_N; j++)
                s[i][j] = attop_exp_share((s[i][j] - top[i]) - low[i]);
        }
        put_tile(s, at, tile); /* registers for the product are worth more */
        score(of_dy, m0, of_v, n0, ATTO_OUT, at, stage, d);
        get_tile(s, at, tile);
#pragma unroll ATTO_UNROLL
        for (uint i = 0; i < ATTO_ITEM_M; i++) {
            uint kept = 0;
#if ATTO_DROPOUT
            kept = kept_columns(&c, ATTO_MASK, m0 + row_of(at, i), n0, at);
#endif
#pragma unroll ATTO_UNROLL
            for (uint j = 0; j < ATTO_ITEM_N; j++)
                d[i][j] = of_score(s[i][j], d[i][j], sum[i], kept >> j & 1, DROP_SCALE);
        }
        put_tile(d, at, tile);
        weigh(tile, of_k, n0, ATTO_HEAD, at, stage, sums);
    }
    store_sums(dq + dq_at + b * dq_step.x + h * dq_step.y, dq_step.z, m0, queries, ATTO_HEAD, at,
               factor, add, sums);
}
#endif
