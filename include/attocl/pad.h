/* SPDX-License-Identifier: MIT */
/* Padding: elements around a tensor, constant or taken from it. */
#ifndef ATTOCL_PAD_H
#define ATTOCL_PAD_H

#include <attocl/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Where elements outside come from, in a dimension of n elements, numbered as x's: -1 is the first
 * in front, n the first behind.
 *
 *     constant   they are a value
 *     reflect    -i is i, n - 1 + i is n - 1 - i: the elements at the edges are not repeated
 *     replicate  the nearest element
 *     circular   i - n and i + n are i
 *
 * A corner is outside in more than one dimension, each of which is looked up for itself. */
typedef enum atto_pad_kind {
#define X(NAME, name) ATTO_PAD_##NAME,
    ATTO_PAD_TABLE(X)
#undef X
        ATTO_PAD_COUNT
} atto_pad_kind;

/** Arguments of atto_pad_forward and atto_pad_backward. */
struct atto_pad_args {
    const atto_tensor *x;  /**< in   any shape; any dtype */
    const atto_tensor *y;  /**< out  [x's size + before + after] in every dimension; like x */
    const atto_tensor *dy; /**< in   like y; f32 f16 bf16 */
    const atto_tensor *dx; /**< out  like x */
    bool add_dx;           /**< += instead of = */
    atto_pad_kind mode;
    double value;                  /**< constant: what is outside, rounded to x's dtype */
    int64_t before[ATTO_MAX_RANK]; /**< by dimension of x; constant: below 0 cuts elements off */
    int64_t after[ATTO_MAX_RANK];
    uint64_t reserved[4]; /**< must be 0 */
};

/**
 * x with elements around it.
 *
 * @param dev  device that owns every buffer below
 * @param a    uses x, y, mode, value, before, after
 *
 * Memory    x and y row-major, or both with dimension 1 innermost (channels_last); of others, or
 *           where they differ, packed copies are made
 * Saved     nothing
 * Numerics  elements are moved, bit by bit
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE     y has another shape than the amounts give
 *           ATTO_E_DTYPE     y's dtype is not x's; backward: not f32, f16 or bf16
 *           ATTO_E_ARGUMENT  no such mode; an amount outside what the mode allows: constant: at
 *                            least -size, before and after together not below it either; others: 0
 *                            to size - 1 (reflect), any from 0 but 0 if size is 0 (replicate), 0 to
 *                            size (circular)
 * Source    PyTorch 2.11 torch.nn.functional.pad
 */
ATTO_API atto_status atto_pad_forward(atto_device *dev, const struct atto_pad_args *a);

/**
 * Its gradient: dx = sum of dy over the elements of y that x's element became (+ dx with add_dx).
 *
 * @param a  uses dy, dx and the numbers of forward but value
 *
 * Numerics  every element gathers its sum, in f32 and in an order that shapes and amounts fix:
 *           equal calls give equal bits
 * Returns   as atto_pad_forward
 */
ATTO_API atto_status atto_pad_backward(atto_device *dev, const struct atto_pad_args *a);

#ifdef __cplusplus
}
#endif

#endif
