/* SPDX-License-Identifier: MIT */
/* Optimisers: what they train and where it lies, how they live and die, and what they refuse. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "optim_model.h"

/* ---- which parameters, and where they lie ---- */

static void optim_takes_ties_once_and_leaves_frozen_ones(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *tied = model_add(&m, test_dev, 10, ATTO_F32);
    atto_param *frozen = model_add(&m, test_dev, 20, ATTO_F32);
    atto_param *list[] = { tied, frozen, tied };
    atto_param_freeze(frozen, true);
    const atto_param_set set = { .params = list, .count = 3 };
    atto_optimizer *opt;
    MUST(atto_sgd_create(NULL, 0.5, &(atto_sgd_options){ .set = set }, &opt));
    assert_int_equal(atto_optimizer_param_count(opt), 10);
    assert_true(tied->is_packed && !frozen->is_packed && frozen->grad.buffer == NULL);
    model_give_grads(&m, 0, NULL); /* a gradient of the frozen one must not count either */
    MUST(atto_optimizer_step(opt, 0.5));
    model_step(&m, 0, &(oracle_optim){ .method = ORACLE_SGD }, 0.5, 1.0, 1.0);
    model_expect(&m, 0, "optim");
    model_expect(&m, 1, "optim");
    atto_optimizer_free(opt);
    model_drop(&m);
}

/* A parameter frozen after the optimiser was made keeps its value, and its gradient's memory. */
static void optim_leaves_later_frozen_ones(void **state)
{
    (void)state;
    model m = { 0 };
    model_add(&m, test_dev, 7, ATTO_F32);
    model_add(&m, test_dev, 9, ATTO_F32);
    const atto_param_set set = model_set(&m);
    atto_optimizer *opt;
    MUST(atto_adam_create(NULL, 0.1, &(atto_adam_options){ .set = set }, &opt));
    atto_param_freeze(m.p[1], true);
    model_give_grads(&m, 0, NULL);
    MUST(atto_optimizer_step(opt, 0.1));
    model_expect(&m, 1, "optim");
    atto_optimizer_free(opt);
    model_drop(&m);
}

static void optim_packs_into_chunks(void **state)
{
    (void)state;
    model m;
    model_make_odd(&m, true);
    model_give_grads(&m, 0, skips_some);
    const atto_param_set set = model_set(&m);
    const atto__optimizer_spec spec = { .name = "sgd",
                                        .kind = ATTO_OPTIM_SGD,
                                        .momentum = 0.9,
                                        .lr = 0.1,
                                        .set = &set,
                                        .chunk_bytes = 4 * 4096 };
    atto_optimizer *opt;
    MUST(atto__optimizer_create(&spec, NULL, &opt));
    /* f32: 1, 3, 257 and 1024 elements are four blocks, 100003 a chunk of its own; f16: 1, 1023 and
     * 2049 elements are 1 + 1 and 3 blocks; bf16: 2 and 3 */
    assert_int_equal(atto_optimizer_chunk_count(opt), 6);
    for (int i = 0; i < m.count; i++) {
        const atto_tensor value = atto_param_value(m.p[i]);
        assert_int_equal((size_t)value.offset * atto_dtype_size(value.dtype) % 256, 0);
        assert_true(m.p[i]->is_packed && m.p[i]->has_grad == !skips_some(i, 0));
        model_expect(&m, i, "optim");
    }
    oracle_optim o = { .method = ORACLE_SGD, .momentum = 0.9 };
    MUST(atto_optimizer_step(opt, 0.1));
    for (int i = 0; i < m.count; i++) {
        if (!skips_some(i, 0)) model_step(&m, i, &o, 0.1, 1.0, 1.0);
        model_expect(&m, i, "optim");
        assert_false(m.p[i]->has_grad);
    }
    for (int i = 0; i < atto_optimizer_chunk_count(opt); i++) {
        atto_tensor grads;
        MUST(atto_optimizer_grad_chunk(opt, i, &grads));
        assert_true(atto_tensor_numel(&grads) % ATTO_OPTIM_BLOCK == 0);
    }
    atto_optimizer_free(opt);
    model_drop(&m);
}

/* A value, a state and the step count stay bit for bit where a step finds no gradient. */
static void optim_leaves_parameters_without_a_gradient(void **state)
{
    (void)state;
    model m = { 0 };
    model_add(&m, test_dev, 300, ATTO_F32);
    model_add(&m, test_dev, 300, ATTO_F16);
    const atto_param_set set = model_set(&m);
    atto_optimizer *opt;
    MUST(atto_adamw_create(NULL, 0.1, 0.1, &(atto_adamw_options){ .set = set }, &opt));
    model_give_grads(&m, 0, NULL);
    MUST(atto_optimizer_step(opt, 0.1));
    double before[2][300], after[2][300];
    int32_t steps = 0;
    for (int i = 0; i < 2; i++) get_doubles(&m.p[i]->value, before[i]);
    const uint64_t version = m.p[0]->version;
    MUST(atto_optimizer_step(opt, 0.1)); /* no gradient at all */
    put_grad(m.p[1], m.g[1]);
    MUST(atto_optimizer_step(opt, 0.1)); /* one of two */
    for (int i = 0; i < 2; i++) get_doubles(&m.p[i]->value, after[i]);
    assert_memory_equal(before[0], after[0], sizeof before[0]);
    assert_memory_not_equal(before[1], after[1], sizeof before[1]);
    assert_true(m.p[0]->version == version);
    for (int i = 0; i < 2; i++) {
        atto_tensor step;
        MUST(atto_optimizer_state(opt, m.p[i], "step", &step));
        MUST(atto_tensor_read(&step, &steps));
        assert_int_equal(steps, 1 + i);
    }
    put_grad(m.p[0], m.g[0]);
    atto_optimizer_zero_grad(opt);
    MUST(atto_optimizer_step(opt, 0.1));
    get_doubles(&m.p[0]->value, after[0]);
    assert_memory_equal(before[0], after[0], sizeof before[0]);
    atto_optimizer_free(opt);
    model_drop(&m);
}

static bool is_first(void *data, const char *key, const atto_param *p)
{
    (void)key;
    return p == data;
}

/* One SGD step of gradient 1 and lr 1 shows each parameter's factor. */
static void optim_groups_take_what_they_name(void **state)
{
    (void)state;
    static const char *const keys[] = { "encoder.weight", "encoder.bias", "head.weight", "bias",
                                        "head.scale" };
    static const double wanted[] = { 0.5, 0.25, 1.0, 0.25, 0.0 }; /* lr_factor each */
    model m = { 0 };
    for (int i = 0; i < 5; i++) model_add(&m, test_dev, 2, ATTO_F32);
    const atto_param_group groups[] = {
        { .suffix = "bias", .lr_factor = 0.25 },
        { .match = is_first, .data = m.p[4], .lr_factor = ATTO_ZERO },
        { .prefix = "encoder.", .lr_factor = 0.5 },
        { .prefix = "head.w", .suffix = "t", .has_weight_decay = true },
    };
    const atto_param_set set = { m.p, keys, 5, 4, groups };
    atto_optimizer *opt;
    MUST(atto_sgd_create(NULL, 1.0, &(atto_sgd_options){ .weight_decay = 0.5, .set = set }, &opt));
    for (int i = 0; i < 5; i++) put_grad(m.p[i], (double[]){ 1.0, 2.0 });
    MUST(atto_optimizer_step(opt, 1.0));
    for (int i = 0; i < 5; i++) {
        const oracle_optim o = { .method = ORACLE_SGD, .weight_decay = i == 2 ? 0.0 : 0.5 };
        m.g[i][0] = 1.0;
        m.g[i][1] = 2.0;
        model_step(&m, i, &o, wanted[i], 1.0, 1.0);
        model_expect(&m, i, "optim");
    }
    atto_optimizer_free(opt);
    model_drop(&m);
}

/* Through modules: tied, frozen, grouped by module and by key. */
static void optim_trains_a_module(void **state)
{
    (void)state;
    atto_module *net, *first;
    atto_optimizer *opt;
    MUST(atto_sequential_create(test_dev, &net));
    MUST(atto_linear_create(test_dev, 30, 20, NULL, &first));
    MUST(atto_sequential_add(net, first));
    MUST(atto_sequential_add(net, first));
    MUST(atto_sequential_linear(net, 20, 10, NULL));
    const atto_param_group groups[] = { { .module = first, .lr_factor = 0.5 },
                                        { .suffix = ".bias", .has_weight_decay = true } };
    const atto_adamw_options options = { .set = { .groups = groups, .group_count = 2 } };
    MUST(atto_adamw_create(net, 1e-3f, 0.01f, &options, &opt));
    assert_int_equal(atto_optimizer_param_count(opt), atto_module_param_count(net));
    assert_int_equal(opt->trained_count, 4);
    static const int wanted[] = { 0, 0, 2, 1 };
    for (int i = 0; i < 4; i++) assert_int_equal(opt->trained[i].group, wanted[i]);
    MUST(atto_optimizer_step(opt, 1e-3));
    atto_optimizer_free(opt);
    atto_module_freeze(net, true);
    EXPECT_FAIL(atto_adamw_create(net, 1e-3f, 0.01f, NULL, &opt), ATTO_E_ARGUMENT, "adamw|frozen");
    assert_null(opt);
    atto_module_free(first);
    atto_module_free(net);
}

/* A value of one row through a linear layer, and back with that gradient. */
static void pass(atto_tape *tape, atto_module *net, const float *row, double dy, bool step_first,
                 atto_optimizer *opt, atto_status wanted)
{
    atto_tensor gradient;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(1, 1), &gradient));
    MUST(atto_tensor_fill(&gradient, dy));
    const atto_var y = atto_apply(tape, net, atto_input(tape, ATTO_F32, atto_shape2(1, 2), row));
    if (step_first) MUST(atto_optimizer_step(opt, 0.5));
    assert_int_equal(atto_backward_from(tape, y, &gradient), wanted);
    (void)atto_tape_end(tape);
    atto_tensor_free(&gradient);
}

/* dw = dy x: micro-batches add up until the step, the next ones start afresh; a step between
 * forward and backward is noticed. */
static void optim_steps_what_the_tape_computes(void **state)
{
    (void)state;
    const float row[2] = { 1.0f, -2.0f };
    const double start[2] = { 8.0, 8.0 };
    double w[2];
    atto_module *net;
    atto_tape *tape;
    atto_optimizer *opt;
    MUST(atto_linear_create(test_dev, 2, 1, &(atto_linear_options){ .no_bias = true }, &net));
    MUST(atto_tape_create(test_dev, &tape));
    MUST(atto_sgd_create(net, 0.5, NULL, &opt));
    atto_param *p = opt->trained[0].p;
    put_value(p, start);
    for (int s = 0; s < 2; s++) {
        pass(tape, net, row, 1.0, false, NULL, ATTO_OK);
        pass(tape, net, row, 2.0, false, NULL, ATTO_OK);
        MUST(atto_optimizer_step(opt, 0.5));
        get_doubles(&p->value, w);
        assert_true(w[0] == 8.0 - 1.5 * (s + 1) && w[1] == 8.0 + 3.0 * (s + 1));
    }
    pass(tape, net, row, 1.0, false, NULL, ATTO_OK);
    pass(tape, net, row, 1.0, true, opt, ATTO_E_STATE);
    atto_optimizer_free(opt);
    pass(tape, net, row, 1.0, false, NULL, ATTO_OK); /* gradients have a place again */
    atto_tape_free(tape);
    atto_module_free(net);
}

/* ---- life and death ---- */

static void optim_any_order_of_destruction(void **state)
{
    (void)state;
    atto_device *dev;
    atto_optimizer *opt, *second;
    model m = { 0 };
    MUST(atto_device_open(test_device_name(), NULL, &dev));
    model_add(&m, dev, 100, ATTO_F16);
    model_add(&m, dev, 100, ATTO_F32);
    atto_param_set set = model_set(&m);
    MUST(atto_sgd_create(NULL, 0.1, &(atto_sgd_options){ .momentum = 0.9, .set = set }, &opt));
    model_give_grads(&m, 0, NULL);
    MUST(atto_optimizer_step(opt, 0.1));
    atto_optimizer_free(opt); /* parameters stay, and may be packed again */
    for (int i = 0; i < 2; i++) {
        model_step(&m, i, &(oracle_optim){ .method = ORACLE_SGD, .momentum = 0.9 }, 0.1, 1.0, 1.0);
        model_expect(&m, i, "optim");
        assert_true(!m.p[i]->is_packed && m.p[i]->grad.buffer == NULL);
    }
    MUST(atto_adam_create(NULL, 0.1, &(atto_adam_options){ .set = set }, &second));
    for (int i = 0; i < 2; i++) model_expect(&m, i, "optim");
    model_give_grads(&m, 1, NULL);
    model_drop(&m); /* parameters first, then the device */
    atto_device_close(dev);
    MUST(atto_optimizer_step(second, 0.1));
    atto_optimizer_free(second);
    atto_optimizer_free(NULL);
}

/* Fails the fail_at-th host allocation, from 1; 0 = none. */
typedef struct failing {
    long held, taken, fail_at;
} failing;

static failing host;

static void *failing_allocate(void *data, size_t bytes)
{
    failing *f = data;
    if (__atomic_add_fetch(&f->taken, 1, __ATOMIC_SEQ_CST) == f->fail_at) return NULL;
    void *block = malloc(bytes);
    if (block) __atomic_add_fetch(&f->held, 1, __ATOMIC_SEQ_CST);
    return block;
}

static void failing_release(void *data, void *pointer)
{
    failing *f = data;
    __atomic_sub_fetch(&f->held, 1, __ATOMIC_SEQ_CST);
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

/* Makes an optimiser, allocation n of that failing; values must stay in any case. Returns whether
 * it was refused: where the pool gives memory back and asks again, it is not. */
static bool make_with_failure(model *m, long n)
{
    const atto_param_group group = { .suffix = "bias" };
    atto_param_set set = model_set(m);
    set.groups = &group;
    set.group_count = 1;
    atto_optimizer *opt;
    host.taken = 0;
    host.fail_at = n;
    const atto_status status =
        atto_adamw_create(NULL, 0.1, 0.0, &(atto_adamw_options){ .set = set }, &opt);
    host.fail_at = 0;
    assert_true(status == ATTO_OK || (status == ATTO_E_MEMORY && opt == NULL));
    for (int i = 0; i < m->count; i++) {
        assert_true(m->p[i]->is_packed == (status == ATTO_OK));
        model_expect(m, i, "optim");
    }
    if (status == ATTO_OK) MUST(atto_optimizer_step(opt, 0.1));
    atto_optimizer_free(opt);
    return status != ATTO_OK;
}

static void optim_survives_every_failing_allocation(void **state)
{
    (void)state;
    const atto_allocator allocator = { failing_allocate, failing_release, &host };
    host = (failing){ 0, 0, 0 };
    MUST(atto_set_allocator(&allocator));
    atto_device *dev;
    MUST(atto_device_open(test_device_name(), NULL, &dev));
    model m = { 0 };
    model_add(&m, dev, 10, ATTO_F32);
    model_add(&m, dev, 2000, ATTO_BF16);
    model_add(&m, dev, 5, ATTO_F32);
    MUST(atto_device_trim(dev));
    assert_false(make_with_failure(&m, 0));
    const long total = host.taken;
    int refused = 0;
    for (long n = 1; n <= total; n++) {
        MUST(atto_device_trim(dev));
        refused += make_with_failure(&m, n);
    }
    assert_true(refused > 20); /* two for each tensor on OpenCL, one where the pool asks again */
    model_drop(&m);
    atto_device_close(dev);
    assert_int_equal(host.held, 0);
}

/* One training step of a small network; gradients are left. */
static atto_status train_once(atto_tape *tape, atto_module *net, const float *x)
{
    const int32_t labels[] = { 1, 0 };
    const atto_var logits = atto_apply(tape, net, atto_input(tape, ATTO_F32, atto_shape2(2, 3), x));
    const atto_var target = atto_input(tape, ATTO_I32, atto_shape1(2), labels);
    const atto_status status = atto_backward(tape, atto_cross_entropy(tape, logits, target, NULL));
    const atto_status ended = atto_tape_end(tape);
    return status != ATTO_OK ? status : ended;
}

typedef struct gradients {
    float of[16];
    int64_t count;
} gradients;

static atto_status collect_grad(void *data, const char *key, atto_param *p)
{
    (void)key;
    gradients *g = data;
    atto_tensor grad;
    MUST(atto_param_grad(p, &grad));
    MUST(atto_tensor_read(&grad, &g->of[g->count]));
    g->count += atto_tensor_numel(&grad);
    return ATTO_OK;
}

static atto_status forget_grad(void *data, const char *key, atto_param *p)
{
    (void)data;
    (void)key;
    atto_param_zero_grad(p);
    return ATTO_OK;
}

/* Whichever allocation of a step fails, the step says so, leaves no gradient that was not written,
 * and the next try gives what an undisturbed one does. */
static void optim_retries_a_step_after_any_failing_allocation(void **state)
{
    (void)state;
    const atto_allocator allocator = { failing_allocate, failing_release, &host };
    const float x[6] = { 1.0f, -2.0f, 3.0f, 0.5f, 0.25f, -1.0f };
    gradients want = { 0 };
    host = (failing){ 0, 0, 0 };
    MUST(atto_set_allocator(&allocator));
    int refused = 0;
    const int step = test_in_disguise() ? 4 : 1; /* opening devices takes time */
    for (long n = 0;; n += step) {
        atto_device *dev;
        atto_module *net, *layer;
        atto_tape *tape;
        MUST(atto_device_open(test_device_name(), NULL, &dev));
        atto_seed(dev, 1);
        MUST(atto_sequential_create(dev, &net));
        for (int i = 0; i < 2; i++) {
            MUST(atto_linear_create(dev, i ? 2 : 3, 2, NULL, &layer));
            MUST(atto_sequential_add(net, layer));
            atto_module_free(layer);
        }
        MUST(atto_tape_create(dev, &tape));
        host.taken = 0;
        host.fail_at = n;
        const atto_status status = train_once(tape, net, x);
        const bool reached = host.taken >= n;
        host.fail_at = 0;
        assert_true(status == ATTO_OK || (n > 0 && status == ATTO_E_MEMORY));
        if (status != ATTO_OK) {
            refused++;
            MUST(atto_module_params(net, forget_grad, NULL));
            MUST(train_once(tape, net, x));
        }
        gradients got = { 0 };
        MUST(atto_module_params(net, collect_grad, &got));
        if (n == 0) want = got;
        assert_int_equal(got.count, 6 + 2 + 4 + 2);
        assert_memory_equal(got.of, want.of, sizeof got.of);
        atto_tape_free(tape);
        atto_module_free(net);
        atto_device_close(dev);
        if (!reached) break;
    }
    assert_int_equal(host.held, 0);
    assert_true(refused > 10 / step);
}

/* The device has room for the values, but not for gradients and states. */
static void optim_survives_a_full_device(void **state)
{
    (void)state;
    atto_device *dev;
    atto_optimizer *opt;
    model m = { 0 };
    const atto_device_options options = { .max_memory_bytes = 1 << 20 };
    MUST(atto_device_open(test_device_name(), &options, &dev));
    model_add(&m, dev, 100000, ATTO_F32);
    const atto_param_set set = model_set(&m);
    EXPECT_FAIL(atto_adam_create(NULL, 0.1, &(atto_adam_options){ .set = set }, &opt),
                ATTO_E_MEMORY, "limit");
    assert_true(opt == NULL && !m.p[0]->is_packed);
    model_expect(&m, 0, "optim");
    model_drop(&m);
    atto_device_close(dev);
}

/* A changed value is a changed version, which backward asks for; gradients are used up. */
static void optim_step_counts_versions(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = model_add(&m, test_dev, 4, ATTO_F32);
    const atto_param_set set = model_set(&m);
    atto_optimizer *opt;
    atto_tensor grad;
    MUST(atto_sgd_create(NULL, 0.1, &(atto_sgd_options){ .set = set }, &opt));
    const uint64_t version = p->version;
    put_grad(p, m.g[0]);
    MUST(atto_param_grad(p, &grad));
    MUST(atto_optimizer_step(opt, 0.1));
    assert_true(p->version == version + 1);
    EXPECT_FAIL(atto_param_grad(p, &grad), ATTO_E_STATE, "none");
    atto_optimizer_free(opt);
    model_drop(&m);
}

/* What a backward pass of one's own sees: overwrite first, then add, until the step; and frozen
 * ones are not given out. */
static void optim_takes_gradients_of_ones_own(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = model_add(&m, test_dev, 2, ATTO_F32);
    const atto_param_set set = model_set(&m);
    atto_optimizer *opt;
    atto_tensor grad;
    bool add;
    double values[2];
    put_value(p, (double[]){ 1.0, 1.0 });
    MUST(atto_sgd_create(NULL, 1.0, &(atto_sgd_options){ .set = set }, &opt));
    for (int s = 0; s < 2; s++) {
        MUST(atto_param_grad_target(p, &grad, &add));
        assert_false(add);
        put_doubles(&grad, (double[]){ 0.25, 0.5 });
        MUST(atto_param_grad_target(p, &grad, &add));
        assert_true(add);
        MUST(atto_optimizer_step(opt, 1.0));
    }
    get_doubles(&p->value, values);
    assert_true(values[0] == 0.5 && values[1] == 0.0);
    EXPECT_FAIL(atto_param_grad_target(NULL, &grad, &add), ATTO_E_NULL, "p is NULL");
    EXPECT_FAIL(atto_param_grad_target(p, NULL, &add), ATTO_E_NULL, "out");
    EXPECT_FAIL(atto_param_grad_target(p, &grad, NULL), ATTO_E_NULL, "add");
    atto_param_freeze(p, true);
    EXPECT_FAIL(atto_param_grad_target(p, &grad, &add), ATTO_E_STATE, "frozen");
    atto_optimizer_free(opt);
    model_drop(&m);
}

static void optim_momentum_can_be_cycled(void **state)
{
    (void)state;
    static const oracle_optim kinds[] = {
        { .method = ORACLE_SGD, .momentum = 0.95 },
        { .method = ORACLE_ADAM, .beta1 = 0.95, .beta2 = 0.999, .eps = 1e-8 }
    };
    for (int i = 0; i < 2; i++) {
        oracle_optim o = kinds[i];
        model m = { 0 };
        atto_param *p = model_add(&m, test_dev, 50, ATTO_F32);
        const atto_param_set set = model_set(&m);
        atto_optimizer *opt;
        MUST(make_optimizer(&o, 0.1, &set, &opt));
        for (int s = 0; s < 10; s++) {
            o.momentum = i ? 0.0 : atto_schedule_one_cycle_momentum(s, 10, 0.85, 0.95, NULL);
            o.beta1 = i ? atto_schedule_one_cycle_momentum(s, 10, 0.85, 0.95, NULL) : 0.0;
            MUST(atto_optimizer_set_momentum(opt, i ? o.beta1 : o.momentum));
            model_give_grads(&m, s, NULL);
            MUST(atto_optimizer_step(opt, 0.1));
            model_step(&m, 0, &o, 0.1, 1.0, 1.0);
        }
        model_expect(&m, 0, "optim");
        EXPECT_FAIL(atto_optimizer_set_momentum(opt, -0.5), ATTO_E_ARGUMENT, "-0.5");
        if (i) EXPECT_FAIL(atto_optimizer_set_momentum(opt, 1.0), ATTO_E_ARGUMENT, "less than 1");
        (void)p;
        atto_optimizer_free(opt);
        model_drop(&m);
    }
}

/* Infinite gradients for ever: the scale stops at the smallest normal number, and a good step is
 * still one. */
static void optim_loss_scale_never_is_0(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = model_add(&m, test_dev, 2, ATTO_F32);
    const atto_param_set set = model_set(&m);
    const atto_loss_scale_options options = { .initial = 0x1p-100 };
    atto_optimizer *opt;
    atto_tensor scale;
    float now;
    double values[2];
    put_value(p, (double[]){ 1.0, 2.0 });
    MUST(atto_sgd_create(NULL, 0.5, &(atto_sgd_options){ .set = set }, &opt));
    MUST(atto_optimizer_scale_loss(opt, &options));
    MUST(atto_optimizer_loss_scale(opt, &scale));
    for (int s = 0; s < 60; s++) {
        put_grad(p, (double[]){ INFINITY, 0.0 });
        MUST(atto_optimizer_step(opt, 0.5));
    }
    MUST(atto_tensor_read(&scale, &now));
    assert_true(now == 0x1p-126f);
    put_grad(p, (double[]){ 0x1p-126, 0x1p-125 });
    MUST(atto_optimizer_step(opt, 0.5));
    get_doubles(&p->value, values);
    assert_true(values[0] == 0.5 && values[1] == 1.0);
    atto_optimizer_free(opt);
    model_drop(&m);
}

/* ---- refusals ---- */

static void optim_refuses_illegal_numbers(void **state)
{
    (void)state;
    model m = { 0 };
    model_add(&m, test_dev, 4, ATTO_F32);
    const atto_param_set set = model_set(&m);
    atto_optimizer *opt;
    static const double bad[] = { -0.5, NAN, INFINITY };
#define REFUSED(call, words) EXPECT_FAIL(call, ATTO_E_ARGUMENT, words)
#define SGD(lr, ...)         atto_sgd_create(NULL, lr, &(atto_sgd_options){ .set = set, __VA_ARGS__ }, &opt)
#define ADAM(...)            atto_adam_create(NULL, 0.1, &(atto_adam_options){ .set = set, __VA_ARGS__ }, &opt)
#define RMSPROP(...) \
    atto_rmsprop_create(NULL, 0.1, &(atto_rmsprop_options){ .set = set, __VA_ARGS__ }, &opt)
#define ADAMW(decay, ...) \
    atto_adamw_create(NULL, 0.1, decay, &(atto_adamw_options){ .set = set, __VA_ARGS__ }, &opt)
    for (int i = 0; i < 3; i++) {
        REFUSED(SGD(bad[i], .momentum = 0.0), "sgd|lr");
        REFUSED(SGD(0.1, .momentum = bad[i]), "sgd|momentum");
        REFUSED(SGD(0.1, .weight_decay = bad[i]), "sgd|weight_decay");
        if (i) REFUSED(SGD(0.1, .dampening = bad[i]), "sgd|dampening");
        REFUSED(ADAM(.beta1 = bad[i]), "adam|beta1");
        REFUSED(ADAM(.beta2 = bad[i]), "adam|beta2");
        REFUSED(ADAM(.eps = bad[i]), "adam|eps");
        REFUSED(ADAMW(bad[i], .eps = 0.0), "adamw|weight_decay");
        REFUSED(ADAMW(0.1, .beta1 = bad[i]), "adamw|beta1");
        REFUSED(RMSPROP(.alpha = bad[i]), "rmsprop|alpha");
        REFUSED(RMSPROP(.eps = bad[i]), "rmsprop|eps");
        REFUSED(RMSPROP(.momentum = bad[i]), "rmsprop|momentum");
    }
    REFUSED(ADAM(.beta1 = 1.0), "beta1|without 1");
    REFUSED(ADAM(.beta2 = 1.0), "beta2|without 1");
    REFUSED(SGD(0.1, .nesterov = true), "nesterov");
    REFUSED(SGD(0.1, .nesterov = true, .momentum = 0.9, .dampening = 0.1), "nesterov");
    REFUSED(SGD(0.1, .reserved = { 0, 1 }), "reserved");
    REFUSED(ADAM(.reserved = { 0, 1 }), "reserved");
    REFUSED(ADAMW(0.1, .reserved = { 0, 1 }), "reserved");
    REFUSED(RMSPROP(.reserved = { 0, 1 }), "reserved");
    assert_null(opt);
    assert_false(m.p[0]->is_packed);
    model_drop(&m);
}

/* Finite as a double is not enough. */
static void optim_refuses_what_is_infinite_as_f32(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = model_add(&m, test_dev, 4, ATTO_F32);
    atto_param_set set = model_set(&m);
    atto_optimizer *opt;
    REFUSED(SGD(1e39, .momentum = 0.0), "sgd|lr");
    REFUSED(SGD(0.1, .momentum = 1e300), "sgd|momentum");
    REFUSED(SGD(0.1, .weight_decay = 1e300), "sgd|weight_decay");
    REFUSED(SGD(0.1, .dampening = -1e39), "sgd|dampening");
    REFUSED(ADAM(.eps = 1e39), "adam|eps");
    REFUSED(ADAMW(1e300, .eps = 0.0), "adamw|weight_decay");
    REFUSED(RMSPROP(.momentum = 1e39), "rmsprop|momentum");
    const atto_param_group bad[] = { { .lr_factor = 1e39 },
                                     { .has_weight_decay = true, .weight_decay = 1e39 } };
    static const char *const words[] = { "lr_factor", "weight_decay" };
    set.group_count = 1;
    for (int i = 0; i < 2; i++) {
        set.groups = &bad[i];
        REFUSED(SGD(0.1, .momentum = 0.0), words[i]);
    }
    REFUSED(atto_param_init_uniform(p, 1e300), "bound");
    REFUSED(atto_param_init_normal(p, -1e39, 1.0), "mean");
    REFUSED(atto_param_init_normal(p, 0.0, 1e39), "deviation");
    set = model_set(&m);
    MUST(SGD(3e38, .momentum = 3e38));
    REFUSED(atto_optimizer_step(opt, 1e39), "lr");
    REFUSED(atto_optimizer_set_momentum(opt, 1e300), "momentum");
    atto_optimizer_free(opt);
    model_drop(&m);
}

/* ATTO_ZERO is for numbers that have another default. */
static void optim_refuses_zero_where_0_is_the_default(void **state)
{
    (void)state;
    model m = { 0 };
    model_add(&m, test_dev, 4, ATTO_F32);
    const atto_param_set set = model_set(&m);
    atto_optimizer *opt;
    REFUSED(SGD(0.1, .momentum = -1.0), "sgd|momentum");
    REFUSED(SGD(0.1, .weight_decay = -1.0), "sgd|weight_decay");
    REFUSED(ADAM(.weight_decay = -1.0), "adam|weight_decay");
    REFUSED(ADAMW(-1.0, .eps = 0.0), "adamw|weight_decay");
    REFUSED(RMSPROP(.momentum = -1.0), "rmsprop|momentum");
    REFUSED(RMSPROP(.weight_decay = -1.0), "rmsprop|weight_decay");
    model_drop(&m);
}

static void optim_refuses_bad_sets(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = model_add(&m, test_dev, 4, ATTO_F32);
    atto_param *hole[] = { p, NULL };
    atto_optimizer *opt, *owner;
    atto_param_set set = model_set(&m);
#define MAKE(s) atto_sgd_create(NULL, 0.1, &(atto_sgd_options){ .set = s }, &opt)
    EXPECT_FAIL(atto_sgd_create(NULL, 0.1, NULL, &opt), ATTO_E_NULL, "neither");
    EXPECT_FAIL(atto_sgd_create(NULL, 0.1, &(atto_sgd_options){ .set = set }, NULL), ATTO_E_NULL,
                "out");
    EXPECT_FAIL(MAKE(((atto_param_set){ .params = hole, .count = 2 })), ATTO_E_NULL, "params[1]");
    EXPECT_FAIL(MAKE(((atto_param_set){ .params = hole, .count = 0 })), ATTO_E_ARGUMENT,
                "no param");
    EXPECT_FAIL(MAKE(((atto_param_set){ .params = hole, .count = -1 })), ATTO_E_ARGUMENT, "-1");
    set.group_count = 1;
    EXPECT_FAIL(MAKE(set), ATTO_E_NULL, "groups");
    const atto_param_group bad[] = { { .lr_factor = -0.5 },
                                     { .has_weight_decay = true, .weight_decay = NAN },
                                     { .reserved = { 1 } } };
    static const char *const words[] = { "lr_factor", "weight_decay", "reserved" };
    for (int i = 0; i < 3; i++) {
        set.groups = &bad[i];
        EXPECT_FAIL(MAKE(set), ATTO_E_ARGUMENT, words[i]);
    }
    set.group_count = -1;
    EXPECT_FAIL(MAKE(set), ATTO_E_ARGUMENT, "group_count");
    set = model_set(&m);
    MUST(atto_sgd_create(NULL, 0.1, &(atto_sgd_options){ .set = set }, &owner));
    EXPECT_FAIL(MAKE(set), ATTO_E_STATE, "block.weight|another optimiser");
    assert_null(opt);
    atto_optimizer_free(owner);

    atto_device *other;
    model far = { 0 };
    MUST(atto_device_open("cpu", NULL, &other));
    atto_param *both[] = { p, model_add(&far, other, 3, ATTO_F32) };
    EXPECT_FAIL(MAKE(((atto_param_set){ .params = both, .count = 2 })), ATTO_E_DEVICE, "is on");
    assert_true(!p->is_packed && !far.p[0]->is_packed);
    model_drop(&far);
    atto_device_close(other);
    model_drop(&m);
}

static void optim_calls_refuse_bad_arguments(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = model_add(&m, test_dev, 4, ATTO_F32);
    const atto_param_set set = model_set(&m);
    atto_optimizer *opt;
    atto_tensor t;
    float number;
    int64_t count;
    void *data;
    MUST(atto_sgd_create(NULL, 0.1, &(atto_sgd_options){ .set = set }, &opt));
    EXPECT_FAIL(atto_optimizer_step(NULL, 0.1), ATTO_E_NULL, "opt");
    EXPECT_FAIL(atto_optimizer_step(opt, -1.0), ATTO_E_ARGUMENT, "lr|-1");
    EXPECT_FAIL(atto_optimizer_step(opt, NAN), ATTO_E_ARGUMENT, "lr");
    EXPECT_FAIL(atto_optimizer_step(opt, INFINITY), ATTO_E_ARGUMENT, "lr");
    EXPECT_FAIL(atto_optimizer_set_momentum(NULL, 0.1), ATTO_E_NULL, "opt");
    EXPECT_FAIL(atto_optimizer_set_momentum(opt, 0.1), ATTO_E_STATE, "without momentum");
    EXPECT_FAIL(atto_optimizer_clip_norm(NULL, 1.0), ATTO_E_NULL, "opt");
    EXPECT_FAIL(atto_optimizer_clip_norm(opt, -1.0), ATTO_E_ARGUMENT, "max_norm");
    EXPECT_FAIL(atto_optimizer_clip_norm(opt, NAN), ATTO_E_ARGUMENT, "max_norm");
    EXPECT_FAIL(atto_optimizer_norm(NULL, &number), ATTO_E_NULL, "opt");
    EXPECT_FAIL(atto_optimizer_norm(opt, NULL), ATTO_E_NULL, "out");
    EXPECT_FAIL(atto_optimizer_norm(opt, &number), ATTO_E_STATE, "measure");
    EXPECT_FAIL(atto_optimizer_norm_tensor(opt, &t), ATTO_E_STATE, "measure");
    EXPECT_FAIL(atto_optimizer_loss_scale(NULL, &t), ATTO_E_NULL, "opt");
    EXPECT_FAIL(atto_optimizer_skipped(opt, NULL), ATTO_E_NULL, "out");
    MUST(atto_optimizer_skipped(opt, &count));
    assert_int_equal(count, 0);
#define SCALE(...) atto_optimizer_scale_loss(opt, &(atto_loss_scale_options){ __VA_ARGS__ })
    EXPECT_FAIL(atto_optimizer_scale_loss(NULL, NULL), ATTO_E_NULL, "opt");
    EXPECT_FAIL(SCALE(.initial = -1.0), ATTO_E_ARGUMENT, "initial");
    EXPECT_FAIL(SCALE(.initial = 1e39), ATTO_E_ARGUMENT, "initial");
    EXPECT_FAIL(SCALE(.initial = 0x1p-127), ATTO_E_ARGUMENT, "initial");
    EXPECT_FAIL(SCALE(.growth = 1e39), ATTO_E_ARGUMENT, "growth");
    EXPECT_FAIL(SCALE(.backoff = 1e-60), ATTO_E_ARGUMENT, "backoff");
    EXPECT_FAIL(SCALE(.growth = 1.0), ATTO_E_ARGUMENT, "growth");
    EXPECT_FAIL(SCALE(.backoff = 1.0), ATTO_E_ARGUMENT, "backoff");
    EXPECT_FAIL(SCALE(.growth_interval = -1), ATTO_E_ARGUMENT, "growth_interval");
    EXPECT_FAIL(SCALE(.reserved = { 1 }), ATTO_E_ARGUMENT, "reserved");
    EXPECT_FAIL(atto_optimizer_state(opt, p, "exp_avg", &t), ATTO_E_ARGUMENT, "exp_avg");
    EXPECT_FAIL(atto_optimizer_state(opt, p, "master", &t), ATTO_E_ARGUMENT, "master");
    EXPECT_FAIL(atto_optimizer_state(opt, NULL, "step", &t), ATTO_E_NULL, "p is NULL");
    EXPECT_FAIL(atto_optimizer_grad_chunk(opt, 1, &t), ATTO_E_ARGUMENT, "0 to 0");
    EXPECT_FAIL(atto_optimizer_grad_chunk(opt, 0, NULL), ATTO_E_NULL, "out");
    put_grad(p, m.g[0]);
    const atto_tensor value = atto_param_value(p);
    MUST(atto_tensor_map(&value, ATTO_MAP_READ, &data));
    EXPECT_FAIL(atto_optimizer_step(opt, 0.1), ATTO_E_STATE, "optimizer_step|mapped");
    assert_true(p->has_grad);
    MUST(atto_tensor_unmap(&value));
    assert_int_equal(atto_optimizer_param_count(NULL), 0);
    assert_int_equal(atto_optimizer_chunk_count(NULL), 0);
    atto_optimizer_zero_grad(NULL);
    atto_optimizer_free(opt);
    model_drop(&m);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(optim_takes_ties_once_and_leaves_frozen_ones),
    cmocka_unit_test(optim_leaves_later_frozen_ones),
    cmocka_unit_test(optim_packs_into_chunks),
    cmocka_unit_test(optim_leaves_parameters_without_a_gradient),
    cmocka_unit_test(optim_groups_take_what_they_name),
    cmocka_unit_test(optim_trains_a_module),
    cmocka_unit_test(optim_steps_what_the_tape_computes),
    cmocka_unit_test(optim_any_order_of_destruction),
    cmocka_unit_test_setup_teardown(optim_survives_every_failing_allocation, close_test_device,
                                    reopen_test_device),
    cmocka_unit_test_setup_teardown(optim_retries_a_step_after_any_failing_allocation,
                                    close_test_device, reopen_test_device),
    cmocka_unit_test(optim_survives_a_full_device),
    cmocka_unit_test(optim_step_counts_versions),
    cmocka_unit_test(optim_takes_gradients_of_ones_own),
    cmocka_unit_test(optim_momentum_can_be_cycled),
    cmocka_unit_test(optim_loss_scale_never_is_0),
    cmocka_unit_test(optim_refuses_illegal_numbers),
    cmocka_unit_test(optim_refuses_what_is_infinite_as_f32),
    cmocka_unit_test(optim_refuses_zero_where_0_is_the_default),
    cmocka_unit_test(optim_refuses_bad_sets),
    cmocka_unit_test(optim_calls_refuse_bad_arguments),
};

TEST_MAIN("optim_life", tests)
