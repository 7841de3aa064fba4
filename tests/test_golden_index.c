/* SPDX-License-Identifier: MIT */
/* PyTorch's own numbers (golden/index.txt, float64) judge the oracle tightly and every backend as
 * the oracle does: embedding, index_select, gather. */
#include <string.h>

#include "golden.h"
#include "oracle_index.h"

#define MOST_NUMBERS 64
#define MOST_CASES   64

typedef struct golden_case {
    char op[16];
    int32_t dim;
    bool has_padding;
    int64_t padding, n, positions, out; /* of x, of the index, of y */
    atto_shape x_shape, index_shape;
    double x[MOST_NUMBERS], index[MOST_NUMBERS], dy[MOST_NUMBERS], y[MOST_NUMBERS],
        dx[MOST_NUMBERS];
} golden_case;

static golden_case cases[MOST_CASES];
static int case_count;

static bool is_gather(const golden_case *c)
{
    return strcmp(c->op, "gather") == 0;
}

static int32_t along(const golden_case *c)
{
    return c->dim < 0 ? c->dim + c->x_shape.rank : c->dim;
}

static atto_shape shape_of_y(const golden_case *c)
{
    if (is_gather(c)) return c->index_shape;
    atto_shape y = { .rank = 0 };
    for (int32_t d = 0; d < along(c); d++) y.dim[y.rank++] = c->x_shape.dim[d];
    for (int32_t d = 0; d < c->index_shape.rank; d++) y.dim[y.rank++] = c->index_shape.dim[d];
    for (int32_t d = along(c) + 1; d < c->x_shape.rank; d++) y.dim[y.rank++] = c->x_shape.dim[d];
    return y;
}

static bool read_case(FILE *file)
{
    golden_case *c = &cases[case_count];
    int has_padding;
    long long padding;
    if (!golden_case_begins(file)) return false;
    if (++case_count == MOST_CASES) golden_malformed("too many cases");
    if (fscanf(file, "%15s %d %d %lld", c->op, &c->dim, &has_padding, &padding) != 4)
        golden_malformed("case");
    c->has_padding = has_padding != 0;
    c->padding = padding;
    c->x_shape = golden_shape(file);
    c->index_shape = golden_shape(file);
    c->n = golden_numel(c->x_shape);
    c->positions = golden_numel(c->index_shape);
    c->out = golden_numel(shape_of_y(c));
    golden_numbers(file, "x", c->x, c->n);
    golden_numbers(file, "index", c->index, c->positions);
    golden_numbers(file, "dy", c->dy, c->out);
    golden_numbers(file, "y", c->y, c->out);
    golden_numbers(file, "dx", c->dx, c->n);
    return true;
}

static int read_golden(void **state)
{
    (void)state;
    FILE *file = golden_open("index", MOST_NUMBERS);
    if (!file) return -1;
    while (read_case(file)) {
    }
    fclose(file);
    return 0;
}

/* Each op is there, along each dimension of three, and padding. */
static void golden_index_is_complete(void **state)
{
    (void)state;
    int embeddings = 0, padded = 0;
    bool selects[3] = { false }, gathers[3] = { false };
    for (int i = 0; i < case_count; i++) {
        const golden_case *c = &cases[i];
        embeddings += strcmp(c->op, "embedding") == 0;
        padded += c->has_padding;
        if (c->x_shape.rank == 3) (is_gather(c) ? gathers : selects)[along(c)] = true;
    }
    assert_true(embeddings >= 6 && padded >= 3);
    for (int d = 0; d < 3; d++) assert_true(selects[d] && gathers[d]);
}

/* Arrays for an answer. */
typedef struct room {
    double y[MOST_NUMBERS], dx[MOST_NUMBERS], terms[MOST_NUMBERS], count[MOST_NUMBERS];
} room;

static oracle_index_answer answer_of(const golden_case *c, room *r)
{
    const oracle_index question = { .x = c->x_shape,
                                    .shape = c->index_shape,
                                    .dim = along(c),
                                    .has_padding = c->has_padding,
                                    .padding = c->padding,
                                    .index = c->index,
                                    .values = c->x,
                                    .dy = c->dy };
    oracle_index_answer a = { r->y, r->dx, r->terms, r->count, 0 };
    (is_gather(c) ? oracle_gather : oracle_index_select)(&question, &a);
    return a;
}

static void golden_index_matches_oracle(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) {
        const golden_case *c = &cases[i];
        room r;
        answer_of(c, &r);
        golden_judge(i, "y", r.y, c->y, c->y, c->out);
        golden_judge(i, "dx", r.dx, c->dx, r.terms, c->n);
    }
}

static void call(const golden_case *c, const atto_tensor *x, const atto_tensor *index,
                 const atto_tensor *y, const atto_tensor *dy, const atto_tensor *dx)
{
    if (is_gather(c)) {
        const struct atto_gather_args a = {
            .x = x, .index = index, .y = y, .dy = dy, .dx = dx, .dim = c->dim
        };
        MUST(atto_gather_forward(test_dev, &a));
        MUST(atto_gather_backward(test_dev, &a));
        return;
    }
    const struct atto_index_select_args a = { .x = x,
                                              .index = index,
                                              .y = y,
                                              .dy = dy,
                                              .dx = dx,
                                              .dim = c->dim,
                                              .has_padding = c->has_padding,
                                              .padding = c->padding };
    MUST(atto_index_select_forward(test_dev, &a));
    MUST(atto_index_select_backward(test_dev, &a));
}

static void check_device(const golden_case *c)
{
    room r;
    const oracle_index_answer a = answer_of(c, &r);
    test_tensor t[5]; /* x, index, y, dy, dx */
    test_tensor_make(&t[0], test_dev, ATTO_F32, c->x_shape, LAYOUT_DENSE);
    test_tensor_make(&t[1], test_dev, ATTO_I64, c->index_shape, LAYOUT_DENSE);
    test_tensor_make(&t[2], test_dev, ATTO_F32, shape_of_y(c), LAYOUT_DENSE);
    test_tensor_make(&t[3], test_dev, ATTO_F32, shape_of_y(c), LAYOUT_DENSE);
    test_tensor_make(&t[4], test_dev, ATTO_F32, c->x_shape, LAYOUT_DENSE);
    test_tensor_put(&t[0], c->x);
    test_tensor_put(&t[1], c->index);
    test_tensor_put(&t[3], c->dy);
    call(c, &t[0].view, &t[1].view, &t[2].view, &t[3].view, &t[4].view);
    golden_expect(&t[2], "index_select", 1, c->y, NULL);
    golden_expect(&t[4], "index_select_grad", a.most > 0 ? a.most : 1, c->dx, r.terms);
    for (int i = 0; i < 5; i++) test_tensor_drop(&t[i]);
}

static void golden_index_matches_device(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) check_device(&cases[i]);
    MUST(atto_device_sync(test_dev));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(golden_index_is_complete, read_golden),
    cmocka_unit_test(golden_index_matches_oracle),
    cmocka_unit_test(golden_index_matches_device),
};
TEST_MAIN("golden_index", tests)
