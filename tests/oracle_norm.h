/* SPDX-License-Identifier: MIT */
/* The answers of the normalisations, in double. */
#ifndef ORACLE_NORM_H
#define ORACLE_NORM_H

#include "oracle.h"

/* Rows of cols elements, each normalised by itself. */
typedef struct oracle_row_norm {
    int64_t rows, cols;
    bool centred; /* layer norm; else RMS norm */
    double eps;
    const double *x, *w, *b, *dy; /* w, b NULL = 1, 0 */
} oracle_row_norm;

/* Results, and the size of the terms behind each (see atto_tol). Arrays are the caller's. */
typedef struct oracle_row_norm_answer {
    double *mean, *rstd; /* [rows] */
    double *y, *y_terms, *dx, *dx_terms;
    double *dw, *dw_terms, *db, *db_terms; /* [cols] */
} oracle_row_norm_answer;

void oracle_row_norm_of(const oracle_row_norm *c, oracle_row_norm_answer *out);

/* Batch norm of x [n, channels, size]. */
typedef struct oracle_batch_norm {
    int64_t n, channels, size;
    const double *x, *w, *b, *residual, *dy;  /* w, b, residual NULL = 1, 0, 0 */
    const double *running_mean, *running_var; /* [channels]; NULL = none */
    atto_activation act;
    bool training;
    double share; /* of the batch in the running statistics */
    double eps;
} oracle_batch_norm;

typedef struct oracle_batch_norm_answer {
    double *mean, *rstd, *running_mean, *running_var;    /* [channels]; running ones afterwards */
    double *y, *y_terms, *dx, *dx_terms, *dz, *dz_terms; /* like x; dz is dresidual */
    double *dw, *dw_terms, *db, *db_terms;               /* [channels] */
} oracle_batch_norm_answer;

/* Group norm of x [n, channels, size]: the answers of rows, with parameters by channel. */
typedef struct oracle_group_norm {
    int64_t n, channels, size, groups;
    const double *x, *w, *b, *dy;
    double eps;
} oracle_group_norm;

/* mean and rstd are [n, groups], dw and db [channels]. */
void oracle_group_norm_of(const oracle_group_norm *c, oracle_row_norm_answer *out);

void oracle_batch_norm_of(const oracle_batch_norm *c, oracle_batch_norm_answer *out);

#endif
