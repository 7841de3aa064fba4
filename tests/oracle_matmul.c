/* SPDX-License-Identifier: MIT */
/* Products of batches of matrices in double, by index alone: for each element of the batch it asks
 * which matrix of each operand belongs to it. */
#include "oracle.h"

#include <math.h>
#include <string.h>

/* Number of the matrix that the batch's index (row-major over `batch`) selects in an operand whose
 * batch has the sizes `own`, aligned at the right; size 1 is repeated. */
static int64_t matrix_at(const atto_shape *batch, const atto_shape *own, int64_t index)
{
    int64_t at = 0, step = 1;
    for (int32_t i = 1; i <= batch->rank; i++) {
        const int64_t size = batch->dim[batch->rank - i];
        const int64_t digit = index % size;
        index /= size;
        if (i > own->rank) continue;
        const int64_t mine = own->dim[own->rank - i];
        if (mine != 1) at += digit * step;
        step *= mine;
    }
    return at;
}

static int64_t numel(const atto_shape *s)
{
    int64_t n = 1;
    for (int32_t d = 0; d < s->rank; d++) n *= s->dim[d];
    return n;
}

static void add(oracle_sum *sum, double x, double y)
{
    const double term = x * y;
    sum->value += term;
    sum->terms += fabs(term);
}

static void clear(oracle_sum *sums, int64_t n)
{
    if (sums) memset(sums, 0, (size_t)n * sizeof *sums);
}

void oracle_matmul_product(const oracle_matmul *o, oracle_sum *y, oracle_sum *da, oracle_sum *db)
{
    const int64_t m = o->m, n = o->n, k = o->k, count = numel(&o->batch);
    clear(y, count * m * n);
    clear(da, numel(&o->a_batch) * m * k);
    clear(db, numel(&o->b_batch) * k * n);
    for (int64_t index = 0; index < count; index++) {
        const int64_t a0 = matrix_at(&o->batch, &o->a_batch, index) * m * k;
        const int64_t b0 = matrix_at(&o->batch, &o->b_batch, index) * k * n, y0 = index * m * n;
        for (int64_t i = 0; i < m; i++)
            for (int64_t r = 0; r < k; r++)
                for (int64_t j = 0; j < n; j++) {
                    const int64_t at = a0 + i * k + r, bt = b0 + r * n + j, yt = y0 + i * n + j;
                    if (y) add(&y[yt], o->a[at], o->b[bt]);
                    if (da) add(&da[at], o->dy[yt], o->b[bt]);
                    if (db) add(&db[bt], o->a[at], o->dy[yt]);
                }
    }
}
