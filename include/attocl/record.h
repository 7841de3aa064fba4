/* SPDX-License-Identifier: MIT */
/* The ops on a tape: each runs at once and is recorded for backward. What they compute, and which
 * shapes and dtypes they take, stands in the family's header; errors go to the tape. */
#ifndef ATTOCL_RECORD_H
#define ATTOCL_RECORD_H

#include <attocl/act.h>
#include <attocl/cross_entropy.h>
#include <attocl/elementwise.h>
#include <attocl/linear.h>
#include <attocl/pool.h>
#include <attocl/reduce.h>
#include <attocl/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Options of atto_act on a tape. */
typedef struct atto_act_options {
    float dropout; /**< probability of setting an element to 0, behind the activation; 0 to 1 */
    uint64_t reserved[4]; /**< must be 0 */
} atto_act_options;

/** Activation, then dropout: attocl/act.h. options may be NULL. */
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
 * (atto_cast helps), shapes that do not broadcast are ATTO_E_SHAPE. */

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

/** a and b of any dtype; the result is i32, 1 or 0, and has no gradient. */
ATTO_API atto_var atto_compare(atto_tape *tape, atto_compare_kind kind, atto_var a, atto_var b);

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

/* ---- attocl/pool.h: means and maxima over windows ----
 *
 * x is [N, C, H, W] or [C, H, W], of the 1d functions [N, C, L] or [C, L]. A result lies in memory as x
 * does, contiguous or channels_last. */

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

/** The same elements, of any dtype, with another shape: ATTO_E_SHAPE if it has not as many. Shares x's
 * memory where the strides allow that, else it is a dense copy. */
ATTO_API atto_var atto_reshape(atto_tape *tape, atto_var x, atto_shape shape);

#ifdef __cplusplus
}
#endif

#endif
