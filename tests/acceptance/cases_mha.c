/* SPDX-License-Identifier: MIT */
/* Family mha: the module MultiheadAttention, which runs on a tape. A shape is [N, T, E], batch first;
 * inputs are x alone, x beside a memory that is key and value, or three tensors. */
#include <math.h>
#include <string.h>

#include "grid.h"

enum { INPUTS_SELF, INPUTS_MEMORY, INPUTS_CROSS, INPUTS };

static const char *inputs_text(int value)
{
    static const char *const names[INPUTS] = { "self", "memory", "cross" };
    return names[value];
}

/* Sizes of a case: keys are S, a head has D features. */
typedef struct sizes {
    int64_t n, t, s, e, heads, d;
} sizes;

static sizes sizes_of(const grid_case *c)
{
    sizes z = { .n = c->shape.dim[0],
                .t = c->shape.dim[1],
                .s = c->shape.dim[1],
                .e = c->shape.dim[2],
                .heads = grid_int(c, "heads") };
    if (grid_int(c, "inputs") == INPUTS_MEMORY) z.s = z.t / 2 + 1;
    z.d = z.e / z.heads;
    return z;
}

/* Probabilities are the reference's largest tensor, as those of attention. */
static bool mha_exists(const grid_case *c)
{
    const sizes z = sizes_of(c);
    return z.e % z.heads == 0 && z.d <= ATTO_ATTENTION_MAX_HEAD &&
           z.n * z.heads * z.t * z.s <= 1 << 28;
}

/* ---- tensors ---- */

/* A parameter of the module, and the names of its tensors. */
typedef struct parameter {
    const char *key, *value, *grad;
} parameter;

static const parameter parameters[] = { { "in_proj_weight", "w", "dw" },
                                        { "in_proj_bias", "b", "db" },
                                        { "out_proj.weight", "out_w", "dout_w" },
                                        { "out_proj.bias", "out_b", "dout_b" } };

static void build_parameter(grid_scene *s, const parameter *p, atto_shape shape, uint64_t seed)
{
    const grid_case *c = grid_case_of(s);
    if (shape.rank == 1 && !grid_int(c, "bias")) return;
    grid_input(s, p->value, c->dtype, shape, shape.rank == 1 ? GRID_NORMAL : GRID_WEIGHT, seed);
    grid_output(s, p->grad, c->dtype, shape, GRID_BACKWARD, true);
}

static void build_mha(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const sizes z = sizes_of(c);
    const int inputs = grid_int(c, "inputs");
    const atto_shape q = c->shape, k = atto_shape3(z.n, z.s, z.e);
    grid_input(s, "q", c->dtype, q, GRID_NORMAL, 1);
    grid_input(s, "dy", c->dtype, q, GRID_NORMAL, 2);
    if (inputs != INPUTS_SELF) grid_input(s, "k", c->dtype, k, GRID_NORMAL, 3);
    if (inputs == INPUTS_CROSS) grid_input(s, "v", c->dtype, k, GRID_NORMAL, 4);
    grid_output(s, "y", c->dtype, q, GRID_FORWARD, true);
    grid_output(s, "dq", c->dtype, q, GRID_BACKWARD, true);
    if (inputs != INPUTS_SELF) grid_output(s, "dk", c->dtype, k, GRID_BACKWARD, true);
    if (inputs == INPUTS_CROSS) grid_output(s, "dv", c->dtype, k, GRID_BACKWARD, true);
    build_parameter(s, &parameters[0], atto_shape2(3 * z.e, z.e), 5);
    build_parameter(s, &parameters[1], atto_shape1(3 * z.e), 6);
    build_parameter(s, &parameters[2], atto_shape2(z.e, z.e), 7);
    build_parameter(s, &parameters[3], atto_shape1(z.e), 8);
}

/* ---- the call ---- */

static const parameter *parameter_of(const char *key)
{
    int i = 0;
    while (i < COUNT_OF(parameters) && strcmp(parameters[i].key, key) != 0) i++;
    return i < COUNT_OF(parameters) ? &parameters[i] : NULL;
}

static atto_status put_value(void *scene, const char *key, atto_param *p)
{
    const parameter *of = parameter_of(key);
    const atto_tensor to = atto_param_value(p), *from = of ? grid_at(scene, of->value) : NULL;
    return from ? atto_tensor_copy(&to, from) : ATTO_E_ARGUMENT;
}

static atto_status take_grad(void *scene, const char *key, atto_param *p)
{
    atto_tensor grad;
    const atto_status status = atto_param_grad(p, &grad);
    return status == ATTO_OK ? atto_tensor_copy(grid_at(scene, parameter_of(key)->grad), &grad)
                             : status;
}

static atto_status take_input_grads(grid_scene *s, atto_tape *tape, const atto_var inputs[3])
{
    static const char *const names[] = { "dq", "dk", "dv" };
    atto_status status = ATTO_OK;
    for (int i = 0; i < 3 && status == ATTO_OK; i++) {
        atto_tensor grad;
        if (!grid_at(s, names[i])) continue;
        status = atto_var_grad(tape, inputs[i], &grad);
        if (status == ATTO_OK) status = atto_tensor_copy(grid_at(s, names[i]), &grad);
    }
    return status;
}

/* Forward, and backward behind it: a tape runs backward what it has recorded. */
static atto_status run_step(grid_scene *s, atto_module *m, atto_tape *tape, bool backward)
{
    const grid_case *c = grid_case_of(s);
    const int inputs = grid_int(c, "inputs");
    const atto_multihead_attention_options options = { .causal = grid_int(c, "causal")
                                                                     ? ATTO_CAUSAL_TOP_LEFT
                                                                     : ATTO_CAUSAL_NONE };
    const atto_var q = atto_borrow(tape, grid_at(s, "q"), true);
    const atto_var k = inputs == INPUTS_SELF ? q : atto_borrow(tape, grid_at(s, "k"), true);
    const atto_var v = inputs == INPUTS_CROSS ? atto_borrow(tape, grid_at(s, "v"), true) : k;
    const atto_var y = atto_multihead_attention(tape, m, q, k, v, &options);
    atto_tensor out;
    atto_status status = atto_var_tensor(tape, y, &out);
    if (status == ATTO_OK && !backward) return atto_tensor_copy(grid_at(s, "y"), &out);
    if (status == ATTO_OK) status = atto_backward_from(tape, y, grid_at(s, "dy"));
    if (status == ATTO_OK) status = take_input_grads(s, tape, (const atto_var[]){ q, k, v });
    return status == ATTO_OK ? atto_module_params(m, take_grad, s) : status;
}

static atto_status call_mha(grid_scene *s, bool backward)
{
    const grid_case *c = grid_case_of(s);
    const atto_multihead_attention_module_options options = { .no_bias = !grid_int(c, "bias"),
                                                              .batch_first = true,
                                                              .dtype = c->dtype };
    const sizes z = sizes_of(c);
    atto_device *dev = atto_tensor_device(grid_at(s, "q"));
    atto_module *m = NULL;
    atto_tape *tape = NULL;
    atto_status status = atto_multihead_attention_create(dev, z.e, z.heads, &options, &m);
    if (status == ATTO_OK) status = atto_module_params(m, put_value, s);
    if (status == ATTO_OK) status = atto_tape_create(dev, &tape);
    if (status == ATTO_OK) status = run_step(s, m, tape, backward);
    atto_tape_free(tape);
    atto_module_free(m);
    return status;
}

/* ---- the answer: linear and attention one behind the other ---- */

/* A matrix, and what its elements are off by, in u = 2^-24. */
typedef struct matrix {
    int64_t rows, cols;
    double *value, *off;
} matrix;

static matrix zeros(grid_scene *s, int64_t rows, int64_t cols)
{
    double *both = grid_array(s, 2 * rows * cols);
    return (matrix){ rows, cols, both, both + rows * cols };
}

/* Rows of an input from number `first` on. */
static matrix given(grid_scene *s, const char *name, int64_t first, int64_t rows, int64_t cols)
{
    const matrix m = zeros(s, rows, cols);
    memcpy(m.value, grid_held(s, name) + first * cols, (size_t)(rows * cols) * sizeof(double));
    return m;
}

static matrix turned(grid_scene *s, matrix a)
{
    const matrix t = zeros(s, a.cols, a.rows);
    for (int64_t i = 0; i < a.rows * a.cols; i++) {
        const int64_t at = i % a.cols * a.rows + i / a.cols;
        t.value[at] = a.value[i], t.off[at] = a.off[i];
    }
    return t;
}

/* a b^T + bias, whose k + 1 terms have a rounding each; NULL = no bias. */
static matrix linear(grid_scene *s, matrix a, matrix b, const double *bias)
{
    const matrix y = zeros(s, a.rows, b.rows);
    const double roundings = (double)(a.cols + (bias != NULL));
    for (int64_t i = 0; i < y.rows * y.cols; i++) {
        const int64_t row = i / y.cols * a.cols, column = i % y.cols * b.cols;
        double sum = bias ? bias[i % y.cols] : 0.0, size = fabs(sum), off = 0.0;
        for (int64_t k = 0; k < a.cols; k++) {
            const double p = a.value[row + k], q = b.value[column + k];
            const double p_off = a.off[row + k], q_off = b.off[column + k];
            sum += p * q;
            size += fabs(p * q);
            off += p_off * fabs(q) + fabs(p) * q_off + p_off * q_off * 0x1p-24;
        }
        y.value[i] = sum, y.off[i] = off + roundings * size;
    }
    return y;
}

/* Sums of columns, as a row. */
static matrix column_sums(grid_scene *s, matrix a)
{
    const matrix ones = zeros(s, 1, a.rows);
    for (int64_t i = 0; i < a.rows; i++) ones.value[i] = 1.0;
    return linear(s, ones, turned(s, a), NULL);
}

/* What `count` roundings to the dtype do to a number of that size. */
static double rounded(atto_dtype dtype, double count, double size)
{
    const double step = oracle_unit(dtype) * size + 0.5 * oracle_tiny(dtype);
    return count * step * 0x1p24;
}

/* The tape stores it between two ops. In f32 that is the rounding of the last sum. */
static matrix stored(grid_scene *s, matrix a)
{
    const atto_dtype dtype = grid_case_of(s)->dtype;
    for (int64_t i = 0; i < a.rows * a.cols && dtype != ATTO_F32; i++)
        a.off[i] += rounded(dtype, 1.0, fabs(a.value[i]) + a.off[i] * 0x1p-24);
    return a;
}

/* Gradients that meet in one tensor, in any order: each is rounded at most count - 1 times before the
 * last one. */
static matrix added(grid_scene *s, const matrix *parts, int count)
{
    const matrix sum = zeros(s, parts[0].rows, parts[0].cols);
    for (int p = 0; p < count; p++)
        for (int64_t i = 0; i < sum.rows * sum.cols; i++) {
            const double size = fabs(parts[p].value[i]) + parts[p].off[i] * 0x1p-24;
            sum.value[i] += parts[p].value[i];
            sum.off[i] +=
                parts[p].off[i] + rounded(grid_case_of(s)->dtype, (double)(count - 1), size);
        }
    return sum;
}

/* [N positions, E] as [N, heads, positions, D], or back. */
static matrix moved(grid_scene *s, const sizes *z, matrix a, bool to_heads)
{
    const int64_t positions = a.rows * a.cols / (z->n * z->e);
    const matrix out = zeros(s, a.rows, a.cols);
    for (int64_t i = 0; i < a.rows * a.cols; i++) {
        const int64_t d = i % z->d, head = i / z->d % z->heads, row = i / z->e;
        const int64_t n = row / positions, position = row % positions;
        const int64_t there = ((n * z->heads + head) * positions + position) * z->d + d;
        const int64_t from = to_heads ? i : there, to = to_heads ? there : i;
        out.value[to] = a.value[from], out.off[to] = a.off[from];
    }
    return out;
}

/* Of all heads, as positions in rows. */
static matrix of_sums(grid_scene *s, const sizes *z, const oracle_sum *sums, int64_t rows)
{
    const matrix m = zeros(s, rows, z->e);
    for (int64_t i = 0; i < rows * z->e; i++) m.value[i] = sums[i].value, m.off[i] = sums[i].terms;
    return stored(s, moved(s, z, m, false));
}

static oracle_sum *sums_of(grid_scene *s, int64_t numel)
{
    return grid_array(s, (int64_t)(sizeof(oracle_sum) / sizeof(double)) * numel);
}

/* Projected q, k, v and attention's y, positions in rows; then the same of their gradients. */
typedef struct core {
    matrix q, k, v, y;
} core;

static oracle_attention question(grid_scene *s, const sizes *z, const core *of)
{
    const matrix q = moved(s, z, of->q, true), k = moved(s, z, of->k, true);
    const matrix v = moved(s, z, of->v, true);
    return (oracle_attention){ .batches = z->n,
                               .heads = z->heads,
                               .key_heads = z->heads,
                               .queries = z->t,
                               .keys = z->s,
                               .d = z->d,
                               .e = z->d,
                               .q = q.value,
                               .k = k.value,
                               .v = v.value,
                               .q_off = q.off,
                               .k_off = k.off,
                               .v_off = v.off,
                               .causal = grid_int(grid_case_of(s), "causal") ? ATTO_CAUSAL_TOP_LEFT
                                                                             : ATTO_CAUSAL_NONE };
}

static matrix attend(grid_scene *s, const sizes *z, const core *of)
{
    const oracle_attention o = question(s, z, of);
    oracle_sum *y = sums_of(s, z->n * z->t * z->e);
    oracle_attention_forward(&o, y, NULL, NULL);
    return of_sums(s, z, y, z->n * z->t);
}

static core attend_back(grid_scene *s, const sizes *z, const core *of, matrix dy)
{
    const matrix y = moved(s, z, of->y, true), upstream = moved(s, z, dy, true);
    const int64_t queries = z->n * z->t, keys = z->n * z->s;
    oracle_sum *dq = sums_of(s, queries * z->e), *dk = sums_of(s, keys * z->e);
    oracle_sum *dv = sums_of(s, keys * z->e);
    oracle_attention o = question(s, z, of);
    o.y = y.value, o.y_off = y.off;
    o.dy = upstream.value, o.dy_off = upstream.off;
    o.with_low = true;
    oracle_attention_backward(&o, dq, dk, dv);
    return (core){ of_sums(s, z, dq, queries), of_sums(s, z, dk, keys), of_sums(s, z, dv, keys),
                   dy };
}

/* Rows of a matrix as those of a result from number `first` on. */
static void put(grid_scene *s, const char *name, int64_t numel, int64_t first, matrix m)
{
    double *want = grid_want(s, name, numel), *terms = grid_terms(s, name, numel);
    const size_t bytes = (size_t)(m.rows * m.cols) * sizeof(double);
    memcpy(want + first * m.cols, m.value, bytes);
    memcpy(terms + first * m.cols, m.off, bytes);
    /* all that it may be off by, counted: see oracle_attention.c */
    grid_allow(s, name, name[0] == 'd' ? "attention_grad" : "attention", 1);
}

static void put_whole(grid_scene *s, const char *name, matrix m)
{
    put(s, name, m.rows * m.cols, 0, m);
}

/* The gradients of one projection: those of its parameters are its rows of the common ones. Returns
 * its input's. */
static matrix project_back(grid_scene *s, const sizes *z, int which, matrix x, matrix w, matrix dz)
{
    const int64_t first = which * z->e;
    put(s, "dw", 3 * z->e * z->e, first, linear(s, turned(s, dz), turned(s, x), NULL));
    if (grid_at(s, "db")) {
        const matrix db = column_sums(s, dz);
        put(s, "db", 3 * z->e, first, (matrix){ z->e, 1, db.value, db.off });
    }
    return linear(s, dz, turned(s, w), NULL);
}

/* dx: of query, key and value. */
static void put_input_grads(grid_scene *s, const matrix dx[3])
{
    switch (grid_int(grid_case_of(s), "inputs")) {
    case INPUTS_SELF:
        put_whole(s, "dq", added(s, dx, 3));
        break;
    case INPUTS_MEMORY:
        put_whole(s, "dq", dx[0]);
        put_whole(s, "dk", added(s, dx + 1, 2));
        break;
    default:
        put_whole(s, "dq", dx[0]);
        put_whole(s, "dk", dx[1]);
        put_whole(s, "dv", dx[2]);
    }
}

static void answer_mha(grid_scene *s)
{
    const sizes z = sizes_of(grid_case_of(s));
    const double *b = grid_held(s, "b");
    const char *const k = grid_at(s, "k") ? "k" : "q", *const v = grid_at(s, "v") ? "v" : k;
    const matrix x[] = { given(s, "q", 0, z.n * z.t, z.e), given(s, k, 0, z.n * z.s, z.e),
                         given(s, v, 0, z.n * z.s, z.e) };
    const matrix out_w = given(s, "out_w", 0, z.e, z.e), dy = given(s, "dy", 0, z.n * z.t, z.e);
    matrix w[3], projected[3], dx[3];
    for (int i = 0; i < 3; i++) {
        w[i] = given(s, "w", i * z.e, z.e, z.e);
        projected[i] = stored(s, linear(s, x[i], w[i], b ? b + i * z.e : NULL));
    }
    core of = { .q = projected[0], .k = projected[1], .v = projected[2] };
    of.y = attend(s, &z, &of);
    put_whole(s, "y", linear(s, of.y, out_w, grid_held(s, "out_b")));
    put_whole(s, "dout_w", linear(s, turned(s, dy), turned(s, of.y), NULL));
    if (b) put_whole(s, "dout_b", column_sums(s, dy));
    const core d = attend_back(s, &z, &of, stored(s, linear(s, dy, turned(s, out_w), NULL)));
    const matrix gradients[] = { d.q, d.k, d.v };
    for (int i = 0; i < 3; i++) dx[i] = project_back(s, &z, i, x[i], w[i], gradients[i]);
    put_input_grads(s, dx);
}

/* 12 heads are what the largest shape of attorch's grid can have: heads end at 256 features. */
const grid_family grid_mha = {
    .name = "mha",
    .least_rank = 3,
    .most_rank = 3,
    .options = { { "inputs", INPUTS, { 0 }, inputs_text },
                 { "heads", 6, { 1, 2, 4, 6, 8, 12 }, NULL },
                 { "bias", 2, { 0, 1 }, NULL },
                 { "causal", 2, { 0, 1 }, NULL } },
    .exists = mha_exists,
    .build = build_mha,
    .call = call_mha,
    .answer = answer_mha,
};
