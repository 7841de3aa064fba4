/* SPDX-License-Identifier: MIT */
/* PyTorch's own numbers (golden/resize.txt, float64) judge the oracle tightly and every backend as
 * the oracle does. */
#include <math.h>
#include <string.h>

#include "golden.h"
#include "oracle_resize.h"

#define MOST_NUMBERS 256
#define MOST_CASES   72

typedef struct golden_case {
    oracle_resize q;
    int32_t dims;
    atto_shape x_shape, y_shape;
    int64_t n, m; /* elements of x, of y */
    double x[MOST_NUMBERS], dy[MOST_NUMBERS], y[MOST_NUMBERS], dx[MOST_NUMBERS];
} golden_case;

static golden_case cases[MOST_CASES];
static int case_count;

static void measure(golden_case *c, const double *scale, const long long *out)
{
    const int32_t rank = c->x_shape.rank;
    c->y_shape = c->x_shape;
    c->q.planes = c->q.h = c->q.oh = 1;
    for (int32_t d = 0; d < rank - c->dims; d++) c->q.planes *= c->x_shape.dim[d];
    for (int32_t at = 0; at < c->dims; at++) {
        const bool is_height = c->dims == 2 && at == 0;
        const int64_t in = c->x_shape.dim[rank - c->dims + at];
        c->y_shape.dim[rank - c->dims + at] = out[at];
        *(is_height ? &c->q.h : &c->q.w) = in;
        *(is_height ? &c->q.oh : &c->q.ow) = out[at];
        c->q.scale[is_height ? 0 : 1] = scale[at];
    }
    c->n = golden_numel(c->x_shape);
    c->m = golden_numel(c->y_shape);
}

static bool read_case(FILE *file)
{
    golden_case *c = &cases[case_count];
    char mode[16];
    int align, dims;
    double scale[2];
    long long out[2];
    if (!golden_case_begins(file)) return false;
    if (++case_count == MOST_CASES) golden_malformed("too many cases");
    if (fscanf(file, "%15s %d %d", mode, &align, &dims) != 3 || dims < 1 || dims > 2)
        golden_malformed("case");
    for (int at = 0; at < dims; at++)
        if (fscanf(file, "%lf", &scale[at]) != 1) golden_malformed("scale");
    for (int at = 0; at < dims; at++)
        if (fscanf(file, "%lld", &out[at]) != 1) golden_malformed("size");
    c->q.mode = strcmp(mode, "nearest") == 0 ? ATTO_RESIZE_NEAREST : ATTO_RESIZE_LINEAR;
    c->q.align_corners = align == 1;
    c->dims = dims;
    c->x_shape = golden_shape(file);
    measure(c, scale, out);
    golden_numbers(file, "x", c->x, c->n);
    golden_numbers(file, "dy", c->dy, c->m);
    golden_numbers(file, "y", c->y, c->m);
    golden_numbers(file, "dx", c->dx, c->n);
    return true;
}

static int read_golden(void **state)
{
    (void)state;
    FILE *file = golden_open("resize", MOST_NUMBERS);
    if (!file) return -1;
    while (read_case(file)) {
    }
    fclose(file);
    return 0;
}

/* Every mode, in one and two dimensions, by size and by scale. */
static void golden_resize_is_complete(void **state)
{
    (void)state;
    int count[3][3][2] = { { { 0 } } };
    for (int i = 0; i < case_count; i++) {
        const golden_case *c = &cases[i];
        const int how = c->q.mode == ATTO_RESIZE_NEAREST ? 0 : 1 + c->q.align_corners;
        count[how][c->dims][c->q.scale[1] > 0.0]++;
    }
    for (int how = 0; how < 3; how++)
        for (int dims = 1; dims < 3; dims++)
            assert_true(count[how][dims][0] >= 5 && count[how][dims][1] >= 3);
}

static double y[MOST_NUMBERS], dx[MOST_NUMBERS], y_terms[MOST_NUMBERS], dx_terms[MOST_NUMBERS];

static void answer_of(const golden_case *c)
{
    oracle_resize_forward(&c->q, c->x, y, y_terms);
    oracle_resize_backward(&c->q, c->dy, dx, dx_terms);
}

/* The terms of an exact evaluation: its own. */
static void golden_resize_matches_oracle(void **state)
{
    (void)state;
    double sizes[MOST_NUMBERS];
    for (int i = 0; i < case_count; i++) {
        const golden_case *c = &cases[i];
        answer_of(c);
        for (int64_t k = 0; k < c->m; k++) sizes[k] = fmax(fabs(y[k]), 1.0);
        golden_judge(i, "y", y, c->y, sizes, c->m);
        for (int64_t k = 0; k < c->n; k++) sizes[k] = fmax(fabs(dx[k]), 4.0);
        golden_judge(i, "dx", dx, c->dx, sizes, c->n);
    }
}

static void check_device(const golden_case *c)
{
    test_tensor t[4]; /* x, y, dy, dx */
    answer_of(c);
    for (int i = 0; i < 4; i++)
        test_tensor_make(&t[i], test_dev, ATTO_F32, i % 3 == 0 ? c->x_shape : c->y_shape,
                         LAYOUT_DENSE);
    test_tensor_put(&t[0], c->x);
    test_tensor_put(&t[2], c->dy);
    const struct atto_resize_args a = { .x = &t[0].view,
                                        .y = &t[1].view,
                                        .dy = &t[2].view,
                                        .dx = &t[3].view,
                                        .mode = c->q.mode,
                                        .align_corners = c->q.align_corners,
                                        .dims = c->dims,
                                        .scale = { c->q.scale[c->dims == 2 ? 0 : 1],
                                                   c->dims == 2 ? c->q.scale[1] : 0.0 } };
    MUST(atto_resize_forward(test_dev, &a));
    MUST(atto_resize_backward(test_dev, &a));
    golden_expect(&t[1], "resize", 1, c->y, y_terms);
    golden_expect(&t[3], "resize_grad", 1, c->dx, dx_terms);
    for (int i = 0; i < 4; i++) test_tensor_drop(&t[i]);
}

static void golden_resize_matches_device(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) check_device(&cases[i]);
    MUST(atto_device_sync(test_dev));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(golden_resize_is_complete, read_golden),
    cmocka_unit_test(golden_resize_matches_oracle),
    cmocka_unit_test(golden_resize_matches_device),
};
TEST_MAIN("golden_resize", tests)
