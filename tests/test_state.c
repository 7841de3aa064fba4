/* SPDX-License-Identifier: MIT */
/* Internals: what a device remembers. Data errors that kernels leave in the error word, and
 * loss. */
#include "atto_test.h"
#include "device.h"
#include "run.h"

/* Leaves bits in the error word as a kernel of an op with data errors would. */
static void leave_error(uint32_t bits)
{
    MUST(test_dev->vt->write(test_dev, test_dev->error_word->memory, 0, &bits, sizeof bits));
    test_dev->error_armed = true;
}

static void state_data_errors_are_told_once_by_sync(void **state)
{
    (void)state;
    MUST(atto_device_sync(test_dev));
    leave_error(4);
    EXPECT_FAIL(atto_device_sync(test_dev), ATTO_E_INDEX, "out of range|ATTOCL_DEBUG=sync");
    MUST(atto_device_sync(test_dev));
    leave_error(0); /* armed, but nothing found */
    MUST(atto_device_sync(test_dev));
}

/* The data has been read all the same. */
static void state_data_errors_are_told_once_by_a_read(void **state)
{
    (void)state;
    atto_tensor t;
    float value = 0.0f;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(1), &t));
    MUST(atto_tensor_fill(&t, 3.0));
    leave_error(1);
    EXPECT_FAIL(atto_tensor_read(&t, &value), ATTO_E_INDEX, "out of range");
    assert_true(value == 3.0f);
    MUST(atto_tensor_read(&t, &value));
    atto_tensor_free(&t);
}

/* Without waiting: at once on the CPU, some calls late elsewhere; once. */
static void state_data_errors_reach_the_end_of_a_step(void **state)
{
    (void)state;
    atto_tape *tape;
    MUST(atto_tape_create(test_dev, &tape));
    leave_error(2);
    int told = 0;
    for (int step = 0; step < 1000 && told == 0; step++) {
        const atto_status status = atto_tape_end(tape);
        assert_true(status == ATTO_OK || status == ATTO_E_INDEX);
        told += status == ATTO_E_INDEX;
        if (step > 100) MUST(test_dev->vt->sync(test_dev));
    }
    assert_int_equal(told, 1);
    for (int step = 0; step < 20; step++) {
        MUST(atto_tape_end(tape));
        MUST(test_dev->vt->sync(test_dev));
    }
    MUST(atto_device_sync(test_dev));
    atto_tape_free(tape);
}

/* A step's end asked for the word before a sync told of it: what comes back later is old. */
static void state_data_errors_that_a_sync_told_do_not_come_back(void **state)
{
    (void)state;
    atto_tape *tape;
    MUST(atto_tape_create(test_dev, &tape));
    leave_error(2);
    const atto_status at_end = atto_tape_end(tape);
    assert_int_equal(at_end == ATTO_OK ? atto_device_sync(test_dev) : at_end, ATTO_E_INDEX);
    for (int step = 0; step < 20; step++) {
        test_dev->error_armed = true;
        MUST(atto_tape_end(tape));
        MUST(test_dev->vt->sync(test_dev));
    }
    atto_tape_free(tape);
}

/* An op without data errors costs no read of the word. */
static void state_ops_without_data_errors_do_not_arm_the_word(void **state)
{
    (void)state;
    atto_tensor t;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(5), &t));
    MUST(atto_tensor_fill(&t, 1.0));
    const struct atto_act_args a = { .x = &t, .y = &t, .act = atto_relu() };
    MUST(atto_act_forward(test_dev, &a));
    assert_false(test_dev->error_armed);
    atto_tensor_free(&t);
}

static void none(const atto_kernel_arg *args, int64_t begin, int64_t end)
{
    (void)args, (void)begin, (void)end;
}

/* Every call fails with the first message; freeing and closing still work. */
static void state_a_lost_device_stays_lost(void **state)
{
    (void)state;
    atto_device *dev;
    atto_tensor t, other;
    float value;
    MUST(atto_device_open(test_device_name(), NULL, &dev));
    MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(3), &t));
    const atto_kernel_source source = { .name = "none",
                                        .text = "__kernel void none(ulong n) {}",
                                        .cpu = none };
    atto_kernel *kernel, *other_kernel;
    MUST(atto_kernel_create(dev, &source, &kernel));
    atto_tensor mapped;
    void *data;
    MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(3), &mapped));
    MUST(atto_tensor_map(&mapped, ATTO_MAP_READ, &data));
    EXPECT_FAIL(atto__device_lose(dev, "clFinish: gone (%d)", -36), ATTO_E_LOST, "gone (-36)");
    EXPECT_FAIL(atto__device_lose(dev, "another reason"), ATTO_E_LOST, "gone (-36)");
    const struct atto_act_args a = { .x = &t, .y = &t, .act = atto_relu() };
    EXPECT_FAIL(atto_act_forward(dev, &a), ATTO_E_LOST, "gone (-36)");
    EXPECT_FAIL(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(3), &other), ATTO_E_LOST, "gone");
    EXPECT_FAIL(atto_tensor_read(&t, &value), ATTO_E_LOST, "gone");
    EXPECT_FAIL(atto_tensor_fill(&t, 1.0), ATTO_E_LOST, "gone");
    EXPECT_FAIL(atto_device_sync(dev), ATTO_E_LOST, "gone");
    EXPECT_FAIL(atto_kernel_launch(kernel, 1, NULL, 0), ATTO_E_LOST, "gone");
    EXPECT_FAIL(atto_kernel_create(dev, &source, &other_kernel), ATTO_E_LOST, "gone");
    EXPECT_FAIL(atto_tensor_map(&t, ATTO_MAP_READ, &data), ATTO_E_LOST, "gone");
    EXPECT_FAIL(atto_tensor_unmap(&mapped), ATTO_E_LOST, "gone"); /* and gives its memory back */
    EXPECT_FAIL(atto_tensor_unmap(&mapped), ATTO_E_STATE, "not mapped");
    atto_tensor_free(&mapped);
    atto_kernel_destroy(kernel);
    EXPECT_FAIL(atto_device_trim(dev), ATTO_E_LOST, "gone");
    assert_false(atto_device_supports(dev, ATTO_OP_ACT, ATTO_F32));
    atto_device_close(dev);
    atto_tensor_free(&t);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(state_data_errors_are_told_once_by_sync),
    cmocka_unit_test(state_data_errors_are_told_once_by_a_read),
    cmocka_unit_test(state_data_errors_that_a_sync_told_do_not_come_back),
    cmocka_unit_test(state_data_errors_reach_the_end_of_a_step),
    cmocka_unit_test(state_ops_without_data_errors_do_not_arm_the_word),
    cmocka_unit_test(state_a_lost_device_stays_lost),
};

TEST_MAIN("state", tests)
