/* SPDX-License-Identifier: MIT */
/* Plain loops over host memory with the formulas of atto_math.h, compiled once per CPU level with
 * exactly the flags of the CPU backend: what the backend could reach. */
#include <math.h>

#include "atto_math.h"
#include "bench.h"

#define JOIN(a, b)            a##b
#define SUFFIXED(name, level) JOIN(name, level)
#define TEXT(word)            #word
#define QUOTED(word)          TEXT(word)

static void loop_exp(float *restrict y, const float *restrict x, int64_t n, float a, float b)
{
    (void)a;
    (void)b;
    for (int64_t i = 0; i < n; i++) y[i] = attop_exp(x[i]);
}

static void loop_scale(float *restrict y, const float *restrict x, int64_t n, float a, float b)
{
    (void)b;
    for (int64_t i = 0; i < n; i++) y[i] = a * x[i];
}

static void loop_gelu_libm(float *restrict y, const float *restrict x, int64_t n, float a, float b)
{
    (void)a;
    (void)b;
    for (int64_t i = 0; i < n; i++) y[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
}

#define X(NAME, name, parameters, a_, b_, default_a, default_b, rule)                           \
    static void forward_##name(float *restrict y, const float *restrict x, int64_t n, float a,  \
                               float b)                                                         \
    {                                                                                           \
        (void)a;                                                                                \
        (void)b;                                                                                \
        for (int64_t i = 0; i < n; i++) y[i] = attom_##name(x[i], a, b);                        \
    }                                                                                           \
    static void backward_##name(float *restrict y, const float *restrict x, int64_t n, float a, \
                                float b)                                                        \
    {                                                                                           \
        (void)a;                                                                                \
        (void)b;                                                                                \
        for (int64_t i = 0; i < n; i++) y[i] = attom_##name##_grad(x[i], a, b);                 \
    }
ATTO_ACTIVATION_TABLE(X)
#undef X

extern const bench_loops SUFFIXED(bench_loops_, ATTO_LEVEL);

/* clang-format off */
const bench_loops SUFFIXED(bench_loops_, ATTO_LEVEL) = {
    .level = QUOTED(ATTO_LEVEL),
    .exp = loop_exp,
    .scale = loop_scale,
    .gelu_libm = loop_gelu_libm,
#define X(NAME, name, parameters, a, b, default_a, default_b, rule)                                \
    .forward[ATTO_ACT_##NAME] = forward_##name, .backward[ATTO_ACT_##NAME] = backward_##name,
    ATTO_ACTIVATION_TABLE(X)
#undef X
};
/* clang-format on */
