/* SPDX-License-Identifier: MIT */
/* Parameters under autocast: their casts, which optimisers write, and steps that overflow. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "atto_test.h"

/* ---- shared ---- */

enum { N = 3, MANY = 40 }; /* weights are [N, N] or [MANY, MANY]: more than a block of a chunk */

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

static uint64_t launches(void)
{
    atto_device_stats stats;
    MUST(atto_device_stats_get(test_dev, &stats));
    return stats.launches;
}

static atto_param *param(int64_t n, uint64_t seed)
{
    atto_param *p;
    atto_seed(test_dev, seed);
    MUST(atto_param_create(test_dev, ATTO_F32, atto_shape2(n, n), &p));
    MUST(atto_param_init_uniform(p, 1.0));
    return p;
}

static atto_optimizer *adamw(atto_param *const *params, int32_t count)
{
    atto_optimizer *opt;
    const atto_adamw_options options = { .set = { .params = params, .count = count } };
    MUST(atto_adamw_create(NULL, 0.01, 0.01, &options, &opt));
    return opt;
}

static void put_grad(atto_param *p, double value)
{
    atto_tensor grad;
    bool add;
    MUST(atto_param_grad_target(p, &grad, &add));
    MUST(atto_tensor_fill(&grad, value));
}

static atto_var identity(int64_t n)
{
    float values[MANY * MANY] = { 0 };
    for (int64_t i = 0; i < n; i++) values[i * n + i] = 1.0f;
    return atto_input(tape, ATTO_F32, atto_shape2(n, n), values);
}

/* How many launches a product with the parameter takes, whose result is the parameter in the low
 * dtype, transposed. Fails unless it is the value of now, rounded. */
static uint64_t expect_fresh(const char *what, atto_param *p)
{
    const atto_tensor value = atto_param_value(p);
    const int64_t n = value.shape[0];
    const atto_dtype low = atto_tape_autocast_dtype(tape);
    uint16_t got[MANY * MANY], want[MANY * MANY];
    atto_tensor rounded;
    MUST(atto_tensor_alloc(test_dev, low, atto_shape2(n, n), &rounded));
    const atto_var one = atto_cast(tape, identity(n), low);
    const uint64_t before = launches();
    const atto_var y = atto_linear(tape, one, atto_use(tape, p), NULL);
    const uint64_t cost = launches() - before;
    MUST(atto_var_read(tape, y, got));
    MUST(atto_tensor_copy(&rounded, &value));
    MUST(atto_tensor_read(&rounded, want));
    for (int64_t i = 0; i < n * n; i++) {
        const uint16_t there = got[i % n * n + i / n];
        if (there != want[i])
            fail_msg("%s: %s: element %d is %04x, expected %04x", test_backend(), what, (int)i,
                     there, want[i]);
    }
    MUST(atto_tape_end(tape));
    atto_tensor_free(&rounded);
    return cost;
}

/* ---- how often ---- */

/* A weight used twice, and in the next step, is cast once; what the cast costs is one launch. */
static void shadow_is_made_once(void **state)
{
    (void)state;
    for (int d = 0; d < COUNT_OF(lows); d++) {
        atto_param *p = param(N, 3);
        MUST(atto_tape_autocast(tape, lows[d]));
        const uint64_t first = expect_fresh("first", p);
        assert_int_equal(expect_fresh("second", p), first - 1);
        const atto_var one = atto_cast(tape, identity(N), lows[d]);
        const uint64_t before = launches();
        atto_linear(tape, one, atto_use(tape, p), NULL);
        atto_linear(tape, one, atto_use(tape, p), NULL);
        assert_int_equal(launches() - before, 2 * (first - 1));
        MUST(atto_tape_end(tape));
        atto_param_free(p);
    }
}

/* Not recorded, and frozen: as well. */
static void shadow_serves_evaluation(void **state)
{
    (void)state;
    atto_param *p = param(N, 3);
    atto_param_freeze(p, true);
    atto_tape_record(tape, false);
    MUST(atto_tape_autocast(tape, ATTO_F16));
    const uint64_t first = expect_fresh("first", p);
    assert_int_equal(expect_fresh("second", p), first - 1);
    /* another dtype, and back */
    MUST(atto_tape_autocast(tape, ATTO_BF16));
    expect_fresh("bf16", p);
    MUST(atto_tape_autocast(tape, ATTO_F16));
    assert_int_equal(expect_fresh("f16", p), first);
    atto_param_free(p);
}

/* From the second step on the optimiser's launches write it: none is added, and the next forward
 * casts nothing. Sizes of a part of a block and of several. */
static void shadow_is_written_by_the_step(void **state)
{
    (void)state;
    for (int d = 0; d < COUNT_OF(lows); d++) {
        atto_param *params[] = { param(N, 3), param(MANY, 4), param(N, 5) };
        atto_optimizer *opt = adamw(params, 3);
        put_grad(params[0], 0.5);
        MUST(atto_optimizer_step(opt, 0.1));
        put_grad(params[0], 0.5);
        uint64_t before = launches();
        MUST(atto_optimizer_step(opt, 0.1));
        const uint64_t step = launches() - before;
        MUST(atto_tape_autocast(tape, lows[d]));
        const uint64_t cast = expect_fresh("first", params[0]);
        expect_fresh("first", params[1]); /* params[2] is never cast */
        for (int s = 0; s < 4; s++) {
            for (int p = 0; p < 3; p++) put_grad(params[p], s % 2 ? -0.75 : 0.5);
            before = launches();
            MUST(atto_optimizer_step(opt, 0.1));
            if (s > 0) assert_int_equal(launches() - before, step);
            assert_int_equal(expect_fresh("after a step", params[0]), cast - 1);
            assert_int_equal(expect_fresh("after a step", params[1]), cast - 1);
        }
        /* without a gradient nothing happens to it */
        put_grad(params[0], 0.5);
        MUST(atto_optimizer_step(opt, 0.1));
        assert_int_equal(expect_fresh("not stepped", params[1]), cast - 1);
        for (int p = 0; p < 3; p++) atto_param_free(params[p]);
        atto_optimizer_free(opt);
    }
}

/* Every method writes it. */
static void shadow_is_written_by_every_method(void **state)
{
    (void)state;
    for (int method = 0; method < 6; method++) {
        atto_param *p = param(N, 3);
        atto_optimizer *opt;
        const atto_param_set set = { .params = &p, .count = 1 };
        const atto_sgd_options sgd = { .momentum = method == 1 ? 0.9 : 0.0, .set = set };
        const atto_rmsprop_options rms = { .momentum = method == 4 ? 0.9 : 0.0,
                                           .centered = method == 5,
                                           .set = set };
        MUST(method < 2    ? atto_sgd_create(NULL, 0.1, &sgd, &opt)
             : method == 2 ? atto_adam_create(NULL, 0.1, &(atto_adam_options){ .set = set }, &opt)
                           : atto_rmsprop_create(NULL, 0.1, &rms, &opt));
        MUST(atto_tape_autocast(tape, ATTO_BF16));
        const uint64_t cast = expect_fresh("first", p);
        for (int s = 0; s < 3; s++) {
            put_grad(p, 0.5);
            MUST(atto_optimizer_step(opt, 0.1));
            assert_int_equal(expect_fresh("after a step", p), cast - 1);
        }
        atto_optimizer_free(opt);
        atto_param_free(p);
    }
}

/* Both dtypes in one chunk, and one after the other: right, if not free. */
static void shadow_follows_a_change_of_dtype(void **state)
{
    (void)state;
    atto_param *params[] = { param(N, 3), param(N, 4) };
    atto_optimizer *opt = adamw(params, 2);
    for (int s = 0; s < 6; s++) {
        for (int p = 0; p < 2; p++) {
            MUST(atto_tape_autocast(tape, lows[s < 3 ? p : s == 3 ? 0 : 1]));
            expect_fresh("two dtypes", params[p]);
        }
        for (int p = 0; p < 2; p++) put_grad(params[p], 0.5);
        MUST(atto_optimizer_step(opt, 0.1));
    }
    /* one dtype for good: free again */
    const uint64_t cost = expect_fresh("bf16", params[0]);
    assert_int_equal(expect_fresh("bf16", params[0]), cost);
    atto_optimizer_free(opt);
    for (int p = 0; p < 2; p++) atto_param_free(params[p]);
}

/* ---- never stale ---- */

static void halve(const atto_kernel_arg *args, int64_t begin, int64_t end)
{
    float *x = args[0].data;
    for (int64_t i = begin; i < end; i++) x[i] /= 2.0f;
}

static const char halve_text[] = "__kernel void halve(__global float *x, ulong x_at, ulong n)\n"
                                 "{\n"
                                 "    const size_t i = get_global_id(0);\n"
                                 "    if (i < n) x[x_at + i] /= 2.0f;\n"
                                 "}\n";

static void launch_halve(const atto_tensor *t)
{
    atto_kernel *kernel;
    const atto_kernel_arg arg = atto_kernel_in_out(t);
    MUST(atto_kernel_create(
        test_dev, &(atto_kernel_source){ .name = "halve", .text = halve_text, .cpu = halve },
        &kernel));
    MUST(atto_kernel_launch(kernel, atto_tensor_numel(t), &arg, 1));
    atto_kernel_destroy(kernel);
}

static void map_and_write(const atto_tensor *t)
{
    void *data;
    MUST(atto_tensor_map(t, ATTO_MAP_READ_WRITE, &data));
    for (int i = 0; i < N * N; i++) ((float *)data)[i] += 3.0f;
    MUST(atto_tensor_unmap(t));
}

/* Everything that can change a parameter, numbered; false behind the last. */
static bool change(int how, atto_param *p)
{
    const float data[N * N] = { 5.0f, 6.0f, 7.0f };
    const atto_tensor value = atto_param_value(p);
    atto_tensor other, part;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(N, N), &other));
    MUST(atto_tensor_fill(&other, 0.25));
    switch (how) {
    case 0:
        MUST(atto_param_write(p, data));
        break;
    case 1:
        MUST(atto_param_init_uniform(p, 2.0));
        break;
    case 2:
        MUST(atto_param_init_normal(p, 1.0, 2.0));
        break;
    case 3:
        MUST(atto_param_init_constant(p, 4.0));
        break;
    case 4:
        MUST(atto_tensor_write(&value, data));
        break;
    case 5:
        MUST(atto_tensor_fill(&value, 9.0));
        break;
    case 6:
        MUST(atto_tensor_copy(&value, &other));
        break;
    case 7:
        map_and_write(&value);
        break;
    case 8: /* a moving average, in place */
        MUST(atto_binary_forward(
            test_dev, &(struct atto_binary_args){
                          .kind = ATTO_BINARY_ADD, .a = &value, .b = &other, .y = &value }));
        break;
    case 9:
        launch_halve(&value);
        break;
    case 10: /* one column */
        MUST(atto_tensor_slice(&value, 1, 1, 2, 1, &part));
        MUST(atto_tensor_fill(&part, -1.0));
        break;
    case 11: /* a backward that adds to it */
        MUST(atto_act_backward(
            test_dev,
            &(struct atto_act_args){
                .x = &other, .dy = &other, .dx = &value, .add_dx = true, .act = atto_identity() }));
        break;
    case 12:
        atto_param_changed(p);
        break;
    default:
        atto_tensor_free(&other);
        return false;
    }
    atto_tensor_free(&other);
    return true;
}

/* Nobody has to tell: after any change the next use casts anew, and after any step. */
static void shadow_is_never_stale(void **state)
{
    (void)state;
    MUST(atto_tape_autocast(tape, ATTO_F16));
    for (int packed = 0; packed < 2; packed++) {
        atto_param *p = param(N, 3);
        atto_optimizer *opt = packed ? adamw(&p, 1) : NULL;
        char what[32];
        for (int how = 0; change(how, p); how++) {
            snprintf(what, sizeof what, "change %d", how);
            expect_fresh(what, p);
            if (!packed) continue;
            put_grad(p, 0.5);
            MUST(atto_optimizer_step(opt, 0.1));
            expect_fresh("a step", p);
            change(how, p); /* and a step before the cast is used */
            put_grad(p, 0.5);
            MUST(atto_optimizer_step(opt, 0.1));
            expect_fresh("a step behind a change", p);
        }
        atto_optimizer_free(opt);
        expect_fresh("without optimiser", p);
        atto_param_free(p);
    }
}

/* The storage moves when an optimiser is made, and stays when it goes. */
static void shadow_outlives_optimisers(void **state)
{
    (void)state;
    atto_param *p = param(N, 3);
    MUST(atto_tape_autocast(tape, ATTO_BF16));
    expect_fresh("loose", p);
    for (int i = 0; i < 2; i++) {
        atto_optimizer *opt = adamw(&p, 1);
        MUST(atto_param_init_constant(p, 3.0 + i));
        expect_fresh("packed", p);
        put_grad(p, 0.5);
        MUST(atto_optimizer_step(opt, 0.1));
        expect_fresh("stepped", p);
        atto_optimizer_free(opt);
        expect_fresh("left", p);
    }
    atto_param_free(p);
}

/* The new storage counts its writes from 0: that they reach the old count means nothing. */
static void shadow_of_moved_storage_is_made_anew(void **state)
{
    (void)state;
    MUST(atto_tape_autocast(tape, ATTO_F16));
    for (int later = 0; later < 24; later++) {
        atto_param *p = param(N, 3);
        atto_tensor value = atto_param_value(p);
        for (int i = 0; i < 20; i++) MUST(atto_tensor_fill(&value, 1.0));
        expect_fresh("loose", p);
        atto_optimizer *opt = adamw(&p, 1);
        value = atto_param_value(p);
        for (int i = 0; i < later; i++) MUST(atto_tensor_fill(&value, 2.0 + i));
        expect_fresh("moved", p);
        atto_optimizer_free(opt);
        atto_param_free(p);
    }
}

static void silence(void *user, atto_log_level level, const char *text)
{
    (void)user, (void)level, (void)text;
}

/* A device that cannot build the optimiser's kernels has the step made on the CPU. */
static void shadow_comes_back_from_the_fallback(void **state)
{
    (void)state;
    if (!test_on_opencl()) skip();
    char folder[] = "/tmp/atto-test-XXXXXX", path[64];
    atto_device *const own = test_dev;
    atto_device_stats stats;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/optim.cl", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("this is no OpenCL C;\n", file);
    fclose(file);
    const atto_device_options options = { .kernel_dir = folder, .log = silence };
    close_tape(state);
    MUST(atto_device_open(test_device_name(), &options, &test_dev));
    open_tape(state);
    atto_param *p = param(N, 3);
    atto_optimizer *opt = adamw(&p, 1);
    MUST(atto_tape_autocast(tape, ATTO_BF16));
    const uint64_t cast = expect_fresh("first", p);
    for (int s = 0; s < 2; s++) {
        put_grad(p, 0.5);
        MUST(atto_optimizer_step(opt, 0.1));
        assert_int_equal(expect_fresh("after a step", p), cast - 1);
    }
    MUST(atto_device_stats_get(test_dev, &stats));
    assert_true(stats.fallbacks >= 2);
    atto_optimizer_free(opt);
    atto_param_free(p);
    close_tape(state);
    atto_device_close(test_dev);
    test_dev = own;
    open_tape(state);
    remove(path);
    rmdir(folder);
}

/* Changed between forward and backward: refused as without autocast, whichever tape casts anew. */
static void shadow_of_a_changed_parameter_has_no_backward(void **state)
{
    (void)state;
    atto_param *p = param(N, 3);
    MUST(atto_tape_autocast(tape, ATTO_F16));
    const atto_var y = atto_linear(tape, identity(N), atto_use(tape, p), NULL);
    MUST(atto_param_init_constant(p, 1.0));
    const atto_var loss = atto_reduce(tape, ATTO_REDUCE_SUM, y, NULL);
    EXPECT_FAIL(atto_backward(tape, loss), ATTO_E_STATE, "linear_backward|changed");
    atto_param_free(p);
}

/* ---- loss scale ---- */

static void read_state(const atto_optimizer *opt, const atto_param *p, float *values, float *m,
                       float *v, int32_t *steps)
{
    const char *names[] = { "exp_avg", "exp_avg_sq", "step" };
    void *to[] = { m, v, steps };
    MUST(atto_param_read(p, values));
    for (int i = 0; i < 3; i++) {
        atto_tensor t;
        MUST(atto_optimizer_state(opt, p, names[i], &t));
        MUST(atto_tensor_read(&t, to[i]));
    }
}

static float scale_of(const atto_optimizer *opt)
{
    atto_tensor t;
    float scale;
    MUST(atto_optimizer_loss_scale(opt, &t));
    MUST(atto_tensor_read(&t, &scale));
    return scale;
}

/* sum of x w^T, x = size times the identity, backwards from the loss scale. */
static void scaled_step(atto_optimizer *opt, atto_param *p, float size)
{
    atto_tensor scale;
    MUST(atto_optimizer_loss_scale(opt, &scale));
    const atto_var x = atto_binary_number(tape, ATTO_BINARY_MUL, identity(N), size);
    const atto_var y = atto_linear(tape, x, atto_use(tape, p), NULL);
    MUST(atto_backward_from(tape, atto_reduce(tape, ATTO_REDUCE_SUM, y, NULL), &scale));
    MUST(atto_optimizer_step(opt, 0.1));
    MUST(atto_tape_end(tape));
}

/* H12 under autocast: in f16 a loss of scale 2^17 overflows on its way back, at 2^16 too. The steps
 * change nothing, not a bit, and halve the scale; then they go on. */
static void shadow_of_a_skipped_step_stays(void **state)
{
    (void)state;
    atto_param *p = param(N, 3);
    atto_optimizer *opt = adamw(&p, 1);
    float values[2][N * N], m[2][N * N], v[2][N * N];
    int32_t steps[2];
    int64_t skipped;
    MUST(atto_optimizer_scale_loss(opt, &(atto_loss_scale_options){ .initial = 32768.0 }));
    MUST(atto_tape_autocast(tape, ATTO_F16));
    scaled_step(opt, p, 1.0f);
    scaled_step(opt, p, 1.0f);
    MUST(atto_optimizer_scale_loss(opt, &(atto_loss_scale_options){ .initial = 0x1p17 }));
    read_state(opt, p, values[0], m[0], v[0], &steps[0]);
    assert_int_equal(steps[0], 2);
    for (int bad = 1; bad <= 2; bad++) {
        scaled_step(opt, p, 1.0f);
        read_state(opt, p, values[1], m[1], v[1], &steps[1]);
        assert_memory_equal(values[0], values[1], sizeof values[0]);
        assert_memory_equal(m[0], m[1], sizeof m[0]);
        assert_memory_equal(v[0], v[1], sizeof v[0]);
        assert_int_equal(steps[1], 2);
        assert_true(scale_of(opt) == 0x1p17f / (float)(1 << bad));
        MUST(atto_optimizer_skipped(opt, &skipped));
        assert_int_equal(skipped, bad);
        expect_fresh("after a skipped step", p);
    }
    scaled_step(opt, p, 1.0f); /* 2^15: this one counts */
    read_state(opt, p, values[1], m[1], v[1], &steps[1]);
    assert_int_equal(steps[1], 3);
    assert_true(values[1][0] < values[0][0] && scale_of(opt) == 0x1p15f);
    expect_fresh("going on", p);
    atto_optimizer_free(opt);
    atto_param_free(p);
}

/* Steps of equal shapes ask for no memory and wait for nothing. */
static void shadow_steps_allocate_nothing_and_never_wait(void **state)
{
    (void)state;
    atto_param *p = param(N, 3);
    atto_optimizer *opt = adamw(&p, 1);
    atto_device_stats before, after;
    MUST(atto_optimizer_scale_loss(opt, &(atto_loss_scale_options){ .initial = 1024.0 }));
    MUST(atto_tape_autocast(tape, ATTO_F16));
    for (int s = 0; s < 4; s++) scaled_step(opt, p, 1.0f);
    MUST(atto_device_stats_get(test_dev, &before));
    for (int s = 0; s < 6; s++) scaled_step(opt, p, 1.0f);
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.allocations, before.allocations);
    assert_int_equal(after.blocking_calls, before.blocking_calls);
    assert_int_equal(after.bytes_live, before.bytes_live);
    atto_optimizer_free(opt);
    atto_param_free(p);
}

/* Without a change, the gradient of a skipped step neither reaches the shadow nor makes it old. */
static void shadow_needs_no_cast_after_a_skipped_step(void **state)
{
    (void)state;
    atto_param *p = param(N, 3);
    atto_optimizer *opt = adamw(&p, 1);
    MUST(atto_optimizer_scale_loss(opt, NULL));
    MUST(atto_tape_autocast(tape, ATTO_F16));
    const uint64_t cast = expect_fresh("first", p);
    put_grad(p, INFINITY);
    MUST(atto_optimizer_step(opt, 0.1));
    assert_int_equal(expect_fresh("skipped", p), cast - 1);
    put_grad(p, 65536.0);
    MUST(atto_optimizer_step(opt, 0.1));
    assert_int_equal(expect_fresh("taken", p), cast - 1);
    /* but an old one is old afterwards, too */
    MUST(atto_param_init_constant(p, 2.0));
    put_grad(p, INFINITY);
    MUST(atto_optimizer_step(opt, 0.1));
    assert_int_equal(expect_fresh("changed, then skipped", p), cast);
    atto_optimizer_free(opt);
    atto_param_free(p);
}

/* Saved in one run, restored in another: both go on alike. GradScaler's state_dict. */
static void loss_scale_goes_on_in_another_run(void **state)
{
    (void)state;
    atto_param *p = param(N, 3), *q = param(N, 3);
    atto_optimizer *first = adamw(&p, 1), *second = adamw(&q, 1);
    atto_loss_scale_options saved;
    MUST(atto_optimizer_loss_scale_options(first, &saved));
    assert_true(saved.off);
    MUST(atto_optimizer_scale_loss(
        first, &(atto_loss_scale_options){
                   .initial = 1024.0, .growth = 4.0, .backoff = 0.25, .growth_interval = 3 }));
    const double grads[] = { 1.0, INFINITY, 1.0, 1.0 };
    for (int s = 0; s < 4; s++) {
        put_grad(p, grads[s]);
        MUST(atto_optimizer_step(first, 0.0));
    }
    MUST(atto_optimizer_loss_scale_options(first, &saved));
    assert_true(!saved.off && saved.initial == 256.0 && saved.growth == 4.0 &&
                saved.backoff == 0.25);
    assert_int_equal(saved.growth_interval, 3);
    assert_int_equal(saved.good_steps, 2);
    MUST(atto_optimizer_scale_loss(second, &saved));
    for (int s = 0; s < 5; s++) {
        const float wanted[] = { 1024.0f, 1024.0f, 256.0f, 256.0f, 256.0f };
        const double grad = s == 2 ? (double)INFINITY : 1.0;
        put_grad(p, grad);
        put_grad(q, grad);
        MUST(atto_optimizer_step(first, 0.0));
        MUST(atto_optimizer_step(second, 0.0));
        assert_true(scale_of(first) == wanted[s] && scale_of(second) == wanted[s]);
    }
    atto_optimizer_free(first);
    atto_optimizer_free(second);
    atto_param_free(p);
    atto_param_free(q);
}

/* Off: the scale is 1, gradients are what they are, and infinite ones are taken. */
static void loss_scale_can_be_switched_off(void **state)
{
    (void)state;
    atto_param *p = param(N, 3);
    atto_optimizer *opt;
    const atto_sgd_options sgd = { .set = { .params = &p, .count = 1 } };
    float norm, values[N * N];
    MUST(atto_sgd_create(NULL, 0.1, &sgd, &opt));
    MUST(atto_param_init_constant(p, 1.0));
    MUST(atto_optimizer_scale_loss(opt, NULL));
    MUST(atto_optimizer_norm(opt, &norm)); /* measured as long as it scales */
    MUST(atto_optimizer_scale_loss(opt, &(atto_loss_scale_options){ .off = true }));
    EXPECT_FAIL(atto_optimizer_norm(opt, &norm), ATTO_E_STATE, "norm");
    assert_true(scale_of(opt) == 1.0f);
    put_grad(p, 2.0);
    MUST(atto_optimizer_step(opt, 0.25));
    MUST(atto_param_read(p, values));
    assert_true(values[0] == 0.5f);
    put_grad(p, INFINITY);
    MUST(atto_optimizer_step(opt, 0.25));
    MUST(atto_param_read(p, values));
    assert_true(values[0] == -INFINITY);
    /* measured all the same for those who clip */
    MUST(atto_optimizer_clip_norm(opt, 5.0));
    MUST(atto_optimizer_scale_loss(opt, &(atto_loss_scale_options){ .off = true }));
    MUST(atto_optimizer_norm(opt, &norm));
    put_grad(p, INFINITY); /* not skipped: 0 times infinity */
    MUST(atto_optimizer_step(opt, 0.25));
    MUST(atto_param_read(p, values));
    assert_true(isnan(values[0]));
    atto_optimizer_free(opt);
    atto_param_free(p);
}

static void loss_scale_refuses_bad_arguments(void **state)
{
    (void)state;
    atto_param *p = param(N, 3);
    atto_optimizer *opt = adamw(&p, 1);
    atto_loss_scale_options o;
    EXPECT_FAIL(atto_optimizer_loss_scale_options(NULL, &o), ATTO_E_NULL, "opt is NULL");
    EXPECT_FAIL(atto_optimizer_loss_scale_options(opt, NULL), ATTO_E_NULL, "out is NULL");
    EXPECT_FAIL(atto_optimizer_scale_loss(opt, &(atto_loss_scale_options){ .good_steps = -1 }),
                ATTO_E_ARGUMENT, "good_steps is -1");
    EXPECT_FAIL(atto_optimizer_scale_loss(opt, &(atto_loss_scale_options){ .good_steps = 2000 }),
                ATTO_E_ARGUMENT, "good_steps is 2000|1999");
    EXPECT_FAIL(atto_optimizer_scale_loss(
                    opt, &(atto_loss_scale_options){ .good_steps = 5, .growth_interval = 5 }),
                ATTO_E_ARGUMENT, "good_steps is 5");
    MUST(atto_optimizer_loss_scale_options(opt, &o));
    assert_true(o.off);
    atto_optimizer_free(opt);
    atto_param_free(p);
}

/* ---- all of it ---- */

/* A small network learns in low precision what it learns in f32. */
static void autocast_training_reaches_the_loss_of_f32(void **state)
{
    (void)state;
    enum { BATCH = 32, FEATURES = 8, CLASSES = 4, STEPS = 120 };
    const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };
    double losses[3];
    for (int d = 0; d < 3; d++) {
        atto_module *net;
        atto_optimizer *opt;
        atto_meter *meter;
        uint64_t random = 9;
        atto_seed(test_dev, 3);
        MUST(atto_sequential_create(test_dev, &net));
        MUST(atto_sequential_linear(net, FEATURES, 16,
                                    &(atto_linear_options){ .act = atto_gelu() }));
        MUST(atto_sequential_layer_norm(net, atto_shape1(16), NULL));
        MUST(atto_sequential_linear(net, 16, CLASSES, NULL));
        MUST(atto_adamw_create(net, 0.01, 0.01, NULL, &opt));
        MUST(atto_meter_create(test_dev, &meter));
        if (dtypes[d] == ATTO_F16) MUST(atto_optimizer_scale_loss(opt, NULL));
        MUST(atto_tape_autocast(tape, dtypes[d]));
        for (int s = 0; s < STEPS; s++) {
            float rows[BATCH * FEATURES];
            int32_t labels[BATCH] = { 0 };
            for (int i = 0; i < BATCH * FEATURES; i++)
                rows[i] = (float)(test_random(&random) >> 40) / 8388608.0f - 1.0f;
            for (int i = 0; i < BATCH; i++)
                for (int k = 1; k < CLASSES; k++)
                    if (rows[i * FEATURES + k] > rows[i * FEATURES + labels[i]]) labels[i] = k;
            atto_tensor scale;
            MUST(atto_optimizer_loss_scale(opt, &scale));
            const atto_var x = atto_input(tape, ATTO_F32, atto_shape2(BATCH, FEATURES), rows);
            const atto_var t = atto_input(tape, ATTO_I32, atto_shape1(BATCH), labels);
            const atto_var e = atto_cross_entropy(tape, atto_apply(tape, net, x), t, NULL);
            if (s >= STEPS - 20) atto_meter_add(meter, tape, e);
            MUST(atto_backward_from(tape, e, &scale));
            MUST(atto_optimizer_step(opt, 0.01));
            MUST(atto_tape_end(tape));
        }
        MUST(atto_meter_take(meter, &losses[d]));
        atto_meter_free(meter);
        atto_optimizer_free(opt);
        atto_module_free(net);
    }
    assert_true(losses[0] < 0.5); /* ln 4 = 1.39 at first */
    for (int d = 1; d < 3; d++) assert_true(losses[d] < losses[0] + 0.05);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(shadow_is_made_once, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(shadow_serves_evaluation, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(shadow_is_written_by_the_step, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(shadow_is_written_by_every_method, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(shadow_follows_a_change_of_dtype, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(shadow_is_never_stale, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(shadow_outlives_optimisers, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(shadow_of_moved_storage_is_made_anew, open_tape,
                                        close_tape),
        cmocka_unit_test_setup_teardown(shadow_comes_back_from_the_fallback, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(shadow_of_a_changed_parameter_has_no_backward, open_tape,
                                        close_tape),
        cmocka_unit_test_setup_teardown(shadow_of_a_skipped_step_stays, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(shadow_steps_allocate_nothing_and_never_wait, open_tape,
                                        close_tape),
        cmocka_unit_test_setup_teardown(shadow_needs_no_cast_after_a_skipped_step, open_tape,
                                        close_tape),
        cmocka_unit_test_setup_teardown(loss_scale_goes_on_in_another_run, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(loss_scale_can_be_switched_off, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(loss_scale_refuses_bad_arguments, open_tape, close_tape),
        cmocka_unit_test_setup_teardown(autocast_training_reaches_the_loss_of_f32, open_tape,
                                        close_tape),
    };
    return test_main("shadow", tests, COUNT_OF(tests));
}
