/* SPDX-License-Identifier: MIT */
/* What the norms of channels share on the CPU: blocks of dense tensors, moments, parameters. */
#ifndef ATTO_CPU_CHANNELS_H
#define ATTO_CPU_CHANNELS_H

#include "backend_cpu/row_norm.h"
#include "backend_cpu/rows.h"

/* Elements at..at+n of a dense tensor. */
static inline span span_at(const atto_tensor *t, int64_t at, int32_t n)
{
    char *memory = atto__memory(t);
    return (span){ memory + (t->offset + at) * (int64_t)atto_dtype_size(t->dtype), 1, n, t->dtype };
}

static inline int32_t block_length(int64_t left)
{
    return (int32_t)(left < ATTO_BLOCK ? left : ATTO_BLOCK);
}

/* ---- moments ---- */

/* Of n values: their mean, and the squares of their distances from it. Source: Chan, Golub, LeVeque
 * 1979. */
typedef struct moments {
    double n, mean, squares;
} moments;

static inline void merge(moments *m, double n, double mean, double squares)
{
    if (n == 0.0) return;
    const double total = m->n + n, apart = mean - m->mean;
    m->mean += apart * (n / total);
    m->squares += squares + apart * apart * (m->n * (n / total));
    m->n = total;
}

/* The elements at..at+size of a channel. */
static inline void merge_run(moments *m, const atto_tensor *x, int64_t at, int64_t size)
{
    for (int64_t first = 0; first < size; first += ATTO_BLOCK) {
        const span s = span_at(x, at + first, block_length(size - first));
        const row_of block = { s.first, s.dtype };
        const double mean = sum_moments(block, s.n, 0.0f).sum / (double)s.n;
        const moment_sums about = sum_moments(block, s.n, (float)mean);
        const double rest = about.sum / (double)s.n;
        merge(m, (double)s.n, (double)(float)mean + rest, about.squares - about.sum * rest);
    }
}

/* Of up to a block of channels, over some rows: sums of d and of d^2, distances from shift. */
typedef struct distance_sums {
    float shift[ATTO_BLOCK], sum[ATTO_BLOCK], squares[ATTO_BLOCK];
} distance_sums;

/* The moments of the same channels. */
typedef struct channel_moments {
    double rows, mean[ATTO_BLOCK], squares[ATTO_BLOCK];
} channel_moments;

/* One row more. */
static inline void add_distances(distance_sums *s, const float *x, int32_t n)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) {
        const float d = x[i] - s->shift[i];
        s->sum[i] += d;
        s->squares[i] += d * d;
    }
}

/* merge, of n channels at once. */
static inline void merge_channels(channel_moments *m, double rows, int32_t n,
                                  const distance_sums *s)
{
    const double total = m->rows + rows, share = rows / total, weight = m->rows * share;
    const double per_row = 1.0 / rows;
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) {
        const double rest = (double)s->sum[i] * per_row;
        const double apart = (double)s->shift[i] + rest - m->mean[i];
        m->mean[i] += apart * share;
        m->squares[i] += (double)s->squares[i] - (double)s->sum[i] * rest + apart * apart * weight;
    }
    m->rows = total;
}

/* Rows that are summed in f32, then merged. */
#define ROWS_MERGED 256

/* Distances are from the mean so far, or from the first row: sums keep their digits far from 0. */
static inline void merge_rows(channel_moments *m, const atto_tensor *x, int64_t at, int32_t rows,
                              int64_t apart, int32_t n)
{
    distance_sums s;
    float buffer[ATTO_BLOCK];
    const float *first = load_block(span_at(x, at, n), buffer);
    for (int32_t i = 0; i < n; i++) {
        s.shift[i] = m->rows > 0.0 ? (float)m->mean[i] : first[i];
        s.sum[i] = s.squares[i] = 0.0f;
    }
    for (int32_t row = 0; row < rows; row++)
        add_distances(&s, load_block(span_at(x, at + row * apart, n), buffer), n);
    merge_channels(m, (double)rows, n, &s);
}

/* Mean and squares of each channel over rows of them, the first of which begins at element at. Means
 * that are merged must not be rounded: their differences are squared. */
static inline void moments_of_rows(const atto_tensor *x, int64_t at, int64_t rows, int64_t channels,
                                   double *mean, float *squares)
{
    for (int64_t first = 0; first < channels; first += ATTO_BLOCK) {
        channel_moments m;
        const int32_t n = block_length(channels - first);
        m.rows = 0.0;
        for (int32_t i = 0; i < n; i++) m.mean[i] = m.squares[i] = 0.0;
        for (int64_t row = 0; row < rows; row += ROWS_MERGED) {
            const int64_t left = rows - row;
            merge_rows(&m, x, at + row * channels + first,
                       (int32_t)(left < ROWS_MERGED ? left : ROWS_MERGED), channels, n);
        }
        for (int32_t i = 0; i < n; i++) {
            mean[first + i] = m.mean[i];
            squares[first + i] = (float)m.squares[i];
        }
    }
}

/* ---- gradients ---- */

/* Rows of n channels that follow each other (step 1), or n elements of one channel. Where dx is
 * written, elements that lie so far ahead are asked for. */
typedef struct grad_block {
    const float *x, *dz;
    int32_t n, rows, step;
    int64_t ahead;
} grad_block;

static inline int32_t grad_elements(const grad_block *k)
{
    return k->n * k->rows;
}

ATTO_INLINE void ask_for(const grad_block *k, int32_t i)
{
    vec_prefetch_as(k->x + i, k->ahead, ATTO_F32);
    vec_prefetch_as(k->dz + i, k->ahead, ATTO_F32);
}

/* Numbers of the block's channels. */
typedef struct grad_sums {
    const float *mean, *rstd;
    float *dz, *dzn; /* to which dz and dz n are added, n = (x - mean) rstd */
} grad_sums;

/* Vectors of channels whose sums stay in registers from row to row. */
#define SIDE_BY_SIDE 4

ATTO_INLINE void add_lanes(const grad_block *k, const grad_sums *s, int32_t i, int32_t vectors)
{
    vec sum[SIDE_BY_SIDE], products[SIDE_BY_SIDE], mean[SIDE_BY_SIDE], rstd[SIDE_BY_SIDE];
    VEC_UNROLL
    for (int32_t v = 0; v < vectors; v++) {
        sum[v] = vec_load(s->dz + i + v * VEC_LANES);
        products[v] = vec_load(s->dzn + i + v * VEC_LANES);
        mean[v] = vec_load(s->mean + i + v * VEC_LANES);
        rstd[v] = vec_load(s->rstd + i + v * VEC_LANES);
    }
    for (int32_t at = i; at < grad_elements(k); at += k->n) {
        VEC_UNROLL
        for (int32_t v = 0; v < vectors; v++) {
            const int32_t here = at + v * VEC_LANES;
            const vec d = vec_load(k->dz + here);
            sum[v] += d;
            products[v] += d * ((vec_load(k->x + here) - mean[v]) * rstd[v]);
        }
    }
    VEC_UNROLL
    for (int32_t v = 0; v < vectors; v++) {
        vec_store(s->dz + i + v * VEC_LANES, sum[v]);
        vec_store(s->dzn + i + v * VEC_LANES, products[v]);
    }
}

/* Row by row, whatever their number. */
static inline void add_rows(const grad_block *k, const grad_sums *s)
{
    int32_t i = 0;
    for (; i + SIDE_BY_SIDE * VEC_LANES <= k->n; i += SIDE_BY_SIDE * VEC_LANES)
        add_lanes(k, s, i, SIDE_BY_SIDE);
    for (; i + VEC_LANES <= k->n; i += VEC_LANES) add_lanes(k, s, i, 1);
    for (; i < k->n; i++)
        for (int32_t at = i; at < grad_elements(k); at += k->n) {
            s->dz[i] += k->dz[at];
            s->dzn[i] += k->dz[at] * ((k->x[at] - s->mean[i]) * s->rstd[i]);
        }
}

/* The same of one channel. */
static inline void add_run(const grad_block *k, const grad_sums *s)
{
    vec sum[ROWS_RUNNING] = { { 0 } }, products[ROWS_RUNNING] = { { 0 } };
    const vec mean = vec_all(*s->mean), rstd = vec_all(*s->rstd);
    int32_t i = 0;
    for (; i + ROWS_STEP <= k->n; i += ROWS_STEP) {
        VEC_UNROLL
        for (int32_t v = 0; v < ROWS_RUNNING; v++) {
            const int32_t here = i + v * VEC_LANES;
            const vec d = vec_load(k->dz + here);
            sum[v] += d;
            products[v] += d * ((vec_load(k->x + here) - mean) * rstd);
        }
    }
    float dz = vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    float dzn = vec_sum((products[0] + products[1]) + (products[2] + products[3]));
    for (; i < k->n; i++) {
        dz += k->dz[i];
        dzn += k->dz[i] * ((k->x[i] - *s->mean) * *s->rstd);
    }
    *s->dz += dz;
    *s->dzn += dzn;
}

static inline void add_grad_sums(const grad_block *k, const grad_sums *s)
{
    if (k->step)
        add_rows(k, s);
    else
        add_run(k, s);
}

/* dx = (scale dz - offset) - (x - mean) slope, numbers of the block's channels */
typedef struct grad_numbers {
    const float *mean, *scale, *offset, *slope;
} grad_numbers;

/* Numbers of the VEC_LANES channels from i on, or those of the only one. */
ATTO_INLINE vec numbers_at(const float *numbers, int32_t i, int32_t step)
{
    return step ? vec_load(numbers + i) : vec_all(*numbers);
}

ATTO_INLINE void put_vec(float *to, vec v, bool past_cache)
{
    if (past_cache)
        vec_stream(to, v);
    else
        vec_store(to, v);
}

/* Whether all vectors of rows of n elements are aligned. */
static inline bool rows_aligned(const float *to, int32_t n, int32_t rows)
{
    return is_aligned(to) && (rows == 1 || n % VEC_LANES == 0);
}

/* The row that begins with that element. */
ATTO_INLINE void write_dx_row(const grad_block *k, const grad_numbers *a, int32_t at, float *dx,
                              bool past_cache, int32_t step)
{
    const float *x = k->x + at, *dz = k->dz + at;
    int32_t i = 0;
    dx += at;
    for (; i + VEC_LANES <= k->n; i += VEC_LANES) {
        const vec apart = vec_load(x + i) - numbers_at(a->mean, i, step);
        const vec g = numbers_at(a->scale, i, step) * vec_load(dz + i);
        ask_for(k, at + i);
        put_vec(dx + i,
                (g - numbers_at(a->offset, i, step)) - apart * numbers_at(a->slope, i, step),
                past_cache);
    }
    for (; i < k->n; i++)
        dx[i] = (a->scale[i * step] * dz[i] - a->offset[i * step]) -
                (x[i] - a->mean[i * step]) * a->slope[i * step];
}

/* To dense memory, past the caches if vectors may. */
static inline void write_dx_rows(const grad_block *k, const grad_numbers *a, float *dx,
                                 bool streams)
{
    const bool past_cache = streams && rows_aligned(dx, k->n, k->rows);
    if (!k->step) write_dx_row(k, a, 0, dx, past_cache, 0);
    for (int32_t at = 0; at < grad_elements(k) && k->step; at += k->n)
        write_dx_row(k, a, at, dx, past_cache, 1);
}

/* ---- parameters ---- */

static inline float *floats_of(const atto_tensor *t)
{
    return t ? (float *)atto__memory(t) + t->offset : NULL;
}

/* [n] as floats: in place, converted, or constant. */
static inline const float *parameter_of(const atto_tensor *t, float standard, int64_t n,
                                        float *scratch)
{
    if (n == 0) return scratch;
    if (t && t->dtype == ATTO_F32) return floats_of(t);
    for (int64_t i = 0; !t && i < n; i++) scratch[i] = standard;
    for (int64_t first = 0; t && first < n; first += ATTO_BLOCK)
        load_block(span_at(t, first, block_length(n - first)), scratch + first);
    return scratch;
}

/* t = sums, or t += sums; NULL: not wanted. */
static inline void put_parameter(const atto_tensor *t, const float *sums, int64_t n, bool add)
{
    for (int64_t first = 0; t && first < n; first += ATTO_BLOCK) {
        float v[ATTO_BLOCK], old[ATTO_BLOCK];
        const span to = span_at(t, first, block_length(n - first));
        memcpy(v, sums + first, (size_t)to.n * sizeof *v);
        if (add) accumulate_block(v, to, old);
        store_block(v, to);
    }
}

#endif
