/* SPDX-License-Identifier: MIT */
/* InstanceNorm, and how norms keep images channels_last, on a tape: the double oracle decides, on
 * every backend. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"
#include "oracle_norm.h"

#define N 3
#define C 4
#define L 10 /* 2 x 5 where images are */

static atto_tape *tape;

static int open_tape(void **state)
{
    (void)state;
    return atto_tape_create(test_dev, &tape) == ATTO_OK ? 0 : -1;
}

static int close_tape(void **state)
{
    (void)state;
    atto_tape_free(tape);
    return 0;
}

/* ---- a step against the oracle ---- */

typedef struct answer {
    double y[N * C * L], y_terms[N * C * L], dx[N * C * L], dx_terms[N * C * L];
    double mean[N * C], rstd[N * C], dw[C], db[C], dw_terms[C], db_terms[C];
} answer;

/* Of the first n images. */
static void ask_oracle(int64_t n, const double *x, const double *dy, answer *out)
{
    const oracle_group_norm question = {
        .n = n, .channels = C, .size = L, .groups = C, .x = x, .dy = dy, .eps = (double)1e-5f
    };
    oracle_row_norm_answer w = { .mean = out->mean,
                                 .rstd = out->rstd,
                                 .y = out->y,
                                 .y_terms = out->y_terms,
                                 .dx = out->dx,
                                 .dx_terms = out->dx_terms,
                                 .dw = out->dw,
                                 .db = out->db,
                                 .dw_terms = out->dw_terms,
                                 .db_terms = out->db_terms };
    oracle_group_norm_of(&question, &w);
}

/* The tensor of the tape against those numbers, sums of n. */
static void expect(const atto_tensor *t, const char *op, int64_t n, const double *want,
                   const double *terms)
{
    test_tensor copy;
    test_tensor_make(&copy, test_dev, ATTO_F32, atto_shape_of(t->rank, t->shape), LAYOUT_DENSE);
    MUST(atto_tensor_copy(&copy.view, t));
    test_judge(&copy, op, LAYOUT_DENSE, 0, n, want, terms, NULL);
    test_tensor_drop(&copy);
}

/* x, and the gradient of what comes of it. */
typedef struct inputs {
    double x[N * C * L], dy[N * C * L];
    test_tensor tx, tdy;
} inputs;

static void make_inputs(inputs *in, atto_shape shape, test_layout layout, uint64_t seed)
{
    int64_t numel = 1;
    for (int32_t d = 0; d < shape.rank; d++) numel *= shape.dim[d];
    test_uniform(seed, -1.0, 3.0, ATTO_F32, in->x, numel);
    test_uniform(seed + 1, -2.0, 2.0, ATTO_F32, in->dy, numel);
    test_tensor_make(&in->tx, test_dev, ATTO_F32, shape, layout);
    test_tensor_make(&in->tdy, test_dev, ATTO_F32, shape, layout);
    test_tensor_put(&in->tx, in->x);
    test_tensor_put(&in->tdy, in->dy);
}

static void drop_inputs(inputs *in)
{
    test_tensor_drop(&in->tx);
    test_tensor_drop(&in->tdy);
}

/* Forward and backward of n images; weight and bias are 1 and 0 if there are any. */
static void check_step(atto_module *m, int64_t n, const inputs *in)
{
    answer want;
    atto_tensor got;
    ask_oracle(n, in->x, in->dy, &want);
    const atto_var x = atto_borrow(tape, &in->tx.view, true);
    const atto_var y = atto_apply(tape, m, x);
    MUST(atto_var_tensor(tape, y, &got));
    assert_int_equal(got.rank, in->tx.view.rank);
    expect(&got, "group_norm", L, want.y, want.y_terms);
    MUST(atto_backward_from(tape, y, &in->tdy.view));
    MUST(atto_var_grad(tape, x, &got));
    expect(&got, "group_norm_grad", L, want.dx, want.dx_terms);
    MUST(atto_tape_end(tape));
}

static atto_status make_module(bool flat, const atto_instance_norm_module_options *o,
                               atto_module **m)
{
    return flat ? atto_instance_norm1d_create(test_dev, C, o, m)
                : atto_instance_norm2d_create(test_dev, C, o, m);
}

/* Batches, and one image alone. */
static void instance_norm_modules_match_the_oracle(void **state)
{
    (void)state;
    for (int bits = 0; bits < 8; bits++) {
        const bool flat = bits & 1, single = bits & 2;
        const atto_instance_norm_module_options affine = { .affine = bits & 4 };
        const int64_t batch[] = { N, C, flat ? L : 2, 5 };
        inputs in;
        atto_module *m;
        make_inputs(&in, atto_shape_of((flat ? 3 : 4) - single, batch + single), LAYOUT_DENSE, 10);
        MUST(make_module(flat, &affine, &m));
        check_step(m, single ? 1 : N, &in);
        atto_module_free(m);
        drop_inputs(&in);
    }
}

/* ---- state ---- */

static atto_status note_buffer(void *data, const char *key, const atto_tensor *t)
{
    strcat(data, key);
    strcat(data, t->dtype == ATTO_I64 ? "(i64) " : " ");
    return ATTO_OK;
}

static atto_status note_param(void *data, const char *key, atto_param *p)
{
    (void)p;
    strcat(data, key);
    strcat(data, " ");
    return ATTO_OK;
}

static void instance_norm_modules_have_pytorchs_state(void **state)
{
    (void)state;
    const atto_instance_norm_module_options all = { .affine = true, .track_running_stats = true };
    for (int flat = 0; flat < 2; flat++) {
        atto_module *m;
        char keys[256] = "";
        MUST(make_module(flat, NULL, &m));
        MUST(atto_module_params(m, note_param, keys));
        MUST(atto_module_buffers(m, note_buffer, keys));
        assert_string_equal(keys, "");
        assert_string_equal(atto_module_class_name(m), flat ? "InstanceNorm1d" : "InstanceNorm2d");
        atto_module_free(m);
        MUST(make_module(flat, &all, &m));
        MUST(atto_module_params(m, note_param, keys));
        MUST(atto_module_buffers(m, note_buffer, keys));
        assert_string_equal(keys, "weight bias running_mean running_var num_batches_tracked(i64) ");
        assert_int_equal(atto_module_param_count(m), 2 * C);
        atto_module_free(m);
    }
}

static atto_status take_buffer(void *data, const char *key, const atto_tensor *t)
{
    atto_tensor *buffers = data;
    buffers[strcmp(key, "running_mean") == 0 ? 0 : strcmp(key, "running_var") == 0 ? 1 : 2] = *t;
    return ATTO_OK;
}

/* What a step makes of running statistics, with PyTorch's momentum. */
static void follow(const inputs *in, double *mean, double *var)
{
    answer now;
    ask_oracle(N, in->x, in->dy, &now);
    for (int c = 0; c < C; c++) mean[c] *= 0.9, var[c] *= 0.9;
    for (int i = 0; i < N * C; i++) {
        const double biased = 1.0 / (now.rstd[i] * now.rstd[i]) - (double)1e-5f;
        mean[i % C] += 0.1 / N * now.mean[i];
        var[i % C] += 0.1 / N * biased * L / (L - 1.0);
    }
}

/* y in evaluation. */
static void expect_evaluation(atto_module *m, const inputs *in, const double *mean,
                              const double *var)
{
    double want[N * C * L], terms[N * C * L];
    atto_tensor got;
    for (int i = 0; i < N * C * L; i++) {
        const int c = i / L % C;
        const double rstd = 1.0 / sqrt(var[c] + (double)1e-5f);
        want[i] = (in->x[i] - mean[c]) * rstd;
        terms[i] = (fabs(in->x[i]) + fabs(mean[c])) * rstd;
    }
    atto_module_train(m, false);
    const atto_var y = atto_apply(tape, m, atto_borrow(tape, &in->tx.view, false));
    MUST(atto_var_tensor(tape, y, &got));
    expect(&got, "batch_norm", N * L, want, terms);
    MUST(atto_tape_end(tape));
    atto_module_train(m, true);
}

/* Two steps, and evaluation behind each with what it has left. PyTorch does not count batches
 * here. */
static void instance_norm_modules_track_and_evaluate(void **state)
{
    (void)state;
    const atto_instance_norm_module_options tracking = { .track_running_stats = true };
    atto_module *m;
    atto_tensor buffers[3];
    double mean[C] = { 0.0 }, var[C] = { 1.0, 1.0, 1.0, 1.0 };
    int64_t batches = -1;
    MUST(make_module(true, &tracking, &m));
    MUST(atto_module_buffers(m, take_buffer, buffers));
    for (int step = 0; step < 2; step++) {
        inputs in;
        make_inputs(&in, atto_shape3(N, C, L), LAYOUT_DENSE, 20 + (uint64_t)step);
        check_step(m, N, &in);
        follow(&in, mean, var);
        expect_evaluation(m, &in, mean, var);
        drop_inputs(&in);
    }
    MUST(atto_tensor_read(&buffers[2], &batches));
    assert_int_equal(batches, 0);
    atto_module_free(m);
}

static atto_status take_param(void *data, const char *key, atto_param *p)
{
    atto_param **params = data;
    params[strcmp(key, "bias") == 0] = p;
    return ATTO_OK;
}

/* Weight and bias reach the result, and get gradients. */
static void instance_norm_modules_learn(void **state)
{
    (void)state;
    const atto_instance_norm_module_options affine = { .affine = true };
    inputs in;
    answer want;
    atto_module *m;
    atto_param *params[2];
    atto_tensor got;
    make_inputs(&in, atto_shape4(N, C, 2, 5), LAYOUT_DENSE, 30);
    ask_oracle(N, in.x, in.dy, &want);
    MUST(make_module(false, &affine, &m));
    MUST(atto_module_params(m, take_param, params));
    MUST(atto_param_init_constant(params[0], 1.5));
    MUST(atto_param_init_constant(params[1], 0.25));
    for (int i = 0; i < N * C * L; i++) {
        want.y[i] = 1.5 * want.y[i] + 0.25;
        want.y_terms[i] = 1.5 * want.y_terms[i] + 0.25;
    }
    const atto_var y = atto_apply(tape, m, atto_borrow(tape, &in.tx.view, false));
    MUST(atto_var_tensor(tape, y, &got));
    expect(&got, "group_norm", L, want.y, want.y_terms);
    MUST(atto_backward_from(tape, y, &in.tdy.view));
    MUST(atto_param_grad(params[0], &got));
    expect(&got, "group_norm_grad", L + N * L, want.dw, want.dw_terms);
    MUST(atto_param_grad(params[1], &got));
    expect(&got, "group_norm_grad", N * L, want.db, want.db_terms);
    MUST(atto_tape_end(tape));
    atto_module_free(m);
    drop_inputs(&in);
}

static void instance_norm_modules_refuse_what_does_not_fit(void **state)
{
    (void)state;
    const atto_instance_norm_module_options low = { .eps = -2.0f }, nan = { .momentum = NAN };
    const atto_instance_norm_module_options reserved = { .reserved = { 1 } };
    atto_module *m;
    EXPECT_FAIL(atto_instance_norm1d_create(test_dev, -1, NULL, &m), ATTO_E_SHAPE, "-1 channels");
    EXPECT_FAIL(make_module(false, &low, &m), ATTO_E_ARGUMENT, "instance_norm2d_create|eps is -2");
    EXPECT_FAIL(make_module(true, &nan, &m), ATTO_E_ARGUMENT, "instance_norm1d_create|momentum");
    EXPECT_FAIL(make_module(true, &reserved, &m), ATTO_E_ARGUMENT, "reserved");
    EXPECT_FAIL(atto_instance_norm2d_create(NULL, 3, NULL, &m), ATTO_E_NULL, "dev");
    EXPECT_FAIL(atto_instance_norm2d_create(test_dev, 3, NULL, NULL), ATTO_E_NULL, "m is NULL");
}

static void instance_norm_refuses_inputs_that_do_not_fit(void **state)
{
    (void)state;
    const float data[32] = { 0.0f };
    const atto_instance_norm_options running = { .use_running_stats = true };
    atto_module *m;
    MUST(make_module(true, NULL, &m));
    atto_apply(tape, m, atto_input(tape, ATTO_F32, atto_shape3(2, 3, 4), data));
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_SHAPE,
                "InstanceNorm1d: the input is [2,3,4]|4 channels in [N,C,L] or [C,L]");
    atto_apply(tape, m, atto_input(tape, ATTO_F32, atto_shape4(1, 4, 2, 2), data));
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_SHAPE, "InstanceNorm1d: the input is [1,4,2,2]");
    atto_apply(tape, m, atto_input(tape, ATTO_F32, atto_shape3(2, 4, 1), data));
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_ARGUMENT, "one value in each channel");
    atto_instance_norm(tape, atto_input(tape, ATTO_F32, atto_shape3(2, 4, 3), data), &running);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_NULL, "running_mean is NULL");
    atto_instance_norm(tape, atto_input(tape, ATTO_F32, atto_shape1(4), data), NULL);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_ARGUMENT, "one value in each channel");
    atto_module_free(m);
}

/* ---- memory ---- */

/* W3: images stay channels_last through the norms, and so do their gradients. */
static void norms_keep_channels_last_without_copies(void **state)
{
    (void)state;
    const atto_instance_norm_module_options tracking = { .track_running_stats = true };
    inputs in;
    atto_module *net;
    atto_device_stats before, after;
    atto_tensor got;
    make_inputs(&in, atto_shape4(N, C, 2, 5), LAYOUT_CHANNELS_LAST, 40);
    MUST(atto_sequential_create(test_dev, &net));
    MUST(atto_sequential_batch_norm2d(net, C, NULL));
    MUST(atto_sequential_instance_norm2d(net, C, &tracking));
    MUST(atto_sequential_group_norm(net, 2, C, NULL));
    MUST(atto_device_stats_get(test_dev, &before));
    const atto_var x = atto_borrow(tape, &in.tx.view, true);
    const atto_var y = atto_apply(tape, net, x);
    MUST(atto_backward_from(tape, y, &in.tdy.view));
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.hidden_copies, before.hidden_copies);
    MUST(atto_var_tensor(tape, y, &got));
    assert_memory_equal(got.stride, in.tx.view.stride, 4 * sizeof got.stride[0]);
    MUST(atto_tape_end(tape));
    atto_module_free(net);
    drop_inputs(&in);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(instance_norm_modules_match_the_oracle, open_tape, close_tape),
    cmocka_unit_test_setup_teardown(instance_norm_modules_have_pytorchs_state, open_tape,
                                    close_tape),
    cmocka_unit_test_setup_teardown(instance_norm_modules_track_and_evaluate, open_tape,
                                    close_tape),
    cmocka_unit_test_setup_teardown(instance_norm_modules_learn, open_tape, close_tape),
    cmocka_unit_test_setup_teardown(instance_norm_modules_refuse_what_does_not_fit, open_tape,
                                    close_tape),
    cmocka_unit_test_setup_teardown(instance_norm_refuses_inputs_that_do_not_fit, open_tape,
                                    close_tape),
    cmocka_unit_test_setup_teardown(norms_keep_channels_last_without_copies, open_tape, close_tape),
};
TEST_MAIN("instance_norm", tests)
