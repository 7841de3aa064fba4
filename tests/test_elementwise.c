/* SPDX-License-Identifier: MIT */
/* Elementwise ops and their broadcasting: the double oracle decides, on every backend. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

static const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };

/* Building a kernel costs a driver a quarter of a second: OpenCL meets each kind with f32 and one
 * 16-bit dtype, where it plays another device with one dtype alone; the CPU meets all. */
static bool wanted(int kind, atto_dtype dtype)
{
    if (!test_on_opencl()) return true;
    if (test_in_disguise()) return dtype == dtypes[kind % 3];
    return dtype == ATTO_F32 || dtype == dtypes[1 + kind % 2];
}

static int64_t numel(const atto_shape *shape)
{
    int64_t n = 1;
    for (int32_t d = 0; d < shape->rank; d++) n *= shape->dim[d];
    return n;
}

/* ---- data ---- */

/* Zeros, units, ends of clamp's range, huge and tiny values, infinities and NaN. */
static const double specials[] = { 0.0,  -0.0,  1.0,  -1.0,  0.5,  -0.5,     2.0,
                                   -2.0, 3.0,   -3.0, -0.25, 1e-3, INFINITY, -INFINITY,
                                   NAN,  100.0, 1e-5, -1e-5, 1e4,  -1e4,     0.75 };

/* Specials first, each beside each when two are drawn with different strides, then a mix. */
static void draw(uint64_t seed, int64_t stride, atto_dtype dtype, double *out, int64_t n)
{
    const int64_t many = COUNT_OF(specials);
    for (int64_t i = 0; i < n; i++) {
        const double size = exp2(-6.0 + 10.0 * (double)(test_random(&seed) >> 11) * 0x1p-53);
        const double mixed = test_random(&seed) & 1 ? size : -size;
        const bool special = i < many * many;
        out[i] = oracle_round(dtype, special ? specials[i / stride % many] : mixed);
    }
}

/* ---- unary ---- */

typedef struct unary_case {
    atto_unary_kind kind;
    atto_dtype dtype;
    atto_shape shape;
    test_layout in, out;
    bool add, in_place;
    uint64_t seed;
} unary_case;

static double finite(double v)
{
    return isfinite(v) ? fabs(v) : 0.0;
}

static void check_unary(const unary_case *c)
{
    const float lo = -0.25f, hi = 0.75f;
    const int64_t n = numel(&c->shape);
    const char *stem = atto_unary_name(c->kind);
    char name[32];
    double *x = test_doubles(n), *dy = test_doubles(n), *old = test_doubles(n);
    double *got = test_doubles(n), *want = test_doubles(n), *allowed = test_doubles(n);
    test_tensor tx, ty, tdy, tdx;
    test_tensor_make(&tx, test_dev, c->dtype, c->shape, c->in);
    test_tensor_make(&tdy, test_dev, c->dtype, c->shape, c->in_place ? c->out : c->in);
    test_tensor_make(&ty, test_dev, c->dtype, c->shape, c->out);
    test_tensor_make(&tdx, test_dev, c->dtype, c->shape, c->out);
    draw(c->seed, 1, c->dtype, x, n);
    test_uniform(c->seed + 1, -2.0, 2.0, c->dtype, dy, n);
    test_uniform(c->seed + 2, -1.0, 1.0, c->dtype, old, n);
    test_tensor_put(&tx, x);
    test_tensor_put(&tdy, dy);
    if (c->add) test_tensor_put(&tdx, old);
    test_tensor_held(&tx, x);
    test_tensor_held(&tdy, dy);
    const double *base = c->in_place ? dy : old;

    const struct atto_unary_args a = { .x = &tx.view,
                                       .y = &ty.view,
                                       .dy = &tdy.view,
                                       .dx = c->in_place ? &tdy.view : &tdx.view,
                                       .add_dx = c->add,
                                       .kind = c->kind,
                                       .lo = lo,
                                       .hi = hi };
    MUST(atto_unary_forward(test_dev, &a));
    MUST(atto_unary_backward(test_dev, &a));

    test_about about = { stem, test_layout_name(c->in), c->dtype, c->shape, c->seed };
    test_tensor_get(&ty, got);
    for (int64_t i = 0; i < n; i++) {
        want[i] = oracle_unary(c->kind, x[i], lo, hi);
        allowed[i] = atto_tol(stem, c->dtype, 1, finite(want[i]));
    }
    expect_close(&about, got, want, allowed, n);

    snprintf(name, sizeof name, "%s_grad", stem);
    about.op = name;
    test_tensor_get(c->in_place ? &tdy : &tdx, got);
    for (int64_t i = 0; i < n; i++) {
        const double grad = oracle_unary_grad(c->kind, x[i], dy[i], lo, hi);
        want[i] = grad + (c->add ? base[i] : 0.0);
        allowed[i] =
            atto_tol(name, c->dtype, c->add ? 2 : 1, finite(grad) + (c->add ? fabs(base[i]) : 0.0));
    }
    expect_close(&about, got, want, allowed, n);
    assert_true(test_tensor_untouched(&tx));
    test_tensor_drop(&tx), test_tensor_drop(&ty), test_tensor_drop(&tdy), test_tensor_drop(&tdx);
    free(x), free(dy), free(old), free(got), free(want), free(allowed);
}

static void unary_matches_oracle(void **state)
{
    (void)state;
    for (int kind = 0; kind < ATTO_UNARY_COUNT; kind++)
        for (int d = 0; d < COUNT_OF(dtypes); d++)
            if (wanted(kind, dtypes[d]))
                check_unary(&(unary_case){ .kind = (atto_unary_kind)kind,
                                           .dtype = dtypes[d],
                                           .shape = atto_shape1(1031),
                                           .add = kind % 2 == 1,
                                           .seed = 10 + (uint64_t)kind });
}

static void unary_takes_any_layout(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_PITCHED,   LAYOUT_ALIGNED, LAYOUT_TRANSPOSED,
                                    LAYOUT_SCATTERED, LAYOUT_OFFSET,  LAYOUT_BROADCAST };
    for (int i = 0; i < COUNT_OF(layouts); i++)
        check_unary(&(unary_case){ .kind = ATTO_UNARY_SQUARE,
                                   .dtype = dtypes[i % 2],
                                   .shape = atto_shape3(3, 7, 16),
                                   .in = layouts[i],
                                   .out = layouts[(i + 1) % 5],
                                   .in_place = i == 1,
                                   .add = i % 2 == 0,
                                   .seed = 50 + (uint64_t)i });
}

/* ---- binary ---- */

typedef struct binary_case {
    atto_binary_kind kind;
    atto_dtype dtype;
    atto_shape a, b, y;
    test_layout in, out;
    bool no_a, no_b; /* the number instead */
    bool add;
    bool plain;   /* no special values: sums would be NaN */
    int in_place; /* 1: y is a and da is dy; 2: y is b and db is dy */
    uint64_t seed;
} binary_case;

#define VALUE 1.5f

/* Element of a tensor of that shape that element i of the larger shape repeats. */
static int64_t source(const atto_shape *small, const atto_shape *large, int64_t i)
{
    int64_t at = 0, stride = 1;
    for (int32_t d = large->rank - 1; d >= 0; d--) {
        const int32_t own = d - (large->rank - small->rank);
        if (own >= 0) {
            if (small->dim[own] > 1) at += i % large->dim[d] * stride;
            stride *= small->dim[own];
        }
        i /= large->dim[d];
    }
    return at;
}

/* One of a and b: its tensor and gradient. */
typedef struct operand {
    atto_shape shape;
    int64_t n;
    double *values, *old;
    test_tensor t, grad;
} operand;

static void make_operand(operand *o, const binary_case *c, bool is_b)
{
    o->shape = is_b ? c->b : c->a;
    o->n = numel(&o->shape);
    o->values = test_doubles(o->n);
    o->old = test_doubles(o->n);
    test_tensor_make(&o->t, test_dev, c->dtype, o->shape, c->in);
    test_tensor_make(&o->grad, test_dev, c->dtype, o->shape, c->out);
    if (c->plain) {
        test_uniform(c->seed + is_b, 0.5, 2.0, c->dtype, o->values, o->n);
    } else {
        draw(c->seed + is_b, is_b ? 1 : COUNT_OF(specials), c->dtype, o->values, o->n);
    }
    test_uniform(c->seed + 7 + is_b, -1.0, 1.0, c->dtype, o->old, o->n);
    test_tensor_put(&o->t, o->values);
    test_tensor_held(&o->t, o->values);
    if (c->add) test_tensor_put(&o->grad, o->old);
}

static void drop_operand(operand *o)
{
    test_tensor_drop(&o->t);
    test_tensor_drop(&o->grad);
    free(o->values), free(o->old);
}

static double operand_at(const operand *o, const binary_case *c, bool is_number, int64_t i)
{
    return is_number ? (double)VALUE : o->values[source(&o->shape, &c->y, i)];
}

static void check_binary_gradient(const binary_case *c, const operand *a, const operand *b,
                                  bool of_b, const double *dy, const test_tensor *result)
{
    const operand *o = of_b ? b : a;
    char name[32];
    snprintf(name, sizeof name, "%s_grad", atto_binary_name(c->kind));
    const test_about about = { name, test_layout_name(c->in), c->dtype, o->shape, c->seed };
    double *got = test_doubles(o->n), *want = test_doubles(o->n), *size = test_doubles(o->n);
    const int64_t n = numel(&c->y);
    for (int64_t i = 0; i < n; i++) {
        const int64_t to = source(&o->shape, &c->y, i);
        const double x = operand_at(a, c, c->no_a, i), y = operand_at(b, c, c->no_b, i);
        const double term = oracle_binary_grad(c->kind, of_b, x, y, dy[i]);
        want[to] += term;
        size[to] += finite(term) + oracle_binary_grad_scale(c->kind, of_b, x, y, dy[i]);
    }
    const int64_t terms = o->n ? n / o->n + (c->add ? 1 : 0) : 1;
    const double *base = c->in_place == (of_b ? 2 : 1) ? dy : o->old;
    for (int64_t i = 0; i < o->n; i++) {
        if (c->add) want[i] += base[i];
        size[i] = atto_tol(name, c->dtype, terms, size[i] + (c->add ? fabs(base[i]) : 0.0));
    }
    test_tensor_get(result, got);
    expect_close(&about, got, want, size, o->n);
    free(got), free(want), free(size);
}

static void check_binary(const binary_case *c)
{
    const int64_t n = numel(&c->y);
    const char *name = atto_binary_name(c->kind);
    const test_about about = { name, test_layout_name(c->in), c->dtype, c->y, c->seed };
    double *dy = test_doubles(n), *got = test_doubles(n), *want = test_doubles(n);
    double *allowed = test_doubles(n);
    operand a, b;
    test_tensor ty, tdy;
    make_operand(&a, c, false);
    make_operand(&b, c, true);
    test_tensor_make(&ty, test_dev, c->dtype, c->y, c->out);
    test_tensor_make(&tdy, test_dev, c->dtype, c->y, c->in_place ? c->out : c->in);
    test_uniform(c->seed + 3, -2.0, 2.0, c->dtype, dy, n);
    test_tensor_put(&tdy, dy);
    test_tensor_held(&tdy, dy);

    struct atto_binary_args args = { .a = c->no_a ? NULL : &a.t.view,
                                     .b = c->no_b ? NULL : &b.t.view,
                                     .dy = &tdy.view,
                                     .da = c->no_a ? NULL : &a.grad.view,
                                     .db = c->no_b ? NULL : &b.grad.view,
                                     .add_da = c->add,
                                     .add_db = c->add,
                                     .kind = c->kind,
                                     .value = VALUE };
    if (c->in_place == 1) args.da = &tdy.view;
    if (c->in_place == 2) args.db = &tdy.view;
    MUST(atto_binary_backward(test_dev, &args));
    if (!c->no_a) check_binary_gradient(c, &a, &b, false, dy, c->in_place == 1 ? &tdy : &a.grad);
    if (!c->no_b) check_binary_gradient(c, &a, &b, true, dy, c->in_place == 2 ? &tdy : &b.grad);
    assert_true(test_tensor_untouched(&a.t) && test_tensor_untouched(&b.t));

    test_tensor *out = c->in_place == 1 ? &a.t : c->in_place == 2 ? &b.t : &ty;
    args.y = &out->view;
    MUST(atto_binary_forward(test_dev, &args));
    test_tensor_get(out, got);
    for (int64_t i = 0; i < n; i++) {
        want[i] =
            oracle_binary(c->kind, operand_at(&a, c, c->no_a, i), operand_at(&b, c, c->no_b, i));
        allowed[i] = atto_tol(name, c->dtype, 1, finite(want[i]));
    }
    expect_close(&about, got, want, allowed, n);
    drop_operand(&a), drop_operand(&b);
    test_tensor_drop(&ty), test_tensor_drop(&tdy);
    free(dy), free(got), free(want), free(allowed);
}

static void binary_matches_oracle(void **state)
{
    (void)state;
    const atto_shape shape = atto_shape1(1031);
    for (int kind = 0; kind < ATTO_BINARY_COUNT; kind++)
        for (int d = 0; d < COUNT_OF(dtypes); d++)
            if (wanted(kind, dtypes[d]))
                check_binary(&(binary_case){ .kind = (atto_binary_kind)kind,
                                             .dtype = dtypes[d],
                                             .a = shape,
                                             .b = shape,
                                             .y = shape,
                                             .add = kind % 2 == 1,
                                             .seed = 100 + (uint64_t)kind });
}

static void binary_takes_a_number_for_a_or_b(void **state)
{
    (void)state;
    const atto_shape shape = atto_shape1(517);
    for (int kind = 0; kind < ATTO_BINARY_COUNT; kind++)
        for (int side = 0; side < 2; side++)
            if (!test_on_opencl() || kind == ATTO_BINARY_SUB || kind == ATTO_BINARY_POW)
                check_binary(&(binary_case){ .kind = (atto_binary_kind)kind,
                                             .dtype = ATTO_F32,
                                             .a = shape,
                                             .b = shape,
                                             .y = shape,
                                             .no_a = side == 0,
                                             .no_b = side == 1,
                                             .seed = 150 + (uint64_t)kind });
}

#define SHAPE(...)                                                       \
    {                                                                    \
        (int32_t)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), \
        {                                                                \
            __VA_ARGS__                                                  \
        }                                                                \
    }

/* Rows, columns, both at once, missing dimensions, middle ones, sizes that leave vectors no room,
 * sums long enough for two stages, and alternating ones that do not merge to four dimensions. */
static const struct broadcast_row {
    atto_shape a, b, y;
    test_layout in, out;
} broadcast_rows[] = {
    { SHAPE(6, 40), SHAPE(40), SHAPE(6, 40), LAYOUT_DENSE, LAYOUT_DENSE },
    { SHAPE(6, 40), SHAPE(6, 1), SHAPE(6, 40), LAYOUT_DENSE, LAYOUT_DENSE },
    { SHAPE(5, 33), SHAPE(5, 1), SHAPE(5, 33), LAYOUT_PITCHED, LAYOUT_TRANSPOSED },
    { SHAPE(7, 1), SHAPE(1, 9), SHAPE(7, 9), LAYOUT_DENSE, LAYOUT_DENSE },
    { SHAPE(9), SHAPE(7, 1), SHAPE(7, 9), LAYOUT_STEP2, LAYOUT_STEP2 },
    { SHAPE(5, 1, 3), SHAPE(2, 3), SHAPE(5, 2, 3), LAYOUT_DENSE, LAYOUT_SCATTERED },
    { SHAPE(2, 3, 4, 8), SHAPE(3, 1, 1), SHAPE(2, 3, 4, 8), LAYOUT_CHANNELS_LAST, LAYOUT_DENSE },
    { SHAPE(2, 3, 4, 8), SHAPE(1, 3, 1, 8), SHAPE(2, 3, 4, 8), LAYOUT_DENSE, LAYOUT_DENSE },
    { SHAPE(1), SHAPE(3, 5), SHAPE(3, 5), LAYOUT_OFFSET, LAYOUT_DENSE },
    { SHAPE(3000, 17), SHAPE(17), SHAPE(3000, 17), LAYOUT_DENSE, LAYOUT_DENSE },
    { SHAPE(3, 20000), SHAPE(3, 1), SHAPE(3, 20000), LAYOUT_DENSE, LAYOUT_DENSE },
    { SHAPE(1, 1), SHAPE(90000), SHAPE(1, 90000), LAYOUT_DENSE, LAYOUT_DENSE },
    { SHAPE(2, 1, 3, 1, 2, 1), SHAPE(1, 3, 1, 2, 1, 5), SHAPE(2, 3, 3, 2, 2, 5), LAYOUT_DENSE,
      LAYOUT_DENSE },
    { SHAPE(2, 1, 3, 1, 2, 1, 2, 1), SHAPE(2, 3, 3, 2, 2, 5, 2, 2), SHAPE(2, 3, 3, 2, 2, 5, 2, 2),
      LAYOUT_SCATTERED, LAYOUT_SCATTERED },
};

/* A product, whose gradients are summed through memory, and a difference, whose are not. */
static void binary_broadcasts(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(broadcast_rows); i++)
        for (int k = 0; k < 2; k++) {
            const struct broadcast_row *row = &broadcast_rows[i];
            if (test_on_opencl() && test_in_disguise() && (i + k) % 2) continue;
            check_binary(&(binary_case){ .kind = k ? ATTO_BINARY_SUB : ATTO_BINARY_MUL,
                                         .dtype = dtypes[(i + k) % 3],
                                         .a = row->a,
                                         .b = row->b,
                                         .y = row->y,
                                         .in = row->in,
                                         .out = row->out,
                                         .add = i % 2 == 1,
                                         .plain = true,
                                         .seed = 200 + (uint64_t)i });
        }
}

/* A rank-0 tensor is a number on the device. */
static void binary_takes_rank_0(void **state)
{
    (void)state;
    for (int side = 0; side < 2; side++)
        check_binary(&(binary_case){ .kind = ATTO_BINARY_DIV,
                                     .dtype = ATTO_F32,
                                     .a = side ? atto_shape0() : atto_shape2(5, 9),
                                     .b = side ? atto_shape2(5, 9) : atto_shape0(),
                                     .y = atto_shape2(5, 9),
                                     .plain = true,
                                     .seed = 300 });
}

static void binary_works_in_place(void **state)
{
    (void)state;
    for (int kind = 0; kind < ATTO_BINARY_COUNT; kind++)
        for (int place = 1; place <= 2; place++)
            if (!test_on_opencl() || kind == ATTO_BINARY_DIV)
                check_binary(&(binary_case){ .kind = (atto_binary_kind)kind,
                                             .dtype = ATTO_F32,
                                             .a = atto_shape2(9, 40),
                                             .b = atto_shape2(9, 40),
                                             .y = atto_shape2(9, 40),
                                             .out = place == 1 ? LAYOUT_DENSE : LAYOUT_PITCHED,
                                             .in = place == 1 ? LAYOUT_DENSE : LAYOUT_PITCHED,
                                             .in_place = place,
                                             .add = kind % 2 == 0,
                                             .plain = true,
                                             .seed = 320 });
}

/* Two tensors without elements sum to 0 where they were repeated. */
static void binary_of_empty_tensors_writes_zero_gradients(void **state)
{
    (void)state;
    test_tensor a, dy, db;
    test_tensor_make(&a, test_dev, ATTO_F32, atto_shape2(0, 5), LAYOUT_DENSE);
    test_tensor_make(&dy, test_dev, ATTO_F32, atto_shape2(0, 5), LAYOUT_DENSE);
    test_tensor_make(&db, test_dev, ATTO_F32, atto_shape1(5), LAYOUT_DENSE);
    struct atto_binary_args args = { .a = &a.view,
                                     .b = &db.view,
                                     .y = &a.view,
                                     .dy = &dy.view,
                                     .db = &db.view,
                                     .kind = ATTO_BINARY_MUL };
    MUST(atto_binary_forward(test_dev, &args));
    test_tensor b;
    test_tensor_make(&b, test_dev, ATTO_F32, atto_shape1(5), LAYOUT_DENSE);
    args.b = &b.view;
    MUST(atto_binary_backward(test_dev, &args));
    double got[5], ones[5] = { 1, 1, 1, 1, 1 };
    test_tensor_get(&db, got);
    for (int i = 0; i < 5; i++) assert_true(got[i] == 0.0);
    test_tensor_put(&db, ones);
    args.add_db = true;
    MUST(atto_binary_backward(test_dev, &args));
    assert_true(test_tensor_untouched(&db));
    test_tensor_drop(&a), test_tensor_drop(&b), test_tensor_drop(&dy), test_tensor_drop(&db);
}

/* ---- where ---- */

typedef struct where_case {
    atto_dtype dtype;
    atto_shape cond, a, b, y;
    test_layout layout;
    bool no_a, no_b, add;
} where_case;

static void check_where_gradient(const where_case *c, bool of_b, const double *cond,
                                 const double *dy, const double *old, const test_tensor *grad)
{
    const atto_shape *shape = of_b ? &c->b : &c->a;
    const int64_t n = numel(&c->y), m = numel(shape);
    const test_about about = { "where_grad", test_layout_name(c->layout), c->dtype, *shape, 0 };
    double *got = test_doubles(m), *want = test_doubles(m), *size = test_doubles(m);
    for (int64_t i = 0; i < n; i++) {
        const bool is_true = cond[source(&c->cond, &c->y, i)] != 0.0;
        const int64_t to = source(shape, &c->y, i);
        if (is_true != of_b) want[to] += dy[i], size[to] += fabs(dy[i]);
    }
    for (int64_t i = 0; i < m; i++) {
        if (c->add) want[i] += old[i], size[i] += fabs(old[i]);
        size[i] = atto_tol("where_grad", c->dtype, n / m + 1, size[i]);
    }
    test_tensor_get(grad, got);
    expect_close(&about, got, want, size, m);
    free(got), free(want), free(size);
}

static void check_where(const where_case *c)
{
    const int64_t n = numel(&c->y), nc = numel(&c->cond), na = numel(&c->a), nb = numel(&c->b);
    const test_about about = { "where", test_layout_name(c->layout), c->dtype, c->y, 0 };
    double *cond = test_doubles(nc), *a = test_doubles(na), *b = test_doubles(nb);
    double *dy = test_doubles(n), *got = test_doubles(n), *want = test_doubles(n);
    double *old = test_doubles(na > nb ? na : nb);
    test_tensor tc, ta, tb, ty, tdy, tda, tdb;
    test_tensor_make(&tc, test_dev, ATTO_I32, c->cond, c->layout);
    test_tensor_make(&ta, test_dev, c->dtype, c->a, c->layout);
    test_tensor_make(&tb, test_dev, c->dtype, c->b, LAYOUT_DENSE);
    test_tensor_make(&ty, test_dev, c->dtype, c->y, c->layout);
    test_tensor_make(&tdy, test_dev, c->dtype, c->y, LAYOUT_DENSE);
    test_tensor_make(&tda, test_dev, c->dtype, c->a, LAYOUT_DENSE);
    test_tensor_make(&tdb, test_dev, c->dtype, c->b, c->layout);
    for (int64_t i = 0; i < nc; i++) cond[i] = (double)(i * 7 % 5 - 2); /* -2 .. 2 */
    test_uniform(1, -2.0, 2.0, c->dtype, a, na);
    test_uniform(2, -2.0, 2.0, c->dtype, b, nb);
    test_uniform(3, -2.0, 2.0, c->dtype, dy, n);
    test_uniform(4, -2.0, 2.0, c->dtype, old, na > nb ? na : nb);
    a[0] = NAN;
    test_tensor_put(&tc, cond), test_tensor_put(&ta, a), test_tensor_put(&tb, b);
    test_tensor_put(&tdy, dy), test_tensor_put(&tda, old), test_tensor_put(&tdb, old);
    const struct atto_where_args args = { .cond = &tc.view,
                                          .a = c->no_a ? NULL : &ta.view,
                                          .b = c->no_b ? NULL : &tb.view,
                                          .y = &ty.view,
                                          .dy = &tdy.view,
                                          .da = &tda.view,
                                          .db = &tdb.view,
                                          .add_da = c->add,
                                          .add_db = c->add,
                                          .value = VALUE };
    MUST(atto_where_forward(test_dev, &args));
    MUST(atto_where_backward(test_dev, &args));
    test_tensor_get(&ty, got);
    for (int64_t i = 0; i < n; i++) {
        const double left = c->no_a ? (double)VALUE : a[source(&c->a, &c->y, i)];
        const double right = c->no_b ? (double)VALUE : b[source(&c->b, &c->y, i)];
        want[i] = cond[source(&c->cond, &c->y, i)] != 0.0 ? left : right;
    }
    expect_equal(&about, got, want, n);
    check_where_gradient(c, false, cond, dy, old, &tda);
    check_where_gradient(c, true, cond, dy, old, &tdb);
    test_tensor *all[] = { &tc, &ta, &tb, &ty, &tdy, &tda, &tdb };
    for (int i = 0; i < COUNT_OF(all); i++) test_tensor_drop(all[i]);
    free(cond), free(a), free(b), free(dy), free(got), free(want), free(old);
}

static void where_selects_and_routes_gradients(void **state)
{
    (void)state;
    const atto_shape s = atto_shape2(13, 40);
    const where_case cases[] = {
        { ATTO_F32, s, s, s, s, LAYOUT_DENSE, false, false, false },
        { ATTO_F16, s, s, s, s, LAYOUT_TRANSPOSED, false, true, true },
        { ATTO_BF16, s, s, s, s, LAYOUT_PITCHED, true, false, false },
        { ATTO_F32, atto_shape1(40), s, atto_shape2(13, 1), s, LAYOUT_DENSE, false, false, true },
        { ATTO_F16, atto_shape2(13, 1), atto_shape1(40), atto_shape2(1, 1), s, LAYOUT_DENSE, false,
          false, false },
    };
    for (int i = 0; i < COUNT_OF(cases); i++) check_where(&cases[i]);
}

/* ---- compare ---- */

static void check_compare(atto_compare_kind kind, atto_dtype dtype, bool by_row, bool number)
{
    const bool integer = dtype == ATTO_I32 || dtype == ATTO_I64;
    const atto_shape y = atto_shape2(21, 21), b = by_row ? atto_shape1(21) : y;
    const test_about about = { atto_compare_name(kind), "dense", ATTO_I32, y, 0 };
    double va[441], vb[441], got[441], want[441];
    test_tensor ta, tb, ty;
    test_tensor_make(&ta, test_dev, dtype, y, by_row ? LAYOUT_TRANSPOSED : LAYOUT_DENSE);
    test_tensor_make(&tb, test_dev, dtype, b, LAYOUT_DENSE);
    test_tensor_make(&ty, test_dev, ATTO_I32, y, by_row ? LAYOUT_PITCHED : LAYOUT_DENSE);
    for (int i = 0; i < 441; i++) va[i] = integer ? (double)(i / 21 - 10) : specials[i / 21];
    for (int i = 0; i < 441; i++) vb[i] = integer ? (double)(i % 21 - 10) : specials[i % 21];
    for (int i = 0; i < 441; i++)
        va[i] = oracle_round(dtype, va[i]), vb[i] = oracle_round(dtype, vb[i]);
    test_tensor_put(&ta, va);
    test_tensor_put(&tb, vb);
    const struct atto_compare_args args = {
        .a = &ta.view, .b = number ? NULL : &tb.view, .y = &ty.view, .kind = kind, .value = -2.0f
    };
    MUST(atto_compare_forward(test_dev, &args));
    test_tensor_get(&ty, got);
    for (int i = 0; i < 441; i++)
        want[i] = oracle_compare(kind, va[i], number ? -2.0 : vb[by_row ? i % 21 : i]);
    expect_equal(&about, got, want, 441);
    test_tensor_drop(&ta), test_tensor_drop(&tb), test_tensor_drop(&ty);
}

static void compare_matches_oracle(void **state)
{
    (void)state;
    const atto_dtype all[] = { ATTO_F32, ATTO_F16, ATTO_BF16, ATTO_I32, ATTO_I64 };
    for (int kind = 0; kind < ATTO_COMPARE_COUNT; kind++)
        for (int d = 0; d < COUNT_OF(all); d++)
            if (!test_on_opencl() || (kind + d) % 3 == 0)
                check_compare((atto_compare_kind)kind, all[d], kind % 2 == 0, d % 2 == 1);
}

/* i64 beyond what a double holds. */
static void compare_of_large_integers_is_exact(void **state)
{
    (void)state;
    const int64_t a[3] = { INT64_MAX, INT64_MAX - 1, INT64_MIN };
    const int64_t b[3] = { INT64_MAX - 1, INT64_MAX - 1, INT64_MIN + 1 };
    int32_t y[3];
    atto_tensor ta, tb, ty;
    MUST(atto_tensor_alloc(test_dev, ATTO_I64, atto_shape1(3), &ta));
    MUST(atto_tensor_alloc(test_dev, ATTO_I64, atto_shape1(3), &tb));
    MUST(atto_tensor_alloc(test_dev, ATTO_I32, atto_shape1(3), &ty));
    MUST(atto_tensor_write(&ta, a));
    MUST(atto_tensor_write(&tb, b));
    const struct atto_compare_args args = { .a = &ta, .b = &tb, .y = &ty, .kind = ATTO_COMPARE_EQ };
    MUST(atto_compare_forward(test_dev, &args));
    MUST(atto_tensor_read(&ty, y));
    assert_true(y[0] == 0 && y[1] == 1 && y[2] == 0);
    atto_tensor_free(&ta), atto_tensor_free(&tb), atto_tensor_free(&ty);
}

/* ---- cast ---- */

static void check_cast(atto_dtype from, atto_dtype to, bool add, test_layout layout)
{
    const atto_shape shape = atto_shape2(19, 24);
    const int64_t n = numel(&shape);
    const test_about about = { "cast", test_layout_name(layout), to, shape, 0 };
    const test_about grad = { "cast_grad", test_layout_name(layout), from, shape, 0 };
    double x[456], dy[456], old[456], got[456], want[456];
    test_tensor tx, ty, tdy, tdx;
    test_tensor_make(&tx, test_dev, from, shape, LAYOUT_DENSE);
    test_tensor_make(&ty, test_dev, to, shape, layout);
    test_tensor_make(&tdy, test_dev, to, shape, LAYOUT_DENSE);
    test_tensor_make(&tdx, test_dev, from, shape, layout);
    draw(1, 1, from, x, n);
    draw(2, 3, to, dy, n);
    test_uniform(3, -1.0, 1.0, from, old, n);
    test_tensor_put(&tx, x), test_tensor_put(&tdy, dy);
    if (add) test_tensor_put(&tdx, old);
    const struct atto_cast_args args = {
        .x = &tx.view, .y = &ty.view, .dy = &tdy.view, .dx = &tdx.view, .add_dx = add
    };
    MUST(atto_cast_forward(test_dev, &args));
    MUST(atto_cast_backward(test_dev, &args));
    test_tensor_get(&ty, got);
    for (int64_t i = 0; i < n; i++) want[i] = oracle_round(to, x[i]);
    expect_equal(&about, got, want, n);
    test_tensor_get(&tdx, got);
    for (int64_t i = 0; i < n; i++) /* f32 sums of two f16 or bf16 are rounded once more */
        want[i] =
            oracle_round(from, (double)(float)(oracle_round(from, dy[i]) + (add ? old[i] : 0.0)));
    expect_equal(&grad, got, want, n);
    test_tensor_drop(&tx), test_tensor_drop(&ty), test_tensor_drop(&tdy), test_tensor_drop(&tdx);
}

static void cast_converts_and_casts_gradients_back(void **state)
{
    (void)state;
    check_cast(ATTO_F32, ATTO_F16, false, LAYOUT_DENSE);
    check_cast(ATTO_F32, ATTO_BF16, true, LAYOUT_DENSE);
    check_cast(ATTO_F16, ATTO_F32, true, LAYOUT_PITCHED);
    check_cast(ATTO_BF16, ATTO_F32, true, LAYOUT_TRANSPOSED);
    check_cast(ATTO_BF16, ATTO_F16, false, LAYOUT_PITCHED);
}

/* ---- arguments ---- */

static void elementwise_refuses_illegal_arguments(void **state)
{
    (void)state;
    test_tensor t[3], small, ints;
    for (int i = 0; i < 3; i++)
        test_tensor_make(&t[i], test_dev, ATTO_F32, atto_shape2(3, 5), LAYOUT_DENSE);
    test_tensor_make(&small, test_dev, ATTO_F32, atto_shape1(5), LAYOUT_DENSE);
    test_tensor_make(&ints, test_dev, ATTO_I32, atto_shape2(3, 5), LAYOUT_DENSE);
    const atto_tensor *x = &t[0].view, *y = &t[1].view, *z = &t[2].view;

    struct atto_unary_args u = { .x = x, .y = y, .kind = ATTO_UNARY_COUNT };
    EXPECT_FAIL(atto_unary_forward(test_dev, &u), ATTO_E_ARGUMENT, "unary");
    u.kind = ATTO_UNARY_CLAMP, u.lo = NAN;
    EXPECT_FAIL(atto_unary_forward(test_dev, &u), ATTO_E_ARGUMENT, "lo");
    u.lo = 0, u.hi = NAN;
    EXPECT_FAIL(atto_unary_forward(test_dev, &u), ATTO_E_ARGUMENT, "hi");
    u.hi = 1, u.y = &small.view;
    EXPECT_FAIL(atto_unary_forward(test_dev, &u), ATTO_E_SHAPE, "y");

    struct atto_binary_args b = { .a = x, .b = z, .y = y, .kind = (atto_binary_kind)-1 };
    EXPECT_FAIL(atto_binary_forward(test_dev, &b), ATTO_E_ARGUMENT, "binary");
    b.kind = ATTO_BINARY_MUL, b.a = b.b = NULL;
    EXPECT_FAIL(atto_binary_forward(test_dev, &b), ATTO_E_NULL, "a and b");
    b.a = &small.view;
    EXPECT_FAIL(atto_binary_forward(test_dev, &b), ATTO_E_SHAPE, "larger");
    b.a = x, b.y = &small.view;
    EXPECT_FAIL(atto_binary_forward(test_dev, &b), ATTO_E_SHAPE, "a is|broadcast");
    b = (struct atto_binary_args){ .dy = y, .da = x, .kind = ATTO_BINARY_DIV };
    EXPECT_FAIL(atto_binary_backward(test_dev, &b), ATTO_E_NULL, "div");
    b.kind = ATTO_BINARY_SUB;
    b.a = &small.view;
    EXPECT_FAIL(atto_binary_backward(test_dev, &b), ATTO_E_SHAPE, "da");
    b = (struct atto_binary_args){
        .a = x, .b = z, .dy = y, .da = x, .db = z, .kind = ATTO_BINARY_POW
    };
    EXPECT_FAIL(atto_binary_backward(test_dev, &b), ATTO_E_ALIAS, "both");

    struct atto_where_args w = { .cond = x, .a = x, .b = z, .y = y };
    EXPECT_FAIL(atto_where_forward(test_dev, &w), ATTO_E_DTYPE, "cond");
    w.cond = &ints.view, w.a = w.b = NULL;
    EXPECT_FAIL(atto_where_forward(test_dev, &w), ATTO_E_NULL, "a and b");

    struct atto_compare_args c = { .a = x, .b = z, .y = y };
    EXPECT_FAIL(atto_compare_forward(test_dev, &c), ATTO_E_DTYPE, "y");
    c.y = &ints.view, c.kind = ATTO_COMPARE_COUNT;
    EXPECT_FAIL(atto_compare_forward(test_dev, &c), ATTO_E_ARGUMENT, "comparison");
    test_tensor truth;
    test_tensor_make(&truth, test_dev, ATTO_I32, atto_shape2(3, 5), LAYOUT_DENSE);
    c = (struct atto_compare_args){ .a = &ints.view, .y = &truth.view, .value = 0.5f };
    EXPECT_FAIL(atto_compare_forward(test_dev, &c), ATTO_E_ARGUMENT, "whole");
    EXPECT_FAIL(atto_compare_backward(test_dev, &c), ATTO_E_UNSUPPORTED, "gradient");

    struct atto_cast_args k = { .x = x, .y = &small.view, .dy = x, .dx = &ints.view };
    EXPECT_FAIL(atto_cast_forward(test_dev, &k), ATTO_E_SHAPE, "y");
    EXPECT_FAIL(atto_cast_backward(test_dev, &k), ATTO_E_DTYPE, "dx");

    for (int i = 0; i < 3; i++) assert_true(test_tensor_untouched(&t[i])), test_tensor_drop(&t[i]);
    assert_true(test_tensor_untouched(&ints));
    test_tensor_drop(&small), test_tensor_drop(&ints), test_tensor_drop(&truth);
}

/* ---- determinism and steady state ---- */

/* Summed gradients: the same bits each time, nothing allocated after the first. */
static void binary_backward_repeats_and_allocates_nothing(void **state)
{
    (void)state;
    test_tensor a, b, dy, db;
    const atto_shape shape = atto_shape2(999, 130);
    test_tensor_make(&a, test_dev, ATTO_F32, shape, LAYOUT_DENSE);
    test_tensor_make(&b, test_dev, ATTO_F32, atto_shape1(130), LAYOUT_DENSE);
    test_tensor_make(&dy, test_dev, ATTO_F32, shape, LAYOUT_DENSE);
    test_tensor_make(&db, test_dev, ATTO_F32, atto_shape1(130), LAYOUT_DENSE);
    double *values = test_doubles(a.numel);
    test_uniform(1, -1.0, 1.0, ATTO_F32, values, a.numel);
    test_tensor_put(&a, values), test_tensor_put(&b, values);
    test_uniform(2, -1.0, 1.0, ATTO_F32, values, a.numel);
    test_tensor_put(&dy, values);
    const struct atto_binary_args args = {
        .a = &a.view, .b = &b.view, .dy = &dy.view, .db = &db.view, .kind = ATTO_BINARY_MUL
    };
    uint64_t first[130], again[130];
    atto_device_stats before, after;
    MUST(atto_binary_backward(test_dev, &args));
    test_tensor_bits(&db, first);
    MUST(atto_device_stats_get(test_dev, &before));
    for (int run = 0; run < 10; run++) MUST(atto_binary_backward(test_dev, &args));
    MUST(atto_device_stats_get(test_dev, &after));
    test_tensor_bits(&db, again);
    assert_memory_equal(first, again, sizeof first);
    assert_int_equal(after.allocations, before.allocations);
    assert_int_equal(after.blocking_calls, before.blocking_calls);
    assert_int_equal(after.hidden_copies, before.hidden_copies);
    test_tensor_drop(&a), test_tensor_drop(&b), test_tensor_drop(&dy), test_tensor_drop(&db);
    free(values);
}

static void elementwise_never_fell_back(void **state)
{
    (void)state;
    const atto_op ops[] = { ATTO_OP_UNARY, ATTO_OP_CAST, ATTO_OP_BINARY, ATTO_OP_WHERE,
                            ATTO_OP_COMPARE };
    atto_device_stats stats;
    MUST(atto_device_stats_get(test_dev, &stats));
    assert_int_equal(stats.fallbacks, 0);
    for (int i = 0; i < COUNT_OF(ops); i++)
        assert_true(atto_device_supports(test_dev, ops[i], dtypes[i % 3]));
}

static void elementwise_names_its_kinds(void **state)
{
    (void)state;
    assert_string_equal(atto_unary_name(ATTO_UNARY_RSQRT), "rsqrt");
    assert_string_equal(atto_binary_name(ATTO_BINARY_MAXIMUM), "maximum");
    assert_string_equal(atto_compare_name(ATTO_COMPARE_GE), "ge");
    assert_string_equal(atto_unary_name(ATTO_UNARY_COUNT), "?");
    assert_string_equal(atto_binary_name((atto_binary_kind)-1), "?");
    assert_string_equal(atto_compare_name(ATTO_COMPARE_COUNT), "?");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(unary_matches_oracle),
    cmocka_unit_test(unary_takes_any_layout),
    cmocka_unit_test(binary_matches_oracle),
    cmocka_unit_test(binary_takes_a_number_for_a_or_b),
    cmocka_unit_test(binary_broadcasts),
    cmocka_unit_test(binary_takes_rank_0),
    cmocka_unit_test(binary_works_in_place),
    cmocka_unit_test(binary_of_empty_tensors_writes_zero_gradients),
    cmocka_unit_test(where_selects_and_routes_gradients),
    cmocka_unit_test(compare_matches_oracle),
    cmocka_unit_test(compare_of_large_integers_is_exact),
    cmocka_unit_test(cast_converts_and_casts_gradients_back),
    cmocka_unit_test(elementwise_refuses_illegal_arguments),
    cmocka_unit_test(binary_backward_repeats_and_allocates_nothing),
    cmocka_unit_test(elementwise_never_fell_back),
    cmocka_unit_test(elementwise_names_its_kinds),
};
TEST_MAIN("elementwise", tests)
