/* SPDX-License-Identifier: MIT */
/* What both backends derive from the arguments of convolutions.
 *
 * A convolution reads a big image and writes a small one; a transposed one reads the small image
 * and writes the big one. Either way there are three sums, with i = o stride - padding + j dilation:
 *
 *     small[o] = sum of w[j] big[i]      forward, or dx of a transposed convolution
 *     big[i]   = sum of w[j] small[o]    dx, or forward of a transposed one
 *     dw[j]    = sum of small[o] big[i]
 *
 * and w is [channels of the small image, channels of the big one / groups, kernels]. */
#ifndef ATTO_CONVOLUTION_H
#define ATTO_CONVOLUTION_H

#include <attocl/conv.h>

typedef struct atto__conv_axis {
    int64_t big, small;
    int64_t kernel, stride, padding, dilation;
} atto__conv_axis;

/* Channels are those of one group. */
typedef struct atto__convolution {
    int64_t batch, groups;
    int64_t big_channels, small_channels;
    atto__conv_axis h, w;
} atto__convolution;

/* A single output has no neighbour that a stride would lead to. Of such strides the image's size is
 * enough: what is found and held for each step stays within the image. */
static inline int64_t atto__conv_stride(int64_t stride, int64_t big, int64_t small)
{
    return small == 1 && stride > big ? big : stride;
}

/* The two images and the filter, or their gradients, as the layout FILTERED gives them. */
static inline atto__convolution atto__convolution_of(const atto_conv_window *v,
                                                     const atto_tensor *big,
                                                     const atto_tensor *small,
                                                     const atto_tensor *filter)
{
    const int32_t last = v->dims - 1;
    atto__convolution c = {
        .batch = big->shape[0],
        .groups = v->groups,
        .big_channels = filter->shape[1],
        .small_channels = filter->shape[0] / v->groups,
        .h = { 1, 1, 1, 1, 0, 1 },
        .w = { big->shape[3], small->shape[3], filter->shape[3], v->stride[last], v->padding[last],
               v->dilation[last] },
    };
    if (v->dims == 2)
        c.h = (atto__conv_axis){ big->shape[2], small->shape[2], filter->shape[2],
                                 v->stride[0],  v->padding[0],   v->dilation[0] };
    c.h.stride = atto__conv_stride(c.h.stride, c.h.big, c.h.small);
    c.w.stride = atto__conv_stride(c.w.stride, c.w.big, c.w.small);
    return c;
}

/* A sum along an axis: outputs first + q step, q < count, are sums over t < taps of the inputs
 * q in_step + at + t at_step, which tap `tap + t tap_step` multiplies; at_step > 0. Inputs that do
 * not exist are 0. */
typedef struct atto__conv_walk {
    int64_t count, first, step;
    int64_t in_step, at, at_step;
    int64_t taps, tap, tap_step;
} atto__conv_walk;

/* All outputs of the small image. */
static inline atto__conv_walk atto__conv_walk_small(const atto__conv_axis *a)
{
    return (atto__conv_walk){ .count = a->small,
                              .step = 1,
                              .in_step = a->stride,
                              .at = -a->padding,
                              .at_step = a->dilation,
                              .taps = a->kernel,
                              .tap_step = 1 };
}

/* Of the big image every stride-th element is met by the same taps: those that are phase, phase +
 * stride, ... Walks of taps 0 are there, too. */
static inline int64_t atto__conv_phases(const atto__conv_axis *a)
{
    return a->stride < a->big ? a->stride : a->big;
}

static inline atto__conv_walk atto__conv_walk_big(const atto__conv_axis *a, int64_t phase)
{
    int64_t divisor = a->stride, rest = a->dilation; /* their greatest common divisor */
    while (rest != 0) {
        const int64_t next = divisor % rest;
        divisor = rest;
        rest = next;
    }
    atto__conv_walk w = { .count = (a->big - phase + a->stride - 1) / a->stride,
                          .first = phase,
                          .step = a->stride,
                          .in_step = 1,
                          .at_step = a->dilation / divisor,
                          .tap_step = -(a->stride / divisor) };
    int64_t tap = 0;
    while (tap < -w.tap_step && (phase + a->padding - tap * a->dilation) % a->stride != 0) tap++;
    if (tap >= -w.tap_step || tap >= a->kernel) return w;
    w.taps = (a->kernel - 1 - tap) / -w.tap_step + 1;
    w.tap = tap - (w.taps - 1) * w.tap_step;
    w.at = (phase + a->padding - w.tap * a->dilation) / a->stride;
    return w;
}

/* The same for all phases side by side, with a dilation of 1: outputs q of every phase read inputs
 * from q + at on, taps of them, which are those that any phase meets. Phases may have an output less
 * than count. taps 0: none meets any. */
static inline atto__conv_walk atto__conv_walk_phases(const atto__conv_axis *a)
{
    atto__conv_walk all = {
        .count = (a->big + a->stride - 1) / a->stride, .step = a->stride, .in_step = 1, .at_step = 1
    };
    for (int64_t phase = 0; phase < atto__conv_phases(a); phase++) {
        const atto__conv_walk w = atto__conv_walk_big(a, phase);
        if (w.taps == 0) continue;
        const int64_t first = all.taps == 0 || w.at < all.at ? w.at : all.at;
        const int64_t end =
            all.taps == 0 || w.at + w.taps > all.at + all.taps ? w.at + w.taps : all.at + all.taps;
        all.at = first;
        all.taps = end - first;
    }
    return all;
}

#endif
