/* SPDX-License-Identifier: MIT */
/* Resizing: images and sequences of another height and width. */
#ifndef ATTOCL_RESIZE_H
#define ATTOCL_RESIZE_H

#include <attocl/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/** How an element of y follows from those of x around it. */
typedef enum atto_resize_kind {
#define X(NAME, name) ATTO_RESIZE_##NAME,
    ATTO_RESIZE_TABLE(X)
#undef X
        ATTO_RESIZE_COUNT
} atto_resize_kind;

/** Arguments of atto_resize_forward and atto_resize_backward. */
struct atto_resize_args {
    const atto_tensor *x;  /**< in   [N, C, H, W], [C, H, W], [N, C, L] or [C, L]  f32 f16 bf16 */
    const atto_tensor *y;  /**< out  like x, with any height and width */
    const atto_tensor *dy; /**< in   like y */
    const atto_tensor *dx; /**< out  like x */
    bool add_dx;           /**< += instead of = */
    atto_resize_kind mode;
    bool align_corners; /**< linear only */
    int32_t dims;       /**< 2 = x is [N, C, H, W] or [C, H, W]; 1 = [N, C, L] or [C, L] */
    double scale[2];    /**< {height, width}, of 1 dimension the first: how much larger y is; 0 = as
                             the sizes are. align_corners: not read */
    uint64_t reserved[4]; /**< must be 0 */
};

/**
 * Elements of x at the places of y's. Along each axis, of n elements in x and m in y, with
 * s = n / m, or 1 / scale, in f32:
 *
 *     nearest   y[o] = x[min(floor(o s), n - 1)]
 *     linear    y[o] = (1 - p) x[i] + p x[i + 1], i + p = max((o + 1/2) s - 1/2, 0);
 *               align_corners: i + p = o (n - 1) / (m - 1), or 0 if m is 1
 *               behind the last element stands the last once more
 *
 * An axis that keeps its size is taken as it is, whatever its scale, and nearest has s = 1/2 where
 * m = 2 n: as PyTorch on a CPU but for nearest of [N, C, L].
 *
 * @param dev  device that owns every buffer below
 * @param a    uses x, y, mode, align_corners, dims, scale
 *
 * Memory    x and y may have unit stride along W or along C (channels_last); of other strides, or
 *           where they differ, packed copies are made
 * Saved     nothing
 * Numerics  in f32 whatever the dtype, coordinates too, as PyTorch has them; nearest moves elements
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE     x has not dims + 1 or dims + 2 dimensions; a height or width is 0 or
 *                            above 2^31 - 1; y differs from x in anything else
 *           ATTO_E_DTYPE     x is not f32, f16 or bf16; y is not like x
 *           ATTO_E_ARGUMENT  no such mode; dims is not 1 or 2; a scale is below 0 or not finite;
 *                            align_corners with nearest
 * Source    PyTorch 2.11 torch.nn.functional.interpolate: nearest, linear, bilinear
 */
ATTO_API atto_status atto_resize_forward(atto_device *dev, const struct atto_resize_args *a);

/**
 * Its gradient: dx = sum of dy over the elements of y that x's element is in, times its share (+ dx
 * with add_dx).
 *
 * @param a  uses dy, dx and the numbers of forward
 *
 * Numerics  every element gathers its sum in order: no atomics, equal calls give equal bits
 * Returns   as atto_resize_forward
 */
ATTO_API atto_status atto_resize_backward(atto_device *dev, const struct atto_resize_args *a);

#ifdef __cplusplus
}
#endif

#endif
