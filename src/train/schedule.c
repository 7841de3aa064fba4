/* SPDX-License-Identifier: MIT */
/* Learning-rate schedules. */
#include <attocl/schedule.h>

#include <math.h>
#include <stddef.h>

#define PI 3.14159265358979323846

static double at_least_0(int64_t step)
{
    return step > 0 ? (double)step : 0.0;
}

double atto_schedule_step(int64_t step, int64_t every, double base, double gamma)
{
    return base * pow(gamma, floor(at_least_0(step) / (double)(every > 1 ? every : 1)));
}

double atto_schedule_multi_step(int64_t step, const int64_t *milestones, int32_t count, double base,
                                double gamma)
{
    int32_t passed = 0;
    for (int32_t i = 0; milestones && i < count; i++) passed += milestones[i] <= step;
    return base * pow(gamma, passed);
}

double atto_schedule_exponential(int64_t step, double base, double gamma)
{
    return base * pow(gamma, at_least_0(step));
}

double atto_schedule_linear(int64_t step, int64_t total, double from, double to)
{
    if (step >= total) return to;
    return from + (to - from) * (at_least_0(step) / (double)total);
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
    return total < 1 ? base : along_cosine(base, min, at_least_0(step) / (double)total);
}

double atto_schedule_warmup_cosine(int64_t step, int64_t warmup, int64_t total, double base,
                                   double min)
{
    if (step < warmup) return base * (at_least_0(step) + 1.0) / (double)warmup;
    if (step >= total) return min;
    return atto_schedule_cosine(step - warmup, total - warmup, base, min);
}

/* ---- one cycle ---- */

/* A stretch of the schedule that ends at that step. */
typedef struct phase {
    double end;
    double from, to;
} phase;

static double or_default(double value, double standard)
{
    return value == 0.0 ? standard : value;
}

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
    const double n = (double)total;
    const double rise = or_default(options->pct_start, 0.3) * n;
    const phase two[] = { { rise - 1.0, first, top }, { n - 1.0, top, last } };
    const phase three[] = { { rise - 1.0, first, top },
                            { 2.0 * rise - 2.0, top, first },
                            { n - 1.0, first, last } };
    return options->three_phase ? on_phases(three, 3, at_least_0(step), options->linear)
                                : on_phases(two, 2, at_least_0(step), options->linear);
}

double atto_schedule_one_cycle(int64_t step, int64_t total, double max,
                               const atto_one_cycle_options *options)
{
    const atto_one_cycle_options standard = { 0 };
    const atto_one_cycle_options *o = options ? options : &standard;
    const double first = max / or_default(o->div_factor, 25.0);
    return cycle(step, total, first, max, first / or_default(o->final_div_factor, 1e4), o);
}

double atto_schedule_one_cycle_momentum(int64_t step, int64_t total, double low, double high,
                                        const atto_one_cycle_options *options)
{
    const atto_one_cycle_options standard = { 0 };
    return cycle(step, total, high, low, high, options ? options : &standard);
}
