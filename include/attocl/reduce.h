/* SPDX-License-Identifier: MIT */
/* Reductions over any set of dimensions. */
#ifndef ATTOCL_REDUCE_H
#define ATTOCL_REDUCE_H

#include <attocl/device.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum atto_reduce_kind {
#define X(NAME, name) ATTO_REDUCE_##NAME,
    ATTO_REDUCE_TABLE(X)
#undef X
        ATTO_REDUCE_COUNT
} atto_reduce_kind;

/** "sum", "argmax", ...; "?" for a value that is no kind. */
ATTO_API const char *atto_reduce_name(atto_reduce_kind kind);

/** Arguments of atto_reduce_forward and atto_reduce_backward; literal: 0 is 0. */
struct atto_reduce_args {
    const atto_tensor *x;  /**< in   any shape    f32 f16 bf16 */
    const atto_tensor *y;  /**< out  x's shape without the dims, or with size 1 there; like x, for
                                ARGMAX and ARGMIN i32 or i64 */
    const atto_tensor *dy; /**< in   like y */
    const atto_tensor *dx; /**< out  like x       NULL = not wanted */
    bool add_dx;           /**< dx += instead of dx = */
    atto_reduce_kind kind;
    int32_t dims[ATTO_MAX_RANK]; /**< which dimensions; -1 is the last */
    int32_t dim_count;           /**< how many of them; 0 = all dimensions */
    uint64_t reserved[4];        /**< must be 0 */
};

/**
 * SUM, MEAN, MAX or MIN over dims; ARGMAX and ARGMIN give the position of the first one.
 *
 * A position counts the elements over dims in row-major order, which for one dimension is the index
 * along it. NaN wins: MAX and MIN give NaN, ARGMAX and ARGMIN the position of the first NaN.
 *
 * Saved     x and y for MAX and MIN, nothing for SUM and MEAN
 * Numerics  sums in f32 whatever the dtype; their order depends on shape, strides and backend only
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE     y is not what x and dims make; MAX, MIN, ARGMAX or ARGMIN of no
 *                            elements (of none, SUM is 0 and MEAN is NaN)
 *           ATTO_E_DTYPE     x is not f32, f16 or bf16; y is not like x, or not i32 or i64
 *           ATTO_E_ARGUMENT  unknown kind; a dimension that x does not have, or twice; ARGMAX or
 *                            ARGMIN with an i32 y over 2^31 elements or more
 */
ATTO_API atto_status atto_reduce_forward(atto_device *dev, const struct atto_reduce_args *a);

/**
 * Its gradient.
 *
 *     SUM        dx = dy                          (+ dx with add_dx)
 *     MEAN       dx = dy / n                      n elements over dims
 *     MAX, MIN   dx = (x == y) dy / ties          evenly, as torch.amax; PyTorch's max over one
 *                                                 dimension gives all to one of them instead
 *
 * @param a  uses dy, dx, add_dx, kind, dims; x and y for MAX and MIN. Where y is NaN, dx is NaN
 *
 * Returns   as forward; ATTO_E_UNSUPPORTED for ARGMAX and ARGMIN; ATTO_E_NULL if MAX or MIN lack x
 *           or y
 */
ATTO_API atto_status atto_reduce_backward(atto_device *dev, const struct atto_reduce_args *a);

#ifdef __cplusplus
}
#endif

#endif
