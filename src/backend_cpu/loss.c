/* SPDX-License-Identifier: MIT */
/* Pointwise losses on the CPU.
 *
 *   each       loss = w f(x, t)
 *   mean, sum  loss = sum of w f(x, t) / n
 *   backward   dx = g w f_x(x, t)  (+ dx),   dtarget = g w f_t(x, t)  (+ dtarget),   g = dloss / n
 *
 * w is the weight of an element, or 1. Sums: a task adds up a stretch of blocks that the shape
 * alone cuts, then the tasks' sums are added in order. A gradient with stride 0 is a sum over
 * repetitions: it is computed in full, in f32, and then folded.
 */
#include "backend_cpu/fold.h"
#include "backend_cpu/rows.h"
#include "backend_cpu/stream.h"
#include "divide.h"

#define TASK_ELEMENTS 16384

/* ---- loops over a block: y = g f(x, t); a: the kind's number, or one an element ---- */

typedef void (*loss_fn)(const float *x, const float *t, const float *a, float g, float *y,
                        int32_t n);

typedef struct loss_loops {
    loss_fn f, dx, dt;
} loss_loops;

#define LOOP(loop, formula, number)                                                                \
    static void loop(const float *x, const float *t, const float *a, float g, float *y, int32_t n) \
    {                                                                                              \
        const float fixed = a[0];                                                                  \
        (void)fixed;                                                                               \
        for (int32_t first = 0; first < n; first += ATTO_CHUNK) {                                  \
            const int32_t end = ask_ahead(x, t, first, n);                                         \
            ATTO_SIMD                                                                              \
            for (int32_t i = first; i < end; i++) y[i] = g * formula(x[i], t[i], number);          \
        }                                                                                          \
    }
#define X(NAME, name, rule)                             \
    LOOP(name##_each, attom_loss_##name, fixed)         \
    LOOP(name##_each_dx, attom_loss_##name##_dx, fixed) \
    LOOP(name##_each_dt, attom_loss_##name##_dt, fixed)
ATTO_LOSS_TABLE(X)
#undef X
LOOP(bce_numbers, attom_loss_bce_with_logits, a[i])
LOOP(bce_numbers_dx, attom_loss_bce_with_logits_dx, a[i])
LOOP(bce_numbers_dt, attom_loss_bce_with_logits_dt, a[i])

static const loss_loops plain_loops[] = {
#define X(NAME, name, rule) { name##_each, name##_each_dx, name##_each_dt },
    ATTO_LOSS_TABLE(X)
#undef X
};
static const loss_loops pos_weight_loops = { bce_numbers, bce_numbers_dx, bce_numbers_dt };

static const loss_loops *loops_of(const struct atto_loss_args *a)
{
    return a->pos_weight ? &pos_weight_loops : &plain_loops[a->kind];
}

/* ---- a block's inputs ---- */

typedef struct block_in {
    const float *x, *t, *a, *w; /* w: NULL where there is none */
    float number;
    float buffer[4][ATTO_BLOCK];
} block_in;

static void load_inputs(const struct atto_loss_args *a, const block_at *at, block_in *in)
{
    in->number = a->kind == ATTO_LOSS_BCE_WITH_LOGITS ? 1.0f : a->threshold;
    in->x = load_block(span_of(a->x, at), in->buffer[0]);
    in->t = load_block(span_of(a->target, at), in->buffer[1]);
    in->a = a->pos_weight ? load_block(span_of(a->pos_weight, at), in->buffer[2]) : &in->number;
    in->w = a->weight ? load_block(span_of(a->weight, at), in->buffer[3]) : NULL;
}

static void multiply(float *y, const float *factor, int32_t n)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) y[i] *= factor[i];
}

/* ---- forward ---- */

static void weighted_losses(const struct atto_loss_args *a, const block_at *at, float *y)
{
    block_in in;
    load_inputs(a, at, &in);
    loops_of(a)->f(in.x, in.t, in.a, 1.0f, y, at->n);
    if (in.w) multiply(y, in.w, at->n);
}

static void each_block(const void *args, const block_at *at)
{
    const struct atto_loss_args *a = args;
    float buffer[ATTO_BLOCK];
    const span to = span_of(a->loss, at);
    const bool past_cache = streams_to(a->loss) && to.stride == 1;
    float *y = past_cache ? buffer : store_target(to, buffer);
    weighted_losses(a, at, y);
    put_block(y, to, past_cache);
}

typedef struct sum_task {
    const struct atto_loss_args *a;
    const atto__layout *layout;
    int64_t per_row, units, units_per_task;
    float *partial;
} sum_task;

static void sum_tasks(const void *job_, int64_t begin, int64_t end)
{
    const sum_task *job = job_;
    float y[ATTO_BLOCK];
    for (int64_t task = begin; task < end; task++) {
        const int64_t first = task * job->units_per_task, left = job->units - first;
        const int64_t count = left < job->units_per_task ? left : job->units_per_task;
        double sum = 0.0; /* rows may be short, and many */
        for (int64_t unit = first; unit < first + count; unit++) {
            const block_at at = locate_block(job->layout, job->per_row, unit);
            weighted_losses(job->a, &at, y);
            sum += (double)block_sum(y, at.n);
        }
        job->partial[task] = (float)sum;
    }
}

static atto_status sum_losses(atto_device *dev, const struct atto_loss_args *a,
                              const atto__layout *l)
{
    const int64_t inner = l->rank > 0 ? l->shape[l->rank - 1] : 1;
    const int64_t block = inner < ATTO_BLOCK ? inner : ATTO_BLOCK;
    sum_task job = { .a = a, .layout = l };
    job.per_row = atto__divide_up(inner, ATTO_BLOCK);
    job.units = l->numel / inner * job.per_row;
    job.units_per_task = TASK_ELEMENTS / block;
    const int64_t tasks = atto__divide_up(job.units, job.units_per_task);
    atto_buffer header;
    atto_tensor partial;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &tasks, &header, &partial));
    job.partial = atto__memory(&partial);
    dev->stats.launches++;
    const int32_t threads = l->numel < ATTO_SERIAL_BELOW ? 1 : atto__cpu_threads(dev);
    atto__parallel_for(threads, tasks, sum_tasks, &job);
    double sum = 0.0;
    for (int64_t task = 0; task < tasks; task++) sum += (double)job.partial[task];
    float *loss = (float *)atto__memory(a->loss) + a->loss->offset;
    *loss = (float)sum / (float)l->folded;
    return ATTO_OK;
}

atto_status ATTO_LEVEL_NAME(loss_forward)(atto_device *dev, const struct atto_loss_args *a,
                                          const atto__layout *layout)
{
    return a->reduction == ATTO_REDUCTION_NONE ? for_each_block(dev, layout, each_block, a)
                                               : sum_losses(dev, a, layout);
}

/* ---- backward ---- */

/* dx and dtarget of one pass, straight or in full; NULL = not of this pass. */
typedef struct grad_job {
    const struct atto_loss_args *a;
    const atto_tensor *dx, *dtarget;
    bool add_dx, add_dtarget;
    const float *dloss; /* one number for all elements; NULL: each has its own */
    float divisor;
} grad_job;

static void put_gradient(const grad_job *job, const block_in *in, const block_at *at, loss_fn df,
                         const atto_tensor *out, bool add)
{
    float buffer[ATTO_BLOCK], other[ATTO_BLOCK];
    const span to = span_of(out, at);
    const bool past_cache = streams_to(out) && to.stride == 1;
    float *d = add || past_cache ? buffer : store_target(to, buffer);
    df(in->x, in->t, in->a, job->dloss ? *job->dloss / job->divisor : 1.0f, d, at->n);
    if (in->w) multiply(d, in->w, at->n);
    if (!job->dloss) multiply(d, load_block(span_of(job->a->dloss, at), other), at->n);
    if (add) accumulate_block(d, to, other);
    put_block(d, to, past_cache);
}

static void grad_block(const void *job_, const block_at *at)
{
    const grad_job *job = job_;
    const loss_loops *loops = loops_of(job->a);
    block_in in;
    load_inputs(job->a, at, &in);
    if (job->dx) put_gradient(job, &in, at, loops->dx, job->dx, job->add_dx);
    if (job->dtarget) put_gradient(job, &in, at, loops->dt, job->dtarget, job->add_dtarget);
}

/* A gradient that sums up repetitions. */
static atto_status summed_gradient(atto_device *dev, const grad_job *all, bool of_x,
                                   const atto__layout *layout)
{
    grad_job job = *all;
    atto_buffer header;
    atto_tensor full;
    ATTO_TRY(atto__scratch_full(dev, layout, &header, &full));
    job.dx = of_x ? &full : NULL;
    job.dtarget = of_x ? NULL : &full;
    job.add_dx = job.add_dtarget = false;
    ATTO_TRY(for_each_block(dev, layout, grad_block, &job));
    const atto__reduction r = { .fold = ATTO_FOLD_SUM,
                                .in = &full,
                                .out = of_x ? all->dx : all->dtarget,
                                .layout = layout,
                                .divisor = 1.0f,
                                .add = of_x ? all->add_dx : all->add_dtarget };
    return ATTO_LEVEL_NAME(fold)(dev, &r);
}

atto_status ATTO_LEVEL_NAME(loss_backward)(atto_device *dev, const struct atto_loss_args *a,
                                           const atto__layout *layout)
{
    const bool none = a->reduction == ATTO_REDUCTION_NONE;
    const float *dloss = (const float *)atto__memory(a->dloss) + a->dloss->offset;
    const grad_job all = {
        a, a->dx, a->dtarget, a->add_dx, a->add_dtarget, none ? NULL : dloss, (float)layout->folded
    };
    grad_job straight = all;
    if (a->dx && atto__is_summed(a->dx)) {
        ATTO_TRY(summed_gradient(dev, &all, true, layout));
        straight.dx = NULL;
    }
    if (a->dtarget && atto__is_summed(a->dtarget)) {
        ATTO_TRY(summed_gradient(dev, &all, false, layout));
        straight.dtarget = NULL;
    }
    return straight.dx || straight.dtarget ? for_each_block(dev, layout, grad_block, &straight)
                                           : ATTO_OK;
}
