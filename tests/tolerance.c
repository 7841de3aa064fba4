/* SPDX-License-Identifier: MIT */
/* The one place that says how far results may be off, and why. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "atto_test.h"

/* A correctly rounded operation is off by at most u = 2^-24 of its result. OpenCL 3.0 (table of
 * single precision functions, full profile) allows, in u (1 ulp <= 2 u): division 5, exp 6, expm1
 * 6, log 6, pow 32, sqrt 6, rsqrt 4, log1p 4, tanh 10, erf 32. Our own primitives of the CPU
 * backend are tighter (docs/numerics.md). Errors of factors add; a term counts as much as its share
 * of the sum. */
static const struct {
    const char *op;
    int forward, backward; /* k, in u of |result| + scale */
} others[] = {
    { "dropout", 1, 1 }, /* one product with a float */

    /* n terms: a product each, of which one counts, and n - 1 sums in any order. Forward n is K,
     * and one more with a bias; backward the number of dz that meet in an element, and one more for
     * the old value that add_ keeps. What act and act' are off by comes on top, see
     * test_linear.c. */
    { "linear", 1, 1 },
    /* n terms as linear: K of y; of a gradient N or M, times the repetitions that are summed up,
     * and one more for the old value. */
    { "matmul", 1, 1 },
    /* n terms as linear: taps of the channels of a group; of a gradient those, or the positions. */
    { "conv", 1, 1 },
    /* oracle_attention.c counts everything: terms are in u. */
    { "attention", 1, 1 },
    /* Beside the summands, which the caller counts: exp 6 and its argument 1, log 6, differences 2,
     * keep and spread 3, products 2; grad: exp 6 and its argument 2, log 6, division 5, target 4,
     * products and difference 3. */
    { "cross_entropy", 20, 26 },
    /* Beside the summands, which the caller counts. y: the mean's quotient 5, differences 2, rstd 4
     * and half of the variance's quotient and sum 6, products 2, sum 1. Gradients: the same for n
     * 18, two means 5 each, products 4, differences 2. */
    { "layer_norm", 20, 36 },
    /* The same with an activation of up to 31 roundings behind it, and twice before a sum. */
    { "batch_norm", 52, 100 },
    { "group_norm", 20, 36 }, /* as layer norm */
    { "neg", 0, 0 },
    { "abs", 0, 0 }, /* dy times 1, -1 or 0 */
    { "exp", 6, 7 },
    { "log", 6, 5 },
    { "sqrt", 6, 11 },       /* sqrt 6, division 5 */
    { "rsqrt", 4, 15 },      /* three rsqrt, three products */
    { "square", 1, 1 },      /* 2 x is exact */
    { "reciprocal", 5, 12 }, /* two divisions, two products */
    { "clamp", 0, 0 },
    { "add", 1, 0 },
    { "sub", 1, 0 },
    { "mul", 1, 1 },
    { "div", 5, 11 },  /* db: two divisions, product */
    { "pow", 32, 40 }, /* da: pow, two products; db: pow, log 6, two products */
    { "maximum", 0, 0 },
    { "minimum", 0, 0 },
    { "cast", 0, 0 },
    { "where", 0, 0 },
    { "sum", 0, 0 },
    { "mean", 5, 5 }, /* division */
    { "max", 0, 5 },  /* dy / ties */
    { "min", 0, 5 },

    /* Beside the summands of a row, which the caller counts: exp 6, twice where a lane's maximum is
     * not the row's, division 5, products 2, difference 1; log: log 6, differences 2, and the sum's
     * exp 6 twice. grad: products 2, difference and old value 2; log: exp 6 beside them. */
    { "softmax", 20, 4 },
    { "log_softmax", 20, 9 },
    { "softmin", 20, 4 },
    /* Losses; the summands of a mean or a sum, and its division, come on top: the caller counts
     * them. Gradients have g = dloss / n 5 and a product with it 1. A difference d counts once a
     * factor. */
    { "l1", 1, 6 },         /* d 1; the sign is exact */
    { "mse", 3, 8 },        /* d twice, product 1; grad: d 1, product 1 */
    { "smooth_l1", 9, 12 }, /* d twice, division 5, products 2; grad: d 1, division 5 */
    { "huber", 4, 7 },      /* d twice, products 2, or d 1, difference, product; grad: d 1 */
    /* log(1 + e): exp 6, sum 1, division 5, polynomial and its sum 3; sum 1, 1 - t 1, products 2,
     * sum 1, weight 1. Grad by x: exp 6, sum 1, division 5, product 1, 1 - t 1, products 2,
     * difference 1, weight 1; by t: log(1 + e) 15, a - 1 1, products 2, sums 2, weight 1 */
    { "bce_with_logits", 21, 27 },
    { "kl_div", 8, 14 },     /* log 6, difference, product; grad: log 6, difference, sum */
    { "kl_div_log", 8, 15 }, /* exp 6, difference, product; grad: exp 6, difference, sum, product */
    { "nll_loss", 1, 6 },    /* product; grad: division 5, product 1 */
    /* Beside the summands: division 5, the divisor as a product 1; grad: reciprocal 5, products
     * 2. */
    { "avg_pool", 6, 7 },
    { "max_pool", 0, 0 },
    /* Elements are moved; gradients are sums of dy, which the caller counts. */
    { "index_select", 0, 0 },
    { "gather", 0, 0 },
    { "pad", 0, 0 },    /* likewise */
    { "resize", 1, 1 }, /* oracle_resize.c counts everything: terms are in u */
    { "rope", 2, 2 },   /* a product of each term, their sum */
    /* oracle_rnn.c counts everything: terms are in u. */
    { "lstm_cell", 1, 1 },
    { "gru_cell", 1, 1 },
};

/* "gelu" or "gelu_grad": k of that op; activations have theirs in the oracle's rows. */
static int roundings(const char *op)
{
    const size_t length = strlen(op);
    const bool grad = length > 5 && strcmp(op + length - 5, "_grad") == 0;
    const size_t stem = grad ? length - 5 : length;
    for (int i = 0; i < ATTO_ACT_COUNT; i++) {
        const oracle_act *act = oracle_act_of((atto_activation_kind)i);
        if (strlen(act->name) == stem && memcmp(act->name, op, stem) == 0)
            return grad ? act->dk : act->k;
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strlen(others[i].op) == stem && memcmp(others[i].op, op, stem) == 0)
            return grad ? others[i].backward : others[i].forward;
    fail_msg("no tolerance is known for %s", op);
    return 0;
}

/* A factor such as e^x may be 0 below 2^-124 (docs/numerics.md; and OpenCL's CL_FP_DENORM is
 * optional) before it meets what a scale multiplies it by, which is at most 2^15: (1 + |v|) (1 + |x
 * dv/dx|) of gelu_tanh's gradient, v its argument, at -9.95. Below that nothing relative is
 * left. */
#define FADES 0x1p-109

double atto_tol(const char *op, atto_dtype dtype, int64_t n, double scale)
{
    if (!isfinite(scale)) return 0.0; /* infinities and NaN are compared exactly */
    const double k = (double)(roundings(op) + n - 1);
    const double relative = k * oracle_unit(ATTO_F32) * scale;
    const bool fades = dtype != ATTO_F16 && scale < FADES;
    return fades ? FADES : relative;
}
