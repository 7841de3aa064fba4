/* SPDX-License-Identifier: MIT */
/* The ops on a tape: each runs at once and is recorded for backward. What they compute, and which
 * shapes and dtypes they take, stands in the family's header; errors go to the tape. */
#ifndef ATTOCL_RECORD_H
#define ATTOCL_RECORD_H

#include <attocl/act.h>
#include <attocl/cross_entropy.h>
#include <attocl/linear.h>
#include <attocl/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Options of atto_act on a tape. */
typedef struct atto_act_options {
    float dropout;
    uint64_t reserved[4];
} atto_act_options;

/** Activation, then dropout: attocl/act.h. options may be NULL. */
ATTO_API atto_var atto_act(atto_tape *tape, atto_var x, atto_activation act,
                           const atto_act_options *options);

/** Dropout: attocl/dropout.h. */
ATTO_API atto_var atto_dropout(atto_tape *tape, atto_var x, float p);

/** Options of atto_linear on a tape; NULL is none. */
typedef struct atto_linear_fused {
    const atto_var *bias;
    const atto_var *residual;
    atto_activation act;
    float dropout;
    uint64_t reserved[4];
} atto_linear_fused;

/** x w^T, and what is fused behind it: attocl/linear.h. */
ATTO_API atto_var atto_linear(atto_tape *tape, atto_var x, atto_var w,
                              const atto_linear_fused *fused);

/** Options of atto_cross_entropy; zero, and NULL for the struct, is PyTorch's default. */
typedef struct atto_cross_entropy_options {
    const atto_var *weight; /**< [C], one for each class; gets no gradient */
    atto_reduction reduction;
    bool has_ignore_index; /**< ignore_index holds; else it is PyTorch's -100 */
    int64_t ignore_index;
    float label_smoothing;
    uint64_t reserved[4];
} atto_cross_entropy_options;

/** Cross-entropy of logits against labels or probabilities: attocl/cross_entropy.h. */
ATTO_API atto_var atto_cross_entropy(atto_tape *tape, atto_var x, atto_var target,
                                     const atto_cross_entropy_options *options);

/** The same elements with another shape; no copy where the strides allow it. */
ATTO_API atto_var atto_reshape(atto_tape *tape, atto_var x, atto_shape shape);

#ifdef __cplusplus
}
#endif

#endif
