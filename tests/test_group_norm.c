/* SPDX-License-Identifier: MIT */
/* Group norm, and instance norm as groups of one channel: the double oracle decides, on every
 * backend. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"
#include "oracle_norm.h"

#define MOMENTUM 0.25f

/* ---- one case ---- */

typedef struct gn_case {
    atto_shape shape; /* of x */
    int64_t groups;
    atto_dtype dtype; /* 0 = f32 */
    atto_dtype w, b, dw, db;
    bool no_dx, add, no_saved, running;
    test_layout layout, params, dx_layout; /* dx_layout: if it is another one than dense */
    double shift;
    uint64_t seed;
} gn_case;

/* A case with its sizes, data and tensors. */
typedef struct gn_scene {
    gn_case c;
    int64_t n, channels, size, numel, stats;
    double *x, *w, *b, *dy, *old, *old_params;
    double *running[2], *want_running[2], *running_terms[2]; /* mean, var */
    test_tensor tx, tw, tb, ty, tmean, trstd, tdy, tdx, tdw, tdb, trunning[2];
    struct atto_group_norm_args args;
    oracle_row_norm_answer want;
} gn_scene;

static void begin(gn_scene *s, const gn_case *c)
{
    memset(s, 0, sizeof *s);
    s->c = *c;
    if (!s->c.dtype) s->c.dtype = ATTO_F32;
    s->n = c->shape.dim[0], s->channels = c->shape.dim[1], s->size = 1;
    for (int32_t d = 2; d < c->shape.rank; d++) s->size *= c->shape.dim[d];
    s->numel = s->n * s->channels * s->size;
    s->stats = s->n * c->groups;
    double **full[] = { &s->x, &s->dy, &s->old }, **some[] = { &s->w, &s->b, &s->old_params };
    for (int i = 0; i < 3; i++) *full[i] = test_doubles(s->numel);
    for (int i = 0; i < 3; i++) *some[i] = test_doubles(s->channels);
    test_uniform(c->seed + 1, c->shift - 2.0, c->shift + 2.0, s->c.dtype, s->x, s->numel);
    test_uniform(c->seed + 2, -2.0, 2.0, s->c.dtype, s->dy, s->numel);
    test_uniform(c->seed + 3, -1.0, 1.0, s->c.dtype, s->old, s->numel);
    if (c->w) test_uniform(c->seed + 4, -2.0, 2.0, c->w, s->w, s->channels);
    if (c->b) test_uniform(c->seed + 5, -2.0, 2.0, c->b, s->b, s->channels);
    test_uniform(c->seed + 6, -1.0, 1.0, ATTO_BF16, s->old_params, s->channels);
    for (int i = 0; i < 2; i++) {
        double **arrays[] = { &s->running[i], &s->want_running[i], &s->running_terms[i] };
        for (int k = 0; k < 3; k++) *arrays[k] = test_doubles(s->channels);
        test_uniform(c->seed + 7 + (uint64_t)i, 0.5, 1.5, ATTO_F32, s->running[i], s->channels);
    }
}

static const atto_tensor *make(test_tensor *t, atto_dtype dtype, atto_shape shape,
                               test_layout layout, const double *values)
{
    if (!dtype) return NULL;
    test_tensor_make(t, test_dev, dtype, shape, layout);
    if (values) test_tensor_put(t, values);
    return &t->view;
}

static void build(gn_scene *s)
{
    const gn_case *c = &s->c;
    struct atto_group_norm_args *a = &s->args;
    const atto_dtype none = (atto_dtype)0, saved = c->no_saved ? none : ATTO_F32;
    const atto_shape k = atto_shape1(s->channels), stats = atto_shape2(s->n, c->groups);
    const double *olds = c->add ? s->old_params : NULL;
    a->x = make(&s->tx, c->dtype, c->shape, c->layout, s->x);
    a->w = make(&s->tw, c->w, k, c->params, s->w);
    a->b = make(&s->tb, c->b, k, c->params, s->b);
    a->y = make(&s->ty, c->dtype, c->shape, c->layout, NULL);
    a->mean = make(&s->tmean, saved, stats, LAYOUT_OFFSET, NULL);
    a->rstd = make(&s->trstd, saved, stats, LAYOUT_OFFSET, NULL);
    a->dy = make(&s->tdy, c->dtype, c->shape, c->layout, s->dy);
    const test_layout out = c->dx_layout ? c->dx_layout : c->layout;
    a->dx = make(&s->tdx, c->no_dx ? none : c->dtype, c->shape, out, c->add ? s->old : NULL);
    a->dw = make(&s->tdw, c->dw, k, c->params, olds);
    a->db = make(&s->tdb, c->db, k, c->params, olds);
    const atto_dtype running = c->running ? ATTO_F32 : none;
    a->running_mean = make(&s->trunning[0], running, k, c->params, s->running[0]);
    a->running_var = make(&s->trunning[1], running, k, c->params, s->running[1]);
    a->add_dx = a->add_dw = a->add_db = c->add;
    a->groups = c->groups;
    a->momentum = MOMENTUM;
    a->eps = 1e-5f;
}

static void end(gn_scene *s)
{
    test_tensor *tensors[] = {
        &s->tx,  &s->tw,  &s->tb,  &s->ty,  &s->tmean,       &s->trstd,
        &s->tdy, &s->tdx, &s->tdw, &s->tdb, &s->trunning[0], &s->trunning[1]
    };
    oracle_row_norm_answer *w = &s->want;
    double *arrays[] = { s->x,    s->w,    s->b,        s->dy,      s->old,     s->old_params,
                         w->mean, w->rstd, w->y,        w->dx,      w->y_terms, w->dx_terms,
                         w->dw,   w->db,   w->dw_terms, w->db_terms };
    for (int i = 0; i < COUNT_OF(tensors); i++) test_tensor_drop(tensors[i]);
    for (int i = 0; i < COUNT_OF(arrays); i++) free(arrays[i]);
    for (int i = 0; i < 2; i++)
        free(s->running[i]), free(s->want_running[i]), free(s->running_terms[i]);
}

static void ask_oracle(gn_scene *s)
{
    oracle_row_norm_answer *w = &s->want;
    double **by_stat[] = { &w->mean, &w->rstd };
    double **by_element[] = { &w->y, &w->y_terms, &w->dx, &w->dx_terms };
    double **by_channel[] = { &w->dw, &w->dw_terms, &w->db, &w->db_terms };
    for (int i = 0; i < 2; i++) *by_stat[i] = test_doubles(s->stats);
    for (int i = 0; i < 4; i++) *by_element[i] = test_doubles(s->numel);
    for (int i = 0; i < 4; i++) *by_channel[i] = test_doubles(s->channels);
    const oracle_group_norm question = { .n = s->n,
                                         .channels = s->channels,
                                         .size = s->size,
                                         .groups = s->c.groups,
                                         .x = s->x,
                                         .w = s->c.w ? s->w : NULL,
                                         .b = s->c.b ? s->b : NULL,
                                         .dy = s->dy,
                                         .eps = (double)1e-5f };
    oracle_group_norm_of(&question, w);
}

/* Running statistics by their definition: means over images of the mean and the unbiased
 * variance. */
static void expect_running(gn_scene *s)
{
    const double share = (double)MOMENTUM, m = (double)s->size;
    for (int64_t c = 0; c < s->channels; c++) {
        double means = 0.0, vars = 0.0, sizes = 0.0;
        for (int64_t i = 0; i < s->n; i++) {
            const double *x = s->x + (i * s->channels + c) * s->size;
            double sum = 0.0, squares = 0.0;
            for (int64_t k = 0; k < s->size; k++) sum += x[k], sizes += fabs(x[k]);
            for (int64_t k = 0; k < s->size; k++) squares += (x[k] - sum / m) * (x[k] - sum / m);
            means += sum / m / (double)s->n;
            vars += squares / (m - 1.0) / (double)s->n;
        }
        const double now[] = { means, vars };
        const double terms[] = { sizes / (m * (double)s->n), vars };
        for (int i = 0; i < 2; i++) {
            s->want_running[i][c] = (1.0 - share) * s->running[i][c] + share * now[i];
            s->running_terms[i][c] = fabs(s->running[i][c]) + terms[i];
        }
    }
}

/* Summands in one row of additions. */
static int64_t depth(int64_t n)
{
    return n <= 96 ? n : 96 + n / 32;
}

static void judge(const gn_scene *s, const test_tensor *t, const char *op, int64_t n,
                  const double *want, const double *terms, const double *old)
{
    test_judge(t, op, s->c.layout, s->c.seed, n, want, terms, old);
}

/* Distances from a mean that is rounded are off by u |mean|, the variance by twice that times its
 * root, and rstd by rstd^2 |mean| u, beside the roundings of rstd itself. */
static void judge_rstd(const gn_scene *s, int64_t n)
{
    const oracle_row_norm_answer *w = &s->want;
    double *terms = test_doubles(s->stats);
    for (int64_t i = 0; i < s->stats; i++)
        terms[i] = w->rstd[i] * (1.0 + fabs(w->mean[i]) * w->rstd[i]);
    judge(s, &s->trstd, "group_norm", n, w->rstd, terms, NULL);
    free(terms);
}

static void judge_forward(gn_scene *s)
{
    const int64_t n = depth(s->channels / s->c.groups * s->size);
    const oracle_row_norm_answer *w = &s->want;
    judge(s, &s->ty, "group_norm", n, w->y, w->y_terms, NULL);
    judge_rstd(s, n);
    if (!s->c.running) return;
    expect_running(s);
    for (int i = 0; i < 2; i++)
        judge(s, &s->trunning[i], "group_norm", n + depth(s->n), s->want_running[i],
              s->running_terms[i], NULL);
}

static void judge_backward(const gn_scene *s)
{
    const int64_t n = depth(s->channels / s->c.groups * s->size), all = depth(s->n * s->size);
    const oracle_row_norm_answer *w = &s->want;
    const double *old = s->c.add ? s->old : NULL, *olds = s->c.add ? s->old_params : NULL;
    judge(s, &s->tdx, "group_norm_grad", n, w->dx, w->dx_terms, old);
    judge(s, &s->tdw, "group_norm_grad", n + all, w->dw, w->dw_terms, olds);
    judge(s, &s->tdb, "group_norm_grad", all, w->db, w->db_terms, olds);
}

/* Gives the number of hidden copies. */
static uint64_t check(const gn_case *c)
{
    gn_scene s;
    atto_device_stats before, after;
    begin(&s, c);
    build(&s);
    ask_oracle(&s);
    MUST(atto_device_stats_get(test_dev, &before));
    MUST(atto_group_norm_forward(test_dev, &s.args));
    if (!c->no_saved) MUST(atto_group_norm_backward(test_dev, &s.args));
    MUST(atto_device_stats_get(test_dev, &after));
    judge_forward(&s);
    if (!c->no_saved) judge_backward(&s);
    assert_true(test_tensor_untouched(&s.tx) && test_tensor_untouched(&s.tdy));
    assert_true(test_tensor_untouched(&s.tw) && test_tensor_untouched(&s.tb));
    end(&s);
    return (uint64_t)(after.hidden_copies - before.hidden_copies);
}

/* ---- cases ---- */

static void group_norm_matches_oracle_with_all_options(void **state)
{
    (void)state;
    const int64_t groups[] = { 1, 2, 3, 6 };
    for (int bits = 0; bits < 256; bits++) {
        gn_case c = { .shape = bits & 1 ? atto_shape4(3, 6, 4, 2) : atto_shape3(4, 6, 7),
                      .groups = groups[bits % 4],
                      .w = bits & 2 ? ATTO_F32 : (atto_dtype)0,
                      .b = bits & 4 ? ATTO_F32 : (atto_dtype)0,
                      .dw = bits & 8 ? ATTO_F32 : (atto_dtype)0,
                      .db = bits & 16 ? ATTO_F32 : (atto_dtype)0,
                      .add = bits & 32,
                      .no_saved = bits & 64,
                      .no_dx = bits & 128,
                      .running = bits % 8 == 3, /* 6 groups */
                      .seed = 100 + (uint64_t)bits };
        if (c.no_dx && !c.dw && !c.db) continue;
        check(&c);
    }
}

/* I10 */
static void group_norm_takes_any_size(void **state)
{
    (void)state;
    const struct {
        int32_t rank;
        int64_t dims[4], groups;
    } rows[] = {
        { 2, { 1, 1 }, 1 },           { 2, { 7, 12 }, 3 },        { 2, { 5, 64 }, 64 },
        { 3, { 2, 3, 1025 }, 3 },     { 3, { 300, 2, 3 }, 1 },    { 4, { 2, 64, 7, 7 }, 32 },
        { 4, { 1, 3, 224, 224 }, 1 }, { 4, { 2, 8, 16, 16 }, 4 }, { 4, { 3, 5, 1, 31 }, 5 },
    };
    for (int i = 0; i < COUNT_OF(rows); i++)
        check(&(gn_case){ .shape = atto_shape_of(rows[i].rank, rows[i].dims),
                          .groups = rows[i].groups,
                          .w = ATTO_F32,
                          .b = ATTO_F32,
                          .dw = ATTO_F32,
                          .db = ATTO_F32,
                          .layout = i % 3 == 2 ? LAYOUT_OFFSET : LAYOUT_DENSE,
                          .seed = 500 + (uint64_t)i });
}

static void group_norm_takes_f16_and_bf16(void **state)
{
    (void)state;
    const atto_dtype dtypes[] = { ATTO_F16, ATTO_BF16 };
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 2; i++)
            check(&(gn_case){ .shape = i ? atto_shape4(2, 6, 4, 4) : atto_shape3(3, 4, 5),
                              .groups = i ? 3 : 4,
                              .dtype = dtypes[d],
                              .w = dtypes[d],
                              .b = i ? ATTO_F32 : dtypes[d],
                              .dw = dtypes[d],
                              .db = i ? ATTO_F32 : dtypes[d],
                              .add = i == 1,
                              .seed = 600 });
}

/* I9 */
static void group_norm_takes_any_layout(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_PITCHED, LAYOUT_TRANSPOSED, LAYOUT_STEP2,
                                    LAYOUT_CHANNELS_LAST };
    for (int i = 0; i < COUNT_OF(layouts); i++)
        check(&(gn_case){ .shape = atto_shape4(2, 6, 3, 5),
                          .groups = 2,
                          .w = ATTO_F32,
                          .dw = ATTO_F32,
                          .db = ATTO_F32,
                          .layout = layouts[i],
                          .params = i % 2 ? LAYOUT_STEP2 : LAYOUT_OFFSET,
                          .add = i % 2,
                          .seed = 700 });
}

/* Several slabs of an image, many images in a strip of columns, channels in vectors and not, one
 * value in a channel; images shared out whole and in parts. */
static void group_norm_takes_channels_last_without_copies(void **state)
{
    (void)state;
    const struct {
        int32_t rank;
        int64_t dims[4], groups;
        atto_dtype dtype;
    } rows[] = {
        { 4, { 2, 8, 16, 16 }, 4, ATTO_F32 },  { 4, { 2, 8, 16, 16 }, 8, ATTO_F32 },
        { 4, { 17, 6, 3, 2 }, 3, ATTO_F32 },   { 4, { 40, 8, 2, 3 }, 1, ATTO_F32 },
        { 4, { 1, 3, 67, 35 }, 3, ATTO_F32 },  { 3, { 20, 66, 5 }, 33, ATTO_F32 },
        { 4, { 2, 1100, 2, 2 }, 2, ATTO_F32 }, { 4, { 3, 16, 5, 4 }, 4, ATTO_BF16 },
    };
    for (int i = 0; i < COUNT_OF(rows); i++) {
        const uint64_t copies =
            check(&(gn_case){ .shape = atto_shape_of(rows[i].rank, rows[i].dims),
                              .groups = rows[i].groups,
                              .dtype = rows[i].dtype,
                              .w = ATTO_F32,
                              .b = ATTO_F32,
                              .dw = ATTO_F32,
                              .db = ATTO_F32,
                              .add = i % 2,
                              .running = rows[i].groups == rows[i].dims[1],
                              .layout = LAYOUT_CHANNELS_LAST,
                              .seed = 720 + (uint64_t)i });
        assert_int_equal(copies, 0);
    }
}

/* All images of a call lie as its output does: x and dy are packed for backward. */
static void group_norm_packs_what_lies_otherwise(void **state)
{
    (void)state;
    for (int last = 0; last < 2; last++) {
        const uint64_t copies =
            check(&(gn_case){ .shape = atto_shape4(3, 6, 5, 4),
                              .groups = 2,
                              .w = ATTO_F32,
                              .dw = ATTO_F32,
                              .add = last,
                              .layout = last ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE,
                              .dx_layout = last ? LAYOUT_OFFSET : LAYOUT_CHANNELS_LAST,
                              .seed = 740 });
        assert_int_equal(copies, 2);
    }
}

/* Many images, and few with much in them. */
static void group_norm_keeps_running_statistics(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape3(70, 3, 5), atto_shape4(2, 3, 40, 40),
                                  atto_shape3(1, 130, 2) };
    for (int i = 0; i < 6; i++)
        check(&(gn_case){ .shape = shapes[i % 3],
                          .groups = shapes[i % 3].dim[1],
                          .running = true,
                          .params = i % 2 ? LAYOUT_STEP2 : LAYOUT_OFFSET,
                          .layout = i < 3 ? LAYOUT_DENSE : LAYOUT_CHANNELS_LAST,
                          .shift = 3.0,
                          .seed = 745 + (uint64_t)i });
}

/* Vectors of x and of dx do not begin at the same elements. */
static void group_norm_backward_takes_another_alignment(void **state)
{
    (void)state;
    check(&(gn_case){ .shape = atto_shape4(2, 6, 4, 4),
                      .groups = 3,
                      .w = ATTO_F32,
                      .dw = ATTO_F32,
                      .dx_layout = LAYOUT_OFFSET,
                      .seed = 750 });
}

/* Results pass the CPU's caches by where they are aligned: few rows of 40 channels are, few
 * runs. */
static void group_norm_of_16_mib_is_right(void **state)
{
    (void)state;
    const bool here = strcmp(test_backend(), "cpu") == 0;
    for (int last = 0; last < 2 && here; last++)
        check(&(gn_case){ .shape = atto_shape4(2, 40, 230, 229),
                          .groups = 20,
                          .w = ATTO_F32,
                          .b = ATTO_F32,
                          .dw = ATTO_F32,
                          .db = ATTO_F32,
                          .layout = last ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE,
                          .dx_layout = last ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE,
                          .seed = 755 });
}

/* A step with the module against the op. */
static void group_norm_module_matches_the_op(void **state)
{
    (void)state;
    gn_scene s;
    atto_module *m;
    atto_tape *tape;
    atto_tensor got;
    begin(&s, &(gn_case){ .shape = atto_shape3(2, 6, 5), .groups = 3, .seed = 760 });
    build(&s);
    ask_oracle(&s);
    MUST(atto_group_norm_create(test_dev, 3, 6, NULL, &m));
    assert_string_equal(atto_module_class_name(m), "GroupNorm");
    assert_int_equal(atto_module_param_count(m), 12);
    MUST(atto_tape_create(test_dev, &tape));
    const atto_var x = atto_borrow(tape, &s.tx.view, true);
    const atto_var y = atto_apply(tape, m, x);
    MUST(atto_var_tensor(tape, y, &got));
    MUST(atto_tensor_copy(&s.ty.view, &got));
    judge(&s, &s.ty, "group_norm", 10, s.want.y, s.want.y_terms, NULL);
    MUST(atto_backward_from(tape, y, &s.tdy.view));
    MUST(atto_var_grad(tape, x, &got));
    MUST(atto_tensor_copy(&s.tdx.view, &got));
    judge(&s, &s.tdx, "group_norm_grad", 10, s.want.dx, s.want.dx_terms, NULL);
    MUST(atto_tape_end(tape));
    const float data[12] = { 0.0f };
    atto_apply(tape, m, atto_input(tape, ATTO_F32, atto_shape2(3, 4), data));
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_SHAPE, "GroupNorm: the input is [3,4]|6 channels");
    atto_module_free(m);
    EXPECT_FAIL(atto_group_norm_create(test_dev, 4, 6, NULL, &m), ATTO_E_ARGUMENT,
                "group_norm_create|4 groups do not divide 6 channels");
    EXPECT_FAIL(atto_group_norm_create(test_dev, 1, -1, NULL, &m), ATTO_E_SHAPE, "-1 channels");
    EXPECT_FAIL(atto_group_norm_create(NULL, 3, 6, NULL, &m), ATTO_E_NULL, "dev");
    atto_tape_free(tape);
    end(&s);
}

/* H1 */
static void group_norm_keeps_the_digits_of_a_large_mean(void **state)
{
    (void)state;
    gn_scene s;
    begin(&s, &(gn_case){ .shape = atto_shape3(2, 4, 4096), .groups = 2, .seed = 800 });
    for (int64_t i = 0; i < s.numel; i++) s.x[i] = (double)(float)(100.0 + 0.0086 * s.x[i]);
    build(&s);
    ask_oracle(&s);
    double rstd[4];
    MUST(atto_group_norm_forward(test_dev, &s.args));
    test_tensor_get(&s.trstd, rstd);
    for (int i = 0; i < 4; i++) assert_true(fabs(rstd[i] / s.want.rstd[i] - 1.0) < 1e-4);
    end(&s);
}

/* H1: a group's channels, and slabs of rows, have means less than a rounding of 1e4 apart. */
static void group_norm_merges_close_means(void **state)
{
    (void)state;
    const double step = 0x1p-10; /* of floats near 1e4 */
    for (int last = 0; last < 2; last++) {
        gn_scene s;
        double rstd;
        begin(&s, &(gn_case){ .shape = atto_shape3(1, 2, 256),
                              .groups = 1,
                              .layout = last ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE,
                              .seed = 820 });
        for (int64_t i = 0; i < s.numel; i++)
            s.x[i] = 1e4 + step * (double)(i % 2 + (last ? i % 256 >= 128 : i >= 256));
        build(&s);
        s.args.eps = 0.0f;
        MUST(atto_group_norm_forward(test_dev, &s.args));
        test_tensor_get(&s.trstd, &rstd);
        assert_true(fabs(rstd * step / sqrt(2.0) - 1.0) < 1e-6);
        end(&s);
    }
}

/* I1 */
static void group_norm_of_no_values(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape3(0, 4, 3), atto_shape3(2, 4, 0) };
    for (int i = 0; i < 4; i++) {
        gn_scene s;
        double dw[4], db[4];
        begin(&s, &(gn_case){ .shape = shapes[i % 2],
                              .groups = 2,
                              .w = ATTO_F32,
                              .dw = ATTO_F32,
                              .db = ATTO_F32,
                              .add = i / 2 });
        build(&s);
        MUST(atto_group_norm_forward(test_dev, &s.args));
        MUST(atto_group_norm_backward(test_dev, &s.args));
        test_tensor_get(&s.tdw, dw);
        test_tensor_get(&s.tdb, db);
        for (int c = 0; c < 4; c++) {
            const double want = s.c.add ? s.old_params[c] : 0.0;
            assert_true(dw[c] == want && db[c] == want);
        }
        end(&s);
    }
}

static void group_norm_of_no_images_learns_nothing(void **state)
{
    (void)state;
    const float held[4] = { 1.0f, 2.0f, 3.0f, 4.0f };
    float got[4];
    atto_tensor x, y, mean, var;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape3(0, 4, 3), &x));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape3(0, 4, 3), &y));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(4), &mean));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(4), &var));
    MUST(atto_tensor_write(&mean, held));
    MUST(atto_tensor_write(&var, held));
    MUST(atto_group_norm_forward(test_dev, &(struct atto_group_norm_args){ .x = &x,
                                                                           .y = &y,
                                                                           .groups = 4,
                                                                           .running_mean = &mean,
                                                                           .running_var = &var,
                                                                           .momentum = 0.1f,
                                                                           .eps = 1e-5f }));
    MUST(atto_tensor_read(&mean, got));
    assert_memory_equal(got, held, sizeof held);
    MUST(atto_tensor_read(&var, got));
    assert_memory_equal(got, held, sizeof held);
    atto_tensor_free(&x);
    atto_tensor_free(&y);
    atto_tensor_free(&mean);
    atto_tensor_free(&var);
}

static void refuse(void (*spoil)(gn_scene *s), bool backward, atto_status status, const char *words)
{
    gn_scene s;
    begin(&s, &(gn_case){ .shape = atto_shape3(3, 6, 2),
                          .groups = 3,
                          .w = ATTO_F32,
                          .dw = ATTO_F32,
                          .db = ATTO_F32 });
    build(&s);
    spoil(&s);
    EXPECT_FAIL(backward ? atto_group_norm_backward(test_dev, &s.args)
                         : atto_group_norm_forward(test_dev, &s.args),
                status, words);
    assert_true(test_tensor_untouched(&s.ty) && test_tensor_untouched(&s.tdx));
    end(&s);
}

static void integer_input(gn_scene *s)
{
    s->tx.view.dtype = ATTO_I32;
}
static void a_vector(gn_scene *s)
{
    s->tx.view.rank = 1;
}
static void four_groups(gn_scene *s)
{
    s->args.groups = 4;
}
static void no_groups(gn_scene *s)
{
    s->args.groups = 0;
}
static void negative_eps(gn_scene *s)
{
    s->args.eps = -1.0f;
}
static void short_rstd(gn_scene *s)
{
    s->trstd.view.shape[1] = 2;
}
static void short_weight(gn_scene *s)
{
    s->tw.view.shape[0] = 4;
}
static void no_running_var(gn_scene *s)
{
    s->args.running_mean = s->args.w;
}
static void running_groups(gn_scene *s)
{
    s->args.running_mean = s->args.w, s->args.running_var = s->args.dw;
}
static void running_of_one_value(gn_scene *s)
{
    running_groups(s);
    s->args.groups = 6;
    s->args.mean = s->args.rstd = NULL;
    s->tx.view.shape[2] = s->ty.view.shape[2] = 1;
}
static void running_nan(gn_scene *s)
{
    running_of_one_value(s);
    s->tx.view.shape[2] = s->ty.view.shape[2] = 2;
    s->args.momentum = NAN;
}

static void group_norm_refuses_what_does_not_fit(void **state)
{
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
        refuse(integer_input, backward, ATTO_E_DTYPE, "x is i32");
        refuse(a_vector, backward, ATTO_E_SHAPE, "x has rank 1");
        refuse(four_groups, backward, ATTO_E_ARGUMENT, "4 groups do not divide 6 channels");
        refuse(no_groups, backward, ATTO_E_ARGUMENT, "0 groups");
        refuse(negative_eps, backward, ATTO_E_ARGUMENT, "eps is -1");
        refuse(short_rstd, backward, ATTO_E_SHAPE, "rstd is [3,2]|expected [3,3]");
        refuse(short_weight, backward, ATTO_E_SHAPE, "w is [4]|expected [6]");
    }
    refuse(no_running_var, false, ATTO_E_NULL, "running_var is NULL");
    refuse(running_groups, false, ATTO_E_ARGUMENT, "3 groups of 6 channels|one for each");
    refuse(running_of_one_value, false, ATTO_E_ARGUMENT, "one value in each channel");
    refuse(running_nan, false, ATTO_E_ARGUMENT, "momentum is nan");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(group_norm_matches_oracle_with_all_options),
    cmocka_unit_test(group_norm_takes_any_size),
    cmocka_unit_test(group_norm_takes_f16_and_bf16),
    cmocka_unit_test(group_norm_takes_any_layout),
    cmocka_unit_test(group_norm_takes_channels_last_without_copies),
    cmocka_unit_test(group_norm_packs_what_lies_otherwise),
    cmocka_unit_test(group_norm_keeps_running_statistics),
    cmocka_unit_test(group_norm_backward_takes_another_alignment),
    cmocka_unit_test(group_norm_of_16_mib_is_right),
    cmocka_unit_test(group_norm_module_matches_the_op),
    cmocka_unit_test(group_norm_keeps_the_digits_of_a_large_mean),
    cmocka_unit_test(group_norm_merges_close_means),
    cmocka_unit_test(group_norm_of_no_values),
    cmocka_unit_test(group_norm_of_no_images_learns_nothing),
    cmocka_unit_test(group_norm_refuses_what_does_not_fit),
};
TEST_MAIN("group_norm", tests)
