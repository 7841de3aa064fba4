/* SPDX-License-Identifier: MIT */
/* The answers of index_select and gather, in double. */
#ifndef ORACLE_INDEX_H
#define ORACLE_INDEX_H

#include "oracle.h"

/* Indices are whole numbers, of any size; one that names nothing gives NaN, and adds nothing. */
typedef struct oracle_index {
    atto_shape x;     /* shape of x and of dx */
    atto_shape shape; /* of the index */
    int32_t dim;      /* from 0 */
    bool has_padding; /* index_select */
    int64_t padding;
    const double *index;
    const double *values; /* x */
    const double *dy;     /* NULL: no gradient is wanted */
} oracle_index;

/* Arrays are the caller's. terms: the sizes of what is added up; most: the largest number of terms
 * in an element. */
typedef struct oracle_index_answer {
    double *y;
    double *dx, *dx_terms, *dx_count; /* like x */
    int64_t most;
} oracle_index_answer;

/* y is [x before dim, index, x behind dim]. */
void oracle_index_select(const oracle_index *q, oracle_index_answer *a);

/* y is shaped like the index, which has x's rank. */
void oracle_gather(const oracle_index *q, oracle_index_answer *a);

#endif
