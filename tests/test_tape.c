/* SPDX-License-Identifier: MIT */
/* The tape: what it records, where gradients go, when values die, and the error that sticks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

/* ---- shared ---- */

static atto_tape *tape; /* a fresh one for each test */

static int open_tape(void **state)
{
    (void)state;
    return atto_tape_create(test_dev, &tape) == ATTO_OK ? 0 : -1;
}

static int close_tape(void **state)
{
    (void)state;
    atto_tape_free(tape);
    tape = NULL;
    return 0;
}

/* rows x columns numbers from [-1, 1). */
static atto_var input(uint64_t seed, int64_t rows, int64_t columns)
{
    double *values = test_doubles(rows * columns);
    float *floats = malloc((size_t)(rows * columns) * sizeof *floats);
    test_uniform(seed, -1.0, 1.0, ATTO_F32, values, rows * columns);
    for (int64_t i = 0; i < rows * columns; i++) floats[i] = (float)values[i];
    const atto_var v = atto_input(tape, ATTO_F32, atto_shape2(rows, columns), floats);
    free(floats);
    free(values);
    return v;
}

static atto_param *param(uint64_t seed, atto_shape shape)
{
    atto_param *p;
    atto_seed(test_dev, seed);
    MUST(atto_param_create(test_dev, ATTO_F32, shape, &p));
    MUST(atto_param_init_uniform(p, 1.0));
    return p;
}

static void read_floats(const atto_tensor *t, float *out)
{
    MUST(atto_tensor_read(t, out));
}

static void read_grad(const atto_param *p, float *out)
{
    atto_tensor grad;
    MUST(atto_param_grad(p, &grad));
    read_floats(&grad, out);
}

static void expect_same(const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i++)
        if (a[i] != b[i]) fail_msg("element %d: %.9g and %.9g", i, (double)a[i], (double)b[i]);
}

/* sum over all elements: dloss/dx = 1 everywhere, by a gradient of ones from any value. */
static void backward_of_sum(atto_var v)
{
    atto_tensor t, ones;
    MUST(atto_var_tensor(tape, v, &t));
    MUST(atto_tensor_alloc(test_dev, t.dtype, atto_shape_of(t.rank, t.shape), &ones));
    MUST(atto_tensor_fill(&ones, 1.0));
    MUST(atto_backward_from(tape, v, &ones));
    atto_tensor_free(&ones);
}

/* ---- gradients ---- */

enum { ROWS = 5, IN = 7, HIDDEN = 6, OUT = 3 };

/* Two layers, by the tape and by hand, bit for bit. */
static void tape_does_what_calls_by_hand_do(void **state)
{
    (void)state;
    atto_param *w1 = param(1, atto_shape2(HIDDEN, IN)), *b1 = param(2, atto_shape1(HIDDEN)),
               *w2 = param(3, atto_shape2(OUT, HIDDEN));
    const atto_var x = input(4, ROWS, IN), vb1 = atto_use(tape, b1);
    const atto_linear_fused fused = { .bias = &vb1, .act = atto_gelu(), .dropout = 0.25f };
    atto_tape_seed(tape, 9, 100);
    const atto_var h = atto_linear(tape, x, atto_use(tape, w1), &fused);
    const atto_var y = atto_linear(tape, h, atto_use(tape, w2), NULL);
    float got_y[ROWS * OUT], got_w1[HIDDEN * IN], got_b1[HIDDEN], got_w2[OUT * HIDDEN];
    MUST(atto_var_read(tape, y, got_y));
    backward_of_sum(y);
    read_grad(w1, got_w1);
    read_grad(b1, got_b1);
    read_grad(w2, got_w2);

    atto_tensor tx, th, tz, ty, dy, dh, dw1, db1, dw2;
    MUST(atto_var_tensor(tape, x, &tx));
    const atto_tensor tw1 = atto_param_value(w1), tb1 = atto_param_value(b1),
                      tw2 = atto_param_value(w2);
    atto_tensor *hidden[] = { &th, &tz, &dh }, *out[] = { &ty, &dy };
    for (int i = 0; i < 3; i++)
        MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(ROWS, HIDDEN), hidden[i]));
    for (int i = 0; i < 2; i++)
        MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(ROWS, OUT), out[i]));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(HIDDEN, IN), &dw1));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(HIDDEN), &db1));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(OUT, HIDDEN), &dw2));
    const struct atto_linear_args first = { .x = &tx,
                                            .w = &tw1,
                                            .b = &tb1,
                                            .y = &th,
                                            .z = &tz,
                                            .dy = &dh,
                                            .dw = &dw1,
                                            .db = &db1,
                                            .act = atto_gelu(),
                                            .dropout = 0.25f,
                                            .rng = { .seed = 9, .offset = 100 } };
    const struct atto_linear_args second = {
        .x = &th, .w = &tw2, .y = &ty, .dy = &dy, .dx = &dh, .dw = &dw2
    };
    MUST(atto_linear_forward(test_dev, &first));
    MUST(atto_linear_forward(test_dev, &second));
    MUST(atto_tensor_fill(&dy, 1.0));
    MUST(atto_linear_backward(test_dev, &second));
    MUST(atto_linear_backward(test_dev, &first));
    float want_y[ROWS * OUT], want_w1[HIDDEN * IN], want_b1[HIDDEN], want_w2[OUT * HIDDEN];
    read_floats(&ty, want_y);
    read_floats(&dw1, want_w1);
    read_floats(&db1, want_b1);
    read_floats(&dw2, want_w2);
    expect_same(got_y, want_y, ROWS * OUT);
    expect_same(got_w1, want_w1, HIDDEN * IN);
    expect_same(got_b1, want_b1, HIDDEN);
    expect_same(got_w2, want_w2, OUT * HIDDEN);
    for (int i = 0; i < 3; i++) atto_tensor_free(hidden[i]);
    for (int i = 0; i < 2; i++) atto_tensor_free(out[i]);
    atto_tensor_free(&dw1);
    atto_tensor_free(&db1);
    atto_tensor_free(&dw2);
    atto_param_free(w1);
    atto_param_free(b1);
    atto_param_free(w2);
}

/* y = tanh(x) + x through the residual of a product with the unit matrix: x in three places. */
static void tape_adds_gradients_of_a_value_in_many_places(void **state)
{
    (void)state;
    const float unit[] = { 1, 0, 0, 1 }, x[] = { 0.5f, -1.0f };
    atto_tensor tx, tw;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(1, 2), &tx));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(2, 2), &tw));
    MUST(atto_tensor_write(&tx, x));
    MUST(atto_tensor_write(&tw, unit));
    const atto_var v = atto_borrow(tape, &tx, true), w = atto_borrow(tape, &tw, false);
    const atto_var t = atto_act(tape, v, atto_relu(), NULL);
    const atto_linear_fused fused = { .residual = &v };
    const atto_var y = atto_linear(tape, t, w, &fused); /* relu(x) + x */
    backward_of_sum(y);
    atto_tensor grad;
    float got[2];
    MUST(atto_var_grad(tape, v, &grad));
    read_floats(&grad, got);
    assert_true(got[0] == 2.0f && got[1] == 1.0f);
    EXPECT_FAIL(atto_var_grad(tape, w, &grad), ATTO_E_STATE, "not watched");
    atto_tensor_free(&tx);
    atto_tensor_free(&tw);
}

/* A value that fills two fields of one op: x x^T with x as product and as weight. */
static void tape_takes_one_value_twice_in_an_op(void **state)
{
    (void)state;
    const float x[] = { 2.0f, 3.0f };
    atto_tensor tx;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(1, 2), &tx));
    MUST(atto_tensor_write(&tx, x));
    const atto_var v = atto_borrow(tape, &tx, true);
    const atto_var y = atto_linear(tape, v, v, NULL); /* 2*2 + 3*3 */
    float got[2];
    MUST(atto_var_read(tape, y, got));
    assert_true(got[0] == 13.0f);
    MUST(atto_backward(tape, y));
    atto_tensor grad;
    MUST(atto_var_grad(tape, v, &grad));
    read_floats(&grad, got);
    assert_true(got[0] == 4.0f && got[1] == 6.0f);
    atto_tensor_free(&tx);
}

/* The first gradient of a step overwrites, later ones add; zero_grad begins anew. */
static void tape_accumulates_over_micro_batches(void **state)
{
    (void)state;
    atto_param *w = param(1, atto_shape2(OUT, IN));
    float once[OUT * IN], twice[OUT * IN], again[OUT * IN];
    atto_tensor none;
    EXPECT_FAIL(atto_param_grad(w, &none), ATTO_E_STATE, "no backward");
    for (int round = 0; round < 2; round++) {
        backward_of_sum(atto_linear(tape, input(4, ROWS, IN), atto_use(tape, w), NULL));
        read_grad(w, round ? twice : once);
        MUST(atto_tape_end(tape)); /* leaves gradients alone */
    }
    for (int i = 0; i < OUT * IN; i++) assert_true(twice[i] == 2.0f * once[i]);
    atto_param_zero_grad(w);
    EXPECT_FAIL(atto_param_grad(w, &none), ATTO_E_STATE, "no backward");
    backward_of_sum(atto_linear(tape, input(4, ROWS, IN), atto_use(tape, w), NULL));
    read_grad(w, again);
    expect_same(again, once, OUT * IN);
    atto_param_free(w);
}

/* Two micro-batches in flight on one tape, and weights used by both. */
static void tape_holds_two_calls_at_once(void **state)
{
    (void)state;
    atto_param *w = param(1, atto_shape2(IN, IN));
    float together[IN * IN], apart[IN * IN];
    const atto_var vw = atto_use(tape, w);
    const atto_var first = atto_linear(tape, input(4, ROWS, IN), vw, NULL);
    const atto_var second = atto_linear(tape, input(5, ROWS, IN), vw, NULL);
    backward_of_sum(first);
    backward_of_sum(second);
    read_grad(w, together);
    MUST(atto_tape_end(tape));
    atto_param_zero_grad(w);
    backward_of_sum(atto_linear(tape, input(4, ROWS, IN), atto_use(tape, w), NULL));
    MUST(atto_tape_end(tape));
    backward_of_sum(atto_linear(tape, input(5, ROWS, IN), atto_use(tape, w), NULL));
    read_grad(w, apart);
    expect_same(together, apart, IN * IN);
    atto_param_free(w);
}

static uint64_t live_bytes(void)
{
    atto_device_stats stats;
    MUST(atto_device_stats_get(test_dev, &stats));
    return stats.bytes_live;
}

/* A frozen parameter costs no gradient and no memory for one; a thawed one does. */
static void tape_gives_frozen_parameters_nothing(void **state)
{
    (void)state;
    atto_param *w = param(1, atto_shape2(IN, IN)), *v = param(2, atto_shape2(IN, IN));
    atto_param_freeze(w, true);
    const uint64_t before = live_bytes();
    const atto_var h = atto_linear(tape, input(4, ROWS, IN), atto_use(tape, w), NULL);
    backward_of_sum(atto_linear(tape, h, atto_use(tape, v), NULL));
    MUST(atto_tape_end(tape));
    atto_tensor grad;
    EXPECT_FAIL(atto_param_grad(w, &grad), ATTO_E_STATE, "frozen");
    MUST(atto_param_grad(v, &grad));
    assert_int_equal(live_bytes() - before, IN * IN * sizeof(float));
    atto_param_freeze(w, false);
    backward_of_sum(atto_linear(tape, input(4, ROWS, IN), atto_use(tape, w), NULL));
    MUST(atto_param_grad(w, &grad));
    atto_param_freeze(w, true); /* and gives it back */
    MUST(atto_tape_end(tape));
    assert_int_equal(live_bytes() - before, IN * IN * sizeof(float));
    atto_param_free(w);
    atto_param_free(v);
}

/* ---- lives of values ---- */

static void tape_forgets_what_nobody_needs(void **state)
{
    (void)state;
    atto_param *w = param(1, atto_shape2(IN, IN));
    const uint64_t before = live_bytes();
    atto_scope_begin(tape);
    const atto_var x = input(4, ROWS, IN);
    const atto_var a = atto_act(tape, x, atto_relu(), NULL); /* not recorded: nothing to train */
    const atto_var y = atto_linear(tape, a, atto_use(tape, w), NULL);
    atto_scope_end(tape, &y, 1);
    const uint64_t one = ROWS * IN * sizeof(float);
    assert_int_equal(live_bytes() - before, 2 * one); /* y, and a, which backward reads */
    float got[ROWS * IN];
    MUST(atto_var_read(tape, y, got));
    atto_tensor t;
    EXPECT_FAIL(atto_var_tensor(tape, x, &t), ATTO_E_STATE, "dead: its scope has ended");
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_STATE, "dead"); /* it stuck */
    assert_int_equal(live_bytes(), before);
    atto_param_free(w);
}

static void tape_frees_saved_values_in_backward(void **state)
{
    (void)state;
    atto_param *w = param(1, atto_shape2(IN, IN));
    atto_scope_begin(tape);
    atto_var y = input(4, ROWS, IN);
    for (int i = 0; i < 10; i++) y = atto_linear(tape, y, atto_use(tape, w), NULL);
    atto_scope_end(tape, &y, 1);
    const uint64_t full = live_bytes();
    backward_of_sum(y);
    assert_true(live_bytes() + 9 * ROWS * IN * sizeof(float) <= full + IN * IN * sizeof(float));
    atto_param_free(w);
}

static void tape_records_nothing_when_told(void **state)
{
    (void)state;
    atto_param *w = param(1, atto_shape2(IN, IN));
    assert_true(atto_tape_record(tape, false));
    const atto_var y = atto_linear(tape, input(4, ROWS, IN), atto_use(tape, w), NULL);
    assert_false(atto_tape_record(tape, true));
    atto_tensor t;
    MUST(atto_var_tensor(tape, y, &t));
    EXPECT_FAIL(atto_backward_from(tape, y, &t), ATTO_E_STATE, "nothing to compute");
    atto_param_free(w);
}

static void tape_keeps_what_it_is_asked_to(void **state)
{
    (void)state;
    atto_tensor kept, borrowed;
    float got[ROWS * IN], want[ROWS * IN];
    const atto_var x = input(4, ROWS, IN);
    MUST(atto_var_read(tape, x, want));
    MUST(atto_keep(tape, x, &kept));
    MUST(atto_tape_end(tape));
    read_floats(&kept, got);
    expect_same(got, want, ROWS * IN);
    EXPECT_FAIL(atto_keep(tape, atto_borrow(tape, &kept, false), &borrowed), ATTO_E_ARGUMENT,
                "borrowed");
    MUST(atto_tape_end(tape));
    atto_param *w = param(1, atto_shape2(1, IN));
    EXPECT_FAIL(atto_keep(tape, atto_use(tape, w), &borrowed), ATTO_E_ARGUMENT, "a parameter");
    atto_param_free(w);
    atto_tensor_free(&kept);
}

/* The module owns the weights that backward reads; it goes first. */
static void tape_holds_what_it_borrowed(void **state)
{
    (void)state;
    const float logits[] = { 0.0f, 0.0f }, weight[] = { 3.0f, 1.0f };
    const int32_t label = 0;
    atto_tensor x, grad;
    atto_module *loss;
    float got[2];
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(1, 2), &x));
    MUST(atto_tensor_write(&x, logits));
    MUST(atto_cross_entropy_loss_create(test_dev,
                                        &(atto_cross_entropy_loss_options){
                                            .weight = weight,
                                            .classes = 2,
                                            .reduction = ATTO_REDUCTION_SUM,
                                        },
                                        &loss));
    const atto_var v = atto_borrow(tape, &x, true);
    const atto_var e =
        atto_apply2(tape, loss, v, atto_input(tape, ATTO_I32, atto_shape1(1), &label));
    atto_module_free(loss);
    atto_tensor_free(&x);
    atto_tensor other; /* takes freed memory, if there is any of that size */
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(2), &other));
    MUST(atto_tensor_fill(&other, 100.0));
    MUST(atto_backward(tape, e));
    MUST(atto_var_grad(tape, v, &grad));
    read_floats(&grad, got);
    assert_true(got[0] == -1.5f && got[1] == 1.5f);
    MUST(atto_tape_end(tape));
    atto_tensor_free(&other);
}

/* ---- errors that stick ---- */

static void tape_keeps_its_first_error(void **state)
{
    (void)state;
    atto_param *w = param(1, atto_shape2(OUT, IN));
    const atto_var x = input(4, ROWS, IN + 1);
    const atto_var y = atto_linear(tape, x, atto_use(tape, w), NULL);
    const atto_var z = atto_act(tape, y, atto_relu(), NULL); /* does nothing */
    EXPECT_FAIL(atto_tape_status(tape), ATTO_E_SHAPE,
                "linear_forward: x is|beside w of [3,7], expected [..., 7]");
    EXPECT_FAIL(atto_backward(tape, z), ATTO_E_SHAPE, "linear_forward: x is|w of [3,7]");
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_SHAPE, "linear_forward: x is|w of [3,7]");
    MUST(atto_tape_status(tape)); /* a fresh step */
    backward_of_sum(atto_linear(tape, input(4, ROWS, IN), atto_use(tape, w), NULL));
    MUST(atto_tape_end(tape));
    atto_param_free(w);
}

/* A recording function outside the library fails like one inside. */
static void tape_keeps_the_first_error_that_users_report(void **state)
{
    (void)state;
    assert_int_equal(atto_tape_fail(tape, ATTO_OK, "nothing"), ATTO_OK);
    MUST(atto_tape_status(tape));
    assert_int_equal(atto_tape_fail(tape, ATTO_E_SHAPE, "rotate: x is %s [3]"), ATTO_E_SHAPE);
    assert_int_equal(atto_tape_fail(tape, ATTO_E_DTYPE, "later"), ATTO_E_DTYPE);
    EXPECT_FAIL(atto_tape_status(tape), ATTO_E_SHAPE, "rotate: x is %s [3]");
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_SHAPE, "rotate");
    MUST(atto_tape_status(tape)); /* of the next step */
    const atto_status lower = atto_tensor_fill(NULL, 0.0);
    atto_tape_fail(tape, lower, NULL);
    EXPECT_FAIL(atto_tape_end(tape), lower, "tensor_fill");
    (void)atto_tensor_fill(NULL, 0.0);
    atto_tape_fail(tape, lower, atto_last_error());
    EXPECT_FAIL(atto_tape_end(tape), lower, "tensor_fill");
    EXPECT_FAIL(atto_tape_fail(NULL, ATTO_E_SHAPE, NULL), ATTO_E_NULL, "tape_fail");
}

static void tape_refuses_stale_values(void **state)
{
    (void)state;
    atto_tape *other;
    MUST(atto_tape_create(test_dev, &other));
    const float number = 1.0f;
    const atto_var old = input(4, ROWS, IN);
    MUST(atto_tape_end(tape));
    input(4, ROWS, IN); /* where the old one was */
    atto_input(other, ATTO_F32, atto_shape0(), &number);
    atto_act(tape, old, atto_relu(), NULL);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_STATE, "act: the value is of another step");
    const atto_var fresh = input(4, ROWS, IN);
    atto_act(other, fresh, atto_relu(), NULL);
    EXPECT_FAIL(atto_tape_end(other), ATTO_E_STATE, "act: the value is of another step or another");
    atto_act(tape, (atto_var){ 0, 0 }, atto_relu(), NULL);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_STATE, "another step");
    atto_tape_free(other);
}

static void tape_refuses_to_run_backwards_twice(void **state)
{
    (void)state;
    atto_param *w = param(1, atto_shape2(1, IN));
    const atto_var h = atto_linear(tape, input(4, 1, IN), atto_use(tape, w), NULL);
    const atto_var y = atto_act(tape, h, atto_silu(), NULL);
    const atto_var z = atto_act(tape, h, atto_tanh(), NULL); /* another way from h */
    MUST(atto_backward(tape, y));
    EXPECT_FAIL(atto_backward(tape, z), ATTO_E_STATE, "linear_backward was run already");
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_STATE, "linear_backward was run already");
    atto_param_free(w);
}

/* The weights of the forward are gone: their gradient would be that of another function. */
static void tape_notices_parameters_that_changed(void **state)
{
    (void)state;
    atto_param *w = param(1, atto_shape2(1, IN));
    const float zeros[IN] = { 0 };
    const atto_var y = atto_linear(tape, input(4, 1, IN), atto_use(tape, w), NULL);
    MUST(atto_param_write(w, zeros));
    EXPECT_FAIL(atto_backward(tape, y), ATTO_E_STATE, "linear_backward: a parameter was changed");
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_STATE, "changed");
    atto_param_free(w);
}

/* Also behind a reshape, which shows the parameter's memory, and when it gets no gradient
 * itself. */
static void tape_notices_parameters_that_changed_behind_a_reshape(void **state)
{
    (void)state;
    for (int frozen = 0; frozen < 2; frozen++) {
        atto_param *w = param(1, atto_shape1(IN));
        const float zeros[IN] = { 0 };
        atto_tensor x;
        atto_param_freeze(w, frozen);
        MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(1, IN), &x));
        MUST(atto_tensor_fill(&x, 1.0));
        const atto_var flat = atto_reshape(tape, atto_use(tape, w), atto_shape2(1, IN));
        const atto_var y = atto_linear(tape, atto_borrow(tape, &x, true), flat, NULL);
        MUST(atto_param_write(w, zeros));
        EXPECT_FAIL(atto_backward(tape, y), ATTO_E_STATE, "a parameter was changed");
        EXPECT_FAIL(atto_tape_end(tape), ATTO_E_STATE, "changed");
        atto_tensor_free(&x);
        atto_param_free(w);
    }
}

static void tape_wants_a_scalar_loss(void **state)
{
    (void)state;
    atto_param *w = param(1, atto_shape2(OUT, IN));
    const atto_var y = atto_linear(tape, input(4, ROWS, IN), atto_use(tape, w), NULL);
    EXPECT_FAIL(atto_backward(tape, y), ATTO_E_SHAPE, "the loss is [5,3], expected one element");
    MUST(atto_tape_end(tape) == ATTO_E_SHAPE ? ATTO_OK : ATTO_E_STATE);
    atto_tensor wrong;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(3), &wrong));
    const atto_var again = atto_linear(tape, input(4, ROWS, IN), atto_use(tape, w), NULL);
    EXPECT_FAIL(atto_backward_from(tape, again, &wrong), ATTO_E_SHAPE,
                "the gradient is [3], expected [5,3]");
    atto_tensor_free(&wrong);
    atto_param_free(w);
}

static void tape_borrows_sound_tensors_only(void **state)
{
    (void)state;
    atto_tensor t;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(1), &t));
    atto_tensor deep = t;
    deep.rank = ATTO_MAX_RANK + 1;
    atto_reduce(tape, ATTO_REDUCE_SUM, atto_borrow(tape, &deep, true), NULL);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_SHAPE, "borrow: t|rank");
    atto_tensor far_away = t;
    far_away.offset = 1;
    atto_borrow(tape, &far_away, false);
    assert_true(atto_tape_end(tape) != ATTO_OK);
    atto_tensor_free(&t);
    MUST(atto_tensor_alloc(test_dev, ATTO_I32, atto_shape1(1), &t));
    atto_borrow(tape, &t, false);
    MUST(atto_tape_end(tape));
    atto_borrow(tape, &t, true);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_DTYPE, "borrow: t is i32");
    atto_device *other;
    atto_tensor foreign;
    MUST(atto_device_open("cpu", NULL, &other));
    MUST(atto_tensor_alloc(other, ATTO_F32, atto_shape1(1), &foreign));
    atto_borrow(tape, &foreign, false);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_DEVICE, "borrow: t belongs to another device");
    atto_tensor_free(&foreign);
    atto_device_close(other);
    atto_tensor_free(&t);
}

static void tape_scopes_keep_values_of_this_step_only(void **state)
{
    (void)state;
    const atto_var old = input(4, ROWS, IN); /* slot 0 */
    MUST(atto_tape_end(tape));
    atto_tensor t;
    atto_scope_begin(tape);
    const atto_var x = input(4, ROWS, IN); /* slot 0 as well */
    atto_scope_end(tape, &old, 1);
    EXPECT_FAIL(atto_var_tensor(tape, x, &t), ATTO_E_STATE, "dead");
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_STATE, "dead");
    atto_scope_begin(tape);
    atto_scope_end(tape, NULL, 1);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_NULL, "scope_end: keep");
    atto_scope_begin(tape);
    atto_scope_end(tape, &x, -1);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_ARGUMENT, "scope_end: -1 values");
}

static void tape_refuses_null(void **state)
{
    (void)state;
    atto_tape *none;
    atto_tensor t;
    const atto_var x = input(4, 1, 1);
    EXPECT_FAIL(atto_tape_create(NULL, &none), ATTO_E_NULL, "dev");
    EXPECT_FAIL(atto_tape_create(test_dev, NULL), ATTO_E_NULL, "out");
    EXPECT_FAIL(atto_tape_end(NULL), ATTO_E_NULL, "tape");
    EXPECT_FAIL(atto_tape_status(NULL), ATTO_E_NULL, "tape");
    EXPECT_FAIL(atto_backward(NULL, x), ATTO_E_NULL, "tape");
    EXPECT_FAIL(atto_var_tensor(NULL, x, &t), ATTO_E_NULL, "tape");
    EXPECT_FAIL(atto_var_tensor(tape, x, NULL), ATTO_E_NULL, "out");
    assert_int_equal(atto_act(NULL, x, atto_relu(), NULL).generation, 0);
    assert_int_equal(atto_linear(NULL, x, x, NULL).generation, 0);
    assert_int_equal(atto_input(NULL, ATTO_F32, atto_shape0(), &t).generation, 0);
    atto_use(tape, NULL);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_NULL, "use: the parameter is NULL");
    atto_borrow(tape, NULL, false);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_NULL, "borrow: t is NULL");
    atto_input(tape, ATTO_F32, atto_shape1(3), NULL);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_NULL, "input: |data is NULL");
    atto_scope_end(tape, NULL, 0);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_STATE, "no scope is open");
    atto_tape_free(NULL);
    atto_param_free(NULL);
}

/* ---- reshape, ops of users ---- */

static void tape_reshapes_without_and_with_a_copy(void **state)
{
    (void)state;
    atto_tensor t, turned, grad;
    float values[6] = { 0, 1, 2, 3, 4, 5 }, got[6];
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(2, 3), &t));
    MUST(atto_tensor_write(&t, values));
    MUST(atto_tensor_transpose(&t, 0, 1, &turned));
    for (int round = 0; round < 2; round++) {
        const atto_var v = atto_borrow(tape, round ? &turned : &t, true);
        const atto_var flat = atto_reshape(tape, v, atto_shape1(6));
        const atto_var y = atto_act(tape, flat, atto_leaky_relu(0.5f), NULL);
        MUST(atto_var_read(tape, y, got));
        for (int i = 0; i < 6; i++)
            assert_true(got[i] == (round ? (float)(i % 2 * 3 + i / 2) : (float)i));
        backward_of_sum(y);
        MUST(atto_var_grad(tape, v, &grad));
        read_floats(&grad, got);
        for (int i = 1; i < 6; i++) assert_true(got[i] == 1.0f);
        assert_true(got[0] == 0.5f); /* at 0 */
        MUST(atto_tape_end(tape));
    }
    const atto_var v = atto_borrow(tape, &t, true);
    atto_reshape(tape, v, atto_shape1(7));
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_SHAPE, "tensor_reshape");
    atto_tensor_free(&t);
}

/* y = factor * x, by the caller's own kernel: here the linear op with one weight. */
static atto_status scale_backward(atto_tape *t, atto_node *node)
{
    const double *factor = atto_node_args(t, node);
    const atto_tensor *dx, *dy = atto_node_output_grad(t, node);
    bool add;
    const atto_status status = atto_node_input_grad(t, node, 0, &dx, &add);
    if (status != ATTO_OK || !dx) return status;
    assert_false(add);
    assert_non_null(atto_node_input(t, node, 0)->buffer);
    assert_non_null(atto_node_output(t, node)->buffer);
    float value;
    MUST(atto_tensor_read(dy, &value));
    return atto_tensor_fill(dx, *factor * (double)value);
}

static void tape_runs_ops_of_users(void **state)
{
    (void)state;
    static const atto_op_class scale = { "scale", scale_backward };
    const double factor = 3.0;
    const float two = 2.0f;
    atto_tensor x, y, grad;
    float got;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(1), &x));
    MUST(atto_tensor_write(&x, &two));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(1), &y));
    MUST(atto_tensor_fill(&y, factor * 2.0));
    const atto_var vx = atto_borrow(tape, &x, true);
    const atto_var vy = atto_record(tape, &scale, &factor, sizeof factor, &vx, 1, &y);
    assert_null(y.buffer); /* taken over */
    MUST(atto_backward(tape, atto_act(tape, vy, atto_relu(), NULL)));
    MUST(atto_var_grad(tape, vx, &grad));
    MUST(atto_tensor_read(&grad, &got));
    assert_true(got == 3.0f);
    MUST(atto_tape_end(tape));
    atto_record(tape, NULL, NULL, 0, NULL, 0, &x);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_NULL, "record: cls is NULL");
    assert_null(x.buffer);
}

/* Asks where its gradients go, and fails: nothing was written there. */
static atto_status failing_backward(atto_tape *t, atto_node *node)
{
    const atto_tensor *dx;
    bool add;
    for (int32_t i = 0; i < 3; i++) {
        const atto_status status = atto_node_input_grad(t, node, i, &dx, &add);
        if (status != ATTO_OK) return status;
    }
    return atto_tensor_fill(NULL, 0.0);
}

static void tape_forgets_gradients_that_were_not_written(void **state)
{
    (void)state;
    static const atto_op_class fails = { "fails", failing_backward };
    atto_param *before = param(1, atto_shape1(1)), *fresh = param(2, atto_shape1(1));
    atto_tensor x, y, grad;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(1), &x));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(1), &y));
    MUST(atto_backward(tape, atto_use(tape, before)));
    const atto_var inputs[] = { atto_use(tape, before), atto_use(tape, fresh),
                                atto_borrow(tape, &x, true) };
    const atto_var e = atto_record(tape, &fails, NULL, 0, inputs, 3, &y);
    EXPECT_FAIL(atto_backward(tape, e), ATTO_E_NULL, "tensor_fill");
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_NULL, "tensor_fill");
    EXPECT_FAIL(atto_param_grad(fresh, &grad), ATTO_E_STATE, "param_grad");
    float got;
    read_grad(before, &got);
    assert_true(got == 1.0f);
    MUST(atto_backward(tape, atto_use(tape, fresh))); /* and overwrites what is there */
    read_grad(fresh, &got);
    assert_true(got == 1.0f);
    MUST(atto_tape_end(tape));
    atto_tensor_free(&x);
    atto_param_free(before);
    atto_param_free(fresh);
}

typedef struct meddling {
    int what; /* not allowed: 0 makes a value, 1 records an op, 2 runs backward, 3 ends the step */
    atto_var v;
} meddling;

static atto_status meddling_backward(atto_tape *t, atto_node *node)
{
    const meddling *m = atto_node_args(t, node);
    const float number = 1.0f;
    if (m->what == 0) atto_input(t, ATTO_F32, atto_shape0(), &number);
    if (m->what == 1) atto_act(t, m->v, atto_relu(), NULL);
    if (m->what == 2) return atto_backward(t, m->v);
    if (m->what == 3) return atto_tape_end(t);
    return ATTO_OK; /* the tape has seen it */
}

static void tape_records_nothing_while_it_runs_backwards(void **state)
{
    (void)state;
    static const atto_op_class meddles = { "meddles", meddling_backward };
    atto_param *w = param(1, atto_shape1(1));
    for (int what = 0; what < 4; what++) {
        atto_tensor y;
        MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(1), &y));
        const meddling m = { what, atto_use(tape, w) };
        const atto_var e = atto_record(tape, &meddles, &m, sizeof m, &m.v, 1, &y);
        const char *words = what < 2 ? "records" : "called by a backward function";
        EXPECT_FAIL(atto_backward(tape, e), ATTO_E_STATE, words);
        EXPECT_FAIL(atto_tape_end(tape), ATTO_E_STATE, words);
    }
    MUST(atto_backward(tape, atto_use(tape, w)));
    MUST(atto_tape_end(tape));
    atto_param_free(w);
}

/* ---- meters ---- */

static void meter_gives_means(void **state)
{
    (void)state;
    atto_meter *m;
    double mean;
    MUST(atto_meter_create(test_dev, &m));
    MUST(atto_meter_take(m, &mean));
    assert_true(mean != mean); /* of nothing */
    for (int i = 0; i < 4; i++) {
        const float value = (float)i;
        atto_meter_add(m, tape, atto_input(tape, ATTO_F32, atto_shape1(1), &value));
        MUST(atto_tape_end(tape));
    }
    MUST(atto_meter_take(m, &mean));
    assert_true(mean == 1.5);
    MUST(atto_meter_take(m, &mean));
    assert_true(mean != mean);
    atto_meter_add(m, tape, input(1, 2, 2));
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_ARGUMENT, "meter_add");

    const int32_t label = 7; /* of 7 classes: the loss is NaN, once */
    const atto_var target = atto_input(tape, ATTO_I32, atto_shape1(1), &label);
    atto_meter_add(m, tape, atto_cross_entropy(tape, input(4, 1, 7), target, NULL));
    atto_status status = atto_tape_end(tape); /* word may have come back already */
    if (status == ATTO_OK) {
        mean = -1.0;
        EXPECT_FAIL(atto_meter_take(m, &mean), ATTO_E_INDEX, "");
        assert_true(mean == -1.0);
    } else {
        assert_int_equal(status, ATTO_E_INDEX);
        MUST(atto_meter_take(m, &mean));
    }
    const float three = 3.0f;
    atto_meter_add(m, tape, atto_input(tape, ATTO_F32, atto_shape1(1), &three));
    MUST(atto_tape_end(tape));
    MUST(atto_meter_take(m, &mean));
    assert_true(mean == 3.0);
    atto_meter_free(m);
    atto_meter_free(NULL);
}

/* ---- modules ---- */

static atto_status collect_key(void *data, const char *key, atto_param *p)
{
    (void)p;
    strcat(data, key);
    strcat(data, " ");
    return ATTO_OK;
}

static void modules_name_their_parameters_as_pytorch_does(void **state)
{
    (void)state;
    atto_module *net, *block;
    char keys[256] = "";
    MUST(atto_sequential_create(test_dev, &net));
    MUST(atto_sequential_flatten(net, 1));
    MUST(atto_sequential_linear(net, 4, 3, NULL));
    MUST(atto_sequential_create(test_dev, &block));
    MUST(atto_sequential_linear(block, 3, 2, &(atto_linear_options){ .no_bias = true }));
    MUST(atto_sequential_act(block, atto_gelu(), 0.0f));
    MUST(atto_sequential_add(net, block));
    MUST(atto_module_child(net, "head", block)); /* tied */
    MUST(atto_module_params(net, collect_key, keys));
    assert_string_equal(keys, "1.weight 1.bias 2.0.weight head.0.weight ");
    assert_int_equal(atto_module_param_count(net), 4 * 3 + 3 + 3 * 2);
    EXPECT_FAIL(atto_module_child(block, "loop", net), ATTO_E_ARGUMENT, "contains this module");
    EXPECT_FAIL(atto_module_child(net, "head", block), ATTO_E_ARGUMENT, "\"head\" already");
    EXPECT_FAIL(atto_module_child(net, "a.b", block), ATTO_E_ARGUMENT, "has a dot");
    atto_module_free(block);
    atto_module_free(net);
}

/* A class without forward only holds what is registered. */
static void modules_give_a_parameter_by_its_key(void **state)
{
    (void)state;
    static const atto_module_class list = { .name = "List" };
    atto_module *net, *inner;
    atto_param *w, *again, *none;
    MUST(atto_module_create(test_dev, &list, NULL, &net));
    MUST(atto_sequential_create(test_dev, &inner));
    MUST(atto_sequential_linear(inner, 4, 3, NULL));
    MUST(atto_module_child(net, "layers", inner));
    MUST(atto_module_param(net, "scale", ATTO_F32, atto_shape1(2), &w));
    MUST(atto_module_find_param(net, "scale", &again));
    assert_ptr_equal(again, w);
    MUST(atto_module_find_param(net, "layers.0.bias", &w));
    MUST(atto_module_find_param(inner, "0.bias", &again));
    assert_ptr_equal(again, w);
    assert_int_equal(atto_param_value(w).shape[0], 3);
    EXPECT_FAIL(atto_module_find_param(net, "layers.0.wieght", &none), ATTO_E_ARGUMENT,
                "Linear has no parameter \"wieght\", but weight, bias");
    assert_null(none);
    EXPECT_FAIL(atto_module_find_param(net, "layer.0.bias", &none), ATTO_E_ARGUMENT,
                "List has no child \"layer\", but layers");
    EXPECT_FAIL(atto_module_find_param(net, "layers", &none), ATTO_E_ARGUMENT,
                "List has no parameter \"layers\", but scale");
    EXPECT_FAIL(atto_module_find_param(net, "scale.x", &none), ATTO_E_ARGUMENT,
                "no child \"scale\"");
    EXPECT_FAIL(atto_module_find_param(net, "", &none), ATTO_E_ARGUMENT, "but scale");
    EXPECT_FAIL(atto_module_find_param(net, NULL, &none), ATTO_E_NULL, "key");
    EXPECT_FAIL(atto_module_find_param(NULL, "", &none), ATTO_E_NULL, "m is");
    EXPECT_FAIL(atto_module_find_param(net, "scale", NULL), ATTO_E_NULL, "out");
    atto_apply(tape, net, input(4, ROWS, IN));
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_ARGUMENT, "List: the class has no forward");
    atto_module_free(inner);
    atto_module_free(net);
}

/* Uniform in +-1/sqrt(in): bound, mean and variance of 40,000 numbers, and equal bits
 * everywhere. */
static void modules_start_as_pytorchs_do(void **state)
{
    (void)state;
    enum { FEATURES = 400, UNITS = 100, N = FEATURES * UNITS };
    atto_module *m;
    static float w[N];
    atto_seed(test_dev, 7);
    MUST(atto_linear_create(test_dev, FEATURES, UNITS, NULL, &m));
    atto_var x = atto_input(tape, ATTO_F32, atto_shape2(1, FEATURES), w);
    assert_true(x.generation != 0);
    char key[64] = "";
    MUST(atto_module_params(m, collect_key, key));
    assert_string_equal(key, "weight bias ");
    atto_param *copy;
    atto_seed(test_dev, 7);
    MUST(atto_param_create(test_dev, ATTO_F32, atto_shape2(UNITS, FEATURES), &copy));
    MUST(atto_param_init_uniform(copy, 0.05));
    MUST(atto_param_read(copy, w));
    double sum = 0.0, squares = 0.0, largest = 0.0;
    for (int i = 0; i < N; i++) {
        sum += (double)w[i];
        squares += (double)w[i] * (double)w[i];
        if ((double)w[i] > largest) largest = (double)w[i];
        assert_true(w[i] >= -0.05f && w[i] < 0.05f);
    }
    /* mean 0 +- 5 sigma of bound / sqrt(3 N); variance bound^2 / 3 within 5 sigma of it */
    assert_true(sum / N < 5 * 0.05 / 346.4 && sum / N > -5 * 0.05 / 346.4);
    assert_true(squares / N > 0.0025 / 3 * 0.97 && squares / N < 0.0025 / 3 * 1.03);
    assert_true(largest > 0.0499);
    for (uint32_t i = 0; i < N; i++) { /* the same bits on every device */
        uint32_t words[4];
        oracle_philox((const uint32_t[4]){ i / 4, 0, 0, 0 }, 7, words);
        assert_true(w[i] == (float)((2.0 * (words[i % 4] >> 8) / 16777216.0 - 1.0) * 0.05));
    }
    atto_param_free(copy);
    atto_module_free(m);
}

/* Dropout draws in training only, and differently in each step. */
static void modules_train_and_evaluate(void **state)
{
    (void)state;
    atto_module *net;
    float first[64], second[64], third[64];
    MUST(atto_sequential_create(test_dev, &net));
    MUST(atto_sequential_dropout(net, 0.5f));
    assert_true(atto_module_is_training(net));
    float ones[64];
    for (int i = 0; i < 64; i++) ones[i] = 1.0f;
    float *outputs[] = { first, second };
    for (int i = 0; i < 2; i++) {
        const atto_var x = atto_input(tape, ATTO_F32, atto_shape1(64), ones);
        MUST(atto_var_read(tape, atto_apply(tape, net, x), outputs[i]));
        MUST(atto_tape_end(tape));
    }
    assert_memory_not_equal(first, second, sizeof first);
    atto_module_train(net, false);
    const atto_var x = atto_input(tape, ATTO_F32, atto_shape1(64), ones);
    MUST(atto_var_read(tape, atto_apply(tape, net, x), third));
    assert_memory_equal(third, ones, sizeof third);
    atto_module_free(net);
}

static atto_var closing_forward(atto_module *m, atto_tape *t, atto_var x)
{
    if (*(const bool *)atto_module_data(m)) {
        MUST(atto_tape_end(t));
        return input(4, ROWS, IN);
    }
    atto_scope_end(t, &x, 1);
    return x;
}

static void modules_say_which_of_them_failed(void **state)
{
    (void)state;
    atto_module *outer, *inner, *layer;
    MUST(atto_sequential_create(test_dev, &outer));
    MUST(atto_sequential_create(test_dev, &inner));
    for (int i = 0; i < 2; i++) {
        MUST(atto_linear_create(test_dev, IN, i ? OUT : IN, NULL, &layer));
        MUST(atto_sequential_add(i ? inner : outer, layer));
        atto_module_free(layer);
    }
    MUST(atto_linear_create(test_dev, IN, OUT, NULL, &layer)); /* after one of OUT features */
    MUST(atto_sequential_add(inner, layer));
    MUST(atto_sequential_add(outer, inner));
    atto_apply(tape, outer, input(4, ROWS, IN));
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_SHAPE,
                "1 (Sequential): 1 (Linear): linear_forward: x is|w of [3,7], expected [..., 7]");
    atto_module_free(layer);
    atto_module_free(inner);
    atto_module_free(outer);
}

/* What the helpers make: images, then rows, then probabilities. */
static void append_images(atto_module *net)
{
    MUST(atto_sequential_instance_norm2d(net, 4, NULL));
    MUST(atto_sequential_batch_norm2d(net, 4, NULL));
    MUST(atto_sequential_group_norm(net, 2, 4, NULL));
    MUST(atto_sequential_avg_pool2d(net, 1, 2, NULL));    /* [2,4,6,8] to [2,4,6,4], */
    MUST(atto_sequential_max_pool2d(net, 2, 1, NULL));    /* [2,4,3,4], */
    MUST(atto_sequential_adaptive_avg_pool2d(net, 0, 2)); /* [2,4,3,2], */
    MUST(atto_sequential_adaptive_max_pool2d(net, 2, 0)); /* [2,4,2,2], */
    MUST(atto_sequential_flatten(net, 2));                /* [2,4,4] */
}

static void append_rows(atto_module *net)
{
    MUST(atto_sequential_linear(net, 4, 40, NULL));
    MUST(atto_sequential_act(net, atto_silu(), 0.0f));
    MUST(atto_sequential_dropout(net, 0.0f));
    MUST(atto_sequential_instance_norm1d(net, 4, NULL));
    MUST(atto_sequential_batch_norm1d(net, 4, NULL));
    MUST(atto_sequential_avg_pool1d(net, 2, NULL)); /* [2,4,20], */
    MUST(atto_sequential_max_pool1d(net, 2, NULL)); /* [2,4,10], */
    MUST(atto_sequential_adaptive_avg_pool1d(net, 8));
    MUST(atto_sequential_adaptive_max_pool1d(net, 6));
    MUST(atto_sequential_layer_norm(net, atto_shape1(6), NULL));
    MUST(atto_sequential_rms_norm(net, atto_shape1(6), NULL));
    MUST(atto_sequential_glu(net, -1, atto_sigmoid())); /* [2,4,3] */
    MUST(atto_sequential_softmax(net, ATTO_SOFTMAX_PLAIN, -1));
}

static void sequentials_append_any_module(void **state)
{
    (void)state;
    atto_module *net;
    atto_tensor got;
    float images[2 * 4 * 6 * 8], y[2 * 4 * 3];
    MUST(atto_sequential_create(test_dev, &net));
    append_images(net);
    append_rows(net);
    EXPECT_FAIL(atto_sequential_group_norm(net, 3, 4, NULL), ATTO_E_ARGUMENT, "3 groups");
    EXPECT_FAIL(atto_sequential_glu(NULL, -1, atto_sigmoid()), ATTO_E_NULL, "sequential_glu: m is");
    assert_int_equal(atto_module_param_count(net), 8 + 8 + 200 + 8 + 12 + 6);
    for (int i = 0; i < COUNT_OF(images); i++) images[i] = (float)(i * 37 % 101);
    const atto_var x = atto_input(tape, ATTO_F32, atto_shape4(2, 4, 6, 8), images);
    const atto_var p = atto_apply(tape, net, x);
    MUST(atto_var_tensor(tape, p, &got));
    assert_true(got.rank == 3 && got.shape[0] == 2 && got.shape[1] == 4 && got.shape[2] == 3);
    MUST(atto_var_read(tape, p, y));
    for (int row = 0; row < 8; row++)
        assert_true(fabsf(y[3 * row] + y[3 * row + 1] + y[3 * row + 2] - 1.0f) < 1e-6f);
    MUST(atto_tape_end(tape));
    atto_module_free(net);
}

static void modules_leave_their_callers_scopes_alone(void **state)
{
    (void)state;
    static const atto_module_class closes = { .name = "Closes", .forward = closing_forward };
    for (int i = 0; i < 2; i++) {
        bool ends_step = i;
        atto_module *m;
        MUST(atto_module_create(test_dev, &closes, &ends_step, &m));
        atto_scope_begin(tape);
        atto_apply(tape, m, input(4, ROWS, IN));
        EXPECT_FAIL(atto_tape_end(tape), ATTO_E_STATE,
                    i ? "Closes: its forward ended the step"
                      : "Closes: its forward ended the scope");
        atto_module_free(m);
    }
}

static void modules_refuse_bad_arguments(void **state)
{
    (void)state;
    atto_module *m, *linear;
    EXPECT_FAIL(atto_linear_create(test_dev, -1, 3, NULL, &m), ATTO_E_SHAPE, "linear_create");
    assert_null(m);
    EXPECT_FAIL(atto_linear_create(test_dev, 2, 3, &(atto_linear_options){ .dropout = 2.0f }, &m),
                ATTO_E_ARGUMENT, "dropout");
    EXPECT_FAIL(atto_linear_create(test_dev, 2, 3, &(atto_linear_options){ .dtype = ATTO_I32 }, &m),
                ATTO_E_DTYPE, "linear_create: param_create");
    EXPECT_FAIL(atto_linear_create(NULL, 2, 3, NULL, &m), ATTO_E_NULL, "dev");
    EXPECT_FAIL(atto_linear_create(test_dev, 2, 3, NULL, NULL), ATTO_E_NULL, "m is NULL");
    EXPECT_FAIL(atto_act_create(test_dev, atto_softplus(0.0f, 1.0f), 0.0f, &m), ATTO_E_ARGUMENT,
                "act_create");
    MUST(atto_linear_create(test_dev, 2, 3, NULL, &linear));
    EXPECT_FAIL(atto_sequential_add(linear, linear), ATTO_E_ARGUMENT, "is a Linear");
    EXPECT_FAIL(atto_sequential_linear(NULL, 2, 3, NULL), ATTO_E_NULL, "m is NULL");
    atto_apply(tape, NULL, input(1, 1, 2));
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_NULL, "the module is NULL");
    atto_module_free(linear);
    atto_module_free(NULL);
}

static void losses_refuse_bad_options(void **state)
{
    (void)state;
    const float weight[] = { 1.0f, 2.0f };
    static const struct {
        atto_cross_entropy_loss_options options;
        atto_status status;
        const char *text;
        bool weighted;
    } rows[] = {
        { { .label_smoothing = 1.5f }, ATTO_E_ARGUMENT, "label_smoothing is 1.5", false },
        { { .label_smoothing = NAN }, ATTO_E_ARGUMENT, "label_smoothing", false },
        { { .reduction = (atto_reduction)3 }, ATTO_E_ARGUMENT, "reduction is batch mean", false },
        { { .reserved = { 0, 1 } }, ATTO_E_ARGUMENT, "reserved[1]", false },
        { { .classes = 0 }, ATTO_E_ARGUMENT, "classes is 0", true },
        { { .classes = -2 }, ATTO_E_ARGUMENT, "classes is -2", true },
        { { .classes = INT64_MAX }, ATTO_E_SHAPE, "tensor_alloc", true },
    };
    for (int i = 0; i < COUNT_OF(rows); i++) {
        atto_module *m;
        atto_cross_entropy_loss_options options = rows[i].options;
        if (rows[i].weighted) options.weight = weight;
        EXPECT_FAIL(atto_cross_entropy_loss_create(test_dev, &options, &m), rows[i].status,
                    rows[i].text);
        assert_non_null(strstr(atto_last_error(), "cross_entropy_loss_create: "));
        assert_null(m);
    }
    atto_module *m;
    EXPECT_FAIL(atto_cross_entropy_loss_create(NULL, NULL, &m), ATTO_E_NULL, "dev is NULL");
    EXPECT_FAIL(atto_cross_entropy_loss_create(test_dev, NULL, NULL), ATTO_E_NULL, "m is NULL");
}

#define ON_A_TAPE(test) cmocka_unit_test_setup_teardown(test, open_tape, close_tape)

static const struct CMUnitTest tests[] = {
    ON_A_TAPE(tape_does_what_calls_by_hand_do),
    ON_A_TAPE(tape_adds_gradients_of_a_value_in_many_places),
    ON_A_TAPE(tape_takes_one_value_twice_in_an_op),
    ON_A_TAPE(tape_accumulates_over_micro_batches),
    ON_A_TAPE(tape_holds_two_calls_at_once),
    ON_A_TAPE(tape_gives_frozen_parameters_nothing),
    ON_A_TAPE(tape_forgets_what_nobody_needs),
    ON_A_TAPE(tape_frees_saved_values_in_backward),
    ON_A_TAPE(tape_records_nothing_when_told),
    ON_A_TAPE(tape_keeps_what_it_is_asked_to),
    ON_A_TAPE(tape_holds_what_it_borrowed),
    ON_A_TAPE(tape_keeps_its_first_error),
    ON_A_TAPE(tape_keeps_the_first_error_that_users_report),
    ON_A_TAPE(tape_refuses_stale_values),
    ON_A_TAPE(tape_refuses_to_run_backwards_twice),
    ON_A_TAPE(tape_notices_parameters_that_changed),
    ON_A_TAPE(tape_notices_parameters_that_changed_behind_a_reshape),
    ON_A_TAPE(tape_wants_a_scalar_loss),
    ON_A_TAPE(tape_borrows_sound_tensors_only),
    ON_A_TAPE(tape_scopes_keep_values_of_this_step_only),
    ON_A_TAPE(tape_refuses_null),
    ON_A_TAPE(tape_reshapes_without_and_with_a_copy),
    ON_A_TAPE(tape_runs_ops_of_users),
    ON_A_TAPE(tape_forgets_gradients_that_were_not_written),
    ON_A_TAPE(tape_records_nothing_while_it_runs_backwards),
    ON_A_TAPE(meter_gives_means),
    ON_A_TAPE(modules_name_their_parameters_as_pytorch_does),
    ON_A_TAPE(modules_give_a_parameter_by_its_key),
    ON_A_TAPE(modules_start_as_pytorchs_do),
    ON_A_TAPE(modules_train_and_evaluate),
    ON_A_TAPE(modules_say_which_of_them_failed),
    ON_A_TAPE(sequentials_append_any_module),
    ON_A_TAPE(modules_leave_their_callers_scopes_alone),
    ON_A_TAPE(modules_refuse_bad_arguments),
    ON_A_TAPE(losses_refuse_bad_options),
};
TEST_MAIN("tape", tests)
