/* SPDX-License-Identifier: MIT */
/* The closed set of scalar float primitives that every formula of attocl is built from.
 *
 *   name                      meaning                    how, outside OpenCL built-ins
 *   attop_exp                 e^x                        2^n * polynomial of degree 6
 *   attop_exp_neg             e^x, x <= 0                the same, but 0 where it is subnormal (C
 *                                                        only)
 *   attop_exp_bounded         e^x, |x| <= 160            the same as attop_exp without a clamp
 *   attop_exp_share           e^x, x <= 0                exp; off by |x| roundings more will do
 *   attop_expm1, _expm1_neg   e^x - 1; x <= 0            the same reduction, kept relative at 0
 *   attop_log, attop_log1p    ln x, ln(1 + x)            exponent + polynomial of degree 10
 *   attop_pow                 x^y, all of C's special cases  2^(y log2 x) in double
 *   attop_log1p_unit          ln(1 + x), 0 <= x <= 1     odd polynomial in x / (1 + x/2)
 *   attop_tanh                tanh x                     m / (m + 2), m = e^-2|x| - 1
 *   attop_erf                 erf x                      x * rational function of x^2
 *   attop_sigmoid             1 / (1 + e^-x)             one exp, one division, no overflow
 *   attop_gauss               e^(-x^2 / 2)               exp; an approximation will do
 *   attop_normal_tail         1 - Phi(x), x >= 0         e^(-x^2 / 2) * polynomial in 1 / (1 + c x)
 *   attop_sqrt, _rsqrt, _rcp  x^(1/2), x^(-1/2), 1/x     IEEE square root and division
 *   attop_divide              x / y, y not extreme       division, or the device's reciprocal
 *   attop_max, attop_min      NaN if either is NaN       comparisons (fmax drops the NaN)
 *   attop_fabs, _copysign     sign operations            bit operations
 *   attop_bits, attop_float   the bits of a float, and back
 *
 * One text for OpenCL C 1.2 and C11 (and C++11). Under OpenCL exp, log, pow, sqrt and rsqrt are
 * built-ins; the others are ours there as well: on an H200 they are as fast as the built-ins or
 * faster, and PoCL's erf and expm1 are scalar and many times slower. In C all of them are ours,
 * because calls to libm do not vectorise; they have no branch and no table, so a loop over them
 * does, given
 * -fno-math-errno -fno-trapping-math.
 *
 * ATTO_NVIDIA (the compute capability times ten) allows what is only known to be accurate on those
 * GPUs; each such line stands beside its portable twin.
 *
 * All cover the whole range: signed zeros, subnormals in and out, infinities, NaN. The bounds in
 * ulp are in docs/numerics.md, and tests/test_math.c measures them over all floats. They hold with
 * and without contraction of a*b+c. Never compile this with -ffast-math: the reductions rely on
 * the order of the additions as written.
 *
 * The polynomials and rational functions are minimax fits made for this file (Remez exchange with
 * 50 digits, then a search over the neighbouring floats of each coefficient). Each function names
 * its interval and the error of its fit before rounding.
 */
#ifndef ATTO_PRIMITIVES_H
#define ATTO_PRIMITIVES_H

#if defined(__OPENCL_VERSION__) || defined(__OPENCL_C_VERSION__) /* clang alone has the latter */
#define ATTOP_OPENCL
#endif

/* The few spellings that differ. */
#ifdef ATTOP_OPENCL
typedef uint attop_u32;
typedef int attop_i32;
typedef ushort attop_u16;
#define ATTO_INLINE    static inline
#define attop_bits(x)  as_uint(x)
#define attop_float(u) as_float(u)
#else
#include <math.h> /* INFINITY, NAN, sqrtf */
#include <stdint.h>
#include <string.h> /* memcpy */
typedef uint32_t attop_u32;
typedef int32_t attop_i32;
typedef uint16_t attop_u16;
#if defined(__GNUC__) || defined(__clang__)
#define ATTO_INLINE static inline __attribute__((always_inline))
#else
#define ATTO_INLINE static inline
#endif

ATTO_INLINE attop_u32 attop_bits(float x)
{
    attop_u32 u;
    memcpy(&u, &x, sizeof u);
    return u;
}

ATTO_INLINE float attop_float(attop_u32 u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
#endif

/* ln 2 in two parts. The first has 15 bits, so its product with an exponent (at most 8 bits) is
 * exact without fma. */
#define ATTOP_LN2_HIGH 0.693145751953125f /* 45426 / 65536 */
#define ATTOP_LN2_LOW  1.42860682e-6f     /* ln 2 - 45426 / 65536 */
#define ATTOP_LOG2E    1.44269504f        /* 1 / ln 2 */

/* Adding 1.5 * 2^23 rounds to an integer (ties to even) and leaves that integer, as two's
 * complement, in the low bits. The low 9 bits of the constant itself are zero, so a shift by 23
 * moves the integer, and nothing else, into the exponent. */
#define ATTOP_ROUND      12582912.0f
#define ATTOP_ROUND_BITS 0x4b400000u

/* sqrt(1/2) as bits, the lower end of the interval that mantissas are brought into. */
#define ATTOP_SQRT_HALF_BITS 0x3f3504f3u

ATTO_INLINE float attop_max(float a, float b)
{
    return ((a > b) | (a != a)) ? a : b;
}

ATTO_INLINE float attop_min(float a, float b)
{
    return ((a < b) | (a != a)) ? a : b;
}

ATTO_INLINE float attop_fabs(float x)
{
    return attop_float(attop_bits(x) & 0x7fffffffu);
}

/* |x| with the sign bit of s. */
ATTO_INLINE float attop_copysign(float x, float s)
{
    return attop_float((attop_bits(x) & 0x7fffffffu) | (attop_bits(s) & 0x80000000u));
}

/* lo <= x <= hi; NaN stays NaN. Both comparisons look at x: GCC threads a jump through nested ones
 * with constant ends, which costs twice the time. */
ATTO_INLINE float attop_clamp(float x, float lo, float hi)
{
    const float y = x < lo ? lo : x;
    return x > hi ? hi : y;
}

/* -limit <= x <= limit for a positive constant: one comparison; NaN stays NaN. */
ATTO_INLINE float attop_clamp_abs(float x, float limit)
{
    return attop_fabs(x) > limit ? attop_copysign(limit, x) : x;
}

ATTO_INLINE float attop_rcp(float x)
{
    return 1.0f / x;
}

/* x / y for |y| of 2^-126 to 2^126, to 2.5 ulp (correctly rounded in C). */
ATTO_INLINE float attop_divide(float x, float y)
{
#ifdef ATTO_NVIDIA
    float reciprocal; /* 1 ulp, one instruction; native_recip takes several, a division more */
    __asm__("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(y));
    return x * reciprocal;
#else
    return x / y;
#endif
}

/* k ln 2 + ln(1 + f), 1 + f in [sqrt(1/2), sqrt 2).
 * ln(1 + f) = f - f^2/2 + f^3 p(f), relative error 2^-27.3. */
ATTO_INLINE float attop_log_reduced(float f, float k)
{
    const float z = f * f;
    float p = -7.636144e-2f;
    p = p * f + 1.2765446e-1f;
    p = p * f - 1.3161333e-1f;
    p = p * f + 1.4201263e-1f;
    p = p * f - 1.6623197e-1f;
    p = p * f + 2.0001248e-1f;
    p = p * f - 2.5000826e-1f;
    p = p * f + 3.333333e-1f;
    const float low = (z * (f * p) + k * ATTOP_LN2_LOW) - 0.5f * z;
    return (f + low) + k * ATTOP_LN2_HIGH;
}

#ifdef ATTOP_OPENCL

ATTO_INLINE float attop_sqrt(float x)
{
    return sqrt(x);
}

ATTO_INLINE float attop_rsqrt(float x)
{
    return rsqrt(x);
}

ATTO_INLINE float attop_exp(float x)
{
    return exp(x);
}

ATTO_INLINE float attop_exp_bounded(float x)
{
    return exp(x);
}

ATTO_INLINE float attop_exp_neg(float x)
{
    return exp(x);
}

ATTO_INLINE float attop_log(float x)
{
    return log(x);
}

ATTO_INLINE float attop_pow(float x, float y)
{
    return pow(x, y);
}

#else

ATTO_INLINE float attop_sqrt(float x)
{
    return sqrtf(x);
}

/* sqrt(1/x): the square root halves the error of the division, so 1 ulp where 1 / sqrt x has 1.5.
 * Scaling by 4^12 keeps 1/x normal. -0 gives -inf. */
ATTO_INLINE float attop_rsqrt(float x)
{
    const float scale = x < 1.0f ? 16777216.0f : 5.9604644775390625e-8f;
    const float back = x < 1.0f ? 4096.0f : 2.44140625e-4f;
    const float y = back * sqrtf(1.0f / attop_fabs(x * scale));
    return x < 0.0f ? NAN : attop_copysign(y, x);
}

/* e^r = 1 + r + r^2 p(r), |r| <= ln 2 / 2, relative error 2^-28.2; r = x - n ln 2, t = n +
 * ATTOP_ROUND. */
ATTO_INLINE float attop_exp_reduced(float x, float t)
{
    const float n = t - ATTOP_ROUND;
    const float r = (x - n * ATTOP_LN2_HIGH) - n * ATTOP_LN2_LOW;
    float p = 1.3819129e-3f;
    p = p * r + 8.369085e-3f;
    p = p * r + 4.1668247e-2f;
    p = p * r + 1.6666517e-1f;
    p = p * r + 4.9999994e-1f;
    return 1.0f + (r + r * r * p);
}

/* e^x for |x| <= 160, which the caller sees to; NaN stays NaN.
 *
 * e^x = 2^n e^r, n = round(x / ln 2). 2^n is two factors, each a normal number: the first product
 * is exact and the second rounds once, to a subnormal if need be, or overflows. */
ATTO_INLINE float attop_exp_bounded(float x)
{
    const float t = x * ATTOP_LOG2E + ATTOP_ROUND;
    const attop_u32 biased = attop_bits(t) - (ATTOP_ROUND_BITS - 254u); /* n + 2 * 127 */
    const attop_u32 first = biased >> 1;
    return attop_exp_reduced(x, t) * attop_float(first << 23) * attop_float((biased - first) << 23);
}

/* Outside +-104, e^x is 0 or infinite, and so it is at +-104. */
ATTO_INLINE float attop_exp(float x)
{
    return attop_exp_bounded(attop_clamp_abs(x, 104.0f));
}

/* e^x for x <= 0; 0 below -87, where it is 1.4 times the smallest normal number. A subnormal result
 * costs some hundred cycles on many CPUs, and masked logits or wide activations give many of
 * them. */
ATTO_INLINE float attop_exp_neg(float x)
{
    const float c = x < -87.0f ? -87.0f : x;
    const float t = c * ATTOP_LOG2E + ATTOP_ROUND;
    const float e = attop_exp_reduced(c, t) * attop_float((attop_bits(t) + 127u) << 23);
    return x < -87.0f ? 0.0f : e;
}

/* ln x = k ln 2 + ln(1 + f), 1 + f in [sqrt(1/2), sqrt 2). Subnormals are scaled by 2^23 first. */
ATTO_INLINE float attop_log(float x)
{
    const float scaled = x < 1.17549435e-38f ? x * 8388608.0f : x;
    const float offset = x < 1.17549435e-38f ? -23.0f : 0.0f;
    const attop_u32 u = attop_bits(scaled) - ATTOP_SQRT_HALF_BITS;
    const float k = (float)((attop_i32)u >> 23) + offset;
    const float f = attop_float((u & 0x007fffffu) + ATTOP_SQRT_HALF_BITS) - 1.0f;
    float y = attop_log_reduced(f, k);
    y = x < INFINITY ? y : x; /* +inf and NaN */
    y = x == 0.0f ? -INFINITY : y;
    return x < 0.0f ? NAN : y;
}

ATTO_INLINE uint64_t attop_bits64(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

ATTO_INLINE double attop_double(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* log2 x for a positive finite float, relative error 2^-37: exponent + 2 atanh(s) / ln 2 with
 * s = (m - 1) / (m + 1), m in [sqrt(1/2), sqrt 2), as its Taylor series up to s^13. The exponent
 * becomes a number without an integer conversion, which AVX2 lacks: it is put below the 2^52 of a
 * double, biased by 1023, and both are subtracted again. */
ATTO_INLINE double attop_log2_double(double x)
{
    const uint64_t u = attop_bits64(x) - 0x3fe6a09e667f3bcdu; /* bits of sqrt(1/2) */
    const uint64_t biased = (u + 0x3ff0000000000000u) >> 52;  /* exponent + 1023 */
    const double k = attop_double(biased | 0x4330000000000000u) - 4503599627371519.0;
    const double m = attop_double((u & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu);
    const double s = (m - 1.0) / (m + 1.0);
    const double z = s * s;
    double p = 1.0 / 13.0;
    p = p * z + 1.0 / 11.0;
    p = p * z + 1.0 / 9.0;
    p = p * z + 1.0 / 7.0;
    p = p * z + 1.0 / 5.0;
    p = p * z + 1.0 / 3.0;
    p = p * z + 1.0;
    return k + 2.8853900817779268 * (s * p); /* 2 / ln 2 */
}

/* 2^t for |t| <= 1000, relative error 2^-32: 2^n e^r, |r| <= ln 2 / 2, Taylor up to r^8. Adding
 * 1.5 * 2^52 rounds to an integer and leaves it in the low bits. */
ATTO_INLINE double attop_exp2_double(double t)
{
    const double shifted = t + 6755399441055744.0;
    const double r = 0.69314718055994531 * (t - (shifted - 6755399441055744.0));
    double p = 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    return p * attop_double((attop_bits64(shifted) + 1023u) << 52);
}

/* x^y as C's powf defines it: 1 for y = 0 or x = 1 whatever the other is; NaN for a negative finite
 * x unless y is an integer, whose parity then gives the sign. |y log2 x| loses nothing in double;
 * beyond 1000 the result is 0 or infinite anyway. */
ATTO_INLINE float attop_pow(float x, float y)
{
    const float size = attop_fabs(x);
    const float count = attop_fabs(y) < 16777216.0f ? y : 16777216.0f; /* beyond: even, NaN too */
    const attop_i32 whole = (attop_i32)count;
    const int is_odd = ((float)whole == count) & (whole & 1);
    const int is_whole = ((float)whole == count) & (y == y);

    const double safe = ((size > 0.0f) & (size < INFINITY)) ? (double)size : 1.0;
    double l = attop_log2_double(safe);
    l = size == 0.0f ? -INFINITY : l;
    l = size < INFINITY ? l : (double)size; /* infinity and NaN */
    const double t = (double)y * l;
    const double low = t < -1000.0 ? -1000.0 : t;
    float result = (float)attop_exp2_double(low > 1000.0 ? 1000.0 : low);
    result = ((size == 1.0f) & (y == y)) ? 1.0f : result; /* 0 * infinity */
    const attop_u32 sign = is_odd ? attop_bits(x) & 0x80000000u : 0u;
    result = attop_float(attop_bits(result) | sign);
    result =
        ((x < 0.0f) & (size < INFINITY) & !is_whole & (attop_fabs(y) < INFINITY)) ? NAN : result;
    return ((y == 0.0f) | (x == 1.0f)) ? 1.0f : result;
}

#endif

/* e^x for x <= 0 where it is a share of a sum: x is rounded once more, which moves e^x by |x|
 * roundings of itself, at most 0.37 of a rounding of 1. */
ATTO_INLINE float attop_exp_share(float x)
{
#ifdef ATTO_NVIDIA
    /* 2 ulp, and 0 where it is subnormal: native_exp2 scales those, which takes three instructions
     * more. */
    float power;
    __asm__("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * ATTOP_LOG2E));
    return power;
#else
    return attop_exp_neg(x);
#endif
}

/* q = e^r - 1 = r + r^2 p(r), |r| <= ln 2 / 2, relative error 2^-28.2; `lost` is what r lost in its
 * own rounding. */
ATTO_INLINE float attop_expm1_reduced(float r, float lost)
{
    float p = 1.4934657e-4f;
    p = p * r + 1.3930557e-3f;
    p = p * r + 8.341603e-3f;
    p = p * r + 4.166651e-2f;
    p = p * r + 1.6666636e-1f;
    p = p * r + 0.5f;
    return r + (r * r * p + lost);
}

/* e^x - 1 = 2^n q + (2^n - 1), n and r as in attop_exp_bounded. What r lost matters for n = +-1,
 * where the sum cancels. 2^128 is out of range, so n = 128 is 2^127 doubled at the end, where the
 * -1 no longer counts. Below -18 the result rounds to -1. The sum turns -0 into +0: the sign comes
 * back at the end. */
ATTO_INLINE float attop_expm1(float x)
{
    const float c = attop_clamp(x, -18.0f, 89.0f);
    const float t = c * ATTOP_LOG2E + ATTOP_ROUND;
    const float n = t - ATTOP_ROUND;
    const float head = c - n * ATTOP_LN2_HIGH;
    const float r = head - n * ATTOP_LN2_LOW;
    const float q = attop_expm1_reduced(r, (head - r) - n * ATTOP_LN2_LOW);
    const attop_u32 over = n > 127.0f ? 1u : 0u;
    const float scale = attop_float((attop_bits(t) + (127u - over)) << 23);
    const float twice = attop_float((127u + over) << 23);
    return attop_copysign((scale * q + (scale - 1.0f)) * twice, x);
}

/* e^x - 1 for x <= 0, without the care for 2^128. */
ATTO_INLINE float attop_expm1_neg(float x)
{
    const float c = x < -18.0f ? -18.0f : x;
    const float t = c * ATTOP_LOG2E + ATTOP_ROUND;
    const float n = t - ATTOP_ROUND;
    const float head = c - n * ATTOP_LN2_HIGH;
    const float r = head - n * ATTOP_LN2_LOW;
    const float q = attop_expm1_reduced(r, (head - r) - n * ATTOP_LN2_LOW);
    const float scale = attop_float((attop_bits(t) + 127u) << 23);
    return attop_copysign(scale * q + (scale - 1.0f), x);
}

/* ln(1 + x) = k ln 2 + ln(1 + f), k from the rounded 1 + x, f = 2^-k x + (2^-k - 1).
 * Both terms of f are exact (2^-k x is an integer subtraction in the exponent), so it is x itself
 * for k = 0, and otherwise rounded once beside a result of at least 0.34. 2^-k is formed as
 * 2^(2-k) / 4 because k = 128 occurs. */
ATTO_INLINE float attop_log1p(float x)
{
    const attop_u32 u = attop_bits(1.0f + x) - ATTOP_SQRT_HALF_BITS;
    const attop_u32 shift = u & 0xff800000u; /* k << 23 */
    const float k = (float)((attop_i32)u >> 23);
    const float f =
        attop_float(attop_bits(x) - shift) + (0.25f * attop_float(0x40800000u - shift) - 1.0f);
    float y = attop_copysign(attop_log_reduced(f, k), x);
    y = x < INFINITY ? y : x; /* +inf and NaN */
    y = x == -1.0f ? -INFINITY : y;
    return x < -1.0f ? NAN : y;
}

/* |tanh x| = m / (m + 2), m = e^(2|x|) - 1, formed as in attop_expm1. In this direction an error of
 * m fades as m grows. From |x| = 9.02 on the result is 1; the clamp keeps 2^n well in range. */
ATTO_INLINE float attop_tanh(float x)
{
    const float size = 2.0f * attop_fabs(x);
    const float c = size > 20.0f ? 20.0f : size;
    const float t = c * ATTOP_LOG2E + ATTOP_ROUND;
    const float n = t - ATTOP_ROUND;
    const float r = (c - n * ATTOP_LN2_HIGH) - n * ATTOP_LN2_LOW;
    const float q = attop_expm1_reduced(r, 0.0f);
    const float scale = attop_float((attop_bits(t) + 127u) << 23);
    const float m = scale * q + (scale - 1.0f);
    return attop_copysign(attop_divide(m, m + 2.0f), x);
}

/* |x| (21/64 + S(x^2) / Q(x^2)), degrees 5 and 5, fitted up to 3.925, where erf rounds to 1. With
 * the constant taken out, rounding errors of S / Q count less near saturation, where the ulp is
 * smallest; as one quotient the same function reaches 5 ulp. Beyond 3.925 the formula grows past 1:
 * at the clamp it exceeds 1 by 5 ulp, so rounding errors (or a GPU's division) cannot keep the
 * result below 1. The coefficients minimise the error as evaluated, with and without fma, over all
 * floats from 0.3 up. */
ATTO_INLINE float attop_erf(float x)
{
    const float size = attop_fabs(x);
    const float c = size > 4.1f ? 4.1f : size;
    const float z = c * c;
    float s = -1.8182891e-5f;
    s = s * z - 1.6905593e-4f;
    s = s * z - 1.992396e-3f;
    s = s * z + 2.6656836e-2f;
    s = s * z + 4.493593e-2f;
    s = s * z + 1.393983f;
    float q = 6.627634e-5f;
    q = q * z + 2.0273821e-3f;
    q = q * z + 2.6099842e-2f;
    q = q * z + 1.9889887e-1f;
    q = q * z + 8.748707e-1f;
    q = q * z + 1.7419254f;
    const float y = c * (0.328125f + attop_divide(s, q));
    return attop_copysign(y > 1.0f ? 1.0f : y, x);
}

/* ln(1 + x) for 0 <= x <= 1 without special cases: with t = x / (1 + x/2),
 * ln(1 + x) = 2 atanh(t / 2) = t + t^3 p(t^2), relative error 2^-27.7. */
ATTO_INLINE float attop_log1p_unit(float x)
{
    const float t = attop_divide(x, 1.0f + 0.5f * x);
#ifdef ATTO_NVIDIA
    const float w = t;
#else
    const float w = t < 1e-5f ? 0.0f : t; /* without subnormal cubes, which count for nothing */
#endif
    const float z = w * w;
    float p = 5.47008e-4f;
    p = p * z + 2.187736e-3f;
    p = p * z + 1.2506699e-2f;
    p = p * z + 8.333302e-2f;
    return t + w * (z * p);
}

/* e = e^-|x| never overflows; the result is e / (1 + e) left of 0 and 1 / (1 + e) right of it. */
ATTO_INLINE float attop_sigmoid(float x)
{
    const float e = attop_exp_neg(-attop_fabs(x));
    const float top = x >= 0.0f ? 1.0f : e;
    return attop_divide(top, 1.0f + e);
}

/* e^(-x^2 / 2), absolute error 2^-23: the rounding of the square counts where the result is
 * small. */
ATTO_INLINE float attop_gauss(float x)
{
#ifdef ATTO_NVIDIA
    return native_exp2(-0.721347520f * (x * x)); /* log2(e) / 2; ex2.approx: 2 ulp */
#else
    const float h = 0.5f * (x * x);       /* 0 where products with it are subnormal */
    return attop_exp_neg(h > 85.0f ? -200.0f : -h);
#endif
}

/* The normal distribution's tail divided by e^(-x^2/2), for x >= 0: with t = 1 / (1 + 0.3425 x) a
 * polynomial of degree 7 in t without constant, so that it is 0 at infinity. As a share of the tail
 * its error is at most 9.5e-6; times e^(-x^2/2) it is at most 1.7e-8. Cheaper than erf, and the
 * tail keeps its digits where 1 - erf cancels. */
ATTO_INLINE float attop_normal_tail(float x, float gauss)
{
    const float t = attop_divide(1.0f, 1.0f + 0.3425f * x);
    float p = 4.4190697e-2f;
    p = p * t - 1.9377518e-1f;
    p = p * t + 2.4537145e-1f;
    p = p * t - 1.5368735e-2f;
    p = p * t + 1.5046552e-1f;
    p = p * t + 1.3221923e-1f;
    p = p * t + 1.3689704e-1f;
    return gauss * (p * t);
}

#endif
