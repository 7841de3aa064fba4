/* SPDX-License-Identifier: MIT */
/* Gated linear units, forward and backward: the double oracle decides, on every backend. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

/* ---- one case ---- */

typedef struct glu_case {
    atto_activation act;
    atto_shape shape; /* of x */
    int32_t dim;
    atto_dtype dtype;       /* 0 = f32 */
    test_layout layout;     /* of x, dy and, if it is another one than dense: */
    test_layout out_layout; /* of y, dx */
    bool add;
    uint64_t seed;
} glu_case;

/* A case with its data and tensors. */
typedef struct scene {
    glu_case c;
    atto_shape half;
    oracle_glu o;
    int64_t n; /* elements of y */
    double *x, *dy, *old, *want, *terms;
    test_tensor tx, ty, tdy, tdx;
    struct atto_glu_args args;
} scene;

static void begin(scene *s, const glu_case *c)
{
    memset(s, 0, sizeof *s);
    s->c = *c;
    if (!s->c.dtype) s->c.dtype = ATTO_F32;
    const int32_t along = c->dim < 0 ? c->dim + c->shape.rank : c->dim;
    s->half = c->shape;
    s->half.dim[along] /= 2;
    s->o = (oracle_glu){ 1, 1, c->act, NULL, NULL };
    for (int32_t d = 0; d < c->shape.rank; d++)
        *(d < along ? &s->o.outer : &s->o.width) *= s->half.dim[d];
    s->n = s->o.outer * s->o.width;
    double **arrays[] = { &s->x, &s->dy, &s->old, &s->want, &s->terms };
    for (int i = 0; i < COUNT_OF(arrays); i++) *arrays[i] = test_doubles(2 * s->n);
    test_uniform(c->seed + 1, -6.0, 6.0, s->c.dtype, s->x, 2 * s->n);
    test_uniform(c->seed + 2, -2.0, 2.0, s->c.dtype, s->dy, s->n);
    test_uniform(c->seed + 3, -1.0, 1.0, s->c.dtype, s->old, 2 * s->n);
}

static void end(scene *s)
{
    test_tensor *tensors[] = { &s->tx, &s->ty, &s->tdy, &s->tdx };
    double *arrays[] = { s->x, s->dy, s->old, s->want, s->terms };
    for (int i = 0; i < COUNT_OF(tensors); i++) test_tensor_drop(tensors[i]);
    for (int i = 0; i < COUNT_OF(arrays); i++) free(arrays[i]);
}

static void make(const scene *s, test_tensor *t, bool half, test_layout layout,
                 const double *values, const atto_tensor **slot)
{
    test_tensor_make(t, test_dev, s->c.dtype, half ? s->half : s->c.shape, layout);
    if (values) test_tensor_put(t, values);
    *slot = &t->view;
}

static void build(scene *s)
{
    const test_layout out = s->c.out_layout ? s->c.out_layout : s->c.layout;
    s->args = (struct atto_glu_args){ .act = s->c.act, .dim = s->c.dim, .add_dx = s->c.add };
    make(s, &s->tx, false, s->c.layout, s->x, &s->args.x);
    make(s, &s->ty, true, out, NULL, &s->args.y);
    make(s, &s->tdy, true, s->c.layout, s->dy, &s->args.dy);
    make(s, &s->tdx, false, out, s->c.add ? s->old : NULL, &s->args.dx);
    s->o.x = s->x, s->o.dy = s->dy;
}

/* Activations that the device may round otherwise near a kink cannot be judged there: none is. */
static void judge(const scene *s, const test_tensor *t, const double *allowed)
{
    double *got = test_doubles(t->numel);
    const test_about about = { "glu", test_layout_name(s->c.layout), s->c.dtype, s->c.shape,
                               s->c.seed };
    test_tensor_get(t, got);
    expect_close(&about, got, s->want, allowed, t->numel);
    free(got);
}

/* act's roundings and a product. */
static void judge_forward(scene *s)
{
    const char *op = atto_activation_name(s->c.act.kind);
    double *allowed = test_doubles(s->n);
    oracle_glu_forward(&s->o, s->want, s->terms);
    for (int64_t i = 0; i < s->n; i++)
        allowed[i] = isfinite(s->want[i]) ? atto_tol(op, s->c.dtype, 2, s->terms[i]) : 0.0;
    judge(s, &s->ty, allowed);
    free(allowed);
}

/* da: as y. db: act' has a rounding for dy, a dy another. The old value is one more. */
static void judge_backward(scene *s)
{
    char grad[40];
    const char *op = atto_activation_name(s->c.act.kind);
    double *allowed = test_doubles(2 * s->n);
    snprintf(grad, sizeof grad, "%s_grad", op);
    oracle_glu_backward(&s->o, s->want, s->terms);
    for (int64_t i = 0; i < 2 * s->n; i++) {
        const bool is_gate = i / s->o.width % 2 == 1;
        const double old = s->c.add ? s->old[i] : 0.0;
        s->want[i] += old;
        if (isfinite(s->want[i]))
            allowed[i] = atto_tol(is_gate ? grad : op, s->c.dtype, s->c.add ? 3 : 2,
                                  s->terms[i] + fabs(old));
    }
    judge(s, &s->tdx, allowed);
    free(allowed);
}

static void check(const glu_case *c)
{
    scene s;
    begin(&s, c);
    build(&s);
    MUST(atto_glu_forward(test_dev, &s.args));
    MUST(atto_glu_backward(test_dev, &s.args));
    judge_forward(&s);
    judge_backward(&s);
    assert_true(test_tensor_untouched(&s.tx) && test_tensor_untouched(&s.tdy));
    end(&s);
}

static const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };

/* A device that plays another one has to build every kernel again: a third of the cases will do. */
static int case_step(void)
{
    return test_on_opencl() && test_in_disguise() ? 3 : 1;
}

/* ---- activations, dtypes, dimensions, sizes ---- */

/* On OpenCL an activation meets one dtype: kernels take long to build. */
static void glu_of_every_activation_matches_oracle(void **state)
{
    (void)state;
    atto_activation acts[TEST_ACTIVATIONS_MAX];
    const int count = test_activations(acts);
    for (int i = 0; i < count; i += case_step())
        for (int d = 0; d < 3; d++) {
            if (test_on_opencl() && d != i % 3) continue;
            check(&(glu_case){ .act = acts[i],
                               .shape = i % 2 ? atto_shape2(33, 48) : atto_shape2(8, 127),
                               .dim = i % 2,
                               .dtype = dtypes[d],
                               .add = i % 4 == 1,
                               .seed = 100 + (uint64_t)i });
        }
}

static void glu_over_any_dimension_matches_oracle(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++)
        for (int32_t dim = -4; dim < 4; dim++)
            check(&(glu_case){ .act = atto_silu(),
                               .shape = atto_shape4(2, 4, 6, 16),
                               .dim = dim,
                               .dtype = dtypes[d],
                               .add = dim > 0,
                               .seed = 200 });
    check(&(glu_case){ .act = atto_silu(), .shape = atto_shape1(14), .dim = 0, .seed = 210 });
}

/* Of a half. */
static const int64_t sizes[] = { 1,   2,   3,   5,   7,   8,    16,   31,   33,   63,   65,
                                 127, 129, 217, 255, 257, 1023, 1024, 1025, 4096, 70001 };

static void glu_takes_any_size(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(sizes); i += case_step())
        for (int d = 0; d < 3; d++)
            check(&(glu_case){ .act = atto_silu(),
                               .shape = atto_shape2(sizes[i] < 300 ? 37 : 3, 2 * sizes[i]),
                               .dim = 1,
                               .dtype = dtypes[d],
                               .add = i % 2 == 1,
                               .seed = 300 + (uint64_t)i });
}

/* I9: what does not lie row by row gives what its contiguous copy would. */
static void glu_takes_any_layout(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_OFFSET,     LAYOUT_OFFSET4, LAYOUT_PITCHED,
                                    LAYOUT_TRANSPOSED, LAYOUT_STEP2,   LAYOUT_CHANNELS_LAST };
    for (int i = 0; i < COUNT_OF(layouts); i++)
        for (int32_t dim = 0; dim < 3; dim++)
            check(&(glu_case){ .act = atto_silu(),
                               .shape = atto_shape3(2, 6, 8),
                               .dim = dim,
                               .layout = dim == 2 ? LAYOUT_DENSE : layouts[i],
                               .out_layout = layouts[i],
                               .add = i % 2 == 1,
                               .seed = 400 + (uint64_t)i });
}

/* ---- values ---- */

/* F7: halves of 4. */
static void glu_passes_infinities_and_nan_on(void **state)
{
    (void)state;
    const double inf = INFINITY, nan = NAN;
    const double x[] = { inf, inf, nan, 2, /* a */ 0, -inf, 1, nan /* b */ };
    const double want[] = { inf, nan, nan, nan };
    double got[8];
    struct atto_glu_args a = { .act = atto_sigmoid(), .dim = 0 };
    test_tensor tx, ty;
    test_tensor_make(&tx, test_dev, ATTO_F32, atto_shape1(8), LAYOUT_DENSE);
    test_tensor_make(&ty, test_dev, ATTO_F32, atto_shape1(4), LAYOUT_DENSE);
    test_tensor_put(&tx, x);
    a.x = &tx.view, a.y = &ty.view;
    MUST(atto_glu_forward(test_dev, &a));
    test_tensor_get(&ty, got);
    const test_about about = { "glu", "dense", ATTO_F32, atto_shape1(4), 0 };
    expect_equal(&about, got, want, 4);
    test_tensor_drop(&tx), test_tensor_drop(&ty);
}

/* The product is formed in f32: 60000 times sigmoid(-5) is no overflow, its operands are not
 * rounded. */
static void glu_in_f16_rounds_once(void **state)
{
    (void)state;
    for (int d = 1; d < 3; d++) {
        scene s;
        begin(&s, &(glu_case){ .act = atto_gelu(),
                               .shape = atto_shape2(64, 64),
                               .dim = 1,
                               .dtype = dtypes[d],
                               .seed = 500 });
        for (int64_t i = 0; i < 2 * s.n; i++)
            if (i / s.o.width % 2 == 0) s.x[i] = oracle_round(dtypes[d], s.x[i] * 9000.0);
        build(&s);
        MUST(atto_glu_forward(test_dev, &s.args));
        judge_forward(&s);
        end(&s);
    }
}

/* I1 */
static void glu_of_nothing_launches_nothing(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape2(0, 6), atto_shape2(6, 0), atto_shape3(2, 0, 4) };
    for (int i = 0; i < 3; i++)
        for (int32_t dim = 0; dim < 2; dim++) {
            atto_device_stats before, after;
            MUST(atto_device_stats_get(test_dev, &before));
            check(&(glu_case){ .act = atto_silu(), .shape = shapes[i], .dim = dim });
            MUST(atto_device_stats_get(test_dev, &after));
            assert_int_equal(after.launches, before.launches);
        }
}

/* J1 */
static void glu_repeats_bit_for_bit(void **state)
{
    (void)state;
    scene s;
    begin(&s, &(glu_case){ .act = atto_silu(), .shape = atto_shape2(301, 514), .dim = 1 });
    build(&s);
    uint64_t *first = calloc((size_t)s.n * 2, sizeof *first);
    uint64_t *again = calloc((size_t)s.n * 2, sizeof *again);
    for (int run = 0; run < 50; run++) {
        MUST(atto_glu_backward(test_dev, &s.args));
        test_tensor_bits(&s.tdx, run == 0 ? first : again);
        if (run > 0) assert_memory_equal(first, again, (size_t)s.n * 2 * sizeof *first);
    }
    free(first), free(again);
    end(&s);
}

static void glu_in_a_steady_state_costs_launches_only(void **state)
{
    (void)state;
    scene s;
    begin(&s, &(glu_case){ .act = atto_silu(), .shape = atto_shape2(100, 10), .dim = 1 });
    build(&s);
    atto_device_stats before, after;
    for (int i = 0; i < 5; i++) {
        if (i == 2) MUST(atto_device_stats_get(test_dev, &before));
        MUST(atto_glu_forward(test_dev, &s.args));
        MUST(atto_glu_backward(test_dev, &s.args));
    }
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.launches - before.launches, 2 * 3);
    assert_int_equal(after.allocations, before.allocations);
    assert_int_equal(after.hidden_copies, before.hidden_copies);
    assert_int_equal(after.blocking_calls, before.blocking_calls);
    end(&s);
}

/* ---- what is refused ---- */

/* Makes one change to a good call of 6 x 8, forward and backward. */
static void refuse(void (*spoil)(scene *s, bool backward), atto_status status, const char *words)
{
    for (int backward = 0; backward < 2; backward++) {
        scene s;
        begin(&s, &(glu_case){ .act = atto_silu(), .shape = atto_shape2(6, 8), .dim = 1 });
        build(&s);
        spoil(&s, backward == 1);
        EXPECT_FAIL(backward ? atto_glu_backward(test_dev, &s.args)
                             : atto_glu_forward(test_dev, &s.args),
                    status, words);
        assert_true(test_tensor_untouched(&s.ty) && test_tensor_untouched(&s.tdx));
        end(&s);
    }
}

static void dim_beyond(scene *s, bool backward)
{
    (void)backward;
    s->args.dim = 2;
}
static void odd_size(scene *s, bool backward)
{
    (void)backward;
    s->tx.view.shape[1] = 7;
}
static void no_dimension(scene *s, bool backward)
{
    (void)backward;
    s->tx.view.rank = 0;
}
static void whole_output(scene *s, bool backward)
{
    (backward ? &s->tdy : &s->ty)->view.shape[0] = 3;
}
static void odd_activation(scene *s, bool backward)
{
    (void)backward;
    s->args.act.kind = ATTO_ACT_COUNT;
}
static void no_range(scene *s, bool backward)
{
    (void)backward;
    s->args.act = atto_hardtanh(1, -1);
}
static void integers(scene *s, bool backward)
{
    (void)backward;
    s->tx.view.dtype = ATTO_I32;
}
static void mixed(scene *s, bool backward)
{
    (backward ? &s->tdy : &s->ty)->view.dtype = ATTO_F16;
}

static void glu_refuses_what_does_not_fit(void **state)
{
    (void)state;
    refuse(dim_beyond, ATTO_E_ARGUMENT, "dim is 2|-2 to 1");
    refuse(odd_size, ATTO_E_SHAPE, "7 elements along dimension 1|even");
    refuse(no_dimension, ATTO_E_SHAPE, "no dimension");
    refuse(whole_output, ATTO_E_SHAPE, "[3,4]|[6,4]");
    refuse(odd_activation, ATTO_E_ARGUMENT, "no activation");
    refuse(no_range, ATTO_E_ARGUMENT, "lo < hi");
    refuse(integers, ATTO_E_DTYPE, "x is i32");
    refuse(mixed, ATTO_E_DTYPE, "f16");
}

/* ---- on a tape ---- */

static void check_on_tape(atto_tape *tape, atto_module *module)
{
    scene s;
    atto_tensor tx, grad;
    float x[24], dy[12], got[24];
    begin(&s,
          &(glu_case){ .act = atto_silu(), .shape = atto_shape3(2, 6, 2), .dim = 1, .seed = 7 });
    for (int i = 0; i < 24; i++) x[i] = (float)s.x[i];
    for (int i = 0; i < 12; i++) dy[i] = (float)s.dy[i];
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, s.c.shape, &tx));
    MUST(atto_tensor_write(&tx, x));
    const atto_var v = atto_borrow(tape, &tx, true);
    const atto_var y = module ? atto_apply(tape, module, v) : atto_glu(tape, v, -2, atto_silu());
    const atto_var weighted = atto_mul(tape, y, atto_input(tape, ATTO_F32, s.half, dy));
    MUST(atto_backward(tape, atto_reduce(tape, ATTO_REDUCE_SUM, weighted, NULL)));
    MUST(atto_var_grad(tape, v, &grad));
    MUST(atto_tensor_read(&grad, got));
    s.o.x = s.x, s.o.dy = s.dy;
    oracle_glu_backward(&s.o, s.want, s.terms);
    for (int i = 0; i < 24; i++) assert_true(fabs((double)got[i] - s.want[i]) < 1e-5);
    MUST(atto_tape_end(tape));
    atto_tensor_free(&tx);
    end(&s);
}

static void glu_on_a_tape_matches_oracle(void **state)
{
    (void)state;
    atto_tape *tape;
    atto_module *m;
    MUST(atto_tape_create(test_dev, &tape));
    MUST(atto_glu_create(test_dev, 1, atto_silu(), &m));
    assert_string_equal(atto_module_class_name(m), "GLU");
    check_on_tape(tape, NULL);
    check_on_tape(tape, m);
    atto_module_free(m);
    atto_tape_free(tape);
}

static void glu_module_and_tape_refuse_what_does_not_fit(void **state)
{
    (void)state;
    atto_module *m;
    const float x[] = { 1, 2, 3 };
    const atto_activation none = { ATTO_ACT_COUNT, 0, 0 };
    EXPECT_FAIL(atto_glu_create(test_dev, 0, none, &m), ATTO_E_ARGUMENT, "glu_create|activation");
    assert_null(m);
    EXPECT_FAIL(atto_glu_create(test_dev, 0, atto_relu(), NULL), ATTO_E_NULL, "m is NULL");
    EXPECT_FAIL(atto_glu_create(NULL, 0, atto_relu(), &m), ATTO_E_NULL, "dev");
    for (int i = 0; i < 2; i++) {
        atto_tape *tape;
        MUST(atto_tape_create(test_dev, &tape));
        atto_glu(tape, atto_input(tape, ATTO_F32, atto_shape1(3), x), i, atto_relu());
        EXPECT_FAIL(atto_tape_status(tape), i == 0 ? ATTO_E_SHAPE : ATTO_E_ARGUMENT,
                    i == 0 ? "3 elements along dimension 0" : "dim is 1");
        atto_tape_free(tape);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(glu_of_every_activation_matches_oracle),
    cmocka_unit_test(glu_over_any_dimension_matches_oracle),
    cmocka_unit_test(glu_takes_any_size),
    cmocka_unit_test(glu_takes_any_layout),
    cmocka_unit_test(glu_passes_infinities_and_nan_on),
    cmocka_unit_test(glu_in_f16_rounds_once),
    cmocka_unit_test(glu_of_nothing_launches_nothing),
    cmocka_unit_test(glu_repeats_bit_for_bit),
    cmocka_unit_test(glu_in_a_steady_state_costs_launches_only),
    cmocka_unit_test(glu_refuses_what_does_not_fit),
    cmocka_unit_test(glu_on_a_tape_matches_oracle),
    cmocka_unit_test(glu_module_and_tape_refuse_what_does_not_fit),
};
TEST_MAIN("glu", tests)
