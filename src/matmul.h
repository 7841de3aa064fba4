/* SPDX-License-Identifier: MIT */
/* A product of batches of matrices as both backends run it: from views that the op table's MATRICES
 * describes to sizes and strides.
 *
 *     c[i][j] (+)= sum over r of a(i, r) * b(j, r)        i < m, j < n, r < k
 *
 * for each index of the batch. Dimensions of the batch disappear where the strides allow it: into m
 * where b is the same for all of them, into n where a is, into k where c sums over them, and into
 * each other. So x [B, L, K] times w [K, N] is one product, and so are its gradients. */
#ifndef ATTO_MATMUL_H
#define ATTO_MATMUL_H

#include "layout.h"

/* A tensor of the product and its strides: first the two of a matrix, as a(i, r), b(j, r) and c(i,
 * j) name them, then those of the batch. A dimension of size 1 may have any. */
typedef struct atto__matrices {
    const atto_tensor *t;
    int64_t stride[2];
    int64_t batch[ATTO_MAX_RANK];
} atto__matrices;

/* Batch dimensions: first `kept` that c has, of which the last two are the largest, then `summed`
 * ones that it sums over. None has size 1. */
typedef struct atto__product {
    int64_t m, n, k;
    atto__matrices a, b, c;
    int32_t kept, summed;
    int64_t size[ATTO_MAX_RANK];
} atto__product;

/* c = a b, where a turned operand is stored transposed: a [m, k] or [k, m], b [k, n] or [n, k]. c
 * comes out with unit stride along j; m and n change places for that. */
void atto__product_of(atto__product *p, const atto_tensor *a, bool a_turned, const atto_tensor *b,
                      bool b_turned, const atto_tensor *c);

/* Elements from the first matrix to that of a row-major index of count dimensions from `first`. */
int64_t atto__product_at(const atto__product *p, const atto__matrices *x, int32_t first,
                         int32_t count, int64_t index);

/* How many such indices there are. */
int64_t atto__product_count(const atto__product *p, int32_t first, int32_t count);

/* c has no elements. */
bool atto__product_is_empty(const atto__product *p);

/* How an operand of that many rows i (or j) is stored: in rows along k, or across it; and how far
 * apart these rows are. */
bool atto__matrices_along_k(const atto__matrices *x, int64_t rows, int64_t k);
int64_t atto__matrices_pitch(const atto__matrices *x, int64_t rows, int64_t k);

#endif
