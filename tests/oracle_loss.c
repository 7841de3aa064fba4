/* SPDX-License-Identifier: MIT */
/* Pointwise losses and nll_loss from their definitions. */
#include "oracle_loss.h"

#include <math.h>

/* log(1 + e^x) */
static double softplus(double x)
{
    return x > 0.0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

static double logistic(double x)
{
    return x > 0.0 ? 1.0 / (1.0 + exp(-x)) : exp(x) / (1.0 + exp(x));
}

/* Not 0 * log 0. */
static double t_log_t(double t)
{
    return t == 0.0 ? 0.0 : t * log(t);
}

static double sign_of(double d)
{
    return d > 0.0 ? 1.0 : d < 0.0 ? -1.0 : 0.0;
}

static oracle_sum of_value(double value)
{
    return (oracle_sum){ value, fabs(value) };
}

static oracle_sum value_of(atto_loss_kind kind, double x, double t, double a)
{
    const double d = fabs(x - t);
    switch (kind) {
    case ATTO_LOSS_L1:
        return of_value(d);
    case ATTO_LOSS_MSE:
        return of_value(d * d);
    case ATTO_LOSS_SMOOTH_L1:
        if (d < a) return of_value(d * d / (2.0 * a));
        return (oracle_sum){ d - a / 2.0, d };
    case ATTO_LOSS_HUBER:
        if (d <= a) return of_value(d * d / 2.0);
        return (oracle_sum){ a * (d - a / 2.0), a * d };
    case ATTO_LOSS_BCE_WITH_LOGITS:
        return (oracle_sum){ (1.0 - t) * softplus(x) + a * t * softplus(-x),
                             fabs(1.0 - t) * softplus(x) + fabs(a * t) * softplus(-x) };
    case ATTO_LOSS_KL_DIV:
        return (oracle_sum){ t_log_t(t) - t * x, fabs(t_log_t(t)) + fabs(t * x) };
    default:
        return of_value(exp(t) * (t - x));
    }
}

static oracle_sum slope_of(atto_loss_kind kind, bool of_target, double x, double t, double a)
{
    const double d = x - t, flip = of_target ? -1.0 : 1.0;
    switch (kind) {
    case ATTO_LOSS_L1:
        return of_value(flip * sign_of(d));
    case ATTO_LOSS_MSE:
        return of_value(flip * 2.0 * d);
    case ATTO_LOSS_SMOOTH_L1:
        if (isnan(d)) return of_value(d);
        return of_value(flip * (fabs(d) < a ? d / a : sign_of(d)));
    case ATTO_LOSS_HUBER:
        if (isnan(d)) return of_value(d);
        return of_value(flip * (fabs(d) < a ? d : a * sign_of(d)));
    case ATTO_LOSS_BCE_WITH_LOGITS:
        if (of_target)
            return (oracle_sum){ a * softplus(-x) - softplus(x),
                                 fabs(a) * fmax(-x, 0.0) + fmax(x, 0.0) +
                                     fabs(a - 1.0) * log1p(exp(-fabs(x))) };
        return (oracle_sum){ (1.0 - t) * logistic(x) - a * t * logistic(-x),
                             fabs(1.0 - t) * logistic(x) + fabs(a * t) * logistic(-x) };
    case ATTO_LOSS_KL_DIV:
        if (!of_target) return of_value(-t);
        if (t == 0.0) return of_value(0.0);
        return (oracle_sum){ log(t) + 1.0 - x, fabs(log(t)) + 1.0 + fabs(x) };
    default:
        if (!of_target) return of_value(-exp(t));
        return (oracle_sum){ exp(t) * (t - x + 1.0), exp(t) * (fabs(t - x) + 1.0) };
    }
}

oracle_sum oracle_loss(atto_loss_kind kind, double x, double t, double a, double w)
{
    const oracle_sum s = value_of(kind, x, t, a);
    return (oracle_sum){ w * s.value, fabs(w) * s.terms };
}

oracle_sum oracle_loss_grad(atto_loss_kind kind, bool of_target, double x, double t, double a,
                            double w, double g)
{
    const oracle_sum s = slope_of(kind, of_target, x, t, a);
    return (oracle_sum){ g * w * s.value, fabs(g * w) * s.terms };
}

int oracle_loss_kinks(atto_loss_kind kind, double a, double kinks[2])
{
    if (kind == ATTO_LOSS_L1) {
        kinks[0] = 0.0;
        return 1;
    }
    if (kind != ATTO_LOSS_SMOOTH_L1 && kind != ATTO_LOSS_HUBER) return 0;
    kinks[0] = a;
    kinks[1] = 0.0;
    return a == 0.0 || kind == ATTO_LOSS_SMOOTH_L1 ? 2 : 1;
}

/* ---- nll_loss ---- */

/* The weight of a position's label: 0 where it does not count, NaN where it is no class. */
static double weight_at(const oracle_nll *n, int64_t position)
{
    const double label = n->labels[position];
    if (n->has_ignore && label == (double)n->ignore) return 0.0;
    if (label < 0.0 || label >= (double)n->classes) return (double)NAN;
    return n->weight ? n->weight[(int64_t)label] : 1.0;
}

static bool counts(const oracle_nll *n, int64_t position)
{
    const double label = n->labels[position];
    return !(n->has_ignore && label == (double)n->ignore) && !isnan(weight_at(n, position));
}

static int64_t element_of(const oracle_nll *n, int64_t position, int64_t c)
{
    return (position / n->step * n->classes + c) * n->step + position % n->step;
}

void oracle_nll_loss(const oracle_nll *n, oracle_nll_answer *out)
{
    const int64_t positions = n->outer * n->step;
    const bool mean = n->reduction == ATTO_REDUCTION_MEAN;
    double sum = 0.0;
    out->total = out->loss_terms = 0.0;
    for (int64_t p = 0; p < positions; p++) {
        const double w = weight_at(n, p);
        out->each[p] = w; /* 0 or NaN */
        if (counts(n, p)) {
            out->each[p] = -w * n->x[element_of(n, p, (int64_t)n->labels[p])];
            out->total += w;
        }
        sum += out->each[p];
        out->loss_terms += fabs(out->each[p]);
    }
    out->loss = mean ? sum / out->total : sum;
    if (mean) out->loss_terms /= out->total;
    for (int64_t i = 0; i < positions * n->classes; i++) out->dx[i] = 0.0;
    for (int64_t p = 0; p < positions; p++) {
        const double g = n->dloss[n->reduction == ATTO_REDUCTION_NONE ? p : 0];
        if (!counts(n, p)) continue;
        out->dx[element_of(n, p, (int64_t)n->labels[p])] =
            -g * weight_at(n, p) / (mean ? out->total : 1.0);
    }
}
