/* SPDX-License-Identifier: MIT */
/* Schedules: PyTorch's values (golden/optim.txt). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "optim_model.h"

static double schedule_value(const char *name, int64_t step)
{
    static const int64_t milestones[] = { 3, 11, 20 };
    const atto_one_cycle_options odd = { .pct_start = 0.21,
                                         .div_factor = 10.0,
                                         .final_div_factor = 100.0 };
    const atto_one_cycle_options linear = { .linear = true }, three = { .three_phase = true };
    if (strcmp(name, "step") == 0) return atto_schedule_step(step, 7, 0.5, 0.1);
    if (strcmp(name, "multi_step") == 0)
        return atto_schedule_multi_step(step, milestones, 3, 0.5, 0.3);
    if (strcmp(name, "exponential") == 0) return atto_schedule_exponential(step, 0.5, 0.9);
    if (strcmp(name, "linear") == 0) return atto_schedule_linear(step, 12, 0.5 / 3.0, 0.5);
    if (strcmp(name, "cosine") == 0) return atto_schedule_cosine(step, 25, 0.5, 0.01);
    if (strcmp(name, "one_cycle") == 0) return atto_schedule_one_cycle(step, 50, 0.8, NULL);
    if (strcmp(name, "one_cycle_odd") == 0) return atto_schedule_one_cycle(step, 37, 0.8, &odd);
    if (strcmp(name, "one_cycle_linear") == 0)
        return atto_schedule_one_cycle(step, 50, 0.8, &linear);
    if (strcmp(name, "one_cycle_three") == 0) return atto_schedule_one_cycle(step, 50, 0.8, &three);
    if (strcmp(name, "one_cycle_momentum") == 0)
        return atto_schedule_one_cycle_momentum(step, 50, 0.85, 0.95, NULL);
    golden_malformed(name);
    return 0.0;
}

/* PyTorch computes most of these step by step from the one before: a rounding of 2^-53 each. */
static void schedules_match_pytorch(void **state)
{
    (void)state;
    for (int i = 0; i < golden.schedule_count; i++) {
        const golden_schedule *s = &golden.schedules[i];
        for (int step = 0; step < s->steps; step++) {
            const double got = schedule_value(s->name, step), want = s->values[step];
            if (fabs(got - want) > 8 * (step + 1) * 0x1p-53 * 0.8)
                fail_msg("%s at step %d is %.17g, PyTorch has %.17g", s->name, step, got, want);
        }
    }
}

static void schedules_hold_at_their_ends(void **state)
{
    (void)state;
    assert_true(atto_schedule_step(-5, 0, 0.5, 0.1) == 0.5);
    assert_true(atto_schedule_step(3, 0, 1.0, 0.5) == 0.125);
    assert_true(atto_schedule_multi_step(5, NULL, 3, 0.5, 0.1) == 0.5);
    assert_true(atto_schedule_linear(0, 0, 0.1, 0.5) == 0.5);
    assert_true(atto_schedule_linear(100, 10, 0.1, 0.5) == 0.5);
    assert_true(atto_schedule_cosine(7, 0, 0.5, 0.1) == 0.5);
    assert_true(atto_schedule_one_cycle(99, 100, 1.0, NULL) ==
                atto_schedule_one_cycle(5000, 100, 1.0, NULL));
    assert_true(atto_schedule_one_cycle(0, 1, 1.0, NULL) > 0.0);
    assert_true(atto_schedule_warmup_cosine(0, 4, 12, 1.0, 0.0) == 0.25);
    assert_true(atto_schedule_warmup_cosine(3, 4, 12, 1.0, 0.0) == 1.0);
    assert_true(atto_schedule_warmup_cosine(4, 4, 12, 1.0, 0.0) == 1.0);
    assert_true(fabs(atto_schedule_warmup_cosine(8, 4, 12, 1.0, 0.5) - 0.75) < 1e-15);
    assert_true(atto_schedule_warmup_cosine(12, 4, 12, 1.0, 0.125) == 0.125);
}

static void schedules_take_a_negative_step_as_0(void **state)
{
    (void)state;
    static const int64_t steps[] = { -1, -5, INT64_MIN };
    static const char *const names[] = { "step",          "multi_step",
                                         "exponential",   "linear",
                                         "cosine",        "one_cycle",
                                         "one_cycle_odd", "one_cycle_momentum" };
    const int64_t first = 0;
    for (int i = 0; i < 3; i++) {
        const int64_t step = steps[i];
        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
            assert_true(schedule_value(names[k], step) == schedule_value(names[k], 0));
        assert_true(atto_schedule_multi_step(step, &first, 1, 1.0, 0.1) == 0.1);
        assert_true(atto_schedule_linear(step, 0, 1.0, 2.0) == 2.0);
        assert_true(atto_schedule_linear(step, -9, 1.0, 2.0) == 2.0);
        assert_true(atto_schedule_warmup_cosine(step, 4, 12, 1.0, 0.0) == 0.25);
        assert_true(atto_schedule_warmup_cosine(step, 0, 10, 1.0, 0.0) == 1.0);
        assert_true(atto_schedule_warmup_cosine(step, -3, 10, 1.0, 0.0) == 1.0);
        assert_true(atto_schedule_warmup_cosine(step, -9, -3, 1.0, 0.125) == 0.125);
    }
    assert_true(atto_schedule_warmup_cosine(5, INT64_MIN, INT64_MAX, 1.0, 0.0) == 1.0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(schedules_match_pytorch, golden_read),
    cmocka_unit_test(schedules_hold_at_their_ends),
    cmocka_unit_test(schedules_take_a_negative_step_as_0),
};

TEST_MAIN_HOST("schedule", tests)
