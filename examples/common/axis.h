/* SPDX-License-Identifier: MIT */
/* Round numbers along an axis. */
#ifndef EXAMPLES_AXIS_H
#define EXAMPLES_AXIS_H

#include <stdbool.h>
#include <stdint.h>

/* Values beyond are drawn as gaps, like NaN: their differences could overflow. */
#define AXIS_LIMIT 1e300

/* Ticks are k * step for k = first ... last; the axis reaches from the first to the last. */
typedef struct axis {
    double step; /* 1, 2 or 5 times a power of ten */
    int64_t first, last;
} axis;

/* What values an axis must show. Start with axis_range_empty. */
typedef struct axis_range {
    double low, high; /* low > high: none yet */
    bool whole;       /* all of them are whole numbers */
} axis_range;

static inline axis_range axis_range_empty(void)
{
    return (axis_range){ 1, 0, true };
}

bool axis_drawable(double value);

/* Adds a value; gaps change nothing. */
void axis_range_add(axis_range *range, double value);

/* The axis with 2 to 9 ticks around a range. A constant lies in the middle; without any value the
 * axis goes from 0 to 1. With whole_steps the ticks of whole numbers are whole numbers. */
axis axis_around(axis_range range, bool whole_steps);

/* Where a value lies: 0 at the first tick, 1 at the last. */
double axis_position(const axis *a, double value);

#endif
