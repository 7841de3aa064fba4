/* SPDX-License-Identifier: MIT */
/* Cross-entropy on the CPU.
 *
 *   forward    each = - sum over c of q[c] ((x[c] - top) - log_sum)
 *              top = max x, log_sum = log(sum of e^(x[c] - top))
 *   backward   dx[c] = g (p[c] Q - q[c]),  p = softmax x,  Q = sum of q
 *              dtarget[c] = - g keep weight[c] log p[c]
 *
 * q[c] = weight[c] (keep t[c] + spread); t is 1 at the label, or a probability. One position at a
 * time, its classes in blocks of up to 1024; but forward's top and log_sum of many positions side
 * by side where classes are few, or an element of the next position stands nearer than the next
 * class.
 */
#include <float.h>
#include <stdatomic.h>

#include "backend_cpu/rows.h"
#include "backend_cpu/stream.h"
#include "cross_entropy.h"
#include "divide.h"

typedef struct job {
    const struct atto_cross_entropy_args *a;
    atto__cross_entropy c;
    atomic_uint *errors; /* the device's error word */
} job;

/* What the target says about a position. */
typedef struct verdict {
    bool counts; /* not ignored, and a class */
    bool wrong;  /* no class */
    int64_t label;
    float weight; /* of the label; 1 for probabilities */
} verdict;

static job job_of(atto_device *dev, const struct atto_cross_entropy_args *a)
{
    return (job){ a, atto__cross_entropy_of(a), dev->error_word->memory };
}

/* ---- blocks of classes ---- */

/* Classes first, first + 1, ... of a position in a tensor that is shaped like x. */
static span classes_of(const job *j, const atto_tensor *t, int64_t position, int64_t first)
{
    const int64_t step = j->c.step, left = j->c.classes - first;
    const int64_t row = position / step * j->c.classes + first;
    char *memory = atto__memory(t);
    const int64_t at = t->offset + row * step + position % step;
    return (span){ memory + at * (int64_t)atto_dtype_size(t->dtype), step,
                   (int32_t)(left < ATTO_BLOCK ? left : ATTO_BLOCK), t->dtype };
}

/* The block as floats; asks for the one behind it. */
static const float *load_ahead(span s, float *buffer)
{
    const float *values = load_block(s, buffer);
    s.first = (char *)s.first + s.n * (int64_t)atto_dtype_size(s.dtype);
    if (s.stride == 1) prefetch_block(s);
    return values;
}

/* The weights of those classes. */
static const float *weights_of(const job *j, int64_t first, int32_t n, float *buffer)
{
    const atto_tensor *w = j->a->weight;
    char *memory = atto__memory(w);
    const span s = { memory + (w->offset + first) * (int64_t)atto_dtype_size(w->dtype), 1, n,
                     w->dtype };
    return load_block(s, buffer);
}

static float weight_of(const job *j, int64_t label)
{
    float one[1] = { 0.0f };
    return j->a->weight ? *weights_of(j, label, 1, one) : 1.0f;
}

/* ---- positions ---- */

static int64_t label_of(const atto_tensor *target, int64_t position)
{
    const void *memory = atto__memory(target);
    const int64_t at = target->offset + position;
    return target->dtype == ATTO_I64 ? ((const int64_t *)memory)[at]
                                     : (int64_t)((const int32_t *)memory)[at];
}

static verdict judge(const job *j, int64_t position)
{
    const struct atto_cross_entropy_args *a = j->a;
    if (j->c.soft) return (verdict){ true, false, -1, 1.0f };
    const int64_t label = label_of(a->target, position);
    if (a->has_ignore_index && label == a->ignore_index)
        return (verdict){ false, false, label, 0.0f };
    if (label < 0 || label >= j->c.classes) {
        atomic_fetch_or_explicit(j->errors, ATTO_ERROR_LABEL, memory_order_relaxed);
        return (verdict){ false, true, label, 0.0f };
    }
    return (verdict){ true, false, label, weight_of(j, label) };
}

/* log p[c] = (x[c] - top) - log_sum */
typedef struct normaliser {
    float top, log_sum;
} normaliser;

/* In one pass: the sum is scaled down when a block has a larger maximum. It starts at a finite
 * number, since -inf - -inf is NaN; a NaN that the maximum drops comes back in the sum. */
static normaliser normalise(const job *j, int64_t position)
{
    float top = -FLT_MAX, sum = 0.0f, buffer[ATTO_BLOCK], e[ATTO_BLOCK];
    for (int64_t first = 0; first < j->c.classes; first += ATTO_BLOCK) {
        const span s = classes_of(j, j->a->x, position, first);
        const float *x = load_ahead(s, buffer);
        const float larger = block_max(top, x, s.n);
        ATTO_SIMD
        for (int32_t i = 0; i < s.n; i++) e[i] = attop_exp_share(x[i] - larger);
        sum = sum * attop_exp_share(top - larger) + block_sum(e, s.n);
        top = larger;
    }
    return (normaliser){ top, attop_log(sum) };
}

/* ---- positions side by side ---- */

#define SIDE_BY_SIDE 64
#define FEW_CLASSES  32

static bool is_side_by_side(const atto__cross_entropy *c)
{
    return c->step > 1 || c->classes <= FEW_CLASSES;
}

/* Positions that follow each other in one outer index; where classes do, all are of one. */
typedef struct group {
    int64_t first;
    int32_t n;
} group;

static int64_t positions_of_outer(const atto__cross_entropy *c)
{
    return c->step > 1 ? c->step : c->positions;
}

static int64_t groups_of_outer(const atto__cross_entropy *c)
{
    return atto__divide_up(positions_of_outer(c), SIDE_BY_SIDE);
}

static int64_t groups(const atto__cross_entropy *c)
{
    return c->positions == 0 ? 0 : c->positions / positions_of_outer(c) * groups_of_outer(c);
}

static group group_of(const atto__cross_entropy *c, int64_t unit)
{
    const int64_t length = positions_of_outer(c), per_outer = groups_of_outer(c);
    const int64_t start = unit % per_outer * SIDE_BY_SIDE, left = length - start;
    return (group){ unit / per_outer * length + start,
                    (int32_t)(left < SIDE_BY_SIDE ? left : SIDE_BY_SIDE) };
}

/* Class c of x at all positions of a group. */
static span class_of(const job *j, group k, int64_t c)
{
    span s = classes_of(j, j->a->x, k.first, c);
    s.stride = j->c.step > 1 ? 1 : j->c.classes;
    s.n = k.n;
    return s;
}

static void normalise_group(const job *j, group k, normaliser *out)
{
    float top[SIDE_BY_SIDE], sum[SIDE_BY_SIDE], buffer[SIDE_BY_SIDE];
    for (int32_t i = 0; i < k.n; i++) top[i] = -FLT_MAX, sum[i] = 0.0f;
    for (int64_t c = 0; c < j->c.classes; c++) {
        const float *x = load_block(class_of(j, k, c), buffer);
        ATTO_SIMD
        for (int32_t i = 0; i < k.n; i++) top[i] = x[i] > top[i] ? x[i] : top[i];
    }
    for (int64_t c = 0; c < j->c.classes; c++) {
        const float *x = load_block(class_of(j, k, c), buffer);
        ATTO_SIMD
        for (int32_t i = 0; i < k.n; i++) sum[i] += attop_exp_share(x[i] - top[i]);
    }
    ATTO_SIMD
    for (int32_t i = 0; i < k.n; i++) sum[i] = attop_log(sum[i]);
    for (int32_t i = 0; i < k.n; i++) out[i] = (normaliser){ top[i], sum[i] };
}

/* What forward saved, or that again. */
static normaliser normaliser_of(const job *j, int64_t position)
{
    const atto_tensor *lse = j->a->lse;
    if (!lse) return normalise(j, position);
    return (normaliser){ ((const float *)atto__memory(lse))[lse->offset + position], 0.0f };
}

/* q of a block of classes. */
static void targets_of(const job *j, const verdict *v, int64_t position, int64_t first, int32_t n,
                       float *q)
{
    float buffer[ATTO_BLOCK];
    const float keep = j->c.keep, spread = j->c.spread;
    if (j->c.soft) {
        const float *t = load_block(classes_of(j, j->a->target, position, first), buffer);
        ATTO_SIMD
        for (int32_t i = 0; i < n; i++) q[i] = keep * t[i] + spread;
    } else {
        for (int32_t i = 0; i < n; i++) q[i] = spread;
        if (v->label >= first && v->label < first + n) q[v->label - first] += keep;
    }
    if (!j->a->weight) return;
    const float *w = weights_of(j, first, n, buffer);
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) q[i] *= w[i];
}

/* ---- forward ---- */

/* - sum of q log p */
static float spread_loss(const job *j, const verdict *v, normaliser norm, int64_t position)
{
    float sum = 0.0f, buffer[ATTO_BLOCK], q[ATTO_BLOCK];
    for (int64_t first = 0; first < j->c.classes; first += ATTO_BLOCK) {
        const span s = classes_of(j, j->a->x, position, first);
        targets_of(j, v, position, first, s.n, q);
        const float *x = load_block(s, buffer);
        ATTO_SIMD
        for (int32_t i = 0; i < s.n; i++) q[i] *= (x[i] - norm.top) - norm.log_sum;
        sum += block_sum(q, s.n);
    }
    return -sum;
}

static float label_loss(const job *j, const verdict *v, normaliser norm, int64_t position)
{
    float one[1] = { 0.0f };
    span s = classes_of(j, j->a->x, position, v->label);
    s.n = 1;
    return -(((*load_block(s, one) - norm.top) - norm.log_sum) * v->weight);
}

/* known: its normaliser, or NULL. */
static float position_loss(const job *j, const verdict *v, int64_t position,
                           const normaliser *known)
{
    const atto_tensor *lse = j->a->lse;
    if (!v->counts && !lse) return v->wrong ? NAN : 0.0f;
    const normaliser norm = known ? *known : normalise(j, position);
    if (lse) ((float *)atto__memory(lse))[lse->offset + position] = norm.top + norm.log_sum;
    if (!v->counts) return v->wrong ? NAN : 0.0f;
    return j->c.soft || j->c.smoothed ? spread_loss(j, v, norm, position)
                                      : label_loss(j, v, norm, position);
}

static void store_scalar(const atto_tensor *t, float value)
{
    ((float *)atto__memory(t))[t->offset] = value;
}

/* Threads for that many elements of work. */
static int32_t threads_for(const atto_device *dev, const atto__cross_entropy *c)
{
    return c->positions * c->classes < ATTO_SERIAL_BELOW ? 1 : atto__cpu_threads(dev);
}

/* Three arrays in scratch: losses, weights, and partial sums of one of them. */
static atto_status take_scratch(atto_device *dev, int64_t positions, atto_buffer *header,
                                float **out)
{
    atto_tensor scratch;
    ATTO_TRY(
        atto__scratch_tensor(dev, ATTO_F32, 1, &(int64_t){ 3 * positions + 1 }, header, &scratch));
    *out = atto__memory(&scratch);
    return ATTO_OK;
}

/* What a pass over the positions reads and writes. */
typedef struct forward_job {
    const job *j;
    float *weight, *loss; /* [positions]; loss NULL: only weights */
} forward_job;

static void forward_position(const forward_job *f, int64_t p, const normaliser *known)
{
    const verdict v = judge(f->j, p);
    f->weight[p] = v.weight;
    if (f->loss) f->loss[p] = position_loss(f->j, &v, p, known);
}

static void forward_positions(const void *job_, int64_t begin, int64_t end)
{
    for (int64_t p = begin; p < end; p++) forward_position(job_, p, NULL);
}

static void forward_groups(const void *job_, int64_t begin, int64_t end)
{
    const forward_job *f = job_;
    normaliser norm[SIDE_BY_SIDE];
    for (int64_t unit = begin; unit < end; unit++) {
        const group k = group_of(&f->j->c, unit);
        normalise_group(f->j, k, norm);
        for (int32_t i = 0; i < k.n; i++) forward_position(f, k.first + i, &norm[i]);
    }
}

atto_status ATTO_LEVEL_NAME(cross_entropy_forward)(atto_device *dev,
                                                   const struct atto_cross_entropy_args *a,
                                                   const atto__layout *layout)
{
    (void)layout;
    const job j = job_of(dev, a);
    const int64_t n = j.c.positions;
    const int32_t threads = threads_for(dev, &j.c);
    const bool none = a->reduction == ATTO_REDUCTION_NONE;
    atto_buffer header;
    float *each;
    ATTO_TRY(take_scratch(dev, n, &header, &each));
    float *weight = each + n, *partial = weight + n;
    float *loss = none && n > 0 ? (float *)atto__memory(a->loss) + a->loss->offset : each;
    dev->stats.launches++;
    const forward_job forward = { &j, weight, loss };
    if (is_side_by_side(&j.c))
        atto__parallel_for(threads, groups(&j.c), forward_groups, &forward);
    else
        atto__parallel_for(threads, n, forward_positions, &forward);
    const float total = sum_all(weight, n, partial, threads);
    if (a->total) store_scalar(a->total, total);
    if (none) return ATTO_OK;
    const float sum = sum_all(loss, n, partial, threads);
    store_scalar(a->loss, a->reduction == ATTO_REDUCTION_MEAN ? sum / total : sum);
    return ATTO_OK;
}

/* ---- backward ---- */

/* dloss of a position, divided by what the mean divides by. */
typedef struct upstream {
    const float *dloss;
    bool one; /* for all positions */
    float total;
} upstream;

static float sum_of_targets(const job *j, const verdict *v, int64_t position)
{
    if (!j->c.soft && (!j->c.smoothed || !j->a->weight)) return v->weight;
    float sum = 0.0f, q[ATTO_BLOCK];
    for (int64_t first = 0; first < j->c.classes; first += ATTO_BLOCK) {
        const int64_t left = j->c.classes - first;
        const int32_t n = (int32_t)(left < ATTO_BLOCK ? left : ATTO_BLOCK);
        targets_of(j, v, position, first, n, q);
        sum += block_sum(q, n);
    }
    return sum;
}

static void put(const atto_tensor *t, span to, float *values, bool add)
{
    float buffer[ATTO_BLOCK];
    if (add) accumulate_block(values, to, buffer);
    put_block(values, to, streams_to(t) && to.stride == 1);
}

static void clear_position(const job *j, int64_t position)
{
    float zeros[ATTO_BLOCK] = { 0.0f };
    if (j->a->add_dx) return;
    for (int64_t first = 0; first < j->c.classes; first += ATTO_BLOCK)
        store_block(zeros, classes_of(j, j->a->dx, position, first));
}

/* dx of a block: g (p Q - q). */
static void dx_block(const job *j, const verdict *v, normaliser norm, float g, float sum,
                     int64_t position, int64_t first)
{
    float buffer[ATTO_BLOCK], q[ATTO_BLOCK];
    const span s = classes_of(j, j->a->x, position, first);
    targets_of(j, v, position, first, s.n, q);
    const float *x = load_ahead(s, buffer);
    ATTO_SIMD
    for (int32_t i = 0; i < s.n; i++)
        q[i] = g * (attop_exp_share((x[i] - norm.top) - norm.log_sum) * sum - q[i]);
    put(j->a->dx, classes_of(j, j->a->dx, position, first), q, j->a->add_dx);
}

/* dtarget of a block: - g keep w log p. */
static void dtarget_block(const job *j, normaliser norm, float g, int64_t position, int64_t first)
{
    float buffer[ATTO_BLOCK], d[ATTO_BLOCK];
    const span s = classes_of(j, j->a->x, position, first);
    const float *x = load_block(s, buffer);
    const float factor = -(g * j->c.keep);
    ATTO_SIMD
    for (int32_t i = 0; i < s.n; i++) d[i] = factor * ((x[i] - norm.top) - norm.log_sum);
    if (j->a->weight) {
        const float *w = weights_of(j, first, s.n, buffer);
        ATTO_SIMD
        for (int32_t i = 0; i < s.n; i++) d[i] *= w[i];
    }
    put(j->a->dtarget, classes_of(j, j->a->dtarget, position, first), d, j->a->add_dtarget);
}

static void position_gradient(const job *j, const upstream *up, int64_t position)
{
    const verdict v = judge(j, position);
    if (!v.counts) { /* labels: only dx is there */
        clear_position(j, position);
        return;
    }
    const float g = up->dloss[up->one ? 0 : position] / up->total;
    const normaliser norm = normaliser_of(j, position);
    const float sum = j->a->dx ? sum_of_targets(j, &v, position) : 0.0f;
    for (int64_t first = 0; first < j->c.classes; first += ATTO_BLOCK) {
        if (j->a->dx) dx_block(j, &v, norm, g, sum, position, first);
        if (j->a->dtarget) dtarget_block(j, norm, g, position, first);
    }
}

/* The mean's divisor: saved, known, or summed again. */
static atto_status divisor_of(atto_device *dev, const job *j, int32_t threads, float *out)
{
    const struct atto_cross_entropy_args *a = j->a;
    const int64_t n = j->c.positions;
    *out = 1.0f;
    if (a->reduction != ATTO_REDUCTION_MEAN) return ATTO_OK;
    *out = (float)n;
    if (a->total) *out = ((const float *)atto__memory(a->total))[a->total->offset];
    if (a->total || j->c.soft) return ATTO_OK;
    atto_buffer header;
    float *weight;
    ATTO_TRY(take_scratch(dev, n, &header, &weight));
    const forward_job weights = { j, weight, NULL };
    atto__parallel_for(threads, n, forward_positions, &weights);
    *out = sum_all(weight, n, weight + n, threads);
    return ATTO_OK;
}

typedef struct backward_job {
    const job *j;
    const upstream *up;
} backward_job;

static void backward_positions(const void *job_, int64_t begin, int64_t end)
{
    const backward_job *b = job_;
    for (int64_t p = begin; p < end; p++) position_gradient(b->j, b->up, p);
    end_stream();
}

atto_status ATTO_LEVEL_NAME(cross_entropy_backward)(atto_device *dev,
                                                    const struct atto_cross_entropy_args *a,
                                                    const atto__layout *layout)
{
    (void)layout;
    const job j = job_of(dev, a);
    const int32_t threads = threads_for(dev, &j.c);
    upstream up = { (const float *)atto__memory(a->dloss) + a->dloss->offset,
                    a->reduction != ATTO_REDUCTION_NONE, 1.0f };
    dev->stats.launches++;
    ATTO_TRY(divisor_of(dev, &j, threads, &up.total));
    const backward_job backward = { &j, &up };
    atto__parallel_for(threads, j.c.positions, backward_positions, &backward);
    return ATTO_OK;
}
