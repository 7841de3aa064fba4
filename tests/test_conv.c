/* SPDX-License-Identifier: MIT */
/* Convolution, forward and backward: the double oracle decides, on every backend. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"
#include "oracle_conv.h"

/* ---- one case ---- */

typedef struct axis {
    int64_t in, kernel, stride, before, after, dilation;
    int64_t more; /* outputs of a transposed convolution beyond the least */
} axis;

enum { DX = 1, DW = 2, DB = 4, ALL = DX | DW | DB };

typedef struct conv_case {
    int64_t batch; /* -1: no batch dimension */
    int64_t channels, outputs, groups;
    axis h, w; /* h.in 0: one dimension */
    bool transposed;
    atto_dtype dtype;  /* 0 = f32 */
    atto_dtype out;    /* of y, z, residual and dy; 0 = dtype */
    atto_dtype params; /* of b, dw and db; 0 = dtype */
    atto_activation act;
    bool bias, residual, add;
    int wanted;                         /* gradients; 0 = ALL */
    test_layout layout, weight, result; /* of x and dy; w and dw; y, z and dx */
    bool not_finite;
    uint64_t seed;
} conv_case;

static atto_dtype dtype_of(const conv_case *c)
{
    return c->dtype ? c->dtype : ATTO_F32;
}

static int32_t dims_of(const conv_case *c)
{
    return c->h.in > 0 ? 2 : 1;
}

static int64_t outputs_along(const conv_case *c, const axis *a)
{
    const int64_t reach = a->dilation * (a->kernel - 1) + 1;
    if (c->transposed) return (a->in - 1) * a->stride - a->before - a->after + reach + a->more;
    return (a->in + a->before + a->after - reach) / a->stride + 1;
}

static atto_shape image_shape(const conv_case *c, int64_t channels, int64_t h, int64_t w)
{
    const int64_t sizes[] = { c->batch, channels, h, w };
    atto_shape shape = { .rank = 0 };
    for (int i = c->batch < 0 ? 1 : 0; i < 4; i++)
        if (i != 2 || c->h.in > 0) shape.dim[shape.rank++] = sizes[i];
    return shape;
}

static atto_shape filter_shape(const conv_case *c)
{
    const int64_t first = c->transposed ? c->channels : c->outputs;
    const int64_t second = (c->transposed ? c->outputs : c->channels) / c->groups;
    return c->h.in > 0 ? atto_shape4(first, second, c->h.kernel, c->w.kernel)
                       : atto_shape3(first, second, c->w.kernel);
}

/* A tensor of the case, and what it holds as double. */
typedef struct operand {
    test_tensor t;
    double *values;
} operand;

enum { X, W, B, RESIDUAL, Y, Z, DY, GX, GW, GB, OPERANDS };

typedef struct scene {
    const conv_case *c;
    operand of[OPERANDS];
    struct atto_conv_args a;
    oracle_conv o;
} scene;

/* Uniform on [-range, range], as the tensor can hold it; range 0: an output, NaN. */
static void make(scene *s, int which, atto_dtype dtype, atto_shape shape, test_layout layout,
                 double range)
{
    operand *o = &s->of[which];
    test_tensor_make(&o->t, test_dev, dtype, shape, layout);
    o->values = test_doubles(o->t.numel);
    if (range == 0.0) return;
    test_uniform(16 * s->c->seed + (uint64_t)which, -range, range, dtype, o->values, o->t.numel);
    test_tensor_put(&o->t, o->values);
    test_tensor_held(&o->t, o->values);
}

static void plant(scene *s, int which, int64_t index, double value)
{
    operand *o = &s->of[which];
    if (index >= o->t.numel) return;
    o->values[index] = value;
    test_tensor_put(&o->t, o->values);
    test_tensor_held(&o->t, o->values);
}

static oracle_conv_axis oracle_axis(const conv_case *c, const axis *a)
{
    if (a->in == 0) return (oracle_conv_axis){ 1, 1, 1, 1, 1, 0 };
    return (oracle_conv_axis){ a->in,     outputs_along(c, a), a->kernel,
                               a->stride, a->dilation,         a->before };
}

static atto_conv_window window_of(const conv_case *c)
{
    atto_conv_window v = { .dims = dims_of(c), .transposed = c->transposed, .groups = c->groups };
    const axis *axes[2] = { c->h.in > 0 ? &c->h : &c->w, &c->w };
    for (int i = 0; i < v.dims; i++) {
        v.stride[i] = axes[i]->stride;
        v.padding[i] = axes[i]->before;
        v.padding_after[i] = axes[i]->after;
        v.dilation[i] = axes[i]->dilation;
    }
    return v;
}

#define VIEW(s, which) (&(s)->of[which].t.view)

static void describe(scene *s)
{
    const conv_case *c = s->c;
    s->a = (struct atto_conv_args){ .x = VIEW(s, X),
                                    .w = VIEW(s, W),
                                    .b = c->bias ? VIEW(s, B) : NULL,
                                    .residual = c->residual ? VIEW(s, RESIDUAL) : NULL,
                                    .y = VIEW(s, Y),
                                    .z = VIEW(s, Z),
                                    .dy = VIEW(s, DY),
                                    .dx = VIEW(s, GX),
                                    .dw = VIEW(s, GW),
                                    .db = VIEW(s, GB),
                                    .add_dx = c->add,
                                    .add_dw = c->add,
                                    .add_db = c->add,
                                    .act = c->act,
                                    .window = window_of(c) };
    s->o = (oracle_conv){ .transposed = c->transposed,
                          .batch = c->batch < 0 ? 1 : c->batch,
                          .channels = c->channels,
                          .outputs = c->outputs,
                          .groups = c->groups,
                          .axis = { oracle_axis(c, &c->h), oracle_axis(c, &c->w) },
                          .x = s->of[X].values,
                          .w = s->of[W].values,
                          .b = c->bias ? s->of[B].values : NULL,
                          .dy = s->of[DY].values };
}

/* One call: forward makes y and z, backward the gradients; the others are data, or not there. */
static void build(scene *s, const conv_case *c, bool backward)
{
    const atto_dtype dtype = dtype_of(c), out = c->out ? c->out : dtype;
    const atto_dtype params = c->params ? c->params : dtype;
    const double old = c->add ? 1.0 : 0.0;
    memset(s, 0, sizeof *s);
    s->c = c;
    const atto_shape x = image_shape(c, c->channels, c->h.in, c->w.in);
    const atto_shape y = image_shape(c, c->outputs, c->h.in > 0 ? outputs_along(c, &c->h) : 0,
                                     outputs_along(c, &c->w));
    make(s, X, dtype, x, c->layout, 1.0);
    make(s, W, dtype, filter_shape(c), c->weight, 1.0);
    make(s, Z, out, y, c->result, backward ? 3.0 : 0.0);
    if (backward) {
        make(s, DY, out, y, c->layout, 1.0);
        make(s, GX, dtype, x, c->result, old);
        make(s, GW, params, filter_shape(c), c->weight, old);
        make(s, GB, params, atto_shape1(c->outputs), LAYOUT_DENSE, old);
    } else {
        make(s, B, params, atto_shape1(c->outputs), LAYOUT_DENSE, 2.0);
        make(s, RESIDUAL, out, y, c->layout, 1.0);
        make(s, Y, out, y, c->result, 0.0);
    }
    if (c->not_finite) {
        plant(s, X, 1, NAN);
        plant(s, X, 40, INFINITY);
        if (backward) plant(s, DY, 3, INFINITY);
    }
    describe(s);
}

static void tear_down(scene *s)
{
    for (int i = 0; i < OPERANDS; i++) {
        test_tensor_drop(&s->of[i].t);
        free(s->of[i].values);
    }
}

/* ---- judgement ---- */

static void compare(const scene *s, const char *op, int which, const double *want,
                    const double *allowed)
{
    const conv_case *c = s->c;
    const test_tensor *t = &s->of[which].t;
    char text[160];
    snprintf(
        text, sizeof text,
        "%s, w %s, result %s; %s%s, %d to %d channels, %d groups, h %d k %d s %d p %d %d d %d, "
        "w %d k %d s %d p %d %d d %d",
        test_layout_name(c->layout), test_layout_name(c->weight), test_layout_name(c->result),
        c->transposed ? "transposed, " : "", atto_activation_name(c->act.kind), (int)c->channels,
        (int)c->outputs, (int)c->groups, (int)c->h.in, (int)c->h.kernel, (int)c->h.stride,
        (int)c->h.before, (int)c->h.after, (int)c->h.dilation, (int)c->w.in, (int)c->w.kernel,
        (int)c->w.stride, (int)c->w.before, (int)c->w.after, (int)c->w.dilation);
    const test_about about = { op, text, t->view.dtype, atto_shape_of(t->view.rank, t->view.shape),
                               c->seed };
    double *got = test_doubles(t->numel);
    test_tensor_get(t, got);
    expect_close(&about, got, want, allowed, t->numel);
    free(got);
}

static oracle_sum *sums_of(int64_t n)
{
    oracle_sum *sums = calloc(n ? (size_t)n : 1, sizeof *sums);
    assert_non_null(sums);
    return sums;
}

/* How far act may be off when its argument is off by error: the larger change at the two ends. */
static double act_change(atto_activation act, double z, double error)
{
    const oracle_act *o = oracle_act_of(act.kind);
    if (error == 0.0 || !isfinite(z)) return 0.0;
    const double f = o->f(z, act.a, act.b);
    return fmax(fabs(o->f(z - error, act.a, act.b) - f), fabs(o->f(z + error, act.a, act.b) - f));
}

/* Terms of an element of y, at most. */
static int64_t terms_of_y(const scene *s)
{
    const oracle_conv *o = &s->o;
    return o->channels / o->groups * o->axis[0].kernel * o->axis[1].kernel + (o->b ? 1 : 0);
}

static void expect_forward(const scene *s)
{
    const conv_case *c = s->c;
    const operand *ty = &s->of[Y];
    const int64_t count = ty->t.numel, n = terms_of_y(s);
    const atto_dtype out = ty->t.view.dtype;
    const oracle_act *act = oracle_act_of(c->act.kind);
    oracle_sum *sums = sums_of(count);
    double *y = test_doubles(count), *y_off = test_doubles(count);
    double *z = test_doubles(count), *z_off = test_doubles(count);
    oracle_convolve(&s->o, &(oracle_conv_answer){ .y = sums });
    for (int64_t i = 0; i < count; i++) {
        z[i] = sums[i].value;
        z_off[i] = n ? atto_tol("conv", out, n, sums[i].terms) : 0.0;
        y[i] = act->f(z[i], c->act.a, c->act.b);
        const double terms = oracle_act_terms(c->act, 0.0, z[i]);
        y_off[i] = act_change(c->act, z[i], z_off[i]) +
                   atto_tol(atto_activation_name(c->act.kind), out, 1, terms);
        if (!s->a.residual) continue;
        y[i] += s->of[RESIDUAL].values[i];
        y_off[i] += atto_tol("conv", out, 1, terms + fabs(s->of[RESIDUAL].values[i]));
    }
    compare(s, "conv y", Y, y, y_off);
    if (s->a.z) compare(s, "conv z", Z, z, z_off);
    free(sums), free(y), free(y_off), free(z), free(z_off);
}

static void check_forward(const conv_case *c)
{
    scene s;
    build(&s, c, false);
    MUST(atto_conv_forward(test_dev, &s.a));
    expect_forward(&s);
    assert_true(test_tensor_untouched(&s.of[X].t) && test_tensor_untouched(&s.of[W].t));
    tear_down(&s);
}

/* A gradient: n products of dz that are summed; spread: what each dz may be off by, in u, with what
 * it meets. */
static void expect_gradient(const scene *s, const char *op, int which, const oracle_sum *sums,
                            const oracle_sum *spread, int64_t n)
{
    const operand *o = &s->of[which];
    const bool derives = s->c->act.kind != ATTO_ACT_IDENTITY;
    double *want = test_doubles(o->t.numel), *allowed = test_doubles(o->t.numel);
    char grad[40];
    snprintf(grad, sizeof grad, "%s_grad", atto_activation_name(s->c->act.kind));
    for (int64_t i = 0; i < o->t.numel; i++) {
        const double old = s->c->add ? o->values[i] : 0.0;
        want[i] = sums[i].value + old;
        if (n == 0) continue; /* 0, or the old value, exactly */
        allowed[i] = atto_tol("conv_grad", o->t.view.dtype, n + (s->c->add ? 1 : 0),
                              sums[i].terms + fabs(old));
        if (derives) allowed[i] += atto_tol(grad, o->t.view.dtype, 1, spread[i].terms);
    }
    compare(s, op, which, want, allowed);
    free(want), free(allowed);
}

static void expect_backward(scene *s)
{
    const oracle_conv *o = &s->o;
    const int64_t n_y = s->of[DY].t.numel;
    const oracle_linear flat = {
        .m = 1, .n = n_y, .z = s->of[Z].values, .dy = s->of[DY].values, .act = s->c->act
    };
    double *dz = test_doubles(n_y), *sizes = test_doubles(n_y);
    for (int64_t i = 0; i < n_y; i++) {
        const oracle_sum one = oracle_linear_dz(&flat, 0, i);
        dz[i] = one.value, sizes[i] = one.terms;
    }
    const int64_t counts[] = { s->of[GX].t.numel, s->of[GW].t.numel, s->of[GB].t.numel };
    oracle_sum *sums[3], *spread[3];
    for (int i = 0; i < 3; i++) sums[i] = sums_of(counts[i]), spread[i] = sums_of(counts[i]);
    oracle_conv with = *o;
    with.dy = dz;
    oracle_convolve(&with, &(oracle_conv_answer){ NULL, sums[0], sums[1], sums[2] });
    with.dy = sizes;
    oracle_convolve(&with, &(oracle_conv_answer){ NULL, spread[0], spread[1], spread[2] });
    const int64_t taps = o->axis[0].kernel * o->axis[1].kernel;
    const int64_t spots = o->batch * o->axis[0].out * o->axis[1].out;
    const int64_t inputs = o->batch * o->axis[0].in * o->axis[1].in;
    if (s->a.dx)
        expect_gradient(s, "conv dx", GX, sums[0], spread[0], o->outputs / o->groups * taps);
    if (s->a.dw)
        expect_gradient(s, "conv dw", GW, sums[1], spread[1], o->transposed ? inputs : spots);
    if (s->a.db) expect_gradient(s, "conv db", GB, sums[2], spread[2], spots);
    for (int i = 0; i < 3; i++) free(sums[i]), free(spread[i]);
    free(dz), free(sizes);
}

/* Leaves out the gradients that are not wanted, and what only they need. */
static void thin_out(scene *s)
{
    const int wanted = s->c->wanted ? s->c->wanted : ALL;
    if (!(wanted & DX)) s->a.dx = s->a.w = NULL;
    if (!(wanted & DW)) s->a.dw = s->a.x = NULL;
    if (!(wanted & DB)) s->a.db = NULL;
    if (s->c->act.kind == ATTO_ACT_IDENTITY) s->a.z = NULL;
}

static void check_backward(const conv_case *c)
{
    scene s;
    build(&s, c, true);
    thin_out(&s);
    MUST(atto_conv_backward(test_dev, &s.a));
    expect_backward(&s);
    const bool untouched[] = { s.a.dx != NULL, s.a.dw != NULL, s.a.db != NULL };
    for (int i = 0; i < 3; i++)
        if (!untouched[i]) assert_true(test_tensor_untouched(&s.of[GX + i].t));
    tear_down(&s);
}

static void check(const conv_case *c)
{
    check_forward(c);
    check_backward(c);
}

/* ---- tests ---- */

#define ONE                 \
    {                       \
        1, 1, 1, 0, 0, 1, 0 \
    }
#define FLAT                \
    {                       \
        0, 1, 1, 0, 0, 1, 0 \
    }

static const conv_case shapes[] = {
    /* one tap, one element, primes */
    { .batch = 1, .channels = 1, .outputs = 1, .groups = 1, .h = ONE, .w = ONE },
    { .batch = 2,
      .channels = 5,
      .outputs = 7,
      .groups = 1,
      .h = FLAT,
      .w = { 11, 1, 1, 0, 0, 1, 0 } },
    { .batch = 3,
      .channels = 2,
      .outputs = 3,
      .groups = 1,
      .h = FLAT,
      .w = { 13, 3, 1, 1, 1, 1, 0 } },
    { .batch = 2,
      .channels = 3,
      .outputs = 4,
      .groups = 1,
      .h = { 7, 3, 1, 1, 1, 1, 0 },
      .w = { 9, 3, 1, 1, 1, 1, 0 } },
    /* strides, dilations, even kernels, unequal axes and paddings */
    { .batch = 2,
      .channels = 3,
      .outputs = 5,
      .groups = 1,
      .h = { 9, 3, 2, 1, 1, 1, 0 },
      .w = { 8, 3, 2, 1, 1, 1, 0 } },
    { .batch = 1,
      .channels = 4,
      .outputs = 6,
      .groups = 1,
      .h = { 12, 2, 3, 0, 1, 2, 1 },
      .w = { 10, 5, 1, 2, 2, 1, 0 } },
    { .batch = 2,
      .channels = 2,
      .outputs = 2,
      .groups = 1,
      .h = { 17, 3, 2, 3, 2, 2, 1 },
      .w = { 19, 4, 3, 1, 0, 4, 2 } },
    { .batch = 1,
      .channels = 2,
      .outputs = 3,
      .groups = 1,
      .h = { 6, 1, 2, 0, 0, 1, 1 },
      .w = { 6, 1, 3, 0, 0, 1, 2 } },
    { .batch = 1,
      .channels = 3,
      .outputs = 2,
      .groups = 1,
      .h = FLAT,
      .w = { 40, 16, 8, 0, 0, 1, 0 } },
    { .batch = 2,
      .channels = 1,
      .outputs = 2,
      .groups = 1,
      .h = FLAT,
      .w = { 5, 9, 1, 4, 4, 1, 0 } },
    /* groups, one channel each, several outputs for each */
    { .batch = 2,
      .channels = 4,
      .outputs = 6,
      .groups = 2,
      .h = { 6, 3, 1, 1, 1, 1, 0 },
      .w = { 5, 3, 1, 1, 1, 1, 0 } },
    { .batch = 2,
      .channels = 6,
      .outputs = 6,
      .groups = 6,
      .h = { 8, 3, 1, 1, 1, 1, 0 },
      .w = { 21, 3, 1, 1, 1, 1, 0 } },
    { .batch = 1,
      .channels = 5,
      .outputs = 5,
      .groups = 5,
      .h = { 11, 5, 2, 2, 2, 1, 1 },
      .w = { 37, 5, 2, 2, 2, 1, 0 } },
    { .batch = 2,
      .channels = 3,
      .outputs = 6,
      .groups = 3,
      .h = { 9, 3, 2, 0, 1, 2, 0 },
      .w = { 40, 3, 1, 2, 2, 2, 0 } },
    { .batch = 2,
      .channels = 20,
      .outputs = 20,
      .groups = 20,
      .h = FLAT,
      .w = { 65, 7, 1, 3, 3, 1, 0 } },
    /* one channel each: several blocks of rows, strides, a long filter, dilations */
    { .batch = 2,
      .channels = 6,
      .outputs = 6,
      .groups = 6,
      .h = { 37, 7, 1, 3, 3, 1, 0 },
      .w = { 19, 7, 1, 3, 3, 1, 0 } },
    { .batch = 1,
      .channels = 5,
      .outputs = 5,
      .groups = 5,
      .h = { 23, 3, 2, 1, 0, 1, 1 },
      .w = { 17, 3, 2, 0, 1, 1, 0 } },
    { .batch = 2,
      .channels = 8,
      .outputs = 8,
      .groups = 8,
      .h = { 20, 9, 1, 4, 4, 1, 0 },
      .w = { 12, 3, 1, 2, 2, 2, 0 } },
    { .batch = 1,
      .channels = 4,
      .outputs = 4,
      .groups = 4,
      .h = { 14, 3, 3, 1, 1, 2, 1 },
      .w = { 13, 2, 1, 0, 1, 1, 0 } },
    { .batch = 1,
      .channels = 36,
      .outputs = 36,
      .groups = 36,
      .h = { 9, 3, 1, 1, 1, 1, 0 },
      .w = { 5, 3, 1, 1, 1, 1, 0 } },
    /* whole vectors and panels, and more than one block of k */
    { .batch = 2,
      .channels = 16,
      .outputs = 32,
      .groups = 1,
      .h = { 16, 3, 1, 1, 1, 1, 0 },
      .w = { 16, 3, 1, 1, 1, 1, 0 } },
    { .batch = 1,
      .channels = 70,
      .outputs = 18,
      .groups = 1,
      .h = { 7, 3, 1, 1, 1, 1, 0 },
      .w = { 7, 3, 1, 1, 1, 1, 0 } },
    { .batch = 5,
      .channels = 33,
      .outputs = 150,
      .groups = 1,
      .h = { 5, 1, 1, 0, 0, 1, 0 },
      .w = { 7, 1, 1, 0, 0, 1, 0 } },
    { .batch = 1,
      .channels = 3,
      .outputs = 16,
      .groups = 1,
      .h = { 20, 7, 2, 3, 3, 1, 1 },
      .w = { 20, 7, 2, 3, 3, 1, 1 } },
    { .batch = -1,
      .channels = 3,
      .outputs = 4,
      .groups = 1,
      .h = { 5, 3, 1, 1, 1, 1, 0 },
      .w = { 6, 3, 1, 1, 1, 1, 0 } },
    { .batch = -1,
      .channels = 3,
      .outputs = 4,
      .groups = 1,
      .h = FLAT,
      .w = { 6, 3, 2, 1, 1, 1, 1 } },
    /* a group for each channel: vectors of them and a rest; small planes; rows that are cut;
     * several tiles below each other; taps and steps of no loop of its own */
    { .batch = 2,
      .channels = 37,
      .outputs = 37,
      .groups = 37,
      .h = { 7, 7, 1, 3, 3, 1, 0 },
      .w = { 7, 7, 1, 3, 3, 1, 0 } },
    { .batch = 1,
      .channels = 17,
      .outputs = 17,
      .groups = 17,
      .h = { 29, 3, 2, 1, 1, 1, 0 },
      .w = { 30, 3, 2, 1, 1, 1, 1 } },
    { .batch = 1,
      .channels = 32,
      .outputs = 32,
      .groups = 32,
      .h = { 15, 3, 2, 1, 1, 1, 0 },
      .w = { 18, 3, 2, 1, 1, 1, 1 } },
    { .batch = 2,
      .channels = 16,
      .outputs = 16,
      .groups = 16,
      .h = { 12, 3, 1, 1, 1, 1, 0 },
      .w = { 11, 3, 1, 1, 1, 1, 0 } },
    { .batch = 1,
      .channels = 3,
      .outputs = 3,
      .groups = 3,
      .h = { 40, 3, 1, 1, 1, 1, 0 },
      .w = { 290, 5, 1, 2, 2, 1, 0 } },
    { .batch = 1,
      .channels = 18,
      .outputs = 18,
      .groups = 18,
      .h = { 17, 5, 3, 4, 2, 2, 1 },
      .w = { 25, 9, 1, 4, 4, 1, 0 } },
    /* groups of one channel on one side and eight on the other: a panel after the other, many taps */
    { .batch = 1,
      .channels = 32,
      .outputs = 4,
      .groups = 4,
      .h = { 11, 5, 1, 2, 2, 1, 0 },
      .w = { 9, 5, 1, 2, 2, 1, 0 } },
    /* phases that begin at other inputs; many images in a vector; a long sum for dw */
    { .batch = 2,
      .channels = 4,
      .outputs = 9,
      .groups = 1,
      .h = { 5, 2, 2, 3, 3, 1, 0 },
      .w = { 6, 2, 1, 3, 3, 1, 0 } },
    { .batch = 40,
      .channels = 2,
      .outputs = 5,
      .groups = 1,
      .h = { 3, 3, 1, 1, 1, 1, 0 },
      .w = { 2, 3, 1, 1, 1, 1, 0 } },
    { .batch = 2,
      .channels = 1,
      .outputs = 3,
      .groups = 1,
      .h = { 79, 3, 1, 1, 1, 1, 0 },
      .w = { 83, 3, 1, 1, 1, 1, 0 } },
    /* every second and every fourth column, without padding */
    { .batch = 2,
      .channels = 3,
      .outputs = 9,
      .groups = 1,
      .h = { 12, 2, 2, 0, 0, 1, 0 },
      .w = { 150, 2, 2, 0, 0, 1, 0 } },
    { .batch = 1,
      .channels = 2,
      .outputs = 10,
      .groups = 1,
      .h = { 9, 4, 4, 0, 0, 1, 1 },
      .w = { 270, 4, 4, 0, 0, 1, 2 } },
    /* groups of some channels: long rows, strides, small images */
    { .batch = 1,
      .channels = 4,
      .outputs = 6,
      .groups = 2,
      .h = FLAT,
      .w = { 2100, 3, 1, 1, 1, 1, 0 } },
    { .batch = 2,
      .channels = 40,
      .outputs = 24,
      .groups = 4,
      .h = { 9, 3, 2, 1, 1, 1, 0 },
      .w = { 34, 3, 2, 1, 1, 1, 1 } },
    { .batch = 3,
      .channels = 32,
      .outputs = 32,
      .groups = 2,
      .h = { 5, 3, 1, 1, 1, 1, 0 },
      .w = { 7, 3, 1, 1, 1, 1, 0 } },
};

/* Every third; in 16 bits, whose kernels take longest to build, every ninth. */
static bool is_in_part(const conv_case *c, int shape)
{
    return dtype_of(c) == ATTO_F32 ? shape % 3 == 0 : shape % 9 == 3;
}

static void each_shape(conv_case with)
{
    for (int i = 0; i < COUNT_OF(shapes); i++) {
        conv_case c = shapes[i];
        c.seed = (uint64_t)i + 1;
        c.transposed = with.transposed;
        c.dtype = with.dtype, c.out = with.out, c.params = with.params;
        c.act = with.act;
        c.bias = with.bias, c.residual = with.residual, c.add = with.add;
        c.layout = with.layout, c.weight = with.weight, c.result = with.result;
        if (test_in_disguise() && !is_in_part(&c, i)) continue;
        check(&c);
    }
}

static void conv_has_every_shape(void **state)
{
    (void)state;
    each_shape((conv_case){ .bias = true });
    each_shape((conv_case){ .layout = LAYOUT_CHANNELS_LAST,
                            .weight = LAYOUT_CHANNELS_LAST,
                            .result = LAYOUT_CHANNELS_LAST });
}

static void conv_transposed_has_every_shape(void **state)
{
    (void)state;
    each_shape((conv_case){ .transposed = true, .bias = true, .add = true });
    each_shape((conv_case){ .transposed = true,
                            .layout = LAYOUT_CHANNELS_LAST,
                            .weight = LAYOUT_CHANNELS_LAST,
                            .result = LAYOUT_CHANNELS_LAST });
}

static void conv_fuses_activation_and_residual(void **state)
{
    (void)state;
    each_shape((conv_case){ .act = atto_relu(), .bias = true, .residual = true, .add = true });
    each_shape((conv_case){ .act = atto_silu(),
                            .residual = true,
                            .layout = LAYOUT_CHANNELS_LAST,
                            .result = LAYOUT_CHANNELS_LAST });
    each_shape((conv_case){ .transposed = true, .act = atto_gelu(), .bias = true });
}

static void conv_takes_16_bits(void **state)
{
    (void)state;
    static const atto_dtype dtypes[] = { ATTO_F16, ATTO_BF16 };
    for (int i = 0; i < 2; i++) {
        each_shape((conv_case){ .dtype = dtypes[i], .bias = true, .act = atto_relu() });
        each_shape((conv_case){ .dtype = dtypes[i],
                                .out = ATTO_F32,
                                .params = ATTO_F32,
                                .bias = true,
                                .add = true,
                                .layout = LAYOUT_CHANNELS_LAST,
                                .weight = LAYOUT_CHANNELS_LAST,
                                .result = LAYOUT_CHANNELS_LAST });
        each_shape((conv_case){ .dtype = dtypes[i], .transposed = true });
    }
}

static void conv_takes_every_layout(void **state)
{
    (void)state;
    for (test_layout layout = 0; layout < LAYOUT_COUNT; layout++)
        for (test_layout other = 0; other < LAYOUT_COUNT; other += 1 + (int)layout % 3) {
            const bool repeats = layout == LAYOUT_BROADCAST || other == LAYOUT_BROADCAST;
            conv_case c = shapes[layout == LAYOUT_BROADCAST ? 3 : 4];
            c.layout = layout;
            c.weight = other == LAYOUT_BROADCAST ? LAYOUT_DENSE : other;
            c.result = repeats ? LAYOUT_PITCHED : other;
            c.seed = (uint64_t)layout * 16 + other;
            c.add = other % 2;
            check(&c);
            c.transposed = true;
            check(&c);
        }
}

static void conv_makes_the_gradients_that_are_wanted(void **state)
{
    (void)state;
    for (int wanted = 1; wanted <= ALL; wanted++)
        for (int i = 0; i < 4; i++) {
            conv_case c = shapes[i % 2 ? 4 : 11];
            c.transposed = i >= 2;
            c.wanted = wanted;
            c.act = i % 2 ? atto_relu() : atto_identity();
            c.seed = (uint64_t)wanted;
            check_backward(&c);
        }
}

static void conv_of_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        conv_case c = shapes[3];
        c.transposed = i & 1;
        c.bias = c.add = i & 2;
        if (i & 4) {
            c.layout = c.weight = c.result = LAYOUT_CHANNELS_LAST;
        }
        c.batch = 0;
        check(&c);
        c.batch = 2;
        c.channels = 0;
        check(&c);
        c.channels = 3;
        c.outputs = 0;
        check(&c);
    }
}

/* What is not finite reaches the elements that it belongs to and no others. Without padding, whose
 * zeros may be multiplied or not. */
static void conv_keeps_what_is_not_finite_where_it_belongs(void **state)
{
    (void)state;
    static const int list[] = { 3, 4, 5, 10, 11, 12, 15, 16, 17, 18, 20 };
    for (int i = 0; i < 4 * COUNT_OF(list); i++) {
        conv_case c = shapes[list[i / 4]];
        c.not_finite = true;
        c.h.before = c.h.after = c.w.before = c.w.after = 0;
        c.transposed = i & 1;
        if (i & 2) c.layout = c.weight = c.result = LAYOUT_CHANNELS_LAST;
        check(&c);
    }
}

/* An infinite tap of the first channel, and no other: with a stride it meets some elements of dx only, and
 * of what a transposed convolution makes. */
static void conv_keeps_an_infinite_tap_where_it_meets(void **state)
{
    (void)state;
    static const int32_t kernels[] = { 3, 9, 3 }, dilations[] = { 1, 1, 2 };
    for (int i = 0; i < 4 * 2 * COUNT_OF(kernels); i++) {
        const int64_t k = kernels[i / 8], d = dilations[i / 8], groups = i & 4 ? 1 : 3;
        const bool transposed = i & 1;
        const axis small = { 6, k, 2, 2, 2, d, 0 },
                   big = { 10 + d * (k - 1) - 3, k, 2, 2, 2, d, 0 };
        conv_case c = { .batch = 1, .channels = 3, .outputs = 3, .groups = groups, .seed = 1 };
        c.h = c.w = transposed ? small : big;
        c.transposed = transposed;
        if (i & 2) c.layout = c.result = LAYOUT_CHANNELS_LAST;
        scene s;
        build(&s, &c, !transposed);
        plant(&s, W, 0, INFINITY);
        s.a.dw = s.a.db = NULL;
        if (transposed)
            MUST(atto_conv_forward(test_dev, &s.a));
        else
            MUST(atto_conv_backward(test_dev, &s.a));
        const operand *made = &s.of[transposed ? Y : GX];
        const int64_t size = transposed ? outputs_along(&c, &c.h) : c.h.in;
        double *got = test_doubles(made->t.numel);
        test_tensor_get(&made->t, got);
        for (int64_t at = 0; at < made->t.numel; at++) {
            const bool meets =
                at < size * size && (at / size + 2) % 2 == 0 && (at % size + 2) % 2 == 0;
            if (!meets && !isfinite(got[at]))
                fail_msg("%s: kernel %d, dilation %d, %d groups: element %d is %g", test_backend(),
                         (int)k, (int)d, (int)groups, (int)at, got[at]);
        }
        free(got);
        tear_down(&s);
    }
}

/* What lies beyond a single output is not needed, however far a stride would go. */
static void conv_of_one_output_takes_any_stride(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        const axis far = { 4, 3, INT32_MAX, 1, 0, 1, 0 }, near = { 5, 3, 1, 1, 1, 1, 0 };
        conv_case c = { .batch = 2, .channels = 3, .outputs = 3, .bias = true, .seed = 1 };
        c.groups = i & 1 ? 3 : 1;
        c.h = i & 2 ? far : near;
        c.w = i & 2 ? near : far;
        if (i & 4) c.layout = c.weight = c.result = LAYOUT_CHANNELS_LAST;
        check(&c);
        c.transposed = true;
        c.h.in = i & 2 ? 1 : 5;
        c.w.in = i & 2 ? 5 : 1;
        c.h.more = c.w.more = 0;
        check(&c);
    }
}

/* Work-groups that have less than a block of channels. */
static void conv_on_small_work_groups_is_right(void **state)
{
    (void)state;
    atto_device *const own = test_dev;
    const int32_t groups[] = { 8, 1 };
    for (int i = 0; test_on_opencl() && i < COUNT_OF(groups); i++) {
        const atto_device_options options = { .max_work_group = groups[i] };
        conv_case c = { .batch = 2, .channels = 33, .outputs = 33, .groups = 33, .seed = 1 };
        c.h = (axis){ 9, 3, 1, 1, 1, 1, 0 };
        c.w = (axis){ 5, 3, 1, 1, 1, 1, 0 };
        MUST(atto_device_open(test_device_name(), &options, &test_dev));
        check(&c);
        c.layout = c.weight = c.result = LAYOUT_CHANNELS_LAST;
        check(&c);
        atto_device_close(test_dev);
        test_dev = own;
    }
}

static void conv_is_reproducible(void **state)
{
    (void)state;
    static const int list[] = { 4, 11, 12, 15, 20 };
    for (int i = 0; i < COUNT_OF(list); i++) {
        scene s;
        build(&s, &shapes[list[i]], true);
        thin_out(&s);
        uint64_t *first[3], *again[3];
        for (int k = 0; k < 3; k++) {
            first[k] = malloc((size_t)s.of[GX + k].t.numel * sizeof **first);
            again[k] = malloc((size_t)s.of[GX + k].t.numel * sizeof **again);
        }
        for (int run = 0; run < 5; run++) {
            MUST(atto_conv_backward(test_dev, &s.a));
            for (int k = 0; k < 3; k++) {
                const size_t n = (size_t)s.of[GX + k].t.numel;
                test_tensor_bits(&s.of[GX + k].t, run ? again[k] : first[k]);
                if (run) assert_memory_equal(first[k], again[k], n * sizeof **first);
            }
        }
        for (int k = 0; k < 3; k++) free(first[k]), free(again[k]);
        tear_down(&s);
    }
}

static uint64_t fallbacks(void)
{
    atto_device_stats stats;
    MUST(atto_device_stats_get(test_dev, &stats));
    return stats.fallbacks;
}

/* Kernels that cannot be built, and windows that reach too far for those that can. */
static void conv_falls_back_to_the_cpu(void **state)
{
    (void)state;
    if (!test_on_opencl()) skip();
    test_broken b;
    test_broken_open(&b, "conv");
    atto_device *own = test_dev;
    test_dev = b.dev;
    check(&shapes[3]);
    test_dev = own;
    test_broken_close(&b, 2);
    static const axis far[] = {
        { 9, 1, 4096, 16384, 16384, 1, 0 }, /* padding 2^14 */
        { 9, 2, 1, 16380, 0, 16384, 0 },    /* dilation (kernel - 1) 2^14 */
    };
    const uint64_t before = fallbacks();
    for (int i = 0; i < COUNT_OF(far); i++)
        check(&(conv_case){
            .batch = 1, .channels = 2, .outputs = 3, .groups = 1, .h = FLAT, .w = far[i] });
    assert_int_equal(fallbacks() - before, 2 * COUNT_OF(far));
}

/* ---- sums in half precision ---- */

static void expect_everywhere(const scene *s, int which, double value)
{
    const operand *o = &s->of[which];
    double *got = test_doubles(o->t.numel);
    test_tensor_get(&o->t, got);
    for (int64_t i = 0; i < o->t.numel; i++)
        if (got[i] != value)
            fail_msg("operand %d on %s: element %d is %g, wanted %g", which, test_backend(), (int)i,
                     got[i], value);
    free(got);
}

static void fill(const scene *s, int which, double value)
{
    MUST(atto_tensor_fill(&s->of[which].t.view, value));
}

/* Products, few outputs, and one channel each: with so many taps that they end in f16, and with so
 * many places for dw. */
static const conv_case many_taps[] = {
    { .batch = 1,
      .channels = 257,
      .outputs = 5,
      .groups = 1,
      .h = { 5, 3, 1, 0, 0, 1, 0 },
      .w = { 4, 3, 1, 0, 0, 1, 0 } },
    { .batch = 1,
      .channels = 257,
      .outputs = 2,
      .groups = 1,
      .h = { 5, 3, 1, 0, 0, 1, 0 },
      .w = { 4, 3, 1, 0, 0, 1, 0 } },
    { .batch = 1,
      .channels = 2,
      .outputs = 2,
      .groups = 2,
      .h = { 50, 49, 1, 0, 0, 1, 0 },
      .w = { 50, 48, 1, 0, 0, 1, 0 } },
};
static const conv_case many_places[] = {
    { .batch = 3,
      .channels = 3,
      .outputs = 5,
      .groups = 1,
      .h = { 15, 3, 1, 0, 0, 1, 0 },
      .w = { 62, 3, 1, 0, 0, 1, 0 } },
    { .batch = 3,
      .channels = 3,
      .outputs = 2,
      .groups = 1,
      .h = { 15, 3, 1, 0, 0, 1, 0 },
      .w = { 62, 3, 1, 0, 0, 1, 0 } },
    { .batch = 3,
      .channels = 2,
      .outputs = 2,
      .groups = 2,
      .h = { 15, 3, 1, 0, 0, 1, 0 },
      .w = { 62, 3, 1, 0, 0, 1, 0 } },
};

static conv_case half_case(const conv_case *list, int i, atto_dtype dtype)
{
    conv_case c = list[i / 2];
    c.dtype = dtype;
    if (i % 2) c.layout = c.weight = c.result = LAYOUT_CHANNELS_LAST;
    return c;
}

/* Sums of ones do not end where adding 1 changes nothing: 2048 in f16, 256 in bf16. */
static void conv_sums_ones_exactly_in_every_dtype(void **state)
{
    (void)state;
    static const atto_dtype dtypes[] = { ATTO_F16, ATTO_BF16 };
    for (int i = 0; i < 2 * 2 * COUNT_OF(many_taps); i++) {
        const conv_case taps = half_case(many_taps, i / 2, dtypes[i % 2]);
        const double terms = (double)(taps.channels / taps.groups * taps.h.kernel * taps.w.kernel);
        scene s;
        build(&s, &taps, false);
        fill(&s, X, 1.0), fill(&s, W, 1.0);
        MUST(atto_conv_forward(test_dev, &s.a));
        expect_everywhere(&s, Y, oracle_round(taps.dtype, terms));
        tear_down(&s);
        const conv_case c = half_case(many_places, i / 2, dtypes[i % 2]);
        const double places = (double)(c.batch * outputs_along(&c, &c.h) * outputs_along(&c, &c.w));
        build(&s, &c, true);
        fill(&s, X, 1.0), fill(&s, DY, 1.0);
        s.a.dx = NULL;
        MUST(atto_conv_backward(test_dev, &s.a));
        expect_everywhere(&s, GW, oracle_round(c.dtype, places));
        tear_down(&s);
    }
}

/* 2000 * 40 is more than f16 holds, and so are sums of some of these; what overflows at the end is
 * reported as infinite. */
static void conv_in_f16_does_not_overflow_inside(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * COUNT_OF(many_taps); i++) {
        conv_case c = half_case(many_taps, i, ATTO_F16);
        c.channels -= c.groups == 1; /* an even number of products */
        scene s;
        build(&s, &c, false);
        fill(&s, X, 2000.0);
        for (int64_t k = 0; k < s.of[W].t.numel; k++) s.of[W].values[k] = k % 2 ? -40.0 : 40.0;
        test_tensor_put(&s.of[W].t, s.of[W].values);
        MUST(atto_conv_forward(test_dev, &s.a));
        expect_everywhere(&s, Y, 0.0);
        fill(&s, W, 40.0);
        MUST(atto_conv_forward(test_dev, &s.a));
        expect_everywhere(&s, Y, INFINITY);
        tear_down(&s);
    }
}

/* ---- arguments ---- */

static void conv_refuses_what_does_not_fit(void **state)
{
    (void)state;
    scene s;
    build(&s, &shapes[3], false);
    const struct atto_conv_args good = s.a;
    struct atto_conv_args a;
    atto_tensor whole = *VIEW(&s, X), half_w = *VIEW(&s, W), half_y = *VIEW(&s, Y);
    atto_tensor flat = *VIEW(&s, X);
    whole.dtype = ATTO_I32;
    half_w.dtype = half_y.dtype = ATTO_F16;
    flat.shape[2] = 0;
#define REFUSES(change, status, words)                               \
    do {                                                             \
        a = good;                                                    \
        change;                                                      \
        EXPECT_FAIL(atto_conv_forward(test_dev, &a), status, words); \
    } while (0)
    REFUSES(a.window.dims = 3, ATTO_E_ARGUMENT, "window.dims is 3|1 or 2");
    REFUSES(a.window.dims = 1, ATTO_E_SHAPE, "x is|[N, C, L] or [C, L]");
    REFUSES(a.window.groups = 0, ATTO_E_ARGUMENT, "groups is 0");
    REFUSES(a.window.groups = 3, ATTO_E_ARGUMENT, "3 groups do not divide its 4 channels");
    REFUSES(a.window.groups = 2, ATTO_E_SHAPE, "expected 6 channels");
    REFUSES(a.window.stride[1] = 0, ATTO_E_ARGUMENT, "stride[1] is 0");
    REFUSES(a.window.padding[0] = -1, ATTO_E_ARGUMENT, "padding[0] is -1");
    REFUSES(a.window.padding[0] = INT64_C(1) << 31, ATTO_E_ARGUMENT, "expected 0 to 2147483647");
    REFUSES(a.window.padding_after[0] = -2, ATTO_E_ARGUMENT, "padding_after[0] is -2");
    REFUSES(a.window.dilation[0] = 0, ATTO_E_ARGUMENT, "dilation[0] is 0");
    REFUSES(a.window.dilation[0] = 9, ATTO_E_ARGUMENT, "output size too small");
    REFUSES(a.window.padding[0] = 2, ATTO_E_SHAPE,
            "dimension 2 of y is 7, expected 8|padding is 2 and padding_after 1");
    REFUSES(a.window.transposed = true, ATTO_E_SHAPE, "expected 4 channels");
    REFUSES(a.x = NULL, ATTO_E_NULL, "x is NULL");
    REFUSES(a.x = &flat, ATTO_E_SHAPE, "dimension 2 of x, [2,3,0,9], is empty");
    REFUSES(a.x = &whole, ATTO_E_DTYPE, "x is i32|f32, f16 or bf16");
    REFUSES(a.w = a.x, ATTO_E_SHAPE, "expected");
    REFUSES(a.w = &half_w, ATTO_E_DTYPE, "w is f16, expected f32");
    REFUSES(a.y = &half_y, ATTO_E_DTYPE, "y is f16, expected f32");
    REFUSES(a.b = a.w, ATTO_E_SHAPE, "b is|expected [4]");
    REFUSES(a.z = a.x, ATTO_E_SHAPE, "z is [2,3,7,9], expected [2,4,7,9]");
    REFUSES(a.residual = a.x, ATTO_E_SHAPE, "residual is [2,3,7,9], expected [2,4,7,9]");
    REFUSES(a.reserved[1] = 1, ATTO_E_ARGUMENT, "reserved");
#undef REFUSES
    assert_true(test_tensor_untouched(&s.of[Y].t) && test_tensor_untouched(&s.of[Z].t));
    tear_down(&s);
    build(&s, &shapes[3], true);
    s.a.act = atto_relu();
    s.a.z = NULL;
    EXPECT_FAIL(atto_conv_backward(test_dev, &s.a), ATTO_E_NULL,
                "z is NULL, which the derivative of relu needs");
    s.a.act = atto_identity();
    s.a.w = NULL;
    EXPECT_FAIL(atto_conv_backward(test_dev, &s.a), ATTO_E_NULL, "w is NULL, which dx needs");
    s.a.w = VIEW(&s, W);
    s.a.x = NULL;
    EXPECT_FAIL(atto_conv_backward(test_dev, &s.a), ATTO_E_NULL, "x is NULL, which dw needs");
    for (int i = GX; i <= GB; i++) assert_true(test_tensor_untouched(&s.of[i].t));
    tear_down(&s);
}

/* As many outputs of a transposed convolution as PyTorch's output_padding gives, and no more. */
static void conv_transposed_limits_its_outputs(void **state)
{
    (void)state;
    conv_case c = shapes[4];
    c.transposed = true;
    for (c.w.more = 0; c.w.more < 2; c.w.more++) check(&c);
    for (c.w.more = -1; c.w.more <= 2; c.w.more += 3) {
        scene s;
        build(&s, &c, false);
        EXPECT_FAIL(atto_conv_forward(test_dev, &s.a), ATTO_E_SHAPE, "dimension 3 of y is");
        tear_down(&s);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(conv_has_every_shape),
    cmocka_unit_test(conv_transposed_has_every_shape),
    cmocka_unit_test(conv_fuses_activation_and_residual),
    cmocka_unit_test(conv_takes_16_bits),
    cmocka_unit_test(conv_takes_every_layout),
    cmocka_unit_test(conv_makes_the_gradients_that_are_wanted),
    cmocka_unit_test(conv_of_nothing),
    cmocka_unit_test(conv_keeps_what_is_not_finite_where_it_belongs),
    cmocka_unit_test(conv_keeps_an_infinite_tap_where_it_meets),
    cmocka_unit_test(conv_of_one_output_takes_any_stride),
    cmocka_unit_test(conv_on_small_work_groups_is_right),
    cmocka_unit_test(conv_is_reproducible),
    cmocka_unit_test(conv_falls_back_to_the_cpu),
    cmocka_unit_test(conv_sums_ones_exactly_in_every_dtype),
    cmocka_unit_test(conv_in_f16_does_not_overflow_inside),
    cmocka_unit_test(conv_refuses_what_does_not_fit),
    cmocka_unit_test(conv_transposed_limits_its_outputs),
};

TEST_MAIN("conv", tests)
