/* SPDX-License-Identifier: MIT */
/* Softmax, its logarithm, and softmin. */
#ifndef ATTOCL_SOFTMAX_H
#define ATTOCL_SOFTMAX_H

#include <attocl/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Which of them. */
typedef enum atto_softmax_kind {
#define X(NAME, name) ATTO_SOFTMAX_##NAME,
    ATTO_SOFTMAX_TABLE(X)
#undef X
        ATTO_SOFTMAX_COUNT
} atto_softmax_kind;

/** "softmax", "log_softmax", "softmin"; "?" for a value that is none. */
ATTO_API const char *atto_softmax_name(atto_softmax_kind kind);

/** Arguments of atto_softmax_forward and atto_softmax_backward; literal: dim 0 is the first one. */
struct atto_softmax_args {
    const atto_tensor *x;  /**< in   any shape    f32 f16 bf16; not used by backward */
    const atto_tensor *y;  /**< saved, like x     overwritten by forward */
    const atto_tensor *dy; /**< in   like y */
    const atto_tensor *dx; /**< out  like y       NULL = not wanted */
    bool add_dx;           /**< dx += instead of dx = */
    atto_softmax_kind kind;
    int32_t dim;          /**< the dimension that is summed over; -1 is the last */
    uint64_t reserved[4]; /**< must be 0 */
};

/**
 * Softmax over one dimension.
 *
 *     softmax      y = e / sum of e,           e = exp(x - max x)
 *     log_softmax  y = (x - max x) - log(sum of e)
 *     softmin      softmax of -x
 *
 * max and sum run over the elements along dim; the other indices are fixed.
 *
 * @param dev  device that owns every buffer below
 * @param a    uses x, y, kind, dim
 *
 * Saved     y (pass it to atto_softmax_backward)
 * Numerics  computed in f32 whatever the dtype; sums have a fixed order, so that equal calls give
 *           equal bits. What is all -inf (softmin: inf) along dim, or holds NaN or the other
 *           infinity, gives NaN, as PyTorch's. Bounds in docs/numerics.md
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE     y is not shaped like x (0 elements are fine)
 *           ATTO_E_DTYPE     x is not f32, f16 or bf16, or y differs from x
 *           ATTO_E_ARGUMENT  dim outside -rank to rank - 1 (rank 0 counts as 1), unknown kind
 * Source    PyTorch 2.11 torch.nn.functional.softmax, log_softmax, softmin
 */
ATTO_API atto_status atto_softmax_forward(atto_device *dev, const struct atto_softmax_args *a);

/**
 * Its gradient.
 *
 *     softmax      dx = y * (dy - sum of dy * y)              (+ dx[i] with add_dx)
 *     log_softmax  dx = dy - exp(y) * (sum of dy)
 *     softmin      dx = - y * (dy - sum of dy * y)
 *
 * @param a    uses y, dy, dx, add_dx, kind, dim. y is forward's output
 *
 * Returns   as atto_softmax_forward
 */
ATTO_API atto_status atto_softmax_backward(atto_device *dev, const struct atto_softmax_args *a);

#ifdef __cplusplus
}
#endif

#endif
