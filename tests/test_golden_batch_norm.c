/* SPDX-License-Identifier: MIT */
/* PyTorch's own numbers (golden/batch_norm.txt, float64) judge the oracle tightly and every backend
 * as the oracle does. */
#include <math.h>
#include <string.h>

#include "golden.h"
#include "oracle_norm.h"

/* ---- the file ---- */

#define MOST_NUMBERS 32
#define MOST_CASES   256

typedef struct golden_case {
    atto_shape shape;
    int training, has_w, has_b, has_residual;
    double momentum, eps;
    atto_activation act;
    int64_t n, channels, size, numel;
    double x[MOST_NUMBERS], w[MOST_NUMBERS], b[MOST_NUMBERS], residual[MOST_NUMBERS];
    double running_mean[MOST_NUMBERS], running_var[MOST_NUMBERS], dy[MOST_NUMBERS], y[MOST_NUMBERS];
    double mean_after[MOST_NUMBERS], var_after[MOST_NUMBERS];
    double dx[MOST_NUMBERS], dw[MOST_NUMBERS], db[MOST_NUMBERS], dresidual[MOST_NUMBERS];
} golden_case;

static golden_case cases[MOST_CASES];
static int case_count;

static atto_activation activation_named(const char *name)
{
    if (strcmp(name, "relu") == 0) return atto_relu();
    if (strcmp(name, "gelu") == 0) return atto_gelu();
    if (strcmp(name, "identity") != 0) golden_malformed("activation");
    return atto_identity();
}

static bool read_case(FILE *file)
{
    golden_case *c = &cases[case_count];
    char act[32];
    if (!golden_case_begins(file)) return false;
    if (case_count == MOST_CASES) golden_malformed("too many cases");
    c->shape = golden_shape(file);
    if (fscanf(file, "%d %lf %lf %d %d %d %31s", &c->training, &c->momentum, &c->eps, &c->has_w,
               &c->has_b, &c->has_residual, act) != 7)
        golden_malformed("options");
    c->act = activation_named(act);
    c->n = c->shape.dim[0], c->channels = c->shape.dim[1], c->size = 1;
    for (int32_t d = 2; d < c->shape.rank; d++) c->size *= c->shape.dim[d];
    c->numel = c->n * c->channels * c->size;
    golden_numbers(file, "x", c->x, c->numel);
    if (c->has_w) golden_numbers(file, "weight", c->w, c->channels);
    if (c->has_b) golden_numbers(file, "bias", c->b, c->channels);
    if (c->has_residual) golden_numbers(file, "residual", c->residual, c->numel);
    golden_numbers(file, "running_mean", c->running_mean, c->channels);
    golden_numbers(file, "running_var", c->running_var, c->channels);
    golden_numbers(file, "dy", c->dy, c->numel);
    golden_numbers(file, "y", c->y, c->numel);
    golden_numbers(file, "mean_after", c->mean_after, c->channels);
    golden_numbers(file, "var_after", c->var_after, c->channels);
    golden_numbers(file, "dx", c->dx, c->numel);
    if (c->has_w) golden_numbers(file, "dweight", c->dw, c->channels);
    if (c->has_b) golden_numbers(file, "dbias", c->db, c->channels);
    if (c->has_residual) golden_numbers(file, "dresidual", c->dresidual, c->numel);
    case_count++;
    return true;
}

static int read_golden(void **state)
{
    (void)state;
    FILE *file = golden_open("batch_norm", MOST_NUMBERS);
    if (!file) return -1;
    while (read_case(file)) {
    }
    fclose(file);
    return 0;
}

static void golden_batch_norm_is_complete(void **state)
{
    (void)state;
    assert_true(case_count >= 140);
    for (int i = 0; i < case_count; i++)
        for (int64_t k = 0; k < cases[i].numel; k++)
            assert_true(cases[i].x[k] == (double)(float)cases[i].x[k]);
}

/* ---- the oracle and the device against PyTorch ---- */

static double numbers[14][MOST_NUMBERS];

static oracle_batch_norm_answer ask_oracle(const golden_case *c)
{
    double(*n)[MOST_NUMBERS] = numbers;
    oracle_batch_norm_answer answer = { n[0], n[1], n[2], n[3],  n[4],  n[5],  n[6],
                                        n[7], n[8], n[9], n[10], n[11], n[12], n[13] };
    const oracle_batch_norm question = { .n = c->n,
                                         .channels = c->channels,
                                         .size = c->size,
                                         .x = c->x,
                                         .w = c->has_w ? c->w : NULL,
                                         .b = c->has_b ? c->b : NULL,
                                         .residual = c->has_residual ? c->residual : NULL,
                                         .dy = c->dy,
                                         .running_mean = c->running_mean,
                                         .running_var = c->running_var,
                                         .act = c->act,
                                         .training = c->training,
                                         .share = c->momentum,
                                         .eps = c->eps };
    oracle_batch_norm_of(&question, &answer);
    return answer;
}

static void golden_batch_norm_matches_oracle(void **state)
{
    (void)state;
    const double ones[MOST_NUMBERS] = { 4, 4, 4, 4 }; /* means and variances stay below */
    for (int i = 0; i < case_count; i++) {
        const golden_case *c = &cases[i];
        const oracle_batch_norm_answer a = ask_oracle(c);
        golden_judge(i, "y", a.y, c->y, a.y_terms, c->numel);
        golden_judge(i, "running_mean", a.running_mean, c->mean_after, ones, c->channels);
        golden_judge(i, "running_var", a.running_var, c->var_after, a.running_var, c->channels);
        golden_judge(i, "dx", a.dx, c->dx, a.dx_terms, c->numel);
        if (c->has_w) golden_judge(i, "dw", a.dw, c->dw, a.dw_terms, c->channels);
        if (c->has_b) golden_judge(i, "db", a.db, c->db, a.db_terms, c->channels);
        if (c->has_residual) golden_judge(i, "dresidual", a.dz, c->dresidual, a.dz_terms, c->numel);
    }
}

static const atto_tensor *make(test_tensor *t, bool there, atto_shape shape, const double *values)
{
    if (!there) return NULL;
    test_tensor_make(t, test_dev, ATTO_F32, shape, LAYOUT_DENSE);
    if (values) test_tensor_put(t, values);
    return &t->view;
}

static void check_device(const golden_case *c)
{
    const oracle_batch_norm_answer terms = ask_oracle(c);
    const atto_shape k = atto_shape1(c->channels);
    const double ones[MOST_NUMBERS] = { 8, 8, 8, 8 };
    test_tensor t[14];
    memset(t, 0, sizeof t);
    const struct atto_batch_norm_args a = {
        .x = make(&t[0], true, c->shape, c->x),
        .w = make(&t[1], c->has_w, k, c->w),
        .b = make(&t[2], c->has_b, k, c->b),
        .residual = make(&t[3], c->has_residual, c->shape, c->residual),
        .running_mean = make(&t[4], true, k, c->running_mean),
        .running_var = make(&t[5], true, k, c->running_var),
        .y = make(&t[6], true, c->shape, NULL),
        .mean = make(&t[7], true, k, NULL),
        .rstd = make(&t[8], true, k, NULL),
        .dy = make(&t[9], true, c->shape, c->dy),
        .dx = make(&t[10], true, c->shape, NULL),
        .dw = make(&t[11], c->has_w, k, NULL),
        .db = make(&t[12], c->has_b, k, NULL),
        .dresidual = make(&t[13], c->has_residual, c->shape, NULL),
        .act = c->act,
        .training = c->training,
        .momentum = (float)c->momentum,
        .eps = (float)c->eps,
    };
    MUST(atto_batch_norm_forward(test_dev, &a));
    MUST(atto_batch_norm_backward(test_dev, &a));
    const int64_t n = c->n * c->size;
    golden_expect(&t[6], "batch_norm", n, c->y, terms.y_terms);
    golden_expect(&t[4], "batch_norm", n, c->mean_after, ones);
    golden_expect(&t[5], "batch_norm", n, c->var_after, terms.running_var);
    golden_expect(&t[10], "batch_norm_grad", n, c->dx, terms.dx_terms);
    golden_expect(&t[11], "batch_norm_grad", n, c->dw, terms.dw_terms);
    golden_expect(&t[12], "batch_norm_grad", n, c->db, terms.db_terms);
    golden_expect(&t[13], "batch_norm_grad", n, c->dresidual, terms.dz_terms);
    for (int i = 0; i < COUNT_OF(t); i++) test_tensor_drop(&t[i]);
}

static void golden_batch_norm_matches_device(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) check_device(&cases[i]);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(golden_batch_norm_is_complete, read_golden),
    cmocka_unit_test(golden_batch_norm_matches_oracle),
    cmocka_unit_test(golden_batch_norm_matches_device),
};
TEST_MAIN("golden_batch_norm", tests)
