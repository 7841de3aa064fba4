/* SPDX-License-Identifier: MIT */
/* batch_norm.cl - batch norm, residual, activation.
 *
 *   forward    moments, finish (mean, rstd, running statistics), then y = act(n w + b + residual),
 *              n = (x - mean) rstd
 *   backward   sums of dz = act'(n w + b + residual) dy and of dz n, their finish (db, dw), then
 *              dx = w rstd (dz - (db + n dw) / M), dresidual = dz
 *
 * A unit is ATTO_RUN neighbouring elements. ATTO_LAST 0: x is [n, channels, size], a unit has one
 * channel, and a channel has `folded` units, per_run of them in each run of size. ATTO_LAST 1: x is
 * [images, folded, channels / images], images 1 for batch norm, a unit has ATTO_RUN channels, of
 * which there are `kept` in all and per_run in each row.
 *
 * A work-group takes a strip of `columns` channels (units of them) and a slab of per_slab units
 * along folded; `lanes` work-items share a column:
 *
 *     group = slab * strips + strip
 *     item = lane * columns + column where channels are neighbours, else column * lanes + lane
 *
 * Group norm is the same: the channels of all images are those of one, per_stat neighbours share
 * statistics, and channel c has parameters c % params. Row-major, moments are taken of groups as if
 * they were channels. group_norm.cl merges channels' sums by groups, for dx; join does so over
 * images, for db and dw.
 *
 *   partial: [slabs, 2, channels], mean and squares about it, or sums of dz and of dz n
 *
 *   -D         default         meaning
 *   ATTO_LAST  0               1: channels are neighbours
 *   ATTO_ACT   attom_identity  function of atto_math.h; its derivative is ATTO_ACT with _grad
 *   ATTO_OUT   f32             storage of dw and db
 *   and those of atto_kernel.h; ATTO_RUN is ATTO_VEC where ATTO_VECTORS, else 1; ATTO_LANES of
 *   atto_reduce.h in the two finishes
 */
#include "atto_kernel.h"
#include "atto_reduce.h"

#ifndef ATTO_LAST
#define ATTO_LAST 0
#endif
#ifndef ATTO_ACT
#define ATTO_ACT attom_identity
#endif
#ifndef ATTO_OUT
#define ATTO_OUT f32
#endif
#define ATTO_ACT_GRAD ATTO_PASTE(ATTO_ACT, _grad)
typedef ATTO_PASTE(atto_, ATTO_OUT) out_t;

#define UNITS     4                          /* that a lane loads before it uses them */
#define RESULTS   (ATTO_LAST ? ATTO_RUN : 1) /* channels of a work-item */
#define RESULT(k) (ATTO_LAST ? (k) : 0)      /* that element k of a unit belongs to */

/* ---- where a work-item is ---- */

/* magic, shift: of per_run, for atto_divide */
#define PLACE_PARAMETERS                                                             \
    const atto_index channels, const atto_index kept, const atto_index per_run,      \
        const atto_index folded, const atto_index per_slab, const atto_index strips, \
        const uint columns, const uint magic, const uint shift

typedef struct place {
    uint column, lane, lanes, columns;
    size_t slab;
    atto_index unit;  /* of a row, or channel; the first where this work-item has none */
    atto_index first; /* unit along folded; then every lanes-th, */
    atto_index end;   /* before this one; 0 where this work-item has none */
    atto_index row;   /* ATTO_LAST: where the unit is in the first row of its image */
    uint exists;
} place;

static inline place place_of(PLACE_PARAMETERS)
{
    place p;
    p.columns = columns;
    p.lanes = ATTO_WG / columns;
#if ATTO_LAST
    p.column = (uint)get_local_id(0) % columns;
    p.lane = (uint)get_local_id(0) / columns;
#else
    p.column = (uint)get_local_id(0) / p.lanes;
    p.lane = (uint)get_local_id(0) % p.lanes;
#endif
    p.slab = (atto_index)get_group_id(0) / strips;
    const atto_index unit = (atto_index)(get_group_id(0) - p.slab * strips) * columns + p.column;
    p.exists = unit < kept;
    p.unit = p.exists ? unit : 0;
    p.first = (atto_index)p.slab * per_slab + p.lane;
    p.end = p.exists ? min((atto_index)(p.slab + 1) * per_slab, folded) : 0;
#if ATTO_LAST
    const atto_index image = atto_divide(p.unit, per_run, magic, shift);
    p.row = image * folded * per_run + (p.unit - image * per_run);
#else
    p.row = 0;
#endif
    return p;
}

#define PLACE place_of(channels, kept, per_run, folded, per_slab, strips, columns, magic, shift)

/* First element of unit f of the work-item's column. */
static inline atto_index element_of(place p, atto_index f, atto_index channels, atto_index per_run,
                                    uint magic, uint shift)
{
#if ATTO_LAST
    return (p.row + f * per_run) * ATTO_RUN;
#else
    const atto_index run = atto_divide(f, per_run, magic, shift);
    return ((run * channels + p.unit) * per_run + (f - run * per_run)) * ATTO_RUN;
#endif
}

#define ELEMENT(f) element_of(p, f, channels, per_run, magic, shift)

/* The units of a tensor from f on, UNITS of them; what is not there is f again. */
#define LOAD_UNITS(tensor, f, raw)                              \
    _Pragma("unroll") for (uint j = 0; j < UNITS; j++) raw[j] = \
        atto_load_unit(tensor, ELEMENT((f) + j * p.lanes < p.end ? (f) + j * p.lanes : (f)))

/* ---- sums over lanes ---- */

#define ALL_ITEMS   1
#define FIRST_LANES 0

#if ATTO_LAST

/* Columns' sums over their lanes, which all work-items get, or those of lane 0 alone. scratch has
 * RESULTS * ATTO_WG elements. */
ATTO_UNROLLED void fold_lanes(float *v, place p, __local float *scratch, uint whose)
{
    ATTO_FOLD_COLUMNS(v, RESULTS, p.columns, whose, scratch, ATTO_ADD);
}

#elif ATTO_NVIDIA >= 70 && ATTO_WG >= 32

ATTO_UNROLLED void fold_lanes(float *v, place p, __local float *scratch, uint whose)
{
    const uint item = get_local_id(0), warps = p.lanes / 32;
    for (uint bit = min(p.lanes, 32u) / 2; bit > 0; bit /= 2) v[0] += atto_swap(v[0], bit);
    if (warps < 2) return;        /* all work-items */
    barrier(CLK_LOCAL_MEM_FENCE); /* who still reads the last one */
    if (item % 32 == 0) scratch[item / 32] = v[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    v[0] = 0.0f;
    for (uint w = 0; w < warps; w++) v[0] += scratch[p.column * warps + w];
    (void)whose;
}

#else

ATTO_UNROLLED void fold_lanes(float *v, place p, __local float *scratch, uint whose)
{
    const uint item = get_local_id(0);
    for (uint half_lanes = p.lanes / 2; half_lanes > 0; half_lanes /= 2) { /* the same for all */
        barrier(CLK_LOCAL_MEM_FENCE);
        scratch[item] = v[0];
        barrier(CLK_LOCAL_MEM_FENCE);
        if (p.lane < half_lanes) v[0] += scratch[item + half_lanes];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (p.lane == 0) scratch[p.column] = v[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    v[0] = scratch[p.column];
    (void)whose;
}

#endif

/* The two numbers of a work-item's channels go to its slab's part. */
static inline void put_partial(__global float *partial, place p, atto_index channels, uint k,
                               float a, float b)
{
    const size_t c = (size_t)p.unit * RESULTS + k;
    if (p.lane > 0 || !p.exists) return;
    partial[p.slab * 2 * channels + c] = a;
    partial[(p.slab * 2 + 1) * channels + c] = b;
}

/* ---- forward ---- */

/* Squares about the mean from those about another number, and from the sum about it; share: 1 /
 * count. NaN stays NaN, and what has overflowed infinite. */
static inline float about_mean(float squares, float sum, float share)
{
    const float rest = squares - sum * (sum * share);
    return squares == INFINITY ? squares : rest < 0.0f ? 0.0f : rest;
}

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_batch_norm_moments)
/* Values of a channel in so many units. */
#define VALUES(units) ((float)(units) * (ATTO_LAST ? 1.0f : (float)ATTO_RUN))

/* Mean and squares about it of the whole slab, from lanes' sums about a number of their own. */
ATTO_UNROLLED void put_moments(__global float *partial, place p, atto_index channels,
                               const float *about, const float *sum, const float *squares,
                               __local float *scratch)
{
    const atto_index begin = p.first - p.lane;
    const float n = VALUES(p.first < p.end ? (p.end - p.first + p.lanes - 1) / p.lanes : 0);
    const float values = VALUES(p.end - begin), share = n > 0.0f ? 1.0f / n : 0.0f;
    float all[RESULTS], rest[RESULTS], rest_squares[RESULTS];
#pragma unroll
    for (uint k = 0; k < RESULTS; k++) all[k] = n * about[k] + sum[k];
    fold_lanes(all, p, scratch, ALL_ITEMS);
#pragma unroll
    for (uint k = 0; k < RESULTS; k++) {
        all[k] /= values;
        const float apart = n > 0.0f ? (about[k] - all[k]) + sum[k] * share : 0.0f;
        rest[k] = n * apart;
        rest_squares[k] = about_mean(squares[k], sum[k], share) + n * (apart * apart);
    }
    fold_lanes(rest, p, scratch, FIRST_LANES);
    fold_lanes(rest_squares, p, scratch, FIRST_LANES);
#pragma unroll
    for (uint k = 0; k < RESULTS; k++) {
        const float left = rest[k] / values;
        put_partial(partial, p, channels, k, all[k] + left, rest_squares[k] - rest[k] * left);
    }
}

/* A lane's sums are about its first unit, which costs digits only where that lies far off the
 * others: their squares are at most 1 + (units of a lane) times those about the mean, since the
 * first unit is one of them. Source of the merging: Chan, Golub, LeVeque 1979. */
ATTO_KERNEL void atto_batch_norm_moments(__global const ATTO_T *x, const ulong x_at,
                                         __global float *partial, PLACE_PARAMETERS)
{
    __local float scratch[RESULTS * ATTO_WG];
    const place p = PLACE;
    float first[ATTO_RUN], about[RESULTS], sum[RESULTS], squares[RESULTS];
    atto_raw raw[UNITS];
    x += x_at;
    LOAD_UNITS(x, p.first < p.end ? p.first : 0, raw);
    atto_widen_unit(raw[0], first);
#pragma unroll
    for (uint k = 0; k < RESULTS; k++) about[k] = sum[k] = squares[k] = 0.0f;
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) about[RESULT(k)] += first[k] * ((float)RESULTS / ATTO_RUN);
    for (atto_index f = p.first; f < p.end; f += UNITS * p.lanes) {
        if (f > p.first) LOAD_UNITS(x, f, raw);
#pragma unroll
        for (uint j = 0; j < UNITS; j++) {
            float v[ATTO_RUN];
            if (f + j * p.lanes >= p.end) continue;
            atto_widen_unit(raw[j], v);
#pragma unroll
            for (uint k = 0; k < ATTO_RUN; k++) {
                const float d = v[k] - about[RESULT(k)];
                sum[RESULT(k)] += d;
                squares[RESULT(k)] += d * d;
            }
        }
    }
    put_moments(partial, p, channels, about, sum, squares, scratch);
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_batch_norm_finish)
/* Values of slab s; where part i of a set, a slab's channel, has its mean. */
#define COUNT(s) ((float)(min((s + 1) * per_slab, folded) - (s)*per_slab) * (float)per_unit)
#define PART(i)  ((i) / per_stat * 2 * channels + stat * per_stat + (i) % per_stat)

/* Merges the slabs of per_stat channels; ATTO_LANES work-items have one such set. slabs 0:
 * statistics are the running ones. batches is counted up by the kernel behind this one. */
ATTO_KERNEL void atto_batch_norm_finish(
    __global const float *partial, __global float *mean, const ulong mean_at, __global float *rstd,
    const ulong rstd_at, __global float *running_mean, const ulong running_mean_at,
    __global float *running_var, const ulong running_var_at, __global const long *batches,
    const ulong batches_at, const ulong channels, const uint per_stat, const ulong slabs,
    const ulong folded, const ulong per_slab, const uint per_unit, const float momentum,
    const uint cumulative, const float eps)
{
    __local float2 scratch[ATTO_WG];
    const size_t stat = get_group_id(0) * (size_t)ATTO_ROWS + get_local_id(0) / ATTO_LANES;
    const bool inside = stat < channels / per_stat;
    const float values = (float)folded * (float)per_unit * (float)per_stat;
    const uint parts = inside ? (uint)slabs * per_stat : 0;
    const float about = ATTO_LANE() < parts ? partial[PART(ATTO_LANE())] : 0.0f;
    float n = 0.0f, sum = 0.0f, squares = 0.0f; /* of this lane's parts, about the first of them */
    for (uint i = ATTO_LANE(); i < parts; i += ATTO_LANES) {
        const float count = COUNT(i / per_stat), apart = partial[PART(i)] - about;
        n += count;
        sum += count * apart;
        squares += partial[PART(i) + channels] + count * (apart * apart);
    }
    const float share = n > 0.0f ? 1.0f / n : 0.0f;
    const float all = atto_row_sum(n * about + sum, (__local float *)scratch) / values;
    const float apart = n > 0.0f ? (about - all) + sum * share : 0.0f;
    const float lane_squares = about_mean(squares, sum, share) + n * (apart * apart);
    const float2 row = atto_row_sum2((float2)(n * apart, lane_squares), scratch);
    if (!inside || ATTO_LANE() != 0) return;
    if (running_mean) running_mean += running_mean_at + stat;
    if (running_var) running_var += running_var_at + stat;
    const float rest = row.x / values, all_squares = row.y - row.x * rest;
    const float m = slabs > 0 ? all + rest : *running_mean;
    const float var = slabs > 0 ? all_squares / values : *running_var;
    if (mean) mean[mean_at + stat] = m;
    if (rstd) rstd[rstd_at + stat] = attop_rsqrt((var < 0.0f ? 0.0f : var) + eps);
    if (slabs == 0 || !running_mean) return;
    const float part = cumulative ? 1.0f / (float)(batches[batches_at] + 1) : momentum;
    *running_mean = (1.0f - part) * *running_mean + part * m;
    *running_var = (1.0f - part) * *running_var + part * (all_squares / (values - 1.0f));
}
#endif

/* What a work-item knows of its channels: n w + b = (x - mean) scale + b,
 * dx = scale dz - less - (x - mean) less_n. */
typedef struct channel_numbers {
    float mean[RESULTS], rstd[RESULTS], scale[RESULTS], b[RESULTS], less[RESULTS], less_n[RESULTS];
} channel_numbers;

#define CHANNEL_PARAMETERS                                                                       \
    __global const float *mean, const ulong mean_at, __global const float *rstd,                 \
        const ulong rstd_at, __global const float *w, const ulong w_at, __global const float *b, \
        const ulong b_at, const ulong per_stat, const ulong params

/* sums: [2, stats]; NULL: less and less_n are 0. */
ATTO_UNROLLED void load_channels(channel_numbers *c, place p, atto_index channels,
                                 __global const float *sums, ulong stats, CHANNEL_PARAMETERS)
{
    /* One division, which batch norm does not need, and then steps. */
    const atto_index channel = p.unit * RESULTS, each = (atto_index)per_stat;
    atto_index stat = per_stat == 1 ? channel : channel / each, part = channel - stat * each;
    atto_index param = params == channels ? channel : channel % (atto_index)params;
#pragma unroll
    for (uint k = 0; k < RESULTS; k++) {
        c->mean[k] = mean[mean_at + stat];
        c->rstd[k] = rstd[rstd_at + stat];
        c->scale[k] = c->rstd[k] * (w ? w[w_at + param] : 1.0f);
        c->b[k] = b ? b[b_at + param] : 0.0f;
        c->less[k] = sums ? c->rstd[k] * sums[stat] : 0.0f;
        c->less_n[k] = sums ? c->rstd[k] * (c->rstd[k] * sums[stats + stat]) : 0.0f;
        part = part + 1 < each ? part + 1 : 0;
        stat += part == 0;
        param = param + 1 < params ? param + 1 : 0;
    }
}

#define LOAD_CHANNELS(c, sums, stats)                                                             \
    load_channels(&(c), p, channels, sums, stats, mean, mean_at, rstd, rstd_at, w, w_at, b, b_at, \
                  per_stat, params)

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_batch_norm_apply)
ATTO_KERNEL void atto_batch_norm_apply(__global const ATTO_T *x, const ulong x_at,
                                       __global const ATTO_T *residual, const ulong residual_at,
                                       __global ATTO_T *y, const ulong y_at, __global long *batches,
                                       const ulong batches_at, CHANNEL_PARAMETERS, PLACE_PARAMETERS,
                                       const float act_a, const float act_b)
{
    const place p = PLACE;
    channel_numbers c;
    if (batches && get_global_id(0) == 0) batches[batches_at] += 1;
    LOAD_CHANNELS(c, (__global const float *)0, 0);
    x += x_at;
    y += y_at;
    if (residual) residual += residual_at;
    for (atto_index f = p.first; f < p.end; f += UNITS * p.lanes) {
        atto_raw raw[UNITS], raw_r[UNITS];
        LOAD_UNITS(x, f, raw);
        if (residual) LOAD_UNITS(residual, f, raw_r);
#pragma unroll
        for (uint j = 0; j < UNITS; j++) {
            float v[ATTO_RUN], r[ATTO_RUN];
            if (f + j * p.lanes >= p.end) continue;
            atto_widen_unit(raw[j], v);
            if (residual) atto_widen_unit(raw_r[j], r);
#pragma unroll
            for (uint k = 0; k < ATTO_RUN; k++) {
                const uint i = RESULT(k);
                float z = (v[k] - c.mean[i]) * c.scale[i] + c.b[i];
                if (residual) z += r[k];
                v[k] = ATTO_ACT(z, act_a, act_b);
            }
            atto_store_run(y, ELEMENT(f + j * p.lanes), 1, ATTO_RUN, v);
        }
    }
}
#endif

/* ---- backward ---- */

#define GRADIENT_PARAMETERS                                                                   \
    __global const ATTO_T *x, const ulong x_at, __global const ATTO_T *dy, const ulong dy_at, \
        __global const ATTO_T *residual, const ulong residual_at, CHANNEL_PARAMETERS,         \
        PLACE_PARAMETERS, const float act_a, const float act_b

/* x - mean and dz of unit j. r is the residual where there is one. */
ATTO_UNROLLED void gradient_of(atto_raw x, atto_raw dy, atto_raw r, uint has_residual,
                               const channel_numbers *c, float act_a, float act_b, float *d,
                               float *dz)
{
    float vr[ATTO_RUN];
    atto_widen_unit(x, d);
    atto_widen_unit(dy, dz);
    if (has_residual) atto_widen_unit(r, vr);
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) {
        const uint i = RESULT(k);
        d[k] -= c->mean[i];
        float z = d[k] * c->scale[i] + c->b[i];
        if (has_residual) z += vr[k];
        dz[k] *= ATTO_ACT_GRAD(z, act_a, act_b);
    }
}

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_batch_norm_sums)
ATTO_KERNEL void atto_batch_norm_sums(GRADIENT_PARAMETERS, __global float *partial)
{
    __local float scratch[RESULTS * ATTO_WG];
    const place p = PLACE;
    channel_numbers c;
    float sum[RESULTS], sum_n[RESULTS];
    LOAD_CHANNELS(c, (__global const float *)0, 0);
    x += x_at;
    dy += dy_at;
    if (residual) residual += residual_at;
#pragma unroll
    for (uint k = 0; k < RESULTS; k++) sum[k] = sum_n[k] = 0.0f;
    for (atto_index f = p.first; f < p.end; f += UNITS * p.lanes) {
        atto_raw raw[UNITS], raw_dy[UNITS], raw_r[UNITS];
        LOAD_UNITS(x, f, raw);
        LOAD_UNITS(dy, f, raw_dy);
        if (residual) LOAD_UNITS(residual, f, raw_r);
#pragma unroll
        for (uint j = 0; j < UNITS; j++) {
            float d[ATTO_RUN], dz[ATTO_RUN];
            if (f + j * p.lanes >= p.end) continue;
            gradient_of(raw[j], raw_dy[j], raw_r[j], residual != 0, &c, act_a, act_b, d, dz);
#pragma unroll
            for (uint k = 0; k < ATTO_RUN; k++) {
                sum[RESULT(k)] += dz[k];
                sum_n[RESULT(k)] += dz[k] * d[k];
            }
        }
    }
    fold_lanes(sum, p, scratch, FIRST_LANES);
    fold_lanes(sum_n, p, scratch, FIRST_LANES);
#pragma unroll
    for (uint k = 0; k < RESULTS; k++)
        put_partial(partial, p, channels, k, sum[k], c.rstd[k] * sum_n[k]);
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_batch_norm_join)
/* Adds up `slabs` pairs of numbers of a channel, which begin `apart` elements after each other; the
 * second of a pair stands `second` behind the first. sums: [2, channels], times w / values.
 * ATTO_LANES work-items have a channel. */
ATTO_KERNEL void atto_batch_norm_join(__global const float *partial, __global float *sums,
                                      __global out_t *dw, const ulong dw_at, __global out_t *db,
                                      const ulong db_at, __global const float *w, const ulong w_at,
                                      const ulong channels, const ulong slabs, const ulong apart,
                                      const ulong second, const float values, const uint add_dw,
                                      const uint add_db)
{
    __local float2 scratch[ATTO_WG];
    const size_t channel = get_group_id(0) * (size_t)ATTO_ROWS + get_local_id(0) / ATTO_LANES;
    const bool inside = channel < channels;
    float2 sum = (float2)(0.0f, 0.0f);
    for (ulong s = ATTO_LANE(); inside && s < slabs; s += ATTO_LANES)
        sum += (float2)(partial[s * apart + channel], partial[s * apart + second + channel]);
    sum = atto_row_sum2(sum, scratch);
    if (!inside || ATTO_LANE() != 0) return;
    const float scale = w ? w[w_at + channel] : 1.0f;
    if (sums) sums[channel] = scale * sum.x / values;
    if (sums) sums[channels + channel] = scale * sum.y / values;
    if (db) {
        const float old = add_db ? ATTO_PASTE(atto_widen_, ATTO_OUT)(db[db_at + channel]) : 0.0f;
        db[db_at + channel] = ATTO_PASTE(atto_narrow_, ATTO_OUT)(sum.x + old);
    }
    if (dw) {
        const float old = add_dw ? ATTO_PASTE(atto_widen_, ATTO_OUT)(dw[dw_at + channel]) : 0.0f;
        dw[dw_at + channel] = ATTO_PASTE(atto_narrow_, ATTO_OUT)(sum.y + old);
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_batch_norm_dx)
/* sums: [2, stats]; NULL: they do not count. */
ATTO_KERNEL void atto_batch_norm_dx(GRADIENT_PARAMETERS, __global const float *sums,
                                    const ulong stats, __global ATTO_T *dx, const ulong dx_at,
                                    __global ATTO_T *dresidual, const ulong dresidual_at,
                                    const uint add_dx, const uint add_dresidual)
{
    const place p = PLACE;
    channel_numbers c;
    LOAD_CHANNELS(c, sums, stats);
    x += x_at;
    dy += dy_at;
    if (residual) residual += residual_at;
    if (dx) dx += dx_at;
    if (dresidual) dresidual += dresidual_at;
    for (atto_index f = p.first; f < p.end; f += UNITS * p.lanes) {
        atto_raw raw[UNITS], raw_dy[UNITS], raw_r[UNITS];
        LOAD_UNITS(x, f, raw);
        LOAD_UNITS(dy, f, raw_dy);
        if (residual) LOAD_UNITS(residual, f, raw_r);
#pragma unroll
        for (uint j = 0; j < UNITS; j++) {
            float d[ATTO_RUN], dz[ATTO_RUN];
            if (f + j * p.lanes >= p.end) continue;
            const atto_index at = ELEMENT(f + j * p.lanes);
            gradient_of(raw[j], raw_dy[j], raw_r[j], residual != 0, &c, act_a, act_b, d, dz);
#pragma unroll
            for (uint k = 0; k < ATTO_RUN; k++) {
                const uint i = RESULT(k);
                d[k] = (c.scale[i] * dz[k] - c.less[i]) - d[k] * c.less_n[i];
            }
            if (dx) atto_store_gradient(dx, at, d, add_dx);
            if (dresidual) atto_store_gradient(dresidual, at, dz, add_dresidual);
        }
    }
}
#endif
