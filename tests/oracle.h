/* SPDX-License-Identifier: MIT */
/* The answers: each op from its definition, in double. Shares no code with src/, only tables. */
#ifndef ORACLE_H
#define ORACLE_H

#include <attocl.h>

/* One activation. a and b are its two numbers, widened from float. */
typedef struct oracle_act {
    const char *name;
    double (*f)(double x, double a, double b);
    double (*df)(double x, double a, double b);

    /* Roundings of an f32 evaluation of f and df, see atto_tol. */
    int k, dk;

    /* Size of the terms behind f and df beyond the result itself, see atto_tol: an f32 evaluation
     * may be off by a few roundings of |y| + scale. NULL = 0: as accurate as y is large. */
    double (*scale)(double x, double a, double b);
    double (*dscale)(double x, double a, double b);

    /* Where f, df or its slope jumps: these points, and the numbers a and b where so marked. */
    int kink_count;
    double kinks[3];
    bool kink_a; /* at +a and -a */
    bool kink_b;
} oracle_act;

/* Every activation has a row; gradcheck.c complains about a missing one. */
const oracle_act *oracle_act_of(atto_activation_kind kind);

/* Nearest kink of the activation is at least this far from x. */
double oracle_act_kink_distance(atto_activation act, double x);

/* Activation then dropout as atto_act_forward defines it, for the element of logical index i, and
 * its gradient. */
double oracle_act_forward(atto_activation act, float p, atto_rng rng, int64_t i, double x);
double oracle_act_backward(atto_activation act, float p, atto_rng rng, int64_t i, double x,
                           double dy);

/* Terms for atto_tol: |result| + scale of the two above. */
double oracle_act_terms(atto_activation act, float p, double x);
double oracle_act_grad_terms(atto_activation act, float p, double x, double dy);

/* One linear layer on dense row-major matrices; what is stored rounded comes rounded. */
typedef struct oracle_linear {
    int64_t m, n, k;
    const double *x;        /* [m, k] */
    const double *w;        /* [n, k] */
    const double *b;        /* [n], NULL = none */
    const double *residual; /* [m, n], NULL = none */
    const double *z;        /* [m, n], for the gradients; NULL where act is the identity */
    const double *dy;       /* [m, n] */
    atto_activation act;
    float p;
    atto_rng rng;
} oracle_linear;

/* A result, and the sum of the magnitudes of the terms behind it (roundings inside act', too), for
 * atto_tol. */
typedef struct oracle_sum {
    double value, terms;
} oracle_sum;

/* z = x w^T + b and y = dropout(act(z)) + residual at row i, column j. */
oracle_sum oracle_linear_z(const oracle_linear *l, int64_t i, int64_t j);
double oracle_linear_y(const oracle_linear *l, int64_t i, int64_t j, double z);

/* dz, from which dx = dz w, dw = dz^T x and db follow. */
oracle_sum oracle_linear_dz(const oracle_linear *l, int64_t i, int64_t j);
void oracle_linear_dx(const oracle_linear *l, const oracle_sum *dz, oracle_sum *dx);
void oracle_linear_dw(const oracle_linear *l, const oracle_sum *dz, oracle_sum *dw);
void oracle_linear_db(const oracle_linear *l, const oracle_sum *dz, oracle_sum *db);

/* Products of batches: a [a_batch, m, k], b [b_batch, k, n], y [batch, m, n]; oracle_matmul.c. */
typedef struct oracle_matmul {
    int64_t m, n, k;
    atto_shape a_batch, b_batch, batch; /* the first two broadcast to the third */
    const double *a, *b, *dy;
} oracle_matmul;

/* y, da and db, dense; NULL = not wanted. */
void oracle_matmul_product(const oracle_matmul *o, oracle_sum *y, oracle_sum *da, oracle_sum *db);

/* Attention of dense q [B, H, L, D], k [B, G, S, D] and v [B, G, S, E]; oracle_attention.c. */
typedef struct oracle_attention {
    int64_t batches, heads, key_heads, queries, keys, d, e;
    const double *q, *k, *v;
    const double *mask; /* dense, or NULL; mask_hides: keys where it is 0, else it is added */
    atto_shape mask_shape;
    bool mask_hides;
    const double *y; /* for the gradients: as forward has stored it; NULL = not rounded */
    const double *dy;
    const double *q_off, *k_off, *v_off, *y_off, *dy_off; /* what they are off by, in u; NULL = 0 */
    atto_causal causal;
    double scale; /* 0 = 1 / sqrt(D) */
    float p;
    atto_rng rng;
    const double *lse; /* for lse_low: as forward has stored it */
    bool with_low;     /* gradients start from lse and lse_low */
    bool exact;        /* an f32 evaluation of the scores rounds nothing */
} oracle_attention;

/* y; lse and lse_low [B, H, L]; dq, dk and dv; dense, NULL = not wanted. Terms are all that an f32 evaluation
 * may be off by, in u: atto_tol's n is 1. */
void oracle_attention_forward(const oracle_attention *o, oracle_sum *y, oracle_sum *lse,
                              oracle_sum *low);
void oracle_attention_backward(const oracle_attention *o, oracle_sum *dq, oracle_sum *dk,
                               oracle_sum *dv);

/* Cross-entropy of x [outer, classes, step], position p = outer index * step + inner index. */
typedef struct oracle_ce {
    int64_t outer, classes, step;
    const double *x;
    const double *labels; /* one a position, whole numbers; or NULL: */
    const double *shares; /* probabilities, like x */
    const double *weight; /* [classes] or NULL */
    atto_reduction reduction;
    bool has_ignore;
    int64_t ignore;
    double smoothing;
    const double *dloss; /* one, or with ATTO_REDUCTION_NONE one a position */
    bool from_lse;       /* the gradient of an f32 evaluation starts from the saved lse */
} oracle_ce;

/* Results, and the size of the terms behind each (see atto_tol). Arrays are the caller's. */
typedef struct oracle_ce_answer {
    double *each, *each_terms; /* positions; what ATTO_REDUCTION_NONE gives */
    double *lse, *lse_terms;   /* positions */
    double loss, loss_terms;   /* the mean or the sum */
    double total, total_terms;
    double *dx, *dx_terms; /* like x */
    double *dshares, *dshares_terms;
} oracle_ce_answer;

void oracle_cross_entropy(const oracle_ce *c, oracle_ce_answer *out);

/* The elementwise ops, and their gradients for the upstream gradient dy. */
double oracle_unary(atto_unary_kind kind, double x, double lo, double hi);
double oracle_unary_grad(atto_unary_kind kind, double x, double dy, double lo, double hi);
double oracle_binary(atto_binary_kind kind, double a, double b);
double oracle_binary_grad(atto_binary_kind kind, bool of_b, double a, double b, double dy);
int oracle_compare(atto_compare_kind kind, double a, double b);

/* Size of what an f32 evaluation of the gradient may lose beyond the result's own roundings, see
 * atto_tol: pow's exponent b - 1 is rounded. */
double oracle_binary_grad_scale(atto_binary_kind kind, bool of_b, double a, double b, double dy);

/* A reduction of n values in the order of their positions; *position is that of the first extreme.
 */
double oracle_reduce(atto_reduce_kind kind, const double *x, int64_t n, int64_t *position);

/* Softmax of x [outer, size, step] over the middle dimension; oracle_softmax.c. */
typedef struct oracle_softmax {
    int64_t outer, size, step;
    atto_softmax_kind kind;
    const double *x;      /* forward */
    const double *y, *dy; /* backward */
} oracle_softmax;

/* Results, and the size of the terms behind each (see atto_tol). */
void oracle_softmax_forward(const oracle_softmax *s, double *y, double *terms);
void oracle_softmax_backward(const oracle_softmax *s, double *dx, double *terms);

/* A gated linear unit of x [outer, 2, width]; dy is [outer, width]. */
typedef struct oracle_glu {
    int64_t outer, width;
    atto_activation act;
    const double *x, *dy;
} oracle_glu;

/* Results, and what stands for the size of terms with the activation's own roundings: of y and of
 * da those of act, of db those of its gradient. */
void oracle_glu_forward(const oracle_glu *g, double *y, double *terms);
void oracle_glu_backward(const oracle_glu *g, double *dx, double *terms);
/* Pooling of planes [h, w]; with one dimension h = oh = 1. */
typedef struct oracle_pool {
    bool is_max;
    int64_t planes, h, w, oh, ow;
    atto_pool_window window;
    bool exclude;
    int64_t override;
    const double *x, *dy; /* dy NULL: no gradient is wanted */
} oracle_pool;

/* Arrays are the caller's: like y, then like x. index is that of a maximum in its plane; terms are
 * the sizes of what is added up, summed and dx_summed how many that are. */
typedef struct oracle_pool_answer {
    double *y, *index, *terms, *divisor;
    int64_t *summed;
    double *dx, *dx_terms;
    int64_t *dx_summed;
} oracle_pool_answer;

void oracle_pooling(const oracle_pool *p, oracle_pool_answer *a);

/* Outputs along an axis of in elements, for numbers number `at` of the window. */
int64_t oracle_pool_outputs(const atto_pool_window *w, int at, int64_t in);

/* Philox4x32-10 with a 128-bit counter and a 64-bit key. */
void oracle_philox(const uint32_t counter[4], uint64_t key, uint32_t out[4]);

/* Whether dropout keeps the element of logical index i. */
bool oracle_keep(atto_rng rng, float p, int64_t i);

/* What a kept element is multiplied by: 1 / (1 - p), 0 for p = 1; the float that is nearest. */
double oracle_keep_scale(float p);

/* Rounds to the nearest value of the dtype, ties to even, and back. Integers truncate and saturate,
 * NaN becomes 0, as atto_tensor_copy says. */
double oracle_round(atto_dtype dtype, double value);

/* The stored bits of a value, and the value of stored bits; exact for i64 up to 2^53. */
uint64_t oracle_encode(atto_dtype dtype, double value);
double oracle_decode(atto_dtype dtype, uint64_t bits);

/* Distance from 1 to the next number, halved: 2^-24, 2^-11, 2^-8. */
double oracle_unit(atto_dtype dtype);

/* Spacing of the smallest numbers, and the largest finite one. */
double oracle_tiny(atto_dtype dtype);
double oracle_huge(atto_dtype dtype);

#endif
