/* SPDX-License-Identifier: MIT */
/* Batch norm, forward and backward: the double oracle decides, on every backend. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "atto_test.h"
#include "oracle_norm.h"

/* ---- one case ---- */

typedef struct bn_case {
    atto_shape shape; /* of x */
    atto_dtype dtype; /* 0 = f32 */
    atto_dtype w, b, dw, db;
    bool residual, dresidual, no_dx, running, batches, cumulative, eval, no_saved, add;
    atto_activation act;
    test_layout layout;    /* of x, y, dy, dx, residual, dresidual */
    test_layout dx_layout; /* of dx, if it is another one than dense */
    test_layout channels;  /* of w, b, ... */
    double shift, eps;     /* of x; 0 = 1e-5 */
    uint64_t seed;
} bn_case;

/* A case with its sizes, data and tensors. */
typedef struct bn_scene {
    bn_case c;
    int64_t n, channels, size, numel, values;
    double *x, *w, *b, *residual, *dy, *old, *old_params, *running_mean, *running_var;
    test_tensor tx, tw, tb, tresidual, tmean, tvar, tbatches, ty, tsaved_mean, trstd, tdy, tdx, tdw,
        tdb, tdresidual;
    struct atto_batch_norm_args args;
    oracle_batch_norm_answer want;
} bn_scene;

#define BATCHES_BEFORE 3
#define MOMENTUM       0.25f

static void draw(bn_scene *s)
{
    const bn_case *c = &s->c;
    double **full[] = { &s->x, &s->residual, &s->dy, &s->old };
    double **some[] = { &s->w, &s->b, &s->old_params, &s->running_mean, &s->running_var };
    for (int i = 0; i < 4; i++) *full[i] = test_doubles(s->numel);
    for (int i = 0; i < 5; i++) *some[i] = test_doubles(s->channels);
    test_uniform(c->seed + 1, c->shift - 2.0, c->shift + 2.0, c->dtype, s->x, s->numel);
    test_uniform(c->seed + 2, -2.0, 2.0, c->dtype, s->residual, s->numel);
    test_uniform(c->seed + 3, -2.0, 2.0, c->dtype, s->dy, s->numel);
    test_uniform(c->seed + 4, -1.0, 1.0, c->dtype, s->old, s->numel);
    if (c->w) test_uniform(c->seed + 5, -2.0, 2.0, c->w, s->w, s->channels);
    if (c->b) test_uniform(c->seed + 6, -2.0, 2.0, c->b, s->b, s->channels);
    test_uniform(c->seed + 7, -1.0, 1.0, ATTO_BF16, s->old_params, s->channels);
    test_uniform(c->seed + 8, -1.0, 1.0, ATTO_F32, s->running_mean, s->channels);
    test_uniform(c->seed + 9, 0.5, 2.0, ATTO_F32, s->running_var, s->channels);
}

static const atto_tensor *make(test_tensor *t, atto_dtype dtype, atto_shape shape,
                               test_layout layout, const double *values)
{
    if (!dtype) return NULL;
    test_tensor_make(t, test_dev, dtype, shape, layout);
    if (values) test_tensor_put(t, values);
    return &t->view;
}

static void build(bn_scene *s)
{
    const bn_case *c = &s->c;
    struct atto_batch_norm_args *a = &s->args;
    const atto_dtype none = (atto_dtype)0, saved = c->no_saved ? none : ATTO_F32;
    const atto_dtype running = c->running ? ATTO_F32 : none;
    const atto_shape x = c->shape, k = atto_shape1(s->channels);
    const double batches = BATCHES_BEFORE;
    const double *old = c->add ? s->old : NULL, *olds = c->add ? s->old_params : NULL;
    a->x = make(&s->tx, c->dtype, x, c->layout, s->x);
    a->w = make(&s->tw, c->w, k, c->channels, s->w);
    a->b = make(&s->tb, c->b, k, c->channels, s->b);
    a->residual = make(&s->tresidual, c->residual ? c->dtype : none, x, c->layout, s->residual);
    a->running_mean = make(&s->tmean, running, k, c->channels, s->running_mean);
    a->running_var = make(&s->tvar, running, k, c->channels, s->running_var);
    a->batches =
        make(&s->tbatches, c->batches ? ATTO_I64 : none, atto_shape0(), LAYOUT_DENSE, &batches);
    a->y = make(&s->ty, c->dtype, x, c->layout, NULL);
    a->mean = make(&s->tsaved_mean, saved, k, LAYOUT_OFFSET, NULL);
    a->rstd = make(&s->trstd, saved, k, LAYOUT_OFFSET, NULL);
    a->dy = make(&s->tdy, c->dtype, x, c->layout, s->dy);
    a->dx =
        make(&s->tdx, c->no_dx ? none : c->dtype, x, c->dx_layout ? c->dx_layout : c->layout, old);
    a->dw = make(&s->tdw, c->dw, k, c->channels, olds);
    a->db = make(&s->tdb, c->db, k, c->channels, olds);
    a->dresidual = make(&s->tdresidual, c->dresidual ? c->dtype : none, x, c->layout, old);
    a->add_dx = a->add_dw = a->add_db = a->add_dresidual = c->add;
    a->act = c->act;
    a->training = !c->eval;
    a->cumulative = c->cumulative;
    a->momentum = MOMENTUM;
    a->eps = (float)c->eps;
}

static void begin(bn_scene *s, const bn_case *c)
{
    memset(s, 0, sizeof *s);
    s->c = *c;
    if (!s->c.dtype) s->c.dtype = ATTO_F32;
    if (s->c.eps == 0.0) s->c.eps = 1e-5;
    if (s->c.eval) s->c.running = true;
    if (s->c.cumulative) s->c.running = s->c.batches = true;
    s->c.eps = (double)(float)s->c.eps;
    s->n = c->shape.dim[0], s->channels = c->shape.dim[1], s->size = 1;
    for (int32_t d = 2; d < c->shape.rank; d++) s->size *= c->shape.dim[d];
    s->values = s->n * s->size;
    s->numel = s->values * s->channels;
    draw(s);
}

static void end(bn_scene *s)
{
    test_tensor *tensors[] = { &s->tx,   &s->tw,       &s->tb,  &s->tresidual,   &s->tmean,
                               &s->tvar, &s->tbatches, &s->ty,  &s->tsaved_mean, &s->trstd,
                               &s->tdy,  &s->tdx,      &s->tdw, &s->tdb,         &s->tdresidual };
    oracle_batch_norm_answer *w = &s->want;
    double *arrays[] = { s->x,           s->w,    s->b,          s->residual,
                         s->dy,          s->old,  s->old_params, s->running_mean,
                         s->running_var, w->mean, w->rstd,       w->running_mean,
                         w->running_var, w->y,    w->y_terms,    w->dx,
                         w->dx_terms,    w->dz,   w->dz_terms,   w->dw,
                         w->dw_terms,    w->db,   w->db_terms };
    for (int i = 0; i < COUNT_OF(tensors); i++) test_tensor_drop(tensors[i]);
    for (int i = 0; i < COUNT_OF(arrays); i++) free(arrays[i]);
}

static void ask_oracle(bn_scene *s)
{
    oracle_batch_norm_answer *w = &s->want;
    double **by_channel[] = { &w->mean, &w->rstd,     &w->running_mean, &w->running_var,
                              &w->dw,   &w->dw_terms, &w->db,           &w->db_terms };
    double **by_element[] = { &w->y, &w->y_terms, &w->dx, &w->dx_terms, &w->dz, &w->dz_terms };
    for (int i = 0; i < 8; i++) *by_channel[i] = test_doubles(s->channels);
    for (int i = 0; i < 6; i++) *by_element[i] = test_doubles(s->numel);
    const oracle_batch_norm question = {
        .n = s->n,
        .channels = s->channels,
        .size = s->size,
        .x = s->x,
        .w = s->c.w ? s->w : NULL,
        .b = s->c.b ? s->b : NULL,
        .residual = s->c.residual ? s->residual : NULL,
        .dy = s->dy,
        .running_mean = s->c.running ? s->running_mean : NULL,
        .running_var = s->c.running ? s->running_var : NULL,
        .act = s->c.act,
        .training = !s->c.eval,
        .share = s->c.cumulative ? 1.0 / (BATCHES_BEFORE + 1) : (double)MOMENTUM,
        .eps = s->c.eps,
    };
    oracle_batch_norm_of(&question, w);
}

/* ---- judgement ---- */

/* Summands of a channel in one row of additions: those of a slab that a lane has, then slabs. */
static int64_t depth(const bn_scene *s)
{
    return s->values <= 96 ? s->values : 96 + s->values / 32;
}

static void judge(const bn_scene *s, const test_tensor *t, const char *op, const double *want,
                  const double *terms, const double *old)
{
    test_judge(t, op, s->c.layout, s->c.seed, depth(s), want, terms, old);
}

/* Statistics; variances and rstd count the roundings of the squares' sum. */
static void judge_statistics(const bn_scene *s)
{
    const oracle_batch_norm_answer *w = &s->want;
    double *size = test_doubles(s->channels);
    for (int64_t i = 0; i < s->numel; i++)
        size[i / s->size % s->channels] += fabs(s->x[i]) / (double)s->values;
    judge(s, &s->tsaved_mean, "batch_norm", w->mean, size, NULL);
    for (int64_t c = 0; c < s->channels; c++) size[c] += fabs(s->running_mean[c]);
    judge(s, &s->tmean, "batch_norm", w->running_mean, size, NULL);
    judge(s, &s->tvar, "batch_norm", w->running_var, w->running_var, NULL);
    judge(s, &s->trstd, "batch_norm", w->rstd, w->rstd, NULL);
    free(size);
    double batches = BATCHES_BEFORE;
    if (s->c.batches) test_tensor_get(&s->tbatches, &batches);
    assert_true(batches == BATCHES_BEFORE + (s->c.batches && !s->c.eval ? 1 : 0));
}

static void judge_forward(const bn_scene *s)
{
    judge(s, &s->ty, "batch_norm", s->want.y, s->want.y_terms, NULL);
    judge_statistics(s);
}

static void judge_backward(const bn_scene *s)
{
    const oracle_batch_norm_answer *w = &s->want;
    const double *old = s->c.add ? s->old : NULL, *olds = s->c.add ? s->old_params : NULL;
    judge(s, &s->tdx, "batch_norm_grad", w->dx, w->dx_terms, old);
    judge(s, &s->tdresidual, "batch_norm_grad", w->dz, w->dz_terms, old);
    judge(s, &s->tdw, "batch_norm_grad", w->dw, w->dw_terms, olds);
    judge(s, &s->tdb, "batch_norm_grad", w->db, w->db_terms, olds);
}

static void run_scene(bn_scene *s)
{
    build(s);
    ask_oracle(s);
    MUST(atto_batch_norm_forward(test_dev, &s->args));
    if (!s->c.no_saved) MUST(atto_batch_norm_backward(test_dev, &s->args));
}

static void check(const bn_case *c)
{
    bn_scene s;
    begin(&s, c);
    run_scene(&s);
    judge_forward(&s);
    if (!c->no_saved) judge_backward(&s);
    assert_true(test_tensor_untouched(&s.tx) && test_tensor_untouched(&s.tdy));
    assert_true(test_tensor_untouched(&s.tw) && test_tensor_untouched(&s.tb));
    assert_true(test_tensor_untouched(&s.tresidual));
    end(&s);
}

/* A device that plays another one has to build every kernel again: a third of the cases will do. */
static int case_step(void)
{
    return test_on_opencl() && test_in_disguise() ? 3 : 1;
}

/* ---- every combination of options ---- */

static void with_options(int bits, bn_case *c)
{
    c->w = bits & 1 ? ATTO_F32 : (atto_dtype)0;
    c->b = bits & 2 ? ATTO_F32 : (atto_dtype)0;
    c->residual = c->dresidual = bits & 4;
    c->running = bits & 8;
    c->batches = bits & 16;
    c->eval = bits & 32;
    c->add = bits & 64;
    c->act = bits & 128 ? atto_gelu() : atto_identity();
    c->dw = bits & 256 ? ATTO_F32 : (atto_dtype)0;
    c->db = bits & 512 ? ATTO_F32 : (atto_dtype)0;
}
#define OPTION_SETS 1024

static void batch_norm_matches_oracle_with_all_options(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape2(12, 5), atto_shape3(3, 4, 7),
                                  atto_shape4(2, 3, 4, 4) };
    for (int bits = 0; bits < OPTION_SETS; bits++) {
        bn_case c = { .shape = shapes[bits % 3], .seed = 100 + (uint64_t)bits };
        with_options(bits, &c);
        c.cumulative = bits % 5 == 0;
        c.no_dx = bits % 7 == 0 && (c.dw || c.db || c.dresidual);
        c.no_saved = bits % 11 == 0;
        check(&c);
    }
}

/* Each activation behind the residual. */
static void batch_norm_takes_every_activation(void **state)
{
    (void)state;
    for (int i = 0; i < ATTO_ACT_COUNT; i += test_on_opencl() ? 3 * case_step() : 1) {
        atto_activation all[TEST_ACTIVATIONS_MAX];
        test_activations(all);
        check(&(bn_case){ .shape = atto_shape3(4, 3, 8),
                          .w = ATTO_F32,
                          .b = ATTO_F32,
                          .dw = ATTO_F32,
                          .db = ATTO_F32,
                          .residual = true,
                          .dresidual = true,
                          .act = all[i],
                          .seed = 1300 + (uint64_t)i });
    }
}

/* ---- sizes (I10) ---- */

static const struct size_row {
    int32_t rank;
    int64_t dims[4];
} size_rows[] = {
    { 2, { 2, 1 } },         { 2, { 3, 1 } },
    { 2, { 4099, 3 } },      { 2, { 300, 40 } },
    { 2, { 70, 129 } },      { 2, { 257, 64 } },
    { 2, { 17, 513 } },      { 2, { 65, 2048 } },
    { 3, { 5, 33, 1 } },     { 3, { 1, 2, 3 } },
    { 3, { 7, 3, 127 } },    { 3, { 2, 5, 1024 } },
    { 3, { 3, 2, 1025 } },   { 3, { 33, 17, 31 } },
    { 4, { 1, 3, 2, 2 } },   { 4, { 2, 64, 7, 7 } },
    { 4, { 16, 16, 8, 8 } }, { 4, { 1, 3, 65, 63 } },
    { 4, { 9, 1, 5, 4 } },   { 4, { 1, 64, 128, 128 } },
    { 4, { 1, 640, 4, 4 } }, { 4, { 3, 2, 224, 224 } },
};

static void batch_norm_takes_any_size(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(size_rows); i += case_step())
        check(&(bn_case){ .shape = atto_shape_of(size_rows[i].rank, size_rows[i].dims),
                          .w = ATTO_F32,
                          .b = ATTO_F32,
                          .dw = ATTO_F32,
                          .db = ATTO_F32,
                          .running = true,
                          .layout = i % 4 == 3 ? LAYOUT_OFFSET : LAYOUT_DENSE,
                          .seed = 1400 + (uint64_t)i });
}

/* ---- dtypes and layouts ---- */

static void batch_norm_takes_f16_and_bf16(void **state)
{
    (void)state;
    const atto_dtype dtypes[] = { ATTO_F16, ATTO_BF16 };
    const atto_shape shapes[] = { atto_shape2(40, 24), atto_shape4(3, 5, 4, 4),
                                  atto_shape4(2, 3, 5, 5), atto_shape2(33, 7) };
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 4; i += case_step()) {
            bn_case c = { .shape = shapes[i],
                          .dtype = dtypes[d],
                          .w = i % 2 ? ATTO_F32 : dtypes[d],
                          .b = dtypes[d],
                          .dw = dtypes[d],
                          .db = i % 2 ? ATTO_F32 : dtypes[d],
                          .running = true,
                          .residual = true,
                          .dresidual = true,
                          .add = i % 2 == 1,
                          .eval = (i + d) % 4 == 3,
                          .act = i % 2 ? atto_gelu() : atto_identity(),
                          .seed = 1500 + (uint64_t)i };
            check(&c);
        }
}

/* I9 */
static void batch_norm_takes_any_layout(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_OFFSET, LAYOUT_PITCHED,   LAYOUT_TRANSPOSED,
                                    LAYOUT_STEP2,  LAYOUT_SCATTERED, LAYOUT_CHANNELS_LAST };
    for (int i = 0; i < COUNT_OF(layouts); i += case_step())
        for (int k = 0; k < 2; k++)
            check(&(bn_case){ .shape = k ? atto_shape4(3, 8, 2, 5) : atto_shape2(12, 5),
                              .w = ATTO_F32,
                              .b = ATTO_F32,
                              .dw = ATTO_F32,
                              .db = ATTO_F32,
                              .running = true,
                              .residual = true,
                              .dresidual = true,
                              .act = atto_gelu(),
                              .layout = layouts[i],
                              .channels = i % 2 ? LAYOUT_STEP2 : LAYOUT_OFFSET,
                              .add = i % 2 == 1,
                              .seed = 1600 + (uint64_t)i });
}

/* Vectors of x and of dx do not begin at the same elements. */
static void batch_norm_backward_takes_another_alignment(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        check(&(bn_case){ .shape = i ? atto_shape2(20, 8) : atto_shape4(2, 3, 4, 4),
                          .w = ATTO_F32,
                          .dw = ATTO_F32,
                          .dx_layout = LAYOUT_OFFSET,
                          .add = i == 1,
                          .seed = 1640 });
}

/* W3: activation, residual and gradients all see the same element of a channels_last tensor. */
static void batch_norm_takes_channels_last_without_copies(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape4(3, 8, 5, 4), atto_shape4(2, 5, 3, 4),
                                  atto_shape3(4, 33, 7), atto_shape4(2, 1, 3, 4) };
    for (int i = 0; i < 4; i++) {
        bn_scene s;
        atto_device_stats before, after;
        begin(&s, &(bn_case){ .shape = shapes[i],
                              .w = ATTO_F32,
                              .b = ATTO_F32,
                              .dw = ATTO_F32,
                              .db = ATTO_F32,
                              .running = true,
                              .residual = true,
                              .dresidual = true,
                              .act = atto_gelu(),
                              .layout = LAYOUT_CHANNELS_LAST,
                              .seed = 1650 });
        MUST(atto_device_stats_get(test_dev, &before));
        run_scene(&s);
        MUST(atto_device_stats_get(test_dev, &after));
        assert_int_equal(after.hidden_copies, before.hidden_copies);
        judge_forward(&s);
        judge_backward(&s);
        end(&s);
    }
}

/* All images of a call lie as its output does. */
static void batch_norm_packs_what_lies_otherwise(void **state)
{
    (void)state;
    for (int last = 0; last < 2; last++) {
        bn_scene s;
        atto_device_stats before, after;
        begin(&s, &(bn_case){ .shape = atto_shape4(3, 8, 5, 4),
                              .w = ATTO_F32,
                              .dw = ATTO_F32,
                              .layout = last ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE,
                              .dx_layout = last ? LAYOUT_OFFSET : LAYOUT_CHANNELS_LAST,
                              .seed = 1660 });
        MUST(atto_device_stats_get(test_dev, &before));
        run_scene(&s);
        MUST(atto_device_stats_get(test_dev, &after));
        assert_int_equal(after.hidden_copies - before.hidden_copies, 2); /* x, dy */
        judge_forward(&s);
        judge_backward(&s);
        end(&s);
    }
}

/* ---- values ---- */

/* H6: the output has the biased variance, the running one the unbiased. */
static void batch_norm_has_both_variances(void **state)
{
    (void)state;
    bn_scene s;
    double y[2], mean, var;
    begin(&s, &(bn_case){ .shape = atto_shape2(2, 1), .running = true });
    s.x[0] = 1, s.x[1] = 3, s.running_mean[0] = 0, s.running_var[0] = 1;
    build(&s);
    s.args.momentum = 0.1f;
    MUST(atto_batch_norm_forward(test_dev, &s.args));
    test_tensor_get(&s.ty, y);
    test_tensor_get(&s.tmean, &mean);
    test_tensor_get(&s.tvar, &var);
    assert_true(fabs(y[0] + 1) < 1e-5 && fabs(y[1] - 1) < 1e-5);
    assert_true(fabs(mean - 0.2) < 1e-6 && fabs(var - 1.1) < 1e-6);
    end(&s);
}

/* H1: standard deviation 0.01 about 100, whichever way channels lie. */
static void batch_norm_keeps_the_digits_of_a_large_mean(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape2(32768, 2), atto_shape3(8, 2, 4096) };
    for (int i = 0; i < 2; i++) {
        bn_scene s;
        double rstd[2];
        begin(&s, &(bn_case){ .shape = shapes[i], .dw = ATTO_F32, .seed = 1700 });
        for (int64_t k = 0; k < s.numel; k++) s.x[k] = (double)(float)(100.0 + 0.0086 * s.x[k]);
        run_scene(&s);
        judge_forward(&s);
        judge_backward(&s);
        test_tensor_get(&s.trstd, rstd);
        for (int c = 0; c < 2; c++) assert_true(fabs(rstd[c] / s.want.rstd[c] - 1.0) < 1e-4);
        end(&s);
    }
}

/* H1: 8192 rows in a part, about 1e4 with deviation 1. Distances between values are exact. A
 * mean has two roundings of 2^-11, of the part's and its own, and below 2^-15 of sums of distances;
 * sums of squares, of 256 terms about a value at most sqrt(3) away, have 258 u (1 + 3), half of
 * which counts in rstd. */
static void batch_norm_keeps_the_digits_of_many_rows(void **state)
{
    (void)state;
    const bn_case cases[] = {
        { .shape = atto_shape2(262144, 2), .seed = 1720 },
        { .shape = atto_shape4(64, 2, 64, 64), .layout = LAYOUT_CHANNELS_LAST, .seed = 1730 }
    };
    for (int i = 0; i < 2; i++) {
        bn_scene s;
        double mean[2], rstd[2];
        begin(&s, &cases[i]);
        for (int64_t k = 0; k < s.numel; k++) s.x[k] = (double)(float)(1e4 + 0.866 * s.x[k]);
        build(&s);
        ask_oracle(&s);
        MUST(atto_batch_norm_forward(test_dev, &s.args));
        test_tensor_get(&s.tsaved_mean, mean);
        test_tensor_get(&s.trstd, rstd);
        for (int c = 0; c < 2; c++) {
            assert_true(fabs(mean[c] - s.want.mean[c]) < 0x1p-10 + 0x1p-15);
            assert_true(fabs(rstd[c] / s.want.rstd[c] - 1.0) < 4e-5);
        }
        end(&s);
    }
}

/* H1: parts whose means are less than a rounding of 1e4 apart; 0, 1, 1, 2 steps above it the variance is
 * half a step squared. rstd has its own roundings only. */
static void batch_norm_merges_close_means(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape3(2, 1, 2), atto_shape2(256, 1),
                                  atto_shape3(64, 1, 16) };
    const double step = 0x1p-10; /* of floats near 1e4 */
    for (int i = 0; i < 3; i++) {
        bn_scene s;
        double rstd;
        begin(&s, &(bn_case){ .shape = shapes[i], .seed = 1780 });
        for (int64_t k = 0; k < s.numel; k++)
            s.x[k] = 1e4 + step * (double)(k % 2 + (k >= s.numel / 2));
        build(&s);
        s.args.eps = 0.0f;
        MUST(atto_batch_norm_forward(test_dev, &s.args));
        test_tensor_get(&s.trstd, &rstd);
        assert_true(fabs(rstd * step / sqrt(2.0) - 1.0) < 1e-6);
        end(&s);
    }
}

/* H8 */
static void batch_norm_of_one_large_image_is_exact(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape4(1, 64, 128, 128), atto_shape4(1, 640, 4, 4) };
    for (int i = 0; i < 2; i++) {
        bn_scene s;
        begin(&s, &(bn_case){ .shape = shapes[i], .running = true, .seed = 1750 });
        run_scene(&s);
        double *var = test_doubles(s.channels);
        test_tensor_get(&s.tvar, var);
        for (int64_t c = 0; c < s.channels; c++)
            assert_true(fabs(var[c] / s.want.running_var[c] - 1.0) < 1e-5);
        free(var);
        end(&s);
    }
}

/* H5: a variance of one value; running statistics are as they were. */
static void batch_norm_refuses_one_value_in_training(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape2(1, 5), atto_shape4(1, 5, 1, 1) };
    for (int i = 0; i < 2; i++) {
        bn_scene s;
        begin(&s, &(bn_case){ .shape = shapes[i], .running = true, .batches = true });
        build(&s);
        EXPECT_FAIL(atto_batch_norm_forward(test_dev, &s.args), ATTO_E_ARGUMENT, "one value");
        assert_true(test_tensor_untouched(&s.tmean) && test_tensor_untouched(&s.tvar));
        assert_true(test_tensor_untouched(&s.tbatches) && test_tensor_untouched(&s.ty));
        end(&s);
        check(&(bn_case){ .shape = shapes[i], .eval = true, .w = ATTO_F32, .dw = ATTO_F32 });
    }
}

/* I1, I2 */
static void batch_norm_of_no_values(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape2(0, 5), atto_shape4(0, 5, 2, 2),
                                  atto_shape3(3, 5, 0) };
    for (int i = 0; i < 12; i++) {
        bn_scene s;
        double dw[5], db[5];
        begin(&s, &(bn_case){ .shape = shapes[i % 3],
                              .running = true,
                              .batches = true,
                              .w = ATTO_F32,
                              .dw = ATTO_F32,
                              .db = ATTO_F32,
                              .eval = i / 3 % 2,
                              .add = i / 6 });
        build(&s);
        MUST(atto_batch_norm_forward(test_dev, &s.args));
        MUST(atto_batch_norm_backward(test_dev, &s.args));
        assert_true(test_tensor_untouched(&s.tmean) && test_tensor_untouched(&s.tvar));
        assert_true(test_tensor_untouched(&s.tbatches));
        test_tensor_get(&s.tdw, dw);
        test_tensor_get(&s.tdb, db);
        for (int c = 0; c < 5; c++) {
            const double want = s.c.add ? s.old_params[c] : 0.0;
            assert_true(dw[c] == want && db[c] == want);
        }
        end(&s);
    }
    bn_scene s;
    begin(&s, &(bn_case){ .shape = atto_shape2(3, 0), .w = ATTO_F32, .dw = ATTO_F32 });
    build(&s);
    MUST(atto_batch_norm_forward(test_dev, &s.args));
    MUST(atto_batch_norm_backward(test_dev, &s.args));
    end(&s);
}

/* F7: a channel with a NaN or an infinity is NaN, the others are as ever. */
static void batch_norm_of_infinite_channels_is_ieee(void **state)
{
    (void)state;
    const double odd[] = { (double)NAN, (double)INFINITY, (double)-INFINITY };
    const atto_shape shapes[] = { atto_shape2(70, 3), atto_shape3(4, 3, 40) };
    for (int i = 0; i < 6; i++) {
        bn_scene s;
        begin(&s,
              &(bn_case){ .shape = shapes[i % 2], .w = ATTO_F32, .dw = ATTO_F32, .seed = 1800 });
        s.x[s.size] = odd[i / 2]; /* of channel 1 */
        run_scene(&s);
        judge(&s, &s.ty, "batch_norm", s.want.y, s.want.y_terms, NULL);
        if (i < 2) judge_backward(&s);
        end(&s);
    }
}

/* ---- repeatability ---- */

/* J1 */
static void batch_norm_repeats_bit_for_bit(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape2(5003, 10), atto_shape4(16, 3, 40, 40) };
    for (int i = 0; i < 2; i++) {
        bn_scene s;
        begin(&s, &(bn_case){ .shape = shapes[i],
                              .w = ATTO_F32,
                              .b = ATTO_F32,
                              .dw = ATTO_F32,
                              .db = ATTO_F32,
                              .seed = 1900 });
        build(&s);
        const test_tensor *outputs[] = { &s.ty, &s.tdx, &s.tdw, &s.tdb, &s.trstd };
        uint64_t *bits[2][5];
        for (int k = 0; k < 10; k++) bits[k / 5][k % 5] = calloc((size_t)outputs[k % 5]->numel, 8);
        for (int run = 0; run < 10; run++) {
            MUST(atto_batch_norm_forward(test_dev, &s.args));
            MUST(atto_batch_norm_backward(test_dev, &s.args));
            for (int k = 0; k < 5; k++) {
                test_tensor_bits(outputs[k], bits[run > 0][k]);
                if (run > 0)
                    assert_memory_equal(bits[0][k], bits[1][k], (size_t)outputs[k]->numel * 8);
            }
        }
        for (int k = 0; k < 10; k++) free(bits[k / 5][k % 5]);
        end(&s);
    }
}

static void batch_norm_in_a_steady_state_costs_launches_only(void **state)
{
    (void)state;
    bn_scene s;
    begin(&s, &(bn_case){ .shape = atto_shape4(4, 3, 8, 8),
                          .w = ATTO_F32,
                          .b = ATTO_F32,
                          .dw = ATTO_F32,
                          .db = ATTO_F32,
                          .running = true,
                          .batches = true });
    build(&s);
    atto_device_stats before, after;
    for (int i = 0; i < 5; i++) {
        if (i == 2) MUST(atto_device_stats_get(test_dev, &before));
        MUST(atto_batch_norm_forward(test_dev, &s.args));
        MUST(atto_batch_norm_backward(test_dev, &s.args));
    }
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.allocations, before.allocations);
    assert_int_equal(after.hidden_copies, before.hidden_copies);
    assert_int_equal(after.blocking_calls, before.blocking_calls);
    end(&s);
}

/* ---- what is refused ---- */

static void refuse(void (*spoil)(bn_scene *s), bool backward, atto_status status, const char *words)
{
    bn_scene s;
    begin(&s, &(bn_case){ .shape = atto_shape3(3, 5, 2),
                          .w = ATTO_F32,
                          .b = ATTO_F32,
                          .dw = ATTO_F32,
                          .db = ATTO_F32,
                          .running = true,
                          .residual = true,
                          .dresidual = true });
    build(&s);
    spoil(&s);
    EXPECT_FAIL(backward ? atto_batch_norm_backward(test_dev, &s.args)
                         : atto_batch_norm_forward(test_dev, &s.args),
                status, words);
    assert_true(test_tensor_untouched(&s.ty) && test_tensor_untouched(&s.tdx));
    assert_true(test_tensor_untouched(&s.tmean) && test_tensor_untouched(&s.tvar));
    end(&s);
}

static void integer_input(bn_scene *s)
{
    s->tx.view.dtype = ATTO_I32;
}
static void a_vector(bn_scene *s)
{
    s->tx.view.rank = 1;
}
static void negative_eps(bn_scene *s)
{
    s->args.eps = -1.0f;
}
static void nan_momentum(bn_scene *s)
{
    s->args.momentum = NAN;
}
static void short_weight(bn_scene *s)
{
    s->tw.view.shape[0] = 4;
}
static void narrow_bias(bn_scene *s)
{
    s->tb.view.dtype = ATTO_F16;
}
static void short_rstd(bn_scene *s)
{
    s->trstd.view.shape[0] = 4;
}
static void unknown_act(bn_scene *s)
{
    s->args.act.kind = (atto_activation_kind)1000;
}
static void no_variance(bn_scene *s)
{
    s->args.running_var = NULL;
}
static void eval_of_nothing(bn_scene *s)
{
    s->args.training = false;
    s->args.running_mean = s->args.running_var = NULL;
}
static void cumulative_of_nothing(bn_scene *s)
{
    s->args.cumulative = true;
}
static void short_residual(bn_scene *s)
{
    s->tresidual.view.shape[0] = 2;
}
static void no_rstd(bn_scene *s)
{
    s->args.rstd = NULL;
}

static void batch_norm_refuses_what_does_not_fit(void **state)
{
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
        refuse(integer_input, backward, ATTO_E_DTYPE, "x is i32");
        refuse(a_vector, backward, ATTO_E_SHAPE, "x has rank 1");
        refuse(negative_eps, backward, ATTO_E_ARGUMENT, "eps is -1");
        refuse(nan_momentum, backward, ATTO_E_ARGUMENT, "momentum is");
        refuse(short_weight, backward, ATTO_E_SHAPE, "w is [4]|expected [5]");
        refuse(narrow_bias, backward, ATTO_E_DTYPE, "b is f16");
        refuse(short_rstd, backward, ATTO_E_SHAPE, "rstd is [4]");
        refuse(unknown_act, backward, ATTO_E_ARGUMENT, "batch_norm");
        refuse(short_residual, backward, ATTO_E_SHAPE, "residual is [2,5,2]");
    }
    refuse(no_variance, false, ATTO_E_NULL, "running_var is NULL");
    refuse(eval_of_nothing, false, ATTO_E_NULL, "running_mean is NULL");
    refuse(cumulative_of_nothing, false, ATTO_E_NULL, "batches is NULL");
    refuse(no_rstd, true, ATTO_E_NULL, "rstd is NULL");
}

/* ---- modules ---- */

static atto_status note_buffer(void *data, const char *key, const atto_tensor *t)
{
    strcat(data, key);
    strcat(data, t->dtype == ATTO_I64 ? "(i64) " : " ");
    return ATTO_OK;
}

static atto_status note_param(void *data, const char *key, atto_param *p)
{
    (void)p;
    strcat(data, key);
    strcat(data, " ");
    return ATTO_OK;
}

static void batch_norm_modules_have_pytorchs_state(void **state)
{
    (void)state;
    atto_module *m, *net;
    char keys[256] = "";
    MUST(atto_batch_norm2d_create(test_dev, 4, NULL, &m));
    MUST(atto_sequential_create(test_dev, &net));
    MUST(atto_sequential_add(net, m));
    MUST(atto_module_params(net, note_param, keys));
    MUST(atto_module_buffers(net, note_buffer, keys));
    assert_string_equal(keys, "0.weight 0.bias 0.running_mean 0.running_var "
                              "0.num_batches_tracked(i64) ");
    assert_int_equal(atto_module_param_count(net), 8);
    atto_module_free(m);
    atto_module_free(net);
    keys[0] = 0;
    const atto_batch_norm_module_options bare = { .no_affine = true, .no_running_stats = true };
    MUST(atto_batch_norm1d_create(test_dev, 4, &bare, &m));
    MUST(atto_module_params(m, note_param, keys));
    MUST(atto_module_buffers(m, note_buffer, keys));
    assert_string_equal(keys, "");
    atto_module_free(m);
}

static atto_status take_buffer(void *data, const char *key, const atto_tensor *t)
{
    atto_tensor *buffers = data;
    buffers[strcmp(key, "running_mean") == 0 ? 0 : strcmp(key, "running_var") == 0 ? 1 : 2] = *t;
    return ATTO_OK;
}

/* Three batches of training with plain means, then evaluation by them; a residual behind it. */
static void track_and_evaluate(atto_activation act)
{
    bn_scene s;
    begin(&s, &(bn_case){ .shape = atto_shape3(4, 3, 5),
                          .residual = true,
                          .dresidual = true,
                          .act = act,
                          .running = true,
                          .seed = 2000 });
    build(&s);
    atto_module *m;
    atto_tape *tape;
    atto_tensor buffers[3], got;
    int64_t batches;
    const atto_batch_norm_module_options options = { .cumulative = true, .act = act };
    MUST(atto_batch_norm1d_create(test_dev, 3, &options, &m));
    MUST(atto_tape_create(test_dev, &tape));
    MUST(atto_module_buffers(m, take_buffer, buffers));
    double mean[3] = { 0.0 }, sum[3] = { 0.0 };
    for (int batch = 0; batch < 3; batch++) {
        for (int64_t i = 0; i < s.numel; i++) {
            s.x[i] = (double)(float)(s.x[i] * 0.75 + batch);
            sum[i / 5 % 3] += s.x[i] / (3.0 * (double)s.values);
        }
        test_tensor_put(&s.tx, s.x);
        const atto_var x = atto_borrow(tape, &s.tx.view, true);
        const atto_var r = atto_borrow(tape, &s.tresidual.view, true);
        const atto_var y = atto_apply2(tape, m, x, r);
        MUST(atto_var_tensor(tape, y, &got));
        MUST(atto_tensor_copy(&s.ty.view, &got));
        MUST(atto_backward_from(tape, y, &s.tdy.view));
        MUST(atto_var_grad(tape, x, &got));
        MUST(atto_tensor_copy(&s.tdx.view, &got));
        MUST(atto_var_grad(tape, r, &got));
        MUST(atto_tensor_copy(&s.tdresidual.view, &got));
        if (batch == 0) ask_oracle(&s);
        if (batch == 0) judge(&s, &s.ty, "batch_norm", s.want.y, s.want.y_terms, NULL);
        if (batch == 0) judge(&s, &s.tdx, "batch_norm_grad", s.want.dx, s.want.dx_terms, NULL);
        if (batch == 0)
            judge(&s, &s.tdresidual, "batch_norm_grad", s.want.dz, s.want.dz_terms, NULL);
        MUST(atto_tape_end(tape));
    }
    MUST(atto_tensor_read(&buffers[2], &batches));
    assert_int_equal(batches, 3);
    float running[2][3];
    MUST(atto_tensor_read(&buffers[0], running[0]));
    MUST(atto_tensor_read(&buffers[1], running[1]));
    for (int c = 0; c < 3; c++) mean[c] = (double)running[0][c];
    for (int c = 0; c < 3; c++) assert_true(fabs(mean[c] - sum[c]) < 1e-5);
    atto_module_train(m, false);
    const atto_var x = atto_borrow(tape, &s.tx.view, false);
    const atto_var y = atto_apply(tape, m, x);
    double *values = test_doubles(s.numel);
    MUST(atto_var_tensor(tape, y, &got));
    MUST(atto_tensor_copy(&s.ty.view, &got));
    test_tensor_get(&s.ty, values);
    for (int64_t i = 0; i < s.numel; i++) {
        const int64_t c = i / 5 % 3;
        const double z = (s.x[i] - mean[c]) / sqrt((double)running[1][c] + 1e-5);
        assert_true(fabs(values[i] - oracle_act_forward(act, 0.0f, (atto_rng){ 0 }, 0, z)) < 1e-5);
    }
    free(values);
    MUST(atto_tape_end(tape));
    MUST(atto_tensor_read(&buffers[2], &batches));
    assert_int_equal(batches, 3);
    atto_tape_free(tape);
    atto_module_free(m);
    end(&s);
}

static void batch_norm_modules_track_and_evaluate(void **state)
{
    (void)state;
    track_and_evaluate(atto_gelu());
    track_and_evaluate(atto_identity());
}

/* The gradient of x where it is the residual too is the sum of both, and a leaky ReLU of slope 1 is the
 * identity: 4 roundings of terms below 8. */
static void batch_norm_adds_the_gradient_of_a_residual_once(void **state)
{
    (void)state;
    enum { N = 6 };
    const float x[N] = { 1, -1, 2, 0.5f, 3, 1 }, dy[N] = { 0.25f, -2, 1, 3, -1, 0.5f };
    const atto_activation acts[] = { atto_identity(), atto_leaky_relu(1.0f) };
    atto_tape *tape;
    atto_tensor t, upstream, got;
    float dx[N], dr[N], both[N];
    MUST(atto_tape_create(test_dev, &tape));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(3, 2), &t));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(3, 2), &upstream));
    MUST(atto_tensor_write(&t, x));
    MUST(atto_tensor_write(&upstream, dy));
    for (int i = 0; i < 2; i++) {
        float *into[] = { dx, both };
        for (int own = 0; own < 2; own++) {
            const atto_var a = atto_borrow(tape, &t, true), r = atto_borrow(tape, &t, true);
            const atto_batch_norm_options options = { .residual = own ? &a : &r,
                                                      .act = acts[i],
                                                      .training = true };
            MUST(atto_backward_from(tape, atto_batch_norm(tape, a, &options), &upstream));
            MUST(atto_var_grad(tape, a, &got));
            MUST(atto_tensor_read(&got, into[own]));
            if (own == 0) {
                MUST(atto_var_grad(tape, r, &got));
                MUST(atto_tensor_read(&got, dr));
            }
            MUST(atto_tape_end(tape));
        }
        for (int k = 0; k < N; k++) assert_true(dr[k] == dy[k]);
        for (int k = 0; k < N; k++) assert_true(fabsf(both[k] - (dx[k] + dy[k])) <= 0x1p-19f);
    }
    atto_tensor_free(&t);
    atto_tensor_free(&upstream);
    atto_tape_free(tape);
}

static void batch_norm_modules_refuse_what_does_not_fit(void **state)
{
    (void)state;
    atto_module *m;
    atto_tape *tape;
    const float data[24] = { 0.0f };
    EXPECT_FAIL(atto_batch_norm1d_create(test_dev, -1, NULL, &m), ATTO_E_SHAPE, "-1 channels");
    EXPECT_FAIL(
        atto_batch_norm2d_create(test_dev, 3, &(atto_batch_norm_module_options){ .eps = -2 }, &m),
        ATTO_E_ARGUMENT, "batch_norm2d_create|eps is -2");
    EXPECT_FAIL(atto_batch_norm2d_create(NULL, 3, NULL, &m), ATTO_E_NULL, "dev");
    EXPECT_FAIL(atto_batch_norm2d_create(test_dev, 3, NULL, NULL), ATTO_E_NULL, "m is NULL");
    MUST(atto_tape_create(test_dev, &tape));
    for (int flat = 0; flat < 2; flat++) {
        MUST(flat ? atto_batch_norm1d_create(test_dev, 3, NULL, &m)
                  : atto_batch_norm2d_create(test_dev, 3, NULL, &m));
        atto_var x =
            atto_input(tape, ATTO_F32, flat ? atto_shape4(2, 3, 2, 2) : atto_shape2(8, 3), data);
        atto_apply(tape, m, x);
        EXPECT_FAIL(atto_tape_end(tape), ATTO_E_SHAPE, "BatchNorm|expected 3 channels");
        x = atto_input(tape, ATTO_F32, flat ? atto_shape2(6, 4) : atto_shape4(3, 2, 2, 2), data);
        atto_apply(tape, m, x);
        EXPECT_FAIL(atto_tape_end(tape), ATTO_E_SHAPE, "BatchNorm|expected 3 channels");
        atto_module_free(m);
    }
    atto_tape_free(tape);
}

/* ---- a kernel that cannot be built ---- */

/* A folder with batch_norm.cl as it is, but for a kernel that does not compile. */
static void spoil_kernel(const char *folder, const char *kernel)
{
    char path[64];
    static char text[1 << 17];
    FILE *file = fopen(ATTO_CL_DIR "/batch_norm.cl", "r");
    assert_non_null(file);
    const size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    assert_in_range(n, 1, sizeof text - 2);
    snprintf(path, sizeof path, "%s/batch_norm.cl", folder);
    file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "#ifdef ATTO_KERNEL_%s\n#error no such kernel\n#endif\n%.*s", kernel, (int)n,
            text);
    fclose(file);
}

static void drop_log(void *data, atto_log_level level, const char *message)
{
    (void)data, (void)level, (void)message;
}

/* Running statistics of x = 1 everywhere, from 0, are updated once, whoever computes y. */
static void batch_norm_that_falls_back_updates_statistics_once(void **state)
{
    (void)state;
    if (!test_on_opencl()) {
        printf("           skipped: the CPU backend has no kernels\n");
        return;
    }
    char folder[] = "/tmp/atto-test-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    spoil_kernel(folder, "atto_batch_norm_apply");
    const atto_device_options options = { .kernel_dir = folder, .log = drop_log };
    atto_device *dev;
    atto_device_stats stats;
    float got[2];
    atto_tensor x, y, mean, var;
    MUST(atto_device_open(test_device_name(), &options, &dev));
    MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape3(3, 2, 5), &x));
    MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape3(3, 2, 5), &y));
    MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(2), &mean));
    MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(2), &var));
    MUST(atto_tensor_fill(&x, 1.0));
    MUST(atto_tensor_fill(&mean, 0.0));
    MUST(atto_tensor_fill(&var, 0.0));
    MUST(atto_batch_norm_forward(dev, &(struct atto_batch_norm_args){ .x = &x,
                                                                      .y = &y,
                                                                      .running_mean = &mean,
                                                                      .running_var = &var,
                                                                      .training = true,
                                                                      .momentum = 0.25f,
                                                                      .eps = 1e-5f }));
    MUST(atto_tensor_read(&mean, got));
    assert_float_equal(got[0], 0.25, 1e-6);
    MUST(atto_device_stats_get(dev, &stats));
    assert_int_equal(stats.fallbacks, 1);
    atto_tensor_free(&x);
    atto_tensor_free(&y);
    atto_tensor_free(&mean);
    atto_tensor_free(&var);
    atto_device_close(dev);
    snprintf(path, sizeof path, "%s/batch_norm.cl", folder);
    remove(path);
    rmdir(folder);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(batch_norm_matches_oracle_with_all_options),
    cmocka_unit_test(batch_norm_takes_every_activation),
    cmocka_unit_test(batch_norm_takes_any_size),
    cmocka_unit_test(batch_norm_takes_f16_and_bf16),
    cmocka_unit_test(batch_norm_takes_any_layout),
    cmocka_unit_test(batch_norm_backward_takes_another_alignment),
    cmocka_unit_test(batch_norm_takes_channels_last_without_copies),
    cmocka_unit_test(batch_norm_packs_what_lies_otherwise),
    cmocka_unit_test(batch_norm_has_both_variances),
    cmocka_unit_test(batch_norm_keeps_the_digits_of_a_large_mean),
    cmocka_unit_test(batch_norm_keeps_the_digits_of_many_rows),
    cmocka_unit_test(batch_norm_merges_close_means),
    cmocka_unit_test(batch_norm_of_one_large_image_is_exact),
    cmocka_unit_test(batch_norm_refuses_one_value_in_training),
    cmocka_unit_test(batch_norm_of_no_values),
    cmocka_unit_test(batch_norm_of_infinite_channels_is_ieee),
    cmocka_unit_test(batch_norm_repeats_bit_for_bit),
    cmocka_unit_test(batch_norm_in_a_steady_state_costs_launches_only),
    cmocka_unit_test(batch_norm_refuses_what_does_not_fit),
    cmocka_unit_test(batch_norm_that_falls_back_updates_statistics_once),
    cmocka_unit_test(batch_norm_modules_have_pytorchs_state),
    cmocka_unit_test(batch_norm_modules_track_and_evaluate),
    cmocka_unit_test(batch_norm_adds_the_gradient_of_a_residual_once),
    cmocka_unit_test(batch_norm_modules_refuse_what_does_not_fit),
};
TEST_MAIN("batch_norm", tests)
