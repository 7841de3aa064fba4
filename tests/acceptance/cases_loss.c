/* SPDX-License-Identifier: MIT */
/* Losses: pointwise ones, negative log-likelihood, cross-entropy. */
#include <math.h>
#include <stdio.h>

#include "grid.h"
#include "oracle_loss.h"

static bool has(const grid_case *c, const char *option)
{
    return grid_int(c, option) != 0;
}

static atto_reduction reduction_of(const grid_case *c)
{
    return (atto_reduction)grid_int(c, "reduction");
}

/* loss and dloss: one, or one a position. */
static void build_loss(grid_scene *s, atto_shape each)
{
    const bool none = reduction_of(grid_case_of(s)) == ATTO_REDUCTION_NONE;
    const atto_shape shape = none ? each : atto_shape0();
    grid_input(s, "dloss", ATTO_F32, shape, GRID_NORMAL, 8);
    grid_output(s, "loss", ATTO_F32, shape, GRID_FORWARD, true);
}

/* Additions in a row of a sum over positions, see the tests of the losses. */
static int64_t sum_depth(int64_t n)
{
    return n < 128 ? n : 128;
}

/* ---- pointwise losses ---- */

static const char *loss_text(int value)
{
    return atto_loss_name((atto_loss_kind)value);
}

static atto_loss_kind kind_of(const grid_case *c)
{
    return (atto_loss_kind)grid_int(c, "kind");
}

/* Binary cross-entropy alone has weights. */
static bool loss_exists(const grid_case *c)
{
    return kind_of(c) == ATTO_LOSS_BCE_WITH_LOGITS || (!has(c, "weight") && !has(c, "pos_weight"));
}

/* Values for which the loss is meant. */
static grid_draw draw_of(atto_loss_kind kind, bool target)
{
    if (kind == ATTO_LOSS_BCE_WITH_LOGITS) return target ? GRID_SHARE : GRID_NORMAL;
    if (kind == ATTO_LOSS_KL_DIV) return target ? GRID_SHARE : GRID_LOG;
    return kind == ATTO_LOSS_KL_DIV_LOG ? GRID_LOG : GRID_NORMAL;
}

static void build_pointwise(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    grid_input(s, "x", c->dtype, c->shape, draw_of(kind_of(c), false), 1);
    grid_input(s, "target", c->dtype, c->shape, draw_of(kind_of(c), true), 2);
    if (has(c, "weight")) grid_input(s, "weight", ATTO_F32, c->shape, GRID_POSITIVE, 3);
    if (has(c, "pos_weight")) grid_input(s, "pos_weight", ATTO_F32, c->shape, GRID_POSITIVE, 4);
    build_loss(s, c->shape);
    grid_output(s, "dx", c->dtype, c->shape, GRID_BACKWARD, true);
    grid_output(s, "dtarget", c->dtype, c->shape, GRID_BACKWARD, true);
}

static atto_status call_pointwise(grid_scene *s, bool backward)
{
    const grid_case *c = grid_case_of(s);
    const struct atto_loss_args a = { .x = grid_at(s, "x"),
                                      .target = grid_at(s, "target"),
                                      .weight = grid_at(s, "weight"),
                                      .pos_weight = grid_at(s, "pos_weight"),
                                      .loss = grid_at(s, "loss"),
                                      .dloss = grid_at(s, "dloss"),
                                      .dx = grid_at(s, "dx"),
                                      .dtarget = grid_at(s, "dtarget"),
                                      .kind = kind_of(c),
                                      .reduction = reduction_of(c),
                                      .threshold = 1.0f };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_loss_backward(dev, &a) : atto_loss_forward(dev, &a);
}

static double divisor_of(const grid_case *c)
{
    if (reduction_of(c) == ATTO_REDUCTION_MEAN)
        return (double)grid_product(c->shape, 0, c->shape.rank);
    return reduction_of(c) == ATTO_REDUCTION_BATCH_MEAN ? (double)c->shape.dim[0] : 1.0;
}

static void answer_pointwise(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const bool none = reduction_of(c) == ATTO_REDUCTION_NONE;
    const int64_t n = grid_product(c->shape, 0, c->shape.rank), losses = none ? n : 1;
    const double *x = grid_held(s, "x"), *t = grid_held(s, "target"),
                 *dloss = grid_held(s, "dloss");
    const double *weight = grid_held(s, "weight"), *pos = grid_held(s, "pos_weight");
    double *loss = grid_want(s, "loss", losses), *terms = grid_terms(s, "loss", losses);
    double *grad[] = { grid_want(s, "dx", n), grid_want(s, "dtarget", n) };
    double *grad_terms[] = { grid_terms(s, "dx", n), grid_terms(s, "dtarget", n) };
    for (int64_t i = 0; i < n; i++) {
        const double a = pos ? pos[i] : 1.0, w = weight ? weight[i] : 1.0, by = divisor_of(c);
        const oracle_sum one = oracle_loss(kind_of(c), x[i], t[i], a, w);
        loss[none ? i : 0] += one.value / by, terms[none ? i : 0] += one.terms / by;
        for (int of_target = 0; of_target < 2; of_target++) {
            const oracle_sum g = oracle_loss_grad(kind_of(c), of_target == 1, x[i], t[i], a, w,
                                                  dloss[none ? i : 0] / by);
            grad[of_target][i] = g.value, grad_terms[of_target][i] = g.terms;
        }
    }
    char op[40];
    snprintf(op, sizeof op, "%s_grad", loss_text((int)kind_of(c)));
    grid_allow(s, "loss", loss_text((int)kind_of(c)), none ? 1 : sum_depth(n) + 5);
    grid_allow(s, "dx", op, 1);
    grid_allow(s, "dtarget", op, 1);
}

#define YES_NO(name)            \
    {                           \
        name, 2, { 0, 1 }, NULL \
    }

const grid_family grid_loss = {
    .name = "loss",
    .least_rank = 1,
    .most_rank = 4,
    .options = { { "kind", ATTO_LOSS_COUNT, { 0 }, loss_text },
                 { "reduction", 4, { 0 }, grid_reduction_text },
                 YES_NO("weight"),
                 YES_NO("pos_weight") },
    .rtol = 1e-3,
    .grad_rtol = 1e-3,
    .atol = 1e-3,
    .grad_atol = 1e-3,
    .exists = loss_exists,
    .build = build_pointwise,
    .call = call_pointwise,
    .answer = answer_pointwise,
};

/* ---- losses of labels ---- */

/* x without its classes, which are dimension 1. */
static atto_shape positions_of(const grid_case *c)
{
    atto_shape p = { 0, { 0 } };
    for (int32_t d = 0; d < c->shape.rank; d++)
        if (d != 1) p.dim[p.rank++] = c->shape.dim[d];
    return p;
}

/* Where a label is ignored, it is this one. */
#define IGNORED 1

static void build_nll_loss(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const int64_t classes = c->shape.dim[1];
    grid_input(s, "x", c->dtype, c->shape, GRID_NORMAL, 1);
    grid_labels(s, "target", positions_of(c), classes, 2);
    if (has(c, "weight")) grid_input(s, "weight", ATTO_F32, atto_shape1(classes), GRID_POSITIVE, 3);
    build_loss(s, positions_of(c));
    grid_output(s, "total", ATTO_F32, atto_shape0(), GRID_FORWARD, false);
    grid_output(s, "dx", c->dtype, c->shape, GRID_BACKWARD, true);
}

static atto_status call_nll_loss(grid_scene *s, bool backward)
{
    const grid_case *c = grid_case_of(s);
    const struct atto_nll_loss_args a = { .x = grid_at(s, "x"),
                                          .target = grid_at(s, "target"),
                                          .weight = grid_at(s, "weight"),
                                          .loss = grid_at(s, "loss"),
                                          .total = grid_at(s, "total"),
                                          .dloss = grid_at(s, "dloss"),
                                          .dx = grid_at(s, "dx"),
                                          .reduction = reduction_of(c),
                                          .has_ignore_index = has(c, "ignore"),
                                          .ignore_index = IGNORED };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_nll_loss_backward(dev, &a) : atto_nll_loss_forward(dev, &a);
}

/* Roundings as the test of the op counts them. */
static void answer_nll_loss(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const int64_t step = grid_product(c->shape, 2, c->shape.rank);
    const int64_t positions = c->shape.dim[0] * step, numel = positions * c->shape.dim[1];
    const atto_reduction reduction = reduction_of(c);
    const bool none = reduction == ATTO_REDUCTION_NONE;
    const oracle_nll question = { .outer = c->shape.dim[0],
                                  .classes = c->shape.dim[1],
                                  .step = step,
                                  .x = grid_held(s, "x"),
                                  .labels = grid_held(s, "target"),
                                  .weight = grid_held(s, "weight"),
                                  .reduction = reduction,
                                  .has_ignore = has(c, "ignore"),
                                  .ignore = IGNORED,
                                  .dloss = grid_held(s, "dloss") };
    oracle_nll_answer a = { .each =
                                none ? grid_want(s, "loss", positions) : grid_array(s, positions),
                            .dx = grid_want(s, "dx", numel) };
    oracle_nll_loss(&question, &a);
    if (!none) grid_want(s, "loss", 1)[0] = a.loss, grid_terms(s, "loss", 1)[0] = a.loss_terms;
    const int64_t depth = sum_depth(positions);
    grid_allow(s, "loss", "nll_loss", none ? 1 : 2 * depth + 5);
    grid_allow(s, "dx", "nll_loss_grad", 1 + (reduction == ATTO_REDUCTION_MEAN ? depth : 0));
}

const grid_family grid_nll_loss = {
    .name = "nll_loss",
    .least_rank = 2,
    .most_rank = 4,
    .options = { { "reduction", 3, { 0 }, grid_reduction_text },
                 YES_NO("weight"),
                 YES_NO("ignore") },
    .build = build_nll_loss,
    .call = call_nll_loss,
    .answer = answer_nll_loss,
};

/* ---- cross-entropy ---- */

static bool cross_entropy_exists(const grid_case *c)
{
    return !(has(c, "probabilities") && has(c, "ignore"));
}

static void build_cross_entropy(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const int64_t classes = c->shape.dim[1];
    const bool soft = has(c, "probabilities");
    grid_input(s, "x", c->dtype, c->shape, GRID_NORMAL, 1);
    if (soft)
        grid_input(s, "target", ATTO_F32, c->shape, GRID_SHARE, 2);
    else
        grid_labels(s, "target", positions_of(c), classes, 2);
    if (has(c, "weight")) grid_input(s, "weight", ATTO_F32, atto_shape1(classes), GRID_POSITIVE, 3);
    build_loss(s, positions_of(c));
    grid_output(s, "lse", ATTO_F32, positions_of(c), GRID_FORWARD, false);
    grid_output(s, "total", ATTO_F32, atto_shape0(), GRID_FORWARD, false);
    grid_output(s, "dx", c->dtype, c->shape, GRID_BACKWARD, true);
    if (soft) grid_output(s, "dtarget", ATTO_F32, c->shape, GRID_BACKWARD, true);
}

static atto_status call_cross_entropy(grid_scene *s, bool backward)
{
    const grid_case *c = grid_case_of(s);
    const struct atto_cross_entropy_args a = {
        .x = grid_at(s, "x"),
        .target = grid_at(s, "target"),
        .weight = grid_at(s, "weight"),
        .loss = grid_at(s, "loss"),
        .lse = grid_at(s, "lse"),
        .total = grid_at(s, "total"),
        .dloss = grid_at(s, "dloss"),
        .dx = grid_at(s, "dx"),
        .dtarget = grid_at(s, "dtarget"),
        .reduction = reduction_of(c),
        .has_ignore_index = has(c, "ignore"),
        .ignore_index = IGNORED,
        .label_smoothing = (float)grid_get(c, "smoothing"),
    };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_cross_entropy_backward(dev, &a) : atto_cross_entropy_forward(dev, &a);
}

static oracle_ce ce_question(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const bool soft = has(c, "probabilities");
    const double *target = grid_held(s, "target");
    return (oracle_ce){ .outer = c->shape.dim[0],
                        .classes = c->shape.dim[1],
                        .step = grid_product(c->shape, 2, c->shape.rank),
                        .x = grid_held(s, "x"),
                        .labels = soft ? NULL : target,
                        .shares = soft ? target : NULL,
                        .weight = grid_held(s, "weight"),
                        .reduction = reduction_of(c),
                        .has_ignore = has(c, "ignore"),
                        .ignore = IGNORED,
                        .smoothing = (double)(float)grid_get(c, "smoothing"),
                        .dloss = grid_held(s, "dloss"),
                        .from_lse = true };
}

static void answer_cross_entropy(grid_scene *s)
{
    const oracle_ce q = ce_question(s);
    const int64_t positions = q.outer * q.step, numel = positions * q.classes;
    const bool none = q.reduction == ATTO_REDUCTION_NONE, mean = q.reduction == ATTO_REDUCTION_MEAN;
    oracle_ce_answer a = {
        .each = none ? grid_want(s, "loss", positions) : grid_array(s, positions),
        .each_terms = none ? grid_terms(s, "loss", positions) : grid_array(s, positions),
        .lse = grid_array(s, positions),
        .lse_terms = grid_array(s, positions),
        .dx = grid_want(s, "dx", numel),
        .dx_terms = grid_terms(s, "dx", numel),
        .dshares = grid_want(s, "dtarget", numel),
        .dshares_terms = grid_terms(s, "dtarget", numel),
    };
    oracle_cross_entropy(&q, &a);
    if (!none) grid_want(s, "loss", 1)[0] = a.loss, grid_terms(s, "loss", 1)[0] = a.loss_terms;
    const int64_t n = q.step > 1 ? q.classes : grid_depth(q.classes), sum = sum_depth(positions);
    grid_allow(s, "loss", "cross_entropy", n + (none ? 0 : sum));
    grid_allow(s, "dx", "cross_entropy_grad", n + (mean ? sum : 0));
    grid_allow(s, "dtarget", "cross_entropy_grad", n + (mean ? sum : 0));
}

const grid_family grid_cross_entropy = {
    .name = "cross_entropy",
    .least_rank = 2,
    .most_rank = 4,
    .options = { { "reduction", 3, { 0 }, grid_reduction_text },
                 YES_NO("weight"),
                 YES_NO("ignore"),
                 { "smoothing", 2, { 0, 0.1 }, NULL },
                 YES_NO("probabilities") },
    .rtol = 1e-3,
    .grad_rtol = 1e-3,
    .atol = 1e-3,
    .grad_atol = 1e-3,
    .exists = cross_entropy_exists,
    .build = build_cross_entropy,
    .call = call_cross_entropy,
    .answer = answer_cross_entropy,
};
