/* SPDX-License-Identifier: MIT */
/* Activations on the CPU.
 *
 *   forward    y  = drop(act(x))
 *   backward   dx = drop(act'(x) * dy)    (+ dx)
 */
#include "backend_cpu/act.h"

#include "backend_cpu/mask.h"
#include "backend_cpu/stream.h"
#include "backend_cpu/turned.h"

/* ---- one loop a kind: the function is a constant here, so it is inlined and vectorised ---- */

typedef float (*scalar_fn)(float x, float a, float b);

ATTO_INLINE void map(scalar_fn f, const float *x, float *y, int32_t n, float a, float b)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) y[i] = f(x[i], a, b);
}

ATTO_INLINE void map_grad(scalar_fn df, const float *x, const float *dy, float *dx, int32_t n,
                          float a, float b)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) dx[i] = df(x[i], a, b) * dy[i];
}

#define X(NAME, name, parameters, a_, b_, default_a, default_b, rule)                              \
    static void f_##name(const float *x, float *y, int32_t n, float a, float b)                    \
    {                                                                                              \
        map(attom_##name, x, y, n, a, b);                                                          \
    }                                                                                              \
    static void df_##name(const float *x, const float *dy, float *dx, int32_t n, float a, float b) \
    {                                                                                              \
        map_grad(attom_##name##_grad, x, dy, dx, n, a, b);                                         \
    }
ATTO_ACTIVATION_TABLE(X)
#undef X

const atto__act_loops ATTO_LEVEL_NAME(act_loops)[] = {
#define X(NAME, name, parameters, a, b, default_a, default_b, rule) { f_##name, df_##name },
    ATTO_ACTIVATION_TABLE(X)
#undef X
};

/* ---- blocks ---- */

typedef struct act_job {
    const struct atto_act_args *a;
    const atto__layout *layout;
    atto__mask mask;
} act_job;

static void forward_block(const void *job_, const block_at *at)
{
    const act_job *job = job_;
    const struct atto_act_args *a = job->a;
    float x_buffer[ATTO_BLOCK], y_buffer[ATTO_BLOCK];
    const span to = span_of(a->y, at);
    const float *x = load_input(a->x, at, x_buffer);
    const bool past_cache = at->tile && streams_to(a->y) && to.stride == 1;
    float *y = past_cache ? y_buffer : store_target(to, y_buffer);
    ATTO_LEVEL_NAME(act_loops)[a->act.kind].f(x, y, at->n, a->act.a, a->act.b);
    if (a->dropout > 0.0f) drop_block(y, &job->mask, job->layout, at);
    put_block(y, to, past_cache);
}

static void backward_block(const void *job_, const block_at *at)
{
    const act_job *job = job_;
    const struct atto_act_args *a = job->a;
    float x_buffer[ATTO_BLOCK], dy_buffer[ATTO_BLOCK], dx_buffer[ATTO_BLOCK];
    const span to = span_of(a->dx, at);
    const float *x = load_input(a->x, at, x_buffer);
    const float *dy = load_input(a->dy, at, dy_buffer);
    const bool past_cache = at->tile && !a->add_dx && streams_to(a->dx) && to.stride == 1;
    float *dx = a->add_dx || past_cache ? dx_buffer : store_target(to, dx_buffer);
    ATTO_LEVEL_NAME(act_loops)[a->act.kind].df(x, dy, dx, at->n, a->act.a, a->act.b);
    if (a->dropout > 0.0f) drop_block(dx, &job->mask, job->layout, at);
    if (a->add_dx) accumulate_block(dx, to, x_buffer);
    put_block(dx, to, past_cache);
}

atto_status ATTO_LEVEL_NAME(act_forward)(atto_device *dev, const struct atto_act_args *a,
                                         const atto__layout *layout)
{
    const act_job job = { a, layout, atto__mask_of(a->dropout, a->rng) };
    return for_each_tile(dev, layout, a->x, NULL, forward_block, &job);
}

atto_status ATTO_LEVEL_NAME(act_backward)(atto_device *dev, const struct atto_act_args *a,
                                          const atto__layout *layout)
{
    const act_job job = { a, layout, atto__mask_of(a->dropout, a->rng) };
    return for_each_tile(dev, layout, a->x, a->dy, backward_block, &job);
}
