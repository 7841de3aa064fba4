/* SPDX-License-Identifier: MIT */
/* Softmax, log-softmax and softmin, forward and backward: the double oracle decides, on every
 * backend. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

/* ---- one case ---- */

typedef struct softmax_case {
    atto_softmax_kind kind;
    atto_shape shape;
    int32_t dim;
    atto_dtype dtype;      /* 0 = f32 */
    test_layout layout;    /* of x, y, dy, dx */
    test_layout dx_layout; /* of y in forward and dx in backward, if it is another one than dense */
    bool add;
    double range; /* of x; 0 = 4 */
    uint64_t seed;
} softmax_case;

/* A case with its data and tensors. */
typedef struct scene {
    softmax_case c;
    oracle_softmax o;
    int64_t numel;
    double *x, *y, *dy, *old, *want, *terms;
    test_tensor tx, ty, tdy, tdx;
    struct atto_softmax_args args;
} scene;

static void measure(scene *s)
{
    const int32_t rank = s->c.shape.rank, along = s->c.dim < 0 ? s->c.dim + rank : s->c.dim;
    s->o = (oracle_softmax){ 1, 1, 1, s->c.kind, NULL, NULL, NULL };
    for (int32_t d = 0; d < rank; d++) {
        if (d < along) s->o.outer *= s->c.shape.dim[d];
        if (d == along) s->o.size = s->c.shape.dim[d];
        if (d > along) s->o.step *= s->c.shape.dim[d];
    }
    s->numel = s->o.outer * s->o.size * s->o.step;
}

static void begin(scene *s, const softmax_case *c)
{
    memset(s, 0, sizeof *s);
    s->c = *c;
    if (!s->c.dtype) s->c.dtype = ATTO_F32;
    if (s->c.range == 0.0) s->c.range = 4.0;
    measure(s);
    double **arrays[] = { &s->x, &s->y, &s->dy, &s->old, &s->want, &s->terms };
    for (int i = 0; i < COUNT_OF(arrays); i++) *arrays[i] = test_doubles(s->numel);
    test_uniform(c->seed + 1, -s->c.range, s->c.range, s->c.dtype, s->x, s->numel);
    test_uniform(c->seed + 2, -2.0, 2.0, s->c.dtype, s->dy, s->numel);
    test_uniform(c->seed + 3, -1.0, 1.0, s->c.dtype, s->old, s->numel);
}

static void end(scene *s)
{
    test_tensor *tensors[] = { &s->tx, &s->ty, &s->tdy, &s->tdx };
    double *arrays[] = { s->x, s->y, s->dy, s->old, s->want, s->terms };
    for (int i = 0; i < COUNT_OF(tensors); i++) test_tensor_drop(tensors[i]);
    for (int i = 0; i < COUNT_OF(arrays); i++) free(arrays[i]);
}

static void make(const scene *s, test_tensor *t, test_layout layout, const double *values,
                 const atto_tensor **slot)
{
    test_tensor_make(t, test_dev, s->c.dtype, s->c.shape, layout);
    if (values) test_tensor_put(t, values);
    *slot = &t->view;
}

/* Summands that stand in one row of additions: 32 or more are added side by side, except in short
 * rows and where those of a row do not lie side by side. */
static int64_t depth(const scene *s)
{
    return s->o.step > 1 || s->o.size <= 64 ? s->o.size : 64 + s->o.size / 32;
}

static void judge(const scene *s, const test_tensor *t, const char *op)
{
    double *got = test_doubles(t->numel), *allowed = test_doubles(t->numel);
    const test_about about = { op, test_layout_name(s->c.layout), s->c.dtype, s->c.shape,
                               s->c.seed };
    test_tensor_get(t, got);
    for (int64_t i = 0; i < t->numel; i++)
        allowed[i] = isfinite(s->want[i]) ? atto_tol(op, s->c.dtype, depth(s), s->terms[i]) : 0.0;
    expect_close(&about, got, s->want, allowed, t->numel);
    free(got), free(allowed);
}

static test_layout out_layout(const scene *s)
{
    return s->c.dx_layout ? s->c.dx_layout : s->c.layout;
}

static void check_forward(scene *s)
{
    s->args = (struct atto_softmax_args){ .kind = s->c.kind, .dim = s->c.dim };
    make(s, &s->tx, s->c.layout, s->x, &s->args.x);
    make(s, &s->ty, out_layout(s), NULL, &s->args.y);
    MUST(atto_softmax_forward(test_dev, &s->args));
    s->o.x = s->x;
    oracle_softmax_forward(&s->o, s->want, s->terms);
    judge(s, &s->ty, atto_softmax_name(s->c.kind));
    assert_true(test_tensor_untouched(&s->tx));
    test_tensor_drop(&s->ty);
    memset(&s->ty, 0, sizeof s->ty);
}

/* From the oracle's y, as it is stored. */
static void check_backward(scene *s)
{
    static const char *const ops[] = { "softmax_grad", "log_softmax_grad", "softmin_grad" };
    s->args = (struct atto_softmax_args){ .kind = s->c.kind, .dim = s->c.dim, .add_dx = s->c.add };
    make(s, &s->ty, s->c.layout, s->want, &s->args.y);
    make(s, &s->tdy, s->c.layout, s->dy, &s->args.dy);
    make(s, &s->tdx, out_layout(s), s->c.add ? s->old : NULL, &s->args.dx);
    MUST(atto_softmax_backward(test_dev, &s->args));
    test_tensor_held(&s->ty, s->y);
    s->o.y = s->y, s->o.dy = s->dy;
    oracle_softmax_backward(&s->o, s->want, s->terms);
    for (int64_t i = 0; s->c.add && i < s->numel; i++) {
        s->want[i] += s->old[i];
        s->terms[i] += fabs(s->old[i]);
    }
    judge(s, &s->tdx, ops[s->c.kind]);
    assert_true(test_tensor_untouched(&s->ty) && test_tensor_untouched(&s->tdy));
}

static void check_scene(scene *s)
{
    check_forward(s);
    check_backward(s);
    end(s);
}

static void check(const softmax_case *c)
{
    scene s;
    begin(&s, c);
    check_scene(&s);
}

/* A device that plays another one has to build every kernel again: a third of the cases will do. */
static int case_step(void)
{
    return test_on_opencl() && test_in_disguise() ? 3 : 1;
}

/* ---- kinds, dtypes, dimensions ---- */

static const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };

static void softmax_of_every_kind_matches_oracle(void **state)
{
    (void)state;
    const struct {
        atto_shape shape;
        int32_t dim;
    } rows[] = {
        { atto_shape2(37, 10), 1 },  { atto_shape2(37, 300), -1 },  { atto_shape3(3, 21, 24), 1 },
        { atto_shape2(9, 3000), 1 }, { atto_shape3(2, 6, 13), -2 },
    };
    int number = 0;
    for (int kind = 0; kind < ATTO_SOFTMAX_COUNT; kind++)
        for (int d = 0; d < 3; d++)
            for (int i = 0; i < COUNT_OF(rows); i++)
                for (int add = 0; add < 2; add++) {
                    if (test_on_opencl() && d != kind) continue; /* kernels take long to build */
                    if (number++ % case_step() != 0) continue;
                    check(&(softmax_case){ .kind = (atto_softmax_kind)kind,
                                           .shape = rows[i].shape,
                                           .dim = rows[i].dim,
                                           .dtype = dtypes[d],
                                           .add = add == 1,
                                           .seed = 100 + (uint64_t)i });
                }
}

static void softmax_over_any_dimension_matches_oracle(void **state)
{
    (void)state;
    const atto_shape shape = atto_shape4(3, 4, 5, 8);
    for (int32_t dim = -4; dim < 4; dim += case_step())
        check(&(softmax_case){ .kind = dim % 2 ? ATTO_SOFTMAX_LOG : ATTO_SOFTMAX_PLAIN,
                               .shape = shape,
                               .dim = dim,
                               .add = dim > 0,
                               .seed = 200 });
    check(&(softmax_case){ .shape = atto_shape0(), .dim = 0, .seed = 210 });
    check(&(softmax_case){ .shape = atto_shape0(), .dim = -1, .seed = 211 });
    check(&(softmax_case){ .shape = atto_shape1(7), .dim = 0, .seed = 212 });
}

/* ---- sizes ---- */

/* Nothing special, and what is below, at and above the limits between which rows are shared out
 * otherwise. OpenCL builds kernels for each kind and dtype at each of them: one will do for
 * most. */
static const int64_t sizes[] = { 1,    2,    3,    5,    7,     8,     13,   16,   17,   31,
                                 32,   33,   63,   64,   65,    127,   128,  129,  217,  255,
                                 257,  511,  1000, 1023, 1024,  1025,  2047, 2049, 4096, 4099,
                                 8189, 8192, 8193, 9001, 16384, 16387, 20011 };

static void softmax_takes_rows_of_any_size(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(sizes); i += case_step()) {
        const int64_t rows = sizes[i] < 40 ? 71 : sizes[i] < 300 ? 19 : 3;
        check(&(softmax_case){ .kind = (atto_softmax_kind)(test_on_opencl() ? 0 : i % 3),
                               .shape = atto_shape2(rows, sizes[i]),
                               .dim = 1,
                               .add = i % 2 == 1,
                               .seed = 300 + (uint64_t)i });
        if (test_on_opencl() && (i % 8 != 2 || test_in_disguise())) continue;
        check(&(softmax_case){ .kind = (atto_softmax_kind)((i + 1) % 3),
                               .shape = atto_shape2(rows, sizes[i]),
                               .dim = 1,
                               .dtype = dtypes[1 + i / 8 % 2],
                               .seed = 350 + (uint64_t)i });
    }
}

static void softmax_takes_columns_of_any_size(void **state)
{
    (void)state;
    const int64_t steps[] = { 2, 8, 24, 67, 256, 520 };
    for (int i = 0; i < COUNT_OF(sizes); i += case_step())
        for (int k = 0; k < 2; k++) {
            if (sizes[i] > 2100 || (test_on_opencl() && i % 2 != k)) continue;
            const int64_t step = sizes[i] > 600 ? steps[k] : steps[(i + 3 * k) % COUNT_OF(steps)];
            check(
                &(softmax_case){ .kind = (atto_softmax_kind)((test_on_opencl() ? 0 : (i + k) % 3)),
                                 .shape = atto_shape3(k == 0 ? 3 : 1, sizes[i], step),
                                 .dim = 1,
                                 .dtype = dtypes[test_on_opencl() ? 0 : (i / 2 + k) % 3],
                                 .add = i % 3 == 1,
                                 .seed = 400 + (uint64_t)i });
        }
}

static void softmax_takes_many_rows(void **state)
{
    (void)state;
    check(&(softmax_case){ .shape = atto_shape2(70001, 2), .dim = 1, .seed = 450 });
    check(&(softmax_case){ .shape = atto_shape2(2, 70001), .dim = 0, .seed = 451 });
    check(&(softmax_case){ .shape = atto_shape3(5000, 3, 5), .dim = 1, .seed = 452 });
}

/* ---- layouts ---- */

/* I9: what does not lie row by row gives what its contiguous copy would. */
static void softmax_takes_any_layout(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_OFFSET,       LAYOUT_OFFSET4, LAYOUT_PITCHED,
                                    LAYOUT_TRANSPOSED,   LAYOUT_STEP2,   LAYOUT_SCATTERED,
                                    LAYOUT_CHANNELS_LAST };
    const atto_shape shapes[] = { atto_shape3(2, 4, 8), atto_shape3(1, 6, 33) };
    for (int i = 0; i < COUNT_OF(layouts); i += case_step())
        for (int k = 0; k < 2; k++)
            for (int32_t dim = 1; dim < 3; dim++)
                check(&(softmax_case){ .kind = (atto_softmax_kind)(i % 2),
                                       .shape = shapes[k],
                                       .dim = dim,
                                       .layout = layouts[i],
                                       .add = i % 2 == 1,
                                       .seed = 500 + (uint64_t)i });
}

/* Vectors of inputs and of the output do not begin at the same elements. */
static void softmax_takes_another_alignment(void **state)
{
    (void)state;
    const int64_t columns[] = { 7, 24, 130, 1030, 4100 };
    for (int i = 0; i < COUNT_OF(columns); i++)
        for (int k = 0; k < 4; k++)
            check(&(softmax_case){ .kind = (atto_softmax_kind)(test_on_opencl() ? 0 : k % 2),
                                   .shape = atto_shape3(2, 3, columns[i]),
                                   .dim = k / 2 ? 1 : 2,
                                   .layout = k % 2 ? LAYOUT_OFFSET : LAYOUT_DENSE,
                                   .dx_layout = k % 2 ? LAYOUT_OFFSET4 : LAYOUT_OFFSET,
                                   .add = k == 1,
                                   .seed = 550 });
}

/* An upstream gradient that sum() sends back: one element for all. */
static void softmax_backward_takes_a_broadcast_gradient(void **state)
{
    (void)state;
    scene s;
    begin(&s, &(softmax_case){ .shape = atto_shape2(5, 33), .dim = 1, .seed = 560 });
    check_forward(&s);
    s.args = (struct atto_softmax_args){ .dim = 1 };
    make(&s, &s.ty, LAYOUT_DENSE, s.want, &s.args.y);
    make(&s, &s.tdy, LAYOUT_BROADCAST, s.dy, &s.args.dy);
    make(&s, &s.tdx, LAYOUT_DENSE, NULL, &s.args.dx);
    MUST(atto_softmax_backward(test_dev, &s.args));
    test_tensor_held(&s.ty, s.y);
    test_tensor_held(&s.tdy, s.dy);
    s.o.y = s.y, s.o.dy = s.dy;
    oracle_softmax_backward(&s.o, s.want, s.terms);
    judge(&s, &s.tdx, "softmax_grad");
    end(&s);
}

/* ---- values ---- */

/* Rows of 4, forward; want[i] NaN: NaN. */
static void expect_rows(atto_softmax_kind kind, atto_dtype dtype, int n, const float *x,
                        const float *want)
{
    for (int over_columns = 0; over_columns < 2; over_columns++) {
        double in[64], out[64], got[64];
        for (int r = 0; r < n; r++)
            for (int i = 0; i < 4; i++) {
                const int at = over_columns ? i * n + r : r * 4 + i;
                in[at] = (double)x[r * 4 + i], out[at] = (double)want[r * 4 + i];
            }
        const atto_shape shape = over_columns ? atto_shape2(4, n) : atto_shape2(n, 4);
        struct atto_softmax_args a = { .kind = kind, .dim = over_columns ? 0 : 1 };
        test_tensor tx, ty;
        test_tensor_make(&tx, test_dev, dtype, shape, LAYOUT_DENSE);
        test_tensor_make(&ty, test_dev, dtype, shape, LAYOUT_DENSE);
        test_tensor_put(&tx, in);
        a.x = &tx.view, a.y = &ty.view;
        MUST(atto_softmax_forward(test_dev, &a));
        test_tensor_get(&ty, got);
        const test_about about = { atto_softmax_name(kind), "dense", dtype, shape, 0 };
        expect_equal(&about, got, out, 4 * n);
        test_tensor_drop(&tx), test_tensor_drop(&ty);
    }
}

/* G1, F7: as PyTorch has it. */
static void softmax_of_infinite_elements_is_ieee(void **state)
{
    (void)state;
    const float inf = INFINITY, nan = NAN;
    const float x[] = { -inf, -inf, -inf, -inf, -inf, 0,   -inf, -inf, 1e30f, -1e30f, 0,   5,
                        inf,  0,    0,    -inf, 0,    nan, 0,    1,    nan,   nan,    nan, nan };
    const float plain[] = { nan, nan, nan, nan, 0,   1,   0,   0,   1,   0,   0,   0,
                            nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan };
    const float logs[] = { nan, nan, nan, nan, -inf, 0,   -inf, -inf, 0,   -2e30f, -1e30f, -1e30f,
                           nan, nan, nan, nan, nan,  nan, nan,  nan,  nan, nan,    nan,    nan };
    float negative[24];
    for (int i = 0; i < 24; i++) negative[i] = -x[i];
    expect_rows(ATTO_SOFTMAX_PLAIN, ATTO_F32, 6, x, plain);
    expect_rows(ATTO_SOFTMAX_LOG, ATTO_F32, 6, x, logs);
    expect_rows(ATTO_SOFTMAX_MIN, ATTO_F32, 6, negative, plain);
    const float halves[] = { 60000, -60000, 60000, -60000, -inf, -inf, -inf, 3 };
    const float half_shares[] = { 0.5f, 0, 0.5f, 0, 0, 0, 0, 1 };
    expect_rows(ATTO_SOFTMAX_PLAIN, ATTO_F16, 2, halves, half_shares);
    expect_rows(ATTO_SOFTMAX_PLAIN, ATTO_BF16, 2, halves, half_shares);
}

/* An infinity in a long row, wherever it stands. */
static void softmax_of_one_infinity_is_nan_everywhere(void **state)
{
    (void)state;
    const int64_t columns[] = { 100, 3001, 9001 };
    for (int i = 0; i < 3 * 3; i++) {
        scene s;
        const int64_t n = columns[i % 3];
        begin(&s, &(softmax_case){ .shape = atto_shape2(3, n), .dim = 1, .seed = 600 });
        s.x[n + (i / 3) * (n - 1) / 2] = i % 2 ? INFINITY : NAN;
        check_forward(&s);
        end(&s);
    }
}

/* Elements that come late are the largest, and much so: the sum is scaled down each time. */
static void softmax_of_rising_elements_matches_oracle(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape2(3, 13),     atto_shape2(3, 700),
                                  atto_shape2(3, 9001),   atto_shape3(1, 13, 8),
                                  atto_shape3(1, 300, 9), atto_shape3(1, 1500, 4) };
    for (int i = 0; i < COUNT_OF(shapes); i++)
        for (int kind = 0; kind < (case_step() > 1 ? 1 : 2); kind++) {
            scene s;
            begin(&s,
                  &(softmax_case){
                      .kind = (atto_softmax_kind)kind, .shape = shapes[i], .dim = 1, .seed = 650 });
            for (int64_t k = 0; k < s.numel; k++) {
                const int64_t place = k / s.o.step % s.o.size;
                s.x[k] = (double)(float)(40.0 * (double)place / (double)s.o.size - 30.0);
            }
            check_scene(&s);
        }
}

/* Masked rows: most elements, whole blocks and lanes of them, are -inf. */
static void softmax_of_masked_elements_matches_oracle(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape2(3, 13), atto_shape2(3, 700), atto_shape2(3, 3001),
                                  atto_shape2(2, 9001), atto_shape3(1, 100, 8) };
    for (int i = 0; i < COUNT_OF(shapes); i++)
        for (int kind = 0; kind < (case_step() > 1 ? 1 : 2); kind++) {
            scene s;
            begin(&s,
                  &(softmax_case){
                      .kind = (atto_softmax_kind)kind, .shape = shapes[i], .dim = 1, .seed = 700 });
            for (int64_t k = 0; k < s.numel; k++)
                if (k / s.o.step % s.o.size < s.o.size * 4 / 5) s.x[k] = -INFINITY;
            check_scene(&s);
        }
}

static void log_softmax_of_large_elements_is_accurate(void **state)
{
    (void)state;
    check(&(softmax_case){ .kind = ATTO_SOFTMAX_LOG,
                           .shape = atto_shape2(5, 100),
                           .dim = 1,
                           .range = 1e4,
                           .seed = 750 });
    check(&(softmax_case){ .shape = atto_shape2(5, 100), .dim = 1, .range = 60.0, .seed = 751 });
}

/* ---- nothing, and nothing wanted ---- */

/* I1 */
static void softmax_of_nothing_launches_nothing(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape2(0, 5), atto_shape2(5, 0), atto_shape3(2, 0, 3) };
    for (int i = 0; i < 3; i++)
        for (int32_t dim = 0; dim < 2; dim++) {
            atto_device_stats before, after;
            MUST(atto_device_stats_get(test_dev, &before));
            check(&(softmax_case){ .shape = shapes[i], .dim = dim });
            MUST(atto_device_stats_get(test_dev, &after));
            assert_int_equal(after.launches, before.launches);
        }
}

static void softmax_backward_without_dx_does_nothing(void **state)
{
    (void)state;
    scene s;
    begin(&s, &(softmax_case){ .shape = atto_shape2(3, 5), .dim = 1 });
    make(&s, &s.ty, LAYOUT_DENSE, s.x, &s.args.y);
    make(&s, &s.tdy, LAYOUT_DENSE, s.dy, &s.args.dy);
    MUST(atto_softmax_backward(test_dev, &s.args));
    end(&s);
}

/* ---- repeatability ---- */

/* J1 */
static void softmax_repeats_bit_for_bit(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape2(503, 100), atto_shape2(40, 3001),
                                  atto_shape3(7, 100, 67) };
    for (int i = 0; i < 3; i++) {
        scene s;
        begin(&s, &(softmax_case){ .shape = shapes[i], .dim = 1, .seed = 800 });
        make(&s, &s.tx, LAYOUT_DENSE, s.x, &s.args.x);
        make(&s, &s.ty, LAYOUT_DENSE, NULL, &s.args.y);
        make(&s, &s.tdy, LAYOUT_DENSE, s.dy, &s.args.dy);
        make(&s, &s.tdx, LAYOUT_DENSE, NULL, &s.args.dx);
        s.args.dim = 1;
        uint64_t *first = calloc((size_t)s.numel, sizeof *first);
        uint64_t *again = calloc((size_t)s.numel, sizeof *again);
        for (int run = 0; run < 50; run++) {
            MUST(atto_softmax_forward(test_dev, &s.args));
            MUST(atto_softmax_backward(test_dev, &s.args));
            test_tensor_bits(&s.tdx, run == 0 ? first : again);
            if (run > 0) assert_memory_equal(first, again, (size_t)s.numel * sizeof *first);
        }
        free(first), free(again);
        end(&s);
    }
}

/* One launch a call; nothing is allocated or copied. */
static void softmax_in_a_steady_state_costs_launches_only(void **state)
{
    (void)state;
    scene s;
    begin(&s, &(softmax_case){ .shape = atto_shape2(100, 10), .dim = 1 });
    make(&s, &s.tx, LAYOUT_OFFSET, s.x, &s.args.x);
    make(&s, &s.ty, LAYOUT_DENSE, NULL, &s.args.y);
    make(&s, &s.tdy, LAYOUT_DENSE, s.dy, &s.args.dy);
    make(&s, &s.tdx, LAYOUT_DENSE, NULL, &s.args.dx);
    s.args.dim = -1;
    atto_device_stats before, after;
    for (int i = 0; i < 5; i++) {
        if (i == 2) MUST(atto_device_stats_get(test_dev, &before));
        MUST(atto_softmax_forward(test_dev, &s.args));
        MUST(atto_softmax_backward(test_dev, &s.args));
    }
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.launches - before.launches, 2 * 3);
    assert_int_equal(after.allocations, before.allocations);
    assert_int_equal(after.hidden_copies, before.hidden_copies);
    assert_int_equal(after.blocking_calls, before.blocking_calls);
    end(&s);
}

/* ---- what is refused ---- */

/* Makes one change to a good call of 6 x 5, forward and backward. */
static void refuse(void (*spoil)(scene *s, bool backward), atto_status status, const char *words)
{
    for (int backward = 0; backward < 2; backward++) {
        scene s;
        begin(&s, &(softmax_case){ .shape = atto_shape2(6, 5), .dim = 1 });
        make(&s, &s.tx, LAYOUT_DENSE, s.x, &s.args.x);
        make(&s, &s.ty, LAYOUT_DENSE, s.y, &s.args.y);
        make(&s, &s.tdy, LAYOUT_DENSE, s.dy, &s.args.dy);
        make(&s, &s.tdx, LAYOUT_DENSE, NULL, &s.args.dx);
        spoil(&s, backward == 1);
        EXPECT_FAIL(backward ? atto_softmax_backward(test_dev, &s.args)
                             : atto_softmax_forward(test_dev, &s.args),
                    status, words);
        assert_true(test_tensor_untouched(&s.ty) && test_tensor_untouched(&s.tdx));
        end(&s);
    }
}

static void dim_beyond(scene *s, bool backward)
{
    (void)backward;
    s->args.dim = 2;
}
static void dim_before(scene *s, bool backward)
{
    (void)backward;
    s->args.dim = -3;
}
static void odd_kind(scene *s, bool backward)
{
    (void)backward;
    s->args.kind = (atto_softmax_kind)ATTO_SOFTMAX_COUNT;
}
static void short_input(scene *s, bool backward)
{
    (backward ? &s->tdy : &s->tx)->view.shape[0] = 5;
}
static void short_dx(scene *s, bool backward)
{
    (backward ? &s->tdx : &s->tx)->view.shape[1] = 4;
}
static void integers(scene *s, bool backward)
{
    s->tx.view.dtype = s->tdy.view.dtype = ATTO_I32;
    if (backward) s->ty.view.dtype = ATTO_I32;
}
static void mixed(scene *s, bool backward)
{
    (backward ? &s->tdy : &s->tx)->view.dtype = ATTO_F16;
}

static void softmax_refuses_what_does_not_fit(void **state)
{
    (void)state;
    refuse(dim_beyond, ATTO_E_ARGUMENT, "dim is 2|-2 to 1");
    refuse(dim_before, ATTO_E_ARGUMENT, "dim is -3|-2 to 1");
    refuse(odd_kind, ATTO_E_ARGUMENT, "kind is 3|0 to 2");
    refuse(short_input, ATTO_E_SHAPE, "[5,5]|[6,5]");
    refuse(short_dx, ATTO_E_SHAPE, "[6,4]|[6,5]");
    refuse(integers, ATTO_E_DTYPE, "i32");
    refuse(mixed, ATTO_E_DTYPE, "f16");
    assert_string_equal(atto_softmax_name((atto_softmax_kind)-1), "?");
}

/* ---- on a tape ---- */

/* Records name(x), backs dy through it, and compares with the op. */
static void check_on_tape(atto_tape *tape, atto_softmax_kind kind, atto_module *module)
{
    scene s;
    atto_tensor grad;
    float x[24], dy[24], got[24];
    const atto_shape shape = atto_shape3(2, 3, 4);
    begin(&s, &(softmax_case){ .kind = kind, .shape = shape, .dim = 1, .seed = 900 });
    for (int i = 0; i < 24; i++) x[i] = (float)s.x[i], dy[i] = (float)s.dy[i];
    MUST(atto_tape_end(tape));
    atto_tensor tx;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, shape, &tx));
    MUST(atto_tensor_write(&tx, x));
    const atto_var v = atto_borrow(tape, &tx, true);
    const atto_var y = module                       ? atto_apply(tape, module, v)
                       : kind == ATTO_SOFTMAX_PLAIN ? atto_softmax(tape, v, 1)
                       : kind == ATTO_SOFTMAX_LOG   ? atto_log_softmax(tape, v, -2)
                                                    : atto_softmin(tape, v, 1);
    const atto_var weighted = atto_mul(tape, y, atto_input(tape, ATTO_F32, shape, dy));
    MUST(atto_backward(tape, atto_reduce(tape, ATTO_REDUCE_SUM, weighted, NULL)));
    MUST(atto_var_grad(tape, v, &grad));
    MUST(atto_tensor_read(&grad, got));
    s.o.x = s.x;
    oracle_softmax_forward(&s.o, s.y, s.terms);
    s.o.y = s.y, s.o.dy = s.dy;
    oracle_softmax_backward(&s.o, s.want, s.terms);
    for (int i = 0; i < 24; i++) assert_true(fabs((double)got[i] - s.want[i]) < 1e-5);
    atto_tensor_free(&tx);
    end(&s);
}

static void softmax_on_a_tape_matches_oracle(void **state)
{
    (void)state;
    static const char *const names[] = { "Softmax", "LogSoftmax", "Softmin" };
    atto_tape *tape;
    MUST(atto_tape_create(test_dev, &tape));
    for (int kind = 0; kind < ATTO_SOFTMAX_COUNT; kind++) {
        atto_module *m;
        MUST(atto_softmax_create(test_dev, (atto_softmax_kind)kind, 1, &m));
        assert_string_equal(atto_module_class_name(m), names[kind]);
        check_on_tape(tape, (atto_softmax_kind)kind, NULL);
        check_on_tape(tape, (atto_softmax_kind)kind, m);
        atto_module_free(m);
    }
    atto_tape_free(tape);
}

static void softmax_module_and_tape_refuse_what_does_not_fit(void **state)
{
    (void)state;
    atto_module *m;
    atto_tape *tape;
    const float x[] = { 1, 2, 3 };
    EXPECT_FAIL(atto_softmax_create(test_dev, (atto_softmax_kind)7, 0, &m), ATTO_E_ARGUMENT,
                "softmax_create: kind is 7");
    assert_null(m);
    EXPECT_FAIL(atto_softmax_create(test_dev, ATTO_SOFTMAX_LOG, 0, NULL), ATTO_E_NULL, "m is NULL");
    EXPECT_FAIL(atto_softmax_create(NULL, ATTO_SOFTMAX_LOG, 0, &m), ATTO_E_NULL, "dev");
    MUST(atto_tape_create(test_dev, &tape));
    const atto_var y = atto_softmax(tape, atto_input(tape, ATTO_F32, atto_shape1(3), x), 1);
    (void)y;
    EXPECT_FAIL(atto_tape_status(tape), ATTO_E_ARGUMENT, "dim is 1");
    atto_tape_free(tape);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(softmax_of_every_kind_matches_oracle),
    cmocka_unit_test(softmax_over_any_dimension_matches_oracle),
    cmocka_unit_test(softmax_takes_rows_of_any_size),
    cmocka_unit_test(softmax_takes_columns_of_any_size),
    cmocka_unit_test(softmax_takes_many_rows),
    cmocka_unit_test(softmax_takes_any_layout),
    cmocka_unit_test(softmax_takes_another_alignment),
    cmocka_unit_test(softmax_backward_takes_a_broadcast_gradient),
    cmocka_unit_test(softmax_of_infinite_elements_is_ieee),
    cmocka_unit_test(softmax_of_one_infinity_is_nan_everywhere),
    cmocka_unit_test(softmax_of_rising_elements_matches_oracle),
    cmocka_unit_test(softmax_of_masked_elements_matches_oracle),
    cmocka_unit_test(log_softmax_of_large_elements_is_accurate),
    cmocka_unit_test(softmax_of_nothing_launches_nothing),
    cmocka_unit_test(softmax_backward_without_dx_does_nothing),
    cmocka_unit_test(softmax_repeats_bit_for_bit),
    cmocka_unit_test(softmax_in_a_steady_state_costs_launches_only),
    cmocka_unit_test(softmax_refuses_what_does_not_fit),
    cmocka_unit_test(softmax_on_a_tape_matches_oracle),
    cmocka_unit_test(softmax_module_and_tape_refuse_what_does_not_fit),
};
TEST_MAIN("softmax", tests)
