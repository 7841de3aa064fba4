/* SPDX-License-Identifier: MIT */
/* softmax.cl - softmax, log-softmax and softmin over one dimension.
 *
 *   forward    softmax      y = e / sum of e,  e = e^(x - top),  top = max x
 *              log_softmax  y = (x - top) - log(sum of e)
 *   backward   softmax      dx = y (dy - sum of dy y)            (+ dx)
 *              log_softmax  dx = dy - e^y (sum of dy)
 * softmin is softmax of -x.
 *
 * Two pairs of kernels. atto_softmax_*: elements of a row are neighbours, atto_row.h says who has
 * which. atto_softmax_*_columns: they lie `step` apart, and a work-item has ATTO_RUN columns side
 * by side; the work-group is ATTO_DEEP work-items along the row and ACROSS side by side:
 *
 *        columns ->   0 .. RUN-1   RUN .. 2 RUN-1   ...
 *     element 0       (0, 0)       (0, 1)           ...     (deep, across)
 *     element 1       (1, 0)       (1, 1)
 *     ...
 *     element DEEP    (0, 0)       (0, 1)            the next of ATTO_ITEMS elements of a chunk
 *
 *   -D           default  meaning
 *   ATTO_LOG     0        1: log-softmax
 *   ATTO_NEGATE  0        1: softmin
 *   ATTO_DEEP    1        columns: work-items that share a column, a power of two
 *   ATTO_RUN, ATTO_VECTORS of atto_kernel.h: columns of a work-item, and whether they are a vector
 *   and those of atto_row.h; ATTO_HELD: a row has at most ATTO_DEEP * ATTO_ITEMS elements
 */
#include "atto_row.h"

#ifndef ATTO_LOG
#define ATTO_LOG 0
#endif
#ifndef ATTO_NEGATE
#define ATTO_NEGATE 0
#endif
#ifndef ATTO_DEEP
#define ATTO_DEEP 1
#endif
#if ATTO_DEEP > ATTO_WG
#undef ATTO_DEEP
#define ATTO_DEEP ATTO_WG
#endif
#if ATTO_NEGATE
#define SIGN -1.0f
#else
#define SIGN 1.0f
#endif

/* The sum that log-softmax's gradient needs is of dy alone. */
#if ATTO_HELD || !ATTO_LOG
#define SUM_READS_Y 1
#else
#define SUM_READS_Y 0
#endif

/* ---- arithmetic ----
 *
 * Sums are scaled down when a larger maximum comes. The maximum starts at a finite number, since
 * -inf - -inf is NaN; a NaN that fmax drops comes back in the sum. */

/* x of element i: with its sign, or what is empty. */
static inline float signed_of(float x)
{
    return SIGN * x;
}

static inline float gradient_of(float y, float dy, float sum)
{
#if ATTO_LOG
    return dy - attop_exp_share(y) * sum;
#else
    return SIGN * y * (dy - sum);
#endif
}

static inline float term_of(float y, float dy)
{
    return ATTO_LOG ? dy : y * dy;
}

/* y of x, or of -x, in a row with maximum `top`; last_of its sum. */
static inline float last_of(float sum)
{
    return ATTO_LOG ? attop_log(sum) : 1.0f / sum;
}

static inline float normalised(float x, float top, float last)
{
    return ATTO_LOG ? (x - top) - last : attop_exp_share(x - top) * last;
}

/* ---- rows ---- */

/* Where a row is held, so are its exponentials, once they are there: relative to the lane's
 * maximum. */
#if ATTO_HELD && !ATTO_LOG
#define KEEPS_SHARES 1
#else
#define KEEPS_SHARES 0
#endif

/* What turns e^(x - own), or x, into y. */
typedef struct normaliser {
    float top, last;
} normaliser;

static inline normaliser normaliser_of(float top, float sum, float own)
{
    const float last = KEEPS_SHARES ? attop_exp_share(own - top) / sum : last_of(sum);
    const normaliser n = { top, last };
    return n;
}

static inline float result_of(float v, normaliser n)
{
    return KEEPS_SHARES ? v * n.last : normalised(v, n.top, n.last);
}

/* Work-items of rows behind the last take part in barriers only: they have no slots. */
#define LOCATE_ROW(x_at)                                              \
    const size_t row = atto_row();                                    \
    const uint inside = row < rows;                                   \
    const size_t start = atto_row_start(inside ? row : 0, cols, 1);   \
    const atto_slots s = atto_slots_of(x_at, start, cols, 1, inside); \
    const size_t base = start - s.first

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_softmax_forward)
ATTO_KERNEL void atto_softmax_forward(__global const ATTO_T *x, const ulong x_at,
                                      __global ATTO_T *y, const ulong y_at, const ulong rows,
                                      const atto_index cols)
{
    __local float scratch[ATTO_WG];
    LOCATE_ROW(x_at);
    const atto_slots to = atto_slots_like(s, y_at, start);
    x += x_at + base;
    y += y_at + base;

    float v[ATTO_CHUNK], top = -FLT_MAX, sum = 0.0f;
    for (ATTO_CHUNKS(at, s)) {
        atto_load_chunk(x, s, at, SIGN * -INFINITY, v);
        float larger = top, part = 0.0f;
#pragma unroll
        for (uint i = 0; i < ATTO_CHUNK; i++) larger = fmax(larger, signed_of(v[i]));
#pragma unroll
        for (uint i = 0; i < ATTO_CHUNK; i++) {
            const float e = attop_exp_share(signed_of(v[i]) - larger);
            if (KEEPS_SHARES) v[i] = e;
            part += e;
        }
        sum = sum * attop_exp_share(top - larger) + part;
        top = larger;
    }
    const float2 all = atto_row_top_and_sum((float2)(top, sum), scratch);
    const normaliser norm = normaliser_of(all.x, all.y, top);
    for (ATTO_CHUNKS(at, s)) {
        atto_load_again(x, s, at, 0.0f, v);
#pragma unroll
        for (uint i = 0; i < ATTO_CHUNK; i++)
            v[i] = result_of(KEEPS_SHARES ? v[i] : signed_of(v[i]), norm);
        atto_store_chunk(y, to, at, v);
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_softmax_backward)
ATTO_KERNEL void atto_softmax_backward(__global const ATTO_T *y, const ulong y_at,
                                       __global const ATTO_T *dy, const ulong dy_at,
                                       __global ATTO_T *dx, const ulong dx_at, const ulong rows,
                                       const atto_index cols, const uint add)
{
    __local float scratch[ATTO_WG];
    LOCATE_ROW(y_at);
    const atto_slots from = atto_slots_like(s, dy_at, start), to = atto_slots_like(s, dx_at, start);
    y += y_at + base;
    dy += dy_at + base;
    dx += dx_at + base;

    float v[ATTO_CHUNK], d[ATTO_CHUNK], sum = 0.0f;
    for (ATTO_CHUNKS(at, s)) {
        if (SUM_READS_Y) atto_load_chunk(y, s, at, 0.0f, v);
        atto_load_chunk(dy, from, at, 0.0f, d);
#pragma unroll
        for (uint i = 0; i < ATTO_CHUNK; i++) sum += term_of(v[i], d[i]);
    }
    sum = atto_row_sum(sum, scratch);
    for (ATTO_CHUNKS(at, s)) {
        atto_load_again(y, s, at, 0.0f, v);
        atto_load_again(dy, from, at, 0.0f, d);
#pragma unroll
        for (uint i = 0; i < ATTO_CHUNK; i++) v[i] = gradient_of(v[i], d[i], sum);
        if (add) {
            atto_load_chunk(dx, to, at, 0.0f, d);
#pragma unroll
            for (uint i = 0; i < ATTO_CHUNK; i++) v[i] += d[i];
        }
        atto_store_chunk(dx, to, at, v);
    }
}
#endif

/* ---- columns ---- */

#define ACROSS (ATTO_WG / ATTO_DEEP)

/* The head of a loop over this work-item's chunks; c is the first element's number. */
#if ATTO_HELD
#define COLUMN_CHUNKS(c)               \
    atto_index c = deep, c##_left = 1; \
    c##_left;                          \
    c##_left = 0
#else
#define COLUMN_CHUNKS(c) \
    atto_index c = deep; \
    c < count;           \
    c += ATTO_DEEP * ATTO_ITEMS
#endif

/* per_row: runs of ATTO_RUN columns that make up a step. Work-items behind the last run have
 * columns without elements. */
#define LOCATE_COLUMNS                                                             \
    const uint deep = get_local_id(0) / ACROSS, across = get_local_id(0) % ACROSS; \
    const size_t run = get_group_id(0) * (size_t)ACROSS + across;                  \
    const atto_index count = run < runs ? cols : 0;                                \
    const size_t outer = (run < runs ? run : 0) / per_row;                         \
    const size_t base = outer * cols * step + ((run < runs ? run : 0) - outer * per_row) * ATTO_RUN

#define COLUMN(j)   ((c + (j)*ATTO_DEEP) * step) /* where unit j of a chunk is, */
#define HAS_UNIT(j) (c + (j)*ATTO_DEEP < count)  /* and whether it is */
#define EACH_UNIT   _Pragma("unroll") for (uint j = 0; j < ATTO_ITEMS; j++)
#define EACH_COLUMN _Pragma("unroll") for (uint k = 0; k < ATTO_RUN; k++)

/* A chunk's units, all on their way before one is used. */
ATTO_UNROLLED void load_columns(__global const ATTO_T *p, atto_index c, atto_index count,
                                atto_index step, atto_raw *raw)
{
    EACH_UNIT if (HAS_UNIT(j)) raw[j] = atto_load_unit(p, COLUMN(j));
}

#if ATTO_DEEP > 1 && ATTO_WG / ATTO_DEEP > 32
#error "columns are folded by 32 at most"
#endif
#if ATTO_DEEP > 1
#define COLUMN_SCRATCH (ATTO_WG * ATTO_RUN)
#else
#define COLUMN_SCRATCH 1
#endif

/* Over the work-items of a column; all get the results. */
ATTO_UNROLLED void fold_sums(float *sum, __local float *scratch)
{
#if ATTO_DEEP > 1
    ATTO_FOLD_COLUMNS(sum, ATTO_RUN, ACROSS, 1, scratch, ATTO_ADD);
#endif
}

ATTO_UNROLLED void fold_tops_and_sums(float *top, float *sum, __local float *scratch)
{
#if ATTO_DEEP > 1
    float own[ATTO_RUN];
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) own[k] = top[k];
    ATTO_FOLD_COLUMNS(top, ATTO_RUN, ACROSS, 1, scratch, fmax);
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) sum[k] *= attop_exp_share(own[k] - top[k]);
    fold_sums(sum, scratch);
#endif
}

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_softmax_forward_columns)
ATTO_KERNEL void atto_softmax_forward_columns(__global const ATTO_T *x, const ulong x_at,
                                              __global ATTO_T *y, const ulong y_at,
                                              const ulong runs, const atto_index cols,
                                              const atto_index step, const atto_index per_row)
{
    __local float scratch[COLUMN_SCRATCH];
    LOCATE_COLUMNS;
    x += x_at + base;
    y += y_at + base;

    atto_raw raw[ATTO_ITEMS];
    float top[ATTO_RUN], sum[ATTO_RUN];
    EACH_COLUMN top[k] = -FLT_MAX, sum[k] = 0.0f;
    for (COLUMN_CHUNKS(c)) {
        float own[ATTO_RUN];
        load_columns(x, c, count, step, raw);
        EACH_COLUMN own[k] = top[k];
        EACH_UNIT if (HAS_UNIT(j))
        {
            float v[ATTO_RUN];
            atto_widen_unit(raw[j], v);
            EACH_COLUMN top[k] = fmax(top[k], signed_of(v[k]));
        }
        EACH_COLUMN sum[k] *= attop_exp_share(own[k] - top[k]);
        EACH_UNIT if (HAS_UNIT(j))
        {
            float v[ATTO_RUN];
            atto_widen_unit(raw[j], v);
            EACH_COLUMN sum[k] += attop_exp_share(signed_of(v[k]) - top[k]);
        }
    }
    fold_tops_and_sums(top, sum, scratch);
    EACH_COLUMN sum[k] = last_of(sum[k]);
    for (COLUMN_CHUNKS(c)) {
        if (!ATTO_HELD) load_columns(x, c, count, step, raw);
        EACH_UNIT if (HAS_UNIT(j))
        {
            float v[ATTO_RUN];
            atto_widen_unit(raw[j], v);
            EACH_COLUMN v[k] = normalised(signed_of(v[k]), top[k], sum[k]);
            atto_store_run(y, COLUMN(j), 1, ATTO_RUN, v);
        }
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_softmax_backward_columns)
ATTO_KERNEL void atto_softmax_backward_columns(__global const ATTO_T *y, const ulong y_at,
                                               __global const ATTO_T *dy, const ulong dy_at,
                                               __global ATTO_T *dx, const ulong dx_at,
                                               const ulong runs, const atto_index cols,
                                               const atto_index step, const atto_index per_row,
                                               const uint add)
{
    __local float scratch[COLUMN_SCRATCH];
    LOCATE_COLUMNS;
    y += y_at + base;
    dy += dy_at + base;
    dx += dx_at + base;

    atto_raw raw[ATTO_ITEMS], raw_dy[ATTO_ITEMS];
    float sum[ATTO_RUN];
    EACH_COLUMN sum[k] = 0.0f;
    for (COLUMN_CHUNKS(c)) {
        if (SUM_READS_Y) load_columns(y, c, count, step, raw);
        load_columns(dy, c, count, step, raw_dy);
        EACH_UNIT if (HAS_UNIT(j))
        {
            float v[ATTO_RUN] = { 0.0f }, d[ATTO_RUN];
            if (SUM_READS_Y) atto_widen_unit(raw[j], v);
            atto_widen_unit(raw_dy[j], d);
            EACH_COLUMN sum[k] += term_of(v[k], d[k]);
        }
    }
    fold_sums(sum, scratch);
    for (COLUMN_CHUNKS(c)) {
        if (!ATTO_HELD) load_columns(y, c, count, step, raw);
        if (!ATTO_HELD) load_columns(dy, c, count, step, raw_dy);
        EACH_UNIT if (HAS_UNIT(j))
        {
            float v[ATTO_RUN], d[ATTO_RUN];
            atto_widen_unit(raw[j], v);
            atto_widen_unit(raw_dy[j], d);
            EACH_COLUMN v[k] = gradient_of(v[k], d[k], sum[k]);
            if (add) {
                atto_widen_unit(atto_load_unit(dx, COLUMN(j)), d);
                EACH_COLUMN v[k] += d[k];
            }
            atto_store_run(dx, COLUMN(j), 1, ATTO_RUN, v);
        }
    }
}
#endif
