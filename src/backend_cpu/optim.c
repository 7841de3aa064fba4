/* SPDX-License-Identifier: MIT */
/* Optimisers on the CPU: one step over a chunk. cl/atto_optim.h has the formulas and the tables.
 *
 *   norm    partials = sum of (g / scale)^2, and count of what is not finite
 *   begin   norm, clipping, loss scale; each segment's steps and coefficients
 *   step    value and states, from the gradient
 */
#include "optim.h"

#include <math.h>

#include "backend_cpu/loops.h"

#define BLOCK ATTO_OPTIM_BLOCK

_Static_assert(BLOCK == ATTO_BLOCK, "buffers of loops.h hold one block");

/* Elements [0, BLOCK) of block i. */
static span span_at(const atto_tensor *t, int64_t i)
{
    char *first = (char *)atto__memory(t) + i * BLOCK * (int64_t)atto_dtype_size(t->dtype);
    return (span){ first, 1, BLOCK, t->dtype };
}

static float *floats_at(const atto_tensor *t, int64_t i)
{
    return (float *)atto__memory(t) + i * BLOCK;
}

static int32_t threads_for(const atto_device *dev, int64_t blocks)
{
    return blocks * BLOCK < ATTO_SERIAL_BELOW ? 1 : atto__cpu_threads(dev);
}

/* ---- norm ---- */

/* Sums side by side that one block is added to; the order is fixed. */
#define LANES 16

typedef struct span_sum {
    double squares;
    float bad;
} span_sum;

static void add_block(span_sum *sum, const float *g, float inverse)
{
    float squares[LANES] = { 0 };
    attop_u32 bad = 0;
    for (int32_t i = 0; i < BLOCK; i += LANES) {
        ATTO_SIMD
        for (int32_t k = 0; k < LANES; k++)
            squares[k] += (g[i + k] * inverse) * (g[i + k] * inverse);
    }
    for (int32_t i = 0; i < BLOCK; i++) bad += atto_optim_is_finite(g[i]) ? 0u : 1u;
    for (int32_t k = 0; k < LANES; k++) sum->squares += (double)squares[k];
    sum->bad += (float)bad;
}

static void norm_of_span(const struct atto__optim_args *a, int64_t at)
{
    const int32_t *segment_of = atto__memory(a->segment_of), *flags = atto__memory(a->flags);
    const float *control = atto__memory(a->control);
    float *partial = (float *)atto__memory(a->partials) + 2 * (a->first_span + at);
    float buffer[BLOCK];
    span_sum sum = { 0.0, 0.0f };
    for (int64_t b = at * ATTO_OPTIM_SPAN; b < (at + 1) * ATTO_OPTIM_SPAN && b < a->blocks; b++)
        if (flags[segment_of[b]])
            add_block(&sum, load_block(span_at(a->grad, b), buffer),
                      1.0f / control[ATTO_CONTROL_SCALE]);
    partial[0] = (float)sum.squares;
    partial[1] = sum.bad;
}

static void norm_of_spans(const void *a, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) norm_of_span(a, i);
}

atto_status ATTO_LEVEL_NAME(optim_norm)(atto_device *dev, const struct atto__optim_args *a)
{
    const int64_t spans = (a->blocks + ATTO_OPTIM_SPAN - 1) / ATTO_OPTIM_SPAN;
    const int32_t threads = threads_for(dev, a->blocks);
    dev->stats.launches++;
    atto__parallel_for(threads, spans, norm_of_spans, a);
    return ATTO_OK;
}

/* ---- begin ---- */

static span_sum add_partials(const struct atto__optim_args *a)
{
    const float *partials = atto__memory(a->partials);
    span_sum sum = { 0.0, 0.0f };
    for (int64_t i = 0; i < a->spans; i++) {
        sum.squares += (double)partials[2 * i];
        sum.bad += partials[2 * i + 1];
    }
    return sum;
}

/* The scale after a step: PyTorch's GradScaler.update. */
static void update_scale(float *control, bool skips, const atto__optim_numbers *n)
{
    const float good = skips ? 0.0f : control[ATTO_CONTROL_GOOD] + 1.0f;
    const float scale = control[ATTO_CONTROL_SCALE];
    const bool grows = good == n->growth_interval;
    control[ATTO_CONTROL_GOOD] = grows ? 0.0f : good;
    if (grows) control[ATTO_CONTROL_SCALE] = atto_optim_grown(scale, n->growth);
    if (skips) control[ATTO_CONTROL_SCALE] = atto_optim_shrunk(scale, n->backoff);
    if (skips) control[ATTO_CONTROL_SKIPPED] += 1.0f;
}

/* One segment's numbers; steps counts this step already. */
static void set_coefficients(const struct atto__optim_args *a, float *c, int32_t steps,
                             const float *group, float factor)
{
    const float rate = a->lr * group[0], decay = group[1];
    const bool decoupled = a->mode & ATTO_OPTIM_DECOUPLED;
    c[ATTO_OPTIM_ACTIVE] = 1.0f;
    c[ATTO_OPTIM_GRADIENT] = factor;
    c[ATTO_OPTIM_RATE] = rate / atto_optim_correction((float)steps, a->numbers.ln_beta1);
    c[ATTO_OPTIM_L2] = decoupled ? 0.0f : decay;
    c[ATTO_OPTIM_DECAY] = decoupled ? 1.0f - rate * decay : 1.0f;
    c[ATTO_OPTIM_ROOT] = attop_rsqrt(atto_optim_correction((float)steps, a->numbers.ln_beta2));
    c[ATTO_OPTIM_FRESH] = steps == 1 ? 1.0f : a->numbers.fresh;
}

static void begin_segments(const struct atto__optim_args *a, bool skips, float factor)
{
    const int32_t *flags = atto__memory(a->flags), *group_of = atto__memory(a->group_of);
    const float *groups = atto__memory(a->groups);
    int32_t *steps = atto__memory(a->steps);
    float *c = atto__memory(a->coefficients);
    for (int64_t s = 0; s < a->segments; s++, c += ATTO_OPTIM_COEFFICIENTS) {
        c[ATTO_OPTIM_ACTIVE] = 0.0f;
        if (!flags[s] || skips) continue;
        steps[s]++;
        set_coefficients(a, c, steps[s], groups + 2 * group_of[s], factor);
    }
}

atto_status ATTO_LEVEL_NAME(optim_begin)(atto_device *dev, const struct atto__optim_args *a)
{
    float *control = atto__memory(a->control);
    const span_sum sum = add_partials(a);
    const float norm = (float)sqrt(sum.squares);
    const bool skips = sum.bad > 0.0f && (a->mode & ATTO_OPTIM_SCALES);
    float factor = 1.0f / control[ATTO_CONTROL_SCALE];
    if (a->mode & ATTO_OPTIM_CLIPS) factor *= atto_optim_clip(norm, a->max_norm);
    if (a->mode & ATTO_OPTIM_MAXIMIZES) factor = -factor;
    if (a->mode & ATTO_OPTIM_MEASURES) control[ATTO_CONTROL_NORM] = norm;
    if (a->mode & ATTO_OPTIM_SCALES) update_scale(control, skips, &a->numbers);
    begin_segments(a, skips, factor);
    dev->stats.launches++;
    return ATTO_OK;
}

/* ---- step ---- */

/* One block: value (or master), gradient, the method's states, coefficients and numbers. */
typedef struct block_work {
    float *restrict p;
    const float *restrict g;
    float *restrict state[ATTO_OPTIM_STATES];
    const float *c;
    const atto__optim_numbers *n;
} block_work;

/* The gradient as clipping, loss scale and weight decay make it. */
#define DIRECTION(i) atto_optim_gradient(g[i], p[i], factor, l2)
#define UPDATE(i, d) (p[i] = p[i] * decay - rate * (d))

/* What every loop needs, as constants that stay in registers. */
#define UNPACK_WORK(w)                                                            \
    float *restrict p = (w)->p;                                                   \
    const float *restrict g = (w)->g;                                             \
    const float factor = (w)->c[ATTO_OPTIM_GRADIENT], l2 = (w)->c[ATTO_OPTIM_L2]; \
    const float rate = (w)->c[ATTO_OPTIM_RATE], decay = (w)->c[ATTO_OPTIM_DECAY]

static void sgd_plain(const block_work *w)
{
    UNPACK_WORK(w);
    ATTO_SIMD
    for (int32_t i = 0; i < BLOCK; i++) UPDATE(i, DIRECTION(i));
}

static void sgd_momentum(const block_work *w)
{
    UNPACK_WORK(w);
    float *restrict b = w->state[0];
    const float momentum = w->n->momentum, fresh = w->c[ATTO_OPTIM_FRESH];
    ATTO_SIMD
    for (int32_t i = 0; i < BLOCK; i++) {
        b[i] = atto_optim_buffer(b[i], DIRECTION(i), momentum, fresh);
        UPDATE(i, b[i]);
    }
}

static void sgd_nesterov(const block_work *w)
{
    UNPACK_WORK(w);
    float *restrict b = w->state[0];
    const float momentum = w->n->momentum, fresh = w->c[ATTO_OPTIM_FRESH];
    ATTO_SIMD
    for (int32_t i = 0; i < BLOCK; i++) {
        const float d = DIRECTION(i);
        b[i] = atto_optim_buffer(b[i], d, momentum, fresh);
        UPDATE(i, atto_optim_nesterov(b[i], d, momentum));
    }
}

static void adam(const block_work *w)
{
    UNPACK_WORK(w);
    float *restrict m = w->state[0];
    float *restrict v = w->state[1];
    const float weight1 = w->n->weight1, beta2 = w->n->beta2, weight2 = w->n->weight2;
    const float root = w->c[ATTO_OPTIM_ROOT], eps = w->n->eps;
    ATTO_SIMD
    for (int32_t i = 0; i < BLOCK; i++) {
        const float d = DIRECTION(i);
        m[i] = atto_optim_average(m[i], d, weight1);
        v[i] = atto_optim_square(v[i], d, beta2, weight2);
        UPDATE(i, atto_optim_adam(m[i], v[i], root, eps));
    }
}

/* to[i] = the gradient over its root, with the square average and, if there is one, the average
 * brought up to date. */
static void rmsprop_direction(const block_work *w, float *restrict to)
{
    UNPACK_WORK(w);
    float *restrict v = w->state[0];
    float *restrict m = w->state[1];
    const float alpha = w->n->beta2, weight = w->n->weight2, eps = w->n->eps;
    (void)rate, (void)decay;
    if (m) {
        ATTO_SIMD
        for (int32_t i = 0; i < BLOCK; i++) {
            const float d = DIRECTION(i);
            v[i] = atto_optim_square(v[i], d, alpha, weight);
            m[i] = atto_optim_average(m[i], d, weight);
            to[i] = atto_optim_rmsprop(d, v[i], m[i], eps);
        }
    } else {
        ATTO_SIMD
        for (int32_t i = 0; i < BLOCK; i++) {
            const float d = DIRECTION(i);
            v[i] = atto_optim_square(v[i], d, alpha, weight);
            to[i] = atto_optim_rmsprop(d, v[i], 0.0f, eps);
        }
    }
}

static void rmsprop(const block_work *w)
{
    float direction[BLOCK];
    float *restrict p = w->p;
    float *restrict b = w->state[2];
    const float rate = w->c[ATTO_OPTIM_RATE], decay = w->c[ATTO_OPTIM_DECAY];
    const float momentum = w->n->momentum;
    rmsprop_direction(w, direction);
    if (b) {
        ATTO_SIMD
        for (int32_t i = 0; i < BLOCK; i++) {
            b[i] = momentum * b[i] + direction[i];
            UPDATE(i, b[i]);
        }
    } else {
        ATTO_SIMD
        for (int32_t i = 0; i < BLOCK; i++) UPDATE(i, direction[i]);
    }
}

typedef void (*block_loop)(const block_work *w);

static block_loop loop_of(const struct atto__optim_args *a)
{
    switch (a->method.kind) {
    case ATTO_OPTIM_ADAM:
        return adam;
    case ATTO_OPTIM_RMSPROP:
        return rmsprop;
    default:
        if (!a->method.has_momentum) return sgd_plain;
        return a->numbers.nesterov ? sgd_nesterov : sgd_momentum;
    }
}

static void step_block(const struct atto__optim_args *a, block_loop loop, int64_t at)
{
    const int32_t *segment_of = atto__memory(a->segment_of);
    const float *c =
        (const float *)atto__memory(a->coefficients) + segment_of[at] * ATTO_OPTIM_COEFFICIENTS;
    if (c[ATTO_OPTIM_ACTIVE] == 0.0f) return;
    float buffer[BLOCK];
    block_work w = { .g = load_block(span_at(a->grad, at), buffer), .c = c, .n = &a->numbers };
    w.p = floats_at(a->master ? a->master : a->value, at);
    for (int32_t i = 0; i < ATTO_OPTIM_STATES; i++)
        w.state[i] = a->state[i] ? floats_at(a->state[i], at) : NULL;
    loop(&w);
    if (a->master) store_block(w.p, span_at(a->value, at));
    if (a->shadow) store_block(w.p, span_at(a->shadow, at));
}

/* All blocks of a step with one loop. */
typedef struct step_job {
    const struct atto__optim_args *a;
    block_loop loop;
} step_job;

static void step_blocks(const void *job_, int64_t begin, int64_t end)
{
    const step_job *job = job_;
    for (int64_t at = begin; at < end; at++) step_block(job->a, job->loop, at);
}

atto_status ATTO_LEVEL_NAME(optim_step)(atto_device *dev, const struct atto__optim_args *a)
{
    const int32_t threads = threads_for(dev, a->blocks);
    const step_job job = { a, loop_of(a) };
    dev->stats.launches++;
    atto__parallel_for(threads, a->blocks, step_blocks, &job);
    return ATTO_OK;
}
