/* SPDX-License-Identifier: MIT */
/* Optimisers in double, with a running error analysis of the f32 evaluation.
 *
 * Each rule below takes numbers with bounds and returns the result with its bound: what the
 * operands' errors become, and u = 2^-24 of the result for each rounding. A constant (beta, lr)
 * that is rounded to f32 counts as a rounding of its product. Of OpenCL's functions division has 5
 * u, sqrt and rsqrt 6 u, expm1 6 u (tolerance.c). Products of two errors are left out: they are
 * 2^-24 times smaller. */
#include "oracle_optim.h"

#include <math.h>

#define U 0x1p-24

/* Below this products of f32 round absolutely, or are flushed. */
#define SMALLEST 0x1p-126

static oracle_number exactly(double value)
{
    return (oracle_number){ value, 0.0 };
}

static oracle_number add(oracle_number a, oracle_number b)
{
    const double sum = a.value + b.value;
    return (oracle_number){ sum, a.error + b.error + U * fabs(sum) };
}

/* a b with so many roundings. */
static oracle_number times(oracle_number a, oracle_number b, double roundings)
{
    const double product = a.value * b.value;
    return (oracle_number){ product, fabs(a.value) * b.error + fabs(b.value) * a.error +
                                         roundings * U * fabs(product) + SMALLEST };
}

/* A constant, itself rounded, times a number. */
static oracle_number scaled(double constant, oracle_number b)
{
    return times((oracle_number){ constant, U * fabs(constant) }, b, 1.0);
}

static oracle_number minus(oracle_number a)
{
    return (oracle_number){ -a.value, a.error };
}

/* The root of a number >= 0: its slope times the error, or the root of the error near 0. */
static oracle_number root(oracle_number a)
{
    const double r = sqrt(fmax(a.value, 0.0));
    const double passed = fmin(r > 0.0 ? a.error / r : INFINITY, sqrt(a.error));
    return (oracle_number){ r, passed + 6.0 * U * r };
}

static oracle_number over(oracle_number a, oracle_number b)
{
    const double q = a.value / b.value;
    return (oracle_number){ q, (a.error + fabs(q) * b.error) / fabs(b.value) + 5.0 * U * fabs(q) };
}

/* m + w (g - m) */
static oracle_number average(oracle_number m, oracle_number g, double w)
{
    return add(m, scaled(w, add(g, minus(m))));
}

/* keep v + w g g */
static oracle_number square(oracle_number v, oracle_number g, double keep, double w)
{
    return add(scaled(keep, v), times(scaled(w, g), g, 1.0));
}

/* 1 - beta^steps: the product steps ln beta has 2 u, expm1 6; both are relative, since e^x - 1 is
 * no steeper than x for x < 0. */
static oracle_number correction(double beta, int steps)
{
    const double c = 1.0 - pow(beta, steps);
    return (oracle_number){ c, 8.0 * U * c };
}

static oracle_number sgd(const oracle_optim *o, oracle_element *e, oracle_number g)
{
    if (o->momentum == 0.0) return g;
    e->buffer =
        e->steps == 1 ? g : add(scaled(o->momentum, e->buffer), scaled(1.0 - o->dampening, g));
    return o->nesterov ? add(g, scaled(o->momentum, e->buffer)) : e->buffer;
}

static oracle_number adam(const oracle_optim *o, oracle_element *e, oracle_number g)
{
    e->mean = average(e->mean, g, 1.0 - o->beta1);
    e->square = square(e->square, g, o->beta2, 1.0 - o->beta2);
    const oracle_number unbiased = over(root(e->square), root(correction(o->beta2, e->steps)));
    const oracle_number below = add(unbiased, (oracle_number){ o->eps, U * o->eps });
    return over(over(e->mean, below), correction(o->beta1, e->steps));
}

static oracle_number rmsprop(const oracle_optim *o, oracle_element *e, oracle_number g)
{
    oracle_number variance = e->square = square(e->square, g, o->beta2, 1.0 - o->beta2);
    if (o->centered) {
        e->mean = average(e->mean, g, 1.0 - o->beta2);
        variance = add(e->square, minus(times(e->mean, e->mean, 1.0)));
    }
    const oracle_number d = over(g, add(root(variance), (oracle_number){ o->eps, U * o->eps }));
    if (o->momentum == 0.0) return d;
    e->buffer = add(scaled(o->momentum, e->buffer), d);
    return e->buffer;
}

void oracle_optim_step(const oracle_optim *o, oracle_element *e, double lr, double g, double factor,
                       double factor_roundings)
{
    const double sign = o->maximize ? -1.0 : 1.0;
    const oracle_number f = { sign * factor, factor_roundings * U * fabs(factor) };
    oracle_number d = times(exactly(g), f, 1.0);
    e->steps++;
    if (o->method == ORACLE_ADAMW)
        e->p = times(e->p, (oracle_number){ 1.0 - lr * o->weight_decay, 2.0 * U }, 1.0);
    else if (o->weight_decay != 0.0)
        d = add(d, scaled(o->weight_decay, e->p));
    if (o->method == ORACLE_SGD) d = sgd(o, e, d);
    if (o->method == ORACLE_ADAM || o->method == ORACLE_ADAMW) d = adam(o, e, d);
    if (o->method == ORACLE_RMSPROP) d = rmsprop(o, e, d);
    /* lr: rounded, and once more by the group's factor */
    e->p = add(e->p, minus(times((oracle_number){ lr, 2.0 * U * lr }, d, 1.0)));
}
