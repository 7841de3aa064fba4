/* SPDX-License-Identifier: MIT */
/* The first steps of the MNIST network beside its PyTorch twin (examples/mnist/twin.py), and a
 * whole training in small: it learns, and a steady step waits for nothing and allocates nothing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"
#include "data.h"

enum { STEPS = 20, BATCH = 64 };

typedef struct lesson {
    mnist_data data;
    atto_module *net;
    atto_optimizer *sgd;
    atto_tape *tape;
    float images[BATCH * MNIST_PIXELS];
    int32_t labels[BATCH];
} lesson;

static lesson l; /* too large for a stack */

static void add_layer(int64_t in, int64_t out, float dropout)
{
    const atto_linear_options options = { .act = atto_relu(), .dropout = dropout };
    MUST(atto_sequential_linear(l.net, in, out, &options));
}

static void begin(float dropout)
{
    memset(&l, 0, sizeof l);
    MUST(mnist_load(MNIST_DATA_DIR, &l.data));
    atto_seed(test_dev, 1);
    MUST(atto_sequential_create(test_dev, &l.net));
    add_layer(MNIST_PIXELS, 512, dropout);
    add_layer(512, 256, dropout);
    MUST(atto_sequential_linear(l.net, 256, MNIST_CLASSES, NULL));
    MUST(atto_sgd_create(l.net, 0.1, NULL, &l.sgd));
    MUST(atto_tape_create(test_dev, &l.tape));
}

static void end(void)
{
    atto_tape_free(l.tape);
    atto_optimizer_free(l.sgd);
    atto_module_free(l.net);
    mnist_free(&l.data);
}

/* One step on the batch of that number; the loss is read only if wanted. */
static void step(int64_t number, float *loss)
{
    const int64_t first = number * BATCH % (l.data.train.count / BATCH * BATCH);
    assert_int_equal(mnist_batch(&l.data.train, NULL, first, BATCH, l.images, l.labels), BATCH);
    const atto_var x = atto_input(l.tape, ATTO_F32, atto_shape2(BATCH, MNIST_PIXELS), l.images);
    const atto_var t = atto_input(l.tape, ATTO_I32, atto_shape1(BATCH), l.labels);
    const atto_var e = atto_cross_entropy(l.tape, atto_apply(l.tape, l.net, x), t, NULL);
    if (loss) MUST(atto_var_read(l.tape, e, loss));
    MUST(atto_backward(l.tape, e));
    MUST(atto_optimizer_step(l.sgd, 0.1));
    MUST(atto_tape_end(l.tape));
}

static void read_wanted(double *wanted)
{
    char line[200];
    int count = 0;
    FILE *file = fopen(ATTO_GOLDEN_DIR "/mnist_twin.txt", "r");
    assert_non_null(file);
    while (count < STEPS && fgets(line, sizeof line, file))
        if (line[0] != '#' && line[0] != 't') wanted[count++] = strtod(line, NULL);
    fclose(file);
    assert_int_equal(count, STEPS);
}

/* Within 1e-4 of float64, relative: f32 rounds 20 updates of 535,818 weights. */
static void mnist_follows_its_pytorch_twin(void **state)
{
    (void)state;
    double wanted[STEPS];
    read_wanted(wanted);
    begin(0.0f);
    for (int i = 0; i < STEPS; i++) {
        float loss;
        step(i, &loss);
        if (!(fabs((double)loss / wanted[i] - 1.0) <= 1e-4))
            fail_msg("step %d: loss %.9g, PyTorch %.9g", i, (double)loss, wanted[i]);
    }
    end();
}

/* Nothing blocks, allocates or is packed once the first steps have been made; memory stays what it
 * is. */
static void mnist_steps_are_steady(void **state)
{
    (void)state;
    atto_device_stats before, after;
    begin(0.2f);
    for (int i = 0; i < 3; i++) step(i, NULL);
    MUST(atto_device_sync(test_dev));
    MUST(atto_device_stats_get(test_dev, &before));
    for (int i = 0; i < 30; i++) step(i, NULL);
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.allocations, before.allocations);
    assert_int_equal(after.hidden_copies, before.hidden_copies);
    assert_int_equal(after.fallbacks, before.fallbacks);
    assert_int_equal(after.bytes_reserved, before.bytes_reserved);
    assert_int_equal(after.bytes_live, before.bytes_live);
    assert_int_equal(after.blocking_calls, before.blocking_calls);
    end();
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(mnist_follows_its_pytorch_twin),
    cmocka_unit_test(mnist_steps_are_steady),
};
TEST_MAIN("example mnist_twin", tests)
