/* SPDX-License-Identifier: MIT */
/* PyTorch's own numbers (golden/glu.txt, float64) judge the oracle tightly and every backend as the
 * oracle does. */
#include <math.h>
#include <string.h>

#include "golden.h"

#define MOST_NUMBERS 32
#define MOST_CASES   256

typedef struct golden_case {
    atto_activation act;
    int32_t dim;
    atto_shape shape; /* of x */
    int64_t n;        /* of y */
    double x[MOST_NUMBERS], dy[MOST_NUMBERS], y[MOST_NUMBERS], dx[MOST_NUMBERS];
} golden_case;

static golden_case cases[MOST_CASES];
static int case_count;

static atto_activation activation_of(const char *name, double a, double b)
{
    for (int kind = 0; kind < ATTO_ACT_COUNT; kind++)
        if (strcmp(name, atto_activation_name((atto_activation_kind)kind)) == 0)
            return (atto_activation){ (atto_activation_kind)kind, (float)a, (float)b };
    golden_malformed(name);
    return atto_identity();
}

static bool read_case(FILE *file)
{
    golden_case *c = &cases[case_count];
    char name[16];
    double a, b;
    if (fscanf(file, " case %15s %lf %lf %d", name, &a, &b, &c->dim) != 4) return false;
    if (++case_count == MOST_CASES) golden_malformed("too many cases");
    c->act = activation_of(name, a, b);
    c->shape = golden_shape(file);
    const int64_t numbers = golden_numel(c->shape);
    c->n = numbers / 2;
    golden_numbers(file, "x", c->x, numbers);
    golden_numbers(file, "dy", c->dy, c->n);
    golden_numbers(file, "y", c->y, c->n);
    golden_numbers(file, "dx", c->dx, numbers);
    return true;
}

static int read_golden(void **state)
{
    (void)state;
    FILE *file = golden_open("glu", MOST_NUMBERS);
    if (!file) return -1;
    while (read_case(file)) {
    }
    fclose(file);
    return 0;
}

/* Every activation is there. */
static void golden_glu_is_complete(void **state)
{
    (void)state;
    bool seen[ATTO_ACT_COUNT] = { false };
    assert_true(case_count >= 120);
    for (int i = 0; i < case_count; i++) seen[cases[i].act.kind] = true;
    for (int kind = 0; kind < ATTO_ACT_COUNT; kind++) assert_true(seen[kind]);
}

static oracle_glu question_of(const golden_case *c)
{
    const int32_t along = c->dim < 0 ? c->dim + c->shape.rank : c->dim;
    oracle_glu g = { 1, 1, c->act, c->x, c->dy };
    for (int32_t d = 0; d < c->shape.rank; d++)
        *(d < along ? &g.outer : &g.width) *= c->shape.dim[d];
    g.width /= 2;
    return g;
}

/* Both are double: a few dozen roundings of 2^-53 of the terms, and of what PyTorch adds and takes
 * away again, 1 in erf and tanh, times a and b or dy, which are at most 6 and 2. */
static void judge_oracle(const golden_case *c, const char *what, const double *got,
                         const double *want, const double *terms, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        /* PyTorch 2.11 has 1/6 as a float constant in hardsigmoid's gradient */
        const double epsilon = c->act.kind == ATTO_ACT_HARDSIGMOID ? 0x1p-24 : 64.0 * 0x1p-53;
        const double allowed = epsilon * terms[i] + 64.0 * 0x1p-53 * 36.0;
        if (fabs(got[i] - want[i]) <= allowed) continue;
        fail_msg("glu of %s, %s[%d]: the oracle says %.17g, PyTorch %.17g",
                 atto_activation_name(c->act.kind), what, (int)i, got[i], want[i]);
    }
}

static void golden_glu_matches_oracle(void **state)
{
    (void)state;
    double got[MOST_NUMBERS], terms[MOST_NUMBERS];
    for (int i = 0; i < case_count; i++) {
        const oracle_glu g = question_of(&cases[i]);
        oracle_glu_forward(&g, got, terms);
        judge_oracle(&cases[i], "y", got, cases[i].y, terms, cases[i].n);
        oracle_glu_backward(&g, got, terms);
        judge_oracle(&cases[i], "dx", got, cases[i].dx, terms, 2 * cases[i].n);
    }
}

/* PyTorch's own error stands beside ours: 1/6 as a float is a rounding more. */
static void judge_device(const golden_case *c, const test_tensor *t, const double *want,
                         const double *terms)
{
    const bool backward = t->numel != c->n;
    const oracle_glu g = question_of(c);
    double got[MOST_NUMBERS], allowed[MOST_NUMBERS];
    char grad[32];
    const char *op = atto_activation_name(c->act.kind);
    const test_about about = { "glu", "dense", ATTO_F32, c->shape, 0 };
    snprintf(grad, sizeof grad, "%s_grad", op);
    test_tensor_get(t, got);
    for (int64_t i = 0; i < t->numel; i++) {
        const bool is_gate = backward && i / g.width % 2 == 1;
        allowed[i] = atto_tol(is_gate ? grad : op, ATTO_F32, 3, terms[i]) + 64.0 * 0x1p-53 * 36.0;
    }
    expect_close(&about, got, want, allowed, t->numel);
}

static void check_device(const golden_case *c)
{
    const oracle_glu g = question_of(c);
    const int32_t along = c->dim < 0 ? c->dim + c->shape.rank : c->dim;
    double unused[MOST_NUMBERS], terms[MOST_NUMBERS];
    atto_shape half = c->shape;
    half.dim[along] /= 2;
    test_tensor t[4];
    struct atto_glu_args a = { .x = &t[0].view,
                               .y = &t[1].view,
                               .dy = &t[2].view,
                               .dx = &t[3].view,
                               .act = c->act,
                               .dim = c->dim };
    for (int i = 0; i < 4; i++)
        test_tensor_make(&t[i], test_dev, ATTO_F32, i % 3 ? half : c->shape, LAYOUT_DENSE);
    test_tensor_put(&t[0], c->x);
    test_tensor_put(&t[2], c->dy);
    MUST(atto_glu_forward(test_dev, &a));
    oracle_glu_forward(&g, unused, terms);
    judge_device(c, &t[1], c->y, terms);
    MUST(atto_glu_backward(test_dev, &a));
    oracle_glu_backward(&g, unused, terms);
    judge_device(c, &t[3], c->dx, terms);
    for (int i = 0; i < 4; i++) test_tensor_drop(&t[i]);
}

static void golden_glu_matches_device(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) check_device(&cases[i]);
    MUST(atto_device_sync(test_dev));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(golden_glu_is_complete, read_golden),
    cmocka_unit_test(golden_glu_matches_oracle),
    cmocka_unit_test(golden_glu_matches_device),
};
TEST_MAIN("golden_glu", tests)
