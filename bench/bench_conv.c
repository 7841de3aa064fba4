/* SPDX-License-Identifier: MIT */
/* Benchmark rows of convolutions: the distinct layers of ResNet-50 and some of ConvNeXt-T and
 * MobileNet-V2, a transposed one; contiguous and channels_last. Each pass has a row: forward, dx
 * and dw, the last two of atto_conv_backward. */
#include "bench.h"

/* Channels, and with them groups, are those of the tensors. */
static struct atto_conv_args args_of(const bench_row *row, const bench_tensors *t)
{
    const bench_images *s = &row->images;
    const atto_tensor *big = s->transposed ? &t->z : &t->x;
    return (struct atto_conv_args){ .window = { .dims = 2,
                                                .transposed = s->transposed,
                                                .groups = big->shape[1] / t->w.shape[1],
                                                .stride = { s->stride, s->stride },
                                                .padding = { s->padding, s->padding },
                                                .padding_after = { s->padding, s->padding },
                                                .dilation = { 1, 1 } } };
}

static atto_status forward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    struct atto_conv_args a = args_of(row, t);
    a.x = &t->x;
    a.w = &t->w;
    a.y = &t->z;
    return atto_conv_forward(dev, &a);
}

static atto_status backward_x(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    struct atto_conv_args a = args_of(row, t);
    a.w = &t->w;
    a.dy = &t->dy;
    a.dx = &t->out;
    return atto_conv_backward(dev, &a);
}

static atto_status backward_w(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    struct atto_conv_args a = args_of(row, t);
    a.x = &t->x;
    a.dy = &t->dy;
    a.dw = &t->dw;
    return atto_conv_backward(dev, &a);
}

#define FLOATS .flops = 2, .default_dtypes = BENCH_F32_ONLY, .dtypes = BENCH_FLOATS
/* name: "conv", "depthwise"; the numbers: batch, channels, edge, outputs, kernel, stride, padding
 * and groups */
#define PASSES(name, last, turned, ...)              \
    { .op = name,                                    \
      .pass = "forward",                             \
      .call = forward,                               \
      FLOATS,                                        \
      .images = { __VA_ARGS__, turned, last } },     \
        { .op = name " dx",                          \
          .pass = "backward",                        \
          .call = backward_x,                        \
          FLOATS,                                    \
          .images = { __VA_ARGS__, turned, last } }, \
        { .op = name " dw",                          \
          .pass = "backward",                        \
          .call = backward_w,                        \
          FLOATS,                                    \
          .images = { __VA_ARGS__, turned, last } },
#define BOTH(name, turned, ...)              \
    PASSES(name, false, turned, __VA_ARGS__) \
    PASSES(name " channels_last", true, turned, __VA_ARGS__)
#define CONV(...)       BOTH("conv", false, __VA_ARGS__)
#define DEPTHWISE(...)  BOTH("depthwise", false, __VA_ARGS__)
#define TRANSPOSED(...) BOTH("conv_transpose", true, __VA_ARGS__)

/* clang-format off */
const bench_row bench_conv_rows[] = {
    CONV(64,    3, 224,   64, 7, 2, 3, 1)
    CONV(64,   64,  56,   64, 1, 1, 0, 1)
    CONV(64,   64,  56,   64, 3, 1, 1, 1)
    CONV(64,   64,  56,  256, 1, 1, 0, 1)
    CONV(64,  256,  56,   64, 1, 1, 0, 1)
    CONV(64,  256,  56,  128, 1, 1, 0, 1)
    CONV(64,  128,  56,  128, 3, 2, 1, 1)
    CONV(64,  256,  56,  512, 1, 2, 0, 1)
    CONV(64,  128,  28,  512, 1, 1, 0, 1)
    CONV(64,  512,  28,  128, 1, 1, 0, 1)
    CONV(64,  128,  28,  128, 3, 1, 1, 1)
    CONV(64,  512,  28,  256, 1, 1, 0, 1)
    CONV(64,  256,  28,  256, 3, 2, 1, 1)
    CONV(64,  512,  28, 1024, 1, 2, 0, 1)
    CONV(64,  256,  14, 1024, 1, 1, 0, 1)
    CONV(64, 1024,  14,  256, 1, 1, 0, 1)
    CONV(64,  256,  14,  256, 3, 1, 1, 1)
    CONV(64, 1024,  14,  512, 1, 1, 0, 1)
    CONV(64,  512,  14,  512, 3, 2, 1, 1)
    CONV(64, 1024,  14, 2048, 1, 2, 0, 1)
    CONV(64,  512,   7, 2048, 1, 1, 0, 1)
    CONV(64, 2048,   7,  512, 1, 1, 0, 1)
    CONV(64,  512,   7,  512, 3, 1, 1, 1)
    CONV(64,    3, 224,   96, 4, 4, 0, 1)
    CONV(64,   96,  56,  192, 2, 2, 0, 1)
    CONV(64,  128,  28,  128, 3, 1, 1, 32)
    DEPTHWISE(64,  96, 56,  96, 7, 1, 3,  96)
    DEPTHWISE(64, 768,  7, 768, 7, 1, 3, 768)
    DEPTHWISE(64, 144, 56, 144, 3, 1, 1, 144)
    DEPTHWISE(64, 144, 56, 144, 3, 2, 1, 144)
    DEPTHWISE(64, 576, 14, 576, 3, 1, 1, 576)
    TRANSPOSED(64, 128, 28, 64, 4, 2, 1, 1)
};
/* clang-format on */

const int32_t bench_conv_row_count = sizeof bench_conv_rows / sizeof bench_conv_rows[0];
