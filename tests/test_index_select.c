/* SPDX-License-Identifier: MIT */
/* index_select, embedding and their gradients: the double oracle decides, on every backend. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"
#include "oracle_index.h"

/* ---- one case ---- */

/* Which rows the index names. */
typedef enum pick { ANY, FEW, ONE, IN_TURN } pick;

typedef struct select_case {
    atto_shape x, index;
    int32_t dim;
    atto_dtype dtype;    /* 0 = f32 */
    atto_dtype index_as; /* 0 = i64 */
    test_layout layout;  /* of all tensors */
    pick pick;
    bool add, has_padding;
    int64_t padding;
    uint64_t seed;
} select_case;

/* A case with its data and tensors. */
typedef struct select_scene {
    select_case c;
    atto_shape y;
    int64_t numel, positions, out; /* of x, of the index, of y */
    double *x, *index, *dy, *old;
    test_tensor tx, tindex, ty, tdy, tdx;
    struct atto_index_select_args args;
    oracle_index_answer want;
} select_scene;

static int64_t count_of(atto_shape shape)
{
    int64_t n = 1;
    for (int32_t d = 0; d < shape.rank; d++) n *= shape.dim[d];
    return n;
}

static int32_t along(const select_case *c)
{
    return c->dim < 0 ? c->dim + c->x.rank : c->dim;
}

static atto_shape shape_of_y(const select_case *c)
{
    atto_shape y = { .rank = 0 };
    for (int32_t d = 0; d < along(c); d++) y.dim[y.rank++] = c->x.dim[d];
    for (int32_t d = 0; d < c->index.rank; d++) y.dim[y.rank++] = c->index.dim[d];
    for (int32_t d = along(c) + 1; d < c->x.rank; d++) y.dim[y.rank++] = c->x.dim[d];
    return y;
}

static void draw_index(select_scene *s)
{
    const int64_t rows = s->c.x.dim[along(&s->c)];
    uint64_t seed = s->c.seed + 5;
    for (int64_t p = 0; p < s->positions && rows > 0; p++) {
        const int64_t any = (int64_t)(test_random(&seed) % (uint64_t)rows);
        const int64_t picked[] = { any, any % 3 * (rows - 1) / 2, rows / 2, p % rows };
        s->index[p] = (double)picked[s->c.pick];
    }
}

static void begin(select_scene *s, const select_case *c)
{
    memset(s, 0, sizeof *s);
    s->c = *c;
    if (!s->c.dtype) s->c.dtype = ATTO_F32;
    if (!s->c.index_as) s->c.index_as = ATTO_I64;
    s->y = shape_of_y(c);
    s->numel = count_of(c->x), s->positions = count_of(c->index), s->out = count_of(s->y);
    s->x = test_doubles(s->numel), s->old = test_doubles(s->numel);
    s->index = test_doubles(s->positions), s->dy = test_doubles(s->out);
    test_uniform(c->seed + 1, -4.0, 4.0, s->c.dtype, s->x, s->numel);
    test_uniform(c->seed + 2, -1.0, 1.0, s->c.dtype, s->old, s->numel);
    test_uniform(c->seed + 3, -2.0, 2.0, s->c.dtype, s->dy, s->out);
    draw_index(s);
}

static void make(test_tensor *t, atto_dtype dtype, atto_shape shape, test_layout layout,
                 const double *values, const atto_tensor **slot)
{
    test_tensor_make(t, test_dev, dtype, shape, layout);
    if (values) test_tensor_put(t, values);
    *slot = &t->view;
}

static void build(select_scene *s)
{
    const select_case *c = &s->c;
    struct atto_index_select_args *a = &s->args;
    make(&s->tx, c->dtype, c->x, c->layout, s->x, &a->x);
    make(&s->tindex, c->index_as, c->index, c->layout, s->index, &a->index);
    make(&s->ty, c->dtype, s->y, c->layout, NULL, &a->y);
    make(&s->tdy, c->dtype, s->y, c->layout, s->dy, &a->dy);
    make(&s->tdx, c->dtype, c->x, c->layout, c->add ? s->old : NULL, &a->dx);
    a->add_dx = c->add;
    a->dim = c->dim;
    a->has_padding = c->has_padding;
    a->padding = c->padding;
}

static void end(select_scene *s)
{
    test_tensor *tensors[] = { &s->tx, &s->tindex, &s->ty, &s->tdy, &s->tdx };
    double *arrays[] = { s->x,       s->index,         s->dy,           s->old, s->want.y,
                         s->want.dx, s->want.dx_terms, s->want.dx_count };
    for (int i = 0; i < COUNT_OF(tensors); i++) test_tensor_drop(tensors[i]);
    for (int i = 0; i < COUNT_OF(arrays); i++) free(arrays[i]);
}

static void ask_oracle(select_scene *s)
{
    const oracle_index question = { .x = s->c.x,
                                    .shape = s->c.index,
                                    .dim = along(&s->c),
                                    .has_padding = s->c.has_padding,
                                    .padding = s->c.padding,
                                    .index = s->index,
                                    .values = s->x,
                                    .dy = s->dy };
    s->want.y = test_doubles(s->out);
    s->want.dx = test_doubles(s->numel);
    s->want.dx_terms = test_doubles(s->numel);
    s->want.dx_count = test_doubles(s->numel);
    oracle_index_select(&question, &s->want);
}

static void judge(const select_scene *s)
{
    const select_case *c = &s->c;
    const int64_t terms = s->want.most + c->add;
    test_judge(&s->ty, "index_select", c->layout, c->seed, 1, s->want.y, NULL, NULL);
    test_judge(&s->tdx, "index_select_grad", c->layout, c->seed, terms > 0 ? terms : 1, s->want.dx,
               s->want.dx_terms, c->add ? s->old : NULL);
    assert_true(test_tensor_untouched(&s->tx) && test_tensor_untouched(&s->tindex));
    assert_true(test_tensor_untouched(&s->tdy));
}

static void run_scene(select_scene *s)
{
    build(s);
    ask_oracle(s);
    MUST(atto_index_select_forward(test_dev, &s->args));
    MUST(atto_index_select_backward(test_dev, &s->args));
}

static void check(const select_case *c)
{
    select_scene s;
    begin(&s, c);
    run_scene(&s);
    judge(&s);
    MUST(atto_device_sync(test_dev));
    end(&s);
}

/* ---- sizes, dimensions, options ---- */

static const struct shape_row {
    int32_t rank;
    int64_t x[4];
    int32_t dim;
    int32_t index_rank;
    int64_t index[3];
} shape_rows[] = {
    { 1, { 1 }, 0, 0, { 0 } },           { 1, { 7 }, 0, 1, { 19 } },
    { 2, { 1, 8 }, 0, 1, { 33 } },       { 2, { 10, 1 }, 0, 2, { 3, 5 } },
    { 2, { 13, 12 }, 0, 2, { 4, 9 } },   { 2, { 257, 64 }, 0, 1, { 301 } },
    { 2, { 31, 127 }, 0, 1, { 67 } },    { 2, { 5, 1028 }, 0, 3, { 2, 3, 2 } },
    { 2, { 3, 20011 }, 0, 1, { 5 } },    { 2, { 6, 7 }, 1, 1, { 11 } },
    { 2, { 6, 7 }, -1, 0, { 0 } },       { 3, { 5, 6, 16 }, 1, 1, { 13 } },
    { 3, { 4, 5, 3 }, -2, 2, { 2, 3 } }, { 3, { 2, 3, 501 }, 2, 1, { 700 } },
    { 4, { 2, 3, 4, 5 }, 2, 1, { 9 } },
};

static select_case case_of(int i)
{
    const struct shape_row *r = &shape_rows[i];
    return (select_case){ .x = atto_shape_of(r->rank, r->x),
                          .index = atto_shape_of(r->index_rank, r->index),
                          .dim = r->dim,
                          .seed = 100 + (uint64_t)i };
}

static void index_select_matches_oracle(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(shape_rows); i++)
        for (int k = 0; k < 4; k++) {
            select_case c = case_of(i);
            c.pick = (pick)k;
            c.add = k % 2 == 1;
            c.index_as = (i + k) % 2 ? ATTO_I32 : ATTO_I64;
            c.has_padding = k > 1;
            c.padding = c.x.dim[along(&c)] / 2; /* what ONE picks */
            check(&c);
            c.has_padding = false;
            check(&c);
        }
}

static void index_select_takes_f16_and_bf16(void **state)
{
    (void)state;
    const int rows[] = { 0, 3, 4, 5, 6, 11, 14 };
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < COUNT_OF(rows); i++) {
            select_case c = case_of(rows[i]);
            c.dtype = d ? ATTO_BF16 : ATTO_F16;
            c.add = i % 2 == 1;
            c.pick = i % 3 ? ANY : ONE;
            check(&c);
        }
}

/* I9, I10: rows that begin anywhere. */
static void index_select_takes_any_layout(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_OFFSET, LAYOUT_OFFSET4, LAYOUT_TRANSPOSED,
                                    LAYOUT_STEP2 };
    for (int i = 0; i < COUNT_OF(layouts); i++)
        for (int k = 0; k < 2; k++)
            check(&(select_case){ .x = atto_shape3(5, 6, 8),
                                  .index = atto_shape2(3, 4),
                                  .dim = k,
                                  .dtype = k ? ATTO_BF16 : ATTO_F32,
                                  .layout = layouts[i],
                                  .add = k == 1,
                                  .seed = 300 });
}

/* Every position adds once, and in one place: whole numbers have exact sums (W6). */
static void index_select_adds_each_position_once(void **state)
{
    (void)state;
    const int64_t counts[] = { 1, 255, 256, 1000, 4097 };
    for (int i = 0; i < COUNT_OF(counts); i++)
        for (int k = 0; k < 3; k++) {
            select_scene s;
            begin(&s, &(select_case){ .x = atto_shape2(17, 4),
                                      .index = atto_shape1(counts[i]),
                                      .pick = (pick)k,
                                      .seed = 400 });
            for (int64_t at = 0; at < s.out; at++) s.dy[at] = (double)(at % 7);
            run_scene(&s);
            double got[17 * 4];
            test_tensor_get(&s.tdx, got);
            for (int at = 0; at < 17 * 4; at++) assert_true(got[at] == s.want.dx[at]);
            end(&s);
        }
}

/* Sums in ascending order of positions: 2^24 swallows what comes behind it one by one, and not what
 * came before. */
static void index_select_adds_in_order(void **state)
{
    (void)state;
    for (int down = 0; down < 2; down++) {
        select_scene s;
        begin(&s, &(select_case){ .x = atto_shape2(3, 4), .index = atto_shape1(601), .pick = ONE });
        for (int64_t at = 0; at < s.out; at++) s.dy[at] = 1.0;
        for (int64_t at = 0; at < 4; at++) s.dy[down ? at : s.out - 4 + at] = 0x1p24;
        run_scene(&s);
        double got[12];
        test_tensor_get(&s.tdx, got);
        for (int at = 4; at < 8; at++) assert_true(got[at] == 0x1p24 + (down ? 0.0 : 600.0));
        end(&s);
    }
}

/* More positions than OpenCL sorts at a time. */
static void index_select_of_many_positions(void **state)
{
    (void)state;
    select_case c = { .x = atto_shape2(1009, 4),
                      .index = atto_shape1(70000),
                      .index_as = ATTO_I32,
                      .has_padding = true,
                      .padding = 3,
                      .seed = 500 };
    check(&c);
    c.add = true;
    check(&c);
    c.dtype = ATTO_F16;
    check(&c);
    c.add = false;
    c.pick = FEW;
    if (!test_on_opencl() || !test_in_disguise()) check(&c);
}

/* ---- values ---- */

/* I1 */
static void index_select_of_nothing(void **state)
{
    (void)state;
    check(&(select_case){ .x = atto_shape2(5, 4), .index = atto_shape1(0) });
    check(&(select_case){ .x = atto_shape2(5, 4), .index = atto_shape2(3, 0), .add = true });
    check(&(select_case){ .x = atto_shape2(5, 0), .index = atto_shape1(3) });
    check(&(select_case){ .x = atto_shape3(0, 5, 3), .index = atto_shape1(3), .dim = 1 });
    check(&(select_case){ .x = atto_shape2(0, 4), .index = atto_shape1(0) });
}

/* F7: values are moved as they are, and NaN and infinities go where they belong. */
static void index_select_passes_infinities_and_nan_on(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++) {
        const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };
        select_scene s;
        begin(&s, &(select_case){ .x = atto_shape2(4, 3),
                                  .index = atto_shape1(8),
                                  .dtype = dtypes[d],
                                  .pick = IN_TURN });
        s.x[0] = NAN, s.x[4] = INFINITY, s.x[8] = -INFINITY, s.x[9] = -0.0;
        s.dy[0] = NAN, s.dy[4] = INFINITY, s.dy[16] = -INFINITY, s.dy[8] = -INFINITY;
        run_scene(&s);
        judge(&s);
        end(&s);
    }
}

/* ---- indices that name nothing (G8) ---- */

static const double bad_indices[] = { 10, -1, 2147483647, -2147483648.0, 4294967297.0 };

/* That position's row is NaN and adds nothing; the others are as ever; the next read tells, once. */
static void expect_data_error(atto_device *dev, select_case c, double index)
{
    select_scene s;
    atto_device *before = test_dev;
    test_dev = dev;
    begin(&s, &c);
    s.index[s.positions / 2] = index;
    build(&s);
    ask_oracle(&s);
    MUST(atto_index_select_forward(dev, &s.args));
    EXPECT_FAIL(atto_device_sync(dev), ATTO_E_INDEX, "index");
    MUST(atto_device_sync(dev));
    MUST(atto_index_select_backward(dev, &s.args)); /* finds it by itself too */
    EXPECT_FAIL(atto_device_sync(dev), ATTO_E_INDEX, "index");
    judge(&s);
    end(&s);
    c.seed++; /* the device is as good as before */
    check(&c);
    test_dev = before;
}

static void index_select_finds_bad_indices(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(bad_indices); i++)
        for (int k = 0; k < 4; k++)
            expect_data_error(
                test_dev,
                (select_case){ .x = k % 2 ? atto_shape3(3, 10, 5) : atto_shape2(10, 8),
                               .index = atto_shape1(11),
                               .dim = k % 2,
                               .dtype = k < 2 ? ATTO_F32 : ATTO_BF16,
                               .index_as = i < 4 && k == 1 ? ATTO_I32 : ATTO_I64,
                               .has_padding = k > 1,
                               .padding = 2,
                               .add = k == 3,
                               .seed = 700 },
                bad_indices[i]);
}

/* Of a table without rows every index is wrong. */
static void index_select_from_no_rows(void **state)
{
    (void)state;
    select_scene s;
    begin(&s, &(select_case){ .x = atto_shape2(0, 8), .index = atto_shape1(3) });
    build(&s);
    ask_oracle(&s);
    MUST(atto_index_select_forward(test_dev, &s.args));
    EXPECT_FAIL(atto_device_sync(test_dev), ATTO_E_INDEX, "index");
    test_judge(&s.ty, "index_select", LAYOUT_DENSE, 0, 1, s.want.y, NULL, NULL);
    MUST(atto_index_select_backward(test_dev, &s.args));
    MUST(atto_device_sync(test_dev)); /* there was nothing to write */
    end(&s);
}

/* A device without kernels falls back to the CPU, and passes the bit on. */
static void index_select_finds_bad_indices_through_the_fallback(void **state)
{
    (void)state;
    if (!test_on_opencl()) skip();
    test_broken broken;
    test_broken_open(&broken, "index_select");
    expect_data_error(broken.dev,
                      (select_case){ .x = atto_shape2(11, 10), .index = atto_shape1(9), .seed = 3 },
                      11);
    test_broken_close(&broken, 4);
}

/* ---- repeatability ---- */

static void take_bits(select_scene *s, uint64_t *bits)
{
    MUST(atto_index_select_forward(test_dev, &s->args));
    MUST(atto_index_select_backward(test_dev, &s->args));
    test_tensor_bits(&s->ty, bits);
    test_tensor_bits(&s->tdx, bits + s->out);
}

/* J1 */
static void index_select_repeats_bit_for_bit(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        select_scene s;
        begin(&s, &(select_case){ .x = atto_shape2(97, 36),
                                  .index = atto_shape1(3001),
                                  .pick = (pick)k,
                                  .seed = 800 });
        build(&s);
        const int64_t n = s.out + s.numel;
        uint64_t *bits = calloc(2 * (size_t)n, sizeof *bits);
        take_bits(&s, bits);
        for (int run = 0; run < 20; run++) {
            take_bits(&s, bits + n);
            assert_memory_equal(bits, bits + n, (size_t)n * sizeof *bits);
        }
        free(bits);
        end(&s);
    }
}

/* J1: nor do bits depend on the number of threads. */
static void index_select_does_not_depend_on_threads(void **state)
{
    (void)state;
    if (test_on_opencl()) skip();
    const int32_t threads[] = { 1, 2, 7 };
    const select_case c = { .x = atto_shape2(97, 36), .index = atto_shape1(3001), .seed = 900 };
    const int64_t n = (97 + 3001) * 36;
    uint64_t *bits = calloc(2 * (size_t)n, sizeof *bits);
    atto_device *before = test_dev;
    for (int i = 0; i < COUNT_OF(threads); i++) {
        const atto_device_options options = { .num_threads = threads[i] };
        select_scene s;
        MUST(atto_device_open("cpu", &options, &test_dev));
        begin(&s, &c);
        build(&s);
        take_bits(&s, bits + (i > 0 ? n : 0));
        if (i > 0) assert_memory_equal(bits, bits + n, (size_t)n * sizeof *bits);
        end(&s);
        atto_device_close(test_dev);
    }
    test_dev = before;
    free(bits);
}

static void index_select_in_a_steady_state_costs_launches_only(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        select_scene s;
        begin(&s, &(select_case){ .x = atto_shape2(97, 8),
                                  .index = atto_shape1(300),
                                  .dtype = k ? ATTO_F16 : ATTO_F32,
                                  .add = k == 1 });
        build(&s);
        atto_device_stats before, after;
        for (int i = 0; i < 5; i++) {
            if (i == 2) MUST(atto_device_stats_get(test_dev, &before));
            MUST(atto_index_select_forward(test_dev, &s.args));
            MUST(atto_index_select_backward(test_dev, &s.args));
        }
        MUST(atto_device_stats_get(test_dev, &after));
        assert_int_equal(after.allocations, before.allocations);
        assert_int_equal(after.hidden_copies, before.hidden_copies);
        assert_int_equal(after.blocking_calls, before.blocking_calls);
        end(&s);
    }
}

/* ---- what is refused ---- */

/* Makes one change to a good call, 7 positions of a table of 6 x 5, forward or backward. */
static void refuse(void (*spoil)(select_scene *s), bool backward, atto_status status,
                   const char *words)
{
    select_scene s;
    begin(&s, &(select_case){ .x = atto_shape2(6, 5), .index = atto_shape1(7) });
    build(&s);
    spoil(&s);
    EXPECT_FAIL(backward ? atto_index_select_backward(test_dev, &s.args)
                         : atto_index_select_forward(test_dev, &s.args),
                status, words);
    assert_true(test_tensor_untouched(&s.ty) && test_tensor_untouched(&s.tdx));
    end(&s);
}

static void no_dimension(select_scene *s)
{
    s->tx.view.rank = s->tdx.view.rank = 0;
}
static void other_dim(select_scene *s)
{
    s->args.dim = 2;
}
static void short_y(select_scene *s)
{
    s->ty.view.shape[0] = s->tdy.view.shape[0] = 6;
}
static void half_y(select_scene *s)
{
    s->ty.view.dtype = s->tdy.view.dtype = ATTO_F16;
}
static void whole_x(select_scene *s)
{
    s->tx.view.dtype = s->tdx.view.dtype = ATTO_I32;
}
static void float_index(select_scene *s)
{
    s->tindex.view.dtype = ATTO_F32;
}
static void padding_behind(select_scene *s)
{
    s->args.has_padding = true;
    s->args.padding = 6;
}
static void padding_before(select_scene *s)
{
    s->args.has_padding = true;
    s->args.padding = -1;
}
static void many_dimensions(select_scene *s)
{
    atto_tensor *t = &s->tindex.view;
    t->rank = ATTO_MAX_RANK;
    for (int32_t d = 1; d < t->rank; d++) t->shape[d] = 1, t->stride[d] = 1;
}

static void index_select_refuses_what_does_not_fit(void **state)
{
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
        refuse(no_dimension, backward, ATTO_E_SHAPE, "x has no dimension");
        refuse(other_dim, backward, ATTO_E_ARGUMENT, "dim is 2|expected -2 to 1");
        refuse(short_y, backward, ATTO_E_SHAPE, "y is [6,5]|expected [7,5]");
        refuse(half_y, backward, ATTO_E_DTYPE, "y is f16|expected f32");
        refuse(whole_x, backward, ATTO_E_DTYPE, "x is i32");
        refuse(float_index, backward, ATTO_E_DTYPE, "index is f32|i32 or i64");
        refuse(padding_behind, backward, ATTO_E_ARGUMENT, "padding is 6|6 rows");
        refuse(padding_before, backward, ATTO_E_ARGUMENT, "padding is -1|6 rows");
        refuse(many_dimensions, backward, ATTO_E_SHAPE, "y would have 9 dimensions|at most 8");
    }
}

/* ---- on a tape, and as a module ---- */

/* One table used twice gets the sum of both gradients. */
static void embedding_on_a_tape_is_tied(void **state)
{
    (void)state;
    const float table[] = { 1, 2, 3, 4, 5, 6 };
    const int64_t first[] = { 2, 0, 2 };
    const int32_t second[] = { 1, 2 };
    const float want[] = { 1, 1, 10, 10, 12, 12 };
    atto_tape *tape;
    atto_tensor weight, grad;
    float got[6], loss;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(3, 2), &weight));
    MUST(atto_tensor_write(&weight, table));
    MUST(atto_tape_create(test_dev, &tape));
    const atto_var w = atto_borrow(tape, &weight, true);
    const atto_var a =
        atto_embedding(tape, w, atto_input(tape, ATTO_I64, atto_shape1(3), first), NULL);
    const atto_var b =
        atto_index_select(tape, w, 0, atto_input(tape, ATTO_I32, atto_shape1(2), second));
    const atto_var tenfold = atto_binary_number(tape, ATTO_BINARY_MUL, b, 10.0f);
    const atto_var sum = atto_add(tape, atto_reduce(tape, ATTO_REDUCE_SUM, a, NULL),
                                  atto_reduce(tape, ATTO_REDUCE_SUM, tenfold, NULL));
    MUST(atto_var_read(tape, sum, &loss));
    assert_true(loss == 11.0f + 3.0f + 11.0f + 10.0f * 18.0f);
    MUST(atto_backward(tape, sum));
    MUST(atto_var_grad(tape, w, &grad));
    MUST(atto_tensor_read(&grad, got));
    assert_memory_equal(got, want, sizeof want);
    MUST(atto_tape_end(tape));
    atto_tape_free(tape);
    atto_tensor_free(&weight);
}

static void index_select_on_a_tape_refuses_bad_calls(void **state)
{
    (void)state;
    const float x[] = { 1, 2 };
    const int64_t i = 0;
    const atto_embedding_options filled = { .reserved = { 0, 1 } };
    const atto_embedding_options outside = { .has_padding = true, .padding = 2 };
    for (int k = 0; k < 5; k++) {
        const char *words[] = { "index_select: dim is 1", "no dimension", "reserved[1]",
                                "padding is 2", "index is f32" };
        atto_tape *tape;
        MUST(atto_tape_create(test_dev, &tape));
        const atto_var vx = atto_input(tape, ATTO_F32, k == 1 ? atto_shape0() : atto_shape1(2), x);
        const atto_var vi = atto_input(tape, ATTO_I64, atto_shape0(), &i);
        const atto_embedding_options *o = k == 2 ? &filled : k == 3 ? &outside : NULL;
        if (k == 0) atto_index_select(tape, vx, 1, vi);
        if (k > 0) atto_embedding(tape, vx, k == 4 ? vx : vi, o);
        const atto_status statuses[] = { ATTO_E_ARGUMENT, ATTO_E_SHAPE, ATTO_E_ARGUMENT,
                                         ATTO_E_ARGUMENT, ATTO_E_DTYPE };
        EXPECT_FAIL(atto_tape_end(tape), statuses[k], words[k]);
        atto_tape_free(tape);
    }
}

static atto_status keep_param(void *data, const char *key, atto_param *p)
{
    assert_string_equal(key, "weight");
    *(atto_param **)data = p;
    return ATTO_OK;
}

static void embedding_as_a_module(void **state)
{
    (void)state;
    enum { COUNT = 500, DIMS = 12 };
    const int64_t tokens[] = { 3, 7, 3, 499 };
    const atto_embedding_module_options options = { .has_padding = true, .padding = 7 };
    float weight[COUNT * DIMS], y[4 * DIMS], grad[COUNT * DIMS];
    double sum = 0.0, squares = 0.0;
    atto_module *m;
    atto_param *p = NULL;
    atto_tape *tape;
    atto_tensor g;
    atto_seed(test_dev, 7);
    MUST(atto_embedding_create(test_dev, COUNT, DIMS, &options, &m));
    assert_string_equal(atto_module_class_name(m), "Embedding");
    MUST(atto_module_params(m, keep_param, &p));
    MUST(atto_param_read(p, weight));
    for (int i = 0; i < COUNT * DIMS; i++) sum += weight[i], squares += weight[i] * weight[i];
    for (int i = 0; i < DIMS; i++) assert_true(weight[7 * DIMS + i] == 0.0f);
    assert_true(fabs(sum / (COUNT * DIMS)) < 0.06 && fabs(squares / (COUNT * DIMS) - 1.0) < 0.08);

    MUST(atto_tape_create(test_dev, &tape));
    const atto_var v = atto_apply(tape, m, atto_input(tape, ATTO_I64, atto_shape2(2, 2), tokens));
    MUST(atto_var_read(tape, v, y));
    for (int k = 0; k < 4; k++)
        assert_memory_equal(y + k * DIMS, weight + tokens[k] * DIMS, DIMS * sizeof *y);
    MUST(atto_backward(tape, atto_reduce(tape, ATTO_REDUCE_SUM, v, NULL)));
    MUST(atto_param_grad(p, &g));
    MUST(atto_tensor_read(&g, grad));
    for (int i = 0; i < COUNT * DIMS; i++) {
        const int row = i / DIMS;
        assert_true(grad[i] == (row == 3 ? 2.0f : row == 499 ? 1.0f : 0.0f));
    }
    MUST(atto_tape_end(tape));
    atto_tape_free(tape);
    atto_module_free(m);
}

static void embedding_module_refuses_bad_options(void **state)
{
    (void)state;
    const atto_embedding_module_options outside = { .has_padding = true, .padding = 5 };
    const atto_embedding_module_options filled = { .reserved = { 1 } };
    const atto_embedding_module_options whole = { .dtype = ATTO_I32 };
    atto_module *m;
    EXPECT_FAIL(atto_embedding_create(NULL, 5, 2, NULL, &m), ATTO_E_NULL, "dev is NULL");
    EXPECT_FAIL(atto_embedding_create(test_dev, 5, 2, NULL, NULL), ATTO_E_NULL, "m is NULL");
    EXPECT_FAIL(atto_embedding_create(test_dev, -1, 2, NULL, &m), ATTO_E_SHAPE, "count is -1");
    EXPECT_FAIL(atto_embedding_create(test_dev, 5, -2, NULL, &m), ATTO_E_SHAPE, "dims is -2");
    EXPECT_FAIL(atto_embedding_create(test_dev, 5, 2, &outside, &m), ATTO_E_ARGUMENT,
                "embedding_create: padding is 5|5 rows");
    EXPECT_FAIL(atto_embedding_create(test_dev, 5, 2, &filled, &m), ATTO_E_ARGUMENT, "reserved[0]");
    EXPECT_FAIL(atto_embedding_create(test_dev, 5, 2, &whole, &m), ATTO_E_DTYPE,
                "embedding_create");
    assert_null(m);
    MUST(atto_sequential_create(test_dev, &m));
    MUST(atto_sequential_embedding(m, 5, 2, NULL));
    assert_int_equal(atto_module_param_count(m), 10);
    atto_module_free(m);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(index_select_matches_oracle),
    cmocka_unit_test(index_select_takes_f16_and_bf16),
    cmocka_unit_test(index_select_takes_any_layout),
    cmocka_unit_test(index_select_adds_each_position_once),
    cmocka_unit_test(index_select_adds_in_order),
    cmocka_unit_test(index_select_of_many_positions),
    cmocka_unit_test(index_select_of_nothing),
    cmocka_unit_test(index_select_passes_infinities_and_nan_on),
    cmocka_unit_test(index_select_finds_bad_indices),
    cmocka_unit_test(index_select_from_no_rows),
    cmocka_unit_test(index_select_finds_bad_indices_through_the_fallback),
    cmocka_unit_test(index_select_repeats_bit_for_bit),
    cmocka_unit_test(index_select_does_not_depend_on_threads),
    cmocka_unit_test(index_select_in_a_steady_state_costs_launches_only),
    cmocka_unit_test(index_select_refuses_what_does_not_fit),
    cmocka_unit_test(embedding_on_a_tape_is_tied),
    cmocka_unit_test(index_select_on_a_tape_refuses_bad_calls),
    cmocka_unit_test(embedding_as_a_module),
    cmocka_unit_test(embedding_module_refuses_bad_options),
};
TEST_MAIN("index_select", tests)
