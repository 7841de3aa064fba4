/* SPDX-License-Identifier: MIT */
/* Group norm, and instance norm as groups of one channel. */
#ifndef ATTOCL_GROUP_NORM_H
#define ATTOCL_GROUP_NORM_H

#include <attocl/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Arguments of atto_group_norm_forward and atto_group_norm_backward; literal: 0 is 0.
 *
 * Each image's C channels are normalised in groups of C / groups, F = C / groups * d1 * ... values
 * together. groups = C is instance norm, which alone has running statistics; groups = 1 is layer
 * norm over all but N, with parameters by channel.
 */
struct atto_group_norm_args {
    const atto_tensor *x;            /**< in   [N, C] or [N, C, d1, ...]  f32 f16 bf16 */
    const atto_tensor *w;            /**< in   [C]  f32 or like x; NULL = 1 */
    const atto_tensor *b;            /**< in   [C]  f32 or like x; NULL = 0; with or without w */
    const atto_tensor *running_mean; /**< in and out  [C]  f32; NULL = none */
    const atto_tensor *running_var;  /**< in and out  [C]  f32; both or none */
    const atto_tensor *y;            /**< out  like x */
    const atto_tensor
        *mean; /**< saved  [N, groups]  f32; NULL = not wanted, which forward allows */
    const atto_tensor *rstd;     /**< saved  [N, groups]  f32; likewise */
    const atto_tensor *dy;       /**< in   like x */
    const atto_tensor *dx;       /**< out  like x */
    const atto_tensor *dw;       /**< out  [C]  f32 or like x */
    const atto_tensor *db;       /**< out  [C]  f32 or like x */
    bool add_dx, add_dw, add_db; /**< += instead of = */
    int64_t groups;              /**< 1 or more; divides C */
    float momentum;              /**< share of the call in the running statistics */
    float eps;                   /**< added to the variance; 0 or more */
    uint64_t reserved[4];        /**< must be 0 */
};

/**
 * Group normalisation, PyTorch's. g is the group of channel c:
 *
 *     mean[n][g] = sum of x / F,  var[n][g] = sum of (x - mean)^2 / F
 *     y = (x - mean[n][g]) * rstd[n][g] * w[c] + b[c],  rstd[n][g] = 1 / sqrt(var[n][g] + eps)
 *
 *     running_mean[c] = (1 - momentum) * running_mean[c] + momentum * (mean of mean[n][c] over n)
 *     running_var[c]  = (1 - momentum) * running_var[c]
 *                       + momentum * (mean of var[n][c] * F / (F - 1))
 *
 * @param a  uses all but the gradients
 *
 * Saved     x, w, mean, rstd
 * Numerics  as batch norm
 * Layout    as batch norm
 * Empty     F = 0 gives NaN in mean and rstd; N = 0 or F = 0 changes no running statistics
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_NULL      one of two running statistics
 *           ATTO_E_SHAPE     x has fewer than 2 dimensions, or a tensor not the shape above
 *           ATTO_E_DTYPE     a dtype that is not in the table above
 *           ATTO_E_ARGUMENT  groups is below 1 or does not divide C; eps is negative, infinite or
 *                            NaN; running statistics with groups other than C, with F = 1, a
 *                            variance of one value, or with a momentum that is infinite or NaN
 * Source    Wu, He 2018, arXiv:1803.08494; PyTorch 2.11 torch.nn.functional.group_norm
 *           and instance_norm
 */
ATTO_API atto_status atto_group_norm_forward(atto_device *dev,
                                             const struct atto_group_norm_args *a);

/**
 * Its gradients. With n = (x - mean) * rstd and v = dy * w[c]:
 *
 *     db[c] = sum of dy,  dw[c] = sum of dy * n                       over images and d1, ...
 *     dx    = rstd * (v - sum of v / F - n * sum of (v n) / F)        over the group
 *                                                                     (each + old, with add_...)
 *
 * @param a  uses x, w, mean, rstd, dy, dx, dw, db, groups and the add_ flags
 *
 * Returns   as atto_group_norm_forward
 */
ATTO_API atto_status atto_group_norm_backward(atto_device *dev,
                                              const struct atto_group_norm_args *a);

#ifdef __cplusplus
}
#endif

#endif
