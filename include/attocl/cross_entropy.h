/* SPDX-License-Identifier: MIT */
/* Cross-entropy of logits against labels or probabilities. */
#ifndef ATTOCL_CROSS_ENTROPY_H
#define ATTOCL_CROSS_ENTROPY_H

#include <attocl/device.h>
#include <attocl/reduction.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Arguments of atto_cross_entropy_forward and atto_cross_entropy_backward; literal: 0 is 0, nothing
 * is defaulted.
 *
 * C > 0 classes; a position is what has one loss: all indices of x but the class. "Positions" as a
 * shape is that of x without its class dimension: [] for [C], [N] for [N, C], [N, d1, ...] for
 * [N, C, d1, ...]. There may be no positions at all.
 */
struct atto_cross_entropy_args {
    const atto_tensor *x;       /**< in   [C], [N, C] or [N, C, d1, ...]  f32 f16 bf16; logits */
    const atto_tensor *target;  /**< in   positions, i32 i64: labels 0 to C - 1; or
                                          shaped like x, f32 or like x: probabilities */
    const atto_tensor *weight;  /**< in   [C]  f32 or like x; NULL = 1 for every class */
    const atto_tensor *loss;    /**< out  []   f32; with ATTO_REDUCTION_NONE: positions */
    const atto_tensor *lse;     /**< saved, positions, f32: log of the sum of e^x over the classes;
                                     NULL = not wanted; spares backward a pass over x */
    const atto_tensor *total;   /**< saved, [], f32: what the mean divides by; NULL = not wanted;
                                     spares backward a pass over the labels */
    const atto_tensor *dloss;   /**< in   like loss */
    const atto_tensor *dx;      /**< out  like x */
    const atto_tensor *dtarget; /**< out  like target; of probabilities only */
    bool add_dx, add_dtarget;   /**< += instead of = */
    atto_reduction reduction;
    bool has_ignore_index;
    int64_t ignore_index;  /**< the label of positions that do not count, if has_ignore_index; any
                                value, also a class. A negative one has no effect on probabilities */
    float label_smoothing; /**< share of the target that goes to all classes alike, 0 to 1 */
    uint64_t reserved[4];  /**< must be 0 */
};

/**
 * Cross-entropy, PyTorch's.
 *
 *     q[p][c]  = weight[c] * ((1 - s) * t[p][c] + s / C),   s = label_smoothing
 *                t[p][c] = 1 if c is the label of position p, else 0; or the probability
 *     each[p]  = - sum over c of q[p][c] * log softmax(x[p])[c];   0 where the label is ignored
 *     loss     = sum of each / total, sum of each, or each
 *     total    = labels: sum of weight[label] over the positions that count; probabilities: the
 *                number of positions
 *
 * @param dev  device that owns every buffer below
 * @param a    uses x, target, weight, loss, lse, total, reduction, has_ignore_index, ignore_index,
 *             label_smoothing
 *
 * Saved     x, target, weight; lse and total if wanted
 * Numerics  computed in f32 whatever the dtype, as (x - max) - log(sum e^(x - max)); sums have a
 *           fixed order, so that equal calls give equal bits. The mean over nothing is NaN, the sum
 *           0
 * Data      a label outside 0 to C - 1 that is not ignored makes its position's loss NaN, its
 *           gradient 0, is left out of total, and is told by the next sync or host read as
 *           ATTO_E_INDEX, once
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE     x has no class, or another tensor not the shape above
 *           ATTO_E_DTYPE     a dtype that is not in the table above
 *           ATTO_E_ARGUMENT  label_smoothing outside [0, 1] or NaN, unknown reduction, an
 *                            ignore_index of 0 or more with probabilities
 * Source    PyTorch 2.11 torch.nn.functional.cross_entropy
 */
ATTO_API atto_status atto_cross_entropy_forward(atto_device *dev,
                                                const struct atto_cross_entropy_args *a);

/**
 * Its gradients.
 *
 *     g          = dloss / total, dloss, or dloss[p]
 *     dx[p][c]   = g * (softmax(x[p])[c] * (sum of q[p]) - q[p][c]);   0 where the label is ignored
 *     dtarget[p][c] = - g * (1 - s) * weight[c] * log softmax(x[p])[c]       (+ old, with add_...)
 *
 * @param a  uses x, target, weight, lse, total, dloss, dx, dtarget and the numbers of forward
 *
 * Numerics  from lse, softmax is off by up to |lse| roundings; without it only |x - max| count
 * Returns   as atto_cross_entropy_forward; ATTO_E_DTYPE if dtarget is given and target holds labels
 */
ATTO_API atto_status atto_cross_entropy_backward(atto_device *dev,
                                                 const struct atto_cross_entropy_args *a);

#ifdef __cplusplus
}
#endif

#endif
