/* SPDX-License-Identifier: MIT */
/* Convolutions on a tape and as modules: gradients beside central differences of the oracle,
 * shapes, parameters, batch norms folded into them, what is refused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"
#include "oracle_conv.h"

#define MOST 2000

/* ---- one recorded call ---- */

typedef struct step {
    int dims;
    bool transposed;
    int64_t batch, channels, outputs;
    int64_t in[2], kernel[2];
    atto_conv_options o; /* without bias and residual */
} step;

enum { X, W, B, R, INPUTS };

static double data[INPUTS][MOST], dy[MOST], got[MOST], want[MOST], allowed[MOST];
static oracle_sum sums[3][3][MOST]; /* of dz, of what dz may be off by, of |dy|; dx, dw, db */
static oracle_sum y_sums[MOST];

static int64_t or_one(int64_t value)
{
    return value ? value : 1;
}

static oracle_conv_axis axis_of(const step *s, int at)
{
    const int64_t stride = or_one(s->o.stride[at]), dilation = or_one(s->o.dilation[at]);
    const int64_t reach = dilation * (s->kernel[at] - 1), pad = s->o.padding[at];
    const int64_t all = s->o.same ? reach : 2 * pad;
    const int64_t out = s->transposed
                            ? (s->in[at] - 1) * stride - all + reach + 1 + s->o.output_padding[at]
                            : (s->in[at] + all - reach - 1) / stride + 1;
    return (oracle_conv_axis){ s->in[at], out,      s->kernel[at],
                               stride,    dilation, s->o.same ? reach / 2 : pad };
}

static oracle_conv ask(const step *s)
{
    const oracle_conv_axis one = { 1, 1, 1, 1, 1, 0 };
    return (oracle_conv){ .transposed = s->transposed,
                          .rim = (oracle_rim)s->o.padding_mode, /* in the same order */
                          .batch = s->batch,
                          .channels = s->channels,
                          .outputs = s->outputs,
                          .groups = or_one(s->o.groups),
                          .axis = { s->dims == 2 ? axis_of(s, 0) : one, axis_of(s, s->dims - 1) },
                          .x = data[X],
                          .w = data[W],
                          .b = data[B],
                          .dy = dy };
}

static atto_shape image(const step *s, int64_t channels, const oracle_conv *o, bool of_y)
{
    const int64_t h = of_y ? o->axis[0].out : o->axis[0].in;
    const int64_t w = of_y ? o->axis[1].out : o->axis[1].in;
    return s->dims == 2 ? atto_shape4(s->batch, channels, h, w)
                        : atto_shape3(s->batch, channels, w);
}

static atto_shape filter(const step *s)
{
    const int64_t groups = or_one(s->o.groups);
    const int64_t first = s->transposed ? s->channels : s->outputs;
    const int64_t second = (s->transposed ? s->outputs : s->channels) / groups;
    return s->dims == 2 ? atto_shape4(first, second, s->kernel[0], s->kernel[1])
                        : atto_shape3(first, second, s->kernel[0]);
}

static atto_var record(const step *s, atto_tape *tape, atto_var x, atto_var w,
                       const atto_conv_options *o)
{
    if (s->transposed)
        return s->dims == 2 ? atto_conv_transpose2d(tape, x, w, o)
                            : atto_conv_transpose1d(tape, x, w, o);
    return s->dims == 2 ? atto_conv2d(tape, x, w, o) : atto_conv1d(tape, x, w, o);
}

static int64_t count_of(const step *s, const oracle_conv *o, int which)
{
    const int64_t counts[] = { oracle_conv_x(o), oracle_conv_w(o), s->outputs, oracle_conv_y(o) };
    assert_true(counts[which] <= MOST);
    return counts[which];
}

/* Values of a view of any layout, in logical order. */
static void read_view(const atto_tensor *t, double *out)
{
    test_tensor dense;
    test_tensor_make(&dense, test_dev, ATTO_F32, atto_shape_of(t->rank, t->shape), LAYOUT_DENSE);
    MUST(atto_tensor_copy(&dense.view, t));
    test_tensor_get(&dense, out);
    test_tensor_drop(&dense);
}

static void read_var(atto_tape *tape, atto_var v, double *out)
{
    atto_tensor t;
    MUST(atto_var_tensor(tape, v, &t));
    read_view(&t, out);
}

/* ---- gradients beside central differences ----
 *
 * tanh is the activation: it and its derivatives are at most 1, 1, 1 and 2, and inputs are at most
 * 1. */

#define STEP 0x1p-13

static double loss(const oracle_conv *o, int64_t n)
{
    double sum = 0.0;
    oracle_convolve(o, &(oracle_conv_answer){ .y = y_sums });
    for (int64_t i = 0; i < n; i++) sum += dy[i] * (tanh(y_sums[i].value) + data[R][i]);
    return sum;
}

static double difference(const oracle_conv *o, int64_t n, double *value)
{
    const double at = *value;
    *value = at + STEP;
    const double above = loss(o, n);
    *value = at - STEP;
    const double below = loss(o, n);
    *value = at;
    return (above - below) / (2.0 * STEP);
}

/* What y should be and may be off by; returns the most that z may be off by. */
static double ask_forward(const oracle_conv *o, int64_t terms, int64_t n)
{
    double most = 0.0;
    oracle_convolve(o, &(oracle_conv_answer){ .y = y_sums });
    for (int64_t i = 0; i < n; i++) {
        const double off = atto_tol("conv", ATTO_F32, terms, y_sums[i].terms);
        want[i] = tanh(y_sums[i].value) + data[R][i];
        allowed[i] = off + atto_tol("tanh", ATTO_F32, 1, 1.0) +
                     atto_tol("conv", ATTO_F32, 1, 1.0 + fabs(data[R][i]));
        most = fmax(most, off);
    }
    return most;
}

static void ask_backward(const oracle_conv *o, int64_t n)
{
    static double of[3][MOST];
    oracle_convolve(o, &(oracle_conv_answer){ .y = y_sums });
    for (int64_t i = 0; i < n; i++) {
        const double t = tanh(y_sums[i].value);
        of[0][i] = dy[i] * (1.0 - t * t);
        of[1][i] = oracle_act_grad_terms(atto_tanh(), 0.0f, y_sums[i].value, dy[i]);
        of[2][i] = fabs(dy[i]);
    }
    for (int k = 0; k < 3; k++) {
        oracle_conv with = *o;
        with.dy = of[k];
        oracle_convolve(&with, &(oracle_conv_answer){ NULL, sums[k][0], sums[k][1], sums[k][2] });
    }
}

/* which: X, W or B. z_off: what z may be off by. */
static void expect_gradient(const step *s, const oracle_conv *o, int which, double z_off,
                            const atto_tensor *grad)
{
    const int64_t n_y = count_of(s, o, R), count = count_of(s, o, which);
    const int64_t taps = o->axis[0].kernel * o->axis[1].kernel;
    const int64_t spots =
        o->batch * (o->transposed && which == W ? o->axis[0].in * o->axis[1].in
                                                : o->axis[0].out * o->axis[1].out);
    /* An element on the rim is read in place of what is outside, too. */
    const int64_t around = o->rim ? (1 + 2 * s->o.padding[0] + o->axis[0].kernel) *
                                        (1 + 2 * s->o.padding[1] + o->axis[1].kernel)
                                  : 1;
    const int64_t terms = which == X ? o->outputs / o->groups * taps * around : spots;
    const char *names[] = { "dx", "dw", "db" };
    const test_about about = { names[which], "of conv", ATTO_F32,
                               atto_shape_of(grad->rank, grad->shape), 0 };
    for (int64_t i = 0; i < count; i++) {
        want[i] = difference(o, n_y, &data[which][i]);
        allowed[i] = atto_tol("conv_grad", ATTO_F32, terms, sums[0][which][i].terms) +
                     atto_tol("tanh_grad", ATTO_F32, 1, sums[1][which][i].terms) +
                     (z_off + STEP * STEP / 3.0) * sums[2][which][i].terms +
                     0x1p-52 * (double)n_y * 2.0 / STEP;
    }
    read_view(grad, got);
    expect_close(&about, got, want, allowed, count);
}

static void fill(uint64_t seed, const step *s, const oracle_conv *o)
{
    for (int i = 0; i < INPUTS; i++)
        test_uniform(seed + (uint64_t)i, -1.0, 1.0, ATTO_F32, data[i], count_of(s, o, i));
    test_uniform(seed + INPUTS, -1.0, 1.0, ATTO_F32, dy, count_of(s, o, R));
}

/* wanted: a bit for each input whose gradient is. */
static void check_step(const step *s, int wanted, bool last)
{
    const oracle_conv o = ask(s);
    const int64_t n_y = count_of(s, &o, R);
    const atto_shape shapes[] = { image(s, s->channels, &o, false), filter(s),
                                  atto_shape1(s->outputs), image(s, s->outputs, &o, true) };
    test_tensor t[INPUTS], upstream;
    atto_var v[INPUTS];
    atto_tape *tape;
    atto_tensor made, grad;
    fill(7, s, &o);
    MUST(atto_tape_create(test_dev, &tape));
    for (int i = 0; i < INPUTS; i++) {
        const bool is_image = i == X || i == R;
        test_tensor_make(&t[i], test_dev, ATTO_F32, shapes[i],
                         last && is_image ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE);
        test_tensor_put(&t[i], data[i]);
        v[i] = atto_borrow(tape, &t[i].view, wanted >> i & 1);
    }
    test_tensor_make(&upstream, test_dev, ATTO_F32, shapes[R],
                     last ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE);
    test_tensor_put(&upstream, dy);
    atto_conv_options options = s->o;
    options.bias = &v[B], options.residual = &v[R], options.act = atto_tanh();
    const atto_var result = record(s, tape, v[X], v[W], &options);
    MUST(atto_tape_status(tape));
    MUST(atto_var_tensor(tape, result, &made));
    assert_true((made.stride[1] == 1) == last); /* where x lies so */
    const int64_t terms = o.channels / o.groups * o.axis[0].kernel * o.axis[1].kernel + 1;
    const double z_off = ask_forward(&o, terms, n_y);
    const test_about about = { "y", "of conv", ATTO_F32, shapes[R], 0 };
    read_view(&made, got);
    expect_close(&about, got, want, allowed, n_y);
    ask_backward(&o, n_y);
    if (wanted) MUST(atto_backward_from(tape, result, &upstream.view));
    for (int i = X; i <= B; i++)
        if (wanted >> i & 1) {
            MUST(atto_var_grad(tape, v[i], &grad));
            expect_gradient(s, &o, i, z_off, &grad);
        }
    if (wanted >> R & 1) {
        MUST(atto_var_grad(tape, v[R], &grad));
        read_view(&grad, got);
        for (int64_t i = 0; i < n_y; i++) assert_true(got[i] == dy[i]);
    }
    atto_tape_free(tape);
    for (int i = 0; i < INPUTS; i++) test_tensor_drop(&t[i]);
    test_tensor_drop(&upstream);
}

/* clang-format off */
static const step steps[] = {
    { 2, false, 2, 4, 6, { 7, 5 }, { 3, 2 },
      { .stride = { 2, 1 }, .padding = { 1, 0 }, .dilation = { 1, 2 }, .groups = 2 } },
    { 2, false, 2, 3, 2, { 4, 5 }, { 2, 4 }, { .same = true, .dilation = { 3, 1 } } },
    { 2, false, 2, 3, 3, { 5, 6 }, { 3, 3 }, { .padding = { 1, 1 }, .groups = 3 } },
    { 1, false, 2, 3, 4, { 11 },   { 3 },    { .stride = { 2 }, .padding = { 2 } } },
    { 2, true,  2, 4, 6, { 3, 4 }, { 3, 2 },
      { .stride = { 2, 3 }, .padding = { 1, 0 }, .dilation = { 1, 2 }, .output_padding = { 1, 2 },
        .groups = 2 } },
    { 1, true,  2, 3, 2, { 5 },    { 4 },    { .stride = { 2 }, .output_padding = { 1 } } },
    { 2, false, 2, 4, 6, { 7, 5 }, { 3, 2 },
      { .stride = { 2, 1 }, .padding = { 2, 1 }, .groups = 2, .padding_mode = ATTO_PAD_REFLECT } },
    { 2, false, 2, 3, 2, { 4, 5 }, { 3, 4 },
      { .same = true, .dilation = { 1, 2 }, .padding_mode = ATTO_PAD_REPLICATE } },
    { 1, false, 2, 3, 4, { 9 },    { 3 },
      { .stride = { 2 }, .padding = { 4 }, .padding_mode = ATTO_PAD_CIRCULAR } },
};
/* clang-format on */

static void conv_functions_match_central_differences(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(steps); i++)
        for (int last = 0; last < 2; last++) check_step(&steps[i], (1 << INPUTS) - 1, last == 1);
}

static void conv_functions_give_the_gradients_that_are_wanted(void **state)
{
    (void)state;
    for (int wanted = 0; wanted < 1 << INPUTS; wanted++) {
        check_step(&steps[2], wanted, false);
        check_step(&steps[5], wanted, true);
    }
}

/* An image without a batch, and nothing of the options. */
static void conv_functions_take_an_image_alone(void **state)
{
    (void)state;
    const float x[] = { 1, 2, 3, 4, 5, 6 }, w[] = { 1, 10 };
    float out[6];
    atto_tape *tape;
    MUST(atto_tape_create(test_dev, &tape));
    const atto_var image_1 = atto_input(tape, ATTO_F32, atto_shape2(1, 6), x);
    const atto_var image_2 = atto_input(tape, ATTO_F32, atto_shape3(1, 2, 3), x);
    const atto_var w_1 = atto_input(tape, ATTO_F32, atto_shape3(1, 1, 2), w);
    const atto_var w_2 = atto_input(tape, ATTO_F32, atto_shape4(1, 1, 2, 1), w);
    MUST(atto_var_read(tape, atto_conv1d(tape, image_1, w_1, NULL), out));
    for (int i = 0; i < 5; i++) assert_true(out[i] == x[i] + 10 * x[i + 1]);
    MUST(atto_var_read(tape, atto_conv2d(tape, image_2, w_2, NULL), out));
    for (int i = 0; i < 3; i++) assert_true(out[i] == x[i] + 10 * x[i + 3]);
    atto_tape_free(tape);
}

/* ---- modules ---- */

/* Sizes as a step has them. */
static atto_status make(const step *s, atto_device *dev, bool has_bias, atto_activation act,
                        atto_dtype dtype, atto_module **m)
{
    atto_conv_module_options o = { .groups = s->o.groups,
                                   .same = s->o.same,
                                   .padding_mode = s->o.padding_mode,
                                   .no_bias = !has_bias,
                                   .act = act,
                                   .dtype = dtype };
    memcpy(o.stride, s->o.stride, sizeof o.stride);
    memcpy(o.padding, s->o.padding, sizeof o.padding);
    memcpy(o.dilation, s->o.dilation, sizeof o.dilation);
    memcpy(o.output_padding, s->o.output_padding, sizeof o.output_padding);
    const int64_t in = s->channels, out = s->outputs, h = s->kernel[0], w = s->kernel[1];
    if (s->transposed)
        return s->dims == 2 ? atto_conv_transpose2d_create(dev, in, out, h, w, &o, m)
                            : atto_conv_transpose1d_create(dev, in, out, h, &o, m);
    return s->dims == 2 ? atto_conv2d_create(dev, in, out, h, w, &o, m)
                        : atto_conv1d_create(dev, in, out, h, &o, m);
}

static int64_t read_param(const atto_module *m, const char *key, double *out)
{
    atto_param *p;
    MUST(atto_module_find_param(m, key, &p));
    const atto_tensor t = atto_param_value(p);
    read_view(&t, out);
    return atto_tensor_numel(&t);
}

/* Uniform in +-1 / sqrt(fan_in): within, and not all in the inner half. */
static void expect_drawn(const atto_module *m, const char *key, const step *s)
{
    const atto_shape w = filter(s);
    double fan_in = 1.0, most = 0.0;
    for (int32_t d = 1; d < w.rank; d++) fan_in *= (double)w.dim[d];
    const int64_t n = read_param(m, key, got);
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(got[i]));
    assert_true(most <= 1.0 / sqrt(fan_in) * (1.0 + 0x1p-23));
    assert_true(n < 12 || most > 0.5 / sqrt(fan_in));
}

static void conv_modules_are_their_functions(void **state)
{
    (void)state;
    static const char *const names[2][2] = { { "Conv1d", "Conv2d" },
                                             { "ConvTranspose1d", "ConvTranspose2d" } };
    for (int i = 0; i < COUNT_OF(steps); i++) {
        const step *s = &steps[i];
        const oracle_conv o = ask(s);
        atto_module *m;
        atto_param *weight, *bias;
        atto_tape *tape;
        MUST(make(s, test_dev, true, atto_relu(), 0, &m));
        assert_string_equal(atto_module_class_name(m), names[s->transposed][s->dims - 1]);
        expect_drawn(m, "weight", s);
        expect_drawn(m, "bias", s);
        MUST(atto_module_find_param(m, "weight", &weight));
        MUST(atto_module_find_param(m, "bias", &bias));
        const atto_tensor value = atto_param_value(weight);
        const atto_shape shape = filter(s);
        assert_int_equal(value.rank, shape.rank);
        assert_memory_equal(value.shape, shape.dim, (size_t)shape.rank * sizeof *shape.dim);
        fill(3, s, &o);
        float x[MOST], r[MOST];
        for (int64_t k = 0; k < count_of(s, &o, X); k++) x[k] = (float)data[X][k];
        for (int64_t k = 0; k < count_of(s, &o, R); k++) r[k] = (float)data[R][k];
        MUST(atto_tape_create(test_dev, &tape));
        const atto_var vx = atto_input(tape, ATTO_F32, image(s, s->channels, &o, false), x);
        const atto_var vr = atto_input(tape, ATTO_F32, image(s, s->outputs, &o, true), r);
        const atto_var vb = atto_use(tape, bias);
        atto_conv_options options = s->o;
        options.bias = &vb, options.act = atto_relu();
        for (int with = 0; with < 2; with++) {
            options.residual = with ? &vr : NULL;
            read_var(tape, with ? atto_apply2(tape, m, vx, vr) : atto_apply(tape, m, vx), got);
            read_var(tape, record(s, tape, vx, atto_use(tape, weight), &options), want);
            for (int64_t k = 0; k < count_of(s, &o, R); k++) assert_true(got[k] == want[k]);
        }
        atto_tape_free(tape);
        atto_module_free(m);
    }
}

static void conv_modules_stand_in_a_sequential(void **state)
{
    (void)state;
    const atto_conv_module_options padded = { .padding = { 1, 1 }, .dtype = ATTO_F16 };
    const atto_conv_module_options strided = { .stride = { 2 }, .no_bias = true };
    atto_module *net, *flat;
    atto_tape *tape;
    atto_tensor t;
    MUST(atto_tape_create(test_dev, &tape));
    MUST(atto_sequential_create(test_dev, &net));
    MUST(atto_sequential_conv2d(net, 2, 3, 3, 3, &padded));
    MUST(atto_sequential_conv_transpose2d(net, 3, 4, 2, 1, &padded));
    assert_int_equal(atto_module_param_count(net), 3 * 2 * 9 + 3 + 3 * 4 * 2 + 4);
    MUST(atto_tape_autocast(tape, ATTO_F16));
    const float x[2 * 2 * 5 * 5] = { 1.0f };
    atto_var v = atto_input(tape, ATTO_F32, atto_shape4(2, 2, 5, 5), x);
    MUST(atto_var_tensor(tape, atto_apply(tape, net, v), &t));
    assert_true(t.rank == 4 && t.shape[1] == 4 && t.shape[2] == 4 && t.shape[3] == 3);
    assert_int_equal(t.dtype, ATTO_F16);
    MUST(atto_tape_end(tape));
    MUST(atto_tape_autocast(tape, ATTO_F32));
    MUST(atto_sequential_create(test_dev, &flat));
    MUST(atto_sequential_conv1d(flat, 4, 2, 3, &strided));
    MUST(atto_sequential_conv_transpose1d(flat, 2, 6, 3, &strided));
    assert_int_equal(atto_module_param_count(flat), 2 * 4 * 3 + 2 * 6 * 3);
    v = atto_input(tape, ATTO_F32, atto_shape3(1, 4, 25), x);
    MUST(atto_var_tensor(tape, atto_apply(tape, flat, v), &t));
    assert_true(t.rank == 3 && t.shape[1] == 6 && t.shape[2] == 25);
    atto_module_free(net);
    atto_module_free(flat);
    atto_tape_free(tape);
}

/* Wrong numbers, at the place where they are given. */
static void conv_modules_refuse_wrong_numbers(void **state)
{
    (void)state;
    atto_module *m = NULL;
    atto_conv_module_options o;
#define REFUSES(create, change, status, words)                            \
    do {                                                                  \
        o = (atto_conv_module_options){ .groups = 0 };                    \
        change;                                                           \
        EXPECT_FAIL(create(test_dev, 4, 6, 3, 3, &o, &m), status, words); \
        assert_null(m);                                                   \
    } while (0)
    REFUSES(atto_conv2d_create, o.groups = 4, ATTO_E_ARGUMENT, "4 groups do not divide out");
    REFUSES(atto_conv2d_create, o.groups = 3, ATTO_E_ARGUMENT, "3 groups do not divide in");
    REFUSES(atto_conv2d_create, o.groups = -1, ATTO_E_ARGUMENT, "groups is -1");
    REFUSES(atto_conv2d_create, o.stride[1] = -2, ATTO_E_ARGUMENT, "stride[1] is -2");
    REFUSES(atto_conv2d_create, o.dilation[0] = -2, ATTO_E_ARGUMENT, "dilation[0] is -2");
    REFUSES(atto_conv2d_create, o.padding[0] = -1, ATTO_E_ARGUMENT, "conv2d_create|padding[0]");
    REFUSES(atto_conv2d_create, o.output_padding[0] = 1, ATTO_E_ARGUMENT, "transposed");
    REFUSES(atto_conv2d_create, o.padding_mode = 4, ATTO_E_ARGUMENT, "padding_mode is 4");
    REFUSES(atto_conv_transpose2d_create, o.padding_mode = 1, ATTO_E_ARGUMENT, "zeros only");
    REFUSES(atto_conv2d_create, o.reserved[3] = 1, ATTO_E_ARGUMENT, "reserved");
    REFUSES(atto_conv2d_create, o.dtype = ATTO_I32, ATTO_E_DTYPE, "i32");
    REFUSES(atto_conv2d_create, o.act.kind = 999, ATTO_E_ARGUMENT, "act");
    REFUSES(atto_conv2d_create, (o.same = true, o.stride[0] = 2), ATTO_E_ARGUMENT, "same|stride");
    REFUSES(atto_conv2d_create, (o.same = true, o.padding[1] = 2), ATTO_E_ARGUMENT, "same|padding");
    REFUSES(atto_conv_transpose2d_create, o.same = true, ATTO_E_ARGUMENT, "same|transposed");
    REFUSES(atto_conv_transpose2d_create, (o.output_padding[1] = 2, o.stride[1] = 2),
            ATTO_E_ARGUMENT, "output_padding[1] is 2|less than stride");
#undef REFUSES
    EXPECT_FAIL(atto_conv2d_create(test_dev, 4, 6, 3, 0, NULL, &m), ATTO_E_ARGUMENT,
                "kernel[1] is 0");
    EXPECT_FAIL(atto_conv1d_create(test_dev, -4, 6, 3, NULL, &m), ATTO_E_SHAPE, "in is -4");
    o = (atto_conv_module_options){ .stride = { 1, 1 } };
    EXPECT_FAIL(atto_conv1d_create(test_dev, 4, 6, 3, &o, &m), ATTO_E_ARGUMENT, "one dimension");
    EXPECT_FAIL(atto_conv1d_create(NULL, 4, 6, 3, NULL, &m), ATTO_E_NULL, "dev");
    EXPECT_FAIL(atto_conv1d_create(test_dev, 4, 6, 3, NULL, NULL), ATTO_E_NULL, "m is NULL");
}

/* Errors of functions go to the tape, with their name. */
static void conv_functions_refuse_what_does_not_fit(void **state)
{
    (void)state;
    const float zeros[64] = { 0.0f };
    const struct {
        atto_shape x, w;
        atto_conv_options o;
        atto_status status;
        const char *words;
    } rows[] = {
        { atto_shape4(1, 3, 4, 4),
          atto_shape4(2, 2, 3, 3),
          { .groups = 0 },
          ATTO_E_SHAPE,
          "conv2d|expected 2 channels" },
        { atto_shape4(1, 2, 2, 4),
          atto_shape4(2, 2, 3, 3),
          { .groups = 0 },
          ATTO_E_ARGUMENT,
          "conv2d|output size too small" },
        { atto_shape2(4, 4), atto_shape4(2, 2, 3, 3), { .groups = 0 }, ATTO_E_SHAPE, "[C, H, W]" },
        { atto_shape4(1, 2, 4, 4), atto_shape3(2, 2, 3), { .groups = 0 }, ATTO_E_SHAPE, "KH, KW" },
        { atto_shape4(1, 2, 4, 4),
          atto_shape4(2, 2, 3, 3),
          { .reserved = { 1 } },
          ATTO_E_ARGUMENT,
          "reserved" },
        { atto_shape4(1, 2, 4, 4),
          atto_shape4(2, 2, 3, 3),
          { .padding = { 4, 1 }, .padding_mode = ATTO_PAD_REFLECT },
          ATTO_E_ARGUMENT,
          "pad" },
        { atto_shape4(1, 2, 4, 4),
          atto_shape4(2, 2, 3, 3),
          { .same = true, .stride = { 2 } },
          ATTO_E_ARGUMENT,
          "same" },
    };
    atto_tape *tape;
    MUST(atto_tape_create(test_dev, &tape));
    for (int i = 0; i < COUNT_OF(rows); i++) {
        const atto_var x = atto_input(tape, ATTO_F32, rows[i].x, zeros);
        const atto_var w = atto_input(tape, ATTO_F32, rows[i].w, zeros);
        atto_conv2d(tape, x, w, &rows[i].o);
        EXPECT_FAIL(atto_tape_end(tape), rows[i].status, rows[i].words);
    }
    atto_tape_free(tape);
}

/* ---- folded batch norms ---- */

static void write_floats(const atto_tensor *t, uint64_t seed, double lo, double hi)
{
    double values[64];
    float floats[64];
    const int64_t n = atto_tensor_numel(t);
    test_uniform(seed, lo, hi, ATTO_F32, values, n);
    for (int64_t i = 0; i < n; i++) floats[i] = (float)values[i];
    MUST(atto_tensor_write(t, floats));
}

static atto_status draw_buffer(void *seed, const char *key, const atto_tensor *t)
{
    if (strstr(key, "mean")) write_floats(t, *(uint64_t *)seed, -1.0, 1.0);
    if (strstr(key, "var")) write_floats(t, *(uint64_t *)seed + 1, 0.25, 2.0);
    return ATTO_OK;
}

/* A batch norm that has seen something. */
static atto_module *used_norm(int dims, int64_t channels, bool affine, atto_activation act)
{
    const atto_batch_norm_module_options o = { .no_affine = !affine, .act = act, .eps = 1e-3f };
    uint64_t seed = 50;
    atto_module *m;
    atto_param *p;
    MUST(dims == 2 ? atto_batch_norm2d_create(test_dev, channels, &o, &m)
                   : atto_batch_norm1d_create(test_dev, channels, &o, &m));
    MUST(atto_module_buffers(m, draw_buffer, &seed));
    for (int i = 0; affine && i < 2; i++) {
        MUST(atto_module_find_param(m, i ? "bias" : "weight", &p));
        const atto_tensor t = atto_param_value(p);
        write_floats(&t, 52 + (uint64_t)i, -1.5, 1.5);
        atto_param_changed(p);
    }
    atto_module_train(m, false);
    return m;
}

static atto_status take_buffer(void *rows, const char *key, const atto_tensor *t)
{
    double *out = rows;
    if (strstr(key, "mean")) read_view(t, out);
    if (strstr(key, "var")) read_view(t, out + 64);
    return ATTO_OK;
}

/* Evaluation is s (conv - mean) + beta, s = gamma / sqrt(var + eps). Apart: the sum's roundings,
 * and 8 of batch norm (a difference, a sum and its rsqrt 4, two products and a sum) of its terms.
 * Folded: one of a weight and one of a bias more than the sum's. */
static void check_fold(const step *s, bool has_bias, bool affine, bool last)
{
    const oracle_conv ask_o = ask(s);
    oracle_conv o = ask_o;
    const int64_t n_y = count_of(s, &o, R), plane = o.axis[0].out * o.axis[1].out;
    const int64_t terms = o.channels / o.groups * o.axis[0].kernel * o.axis[1].kernel + 1;
    double rows[2][64], gamma[64], beta[64], apart[MOST];
    atto_module *m, *norm = used_norm(s->dims, s->outputs, affine, atto_identity());
    atto_tape *tape;
    test_tensor x;
    fill(3, s, &o);
    MUST(make(s, test_dev, has_bias, atto_identity(), 0, &m));
    read_param(m, "weight", data[W]);
    if (has_bias) read_param(m, "bias", data[B]);
    o.b = has_bias ? data[B] : NULL;
    MUST(atto_module_buffers(norm, take_buffer, rows));
    for (int64_t c = 0; c < s->outputs; c++) gamma[c] = 1.0, beta[c] = 0.0;
    if (affine) read_param(norm, "weight", gamma), read_param(norm, "bias", beta);
    oracle_convolve(&o, &(oracle_conv_answer){ .y = y_sums });
    for (int64_t i = 0; i < n_y; i++) {
        const int64_t c = i / plane % s->outputs;
        const double scale = gamma[c] / sqrt(rows[1][c] + (double)1e-3f);
        want[i] = (y_sums[i].value - rows[0][c]) * scale + beta[c];
        const double size = fabs(scale) * (y_sums[i].terms + fabs(rows[0][c])) + fabs(beta[c]);
        allowed[i] = atto_tol("conv", ATTO_F32, terms + 1, size);
        apart[i] =
            atto_tol("conv", ATTO_F32, terms, fabs(scale) * y_sums[i].terms) + 8.0 * 0x1p-24 * size;
    }
    test_tensor_make(&x, test_dev, ATTO_F32, image(s, s->channels, &o, false),
                     last ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE);
    test_tensor_put(&x, data[X]);
    MUST(atto_tape_create(test_dev, &tape));
    const test_about about = { "folded", atto_module_class_name(m), ATTO_F32,
                               image(s, s->outputs, &o, true), 0 };
    for (int folded = 0; folded < 2; folded++) {
        if (folded) MUST(atto_conv_fold_batch_norm(m, norm));
        const atto_var v = atto_borrow(tape, &x.view, false);
        read_var(tape, atto_apply(tape, norm, atto_apply(tape, m, v)), got);
        expect_close(&about, got, want, folded ? allowed : apart, n_y);
        MUST(atto_tape_end(tape));
    }
    EXPECT_FAIL(atto_conv_fold_batch_norm(m, norm), ATTO_E_STATE, "folded before");
    atto_param *bias;
    MUST(atto_module_find_param(m, "bias", &bias));
    atto_tape_free(tape);
    atto_module_free(m);
    atto_module_free(norm);
    test_tensor_drop(&x);
}

static void conv_takes_a_batch_norm_into_its_parameters(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(steps); i++)
        for (int with = 0; with < 4; with++) check_fold(&steps[i], with & 1, with & 2, with == 3);
}

/* conv, norm, relu, conv, norm with residual and relu. The second layer's input may differ by what
 * the first one's outputs do, twice `allowed`, and each of its outputs by that times its
 * weights. */
static void conv_net_is_the_same_folded(void **state)
{
    (void)state;
    const step first = { 2, false, 2, 3, 8, { 6, 6 }, { 3, 3 }, { .padding = { 1, 1 } } };
    const step second = { 2, false, 2, 8, 3, { 6, 6 }, { 3, 3 }, { .padding = { 1, 1 } } };
    const oracle_conv o = ask(&first);
    const int64_t n = 2 * 3 * 6 * 6;
    atto_module *conv[2], *norm[2];
    atto_tape *tape;
    double before[MOST];
    float x[MOST];
    fill(5, &first, &o);
    for (int64_t i = 0; i < count_of(&first, &o, X); i++) x[i] = (float)data[X][i];
    MUST(make(&first, test_dev, false, atto_identity(), 0, &conv[0]));
    MUST(make(&second, test_dev, true, atto_identity(), 0, &conv[1]));
    norm[0] = used_norm(2, 8, true, atto_relu());
    norm[1] = used_norm(2, 3, true, atto_relu());
    MUST(atto_tape_create(test_dev, &tape));
    for (int folded = 0; folded < 2; folded++) {
        for (int i = 0; folded && i < 2; i++) MUST(atto_conv_fold_batch_norm(conv[i], norm[i]));
        const atto_var v = atto_input(tape, ATTO_F32, atto_shape4(2, 3, 6, 6), x);
        const atto_var h = atto_apply(tape, norm[0], atto_apply(tape, conv[0], v));
        const atto_var z = atto_apply(tape, conv[1], h);
        read_var(tape, atto_apply2(tape, norm[1], z, v), folded ? got : before);
        MUST(atto_tape_end(tape));
    }
    /* Numbers of a channel: |x| <= 1, weights <= 1/sqrt(fan in), |scale| <= 1.5 / sqrt(0.25). */
    const double scale = 1.5 / sqrt(0.25), weights = 72.0 / sqrt(72.0);
    const double size_1 = scale * (27.0 / sqrt(27.0) + 1.0) + 1.5;
    const double off_1 =
        atto_tol("conv", ATTO_F32, 28 + 1, size_1) + atto_tol("conv", ATTO_F32, 28 + 8, size_1);
    const double size_2 = scale * (weights * size_1 + 1.0 + 1.0) + 1.5 + 1.0;
    const double off_2 = scale * weights * off_1 + atto_tol("conv", ATTO_F32, 73 + 2, size_2) +
                         atto_tol("conv", ATTO_F32, 73 + 10, size_2);
    for (int64_t i = 0; i < n; i++) allowed[i] = off_2;
    const test_about about = { "net", "folded", ATTO_F32, atto_shape4(2, 3, 6, 6), 0 };
    expect_close(&about, got, before, allowed, n);
    double differs = 0.0; /* the norms did something */
    for (int64_t i = 0; i < n; i++) differs = fmax(differs, fabs(before[i]));
    assert_true(differs > 0.1);

    atto_module_train(norm[0], true);
    const atto_var v = atto_input(tape, ATTO_F32, atto_shape4(2, 3, 6, 6), x);
    atto_apply(tape, norm[0], atto_apply(tape, conv[0], v));
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_STATE, "BatchNorm2d|folded");
    for (int i = 0; i < 2; i++) atto_module_free(conv[i]), atto_module_free(norm[i]);
    atto_tape_free(tape);
}

/* What stands between convolutions keeps to their images' format: also a folded norm's residual
 * and activation. */
static void conv_nets_stay_channels_last(void **state)
{
    (void)state;
    static const int32_t channels_first[] = { 0, 3, 1, 2 };
    static const float pixels[2 * 4 * 5 * 3];
    atto_module *conv, *norm = used_norm(2, 3, true, atto_relu());
    atto_tape *tape;
    atto_tensor t;
    MUST(atto_conv2d_create(test_dev, 3, 3, 1, 1, NULL, &conv));
    MUST(atto_conv_fold_batch_norm(conv, norm));
    MUST(atto_tape_create(test_dev, &tape));
    const atto_var image = atto_input(tape, ATTO_F32, atto_shape4(2, 4, 5, 3), pixels);
    const atto_var x = atto_apply(tape, conv, atto_permute(tape, image, channels_first));
    const atto_var mask = atto_compare_number(tape, ATTO_COMPARE_LT, x, 0.0f);
    const atto_var row = atto_input(tape, ATTO_F32, atto_shape1(5), pixels);
    const atto_var results[] = { x,
                                 atto_apply2(tape, norm, x, x),
                                 atto_act(tape, x, atto_relu(), NULL),
                                 atto_dropout(tape, x, 0.5f),
                                 atto_add(tape, x, x),
                                 atto_mul(tape, row, x),
                                 atto_unary(tape, ATTO_UNARY_ABS, x),
                                 atto_cast(tape, x, ATTO_F16),
                                 mask,
                                 atto_where(tape, mask, row, x) };
    MUST(atto_tape_status(tape));
    for (int i = 0; i < COUNT_OF(results); i++) {
        MUST(atto_var_tensor(tape, results[i], &t));
        if (t.stride[1] != 1 || t.stride[3] != 3) fail_msg("result %d is not channels_last", i);
    }
    const atto_var like_row = atto_add(tape, row, row);
    MUST(atto_var_tensor(tape, like_row, &t));
    assert_int_equal(t.stride[0], 1);
    atto_tape_free(tape);
    atto_module_free(conv);
    atto_module_free(norm);
}

/* A frozen convolution that gets a bias stays frozen. */
static void conv_that_is_frozen_stays_so_folded(void **state)
{
    (void)state;
    for (int frozen = 0; frozen < 2; frozen++) {
        const atto_conv_module_options no_bias = { .no_bias = true };
        atto_module *conv, *norm;
        atto_param *bias;
        MUST(atto_conv2d_create(test_dev, 2, 3, 1, 1, &no_bias, &conv));
        MUST(atto_batch_norm2d_create(test_dev, 3, NULL, &norm));
        atto_module_freeze(conv, frozen);
        MUST(atto_conv_fold_batch_norm(conv, norm));
        MUST(atto_module_find_param(conv, "bias", &bias));
        assert_int_equal(atto_param_is_frozen(bias), frozen);
        atto_module_free(conv);
        atto_module_free(norm);
    }
}

static void conv_refuses_batch_norms_that_do_not_follow_it(void **state)
{
    (void)state;
    atto_module *conv, *bent, *flat, *narrow, *fresh, *fine;
    const atto_conv_module_options relu = { .act = atto_relu() };
    const atto_batch_norm_module_options untracked = { .no_running_stats = true };
    MUST(atto_conv2d_create(test_dev, 2, 3, 1, 1, NULL, &conv));
    MUST(atto_conv2d_create(test_dev, 2, 3, 1, 1, &relu, &bent));
    MUST(atto_batch_norm1d_create(test_dev, 3, NULL, &flat));
    MUST(atto_batch_norm2d_create(test_dev, 2, NULL, &narrow));
    MUST(atto_batch_norm2d_create(test_dev, 3, &untracked, &fresh));
    MUST(atto_batch_norm2d_create(test_dev, 3, NULL, &fine));
#define REFUSES(c, n, status, words) EXPECT_FAIL(atto_conv_fold_batch_norm(c, n), status, words)
    REFUSES(NULL, fine, ATTO_E_NULL, "conv is NULL");
    REFUSES(conv, NULL, ATTO_E_NULL, "batch_norm is NULL");
    REFUSES(fine, fine, ATTO_E_ARGUMENT, "conv is a BatchNorm2d");
    REFUSES(conv, conv, ATTO_E_ARGUMENT, "batch_norm is a Conv2d");
    REFUSES(bent, fine, ATTO_E_ARGUMENT, "activation relu");
    REFUSES(conv, flat, ATTO_E_SHAPE, "expected a BatchNorm2d");
    REFUSES(conv, narrow, ATTO_E_SHAPE, "2 channels, expected 3");
    REFUSES(conv, fresh, ATTO_E_ARGUMENT, "no running statistics");
#undef REFUSES
    MUST(atto_conv_fold_batch_norm(conv, fine));
    atto_module *all[] = { conv, bent, flat, narrow, fresh, fine };
    for (int i = 0; i < COUNT_OF(all); i++) atto_module_free(all[i]);
}

/* ---- memory ---- */

/* Fails the fail_at-th host allocation, from 1; 0 = none. */
static struct {
    long held, taken, fail_at;
} host;

static void *failing_allocate(void *unused, size_t bytes)
{
    (void)unused;
    if (__atomic_add_fetch(&host.taken, 1, __ATOMIC_SEQ_CST) == host.fail_at) return NULL;
    void *block = malloc(bytes);
    if (block) __atomic_add_fetch(&host.held, 1, __ATOMIC_SEQ_CST);
    return block;
}

static void failing_release(void *unused, void *pointer)
{
    (void)unused;
    __atomic_sub_fetch(&host.held, 1, __ATOMIC_SEQ_CST);
    free(pointer);
}

static int close_test_device(void **state)
{
    (void)state;
    atto_device_close(test_dev);
    test_dev = NULL;
    return 0;
}

static int reopen_test_device(void **state)
{
    (void)state;
    atto_set_allocator(NULL);
    return atto_device_open(test_device_name(), NULL, &test_dev) == ATTO_OK ? 0 : -1;
}

/* A step, a fold and an evaluation; what was made is given back. */
static atto_status train_and_fold(atto_device *dev, atto_module **conv, atto_module **norm,
                                  atto_tape **tape, float *out)
{
    const float x[2 * 2 * 9] = { 1.0f, -2.0f, 3.0f, 0.5f };
    const atto_conv_module_options o = { .no_bias = true };
    atto_status status = atto_conv2d_create(dev, 2, 3, 2, 2, &o, conv);
    if (status == ATTO_OK) status = atto_batch_norm2d_create(dev, 3, NULL, norm);
    if (status == ATTO_OK) status = atto_tape_create(dev, tape);
    if (status != ATTO_OK) return status;
    atto_var v = atto_input(*tape, ATTO_F32, atto_shape4(2, 2, 3, 3), x);
    const atto_var mean = atto_reduce(*tape, ATTO_REDUCE_MEAN,
                                      atto_apply(*tape, *norm, atto_apply(*tape, *conv, v)), NULL);
    status = atto_backward(*tape, mean);
    const atto_status ended = atto_tape_end(*tape);
    if (status != ATTO_OK || ended != ATTO_OK) return status != ATTO_OK ? status : ended;
    status = atto_conv_fold_batch_norm(*conv, *norm);
    if (status != ATTO_OK) return status;
    atto_module_train(*norm, false);
    v = atto_input(*tape, ATTO_F32, atto_shape4(2, 2, 3, 3), x);
    return atto_var_read(*tape, atto_apply(*tape, *norm, atto_apply(*tape, *conv, v)), out);
}

static void conv_modules_survive_every_failing_allocation(void **state)
{
    (void)state;
    const atto_allocator allocator = { failing_allocate, failing_release, NULL };
    MUST(atto_set_allocator(&allocator));
    atto_device *dev;
    float first[24], again[24];
    int refused = 0;
    bool reached = true;
    MUST(atto_device_open(test_device_name(), NULL, &dev));
    for (long n = 0; reached; n++) {
        atto_module *conv = NULL, *norm = NULL;
        atto_tape *tape = NULL;
        MUST(atto_device_trim(dev));
        atto_seed(dev, 1);
        host.taken = 0;
        host.fail_at = n;
        const atto_status status = train_and_fold(dev, &conv, &norm, &tape, n ? again : first);
        reached = n == 0 || host.taken >= n;
        host.fail_at = 0;
        assert_true(status == ATTO_OK || (n > 0 && status == ATTO_E_MEMORY));
        if (n > 0 && status == ATTO_OK) assert_memory_equal(first, again, sizeof first);
        refused += status != ATTO_OK;
        atto_tape_free(tape);
        atto_module_free(conv);
        atto_module_free(norm);
    }
    atto_device_close(dev);
    assert_int_equal(host.held, 0);
    assert_true(refused > 10);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(conv_functions_match_central_differences),
    cmocka_unit_test(conv_functions_give_the_gradients_that_are_wanted),
    cmocka_unit_test(conv_functions_take_an_image_alone),
    cmocka_unit_test(conv_functions_refuse_what_does_not_fit),
    cmocka_unit_test(conv_modules_are_their_functions),
    cmocka_unit_test(conv_modules_stand_in_a_sequential),
    cmocka_unit_test(conv_modules_refuse_wrong_numbers),
    cmocka_unit_test(conv_takes_a_batch_norm_into_its_parameters),
    cmocka_unit_test(conv_net_is_the_same_folded),
    cmocka_unit_test(conv_nets_stay_channels_last),
    cmocka_unit_test(conv_that_is_frozen_stays_so_folded),
    cmocka_unit_test(conv_refuses_batch_norms_that_do_not_follow_it),
    cmocka_unit_test_setup_teardown(conv_modules_survive_every_failing_allocation,
                                    close_test_device, reopen_test_device),
};
TEST_MAIN("conv_modules", tests)
