/* SPDX-License-Identifier: MIT */
/* Round numbers along an axis. */
#include "axis.h"

#include <math.h>

bool axis_drawable(double value)
{
    return fabs(value) <= AXIS_LIMIT; /* false for NaN */
}

void axis_range_add(axis_range *range, double value)
{
    if (!axis_drawable(value)) return;
    const bool first = range->low > range->high;
    if (first || value < range->low) range->low = value;
    if (first || value > range->high) range->high = value;
    range->whole = range->whole && value == floor(value);
}

/* A range too narrow for its numbers' digits, or for any, becomes wider. */
static axis_range widen(axis_range r)
{
    const double size = fmax(fabs(r.low), fabs(r.high));
    if (r.low > r.high) return (axis_range){ 0, 1, false };
    if (r.high - r.low > 1e-9 * size && r.high - r.low > 1e-300) return r;
    const double pad = r.whole && size < 1e6 ? 1 : size > 1e-290 ? 0.05 * size : 1;
    return (axis_range){ r.low - pad, r.high + pad, r.whole };
}

/* The smallest of 1, 2, 5, 10 times a power of ten that is at least x. */
static double round_step(double x)
{
    const double power = pow(10, floor(log10(x)));
    const double digits = x / power; /* in [1, 10), give or take a rounding */
    return (digits <= 1 ? 1 : digits <= 2 ? 2 : digits <= 5 ? 5 : 10) * power;
}

axis axis_around(axis_range range, bool whole_steps)
{
    const axis_range r = widen(range);
    double step = round_step((r.high - r.low) / 6);
    if (whole_steps && r.whole && step < 1) step = 1;
    return (axis){ step, (int64_t)floor(r.low / step), (int64_t)ceil(r.high / step) };
}

double axis_position(const axis *a, double value)
{
    return (value / a->step - (double)a->first) / (double)(a->last - a->first);
}
