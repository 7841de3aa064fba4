/* SPDX-License-Identifier: MIT */
/* What recurrent cells compute of each element once the products are there: LSTM and GRU. */
#ifndef ATTOCL_RNN_H
#define ATTOCL_RNN_H

#include <attocl/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Arguments of atto_lstm_cell_forward and atto_lstm_cell_backward. H hidden features; the gates
 * lie one behind the other in the last dimension: input, forget, candidate, output.
 *
 * Tensors may have any strides as long as their last dimension has stride 1 and those before it
 * merge to one; others are packed first.
 */
struct atto_lstm_cell_args {
    const atto_tensor *x;     /**< in   [..., 4 H]  f32 f16 bf16; the gates before their functions.
                                Not used by backward */
    const atto_tensor *c;     /**< in   [..., H]    like x; the old cell state */
    const atto_tensor *y;     /**< out  [..., H]    like x; the new hidden state    overwritten */
    const atto_tensor *cy;    /**< out  [..., H]    like x; the new cell state      overwritten */
    const atto_tensor *gates; /**< out  [..., 4 H]  like x; NULL = there will be no backward */
    const atto_tensor *dy;    /**< in   like y   NULL = 0 */
    const atto_tensor *dcy;   /**< in   like cy  NULL = 0 */
    const atto_tensor *dx;    /**< out  like x   NULL = not wanted */
    const atto_tensor *dc;    /**< out  like c   NULL = not wanted */
    bool add_dx, add_dc;      /**< += instead of = */
    uint64_t reserved[4];     /**< must be 0 */
};

/**
 * One step of a long short-term memory, behind the products.
 *
 *     i = sigmoid(x_i)   f = sigmoid(x_f)   g = tanh(x_g)   o = sigmoid(x_o)
 *     cy = f c + i g
 *     y = o tanh(cy)
 *
 * x is W_ih input + b_ih + W_hh h + b_hh: two calls of attocl/linear.h, of which the second has
 * the result of the first as its residual. An output may be exactly an input of its shape: cy may
 * be c where no backward follows.
 *
 * @param dev  device that owns every buffer below
 * @param a    uses x, c, y, cy, gates
 *
 * Saved     c, cy, gates
 * Numerics  in f32 whatever the dtype; y is computed from cy before that is rounded
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE     c has no dimension; another tensor does not fit (0 elements are fine)
 *           ATTO_E_DTYPE     c is not f32, f16 or bf16, or another tensor is not like c
 * Source    Hochreiter and Schmidhuber 1997; PyTorch 2.11 torch.nn.LSTMCell
 */
ATTO_API atto_status atto_lstm_cell_forward(atto_device *dev, const struct atto_lstm_cell_args *a);

/**
 * Its gradients.
 *
 *     t = tanh(cy)                      s = dcy + dy o (1 - t^2)
 *     dx_i = s g i (1 - i)              dx_f = s c f (1 - f)
 *     dx_g = s i (1 - g^2)              dx_o = dy t o (1 - o)
 *     dc = s f                          (+ old, with add_...)
 *
 * @param a  uses c, cy, gates, dy, dcy, dx, dc. dc may be dcy itself
 *
 * Returns   as atto_lstm_cell_forward
 */
ATTO_API atto_status atto_lstm_cell_backward(atto_device *dev, const struct atto_lstm_cell_args *a);

/** Arguments of atto_gru_cell_forward and atto_gru_cell_backward; gates: reset, update, candidate.
 * Strides as above. */
struct atto_gru_cell_args {
    const atto_tensor *x;     /**< in   [..., 3 H]  f32 f16 bf16; the input's part of the gates
                                   before their functions. Not used by backward */
    const atto_tensor *u;     /**< in   [..., 3 H]  like x; the hidden state's. Likewise */
    const atto_tensor *h;     /**< in   [..., H]    like x; the old hidden state */
    const atto_tensor *y;     /**< out  [..., H]    like x; the new one    overwritten */
    const atto_tensor *gates; /**< out  [..., 4 H]  like x; r, z, n and u_n one behind the other;
                                   NULL = there will be no backward */
    const atto_tensor *dy;    /**< in   like y */
    const atto_tensor *dx;    /**< out  like x   NULL = not wanted */
    const atto_tensor *du;    /**< out  like u   NULL = not wanted */
    const atto_tensor *dh;    /**< out  like h   NULL = not wanted; without what comes through u */
    bool add_dx, add_du, add_dh; /**< += instead of = */
    uint64_t reserved[4];        /**< must be 0 */
};

/**
 * One step of a gated recurrent unit, behind the products.
 *
 *     r = sigmoid(x_r + u_r)   z = sigmoid(x_z + u_z)   n = tanh(x_n + r u_n)
 *     y = n + z (h - n)
 *
 * x is W_ih input + b_ih, u is W_hh h + b_hh. An output may be exactly an input of its shape: y may
 * be h where no backward follows.
 *
 * @param dev  device that owns every buffer below
 * @param a    uses x, u, h, y, gates
 *
 * Saved     h, gates
 * Numerics  in f32 whatever the dtype
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE     h has no dimension; another tensor does not fit (0 elements are fine)
 *           ATTO_E_DTYPE     h is not f32, f16 or bf16, or another tensor is not like h
 * Source    Cho et al. 2014, arXiv:1406.1078, with the reset behind the product as in PyTorch 2.11
 *           torch.nn.GRUCell
 */
ATTO_API atto_status atto_gru_cell_forward(atto_device *dev, const struct atto_gru_cell_args *a);

/**
 * Its gradients.
 *
 *     dx_n = dy (1 - z) (1 - n^2)       du_n = dx_n r
 *     dx_z = du_z = dy (h - n) z (1 - z)
 *     dx_r = du_r = dx_n u_n r (1 - r)
 *     dh = dy z                         (+ old, with add_...)
 *
 * @param a  uses h, gates, dy, dx, du, dh. dh may be dy itself
 *
 * Returns   as atto_gru_cell_forward
 */
ATTO_API atto_status atto_gru_cell_backward(atto_device *dev, const struct atto_gru_cell_args *a);

#ifdef __cplusplus
}
#endif

#endif
