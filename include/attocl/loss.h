/* SPDX-License-Identifier: MIT */
/* Losses that compare two tensors element by element. For labels: nll_loss.h, cross_entropy.h. */
#ifndef ATTOCL_LOSS_H
#define ATTOCL_LOSS_H

#include <attocl/device.h>
#include <attocl/reduction.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum atto_loss_kind {
#define X(NAME, name, rule) ATTO_LOSS_##NAME,
    ATTO_LOSS_TABLE(X)
#undef X
        ATTO_LOSS_COUNT
} atto_loss_kind;

/** "l1", "kl_div", ...; "?" for a value that is no kind. */
ATTO_API const char *atto_loss_name(atto_loss_kind kind);

/**
 * Arguments of atto_loss_forward and atto_loss_backward; literal: 0 is 0, nothing is defaulted.
 *
 * x and target broadcast (attocl/elementwise.h says how); "full" is the shape that they make
 * together.
 */
struct atto_loss_args {
    const atto_tensor *x;          /**< in   any shape   f32 f16 bf16; what the network says */
    const atto_tensor *target;     /**< in   any shape   like x; what it should say. Of
                                        BCE_WITH_LOGITS: x's shape */
    const atto_tensor *weight;     /**< in   broadcasts to full, f32 or like x: a factor of each
                                        element's loss; NULL = 1. Of BCE_WITH_LOGITS only */
    const atto_tensor *pos_weight; /**< in   the same, in weight's dtype if that is there: a factor
                                        of the share of the positive class */
    const atto_tensor *loss;       /**< out  []   f32; with ATTO_REDUCTION_NONE: full */
    const atto_tensor *dloss;      /**< in   like loss */
    const atto_tensor *dx;         /**< out  like x        NULL = not wanted */
    const atto_tensor *dtarget;    /**< out  like target   NULL = not wanted */
    bool add_dx, add_dtarget;      /**< += instead of = */
    atto_loss_kind kind;
    atto_reduction reduction;
    float threshold;      /**< beta of SMOOTH_L1, >= 0 and finite; delta of HUBER, > 0 and finite */
    uint64_t reserved[4]; /**< must be 0 */
};

/**
 * A loss of each element, and their mean, sum, or all of them. d = x - t, t = target:
 *
 *     L1               |d|
 *     MSE              d^2
 *     SMOOTH_L1        d^2 / (2 beta) where |d| < beta, else |d| - beta / 2; L1 where beta is 0
 *     HUBER            d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2)
 *     BCE_WITH_LOGITS  w ((1 - t) log(1 + e^x) + p t log(1 + e^-x)), w = weight, p = pos_weight
 *     KL_DIV           t (log t - x); x holds logarithms of probabilities, t probabilities
 *     KL_DIV_LOG       e^t (t - x); t holds logarithms as well
 *
 *     loss = sum / n   MEAN: n = elements of the full shape (weights do not count);
 *                      BATCH_MEAN: n = x's first size, 1 where x has no dimension
 *            sum       SUM
 *            each      NONE
 *
 * @param dev  device that owns every buffer below
 * @param a    uses x, target, weight, pos_weight, loss, kind, reduction, threshold
 *
 * Saved     x, target, weight, pos_weight
 * Numerics  computed in f32 whatever the dtype, without overflow for any logit; sums have an order
 *           that depends on the shape and the device's work-groups, so that equal calls give equal
 *           bits. The mean over nothing is NaN, the sum 0. Where t is 0, KL_DIV is -t x
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE     x and target do not broadcast, or another tensor not the shape above
 *           ATTO_E_DTYPE     a dtype that is not in the table above
 *           ATTO_E_ARGUMENT  unknown kind or reduction, an illegal threshold, weights of a kind
 *                            that has none
 * Source    PyTorch 2.11 torch.nn.functional: l1_loss, mse_loss, smooth_l1_loss, huber_loss,
 *           binary_cross_entropy_with_logits, kl_div
 */
ATTO_API atto_status atto_loss_forward(atto_device *dev, const struct atto_loss_args *a);

/**
 * Its gradients, g = dloss / n, dloss, or each element's.
 *
 *     L1               dx = g sign(d), 0 at 0                             dtarget = -dx
 *     MSE              dx = g 2 d                                         dtarget = -dx
 *     SMOOTH_L1        dx = g d / beta, from -g to g                      dtarget = -dx
 *     HUBER            dx = g d, from -g delta to g delta                 dtarget = -dx
 *     BCE_WITH_LOGITS  dx = g w ((1 - t) sigmoid(x) - p t sigmoid(-x))
 *                      dtarget = g w (p log(1 + e^-x) - log(1 + e^x))
 *     KL_DIV           dx = -g t      dtarget = g (log t + 1 - x), 0 where t is 0
 *     KL_DIV_LOG       dx = -g e^t    dtarget = g e^t (t - x + 1)
 *
 * The gradient of a tensor that was repeated is the sum over the repetitions, in f32; only then
 * there is scratch of the full size.
 *
 * @param a  uses x, target, weight, pos_weight, dloss, dx, dtarget and the numbers of forward
 */
ATTO_API atto_status atto_loss_backward(atto_device *dev, const struct atto_loss_args *a);

#ifdef __cplusplus
}
#endif

#endif
