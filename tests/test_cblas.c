/* SPDX-License-Identifier: MIT */
/* A BLAS that the user names takes the CPU backend's f32 products, and no others. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

#define M 20
#define N 1500 /* more than one run of a hook */
#define K 12

static atto_device *open_with(const char *cblas)
{
    atto_device *dev;
    const atto_device_options options = { .cblas = cblas };
    MUST(atto_device_open("cpu", &options, &dev));
    return dev;
}

static int32_t calls(void)
{
    void *library = dlopen(FAKE_CBLAS_PATH, RTLD_NOW);
    assert_non_null(library);
    const int *count = dlsym(library, "fake_cblas_calls");
    assert_non_null(count);
    return *count; /* stays loaded */
}

static void make(atto_device *dev, atto_dtype dtype, atto_shape shape, uint64_t seed,
                 test_tensor *out)
{
    double *values = malloc(M * N * sizeof *values);
    assert_non_null(values);
    test_tensor_make(out, dev, dtype, shape, LAYOUT_PITCHED);
    test_uniform(seed, -1.0, 1.0, dtype, values, out->numel);
    test_tensor_put(out, values);
    free(values);
}

enum { X, W, B, Y, DY, DX, DW, COUNT };

/* y, dx and dw of a layer, the gradients added to what is there. out: COUNT arrays of M * N. */
static void run_layer(atto_device *dev, atto_dtype dtype, double (*out)[M * N])
{
    const atto_shape shapes[COUNT] = { atto_shape2(M, K), atto_shape2(N, K), atto_shape1(N),
                                       atto_shape2(M, N), atto_shape2(M, N), atto_shape2(M, K),
                                       atto_shape2(N, K) };
    test_tensor t[COUNT];
    for (int i = 0; i < COUNT; i++) make(dev, dtype, shapes[i], (uint64_t)i, &t[i]);
    struct atto_linear_args a = {
        .x = &t[X].view, .w = &t[W].view, .b = &t[B].view, .y = &t[Y].view, .act = atto_relu()
    };
    MUST(atto_linear_forward(dev, &a));
    a = (struct atto_linear_args){ .x = &t[X].view,
                                   .w = &t[W].view,
                                   .dy = &t[DY].view,
                                   .dx = &t[DX].view,
                                   .dw = &t[DW].view,
                                   .add_dx = true,
                                   .add_dw = true };
    MUST(atto_linear_backward(dev, &a));
    for (int i = 0; i < COUNT; i++) {
        test_tensor_get(&t[i], out[i]);
        test_tensor_drop(&t[i]);
    }
}

/* Sums of at most N products of numbers up to 1: no two orders are further apart than N roundings
 * of N. */
static void expect_near(double (*a)[M * N], double (*b)[M * N])
{
    static const int sizes[COUNT] = { M * K, N * K, N, M * N, M * N, M * K, N * K };
    for (int i = 0; i < COUNT; i++)
        for (int j = 0; j < sizes[i]; j++)
            assert_float_equal(a[i][j], b[i][j], (i == DX ? N * N : M * M) * 0x1p-23);
}

static void cblas_multiplies_in_f32(void **state)
{
    (void)state;
    static double plain[COUNT][M * N], product[COUNT][M * N];
    atto_device *dev = open_with(NULL);
    run_layer(dev, ATTO_F32, plain);
    atto_device_close(dev);
    dev = open_with(FAKE_CBLAS_PATH);
    const int32_t before = calls();
    run_layer(dev, ATTO_F32, product);
    expect_near(plain, product);
    run_layer(dev, ATTO_F16, product);
    run_layer(dev, ATTO_BF16, product);
    assert_int_equal(calls() - before, 3);
    atto_device_close(dev);
}

static void cblas_that_cannot_be_used_is_an_error(void **state)
{
    (void)state;
    atto_device *dev;
    EXPECT_FAIL(atto_device_open("cpu", &(atto_device_options){ .cblas = "/no/such.so" }, &dev),
                ATTO_E_ARGUMENT, "ATTOCL_CBLAS|/no/such.so|cannot be opened");
    EXPECT_FAIL(atto_device_open("cpu", &(atto_device_options){ .cblas = "libm.so.6" }, &dev),
                ATTO_E_ARGUMENT, "libm.so.6|no cblas_sgemm");
    setenv("FAKE_CBLAS", "wrong", 1);
    EXPECT_FAIL(atto_device_open("cpu", &(atto_device_options){ .cblas = FAKE_CBLAS_PATH }, &dev),
                ATTO_E_DEVICE, "computes wrong numbers");
    unsetenv("FAKE_CBLAS");
    assert_null(dev);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(cblas_multiplies_in_f32),
    cmocka_unit_test(cblas_that_cannot_be_used_is_an_error),
};
TEST_MAIN_HOST("cblas", tests)
