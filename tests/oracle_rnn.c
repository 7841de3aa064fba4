/* SPDX-License-Identifier: MIT */
/* Recurrent cells and layers from their definitions.
 *
 * What a result may be off by is counted in u = 2^-24 of f32:
 *
 *   sigmoid  exp 6, sum 1, division 5, and what its argument is off by times s (1 - s)
 *   tanh     10 of itself, and what its argument is off by times 1 - t^2
 *   sums and products one of their result, and what their parts are off by; 1 - s of a stored s
 *   one, 1 - t^2 one and one of t^2
 */
#include "oracle_rnn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SIGMOID 12.0
#define TANH    10.0

/* A number and what it is off by. */
typedef struct part {
    double v, off;
} part;

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static part exact(double v)
{
    return (part){ v, 0.0 };
}

static part plus(part a, part b)
{
    const double v = a.v + b.v;
    return (part){ v, a.off + b.off + fabs(v) };
}

static part times(part a, part b)
{
    const double v = a.v * b.v;
    return (part){ v, fabs(a.v) * b.off + fabs(b.v) * a.off + fabs(v) };
}

static part sigmoid_of(part x)
{
    const double s = sigmoid(x.v);
    return (part){ s, SIGMOID * s + s * sigmoid(-x.v) * x.off };
}

static part tanh_of(part x)
{
    const double t = tanh(x.v);
    return (part){ t, TANH * fabs(t) + (1.0 - t * t) * x.off };
}

/* 1 - s, and 1 - t^2. */
static part rest_of(part s)
{
    return plus(exact(1.0), (part){ -s.v, s.off });
}

static part slope_of(part t)
{
    const part square = times(t, t);
    return plus(exact(1.0), (part){ -square.v, square.off });
}

static void put(oracle_off to, int64_t at, part p)
{
    to.value[at] = p.v;
    to.off[at] = p.off;
}

/* Feature j of part k of so many of row r. */
static int64_t gate_at(const oracle_cell *o, int64_t r, int64_t parts, int64_t k, int64_t j)
{
    return (r * parts + k) * o->hidden + j;
}

static part gradient_at(const double *of, int64_t at)
{
    return exact(of ? of[at] : 0.0);
}

/* ---- one step ---- */

static void lstm_one(const oracle_cell *o, int64_t r, int64_t j, oracle_off y, oracle_off cy,
                     oracle_off gates)
{
    part g[4];
    for (int k = 0; k < 4; k++) {
        const int64_t at = gate_at(o, r, 4, k, j);
        g[k] = k == 2 ? tanh_of(exact(o->x[at])) : sigmoid_of(exact(o->x[at]));
        put(gates, at, g[k]);
    }
    const int64_t at = r * o->hidden + j;
    const part state = plus(times(g[1], exact(o->state[at])), times(g[0], g[2]));
    put(cy, at, state);
    put(y, at, times(g[3], tanh_of(state)));
}

static void lstm_one_back(const oracle_cell *o, int64_t r, int64_t j, oracle_off dx, oracle_off dc)
{
    part g[4];
    for (int k = 0; k < 4; k++) g[k] = exact(o->gates[gate_at(o, r, 4, k, j)]);
    const int64_t at = r * o->hidden + j;
    const part t = tanh_of(exact(o->cy[at])), c = exact(o->state[at]);
    const part dy = gradient_at(o->dy, at), dcy = gradient_at(o->dcy, at);
    const part s = plus(dcy, times(times(dy, g[3]), slope_of(t)));
    const part grads[4] = {
        times(times(s, g[2]), times(g[0], rest_of(g[0]))),
        times(times(s, c), times(g[1], rest_of(g[1]))),
        times(times(s, g[0]), slope_of(g[2])),
        times(times(dy, t), times(g[3], rest_of(g[3]))),
    };
    for (int k = 0; k < 4; k++) put(dx, gate_at(o, r, 4, k, j), grads[k]);
    put(dc, at, times(s, g[1]));
}

static void gru_one(const oracle_cell *o, int64_t r, int64_t j, oracle_off y, oracle_off gates)
{
    part x[3], u[3];
    for (int k = 0; k < 3; k++) {
        x[k] = exact(o->x[gate_at(o, r, 3, k, j)]);
        u[k] = exact(o->u[gate_at(o, r, 3, k, j)]);
    }
    const int64_t at = r * o->hidden + j;
    const part reset = sigmoid_of(plus(x[0], u[0])), z = sigmoid_of(plus(x[1], u[1]));
    const part n = tanh_of(plus(x[2], times(reset, u[2])));
    const part way =
        plus(exact(o->state[at]), exact(-n.v)); /* h - n, of which n moves y as below */
    const part move = times(z, way);
    part all = plus(exact(n.v), move);
    all.off += (1.0 - z.v) * n.off;
    put(y, at, all);
    const part four[4] = { reset, z, n, u[2] };
    for (int k = 0; k < 4; k++) put(gates, gate_at(o, r, 4, k, j), four[k]);
}

static void gru_one_back(const oracle_cell *o, int64_t r, int64_t j, oracle_off dx, oracle_off du,
                         oracle_off dh)
{
    part g[4];
    for (int k = 0; k < 4; k++) g[k] = exact(o->gates[gate_at(o, r, 4, k, j)]);
    const int64_t at = r * o->hidden + j;
    const part dy = gradient_at(o->dy, at);
    const part dn = times(times(dy, rest_of(g[1])), slope_of(g[2]));
    const part way = plus(exact(o->state[at]), exact(-g[2].v));
    const part dz = times(times(dy, way), times(g[1], rest_of(g[1])));
    const part dr = times(times(dn, g[3]), times(g[0], rest_of(g[0])));
    const part of_x[3] = { dr, dz, dn }, of_u[3] = { dr, dz, times(dn, g[0]) };
    for (int k = 0; k < 3; k++) {
        put(dx, gate_at(o, r, 3, k, j), of_x[k]);
        put(du, gate_at(o, r, 3, k, j), of_u[k]);
    }
    put(dh, at, times(dy, g[1]));
}

void oracle_lstm_forward(const oracle_cell *o, oracle_off y, oracle_off cy, oracle_off gates)
{
    for (int64_t r = 0; r < o->rows; r++)
        for (int64_t j = 0; j < o->hidden; j++) lstm_one(o, r, j, y, cy, gates);
}

void oracle_lstm_backward(const oracle_cell *o, oracle_off dx, oracle_off dc)
{
    for (int64_t r = 0; r < o->rows; r++)
        for (int64_t j = 0; j < o->hidden; j++) lstm_one_back(o, r, j, dx, dc);
}

void oracle_gru_forward(const oracle_cell *o, oracle_off y, oracle_off gates)
{
    for (int64_t r = 0; r < o->rows; r++)
        for (int64_t j = 0; j < o->hidden; j++) gru_one(o, r, j, y, gates);
}

void oracle_gru_backward(const oracle_cell *o, oracle_off dx, oracle_off du, oracle_off dh)
{
    for (int64_t r = 0; r < o->rows; r++)
        for (int64_t j = 0; j < o->hidden; j++) gru_one_back(o, r, j, dx, du, dh);
}

/* ---- layers ---- */

/* One pass: its input [length, batches, in], and its states, which it moves. */
typedef struct pass {
    const oracle_layers *o;
    const double *x;
    int64_t in;
    const double *const *weights;
    double *h, *c; /* of all batches, now */
} pass;

/* Row k of a weight times a vector, and its bias. */
static double product(const double *w, const double *b, int64_t k, const double *x, int64_t n)
{
    double sum = b ? b[k] : 0.0;
    for (int64_t i = 0; i < n; i++) sum += w[k * n + i] * x[i];
    return sum;
}

/* Gate k of feature j: of the input and of the state. */
static void gate_parts(const pass *p, const double *x, const double *h, int64_t k, int64_t j,
                       double *of_x, double *of_h)
{
    const int64_t row = k * p->o->hidden + j;
    *of_x = product(p->weights[0], p->weights[2], row, x, p->in);
    *of_h = product(p->weights[1], p->weights[3], row, h, p->o->hidden);
}

static void step_one(const pass *p, const double *x, const double *h, double *c, int64_t j,
                     double *out)
{
    double of_x[4], of_h[4];
    for (int64_t k = 0; k < (p->o->is_lstm ? 4 : 3); k++)
        gate_parts(p, x, h, k, j, &of_x[k], &of_h[k]);
    if (p->o->is_lstm) {
        *c = sigmoid(of_x[1] + of_h[1]) * *c + sigmoid(of_x[0] + of_h[0]) * tanh(of_x[2] + of_h[2]);
        *out = sigmoid(of_x[3] + of_h[3]) * tanh(*c);
    } else {
        const double r = sigmoid(of_x[0] + of_h[0]), z = sigmoid(of_x[1] + of_h[1]);
        *out = (1.0 - z) * tanh(of_x[2] + r * of_h[2]) + z * h[j];
    }
}

/* Step t of every batch; y [batches, hidden] with that step from row to row. */
static void step(pass *p, int64_t t, double *y, int64_t y_step)
{
    const oracle_layers *o = p->o;
    double *old = calloc((size_t)o->hidden, sizeof *old);
    for (int64_t n = 0; n < o->batches; n++) {
        double *h = p->h + n * o->hidden;
        memcpy(old, h, (size_t)o->hidden * sizeof *old);
        for (int64_t j = 0; j < o->hidden; j++) {
            double unused = 0.0;
            step_one(p, p->x + (t * o->batches + n) * p->in, old,
                     p->c ? p->c + n * o->hidden + j : &unused, j, &h[j]);
            y[n * y_step + j] = h[j];
        }
    }
    free(old);
}

static void start_states(const double *given, int64_t n, double *states)
{
    if (given)
        memcpy(states, given, (size_t)n * sizeof *states);
    else
        memset(states, 0, (size_t)n * sizeof *states);
}

void oracle_layers_run(const oracle_layers *o, double *y, double *hy, double *cy)
{
    const int64_t states = o->batches * o->hidden, width = o->directions * o->hidden;
    const int64_t numel = o->length * o->batches * width;
    double *in = calloc((size_t)numel + 1, sizeof *in);
    for (int i = 0; i < o->layers * o->directions; i++) {
        const int layer = i / o->directions, direction = i % o->directions;
        pass p = { .o = o,
                   .x = layer == 0 ? o->x : in,
                   .in = layer == 0 ? o->in : width,
                   .weights = o->weights[i],
                   .h = hy + i * states,
                   .c = o->is_lstm ? cy + i * states : NULL };
        if (direction == 0 && layer > 0) memcpy(in, y, (size_t)numel * sizeof *in);
        start_states(o->h ? o->h + i * states : NULL, states, p.h);
        if (p.c) start_states(o->c ? o->c + i * states : NULL, states, p.c);
        for (int64_t k = 0; k < o->length; k++) {
            const int64_t t = direction == 0 ? k : o->length - 1 - k;
            step(&p, t, y + t * o->batches * width + direction * o->hidden, width);
        }
    }
    free(in);
}
