/* SPDX-License-Identifier: MIT */
/* Normalisations: layer, RMS, batch and group norm. */
#include <math.h>

#include "grid.h"
#include "oracle_norm.h"

/* Parameters and their gradients where the options say that they are there. */
static void build_parameters(grid_scene *s, atto_shape shape, bool weight, bool bias)
{
    if (weight) grid_input(s, "w", ATTO_F32, shape, GRID_NORMAL, 3);
    if (bias) grid_input(s, "b", ATTO_F32, shape, GRID_NORMAL, 4);
    if (weight) grid_output(s, "dw", ATTO_F32, shape, GRID_BACKWARD, true);
    if (bias) grid_output(s, "db", ATTO_F32, shape, GRID_BACKWARD, true);
}

static void build_images(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    grid_input(s, "x", c->dtype, c->shape, GRID_NORMAL, 1);
    grid_input(s, "dy", c->dtype, c->shape, GRID_NORMAL, 2);
    grid_output(s, "y", c->dtype, c->shape, GRID_FORWARD, true);
    grid_output(s, "dx", c->dtype, c->shape, GRID_BACKWARD, true);
}

static bool has(const grid_case *c, const char *option)
{
    return grid_int(c, option) != 0;
}

/* eps as the library gets it. */
static double eps_of(const grid_case *c)
{
    return (double)(float)grid_get(c, "eps");
}

/* ---- layer norm, RMS norm ---- */

static void build_rows(grid_scene *s, bool centred)
{
    const grid_case *c = grid_case_of(s);
    const int32_t last = c->shape.rank - 1;
    const atto_shape rows = atto_shape_of(last, c->shape.dim);
    build_images(s);
    build_parameters(s, atto_shape1(c->shape.dim[last]), has(c, "weight"),
                     centred && has(c, "bias"));
    if (centred) grid_output(s, "mean", ATTO_F32, rows, GRID_FORWARD, false);
    grid_output(s, "rstd", ATTO_F32, rows, GRID_FORWARD, false);
}

static void build_layer_norm(grid_scene *s)
{
    build_rows(s, true);
}

static void build_rms_norm(grid_scene *s)
{
    build_rows(s, false);
}

static atto_status call_layer_norm(grid_scene *s, bool backward)
{
    const struct atto_layer_norm_args a = { .x = grid_at(s, "x"),
                                            .w = grid_at(s, "w"),
                                            .b = grid_at(s, "b"),
                                            .y = grid_at(s, "y"),
                                            .mean = grid_at(s, "mean"),
                                            .rstd = grid_at(s, "rstd"),
                                            .dy = grid_at(s, "dy"),
                                            .dx = grid_at(s, "dx"),
                                            .dw = grid_at(s, "dw"),
                                            .db = grid_at(s, "db"),
                                            .dims = 1,
                                            .eps = (float)grid_get(grid_case_of(s), "eps") };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_layer_norm_backward(dev, &a) : atto_layer_norm_forward(dev, &a);
}

static atto_status call_rms_norm(grid_scene *s, bool backward)
{
    const struct atto_rms_norm_args a = { .x = grid_at(s, "x"),
                                          .w = grid_at(s, "w"),
                                          .y = grid_at(s, "y"),
                                          .rstd = grid_at(s, "rstd"),
                                          .dy = grid_at(s, "dy"),
                                          .dx = grid_at(s, "dx"),
                                          .dw = grid_at(s, "dw"),
                                          .dims = 1,
                                          .eps = (float)grid_get(grid_case_of(s), "eps") };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_rms_norm_backward(dev, &a) : atto_rms_norm_forward(dev, &a);
}

/* What both oracles of rows and groups fill in; params: how many weights, stats: how many means. */
static oracle_row_norm_answer answer_arrays(grid_scene *s, int64_t numel, int64_t params,
                                            int64_t stats)
{
    return (oracle_row_norm_answer){ .mean = grid_array(s, stats),
                                     .rstd = grid_array(s, stats),
                                     .y = grid_want(s, "y", numel),
                                     .y_terms = grid_terms(s, "y", numel),
                                     .dx = grid_want(s, "dx", numel),
                                     .dx_terms = grid_terms(s, "dx", numel),
                                     .dw = grid_want(s, "dw", params),
                                     .dw_terms = grid_terms(s, "dw", params),
                                     .db = grid_want(s, "db", params),
                                     .db_terms = grid_terms(s, "db", params) };
}

/* n values are normalised together, `all` meet in a gradient of a parameter. */
static void allow_rows(grid_scene *s, const char *op, const char *grad, int64_t n, int64_t all)
{
    grid_allow(s, "y", op, n);
    grid_allow(s, "dx", grad, n);
    grid_allow(s, "dw", grad, n + all);
    grid_allow(s, "db", grad, all);
}

static void answer_rows(grid_scene *s, bool centred)
{
    const grid_case *c = grid_case_of(s);
    const int32_t last = c->shape.rank - 1;
    const int64_t rows = grid_product(c->shape, 0, last), cols = c->shape.dim[last];
    const oracle_row_norm question = { .rows = rows,
                                       .cols = cols,
                                       .centred = centred,
                                       .eps = eps_of(c),
                                       .x = grid_held(s, "x"),
                                       .w = grid_held(s, "w"),
                                       .b = grid_held(s, "b"),
                                       .dy = grid_held(s, "dy") };
    oracle_row_norm_answer answer = answer_arrays(s, rows * cols, cols, rows);
    oracle_row_norm_of(&question, &answer);
    allow_rows(s, "layer_norm", "layer_norm_grad", grid_depth(cols), grid_depth(rows));
}

static void answer_layer_norm(grid_scene *s)
{
    answer_rows(s, true);
}

static void answer_rms_norm(grid_scene *s)
{
    answer_rows(s, false);
}

#define EPS                            \
    {                                  \
        "eps", 2, { 1e-5, 1e-6 }, NULL \
    }
#define YES_NO(name)            \
    {                           \
        name, 2, { 0, 1 }, NULL \
    }

const grid_family grid_layer_norm = {
    .name = "layer_norm",
    .least_rank = 1,
    .most_rank = 3,
    .options = { EPS, YES_NO("weight"), YES_NO("bias") },
    .build = build_layer_norm,
    .call = call_layer_norm,
    .answer = answer_layer_norm,
};

const grid_family grid_rms_norm = {
    .name = "rms_norm",
    .least_rank = 1,
    .most_rank = 3,
    .options = { EPS, YES_NO("weight") },
    .build = build_rms_norm,
    .call = call_rms_norm,
    .answer = answer_rms_norm,
};

/* ---- batch norm ---- */

static atto_shape channels_of(const grid_case *c)
{
    return atto_shape1(c->shape.dim[1]);
}

/* Evaluation uses running statistics; attorch's grid has no batch of one. */
static bool batch_norm_exists(const grid_case *c)
{
    return c->shape.dim[0] > 1 && (has(c, "training") || has(c, "track"));
}

static void build_batch_norm(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const atto_shape channels = channels_of(c);
    build_images(s);
    build_parameters(s, channels, has(c, "weight"), has(c, "bias"));
    if (has(c, "track")) grid_state(s, "running_mean", channels, GRID_NORMAL, 5);
    if (has(c, "track")) grid_state(s, "running_var", channels, GRID_POSITIVE, 6);
    if (has(c, "residual")) grid_input(s, "residual", c->dtype, c->shape, GRID_NORMAL, 7);
    if (has(c, "residual")) grid_output(s, "dresidual", c->dtype, c->shape, GRID_BACKWARD, true);
    grid_output(s, "mean", ATTO_F32, channels, GRID_FORWARD, false);
    grid_output(s, "rstd", ATTO_F32, channels, GRID_FORWARD, false);
}

static atto_activation act_of(const grid_case *c)
{
    return atto_activation_default((atto_activation_kind)grid_int(c, "act"));
}

static atto_status call_batch_norm(grid_scene *s, bool backward)
{
    const grid_case *c = grid_case_of(s);
    const struct atto_batch_norm_args a = { .x = grid_at(s, "x"),
                                            .w = grid_at(s, "w"),
                                            .b = grid_at(s, "b"),
                                            .residual = grid_at(s, "residual"),
                                            .running_mean = grid_at(s, "running_mean"),
                                            .running_var = grid_at(s, "running_var"),
                                            .y = grid_at(s, "y"),
                                            .mean = grid_at(s, "mean"),
                                            .rstd = grid_at(s, "rstd"),
                                            .dy = grid_at(s, "dy"),
                                            .dx = grid_at(s, "dx"),
                                            .dw = grid_at(s, "dw"),
                                            .db = grid_at(s, "db"),
                                            .dresidual = grid_at(s, "dresidual"),
                                            .act = act_of(c),
                                            .training = has(c, "training"),
                                            .momentum = (float)grid_get(c, "momentum"),
                                            .eps = (float)grid_get(c, "eps") };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_batch_norm_backward(dev, &a) : atto_batch_norm_forward(dev, &a);
}

/* A running mean is made of numbers of the size of x and of itself. */
static void size_of_mean(grid_scene *s, const oracle_batch_norm *q)
{
    double *terms = grid_terms(s, "running_mean", q->channels);
    const double share = q->training ? 1.0 / (double)(q->n * q->size) : 0.0;
    for (int64_t i = 0; i < q->n * q->channels * q->size; i++)
        terms[i / q->size % q->channels] += fabs(q->x[i]) * share;
    for (int64_t c = 0; q->running_mean && c < q->channels; c++)
        terms[c] += fabs(q->running_mean[c]);
}

static void allow_batch_norm(grid_scene *s, int64_t n)
{
    static const char *const forward[] = { "y", "running_mean", "running_var" };
    static const char *const backward[] = { "dx", "dresidual", "dw", "db" };
    for (int i = 0; i < COUNT_OF(forward); i++) grid_allow(s, forward[i], "batch_norm", n);
    for (int i = 0; i < COUNT_OF(backward); i++) grid_allow(s, backward[i], "batch_norm_grad", n);
}

static oracle_batch_norm batch_norm_question(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    return (oracle_batch_norm){ .n = c->shape.dim[0],
                                .channels = c->shape.dim[1],
                                .size = grid_product(c->shape, 2, c->shape.rank),
                                .x = grid_held(s, "x"),
                                .w = grid_held(s, "w"),
                                .b = grid_held(s, "b"),
                                .residual = grid_held(s, "residual"),
                                .dy = grid_held(s, "dy"),
                                .running_mean = grid_held(s, "running_mean"),
                                .running_var = grid_held(s, "running_var"),
                                .act = act_of(c),
                                .training = has(c, "training"),
                                .share = (double)(float)grid_get(c, "momentum"),
                                .eps = eps_of(c) };
}

static void answer_batch_norm(grid_scene *s)
{
    const oracle_batch_norm q = batch_norm_question(s);
    const int64_t k = q.channels, numel = q.n * k * q.size;
    oracle_batch_norm_answer answer = {
        .mean = grid_array(s, k),
        .rstd = grid_array(s, k),
        .running_mean = grid_want(s, "running_mean", k),
        .running_var = grid_want(s, "running_var", k),
        .y = grid_want(s, "y", numel),
        .y_terms = grid_terms(s, "y", numel),
        .dx = grid_want(s, "dx", numel),
        .dx_terms = grid_terms(s, "dx", numel),
        .dz = grid_want(s, "dresidual", numel),
        .dz_terms = grid_terms(s, "dresidual", numel),
        .dw = grid_want(s, "dw", k),
        .dw_terms = grid_terms(s, "dw", k),
        .db = grid_want(s, "db", k),
        .db_terms = grid_terms(s, "db", k),
    };
    oracle_batch_norm_of(&q, &answer);
    size_of_mean(s, &q);
    allow_batch_norm(s, grid_depth(q.n * q.size));
}

const grid_family grid_batch_norm = {
    .name = "batch_norm",
    .least_rank = 2,
    .most_rank = 4,
    .options = { EPS,
                 { "momentum", 2, { 0.1, 0.2 }, NULL },
                 YES_NO("weight"),
                 YES_NO("bias"),
                 YES_NO("track"),
                 YES_NO("residual"),
                 YES_NO("training"),
                 { "act", ATTO_ACT_COUNT, { 0 }, grid_act_text } },
    .exists = batch_norm_exists,
    .build = build_batch_norm,
    .call = call_batch_norm,
    .answer = answer_batch_norm,
};

/* ---- group norm ---- */

/* 0 stands for as many groups as channels. */
static int64_t groups_of(const grid_case *c)
{
    const int64_t groups = grid_int(c, "groups");
    return groups > 0 ? groups : c->shape.dim[1];
}

static bool groups_exist(const grid_case *c)
{
    return c->shape.dim[1] % groups_of(c) == 0;
}

static void build_group_norm(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const atto_shape stats = atto_shape2(c->shape.dim[0], groups_of(c));
    build_images(s);
    build_parameters(s, channels_of(c), has(c, "weight"), has(c, "bias"));
    grid_output(s, "mean", ATTO_F32, stats, GRID_FORWARD, false);
    grid_output(s, "rstd", ATTO_F32, stats, GRID_FORWARD, false);
}

static atto_status call_group_norm(grid_scene *s, bool backward)
{
    const grid_case *c = grid_case_of(s);
    const struct atto_group_norm_args a = { .x = grid_at(s, "x"),
                                            .w = grid_at(s, "w"),
                                            .b = grid_at(s, "b"),
                                            .y = grid_at(s, "y"),
                                            .mean = grid_at(s, "mean"),
                                            .rstd = grid_at(s, "rstd"),
                                            .dy = grid_at(s, "dy"),
                                            .dx = grid_at(s, "dx"),
                                            .dw = grid_at(s, "dw"),
                                            .db = grid_at(s, "db"),
                                            .groups = groups_of(c),
                                            .eps = (float)grid_get(c, "eps") };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_group_norm_backward(dev, &a) : atto_group_norm_forward(dev, &a);
}

static void answer_group_norm(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const oracle_group_norm question = { .n = c->shape.dim[0],
                                         .channels = c->shape.dim[1],
                                         .size = grid_product(c->shape, 2, c->shape.rank),
                                         .groups = groups_of(c),
                                         .x = grid_held(s, "x"),
                                         .w = grid_held(s, "w"),
                                         .b = grid_held(s, "b"),
                                         .dy = grid_held(s, "dy"),
                                         .eps = eps_of(c) };
    const int64_t together = question.channels / question.groups * question.size;
    oracle_row_norm_answer answer = answer_arrays(s, question.n * question.channels * question.size,
                                                  question.channels, question.n * question.groups);
    oracle_group_norm_of(&question, &answer);
    allow_rows(s, "group_norm", "group_norm_grad", grid_depth(together),
               grid_depth(question.n * question.size));
}

const grid_family grid_group_norm = {
    .name = "group_norm",
    .least_rank = 2,
    .most_rank = 4,
    .options = { EPS, { "groups", 3, { 1, 2, 0 }, NULL }, YES_NO("weight"), YES_NO("bias") },
    .exists = groups_exist,
    .build = build_group_norm,
    .call = call_group_norm,
    .answer = answer_group_norm,
};
