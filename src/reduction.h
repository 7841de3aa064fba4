/* SPDX-License-Identifier: MIT */
/* Reductions as the backends see them: which dimensions of a walk an output keeps, which it
 * folds. */
#ifndef ATTO_REDUCTION_H
#define ATTO_REDUCTION_H

#include "backend.h"

typedef enum atto__fold {
    ATTO_FOLD_SUM,  /* sum / divisor */
    ATTO_FOLD_MAX,  /* of -in where negate, and then negated again; NaN wins */
    ATTO_FOLD_ARG,  /* position of the first maximum, likewise; layout->index_stride counts */
    ATTO_FOLD_TIES, /* share / number of elements that equal match */
    ATTO_FOLD_COUNT
} atto__fold;

/* out = fold of in over the dimensions in which out has stride 0. Views of the layout's shape. */
typedef struct atto__reduction {
    atto__fold fold;
    const atto_tensor *in, *out;
    const atto_tensor *match, *share; /* TIES: strides 0 as out */
    const char *formula;      /* OpenCL's SUM: of formula(a, b, in), "binary_mul_db"; or NULL */
    const atto_tensor *a, *b; /* then; NULL: the number value */
    float value;
    const atto__layout *layout;
    float divisor; /* SUM */
    bool negate;   /* MAX, ARG */
    bool add;      /* SUM: out += */
} atto__reduction;

/* The layout's dimensions in two lists, each right-aligned: sizes in front are 1. Both keep the
 * layout's order, so the last one of a list has its smallest stride in `in`. */
typedef struct atto__fold_plan {
    int32_t kept_rank, rank;
    int64_t kept_size[ATTO_MERGED_RANK], kept_in[ATTO_MERGED_RANK], kept_out[ATTO_MERGED_RANK];
    int64_t kept_match[ATTO_MERGED_RANK], kept_share[ATTO_MERGED_RANK];
    int64_t kept_a[ATTO_MERGED_RANK], kept_b[ATTO_MERGED_RANK];
    int64_t a[ATTO_MERGED_RANK], b[ATTO_MERGED_RANK];
    int64_t size[ATTO_MERGED_RANK], in[ATTO_MERGED_RANK], index[ATTO_MERGED_RANK];
    int64_t outputs, length; /* products of the sizes */
    bool rows;               /* the innermost dimension of all is folded */
} atto__fold_plan;

atto__fold_plan atto__fold_plan_of(const atto__reduction *r);

/* Whether the view sums up some dimension. */
bool atto__is_summed(const atto_tensor *view);

/* Dense strides for a tensor of the layout's shape that has stride 0 where like has; returns its
 * elements. */
int64_t atto__dense_like(const atto_tensor *like, atto_tensor *out);

/* A scratch tensor like that. *buffer is storage for its header. */
atto_status atto__scratch_like(atto_device *dev, const atto_tensor *like, atto_dtype dtype,
                               atto_buffer *buffer, atto_tensor *out);

/* A dense scratch tensor in f32 of the layout's whole shape, for a gradient before it is summed. */
atto_status atto__scratch_full(atto_device *dev, const atto__layout *layout, atto_buffer *buffer,
                               atto_tensor *out);

/* What atto_reduce_forward asks for, out of the canonical arguments. */
atto__reduction atto__reduction_of(const struct atto_reduce_args *a, const atto__layout *layout);

/* share = dy / number of elements of x that equal y: what each of them gets of dy. */
atto__reduction atto__ties_of(const struct atto_reduce_args *a, const atto__layout *layout,
                              const atto_tensor *share);

/* The two gradients of an op with inputs a and b, in an order in which none overwrites what the
 * other one still reads: at most one is in place. */
typedef struct atto__gradient {
    const atto_tensor *out; /* NULL: not wanted */
    bool add;
    bool of_b;
} atto__gradient;

void atto__gradients_order(atto__gradient *pair, const atto_tensor *const *inputs, int32_t count);

/* Whether the gradients of the kind are dy or -dy and need no values: SIGNS in tables.h. False for
 * a value that is no kind. */
bool atto__gradient_is_sign(atto_binary_kind kind);

#endif
