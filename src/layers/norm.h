/* SPDX-License-Identifier: MIT */
/* What the normalising families share: numbers, parameters and running statistics of their
 * modules. */
#ifndef ATTO_LAYERS_NORM_H
#define ATTO_LAYERS_NORM_H

#include "layers/checks.h"
#include "train/module.h"

/* 0 is the default, ATTO_ZERO is 0. */
float atto__or_default(float given, float standard);

/* A number of 0 or more. */
atto_status atto__eps_check(const char *what, float eps);

/* A number. */
atto_status atto__momentum_check(const char *what, float momentum);

/* The dimension that a result like x, [N, C, ...], shall have innermost: 1 where x is
 * channels_last. */
int32_t atto__norm_innermost(const atto_tensor *x);

/* Weight and bias of a module, which owns them; NULL where there is none. */
typedef struct atto__affine {
    atto_param *weight, *bias;
} atto__affine;

/* "weight" (1 at first) and, if has_bias, "bias" (0). dtype 0 is f32. */
atto_status atto__affine_add(atto_module *m, atto_dtype dtype, atto_shape shape, bool has_bias,
                             atto__affine *out);

/* Both on a tape, for options that name them by pointers. */
typedef struct atto__affine_vars {
    atto_var weight, bias;
    const atto_var *weight_or_null, *bias_or_null;
} atto__affine_vars;

void atto__affine_use(atto_tape *tape, const atto__affine *a, atto__affine_vars *out);

/* Buffers of a module; no dtype where statistics are not tracked. */
typedef struct atto__running {
    atto_tensor mean, var, batches;
} atto__running;

/* "running_mean" (0 at first), "running_var" (1) and "num_batches_tracked" (0). */
atto_status atto__running_add(atto_module *m, int64_t channels, atto__running *out);
void atto__running_free(atto__running *r);

/* What a BatchNorm1d or BatchNorm2d of that many channels, over dims dimensions, does in
 * evaluation: y = scale[c] x + shift[c], on the host. Waits; what names the caller in messages. */
atto_status atto__batch_norm_affine(const char *what, const atto_module *m, int32_t dims,
                                    int64_t channels, double *scale, double *shift);

/* From now on its input is its output, in evaluation. */
void atto__batch_norm_fold(atto_module *m);

/* A parameter's values as f32, whatever its dtype. Waits. */
atto_status atto__param_floats(const atto_param *p, float *out);

#endif
