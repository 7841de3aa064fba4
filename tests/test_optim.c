/* SPDX-License-Identifier: MIT */
/* Optimisers: their numbers. PyTorch's own trajectories (float64) judge the oracle tightly; every
 * backend is judged by both within the oracle's running error bound. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "optim_model.h"

/* ---- trajectories ---- */

static void golden_file_is_whole(void **state)
{
    (void)state;
    assert_int_equal(strncmp(golden.torch, "2.11.", 5), 0);
    assert_int_equal(golden.case_count, 24);
    assert_int_equal(golden.schedule_count, 10);
    assert_true(golden.scales[BAD_STEP] == golden.scales[BAD_STEP - 1] / 2);
}

/* Both are double, and differ in the order of a few operations a step. */
static void optim_oracle_matches_pytorch(void **state)
{
    (void)state;
    for (int i = 0; i < golden.case_count; i++) {
        const golden_case *c = &golden.cases[i];
        oracle_element e[N] = { 0 };
        for (int k = 0; k < N; k++) e[k].p.value = golden.start[k];
        for (int s = 0; s < STEPS; s++) {
            const double factor = clip_factor(golden.grads[s], N, c->clip);
            for (int k = 0; k < N; k++) {
                oracle_optim_step(&c->o, &e[k], c->lr, golden.grads[s][k], factor, 0.0);
                const double want = c->values[s][k];
                if (fabs(e[k].p.value - want) > 1e-13 * fmax(1.0, fabs(want)))
                    fail_msg("case %d, step %d, element %d: the oracle says %.17g, PyTorch %.17g",
                             i, s, k, e[k].p.value, want);
            }
        }
    }
}

/* PyTorch's number may be off from the exact one by 1e-13, which the f32 bound does not notice. */
static void optim_matches_pytorch(void **state)
{
    (void)state;
    for (int i = 0; i < golden.case_count; i++) {
        const golden_case *c = &golden.cases[i];
        model m = { 0 };
        atto_param *p = model_add(&m, test_dev, N, ATTO_F32);
        put_value(p, golden.start);
        for (int k = 0; k < N; k++) m.e[0][k].p.value = golden.start[k];
        const atto_param_set set = model_set(&m);
        atto_optimizer *opt;
        MUST(make_optimizer(&c->o, c->lr, &set, &opt));
        MUST(atto_optimizer_clip_norm(opt, c->clip));
        for (int s = 0; s < STEPS; s++) {
            const double factor = clip_factor(golden.grads[s], N, c->clip);
            memcpy(m.g[0], golden.grads[s], sizeof golden.grads[s]);
            put_grad(p, m.g[0]);
            MUST(atto_optimizer_step(opt, c->lr));
            model_step(&m, 0, &c->o, c->lr, factor, c->clip != 0.0 ? clip_roundings(N) : 1.0);
            for (int k = 0; k < N; k++) m.e[0][k].p.value = c->values[s][k];
            model_expect(&m, 0, "optim golden");
        }
        atto_optimizer_free(opt);
        model_drop(&m);
    }
}

static void follow_case(const golden_case *c, bool large)
{
    model m;
    model_make_odd(&m, large);
    const atto_param_group biases = {
        .suffix = "bias", .lr_factor = 0.25, .has_weight_decay = true, .weight_decay = 0.0
    };
    atto_param_set set = model_set(&m);
    set.groups = &biases;
    set.group_count = 1;
    atto_optimizer *opt;
    MUST(make_optimizer(&c->o, c->lr, &set, &opt));
    for (int s = 0; s < 10; s++) {
        const double lr = c->lr / (1.0 + 0.5 * s);
        model_give_grads(&m, s, skips_some);
        MUST(atto_optimizer_step(opt, lr));
        for (int i = 0; i < m.count; i++) {
            oracle_optim o = c->o;
            if (skips_some(i, s)) continue;
            if (i % 3 == 1) o.weight_decay = 0.0;
            model_step(&m, i, &o, i % 3 == 1 ? 0.25 * lr : lr, 1.0, 1.0);
        }
    }
    for (int i = 0; i < m.count; i++) model_expect(&m, i, "optim");
    atto_optimizer_free(opt);
    model_drop(&m);
}

static void optim_matches_oracle(void **state)
{
    (void)state;
    const int every = test_in_disguise() ? 5 : 1;
    for (int i = 0; i < golden.case_count; i += every) follow_case(&golden.cases[i], i % 8 == 2);
}

/* PyTorch's defaults, without options. */
static void optim_defaults_are_pytorchs(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = model_add(&m, test_dev, 5, ATTO_F32);
    atto_optimizer *opt[3];
    atto_param_set set = model_set(&m);
    MUST(atto_adam_create(NULL, 1e-3, &(atto_adam_options){ .set = set }, &opt[0]));
    assert_true(opt[0]->numbers.weight1 == 0.1f && opt[0]->numbers.beta2 == 0.999f);
    assert_true(opt[0]->numbers.eps == 1e-8f && opt[0]->mode == 0);
    assert_true(atto_optimizer_lr(opt[0]) == 1e-3);
    atto_optimizer_free(opt[0]);
    MUST(atto_rmsprop_create(NULL, 1e-2, &(atto_rmsprop_options){ .set = set }, &opt[1]));
    assert_true(opt[1]->numbers.beta2 == 0.99f && opt[1]->numbers.eps == 1e-8f);
    assert_false(opt[1]->method.has_momentum || opt[1]->method.centered);
    atto_optimizer_free(opt[1]);
    MUST(atto_sgd_create(NULL, 1e-3, &(atto_sgd_options){ .set = set }, &opt[2]));
    assert_true(opt[2]->numbers.momentum == 0.0f && opt[2]->numbers.fresh == 1.0f);
    EXPECT_FAIL(atto_optimizer_state(opt[2], p, "momentum_buffer", &(atto_tensor){ 0 }),
                ATTO_E_ARGUMENT, "sgd|momentum_buffer");
    atto_optimizer_free(opt[2]);
    model_drop(&m);
}

/* The first step of Adam is lr sign(g) whatever the betas are: m and v are divided by what they
 * were multiplied by, 1 - beta, which as 1 - e^(ln beta) would be off by a hundredth here.
 * Roundings in f32: the two quotients 2 each and their logs and expm1 6 each, half of v's by the
 * root, root, sum and product 4. */
static void optim_corrects_bias_of_betas_close_to_one(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = model_add(&m, test_dev, 3, ATTO_F32);
    const double start[3] = { 0.0, 0.0, 0.0 }, g[3] = { 0.5, -3.0, 0x1p-10 };
    const atto_adam_options o = {
        .beta1 = 0.99999, .beta2 = 0.999999, .eps = ATTO_ZERO, .set = model_set(&m)
    };
    atto_optimizer *opt;
    double values[3];
    put_value(p, start);
    put_grad(p, g);
    MUST(atto_adam_create(NULL, 0.25, &o, &opt));
    MUST(atto_optimizer_step(opt, 0.25));
    get_doubles(&p->value, values);
    for (int k = 0; k < 3; k++) {
        const double want = g[k] > 0.0 ? -0.25 : 0.25;
        if (fabs(values[k] - want) > 20 * 0x1p-24 * 0.25)
            fail_msg("element %d moved by %.9g, expected %.9g", k, values[k], want);
    }
    atto_optimizer_free(opt);
    model_drop(&m);
}

/* ---- f16 and bf16 ---- */

/* Steps too small for the dtype add up in the master copy; a value written by others is taken
 * over. */
static void optim_master_copy_remembers_small_steps(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = model_add(&m, test_dev, 3, ATTO_BF16);
    const atto_param_set set = model_set(&m);
    atto_optimizer *opt;
    atto_tensor master;
    double values[3];
    const double ones[3] = { 1.0, 1.0, 1.0 };
    put_value(p, ones);
    MUST(atto_sgd_create(NULL, 1.0, &(atto_sgd_options){ .set = set }, &opt));
    for (int s = 0; s < 16; s++) {
        put_grad(p, ones);
        MUST(atto_optimizer_step(opt, 0x1p-12));
        get_doubles(&p->value, values);
        assert_true(values[0] == (s < 8 ? 1.0 : 1.0 - 0x1p-8)); /* 1 - 2^-9 is a tie, to even */
    }
    MUST(atto_optimizer_state(opt, p, "master", &master));
    get_doubles(&master, values);
    assert_true(values[2] == 1.0 - 0x1p-8);
    const uint16_t two[3] = { 0x4000, 0x4000, 0x4000 };
    MUST(atto_param_write(p, two));
    put_grad(p, ones);
    MUST(atto_optimizer_step(opt, 0.5));
    get_doubles(&p->value, values);
    assert_true(values[0] == 1.5 && values[2] == 1.5);
    atto_optimizer_free(opt);
    model_drop(&m);
}

/* ---- clipping and loss scaling ---- */

static double norm_of(const model *m)
{
    double squares = 0.0;
    for (int i = 0; i < m->count; i++)
        for (int64_t k = 0; k < param_numel(m->p[i]); k++) squares += m->g[i][k] * m->g[i][k];
    return sqrt(squares);
}

static void optim_clips_the_norm_over_all_chunks(void **state)
{
    (void)state;
    model m;
    model_make_odd(&m, true);
    const atto_param_set set = model_set(&m);
    const oracle_optim o = { .method = ORACLE_SGD };
    const atto__optimizer_spec spec = {
        .name = "sgd", .kind = ATTO_OPTIM_SGD, .lr = 0.1, .set = &set, .chunk_bytes = 16384
    };
    atto_optimizer *opt;
    MUST(atto__optimizer_create(&spec, NULL, &opt));
    float norm;
    MUST(atto_optimizer_clip_norm(opt, 3.0));
    MUST(atto_optimizer_norm(opt, &norm));
    assert_true(norm == 0.0f);
    for (int s = 0; s < 3; s++) {
        model_give_grads(&m, s, NULL);
        const double want = norm_of(&m), factor = fmin(1.0, 3.0 / (want + 1e-6));
        assert_true(factor < 0.5);
        MUST(atto_optimizer_step(opt, 0.1));
        MUST(atto_optimizer_norm(opt, &norm));
        const test_about about = { "optim norm", "dense", ATTO_F32, atto_shape1(1), 0 };
        expect_close(&about, &(double){ (double)norm }, &want,
                     &(double){ want * clip_roundings(100003) * 0x1p-24 }, 1);
        for (int i = 0; i < m.count; i++)
            model_step(&m, i, &o, 0.1, factor, clip_roundings(100003));
    }
    for (int i = 0; i < m.count; i++) model_expect(&m, i, "optim clipped");
    /* a norm below the limit changes nothing, INFINITY only measures, a gradient that is missing
     * does not count, 0 stops */
    MUST(atto_optimizer_clip_norm(opt, INFINITY));
    put_grad(m.p[1], (double[]){ 3.0, 0.0, -4.0 });
    MUST(atto_optimizer_step(opt, 0.0));
    MUST(atto_optimizer_norm(opt, &norm));
    assert_true(norm == 5.0f);
    MUST(atto_optimizer_clip_norm(opt, 0.0));
    EXPECT_FAIL(atto_optimizer_norm(opt, &norm), ATTO_E_STATE, "clip_norm");
    atto_optimizer_free(opt);
    model_drop(&m);
}

/* As PyTorch: an infinite norm makes 0 of finite gradients and NaN of the infinite ones; NaN
 * spreads. */
static void optim_clips_infinite_and_nan_norms_as_pytorch(void **state)
{
    (void)state;
    for (int bad = 0; bad < 2; bad++) {
        model m = { 0 };
        atto_param *p = model_add(&m, test_dev, 3, ATTO_F32);
        const atto_param_set set = model_set(&m);
        atto_optimizer *opt;
        double values[3];
        float norm;
        put_value(p, (double[]){ 1.0, 2.0, 3.0 });
        MUST(atto_sgd_create(NULL, 1.0, &(atto_sgd_options){ .set = set }, &opt));
        MUST(atto_optimizer_clip_norm(opt, 1.0));
        put_grad(p, (double[]){ 1.0, bad ? NAN : INFINITY, 1.0 });
        MUST(atto_optimizer_step(opt, 1.0));
        MUST(atto_optimizer_norm(opt, &norm));
        get_doubles(&p->value, values);
        assert_true(bad ? isnan(norm) : isinf(norm));
        assert_true(isnan(values[1]));
        assert_true(bad ? isnan(values[0]) : values[0] == 1.0);
        atto_optimizer_free(opt);
        model_drop(&m);
    }
}

static double scale_of(const atto_optimizer *opt)
{
    atto_tensor t;
    float scale;
    MUST(atto_optimizer_loss_scale(opt, &t));
    MUST(atto_tensor_read(&t, &scale));
    return (double)scale;
}

/* H12: the gradient overflows at one step; PyTorch's GradScaler beside it. */
static void optim_scales_the_loss_as_pytorch(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = model_add(&m, test_dev, N, ATTO_F32);
    const atto_param_set set = model_set(&m);
    const oracle_optim o = { .method = ORACLE_SGD };
    const atto_loss_scale_options options = { .growth_interval = golden.interval };
    atto_optimizer *opt;
    int64_t skipped;
    put_value(p, golden.start);
    for (int k = 0; k < N; k++) m.e[0][k].p.value = golden.start[k];
    MUST(atto_sgd_create(NULL, 0.5, &(atto_sgd_options){ .set = set }, &opt));
    assert_true(scale_of(opt) == 1.0);
    MUST(atto_optimizer_scale_loss(opt, &options));
    assert_true(scale_of(opt) == golden.initial_scale);
    for (int s = 0; s < STEPS; s++) {
        const double scale = scale_of(opt);
        double scaled[N];
        for (int k = 0; k < N; k++) scaled[k] = golden.grads[s][k] * scale;
        if (s == BAD_STEP) scaled[2] = INFINITY;
        memcpy(m.g[0], golden.grads[s], sizeof golden.grads[s]);
        put_grad(p, scaled);
        MUST(atto_optimizer_step(opt, 0.5));
        assert_true(scale_of(opt) == golden.scales[s]);
        if (s != BAD_STEP) model_step(&m, 0, &o, 0.5, 1.0, 1.0);
        for (int k = 0; k < N; k++) /* PyTorch's are f32 here: within one bound of its own */
            assert_true(fabs(golden.scaled[s][k] - m.e[0][k].p.value) <= m.e[0][k].p.error);
        model_expect(&m, 0, "optim scaled");
    }
    MUST(atto_optimizer_skipped(opt, &skipped));
    assert_int_equal(skipped, 1);
    atto_optimizer_free(opt);
    model_drop(&m);
}

/* H12: 1e-8 is 0 in f16; scaled it is there, and the value moves by it. A skipped step leaves
 * values, states and step counts bit for bit. */
static void optim_scaled_gradients_do_not_underflow(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = model_add(&m, test_dev, 2, ATTO_F16);
    const atto_param_set set = model_set(&m);
    atto_optimizer *opt;
    atto_tensor master, average, step;
    double values[2], averages[2], after[2];
    int32_t steps;
    const double scaled = oracle_round(ATTO_F16, 1e-8 * 65536.0);
    put_value(p, (double[]){ 0.0, 0.0 });
    MUST(atto_adam_create(NULL, 1.0, &(atto_adam_options){ .eps = 1e-6, .set = set }, &opt));
    MUST(atto_optimizer_scale_loss(opt, NULL));
    MUST(atto_optimizer_state(opt, p, "master", &master));
    MUST(atto_optimizer_state(opt, p, "exp_avg", &average));
    MUST(atto_optimizer_state(opt, p, "step", &step));
    oracle_element e = { 0 };
    const oracle_optim o = { .method = ORACLE_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-6 };
    put_grad(p, (double[]){ scaled, scaled });
    MUST(atto_optimizer_step(opt, 1.0));
    oracle_optim_step(&o, &e, 1.0, scaled / 65536.0, 1.0, 1.0);
    get_doubles(&master, values);
    assert_true(values[0] != 0.0 && fabs(values[0] - e.p.value) <= e.p.error);
    get_doubles(&average, averages);
    for (int bad = 0; bad < 3; bad++) {
        static const double worst[] = { INFINITY, -INFINITY, NAN };
        put_grad(p, (double[]){ 1.0, worst[bad] });
        MUST(atto_optimizer_step(opt, 1.0));
        assert_true(scale_of(opt) == 65536.0 / (2 << bad));
        get_doubles(&master, after);
        assert_memory_equal(values, after, sizeof values);
        get_doubles(&average, after);
        assert_memory_equal(averages, after, sizeof averages);
        MUST(atto_tensor_read(&step, &steps));
        assert_int_equal(steps, 1);
    }
    atto_optimizer_free(opt);
    model_drop(&m);
}

/* The default interval, and a scale that would become infinite. */
static void optim_scale_grows_but_stays_finite(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = model_add(&m, test_dev, 1, ATTO_F32);
    const atto_param_set set = model_set(&m);
    const double zero = 0.0;
    atto_optimizer *opt;
    MUST(atto_sgd_create(NULL, 1.0, &(atto_sgd_options){ .set = set }, &opt));
    MUST(atto_optimizer_scale_loss(opt, NULL));
    assert_true(opt->numbers.growth_interval == 2000.0f);
    MUST(atto_optimizer_scale_loss(
        opt, &(atto_loss_scale_options){ .initial = 0x1p126, .growth_interval = 1 }));
    static const double wanted[] = { 0x1p127, 0x1p127, 0x1p127 };
    for (int s = 0; s < 3; s++) {
        put_grad(p, &zero);
        MUST(atto_optimizer_step(opt, 1.0));
        assert_true(scale_of(opt) == wanted[s]);
    }
    atto_optimizer_free(opt);
    model_drop(&m);
}

/* With both, a bad step neither clips nor moves anything. */
static atto_status read_weight(void *data, const char *key, atto_param *p)
{
    return strcmp(key, "weight") == 0 ? atto_param_read(p, data) : ATTO_OK;
}

/* A power of two scales without rounding: the same values as without it, bit for bit. */
static void optim_scales_a_loss_on_the_tape(void **state)
{
    (void)state;
    const float x[6] = { 1.0f, -2.0f, 3.0f, 0.5f, 0.25f, -1.0f };
    const int32_t labels[] = { 1, 0 };
    float w[2][6];
    for (int scales = 0; scales < 2; scales++) {
        atto_module *layer;
        atto_optimizer *opt;
        atto_tape *tape;
        atto_tensor scale;
        atto_seed(test_dev, 1);
        MUST(atto_linear_create(test_dev, 3, 2, NULL, &layer));
        MUST(atto_sgd_create(layer, 0.5, NULL, &opt));
        if (scales) MUST(atto_optimizer_scale_loss(opt, NULL));
        MUST(atto_optimizer_loss_scale(opt, &scale));
        MUST(atto_tape_create(test_dev, &tape));
        const atto_var logits =
            atto_apply(tape, layer, atto_input(tape, ATTO_F32, atto_shape2(2, 3), x));
        const atto_var target = atto_input(tape, ATTO_I32, atto_shape1(2), labels);
        MUST(atto_backward_from(tape, atto_cross_entropy(tape, logits, target, NULL), &scale));
        MUST(atto_optimizer_step(opt, 0.5));
        MUST(atto_module_params(layer, read_weight, w[scales]));
        atto_tape_free(tape);
        atto_optimizer_free(opt);
        atto_module_free(layer);
    }
    assert_memory_equal(w[0], w[1], sizeof w[0]);
}

static void optim_clips_what_is_unscaled(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = model_add(&m, test_dev, 2, ATTO_F32);
    const atto_param_set set = model_set(&m);
    atto_optimizer *opt;
    double values[2];
    float norm;
    put_value(p, (double[]){ 1.0, 1.0 });
    MUST(atto_sgd_create(NULL, 1.0, &(atto_sgd_options){ .set = set }, &opt));
    MUST(atto_optimizer_scale_loss(opt, &(atto_loss_scale_options){ .initial = 1024.0 }));
    MUST(atto_optimizer_clip_norm(opt, 10.0));
    put_grad(p, (double[]){ 3.0 * 1024.0, 4.0 * 1024.0 });
    MUST(atto_optimizer_step(opt, 0.125));
    MUST(atto_optimizer_norm(opt, &norm));
    get_doubles(&p->value, values);
    assert_true(norm == 5.0f && values[0] == 1.0 - 0.375 && values[1] == 0.5);
    MUST(atto_optimizer_clip_norm(opt, 0.0)); /* scaling goes on measuring */
    put_grad(p, (double[]){ INFINITY, 0.0 });
    MUST(atto_optimizer_step(opt, 0.125));
    get_doubles(&p->value, values);
    assert_true(values[0] == 1.0 - 0.375 && scale_of(opt) == 512.0);
    atto_optimizer_free(opt);
    model_drop(&m);
}

/* ---- cost and determinism ---- */

/* K3: 150 tensors are one launch and one for the step's numbers, one more with clipping; a steady
 * step neither waits nor allocates. */
static void optim_of_many_tensors_costs_few_launches(void **state)
{
    (void)state;
    model m = { 0 };
    atto_device_stats before, after;
    atto_optimizer *opt;
    for (int i = 0; i < 150; i++) model_add(&m, test_dev, 1 + 37 * i % 500, ATTO_F32);
    const atto_param_set set = model_set(&m);
    MUST(atto_adamw_create(NULL, 0.01, 0.01, &(atto_adamw_options){ .set = set }, &opt));
    for (int clips = 0; clips < 2; clips++) {
        MUST(atto_optimizer_clip_norm(opt, clips ? 1.0 : 0.0));
        for (int s = 0; s < 2; s++) { /* the first builds kernels and writes flags */
            model_give_grads(&m, s, NULL);
            MUST(atto_device_stats_get(test_dev, &before));
            MUST(atto_optimizer_step(opt, 0.01));
            MUST(atto_device_stats_get(test_dev, &after));
        }
        assert_int_equal(after.launches - before.launches, 2 + clips);
        assert_int_equal(after.blocking_calls, before.blocking_calls);
        assert_int_equal(after.allocations, before.allocations);
        assert_int_equal(after.hidden_copies, before.hidden_copies);
    }
    atto_optimizer_free(opt);
    model_drop(&m);
}

/* The bits of everything after five clipped and scaled steps. */
static void run_for_bits(int32_t threads, double *out, int64_t n)
{
    atto_device *dev;
    atto_optimizer *opt;
    model m = { 0 };
    const atto_device_options options = { .num_threads = threads };
    MUST(atto_device_open(test_device_name(), &options, &dev));
    model_add(&m, dev, n - 1, ATTO_F32);
    model_add(&m, dev, 1, ATTO_F32);
    const atto_param_set set = model_set(&m);
    MUST(atto_adam_create(NULL, 0.01, &(atto_adam_options){ .set = set }, &opt));
    MUST(atto_optimizer_clip_norm(opt, 1.0));
    for (int s = 0; s < 5; s++) {
        model_give_grads(&m, s, NULL);
        MUST(atto_optimizer_step(opt, 0.01));
    }
    get_doubles(&m.p[0]->value, out);
    get_doubles(&m.p[1]->value, out + n - 1);
    atto_optimizer_free(opt);
    model_drop(&m);
    atto_device_close(dev);
}

static void optim_is_the_same_bits_each_time(void **state)
{
    (void)state;
    const int64_t n = 200001;
    double *first = test_doubles(n), *again = test_doubles(n);
    run_for_bits(1, first, n);
    for (int32_t threads = 1; threads <= 3; threads++) {
        run_for_bits(threads, again, n);
        assert_memory_equal(first, again, (size_t)n * sizeof *first);
    }
    free(first);
    free(again);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(golden_file_is_whole, golden_read),
    cmocka_unit_test(optim_oracle_matches_pytorch),
    cmocka_unit_test(optim_matches_pytorch),
    cmocka_unit_test(optim_matches_oracle),
    cmocka_unit_test(optim_defaults_are_pytorchs),
    cmocka_unit_test(optim_corrects_bias_of_betas_close_to_one),
    cmocka_unit_test(optim_master_copy_remembers_small_steps),
    cmocka_unit_test(optim_clips_the_norm_over_all_chunks),
    cmocka_unit_test(optim_clips_infinite_and_nan_norms_as_pytorch),
    cmocka_unit_test(optim_scales_the_loss_as_pytorch),
    cmocka_unit_test(optim_scaled_gradients_do_not_underflow),
    cmocka_unit_test(optim_scale_grows_but_stays_finite),
    cmocka_unit_test(optim_scales_a_loss_on_the_tape),
    cmocka_unit_test(optim_clips_what_is_unscaled),
    cmocka_unit_test(optim_of_many_tensors_costs_few_launches),
    cmocka_unit_test(optim_is_the_same_bits_each_time),
};

TEST_MAIN("optim", tests)
