/* SPDX-License-Identifier: MIT */
/* Tests of the primitives and scalar formulas against double precision, and of Philox and the
 * storage conversions against independent statements of their definitions.
 *
 * The compiler flags of this file decide which level (base, AVX2, AVX-512) is tested. A strided
 * sample of all floats is used; ATTO_TEST_EXHAUSTIVE=1 takes all 2^32.
 * OpenMP, if switched on, shares the work; without it the pragmas are ignored.
 */
#include "atto_math.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define BLOCK 2048

static int exhaustive(void)
{
    const char *value = getenv("ATTO_TEST_EXHAUSTIVE");
    return value != NULL && value[0] == '1';
}

/* 1409 is prime: the sample meets every exponent and all residues of the mantissa, 3 M values. */
static uint64_t stride(void)
{
    return exhaustive() ? 1 : 1409;
}

/* Distance of neighbouring floats around |r|; below 2^-126 that of the subnormals. */
static double ulp(double r)
{
    int e;
    if (fabs(r) < 0x1p-126) return 0x1p-149;
    (void)frexp(r, &e);
    return ldexp(1.0, e - 24);
}

/* ---- primitives -------------------------------------------------------------------------- */

/* Loops, so that the vector code is what is tested. */
#define PRIMITIVE(name, reference)                                 \
    static void loop_##name(const float *x, float *y)              \
    {                                                              \
        for (int i = 0; i < BLOCK; i++) y[i] = attop_##name(x[i]); \
    }                                                              \
    static double true_##name(double x)                            \
    {                                                              \
        return reference;                                          \
    }

PRIMITIVE(exp, exp(x))
PRIMITIVE(exp_neg, exp(x))
PRIMITIVE(exp_bounded, exp(x))
PRIMITIVE(expm1, expm1(x))
PRIMITIVE(expm1_neg, expm1(x))
PRIMITIVE(log, log(x))
PRIMITIVE(log1p, log1p(x))
PRIMITIVE(log1p_unit, log1p(x))
PRIMITIVE(tanh, tanh(x))
PRIMITIVE(erf, erf(x))
PRIMITIVE(sigmoid, 1.0 / (1.0 + exp(-x)))
PRIMITIVE(rsqrt, 1.0 / sqrt(x))
PRIMITIVE(sqrt, sqrt(x))
PRIMITIVE(rcp, 1.0 / x)

/* The one table of bounds, in ulp of the true value. sqrt and rcp are correctly rounded by IEEE
 * 754: half an ulp, plus what the double reference itself may be off (2^-29 ulp). The others are
 * the worst errors over all floats and over the levels base, AVX2 and AVX-512 with GCC and clang
 * (docs/numerics.md), rounded up to the next quarter: another compiler may contract differently. */
static const struct primitive {
    const char *name;
    void (*loop)(const float *x, float *y);
    double (*truth)(double x);
    double bound;
    float low, high; /* the domain tested, both ends included, and NaN */
    float limit;     /* |y| must not exceed this */
    double fades;    /* results below may be 0 */
} primitives[] = {
    { "exp", loop_exp, true_exp, 1.25, -INFINITY, INFINITY, INFINITY, 0.0 },
    { "exp_neg", loop_exp_neg, true_exp_neg, 1.25, -INFINITY, 0.0f, 1.0f, 0x1p-125 },
    { "exp_bounded", loop_exp_bounded, true_exp_bounded, 1.25, -160.0f, 160.0f, INFINITY, 0.0 },
    { "expm1", loop_expm1, true_expm1, 1.75, -INFINITY, INFINITY, INFINITY, 0.0 },
    { "expm1_neg", loop_expm1_neg, true_expm1_neg, 1.0, -INFINITY, 0.0f, 1.0f, 0.0 },
    { "log", loop_log, true_log, 1.0, -INFINITY, INFINITY, INFINITY, 0.0 },
    { "log1p", loop_log1p, true_log1p, 1.5, -INFINITY, INFINITY, INFINITY, 0.0 },
    { "log1p_unit", loop_log1p_unit, true_log1p_unit, 2.0, 0.0f, 1.0f, INFINITY, 0.0 },
    { "tanh", loop_tanh, true_tanh, 2.5, -INFINITY, INFINITY, 1.0f, 0.0 },
    { "erf", loop_erf, true_erf, 3.0, -INFINITY, INFINITY, 1.0f, 0.0 },
    { "sigmoid", loop_sigmoid, true_sigmoid, 2.5, -INFINITY, INFINITY, 1.0f, 0x1p-125 },
    { "rsqrt", loop_rsqrt, true_rsqrt, 1.0, -INFINITY, INFINITY, INFINITY, 0.0 },
    { "sqrt", loop_sqrt, true_sqrt, 0.50001, -INFINITY, INFINITY, INFINITY, 0.0 },
    { "rcp", loop_rcp, true_rcp, 0.50001, -INFINITY, INFINITY, INFINITY, 0.0 },
};

/* Error of y in ulp; 0 where a special value is met exactly, infinite where it is missed. A true
 * value above FLT_MAX may be rounded down to it or up to infinity. */
static double error_ulp(float y, double truth)
{
    if (isnan(truth)) return isnan(y) ? 0.0 : INFINITY;
    if (isnan(y) || (signbit(y) != 0) != (signbit(truth) != 0)) return INFINITY;
    if (isinf(y)) return fabs(truth) >= (double)FLT_MAX ? 0.0 : INFINITY;
    if (isinf(truth)) return INFINITY;
    return fabs((double)y - truth) / ulp(truth);
}

static void primitives_stay_within_their_bounds(void **state)
{
    (void)state;
    const uint64_t step = stride();
    const uint64_t total = (UINT64_C(1) << 32) / step;
    int failures = 0;
    for (size_t p = 0; p < sizeof primitives / sizeof *primitives; p++) {
        const struct primitive *f = &primitives[p];
        double worst = 0.0;
        float where = 0.0f;
#pragma omp parallel for schedule(static)
        for (int64_t block = 0; block < (int64_t)((total + BLOCK - 1) / BLOCK); block++) {
            float x[BLOCK], y[BLOCK];
            for (int i = 0; i < BLOCK; i++) {
                const uint64_t n = ((uint64_t)block * BLOCK + (uint64_t)i) * step;
                x[i] = attop_float((uint32_t)(n <= UINT32_MAX ? n : UINT32_MAX));
                if (x[i] < f->low || x[i] > f->high) x[i] = f->high;
            }
            f->loop(x, y);
            double block_worst = 0.0;
            float block_where = 0.0f;
            for (int i = 0; i < BLOCK; i++) {
                const double truth = f->truth((double)x[i]);
                double e = error_ulp(y[i], truth);
                if (y[i] == 0.0f && fabs(truth) < f->fades) e = 0.0;
                if (fabsf(y[i]) > f->limit) e = INFINITY;
                if (e > block_worst) {
                    block_worst = e;
                    block_where = x[i];
                }
            }
#pragma omp critical
            if (block_worst > worst) {
                worst = block_worst;
                where = block_where;
            }
        }
        print_message("  %-11s worst %.4f ulp of %.4f allowed, at %.9g (%a)\n", f->name, worst,
                      f->bound, (double)where, (double)where);
        failures += !(worst <= f->bound);
    }
    assert_int_equal(failures, 0);
}

/* Equal as values, NaN equal to NaN, and zeros of the same sign. */
static int same(float a, float b)
{
    return (isnan(a) && isnan(b)) || attop_bits(a) == attop_bits(b);
}

#define ASSERT_SAME(call, expected)                                       \
    do {                                                                  \
        const float got = (call);                                         \
        if (!same(got, (expected))) {                                     \
            fail_msg(#call " is %.9g (%08x), expected %.9g", (double)got, \
                     (unsigned)attop_bits(got), (double)(expected));      \
        }                                                                 \
    } while (0)

/* IEEE 754-2019, 9.2.1, for the ones it names; the rest are limits. */
static void primitives_keep_special_values(void **state)
{
    (void)state;
    const float inf = INFINITY, nan = NAN, tiny = 0x1p-149f;
    ASSERT_SAME(attop_exp(0.0f), 1.0f);
    ASSERT_SAME(attop_exp(-0.0f), 1.0f);
    ASSERT_SAME(attop_exp(inf), inf);
    ASSERT_SAME(attop_exp(-inf), 0.0f);
    ASSERT_SAME(attop_exp(89.0f), inf);
    ASSERT_SAME(attop_exp(-103.0f), tiny); /* e^-103 = 1.42 * 2^-149 */
    ASSERT_SAME(attop_exp(-104.0f), 0.0f); /* 0.49 * 2^-149 */
    ASSERT_SAME(attop_exp(nan), nan);
    ASSERT_SAME(attop_expm1(0.0f), 0.0f);
    ASSERT_SAME(attop_expm1(-0.0f), -0.0f);
    ASSERT_SAME(attop_expm1(tiny), tiny);
    ASSERT_SAME(attop_expm1(inf), inf);
    ASSERT_SAME(attop_expm1(-inf), -1.0f);
    ASSERT_SAME(attop_expm1(nan), nan);
    ASSERT_SAME(attop_log(1.0f), 0.0f);
    ASSERT_SAME(attop_log(0.0f), -inf);
    ASSERT_SAME(attop_log(-0.0f), -inf);
    ASSERT_SAME(attop_log(-1.0f), nan);
    ASSERT_SAME(attop_log(-inf), nan);
    ASSERT_SAME(attop_log(inf), inf);
    ASSERT_SAME(attop_log(nan), nan);
    ASSERT_SAME(attop_log1p(0.0f), 0.0f);
    ASSERT_SAME(attop_log1p(-0.0f), -0.0f);
    ASSERT_SAME(attop_log1p(-tiny), -tiny);
    ASSERT_SAME(attop_log1p(-1.0f), -inf);
    ASSERT_SAME(attop_log1p(-2.0f), nan);
    ASSERT_SAME(attop_log1p(inf), inf);
    ASSERT_SAME(attop_log1p(-inf), nan);
    ASSERT_SAME(attop_log1p(nan), nan);
    ASSERT_SAME(attop_tanh(0.0f), 0.0f);
    ASSERT_SAME(attop_tanh(-0.0f), -0.0f);
    ASSERT_SAME(attop_tanh(tiny), tiny);
    ASSERT_SAME(attop_tanh(inf), 1.0f);
    ASSERT_SAME(attop_tanh(-inf), -1.0f);
    ASSERT_SAME(attop_tanh(nan), nan);
    ASSERT_SAME(attop_erf(0.0f), 0.0f);
    ASSERT_SAME(attop_erf(-0.0f), -0.0f);
    ASSERT_SAME(attop_erf(tiny), tiny); /* 1.13 * 2^-149 */
    ASSERT_SAME(attop_erf(inf), 1.0f);
    ASSERT_SAME(attop_erf(-inf), -1.0f);
    ASSERT_SAME(attop_erf(nan), nan);
    ASSERT_SAME(attop_sigmoid(0.0f), 0.5f);
    ASSERT_SAME(attop_sigmoid(inf), 1.0f);
    ASSERT_SAME(attop_sigmoid(-inf), 0.0f);
    ASSERT_SAME(attop_sigmoid(nan), nan);
    ASSERT_SAME(attop_rsqrt(4.0f), 0.5f);
    ASSERT_SAME(attop_rsqrt(0.0f), inf);
    ASSERT_SAME(attop_rsqrt(-0.0f), -inf);
    ASSERT_SAME(attop_rsqrt(inf), 0.0f);
    ASSERT_SAME(attop_rsqrt(-1.0f), nan);
    ASSERT_SAME(attop_rsqrt(-inf), nan);
    ASSERT_SAME(attop_rsqrt(nan), nan);
    ASSERT_SAME(attop_rcp(-0.0f), -inf);
    ASSERT_SAME(attop_rcp(-inf), -0.0f);
    ASSERT_SAME(attop_copysign(nan, -1.0f), nan);
    ASSERT_SAME(attop_copysign(-3.0f, 0.0f), 3.0f);
    ASSERT_SAME(attop_copysign(3.0f, -0.0f), -3.0f);
    ASSERT_SAME(attop_fabs(-0.0f), 0.0f);
    ASSERT_SAME(attop_fabs(-inf), inf);
}

/* Over results from 2^-126 to 2^128, bases of any size. C only: OpenCL's built-in may be off by
 * 16. */
static void pow_stays_within_its_bound(void **state)
{
    (void)state;
    double worst = 0.0;
    uint64_t seed = 1;
    for (int i = 0; i < 2000000; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const float x = attop_float((uint32_t)(0x00800000u + (seed >> 33) % 0x7e000000u));
        const double exponent = (double)(seed % 254007) / 1000.0 - 126.0;
        const float y = (float)(exponent / log2((double)x));
        const double truth = pow((double)x, (double)y);
        if (!(fabs(truth) >= 0x1p-126 && fabs(truth) <= (double)FLT_MAX)) continue;
        worst = fmax(worst, fabs((double)attop_pow(x, y) - truth) / ulp(truth));
    }
    if (worst > 0.52) fail_msg("attop_pow is off by %.4f ulp, at most 0.52 is documented", worst);
}

/* Every pair of these as C's pow has it (IEEE 754, section 9.2.1). */
static void pow_keeps_special_values(void **state)
{
    (void)state;
    static const float values[] = { 0.0f,        -0.0f,        1.0f,        -1.0f,     2.0f,
                                    -2.0f,       3.0f,         -3.0f,       0.5f,      -0.5f,
                                    2.5f,        1e-45f,       INFINITY,    -INFINITY, NAN,
                                    16777215.0f, -16777215.0f, 16777216.0f, 3e38f,     -3e38f };
    const int n = sizeof values / sizeof *values;
    for (int i = 0; i < n * n; i++) {
        const float x = values[i / n], y = values[i % n], got = attop_pow(x, y);
        const float want = (float)pow((double)x, (double)y);
        const int both_nan = isnan(got) && isnan(want);
        const int close = fabsf(got - want) <= 2.0f * FLT_EPSILON * fabsf(want);
        if (!both_nan && !(got == want || close))
            fail_msg("%g to the power %g is %g, expected %g", (double)x, (double)y, (double)got,
                     (double)want);
        if (!both_nan) assert_int_equal(signbit(got) != 0, signbit(want) != 0);
    }
}

static void max_and_min_propagate_nan(void **state)
{
    (void)state;
    ASSERT_SAME(attop_max(1.0f, 2.0f), 2.0f);
    ASSERT_SAME(attop_max(2.0f, 1.0f), 2.0f);
    ASSERT_SAME(attop_min(1.0f, 2.0f), 1.0f);
    ASSERT_SAME(attop_min(2.0f, 1.0f), 1.0f);
    ASSERT_SAME(attop_max(-INFINITY, 1.0f), 1.0f);
    ASSERT_SAME(attop_min(INFINITY, 1.0f), 1.0f);
    ASSERT_SAME(attop_max(NAN, 1.0f), NAN);
    ASSERT_SAME(attop_max(1.0f, NAN), NAN);
    ASSERT_SAME(attop_min(NAN, 1.0f), NAN);
    ASSERT_SAME(attop_min(1.0f, NAN), NAN);
    ASSERT_SAME(attop_clamp(NAN, 0.0f, 1.0f), NAN);
}

/* ---- activations ------------------------------------------------------------------------- */

/* The definitions in double, from formulas other than those of atto_math.h wherever the double
 * range allows it. */
#define SQRT1_2   0.70710678118654752440
#define SQRT_2_PI 0.79788456080286535588 /* sqrt(2 / pi) */
#define SELU_L    1.0507009873554804934193349852946
#define SELU_A    1.6732632423543772848170429916717

static double d_sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static double d_softplus(double x)
{
    return x > 40.0 ? x : log1p(exp(x));
}

static double d_tanh_u(double x)
{
    return SQRT_2_PI * (x + 0.044715 * x * x * x);
}

/* x - tanh x, whose double value still cancels below 0.05: its Taylor series there, to 1e-16. */
static double d_tanhshrink(double x)
{
    const double z = x * x;
    const double series =
        1.0 / 3 - z * (2.0 / 15 - z * (17.0 / 315 - z * (62.0 / 2835 - z * 1382.0 / 155925)));
    return fabs(x) < 0.05 ? x * z * series : x - tanh(x);
}

static double d_mish_grad(double x)
{
    const double t = tanh(d_softplus(x));
    return t + x * d_sigmoid(x) * (1.0 - t) * (1.0 + t);
}

/* 1 - tanh^2 without cancellation */
static double d_tanh_grad(double x)
{
    const double s = 1.0 / cosh(x > 300.0 ? 300.0 : x < -300.0 ? -300.0 : x);
    return s * s;
}

static double d_gelu_tanh_grad(double x)
{
    const double s = d_sigmoid(2.0 * d_tanh_u(x)), r = d_sigmoid(-2.0 * d_tanh_u(x));
    return s + x * s * r * 2.0 * SQRT_2_PI * (1.0 + 3.0 * 0.044715 * x * x);
}

#define ACTIVATION(name, y, dy)                                                   \
    static void y_##name(const float *x, float *out, float a, float b)            \
    {                                                                             \
        for (int i = 0; i < BLOCK; i++) out[i] = attom_##name(x[i], a, b);        \
    }                                                                             \
    static void dy_##name(const float *x, float *out, float a, float b)           \
    {                                                                             \
        for (int i = 0; i < BLOCK; i++) out[i] = attom_##name##_grad(x[i], a, b); \
    }                                                                             \
    static double true_y_##name(double x, double a, double b)                     \
    {                                                                             \
        (void)x, (void)a, (void)b;                                                \
        return y;                                                                 \
    }                                                                             \
    static double true_dy_##name(double x, double a, double b)                    \
    {                                                                             \
        (void)x, (void)a, (void)b;                                                \
        return dy;                                                                \
    }

ACTIVATION(identity, x, 1.0)
ACTIVATION(sigmoid, d_sigmoid(x), d_sigmoid(x) * d_sigmoid(-x))
ACTIVATION(logsigmoid, -d_softplus(-x), d_sigmoid(-x))
ACTIVATION(tanh, tanh(x), d_tanh_grad(x))
ACTIVATION(relu, fmax(x, 0.0), x > 0.0)
ACTIVATION(gelu, 0.5 * x * erfc(-x * SQRT1_2),
           0.5 * erfc(-x * SQRT1_2) + 0.5 * SQRT_2_PI * x * exp(-0.5 * x * x))
ACTIVATION(gelu_tanh, x *d_sigmoid(2.0 * d_tanh_u(x)), d_gelu_tanh_grad(x))
ACTIVATION(silu, x *d_sigmoid(x), d_sigmoid(x) * (1.0 + x * d_sigmoid(-x)))
ACTIVATION(relu6, fmin(fmax(x, 0.0), 6.0), x > 0.0 && x < 6.0)
ACTIVATION(hardsigmoid, fmin(fmax(x + 3.0, 0.0), 6.0) / 6.0, fabs(x) < 3.0 ? 1.0 / 6.0 : 0.0)
ACTIVATION(hardtanh, fmin(fmax(x, a), b), x > a && x < b)
ACTIVATION(hardswish, x *fmin(fmax(x + 3.0, 0.0), 6.0) / 6.0,
           x <= -3.0  ? 0.0
           : x >= 3.0 ? 1.0
                      : x / 3.0 + 0.5)
ACTIVATION(selu, SELU_L *(x > 0.0 ? x : SELU_A * expm1(x)),
           SELU_L *(x > 0.0 ? 1.0 : SELU_A * exp(x)))
ACTIVATION(mish, x *tanh(d_softplus(x)), d_mish_grad(x))
ACTIVATION(softplus, a *x > b ? x : d_softplus(a * x) / a, a *x > b ? 1.0 : d_sigmoid(a * x))
ACTIVATION(softsign, x / (1.0 + fabs(x)), 1.0 / ((1.0 + fabs(x)) * (1.0 + fabs(x))))
ACTIVATION(tanhshrink, d_tanhshrink(x), tanh(x) * tanh(x))
ACTIVATION(leaky_relu, x > 0.0 ? x : a * x, x > 0.0 ? 1.0 : a)
ACTIVATION(elu, x > 0.0 ? x : a * expm1(x), x > 0.0 ? 1.0 : a * exp(x))
ACTIVATION(celu, x > 0.0 ? x : a * expm1(x / a), x > 0.0 ? 1.0 : exp(x / a))
ACTIVATION(hardshrink, fabs(x) <= a ? 0.0 : x, fabs(x) > a)
ACTIVATION(softshrink, fabs(x) <= a ? 0.0 : x - copysign(a, x), fabs(x) > a)

/* Allowed: |got - y| <= rel * ulp(y) + cond * |y(x (1 + 2^-23)) - y(x)| + abs; NaN is an error.
 *
 *   rel   in ulp: the last operation rounds by 1/2. Before it, count in units of 2^-24 of the
 *         value, since an ulp is 1 to 2 units: an operation adds 1 unit, a constant 1/2, a
 *         primitive twice its bound above (exp 2.5, expm1_neg 2, log1p_unit 4, sigmoid 5, tanh 5),
 *         a square twice what its operand has.
 *   cond  where the argument of a primitive is itself rounded (x / sqrt 2, x^2, 2 u, beta x,
 *         x / alpha), the result may be that of x moved by one ulp for every two roundings.
 *   abs   where terms cancel: the units of the largest term. FADE: e^x may be 0 below 2^-125, since
 *         the formulas do without subnormals; times what it is multiplied by, x down to -104 for
 *         example.
 */
#define FADE 0x1p-125
static const struct activation {
    const char *name;
    void (*loop)(const float *x, float *y, float a, float b);
    double (*truth)(double x, double a, double b);
    float a, b;
    double rel, cond, abs;
} activations[] = {
#define ROWS(name, a, b, rel, cond, abs, drel, dcond, dabs)   \
    { #name, y_##name, true_y_##name, a, b, rel, cond, abs }, \
        { #name "'", dy_##name, true_dy_##name, a, b, drel, dcond, dabs },
    /* clang-format off */
    ROWS(identity, 0, 0,        0, 0, 0,                0, 0, 0)
    ROWS(sigmoid, 0, 0,         2.5, 0, FADE,           6, 0, FADE)        /* exp, (1+e)^2, / */
    ROWS(logsigmoid, 0, 0,      7,   0, FADE,           2.5, 0, FADE)      /* exp, log1p, - */
    ROWS(tanh, 0, 0,            2.5, 0, 0,              6, 0, 4 * FADE)
    ROWS(relu, 0, 0,            0, 0, 0,                0, 0, 0)
    ROWS(gelu, 0, 0,            5, 2, 0x1p-22,          1, 2, 0x1p-22)  /* 25 u of |x| tail, fit */
    ROWS(gelu_tanh, 0, 0,       5.5, 2, 16 * FADE,      2, 2, 0x1p-22)  /* sigmoid, * */
    ROWS(silu, 0, 0,            5.5, 0, 104 * FADE,     8, 0, 0x1p-22)
    ROWS(relu6, 0, 0,           0, 0, 0,                0, 0, 0)
    ROWS(hardsigmoid, 0, 0,     2, 0, 0,                0.5, 0, 0)      /* +, constant, * */
    ROWS(hardtanh, -1.5f, 2.0f, 0, 0, 0,                0, 0, 0)
    ROWS(hardswish, 0, 0,       3, 0, 0,                1, 0, 0x1p-24)
    ROWS(selu, 0, 0,            3, 0, 0,                3.5, 0, 2 * FADE)      /* expm1, constant, * */
    ROWS(mish, 0, 0,            7, 0, 104 * FADE,       8, 0, 0x1p-22)  /* exp, +, *, +, /, * */
    ROWS(softplus, 1, 20,       8, 0, FADE,             2.5, 0, FADE)      /* exp, log1p, +, / */
    ROWS(softplus, 5, 20,       8, 1, FADE,             2.5, 1, FADE)
    ROWS(softsign, 0, 0,        1.5, 0, 0,              4.5, 0, 0)      /* (+, /)^2 */
    ROWS(tanhshrink, 0, 0,      10.5, 0, 0,             7.5, 0, 0)      /* 2.5 ulp(.76) at .24 */
    ROWS(leaky_relu, 0.01f, 0,  0.5, 0, 0,              0, 0, 0)
    ROWS(elu, 1.3f, 0,          2.5, 0, 0,              3, 0, 2 * FADE)
    ROWS(celu, 1.3f, 0,         2.5, 1, 0,              2.5, 1, 0)
    ROWS(hardshrink, 0.5f, 0,   0, 0, 0,                0, 0, 0)
    ROWS(softshrink, 0.5f, 0,   0.5, 0, 0,              0, 0, 0)
/* clang-format on */
#undef ROWS
};

static void activations_match_their_definitions(void **state)
{
    (void)state;
    /* A wider stride, so that 46 rows take seconds (minutes, if exhaustive). */
    const uint64_t step = exhaustive() ? 97 : 14009;
    const uint64_t total = (UINT64_C(1) << 32) / step;
    int failures = 0;
    for (size_t r = 0; r < sizeof activations / sizeof *activations; r++) {
        const struct activation *f = &activations[r];
        double worst = 0.0;
        float where = 0.0f;
#pragma omp parallel for schedule(static)
        for (int64_t block = 0; block < (int64_t)((total + BLOCK - 1) / BLOCK); block++) {
            float x[BLOCK], y[BLOCK];
            for (int i = 0; i < BLOCK; i++) {
                const uint64_t n = ((uint64_t)block * BLOCK + (uint64_t)i) * step;
                x[i] = attop_float((uint32_t)(n <= UINT32_MAX ? n : UINT32_MAX));
                if (!isfinite(x[i])) x[i] = 1.0f;
            }
            f->loop(x, y, f->a, f->b);
            double block_worst = 0.0;
            float block_where = 0.0f;
            for (int i = 0; i < BLOCK; i++) {
                const double v = (double)x[i], a = (double)f->a, b = (double)f->b;
                const double truth = f->truth(v, a, b);
                double allowed = f->rel * ulp(truth) + f->abs;
                if (f->cond > 0.0)
                    allowed += f->cond * fabs(f->truth(v * (1.0 + 0x1p-23), a, b) - truth);
                double e = fabs((double)y[i] - truth);
                if (isinf(y[i]) && fabs(truth) >= FLT_MAX) e = 0.0;
                e = e == 0.0 ? 0.0 : e / allowed;
                if (!(e <= block_worst)) {
                    block_worst = e;
                    block_where = x[i];
                }
            }
#pragma omp critical
            if (!(block_worst <= worst)) {
                worst = block_worst;
                where = block_where;
            }
        }
        print_message("  %-12s worst error / allowed %.3f at %.9g (%a)\n", f->name, worst,
                      (double)where, (double)where);
        failures += !(worst <= 1.0);
    }
    assert_int_equal(failures, 0);
}

/* y and dy/dx at -inf, +inf and NaN: the table at the top of atto_math.h. */
/* The tail that gelu multiplies by is off by 9.5e-6 of itself at most (its polynomial), its
 * exponent by one rounding of x^2 / 2 <= 85. Below -13 y counts as 0. */
static void gelu_keeps_relative_accuracy_in_the_tail(void **state)
{
    (void)state;
    for (int i = 1; i <= 13000; i++) {
        const float x = -0.001f * (float)i;
        const double want = 0.5 * (double)x * erfc(-(double)x * SQRT1_2);
        const double got = (double)attom_gelu(x, 0.0f, 0.0f);
        if (fabs(got / want - 1.0) > 9.5e-6 + 85 * 0x1p-24 + 20 * 0x1p-24)
            fail_msg("gelu(%g) is %.9g, expected %.9g", (double)x, got, want);
    }
}

/* A negative alpha turns the exponent's sign, a tiny one has an infinite reciprocal. */
static void celu_takes_any_alpha(void **state)
{
    (void)state;
    static const struct {
        float x, alpha;
    } rows[] = {
        { -1.0f, -1.0f }, { -88.5f, -1.0f },  { -88.7f, -1.0f }, { -100.0f, -1.0f },
        { -1.0f, 0.25f }, { -40.0f, -0.5f },  { 0.0f, 2e-39f },  { -1.0f, 2e-39f },
        { 3.0f, 2e-39f }, { -200.0f, -1.0f },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const double x = (double)rows[i].x, alpha = (double)rows[i].alpha;
        const float want = (float)(x > 0.0 ? x : alpha * expm1(x / alpha));
        const float got = attom_celu(rows[i].x, rows[i].alpha, 0.0f);
        /* x / alpha <= 89 is rounded once, expm1 to 1.75 ulp */
        if (!(got == want || fabsf(got - want) <= fabsf(want) * (89.0f + 8.0f) * 0x1p-24f))
            fail_msg("celu(%g, %g) is %g, expected %g", x, alpha, (double)got, (double)want);
    }
}

static void activations_keep_infinities_and_nan(void **state)
{
    (void)state;
    const float inf = INFINITY, nan = NAN;
#define LIMITS(name, a, b, low, high, dlow, dhigh, dnan)                         \
    ASSERT_SAME(attom_##name(-inf, a, b), low);                                  \
    ASSERT_SAME(attom_##name(inf, a, b), high);                                  \
    ASSERT_SAME(attom_##name(nan, a, b), nan);                                   \
    ASSERT_SAME(attom_##name##_grad(-inf, a, b) + 0.0f, dlow); /* -0 is 0 too */ \
    ASSERT_SAME(attom_##name##_grad(inf, a, b), dhigh);                          \
    ASSERT_SAME(attom_##name##_grad(nan, a, b), dnan)
    LIMITS(identity, 0.0f, 0.0f, -inf, inf, 1.0f, 1.0f, 1.0f);
    LIMITS(sigmoid, 0.0f, 0.0f, 0.0f, 1.0f, 0.0f, 0.0f, nan);
    LIMITS(logsigmoid, 0.0f, 0.0f, -inf, 0.0f, 1.0f, 0.0f, nan);
    LIMITS(tanh, 0.0f, 0.0f, -1.0f, 1.0f, 0.0f, 0.0f, nan);
    LIMITS(relu, 0.0f, 0.0f, 0.0f, inf, 0.0f, 1.0f, 1.0f);
    LIMITS(gelu, 0.0f, 0.0f, nan, inf, 0.0f, 1.0f, nan);
    LIMITS(gelu_tanh, 0.0f, 0.0f, nan, inf, 0.0f, 1.0f, nan);
    LIMITS(silu, 0.0f, 0.0f, nan, inf, 0.0f, 1.0f, nan);
    LIMITS(relu6, 0.0f, 0.0f, 0.0f, 6.0f, 0.0f, 0.0f, 1.0f);
    LIMITS(hardsigmoid, 0.0f, 0.0f, 0.0f, 1.0f, 0.0f, 0.0f, 0.0f);
    LIMITS(hardtanh, -1.5f, 2.0f, -1.5f, 2.0f, 0.0f, 0.0f, 1.0f);
    LIMITS(hardswish, 0.0f, 0.0f, nan, inf, 0.0f, 1.0f, nan);
    LIMITS(selu, 0.0f, 0.0f, -1.75809934f, inf, 0.0f, 1.05070099f, nan);
    LIMITS(mish, 0.0f, 0.0f, nan, inf, 0.0f, 1.0f, nan);
    LIMITS(softplus, 2.0f, 20.0f, 0.0f, inf, 0.0f, 1.0f, nan);
    LIMITS(softsign, 0.0f, 0.0f, nan, nan, 0.0f, 0.0f, nan);
    LIMITS(tanhshrink, 0.0f, 0.0f, -inf, inf, 1.0f, 1.0f, nan);
    LIMITS(leaky_relu, 0.25f, 0.0f, -inf, inf, 0.25f, 1.0f, 0.25f);
    LIMITS(elu, 1.5f, 0.0f, -1.5f, inf, 0.0f, 1.0f, nan);
    LIMITS(celu, 1.5f, 0.0f, -1.5f, inf, 0.0f, 1.0f, nan);
    LIMITS(hardshrink, 0.5f, 0.0f, -inf, inf, 1.0f, 1.0f, 1.0f);
    LIMITS(softshrink, 0.5f, 0.0f, -inf, inf, 1.0f, 1.0f, 1.0f);
#undef LIMITS
}

/* Scenario F6: y and dy/dx at the kinks, as PyTorch 2.11 has them. Exact. */
static void activations_take_pytorch_values_at_breakpoints(void **state)
{
    (void)state;
#define KINK(name, x, a, b, y, dy)                                  \
    ASSERT_SAME(attom_##name(x, a, b) + 0.0f, y); /* -0 is 0 too */ \
    ASSERT_SAME(attom_##name##_grad(x, a, b), dy)
    KINK(hardshrink, 0.5f, 0.5f, 0.0f, 0.0f, 0.0f);
    KINK(hardshrink, -0.5f, 0.5f, 0.0f, 0.0f, 0.0f);
    KINK(softshrink, 0.5f, 0.5f, 0.0f, 0.0f, 0.0f);
    KINK(softshrink, -0.5f, 0.5f, 0.0f, 0.0f, 0.0f);
    KINK(hardswish, -3.0f, 0.0f, 0.0f, 0.0f, 0.0f);
    KINK(hardswish, 3.0f, 0.0f, 0.0f, 3.0f, 1.0f);
    KINK(hardsigmoid, -3.0f, 0.0f, 0.0f, 0.0f, 0.0f);
    KINK(hardsigmoid, 3.0f, 0.0f, 0.0f, 1.0f, 0.0f);
    KINK(hardtanh, -1.0f, -1.0f, 1.0f, -1.0f, 0.0f);
    KINK(hardtanh, 1.0f, -1.0f, 1.0f, 1.0f, 0.0f);
    KINK(relu6, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f);
    KINK(relu6, 6.0f, 0.0f, 0.0f, 6.0f, 0.0f);
    KINK(relu, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f);
    KINK(relu, -0.0f, 0.0f, 0.0f, 0.0f, 0.0f);
    KINK(leaky_relu, 0.0f, 0.01f, 0.0f, 0.0f, 0.01f);
    KINK(elu, 0.0f, 1.5f, 0.0f, 0.0f, 1.5f);
    KINK(selu, 0.0f, 0.0f, 0.0f, 0.0f, 1.75809934f);
    KINK(celu, 0.0f, 1.5f, 0.0f, 0.0f, 1.0f);
#undef KINK
}

/* |got - expected| <= rel * |expected| + abs */
static void assert_near(float got, double expected, double rel, double abs)
{
    if (!(fabs((double)got - expected) <= rel * fabs(expected) + abs)) {
        fail_msg("%.9g is not within %g of %.9g", (double)got, rel * fabs(expected) + abs,
                 expected);
    }
}

/* Scenarios F1, F2 and F4. The figures there have 4 to 7 digits, so the expected values are
 * recomputed here in double: ln(1 + e^x) for small e^x is e^x - e^2x / 2. The relative tolerance is
 * 4 ulp, 4 * 2^-23 (the bound of the activation table above), and the absolute one a subnormal. */
static void scenarios_f1_f2_f4(void **state)
{
    (void)state;
    const double rel = 4.0 * 0x1p-23, tiny = 0x1p-149;
    const float line[] = { 20.0f, 88.0f, 89.0f, 100.0f, 1000.0f };
    assert_near(attom_softplus(-120.0f, 1.0f, 20.0f), 0.0, 0.0, tiny);
    assert_near(attom_softplus(-20.0f, 1.0f, 20.0f), 2.0611536181902e-9, rel, 0.0);
    assert_near(attom_softplus(0.0f, 1.0f, 20.0f), 0.69314718055995, rel, 0.0);
    for (size_t i = 0; i < sizeof line / sizeof *line; i++) {
        ASSERT_SAME(attom_softplus(line[i], 1.0f, 20.0f), line[i]);
        ASSERT_SAME(attom_softplus_grad(line[i], 1.0f, 20.0f), 1.0f);
    }
    ASSERT_SAME(attom_softplus(18.0f, 5.0f, 20.0f), 18.0f);
    ASSERT_SAME(attom_softplus(20.0f, 5.0f, 20.0f), 20.0f);
    /* 12 + e^-12 = 12.000006, which rounds to 12 in f16 */
    assert_int_equal(attom_f32_to_f16(attom_softplus(12.0f, 1.0f, 20.0f)), 0x4a00);

    ASSERT_SAME(attom_mish_grad(-100.0f, 0.0f, 0.0f), 0.0f); /* -3.7e-42, which counts as 0 */
    assert_near(attom_mish_grad(-20.0f, 0.0f, 0.0f), -3.9161918e-8, 1e-6, 0.0);
    assert_near(attom_mish_grad(0.0f, 0.0f, 0.0f), 0.6, rel, 0.0);
    ASSERT_SAME(attom_mish_grad(22.0f, 0.0f, 0.0f), 1.0f);
    ASSERT_SAME(attom_mish_grad(23.0f, 0.0f, 0.0f), 1.0f);
    ASSERT_SAME(attom_mish_grad(25.0f, 0.0f, 0.0f), 1.0f);
    ASSERT_SAME(attom_mish_grad(100.0f, 0.0f, 0.0f), 1.0f);

    ASSERT_SAME(attom_logsigmoid(-1000.0f, 0.0f, 0.0f), -1000.0f);
    ASSERT_SAME(attom_logsigmoid(-100.0f, 0.0f, 0.0f), -100.0f);
    ASSERT_SAME(attom_logsigmoid(-90.0f, 0.0f, 0.0f), -90.0f);
    assert_near(attom_logsigmoid(0.0f, 0.0f, 0.0f), -0.69314718055995, rel, 0.0);
    assert_near(attom_logsigmoid(100.0f, 0.0f, 0.0f), 0.0, 0.0, 0.0); /* -3.7e-44 */
    ASSERT_SAME(attom_logsigmoid_grad(-1000.0f, 0.0f, 0.0f), 1.0f);
    ASSERT_SAME(attom_logsigmoid_grad(-100.0f, 0.0f, 0.0f), 1.0f);
    ASSERT_SAME(attom_logsigmoid_grad(-90.0f, 0.0f, 0.0f), 1.0f);
    ASSERT_SAME(attom_logsigmoid_grad(0.0f, 0.0f, 0.0f), 0.5f);
    ASSERT_SAME(attom_logsigmoid_grad(100.0f, 0.0f, 0.0f), 0.0f);
}

static void building_blocks_match_their_formulas(void **state)
{
    (void)state;
    /* exact in float */
    ASSERT_SAME(attom_standardise(3.0f, 1.0f, 0.5f, 4.0f, -1.0f), 3.0f);
    ASSERT_SAME(attom_ema(8.0f, 4.0f, 0.25f), 7.0f);
}

/* ---- random numbers ---------------------------------------------------------------------- */

/* Philox4x32-10 once more, from the paper: 64-bit products and an array, ten rounds in a loop. */
static void philox_plain(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint64_t c[4] = { counter[0], counter[1], counter[2], counter[3] };
    uint64_t k[2] = { key[0], key[1] };
    for (int round = 0; round < 10; round++) {
        const uint64_t first = UINT64_C(0xd2511f53) * c[0];
        const uint64_t second = UINT64_C(0xcd9e8d57) * c[2];
        const uint64_t next[4] = { (second >> 32) ^ c[1] ^ k[0], second % (UINT64_C(1) << 32),
                                   (first >> 32) ^ c[3] ^ k[1], first % (UINT64_C(1) << 32) };
        memcpy(c, next, sizeof c);
        k[0] = (k[0] + 0x9e3779b9) % (UINT64_C(1) << 32);
        k[1] = (k[1] + 0xbb67ae85) % (UINT64_C(1) << 32);
    }
    for (int i = 0; i < 4; i++) out[i] = (uint32_t)c[i];
}

static void assert_philox(const uint32_t c[4], const uint32_t k[2], const uint32_t expected[4])
{
    const attom_u32x4 w = attom_philox(c[0], c[1], c[2], c[3], k[0], k[1]);
    assert_int_equal(w.w0, expected[0]);
    assert_int_equal(w.w1, expected[1]);
    assert_int_equal(w.w2, expected[2]);
    assert_int_equal(w.w3, expected[3]);
}

/* Random123's known answers: zeros, ones, and digits of pi; each is checked against the plain form
 * as well, so a slip in copying a vector shows. Then 10000 arbitrary inputs. */
static void philox_gives_the_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } rows[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff },
          { 0xffffffff, 0xffffffff },
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t plain[4];
        philox_plain(rows[i].counter, rows[i].key, plain);
        for (int j = 0; j < 4; j++) assert_int_equal(plain[j], rows[i].out[j]);
        assert_philox(rows[i].counter, rows[i].key, rows[i].out);
    }
    uint32_t word[6] = { 1, 2, 3, 4, 5, 6 };
    for (int n = 0; n < 10000; n++) {
        for (int j = 0; j < 6; j++) word[j] = word[j] * 1664525u + 1013904223u + (uint32_t)n;
        uint32_t plain[4];
        philox_plain(word, word + 4, plain);
        assert_philox(word, word + 4, plain);
    }
}

/* Seed, index, first word and uniform of attorch's dropout: appendix A of the specification. The
 * uniform is printed there with 9 digits, which name a float exactly. */
static void triton_mode_gives_attorch_numbers(void **state)
{
    (void)state;
    static const struct {
        uint32_t seed, index, word;
        float uniform;
    } rows[] = {
        { 0, 0, 0x6627e8d5, 0.798092902f },        { 0, 1, 0xf8e4cca4, 0.0555175915f },
        { 0, 2, 0x04faa329, 0.0388988405f },       { 0, 3, 0xc990ef29, 0.425264418f },
        { 0, 1023, 0x1b5060c9, 0.213390425f },     { 0, 2147483647, 0x5fb3fbfe, 0.747680128f },
        { 1, 0, 0xe3e80670, 0.219481632f },        { 1, 1, 0xac08141b, 0.656003416f },
        { 1, 2, 0x3f55b3f0, 0.494802922f },        { 1, 3, 0xc1f3cfa1, 0.484746933f },
        { 1, 1023, 0xd5187396, 0.33519128f },      { 1, 2147483647, 0x32254c84, 0.39176324f },
        { 42, 0, 0x9ceaf053, 0.774080157f },       { 42, 1, 0xfcdb2127, 0.024562696f },
        { 42, 2, 0xd36c0225, 0.348266304f },       { 42, 3, 0xbac70475, 0.540801406f },
        { 42, 1023, 0x4f9cb0c5, 0.621969283f },    { 42, 2147483647, 0xd0f2743b, 0.367600858f },
        { 65535, 0, 0xc8c357f9, 0.431538552f },    { 65535, 1, 0xc04fff77, 0.497558624f },
        { 65535, 2, 0x839df0a0, 0.971742511f },    { 65535, 3, 0xe2059326, 0.234204859f },
        { 65535, 1023, 0xc3ab48d1, 0.471335292f }, { 65535, 2147483647, 0xca976471, 0.417254835f },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const attom_u32x4 w = attom_philox(rows[i].index, 0, 0, 0, rows[i].seed, 0);
        assert_int_equal(w.w0, rows[i].word);
        ASSERT_SAME(attom_triton_uniform(w.w0), rows[i].uniform);
    }
    ASSERT_SAME(attom_triton_uniform(0x7fffffff), 0.99999994f);
    ASSERT_SAME(attom_triton_uniform(0x80000000), 0.99999994f);
    ASSERT_SAME(attom_triton_uniform(0x00000000), 0.0f);
    ASSERT_SAME(attom_triton_uniform(0xffffffff), 0.0f);
}

static void keep_compares_the_upper_24_bits(void **state)
{
    (void)state;
    assert_int_equal(attom_keep(0, 0), 1);                          /* p = 0 keeps all */
    assert_int_equal(attom_keep(0xffffffff, UINT32_C(1) << 24), 0); /* p = 1 keeps none */
    assert_int_equal(attom_keep(0x800000ff, 0x800001), 0);
    assert_int_equal(attom_keep(0x80000100, 0x800001), 1);
}

/* ---- storage types ----------------------------------------------------------------------- */

/* Value of a small float format from its definition: sign, exponent field, mantissa field. */
static double decode(uint32_t h, int mantissa_bits, int exponent_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (int)(h >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const int mantissa = (int)(h & ((1u << mantissa_bits) - 1));
    const double sign = (h >> (mantissa_bits + exponent_bits)) & 1 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp(1.0 + ldexp(mantissa, -mantissa_bits), exponent - bias);
}

/* The nearest value of the format, ties to even: scale so that its unit is 1, round with rint. */
static double nearest(double v, int mantissa_bits, int exponent_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    int e;
    if (v == 0.0 || isinf(v) || isnan(v)) return v;
    (void)frexp(v, &e); /* 2^(e-1) <= |v| < 2^e */
    if (e - 1 < 1 - bias) e = 2 - bias;
    const double unit = ldexp(1.0, e - 1 - mantissa_bits);
    const double r = rint(v / unit) * unit;
    const double limit = ldexp(2.0 - ldexp(1.0, -mantissa_bits), bias); /* largest finite */
    return fabs(r) > limit ? copysign(INFINITY, v) : r;
}

static int encodes(uint16_t h, double expected, int mantissa_bits, int exponent_bits)
{
    const double d = decode(h, mantissa_bits, exponent_bits);
    if (isnan(expected)) return isnan(d);
    return d == expected && (signbit(d) != 0) == (signbit(expected) != 0);
}

/* All 65536 patterns of both types widen exactly, and narrowing gives the pattern back. */
static void halves_widen_exactly_and_return(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const uint16_t bits = (uint16_t)h;
        const double f16 = decode(h, 10, 5), bf16 = decode(h, 7, 8);
        const float f = attom_f16_to_f32(bits), b = attom_bf16_to_f32(bits);
        assert_true(isnan(f16) ? isnan(f) : (double)f == f16);
        assert_true(isnan(bf16) ? isnan(b) : (double)b == bf16);
        assert_int_equal(attop_bits(f) >> 31, h >> 15);
        assert_int_equal(attop_bits(b) >> 31, h >> 15);
        assert_true(isnan(f16) ? encodes(attom_f32_to_f16(f), NAN, 10, 5)
                               : attom_f32_to_f16(f) == bits);
        assert_true(isnan(bf16) ? encodes(attom_f32_to_bf16(b), NAN, 7, 8)
                                : attom_f32_to_bf16(b) == bits);
    }
}

static int narrows(float x)
{
    return encodes(attom_f32_to_f16(x), nearest((double)x, 10, 5), 10, 5) &&
           encodes(attom_f32_to_bf16(x), nearest((double)x, 7, 8), 7, 8);
}

static void assert_narrows(float x)
{
    if (!narrows(x)) {
        fail_msg("%.9g (%08x) narrows to f16 %04x, bf16 %04x", (double)x, (unsigned)attop_bits(x),
                 attom_f32_to_f16(x), attom_f32_to_bf16(x));
    }
}

/* Sampled floats, and around every representable half its tie with the next one: the tie itself
 * and its two neighbours. */
static void floats_narrow_to_the_nearest_half(void **state)
{
    (void)state;
    const int64_t step = (int64_t)stride();
    int64_t wrong = -1; /* some float that fails, as bits */
#pragma omp parallel for schedule(static) reduction(max : wrong)
    for (int64_t n = 0; n <= (int64_t)UINT32_MAX; n += step)
        if (!narrows(attop_float((uint32_t)n))) wrong = n;
    if (wrong >= 0) assert_narrows(attop_float((uint32_t)wrong));
    for (uint32_t h = 0; h < 0x7c00; h++) { /* up to the tie of 65504 with infinity, 65520 */
        const double next = h == 0x7bff ? 65536.0 : decode(h + 1, 10, 5);
        const float tie = (float)(0.5 * (decode(h, 10, 5) + next)); /* exact: 12 bits */
        for (uint32_t d = 0; d < 3; d++) {
            assert_narrows(attop_float(attop_bits(tie) + d - 1));
            assert_narrows(-attop_float(attop_bits(tie) + d - 1));
        }
    }
    for (uint32_t h = 0; h < 0x7f80; h++) { /* bf16: bits 0x8000 below it are the tie */
        for (uint32_t d = 0; d < 3; d++) {
            assert_narrows(attop_float((h << 16) + 0x7fff + d));
            assert_narrows(-attop_float((h << 16) + 0x7fff + d));
        }
    }
    const uint32_t nans[] = { 0x7f800001, 0x7fc00000, 0x7fffffff, 0xff800001, 0xffffffff };
    for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) assert_narrows(attop_float(nans[i]));
    assert_int_equal(attom_f32_to_f16(attop_float(0xffffffff)), 0xffff);
    assert_int_equal(attom_f32_to_bf16(attop_float(0x7f800001)), 0x7fc0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(primitives_stay_within_their_bounds),
        cmocka_unit_test(primitives_keep_special_values),
        cmocka_unit_test(pow_stays_within_its_bound),
        cmocka_unit_test(pow_keeps_special_values),
        cmocka_unit_test(max_and_min_propagate_nan),
        cmocka_unit_test(activations_match_their_definitions),
        cmocka_unit_test(gelu_keeps_relative_accuracy_in_the_tail),
        cmocka_unit_test(celu_takes_any_alpha),
        cmocka_unit_test(activations_keep_infinities_and_nan),
        cmocka_unit_test(activations_take_pytorch_values_at_breakpoints),
        cmocka_unit_test(scenarios_f1_f2_f4),
        cmocka_unit_test(building_blocks_match_their_formulas),
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test(triton_mode_gives_attorch_numbers),
        cmocka_unit_test(keep_compares_the_upper_24_bits),
        cmocka_unit_test(halves_widen_exactly_and_return),
        cmocka_unit_test(floats_narrow_to_the_nearest_half),
    };
    return cmocka_run_group_tests_name("math", tests, NULL, NULL);
}
