/* SPDX-License-Identifier: MIT */
/* PyTorch's own numbers (golden/softmax.txt, float64) judge the oracle tightly and every backend as the
 * oracle does. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "atto_test.h"

#define MOST_NUMBERS 64
#define MOST_CASES   256

typedef struct golden_case {
    char name[16];
    int32_t dim;
    atto_shape shape;
    int64_t n;
    double x[MOST_NUMBERS], dy[MOST_NUMBERS], y[MOST_NUMBERS], dx[MOST_NUMBERS];
} golden_case;

static golden_case cases[MOST_CASES];
static int case_count;

static void malformed(const char *what)
{
    fail_msg(ATTO_GOLDEN_DIR "/softmax.txt: %s; make it again with make_golden.py", what);
}

static void read_numbers(FILE *file, const char *word, double *out, int64_t n)
{
    char name[8];
    if (fscanf(file, " %7s", name) != 1 || strcmp(name, word) != 0) malformed(word);
    for (int64_t i = 0; i < n; i++)
        if (fscanf(file, "%lf", &out[i]) != 1) malformed(word);
}

static bool read_case(FILE *file)
{
    golden_case *c = &cases[case_count];
    if (fscanf(file, " case %15s %d %d", c->name, &c->dim, &c->shape.rank) != 3) return false;
    if (++case_count == MOST_CASES) malformed("too many cases");
    c->n = 1;
    for (int32_t d = 0; d < c->shape.rank; d++) {
        long long size;
        if (fscanf(file, "%lld", &size) != 1) malformed("shape");
        c->n *= c->shape.dim[d] = size;
    }
    if (c->n > MOST_NUMBERS) malformed("too many numbers");
    read_numbers(file, "x", c->x, c->n);
    read_numbers(file, "dy", c->dy, c->n);
    read_numbers(file, "y", c->y, c->n);
    read_numbers(file, "dx", c->dx, c->n);
    return true;
}

static int read_golden(void **state)
{
    (void)state;
    char version[64];
    FILE *file = fopen(ATTO_GOLDEN_DIR "/softmax.txt", "r");
    if (!file) {
        print_error("cannot open " ATTO_GOLDEN_DIR "/softmax.txt\n");
        return -1;
    }
    if (fscanf(file, "#%*[^\n] torch %63s", version) != 1 || strncmp(version, "2.11", 4) != 0)
        malformed("not from PyTorch 2.11");
    while (read_case(file)) {
    }
    fclose(file);
    return 0;
}

static void golden_softmax_is_complete(void **state)
{
    (void)state;
    assert_true(case_count >= 120);
    for (int i = 0; i < case_count; i++)
        for (int64_t k = 0; k < cases[i].n; k++)
            assert_true(isnan(cases[i].x[k]) || cases[i].x[k] == (double)(float)cases[i].x[k]);
}

static oracle_softmax question_of(const golden_case *c)
{
    const int32_t along = c->dim < 0 ? c->dim + c->shape.rank : c->dim;
    oracle_softmax s = { 1, 1, 1, ATTO_SOFTMAX_COUNT, c->x, c->y, c->dy };
    for (int kind = 0; kind < ATTO_SOFTMAX_COUNT; kind++)
        if (strcmp(c->name, atto_softmax_name((atto_softmax_kind)kind)) == 0)
            s.kind = (atto_softmax_kind)kind;
    if (s.kind == ATTO_SOFTMAX_COUNT) malformed(c->name);
    for (int32_t d = 0; d < c->shape.rank; d++)
        *(d < along ? &s.outer : d > along ? &s.step : &s.size) *= c->shape.dim[d];
    return s;
}

/* Both are double: a few dozen roundings of 2^-53 of the terms, and what PyTorch calls 0. */
static void judge_oracle(const golden_case *c, const char *what, const double *got,
                         const double *want, const double *terms)
{
    for (int64_t i = 0; i < c->n; i++) {
        if (isnan(got[i]) && isnan(want[i])) continue;
        if (got[i] == want[i] || fabs(got[i] - want[i]) <= 64.0 * 0x1p-53 * terms[i]) continue;
        fail_msg("%s over %d, %s[%d]: the oracle says %.17g, PyTorch %.17g", c->name, (int)c->dim,
                 what, (int)i, got[i], want[i]);
    }
}

static void golden_softmax_matches_oracle(void **state)
{
    (void)state;
    double got[MOST_NUMBERS], terms[MOST_NUMBERS];
    for (int i = 0; i < case_count; i++) {
        const oracle_softmax s = question_of(&cases[i]);
        oracle_softmax_forward(&s, got, terms);
        judge_oracle(&cases[i], "y", got, cases[i].y, terms);
        oracle_softmax_backward(&s, got, terms);
        judge_oracle(&cases[i], "dx", got, cases[i].dx, terms);
    }
}

static void judge_device(const golden_case *c, const test_tensor *t, const char *op, int64_t n,
                         const double *want, const double *terms)
{
    double got[MOST_NUMBERS], allowed[MOST_NUMBERS];
    const test_about about = { op, "dense", ATTO_F32, c->shape, 0 };
    test_tensor_get(t, got);
    for (int64_t i = 0; i < c->n; i++)
        allowed[i] = isfinite(want[i]) ? atto_tol(op, ATTO_F32, n, terms[i]) : 0.0;
    expect_close(&about, got, want, allowed, c->n);
}

/* y is stored in f32 between the two, which moves dx by a rounding of y: of the terms, and of |y| where it is
 * an exponent. */
static void check_device(const golden_case *c)
{
    const oracle_softmax s = question_of(c);
    double terms[MOST_NUMBERS], unused[MOST_NUMBERS];
    char grad[32];
    test_tensor t[4];
    struct atto_softmax_args a = { .x = &t[0].view,
                                   .y = &t[1].view,
                                   .dy = &t[2].view,
                                   .dx = &t[3].view,
                                   .kind = s.kind,
                                   .dim = c->dim };
    for (int i = 0; i < 4; i++) test_tensor_make(&t[i], test_dev, ATTO_F32, c->shape, LAYOUT_DENSE);
    test_tensor_put(&t[0], c->x);
    MUST(atto_softmax_forward(test_dev, &a));
    oracle_softmax_forward(&s, unused, terms);
    judge_device(c, &t[1], c->name, s.size, c->y, terms);

    snprintf(grad, sizeof grad, "%s_grad", c->name);
    test_tensor_put(&t[1], c->y);
    test_tensor_put(&t[2], c->dy);
    MUST(atto_softmax_backward(test_dev, &a));
    oracle_softmax_backward(&s, unused, terms);
    for (int64_t i = 0; i < c->n; i++)
        if (s.kind == ATTO_SOFTMAX_LOG && isfinite(c->y[i])) terms[i] *= 1.0 + fabs(c->y[i]) / 8.0;
    judge_device(c, &t[3], grad, s.size + 2, c->dx, terms);
    for (int i = 0; i < 4; i++) test_tensor_drop(&t[i]);
}

static void golden_softmax_matches_device(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) check_device(&cases[i]);
    MUST(atto_device_sync(test_dev));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(golden_softmax_is_complete, read_golden),
    cmocka_unit_test(golden_softmax_matches_oracle),
    cmocka_unit_test(golden_softmax_matches_device),
};
TEST_MAIN("golden_softmax", tests)
