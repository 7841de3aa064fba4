/* SPDX-License-Identifier: MIT */
/* Normalisation over the trailing dimensions: layer norm and RMS norm. */
#ifndef ATTOCL_LAYER_NORM_H
#define ATTOCL_LAYER_NORM_H

#include <attocl/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Arguments of atto_layer_norm_forward and atto_layer_norm_backward; literal: 0 is 0, nothing is
 * defaulted.
 *
 * The last `dims` dimensions of x are normalised together; "normalised" as a shape is those, "rows"
 * the others: x [2, 3, 4, 5] with dims = 2 has 2 x 3 rows of 4 x 5 elements.
 */
struct atto_layer_norm_args {
    const atto_tensor *x; /**< in   [rows, normalised]  f32 f16 bf16 */
    const atto_tensor *w; /**< in   [normalised]  f32 or like x; NULL = 1 */
    const atto_tensor *b; /**< in   [normalised]  f32 or like x; NULL = 0; with or without w */
    const atto_tensor *y; /**< out  like x */
    const atto_tensor
        *mean; /**< saved  [rows]  f32; NULL = not wanted, which forward alone allows */
    const atto_tensor *rstd;     /**< saved  [rows]  f32; likewise */
    const atto_tensor *dy;       /**< in   like x */
    const atto_tensor *dx;       /**< out  like x */
    const atto_tensor *dw;       /**< out  [normalised]  f32 or like x */
    const atto_tensor *db;       /**< out  [normalised]  f32 or like x */
    bool add_dx, add_dw, add_db; /**< += instead of = */
    int32_t dims;                /**< 1 to the rank of x */
    float eps;                   /**< added to the variance; 0 or more */
    uint64_t reserved[4];        /**< must be 0 */
};

/**
 * Layer normalisation, PyTorch's.
 *
 *     mean[r] = sum of x[r] / F,   F elements in a row
 *     rstd[r] = 1 / sqrt(sum of (x[r] - mean[r])^2 / F + eps)
 *     y[r][i] = (x[r][i] - mean[r]) * rstd[r] * w[i] + b[i]
 *
 * @param dev  device that owns every buffer below
 * @param a    uses x, w, b, y, mean, rstd, dims, eps
 *
 * Saved     x, w, mean, rstd
 * Numerics  computed in f32 whatever the dtype. Deviations from the mean are formed before they are
 *           squared, so that no digits are lost where the mean is large; rows whose sum overflows
 *           f32 give NaN, rows whose squares do give b
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE     dims is not 1 to the rank of x, or a tensor not of the shape above
 *           ATTO_E_DTYPE     a dtype that is not in the table above
 *           ATTO_E_ARGUMENT  eps is negative, infinite or NaN
 * Source    Ba, Kiros, Hinton 2016, arXiv:1607.06450; PyTorch 2.11 torch.nn.functional.layer_norm
 */
ATTO_API atto_status atto_layer_norm_forward(atto_device *dev,
                                             const struct atto_layer_norm_args *a);

/**
 * Its gradients. With g = dy * w and n[r][i] = (x[r][i] - mean[r]) * rstd[r]:
 *
 *     dx[r][i] = rstd[r] * (g[r][i] - sum of g[r] / F - n[r][i] * sum of (g[r] n[r]) / F)
 *     dw[i]    = sum over r of dy[r][i] * n[r][i]
 *     db[i]    = sum over r of dy[r][i]                              (each + old, with add_...)
 *
 * @param a  uses x, w, mean, rstd, dy, dx, dw, db, dims and the add_ flags
 *
 * Numerics  sums are in f32 and in an order that depends on the shape and the device. Of no rows
 *           dw and db are 0
 * Returns   as atto_layer_norm_forward
 */
ATTO_API atto_status atto_layer_norm_backward(atto_device *dev,
                                              const struct atto_layer_norm_args *a);

/** Arguments of atto_rms_norm_forward and atto_rms_norm_backward, with the words of the above. */
struct atto_rms_norm_args {
    const atto_tensor *x; /**< in   [rows, normalised]  f32 f16 bf16 */
    const atto_tensor *w; /**< in   [normalised]  f32 or like x; NULL = 1 */
    const atto_tensor *y; /**< out  like x */
    const atto_tensor
        *rstd;             /**< saved  [rows]  f32; NULL = not wanted, which forward alone allows */
    const atto_tensor *dy; /**< in   like x */
    const atto_tensor *dx; /**< out  like x */
    const atto_tensor *dw; /**< out  [normalised]  f32 or like x */
    bool add_dx, add_dw;   /**< += instead of = */
    int32_t dims;          /**< 1 to the rank of x */
    float eps;             /**< added to the mean square; 0 or more */
    uint64_t reserved[4];  /**< must be 0 */
};

/**
 * Division by the root of the mean square, PyTorch's.
 *
 *     rstd[r] = 1 / sqrt(sum of x[r]^2 / F + eps)
 *     y[r][i] = x[r][i] * rstd[r] * w[i]
 *
 * @param a  uses x, w, y, rstd, dims, eps
 *
 * Saved     x, w, rstd
 * Numerics  computed in f32 whatever the dtype: squares of f16 do not overflow
 * Returns   as atto_layer_norm_forward
 * Source    Zhang, Sennrich 2019, arXiv:1910.07467; PyTorch 2.11 torch.nn.functional.rms_norm
 */
ATTO_API atto_status atto_rms_norm_forward(atto_device *dev, const struct atto_rms_norm_args *a);

/**
 * Its gradients. With g = dy * w and n[r][i] = x[r][i] * rstd[r]:
 *
 *     dx[r][i] = rstd[r] * (g[r][i] - n[r][i] * sum of (g[r] n[r]) / F)
 *     dw[i]    = sum over r of dy[r][i] * n[r][i]                     (each + old, with add_...)
 *
 * @param a  uses x, w, rstd, dy, dx, dw, dims and the add_ flags
 *
 * Returns   as atto_layer_norm_forward
 */
ATTO_API atto_status atto_rms_norm_backward(atto_device *dev, const struct atto_rms_norm_args *a);

#ifdef __cplusplus
}
#endif

#endif
