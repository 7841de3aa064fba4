/* SPDX-License-Identifier: MIT */
/* Dropout. */
#ifndef ATTOCL_DROPOUT_H
#define ATTOCL_DROPOUT_H

#include <attocl/device.h>
#include <attocl/rng.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Arguments of atto_dropout_forward and atto_dropout_backward; literal: p = 0 keeps everything. */
struct atto_dropout_args {
    const atto_tensor *x;  /**< in   any shape    f32 f16 bf16; not used by backward */
    const atto_tensor *y;  /**< out  like x       overwritten; may be x itself */
    const atto_tensor *dy; /**< in   any shape    f32 f16 bf16 */
    const atto_tensor *dx; /**< out  like dy      may be dy itself; NULL = not wanted */
    bool add_dx;           /**< dx += instead of dx = */
    float p;               /**< probability of setting an element to 0, 0 <= p <= 1 */
    atto_rng rng;          /**< which mask; the same value in forward and backward */
    uint64_t reserved[4];  /**< must be 0 */
};

/**
 * Sets elements to 0 with probability p and scales the others so that the mean stays.
 *
 *     y[i] = keep[i] * x[i] / (1 - p);    p = 0: y = x;    p = 1: y = 0
 *
 * A dropped element is 0 whatever x holds, NaN and infinity too.
 *
 * @param dev  device that owns every buffer below
 * @param a    uses x, y, p, rng
 *
 * Saved     nothing but p and rng: backward draws the mask again
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_NULL      dev, a, x or y is NULL
 *           ATTO_E_SHAPE     y is not shaped like x (0 elements are fine)
 *           ATTO_E_DTYPE     x is not f32, f16 or bf16, or y differs from x
 *           ATTO_E_ARGUMENT  p outside [0, 1] or NaN, unknown rng kind
 *           ATTO_E_STRIDE    y overlaps itself or has stride 0
 *           ATTO_E_ALIAS     y overlaps x without being the same view
 *           ATTO_E_DEVICE    a buffer of another device
 * Source    Srivastava et al. 2014, JMLR 15
 */
ATTO_API atto_status atto_dropout_forward(atto_device *dev, const struct atto_dropout_args *a);

/**
 * Its gradient.
 *
 *     dx[i] = keep[i] * dy[i] / (1 - p)         (+ dx[i] with add_dx)
 *
 * @param a    uses dy, dx, add_dx, p, rng
 *
 * Returns as atto_dropout_forward.
 */
ATTO_API atto_status atto_dropout_backward(atto_device *dev, const struct atto_dropout_args *a);

#ifdef __cplusplus
}
#endif

#endif
