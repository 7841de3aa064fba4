/* SPDX-License-Identifier: MIT */
/* Convolution and transposed convolution of images and of sequences, with bias, activation and
 * residual fused behind them. */
#ifndef ATTOCL_CONV_H
#define ATTOCL_CONV_H

#include <attocl/act.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * How the filter lies over an image. Pairs are {height, width}; with dims = 1 the first of a pair
 * is the only one. Literal: 0 is 0.
 *
 *     convolution  output o reads the elements o stride - padding + j dilation of its axis,
 *                  j = 0 .. kernel - 1; those outside 0 .. L - 1 are 0
 *                  outputs: floor((L + padding + padding_after - dilation (kernel - 1) - 1) /
 *                  stride) + 1
 *     transposed   the same with input and output exchanged: input i adds to the outputs i stride -
 *                  padding + j dilation
 *                  outputs: (L - 1) stride - padding - padding_after + dilation (kernel - 1) + 1,
 *                  and up to max(stride, dilation) - 1 more (PyTorch's output_padding): as many as
 *                  y has
 */
typedef struct atto_conv_window {
    int32_t dims;    /**< 2 = x is [N, C, H, W] or [C, H, W]; 1 = [N, C, L] or [C, L] */
    bool transposed; /**< transposed convolution: the gradient of a convolution as an op */
    int64_t groups;  /**< 1 or more; input channels of a group meet output channels of that group */
    int64_t stride[2];        /**< 1 to 2^31 - 1 */
    int64_t padding[2];       /**< zeros in front of the image; 0 to 2^31 - 1 */
    int64_t padding_after[2]; /**< and behind it */
    int64_t dilation[2];      /**< 1 to 2^31 - 1 */
} atto_conv_window;

/**
 * Arguments of atto_conv_forward and atto_conv_backward; literal: 0 is 0. K stands for the filter's
 * [KH, KW], or [KL] with dims = 1; G for groups. N may be missing, and may be 0.
 */
struct atto_conv_args {
    const atto_tensor *x; /**< in   [N, C, H, W], [C, H, W], [N, C, L] or [C, L]  f32 f16 bf16 */
    const atto_tensor *w; /**< in   [O, C / G, K]; transposed: [C, O / G, K]  like x */
    const atto_tensor *b; /**< in   [O]      like x, or f32; NULL = no bias */
    const atto_tensor *residual; /**< in   like y   NULL = none; its gradient is dy */
    const atto_tensor *y;        /**< out  x's shape with O channels  like x, or f32 */
    const atto_tensor *z;        /**< saved, like y: the sum with bias, which the backward of an
                                      activation needs; NULL = not wanted */
    const atto_tensor *dy;       /**< in   like y */
    const atto_tensor *dx;       /**< out  like x; needs w */
    const atto_tensor *dw;       /**< out  like w, or f32; needs x */
    const atto_tensor *db;       /**< out  [O]      like x, or f32 */
    bool add_dx, add_dw, add_db; /**< += instead of = */
    atto_activation act;
    atto_conv_window window;
    uint64_t reserved[4]; /**< must be 0 */
};

/**
 * Convolution (the correlation that networks call so), bias, activation, residual.
 *
 *     z[n][o][p] = sum over channels c of o's group and taps j of
 *                  w[o][c][j] * x[n][c][p stride - padding + j dilation]  + b[o]
 *     y = act(z) + residual
 *
 * @param dev  device that owns every buffer below
 * @param a    uses x, w, b, residual, y, z, act, window
 *
 * Memory    images may have unit stride along W or along C (channels_last); the largest of them, of
 *           equals an output, says how all are walked, and packed copies are made of others
 * Saved     x, w, and z unless act is the identity
 * Numerics  products and sums in f32 whatever the dtype; everything behind the sum uses it
 *           unrounded. The order of summation depends on shapes, memory order and device only.
 *           Zeros of the padding may be multiplied like any element, or left out: outputs that
 *           an infinite or NaN weight meets there are NaN, or not
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE     x has not dims + 1 or dims + 2 dimensions, or no height or width; w,
 *                            b, y, z or residual do not fit
 *           ATTO_E_DTYPE     a combination that is not in the table above
 *           ATTO_E_ARGUMENT  a number outside its range; groups divide no channels; there would be
 *                            no output ("output size too small")
 * Source    PyTorch 2.11 torch.nn.functional.conv2d, conv_transpose2d
 */
ATTO_API atto_status atto_conv_forward(atto_device *dev, const struct atto_conv_args *a);

/**
 * Its gradients.
 *
 *     dz = act'(z) * dy
 *     dx[n][c][i]    = sum over o and taps j of w[o][c][j] * dz[n][o][p], where
 *                      p stride - padding + j dilation = i
 *     dw[o][c][j]    = sum over n and p of dz[n][o][p] * x[n][c][p stride - padding + j dilation]
 *     db[o]          = sum over n and p of dz[n][o][p]                   (+ old, with add_...)
 *
 * @param a  uses dy, act, window; z unless act is the identity; w for dx; x for dw; dx, dw, db
 *
 * Numerics  dz is not rounded on the way; no atomics, equal calls give equal bits
 * Returns   as atto_conv_forward; ATTO_E_NULL names what a wanted gradient lacks
 */
ATTO_API atto_status atto_conv_backward(atto_device *dev, const struct atto_conv_args *a);

#ifdef __cplusplus
}
#endif

#endif
