/* SPDX-License-Identifier: MIT */
/* Gated linear units. */
#ifndef ATTOCL_GLU_H
#define ATTOCL_GLU_H

#include <attocl/act.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Arguments of atto_glu_forward and atto_glu_backward; literal: a zeroed act is the identity, and dim 0
 * is the first one. */
struct atto_glu_args {
    const atto_tensor *x;  /**< in   any shape whose size along dim is even   f32 f16 bf16 */
    const atto_tensor *y;  /**< out  like x with half that size               overwritten */
    const atto_tensor *dy; /**< in   like y */
    const atto_tensor *dx; /**< out  like x                                   NULL = not wanted */
    bool add_dx;           /**< dx += instead of dx = */
    atto_activation act;   /**< of the gate; PyTorch's GLU: atto_sigmoid() */
    int32_t dim;           /**< the dimension that is halved; -1 is the last */
    uint64_t reserved[4];  /**< must be 0 */
};

/**
 * Gated linear unit: the first half along dim, times an activation of the second.
 *
 *     y = a * act(b),  x = a and b one behind the other along dim
 *
 * act = atto_sigmoid(): GLU. atto_silu(): SwiGLU. atto_gelu(): GEGLU. atto_relu(): ReGLU.
 * atto_identity(): the bilinear form.
 *
 * @param dev  device that owns every buffer below
 * @param a    uses x, y, act, dim
 *
 * Saved     x (pass it to atto_glu_backward)
 * Numerics  computed in f32 whatever the dtype, rounded once; bounds of act in docs/numerics.md
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE     x has no dimension or an odd size along dim; y has not half of it
 *                            (0 elements are fine)
 *           ATTO_E_DTYPE     x is not f32, f16 or bf16, or y differs from x
 *           ATTO_E_ARGUMENT  dim outside -rank to rank - 1; act as in atto_act_forward
 * Source    PyTorch 2.11 torch.nn.functional.glu; Shazeer 2020, arXiv:2002.05202
 */
ATTO_API atto_status atto_glu_forward(atto_device *dev, const struct atto_glu_args *a);

/**
 * Its gradient.
 *
 *     da = dy * act(b),  db = dy * a * act'(b),  dx = da and db along dim   (+ dx[i] with add_dx)
 *
 * @param a    uses x, dy, dx, add_dx, act, dim. x is forward's input
 *
 * Returns   as atto_glu_forward
 */
ATTO_API atto_status atto_glu_backward(atto_device *dev, const struct atto_glu_args *a);

#ifdef __cplusplus
}
#endif

#endif
