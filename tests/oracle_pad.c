/* SPDX-License-Identifier: MIT */
/* Padding from its definition: each axis is written down as a list, from its middle outwards. */
#include "oracle_pad.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { OUTSIDE = -1 };

atto_shape oracle_pad_shape(const oracle_pad *q)
{
    atto_shape y = q->x;
    for (int32_t d = 0; d < y.rank; d++) y.dim[d] += q->before[d] + q->after[d];
    return y;
}

/* What follows `steps` steps to the left of element 0, or to the right of the last one. */
static int64_t walk(atto_pad_kind mode, int64_t n, bool left, int64_t steps)
{
    switch (mode) {
    case ATTO_PAD_REFLECT: /* back the way it came, the edge left out */
        return left ? steps : n - 1 - steps;
    case ATTO_PAD_REPLICATE:
        return left ? 0 : n - 1;
    case ATTO_PAD_CIRCULAR: /* in at the other end */
        return left ? n - steps : steps - 1;
    default:
        return OUTSIDE;
    }
}

/* list[o]: x's place for y's place o. */
static int64_t *list_of(const oracle_pad *q, int32_t d)
{
    const int64_t n = q->x.dim[d], before = q->before[d], out = n + before + q->after[d];
    int64_t *list = malloc((size_t)(out > 0 ? out : 1) * sizeof *list);
    for (int64_t o = 0; o < out; o++) {
        const int64_t i = o - before;
        list[o] = i < 0    ? walk(q->mode, n, true, -i)
                  : i >= n ? walk(q->mode, n, false, i - n + 1)
                           : i;
    }
    return list;
}

static int64_t size_of(atto_shape s)
{
    int64_t n = 1;
    for (int32_t d = 0; d < s.rank; d++) n *= s.dim[d];
    return n;
}

/* x's element for each of y's, or OUTSIDE. */
static int64_t *sources_of(const oracle_pad *q)
{
    const atto_shape y = oracle_pad_shape(q);
    const int64_t n = size_of(y);
    int64_t *from = malloc((size_t)(n > 0 ? n : 1) * sizeof *from);
    int64_t *lists[ATTO_MAX_RANK];
    for (int32_t d = 0; d < y.rank; d++) lists[d] = list_of(q, d);
    for (int64_t o = 0; o < n; o++) {
        int64_t rest = o, step = 1, at = 0;
        for (int32_t d = y.rank - 1; d >= 0; d--) {
            const int64_t i = lists[d][rest % y.dim[d]];
            at = i == OUTSIDE || at == OUTSIDE ? OUTSIDE : at + i * step;
            rest /= y.dim[d];
            step *= q->x.dim[d];
        }
        from[o] = at;
    }
    for (int32_t d = 0; d < y.rank; d++) free(lists[d]);
    return from;
}

void oracle_pad_forward(const oracle_pad *q, const double *x, double *y)
{
    const int64_t n = size_of(oracle_pad_shape(q));
    int64_t *from = sources_of(q);
    for (int64_t o = 0; o < n; o++) y[o] = from[o] == OUTSIDE ? q->value : x[from[o]];
    free(from);
}

int64_t oracle_pad_backward(const oracle_pad *q, const double *dy, double *dx, double *terms)
{
    const int64_t n = size_of(oracle_pad_shape(q)), m = size_of(q->x);
    int64_t *from = sources_of(q), *count = calloc((size_t)m + 1, sizeof *count), most = 1;
    for (int64_t i = 0; i < m; i++) dx[i] = terms[i] = 0.0;
    for (int64_t o = 0; o < n; o++) {
        if (from[o] == OUTSIDE) continue;
        dx[from[o]] += dy[o];
        terms[from[o]] += fabs(dy[o]);
        if (++count[from[o]] > most) most = count[from[o]];
    }
    free(from);
    free(count);
    return most;
}
