/* SPDX-License-Identifier: MIT */
/* PyTorch's own numbers (golden/rope.txt, float64) judge the tables, the oracle tightly and every backend
 * as the oracle does. */
#include <math.h>
#include <string.h>

#include "golden.h"
#include "oracle_rope.h"

#define MOST_NUMBERS 192
#define MOST_CASES   16

typedef struct golden_case {
    char pairing[16];
    int64_t dims, offset, rows, table, n;
    double theta;
    atto_shape shape;
    double cos[MOST_NUMBERS], sin[MOST_NUMBERS], x[MOST_NUMBERS], dy[MOST_NUMBERS], y[MOST_NUMBERS],
        dx[MOST_NUMBERS];
} golden_case;

static golden_case cases[MOST_CASES];
static int case_count;

static bool is_neighbours(const golden_case *c)
{
    return strcmp(c->pairing, "neighbours") == 0;
}

static bool read_case(FILE *file)
{
    golden_case *c = &cases[case_count];
    long long dims, offset;
    if (!golden_case_begins(file)) return false;
    if (++case_count == MOST_CASES) golden_malformed("too many cases");
    if (fscanf(file, "%15s %lld %lf %lld", c->pairing, &dims, &c->theta, &offset) != 4)
        golden_malformed("case");
    c->dims = dims;
    c->offset = offset;
    c->shape = golden_shape(file);
    c->n = golden_numel(c->shape);
    c->rows = offset + c->shape.dim[2];
    c->table = c->rows * dims / 2;
    golden_numbers(file, "cos", c->cos, c->table);
    golden_numbers(file, "sin", c->sin, c->table);
    golden_numbers(file, "x", c->x, c->n);
    golden_numbers(file, "dy", c->dy, c->n);
    golden_numbers(file, "y", c->y, c->n);
    golden_numbers(file, "dx", c->dx, c->n);
    return true;
}

static int read_golden(void **state)
{
    (void)state;
    FILE *file = golden_open("rope", MOST_NUMBERS);
    if (!file) return -1;
    while (read_case(file)) {
    }
    fclose(file);
    return 0;
}

/* Both pairings, all of a head turned and part of it. */
static void golden_rope_is_complete(void **state)
{
    (void)state;
    int count[2] = { 0 }, part[2] = { 0 };
    for (int i = 0; i < case_count; i++) {
        const golden_case *c = &cases[i];
        count[is_neighbours(c)]++;
        part[is_neighbours(c)] += c->dims < c->shape.dim[3];
    }
    for (int p = 0; p < 2; p++) assert_true(count[p] >= 4 && part[p] >= 2);
}

/* Arrays for an answer. */
typedef struct room {
    double y[MOST_NUMBERS], dx[MOST_NUMBERS], y_terms[MOST_NUMBERS], dx_terms[MOST_NUMBERS];
} room;

static void answer_of(const golden_case *c, room *r)
{
    const int64_t *shape = c->shape.dim;
    const oracle_rope q = { .batches = shape[0],
                            .heads = shape[1],
                            .length = shape[2],
                            .d = shape[3],
                            .pairs = c->dims / 2,
                            .rows = c->rows,
                            .neighbours = is_neighbours(c),
                            .offset = c->offset,
                            .cos = c->cos,
                            .sin = c->sin };
    oracle_rope_forward(&q, c->x, r->y, r->y_terms);
    oracle_rope_backward(&q, c->dy, r->dx, r->dx_terms);
}

static void golden_rope_matches_oracle(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) {
        const golden_case *c = &cases[i];
        room r;
        answer_of(c, &r);
        golden_judge(i, "y", r.y, c->y, r.y_terms, c->n);
        golden_judge(i, "dx", r.dx, c->dx, r.dx_terms, c->n);
    }
}

static void expect_table(const atto_tensor *t, const double *want, int64_t n)
{
    float got[MOST_NUMBERS];
    MUST(atto_tensor_read(t, got));
    for (int64_t i = 0; i < n; i++) assert_true(fabs((double)got[i] - want[i]) <= 0x1.001p-25);
}

/* Tables have a rounding more. */
static void check_device(const golden_case *c)
{
    room r;
    test_tensor t[4]; /* x, y, dy, dx */
    atto_tensor cosines, sines;
    answer_of(c, &r);
    MUST(atto_rope_tables(test_dev, c->rows, c->dims,
                          &(atto_rope_table_options){ .theta = c->theta }, &cosines, &sines));
    expect_table(&cosines, c->cos, c->table);
    expect_table(&sines, c->sin, c->table);
    for (int i = 0; i < 4; i++) test_tensor_make(&t[i], test_dev, ATTO_F32, c->shape, LAYOUT_DENSE);
    test_tensor_put(&t[0], c->x);
    test_tensor_put(&t[2], c->dy);
    const struct atto_rope_args a = { .x = &t[0].view,
                                      .cos = &cosines,
                                      .sin = &sines,
                                      .y = &t[1].view,
                                      .dy = &t[2].view,
                                      .dx = &t[3].view,
                                      .pairing = is_neighbours(c) ? ATTO_ROPE_NEIGHBOURS
                                                                  : ATTO_ROPE_HALVES,
                                      .offset = c->offset };
    MUST(atto_rope_forward(test_dev, &a));
    MUST(atto_rope_backward(test_dev, &a));
    golden_expect(&t[1], "rope", 2, c->y, r.y_terms);
    golden_expect(&t[3], "rope_grad", 2, c->dx, r.dx_terms);
    for (int i = 0; i < 4; i++) test_tensor_drop(&t[i]);
    atto_tensor_free(&cosines);
    atto_tensor_free(&sines);
}

static void golden_rope_matches_device(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) check_device(&cases[i]);
    MUST(atto_device_sync(test_dev));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(golden_rope_is_complete, read_golden),
    cmocka_unit_test(golden_rope_matches_oracle),
    cmocka_unit_test(golden_rope_matches_device),
};
TEST_MAIN("golden_rope", tests)
