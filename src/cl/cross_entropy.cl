/* SPDX-License-Identifier: MIT */
/* cross_entropy.cl - cross-entropy of logits against labels or probabilities.
 *
 *   forward    each = - sum over c of q[c] ((x[c] - top) - log_sum)
 *              top = max x, log_sum = log(sum of e^(x[c] - top))
 *   backward   dx[c] = g (p[c] Q - q[c]),  p = softmax x,  Q = sum of q
 *              dtarget[c] = - g keep weight[c] log p[c]
 *
 * q[c] = weight[c] (keep t[c] + spread); t is 1 at the label, or a probability. A position is a row
 * of atto_row.h, its classes the row's elements. Where step is not 1, one work-item has a position
 * and neighbours read neighbours.
 *
 *   -D           default  meaning
 *   ATTO_TARGET  i64      dtype of the target: i32 or i64 are labels; f32, f16, bf16 probabilities
 *   ATTO_SOFT    0        1: probabilities
 *   ATTO_SPREAD  0        1: every class has a share of the target, which is a sum of its own
 *   and those of atto_row.h
 */
#include "atto_row.h"

#ifndef ATTO_TARGET
#define ATTO_TARGET i64
#endif
#ifndef ATTO_SOFT
#define ATTO_SOFT 0
#endif
#ifndef ATTO_SPREAD
#define ATTO_SPREAD 0
#endif

typedef int atto_i32;
typedef long atto_i64;
typedef ATTO_PASTE(atto_, ATTO_TARGET) target_t;

/* ---- a position ---- */

/* Side by side: of one, each term would wait for the last. */
#define PARTS 4

/* In one pass: the sum is scaled down when a chunk has a larger maximum. It starts at a finite
 * number, since -inf - -inf is NaN; a NaN that fmax drops comes back in the sum. Of this lane's
 * classes. */
ATTO_UNROLLED float2 top_and_sum(__global const ATTO_T *x, atto_slots s)
{
    float top = -FLT_MAX, sum = 0.0f;
    for (ATTO_CHUNKS(at, s)) {
        float v[ATTO_CHUNK];
        atto_load_chunk(x, s, at, -INFINITY, v);
        float tops[PARTS], parts[PARTS];
#pragma unroll
        for (uint i = 0; i < PARTS; i++) {
            tops[i] = top;
            parts[i] = 0.0f;
        }
#pragma unroll
        for (uint i = 0; i < ATTO_CHUNK; i++) tops[i % PARTS] = fmax(tops[i % PARTS], v[i]);
        const float larger = fmax(fmax(tops[0], tops[1]), fmax(tops[2], tops[3]));
#pragma unroll
        for (uint i = 0; i < ATTO_CHUNK; i++) parts[i % PARTS] += attop_exp_share(v[i] - larger);
        const float part = (parts[0] + parts[1]) + (parts[2] + parts[3]);
        sum = sum * attop_exp_share(top - larger) + part;
        top = larger;
    }
    return (float2)(top, sum);
}

/* All lanes get the row's maximum and the log of its sum. */
ATTO_UNROLLED float2 normalise(float2 lane, __local float *scratch)
{
    const float2 row = atto_row_top_and_sum(lane, scratch);
    return (float2)(row.x, attop_log(row.y));
}

/* What the target is, beside the pointers. */
typedef struct rule {
    float keep, spread;
    uint has_ignored;
    long ignored;
} rule;

/* What it says about a position. */
typedef struct verdict {
    uint counts; /* not ignored, and a class */
    uint wrong;  /* no class */
    long label;
    float weight; /* of the label; 1 for probabilities */
} verdict;

static inline verdict judge(__global const target_t *target, __global const float *weight,
                            size_t position, atto_index cols, rule r)
{
    verdict v = { 1, 0, -1, 1.0f };
#if !ATTO_SOFT
    v.label = target[position];
    const uint ignored = r.has_ignored && v.label == r.ignored;
    const uint is_class = v.label >= 0 && (ulong)v.label < (ulong)cols;
    v.counts = !ignored && is_class;
    v.wrong = !ignored && !is_class;
    v.weight = !v.counts ? 0.0f : weight ? weight[v.label] : 1.0f;
#endif
    return v;
}

/* q of a slot; target at the position's first class. */
static inline float target_of(__global const target_t *target, __global const float *weight,
                              atto_index slot, atto_slots s, verdict v, rule r)
{
    const atto_index c = slot - s.first;
    if (!ATTO_IS_SLOT(s, slot)) return 0.0f;
#if ATTO_SOFT
    const float t = ATTO_PASTE(atto_widen_, ATTO_TARGET)(target[c * s.step]);
    const float q = r.keep * t + r.spread;
#else
    const float q = (ulong)c == (ulong)v.label ? r.keep + r.spread : r.spread;
#endif
    return weight ? q * weight[c] : q;
}

#define BIT_OF_LABELS 1u /* of the error word */

#define POSITION_PARAMETERS                                                                \
    const ulong positions, const atto_index cols, const atto_index step, const float keep, \
        const float spread, const uint has_ignored, const long ignored

/* Work-items of positions behind the last take part in barriers only: they have no classes. */
#define LOCATE_POSITION                                                     \
    const size_t position = atto_row();                                     \
    const uint inside = position < positions;                               \
    const size_t start = atto_row_start(inside ? position : 0, cols, step); \
    const atto_slots s = atto_slots_of(x_at, start, cols, step, inside);    \
    const atto_index first = s.first;                                       \
    const rule r = { keep, spread, has_ignored, ignored };                  \
    x += x_at + start - first

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_cross_entropy_forward)
/* share has what the positions of each work-group add to the mean's divisor; each, if joined, their
 * losses' sum, else every position's loss. */
ATTO_KERNEL void atto_cross_entropy_forward(__global const ATTO_T *x, const ulong x_at,
                                            __global const target_t *target, const ulong target_at,
                                            __global const float *weight, const ulong weight_at,
                                            __global float *each, const ulong each_at,
                                            __global float *share, const ulong share_at,
                                            __global float *lse, const ulong lse_at,
                                            volatile __global uint *errors, const ulong errors_at,
                                            POSITION_PARAMETERS, const uint joined)
{
    __local float scratch[2 * ATTO_WG];
    LOCATE_POSITION;
    target += target_at;
    if (weight) weight += weight_at;

    /* The label and its logit come while the lanes wait for each other. */
    const float2 lane = top_and_sum(x, s);
    const verdict v = judge(target, weight, inside ? position : 0, cols, r);
#if !ATTO_SPREAD
    const float logit_of_label = atto_load(x + first, (size_t)(v.counts ? v.label : 0) * step);
#endif
    const float2 norm = normalise(lane, scratch);
    float loss = 0.0f;
#if ATTO_SPREAD
#if ATTO_SOFT
    target += start;
#endif
    float part = 0.0f;
    for (ATTO_CHUNKS(at, s)) {
        float logit[ATTO_CHUNK];
        atto_load_chunk(x, s, at, 0.0f, logit);
#pragma unroll
        for (uint i = 0; i < ATTO_CHUNK; i++) {
            if (!ATTO_HAS(s, at, i)) continue;
            const float q = target_of(target, weight, ATTO_SLOT_OF(at, i), s, v, r);
            part += q * ((logit[i] - norm.x) - norm.y);
        }
    }
    loss = -atto_row_sum(part, scratch);
#endif
#if !ATTO_SPREAD
    loss = -(((logit_of_label - norm.x) - norm.y) * v.weight);
#endif
    loss = v.counts ? loss : v.wrong ? NAN : 0.0f;
    const uint answers = inside && ATTO_LANE() == 0;
    if (answers && !joined) each[each_at + position] = loss;
    if (answers && lse) lse[lse_at + position] = norm.x + norm.y;
    if (answers && v.wrong) atomic_or(errors + errors_at, BIT_OF_LABELS);

    /* Joined or not: PoCL 3.1 may hang where barriers depend on an argument. */
    float sums[2] = { answers ? loss : 0.0f, answers ? v.weight : 0.0f };
    ATTO_FOLD_COLUMNS(sums, 2, 1, 0, scratch, ATTO_ADD);
    if (get_local_id(0) != 0) return;
    if (joined) each[each_at + get_group_id(0)] = sums[0];
    if (share) share[share_at + get_group_id(0)] = sums[1];
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_cross_entropy_backward)
/* dloss is one number, or one a position (each); total is NULL where the divisor is a number. */
ATTO_KERNEL void atto_cross_entropy_backward(
    __global const ATTO_T *x, const ulong x_at, __global const target_t *target,
    const ulong target_at, __global const float *weight, const ulong weight_at,
    __global const float *dloss, const ulong dloss_at, __global const float *lse,
    const ulong lse_at, __global const float *total, const ulong total_at, __global ATTO_T *dx,
    const ulong dx_at, __global target_t *dtarget, const ulong dtarget_at,
    volatile __global uint *errors, const ulong errors_at, POSITION_PARAMETERS, const uint each,
    const float divisor, const uint add_dx, const uint add_dtarget)
{
    __local float scratch[ATTO_WG];
    LOCATE_POSITION;
    target += target_at;
    if (weight) weight += weight_at;
    const size_t here = inside ? position : 0;
    const verdict v = judge(target, weight, here, cols, r);
#if ATTO_SOFT
    target += start;
#endif
    const float g = dloss[dloss_at + (each ? here : 0)] / (total ? total[total_at] : divisor);
    const float2 norm =
        lse ? (float2)(lse[lse_at + here], 0.0f) : normalise(top_and_sum(x, s), scratch);

    float sum = v.weight;
#if !ATTO_SPREAD
    const atto_index slot_of_label = first + (atto_index)(v.counts ? v.label : 0);
#else
    sum = 0.0f;
    for (ATTO_CHUNKS(at, s)) {
#pragma unroll
        for (uint i = 0; i < ATTO_CHUNK; i++)
            sum += target_of(target, weight, ATTO_SLOT_OF(at, i), s, v, r);
    }
    sum = atto_row_sum(sum, scratch);
    if (!ATTO_SOFT && !weight) sum = 1.0f; /* exactly: one work-item may have added all classes */
#endif

    if (dx) {
        const atto_slots to = atto_slots_like(s, dx_at, start);
        dx += dx_at + start - first;
        for (ATTO_CHUNKS(at, s)) {
            float logit[ATTO_CHUNK], old[ATTO_CHUNK];
            atto_load_chunk(x, s, at, 0.0f, logit);
            if (add_dx) atto_load_chunk(dx, to, at, 0.0f, old);
#pragma unroll
            for (uint i = 0; i < ATTO_CHUNK; i++) {
                const float p = attop_exp_share((logit[i] - norm.x) - norm.y);
#if ATTO_SPREAD
                const float q = target_of(target, weight, ATTO_SLOT_OF(at, i), s, v, r);
#else
                const float q = ATTO_SLOT_OF(at, i) == slot_of_label ? v.weight : 0.0f;
#endif
                const float d = v.counts ? g * (p * sum - q) : 0.0f;
                logit[i] = add_dx ? old[i] + d : d;
            }
            atto_store_chunk(dx, to, at, logit);
        }
    }
    /* Not earlier: no load would be moved up across it. */
    if (v.wrong && inside && ATTO_LANE() == 0) atomic_or(errors + errors_at, BIT_OF_LABELS);
#if ATTO_SOFT
    if (!dtarget) return;
    dtarget += dtarget_at + start;
    for (ATTO_CHUNKS(at, s)) {
        float logit[ATTO_CHUNK];
        atto_load_chunk(x, s, at, 0.0f, logit);
#pragma unroll
        for (uint i = 0; i < ATTO_CHUNK; i++) {
            const atto_index c = ATTO_SLOT_OF(at, i) - s.first;
            if (!ATTO_HAS(s, at, i)) continue;
            float d = -(g * r.keep) * ((logit[i] - norm.x) - norm.y);
            if (weight) d *= weight[c];
            if (add_dtarget) d += ATTO_PASTE(atto_widen_, ATTO_TARGET)(dtarget[c * step]);
            dtarget[c * step] = ATTO_PASTE(atto_narrow_, ATTO_TARGET)(d);
        }
    }
#endif
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_cross_entropy_share)
/* What each position adds to the mean's divisor; a work-item a position. */
ATTO_KERNEL void atto_cross_entropy_share(__global const target_t *target, const ulong target_at,
                                          __global const float *weight, const ulong weight_at,
                                          __global float *share, const ulong share_at,
                                          POSITION_PARAMETERS)
{
    const size_t position = get_global_id(0);
    if (position >= positions) return;
    const rule r = { keep, spread, has_ignored, ignored };
    const verdict v =
        judge(target + target_at, weight ? weight + weight_at : weight, position, cols, r);
    share[share_at + position] = v.weight;
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_cross_entropy_sum)
/* Numbers that a work-item of the next kernel adds up before the work-group does. */
#define TERMS 64

/* Work-group i adds up part i of both arrays. mean: of the last call, which has one work-group. */
ATTO_KERNEL void atto_cross_entropy_sum(__global const float *each, const ulong each_at,
                                        __global const float *share, const ulong share_at,
                                        __global float *loss, const ulong loss_at,
                                        __global float *total, const ulong total_at, const ulong n,
                                        const uint mean)
{
    __local float scratch[ATTO_WG];
    const size_t first = get_group_id(0) * (size_t)(ATTO_WG * TERMS);
    const size_t count = min((size_t)n - first, (size_t)(ATTO_WG * TERMS));
    float a = each ? atto_share_of_sum(each + each_at + first, count) : 0.0f;
    float b = share ? atto_share_of_sum(share + share_at + first, count) : 0.0f;
    a = atto_row_sum(a, scratch);
    b = atto_row_sum(b, scratch);
    if (get_local_id(0) != 0) return;
    if (loss) loss[loss_at + get_group_id(0)] = mean ? a / b : a;
    if (total) total[total_at + get_group_id(0)] = b;
}
#endif
