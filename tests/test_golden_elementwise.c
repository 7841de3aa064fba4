/* SPDX-License-Identifier: MIT */
/* PyTorch's own numbers (golden/elementwise.txt and reduce.txt, float64) judge the oracle tightly
 * and every backend as the oracle does, edges first. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

#define MOST_LINES   512
#define MOST_COLUMNS 6

static double column[MOST_COLUMNS][MOST_LINES]; /* of the table read last */

static FILE *open_golden(const char *name)
{
    char path[512], line[256], torch[64];
    snprintf(path, sizeof path, "%s/%s", ATTO_GOLDEN_DIR, name);
    FILE *file = fopen(path, "r");
    if (!file || !fgets(line, sizeof line, file) || fscanf(file, " torch %63s", torch) != 1)
        fail_msg("%s: cannot be read; make it again with make_golden.py", path);
    assert_int_equal(strncmp(torch, "2.11", 4), 0);
    return file;
}

static void read_table(FILE *file, const char *what, int columns, char *name, int *n)
{
    char kind[32];
    if (fscanf(file, " %31s %31s %d", kind, name, n) != 3 || strcmp(kind, what) != 0 ||
        *n > MOST_LINES)
        fail_msg("golden file: no table of %s", what);
    for (int i = 0; i < *n; i++)
        for (int c = 0; c < columns; c++)
            if (fscanf(file, "%lf", &column[c][i]) != 1) fail_msg("golden file: %s is cut", name);
}

static bool same(double p, double q)
{
    return p == q || (isnan(p) && isnan(q));
}

/* Both are double: a few roundings of 2^-53. */
static void judge(const char *op, const char *what, int line, double got, double want)
{
    if (same(got, want) || fabs(got - want) <= 16.0 * 0x1p-53 * fabs(want)) return;
    fail_msg("%s of %s, line %d: the oracle says %.17g, PyTorch %.17g", what, op, line, got, want);
}

/* One column of results against a tensor of the device. */
static void expect_column(const char *op, const test_tensor *t, const double *want,
                          const double *scale, int n)
{
    double got[MOST_LINES], allowed[MOST_LINES];
    const test_about about = { op, "dense", ATTO_F32, atto_shape1(n), 0 };
    test_tensor_get(t, got);
    for (int i = 0; i < n; i++) {
        const double size = isfinite(want[i]) ? fabs(want[i]) : 0.0;
        allowed[i] = atto_tol(op, ATTO_F32, 1, size + (scale ? scale[i] : 0.0));
    }
    expect_close(&about, got, want, allowed, n);
}

static void make(test_tensor *t, int n, const double *values)
{
    test_tensor_make(t, test_dev, ATTO_F32, atto_shape1(n), LAYOUT_DENSE);
    if (values) test_tensor_put(t, values);
}

static void check_unary(atto_unary_kind kind, int n)
{
    const char *name = atto_unary_name(kind);
    const float lo = -0.25f, hi = 0.75f;
    char grad[32];
    snprintf(grad, sizeof grad, "%s_grad", name);
    for (int i = 0; i < n; i++) {
        const double x = column[0][i], dy = column[1][i];
        judge(name, "y", i, oracle_unary(kind, x, lo, hi), column[2][i]);
        judge(name, "dx", i, oracle_unary_grad(kind, x, dy, lo, hi), column[3][i]);
    }
    test_tensor x, dy, y, dx;
    make(&x, n, column[0]), make(&dy, n, column[1]), make(&y, n, NULL), make(&dx, n, NULL);
    const struct atto_unary_args a = {
        .x = &x.view, .y = &y.view, .dy = &dy.view, .dx = &dx.view, .kind = kind, .lo = lo, .hi = hi
    };
    MUST(atto_unary_forward(test_dev, &a));
    MUST(atto_unary_backward(test_dev, &a));
    expect_column(name, &y, column[2], NULL, n);
    expect_column(grad, &dx, column[3], NULL, n);
    test_tensor_drop(&x), test_tensor_drop(&dy), test_tensor_drop(&y), test_tensor_drop(&dx);
}

static void check_binary(atto_binary_kind kind, int n)
{
    const char *name = atto_binary_name(kind);
    double scale[MOST_LINES];
    char grad[32];
    snprintf(grad, sizeof grad, "%s_grad", name);
    for (int i = 0; i < n; i++) {
        const double a = column[0][i], b = column[1][i], dy = column[2][i];
        judge(name, "y", i, oracle_binary(kind, a, b), column[3][i]);
        judge(name, "da", i, oracle_binary_grad(kind, false, a, b, dy), column[4][i]);
        judge(name, "db", i, oracle_binary_grad(kind, true, a, b, dy), column[5][i]);
        scale[i] = oracle_binary_grad_scale(kind, false, a, b, dy);
        if (!isfinite(scale[i])) scale[i] = 0.0;
    }
    test_tensor a, b, dy, y, da, db;
    make(&a, n, column[0]), make(&b, n, column[1]), make(&dy, n, column[2]);
    make(&y, n, NULL), make(&da, n, NULL), make(&db, n, NULL);
    const struct atto_binary_args args = { .a = &a.view,
                                           .b = &b.view,
                                           .y = &y.view,
                                           .dy = &dy.view,
                                           .da = &da.view,
                                           .db = &db.view,
                                           .kind = kind };
    MUST(atto_binary_forward(test_dev, &args));
    MUST(atto_binary_backward(test_dev, &args));
    expect_column(name, &y, column[3], NULL, n);
    expect_column(grad, &da, column[4], scale, n);
    expect_column(grad, &db, column[5], NULL, n);
    test_tensor_drop(&a), test_tensor_drop(&b), test_tensor_drop(&dy);
    test_tensor_drop(&y), test_tensor_drop(&da), test_tensor_drop(&db);
}

static void golden_elementwise_matches_oracle_and_device(void **state)
{
    (void)state;
    FILE *file = open_golden("elementwise.txt");
    char name[32];
    int n;
    for (int kind = 0; kind < ATTO_UNARY_COUNT; kind++) {
        read_table(file, "unary", 4, name, &n);
        assert_string_equal(name, atto_unary_name((atto_unary_kind)kind));
        check_unary((atto_unary_kind)kind, n);
    }
    for (int kind = 0; kind < ATTO_BINARY_COUNT; kind++) {
        read_table(file, "binary", 6, name, &n);
        assert_string_equal(name, atto_binary_name((atto_binary_kind)kind));
        check_binary((atto_binary_kind)kind, n);
    }
    fclose(file);
}

/* ---- reductions ---- */

static void read_numbers(FILE *file, double *out, int n)
{
    for (int i = 0; i < n; i++)
        if (fscanf(file, "%lf", &out[i]) != 1) fail_msg("golden/reduce.txt is cut");
}

static void check_row(const double *x, double dy, const double *dx, const double *results, int n)
{
    const atto_reduce_kind kinds[] = { ATTO_REDUCE_MAX, ATTO_REDUCE_MIN, ATTO_REDUCE_ARGMAX,
                                       ATTO_REDUCE_ARGMIN };
    test_tensor tx, tdy, tdx, y;
    make(&tx, n, x), make(&tdx, n, NULL);
    test_tensor_make(&tdy, test_dev, ATTO_F32, atto_shape0(), LAYOUT_DENSE);
    test_tensor_put(&tdy, &dy);
    for (int k = 0; k < 4; k++) {
        double got;
        int64_t position;
        const double oracle = oracle_reduce(kinds[k], x, n, &position);
        assert_true(same(k < 2 ? oracle : (double)position, results[k]));
        test_tensor_make(&y, test_dev, k < 2 ? ATTO_F32 : ATTO_I32, atto_shape0(), LAYOUT_DENSE);
        const struct atto_reduce_args a = {
            .x = &tx.view, .y = &y.view, .dy = &tdy.view, .dx = &tdx.view, .kind = kinds[k]
        };
        MUST(atto_reduce_forward(test_dev, &a));
        if (k == 0) MUST(atto_reduce_backward(test_dev, &a));
        test_tensor_get(&y, &got);
        assert_true(same(got, results[k]));
        test_tensor_drop(&y);
    }
    expect_column("max_grad", &tdx, dx, NULL, n);
    test_tensor_drop(&tx), test_tensor_drop(&tdy), test_tensor_drop(&tdx);
}

static void golden_reduce_matches_oracle_and_device(void **state)
{
    (void)state;
    FILE *file = open_golden("reduce.txt");
    int rows, n;
    if (fscanf(file, " rows %d %d", &rows, &n) != 2 || n > MOST_LINES)
        fail_msg("golden/reduce.txt has no rows");
    for (int r = 0; r < rows; r++) {
        double x[MOST_LINES], dx[MOST_LINES], dy, results[4];
        read_numbers(file, x, n);
        read_numbers(file, &dy, 1);
        read_numbers(file, dx, n);
        read_numbers(file, results, 4);
        check_row(x, dy, dx, results, n);
    }
    fclose(file);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(golden_elementwise_matches_oracle_and_device),
    cmocka_unit_test(golden_reduce_matches_oracle_and_device),
};
TEST_MAIN("golden_elementwise", tests)
