/* SPDX-License-Identifier: MIT */
/* Pooling: means, maxima, adaptive windows; over the last dimension of three, the last two of
 * four. */
#include <math.h>

#include "grid.h"

static bool has(const grid_case *c, const char *option)
{
    return grid_int(c, option) != 0;
}

static int32_t dims_of(const grid_case *c)
{
    return c->shape.rank - 2;
}

/* attorch's numbers: stride 0 is the kernel's size, padding -1 half of it. */
static atto_pool_window window_of(const grid_case *c, int64_t dilation)
{
    const int64_t kernel = grid_int(c, "kernel"), stride = grid_int(c, "stride");
    const int64_t padding = grid_int(c, "padding");
    atto_pool_window w = { .dims = dims_of(c), .ceil_mode = has(c, "ceil") };
    for (int at = 0; at < 2; at++) {
        w.kernel[at] = kernel;
        w.stride[at] = stride ? stride : kernel;
        w.padding[at] = padding < 0 ? kernel / 2 : padding;
        w.dilation[at] = dilation;
    }
    return w;
}

static atto_pool_window avg_window(const grid_case *c)
{
    return window_of(c, 1);
}

static atto_pool_window max_window(const grid_case *c)
{
    return window_of(c, grid_int(c, "dilation"));
}

static atto_pool_window adaptive_window(const grid_case *c)
{
    return (atto_pool_window){ .dims = dims_of(c), .adaptive = true };
}

static atto_shape outputs_of(const grid_case *c, const atto_pool_window *w)
{
    atto_shape y = c->shape;
    for (int32_t at = 0; at < w->dims; at++) {
        const int32_t d = y.rank - w->dims + at;
        y.dim[d] = w->adaptive ? grid_int(c, "out") : oracle_pool_outputs(w, at, c->shape.dim[d]);
    }
    return y;
}

static bool has_outputs(const grid_case *c, atto_pool_window w)
{
    const atto_shape y = outputs_of(c, &w);
    return grid_product(y, 0, y.rank) > 0;
}

static bool avg_exists(const grid_case *c)
{
    return has_outputs(c, avg_window(c));
}

static bool max_exists(const grid_case *c)
{
    return has_outputs(c, max_window(c));
}

static void build(grid_scene *s, atto_pool_window w, bool is_max)
{
    const grid_case *c = grid_case_of(s);
    const atto_shape y = outputs_of(c, &w);
    grid_input(s, "x", c->dtype, c->shape, GRID_NORMAL, 1);
    grid_input(s, "dy", c->dtype, y, GRID_NORMAL, 2);
    grid_output(s, "y", c->dtype, y, GRID_FORWARD, true);
    if (is_max) grid_output(s, "indices", ATTO_I64, y, GRID_FORWARD, true);
    grid_output(s, "dx", c->dtype, c->shape, GRID_BACKWARD, true);
}

static void build_avg(grid_scene *s)
{
    build(s, avg_window(grid_case_of(s)), false);
}

static void build_max(grid_scene *s)
{
    build(s, max_window(grid_case_of(s)), true);
}

static void build_adaptive(grid_scene *s)
{
    build(s, adaptive_window(grid_case_of(s)), has(grid_case_of(s), "max"));
}

static atto_status avg(grid_scene *s, bool backward, atto_pool_window w, bool exclude,
                       int64_t divisor)
{
    const struct atto_avg_pool_args a = { .x = grid_at(s, "x"),
                                          .y = grid_at(s, "y"),
                                          .dy = grid_at(s, "dy"),
                                          .dx = grid_at(s, "dx"),
                                          .exclude_padding = exclude,
                                          .divisor_override = divisor,
                                          .window = w };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_avg_pool_backward(dev, &a) : atto_avg_pool_forward(dev, &a);
}

static atto_status max(grid_scene *s, bool backward, atto_pool_window w)
{
    const struct atto_max_pool_args a = { .x = grid_at(s, "x"),
                                          .y = grid_at(s, "y"),
                                          .indices = grid_at(s, "indices"),
                                          .dy = grid_at(s, "dy"),
                                          .dx = grid_at(s, "dx"),
                                          .window = w };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_max_pool_backward(dev, &a) : atto_max_pool_forward(dev, &a);
}

static atto_status call_avg(grid_scene *s, bool backward)
{
    const grid_case *c = grid_case_of(s);
    return avg(s, backward, avg_window(c), has(c, "exclude"), grid_int(c, "divisor"));
}

static atto_status call_max(grid_scene *s, bool backward)
{
    return max(s, backward, max_window(grid_case_of(s)));
}

static atto_status call_adaptive(grid_scene *s, bool backward)
{
    const grid_case *c = grid_case_of(s);
    const atto_pool_window w = adaptive_window(c);
    return has(c, "max") ? max(s, backward, w) : avg(s, backward, w, false, 0);
}

static oracle_pool question_of(grid_scene *s, atto_pool_window w, bool is_max)
{
    const grid_case *c = grid_case_of(s);
    const atto_shape y = outputs_of(c, &w);
    const int32_t last = y.rank - 1;
    const bool flat = w.dims == 1;
    return (oracle_pool){ .is_max = is_max,
                          .planes = grid_product(c->shape, 0, 2),
                          .h = flat ? 1 : c->shape.dim[2],
                          .w = c->shape.dim[last],
                          .oh = flat ? 1 : y.dim[2],
                          .ow = y.dim[last],
                          .window = w,
                          .x = grid_held(s, "x"),
                          .dy = grid_held(s, "dy") };
}

static int64_t most_of(const int64_t *counts, int64_t n)
{
    int64_t most = 1;
    for (int64_t i = 0; i < n; i++)
        if (counts[i] > most) most = counts[i];
    return most;
}

static void answer(grid_scene *s, const oracle_pool *q)
{
    const int64_t outputs = q->planes * q->oh * q->ow, inputs = q->planes * q->h * q->w;
    oracle_pool_answer a = { .y = grid_want(s, "y", outputs),
                             .index = grid_want(s, "indices", outputs),
                             .terms =
                                 q->is_max ? grid_array(s, outputs) : grid_terms(s, "y", outputs),
                             .divisor = grid_array(s, outputs),
                             .summed = grid_array(s, outputs),
                             .dx = grid_want(s, "dx", inputs),
                             .dx_terms = grid_terms(s, "dx", inputs),
                             .dx_summed = grid_array(s, inputs) };
    oracle_pooling(q, &a);
    grid_allow(s, "y", q->is_max ? "max_pool" : "avg_pool", most_of(a.summed, outputs));
    grid_allow(s, "indices", "max_pool", 1);
    grid_allow(s, "dx", q->is_max ? "max_pool_grad" : "avg_pool_grad",
               most_of(a.dx_summed, inputs));
}

static void answer_avg(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    oracle_pool q = question_of(s, avg_window(c), false);
    q.exclude = has(c, "exclude");
    q.override = grid_int(c, "divisor");
    answer(s, &q);
}

static void answer_max(grid_scene *s)
{
    const oracle_pool q = question_of(s, max_window(grid_case_of(s)), true);
    answer(s, &q);
}

static void answer_adaptive(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const oracle_pool q = question_of(s, adaptive_window(c), has(c, "max"));
    answer(s, &q);
}

#define YES_NO(name)            \
    {                           \
        name, 2, { 0, 1 }, NULL \
    }
#define WINDOW                                                              \
    { "kernel", 3, { 2, 3, 4 }, NULL }, { "stride", 3, { 0, 1, 2 }, NULL }, \
        { "padding", 3, { 0, 1, -1 }, NULL },                               \
    {                                                                       \
        "ceil", 2, { 0, 1 }, NULL                                           \
    }

const grid_family grid_avg_pool = {
    .name = "avg_pool",
    .least_rank = 3,
    .most_rank = 4,
    .options = { WINDOW, YES_NO("exclude"), { "divisor", 2, { 0, 3 }, NULL } },
    .exists = avg_exists,
    .build = build_avg,
    .call = call_avg,
    .answer = answer_avg,
};

const grid_family grid_max_pool = {
    .name = "max_pool",
    .least_rank = 3,
    .most_rank = 4,
    .options = { WINDOW, { "dilation", 2, { 1, 2 }, NULL } },
    .exists = max_exists,
    .build = build_max,
    .call = call_max,
    .answer = answer_max,
};

const grid_family grid_adaptive_pool = {
    .name = "adaptive_pool",
    .least_rank = 3,
    .most_rank = 4,
    .options = { { "out", 3, { 1, 3, 7 }, NULL }, YES_NO("max") },
    .build = build_adaptive,
    .call = call_adaptive,
    .answer = answer_adaptive,
};
