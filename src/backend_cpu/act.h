/* SPDX-License-Identifier: MIT */
/* Loops over the activations, by kind. In and out may be the same block. */
#ifndef ATTO_CPU_ACT_H
#define ATTO_CPU_ACT_H

#include "backend_cpu/level.h"

typedef struct atto__act_loops {
    /* y = act(x) */
    void (*f)(const float *x, float *y, int32_t n, float a, float b);
    /* dx = act'(x) dy */
    void (*df)(const float *x, const float *dy, float *dx, int32_t n, float a, float b);
} atto__act_loops;

extern const atto__act_loops ATTO_LEVEL_NAME(act_loops)[];

#endif
