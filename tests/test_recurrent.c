/* SPDX-License-Identifier: MIT */
/* LSTM and GRU on a tape, cells and layers: PyTorch's numbers (golden/rnn.txt, float64) for every
 * option; the double oracle over time and its central differences; what modules add. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "golden.h"
#include "oracle_rnn.h"

#define MOST_PARAMS  40
#define MOST_PARTS   96
#define MOST_NUMBERS 256

typedef struct part {
    char name[32];
    int64_t count;
    double values[MOST_NUMBERS];
} part;

typedef struct golden_case {
    bool lstm, cell, batched, first, bias, two_ways;
    int layers;
    bool states;
    int given;
    int64_t length, batches, in, hidden;
    int params, part_count;
    part parts[MOST_PARTS];
} golden_case;

static atto_tape *tape;

static int open_tape(void **state)
{
    (void)state;
    return atto_tape_create(test_dev, &tape) == ATTO_OK ? 0 : -1;
}

static int close_tape(void **state)
{
    (void)state;
    atto_tape_free(tape);
    return 0;
}

/* ---- the file ---- */

static bool read_case(FILE *file, golden_case *c)
{
    int n[14];
    if (!golden_case_begins(file)) return false;
    for (int i = 0; i < 14; i++)
        if (fscanf(file, "%d", &n[i]) != 1) golden_malformed("options");
    *c = (golden_case){ .lstm = n[0],
                        .cell = n[1],
                        .batched = n[2],
                        .first = n[3],
                        .bias = n[4],
                        .two_ways = n[5],
                        .layers = n[6],
                        .states = n[7],
                        .given = n[8],
                        .length = n[9],
                        .batches = n[10],
                        .in = n[11],
                        .hidden = n[12],
                        .params = n[13] };
    const int results = 2 + c->lstm, inputs = 1 + (c->states ? 1 + c->lstm : 0);
    const int given = (c->given & 1) + (c->given >> 1 & 1) + (c->given >> 2 & 1);
    c->part_count = 2 * c->params + 2 * inputs + given + results;
    if (c->part_count > MOST_PARTS) golden_malformed("too many parts");
    for (int i = 0; i < c->part_count; i++)
        c->parts[i].count = golden_named(file, c->parts[i].name, c->parts[i].values);
    return true;
}

static const part *find_part(const golden_case *c, const char *name)
{
    for (int i = 0; i < c->part_count; i++)
        if (strcmp(c->parts[i].name, name) == 0) return &c->parts[i];
    return NULL;
}

static const part *part_of(const golden_case *c, const char *name)
{
    const part *p = find_part(c, name);
    if (!p) golden_malformed(name);
    return p;
}

/* ---- comparing ----
 *
 * A gate is a sum of I + H + 2 products, each rounded, with a function of 12 roundings behind
 * it; a state has 4 more: under 32 roundings a step and layer. What comes from a state goes
 * through one gate's slope, at most 1, times weights of at most 1 from each of H features, H <=
 * 5. 5 steps and 5 layers at most, each way: a rounding's effect is not larger than the numbers
 * that meet on its way, which are below 16. Two ways of 10 stages with 32 roundings each, of
 * numbers up to 16: 2 * 10 * 32 * 16 * 2^-24 of the largest number of a tensor, and of 1. Any
 * option left out does a thousand times that. */
#define ROUNDINGS (2.0 * 10.0 * 32.0 * 16.0)

static void expect_numbers(const char *what, int number, const double *got, const double *want,
                           int64_t n, double roundings)
{
    double largest = 1.0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(want[i]));
    const double allowed = roundings * FLT_EPSILON / 2 * largest;
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= allowed))
            fail_msg("case %d, %s[%d]: got %.9g, expected %.9g, allowed %.2g", number, what, (int)i,
                     got[i], want[i], allowed);
}

static void expect_tensor(const char *what, int number, const atto_tensor *t, const part *want)
{
    test_tensor copy;
    double got[MOST_NUMBERS];
    test_tensor_make(&copy, test_dev, ATTO_F32, atto_shape_of(t->rank, t->shape), LAYOUT_DENSE);
    assert_int_equal(copy.numel, want->count);
    MUST(atto_tensor_copy(&copy.view, t));
    test_tensor_get(&copy, got);
    expect_numbers(what, number, got, want->values, want->count, ROUNDINGS);
    test_tensor_drop(&copy);
}

static void expect_var(const char *what, int number, atto_var v, const part *want)
{
    atto_tensor t;
    MUST(atto_var_tensor(tape, v, &t));
    expect_tensor(what, number, &t, want);
}

static void expect_grad(const char *what, int number, atto_var v, const part *want)
{
    atto_tensor t;
    MUST(atto_var_grad(tape, v, &t));
    expect_tensor(what, number, &t, want);
}

/* ---- running ---- */

static atto_status put_param(void *case_, const char *key, atto_param *p)
{
    float values[MOST_NUMBERS];
    const part *from = part_of(case_, key);
    const atto_tensor t = atto_param_value(p);
    assert_int_equal(atto_tensor_numel(&t), from->count);
    for (int64_t i = 0; i < from->count; i++) values[i] = (float)from->values[i];
    return atto_param_write(p, values);
}

static atto_module *make_module(golden_case *c)
{
    const atto_rnn_cell_options of_cell = { .no_bias = !c->bias };
    const atto_rnn_module_options options = { .layers = c->layers,
                                              .no_bias = !c->bias,
                                              .batch_first = c->first,
                                              .bidirectional = c->two_ways };
    atto_module *m;
    if (c->cell)
        MUST(c->lstm ? atto_lstm_cell_create(test_dev, c->in, c->hidden, &of_cell, &m)
                     : atto_gru_cell_create(test_dev, c->in, c->hidden, &of_cell, &m));
    else
        MUST(c->lstm ? atto_lstm_create(test_dev, c->in, c->hidden, &options, &m)
                     : atto_gru_create(test_dev, c->in, c->hidden, &options, &m));
    MUST(atto_module_params(m, put_param, c));
    return m;
}

static atto_shape input_shape(const golden_case *c)
{
    const int64_t n = c->batches, l = c->length;
    if (c->cell) return c->batched ? atto_shape2(n, c->in) : atto_shape1(c->in);
    if (!c->batched) return atto_shape2(l, c->in);
    return c->first ? atto_shape3(n, l, c->in) : atto_shape3(l, n, c->in);
}

static atto_shape state_shape(const golden_case *c)
{
    const int64_t passes = c->layers * (1 + c->two_ways);
    if (c->cell) return c->batched ? atto_shape2(c->batches, c->hidden) : atto_shape1(c->hidden);
    return c->batched ? atto_shape3(passes, c->batches, c->hidden) : atto_shape2(passes, c->hidden);
}

static atto_var make_input(test_tensor *t, atto_shape shape, const part *p)
{
    test_tensor_make(t, test_dev, ATTO_F32, shape, LAYOUT_DENSE);
    test_tensor_put(t, p->values);
    return atto_borrow(tape, &t->view, true);
}

/* The sum of a result's elements, each times its gradient: what backward starts from. */
static atto_var weighted(atto_var v, const part *p, atto_var sum)
{
    float values[MOST_NUMBERS];
    atto_tensor t;
    MUST(atto_var_tensor(tape, v, &t));
    for (int64_t i = 0; i < p->count; i++) values[i] = (float)p->values[i];
    const atto_var dy = atto_input(tape, ATTO_F32, atto_shape_of(t.rank, t.shape), values);
    const atto_var own = atto_reduce(tape, ATTO_REDUCE_SUM, atto_mul(tape, v, dy), NULL);
    return sum.generation ? atto_add(tape, sum, own) : own;
}

typedef struct parameter_list {
    atto_param *list[MOST_PARAMS];
    int count;
} parameter_list;

static atto_status list_param(void *list_, const char *key, atto_param *p)
{
    (void)key;
    parameter_list *list = list_;
    list->list[list->count++] = p;
    return ATTO_OK;
}

static void run_case(golden_case *c, int number)
{
    atto_module *m = make_module(c);
    test_tensor t[3] = { { .numel = 0 } };
    atto_var in[3], hy, cy, sum = { 0, 0 };
    const int inputs = c->states ? 2 + c->lstm : 1;
    const char *const names[] = { "x", "h", "c" }, *const dnames[] = { "dy", "dhy", "dcy" };
    for (int i = 0; i < inputs; i++)
        in[i] = make_input(&t[i], i == 0 ? input_shape(c) : state_shape(c), part_of(c, names[i]));
    const atto_rnn_states states = { .h = c->states ? &in[1] : NULL,
                                     .c = c->states && c->lstm ? &in[2] : NULL,
                                     .hy = &hy,
                                     .cy = c->lstm ? &cy : NULL };
    const atto_var y = atto_rnn_apply(tape, m, in[0], &states);
    MUST(atto_tape_status(tape));
    expect_var("y", number, y, part_of(c, "y"));
    expect_var("hy", number, hy, part_of(c, "hy"));
    if (c->lstm) expect_var("cy", number, cy, part_of(c, "cy"));
    const atto_var results[] = { y, hy, c->lstm ? cy : hy };
    for (int i = 0; i < 3; i++)
        if (c->given >> i & 1) sum = weighted(results[i], part_of(c, dnames[i]), sum);
    MUST(atto_backward(tape, sum));
    const part *grads = &c->parts[c->part_count - inputs - c->params];
    for (int i = 0; i < inputs; i++) expect_grad(names[i], number, in[i], &grads[i]);
    parameter_list params = { .count = 0 };
    MUST(atto_module_params(m, list_param, &params));
    assert_int_equal(params.count, c->params);
    for (int i = 0; i < params.count; i++) {
        atto_tensor got;
        MUST(atto_param_grad(params.list[i], &got));
        expect_tensor(c->parts[i].name, number, &got, &grads[inputs + i]);
    }
    MUST(atto_tape_end(tape));
    for (int i = 0; i < inputs; i++) test_tensor_drop(&t[i]);
    atto_module_free(m);
}

static void every_option_matches_pytorch(void **state)
{
    (void)state;
    static golden_case c;
    int count = 0;
    FILE *file = golden_open("rnn", MOST_NUMBERS);
    assert_non_null(file);
    for (; read_case(file, &c); count++)
        if (!test_in_disguise() || count % 4 == 0) run_case(&c, count);
    fclose(file);
    assert_int_equal(count, 50);
}

/* ---- the definition over time ---- */

/* A network of random numbers, for the oracle and for the tape. */
typedef struct scene {
    oracle_layers o;
    bool batch_first; /* of the tape; y and x of the oracle have steps first */
    double x[MOST_NUMBERS], h[MOST_NUMBERS], c[MOST_NUMBERS];
    double dy[MOST_NUMBERS], dhy[MOST_NUMBERS], dcy[MOST_NUMBERS];
    double weights[4][4][MOST_NUMBERS];
    const double *lists[4][4];
} scene;

enum { LENGTH = 4, BATCHES = 2, IN = 3, HIDDEN = 5 };

static int passes_of(const scene *s)
{
    return s->o.layers * s->o.directions;
}

static int64_t gates_of(const scene *s)
{
    return s->o.is_lstm ? 4 : 3;
}

static int64_t states_of(const scene *s)
{
    return passes_of(s) * BATCHES * HIDDEN;
}

static int64_t outputs_of(const scene *s)
{
    return LENGTH * BATCHES * s->o.directions * HIDDEN;
}

static int64_t weight_columns(const scene *s, int pass, int k)
{
    if (k >= 2) return 1;
    return k == 1 ? HIDDEN : pass < s->o.directions ? IN : s->o.directions * HIDDEN;
}

static void begin(scene *s, bool is_lstm, int layers, int directions, bool batch_first)
{
    memset(s, 0, sizeof *s);
    s->batch_first = batch_first;
    s->o = (oracle_layers){ .is_lstm = is_lstm,
                            .length = LENGTH,
                            .batches = BATCHES,
                            .in = IN,
                            .hidden = HIDDEN,
                            .layers = layers,
                            .directions = directions,
                            .x = s->x,
                            .weights = s->lists,
                            .h = s->h,
                            .c = s->c };
    double *const all[] = { s->x, s->h, s->c, s->dy, s->dhy, s->dcy };
    for (int i = 0; i < COUNT_OF(all); i++)
        test_uniform(40 + (uint64_t)i, -1.0, 1.0, ATTO_F32, all[i], MOST_NUMBERS);
    for (int p = 0; p < passes_of(s); p++)
        for (int k = 0; k < 4; k++) {
            test_uniform(50 + (uint64_t)(4 * p + k), -1.0, 1.0, ATTO_F32, s->weights[p][k],
                         MOST_NUMBERS);
            s->lists[p][k] = s->weights[p][k];
        }
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* What is differentiated: all results, weighted. */
static double oracle_value(const scene *s)
{
    double y[MOST_NUMBERS], hy[MOST_NUMBERS], cy[MOST_NUMBERS];
    oracle_layers_run(&s->o, y, hy, cy);
    return dot(y, s->dy, outputs_of(s)) + dot(hy, s->dhy, states_of(s)) +
           (s->o.is_lstm ? dot(cy, s->dcy, states_of(s)) : 0.0);
}

/* Central differences of n numbers, with a step h of 2^-14: off by h^2 / 6 of a third
 * derivative. */
static void differences(const scene *s, double *at, int64_t n, double *out)
{
    const double h = 0x1p-14;
    for (int64_t i = 0; i < n; i++) {
        const double middle = at[i];
        at[i] = middle + h;
        const double up = oracle_value(s);
        at[i] = middle - h;
        out[i] = (up - oracle_value(s)) / (2.0 * h);
        at[i] = middle;
    }
}

static atto_var put(const double *values, atto_shape shape, test_tensor *t)
{
    test_tensor_make(t, test_dev, ATTO_F32, shape, LAYOUT_DENSE);
    test_tensor_put(t, values);
    return atto_borrow(tape, &t->view, true);
}

/* [steps, batches, n] as the tape's network has it. */
static atto_var turned(const scene *s, atto_var v)
{
    return s->batch_first ? atto_transpose(tape, v, 0, 1) : v;
}

static void expect_values(const char *what, atto_var v, const double *want, int64_t n)
{
    float got[MOST_NUMBERS];
    double wide[MOST_NUMBERS];
    MUST(atto_tape_status(tape));
    MUST(atto_var_read(tape, v, got));
    for (int64_t i = 0; i < n; i++) wide[i] = (double)got[i];
    expect_numbers(what, 0, wide, want, n, ROUNDINGS);
}

/* Beside the tape's roundings the step's error: the third derivative of sums of 40 outputs, whose
 * slopes grow by a factor of at most H in each of 4 steps, is below 25000; 2^-28 / 6 of it is
 * 16e-6, which are 2^-16. What is left out does more: weights are of size 1. */
static void expect_slopes(const char *what, const scene *s, atto_var v, double *at, int64_t n)
{
    atto_tensor t;
    float got[MOST_NUMBERS];
    double want[MOST_NUMBERS], wide[MOST_NUMBERS];
    MUST(atto_var_grad(tape, v, &t));
    MUST(atto_tensor_read(&t, got));
    differences(s, at, n, want);
    for (int64_t i = 0; i < n; i++) wide[i] = (double)got[i];
    expect_numbers(what, 0, wide, want, n, ROUNDINGS + 0x1p8);
}

static atto_var sum_of(atto_var v, const double *by, atto_shape shape)
{
    float floats[MOST_NUMBERS];
    const atto_tensor like = atto_tensor_of(NULL, ATTO_F32, shape, 0);
    for (int64_t i = 0; i < atto_tensor_numel(&like); i++) floats[i] = (float)by[i];
    const atto_var product = atto_mul(tape, v, atto_input(tape, ATTO_F32, shape, floats));
    return atto_reduce(tape, ATTO_REDUCE_SUM, product, NULL);
}

static void check_definition(bool is_lstm, int layers, int directions, bool batch_first)
{
    scene s;
    begin(&s, is_lstm, layers, directions, batch_first);
    const int passes = passes_of(&s);
    const int64_t rows = gates_of(&s) * HIDDEN;
    const atto_shape states = atto_shape3(passes, BATCHES, HIDDEN);
    const atto_shape outputs = atto_shape3(LENGTH, BATCHES, directions * HIDDEN);
    test_tensor tx, th, tc, tw[4][4];
    atto_var w[4][4], hy, cy;
    atto_rnn_weights weights[4];
    const atto_var x = put(s.x, atto_shape3(LENGTH, BATCHES, IN), &tx);
    const atto_var h = put(s.h, states, &th), c = put(s.c, states, &tc);
    for (int p = 0; p < passes; p++) {
        for (int k = 0; k < 4; k++)
            w[p][k] = put(s.weights[p][k],
                          k < 2 ? atto_shape2(rows, weight_columns(&s, p, k)) : atto_shape1(rows),
                          &tw[p][k]);
        weights[p] = (atto_rnn_weights){ w[p][0], w[p][1], &w[p][2], &w[p][3], { 0 } };
    }
    const atto_rnn_options options = { .layers = layers,
                                       .bidirectional = directions == 2,
                                       .batch_first = batch_first,
                                       .h = &h,
                                       .c = is_lstm ? &c : NULL,
                                       .hy = &hy,
                                       .cy = is_lstm ? &cy : NULL };
    const atto_var in = turned(&s, x);
    const atto_var y = turned(&s, is_lstm ? atto_lstm(tape, in, weights, &options)
                                          : atto_gru(tape, in, weights, &options));
    double want_y[MOST_NUMBERS], want_h[MOST_NUMBERS], want_c[MOST_NUMBERS];
    oracle_layers_run(&s.o, want_y, want_h, want_c);
    expect_values("y", y, want_y, outputs_of(&s));
    expect_values("hy", hy, want_h, states_of(&s));
    if (is_lstm) expect_values("cy", cy, want_c, states_of(&s));

    atto_var sum = atto_add(tape, sum_of(y, s.dy, outputs), sum_of(hy, s.dhy, states));
    if (is_lstm) sum = atto_add(tape, sum, sum_of(cy, s.dcy, states));
    MUST(atto_backward(tape, sum));
    expect_slopes("x", &s, x, s.x, LENGTH * BATCHES * IN);
    expect_slopes("h", &s, h, s.h, states_of(&s));
    if (is_lstm) expect_slopes("c", &s, c, s.c, states_of(&s));
    for (int p = 0; p < passes; p++)
        for (int k = 0; k < 4; k++)
            expect_slopes("a weight", &s, w[p][k], s.weights[p][k],
                          rows * weight_columns(&s, p, k));
    MUST(atto_tape_end(tape));
    test_tensor_drop(&tx), test_tensor_drop(&th), test_tensor_drop(&tc);
    for (int p = 0; p < passes; p++)
        for (int k = 0; k < 4; k++) test_tensor_drop(&tw[p][k]);
}

static void layers_match_their_definition(void **state)
{
    (void)state;
    for (int lstm = 0; lstm < 2; lstm++)
        for (int first = 0; first < 2; first++) {
            check_definition(lstm == 1, 1, 1, first == 1);
            if (test_in_disguise()) continue;
            check_definition(lstm == 1, 1, 2, first == 1);
            check_definition(lstm == 1, 2, 1, first == 1);
            check_definition(lstm == 1, 2, 2, first == 1);
        }
}

/* ---- larger ones ----
 *
 * Sizes that vectors and threads share. All gradients are judged at once, by the slope along a
 * direction of random numbers in which everything moves. */

typedef struct large {
    oracle_layers o;
    double *x, *states[2]; /* h, c */
    double *weights[4][4], *moves[4][4];
    double *dy, *move_x, *move_states[2];
    const double *lists[4][4];
} large;

enum { LARGE_L = 12, LARGE_N = 9, LARGE_IN = 33, LARGE_H = 40, LARGE_PASSES = 4 };
enum {
    LARGE_STATES = LARGE_PASSES * LARGE_N * LARGE_H,
    LARGE_OUT = LARGE_L * LARGE_N * 2 * LARGE_H
};

static double *random_numbers(uint64_t seed, double most, int64_t n)
{
    double *out = test_doubles(n);
    test_uniform(seed, -most, most, ATTO_F32, out, n);
    return out;
}

static int64_t large_columns(int pass, int k)
{
    return k >= 2 ? 1 : k == 1 ? LARGE_H : pass < 2 ? LARGE_IN : 2 * LARGE_H;
}

static void large_begin(large *s, bool lstm)
{
    memset(s, 0, sizeof *s);
    s->x = random_numbers(1, 1.0, LARGE_L * LARGE_N * LARGE_IN);
    s->move_x = random_numbers(2, 1.0, LARGE_L * LARGE_N * LARGE_IN);
    s->dy = random_numbers(3, 1.0, LARGE_OUT);
    for (int i = 0; i < 2; i++) {
        s->states[i] = random_numbers(4 + (uint64_t)i, 1.0, LARGE_STATES);
        s->move_states[i] = random_numbers(6 + (uint64_t)i, 1.0, LARGE_STATES);
    }
    for (int p = 0; p < LARGE_PASSES; p++)
        for (int k = 0; k < 4; k++) {
            const int64_t n = 4 * LARGE_H * large_columns(p, k);
            const uint64_t seed = 10 + (uint64_t)(4 * p + k);
            s->weights[p][k] = random_numbers(seed, 0.25, n);
            s->moves[p][k] = random_numbers(seed + 50, 0.25, n);
            s->lists[p][k] = s->weights[p][k];
        }
    s->o = (oracle_layers){ .is_lstm = lstm,
                            .length = LARGE_L,
                            .batches = LARGE_N,
                            .in = LARGE_IN,
                            .hidden = LARGE_H,
                            .layers = 2,
                            .directions = 2,
                            .x = s->x,
                            .weights = s->lists,
                            .h = s->states[0],
                            .c = s->states[1] };
}

static void large_end(large *s)
{
    free(s->x), free(s->move_x), free(s->dy);
    for (int i = 0; i < 2; i++) free(s->states[i]), free(s->move_states[i]);
    for (int i = 0; i < 4 * LARGE_PASSES; i++)
        free(s->weights[i / 4][i % 4]), free(s->moves[i / 4][i % 4]);
}

static void move(double *at, const double *by, double step, int64_t n)
{
    for (int64_t i = 0; i < n; i++) at[i] += step * by[i];
}

static void large_move(large *s, double step)
{
    move(s->x, s->move_x, step, LARGE_L * LARGE_N * LARGE_IN);
    for (int i = 0; i < 2; i++) move(s->states[i], s->move_states[i], step, LARGE_STATES);
    for (int p = 0; p < LARGE_PASSES; p++)
        for (int k = 0; k < 4; k++)
            move(s->weights[p][k], s->moves[p][k], step, 4 * LARGE_H * large_columns(p, k));
}

static double large_value(const large *s, double *y)
{
    double *hy = test_doubles(LARGE_STATES), *cy = test_doubles(LARGE_STATES);
    oracle_layers_run(&s->o, y, hy, cy);
    free(hy), free(cy);
    return dot(y, s->dy, LARGE_OUT);
}

/* A value's gradient along the direction; *size gets the sum of the terms' sizes. */
static double slope_of(atto_var v, const double *direction, double *size)
{
    atto_tensor t;
    double sum = 0.0;
    MUST(atto_var_grad(tape, v, &t));
    const int64_t n = atto_tensor_numel(&t);
    float *got = malloc((size_t)n * sizeof *got);
    assert_non_null(got);
    MUST(atto_tensor_read(&t, got));
    for (int64_t i = 0; i < n; i++) {
        sum += (double)got[i] * direction[i];
        *size += fabs((double)got[i] * direction[i]);
    }
    free(got);
    return sum;
}

/* Differences: a step of 2^-20 moves 10^5 numbers by 10^-4 together, whose square / 6 is a part
 * in 10^9. A gradient has fewer than 64 roundings of 2^-24 behind one another, of either sign. A
 * block of gradients that is wrong is a part in 10^2. */
static void check_large(bool lstm, bool batch_first)
{
    static large s;
    large_begin(&s, lstm);
    const int64_t rows = (lstm ? 4 : 3) * LARGE_H;
    const atto_shape states = atto_shape3(LARGE_PASSES, LARGE_N, LARGE_H);
    test_tensor tx, ts[2], tw[LARGE_PASSES][4], tdy;
    atto_var in[2], w[LARGE_PASSES][4];
    atto_rnn_weights weights[LARGE_PASSES];
    const atto_var x = put(s.x, atto_shape3(LARGE_L, LARGE_N, LARGE_IN), &tx);
    for (int i = 0; i < 2; i++) in[i] = put(s.states[i], states, &ts[i]);
    for (int p = 0; p < LARGE_PASSES; p++) {
        for (int k = 0; k < 4; k++)
            w[p][k] =
                put(s.weights[p][k],
                    k < 2 ? atto_shape2(rows, large_columns(p, k)) : atto_shape1(rows), &tw[p][k]);
        weights[p] = (atto_rnn_weights){ w[p][0], w[p][1], &w[p][2], &w[p][3], { 0 } };
    }
    const atto_rnn_options options = { .layers = 2,
                                       .bidirectional = true,
                                       .batch_first = batch_first,
                                       .h = &in[0],
                                       .c = lstm ? &in[1] : NULL };
    const atto_var way = batch_first ? atto_transpose(tape, x, 0, 1) : x;
    atto_var y =
        lstm ? atto_lstm(tape, way, weights, &options) : atto_gru(tape, way, weights, &options);
    if (batch_first) y = atto_transpose(tape, y, 0, 1);
    MUST(atto_tape_status(tape));
    put(s.dy, atto_shape3(LARGE_L, LARGE_N, 2 * LARGE_H), &tdy);
    MUST(atto_backward_from(tape, y, &tdy.view));

    double size = 0.0, slope = slope_of(x, s.move_x, &size);
    for (int i = 0; i <= lstm; i++) slope += slope_of(in[i], s.move_states[i], &size);
    for (int p = 0; p < LARGE_PASSES; p++)
        for (int k = 0; k < 4; k++) slope += slope_of(w[p][k], s.moves[p][k], &size);
    double *want = test_doubles(LARGE_OUT), *got = test_doubles(LARGE_OUT);
    float *floats = malloc(LARGE_OUT * sizeof *floats);
    const double step = 0x1p-20;
    large_value(&s, want);
    MUST(atto_var_read(tape, atto_reshape(tape, y, atto_shape1(LARGE_OUT)), floats));
    for (int64_t i = 0; i < LARGE_OUT; i++) got[i] = (double)floats[i];
    expect_numbers("y", 0, got, want, LARGE_OUT, ROUNDINGS);
    large_move(&s, step);
    const double up = large_value(&s, want);
    large_move(&s, -2.0 * step);
    const double difference = (up - large_value(&s, want)) / (2.0 * step);
    if (!(fabs(slope - difference) <= 0x1p-18 * size))
        fail_msg("%s: slope %.9g, difference %.9g, terms %.9g", lstm ? "lstm" : "gru", slope,
                 difference, size);
    MUST(atto_tape_end(tape));
    free(want), free(got), free(floats);
    test_tensor_drop(&tx), test_tensor_drop(&tdy);
    for (int i = 0; i < 2; i++) test_tensor_drop(&ts[i]);
    for (int i = 0; i < 4 * LARGE_PASSES; i++) test_tensor_drop(&tw[i / 4][i % 4]);
    large_end(&s);
}

static void larger_layers_match_their_definition(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) check_large(i / 2 == 1, i % 2 == 1);
}

/* ---- modules ---- */

static atto_module *make_plain(bool lstm, const atto_rnn_module_options *options)
{
    atto_module *m;
    MUST(lstm ? atto_lstm_create(test_dev, IN, HIDDEN, options, &m)
              : atto_gru_create(test_dev, IN, HIDDEN, options, &m));
    return m;
}

static atto_var input(atto_shape shape, uint64_t seed)
{
    double values[MOST_NUMBERS];
    float floats[MOST_NUMBERS];
    const atto_tensor like = atto_tensor_of(NULL, ATTO_F32, shape, 0);
    const int64_t n = atto_tensor_numel(&like);
    test_uniform(seed, -1.0, 1.0, ATTO_F32, values, n);
    for (int64_t i = 0; i < n; i++) floats[i] = (float)values[i];
    return atto_input(tape, ATTO_F32, shape, floats);
}

static void expect_bits(atto_var a, atto_var b, int64_t n)
{
    float x[MOST_NUMBERS], y[MOST_NUMBERS];
    MUST(atto_tape_status(tape));
    MUST(atto_var_read(tape, a, x));
    MUST(atto_var_read(tape, b, y));
    assert_memory_equal(x, y, (size_t)n * sizeof *x);
}

typedef struct seen {
    const char *const *names;
    int count;
    bool in_bounds;
} seen;

static atto_status look(void *seen_, const char *key, atto_param *p)
{
    seen *s = seen_;
    float values[MOST_NUMBERS];
    double size = 0.0;
    const atto_tensor t = atto_param_value(p);
    const int64_t n = atto_tensor_numel(&t);
    assert_string_equal(key, s->names[s->count++]);
    MUST(atto_tensor_read(&t, values));
    for (int64_t i = 0; i < n; i++) {
        const double value = fabs((double)values[i]);
        if (value > size) size = value; /* not fmax: GCC 12 for AArch64 fails on this loop */
    }
    s->in_bounds = s->in_bounds && size <= 1.0 / sqrt(HIDDEN) && size > 0.2;
    return ATTO_OK;
}

static void modules_have_pytorchs_parameters(void **state)
{
    (void)state;
    static const char *const layers[] = {
        "weight_ih_l0",         "weight_hh_l0",         "bias_ih_l0",         "bias_hh_l0",
        "weight_ih_l0_reverse", "weight_hh_l0_reverse", "bias_ih_l0_reverse", "bias_hh_l0_reverse",
        "weight_ih_l1",         "weight_hh_l1",         "bias_ih_l1",         "bias_hh_l1",
        "weight_ih_l1_reverse", "weight_hh_l1_reverse", "bias_ih_l1_reverse", "bias_hh_l1_reverse"
    };
    static const char *const cell[] = { "weight_ih", "weight_hh", "bias_ih", "bias_hh" };
    const atto_rnn_module_options options = { .layers = 2, .bidirectional = true };
    atto_module *m;
    atto_seed(test_dev, 3);
    for (int lstm = 0; lstm < 2; lstm++) {
        seen s = { layers, 0, true };
        m = make_plain(lstm == 1, &options);
        assert_string_equal(atto_module_class_name(m), lstm ? "LSTM" : "GRU");
        MUST(atto_module_params(m, look, &s));
        assert_int_equal(s.count, 16);
        assert_true(s.in_bounds);
        atto_module_free(m);
        MUST(lstm ? atto_lstm_cell_create(test_dev, IN, HIDDEN, NULL, &m)
                  : atto_gru_cell_create(test_dev, IN, HIDDEN, NULL, &m));
        assert_string_equal(atto_module_class_name(m), lstm ? "LSTMCell" : "GRUCell");
        s = (seen){ cell, 0, true };
        MUST(atto_module_params(m, look, &s));
        assert_int_equal(s.count, 4);
        atto_module_free(m);
    }
}

/* A sequence in one piece, in two with carried states, and step by step through a cell. */
static void carried_states_make_one_sequence(void **state)
{
    (void)state;
    for (int lstm = 0; lstm < 2; lstm++) {
        atto_module *m = make_plain(lstm == 1, NULL);
        const atto_var x = input(atto_shape3(LENGTH, BATCHES, IN), 5);
        atto_tensor kept[2];
        atto_var hy, cy, h, c, unused;
        atto_tape_record(tape, false);
        const atto_var whole =
            atto_rnn_apply(tape, m, x, &(atto_rnn_states){ .hy = &hy, .cy = lstm ? &cy : NULL });
        atto_var y[2];
        for (int i = 0; i < 2; i++) {
            const atto_var half = atto_slice(tape, x, 0, 2 * i, 2 * i + 2, 1);
            atto_rnn_states s = { .hy = &unused, .cy = lstm ? &c : NULL };
            if (i == 1) {
                h = atto_borrow(tape, &kept[0], false);
                s.h = &h;
                if (lstm) {
                    c = atto_borrow(tape, &kept[1], false);
                    s.c = &c;
                }
            }
            atto_var last_c;
            if (lstm) s.cy = &last_c;
            y[i] = atto_rnn_apply(tape, m, half, &s);
            if (i == 0) {
                MUST(atto_keep(tape, unused, &kept[0]));
                if (lstm) MUST(atto_keep(tape, last_c, &kept[1]));
            } else {
                expect_bits(unused, hy, BATCHES * HIDDEN);
                if (lstm) expect_bits(last_c, cy, BATCHES * HIDDEN);
            }
        }
        expect_bits(atto_concat(tape, y, 2, 0), whole, LENGTH * BATCHES * HIDDEN);

        atto_param *p[4];
        static const char *const keys[] = { "weight_ih_l0", "weight_hh_l0", "bias_ih_l0",
                                            "bias_hh_l0" };
        atto_var w[4];
        for (int k = 0; k < 4; k++) {
            MUST(atto_module_find_param(m, keys[k], &p[k]));
            w[k] = atto_use(tape, p[k]);
        }
        const atto_rnn_weights weights = { w[0], w[1], &w[2], &w[3], { 0 } };
        for (int t = 0; t < LENGTH; t++) {
            const atto_var now = atto_squeeze(tape, atto_slice(tape, x, 0, t, t + 1, 1), 0);
            atto_var next_c;
            h = lstm ? atto_lstm_cell(tape, now, t ? &h : NULL, t ? &c : NULL, &weights, &next_c)
                     : atto_gru_cell(tape, now, t ? &h : NULL, &weights);
            if (lstm) c = next_c;
        }
        float last[BATCHES * HIDDEN], of_steps[BATCHES * HIDDEN];
        MUST(atto_tape_status(tape));
        MUST(atto_var_read(tape, hy, last));
        MUST(atto_var_read(tape, h, of_steps));
        for (int i = 0; i < BATCHES * HIDDEN; i++)
            assert_true(fabsf(last[i] - of_steps[i]) < 1e-5f);
        MUST(atto_tape_end(tape));
        atto_tape_record(tape, true);
        atto_tensor_free(&kept[0]);
        if (lstm) atto_tensor_free(&kept[1]);
        atto_module_free(m);
    }
}

/* States go back to where they came from; as with others of their own, bit for bit. */
static void states_may_be_replaced(void **state)
{
    (void)state;
    const atto_shape shape = atto_shape3(1, BATCHES, HIDDEN), flat = atto_shape2(BATCHES, HIDDEN);
    const int64_t n = BATCHES * HIDDEN;
    atto_module *m = make_plain(true, NULL), *cell;
    MUST(atto_lstm_cell_create(test_dev, IN, HIDDEN, NULL, &cell));
    const atto_var x = input(atto_shape3(LENGTH, BATCHES, IN), 11);
    const atto_var one = input(atto_shape2(BATCHES, IN), 12);
    atto_var h = input(shape, 13), c = input(shape, 14), hy, cy;
    atto_rnn_apply(tape, m, x, &(atto_rnn_states){ .h = &h, .c = &c, .hy = &hy, .cy = &cy });
    atto_rnn_apply(tape, m, x, &(atto_rnn_states){ .h = &h, .c = &c, .hy = &h, .cy = &c });
    expect_bits(h, hy, n);
    expect_bits(c, cy, n);
    h = input(flat, 13), c = input(flat, 14);
    atto_rnn_apply(tape, cell, one, &(atto_rnn_states){ .h = &h, .c = &c, .hy = &hy, .cy = &cy });
    atto_rnn_apply(tape, cell, one, &(atto_rnn_states){ .h = &h, .c = &c, .hy = &h, .cy = &c });
    expect_bits(h, hy, n);
    expect_bits(c, cy, n);
    MUST(atto_tape_end(tape));
    atto_module_free(m), atto_module_free(cell);
}

/* One value as both states gets the sum of what two get. */
static void one_value_may_be_both_states(void **state)
{
    (void)state;
    const atto_shape shape = atto_shape3(1, BATCHES, HIDDEN);
    const int64_t n = BATCHES * HIDDEN;
    atto_module *m = make_plain(true, NULL);
    double values[MOST_NUMBERS];
    float sums[MOST_NUMBERS] = { 0 }, got[MOST_NUMBERS];
    test_uniform(15, -1.0, 1.0, ATTO_F32, values, n);
    for (int apart = 1; apart >= 0; apart--) {
        test_tensor t[2];
        const atto_var x = input(atto_shape3(LENGTH, BATCHES, IN), 11);
        const atto_var h = put(values, shape, &t[0]), c = apart ? put(values, shape, &t[1]) : h;
        const atto_var y = atto_rnn_apply(tape, m, x, &(atto_rnn_states){ .h = &h, .c = &c });
        MUST(atto_backward(tape, atto_reduce(tape, ATTO_REDUCE_SUM, y, NULL)));
        const atto_var both[] = { h, c };
        for (int i = 0; i <= apart; i++) {
            atto_tensor grad;
            MUST(atto_var_grad(tape, both[i], &grad));
            MUST(atto_tensor_read(&grad, got));
            for (int k = 0; apart && k < n; k++) sums[k] += got[k];
        }
        for (int k = 0; !apart && k < n; k++) assert_true(fabsf(got[k] - sums[k]) < 1e-5f);
        MUST(atto_tape_end(tape));
        test_tensor_drop(&t[0]);
        if (apart) test_tensor_drop(&t[1]);
    }
    atto_module_free(m);
}

static uint64_t launches(void)
{
    atto_device_stats stats;
    MUST(atto_device_stats_get(test_dev, &stats));
    return stats.launches;
}

static uint64_t memory(void)
{
    atto_device_stats stats;
    MUST(atto_device_sync(test_dev));
    MUST(atto_device_stats_get(test_dev, &stats));
    return stats.bytes_live;
}

/* One product for all inputs, then a product and a cell for each step; without gradients nothing
 * that only backward reads stays: [4, 2, 20] of gates and [3, 2, 5] of states. */
static void inference_saves_nothing(void **state)
{
    (void)state;
    uint64_t used[2];
    atto_module *m = make_plain(true, NULL);
    for (int records = 0; records < 2; records++) {
        atto_tape_record(tape, records == 1);
        const atto_var x = input(atto_shape3(LENGTH, BATCHES, IN), 5);
        const uint64_t before = memory();
        const uint64_t count = launches();
        atto_apply(tape, m, x);
        MUST(atto_tape_status(tape));
        if (!test_on_opencl()) assert_true(launches() - count <= 3 + 2 * LENGTH); /* 2 fills */
        used[records] = memory() - before;
        MUST(atto_tape_end(tape));
    }
    assert_true(used[1] >= used[0] + 4 * (4 * 2 * 20));
    atto_module_free(m);
}

/* Twice the same gradients: a node's own memory is not what it adds to. */
static void gradients_add_up_over_two_calls(void **state)
{
    (void)state;
    for (int lstm = 0; lstm < 2; lstm++) {
        atto_module *m = make_plain(lstm == 1, NULL);
        double x[MOST_NUMBERS], once[4][MOST_NUMBERS];
        test_uniform(8, -1.0, 1.0, ATTO_F32, x, LENGTH * BATCHES * IN);
        for (int calls = 1; calls < 3; calls++) {
            test_tensor tx;
            parameter_list params = { .count = 0 };
            MUST(atto_module_params(m, list_param, &params));
            for (int i = 0; i < params.count; i++) atto_param_zero_grad(params.list[i]);
            const atto_var in = put(x, atto_shape3(LENGTH, BATCHES, IN), &tx);
            atto_var y = atto_apply(tape, m, in);
            if (calls == 2) y = atto_add(tape, y, atto_apply(tape, m, in));
            MUST(atto_backward(tape, atto_reduce(tape, ATTO_REDUCE_SUM, y, NULL)));
            for (int i = 0; i < params.count; i++) {
                float got[MOST_NUMBERS];
                atto_tensor t;
                MUST(atto_param_grad(params.list[i], &t));
                MUST(atto_tensor_read(&t, got));
                for (int64_t k = 0; k < atto_tensor_numel(&t); k++) {
                    if (calls == 1) once[i][k] = got[k];
                    assert_true(fabs(got[k] - calls * once[i][k]) <= 1e-5 * (1 + fabs(once[i][k])));
                }
            }
            MUST(atto_tape_end(tape));
            test_tensor_drop(&tx);
        }
        atto_module_free(m);
    }
}

/* Between layers, in training only, and never behind the last one. */
static void dropout_is_between_layers(void **state)
{
    (void)state;
    const atto_rnn_module_options one = { .dropout = 0.5f }, two = { .layers = 2, .dropout = 0.5f };
    const atto_rnn_module_options all = { .layers = 2, .dropout = 1.0f };
    const atto_shape shape = atto_shape3(LENGTH, BATCHES, IN);
    const int64_t n = LENGTH * BATCHES * HIDDEN;
    atto_module *m = make_plain(true, &one);
    const atto_var x = input(shape, 6);
    atto_var y = atto_apply(tape, m, x);
    atto_module_train(m, false);
    expect_bits(y, atto_apply(tape, m, x), n);
    atto_module_free(m);
    m = make_plain(true, &two);
    float drawn[2][MOST_NUMBERS];
    for (int i = 0; i < 2; i++) MUST(atto_var_read(tape, atto_apply(tape, m, x), drawn[i]));
    assert_memory_not_equal(drawn[0], drawn[1], (size_t)n * sizeof(float));
    atto_module_train(m, false);
    expect_bits(atto_apply(tape, m, x), atto_apply(tape, m, x), n);
    atto_module_free(m);
    m = make_plain(true, &all); /* the second layer gets zeros, whatever x is */
    expect_bits(atto_apply(tape, m, x), atto_apply(tape, m, input(shape, 7)), n);
    atto_module_free(m);
    MUST(atto_tape_end(tape));
}

/* No batches, which give gradients of zeros. */
static void an_empty_batch_gives_no_output(void **state)
{
    (void)state;
    for (int lstm = 0; lstm < 2; lstm++) {
        const atto_rnn_module_options options = { .layers = 2, .bidirectional = true };
        atto_module *m = make_plain(lstm == 1, &options);
        atto_var hy;
        atto_tensor t;
        const atto_var x = atto_input(tape, ATTO_F32, atto_shape3(3, 0, IN), NULL);
        const atto_var y = atto_rnn_apply(tape, m, x, &(atto_rnn_states){ .hy = &hy });
        MUST(atto_var_tensor(tape, y, &t));
        assert_true(t.rank == 3 && t.shape[0] == 3 && t.shape[1] == 0 && t.shape[2] == 2 * HIDDEN);
        MUST(atto_var_tensor(tape, hy, &t));
        assert_true(t.shape[0] == 4 && t.shape[1] == 0 && t.shape[2] == HIDDEN);
        MUST(atto_backward(tape, atto_reduce(tape, ATTO_REDUCE_SUM, y, NULL)));
        parameter_list params = { .count = 0 };
        MUST(atto_module_params(m, list_param, &params));
        for (int i = 0; i < params.count; i++) {
            float got[MOST_NUMBERS];
            MUST(atto_param_grad(params.list[i], &t));
            MUST(atto_tensor_read(&t, got));
            for (int64_t k = 0; k < atto_tensor_numel(&t); k++) assert_true(got[k] == 0.0f);
        }
        MUST(atto_tape_end(tape));
        atto_module_free(m);
    }
}

/* One gradient that a frozen parameter, or nobody, wants is not computed; the others are the
 * same. */
static void frozen_parameters_get_no_gradient(void **state)
{
    (void)state;
    atto_module *m = make_plain(true, NULL);
    parameter_list params = { .count = 0 };
    MUST(atto_module_params(m, list_param, &params));
    const atto_var x = input(atto_shape3(LENGTH, BATCHES, IN), 9);
    float want[4][MOST_NUMBERS];
    for (int frozen = -1; frozen < 4; frozen++) {
        for (int i = 0; i < 4; i++) {
            atto_param_zero_grad(params.list[i]);
            atto_param_freeze(params.list[i], i == frozen);
        }
        const atto_var y = atto_apply(tape, m, x);
        const atto_var loss = atto_reduce(tape, ATTO_REDUCE_SUM, y, NULL);
        MUST(atto_backward(tape, loss));
        for (int i = 0; i < 4; i++) {
            float got[MOST_NUMBERS];
            atto_tensor t;
            if (i == frozen) {
                EXPECT_FAIL(atto_param_grad(params.list[i], &t), ATTO_E_STATE, "grad");
                continue;
            }
            MUST(atto_param_grad(params.list[i], &t));
            MUST(atto_tensor_read(&t, frozen < 0 ? want[i] : got));
            if (frozen >= 0)
                assert_memory_equal(want[i], got, (size_t)atto_tensor_numel(&t) * sizeof *got);
        }
    }
    MUST(atto_tape_end(tape));
    atto_module_free(m);
}

/* Parameters of that dtype, from the same numbers. */
static void check_low_module(bool lstm, atto_dtype dtype, atto_var x, const float *want)
{
    const atto_rnn_module_options options = { .dtype = dtype };
    float got[MOST_NUMBERS];
    atto_tensor t;
    atto_seed(test_dev, 4);
    atto_module *m = make_plain(lstm, &options);
    const atto_var y = atto_apply(tape, m, atto_cast(tape, x, dtype));
    const atto_var wide = atto_cast(tape, y, ATTO_F32);
    MUST(atto_var_read(tape, wide, got));
    for (int i = 0; i < LENGTH * BATCHES * HIDDEN; i++)
        assert_true(fabs(got[i] - want[i]) <= 16.0 * oracle_unit(dtype));
    MUST(atto_backward(tape, atto_reduce(tape, ATTO_REDUCE_SUM, wide, NULL)));
    parameter_list params = { .count = 0 };
    MUST(atto_module_params(m, list_param, &params));
    for (int i = 0; i < params.count; i++) {
        MUST(atto_param_grad(params.list[i], &t));
        assert_int_equal(t.dtype, dtype);
    }
    atto_module_free(m);
}

/* In f16 and bf16, by autocast and by parameters, against f32: each of 4 steps rounds gates and
 * states a few times. 16 roundings of the dtype, of numbers up to 1 that slopes do not enlarge. */
static void low_precision_is_near_f32(void **state)
{
    (void)state;
    const atto_dtype lows[] = { ATTO_F16, ATTO_BF16 };
    for (int lstm = 0; lstm < 2; lstm++)
        for (int d = 0; d < 2; d++) {
            atto_seed(test_dev, 4);
            atto_module *m = make_plain(lstm == 1, NULL);
            const atto_var x = input(atto_shape3(LENGTH, BATCHES, IN), 10);
            float want[MOST_NUMBERS], got[MOST_NUMBERS];
            MUST(atto_var_read(tape, atto_apply(tape, m, x), want));
            MUST(atto_tape_autocast(tape, lows[d]));
            const atto_var y = atto_apply(tape, m, x);
            atto_tensor t;
            MUST(atto_var_tensor(tape, y, &t));
            assert_int_equal(t.dtype, lows[d]);
            MUST(atto_tape_autocast(tape, ATTO_F32));
            const atto_var wide = atto_cast(tape, y, ATTO_F32);
            MUST(atto_var_read(tape, wide, got));
            for (int i = 0; i < LENGTH * BATCHES * HIDDEN; i++)
                assert_true(fabs(got[i] - want[i]) <= 16.0 * oracle_unit(lows[d]));
            MUST(atto_backward(tape, atto_reduce(tape, ATTO_REDUCE_SUM, wide, NULL)));
            parameter_list params = { .count = 0 };
            MUST(atto_module_params(m, list_param, &params));
            for (int i = 0; i < params.count; i++) {
                MUST(atto_param_grad(params.list[i], &t));
                assert_int_equal(t.dtype, ATTO_F32);
            }
            check_low_module(lstm == 1, lows[d], x, want);
            MUST(atto_tape_end(tape));
            atto_module_free(m);
        }
}

/* States in f32 beside low products: cast on the way in, gradients are cast back. Against f32: 64
 * roundings of the dtype for 4 steps there and back. */
static void autocast_casts_states(void **state)
{
    (void)state;
    const atto_shape shape = atto_shape3(1, BATCHES, HIDDEN);
    const int64_t n = BATCHES * HIDDEN;
    double values[2][MOST_NUMBERS];
    float want[2][MOST_NUMBERS] = { { 0 } }, got[MOST_NUMBERS];
    for (int i = 0; i < 2; i++) test_uniform(16 + (uint64_t)i, -1.0, 1.0, ATTO_F32, values[i], n);
    atto_seed(test_dev, 5);
    atto_module *m = make_plain(true, NULL);
    for (int low = 0; low < 2; low++) {
        test_tensor t[2];
        atto_var s[2];
        for (int i = 0; i < 2; i++) s[i] = put(values[i], shape, &t[i]);
        MUST(atto_tape_autocast(tape, low ? ATTO_F16 : ATTO_F32));
        const atto_var x = input(atto_shape3(LENGTH, BATCHES, IN), 11);
        const atto_var y = atto_rnn_apply(tape, m, x, &(atto_rnn_states){ .h = &s[0], .c = &s[1] });
        MUST(atto_backward(tape, atto_reduce(tape, ATTO_REDUCE_SUM, y, NULL)));
        for (int i = 0; i < 2; i++) {
            atto_tensor grad;
            MUST(atto_var_grad(tape, s[i], &grad));
            assert_int_equal(grad.dtype, ATTO_F32);
            MUST(atto_tensor_read(&grad, low ? got : want[i]));
            for (int k = 0; low && k < n; k++)
                assert_true(fabsf(got[k] - want[i][k]) <= 64.0 * oracle_unit(ATTO_F16));
        }
        MUST(atto_tape_autocast(tape, ATTO_F32));
        MUST(atto_tape_end(tape));
        for (int i = 0; i < 2; i++) test_tensor_drop(&t[i]);
    }
    atto_module_free(m);
}

/* ---- without memory ---- */

/* Fails the fail_at-th host allocation, from 1; 0 = none. */
typedef struct failing {
    long held, taken, fail_at;
} failing;

static failing host;

static void *failing_allocate(void *data, size_t bytes)
{
    failing *f = data;
    if (__atomic_add_fetch(&f->taken, 1, __ATOMIC_SEQ_CST) == f->fail_at) return NULL;
    void *block = malloc(bytes);
    if (block) __atomic_add_fetch(&f->held, 1, __ATOMIC_SEQ_CST);
    return block;
}

static void failing_release(void *data, void *pointer)
{
    failing *f = data;
    __atomic_sub_fetch(&f->held, 1, __ATOMIC_SEQ_CST);
    free(pointer);
}

static int close_test_device(void **state)
{
    (void)state;
    atto_device_close(test_dev);
    test_dev = NULL;
    return 0;
}

static int reopen_test_device(void **state)
{
    (void)state;
    atto_set_allocator(NULL);
    return atto_device_open(test_device_name(), NULL, &test_dev) == ATTO_OK ? 0 : -1;
}

/* A layer in both directions, and a cell behind its last step. */
typedef struct trained {
    atto_module *layer, *cell;
} trained;

static atto_status make_trained(atto_device *dev, bool lstm, trained *t)
{
    const atto_rnn_module_options options = { .bidirectional = true };
    t->layer = t->cell = NULL;
    const atto_status status = lstm ? atto_lstm_create(dev, 2, 3, &options, &t->layer)
                                    : atto_gru_create(dev, 2, 3, &options, &t->layer);
    if (status != ATTO_OK) return status;
    return lstm ? atto_lstm_cell_create(dev, 6, 2, NULL, &t->cell)
                : atto_gru_cell_create(dev, 6, 2, NULL, &t->cell);
}

static atto_status train_once(atto_tape *on, const trained *t)
{
    const float x[8] = { 1.0f, -2.0f, 3.0f, 0.5f, 0.25f, -1.0f, 1.5f, 0.75f };
    const atto_var in = atto_input(on, ATTO_F32, atto_shape3(2, 2, 2), x);
    const atto_var y = atto_apply(on, t->layer, in);
    const atto_var last = atto_squeeze(on, atto_slice(on, y, 0, 1, 2, 1), 0);
    const atto_var h = atto_apply(on, t->cell, last);
    const atto_status status = atto_backward(on, atto_reduce(on, ATTO_REDUCE_SUM, h, NULL));
    const atto_status ended = atto_tape_end(on);
    return status != ATTO_OK ? status : ended;
}

typedef struct gradients {
    float of[512];
    int64_t count;
} gradients;

static atto_status collect_grad(void *data, const char *key, atto_param *p)
{
    (void)key;
    gradients *g = data;
    atto_tensor grad;
    MUST(atto_param_grad(p, &grad));
    MUST(atto_tensor_read(&grad, &g->of[g->count]));
    g->count += atto_tensor_numel(&grad);
    return ATTO_OK;
}

static atto_status forget_grad(void *data, const char *key, atto_param *p)
{
    (void)data, (void)key;
    atto_param_zero_grad(p);
    return ATTO_OK;
}

/* Allocation n of a step fails; the next try gives what an undisturbed one does. Whether there were
 * as many. */
static bool step_with_failure(bool lstm, long n, gradients *want, int *refused)
{
    atto_device *dev;
    atto_tape *on;
    trained t;
    gradients got = { .count = 0 };
    MUST(atto_device_open(test_device_name(), NULL, &dev));
    atto_seed(dev, 1);
    MUST(make_trained(dev, lstm, &t));
    MUST(atto_tape_create(dev, &on));
    host.taken = 0;
    host.fail_at = n;
    const atto_status status = train_once(on, &t);
    const bool reached = host.taken >= n;
    host.fail_at = 0;
    assert_true(status == ATTO_OK || (n > 0 && status == ATTO_E_MEMORY));
    if (status != ATTO_OK) {
        ++*refused;
        MUST(atto_module_params(t.layer, forget_grad, NULL));
        MUST(atto_module_params(t.cell, forget_grad, NULL));
        MUST(train_once(on, &t));
    }
    MUST(atto_module_params(t.layer, collect_grad, &got));
    MUST(atto_module_params(t.cell, collect_grad, &got));
    if (n == 0) *want = got;
    assert_int_equal(got.count, want->count);
    assert_memory_equal(got.of, want->of, (size_t)got.count * sizeof got.of[0]);
    atto_tape_free(on);
    atto_module_free(t.layer);
    atto_module_free(t.cell);
    atto_device_close(dev);
    return reached;
}

static void recurrent_step_survives_every_failing_allocation(void **state)
{
    (void)state;
    const atto_allocator allocator = { failing_allocate, failing_release, &host };
    const int step = test_on_opencl() || test_in_disguise() ? 29 : 1; /* opening takes time */
    MUST(atto_set_allocator(&allocator));
    for (int lstm = 0; lstm < 2; lstm++) {
        gradients want = { .count = 0 };
        int refused = 0;
        host = (failing){ 0, 0, 0 };
        for (long n = 0; step_with_failure(lstm == 1, n, &want, &refused); n += step) {
        }
        assert_int_equal(host.held, 0);
        assert_true(refused > 20 / step);
    }
}

/* ---- what is refused ---- */

static void expect_refused(atto_status status, const char *words)
{
    EXPECT_FAIL(atto_tape_status(tape), status, words);
    atto_tape_end(tape);
}

static void calls_refuse_what_does_not_fit(void **state)
{
    (void)state;
    atto_module *lstm = make_plain(true, NULL), *gru = make_plain(false, NULL), *other;
    MUST(atto_identity_create(test_dev, &other));
    atto_var out;
    const atto_shape fine = atto_shape3(LENGTH, BATCHES, IN);
    atto_apply(tape, lstm, input(atto_shape1(IN), 1));
    expect_refused(ATTO_E_SHAPE, "lstm|x is [3]|two dimensions");
    atto_apply(tape, lstm, input(atto_shape3(LENGTH, BATCHES, 4), 1));
    expect_refused(ATTO_E_SHAPE, "LSTM|the input is [4,2,4]|expected 3 features");
    atto_apply(tape, gru, atto_input(tape, ATTO_F32, atto_shape3(0, BATCHES, IN), NULL));
    expect_refused(ATTO_E_SHAPE, "gru|x is [0,2,3]|1 step");
    atto_var h = input(atto_shape3(1, 3, HIDDEN), 2);
    atto_rnn_apply(tape, gru, input(fine, 1), &(atto_rnn_states){ .h = &h });
    expect_refused(ATTO_E_SHAPE, "gru|h is [1,3,5]|[1,2,5]");
    h = input(atto_shape2(1, HIDDEN), 2);
    atto_rnn_apply(tape, lstm, input(fine, 1), &(atto_rnn_states){ .c = &h });
    expect_refused(ATTO_E_SHAPE, "lstm|c is [1,5]|[1,2,5]");
    atto_rnn_apply(tape, gru, input(fine, 1), &(atto_rnn_states){ .cy = &out });
    expect_refused(ATTO_E_ARGUMENT, "cy is given|GRU");
    atto_rnn_apply(tape, other, input(fine, 1), NULL);
    expect_refused(ATTO_E_ARGUMENT, "Identity");
    atto_rnn_apply(tape, NULL, input(fine, 1), NULL);
    expect_refused(ATTO_E_NULL, "m is NULL");
    atto_rnn_apply(tape, lstm, input(fine, 1), &(atto_rnn_states){ .reserved = { 1 } });
    expect_refused(ATTO_E_ARGUMENT, "reserved");
    atto_lstm(tape, input(fine, 1), NULL, NULL);
    expect_refused(ATTO_E_NULL, "lstm|weights is NULL");
    const atto_var w = input(atto_shape2(20, 3), 3), w_hh = input(atto_shape2(20, 5), 4);
    const atto_var b = input(atto_shape1(19), 5);
    const atto_rnn_weights weights = { .w_ih = w, .w_hh = w_hh, .b_hh = &b };
    atto_lstm(tape, input(fine, 1), &weights, NULL);
    expect_refused(ATTO_E_SHAPE, "b_hh is [19]|[20]");
    const atto_rnn_weights fitting = { .w_ih = input(atto_shape2(20, 3), 3),
                                       .w_hh = input(atto_shape2(20, 5), 4) };
    atto_lstm(tape, input(fine, 1), &fitting, &(atto_rnn_options){ .layers = -1 });
    expect_refused(ATTO_E_ARGUMENT, "layers is -1");
    const atto_rnn_weights again = { .w_ih = input(atto_shape2(20, 3), 3),
                                     .w_hh = input(atto_shape2(20, 5), 4) };
    atto_lstm_cell(tape, input(atto_shape2(2, 3), 1), NULL, NULL, &again, NULL);
    expect_refused(ATTO_E_NULL, "lstm_cell|cy is NULL");
    const atto_rnn_weights third = { .w_ih = input(atto_shape2(20, 3), 3),
                                     .w_hh = input(atto_shape2(20, 5), 4) };
    h = input(atto_shape2(3, 5), 2);
    atto_lstm_cell(tape, input(atto_shape2(2, 3), 1), &h, NULL, &third, &out);
    expect_refused(ATTO_E_SHAPE, "lstm_cell|h is [3,5]|[2,5]");
    atto_module_free(lstm), atto_module_free(gru), atto_module_free(other);
}

static void modules_refuse_what_does_not_fit(void **state)
{
    (void)state;
    atto_module *m;
    EXPECT_FAIL(atto_lstm_create(test_dev, -1, 2, NULL, &m), ATTO_E_SHAPE, "lstm_create|in is -1");
    assert_null(m);
    EXPECT_FAIL(atto_gru_create(test_dev, 1, 0, NULL, &m), ATTO_E_SHAPE, "hidden is 0");
    EXPECT_FAIL(atto_lstm_create(test_dev, 1, 1, &(atto_rnn_module_options){ .layers = 33 }, &m),
                ATTO_E_ARGUMENT, "layers is 33");
    EXPECT_FAIL(atto_lstm_create(test_dev, 1, 1, &(atto_rnn_module_options){ .dropout = 2 }, &m),
                ATTO_E_ARGUMENT, "2");
    EXPECT_FAIL(atto_lstm_create(test_dev, 1, 1, NULL, NULL), ATTO_E_NULL, "m is NULL");
    EXPECT_FAIL(atto_gru_cell_create(NULL, 1, 1, NULL, &m), ATTO_E_NULL, "dev");
    EXPECT_FAIL(
        atto_lstm_cell_create(test_dev, 1, 1, &(atto_rnn_cell_options){ .dtype = ATTO_I32 }, &m),
        ATTO_E_DTYPE, "i32");
}

#define ON_TAPE(test) cmocka_unit_test_setup_teardown(test, open_tape, close_tape)

static const struct CMUnitTest tests[] = {
    ON_TAPE(every_option_matches_pytorch),
    ON_TAPE(layers_match_their_definition),
    ON_TAPE(larger_layers_match_their_definition),
    cmocka_unit_test(modules_have_pytorchs_parameters),
    ON_TAPE(carried_states_make_one_sequence),
    ON_TAPE(states_may_be_replaced),
    ON_TAPE(one_value_may_be_both_states),
    ON_TAPE(inference_saves_nothing),
    ON_TAPE(gradients_add_up_over_two_calls),
    ON_TAPE(dropout_is_between_layers),
    ON_TAPE(an_empty_batch_gives_no_output),
    ON_TAPE(frozen_parameters_get_no_gradient),
    ON_TAPE(low_precision_is_near_f32),
    ON_TAPE(autocast_casts_states),
    ON_TAPE(calls_refuse_what_does_not_fit),
    cmocka_unit_test(modules_refuse_what_does_not_fit),
    cmocka_unit_test_setup_teardown(recurrent_step_survives_every_failing_allocation,
                                    close_test_device, reopen_test_device),
};
TEST_MAIN("recurrent", tests)
