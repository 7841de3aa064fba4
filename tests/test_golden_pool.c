/* SPDX-License-Identifier: MIT */
/* PyTorch's own numbers (golden/pool.txt, float64) judge the oracle tightly and every backend as
 * the oracle does. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "golden.h"

#define MOST_NUMBERS 64
#define MOST_INPUTS  8
#define MOST_CASES   400

typedef struct golden_input {
    atto_shape shape;
    int64_t numel;
    double x[MOST_NUMBERS];
} golden_input;

typedef struct golden_case {
    const golden_input *input;
    oracle_pool o;
    atto_shape y_shape;
    int64_t numel; /* of y */
    double dy[MOST_NUMBERS], y[MOST_NUMBERS], index[MOST_NUMBERS], dx[MOST_NUMBERS];
} golden_case;

static golden_input inputs[MOST_INPUTS];
static golden_case cases[MOST_CASES];
static int input_count, case_count;

static void read_input(FILE *file)
{
    golden_input *in = &inputs[input_count];
    int number;
    if (input_count == MOST_INPUTS) golden_malformed("too many inputs");
    if (fscanf(file, "%d", &number) != 1 || number != input_count) golden_malformed("input");
    in->shape = golden_shape(file);
    in->numel = golden_numel(in->shape);
    golden_numbers(file, "x", in->x, in->numel);
    input_count++;
}

static void measure(golden_case *c, const long long *out)
{
    const int32_t dims = c->o.window.dims, rank = c->input->shape.rank;
    c->o.planes = c->o.h = c->o.oh = 1;
    c->y_shape = c->input->shape;
    for (int32_t d = 0; d < rank - dims; d++) c->o.planes *= c->y_shape.dim[d];
    for (int32_t at = 0; at < dims; at++) {
        int64_t *size = &c->y_shape.dim[rank - dims + at];
        const bool is_height = dims == 2 && at == 0;
        *(is_height ? &c->o.h : &c->o.w) = *size;
        *size = c->o.window.adaptive ? out[at] : oracle_pool_outputs(&c->o.window, at, *size);
        *(is_height ? &c->o.oh : &c->o.ow) = *size;
    }
    c->numel = c->o.planes * c->o.oh * c->o.ow;
}

static void read_case(FILE *file)
{
    golden_case *c = &cases[case_count];
    atto_pool_window *w = &c->o.window;
    char op[16];
    int input, dims;
    long long n[13];
    if (case_count == MOST_CASES) golden_malformed("too many cases");
    if (fscanf(file, "%15s %d %d", op, &input, &dims) != 3 || input >= input_count)
        golden_malformed("case");
    for (int i = 0; i < 13; i++)
        if (fscanf(file, "%lld", &n[i]) != 1) golden_malformed("case");
    c->input = &inputs[input];
    c->o.is_max = strstr(op, "max") != NULL;
    w->dims = dims;
    w->adaptive = strncmp(op, "adaptive", 8) == 0;
    for (int at = 0; at < dims; at++) {
        w->kernel[at] = n[at], w->stride[at] = n[2 + at];
        w->padding[at] = n[4 + at], w->dilation[at] = n[6 + at];
    }
    w->ceil_mode = n[8];
    c->o.exclude = n[9];
    c->o.override = n[10];
    c->o.x = c->input->x;
    c->o.dy = c->dy;
    measure(c, n + 11);
    golden_numbers(file, "dy", c->dy, c->numel);
    golden_numbers(file, "y", c->y, c->numel);
    if (c->o.is_max) golden_numbers(file, "index", c->index, c->numel);
    golden_numbers(file, "dx", c->dx, c->input->numel);
    case_count++;
}

static int read_golden(void **state)
{
    (void)state;
    char word[64];
    FILE *file = golden_open("pool", MOST_NUMBERS);
    if (!file) return -1;
    while (fscanf(file, " %63s", word) == 1) {
        if (strcmp(word, "input") == 0) {
            read_input(file);
        } else if (strcmp(word, "case") == 0) {
            read_case(file);
        } else {
            golden_malformed(word);
        }
    }
    fclose(file);
    return 0;
}

static void golden_pool_is_complete(void **state)
{
    (void)state;
    int kinds[4] = { 0 };
    for (int i = 0; i < case_count; i++)
        kinds[cases[i].o.is_max + 2 * cases[i].o.window.adaptive]++;
    assert_true(case_count >= 200 && input_count == 6);
    for (int i = 0; i < 4; i++) assert_true(kinds[i] >= 20);
    for (int i = 0; i < input_count; i++)
        for (int64_t k = 0; k < inputs[i].numel; k++)
            assert_true(isnan(inputs[i].x[k]) || inputs[i].x[k] == (double)(float)inputs[i].x[k]);
}

/* ---- the oracle and the device against PyTorch ---- */

static double y[MOST_NUMBERS], at[MOST_NUMBERS], terms[MOST_NUMBERS], divisor[MOST_NUMBERS];
static double dx[MOST_NUMBERS], dx_terms[MOST_NUMBERS];
static int64_t summed[MOST_NUMBERS], dx_summed[MOST_NUMBERS];
static oracle_pool_answer answer = { .y = y,
                                     .index = at,
                                     .terms = terms,
                                     .divisor = divisor,
                                     .summed = summed,
                                     .dx = dx,
                                     .dx_terms = dx_terms,
                                     .dx_summed = dx_summed };

static void golden_pool_matches_oracle(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) {
        const golden_case *c = &cases[i];
        oracle_pooling(&c->o, &answer);
        golden_judge(i, "y", y, c->y, terms, c->numel);
        if (c->o.is_max) golden_judge(i, "index", at, c->index, terms, c->numel);
        golden_judge(i, "dx", dx, c->dx, dx_terms, c->input->numel);
    }
}

static void judge_device(const test_tensor *t, const char *op, const double *want,
                         const double *sizes, const int64_t *counts)
{
    double got[MOST_NUMBERS], allowed[MOST_NUMBERS];
    const test_about about = { op, "dense", t->view.dtype,
                               atto_shape_of(t->view.rank, t->view.shape), 0 };
    test_tensor_get(t, got);
    for (int64_t i = 0; i < t->numel; i++)
        allowed[i] = isfinite(want[i])
                         ? atto_tol(op, ATTO_F32, counts[i] > 0 ? counts[i] : 1, sizes[i])
                         : 0.0;
    expect_close(&about, got, want, allowed, t->numel);
}

static void check_device(const golden_case *c)
{
    test_tensor tx, ty, ti, tdy, tdx;
    test_tensor_make(&tx, test_dev, ATTO_F32, c->input->shape, LAYOUT_DENSE);
    test_tensor_make(&ty, test_dev, ATTO_F32, c->y_shape, LAYOUT_DENSE);
    test_tensor_make(&ti, test_dev, ATTO_I64, c->y_shape, LAYOUT_DENSE);
    test_tensor_make(&tdy, test_dev, ATTO_F32, c->y_shape, LAYOUT_DENSE);
    test_tensor_make(&tdx, test_dev, ATTO_F32, c->input->shape, LAYOUT_DENSE);
    test_tensor_put(&tx, c->input->x);
    test_tensor_put(&tdy, c->dy);
    const struct atto_avg_pool_args avg = { .x = &tx.view,
                                            .y = &ty.view,
                                            .dy = &tdy.view,
                                            .dx = &tdx.view,
                                            .exclude_padding = c->o.exclude,
                                            .divisor_override = c->o.override,
                                            .window = c->o.window };
    const struct atto_max_pool_args max = { .x = &tx.view,
                                            .y = &ty.view,
                                            .indices = &ti.view,
                                            .dy = &tdy.view,
                                            .dx = &tdx.view,
                                            .window = c->o.window };
    oracle_pooling(&c->o, &answer); /* the terms */
    if (c->o.is_max) {
        double got[MOST_NUMBERS];
        const test_about about = { "indices", "dense", ATTO_I64, c->y_shape, 0 };
        MUST(atto_max_pool_forward(test_dev, &max));
        MUST(atto_max_pool_backward(test_dev, &max));
        test_tensor_get(&ti, got);
        expect_equal(&about, got, c->index, c->numel);
    } else {
        MUST(atto_avg_pool_forward(test_dev, &avg));
        MUST(atto_avg_pool_backward(test_dev, &avg));
    }
    judge_device(&ty, c->o.is_max ? "max_pool" : "avg_pool", c->y, terms, summed);
    judge_device(&tdx, c->o.is_max ? "max_pool_grad" : "avg_pool_grad", c->dx, dx_terms, dx_summed);
    test_tensor *all[] = { &tx, &ty, &ti, &tdy, &tdx };
    for (int i = 0; i < COUNT_OF(all); i++) test_tensor_drop(all[i]);
}

static void golden_pool_matches_device(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) check_device(&cases[i]);
    MUST(atto_device_sync(test_dev));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(golden_pool_is_complete, read_golden),
    cmocka_unit_test(golden_pool_matches_oracle),
    cmocka_unit_test(golden_pool_matches_device),
};
TEST_MAIN("golden_pool", tests)
