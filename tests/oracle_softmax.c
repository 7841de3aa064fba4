/* SPDX-License-Identifier: MIT */
/* Softmax and gated linear units from their definitions, in double. */
#include <math.h>

#include "oracle.h"

/* Element i of row r. */
static int64_t place(const oracle_softmax *s, int64_t r, int64_t i)
{
    return (r / s->step * s->size + i) * s->step + r % s->step;
}

static double argument(const oracle_softmax *s, int64_t r, int64_t i)
{
    const double x = s->x[place(s, r, i)];
    return s->kind == ATTO_SOFTMAX_MIN ? -x : x;
}

/* The row's maximum, the sum of e^(x - top), and the sum of (top - x) e^(x - top) for the
 * tolerance. NaN, and the difference of equal infinities, come through. */
typedef struct row_sums {
    double top, sum, weighted;
} row_sums;

static row_sums sums_of(const oracle_softmax *s, int64_t r)
{
    row_sums sums = { -INFINITY, 0.0, 0.0 };
    for (int64_t i = 0; i < s->size; i++) {
        const double x = argument(s, r, i);
        sums.top = x > sums.top || isnan(x) ? x : sums.top;
    }
    for (int64_t i = 0; i < s->size; i++) {
        const double below = sums.top - argument(s, r, i), e = exp(-below);
        sums.sum += e;
        if (e > 0.0) sums.weighted += below * e;
    }
    return sums;
}

/* Arguments of exponentials are rounded twice on the way, once for a lane's maximum and once for
 * the row's, and the sum's move it by their mean: roundings of which 8 are one of the k >= 16 that
 * tolerance.c counts. */
static void softmax_row(const oracle_softmax *s, int64_t r, double *y, double *terms)
{
    const row_sums sums = sums_of(s, r);
    const double mean = sums.weighted / sums.sum;
    for (int64_t i = 0; i < s->size; i++) {
        const int64_t at = place(s, r, i);
        const double x = argument(s, r, i) - sums.top, last = log(sums.sum);
        if (s->kind == ATTO_SOFTMAX_LOG) {
            y[at] = x - last;
            terms[at] = fabs(x) + fabs(last) + 1.0 + mean / 8.0;
        } else {
            y[at] = exp(x) / sums.sum;
            terms[at] = y[at] == 0.0 ? 0.0 : y[at] * (1.0 + (fabs(x) + mean) / 8.0);
        }
    }
}

static void gradient_row(const oracle_softmax *s, int64_t r, double *dx, double *terms)
{
    double sum = 0.0, size = 0.0;
    const bool is_log = s->kind == ATTO_SOFTMAX_LOG;
    for (int64_t i = 0; i < s->size; i++) {
        const int64_t at = place(s, r, i);
        const double term = is_log ? s->dy[at] : s->dy[at] * s->y[at];
        sum += term;
        size += fabs(term);
    }
    for (int64_t i = 0; i < s->size; i++) {
        const int64_t at = place(s, r, i);
        const double y = s->y[at], dy = s->dy[at];
        const double d = is_log ? dy - exp(y) * sum : y * (dy - sum);
        dx[at] = s->kind == ATTO_SOFTMAX_MIN ? -d : d;
        terms[at] = is_log ? fabs(dy) + exp(y) * size * (isinf(y) ? 1.0 : 1.0 + fabs(y) / 4.0)
                           : fabs(y) * (fabs(dy) + size);
    }
}

void oracle_softmax_forward(const oracle_softmax *s, double *y, double *terms)
{
    for (int64_t r = 0; r < s->outer * s->step; r++) softmax_row(s, r, y, terms);
}

void oracle_softmax_backward(const oracle_softmax *s, double *dx, double *terms)
{
    for (int64_t r = 0; r < s->outer * s->step; r++) gradient_row(s, r, dx, terms);
}

static const atto_rng no_rng;

void oracle_glu_forward(const oracle_glu *g, double *y, double *terms)
{
    for (int64_t o = 0; o < g->outer; o++)
        for (int64_t w = 0; w < g->width; w++) {
            const double a = g->x[2 * o * g->width + w], b = g->x[(2 * o + 1) * g->width + w];
            y[o * g->width + w] = a * oracle_act_forward(g->act, 0.0f, no_rng, 0, b);
            terms[o * g->width + w] = fabs(a) * oracle_act_terms(g->act, 0.0f, b);
        }
}

void oracle_glu_backward(const oracle_glu *g, double *dx, double *terms)
{
    for (int64_t o = 0; o < g->outer; o++)
        for (int64_t w = 0; w < g->width; w++) {
            const int64_t at_a = 2 * o * g->width + w, at_b = at_a + g->width;
            const double a = g->x[at_a], b = g->x[at_b], dy = g->dy[o * g->width + w];
            dx[at_a] = dy * oracle_act_forward(g->act, 0.0f, no_rng, 0, b);
            terms[at_a] = fabs(dy) * oracle_act_terms(g->act, 0.0f, b);
            dx[at_b] = oracle_act_backward(g->act, 0.0f, no_rng, 0, b, a * dy);
            terms[at_b] = oracle_act_grad_terms(g->act, 0.0f, b, a * dy);
        }
}
