/* SPDX-License-Identifier: MIT */
/* PyTorch's own numbers (golden/act.txt, float64) judge the oracle tightly and every backend as the
 * oracle does. Where we differ from PyTorch on purpose there is a row with the reason. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

/* ---- the file ---- */

#define MOST_INPUTS 256
#define MOST_ROWS   64

typedef struct golden_row {
    atto_activation act;
    double y[MOST_INPUTS];
    double dx1[MOST_INPUTS]; /* for dy = 1 */
    double dx[MOST_INPUTS];  /* for the file's dy */
} golden_row;

static struct golden {
    char torch[64];
    int inputs, rows;
    double x[MOST_INPUTS], dy[MOST_INPUTS];
    golden_row row[MOST_ROWS];
} golden;

static void malformed(const char *what)
{
    fail_msg(ATTO_GOLDEN_DIR "/act.txt: %s; make it again with make_golden.py", what);
}

static atto_activation_kind kind_of(const char *name)
{
    for (int kind = 0; kind < ATTO_ACT_COUNT; kind++)
        if (strcmp(name, atto_activation_name((atto_activation_kind)kind)) == 0)
            return (atto_activation_kind)kind;
    malformed(name);
    return ATTO_ACT_IDENTITY;
}

static void read_inputs(FILE *file)
{
    if (fscanf(file, " inputs %d", &golden.inputs) != 1 || golden.inputs < 1 ||
        golden.inputs > MOST_INPUTS)
        malformed("no inputs");
    for (int i = 0; i < golden.inputs; i++)
        if (fscanf(file, "%lf %lf", &golden.x[i], &golden.dy[i]) != 2) malformed("inputs");
}

static bool read_row(FILE *file)
{
    char name[32];
    double a, b;
    if (fscanf(file, " act %31s %lf %lf", name, &a, &b) != 3) return false;
    if (golden.rows == MOST_ROWS) malformed("too many rows");
    golden_row *row = &golden.row[golden.rows++];
    row->act = (atto_activation){ kind_of(name), (float)a, (float)b };
    for (int i = 0; i < golden.inputs; i++)
        if (fscanf(file, "%lf %lf %lf", &row->y[i], &row->dx1[i], &row->dx[i]) != 3)
            malformed(name);
    return true;
}

static int read_golden(void **state)
{
    (void)state;
    FILE *file = fopen(ATTO_GOLDEN_DIR "/act.txt", "r");
    if (!file) {
        print_error("cannot open " ATTO_GOLDEN_DIR "/act.txt\n");
        return -1;
    }
    int first;
    while ((first = fgetc(file)) == '#') /* comments stand at the ends of the file only */
        while ((first = fgetc(file)) != '\n' && first != EOF) {
        }
    ungetc(first, file);
    if (fscanf(file, " torch %63s", golden.torch) != 1) malformed("no version");
    read_inputs(file);
    while (read_row(file)) {
    }
    fclose(file);
    return 0;
}

#define PYTORCH_ACTIVATIONS 22 /* that make_golden.py asks PyTorch for */

static void golden_file_is_complete(void **state)
{
    (void)state;
    bool seen[ATTO_ACT_COUNT] = { false };
    for (int r = 0; r < golden.rows; r++) {
        const atto_activation act = golden.row[r].act;
        const atto_activation standard = atto_activation_default(act.kind);
        if (act.a == standard.a && act.b == standard.b) seen[act.kind] = true;
    }
    int count = 0;
    for (int kind = 0; kind < ATTO_ACT_COUNT; kind++) {
        count += seen[kind];
        if (!seen[kind]) /* PyTorch may not have it; then the oracle judges alone */
            print_message("  not in the golden file: %s\n",
                          atto_activation_name((atto_activation_kind)kind));
    }
    assert_true(count >= PYTORCH_ACTIVATIONS);
    for (int i = 0; i < golden.inputs; i++) /* a float tensor can hold the inputs */
        assert_true(isnan(golden.x[i]) || golden.x[i] == (double)(float)golden.x[i]);
    assert_int_equal(strncmp(golden.torch, "2.11", 4), 0);
}

/* ---- policy ---- */

/* Where our derivative differs. PyTorch forms 0 * infinity or infinity / infinity there; ours is
 * the limit. At NaN PyTorch's vector and scalar loops disagree with each other for some. */
static struct policy_row {
    atto_activation_kind kind;
    double x;
    const char *why;
    bool used;
} policies[] = {
    { ATTO_ACT_GELU, INFINITY, "the limit is 1, not infinity * 0", false },
    { ATTO_ACT_GELU, -INFINITY, "the limit is 0, not infinity * 0", false },
    { ATTO_ACT_GELU_TANH, INFINITY, "the limit is 1, not infinity * 0", false },
    { ATTO_ACT_GELU_TANH, -INFINITY, "the limit is 0, not infinity * 0", false },
    { ATTO_ACT_SILU, INFINITY, "the limit is 1, not infinity * 0", false },
    { ATTO_ACT_SILU, -INFINITY, "the limit is 0, not infinity * 0", false },
    { ATTO_ACT_MISH, INFINITY, "the limit is 1, not infinity * 0", false },
    { ATTO_ACT_MISH, -INFINITY, "the limit is 0, not infinity * 0", false },
    { ATTO_ACT_SOFTSIGN, INFINITY, "the limit is 0, not infinity / infinity", false },
    { ATTO_ACT_SOFTSIGN, -INFINITY, "the limit is 0, not infinity / infinity", false },
    { ATTO_ACT_ELU, NAN, "NaN passes on", false },
    { ATTO_ACT_SELU, NAN, "NaN passes on", false },
    { ATTO_ACT_CELU, NAN, "NaN passes on", false },
    { ATTO_ACT_HARDSWISH, NAN, "NaN passes on", false },
};

static bool same(double p, double q)
{
    return p == q || (isnan(p) && isnan(q));
}

/* Whether the gradient at x is ours to choose; such a row must really be needed. */
static bool is_policy(atto_activation_kind kind, double x)
{
    for (int i = 0; i < COUNT_OF(policies); i++)
        if (policies[i].kind == kind && same(policies[i].x, x)) return policies[i].used = true;
    return false;
}

/* ---- the oracle against PyTorch ---- */

/* Both are double: a few roundings of 2^-53, relative, plus as many of the size of the terms that
 * PyTorch's textbook forms cancel: 1 - s, 1 + erf, x - tanh x, all up to max(1, |y|). */
static double double_tolerance(atto_activation_kind kind, double value)
{
    /* PyTorch 2.11 has 1/6 as a float constant in hardsigmoid's gradient, in double kernels too */
    const double epsilon = kind == ATTO_ACT_HARDSIGMOID ? 0x1p-24 : 64.0 * 0x1p-53;
    return epsilon * fmax(1.0, fabs(value));
}

static void judge_oracle(const golden_row *row, const char *what, double x, double got, double want)
{
    if (same(got, want) || fabs(got - want) <= double_tolerance(row->act.kind, want)) return;
    fail_msg("%s of %s(%g, %g) at %.17g: the oracle says %.17g, PyTorch %s %.17g", what,
             atto_activation_name(row->act.kind), row->act.a, row->act.b, x, got, golden.torch,
             want);
}

static void golden_act_matches_oracle(void **state)
{
    (void)state;
    for (int r = 0; r < golden.rows; r++) {
        const golden_row *row = &golden.row[r];
        const oracle_act *o = oracle_act_of(row->act.kind);
        for (int i = 0; i < golden.inputs; i++) {
            const double x = golden.x[i];
            const double df = o->df(x, row->act.a, row->act.b);
            judge_oracle(row, "y", x, o->f(x, row->act.a, row->act.b), row->y[i]);
            if (isnan(df) != isnan(row->dx1[i]) && is_policy(row->act.kind, x)) continue;
            judge_oracle(row, "gradient", x, df, row->dx1[i]);
            judge_oracle(row, "gradient times dy", x, df * golden.dy[i], row->dx[i]);
        }
    }
    for (int i = 0; i < COUNT_OF(policies); i++)
        if (!policies[i].used)
            fail_msg("PyTorch %s agrees on the gradient of %s at %g: drop the row (%s)",
                     golden.torch, atto_activation_name(policies[i].kind), policies[i].x,
                     policies[i].why);
}

/* ---- the device against PyTorch ---- */

static void check_device(const golden_row *row)
{
    const int n = golden.inputs;
    const atto_shape shape = atto_shape1(n);
    double got[MOST_INPUTS], want[MOST_INPUTS], allowed[MOST_INPUTS];
    test_tensor x, y, dy, dx;
    test_tensor *all[] = { &x, &y, &dy, &dx };
    for (int i = 0; i < 4; i++) test_tensor_make(all[i], test_dev, ATTO_F32, shape, LAYOUT_DENSE);
    test_tensor_put(&x, golden.x);
    test_tensor_put(&dy, golden.dy);
    const struct atto_act_args a = {
        .x = &x.view, .y = &y.view, .dy = &dy.view, .dx = &dx.view, .act = row->act
    };
    MUST(atto_act_forward(test_dev, &a));
    MUST(atto_act_backward(test_dev, &a));

    char name[32];
    snprintf(name, sizeof name, "%s", atto_activation_name(row->act.kind));
    test_about about = { name, "dense", ATTO_F32, shape, 0 };
    test_tensor_get(&y, got);
    for (int i = 0; i < n; i++)
        allowed[i] = atto_tol(name, ATTO_F32, 1, oracle_act_terms(row->act, 0.0f, golden.x[i])) +
                     double_tolerance(row->act.kind, 0.0);
    expect_close(&about, got, row->y, allowed, n);

    snprintf(name, sizeof name, "%s_grad", atto_activation_name(row->act.kind));
    test_tensor_get(&dx, got);
    for (int i = 0; i < n; i++) {
        const double terms = oracle_act_grad_terms(row->act, 0.0f, golden.x[i], golden.dy[i]);
        allowed[i] =
            atto_tol(name, ATTO_F32, 1, terms) + 2.0 * double_tolerance(row->act.kind, 0.0);
        want[i] = row->dx[i];
        if (is_policy(row->act.kind, golden.x[i])) /* ours, as the oracle has it */
            want[i] = oracle_act_of(row->act.kind)->df(golden.x[i], row->act.a, row->act.b) *
                      golden.dy[i];
    }
    expect_close(&about, got, want, allowed, n);
    for (int i = 0; i < 4; i++) test_tensor_drop(all[i]);
}

static void golden_act_matches_device(void **state)
{
    (void)state;
    for (int r = 0; r < golden.rows; r++) check_device(&golden.row[r]);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(golden_file_is_complete, read_golden),
    cmocka_unit_test(golden_act_matches_oracle),
    cmocka_unit_test(golden_act_matches_device),
};
TEST_MAIN("golden_act", tests)
