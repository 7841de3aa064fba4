/* SPDX-License-Identifier: MIT */
/* PyTorch's own numbers (golden/softmax.txt, float64) judge the oracle tightly and every backend as
 * the oracle does. */
#include <math.h>
#include <string.h>

#include "golden.h"

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

static bool read_case(FILE *file)
{
    golden_case *c = &cases[case_count];
    if (fscanf(file, " case %15s %d", c->name, &c->dim) != 2) return false;
    if (++case_count == MOST_CASES) golden_malformed("too many cases");
    c->shape = golden_shape(file);
    c->n = golden_numel(c->shape);
    golden_numbers(file, "x", c->x, c->n);
    golden_numbers(file, "dy", c->dy, c->n);
    golden_numbers(file, "y", c->y, c->n);
    golden_numbers(file, "dx", c->dx, c->n);
    return true;
}

static int read_golden(void **state)
{
    (void)state;
    FILE *file = golden_open("softmax", MOST_NUMBERS);
    if (!file) return -1;
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
    if (s.kind == ATTO_SOFTMAX_COUNT) golden_malformed(c->name);
    for (int32_t d = 0; d < c->shape.rank; d++)
        *(d < along ? &s.outer : d > along ? &s.step : &s.size) *= c->shape.dim[d];
    return s;
}

static void golden_softmax_matches_oracle(void **state)
{
    (void)state;
    double got[MOST_NUMBERS], terms[MOST_NUMBERS];
    for (int i = 0; i < case_count; i++) {
        const oracle_softmax s = question_of(&cases[i]);
        oracle_softmax_forward(&s, got, terms);
        golden_judge(i, "y", got, cases[i].y, terms, cases[i].n);
        oracle_softmax_backward(&s, got, terms);
        golden_judge(i, "dx", got, cases[i].dx, terms, cases[i].n);
    }
}

/* y is stored in f32 between the two, which moves dx by a rounding of y: of the terms, and of |y|
 * where it is an exponent. */
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
    golden_expect(&t[1], c->name, s.size, c->y, terms);

    snprintf(grad, sizeof grad, "%s_grad", c->name);
    test_tensor_put(&t[1], c->y);
    test_tensor_put(&t[2], c->dy);
    MUST(atto_softmax_backward(test_dev, &a));
    oracle_softmax_backward(&s, unused, terms);
    for (int64_t i = 0; i < c->n; i++)
        if (s.kind == ATTO_SOFTMAX_LOG && isfinite(c->y[i])) terms[i] *= 1.0 + fabs(c->y[i]) / 8.0;
    golden_expect(&t[3], grad, s.size + 2, c->dx, terms);
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
