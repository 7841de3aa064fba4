/* SPDX-License-Identifier: MIT */
/* Family matmul: batches of products whose right side is shared or not, transposed or not. */
#include "grid.h"

/* Sizes of b as it is stored: [batch or not, K, N], or [.., N, K] if it is turned. */
static atto_shape stored_b(const grid_case *c)
{
    const int32_t rank = grid_int(c, "shared") ? 2 : c->shape.rank;
    const int64_t n = grid_int(c, "out"), k = c->shape.dim[c->shape.rank - 1];
    const bool turned = grid_int(c, "turned");
    atto_shape b = { .rank = rank };
    for (int32_t d = 0; d < rank - 2; d++) b.dim[d] = c->shape.dim[d];
    b.dim[rank - 2] = turned ? n : k;
    b.dim[rank - 1] = turned ? k : n;
    return b;
}

static atto_shape shape_of_y(const grid_case *c)
{
    atto_shape y = c->shape;
    y.dim[y.rank - 1] = grid_int(c, "out");
    return y;
}

static void build_matmul(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    grid_input(s, "a", c->dtype, c->shape, GRID_NORMAL, 1);
    grid_input(s, "b", c->dtype, stored_b(c), GRID_NORMAL, 3);
    grid_input(s, "dy", c->dtype, shape_of_y(c), GRID_NORMAL, 2);
    grid_output(s, "y", c->dtype, shape_of_y(c), GRID_FORWARD, true);
    grid_output(s, "da", c->dtype, c->shape, GRID_BACKWARD, true);
    grid_output(s, "db", c->dtype, stored_b(c), GRID_BACKWARD, true);
}

static atto_tensor matrix_of(const grid_case *c, const atto_tensor *t)
{
    atto_tensor view = *t;
    const int32_t row = t->rank - 2, column = t->rank - 1;
    if (!grid_int(c, "turned")) return view;
    view.shape[row] = t->shape[column], view.shape[column] = t->shape[row];
    view.stride[row] = t->stride[column], view.stride[column] = t->stride[row];
    return view;
}

static atto_status call_matmul(grid_scene *s, bool backward)
{
    const grid_case *c = grid_case_of(s);
    const atto_tensor b = matrix_of(c, grid_at(s, "b")), db = matrix_of(c, grid_at(s, "db"));
    const struct atto_matmul_args p = { .a = grid_at(s, "a"),
                                        .b = &b,
                                        .y = grid_at(s, "y"),
                                        .dy = grid_at(s, "dy"),
                                        .da = grid_at(s, "da"),
                                        .db = &db };
    atto_device *dev = atto_tensor_device(p.a);
    return backward ? atto_matmul_backward(dev, &p) : atto_matmul_forward(dev, &p);
}

/* Number of an element of b in memory where it is that number row by row. */
static int64_t stored_at(const oracle_matmul *o, bool turned, int64_t i)
{
    const int64_t matrix = i / (o->k * o->n), row = i / o->n % o->k, column = i % o->n;
    return turned ? (matrix * o->n + column) * o->k + row : i;
}

static void put_sums(grid_scene *s, const char *name, const oracle_matmul *o, bool turned,
                     const oracle_sum *sums, int64_t numel, int64_t n)
{
    double *want = grid_want(s, name, numel), *terms = grid_terms(s, name, numel);
    for (int64_t i = 0; i < numel; i++) {
        const int64_t at = stored_at(o, turned, i);
        want[at] = sums[i].value, terms[at] = sums[i].terms;
    }
    grid_allow(s, name, "matmul", n);
}

static void answer_matmul(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const int32_t rank = c->shape.rank;
    const bool turned = grid_int(c, "turned"), shared = grid_int(c, "shared");
    oracle_matmul o = { .m = c->shape.dim[rank - 2],
                        .n = grid_int(c, "out"),
                        .k = c->shape.dim[rank - 1],
                        .a_batch = atto_shape_of(rank - 2, c->shape.dim),
                        .batch = atto_shape_of(rank - 2, c->shape.dim),
                        .a = grid_held(s, "a"),
                        .dy = grid_held(s, "dy") };
    o.b_batch = shared ? atto_shape0() : o.a_batch;
    const int64_t batch = grid_product(c->shape, 0, rank - 2), own = shared ? 1 : batch;
    const int64_t y_count = batch * o.m * o.n, b_count = own * o.k * o.n;
    const int64_t a_count = batch * o.m * o.k, pairs = sizeof(oracle_sum) / sizeof(double);
    double *b = grid_array(s, b_count);
    for (int64_t i = 0; i < b_count; i++) b[i] = grid_held(s, "b")[stored_at(&o, turned, i)];
    o.b = b;
    oracle_sum *y = grid_array(s, pairs * y_count), *da = grid_array(s, pairs * a_count);
    oracle_sum *db = grid_array(s, pairs * b_count);
    oracle_matmul_product(&o, y, da, db);
    put_sums(s, "y", &o, false, y, y_count, o.k);
    put_sums(s, "da", &o, false, da, a_count, o.n);
    put_sums(s, "db", &o, turned, db, b_count, o.m * batch / own);
}

const grid_family grid_matmul = {
    .name = "matmul",
    .least_rank = 2,
    .most_rank = 4,
    .options = { { "out", 3, { 1, 16, 96 }, NULL },
                 { "shared", 2, { 0, 1 }, NULL },
                 { "turned", 2, { 0, 1 }, NULL } },
    .rtol = 1e-3,
    .grad_rtol = 1e-3,
    .atol = 1e-3,
    .grad_atol = 1e-3,
    .build = build_matmul,
    .call = call_matmul,
    .answer = answer_matmul,
};
