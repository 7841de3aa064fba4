/* SPDX-License-Identifier: MIT */
/* PyTorch's own numbers (golden/cross_entropy.txt, float64) judge the oracle tightly and every
 * backend as the oracle does. */
#include <math.h>
#include <string.h>

#include "golden.h"

/* ---- the file ---- */

#define MOST_NUMBERS 128
#define MOST_CASES   256

typedef struct golden_case {
    atto_shape shape; /* of x */
    bool soft, has_ignore, has_weight;
    int reduction;
    double smoothing;
    long long ignore;
    int64_t outer, classes, step;
    int64_t sizes[3]; /* of x, positions, loss */
    double x[MOST_NUMBERS], target[MOST_NUMBERS], weight[MOST_NUMBERS], dloss[MOST_NUMBERS];
    double loss[MOST_NUMBERS], dx[MOST_NUMBERS], dtarget[MOST_NUMBERS];
} golden_case;

static golden_case cases[MOST_CASES];
static int case_count;

static void measure(golden_case *c)
{
    const int32_t at = c->shape.rank == 1 ? 0 : 1;
    c->outer = c->step = 1;
    for (int32_t d = 0; d < c->shape.rank; d++) {
        if (d < at) c->outer *= c->shape.dim[d];
        if (d > at) c->step *= c->shape.dim[d];
    }
    c->classes = c->shape.dim[at];
    c->sizes[1] = c->outer * c->step;
    c->sizes[0] = c->sizes[1] * c->classes;
    c->sizes[2] = c->reduction == ATTO_REDUCTION_NONE ? c->sizes[1] : 1;
}

static bool read_case(FILE *file)
{
    golden_case *c = &cases[case_count];
    char kind[16];
    int has_ignore, has_weight;
    if (!golden_case_begins(file)) return false;
    if (case_count == MOST_CASES) golden_malformed("too many cases");
    c->shape = golden_shape(file);
    if (fscanf(file, "%15s %d %lf %d %lld %d", kind, &c->reduction, &c->smoothing, &has_ignore,
               &c->ignore, &has_weight) != 6)
        golden_malformed("options");
    c->soft = strcmp(kind, "shares") == 0;
    c->has_ignore = has_ignore, c->has_weight = has_weight;
    measure(c);
    golden_numbers(file, "x", c->x, c->sizes[0]);
    golden_numbers(file, "target", c->target, c->sizes[c->soft ? 0 : 1]);
    if (c->has_weight) golden_numbers(file, "weight", c->weight, c->classes);
    golden_numbers(file, "dloss", c->dloss, c->sizes[2]);
    golden_numbers(file, "loss", c->loss, c->sizes[2]);
    golden_numbers(file, "dx", c->dx, c->sizes[0]);
    if (c->soft) golden_numbers(file, "dtarget", c->dtarget, c->sizes[0]);
    case_count++;
    return true;
}

static int read_golden(void **state)
{
    (void)state;
    FILE *file = golden_open("cross_entropy", MOST_NUMBERS);
    if (!file) return -1;
    while (read_case(file)) {
    }
    fclose(file);
    return 0;
}

static void golden_cross_entropy_is_complete(void **state)
{
    (void)state;
    assert_true(case_count >= 96 + 4);
    for (int i = 0; i < case_count; i++)
        for (int64_t k = 0; k < cases[i].sizes[0]; k++)
            assert_true(isnan(cases[i].x[k]) || cases[i].x[k] == (double)(float)cases[i].x[k]);
}

/* ---- the oracle and the device against PyTorch ---- */

static double each[MOST_NUMBERS], each_terms[MOST_NUMBERS], lse[MOST_NUMBERS],
    lse_terms[MOST_NUMBERS];
static double dx[MOST_NUMBERS], dx_terms[MOST_NUMBERS], dshares[MOST_NUMBERS],
    dshares_terms[MOST_NUMBERS];

static oracle_ce_answer ask_oracle(const golden_case *c)
{
    oracle_ce_answer answer = { .each = each,
                                .each_terms = each_terms,
                                .lse = lse,
                                .lse_terms = lse_terms,
                                .dx = dx,
                                .dx_terms = dx_terms,
                                .dshares = dshares,
                                .dshares_terms = dshares_terms };
    const oracle_ce question = { .outer = c->outer,
                                 .classes = c->classes,
                                 .step = c->step,
                                 .x = c->x,
                                 .labels = c->soft ? NULL : c->target,
                                 .shares = c->soft ? c->target : NULL,
                                 .weight = c->has_weight ? c->weight : NULL,
                                 .reduction = (atto_reduction)c->reduction,
                                 .has_ignore = c->has_ignore,
                                 .ignore = c->ignore,
                                 .smoothing = c->smoothing,
                                 .dloss = c->dloss,
                                 .from_lse = true };
    oracle_cross_entropy(&question, &answer);
    return answer;
}

static void golden_cross_entropy_matches_oracle(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) {
        const golden_case *c = &cases[i];
        const bool none = c->reduction == ATTO_REDUCTION_NONE;
        const oracle_ce_answer a = ask_oracle(c);
        golden_judge(i, "loss", none ? a.each : &a.loss, c->loss,
                     none ? a.each_terms : &a.loss_terms, c->sizes[2]);
        golden_judge(i, "dx", a.dx, c->dx, a.dx_terms, c->sizes[0]);
        if (c->soft)
            golden_judge(i, "dtarget", a.dshares, c->dtarget, a.dshares_terms, c->sizes[0]);
    }
}

static void make(test_tensor *t, atto_dtype dtype, atto_shape shape, const double *values,
                 const atto_tensor **slot)
{
    test_tensor_make(t, test_dev, dtype, shape, LAYOUT_DENSE);
    if (values) test_tensor_put(t, values);
    *slot = &t->view;
}

static void check_device(const golden_case *c)
{
    const bool none = c->reduction == ATTO_REDUCTION_NONE;
    const atto_dtype target = c->soft ? ATTO_F32 : ATTO_I64;
    const oracle_ce_answer terms = ask_oracle(c);
    atto_shape places = { 0 };
    for (int32_t d = 0; d < c->shape.rank; d++)
        if (d != (c->shape.rank == 1 ? 0 : 1)) places.dim[places.rank++] = c->shape.dim[d];
    const atto_shape scalar = { 0 }, loss = none ? places : scalar;
    test_tensor t[9];
    memset(t, 0, sizeof t);
    struct atto_cross_entropy_args a = { .reduction = (atto_reduction)c->reduction,
                                         .has_ignore_index = c->has_ignore,
                                         .ignore_index = c->ignore,
                                         .label_smoothing = (float)c->smoothing };
    make(&t[0], ATTO_F32, c->shape, c->x, &a.x);
    make(&t[1], target, c->soft ? c->shape : places, c->target, &a.target);
    if (c->has_weight) make(&t[2], ATTO_F32, atto_shape1(c->classes), c->weight, &a.weight);
    make(&t[3], ATTO_F32, loss, NULL, &a.loss);
    make(&t[4], ATTO_F32, places, NULL, &a.lse);
    make(&t[5], ATTO_F32, scalar, NULL, &a.total);
    make(&t[6], ATTO_F32, loss, c->dloss, &a.dloss);
    make(&t[7], ATTO_F32, c->shape, NULL, &a.dx);
    if (c->soft) make(&t[8], ATTO_F32, c->shape, NULL, &a.dtarget);
    MUST(atto_cross_entropy_forward(test_dev, &a));
    MUST(atto_cross_entropy_backward(test_dev, &a));
    const int64_t n = c->classes + c->sizes[1];
    golden_expect(&t[3], "cross_entropy", n, c->loss, none ? terms.each_terms : &terms.loss_terms);
    golden_expect(&t[7], "cross_entropy_grad", n, c->dx, terms.dx_terms);
    if (c->soft) golden_expect(&t[8], "cross_entropy_grad", n, c->dtarget, terms.dshares_terms);
    for (int i = 0; i < COUNT_OF(t); i++) test_tensor_drop(&t[i]);
}

static void golden_cross_entropy_matches_device(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) check_device(&cases[i]);
    MUST(atto_device_sync(test_dev));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(golden_cross_entropy_is_complete, read_golden),
    cmocka_unit_test(golden_cross_entropy_matches_oracle),
    cmocka_unit_test(golden_cross_entropy_matches_device),
};
TEST_MAIN("golden_cross_entropy", tests)
