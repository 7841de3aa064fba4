/* SPDX-License-Identifier: MIT */
/* Learning-rate schedules. */
#include <attocl/schedule.h>

#include <math.h>
#include <stddef.h>

#include "train/optimizer.h"

#define PI 3.14159265358979323846

/* A step or a length. */
static int64_t at_least_0(int64_t count)
{
    return count > 0 ? count : 0;
}

double atto_schedule_step(int64_t step, int64_t every, double base, double gamma)
{
    const double now = (double)at_least_0(step);
    return base * pow(gamma, floor(now / (double)(every > 1 ? every : 1)));
}

double atto_schedule_multi_step(int64_t step, const int64_t *milestones, int32_t count, double base,
                                double gamma)
{
    const int64_t now = at_least_0(step);
    int32_t passed = 0;
    for (int32_t i = 0; milestones && i < count; i++) passed += milestones[i] <= now;
    return base * pow(gamma, passed);
}

double atto_schedule_exponential(int64_t step, double base, double gamma)
{
    return base * pow(gamma, (double)at_least_0(step));
}

double atto_schedule_linear(int64_t step, int64_t total, double from, double to)
{
    const int64_t now = at_least_0(step);
    if (now >= total) return to;
    return from + (to - from) * ((double)now / (double)total);
}

/* From start to end as part goes from 0 to 1. */
static double along_cosine(double start, double end, double part)
{
    return end + 0.5 * (start - end) * (1.0 + cos(PI * part));
}

static double along_line(double start, double end, double part)
{
    return start + (end - start) * part;
}

double atto_schedule_cosine(int64_t step, int64_t total, double base, double min)
{
    const double now = (double)at_least_0(step);
    return total < 1 ? base : along_cosine(base, min, now / (double)total);
}

double atto_schedule_warmup_cosine(int64_t step, int64_t warmup, int64_t total, double base,
                                   double min)
{
    const int64_t now = at_least_0(step), rise = at_least_0(warmup);
    if (now < rise) return base * ((double)now + 1.0) / (double)rise;
    if (now >= total) return min;
    return atto_schedule_cosine(now - rise, total - rise, base, min);
}

/* ---- one cycle ---- */

/* A stretch of the schedule that ends at that step. */
typedef struct phase {
    double end;
    double from, to;
} phase;

/* The value on the first phase that reaches the step; PyTorch's phases end between steps. */
static double on_phases(const phase *list, int32_t count, double step, bool linear)
{
    double start = 0.0;
    int32_t i = 0;
    for (; i < count - 1 && step > list[i].end; i++) start = list[i].end;
    const double length = list[i].end - start;
    const double part = length > 0.0 ? fmin((step - start) / length, 1.0) : 1.0;
    return linear ? along_line(list[i].from, list[i].to, part)
                  : along_cosine(list[i].from, list[i].to, part);
}

static double cycle(int64_t step, int64_t total, double first, double top, double last,
                    const atto_one_cycle_options *options)
{
    const double now = (double)at_least_0(step), n = (double)at_least_0(total);
    const double rise = atto__or_default(options->pct_start, 0.3) * n;
    const phase two[] = { { rise - 1.0, first, top }, { n - 1.0, top, last } };
    const phase three[] = { { rise - 1.0, first, top },
                            { 2.0 * rise - 2.0, top, first },
                            { n - 1.0, first, last } };
    return options->three_phase ? on_phases(three, 3, now, options->linear)
                                : on_phases(two, 2, now, options->linear);
}

double atto_schedule_one_cycle(int64_t step, int64_t total, double max,
                               const atto_one_cycle_options *options)
{
    const atto_one_cycle_options standard = { 0 };
    const atto_one_cycle_options *o = options ? options : &standard;
    const double first = max / atto__or_default(o->div_factor, 25.0);
    return cycle(step, total, first, max, first / atto__or_default(o->final_div_factor, 1e4), o);
}

double atto_schedule_one_cycle_momentum(int64_t step, int64_t total, double low, double high,
                                        const atto_one_cycle_options *options)
{
    const atto_one_cycle_options standard = { 0 };
    return cycle(step, total, high, low, high, options ? options : &standard);
}
