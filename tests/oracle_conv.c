/* SPDX-License-Identifier: MIT */
/* Convolutions from their definition: every weight meets every pair of an element of x and one of y
 * that it connects. A convolution and a transposed one connect the same pairs, with x and y
 * exchanged. */
#include "oracle_conv.h"

#include <math.h>
#include <string.h>

int64_t oracle_conv_x(const oracle_conv *o)
{
    return o->batch * o->channels * o->axis[0].in * o->axis[1].in;
}

int64_t oracle_conv_y(const oracle_conv *o)
{
    return o->batch * o->outputs * o->axis[0].out * o->axis[1].out;
}

int64_t oracle_conv_w(const oracle_conv *o)
{
    const int64_t taps = o->axis[0].kernel * o->axis[1].kernel;
    return o->channels * o->outputs / o->groups * taps;
}

/* The element that is read at place i of an axis of n elements; -1: none, it is 0. */
static int64_t element_at(oracle_rim rim, int64_t i, int64_t n)
{
    if (i >= 0 && i < n) return i;
    switch (rim) {
    case ORACLE_RIM_REFLECT:
        return i < 0 ? -i : 2 * (n - 1) - i;
    case ORACLE_RIM_REPLICATE:
        return i < 0 ? 0 : n - 1;
    case ORACLE_RIM_CIRCULAR:
        return i < 0 ? i + n : i - n;
    default:
        return -1;
    }
}

/* Elements that tap number k of an axis connects: of x and of y, the one being number i of the side
 * with the stride. */
static bool connects(const oracle_conv *o, int at, int64_t i, int64_t k, int64_t *x, int64_t *y)
{
    const oracle_conv_axis *a = &o->axis[at];
    const int64_t far = i * a->stride + k * a->dilation - a->before;
    *(o->transposed ? x : y) = i;
    *(o->transposed ? y : x) = element_at(o->rim, far, o->transposed ? a->out : a->in);
    return *x >= 0 && *y >= 0;
}

static void add(oracle_sum *sum, double a, double b)
{
    sum->value += a * b;
    sum->terms += fabs(a * b);
}

/* Numbers of elements of x, y and w. */
static void meet(const oracle_conv *o, const oracle_conv_answer *a, int64_t x, int64_t y, int64_t w)
{
    if (a->y) add(&a->y[y], o->w[w], o->x[x]);
    if (a->dx) add(&a->dx[x], o->w[w], o->dy[y]);
    if (a->dw) add(&a->dw[w], o->x[x], o->dy[y]);
}

/* One plane of x, one of y and the weights between them. */
static void meet_planes(const oracle_conv *o, const oracle_conv_answer *a, int64_t x_plane,
                        int64_t y_plane, int64_t w_plane)
{
    const oracle_conv_axis *h = &o->axis[0], *w = &o->axis[1];
    const int64_t rows = o->transposed ? h->in : h->out, cols = o->transposed ? w->in : w->out;
    int64_t xi, xj, yi, yj;
    for (int64_t k = 0; k < h->kernel * w->kernel; k++)
        for (int64_t i = 0; i < rows; i++) {
            if (!connects(o, 0, i, k / w->kernel, &xi, &yi)) continue;
            for (int64_t j = 0; j < cols; j++)
                if (connects(o, 1, j, k % w->kernel, &xj, &yj))
                    meet(o, a, (x_plane * h->in + xi) * w->in + xj,
                         (y_plane * h->out + yi) * w->out + yj,
                         w_plane * h->kernel * w->kernel + k);
        }
}

static void add_bias(const oracle_conv *o, const oracle_conv_answer *a)
{
    const int64_t plane = o->axis[0].out * o->axis[1].out;
    for (int64_t i = 0; i < oracle_conv_y(o); i++) {
        const int64_t channel = i / plane % o->outputs;
        if (a->y && o->b) add(&a->y[i], o->b[channel], 1.0);
        if (a->db) add(&a->db[channel], o->dy[i], 1.0);
    }
}

static void clear(oracle_sum *sums, int64_t n)
{
    if (sums) memset(sums, 0, (size_t)n * sizeof *sums);
}

void oracle_convolve(const oracle_conv *o, const oracle_conv_answer *a)
{
    const int64_t in_group = o->channels / o->groups, out_group = o->outputs / o->groups;
    clear(a->y, oracle_conv_y(o));
    clear(a->dx, oracle_conv_x(o));
    clear(a->dw, oracle_conv_w(o));
    clear(a->db, o->outputs);
    for (int64_t n = 0; n < o->batch; n++)
        for (int64_t out = 0; out < o->outputs; out++)
            for (int64_t c = 0; c < in_group; c++) {
                const int64_t in = out / out_group * in_group + c;
                meet_planes(o, a, n * o->channels + in, n * o->outputs + out,
                            o->transposed ? in * out_group + out % out_group : out * in_group + c);
            }
    add_bias(o, a);
}
