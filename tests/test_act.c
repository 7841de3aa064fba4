/* SPDX-License-Identifier: MIT */
/* Activations and the dropout fused behind them: the double oracle decides, on
 * every backend. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

/* ---- one case ---- */

typedef struct act_case {
    atto_activation act;
    atto_dtype dtype;
    atto_shape shape;
    test_layout in, out; /* of x and dy, of y and dx */
    float dropout;
    atto_rng rng;
    bool add;      /* dx += */
    bool in_place; /* y is x, dx is dy */
    uint64_t seed;
} act_case;

static int64_t numel(const atto_shape *shape)
{
    int64_t n = 1;
    for (int32_t d = 0; d < shape->rank; d++) n *= shape->dim[d];
    return n;
}

static test_about about(const act_case *c, bool grad, char *name)
{
    snprintf(name, 32, "%s%s", atto_activation_name(c->act.kind), grad ? "_grad" : "");
    test_about a = { name, test_layout_name(c->in), c->dtype, c->shape, c->seed };
    if (c->in == LAYOUT_DENSE) a.layout = test_layout_name(c->out);
    return a;
}

static struct atto_act_args args_of(const act_case *c)
{
    struct atto_act_args a;
    memset(&a, 0, sizeof a);
    a.act = c->act;
    a.dropout = c->dropout;
    a.rng = c->rng;
    return a;
}

/* y = keep * act(x) / (1 - p) */
static void check_forward(const act_case *c)
{
    char name[32];
    const test_about where = about(c, false, name);
    const int64_t n = numel(&c->shape);
    double *x = test_doubles(n), *got = test_doubles(n), *want = test_doubles(n);
    double *allowed = test_doubles(n);
    test_tensor tx, ty;
    test_tensor_make(&tx, test_dev, c->dtype, c->shape, c->in);
    test_tensor_make(&ty, test_dev, c->dtype, c->shape, c->out);
    test_inputs(c->seed, c->act, c->dtype, x, n);
    test_tensor_put(&tx, x);
    test_tensor_held(&tx, x);

    struct atto_act_args a = args_of(c);
    a.x = &tx.view;
    a.y = c->in_place ? &tx.view : &ty.view;
    MUST(atto_act_forward(test_dev, &a));

    test_tensor_get(c->in_place ? &tx : &ty, got);
    assert_true(c->in_place || test_tensor_untouched(&tx));
    for (int64_t i = 0; i < n; i++) {
        want[i] = oracle_act_forward(c->act, c->dropout, c->rng, i, x[i]);
        allowed[i] = atto_tol(name, c->dtype, 1, oracle_act_terms(c->act, c->dropout, x[i]));
    }
    expect_close(&where, got, want, allowed, n);
    test_tensor_drop(&tx);
    test_tensor_drop(&ty);
    free(x), free(got), free(want), free(allowed);
}

/* dx = keep * act'(x) * dy / (1 - p), or dx += that: one term more. */
static void check_backward(const act_case *c)
{
    char name[32];
    const test_about where = about(c, true, name);
    const int64_t n = numel(&c->shape);
    double *x = test_doubles(n), *dy = test_doubles(n), *old = test_doubles(n);
    double *got = test_doubles(n), *want = test_doubles(n), *allowed = test_doubles(n);
    test_tensor tx, tdy, tdx;
    test_tensor_make(&tx, test_dev, c->dtype, c->shape, c->in);
    test_tensor_make(&tdy, test_dev, c->dtype, c->shape, c->in_place ? c->out : c->in);
    test_tensor_make(&tdx, test_dev, c->dtype, c->shape, c->out);
    test_inputs(c->seed, c->act, c->dtype, x, n);
    test_uniform(c->seed + 1, -2.0, 2.0, c->dtype, dy, n);
    test_uniform(c->seed + 2, -1.0, 1.0, c->dtype, old, n);
    test_tensor_put(&tx, x);
    test_tensor_put(&tdy, dy);
    if (c->add) test_tensor_put(&tdx, old);
    test_tensor_held(&tx, x);
    test_tensor_held(&tdy, dy);
    const double *base = c->in_place ? dy : old;

    struct atto_act_args a = args_of(c);
    a.x = &tx.view;
    a.dy = &tdy.view;
    a.dx = c->in_place ? &tdy.view : &tdx.view;
    a.add_dx = c->add;
    MUST(atto_act_backward(test_dev, &a));

    test_tensor_get(c->in_place ? &tdy : &tdx, got);
    assert_true(test_tensor_untouched(&tx));
    assert_true(c->in_place || test_tensor_untouched(&tdy));
    for (int64_t i = 0; i < n; i++) {
        const double terms = oracle_act_grad_terms(c->act, c->dropout, x[i], dy[i]);
        want[i] = oracle_act_backward(c->act, c->dropout, c->rng, i, x[i], dy[i]);
        allowed[i] = atto_tol(name, c->dtype, 1, terms);
        if (!c->add) continue;
        want[i] += base[i];
        allowed[i] = atto_tol(name, c->dtype, 2, terms + fabs(base[i]));
    }
    expect_close(&where, got, want, allowed, n);
    test_tensor_drop(&tx);
    test_tensor_drop(&tdy);
    test_tensor_drop(&tdx);
    free(x), free(dy), free(old), free(got), free(want), free(allowed);
}

static void check_both(const act_case *c)
{
    check_forward(c);
    check_backward(c);
}

/* Which dtypes and directions an activation is tried with. Building a kernel costs a driver a
 * quarter of a second, so on OpenCL each activation meets f32 in both directions and one 16-bit
 * dtype in one; where the device plays another one, one dtype in one direction. The CPU meets all.
 */
static bool wanted(atto_activation_kind kind, atto_dtype dtype, bool backward)
{
    const atto_dtype any[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };
    const int k = (int)kind;
    if (!test_on_opencl()) return true;
    if (test_in_disguise()) return dtype == any[k % 3] && backward == (k / 3 % 2 == 1);
    return dtype == ATTO_F32 || (dtype == any[1 + k % 2] && backward == (k / 2 % 2 == 1));
}

static const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };

/* What sizes, layouts and dropout are tried with: gelu in f32, which computes, and relu in the
 * 16-bit dtypes, which moves words; the first alone where the device plays another one. */
static atto_activation typical(int dtype)
{
    return dtype == 0 ? atto_gelu() : atto_relu();
}
static int dtypes_tried(void)
{
    return test_on_opencl() && test_in_disguise() ? 1 : COUNT_OF(dtypes);
}

/* ---- every activation ---- */

static void act_forward_matches_oracle(void **state)
{
    (void)state;
    atto_activation acts[TEST_ACTIVATIONS_MAX];
    const int n = test_activations(acts);
    for (int i = 0; i < n; i++)
        for (int d = 0; d < COUNT_OF(dtypes); d++) {
            if (!wanted(acts[i].kind, dtypes[d], false)) continue;
            check_forward(&(act_case){ .act = acts[i],
                                       .dtype = dtypes[d],
                                       .shape = atto_shape1(2311),
                                       .seed = 10 + (uint64_t)i });
        }
}

static void act_backward_matches_oracle(void **state)
{
    (void)state;
    atto_activation acts[TEST_ACTIVATIONS_MAX];
    const int n = test_activations(acts);
    for (int i = 0; i < n; i++)
        for (int d = 0; d < COUNT_OF(dtypes); d++) {
            if (!wanted(acts[i].kind, dtypes[d], true)) continue;
            check_backward(&(act_case){ .act = acts[i],
                                        .dtype = dtypes[d],
                                        .shape = atto_shape1(2311),
                                        .seed = 20 + (uint64_t)i });
        }
}

/* The dtype decides: what involves no arithmetic must come out bit for bit. */
static void act_forward_of_exact_activations_rounds_nothing(void **state)
{
    (void)state;
    const atto_activation exact[] = { atto_identity(), atto_relu(), atto_relu6(),
                                      atto_hardtanh(-1.0f, 1.0f), atto_hardshrink(0.5f) };
    for (int i = 0; i < COUNT_OF(exact); i++)
        for (int d = 0; d < COUNT_OF(dtypes); d++) {
            if (!wanted(exact[i].kind, dtypes[d], false)) continue;
            const act_case c = {
                .act = exact[i], .dtype = dtypes[d], .shape = atto_shape1(700), .seed = 31
            };
            double x[700], got[700], want[700];
            char name[32];
            const test_about where = about(&c, false, name);
            test_tensor tx, ty;
            test_tensor_make(&tx, test_dev, c.dtype, c.shape, LAYOUT_DENSE);
            test_tensor_make(&ty, test_dev, c.dtype, c.shape, LAYOUT_DENSE);
            test_inputs(c.seed, c.act, c.dtype, x, 700);
            test_tensor_put(&tx, x);
            struct atto_act_args a = args_of(&c);
            a.x = &tx.view;
            a.y = &ty.view;
            MUST(atto_act_forward(test_dev, &a));
            test_tensor_get(&ty, got);
            for (int k = 0; k < 700; k++)
                want[k] = oracle_act_of(c.act.kind)->f(x[k], c.act.a, c.act.b);
            expect_equal(&where, got, want, 700);
            test_tensor_drop(&tx);
            test_tensor_drop(&ty);
        }
}

/* ---- sizes ---- */

/* 1, primes, one below and above powers of two and of the work-group sizes, and
 * one large. */
static const int64_t sizes[] = { 1,   2,   3,   5,   31,  33,   63,   65,   127,
                                 129, 255, 257, 511, 512, 1023, 1025, 4099, 200003 };

static void act_forward_and_backward_take_any_size(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(sizes); i++)
        for (int d = 0; d < dtypes_tried(); d++)
            check_both(&(act_case){ .act = typical(d),
                                    .dtype = dtypes[d],
                                    .shape = atto_shape1(sizes[i]),
                                    .out = i % 2 ? LAYOUT_OFFSET : LAYOUT_DENSE,
                                    .in = i % 3 ? LAYOUT_OFFSET : LAYOUT_DENSE,
                                    .seed = 100 + (uint64_t)i });
}

/* ---- layouts ---- */

static const struct layout_row {
    int32_t rank;
    int64_t dims[ATTO_MAX_RANK];
    test_layout in, out;
} layout_rows[] = {
    { 0, { 0 }, LAYOUT_DENSE, LAYOUT_DENSE }, /* rank 0: one element */
    { 0, { 0 }, LAYOUT_OFFSET, LAYOUT_DENSE },
    { 3, { 1, 1, 1 }, LAYOUT_SCATTERED, LAYOUT_TRANSPOSED },
    { 1, { 131 }, LAYOUT_STEP2, LAYOUT_DENSE },
    { 1, { 131 }, LAYOUT_DENSE, LAYOUT_STEP2 },
    { 2, { 7, 33 }, LAYOUT_PITCHED, LAYOUT_DENSE },
    { 2, { 7, 33 }, LAYOUT_PITCHED, LAYOUT_PITCHED },
    { 2, { 7, 40 }, LAYOUT_PITCHED, LAYOUT_PITCHED },
    { 2, { 7, 40 }, LAYOUT_ALIGNED, LAYOUT_ALIGNED }, /* whole vectors in each row */
    { 2, { 7, 40 }, LAYOUT_ALIGNED, LAYOUT_DENSE },
    { 2, { 7, 44 }, LAYOUT_ALIGNED, LAYOUT_ALIGNED }, /* f32 only */
    { 2, { 7, 33 }, LAYOUT_ALIGNED, LAYOUT_ALIGNED },
    { 1, { 1000 }, LAYOUT_OFFSET4, LAYOUT_OFFSET4 },
    { 1, { 1000 }, LAYOUT_OFFSET4, LAYOUT_DENSE },
    { 2, { 33, 7 }, LAYOUT_TRANSPOSED, LAYOUT_DENSE },
    { 2, { 33, 7 }, LAYOUT_DENSE, LAYOUT_TRANSPOSED },
    { 2, { 33, 7 }, LAYOUT_TRANSPOSED, LAYOUT_TRANSPOSED },
    { 2, { 5, 65 }, LAYOUT_BROADCAST, LAYOUT_DENSE },
    { 2, { 5, 65 }, LAYOUT_BROADCAST, LAYOUT_PITCHED },
    { 3, { 3, 5, 17 }, LAYOUT_SCATTERED, LAYOUT_DENSE },
    { 3, { 3, 5, 17 }, LAYOUT_SCATTERED, LAYOUT_STEP2 },
    { 3, { 6, 1, 43 }, LAYOUT_TRANSPOSED, LAYOUT_SCATTERED },
    { 4, { 2, 3, 7, 5 }, LAYOUT_CHANNELS_LAST, LAYOUT_CHANNELS_LAST },
    { 4, { 2, 3, 7, 5 }, LAYOUT_CHANNELS_LAST, LAYOUT_DENSE },
    { 4, { 2, 8, 3, 4 }, LAYOUT_CHANNELS_LAST, LAYOUT_CHANNELS_LAST },
    { 4, { 2, 3, 5, 16 }, LAYOUT_ALIGNED, LAYOUT_ALIGNED },
    { 4, { 2, 3, 7, 5 }, LAYOUT_SCATTERED, LAYOUT_TRANSPOSED },
    { 5, { 2, 3, 2, 3, 5 }, LAYOUT_SCATTERED, LAYOUT_SCATTERED }, /* 5 dims: hidden copies */
    { 5, { 2, 3, 2, 3, 5 }, LAYOUT_BROADCAST, LAYOUT_TRANSPOSED },
    { 8, { 2, 1, 2, 3, 2, 1, 2, 2 }, LAYOUT_SCATTERED, LAYOUT_DENSE },
    { 8, { 2, 2, 2, 2, 2, 2, 2, 3 }, LAYOUT_TRANSPOSED, LAYOUT_SCATTERED },
    { 1, { 0 }, LAYOUT_DENSE, LAYOUT_DENSE }, /* empty: NULL buffers */
    { 3, { 4, 0, 3 }, LAYOUT_TRANSPOSED, LAYOUT_DENSE },
    { 2,
      { 85, 301 },
      LAYOUT_TRANSPOSED,
      LAYOUT_DENSE }, /* more than a tile of the CPU's, and parts */
    { 2, { 85, 301 }, LAYOUT_TRANSPOSED, LAYOUT_PITCHED },
    { 2, { 16, 33 }, LAYOUT_TRANSPOSED, LAYOUT_DENSE },
    { 4, { 2, 40, 5, 60 }, LAYOUT_CHANNELS_LAST, LAYOUT_DENSE },
};

/* One activation with all dtypes, and dropout every other time: layouts must
 * not move the mask. */
static void act_forward_and_backward_take_any_layout(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(layout_rows); i++)
        for (int d = 0; d < dtypes_tried(); d++) {
            const struct layout_row *row = &layout_rows[i];
            check_both(&(act_case){ .act = typical(d),
                                    .dtype = dtypes[d],
                                    .shape = atto_shape_of(row->rank, row->dims),
                                    .in = row->in,
                                    .out = row->out,
                                    .dropout = (i + d) % 2 ? 0.3f : 0.0f,
                                    .rng = { 77, (uint64_t)i, ATTO_RNG_PHILOX },
                                    .add = i % 3 == 1,
                                    .seed = 200 + (uint64_t)i });
        }
}

static void act_forward_and_backward_work_in_place(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_DENSE, LAYOUT_OFFSET, LAYOUT_PITCHED,
                                    LAYOUT_TRANSPOSED };
    for (int i = 0; i < COUNT_OF(layouts); i++)
        for (int d = 0; d < dtypes_tried(); d++)
            check_both(&(act_case){ .act = typical(d),
                                    .dtype = dtypes[d],
                                    .shape = atto_shape2(9, 115),
                                    .in = layouts[i],
                                    .out = layouts[i],
                                    .in_place = true,
                                    .add = i == 2,
                                    .dropout = i == 1 ? 0.5f : 0.0f,
                                    .seed = 300 + (uint64_t)i });
}

/* ---- gradients ---- */

static void act_backward_accumulates(void **state)
{
    (void)state;
    for (int d = 0; d < dtypes_tried(); d++)
        for (int i = 0; i < 2; i++)
            check_backward(&(act_case){ .act = typical(d),
                                        .dtype = dtypes[d],
                                        .shape = atto_shape2(5, 207),
                                        .out = i ? LAYOUT_PITCHED : LAYOUT_DENSE,
                                        .add = true,
                                        .dropout = 0.25f,
                                        .seed = 400 });
}

/* dx = NULL means the gradient is not wanted. */
static void act_backward_without_dx_does_nothing(void **state)
{
    (void)state;
    test_tensor x, dy;
    test_tensor_make(&x, test_dev, ATTO_F32, atto_shape1(100), LAYOUT_DENSE);
    test_tensor_make(&dy, test_dev, ATTO_F32, atto_shape1(100), LAYOUT_DENSE);
    const struct atto_act_args a = { .x = &x.view, .dy = &dy.view, .act = atto_relu() };
    atto_device_stats before, after;
    MUST(atto_device_stats_get(test_dev, &before));
    MUST(atto_act_backward(test_dev, &a));
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.launches, before.launches);
    assert_true(test_tensor_untouched(&x) && test_tensor_untouched(&dy));
    test_tensor_drop(&x);
    test_tensor_drop(&dy);
}

/* Nothing is enqueued for empty tensors, whose buffers are NULL. */
static void act_of_empty_tensors_launches_nothing(void **state)
{
    (void)state;
    const atto_tensor empty = atto_tensor_of(NULL, ATTO_F16, atto_shape2(0, 5), 0);
    const struct atto_act_args a = {
        .x = &empty, .y = &empty, .dy = &empty, .dx = &empty, .act = atto_silu(), .dropout = 0.5f
    };
    atto_device_stats before, after;
    MUST(atto_device_stats_get(test_dev, &before));
    MUST(atto_act_forward(test_dev, &a));
    MUST(atto_act_backward(test_dev, &a));
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.launches, before.launches);
}

/* ---- known values ---- */

/* PyTorch 2.11, from the list of scenarios (F1, F2, F4, F6) and the
 * specification (2.3). NAN in grad: not stated. relative is the tolerance; 0 =
 * exact. */
static const struct value_row {
    const char *why;
    atto_activation act;
    double x, y, grad, relative;
} value_rows[] = {
    { "F1", { ATTO_ACT_SOFTPLUS, 1, 20 }, -120, 0, NAN, 0 },
    { "F1", { ATTO_ACT_SOFTPLUS, 1, 20 }, -20, 2.0611536e-9, 2.0611536e-9, 2e-6 },
    { "F1", { ATTO_ACT_SOFTPLUS, 1, 20 }, 0, 0.69314718, 0.5, 1e-6 },
    { "F1", { ATTO_ACT_SOFTPLUS, 1, 20 }, 20, 20, 1, 1e-6 },
    { "F1", { ATTO_ACT_SOFTPLUS, 1, 20 }, 88, 88, 1, 0 },
    { "F1", { ATTO_ACT_SOFTPLUS, 1, 20 }, 89, 89, 1, 0 },
    { "F1", { ATTO_ACT_SOFTPLUS, 1, 20 }, 1000, 1000, 1, 0 },
    { "F1", { ATTO_ACT_SOFTPLUS, 5, 20 }, 18, 18, 1, 0 },
    { "F1", { ATTO_ACT_SOFTPLUS, 5, 20 }, 20, 20, 1, 0 },
    { "F2", { ATTO_ACT_MISH, 0, 0 }, -20, NAN, -3.9161918e-8, 4e-6 },
    { "F2", { ATTO_ACT_MISH, 0, 0 }, 0, 0, 0.6, 1e-6 },
    { "F2", { ATTO_ACT_MISH, 0, 0 }, 22, 22, 1, 1e-6 },
    { "F2", { ATTO_ACT_MISH, 0, 0 }, 23, 23, 1, 1e-6 },
    { "F2", { ATTO_ACT_MISH, 0, 0 }, 25, 25, 1, 1e-6 },
    { "F2", { ATTO_ACT_MISH, 0, 0 }, 100, 100, 1, 1e-6 },
    { "F4", { ATTO_ACT_LOGSIGMOID, 0, 0 }, -1000, -1000, 1, 0 },
    { "F4", { ATTO_ACT_LOGSIGMOID, 0, 0 }, -100, -100, 1, 0 },
    { "F4", { ATTO_ACT_LOGSIGMOID, 0, 0 }, -90, -90, 1, 0 },
    { "F4", { ATTO_ACT_LOGSIGMOID, 0, 0 }, 0, -0.69314718, 0.5, 1e-6 },
    { "F6", { ATTO_ACT_HARDSHRINK, 0.5, 0 }, 0.5, 0, 0, 0 },
    { "F6", { ATTO_ACT_HARDSHRINK, 0.5, 0 }, -0.5, 0, 0, 0 },
    { "F6", { ATTO_ACT_SOFTSHRINK, 0.5, 0 }, 0.5, 0, 0, 0 },
    { "F6", { ATTO_ACT_SOFTSHRINK, 0.5, 0 }, -0.5, 0, 0, 0 },
    { "F6", { ATTO_ACT_HARDSWISH, 0, 0 }, -3, 0, 0, 0 },
    { "F6", { ATTO_ACT_HARDSWISH, 0, 0 }, 3, 3, 1, 1e-6 },
    { "F6", { ATTO_ACT_HARDSIGMOID, 0, 0 }, -3, 0, 0, 0 },
    { "F6", { ATTO_ACT_HARDSIGMOID, 0, 0 }, 3, 1, 0, 1e-6 },
    { "F6", { ATTO_ACT_RELU6, 0, 0 }, 0, 0, 0, 0 },
    { "F6", { ATTO_ACT_RELU6, 0, 0 }, 6, 6, 0, 0 },
    { "F6", { ATTO_ACT_HARDTANH, -1, 1 }, -1, -1, 0, 0 },
    { "F6", { ATTO_ACT_HARDTANH, -1, 1 }, 1, 1, 0, 0 },
    { "F6", { ATTO_ACT_RELU, 0, 0 }, 0, 0, 0, 0 },
    { "2.3", { ATTO_ACT_LEAKY_RELU, 0.25, 0 }, 0, 0, 0.25, 0 },
    { "2.3", { ATTO_ACT_ELU, 0.75, 0 }, 0, 0, 0.75, 1e-6 },
    { "2.3", { ATTO_ACT_CELU, 0.75, 0 }, 0, 0, 1, 1e-6 },
    { "2.3", { ATTO_ACT_SELU, 0, 0 }, 0, 0, 1.7580993, 1e-6 },
    { "D", { ATTO_ACT_TANH, 0, 0 }, 1e-5, 1e-5, 1, 1e-6 }, /* appendix D: digits
                                                              near 0 */
    { "D", { ATTO_ACT_TANHSHRINK, 0, 0 }, 1e-3, 3.33333200e-10, 9.99999333e-7, 2e-6 },
    { "D", { ATTO_ACT_ELU, 1, 0 }, -1e-7, -9.9999995e-8, 0.9999999, 1e-6 },
    { "D", { ATTO_ACT_LOGSIGMOID, 0, 0 }, 20, -2.0611536e-9, 2.0611536e-9, 2e-6 },
};

/* y and dx (for dy = 1) of one number. */
static void one_value(atto_activation act, atto_dtype dtype, double x, double *y, double *dx)
{
    const double one = 1.0;
    test_tensor tx, ty, tdy, tdx;
    test_tensor *all[] = { &tx, &ty, &tdy, &tdx };
    for (int i = 0; i < 4; i++)
        test_tensor_make(all[i], test_dev, dtype, atto_shape1(1), LAYOUT_DENSE);
    test_tensor_put(&tx, &x);
    test_tensor_put(&tdy, &one);
    const struct atto_act_args a = {
        .x = &tx.view, .y = &ty.view, .dy = &tdy.view, .dx = &tdx.view, .act = act
    };
    MUST(atto_act_forward(test_dev, &a));
    MUST(atto_act_backward(test_dev, &a));
    test_tensor_get(&ty, y);
    test_tensor_get(&tdx, dx);
    for (int i = 0; i < 4; i++) test_tensor_drop(all[i]);
}

static void judge_value(const struct value_row *row, const char *what, double got, double want)
{
    if (isnan(want) || fabs(got - want) <= row->relative * fabs(want) + 0x1p-149) return;
    fail_msg("%s: %s of %s(%g, %g) at %g on %s is %.9g, wanted %.9g", row->why, what,
             atto_activation_name(row->act.kind), row->act.a, row->act.b, row->x, test_backend(),
             got, want);
}

static void act_has_pytorch_values_at_bends_and_extremes(void **state)
{
    (void)state;
    if (test_in_disguise()) return; /* the same formulas in other clothes */
    for (int i = 0; i < COUNT_OF(value_rows); i++) {
        const struct value_row *row = &value_rows[i];
        double y, dx;
        one_value(row->act, ATTO_F32, row->x, &y, &dx);
        judge_value(row, "y", y, row->y);
        judge_value(row, "gradient", dx, row->grad);
        judge_value(row, "y (oracle)",
                    oracle_act_of(row->act.kind)->f(row->x, row->act.a, row->act.b), row->y);
        judge_value(row, "gradient (oracle)",
                    oracle_act_of(row->act.kind)->df(row->x, row->act.a, row->act.b), row->grad);
    }
}

/* F1: softplus in f16 at 12 is 12; and no f16 activation forms x * 6 or a
 * square that overflows. */
static void act_in_f16_does_not_overflow_inside(void **state)
{
    (void)state;
    if (test_in_disguise()) return;
    double y, dx;
    one_value(atto_softplus(1.0f, 20.0f), ATTO_F16, 12.0, &y, &dx);
    assert_true(y == 12.0 && dx == 1.0);
    one_value(atto_hardswish(), ATTO_F16, 60000.0, &y, &dx);
    assert_true(y == 60000.0 && dx == 1.0);
    one_value(atto_softsign(), ATTO_F16, 1000.0, &y, &dx);
    assert_true(fabs(y - 0.999) < 5e-4 && fabs(dx - 9.98e-7) < 6e-8);
}

/* C9: GELU over [-6, 6] within 2e-6 of the double result. */
static void act_forward_gelu_is_accurate_over_six(void **state)
{
    (void)state;
    enum { N = 12001 };
    double *x = test_doubles(N), *y = test_doubles(N);
    test_tensor tx, ty;
    test_tensor_make(&tx, test_dev, ATTO_F32, atto_shape1(N), LAYOUT_DENSE);
    test_tensor_make(&ty, test_dev, ATTO_F32, atto_shape1(N), LAYOUT_DENSE);
    for (int i = 0; i < N; i++) x[i] = oracle_round(ATTO_F32, (i - 6000) / 1000.0);
    test_tensor_put(&tx, x);
    const struct atto_act_args a = { .x = &tx.view, .y = &ty.view, .act = atto_gelu() };
    MUST(atto_act_forward(test_dev, &a));
    test_tensor_get(&ty, y);
    for (int i = 0; i < N; i++)
        assert_true(fabs(y[i] - oracle_act_of(ATTO_ACT_GELU)->f(x[i], 0, 0)) <= 2e-6);
    test_tensor_drop(&tx);
    test_tensor_drop(&ty);
    free(x), free(y);
}

/* F7: NaN in, NaN out, for every activation and dtype; neighbours are not
 * infected. */
static void act_forward_propagates_nan(void **state)
{
    (void)state;
    for (int kind = 0; kind < ATTO_ACT_COUNT; kind++)
        for (int d = 0; d < COUNT_OF(dtypes); d++) {
            if (!wanted((atto_activation_kind)kind, dtypes[d], false)) continue;
            const atto_activation act = atto_activation_default((atto_activation_kind)kind);
            const double x[19] = { 1, 1, 1, 1, 1, NAN, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -NAN, 1 };
            double y[19];
            test_tensor tx, ty;
            test_tensor_make(&tx, test_dev, dtypes[d], atto_shape1(19), LAYOUT_DENSE);
            test_tensor_make(&ty, test_dev, dtypes[d], atto_shape1(19), LAYOUT_DENSE);
            test_tensor_put(&tx, x);
            const struct atto_act_args a = { .x = &tx.view, .y = &ty.view, .act = act };
            MUST(atto_act_forward(test_dev, &a));
            test_tensor_get(&ty, y);
            for (int i = 0; i < 19; i++)
                if (isnan(x[i]) != isnan(y[i]))
                    fail_msg("%s of %g in %s on %s is %g", atto_activation_name(act.kind), x[i],
                             atto_dtype_name(dtypes[d]), test_backend(), y[i]);
            test_tensor_drop(&tx);
            test_tensor_drop(&ty);
        }
}

/* ---- fused dropout ---- */

static void act_with_dropout_matches_oracle(void **state)
{
    (void)state;
    const float ps[] = { 0.0f, 0.1f, 0.5f, 1.0f };
    const atto_rng rngs[] = { { 1, 0, ATTO_RNG_PHILOX }, { 1, 5, ATTO_RNG_TRITON } };
    for (int p = 0; p < COUNT_OF(ps); p++)
        for (int r = 0; r < COUNT_OF(rngs); r++)
            for (int d = 0; d < (r ? 1 : dtypes_tried()); d++)
                check_both(&(act_case){ .act = typical(d),
                                        .dtype = dtypes[d],
                                        .shape = atto_shape1(1037),
                                        .dropout = ps[p],
                                        .rng = rngs[r],
                                        .seed = 500 + (uint64_t)p });
}

/* ---- arguments ---- */

static const struct bad_row {
    const char *words;
    atto_activation act;
    float dropout;
    int rng_kind;
} bad_rows[] = {
    { "dropout", { ATTO_ACT_RELU, 0, 0 }, -0.1f, 0 },
    { "dropout", { ATTO_ACT_RELU, 0, 0 }, 1.1f, 0 },
    { "dropout", { ATTO_ACT_RELU, 0, 0 }, NAN, 0 },
    { "dropout", { ATTO_ACT_RELU, 0, 0 }, INFINITY, 0 },
    { "random", { ATTO_ACT_RELU, 0, 0 }, 0.5f, 2 },
    { "random", { ATTO_ACT_RELU, 0, 0 }, 0.5f, -1 },
    { "act", { (atto_activation_kind)ATTO_ACT_COUNT, 0, 0 }, 0, 0 },
    { "act", { (atto_activation_kind)-1, 0, 0 }, 0, 0 },
    { "softplus", { ATTO_ACT_SOFTPLUS, 0, 20 }, 0, 0 },
    { "softplus", { ATTO_ACT_SOFTPLUS, NAN, 20 }, 0, 0 },
    { "celu", { ATTO_ACT_CELU, 0, 0 }, 0, 0 },
    { "softshrink", { ATTO_ACT_SOFTSHRINK, -0.5f, 0 }, 0, 0 },
    { "softshrink", { ATTO_ACT_SOFTSHRINK, NAN, 0 }, 0, 0 },
    { "leaky_relu", { ATTO_ACT_LEAKY_RELU, INFINITY, 0 }, 0, 0 },
    { "elu", { ATTO_ACT_ELU, -INFINITY, 0 }, 0, 0 },
    { "celu", { ATTO_ACT_CELU, INFINITY, 0 }, 0, 0 },
    { "softplus", { ATTO_ACT_SOFTPLUS, INFINITY, 20 }, 0, 0 },
    { "hardtanh", { ATTO_ACT_HARDTANH, 1, -1 }, 0, 0 },
    { "hardtanh", { ATTO_ACT_HARDTANH, 1, 1 }, 0, 0 },
    { "hardtanh", { ATTO_ACT_HARDTANH, NAN, 1 }, 0, 0 },
};

static void act_refuses_illegal_numbers(void **state)
{
    (void)state;
    test_tensor t[4];
    for (int i = 0; i < 4; i++)
        test_tensor_make(&t[i], test_dev, ATTO_F32, atto_shape1(9), LAYOUT_DENSE);
    for (int i = 0; i < COUNT_OF(bad_rows); i++) {
        struct atto_act_args a = { .x = &t[0].view,
                                   .y = &t[1].view,
                                   .dy = &t[2].view,
                                   .dx = &t[3].view,
                                   .act = bad_rows[i].act,
                                   .dropout = bad_rows[i].dropout };
        a.rng.kind = (atto_rng_kind)bad_rows[i].rng_kind;
        EXPECT_FAIL(atto_act_forward(test_dev, &a), ATTO_E_ARGUMENT, bad_rows[i].words);
        EXPECT_FAIL(atto_act_backward(test_dev, &a), ATTO_E_ARGUMENT, bad_rows[i].words);
    }
    for (int i = 0; i < 4; i++) {
        assert_true(test_tensor_untouched(&t[i]));
        test_tensor_drop(&t[i]);
    }
}

/* ---- determinism and steady state ---- */

/* J1: 50 runs, the same bits. */
static void act_repeats_bit_for_bit(void **state)
{
    (void)state;
    enum { N = 20011 };
    const act_case c = { .act = atto_gelu(),
                         .dtype = ATTO_F32,
                         .shape = atto_shape1(N),
                         .dropout = 0.3f,
                         .rng = { 9, 0, ATTO_RNG_PHILOX } };
    double *x = test_doubles(N);
    uint64_t *first = calloc(N, sizeof *first), *again = calloc(N, sizeof *again);
    test_tensor t[4];
    for (int i = 0; i < 4; i++) test_tensor_make(&t[i], test_dev, c.dtype, c.shape, LAYOUT_DENSE);
    test_uniform(1, -5.0, 5.0, c.dtype, x, N);
    test_tensor_put(&t[0], x);
    test_uniform(2, -5.0, 5.0, c.dtype, x, N);
    test_tensor_put(&t[2], x);
    struct atto_act_args a = args_of(&c);
    a.x = &t[0].view, a.y = &t[1].view, a.dy = &t[2].view, a.dx = &t[3].view;
    for (int run = 0; run < 50; run++) {
        MUST(atto_act_forward(test_dev, &a));
        MUST(atto_act_backward(test_dev, &a));
        for (int which = 1; which <= 3; which += 2) {
            if (run == 0 && which == 1) test_tensor_bits(&t[1], first);
            test_tensor_bits(&t[which], again);
            if (which == 1) assert_memory_equal(first, again, N * sizeof *first);
        }
        static uint64_t dx_first[N];
        if (run == 0) memcpy(dx_first, again, sizeof dx_first);
        assert_memory_equal(dx_first, again, sizeof dx_first);
    }
    for (int i = 0; i < 4; i++) test_tensor_drop(&t[i]);
    free(x), free(first), free(again);
}

/* After a first call, calls neither wait, allocate nor copy, also with strides.
 */
static void act_in_a_steady_state_costs_launches_only(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_DENSE, LAYOUT_PITCHED, LAYOUT_TRANSPOSED };
    for (int l = 0; l < COUNT_OF(layouts); l++) {
        test_tensor t[4];
        for (int i = 0; i < 4; i++)
            test_tensor_make(&t[i], test_dev, ATTO_F32, atto_shape2(40, 50), layouts[l]);
        const struct atto_act_args a = { .x = &t[0].view,
                                         .y = &t[1].view,
                                         .dy = &t[2].view,
                                         .dx = &t[3].view,
                                         .act = atto_gelu(),
                                         .dropout = 0.5f };
        MUST(atto_act_forward(test_dev, &a));
        MUST(atto_act_backward(test_dev, &a));
        MUST(atto_device_sync(test_dev));
        atto_device_stats before, after;
        MUST(atto_device_stats_get(test_dev, &before));
        for (int run = 0; run < 20; run++) {
            MUST(atto_act_forward(test_dev, &a));
            MUST(atto_act_backward(test_dev, &a));
        }
        MUST(atto_device_stats_get(test_dev, &after));
        MUST(atto_device_sync(test_dev));
        assert_int_equal(after.blocking_calls, before.blocking_calls);
        assert_int_equal(after.allocations, before.allocations);
        assert_int_equal(after.hidden_copies, before.hidden_copies);
        assert_int_equal(after.kernels_built, before.kernels_built);
        assert_int_equal(after.fallbacks, before.fallbacks);
        assert_int_equal(after.launches, before.launches + 40);
        for (int i = 0; i < 4; i++) test_tensor_drop(&t[i]);
    }
}

/* The device runs everything here itself: a silent fallback would test the CPU
 * twice. */
static void act_never_fell_back(void **state)
{
    (void)state;
    atto_device_stats stats;
    MUST(atto_device_stats_get(test_dev, &stats));
    assert_int_equal(stats.fallbacks, 0);
    for (int d = 0; d < COUNT_OF(dtypes); d++)
        assert_true(atto_device_supports(test_dev, ATTO_OP_ACT, dtypes[d]));
    assert_false(atto_device_supports(test_dev, ATTO_OP_ACT, ATTO_I32));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(act_forward_matches_oracle),
    cmocka_unit_test(act_backward_matches_oracle),
    cmocka_unit_test(act_forward_of_exact_activations_rounds_nothing),
    cmocka_unit_test(act_forward_and_backward_take_any_size),
    cmocka_unit_test(act_forward_and_backward_take_any_layout),
    cmocka_unit_test(act_forward_and_backward_work_in_place),
    cmocka_unit_test(act_backward_accumulates),
    cmocka_unit_test(act_backward_without_dx_does_nothing),
    cmocka_unit_test(act_of_empty_tensors_launches_nothing),
    cmocka_unit_test(act_has_pytorch_values_at_bends_and_extremes),
    cmocka_unit_test(act_in_f16_does_not_overflow_inside),
    cmocka_unit_test(act_forward_gelu_is_accurate_over_six),
    cmocka_unit_test(act_forward_propagates_nan),
    cmocka_unit_test(act_with_dropout_matches_oracle),
    cmocka_unit_test(act_refuses_illegal_numbers),
    cmocka_unit_test(act_repeats_bit_for_bit),
    cmocka_unit_test(act_in_a_steady_state_costs_launches_only),
    cmocka_unit_test(act_never_fell_back),
};
TEST_MAIN("act", tests)
