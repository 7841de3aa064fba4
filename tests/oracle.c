/* SPDX-License-Identifier: MIT */
/* Activations, linear, dropout and conversions in double, from their definitions. */
#include "oracle.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

/* Activations.
 *
 * f at an infinity is what IEEE arithmetic makes of the definition, as in PyTorch: 0 * infinity and
 * infinity / infinity are NaN. df at an infinity is its limit, and at NaN what the comparisons of
 * PyTorch's scalar code leave. (Policy: docs/ops/act.md.) */

#define PI          3.14159265358979323846
#define SELU_LAMBDA 1.0507009873554804934193349852946
#define SELU_ALPHA  1.6732632423543772848170429916717
#define GELU_CUBIC  0.044715

/* p * q where a factor 0 wins over infinity: the limit of a derivative's term that decays. */
static double decay(double p, double q)
{
    return p == 0.0 || q == 0.0 ? 0.0 : p * q;
}

static double sigmoid(double x)
{
    return x >= 0.0 ? 1.0 / (1.0 + exp(-x)) : exp(x) / (1.0 + exp(x));
}

/* ln(1 + e^x) */
static double softplus1(double x)
{
    return fmax(x, 0.0) + log1p(exp(-fabs(x))) + (isnan(x) ? x : 0.0);
}

static double identity_f(double x, double a, double b)
{
    (void)a, (void)b;
    return x;
}
static double identity_df(double x, double a, double b)
{
    (void)x, (void)a, (void)b;
    return 1.0;
}

static double sigmoid_f(double x, double a, double b)
{
    (void)a, (void)b;
    return sigmoid(x);
}
static double sigmoid_df(double x, double a, double b)
{
    (void)a, (void)b;
    return sigmoid(x) * sigmoid(-x);
}

static double logsigmoid_f(double x, double a, double b)
{
    (void)a, (void)b;
    return -softplus1(-x);
}
static double logsigmoid_df(double x, double a, double b)
{
    (void)a, (void)b;
    return sigmoid(-x);
}

static double tanh_f(double x, double a, double b)
{
    (void)a, (void)b;
    return tanh(x);
}
static double tanh_df(double x, double a, double b)
{
    (void)a, (void)b;
    return 1.0 / (cosh(x) * cosh(x));
}

static double relu_f(double x, double a, double b)
{
    (void)a, (void)b;
    return x < 0.0 ? 0.0 : x;
}
static double relu_df(double x, double a, double b)
{
    (void)a, (void)b;
    return x <= 0.0 ? 0.0 : 1.0;
}

/* Normal distribution: P(X <= x) and the density. */
static double normal_cdf(double x)
{
    return 0.5 * erfc(-x / sqrt(2.0));
}
static double normal_pdf(double x)
{
    return exp(-0.5 * x * x) / sqrt(2.0 * PI);
}

static double gelu_f(double x, double a, double b)
{
    (void)a, (void)b;
    return x * normal_cdf(x);
}
static double gelu_df(double x, double a, double b)
{
    (void)a, (void)b;
    return normal_cdf(x) + decay(x, normal_pdf(x));
}

/* 2u of x/2 (1 + tanh u) = x sigmoid(2u), and its derivative. */
static double gelu_tanh_arg(double x)
{
    return 2.0 * sqrt(2.0 / PI) * x * (1.0 + GELU_CUBIC * x * x);
}
static double gelu_tanh_darg(double x)
{
    return 2.0 * sqrt(2.0 / PI) * (1.0 + 3.0 * GELU_CUBIC * x * x);
}
static double gelu_tanh_f(double x, double a, double b)
{
    (void)a, (void)b;
    return x * sigmoid(gelu_tanh_arg(x));
}
static double gelu_tanh_df(double x, double a, double b)
{
    (void)a, (void)b;
    const double v = gelu_tanh_arg(x);
    const double bell = sigmoid(v) * sigmoid(-v);
    return sigmoid(v) + decay(bell, x * gelu_tanh_darg(x));
}

static double silu_f(double x, double a, double b)
{
    (void)a, (void)b;
    return x * sigmoid(x);
}
static double silu_df(double x, double a, double b)
{
    (void)a, (void)b;
    return sigmoid(x) + decay(x, sigmoid(x) * sigmoid(-x));
}

static double clip(double x, double lo, double hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}
/* 1 between the ends, 0 on them; NaN is on neither. */
static double inside(double x, double lo, double hi)
{
    return x <= lo || x >= hi ? 0.0 : 1.0;
}

static double relu6_f(double x, double a, double b)
{
    (void)a, (void)b;
    return clip(x, 0.0, 6.0);
}
static double relu6_df(double x, double a, double b)
{
    (void)a, (void)b;
    return inside(x, 0.0, 6.0);
}

static double hardsigmoid_f(double x, double a, double b)
{
    (void)a, (void)b;
    return clip(x + 3.0, 0.0, 6.0) / 6.0;
}
static double hardsigmoid_df(double x, double a, double b)
{
    (void)a, (void)b;
    return x > -3.0 && x < 3.0 ? 1.0 / 6.0 : 0.0;
}

static double hardtanh_f(double x, double a, double b)
{
    return clip(x, a, b);
}
static double hardtanh_df(double x, double a, double b)
{
    return inside(x, a, b);
}

static double hardswish_f(double x, double a, double b)
{
    (void)a, (void)b;
    return x * clip(x + 3.0, 0.0, 6.0) / 6.0;
}
static double hardswish_df(double x, double a, double b)
{
    (void)a, (void)b;
    return x <= -3.0 ? 0.0 : x >= 3.0 ? 1.0 : x / 3.0 + 0.5;
}

static double elu_f(double x, double a, double b)
{
    (void)b;
    return x > 0.0 ? x : a * expm1(x);
}
static double elu_df(double x, double a, double b)
{
    (void)b;
    return x > 0.0 ? 1.0 : a * exp(x);
}

static double selu_f(double x, double a, double b)
{
    (void)a;
    return SELU_LAMBDA * elu_f(x, SELU_ALPHA, b);
}
static double selu_df(double x, double a, double b)
{
    (void)a;
    return SELU_LAMBDA * elu_df(x, SELU_ALPHA, b);
}

static double celu_f(double x, double a, double b)
{
    (void)b;
    return x > 0.0 ? x : a * expm1(x / a);
}
static double celu_df(double x, double a, double b)
{
    (void)b;
    return x > 0.0 ? 1.0 : exp(x / a);
}

static double mish_f(double x, double a, double b)
{
    (void)a, (void)b;
    return x * tanh(softplus1(x));
}
static double mish_df(double x, double a, double b)
{
    (void)a, (void)b;
    const double sp = softplus1(x);
    return tanh(sp) + decay(x, sigmoid(x) * tanh_df(sp, 0.0, 0.0));
}

static double softplus_f(double x, double a, double b)
{
    return a * x > b ? x : softplus1(a * x) / a;
}
static double softplus_df(double x, double a, double b)
{
    return a * x > b ? 1.0 : sigmoid(a * x);
}

static double softsign_f(double x, double a, double b)
{
    (void)a, (void)b;
    return x / (1.0 + fabs(x));
}
static double softsign_df(double x, double a, double b)
{
    (void)a, (void)b;
    return 1.0 / ((1.0 + fabs(x)) * (1.0 + fabs(x)));
}

static double tanhshrink_f(double x, double a, double b)
{
    (void)a, (void)b;
    const double z = x * x; /* the series where x - tanh x would cancel */
    return fabs(x) < 1e-3 ? x * z / 3.0 * (1.0 - 0.4 * z) : x - tanh(x);
}
static double tanhshrink_df(double x, double a, double b)
{
    (void)a, (void)b;
    return tanh(x) * tanh(x);
}

static double leaky_relu_f(double x, double a, double b)
{
    (void)b;
    return x > 0.0 ? x : a * x;
}
static double leaky_relu_df(double x, double a, double b)
{
    (void)b;
    return x > 0.0 ? 1.0 : a;
}

static double hardshrink_f(double x, double a, double b)
{
    (void)b;
    return x >= -a && x <= a ? 0.0 : x;
}
static double hardshrink_df(double x, double a, double b)
{
    (void)b;
    return x >= -a && x <= a ? 0.0 : 1.0;
}

static double softshrink_f(double x, double a, double b)
{
    (void)b;
    return x > a ? x - a : x < -a ? x + a : isnan(x) ? x : 0.0;
}
static double softshrink_df(double x, double a, double b)
{
    return hardshrink_df(x, a, b);
}

/* Scales: sizes of terms that an f32 evaluation adds up before they cancel, and of rounded
 * exponents: e^t with t off by |t| roundings is off by as many of itself. */

/* x times the normal tail, e^(-x^2/2) times a polynomial: the exponent's rounding counts x^2 / 2
 * times what k = 20 counts, and the polynomial is off by 1.7e-8, 0.3 u, so by 1/70 of 20 u. */
static double gelu_scale(double x, double a, double b)
{
    (void)a, (void)b;
    const double tail = 0.5 * erfc(fabs(x) / sqrt(2.0));
    return fabs(x) * (tail * x * x / 20.0 + 1.0 / 70.0);
}
static double gelu_dscale(double x, double a, double b)
{
    (void)x, (void)a, (void)b;
    return 1.0;
}

static double gelu_tanh_scale(double x, double a, double b)
{
    const double v = gelu_tanh_arg(x);
    return decay(fabs(gelu_tanh_f(x, a, b)), fabs(v) * sigmoid(-v));
}
static double gelu_tanh_dscale(double x, double a, double b)
{
    (void)a, (void)b;
    const double v = gelu_tanh_arg(x);
    const double bell = sigmoid(v) * sigmoid(-v);
    return decay(bell, (1.0 + fabs(v)) * (1.0 + fabs(x * gelu_tanh_darg(x))));
}

static double silu_dscale(double x, double a, double b)
{
    (void)a, (void)b;
    return decay(fabs(x), sigmoid(x) * sigmoid(-x));
}

static double mish_dscale(double x, double a, double b)
{
    return decay(fabs(x), sigmoid(x) * tanh_df(softplus1(x), a, b));
}

static double hardswish_dscale(double x, double a, double b)
{
    (void)x, (void)a, (void)b;
    return 0.5;
}

static double softplus_scale(double x, double a, double b)
{
    return a * x > b ? 0.0 : decay(fabs(softplus_f(x, a, b)), fabs(a * x));
}
static double softplus_dscale(double x, double a, double b)
{
    return a * x > b ? 0.0 : decay(softplus_df(x, a, b), fabs(a * x));
}

static double tanhshrink_scale(double x, double a, double b)
{
    (void)a, (void)b;
    return fabs(x) < 1.0 ? 0.0 : 1.0; /* below 1 a series keeps all digits */
}

static double celu_scale(double x, double a, double b)
{
    return x > 0.0 ? 0.0 : decay(fabs(x), celu_df(x, a, b));
}
static double celu_dscale(double x, double a, double b)
{
    return x > 0.0 ? 0.0 : decay(fabs(x / a), celu_df(x, a, b));
}

/* k and dk count the roundings of an f32 evaluation of f and df, in u of |result| + scale (atto_tol
 * tells what a primitive may be off by; every row has one rounding more for the scale of fused
 * dropout, and a gradient another for dy):
 *
 *   sigmoid      exp 6, sum 1, division 5; grad: exp 6, (1 + e)^2 8, division 5
 *   logsigmoid   exp 6 and log1p 5 of at most |y|, difference 1; grad: sigmoid
 *   tanh         tanh 10; grad: as sigmoid, one product more
 *   gelu         exp 6, division 5, seven steps of a polynomial 8; grad: also x phi(x)
 *   gelu_tanh    sigmoid 12, argument 4; grad: sigmoid 12, bell 12, products 4
 *   silu         sigmoid 12, product 1; grad: sigmoid 12, bell 12, products 2
 *   hardsigmoid  sum 1, rounded 1/6 1, product 1
 *   hardswish    hardsigmoid 3, product 1
 *   selu         expm1 6, rounded constant 1 or 2, product 1
 *   mish         e 6, n = e (e + 2) 14, n / (n + 2) 6 more; grad: two such products 31, their sum
 *                over a square of one 31, division 5
 *   softplus     exp 6, log1p 5, sum 1, division 5, argument 1; grad: sigmoid
 *   softsign     sum 1, division 5; grad: twice that, product 1
 *   tanhshrink   tanh 10, difference 1 (series below 1: 9); grad: twice tanh
 *   elu          expm1 or exp 6, product 1
 *   celu         expm1 6, reciprocal and product 2 in the exponent, product 1
 */
/* clang-format off */
#define ROW(NAME, name, k, dk, scale, dscale) \
    [ATTO_ACT_##NAME] = { #name, name##_f, name##_df, k, dk, scale, dscale
static const oracle_act acts[ATTO_ACT_COUNT] = {
    /*  kind         name         k   dk  scale             dscale             kinks         a and
     * b */
    ROW(IDENTITY,    identity,    1,  2,  NULL,             NULL),             0, { 0 },      false, false },
    ROW(SIGMOID,     sigmoid,     13, 22, NULL,             NULL),             0, { 0 },      false, false },
    ROW(LOGSIGMOID,  logsigmoid,  14, 14, NULL,             NULL),             0, { 0 },      false, false },
    ROW(TANH,        tanh,        11, 23, NULL,             NULL),             0, { 0 },      false, false },
    ROW(RELU,        relu,        1,  2,  NULL,             NULL),             1, { 0 },      false, false },
    ROW(GELU,        gelu,        20, 26, gelu_scale,       gelu_dscale),      0, { 0 },      false, false },
    ROW(GELU_TANH,   gelu_tanh,   18, 30, gelu_tanh_scale,  gelu_tanh_dscale), 0, { 0 },      false, false },
    ROW(SILU,        silu,        14, 28, NULL,             silu_dscale),      0, { 0 },      false, false },
    ROW(RELU6,       relu6,       1,  2,  NULL,             NULL),             2, { 0, 6 },   false, false },
    ROW(HARDSIGMOID, hardsigmoid, 4,  3,  NULL,             NULL),             2, { -3, 3 },  false, false },
    ROW(HARDTANH,    hardtanh,    1,  2,  NULL,            NULL)             ,             0, { 0 },     true,  true },
    ROW(HARDSWISH,   hardswish,   5,  5,  NULL,             hardswish_dscale), 2, { -3, 3 },  false, false },
    ROW(SELU,        selu,        10, 11, NULL,             NULL),             1, { 0 },      false, false },
    ROW(MISH,        mish,        24, 70, NULL,             mish_dscale),      0, { 0 },      false, false },
    ROW(SOFTPLUS,    softplus,    19, 16, softplus_scale,   softplus_dscale),  0, { 0 },      false, false },
    ROW(SOFTSIGN,    softsign,    7,  15, NULL,             NULL),             1, { 0 },      false, false },
    ROW(TANHSHRINK,  tanhshrink,  12, 23, tanhshrink_scale, NULL),             0, { 0 },      false, false },
    ROW(LEAKY_RELU,  leaky_relu,  2,  2,  NULL,             NULL),             1, { 0 },      false, false },
    ROW(ELU,         elu,         8,  9,  NULL,             NULL),             1, { 0 },      false, false },
    ROW(CELU,        celu,        11, 10, celu_scale,       celu_dscale),      1, { 0 },      false, false },
    ROW(HARDSHRINK,  hardshrink,  1,  2,  NULL,             NULL),             0, { 0 },      true,  false },
    ROW(SOFTSHRINK,  softshrink,  2,  2,  NULL,             NULL),             0, { 0 },      true,  false },
};
#undef ROW
/* clang-format on */

const oracle_act *oracle_act_of(atto_activation_kind kind)
{
    return &acts[kind];
}

double oracle_act_kink_distance(atto_activation act, double x)
{
    const oracle_act *o = &acts[act.kind];
    double nearest = INFINITY;
    for (int i = 0; i < o->kink_count; i++) nearest = fmin(nearest, fabs(x - o->kinks[i]));
    if (o->kink_a) nearest = fmin(nearest, fabs(fabs(x) - fabs(act.a)));
    if (o->kink_b) nearest = fmin(nearest, fabs(fabs(x) - fabs(act.b)));
    if (act.kind == ATTO_ACT_SOFTPLUS) nearest = fmin(nearest, fabs(x - act.b / act.a));
    return nearest;
}

double oracle_act_forward(atto_activation act, float p, atto_rng rng, int64_t i, double x)
{
    if (!oracle_keep(rng, p, i)) return 0.0;
    return acts[act.kind].f(x, act.a, act.b) * oracle_keep_scale(p);
}

double oracle_act_backward(atto_activation act, float p, atto_rng rng, int64_t i, double x,
                           double dy)
{
    if (!oracle_keep(rng, p, i)) return 0.0;
    return acts[act.kind].df(x, act.a, act.b) * dy * oracle_keep_scale(p);
}

/* |value| + scale; what is not finite has no tolerance anyway. */
static double terms(double value, double scale)
{
    const double sum = fabs(value) + scale;
    return isfinite(sum) ? sum : 0.0;
}

double oracle_act_terms(atto_activation act, float p, double x)
{
    const oracle_act *o = &acts[act.kind];
    const double scale = o->scale ? o->scale(x, act.a, act.b) : 0.0;
    return terms(o->f(x, act.a, act.b), scale) * oracle_keep_scale(p);
}

double oracle_act_grad_terms(atto_activation act, float p, double x, double dy)
{
    const oracle_act *o = &acts[act.kind];
    const double scale = o->dscale ? o->dscale(x, act.a, act.b) : 0.0;
    return terms(terms(o->df(x, act.a, act.b), scale) * dy * oracle_keep_scale(p), 0.0);
}

/* Linear. */

static void add_term(oracle_sum *sum, double term, double size)
{
    sum->value += term;
    sum->terms += fabs(size);
}

oracle_sum oracle_linear_z(const oracle_linear *l, int64_t i, int64_t j)
{
    oracle_sum z = { 0.0, 0.0 };
    for (int64_t k = 0; k < l->k; k++) {
        const double term = l->x[i * l->k + k] * l->w[j * l->k + k];
        add_term(&z, term, term);
    }
    if (l->b) add_term(&z, l->b[j], l->b[j]);
    return z;
}

double oracle_linear_y(const oracle_linear *l, int64_t i, int64_t j, double z)
{
    const int64_t at = i * l->n + j;
    const double y = oracle_act_forward(l->act, l->p, l->rng, at, z);
    return l->residual ? y + l->residual[at] : y;
}

oracle_sum oracle_linear_dz(const oracle_linear *l, int64_t i, int64_t j)
{
    const int64_t at = i * l->n + j;
    const double z = l->z ? l->z[at] : 0.0; /* the identity's derivative does not look at it */
    oracle_sum dz = { oracle_act_backward(l->act, l->p, l->rng, at, z, l->dy[at]), 0.0 };
    if (oracle_keep(l->rng, l->p, at)) dz.terms = oracle_act_grad_terms(l->act, l->p, z, l->dy[at]);
    return dz;
}

/* sum += dz * factor */
static void add_product(oracle_sum *sum, oracle_sum dz, double factor)
{
    add_term(sum, dz.value * factor, dz.terms * factor);
}

void oracle_linear_dx(const oracle_linear *l, const oracle_sum *dz, oracle_sum *dx)
{
    for (int64_t i = 0; i < l->m; i++)
        for (int64_t k = 0; k < l->k; k++) {
            oracle_sum sum = { 0.0, 0.0 };
            for (int64_t j = 0; j < l->n; j++)
                add_product(&sum, dz[i * l->n + j], l->w[j * l->k + k]);
            dx[i * l->k + k] = sum;
        }
}

void oracle_linear_dw(const oracle_linear *l, const oracle_sum *dz, oracle_sum *dw)
{
    for (int64_t j = 0; j < l->n; j++)
        for (int64_t k = 0; k < l->k; k++) {
            oracle_sum sum = { 0.0, 0.0 };
            for (int64_t i = 0; i < l->m; i++)
                add_product(&sum, dz[i * l->n + j], l->x[i * l->k + k]);
            dw[j * l->k + k] = sum;
        }
}

void oracle_linear_db(const oracle_linear *l, const oracle_sum *dz, oracle_sum *db)
{
    for (int64_t j = 0; j < l->n; j++) {
        db[j] = (oracle_sum){ 0.0, 0.0 };
        for (int64_t i = 0; i < l->m; i++) add_product(&db[j], dz[i * l->n + j], 1.0);
    }
}

/* Cross-entropy. */

/* One position: log softmax, and the target with weights and smoothing. */
typedef struct ce_position {
    int64_t first; /* element of x of its first class */
    bool counts, wrong;
    double top, log_sum; /* log p = (x - top) - log_sum */
    double sum, size;    /* of the target and of its magnitudes */
} ce_position;

static double ce_weight(const oracle_ce *c, int64_t class)
{
    return c->weight ? c->weight[class] : 1.0;
}

static double ce_target(const oracle_ce *c, const ce_position *p, int64_t position, int64_t class)
{
    const double hard = c->labels ? (double)(c->labels[position] == (double)class)
                                  : c->shares[p->first + class * c->step];
    return ce_weight(c, class) * ((1.0 - c->smoothing) * hard + c->smoothing / (double)c->classes);
}

static ce_position ce_locate(const oracle_ce *c, int64_t position)
{
    ce_position p = { position / c->step * c->classes * c->step + position % c->step,
                      true,
                      false,
                      -INFINITY,
                      0.0,
                      0.0,
                      0.0 };
    double sum = 0.0;
    for (int64_t k = 0; k < c->classes; k++) {
        const double x = c->x[p.first + k * c->step];
        if (x > p.top || isnan(x)) p.top = x;
        if (isnan(x)) break;
    }
    for (int64_t k = 0; k < c->classes; k++) sum += exp(c->x[p.first + k * c->step] - p.top);
    p.log_sum = log(sum);
    if (!c->labels) return p;
    const double label = c->labels[position];
    const bool ignored = c->has_ignore && label == (double)c->ignore;
    p.wrong = !ignored && !(label >= 0.0 && label < (double)c->classes);
    p.counts = !ignored && !p.wrong;
    return p;
}

static void ce_forward(const oracle_ce *c, ce_position *p, int64_t position, oracle_ce_answer *out)
{
    double loss = 0.0, terms = 0.0;
    for (int64_t k = 0; p->counts && k < c->classes; k++) {
        const double q = ce_target(c, p, position, k);
        p->sum += q;
        p->size += fabs(q);
        const bool absent = c->labels && c->smoothing == 0.0 && c->labels[position] != (double)k;
        if (absent) continue; /* not a term 0 * infinity */
        const double down = c->x[p->first + k * c->step] - p->top;
        loss -= q * (down - p->log_sum);
        terms += fabs(q) * (fabs(down) + fabs(p->log_sum) + 1.0);
    }
    out->each[position] = p->wrong ? NAN : loss;
    out->each_terms[position] = isfinite(terms) ? terms : 0.0;
    out->lse[position] = p->top + p->log_sum;
    out->lse_terms[position] = fabs(p->top) + fabs(p->log_sum) + 1.0;
    const double share = !p->counts  ? 0.0
                         : c->labels ? ce_weight(c, (int64_t)c->labels[position])
                                     : 1.0;
    out->total += share;
    out->total_terms += fabs(share);
    out->loss += out->each[position];
    out->loss_terms += out->each_terms[position];
}

static void ce_backward(const oracle_ce *c, const ce_position *p, int64_t position,
                        oracle_ce_answer *out)
{
    const bool none = c->reduction == ATTO_REDUCTION_NONE;
    const double divisor = c->reduction == ATTO_REDUCTION_MEAN ? out->total : 1.0;
    const double g = c->dloss[none ? position : 0] / divisor;
    const double extra = c->from_lse ? fabs(p->top + p->log_sum) : 0.0;
    for (int64_t k = 0; k < c->classes; k++) {
        const int64_t at = p->first + k * c->step;
        const double log_p = (c->x[at] - p->top) - p->log_sum, share = exp(log_p);
        const double q = p->counts ? ce_target(c, p, position, k) : 0.0;
        const double far = fabs(c->x[at] - p->top) + fabs(p->log_sum) + extra + 1.0;
        out->dx[at] = p->counts ? g * (share * p->sum - q) : 0.0;
        out->dx_terms[at] = p->counts ? fabs(g) * (decay(share, far) * p->size + fabs(q)) : 0.0;
        const double slope = g * (1.0 - c->smoothing) * ce_weight(c, k);
        out->dshares[at] = c->labels ? 0.0 : -slope * log_p;
        out->dshares_terms[at] = fabs(slope) * far;
    }
}

void oracle_cross_entropy(const oracle_ce *c, oracle_ce_answer *out)
{
    const int64_t positions = c->outer * c->step;
    out->loss = out->loss_terms = out->total = out->total_terms = 0.0;
    for (int64_t i = 0; i < positions; i++) {
        ce_position p = ce_locate(c, i);
        ce_forward(c, &p, i, out);
    }
    for (int64_t i = 0; c->dloss && i < positions; i++) {
        ce_position p = ce_locate(c, i);
        for (int64_t k = 0; p.counts && k < c->classes; k++) {
            p.sum += ce_target(c, &p, i, k);
            p.size += fabs(ce_target(c, &p, i, k));
        }
        ce_backward(c, &p, i, out);
    }
    if (c->reduction != ATTO_REDUCTION_MEAN) return;
    out->loss_terms *= (1.0 + out->total_terms / fabs(out->total)) / fabs(out->total);
    out->loss /= out->total;
}

/* Elementwise ops. NaN and infinities: what IEEE arithmetic makes of PyTorch's formulas. */

static double sign(double x)
{
    return (double)((x > 0.0) - (x < 0.0));
}

double oracle_unary(atto_unary_kind kind, double x, double lo, double hi)
{
    switch (kind) {
    case ATTO_UNARY_NEG:
        return -x;
    case ATTO_UNARY_ABS:
        return fabs(x);
    case ATTO_UNARY_EXP:
        return exp(x);
    case ATTO_UNARY_LOG:
        return log(x);
    case ATTO_UNARY_SQRT:
        return sqrt(x);
    case ATTO_UNARY_RSQRT:
        return 1.0 / sqrt(x);
    case ATTO_UNARY_SQUARE:
        return x * x;
    case ATTO_UNARY_RECIPROCAL:
        return 1.0 / x;
    case ATTO_UNARY_CLAMP:
        return isnan(x) ? x : fmin(fmax(x, lo), hi);
    default:
        return NAN;
    }
}

double oracle_unary_grad(atto_unary_kind kind, double x, double dy, double lo, double hi)
{
    switch (kind) {
    case ATTO_UNARY_NEG:
        return -dy;
    case ATTO_UNARY_ABS:
        return dy * sign(x);
    case ATTO_UNARY_EXP:
        return dy * exp(x);
    case ATTO_UNARY_LOG:
        return dy / x;
    case ATTO_UNARY_SQRT:
        return dy / (2.0 * sqrt(x));
    case ATTO_UNARY_RSQRT:
        return -0.5 * dy * pow(1.0 / sqrt(x), 3.0);
    case ATTO_UNARY_SQUARE:
        return dy * 2.0 * x;
    case ATTO_UNARY_RECIPROCAL:
        return -dy * (1.0 / x) * (1.0 / x);
    case ATTO_UNARY_CLAMP:
        return x >= lo && x <= hi ? dy : 0.0;
    default:
        return NAN;
    }
}

/* NaN if either is; fmax would drop it. */
static double larger(double a, double b)
{
    return isnan(a) || isnan(b) ? NAN : fmax(a, b);
}

double oracle_binary(atto_binary_kind kind, double a, double b)
{
    switch (kind) {
    case ATTO_BINARY_ADD:
        return a + b;
    case ATTO_BINARY_SUB:
        return a - b;
    case ATTO_BINARY_MUL:
        return a * b;
    case ATTO_BINARY_DIV:
        return a / b;
    case ATTO_BINARY_POW:
        return pow(a, b);
    case ATTO_BINARY_MAXIMUM:
        return larger(a, b);
    case ATTO_BINARY_MINIMUM:
        return -larger(-a, -b);
    default:
        return NAN;
    }
}

/* What max gives to its first argument. */
static double share_of_larger(double a, double b, double dy)
{
    if (a == b) return dy / 2.0;
    return a < b ? 0.0 : dy;
}

static double pow_grad(bool of_b, double a, double b, double dy)
{
    if (!of_b) return b == 0.0 ? 0.0 : dy * (b * pow(a, b - 1.0));
    return dy * (a == 0.0 && b >= 0.0 ? 0.0 : pow(a, b) * log(a));
}

double oracle_binary_grad(atto_binary_kind kind, bool of_b, double a, double b, double dy)
{
    switch (kind) {
    case ATTO_BINARY_ADD:
        return dy;
    case ATTO_BINARY_SUB:
        return of_b ? -dy : dy;
    case ATTO_BINARY_MUL:
        return dy * (of_b ? a : b);
    case ATTO_BINARY_DIV:
        return of_b ? -dy * (a / b / b) : dy / b;
    case ATTO_BINARY_POW:
        return pow_grad(of_b, a, b, dy);
    case ATTO_BINARY_MAXIMUM:
        return of_b ? share_of_larger(b, a, dy) : share_of_larger(a, b, dy);
    case ATTO_BINARY_MINIMUM:
        return of_b ? share_of_larger(-b, -a, dy) : share_of_larger(-a, -b, dy);
    default:
        return NAN;
    }
}

double oracle_binary_grad_scale(atto_binary_kind kind, bool of_b, double a, double b, double dy)
{
    if (kind != ATTO_BINARY_POW || of_b || a <= 0.0) return 0.0;
    return fabs(pow_grad(false, a, b, dy) * log(a));
}

int oracle_compare(atto_compare_kind kind, double a, double b)
{
    switch (kind) {
    case ATTO_COMPARE_EQ:
        return a == b;
    case ATTO_COMPARE_NE:
        return !(a == b);
    case ATTO_COMPARE_LT:
        return a < b;
    case ATTO_COMPARE_LE:
        return a <= b;
    case ATTO_COMPARE_GT:
        return a > b;
    case ATTO_COMPARE_GE:
        return a >= b;
    default:
        return -1;
    }
}

/* Reductions. */

double oracle_reduce(atto_reduce_kind kind, const double *x, int64_t n, int64_t *position)
{
    const bool lowest = kind == ATTO_REDUCE_MIN || kind == ATTO_REDUCE_ARGMIN;
    double sum = 0.0;
    *position = 0;
    for (int64_t i = 0; i < n; i++) {
        const double best = x[*position];
        sum += x[i];
        if (isnan(best)) continue;
        if (isnan(x[i]) || (lowest ? x[i] < best : x[i] > best)) *position = i;
    }
    if (kind == ATTO_REDUCE_SUM) return sum;
    if (kind == ATTO_REDUCE_MEAN) return sum / (double)n;
    return x[*position];
}

/* Dropout. */

void oracle_philox(const uint32_t counter[4], uint64_t key, uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t p = UINT64_C(0xD2511F53) * c0;
        const uint64_t q = UINT64_C(0xCD9E8D57) * c2;
        c0 = (uint32_t)(q >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)q;
        c3 = (uint32_t)p;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Triton's uniform number: 31 bits of the first word, as float. */
static float triton_uniform(uint32_t word)
{
    const uint32_t folded = word & 0x80000000u ? ~word : word;
    return (float)(int32_t)folded * 4.6566127342e-10f;
}

bool oracle_keep(atto_rng rng, float p, int64_t i)
{
    if (p <= 0.0f) return true;
    uint32_t out[4];
    if (rng.kind == ATTO_RNG_TRITON) {
        const uint32_t counter[4] = { (uint32_t)(rng.offset + (uint64_t)i), 0, 0, 0 };
        oracle_philox(counter, rng.seed, out);
        return triton_uniform(out[0]) >= p;
    }
    const uint64_t at = rng.offset + (uint64_t)i / 4;
    const uint32_t counter[4] = { (uint32_t)at, (uint32_t)(at >> 32), 0, 0 };
    oracle_philox(counter, rng.seed, out);
    return (double)(out[i % 4] >> 8) >= ceil((double)p * 16777216.0);
}

double oracle_keep_scale(float p)
{
    return p >= 1.0f ? 0.0 : (double)(float)(1.0 / (1.0 - (double)p));
}

/* Conversions. */

/* Significand bits, exponent of the smallest normal and of the largest number. */
typedef struct format {
    int precision, low, high;
} format;

static format format_of(atto_dtype dtype)
{
    switch (dtype) {
    case ATTO_F16:
        return (format){ 11, -14, 15 };
    case ATTO_BF16:
        return (format){ 8, -126, 127 };
    default:
        return (format){ 24, -126, 127 };
    }
}

double oracle_unit(atto_dtype dtype)
{
    return ldexp(1.0, -format_of(dtype).precision);
}

double oracle_tiny(atto_dtype dtype)
{
    const format f = format_of(dtype);
    return ldexp(1.0, f.low - f.precision + 1);
}

double oracle_huge(atto_dtype dtype)
{
    const format f = format_of(dtype);
    return ldexp(2.0 - ldexp(2.0, -f.precision), f.high);
}

static double round_float(atto_dtype dtype, double value)
{
    if (value == 0.0 || !isfinite(value)) return value;
    const format f = format_of(dtype);
    int exponent;
    frexp(value, &exponent); /* |value| in [2^(exponent - 1), 2^exponent) */
    const int normal = exponent - 1 < f.low ? f.low : exponent - 1;
    const int spacing = normal - f.precision + 1;
    const double rounded = ldexp(rint(ldexp(value, -spacing)), spacing); /* ties to even */
    return fabs(rounded) > oracle_huge(dtype) ? copysign(INFINITY, value) : rounded;
}

static double round_integer(double value, double lo, double hi)
{
    if (isnan(value)) return 0.0;
    return value <= lo ? lo : value >= hi ? hi : trunc(value);
}

double oracle_round(atto_dtype dtype, double value)
{
    switch (dtype) {
    case ATTO_I32:
        return round_integer(value, INT32_MIN, INT32_MAX);
    case ATTO_I64:
        return round_integer(value, -0x1p63, 0x1p63);
    default:
        return round_float(dtype, value);
    }
}

static uint64_t encode_float(format f, double value)
{
    const int fraction = f.precision - 1;
    const int width = f.high == 15 ? 5 : 8;
    const uint64_t sign = (uint64_t)(signbit(value) != 0) << (fraction + width);
    const uint64_t top = ((UINT64_C(1) << width) - 1) << fraction;
    if (isnan(value)) return sign | top | UINT64_C(1) << (fraction - 1);
    if (isinf(value)) return sign | top;
    int exponent;
    const double size = fabs(value);
    frexp(size, &exponent);
    if (size == 0.0 || exponent - 1 < f.low)
        return sign | (uint64_t)ldexp(size, f.precision - 1 - f.low);
    const uint64_t significand = (uint64_t)ldexp(size, f.precision - exponent); /* leading 1 too */
    return sign + ((uint64_t)(exponent - 1 - f.low) << fraction) + significand;
}

uint64_t oracle_encode(atto_dtype dtype, double value)
{
    const double rounded = oracle_round(dtype, value);
    switch (dtype) {
    case ATTO_I32:
        return (uint32_t)(int32_t)rounded;
    case ATTO_I64:
        return rounded >= 0x1p63 ? INT64_MAX : (uint64_t)(int64_t)rounded;
    default:
        return encode_float(format_of(dtype), rounded);
    }
}

static double decode_float(format f, uint64_t bits)
{
    const int fraction = f.precision - 1;
    const int width = f.high == 15 ? 5 : 8;
    const double sign = bits >> (fraction + width) & 1 ? -1.0 : 1.0;
    const int exponent = (int)(bits >> fraction & ((1u << width) - 1));
    const double part = (double)(bits & ((UINT64_C(1) << fraction) - 1));
    if (exponent == (1 << width) - 1) return part != 0.0 ? copysign(NAN, sign) : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(part, f.low - fraction);
    return sign * ldexp(part + ldexp(1.0, fraction), exponent - 1 + f.low - fraction);
}

double oracle_decode(atto_dtype dtype, uint64_t bits)
{
    switch (dtype) {
    case ATTO_I32:
        return (int32_t)(uint32_t)bits;
    case ATTO_I64:
        return (double)(int64_t)bits;
    default:
        return decode_float(format_of(dtype), bits);
    }
}
