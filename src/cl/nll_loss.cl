/* SPDX-License-Identifier: MIT */
/* nll_loss.cl - negative log-likelihood of labels.
 *
 *   positions   each = - weight[label] x[label], and a work-group's sums of that and of the weights
 *   finish      the sums of these sums, and their quotient                    one work-group
 *   rows        dx = 0, but - g weight[label] at the label; x is [positions, classes]
 *   planes      the same; x is [outer, classes, step]
 *   scatter     dx += - g weight[label] at the label
 *
 * Class c of position p stands at (p / step * classes + c) * step + p % step.
 *
 *   rows: a run is 16 bytes of dx, which may hold the end of a row and the beginning of the next.
 *   planes: a run is ATTO_RUN neighbouring positions of one outer index; a work-item reads their
 *   labels once and writes a vector for each class of a slab:
 *
 *       class 0: | run 0 | run 1 | ..        slab 0
 *       class 1: | run 0 | run 1 | ..
 *
 *   -D              default  meaning
 *   ATTO_TARGET     i64      dtype of the labels: i32 or i64
 *   and those of atto_kernel.h; ATTO_RUN and ATTO_VECTORS are those of planes
 */
#include "atto_kernel.h"
#include "atto_reduce.h"

#ifndef ATTO_TARGET
#define ATTO_TARGET i64
#endif

typedef int atto_i32;
typedef long atto_i64;
typedef ATTO_PASTE(atto_, ATTO_TARGET) target_t;

#define BIT_OF_LABELS 1u /* of the error word */

/* Positions, or runs, that a work-item has at a time. */
#define AT_ONCE 4

/* What the labels mean. */
typedef struct rule {
    ulong classes;
    uint has_ignored;
    long ignored;
} rule;

#define RULE_PARAMETERS const ulong classes, const uint has_ignored, const long ignored
#define RULE                          \
    {                                 \
        classes, has_ignored, ignored \
    }

static inline uint is_ignored(long label, rule r)
{
    return r.has_ignored && label == r.ignored;
}

static inline uint is_class(long label, rule r)
{
    return label >= 0 && (ulong)label < r.classes;
}

static inline uint counts(long label, rule r)
{
    return !is_ignored(label, r) && is_class(label, r);
}

static inline uint is_wrong(long label, rule r)
{
    return !is_ignored(label, r) && !is_class(label, r);
}

static inline float weight_of(__global const float *weight, long label)
{
    return weight ? weight[label] : 1.0f;
}

static inline size_t element_at(size_t position, ulong c, ulong classes, ulong step)
{
    if (step == 1) return position * classes + c;
    return (position / step * classes + c) * step + position % step;
}

/* ---- forward ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_nll_loss_positions)
/* x, each and partial may be NULL. A work-group has steps * AT_ONCE * ATTO_WG positions; partial
 * gets the losses' sums of all work-groups, then the weights'. */
ATTO_KERNEL void atto_nll_loss_positions(__global const ATTO_T *x, const ulong x_at,
                                         __global const target_t *target, const ulong target_at,
                                         __global const float *weight, const ulong weight_at,
                                         __global float *each, const ulong each_at,
                                         __global float *partial, const ulong partial_at,
                                         volatile __global uint *errors, const ulong errors_at,
                                         const ulong positions, const ulong step, const uint steps,
                                         RULE_PARAMETERS)
{
    __local float scratch[ATTO_WG];
    const rule r = RULE;
    float losses = 0.0f, weights = 0.0f;
    if (weight) weight += weight_at;
    target += target_at;
    x += x_at;
    for (uint s = 0; s < steps; s++) {
        const size_t first =
            (get_group_id(0) * steps + s) * (size_t)(AT_ONCE * ATTO_WG) + get_local_id(0);
        long label[AT_ONCE];
        float w[AT_ONCE], logs[AT_ONCE];
#pragma unroll
        for (uint j = 0; j < AT_ONCE; j++)
            label[j] = first + j * ATTO_WG < positions ? target[first + j * ATTO_WG] : -1;
#pragma unroll
        for (uint j = 0; j < AT_ONCE; j++) {
            const size_t p = first + j * ATTO_WG;
            const uint valid = p < positions && counts(label[j], r);
            w[j] = valid ? weight_of(weight, label[j]) : 0.0f;
            logs[j] = valid && x ? atto_load(x, element_at(p, label[j], classes, step)) : 0.0f;
        }
#pragma unroll
        for (uint j = 0; j < AT_ONCE; j++) {
            const size_t p = first + j * ATTO_WG;
            if (p >= positions) continue;
            const uint wrong = is_wrong(label[j], r);
            const float loss = wrong ? NAN : counts(label[j], r) ? -(logs[j] * w[j]) : 0.0f;
            losses += loss;
            weights += w[j];
            if (each) each[each_at + p] = loss;
            if (wrong) atomic_or(errors + errors_at, BIT_OF_LABELS);
        }
    }
    losses = atto_row_sum(
        losses,
        scratch); /* wanted or not: PoCL 3.1 may hang where barriers depend on an argument */
    weights = atto_row_sum(weights, scratch);
    if (!partial || get_local_id(0) != 0) return;
    partial[partial_at + get_group_id(0)] = losses;
    partial[partial_at + get_num_groups(0) + get_group_id(0)] = weights;
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_nll_loss_finish)
/* partial is [2, count]; loss and total may be NULL. */
ATTO_KERNEL void atto_nll_loss_finish(__global const float *partial, const ulong partial_at,
                                      __global float *loss, const ulong loss_at,
                                      __global float *total, const ulong total_at, const uint count,
                                      const uint mean)
{
    __local float scratch[ATTO_WG];
    partial += partial_at;
    const float losses = atto_row_sum(atto_share_of_sum(partial, count), scratch);
    const float weights = atto_row_sum(atto_share_of_sum(partial + count, count), scratch);
    if (get_local_id(0) != 0) return;
    if (loss) loss[loss_at] = mean ? losses / weights : losses;
    if (total) total[total_at] = weights;
}
#endif

/* ---- backward ---- */

/* dloss is one number, or one a position (each); total is NULL where nothing is divided. */
#define BACKWARD_PARAMETERS                                                                        \
    __global const target_t *target, const ulong target_at, __global const float *weight,          \
        const ulong weight_at, __global const float *dloss, const ulong dloss_at,                  \
        __global const float *total, const ulong total_at, __global ATTO_T *dx, const ulong dx_at, \
        volatile __global uint *errors, const ulong errors_at, const uint each,                    \
        const ulong positions, RULE_PARAMETERS

/* The element at a label. */
static inline float slope_of(__global const float *weight, __global const float *dloss,
                             __global const float *total, uint each, size_t position, long label)
{
    const float g = dloss[each ? position : 0] / (total ? *total : 1.0f);
    return -(g * weight_of(weight, label));
}

#define ADVANCE_ALL                  \
    const rule r = RULE;             \
    target += target_at;             \
    if (weight) weight += weight_at; \
    dloss += dloss_at;               \
    if (total) total += total_at

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_nll_loss_rows)
/* dx in slots: its first element is slot `shift` of the vector in which it begins. size.w =
 * classes. The work-item that has class 0 of a position reports its label. */
ATTO_KERNEL void atto_nll_loss_rows(BACKWARD_PARAMETERS, const atto_index4 size, const uint4 magic,
                                    const uint4 magic_shift)
{
    ADVANCE_ALL;
    const atto_index shift = (atto_index)(dx_at % ATTO_VEC), n = (atto_index)(positions * classes);
    const atto_index first =
        (atto_index)get_group_id(0) * (ATTO_WG * AT_ONCE) + (atto_index)get_local_id(0);
    atto_index row[AT_ONCE], col[AT_ONCE];
    long label[AT_ONCE];
    dx += dx_at - shift;
#pragma unroll
    for (uint j = 0; j < AT_ONCE; j++) {
        const atto_index slot = (first + j * ATTO_WG) * ATTO_VEC;
        const atto_index element = slot < shift ? 0 : slot - shift;
        if (slot >= n + shift) continue;
        row[j] = atto_divide(element, size.w, magic.w, magic_shift.w);
        col[j] = element - row[j] * size.w;
        label[j] = target[row[j]];
    }
#pragma unroll
    for (uint j = 0; j < AT_ONCE; j++) {
        const atto_index slot = (first + j * ATTO_WG) * ATTO_VEC;
        if (slot >= n + shift) continue;
        const uint whole = slot >= shift && slot + ATTO_VEC <= n + shift;
        float v[ATTO_VEC];
#pragma unroll
        for (uint k = 0; k < ATTO_VEC; k++) v[k] = 0.0f;
        if (whole && col[j] + ATTO_VEC <= size.w) { /* of one row; few have a label */
            const ulong at = (ulong)label[j] - (ulong)col[j];
            if (at < ATTO_VEC && counts(label[j], r)) {
                const float slope = slope_of(weight, dloss, total, each, row[j], label[j]);
#pragma unroll
                for (uint k = 0; k < ATTO_VEC; k++) v[k] = k == (uint)at ? slope : 0.0f;
            }
            if (col[j] == 0 && is_wrong(label[j], r)) atomic_or(errors + errors_at, BIT_OF_LABELS);
            atto_put(dx, slot / ATTO_VEC, atto_pack(v));
            continue;
        }
#pragma unroll
        for (uint k = 0; k < ATTO_VEC; k++) {
            if (!whole && (slot + k < shift || slot + k >= n + shift)) continue;
            if (col[j] == size.w) { /* the next row */
                col[j] = 0;
                row[j]++;
                label[j] = target[row[j]];
            }
            if ((ulong)label[j] == (ulong)col[j] && counts(label[j], r))
                v[k] = slope_of(weight, dloss, total, each, row[j], label[j]);
            if (col[j] == 0 && is_wrong(label[j], r)) atomic_or(errors + errors_at, BIT_OF_LABELS);
            if (!whole) atto_store(dx, slot + k, v[k]);
            col[j]++;
        }
        if (whole) atto_put(dx, slot / ATTO_VEC, atto_pack(v));
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_nll_loss_planes)
/* Work-groups of slab s are groups * s to groups * (s + 1) - 1. size.w = step / ATTO_RUN. */
ATTO_KERNEL void atto_nll_loss_planes(BACKWARD_PARAMETERS, const atto_index4 size,
                                      const uint4 magic, const uint4 magic_shift,
                                      const atto_index groups, const atto_index per_slab)
{
    ADVANCE_ALL;
    const atto_index slab = (atto_index)get_group_id(0) / groups;
    const atto_index run =
        ((atto_index)get_group_id(0) - slab * groups) * ATTO_WG + (atto_index)get_local_id(0);
    if (run >= positions / ATTO_RUN) return;
    const size_t position = (size_t)run * ATTO_RUN, step = (size_t)size.w * ATTO_RUN;
    const atto_index outer = atto_divide(run, size.w, magic.w, magic_shift.w);
    long label[ATTO_RUN];
    float slope[ATTO_RUN];
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) label[k] = target[position + k];
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) {
        const uint valid = counts(label[k], r);
        if (slab == 0 && is_wrong(label[k], r)) atomic_or(errors + errors_at, BIT_OF_LABELS);
        slope[k] = valid ? slope_of(weight, dloss, total, each, position + k, label[k]) : 0.0f;
        if (!valid) label[k] = -1;
    }
    const ulong begin = (ulong)slab * per_slab, end = min(begin + per_slab, (ulong)classes);
    dx += dx_at + ((size_t)outer * classes * step + (position - outer * step));
    for (ulong c = begin; c < end; c++) {
        float v[ATTO_RUN];
#pragma unroll
        for (uint k = 0; k < ATTO_RUN; k++) v[k] = label[k] == (long)c ? slope[k] : 0.0f;
#if ATTO_VECTORS
        atto_put(dx, c * step / ATTO_VEC, atto_pack(v));
#else
        atto_store(dx, c * step, v[0]);
#endif
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_nll_loss_scatter)
/* A work-item a position. */
ATTO_KERNEL void atto_nll_loss_scatter(BACKWARD_PARAMETERS, const ulong step)
{
    const size_t position = get_global_id(0);
    if (position >= positions) return;
    ADVANCE_ALL;
    const long label = target[position];
    if (is_wrong(label, r)) atomic_or(errors + errors_at, BIT_OF_LABELS);
    if (!counts(label, r)) return;
    const size_t at = element_at(position, label, classes, step);
    dx += dx_at;
    atto_store(dx, at, atto_load(dx, at) + slope_of(weight, dloss, total, each, position, label));
}
#endif
