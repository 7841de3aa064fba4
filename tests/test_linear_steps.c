/* SPDX-License-Identifier: MIT */
/* Steps of forward and backward, as training makes them: the same bits every time, on any number of
 * threads, on several devices at once and after a fork, and no memory or waiting once warm. What
 * the bits must be is test_linear.c's business. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "atto_test.h"

/* ---- one layer ---- */

typedef struct layer_shape {
    atto_dtype dtype;
    int64_t m, n, k;
} layer_shape;

/* Several tiles in each dimension, sums long enough to be split, few rows, few columns. */
static const layer_shape shapes[] = {
    { ATTO_F32, 131, 67, 515 }, { ATTO_F16, 131, 67, 515 }, { ATTO_BF16, 128, 128, 128 },
    { ATTO_F32, 1, 130, 1031 }, { ATTO_F16, 8, 256, 512 },  { ATTO_BF16, 4099, 3, 5 },
};

enum { X, W, B, DY, INPUTS, Y = INPUTS, Z, DX, DW, DB, TENSORS };

typedef struct layer {
    atto_tensor t[TENSORS];
} layer;

/* t = numbers from [-1, 1), rounded to its dtype. */
static atto_status fill(atto_device *dev, const atto_tensor *t, uint64_t seed)
{
    const int64_t n = atto_tensor_numel(t);
    atto_tensor wide = { 0 };
    float *values = malloc((size_t)n * sizeof *values);
    if (!values) return ATTO_E_MEMORY;
    for (int64_t i = 0; i < n; i++)
        values[i] = (float)(int32_t)(test_random(&seed) >> 32) * 0x1p-31f;
    atto_status status = atto_tensor_alloc(dev, ATTO_F32, atto_shape_of(t->rank, t->shape), &wide);
    if (status == ATTO_OK) status = atto_tensor_write(&wide, values);
    if (status == ATTO_OK) status = atto_tensor_copy(t, &wide);
    atto_tensor_free(&wide);
    free(values);
    return status;
}

/* Statuses instead of cmocka's checks here and below: other threads and a forked child run this. */
static atto_status open_layer(atto_device *dev, const layer_shape *s, layer *l)
{
    const atto_shape x = atto_shape2(s->m, s->k), w = atto_shape2(s->n, s->k);
    const atto_shape y = atto_shape2(s->m, s->n), b = atto_shape1(s->n);
    const atto_shape all[TENSORS] = {
        [X] = x, [W] = w, [B] = b, [DY] = y, [Y] = y, [Z] = y, [DX] = x, [DW] = w, [DB] = b
    };
    atto_status status = ATTO_OK;
    memset(l, 0, sizeof *l);
    for (int i = 0; i < TENSORS && status == ATTO_OK; i++)
        status = atto_tensor_alloc(dev, s->dtype, all[i], &l->t[i]);
    for (int i = 0; i < INPUTS && status == ATTO_OK; i++) status = fill(dev, &l->t[i], (uint64_t)i);
    return status;
}

static void close_layer(layer *l)
{
    for (int i = 0; i < TENSORS; i++) atto_tensor_free(&l->t[i]);
}

static atto_status step(atto_device *dev, const layer *l)
{
    const atto_tensor *t = l->t;
    const struct atto_linear_args a = { .x = &t[X],
                                        .w = &t[W],
                                        .b = &t[B],
                                        .y = &t[Y],
                                        .z = &t[Z],
                                        .dy = &t[DY],
                                        .dx = &t[DX],
                                        .dw = &t[DW],
                                        .db = &t[DB],
                                        .act = atto_relu(),
                                        .dropout = 0.3f,
                                        .rng = { .seed = 9 } };
    const atto_status status = atto_linear_forward(dev, &a);
    return status == ATTO_OK ? atto_linear_backward(dev, &a) : status;
}

/* ---- its bits ---- */

#define MOST_BYTES (1 << 20)

typedef struct bits {
    size_t used;
    unsigned char bytes[MOST_BYTES]; /* of every output, one behind the other */
} bits;

static atto_status read_bits(const layer *l, bits *out)
{
    out->used = 0;
    for (int i = INPUTS; i < TENSORS; i++) {
        const size_t size = (size_t)atto_tensor_numel(&l->t[i]) * atto_dtype_size(l->t[i].dtype);
        if (size > MOST_BYTES - out->used) return ATTO_E_MEMORY;
        const atto_status status = atto_tensor_read(&l->t[i], out->bytes + out->used);
        if (status != ATTO_OK) return status;
        out->used += size;
    }
    return ATTO_OK;
}

/* Some steps of a new layer on a device, and what the last one left. */
static atto_status run_layer(atto_device *dev, const layer_shape *s, int steps, bits *out)
{
    layer l;
    atto_status status = open_layer(dev, s, &l);
    for (int i = 0; i < steps && status == ATTO_OK; i++) status = step(dev, &l);
    if (status == ATTO_OK) status = read_bits(&l, out);
    close_layer(&l);
    return status;
}

static bool same(const bits *a, const bits *b)
{
    return a->used > 0 && a->used == b->used && memcmp(a->bytes, b->bytes, a->used) == 0;
}

static bits first, again;

static void expect_same(const layer_shape *s, const char *what)
{
    if (!same(&first, &again))
        fail_msg("linear [%d,%d,%d] in %s on %s gave other bits %s", (int)s->m, (int)s->n,
                 (int)s->k, atto_dtype_name(s->dtype), test_backend(), what);
}

/* ---- the same bits ---- */

/* J1: also in memory that held something else before. */
static void linear_repeats_bit_for_bit(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(shapes); i++) {
        MUST(run_layer(test_dev, &shapes[i], 1, &first));
        for (int run = 0; run < 5; run++) {
            MUST(run_layer(test_dev, &shapes[i], 2, &again));
            expect_same(&shapes[i], "the next time");
        }
    }
}

static void linear_does_not_depend_on_the_number_of_threads(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        atto_device *dev;
        const atto_device_options options = { .num_threads = threads };
        MUST(atto_device_open(test_device_name(), &options, &dev));
        for (int i = 0; i < COUNT_OF(shapes); i++) {
            MUST(run_layer(test_dev, &shapes[i], 1, &first));
            MUST(run_layer(dev, &shapes[i], 1, &again));
            expect_same(&shapes[i], "with another number of threads");
        }
        atto_device_close(dev);
    }
}

typedef struct worker {
    atto_status status;
    bits got;
} worker;

static void *work(void *data)
{
    worker *w = data;
    atto_device *dev = NULL;
    w->status = atto_device_open(test_device_name(), NULL, &dev);
    if (w->status == ATTO_OK)
        w->status = run_layer(dev, &shapes[0], test_on_opencl() ? 2 : 10, &w->got);
    atto_device_close(dev);
    return NULL;
}

/* E1: each thread with a device of its own gets what one alone gets. */
static void linear_runs_on_many_devices_at_once(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    static worker workers[THREADS];
    pthread_t threads[THREADS];
    MUST(run_layer(test_dev, &shapes[0], 1, &first));
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(workers[i].status, ATTO_OK);
        assert_true(same(&first, &workers[i].got));
    }
}

/* E5: a forked child has none of its parent's threads, and must not wait for them. */
static void linear_works_in_a_forked_child(void **state)
{
    (void)state;
    if (test_on_opencl()) return; /* drivers do not survive a fork */
    MUST(run_layer(test_dev, &shapes[0], 1, &first));
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        alarm(60); /* a hang ends as a signal */
        const bool done = run_layer(test_dev, &shapes[0], 1, &again) == ATTO_OK;
        _exit(done && same(&first, &again) ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- what steps cost ---- */

static void expect_steady(const layer_shape *s)
{
    layer l;
    atto_device_stats before, after;
    MUST(open_layer(test_dev, s, &l));
    MUST(step(test_dev, &l));
    MUST(atto_device_sync(test_dev));
    MUST(atto_device_stats_get(test_dev, &before));
    for (int i = 0; i < 10; i++) MUST(step(test_dev, &l));
    MUST(atto_device_stats_get(test_dev, &after));
    MUST(atto_device_sync(test_dev));
    assert_int_equal(after.blocking_calls, before.blocking_calls);
    assert_int_equal(after.allocations, before.allocations);
    assert_int_equal(after.bytes_reserved, before.bytes_reserved);
    assert_int_equal(after.hidden_copies, before.hidden_copies);
    assert_int_equal(after.kernels_built, before.kernels_built);
    assert_int_equal(after.fallbacks, before.fallbacks);
    assert_true(after.launches >= before.launches + 20);
    close_layer(&l);
}

/* D4: after a first step, steps neither wait, allocate, build nor copy. */
static void linear_in_a_steady_state_costs_launches_only(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(shapes); i++) expect_steady(&shapes[i]);
}

/* D7: one row times a wide matrix needs no copy of the matrix: beyond the tensors themselves at
 * most 2 MiB, where w has 8. */
static void linear_of_a_wide_matrix_needs_little_scratch(void **state)
{
    (void)state;
    const layer_shape wide = { ATTO_F16, 1, 40, 110000 };
    atto_device *dev; /* with an empty pool */
    atto_device_stats before, after;
    layer l;
    MUST(atto_device_open(test_device_name(), NULL, &dev));
    MUST(open_layer(dev, &wide, &l));
    MUST(atto_device_trim(dev));
    MUST(atto_device_stats_get(dev, &before));
    MUST(step(dev, &l));
    MUST(atto_device_sync(dev));
    MUST(atto_device_stats_get(dev, &after));
    assert_in_range(after.bytes_reserved - before.bytes_reserved, 0, 2 << 20);
    close_layer(&l);
    atto_device_close(dev);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(linear_repeats_bit_for_bit),
    cmocka_unit_test(linear_does_not_depend_on_the_number_of_threads),
    cmocka_unit_test(linear_runs_on_many_devices_at_once),
    cmocka_unit_test(linear_works_in_a_forked_child),
    cmocka_unit_test(linear_in_a_steady_state_costs_launches_only),
    cmocka_unit_test(linear_of_a_wide_matrix_needs_little_scratch),
};
TEST_MAIN("linear_steps", tests)
