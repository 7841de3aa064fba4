/* SPDX-License-Identifier: MIT */
/* Whole graphs: 30 random nodes of all recorded ops behind 6 parameters and before one loss. Every
 * gradient agrees with central differences of the same graph replayed in double by the oracle. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

enum {
    NODES = 30,
    LEAVES = 6,
    ALL = LEAVES + NODES,
    ROWS = 4,
    COLUMNS = 5,
    MOST = COLUMNS * COLUMNS
};

/* Values stay below this: a node that would exceed it becomes a tanh. */
#define LARGEST 4.0

/* ---- graphs ---- */

typedef enum kind {
    LEAF,
    ACT,    /* a smooth activation */
    SQUARE, /* and the other unary ops, where they are smooth: */
    EXP,    /* e^x */
    LOG,    /* ln(x^2 + 1), three nodes in one */
    RSQRT,  /* (x^2 + 1)^(-1/2) */
    CLAMP,  /* to [-1, 1] */
    ADD,
    SUB,
    MUL,
    DIV, /* a / (b^2 + 1) */
    MAXIMUM,
    WHERE,  /* a where a < b, else b */
    SUM,    /* over dimension 1, kept; / 4 */
    MEAN,   /* over dimension 0, kept */
    MAX,    /* over dimension 1, kept */
    LINEAR, /* by the leaf that is a matrix, with bias, gelu and the input as residual */
    DROPOUT,
    FLATTEN, /* to a vector and back */
    KINDS
} kind;

typedef struct graph_node {
    kind kind;
    int a, b; /* earlier nodes */
    int rows, columns;
    atto_activation act;
    int64_t offset; /* DROPOUT: where its numbers start */
    bool used;
    double value[MOST];
} graph_node;

typedef struct graph {
    graph_node nodes[ALL];
    int count;
    int64_t drawn; /* counters */
    double loss;
} graph;

/* LEAVES: a matrix, a column, a row, a number, the weight and the bias of LINEAR. */
static const int leaf_shapes[LEAVES][2] = {
    { ROWS, COLUMNS }, { ROWS, 1 }, { 1, COLUMNS }, { 1, 1 }, { COLUMNS, COLUMNS }, { 1, COLUMNS }
};
enum { WEIGHT = 4, BIAS = 5 };

static double leaf_values[LEAVES][MOST];
static const int32_t labels[ROWS] = { 0, 3, 1, 4 };

#define DROP 0.25f

static atto_rng stream(int64_t offset)
{
    return (atto_rng){ .seed = 5, .offset = (uint64_t)offset };
}

static bool takes_two(kind k)
{
    return k == ADD || k == SUB || k == MUL || k == DIV || k == MAXIMUM || k == WHERE;
}

static double at(const graph_node *n, int row, int column)
{
    return n->value[(n->rows == 1 ? 0 : row) * n->columns + (n->columns == 1 ? 0 : column)];
}

/* ---- replay in double ---- */

static double replay_two(kind k, double a, double b)
{
    switch (k) {
    case ADD:
        return a + b;
    case SUB:
        return a - b;
    case MUL:
        return a * b;
    case DIV:
        return a / (b * b + 1.0);
    case MAXIMUM:
        return a > b ? a : b;
    default: /* WHERE */
        return a < b ? a : b;
    }
}

static double replay_one(const graph_node *n, int64_t i, double x)
{
    switch (n->kind) {
    case ACT:
        return oracle_act_forward(n->act, 0.0f, stream(0), i, x);
    case SQUARE:
        return x * x;
    case EXP:
        return exp(x);
    case LOG:
        return log(x * x + 1.0);
    case RSQRT:
        return 1.0 / sqrt(x * x + 1.0);
    case CLAMP:
        return x < -1.0 ? -1.0 : x > 1.0 ? 1.0 : x;
    case DROPOUT:
        return oracle_keep(stream(n->offset), DROP, i) ? x * oracle_keep_scale(DROP) : 0.0;
    default: /* FLATTEN */
        return x;
    }
}

static double replay_reduction(const graph_node *n, const graph_node *x, int i)
{
    double sum = 0.0, largest = -HUGE_VAL;
    const int length = n->kind == MEAN ? x->rows : x->columns;
    for (int k = 0; k < length; k++) {
        const double v = n->kind == MEAN ? at(x, k, i) : at(x, i, k);
        sum += v;
        if (v > largest) largest = v;
    }
    return n->kind == SUM ? sum / 4.0 : n->kind == MEAN ? sum / length : largest;
}

static double replay_linear(const graph *g, const graph_node *x, int row, int column)
{
    double z = g->nodes[BIAS].value[column];
    for (int k = 0; k < COLUMNS; k++)
        z += at(x, row, k) * g->nodes[WEIGHT].value[column * COLUMNS + k];
    return oracle_act_forward(atto_gelu(), 0.0f, stream(0), 0, z) + at(x, row, column);
}

static void replay_node(const graph *g, graph_node *n)
{
    const graph_node *a = &g->nodes[n->a], *b = &g->nodes[n->b];
    for (int i = 0; i < n->rows * n->columns; i++) {
        const int row = i / n->columns, column = i % n->columns;
        if (takes_two(n->kind)) {
            n->value[i] = replay_two(n->kind, at(a, row, column), at(b, row, column));
        } else if (n->kind == SUM || n->kind == MEAN || n->kind == MAX) {
            n->value[i] = replay_reduction(n, a, i);
        } else if (n->kind == LINEAR) {
            n->value[i] = replay_linear(g, a, row, column);
        } else {
            n->value[i] = replay_one(n, i, a->value[i]);
        }
    }
}

/* The mean cross-entropy of the sum of all nodes that no other node uses. */
static double replay_loss(const graph *g)
{
    double loss = 0.0;
    for (int row = 0; row < ROWS; row++) {
        double logits[COLUMNS] = { 0.0 }, sum = 0.0;
        for (int n = 0; n < g->count; n++)
            for (int c = 0; c < COLUMNS && !g->nodes[n].used; c++)
                logits[c] += at(&g->nodes[n], row, c);
        for (int c = 0; c < COLUMNS; c++) sum += exp(logits[c]);
        loss += (log(sum) - logits[labels[row]]) / ROWS;
    }
    return loss;
}

static double replay(graph *g)
{
    for (int n = 0; n < LEAVES; n++)
        memcpy(g->nodes[n].value, leaf_values[n], sizeof g->nodes[n].value);
    for (int n = LEAVES; n < g->count; n++) replay_node(g, &g->nodes[n]);
    return replay_loss(g);
}

/* ---- making graphs ---- */

static int draw(uint64_t *state, int n)
{
    return (int)(test_random(state) % (uint64_t)n);
}

static bool is_full(const graph_node *n)
{
    return n->columns == COLUMNS;
}

static void set_shape(const graph *g, graph_node *n)
{
    const graph_node *a = &g->nodes[n->a], *b = &g->nodes[n->b];
    n->rows = a->rows;
    n->columns = a->columns;
    if (takes_two(n->kind) && b->rows > n->rows) n->rows = b->rows;
    if (takes_two(n->kind) && b->columns > n->columns) n->columns = b->columns;
    if (n->kind == SUM || n->kind == MAX) n->columns = 1;
    if (n->kind == MEAN) n->rows = 1;
}

static bool is_small(const graph_node *n)
{
    for (int i = 0; i < n->rows * n->columns; i++)
        if (fabs(n->value[i]) > LARGEST) return false;
    return true;
}

/* Any node but the weight, which is no input of an op that keeps shapes. */
static int draw_input(uint64_t *state, const graph *g)
{
    int input;
    do input = draw(state, g->count);
    while (input == WEIGHT);
    return input;
}

static void add_node(graph *g, uint64_t *state)
{
    static const atto_activation_kind smooth[] = { ATTO_ACT_TANH, ATTO_ACT_SILU, ATTO_ACT_GELU,
                                                   ATTO_ACT_SIGMOID, ATTO_ACT_SOFTPLUS };
    graph_node *n = &g->nodes[g->count];
    n->kind = (kind)(1 + draw(state, KINDS - 1));
    n->a = draw_input(state, g);
    n->b = draw_input(state, g);
    n->act = atto_activation_default(smooth[draw(state, COUNT_OF(smooth))]);
    if (n->kind == LINEAR && !is_full(&g->nodes[n->a])) n->kind = ACT;
    set_shape(g, n);
    n->offset = g->drawn;
    replay_node(g, n);
    if (!is_small(n)) {
        n->kind = ACT;
        n->act = atto_tanh();
        set_shape(g, n);
        replay_node(g, n);
    }
    if (n->kind == DROPOUT) g->drawn += (n->rows * n->columns + 3) / 4;
    g->nodes[n->a].used = true;
    if (takes_two(n->kind)) g->nodes[n->b].used = true;
    g->count++;
}

static void make_graph(graph *g, uint64_t seed)
{
    uint64_t state = seed;
    memset(g, 0, sizeof *g);
    for (int n = 0; n < LEAVES; n++) {
        graph_node *leaf = &g->nodes[n];
        leaf->rows = leaf_shapes[n][0];
        leaf->columns = leaf_shapes[n][1];
        leaf->used = n == WEIGHT || n == BIAS;
        test_uniform(seed * 10 + (uint64_t)n, -1.0, 1.0, ATTO_F32, leaf_values[n],
                     leaf->rows * leaf->columns);
    }
    g->count = LEAVES;
    replay(g);
    while (g->count < ALL) add_node(g, &state);
}

/* ---- the same on a tape ---- */

static atto_var square_plus_one(atto_tape *tape, atto_var x)
{
    return atto_binary_number(tape, ATTO_BINARY_ADD, atto_unary(tape, ATTO_UNARY_SQUARE, x), 1.0f);
}

static atto_var record_reduction(atto_tape *tape, const graph_node *n, atto_var a)
{
    const atto_reduce_options over = { .dims = { n->kind == MEAN ? 0 : 1 },
                                       .dim_count = 1,
                                       .keep = true };
    if (n->kind == MEAN) return atto_reduce(tape, ATTO_REDUCE_MEAN, a, &over);
    if (n->kind == MAX) return atto_reduce(tape, ATTO_REDUCE_MAX, a, &over);
    return atto_binary_number(tape, ATTO_BINARY_DIV, atto_reduce(tape, ATTO_REDUCE_SUM, a, &over),
                              4.0f);
}

static atto_var record_linear(atto_tape *tape, const atto_var *vars, atto_var a)
{
    const atto_var bias = atto_reshape(tape, vars[BIAS], atto_shape1(COLUMNS));
    const atto_linear_fused fused = { .bias = &bias, .residual = &a, .act = atto_gelu() };
    return atto_linear(tape, a, vars[WEIGHT], &fused);
}

static atto_var record_node(atto_tape *tape, const graph_node *n, const atto_var *vars)
{
    const atto_var a = vars[n->a], b = vars[n->b];
    switch (n->kind) {
    case ACT:
        return atto_act(tape, a, n->act, NULL);
    case SQUARE:
        return atto_unary(tape, ATTO_UNARY_SQUARE, a);
    case EXP:
        return atto_unary(tape, ATTO_UNARY_EXP, a);
    case LOG:
        return atto_unary(tape, ATTO_UNARY_LOG, square_plus_one(tape, a));
    case RSQRT:
        return atto_unary(tape, ATTO_UNARY_RSQRT, square_plus_one(tape, a));
    case CLAMP:
        return atto_clamp(tape, a, -1.0f, 1.0f);
    case ADD:
        return atto_add(tape, a, b);
    case SUB:
        return atto_sub(tape, a, b);
    case MUL:
        return atto_mul(tape, a, b);
    case DIV:
        return atto_div(tape, a, square_plus_one(tape, b));
    case MAXIMUM:
        return atto_maximum(tape, a, b);
    case WHERE:
        return atto_where(tape, atto_compare(tape, ATTO_COMPARE_LT, a, b), a, b);
    case LINEAR:
        return record_linear(tape, vars, a);
    case DROPOUT:
        return atto_dropout(tape, a, DROP);
    case FLATTEN:
        return atto_reshape(tape, atto_reshape(tape, a, atto_shape1(n->rows * n->columns)),
                            atto_shape2(n->rows, n->columns));
    default:
        return record_reduction(tape, n, a);
    }
}

static atto_var record_graph(atto_tape *tape, const graph *g, atto_param *const *params)
{
    atto_var vars[ALL];
    for (int n = 0; n < LEAVES; n++) vars[n] = atto_use(tape, params[n]);
    for (int n = LEAVES; n < g->count; n++) vars[n] = record_node(tape, &g->nodes[n], vars);
    const float zeros[ROWS * COLUMNS] = { 0.0f };
    atto_var logits = atto_input(tape, ATTO_F32, atto_shape2(ROWS, COLUMNS), zeros);
    for (int n = 0; n < g->count; n++)
        if (!g->nodes[n].used) logits = atto_add(tape, logits, vars[n]);
    const atto_var targets = atto_input(tape, ATTO_I32, atto_shape1(ROWS), labels);
    return atto_cross_entropy(tape, logits, targets, NULL);
}

static void make_params(atto_param **params)
{
    for (int n = 0; n < LEAVES; n++) {
        float values[MOST];
        for (int i = 0; i < MOST; i++) values[i] = (float)leaf_values[n][i];
        MUST(atto_param_create(test_dev, ATTO_F32,
                               atto_shape2(leaf_shapes[n][0], leaf_shapes[n][1]), &params[n]));
        MUST(atto_param_write(params[n], values));
    }
}

/* ---- comparison ---- */

/* d loss / d element by central differences of two widths, whose error is below 1e-8 for functions
 * as smooth as these; NAN where they disagree, because a maximum or a clamp changes in between. */
static double slope(graph *g, double *element)
{
    const double x = *element;
    double slopes[2];
    for (int i = 0; i < 2; i++) {
        const double h = i == 0 ? 2e-5 : 1e-5;
        *element = x + h;
        const double above = replay(g);
        *element = x - h;
        slopes[i] = (above - replay(g)) / (2.0 * h);
    }
    *element = x;
    return fabs(slopes[0] - slopes[1]) > 1e-7 ? NAN : slopes[1];
}

/* Whether the point is at no kink; fills the slopes of every element of every leaf. */
static bool all_slopes(graph *g, double slopes[LEAVES][MOST], double *largest)
{
    *largest = 0.0;
    for (int n = 0; n < LEAVES; n++)
        for (int i = 0; i < leaf_shapes[n][0] * leaf_shapes[n][1]; i++) {
            slopes[n][i] = slope(g, &leaf_values[n][i]);
            if (isnan(slopes[n][i])) return false;
            *largest = fmax(*largest, fabs(slopes[n][i]));
        }
    return true;
}

/* A node's result is off by at most 16 roundings of 2^-24 of its size, forward and backward, and
 * what it passes on grows by factors around 1 (values are below LARGEST): 64 steps of that on the
 * longest way there and back. */
#define ALLOWED (64.0 * 16.0 / 16777216.0)

static void compare(const graph *g, uint64_t seed, atto_param *const *params,
                    double slopes[LEAVES][MOST], double largest)
{
    for (int n = 0; n < LEAVES; n++) {
        float got[MOST] = { 0.0f };
        atto_tensor grad;
        const bool used = atto_param_grad(params[n], &grad) == ATTO_OK;
        if (used) MUST(atto_tensor_read(&grad, got));
        for (int i = 0; i < leaf_shapes[n][0] * leaf_shapes[n][1]; i++)
            if (!(fabs((double)got[i] - slopes[n][i]) <= ALLOWED * fmax(1.0, largest)))
                fail_msg("graph %d, leaf %d, element %d of %d nodes: %.9g, expected %.9g",
                         (int)seed, n, i, g->count, (double)got[i], slopes[n][i]);
    }
}

/* False where the graph stands at a kink: then it proves nothing. */
static bool check_graph(uint64_t seed)
{
    static graph g;
    static double slopes[LEAVES][MOST];
    double largest;
    make_graph(&g, seed);
    const double wanted = replay(&g);
    if (!all_slopes(&g, slopes, &largest)) return false;
    atto_param *params[LEAVES];
    atto_tape *tape;
    float loss;
    make_params(params);
    MUST(atto_tape_create(test_dev, &tape));
    atto_tape_seed(tape, 5, 0);
    const atto_var e = record_graph(tape, &g, params);
    MUST(atto_var_read(tape, e, &loss));
    if (!(fabs((double)loss - wanted) <= ALLOWED * fmax(1.0, fabs(wanted))))
        fail_msg("graph %d: loss %.9g, expected %.9g", (int)seed, (double)loss, wanted);
    MUST(atto_backward(tape, e));
    compare(&g, seed, params, slopes, largest);
    MUST(atto_tape_end(tape));
    atto_tape_free(tape);
    for (int n = 0; n < LEAVES; n++) atto_param_free(params[n]);
    return true;
}

static void graph_gradients_match_central_differences(void **state)
{
    (void)state;
    const int wanted = test_on_opencl() ? 8 : 40;
    int done = 0;
    for (uint64_t seed = 1; done < wanted && seed < 4 * (uint64_t)wanted; seed++)
        done += check_graph(seed);
    assert_int_equal(done, wanted);
}

/* Every kind of node occurs in the graphs above. */
static void graph_has_every_kind_of_node(void **state)
{
    (void)state;
    static graph g;
    bool seen[KINDS] = { false };
    for (uint64_t seed = 1; seed <= 8; seed++) {
        make_graph(&g, seed);
        for (int n = 0; n < g.count; n++) seen[g.nodes[n].kind] = true;
    }
    for (int k = 0; k < KINDS; k++)
        if (!seen[k]) fail_msg("kind %d is in no graph", k);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(graph_gradients_match_central_differences),
    cmocka_unit_test(graph_has_every_kind_of_node),
};
TEST_MAIN("graph", tests)
