/* SPDX-License-Identifier: MIT */
/* Rotary position embedding: pairs of a head's elements turned by angles that grow with the position. */
#ifndef ATTOCL_ROPE_H
#define ATTOCL_ROPE_H

#include <attocl/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Which two elements are a pair; pair i is turned by column i of the tables. */
typedef enum atto_rope_pairing {
    ATTO_ROPE_HALVES,    /**< i and i + R/2: GPT-NeoX, Llama and others in Hugging Face's format */
    ATTO_ROPE_NEIGHBOURS /**< 2i and 2i + 1: the paper, GPT-J, Llama's own format */
} atto_rope_pairing;

/**
 * Arguments of atto_rope_forward and atto_rope_backward. B batches, H heads, L positions, heads of
 * size D, of which the first R elements are turned and the rest are copied.
 *
 * Tensors may have any strides as long as their last dimension has stride 1: heads that stand side
 * by side, [B, L, H, D], are atto_tensor_permute of it, and parts of a packed [B, L, 3, H, D] are
 * views of that. Others are packed first.
 */
struct atto_rope_args {
    const atto_tensor *x;   /**< in   [B, H, L, D]   f32 f16 bf16. Not used by backward */
    const atto_tensor *cos; /**< in   [P, R/2]   f32; R at most D: see atto_rope_tables */
    const atto_tensor *sin; /**< in   like cos */
    /** in   [L] or [B, L]   i32 i64, 0 to P - 1: the tables' row of each position. NULL = offset,
     * offset + 1, ... */
    const atto_tensor *position;
    const atto_tensor *y;      /**< out  like x; may be x itself       overwritten */
    const atto_tensor *dy;     /**< in   like y */
    const atto_tensor *dx;     /**< out  like x; may be dy itself      NULL = not wanted */
    bool add_dx;               /**< dx += instead of dx = */
    atto_rope_pairing pairing; /**< 0 = halves */
    int64_t offset; /**< the tables' row of the first position; offset + L is at most P. 0 with
                               position */
    uint64_t reserved[4]; /**< must be 0 */
};

/**
 * Turns every pair (u, v) of a head's first R elements by the angle of its position and column.
 *
 *     y_u = x_u cos[p][i] - x_v sin[p][i]      p = offset + l, or position[b][l]
 *     y_v = x_v cos[p][i] + x_u sin[p][i]
 *
 * So the product of a turned query and a turned key depends on the difference of their positions.
 *
 * @param dev  device that owns every buffer below
 * @param a    uses x, cos, sin, position, y, pairing, offset
 *
 * Saved     cos, sin, position
 * Numerics  in f32 whatever the dtype, rounded once; elements from R on are copied. cos and sin are
 *           taken as they are: other tables scale as well as turn. Equal calls give equal bits
 * Data      a position outside 0 to P - 1 makes its rows of all heads NaN, and is told by the next
 *           sync or host read as ATTO_E_INDEX, once; nothing outside the tables is read
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE     x has not four dimensions; cos has not two, or more columns than D / 2;
 *                            sin, position or y do not fit; offset + L is more than P
 *           ATTO_E_DTYPE     a dtype that is not in the table above
 *           ATTO_E_ARGUMENT  pairing is none; offset is negative, or not 0 beside position
 * Source    Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding",
 *           arXiv:2104.09864, section 3.2.2 and equation 34
 */
ATTO_API atto_status atto_rope_forward(atto_device *dev, const struct atto_rope_args *a);

/**
 * Its gradient: turned back by the same angles.
 *
 *     dx_u = dy_u cos[p][i] + dy_v sin[p][i]  (+ dx_u with add_dx)
 *     dx_v = dy_v cos[p][i] - dy_u sin[p][i]  (+ dx_v with add_dx)
 *
 * cos and sin get no gradients.
 *
 * Data      a bad position is told as by forward, and its rows of dx are NaN
 *
 * @param a  uses cos, sin, position, dy, dx, add_dx, pairing, offset
 */
ATTO_API atto_status atto_rope_backward(atto_device *dev, const struct atto_rope_args *a);

/* ---- tables ---- */

/** Ways to stretch angles over more positions than a model was trained with. */
typedef enum atto_rope_scaling {
    ATTO_ROPE_SCALING_NONE,
    ATTO_ROPE_SCALING_LINEAR, /**< positions are divided by factor (Chen et al. 2023,
                                   arXiv:2306.15595) */
    ATTO_ROPE_SCALING_NTK /**< theta is multiplied by factor^(R / (R - 2)): the fastest pair keeps its
                                   pace, the slowest is factor times slower; R is 4 or more */
} atto_rope_scaling;

/** Options of atto_rope_tables; zero, and NULL for the struct, is the paper's. */
typedef struct atto_rope_table_options {
    double theta;              /**< base of the angles; 0 = 10000 */
    atto_rope_scaling scaling; /**< 0 = none */
    double factor;             /**< of scaling; unused without. 0 = 1 */
    uint64_t reserved[4];      /**< must be 0 */
} atto_rope_table_options;

/**
 * New tables for positions 0 to positions - 1 and R = dims; release them with atto_tensor_free.
 *
 *     cos[p][i] = cos(p w_i)     sin[p][i] = sin(p w_i)     w_i = theta^(-2i / R)
 *
 * @param dev   device that will own the tables
 * @param cos   out  [positions, dims / 2]  f32
 * @param sin   out  like cos
 *
 * Numerics  angles, cos and sin in double, rounded once: exact at any position, where PyTorch programs
 *           that compute angles in f32 are off by about position * 2^-24
 * Async     computed on the host; returns when the tables may be used
 * Returns   ATTO_OK
 *           ATTO_E_NULL      dev, cos or sin is NULL
 *           ATTO_E_SHAPE     positions is negative; dims is negative or odd
 *           ATTO_E_ARGUMENT  theta or factor is negative, NaN or infinite; scaling is none, or NTK with
 *                            less than four dims; reserved is not 0
 *           ATTO_E_MEMORY    no memory; cos and sin are zeroed after any failure
 */
ATTO_API atto_status atto_rope_tables(atto_device *dev, int64_t positions, int64_t dims,
                                      const atto_rope_table_options *options, atto_tensor *cos,
                                      atto_tensor *sin);

#ifdef __cplusplus
}
#endif

#endif
