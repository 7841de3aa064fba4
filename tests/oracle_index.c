/* SPDX-License-Identifier: MIT */
/* index_select and gather from their definitions: every element of y works out for itself which
 * element of x it is, by its coordinates. */
#include "oracle_index.h"

#include <math.h>

static int64_t count_of(atto_shape shape)
{
    int64_t n = 1;
    for (int32_t d = 0; d < shape.rank; d++) n *= shape.dim[d];
    return n;
}

/* Coordinates of element `at`, and back. */
static void coordinates(atto_shape shape, int64_t at, int64_t *c)
{
    for (int32_t d = shape.rank - 1; d >= 0; d--) {
        c[d] = at % shape.dim[d];
        at /= shape.dim[d];
    }
}

static int64_t element(atto_shape shape, const int64_t *c)
{
    int64_t at = 0;
    for (int32_t d = 0; d < shape.rank; d++) at = at * shape.dim[d] + c[d];
    return at;
}

static void begin(const oracle_index *q, oracle_index_answer *a)
{
    a->most = 0;
    for (int64_t i = 0; q->dy && i < count_of(q->x); i++)
        a->dx[i] = a->dx_terms[i] = a->dx_count[i] = 0.0;
}

/* Element `at` of y is that of x with coordinates c, but named along dim. */
static void one(const oracle_index *q, oracle_index_answer *a, int64_t at, int64_t *c, double named)
{
    const int64_t rows = q->x.dim[q->dim];
    if (!(named >= 0.0 && named < (double)rows)) {
        a->y[at] = NAN;
        return;
    }
    c[q->dim] = (int64_t)named;
    const int64_t i = element(q->x, c);
    a->y[at] = q->values[i];
    if (!q->dy || (q->has_padding && c[q->dim] == q->padding)) return;
    a->dx[i] += q->dy[at];
    a->dx_terms[i] += fabs(q->dy[at]);
    a->dx_count[i] += 1.0;
    if (a->dx_count[i] > (double)a->most) a->most = (int64_t)a->dx_count[i];
}

void oracle_index_select(const oracle_index *q, oracle_index_answer *a)
{
    int64_t c[2 * ATTO_MAX_RANK], of_x[ATTO_MAX_RANK];
    atto_shape y = { .rank = 0 };
    for (int32_t d = 0; d < q->dim; d++) y.dim[y.rank++] = q->x.dim[d];
    for (int32_t d = 0; d < q->shape.rank; d++) y.dim[y.rank++] = q->shape.dim[d];
    for (int32_t d = q->dim + 1; d < q->x.rank; d++) y.dim[y.rank++] = q->x.dim[d];
    begin(q, a);
    for (int64_t at = 0; at < count_of(y); at++) {
        coordinates(y, at, c);
        for (int32_t d = 0; d < q->x.rank; d++)
            of_x[d] = d < q->dim ? c[d] : d > q->dim ? c[d - 1 + q->shape.rank] : 0;
        one(q, a, at, of_x, q->index[element(q->shape, c + q->dim)]);
    }
}

void oracle_gather(const oracle_index *q, oracle_index_answer *a)
{
    int64_t c[ATTO_MAX_RANK];
    begin(q, a);
    for (int64_t at = 0; at < count_of(q->shape); at++) {
        coordinates(q->shape, at, c);
        one(q, a, at, c, q->index[at]);
    }
}
