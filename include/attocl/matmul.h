/* SPDX-License-Identifier: MIT */
/* Matmul: products of matrices and of batches of them, with broadcasting. */
#ifndef ATTOCL_MATMUL_H
#define ATTOCL_MATMUL_H

#include <attocl/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Arguments of atto_matmul_forward and atto_matmul_backward. Each tensor is a batch of matrices:
 * the last two of its 2 to 8 dimensions are a matrix's rows and columns. The dimensions before them
 * broadcast from the right, as NumPy's do: a has those of the batch, or 1, or lacks them. Any size
 * may be 0.
 *
 * Matrices may be transposed views (atto_tensor_transpose) and their batch permuted or expanded;
 * nothing is copied as long as rows or columns have unit stride.
 */
struct atto_matmul_args {
    const atto_tensor *a;  /**< in   [..., M, K]  f32 f16 bf16 */
    const atto_tensor *b;  /**< in   [..., K, N]  like a */
    const atto_tensor *y;  /**< out  [..., M, N]  like a, or f32 */
    const atto_tensor *dy; /**< in   like y */
    const atto_tensor *da; /**< out  [..., M, K]  like a, or f32; needs b */
    const atto_tensor *db; /**< out  [..., K, N]  like b, or f32; needs a */
    bool add_da, add_db;   /**< += instead of = */
    uint64_t reserved[4];  /**< must be 0 */
};

/**
 * Product of each matrix of a with its partner in b.
 *
 *     y[..., m, n] = sum over k of a[..., m, k] * b[..., k, n]          0 where K is 0
 *
 * @param dev  device that owns every buffer below
 * @param p    uses a, b, y
 *
 * Saved     a, b
 * Numerics  products and sums in f32 whatever the dtype, rounded once. The order of summation
 *           depends on shapes, strides and device only
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE  a or b has fewer than two dimensions, K differs, the batches do not
 *                         broadcast, or y is not what they make
 *           ATTO_E_DTYPE  a combination that is not in the table above
 * Source    PyTorch 2.11 torch.matmul
 */
ATTO_API atto_status atto_matmul_forward(atto_device *dev, const struct atto_matmul_args *p);

/**
 * Its gradients.
 *
 *     da = dy b^T          db = a^T dy          (+ old, with add_...)
 *
 * The gradient of an operand that was repeated along the batch is the sum over its repetitions.
 *
 * @param p  uses dy; b for da; a for db; da, db
 *
 * Numerics  the sum over repetitions is part of the f32 sum, in a fixed order
 * Returns   as atto_matmul_forward; ATTO_E_NULL names what a wanted gradient lacks
 */
ATTO_API atto_status atto_matmul_backward(atto_device *dev, const struct atto_matmul_args *p);

#ifdef __cplusplus
}
#endif

#endif
