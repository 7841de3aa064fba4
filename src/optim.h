/* SPDX-License-Identifier: MIT */
/* What an optimiser step tells a backend. cl/atto_optim.h describes the tables. */
#ifndef ATTO_OPTIM_ARGS_H
#define ATTO_OPTIM_ARGS_H

#include <stdbool.h>

#include <attocl/tensor.h>

#include "cl/atto_optim.h"

/* At most: RMSprop's square average, average and buffer. */
#define ATTO_OPTIM_STATES 3

/* The method as the kernels know it at compile time. */
typedef struct atto__optim_method {
    int32_t kind; /* ATTO_OPTIM_SGD, ... */
    bool has_momentum;
    bool centered;
} atto__optim_method;

/* Whether the method keeps state i of each element: SGD 0 = buffer; Adam 0 = m, 1 = v; RMSprop 0 =
 * v, 1 = average, 2 = buffer. */
static inline bool atto__optim_keeps(const atto__optim_method *method, int32_t i)
{
    switch (method->kind) {
    case ATTO_OPTIM_SGD:
        return i == 0 && method->has_momentum;
    case ATTO_OPTIM_ADAM:
        return i < 2;
    default:
        return i == 0 || (i == 1 && method->centered) || (i == 2 && method->has_momentum);
    }
}

/* The optimiser's numbers, the same for every element. RMSprop's alpha is beta2. */
typedef struct atto__optim_numbers {
    float momentum;
    float weight1; /* 1 - beta1, rounded once */
    float beta2;
    float weight2;
    float eps;
    bool nesterov;
    float ln_beta1, ln_beta2; /* of the bias corrections; -INFINITY: none */
    float fresh;              /* 1 - dampening */
    float growth, backoff, growth_interval;
} atto__optim_numbers;

struct atto__optim_args {
    atto__optim_method method;
    atto__optim_numbers numbers;

    /* begin: the step's own numbers, and tables of all segments */
    uint32_t mode; /* bits ATTO_OPTIM_MEASURES, ... */
    float lr;
    float max_norm;
    int64_t segments;
    int64_t spans; /* partials of all chunks together */
    const atto_tensor *flags, *group_of, *groups, *steps, *coefficients, *partials, *control;

    /* norm and step: one chunk. Everything starts at the front of its buffer. */
    int64_t blocks;
    int64_t first_span; /* where the chunk's partials go */
    const atto_tensor *segment_of;
    const atto_tensor *value;                    /* f32, f16 or bf16 */
    const atto_tensor *grad;                     /* like value */
    const atto_tensor *master;                   /* f32; NULL when value is f32 */
    const atto_tensor *state[ATTO_OPTIM_STATES]; /* f32; NULL where the method keeps none */
    const atto_tensor *shadow; /* the value in f16 or bf16, for autocast; NULL when there is none,
                                  as of values that are not f32 */
};

#endif
