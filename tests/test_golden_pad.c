/* SPDX-License-Identifier: MIT */
/* PyTorch's own numbers (golden/pad.txt, float64) judge the oracle tightly and every backend as the
 * oracle does. */
#include <string.h>

#include "golden.h"
#include "oracle_pad.h"

#define MOST_NUMBERS 512
#define MOST_CASES   64

typedef struct golden_case {
    oracle_pad q;
    atto_shape y_shape;
    int64_t n, m; /* elements of x, of y */
    double x[MOST_NUMBERS], dy[MOST_NUMBERS], y[MOST_NUMBERS], dx[MOST_NUMBERS];
} golden_case;

static golden_case cases[MOST_CASES];
static int case_count;

static atto_pad_kind mode_of(const char *name)
{
    static const char *const names[] = {
#define X(NAME, name) #name,
        ATTO_PAD_TABLE(X)
#undef X
    };
    for (int i = 0; i < COUNT_OF(names); i++)
        if (strcmp(names[i], name) == 0) return (atto_pad_kind)i;
    golden_malformed(name);
    return ATTO_PAD_COUNT;
}

static bool read_case(FILE *file)
{
    golden_case *c = &cases[case_count];
    char mode[16];
    if (!golden_case_begins(file)) return false;
    if (++case_count == MOST_CASES) golden_malformed("too many cases");
    if (fscanf(file, "%15s %lf", mode, &c->q.value) != 2) golden_malformed("case");
    c->q.mode = mode_of(mode);
    c->q.x = golden_shape(file);
    for (int32_t d = 0; d < c->q.x.rank; d++) {
        long long before, after;
        if (fscanf(file, "%lld %lld", &before, &after) != 2) golden_malformed("amounts");
        c->q.before[d] = before;
        c->q.after[d] = after;
    }
    c->y_shape = oracle_pad_shape(&c->q);
    c->n = golden_numel(c->q.x);
    c->m = golden_numel(c->y_shape);
    golden_numbers(file, "x", c->x, c->n);
    golden_numbers(file, "dy", c->dy, c->m);
    golden_numbers(file, "y", c->y, c->m);
    golden_numbers(file, "dx", c->dx, c->n);
    return true;
}

static int read_golden(void **state)
{
    (void)state;
    FILE *file = golden_open("pad", MOST_NUMBERS);
    if (!file) return -1;
    while (read_case(file)) {
    }
    fclose(file);
    return 0;
}

/* Every mode, with one, two and three dimensions that have something around them. */
static void golden_pad_is_complete(void **state)
{
    (void)state;
    int count[ATTO_PAD_COUNT][4] = { { 0 } };
    for (int i = 0; i < case_count; i++) {
        const oracle_pad *q = &cases[i].q;
        int dims = 0;
        for (int32_t d = 0; d < q->x.rank; d++) dims += q->before[d] != 0 || q->after[d] != 0;
        if (dims < 4) count[q->mode][dims]++;
    }
    for (int mode = 0; mode < ATTO_PAD_COUNT; mode++)
        assert_true(count[mode][1] >= 3 && count[mode][2] >= 2 && count[mode][3] >= 1);
}

static double y[MOST_NUMBERS], dx[MOST_NUMBERS], terms[MOST_NUMBERS];

static void golden_pad_matches_oracle(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) {
        const golden_case *c = &cases[i];
        oracle_pad_forward(&c->q, c->x, y);
        golden_judge(i, "y", y, c->y, y, c->m);
        oracle_pad_backward(&c->q, c->dy, dx, terms);
        golden_judge(i, "dx", dx, c->dx, terms, c->n);
    }
}

static void check_device(const golden_case *c)
{
    test_tensor t[4]; /* x, y, dy, dx */
    for (int i = 0; i < 4; i++)
        test_tensor_make(&t[i], test_dev, ATTO_F32, i % 3 == 0 ? c->q.x : c->y_shape, LAYOUT_DENSE);
    test_tensor_put(&t[0], c->x);
    test_tensor_put(&t[2], c->dy);
    struct atto_pad_args a = { .x = &t[0].view,
                               .y = &t[1].view,
                               .dy = &t[2].view,
                               .dx = &t[3].view,
                               .mode = c->q.mode,
                               .value = c->q.value };
    memcpy(a.before, c->q.before, sizeof a.before);
    memcpy(a.after, c->q.after, sizeof a.after);
    MUST(atto_pad_forward(test_dev, &a));
    MUST(atto_pad_backward(test_dev, &a));
    golden_expect(&t[1], "pad", 1, c->y, NULL);
    golden_expect(&t[3], "pad_grad", oracle_pad_backward(&c->q, c->dy, dx, terms), c->dx, terms);
    for (int i = 0; i < 4; i++) test_tensor_drop(&t[i]);
}

static void golden_pad_matches_device(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) check_device(&cases[i]);
    MUST(atto_device_sync(test_dev));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(golden_pad_is_complete, read_golden),
    cmocka_unit_test(golden_pad_matches_oracle),
    cmocka_unit_test(golden_pad_matches_device),
};
TEST_MAIN("golden_pad", tests)
