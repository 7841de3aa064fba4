/* SPDX-License-Identifier: MIT */
/* Resizing from its definition: each output asks every element how far away it is. */
#include "oracle_resize.h"

#include <math.h>
#include <stdlib.h>

/* Coordinates are f32's, as PyTorch's are. nearest: their rounding decides which element it is, so
 * they are computed thus here. linear: here they are exact, and what f32's are off by counts: the
 * scale 1, its product with the place 1, the place 1, the difference 1, all of them of the
 * coordinate and 1. A share is off by as much, and by 1; an output by shares times how far the
 * elements around are apart; a gradient by shares times dy, also where a coordinate is so near to
 * the next element that this gets a share. Beside them: for each axis a difference, products 2, a
 * sum 1. */
enum { COORDINATE = 4, PRODUCTS = 8 };

/* An axis: x's place for each of y's. */
typedef struct axis {
    int64_t in, out;
    bool nearest, aligned;
    double scale;
} axis;

static double place_of(const axis *a, int64_t o)
{
    /* PyTorch looks at no scale then. */
    if (a->in == a->out) return (double)o;
    if (a->nearest && a->out == 2 * a->in) return (double)(o / 2);
    if (a->nearest) {
        const float step = a->scale > 0.0 ? (float)(1.0 / a->scale) : (float)a->in / (float)a->out;
        volatile const float at = (float)o * step;
        return fmin(floor((double)at), (double)(a->in - 1));
    }
    double at;
    if (a->aligned)
        at = a->out > 1 ? (double)o * (double)(a->in - 1) / (double)(a->out - 1) : 0.0;
    else if (a->scale > 0.0)
        at = ((double)o + 0.5) / a->scale - 0.5;
    else
        at = ((double)o + 0.5) * (double)a->in / (double)a->out - 0.5;
    return fmin(fmax(at, 0.0), (double)(a->in - 1));
}

/* What o has of element i: a triangle around the place. */
static double share_of(double place, int64_t i)
{
    const double away = fabs(place - (double)i);
    return away < 1.0 ? 1.0 - away : 0.0;
}

static double off_of(const axis *a, double place)
{
    return a->nearest || a->in == 1 ? 0.0 : COORDINATE * (place + 1.0) + 1.0;
}

static void axes_of(const oracle_resize *q, axis *h, axis *w)
{
    const bool nearest = q->mode == ATTO_RESIZE_NEAREST;
    *h = (axis){ q->h, q->oh, nearest, q->align_corners, q->scale[0] };
    *w = (axis){ q->w, q->ow, nearest, q->align_corners, q->scale[1] };
}

/* Elements that may have a share in a place. */
static void around(const axis *a, double place, int64_t *first, int64_t *last)
{
    *first = (int64_t)place - 1 < 0 ? 0 : (int64_t)place - 1;
    *last = (int64_t)place + 2 < a->in ? (int64_t)place + 2 : a->in - 1;
}

/* x of one plane, around that place. */
static void forward_one(const axis *h, const axis *w, const double *x, double row, double column,
                        double *y, double *terms)
{
    int64_t top, bottom, left, right;
    double sum = 0.0, size = 0.0, least = INFINITY, most = -INFINITY;
    around(h, row, &top, &bottom);
    around(w, column, &left, &right);
    for (int64_t i = top; i <= bottom; i++)
        for (int64_t k = left; k <= right; k++) {
            const double v = x[i * w->in + k], share = share_of(row, i) * share_of(column, k);
            if (share > 0.0) sum += share * v;
            if (share > 0.0) size += share * fabs(v);
            least = fmin(least, v);
            most = fmax(most, v);
        }
    *y = sum;
    *terms =
        h->nearest ? 0.0 : PRODUCTS * size + (off_of(h, row) + off_of(w, column)) * (most - least);
}

void oracle_resize_forward(const oracle_resize *q, const double *x, double *y, double *terms)
{
    axis h, w;
    axes_of(q, &h, &w);
    for (int64_t p = 0; p < q->planes; p++)
        for (int64_t o = 0; o < q->oh; o++)
            for (int64_t k = 0; k < q->ow; k++) {
                const int64_t at = (p * q->oh + o) * q->ow + k;
                forward_one(&h, &w, x + p * q->h * q->w, place_of(&h, o), place_of(&w, k), &y[at],
                            &terms[at]);
            }
}

/* count: of the terms of each element of the plane dx, whose sizes are sizes; off: the rest. */
static void backward_one(const axis *h, const axis *w, double row, double column, double dy,
                         double *dx, double *sizes, double *off, int64_t *count)
{
    int64_t top, bottom, left, right;
    around(h, row, &top, &bottom);
    around(w, column, &left, &right);
    for (int64_t i = top; i <= bottom; i++)
        for (int64_t k = left; k <= right; k++) {
            const double share = share_of(row, i) * share_of(column, k);
            if (!h->nearest) off[i * w->in + k] += (off_of(h, row) + off_of(w, column)) * fabs(dy);
            if (share == 0.0) continue;
            dx[i * w->in + k] += share * dy;
            sizes[i * w->in + k] += share * fabs(dy);
            count[i * w->in + k]++;
        }
}

void oracle_resize_backward(const oracle_resize *q, const double *dy, double *dx, double *terms)
{
    axis h, w;
    const int64_t n = q->h * q->w;
    double *sizes = calloc((size_t)n, sizeof *sizes);
    int64_t *count = calloc((size_t)n, sizeof *count);
    axes_of(q, &h, &w);
    for (int64_t p = 0; p < q->planes; p++) {
        double *plane = dx + p * n, *off = terms + p * n;
        for (int64_t i = 0; i < n; i++) plane[i] = off[i] = sizes[i] = 0.0, count[i] = 0;
        for (int64_t o = 0; o < q->oh; o++)
            for (int64_t k = 0; k < q->ow; k++)
                backward_one(&h, &w, place_of(&h, o), place_of(&w, k),
                             dy[(p * q->oh + o) * q->ow + k], plane, sizes, off, count);
        for (int64_t i = 0; i < n; i++)
            off[i] +=
                (double)((h.nearest ? 0 : PRODUCTS) + (count[i] > 1 ? count[i] - 1 : 0)) * sizes[i];
    }
    free(sizes);
    free(count);
}
