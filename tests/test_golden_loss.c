/* SPDX-License-Identifier: MIT */
/* PyTorch's own numbers (golden/loss.txt, float64) judge the oracle of pointwise losses and of
 * nll_loss tightly, and every backend as the oracle does. */
#include <math.h>
#include <string.h>

#include "golden.h"
#include "oracle_loss.h"

/* ---- the file ---- */

#define MOST_NUMBERS 64
#define MOST_CASES   512

typedef struct golden_case {
    bool is_nll;
    int kind, reduction;
    double threshold;
    bool has_weight, has_pos, has_ignore;
    long long ignore;
    atto_shape x_shape, target_shape, full;
    int64_t outer, classes, step;            /* nll */
    int64_t nx, nt, nw, np, each, positions; /* numbers; of losses without a reduction */
    double x[MOST_NUMBERS], target[MOST_NUMBERS], weight[MOST_NUMBERS], pos[MOST_NUMBERS];
    double dloss[MOST_NUMBERS], loss[MOST_NUMBERS], dx[MOST_NUMBERS], dtarget[MOST_NUMBERS];
} golden_case;

static golden_case cases[MOST_CASES];
static int case_count;

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

static void read_pointwise(FILE *file, golden_case *c)
{
    int has_weight, has_pos;
    if (fscanf(file, "%d %d %lf %d %d", &c->kind, &c->reduction, &c->threshold, &has_weight,
               &has_pos) != 5)
        golden_malformed("options");
    c->has_weight = has_weight, c->has_pos = has_pos;
    c->x_shape = golden_shape(file);
    c->target_shape = golden_shape(file);
    c->full = together(c->x_shape, c->target_shape);
    c->nx = c->nw = golden_numel(c->x_shape), c->nt = golden_numel(c->target_shape);
    c->np = c->x_shape.rank > 0 ? c->x_shape.dim[c->x_shape.rank - 1] : 1;
    c->each = c->reduction == ATTO_REDUCTION_NONE ? golden_numel(c->full) : 1;
}

static void read_nll(FILE *file, golden_case *c)
{
    int has_weight, has_ignore;
    c->is_nll = true;
    c->x_shape = golden_shape(file);
    if (fscanf(file, "%d %d %lld %d", &c->reduction, &has_ignore, &c->ignore, &has_weight) != 4)
        golden_malformed("options");
    c->has_weight = has_weight, c->has_ignore = has_ignore;
    const int32_t at = c->x_shape.rank == 1 ? 0 : 1;
    c->outer = c->step = 1;
    for (int32_t d = 0; d < c->x_shape.rank; d++) {
        if (d < at) c->outer *= c->x_shape.dim[d];
        if (d > at) c->step *= c->x_shape.dim[d];
        if (d != at) c->target_shape.dim[c->target_shape.rank++] = c->x_shape.dim[d];
    }
    c->classes = c->nw = c->x_shape.dim[at];
    c->positions = c->nt = c->outer * c->step;
    c->nx = c->nt * c->classes;
    c->each = c->reduction == ATTO_REDUCTION_NONE ? c->nt : 1;
}

static bool read_case(FILE *file)
{
    golden_case *c = &cases[case_count];
    char kind[8];
    if (fscanf(file, " %7s", kind) != 1) return false;
    if (case_count == MOST_CASES) golden_malformed("too many cases");
    if (strcmp(kind, "nll") == 0)
        read_nll(file, c);
    else
        read_pointwise(file, c);
    golden_numbers(file, "x", c->x, c->nx);
    golden_numbers(file, "target", c->target, c->nt);
    if (c->has_weight) golden_numbers(file, "weight", c->weight, c->nw);
    if (c->has_pos) golden_numbers(file, "pos_weight", c->pos, c->np);
    golden_numbers(file, "dloss", c->dloss, c->each);
    golden_numbers(file, "loss", c->loss, c->each);
    golden_numbers(file, "dx", c->dx, c->nx);
    if (!c->is_nll) golden_numbers(file, "dtarget", c->dtarget, c->nt);
    case_count++;
    return true;
}

static int read_golden(void **state)
{
    (void)state;
    FILE *file = golden_open("loss", MOST_NUMBERS);
    if (!file) return -1;
    while (read_case(file)) {
    }
    fclose(file);
    return 0;
}

static void golden_loss_is_complete(void **state)
{
    (void)state;
    int of_kind[ATTO_LOSS_COUNT] = { 0 }, nll = 0;
    for (int i = 0; i < case_count; i++) {
        if (cases[i].is_nll)
            nll++;
        else
            of_kind[cases[i].kind]++;
        for (int64_t k = 0; k < cases[i].nx; k++)
            assert_true(isnan(cases[i].x[k]) || cases[i].x[k] == (double)(float)cases[i].x[k]);
    }
    assert_true(nll >= 120);
    for (int kind = 0; kind < ATTO_LOSS_COUNT; kind++) assert_true(of_kind[kind] >= 24);
}

/* ---- the oracle ---- */

/* Results and terms of a case. */
typedef struct answer {
    double loss[MOST_NUMBERS], loss_terms[MOST_NUMBERS];
    double dx[MOST_NUMBERS], dx_terms[MOST_NUMBERS];
    double dtarget[MOST_NUMBERS], dtarget_terms[MOST_NUMBERS];
} answer;

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

static double divisor_of(const golden_case *c)
{
    if (c->reduction == ATTO_REDUCTION_MEAN) return (double)golden_numel(c->full);
    if (c->reduction != ATTO_REDUCTION_BATCH_MEAN || c->x_shape.rank == 0) return 1.0;
    return (double)c->x_shape.dim[0];
}

static void ask_pointwise(const golden_case *c, answer *a)
{
    const bool none = c->reduction == ATTO_REDUCTION_NONE;
    const atto_loss_kind kind = (atto_loss_kind)c->kind;
    for (int64_t i = 0; i < golden_numel(c->full); i++) {
        const int64_t ix = behind(c->x_shape, c->full, i), it = behind(c->target_shape, c->full, i);
        const double x = c->x[ix], t = c->target[it], w = c->has_weight ? c->weight[ix] : 1.0;
        const double number = kind == ATTO_LOSS_BCE_WITH_LOGITS ? 1.0 : c->threshold;
        const double p = c->has_pos ? c->pos[ix % c->np] : number;
        const double g = c->dloss[none ? i : 0] / divisor_of(c);
        const oracle_sum loss = oracle_loss(kind, x, t, p, w);
        const oracle_sum dx = oracle_loss_grad(kind, false, x, t, p, w, g);
        const oracle_sum dt = oracle_loss_grad(kind, true, x, t, p, w, g);
        a->loss[none ? i : 0] += loss.value / divisor_of(c);
        a->loss_terms[none ? i : 0] += loss.terms / divisor_of(c);
        a->dx[ix] += dx.value, a->dx_terms[ix] += dx.terms;
        a->dtarget[it] += dt.value, a->dtarget_terms[it] += dt.terms;
    }
}

static void ask_nll(const golden_case *c, answer *a)
{
    double each[MOST_NUMBERS];
    const bool none = c->reduction == ATTO_REDUCTION_NONE;
    oracle_nll_answer out = { .each = each, .dx = a->dx };
    const oracle_nll question = { .outer = c->outer,
                                  .classes = c->classes,
                                  .step = c->step,
                                  .x = c->x,
                                  .labels = c->target,
                                  .weight = c->has_weight ? c->weight : NULL,
                                  .reduction = (atto_reduction)c->reduction,
                                  .has_ignore = c->has_ignore,
                                  .ignore = c->ignore,
                                  .dloss = c->dloss };
    oracle_nll_loss(&question, &out);
    for (int64_t i = 0; i < c->each; i++) {
        a->loss[i] = none ? each[i] : out.loss;
        a->loss_terms[i] = none ? fabs(each[i]) : out.loss_terms;
    }
    for (int64_t i = 0; i < c->nx; i++) a->dx_terms[i] = fabs(a->dx[i]);
}

static void ask_oracle(const golden_case *c, answer *a)
{
    memset(a, 0, sizeof *a);
    if (c->is_nll)
        ask_nll(c, a);
    else
        ask_pointwise(c, a);
}

static void golden_loss_matches_oracle(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) {
        const golden_case *c = &cases[i];
        answer a;
        ask_oracle(c, &a);
        golden_judge(i, "loss", a.loss, c->loss, a.loss_terms, c->each);
        golden_judge(i, "dx", a.dx, c->dx, a.dx_terms, c->nx);
        if (!c->is_nll) golden_judge(i, "dtarget", a.dtarget, c->dtarget, a.dtarget_terms, c->nt);
    }
}

/* ---- the device ---- */

static void make(test_tensor *t, atto_dtype dtype, atto_shape shape, const double *values,
                 const atto_tensor **slot)
{
    test_tensor_make(t, test_dev, dtype, shape, LAYOUT_DENSE);
    if (values) test_tensor_put(t, values);
    *slot = &t->view;
}

static void check_pointwise(const golden_case *c)
{
    const atto_shape scalar = { 0 };
    const atto_shape loss = c->reduction == ATTO_REDUCTION_NONE ? c->full : scalar;
    const char *name = atto_loss_name((atto_loss_kind)c->kind);
    char grad[32];
    test_tensor t[8];
    answer a;
    memset(t, 0, sizeof t);
    snprintf(grad, sizeof grad, "%s_grad", name);
    ask_oracle(c, &a);
    struct atto_loss_args args = { .kind = (atto_loss_kind)c->kind,
                                   .reduction = (atto_reduction)c->reduction,
                                   .threshold = (float)c->threshold };
    make(&t[0], ATTO_F32, c->x_shape, c->x, &args.x);
    make(&t[1], ATTO_F32, c->target_shape, c->target, &args.target);
    if (c->has_weight) make(&t[2], ATTO_F32, c->x_shape, c->weight, &args.weight);
    if (c->has_pos) make(&t[3], ATTO_F32, atto_shape1(c->np), c->pos, &args.pos_weight);
    make(&t[4], ATTO_F32, loss, NULL, &args.loss);
    make(&t[5], ATTO_F32, loss, c->dloss, &args.dloss);
    make(&t[6], ATTO_F32, c->x_shape, NULL, &args.dx);
    make(&t[7], ATTO_F32, c->target_shape, NULL, &args.dtarget);
    MUST(atto_loss_forward(test_dev, &args));
    MUST(atto_loss_backward(test_dev, &args));
    const int64_t full = golden_numel(c->full);
    golden_expect(&t[4], name, full + 5, c->loss, a.loss_terms);
    golden_expect(&t[6], grad, full / c->nx, c->dx, a.dx_terms);
    golden_expect(&t[7], grad, full / c->nt, c->dtarget, a.dtarget_terms);
    for (int i = 0; i < COUNT_OF(t); i++) test_tensor_drop(&t[i]);
}

static void check_nll(const golden_case *c)
{
    const atto_shape scalar = { 0 };
    const atto_shape loss = c->reduction == ATTO_REDUCTION_NONE ? c->target_shape : scalar;
    test_tensor t[7];
    answer a;
    memset(t, 0, sizeof t);
    ask_oracle(c, &a);
    struct atto_nll_loss_args args = { .reduction = (atto_reduction)c->reduction,
                                       .has_ignore_index = c->has_ignore,
                                       .ignore_index = c->ignore };
    make(&t[0], ATTO_F32, c->x_shape, c->x, &args.x);
    make(&t[1], ATTO_I64, c->target_shape, c->target, &args.target);
    if (c->has_weight) make(&t[2], ATTO_F32, atto_shape1(c->classes), c->weight, &args.weight);
    make(&t[3], ATTO_F32, loss, NULL, &args.loss);
    make(&t[4], ATTO_F32, scalar, NULL, &args.total);
    make(&t[5], ATTO_F32, loss, c->dloss, &args.dloss);
    make(&t[6], ATTO_F32, c->x_shape, NULL, &args.dx);
    MUST(atto_nll_loss_forward(test_dev, &args));
    MUST(atto_nll_loss_backward(test_dev, &args));
    golden_expect(&t[3], "nll_loss", 2 * c->positions + 5, c->loss, a.loss_terms);
    golden_expect(&t[6], "nll_loss_grad", 1 + c->positions, c->dx, a.dx_terms);
    for (int i = 0; i < COUNT_OF(t); i++) test_tensor_drop(&t[i]);
}

static void golden_loss_matches_device(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) {
        if (cases[i].is_nll)
            check_nll(&cases[i]);
        else
            check_pointwise(&cases[i]);
    }
    MUST(atto_device_sync(test_dev));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(golden_loss_is_complete, read_golden),
    cmocka_unit_test(golden_loss_matches_oracle),
    cmocka_unit_test(golden_loss_matches_device),
};
TEST_MAIN("golden_loss", tests)
