/* SPDX-License-Identifier: MIT */
/* Pointwise losses, forward and backward: the double oracle decides, on every backend. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"
#include "oracle_loss.h"

/* ---- one case ---- */

typedef struct loss_case {
    atto_loss_kind kind;
    atto_shape x, target;               /* rank 0, size 0: target like x */
    bool scalar_target;                 /* target is [] */
    atto_dtype dtype;                   /* 0 = f32 */
    atto_dtype weight, pos;             /* 0 = none */
    atto_shape weight_shape, pos_shape; /* rank 0: like x */
    atto_reduction reduction;
    float threshold; /* 0 = 1 */
    bool zero_threshold;
    test_layout layout;        /* of x and target */
    test_layout target_layout; /* if it is another one than dense */
    test_layout out_layout;    /* of dx and dtarget, likewise */
    bool add;
    int only; /* 1: dx, 2: dtarget; 0: both */
    uint64_t seed;
} loss_case;

/* A case with its data and tensors. */
typedef struct loss_scene {
    loss_case c;
    atto_shape full, loss;
    int64_t numel; /* of full */
    double number;
    double *x, *target, *weight, *pos, *dloss, *old_x, *old_target;
    test_tensor tx, ttarget, tweight, tpos, tloss, tdloss, tdx, tdtarget;
    struct atto_loss_args args;
} loss_scene;

static int64_t numel_of(atto_shape s)
{
    int64_t n = 1;
    for (int32_t d = 0; d < s.rank; d++) n *= s.dim[d];
    return n;
}

static atto_shape together(atto_shape a, atto_shape b)
{
    atto_shape out = { a.rank > b.rank ? a.rank : b.rank, { 0 } };
    for (int32_t d = 0; d < out.rank; d++) {
        const int32_t da = d - (out.rank - a.rank), db = d - (out.rank - b.rank);
        const int64_t size_a = da >= 0 ? a.dim[da] : 1, size_b = db >= 0 ? b.dim[db] : 1;
        out.dim[d] = size_a == 1 ? size_b : size_a;
    }
    return out;
}

/* Which element of a tensor stands behind element i of the full shape. */
static int64_t behind(atto_shape own, atto_shape full, int64_t i)
{
    int64_t index = 0, stride = 1;
    for (int32_t d = full.rank - 1; d >= 0; d--) {
        const int64_t at = i % full.dim[d];
        const int32_t mine = d - (full.rank - own.rank);
        i /= full.dim[d];
        if (mine < 0) continue;
        if (own.dim[mine] != 1) index += at * stride;
        stride *= own.dim[mine];
    }
    return index;
}

/* Ranges in which the loss makes sense; some targets equal x or are 0. */
static void draw(loss_scene *s)
{
    loss_case *c = &s->c;
    const bool kl = c->kind == ATTO_LOSS_KL_DIV || c->kind == ATTO_LOSS_KL_DIV_LOG;
    const bool shares = c->kind == ATTO_LOSS_BCE_WITH_LOGITS || c->kind == ATTO_LOSS_KL_DIV;
    const int64_t nx = numel_of(c->x), nt = numel_of(c->target);
    s->x = test_doubles(nx), s->target = test_doubles(nt);
    s->old_x = test_doubles(nx), s->old_target = test_doubles(nt);
    s->weight = test_doubles(numel_of(c->weight_shape));
    s->pos = test_doubles(numel_of(c->pos_shape));
    s->dloss = test_doubles(numel_of(s->loss));
    test_uniform(c->seed + 1, kl ? -6.0 : -4.0, kl ? 0.0 : 4.0, c->dtype, s->x, nx);
    test_uniform(c->seed + 2,
                 shares ? 0.0
                 : kl   ? -6.0
                        : -4.0,
                 shares ? 1.0
                 : kl   ? 0.0
                        : 4.0,
                 c->dtype, s->target, nt);
    test_uniform(c->seed + 3, -1.0, 1.0, c->dtype, s->old_x, nx);
    test_uniform(c->seed + 4, -1.0, 1.0, c->dtype, s->old_target, nt);
    test_uniform(c->seed + 5, -2.0, 2.0, ATTO_F32, s->dloss, numel_of(s->loss));
    if (c->weight)
        test_uniform(c->seed + 6, 0.25, 2.0, c->weight, s->weight, numel_of(c->weight_shape));
    if (c->pos) test_uniform(c->seed + 7, 0.25, 4.0, c->pos, s->pos, numel_of(c->pos_shape));
    for (int64_t i = 0; nx > 0 && i < nt; i += 7)
        s->target[i] = shares ? (double)(i % 2) : s->x[i % nx];
}

static void begin(loss_scene *s, const loss_case *c)
{
    memset(s, 0, sizeof *s);
    s->c = *c;
    if (s->c.target.rank == 0 && !c->scalar_target) s->c.target = c->x;
    if (s->c.weight_shape.rank == 0) s->c.weight_shape = c->x;
    if (s->c.pos_shape.rank == 0) s->c.pos_shape = c->x;
    if (!s->c.dtype) s->c.dtype = ATTO_F32;
    if (s->c.threshold == 0.0f && !c->zero_threshold) s->c.threshold = 1.0f;
    s->full = together(c->x, s->c.target);
    s->loss = c->reduction == ATTO_REDUCTION_NONE ? s->full : atto_shape0();
    s->numel = numel_of(s->full);
    s->number = c->kind == ATTO_LOSS_BCE_WITH_LOGITS ? 1.0 : (double)s->c.threshold;
    draw(s);
}

static void make(test_tensor *t, atto_dtype dtype, atto_shape shape, test_layout layout,
                 const double *values, const atto_tensor **slot)
{
    test_tensor_make(t, test_dev, dtype, shape, layout);
    if (values) test_tensor_put(t, values);
    *slot = &t->view;
}

static void build(loss_scene *s)
{
    const loss_case *c = &s->c;
    struct atto_loss_args *a = &s->args;
    const test_layout target = c->target_layout ? c->target_layout : c->layout;
    const test_layout out = c->out_layout ? c->out_layout : c->layout;
    make(&s->tx, c->dtype, c->x, c->layout, s->x, &a->x);
    make(&s->ttarget, c->dtype, c->target, target, s->target, &a->target);
    if (c->weight) make(&s->tweight, c->weight, c->weight_shape, c->layout, s->weight, &a->weight);
    if (c->pos) make(&s->tpos, c->pos, c->pos_shape, c->layout, s->pos, &a->pos_weight);
    make(&s->tloss, ATTO_F32, s->loss, c->layout, NULL, &a->loss);
    make(&s->tdloss, ATTO_F32, s->loss, c->layout, s->dloss, &a->dloss);
    make(&s->tdx, c->dtype, c->x, out, c->add ? s->old_x : NULL, &a->dx);
    make(&s->tdtarget, c->dtype, c->target, out, c->add ? s->old_target : NULL, &a->dtarget);
    if (c->only == 1) a->dtarget = NULL;
    if (c->only == 2) a->dx = NULL;
    a->add_dx = a->add_dtarget = c->add;
    a->kind = c->kind;
    a->reduction = c->reduction;
    a->threshold = c->threshold;
}

static void end(loss_scene *s)
{
    test_tensor *tensors[] = { &s->tx,    &s->ttarget, &s->tweight, &s->tpos,
                               &s->tloss, &s->tdloss,  &s->tdx,     &s->tdtarget };
    double *arrays[] = { s->x, s->target, s->weight, s->pos, s->dloss, s->old_x, s->old_target };
    for (int i = 0; i < COUNT_OF(tensors); i++) test_tensor_drop(tensors[i]);
    for (int i = 0; i < COUNT_OF(arrays); i++) free(arrays[i]);
}

/* ---- judgement ---- */

/* Operands of element i of the full shape. */
typedef struct element {
    double x, t, a, w;
} element;

static element element_at(const loss_scene *s, int64_t i)
{
    const loss_case *c = &s->c;
    return (element){ s->x[behind(c->x, s->full, i)], s->target[behind(c->target, s->full, i)],
                      c->pos ? s->pos[behind(c->pos_shape, s->full, i)] : s->number,
                      c->weight ? s->weight[behind(c->weight_shape, s->full, i)] : 1.0 };
}

static double divisor_of(const loss_scene *s)
{
    if (s->c.reduction == ATTO_REDUCTION_MEAN) return (double)s->numel;
    return s->c.reduction == ATTO_REDUCTION_BATCH_MEAN && s->c.x.rank > 0 ? (double)s->c.x.dim[0]
                                                                          : 1.0;
}

static test_about about_of(const loss_scene *s, const char *op, const test_tensor *t)
{
    const atto_shape shape = atto_shape_of(t->view.rank, t->view.shape);
    return (test_about){ op, test_layout_name(s->c.layout), t->view.dtype, shape, s->c.seed };
}

/* Additions in a row, at most; docs/numerics.md counts 76 on OpenCL and 88 on the CPU. */
static int64_t depth(int64_t n)
{
    return n < 128 ? n : 128;
}

static void judge_loss(const loss_scene *s)
{
    const char *op = atto_loss_name(s->c.kind);
    const bool none = s->c.reduction == ATTO_REDUCTION_NONE;
    const test_about about = about_of(s, op, &s->tloss);
    double *got = test_doubles(s->tloss.numel), *want = test_doubles(s->tloss.numel);
    double *terms = test_doubles(s->tloss.numel);
    test_tensor_get(&s->tloss, got);
    for (int64_t i = 0; i < s->numel; i++) {
        const element e = element_at(s, i);
        const oracle_sum one = oracle_loss(s->c.kind, e.x, e.t, e.a, e.w);
        want[none ? i : 0] += one.value / divisor_of(s);
        terms[none ? i : 0] += one.terms / divisor_of(s);
    }
    for (int64_t i = 0; i < s->tloss.numel; i++) /* a division 5 */
        terms[i] = isfinite(want[i])
                       ? atto_tol(op, ATTO_F32, none ? 1 : depth(s->numel) + 5, terms[i])
                       : 0.0;
    expect_close(&about, got, want, terms, s->tloss.numel);
    free(got), free(want), free(terms);
}

static void judge_gradient(const loss_scene *s, bool of_target)
{
    const test_tensor *t = of_target ? &s->tdtarget : &s->tdx;
    const atto_shape own = of_target ? s->c.target : s->c.x;
    const double *old = of_target ? s->old_target : s->old_x;
    char op[32];
    snprintf(op, sizeof op, "%s_grad", atto_loss_name(s->c.kind));
    const test_about about = about_of(s, op, t);
    const bool none = s->c.reduction == ATTO_REDUCTION_NONE;
    const int64_t repeats = t->numel > 0 ? s->numel / t->numel : 0;
    double *got = test_doubles(t->numel), *want = test_doubles(t->numel);
    double *terms = test_doubles(t->numel);
    test_tensor_get(t, got);
    for (int64_t i = 0; i < s->numel; i++) {
        const element e = element_at(s, i);
        const double g = s->dloss[none ? i : 0] / divisor_of(s);
        const oracle_sum one = oracle_loss_grad(s->c.kind, of_target, e.x, e.t, e.a, e.w, g);
        want[behind(own, s->full, i)] += one.value;
        terms[behind(own, s->full, i)] += one.terms;
    }
    for (int64_t i = 0; i < t->numel; i++) {
        const double kept = s->c.add ? old[i] : 0.0;
        want[i] += kept;
        terms[i] = isfinite(want[i])
                       ? atto_tol(op, t->view.dtype, repeats + s->c.add, terms[i] + fabs(kept))
                       : 0.0;
    }
    expect_close(&about, got, want, terms, t->numel);
    free(got), free(want), free(terms);
}

static void expect_inputs_untouched(const loss_scene *s)
{
    assert_true(test_tensor_untouched(&s->tx) && test_tensor_untouched(&s->ttarget));
    assert_true(test_tensor_untouched(&s->tweight) && test_tensor_untouched(&s->tpos));
    assert_true(test_tensor_untouched(&s->tdloss));
}

static void judge(const loss_scene *s)
{
    judge_loss(s);
    if (s->c.only != 2) judge_gradient(s, false);
    if (s->c.only != 1) judge_gradient(s, true);
    if (s->c.only) assert_true(test_tensor_untouched(s->c.only == 1 ? &s->tdtarget : &s->tdx));
    expect_inputs_untouched(s);
}

static void run_scene(loss_scene *s)
{
    MUST(atto_loss_forward(test_dev, &s->args));
    MUST(atto_loss_backward(test_dev, &s->args));
}

static void check(const loss_case *c)
{
    loss_scene s;
    begin(&s, c);
    build(&s);
    run_scene(&s);
    judge(&s);
    end(&s);
}

/* A device that plays another one has to build every kernel again: a third of the cases will do. */
static int case_step(void)
{
    return test_on_opencl() && test_in_disguise() ? 3 : 1;
}

/* Where kernels take long to build, some kinds stand for all: L1, Huber and KL_DIV_LOG. */
static int kind_step(void)
{
    return test_on_opencl() && test_in_disguise() ? 3 : 1;
}

/* ---- every combination of options ---- */

static const atto_reduction reductions[] = { ATTO_REDUCTION_MEAN, ATTO_REDUCTION_SUM,
                                             ATTO_REDUCTION_NONE, ATTO_REDUCTION_BATCH_MEAN };

static void loss_of_every_kind_matches_oracle(void **state)
{
    (void)state;
    const float thresholds[] = { 1.0f, 0.25f, 3.0f };
    for (int kind = 0; kind < ATTO_LOSS_COUNT; kind += kind_step())
        for (int r = 0; r < 4; r++)
            for (int add = 0; add < 2; add++)
                for (int i = 0; i < 3; i++)
                    check(&(loss_case){ .kind = (atto_loss_kind)kind,
                                        .x = i == 2 ? atto_shape1(3) : atto_shape2(7, 33),
                                        .reduction = reductions[r],
                                        .threshold = thresholds[i],
                                        .add = add == 1,
                                        .seed = 100 + (uint64_t)(kind * 8 + r) });
}

/* Weights like x, of the last dimension, of the first, and one number. */
static void bce_with_logits_takes_weights(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape2(5, 12), atto_shape1(12), atto_shape2(5, 1),
                                  atto_shape2(1, 1) };
    for (int which = 1; which < 4; which++)
        for (int r = 0; r < 4; r++)
            for (int i = 0; i < 4; i++) {
                if (test_on_opencl() && (which + i) % 4 != r) continue; /* likewise */
                check(&(loss_case){ .kind = ATTO_LOSS_BCE_WITH_LOGITS,
                                    .x = atto_shape2(5, 12),
                                    .weight = which & 1 ? ATTO_F32 : (atto_dtype)0,
                                    .pos = which & 2 ? ATTO_F32 : (atto_dtype)0,
                                    .weight_shape = shapes[i],
                                    .pos_shape = shapes[(i + r) % 4],
                                    .reduction = reductions[r],
                                    .add = i % 2 == 1,
                                    .seed = 200 + (uint64_t)i });
            }
}

/* ---- sizes ---- */

static const int64_t sizes[] = { 1,    2,    3,    4,     5,     7,     8,     31,     33,    63,
                                 65,   127,  129,  217,   255,   257,   1023,  1024,   1025,  2049,
                                 4095, 4097, 8191, 16384, 16387, 32771, 70001, 100003, 400009 };

static void loss_takes_any_size(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(sizes); i += case_step())
        for (int none = 0; none < 2; none++)
            check(&(loss_case){ .kind = ATTO_LOSS_HUBER,
                                .x = atto_shape1(sizes[i]),
                                .layout = i % 3 == 2 ? LAYOUT_OFFSET : LAYOUT_DENSE,
                                .reduction = none ? ATTO_REDUCTION_NONE : ATTO_REDUCTION_MEAN,
                                .seed = 300 + (uint64_t)i });
}

/* Small whole numbers have exact sums: none is left out, none counts twice. */
static void loss_counts_each_element_once(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(sizes); i += case_step())
        for (int d = 0; d < 2; d++) {
            loss_scene s;
            begin(&s, &(loss_case){ .kind = ATTO_LOSS_MSE,
                                    .x = atto_shape1(sizes[i]),
                                    .dtype = d ? ATTO_BF16 : ATTO_F32,
                                    .layout = i % 4 == 3 ? LAYOUT_OFFSET4 : LAYOUT_DENSE,
                                    .reduction = ATTO_REDUCTION_SUM });
            double sum = 0.0, got;
            uint64_t seed = 7;
            for (int64_t k = 0; k < sizes[i]; k++) {
                s.x[k] = (double)(1 + test_random(&seed) % 3);
                s.target[k] = (double)(test_random(&seed) % 2) - 3.0;
                sum += (s.x[k] - s.target[k]) * (s.x[k] - s.target[k]);
            }
            build(&s);
            MUST(atto_loss_forward(test_dev, &s.args));
            test_tensor_get(&s.tloss, &got);
            assert_true(got == sum);
            end(&s);
        }
}

/* So many that a work-group has several stretches: a row that repeats. Work-groups' sums are
 * multiples of 8192, or of what divides it, so sums of them are exact. */
static void expect_count(int64_t rows, int64_t columns, bool alike)
{
    atto_tensor x, t, loss;
    float got;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(columns), &x));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(alike ? columns : rows), &t));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape0(), &loss));
    MUST(atto_tensor_fill(&x, 3.0));
    MUST(atto_tensor_fill(&t, 2.0));
    atto_tensor many_x = x, many_t = t;
    many_x.rank = many_t.rank = 2;
    many_x.shape[0] = many_t.shape[0] = rows;
    many_x.shape[1] = many_t.shape[1] = columns;
    many_x.stride[0] = 0, many_t.stride[0] = alike ? 0 : 1;
    many_x.stride[1] = 1, many_t.stride[1] = alike ? 1 : 0;
    const struct atto_loss_args a = { .kind = ATTO_LOSS_MSE,
                                      .x = &many_x,
                                      .target = &many_t,
                                      .loss = &loss,
                                      .reduction = ATTO_REDUCTION_SUM };
    MUST(atto_loss_forward(test_dev, &a));
    MUST(atto_tensor_read(&loss, &got));
    if (got != (float)(rows * columns))
        fail_msg("%.9g elements, expected %.9g", (double)got, (double)(rows * columns));
    atto_tensor_free(&x);
    atto_tensor_free(&t);
    atto_tensor_free(&loss);
}

static void loss_counts_each_of_many_elements_once(void **state)
{
    (void)state;
    for (int alike = 0; alike < 2; alike++) {
        expect_count(4097, 8192, alike == 1);
        expect_count(4100, 8192, alike == 1);
        expect_count(33, 4, alike == 1);
    }
}

/* ---- dtypes and layouts ---- */

static void loss_takes_f16_and_bf16(void **state)
{
    (void)state;
    const atto_dtype dtypes[] = { ATTO_F16, ATTO_BF16 };
    for (int kind = 0; kind < ATTO_LOSS_COUNT; kind += kind_step())
        for (int d = 0; d < 2; d++)
            for (int i = 0; i < 3; i++) {
                if (test_on_opencl() && (kind + i) % 2 != d)
                    continue; /* kernels take long to build */
                const bool bce = kind == ATTO_LOSS_BCE_WITH_LOGITS;
                const atto_dtype weight = i == 1 ? ATTO_F32 : i == 2 ? dtypes[d] : (atto_dtype)0;
                check(&(loss_case){ .kind = (atto_loss_kind)kind,
                                    .x = i == 0 ? atto_shape2(3, 37) : atto_shape2(9, 40),
                                    .dtype = dtypes[d],
                                    .weight = bce ? weight : (atto_dtype)0,
                                    .pos = bce ? weight : (atto_dtype)0,
                                    .weight_shape =
                                        i == 1 ? atto_shape1(40) : (atto_shape){ 0, { 0 } },
                                    .reduction = reductions[i],
                                    .add = i == 2,
                                    .seed = 400 + (uint64_t)(kind * 3 + i) });
            }
}

/* I9: what does not lie side by side gives what its contiguous copy would. */
static void loss_takes_any_layout(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape3(4, 3, 8), atto_shape4(2, 3, 4, 5) };
    for (int layout = 0; layout < LAYOUT_COUNT; layout += case_step())
        for (int i = 0; i < 4; i++) {
            const bool inputs_only = layout == LAYOUT_BROADCAST;
            if (inputs_only) continue; /* loss_takes_repeated_inputs */
            check(&(loss_case){ .kind = i % 2 ? ATTO_LOSS_MSE : ATTO_LOSS_KL_DIV_LOG,
                                .x = shapes[i / 2],
                                .dtype = i == 3 ? ATTO_F16 : ATTO_F32,
                                .layout = (test_layout)layout,
                                .target_layout = i == 1 ? LAYOUT_TRANSPOSED : LAYOUT_DENSE,
                                .out_layout = i == 2 ? LAYOUT_PITCHED : LAYOUT_DENSE,
                                .reduction = i % 2 ? ATTO_REDUCTION_NONE : ATTO_REDUCTION_MEAN,
                                .add = i == 3,
                                .seed = 500 + (uint64_t)layout });
        }
}

/* Inputs whose own strides are 0. */
static void loss_takes_repeated_inputs(void **state)
{
    (void)state;
    for (int r = 0; r < 3; r++) {
        loss_scene s;
        begin(&s, &(loss_case){ .kind = ATTO_LOSS_MSE,
                                .x = atto_shape2(6, 16),
                                .reduction = reductions[r],
                                .seed = 550 });
        build(&s);
        test_tensor_drop(&s.tx);
        make(&s.tx, ATTO_F32, s.c.x, LAYOUT_BROADCAST, s.x, &s.args.x);
        test_tensor_held(&s.tx, s.x);
        run_scene(&s);
        judge(&s);
        end(&s);
    }
}

/* ---- broadcasting ---- */

static const struct pair {
    atto_shape x, target;
} pairs[] = {
    { { 2, { 4, 3 } }, { 1, { 3 } } },
    { { 1, { 3 } }, { 2, { 4, 3 } } },
    { { 2, { 4, 1 } }, { 2, { 4, 40 } } },
    { { 2, { 5, 1 } }, { 2, { 1, 3 } } }, /* neither has the full shape */
    { { 2, { 1, 64 } }, { 2, { 33, 1 } } },
    { { 3, { 1, 5, 1 } }, { 3, { 2, 1, 16 } } },
    { { 4, { 2, 1, 5, 1 } }, { 3, { 3, 1, 7 } } },
    { { 6, { 2, 1, 3, 1, 2, 1 } }, { 6, { 1, 2, 1, 3, 1, 2 } } }, /* too many dimensions to walk */
    { { 5, { 2, 3, 2, 3, 2 } }, { 5, { 1, 3, 1, 3, 1 } } },
    { { 2, { 300, 1 } }, { 1, { 200 } } },
};

static void loss_broadcasts(void **state)
{
    (void)state;
    const atto_loss_kind kinds[] = { ATTO_LOSS_MSE, ATTO_LOSS_KL_DIV, ATTO_LOSS_SMOOTH_L1 };
    for (int i = 0; i < COUNT_OF(pairs); i += case_step())
        for (int r = 0; r < 4; r++)
            check(&(loss_case){ .kind = kinds[test_on_opencl() ? i % 2 : (i + r) % 3],
                                .x = pairs[i].x,
                                .target = pairs[i].target,
                                .dtype = i % 4 == 2 ? ATTO_F16 : ATTO_F32,
                                .reduction = reductions[r],
                                .add = r % 2 == 1,
                                .only = (i + r) % 3,
                                .seed = 600 + (uint64_t)i });
}

static void loss_broadcasts_a_number(void **state)
{
    (void)state;
    for (int r = 0; r < 4; r++) {
        check(&(loss_case){ .kind = ATTO_LOSS_MSE,
                            .x = atto_shape2(4, 40),
                            .scalar_target = true,
                            .reduction = reductions[r],
                            .seed = 650 });
        check(&(loss_case){ .kind = ATTO_LOSS_MSE,
                            .x = atto_shape0(),
                            .scalar_target = true,
                            .reduction = reductions[r],
                            .seed = 651 });
    }
}

/* Broadcasting costs no copies. */
static void loss_broadcasts_without_hidden_copies(void **state)
{
    (void)state;
    loss_scene s;
    atto_device_stats before, after;
    begin(&s, &(loss_case){ .kind = ATTO_LOSS_MSE,
                            .x = atto_shape2(5, 1),
                            .target = atto_shape2(1, 16),
                            .seed = 660 });
    build(&s);
    MUST(atto_device_stats_get(test_dev, &before));
    run_scene(&s);
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.hidden_copies, before.hidden_copies);
    judge(&s);
    end(&s);
}

static void loss_gives_each_gradient_alone(void **state)
{
    (void)state;
    for (int kind = 0; kind < ATTO_LOSS_COUNT; kind += test_on_opencl() ? 2 : 1)
        for (int only = 1; only < 3; only++)
            check(&(loss_case){ .kind = (atto_loss_kind)kind,
                                .x = atto_shape2(5, 33),
                                .only = only,
                                .add = only == 2,
                                .seed = 700 });
}

/* ---- values ---- */

/* Loss and gradients of single elements, dloss = 1: x, t, loss, dx, dtarget a row. */
static void expect_rows(atto_loss_kind kind, float threshold, int n, const float (*rows)[5])
{
    double x[32], t[32], one[32], want[3][32], got[32];
    for (int i = 0; i < n; i++) {
        x[i] = (double)rows[i][0], t[i] = (double)rows[i][1], one[i] = 1.0;
        for (int k = 0; k < 3; k++) want[k][i] = (double)rows[i][2 + k];
    }
    struct atto_loss_args a;
    memset(&a, 0, sizeof a);
    a.kind = kind;
    a.threshold = threshold;
    a.reduction = ATTO_REDUCTION_NONE;
    test_tensor all[6];
    const atto_shape shape = atto_shape1(n);
    make(&all[0], ATTO_F32, shape, LAYOUT_DENSE, x, &a.x);
    make(&all[1], ATTO_F32, shape, LAYOUT_DENSE, t, &a.target);
    make(&all[2], ATTO_F32, shape, LAYOUT_DENSE, one, &a.dloss);
    make(&all[3], ATTO_F32, shape, LAYOUT_DENSE, NULL, &a.loss);
    make(&all[4], ATTO_F32, shape, LAYOUT_DENSE, NULL, &a.dx);
    make(&all[5], ATTO_F32, shape, LAYOUT_DENSE, NULL, &a.dtarget);
    MUST(atto_loss_forward(test_dev, &a));
    MUST(atto_loss_backward(test_dev, &a));
    for (int k = 0; k < 3; k++) {
        const test_about about = { atto_loss_name(kind),
                                   k == 0   ? "loss"
                                   : k == 1 ? "dx"
                                            : "dtarget",
                                   ATTO_F32, shape, 0 };
        double allowed[32];
        for (int i = 0; i < n; i++)
            allowed[i] = isfinite(want[k][i]) ? 0x1p-22 * fabs(want[k][i]) : 0.0;
        test_tensor_get(&all[3 + k], got);
        expect_close(&about, got, want[k], allowed, n);
    }
    for (int i = 0; i < 6; i++) test_tensor_drop(&all[i]);
}

#define ROWS(rows) COUNT_OF(rows), rows

/* G13: the threshold is one of |d|. */
static void loss_thresholds_take_the_magnitude(void **state)
{
    (void)state;
    const float smooth[][5] = { { -3, 0, 2.5f, -1, 1 }, { 3, 0, 2.5f, 1, -1 } };
    const float huber1[][5] = { { -3, 0, 2.5f, -1, 1 }, { 3, 0, 2.5f, 1, -1 } };
    const float huber2[][5] = { { -3, 0, 4, -2, 2 }, { 3, 0, 4, 2, -2 } };
    expect_rows(ATTO_LOSS_SMOOTH_L1, 1.0f, ROWS(smooth));
    expect_rows(ATTO_LOSS_HUBER, 1.0f, ROWS(huber1));
    expect_rows(ATTO_LOSS_HUBER, 2.0f, ROWS(huber2));
}

static void loss_at_its_kinks_is_pytorchs(void **state)
{
    (void)state;
    const float l1[][5] = { { 2, 2, 0, 0, 0 }, { -0.0f, 0, 0, 0, 0 }, { 1, 3, 2, -1, 1 } };
    const float zero[][5] = { { 2, 2, 0, 0, 0 }, { 1, 3, 2, -1, 1 }, { 1e-30f, 0, 1e-30f, 1, -1 } };
    const float smooth[][5] = { { 0.5f, 0, 0.25f, 1, -1 },
                                { 0, 0.5f, 0.25f, -1, 1 },
                                { 0, 0, 0, 0, 0 },
                                { 0.25f, 0, 0.0625f, 0.5f, -0.5f } };
    const float huber[][5] = { { 2, 0, 2, 2, -2 }, { 0, 2, 2, -2, 2 }, { 0, 0, 0, 0, 0 } };
    expect_rows(ATTO_LOSS_L1, 0.0f, ROWS(l1));
    expect_rows(ATTO_LOSS_SMOOTH_L1, 0.0f, ROWS(zero));
    expect_rows(ATTO_LOSS_SMOOTH_L1, 0.5f, ROWS(smooth));
    expect_rows(ATTO_LOSS_HUBER, 2.0f, ROWS(huber));
}

/* No logit is too large; both tails keep their digits. */
static void bce_with_logits_of_huge_logits_is_exact(void **state)
{
    (void)state;
    const float tail = 4.248354255e-18f; /* e^-40 */
    const float rows[][5] = { { 1e4f, 1, 0, 0, -1e4f },         { 1e4f, 0, 1e4f, 1, -1e4f },
                              { -1e4f, 0, 0, 0, 1e4f },         { -1e4f, 1, 1e4f, -1, 1e4f },
                              { 40, 1, tail, -tail, -40 },      { -40, 0, tail, tail, 40 },
                              { 0, 1, 0.693147181f, -0.5f, 0 }, { 3e38f, 0, 3e38f, 1, -3e38f } };
    expect_rows(ATTO_LOSS_BCE_WITH_LOGITS, 0.0f, ROWS(rows));
}

static void kl_div_of_certain_targets_is_finite(void **state)
{
    (void)state;
    const float rows[][5] = { { -3, 0, 0, 0, 0 }, { -3, 1, 3, -1, 4 }, { 0, 1, 0, -1, 1 } };
    const float logs[][5] = { { -3, 0, 3, -1, 4 }, { -1, -200, 0, 0, 0 } };
    expect_rows(ATTO_LOSS_KL_DIV, 0.0f, ROWS(rows));
    expect_rows(ATTO_LOSS_KL_DIV_LOG, 0.0f, ROWS(logs));
}

/* F7: as PyTorch has it, except that a certain target beside an infinite logit of its own side
 * gives the limit. */
static void loss_of_nan_and_infinity_is_ieee(void **state)
{
    (void)state;
    const float inf = INFINITY;
    const float l1[][5] = { { NAN, 1, NAN, 0, 0 },
                            { 1, NAN, NAN, 0, 0 },
                            { inf, 1, inf, 1, -1 },
                            { 1, inf, inf, -1, 1 },
                            { inf, inf, NAN, 0, 0 } };
    const float mse[][5] = { { NAN, 1, NAN, NAN, NAN },
                             { inf, 1, inf, inf, -inf },
                             { inf, inf, NAN, NAN, NAN } };
    const float smooth[][5] = { { NAN, 1, NAN, NAN, NAN },
                                { inf, 1, inf, 1, -1 },
                                { -inf, 1, inf, -1, 1 } };
    const float bce[][5] = { { NAN, 1, NAN, NAN, NAN },
                             { inf, 0, inf, 1, -inf },
                             { -inf, 1, inf, -1, inf },
                             { inf, 1, NAN, 0, -inf } };
    const float kl[][5] = { { NAN, 0.5f, NAN, -0.5f, NAN },
                            { -inf, 0, NAN, 0, 0 },
                            { -inf, 0.5f, inf, -0.5f, inf },
                            { -1, NAN, NAN, NAN, NAN },
                            { -1, -1, NAN, 1, NAN } };
    expect_rows(ATTO_LOSS_L1, 0.0f, ROWS(l1));
    expect_rows(ATTO_LOSS_MSE, 0.0f, ROWS(mse));
    expect_rows(ATTO_LOSS_SMOOTH_L1, 1.0f, ROWS(smooth));
    expect_rows(ATTO_LOSS_HUBER, 1.0f, ROWS(smooth));
    expect_rows(ATTO_LOSS_BCE_WITH_LOGITS, 0.0f, ROWS(bce));
    expect_rows(ATTO_LOSS_KL_DIV, 0.0f, ROWS(kl));
}

/* One NaN in many is not lost in a sum. */
static void loss_sums_propagate_nan(void **state)
{
    (void)state;
    const int64_t at[] = { 0, 4096, 9000, 20000 };
    for (int i = 0; i < COUNT_OF(at); i++) {
        loss_scene s;
        double got;
        begin(&s, &(loss_case){ .kind = ATTO_LOSS_MSE, .x = atto_shape1(20001), .seed = 800 });
        s.x[at[i]] = (double)NAN;
        build(&s);
        MUST(atto_loss_forward(test_dev, &s.args));
        test_tensor_get(&s.tloss, &got);
        assert_true(isnan(got));
        end(&s);
    }
}

/* I1 and M6: the mean over nothing is NaN, the sum 0; gradients of what was repeated no times are
 * 0. */
static void loss_of_nothing(void **state)
{
    (void)state;
    const struct {
        atto_shape x, target;
        bool batch_is_nan;
    } rows[] = { { { 2, { 0, 5 } }, { 2, { 0, 5 } }, true },
                 { { 2, { 5, 0 } }, { 2, { 5, 0 } }, false },
                 { { 2, { 1, 5 } }, { 2, { 0, 5 } }, false },
                 { { 2, { 0, 1 } }, { 1, { 4 } }, true } };
    for (int i = 0; i < COUNT_OF(rows); i++)
        for (int r = 0; r < 4; r++) {
            loss_scene s;
            double loss = 0.0, d[8];
            begin(&s, &(loss_case){ .kind = ATTO_LOSS_L1,
                                    .x = rows[i].x,
                                    .target = rows[i].target,
                                    .reduction = reductions[r] });
            build(&s);
            run_scene(&s);
            const bool nan = reductions[r] == ATTO_REDUCTION_MEAN ||
                             (reductions[r] == ATTO_REDUCTION_BATCH_MEAN && rows[i].batch_is_nan);
            test_tensor_get(&s.tloss, &loss);
            if (reductions[r] != ATTO_REDUCTION_NONE) assert_true(nan ? isnan(loss) : loss == 0.0);
            test_tensor_get(&s.tdx, d);
            for (int64_t k = 0; k < s.tdx.numel; k++) assert_true(d[k] == 0.0);
            test_tensor_get(&s.tdtarget, d);
            for (int64_t k = 0; k < s.tdtarget.numel; k++) assert_true(d[k] == 0.0);
            end(&s);
        }
}

/* Huber is delta times the smooth L1 of beta = delta. */
static void huber_is_delta_times_smooth_l1(void **state)
{
    (void)state;
    loss_scene huber, smooth;
    double a[64], b[64];
    const loss_case c = { .kind = ATTO_LOSS_HUBER,
                          .x = atto_shape1(64),
                          .threshold = 0.5f,
                          .reduction = ATTO_REDUCTION_NONE,
                          .seed = 850 };
    loss_case other = c;
    other.kind = ATTO_LOSS_SMOOTH_L1;
    begin(&huber, &c), begin(&smooth, &other);
    build(&huber), build(&smooth);
    run_scene(&huber), run_scene(&smooth);
    test_tensor_get(&huber.tloss, a), test_tensor_get(&smooth.tloss, b);
    for (int i = 0; i < 64; i++) assert_true(fabs(a[i] - 0.5 * b[i]) <= 16 * 0x1p-24 * a[i]);
    end(&huber), end(&smooth);
}

/* ---- repeatability ---- */

/* J1 */
static void loss_repeats_bit_for_bit(void **state)
{
    (void)state;
    loss_scene s;
    begin(&s,
          &(loss_case){
              .kind = ATTO_LOSS_BCE_WITH_LOGITS, .x = atto_shape1(70001), .only = 1, .seed = 900 });
    build(&s);
    uint64_t loss[2], *dx = calloc((size_t)s.numel, sizeof *dx);
    uint64_t *again = calloc((size_t)s.numel, sizeof *again);
    run_scene(&s);
    test_tensor_bits(&s.tloss, &loss[0]);
    test_tensor_bits(&s.tdx, dx);
    for (int run = 0; run < 50; run++) {
        run_scene(&s);
        test_tensor_bits(&s.tloss, &loss[1]);
        test_tensor_bits(&s.tdx, again);
        assert_true(loss[0] == loss[1]);
        assert_memory_equal(dx, again, (size_t)s.numel * sizeof *dx);
    }
    free(dx), free(again);
    end(&s);
}

/* Forward and backward of a step allocate nothing and copy nothing; a small sum is one launch, a
 * large one two, backward one. */
static void loss_in_a_steady_state_costs_launches_only(void **state)
{
    (void)state;
    for (int large = 0; large < 2; large++) {
        loss_scene s;
        atto_device_stats before, after;
        begin(&s, &(loss_case){ .kind = ATTO_LOSS_MSE, .x = atto_shape1(large ? 20000 : 100) });
        build(&s);
        for (int i = 0; i < 5; i++) {
            if (i == 2) MUST(atto_device_stats_get(test_dev, &before));
            run_scene(&s);
        }
        MUST(atto_device_stats_get(test_dev, &after));
        assert_int_equal(after.allocations, before.allocations);
        assert_int_equal(after.hidden_copies, before.hidden_copies);
        assert_int_equal(after.blocking_calls, before.blocking_calls);
        assert_int_equal(after.launches - before.launches, 3 * (large && test_on_opencl() ? 3 : 2));
        end(&s);
    }
}

/* ---- what is refused ---- */

/* Makes one change to a good call of 6 x 5, forward and backward. */
static void refuse(void (*spoil)(loss_scene *s), atto_loss_kind kind, bool backward,
                   atto_status status, const char *words)
{
    loss_scene s;
    const bool bce = kind == ATTO_LOSS_BCE_WITH_LOGITS;
    begin(&s, &(loss_case){ .kind = kind,
                            .x = atto_shape2(6, 5),
                            .weight = bce ? ATTO_F32 : (atto_dtype)0,
                            .pos = bce ? ATTO_F32 : (atto_dtype)0 });
    build(&s);
    spoil(&s);
    EXPECT_FAIL(backward ? atto_loss_backward(test_dev, &s.args)
                         : atto_loss_forward(test_dev, &s.args),
                status, words);
    assert_true(test_tensor_untouched(&s.tloss) && test_tensor_untouched(&s.tdx));
    end(&s);
}

static void odd_kind(loss_scene *s)
{
    s->args.kind = ATTO_LOSS_COUNT;
}
static void odd_reduction(loss_scene *s)
{
    s->args.reduction = (atto_reduction)4;
}
static void negative_threshold(loss_scene *s)
{
    s->args.threshold = -1.0f;
}
static void zero_threshold(loss_scene *s)
{
    s->args.threshold = 0.0f;
}
static void nan_threshold(loss_scene *s)
{
    s->args.threshold = NAN;
}
static void infinite_threshold(loss_scene *s)
{
    s->args.threshold = INFINITY;
}
static void integer_x(loss_scene *s)
{
    s->tx.view.dtype = ATTO_I32;
}
static void other_target(loss_scene *s)
{
    s->ttarget.view.dtype = ATTO_F16;
}
static void short_target(loss_scene *s)
{
    s->ttarget.view.shape[1] = 4;
}
static void column_target(loss_scene *s)
{
    s->ttarget.view.shape[1] = 1;
}
static void short_weight(loss_scene *s)
{
    s->tweight.view.shape[1] = 4;
}
static void other_weight(loss_scene *s)
{
    s->tweight.view.dtype = ATTO_F16;
}
static void integer_pos_weight(loss_scene *s)
{
    s->tpos.view.dtype = ATTO_I32;
}
static void stray_weight(loss_scene *s)
{
    s->args.weight = &s->ttarget.view;
}
static void stray_pos_weight(loss_scene *s)
{
    s->args.pos_weight = &s->ttarget.view;
}
static void loss_by_element(loss_scene *s)
{
    s->args.reduction = ATTO_REDUCTION_NONE;
}
static void half_loss(loss_scene *s)
{
    s->tloss.view.dtype = s->tdloss.view.dtype = ATTO_F16;
}
static void short_gradients(loss_scene *s)
{
    s->tdx.view.shape[0] = 5;
}
static void other_gradient(loss_scene *s)
{
    s->tdtarget.view.dtype = ATTO_BF16;
}

static void loss_refuses_what_does_not_fit(void **state)
{
    (void)state;
    const atto_loss_kind mse = ATTO_LOSS_MSE, smooth = ATTO_LOSS_SMOOTH_L1;
    const atto_loss_kind huber = ATTO_LOSS_HUBER, bce = ATTO_LOSS_BCE_WITH_LOGITS;
    for (int backward = 0; backward < 2; backward++) {
        const bool b = backward == 1;
        refuse(odd_kind, mse, b, ATTO_E_ARGUMENT, "7 is no loss");
        refuse(odd_reduction, mse, b, ATTO_E_ARGUMENT, "reduction is 4");
        refuse(negative_threshold, smooth, b, ATTO_E_ARGUMENT,
               "beta of smooth_l1 is -1|at least 0");
        refuse(nan_threshold, smooth, b, ATTO_E_ARGUMENT, "beta of smooth_l1");
        refuse(infinite_threshold, smooth, b, ATTO_E_ARGUMENT, "beta of smooth_l1 is inf");
        refuse(negative_threshold, huber, b, ATTO_E_ARGUMENT, "delta of huber is -1|above 0");
        refuse(zero_threshold, huber, b, ATTO_E_ARGUMENT, "delta of huber is 0");
        refuse(nan_threshold, huber, b, ATTO_E_ARGUMENT, "delta of huber");
        refuse(integer_x, mse, b, ATTO_E_DTYPE, "x is i32");
        refuse(other_target, mse, b, ATTO_E_DTYPE, "target is f16|x's f32");
        refuse(short_target, mse, b, ATTO_E_SHAPE, "target is [6,4]|x's [6,5]");
        refuse(column_target, bce, b, ATTO_E_SHAPE, "target is [6,1]|expected x's [6,5]");
        refuse(short_weight, bce, b, ATTO_E_SHAPE, "weight is [6,4]|x's [6,5]");
        refuse(other_weight, bce, b, ATTO_E_DTYPE, "weight is f16");
        refuse(integer_pos_weight, bce, b, ATTO_E_DTYPE, "pos_weight is i32");
        refuse(stray_weight, mse, b, ATTO_E_ARGUMENT, "weight is given|mse");
        refuse(stray_pos_weight, mse, b, ATTO_E_ARGUMENT, "pos_weight is given|mse");
        refuse(loss_by_element, mse, b, ATTO_E_SHAPE, "loss is []|expected [6,5]");
        refuse(half_loss, mse, b, ATTO_E_DTYPE, "loss is f16|expected f32");
    }
    refuse(short_gradients, mse, true, ATTO_E_SHAPE, "dx is [5,5]|expected [6,5]");
    refuse(other_gradient, mse, true, ATTO_E_DTYPE, "dtarget is bf16");
}

/* ---- on a tape, and as modules ---- */

/* x and target of 4 x 3 on a tape, both with gradients, through a module or a recording function;
 * gradients against the op's own. */
typedef atto_var (*record_fn)(atto_tape *tape, atto_var x, atto_var t);

static atto_var record_l1(atto_tape *tape, atto_var x, atto_var t)
{
    return atto_l1_loss(tape, x, t, NULL);
}
static atto_var record_mse(atto_tape *tape, atto_var x, atto_var t)
{
    return atto_mse_loss(tape, x, t, &(atto_loss_options){ .reduction = ATTO_REDUCTION_SUM });
}
static atto_var record_smooth_l1(atto_tape *tape, atto_var x, atto_var t)
{
    return atto_smooth_l1_loss(tape, x, t, 0.5f, NULL);
}
static atto_var record_huber(atto_tape *tape, atto_var x, atto_var t)
{
    return atto_huber_loss(tape, x, t, 0.75f, NULL);
}
static atto_var record_bce(atto_tape *tape, atto_var x, atto_var t)
{
    return atto_bce_with_logits(tape, x, t, NULL);
}
static atto_var record_kl(atto_tape *tape, atto_var x, atto_var t)
{
    return atto_kl_div(tape, x, t,
                       &(atto_kl_div_options){ .reduction = ATTO_REDUCTION_BATCH_MEAN });
}
static atto_var record_kl_log(atto_tape *tape, atto_var x, atto_var t)
{
    return atto_kl_div(tape, x, t, &(atto_kl_div_options){ .log_target = true });
}

static const struct tape_row {
    record_fn record;
    loss_case c;
} tape_rows[] = {
    { record_l1, { .kind = ATTO_LOSS_L1 } },
    { record_mse, { .kind = ATTO_LOSS_MSE, .reduction = ATTO_REDUCTION_SUM } },
    { record_smooth_l1, { .kind = ATTO_LOSS_SMOOTH_L1, .threshold = 0.5f } },
    { record_huber, { .kind = ATTO_LOSS_HUBER, .threshold = 0.75f } },
    { record_bce, { .kind = ATTO_LOSS_BCE_WITH_LOGITS } },
    { record_kl, { .kind = ATTO_LOSS_KL_DIV, .reduction = ATTO_REDUCTION_BATCH_MEAN } },
    { record_kl_log, { .kind = ATTO_LOSS_KL_DIV_LOG } },
};

static void expect_same(const test_tensor *want, const atto_tensor *got)
{
    double values[64];
    float read[64];
    test_tensor_get(want, values);
    MUST(atto_tensor_read(got, read));
    for (int64_t i = 0; i < want->numel; i++) assert_true((double)read[i] == values[i]);
}

static void loss_on_a_tape_gives_both_gradients(void **state)
{
    (void)state;
    atto_tape *tape;
    MUST(atto_tape_create(test_dev, &tape));
    for (int i = 0; i < COUNT_OF(tape_rows); i++) {
        loss_scene s;
        loss_case c = tape_rows[i].c;
        c.x = atto_shape2(4, 3);
        c.seed = 950;
        begin(&s, &c);
        s.dloss[0] = 1.0;
        build(&s);
        run_scene(&s);
        const atto_var x = atto_borrow(tape, &s.tx.view, true);
        const atto_var t = atto_borrow(tape, &s.ttarget.view, true);
        const atto_var loss = tape_rows[i].record(tape, x, t);
        atto_tensor value;
        MUST(atto_var_tensor(tape, loss, &value));
        expect_same(&s.tloss, &value);
        MUST(atto_backward(tape, loss));
        atto_tensor grad;
        MUST(atto_var_grad(tape, x, &grad));
        expect_same(&s.tdx, &grad);
        MUST(atto_var_grad(tape, t, &grad));
        expect_same(&s.tdtarget, &grad);
        MUST(atto_tape_end(tape));
        end(&s);
    }
    atto_tape_free(tape);
}

/* ---- modules ---- */

/* What the module computes for x = { 1, -2 } and t = { 0, 1 }. */
static double apply_module(atto_module *m, bool logs)
{
    const float x[] = { 1.0f, -2.0f }, t[] = { logs ? -1.0f : 0.0f, logs ? 0.0f : 1.0f };
    atto_tape *tape;
    float loss;
    MUST(atto_tape_create(test_dev, &tape));
    const atto_shape shape = atto_shape2(1, 2);
    const atto_var e = atto_apply2(tape, m, atto_input(tape, ATTO_F32, shape, x),
                                   atto_input(tape, ATTO_F32, shape, t));
    MUST(atto_var_read(tape, e, &loss));
    MUST(atto_tape_end(tape));
    atto_tape_free(tape);
    return (double)loss;
}

static void expect_module(atto_module *m, const char *name, bool logs, double want)
{
    assert_string_equal(atto_module_class_name(m), name);
    const double got = apply_module(m, logs);
    if (!(fabs(got - want) <= 1e-6 * fabs(want)))
        fail_msg("%s: %.9g, expected %.9g", name, got, want);
    atto_module_free(m);
}

static void loss_modules_have_pytorchs_defaults(void **state)
{
    (void)state;
    const double plus = log1p(exp(-1.0)) + 1.0, minus = log1p(exp(2.0));
    atto_module *m;
    MUST(atto_l1_loss_create(test_dev, NULL, &m));
    expect_module(m, "L1Loss", false, 2.0);
    MUST(atto_mse_loss_create(test_dev, NULL, &m));
    expect_module(m, "MSELoss", false, 5.0);
    MUST(atto_smooth_l1_loss_create(test_dev, 1.0f, NULL, &m));
    expect_module(m, "SmoothL1Loss", false, 1.5);
    MUST(atto_smooth_l1_loss_create(test_dev, 0.0f, NULL, &m));
    expect_module(m, "SmoothL1Loss", false, 2.0);
    MUST(atto_huber_loss_create(test_dev, 2.0f, NULL, &m));
    expect_module(m, "HuberLoss", false, 2.25);
    MUST(atto_bce_with_logits_loss_create(test_dev, NULL, &m));
    expect_module(m, "BCEWithLogitsLoss", false, (plus + minus) / 2.0);
    MUST(atto_kl_div_loss_create(test_dev, NULL, &m));
    expect_module(m, "KLDivLoss", false, 1.0);
    MUST(atto_kl_div_loss_create(
        test_dev,
        &(atto_kl_div_options){ .log_target = true, .reduction = ATTO_REDUCTION_BATCH_MEAN }, &m));
    expect_module(m, "KLDivLoss", true, 2.0 - 2.0 * exp(-1.0));
}

static void loss_modules_take_options(void **state)
{
    (void)state;
    const double plus = log1p(exp(-1.0)) + 1.0, minus = log1p(exp(2.0));
    const float weight[] = { 3.0f, 1.0f }, pos_weight[] = { 5.0f };
    const atto_loss_options sum = { .reduction = ATTO_REDUCTION_SUM };
    atto_module *m;
    MUST(atto_mse_loss_create(test_dev, &sum, &m));
    expect_module(m, "MSELoss", false, 10.0);
    MUST(atto_bce_with_logits_loss_create(test_dev,
                                          &(atto_bce_with_logits_loss_options){
                                              .weight = weight,
                                              .weight_shape = atto_shape1(2),
                                              .pos_weight = pos_weight,
                                              .pos_weight_shape = atto_shape1(1),
                                              .reduction = ATTO_REDUCTION_SUM,
                                          },
                                          &m));
    expect_module(m, "BCEWithLogitsLoss", false, 3.0 * plus + 5.0 * minus);
}

static void loss_modules_refuse_bad_options(void **state)
{
    (void)state;
    const atto_loss_options odd = { .reduction = (atto_reduction)9 };
    const atto_loss_options filled = { .reserved = { 0, 1 } };
    atto_module *m;
    EXPECT_FAIL(atto_l1_loss_create(NULL, NULL, &m), ATTO_E_NULL, "l1_loss_create: dev is NULL");
    EXPECT_FAIL(atto_mse_loss_create(test_dev, NULL, NULL), ATTO_E_NULL,
                "mse_loss_create: m is NULL");
    EXPECT_FAIL(atto_mse_loss_create(test_dev, &odd, &m), ATTO_E_ARGUMENT,
                "mse_loss_create: reduction is 9|0 to 3");
    assert_null(m);
    EXPECT_FAIL(atto_l1_loss_create(test_dev, &filled, &m), ATTO_E_ARGUMENT, "reserved[1]");
    EXPECT_FAIL(atto_smooth_l1_loss_create(test_dev, -0.5f, NULL, &m), ATTO_E_ARGUMENT,
                "smooth_l1_loss_create: beta|-0.5");
    EXPECT_FAIL(atto_huber_loss_create(test_dev, 0.0f, NULL, &m), ATTO_E_ARGUMENT,
                "huber_loss_create: delta");
}

/* Errors of a recording go to the tape. */
static void loss_on_a_tape_refuses_what_the_op_does(void **state)
{
    (void)state;
    const float v[4] = { 0 };
    atto_tape *tape;
    MUST(atto_tape_create(test_dev, &tape));
    const atto_var x = atto_input(tape, ATTO_F32, atto_shape2(2, 2), v);
    const atto_var t = atto_input(tape, ATTO_F32, atto_shape1(3), v);
    atto_mse_loss(tape, x, t, NULL);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_SHAPE, "loss_forward: target is [3]");
    const atto_var y = atto_input(tape, ATTO_F32, atto_shape2(2, 2), v);
    atto_smooth_l1_loss(tape, y, y, -1.0f, NULL);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_ARGUMENT, "beta of smooth_l1");
    atto_tape_free(tape);
}

static void loss_names_its_kinds(void **state)
{
    (void)state;
    assert_string_equal(atto_loss_name(ATTO_LOSS_L1), "l1");
    assert_string_equal(atto_loss_name(ATTO_LOSS_KL_DIV_LOG), "kl_div_log");
    assert_string_equal(atto_loss_name(ATTO_LOSS_COUNT), "?");
    assert_string_equal(atto_loss_name((atto_loss_kind)-1), "?");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(loss_of_every_kind_matches_oracle),
    cmocka_unit_test(bce_with_logits_takes_weights),
    cmocka_unit_test(loss_takes_any_size),
    cmocka_unit_test(loss_counts_each_element_once),
    cmocka_unit_test(loss_counts_each_of_many_elements_once),
    cmocka_unit_test(loss_takes_f16_and_bf16),
    cmocka_unit_test(loss_takes_any_layout),
    cmocka_unit_test(loss_takes_repeated_inputs),
    cmocka_unit_test(loss_broadcasts),
    cmocka_unit_test(loss_broadcasts_a_number),
    cmocka_unit_test(loss_broadcasts_without_hidden_copies),
    cmocka_unit_test(loss_gives_each_gradient_alone),
    cmocka_unit_test(loss_thresholds_take_the_magnitude),
    cmocka_unit_test(loss_at_its_kinks_is_pytorchs),
    cmocka_unit_test(bce_with_logits_of_huge_logits_is_exact),
    cmocka_unit_test(kl_div_of_certain_targets_is_finite),
    cmocka_unit_test(loss_of_nan_and_infinity_is_ieee),
    cmocka_unit_test(loss_sums_propagate_nan),
    cmocka_unit_test(loss_of_nothing),
    cmocka_unit_test(huber_is_delta_times_smooth_l1),
    cmocka_unit_test(loss_repeats_bit_for_bit),
    cmocka_unit_test(loss_in_a_steady_state_costs_launches_only),
    cmocka_unit_test(loss_refuses_what_does_not_fit),
    cmocka_unit_test(loss_on_a_tape_gives_both_gradients),
    cmocka_unit_test(loss_modules_have_pytorchs_defaults),
    cmocka_unit_test(loss_modules_take_options),
    cmocka_unit_test(loss_modules_refuse_bad_options),
    cmocka_unit_test(loss_on_a_tape_refuses_what_the_op_does),
    cmocka_unit_test(loss_names_its_kinds),
};
TEST_MAIN("loss", tests)
