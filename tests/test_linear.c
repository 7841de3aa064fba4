/* SPDX-License-Identifier: MIT */
/* Linear, forward and backward: the double oracle decides, on every backend. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

/* ---- one case ---- */

enum { DX = 1, DW = 2, DB = 4, ALL = DX | DW | DB };

typedef struct linear_case {
    int64_t m, n, k;
    int32_t rank;  /* of x and y: 0 = 2; 1: [k]; 3: [outer, m / outer, k]; 4: [outer, 1, ..., k] */
    int64_t outer; /* divides m */
    atto_dtype dtype;
    atto_dtype out;    /* of y, z, residual and dy; 0 = dtype */
    atto_dtype params; /* of b, dw and db; 0 = dtype */
    atto_activation act;
    float dropout;
    atto_rng rng;
    bool bias, residual, save_z;
    bool add;           /* gradients += */
    bool not_finite;    /* NaN and infinities among the inputs */
    int wanted;         /* gradients; 0 = ALL */
    test_layout in;     /* of x, residual and dy */
    test_layout weight; /* of w */
    test_layout result; /* of y, z, dx and dw */
    uint64_t seed;
} linear_case;

static atto_dtype out_dtype(const linear_case *c)
{
    return c->out ? c->out : c->dtype;
}
static atto_dtype params_dtype(const linear_case *c)
{
    return c->params ? c->params : c->dtype;
}

/* Of x and dx (last = k), of y and what is like it (last = n). */
static atto_shape rows_shape(const linear_case *c, int64_t last)
{
    switch (c->rank) {
    case 1:
        return atto_shape1(last);
    case 3:
        return atto_shape3(c->outer, c->m / c->outer, last);
    case 4:
        return atto_shape_of(4, (int64_t[]){ c->outer, 1, c->m / c->outer, last });
    default:
        return atto_shape2(c->m, last);
    }
}

/* A tensor of the case, and what it holds as double. */
typedef struct operand {
    test_tensor t;
    double *values;
} operand;

/* Uniform on [-range, range], as the tensor can hold it; range 0: an output, NaN. */
static void make(operand *o, atto_dtype dtype, atto_shape shape, test_layout layout, uint64_t seed,
                 double range)
{
    test_tensor_make(&o->t, test_dev, dtype, shape, layout);
    o->values = test_doubles(o->t.numel);
    if (range == 0.0) return;
    test_uniform(seed, -range, range, dtype, o->values, o->t.numel);
    test_tensor_put(&o->t, o->values);
    test_tensor_held(&o->t, o->values);
}

/* Overwrites one element, if there is one of that index. */
static void plant(operand *o, int64_t index, double value)
{
    if (index >= o->t.numel) return;
    o->values[index] = value;
    test_tensor_put(&o->t, o->values);
    test_tensor_held(&o->t, o->values);
}

static void drop(operand *o)
{
    test_tensor_drop(&o->t);
    free(o->values);
}

/* All tensors of a case. Gradients start as the old values that add_ keeps, or as NaN. */
typedef struct scene {
    const linear_case *c;
    operand x, w, b, residual, y, z, dy, dx, dw, db;
    struct atto_linear_args a; /* every tensor is there; to be thinned out */
    oracle_linear l;
} scene;

#define OPERANDS 10
static operand *operand_of(scene *s, int i)
{
    operand *const all[OPERANDS] = { &s->x, &s->w,  &s->b,  &s->residual, &s->y,
                                     &s->z, &s->dy, &s->dx, &s->dw,       &s->db };
    return all[i];
}

static void plant_not_finite(scene *s)
{
    plant(&s->x, s->c->k + 1, NAN); /* in row 1 */
    plant(&s->w, 2 * s->c->k, INFINITY);
    plant(&s->b, 3, -INFINITY);
    plant(&s->residual, 4, NAN);
    for (int64_t j = 0; j < s->c->n; j++) plant(&s->dy, s->c->n + j, j % 2 ? NAN : INFINITY);
    for (int64_t j = 0; j < s->c->n; j++) plant(&s->z, 3 * s->c->n + j, j % 3 ? NAN : -INFINITY);
}

static void describe(scene *s)
{
    const linear_case *c = s->c;
    s->a = (struct atto_linear_args){ .x = &s->x.t.view,
                                      .w = &s->w.t.view,
                                      .b = c->bias ? &s->b.t.view : NULL,
                                      .residual = c->residual ? &s->residual.t.view : NULL,
                                      .y = &s->y.t.view,
                                      .z = c->save_z ? &s->z.t.view : NULL,
                                      .dy = &s->dy.t.view,
                                      .dx = &s->dx.t.view,
                                      .dw = &s->dw.t.view,
                                      .db = &s->db.t.view,
                                      .add_dx = c->add,
                                      .add_dw = c->add,
                                      .add_db = c->add,
                                      .act = c->act,
                                      .dropout = c->dropout,
                                      .rng = c->rng };
    s->l = (oracle_linear){ .m = c->m,
                            .n = c->n,
                            .k = c->k,
                            .x = s->x.values,
                            .w = s->w.values,
                            .b = c->bias ? s->b.values : NULL,
                            .residual = c->residual ? s->residual.values : NULL,
                            .z = s->z.values,
                            .dy = s->dy.values,
                            .act = c->act,
                            .p = c->dropout,
                            .rng = c->rng };
}

enum { FORWARD = 1, BACKWARD = 2 };

/* The tensors of the directions; z is an output forward and data backward. The others are zeroed,
 * which no call may look at. */
static void build(scene *s, const linear_case *c, int directions)
{
    const bool forward = directions & FORWARD, backward = directions & BACKWARD;
    const atto_dtype out = out_dtype(c), params = params_dtype(c);
    const atto_shape x = rows_shape(c, c->k), y = rows_shape(c, c->n);
    const atto_shape w = atto_shape2(c->n, c->k), b = atto_shape1(c->n);
    const double old = c->add ? 1.0 : 0.0;
    const uint64_t seed = 16 * c->seed;
    memset(s, 0, sizeof *s);
    s->c = c;
    make(&s->x, c->dtype, x, c->in, seed, 1.0);
    make(&s->w, c->dtype, w, c->weight, seed + 1, 1.0);
    make(&s->z, out, y, c->result, seed + 2, backward ? 4.0 : 0.0);
    if (forward) {
        make(&s->b, params, b, LAYOUT_DENSE, seed + 3, 2.0);
        make(&s->residual, out, y, c->in, seed + 4, 1.0);
        make(&s->y, out, y, c->result, 0, 0.0);
    }
    if (backward) {
        make(&s->dy, out, y, c->in, seed + 5, 1.0);
        make(&s->dx, c->dtype, x, c->result, seed + 6, old);
        make(&s->dw, params, w, c->result, seed + 7, old);
        make(&s->db, params, b, LAYOUT_DENSE, seed + 8, old);
    }
    if (c->not_finite) plant_not_finite(s);
    describe(s);
}

static void tear_down(scene *s)
{
    for (int i = 0; i < OPERANDS; i++) drop(operand_of(s, i));
}

/* Whatever the call does not write is as it was. */
static void expect_rest_untouched(scene *s, bool backward)
{
    const struct atto_linear_args *a = &s->a;
    const bool written[OPERANDS] = { [4] = !backward,
                                     [5] = !backward && a->z,
                                     [7] = backward && a->dx,
                                     [8] = backward && a->dw,
                                     [9] = backward && a->db };
    for (int i = 0; i < OPERANDS; i++)
        if (!written[i]) assert_true(test_tensor_untouched(&operand_of(s, i)->t));
}

static void compare(const linear_case *c, const char *op, const operand *o, const double *want,
                    const double *allowed)
{
    char text[128];
    snprintf(text, sizeof text, "in %s, w %s, out %s, %s, m n k %d %d %d, rank %d",
             test_layout_name(c->in), test_layout_name(c->weight), test_layout_name(c->result),
             atto_activation_name(c->act.kind), (int)c->m, (int)c->n, (int)c->k, (int)c->rank);
    const test_about about = { op, text, o->t.view.dtype,
                               atto_shape_of(o->t.view.rank, o->t.view.shape), c->seed };
    double *got = test_doubles(o->t.numel);
    test_tensor_get(&o->t, got);
    expect_close(&about, got, want, allowed, o->t.numel);
    free(got);
}

/* ---- forward ---- */

/* How far act may be off when its argument is off by error: the larger change at the two ends. */
static double act_change(atto_activation act, double z, double error)
{
    const oracle_act *o = oracle_act_of(act.kind);
    if (error == 0.0 || !isfinite(z)) return 0.0;
    const double f = o->f(z, act.a, act.b);
    return fmax(fabs(o->f(z - error, act.a, act.b) - f), fabs(o->f(z + error, act.a, act.b) - f));
}

/* y: the sum's error passed through act, act's own roundings, the sum with residual. A dropped
 * element is exactly 0 or the residual. */
static double y_allowed(const oracle_linear *l, atto_dtype out, int64_t at, double z, double error)
{
    if (!oracle_keep(l->rng, l->p, at)) return 0.0;
    const double terms = oracle_act_terms(l->act, l->p, z);
    double allowed = act_change(l->act, z, error) * oracle_keep_scale(l->p) +
                     atto_tol(atto_activation_name(l->act.kind), out, 1, terms);
    if (l->residual) allowed += atto_tol("linear", out, 1, terms + fabs(l->residual[at]));
    return allowed;
}

static void expect_forward(scene *s)
{
    const linear_case *c = s->c;
    const atto_dtype out = out_dtype(c);
    const int64_t count = c->m * c->n, terms = c->k + (c->bias ? 1 : 0);
    double *y = test_doubles(count), *y_off = test_doubles(count);
    double *z = test_doubles(count), *z_off = test_doubles(count);
    for (int64_t i = 0; i < count; i++) {
        const oracle_sum sum = oracle_linear_z(&s->l, i / c->n, i % c->n);
        z[i] = sum.value;
        z_off[i] = terms ? atto_tol("linear", out, terms, sum.terms) : 0.0;
        y[i] = oracle_linear_y(&s->l, i / c->n, i % c->n, z[i]);
        y_off[i] = y_allowed(&s->l, out, i, z[i], z_off[i]);
    }
    compare(c, "linear y", &s->y, y, y_off);
    if (c->save_z) compare(c, "linear z", &s->z, z, z_off);
    free(y), free(y_off), free(z), free(z_off);
}

static void check_forward(const linear_case *c)
{
    scene s;
    build(&s, c, FORWARD);
    MUST(atto_linear_forward(test_dev, &s.a));
    expect_forward(&s);
    expect_rest_untouched(&s, false);
    tear_down(&s);
}

/* ---- backward ---- */

/* One gradient: n products of dz that are summed, what each dz is off by, the old value. */
static void expect_gradient(scene *s, const char *op, const operand *o, const oracle_sum *sums,
                            int64_t n)
{
    const linear_case *c = s->c;
    double *want = test_doubles(o->t.numel), *allowed = test_doubles(o->t.numel);
    char grad[40];
    snprintf(grad, sizeof grad, "%s_grad", atto_activation_name(c->act.kind));
    for (int64_t i = 0; i < o->t.numel; i++) {
        const double old = c->add ? o->values[i] : 0.0;
        const int64_t terms = n + (c->add ? 1 : 0);
        want[i] = sums[i].value + old;
        if (n == 0) continue; /* 0, or the old value, exactly */
        allowed[i] = atto_tol(grad, o->t.view.dtype, 1, sums[i].terms) +
                     atto_tol("linear_grad", o->t.view.dtype, terms, sums[i].terms + fabs(old));
    }
    compare(c, op, o, want, allowed);
    free(want), free(allowed);
}

static oracle_sum *sums_of(int64_t n)
{
    oracle_sum *sums = calloc(n ? (size_t)n : 1, sizeof *sums);
    assert_non_null(sums);
    return sums;
}

static void expect_backward(scene *s)
{
    const linear_case *c = s->c;
    oracle_sum *dz = sums_of(c->m * c->n), *dx = sums_of(c->m * c->k);
    oracle_sum *dw = sums_of(c->n * c->k), *db = sums_of(c->n);
    for (int64_t i = 0; i < c->m * c->n; i++) dz[i] = oracle_linear_dz(&s->l, i / c->n, i % c->n);
    if (s->a.dx) {
        oracle_linear_dx(&s->l, dz, dx);
        expect_gradient(s, "linear dx", &s->dx, dx, c->n);
    }
    if (s->a.dw) {
        oracle_linear_dw(&s->l, dz, dw);
        expect_gradient(s, "linear dw", &s->dw, dw, c->m);
    }
    if (s->a.db) {
        oracle_linear_db(&s->l, dz, db);
        expect_gradient(s, "linear db", &s->db, db, c->m);
    }
    free(dz), free(dx), free(dw), free(db);
}

/* Leaves out the gradients that are not wanted, and what only they need. */
static void thin_out(scene *s)
{
    const int wanted = s->c->wanted ? s->c->wanted : ALL;
    if (!(wanted & DX)) s->a.dx = s->a.w = NULL;
    if (!(wanted & DW)) s->a.dw = s->a.x = NULL;
    if (!(wanted & DB)) s->a.db = NULL;
    if (s->c->act.kind == ATTO_ACT_IDENTITY && !s->c->save_z) s->a.z = NULL;
}

static void check_backward(const linear_case *c)
{
    scene s;
    build(&s, c, BACKWARD);
    s.a.z = &s.z.t.view;
    thin_out(&s);
    MUST(atto_linear_backward(test_dev, &s.a));
    expect_backward(&s);
    expect_rest_untouched(&s, true);
    tear_down(&s);
}

static void check_both(const linear_case *c)
{
    check_forward(c);
    check_backward(c);
}

static const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };

/* A driver needs a second to build a kernel, and dtypes, activation, bias and so on each make
 * another one of all four products. The CPU meets every combination; OpenCL those of these tests
 * that differ in what a kernel may get wrong, and least of all where it plays another device. */
static bool meets(bool on_opencl, bool in_disguise)
{
    if (test_in_disguise()) return test_on_opencl() ? on_opencl && in_disguise : in_disguise;
    return !test_on_opencl() || on_opencl;
}

/* ---- sizes ---- */

/* Nothing, one, primes, below, at and above the powers of two that tiles have. */
static const int64_t sizes[] = { 0, 1, 2, 3, 7, 31, 32, 33, 64, 65, 127, 129, 257 };

/* A Latin square: each pair of sizes meets in each pair of M, N and K. Kernels cost a driver long
 * to build, so a dtype has one activation. */
static void linear_takes_any_size(void **state)
{
    (void)state;
    const int count = COUNT_OF(sizes);
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            const int d = (i + 2 * j) % 3;
            if (!meets(true, d == 0)) continue;
            check_both(&(linear_case){ .m = sizes[i],
                                       .n = sizes[j],
                                       .k = sizes[(i + j) % count],
                                       .dtype = dtypes[d],
                                       .act = d == 0 ? atto_relu() : atto_identity(),
                                       .bias = true,
                                       .save_z = d == 0,
                                       .seed = 100 + (uint64_t)(i * count + j) });
        }
}

/* Few rows, few columns, long sums: shapes for which a backend may have kernels of their own. */
static const struct shape_row {
    int64_t m, n, k;
} lopsided[] = {
    { 1, 257, 1031 }, { 2, 130, 1031 }, { 3, 129, 515 }, { 4, 64, 4097 }, { 5, 7, 4097 },
    { 6, 1031, 33 },  { 7, 65, 513 },   { 8, 257, 512 }, { 9, 257, 512 }, { 16, 33, 1031 },
    { 1, 1, 4097 },   { 4099, 1, 3 },   { 1031, 3, 1 },  { 2053, 5, 7 },  { 1, 4099, 1 },
    { 515, 2, 129 },  { 1, 10, 4096 },  { 64, 10, 512 },
};

static void linear_takes_lopsided_shapes(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(lopsided); i++)
        for (int d = 0; d < COUNT_OF(dtypes); d++) {
            if (!meets(d == i % 3, d == 0)) continue;
            check_both(&(linear_case){ .m = lopsided[i].m,
                                       .n = lopsided[i].n,
                                       .k = lopsided[i].k,
                                       .dtype = dtypes[d],
                                       .act = d == 0 ? atto_relu() : atto_identity(),
                                       .bias = true,
                                       .save_z = d == 0,
                                       .add = i % 2 == 1 && !test_on_opencl(),
                                       .seed = 300 + (uint64_t)i });
        }
}

/* ---- what is fused, and dtypes ---- */

/* f32 alone, then for each 16-bit type T: all T, everything else in f32, mixtures. */
static const struct dtype_row {
    atto_dtype dtype, out, params;
} dtype_rows[] = {
    { ATTO_F32, ATTO_F32, ATTO_F32 },   { ATTO_F16, ATTO_F16, ATTO_F16 },
    { ATTO_F16, ATTO_F32, ATTO_F32 },   { ATTO_F16, ATTO_F16, ATTO_F32 },
    { ATTO_F16, ATTO_F32, ATTO_F16 },   { ATTO_BF16, ATTO_BF16, ATTO_BF16 },
    { ATTO_BF16, ATTO_F32, ATTO_F32 },  { ATTO_BF16, ATTO_BF16, ATTO_F32 },
    { ATTO_BF16, ATTO_F32, ATTO_BF16 },
};

/* What stands behind the product; every pair of yes and no meets. */
static const struct feature_row {
    bool bias, act, dropout, residual, save_z, add;
} features[] = {
    { false, false, false, false, false, false }, { true, true, true, true, true, true },
    { true, false, false, true, true, false },    { false, true, true, false, false, true },
    { false, true, false, true, false, true },    { true, false, true, false, false, true },
    { false, false, true, true, true, true },     { true, true, false, false, true, false },
};

static void linear_takes_every_dtype_with_everything_fused(void **state)
{
    (void)state;
    for (int d = 0; d < COUNT_OF(dtype_rows); d++)
        for (int f = 0; f < COUNT_OF(features); f++) {
            if (!meets(f == (d + 1) % COUNT_OF(features), d < 2)) continue;
            check_both(&(linear_case){ .m = 37,
                                       .n = 45,
                                       .k = 51,
                                       .dtype = dtype_rows[d].dtype,
                                       .out = dtype_rows[d].out,
                                       .params = dtype_rows[d].params,
                                       .bias = features[f].bias,
                                       .act = features[f].act ? atto_gelu() : atto_identity(),
                                       .dropout = features[f].dropout ? 0.25f : 0.0f,
                                       .rng = { 5, 9, ATTO_RNG_PHILOX },
                                       .residual = features[f].residual,
                                       .save_z = features[f].save_z,
                                       .add = features[f].add,
                                       .seed = 400 + (uint64_t)f });
        }
}

/* On OpenCL a few: what is fused is the text that act.opencl tests. */
static void linear_takes_every_activation(void **state)
{
    (void)state;
    atto_activation acts[TEST_ACTIVATIONS_MAX];
    const int n = test_activations(acts);
    for (int i = 0; i < n; i++) {
        const linear_case c = { .m = 19,
                                .n = 35,
                                .k = 21,
                                .dtype = dtypes[i % 3],
                                .act = acts[i],
                                .bias = true,
                                .save_z = true,
                                .seed = 500 + (uint64_t)i };
        if (!meets(i % 11 == 4, false)) continue;
        check_both(&c);
    }
}

/* ---- layouts ---- */

static const struct layout_row {
    int32_t rank;
    int64_t outer, m, n, k;
    test_layout in, weight, result;
} layout_rows[] = {
    { 1, 1, 1, 35, 67, LAYOUT_DENSE, LAYOUT_DENSE, LAYOUT_DENSE },
    { 1, 1, 1, 35, 67, LAYOUT_STEP2, LAYOUT_PITCHED, LAYOUT_STEP2 },
    { 1, 1, 1, 35, 67, LAYOUT_OFFSET, LAYOUT_TRANSPOSED, LAYOUT_OFFSET },
    { 1, 1, 1, 35, 67, LAYOUT_BROADCAST, LAYOUT_BROADCAST, LAYOUT_DENSE },
    { 2, 1, 33, 35, 67, LAYOUT_OFFSET, LAYOUT_OFFSET, LAYOUT_OFFSET },
    { 2, 1, 32, 64, 64, LAYOUT_OFFSET, LAYOUT_DENSE, LAYOUT_DENSE },
    { 2, 1, 32, 64, 64, LAYOUT_DENSE, LAYOUT_OFFSET4, LAYOUT_OFFSET4 },
    { 2, 1, 33, 35, 67, LAYOUT_PITCHED, LAYOUT_PITCHED, LAYOUT_PITCHED },
    { 2, 1, 64, 32, 40, LAYOUT_PITCHED, LAYOUT_DENSE, LAYOUT_PITCHED },
    { 2, 1, 64, 32, 40, LAYOUT_ALIGNED, LAYOUT_ALIGNED, LAYOUT_ALIGNED },
    { 2, 1, 65, 33, 43, LAYOUT_ALIGNED, LAYOUT_PITCHED, LAYOUT_ALIGNED },
    { 2, 1, 33, 35, 67, LAYOUT_TRANSPOSED, LAYOUT_DENSE, LAYOUT_DENSE },
    { 2, 1, 33, 35, 67, LAYOUT_DENSE, LAYOUT_TRANSPOSED, LAYOUT_DENSE },
    { 2, 1, 33, 35, 67, LAYOUT_DENSE, LAYOUT_DENSE, LAYOUT_TRANSPOSED },
    { 2, 1, 33, 35, 67, LAYOUT_TRANSPOSED, LAYOUT_TRANSPOSED, LAYOUT_TRANSPOSED },
    { 2, 1, 33, 35, 67, LAYOUT_STEP2, LAYOUT_STEP2, LAYOUT_STEP2 },
    { 2, 1, 33, 35, 67, LAYOUT_SCATTERED, LAYOUT_SCATTERED, LAYOUT_SCATTERED },
    { 2, 1, 33, 35, 67, LAYOUT_BROADCAST, LAYOUT_DENSE, LAYOUT_DENSE },
    { 2, 1, 33, 35, 67, LAYOUT_DENSE, LAYOUT_BROADCAST, LAYOUT_PITCHED },
    { 2, 1, 33, 1, 1, LAYOUT_TRANSPOSED, LAYOUT_STEP2, LAYOUT_STEP2 },
    { 3, 3, 33, 35, 67, LAYOUT_DENSE, LAYOUT_DENSE, LAYOUT_DENSE },
    { 3, 3, 33, 35, 67, LAYOUT_PITCHED, LAYOUT_DENSE, LAYOUT_PITCHED },
    { 3, 3, 33, 35, 67, LAYOUT_SCATTERED, LAYOUT_DENSE, LAYOUT_DENSE },
    { 3, 3, 33, 35, 67, LAYOUT_TRANSPOSED, LAYOUT_DENSE, LAYOUT_SCATTERED },
    { 3, 11, 33, 35, 67, LAYOUT_BROADCAST, LAYOUT_PITCHED, LAYOUT_CHANNELS_LAST },
    { 3, 33, 33, 35, 67, LAYOUT_PITCHED, LAYOUT_DENSE, LAYOUT_PITCHED },
    { 3, 1, 33, 35, 67, LAYOUT_ALIGNED, LAYOUT_DENSE, LAYOUT_ALIGNED },
    { 4, 3, 33, 35, 67, LAYOUT_DENSE, LAYOUT_DENSE, LAYOUT_DENSE },
    { 4, 3, 33, 35, 67, LAYOUT_CHANNELS_LAST, LAYOUT_DENSE, LAYOUT_CHANNELS_LAST },
    { 4, 11, 33, 35, 67, LAYOUT_OFFSET, LAYOUT_OFFSET, LAYOUT_SCATTERED },
    { 4, 11, 33, 35, 67, LAYOUT_BROADCAST, LAYOUT_ALIGNED, LAYOUT_TRANSPOSED },
};

/* Dropout every other time, on OpenCL always: layouts and ranks must not move the mask. */
static void linear_takes_any_layout_and_rank(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(layout_rows); i++)
        for (int d = 0; d < COUNT_OF(dtypes); d++) {
            const struct layout_row *row = &layout_rows[i];
            const bool opencl = test_on_opencl();
            if (!meets(d < 2, d == 0)) continue;
            check_both(&(linear_case){ .m = row->m,
                                       .n = row->n,
                                       .k = row->k,
                                       .rank = row->rank,
                                       .outer = row->outer,
                                       .dtype = dtypes[d],
                                       .act = d == 0 ? atto_relu() : atto_identity(),
                                       .bias = true,
                                       .residual = opencl || i % 4 == 1,
                                       .save_z = true,
                                       .dropout = opencl || (i + d) % 2 ? 0.3f : 0.0f,
                                       .rng = { 77, (uint64_t)i, ATTO_RNG_PHILOX },
                                       .add = !opencl && i % 3 == 1,
                                       .in = row->in,
                                       .weight = row->weight,
                                       .result = row->result,
                                       .seed = 600 + (uint64_t)i });
        }
}

/* A [rows, columns] view whose buffer holds NaN before, between and behind its rows. */
static void make_among_nan(atto_tensor *out, atto_dtype dtype, int64_t rows, int64_t columns,
                           double value)
{
    atto_tensor whole;
    MUST(atto_tensor_alloc(test_dev, dtype, atto_shape2(rows + 2, columns + 16), &whole));
    MUST(atto_tensor_fill(&whole, NAN));
    *out = whole;
    out->shape[0] = rows;
    out->shape[1] = columns;
    out->offset = columns + 16 + 8;
    MUST(atto_tensor_fill(out, value));
}

static void expect_everywhere(const atto_tensor *t, const char *what, double value)
{
    float values[128];
    atto_tensor flat;
    assert_true(atto_tensor_numel(t) <= COUNT_OF(values));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape_of(t->rank, t->shape), &flat));
    MUST(atto_tensor_copy(&flat, t));
    MUST(atto_tensor_read(&flat, values));
    for (int64_t i = 0; i < atto_tensor_numel(t); i++)
        if ((double)values[i] != value)
            fail_msg("%s on %s, %s: element %d is %g, wanted %g", what, test_backend(),
                     atto_dtype_name(t->dtype), (int)i, (double)values[i], value);
    atto_tensor_free(&flat);
}

/* NaN times the 0 that pads a tile would be NaN: what lies outside the views takes no part. */
static void linear_reads_nothing_outside_its_views(void **state)
{
    (void)state;
    enum { M = 9, N = 11, K = 7 };
    for (int d = 0; d < COUNT_OF(dtypes); d++) {
        if (!meets(d > 0, d == 1)) continue;
        atto_tensor x, w, b, y, dy, dx, dw, db;
        atto_tensor *all[] = { &x, &w, &b, &y, &dy, &dx, &dw, &db };
        const int64_t shapes[][2] = { { M, K }, { N, K }, { 1, N }, { M, N },
                                      { M, N }, { M, K }, { N, K }, { 1, N } };
        for (int i = 0; i < COUNT_OF(all); i++)
            make_among_nan(all[i], dtypes[d], shapes[i][0], shapes[i][1], i < 3 || i == 4 ? 1 : 99);
        const atto_tensor b_row = atto_tensor_of(b.buffer, b.dtype, atto_shape1(N), b.offset);
        const atto_tensor db_row = atto_tensor_of(db.buffer, db.dtype, atto_shape1(N), db.offset);
        const struct atto_linear_args a = {
            .x = &x, .w = &w, .b = &b_row, .y = &y, .dy = &dy, .dx = &dx, .dw = &dw, .db = &db_row
        };
        MUST(atto_linear_forward(test_dev, &a));
        MUST(atto_linear_backward(test_dev, &a));
        expect_everywhere(&y, "y", K + 1);
        expect_everywhere(&dx, "dx", N);
        expect_everywhere(&dw, "dw", M);
        expect_everywhere(&db_row, "db", M);
        for (int i = 0; i < COUNT_OF(all); i++) atto_tensor_free(all[i]);
    }
}

/* Inputs may overlap: the rows of x are windows that move by one element, and w is the same memory
 * again, which makes y[m][n] the sum over k of s[m + k] s[n + k]. */
static void linear_takes_overlapping_inputs(void **state)
{
    (void)state;
    enum { M = 9, K = 5, S = M + K - 1 };
    float signal[S], got[M * M];
    atto_tensor s, y;
    for (int i = 0; i < S; i++) signal[i] = (float)(i * i % 7 - 3);
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(S), &s));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(M, M), &y));
    MUST(atto_tensor_write(&s, signal));
    atto_tensor windows = atto_tensor_of(s.buffer, ATTO_F32, atto_shape2(M, K), 0);
    windows.stride[0] = 1;
    const struct atto_linear_args a = { .x = &windows, .w = &windows, .y = &y };
    MUST(atto_linear_forward(test_dev, &a));
    MUST(atto_tensor_read(&y, got));
    for (int m = 0; m < M; m++)
        for (int n = 0; n < M; n++) {
            float want = 0.0f;
            for (int k = 0; k < K; k++) want += signal[m + k] * signal[n + k];
            assert_true(got[m * M + n] == want);
        }
    atto_tensor_free(&s);
    atto_tensor_free(&y);
}

/* ---- nothing to do ---- */

/* I1: a batch of nothing leaves dw and db 0, or as they were; K = 0 leaves the bias. The sizes test
 * has all of them; here are dropout, residual and the adding ones as well. */
static void linear_of_empty_tensors_gives_neutral_values(void **state)
{
    (void)state;
    const int64_t empty[][3] = { { 0, 7, 5 }, { 4, 0, 5 }, { 4, 7, 0 }, { 0, 0, 5 },
                                 { 0, 7, 0 }, { 4, 0, 0 }, { 0, 0, 0 } };
    for (int i = 0; i < COUNT_OF(empty); i++)
        for (int f = 0; f < 8; f++) {
            if (!meets(f == 0 || f == 7, f == 7)) continue;
            check_both(&(linear_case){ .m = empty[i][0],
                                       .n = empty[i][1],
                                       .k = empty[i][2],
                                       .dtype = ATTO_F32,
                                       .bias = f & 1,
                                       .act = f & 2 ? atto_relu() : atto_identity(),
                                       .residual = f & 2,
                                       .save_z = f & 2,
                                       .add = f & 4,
                                       .dropout = f & 4 ? 0.5f : 0.0f,
                                       .seed = 700 + (uint64_t)f });
        }
}

static void linear_without_outputs_launches_nothing(void **state)
{
    (void)state;
    scene s;
    atto_device_stats before, after;
    build(&s, &(linear_case){ .m = 0, .n = 5, .k = 3, .dtype = ATTO_F32 }, FORWARD | BACKWARD);
    s.a.dw = s.a.db = NULL;
    MUST(atto_device_stats_get(test_dev, &before));
    MUST(atto_linear_forward(test_dev, &s.a));
    MUST(atto_linear_backward(test_dev, &s.a));
    s.a.dx = NULL;
    MUST(atto_linear_backward(test_dev, &s.a));
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.launches, before.launches);
    assert_int_equal(after.fallbacks, before.fallbacks);
    tear_down(&s);
}

/* ---- gradients that are not wanted ---- */

/* Each subset, x there only for dw and w only for dx: frozen layers keep neither. */
static void linear_backward_skips_what_is_not_wanted(void **state)
{
    (void)state;
    for (int wanted = 1; wanted <= ALL; wanted++)
        for (int d = 0; d < COUNT_OF(dtypes); d++) {
            if (!meets(true, d == 0)) continue;
            check_backward(&(linear_case){ .m = 35,
                                           .n = 33,
                                           .k = 37,
                                           .dtype = dtypes[d],
                                           .act = d == 0 ? atto_relu() : atto_identity(),
                                           .wanted = wanted,
                                           .add = wanted % 2 && !test_on_opencl(),
                                           .seed = 800 + (uint64_t)wanted });
        }
}

static void linear_backward_of_nothing_wanted_does_nothing(void **state)
{
    (void)state;
    scene s;
    build(&s, &(linear_case){ .m = 3, .n = 5, .k = 4, .dtype = ATTO_F32 }, BACKWARD);
    s.a.dx = s.a.dw = s.a.db = s.a.x = s.a.w = NULL;
    MUST(atto_linear_backward(test_dev, &s.a));
    expect_rest_untouched(&s, true);
    tear_down(&s);
}

static void linear_backward_says_what_a_gradient_lacks(void **state)
{
    (void)state;
    scene s;
    build(&s, &(linear_case){ .m = 3, .n = 5, .k = 4, .dtype = ATTO_F32 }, BACKWARD);
    const atto_tensor *x = s.a.x, *w = s.a.w;
    s.a.w = NULL;
    EXPECT_FAIL(atto_linear_backward(test_dev, &s.a), ATTO_E_NULL, "linear_backward|w|dx");
    s.a.w = w, s.a.x = NULL;
    EXPECT_FAIL(atto_linear_backward(test_dev, &s.a), ATTO_E_NULL, "linear_backward|x|dw");
    s.a.x = x, s.a.z = NULL, s.a.act = atto_tanh();
    EXPECT_FAIL(atto_linear_backward(test_dev, &s.a), ATTO_E_NULL, "linear_backward|z|tanh");
    s.a.dx = s.a.dw = s.a.db = NULL;
    expect_rest_untouched(&s, true);
    tear_down(&s);
}

/* ---- numbers ---- */

/* H10: n ones are summed exactly, far beyond the 2048 (f16) or 256 (bf16) at which a sum in the
 * dtype would stall, and where f16's own range nearly ends; along each of the three sums. */
static void expect_exact_sums(atto_dtype dtype, int64_t rows, int64_t columns, int64_t n)
{
    scene s;
    const linear_case forward = { .m = rows, .n = columns, .k = n, .dtype = dtype };
    build(&s, &forward, FORWARD);
    MUST(atto_tensor_fill(&s.x.t.view, 1.0));
    MUST(atto_tensor_fill(&s.w.t.view, 1.0));
    MUST(atto_linear_forward(test_dev, &s.a));
    expect_everywhere(&s.y.t.view, "y", oracle_round(dtype, (double)n));
    tear_down(&s);

    const linear_case wide = { .m = rows, .n = n, .k = columns, .dtype = dtype, .wanted = DX };
    build(&s, &wide, BACKWARD);
    thin_out(&s);
    MUST(atto_tensor_fill(&s.dy.t.view, 1.0));
    MUST(atto_tensor_fill(&s.w.t.view, 1.0));
    MUST(atto_linear_backward(test_dev, &s.a));
    expect_everywhere(&s.dx.t.view, "dx", oracle_round(dtype, (double)n));
    tear_down(&s);

    const linear_case tall = { .m = n, .n = rows, .k = columns, .dtype = dtype, .wanted = DW | DB };
    build(&s, &tall, BACKWARD);
    thin_out(&s);
    MUST(atto_tensor_fill(&s.dy.t.view, 1.0));
    MUST(atto_tensor_fill(&s.x.t.view, 1.0));
    MUST(atto_linear_backward(test_dev, &s.a));
    expect_everywhere(&s.dw.t.view, "dw", oracle_round(dtype, (double)n));
    expect_everywhere(&s.db.t.view, "db", oracle_round(dtype, (double)n));
    tear_down(&s);
}

static void linear_sums_ones_exactly_in_every_dtype(void **state)
{
    (void)state;
    const int64_t lengths[] = { 257, 2049, 4096, 65000 };
    for (int d = 0; d < COUNT_OF(dtypes); d++)
        for (int i = 0; i < COUNT_OF(lengths); i++) {
            if (!meets(true, i == 3 && d == 1)) continue;
            expect_exact_sums(dtypes[d], 1, 1, lengths[i]);
            expect_exact_sums(dtypes[d], 9, 3, lengths[i]);
        }
}

/* z = 1 + u, a tie that is stored as 1; what stands behind it sees the u. */
static void linear_uses_z_as_it_was_before_rounding(void **state)
{
    (void)state;
    const atto_activation acts[] = { atto_identity(), atto_relu() };
    for (int d = 1; d < COUNT_OF(dtypes); d++)
        for (int i = 0; i < COUNT_OF(acts); i++) {
            if (!meets(i == 0, i == 0 && d == 1)) continue;
            scene s;
            const double u = oracle_unit(dtypes[d]), x[] = { 1.0, u }, one[] = { 1.0, 1.0 };
            build(&s,
                  &(linear_case){ .m = 1,
                                  .n = 1,
                                  .k = 2,
                                  .dtype = dtypes[d],
                                  .act = acts[i],
                                  .residual = true,
                                  .save_z = true },
                  FORWARD);
            test_tensor_put(&s.x.t, x);
            test_tensor_put(&s.w.t, one);
            MUST(atto_tensor_fill(&s.residual.t.view, -1.0));
            MUST(atto_linear_forward(test_dev, &s.a));
            expect_everywhere(&s.z.t.view, "z", 1.0);
            expect_everywhere(&s.y.t.view, "y", u);
            tear_down(&s);
        }
}

/* What overflows f16 on the way but not at the end: 2000 * 40 - 2000 * 40 + 1. */
static void linear_in_f16_does_not_overflow_inside(void **state)
{
    (void)state;
    scene s;
    const double x[] = { 2000.0, 2000.0, 1.0 }, w[] = { 40.0, -40.0, 1.0 };
    build(&s, &(linear_case){ .m = 1, .n = 1, .k = 3, .dtype = ATTO_F16 }, FORWARD);
    test_tensor_put(&s.x.t, x);
    test_tensor_put(&s.w.t, w);
    MUST(atto_linear_forward(test_dev, &s.a));
    expect_everywhere(&s.y.t.view, "y", 1.0);
    MUST(atto_tensor_fill(&s.w.t.view, 40.0));
    MUST(atto_linear_forward(test_dev, &s.a));
    expect_everywhere(&s.y.t.view, "y", INFINITY); /* and what overflows at the end is reported */
    tear_down(&s);
}

/* F7: NaN and infinities reach what depends on them and nothing else; dropout ends them. */
static void linear_propagates_nan_and_infinity(void **state)
{
    (void)state;
    const atto_activation acts[] = { atto_identity(), atto_gelu() };
    for (int d = 0; d < COUNT_OF(dtypes); d++)
        for (int i = 0; i < COUNT_OF(acts); i++)
            for (int f = 0; f < 2; f++) {
                if (!meets(d < 2 && i == 1 - d && f == 1, false)) continue;
                check_both(&(linear_case){ .m = 13,
                                           .n = 17,
                                           .k = 11,
                                           .dtype = dtypes[d],
                                           .act = acts[i],
                                           .bias = true,
                                           .residual = f == 1,
                                           .save_z = true,
                                           .dropout = f == 1 ? 0.5f : 0.0f,
                                           .rng = { 3, 0, ATTO_RNG_PHILOX },
                                           .not_finite = true,
                                           .seed = 900 });
            }
}

/* ---- dropout ---- */

static const struct mask_row {
    int32_t rank;
    int64_t outer, m, n;
    float p;
    atto_rng_kind kind;
    test_layout layout;
} mask_rows[] = {
    { 2, 1, 13, 129, 0.3f, ATTO_RNG_PHILOX, LAYOUT_DENSE },
    { 2, 1, 13, 130, 0.5f, ATTO_RNG_PHILOX, LAYOUT_PITCHED },
    { 2, 1, 64, 64, 0.1f, ATTO_RNG_PHILOX, LAYOUT_DENSE },
    { 2, 1, 13, 131, 0.5f, ATTO_RNG_PHILOX, LAYOUT_TRANSPOSED },
    { 3, 5, 35, 33, 0.7f, ATTO_RNG_PHILOX, LAYOUT_SCATTERED },
    { 1, 1, 1, 1037, 0.5f, ATTO_RNG_PHILOX, LAYOUT_OFFSET },
    { 2, 1, 13, 129, 0.3f, ATTO_RNG_TRITON, LAYOUT_DENSE },
    { 2, 1, 7, 33, 1.0f, ATTO_RNG_PHILOX, LAYOUT_DENSE },
};

/* J2: bit for bit the mask of the element's logical index. Forward a bias of 1 shows it; backward
 * the gradient of one column, where dx = dz w has a single term. */
static void check_mask(const struct mask_row *row, atto_dtype dtype)
{
    const linear_case forward = { .m = row->m,
                                  .n = row->n,
                                  .k = 1,
                                  .rank = row->rank,
                                  .outer = row->outer,
                                  .dtype = dtype,
                                  .bias = true,
                                  .dropout = row->p,
                                  .rng = { 123, 45, row->kind },
                                  .result = row->layout };
    scene s;
    build(&s, &forward, FORWARD);
    MUST(atto_tensor_fill(&s.x.t.view, 0.0));
    MUST(atto_tensor_fill(&s.b.t.view, 1.0));
    MUST(atto_linear_forward(test_dev, &s.a));
    const double kept = oracle_round(dtype, oracle_keep_scale(row->p));
    double *y = test_doubles(s.y.t.numel);
    test_tensor_get(&s.y.t, y);
    for (int64_t i = 0; i < s.y.t.numel; i++)
        if (y[i] != (oracle_keep(forward.rng, row->p, i) ? kept : 0.0))
            fail_msg("mask of [%d,%d], p %g, %s on %s: element %d is %g", (int)row->m, (int)row->n,
                     (double)row->p, test_layout_name(row->layout), test_backend(), (int)i, y[i]);
    free(y);
    tear_down(&s);
}

static void linear_mask_is_that_of_the_logical_index(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(mask_rows); i++)
        for (int d = 0; d < COUNT_OF(dtypes); d++) {
            const struct mask_row *row = &mask_rows[i];
            if (!meets(d == 0, row->kind == ATTO_RNG_PHILOX && d == 0)) continue;
            check_mask(row, dtypes[d]);
            check_backward(&(linear_case){ .m = row->m,
                                           .n = row->n,
                                           .k = 3,
                                           .rank = row->rank,
                                           .outer = row->outer,
                                           .dtype = dtypes[d],
                                           .dropout = row->p,
                                           .rng = { 123, 45, row->kind },
                                           .in = row->layout,
                                           .seed = 950 });
        }
}

/* ---- arguments ---- */

typedef struct mismatch_row {
    bool backward;
    size_t field; /* of the tensor in the args struct */
    const char *name;
    atto_dtype wrong; /* another legal dtype, which does not fit beside f16 */
} mismatch_row;

#define MISMATCH(backward, name, wrong)                                 \
    {                                                                   \
        backward, offsetof(struct atto_linear_args, name), #name, wrong \
    }
static const mismatch_row mismatches[] = {
    MISMATCH(false, x, ATTO_F32),         MISMATCH(false, w, ATTO_F32),
    MISMATCH(false, b, ATTO_BF16),        MISMATCH(false, y, ATTO_BF16),
    MISMATCH(false, residual, ATTO_BF16), MISMATCH(false, z, ATTO_F32),
    MISMATCH(true, x, ATTO_BF16),         MISMATCH(true, w, ATTO_F32),
    MISMATCH(true, z, ATTO_F32),          MISMATCH(true, dy, ATTO_BF16),
    MISMATCH(true, dx, ATTO_F32),         MISMATCH(true, dw, ATTO_BF16),
    MISMATCH(true, db, ATTO_BF16),
};

static void smaller_last(atto_tensor *t)
{
    t->shape[t->rank - 1]--;
}
static void smaller_first(atto_tensor *t)
{
    t->shape[0]--;
}
static void empty(atto_tensor *t)
{
    t->shape[0] = 0;
}
static void rank_less(atto_tensor *t)
{
    t->rank--;
}
static void rank_more(atto_tensor *t)
{
    t->stride[t->rank] = 1;
    t->shape[t->rank++] = 1;
}
static void rank_zero(atto_tensor *t)
{
    t->rank = 0;
}

/* w's rows or columns fit nothing but themselves, so every one of these is wrong. */
static void (*const bad_shapes[])(atto_tensor *t) = { smaller_last, smaller_first, empty,
                                                      rank_less,    rank_more,     rank_zero };

static atto_status call(scene *s, bool backward)
{
    return backward ? atto_linear_backward(test_dev, &s->a) : atto_linear_forward(test_dev, &s->a);
}

/* A message names the field that does not fit; for those that the others are measured by, any. */
static void mismatch_words(const mismatch_row *row, char *out, size_t size)
{
    const bool measures =
        strcmp(row->name, "x") == 0 || strcmp(row->name, "w") == 0 || strcmp(row->name, "dy") == 0;
    const char *call = row->backward ? "linear_backward: " : "linear_forward: ";
    snprintf(out, size, "%s%s%s", call, measures ? "" : row->name, measures ? "" : " is");
}

static void expect_mismatches(const mismatch_row *row)
{
    const linear_case c = { .m = 6,
                            .n = 4,
                            .k = 3,
                            .dtype = ATTO_F16,
                            .act = atto_relu(),
                            .bias = true,
                            .residual = true,
                            .save_z = true };
    const atto_dtype wrong[] = { row->wrong, ATTO_I32, ATTO_I64 };
    char words[64];
    scene s;
    build(&s, &c, row->backward ? BACKWARD : FORWARD);
    mismatch_words(row, words, sizeof words);
    const atto_tensor **slot = (const atto_tensor **)(void *)((char *)&s.a + row->field);
    const atto_tensor good = **slot;
    atto_tensor bad;
    *slot = &bad;
    for (int i = 0; i < COUNT_OF(bad_shapes); i++) {
        bad = good;
        bad_shapes[i](&bad);
        EXPECT_FAIL(call(&s, row->backward), ATTO_E_SHAPE, words);
    }
    for (int i = 0; i < COUNT_OF(wrong); i++) {
        MUST(atto_tensor_alloc(test_dev, wrong[i], atto_shape_of(good.rank, good.shape), &bad));
        EXPECT_FAIL(call(&s, row->backward), ATTO_E_DTYPE, words);
        atto_tensor_free(&bad);
    }
    for (int i = 0; i < OPERANDS; i++) assert_true(test_tensor_untouched(&operand_of(&s, i)->t));
    tear_down(&s);
}

static void linear_refuses_mismatched_tensors(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(mismatches); i++) expect_mismatches(&mismatches[i]);
}

static const struct bad_row {
    const char *words;
    atto_activation act;
    float dropout;
    int rng_kind;
} bad_rows[] = {
    { "dropout", { ATTO_ACT_RELU, 0, 0 }, -0.1f, 0 },
    { "dropout", { ATTO_ACT_RELU, 0, 0 }, 1.1f, 0 },
    { "dropout", { ATTO_ACT_RELU, 0, 0 }, NAN, 0 },
    { "random", { ATTO_ACT_RELU, 0, 0 }, 0.5f, 2 },
    { "act", { (atto_activation_kind)ATTO_ACT_COUNT, 0, 0 }, 0, 0 },
    { "act", { (atto_activation_kind)-1, 0, 0 }, 0, 0 },
    { "softplus", { ATTO_ACT_SOFTPLUS, 0, 20 }, 0, 0 },
    { "hardtanh", { ATTO_ACT_HARDTANH, 1, -1 }, 0, 0 },
};

static void linear_refuses_illegal_numbers(void **state)
{
    (void)state;
    for (int backward = 0; backward < 2; backward++)
        for (int i = 0; i < COUNT_OF(bad_rows); i++) {
            scene s;
            build(&s, &(linear_case){ .m = 3, .n = 4, .k = 5, .dtype = ATTO_F32 },
                  backward ? BACKWARD : FORWARD);
            s.a.z = &s.z.t.view;
            s.a.act = bad_rows[i].act;
            s.a.dropout = bad_rows[i].dropout;
            s.a.rng.kind = (atto_rng_kind)bad_rows[i].rng_kind;
            EXPECT_FAIL(call(&s, backward), ATTO_E_ARGUMENT, bad_rows[i].words);
            for (int o = 0; o < OPERANDS; o++)
                assert_true(test_tensor_untouched(&operand_of(&s, o)->t));
            tear_down(&s);
        }
}

/* A silent fallback would test the CPU twice. */
static void linear_never_fell_back(void **state)
{
    (void)state;
    atto_device_stats stats;
    MUST(atto_device_stats_get(test_dev, &stats));
    assert_int_equal(stats.fallbacks, 0);
    for (int d = 0; d < COUNT_OF(dtypes); d++)
        assert_true(atto_device_supports(test_dev, ATTO_OP_LINEAR, dtypes[d]));
    assert_false(atto_device_supports(test_dev, ATTO_OP_LINEAR, ATTO_I32));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(linear_takes_any_size),
    cmocka_unit_test(linear_takes_lopsided_shapes),
    cmocka_unit_test(linear_takes_every_dtype_with_everything_fused),
    cmocka_unit_test(linear_takes_every_activation),
    cmocka_unit_test(linear_takes_any_layout_and_rank),
    cmocka_unit_test(linear_reads_nothing_outside_its_views),
    cmocka_unit_test(linear_takes_overlapping_inputs),
    cmocka_unit_test(linear_of_empty_tensors_gives_neutral_values),
    cmocka_unit_test(linear_without_outputs_launches_nothing),
    cmocka_unit_test(linear_backward_skips_what_is_not_wanted),
    cmocka_unit_test(linear_backward_of_nothing_wanted_does_nothing),
    cmocka_unit_test(linear_backward_says_what_a_gradient_lacks),
    cmocka_unit_test(linear_sums_ones_exactly_in_every_dtype),
    cmocka_unit_test(linear_uses_z_as_it_was_before_rounding),
    cmocka_unit_test(linear_in_f16_does_not_overflow_inside),
    cmocka_unit_test(linear_propagates_nan_and_infinity),
    cmocka_unit_test(linear_mask_is_that_of_the_logical_index),
    cmocka_unit_test(linear_refuses_mismatched_tensors),
    cmocka_unit_test(linear_refuses_illegal_numbers),
    cmocka_unit_test(linear_never_fell_back),
};
TEST_MAIN("linear", tests)
