/* SPDX-License-Identifier: MIT */
/* OpenCL at its worst: every call failing in turn, devices that get lost, objects that nobody
 * releases (D4, M1). */
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"
#include "cl_layer.h"

#define BATCH 4
#define IN    5
#define OUT   3

/* What a life ends with, unless something fails: numbers of a training step. */
typedef struct result {
    float loss, weights[OUT * IN], images[BATCH * IN];
} result;

static const float inputs[BATCH * IN] = { 1, 2, -1, 0, 3, 2, 1, 1, -2, 0,
                                          4, 1, 0,  1, 1, 0, 1, 2, 1,  1 };
static const int32_t labels[BATCH] = { 0, 2, 1, 2 };

/* A step of training, its parameters copied out and in, ops on tensors, a mapping, a view that has to
 * be packed. */
static atto_status train(atto_device *dev, atto_tape *tape, atto_module *net, atto_optimizer *opt,
                         result *r)
{
    const atto_var x = atto_input(tape, ATTO_F32, atto_shape2(BATCH, IN), inputs);
    const atto_var t = atto_input(tape, ATTO_I32, atto_shape1(BATCH), labels);
    const atto_var e = atto_cross_entropy(tape, atto_apply(tape, net, x), t, NULL);
    atto_status status = atto_backward(tape, e);
    if (status == ATTO_OK) status = atto_optimizer_step(opt, 0.5);
    if (status == ATTO_OK) status = atto_var_read(tape, e, &r->loss);
    const atto_status end = atto_tape_end(tape);
    if (status == ATTO_OK) status = end;
    atto_param *weight = NULL;
    if (status == ATTO_OK) status = atto_module_find_param(net, "0.weight", &weight);
    if (status == ATTO_OK) status = atto_param_read(weight, r->weights);
    if (status == ATTO_OK) status = atto_param_write(weight, r->weights);
    return status == ATTO_OK ? atto_device_sync(dev) : status;
}

static atto_status train_new(atto_device *dev, result *r)
{
    atto_module *net = NULL;
    atto_optimizer *opt = NULL;
    atto_tape *tape = NULL;
    atto_status status = atto_sequential_create(dev, &net);
    if (status == ATTO_OK)
        status = atto_sequential_linear(net, IN, OUT, &(atto_linear_options){ .act = atto_tanh() });
    if (status == ATTO_OK) status = atto_adamw_create(net, 0.5, 0.01, NULL, &opt);
    if (status == ATTO_OK) status = atto_tape_create(dev, &tape);
    if (status == ATTO_OK) status = train(dev, tape, net, opt, r);
    atto_tape_free(tape);
    atto_optimizer_free(opt);
    atto_module_free(net);
    return status;
}

static atto_status use_tensors(atto_device *dev, result *r)
{
    atto_tensor t = { .buffer = NULL }, turned, y = { .buffer = NULL };
    void *mapped;
    atto_status status = atto_tensor_alloc(dev, ATTO_F32, atto_shape2(BATCH, IN), &t);
    if (status == ATTO_OK) status = atto_tensor_alloc(dev, ATTO_F32, atto_shape2(IN, BATCH), &y);
    if (status == ATTO_OK) status = atto_tensor_write(&t, inputs);
    if (status == ATTO_OK) status = atto_tensor_transpose(&t, 0, 1, &turned);
    if (status == ATTO_OK)
        status = atto_act_forward(
            dev, &(struct atto_act_args){ .x = &turned, .y = &y, .act = atto_relu() });
    if (status == ATTO_OK) status = atto_tensor_map(&y, ATTO_MAP_READ, &mapped);
    if (status == ATTO_OK) {
        memcpy(r->images, mapped, sizeof r->images);
        status = atto_tensor_unmap(&y);
    }
    atto_tensor_free(&t);
    atto_tensor_free(&y);
    return status;
}

/* From opening a device to closing it. */
static atto_status live(result *r, bool no_fallback)
{
    const atto_device_options options = { .ignore_environment = true,
                                          .no_fallback = no_fallback,
                                          .no_cache = true };
    atto_device *dev;
    memset(r, 0, sizeof *r);
    atto_status status = atto_device_open(test_device_name(), &options, &dev);
    if (status != ATTO_OK) return status;
    status = train_new(dev, r);
    if (status == ATTO_OK) status = use_tensors(dev, r);
    atto_device_close(dev);
    return status;
}

static void expect_nothing_left(long call)
{
    if (cl_layer_left()[0])
        fail_msg("call %ld (%s) failed with %d: left are %s", call,
                 cl_layer.failed ? cl_layer.failed : "none", (int)cl_layer.code, cl_layer_left());
}

static void no_object_outlives_its_device(void **state)
{
    (void)state;
    result r;
    cl_layer_begin();
    for (int i = 0; i < 3; i++) {
        MUST(live(&r, false));
        expect_nothing_left(0);
    }
    assert_true(cl_layer.calls > 100);
    cl_layer_end();
}

/* The n-th call fails; everything then ends in a status, nothing is left, and what is said to have
 * worked is right. */
static void fail_each(cl_int code, bool stays, long step)
{
    result right, r;
    cl_layer_begin();
    MUST(live(&right, false));
    const long calls = cl_layer.calls;
    long failures = 0;
    for (long n = 1; n <= calls; n += step) {
        const bool no_fallback = n % 2;
        cl_layer = (struct cl_layer){ .fail_at = n, .code = code, .stays = stays };
        const atto_status status = live(&r, no_fallback);
        cl_layer.fail_at = 0;
        expect_nothing_left(n);
        failures += status != ATTO_OK;
        if (status == ATTO_OK && memcmp(&r, &right, sizeof r) != 0)
            fail_msg("call %ld (%s) failed with %d, nobody says so, and results are wrong", n,
                     cl_layer.failed ? cl_layer.failed : "none", (int)code);
        if (status != ATTO_OK && !atto_last_error()[0]) fail_msg("call %ld: no message", n);
    }
    assert_true(failures > 0);
    MUST(live(&r, false)); /* as if nothing had been */
    assert_memory_equal(&r, &right, sizeof r);
    expect_nothing_left(0);
    cl_layer_end();
}

/* On GPUs a life takes seconds: devices are opened and kernels are built in it. */
static long step_of(long whole)
{
    atto_device_info info;
    MUST(atto_device_describe(test_dev, &info));
    const bool slow = info.kind == ATTO_KIND_DISCRETE_GPU || info.kind == ATTO_KIND_INTEGRATED_GPU;
    return slow ? 60 * whole : test_in_disguise() ? 12 * whole : whole;
}

static void every_call_may_run_out_of_host_memory(void **state)
{
    (void)state;
    fail_each(CL_OUT_OF_HOST_MEMORY, false, step_of(1));
}

static void every_call_may_run_out_of_resources(void **state)
{
    (void)state;
    fail_each(CL_OUT_OF_RESOURCES, false, step_of(3));
}

static void every_call_may_find_no_device_memory(void **state)
{
    (void)state;
    fail_each(CL_MEM_OBJECT_ALLOCATION_FAILURE, false, step_of(3));
}

static void every_call_may_say_what_no_driver_says(void **state)
{
    (void)state;
    fail_each(-12345, false, step_of(3));
}

/* From some call on nothing works any more. */
static void a_device_may_be_lost_at_any_call(void **state)
{
    (void)state;
    fail_each(CL_DEVICE_NOT_AVAILABLE, true, step_of(3));
}

/* The first call that notices says LOST, and so do all that follow. */
static void a_lost_device_stays_lost(void **state)
{
    (void)state;
    atto_device *dev;
    atto_tensor t;
    float values[4] = { 1, 2, 3, 4 };
    const atto_device_options options = { .ignore_environment = true, .no_cache = true };
    cl_layer_begin();
    MUST(atto_device_open(test_device_name(), &options, &dev));
    MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(4), &t));
    cl_layer.code = CL_DEVICE_NOT_AVAILABLE;
    cl_layer.fail_at = cl_layer.calls + 1;
    EXPECT_FAIL(atto_tensor_read(&t, values), ATTO_E_LOST, "CL_DEVICE_NOT_AVAILABLE");
    cl_layer.fail_at = 0; /* too late */
    EXPECT_FAIL(atto_tensor_write(&t, values), ATTO_E_LOST, "CL_DEVICE_NOT_AVAILABLE");
    EXPECT_FAIL(atto_device_sync(dev), ATTO_E_LOST, "CL_DEVICE_NOT_AVAILABLE");
    EXPECT_FAIL(
        atto_act_forward(dev, &(struct atto_act_args){ .x = &t, .y = &t, .act = atto_relu() }),
        ATTO_E_LOST, "CL_DEVICE_NOT_AVAILABLE");
    assert_false(atto_device_supports(dev, ATTO_OP_ACT, ATTO_F32));
    atto_tensor_free(&t);
    atto_device_close(dev);
    expect_nothing_left(0);
    cl_layer_end();
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(no_object_outlives_its_device),
    cmocka_unit_test(every_call_may_run_out_of_host_memory),
    cmocka_unit_test(every_call_may_run_out_of_resources),
    cmocka_unit_test(every_call_may_find_no_device_memory),
    cmocka_unit_test(every_call_may_say_what_no_driver_says),
    cmocka_unit_test(a_device_may_be_lost_at_any_call),
    cmocka_unit_test(a_lost_device_stays_lost),
};

TEST_MAIN("faults", tests)
