/* SPDX-License-Identifier: MIT */
/* Convolutions and transposed ones: of sequences where x has three dimensions, of images where it
 * has four. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "../oracle_conv.h"
#include "grid.h"

/* ---- options ---- */

typedef struct pair {
    const char *text;
    int64_t h, w;
} pair;

static const pair kernels[] = { { "3", 3, 3 }, { "1", 1, 1 }, { "2", 2, 2 },   { "4", 4, 4 },
                                { "5", 5, 5 }, { "7", 7, 7 }, { "5x3", 5, 3 }, { "3x5", 3, 5 } };
static const pair strides[] = { { "1", 1, 1 }, { "2", 2, 2 }, { "1x2", 1, 2 }, { "2x1", 2, 1 } };

static const char *kernel_text(int value)
{
    return kernels[value].text;
}

static const char *stride_text(int value)
{
    return strides[value].text;
}

/* What a case is beside attorch's own options: one of these. */
typedef enum special { PLAIN, CHANNELS_LAST, DILATED, SAME } special;

static const char *special_text(int value)
{
    static const char *const names[] = { "plain", "channels_last", "dilated", "same" };
    return names[value];
}

static bool is(const grid_case *c, special s)
{
    return grid_int(c, "as") == (int)s;
}

/* ---- layers of networks, each shape once ---- */

typedef struct layer {
    int64_t channels, edge, outputs, kernel, stride, padding, groups;
} layer;

#define LAYER_BATCH 16

/* clang-format off */
static const layer layers[] = {
    /* ResNet-50 (He et al. 2015, with the stride in 3x3 convolutions) */
    { 3, 224, 64, 7, 2, 3, 1 }, { 64, 56, 64, 1, 1, 0, 1 }, { 64, 56, 64, 3, 1, 1, 1 },
    { 64, 56, 256, 1, 1, 0, 1 }, { 256, 56, 64, 1, 1, 0, 1 }, { 256, 56, 128, 1, 1, 0, 1 },
    { 128, 56, 128, 3, 2, 1, 1 }, { 256, 56, 512, 1, 2, 0, 1 }, { 128, 28, 512, 1, 1, 0, 1 },
    { 512, 28, 128, 1, 1, 0, 1 }, { 128, 28, 128, 3, 1, 1, 1 }, { 512, 28, 256, 1, 1, 0, 1 },
    { 256, 28, 256, 3, 2, 1, 1 }, { 512, 28, 1024, 1, 2, 0, 1 }, { 256, 14, 1024, 1, 1, 0, 1 },
    { 1024, 14, 256, 1, 1, 0, 1 }, { 256, 14, 256, 3, 1, 1, 1 }, { 1024, 14, 512, 1, 1, 0, 1 },
    { 512, 14, 512, 3, 2, 1, 1 }, { 1024, 14, 2048, 1, 2, 0, 1 }, { 512, 7, 2048, 1, 1, 0, 1 },
    { 2048, 7, 512, 1, 1, 0, 1 }, { 512, 7, 512, 3, 1, 1, 1 },
    /* ConvNeXt-T (Liu et al. 2022) */
    { 3, 224, 96, 4, 4, 0, 1 }, { 96, 56, 96, 7, 1, 3, 96 }, { 96, 56, 192, 2, 2, 0, 1 },
    { 192, 28, 192, 7, 1, 3, 192 }, { 192, 28, 384, 2, 2, 0, 1 },
    { 384, 14, 384, 7, 1, 3, 384 }, { 384, 14, 768, 2, 2, 0, 1 }, { 768, 7, 768, 7, 1, 3, 768 },
    /* MobileNetV2 (Sandler et al. 2018) */
    { 3, 224, 32, 3, 2, 1, 1 }, { 32, 112, 32, 3, 1, 1, 32 }, { 32, 112, 16, 1, 1, 0, 1 },
    { 16, 112, 96, 1, 1, 0, 1 }, { 96, 112, 96, 3, 2, 1, 96 }, { 96, 56, 24, 1, 1, 0, 1 },
    { 24, 56, 144, 1, 1, 0, 1 }, { 144, 56, 144, 3, 1, 1, 144 }, { 144, 56, 24, 1, 1, 0, 1 },
    { 144, 56, 144, 3, 2, 1, 144 }, { 144, 28, 32, 1, 1, 0, 1 }, { 32, 28, 192, 1, 1, 0, 1 },
    { 192, 28, 192, 3, 1, 1, 192 }, { 192, 28, 32, 1, 1, 0, 1 }, { 192, 28, 192, 3, 2, 1, 192 },
    { 192, 14, 64, 1, 1, 0, 1 }, { 64, 14, 384, 1, 1, 0, 1 }, { 384, 14, 384, 3, 1, 1, 384 },
    { 384, 14, 64, 1, 1, 0, 1 }, { 384, 14, 96, 1, 1, 0, 1 }, { 96, 14, 576, 1, 1, 0, 1 },
    { 576, 14, 576, 3, 1, 1, 576 }, { 576, 14, 96, 1, 1, 0, 1 }, { 576, 14, 576, 3, 2, 1, 576 },
    { 576, 7, 160, 1, 1, 0, 1 }, { 160, 7, 960, 1, 1, 0, 1 }, { 960, 7, 960, 3, 1, 1, 960 },
    { 960, 7, 160, 1, 1, 0, 1 }, { 960, 7, 320, 1, 1, 0, 1 }, { 320, 7, 1280, 1, 1, 0, 1 },
};
/* clang-format on */

static const char *layer_text(int value)
{
    static char text[96];
    const layer *l = &layers[value];
    snprintf(text, sizeof text, "%" PRId64 "x%" PRId64 "x%" PRId64 "x%" PRId64 "x%" PRId64,
             l->outputs, l->kernel, l->stride, l->padding, l->groups);
    return text;
}

static atto_shape layer_shape(const grid_case *c)
{
    const layer *l = &layers[grid_int(c, "layer")];
    return is(c, CHANNELS_LAST) ? atto_shape4(LAYER_BATCH, l->edge, l->edge, l->channels)
                                : atto_shape4(LAYER_BATCH, l->channels, l->edge, l->edge);
}

/* ---- a case ---- */

typedef struct convolution {
    bool transposed;
    int32_t dims;
    int64_t batch, channels, outputs, groups, bias;
    oracle_conv_axis axis[2]; /* height, which of sequences is 1, and width */
    int64_t after[2];
} convolution;

static void measure_axis(const grid_case *c, convolution *v, int at, int64_t in, int64_t kernel,
                         int64_t stride)
{
    const int64_t padding = grid_int(c, "padding");
    oracle_conv_axis *a = &v->axis[at];
    *a = (oracle_conv_axis){ .in = in, .kernel = kernel, .stride = stride };
    a->dilation = is(c, DILATED) ? 2 : 1;
    const int64_t reach = a->dilation * (kernel - 1);
    a->before = is(c, SAME) ? reach / 2 : padding < 0 ? kernel / 2 : padding;
    v->after[at] = is(c, SAME) ? reach - reach / 2 : a->before;
    const int64_t edge = a->before + v->after[at];
    if (v->transposed)
        a->out = (in - 1) * stride - edge + reach + 1 + grid_int(c, "output_padding");
    else
        a->out = in + edge - reach < 1 ? 0 : (in + edge - reach - 1) / stride + 1;
}

/* attorch's numbers: padding -1 is half of the kernel, groups -1 one for each channel. */
static convolution of_case(const grid_case *c, bool transposed)
{
    const pair *kernel = &kernels[grid_int(c, "kernel")], *stride = &strides[grid_int(c, "stride")];
    const int64_t groups = grid_int(c, "groups");
    convolution v = { .transposed = transposed,
                      .dims = c->shape.rank - 2,
                      .batch = c->shape.dim[0],
                      .channels = c->shape.dim[1],
                      .outputs = grid_int(c, "out"),
                      .groups = groups < 0 ? c->shape.dim[1] : groups,
                      .bias = grid_int(c, "bias"),
                      .axis = { { 1, 1, 1, 1, 1, 0 } } };
    if (v.dims == 2) measure_axis(c, &v, 0, c->shape.dim[2], kernel->h, stride->h);
    measure_axis(c, &v, 1, c->shape.dim[c->shape.rank - 1], kernel->w, stride->w);
    return v;
}

static convolution of_layer(const grid_case *c)
{
    const layer *l = &layers[grid_int(c, "layer")];
    const int64_t out = (l->edge + 2 * l->padding - l->kernel) / l->stride + 1;
    const oracle_conv_axis axis = { .in = l->edge,
                                    .out = out,
                                    .kernel = l->kernel,
                                    .stride = l->stride,
                                    .before = l->padding,
                                    .dilation = 1 };
    return (convolution){ .dims = 2,
                          .batch = LAYER_BATCH,
                          .channels = l->channels,
                          .outputs = l->outputs,
                          .groups = l->groups,
                          .axis = { axis, axis },
                          .after = { l->padding, l->padding } };
}

static convolution of_scene(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    if (c->family == &grid_conv_layer) return of_layer(c);
    return of_case(c, c->family == &grid_conv_transposed);
}

/* Sequences have one number of each, as has padding of half a kernel; groups that do not divide the
 * channels are one group in attorch's tests, which is a case already, as are as many groups as
 * there are in another case. */
static bool means_something(const grid_case *c, const convolution *v)
{
    const pair *kernel = &kernels[grid_int(c, "kernel")], *stride = &strides[grid_int(c, "stride")];
    const bool is_pair = kernel->h != kernel->w, strides_differ = stride->h != stride->w;
    if (v->dims == 1 && (is_pair || strides_differ)) return false;
    if (is_pair && grid_int(c, "padding") < 0) return false;
    if (v->channels % v->groups || v->outputs % v->groups) return false;
    if (grid_int(c, "groups") < 0 && (v->groups <= 2 || v->groups == 4)) return false;
    return v->axis[0].out > 0 && v->axis[1].out > 0;
}

static bool conv_exists(const grid_case *c)
{
    const convolution v = of_case(c, false);
    if (is(c, SAME) && (grid_int(c, "stride") > 0 || grid_int(c, "padding") != 0)) return false;
    if (is(c, DILATED) && grid_int(c, "kernel") == 1) return false; /* one element */
    return means_something(c, &v);
}

static bool transposed_exists(const grid_case *c)
{
    const convolution v = of_case(c, true);
    const int64_t most = is(c, DILATED) ? 2 : 1;
    const int64_t more = grid_int(c, "output_padding");
    for (int at = 2 - v.dims; at < 2; at++)
        if (more > 0 && v.axis[at].stride <= more && most <= more) return false;
    if (is(c, DILATED) && grid_int(c, "kernel") == 1) return false;
    return means_something(c, &v);
}

/* ---- tensors: channels_last ones are stored as [N, H, W, C] ---- */

static atto_shape image(const grid_case *c, const convolution *v, int64_t channels, int64_t h,
                        int64_t w)
{
    if (is(c, CHANNELS_LAST))
        return v->dims == 2 ? atto_shape4(v->batch, h, w, channels)
                            : atto_shape3(v->batch, w, channels);
    return v->dims == 2 ? atto_shape4(v->batch, channels, h, w)
                        : atto_shape3(v->batch, channels, w);
}

static atto_shape x_shape(const grid_case *c, const convolution *v)
{
    return image(c, v, v->channels, v->axis[0].in, v->axis[1].in);
}

static atto_shape y_shape(const grid_case *c, const convolution *v)
{
    return image(c, v, v->outputs, v->axis[0].out, v->axis[1].out);
}

static atto_shape w_shape(const convolution *v)
{
    const int64_t first = v->transposed ? v->channels : v->outputs;
    const int64_t second = (v->transposed ? v->outputs : v->channels) / v->groups;
    return v->dims == 2 ? atto_shape4(first, second, v->axis[0].kernel, v->axis[1].kernel)
                        : atto_shape3(first, second, v->axis[1].kernel);
}

static void build(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const convolution v = of_scene(s);
    const atto_shape x = x_shape(c, &v), y = y_shape(c, &v), w = w_shape(&v);
    grid_input(s, "x", c->dtype, x, GRID_NORMAL, 1);
    grid_input(s, "w", c->dtype, w, GRID_WEIGHT, 2);
    if (v.bias) grid_input(s, "b", c->dtype, atto_shape1(v.outputs), GRID_NORMAL, 3);
    grid_input(s, "dy", c->dtype, y, GRID_NORMAL, 4);
    grid_output(s, "y", c->dtype, y, GRID_FORWARD, true);
    grid_output(s, "dx", c->dtype, x, GRID_BACKWARD, true);
    grid_output(s, "dw", c->dtype, w, GRID_BACKWARD, true);
    if (v.bias) grid_output(s, "db", c->dtype, atto_shape1(v.outputs), GRID_BACKWARD, true);
}

/* ---- the call ---- */

/* The view [N, C, ...] of an image. */
static atto_status view(const grid_scene *s, const char *name, atto_tensor *out)
{
    static const int32_t image_order[] = { 0, 3, 1, 2 }, sequence_order[] = { 0, 2, 1 };
    *out = *grid_at(s, name);
    if (!is(grid_case_of(s), CHANNELS_LAST)) return ATTO_OK;
    return atto_tensor_permute(out, out->rank == 4 ? image_order : sequence_order, out);
}

static atto_conv_window window_of(const convolution *v)
{
    atto_conv_window w = { .dims = v->dims, .transposed = v->transposed, .groups = v->groups };
    for (int32_t at = 0; at < v->dims; at++) {
        const int from = 2 - v->dims + at;
        w.stride[at] = v->axis[from].stride;
        w.dilation[at] = v->axis[from].dilation;
        w.padding[at] = v->axis[from].before;
        w.padding_after[at] = v->after[from];
    }
    return w;
}

static atto_status call(grid_scene *s, bool backward)
{
    static const char *const names[] = { "x", "dy", "y", "dx" };
    const convolution v = of_scene(s);
    atto_tensor t[4];
    for (int i = 0; i < COUNT_OF(names); i++) {
        const atto_status status = view(s, names[i], &t[i]);
        if (status != ATTO_OK) return status;
    }
    const struct atto_conv_args a = { .x = &t[0],
                                      .w = grid_at(s, "w"),
                                      .b = grid_at(s, "b"),
                                      .y = &t[2],
                                      .dy = &t[1],
                                      .dx = &t[3],
                                      .dw = grid_at(s, "dw"),
                                      .db = grid_at(s, "db"),
                                      .window = window_of(&v) };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_conv_backward(dev, &a) : atto_conv_forward(dev, &a);
}

/* ---- the answer ---- */

/* Where element i of an image in planes lies in one that is stored as the case says. */
static int64_t place(bool last, int64_t i, int64_t channels, int64_t plane)
{
    if (!last) return i;
    const int64_t at = i % plane, channel = i / plane % channels, n = i / plane / channels;
    return (n * plane + at) * channels + channel;
}

static const double *in_planes(grid_scene *s, const char *name, int64_t channels, int64_t plane,
                               int64_t n)
{
    const bool last = is(grid_case_of(s), CHANNELS_LAST);
    const double *held = grid_held(s, name);
    if (!last) return held;
    double *out = grid_array(s, n);
    for (int64_t i = 0; i < n; i++) out[i] = held[place(last, i, channels, plane)];
    return out;
}

/* terms: summands of an element, at most. */
static void judge(grid_scene *s, const char *name, const char *op, bool is_image, int64_t channels,
                  int64_t plane, const oracle_sum *sums, int64_t n, int64_t terms)
{
    const bool last = is_image && is(grid_case_of(s), CHANNELS_LAST);
    double *want = grid_want(s, name, n), *sizes = grid_terms(s, name, n);
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = place(last, i, channels, plane);
        want[at] = sums[i].value, sizes[at] = sums[i].terms;
    }
    grid_allow(s, name, op, terms);
}

static oracle_sum *sums_of(grid_scene *s, int64_t n)
{
    return grid_array(s, n * (int64_t)(sizeof(oracle_sum) / sizeof(double)));
}

static void answer(grid_scene *s)
{
    const convolution v = of_scene(s);
    const oracle_conv_axis *h = &v.axis[0], *w = &v.axis[1];
    const int64_t big = h->in * w->in, small = h->out * w->out, taps = h->kernel * w->kernel;
    oracle_conv o = { .transposed = v.transposed,
                      .batch = v.batch,
                      .channels = v.channels,
                      .outputs = v.outputs,
                      .groups = v.groups,
                      .axis = { *h, *w },
                      .w = grid_held(s, "w"),
                      .b = grid_held(s, "b") };
    const int64_t n_x = oracle_conv_x(&o), n_y = oracle_conv_y(&o), n_w = oracle_conv_w(&o);
    o.x = in_planes(s, "x", v.channels, big, n_x);
    o.dy = in_planes(s, "dy", v.outputs, small, n_y);
    const oracle_conv_answer a = { sums_of(s, n_y), sums_of(s, n_x), sums_of(s, n_w),
                                   sums_of(s, v.outputs) };
    oracle_convolve(&o, &a);
    judge(s, "y", "conv", true, v.outputs, small, a.y, n_y, v.channels / v.groups * taps + v.bias);
    judge(s, "dx", "conv_grad", true, v.channels, big, a.dx, n_x, v.outputs / v.groups * taps);
    judge(s, "dw", "conv_grad", false, 1, 1, a.dw, n_w, v.batch * (v.transposed ? big : small));
    if (v.bias) judge(s, "db", "conv_grad", false, 1, 1, a.db, v.outputs, v.batch * small);
}

const grid_family grid_conv = {
    .name = "conv",
    .least_rank = 3,
    .most_rank = 4,
    .options = { { "out", 8, { 16, 96, 128, 196, 384, 512, 768, 1024 }, NULL },
                 { "kernel", COUNT_OF(kernels), { 0 }, kernel_text },
                 { "stride", COUNT_OF(strides), { 0 }, stride_text },
                 { "padding", 4, { 0, 1, 3, -1 }, NULL },
                 { "groups", 4, { 1, 2, 4, -1 }, NULL },
                 { "bias", 2, { 0, 1 }, NULL },
                 { "as", 4, { 0 }, special_text } },
    .rtol = 1e-3,
    .grad_rtol = 1e-3,
    .thin = 29,
    .exists = conv_exists,
    .build = build,
    .call = call,
    .answer = answer,
};

const grid_family grid_conv_transposed = {
    .name = "conv_transposed",
    .least_rank = 3,
    .most_rank = 4,
    .options = { { "out", 2, { 16, 96 }, NULL },
                 { "kernel", COUNT_OF(kernels), { 0 }, kernel_text },
                 { "stride", COUNT_OF(strides), { 0 }, stride_text },
                 { "padding", 3, { 0, 1, -1 }, NULL },
                 { "groups", 3, { 1, 2, -1 }, NULL },
                 { "bias", 2, { 0, 1 }, NULL },
                 { "output_padding", 2, { 0, 1 }, NULL },
                 { "as", 3, { 0 }, special_text } },
    .rtol = 1e-3,
    .grad_rtol = 1e-3,
    .thin = 11,
    .exists = transposed_exists,
    .build = build,
    .call = call,
    .answer = answer,
};

const grid_family grid_conv_layer = {
    .name = "conv_layer",
    .options = { { "layer", COUNT_OF(layers), { 0 }, layer_text },
                 { "as", 2, { 0 }, special_text } },
    .rtol = 1e-3,
    .grad_rtol = 1e-3,
    .shape = layer_shape,
    .build = build,
    .call = call,
    .answer = answer,
};
