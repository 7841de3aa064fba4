/* SPDX-License-Identifier: MIT */
/* PyTorch's own numbers (golden/conv.txt, float64) judge the oracle of convolutions. Everything in them is a
 * whole number, so that sums are exact. */
#include <stdlib.h>
#include <string.h>

#include "golden.h"
#include "oracle_conv.h"

#define BATCH        2
#define CHANNELS     4
#define MOST_CASES   800
#define MOST_NUMBERS 2000

typedef struct golden_case {
    oracle_conv o;
    bool same, bias;
    long start; /* of its numbers in the file */
} golden_case;

static golden_case cases[MOST_CASES];
static int case_count;
static FILE *golden;

static double x[MOST_NUMBERS], w[MOST_NUMBERS], b[MOST_NUMBERS], dy[MOST_NUMBERS];
static double want[MOST_NUMBERS], got[MOST_NUMBERS], terms[MOST_NUMBERS];
static oracle_sum y_sums[MOST_NUMBERS], dx_sums[MOST_NUMBERS], dw_sums[MOST_NUMBERS];
static oracle_sum db_sums[MOST_NUMBERS];

static const char *const rims[] = { "zeros", "reflect", "replicate", "circular" };

/* As conv_numbers of make_golden.py has them. */
static void make_up(int number, int which, double *out, int64_t n)
{
    if (n > MOST_NUMBERS) golden_malformed("too many numbers");
    for (int64_t i = 0; i < n; i++)
        out[i] = (double)((i * i * 7 + i * 13 + number * 5 + which * 3) % 11 - 5);
}

static void read_axes(FILE *file, oracle_conv *o, int dims, int64_t *padding)
{
    long long n[5][2] = { { 1, 1 }, { 1, 1 }, { 1, 1 }, { 0, 0 }, { 0, 0 } };
    for (int what = 0; what < 5; what++)
        for (int at = 2 - dims; at < 2; at++)
            if (fscanf(file, "%lld", &n[what][at]) != 1) golden_malformed("case");
    for (int at = 0; at < 2; at++) {
        o->axis[at].kernel = n[0][at], o->axis[at].stride = n[1][at];
        o->axis[at].dilation = n[2][at];
        padding[at] = n[3][at]; /* what is added to the output follows from its size */
    }
}

static void measure(golden_case *c, int dims, const int64_t *padding, atto_shape y)
{
    static const int64_t sizes[3][2] = { { 0, 0 }, { 1, 8 }, { 5, 4 } };
    c->o.batch = BATCH;
    c->o.channels = CHANNELS;
    c->o.outputs = y.dim[1];
    for (int at = 0; at < 2; at++) {
        oracle_conv_axis *a = &c->o.axis[at];
        a->in = sizes[dims][at];
        a->out = at < 2 - dims ? 1 : y.dim[dims + at];
        a->before = c->same ? a->dilation * (a->kernel - 1) / 2 : padding[at];
    }
}

static void read_case(FILE *file)
{
    golden_case *c = &cases[case_count];
    char kind[16], rim[16], padded[16];
    int dims, bias;
    long long groups;
    int64_t padding[2];
    if (case_count == MOST_CASES) golden_malformed("too many cases");
    if (fscanf(file, "%15s %15s %15s %d %lld %d", kind, rim, padded, &dims, &groups, &bias) != 6)
        golden_malformed("case");
    c->o.transposed = strcmp(kind, "transposed") == 0;
    while (c->o.rim < ORACLE_RIM_CIRCULAR && strcmp(rim, rims[c->o.rim]) != 0) c->o.rim++;
    c->same = strcmp(padded, "same") == 0;
    c->bias = bias != 0;
    c->o.groups = groups;
    read_axes(file, &c->o, dims, padding);
    measure(c, dims, padding, golden_shape(file));
    c->start = ftell(file);
    golden_numbers(file, "y", want, oracle_conv_y(&c->o));
    golden_numbers(file, "dx", want, oracle_conv_x(&c->o));
    golden_numbers(file, "dw", want, oracle_conv_w(&c->o));
    if (c->bias) golden_numbers(file, "db", want, c->o.outputs);
    case_count++;
}

static int read_golden(void **state)
{
    (void)state;
    golden = golden_open("conv", MOST_NUMBERS);
    if (!golden) return -1;
    while (golden_case_begins(golden)) read_case(golden);
    return 0;
}

static int close_golden(void **state)
{
    (void)state;
    fclose(golden);
    return 0;
}

static void golden_conv_is_complete(void **state)
{
    (void)state;
    int kinds[2] = { 0 }, of_rim[4] = { 0 }, same = 0, depthwise = 0;
    for (int i = 0; i < case_count; i++) {
        kinds[cases[i].o.transposed]++;
        of_rim[cases[i].o.rim]++;
        same += cases[i].same;
        depthwise += cases[i].o.groups == CHANNELS;
    }
    assert_true(case_count >= 400 && kinds[0] >= 200 && kinds[1] >= 100);
    for (int i = 0; i < 4; i++) assert_true(of_rim[i] >= 50);
    assert_true(same >= 50 && depthwise >= 100);
}

static void judge(int number, const char *what, const oracle_sum *sums, int64_t n)
{
    golden_numbers(golden, what, want, n);
    for (int64_t i = 0; i < n; i++) got[i] = sums[i].value, terms[i] = sums[i].terms;
    golden_judge(number, what, got, want, terms, n);
}

static void golden_conv_matches_oracle(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) {
        oracle_conv o = cases[i].o;
        make_up(i, 0, x, oracle_conv_x(&o));
        make_up(i, 1, w, oracle_conv_w(&o));
        make_up(i, 2, b, o.outputs);
        make_up(i, 3, dy, oracle_conv_y(&o));
        o.x = x, o.w = w, o.dy = dy;
        o.b = cases[i].bias ? b : NULL;
        oracle_convolve(&o, &(oracle_conv_answer){ y_sums, dx_sums, dw_sums, db_sums });
        fseek(golden, cases[i].start, SEEK_SET);
        judge(i, "y", y_sums, oracle_conv_y(&o));
        judge(i, "dx", dx_sums, oracle_conv_x(&o));
        judge(i, "dw", dw_sums, oracle_conv_w(&o));
        if (cases[i].bias) judge(i, "db", db_sums, o.outputs);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(golden_conv_is_complete, read_golden),
    cmocka_unit_test_teardown(golden_conv_matches_oracle, close_golden),
};

int main(void)
{
    return cmocka_run_group_tests_name("golden_conv", tests, NULL, NULL);
}
