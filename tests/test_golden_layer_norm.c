/* SPDX-License-Identifier: MIT */
/* PyTorch's own numbers (golden/layer_norm.txt, float64) judge the oracle tightly and every backend
 * as the oracle does. */
#include <math.h>
#include <string.h>

#include "golden.h"
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

static bool read_case(FILE *file)
{
    golden_case *c = &cases[case_count];
    char kind[16];
    int has_weight, has_bias;
    if (!golden_case_begins(file)) return false;
    if (case_count == MOST_CASES) golden_malformed("too many cases");
    c->shape = golden_shape(file);
    if (fscanf(file, "%15s %d %lf %d %d", kind, &c->dims, &c->eps, &has_weight, &has_bias) != 5)
        golden_malformed("options");
    c->rms = strcmp(kind, "rms") == 0;
    c->has_weight = has_weight, c->has_bias = has_bias;
    c->rows = c->cols = 1;
    for (int32_t d = 0; d < c->shape.rank; d++)
        *(d < c->shape.rank - c->dims ? &c->rows : &c->cols) *= c->shape.dim[d];
    const int64_t n = c->rows * c->cols;
    golden_numbers(file, "x", c->x, n);
    if (c->has_weight) golden_numbers(file, "weight", c->w, c->cols);
    if (c->has_bias) golden_numbers(file, "bias", c->b, c->cols);
    golden_numbers(file, "dy", c->dy, n);
    golden_numbers(file, "y", c->y, n);
    golden_numbers(file, "dx", c->dx, n);
    if (c->has_weight) golden_numbers(file, "dweight", c->dw, c->cols);
    if (c->has_bias) golden_numbers(file, "dbias", c->db, c->cols);
    case_count++;
    return true;
}

static int read_golden(void **state)
{
    (void)state;
    FILE *file = golden_open("layer_norm", MOST_NUMBERS);
    if (!file) return -1;
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

static void golden_layer_norm_matches_oracle(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) {
        const golden_case *c = &cases[i];
        const oracle_row_norm_answer a = ask_oracle(c);
        golden_judge(i, "y", a.y, c->y, a.y_terms, c->rows * c->cols);
        golden_judge(i, "dx", a.dx, c->dx, a.dx_terms, c->rows * c->cols);
        if (c->has_weight) golden_judge(i, "dw", a.dw, c->dw, a.dw_terms, c->cols);
        if (c->has_bias) golden_judge(i, "db", a.db, c->db, a.db_terms, c->cols);
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
    golden_expect(&t[3], "layer_norm", c->cols, c->y, terms.y_terms);
    golden_expect(&t[7], "layer_norm_grad", c->cols, c->dx, terms.dx_terms);
    golden_expect(&t[8], "layer_norm_grad", c->cols + c->rows, c->dw, terms.dw_terms);
    golden_expect(&t[9], "layer_norm_grad", c->rows, c->db, terms.db_terms);
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
