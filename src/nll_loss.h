/* SPDX-License-Identifier: MIT */
/* What both backends derive from the arguments of nll_loss. */
#ifndef ATTO_NLL_LOSS_H
#define ATTO_NLL_LOSS_H

#include <attocl/nll_loss.h>

#include "cross_entropy.h" /* ATTO_ERROR_LABEL */

/* x or dx as [outer, classes, step]: position p = outer * step + inner. */
typedef struct atto__nll_loss {
    int64_t positions, classes, step;
} atto__nll_loss;

static inline atto__nll_loss atto__nll_loss_of(const atto_tensor *x)
{
    const int32_t class_dim = x->rank == 1 ? 0 : 1;
    atto__nll_loss n = { 1, x->shape[class_dim], 1 };
    for (int32_t d = 0; d < x->rank; d++) {
        if (d != class_dim) n.positions *= x->shape[d];
        if (d > class_dim) n.step *= x->shape[d];
    }
    return n;
}

#endif
