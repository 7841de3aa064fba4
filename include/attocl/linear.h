/* SPDX-License-Identifier: MIT */
/* Linear: a matrix product with bias, activation, dropout and residual fused behind it. */
#ifndef ATTOCL_LINEAR_H
#define ATTOCL_LINEAR_H

#include <attocl/act.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Arguments of atto_linear_forward and atto_linear_backward; literal: 0 is 0, nothing is defaulted.
 * M rows: the product of x's leading dimensions, 1 where x is a vector. Any size may be 0.
 */
struct atto_linear_args {
    const atto_tensor *x;        /**< in   [..., K]  f32 f16 bf16 */
    const atto_tensor *w;        /**< in   [N, K]    like x; PyTorch's layout */
    const atto_tensor *b;        /**< in   [N]       like x, or f32; NULL = no bias */
    const atto_tensor *residual; /**< in   like y    NULL = none; its gradient is dy */
    const atto_tensor *y;        /**< out  [..., N]  like x, or f32 */
    const atto_tensor *z;        /**< saved, like y  x w^T + b, which the backward of an activation
                                      needs; NULL = not wanted */
    const atto_tensor *dy;       /**< in   like y */
    const atto_tensor *dx;       /**< out  like x; needs w */
    const atto_tensor *dw;       /**< out  [N, K]    like x, or f32; needs x */
    const atto_tensor *db;       /**< out  [N]       like x, or f32 */
    bool add_dx, add_dw, add_db; /**< += instead of = */
    atto_activation act;
    float dropout; /**< probability of setting an element to 0, behind the activation */
    atto_rng rng;  /**< which mask, by the logical index in y; the same in forward and backward */
    uint64_t reserved[4]; /**< must be 0 */
};

/**
 * Matrix product, bias, activation, dropout, residual.
 *
 *     z[m][n] = sum over k of x[m][k] * w[n][k]  + b[n]
 *     y[m][n] = keep[m][n] * act(z[m][n]) / (1 - p)  + residual[m][n]
 *
 * @param dev  device that owns every buffer below
 * @param a    uses x, w, b, residual, y, z, act, dropout, rng
 *
 * Saved     x, w, and z unless act is the identity
 * Numerics  products and sums in f32 whatever the dtype; everything behind the sum uses it
 *           unrounded, also where z is stored rounded. The order of summation depends on shapes and
 *           device only
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE     w is not [N, K], b not [N], y not x's shape with N for K, z or
 *                            residual not like y
 *           ATTO_E_DTYPE     a combination that is not in the table above
 *           ATTO_E_ARGUMENT  dropout, rng or activation as in attocl/act.h
 * Source    PyTorch 2.11 torch.nn.Linear
 */
ATTO_API atto_status atto_linear_forward(atto_device *dev, const struct atto_linear_args *a);

/**
 * Its gradients.
 *
 *     dz = keep * act'(z) * dy / (1 - p)
 *     dx = dz w          dw = dz^T x          db = column sums of dz      (+ old, with add_...)
 *
 * @param a  uses dy, act, dropout, rng; z unless act is the identity; w for dx; x for dw; dx, dw,
 *           db
 *
 * Numerics  dz is not rounded on the way
 * Returns   as atto_linear_forward; ATTO_E_NULL names what a wanted gradient lacks
 */
ATTO_API atto_status atto_linear_backward(atto_device *dev, const struct atto_linear_args *a);

#ifdef __cplusplus
}
#endif

#endif
