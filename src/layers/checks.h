/* SPDX-License-Identifier: MIT */
/* Checks that several families share. what names the call: "act_forward". */
#ifndef ATTO_LAYERS_CHECKS_H
#define ATTO_LAYERS_CHECKS_H

#include "run.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* The kind exists and its two numbers are legal (act.c). */
atto_status atto__activation_check(const char *what, atto_activation act);

/* A dropout probability: 0 <= p <= 1, not NaN; the generator exists. */
atto_status atto__probability_check(const char *what, float p, const atto_rng *rng);

/* One of the reductions up to `last`. */
atto_status atto__reduction_check(const char *what, atto_reduction reduction, atto_reduction last);

/* out has the shape and dtype of in, which is f32, f16 or bf16. */
atto_status atto__elementwise_check(const char *what, const char *in_name, const atto_tensor *in,
                                    const char *out_name, const atto_tensor *out);

/* -rank <= dim < rank. */
atto_status atto__dim_check(const char *what, int32_t dim, int32_t rank);

/* f32, f16 or bf16. */
bool atto__is_float(atto_dtype dtype);

/* x is an image, dims 2, or a sequence, dims 1, of floats, with or without a batch dimension, and
 * each size behind the channels is 1 to most. */
atto_status atto__image_check(const char *what, const char *name, const atto_tensor *x,
                              int32_t dims, int64_t most);

/* t has that shape. */
atto_status atto__same_shape_check(const char *what, const char *name, const atto_tensor *t,
                                   atto_shape expected);

/* A tensor of the call and what it must be. */
typedef struct atto__expected {
    const char *name;
    const atto_tensor *t; /* NULL is fine */
    atto_shape shape;
    atto_dtype dtype;
    bool or_f32; /* f32 is as good */
} atto__expected;

atto_status atto__tensors_check(const char *what, const atto__expected *list, size_t count);

#endif
