/* SPDX-License-Identifier: MIT */
/* Pooling from its definition: each output asks each element of its plane whether it belongs to
 * it. */
#include <math.h>
#include <stddef.h>

#include "oracle.h"

/* Padded coordinates: element i of the tensor is number i + padding; window o begins at o
 * stride. */

static bool is_output(const atto_pool_window *w, int at, int64_t in, int64_t o)
{
    const int64_t begin = o * w->stride[at];
    const int64_t end = begin + (w->kernel[at] - 1) * w->dilation[at] + 1;
    const int64_t padded = in + 2 * w->padding[at];
    if (!w->ceil_mode) return end <= padded;
    /* The window before this one ends in front of the end; this one begins in front of the right
     * padding. */
    return end - w->stride[at] < padded && begin < in + w->padding[at];
}

int64_t oracle_pool_outputs(const atto_pool_window *w, int at, int64_t in)
{
    int64_t n = 0;
    if (in + 2 * w->padding[at] < (w->kernel[at] - 1) * w->dilation[at] + 1 && !w->ceil_mode)
        return 0;
    while (is_output(w, at, in, n)) n++;
    return n;
}

/* Whether element i, which may be a padded one, belongs to output o of out. */
static bool belongs(const atto_pool_window *w, int at, int64_t in, int64_t out, int64_t o,
                    int64_t i)
{
    if (w->adaptive)
        return i >= (int64_t)floor((double)(o * in) / (double)out) &&
               i < (int64_t)ceil((double)((o + 1) * in) / (double)out);
    const int64_t inside = i + w->padding[at] - o * w->stride[at];
    return inside >= 0 && inside % w->dilation[at] == 0 && inside / w->dilation[at] < w->kernel[at];
}

/* Elements that are worth asking: the window lies between them. */
static void look_at(const atto_pool_window *w, int at, int64_t lowest, int64_t end, int64_t o,
                    int64_t *from, int64_t *to)
{
    *from = lowest, *to = end;
    if (w->adaptive) return;
    const int64_t begin = o * w->stride[at] - w->padding[at];
    const int64_t beyond = begin + w->kernel[at] * w->dilation[at];
    if (begin > lowest) *from = begin;
    if (beyond < end) *to = beyond;
}

/* Of an output, how many elements there are along an axis, with the padding or without. */
static int64_t count_of(const atto_pool_window *w, int at, int64_t in, int64_t out, int64_t o,
                        bool padded)
{
    const int64_t rim = padded && !w->adaptive ? w->padding[at] : 0;
    int64_t n = 0, from, to;
    look_at(w, at, -rim, in + rim, o, &from, &to);
    for (int64_t i = from; i < to; i++) n += belongs(w, at, in, out, o, i);
    return n;
}

static void one_output(const oracle_pool *p, int64_t plane, int64_t oh, int64_t ow,
                       oracle_pool_answer *a)
{
    const atto_pool_window *w = &p->window;
    const int64_t o = (plane * p->oh + oh) * p->ow + ow;
    const int first = w->dims == 2 ? 0 : -1, last = w->dims == 2 ? 1 : 0;
    double sum = 0.0, size = 0.0, best = -INFINITY;
    int64_t best_at = -1, real = 0, from, to;
    look_at(w, last, 0, p->w, ow, &from, &to);
    for (int64_t h = 0; h < p->h; h++) {
        if (first >= 0 && !belongs(w, first, p->h, p->oh, oh, h)) continue;
        for (int64_t v = from; v < to; v++) {
            if (!belongs(w, last, p->w, p->ow, ow, v)) continue;
            const double x = p->x[(plane * p->h + h) * p->w + v];
            sum += x;
            size += fabs(x);
            real++;
            if (best_at < 0 || x > best || isnan(x)) {
                best = x;
                best_at = h * p->w + v;
            }
        }
    }
    const bool padded = !p->exclude && !w->adaptive;
    const int64_t rows = first < 0 ? 1 : count_of(w, first, p->h, p->oh, oh, padded);
    const int64_t all = rows * count_of(w, last, p->w, p->ow, ow, padded);
    const double divisor = p->override != 0 ? (double)p->override : (double)all;
    a->y[o] = p->is_max ? best : sum / divisor;
    a->terms[o] = size / fabs(divisor);
    a->summed[o] = real;
    a->index[o] = (double)best_at;
    a->divisor[o] = divisor;
}

static void gradient(const oracle_pool *p, int64_t plane, int64_t oh, int64_t ow,
                     oracle_pool_answer *a)
{
    const atto_pool_window *w = &p->window;
    const int64_t o = (plane * p->oh + oh) * p->ow + ow;
    int64_t from, to;
    look_at(w, w->dims - 1, 0, p->w, ow, &from, &to);
    for (int64_t h = 0; h < p->h; h++) {
        if (w->dims == 2 && !belongs(w, 0, p->h, p->oh, oh, h)) continue;
        for (int64_t v = from; v < to; v++) {
            const int64_t i = (plane * p->h + h) * p->w + v;
            if (!belongs(w, w->dims - 1, p->w, p->ow, ow, v)) continue;
            if (p->is_max && a->index[o] != (double)(h * p->w + v)) continue;
            const double d = p->is_max ? p->dy[o] : p->dy[o] / a->divisor[o];
            a->dx[i] += d;
            a->dx_terms[i] += fabs(d);
            a->dx_summed[i]++;
        }
    }
}

void oracle_pooling(const oracle_pool *p, oracle_pool_answer *a)
{
    for (int64_t i = 0; i < p->planes * p->h * p->w; i++) {
        a->dx[i] = a->dx_terms[i] = 0.0;
        a->dx_summed[i] = 0;
    }
    for (int64_t plane = 0; plane < p->planes; plane++)
        for (int64_t oh = 0; oh < p->oh; oh++)
            for (int64_t ow = 0; ow < p->ow; ow++) {
                one_output(p, plane, oh, ow, a);
                if (p->dy) gradient(p, plane, oh, ow, a);
            }
}
