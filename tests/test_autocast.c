/* SPDX-License-Identifier: MIT */
/* Autocast on a tape: what each class of ops is given and gives, where gradients go, how long casts
 * live, and what switches it. Parameters and optimisers are in test_shadow.c. */
#include <math.h>
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

static const atto_dtype lows[] = { ATTO_F16, ATTO_BF16 };

/* Numbers from [0.5, 2): legal for logarithms and roots, harmless for exp. */
static atto_var input(uint64_t seed, atto_shape shape)
{
    double values[512];
    float floats[512];
    const atto_tensor like = atto_tensor_of(NULL, ATTO_F32, shape, 0);
    const int64_t n = atto_tensor_numel(&like);
    test_uniform(seed, 0.5, 2.0, ATTO_F32, values, n);
    for (int64_t i = 0; i < n; i++) floats[i] = (float)values[i];
    return atto_input(tape, ATTO_F32, shape, floats);
}

static atto_dtype dtype_of(atto_var v)
{
    atto_tensor t;
    MUST(atto_var_tensor(tape, v, &t));
    return t.dtype;
}

static void expect_dtype(atto_var v, atto_dtype wanted)
{
    const atto_dtype got = dtype_of(v);
    if (got != wanted)
        fail_msg("%s: the result is %s, expected %s", test_backend(), atto_dtype_name(got),
                 atto_dtype_name(wanted));
}

/* Two values have one dtype and the same bits. */
static void expect_same(const char *what, atto_var a, atto_var b)
{
    unsigned char bits[2][4096];
    atto_tensor t[2];
    const atto_var both[] = { a, b };
    for (int i = 0; i < 2; i++) {
        MUST(atto_var_tensor(tape, both[i], &t[i]));
        assert_true((size_t)atto_tensor_numel(&t[i]) * atto_dtype_size(t[i].dtype) <=
                    sizeof bits[i]);
        MUST(atto_tensor_read(&t[i], bits[i]));
    }
    if (t[0].dtype != t[1].dtype)
        fail_msg("%s: %s and %s", what, atto_dtype_name(t[0].dtype), atto_dtype_name(t[1].dtype));
    const size_t bytes = (size_t)atto_tensor_numel(&t[0]) * atto_dtype_size(t[0].dtype);
    if (memcmp(bits[0], bits[1], bytes) != 0) fail_msg("%s: other bits", what);
}

static uint64_t launches(void)
{
    atto_device_stats stats;
    MUST(atto_device_stats_get(test_dev, &stats));
    return stats.launches;
}

/* ---- classes ----
 *
 * A function of two [4, 6] values. Under autocast it gives what it gives without, of inputs that
 * were cast by hand. */

typedef atto_var (*function)(atto_var a, atto_var b);

static atto_var low_linear(atto_var a, atto_var b)
{
    return atto_linear(tape, a, b, NULL);
}

static atto_var low_linear_residual(atto_var a, atto_var b)
{
    const atto_var r = dtype_of(a) == ATTO_F32
                           ? input(9, atto_shape2(4, 4))
                           : atto_cast(tape, input(9, atto_shape2(4, 4)), dtype_of(a));
    return atto_linear(tape, a, b,
                       &(atto_linear_fused){ .residual = &r, .act = atto_gelu(), .dropout = 0.0f });
}

static atto_var low_matmul(atto_var a, atto_var b)
{
    return atto_matmul(tape, a, atto_transpose(tape, b, 0, 1));
}

static atto_var low_dot(atto_var a, atto_var b)
{
    const atto_shape flat = atto_shape1(24);
    return atto_matmul(tape, atto_reshape(tape, a, flat), atto_reshape(tape, b, flat));
}

/* One step from zeros: [4, 6] beside weights [20, 6] and [20, 5]. */
static atto_var low_recurrent(atto_var a, bool is_lstm, bool is_cell)
{
    const int64_t rows = is_lstm ? 20 : 15;
    atto_var w[] = { input(7, atto_shape2(rows, 6)), input(8, atto_shape2(rows, 5)) }, cy;
    const atto_var bias = input(9, atto_shape1(rows));
    for (int i = 0; i < 2 && dtype_of(a) != ATTO_F32; i++)
        w[i] = atto_cast(tape, w[i], dtype_of(a));
    const atto_rnn_weights weights = { .w_ih = w[0], .w_hh = w[1], .b_hh = &bias };
    if (!is_cell)
        return is_lstm ? atto_lstm(tape, a, &weights, NULL) : atto_gru(tape, a, &weights, NULL);
    return is_lstm ? atto_lstm_cell(tape, a, NULL, NULL, &weights, &cy)
                   : atto_gru_cell(tape, a, NULL, &weights);
}

#define RECURRENT(name, is_lstm, is_cell)              \
    static atto_var low_##name(atto_var a, atto_var b) \
    {                                                  \
        (void)b;                                       \
        return low_recurrent(a, is_lstm, is_cell);     \
    }
RECURRENT(lstm_cell, true, true)
RECURRENT(gru_cell, false, true)
RECURRENT(lstm, true, false)
RECURRENT(gru, false, false)
static atto_var low_conv1d(atto_var a, atto_var b)
{
    return atto_conv1d(tape, atto_reshape(tape, a, atto_shape3(2, 2, 6)),
                       atto_reshape(tape, b, atto_shape3(4, 2, 3)), NULL);
}

static atto_var low_conv2d_residual(atto_var a, atto_var b)
{
    const atto_shape y = atto_shape4(2, 3, 1, 2);
    const atto_var r =
        dtype_of(a) == ATTO_F32 ? input(9, y) : atto_cast(tape, input(9, y), dtype_of(a));
    return atto_conv2d(tape, atto_reshape(tape, a, atto_shape4(2, 2, 2, 3)),
                       atto_reshape(tape, b, atto_shape4(3, 2, 2, 2)),
                       &(atto_conv_options){ .residual = &r, .act = atto_gelu() });
}

static atto_var low_conv_transpose2d(atto_var a, atto_var b)
{
    return atto_conv_transpose2d(tape, atto_reshape(tape, a, atto_shape4(2, 2, 2, 3)),
                                 atto_reshape(tape, b, atto_shape4(2, 3, 2, 2)), NULL);
}

#define F32_OF_ONE(name, call)                         \
    static atto_var f32_##name(atto_var a, atto_var b) \
    {                                                  \
        (void)b;                                       \
        return call;                                   \
    }
F32_OF_ONE(softmax, atto_softmax(tape, a, -1))
F32_OF_ONE(log_softmax, atto_log_softmax(tape, a, 0))
F32_OF_ONE(layer_norm, atto_layer_norm(tape, a, 1, NULL))
F32_OF_ONE(group_norm, atto_group_norm(tape, a, 2, NULL))
F32_OF_ONE(instance_norm,
           atto_instance_norm(tape, atto_reshape(tape, a, atto_shape3(2, 2, 6)), NULL))
F32_OF_ONE(sum, atto_reduce(tape, ATTO_REDUCE_SUM, a, NULL))
F32_OF_ONE(mean, atto_reduce(tape, ATTO_REDUCE_MEAN, a, NULL))
F32_OF_ONE(exp, atto_unary(tape, ATTO_UNARY_EXP, a))
F32_OF_ONE(log, atto_unary(tape, ATTO_UNARY_LOG, a))
F32_OF_ONE(rsqrt, atto_unary(tape, ATTO_UNARY_RSQRT, a))
F32_OF_ONE(reciprocal, atto_unary(tape, ATTO_UNARY_RECIPROCAL, a))
F32_OF_ONE(pow, atto_binary_number(tape, ATTO_BINARY_POW, a, 3.0f))
F32_OF_ONE(softplus, atto_act(tape, a, atto_softplus(1.0f, 20.0f), NULL))

/* In evaluation as in training, though it is batch norm then. */
static atto_var f32_instance_norm_evaluated(atto_var a, atto_var b)
{
    const atto_var mean = input(5, atto_shape1(2)), var = input(6, atto_shape1(2));
    (void)b;
    return atto_instance_norm(tape, atto_reshape(tape, a, atto_shape3(2, 2, 6)),
                              &(atto_instance_norm_options){ .running_mean = &mean,
                                                             .running_var = &var,
                                                             .use_running_stats = true });
}

static const struct {
    const char *name;
    function f;
} low_ops[] = { { "linear", low_linear },
                { "linear with a residual", low_linear_residual },
                { "matmul", low_matmul },
                { "matmul of vectors", low_dot },
                { "lstm_cell", low_lstm_cell },
                { "gru_cell", low_gru_cell },
                { "lstm", low_lstm },
                { "gru", low_gru },
                { "conv1d", low_conv1d },
                { "conv2d with a residual", low_conv2d_residual },
                { "conv_transpose2d", low_conv_transpose2d } },
  f32_ops[] = {
#define ROW(name)         \
    {                     \
#name, f32_##name \
    }
      ROW(softmax),       ROW(log_softmax),
      ROW(layer_norm),    ROW(group_norm),
      ROW(instance_norm), ROW(sum),
      ROW(mean),          ROW(exp),
      ROW(log),           ROW(rsqrt),
      ROW(reciprocal),    ROW(pow),
      ROW(softplus),      ROW(instance_norm_evaluated),
#undef ROW
  };

static void autocast_low_ops_take_and_give_low(void **state)
{
    (void)state;
    for (int d = 0; d < COUNT_OF(lows); d++) {
        for (int i = 0; i < COUNT_OF(low_ops); i++) {
            const atto_var a = input(1, atto_shape2(4, 6)), b = input(2, atto_shape2(4, 6));
            MUST(atto_tape_autocast(tape, ATTO_F32));
            const atto_var want =
                low_ops[i].f(atto_cast(tape, a, lows[d]), atto_cast(tape, b, lows[d]));
            MUST(atto_tape_autocast(tape, lows[d]));
            const atto_var got = low_ops[i].f(a, b);
            expect_dtype(got, lows[d]);
            expect_same(low_ops[i].name, got, want);
            /* low already, and low of the other kind */
            expect_same(low_ops[i].name,
                        low_ops[i].f(atto_cast(tape, a, lows[d]), atto_cast(tape, b, lows[d])),
                        want);
            expect_dtype(low_ops[i].f(atto_cast(tape, a, lows[1 - d]), b), lows[d]);
            MUST(atto_tape_end(tape));
        }
    }
}

/* What is low is widened; the result is that of the widened inputs. */
static void autocast_f32_ops_take_and_give_f32(void **state)
{
    (void)state;
    for (int d = 0; d < COUNT_OF(lows); d++) {
        for (int i = 0; i < COUNT_OF(f32_ops); i++) {
            const atto_var a = atto_cast(tape, input(1, atto_shape2(4, 6)), lows[d]);
            const atto_var wide = atto_cast(tape, a, ATTO_F32);
            MUST(atto_tape_autocast(tape, ATTO_F32));
            const atto_var want = f32_ops[i].f(wide, wide);
            MUST(atto_tape_autocast(tape, lows[d]));
            const atto_var got = f32_ops[i].f(a, a);
            expect_dtype(got, ATTO_F32);
            expect_same(f32_ops[i].name, got, want);
            MUST(atto_tape_end(tape));
        }
    }
}

/* Norms and batch norm take weights in f32 beside low inputs: they are not rounded. */
static void autocast_leaves_weights_in_f32_beside_low_inputs(void **state)
{
    (void)state;
    const atto_var x = atto_cast(tape, input(1, atto_shape2(4, 6)), ATTO_BF16);
    const atto_var w = input(2, atto_shape1(6)), b = input(3, atto_shape1(6));
    const atto_var mean = input(4, atto_shape1(6)), var = input(5, atto_shape1(6));
    const atto_var lw = atto_cast(tape, input(6, atto_shape2(6, 6)), ATTO_BF16);
    const atto_layer_norm_options rms = { .weight = &w };
    const atto_batch_norm_options batch = {
        .weight = &w, .bias = &b, .running_mean = &mean, .running_var = &var
    };
    const atto_linear_fused fused = { .bias = &b };
    const atto_var want[] = { atto_rms_norm(tape, x, 1, &rms), atto_batch_norm(tape, x, &batch),
                              atto_linear(tape, x, lw, &fused) };
    MUST(atto_tape_autocast(tape, ATTO_BF16));
    const uint64_t before = launches();
    const atto_var got[] = { atto_rms_norm(tape, x, 1, &rms), atto_batch_norm(tape, x, &batch),
                             atto_linear(tape, x, lw, &fused) };
    assert_true(launches() - before <= 5); /* linear may take two; no casts */
    for (int i = 0; i < 3; i++) expect_same("weights in f32", got[i], want[i]);
    /* a bias that is low, but of the other kind, becomes what the others are */
    const atto_var odd = atto_cast(tape, b, ATTO_F16);
    expect_dtype(atto_linear(tape, x, lw, &(atto_linear_fused){ .bias = &odd }), ATTO_BF16);
}

static void autocast_widest_ops_take_the_widest(void **state)
{
    (void)state;
    const atto_shape shape = atto_shape2(4, 6);
    const atto_var f32 = input(1, shape), f16 = atto_cast(tape, input(2, shape), ATTO_F16);
    const atto_var bf16 = atto_cast(tape, input(3, shape), ATTO_BF16);
    const atto_var wide16 = atto_cast(tape, f16, ATTO_F32), wideb = atto_cast(tape, bf16, ATTO_F32);
    const int32_t ones[24] = { 1, 0, 1 };
    const atto_var cond = atto_input(tape, ATTO_I32, shape, ones);
    const atto_var sum = atto_add(tape, f32, wide16), mixed = atto_mul(tape, wide16, wideb);
    const atto_var chosen = atto_where(tape, cond, wide16, f32);
    const atto_var compared = atto_compare(tape, ATTO_COMPARE_LT, wide16, f32);
    const atto_var parts[] = { f16, f32, bf16 }, wide[] = { wide16, f32, wideb };
    const atto_var joined = atto_concat(tape, wide, 3, 0), stacked = atto_stack(tape, wide, 3, 1);

    MUST(atto_tape_autocast(tape, ATTO_F16));
    expect_same("add", atto_add(tape, f32, f16), sum);
    expect_same("mul of f16 and bf16", atto_mul(tape, f16, bf16), mixed);
    expect_same("where", atto_where(tape, cond, f16, f32), chosen);
    expect_same("compare", atto_compare(tape, ATTO_COMPARE_LT, f16, f32), compared);
    expect_same("concat", atto_concat(tape, parts, 3, 0), joined);
    expect_same("stack", atto_stack(tape, parts, 3, 1), stacked);
    expect_dtype(atto_add(tape, f16, f16), ATTO_F16);
    expect_dtype(atto_add(tape, bf16, bf16), ATTO_BF16); /* not cast to what autocast says */
    expect_dtype(atto_concat(tape, (atto_var[]){ f16, f16 }, 2, 0), ATTO_F16);
    expect_dtype(atto_binary_number(tape, ATTO_BINARY_MUL, f16, 2.0f), ATTO_F16);
    expect_dtype(atto_concat(tape, (atto_var[]){ cond, cond }, 2, 0), ATTO_I32);
}

/* Inputs of 3 dimensions [2, 4, 6]; each op gives what it gets. */
static void autocast_flow_ops_leave_dtypes_alone(void **state)
{
    (void)state;
    const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };
    const int32_t rows[] = { 1, 0 }, places[48] = { 0 };
    const atto_reduce_options last = { .dims = { -1 }, .dim_count = 1 };
    MUST(atto_tape_autocast(tape, ATTO_F16));
    for (int d = 0; d < 3; d++) {
        const atto_var x = atto_cast(tape, input(1, atto_shape3(2, 4, 6)), dtypes[d]);
        const atto_var index = atto_input(tape, ATTO_I32, atto_shape1(2), rows);
        const atto_var at = atto_input(tape, ATTO_I32, atto_shape3(2, 4, 6), places);
        atto_var found;
        const uint64_t before = launches();
        const atto_var results[] = {
            atto_act(tape, x, atto_relu(), NULL),
            atto_act(tape, x, atto_gelu(), &(atto_act_options){ .dropout = 0.5f }),
            atto_dropout(tape, x, 0.5f),
            atto_unary(tape, ATTO_UNARY_NEG, x),
            atto_unary(tape, ATTO_UNARY_SQRT, x),
            atto_clamp(tape, x, 0.0f, 1.0f),
            atto_reduce(tape, ATTO_REDUCE_MAX, x, &last),
            atto_reduce(tape, ATTO_REDUCE_MIN, x, &last),
            atto_glu(tape, x, 1, atto_sigmoid()),
            atto_rms_norm(tape, x, 1, NULL),
            atto_batch_norm(tape, x, &(atto_batch_norm_options){ .training = true }),
            atto_avg_pool1d(tape, x, 2, NULL),
            atto_max_pool1d(tape, x, 2, NULL, &found),
            atto_pad_mode(tape, x, ATTO_PAD_REPLICATE, (int64_t[]){ 0, 0, 1 },
                          (int64_t[]){ 0, 1, 2 }),
            atto_resize1d(tape, x, 5, NULL),
            atto_index_select(tape, x, 1, index),
            atto_embedding(tape, x, index, NULL),
            atto_gather(tape, x, 1, at),
            atto_slice(tape, x, 1, 0, 2, 1),
        };
        assert_true(launches() - before <=
                    24); /* some take two; no casts: those would be 18 more */
        for (int i = 0; i < COUNT_OF(results); i++) expect_dtype(results[i], dtypes[d]);
        expect_dtype(found, ATTO_I64);
        expect_dtype(atto_reduce(tape, ATTO_REDUCE_ARGMAX, x, NULL), ATTO_I64);
    }
}

/* A fused residual has to be like x: it becomes so. */
static void autocast_residuals_follow_x(void **state)
{
    (void)state;
    const atto_var r = input(2, atto_shape2(4, 6));
    const atto_var x = atto_cast(tape, input(1, atto_shape2(4, 6)), ATTO_F16);
    const atto_var low = atto_cast(tape, r, ATTO_F16);
    const atto_var want =
        atto_batch_norm(tape, x, &(atto_batch_norm_options){ .residual = &low, .training = true });
    MUST(atto_tape_autocast(tape, ATTO_F16));
    const atto_var got =
        atto_batch_norm(tape, x, &(atto_batch_norm_options){ .residual = &r, .training = true });
    expect_same("residual", got, want);
}

/* Losses compute in f32 from what they read: low logits are not copied. What differs is. */
static void autocast_losses_read_low_inputs(void **state)
{
    (void)state;
    const int32_t labels[] = { 3, 0, 5, 1 };
    for (int d = 0; d < COUNT_OF(lows); d++) {
        const atto_var x = atto_cast(tape, input(1, atto_shape2(4, 6)), lows[d]);
        const atto_var target = input(2, atto_shape2(4, 6));
        const atto_var low_target = atto_cast(tape, target, lows[d]);
        const atto_var t = atto_input(tape, ATTO_I32, atto_shape1(4), labels);
        const atto_var weight = input(3, atto_shape1(6));
        const atto_cross_entropy_options weighted = { .weight = &weight };
        MUST(atto_tape_autocast(tape, ATTO_F32));
        uint64_t before = launches();
        const atto_var want[] = { atto_cross_entropy(tape, x, t, &weighted),
                                  atto_nll_loss(tape, x, t, NULL),
                                  atto_mse_loss(tape, x, low_target, NULL) };
        const uint64_t cost = launches() - before;
        MUST(atto_tape_autocast(tape, lows[d]));
        before = launches();
        const atto_var got[] = { atto_cross_entropy(tape, x, t, &weighted),
                                 atto_nll_loss(tape, x, t, NULL),
                                 atto_mse_loss(tape, x, low_target, NULL) };
        assert_int_equal(launches() - before, cost);
        for (int i = 0; i < 3; i++) expect_dtype(got[i], ATTO_F32);
        for (int i = 0; i < 3; i++) expect_same("loss", got[i], want[i]);
        MUST(atto_tape_autocast(tape, ATTO_F32));
        const atto_var wide = atto_mse_loss(tape, atto_cast(tape, x, ATTO_F32), target, NULL);
        MUST(atto_tape_autocast(tape, lows[d]));
        expect_same("mse_loss", atto_mse_loss(tape, x, target, NULL), wide);
        MUST(atto_tape_end(tape));
    }
}

/* ---- gradients ---- */

enum { BATCH = 8, IN = 12, OUT = 10 };

typedef struct layer {
    atto_param *w, *b;
    float x[BATCH * IN], t[BATCH * OUT];
} layer;

static atto_param *param(atto_shape shape)
{
    atto_param *p;
    MUST(atto_param_create(test_dev, ATTO_F32, shape, &p));
    MUST(atto_param_init_uniform(p, 0.5));
    return p;
}

static void fill(uint64_t seed, float *out, int64_t n)
{
    double values[BATCH * IN];
    test_uniform(seed, -1.0, 1.0, ATTO_F32, values, n);
    for (int64_t i = 0; i < n; i++) out[i] = (float)values[i];
}

static void open_layer(layer *l)
{
    atto_seed(test_dev, 7);
    l->w = param(atto_shape2(OUT, IN));
    l->b = param(atto_shape1(OUT));
    fill(11, l->x, BATCH * IN);
    fill(12, l->t, BATCH * OUT);
}

static void close_layer(layer *l)
{
    atto_param_free(l->w);
    atto_param_free(l->b);
}

static void take_grad(atto_param *p, float *out)
{
    atto_tensor grad;
    MUST(atto_param_grad(p, &grad));
    assert_int_equal(grad.dtype, ATTO_F32);
    MUST(atto_tensor_read(&grad, out));
    atto_param_zero_grad(p);
}

/* mean (x w^T + b - t)^2, and what it gives w and b. */
static void run_layer(layer *l, atto_dtype dtype, float *dw, float *db)
{
    MUST(atto_tape_autocast(tape, dtype));
    const atto_var x = atto_input(tape, ATTO_F32, atto_shape2(BATCH, IN), l->x);
    const atto_var t = atto_input(tape, ATTO_F32, atto_shape2(BATCH, OUT), l->t);
    const atto_var b = atto_use(tape, l->b);
    const atto_var y =
        atto_linear(tape, x, atto_use(tape, l->w), &(atto_linear_fused){ .bias = &b });
    MUST(atto_backward(tape, atto_mse_loss(tape, y, t, NULL)));
    MUST(atto_tape_end(tape));
    take_grad(l->w, dw);
    take_grad(l->b, db);
}

/* How far w's and b's gradients may be from those of f32. With u the unit of the low dtype:
 *
 *     x, w      rounded once, so y before its own rounding is off by 2 u sum |x| |w|
 *     y         rounded: u |y|. The loss takes it, widened, beside t in f32: exact
 *     dy        2 (y - t) / n, off by 2 / n of y's error, and rounded: u |dy|
 *     dw        sum over the batch of dy x, where x is off by u |x|; itself f32
 *     db        sum over the batch of dy; f32
 *
 * A twentieth more covers products of errors (8 u) and what f32 rounds. */
static void allow(const layer *l, double u, double *dw, double *db)
{
    float w[OUT * IN], b[OUT];
    MUST(atto_param_read(l->w, w));
    MUST(atto_param_read(l->b, b));
    memset(dw, 0, OUT * IN * sizeof *dw);
    memset(db, 0, OUT * sizeof *db);
    for (int i = 0; i < BATCH * OUT; i++) {
        const float *x = l->x + i / OUT * IN, *row = w + i % OUT * IN;
        double y = (double)b[i % OUT], size = 0.0;
        for (int k = 0; k < IN; k++) y += (double)x[k] * (double)row[k];
        for (int k = 0; k < IN; k++) size += fabs((double)x[k] * (double)row[k]);
        const double dy = fabs(2.0 * (y - (double)l->t[i]) / (BATCH * OUT));
        const double off = 2.0 / (BATCH * OUT) * (2.0 * u * size + u * fabs(y)) + u * dy;
        db[i % OUT] += 1.05 * off;
        for (int k = 0; k < IN; k++)
            dw[i % OUT * IN + k] += 1.05 * (off + u * dy) * fabs((double)x[k]);
    }
}

/* Within what roundings allow; and not the same, which it would be had nothing been rounded. */
static void expect_near(const float *got, const float *want, const double *allowed, int n)
{
    int other = 0;
    for (int i = 0; i < n; i++) {
        const double off = fabs((double)got[i] - (double)want[i]);
        if (!(off <= allowed[i]))
            fail_msg("element %d: %.9g, expected %.9g within %.3g", i, (double)got[i],
                     (double)want[i], allowed[i]);
        other += off > 0.0;
    }
    assert_true(other > n / 2);
}

static void autocast_gradients_are_near_those_of_f32(void **state)
{
    (void)state;
    layer l;
    float want[OUT * IN], want_b[OUT], got[OUT * IN], got_b[OUT];
    double allowed[OUT * IN], allowed_b[OUT];
    open_layer(&l);
    run_layer(&l, ATTO_F32, want, want_b);
    for (int d = 0; d < COUNT_OF(lows); d++) {
        run_layer(&l, lows[d], got, got_b);
        allow(&l, lows[d] == ATTO_F16 ? 0x1p-11 : 0x1p-8, allowed, allowed_b);
        expect_near(got, want, allowed, OUT * IN);
        expect_near(got_b, want_b, allowed_b, OUT);
    }
    close_layer(&l);
}

/* A weight's gradient is what linear_backward writes in f32: it has not been rounded on the way. */
static void autocast_weight_gradients_are_not_rounded(void **state)
{
    (void)state;
    layer l;
    open_layer(&l);
    const atto_shape sw = atto_shape2(OUT, IN), sy = atto_shape2(BATCH, OUT);
    for (int d = 0; d < COUNT_OF(lows); d++) {
        float want[OUT * IN], got[OUT * IN];
        int odd = 0;
        atto_tensor x, w, dy, dw, value = atto_param_value(l.w);
        MUST(atto_tape_autocast(tape, lows[d]));
        const atto_var vx = atto_input(tape, ATTO_F32, atto_shape2(BATCH, IN), l.x);
        const atto_var y = atto_linear(tape, vx, atto_use(tape, l.w), NULL);
        const atto_var vdy = atto_cast(tape, input(3, sy), lows[d]);
        const atto_var low_x = atto_cast(tape, vx, lows[d]);
        MUST(atto_var_tensor(tape, low_x, &x));
        MUST(atto_var_tensor(tape, vdy, &dy));
        MUST(atto_backward_from(tape, y, &dy));
        MUST(atto_tensor_alloc(test_dev, lows[d], sw, &w));
        MUST(atto_tensor_alloc(test_dev, ATTO_F32, sw, &dw));
        MUST(atto_tensor_copy(&w, &value));
        MUST(atto_linear_backward(
            test_dev, &(struct atto_linear_args){ .x = &x, .w = &w, .dy = &dy, .dw = &dw }));
        MUST(atto_tensor_read(&dw, want));
        take_grad(l.w, got);
        for (int i = 0; i < OUT * IN; i++) {
            assert_true(got[i] == want[i]);
            odd += (float)oracle_round(lows[d], (double)got[i]) != got[i];
        }
        assert_true(odd > OUT * IN / 2); /* f32 numbers that the low dtype does not have */
        MUST(atto_tape_end(tape));
        atto_tensor_free(&w);
        atto_tensor_free(&dw);
    }
    close_layer(&l);
}

/* One gradient in f32, of what was cast, and one as low as its input, from one product. */
static void autocast_gradients_are_like_what_was_given(void **state)
{
    (void)state;
    for (int flip = 0; flip < 2; flip++) {
        atto_tensor t[2], grad;
        float wide;
        uint16_t low;
        for (int i = 0; i < 2; i++) {
            MUST(atto_tensor_alloc(test_dev, i == flip ? ATTO_F32 : ATTO_BF16, atto_shape2(1, 1),
                                   &t[i]));
            MUST(atto_tensor_fill(&t[i], 2.0 + i));
        }
        MUST(atto_tape_autocast(tape, ATTO_BF16));
        const atto_var a = atto_borrow(tape, &t[0], true), b = atto_borrow(tape, &t[1], true);
        MUST(atto_backward(tape, atto_matmul(tape, a, b)));
        MUST(atto_var_grad(tape, flip ? b : a, &grad));
        assert_int_equal(grad.dtype, ATTO_F32);
        MUST(atto_tensor_read(&grad, &wide));
        assert_true(wide == (flip ? 2.0f : 3.0f));
        MUST(atto_var_grad(tape, flip ? a : b, &grad));
        assert_int_equal(grad.dtype, ATTO_BF16);
        MUST(atto_tensor_read(&grad, &low));
        assert_int_equal(low, flip ? 0x4040 : 0x4000); /* 3 and 2 */
        MUST(atto_tape_end(tape));
        for (int i = 0; i < 2; i++) atto_tensor_free(&t[i]);
    }
}

/* Two uses of one value, of gradients 256 and 1: their sum exists in f32, not in bf16. */
static void autocast_gradients_of_several_uses_add_up_in_f32(void **state)
{
    (void)state;
    const float one = 1.0f, large = 256.0f;
    atto_tensor x, dx;
    float got;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(1, 1), &x));
    MUST(atto_tensor_fill(&x, 1.0));
    MUST(atto_tape_autocast(tape, ATTO_BF16));
    const atto_var v = atto_borrow(tape, &x, true);
    const atto_var w1 = atto_input(tape, ATTO_F32, atto_shape2(1, 1), &large);
    const atto_var w2 = atto_input(tape, ATTO_F32, atto_shape2(1, 1), &one);
    const atto_var a = atto_linear(tape, v, w1, NULL), b = atto_linear(tape, v, w2, NULL);
    expect_dtype(a, ATTO_BF16);
    /* one by one: what they share, the cast, has a way back for each */
    MUST(atto_backward(tape, a));
    MUST(atto_backward(tape, b));
    MUST(atto_var_grad(tape, v, &dx));
    assert_int_equal(dx.dtype, ATTO_F32);
    MUST(atto_tensor_read(&dx, &got));
    assert_true(got == 257.0f);
    MUST(atto_tape_end(tape));

    atto_param *p;
    MUST(atto_param_create(test_dev, ATTO_F32, atto_shape2(1, 1), &p));
    MUST(atto_param_init_constant(p, 1.0));
    const atto_var used = atto_use(tape, p);
    const atto_var many = atto_input(tape, ATTO_F32, atto_shape2(1, 1), &large);
    const atto_var few = atto_input(tape, ATTO_F32, atto_shape2(1, 1), &one);
    const atto_var c = atto_linear(tape, many, used, NULL);
    const atto_var d = atto_linear(tape, few, atto_use(tape, p), NULL);
    MUST(atto_backward(tape, atto_add(tape, c, d)));
    take_grad(p, &got);
    assert_true(got == 257.0f);
    atto_param_free(p);
    atto_tensor_free(&x);
}

/* Both fields are one value; gradient of x x^T: 2 x for a matrix of one element. */
static void autocast_one_value_may_be_both_inputs(void **state)
{
    (void)state;
    atto_tensor x, dx;
    float got;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(1, 1), &x));
    MUST(atto_tensor_fill(&x, 3.0));
    MUST(atto_tape_autocast(tape, ATTO_F16));
    const atto_var v = atto_borrow(tape, &x, true);
    for (int i = 0; i < 2; i++) {
        const atto_var y = i ? atto_linear(tape, v, v, NULL) : atto_matmul(tape, v, v);
        MUST(atto_backward(tape, y));
        MUST(atto_var_grad(tape, v, &dx));
        MUST(atto_tensor_read(&dx, &got));
        assert_true(got == 6.0f * (float)(i + 1)); /* they add up */
    }
    atto_tensor_free(&x);
}

/* A cast made while nothing was recorded leads gradients back all the same. */
static void autocast_casts_made_without_recording_have_gradients(void **state)
{
    (void)state;
    const float one = 1.0f;
    atto_tensor x, dx;
    float got;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(1, 1), &x));
    MUST(atto_tensor_fill(&x, 1.0));
    MUST(atto_tape_autocast(tape, ATTO_F16));
    const atto_var v = atto_borrow(tape, &x, true);
    const atto_var w = atto_input(tape, ATTO_F32, atto_shape2(1, 1), &one);
    atto_tape_record(tape, false);
    atto_linear(tape, v, w, NULL);
    atto_tape_record(tape, true);
    MUST(atto_backward(tape, atto_linear(tape, v, w, NULL)));
    MUST(atto_var_grad(tape, v, &dx));
    MUST(atto_tensor_read(&dx, &got));
    assert_true(got == 1.0f);
    atto_tensor_free(&x);
}

/* ---- casts: how many, and for how long ---- */

static void autocast_casts_a_value_once(void **state)
{
    (void)state;
    const atto_var x = input(1, atto_shape2(4, 6)), w = input(2, atto_shape2(4, 6));
    MUST(atto_tape_autocast(tape, ATTO_BF16));
    uint64_t before = launches();
    atto_linear(tape, x, w, NULL);
    const uint64_t first = launches() - before;
    before = launches();
    atto_linear(tape, x, w, NULL);
    assert_int_equal(launches() - before, first - 2);
    /* another dtype is another cast */
    MUST(atto_tape_autocast(tape, ATTO_F16));
    before = launches();
    expect_dtype(atto_linear(tape, x, w, NULL), ATTO_F16);
    assert_int_equal(launches() - before, first);
}

static uint64_t buffers(void)
{
    atto_device_stats stats;
    MUST(atto_device_stats_get(test_dev, &stats));
    return stats.buffers_live;
}

/* Casts go with the scope of what was cast; with recording those stay that backward reads. */
/* A borrowed tensor that is written to between two uses: the second sees what is there. */
static void autocast_casts_what_was_written_again(void **state)
{
    (void)state;
    test_tensor t;
    double values[4 * 6];
    float before[4 * 4], after[4 * 4];
    test_tensor_make(&t, test_dev, ATTO_F32, atto_shape2(4, 6), LAYOUT_DENSE);
    test_uniform(3, -1.0, 1.0, ATTO_F32, values, 4 * 6);
    test_tensor_put(&t, values);
    const atto_var x = atto_borrow(tape, &t.view, false), w = input(2, atto_shape2(4, 6));
    MUST(atto_tape_autocast(tape, ATTO_BF16));
    const atto_var first = atto_cast(tape, atto_linear(tape, x, w, NULL), ATTO_F32);
    MUST(atto_var_read(tape, first, before));
    for (int i = 0; i < 4 * 6; i++) values[i] *= -2.0;
    test_tensor_put(&t, values);
    const atto_var second = atto_cast(tape, atto_linear(tape, x, w, NULL), ATTO_F32);
    MUST(atto_var_read(tape, second, after));
    for (int i = 0; i < 4 * 4; i++) assert_true(after[i] == -2.0f * before[i]);
    MUST(atto_tape_end(tape));
    test_tensor_drop(&t);
}

static void autocast_casts_die_with_their_scope(void **state)
{
    (void)state;
    const uint64_t before = buffers();
    MUST(atto_tape_autocast(tape, ATTO_F16));
    const atto_var w = input(2, atto_shape2(6, 6));
    for (int records = 0; records < 2; records++) {
        atto_tape_record(tape, records);
        atto_tensor held;
        MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(6, 6), &held));
        const atto_var watched = atto_borrow(tape, &held, true);
        const uint64_t outside = buffers();
        atto_scope_begin(tape);
        const atto_var x = input(1, atto_shape2(4, 6));
        const atto_var y = atto_linear(tape, x, watched, NULL);
        atto_linear(tape, x, w, NULL);
        assert_int_equal(dtype_of(y), ATTO_F16);
        atto_scope_end(tape, &y, 1);
        /* first: y and the casts of watched and w; recorded, when w has one: y and the casts of
         * watched and x, which backward reads. x itself is gone */
        assert_int_equal(buffers() - outside, 3);
        atto_tensor_free(&held);
    }
    MUST(atto_tape_end(tape));
    assert_int_equal(buffers(), before);
}

/* ---- switches ---- */

static void autocast_off_is_as_if_it_never_was(void **state)
{
    (void)state;
    const atto_var x = input(1, atto_shape2(4, 6)), w = input(2, atto_shape2(4, 6));
    assert_int_equal(atto_tape_autocast_dtype(tape), ATTO_F32);
    uint64_t before = launches();
    const atto_var want = atto_linear(tape, x, w, NULL);
    const uint64_t cost = launches() - before;
    MUST(atto_tape_autocast(tape, ATTO_F16));
    assert_int_equal(atto_tape_autocast_dtype(tape), ATTO_F16);
    expect_dtype(atto_linear(tape, x, w, NULL), ATTO_F16);
    MUST(atto_tape_autocast(tape, ATTO_F32));
    before = launches();
    const atto_var got = atto_linear(tape, x, w, NULL);
    assert_int_equal(launches() - before, cost);
    expect_same("off again", got, want);
    /* and nothing is promoted any more */
    atto_add(tape, x, atto_cast(tape, x, ATTO_F16));
    EXPECT_FAIL(atto_tape_status(tape), ATTO_E_DTYPE, "binary_forward");
}

static void autocast_lasts_over_steps(void **state)
{
    (void)state;
    MUST(atto_tape_autocast(tape, ATTO_BF16));
    MUST(atto_tape_end(tape));
    expect_dtype(low_linear(input(1, atto_shape2(4, 6)), input(2, atto_shape2(4, 6))), ATTO_BF16);
}

/* Switches it to what its data says for its own product. */
static atto_var switching_forward(atto_module *m, atto_tape *t, atto_var x)
{
    const atto_dtype *dtype = atto_module_data(m);
    atto_tape_autocast(t, *dtype);
    return atto_matmul(t, x, x);
}

static const atto_module_class switching_class = { .name = "Switching",
                                                   .forward = switching_forward };

static void autocast_in_a_module_ends_with_it(void **state)
{
    (void)state;
    const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };
    for (int outer = 0; outer < 3; outer++) {
        for (int inner = 0; inner < 3; inner++) {
            atto_module *m;
            atto_dtype data = dtypes[inner];
            MUST(atto_module_create(test_dev, &switching_class, &data, &m));
            MUST(atto_tape_autocast(tape, dtypes[outer]));
            const atto_var x = input(1, atto_shape2(3, 3));
            expect_dtype(atto_apply(tape, m, x), dtypes[inner]);
            assert_int_equal(atto_tape_autocast_dtype(tape), dtypes[outer]);
            expect_dtype(atto_matmul(tape, x, x), dtypes[outer]);
            atto_module_free(m);
        }
    }
}

/* Which elements dropout takes does not depend on dtypes. */
static void autocast_leaves_random_numbers_alone(void **state)
{
    (void)state;
    float ones[24 * 24];
    for (int i = 0; i < 24 * 24; i++) ones[i] = i % 25 == 0 ? 1.0f : 0.0f;
    uint16_t low[24 * 24];
    float plain[24 * 24], after[24 * 24];
    for (int on = 0; on < 2; on++) {
        MUST(atto_tape_autocast(tape, on ? ATTO_F16 : ATTO_F32));
        atto_tape_seed(tape, 5, 0);
        const atto_var x = atto_input(tape, ATTO_F32, atto_shape2(24, 24), ones);
        const atto_var ramp = input(4, atto_shape2(1, 24)); /* y = 0.5 or more before dropout */
        const atto_var y = atto_linear(tape, x, atto_expand(tape, ramp, atto_shape2(24, 24)),
                                       &(atto_linear_fused){ .dropout = 0.5f });
        const atto_var next = atto_dropout(tape, x, 0.5f); /* goes on where linear has stopped */
        expect_dtype(next, ATTO_F32);
        MUST(atto_var_read(tape, y, on ? (void *)low : (void *)plain));
        if (!on) {
            MUST(atto_var_read(tape, next, after));
        } else {
            float again[24 * 24];
            MUST(atto_var_read(tape, next, again));
            assert_memory_equal(again, after, sizeof after);
        }
        MUST(atto_tape_end(tape));
    }
    int kept = 0;
    for (int i = 0; i < 24 * 24; i++) {
        assert_int_equal(low[i] != 0, plain[i] != 0.0f);
        kept += low[i] != 0;
    }
    assert_in_range(kept, 200, 376);
}

/* ---- ops of users, ops on tensors ---- */

static int seen_dtype;

static atto_status noting_backward(atto_tape *t, atto_node *node)
{
    const atto_tensor *dx;
    bool add;
    seen_dtype = (int)atto_node_input(t, node, 0)->dtype;
    const atto_status switched = atto_tape_autocast(t, ATTO_BF16);
    if (switched != ATTO_E_STATE) return ATTO_E_ARGUMENT;
    const atto_status status = atto_node_input_grad(t, node, 0, &dx, &add);
    return status != ATTO_OK || !dx ? status : atto_tensor_copy(dx, atto_node_output_grad(t, node));
}

static const atto_op_class noting_class = { "noting", noting_backward };

static void autocast_gives_ops_of_users_what_they_are_given(void **state)
{
    (void)state;
    atto_tensor x, y;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(1, 1), &x));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(1, 1), &y));
    MUST(atto_tensor_fill(&y, 1.0));
    MUST(atto_tape_autocast(tape, ATTO_F16));
    const atto_var v = atto_borrow(tape, &x, true);
    MUST(atto_backward(tape, atto_record(tape, &noting_class, NULL, 0, &v, 1, &y)));
    assert_int_equal(seen_dtype, ATTO_F32);
    atto_tensor_free(&x);
}

static void autocast_does_not_touch_ops_on_tensors(void **state)
{
    (void)state;
    atto_tensor x, y;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(2, 2), &x));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(2, 2), &y));
    MUST(atto_tensor_fill(&x, 1.0 + 0x1p-20)); /* f16 and bf16 would lose it */
    MUST(atto_tape_autocast(tape, ATTO_F16));
    MUST(atto_linear_forward(test_dev, &(struct atto_linear_args){ .x = &x, .w = &x, .y = &y }));
    float got[4];
    MUST(atto_tensor_read(&y, got));
    for (int i = 0; i < 4; i++) assert_true(got[i] > 2.0f);
    atto_tensor_free(&x);
    atto_tensor_free(&y);
}

static void autocast_refuses_bad_arguments(void **state)
{
    (void)state;
    EXPECT_FAIL(atto_tape_autocast(NULL, ATTO_F16), ATTO_E_NULL, "tape is NULL");
    EXPECT_FAIL(atto_tape_autocast(tape, ATTO_I32), ATTO_E_DTYPE, "dtype is i32");
    EXPECT_FAIL(atto_tape_autocast(tape, ATTO_I64), ATTO_E_DTYPE, "dtype is i64");
    EXPECT_FAIL(atto_tape_autocast(tape, (atto_dtype)0), ATTO_E_DTYPE, "dtype");
    assert_int_equal(atto_tape_autocast_dtype(tape), ATTO_F32);
    assert_int_equal(atto_tape_autocast_dtype(NULL), ATTO_F32);
    MUST(atto_tape_status(tape)); /* the step has not failed */
    /* shapes and labels are judged as without it */
    MUST(atto_tape_autocast(tape, ATTO_F16));
    low_linear(input(1, atto_shape2(4, 6)), input(2, atto_shape2(4, 5)));
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_SHAPE, "linear_forward|w");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(autocast_low_ops_take_and_give_low, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(autocast_f32_ops_take_and_give_f32, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(autocast_leaves_weights_in_f32_beside_low_inputs, open_tape,
                                        close_tape),
        cmocka_unit_test_setup_teardown(autocast_widest_ops_take_the_widest, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(autocast_flow_ops_leave_dtypes_alone, open_tape,
                                        close_tape),
        cmocka_unit_test_setup_teardown(autocast_residuals_follow_x, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(autocast_losses_read_low_inputs, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(autocast_gradients_are_near_those_of_f32, open_tape,
                                        close_tape),
        cmocka_unit_test_setup_teardown(autocast_weight_gradients_are_not_rounded, open_tape,
                                        close_tape),
        cmocka_unit_test_setup_teardown(autocast_gradients_are_like_what_was_given, open_tape,
                                        close_tape),
        cmocka_unit_test_setup_teardown(autocast_gradients_of_several_uses_add_up_in_f32, open_tape,
                                        close_tape),
        cmocka_unit_test_setup_teardown(autocast_one_value_may_be_both_inputs, open_tape,
                                        close_tape),
        cmocka_unit_test_setup_teardown(autocast_casts_made_without_recording_have_gradients,
                                        open_tape, close_tape),
        cmocka_unit_test_setup_teardown(autocast_casts_a_value_once, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(autocast_casts_what_was_written_again, open_tape,
                                        close_tape),
        cmocka_unit_test_setup_teardown(autocast_casts_die_with_their_scope, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(autocast_off_is_as_if_it_never_was, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(autocast_lasts_over_steps, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(autocast_in_a_module_ends_with_it, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(autocast_leaves_random_numbers_alone, open_tape,
                                        close_tape),
        cmocka_unit_test_setup_teardown(autocast_gives_ops_of_users_what_they_are_given, open_tape,
                                        close_tape),
        cmocka_unit_test_setup_teardown(autocast_does_not_touch_ops_on_tensors, open_tape,
                                        close_tape),
        cmocka_unit_test_setup_teardown(autocast_refuses_bad_arguments, open_tape, close_tape),
    };
    return test_main("autocast", tests, COUNT_OF(tests));
}
