/* SPDX-License-Identifier: MIT */
/* Linear, forward and backward. */
#include "atto_test.h"

static void linear_of_two_features_is_right(void **state)
{
    (void)state;
    const float x[] = { 1.0f, 2.0f }, w[] = { 3.0f, 4.0f, -5.0f, 6.0f }, b[] = { 0.5f, -0.5f };
    float y[2];
    atto_tensor tx, tw, tb, ty;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(2), &tx));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(2, 2), &tw));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(2), &tb));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(2), &ty));
    MUST(atto_tensor_write(&tx, x));
    MUST(atto_tensor_write(&tw, w));
    MUST(atto_tensor_write(&tb, b));
    const struct atto_linear_args a = { .x = &tx, .w = &tw, .b = &tb, .y = &ty };
    MUST(atto_linear_forward(test_dev, &a));
    MUST(atto_tensor_read(&ty, y));
    assert_true(y[0] == 11.5f && y[1] == 6.5f);
    atto_tensor_free(&tx);
    atto_tensor_free(&tw);
    atto_tensor_free(&tb);
    atto_tensor_free(&ty);
}

static const struct CMUnitTest tests[] = { cmocka_unit_test(linear_of_two_features_is_right) };
TEST_MAIN("linear", tests)
