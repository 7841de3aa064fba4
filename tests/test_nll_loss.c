/* SPDX-License-Identifier: MIT */
/* nll_loss, forward and backward: the double oracle decides, on every backend. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "labels.h"
#include "oracle_loss.h"

/* ---- one case ---- */

typedef struct nll_case {
    atto_shape shape;  /* of x */
    atto_dtype dtype;  /* 0 = f32 */
    atto_dtype target; /* 0 = i64 */
    atto_dtype weight; /* 0 = none */
    atto_reduction reduction;
    bool has_ignore;
    int64_t ignore;
    test_layout layout;    /* of x, target and dx */
    test_layout dx_layout; /* if it is another one than dense */
    bool no_saved;         /* no total */
    bool add;
    uint64_t seed;
} nll_case;

/* A case with its sizes, data and tensors. */
typedef struct nll_scene {
    nll_case c;
    label_sizes sizes;
    double *x, *target, *weight, *dloss, *old;
    test_tensor tx, ttarget, tweight, tloss, ttotal, tdloss, tdx;
    struct atto_nll_loss_args args;
    oracle_nll_answer want;
} nll_scene;

static void draw(nll_scene *s)
{
    const nll_case *c = &s->c;
    s->x = test_doubles(s->sizes.numel), s->old = test_doubles(s->sizes.numel);
    s->target = test_doubles(s->sizes.positions), s->weight = test_doubles(s->sizes.classes);
    s->dloss = test_doubles(s->sizes.positions + 1);
    test_uniform(c->seed + 1, -8.0, 0.0, c->dtype, s->x, s->sizes.numel);
    test_uniform(c->seed + 2, -1.0, 1.0, c->dtype, s->old, s->sizes.numel);
    test_uniform(c->seed + 3, -2.0, 2.0, ATTO_F32, s->dloss, s->sizes.positions + 1);
    if (c->weight) test_uniform(c->seed + 4, 0.25, 2.0, c->weight, s->weight, s->sizes.classes);
    draw_labels(&s->sizes, c->has_ignore ? &c->ignore : NULL, c->seed + 5, s->target);
}

static void make(test_tensor *t, atto_dtype dtype, atto_shape shape, test_layout layout,
                 const double *values, const atto_tensor **slot)
{
    test_tensor_make(t, test_dev, dtype, shape, layout);
    if (values) test_tensor_put(t, values);
    *slot = &t->view;
}

static void build(nll_scene *s)
{
    const nll_case *c = &s->c;
    struct atto_nll_loss_args *a = &s->args;
    const bool none = c->reduction == ATTO_REDUCTION_NONE;
    const atto_shape loss = none ? s->sizes.places : atto_shape0();
    const test_layout out = c->dx_layout ? c->dx_layout : c->layout;
    make(&s->tx, c->dtype, c->shape, c->layout, s->x, &a->x);
    make(&s->ttarget, c->target, s->sizes.places, c->layout, s->target, &a->target);
    if (c->weight)
        make(&s->tweight, c->weight, atto_shape1(s->sizes.classes), LAYOUT_OFFSET, s->weight,
             &a->weight);
    make(&s->tloss, ATTO_F32, loss, LAYOUT_OFFSET, NULL, &a->loss);
    if (!c->no_saved) make(&s->ttotal, ATTO_F32, atto_shape0(), LAYOUT_OFFSET, NULL, &a->total);
    make(&s->tdloss, ATTO_F32, loss, LAYOUT_OFFSET, s->dloss, &a->dloss);
    make(&s->tdx, c->dtype, c->shape, out, c->add ? s->old : NULL, &a->dx);
    a->add_dx = c->add;
    a->reduction = c->reduction;
    a->has_ignore_index = c->has_ignore;
    a->ignore_index = c->ignore;
}

static void begin(nll_scene *s, const nll_case *c)
{
    memset(s, 0, sizeof *s);
    s->c = *c;
    if (!s->c.dtype) s->c.dtype = ATTO_F32;
    if (!s->c.target) s->c.target = ATTO_I64;
    s->sizes = label_sizes_of(c->shape);
    draw(s);
}

static void end(nll_scene *s)
{
    test_tensor *tensors[] = { &s->tx,     &s->ttarget, &s->tweight, &s->tloss,
                               &s->ttotal, &s->tdloss,  &s->tdx };
    double *arrays[] = { s->x, s->target, s->weight, s->dloss, s->old, s->want.each, s->want.dx };
    for (int i = 0; i < COUNT_OF(tensors); i++) test_tensor_drop(tensors[i]);
    for (int i = 0; i < COUNT_OF(arrays); i++) free(arrays[i]);
}

static void ask_oracle(nll_scene *s)
{
    const nll_case *c = &s->c;
    s->want.each = test_doubles(s->sizes.positions);
    s->want.dx = test_doubles(s->sizes.numel);
    const oracle_nll question = {
        .outer = s->sizes.outer,
        .classes = s->sizes.classes,
        .step = s->sizes.step,
        .x = s->x,
        .labels = s->target,
        .weight = c->weight ? s->weight : NULL,
        .reduction = c->reduction,
        .has_ignore = c->has_ignore,
        .ignore = c->ignore,
        .dloss = s->dloss,
    };
    oracle_nll_loss(&question, &s->want);
}

/* ---- judgement ---- */

/* Additions in a row: 64 of a block, or 4 of a work-item and 32 of its group; then few blocks. */
static int64_t depth(const nll_scene *s)
{
    return s->sizes.positions < 100 ? s->sizes.positions : 100;
}

static void judge(const nll_scene *s, const test_tensor *t, const char *op, int64_t n,
                  const double *want, const double *terms, const double *old)
{
    test_judge(t, op, s->c.layout, s->c.seed, n, want, terms, old);
}

/* A mean has two sums and a division (5). */
static void judge_forward(const nll_scene *s)
{
    const oracle_nll_answer *w = &s->want;
    if (s->c.reduction == ATTO_REDUCTION_NONE)
        judge(s, &s->tloss, "nll_loss", 1, w->each, NULL, NULL);
    else
        judge(s, &s->tloss, "nll_loss", 2 * depth(s) + 5, &w->loss, &w->loss_terms, NULL);
    if (!s->c.no_saved) judge(s, &s->ttotal, "nll_loss", depth(s), &w->total, NULL, NULL);
}

static void judge_backward(const nll_scene *s)
{
    const bool mean = s->c.reduction == ATTO_REDUCTION_MEAN;
    judge(s, &s->tdx, "nll_loss_grad", 1 + (mean ? depth(s) : 0) + s->c.add, s->want.dx, NULL,
          s->c.add ? s->old : NULL);
}

static void expect_inputs_untouched(const nll_scene *s)
{
    assert_true(test_tensor_untouched(&s->tx) && test_tensor_untouched(&s->ttarget));
    assert_true(test_tensor_untouched(&s->tdloss) && test_tensor_untouched(&s->tweight));
}

static void run_scene(nll_scene *s)
{
    build(s);
    ask_oracle(s);
    MUST(atto_nll_loss_forward(test_dev, &s->args));
    MUST(atto_nll_loss_backward(test_dev, &s->args));
}

static void check(const nll_case *c)
{
    nll_scene s;
    begin(&s, c);
    run_scene(&s);
    judge_forward(&s);
    judge_backward(&s);
    expect_inputs_untouched(&s);
    MUST(atto_device_sync(test_dev));
    end(&s);
}

/* A device that plays another one has to build every kernel again: a third of the cases will do. */
static int case_step(void)
{
    return test_on_opencl() && test_in_disguise() ? 3 : 1;
}

/* ---- every combination of options ---- */

static void with_options(int bits, nll_case *c)
{
    const atto_reduction reductions[] = { ATTO_REDUCTION_MEAN, ATTO_REDUCTION_SUM,
                                          ATTO_REDUCTION_NONE };
    c->reduction = reductions[bits % 3];
    bits /= 3;
    c->weight = bits % 2 ? ATTO_F32 : (atto_dtype)0;
    c->no_saved = bits / 2 % 2 == 1;
    c->add = bits / 4 % 2 == 1;
}
#define OPTION_SETS (3 * 8)

static void nll_loss_matches_oracle(void **state)
{
    (void)state;
    const int64_t ignored[] = { 0, -100, 2 };
    const atto_shape shapes[] = { atto_shape2(37, 10), atto_shape4(3, 10, 5, 7) };
    for (int bits = 0; bits < OPTION_SETS; bits++)
        for (int i = 0; i < 8; i++) {
            nll_case c = { .shape = shapes[i / 4], .seed = 100 + (uint64_t)bits };
            with_options(bits, &c);
            c.target = (bits + i) % 2 ? ATTO_I32 : ATTO_I64;
            c.has_ignore = i % 4 < 3;
            c.ignore = i % 4 < 3 ? ignored[i % 4] : 0;
            check(&c);
        }
}

/* ---- sizes ---- */

static const struct size_row {
    int32_t rank;
    int64_t dims[4];
} size_rows[] = {
    { 1, { 1 } },
    { 1, { 7 } },
    { 1, { 1025 } },
    { 2, { 1, 1 } },
    { 2, { 300, 1 } },
    { 2, { 257, 2 } },
    { 2, { 1000, 7 } },
    { 2, { 9, 16 } },
    { 2, { 9, 17 } },
    { 2, { 33, 31 } },
    { 2, { 7, 127 } },
    { 2, { 7, 129 } },
    { 2, { 5, 1023 } },
    { 2, { 3, 4099 } },
    { 2, { 2, 50257 } },
    { 2, { 16387, 3 } },
    { 2, { 70001, 2 } },
    { 2, { 2049, 40 } },
    { 3, { 3, 5, 1 } },
    { 3, { 2, 21, 67 } },
    { 3, { 2, 1200, 5 } },
    { 3, { 2, 70, 64 } },
    { 3, { 4, 3, 1028 } },
    { 4, { 2, 3, 9, 31 } },
    { 4, { 2, 33, 8, 16 } },
};

static void nll_loss_takes_any_size(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(size_rows); i += case_step())
        for (int r = 0; r < 2; r++)
            check(&(nll_case){ .shape = atto_shape_of(size_rows[i].rank, size_rows[i].dims),
                               .no_saved = i % 2 == 1,
                               .weight = i % 3 == 0 ? ATTO_F32 : (atto_dtype)0,
                               .reduction = r ? ATTO_REDUCTION_NONE : ATTO_REDUCTION_MEAN,
                               .seed = 300 + (uint64_t)i });
}

/* Small whole numbers have exact sums: no position is left out, none counts twice (W6). */
static void nll_loss_counts_each_position_once(void **state)
{
    (void)state;
    const int64_t rows[] = { 1, 63, 1024, 1025, 2049, 4097, 16387, 100003 };
    for (int i = 0; i < COUNT_OF(rows); i++) {
        nll_scene s;
        double loss, total, sum = 0.0;
        begin(&s, &(nll_case){ .shape = atto_shape2(rows[i], 3),
                               .reduction = ATTO_REDUCTION_SUM,
                               .seed = 400 });
        for (int64_t k = 0; k < s.sizes.numel; k++) s.x[k] = (double)(k % 5);
        for (int64_t p = 0; p < s.sizes.positions; p++) sum -= s.x[3 * p + (int64_t)s.target[p]];
        run_scene(&s);
        test_tensor_get(&s.tloss, &loss);
        test_tensor_get(&s.ttotal, &total);
        assert_true(loss == sum && total == (double)rows[i]);
        end(&s);
    }
}

/* So many that a work-group has several stretches. */
static void nll_loss_counts_each_of_many_positions_once(void **state)
{
    (void)state;
    const int64_t n = 4300001;
    atto_tensor x, target, loss, total;
    float got[2];
    MUST(atto_tensor_alloc(test_dev, ATTO_F16, atto_shape2(n, 1), &x));
    MUST(atto_tensor_alloc(test_dev, ATTO_I32, atto_shape1(n), &target));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape0(), &loss));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape0(), &total));
    MUST(atto_tensor_fill(&x, -3.0));
    MUST(atto_tensor_fill(&target, 0.0));
    const struct atto_nll_loss_args a = {
        .x = &x, .target = &target, .loss = &loss, .total = &total, .reduction = ATTO_REDUCTION_SUM
    };
    MUST(atto_nll_loss_forward(test_dev, &a));
    MUST(atto_tensor_read(&loss, &got[0]));
    MUST(atto_tensor_read(&total, &got[1]));
    assert_true(got[0] == 3.0f * (float)n && got[1] == (float)n);
    atto_tensor_free(&x);
    atto_tensor_free(&target);
    atto_tensor_free(&loss);
    atto_tensor_free(&total);
}

/* ---- dtypes and layouts ---- */

static void nll_loss_takes_f16_and_bf16(void **state)
{
    (void)state;
    const atto_dtype dtypes[] = { ATTO_F16, ATTO_BF16 };
    const atto_shape shapes[] = { atto_shape2(19, 10), atto_shape2(5, 131), atto_shape3(2, 11, 9),
                                  atto_shape3(2, 40, 16) };
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < COUNT_OF(shapes); i += case_step()) {
            nll_case c = { .shape = shapes[i], .dtype = dtypes[d], .seed = 600 + (uint64_t)i };
            check(&c);
            c.weight = i % 2 ? dtypes[d] : ATTO_F32;
            c.target = ATTO_I32;
            c.reduction = ATTO_REDUCTION_NONE;
            check(&c);
            c.add = c.no_saved = true;
            c.reduction = ATTO_REDUCTION_MEAN;
            check(&c);
        }
}

/* I9 */
static void nll_loss_takes_any_layout(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_OFFSET,     LAYOUT_OFFSET4, LAYOUT_PITCHED,
                                    LAYOUT_TRANSPOSED, LAYOUT_STEP2,   LAYOUT_CHANNELS_LAST };
    const atto_shape shapes[] = { atto_shape3(2, 4, 8), atto_shape2(6, 33) };
    for (int i = 0; i < COUNT_OF(layouts); i += case_step())
        for (int k = 0; k < 4; k++)
            check(&(nll_case){ .shape = shapes[k % 2],
                               .dtype = k < 2 ? ATTO_F32 : ATTO_BF16,
                               .layout = layouts[i],
                               .add = i % 2 == 1,
                               .reduction = k % 2 ? ATTO_REDUCTION_NONE : ATTO_REDUCTION_MEAN,
                               .seed = 700 + (uint64_t)i });
}

/* Rows that begin anywhere in a vector, in a tensor that does too. */
static void nll_loss_backward_takes_any_alignment(void **state)
{
    (void)state;
    const int64_t classes[] = { 1, 2, 3, 7, 9, 130 };
    for (int i = 0; i < COUNT_OF(classes); i++)
        for (int k = 0; k < 3; k++)
            check(&(nll_case){ .shape = atto_shape2(29, classes[i]),
                               .dtype = i % 2 ? ATTO_F16 : ATTO_F32,
                               .dx_layout = k == 0   ? LAYOUT_DENSE
                                            : k == 1 ? LAYOUT_OFFSET
                                                     : LAYOUT_OFFSET4,
                               .seed = 750 });
}

/* ---- values ---- */

/* G11: an ignored label may be a class; G7 follows. */
static void nll_loss_ignores_a_class(void **state)
{
    (void)state;
    nll_scene s;
    double loss, dx[4];
    begin(&s, &(nll_case){ .shape = atto_shape2(2, 2), .has_ignore = true, .ignore = 0 });
    const double x[] = { -1, -2, -3, -4 };
    memcpy(s.x, x, sizeof x);
    s.target[0] = 1, s.target[1] = 0, s.dloss[0] = 1.0;
    run_scene(&s);
    test_tensor_get(&s.tloss, &loss);
    test_tensor_get(&s.tdx, dx);
    assert_true(loss == 2.0 && dx[1] == -1.0 && dx[0] == 0.0 && dx[2] == 0.0 && dx[3] == 0.0);
    end(&s);
}

/* G7: zeros, 0 and NaN; and gradients of exactly 0. */
static void nll_loss_of_ignored_positions_only(void **state)
{
    (void)state;
    for (int bits = 0; bits < OPTION_SETS; bits++) {
        nll_case c = { .shape = bits % 2 ? atto_shape2(9, 5) : atto_shape3(3, 5, 3),
                       .has_ignore = true,
                       .ignore = -100,
                       .seed = 900 };
        nll_scene s;
        with_options(bits, &c);
        c.add = false;
        begin(&s, &c);
        for (int64_t i = 0; i < s.sizes.positions; i++) s.target[i] = -100;
        run_scene(&s);
        double loss[9], dx[45];
        test_tensor_get(&s.tloss, loss);
        for (int64_t i = 0; i < s.tloss.numel; i++)
            assert_true(c.reduction == ATTO_REDUCTION_MEAN ? isnan(loss[i]) : loss[i] == 0.0);
        test_tensor_get(&s.tdx, dx);
        for (int i = 0; i < 45; i++) assert_true(dx[i] == 0.0);
        MUST(atto_device_sync(test_dev));
        end(&s);
    }
}

/* I1 */
static void nll_loss_of_no_positions(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape2(0, 5), atto_shape3(3, 5, 0) };
    for (int bits = 0; bits < OPTION_SETS; bits++)
        for (int i = 0; i < 2; i++) {
            nll_case c = { .shape = shapes[i] };
            nll_scene s;
            double loss = 0.0, total = 0.0;
            with_options(bits, &c);
            begin(&s, &c);
            build(&s);
            MUST(atto_nll_loss_forward(test_dev, &s.args));
            MUST(atto_nll_loss_backward(test_dev, &s.args));
            if (c.reduction != ATTO_REDUCTION_NONE) test_tensor_get(&s.tloss, &loss);
            if (!c.no_saved) test_tensor_get(&s.ttotal, &total);
            assert_true(c.reduction == ATTO_REDUCTION_MEAN ? isnan(loss) : loss == 0.0);
            assert_true(total == 0.0);
            end(&s);
        }
}

/* F7: what the label names comes through; what it does not name is not read. */
static void nll_loss_of_nan_and_infinity_is_ieee(void **state)
{
    (void)state;
    nll_scene s;
    double loss[4];
    const double x[] = { -INFINITY, NAN, NAN, -1, NAN, INFINITY, -2, NAN };
    const double want[] = { INFINITY, 1, -INFINITY, NAN };
    begin(&s, &(nll_case){ .shape = atto_shape2(4, 2), .reduction = ATTO_REDUCTION_NONE });
    memcpy(s.x, x, sizeof x);
    s.target[0] = 0, s.target[1] = s.target[2] = s.target[3] = 1;
    run_scene(&s);
    const test_about about = { "nll_loss", "dense", ATTO_F32, atto_shape1(4), 0 };
    test_tensor_get(&s.tloss, loss);
    expect_equal(&about, loss, want, 4);
    judge_backward(&s);
    end(&s);
}

/* ---- labels that are no class (G8) ---- */

static const double bad_labels[] = { 10, -1, -4, 2147483647, -2147483648.0, 4294967297.0 };

/* That position's loss is NaN and its gradient 0; the others are as ever; the next read tells,
 * once. */
static void expect_data_error(atto_device *dev, nll_case c, double label)
{
    nll_scene s;
    atto_device *before = test_dev;
    test_dev = dev;
    begin(&s, &c);
    s.target[s.sizes.positions / 2] = label;
    if (c.has_ignore) s.target[0] = (double)c.ignore;
    build(&s);
    ask_oracle(&s);
    MUST(atto_nll_loss_forward(dev, &s.args));
    EXPECT_FAIL(atto_device_sync(dev), ATTO_E_INDEX, "label");
    MUST(atto_device_sync(dev));
    MUST(atto_nll_loss_backward(dev, &s.args)); /* finds it by itself too */
    EXPECT_FAIL(atto_device_sync(dev), ATTO_E_INDEX, "label");
    judge_forward(&s);
    judge_backward(&s);
    expect_inputs_untouched(&s);
    end(&s);

    c.seed++; /* the device is as good as before */
    begin(&s, &c);
    run_scene(&s);
    judge_forward(&s);
    judge_backward(&s);
    MUST(atto_device_sync(dev));
    end(&s);
    test_dev = before;
}

static void nll_loss_finds_labels_that_are_no_class(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(bad_labels); i++)
        for (int bits = 0; bits < OPTION_SETS; bits++) {
            const bool image = bits % 2 == 1;
            nll_case c = { .shape = image ? atto_shape4(2, 10, 3, 5) : atto_shape2(11, 10),
                           .target = i < 5 && bits % 3 ? ATTO_I32 : ATTO_I64,
                           .has_ignore = i == 2,
                           .ignore = -1,
                           .seed = 1000 + (uint64_t)bits };
            with_options(bits, &c);
            expect_data_error(test_dev, c, bad_labels[i]);
        }
}

/* A device without kernels falls back to the CPU, and passes the bit on. */
static void nll_loss_finds_bad_labels_through_the_fallback(void **state)
{
    (void)state;
    if (!test_on_opencl()) skip();
    test_broken broken;
    test_broken_open(&broken, "nll_loss");
    expect_data_error(broken.dev, (nll_case){ .shape = atto_shape2(11, 10), .seed = 1200 }, 10);
    test_broken_close(&broken, 4);
}

/* ---- repeatability ---- */

/* J1 */
static void nll_loss_repeats_bit_for_bit(void **state)
{
    (void)state;
    nll_scene s;
    begin(&s, &(nll_case){ .shape = atto_shape2(20011, 10), .weight = ATTO_F32, .seed = 1300 });
    run_scene(&s);
    uint64_t loss[2], *dx = calloc((size_t)s.sizes.numel, sizeof *dx);
    uint64_t *again = calloc((size_t)s.sizes.numel, sizeof *again);
    test_tensor_bits(&s.tloss, &loss[0]);
    test_tensor_bits(&s.tdx, dx);
    for (int run = 0; run < 50; run++) {
        MUST(atto_nll_loss_forward(test_dev, &s.args));
        MUST(atto_nll_loss_backward(test_dev, &s.args));
        test_tensor_bits(&s.tloss, &loss[1]);
        test_tensor_bits(&s.tdx, again);
        assert_true(loss[0] == loss[1]);
        assert_memory_equal(dx, again, (size_t)s.sizes.numel * sizeof *dx);
    }
    free(dx), free(again);
    end(&s);
}

static void nll_loss_in_a_steady_state_costs_launches_only(void **state)
{
    (void)state;
    nll_scene s;
    begin(&s, &(nll_case){ .shape = atto_shape2(100, 10), .no_saved = true });
    build(&s);
    atto_device_stats before, after;
    for (int i = 0; i < 5; i++) {
        if (i == 2) MUST(atto_device_stats_get(test_dev, &before));
        MUST(atto_nll_loss_forward(test_dev, &s.args));
        MUST(atto_nll_loss_backward(test_dev, &s.args));
    }
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.allocations, before.allocations);
    assert_int_equal(after.hidden_copies, before.hidden_copies);
    assert_int_equal(after.blocking_calls, before.blocking_calls);
    end(&s);
}

/* ---- what is refused ---- */

/* Makes one change to a good call of 6 x 5, forward or backward. */
static void refuse(void (*spoil)(nll_scene *s), bool backward, atto_status status,
                   const char *words)
{
    nll_scene s;
    begin(&s, &(nll_case){ .shape = atto_shape2(6, 5), .weight = ATTO_F32 });
    build(&s);
    spoil(&s);
    EXPECT_FAIL(backward ? atto_nll_loss_backward(test_dev, &s.args)
                         : atto_nll_loss_forward(test_dev, &s.args),
                status, words);
    assert_true(test_tensor_untouched(&s.tloss) && test_tensor_untouched(&s.tdx));
    end(&s);
}

static void no_classes(nll_scene *s)
{
    s->tx.view = s->tdx.view = atto_tensor_of(NULL, ATTO_F32, atto_shape2(6, 0), 0);
}
static void no_dimension(nll_scene *s)
{
    s->tx.view.rank = s->tdx.view.rank = 0;
}
static void integer_logs(nll_scene *s)
{
    s->tx.view.dtype = s->tdx.view.dtype = ATTO_I32;
}
static void short_target(nll_scene *s)
{
    s->ttarget.view.shape[0] = 5;
}
static void float_target(nll_scene *s)
{
    s->ttarget.view.dtype = ATTO_F32;
}
static void short_weight(nll_scene *s)
{
    s->tweight.view.shape[0] = 4;
}
static void other_weight(nll_scene *s)
{
    s->tweight.view.dtype = ATTO_F16;
}
static void long_total(nll_scene *s)
{
    s->args.total = &s->tweight.view;
    s->args.weight = NULL;
}
static void loss_by_position(nll_scene *s)
{
    s->args.reduction = ATTO_REDUCTION_NONE;
}
static void odd_reduction(nll_scene *s)
{
    s->args.reduction = ATTO_REDUCTION_BATCH_MEAN;
}

static void nll_loss_refuses_what_does_not_fit(void **state)
{
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
        refuse(no_classes, backward, ATTO_E_SHAPE, "x has no classes");
        refuse(no_dimension, backward, ATTO_E_SHAPE, "x has no dimension");
        refuse(integer_logs, backward, ATTO_E_DTYPE, "x is i32");
        refuse(short_target, backward, ATTO_E_SHAPE, "target is [5]|expected [6]");
        refuse(float_target, backward, ATTO_E_DTYPE, "target is f32");
        refuse(short_weight, backward, ATTO_E_SHAPE, "weight is [4]|expected [5]");
        refuse(other_weight, backward, ATTO_E_DTYPE, "weight is f16");
        refuse(long_total, backward, ATTO_E_SHAPE, "total is [5]|expected []");
        refuse(loss_by_position, backward, ATTO_E_SHAPE, "loss is []|expected [6]");
        refuse(odd_reduction, backward, ATTO_E_ARGUMENT,
               "reduction is batch mean|mean, sum or none");
    }
}

/* ---- on a tape, and as a module ---- */

/* Through a module, whose ignored label is -100 unless it is told otherwise. */
static void nll_loss_as_a_module(void **state)
{
    (void)state;
    const float x[] = { -1, -2, -3, -4, -5, -6 }, weight[] = { 1.0f, 3.0f };
    const int64_t labels[] = { 1, -100, 0 };
    const float want_dx[] = { 0, -0.75f, 0, 0, -0.25f, 0 };
    atto_module *m;
    atto_tape *tape;
    atto_tensor input, grad;
    float loss, dx[6];
    MUST(atto_nll_loss_create(test_dev, &(atto_nll_loss_options){ .weight = weight, .classes = 2 },
                              &m));
    assert_string_equal(atto_module_class_name(m), "NLLLoss");
    MUST(atto_tape_create(test_dev, &tape));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(3, 2), &input));
    MUST(atto_tensor_write(&input, x));
    const atto_var v = atto_borrow(tape, &input, true);
    const atto_var e = atto_apply2(tape, m, v, atto_input(tape, ATTO_I64, atto_shape1(3), labels));
    MUST(atto_var_read(tape, e, &loss));
    assert_true(loss == (3.0f * 2.0f + 5.0f) / 4.0f);
    MUST(atto_backward(tape, e));
    MUST(atto_var_grad(tape, v, &grad));
    MUST(atto_tensor_read(&grad, dx));
    assert_memory_equal(dx, want_dx, sizeof dx);
    MUST(atto_tape_end(tape));
    atto_module_free(m);
    atto_tape_free(tape);
    atto_tensor_free(&input);
}

static void nll_loss_on_a_tape_takes_options(void **state)
{
    (void)state;
    const float x[] = { -1, -2, -3 };
    const int64_t label = 2;
    atto_tape *tape;
    float loss;
    MUST(atto_tape_create(test_dev, &tape));
    const atto_nll_options sum = { .reduction = ATTO_REDUCTION_SUM };
    const atto_nll_options none = { .reduction = ATTO_REDUCTION_NONE,
                                    .has_ignore_index = true,
                                    .ignore_index = 2 };
    const atto_var vx = atto_input(tape, ATTO_F32, atto_shape1(3), x); /* [C], one label */
    const atto_var vt = atto_input(tape, ATTO_I64, atto_shape0(), &label);
    MUST(atto_var_read(tape, atto_nll_loss(tape, vx, vt, &sum), &loss));
    assert_true(loss == 3.0f);
    MUST(atto_var_read(tape, atto_nll_loss(tape, vx, vt, &none), &loss));
    assert_true(loss == 0.0f);
    MUST(atto_tape_end(tape));
    atto_tape_free(tape);
}

static void nll_loss_module_refuses_bad_options(void **state)
{
    (void)state;
    const float weight[] = { 1.0f };
    const atto_nll_loss_options odd = { .reduction = (atto_reduction)3 };
    const atto_nll_loss_options unsized = { .weight = weight };
    const atto_nll_loss_options filled = { .reserved = { 1 } };
    atto_module *m;
    EXPECT_FAIL(atto_nll_loss_create(NULL, NULL, &m), ATTO_E_NULL, "nll_loss_create: dev is NULL");
    EXPECT_FAIL(atto_nll_loss_create(test_dev, NULL, NULL), ATTO_E_NULL, "m is NULL");
    EXPECT_FAIL(atto_nll_loss_create(test_dev, &odd, &m), ATTO_E_ARGUMENT,
                "reduction is batch mean|mean, sum or none");
    EXPECT_FAIL(atto_nll_loss_create(test_dev, &unsized, &m), ATTO_E_ARGUMENT, "classes is 0");
    EXPECT_FAIL(atto_nll_loss_create(test_dev, &filled, &m), ATTO_E_ARGUMENT, "reserved[0]");
    assert_null(m);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(nll_loss_matches_oracle),
    cmocka_unit_test(nll_loss_takes_any_size),
    cmocka_unit_test(nll_loss_counts_each_position_once),
    cmocka_unit_test(nll_loss_counts_each_of_many_positions_once),
    cmocka_unit_test(nll_loss_takes_f16_and_bf16),
    cmocka_unit_test(nll_loss_takes_any_layout),
    cmocka_unit_test(nll_loss_backward_takes_any_alignment),
    cmocka_unit_test(nll_loss_ignores_a_class),
    cmocka_unit_test(nll_loss_of_ignored_positions_only),
    cmocka_unit_test(nll_loss_of_no_positions),
    cmocka_unit_test(nll_loss_of_nan_and_infinity_is_ieee),
    cmocka_unit_test(nll_loss_finds_labels_that_are_no_class),
    cmocka_unit_test(nll_loss_finds_bad_labels_through_the_fallback),
    cmocka_unit_test(nll_loss_repeats_bit_for_bit),
    cmocka_unit_test(nll_loss_in_a_steady_state_costs_launches_only),
    cmocka_unit_test(nll_loss_refuses_what_does_not_fit),
    cmocka_unit_test(nll_loss_as_a_module),
    cmocka_unit_test(nll_loss_on_a_tape_takes_options),
    cmocka_unit_test(nll_loss_module_refuses_bad_options),
};
TEST_MAIN("nll_loss", tests)
