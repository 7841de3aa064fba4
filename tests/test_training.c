/* SPDX-License-Identifier: MIT */
/* Long trainings: memory stays what it is, and a network learns. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "atto_test.h"

enum { BATCH = 16, FEATURES = 8, HIDDEN = 16, CLASSES = 4 };

typedef struct school {
    atto_module *net, *loss;
    atto_optimizer *opt;
    atto_tape *tape;
    uint64_t random;
} school;

static void open_school(school *s)
{
    memset(s, 0, sizeof *s);
    atto_seed(test_dev, 3);
    MUST(atto_sequential_create(test_dev, &s->net));
    MUST(atto_sequential_linear(s->net, FEATURES, HIDDEN,
                                &(atto_linear_options){ .act = atto_gelu(), .dropout = 0.1f }));
    MUST(atto_sequential_linear(s->net, HIDDEN, CLASSES, NULL));
    MUST(atto_cross_entropy_loss_create(test_dev, NULL, &s->loss));
    MUST(atto_adamw_create(s->net, 1e-2, 0.01, NULL, &s->opt));
    MUST(atto_optimizer_clip_norm(s->opt, 1.0));
    MUST(atto_tape_create(test_dev, &s->tape));
}

static void close_school(school *s)
{
    atto_tape_free(s->tape);
    atto_optimizer_free(s->opt);
    atto_module_free(s->loss);
    atto_module_free(s->net);
}

/* The class is the largest of the first four features. */
static void draw(school *s, float *x, int32_t *labels)
{
    for (int i = 0; i < BATCH; i++) {
        float *row = x + i * FEATURES;
        labels[i] = 0;
        for (int k = 0; k < FEATURES; k++) {
            row[k] = (float)(test_random(&s->random) >> 40) / 8388608.0f - 1.0f;
            if (k < CLASSES && row[k] > row[labels[i]]) labels[i] = k;
        }
    }
}

static void step(school *s, float *loss)
{
    float x[BATCH * FEATURES];
    int32_t labels[BATCH];
    draw(s, x, labels);
    const atto_var input = atto_input(s->tape, ATTO_F32, atto_shape2(BATCH, FEATURES), x);
    const atto_var target = atto_input(s->tape, ATTO_I32, atto_shape1(BATCH), labels);
    const atto_var e = atto_apply2(s->tape, s->loss, atto_apply(s->tape, s->net, input), target);
    if (loss) MUST(atto_var_read(s->tape, e, loss));
    MUST(atto_backward(s->tape, e));
    MUST(atto_optimizer_step(s->opt, 1e-2));
    MUST(atto_tape_end(s->tape));
}

/* Sanitizers hold freed memory back, so that it is seen when it is used again. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define FREED_MEMORY_STAYS 1
#else
#define FREED_MEMORY_STAYS 0
#endif

/* Resident bytes of this process; 0 where the system does not say. */
static int64_t resident_bytes(void)
{
#ifdef _WIN32
    return 0;
#else
    long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%*s %lld", &pages) != 1) pages = 0;
    if (file) fclose(file);
    return pages * (int64_t)sysconf(_SC_PAGESIZE);
#endif
}

/* Waits now and then, as a program that shows the loss: what a driver has queued takes memory. */
static void steps(school *s, int count)
{
    for (int i = 0; i < count; i++) {
        step(s, NULL);
        if (i % 50 == 49) MUST(atto_device_sync(test_dev));
    }
}

/* D4: 20,000 steps; in the first 2,000 drivers still find room for what they keep. */
static void training_of_20000_steps_keeps_its_memory(void **state)
{
    (void)state;
    school s;
    atto_device_stats before, after;
    open_school(&s);
    steps(&s, 2000);
    MUST(atto_device_stats_get(test_dev, &before));
    const int64_t resident = resident_bytes();
    steps(&s, 18000);
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.bytes_reserved, before.bytes_reserved);
    assert_int_equal(after.allocations, before.allocations);
    if (FREED_MEMORY_STAYS) {
        print_message("resident memory not checked: a sanitizer holds back what was freed\n");
    } else {
        assert_true(resident_bytes() - resident < (1 << 20));
    }
    close_school(&s);
}

static void training_learns(void **state)
{
    (void)state;
    school s;
    float first, last = 0.0f, sum = 0.0f;
    open_school(&s);
    step(&s, &first);
    for (int i = 0; i < 400; i++) {
        step(&s, &last);
        if (i >= 380) sum += last / 20.0f;
    }
    assert_true(first > 1.0f && first < 2.0f); /* near ln 4 */
    assert_true(sum < 0.5f);
    close_school(&s);
}

/* Appends a parameter's values; data points to where. */
static atto_status look(void *data, const char *key, atto_param *p)
{
    float **at = data, *values = *at;
    const atto_tensor value = atto_param_value(p);
    (void)key;
    *at += atto_tensor_numel(&value);
    return atto_param_read(p, values);
}

/* I1: no rows go through the network, back, and into a step; the mean over nothing is NaN, every
 * gradient is 0, and parameters stay what they are. */
static void training_of_an_empty_batch_changes_nothing(void **state)
{
    (void)state;
    enum { COUNT = HIDDEN * FEATURES + HIDDEN + CLASSES * HIDDEN + CLASSES };
    static float before[COUNT], after[COUNT];
    float *at = before, loss;
    school s;
    open_school(&s);
    atto_optimizer_free(s.opt);
    MUST(atto_sgd_create(s.net, 0.5, NULL, &s.opt));
    MUST(atto_module_params(s.net, look, &at));
    assert_true(at == before + COUNT);
    for (int round = 0; round < 3; round++) {
        const atto_var x = atto_input(s.tape, ATTO_F32, atto_shape2(0, FEATURES), before);
        const atto_var t = atto_input(s.tape, ATTO_I32, atto_shape1(0), before);
        const atto_var e = atto_apply2(s.tape, s.loss, atto_apply(s.tape, s.net, x), t);
        MUST(atto_var_read(s.tape, e, &loss));
        assert_true(isnan(loss));
        MUST(atto_backward(s.tape, e));
        MUST(atto_optimizer_step(s.opt, 0.5));
        MUST(atto_tape_end(s.tape));
    }
    at = after;
    MUST(atto_module_params(s.net, look, &at));
    assert_memory_equal(before, after, sizeof before);
    close_school(&s);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(training_of_an_empty_batch_changes_nothing),
    cmocka_unit_test(training_of_20000_steps_keeps_its_memory),
    cmocka_unit_test(training_learns),
};
TEST_MAIN("training", tests)
