/* SPDX-License-Identifier: MIT */
/* Pooling: means and maxima over windows of images and of sequences. */
#ifndef ATTOCL_POOL_H
#define ATTOCL_POOL_H

#include <attocl/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Where the windows lie. Pairs are {height, width}; with dims = 1 the first of a pair is
 * the only one. Literal: 0 is 0.
 *
 *     window o    elements o stride - padding + j dilation, j = 0 .. kernel - 1, of its axis; those
 *                 outside 0 .. L - 1 are padding
 *     outputs     floor((L + 2 padding - dilation (kernel - 1) - 1) / stride) + 1
 *                 ceil_mode: rounded up; without the last one where it would begin at L +
 *                 padding or behind
 *     adaptive    instead: as many outputs O as y has; window o is floor(o L / O) to
 *                 ceil((o + 1) L / O) - 1. kernel, stride, padding, dilation, ceil_mode are not
 *                 read
 */
typedef struct atto_pool_window {
    int32_t dims; /**< 2 = x is [N, C, H, W] or [C, H, W]; 1 = [N, C, L] or [C, L] */
    bool ceil_mode;
    bool adaptive;
    int64_t kernel[2];   /**< 1 to 2^31 - 1 */
    int64_t stride[2];   /**< 1 to 2^31 - 1 */
    int64_t padding[2];  /**< 0 to kernel / 2 */
    int64_t dilation[2]; /**< 1 to 2^31 - 1; atto_avg_pool: 1 */
} atto_pool_window;

/** Arguments of atto_avg_pool_forward and atto_avg_pool_backward. */
struct atto_avg_pool_args {
    const atto_tensor *x;  /**< in   [N, C, H, W], [C, H, W], [N, C, L] or [C, L]  f32 f16 bf16 */
    const atto_tensor *y;  /**< out  like x, with the number of outputs as height and width */
    const atto_tensor *dy; /**< in   like y */
    const atto_tensor *dx; /**< out  like x */
    bool add_dx;           /**< += instead of = */
    bool exclude_padding;  /**< padding does not count: PyTorch's count_include_pad=False */
    int64_t
        divisor_override; /**< what sums are divided by; 0 = the number of elements that count */
    atto_pool_window window;
    uint64_t reserved[4]; /**< must be 0 */
};

/**
 * Means of windows.
 *
 *     y = (sum of the window's elements in x) / divisor
 *     divisor = divisor_override, or the number of the window's elements in x; with neither
 *               exclude_padding nor adaptive, those in the padding count too (what ceil_mode adds
 *               behind the padding does not)
 *
 * @param dev  device that owns every buffer below
 * @param a    uses x, y, window, exclude_padding, divisor_override
 *
 * Memory    x and y may have unit stride along W or along C (channels_last); of other strides, or
 *           where they differ, packed copies are made
 * Saved     nothing
 * Numerics  sums in f32 whatever the dtype, in an order that shape and strides fix
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE     x has not dims + 1 or dims + 2 dimensions, or no height or width; y
 *                            has another shape than the window gives
 *           ATTO_E_DTYPE     x is not f32, f16 or bf16; y is not like x
 *           ATTO_E_ARGUMENT  a number outside its range; divisor_override with adaptive; there
 *                            would be no output ("output size too small")
 * Source    PyTorch 2.11 torch.nn.functional.avg_pool2d, adaptive_avg_pool2d
 */
ATTO_API atto_status atto_avg_pool_forward(atto_device *dev, const struct atto_avg_pool_args *a);

/**
 * Its gradient: dx = sum over the windows that hold the element of dy / divisor (+ dx with add_dx).
 *
 * @param a  uses dy, dx and the numbers of forward
 *
 * Numerics  every element gathers its windows in order: no atomics, equal calls give equal bits
 * Returns   as atto_avg_pool_forward
 */
ATTO_API atto_status atto_avg_pool_backward(atto_device *dev, const struct atto_avg_pool_args *a);

/** Arguments of atto_max_pool_forward and atto_max_pool_backward. */
struct atto_max_pool_args {
    const atto_tensor *x; /**< in   [N, C, H, W], [C, H, W], [N, C, L] or [C, L]  f32 f16 bf16 */
    const atto_tensor *y; /**< out  like x, with the number of outputs as height and width */
    const atto_tensor *indices; /**< saved, like y, i32 i64: h W + w of the maximum; NULL = not
                                     wanted, but dx needs them */
    const atto_tensor *dy;      /**< in   like y */
    const atto_tensor *dx;      /**< out  like x */
    bool add_dx;                /**< += instead of = */
    atto_pool_window window;
    uint64_t reserved[4]; /**< must be 0 */
};

/**
 * Maxima of windows.
 *
 *     y = max of the window's elements in x
 *
 * Of equal maxima the first in row-major order is the one. A NaN is larger than anything; of
 * several the last is the one, as in PyTorch. A window that lies in the padding alone (dilation can
 * do that) gives -infinity and index -1.
 *
 * @param a  uses x, y, indices, window
 *
 * Memory    as atto_avg_pool_forward
 * Saved     indices
 * Returns   as atto_avg_pool_forward, and
 *           ATTO_E_DTYPE     indices are not i32 or i64
 *           ATTO_E_ARGUMENT  indices are i32 and H W is above 2^31
 * Source    PyTorch 2.11 torch.nn.functional.max_pool2d, adaptive_max_pool2d
 */
ATTO_API atto_status atto_max_pool_forward(atto_device *dev, const struct atto_max_pool_args *a);

/**
 * Its gradient: dx = sum of dy over the windows whose index is the element's (+ dx with add_dx).
 *
 * @param a  uses indices, dy, dx, window. Indices that are no element of their window count nowhere
 *           or where they point, but never outside dx
 *
 * Numerics  as atto_avg_pool_backward
 * Returns   as atto_max_pool_forward; ATTO_E_NULL: dx is given without indices
 */
ATTO_API atto_status atto_max_pool_backward(atto_device *dev, const struct atto_max_pool_args *a);

#ifdef __cplusplus
}
#endif

#endif
