/* SPDX-License-Identifier: MIT */
/* Optimisers from their definition, one element at a time, in double; and beside each number how
 * far an evaluation in f32 may be from it. */
#ifndef ORACLE_OPTIM_H
#define ORACLE_OPTIM_H

#include <stdbool.h>

typedef enum oracle_method { ORACLE_SGD, ORACLE_ADAM, ORACLE_ADAMW, ORACLE_RMSPROP } oracle_method;

typedef struct oracle_optim {
    oracle_method method;
    double weight_decay, momentum, dampening;
    double beta1, beta2, eps; /* RMSprop's alpha is beta2 */
    bool nesterov, centered, maximize;
} oracle_optim;

/* A number and the bound of its error in f32. */
typedef struct oracle_number {
    double value, error;
} oracle_number;

/* An element and what the optimiser remembers of it. Zero but for p at first. */
typedef struct oracle_element {
    oracle_number p, mean, square, buffer;
    int steps;
} oracle_element;

/* One step with the gradient g * factor; factor's own error is so many u = 2^-24 of it. */
void oracle_optim_step(const oracle_optim *o, oracle_element *e, double lr, double g, double factor,
                       double factor_roundings);

#endif
