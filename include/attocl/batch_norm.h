/* SPDX-License-Identifier: MIT */
/* Batch norm, with a residual and an activation behind it. */
#ifndef ATTOCL_BATCH_NORM_H
#define ATTOCL_BATCH_NORM_H

#include <attocl/act.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Arguments of atto_batch_norm_forward and atto_batch_norm_backward; literal: 0 is 0, nothing is
 * defaulted.
 *
 * C channels; M = N * d1 * ... values in each.
 */
struct atto_batch_norm_args {
    const atto_tensor *x;            /**< in   [N, C] or [N, C, d1, ...]  f32 f16 bf16 */
    const atto_tensor *w;            /**< in   [C]  f32 or like x; NULL = 1 */
    const atto_tensor *b;            /**< in   [C]  f32 or like x; NULL = 0; with or without w */
    const atto_tensor *residual;     /**< in   like x; NULL = none */
    const atto_tensor *running_mean; /**< in and out  [C]  f32; NULL = none */
    const atto_tensor *running_var;  /**< in and out  [C]  f32; both or none */
    const atto_tensor *batches;      /**< in and out  []  i64: batches seen; NULL = not counted */
    const atto_tensor *y;            /**< out  like x */
    const atto_tensor *mean;      /**< saved  [C]  f32; NULL = not wanted, which forward allows */
    const atto_tensor *rstd;      /**< saved  [C]  f32; likewise */
    const atto_tensor *dy;        /**< in   like x */
    const atto_tensor *dx;        /**< out  like x */
    const atto_tensor *dw;        /**< out  [C]  f32 or like x */
    const atto_tensor *db;        /**< out  [C]  f32 or like x */
    const atto_tensor *dresidual; /**< out  like x */
    bool add_dx, add_dw, add_db, add_dresidual; /**< += instead of = */
    atto_activation act;                        /**< behind the residual */
    bool training; /**< statistics are the batch's, and running ones follow; else those are used */
    bool
        cumulative; /**< running statistics are means over `batches`: momentum is 1 / their number */
    float momentum;       /**< share of the batch in the running statistics; else */
    float eps;            /**< added to the variance; 0 or more */
    uint64_t reserved[4]; /**< must be 0 */
};

/**
 * Batch normalisation, PyTorch's; residual and activation as attorch has them.
 *
 *     training   mean[c] = sum of x / M,  var[c] = sum of (x - mean[c])^2 / M     over all but c
 *                running_mean = (1 - momentum) * running_mean + momentum * mean
 *                running_var  = (1 - momentum) * running_var  + momentum * var * M / (M - 1)
 *                batches      = batches + 1, before momentum = 1 / batches where cumulative
 *     else       mean = running_mean, var = running_var
 *     y = act((x - mean[c]) * rstd[c] * w[c] + b[c] + residual),  rstd[c] = 1 / sqrt(var[c] + eps)
 *
 * @param dev  device that owns every buffer below
 * @param a    uses all but the gradients
 *
 * Saved     x, w, mean, rstd; b and residual unless act is the identity
 * Numerics  computed in f32 whatever the dtype; parts of a channel are merged by their means and
 *           squared deviations, so that no digits are lost where the mean is large. Sums have an
 *           order that the shape and the device decide
 * Layout    tensors without gaps, row-major or channels_last, are taken as they are; x and the like
 *           that do not lie as the output does are packed first
 * Empty     N = 0 changes no running statistics and counts no batch
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_NULL      not training, and there are no running statistics; one of two of them;
 *                            cumulative, and batches is NULL
 *           ATTO_E_SHAPE     x has fewer than 2 dimensions, or a tensor not the shape above
 *           ATTO_E_DTYPE     a dtype that is not in the table above
 *           ATTO_E_ARGUMENT  training with M = 1, a variance of one value; eps is negative,
 *                            infinite or NaN; momentum infinite or NaN; activation as in
 *                            attocl/act.h
 * Source    Ioffe, Szegedy 2015, arXiv:1502.03167; PyTorch 2.11 torch.nn.functional.batch_norm
 */
ATTO_API atto_status atto_batch_norm_forward(atto_device *dev,
                                             const struct atto_batch_norm_args *a);

/**
 * Its gradients. With n = (x - mean[c]) * rstd[c] and dz = act'(n * w[c] + b[c] + residual) * dy:
 *
 *     db[c] = sum of dz,  dw[c] = sum of dz * n
 *     dx    = w[c] * rstd[c] * (dz - (db[c] + n * dw[c]) / M)     training
 *             w[c] * rstd[c] * dz                                 else
 *     dresidual = dz                                              (each + old, with add_...)
 *
 * @param a  uses x, w, mean, rstd, dy, act, training, the gradients, and b and residual unless act
 *           is the identity
 *
 * Returns   as atto_batch_norm_forward
 */
ATTO_API atto_status atto_batch_norm_backward(atto_device *dev,
                                              const struct atto_batch_norm_args *a);

#ifdef __cplusplus
}
#endif

#endif
