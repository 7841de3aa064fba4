/* SPDX-License-Identifier: MIT */
/* rope from its definition: a matrix of 2 x 2 blocks for each position, of which every element of a
 * result finds its two. */
#include "oracle_rope.h"

#include <math.h>

/* The element that is a pair with e, and whether e is the second of them. */
static int64_t partner_of(const oracle_rope *q, int64_t e)
{
    if (q->neighbours) return e % 2 ? e - 1 : e + 1;
    return e < q->pairs ? e + q->pairs : e - q->pairs;
}

static bool is_second(const oracle_rope *q, int64_t e)
{
    return partner_of(q, e) < e;
}

static int64_t column_of(const oracle_rope *q, int64_t e)
{
    return q->neighbours ? e / 2 : e % q->pairs;
}

/* Coefficient of x_from in y_to. */
static double coefficient(const oracle_rope *q, int64_t row, int64_t to, int64_t from)
{
    const int64_t at = row * q->pairs + column_of(q, to);
    if (to == from) return q->cos[at];
    return is_second(q, to) ? q->sin[at] : -q->sin[at];
}

/* -1 where there is none. */
static int64_t row_of(const oracle_rope *q, int64_t b, int64_t l)
{
    if (q->position_rank == 0) return q->offset + l;
    const double named = q->position[(q->position_rank == 2 ? b * q->length : 0) + l];
    return named >= 0.0 && named < (double)q->rows ? (int64_t)named : -1;
}

/* One head at one position; turned back, the matrix is transposed. */
static void turn(const oracle_rope *q, int64_t row, bool back, const double *in, double *out,
                 double *terms)
{
    for (int64_t e = 0; e < q->d; e++) {
        out[e] = row < 0 ? NAN : in[e];
        terms[e] = fabs(in[e]);
        if (row < 0 || e >= 2 * q->pairs) continue;
        const int64_t other = partner_of(q, e);
        const double own = coefficient(q, row, e, e) * in[e];
        const double more =
            (back ? coefficient(q, row, other, e) : coefficient(q, row, e, other)) * in[other];
        out[e] = own + more;
        terms[e] = fabs(own) + fabs(more);
    }
}

static void turn_all(const oracle_rope *q, bool back, const double *in, double *out, double *terms)
{
    for (int64_t b = 0; b < q->batches; b++)
        for (int64_t h = 0; h < q->heads; h++)
            for (int64_t l = 0; l < q->length; l++) {
                const int64_t at = ((b * q->heads + h) * q->length + l) * q->d;
                turn(q, row_of(q, b, l), back, in + at, out + at, terms + at);
            }
}

void oracle_rope_forward(const oracle_rope *q, const double *x, double *y, double *terms)
{
    turn_all(q, false, x, y, terms);
}

void oracle_rope_backward(const oracle_rope *q, const double *dy, double *dx, double *terms)
{
    turn_all(q, true, dy, dx, terms);
}
