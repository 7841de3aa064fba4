/* SPDX-License-Identifier: MIT */
/* PyTorch's own numbers (golden/layer_norm.txt, float64) judge the oracle tightly and every backend as
 * the oracle does. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "atto_test.h"
#include "oracle_norm.h"

/* ---- the file ---- */

#define MOST_NUMBERS 64
#define MOST_CASES   256

typedef struct golden_case {
    atto_shape shape; /* of x */
    int dims;
    bool rms, has_weight, has_bias;
    double eps;
    int64_t rows, cols;
    double x[MOST_NUMBERS], w[MOST_NUMBERS], b[MOST_NUMBERS], dy[MOST_NUMBERS], y[MOST_NUMBERS];
    double dx[MOST_NUMBERS], dw[MOST_NUMBERS], db[MOST_NUMBERS];
} golden_case;

static golden_case cases[MOST_CASES];
static int case_count;

static void malformed(const char *what)
{
    fail_msg(ATTO_GOLDEN_DIR "/layer_norm.txt: %s; make it again with make_golden.py", what);
}

static void read_numbers(FILE *file, const char *word, double *out, int64_t n)
{
    char name[32];
    if (fscanf(file, " %31s", name) != 1 || strcmp(name, word) != 0) malformed(word);
    for (int64_t i = 0; i < n; i++)
        if (fscanf(file, "%lf", &out[i]) != 1) malformed(word);
}

static bool read_case(FILE *file)
{
    golden_case *c = &cases[case_count];
    char kind[16];
    int has_weight, has_bias;
    if (fscanf(file, " case %d", &c->shape.rank) != 1) return false;
    if (case_count == MOST_CASES) malformed("too many cases");
    for (int32_t d = 0; d < c->shape.rank; d++)
        if (fscanf(file, "%lld", (long long *)&c->shape.dim[d]) != 1) malformed("shape");
    if (fscanf(file, "%15s %d %lf %d %d", kind, &c->dims, &c->eps, &has_weight, &has_bias) != 5)
        malformed("options");
    c->rms = strcmp(kind, "rms") == 0;
    c->has_weight = has_weight, c->has_bias = has_bias;
    c->rows = c->cols = 1;
    for (int32_t d = 0; d < c->shape.rank; d++)
        *(d < c->shape.rank - c->dims ? &c->rows : &c->cols) *= c->shape.dim[d];
    const int64_t n = c->rows * c->cols;
    if (n > MOST_NUMBERS) malformed("too many numbers");
    read_numbers(file, "x", c->x, n);
    if (c->has_weight) read_numbers(file, "weight", c->w, c->cols);
    if (c->has_bias) read_numbers(file, "bias", c->b, c->cols);
    read_numbers(file, "dy", c->dy, n);
    read_numbers(file, "y", c->y, n);
    read_numbers(file, "dx", c->dx, n);
    if (c->has_weight) read_numbers(file, "dweight", c->dw, c->cols);
    if (c->has_bias) read_numbers(file, "dbias", c->db, c->cols);
    case_count++;
    return true;
}

static int read_golden(void **state)
{
    (void)state;
    FILE *file = fopen(ATTO_GOLDEN_DIR "/layer_norm.txt", "r");
    if (!file) {
        print_error("cannot open " ATTO_GOLDEN_DIR "/layer_norm.txt\n");
        return -1;
    }
    char version[64];
    if (fscanf(file, "#%*[^\n] torch %63s", version) != 1 || strncmp(version, "2.11", 4) != 0)
        malformed("not from PyTorch 2.11");
    while (read_case(file)) {
    }
    fclose(file);
    return 0;
}

static void golden_layer_norm_is_complete(void **state)
{
    (void)state;
    assert_true(case_count >= 120);
    for (int i = 0; i < case_count; i++)
        for (int64_t k = 0; k < cases[i].rows * cases[i].cols; k++)
            assert_true(isnan(cases[i].x[k]) || cases[i].x[k] == (double)(float)cases[i].x[k]);
}

/* ---- the oracle and the device against PyTorch ---- */

static double numbers[10][MOST_NUMBERS];

static oracle_row_norm_answer ask_oracle(const golden_case *c)
{
    double(*n)[MOST_NUMBERS] = numbers;
    oracle_row_norm_answer answer = { n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9] };
    const oracle_row_norm question = { .rows = c->rows,
                                       .cols = c->cols,
                                       .centred = !c->rms,
                                       .eps = c->eps,
                                       .x = c->x,
                                       .w = c->has_weight ? c->w : NULL,
                                       .b = c->has_bias ? c->b : NULL,
                                       .dy = c->dy };
    oracle_row_norm_of(&question, &answer);
    return answer;
}

/* Both are double: a few dozen roundings of 2^-53 of the terms. */
static void judge_oracle(int number, const char *what, const double *got, const double *want,
                         const double *terms, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (isnan(got[i]) && isnan(want[i])) continue;
        if (got[i] == want[i] || fabs(got[i] - want[i]) <= 64.0 * 0x1p-53 * terms[i]) continue;
        fail_msg("case %d, %s[%d]: the oracle says %.17g, PyTorch %.17g", number, what, (int)i,
                 got[i], want[i]);
    }
}

static void golden_layer_norm_matches_oracle(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) {
        const golden_case *c = &cases[i];
        const oracle_row_norm_answer a = ask_oracle(c);
        judge_oracle(i, "y", a.y, c->y, a.y_terms, c->rows * c->cols);
        judge_oracle(i, "dx", a.dx, c->dx, a.dx_terms, c->rows * c->cols);
        if (c->has_weight) judge_oracle(i, "dw", a.dw, c->dw, a.dw_terms, c->cols);
        if (c->has_bias) judge_oracle(i, "db", a.db, c->db, a.db_terms, c->cols);
    }
}

static void judge_device(const test_tensor *t, const char *op, int64_t n, const double *want,
                         const double *terms)
{
    if (!t->view.dtype) return;
    double got[MOST_NUMBERS], allowed[MOST_NUMBERS];
    const test_about about = { op, "dense", ATTO_F32, atto_shape_of(t->view.rank, t->view.shape),
                               0 };
    test_tensor_get(t, got);
    for (int64_t i = 0; i < t->numel; i++)
        allowed[i] = isfinite(want[i]) ? atto_tol(op, ATTO_F32, n, terms[i]) : 0.0;
    expect_close(&about, got, want, allowed, t->numel);
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
    const oracle_row_norm_answer terms = ask_oracle(c);
    const int32_t leading = c->shape.rank - c->dims;
    const atto_shape rows = atto_shape_of(leading, c->shape.dim);
    const atto_shape row = atto_shape_of(c->dims, c->shape.dim + leading);
    const bool centred = !c->rms;
    test_tensor t[10];
    memset(t, 0, sizeof t);
    struct atto_layer_norm_args l = { .dims = c->dims, .eps = (float)c->eps };
    struct atto_rms_norm_args r = { .dims = c->dims, .eps = (float)c->eps };
    l.x = r.x = make(&t[0], true, c->shape, c->x);
    l.w = r.w = make(&t[1], c->has_weight, row, c->w);
    l.b = make(&t[2], c->has_bias, row, c->b);
    l.y = r.y = make(&t[3], true, c->shape, NULL);
    l.mean = make(&t[4], centred, rows, NULL);
    l.rstd = r.rstd = make(&t[5], true, rows, NULL);
    l.dy = r.dy = make(&t[6], true, c->shape, c->dy);
    l.dx = r.dx = make(&t[7], true, c->shape, NULL);
    l.dw = r.dw = make(&t[8], c->has_weight, row, NULL);
    l.db = make(&t[9], c->has_bias, row, NULL);
    MUST(centred ? atto_layer_norm_forward(test_dev, &l) : atto_rms_norm_forward(test_dev, &r));
    MUST(centred ? atto_layer_norm_backward(test_dev, &l) : atto_rms_norm_backward(test_dev, &r));
    judge_device(&t[3], "layer_norm", c->cols, c->y, terms.y_terms);
    judge_device(&t[7], "layer_norm_grad", c->cols, c->dx, terms.dx_terms);
    judge_device(&t[8], "layer_norm_grad", c->cols + c->rows, c->dw, terms.dw_terms);
    judge_device(&t[9], "layer_norm_grad", c->rows, c->db, terms.db_terms);
    for (int i = 0; i < COUNT_OF(t); i++) test_tensor_drop(&t[i]);
}

static void golden_layer_norm_matches_device(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) check_device(&cases[i]);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(golden_layer_norm_is_complete, read_golden),
    cmocka_unit_test(golden_layer_norm_matches_oracle),
    cmocka_unit_test(golden_layer_norm_matches_device),
};
TEST_MAIN("golden_layer_norm", tests)
