/* SPDX-License-Identifier: MIT */
/* What both backends derive from the arguments of pooling: windows along an axis. */
#ifndef ATTO_POOLING_H
#define ATTO_POOLING_H

#include <attocl/pool.h>

typedef struct atto__pool_axis {
    int64_t in, out;
    int64_t kernel; /* 0: adaptive, and the rest says nothing */
    int64_t stride, padding, dilation;
} atto__pool_axis;

/* x [batch, channels, h.in, w.in], y [batch, channels, h.out, w.out]. */
typedef struct atto__pooling {
    int64_t batch, channels;
    atto__pool_axis h, w;
    bool exclude;   /* means: padding does not count */
    float override; /* means: the divisor; 0 = none */
} atto__pooling;

/* Adaptive windows that are all of one size are ordinary ones. */
static inline atto__pool_axis atto__pool_axis_of(const atto_pool_window *w, int32_t at, int64_t in,
                                                 int64_t out)
{
    if (w->adaptive)
        return in % out == 0 ? (atto__pool_axis){ in, out, in / out, in / out, 0, 1 }
                             : (atto__pool_axis){ in, out, 0, 0, 0, 1 };
    return (
        atto__pool_axis){ in, out, w->kernel[at], w->stride[at], w->padding[at], w->dilation[at] };
}

/* Of x or dx and y or dy as the layout IMAGES gives them. */
static inline atto__pooling atto__pooling_of(const atto_tensor *x, const atto_tensor *y,
                                             const atto_pool_window *w)
{
    const atto__pool_axis one = { 1, 1, 1, 1, 0, 1 };
    const bool flat = w->dims == 1;
    return (atto__pooling){
        .batch = x->shape[0],
        .channels = x->shape[1],
        .h = flat ? one : atto__pool_axis_of(w, 0, x->shape[2], y->shape[2]),
        .w = atto__pool_axis_of(w, flat ? 0 : 1, x->shape[3], y->shape[3]),
    };
}

static inline atto__pooling atto__avg_pool_of(const struct atto_avg_pool_args *a,
                                              const atto_tensor *x, const atto_tensor *y)
{
    atto__pooling p = atto__pooling_of(x, y, &a->window);
    p.h.dilation = p.w.dilation = 1;
    p.exclude = a->exclude_padding || a->window.adaptive;
    p.override = (float)a->divisor_override;
    return p;
}

/* A window: elements begin, begin + dilation, ... before end, all of them in the tensor. */
typedef struct atto__pool_span {
    int64_t begin, end;
    int64_t counted; /* elements with the padding, for means; dilation 1 */
} atto__pool_span;

static inline atto__pool_span atto__pool_window_of(const atto__pool_axis *a, int64_t o)
{
    if (a->kernel == 0) {
        const int64_t begin = o * a->in / a->out;
        const int64_t end = ((o + 1) * a->in + a->out - 1) / a->out;
        return (atto__pool_span){ begin, end, end - begin };
    }
    const int64_t from = o * a->stride - a->padding;
    const int64_t to = from + (a->kernel - 1) * a->dilation + 1, rim = a->in + a->padding;
    const int64_t skipped = from < 0 ? (a->dilation - 1 - from) / a->dilation : 0;
    const int64_t begin = from + skipped * a->dilation;
    return (atto__pool_span){ begin, to < a->in ? to : a->in, (to < rim ? to : rim) - from };
}

/* The outputs first to last, whose windows reach over element i (dilation may leave it out). */
static inline int64_t atto__pool_first(const atto__pool_axis *a, int64_t i)
{
    if (a->kernel == 0) return i * a->out / a->in;
    const int64_t reach = i + a->padding - (a->kernel - 1) * a->dilation;
    return reach <= 0 ? 0 : (reach + a->stride - 1) / a->stride;
}

static inline int64_t atto__pool_last(const atto__pool_axis *a, int64_t i)
{
    if (a->kernel == 0) return ((i + 1) * a->out + a->in - 1) / a->in - 1;
    const int64_t last = (i + a->padding) / a->stride;
    return last < a->out ? last : a->out - 1;
}

/* What the sum of a window is divided by. */
static inline float atto__pool_divisor(const atto__pooling *p, const atto__pool_span *h,
                                       const atto__pool_span *w)
{
    if (p->override != 0.0f) return p->override;
    return p->exclude ? (float)(h->end - h->begin) * (float)(w->end - w->begin)
                      : (float)h->counted * (float)w->counted;
}

/* Every window ends in the tensor or its padding. */
static inline bool atto__pool_fits(const atto__pool_axis *a)
{
    const int64_t end = (a->out - 1) * a->stride - a->padding + (a->kernel - 1) * a->dilation + 1;
    return a->kernel != 0 && end <= a->in + a->padding;
}

/* The divisor that all windows have, or 0. */
static inline float atto__pool_uniform(const atto__pooling *p)
{
    if (p->override != 0.0f) return p->override;
    const bool counts_padding = !p->exclude || (p->h.padding == 0 && p->w.padding == 0);
    const bool fits = atto__pool_fits(&p->h) && atto__pool_fits(&p->w);
    return counts_padding && fits ? (float)p->h.kernel * (float)p->w.kernel : 0.0f;
}

#endif
