/* SPDX-License-Identifier: MIT */
/* MultiheadAttention: PyTorch's numbers (golden/multihead_attention.txt, float64) for every option, with
 * and without weights; what PyTorch leaves open is tested beside it. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "golden.h"

#define EMBED   8
#define HEADS   2
#define BATCHES 2
#define QUERIES 3
#define KEYS    4

#define MOST_PARAMS  8
#define MOST_PARTS   32
#define MOST_NUMBERS 256

typedef struct part {
    char name[32];
    int64_t count;
    double values[MOST_NUMBERS];
} part;

typedef struct golden_case {
    bool batched, first, bias, bias_kv, zero;
    int64_t kdim, vdim;
    int padding, pairs;
    bool causal;
    int params, part_count;
    part parts[MOST_PARTS];
} golden_case;

static atto_tape *tape;

static int open_tape(void **state)
{
    (void)state;
    return atto_tape_create(test_dev, &tape) == ATTO_OK ? 0 : -1;
}

static int close_tape(void **state)
{
    (void)state;
    atto_tape_free(tape);
    return 0;
}

/* ---- the file ---- */

static bool read_case(FILE *file, golden_case *c)
{
    int n[11];
    if (!golden_case_begins(file)) return false;
    for (int i = 0; i < 11; i++)
        if (fscanf(file, "%d", &n[i]) != 1) golden_malformed("options");
    *c = (golden_case){ .batched = n[0],
                        .first = n[1],
                        .bias = n[2],
                        .bias_kv = n[3],
                        .zero = n[4],
                        .kdim = n[5],
                        .vdim = n[6],
                        .padding = n[7],
                        .pairs = n[8],
                        .causal = n[9],
                        .params = n[10] };
    c->part_count = 2 * c->params + 9 + (c->padding > 0) + (c->pairs > 0);
    if (c->part_count > MOST_PARTS) golden_malformed("too many parts");
    for (int i = 0; i < c->part_count; i++)
        c->parts[i].count = golden_named(file, c->parts[i].name, c->parts[i].values);
    return true;
}

static const part *part_of(const golden_case *c, const char *name)
{
    for (int i = 0; i < c->part_count; i++)
        if (strcmp(c->parts[i].name, name) == 0) return &c->parts[i];
    golden_malformed(name);
    return NULL;
}

/* ---- comparing ----
 *
 * A number of a result is a sum of products of projections, probabilities and values, each rounded some
 * times on its way: at most EMBED + 1 times in each of three projections, head size + 2 in a score,
 * KEYS + 6 in a probability, KEYS in a weighted sum, and behind it the same again on the way back,
 * together under 128. What a rounding early on does to the end is as large as the numbers that meet
 * there: scores are below 8, and an error of a score counts twice its size in a probability. So 128 * 8
 * * 2^-24 of the largest number of a tensor, and of 1, is more than roundings can do, and a hundredth of
 * what any option does. */
#define ROUNDINGS 1024.0

static void expect_numbers(const char *what, int number, const double *got, const part *want)
{
    double largest = 1.0;
    for (int64_t i = 0; i < want->count; i++) largest = fmax(largest, fabs(want->values[i]));
    const double allowed = ROUNDINGS * FLT_EPSILON / 2 * largest;
    for (int64_t i = 0; i < want->count; i++)
        if (!(fabs(got[i] - want->values[i]) <= allowed))
            fail_msg("case %d, %s[%d]: got %.9g, PyTorch has %.9g, allowed %.2g", number, what,
                     (int)i, got[i], want->values[i], allowed);
}

static void expect_tensor(const char *what, int number, const atto_tensor *t, const part *want)
{
    test_tensor copy;
    double got[MOST_NUMBERS];
    test_tensor_make(&copy, test_dev, ATTO_F32, atto_shape_of(t->rank, t->shape), LAYOUT_DENSE);
    assert_int_equal(copy.numel, want->count);
    MUST(atto_tensor_copy(&copy.view, t));
    test_tensor_get(&copy, got);
    expect_numbers(what, number, got, want);
    test_tensor_drop(&copy);
}

static void expect_var(const char *what, int number, atto_var v, const part *want)
{
    atto_tensor t;
    MUST(atto_var_tensor(tape, v, &t));
    expect_tensor(what, number, &t, want);
}

/* ---- running ---- */

static void to_floats(const part *p, float *out)
{
    for (int64_t i = 0; i < p->count; i++) out[i] = (float)p->values[i];
}

static atto_status put_param(void *case_, const char *key, atto_param *p)
{
    float values[MOST_NUMBERS];
    const part *from = part_of(case_, key);
    const atto_tensor t = atto_param_value(p);
    assert_int_equal(atto_tensor_numel(&t), from->count);
    to_floats(from, values);
    return atto_param_write(p, values);
}

static atto_module *make_module(golden_case *c)
{
    const atto_multihead_attention_module_options options = { .no_bias = !c->bias,
                                                              .add_bias_kv = c->bias_kv,
                                                              .add_zero_attn = c->zero,
                                                              .batch_first = c->first,
                                                              .kdim = c->kdim,
                                                              .vdim = c->vdim };
    atto_module *m;
    MUST(atto_multihead_attention_create(test_dev, EMBED, HEADS, &options, &m));
    MUST(atto_module_params(m, put_param, c));
    return m;
}

static atto_shape sequence(const golden_case *c, int64_t length, int64_t size)
{
    if (!c->batched) return atto_shape2(length, size);
    return c->first ? atto_shape3(BATCHES, length, size) : atto_shape3(length, BATCHES, size);
}

/* A mask of the file: of kind odd, whose numbers are 0 and 1, as i32. */
static atto_var mask_of(const golden_case *c, const char *name, int kind, atto_shape shape)
{
    const part *p = part_of(c, name);
    float values[MOST_NUMBERS];
    int32_t hides[MOST_NUMBERS];
    const bool is_number = kind % 2 == 0;
    to_floats(p, values);
    for (int64_t i = 0; i < p->count; i++) hides[i] = values[i] != 0.0f;
    for (int64_t i = 0; is_number && i < p->count; i++)
        if (isinf(p->values[i])) values[i] = -INFINITY;
    return is_number ? atto_input(tape, ATTO_F32, shape, values)
                     : atto_input(tape, ATTO_I32, shape, hides);
}

/* padding, where PyTorch was given numbers for both since the other mask had some, is as it was. */
static int padding_kind(const golden_case *c)
{
    const part *p = part_of(c, "padding");
    for (int64_t i = 0; i < p->count; i++)
        if (p->values[i] != 0.0 && p->values[i] != 1.0) return 2;
    return c->padding;
}

typedef struct parameter_list {
    atto_param *list[MOST_PARAMS];
    int count;
} parameter_list;

static atto_status list_param(void *list_, const char *key, atto_param *p)
{
    (void)key;
    parameter_list *list = list_;
    list->list[list->count++] = p;
    return ATTO_OK;
}

static void run_case(golden_case *c, int number, bool with_weights)
{
    atto_module *m = make_module(c);
    test_tensor t[4];
    const char *const names[] = { "query", "key", "value", "dy" };
    const atto_shape shapes[] = { sequence(c, QUERIES, EMBED), sequence(c, KEYS, c->kdim),
                                  sequence(c, KEYS, c->vdim), sequence(c, QUERIES, EMBED) };
    atto_var v[3], padding, pairs, weights;
    for (int i = 0; i < 4; i++) {
        test_tensor_make(&t[i], test_dev, ATTO_F32, shapes[i], LAYOUT_DENSE);
        test_tensor_put(&t[i], part_of(c, names[i])->values);
        if (i < 3) v[i] = atto_borrow(tape, &t[i].view, true);
    }
    atto_multihead_attention_options options = { .causal = c->causal ? ATTO_CAUSAL_TOP_LEFT
                                                                     : ATTO_CAUSAL_NONE,
                                                 .each_head = true };
    if (c->padding) {
        padding = mask_of(c, "padding", padding_kind(c),
                          c->batched ? atto_shape2(BATCHES, KEYS) : atto_shape1(KEYS));
        options.key_padding_mask = &padding;
    }
    if (c->pairs) {
        pairs = mask_of(c, "mask", c->pairs,
                        c->pairs < 3
                            ? atto_shape2(QUERIES, KEYS)
                            : atto_shape3(c->batched ? BATCHES * HEADS : HEADS, QUERIES, KEYS));
        options.attn_mask = &pairs;
    }
    if (with_weights) options.weights = &weights;
    const atto_var y = atto_multihead_attention(tape, m, v[0], v[1], v[2], &options);
    MUST(atto_tape_status(tape));
    expect_var("y", number, y, part_of(c, "y"));
    if (with_weights) expect_var("weights", number, weights, part_of(c, "weights"));
    MUST(atto_backward_from(tape, y, &t[3].view));
    const part *grads = &c->parts[c->part_count - 3 - c->params];
    for (int i = 0; i < 3; i++) {
        atto_tensor got;
        MUST(atto_var_grad(tape, v[i], &got));
        expect_tensor(names[i], number, &got, &grads[i]);
    }
    parameter_list params = { .count = 0 };
    MUST(atto_module_params(m, list_param, &params));
    assert_int_equal(params.count, c->params);
    for (int i = 0; i < params.count; i++) {
        atto_tensor got;
        MUST(atto_param_grad(params.list[i], &got));
        expect_tensor(c->parts[i].name, number, &got, &grads[3 + i]);
    }
    MUST(atto_tape_end(tape));
    for (int i = 0; i < 4; i++) test_tensor_drop(&t[i]);
    atto_module_free(m);
}

static void every_option_matches_pytorch(void **state)
{
    (void)state;
    static golden_case c;
    int count = 0;
    FILE *file = golden_open("multihead_attention", MOST_NUMBERS);
    assert_non_null(file);
    for (; read_case(file, &c); count++) {
        if (test_in_disguise() && count % 4 != 0) continue;
        run_case(&c, count, false);
        run_case(&c, count, true);
    }
    fclose(file);
    assert_int_equal(count, 24);
}

/* ---- beside PyTorch ---- */

#define N 2
#define T 3
#define S 5

static void fill(double *out, int64_t n, uint64_t seed)
{
    test_uniform(seed, -1.0, 1.0, ATTO_F32, out, n);
}

static atto_var input(atto_shape shape, uint64_t seed, test_tensor *t)
{
    double values[MOST_NUMBERS];
    test_tensor_make(t, test_dev, ATTO_F32, shape, LAYOUT_DENSE);
    fill(values, t->numel, seed);
    test_tensor_put(t, values);
    return atto_borrow(tape, &t->view, true);
}

static void read_var(atto_var v, float *out)
{
    MUST(atto_tape_status(tape));
    MUST(atto_var_read(tape, v, out));
}

static atto_module *make_plain(bool batch_first)
{
    const atto_multihead_attention_module_options options = { .batch_first = batch_first };
    atto_module *m;
    MUST(atto_multihead_attention_create(test_dev, EMBED, HEADS, &options, &m));
    return m;
}

static void expect_finite(const atto_tensor *t)
{
    test_tensor copy;
    double got[MOST_NUMBERS];
    test_tensor_make(&copy, test_dev, ATTO_F32, atto_shape_of(t->rank, t->shape), LAYOUT_DENSE);
    MUST(atto_tensor_copy(&copy.view, t));
    test_tensor_get(&copy, got);
    for (int64_t i = 0; i < copy.numel; i++) assert_true(isfinite(got[i]));
    test_tensor_drop(&copy);
}

/* A query whose keys are all hidden: weights are 0, y is out_proj's bias, gradients are finite. */
static void queries_that_see_nothing_give_the_bias(void **state)
{
    (void)state;
    for (int with_weights = 0; with_weights < 2; with_weights++) {
        atto_module *m = make_plain(true);
        test_tensor tx;
        const int32_t hidden[N * S] = { 0, 0, 1, 0, 0, 1, 1, 1, 1, 1 };
        float y[N * S * EMBED], weights[N * S * S], bias[EMBED];
        atto_var of_weights;
        const atto_var x = input(atto_shape3(N, S, EMBED), 3, &tx);
        const atto_var padding = atto_input(tape, ATTO_I32, atto_shape2(N, S), hidden);
        parameter_list params = { .count = 0 };
        MUST(atto_module_params(m, list_param, &params));
        for (int i = 0; i < EMBED; i++) bias[i] = 0.25f * (float)i - 1.0f;
        MUST(atto_param_write(params.list[3], bias));
        const atto_multihead_attention_options options = { .key_padding_mask = &padding,
                                                           .weights =
                                                               with_weights ? &of_weights : NULL };
        const atto_var out = atto_multihead_attention(tape, m, x, x, x, &options);
        read_var(out, y);
        for (int i = 0; i < S * EMBED; i++)
            assert_true(y[S * EMBED + i] == bias[i % EMBED] && isfinite(y[i]));
        if (with_weights) {
            read_var(of_weights, weights);
            for (int i = 0; i < S * S; i++) assert_true(weights[S * S + i] == 0.0f);
        }
        MUST(atto_backward(tape, atto_reduce(tape, ATTO_REDUCE_SUM, out, NULL)));
        atto_tensor dx;
        MUST(atto_var_grad(tape, x, &dx));
        expect_finite(&dx);
        for (int i = 0; i < params.count; i++) {
            MUST(atto_param_grad(params.list[i], &dx));
            expect_finite(&dx);
        }
        MUST(atto_tape_end(tape));
        test_tensor_drop(&tx);
        atto_module_free(m);
    }
}

static void expect_bias_without_keys(atto_module *m, const float *bias, int mask, bool with_weights)
{
    test_tensor tq, tk;
    float y[N * T * EMBED];
    atto_var of_weights;
    atto_tensor weights, gradient;
    const atto_var q = input(atto_shape3(N, T, EMBED), 3, &tq);
    const atto_var k = input(atto_shape3(N, 0, EMBED), 4, &tk);
    const atto_var padding = atto_input(tape, ATTO_I32, atto_shape2(N, 0), NULL);
    const atto_var pairs = atto_input(tape, ATTO_F32, atto_shape2(T, 0), NULL);
    const atto_multihead_attention_options options = {
        .key_padding_mask = mask == 1 ? &padding : NULL,
        .attn_mask = mask == 2 ? &pairs : NULL,
        .causal = mask == 3 ? ATTO_CAUSAL_BOTTOM_RIGHT : ATTO_CAUSAL_NONE,
        .weights = with_weights ? &of_weights : NULL
    };
    const atto_var out = atto_multihead_attention(tape, m, q, k, k, &options);
    read_var(out, y);
    for (int i = 0; i < N * T * EMBED; i++) assert_true(y[i] == bias[i % EMBED]);
    if (with_weights) {
        MUST(atto_var_tensor(tape, of_weights, &weights));
        assert_true(weights.rank == 3 && weights.shape[1] == T && weights.shape[2] == 0);
    }
    MUST(atto_backward(tape, atto_reduce(tape, ATTO_REDUCE_SUM, out, NULL)));
    MUST(atto_var_grad(tape, q, &gradient));
    expect_finite(&gradient);
    MUST(atto_tape_end(tape));
    test_tensor_drop(&tq);
    test_tensor_drop(&tk);
}

/* Beside no keys at all every mask is empty, and there is nothing to take the largest of. */
static void no_keys_give_the_bias(void **state)
{
    (void)state;
    atto_module *m = make_plain(true);
    float bias[EMBED];
    parameter_list params = { .count = 0 };
    MUST(atto_module_params(m, list_param, &params));
    for (int i = 0; i < EMBED; i++) bias[i] = 0.25f * (float)i - 1.0f;
    MUST(atto_param_write(params.list[3], bias));
    for (int mask = 0; mask < 4; mask++)
        for (int with_weights = 0; with_weights < 2; with_weights++)
            expect_bias_without_keys(m, bias, mask, with_weights);
    atto_module_free(m);
}

/* atto_apply is the attention of x with itself; weights of queries are means over heads, or each. */
static void apply_is_self_attention(void **state)
{
    (void)state;
    atto_module *m = make_plain(false);
    test_tensor tx;
    float a[T * N * EMBED], b[T * N * EMBED], mean[N * T * T], each[N * HEADS * T * T];
    atto_var of_mean, of_each;
    const atto_var x = input(atto_shape3(T, N, EMBED), 5, &tx);
    read_var(atto_apply(tape, m, x), a);
    read_var(atto_multihead_attention(tape, m, x, x, x, NULL), b);
    assert_memory_equal(a, b, sizeof a);
    atto_multihead_attention_options options = { .weights = &of_mean };
    atto_multihead_attention(tape, m, x, x, x, &options);
    options = (atto_multihead_attention_options){ .weights = &of_each, .each_head = true };
    atto_multihead_attention(tape, m, x, x, x, &options);
    read_var(of_mean, mean);
    read_var(of_each, each);
    for (int n = 0; n < N; n++)
        for (int i = 0; i < T * T; i++) {
            const double sum =
                (double)each[(n * HEADS) * T * T + i] + (double)each[(n * HEADS + 1) * T * T + i];
            assert_true(fabs((double)mean[n * T * T + i] - sum / 2) <= (double)FLT_EPSILON);
        }
    MUST(atto_tape_end(tape));
    test_tensor_drop(&tx);
    atto_module_free(m);
}

/* Both alignments of a causal mask, with and without weights, are what the mask written out gives. */
static void causal_is_its_mask(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) {
        const bool bottom = way & 1, with_weights = way & 2;
        atto_module *m = make_plain(true);
        test_tensor tq, tk;
        int32_t hides[T * S];
        float by_option[N * T * EMBED], by_mask[N * T * EMBED];
        atto_var weights;
        const atto_var q = input(atto_shape3(N, T, EMBED), 7, &tq);
        const atto_var k = input(atto_shape3(N, S, EMBED), 8, &tk);
        for (int l = 0; l < T; l++)
            for (int s = 0; s < S; s++) hides[l * S + s] = s > l + (bottom ? S - T : 0);
        const atto_var mask = atto_input(tape, ATTO_I32, atto_shape2(T, S), hides);
        atto_multihead_attention_options options = { .causal = bottom ? ATTO_CAUSAL_BOTTOM_RIGHT
                                                                      : ATTO_CAUSAL_TOP_LEFT,
                                                     .weights = with_weights ? &weights : NULL };
        read_var(atto_multihead_attention(tape, m, q, k, k, &options), by_option);
        options.causal = ATTO_CAUSAL_NONE;
        options.attn_mask = &mask;
        read_var(atto_multihead_attention(tape, m, q, k, k, &options), by_mask);
        for (int i = 0; i < N * T * EMBED; i++)
            assert_true(fabsf(by_option[i] - by_mask[i]) <= 8 * FLT_EPSILON);
        MUST(atto_tape_end(tape));
        test_tensor_drop(&tq);
        test_tensor_drop(&tk);
        atto_module_free(m);
    }
}

/* Dropout draws in training only, and the same numbers with weights as without. */
static void dropout_is_the_same_with_weights(void **state)
{
    (void)state;
    const atto_multihead_attention_module_options dropping = { .dropout = 0.5f,
                                                               .batch_first = true };
    atto_module *m;
    test_tensor tx;
    float y[3][N * T * EMBED];
    atto_var weights;
    MUST(atto_multihead_attention_create(test_dev, EMBED, HEADS, &dropping, &m));
    for (int i = 0; i < 3; i++) {
        const atto_multihead_attention_options options = { .weights = i == 1 ? &weights : NULL };
        const atto_var x = input(atto_shape3(N, T, EMBED), 9, &tx);
        atto_module_train(m, i < 2);
        atto_tape_seed(tape, 11, 0);
        read_var(atto_multihead_attention(tape, m, x, x, x, &options), y[i]);
        MUST(atto_tape_end(tape));
        test_tensor_drop(&tx);
    }
    bool differs = false;
    for (int i = 0; i < N * T * EMBED; i++) {
        assert_true(fabsf(y[0][i] - y[1][i]) <= 16 * FLT_EPSILON);
        differs = differs || fabsf(y[0][i] - y[2][i]) > 1e-3f;
    }
    assert_true(differs);
    atto_module_free(m);
}

/* In 16 bits by autocast: what is rounded to bf16 on the way, some ten numbers one after the other, moves
 * a result of about 1 by ten times 2^-9; gradients reach f32 parameters in f32. */
static void autocast_computes_in_16_bits(void **state)
{
    (void)state;
    for (int with_weights = 0; with_weights < 2; with_weights++) {
        atto_module *m = make_plain(true);
        test_tensor tx;
        float whole[N * S * EMBED];
        atto_var weights;
        atto_tensor y, dx;
        const int32_t hidden[N * S] = { 0, 0, 1, 0, 0, 1, 0, 0, 0, 1 };
        const atto_var x = input(atto_shape3(N, S, EMBED), 3, &tx);
        const atto_var padding = atto_input(tape, ATTO_I32, atto_shape2(N, S), hidden);
        const atto_multihead_attention_options options = { .key_padding_mask = &padding,
                                                           .weights =
                                                               with_weights ? &weights : NULL };
        read_var(atto_multihead_attention(tape, m, x, x, x, &options), whole);
        MUST(atto_tape_autocast(tape, ATTO_BF16));
        const atto_var low = atto_multihead_attention(tape, m, x, x, x, &options);
        MUST(atto_var_tensor(tape, low, &y));
        assert_int_equal(y.dtype, ATTO_BF16);
        MUST(atto_tape_autocast(tape, ATTO_F32));
        const atto_var back = atto_cast(tape, low, ATTO_F32);
        float got[N * S * EMBED];
        read_var(back, got);
        for (int i = 0; i < N * S * EMBED; i++) assert_true(fabsf(got[i] - whole[i]) < 10.0f / 512);
        MUST(atto_backward(tape, atto_reduce(tape, ATTO_REDUCE_SUM, back, NULL)));
        MUST(atto_var_grad(tape, x, &dx));
        assert_int_equal(dx.dtype, ATTO_F32);
        parameter_list params = { .count = 0 };
        MUST(atto_module_params(m, list_param, &params));
        for (int i = 0; i < params.count; i++) {
            MUST(atto_param_grad(params.list[i], &dx));
            assert_int_equal(dx.dtype, ATTO_F32);
            expect_finite(&dx);
        }
        MUST(atto_tape_end(tape));
        test_tensor_drop(&tx);
        atto_module_free(m);
    }
}

/* A mask of -1e9, which f16 does not hold, hides as well as its neighbours let it: with all keys so, none
 * is hidden. With weights or without, in f16. */
static void huge_numbers_of_masks_survive_f16(void **state)
{
    (void)state;
    atto_module *m = make_plain(true);
    test_tensor tx;
    float numbers[N * S], y[2][N * S * EMBED];
    atto_var weights;
    const atto_var x = input(atto_shape3(N, S, EMBED), 3, &tx);
    for (int i = 0; i < N * S; i++) numbers[i] = i < S ? 0.0f : -1e9f;
    const atto_var padding = atto_input(tape, ATTO_F32, atto_shape2(N, S), numbers);
    MUST(atto_tape_autocast(tape, ATTO_F16));
    for (int i = 0; i < 2; i++) {
        const atto_multihead_attention_options options = { .key_padding_mask = &padding,
                                                           .weights = i ? &weights : NULL };
        const atto_var low = atto_multihead_attention(tape, m, x, x, x, &options);
        read_var(atto_cast(tape, low, ATTO_F32), y[i]);
    }
    MUST(atto_tape_autocast(tape, ATTO_F32));
    for (int i = 0; i < N * S * EMBED; i++) {
        assert_true(isfinite(y[0][i]) && isfinite(y[1][i]));
        assert_true(fabsf(y[0][i] - y[1][i]) < 10.0f / 2048); /* ten roundings to f16 */
    }
    MUST(atto_tape_end(tape));
    test_tensor_drop(&tx);
    atto_module_free(m);
}

/* The gradient of weights goes on to queries: against central differences. */
static double sum_of_squares(atto_module *m, const test_tensor *tx, bool backward, double *dx)
{
    atto_var weights;
    float loss;
    const atto_multihead_attention_options options = { .weights = &weights };
    const atto_var x = atto_borrow(tape, &tx->view, backward);
    atto_multihead_attention(tape, m, x, x, x, &options);
    const atto_var squares = atto_unary(tape, ATTO_UNARY_SQUARE, weights);
    const atto_var sum = atto_reduce(tape, ATTO_REDUCE_SUM, squares, NULL);
    read_var(sum, &loss);
    if (backward) {
        atto_tensor t;
        test_tensor copy;
        MUST(atto_backward(tape, sum));
        MUST(atto_var_grad(tape, x, &t));
        test_tensor_make(&copy, test_dev, ATTO_F32, atto_shape_of(t.rank, t.shape), LAYOUT_DENSE);
        MUST(atto_tensor_copy(&copy.view, &t));
        test_tensor_get(&copy, dx);
        test_tensor_drop(&copy);
    }
    MUST(atto_tape_end(tape));
    return (double)loss;
}

static void weights_pass_gradients_on(void **state)
{
    (void)state;
    atto_module *m = make_plain(true);
    test_tensor tx;
    double x[T * EMBED], dx[T * EMBED];
    const double step = 1.0 / 64;
    test_tensor_make(&tx, test_dev, ATTO_F32, atto_shape3(1, T, EMBED), LAYOUT_DENSE);
    fill(x, T * EMBED, 13);
    test_tensor_put(&tx, x);
    sum_of_squares(m, &tx, true, dx);
    for (int i = 0; i < T * EMBED; i += 5) {
        const double kept = x[i];
        x[i] = kept + step;
        test_tensor_put(&tx, x);
        const double above = sum_of_squares(m, &tx, false, NULL);
        x[i] = kept - step;
        test_tensor_put(&tx, x);
        const double below = sum_of_squares(m, &tx, false, NULL);
        x[i] = kept;
        /* 16 roundings of a loss of about 1, over the step; the curvature is far smaller */
        assert_true(fabs((above - below) / (2 * step) - dx[i]) <=
                    32 * 16 * (double)FLT_EPSILON + 1e-4);
    }
    test_tensor_drop(&tx);
    atto_module_free(m);
}

/* ---- what is refused ---- */

static void refuse(atto_var v, atto_status status, const char *words)
{
    (void)v;
    EXPECT_FAIL(atto_tape_status(tape), status, words);
    (void)atto_tape_end(tape);
}

static void bad_modules_are_refused(void **state)
{
    (void)state;
    atto_module *m = NULL;
    atto_multihead_attention_module_options o = { .dropout = 2.0f };
    EXPECT_FAIL(atto_multihead_attention_create(test_dev, 8, 2, NULL, NULL), ATTO_E_NULL, "m");
    EXPECT_FAIL(atto_multihead_attention_create(test_dev, 8, 3, NULL, &m), ATTO_E_SHAPE,
                "embed_dim|8|3");
    EXPECT_FAIL(atto_multihead_attention_create(test_dev, 0, 2, NULL, &m), ATTO_E_SHAPE,
                "embed_dim|0");
    EXPECT_FAIL(atto_multihead_attention_create(test_dev, 8, -1, NULL, &m), ATTO_E_SHAPE,
                "num_heads|-1");
    EXPECT_FAIL(atto_multihead_attention_create(test_dev, 514, 2, NULL, &m), ATTO_E_SHAPE,
                "257|256");
    EXPECT_FAIL(atto_multihead_attention_create(test_dev, INT64_MAX / 2, INT64_MAX / 2, NULL, &m),
                ATTO_E_SHAPE, "embed_dim is 4611686018427387903");
    EXPECT_FAIL(atto_multihead_attention_create(test_dev, 8, 2, &o, &m), ATTO_E_ARGUMENT,
                "dropout|2");
    o = (atto_multihead_attention_module_options){ .kdim = -3 };
    EXPECT_FAIL(atto_multihead_attention_create(test_dev, 8, 2, &o, &m), ATTO_E_SHAPE, "kdim|-3");
    o = (atto_multihead_attention_module_options){ .reserved = { 1 } };
    EXPECT_FAIL(atto_multihead_attention_create(test_dev, 8, 2, &o, &m), ATTO_E_ARGUMENT,
                "reserved");
    assert_null(m);
}

static void bad_calls_are_refused(void **state)
{
    (void)state;
    atto_module *m = make_plain(true), *other;
    const float zeros[N * S * EMBED * 2] = { 0.0f };
    MUST(atto_linear_create(test_dev, 8, 8, NULL, &other));
#define VAR(shape) atto_input(tape, ATTO_F32, shape, zeros)
    atto_var x = VAR(atto_shape3(N, S, EMBED)), weights;
    atto_multihead_attention(NULL, NULL, x, x, x, NULL);
    for (int i = 0; i < 2; i++) {
        x = VAR(atto_shape3(N, S, EMBED));
        refuse(atto_multihead_attention(
                   tape, m, x, x, x,
                   &(atto_multihead_attention_options){ .causal = (atto_causal)7,
                                                        .weights = i ? &weights : NULL }),
               ATTO_E_ARGUMENT, "causal is 7");
    }
    x = VAR(atto_shape3(N, S, EMBED));
    refuse(atto_multihead_attention(tape, NULL, x, x, x, NULL), ATTO_E_NULL, "m is NULL");
    x = VAR(atto_shape3(N, S, EMBED));
    refuse(atto_multihead_attention(tape, other, x, x, x, NULL), ATTO_E_ARGUMENT, "Linear");
    x = VAR(atto_shape1(8));
    refuse(atto_multihead_attention(tape, m, x, x, x, NULL), ATTO_E_SHAPE, "query|[8]");
    x = VAR(atto_shape3(N, S, EMBED));
    refuse(atto_multihead_attention(tape, m, VAR(atto_shape3(N, S, 7)), x, x, NULL), ATTO_E_SHAPE,
           "query|[2,5,7]|[2,5,8]");
    x = VAR(atto_shape3(N, S, EMBED));
    refuse(atto_multihead_attention(tape, m, x, VAR(atto_shape3(1, S, EMBED)), x, NULL),
           ATTO_E_SHAPE, "key|[1,5,8]");
    x = VAR(atto_shape3(N, S, EMBED));
    refuse(atto_multihead_attention(tape, m, x, x, VAR(atto_shape3(N, S - 1, EMBED)), NULL),
           ATTO_E_SHAPE, "value|[2,4,8]");
    x = VAR(atto_shape3(N, S, EMBED));
    atto_var mask = VAR(atto_shape2(S, N));
    refuse(atto_multihead_attention(
               tape, m, x, x, x, &(atto_multihead_attention_options){ .key_padding_mask = &mask }),
           ATTO_E_SHAPE, "key_padding_mask|[5,2]|[2,5]");
    x = VAR(atto_shape3(N, S, EMBED));
    mask = VAR(atto_shape3(N, S, S));
    refuse(atto_multihead_attention(tape, m, x, x, x,
                                    &(atto_multihead_attention_options){ .attn_mask = &mask }),
           ATTO_E_SHAPE, "attn_mask|[2,5,5]|[5,5]|[4,5,5]");
    x = VAR(atto_shape3(N, S, EMBED));
    refuse(atto_multihead_attention(tape, m, x, x, x,
                                    &(atto_multihead_attention_options){ .reserved = { 1 } }),
           ATTO_E_ARGUMENT, "reserved");
    atto_module_free(other);
    atto_module_free(m);
}

/* Parameters have PyTorch's names, shapes and first values. */
static atto_status check_param(void *seen_, const char *key, atto_param *p)
{
    int *seen = seen_;
    static const char *const keys[] = { "in_proj_weight", "in_proj_bias",    "bias_k",
                                        "bias_v",         "out_proj.weight", "out_proj.bias" };
    const atto_tensor t = atto_param_value(p);
    float values[3 * 64 * 64];
    double largest = 0.0, squares = 0.0;
    assert_string_equal(key, keys[*seen]);
    MUST(atto_param_read(p, values));
    const int64_t n = atto_tensor_numel(&t);
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs((double)values[i]));
        squares += (double)values[i] * (double)values[i];
    }
    const double bound = *seen == 0 ? sqrt(6.0 / 256) : 1.0 / 8;
    if (*seen == 1 || *seen == 5) assert_true(largest == 0.0);
    if (*seen == 0 || *seen == 4) assert_true(largest <= bound && largest > 0.99 * bound);
    if (*seen == 2 || *seen == 3)
        assert_true(sqrt(squares / 64) > 0.08 && sqrt(squares / 64) < 0.17);
    (*seen)++;
    return ATTO_OK;
}

static void parameters_start_as_pytorchs(void **state)
{
    (void)state;
    const atto_multihead_attention_module_options o = { .add_bias_kv = true };
    atto_module *m;
    int seen = 0;
    MUST(atto_multihead_attention_create(test_dev, 64, 4, &o, &m));
    MUST(atto_module_params(m, check_param, &seen));
    assert_int_equal(seen, 6);
    atto_module_free(m);
}

#define ON_A_TAPE(test) cmocka_unit_test_setup_teardown(test, open_tape, close_tape)

static const struct CMUnitTest tests[] = {
    ON_A_TAPE(every_option_matches_pytorch),      ON_A_TAPE(queries_that_see_nothing_give_the_bias),
    ON_A_TAPE(apply_is_self_attention),           ON_A_TAPE(causal_is_its_mask),
    ON_A_TAPE(dropout_is_the_same_with_weights),  ON_A_TAPE(autocast_computes_in_16_bits),
    ON_A_TAPE(huge_numbers_of_masks_survive_f16), ON_A_TAPE(weights_pass_gradients_on),
    ON_A_TAPE(bad_modules_are_refused),           ON_A_TAPE(bad_calls_are_refused),
    ON_A_TAPE(parameters_start_as_pytorchs),      ON_A_TAPE(no_keys_give_the_bias),
};
TEST_MAIN("multihead_attention", tests)
