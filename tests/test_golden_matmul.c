/* SPDX-License-Identifier: MIT */
/* PyTorch's own numbers (golden/matmul.txt, float64) judge the oracle tightly and every backend as
 * the oracle does. */
#include <string.h>

#include "golden.h"

#define MOST_NUMBERS 32
#define MOST_CASES   32

typedef struct golden_case {
    atto_shape a_shape, b_shape, y_shape;
    double a[MOST_NUMBERS], b[MOST_NUMBERS], dy[MOST_NUMBERS];
    double y[MOST_NUMBERS], da[MOST_NUMBERS], db[MOST_NUMBERS];
} golden_case;

static golden_case cases[MOST_CASES];
static int case_count;

/* The batch alone: all dimensions but the last two. */
static atto_shape batch_of(atto_shape shape)
{
    shape.rank -= 2;
    return shape;
}

static atto_shape product_shape(atto_shape a, atto_shape b)
{
    atto_shape y = a.rank >= b.rank ? a : b;
    const atto_shape other = a.rank >= b.rank ? b : a;
    for (int32_t i = 3; i <= other.rank; i++)
        if (y.dim[y.rank - i] == 1) y.dim[y.rank - i] = other.dim[other.rank - i];
    y.dim[y.rank - 2] = a.dim[a.rank - 2];
    y.dim[y.rank - 1] = b.dim[b.rank - 1];
    return y;
}

static bool read_case(FILE *file)
{
    if (!golden_case_begins(file)) return false;
    if (case_count == MOST_CASES) golden_malformed("too many cases");
    golden_case *c = &cases[case_count++];
    c->a_shape = golden_shape(file);
    c->b_shape = golden_shape(file);
    c->y_shape = product_shape(c->a_shape, c->b_shape);
    golden_numbers(file, "a", c->a, golden_numel(c->a_shape));
    golden_numbers(file, "b", c->b, golden_numel(c->b_shape));
    golden_numbers(file, "dy", c->dy, golden_numel(c->y_shape));
    golden_numbers(file, "y", c->y, golden_numel(c->y_shape));
    golden_numbers(file, "da", c->da, golden_numel(c->a_shape));
    golden_numbers(file, "db", c->db, golden_numel(c->b_shape));
    return true;
}

static int read_golden(void **state)
{
    (void)state;
    FILE *file = golden_open("matmul", MOST_NUMBERS);
    if (!file) return -1;
    while (read_case(file)) {
    }
    fclose(file);
    return case_count >= 13 ? 0 : -1;
}

/* Results and their terms, of y, da and db. */
typedef struct answer {
    double value[3][MOST_NUMBERS], terms[3][MOST_NUMBERS];
} answer;

static void split(const oracle_sum *sums, double *value, double *terms)
{
    for (int i = 0; i < MOST_NUMBERS; i++) value[i] = sums[i].value, terms[i] = sums[i].terms;
}

static void ask_oracle(const golden_case *c, answer *out)
{
    oracle_sum y[MOST_NUMBERS] = { { 0 } }, da[MOST_NUMBERS] = { { 0 } },
               db[MOST_NUMBERS] = { { 0 } };
    const atto_shape *a = &c->a_shape, *b = &c->b_shape;
    const oracle_matmul o = { .m = a->dim[a->rank - 2],
                              .n = b->dim[b->rank - 1],
                              .k = a->dim[a->rank - 1],
                              .a_batch = batch_of(*a),
                              .b_batch = batch_of(*b),
                              .batch = batch_of(c->y_shape),
                              .a = c->a,
                              .b = c->b,
                              .dy = c->dy };
    oracle_matmul_product(&o, y, da, db);
    split(y, out->value[0], out->terms[0]);
    split(da, out->value[1], out->terms[1]);
    split(db, out->value[2], out->terms[2]);
}

static void golden_matmul_matches_oracle(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) {
        const golden_case *c = &cases[i];
        answer o;
        ask_oracle(c, &o);
        golden_judge(i, "y", o.value[0], c->y, o.terms[0], golden_numel(c->y_shape));
        golden_judge(i, "da", o.value[1], c->da, o.terms[1], golden_numel(c->a_shape));
        golden_judge(i, "db", o.value[2], c->db, o.terms[2], golden_numel(c->b_shape));
    }
}

static void check_device(const golden_case *c)
{
    answer o;
    test_tensor t[6];
    const atto_shape shapes[] = { c->a_shape, c->b_shape, c->y_shape,
                                  c->y_shape, c->a_shape, c->b_shape };
    ask_oracle(c, &o);
    for (int i = 0; i < 6; i++)
        test_tensor_make(&t[i], test_dev, ATTO_F32, shapes[i], LAYOUT_DENSE);
    test_tensor_put(&t[0], c->a);
    test_tensor_put(&t[1], c->b);
    test_tensor_put(&t[3], c->dy);
    const struct atto_matmul_args p = { .a = &t[0].view,
                                        .b = &t[1].view,
                                        .y = &t[2].view,
                                        .dy = &t[3].view,
                                        .da = &t[4].view,
                                        .db = &t[5].view };
    MUST(atto_matmul_forward(test_dev, &p));
    MUST(atto_matmul_backward(test_dev, &p));
    golden_expect(&t[2], "matmul", MOST_NUMBERS, c->y, o.terms[0]);
    golden_expect(&t[4], "matmul_grad", MOST_NUMBERS, c->da, o.terms[1]);
    golden_expect(&t[5], "matmul_grad", MOST_NUMBERS, c->db, o.terms[2]);
    for (int i = 0; i < 6; i++) test_tensor_drop(&t[i]);
}

static void golden_matmul_matches_device(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) check_device(&cases[i]);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(golden_matmul_matches_oracle, read_golden),
    cmocka_unit_test(golden_matmul_matches_device),
};
TEST_MAIN("golden_matmul", tests)
