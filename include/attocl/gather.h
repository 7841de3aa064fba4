/* SPDX-License-Identifier: MIT */
/* Elements that an index names one by one. */
#ifndef ATTOCL_GATHER_H
#define ATTOCL_GATHER_H

#include <attocl/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Arguments of atto_gather_forward and atto_gather_backward; literal: 0 is 0. */
struct atto_gather_args {
    const atto_tensor *x; /**< in   at least one dimension, n elements along dim  f32 f16 bf16. Not
                                        used by backward */
    const atto_tensor *index; /**< in   as many dimensions; along all but dim at most x's size;
                                        i32 i64, 0 to n - 1 */
    const atto_tensor *y;     /**< out  the index's shape, x's dtype            overwritten */
    const atto_tensor *dy;    /**< in   like y */
    const atto_tensor *dx;    /**< out  like x                        NULL = not wanted */
    bool add_dx;              /**< dx += instead of dx = */
    int32_t dim;              /**< -1 is the last */
    uint64_t reserved[4];     /**< must be 0 */
};

/**
 * One element of x for each element of the index.
 *
 *     y[i][j][k] = x[i][index[i][j][k]][k]   for dim 1 of three; others likewise
 *
 * @param dev  device that owns every buffer below
 * @param a    uses x, index, y, dim
 *
 * Saved     index
 * Numerics  elements are moved as they are
 * Data      an index outside 0 to n - 1 (negative ones are, too) makes its element of y NaN, and is
 *           told by the next sync or host read as ATTO_E_INDEX, once; nothing outside x is read
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE     x has no dimension; the index has not as many, or is larger than x
 *                            along another dimension than dim; y is not shaped like the index
 *           ATTO_E_DTYPE     a dtype that is not in the table above
 *           ATTO_E_ARGUMENT  dim outside -rank to rank - 1
 * Source    PyTorch 2.11 torch.gather
 */
ATTO_API atto_status atto_gather_forward(atto_device *dev, const struct atto_gather_args *a);

/**
 * Its gradient.
 *
 *     dx[i][r][k] = sum of dy[i][j][k] over the j with index[i][j][k] == r  (+ dx[i][r][k] with add_dx)
 *
 * Numerics  summed in f32 in ascending order of j, behind the old value if there is one, and rounded
 *           once: equal calls give equal bits
 * Data      an index outside 0 to n - 1 adds to no element and is told as by forward
 *
 * @param a  uses index, dy, dx, add_dx, dim
 */
ATTO_API atto_status atto_gather_backward(atto_device *dev, const struct atto_gather_args *a);

#ifdef __cplusplus
}
#endif

#endif
