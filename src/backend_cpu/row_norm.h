/* SPDX-License-Identifier: MIT */
/* Passes over a row that is normalised: moments, the result, the gradient's sums, the gradient.
 *
 * A row is read as vectors of floats whatever its dtype. Sums run side by side in ROW_SUMS vectors
 * over blocks of ATTO_BLOCK, whose sums are added in double: the order depends on the length
 * alone. */
#ifndef ATTO_CPU_ROW_NORM_H
#define ATTO_CPU_ROW_NORM_H

#include <math.h>

#include "backend_cpu/stream.h"

#define ROW_SUMS 4
#define ROW_STEP (ROW_SUMS * VEC_LANES)

typedef struct row_of {
    void *memory;
    atto_dtype dtype;
} row_of;

/* Row r of a dense tensor. */
static inline row_of row_at(const atto_tensor *t, int64_t r, int64_t cols)
{
    if (cols == 0) return (row_of){ NULL, t->dtype };
    char *memory = atto__memory(t);
    const int64_t at = t->offset + r * cols;
    return (row_of){ memory + at * (int64_t)atto_dtype_size(t->dtype), t->dtype };
}

/* Whether vectors of the row may be streamed: their addresses are multiples of their size. */
static inline bool is_aligned(const void *memory)
{
    return (uintptr_t)memory % sizeof(vec) == 0;
}

/* ---- moments ---- */

typedef struct row_moments {
    float mean, rest; /* the mean is their sum: rest is what rounding took from it */
    float rstd;
} row_moments;

/* Sums of d = x - shift and of d^2 over n <= ATTO_BLOCK elements from first on. */
ATTO_INLINE void block_moments(row_of x, int64_t first, int32_t n, float shift, float *out,
                               float *out_squares, atto_dtype dtype)
{
    vec sum[ROW_SUMS] = { { 0 } }, squares[ROW_SUMS] = { { 0 } };
    const vec from = vec_all(shift);
    int32_t i = 0;
    for (; i + ROW_STEP <= n; i += ROW_STEP) {
        VEC_UNROLL
        for (int32_t k = 0; k < ROW_SUMS; k++) {
            const vec d = vec_load_as(x.memory, first + i + k * VEC_LANES, dtype) - from;
            sum[k] += d;
            squares[k] += d * d;
        }
    }
    for (; i + VEC_LANES <= n; i += VEC_LANES) {
        const vec d = vec_load_as(x.memory, first + i, dtype) - from;
        sum[0] += d;
        squares[0] += d * d;
    }
    *out = vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    *out_squares = vec_sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
    for (; i < n; i++) {
        const float d = vec_one_as(x.memory, first + i, dtype) - shift;
        *out += d;
        *out_squares += d * d;
    }
}

/* Calls inline code with the dtype as a constant. */
#define ROW_BY_DTYPE(dtype_, call)                  \
    do {                                            \
        if ((dtype_) == ATTO_F16) {                 \
            const atto_dtype row_dtype = ATTO_F16;  \
            call;                                   \
        } else if ((dtype_) == ATTO_BF16) {         \
            const atto_dtype row_dtype = ATTO_BF16; \
            call;                                   \
        } else {                                    \
            const atto_dtype row_dtype = ATTO_F32;  \
            call;                                   \
        }                                           \
    } while (0)

typedef struct moment_sums {
    double sum, squares;
} moment_sums;

ATTO_INLINE moment_sums sum_moments(row_of x, int64_t cols, float shift)
{
    moment_sums total = { 0.0, 0.0 };
    for (int64_t first = 0; first < cols; first += ATTO_BLOCK) {
        const int64_t left = cols - first;
        const int32_t n = (int32_t)(left < ATTO_BLOCK ? left : ATTO_BLOCK);
        float sum = 0.0f, squares = 0.0f;
        ROW_BY_DTYPE(x.dtype, block_moments(x, first, n, shift, &sum, &squares, row_dtype));
        total.sum += (double)sum;
        total.squares += (double)squares;
    }
    return total;
}

/* A second pass takes squares about the mean that the first found; what rounding took from that
 * mean is found as well, and counts both in the variance and where rows are normalised. */
static inline row_moments moments_of(row_of x, int64_t cols, bool centred, float eps)
{
    row_moments m = { 0.0f, 0.0f, 0.0f };
    if (centred) m.mean = (float)(sum_moments(x, cols, 0.0f).sum / (double)cols);
    const moment_sums s = sum_moments(x, cols, m.mean);
    double variance = s.squares / (double)cols;
    if (centred) {
        const double rest = s.sum / (double)cols;
        m.rest = (float)rest;
        variance -= rest * rest;
    }
    if (variance < 0.0) variance = 0.0; /* NaN stays */
    m.rstd = attop_rsqrt((float)variance + eps);
    return m;
}

/* Rows of whole vectors, at most so many elements long, are taken VEC_LANES at a time: what is done
 * once a row costs more there than the row. */
#define ROW_SHORT 256

static inline bool is_short_row(int64_t cols)
{
    return cols > 0 && cols <= ROW_SHORT && cols % VEC_LANES == 0;
}

/* Lane r of the result is the sum over row r's lanes. */
ATTO_INLINE vec vec_sum_rows(vec_u32 rows[VEC_LANES])
{
    vec sum = { 0 };
    vec_transpose(rows);
    VEC_UNROLL
    for (int32_t i = 0; i < VEC_LANES; i++) sum += (vec)rows[i];
    return sum;
}

/* moments_of of VEC_LANES rows; all sums are those of a block, which are floats there too. */
ATTO_INLINE void short_moments(row_of x, int32_t cols, bool centred, float eps, row_moments *out,
                               atto_dtype dtype)
{
    vec_u32 sums[VEC_LANES], squares[VEC_LANES];
    float mean[VEC_LANES] = { 0.0f };
    vec all = { 0 };
    for (int32_t r = 0; r < VEC_LANES && centred; r++) {
        vec sum = { 0 };
        for (int32_t i = 0; i < cols; i += VEC_LANES)
            sum += vec_load_as(x.memory, r * cols + i, dtype);
        sums[r] = (vec_u32)sum;
    }
    if (centred) all = vec_sum_rows(sums) / vec_all((float)cols);
    vec_store(mean, all);
    for (int32_t r = 0; r < VEC_LANES; r++) {
        vec sum = { 0 }, square = { 0 };
        for (int32_t i = 0; i < cols; i += VEC_LANES) {
            const vec d = vec_load_as(x.memory, r * cols + i, dtype) - vec_all(mean[r]);
            sum += d;
            square += d * d;
        }
        sums[r] = (vec_u32)sum;
        squares[r] = (vec_u32)square;
    }
    const vec rest = centred ? vec_sum_rows(sums) / vec_all((float)cols) : all;
    const vec variance = vec_sum_rows(squares) / vec_all((float)cols) - rest * rest;
    for (int32_t r = 0; r < VEC_LANES; r++) {
        const float var = variance[r] < 0.0f ? 0.0f : variance[r]; /* NaN stays */
        out[r] = (row_moments){ mean[r], rest[r], attop_rsqrt(var + eps) };
    }
}

/* ---- y = (x - mean) rstd w + b ---- */

ATTO_INLINE void write_block(row_of x, int64_t first, int32_t n, const row_moments *m,
                             const float *w, const float *b, float *to, int64_t ahead, bool streams,
                             atto_dtype dtype)
{
    const vec mean = vec_all(m->mean), rest = vec_all(m->rest), rstd = vec_all(m->rstd);
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        vec_prefetch_as(x.memory, first + i + ahead, dtype);
        VEC_UNROLL
        for (int32_t k = 0; k < 16; k += VEC_LANES) {
            const vec d = (vec_load_as(x.memory, first + i + k, dtype) - mean) - rest;
            const vec y = (d * rstd) * vec_load(w + first + i + k) + vec_load(b + first + i + k);
            if (streams)
                vec_stream(to + i + k, y);
            else
                vec_store(to + i + k, y);
        }
    }
    for (; i < n; i++) {
        const float d = (vec_one_as(x.memory, first + i, dtype) - m->mean) - m->rest;
        to[i] = (d * m->rstd) * w[first + i] + b[first + i];
    }
}

/* A block of a row as a span. */
static inline span block_of(row_of row, int64_t first, int64_t cols)
{
    const int64_t left = cols - first;
    return (span){ (char *)row.memory + first * (int64_t)atto_dtype_size(row.dtype), 1,
                   (int32_t)(left < ATTO_BLOCK ? left : ATTO_BLOCK), row.dtype };
}

/* Elements that lie so far ahead will be needed, and are asked for. */
static inline void write_row(row_of x, row_of y, int64_t cols, const row_moments *m, const float *w,
                             const float *b, int64_t ahead, bool streams)
{
    const bool past_cache = streams && is_aligned(y.memory);
    for (int64_t first = 0; first < cols; first += ATTO_BLOCK) {
        float buffer[ATTO_BLOCK];
        const span s = block_of(y, first, cols);
        float *to = store_target(s, buffer);
        ROW_BY_DTYPE(x.dtype,
                     write_block(x, first, s.n, m, w, b, to, ahead, past_cache, row_dtype));
        store_block(to, s);
    }
}

/* ---- gradients ---- */

typedef struct row_grad {
    row_of x, dy;
    const float *w;
    float mean, rstd;
    int64_t cols;
    bool centred;
    int64_t ahead; /* elements that lie so far ahead are asked for */
} row_grad;

/* Sums of g and of g n over the row, g = dy w. */
typedef struct row_sums {
    double g, gn;
} row_sums;

/* The sums of a block, and dw += dy n, db += dy where they are wanted. */
ATTO_INLINE void sum_block(const row_grad *r, int64_t first, int32_t n, float *dw, float *db,
                           row_sums *sums, atto_dtype dtype)
{
    vec sum_g[2] = { { 0 } }, sum_gn[2] = { { 0 } };
    const vec mean = vec_all(r->mean), rstd = vec_all(r->rstd);
    int32_t i = 0;
    for (; i + 2 * VEC_LANES <= n; i += 2 * VEC_LANES) {
        VEC_UNROLL
        for (int32_t k = 0; k < 2; k++) {
            const int64_t at = first + i + k * VEC_LANES;
            const vec normal = (vec_load_as(r->x.memory, at, dtype) - mean) * rstd;
            const vec dy = vec_load_as(r->dy.memory, at, dtype);
            const vec g = dy * vec_load(r->w + at);
            sum_g[k] += g;
            sum_gn[k] += g * normal;
            if (dw) {
                vec_store(dw + at, vec_load(dw + at) + dy * normal);
                vec_store(db + at, vec_load(db + at) + dy);
            }
        }
    }
    float total_g = vec_sum(sum_g[0] + sum_g[1]), total_gn = vec_sum(sum_gn[0] + sum_gn[1]);
    for (; i < n; i++) {
        const int64_t at = first + i;
        const float normal = (vec_one_as(r->x.memory, at, dtype) - r->mean) * r->rstd;
        const float dy = vec_one_as(r->dy.memory, at, dtype), g = dy * r->w[at];
        total_g += g;
        total_gn += g * normal;
        if (dw) {
            dw[at] += dy * normal;
            db[at] += dy;
        }
    }
    sums->g += (double)total_g;
    sums->gn += (double)total_gn;
}

static inline row_sums sum_row(const row_grad *r, float *dw, float *db)
{
    row_sums sums = { 0.0, 0.0 };
    for (int64_t first = 0; first < r->cols; first += ATTO_BLOCK) {
        const int64_t left = r->cols - first;
        const int32_t n = (int32_t)(left < ATTO_BLOCK ? left : ATTO_BLOCK);
        ROW_BY_DTYPE(r->x.dtype, sum_block(r, first, n, dw, db, &sums, row_dtype));
    }
    return sums;
}

/* sum_row of VEC_LANES short rows. */
ATTO_INLINE void short_sums(const row_grad *rows, int32_t cols, float *dw, float *db, row_sums *out,
                            atto_dtype dtype)
{
    vec_u32 sums_g[VEC_LANES], sums_gn[VEC_LANES];
    for (int32_t k = 0; k < VEC_LANES; k++) {
        const row_grad *r = &rows[k];
        const vec mean = vec_all(r->mean), rstd = vec_all(r->rstd);
        vec sum_g = { 0 }, sum_gn = { 0 };
        for (int32_t i = 0; i < cols; i += VEC_LANES) {
            const vec normal = (vec_load_as(r->x.memory, i, dtype) - mean) * rstd;
            const vec dy = vec_load_as(r->dy.memory, i, dtype), g = dy * vec_load(r->w + i);
            sum_g += g;
            sum_gn += g * normal;
            if (!dw) continue;
            vec_store(dw + i, vec_load(dw + i) + dy * normal);
            vec_store(db + i, vec_load(db + i) + dy);
        }
        sums_g[k] = (vec_u32)sum_g;
        sums_gn[k] = (vec_u32)sum_gn;
    }
    const vec g = vec_sum_rows(sums_g), gn = vec_sum_rows(sums_gn);
    for (int32_t k = 0; k < VEC_LANES; k++) out[k] = (row_sums){ (double)g[k], (double)gn[k] };
}

/* dx = rstd (g - mean_g - n mean_gn) */
ATTO_INLINE void write_grad_block(const row_grad *r, int64_t first, int32_t n, float mean_g,
                                  float mean_gn, float *to, int64_t ahead, bool streams,
                                  atto_dtype dtype)
{
    const vec mean = vec_all(r->mean), rstd = vec_all(r->rstd);
    const vec all_g = vec_all(mean_g), all_gn = vec_all(mean_gn);
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        vec_prefetch_as(r->x.memory, first + i + ahead, dtype);
        vec_prefetch_as(r->dy.memory, first + i + ahead, dtype);
        VEC_UNROLL
        for (int32_t k = 0; k < 16; k += VEC_LANES) {
            const int64_t at = first + i + k;
            const vec normal = (vec_load_as(r->x.memory, at, dtype) - mean) * rstd;
            const vec g = vec_load_as(r->dy.memory, at, dtype) * vec_load(r->w + at);
            const vec dx = rstd * ((g - all_g) - normal * all_gn);
            if (streams)
                vec_stream(to + i + k, dx);
            else
                vec_store(to + i + k, dx);
        }
    }
    for (; i < n; i++) {
        const int64_t at = first + i;
        const float normal = (vec_one_as(r->x.memory, at, dtype) - r->mean) * r->rstd;
        const float g = vec_one_as(r->dy.memory, at, dtype) * r->w[at];
        to[i] = r->rstd * ((g - mean_g) - normal * mean_gn);
    }
}

static inline void write_row_grad(const row_grad *r, row_sums sums, row_of dx, bool add,
                                  bool streams)
{
    const float mean_g = r->centred ? (float)(sums.g / (double)r->cols) : 0.0f;
    const float mean_gn = (float)(sums.gn / (double)r->cols);
    const bool past_cache = streams && is_aligned(dx.memory);
    for (int64_t first = 0; first < r->cols; first += ATTO_BLOCK) {
        float buffer[ATTO_BLOCK], old[ATTO_BLOCK];
        const span s = block_of(dx, first, r->cols);
        float *to = add ? buffer : store_target(s, buffer);
        ROW_BY_DTYPE(r->x.dtype, write_grad_block(r, first, s.n, mean_g, mean_gn, to, r->ahead,
                                                  past_cache, row_dtype));
        if (add) accumulate_block(to, s, old);
        store_block(to, s);
    }
}

#endif
