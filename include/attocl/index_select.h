/* SPDX-License-Identifier: MIT */
/* Rows that an index names: index_select, and embedding, which is its case dim = 0. */
#ifndef ATTOCL_INDEX_SELECT_H
#define ATTOCL_INDEX_SELECT_H

#include <attocl/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Arguments of atto_index_select_forward and atto_index_select_backward; literal: 0 is 0. */
struct atto_index_select_args {
    const atto_tensor *x; /**< in   [outer..., n, inner...], n along dim  f32 f16 bf16. Not used by
                                        backward */
    const atto_tensor *index; /**< in   any shape, also []: a position each; i32 i64, 0 to n - 1 */
    const atto_tensor *y;     /**< out  [outer..., index..., inner...], like x   overwritten */
    const atto_tensor *dy;    /**< in   like y */
    const atto_tensor *dx;    /**< out  like x                        NULL = not wanted */
    bool add_dx;              /**< dx += instead of dx = */
    int32_t dim;          /**< the dimension that the index's take the place of; -1 is the last */
    bool has_padding;     /**< padding holds */
    int64_t padding;      /**< 0 to n - 1: this row gets no gradient, forward reads it as any */
    uint64_t reserved[4]; /**< must be 0 */
};

/**
 * Rows of x in the order of the index.
 *
 *     y[o][p][i] = x[o][index[p]][i],  o and i over the dimensions before and behind dim
 *
 * dim = 0 and a matrix x: an embedding. A vector as the index: torch.index_select.
 *
 * @param dev  device that owns every buffer below
 * @param a    uses x, index, y, dim, has_padding, padding
 *
 * Saved     index
 * Numerics  elements are moved as they are
 * Data      an index outside 0 to n - 1 (negative ones are, too) makes its rows of y NaN, and is
 *           told by the next sync or host read as ATTO_E_INDEX, once; nothing outside x is read
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE     x has no dimension; y is not what x, index and dim make, or would have
 *                            more than ATTO_MAX_RANK dimensions
 *           ATTO_E_DTYPE     a dtype that is not in the table above
 *           ATTO_E_ARGUMENT  dim outside -rank to rank - 1; padding outside 0 to n - 1
 * Source    PyTorch 2.11 torch.index_select, torch.nn.functional.embedding
 */
ATTO_API atto_status atto_index_select_forward(atto_device *dev,
                                               const struct atto_index_select_args *a);

/**
 * Its gradient.
 *
 *     dx[o][r][i] = sum of dy[o][p][i] over the positions p with index[p] == r and r != padding
 *                   (+ dx[o][r][i] with add_dx)
 *
 * Numerics  summed in f32 in ascending order of p, behind the old value if there is one, and rounded
 *           once: equal calls give equal bits
 * Data      an index outside 0 to n - 1 adds to no row and is told as by forward
 *
 * @param a  uses index, dy, dx, add_dx and the numbers of forward
 */
ATTO_API atto_status atto_index_select_backward(atto_device *dev,
                                                const struct atto_index_select_args *a);

#ifdef __cplusplus
}
#endif

#endif
