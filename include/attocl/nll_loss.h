/* SPDX-License-Identifier: MIT */
/* Negative log-likelihood of labels, given logarithms of probabilities. */
#ifndef ATTOCL_NLL_LOSS_H
#define ATTOCL_NLL_LOSS_H

#include <attocl/device.h>
#include <attocl/reduction.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Arguments of atto_nll_loss_forward and atto_nll_loss_backward; literal: 0 is 0, nothing is
 * defaulted.
 *
 * C > 0 classes; a position is what has one loss: all indices of x but the class. "Positions" as a
 * shape is that of x without its class dimension: [] for [C], [N] for [N, C], [N, d1, ...] for
 * [N, C, d1, ...]. There may be no positions at all.
 */
struct atto_nll_loss_args {
    const atto_tensor *x;      /**< in   [C], [N, C] or [N, C, d1, ...]  f32 f16 bf16; logarithms of
                                         probabilities. Not used by backward */
    const atto_tensor *target; /**< in   positions, i32 i64: labels 0 to C - 1 */
    const atto_tensor *weight; /**< in   [C]  f32 or like x; NULL = 1 for every class */
    const atto_tensor *loss;   /**< out  []   f32; with ATTO_REDUCTION_NONE: positions */
    const atto_tensor *total;  /**< saved, [], f32: what the mean divides by; NULL = not wanted;
                                    spares backward a pass over the labels */
    const atto_tensor *dloss;  /**< in   like loss */
    const atto_tensor *dx;     /**< out  shaped like x, f32 f16 bf16; NULL = not wanted */
    bool add_dx;               /**< += instead of =; only elements at labels are touched then */
    atto_reduction reduction;
    bool has_ignore_index;
    int64_t ignore_index; /**< the label of positions that do not count, if has_ignore_index; any
                               value, also a class */
    uint64_t reserved[4]; /**< must be 0 */
};

/**
 * The loss of labels, PyTorch's.
 *
 *     each[p] = - weight[label] * x[p][label];   0 where the label is ignored
 *     loss    = sum of each / total, sum of each, or each
 *     total   = sum of weight[label] over the positions that count
 *
 * Of x only what the labels name is read, and the labels once.
 *
 * @param dev  device that owns every buffer below
 * @param a    uses x, target, weight, loss, total, reduction, has_ignore_index, ignore_index
 *
 * Saved     target, weight; total if wanted
 * Numerics  computed in f32 whatever the dtype; sums have a fixed order, so that equal calls give
 *           equal bits. The mean over nothing is NaN, the sum 0
 * Data      a label outside 0 to C - 1 that is not ignored makes its position's loss NaN, its
 *           gradient 0, is left out of total, and is told by the next sync or host read as
 *           ATTO_E_INDEX, once
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE     x has no class, or another tensor not the shape above
 *           ATTO_E_DTYPE     a dtype that is not in the table above
 *           ATTO_E_ARGUMENT  unknown reduction
 * Source    PyTorch 2.11 torch.nn.functional.nll_loss
 */
ATTO_API atto_status atto_nll_loss_forward(atto_device *dev, const struct atto_nll_loss_args *a);

/**
 * Its gradient, in one pass.
 *
 *     g        = dloss / total, dloss, or dloss[p]
 *     dx[p][c] = - g * weight[c] where c is the label of position p, else 0  (+ old, with add_dx)
 *
 * @param a  uses target, weight, total, dloss, dx and the numbers of forward. weight is f32 or like
 *           dx
 */
ATTO_API atto_status atto_nll_loss_backward(atto_device *dev, const struct atto_nll_loss_args *a);

#ifdef __cplusplus
}
#endif

#endif
