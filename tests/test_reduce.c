/* SPDX-License-Identifier: MIT */
/* Reductions: the double oracle decides, on every backend. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

static const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };

typedef struct reduce_case {
    atto_reduce_kind kind;
    atto_dtype dtype;
    atto_shape shape;
    int32_t dims[ATTO_MAX_RANK];
    int32_t dim_count;
    test_layout in, out;
    bool keep;     /* y has size 1 where it is reduced */
    bool i64;      /* positions */
    bool add;      /* dx += */
    bool specials; /* ties, NaN and infinities among the values */
    uint64_t seed;
} reduce_case;

/* ---- which elements belong to an output ---- */

typedef struct groups {
    atto_shape y;
    int64_t n, outputs, length;
    int64_t *output_of;   /* element of x -> output */
    int64_t *position_of; /* and its position in it */
} groups;

static bool is_reduced(const reduce_case *c, int32_t d)
{
    for (int32_t i = 0; i < c->dim_count; i++)
        if (c->dims[i] == d || c->dims[i] + c->shape.rank == d) return true;
    return c->dim_count == 0;
}

static groups groups_of(const reduce_case *c)
{
    groups g = { .n = 1, .outputs = 1, .length = 1 };
    for (int32_t d = 0; d < c->shape.rank; d++) {
        const int64_t size = c->shape.dim[d];
        g.n *= size;
        if (is_reduced(c, d)) {
            g.length *= size;
            if (c->keep) g.y.dim[g.y.rank++] = 1;
        } else {
            g.outputs *= size;
            g.y.dim[g.y.rank++] = size;
        }
    }
    g.output_of = calloc((size_t)g.n + 1, sizeof *g.output_of);
    g.position_of = calloc((size_t)g.n + 1, sizeof *g.position_of);
    for (int64_t i = 0; i < g.n; i++) {
        int64_t rest = i, output_stride = 1, position_stride = 1;
        for (int32_t d = c->shape.rank - 1; d >= 0; d--) {
            const int64_t at = rest % c->shape.dim[d];
            rest /= c->shape.dim[d];
            if (is_reduced(c, d)) {
                g.position_of[i] += at * position_stride;
                position_stride *= c->shape.dim[d];
            } else {
                g.output_of[i] += at * output_stride;
                output_stride *= c->shape.dim[d];
            }
        }
    }
    return g;
}

/* values[output][position] */
static double *sorted(const groups *g, const double *x)
{
    double *out = test_doubles(g->n);
    for (int64_t i = 0; i < g->n; i++) out[g->output_of[i] * g->length + g->position_of[i]] = x[i];
    return out;
}

/* ---- one case ---- */

static void draw(const reduce_case *c, double *x, int64_t n)
{
    uint64_t seed = c->seed;
    test_uniform(c->seed, -2.0, 2.0, c->dtype, x, n);
    for (int64_t i = 0; i < n && c->specials; i++) {
        const uint64_t r = test_random(&seed) % 1000;
        x[i] = (double)(int)(r % 7) - 3.0; /* many ties */
        if (r == 500) x[i] = NAN;
        if (r == 501) x[i] = INFINITY;
        if (r == 502) x[i] = -INFINITY;
    }
}

static bool is_arg(atto_reduce_kind kind)
{
    return kind == ATTO_REDUCE_ARGMAX || kind == ATTO_REDUCE_ARGMIN;
}

static struct atto_reduce_args args_of(const reduce_case *c)
{
    struct atto_reduce_args a = { .kind = c->kind, .dim_count = c->dim_count, .add_dx = c->add };
    memcpy(a.dims, c->dims, sizeof a.dims);
    return a;
}

static double magnitude(const double *x, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += isfinite(x[i]) ? fabs(x[i]) : 0.0;
    return sum;
}

/* The sum of the magnitudes counts as often as there are terms; for a mean all of it is divided. */
static void check_values(const reduce_case *c, const groups *g, const double *by_output,
                         const test_tensor *ty)
{
    const char *name = atto_reduce_name(c->kind);
    const atto_dtype dtype = ty->view.dtype;
    const test_about about = { name, test_layout_name(c->in), dtype, g->y, c->seed };
    const bool sums = c->kind == ATTO_REDUCE_SUM || c->kind == ATTO_REDUCE_MEAN;
    double *got = test_doubles(g->outputs), *want = test_doubles(g->outputs);
    double *allowed = test_doubles(g->outputs);
    test_tensor_get(ty, got);
    for (int64_t o = 0; o < g->outputs; o++) {
        const double *x = by_output + o * g->length;
        int64_t position;
        want[o] = oracle_reduce(c->kind, x, g->length, &position);
        if (is_arg(c->kind)) want[o] = (double)position;
        if (!sums) continue;
        const double share = c->kind == ATTO_REDUCE_MEAN ? 1.0 / (double)g->length : 1.0;
        allowed[o] = atto_tol(name, dtype, g->length, magnitude(x, g->length) * share);
    }
    if (sums) {
        expect_close(&about, got, want, allowed, g->outputs);
    } else {
        expect_equal(&about, got, want, g->outputs);
    }
    free(got), free(want), free(allowed);
}

/* x is one element, ties of which equal y */
static double gradient(const reduce_case *c, int64_t length, double x, double y, double ties,
                       double dy)
{
    if (c->kind == ATTO_REDUCE_SUM) return dy;
    if (c->kind == ATTO_REDUCE_MEAN) return dy / (double)length;
    return (x == y ? 1.0 : 0.0) * dy / ties; /* 0 / 0 where y is NaN */
}

static void check_backward(const reduce_case *c, const groups *g, const double *x,
                           const test_tensor *tx, const test_tensor *ty)
{
    char name[32];
    snprintf(name, sizeof name, "%s_grad", atto_reduce_name(c->kind));
    const test_about about = { name, test_layout_name(c->in), c->dtype, c->shape, c->seed };
    double *dy = test_doubles(g->outputs), *y = test_doubles(g->outputs), *old = test_doubles(g->n);
    double *ties = test_doubles(g->outputs);
    double *got = test_doubles(g->n), *want = test_doubles(g->n), *allowed = test_doubles(g->n);
    test_tensor tdy, tdx;
    test_tensor_make(&tdy, test_dev, c->dtype, g->y, c->out);
    test_tensor_make(&tdx, test_dev, c->dtype, c->shape, c->in == LAYOUT_BROADCAST ? 0 : c->in);
    test_uniform(c->seed + 1, -2.0, 2.0, c->dtype, dy, g->outputs);
    test_uniform(c->seed + 2, -1.0, 1.0, c->dtype, old, g->n);
    test_tensor_put(&tdy, dy);
    test_tensor_put(&tdx, c->add ? old : NULL);
    test_tensor_get(ty, y);
    struct atto_reduce_args a = args_of(c);
    const bool needs = c->kind == ATTO_REDUCE_MAX || c->kind == ATTO_REDUCE_MIN;
    a.x = needs ? &tx->view : NULL;
    a.y = needs ? &ty->view : NULL;
    a.dy = &tdy.view;
    a.dx = &tdx.view;
    MUST(atto_reduce_backward(test_dev, &a));
    for (int64_t i = 0; i < g->n; i++) ties[g->output_of[i]] += x[i] == y[g->output_of[i]];
    for (int64_t i = 0; i < g->n; i++) {
        const int64_t o = g->output_of[i];
        const double term = gradient(c, g->length, x[i], y[o], ties[o], dy[o]);
        /* MAX rounds dy / ties to the dtype before it is added */
        const double rounded = needs ? oracle_round(c->dtype, term) : term;
        want[i] = rounded + (c->add ? old[i] : 0.0);
        const double size = isfinite(term) ? fabs(term) + (c->add ? fabs(old[i]) : 0.0) : 0.0;
        allowed[i] = atto_tol(name, c->dtype, c->add ? 2 : 1, size);
        if (needs && c->add) allowed[i] += 2.0 * oracle_unit(c->dtype) * fabs(rounded);
    }
    test_tensor_get(&tdx, got);
    expect_close(&about, got, want, allowed, g->n);
    test_tensor_drop(&tdy), test_tensor_drop(&tdx);
    free(dy), free(y), free(old), free(ties), free(got), free(want), free(allowed);
}

static void check(const reduce_case *c)
{
    groups g = groups_of(c);
    const atto_dtype y_dtype = !is_arg(c->kind) ? c->dtype : c->i64 ? ATTO_I64 : ATTO_I32;
    double *x = test_doubles(g.n);
    test_tensor tx, ty;
    test_tensor_make(&tx, test_dev, c->dtype, c->shape, c->in);
    test_tensor_make(&ty, test_dev, y_dtype, g.y, c->out);
    draw(c, x, g.n);
    test_tensor_put(&tx, x);
    test_tensor_held(&tx, x);
    double *by_output = sorted(&g, x);
    struct atto_reduce_args a = args_of(c);
    a.x = &tx.view;
    a.y = &ty.view;
    MUST(atto_reduce_forward(test_dev, &a));
    check_values(c, &g, by_output, &ty);
    assert_true(test_tensor_untouched(&tx));
    if (!is_arg(c->kind)) check_backward(c, &g, x, &tx, &ty);
    test_tensor_drop(&tx), test_tensor_drop(&ty);
    free(x), free(by_output), free(g.output_of), free(g.position_of);
}

/* ---- cases ---- */

/* What a shape is tried with: each kind on the CPU; on OpenCL, where kernels take time to build,
 * one that differs from row to row, mostly in f32. */
static bool wanted(int kind, int row)
{
    return !test_on_opencl() || kind == row * 5 % ATTO_REDUCE_COUNT;
}
static atto_dtype dtype_of(int kind, int row)
{
    return dtypes[test_on_opencl() ? (row % 8 == 7) * 2 : (row + kind) % 3];
}

/* clang-format off */
static const struct shape_row {
    int32_t rank;
    int64_t shape[ATTO_MAX_RANK];
    int32_t dim_count, dims[ATTO_MAX_RANK];
    test_layout in, out;
} shape_rows[] = {
    /* rows: tails, one lane, whole vectors, two stages */
    { 1, { 1 },                1, { 0 },       LAYOUT_DENSE,      LAYOUT_DENSE },
    { 1, { 7 },                0, { 0 },       LAYOUT_DENSE,      LAYOUT_DENSE },
    { 2, { 5, 33 },            1, { 1 },       LAYOUT_DENSE,      LAYOUT_DENSE },
    { 2, { 300, 3 },           1, { -1 },      LAYOUT_DENSE,      LAYOUT_DENSE },
    { 2, { 9, 1024 },          1, { 1 },       LAYOUT_DENSE,      LAYOUT_STEP2 },
    { 2, { 9, 1031 },          1, { 1 },       LAYOUT_PITCHED,    LAYOUT_DENSE },
    { 1, { 200003 },           0, { 0 },       LAYOUT_DENSE,      LAYOUT_DENSE },
    { 1, { 262144 },           0, { 0 },       LAYOUT_DENSE,      LAYOUT_DENSE },
    { 2, { 3, 60000 },         1, { 1 },       LAYOUT_ALIGNED,    LAYOUT_DENSE },
    { 2, { 257, 512 },         0, { 0 },       LAYOUT_PITCHED,    LAYOUT_DENSE },
    /* columns */
    { 2, { 33, 5 },            1, { 0 },       LAYOUT_DENSE,      LAYOUT_DENSE },
    { 2, { 77, 128 },          1, { -2 },      LAYOUT_DENSE,      LAYOUT_DENSE },
    { 2, { 4000, 40 },         1, { 0 },       LAYOUT_DENSE,      LAYOUT_DENSE },
    { 2, { 9000, 3 },          1, { 0 },       LAYOUT_DENSE,      LAYOUT_STEP2 },
    { 2, { 2, 3000 },          1, { 0 },       LAYOUT_OFFSET,     LAYOUT_DENSE },
    { 2, { 513, 20 },          1, { 1 },       LAYOUT_TRANSPOSED, LAYOUT_DENSE },
    /* both, and middle ones */
    { 4, { 3, 5, 4, 16 },      3, { 0, 2, 3 }, LAYOUT_DENSE,      LAYOUT_DENSE },
    { 4, { 3, 5, 4, 16 },      3, { 3, 0, 2 }, LAYOUT_CHANNELS_LAST, LAYOUT_DENSE },
    { 4, { 3, 5, 4, 16 },      2, { 1, 3 },    LAYOUT_DENSE,      LAYOUT_TRANSPOSED },
    { 4, { 3, 5, 4, 16 },      2, { 0, 2 },    LAYOUT_SCATTERED,  LAYOUT_SCATTERED },
    { 3, { 4, 6, 10 },         0, { 0 },       LAYOUT_TRANSPOSED, LAYOUT_DENSE },
    { 3, { 4, 6, 10 },         1, { 1 },       LAYOUT_BROADCAST,  LAYOUT_DENSE },
    { 3, { 4, 6, 10 },         1, { 0 },       LAYOUT_BROADCAST,  LAYOUT_DENSE },
    { 3, { 1, 6, 1 },          2, { 0, 2 },    LAYOUT_DENSE,      LAYOUT_DENSE },
    { 0, { 0 },                0, { 0 },       LAYOUT_DENSE,      LAYOUT_DENSE },
    /* more than four merged dimensions */
    { 6, { 2, 3, 2, 3, 2, 3 }, 3, { 0, 2, 4 }, LAYOUT_DENSE,      LAYOUT_DENSE },
    { 6, { 2, 3, 2, 3, 2, 3 }, 3, { 1, 3, 5 }, LAYOUT_SCATTERED,  LAYOUT_SCATTERED },
    { 5, { 2, 3, 2, 3, 5 },    0, { 0 },       LAYOUT_SCATTERED,  LAYOUT_DENSE },
};
/* clang-format on */

static void reduce_takes_any_shape_and_layout(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(shape_rows); i++)
        for (int kind = 0; kind < ATTO_REDUCE_COUNT; kind++) {
            const struct shape_row *row = &shape_rows[i];
            if (!wanted(kind, i)) continue;
            reduce_case c = { .kind = (atto_reduce_kind)kind,
                              .dtype = dtype_of(kind, i),
                              .shape = atto_shape_of(row->rank, row->shape),
                              .dim_count = row->dim_count,
                              .in = row->in,
                              .out = row->out,
                              .keep = i % 2 == 1,
                              .i64 = i % 2 == 0,
                              .add = i % 3 == 1,
                              .specials = kind >= ATTO_REDUCE_MAX,
                              .seed = 10 + (uint64_t)i };
            memcpy(c.dims, row->dims, sizeof c.dims);
            check(&c);
        }
}

static void reduce_takes_every_dtype(void **state)
{
    (void)state;
    for (int kind = 0; kind < ATTO_REDUCE_COUNT; kind++)
        for (int d = 0; d < COUNT_OF(dtypes); d++)
            for (int rows = 0; rows < 2; rows++)
                if (!test_on_opencl() || (kind + d + rows) % (test_in_disguise() ? 6 : 3) == 0)
                    check(&(reduce_case){ .kind = (atto_reduce_kind)kind,
                                          .dtype = dtypes[d],
                                          .shape = atto_shape2(48, 80),
                                          .dims = { rows },
                                          .dim_count = 1,
                                          .add = d == 0,
                                          .specials = kind >= ATTO_REDUCE_MAX,
                                          .seed = 70 });
}

/* A f16 sum that leaves f16 on the way: 4096 terms of 100 and as many of -100. */
static void reduce_sums_f16_in_f32(void **state)
{
    (void)state;
    enum { N = 8192 };
    double *x = test_doubles(N), y;
    test_tensor tx, ty;
    test_tensor_make(&tx, test_dev, ATTO_F16, atto_shape1(N), LAYOUT_DENSE);
    test_tensor_make(&ty, test_dev, ATTO_F16, atto_shape0(), LAYOUT_DENSE);
    for (int i = 0; i < N; i++) x[i] = i < N / 2 ? 100.0 : -100.0;
    x[5] = 101.0;
    test_tensor_put(&tx, x);
    const struct atto_reduce_args a = { .x = &tx.view, .y = &ty.view };
    MUST(atto_reduce_forward(test_dev, &a));
    test_tensor_get(&ty, &y);
    assert_true(y == 1.0);
    test_tensor_drop(&tx), test_tensor_drop(&ty);
    free(x);
}

/* ---- edges ---- */

static const struct edge_row {
    double x[6];
    double max, min, argmax, argmin;
} edge_rows[] = {
    { { 1, 3, 3, 2, 0, 0 }, 3, 0, 1, 4 },          /* ties: the first */
    { { 1, NAN, 5, NAN, -1, 0 }, NAN, NAN, 1, 1 }, /* NaN wins, the first of them */
    { { -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY },
      -INFINITY,
      -INFINITY,
      0,
      0 },
    { { INFINITY, 1, INFINITY, 2, 3, 4 }, INFINITY, 1, 0, 1 },
    { { NAN, NAN, NAN, NAN, NAN, NAN }, NAN, NAN, 0, 0 },
    { { 0.0, -0.0, 0.0, -0.0, 0.0, -0.0 }, 0, 0, 0, 0 },
};

static void reduce_at_nan_infinity_and_ties(void **state)
{
    (void)state;
    const atto_reduce_kind kinds[] = { ATTO_REDUCE_MAX, ATTO_REDUCE_MIN, ATTO_REDUCE_ARGMAX,
                                       ATTO_REDUCE_ARGMIN };
    for (int i = 0; i < COUNT_OF(edge_rows); i++)
        for (int k = 0; k < COUNT_OF(kinds); k++) {
            const struct edge_row *row = &edge_rows[i];
            const double want[] = { row->max, row->min, row->argmax, row->argmin };
            const test_about about = { atto_reduce_name(kinds[k]), "dense", ATTO_F32, atto_shape0(),
                                       (uint64_t)i };
            test_tensor tx, ty;
            double got;
            test_tensor_make(&tx, test_dev, ATTO_F32, atto_shape1(6), LAYOUT_DENSE);
            test_tensor_make(&ty, test_dev, k < 2 ? ATTO_F32 : ATTO_I64, atto_shape0(),
                             LAYOUT_DENSE);
            test_tensor_put(&tx, row->x);
            const struct atto_reduce_args a = { .x = &tx.view, .y = &ty.view, .kind = kinds[k] };
            MUST(atto_reduce_forward(test_dev, &a));
            test_tensor_get(&ty, &got);
            expect_equal(&about, &got, &want[k], 1);
            test_tensor_drop(&tx), test_tensor_drop(&ty);
        }
}

/* Ties and NaN from one position on: whoever folds what comes later must not win. Whole vectors, a
 * tail, and several slabs. */
static void reduce_finds_the_first_of_many(void **state)
{
    (void)state;
    const int64_t sizes[] = { 4096, 5003, 300000 };
    for (int i = 0; i < COUNT_OF(sizes); i++)
        for (int nan = 0; nan < 2; nan++) {
            double *x = test_doubles(sizes[i]), got;
            test_tensor tx, ty;
            test_tensor_make(&tx, test_dev, ATTO_F32, atto_shape1(sizes[i]), LAYOUT_DENSE);
            test_tensor_make(&ty, test_dev, ATTO_I32, atto_shape0(), LAYOUT_DENSE);
            for (int64_t k = 37; k < sizes[i]; k++) x[k] = nan ? NAN : 2.0;
            test_tensor_put(&tx, x);
            const struct atto_reduce_args a = { .x = &tx.view,
                                                .y = &ty.view,
                                                .kind = ATTO_REDUCE_ARGMAX };
            MUST(atto_reduce_forward(test_dev, &a));
            test_tensor_get(&ty, &got);
            assert_int_equal((int)got, 37);
            test_tensor_drop(&tx), test_tensor_drop(&ty);
            free(x);
        }
}

/* Of no elements a sum is 0 and a mean NaN; others do not exist. */
static void reduce_of_no_elements(void **state)
{
    (void)state;
    test_tensor x, y, ints;
    double got[3];
    test_tensor_make(&x, test_dev, ATTO_F32, atto_shape2(3, 0), LAYOUT_DENSE);
    test_tensor_make(&y, test_dev, ATTO_F32, atto_shape1(3), LAYOUT_DENSE);
    test_tensor_make(&ints, test_dev, ATTO_I32, atto_shape1(3), LAYOUT_DENSE);
    struct atto_reduce_args a = { .x = &x.view, .y = &y.view, .dims = { 1 }, .dim_count = 1 };
    MUST(atto_reduce_forward(test_dev, &a));
    test_tensor_get(&y, got);
    assert_true(got[0] == 0.0 && got[1] == 0.0 && got[2] == 0.0);
    a.kind = ATTO_REDUCE_MEAN;
    MUST(atto_reduce_forward(test_dev, &a));
    test_tensor_get(&y, got);
    assert_true(isnan(got[0]) && isnan(got[1]) && isnan(got[2]));
    a.kind = ATTO_REDUCE_MAX;
    EXPECT_FAIL(atto_reduce_forward(test_dev, &a), ATTO_E_SHAPE, "max|no elements");
    a.kind = ATTO_REDUCE_ARGMIN, a.y = &ints.view;
    EXPECT_FAIL(atto_reduce_forward(test_dev, &a), ATTO_E_SHAPE, "argmin|no elements");
    const atto_tensor none = atto_tensor_of(NULL, ATTO_F32, atto_shape1(0), 0);
    a = (struct atto_reduce_args){
        .x = &x.view, .y = &none, .dims = { 0 }, .dim_count = 1, .kind = ATTO_REDUCE_MAX
    };
    MUST(atto_reduce_forward(test_dev, &a)); /* no outputs */
    test_tensor_drop(&x), test_tensor_drop(&y), test_tensor_drop(&ints);
}

/* ---- arguments ---- */

static void reduce_refuses_illegal_arguments(void **state)
{
    (void)state;
    test_tensor x, y, half, ints;
    test_tensor_make(&x, test_dev, ATTO_F32, atto_shape2(3, 5), LAYOUT_DENSE);
    test_tensor_make(&y, test_dev, ATTO_F32, atto_shape1(3), LAYOUT_DENSE);
    test_tensor_make(&half, test_dev, ATTO_F16, atto_shape1(3), LAYOUT_DENSE);
    test_tensor_make(&ints, test_dev, ATTO_I32, atto_shape1(3), LAYOUT_DENSE);
    const struct atto_reduce_args good = {
        .x = &x.view, .y = &y.view, .dims = { 1 }, .dim_count = 1
    };
    struct atto_reduce_args a = good;
    a.kind = ATTO_REDUCE_COUNT;
    EXPECT_FAIL(atto_reduce_forward(test_dev, &a), ATTO_E_ARGUMENT, "no reduction");
    a = good, a.dims[0] = 2;
    EXPECT_FAIL(atto_reduce_forward(test_dev, &a), ATTO_E_ARGUMENT, "dims[0]");
    a = good, a.dims[0] = -3;
    EXPECT_FAIL(atto_reduce_forward(test_dev, &a), ATTO_E_ARGUMENT, "dims[0]");
    a = good, a.dims[1] = -1, a.dim_count = 2;
    EXPECT_FAIL(atto_reduce_forward(test_dev, &a), ATTO_E_ARGUMENT, "twice");
    a = good, a.dim_count = 3;
    EXPECT_FAIL(atto_reduce_forward(test_dev, &a), ATTO_E_ARGUMENT, "dim_count");
    a = good, a.dim_count = -1;
    EXPECT_FAIL(atto_reduce_forward(test_dev, &a), ATTO_E_ARGUMENT, "dim_count");
    a = good, a.dims[0] = 0;
    EXPECT_FAIL(atto_reduce_forward(test_dev, &a), ATTO_E_SHAPE, "y is [3]");
    a = good, a.y = &half.view;
    EXPECT_FAIL(atto_reduce_forward(test_dev, &a), ATTO_E_DTYPE, "y");
    a = good, a.kind = ATTO_REDUCE_ARGMAX;
    EXPECT_FAIL(atto_reduce_forward(test_dev, &a), ATTO_E_DTYPE, "y");
    a = good, a.x = &ints.view, a.dim_count = 0;
    EXPECT_FAIL(atto_reduce_forward(test_dev, &a), ATTO_E_DTYPE, "x");
    a = (struct atto_reduce_args){
        .dy = &y.view, .dx = &x.view, .dims = { 1 }, .dim_count = 1, .kind = ATTO_REDUCE_MAX
    };
    EXPECT_FAIL(atto_reduce_backward(test_dev, &a), ATTO_E_NULL, "x");
    a.kind = ATTO_REDUCE_ARGMAX;
    EXPECT_FAIL(atto_reduce_backward(test_dev, &a), ATTO_E_UNSUPPORTED, "argmax");
    assert_true(test_tensor_untouched(&x) && test_tensor_untouched(&y));
    test_tensor_drop(&x), test_tensor_drop(&y), test_tensor_drop(&half), test_tensor_drop(&ints);
}

/* ---- determinism ---- */

static void reduce_repeats_bit_for_bit(void **state)
{
    (void)state;
    enum { N = 300007 };
    double *x = test_doubles(N);
    test_tensor tx, ty;
    uint64_t first, again;
    test_tensor_make(&tx, test_dev, ATTO_F32, atto_shape1(N), LAYOUT_DENSE);
    test_tensor_make(&ty, test_dev, ATTO_F32, atto_shape0(), LAYOUT_DENSE);
    test_uniform(1, -1.0, 1.0, ATTO_F32, x, N);
    test_tensor_put(&tx, x);
    const struct atto_reduce_args a = { .x = &tx.view, .y = &ty.view };
    for (int run = 0; run < 50; run++) {
        MUST(atto_reduce_forward(test_dev, &a));
        test_tensor_bits(&ty, run == 0 ? &first : &again);
        if (run > 0) assert_true(first == again);
    }
    /* whatever the number of threads */
    const atto_device_options one = { .num_threads = 1 };
    atto_device *other;
    MUST(atto_device_open(test_device_name(), &one, &other));
    test_tensor ox, oy;
    test_tensor_make(&ox, other, ATTO_F32, atto_shape1(N), LAYOUT_DENSE);
    test_tensor_make(&oy, other, ATTO_F32, atto_shape0(), LAYOUT_DENSE);
    test_tensor_put(&ox, x);
    const struct atto_reduce_args b = { .x = &ox.view, .y = &oy.view };
    MUST(atto_reduce_forward(other, &b));
    test_tensor_bits(&oy, &again);
    assert_true(first == again);
    test_tensor_drop(&tx), test_tensor_drop(&ty), test_tensor_drop(&ox), test_tensor_drop(&oy);
    atto_device_close(other);
    free(x);
}

static void reduce_never_fell_back(void **state)
{
    (void)state;
    atto_device_stats stats;
    MUST(atto_device_stats_get(test_dev, &stats));
    assert_int_equal(stats.fallbacks, 0);
    for (int d = 0; d < COUNT_OF(dtypes); d++)
        assert_true(atto_device_supports(test_dev, ATTO_OP_REDUCE, dtypes[d]));
    assert_string_equal(atto_reduce_name(ATTO_REDUCE_ARGMIN), "argmin");
    assert_string_equal(atto_reduce_name(ATTO_REDUCE_COUNT), "?");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(reduce_takes_any_shape_and_layout),
    cmocka_unit_test(reduce_takes_every_dtype),
    cmocka_unit_test(reduce_sums_f16_in_f32),
    cmocka_unit_test(reduce_at_nan_infinity_and_ties),
    cmocka_unit_test(reduce_finds_the_first_of_many),
    cmocka_unit_test(reduce_of_no_elements),
    cmocka_unit_test(reduce_refuses_illegal_arguments),
    cmocka_unit_test(reduce_repeats_bit_for_bit),
    cmocka_unit_test(reduce_never_fell_back),
};
TEST_MAIN("reduce", tests)
