/* SPDX-License-Identifier: MIT */
/* The answers of pointwise losses and of nll_loss, in double. */
#ifndef ORACLE_LOSS_H
#define ORACLE_LOSS_H

#include "oracle.h"

/* One element's loss, and the size of the terms behind it (see atto_tol). a: beta, delta, or the
 * weight of the positive class; w: the element's weight. */
oracle_sum oracle_loss(atto_loss_kind kind, double x, double t, double a, double w);

/* Its derivative by x, or by the target, times g. */
oracle_sum oracle_loss_grad(atto_loss_kind kind, bool of_target, double x, double t, double a,
                            double w, double g);

/* Where the derivative jumps or its slope does: distances |x - t| of these. */
int oracle_loss_kinks(atto_loss_kind kind, double a, double kinks[2]);

/* nll_loss of x [outer, classes, step], position p = outer index * step + inner index. */
typedef struct oracle_nll {
    int64_t outer, classes, step;
    const double *x;
    const double *labels; /* one a position, whole numbers */
    const double *weight; /* [classes] or NULL */
    atto_reduction reduction;
    bool has_ignore;
    int64_t ignore;
    const double *dloss; /* one, or with ATTO_REDUCTION_NONE one a position */
} oracle_nll;

/* Arrays are the caller's. */
typedef struct oracle_nll_answer {
    double *each;            /* positions */
    double loss, loss_terms; /* the mean or the sum */
    double total;
    double *dx; /* like x */
} oracle_nll_answer;

void oracle_nll_loss(const oracle_nll *n, oracle_nll_answer *out);

#endif
