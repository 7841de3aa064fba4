/* SPDX-License-Identifier: MIT */
/* The ops on a tape: each runs at once and is recorded for backward. What they compute, and which
 * shapes and dtypes they take, stands in the family's header; errors go to the tape. */
#ifndef ATTOCL_RECORD_H
#define ATTOCL_RECORD_H

#include <attocl/act.h>
#include <attocl/attention.h>
#include <attocl/batch_norm.h>
#include <attocl/conv.h>
#include <attocl/cross_entropy.h>
#include <attocl/elementwise.h>
#include <attocl/gather.h>
#include <attocl/glu.h>
#include <attocl/group_norm.h>
#include <attocl/index_select.h>
#include <attocl/layer_norm.h>
#include <attocl/linear.h>
#include <attocl/loss.h>
#include <attocl/matmul.h>
#include <attocl/nll_loss.h>
#include <attocl/pad.h>
#include <attocl/pool.h>
#include <attocl/reduce.h>
#include <attocl/resize.h>
#include <attocl/rnn.h>
#include <attocl/rope.h>
#include <attocl/softmax.h>
#include <attocl/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Options of atto_act on a tape. */
typedef struct atto_act_options {
    float dropout; /**< probability of setting an element to 0, behind the activation; 0 to 1 */
    uint64_t reserved[4]; /**< must be 0 */
} atto_act_options;

/** Activation, then dropout: attocl/act.h. options may be NULL. The result lies in memory as x does,
 * contiguous or channels_last; so does that of atto_dropout. */
ATTO_API atto_var atto_act(atto_tape *tape, atto_var x, atto_activation act,
                           const atto_act_options *options);

/** Dropout: attocl/dropout.h. */
ATTO_API atto_var atto_dropout(atto_tape *tape, atto_var x, float p);

/** Options of atto_linear on a tape; NULL is none. */
typedef struct atto_linear_fused {
    const atto_var *bias;     /**< [N], f32 or like x; NULL = none */
    const atto_var *residual; /**< like y; added last, untouched by dropout; NULL = none */
    atto_activation act;      /**< behind the bias; zero = identity */
    float dropout;            /**< probability of setting an element to 0, behind act; 0 to 1 */
    uint64_t reserved[4];     /**< must be 0 */
} atto_linear_fused;

/** x w^T, and what is fused behind it: attocl/linear.h. x is [..., K], w [N, K]; y is [..., N] in
 * their dtype. */
ATTO_API atto_var atto_linear(atto_tape *tape, atto_var x, atto_var w,
                              const atto_linear_fused *fused);

/** a b: attocl/matmul.h, batches broadcast; in their dtype. A vector is taken too, as torch.matmul
 * takes it: a as one row, b as one column, and the result lacks that dimension. */
ATTO_API atto_var atto_matmul(atto_tape *tape, atto_var a, atto_var b);

/** Options of atto_scaled_dot_product_attention; zero, and NULL for the struct, is PyTorch's default. */
typedef struct atto_attention_options {
    const atto_var
        *mask;          /**< i32 (0 hides a key), f32 or like q (added); broadcasts to [B, H, L, S];
                             NULL = none. ATTO_E_UNSUPPORTED if it would need a gradient */
    atto_causal causal; /**< which keys a query sees; 0 = all */
    float scale;        /**< 0 = 1 / sqrt(D) */
    float dropout;      /**< probability of setting a probability to 0; 0 to 1 */
    uint64_t reserved[4]; /**< must be 0 */
} atto_attention_options;

/** softmax(scale q k^T + mask) v: attocl/attention.h. q is [B, H, L, D], k [B, G, S, D], v [B, G, S, E];
 * the result is [B, H, L, E] in their dtype. */
ATTO_API atto_var atto_scaled_dot_product_attention(atto_tape *tape, atto_var q, atto_var k,
                                                    atto_var v,
                                                    const atto_attention_options *options);

/** Options of atto_cross_entropy; zero, and NULL for the struct, is PyTorch's default. */
typedef struct atto_cross_entropy_options {
    const atto_var *weight;   /**< [C], one for each class; gets no gradient */
    atto_reduction reduction; /**< 0 = mean */
    bool has_ignore_index;    /**< ignore_index holds; else it is PyTorch's -100 */
    int64_t ignore_index;     /**< the label of positions that do not count */
    float label_smoothing;    /**< share of the target that goes to all classes alike, 0 to 1 */
    uint64_t reserved[4];     /**< must be 0 */
} atto_cross_entropy_options;

/** Cross-entropy of logits against labels or probabilities: attocl/cross_entropy.h. */
ATTO_API atto_var atto_cross_entropy(atto_tape *tape, atto_var x, atto_var target,
                                     const atto_cross_entropy_options *options);

/* ---- attocl/elementwise.h: arithmetic with broadcasting ----
 *
 * The tensors that a call combines have one dtype; nothing is promoted. Another one is ATTO_E_DTYPE
 * (atto_cast helps), shapes that do not broadcast are ATTO_E_SHAPE. A result lies in memory as the
 * first tensor of its shape does, contiguous or channels_last. */

/** One function of each element of x, which is f32, f16 or bf16; like x. For CLAMP: atto_clamp. */
ATTO_API atto_var atto_unary(atto_tape *tape, atto_unary_kind kind, atto_var x);

/** min(max(x, lo), hi), like x; hi where lo > hi. -INFINITY and INFINITY leave a side open;
 * ATTO_E_ARGUMENT for NaN. */
ATTO_API atto_var atto_clamp(atto_tape *tape, atto_var x, float lo, float hi);

/** x in another dtype, from any to any, converted as atto_tensor_copy converts; shaped like x. The
 * gradient is cast back; a result of integers has none. ATTO_E_DTYPE if dtype is none. */
ATTO_API atto_var atto_cast(atto_tape *tape, atto_var x, atto_dtype dtype);

/** One function of two elements, f32, f16 or bf16. */
ATTO_API atto_var atto_binary(atto_tape *tape, atto_binary_kind kind, atto_var a, atto_var b);

/** a and a number, or a number and b: a / 2, 1 - b. */
ATTO_API atto_var atto_binary_number(atto_tape *tape, atto_binary_kind kind, atto_var a, float b);
ATTO_API atto_var atto_number_binary(atto_tape *tape, atto_binary_kind kind, float a, atto_var b);

/** a where cond, which is i32, is not 0, else b; f32, f16 or bf16. All three broadcast; a and b get
 * gradients. */
ATTO_API atto_var atto_where(atto_tape *tape, atto_var cond, atto_var a, atto_var b);

/** value where mask, which is i32, is not 0, else x, f32, f16 or bf16; both broadcast, x gets a
 * gradient. */
ATTO_API atto_var atto_masked_fill(atto_tape *tape, atto_var x, atto_var mask, float value);

/** a and b of any dtype; the result is i32, 1 or 0, and has no gradient. With a number, beside integers a
 * whole one: atto_compare_number. */
ATTO_API atto_var atto_compare(atto_tape *tape, atto_compare_kind kind, atto_var a, atto_var b);
ATTO_API atto_var atto_compare_number(atto_tape *tape, atto_compare_kind kind, atto_var a, float b);

/* atto_add(tape, a, b), atto_mul, atto_maximum, ... */
#define X(NAME, name, gradient)                                                 \
    static inline atto_var atto_##name(atto_tape *tape, atto_var a, atto_var b) \
    {                                                                           \
        return atto_binary(tape, ATTO_BINARY_##NAME, a, b);                     \
    }
ATTO_BINARY_TABLE(X)
#undef X

/** Over which dimensions; NULL is all of them. */
typedef struct atto_reduce_options {
    int32_t dims[ATTO_MAX_RANK]; /**< -1 is the last */
    int32_t dim_count;           /**< 0 = all */
    bool keep;                   /**< they stay, with size 1 */
    atto_dtype position;         /**< of ARGMAX and ARGMIN: i32 or i64; 0 = i64, as PyTorch's */
    uint64_t reserved[4];        /**< must be 0 */
} atto_reduce_options;

/** attocl/reduce.h: sums, means, extremes and their positions. */
ATTO_API atto_var atto_reduce(atto_tape *tape, atto_reduce_kind kind, atto_var x,
                              const atto_reduce_options *options);

/** attocl/softmax.h, over dimension dim; -1 is the last. Like x. */
ATTO_API atto_var atto_softmax(atto_tape *tape, atto_var x, int32_t dim);
ATTO_API atto_var atto_log_softmax(atto_tape *tape, atto_var x, int32_t dim);
ATTO_API atto_var atto_softmin(atto_tape *tape, atto_var x, int32_t dim);

/** attocl/glu.h: the first half of x along dim times act of the second. */
ATTO_API atto_var atto_glu(atto_tape *tape, atto_var x, int32_t dim, atto_activation act);
/** Options of atto_layer_norm and atto_rms_norm; zero, and NULL for the struct, is PyTorch's default. */
typedef struct atto_layer_norm_options {
    const atto_var *weight; /**< like the normalised dimensions, f32 or like x; NULL = 1 */
    const atto_var *bias;   /**< the same; NULL = 0. RMS norm has none: ATTO_E_ARGUMENT */
    float eps; /**< 0 = 1e-5, for RMS norm the machine epsilon of x's dtype; ATTO_ZERO = 0 */
    uint64_t reserved[4]; /**< must be 0 */
} atto_layer_norm_options;

/** Layer norm over the last dims dimensions of x: attocl/layer_norm.h. */
ATTO_API atto_var atto_layer_norm(atto_tape *tape, atto_var x, int32_t dims,
                                  const atto_layer_norm_options *options);

/** RMS norm over the last dims dimensions of x: attocl/layer_norm.h. */
ATTO_API atto_var atto_rms_norm(atto_tape *tape, atto_var x, int32_t dims,
                                const atto_layer_norm_options *options);

/** Options of atto_batch_norm; NULL pointers are what is not there. Never NULL themselves: either
 * training or running statistics must be given. */
typedef struct atto_batch_norm_options {
    const atto_var *weight, *bias;              /**< [C], f32 or like x */
    const atto_var *residual;                   /**< like x, added before act */
    const atto_var *running_mean, *running_var; /**< [C], f32; written to in training */
    const atto_var *batches;                    /**< [], i64; counted up in training */
    atto_activation act;                        /**< zero = identity */
    bool training;        /**< statistics are the batch's; else the running ones */
    bool cumulative;      /**< running statistics are means over batches */
    float momentum;       /**< 0 = 0.1; ATTO_ZERO = 0 */
    float eps;            /**< 0 = 1e-5; ATTO_ZERO = 0 */
    uint64_t reserved[4]; /**< must be 0 */
} atto_batch_norm_options;

/** Batch norm of x, [N, C] or [N, C, ...]: attocl/batch_norm.h. */
ATTO_API atto_var atto_batch_norm(atto_tape *tape, atto_var x,
                                  const atto_batch_norm_options *options);

/* ---- attocl/conv.h: convolutions ----
 *
 * x is [N, C, H, W] or [C, H, W], of the 1d functions [N, C, L] or [C, L]; w [O, C / groups, KH,
 * KW] or [O, C / groups, K], of the transposed ones [C, O / groups, ...]. The result has O
 * channels, lies in memory as x does, contiguous or channels_last, and has the dtype of x and w. */

/** Options of convolutions; zero, and NULL for the struct, is PyTorch's default. Of the pairs
 * {height, width} the 1d functions read the first; the second must be 0 there. */
typedef struct atto_conv_options {
    const atto_var *bias;     /**< [O], f32 or like x; NULL = none */
    const atto_var *residual; /**< like the result; added last, behind act; NULL = none */
    atto_activation act;      /**< behind the bias; zero = identity */
    int64_t stride[2];        /**< 0 = 1 */
    int64_t padding[2];  /**< on both sides of the image; transposed: what is cut off the result */
    int64_t dilation[2]; /**< 0 = 1 */
    int64_t output_padding[2]; /**< transposed: outputs more at the end; below stride or dilation */
    int64_t groups;            /**< 0 = 1 */
    bool same; /**< padding='same': outputs like inputs; stride 1 and padding 0. An odd element of
                    the padding is at the end. Not transposed */
    atto_pad_kind padding_mode; /**< what is outside the image: 0 = zeros, else reflect, replicate,
                                     circular: attocl/pad.h. Not transposed */
    uint64_t reserved[4];       /**< must be 0 */
} atto_conv_options;

ATTO_API atto_var atto_conv1d(atto_tape *tape, atto_var x, atto_var w,
                              const atto_conv_options *options);
ATTO_API atto_var atto_conv2d(atto_tape *tape, atto_var x, atto_var w,
                              const atto_conv_options *options);
ATTO_API atto_var atto_conv_transpose1d(atto_tape *tape, atto_var x, atto_var w,
                                        const atto_conv_options *options);
ATTO_API atto_var atto_conv_transpose2d(atto_tape *tape, atto_var x, atto_var w,
                                        const atto_conv_options *options);

/* ---- attocl/pool.h: means and maxima over windows ----
 *
 * x is [N, C, H, W] or [C, H, W], of the 1d functions [N, C, L] or [C, L]. A result lies in memory
 * as x does, contiguous or channels_last. */

/** Options of means; zero, and NULL for the struct, is PyTorch's default. Of the pairs {height, width} the
 * 1d functions read the first; the second must be 0 there. */
typedef struct atto_avg_pool_options {
    int64_t stride[2];    /**< 0 = the kernel's size */
    int64_t padding[2];   /**< at most half of the kernel */
    bool ceil_mode;       /**< the last window may reach beyond the end */
    bool exclude_padding; /**< count_include_pad=False */
    int64_t
        divisor_override; /**< what sums are divided by; 0 = the number of elements that count */
    uint64_t reserved[4]; /**< must be 0 */
} atto_avg_pool_options;

ATTO_API atto_var atto_avg_pool1d(atto_tape *tape, atto_var x, int64_t kernel,
                                  const atto_avg_pool_options *options);
ATTO_API atto_var atto_avg_pool2d(atto_tape *tape, atto_var x, int64_t kernel_h, int64_t kernel_w,
                                  const atto_avg_pool_options *options);

/** Options of maxima, likewise. */
typedef struct atto_max_pool_options {
    int64_t stride[2];   /**< 0 = the kernel's size */
    int64_t padding[2];  /**< at most half of the kernel */
    int64_t dilation[2]; /**< 0 = 1 */
    bool ceil_mode;      /**< the last window may reach beyond the end */
    atto_dtype indices; /**< of those that the caller asks for: i32 or i64; 0 = i64, as PyTorch's */
    uint64_t reserved[4]; /**< must be 0 */
} atto_max_pool_options;

/** indices: NULL, or gets where in its plane each maximum is, h W + w; they have no gradient. */
ATTO_API atto_var atto_max_pool1d(atto_tape *tape, atto_var x, int64_t kernel,
                                  const atto_max_pool_options *options, atto_var *indices);
ATTO_API atto_var atto_max_pool2d(atto_tape *tape, atto_var x, int64_t kernel_h, int64_t kernel_w,
                                  const atto_max_pool_options *options, atto_var *indices);

/** As many outputs as asked for; 0 = as many as x has. Of maxima, indices are i64. */
ATTO_API atto_var atto_adaptive_avg_pool1d(atto_tape *tape, atto_var x, int64_t out);
ATTO_API atto_var atto_adaptive_avg_pool2d(atto_tape *tape, atto_var x, int64_t out_h,
                                           int64_t out_w);
ATTO_API atto_var atto_adaptive_max_pool1d(atto_tape *tape, atto_var x, int64_t out,
                                           atto_var *indices);
ATTO_API atto_var atto_adaptive_max_pool2d(atto_tape *tape, atto_var x, int64_t out_h,
                                           int64_t out_w, atto_var *indices);

/* ---- attocl/resize.h: another height and width ----
 *
 * x is [N, C, H, W] or [C, H, W], of the 1d function [N, C, L] or [C, L]. A result lies in memory
 * as x does, contiguous or channels_last. */

/** Options; zero, and NULL for the struct, is PyTorch's default. Of the pairs {height, width} the
 * 1d functions read the first; the second must be 0 there. */
typedef struct atto_resize_options {
    atto_resize_kind mode;
    bool align_corners;   /**< linear: the corners' centres stay where they are */
    double scale[2];      /**< not 0: scale_factor, which the coordinates follow */
    uint64_t reserved[4]; /**< must be 0 */
} atto_resize_options;

/** torch.nn.functional.interpolate. A size of 0 is floor(x's size * scale); without a scale x's. */
ATTO_API atto_var atto_resize1d(atto_tape *tape, atto_var x, int64_t out,
                                const atto_resize_options *options);
ATTO_API atto_var atto_resize2d(atto_tape *tape, atto_var x, int64_t out_h, int64_t out_w,
                                const atto_resize_options *options);

/** Group norm of x, [N, C] or [N, C, ...]: attocl/group_norm.h. weight and bias are [C]; eps 0 = 1e-5.
 * The result lies in memory as x does, contiguous or channels_last; so does batch norm's. */
ATTO_API atto_var atto_group_norm(atto_tape *tape, atto_var x, int64_t groups,
                                  const atto_layer_norm_options *options);

/** Options of atto_instance_norm; NULL pointers are what is not there. */
typedef struct atto_instance_norm_options {
    const atto_var *weight, *bias;              /**< [C], f32 or like x */
    const atto_var *running_mean, *running_var; /**< [C], f32; written to unless they are used */
    bool use_running_stats; /**< instead of each image's: evaluation, which is batch norm's */
    float momentum;         /**< 0 = 0.1; ATTO_ZERO = 0 */
    float eps;              /**< 0 = 1e-5; ATTO_ZERO = 0 */
    uint64_t reserved[4];   /**< must be 0 */
} atto_instance_norm_options;

/** Instance norm of x, [N, C, ...]: each channel of each image by its own mean and variance, and so
 * ATTO_E_ARGUMENT where it has one value. */
ATTO_API atto_var atto_instance_norm(atto_tape *tape, atto_var x,
                                     const atto_instance_norm_options *options);

/** attocl/index_select.h: the rows along dimension dim, -1 being the last, that index (i32 or i64) names.
 * The index's shape takes the place of that dimension. */
ATTO_API atto_var atto_index_select(atto_tape *tape, atto_var x, int32_t dim, atto_var index);

/** Options of atto_embedding; zero, and NULL for the struct, is PyTorch's default. */
typedef struct atto_embedding_options {
    bool has_padding;     /**< padding holds */
    int64_t padding;      /**< the row that gets no gradient; from 0 */
    uint64_t reserved[4]; /**< must be 0 */
} atto_embedding_options;

/** Rows of weight, [count, ...]; the result is [index..., ...]: attocl/index_select.h with dim 0. */
ATTO_API atto_var atto_embedding(atto_tape *tape, atto_var weight, atto_var index,
                                 const atto_embedding_options *options);

/** attocl/gather.h: one element of x along dimension dim for each element of index. */
ATTO_API atto_var atto_gather(atto_tape *tape, atto_var x, int32_t dim, atto_var index);

/** Options of atto_rope; zero, and NULL for the struct, is the default. */
typedef struct atto_rope_options {
    const atto_var
        *position; /**< [L] or [B, L], i32 or i64: rows of the tables; NULL = offset + l */
    atto_rope_pairing pairing; /**< 0 = halves */
    int64_t offset;            /**< row of the first position; 0 with position */
    uint64_t reserved[4];      /**< must be 0 */
} atto_rope_options;

/** x, [B, H, L, D], with its pairs turned by the angles of the tables, [P, R/2] in f32: attocl/rope.h.
 * ATTO_E_UNSUPPORTED if a table would need a gradient. */
ATTO_API atto_var atto_rope(atto_tape *tape, atto_var x, atto_var cos_table, atto_var sin_table,
                            const atto_rope_options *options);

/* ---- recurrent networks: docs/ops/rnn.md ----
 *
 * PyTorch's LSTM and GRU without proj_size and packed sequences. Inputs, states and parameters have
 * one dtype, unless autocast is on. */

/** Parameters of a cell, or of a layer in one direction. Gates lie one behind the other: G = 4 of
 * an LSTM (input, forget, candidate, output), G = 3 of a GRU (reset, update, candidate). */
typedef struct atto_rnn_weights {
    atto_var w_ih;        /**< [G H, I] */
    atto_var w_hh;        /**< [G H, H] */
    const atto_var *b_ih; /**< [G H], f32 or like the weights; NULL = none */
    const atto_var *b_hh; /**< the same */
    uint64_t reserved[4]; /**< must be 0 */
} atto_rnn_weights;

/** One step of an LSTM: x [N, I] or [I] beside h and c [N, H] or [H] gives the new h, and the new
 * c in *cy, which may be where c is. h, c: NULL = 0. attocl/rnn.h. */
ATTO_API atto_var atto_lstm_cell(atto_tape *tape, atto_var x, const atto_var *h, const atto_var *c,
                                 const atto_rnn_weights *weights, atto_var *cy);

/** One step of a GRU, likewise. */
ATTO_API atto_var atto_gru_cell(atto_tape *tape, atto_var x, const atto_var *h,
                                const atto_rnn_weights *weights);

/** Options of atto_lstm and atto_gru; zero, and NULL for the struct, is PyTorch's default. D is 2
 * if bidirectional, else 1. */
typedef struct atto_rnn_options {
    int32_t layers;       /**< 1 to 32; 0 = 1 */
    bool bidirectional;   /**< each layer runs backwards, too, with weights of its own */
    bool batch_first;     /**< x is [N, L, I], and the result [N, L, D H]; states are not */
    float dropout;        /**< on every layer's output but the last one's; 0 to 1 */
    const atto_var *h;    /**< [layers D, N, H]; NULL = 0 */
    const atto_var *c;    /**< the same, of an LSTM; NULL = 0 */
    atto_var *hy;         /**< gets the states behind the last step, like h, and may be where h is;
                               NULL = not wanted */
    atto_var *cy;         /**< the same, of an LSTM */
    uint64_t reserved[4]; /**< must be 0 */
} atto_rnn_options;

/**
 * A recurrent network over sequences: x is [L, N, I], or without batches [L, I], the result the
 * last layer's hidden states, [L, N, D H]. States lack N as well without batches.
 *
 * weights has layers * D entries, layer by layer, forward before backward. Layers behind the first
 * have D H for I. Inputs of all steps are one product, and so are gradients of weights; a step has
 * the product with the state and one launch. With nothing to compute gradients for, nothing is
 * saved.
 *
 * The tape's error otherwise: ATTO_E_NULL, ATTO_E_SHAPE (also L = 0), ATTO_E_DTYPE, ATTO_E_ARGUMENT
 * (layers, dropout, states of an LSTM given to a GRU, a reserved word not 0), ATTO_E_MEMORY.
 */
ATTO_API atto_var atto_lstm(atto_tape *tape, atto_var x, const atto_rnn_weights *weights,
                            const atto_rnn_options *options);
ATTO_API atto_var atto_gru(atto_tape *tape, atto_var x, const atto_rnn_weights *weights,
                           const atto_rnn_options *options);

/* ---- shapes: docs/ops/shape.md ----
 *
 * Of any dtype; floats have gradients. A view shows x's memory and costs nothing; dim may be negative
 * (-1 is the last). The tape's error otherwise: ATTO_E_ARGUMENT (a dimension, a range), ATTO_E_SHAPE,
 * ATTO_E_DTYPE, ATTO_E_NULL, ATTO_E_MEMORY. */

/** The same elements with another shape, all sizes given (no -1): ATTO_E_SHAPE if it has not as many. A
 * view where the strides allow that, else a dense copy. */
ATTO_API atto_var atto_reshape(atto_tape *tape, atto_var x, atto_shape shape);

/** Views with a dimension of size 1 more, which becomes dimension dim, or less. */
ATTO_API atto_var atto_unsqueeze(atto_tape *tape, atto_var x, int32_t dim);
ATTO_API atto_var atto_squeeze(atto_tape *tape, atto_var x, int32_t dim);

/** Views: dimension i of the result is dimension order[i] of x; two dimensions swapped. */
ATTO_API atto_var atto_permute(atto_tape *tape, atto_var x, const int32_t *order);
ATTO_API atto_var atto_transpose(atto_tape *tape, atto_var x, int32_t dim0, int32_t dim1);

/** A view of elements start, start + step, ... before end of one dimension; 0 <= start <= end <= size,
 * step >= 1. */
ATTO_API atto_var atto_slice(atto_tape *tape, atto_var x, int32_t dim, int64_t start, int64_t end,
                             int64_t step);

/** Views of parts that follow each other in dimension dim: count sizes, which add up to x's. */
ATTO_API void atto_split(atto_tape *tape, atto_var x, int32_t dim, const int64_t *sizes,
                         int32_t count, atto_var *out);

/** A view in which dimensions of size 1 repeat, and new ones in front. Its gradient is the sum over the
 * repetitions, in f32. */
ATTO_API atto_var atto_expand(atto_tape *tape, atto_var x, atto_shape shape);

/** A new tensor of count inputs one behind the other in dimension dim; of inputs of one shape side by
 * side in a new dimension dim. */
ATTO_API atto_var atto_concat(atto_tape *tape, const atto_var *inputs, int32_t count, int32_t dim);
ATTO_API atto_var atto_stack(atto_tape *tape, const atto_var *inputs, int32_t count, int32_t dim);

/** attocl/pad.h: a new tensor with before[d] and after[d] elements around x in every dimension d,
 * of that value, where an amount below 0 cuts elements off, or taken from x as the mode says. It
 * lies in memory as x does, contiguous or channels_last. */
ATTO_API atto_var atto_pad(atto_tape *tape, atto_var x, const int64_t *before, const int64_t *after,
                           double value);
ATTO_API atto_var atto_pad_mode(atto_tape *tape, atto_var x, atto_pad_kind mode,
                                const int64_t *before, const int64_t *after);

/** A new tensor like x, f32, f16 or bf16, with zeros where a column of the last two dimensions is more
 * than diagonal behind its row: torch.tril. The gradient is zero there, too. */
ATTO_API atto_var atto_tril(atto_tape *tape, atto_var x, int64_t diagonal);

/**
 * A new i32 tensor [rows, cols], 1 where col <= row + diagonal, else 0: torch.tril of ones. As the mask of
 * attocl/attention.h, diagonal 0 hides later keys. Release it with atto_tensor_free; zeroed on failure.
 *
 * Async     enqueued on dev
 * Returns   ATTO_OK; ATTO_E_NULL, ATTO_E_SHAPE (a negative size), ATTO_E_MEMORY
 */
ATTO_API atto_status atto_tril_mask(atto_device *dev, int64_t rows, int64_t cols, int64_t diagonal,
                                    atto_tensor *mask);

/* ---- attocl/loss.h, attocl/nll_loss.h: losses; f32, whatever x is ---- */

/** Options of losses that have no other; NULL is PyTorch's default. */
typedef struct atto_loss_options {
    atto_reduction reduction; /**< 0 = mean, over all elements */
    uint64_t reserved[4];     /**< must be 0 */
} atto_loss_options;

/** |x - target| and (x - target)^2; they broadcast, and both get gradients. */
ATTO_API atto_var atto_l1_loss(atto_tape *tape, atto_var x, atto_var target,
                               const atto_loss_options *options);
ATTO_API atto_var atto_mse_loss(atto_tape *tape, atto_var x, atto_var target,
                                const atto_loss_options *options);

/** A parabola up to beta (delta) and a line behind it. PyTorch's default is 1; beta 0 is L1. */
ATTO_API atto_var atto_smooth_l1_loss(atto_tape *tape, atto_var x, atto_var target, float beta,
                                      const atto_loss_options *options);
ATTO_API atto_var atto_huber_loss(atto_tape *tape, atto_var x, atto_var target, float delta,
                                  const atto_loss_options *options);

/** Options of atto_bce_with_logits; NULL is PyTorch's default. */
typedef struct atto_bce_with_logits_options {
    const atto_var *weight;     /**< a factor of each loss, broadcasts to x; gets no gradient */
    const atto_var *pos_weight; /**< a factor of the positive class, likewise */
    atto_reduction reduction;   /**< 0 = mean, over all elements */
    uint64_t reserved[4];       /**< must be 0 */
} atto_bce_with_logits_options;

/** Binary cross-entropy of logits x against probabilities of x's shape. */
ATTO_API atto_var atto_bce_with_logits(atto_tape *tape, atto_var x, atto_var target,
                                       const atto_bce_with_logits_options *options);

/** Options of atto_kl_div; NULL is PyTorch's default. */
typedef struct atto_kl_div_options {
    atto_reduction reduction; /**< 0 = mean, over all elements, as PyTorch has it; the divergence by
                                   its definition is ATTO_REDUCTION_BATCH_MEAN */
    bool log_target;          /**< target holds logarithms, as x does */
    uint64_t reserved[4];     /**< must be 0 */
} atto_kl_div_options;

/** Kullback-Leibler divergence of target from x, which holds logarithms of probabilities. */
ATTO_API atto_var atto_kl_div(atto_tape *tape, atto_var x, atto_var target,
                              const atto_kl_div_options *options);

/** Options of atto_nll_loss; zero, and NULL for the struct, is PyTorch's default. */
typedef struct atto_nll_options {
    const atto_var *weight;   /**< [C], one for each class; gets no gradient */
    atto_reduction reduction; /**< 0 = mean, by the weights of the labels that count */
    bool has_ignore_index;    /**< ignore_index holds; else it is PyTorch's -100 */
    int64_t ignore_index;     /**< the label of positions that do not count */
    uint64_t reserved[4];     /**< must be 0 */
} atto_nll_options;

/** Negative log-likelihood of labels: attocl/nll_loss.h. x holds logarithms of probabilities. */
ATTO_API atto_var atto_nll_loss(atto_tape *tape, atto_var x, atto_var target,
                                const atto_nll_options *options);

#ifdef __cplusplus
}
#endif

#endif
