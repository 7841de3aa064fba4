/* SPDX-License-Identifier: MIT */
/* The arithmetic of optimisers, one text for OpenCL C and C, and how their tables lie in memory.
 *
 * A chunk is blocks of ATTO_OPTIM_BLOCK elements. A segment is one parameter: it starts at a block,
 * the elements behind its end are 0 and go along. Tables:
 *
 *   segment_of    [blocks]       which segment a block belongs to
 *   flags         [segments]     1 = it has a gradient in this step
 *   group_of      [segments]     its group;  groups [groups][2]: factor of lr, weight decay
 *   steps         [segments]     how many steps it has made
 *   coefficients  [segments][8]  this step's numbers, made by begin, ATTO_OPTIM_<NAME> below
 *   partials      [spans][2]     sum of squares, and how many are not finite, of ATTO_OPTIM_SPAN
 *                                blocks
 *   control       [8]            the optimiser's own scalars, ATTO_CONTROL_<NAME>
 */
#ifndef ATTO_OPTIM_H
#define ATTO_OPTIM_H

#include "atto_math.h"

#define ATTO_OPTIM_BLOCK 1024
#define ATTO_OPTIM_SPAN  16

/* Methods. Adam and AdamW differ in their coefficients only. */
#define ATTO_OPTIM_SGD     0
#define ATTO_OPTIM_ADAM    1
#define ATTO_OPTIM_RMSPROP 2

#define ATTO_CONTROL_SCALE   0 /* of the loss; 1 without scaling */
#define ATTO_CONTROL_GOOD    1 /* good steps in a row */
#define ATTO_CONTROL_NORM    2 /* of the last step */
#define ATTO_CONTROL_SKIPPED 3 /* steps so far */
#define ATTO_CONTROL_WORDS   8

#define ATTO_OPTIM_ACTIVE       0 /* 0: this step leaves the segment alone */
#define ATTO_OPTIM_GRADIENT     1 /* times the gradient: clipping, 1 / scale, sign */
#define ATTO_OPTIM_RATE         2 /* lr, and Adam's first bias correction */
#define ATTO_OPTIM_L2           3 /* times the value, added to the gradient */
#define ATTO_OPTIM_DECAY        4 /* times the value */
#define ATTO_OPTIM_ROOT         5 /* times the root: Adam's second bias correction */
#define ATTO_OPTIM_FRESH        6 /* times the gradient on its way into SGD's buffer */
#define ATTO_OPTIM_COEFFICIENTS 8

/* What begin is to do. */
#define ATTO_OPTIM_MEASURES  1u /* partials are there */
#define ATTO_OPTIM_CLIPS     2u
#define ATTO_OPTIM_SCALES    4u
#define ATTO_OPTIM_DECOUPLED 8u /* AdamW's weight decay */
#define ATTO_OPTIM_MAXIMIZES 16u

/* ---- once a step ---- */

/* PyTorch's clip_grad_norm_; NaN stays NaN. */
ATTO_INLINE float atto_optim_clip(float norm, float max_norm)
{
    return attop_min(max_norm / (norm + 1e-6f), 1.0f);
}

/* 1 - beta^steps, to a few ulp also where beta is close to 1. */
ATTO_INLINE float atto_optim_correction(float steps, float ln_beta)
{
    return -attop_expm1(steps * ln_beta);
}

/* A scale that would become infinite stays. */
ATTO_INLINE float atto_optim_grown(float scale, float growth)
{
    const float grown = scale * growth;
    return grown < INFINITY ? grown : scale;
}

/* Never below the smallest normal number: a step divides by the scale. */
ATTO_INLINE float atto_optim_shrunk(float scale, float backoff)
{
    return attop_max(scale * backoff, 0x1p-126f);
}

ATTO_INLINE int atto_optim_is_finite(float x)
{
    return (attop_bits(x) & 0x7f800000u) != 0x7f800000u;
}

/* ---- each element ---- */

/* An infinite value without weight decay does not touch the gradient. */
ATTO_INLINE float atto_optim_gradient(float g, float p, float factor, float l2)
{
    return l2 == 0.0f ? g * factor : g * factor + l2 * p;
}

ATTO_INLINE float atto_optim_average(float m, float g, float weight)
{
    return m + weight * (g - m);
}

ATTO_INLINE float atto_optim_square(float v, float g, float keep, float weight)
{
    return keep * v + weight * g * g;
}

/* SGD's buffer, and the direction that it gives. */
ATTO_INLINE float atto_optim_buffer(float b, float g, float momentum, float fresh)
{
    return momentum * b + fresh * g;
}

ATTO_INLINE float atto_optim_nesterov(float b, float g, float momentum)
{
    return g + momentum * b;
}

/* Adam's m over its root. */
ATTO_INLINE float atto_optim_adam(float m, float v, float root, float eps)
{
    return m / (attop_sqrt(v) * root + eps);
}

/* RMSprop's g over its root; average is 0 unless centred. */
ATTO_INLINE float atto_optim_rmsprop(float g, float v, float average, float eps)
{
    return g / (attop_sqrt(attop_max(v - average * average, 0.0f)) + eps);
}

#endif
