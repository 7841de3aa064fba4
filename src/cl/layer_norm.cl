/* SPDX-License-Identifier: MIT */
/* layer_norm.cl - layer norm and RMS norm of rows; of the latter the mean is 0.
 *
 *   forward    y = n w + b,  n = (x - mean) rstd
 *   backward   dx = rstd (g - sum of g / cols - n sum of (g n) / cols),  g = dy w
 *              dw = sum over rows of dy n,  db = sum over rows of dy
 *
 * forward: a work-group takes per_group rows of atto_row.h, ATTO_ROWS at a time. Rows that are not held
 * are read twice.
 *
 * backward: rows that are held are read once. A work-group takes per_group rows, ATTO_ROWS at a time, so
 * that a lane has the same columns in all of them and sums up dw and db on the way; join adds the
 * work-groups' sums. Longer rows take two kernels: sums, a row each, and columns, whose work-items
 * have the ATTO_VEC columns of a strip each in per_group rows.
 *
 *   partial: [groups, 2, cols], dw and db of a work-group's rows
 *
 *   -D            default  meaning
 *   ATTO_CENTRED  1        0: RMS norm
 *   ATTO_PARAM    f32      storage of w and b, and of what join writes
 *   and those of atto_row.h
 */
#include "atto_row.h"

#ifndef ATTO_CENTRED
#define ATTO_CENTRED 1
#endif
#ifndef ATTO_PARAM
#define ATTO_PARAM f32
#endif
typedef ATTO_PASTE(atto_, ATTO_PARAM) param_t;

/* Elements of w in 16 bytes, and 16-byte pieces for one vector of x. */
#define PARAM_VEC    (16 / ATTO_PASTE(ATTO_BYTES_, ATTO_PARAM))
#define PARAM_PIECES (ATTO_VEC / PARAM_VEC)

#define load_param  ATTO_PASTE(atto_widen_, ATTO_PARAM)
#define store_param ATTO_PASTE(atto_narrow_, ATTO_PARAM)

/* w or b of a chunk's slots; `standard` where there is none. */
ATTO_UNROLLED void load_params(__global const param_t *p, ulong p_at, atto_slots s, atto_index at,
                               float standard, float *v)
{
    const bool full = at + (ATTO_ITEMS - 1) * ATTO_APART + ATTO_VEC <= s.end;
    if (p && full && s.first == 0 && p_at % PARAM_VEC == 0) {
        __global const uint4 *from = (__global const uint4 *)(p + p_at + at);
#pragma unroll
        for (uint j = 0; j < ATTO_ITEMS; j++) {
#pragma unroll
            for (uint k = 0; k < PARAM_PIECES; k++) ATTO_PASTE(atto_unpack_, ATTO_PARAM)
            (from[j * (ATTO_APART / PARAM_VEC) + k], v + j * ATTO_VEC + k * PARAM_VEC);
        }
        return;
    }
#pragma unroll
    for (uint i = 0; i < ATTO_CHUNK; i++) {
        const atto_index slot = ATTO_SLOT_OF(at, i);
        v[i] = p && ATTO_IS_SLOT(s, slot) ? load_param(p[p_at + (slot - s.first)]) : standard;
    }
}

/* ---- moments ---- */

typedef struct row_moments {
    float mean, rest; /* the mean is their sum: rest is what rounding took from it */
    float rstd;
} row_moments;

/* NaN stays. */
static inline float rstd_of(float variance, float eps)
{
    return attop_rsqrt((variance < 0.0f ? 0.0f : variance) + eps);
}

#if ATTO_CENTRED && !ATTO_HELD
/* Elements, their mean, and the sum of squares about it. */
typedef struct lane_moments {
    float n, mean, squares;
} lane_moments;

/* Source: Chan, Golub, LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample
 * variances". */
static inline void merge_moments(lane_moments *m, float n, float mean, float squares)
{
    if (n == 0.0f) return;
    const float total = m->n + n, apart = mean - m->mean, share = n / total;
    m->mean += apart * share;
    m->squares += squares + apart * apart * (m->n * share);
    m->n = total;
}
#endif

/* Of the row whose chunk is v if it is held, else of all its chunks, which v ends as the last of. */
ATTO_UNROLLED row_moments moments_of(__global const ATTO_T *x, atto_slots s, atto_index cols,
                                     float eps, float *v, __local float2 *scratch)
{
    row_moments m = { 0.0f, 0.0f, 0.0f };
#if !ATTO_CENTRED
    float squares = 0.0f;
    for (ATTO_CHUNKS(at, s)) {
        atto_load_again(x, s, at, 0.0f, v);
#pragma unroll
        for (uint i = 0; i < ATTO_CHUNK; i++) squares += v[i] * v[i];
    }
    m.rstd = rstd_of(atto_row_sum(squares, (__local float *)scratch) / (float)cols, eps);
#elif ATTO_HELD
    float sum = 0.0f;
    float2 about = (float2)(0.0f, 0.0f); /* sums of deviations and of their squares */
    const atto_index at = ATTO_LANE() * ATTO_VEC;
#pragma unroll
    for (uint i = 0; i < ATTO_CHUNK; i++) sum += v[i];
    m.mean = atto_row_sum(sum, (__local float *)scratch) / (float)cols;
#pragma unroll
    for (uint i = 0; i < ATTO_CHUNK; i++) {
        const float d = ATTO_IS_SLOT(s, ATTO_SLOT_OF(at, i)) ? v[i] - m.mean : 0.0f;
        about += (float2)(d, d * d);
    }
    about = atto_row_sum2(about, scratch) / (float)cols;
    m.rest = about.x;
    m.rstd = rstd_of(about.y - about.x * about.x, eps);
#else
    lane_moments lane = { 0.0f, 0.0f, 0.0f };
    for (ATTO_CHUNKS(at, s)) {
        float sum = 0.0f, n = 0.0f, squares = 0.0f;
        atto_load_chunk(x, s, at, 0.0f, v);
#pragma unroll
        for (uint i = 0; i < ATTO_CHUNK; i++) {
            sum += v[i];
            n += ATTO_IS_SLOT(s, ATTO_SLOT_OF(at, i)) ? 1.0f : 0.0f;
        }
        const float mean = n > 0.0f ? sum / n : 0.0f;
#pragma unroll
        for (uint i = 0; i < ATTO_CHUNK; i++) {
            const float d = ATTO_IS_SLOT(s, ATTO_SLOT_OF(at, i)) ? v[i] - mean : 0.0f;
            squares += d * d;
        }
        merge_moments(&lane, n, mean, squares);
    }
    m.mean = atto_row_sum(lane.n * lane.mean, (__local float *)scratch) / (float)cols;
    const float apart = lane.n > 0.0f ? lane.mean - m.mean : 0.0f;
    const float2 about =
        atto_row_sum2((float2)(lane.n * apart, lane.squares + lane.n * (apart * apart)), scratch) /
        (float)cols;
    m.rest = about.x;
    m.rstd = rstd_of(about.y - about.x * about.x, eps);
#endif
    return m;
}

/* ---- forward ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_norm_forward)

/* The next row is on its way while the work-items of this one wait for each other, where there are
 * registers for it. */
#define FORWARD_AHEAD (ATTO_HELD && ATTO_CHUNK <= 16)

/* A row that is held; nothing behind the last one. */
ATTO_UNROLLED void load_row(__global const ATTO_T *x, ulong x_at, atto_index cols, size_t row,
                            size_t end, float *v)
{
    const uint inside = row < end;
    const size_t start = inside ? row * cols : 0;
    const atto_slots s = atto_slots_of(x_at, start, cols, 1, inside);
    atto_load_chunk(x + x_at + start - s.first, s, ATTO_LANE() * ATTO_VEC, 0.0f, v);
}

ATTO_KERNEL void atto_norm_forward(__global const ATTO_T *x, const ulong x_at,
                                   __global const param_t *w, const ulong w_at,
                                   __global const param_t *b, const ulong b_at, __global ATTO_T *y,
                                   const ulong y_at, __global float *mean, const ulong mean_at,
                                   __global float *rstd, const ulong rstd_at, const ulong rows,
                                   const atto_index cols, const float eps, const uint per_group)
{
    __local float2 scratch[ATTO_WG];
    const size_t begin = get_group_id(0) * (size_t)per_group;
    const size_t end = min(begin + per_group, (size_t)rows);
    float v[ATTO_CHUNK];
#if FORWARD_AHEAD
    float next[ATTO_CHUNK];
    load_row(x, x_at, cols, begin + get_local_id(0) / ATTO_LANES, end, next);
#endif
    for (size_t first = begin; first < end; first += ATTO_ROWS) { /* the same for all */
        const size_t row = first + get_local_id(0) / ATTO_LANES;
        const uint inside = row < end;
        const size_t start = inside ? row * cols : 0;
        const atto_slots s = atto_slots_of(x_at, start, cols, 1, inside);
        const atto_slots to = atto_slots_like(s, y_at, start);
        __global const ATTO_T *from = x + x_at + start - s.first;
        __global ATTO_T *out = y + y_at + start - s.first;
#if FORWARD_AHEAD
#pragma unroll
        for (uint i = 0; i < ATTO_CHUNK; i++) v[i] = next[i];
        load_row(x, x_at, cols, row + ATTO_ROWS, end, next);
#elif ATTO_HELD
        load_row(x, x_at, cols, row, end, v);
#endif
        const row_moments m = moments_of(from, s, cols, eps, v, scratch);
        for (ATTO_CHUNKS(at, s)) {
            float scale[ATTO_CHUNK];
            load_params(w, w_at, s, at, 1.0f, scale);
#if ATTO_CENTRED
            float shift[ATTO_CHUNK];
            load_params(b, b_at, s, at, 0.0f, shift);
#endif
            atto_load_again(from, s, at, 0.0f, v);
#pragma unroll
            for (uint i = 0; i < ATTO_CHUNK; i++) {
#if ATTO_CENTRED
                v[i] = ((v[i] - m.mean) - m.rest) * m.rstd * scale[i] + shift[i];
#else
                v[i] = v[i] * m.rstd * scale[i];
#endif
            }
            atto_store_chunk(out, to, at, v);
        }
        if (inside && ATTO_LANE() == 0) {
            if (mean) mean[mean_at + row] = m.mean + m.rest;
            if (rstd) rstd[rstd_at + row] = m.rstd;
        }
    }
}
#endif

/* ---- backward ---- */

/* The slots of all rows of a tensor, which must be the same: where rows are no multiple of vectors,
 * elements are fetched one by one. start: what the tensors' rows have in common. */
static inline atto_slots same_slots(ulong at, atto_index cols)
{
    atto_slots s = atto_slots_of(at, 0, cols, 1, 1);
    if (cols % ATTO_VEC != 0) {
        s.first = 0;
        s.end = cols;
        s.whole = 0;
    }
    return s;
}

static inline atto_slots same_slots_like(atto_slots s, ulong at)
{
    s.whole = s.whole && at % ATTO_VEC == s.first;
    return s;
}

/* What both kernels with partial sums know of a row. */
typedef struct row_state {
    float mean, rstd;
} row_state;

static inline row_state state_of(__global const float *mean, ulong mean_at,
                                 __global const float *rstd, ulong rstd_at, size_t row)
{
    const row_state s = { mean ? mean[mean_at + row] : 0.0f, rstd[rstd_at + row] };
    return s;
}

#define GRADIENT_PARAMETERS                                                                        \
    __global const ATTO_T *x, const ulong x_at, __global const ATTO_T *dy, const ulong dy_at,      \
        __global const param_t *w, const ulong w_at, __global const float *mean,                   \
        const ulong mean_at, __global const float *rstd, const ulong rstd_at, __global ATTO_T *dx, \
        const ulong dx_at, __global float *partial, __global float *sums, const ulong rows,        \
        const atto_index cols, const uint per_group, const uint add_dx

#if !defined(ATTO_ONE_KERNEL) || (ATTO_HELD && defined(ATTO_KERNEL_atto_norm_backward))

#define AHEAD (ATTO_CHUNK <= 8) /* as in forward; five arrays need registers, too */

/* x and dy of the lane's chunk; 0 behind the last row. */
ATTO_UNROLLED void load_pair(__global const ATTO_T *x, __global const ATTO_T *dy, atto_slots sx,
                             atto_slots sdy, atto_index cols, size_t row, size_t rows, float *vx,
                             float *vdy)
{
    const atto_index at = ATTO_LANE() * ATTO_VEC;
    if (row >= rows) sx.end = sdy.end = 0;
    const size_t start = row < rows ? row * cols : 0;
    atto_load_chunk(x + start, sx, at, 0.0f, vx);
    atto_load_chunk(dy + start, sdy, at, 0.0f, vdy);
}

/* Rows side by side have sums of their own: the first of them gets all, of one vector of columns. scratch
 * has ATTO_VEC * ATTO_WG elements. */
ATTO_UNROLLED void sum_rows(float *v, __local float *scratch)
{
#if ATTO_ROWS > 1
    const uint item = get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (uint k = 0; k < ATTO_VEC; k++) scratch[k * ATTO_WG + item] = v[k];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint r = 1; item < ATTO_LANES && r < ATTO_ROWS; r++) {
#pragma unroll
        for (uint k = 0; k < ATTO_VEC; k++) v[k] += scratch[k * ATTO_WG + item + r * ATTO_LANES];
    }
#endif
}

/* partial NULL: no sums are wanted; dx NULL likewise. */
ATTO_KERNEL void atto_norm_backward(GRADIENT_PARAMETERS)
{
    __local float2 scratch[ATTO_VEC / 2 * ATTO_WG]; /* or twice as many floats */
    const atto_slots sx = same_slots(x_at, cols);
    const atto_slots sdy = same_slots_like(sx, dy_at), sdx = same_slots_like(sx, dx_at);
    const atto_index at = ATTO_LANE() * ATTO_VEC;
    const size_t begin = get_group_id(0) * (size_t)per_group;
    const size_t end = min(begin + per_group, (size_t)rows);
    (void)sums;
    x += x_at - sx.first;
    dy += dy_at - sx.first;
    if (dx) dx += dx_at - sx.first;

    float scale[ATTO_CHUNK], dw[ATTO_CHUNK], db[ATTO_CHUNK], vx[ATTO_CHUNK], vdy[ATTO_CHUNK];
    load_params(w, w_at, sx, at, 1.0f, scale);
#pragma unroll
    for (uint i = 0; i < ATTO_CHUNK; i++) dw[i] = db[i] = 0.0f;
#if AHEAD
    float next_x[ATTO_CHUNK], next_dy[ATTO_CHUNK];
    load_pair(x, dy, sx, sdy, cols, begin + get_local_id(0) / ATTO_LANES, end, next_x, next_dy);
#endif
    for (size_t first = begin; first < end; first += ATTO_ROWS) { /* the same for all */
        const size_t row = first + get_local_id(0) / ATTO_LANES;
        const uint inside = row < end;
        const row_state r = state_of(mean, mean_at, rstd, rstd_at, inside ? row : first);
#if AHEAD
#pragma unroll
        for (uint i = 0; i < ATTO_CHUNK; i++) vx[i] = next_x[i], vdy[i] = next_dy[i];
        load_pair(x, dy, sx, sdy, cols, row + ATTO_ROWS, end, next_x, next_dy);
#else
        load_pair(x, dy, sx, sdy, cols, row, end, vx, vdy);
#endif
        float2 sum = (float2)(0.0f, 0.0f);
#pragma unroll
        for (uint i = 0; i < ATTO_CHUNK; i++) {
            const bool is_column = inside && ATTO_IS_SLOT(sx, ATTO_SLOT_OF(at, i));
            vx[i] = is_column ? (vx[i] - r.mean) * r.rstd : 0.0f; /* n */
            dw[i] += vdy[i] * vx[i];
            db[i] += vdy[i];
            vdy[i] *= scale[i]; /* g */
            sum += (float2)(vdy[i], vdy[i] * vx[i]);
        }
        /* No `continue` about this: PoCL 3.1 loses its way in loops with barriers then. */
        sum = atto_row_sum2(sum, scratch) / (float)cols;
        if (dx && inside) {
            float old[ATTO_CHUNK];
            if (add_dx) atto_load_chunk(dx + row * cols, sdx, at, 0.0f, old);
#pragma unroll
            for (uint i = 0; i < ATTO_CHUNK; i++) {
                const float centre = ATTO_CENTRED ? sum.x : 0.0f;
                const float d = r.rstd * ((vdy[i] - centre) - vx[i] * sum.y);
                vx[i] = add_dx ? old[i] + d : d;
            }
            atto_store_chunk(dx + row * cols, sdx, at, vx);
        }
    }

    /* No return where partial is NULL: PoCL 3.1 never comes out of the barriers behind it in rows of one lane with
     * 64-bit indices. */
    __global float *const sums_of_group =
        partial + (partial ? get_group_id(0) * 2 * (size_t)cols : 0);
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++) {
        sum_rows(dw + j * ATTO_VEC, (__local float *)scratch);
#if ATTO_CENTRED
        sum_rows(db + j * ATTO_VEC, (__local float *)scratch);
#endif
#pragma unroll
        for (uint k = 0; k < ATTO_VEC; k++) {
            const atto_index slot = at + j * ATTO_APART + k;
            if (partial && get_local_id(0) < ATTO_LANES && ATTO_IS_SLOT(sx, slot)) {
                sums_of_group[slot - sx.first] = dw[j * ATTO_VEC + k];
                sums_of_group[cols + (slot - sx.first)] = db[j * ATTO_VEC + k];
            }
        }
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_norm_sums)
/* sums: [rows, 2], the means of g and of g n. */
ATTO_KERNEL void atto_norm_sums(GRADIENT_PARAMETERS)
{
    __local float2 scratch[ATTO_WG];
    const size_t row = atto_row();
    const uint inside = row < rows;
    const size_t start = inside ? row * cols : 0;
    const atto_slots sx = atto_slots_of(x_at, start, cols, 1, inside);
    const atto_slots sdy = atto_slots_like(sx, dy_at, start);
    const row_state r = state_of(mean, mean_at, rstd, rstd_at, inside ? row : 0);
    (void)dx_at, (void)add_dx, (void)per_group;
    x += x_at + start - sx.first;
    dy += dy_at + start - sx.first;

    float2 sum = (float2)(0.0f, 0.0f);
    for (ATTO_CHUNKS(at, sx)) {
        float vx[ATTO_CHUNK], vdy[ATTO_CHUNK], scale[ATTO_CHUNK];
        atto_load_chunk(x, sx, at, 0.0f, vx);
        atto_load_chunk(dy, sdy, at, 0.0f, vdy); /* 0 where there is no column */
        load_params(w, w_at, sx, at, 1.0f, scale);
#pragma unroll
        for (uint i = 0; i < ATTO_CHUNK; i++) {
            const float g = vdy[i] * scale[i];
            const float n = (vx[i] - r.mean) * r.rstd;
            sum +=
                ATTO_IS_SLOT(sx, ATTO_SLOT_OF(at, i)) ? (float2)(g, g * n) : (float2)(0.0f, 0.0f);
        }
    }
    sum = atto_row_sum2(sum, scratch) / (float)cols;
    if (!inside || ATTO_LANE() != 0) return; /* no barrier follows */
    sums[2 * row] = ATTO_CENTRED ? sum.x : 0.0f;
    sums[2 * row + 1] = sum.y;
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_norm_columns)
#define ROWS_AHEAD 4 /* loaded before they are used */

/* strips: work-groups side by side, each of ATTO_WG * ATTO_VEC slots. */
ATTO_KERNEL void atto_norm_columns(GRADIENT_PARAMETERS, const atto_index strips)
{
    const size_t slab = get_group_id(0) / strips;
    const atto_slots sx = same_slots(x_at, cols);
    const atto_slots sdy = same_slots_like(sx, dy_at), sdx = same_slots_like(sx, dx_at);
    const atto_index strip = (atto_index)(get_group_id(0) - slab * strips);
    const atto_index at = (strip * ATTO_WG + (atto_index)get_local_id(0)) * ATTO_VEC;
    const size_t begin = slab * per_group, end = min(begin + per_group, (size_t)rows);
    if (at >= sx.end) return;
    x += x_at - sx.first;
    dy += dy_at - sx.first;
    if (dx) dx += dx_at - sx.first;

    float scale[ATTO_VEC], dw[ATTO_VEC], db[ATTO_VEC];
    load_params(w, w_at, sx, at, 1.0f, scale);
#pragma unroll
    for (uint i = 0; i < ATTO_VEC; i++) dw[i] = db[i] = 0.0f;
    for (size_t first = begin; first < end; first += ROWS_AHEAD) {
        float vx[ROWS_AHEAD][ATTO_VEC], vdy[ROWS_AHEAD][ATTO_VEC];
#pragma unroll
        for (uint j = 0; j < ROWS_AHEAD; j++) {
            const size_t row = min(first + j, end - 1);
            atto_load_chunk(x + row * cols, sx, at, 0.0f, vx[j]);
            atto_load_chunk(dy + row * cols, sdy, at, 0.0f, vdy[j]);
        }
#pragma unroll
        for (uint j = 0; j < ROWS_AHEAD; j++) {
            const size_t row = first + j;
            if (row >= end) continue;
            const row_state r = state_of(mean, mean_at, rstd, rstd_at, row);
            const float centre = dx ? sums[2 * row] : 0.0f, slope = dx ? sums[2 * row + 1] : 0.0f;
            float old[ATTO_VEC];
            if (dx && add_dx) atto_load_chunk(dx + row * cols, sdx, at, 0.0f, old);
#pragma unroll
            for (uint i = 0; i < ATTO_VEC; i++) {
                const float n = (vx[j][i] - r.mean) * r.rstd;
                dw[i] += vdy[j][i] * n;
                db[i] += vdy[j][i];
                const float d = r.rstd * ((vdy[j][i] * scale[i] - centre) - n * slope);
                vx[j][i] = add_dx ? old[i] + d : d;
            }
            if (dx) atto_store_chunk(dx + row * cols, sdx, at, vx[j]);
        }
    }

    if (!partial) return;
    partial += slab * 2 * (size_t)cols;
#pragma unroll
    for (uint i = 0; i < ATTO_VEC; i++) {
        if (!ATTO_IS_SLOT(sx, at + i)) continue;
        partial[at + i - sx.first] = dw[i];
        partial[cols + (at + i - sx.first)] = db[i];
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_norm_join)
#define JOINED (ATTO_WG < 8 ? ATTO_WG : 8) /* columns of a work-group: 32 bytes of a partial row */
#define JOINS  (ATTO_WG / JOINED)

/* strips: work-groups of one output. The first ones write dw, those behind them db, where one is
 * NULL all of them the other. */
ATTO_KERNEL void atto_norm_join(__global const float *partial, const uint groups,
                                __global param_t *dw, const ulong dw_at, __global param_t *db,
                                const ulong db_at, const atto_index cols, const atto_index strips,
                                const uint add_dw, const uint add_db)
{
    __local float scratch[ATTO_WG];
    const uint item = get_local_id(0), lane = item / JOINED;
    const bool is_db = !dw || get_group_id(0) >= strips;
    const atto_index strip = (atto_index)get_group_id(0) - (dw && is_db ? strips : 0);
    const atto_index column = strip * JOINED + item % JOINED;
    const bool exists = column < cols;
    partial += (is_db ? cols : 0) + (exists ? column : 0);

    float sum = 0.0f;
#pragma unroll 4
    for (uint g = lane; g < groups; g += JOINS) sum += partial[g * 2 * (size_t)cols];
    for (uint half_lanes = JOINS / 2; half_lanes > 0; half_lanes /= 2) {
        scratch[item] = sum;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < half_lanes) sum += scratch[item + half_lanes * JOINED];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (lane > 0 || !exists) return;
    __global param_t *out = (is_db ? db + db_at : dw + dw_at) + column;
    if (is_db ? add_db : add_dw) sum += load_param(*out);
    *out = store_param(sum);
}
#endif
