/* SPDX-License-Identifier: MIT */
/* What both backends derive from the arguments of cross-entropy. */
#ifndef ATTO_CROSS_ENTROPY_H
#define ATTO_CROSS_ENTROPY_H

#include <attocl/cross_entropy.h>

/* Bit of the device's error word: a label that is no class. */
#define ATTO_ERROR_LABEL 1u

/* x as [outer, classes, step]: position p = outer * step + inner. The target of class c is
 * weight[c] * (keep * t[c] + spread). */
typedef struct atto__cross_entropy {
    int64_t positions, classes, step;
    bool soft;     /* target holds probabilities */
    bool smoothed; /* labels, but every class has a share */
    float keep, spread;
} atto__cross_entropy;

static inline atto__cross_entropy atto__cross_entropy_of(const struct atto_cross_entropy_args *a)
{
    const int32_t class_dim = a->x->rank == 1 ? 0 : 1;
    atto__cross_entropy c = { 1, a->x->shape[class_dim], 1, false, false, 0.0f, 0.0f };
    for (int32_t d = 0; d < a->x->rank; d++) {
        if (d != class_dim) c.positions *= a->x->shape[d];
        if (d > class_dim) c.step *= a->x->shape[d];
    }
    c.soft = a->target->dtype != ATTO_I32 && a->target->dtype != ATTO_I64;
    c.smoothed = !c.soft && a->label_smoothing > 0.0f;
    c.keep = 1.0f - a->label_smoothing;
    c.spread = a->label_smoothing / (float)c.classes;
    return c;
}

#endif
