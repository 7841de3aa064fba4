/* SPDX-License-Identifier: MIT */
/* The module of examples/transformer_block beside PyTorch's TransformerEncoderLayer
 * (golden/transformer_block.txt, float64): outputs, all gradients, and parameters after steps of an optimiser. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "golden.h"

enum { MODEL = 4, HEADS = 2, WIDTH = 6, BATCHES = 2, POSITIONS = 5, STEPS = 5 };

#define MOST_PARAMS  12
#define MOST_PARTS   (3 * MOST_PARAMS + 7)
#define MOST_NUMBERS 128

typedef struct part {
    char name[32];
    int64_t count;
    double values[MOST_NUMBERS];
} part;

typedef struct golden_case {
    bool batched, first, norm_first, bias, gelu;
    double eps;
    int padding, pairs;
    bool causal, is_adamw;
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
    int n[9];
    double eps;
    char method[8];
    if (!golden_case_begins(file)) return false;
    if (fscanf(file, "%d %d %d %d %d %lf %d %d %d %7s %d", &n[0], &n[1], &n[2], &n[3], &n[4], &eps,
               &n[5], &n[6], &n[7], method, &n[8]) != 11)
        golden_malformed("options");
    *c = (golden_case){ .batched = n[0],
                        .first = n[1],
                        .norm_first = n[2],
                        .bias = n[3],
                        .gelu = n[4],
                        .eps = eps,
                        .padding = n[5],
                        .pairs = n[6],
                        .causal = n[7],
                        .is_adamw = strcmp(method, "adamw") == 0,
                        .params = n[8] };
    c->part_count = 3 * c->params + 5 + (c->padding > 0) + (c->pairs > 0);
    if (c->params > MOST_PARAMS) golden_malformed("too many parameters");
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
 * A number of a result is rounded on its way: about MODEL + 6 times in each norm, MODEL + 1 or WIDTH + 1 in each of
 * four projections, 4 in a score, POSITIONS + 6 in a probability, POSITIONS in a weighted sum, 4 in an
 * activation and once in each sum, together under 64, and on the way back the same again. A norm makes
 * what was rounded before it larger, by one over its row's deviation: up to 8. So 128 * 8 * 2^-24 of the
 * largest number of a tensor, and of 1, is more than roundings can do, and a hundredth of what any option does. */
#define ROUNDINGS 1024.0

/* A step of the optimiser moves a value by at most lr / eps = 1 times a gradient's error with AdamW, and lr / (1 -
 * momentum) = 0.25 times with SGD. */
#define STEP_ROUNDINGS (STEPS * ROUNDINGS)

static void expect_numbers(const char *what, int number, const float *got, const part *want,
                           double roundings)
{
    double largest = 1.0;
    for (int64_t i = 0; i < want->count; i++) largest = fmax(largest, fabs(want->values[i]));
    const double allowed = roundings * (double)FLT_EPSILON / 2 * largest;
    for (int64_t i = 0; i < want->count; i++) {
        const double error = fabs((double)got[i] - want->values[i]);
        if (!(error <= allowed))
            fail_msg("case %d, %s[%d]: got %.9g, PyTorch has %.9g, allowed %.2g", number, what,
                     (int)i, (double)got[i], want->values[i], allowed);
    }
}

static void expect_tensor(const char *what, int number, const atto_tensor *t, const part *want,
                          double roundings)
{
    float got[MOST_NUMBERS];
    assert_int_equal(atto_tensor_numel(t), want->count);
    MUST(atto_tensor_read(t, got));
    expect_numbers(what, number, got, want, roundings);
}

/* ---- running ---- */

typedef struct parameter_list {
    const golden_case *c;
    atto_param *list[MOST_PARAMS];
    int count;
} parameter_list;

static void to_floats(const part *p, float *out)
{
    for (int64_t i = 0; i < p->count; i++)
        out[i] = isinf(p->values[i]) ? -INFINITY : (float)p->values[i];
}

/* Keys come in PyTorch's order. */
static atto_status put_param(void *params_, const char *key, atto_param *p)
{
    parameter_list *params = params_;
    float values[MOST_NUMBERS];
    const part *from = &params->c->parts[params->count];
    const atto_tensor t = atto_param_value(p);
    assert_true(params->count < params->c->params);
    assert_string_equal(key, from->name);
    assert_int_equal(atto_tensor_numel(&t), from->count);
    params->list[params->count++] = p;
    to_floats(from, values);
    return atto_param_write(p, values);
}

static atto_module *make_module(const golden_case *c, parameter_list *params)
{
    const transformer_block_options options = { .dim_feedforward = WIDTH,
                                                .dropout = ATTO_ZERO,
                                                .act = c->gelu ? atto_gelu() : atto_identity(),
                                                .layer_norm_eps = (float)c->eps,
                                                .batch_first = c->first,
                                                .norm_first = c->norm_first,
                                                .no_bias = !c->bias };
    atto_module *m;
    MUST(transformer_block_create(test_dev, MODEL, HEADS, &options, &m));
    *params = (parameter_list){ .c = c };
    MUST(atto_module_params(m, put_param, params));
    assert_int_equal(params->count, c->params);
    return m;
}

static atto_shape sequence(const golden_case *c)
{
    if (!c->batched) return atto_shape2(POSITIONS, MODEL);
    return c->first ? atto_shape3(BATCHES, POSITIONS, MODEL)
                    : atto_shape3(POSITIONS, BATCHES, MODEL);
}

static atto_var input(const golden_case *c, const char *name)
{
    float values[MOST_NUMBERS];
    to_floats(part_of(c, name), values);
    return atto_input(tape, ATTO_F32, sequence(c), values);
}

/* A mask of the file: of kind odd, whose numbers are 0 and 1, as i32. */
static atto_var mask_of(const golden_case *c, const char *name, int kind, atto_shape shape)
{
    const part *p = part_of(c, name);
    float values[MOST_NUMBERS];
    int32_t hides[MOST_NUMBERS];
    to_floats(p, values);
    if (kind % 2 == 0) return atto_input(tape, ATTO_F32, shape, values);
    for (int64_t i = 0; i < p->count; i++) hides[i] = values[i] != 0.0f;
    return atto_input(tape, ATTO_I32, shape, hides);
}

/* The module with the case's masks; by atto_apply where there is none. */
static atto_var forward(const golden_case *c, atto_module *m, atto_var x)
{
    atto_var padding, pairs;
    transformer_block_call call = { .causal = c->causal };
    if (!c->padding && !c->pairs && !c->causal) return atto_apply(tape, m, x);
    if (c->padding) {
        padding = mask_of(c, "padding", c->padding,
                          c->batched ? atto_shape2(BATCHES, POSITIONS) : atto_shape1(POSITIONS));
        call.key_padding_mask = &padding;
    }
    if (c->pairs) {
        pairs = mask_of(c, "mask", c->pairs,
                        c->pairs < 3 ? atto_shape2(POSITIONS, POSITIONS)
                                     : atto_shape3(BATCHES * HEADS, POSITIONS, POSITIONS));
        call.src_mask = &pairs;
    }
    return transformer_block(tape, m, x, &call);
}

static void check_gradients(const golden_case *c, int number, atto_module *m,
                            const parameter_list *params)
{
    atto_tensor x, dy, got;
    float values[MOST_NUMBERS];
    const part *from_dy = part_of(c, "dy"), *from_x = part_of(c, "x");
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, sequence(c), &x));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, sequence(c), &dy));
    to_floats(from_x, values);
    MUST(atto_tensor_write(&x, values));
    to_floats(from_dy, values);
    MUST(atto_tensor_write(&dy, values));
    const atto_var v = atto_borrow(tape, &x, true), y = forward(c, m, v);
    MUST(atto_var_tensor(tape, y, &got));
    expect_tensor("y", number, &got, part_of(c, "y"), ROUNDINGS);
    MUST(atto_backward_from(tape, y, &dy));
    MUST(atto_var_grad(tape, v, &got));
    expect_tensor("dx", number, &got, part_of(c, "dx"), ROUNDINGS);
    const part *grads = part_of(c, "grad");
    for (int i = 0; i < params->count; i++) {
        MUST(atto_param_grad(params->list[i], &got));
        expect_tensor(c->parts[i].name, number, &got, &grads[i], ROUNDINGS);
    }
    MUST(atto_tape_end(tape));
    atto_tensor_free(&x);
    atto_tensor_free(&dy);
}

static atto_optimizer *make_optimizer(const golden_case *c, atto_module *m, double *lr)
{
    atto_optimizer *optimizer;
    *lr = c->is_adamw ? 0.015625 : 0.125;
    if (c->is_adamw)
        MUST(atto_adamw_create(m, *lr, 0.125, &(atto_adamw_options){ .eps = 0x1p-6 }, &optimizer));
    else
        MUST(atto_sgd_create(m, *lr, &(atto_sgd_options){ .momentum = 0.5 }, &optimizer));
    return optimizer;
}

static void check_training(const golden_case *c, int number, atto_module *m,
                           const parameter_list *params)
{
    double lr;
    atto_optimizer *optimizer = make_optimizer(c, m, &lr);
    atto_optimizer_zero_grad(optimizer);
    for (int i = 0; i < STEPS; i++) {
        const atto_var y = forward(c, m, input(c, "x"));
        MUST(atto_backward(tape, atto_mse_loss(tape, y, input(c, "target"), NULL)));
        MUST(atto_optimizer_step(optimizer, lr));
        MUST(atto_tape_end(tape));
    }
    const part *trained = part_of(c, "trained");
    for (int i = 0; i < params->count; i++) {
        const atto_tensor value = atto_param_value(params->list[i]);
        expect_tensor("trained", number, &value, &trained[i], STEP_ROUNDINGS);
    }
    atto_optimizer_free(optimizer);
}

static void every_option_matches_pytorch(void **state)
{
    (void)state;
    static golden_case c;
    int count = 0;
    FILE *file = golden_open("transformer_block", MOST_NUMBERS);
    assert_non_null(file);
    for (; read_case(file, &c); count++) {
        parameter_list params;
        if (test_in_disguise() && count % 5 != 0) continue;
        atto_module *m = make_module(&c, &params);
        check_gradients(&c, count, m, &params);
        check_training(&c, count, m, &params);
        atto_module_free(m);
    }
    fclose(file);
    assert_int_equal(count, 10);
}

/* ---- beside PyTorch's numbers ---- */

static void fill(float *out, int64_t n, uint64_t seed)
{
    double values[MOST_NUMBERS];
    test_uniform(seed, -1.0, 1.0, ATTO_F32, values, n);
    for (int64_t i = 0; i < n; i++) out[i] = (float)values[i];
}

static atto_module *make_plain(float dropout)
{
    const transformer_block_options options = { .dim_feedforward = WIDTH, .dropout = dropout };
    atto_module *m;
    atto_seed(test_dev, 3);
    MUST(transformer_block_create(test_dev, MODEL, HEADS, &options, &m));
    return m;
}

/* The module on seeded numbers, with masks of tape seed. */
static void run_plain(atto_module *m, uint64_t seed, float *y)
{
    float x[BATCHES * POSITIONS * MODEL];
    fill(x, COUNT_OF(x), 7);
    atto_tape_seed(tape, seed, 0);
    const atto_var v = atto_input(tape, ATTO_F32, atto_shape3(POSITIONS, BATCHES, MODEL), x);
    MUST(atto_var_read(tape, atto_apply(tape, m, v), y));
    MUST(atto_tape_end(tape));
}

static bool equal(const float *a, const float *b)
{
    return memcmp(a, b, BATCHES * POSITIONS * MODEL * sizeof *a) == 0;
}

/* By default a tenth is dropped, in training only; what is left of a dropped block is one without. */
static void dropout_is_for_training(void **state)
{
    (void)state;
    enum { N = BATCHES * POSITIONS * MODEL };
    float first[N], second[N], evaluation[N], without[N];
    atto_module *m = make_plain(0.0f), *plain = make_plain(ATTO_ZERO);
    run_plain(m, 1, first);
    run_plain(m, 2, second);
    atto_module_train(m, false);
    run_plain(m, 1, evaluation);
    run_plain(plain, 1, without);
    assert_false(equal(first, second));
    assert_false(equal(first, evaluation));
    assert_true(equal(evaluation, without));
    atto_module_free(plain);
    atto_module_free(m);
}

static void normalise(float row[MODEL])
{
    double mean = 0.0, variance = 0.0;
    for (int i = 0; i < MODEL; i++) mean += (double)row[i] / MODEL;
    for (int i = 0; i < MODEL; i++) variance += pow((double)row[i] - mean, 2) / MODEL;
    for (int i = 0; i < MODEL; i++)
        row[i] = (float)(((double)row[i] - mean) / sqrt(variance + 1e-5));
}

/* Of what is dropped, so that it would show. */
static atto_status set_bias(void *data, const char *key, atto_param *p)
{
    (void)data;
    const bool is_bias = strstr(key, "bias") != NULL && strncmp(key, "norm", 4) != 0;
    return is_bias ? atto_param_init_normal(p, 0.0, 1.0) : ATTO_OK;
}

/* Everything dropped: norms of x alone are left, whatever the projections are. */
static void dropout_is_behind_both_branches(void **state)
{
    (void)state;
    enum { N = BATCHES * POSITIONS * MODEL };
    float x[N], y[N];
    atto_module *m = make_plain(1.0f);
    MUST(atto_module_params(m, set_bias, NULL));
    fill(x, N, 7);
    for (int once = 0; once < 2; once++) /* norm2 of norm1 */
        for (int i = 0; i < N; i += MODEL) normalise(x + i);
    run_plain(m, 1, y);
    for (int i = 0; i < N; i++) assert_true(fabsf(x[i] - y[i]) <= 64 * FLT_EPSILON);
    atto_module_free(m);
}

/* Name, shape, mean and bound of every parameter. */
static atto_status check_param(void *seen_, const char *key, atto_param *p)
{
    enum { D = 32, F = 2048 };
    static const struct {
        const char *key;
        int64_t count;
        double low, high;
    } wanted[] = {
        { "self_attn.in_proj_weight", 3 * D * D, -0.21650635, 0.21650635 }, /* sqrt(6 / 4 D) */
        { "self_attn.in_proj_bias", 3 * D, 0, 0 },
        { "self_attn.out_proj.weight", D * D, -0.17677670, 0.17677670 }, /* 1 / sqrt(D) */
        { "self_attn.out_proj.bias", D, 0, 0 },
        { "linear1.weight", F * D, -0.17677670, 0.17677670 },
        { "linear1.bias", F, -0.17677670, 0.17677670 },
        { "linear2.weight", F * D, -0.02209709, 0.02209709 }, /* 1 / sqrt(F) */
        { "linear2.bias", D, -0.02209709, 0.02209709 },
        { "norm1.weight", D, 1, 1 },
        { "norm1.bias", D, 0, 0 },
        { "norm2.weight", D, 1, 1 },
        { "norm2.bias", D, 0, 0 },
    };
    static float values[F * D];
    int *seen = seen_;
    const atto_tensor t = atto_param_value(p);
    double low = INFINITY, high = -INFINITY;
    assert_true(*seen < COUNT_OF(wanted));
    assert_string_equal(key, wanted[*seen].key);
    assert_int_equal(atto_tensor_numel(&t), wanted[*seen].count);
    MUST(atto_param_read(p, values));
    for (int64_t i = 0; i < wanted[*seen].count; i++) {
        low = fmin(low, (double)values[i]);
        high = fmax(high, (double)values[i]);
    }
    const double range = wanted[*seen].high - wanted[*seen].low;
    assert_true(low >= wanted[*seen].low - 1e-7 && low <= wanted[*seen].low + 0.2 * range);
    assert_true(high <= wanted[*seen].high + 1e-7 && high >= wanted[*seen].high - 0.2 * range);
    (*seen)++;
    return ATTO_OK;
}

static void parameters_start_as_pytorchs(void **state)
{
    (void)state;
    atto_module *m;
    int seen = 0;
    atto_seed(test_dev, 1);
    MUST(transformer_block_create(test_dev, 32, 4, NULL, &m));
    MUST(atto_module_params(m, check_param, &seen));
    assert_int_equal(seen, 12);
    atto_module_free(m);
}

/* ---- what is refused ---- */

static void refuse_module(int64_t d_model, int64_t nhead, const transformer_block_options *options,
                          atto_status status, const char *words)
{
    atto_module *m = (atto_module *)&d_model;
    assert_int_equal(transformer_block_create(test_dev, d_model, nhead, options, &m), status);
    assert_null(m);
    if (strstr(failure_message(), words) == NULL)
        fail_msg("message is '%s', expected '%s'", failure_message(), words);
}

static void bad_modules_are_refused(void **state)
{
    (void)state;
    transformer_block_options o = { .dim_feedforward = -6 };
    assert_int_equal(transformer_block_create(test_dev, 8, 2, NULL, NULL), ATTO_E_NULL);
    refuse_module(0, 2, NULL, ATTO_E_SHAPE, "d_model is 0");
    refuse_module(8, 3, NULL, ATTO_E_SHAPE,
                  "self_attn: multihead_attention_create: embed_dim is 8");
    refuse_module(8, 2, &o, ATTO_E_SHAPE, "dim_feedforward is -6");
    o = (transformer_block_options){ .dropout = 1.5f };
    refuse_module(8, 2, &o, ATTO_E_ARGUMENT,
                  "self_attn: multihead_attention_create: the dropout probability is 1.5");
    o = (transformer_block_options){ .layer_norm_eps = -0.5f };
    refuse_module(8, 2, &o, ATTO_E_ARGUMENT, "norm1: ");
}

static void refuse_call(atto_module *m, atto_shape of_x, atto_shape of_mask, atto_status status,
                        const char *words)
{
    const float zeros[MOST_NUMBERS] = { 0.0f };
    const atto_var x = atto_input(tape, ATTO_F32, of_x, zeros);
    const atto_var mask = atto_input(tape, ATTO_F32, of_mask, zeros);
    const transformer_block_call call = { .src_mask = &mask };
    transformer_block(tape, m, x, &call);
    EXPECT_FAIL(atto_tape_status(tape), status, words);
    (void)atto_tape_end(tape);
}

static void bad_calls_are_refused(void **state)
{
    (void)state;
    atto_module *m = make_plain(0.0f), *other;
    const atto_var none = { .generation = 0 };
    const atto_shape good = atto_shape3(POSITIONS, BATCHES, MODEL);
    const atto_shape mask = atto_shape2(POSITIONS, POSITIONS);
    MUST(atto_linear_create(test_dev, MODEL, MODEL, NULL, &other));
    refuse_call(NULL, good, mask, ATTO_E_NULL, "transformer_block: m is NULL");
    refuse_call(other, good, mask, ATTO_E_ARGUMENT, "transformer_block: m is no TransformerBlock");
    transformer_block(tape, other, none, NULL);
    EXPECT_FAIL(atto_tape_status(tape), ATTO_E_ARGUMENT, "no TransformerBlock");
    (void)atto_tape_end(tape);
    refuse_call(m, atto_shape3(POSITIONS, BATCHES, 3), mask, ATTO_E_SHAPE, "query|[5,2,3]");
    refuse_call(m, good, atto_shape2(POSITIONS, 3), ATTO_E_SHAPE, "attn_mask|[5,3]|[5,5]");
    atto_module_free(other);
    atto_module_free(m);
}

#define ON_A_TAPE(test) cmocka_unit_test_setup_teardown(test, open_tape, close_tape)

static const struct CMUnitTest tests[] = {
    ON_A_TAPE(every_option_matches_pytorch),    ON_A_TAPE(dropout_is_for_training),
    ON_A_TAPE(dropout_is_behind_both_branches), ON_A_TAPE(parameters_start_as_pytorchs),
    ON_A_TAPE(bad_modules_are_refused),         ON_A_TAPE(bad_calls_are_refused),
};
TEST_MAIN("example transformer_block", tests)
