/* SPDX-License-Identifier: MIT */
/* PyTorch's own numbers (golden/conv.txt, float64) judge the oracle of convolutions and every
 * backend. Everything in them is a whole number, so that sums are exact. */
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
    int dims;
    int64_t after[2]; /* padding behind the image */
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
    c->dims = dims;
    c->o.batch = BATCH;
    c->o.channels = CHANNELS;
    c->o.outputs = y.dim[1];
    for (int at = 0; at < 2; at++) {
        oracle_conv_axis *a = &c->o.axis[at];
        a->in = sizes[dims][at];
        a->out = at < 2 - dims ? 1 : y.dim[dims + at];
        a->before = c->same ? a->dilation * (a->kernel - 1) / 2 : padding[at];
        c->after[at] = c->same ? a->dilation * (a->kernel - 1) - a->before : padding[at];
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

/* ---- the device against PyTorch ----
 *
 * It has zeros around images; other rims are put there beforehand, and their gradients added to
 * where they came from afterwards. */

static double wide[MOST_NUMBERS], wide_dx[MOST_NUMBERS];

/* Where the image with its rim along an axis is read. */
static int64_t source_of(oracle_rim rim, int64_t i, int64_t n)
{
    if (i >= 0 && i < n) return i;
    if (rim == ORACLE_RIM_REFLECT) return i < 0 ? -i : 2 * (n - 1) - i;
    if (rim == ORACLE_RIM_REPLICATE) return i < 0 ? 0 : n - 1;
    return i < 0 ? i + n : i - n;
}

/* Calls f for each element of the image with its rim, and the element of x it shows. */
static void each_of_rim(const golden_case *c, void (*f)(int64_t of_wide, int64_t of_x))
{
    const oracle_conv_axis *down = &c->o.axis[0], *along = &c->o.axis[1];
    const int64_t rows = down->in + down->before + c->after[0];
    const int64_t cols = along->in + along->before + c->after[1];
    for (int64_t plane = 0; plane < BATCH * CHANNELS; plane++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < cols; j++) {
                const int64_t row = source_of(c->o.rim, i - down->before, down->in);
                const int64_t col = source_of(c->o.rim, j - along->before, along->in);
                f((plane * rows + i) * cols + j, (plane * down->in + row) * along->in + col);
            }
}

static void spread(int64_t of_wide, int64_t of_x)
{
    wide[of_wide] = x[of_x];
}

static void gather(int64_t of_wide, int64_t of_x)
{
    got[of_x] += wide_dx[of_wide];
}

static atto_shape image(const golden_case *c, int64_t channels, int64_t rows, int64_t cols)
{
    return c->dims == 2 ? atto_shape4(BATCH, channels, rows, cols)
                        : atto_shape3(BATCH, channels, cols);
}

static atto_conv_window window_of(const golden_case *c, bool has_rim)
{
    atto_conv_window v = { .dims = c->dims, .transposed = c->o.transposed, .groups = c->o.groups };
    for (int at = 0; at < c->dims; at++) {
        const int from = 2 - c->dims + at;
        const oracle_conv_axis *a = &c->o.axis[from];
        v.stride[at] = a->stride, v.dilation[at] = a->dilation;
        if (!has_rim) v.padding[at] = a->before, v.padding_after[at] = c->after[from];
    }
    return v;
}

enum { X, W, B, DY, Y, DX, DW, DB, TENSORS };

static void expect(const test_tensor *t, int number, const char *word, const double *values)
{
    char text[32];
    snprintf(text, sizeof text, "case %d", number);
    const test_about about = { word, text, ATTO_F32, atto_shape_of(t->view.rank, t->view.shape),
                               0 };
    golden_numbers(golden, word, want, t->numel);
    expect_equal(&about, values, want, t->numel);
}

static void fetch(const test_tensor *t, int number, const char *word)
{
    test_tensor_get(t, got);
    expect(t, number, word, got);
}

static void check_device(int number, test_layout layout)
{
    const golden_case *c = &cases[number];
    const oracle_conv *o = &c->o;
    const bool has_rim = o->rim != ORACLE_RIM_ZEROS;
    const int64_t h = o->axis[0].in, w_in = o->axis[1].in;
    const int64_t more_h = has_rim ? o->axis[0].before + c->after[0] : 0;
    const int64_t more_w = has_rim ? o->axis[1].before + c->after[1] : 0;
    const int64_t first = o->transposed ? CHANNELS : o->outputs;
    const int64_t second = (o->transposed ? o->outputs : CHANNELS) / o->groups;
    const atto_shape shape_x = image(c, CHANNELS, h + more_h, w_in + more_w);
    const atto_shape shape_y = image(c, o->outputs, o->axis[0].out, o->axis[1].out);
    const atto_shape shape_w =
        c->dims == 2 ? atto_shape4(first, second, o->axis[0].kernel, o->axis[1].kernel)
                     : atto_shape3(first, second, o->axis[1].kernel);
    const atto_shape shapes[TENSORS] = {
        shape_x, shape_w, atto_shape1(o->outputs), shape_y, shape_y,
        shape_x, shape_w, atto_shape1(o->outputs)
    };
    const double *values[] = { has_rim ? wide : x, w, b, dy };
    test_tensor t[TENSORS];
    if (has_rim) each_of_rim(c, spread);
    for (int i = 0; i < TENSORS; i++) {
        test_tensor_make(&t[i], test_dev, ATTO_F32, shapes[i],
                         shapes[i].rank > 1 ? layout : LAYOUT_DENSE);
        if (i < Y) test_tensor_put(&t[i], values[i]);
    }
    const struct atto_conv_args a = { .x = &t[X].view,
                                      .w = &t[W].view,
                                      .b = c->bias ? &t[B].view : NULL,
                                      .y = &t[Y].view,
                                      .dy = &t[DY].view,
                                      .dx = &t[DX].view,
                                      .dw = &t[DW].view,
                                      .db = &t[DB].view,
                                      .window = window_of(c, has_rim) };
    MUST(atto_conv_forward(test_dev, &a));
    MUST(atto_conv_backward(test_dev, &a));
    fseek(golden, c->start, SEEK_SET);
    fetch(&t[Y], number, "y");
    if (has_rim) {
        test_tensor_get(&t[DX], wide_dx);
        memset(got, 0, sizeof got);
        each_of_rim(c, gather);
        test_tensor like;
        test_tensor_make(&like, test_dev, ATTO_F32, image(c, CHANNELS, h, w_in), LAYOUT_DENSE);
        expect(&like, number, "dx", got);
        test_tensor_drop(&like);
    } else {
        fetch(&t[DX], number, "dx");
    }
    fetch(&t[DW], number, "dw");
    if (c->bias) fetch(&t[DB], number, "db");
    for (int i = 0; i < TENSORS; i++) test_tensor_drop(&t[i]);
}

static void golden_conv_matches_device(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) {
        const oracle_conv *o = &cases[i].o;
        make_up(i, 0, x, oracle_conv_x(o));
        make_up(i, 1, w, oracle_conv_w(o));
        make_up(i, 2, b, o->outputs);
        make_up(i, 3, dy, oracle_conv_y(o));
        check_device(i, LAYOUT_DENSE);
        check_device(i, LAYOUT_CHANNELS_LAST);
    }
    MUST(atto_device_sync(test_dev));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(golden_conv_is_complete, read_golden),
    cmocka_unit_test(golden_conv_matches_oracle),
    cmocka_unit_test_teardown(golden_conv_matches_device, close_golden),
};
TEST_MAIN("golden_conv", tests)
