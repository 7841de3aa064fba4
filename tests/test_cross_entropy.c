/* SPDX-License-Identifier: MIT */
/* Cross-entropy, forward and backward: the double oracle decides, on every backend. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "labels.h"

/* ---- one case ---- */

typedef struct ce_case {
    atto_shape shape;  /* of x */
    atto_dtype dtype;  /* 0 = f32 */
    atto_dtype target; /* 0 = i64; f32, or dtype when it is no f32: probabilities */
    atto_dtype weight; /* 0 = none */
    atto_reduction reduction;
    bool has_ignore;
    int64_t ignore;
    float smoothing;
    test_layout layout;    /* of x, target, dx, dtarget */
    test_layout dx_layout; /* if it is another one than dense */
    bool no_saved;         /* neither lse nor total */
    bool add;
    double range; /* of the logits; 0 = 4 */
    uint64_t seed;
} ce_case;

/* A case with its sizes, data and tensors. */
typedef struct ce_scene {
    ce_case c;
    bool soft;
    label_sizes sizes;
    double *x, *target, *weight, *dloss, *old;
    test_tensor tx, ttarget, tweight, tloss, tlse, ttotal, tdloss, tdx, tdtarget;
    struct atto_cross_entropy_args args;
    oracle_ce_answer want;
} ce_scene;

static void draw(ce_scene *s)
{
    const ce_case *c = &s->c;
    const bool none = c->reduction == ATTO_REDUCTION_NONE;
    s->x = test_doubles(s->sizes.numel), s->old = test_doubles(s->sizes.numel);
    s->target = test_doubles(s->soft ? s->sizes.numel : s->sizes.positions);
    s->weight = test_doubles(s->sizes.classes);
    s->dloss = test_doubles(s->sizes.positions + 1);
    test_uniform(c->seed + 1, -c->range, c->range, c->dtype, s->x, s->sizes.numel);
    test_uniform(c->seed + 2, -1.0, 1.0, c->dtype, s->old, s->sizes.numel);
    test_uniform(c->seed + 3, -2.0, 2.0, ATTO_F32, s->dloss, none ? s->sizes.positions : 1);
    if (c->weight) test_uniform(c->seed + 4, 0.25, 2.0, c->weight, s->weight, s->sizes.classes);
    if (s->soft) {
        test_uniform(c->seed + 5, 0.0, 1.0, c->target, s->target, s->sizes.numel);
    } else {
        draw_labels(&s->sizes, c->has_ignore ? &c->ignore : NULL, c->seed + 5, s->target);
    }
}

static void make(test_tensor *t, atto_dtype dtype, atto_shape shape, test_layout layout,
                 const double *values, const atto_tensor **slot)
{
    test_tensor_make(t, test_dev, dtype, shape, layout);
    if (values) test_tensor_put(t, values);
    *slot = &t->view;
}

/* Tensors for the case's data, and arguments that name them. */
static void build(ce_scene *s)
{
    const ce_case *c = &s->c;
    struct atto_cross_entropy_args *a = &s->args;
    const bool none = c->reduction == ATTO_REDUCTION_NONE;
    const atto_shape scalar = atto_shape_of(0, NULL), loss = none ? s->sizes.places : scalar;
    make(&s->tx, c->dtype, c->shape, c->layout, s->x, &a->x);
    make(&s->ttarget, c->target, s->soft ? c->shape : s->sizes.places, c->layout, s->target,
         &a->target);
    if (c->weight)
        make(&s->tweight, c->weight, atto_shape1(s->sizes.classes), LAYOUT_OFFSET, s->weight,
             &a->weight);
    make(&s->tloss, ATTO_F32, loss, LAYOUT_OFFSET, NULL, &a->loss);
    if (!c->no_saved) make(&s->tlse, ATTO_F32, s->sizes.places, LAYOUT_OFFSET, NULL, &a->lse);
    if (!c->no_saved) make(&s->ttotal, ATTO_F32, scalar, LAYOUT_OFFSET, NULL, &a->total);
    make(&s->tdloss, ATTO_F32, loss, LAYOUT_OFFSET, s->dloss, &a->dloss);
    const test_layout out = c->dx_layout ? c->dx_layout : c->layout;
    make(&s->tdx, c->dtype, c->shape, out, c->add ? s->old : NULL, &a->dx);
    if (s->soft)
        make(&s->tdtarget, c->target, c->shape, c->layout, c->add ? s->old : NULL, &a->dtarget);
    a->add_dx = a->add_dtarget = c->add;
    a->reduction = c->reduction;
    a->has_ignore_index = c->has_ignore;
    a->ignore_index = c->ignore;
    a->label_smoothing = c->smoothing;
}

static void begin(ce_scene *s, const ce_case *c)
{
    memset(s, 0, sizeof *s);
    s->c = *c;
    if (!s->c.dtype) s->c.dtype = ATTO_F32;
    if (!s->c.target) s->c.target = ATTO_I64;
    if (s->c.range == 0.0) s->c.range = 4.0;
    s->sizes = label_sizes_of(c->shape);
    s->soft = s->c.target != ATTO_I32 && s->c.target != ATTO_I64;
    draw(s);
}

static void end(ce_scene *s)
{
    test_tensor *tensors[] = { &s->tx,     &s->ttarget, &s->tweight, &s->tloss,   &s->tlse,
                               &s->ttotal, &s->tdloss,  &s->tdx,     &s->tdtarget };
    for (int i = 0; i < COUNT_OF(tensors); i++) test_tensor_drop(tensors[i]);
    oracle_ce_answer *w = &s->want;
    double *arrays[] = { s->x,        s->target,     s->weight,       s->dloss,     s->old,
                         w->each,     w->each_terms, w->lse,          w->lse_terms, w->dx,
                         w->dx_terms, w->dshares,    w->dshares_terms };
    for (int i = 0; i < COUNT_OF(arrays); i++) free(arrays[i]);
}

static void ask_oracle(ce_scene *s)
{
    const ce_case *c = &s->c;
    oracle_ce_answer *w = &s->want;
    double **by_position[] = { &w->each, &w->each_terms, &w->lse, &w->lse_terms };
    double **by_class[] = { &w->dx, &w->dx_terms, &w->dshares, &w->dshares_terms };
    for (int i = 0; i < 4; i++) *by_position[i] = test_doubles(s->sizes.positions);
    for (int i = 0; i < 4; i++) *by_class[i] = test_doubles(s->sizes.numel);
    const oracle_ce question = {
        .outer = s->sizes.outer,
        .classes = s->sizes.classes,
        .step = s->sizes.step,
        .x = s->x,
        .labels = s->soft ? NULL : s->target,
        .shares = s->soft ? s->target : NULL,
        .weight = c->weight ? s->weight : NULL,
        .reduction = c->reduction,
        .has_ignore = c->has_ignore,
        .ignore = c->ignore,
        .smoothing = (double)c->smoothing,
        .dloss = s->dloss,
        .from_lse = !c->no_saved,
    };
    oracle_cross_entropy(&question, w);
}

/* ---- judgement ---- */

/* Summands that stand in one row of additions: a backend adds up 32 or more of them side by side,
 * except where the classes of a position do not lie side by side, and has a few steps more. */
static int64_t depth(const ce_scene *s)
{
    return s->sizes.step > 1 || s->sizes.classes <= 64 ? s->sizes.classes
                                                       : 64 + s->sizes.classes / 32;
}

/* Of a sum over positions: 64 in a row of a block, then few blocks. */
static int64_t position_depth(const ce_scene *s)
{
    return s->sizes.positions < 80 ? s->sizes.positions : 80;
}

static void judge(const ce_scene *s, const test_tensor *t, const char *op, int64_t n,
                  const double *want, const double *terms, const double *old)
{
    test_judge(t, op, s->c.layout, s->c.seed, n, want, terms, old);
}

static void judge_forward(const ce_scene *s)
{
    const oracle_ce_answer *w = &s->want;
    const int64_t n = depth(s);
    if (s->c.reduction == ATTO_REDUCTION_NONE) {
        judge(s, &s->tloss, "cross_entropy", n, w->each, w->each_terms, NULL);
    } else {
        const int64_t all = n + position_depth(s);
        judge(s, &s->tloss, "cross_entropy", all, &w->loss, &w->loss_terms, NULL);
    }
    if (s->c.no_saved) return;
    judge(s, &s->tlse, "cross_entropy", n, w->lse, w->lse_terms, NULL);
    judge(s, &s->ttotal, "cross_entropy", position_depth(s), &w->total, &w->total_terms, NULL);
}

static void judge_backward(const ce_scene *s)
{
    const oracle_ce_answer *w = &s->want;
    const bool mean = s->c.reduction == ATTO_REDUCTION_MEAN;
    const int64_t n = depth(s) + (mean ? position_depth(s) : 0);
    const double *old = s->c.add ? s->old : NULL;
    judge(s, &s->tdx, "cross_entropy_grad", n, w->dx, w->dx_terms, old);
    if (s->soft) judge(s, &s->tdtarget, "cross_entropy_grad", n, w->dshares, w->dshares_terms, old);
}

static void expect_inputs_untouched(const ce_scene *s)
{
    assert_true(test_tensor_untouched(&s->tx) && test_tensor_untouched(&s->ttarget));
    assert_true(test_tensor_untouched(&s->tdloss) && test_tensor_untouched(&s->tweight));
}

static void run_scene(ce_scene *s)
{
    build(s);
    ask_oracle(s);
    MUST(atto_cross_entropy_forward(test_dev, &s->args));
    MUST(atto_cross_entropy_backward(test_dev, &s->args));
}

static void check(const ce_case *c)
{
    ce_scene s;
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

static void with_options(int bits, ce_case *c)
{
    const atto_reduction reductions[] = { ATTO_REDUCTION_MEAN, ATTO_REDUCTION_SUM,
                                          ATTO_REDUCTION_NONE };
    c->reduction = reductions[bits % 3];
    bits /= 3;
    c->weight = bits % 2 ? ATTO_F32 : (atto_dtype)0;
    c->smoothing = bits / 2 % 2 ? 0.1f : 0.0f;
    c->no_saved = bits / 4 % 2 == 1;
    c->add = bits / 8 % 2 == 1;
}
#define OPTION_SETS (3 * 16)

static void cross_entropy_of_labels_matches_oracle(void **state)
{
    (void)state;
    const int64_t ignored[] = { 0, -100, 2 };
    for (int bits = 0; bits < OPTION_SETS; bits++)
        for (int i = 0; i < 4; i++) {
            ce_case c = { .shape = atto_shape2(37, 10), .seed = 100 + (uint64_t)bits };
            with_options(bits, &c);
            c.target = (bits + i) % 2 ? ATTO_I32 : ATTO_I64;
            c.has_ignore = i < 3;
            c.ignore = i < 3 ? ignored[i] : 0;
            check(&c);
        }
}

static void cross_entropy_of_probabilities_matches_oracle(void **state)
{
    (void)state;
    for (int bits = 0; bits < OPTION_SETS; bits++) {
        ce_case c = { .shape = atto_shape2(37, 10),
                      .target = ATTO_F32,
                      .seed = 200 + (uint64_t)bits };
        with_options(bits, &c);
        check(&c);
    }
}

/* ---- sizes ---- */

static const struct size_row {
    int32_t rank;
    int64_t dims[4];
} size_rows[] = {
    { 1, { 1 } },         { 1, { 7 } },         { 1, { 1025 } },       { 2, { 1, 1 } },
    { 2, { 300, 1 } },    { 2, { 257, 2 } },    { 2, { 1000, 7 } },    { 2, { 9, 16 } },
    { 2, { 9, 17 } },     { 2, { 33, 31 } },    { 2, { 7, 127 } },     { 2, { 7, 128 } },
    { 2, { 7, 129 } },    { 2, { 5, 1000 } },   { 2, { 5, 1023 } },    { 2, { 5, 1024 } },
    { 2, { 5, 1025 } },   { 2, { 3, 4096 } },   { 2, { 3, 4099 } },    { 2, { 2, 50257 } },
    { 2, { 1, 100003 } }, { 2, { 16387, 3 } }, /* more than a work-group sums */
    { 2, { 70001, 2 } },                       /* five work-groups sum */
    { 3, { 3, 5, 1 } },   { 3, { 2, 21, 67 } }, { 3, { 2, 1200, 5 } }, { 4, { 2, 3, 9, 31 } },
};

static void cross_entropy_takes_any_size(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(size_rows); i += case_step())
        check(&(ce_case){ .shape = atto_shape_of(size_rows[i].rank, size_rows[i].dims),
                          .no_saved = i % 2 == 1,
                          .seed = 300 + (uint64_t)i });
}

static void cross_entropy_of_probabilities_takes_any_size(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(size_rows); i += case_step())
        check(&(ce_case){ .shape = atto_shape_of(size_rows[i].rank, size_rows[i].dims),
                          .target = ATTO_F32,
                          .weight = i % 3 == 0 ? ATTO_F32 : (atto_dtype)0,
                          .no_saved = i % 2 == 0,
                          .reduction = ATTO_REDUCTION_NONE,
                          .seed = 400 + (uint64_t)i });
}

static void cross_entropy_smooths_labels_of_any_size(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(size_rows); i += test_on_opencl() ? 3 * case_step() : 1)
        check(&(ce_case){ .shape = atto_shape_of(size_rows[i].rank, size_rows[i].dims),
                          .weight = i % 2 ? ATTO_F32 : (atto_dtype)0,
                          .smoothing = 0.2f,
                          .has_ignore = true,
                          .ignore = -1,
                          .reduction = ATTO_REDUCTION_SUM,
                          .seed = 500 + (uint64_t)i });
}

/* ---- dtypes and layouts ---- */

static void cross_entropy_takes_f16_and_bf16(void **state)
{
    (void)state;
    const atto_dtype dtypes[] = { ATTO_F16, ATTO_BF16 };
    const atto_shape shapes[] = { atto_shape2(19, 10), atto_shape2(5, 131), atto_shape2(3, 2056),
                                  atto_shape3(2, 11, 9) };
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < COUNT_OF(shapes); i += case_step()) {
            if (test_on_opencl() && i % 2 != d) continue; /* kernels take long to build */
            ce_case c = { .shape = shapes[i], .dtype = dtypes[d], .seed = 600 + (uint64_t)i };
            check(&c);
            c.weight = i % 2 ? dtypes[d] : ATTO_F32;
            c.no_saved = c.add = true;
            c.smoothing = i % 2 ? 0.3f : 0.0f;
            check(&c);
            c.smoothing = 0.125f;
            c.target = i % 2 ? ATTO_F32 : dtypes[d];
            check(&c);
        }
}

/* I9: what does not lie row by row gives what its contiguous copy would. */
static void cross_entropy_takes_any_layout(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_OFFSET, LAYOUT_PITCHED, LAYOUT_TRANSPOSED, LAYOUT_STEP2,
                                    LAYOUT_CHANNELS_LAST };
    const atto_shape shapes[] = { atto_shape3(2, 4, 8), atto_shape2(6, 33) };
    for (int i = 0; i < COUNT_OF(layouts); i += case_step())
        for (int k = 0; k < 2; k++) {
            ce_case c = { .shape = shapes[k],
                          .layout = layouts[i],
                          .add = i % 2 == 1,
                          .reduction = k ? ATTO_REDUCTION_NONE : ATTO_REDUCTION_MEAN,
                          .seed = 700 + (uint64_t)i };
            check(&c);
            c.target = ATTO_F32;
            check(&c);
        }
}

/* Vectors of x and of dx do not begin at the same classes. */
static void cross_entropy_backward_takes_another_alignment(void **state)
{
    (void)state;
    const int64_t classes[] = { 7, 130, 4100 };
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++)
            check(&(ce_case){ .shape = atto_shape2(3, classes[i]),
                              .layout = k ? LAYOUT_OFFSET : LAYOUT_DENSE,
                              .dx_layout = k ? LAYOUT_OFFSET4 : LAYOUT_OFFSET,
                              .add = k == 1,
                              .seed = 750 });
}

/* Each gradient alone. */
static void cross_entropy_backward_gives_what_is_wanted(void **state)
{
    (void)state;
    for (int only = 0; only < 2; only++) {
        ce_scene s;
        begin(&s, &(ce_case){ .shape = atto_shape2(9, 10), .target = ATTO_F32, .seed = 760 });
        build(&s);
        ask_oracle(&s);
        if (only == 0) s.args.dtarget = NULL;
        if (only == 1) s.args.dx = NULL;
        MUST(atto_cross_entropy_forward(test_dev, &s.args));
        MUST(atto_cross_entropy_backward(test_dev, &s.args));
        const oracle_ce_answer *w = &s.want;
        if (only == 0) judge(&s, &s.tdx, "cross_entropy_grad", 20, w->dx, w->dx_terms, NULL);
        if (only == 1)
            judge(&s, &s.tdtarget, "cross_entropy_grad", 20, w->dshares, w->dshares_terms, NULL);
        assert_true(test_tensor_untouched(only ? &s.tdx : &s.tdtarget));
        end(&s);
    }
}

/* ---- values ---- */

/* One row of logits a line; gradients for dloss = 1. */
static void expect_rows(atto_dtype dtype, int n, int classes, const float *logits,
                        const int32_t *labels, const float *loss, const float *dx)
{
    double x[16], t[16], want[16], want_dx[16], got[16], one[16];
    for (int i = 0; i < n * classes; i++) x[i] = (double)logits[i], want_dx[i] = (double)dx[i];
    for (int i = 0; i < n; i++) t[i] = labels[i], want[i] = (double)loss[i], one[i] = 1.0;
    struct atto_cross_entropy_args a;
    memset(&a, 0, sizeof a);
    a.reduction = ATTO_REDUCTION_NONE;
    test_tensor all[6];
    make(&all[0], dtype, atto_shape2(n, classes), LAYOUT_DENSE, x, &a.x);
    make(&all[1], ATTO_I32, atto_shape1(n), LAYOUT_DENSE, t, &a.target);
    make(&all[2], ATTO_F32, atto_shape1(n), LAYOUT_DENSE, NULL, &a.loss);
    make(&all[3], ATTO_F32, atto_shape1(n), LAYOUT_DENSE, NULL, &a.lse);
    make(&all[4], ATTO_F32, atto_shape1(n), LAYOUT_DENSE, one, &a.dloss);
    make(&all[5], dtype, atto_shape2(n, classes), LAYOUT_DENSE, NULL, &a.dx);
    const test_about about = { "cross_entropy", "dense", dtype, atto_shape2(n, classes), 0 };
    MUST(atto_cross_entropy_forward(test_dev, &a));
    test_tensor_get(&all[2], got);
    expect_equal(&about, got, want, n);
    for (int saved = 1; saved >= 0; saved--) {
        if (!saved) a.lse = NULL;
        MUST(atto_cross_entropy_backward(test_dev, &a));
        test_tensor_get(&all[5], got);
        expect_equal(&about, got, want_dx, n * classes);
    }
    for (int i = 0; i < 6; i++) test_tensor_drop(&all[i]);
}

/* G10 */
static void cross_entropy_of_huge_logits_is_exact(void **state)
{
    (void)state;
    const int32_t labels[] = { 1, 0 };
    const float dx[] = { 1, -1, 0, 0 };
    expect_rows(ATTO_F32, 2, 2, (float[]){ 1000, -1000, 1000, -1000 }, labels, (float[]){ 2000, 0 },
                dx);
    expect_rows(ATTO_F16, 2, 2, (float[]){ 60000, -60000, 60000, -60000 }, labels,
                (float[]){ 120000, 0 }, dx);
    expect_rows(ATTO_F32, 2, 2, (float[]){ 3e38f, 1e38f, 3e38f, 1e38f }, labels,
                (float[]){ 3e38f - 1e38f, 0 }, dx);
}

/* As PyTorch has it. */
static void cross_entropy_of_infinite_logits_is_ieee(void **state)
{
    (void)state;
    const float inf = INFINITY;
    expect_rows(ATTO_F32, 6, 2, (float[]){ -inf, 0, -inf, 0, inf, 0, -inf, -inf, NAN, 0, 0, NAN },
                (int32_t[]){ 0, 1, 1, 0, 1, 1 }, (float[]){ inf, 0, NAN, NAN, NAN, NAN },
                (float[]){ -1, 1, 0, 0, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN });
}

/* Logits that come late are the largest, and much so: the sum is scaled down each time. */
static void cross_entropy_of_rising_logits_matches_oracle(void **state)
{
    (void)state;
    const int64_t classes[] = { 13, 700, 9001 };
    for (int i = 0; i < 3; i++) {
        ce_scene s;
        begin(&s, &(ce_case){ .shape = atto_shape2(3, classes[i]), .no_saved = true, .seed = 800 });
        for (int64_t k = 0; k < s.sizes.numel; k++)
            s.x[k] = (double)(float)(40.0 * (double)(k % classes[i]) / (double)classes[i] - 30.0);
        run_scene(&s);
        judge_forward(&s);
        judge_backward(&s);
        end(&s);
    }
}

/* A masked vocabulary: most classes, whole blocks and lanes of them, have -inf. */
static void cross_entropy_of_masked_logits_matches_oracle(void **state)
{
    (void)state;
    const int64_t classes[] = { 13, 700, 3001 };
    for (int i = 0; i < 6; i++) {
        ce_scene s;
        const int64_t n = classes[i % 3];
        begin(&s, &(ce_case){ .shape = atto_shape2(3, n), .no_saved = i < 3, .seed = 850 });
        for (int64_t k = 0; k < s.sizes.numel; k++)
            if (k % n < n * 4 / 5) s.x[k] = -INFINITY;
        for (int64_t k = 0; k < s.sizes.positions; k++) s.target[k] = (double)(n - 1 - k);
        run_scene(&s);
        judge_forward(&s);
        judge_backward(&s);
        end(&s);
    }
}

/* G11 */
static void cross_entropy_keeps_ignored_classes_in_the_sum(void **state)
{
    (void)state;
    const float x[] = { 0, 0, 5, 1 };
    const float quarter = logf(2.0f);
    ce_scene s;
    begin(&s, &(ce_case){ .shape = atto_shape2(2, 2), .has_ignore = true, .ignore = 0 });
    for (int i = 0; i < 4; i++) s.x[i] = (double)x[i];
    s.target[0] = 1, s.target[1] = 0;
    run_scene(&s);
    double got;
    test_tensor_get(&s.tloss, &got);
    assert_true(fabs(got - (double)quarter) < 1e-6); /* class 0 counts in the sum of position 0 */
    judge_backward(&s);
    end(&s);
}

/* G7: zeros, 0 and NaN; and gradients of exactly 0. */
static void cross_entropy_of_ignored_positions_only(void **state)
{
    (void)state;
    for (int bits = 0; bits < OPTION_SETS; bits++) {
        ce_case c = { .shape = atto_shape2(9, 5), .has_ignore = true, .ignore = -100, .seed = 900 };
        ce_scene s;
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
        end(&s);
    }
}

/* No positions: nothing but the scalars is written. */
static void cross_entropy_of_no_positions(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape2(0, 5), atto_shape3(3, 5, 0) };
    for (int bits = 0; bits < OPTION_SETS; bits++)
        for (int i = 0; i < 4; i++) {
            ce_case c = { .shape = shapes[i % 2], .target = i < 2 ? ATTO_I32 : ATTO_F32 };
            ce_scene s;
            double loss = 0.0, total = 0.0;
            with_options(bits, &c);
            begin(&s, &c);
            build(&s);
            MUST(atto_cross_entropy_forward(test_dev, &s.args));
            MUST(atto_cross_entropy_backward(test_dev, &s.args));
            if (c.reduction != ATTO_REDUCTION_NONE) test_tensor_get(&s.tloss, &loss);
            if (!c.no_saved) test_tensor_get(&s.ttotal, &total);
            assert_true(c.reduction == ATTO_REDUCTION_MEAN ? isnan(loss) : loss == 0.0);
            assert_true(total == 0.0);
            end(&s);
        }
}

/* ---- labels that are no class (G8) ---- */

static const double bad_labels[] = { 10, -1, -4, 2147483647, -2147483648.0, 4294967297.0 };

/* That position's loss is NaN and its gradient 0; the others are as ever; the next read tells,
 * once. */
static void expect_data_error(atto_device *dev, ce_case c, double label)
{
    ce_scene s;
    atto_device *before = test_dev;
    test_dev = dev;
    begin(&s, &c);
    s.target[s.sizes.positions / 2] = label;
    if (c.has_ignore) s.target[0] = (double)c.ignore;
    run_scene(&s);
    EXPECT_FAIL(atto_device_sync(dev), ATTO_E_INDEX, "label");
    MUST(atto_device_sync(dev));
    if (!c.add) { /* finds it by itself too */
        MUST(atto_cross_entropy_backward(dev, &s.args));
        EXPECT_FAIL(atto_device_sync(dev), ATTO_E_INDEX, "label");
    }
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

static void cross_entropy_finds_labels_that_are_no_class(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(bad_labels); i++)
        for (int bits = 0; bits < OPTION_SETS; bits += 5) {
            const bool image = bits % 2 == 1;
            ce_case c = { .shape = image ? atto_shape4(2, 10, 3, 5) : atto_shape2(11, 10),
                          .target = i < 5 && bits % 3 ? ATTO_I32 : ATTO_I64,
                          .has_ignore = i == 2,
                          .ignore = -1,
                          .seed = 1000 + (uint64_t)bits };
            with_options(bits, &c);
            expect_data_error(test_dev, c, bad_labels[i]);
        }
}

/* Equal logits: dx = (1/C - q) of one position, and q = smoothing / C but for the label. The shares add
 * up to exactly 1, whoever adds them; added one after another 8191 equal ones are off by 1e-4. 1/C is
 * exact as the exponential of a logarithm to |log C| u, 9 u, and five roundings. */
static void cross_entropy_smooths_by_shares_of_exactly_one(void **state)
{
    (void)state;
    enum { C = 8191 };
    ce_scene s;
    begin(&s, &(ce_case){ .shape = atto_shape3(1, C, 2), .smoothing = 0.1f, .seed = 1300 });
    for (int64_t i = 0; i < 2 * C; i++) s.x[i] = 1.0;
    s.target[0] = s.target[1] = 0.0;
    build(&s);
    const double want = *s.dloss * (1.0 - (double)0.1f) / C / 2.0;
    double *dx = test_doubles(2 * C);
    MUST(atto_cross_entropy_forward(test_dev, &s.args));
    MUST(atto_cross_entropy_backward(test_dev, &s.args));
    test_tensor_get(&s.tdx, dx);
    for (int64_t i = 2; i < 2 * C; i++) assert_true(fabs(dx[i] / want - 1.0) < 32 * 0x1p-24);
    free(dx);
    end(&s);
}

static void cross_entropy_tells_of_bad_labels_at_a_read(void **state)
{
    (void)state;
    ce_scene s;
    float loss;
    begin(&s, &(ce_case){ .shape = atto_shape2(300, 1000), .seed = 1100 });
    s.target[299] = 1000;
    build(&s);
    MUST(atto_cross_entropy_forward(test_dev, &s.args));
    EXPECT_FAIL(atto_tensor_read(&s.tloss.view, &loss), ATTO_E_INDEX, "label");
    MUST(atto_tensor_read(&s.tloss.view, &loss));
    assert_true(isnan(loss));
    end(&s);
}

/* A device without kernels falls back to the CPU, and passes the bit on. */
static void cross_entropy_finds_bad_labels_through_the_fallback(void **state)
{
    (void)state;
    if (!test_on_opencl()) skip();
    test_broken broken;
    test_broken_open(&broken, "cross_entropy");
    const ce_case c = { .shape = atto_shape2(11, 10), .seed = 1200 };
    expect_data_error(broken.dev, c, 10);
    test_broken_close(&broken, 5);
}

/* ---- repeatability ---- */

static void bits_of(ce_scene *s, uint64_t *loss, uint64_t *dx)
{
    MUST(atto_cross_entropy_forward(test_dev, &s->args));
    MUST(atto_cross_entropy_backward(test_dev, &s->args));
    test_tensor_bits(&s->tloss, loss);
    test_tensor_bits(&s->tdx, dx);
}

/* J1 */
static void cross_entropy_repeats_bit_for_bit(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape2(5003, 10), atto_shape2(40, 3001) };
    for (int i = 0; i < 2; i++) {
        ce_scene s;
        begin(&s, &(ce_case){ .shape = shapes[i], .weight = ATTO_F32, .seed = 1300 });
        build(&s);
        uint64_t loss[2], *dx = calloc((size_t)s.sizes.numel, sizeof *dx);
        uint64_t *again = calloc((size_t)s.sizes.numel, sizeof *again);
        bits_of(&s, &loss[0], dx);
        for (int run = 0; run < 50; run++) {
            bits_of(&s, &loss[1], again);
            assert_true(loss[0] == loss[1]);
            assert_memory_equal(dx, again, (size_t)s.sizes.numel * sizeof *dx);
        }
        free(dx), free(again);
        end(&s);
    }
}

/* Forward and backward of a step, saved tensors or not, allocate nothing and copy nothing. */
static void cross_entropy_in_a_steady_state_costs_launches_only(void **state)
{
    (void)state;
    ce_scene s;
    begin(&s, &(ce_case){ .shape = atto_shape2(100, 10), .no_saved = true });
    build(&s);
    atto_device_stats before, after;
    for (int i = 0; i < 5; i++) {
        if (i == 2) MUST(atto_device_stats_get(test_dev, &before));
        MUST(atto_cross_entropy_forward(test_dev, &s.args));
        MUST(atto_cross_entropy_backward(test_dev, &s.args));
    }
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.allocations, before.allocations);
    assert_int_equal(after.hidden_copies, before.hidden_copies);
    assert_int_equal(after.blocking_calls, before.blocking_calls);
    end(&s);
}

/* ---- what is refused ---- */

/* Makes one change to a good call of 6 x 5, forward and backward. */
static void refuse(void (*spoil)(ce_scene *s), bool soft, bool backward, atto_status status,
                   const char *words)
{
    ce_scene s;
    begin(&s, &(ce_case){ .shape = atto_shape2(6, 5), .target = soft ? ATTO_F32 : ATTO_I64 });
    build(&s);
    spoil(&s);
    EXPECT_FAIL(backward ? atto_cross_entropy_backward(test_dev, &s.args)
                         : atto_cross_entropy_forward(test_dev, &s.args),
                status, words);
    assert_true(test_tensor_untouched(&s.tloss) && test_tensor_untouched(&s.tdx));
    end(&s);
}

static void no_classes(ce_scene *s)
{
    s->tx.view = atto_tensor_of(NULL, ATTO_F32, atto_shape2(6, 0), 0);
}
static void no_dimension(ce_scene *s)
{
    s->tx.view.rank = 0;
}
static void integer_logits(ce_scene *s)
{
    s->tx.view.dtype = ATTO_I32;
}
static void short_target(ce_scene *s)
{
    s->ttarget.view.shape[0] = 5;
}
static void other_target(ce_scene *s)
{
    s->ttarget.view.dtype = ATTO_F16;
}
static void short_lse(ce_scene *s)
{
    s->tlse.view.shape[0] = 5;
}
static void loss_by_position(ce_scene *s)
{
    s->args.reduction = ATTO_REDUCTION_NONE;
}
static void odd_reduction(ce_scene *s)
{
    s->args.reduction = (atto_reduction)3;
}
static void much_smoothing(ce_scene *s)
{
    s->args.label_smoothing = 1.5f;
}
static void nan_smoothing(ce_scene *s)
{
    s->args.label_smoothing = NAN;
}
static void ignore_a_class(ce_scene *s)
{
    s->args.has_ignore_index = true;
    s->args.ignore_index = 0;
}
static void gradient_of_labels(ce_scene *s)
{
    s->args.dtarget = &s->tdx.view;
    s->args.dx = NULL;
}

static void cross_entropy_refuses_what_does_not_fit(void **state)
{
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
        refuse(no_classes, false, backward, ATTO_E_SHAPE, "x has no classes");
        refuse(no_dimension, false, backward, ATTO_E_SHAPE, "x has no dimension");
        refuse(integer_logits, false, backward, ATTO_E_DTYPE, "x is i32");
        refuse(short_target, false, backward, ATTO_E_SHAPE, "target is [5]|expected [6]");
        refuse(short_target, true, backward, ATTO_E_SHAPE, "target is [5,5]|expected [6,5]");
        refuse(other_target, true, backward, ATTO_E_DTYPE, "target is f16");
        refuse(short_lse, false, backward, ATTO_E_SHAPE, "lse is [5]");
        refuse(loss_by_position, false, backward, ATTO_E_SHAPE, "loss is []|expected [6]");
        refuse(odd_reduction, false, backward, ATTO_E_ARGUMENT,
               "reduction is batch mean|mean, sum or none");
        refuse(much_smoothing, false, backward, ATTO_E_ARGUMENT, "label_smoothing is 1.5");
        refuse(nan_smoothing, false, backward, ATTO_E_ARGUMENT, "label_smoothing is");
        refuse(ignore_a_class, true, backward, ATTO_E_ARGUMENT, "ignore_index is 0");
    }
    refuse(gradient_of_labels, false, true, ATTO_E_DTYPE, "dtarget|labels have no gradient");
}

/* PyTorch's default of -100 stands beside probabilities too. */
static void cross_entropy_of_probabilities_takes_a_negative_ignore_index(void **state)
{
    (void)state;
    check(&(ce_case){
        .shape = atto_shape2(6, 5), .target = ATTO_F32, .has_ignore = true, .ignore = -100 });
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(cross_entropy_of_labels_matches_oracle),
    cmocka_unit_test(cross_entropy_of_probabilities_matches_oracle),
    cmocka_unit_test(cross_entropy_takes_any_size),
    cmocka_unit_test(cross_entropy_of_probabilities_takes_any_size),
    cmocka_unit_test(cross_entropy_smooths_labels_of_any_size),
    cmocka_unit_test(cross_entropy_smooths_by_shares_of_exactly_one),
    cmocka_unit_test(cross_entropy_takes_f16_and_bf16),
    cmocka_unit_test(cross_entropy_takes_any_layout),
    cmocka_unit_test(cross_entropy_backward_takes_another_alignment),
    cmocka_unit_test(cross_entropy_backward_gives_what_is_wanted),
    cmocka_unit_test(cross_entropy_of_huge_logits_is_exact),
    cmocka_unit_test(cross_entropy_of_infinite_logits_is_ieee),
    cmocka_unit_test(cross_entropy_of_rising_logits_matches_oracle),
    cmocka_unit_test(cross_entropy_of_masked_logits_matches_oracle),
    cmocka_unit_test(cross_entropy_keeps_ignored_classes_in_the_sum),
    cmocka_unit_test(cross_entropy_of_ignored_positions_only),
    cmocka_unit_test(cross_entropy_of_no_positions),
    cmocka_unit_test(cross_entropy_finds_labels_that_are_no_class),
    cmocka_unit_test(cross_entropy_tells_of_bad_labels_at_a_read),
    cmocka_unit_test(cross_entropy_finds_bad_labels_through_the_fallback),
    cmocka_unit_test(cross_entropy_repeats_bit_for_bit),
    cmocka_unit_test(cross_entropy_in_a_steady_state_costs_launches_only),
    cmocka_unit_test(cross_entropy_refuses_what_does_not_fit),
    cmocka_unit_test(cross_entropy_of_probabilities_takes_a_negative_ignore_index),
};
TEST_MAIN("cross_entropy", tests)
