/* SPDX-License-Identifier: MIT */
/* PyTorch's own numbers (golden/group_norm.txt, float64) judge the oracle tightly and every
 * backend, row-major and channels_last, as the oracle does. */
#include <math.h>
#include <string.h>

#include "golden.h"
#include "oracle_norm.h"

/* ---- the file ---- */

#define MOST_NUMBERS 48
#define MOST_CASES   160

typedef struct golden_case {
    atto_shape shape;
    long long groups;
    double momentum, eps;
    int has_w, has_b, has_running;
    int64_t n, channels, size, numel;
    double x[MOST_NUMBERS], w[MOST_NUMBERS], b[MOST_NUMBERS], dy[MOST_NUMBERS], y[MOST_NUMBERS];
    double running_mean[MOST_NUMBERS], running_var[MOST_NUMBERS];
    double mean_after[MOST_NUMBERS], var_after[MOST_NUMBERS];
    double dx[MOST_NUMBERS], dw[MOST_NUMBERS], db[MOST_NUMBERS];
} golden_case;

static golden_case cases[MOST_CASES];
static int case_count;

static void read_running(FILE *file, golden_case *c)
{
    if (!c->has_running) return;
    golden_numbers(file, "running_mean", c->running_mean, c->channels);
    golden_numbers(file, "running_var", c->running_var, c->channels);
    golden_numbers(file, "mean_after", c->mean_after, c->channels);
    golden_numbers(file, "var_after", c->var_after, c->channels);
}

static bool read_case(FILE *file)
{
    if (!golden_case_begins(file)) return false;
    golden_case *c = &cases[case_count];
    if (case_count++ == MOST_CASES) golden_malformed("too many cases");
    c->shape = golden_shape(file);
    if (fscanf(file, "%lld %lf %lf %d %d %d", &c->groups, &c->momentum, &c->eps, &c->has_w,
               &c->has_b, &c->has_running) != 6)
        golden_malformed("options");
    c->n = c->shape.dim[0], c->channels = c->shape.dim[1];
    c->numel = golden_numel(c->shape);
    c->size = c->numel / (c->n * c->channels);
    golden_numbers(file, "x", c->x, c->numel);
    if (c->has_w) golden_numbers(file, "weight", c->w, c->channels);
    if (c->has_b) golden_numbers(file, "bias", c->b, c->channels);
    read_running(file, c);
    golden_numbers(file, "dy", c->dy, c->numel);
    golden_numbers(file, "y", c->y, c->numel);
    golden_numbers(file, "dx", c->dx, c->numel);
    if (c->has_w) golden_numbers(file, "dweight", c->dw, c->channels);
    if (c->has_b) golden_numbers(file, "dbias", c->db, c->channels);
    return true;
}

static int read_golden(void **state)
{
    (void)state;
    FILE *file = golden_open("group_norm", MOST_NUMBERS);
    if (!file) return -1;
    while (read_case(file)) {
    }
    fclose(file);
    return 0;
}

static void golden_group_norm_is_complete(void **state)
{
    (void)state;
    int running = 0;
    assert_true(case_count >= 80);
    for (int i = 0; i < case_count; i++) {
        running += cases[i].has_running;
        for (int64_t k = 0; k < cases[i].numel; k++)
            assert_true(cases[i].x[k] == (double)(float)cases[i].x[k]);
    }
    assert_true(running >= 16);
}

/* ---- the oracle and the device against PyTorch ---- */

static double numbers[10][MOST_NUMBERS];

static oracle_row_norm_answer ask_oracle(const golden_case *c)
{
    double(*n)[MOST_NUMBERS] = numbers;
    oracle_row_norm_answer answer = { n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9] };
    const oracle_group_norm question = { .n = c->n,
                                         .channels = c->channels,
                                         .size = c->size,
                                         .groups = c->groups,
                                         .x = c->x,
                                         .w = c->has_w ? c->w : NULL,
                                         .b = c->has_b ? c->b : NULL,
                                         .dy = c->dy,
                                         .eps = c->eps };
    oracle_group_norm_of(&question, &answer);
    return answer;
}

static void golden_group_norm_matches_oracle(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) {
        const golden_case *c = &cases[i];
        const oracle_row_norm_answer a = ask_oracle(c);
        golden_judge(i, "y", a.y, c->y, a.y_terms, c->numel);
        golden_judge(i, "dx", a.dx, c->dx, a.dx_terms, c->numel);
        if (c->has_w) golden_judge(i, "dw", a.dw, c->dw, a.dw_terms, c->channels);
        if (c->has_b) golden_judge(i, "db", a.db, c->db, a.db_terms, c->channels);
    }
}

static const atto_tensor *make(test_tensor *t, bool there, atto_shape shape, test_layout layout,
                               const double *values)
{
    if (!there) return NULL;
    test_tensor_make(t, test_dev, ATTO_F32, shape, layout);
    if (values) test_tensor_put(t, values);
    return &t->view;
}

/* x is below 4, the running statistics begin below 3: a mean and a variance are below 4 and 32. */
static void judge_running(const golden_case *c, const test_tensor *mean, const test_tensor *var)
{
    double means[MOST_NUMBERS], vars[MOST_NUMBERS];
    for (int i = 0; i < MOST_NUMBERS; i++) means[i] = 4.0, vars[i] = 32.0;
    golden_expect(mean, "group_norm", c->size + c->n, c->mean_after, means);
    golden_expect(var, "group_norm", c->size + c->n, c->var_after, vars);
}

static void check_device(const golden_case *c, test_layout layout)
{
    const oracle_row_norm_answer terms = ask_oracle(c);
    const atto_shape k = atto_shape1(c->channels), stats = atto_shape2(c->n, c->groups);
    test_tensor t[12];
    memset(t, 0, sizeof t);
    const struct atto_group_norm_args a = {
        .x = make(&t[0], true, c->shape, layout, c->x),
        .w = make(&t[1], c->has_w, k, LAYOUT_DENSE, c->w),
        .b = make(&t[2], c->has_b, k, LAYOUT_DENSE, c->b),
        .running_mean = make(&t[3], c->has_running, k, LAYOUT_DENSE, c->running_mean),
        .running_var = make(&t[4], c->has_running, k, LAYOUT_DENSE, c->running_var),
        .y = make(&t[5], true, c->shape, layout, NULL),
        .mean = make(&t[6], true, stats, LAYOUT_DENSE, NULL),
        .rstd = make(&t[7], true, stats, LAYOUT_DENSE, NULL),
        .dy = make(&t[8], true, c->shape, layout, c->dy),
        .dx = make(&t[9], true, c->shape, layout, NULL),
        .dw = make(&t[10], c->has_w, k, LAYOUT_DENSE, NULL),
        .db = make(&t[11], c->has_b, k, LAYOUT_DENSE, NULL),
        .groups = c->groups,
        .momentum = (float)c->momentum,
        .eps = (float)c->eps,
    };
    MUST(atto_group_norm_forward(test_dev, &a));
    MUST(atto_group_norm_backward(test_dev, &a));
    const int64_t n = c->channels / c->groups * c->size, all = c->n * c->size;
    golden_expect(&t[5], "group_norm", n, c->y, terms.y_terms);
    golden_expect(&t[9], "group_norm_grad", n, c->dx, terms.dx_terms);
    golden_expect(&t[10], "group_norm_grad", n + all, c->dw, terms.dw_terms);
    golden_expect(&t[11], "group_norm_grad", all, c->db, terms.db_terms);
    if (c->has_running) judge_running(c, &t[3], &t[4]);
    for (int i = 0; i < COUNT_OF(t); i++) test_tensor_drop(&t[i]);
}

static void golden_group_norm_matches_device(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) {
        check_device(&cases[i], LAYOUT_DENSE);
        if (cases[i].shape.rank > 2) check_device(&cases[i], LAYOUT_CHANNELS_LAST);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(golden_group_norm_is_complete, read_golden),
    cmocka_unit_test(golden_group_norm_matches_oracle),
    cmocka_unit_test(golden_group_norm_matches_device),
};
TEST_MAIN("golden_group_norm", tests)
