/* SPDX-License-Identifier: MIT */
/* PyTorch's own numbers (golden/attention.txt, float64) judge the oracle tightly and every backend as
 * the oracle does. */
#include <string.h>

#include "golden.h"

#define MOST_NUMBERS 64
#define MOST_CASES   32

enum { Q, K, V, DY, Y, DQ, DK, DV, TENSORS };

typedef struct golden_case {
    oracle_attention o;
    atto_shape shape[TENSORS];
    double values[TENSORS][MOST_NUMBERS], mask[MOST_NUMBERS];
} golden_case;

static golden_case cases[MOST_CASES];
static int case_count;

static void read_head(FILE *file, golden_case *c)
{
    long long size[7];
    int causal;
    char mask[16];
    for (int i = 0; i < 7; i++)
        if (fscanf(file, "%lld", &size[i]) != 1) golden_malformed("sizes");
    if (fscanf(file, "%d %lf %15s", &causal, &c->o.scale, mask) != 3) golden_malformed("options");
    c->o.batches = size[0], c->o.heads = size[1], c->o.key_heads = size[2];
    c->o.queries = size[3], c->o.keys = size[4], c->o.d = size[5], c->o.e = size[6];
    c->o.causal = (atto_causal)causal;
    c->o.mask_hides = strcmp(mask, "bool") == 0;
    if (strcmp(mask, "none") == 0) return;
    c->o.mask = c->mask;
    c->o.mask_shape = golden_shape(file);
}

static bool read_case(FILE *file)
{
    static const char *const names[] = { "q", "k", "v", "dy", "y", "dq", "dk", "dv" };
    if (!golden_case_begins(file)) return false;
    if (case_count == MOST_CASES) golden_malformed("too many cases");
    golden_case *c = &cases[case_count++];
    read_head(file, c);
    const oracle_attention *o = &c->o;
    c->shape[Q] = c->shape[DQ] = atto_shape4(o->batches, o->heads, o->queries, o->d);
    c->shape[K] = c->shape[DK] = atto_shape4(o->batches, o->key_heads, o->keys, o->d);
    c->shape[V] = c->shape[DV] = atto_shape4(o->batches, o->key_heads, o->keys, o->e);
    c->shape[Y] = c->shape[DY] = atto_shape4(o->batches, o->heads, o->queries, o->e);
    for (int i = 0; i < TENSORS; i++) {
        if (i == DY && o->mask) golden_numbers(file, "mask", c->mask, golden_numel(o->mask_shape));
        golden_numbers(file, names[i], c->values[i], golden_numel(c->shape[i]));
    }
    c->o.q = c->values[Q], c->o.k = c->values[K], c->o.v = c->values[V], c->o.dy = c->values[DY];
    return true;
}

static int read_golden(void **state)
{
    (void)state;
    FILE *file = golden_open("attention", MOST_NUMBERS);
    if (!file) return -1;
    while (read_case(file)) {
    }
    fclose(file);
    return case_count >= 19 ? 0 : -1;
}

/* Results and their terms, of y and the gradients; by number of the tensor. */
typedef struct answer {
    double value[TENSORS][MOST_NUMBERS], terms[TENSORS][MOST_NUMBERS];
} answer;

static void ask_oracle(const golden_case *c, answer *out)
{
    oracle_sum sums[TENSORS][MOST_NUMBERS] = { { { 0 } } };
    oracle_attention_forward(&c->o, sums[Y], NULL, NULL);
    oracle_attention_backward(&c->o, sums[DQ], sums[DK], sums[DV]);
    for (int t = Y; t < TENSORS; t++)
        for (int i = 0; i < MOST_NUMBERS; i++)
            out->value[t][i] = sums[t][i].value, out->terms[t][i] = sums[t][i].terms;
}

static void golden_attention_matches_oracle(void **state)
{
    (void)state;
    static const char *const names[] = { "", "", "", "", "y", "dq", "dk", "dv" };
    for (int i = 0; i < case_count; i++) {
        const golden_case *c = &cases[i];
        answer a;
        ask_oracle(c, &a);
        for (int t = Y; t < TENSORS; t++)
            golden_judge(i, names[t], a.value[t], c->values[t], a.terms[t],
                         golden_numel(c->shape[t]));
    }
}

static void check_device(const golden_case *c)
{
    test_tensor t[TENSORS], mask, lse;
    answer a;
    ask_oracle(c, &a);
    for (int i = 0; i < TENSORS; i++) {
        test_tensor_make(&t[i], test_dev, ATTO_F32, c->shape[i], LAYOUT_DENSE);
        if (i <= DY) test_tensor_put(&t[i], c->values[i]);
    }
    const atto_shape rows = atto_shape3(c->o.batches, c->o.heads, c->o.queries);
    test_tensor_make(&lse, test_dev, ATTO_F32, rows, LAYOUT_DENSE);
    test_tensor_make(&mask, test_dev, c->o.mask_hides ? ATTO_I32 : ATTO_F32, c->o.mask_shape,
                     LAYOUT_DENSE);
    test_tensor_put(&mask, c->mask);
    const struct atto_attention_args p = { .q = &t[Q].view,
                                           .k = &t[K].view,
                                           .v = &t[V].view,
                                           .mask = c->o.mask ? &mask.view : NULL,
                                           .y = &t[Y].view,
                                           .lse = &lse.view,
                                           .dy = &t[DY].view,
                                           .dq = &t[DQ].view,
                                           .dk = &t[DK].view,
                                           .dv = &t[DV].view,
                                           .causal = c->o.causal,
                                           .scale = (float)c->o.scale };
    MUST(atto_attention_forward(test_dev, &p));
    MUST(atto_attention_backward(test_dev, &p));
    for (int i = Y; i < TENSORS; i++)
        golden_expect(&t[i], i == Y ? "attention" : "attention_grad", 1, c->values[i], a.terms[i]);
    for (int i = 0; i < TENSORS; i++) test_tensor_drop(&t[i]);
    test_tensor_drop(&lse), test_tensor_drop(&mask);
}

static void golden_attention_matches_device(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++)
        if (!test_in_disguise() || cases[i].o.d == cases[i].o.e) check_device(&cases[i]);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(golden_attention_matches_oracle, read_golden),
    cmocka_unit_test(golden_attention_matches_device),
};
TEST_MAIN("golden_attention", tests)
