/* SPDX-License-Identifier: MIT */
/* Families of elements and rows: activations, dropout, linear, softmax, gated linear units. */
#include <math.h>
#include <stdio.h>

#include "grid.h"

static const atto_rng rng = { .seed = 11 };

static atto_activation act_of(const grid_case *c)
{
    return atto_activation_default((atto_activation_kind)grid_int(c, "act"));
}

/* x, dy and their like results, the most common set. */
static void build_pair(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    grid_input(s, "x", c->dtype, c->shape, GRID_NORMAL, 1);
    grid_input(s, "dy", c->dtype, c->shape, GRID_NORMAL, 2);
    grid_output(s, "y", c->dtype, c->shape, GRID_FORWARD, true);
    grid_output(s, "dx", c->dtype, c->shape, GRID_BACKWARD, true);
}

/* The tolerance of an activation, or of its gradient. */
static void allow_act(grid_scene *s, const char *tensor, atto_activation act, bool grad, int64_t n)
{
    char op[40];
    snprintf(op, sizeof op, "%s%s", atto_activation_name(act.kind), grad ? "_grad" : "");
    grid_allow(s, tensor, op, n);
}

/* ---- act ---- */

static atto_status call_act(grid_scene *s, bool backward)
{
    const grid_case *c = grid_case_of(s);
    const struct atto_act_args a = { .x = grid_at(s, "x"),
                                     .y = grid_at(s, "y"),
                                     .dy = grid_at(s, "dy"),
                                     .dx = grid_at(s, "dx"),
                                     .act = act_of(c),
                                     .dropout = (float)grid_get(c, "dropout"),
                                     .rng = rng };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_act_backward(dev, &a) : atto_act_forward(dev, &a);
}

static void answer_act(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const atto_activation act = act_of(c);
    const float p = (float)grid_get(c, "dropout");
    const int64_t n = grid_product(c->shape, 0, c->shape.rank);
    const double *x = grid_held(s, "x"), *dy = grid_held(s, "dy");
    double *y = grid_want(s, "y", n), *y_terms = grid_terms(s, "y", n);
    double *dx = grid_want(s, "dx", n), *dx_terms = grid_terms(s, "dx", n);
    for (int64_t i = 0; i < n; i++) {
        y[i] = oracle_act_forward(act, p, rng, i, x[i]);
        y_terms[i] = oracle_act_terms(act, p, x[i]);
        dx[i] = oracle_act_backward(act, p, rng, i, x[i], dy[i]);
        dx_terms[i] = oracle_act_grad_terms(act, p, x[i], dy[i]);
    }
    allow_act(s, "y", act, false, 1);
    allow_act(s, "dx", act, true, 1);
}

const grid_family grid_act = {
    .name = "act",
    .least_rank = 1,
    .most_rank = 4,
    .options = { { "act", ATTO_ACT_COUNT, { 0 }, grid_act_text },
                 { "dropout", 2, { 0, 0.5 }, NULL } },
    .rtol = 1e-3,
    .grad_rtol = 1e-3,
    .atol = 1e-3,
    .grad_atol = 1e-3,
    .build = build_pair,
    .call = call_act,
    .answer = answer_act,
};

/* ---- dropout ---- */

static atto_status call_dropout(grid_scene *s, bool backward)
{
    const struct atto_dropout_args a = { .x = grid_at(s, "x"),
                                         .y = grid_at(s, "y"),
                                         .dy = grid_at(s, "dy"),
                                         .dx = grid_at(s, "dx"),
                                         .p = (float)grid_get(grid_case_of(s), "p"),
                                         .rng = rng };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_dropout_backward(dev, &a) : atto_dropout_forward(dev, &a);
}

static void answer_dropout(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const float p = (float)grid_get(c, "p");
    const int64_t n = grid_product(c->shape, 0, c->shape.rank);
    const double *in[] = { grid_held(s, "x"), grid_held(s, "dy") };
    const char *const out[] = { "y", "dx" };
    for (int k = 0; k < 2; k++) {
        double *want = grid_want(s, out[k], n);
        for (int64_t i = 0; i < n; i++)
            want[i] = oracle_keep(rng, p, i) ? in[k][i] * oracle_keep_scale(p) : 0.0;
        grid_allow(s, out[k], "dropout", 1);
    }
}

const grid_family grid_dropout = {
    .name = "dropout",
    .least_rank = 1,
    .most_rank = 4,
    .options = { { "p", 7, { 0, 0.15, 0.3, 0.5, 0.75, 0.9, 1 }, NULL } },
    .build = build_pair,
    .call = call_dropout,
    .answer = answer_dropout,
};

/* ---- linear ---- */

static bool is_identity(const grid_case *c)
{
    return grid_int(c, "act") == ATTO_ACT_IDENTITY;
}

static atto_shape linear_y(const grid_case *c)
{
    atto_shape y = c->shape;
    y.dim[y.rank - 1] = grid_int(c, "out");
    return y;
}

static void build_linear(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const int64_t n = grid_int(c, "out"), k = c->shape.dim[c->shape.rank - 1];
    const atto_shape y = linear_y(c), w = atto_shape2(n, k), b = atto_shape1(n);
    grid_input(s, "x", c->dtype, c->shape, GRID_NORMAL, 1);
    grid_input(s, "w", c->dtype, w, GRID_NORMAL, 3);
    if (grid_int(c, "bias")) grid_input(s, "b", c->dtype, b, GRID_NORMAL, 4);
    grid_input(s, "dy", c->dtype, y, GRID_NORMAL, 2);
    if (!is_identity(c)) grid_output(s, "z", c->dtype, y, GRID_FORWARD, true);
    grid_output(s, "y", c->dtype, y, GRID_FORWARD, true);
    grid_output(s, "dx", c->dtype, c->shape, GRID_BACKWARD, true);
    grid_output(s, "dw", c->dtype, w, GRID_BACKWARD, true);
    if (grid_int(c, "bias")) grid_output(s, "db", c->dtype, b, GRID_BACKWARD, true);
}

static atto_status call_linear(grid_scene *s, bool backward)
{
    const struct atto_linear_args a = { .x = grid_at(s, "x"),
                                        .w = grid_at(s, "w"),
                                        .b = grid_at(s, "b"),
                                        .y = grid_at(s, "y"),
                                        .z = grid_at(s, "z"),
                                        .dy = grid_at(s, "dy"),
                                        .dx = grid_at(s, "dx"),
                                        .dw = grid_at(s, "dw"),
                                        .db = grid_at(s, "db"),
                                        .act = act_of(grid_case_of(s)) };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_linear_backward(dev, &a) : atto_linear_forward(dev, &a);
}

/* How far act may be off where its argument is: the larger change at the two ends. */
static double act_change(atto_activation act, double z, double error)
{
    const oracle_act *o = oracle_act_of(act.kind);
    const double f = o->f(z, act.a, act.b);
    return fmax(fabs(o->f(z - error, act.a, act.b) - f), fabs(o->f(z + error, act.a, act.b) - f));
}

/* z from x and w; y from z unrounded: its own roundings, and what z is off by passed through
 * act. */
static void answer_linear_forward(grid_scene *s, const oracle_linear *l)
{
    const int64_t count = l->m * l->n, summed = l->k + (l->b ? 1 : 0);
    double *z = grid_want(s, "z", count), *z_terms = grid_terms(s, "z", count);
    double *y = grid_want(s, "y", count), *y_terms = grid_terms(s, "y", count);
    double *y_extra = grid_extra(s, "y", count);
    for (int64_t i = 0; i < count; i++) {
        const oracle_sum sum = oracle_linear_z(l, i / l->n, i % l->n);
        z[i] = sum.value, z_terms[i] = sum.terms;
        y[i] = oracle_linear_y(l, i / l->n, i % l->n, z[i]);
        y_terms[i] = oracle_act_terms(l->act, 0.0f, z[i]);
        y_extra[i] = act_change(l->act, z[i], (double)summed * oracle_unit(ATTO_F32) * sum.terms);
    }
    grid_allow(s, "z", "linear", summed);
    allow_act(s, "y", l->act, false, 1);
}

/* Sums of n dz, each with the roundings of act'. */
static void put_sums(grid_scene *s, const char *name, const oracle_sum *sums, int64_t numel,
                     int64_t n, int64_t act_roundings)
{
    double *want = grid_want(s, name, numel), *terms = grid_terms(s, name, numel);
    for (int64_t i = 0; i < numel; i++) want[i] = sums[i].value, terms[i] = sums[i].terms;
    grid_allow(s, name, "linear_grad", n + act_roundings);
}

static void answer_linear(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const int32_t last = c->shape.rank - 1;
    const atto_activation act = act_of(c);
    oracle_linear l = { .m = grid_product(c->shape, 0, last),
                        .n = grid_int(c, "out"),
                        .k = c->shape.dim[last],
                        .x = grid_held(s, "x"),
                        .w = grid_held(s, "w"),
                        .b = grid_held(s, "b"),
                        .z = grid_held(s, "z"),
                        .dy = grid_held(s, "dy"),
                        .act = act };
    const int64_t pairs = sizeof(oracle_sum) / sizeof(double),
                  roundings = oracle_act_of(act.kind)->dk;
    oracle_sum *dz = grid_array(s, pairs * l.m * l.n), *dx = grid_array(s, pairs * l.m * l.k);
    oracle_sum *dw = grid_array(s, pairs * l.n * l.k), *db = grid_array(s, pairs * l.n);
    answer_linear_forward(s, &l);
    for (int64_t i = 0; i < l.m * l.n; i++) dz[i] = oracle_linear_dz(&l, i / l.n, i % l.n);
    oracle_linear_dx(&l, dz, dx);
    oracle_linear_dw(&l, dz, dw);
    oracle_linear_db(&l, dz, db);
    put_sums(s, "dx", dx, l.m * l.k, l.n, roundings);
    put_sums(s, "dw", dw, l.n * l.k, l.m, roundings);
    put_sums(s, "db", db, l.n, l.m, roundings);
}

const grid_family grid_linear = {
    .name = "linear",
    .least_rank = 2,
    .most_rank = 3,
    .options = { { "out", 8, { 16, 96, 128, 196, 384, 512, 768, 1024 }, NULL },
                 { "bias", 2, { 0, 1 }, NULL },
                 { "act", ATTO_ACT_COUNT, { 0 }, grid_act_text } },
    .rtol = 1e-3,
    .grad_rtol = 1e-3,
    .atol = 1e-3,
    .grad_atol = 1e-3,
    .build = build_linear,
    .call = call_linear,
    .answer = answer_linear,
};

/* ---- softmax ---- */

static const char *softmax_text(int value)
{
    return atto_softmax_name((atto_softmax_kind)value);
}

static const char *dim_text(int value)
{
    return value == 0 ? "last" : "first";
}

/* Along the last dimension, or the first. */
static int32_t dim_of(const grid_case *c)
{
    return grid_int(c, "dim") == 0 ? -1 : 0;
}

static bool dims_differ(const grid_case *c)
{
    return c->shape.rank > 1 || dim_of(c) == -1;
}

static atto_status call_softmax(grid_scene *s, bool backward)
{
    const grid_case *c = grid_case_of(s);
    const struct atto_softmax_args a = { .x = grid_at(s, "x"),
                                         .y = grid_at(s, "y"),
                                         .dy = grid_at(s, "dy"),
                                         .dx = grid_at(s, "dx"),
                                         .kind = (atto_softmax_kind)grid_int(c, "kind"),
                                         .dim = dim_of(c) };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_softmax_backward(dev, &a) : atto_softmax_forward(dev, &a);
}

static void answer_softmax(grid_scene *s)
{
    static const char *const grads[] = { "softmax_grad", "log_softmax_grad", "softmin_grad" };
    const grid_case *c = grid_case_of(s);
    const int32_t rank = c->shape.rank;
    const bool last = dim_of(c) == -1;
    const int64_t n = grid_product(c->shape, 0, rank);
    const oracle_softmax o = { .outer = last ? grid_product(c->shape, 0, rank - 1) : 1,
                               .size = c->shape.dim[last ? rank - 1 : 0],
                               .step = last ? 1 : grid_product(c->shape, 1, rank),
                               .kind = (atto_softmax_kind)grid_int(c, "kind"),
                               .x = grid_held(s, "x"),
                               .y = grid_held(s, "y"),
                               .dy = grid_held(s, "dy") };
    const int64_t depth = last ? grid_depth(o.size) : o.size;
    oracle_softmax_forward(&o, grid_want(s, "y", n), grid_terms(s, "y", n));
    oracle_softmax_backward(&o, grid_want(s, "dx", n), grid_terms(s, "dx", n));
    grid_allow(s, "y", softmax_text(grid_int(c, "kind")), depth);
    grid_allow(s, "dx", grads[o.kind], depth);
}

const grid_family grid_softmax = {
    .name = "softmax",
    .least_rank = 1,
    .most_rank = 4,
    .options = { { "kind", ATTO_SOFTMAX_COUNT, { 0 }, softmax_text },
                 { "dim", 2, { 0 }, dim_text } },
    .exists = dims_differ,
    .build = build_pair,
    .call = call_softmax,
    .answer = answer_softmax,
};

/* ---- gated linear units ---- */

static bool halves_exist(const grid_case *c)
{
    const bool last = dim_of(c) == -1;
    return dims_differ(c) && c->shape.dim[last ? c->shape.rank - 1 : 0] % 2 == 0;
}

static void build_glu(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    atto_shape half = c->shape;
    half.dim[dim_of(c) == -1 ? half.rank - 1 : 0] /= 2;
    grid_input(s, "x", c->dtype, c->shape, GRID_NORMAL, 1);
    grid_input(s, "dy", c->dtype, half, GRID_NORMAL, 2);
    grid_output(s, "y", c->dtype, half, GRID_FORWARD, true);
    grid_output(s, "dx", c->dtype, c->shape, GRID_BACKWARD, true);
}

static atto_status call_glu(grid_scene *s, bool backward)
{
    const grid_case *c = grid_case_of(s);
    const struct atto_glu_args a = { .x = grid_at(s, "x"),
                                     .y = grid_at(s, "y"),
                                     .dy = grid_at(s, "dy"),
                                     .dx = grid_at(s, "dx"),
                                     .act = act_of(c),
                                     .dim = dim_of(c) };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_glu_backward(dev, &a) : atto_glu_forward(dev, &a);
}

/* The gate's half of dx has the roundings of act', the other those of act: the larger ones for
 * both. */
static void answer_glu(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const int64_t n = grid_product(c->shape, 0, c->shape.rank);
    const bool last = dim_of(c) == -1;
    const int64_t outer = last ? grid_product(c->shape, 0, c->shape.rank - 1) : 1;
    const atto_activation act = act_of(c);
    const oracle_act *o = oracle_act_of(act.kind);
    const oracle_glu g = { .outer = outer,
                           .width = n / outer / 2,
                           .act = act,
                           .x = grid_held(s, "x"),
                           .dy = grid_held(s, "dy") };
    oracle_glu_forward(&g, grid_want(s, "y", n / 2), grid_terms(s, "y", n / 2));
    oracle_glu_backward(&g, grid_want(s, "dx", n), grid_terms(s, "dx", n));
    allow_act(s, "y", act, false, 2);
    allow_act(s, "dx", act, o->dk >= o->k, 2);
}

const grid_family grid_glu = {
    .name = "glu",
    .least_rank = 1,
    .most_rank = 3,
    .options = { { "act", ATTO_ACT_COUNT, { 0 }, grid_act_text }, { "dim", 2, { 0 }, dim_text } },
    .rtol = 1e-3,
    .grad_rtol = 1e-3,
    .atol = 1e-3,
    .grad_atol = 1e-3,
    .exists = halves_exist,
    .build = build_glu,
    .call = call_glu,
    .answer = answer_glu,
};
