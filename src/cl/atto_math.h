/* SPDX-License-Identifier: MIT */
/* Pure scalar formulas: activations, their derivatives, random numbers, storage conversions.
 *
 * One text for OpenCL C 1.2, C11 and C++11: float in, float out, no pointers, globals or dtypes.
 * Both backends and users' own kernels include it.
 *
 * Every activation is a pair with the same signature, so that tables and macros can paste names:
 *
 *     float attom_<name>(float x, float a, float b);       y
 *     float attom_<name>_grad(float x, float a, float b);  dy/dx; the caller multiplies by dy
 *
 *   name          y                              a, b              y at -inf, +inf   grad at NaN
 *   identity      x                                                -inf   +inf       1
 *   sigmoid       1 / (1 + e^-x)                                   0      1          NaN
 *   logsigmoid    ln(sigmoid x)                                    -inf   0          NaN
 *   tanh          tanh x                                           -1     1          NaN
 *   relu          max(x, 0)                                        0      +inf       1
 *   gelu          x/2 (1 + erf(x / sqrt 2))                        NaN    +inf       NaN
 *   gelu_tanh     x/2 (1 + tanh(sqrt(2/pi) (x + .044715 x^3)))     NaN    +inf       NaN
 *   silu          x sigmoid(x)                                     NaN    +inf       NaN
 *   relu6         min(max(x, 0), 6)                                0      6          1
 *   hardsigmoid   min(max(x + 3, 0), 6) / 6                        0      1          0
 *   hardtanh      min(max(x, a), b)              low, high         a      b          1
 *   hardswish     x min(max(x + 3, 0), 6) / 6                      NaN    +inf       NaN
 *   selu          l (x, or k (e^x - 1) if x <= 0)                  -l k   +inf       NaN
 *   mish          x tanh(softplus(x))                              NaN    +inf       NaN
 *   softplus      ln(1 + e^(a x)) / a, x beyond  beta, threshold   0      +inf       NaN
 *   softsign      x / (1 + |x|)                                    NaN    NaN        NaN
 *   tanhshrink    x - tanh x                                       -inf   +inf       NaN
 *   leaky_relu    x, or a x if x <= 0            slope             -inf   +inf       a
 *   elu           x, or a (e^x - 1) if x <= 0    alpha             -a     +inf       NaN
 *   celu          x, or a (e^(x/a) - 1) if <= 0  alpha             -a     +inf       NaN
 *   hardshrink    0 if |x| <= a, else x          lambda            -inf   +inf       1
 *   softshrink    0 if |x| <= a, else x -+ a     lambda            -inf   +inf       1
 *
 * The limits are those of positive parameters. y is NaN for a NaN x everywhere. NaN at an infinity
 * is 0 * inf or inf / inf of the definition, which PyTorch returns too. Derivatives at +-inf are
 * their limits, never NaN. At breakpoints and at NaN derivatives follow the scalar code of PyTorch
 * 2.11 on a CPU, except that elu, selu and hardswish pass the NaN on (its scalar and its vector
 * code disagree there).
 *
 * Accuracy is in docs/numerics.md. The forms are chosen to keep relative accuracy where y or dy/dx
 * goes to 0, to never overflow on the way, and to use one division outside any condition (GCC
 * turns a division inside a condition into a branch, or performs both). For the same reason no
 * formula clamps to a constant what attop_exp clamps again: GCC 12 threads a jump from the first
 * clamp through the whole exponential, which made mish 7 times slower. Clamp once, then call
 * attop_exp_bounded.
 */
#ifndef ATTO_MATH_H
#define ATTO_MATH_H

#include "atto_primitives.h"

/* For parameters that a formula of the common signature does not have. */
#define ATTOM_UNUSED(a, b) ((void)(a), (void)(b))

/* ---- one-argument functions for users' kernels ------------------------------------------- */

ATTO_INLINE float attom_exp(float x)
{
    return attop_exp(x);
}

ATTO_INLINE float attom_expm1(float x)
{
    return attop_expm1(x);
}

ATTO_INLINE float attom_log(float x)
{
    return attop_log(x);
}

ATTO_INLINE float attom_log1p(float x)
{
    return attop_log1p(x);
}

ATTO_INLINE float attom_erf(float x)
{
    return attop_erf(x);
}

ATTO_INLINE float attom_sqrt(float x)
{
    return attop_sqrt(x);
}

ATTO_INLINE float attom_rsqrt(float x)
{
    return attop_rsqrt(x);
}

ATTO_INLINE float attom_rcp(float x)
{
    return attop_rcp(x);
}

ATTO_INLINE float attom_fabs(float x)
{
    return attop_fabs(x);
}

ATTO_INLINE float attom_copysign(float x, float s)
{
    return attop_copysign(x, s);
}

ATTO_INLINE float attom_max(float a, float b)
{
    return attop_max(a, b);
}

ATTO_INLINE float attom_min(float a, float b)
{
    return attop_min(a, b);
}

/* ---- activations ------------------------------------------------------------------------- */

ATTO_INLINE float attom_identity(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return x;
}

ATTO_INLINE float attom_identity_grad(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    (void)x;
    return 1.0f;
}

ATTO_INLINE float attom_sigmoid(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return attop_sigmoid(x);
}

/* s (1 - s) = e / (1 + e)^2 with e = e^-|x|: no cancellation on either side. */
ATTO_INLINE float attom_sigmoid_grad(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    const float e = attop_exp_neg(-attop_fabs(x));
    const float d = 1.0f + e;
    return attop_divide(e, d * d);
}

/* min(x, 0) - ln(1 + e^-|x|) */
ATTO_INLINE float attom_logsigmoid(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    const float low = x < 0.0f ? x : 0.0f;
    return low - attop_log1p_unit(attop_exp_neg(-attop_fabs(x)));
}

ATTO_INLINE float attom_logsigmoid_grad(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return attop_sigmoid(-x);
}

ATTO_INLINE float attom_tanh(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return attop_tanh(x);
}

/* 1 - tanh^2 = 4 e / (1 + e)^2 with e = e^-2|x| */
ATTO_INLINE float attom_tanh_grad(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    const float e = attop_exp_neg(-2.0f * attop_fabs(x));
    const float d = 1.0f + e;
    return attop_divide(4.0f * e, d * d);
}

ATTO_INLINE float attom_relu(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return x <= 0.0f ? 0.0f : x;
}

ATTO_INLINE float attom_relu_grad(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return x <= 0.0f ? 0.0f : 1.0f;
}

/* x Phi(x); Phi(x) is the tail left of 0 and 1 - tail right of it, so y keeps relative accuracy
 * (1e-5) down to where it is subnormal, far beyond PyTorch's 1 + erf, which is 0 from -5.8 on. */
ATTO_INLINE float attom_gelu(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    const float tail = attop_normal_tail(attop_fabs(x), attop_gauss(x));
    const float cdf = x > 0.0f ? 1.0f - tail : tail;
    return x * cdf;
}

/* Phi(x) + x phi(x), phi(x) = e^(-x^2/2) / sqrt(2 pi). Beyond 15, phi is 0 in float; the clamp
 * keeps inf * 0 away. */
ATTO_INLINE float attom_gelu_grad(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    const float c = attop_clamp_abs(x, 15.0f);
    const float gauss = attop_gauss(c);
    const float tail = attop_normal_tail(attop_fabs(c), gauss);
    const float cdf = c > 0.0f ? 1.0f - tail : tail;
    return cdf + c * (0.398942280f * gauss); /* 1 / sqrt(2 pi) */
}

/* (1 + tanh u) / 2 = sigmoid(2 u), which keeps relative accuracy for negative x.
 * 2 u = x (1.5957691 + 0.07135481 x^2): 2 sqrt(2/pi), and that times 0.044715. */
ATTO_INLINE float attom_gelu_tanh(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return x * attop_sigmoid(x * (1.59576912f + 0.0713548163f * (x * x)));
}

/* s + x s (1 - s) (2 u)', s = sigmoid(2 u); s (1 - s) is below 2^-124 beyond 9.95, where it counts
 * as 0. */
ATTO_INLINE float attom_gelu_tanh_grad(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    const float c = attop_clamp_abs(x, 9.95f);
    const float z = c * c;
    const float e = attop_exp_bounded(-attop_fabs(c * (1.59576912f + 0.0713548163f * z)));
    const float r = attop_divide(1.0f, 1.0f + e);
    const float s = (c >= 0.0f ? 1.0f : e) * r;
    return x < -9.95f ? 0.0f : s + (c * (1.59576912f + 0.214064449f * z)) * (e * r * r);
}

ATTO_INLINE float attom_silu(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return x * attop_sigmoid(x);
}

/* s + x s (1 - s); s (1 - s) is below 2^-125 beyond 87, where it counts as 0. */
ATTO_INLINE float attom_silu_grad(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    const float c = attop_clamp_abs(x, 87.0f);
    const float last = attop_exp_bounded(-attop_fabs(c));
    const float e = attop_fabs(x) > 87.0f ? 0.0f : last;
    const float r = attop_divide(1.0f, 1.0f + e);
    const float s = (c >= 0.0f ? 1.0f : e) * r;
    return s + c * (e * r * r);
}

ATTO_INLINE float attom_relu6(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return attop_clamp(x, 0.0f, 6.0f);
}

ATTO_INLINE float attom_relu6_grad(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return ((x <= 0.0f) | (x >= 6.0f)) ? 0.0f : 1.0f;
}

ATTO_INLINE float attom_hardsigmoid(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return attop_clamp(x + 3.0f, 0.0f, 6.0f) * 0.166666667f; /* 6 * float(1/6) rounds to 1 */
}

ATTO_INLINE float attom_hardsigmoid_grad(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return ((x > -3.0f) & (x < 3.0f)) ? 0.166666667f : 0.0f;
}

/* Nested, not attop_clamp: with ends that are not constants GCC makes this max and min. */
ATTO_INLINE float attom_hardtanh(float x, float a, float b)
{
    const float y = x < a ? a : x;
    return y > b ? b : y;
}

ATTO_INLINE float attom_hardtanh_grad(float x, float a, float b)
{
    return ((x <= a) | (x >= b)) ? 0.0f : 1.0f;
}

/* The division comes first, so large x does not overflow. */
ATTO_INLINE float attom_hardswish(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return x * (attop_clamp(x + 3.0f, 0.0f, 6.0f) * 0.166666667f);
}

/* 0 at -3 and 1 at 3, as in PyTorch 2.11 (2.4 had -0.5 and 1.5 there). */
ATTO_INLINE float attom_hardswish_grad(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    const float inner = x * 0.333333333f + 0.5f;
    const float upper = x >= 3.0f ? 1.0f : inner;
    return x <= -3.0f ? 0.0f : upper;
}

/* Klambauer et al. 2017, arXiv:1706.02515: lambda = 1.05070099, alpha = 1.67326324,
 * lambda alpha = 1.75809934. */
ATTO_INLINE float attom_selu(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    const float below = 1.75809934f * attop_expm1_neg(x);
    return x > 0.0f ? 1.05070099f * x : below;
}

ATTO_INLINE float attom_selu_grad(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    const float below = 1.75809934f * attop_exp_neg(x > 0.0f ? 0.0f : x);
    return x > 0.0f ? 1.05070099f : below;
}

/* tanh(ln(1 + e)) = n / (n + 2) with e = e^x, n = e (e + 2). The quotient is 1 in float from 9 on
 * and fades below -87; the clamp keeps n finite. */
ATTO_INLINE float attom_mish(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    const float last = attop_exp_bounded(attop_clamp(x, -87.0f, 20.0f));
    const float e = x < -87.0f ? 0.0f : last;
    const float n = e * (e + 2.0f);
    return x * attop_divide(n, n + 2.0f);
}

/* t + x sigmoid(x) (1 - t^2), t = n / (n + 2), 1 - t^2 = 4 (1 + e)^2 / (n + 2)^2, on one
 * denominator. Below -87, e counts as 0. */
ATTO_INLINE float attom_mish_grad(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    const float c = attop_clamp(x, -87.0f, 20.0f);
    const float last = attop_exp_bounded(c);
    const float e = x < -87.0f ? 0.0f : last;
    const float n = e * (e + 2.0f);
    const float d = n + 2.0f;
    return attop_divide(n * d + 4.0f * c * (e * (1.0f + e)), d * d);
}

/* ln(1 + e^t) = max(t, 0) + ln(1 + e^-|t|), t = beta x; PyTorch is linear where t > threshold. */
ATTO_INLINE float attom_softplus(float x, float a, float b)
{
    const float t = a * x;
    const float high = t < 0.0f ? 0.0f : t;
    const float y = (high + attop_log1p_unit(attop_exp_neg(-attop_fabs(t)))) / a;
    return t > b ? x : y;
}

ATTO_INLINE float attom_softplus_grad(float x, float a, float b)
{
    const float t = a * x;
    const float s = attop_sigmoid(t);
    return t > b ? 1.0f : s;
}

ATTO_INLINE float attom_softsign(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return x / (1.0f + attop_fabs(x));
}

/* Squared after the division: the square of 1 + |x| would overflow. */
ATTO_INLINE float attom_softsign_grad(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    const float r = 1.0f / (1.0f + attop_fabs(x));
    return r * r;
}

/* For |x| < 1, where x - tanh x cancels, x^3 p(x^2) with p ~ 1/3 - 2/15 x^2 + ..., relative error
 * 2^-24.6 (minimax, like the primitives). */
ATTO_INLINE float attom_tanhshrink(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    const float z = x * x;
    float p = -1.4282377e-4f;
    p = p * z + 9.2360884e-4f;
    p = p * z - 3.2069534e-3f;
    p = p * z + 8.697948e-3f;
    p = p * z - 2.1829575e-2f;
    p = p * z + 5.396342e-2f;
    p = p * z - 1.3333313e-1f;
    p = p * z + 3.3333334e-1f;
    const float near = x * (z * p);
    const float far = x - attop_tanh(x);
    return attop_fabs(x) < 1.0f ? near : far;
}

ATTO_INLINE float attom_tanhshrink_grad(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    const float t = attop_tanh(x);
    return t * t;
}

ATTO_INLINE float attom_leaky_relu(float x, float a, float b)
{
    (void)b;
    const float below = a * x;
    return x > 0.0f ? x : below;
}

ATTO_INLINE float attom_leaky_relu_grad(float x, float a, float b)
{
    (void)b;
    return x > 0.0f ? 1.0f : a;
}

ATTO_INLINE float attom_elu(float x, float a, float b)
{
    (void)b;
    const float below = a * attop_expm1_neg(x);
    return x > 0.0f ? x : below;
}

ATTO_INLINE float attom_elu_grad(float x, float a, float b)
{
    (void)b;
    const float below = a * attop_exp_neg(x > 0.0f ? 0.0f : x);
    return x > 0.0f ? 1.0f : below;
}

/* x / a, not x times 1 / a, which is infinite for a tiny a. A negative a turns the exponent's
 * sign. */
ATTO_INLINE float attom_celu(float x, float a, float b)
{
    (void)b;
    const float below = a * attop_expm1(x / a);
    return x > 0.0f ? x : below;
}

ATTO_INLINE float attom_celu_grad(float x, float a, float b)
{
    (void)b;
    const float below = attop_exp(x / a);
    return x > 0.0f ? 1.0f : below;
}

ATTO_INLINE float attom_hardshrink(float x, float a, float b)
{
    (void)b;
    return attop_fabs(x) <= a ? 0.0f : x;
}

ATTO_INLINE float attom_hardshrink_grad(float x, float a, float b)
{
    (void)b;
    return attop_fabs(x) <= a ? 0.0f : 1.0f;
}

/* |x| - lambda with the sign of x; NaN fails the comparison and passes through. */
ATTO_INLINE float attom_softshrink(float x, float a, float b)
{
    (void)b;
    const float size = attop_fabs(x);
    const float y = attop_copysign(size - a, x);
    return size <= a ? 0.0f : y;
}

ATTO_INLINE float attom_softshrink_grad(float x, float a, float b)
{
    (void)b;
    return attop_fabs(x) <= a ? 0.0f : 1.0f;
}

/* ---- elementwise operations --------------------------------------------------------------- */

/* Gradients get dy, because PyTorch multiplies, divides or selects, and 0 * dy is not 0 for an
 * infinite dy. Each is PyTorch's formula, edges included (docs/ops/elementwise.md). */

ATTO_INLINE float attom_unary_neg(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return -x;
}

ATTO_INLINE float attom_unary_neg_grad(float x, float dy, float a, float b)
{
    ATTOM_UNUSED(a, b);
    (void)x;
    return -dy;
}

ATTO_INLINE float attom_unary_abs(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return attop_fabs(x);
}

/* dy sign(x); sign is 0 at 0 and at NaN. */
ATTO_INLINE float attom_unary_abs_grad(float x, float dy, float a, float b)
{
    ATTOM_UNUSED(a, b);
    const float below = x < 0.0f ? -1.0f : 0.0f;
    return dy * (x > 0.0f ? 1.0f : below);
}

ATTO_INLINE float attom_unary_exp(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return attop_exp(x);
}

ATTO_INLINE float attom_unary_exp_grad(float x, float dy, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return dy * attop_exp(x);
}

ATTO_INLINE float attom_unary_log(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return attop_log(x);
}

ATTO_INLINE float attom_unary_log_grad(float x, float dy, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return dy / x;
}

ATTO_INLINE float attom_unary_sqrt(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return attop_sqrt(x);
}

ATTO_INLINE float attom_unary_sqrt_grad(float x, float dy, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return dy / (2.0f * attop_sqrt(x));
}

ATTO_INLINE float attom_unary_rsqrt(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return attop_rsqrt(x);
}

/* -dy/2 r^3, multiplied from the left: r^3 alone overflows below 2^-85 */
ATTO_INLINE float attom_unary_rsqrt_grad(float x, float dy, float a, float b)
{
    ATTOM_UNUSED(a, b);
    const float r = attop_rsqrt(x);
    return -0.5f * dy * r * r * r;
}

ATTO_INLINE float attom_unary_square(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return x * x;
}

ATTO_INLINE float attom_unary_square_grad(float x, float dy, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return dy * (2.0f * x);
}

ATTO_INLINE float attom_unary_reciprocal(float x, float a, float b)
{
    ATTOM_UNUSED(a, b);
    return 1.0f / x;
}

ATTO_INLINE float attom_unary_reciprocal_grad(float x, float dy, float a, float b)
{
    ATTOM_UNUSED(a, b);
    const float r = 1.0f / x;
    return -dy * r * r;
}

/* min(max(x, a), b): b where a > b. */
ATTO_INLINE float attom_unary_clamp(float x, float a, float b)
{
    const float y = x < a ? a : x;
    return y > b ? b : y;
}

/* 1 at both ends. */
ATTO_INLINE float attom_unary_clamp_grad(float x, float dy, float a, float b)
{
    return ((x >= a) & (x <= b)) ? dy : 0.0f;
}

ATTO_INLINE float attom_binary_add(float a, float b)
{
    return a + b;
}

ATTO_INLINE float attom_binary_add_da(float a, float b, float dy)
{
    ATTOM_UNUSED(a, b);
    return dy;
}

ATTO_INLINE float attom_binary_add_db(float a, float b, float dy)
{
    ATTOM_UNUSED(a, b);
    return dy;
}

ATTO_INLINE float attom_binary_sub(float a, float b)
{
    return a - b;
}

ATTO_INLINE float attom_binary_sub_da(float a, float b, float dy)
{
    ATTOM_UNUSED(a, b);
    return dy;
}

ATTO_INLINE float attom_binary_sub_db(float a, float b, float dy)
{
    ATTOM_UNUSED(a, b);
    return -dy;
}

ATTO_INLINE float attom_binary_mul(float a, float b)
{
    return a * b;
}

ATTO_INLINE float attom_binary_mul_da(float a, float b, float dy)
{
    (void)a;
    return dy * b;
}

ATTO_INLINE float attom_binary_mul_db(float a, float b, float dy)
{
    (void)b;
    return dy * a;
}

ATTO_INLINE float attom_binary_div(float a, float b)
{
    return a / b;
}

ATTO_INLINE float attom_binary_div_da(float a, float b, float dy)
{
    (void)a;
    return dy / b;
}

/* Two divisions: b^2 overflows and underflows before the result does. */
ATTO_INLINE float attom_binary_div_db(float a, float b, float dy)
{
    return -dy * (a / b / b);
}

ATTO_INLINE float attom_binary_pow(float a, float b)
{
    return attop_pow(a, b);
}

/* 0 for the exponent 0, also where a^(b-1) is infinite */
ATTO_INLINE float attom_binary_pow_da(float a, float b, float dy)
{
    const float slope = dy * (b * attop_pow(a, b - 1.0f));
    return b == 0.0f ? 0.0f : slope;
}

/* dy a^b ln a; the limit 0 of 0^b ln 0 where b >= 0 */
ATTO_INLINE float attom_binary_pow_db(float a, float b, float dy)
{
    const float slope = attop_pow(a, b) * attop_log(a);
    return dy * (((a == 0.0f) & (b >= 0.0f)) ? 0.0f : slope);
}

/* NaN if either is NaN. */
ATTO_INLINE float attom_binary_maximum(float a, float b)
{
    return attop_max(a, b);
}

/* Half each where a == b. */
ATTO_INLINE float attom_binary_maximum_da(float a, float b, float dy)
{
    const float share = a == b ? 0.5f * dy : dy;
    return a < b ? 0.0f : share;
}

ATTO_INLINE float attom_binary_maximum_db(float a, float b, float dy)
{
    return attom_binary_maximum_da(b, a, dy);
}

ATTO_INLINE float attom_binary_minimum(float a, float b)
{
    return attop_min(a, b);
}

ATTO_INLINE float attom_binary_minimum_da(float a, float b, float dy)
{
    const float share = a == b ? 0.5f * dy : dy;
    return a > b ? 0.0f : share;
}

ATTO_INLINE float attom_binary_minimum_db(float a, float b, float dy)
{
    return attom_binary_minimum_da(b, a, dy);
}

/* ---- losses -------------------------------------------------------------------------------- */

/* One element's loss of prediction x and target t, and its derivatives by x and by t. a is the
 * kind's number: beta, delta, or of binary cross-entropy the weight of the positive class. Edges
 * are PyTorch's (docs/ops/loss.md). */

/* -1, 0 or 1; 0 for NaN */
ATTO_INLINE float attom_sign(float x)
{
    return attom_unary_abs_grad(x, 1.0f, 0.0f, 0.0f);
}

ATTO_INLINE float attom_loss_l1(float x, float t, float a)
{
    (void)a;
    return attop_fabs(x - t);
}

ATTO_INLINE float attom_loss_l1_dx(float x, float t, float a)
{
    (void)a;
    return attom_sign(x - t);
}

ATTO_INLINE float attom_loss_l1_dt(float x, float t, float a)
{
    return attom_loss_l1_dx(t, x, a);
}

ATTO_INLINE float attom_loss_mse(float x, float t, float a)
{
    const float d = x - t;
    (void)a;
    return d * d;
}

ATTO_INLINE float attom_loss_mse_dx(float x, float t, float a)
{
    (void)a;
    return 2.0f * (x - t);
}

ATTO_INLINE float attom_loss_mse_dt(float x, float t, float a)
{
    return attom_loss_mse_dx(t, x, a);
}

/* d / a before the product: d^2 alone may overflow or vanish. a = 0 leaves |d|. */
ATTO_INLINE float attom_loss_smooth_l1(float x, float t, float a)
{
    const float d = attop_fabs(x - t);
    const float near_zero = 0.5f * d * (d / a);
    return d < a ? near_zero : d - 0.5f * a;
}

/* d / a, between -1 and 1; the sign where a = 0, NaN for NaN */
ATTO_INLINE float attom_loss_smooth_l1_dx(float x, float t, float a)
{
    const float d = x - t;
    const float slope = d / (a > 0.0f ? a : 1.0f);
    return attop_fabs(d) > a ? attop_copysign(1.0f, d) : slope;
}

ATTO_INLINE float attom_loss_smooth_l1_dt(float x, float t, float a)
{
    return attom_loss_smooth_l1_dx(t, x, a);
}

ATTO_INLINE float attom_loss_huber(float x, float t, float a)
{
    const float d = attop_fabs(x - t);
    const float line = a * (d - 0.5f * a);
    return d <= a ? 0.5f * d * d : line;
}

ATTO_INLINE float attom_loss_huber_dx(float x, float t, float a)
{
    return attop_clamp_abs(x - t, a);
}

ATTO_INLINE float attom_loss_huber_dt(float x, float t, float a)
{
    return attom_loss_huber_dx(t, x, a);
}

/* (1 - t) log(1 + e^x) + a t log(1 + e^-x), both logarithms as max(+-x, 0) + log(1 + e^-|x|):
 * nothing overflows, and for 0 <= t <= 1 nothing cancels. */
ATTO_INLINE float attom_loss_bce_with_logits(float x, float t, float a)
{
    const float rest = attop_log1p_unit(attop_exp_neg(-attop_fabs(x)));
    const float above = x > 0.0f ? x : 0.0f, below = -x > 0.0f ? -x : 0.0f;
    return (1.0f - t) * (above + rest) + a * t * (below + rest);
}

/* (1 - t) sigmoid(x) - a t sigmoid(-x) */
ATTO_INLINE float attom_loss_bce_with_logits_dx(float x, float t, float a)
{
    const float e = attop_exp_neg(-attop_fabs(x));
    const float large = attop_divide(1.0f, 1.0f + e), small = e * large;
    const float yes = x >= 0.0f ? large : small, no = x >= 0.0f ? small : large;
    return (1.0f - t) * yes - a * t * no;
}

/* a log(1 + e^-x) - log(1 + e^x), which is -x for a = 1 */
ATTO_INLINE float attom_loss_bce_with_logits_dt(float x, float t, float a)
{
    const float rest = attop_log1p_unit(attop_exp_neg(-attop_fabs(x)));
    const float above = x > 0.0f ? x : 0.0f, below = -x > 0.0f ? -x : 0.0f;
    (void)t;
    return (a * below - above) + (a - 1.0f) * rest;
}

/* log t, and 0 for t = 0, which stands for the limit of t log t */
ATTO_INLINE float attom_log_or_0(float t)
{
    const float y = attop_log(t);
    return t == 0.0f ? 0.0f : y;
}

ATTO_INLINE float attom_loss_kl_div(float x, float t, float a)
{
    (void)a;
    return t * (attom_log_or_0(t) - x);
}

ATTO_INLINE float attom_loss_kl_div_dx(float x, float t, float a)
{
    ATTOM_UNUSED(x, a);
    return -t;
}

ATTO_INLINE float attom_loss_kl_div_dt(float x, float t, float a)
{
    const float slope = (attop_log(t) - x) + 1.0f;
    (void)a;
    return t == 0.0f ? 0.0f : slope;
}

ATTO_INLINE float attom_loss_kl_div_log(float x, float t, float a)
{
    (void)a;
    return attop_exp(t) * (t - x);
}

ATTO_INLINE float attom_loss_kl_div_log_dx(float x, float t, float a)
{
    ATTOM_UNUSED(x, a);
    return -attop_exp(t);
}

ATTO_INLINE float attom_loss_kl_div_log_dt(float x, float t, float a)
{
    (void)a;
    return attop_exp(t) * ((t - x) + 1.0f);
}

/* ---- building blocks --------------------------------------------------------------------- */

/* w rstd (x - mean) + b: the last step of every normalisation layer. */
ATTO_INLINE float attom_standardise(float x, float mean, float rstd, float w, float b)
{
    return w * rstd * (x - mean) + b;
}

/* Exponential moving average, as running statistics use it. */
ATTO_INLINE float attom_ema(float previous, float value, float momentum)
{
    return (1.0f - momentum) * previous + momentum * value;
}

/* ---- random numbers ---------------------------------------------------------------------- */

/* Four 32-bit words. */
typedef struct attom_u32x4 {
    attop_u32 w0, w1, w2, w3;
} attom_u32x4;

/* High half of the 64-bit product. */
ATTO_INLINE attop_u32 attom_mul_high(attop_u32 a, attop_u32 b)
{
#ifdef ATTOP_OPENCL
    return mul_hi(a, b);
#else
    return (attop_u32)(((uint64_t)a * b) >> 32);
#endif
}

/* One round: two products, crossed with the other two counter words and the key. */
ATTO_INLINE attom_u32x4 attom_philox_round(attom_u32x4 c, attop_u32 k0, attop_u32 k1)
{
    attom_u32x4 r;
    r.w0 = attom_mul_high(0xcd9e8d57u, c.w2) ^ c.w1 ^ k0;
    r.w1 = 0xcd9e8d57u * c.w2;
    r.w2 = attom_mul_high(0xd2511f53u, c.w0) ^ c.w3 ^ k1;
    r.w3 = 0xd2511f53u * c.w0;
    return r;
}

/* Philox4x32-10: counter (c0, c1, c2, c3), key (k0, k1), least significant word first.
 * Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3". The key grows by
 * the golden ratio and sqrt 3 - 1 (in 2^-32) from round to round. */
ATTO_INLINE attom_u32x4 attom_philox(attop_u32 c0, attop_u32 c1, attop_u32 c2, attop_u32 c3,
                                     attop_u32 k0, attop_u32 k1)
{
    attom_u32x4 c;
    c.w0 = c0;
    c.w1 = c1;
    c.w2 = c2;
    c.w3 = c3;
    c = attom_philox_round(c, k0, k1);
    c = attom_philox_round(c, k0 + 0x9e3779b9u, k1 + 0xbb67ae85u);
    c = attom_philox_round(c, k0 + 2u * 0x9e3779b9u, k1 + 2u * 0xbb67ae85u);
    c = attom_philox_round(c, k0 + 3u * 0x9e3779b9u, k1 + 3u * 0xbb67ae85u);
    c = attom_philox_round(c, k0 + 4u * 0x9e3779b9u, k1 + 4u * 0xbb67ae85u);
    c = attom_philox_round(c, k0 + 5u * 0x9e3779b9u, k1 + 5u * 0xbb67ae85u);
    c = attom_philox_round(c, k0 + 6u * 0x9e3779b9u, k1 + 6u * 0xbb67ae85u);
    c = attom_philox_round(c, k0 + 7u * 0x9e3779b9u, k1 + 7u * 0xbb67ae85u);
    c = attom_philox_round(c, k0 + 8u * 0x9e3779b9u, k1 + 8u * 0xbb67ae85u);
    return attom_philox_round(c, k0 + 9u * 0x9e3779b9u, k1 + 9u * 0xbb67ae85u);
}

/* Dropout: 1 if the element is kept. threshold = ceil(p 2^24), so 0 keeps all and 2^24 none. */
ATTO_INLINE int attom_keep(attop_u32 word, attop_u32 threshold)
{
    return (word >> 8) >= threshold;
}

/* The uniform number in [0, 1) that Triton, hence attorch, makes of a word: a negative one is
 * complemented first. The factor is the float below 2^-31. */
ATTO_INLINE float attom_triton_uniform(attop_u32 word)
{
    const attop_u32 folded = word ^ (0u - (word >> 31));
    return (float)(attop_i32)folded * 4.6566127342e-10f;
}

/* ---- storage types ----------------------------------------------------------------------- */

/* All four work on bits and, for subnormal halves, on one float addition that is exact or rounds
 * once; none depends on whether the device flushes float subnormals. */

/* Subnormal halves: the 10 bits below a leading 2^-14 make a normal float, minus that 2^-14. */
ATTO_INLINE float attom_f16_to_f32(attop_u16 h)
{
    const attop_u32 magnitude = ((attop_u32)h & 0x7fffu) << 13;
    const attop_u32 sign = ((attop_u32)h & 0x8000u) << 16;
    const attop_u32 normal = magnitude + (112u << 23); /* exponent bias 127 - 15 */
    const float small = attop_float(magnitude + (113u << 23)) - attop_float(113u << 23);
    const attop_u32 special = magnitude + (224u << 23); /* exponent 31 to 255 */
    const attop_u32 finite = magnitude < (1u << 23) ? attop_bits(small) : normal;
    return attop_float((magnitude >= (31u << 23) ? special : finite) | sign);
}

/* Round to nearest, ties to even. Below 2^-14, adding 1/2 rounds to multiples of 2^-24, the unit
 * of subnormal halves, and leaves their number in the low bits. NaN keeps its upper payload. */
ATTO_INLINE attop_u16 attom_f32_to_f16(float x)
{
    const attop_u32 bits = attop_bits(x);
    const attop_u32 magnitude = bits & 0x7fffffffu;
    const attop_u32 odd = (magnitude >> 13) & 1u;
    const attop_u32 normal = (magnitude - (112u << 23) + 0xfffu + odd) >> 13;
    const attop_u32 small = attop_bits(attop_float(magnitude) + 0.5f) - (126u << 23);
    const attop_u32 finite = magnitude < (113u << 23) ? small : normal;
    const attop_u32 nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    const attop_u32 capped = magnitude >= 0x47800000u ? 0x7c00u : finite; /* 2^16 and up */
    const attop_u32 h = magnitude > 0x7f800000u ? nan : capped;
    return (attop_u16)(h | ((bits >> 16) & 0x8000u));
}

ATTO_INLINE float attom_bf16_to_f32(attop_u16 h)
{
    return attop_float((attop_u32)h << 16);
}

/* Round to nearest, ties to even; overflow carries into the exponent and gives infinity. A NaN gets
 * its quiet bit, or rounding could turn it into an infinity. */
ATTO_INLINE attop_u16 attom_f32_to_bf16(float x)
{
    const attop_u32 bits = attop_bits(x);
    const attop_u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const attop_u32 nan = (bits >> 16) | 0x40u;
    return (attop_u16)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

#endif
