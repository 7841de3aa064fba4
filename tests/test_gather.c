/* SPDX-License-Identifier: MIT */
/* gather, forward and backward: the double oracle decides, on every backend. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"
#include "oracle_index.h"

/* ---- one case ---- */

typedef struct gather_case {
    atto_shape x, index;
    int32_t dim;
    atto_dtype dtype;    /* 0 = f32 */
    atto_dtype index_as; /* 0 = i64 */
    test_layout layout;  /* of all tensors */
    bool one, add;       /* one: every index is the same */
    uint64_t seed;
} gather_case;

/* A case with its data and tensors. */
typedef struct gather_scene {
    gather_case c;
    int64_t numel, out; /* of x, of the index and y */
    double *x, *index, *dy, *old;
    test_tensor tx, tindex, ty, tdy, tdx;
    struct atto_gather_args args;
    oracle_index_answer want;
} gather_scene;

static int64_t count_of(atto_shape shape)
{
    int64_t n = 1;
    for (int32_t d = 0; d < shape.rank; d++) n *= shape.dim[d];
    return n;
}

static int32_t along(const gather_case *c)
{
    return c->dim < 0 ? c->dim + c->x.rank : c->dim;
}

static void begin(gather_scene *s, const gather_case *c)
{
    memset(s, 0, sizeof *s);
    s->c = *c;
    if (!s->c.dtype) s->c.dtype = ATTO_F32;
    if (!s->c.index_as) s->c.index_as = ATTO_I64;
    s->numel = count_of(c->x), s->out = count_of(c->index);
    s->x = test_doubles(s->numel), s->old = test_doubles(s->numel);
    s->index = test_doubles(s->out), s->dy = test_doubles(s->out);
    test_uniform(c->seed + 1, -4.0, 4.0, s->c.dtype, s->x, s->numel);
    test_uniform(c->seed + 2, -1.0, 1.0, s->c.dtype, s->old, s->numel);
    test_uniform(c->seed + 3, -2.0, 2.0, s->c.dtype, s->dy, s->out);
    const int64_t rows = c->x.dim[along(c)];
    uint64_t seed = c->seed + 5;
    for (int64_t i = 0; i < s->out && rows > 0; i++)
        s->index[i] = c->one ? (double)(rows / 2) : (double)(test_random(&seed) % (uint64_t)rows);
}

static void make(test_tensor *t, atto_dtype dtype, atto_shape shape, test_layout layout,
                 const double *values, const atto_tensor **slot)
{
    test_tensor_make(t, test_dev, dtype, shape, layout);
    if (values) test_tensor_put(t, values);
    *slot = &t->view;
}

static void build(gather_scene *s)
{
    const gather_case *c = &s->c;
    struct atto_gather_args *a = &s->args;
    make(&s->tx, c->dtype, c->x, c->layout, s->x, &a->x);
    make(&s->tindex, c->index_as, c->index, c->layout, s->index, &a->index);
    make(&s->ty, c->dtype, c->index, c->layout, NULL, &a->y);
    make(&s->tdy, c->dtype, c->index, c->layout, s->dy, &a->dy);
    make(&s->tdx, c->dtype, c->x, c->layout, c->add ? s->old : NULL, &a->dx);
    a->add_dx = c->add;
    a->dim = c->dim;
}

static void end(gather_scene *s)
{
    test_tensor *tensors[] = { &s->tx, &s->tindex, &s->ty, &s->tdy, &s->tdx };
    double *arrays[] = { s->x,       s->index,         s->dy,           s->old, s->want.y,
                         s->want.dx, s->want.dx_terms, s->want.dx_count };
    for (int i = 0; i < COUNT_OF(tensors); i++) test_tensor_drop(tensors[i]);
    for (int i = 0; i < COUNT_OF(arrays); i++) free(arrays[i]);
}

static void ask_oracle(gather_scene *s)
{
    const oracle_index question = { .x = s->c.x,
                                    .shape = s->c.index,
                                    .dim = along(&s->c),
                                    .index = s->index,
                                    .values = s->x,
                                    .dy = s->dy };
    s->want.y = test_doubles(s->out);
    s->want.dx = test_doubles(s->numel);
    s->want.dx_terms = test_doubles(s->numel);
    s->want.dx_count = test_doubles(s->numel);
    oracle_gather(&question, &s->want);
}

static void judge(const gather_scene *s)
{
    const gather_case *c = &s->c;
    const int64_t terms = s->want.most + c->add;
    test_judge(&s->ty, "gather", c->layout, c->seed, 1, s->want.y, NULL, NULL);
    test_judge(&s->tdx, "gather_grad", c->layout, c->seed, terms > 0 ? terms : 1, s->want.dx,
               s->want.dx_terms, c->add ? s->old : NULL);
    assert_true(test_tensor_untouched(&s->tx) && test_tensor_untouched(&s->tindex));
    assert_true(test_tensor_untouched(&s->tdy));
}

static void run_scene(gather_scene *s)
{
    build(s);
    ask_oracle(s);
    MUST(atto_gather_forward(test_dev, &s->args));
    MUST(atto_gather_backward(test_dev, &s->args));
}

static void check(const gather_case *c)
{
    gather_scene s;
    begin(&s, c);
    run_scene(&s);
    judge(&s);
    MUST(atto_device_sync(test_dev));
    end(&s);
}

/* ---- sizes and dimensions ---- */

/* The last ones leave out so much of x that it is copied first. */
static const struct shape_row {
    int32_t rank;
    int64_t x[5], index[5];
    int32_t dim;
} shape_rows[] = {
    { 1, { 1 }, { 1 }, 0 },
    { 1, { 5 }, { 1031 }, 0 },
    { 2, { 7, 13 }, { 29, 13 }, 0 },
    { 2, { 7, 13 }, { 7, 40 }, 1 },
    { 2, { 7, 13 }, { 4, 5 }, -1 },
    { 2, { 7, 13 }, { 6, 9 }, 0 },
    { 2, { 1, 300 }, { 2, 300 }, 0 },
    { 3, { 4, 5, 6 }, { 4, 9, 6 }, 1 },
    { 3, { 4, 5, 6 }, { 2, 9, 3 }, 1 },
    { 3, { 4, 5, 6 }, { 4, 5, 1 }, 2 },
    { 3, { 40, 3, 301 }, { 40, 8, 301 }, -2 },
    { 4, { 3, 1, 4, 2 }, { 3, 1, 6, 2 }, 2 },
    { 3, { 4, 5, 6 }, { 3, 2, 6 }, 2 },
    { 3, { 4, 5, 6 }, { 8, 3, 2 }, 0 },
    { 5, { 3, 4, 5, 6, 2 }, { 2, 3, 7, 5, 1 }, 2 },
    /* Long lines, next to two others, and to more elements than a work-group counts apart. */
    { 3, { 4, 5, 3 }, { 4, 150, 3 }, 1 },
    { 2, { 3, 5000 }, { 3, 700 }, 1 },
    /* And with neighbours, whose sums are one or two work-groups' local memory; and a row too many. */
    { 2, { 5, 33 }, { 64, 33 }, 0 },
    { 3, { 2, 400, 41 }, { 2, 90, 41 }, 1 },
    { 2, { 765, 17 }, { 70, 17 }, 0 },
};

static gather_case case_of(int i)
{
    const struct shape_row *r = &shape_rows[i];
    return (gather_case){ .x = atto_shape_of(r->rank, r->x),
                          .index = atto_shape_of(r->rank, r->index),
                          .dim = r->dim,
                          .seed = 100 + (uint64_t)i };
}

static void gather_matches_oracle(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(shape_rows); i++)
        for (int k = 0; k < 4; k++) {
            gather_case c = case_of(i);
            c.one = k % 2 == 1;
            c.add = k > 1;
            c.index_as = (i + k) % 2 ? ATTO_I32 : ATTO_I64;
            check(&c);
        }
}

static void gather_takes_f16_and_bf16(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int i = 1; i < COUNT_OF(shape_rows); i += 2)
            for (int k = 0; k < 2; k++) {
                gather_case c = case_of(i);
                c.dtype = d ? ATTO_BF16 : ATTO_F16;
                c.one = c.add = k == 1;
                check(&c);
            }
}

/* I9, I10 */
static void gather_takes_any_layout(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_OFFSET, LAYOUT_TRANSPOSED, LAYOUT_STEP2 };
    for (int i = 0; i < COUNT_OF(layouts); i++)
        for (int k = 0; k < 2; k++)
            check(&(gather_case){ .x = atto_shape3(5, 6, 8),
                                  .index = atto_shape3(4, 9, 8),
                                  .dim = 1,
                                  .dtype = k ? ATTO_BF16 : ATTO_F32,
                                  .layout = layouts[i],
                                  .add = k == 1,
                                  .seed = 300 });
}

/* Sums in ascending order: 2^24 swallows what comes behind it one by one, and not what came
 * before. */
static void gather_adds_in_order(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        const bool down = k % 2 == 1;
        const int64_t wide = k < 2 ? 2 : 40;
        gather_scene s;
        double got[3 * 40];
        begin(&s, &(gather_case){
                      .x = atto_shape2(3, wide), .index = atto_shape2(601, wide), .one = true });
        for (int64_t i = 0; i < s.out; i++) s.dy[i] = 1.0;
        for (int64_t i = 0; i < wide; i++) s.dy[down ? i : s.out - wide + i] = 0x1p24;
        run_scene(&s);
        test_tensor_get(&s.tdx, got);
        for (int64_t i = wide; i < 2 * wide; i++)
            assert_true(got[i] == 0x1p24 + (down ? 0.0 : 600.0));
        end(&s);
    }
}

/* ---- values ---- */

/* I1 */
static void gather_of_nothing(void **state)
{
    (void)state;
    check(&(gather_case){ .x = atto_shape2(5, 4), .index = atto_shape2(0, 4) });
    check(&(gather_case){ .x = atto_shape2(5, 4), .index = atto_shape2(3, 0), .add = true });
    check(&(gather_case){ .x = atto_shape2(5, 4), .index = atto_shape2(3, 0), .dtype = ATTO_F16 });
    check(&(gather_case){ .x = atto_shape2(5, 0), .index = atto_shape2(3, 0) });
    check(&(gather_case){ .x = atto_shape2(0, 4), .index = atto_shape2(0, 4) });
}

/* F7 */
static void gather_passes_infinities_and_nan_on(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++) {
        const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };
        gather_scene s;
        begin(&s, &(gather_case){
                      .x = atto_shape2(4, 3), .index = atto_shape2(8, 3), .dtype = dtypes[d] });
        for (int64_t i = 0; i < s.out; i++) s.index[i] = (double)(i / 3 % 4);
        s.x[0] = NAN, s.x[4] = INFINITY, s.x[8] = -INFINITY, s.x[9] = -0.0;
        s.dy[0] = NAN, s.dy[4] = INFINITY, s.dy[16] = -INFINITY, s.dy[8] = -INFINITY;
        run_scene(&s);
        judge(&s);
        end(&s);
    }
}

/* ---- indices that name nothing (G8) ---- */

static const double bad_indices[] = { 5, -1, 2147483647, -2147483648.0, 4294967297.0 };

/* That element is NaN and adds nothing; the others are as ever; the next read tells, once. */
static void expect_data_error(atto_device *dev, gather_case c, double index)
{
    gather_scene s;
    atto_device *before = test_dev;
    test_dev = dev;
    begin(&s, &c);
    s.index[s.out / 2] = index;
    build(&s);
    ask_oracle(&s);
    MUST(atto_gather_forward(dev, &s.args));
    EXPECT_FAIL(atto_device_sync(dev), ATTO_E_INDEX, "index");
    MUST(atto_device_sync(dev));
    MUST(atto_gather_backward(dev, &s.args)); /* finds it by itself too */
    EXPECT_FAIL(atto_device_sync(dev), ATTO_E_INDEX, "index");
    judge(&s);
    end(&s);
    c.seed++; /* the device is as good as before */
    check(&c);
    test_dev = before;
}

static void gather_finds_bad_indices(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(bad_indices); i++)
        for (int k = 0; k < 4; k++)
            expect_data_error(
                test_dev,
                (gather_case){ .x = atto_shape3(4, 5, 6),
                               .index = k == 3 ? atto_shape3(3, 9, 2) : atto_shape3(4, 9, 6),
                               .dim = 1,
                               .dtype = k < 2 ? ATTO_F32 : ATTO_F16,
                               .index_as = i < 4 && k == 1 ? ATTO_I32 : ATTO_I64,
                               .add = k == 1,
                               .seed = 700 },
                bad_indices[i]);
    for (int i = 0; i < COUNT_OF(bad_indices); i++)
        expect_data_error(test_dev,
                          (gather_case){ .x = atto_shape3(4, 5, 20),
                                         .index = atto_shape3(4, 65, 20),
                                         .dim = 1,
                                         .seed = 700 },
                          bad_indices[i]);
}

/* Along a dimension without elements every index is wrong. */
static void gather_from_no_rows(void **state)
{
    (void)state;
    gather_scene s;
    begin(&s, &(gather_case){ .x = atto_shape3(4, 0, 6), .index = atto_shape3(3, 2, 6), .dim = 1 });
    build(&s);
    ask_oracle(&s);
    MUST(atto_gather_forward(test_dev, &s.args));
    EXPECT_FAIL(atto_device_sync(test_dev), ATTO_E_INDEX, "index");
    test_judge(&s.ty, "gather", LAYOUT_DENSE, 0, 1, s.want.y, NULL, NULL);
    MUST(atto_gather_backward(test_dev, &s.args));
    MUST(atto_device_sync(test_dev)); /* there was nothing to write */
    end(&s);
}

/* A device without kernels falls back to the CPU, and passes the bit on. */
static void gather_finds_bad_indices_through_the_fallback(void **state)
{
    (void)state;
    if (!test_on_opencl()) skip();
    test_broken broken;
    test_broken_open(&broken, "gather");
    expect_data_error(
        broken.dev,
        (gather_case){ .x = atto_shape2(5, 10), .index = atto_shape2(9, 10), .seed = 3 }, 5);
    test_broken_close(&broken, 4);
}

/* ---- repeatability ---- */

static void take_bits(gather_scene *s, uint64_t *bits)
{
    MUST(atto_gather_forward(test_dev, &s->args));
    MUST(atto_gather_backward(test_dev, &s->args));
    test_tensor_bits(&s->ty, bits);
    test_tensor_bits(&s->tdx, bits + s->out);
}

/* J1 */
static void gather_repeats_bit_for_bit(void **state)
{
    (void)state;
    gather_scene s;
    begin(&s,
          &(gather_case){ .x = atto_shape2(11, 300), .index = atto_shape2(200, 300), .seed = 800 });
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

/* J1: nor do bits depend on the number of threads. */
static void gather_does_not_depend_on_threads(void **state)
{
    (void)state;
    if (test_on_opencl()) skip();
    const int32_t threads[] = { 1, 2, 7 };
    const gather_case c = { .x = atto_shape2(11, 900),
                            .index = atto_shape2(200, 900),
                            .seed = 900 };
    const int64_t n = (11 + 200) * 900;
    uint64_t *bits = calloc(2 * (size_t)n, sizeof *bits);
    atto_device *before = test_dev;
    for (int i = 0; i < COUNT_OF(threads); i++) {
        const atto_device_options options = { .num_threads = threads[i] };
        gather_scene s;
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

static void gather_in_a_steady_state_costs_launches_only(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) { /* as it is, and with scratch */
        gather_case c = case_of(k ? COUNT_OF(shape_rows) - 1 : 2);
        gather_scene s;
        c.dtype = k ? ATTO_F16 : ATTO_F32;
        begin(&s, &c);
        build(&s);
        atto_device_stats before, after;
        for (int i = 0; i < 5; i++) {
            if (i == 2) MUST(atto_device_stats_get(test_dev, &before));
            MUST(atto_gather_forward(test_dev, &s.args));
            MUST(atto_gather_backward(test_dev, &s.args));
        }
        MUST(atto_device_stats_get(test_dev, &after));
        assert_int_equal(after.allocations, before.allocations);
        assert_int_equal(after.hidden_copies, before.hidden_copies);
        assert_int_equal(after.blocking_calls, before.blocking_calls);
        end(&s);
    }
}

/* ---- what is refused ---- */

/* Makes one change to a good call, 7 x 5 of 6 x 5, forward or backward. */
static void refuse(void (*spoil)(gather_scene *s), bool backward, atto_status status,
                   const char *words)
{
    gather_scene s;
    begin(&s, &(gather_case){ .x = atto_shape2(6, 5), .index = atto_shape2(7, 5) });
    build(&s);
    spoil(&s);
    EXPECT_FAIL(backward ? atto_gather_backward(test_dev, &s.args)
                         : atto_gather_forward(test_dev, &s.args),
                status, words);
    assert_true(test_tensor_untouched(&s.ty) && test_tensor_untouched(&s.tdx));
    end(&s);
}

static void no_dimension(gather_scene *s)
{
    s->tx.view.rank = s->tdx.view.rank = 0;
}
static void other_dim(gather_scene *s)
{
    s->args.dim = -3;
}
static void short_y(gather_scene *s)
{
    s->ty.view.shape[0] = s->tdy.view.shape[0] = 6;
}
static void half_y(gather_scene *s)
{
    s->ty.view.dtype = s->tdy.view.dtype = ATTO_F16;
}
static void whole_x(gather_scene *s)
{
    s->tx.view.dtype = s->tdx.view.dtype = ATTO_I32;
}
static void float_index(gather_scene *s)
{
    s->tindex.view.dtype = ATTO_F32;
}
static void flat_index(gather_scene *s)
{
    s->tindex.view.rank = 1;
}
static void larger_index(gather_scene *s)
{
    s->args.dim = 1;
}

static void gather_refuses_what_does_not_fit(void **state)
{
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
        refuse(no_dimension, backward, ATTO_E_SHAPE, "x has no dimension");
        refuse(other_dim, backward, ATTO_E_ARGUMENT, "dim is -3|expected -2 to 1");
        refuse(short_y, backward, ATTO_E_SHAPE, "y is [6,5]|expected [7,5]");
        refuse(half_y, backward, ATTO_E_DTYPE, "y is f16|expected f32");
        refuse(whole_x, backward, ATTO_E_DTYPE, "x is i32");
        refuse(float_index, backward, ATTO_E_DTYPE, "index is f32|i32 or i64");
        refuse(flat_index, backward, ATTO_E_SHAPE, "index has 1 dimensions|x's 2");
        refuse(larger_index, backward, ATTO_E_SHAPE,
               "index has 7 elements along dimension 0|at most|x's 6");
    }
}

/* ---- on a tape ---- */

static void gather_on_a_tape(void **state)
{
    (void)state;
    const float x[] = { 1, 2, 3, 4, 5, 6 }, want[] = { 2, 0, 1, 0, 1, 2 };
    const int64_t index[] = { 0, 2, 0, 2, 1, 2 };
    atto_tape *tape;
    atto_tensor input, grad;
    float y[6], dx[6];
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(2, 3), &input));
    MUST(atto_tensor_write(&input, x));
    MUST(atto_tape_create(test_dev, &tape));
    const atto_var v = atto_borrow(tape, &input, true);
    const atto_var g =
        atto_gather(tape, v, -1, atto_input(tape, ATTO_I64, atto_shape2(2, 3), index));
    MUST(atto_var_read(tape, g, y));
    for (int i = 0; i < 6; i++) assert_true(y[i] == x[i / 3 * 3 + index[i]]);
    MUST(atto_backward(tape, atto_reduce(tape, ATTO_REDUCE_SUM, g, NULL)));
    MUST(atto_var_grad(tape, v, &grad));
    MUST(atto_tensor_read(&grad, dx));
    assert_memory_equal(dx, want, sizeof want);
    atto_gather(tape, v, 2, g);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_DTYPE, "gather_forward: index is f32");
    atto_tape_free(tape);
    atto_tensor_free(&input);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(gather_matches_oracle),
    cmocka_unit_test(gather_takes_f16_and_bf16),
    cmocka_unit_test(gather_takes_any_layout),
    cmocka_unit_test(gather_adds_in_order),
    cmocka_unit_test(gather_of_nothing),
    cmocka_unit_test(gather_passes_infinities_and_nan_on),
    cmocka_unit_test(gather_finds_bad_indices),
    cmocka_unit_test(gather_from_no_rows),
    cmocka_unit_test(gather_finds_bad_indices_through_the_fallback),
    cmocka_unit_test(gather_repeats_bit_for_bit),
    cmocka_unit_test(gather_does_not_depend_on_threads),
    cmocka_unit_test(gather_in_a_steady_state_costs_launches_only),
    cmocka_unit_test(gather_refuses_what_does_not_fit),
    cmocka_unit_test(gather_on_a_tape),
};
TEST_MAIN("gather", tests)
