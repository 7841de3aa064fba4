/* SPDX-License-Identifier: MIT */
/* layer_norm.cl - layer norm and RMS norm of rows; of the latter the mean is 0.
 *
 *   forward    y = n w + b,  n = (x - mean) rstd
 *   backward   dx = rstd (g - sum of g / cols - n sum of (g n) / cols),  g = dy w
 *              dw = sum over rows of dy n,  db = sum over rows of dy
 *
 * forward: a work-group takes per_group rows of atto_row.h, ATTO_ROWS at a time. Rows that are not
 * held are read twice, by a kernel of the same name.
 *
 * backward: rows that are held are read once. A work-group takes per_group rows, ATTO_ROWS at a
 * time, so that a lane has the same columns in all of them and sums up dw and db on the way; join
 * adds the work-groups' sums. Longer rows take two kernels: sums, a row each, and columns, whose
 * work-items have the ATTO_VEC columns of a strip each in per_group rows.
 *
 *   partial: [groups, 2, cols], dw and db of a work-group's rows
 *
 *   -D            default  meaning
 *   ATTO_CENTRED  1        0: RMS norm
 *   ATTO_PARAM    f32      storage of w and b, and of what join writes
 *   and those of atto_row.h and, in backward, atto_ahead.h
 */
#include "atto_ahead.h"

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

/* w or b of the vector at slot `at`; `standard` where there is none. */
ATTO_UNROLLED void load_param_vector(__global const param_t *p, ulong p_at, atto_slots s,
                                     atto_index at, float standard, float *v)
{
#if ATTO_WHOLE
    __global const uint4 *from = (__global const uint4 *)(p + p_at + (at < s.end ? at : 0));
    uint4 raw[PARAM_PIECES];
    if (p) { /* a vector that is none does not count */
#pragma unroll
        for (uint j = 0; j < PARAM_PIECES; j++) raw[j] = from[j];
#pragma unroll
        for (uint j = 0; j < PARAM_PIECES; j++)
            ATTO_PASTE(atto_unpack_, ATTO_PARAM)(raw[j], v + j * PARAM_VEC);
    } else {
#pragma unroll
        for (uint i = 0; i < ATTO_VEC; i++) v[i] = standard;
    }
#else
#pragma unroll
    for (uint i = 0; i < ATTO_VEC; i++)
        v[i] = p && ATTO_IS_SLOT(s, at + i) ? load_param(p[p_at + (at + i - s.first)]) : standard;
#endif
}

/* Of a chunk. */
ATTO_UNROLLED void load_params(__global const param_t *p, ulong p_at, atto_slots s, atto_index at,
                               float standard, float *v)
{
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++)
        load_param_vector(p, p_at, s, at + j * ATTO_APART, standard, v + j * ATTO_VEC);
}

/* ---- what a lane holds of a row ---- */

/* Packed where rows are whole: f16 and bf16 take half of the registers then. */
typedef struct held {
#if ATTO_WHOLE
    uint4 raw[ATTO_ITEMS];
#else
    float v[ATTO_CHUNK];
#endif
} held;

/* The compiler forgets what it has unpacked, which it would keep in registers until it is needed
 * again. */
#if ATTO_WHOLE && ATTO_NVIDIA && ATTO_VEC > 4
#define FORGET(h)                                                                \
    _Pragma("unroll") for (uint j_ = 0; j_ < ATTO_ITEMS; j_++) __asm__ volatile( \
        "" : "+r"((h).raw[j_].x), "+r"((h).raw[j_].y), "+r"((h).raw[j_].z), "+r"((h).raw[j_].w))
#else
#define FORGET(h)
#endif

/* 0 in empty slots. */
ATTO_UNROLLED void hold(__global const ATTO_T *run, atto_slots s, held *h)
{
#if ATTO_WHOLE
    atto_fetch_chunk(run, s, ATTO_LANE() * ATTO_VEC, h->raw);
#else
    atto_load_chunk(run, s, ATTO_LANE() * ATTO_VEC, 0.0f, h->v);
#endif
}

/* Vector j. */
ATTO_UNROLLED void unpack_vector(const held *h, uint j, float *v)
{
#if ATTO_WHOLE
    atto_unpack(h->raw[j], v);
#else
#pragma unroll
    for (uint i = 0; i < ATTO_VEC; i++) v[i] = h->v[j * ATTO_VEC + i];
#endif
}

/* Its first slot. */
#define VECTOR_AT(j) (ATTO_LANE() * ATTO_VEC + (j)*ATTO_APART)

/* A sum has so many parts side by side: of one, each term would wait for the last. */
#define PARTS           4
#define SUM_OF_PARTS(p) (((p)[0] + (p)[1]) + ((p)[2] + (p)[3]))

/* ---- forward ---- */

typedef struct row_moments {
    float mean, rest; /* the mean is their sum: rest is what rounding took from it */
    float rstd;
} row_moments;

/* NaN stays. */
static inline float rstd_of(float variance, float eps)
{
    return attop_rsqrt((variance < 0.0f ? 0.0f : variance) + eps);
}

static inline float normalised(float x, row_moments m)
{
#if ATTO_CENTRED
    return ((x - m.mean) - m.rest) * m.rstd;
#else
    return x * m.rstd;
#endif
}

#define FORWARD_PARAMETERS                                                                    \
    __global const ATTO_T *x, const ulong x_at, __global const param_t *w, const ulong w_at,  \
        __global const param_t *b, const ulong b_at, __global ATTO_T *y, const ulong y_at,    \
        __global float *mean, const ulong mean_at, __global float *rstd, const ulong rstd_at, \
        const ulong rows, const atto_index cols, const float eps, const uint per_group

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_norm_forward)
#if ATTO_HELD

/* The next row is on its way while the work-items of this one wait for each other, where there are
 * registers for it. */
#if ATTO_NVIDIA && ATTO_WHOLE
#define FORWARD_AHEAD 1
#else
#define FORWARD_AHEAD (ATTO_CHUNK <= 16)
#endif

/* A row's slots, none behind the last row, and where its first one is. */
static inline atto_slots slots_of_row(ulong x_at, atto_index cols, size_t row, size_t end)
{
    return atto_slots_of(x_at, row < end ? row * cols : 0, cols, 1, row < end);
}

static inline __global const ATTO_T *run_of_row(__global const ATTO_T *x, ulong x_at,
                                                atto_index cols, size_t row, size_t end)
{
    const size_t start = row < end ? row * cols : 0;
    return x + x_at + start - slots_of_row(x_at, cols, row, end).first;
}

/* Sums of deviations from mean and of their squares, of this lane's elements. */
ATTO_UNROLLED float2 deviations(const held *h, atto_slots s, float mean)
{
    float2 about[PARTS];
#pragma unroll
    for (uint k = 0; k < PARTS; k++) about[k] = (float2)(0.0f, 0.0f);
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++) {
        float v[ATTO_VEC];
        if (ATTO_WHOLE && !ATTO_IS_VECTOR(s, VECTOR_AT(j))) continue;
        unpack_vector(h, j, v);
#pragma unroll
        for (uint i = 0; i < ATTO_VEC; i++) {
            const float d = ATTO_WHOLE || ATTO_IS_SLOT(s, VECTOR_AT(j) + i) ? v[i] - mean : 0.0f;
            about[i % PARTS] += (float2)(d, d * d);
        }
    }
    return SUM_OF_PARTS(about);
}

ATTO_UNROLLED row_moments moments_of(held *h, atto_slots s, atto_index cols, float eps,
                                     __local float2 *scratch, uint turn)
{
    row_moments m = { 0.0f, 0.0f, 0.0f };
    float part[PARTS] = { 0.0f, 0.0f, 0.0f, 0.0f };
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++) {
        float v[ATTO_VEC];
        unpack_vector(h, j, v);
#pragma unroll
        for (uint i = 0; i < ATTO_VEC; i++) part[i % PARTS] += ATTO_CENTRED ? v[i] : v[i] * v[i];
    }
    FORGET(*h);
#if ATTO_CENTRED
    m.mean = atto_row_sum_in_turn(SUM_OF_PARTS(part), scratch, 0) / (float)cols;
    const float2 about = atto_row_sum2_in_turn(deviations(h, s, m.mean), scratch, 1) / (float)cols;
    m.rest = about.x;
    m.rstd = rstd_of(about.y - about.x * about.x, eps);
#else
    m.rstd = rstd_of(atto_row_sum_in_turn(SUM_OF_PARTS(part), scratch, turn) / (float)cols, eps);
#endif
    FORGET(*h);
    return m;
}

ATTO_KERNEL void atto_norm_forward(FORWARD_PARAMETERS)
{
    __local float2 scratch[2 * ATTO_WG];
    const size_t begin = get_group_id(0) * (size_t)per_group;
    const size_t end = min(begin + per_group, (size_t)rows);
    size_t row = begin + get_local_id(0) / ATTO_LANES;
#if FORWARD_AHEAD
    held next;
    hold(run_of_row(x, x_at, cols, row, end), slots_of_row(x_at, cols, row, end), &next);
#endif
    for (size_t first = begin, turn = 0; first < end; first += ATTO_ROWS, turn++) { /* for all */
        const atto_slots s = slots_of_row(x_at, cols, row, end);
        const size_t start = row < end ? row * cols : 0;
        const atto_slots to = atto_slots_like(s, y_at, start);
        __global ATTO_T *out = y + y_at + start - s.first;
#if FORWARD_AHEAD
        held here = next;
        const size_t then = row + ATTO_ROWS;
        hold(run_of_row(x, x_at, cols, then, end), slots_of_row(x_at, cols, then, end), &next);
#else
        held here;
        hold(run_of_row(x, x_at, cols, row, end), s, &here);
#endif
        const row_moments m = moments_of(&here, s, cols, eps, scratch, (uint)turn);
#pragma unroll
        for (uint j = 0; j < ATTO_ITEMS; j++) {
            float v[ATTO_VEC], scale[ATTO_VEC], shift[ATTO_VEC];
            if (ATTO_WHOLE && !ATTO_IS_VECTOR(s, VECTOR_AT(j))) continue;
            load_param_vector(w, w_at, s, VECTOR_AT(j), 1.0f, scale);
            load_param_vector(ATTO_CENTRED ? b : 0, b_at, s, VECTOR_AT(j), 0.0f, shift);
            unpack_vector(&here, j, v);
#pragma unroll
            for (uint i = 0; i < ATTO_VEC; i++) v[i] = normalised(v[i], m) * scale[i] + shift[i];
            atto_store_vector(out, to, VECTOR_AT(j), v);
        }
        if (row < end && ATTO_LANE() == 0) {
            if (mean) mean[mean_at + row] = m.mean + m.rest;
            if (rstd) rstd[rstd_at + row] = m.rstd;
        }
        row += ATTO_ROWS;
    }
}

#else

/* Elements, their mean, and the sum of squares about it; of RMS norm the mean is 0. */
typedef struct lane_moments {
    float n, mean, squares;
} lane_moments;

/* Source: Chan, Golub, LeVeque 1979, "Updating formulae and a pairwise algorithm for computing
 * sample variances". */
static inline void merge_moments(lane_moments *m, float n, float mean, float squares)
{
    if (n == 0.0f) return;
    const float total = m->n + n, apart = mean - m->mean, share = n / total;
    m->mean += apart * share;
    m->squares += squares + apart * apart * (m->n * share);
    m->n = total;
}

/* Of one chunk. */
ATTO_UNROLLED void merge_chunk(lane_moments *m, const float *v, atto_slots s, atto_index at)
{
    float sum = 0.0f, n = 0.0f, squares = 0.0f;
#pragma unroll
    for (uint i = 0; i < ATTO_CHUNK; i++) {
        sum += v[i];
        n += ATTO_HAS(s, at, i) ? 1.0f : 0.0f;
    }
    const float mean = ATTO_CENTRED && n > 0.0f ? sum / n : 0.0f;
#pragma unroll
    for (uint i = 0; i < ATTO_CHUNK; i++) {
        const float d = ATTO_HAS(s, at, i) ? v[i] - mean : 0.0f;
        squares += d * d;
    }
    merge_moments(m, n, mean, squares);
}

ATTO_UNROLLED row_moments moments_of(__global const ATTO_T *x, atto_slots s, atto_index cols,
                                     float eps, __local float2 *scratch)
{
    row_moments m = { 0.0f, 0.0f, 0.0f };
    lane_moments lane = { 0.0f, 0.0f, 0.0f };
    for (ATTO_CHUNKS(at, s)) {
        float v[ATTO_CHUNK];
        atto_load_chunk(x, s, at, 0.0f, v);
        merge_chunk(&lane, v, s, at);
    }
#if ATTO_CENTRED
    m.mean = atto_row_sum(lane.n * lane.mean, (__local float *)scratch) / (float)cols;
    const float apart = lane.n > 0.0f ? lane.mean - m.mean : 0.0f;
    const float2 about =
        atto_row_sum2((float2)(lane.n * apart, lane.squares + lane.n * (apart * apart)), scratch) /
        (float)cols;
    m.rest = about.x;
    m.rstd = rstd_of(about.y - about.x * about.x, eps);
#else
    m.rstd = rstd_of(atto_row_sum(lane.squares, (__local float *)scratch) / (float)cols, eps);
#endif
    return m;
}

ATTO_KERNEL void atto_norm_forward(FORWARD_PARAMETERS)
{
    __local float2 scratch[ATTO_WG];
    const size_t begin = get_group_id(0) * (size_t)per_group;
    const size_t end = min(begin + per_group, (size_t)rows);
    for (size_t first = begin; first < end; first += ATTO_ROWS) { /* the same for all */
        const size_t row = first + get_local_id(0) / ATTO_LANES;
        const uint inside = row < end;
        const size_t start = inside ? row * cols : 0;
        const atto_slots s = atto_slots_of(x_at, start, cols, 1, inside);
        const atto_slots to = atto_slots_like(s, y_at, start);
        __global const ATTO_T *from = x + x_at + start - s.first;
        __global ATTO_T *out = y + y_at + start - s.first;
        const row_moments m = moments_of(from, s, cols, eps, scratch);
        for (ATTO_CHUNKS(at, s)) {
            float v[ATTO_CHUNK], scale[ATTO_CHUNK], shift[ATTO_CHUNK];
            load_params(w, w_at, s, at, 1.0f, scale);
            load_params(ATTO_CENTRED ? b : 0, b_at, s, at, 0.0f, shift);
            atto_load_chunk(from, s, at, 0.0f, v);
#pragma unroll
            for (uint i = 0; i < ATTO_CHUNK; i++) v[i] = normalised(v[i], m) * scale[i] + shift[i];
            atto_store_chunk(out, to, at, v);
        }
        if (inside && ATTO_LANE() == 0) {
            if (mean) mean[mean_at + row] = m.mean + m.rest;
            if (rstd) rstd[rstd_at + row] = m.rstd;
        }
    }
}
#endif
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

/* x and dy of a lane. */
typedef struct pair {
    held x, dy;
} pair;

#if ATTO_STAGES
ATTO_UNROLLED void ask_for_pair(__global const ATTO_T *x, __global const ATTO_T *dy, atto_slots sx,
                                atto_slots sdy, atto_index cols, size_t row, size_t end,
                                __local uint4 *stages, uint turn)
{
    const atto_index at = ATTO_LANE() * ATTO_VEC;
    const size_t start = row < end ? row * cols : 0;
    if (row >= end) sx.end = sdy.end = 0;
    atto_ask_for_chunk(x + start, sx, at, atto_stage(stages, turn, 2, 0));
    atto_ask_for_chunk(dy + start, sdy, at, atto_stage(stages, turn, 2, 1));
    atto_end_asking();
}
#else
/* 0 behind the last row. */
ATTO_UNROLLED void load_pair(__global const ATTO_T *x, __global const ATTO_T *dy, atto_slots sx,
                             atto_slots sdy, atto_index cols, size_t row, size_t end, pair *p)
{
    const size_t start = row < end ? row * cols : 0;
    if (row >= end) sx.end = sdy.end = 0;
    hold(x + start, sx, &p->x);
    hold(dy + start, sdy, &p->dy);
}
#endif

/* n and dy of a row, from what is held of it. */
ATTO_UNROLLED void unpack_pair(const pair *p, row_state r, float *n, float *dy)
{
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++) {
        unpack_vector(&p->x, j, n + j * ATTO_VEC);
        unpack_vector(&p->dy, j, dy + j * ATTO_VEC);
    }
#pragma unroll
    for (uint i = 0; i < ATTO_CHUNK; i++) n[i] = (n[i] - r.mean) * r.rstd;
}

/* n = 0 where there is no column, or no row. */
ATTO_UNROLLED void clear_beyond(float *n, atto_slots s, uint inside)
{
#pragma unroll
    for (uint i = 0; i < ATTO_CHUNK; i++)
        n[i] = inside && ATTO_HAS(s, ATTO_LANE() * ATTO_VEC, i) ? n[i] : 0.0f;
}

/* Rows side by side have sums of their own: the first of them gets all, of one vector of columns.
 * scratch has ATTO_VEC * ATTO_WG elements. */
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

/* Pairs: two turns of sums, and those of sum_rows. */
#if ATTO_ROWS > 1 && ATTO_VEC > 4
#define BACKWARD_SCRATCH (ATTO_VEC / 2 * ATTO_WG)
#else
#define BACKWARD_SCRATCH (2 * ATTO_WG)
#endif

/* partial NULL: no sums are wanted; dx NULL likewise. */
ATTO_KERNEL void atto_norm_backward(GRADIENT_PARAMETERS)
{
    __local float2 scratch[BACKWARD_SCRATCH];
    const atto_slots sx = same_slots(x_at, cols);
    const atto_slots sdy = same_slots_like(sx, dy_at), sdx = same_slots_like(sx, dx_at);
    const atto_index at = ATTO_LANE() * ATTO_VEC;
    const size_t begin = get_group_id(0) * (size_t)per_group;
    const size_t end = min(begin + per_group, (size_t)rows);
    (void)sums;
    x += x_at - sx.first;
    dy += dy_at - sx.first;
    if (dx) dx += dx_at - sx.first;

    float scale[ATTO_CHUNK], dw[ATTO_CHUNK], db[ATTO_CHUNK], n[ATTO_CHUNK], g[ATTO_CHUNK];
    uint turn = 0;
    load_params(w, w_at, sx, at, 1.0f, scale);
#pragma unroll
    for (uint i = 0; i < ATTO_CHUNK; i++) dw[i] = db[i] = 0.0f;
#if ATTO_STAGES
    __local uint4 stages[ATTO_STAGE_VECTORS(2)];
    size_t asked = begin + get_local_id(0) / ATTO_LANES;
    for (uint k = 0; k + 1 < ATTO_STAGES; k++, asked += ATTO_ROWS)
        ask_for_pair(x, dy, sx, sdy, cols, asked, end, stages, k);
#endif
    for (size_t first = begin; first < end; first += ATTO_ROWS, turn++) { /* the same for all */
        const size_t row = first + get_local_id(0) / ATTO_LANES;
        const uint inside = row < end;
        const row_state r = state_of(mean, mean_at, rstd, rstd_at, inside ? row : first);
        pair p;
#if ATTO_STAGES
        ask_for_pair(x, dy, sx, sdy, cols, asked, end, stages, turn + ATTO_STAGES - 1);
        asked += ATTO_ROWS;
        atto_await_oldest();
        atto_take_chunk(atto_stage(stages, turn, 2, 0), p.x.raw);
        atto_take_chunk(atto_stage(stages, turn, 2, 1), p.dy.raw);
#else
        load_pair(x, dy, sx, sdy, cols, row, end, &p);
#endif
        float2 part[PARTS];
        unpack_pair(&p, r, n, g);
        /* dy is 0 there, which is enough unless n is infinite. */
        if (!ATTO_WHOLE || isinf(r.mean * r.rstd)) clear_beyond(n, sx, inside);
#pragma unroll
        for (uint i = 0; i < PARTS; i++) part[i] = (float2)(0.0f, 0.0f);
#pragma unroll
        for (uint i = 0; i < ATTO_CHUNK; i++) {
            dw[i] += g[i] * n[i];
            db[i] += g[i];
            g[i] *= scale[i];
            part[i % PARTS] += (float2)(g[i], g[i] * n[i]);
        }
        /* No `continue` about this: PoCL 3.1 loses its way in loops with barriers then. */
        const float2 all = atto_row_sum2_in_turn(SUM_OF_PARTS(part), scratch, turn);
        if (dx && inside) {
            const float centre = ATTO_CENTRED ? r.rstd * (all.x / (float)cols) : 0.0f;
            const float slope = r.rstd * (all.y / (float)cols);
#if ATTO_WHOLE && ATTO_VEC > 4 /* of f32 nothing was packed */
            FORGET(p.x);
            FORGET(p.dy);
            unpack_pair(&p, r, n, g);
#pragma unroll
            for (uint i = 0; i < ATTO_CHUNK; i++) g[i] *= scale[i];
#endif
#pragma unroll
            for (uint i = 0; i < ATTO_CHUNK; i++) n[i] = (g[i] * r.rstd - centre) - n[i] * slope;
            if (add_dx) {
                float old[ATTO_CHUNK];
                atto_load_chunk(dx + row * cols, sdx, at, 0.0f, old);
#pragma unroll
                for (uint i = 0; i < ATTO_CHUNK; i++) n[i] += old[i];
            }
            atto_store_chunk(dx + row * cols, sdx, at, n);
        }
    }

    /* No return where partial is NULL: PoCL 3.1 never comes out of the barriers behind it in rows
     * of one lane with 64-bit indices. */
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
            sum += ATTO_HAS(sx, at, i) ? (float2)(g, g * n) : (float2)(0.0f, 0.0f);
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
