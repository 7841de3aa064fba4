/* SPDX-License-Identifier: MIT */
/* Learning-rate schedules: pure functions of the step, with PyTorch's numbers.
 *
 *     atto_optimizer_step(opt, atto_schedule_cosine(i, steps, 1e-3, 0.0));
 *
 * step counts from 0: the value is the one that PyTorch's scheduler has after `step` calls of its
 * step(). A negative step or length is 0. Two schedules one after the other: choose by the step,
 * i < w ? atto_schedule_linear(i, w, base / 3, base) : atto_schedule_cosine(i - w, n - w, base,
 * 0). */
#ifndef ATTOCL_SCHEDULE_H
#define ATTOCL_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include <attocl/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** base gamma^floor(step / every): StepLR. every < 1 counts as 1. */
ATTO_API double atto_schedule_step(int64_t step, int64_t every, double base, double gamma);

/** base gamma^k, k = how many of the milestones are <= step: MultiStepLR. */
ATTO_API double atto_schedule_multi_step(int64_t step, const int64_t *milestones, int32_t count,
                                         double base, double gamma);

/** base gamma^step: ExponentialLR. */
ATTO_API double atto_schedule_exponential(int64_t step, double base, double gamma);

/** From `from` at step 0 to `to` at step total and after: LinearLR, as a warm-up. */
ATTO_API double atto_schedule_linear(int64_t step, int64_t total, double from, double to);

/** min + (base - min) (1 + cos(pi step / total)) / 2: CosineAnnealingLR. Beyond total it rises again,
 * as PyTorch's does. total < 1 gives base. */
ATTO_API double atto_schedule_cosine(int64_t step, int64_t total, double base, double min);

/** Linear from 0 at step -1 to base at step warmup - 1, so that no step is wasted, then cosine to min
 * at step total and after. */
ATTO_API double atto_schedule_warmup_cosine(int64_t step, int64_t warmup, int64_t total,
                                            double base, double min);

/** Options of the one-cycle schedule; zero is PyTorch's default. */
typedef struct atto_one_cycle_options {
    double pct_start;        /**< share of the steps that rise; 0 = 0.3 */
    double div_factor;       /**< the first value is max / this; 0 = 25 */
    double final_div_factor; /**< the last one is the first / this; 0 = 1e4 */
    bool linear;             /**< straight lines instead of cosines */
    bool three_phase;     /**< down to the first value in as many steps as up, then to the last */
    uint64_t reserved[4]; /**< must be 0 */
} atto_one_cycle_options;

/** Up from max / 25 to max over 0.3 of the total steps, then down: OneCycleLR. options may be NULL.
 * Steps from total on have the last value. */
ATTO_API double atto_schedule_one_cycle(int64_t step, int64_t total, double max,
                                        const atto_one_cycle_options *options);

/** The momentum (or beta1) that goes with it: from high (PyTorch: 0.95) down to low (0.85) and up
 * again, for atto_optimizer_set_momentum. */
ATTO_API double atto_schedule_one_cycle_momentum(int64_t step, int64_t total, double low,
                                                 double high,
                                                 const atto_one_cycle_options *options);

#ifdef __cplusplus
}
#endif

#endif
