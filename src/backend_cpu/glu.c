/* SPDX-License-Identifier: MIT */
/* Gated linear units on the CPU.
 *
 *   forward    y = a act(b)
 *   backward   da = dy act(b),  db = dy a act'(b)     (+ dx)
 *
 * x is [outer, 2, width]: a and b of a row lie one behind the other. Blocks of up to 1024 elements
 * of a half. */
#include <attocl/glu.h>

#include "axis.h"
#include "backend_cpu/act.h"
#include "backend_cpu/loops.h"

typedef struct job {
    const struct atto_glu_args *g;
    int64_t width, per_row; /* elements and blocks of a half */
} job;

/* A block of a half: row `outer`, elements first .. first + n - 1. */
typedef struct place {
    int64_t outer, first;
    int32_t n;
} place;

static place place_of(const job *j, int64_t unit)
{
    const int64_t first = unit % j->per_row * ATTO_BLOCK, left = j->width - first;
    return (place){ unit / j->per_row, first, (int32_t)(left < ATTO_BLOCK ? left : ATTO_BLOCK) };
}

/* Of a tensor with so many halves in a row. */
static span span_at(const job *j, const atto_tensor *t, place p, int64_t halves, int64_t half)
{
    const int64_t at = t->offset + (p.outer * halves + half) * j->width + p.first;
    char *memory = atto__memory(t);
    return (span){ memory + at * (int64_t)atto_dtype_size(t->dtype), 1, p.n, t->dtype };
}

static void multiply(const float *a, const float *b, float *to, int32_t n)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) to[i] = a[i] * b[i];
}

static void forward_block(const job *j, place p)
{
    const atto_activation act = j->g->act;
    float a_buffer[ATTO_BLOCK], b_buffer[ATTO_BLOCK], gate[ATTO_BLOCK], y_buffer[ATTO_BLOCK];
    const span to = span_at(j, j->g->y, p, 1, 0);
    const float *a = load_block(span_at(j, j->g->x, p, 2, 0), a_buffer);
    const float *b = load_block(span_at(j, j->g->x, p, 2, 1), b_buffer);
    float *y = store_target(to, y_buffer);
    ATTO_LEVEL_NAME(act_loops)[act.kind].f(b, gate, p.n, act.a, act.b);
    multiply(a, gate, y, p.n);
    store_block(y, to);
}

static void put(span to, float *values, bool add)
{
    float buffer[ATTO_BLOCK];
    if (add) accumulate_block(values, to, buffer);
    store_block(values, to);
}

static void backward_block(const job *j, place p)
{
    const atto_activation act = j->g->act;
    const bool add = j->g->add_dx;
    float a_buffer[ATTO_BLOCK], b_buffer[ATTO_BLOCK], dy_buffer[ATTO_BLOCK];
    float out[ATTO_BLOCK], terms[ATTO_BLOCK];
    const span to_a = span_at(j, j->g->dx, p, 2, 0), to_b = span_at(j, j->g->dx, p, 2, 1);
    const float *a = load_block(span_at(j, j->g->x, p, 2, 0), a_buffer);
    const float *b = load_block(span_at(j, j->g->x, p, 2, 1), b_buffer);
    const float *dy = load_block(span_at(j, j->g->dy, p, 1, 0), dy_buffer);
    float *da = add ? out : store_target(to_a, out);
    ATTO_LEVEL_NAME(act_loops)[act.kind].f(b, da, p.n, act.a, act.b);
    multiply(da, dy, da, p.n);
    put(to_a, da, add);
    multiply(a, dy, terms, p.n);
    float *db = add ? out : store_target(to_b, out);
    ATTO_LEVEL_NAME(act_loops)[act.kind].df(b, terms, db, p.n, act.a, act.b);
    put(to_b, db, add);
}

static void forward_blocks(const void *job_, int64_t begin, int64_t end)
{
    for (int64_t unit = begin; unit < end; unit++) forward_block(job_, place_of(job_, unit));
}

static void backward_blocks(const void *job_, int64_t begin, int64_t end)
{
    for (int64_t unit = begin; unit < end; unit++) backward_block(job_, place_of(job_, unit));
}

static atto_status run(atto_device *dev, const struct atto_glu_args *g, atto__range_fn blocks)
{
    const atto__axis axis = atto__axis_of(g->x, g->dim);
    const int64_t width = axis.size / 2 * axis.step;
    const job j = { g, width, (width + ATTO_BLOCK - 1) / ATTO_BLOCK };
    const int32_t threads = axis.outer * width < ATTO_SERIAL_BELOW ? 1 : atto__cpu_threads(dev);
    dev->stats.launches++;
    atto__parallel_for(threads, axis.outer * j.per_row, blocks, &j);
    return ATTO_OK;
}

atto_status ATTO_LEVEL_NAME(glu_forward)(atto_device *dev, const struct atto_glu_args *a,
                                         const atto__layout *layout)
{
    (void)layout;
    return run(dev, a, forward_blocks);
}

atto_status ATTO_LEVEL_NAME(glu_backward)(atto_device *dev, const struct atto_glu_args *a,
                                          const atto__layout *layout)
{
    (void)layout;
    return run(dev, a, backward_blocks);
}
