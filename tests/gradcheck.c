/* SPDX-License-Identifier: MIT */
/* Judges the oracle itself: derivatives by central differences, random numbers and conversions by
 * published values. Nothing of src/ decides here. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "atto_test.h"
#include "oracle_loss.h"
#include "oracle_norm.h"
#include "oracle_pad.h"
#include "oracle_resize.h"
#include "oracle_rnn.h"
#include "oracle_rope.h"

static void oracle_has_a_row_for_every_activation(void **state)
{
    (void)state;
    static const char *const names[] = {
#define X(NAME, name, parameters, a, b, default_a, default_b, rule) #name,
        ATTO_ACTIVATION_TABLE(X)
#undef X
    };
    for (int kind = 0; kind < ATTO_ACT_COUNT; kind++) {
        assert_non_null(oracle_act_of((atto_activation_kind)kind)->name);
        assert_string_equal(oracle_act_of((atto_activation_kind)kind)->name, names[kind]);
        assert_string_equal(atto_activation_name((atto_activation_kind)kind), names[kind]);
    }
}

/* |f(x + h) - f(x - h)| / 2h - f'(x) = h^2 f'''/6 + rounding of f / h. The third derivative of
 * every activation here stays below 6 (the steepest is celu with alpha 0.5: e^(x/a)/a^2 <= 4), and
 * h = cbrt(eps) balances the two terms. */
static void check_derivative(atto_activation act, double x)
{
    const oracle_act *o = oracle_act_of(act.kind);
    const double h = cbrt(DBL_EPSILON) * fmax(1.0, fabs(x));
    if (oracle_act_kink_distance(act, x) <= h) return;
    const double up = x + h, down = x - h; /* the exact points after rounding */
    const double slope = (o->f(up, act.a, act.b) - o->f(down, act.a, act.b)) / (up - down);
    const double wanted = o->df(x, act.a, act.b);
    const double allowed =
        h * h * 6.0 / 6.0 + 4.0 * DBL_EPSILON * (fabs(o->f(x, act.a, act.b)) + 1.0) / h;
    if (fabs(slope - wanted) > allowed)
        fail_msg("%s(%g, %g) at %.17g: derivative %.17g, central difference %.17g, allowed +-%.3g",
                 o->name, act.a, act.b, x, wanted, slope, allowed);
}

static void oracle_derivatives_match_differences(void **state)
{
    (void)state;
    atto_activation acts[TEST_ACTIVATIONS_MAX];
    const int n = test_activations(acts);
    for (int i = 0; i < n; i++) {
        uint64_t seed = 1000 + (uint64_t)i;
        for (int k = -480; k <= 480; k++) check_derivative(acts[i], k / 16.0);
        for (int k = 0; k < 500; k++)
            check_derivative(acts[i], (double)(test_random(&seed) >> 11) * 0x1p-53 * 40.0 - 20.0);
    }
}

/* ---- linear ---- */

enum { M = 3, N = 4, K = 5 };

/* A layer with values of its own, so that they can be moved. */
typedef struct layer {
    double x[M * K], w[N * K], b[N], z[M * N], dy[M * N];
    oracle_linear l;
} layer;

static void fill(layer *y, atto_activation act, float p)
{
    test_uniform(1, -1.0, 1.0, ATTO_F32, y->x, M * K);
    test_uniform(2, -1.0, 1.0, ATTO_F32, y->w, N * K);
    test_uniform(3, -1.0, 1.0, ATTO_F32, y->b, N);
    test_uniform(4, -1.0, 1.0, ATTO_F32, y->dy, M * N);
    y->l = (oracle_linear){ .m = M,
                            .n = N,
                            .k = K,
                            .x = y->x,
                            .w = y->w,
                            .b = y->b,
                            .z = y->z,
                            .dy = y->dy,
                            .act = act,
                            .p = p,
                            .rng = { 8, 1, ATTO_RNG_PHILOX } };
}

/* Sum of y dy, whose gradients are dx, dw and db; leaves z behind. */
static double loss(layer *y)
{
    double sum = 0.0;
    for (int i = 0; i < M * N; i++) {
        y->z[i] = oracle_linear_z(&y->l, i / N, i % N).value;
        sum += y->dy[i] * oracle_linear_y(&y->l, i / N, i % N, y->z[i]);
    }
    return sum;
}

/* The loss is a sum of at most M N terms f(z + t h) dy / (1 - p), |t| and |dy| <= 1, where the
 * third derivative of f stays below 6: its central difference is off by h^2 times their number, and
 * by their roundings (K + 2 each, |f| < 8) over h. */
static void check_gradients(layer *y, const char *what, double *values, const oracle_sum *gradient,
                            int count)
{
    const double h = cbrt(DBL_EPSILON);
    const double terms = M * N * oracle_keep_scale(y->l.p);
    const double allowed = h * h * terms + 8.0 * (K + 2) * DBL_EPSILON * terms / h;
    for (int i = 0; i < count; i++) {
        const double kept = values[i], up = kept + h, down = kept - h;
        values[i] = up;
        const double above = loss(y);
        values[i] = down;
        const double slope = (above - loss(y)) / (up - down);
        values[i] = kept;
        if (!(fabs(slope - gradient[i].value) <= allowed))
            fail_msg("linear with %s, %s[%d]: %.17g, central difference %.17g, allowed +-%.3g",
                     atto_activation_name(y->l.act.kind), what, i, gradient[i].value, slope,
                     allowed);
    }
}

static void oracle_linear_gradients_match_differences(void **state)
{
    (void)state;
    const atto_activation smooth[] = { atto_identity(), atto_tanh(), atto_gelu(), atto_silu() };
    for (int i = 0; i < COUNT_OF(smooth); i++)
        for (int p = 0; p < 2; p++) {
            layer y;
            oracle_sum dz[M * N], dx[M * K], dw[N * K], db[N];
            fill(&y, smooth[i], p ? 0.4f : 0.0f);
            loss(&y);
            for (int e = 0; e < M * N; e++) dz[e] = oracle_linear_dz(&y.l, e / N, e % N);
            oracle_linear_dx(&y.l, dz, dx);
            oracle_linear_dw(&y.l, dz, dw);
            oracle_linear_db(&y.l, dz, db);
            check_gradients(&y, "dx", y.x, dx, M * K);
            check_gradients(&y, "dw", y.w, dw, N * K);
            check_gradients(&y, "db", y.b, db, N);
        }
}

/* ---- random numbers and conversions ---- */

/* As above; on [0.3, 2.3], away from the kinks, third derivatives stay below 15 / 0.3^(7/2) < 1100
 * (rsqrt), those of pow below 2.3^2.3 (2.3 / 0.3)^3 < 3100. */
static void expect_slope(const char *name, double x, double up, double down, double h,
                         double wanted)
{
    const double slope = (up - down) / (2.0 * h);
    const double allowed = h * h * 3100.0 / 6.0 + 4.0 * DBL_EPSILON * (fabs(up) + 1.0) / h;
    if (fabs(slope - wanted) > allowed)
        fail_msg("%s at %.17g: gradient %.17g, central difference %.17g, allowed +-%.3g", name, x,
                 wanted, slope, allowed);
}

static void oracle_elementwise_gradients_match_differences(void **state)
{
    (void)state;
    const double h = 0x1p-18, lo = 0.5, hi = 1.25;
    uint64_t seed = 5;
    for (int i = 0; i < 500; i++) {
        const double a = 0.3 + 2.0 * (double)(test_random(&seed) >> 11) * 0x1p-53;
        const double b = 0.3 + 2.0 * (double)(test_random(&seed) >> 11) * 0x1p-53;
        if (fmin(fabs(a - lo), fabs(a - hi)) < 2.0 * h || fabs(a - b) < 2.0 * h) continue;
        for (int k = 0; k < ATTO_UNARY_COUNT; k++) {
            const atto_unary_kind kind = (atto_unary_kind)k;
            expect_slope(atto_unary_name(kind), a, oracle_unary(kind, a + h, lo, hi),
                         oracle_unary(kind, a - h, lo, hi), h,
                         oracle_unary_grad(kind, a, 1.0, lo, hi));
        }
        for (int k = 0; k < ATTO_BINARY_COUNT; k++) {
            const atto_binary_kind kind = (atto_binary_kind)k;
            expect_slope(atto_binary_name(kind), a, oracle_binary(kind, a + h, b),
                         oracle_binary(kind, a - h, b), h,
                         oracle_binary_grad(kind, false, a, b, 1.0));
            expect_slope(atto_binary_name(kind), b, oracle_binary(kind, a, b + h),
                         oracle_binary(kind, a, b - h), h,
                         oracle_binary_grad(kind, true, a, b, 1.0));
        }
    }
}

/* First words of Philox4x32-10 for key = seed, counter = (index, 0, 0, 0), and the uniform numbers
 * that Triton makes of them (Triton 3.0's tl.rand). */
static const struct {
    uint64_t seed;
    uint32_t index, word;
    float uniform;
} philox_rows[] = {
    { 0, 0, 0x6627e8d5, 0.798092902f },     { 0, 1, 0xf8e4cca4, 0.0555175915f },
    { 0, 2, 0x04faa329, 0.0388988405f },    { 0, 2147483647, 0x5fb3fbfe, 0.747680128f },
    { 1, 0, 0xe3e80670, 0.219481632f },     { 1, 1023, 0xd5187396, 0.33519128f },
    { 42, 0, 0x9ceaf053, 0.774080157f },    { 42, 3, 0xbac70475, 0.540801406f },
    { 65535, 2, 0x839df0a0, 0.971742511f }, { 65535, 2147483647, 0xca976471, 0.417254835f },
};

static void oracle_philox_matches_published_words(void **state)
{
    (void)state;
    uint32_t out[4];
    const uint32_t zero[4] = { 0, 0, 0, 0 }, ones[4] = { ~0u, ~0u, ~0u, ~0u };
    oracle_philox(zero, 0, out);
    const uint32_t wanted[4] = { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 };
    assert_memory_equal(out, wanted, sizeof out);
    oracle_philox(ones, UINT64_MAX, out); /* Random123's known answers */
    const uint32_t wanted_ones[4] = { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd };
    assert_memory_equal(out, wanted_ones, sizeof out);
    for (int i = 0; i < COUNT_OF(philox_rows); i++) {
        const uint32_t counter[4] = { philox_rows[i].index, 0, 0, 0 };
        oracle_philox(counter, philox_rows[i].seed, out);
        assert_int_equal(out[0], philox_rows[i].word);
    }
}

/* An element is kept at p = its uniform number and dropped just above. */
static void oracle_triton_masks_match_published_uniforms(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(philox_rows); i++) {
        const atto_rng rng = { philox_rows[i].seed, 0, ATTO_RNG_TRITON };
        const float u = philox_rows[i].uniform;
        assert_true(oracle_keep(rng, u, philox_rows[i].index));
        assert_false(oracle_keep(rng, nextafterf(u, 2.0f), philox_rows[i].index));
    }
}

static void oracle_philox_masks_use_all_four_words(void **state)
{
    (void)state;
    const atto_rng rng = { 0, 0, ATTO_RNG_PHILOX };
    const uint32_t words[4] = { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 };
    for (int64_t i = 0; i < 4; i++) {
        const float edge = (float)(words[i] >> 8) * 0x1p-24f; /* kept iff word >> 8 >= p * 2^24 */
        assert_true(oracle_keep(rng, edge, i));
        assert_false(oracle_keep(rng, nextafterf(edge, 2.0f), i));
    }
}

static void oracle_conversions_round_trip(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const double h = oracle_decode(ATTO_F16, bits), b = oracle_decode(ATTO_BF16, bits);
        if (!isnan(h)) assert_int_equal(oracle_encode(ATTO_F16, h), bits);
        if (!isnan(b)) assert_int_equal(oracle_encode(ATTO_BF16, b), bits);
        float f;
        const uint32_t wide = bits << 16;
        memcpy(&f, &wide, sizeof f);
        assert_true(isnan(b) ? isnan(f) : b == (double)f);
    }
}

static const struct {
    atto_dtype dtype;
    double value;
    uint64_t bits;
} conversion_rows[] = {
    { ATTO_F16, 1.0, 0x3c00 },
    { ATTO_F16, 65504.0, 0x7bff },
    { ATTO_F16, 65519.99, 0x7bff },
    { ATTO_F16, 65520.0, 0x7c00 }, /* tie: to even is infinity */
    { ATTO_F16, 0x1p-24, 0x0001 },
    { ATTO_F16, 0x1p-25, 0x0000 }, /* tie: to even is zero */
    { ATTO_F16, 0x1.8p-24, 0x0002 },
    { ATTO_F16, -0.0, 0x8000 },
    { ATTO_F16, 2049.0, 0x6800 },
    { ATTO_F16, 2051.0, 0x6802 }, /* ties */
    { ATTO_BF16, 1.0, 0x3f80 },
    { ATTO_BF16, 1.00390625, 0x3f80 },
    { ATTO_BF16, 1.01171875, 0x3f82 },
    { ATTO_BF16, 3.4e38, 0x7f80 },
    { ATTO_F32, 1.0, 0x3f800000 },
    { ATTO_F32, 16777217.0, 0x4b800000 },
    { ATTO_F32, 0x1p-149, 1 },
    { ATTO_F32, 3.5e38, 0x7f800000 },
    { ATTO_I32, -2.9, 0xfffffffe },
    { ATTO_I32, 3e9, 0x7fffffff },
    { ATTO_I32, NAN, 0 },
    { ATTO_I64, 1e30, INT64_MAX },
};

static void oracle_conversions_match_known_bits(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(conversion_rows); i++)
        assert_int_equal(oracle_encode(conversion_rows[i].dtype, conversion_rows[i].value),
                         conversion_rows[i].bits);
    for (int i = 0; i < 100000; i++) { /* against the compiler's own double to float */
        uint64_t seed = (uint64_t)i, bits = test_random(&seed);
        double value;
        memcpy(&value, &bits, sizeof value);
        const float f = (float)value;
        if (!isnan(f)) assert_true(oracle_round(ATTO_F32, value) == (double)f);
    }
}

/* ---- cross-entropy ---- */

enum { CE_OUTER = 2, CE_CLASSES = 4, CE_STEP = 3, CE_N = CE_OUTER * CE_CLASSES * CE_STEP };

static double ce_numbers[8][CE_N]; /* each, its terms, lse, its terms, dx, ..., dshares, ... */

static oracle_ce_answer ce_ask(const oracle_ce *c)
{
    oracle_ce_answer answer = { .each = ce_numbers[0],
                                .each_terms = ce_numbers[1],
                                .lse = ce_numbers[2],
                                .lse_terms = ce_numbers[3],
                                .dx = ce_numbers[4],
                                .dx_terms = ce_numbers[5],
                                .dshares = ce_numbers[6],
                                .dshares_terms = ce_numbers[7] };
    oracle_cross_entropy(c, &answer);
    return answer;
}

/* What dloss is the gradient of. */
static double ce_value(const oracle_ce *c)
{
    const oracle_ce_answer a = ce_ask(c);
    double sum = 0.0;
    if (c->reduction != ATTO_REDUCTION_NONE) return a.loss * c->dloss[0];
    for (int i = 0; i < CE_OUTER * CE_STEP; i++) sum += a.each[i] * c->dloss[i];
    return sum;
}

/* Third derivatives of log softmax stay below 1, dloss and weights below 2: h^2 / 6 of their
 * products over six positions, and rounding of a sum below 1000 divided by h. */
static void check_ce_slope(const oracle_ce *c, double *value, double wanted)
{
    const double h = cbrt(DBL_EPSILON), middle = *value;
    *value = middle + h;
    const double up = ce_value(c);
    *value = middle - h;
    const double down = ce_value(c);
    *value = middle;
    const double allowed = h * h * 24.0 / 6.0 + 1000.0 * DBL_EPSILON / h;
    if (!(fabs((up - down) / (2.0 * h) - wanted) <= allowed))
        fail_msg("cross_entropy: derivative %.17g, central difference %.17g, allowed +-%.3g",
                 wanted, (up - down) / (2.0 * h), allowed);
}

static void oracle_cross_entropy_gradients_match_differences(void **state)
{
    (void)state;
    double x[CE_N], shares[CE_N], labels[CE_OUTER * CE_STEP], weight[CE_CLASSES], dloss[6];
    double dx[CE_N], dshares[CE_N];
    for (int bits = 0; bits < 3 * 16; bits++) {
        uint64_t seed = 5000 + (uint64_t)bits;
        test_uniform(seed, -3.0, 3.0, ATTO_F32, x, CE_N);
        test_uniform(seed + 100, 0.0, 1.0, ATTO_F32, shares, CE_N);
        test_uniform(seed + 200, 0.5, 2.0, ATTO_F32, weight, CE_CLASSES);
        test_uniform(seed + 300, -2.0, 2.0, ATTO_F32, dloss, 6);
        for (int i = 0; i < 6; i++) labels[i] = (double)(test_random(&seed) % CE_CLASSES);
        const bool soft = bits / 3 % 2 == 1;
        const oracle_ce c = { .outer = CE_OUTER,
                              .classes = CE_CLASSES,
                              .step = CE_STEP,
                              .x = x,
                              .labels = soft ? NULL : labels,
                              .shares = soft ? shares : NULL,
                              .weight = bits / 6 % 2 ? weight : NULL,
                              .reduction = (atto_reduction)(bits % 3),
                              .has_ignore = !soft && bits / 24 % 2 == 1,
                              .ignore = 1,
                              .smoothing = bits / 12 % 2 ? 0.25 : 0.0,
                              .dloss = dloss };
        const oracle_ce_answer a = ce_ask(&c);
        if (!isfinite(a.loss)) continue; /* every label happens to be ignored */
        memcpy(dx, a.dx, sizeof dx);
        memcpy(dshares, a.dshares, sizeof dshares);
        for (int i = 0; i < CE_N; i++) check_ce_slope(&c, &x[i], dx[i]);
        for (int i = 0; soft && i < CE_N; i++) check_ce_slope(&c, &shares[i], dshares[i]);
    }
}

/* ---- softmax and gated linear units ---- */

enum { SM_OUTER = 2, SM_SIZE = 4, SM_STEP = 3, SM_N = SM_OUTER * SM_SIZE * SM_STEP };

static double sm_value(const oracle_softmax *s)
{
    double y[SM_N], terms[SM_N], sum = 0.0;
    oracle_softmax_forward(s, y, terms);
    for (int i = 0; i < SM_N; i++) sum += y[i] * s->dy[i];
    return sum;
}

static double glu_value(const oracle_glu *g)
{
    double y[SM_N], terms[SM_N], sum = 0.0;
    oracle_glu_forward(g, y, terms);
    for (int64_t i = 0; i < g->outer * g->width; i++) sum += y[i] * g->dy[i];
    return sum;
}

/* ---- matmul: sum of y dy is linear in each operand, so that differences have roundings only ---- */

enum { MM_M = 3, MM_N = 2, MM_K = 4, MM_A = 2 * MM_M * MM_K, MM_B = 3 * MM_K * MM_N };
enum { MM_Y = 6 * MM_M * MM_N };

static double matmul_value(const oracle_matmul *o)
{
    oracle_sum y[MM_Y];
    double sum = 0.0;
    oracle_matmul_product(o, y, NULL, NULL);
    for (int i = 0; i < MM_Y; i++) sum += y[i].value * o->dy[i];
    return sum;
}

static void expect_matmul_slopes(const oracle_matmul *o, double *x, const oracle_sum *dx, int n)
{
    for (int i = 0; i < n; i++) {
        const double middle = x[i];
        x[i] = middle + 0.5;
        const double up = matmul_value(o);
        x[i] = middle - 0.5;
        const double slope = up - matmul_value(o);
        x[i] = middle;
        if (fabs(slope - dx[i].value) > 1e-12)
            fail_msg("matmul: gradient %.17g, difference %.17g", dx[i].value, slope);
    }
}

/* a [2, 1, M, K] and b [3, K, N]: both are repeated. */
static void oracle_matmul_gradients_match_differences(void **state)
{
    (void)state;
    double a[MM_A], b[MM_B], dy[MM_Y];
    oracle_sum y[MM_Y], da[MM_A], db[MM_B];
    test_uniform(6400, -1.0, 1.0, ATTO_F32, a, MM_A);
    test_uniform(6401, -1.0, 1.0, ATTO_F32, b, MM_B);
    test_uniform(6402, -1.0, 1.0, ATTO_F32, dy, MM_Y);
    const oracle_matmul o = {
        MM_M, MM_N, MM_K, atto_shape2(2, 1), atto_shape1(3), atto_shape2(2, 3), a, b, dy
    };
    oracle_matmul_product(&o, y, da, db);
    expect_matmul_slopes(&o, a, da, MM_A);
    expect_matmul_slopes(&o, b, db, MM_B);
}

/* ---- attention: third derivatives of sum of y dy stay below 8 for numbers below 1 ---- */

enum { AT_B = 2, AT_H = 4, AT_G = 2, AT_L = 3, AT_S = 4, AT_D = 3, AT_E = 2 };
enum { AT_Q = AT_B * AT_H * AT_L * AT_D, AT_K = AT_B * AT_G * AT_S * AT_D };
enum { AT_V = AT_B * AT_G * AT_S * AT_E, AT_Y = AT_B * AT_H * AT_L * AT_E, AT_MASK = AT_L * AT_S };

static double attention_value(const oracle_attention *o)
{
    oracle_sum y[AT_Y];
    double sum = 0.0;
    oracle_attention_forward(o, y, NULL, NULL);
    for (int i = 0; i < AT_Y; i++) sum += y[i].value * o->dy[i];
    return sum;
}

static void expect_attention_slopes(const oracle_attention *o, const char *name, double *x,
                                    const oracle_sum *dx, int n)
{
    const double h = 1e-4;
    for (int i = 0; i < n; i++) {
        const double middle = x[i];
        x[i] = middle + h;
        const double up = attention_value(o);
        x[i] = middle - h;
        const double slope = (up - attention_value(o)) / (2.0 * h);
        x[i] = middle;
        if (fabs(slope - dx[i].value) > h * h * 8.0)
            fail_msg("attention, %s[%d]: gradient %.17g, difference %.17g", name, i, dx[i].value,
                     slope);
    }
}

/* Grouped heads; each mask, causal and dropout. The first query sees nothing where both hide. */
static void oracle_attention_gradients_match_differences(void **state)
{
    (void)state;
    static double q[AT_Q], k[AT_K], v[AT_V], dy[AT_Y], mask[AT_MASK];
    oracle_sum dq[AT_Q], dk[AT_K], dv[AT_V];
    test_uniform(6500, -1.0, 1.0, ATTO_F32, q, AT_Q);
    test_uniform(6501, -1.0, 1.0, ATTO_F32, k, AT_K);
    test_uniform(6502, -1.0, 1.0, ATTO_F32, v, AT_V);
    test_uniform(6503, -1.0, 1.0, ATTO_F32, dy, AT_Y);
    for (int turn = 0; turn < 18; turn++) {
        const int kind = turn % 3;
        for (int i = 0; i < AT_MASK; i++)
            mask[i] = i % 5 == 0 ? (kind == 1 ? 0.0 : -INFINITY) : kind == 1 ? 3.0 : 0.25 * i;
        const oracle_attention o = { .batches = AT_B,
                                     .heads = AT_H,
                                     .key_heads = AT_G,
                                     .queries = AT_L,
                                     .keys = AT_S,
                                     .d = AT_D,
                                     .e = AT_E,
                                     .q = q,
                                     .k = k,
                                     .v = v,
                                     .mask = kind > 0 ? mask : NULL,
                                     .mask_shape = atto_shape2(AT_L, AT_S),
                                     .mask_hides = kind == 1,
                                     .dy = dy,
                                     .causal = (atto_causal)(turn / 3 % 3),
                                     .scale = turn % 2 ? 1.5 : 0.0,
                                     .p = turn < 9 ? 0.0f : 0.5f,
                                     .rng = { 11, 3, ATTO_RNG_PHILOX } };
        oracle_attention_backward(&o, dq, dk, dv);
        expect_attention_slopes(&o, "q", q, dq, AT_Q);
        expect_attention_slopes(&o, "k", k, dk, AT_K);
        expect_attention_slopes(&o, "v", v, dv, AT_V);
    }
}

/* Third derivatives below 1 for each of a row's elements, dy below 2; of an activation times 3
 * below 16. */
static void expect_row_slope(const char *op, double up, double down, double wanted)
{
    const double h = cbrt(DBL_EPSILON);
    const double allowed = h * h * 32.0 / 6.0 + 100.0 * DBL_EPSILON / h;
    if (!(fabs((up - down) / (2.0 * h) - wanted) <= allowed))
        fail_msg("%s: derivative %.17g, central difference %.17g, allowed +-%.3g", op, wanted,
                 (up - down) / (2.0 * h), allowed);
}

static void oracle_softmax_gradients_match_differences(void **state)
{
    (void)state;
    const double h = cbrt(DBL_EPSILON);
    double x[SM_N], dy[SM_N], y[SM_N], dx[SM_N], terms[SM_N];
    for (int kind = 0; kind < ATTO_SOFTMAX_COUNT; kind++) {
        test_uniform(6000 + (uint64_t)kind, -3.0, 3.0, ATTO_F32, x, SM_N);
        test_uniform(6100 + (uint64_t)kind, -2.0, 2.0, ATTO_F32, dy, SM_N);
        const oracle_softmax s = { SM_OUTER, SM_SIZE, SM_STEP, (atto_softmax_kind)kind, x, y, dy };
        oracle_softmax_forward(&s, y, terms);
        oracle_softmax_backward(&s, dx, terms);
        for (int i = 0; i < SM_N; i++) {
            const double middle = x[i];
            x[i] = middle + h;
            const double up = sm_value(&s);
            x[i] = middle - h;
            const double down = sm_value(&s);
            x[i] = middle;
            expect_row_slope(atto_softmax_name((atto_softmax_kind)kind), up, down, dx[i]);
        }
    }
}

static void oracle_glu_gradients_match_differences(void **state)
{
    (void)state;
    const double h = cbrt(DBL_EPSILON);
    const atto_activation acts[] = { atto_sigmoid(), atto_silu(), atto_gelu(), atto_tanh(),
                                     atto_identity() };
    double x[SM_N], dy[SM_N], dx[SM_N], terms[SM_N];
    for (int k = 0; k < COUNT_OF(acts); k++) {
        test_uniform(6200 + (uint64_t)k, -3.0, 3.0, ATTO_F32, x, SM_N);
        test_uniform(6300 + (uint64_t)k, -2.0, 2.0, ATTO_F32, dy, SM_N / 2);
        const oracle_glu g = { 2, SM_N / 4, acts[k], x, dy };
        oracle_glu_backward(&g, dx, terms);
        for (int i = 0; i < SM_N; i++) {
            const double middle = x[i];
            x[i] = middle + h;
            const double up = glu_value(&g);
            x[i] = middle - h;
            const double down = glu_value(&g);
            x[i] = middle;
            expect_row_slope("glu", up, down, dx[i]);
        }
    }
}

/* ---- pointwise losses ---- */

static bool near_a_kink(atto_loss_kind kind, double d, double a)
{
    double kinks[2];
    const int count = oracle_loss_kinks(kind, a, kinks);
    for (int i = 0; i < count; i++)
        if (fabs(fabs(d) - kinks[i]) < 1e-3) return true;
    return false;
}

/* Third derivatives stay below 100 (of t log t it is -1 / t^2, t >= 0.1), weights and upstream
 * gradients below 4; rounding of a value below 100 divided by h. */
static void check_loss_slope(atto_loss_kind kind, bool of_target, double x, double t, double a)
{
    const double h = cbrt(DBL_EPSILON), w = 1.5, g = -2.0;
    const double up = of_target ? oracle_loss(kind, x, t + h, a, w).value
                                : oracle_loss(kind, x + h, t, a, w).value;
    const double down = of_target ? oracle_loss(kind, x, t - h, a, w).value
                                  : oracle_loss(kind, x - h, t, a, w).value;
    const double wanted = oracle_loss_grad(kind, of_target, x, t, a, w, g).value;
    const double allowed = h * h * 400.0 / 6.0 + 400.0 * DBL_EPSILON / h;
    if (!(fabs(g * (up - down) / (2.0 * h) - wanted) <= allowed))
        fail_msg("%s at %g, %g, by %s: derivative %.17g, central difference %.17g",
                 atto_loss_name(kind), x, t, of_target ? "target" : "x", wanted,
                 g * (up - down) / (2.0 * h));
}

static void oracle_loss_gradients_match_differences(void **state)
{
    (void)state;
    const double numbers[] = { 0.25, 1.0, 3.0 };
    double x[300], t[300];
    for (int kind = 0; kind < ATTO_LOSS_COUNT; kind++) {
        const bool share = kind == ATTO_LOSS_BCE_WITH_LOGITS || kind == ATTO_LOSS_KL_DIV;
        test_uniform(6000 + (uint64_t)kind, -4.0, 4.0, ATTO_F32, x, 300);
        test_uniform(6100 + (uint64_t)kind, share ? 0.1 : -4.0, 1.0, ATTO_F32, t, 300);
        for (int i = 0; i < 300; i++) {
            const double a = numbers[i % 3];
            if (near_a_kink((atto_loss_kind)kind, x[i] - t[i], a)) continue;
            check_loss_slope((atto_loss_kind)kind, false, x[i], t[i], a);
            check_loss_slope((atto_loss_kind)kind, true, x[i], t[i], a);
        }
    }
}

/* ---- norms ---- */

/* The derivative of value by *at, one of c's numbers. third: what the third derivative stays below;
 * rounding is that of a sum below 100. */
static void check_slope(const char *name, double (*value)(const void *c), const void *c, double *at,
                        double wanted, double third)
{
    const double h = cbrt(DBL_EPSILON), middle = *at;
    *at = middle + h;
    const double up = value(c);
    *at = middle - h;
    const double down = value(c);
    *at = middle;
    const double allowed = h * h * third / 6.0 + 100.0 * DBL_EPSILON / h;
    if (!(fabs((up - down) / (2.0 * h) - wanted) <= allowed))
        fail_msg("%s: derivative %.17g, central difference %.17g, allowed +-%.3g", name, wanted,
                 (up - down) / (2.0 * h), allowed);
}

static double dot(const double *a, const double *b, int n)
{
    double sum = 0.0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* ---- layer norm, RMS norm ---- */

enum { NORM_ROWS = 3, NORM_COLS = 5, NORM_N = NORM_ROWS * NORM_COLS };

static double norm_numbers[10][NORM_N];

static oracle_row_norm_answer norm_ask(const oracle_row_norm *c)
{
    double(*n)[NORM_N] = norm_numbers;
    oracle_row_norm_answer answer = { .mean = n[0],
                                      .rstd = n[1],
                                      .y = n[2],
                                      .y_terms = n[3],
                                      .dx = n[4],
                                      .dx_terms = n[5],
                                      .dw = n[6],
                                      .dw_terms = n[7],
                                      .db = n[8],
                                      .db_terms = n[9] };
    oracle_row_norm_of(c, &answer);
    return answer;
}

static double norm_value(const void *c_)
{
    const oracle_row_norm *c = c_;
    return dot(norm_ask(c).y, c->dy, NORM_N);
}

/* With eps = 1/4, rstd is at most 2: third derivatives of y stay below 100 rstd^3 = 800, w, dy
 * below 2, five elements. */
static void check_norm_slope(const oracle_row_norm *c, double *at, double wanted)
{
    check_slope("layer_norm", norm_value, c, at, wanted, 16000.0);
}

static void oracle_norm_gradients_match_differences(void **state)
{
    (void)state;
    double x[NORM_N], dy[NORM_N], w[NORM_COLS], b[NORM_COLS];
    double dx[NORM_N], dw[NORM_COLS], db[NORM_COLS];
    for (int bits = 0; bits < 8; bits++) {
        const uint64_t seed = 6000 + (uint64_t)bits;
        test_uniform(seed, -2.0, 2.0, ATTO_F32, x, NORM_N);
        test_uniform(seed + 100, -2.0, 2.0, ATTO_F32, dy, NORM_N);
        test_uniform(seed + 200, -2.0, 2.0, ATTO_F32, w, NORM_COLS);
        test_uniform(seed + 300, -2.0, 2.0, ATTO_F32, b, NORM_COLS);
        const oracle_row_norm c = { .rows = NORM_ROWS,
                                    .cols = NORM_COLS,
                                    .centred = bits & 1,
                                    .eps = 0.25,
                                    .x = x,
                                    .w = bits & 2 ? w : NULL,
                                    .b = bits & 4 ? b : NULL,
                                    .dy = dy };
        const oracle_row_norm_answer a = norm_ask(&c);
        memcpy(dx, a.dx, sizeof dx);
        memcpy(dw, a.dw, sizeof dw);
        memcpy(db, a.db, sizeof db);
        for (int i = 0; i < NORM_N; i++) check_norm_slope(&c, &x[i], dx[i]);
        for (int i = 0; c.w && i < NORM_COLS; i++) check_norm_slope(&c, &w[i], dw[i]);
        for (int i = 0; c.b && i < NORM_COLS; i++) check_norm_slope(&c, &b[i], db[i]);
    }
}

/* ---- batch norm ---- */

enum { BN_N = 3, BN_CHANNELS = 2, BN_SIZE = 2, BN_NUMEL = BN_N * BN_CHANNELS * BN_SIZE };

static double bn_numbers[14][BN_NUMEL];

static oracle_batch_norm_answer bn_ask(const oracle_batch_norm *c)
{
    double(*n)[BN_NUMEL] = bn_numbers;
    oracle_batch_norm_answer answer = { n[0], n[1], n[2], n[3],  n[4],  n[5],  n[6],
                                        n[7], n[8], n[9], n[10], n[11], n[12], n[13] };
    oracle_batch_norm_of(c, &answer);
    return answer;
}

static double bn_value(const void *c_)
{
    const oracle_batch_norm *c = c_;
    return dot(bn_ask(c).y, c->dy, BN_NUMEL);
}

/* As for rows: six values in a channel, and gelu, whose derivatives stay below 3. */
static void check_bn_slope(const oracle_batch_norm *c, double *at, double wanted)
{
    check_slope("batch_norm", bn_value, c, at, wanted, 60000.0);
}

static void oracle_batch_norm_gradients_match_differences(void **state)
{
    (void)state;
    double x[BN_NUMEL], dy[BN_NUMEL], residual[BN_NUMEL], w[BN_CHANNELS], b[BN_CHANNELS];
    double dx[BN_NUMEL], dz[BN_NUMEL], dw[BN_CHANNELS], db[BN_CHANNELS];
    const double mean[BN_CHANNELS] = { 0.5, -1.0 }, var[BN_CHANNELS] = { 1.0, 2.0 };
    for (int bits = 0; bits < 32; bits++) {
        const uint64_t seed = 7000 + (uint64_t)bits;
        test_uniform(seed, -2.0, 2.0, ATTO_F32, x, BN_NUMEL);
        test_uniform(seed + 100, -2.0, 2.0, ATTO_F32, dy, BN_NUMEL);
        test_uniform(seed + 200, -2.0, 2.0, ATTO_F32, residual, BN_NUMEL);
        test_uniform(seed + 300, -2.0, 2.0, ATTO_F32, w, BN_CHANNELS);
        test_uniform(seed + 400, -2.0, 2.0, ATTO_F32, b, BN_CHANNELS);
        const oracle_batch_norm c = { .n = BN_N,
                                      .channels = BN_CHANNELS,
                                      .size = BN_SIZE,
                                      .x = x,
                                      .w = bits & 1 ? w : NULL,
                                      .b = bits & 2 ? b : NULL,
                                      .residual = bits & 4 ? residual : NULL,
                                      .dy = dy,
                                      .running_mean = mean,
                                      .running_var = var,
                                      .act = bits & 8 ? atto_gelu() : atto_identity(),
                                      .training = bits & 16,
                                      .eps = 0.25 };
        const oracle_batch_norm_answer a = bn_ask(&c);
        memcpy(dx, a.dx, sizeof dx);
        memcpy(dz, a.dz, sizeof dz);
        memcpy(dw, a.dw, sizeof dw);
        memcpy(db, a.db, sizeof db);
        for (int i = 0; i < BN_NUMEL; i++) check_bn_slope(&c, &x[i], dx[i]);
        for (int i = 0; c.residual && i < BN_NUMEL; i++) check_bn_slope(&c, &residual[i], dz[i]);
        for (int i = 0; c.w && i < BN_CHANNELS; i++) check_bn_slope(&c, &w[i], dw[i]);
        for (int i = 0; c.b && i < BN_CHANNELS; i++) check_bn_slope(&c, &b[i], db[i]);
    }
}

/* ---- group norm ---- */

enum { GN_N = 2, GN_CHANNELS = 6, GN_SIZE = 2, GN_NUMEL = GN_N * GN_CHANNELS * GN_SIZE };

static double gn_numbers[10][GN_NUMEL];

static oracle_row_norm_answer gn_ask(const oracle_group_norm *c)
{
    double(*n)[GN_NUMEL] = gn_numbers;
    oracle_row_norm_answer answer = { n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9] };
    oracle_group_norm_of(c, &answer);
    return answer;
}

static double gn_value(const void *c_)
{
    const oracle_group_norm *c = c_;
    return dot(gn_ask(c).y, c->dy, GN_NUMEL);
}

/* As for rows: up to six values in a group. */
static void check_gn_slope(const oracle_group_norm *c, double *at, double wanted)
{
    check_slope("group_norm", gn_value, c, at, wanted, 20000.0);
}

static void oracle_group_norm_gradients_match_differences(void **state)
{
    (void)state;
    const int64_t groups[] = { 2, 3, GN_CHANNELS }; /* the last is instance norm */
    double x[GN_NUMEL], dy[GN_NUMEL], w[GN_CHANNELS], b[GN_CHANNELS];
    double dx[GN_NUMEL], dw[GN_CHANNELS], db[GN_CHANNELS];
    for (int turn = 0; turn < 12; turn++) {
        const uint64_t seed = 8000 + (uint64_t)turn;
        test_uniform(seed, -2.0, 2.0, ATTO_F32, x, GN_NUMEL);
        test_uniform(seed + 100, -2.0, 2.0, ATTO_F32, dy, GN_NUMEL);
        test_uniform(seed + 200, -2.0, 2.0, ATTO_F32, w, GN_CHANNELS);
        test_uniform(seed + 300, -2.0, 2.0, ATTO_F32, b, GN_CHANNELS);
        const oracle_group_norm c = { .n = GN_N,
                                      .channels = GN_CHANNELS,
                                      .size = GN_SIZE,
                                      .groups = groups[turn % 3],
                                      .x = x,
                                      .w = turn & 4 ? w : NULL,
                                      .b = turn & 8 ? b : NULL,
                                      .dy = dy,
                                      .eps = 0.25 };
        const oracle_row_norm_answer a = gn_ask(&c);
        memcpy(dx, a.dx, sizeof dx);
        memcpy(dw, a.dw, sizeof dw);
        memcpy(db, a.db, sizeof db);
        for (int i = 0; i < GN_NUMEL; i++) check_gn_slope(&c, &x[i], dx[i]);
        for (int i = 0; c.w && i < GN_CHANNELS; i++) check_gn_slope(&c, &w[i], dw[i]);
        for (int i = 0; c.b && i < GN_CHANNELS; i++) check_gn_slope(&c, &b[i], db[i]);
    }
}

/* ---- rope: linear in x, so that differences have roundings only ---- */

enum { RO_L = 3, RO_D = 7, RO_PAIRS = 3, RO_NUMEL = 2 * 2 * RO_L * RO_D };

static double rope_value(const oracle_rope *q, const double *x, const double *dy)
{
    double y[RO_NUMEL], terms[RO_NUMEL];
    oracle_rope_forward(q, x, y, terms);
    return dot(y, dy, RO_NUMEL);
}

static void oracle_rope_gradients_match_differences(void **state)
{
    (void)state;
    double x[RO_NUMEL], dy[RO_NUMEL], dx[RO_NUMEL], terms[RO_NUMEL];
    double cosines[4 * RO_PAIRS], sines[4 * RO_PAIRS];
    test_uniform(9000, -2.0, 2.0, ATTO_F32, x, RO_NUMEL);
    test_uniform(9001, -2.0, 2.0, ATTO_F32, dy, RO_NUMEL);
    test_uniform(9002, -1.0, 1.0, ATTO_F32, cosines, 4 * RO_PAIRS);
    test_uniform(9003, -1.0, 1.0, ATTO_F32, sines, 4 * RO_PAIRS);
    for (int neighbours = 0; neighbours < 2; neighbours++) {
        const oracle_rope q = { 2, 2, RO_L,    RO_D,  RO_PAIRS, 4, neighbours == 1,
                                1, 0, cosines, sines, NULL };
        oracle_rope_backward(&q, dy, dx, terms);
        for (int i = 0; i < RO_NUMEL; i++) {
            const double at = x[i];
            x[i] = at + 1.0;
            const double up = rope_value(&q, x, dy);
            x[i] = at;
            const double slope = up - rope_value(&q, x, dy);
            if (fabs(slope - dx[i]) > 1e-12)
                fail_msg("rope: gradient %.17g, difference %.17g", dx[i], slope);
        }
    }
}

/* ---- recurrent cells: numbers of size 1 and a step of 2^-17, whose square counts with a third
 * derivative below 10 ---- */

enum { RN_N = 6, RN_GATES = 4 * RN_N };

/* Results of a step, and its gradients. */
typedef struct rnn_results {
    double y[RN_N], cy[RN_N], gates[RN_GATES], dx[RN_GATES], du[RN_GATES], dstate[RN_N];
} rnn_results;

static double rnn_value(bool is_gru, const oracle_cell *o, rnn_results *r)
{
    double y_off[RN_N], cy_off[RN_N], gates_off[RN_GATES];
    const oracle_off y = { r->y, y_off }, cy = { r->cy, cy_off }, gates = { r->gates, gates_off };
    if (is_gru)
        oracle_gru_forward(o, y, gates);
    else
        oracle_lstm_forward(o, y, cy, gates);
    return dot(r->y, o->dy, RN_N) + (is_gru ? 0.0 : dot(r->cy, o->dcy, RN_N));
}

static void check_rnn_slopes(bool is_gru, const oracle_cell *o, double *at, int n,
                             const double *gradient)
{
    const double h = 0x1p-17;
    rnn_results r;
    for (int i = 0; i < n; i++) {
        const double middle = at[i];
        at[i] = middle + h;
        const double up = rnn_value(is_gru, o, &r);
        at[i] = middle - h;
        const double slope = (up - rnn_value(is_gru, o, &r)) / (2.0 * h);
        at[i] = middle;
        if (fabs(slope - gradient[i]) > 1e-9)
            fail_msg("%s: gradient %.17g, difference %.17g", is_gru ? "gru" : "lstm", gradient[i],
                     slope);
    }
}

static void oracle_rnn_gradients_match_differences(void **state)
{
    (void)state;
    double x[RN_GATES], u[RN_GATES], old[RN_N], dy[RN_N], dcy[RN_N], off[RN_GATES];
    double *const all[] = { x, u, old, dy, dcy };
    for (int i = 0; i < 5; i++)
        test_uniform(9100 + (uint64_t)i, -1.0, 1.0, ATTO_F32, all[i], i < 2 ? RN_GATES : RN_N);
    for (int gru = 0; gru < 2; gru++) {
        rnn_results r;
        oracle_cell o = {
            .rows = 2, .hidden = 3, .x = x, .u = u, .state = old, .dy = dy, .dcy = dcy
        };
        rnn_value(gru == 1, &o, &r);
        o.cy = r.cy;
        o.gates = r.gates;
        const oracle_off dx = { r.dx, off }, du = { r.du, off }, dstate = { r.dstate, off };
        if (gru)
            oracle_gru_backward(&o, dx, du, dstate);
        else
            oracle_lstm_backward(&o, dx, dstate);
        check_rnn_slopes(gru == 1, &o, x, gru ? 3 * RN_N : RN_GATES, r.dx);
        if (gru) check_rnn_slopes(true, &o, u, 3 * RN_N, r.du);
        check_rnn_slopes(gru == 1, &o, old, RN_N, r.dstate);
    }
}

/* ---- pad: a sum of elements, so that differences have roundings only ---- */

enum { PA_X = 2 * 3 * 4, PA_Y = 2 * 7 * 7 };

static void oracle_pad_gradients_match_differences(void **state)
{
    (void)state;
    double x[PA_X], y[PA_Y], dy[PA_Y], dx[PA_X], terms[PA_X];
    test_uniform(9100, -2.0, 2.0, ATTO_F32, x, PA_X);
    test_uniform(9101, -2.0, 2.0, ATTO_F32, dy, PA_Y);
    for (int mode = 0; mode < ATTO_PAD_COUNT; mode++) {
        const oracle_pad q = { .x = atto_shape3(2, 3, 4),
                               .before = { 0, 2, 1 },
                               .after = { 0, 2, 2 },
                               .mode = (atto_pad_kind)mode };
        oracle_pad_backward(&q, dy, dx, terms);
        for (int i = 0; i < PA_X; i++) {
            const double at = x[i];
            x[i] = at + 1.0;
            oracle_pad_forward(&q, x, y);
            const double up = dot(y, dy, PA_Y);
            x[i] = at;
            oracle_pad_forward(&q, x, y);
            const double slope = up - dot(y, dy, PA_Y);
            if (fabs(slope - dx[i]) > 1e-12)
                fail_msg("pad: gradient %.17g, difference %.17g", dx[i], slope);
        }
    }
}

/* ---- resize: linear in x, too ---- */

enum { RE_X = 2 * 3 * 4, RE_Y = 2 * 7 * 5 };

static void oracle_resize_gradients_match_differences(void **state)
{
    (void)state;
    double x[RE_X], y[RE_Y], dy[RE_Y], dx[RE_X], terms[RE_Y];
    test_uniform(9200, -2.0, 2.0, ATTO_F32, x, RE_X);
    test_uniform(9201, -2.0, 2.0, ATTO_F32, dy, RE_Y);
    for (int how = 0; how < 6; how++) {
        const oracle_resize q = { .mode = how % 3 ? ATTO_RESIZE_LINEAR : ATTO_RESIZE_NEAREST,
                                  .align_corners = how % 3 == 2,
                                  .scale = { how / 3 * 2.4, how / 3 * 1.3 },
                                  .planes = 2,
                                  .h = 3,
                                  .w = 4,
                                  .oh = 7,
                                  .ow = 5 };
        oracle_resize_backward(&q, dy, dx, terms);
        for (int i = 0; i < RE_X; i++) {
            const double at = x[i];
            x[i] = at + 1.0;
            oracle_resize_forward(&q, x, y, terms);
            const double up = dot(y, dy, RE_Y);
            x[i] = at;
            oracle_resize_forward(&q, x, y, terms);
            const double slope = up - dot(y, dy, RE_Y);
            if (fabs(slope - dx[i]) > 1e-12)
                fail_msg("resize: gradient %.17g, difference %.17g", dx[i], slope);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_resize_gradients_match_differences),
        cmocka_unit_test(oracle_pad_gradients_match_differences),
        cmocka_unit_test(oracle_rope_gradients_match_differences),
        cmocka_unit_test(oracle_rnn_gradients_match_differences),
        cmocka_unit_test(oracle_softmax_gradients_match_differences),
        cmocka_unit_test(oracle_glu_gradients_match_differences),
        cmocka_unit_test(oracle_matmul_gradients_match_differences),
        cmocka_unit_test(oracle_attention_gradients_match_differences),
        cmocka_unit_test(oracle_loss_gradients_match_differences),
        cmocka_unit_test(oracle_batch_norm_gradients_match_differences),
        cmocka_unit_test(oracle_norm_gradients_match_differences),
        cmocka_unit_test(oracle_group_norm_gradients_match_differences),
        cmocka_unit_test(oracle_cross_entropy_gradients_match_differences),
        cmocka_unit_test(oracle_has_a_row_for_every_activation),
        cmocka_unit_test(oracle_derivatives_match_differences),
        cmocka_unit_test(oracle_linear_gradients_match_differences),
        cmocka_unit_test(oracle_elementwise_gradients_match_differences),
        cmocka_unit_test(oracle_philox_matches_published_words),
        cmocka_unit_test(oracle_triton_masks_match_published_uniforms),
        cmocka_unit_test(oracle_philox_masks_use_all_four_words),
        cmocka_unit_test(oracle_conversions_round_trip),
        cmocka_unit_test(oracle_conversions_match_known_bits),
    };
    return test_main_host("gradcheck", tests, COUNT_OF(tests));
}
