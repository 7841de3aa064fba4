/* SPDX-License-Identifier: MIT */
/* Optimisers. PyTorch's own trajectories (golden/optim.txt, float64) judge the oracle tightly; every
 * backend is judged by both within the oracle's running error bound. Schedules: PyTorch's values. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"
#include "oracle_optim.h"
#include "train/optimizer.h"

/* ---- the file ---- */

#define N          7
#define STEPS      12
#define BAD_STEP   3 /* of the scaled trajectory */
#define MOST_CASES 32
#define MOST_RATES 128

typedef struct golden_case {
    oracle_optim o;
    double lr, clip; /* 0 = no clipping */
    double values[STEPS][N];
} golden_case;

typedef struct golden_schedule {
    char name[32];
    int steps;
    double values[MOST_RATES];
} golden_schedule;

static struct golden {
    char torch[64];
    double start[N], grads[STEPS][N];
    int case_count, schedule_count;
    golden_case cases[MOST_CASES];
    double initial_scale;
    int interval;
    double scales[STEPS], scaled[STEPS][N];
    golden_schedule schedules[16];
} golden;

static void malformed(const char *what)
{
    fail_msg(ATTO_GOLDEN_DIR "/optim.txt: %s; make it again with make_golden.py", what);
}

static void read_numbers(FILE *file, double *out, int n)
{
    for (int i = 0; i < n; i++)
        if (fscanf(file, "%lf", &out[i]) != 1) malformed("a number is missing");
}

static oracle_method method_of(const char *name)
{
    static const char *const names[] = { "sgd", "adam", "adamw", "rmsprop" };
    for (int i = 0; i < COUNT_OF(names); i++)
        if (strcmp(name, names[i]) == 0) return (oracle_method)i;
    malformed(name);
    return ORACLE_SGD;
}

static void read_case(FILE *file)
{
    golden_case *c = &golden.cases[golden.case_count++];
    char name[16];
    double v[11];
    if (fscanf(file, "%15s", name) != 1) malformed("a method is missing");
    read_numbers(file, v, 11);
    c->lr = v[0];
    c->o = (oracle_optim){ .method = method_of(name),
                           .weight_decay = v[1],
                           .momentum = v[2],
                           .dampening = v[3],
                           .nesterov = v[4] != 0.0,
                           .beta1 = v[5],
                           .beta2 = v[6],
                           .eps = v[7],
                           .centered = v[8] != 0.0,
                           .maximize = v[9] != 0.0 };
    c->clip = v[10];
    for (int s = 0; s < STEPS; s++) read_numbers(file, c->values[s], N);
}

static void read_scaled(FILE *file)
{
    double interval;
    read_numbers(file, &golden.initial_scale, 1);
    read_numbers(file, &interval, 1);
    golden.interval = (int)interval;
    for (int s = 0; s < STEPS; s++) {
        read_numbers(file, &golden.scales[s], 1);
        read_numbers(file, golden.scaled[s], N);
    }
}

static void read_schedule(FILE *file)
{
    golden_schedule *s = &golden.schedules[golden.schedule_count++];
    if (fscanf(file, "%31s %d", s->name, &s->steps) != 2 || s->steps > MOST_RATES)
        malformed("a schedule");
    read_numbers(file, s->values, s->steps);
}

static void read_parts(FILE *file)
{
    char word[16];
    while (fscanf(file, "%15s", word) == 1) {
        if (strcmp(word, "case") == 0 && golden.case_count < MOST_CASES)
            read_case(file);
        else if (strcmp(word, "scaled") == 0)
            read_scaled(file);
        else if (strcmp(word, "schedule") == 0)
            read_schedule(file);
        else
            malformed(word);
    }
}

static int read_golden(void **state)
{
    (void)state;
    int n = 0, steps = 0;
    FILE *file = fopen(ATTO_GOLDEN_DIR "/optim.txt", "r");
    if (!file) {
        print_error("cannot open " ATTO_GOLDEN_DIR "/optim.txt\n");
        return -1;
    }
    while (fgetc(file) != '\n') { /* one line of comment */
    }
    if (fscanf(file, " torch %63s optim %d %d", golden.torch, &n, &steps) != 3 || n != N ||
        steps != STEPS)
        malformed("its head");
    read_numbers(file, golden.start, N);
    for (int s = 0; s < STEPS; s++) read_numbers(file, golden.grads[s], N);
    read_parts(file);
    fclose(file);
    return 0;
}

static void golden_file_is_whole(void **state)
{
    (void)state;
    assert_int_equal(strncmp(golden.torch, "2.11.", 5), 0);
    assert_int_equal(golden.case_count, 24);
    assert_int_equal(golden.schedule_count, 10);
    assert_true(golden.scales[BAD_STEP] == golden.scales[BAD_STEP - 1] / 2);
}

/* What clip_grad_norm_ multiplies by. */
static double clip_factor(const double *g, int64_t n, double max_norm)
{
    double squares = 0.0;
    for (int64_t i = 0; i < n; i++) squares += g[i] * g[i];
    return max_norm == 0.0 ? 1.0 : fmin(1.0, max_norm / (sqrt(squares) + 1e-6));
}

/* Both are double, and differ in the order of a few operations a step. */
static void optim_oracle_matches_pytorch(void **state)
{
    (void)state;
    for (int i = 0; i < golden.case_count; i++) {
        const golden_case *c = &golden.cases[i];
        oracle_element e[N] = { 0 };
        for (int k = 0; k < N; k++) e[k].p.value = golden.start[k];
        for (int s = 0; s < STEPS; s++) {
            const double factor = clip_factor(golden.grads[s], N, c->clip);
            for (int k = 0; k < N; k++) {
                oracle_optim_step(&c->o, &e[k], c->lr, golden.grads[s][k], factor, 0.0);
                const double want = c->values[s][k];
                if (fabs(e[k].p.value - want) > 1e-13 * fmax(1.0, fabs(want)))
                    fail_msg("case %d, step %d, element %d: the oracle says %.17g, PyTorch %.17g",
                             i, s, k, e[k].p.value, want);
            }
        }
    }
}

/* ---- parameters with a known answer ---- */

#define MOST_PARAMS 160

/* Parameters, what the oracle makes of them, and the gradients of the present step. */
typedef struct model {
    int count;
    atto_param *p[MOST_PARAMS];
    const char *keys[MOST_PARAMS];
    oracle_element *e[MOST_PARAMS];
    double *g[MOST_PARAMS];
} model;

static int64_t numel_of(const atto_param *p)
{
    const atto_tensor value = atto_param_value(p);
    return atto_tensor_numel(&value);
}

/* Values exact in the tensor's dtype, through f32. */
static void put(const atto_tensor *t, const double *values)
{
    const int64_t n = atto_tensor_numel(t);
    float *floats = malloc((size_t)n * sizeof *floats);
    assert_non_null(floats);
    for (int64_t i = 0; i < n; i++) floats[i] = (float)values[i];
    atto_tensor wide;
    MUST(atto_tensor_alloc(atto_tensor_device(t), ATTO_F32, atto_shape_of(t->rank, t->shape),
                           &wide));
    MUST(atto_tensor_write(&wide, floats));
    MUST(atto_tensor_copy(t, &wide));
    atto_tensor_free(&wide);
    free(floats);
}

static void get(const atto_tensor *t, double *values)
{
    const int64_t n = atto_tensor_numel(t);
    float *floats = malloc((size_t)n * sizeof *floats);
    assert_non_null(floats);
    atto_tensor wide;
    MUST(atto_tensor_alloc(atto_tensor_device(t), ATTO_F32, atto_shape_of(t->rank, t->shape),
                           &wide));
    MUST(atto_tensor_copy(&wide, t));
    MUST(atto_tensor_read(&wide, floats));
    for (int64_t i = 0; i < n; i++) values[i] = (double)floats[i];
    atto_tensor_free(&wide);
    free(floats);
}

static void put_value(atto_param *p, const double *values)
{
    const atto_tensor value = atto_param_value(p);
    put(&value, values);
    atto_param_changed(p);
}

/* As a backward pass would write it. */
static void put_grad(atto_param *p, const double *values)
{
    const atto_tensor *grad;
    bool add;
    MUST(atto__param_grad_slot(p, &grad, &add));
    put(grad, values);
}

/* A parameter [n] with random values, on that device. */
static atto_param *add_param(model *m, atto_device *dev, int64_t n, atto_dtype dtype)
{
    const int i = m->count++;
    assert_true(i < MOST_PARAMS);
    MUST(atto_param_create(dev, dtype, atto_shape1(n), &m->p[i]));
    m->keys[i] = i % 3 == 1 ? "block.bias" : "block.weight";
    m->g[i] = test_doubles(n);
    m->e[i] = calloc((size_t)n, sizeof *m->e[i]);
    assert_non_null(m->e[i]);
    test_uniform((uint64_t)i + 1, -2.0, 2.0, dtype, m->g[i], n);
    for (int64_t k = 0; k < n; k++) m->e[i][k].p.value = m->g[i][k];
    put_value(m->p[i], m->g[i]);
    return m->p[i];
}

static void drop_model(model *m)
{
    for (int i = 0; i < m->count; i++) {
        atto_param_free(m->p[i]);
        free(m->e[i]);
        free(m->g[i]);
    }
    m->count = 0;
}

static atto_param_set set_of(const model *m)
{
    return (atto_param_set){ .params = m->p, .keys = m->keys, .count = m->count };
}

/* Gradients of several magnitudes, some exactly 0, for every parameter but those skipped. */
static void give_grads(model *m, int step, bool (*skips)(int param, int step))
{
    for (int i = 0; i < m->count; i++) {
        const int64_t n = numel_of(m->p[i]);
        const double size = i % 4 == 3 ? 1e-3 : 1.0;
        const atto_dtype dtype = m->p[i]->value.dtype;
        test_uniform((uint64_t)(1000 + 100 * step + i), -size, size, dtype, m->g[i], n);
        for (int64_t k = 0; k < n; k += 11) m->g[i][k] = 0.0;
        if (!skips || !skips(i, step)) put_grad(m->p[i], m->g[i]);
    }
}

static void step_oracle(model *m, int i, const oracle_optim *o, double lr, double factor,
                        double roundings)
{
    for (int64_t k = 0; k < numel_of(m->p[i]); k++)
        oracle_optim_step(o, &m->e[i][k], lr, m->g[i][k], factor, roundings);
}

/* Parameter i is where the oracle says; an f16 or bf16 one through its rounded master. */
static void expect_param(const model *m, int i, const char *what)
{
    const int64_t n = numel_of(m->p[i]);
    const atto_tensor value = atto_param_value(m->p[i]);
    double *got = test_doubles(n), *want = test_doubles(n), *allowed = test_doubles(n);
    get(&value, got);
    for (int64_t k = 0; k < n; k++) {
        want[k] = m->e[i][k].p.value;
        allowed[k] = m->e[i][k].p.error;
    }
    const test_about about = { what, "dense", value.dtype, atto_shape1(n), (uint64_t)i };
    expect_close(&about, got, want, allowed, n);
    free(got);
    free(want);
    free(allowed);
}

/* ---- making an optimiser of a case through the public calls ---- */

static double given(double value)
{
    return value == 0.0 ? ATTO_ZERO : value;
}

static atto_status make(const oracle_optim *o, double lr, const atto_param_set *set,
                        atto_optimizer **out)
{
    switch (o->method) {
    case ORACLE_SGD:
        return atto_sgd_create(NULL, lr,
                               &(atto_sgd_options){ .momentum = o->momentum,
                                                    .dampening = o->dampening,
                                                    .weight_decay = o->weight_decay,
                                                    .nesterov = o->nesterov,
                                                    .maximize = o->maximize,
                                                    .set = *set },
                               out);
    case ORACLE_ADAM:
        return atto_adam_create(NULL, lr,
                                &(atto_adam_options){ .beta1 = given(o->beta1),
                                                      .beta2 = given(o->beta2),
                                                      .eps = given(o->eps),
                                                      .weight_decay = o->weight_decay,
                                                      .maximize = o->maximize,
                                                      .set = *set },
                                out);
    case ORACLE_ADAMW:
        return atto_adamw_create(NULL, lr, o->weight_decay,
                                 &(atto_adamw_options){ .beta1 = given(o->beta1),
                                                        .beta2 = given(o->beta2),
                                                        .eps = given(o->eps),
                                                        .maximize = o->maximize,
                                                        .set = *set },
                                 out);
    case ORACLE_RMSPROP:
        break;
    }
    return atto_rmsprop_create(NULL, lr,
                               &(atto_rmsprop_options){ .alpha = given(o->beta2),
                                                        .eps = given(o->eps),
                                                        .weight_decay = o->weight_decay,
                                                        .momentum = o->momentum,
                                                        .centered = o->centered,
                                                        .maximize = o->maximize,
                                                        .set = *set },
                               out);
}

/* The norm's sum of n squares on any device: a chain of at most 64 in a work-item, 8 for its vector,
 * two trees of 8, n / 2^14 / 64 partials in a chain, and 4 for square and scale; halved by the root,
 * with 6 for it, 5 for the division and 3 for the factors. */
static double clip_roundings(int64_t n)
{
    return 0.5 * (64 + 8 + 16 + 4 + (double)n / 16384.0 / 64.0) + 14.0;
}

/* ---- trajectories ---- */

/* PyTorch's number may be off from the exact one by 1e-13, which the f32 bound does not notice. */
static void optim_matches_pytorch(void **state)
{
    (void)state;
    for (int i = 0; i < golden.case_count; i++) {
        const golden_case *c = &golden.cases[i];
        model m = { 0 };
        atto_param *p = add_param(&m, test_dev, N, ATTO_F32);
        put_value(p, golden.start);
        for (int k = 0; k < N; k++) m.e[0][k].p.value = golden.start[k];
        const atto_param_set set = set_of(&m);
        atto_optimizer *opt;
        MUST(make(&c->o, c->lr, &set, &opt));
        MUST(atto_optimizer_clip_norm(opt, c->clip));
        for (int s = 0; s < STEPS; s++) {
            const double factor = clip_factor(golden.grads[s], N, c->clip);
            memcpy(m.g[0], golden.grads[s], sizeof golden.grads[s]);
            put_grad(p, m.g[0]);
            MUST(atto_optimizer_step(opt, c->lr));
            step_oracle(&m, 0, &c->o, c->lr, factor, c->clip != 0.0 ? clip_roundings(N) : 1.0);
            for (int k = 0; k < N; k++) m.e[0][k].p.value = c->values[s][k];
            expect_param(&m, 0, "optim golden");
        }
        atto_optimizer_free(opt);
        drop_model(&m);
    }
}

/* Parameter 2 has no gradient in the first steps, parameter 4 only now and then. */
static bool skips_some(int param, int step)
{
    return (param == 2 && step < 3) || (param == 4 && step % 3 != 1);
}

static void make_odd_model(model *m, bool large)
{
    static const struct {
        int64_t n;
        atto_dtype dtype;
    } list[] = { { 1, ATTO_F32 },    { 3, ATTO_F32 },     { 257, ATTO_F32 },  { 1, ATTO_F16 },
                 { 1023, ATTO_F16 }, { 1025, ATTO_BF16 }, { 1024, ATTO_F32 }, { 3000, ATTO_BF16 },
                 { 2049, ATTO_F16 }, { 100003, ATTO_F32 } };
    const int count = large ? COUNT_OF(list) : COUNT_OF(list) - 1;
    *m = (model){ 0 };
    for (int i = 0; i < count; i++) add_param(m, test_dev, list[i].n, list[i].dtype);
}

static void follow_case(const golden_case *c, bool large)
{
    model m;
    make_odd_model(&m, large);
    const atto_param_group biases = {
        .suffix = "bias", .lr_factor = 0.25, .has_weight_decay = true, .weight_decay = 0.0
    };
    atto_param_set set = set_of(&m);
    set.groups = &biases;
    set.group_count = 1;
    atto_optimizer *opt;
    MUST(make(&c->o, c->lr, &set, &opt));
    for (int s = 0; s < 10; s++) {
        const double lr = c->lr / (1.0 + 0.5 * s);
        give_grads(&m, s, skips_some);
        MUST(atto_optimizer_step(opt, lr));
        for (int i = 0; i < m.count; i++) {
            oracle_optim o = c->o;
            if (skips_some(i, s)) continue;
            if (i % 3 == 1) o.weight_decay = 0.0;
            step_oracle(&m, i, &o, i % 3 == 1 ? 0.25 * lr : lr, 1.0, 1.0);
        }
    }
    for (int i = 0; i < m.count; i++) expect_param(&m, i, "optim");
    atto_optimizer_free(opt);
    drop_model(&m);
}

static void optim_matches_oracle(void **state)
{
    (void)state;
    const int every = test_in_disguise() ? 5 : 1;
    for (int i = 0; i < golden.case_count; i += every) follow_case(&golden.cases[i], i % 4 == 2);
}

/* PyTorch's defaults, without options. */
static void optim_defaults_are_pytorchs(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = add_param(&m, test_dev, 5, ATTO_F32);
    atto_optimizer *opt[3];
    atto_param_set set = set_of(&m);
    MUST(atto_adam_create(NULL, 1e-3, &(atto_adam_options){ .set = set }, &opt[0]));
    assert_true(opt[0]->numbers.weight1 == 0.1f && opt[0]->numbers.beta2 == 0.999f);
    assert_true(opt[0]->numbers.eps == 1e-8f && opt[0]->mode == 0);
    assert_true(atto_optimizer_lr(opt[0]) == 1e-3);
    atto_optimizer_free(opt[0]);
    MUST(atto_rmsprop_create(NULL, 1e-2, &(atto_rmsprop_options){ .set = set }, &opt[1]));
    assert_true(opt[1]->numbers.beta2 == 0.99f && opt[1]->numbers.eps == 1e-8f);
    assert_false(opt[1]->method.has_momentum || opt[1]->method.centered);
    atto_optimizer_free(opt[1]);
    MUST(atto_sgd_create(NULL, 1e-3, &(atto_sgd_options){ .set = set }, &opt[2]));
    assert_true(opt[2]->numbers.momentum == 0.0f && opt[2]->numbers.fresh == 1.0f);
    EXPECT_FAIL(atto_optimizer_state(opt[2], p, "momentum_buffer", &(atto_tensor){ 0 }),
                ATTO_E_ARGUMENT, "sgd|momentum_buffer");
    atto_optimizer_free(opt[2]);
    drop_model(&m);
}

/* ---- which parameters, and where they lie ---- */

static void optim_takes_ties_once_and_leaves_frozen_ones(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *tied = add_param(&m, test_dev, 10, ATTO_F32);
    atto_param *frozen = add_param(&m, test_dev, 20, ATTO_F32);
    atto_param *list[] = { tied, frozen, tied };
    atto_param_freeze(frozen, true);
    const atto_param_set set = { .params = list, .count = 3 };
    atto_optimizer *opt;
    MUST(atto_sgd_create(NULL, 0.5, &(atto_sgd_options){ .set = set }, &opt));
    assert_int_equal(atto_optimizer_param_count(opt), 10);
    assert_true(tied->is_packed && !frozen->is_packed && frozen->grad.buffer == NULL);
    give_grads(&m, 0, NULL); /* a gradient of the frozen one must not count either */
    MUST(atto_optimizer_step(opt, 0.5));
    step_oracle(&m, 0, &(oracle_optim){ .method = ORACLE_SGD }, 0.5, 1.0, 1.0);
    expect_param(&m, 0, "optim");
    expect_param(&m, 1, "optim");
    atto_optimizer_free(opt);
    drop_model(&m);
}

/* A parameter frozen after the optimiser was made keeps its value, and its gradient's memory. */
static void optim_leaves_later_frozen_ones(void **state)
{
    (void)state;
    model m = { 0 };
    add_param(&m, test_dev, 7, ATTO_F32);
    add_param(&m, test_dev, 9, ATTO_F32);
    const atto_param_set set = set_of(&m);
    atto_optimizer *opt;
    MUST(atto_adam_create(NULL, 0.1, &(atto_adam_options){ .set = set }, &opt));
    atto_param_freeze(m.p[1], true);
    give_grads(&m, 0, NULL);
    MUST(atto_optimizer_step(opt, 0.1));
    expect_param(&m, 1, "optim");
    atto_optimizer_free(opt);
    drop_model(&m);
}

static void optim_packs_into_chunks(void **state)
{
    (void)state;
    model m;
    make_odd_model(&m, true);
    give_grads(&m, 0, skips_some);
    const atto_param_set set = set_of(&m);
    const atto__optimizer_spec spec = { .name = "sgd",
                                        .kind = ATTO_OPTIM_SGD,
                                        .momentum = 0.9,
                                        .lr = 0.1,
                                        .set = &set,
                                        .chunk_bytes = 4 * 4096 };
    atto_optimizer *opt;
    MUST(atto__optimizer_create(&spec, NULL, &opt));
    /* f32: 1, 3, 257 and 1024 elements are four blocks, 100003 a chunk of its own; f16: 1, 1023 and
     * 2049 elements are 1 + 1 and 3 blocks; bf16: 2 and 3 */
    assert_int_equal(atto_optimizer_chunk_count(opt), 6);
    for (int i = 0; i < m.count; i++) {
        const atto_tensor value = atto_param_value(m.p[i]);
        assert_int_equal((size_t)value.offset * atto_dtype_size(value.dtype) % 256, 0);
        assert_true(m.p[i]->is_packed && m.p[i]->has_grad == !skips_some(i, 0));
        expect_param(&m, i, "optim");
    }
    oracle_optim o = { .method = ORACLE_SGD, .momentum = 0.9 };
    MUST(atto_optimizer_step(opt, 0.1));
    for (int i = 0; i < m.count; i++) {
        if (!skips_some(i, 0)) step_oracle(&m, i, &o, 0.1, 1.0, 1.0);
        expect_param(&m, i, "optim");
        assert_false(m.p[i]->has_grad);
    }
    for (int i = 0; i < atto_optimizer_chunk_count(opt); i++) {
        atto_tensor grads;
        MUST(atto_optimizer_grad_chunk(opt, i, &grads));
        assert_true(atto_tensor_numel(&grads) % ATTO_OPTIM_BLOCK == 0);
    }
    atto_optimizer_free(opt);
    drop_model(&m);
}

/* A value, a state and the step count stay bit for bit where a step finds no gradient. */
static void optim_leaves_parameters_without_a_gradient(void **state)
{
    (void)state;
    model m = { 0 };
    add_param(&m, test_dev, 300, ATTO_F32);
    add_param(&m, test_dev, 300, ATTO_F16);
    const atto_param_set set = set_of(&m);
    atto_optimizer *opt;
    MUST(atto_adamw_create(NULL, 0.1, 0.1, &(atto_adamw_options){ .set = set }, &opt));
    give_grads(&m, 0, NULL);
    MUST(atto_optimizer_step(opt, 0.1));
    double before[2][300], after[2][300];
    int32_t steps = 0;
    for (int i = 0; i < 2; i++) get(&m.p[i]->value, before[i]);
    const uint64_t version = m.p[0]->version;
    MUST(atto_optimizer_step(opt, 0.1)); /* no gradient at all */
    put_grad(m.p[1], m.g[1]);
    MUST(atto_optimizer_step(opt, 0.1)); /* one of two */
    for (int i = 0; i < 2; i++) get(&m.p[i]->value, after[i]);
    assert_memory_equal(before[0], after[0], sizeof before[0]);
    assert_memory_not_equal(before[1], after[1], sizeof before[1]);
    assert_true(m.p[0]->version == version);
    for (int i = 0; i < 2; i++) {
        atto_tensor step;
        MUST(atto_optimizer_state(opt, m.p[i], "step", &step));
        MUST(atto_tensor_read(&step, &steps));
        assert_int_equal(steps, 1 + i);
    }
    put_grad(m.p[0], m.g[0]);
    atto_optimizer_zero_grad(opt);
    MUST(atto_optimizer_step(opt, 0.1));
    get(&m.p[0]->value, after[0]);
    assert_memory_equal(before[0], after[0], sizeof before[0]);
    atto_optimizer_free(opt);
    drop_model(&m);
}

static bool is_first(void *data, const char *key, const atto_param *p)
{
    (void)key;
    return p == data;
}

/* One SGD step of gradient 1 and lr 1 shows each parameter's factor. */
static void optim_groups_take_what_they_name(void **state)
{
    (void)state;
    static const char *const keys[] = { "encoder.weight", "encoder.bias", "head.weight", "bias",
                                        "head.scale" };
    static const double wanted[] = { 0.5, 0.25, 1.0, 0.25, 0.0 }; /* lr_factor each */
    model m = { 0 };
    for (int i = 0; i < 5; i++) add_param(&m, test_dev, 2, ATTO_F32);
    const atto_param_group groups[] = {
        { .suffix = "bias", .lr_factor = 0.25 },
        { .match = is_first, .data = m.p[4], .lr_factor = ATTO_ZERO },
        { .prefix = "encoder.", .lr_factor = 0.5 },
        { .prefix = "head.w", .suffix = "t", .has_weight_decay = true },
    };
    const atto_param_set set = { m.p, keys, 5, 4, groups };
    atto_optimizer *opt;
    MUST(atto_sgd_create(NULL, 1.0, &(atto_sgd_options){ .weight_decay = 0.5, .set = set }, &opt));
    for (int i = 0; i < 5; i++) put_grad(m.p[i], (double[]){ 1.0, 2.0 });
    MUST(atto_optimizer_step(opt, 1.0));
    for (int i = 0; i < 5; i++) {
        const oracle_optim o = { .method = ORACLE_SGD, .weight_decay = i == 2 ? 0.0 : 0.5 };
        m.g[i][0] = 1.0;
        m.g[i][1] = 2.0;
        step_oracle(&m, i, &o, wanted[i], 1.0, 1.0);
        expect_param(&m, i, "optim");
    }
    atto_optimizer_free(opt);
    drop_model(&m);
}

/* Through modules: tied, frozen, grouped by module and by key. */
static void optim_trains_a_module(void **state)
{
    (void)state;
    atto_module *net, *first;
    atto_optimizer *opt;
    MUST(atto_sequential_create(test_dev, &net));
    MUST(atto_linear_create(test_dev, 30, 20, NULL, &first));
    MUST(atto_sequential_add(net, first));
    MUST(atto_sequential_add(net, first));
    MUST(atto_sequential_linear(net, 20, 10, NULL));
    const atto_param_group groups[] = { { .module = first, .lr_factor = 0.5 },
                                        { .suffix = ".bias", .has_weight_decay = true } };
    const atto_adamw_options options = { .set = { .groups = groups, .group_count = 2 } };
    MUST(atto_adamw_create(net, 1e-3f, 0.01f, &options, &opt));
    assert_int_equal(atto_optimizer_param_count(opt), atto_module_param_count(net));
    assert_int_equal(opt->trained_count, 4);
    static const int wanted[] = { 0, 0, 2, 1 };
    for (int i = 0; i < 4; i++) assert_int_equal(opt->trained[i].group, wanted[i]);
    MUST(atto_optimizer_step(opt, 1e-3));
    atto_optimizer_free(opt);
    atto_module_freeze(net, true);
    EXPECT_FAIL(atto_adamw_create(net, 1e-3f, 0.01f, NULL, &opt), ATTO_E_ARGUMENT, "adamw|frozen");
    assert_null(opt);
    atto_module_free(first);
    atto_module_free(net);
}

/* ---- f16 and bf16 ---- */

/* Steps too small for the dtype add up in the master copy; a value written by others is taken over. */
static void optim_master_copy_remembers_small_steps(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = add_param(&m, test_dev, 3, ATTO_BF16);
    const atto_param_set set = set_of(&m);
    atto_optimizer *opt;
    atto_tensor master;
    double values[3];
    const double ones[3] = { 1.0, 1.0, 1.0 };
    put_value(p, ones);
    MUST(atto_sgd_create(NULL, 1.0, &(atto_sgd_options){ .set = set }, &opt));
    for (int s = 0; s < 16; s++) {
        put_grad(p, ones);
        MUST(atto_optimizer_step(opt, 0x1p-12));
        get(&p->value, values);
        assert_true(values[0] == (s < 8 ? 1.0 : 1.0 - 0x1p-8)); /* 1 - 2^-9 is a tie, to even */
    }
    MUST(atto_optimizer_state(opt, p, "master", &master));
    get(&master, values);
    assert_true(values[2] == 1.0 - 0x1p-8);
    const uint16_t two[3] = { 0x4000, 0x4000, 0x4000 };
    MUST(atto_param_write(p, two));
    put_grad(p, ones);
    MUST(atto_optimizer_step(opt, 0.5));
    get(&p->value, values);
    assert_true(values[0] == 1.5 && values[2] == 1.5);
    atto_optimizer_free(opt);
    drop_model(&m);
}

/* ---- clipping and loss scaling ---- */

static double norm_of(const model *m)
{
    double squares = 0.0;
    for (int i = 0; i < m->count; i++)
        for (int64_t k = 0; k < numel_of(m->p[i]); k++) squares += m->g[i][k] * m->g[i][k];
    return sqrt(squares);
}

static void optim_clips_the_norm_over_all_chunks(void **state)
{
    (void)state;
    model m;
    make_odd_model(&m, true);
    const atto_param_set set = set_of(&m);
    const oracle_optim o = { .method = ORACLE_SGD };
    const atto__optimizer_spec spec = {
        .name = "sgd", .kind = ATTO_OPTIM_SGD, .lr = 0.1, .set = &set, .chunk_bytes = 16384
    };
    atto_optimizer *opt;
    MUST(atto__optimizer_create(&spec, NULL, &opt));
    MUST(atto_optimizer_clip_norm(opt, 3.0));
    for (int s = 0; s < 3; s++) {
        float norm;
        give_grads(&m, s, NULL);
        const double want = norm_of(&m), factor = fmin(1.0, 3.0 / (want + 1e-6));
        assert_true(factor < 0.5);
        MUST(atto_optimizer_step(opt, 0.1));
        MUST(atto_optimizer_norm(opt, &norm));
        const test_about about = { "optim norm", "dense", ATTO_F32, atto_shape1(1), 0 };
        expect_close(&about, &(double){ (double)norm }, &want,
                     &(double){ want * clip_roundings(100003) * 0x1p-24 }, 1);
        for (int i = 0; i < m.count; i++)
            step_oracle(&m, i, &o, 0.1, factor, clip_roundings(100003));
    }
    for (int i = 0; i < m.count; i++) expect_param(&m, i, "optim clipped");
    /* a norm below the limit changes nothing, INFINITY only measures, a gradient that is missing
     * does not count, 0 stops */
    float norm;
    MUST(atto_optimizer_clip_norm(opt, INFINITY));
    put_grad(m.p[1], (double[]){ 3.0, 0.0, -4.0 });
    MUST(atto_optimizer_step(opt, 0.0));
    MUST(atto_optimizer_norm(opt, &norm));
    assert_true(norm == 5.0f);
    MUST(atto_optimizer_clip_norm(opt, 0.0));
    EXPECT_FAIL(atto_optimizer_norm(opt, &norm), ATTO_E_STATE, "clip_norm");
    atto_optimizer_free(opt);
    drop_model(&m);
}

/* As PyTorch: an infinite norm makes 0 of finite gradients and NaN of the infinite ones; NaN spreads. */
static void optim_clips_infinite_and_nan_norms_as_pytorch(void **state)
{
    (void)state;
    for (int bad = 0; bad < 2; bad++) {
        model m = { 0 };
        atto_param *p = add_param(&m, test_dev, 3, ATTO_F32);
        const atto_param_set set = set_of(&m);
        atto_optimizer *opt;
        double values[3];
        float norm;
        put_value(p, (double[]){ 1.0, 2.0, 3.0 });
        MUST(atto_sgd_create(NULL, 1.0, &(atto_sgd_options){ .set = set }, &opt));
        MUST(atto_optimizer_clip_norm(opt, 1.0));
        put_grad(p, (double[]){ 1.0, bad ? NAN : INFINITY, 1.0 });
        MUST(atto_optimizer_step(opt, 1.0));
        MUST(atto_optimizer_norm(opt, &norm));
        get(&p->value, values);
        assert_true(bad ? isnan(norm) : isinf(norm));
        assert_true(isnan(values[1]));
        assert_true(bad ? isnan(values[0]) : values[0] == 1.0);
        atto_optimizer_free(opt);
        drop_model(&m);
    }
}

static double scale_of(const atto_optimizer *opt)
{
    atto_tensor t;
    float scale;
    MUST(atto_optimizer_loss_scale(opt, &t));
    MUST(atto_tensor_read(&t, &scale));
    return (double)scale;
}

/* H12: the gradient overflows at one step; PyTorch's GradScaler beside it. */
static void optim_scales_the_loss_as_pytorch(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = add_param(&m, test_dev, N, ATTO_F32);
    const atto_param_set set = set_of(&m);
    const oracle_optim o = { .method = ORACLE_SGD };
    const atto_loss_scale_options options = { .growth_interval = golden.interval };
    atto_optimizer *opt;
    int64_t skipped;
    put_value(p, golden.start);
    for (int k = 0; k < N; k++) m.e[0][k].p.value = golden.start[k];
    MUST(atto_sgd_create(NULL, 0.5, &(atto_sgd_options){ .set = set }, &opt));
    assert_true(scale_of(opt) == 1.0);
    MUST(atto_optimizer_scale_loss(opt, &options));
    assert_true(scale_of(opt) == golden.initial_scale);
    for (int s = 0; s < STEPS; s++) {
        const double scale = scale_of(opt);
        double scaled[N];
        for (int k = 0; k < N; k++) scaled[k] = golden.grads[s][k] * scale;
        if (s == BAD_STEP) scaled[2] = INFINITY;
        memcpy(m.g[0], golden.grads[s], sizeof golden.grads[s]);
        put_grad(p, scaled);
        MUST(atto_optimizer_step(opt, 0.5));
        assert_true(scale_of(opt) == golden.scales[s]);
        if (s != BAD_STEP) step_oracle(&m, 0, &o, 0.5, 1.0, 1.0);
        for (int k = 0; k < N; k++) /* PyTorch's are f32 here: within one bound of its own */
            assert_true(fabs(golden.scaled[s][k] - m.e[0][k].p.value) <= m.e[0][k].p.error);
        expect_param(&m, 0, "optim scaled");
    }
    MUST(atto_optimizer_skipped(opt, &skipped));
    assert_int_equal(skipped, 1);
    atto_optimizer_free(opt);
    drop_model(&m);
}

/* H12: 1e-8 is 0 in f16; scaled it is there, and the value moves by it. A skipped step leaves values,
 * states and step counts bit for bit. */
static void optim_scaled_gradients_do_not_underflow(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = add_param(&m, test_dev, 2, ATTO_F16);
    const atto_param_set set = set_of(&m);
    atto_optimizer *opt;
    atto_tensor master, average, step;
    double values[2], averages[2], after[2];
    int32_t steps;
    const double scaled = oracle_round(ATTO_F16, 1e-8 * 65536.0);
    put_value(p, (double[]){ 0.0, 0.0 });
    MUST(atto_adam_create(NULL, 1.0, &(atto_adam_options){ .eps = 1e-6, .set = set }, &opt));
    MUST(atto_optimizer_scale_loss(opt, NULL));
    MUST(atto_optimizer_state(opt, p, "master", &master));
    MUST(atto_optimizer_state(opt, p, "exp_avg", &average));
    MUST(atto_optimizer_state(opt, p, "step", &step));
    oracle_element e = { 0 };
    const oracle_optim o = { .method = ORACLE_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-6 };
    put_grad(p, (double[]){ scaled, scaled });
    MUST(atto_optimizer_step(opt, 1.0));
    oracle_optim_step(&o, &e, 1.0, scaled / 65536.0, 1.0, 1.0);
    get(&master, values);
    assert_true(values[0] != 0.0 && fabs(values[0] - e.p.value) <= e.p.error);
    get(&average, averages);
    for (int bad = 0; bad < 3; bad++) {
        static const double worst[] = { INFINITY, -INFINITY, NAN };
        put_grad(p, (double[]){ 1.0, worst[bad] });
        MUST(atto_optimizer_step(opt, 1.0));
        assert_true(scale_of(opt) == 65536.0 / (2 << bad));
        get(&master, after);
        assert_memory_equal(values, after, sizeof values);
        get(&average, after);
        assert_memory_equal(averages, after, sizeof averages);
        MUST(atto_tensor_read(&step, &steps));
        assert_int_equal(steps, 1);
    }
    atto_optimizer_free(opt);
    drop_model(&m);
}

/* The default interval, and a scale that would become infinite. */
static void optim_scale_grows_but_stays_finite(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = add_param(&m, test_dev, 1, ATTO_F32);
    const atto_param_set set = set_of(&m);
    const double zero = 0.0;
    atto_optimizer *opt;
    MUST(atto_sgd_create(NULL, 1.0, &(atto_sgd_options){ .set = set }, &opt));
    MUST(atto_optimizer_scale_loss(opt, NULL));
    assert_true(opt->numbers.growth_interval == 2000.0f);
    MUST(atto_optimizer_scale_loss(
        opt, &(atto_loss_scale_options){ .initial = 0x1p126, .growth_interval = 1 }));
    static const double wanted[] = { 0x1p127, 0x1p127, 0x1p127 };
    for (int s = 0; s < 3; s++) {
        put_grad(p, &zero);
        MUST(atto_optimizer_step(opt, 1.0));
        assert_true(scale_of(opt) == wanted[s]);
    }
    atto_optimizer_free(opt);
    drop_model(&m);
}

/* With both, a bad step neither clips nor moves anything. */
static void optim_clips_what_is_unscaled(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = add_param(&m, test_dev, 2, ATTO_F32);
    const atto_param_set set = set_of(&m);
    atto_optimizer *opt;
    double values[2];
    float norm;
    put_value(p, (double[]){ 1.0, 1.0 });
    MUST(atto_sgd_create(NULL, 1.0, &(atto_sgd_options){ .set = set }, &opt));
    MUST(atto_optimizer_scale_loss(opt, &(atto_loss_scale_options){ .initial = 1024.0 }));
    MUST(atto_optimizer_clip_norm(opt, 10.0));
    put_grad(p, (double[]){ 3.0 * 1024.0, 4.0 * 1024.0 });
    MUST(atto_optimizer_step(opt, 0.125));
    MUST(atto_optimizer_norm(opt, &norm));
    get(&p->value, values);
    assert_true(norm == 5.0f && values[0] == 1.0 - 0.375 && values[1] == 0.5);
    MUST(atto_optimizer_clip_norm(opt, 0.0)); /* scaling goes on measuring */
    put_grad(p, (double[]){ INFINITY, 0.0 });
    MUST(atto_optimizer_step(opt, 0.125));
    get(&p->value, values);
    assert_true(values[0] == 1.0 - 0.375 && scale_of(opt) == 512.0);
    atto_optimizer_free(opt);
    drop_model(&m);
}

/* ---- cost and determinism ---- */

/* K3: 150 tensors are one launch and one for the step's numbers, one more with clipping; a steady step
 * neither waits nor allocates. */
static void optim_of_many_tensors_costs_few_launches(void **state)
{
    (void)state;
    model m = { 0 };
    atto_device_stats before, after;
    atto_optimizer *opt;
    for (int i = 0; i < 150; i++) add_param(&m, test_dev, 1 + 37 * i % 500, ATTO_F32);
    const atto_param_set set = set_of(&m);
    MUST(atto_adamw_create(NULL, 0.01, 0.01, &(atto_adamw_options){ .set = set }, &opt));
    for (int clips = 0; clips < 2; clips++) {
        MUST(atto_optimizer_clip_norm(opt, clips ? 1.0 : 0.0));
        for (int s = 0; s < 2; s++) { /* the first builds kernels and writes flags */
            give_grads(&m, s, NULL);
            MUST(atto_device_stats_get(test_dev, &before));
            MUST(atto_optimizer_step(opt, 0.01));
            MUST(atto_device_stats_get(test_dev, &after));
        }
        assert_int_equal(after.launches - before.launches, 2 + clips);
        assert_int_equal(after.blocking_calls, before.blocking_calls);
        assert_int_equal(after.allocations, before.allocations);
        assert_int_equal(after.hidden_copies, before.hidden_copies);
    }
    atto_optimizer_free(opt);
    drop_model(&m);
}

/* The bits of everything after five clipped and scaled steps. */
static void run_for_bits(int32_t threads, double *out, int64_t n)
{
    atto_device *dev;
    atto_optimizer *opt;
    model m = { 0 };
    const atto_device_options options = { .num_threads = threads };
    MUST(atto_device_open(test_device_name(), &options, &dev));
    add_param(&m, dev, n - 1, ATTO_F32);
    add_param(&m, dev, 1, ATTO_F32);
    const atto_param_set set = set_of(&m);
    MUST(atto_adam_create(NULL, 0.01, &(atto_adam_options){ .set = set }, &opt));
    MUST(atto_optimizer_clip_norm(opt, 1.0));
    for (int s = 0; s < 5; s++) {
        give_grads(&m, s, NULL);
        MUST(atto_optimizer_step(opt, 0.01));
    }
    get(&m.p[0]->value, out);
    get(&m.p[1]->value, out + n - 1);
    atto_optimizer_free(opt);
    drop_model(&m);
    atto_device_close(dev);
}

static void optim_is_the_same_bits_each_time(void **state)
{
    (void)state;
    const int64_t n = 200001;
    double *first = test_doubles(n), *again = test_doubles(n);
    run_for_bits(1, first, n);
    for (int32_t threads = 1; threads <= 3; threads++) {
        run_for_bits(threads, again, n);
        assert_memory_equal(first, again, (size_t)n * sizeof *first);
    }
    free(first);
    free(again);
}

/* ---- life and death ---- */

static void optim_any_order_of_destruction(void **state)
{
    (void)state;
    atto_device *dev;
    atto_optimizer *opt, *second;
    model m = { 0 };
    MUST(atto_device_open(test_device_name(), NULL, &dev));
    add_param(&m, dev, 100, ATTO_F16);
    add_param(&m, dev, 100, ATTO_F32);
    atto_param_set set = set_of(&m);
    MUST(atto_sgd_create(NULL, 0.1, &(atto_sgd_options){ .momentum = 0.9, .set = set }, &opt));
    give_grads(&m, 0, NULL);
    MUST(atto_optimizer_step(opt, 0.1));
    atto_optimizer_free(opt); /* parameters stay, and may be packed again */
    for (int i = 0; i < 2; i++) {
        step_oracle(&m, i, &(oracle_optim){ .method = ORACLE_SGD, .momentum = 0.9 }, 0.1, 1.0, 1.0);
        expect_param(&m, i, "optim");
        assert_true(!m.p[i]->is_packed && m.p[i]->grad.buffer == NULL);
    }
    MUST(atto_adam_create(NULL, 0.1, &(atto_adam_options){ .set = set }, &second));
    for (int i = 0; i < 2; i++) expect_param(&m, i, "optim");
    give_grads(&m, 1, NULL);
    drop_model(&m); /* parameters first, then the device */
    atto_device_close(dev);
    MUST(atto_optimizer_step(second, 0.1));
    atto_optimizer_free(second);
    atto_optimizer_free(NULL);
}

/* Fails the fail_at-th host allocation, from 1; 0 = none. */
typedef struct failing {
    long held, taken, fail_at;
} failing;

static failing host;

static void *failing_allocate(void *data, size_t bytes)
{
    failing *f = data;
    if (__atomic_add_fetch(&f->taken, 1, __ATOMIC_SEQ_CST) == f->fail_at) return NULL;
    void *block = malloc(bytes);
    if (block) __atomic_add_fetch(&f->held, 1, __ATOMIC_SEQ_CST);
    return block;
}

static void failing_release(void *data, void *pointer)
{
    failing *f = data;
    __atomic_sub_fetch(&f->held, 1, __ATOMIC_SEQ_CST);
    free(pointer);
}

static int close_test_device(void **state)
{
    (void)state;
    atto_device_close(test_dev);
    test_dev = NULL;
    return 0;
}

static int reopen_test_device(void **state)
{
    (void)state;
    atto_set_allocator(NULL);
    return atto_device_open(test_device_name(), NULL, &test_dev) == ATTO_OK ? 0 : -1;
}

/* Makes an optimiser, allocation n of that failing; values must stay in any case. Returns whether it was
 * refused: where the pool gives memory back and asks again, it is not. */
static bool make_with_failure(model *m, long n)
{
    const atto_param_group group = { .suffix = "bias" };
    atto_param_set set = set_of(m);
    set.groups = &group;
    set.group_count = 1;
    atto_optimizer *opt;
    host.taken = 0;
    host.fail_at = n;
    const atto_status status =
        atto_adamw_create(NULL, 0.1, 0.0, &(atto_adamw_options){ .set = set }, &opt);
    host.fail_at = 0;
    assert_true(status == ATTO_OK || (status == ATTO_E_MEMORY && opt == NULL));
    for (int i = 0; i < m->count; i++) {
        assert_true(m->p[i]->is_packed == (status == ATTO_OK));
        expect_param(m, i, "optim");
    }
    if (status == ATTO_OK) MUST(atto_optimizer_step(opt, 0.1));
    atto_optimizer_free(opt);
    return status != ATTO_OK;
}

static void optim_survives_every_failing_allocation(void **state)
{
    (void)state;
    const atto_allocator allocator = { failing_allocate, failing_release, &host };
    host = (failing){ 0, 0, 0 };
    MUST(atto_set_allocator(&allocator));
    atto_device *dev;
    MUST(atto_device_open(test_device_name(), NULL, &dev));
    model m = { 0 };
    add_param(&m, dev, 10, ATTO_F32);
    add_param(&m, dev, 2000, ATTO_BF16);
    add_param(&m, dev, 5, ATTO_F32);
    MUST(atto_device_trim(dev));
    assert_false(make_with_failure(&m, 0));
    const long total = host.taken;
    int refused = 0;
    for (long n = 1; n <= total; n++) {
        MUST(atto_device_trim(dev));
        refused += make_with_failure(&m, n);
    }
    assert_true(refused > 20); /* two for each tensor on OpenCL, one where the pool asks again */
    drop_model(&m);
    atto_device_close(dev);
    assert_int_equal(host.held, 0);
}

/* The device has room for the values, but not for gradients and states. */
static void optim_survives_a_full_device(void **state)
{
    (void)state;
    atto_device *dev;
    atto_optimizer *opt;
    model m = { 0 };
    const atto_device_options options = { .max_memory_bytes = 1 << 20 };
    MUST(atto_device_open(test_device_name(), &options, &dev));
    add_param(&m, dev, 100000, ATTO_F32);
    const atto_param_set set = set_of(&m);
    EXPECT_FAIL(atto_adam_create(NULL, 0.1, &(atto_adam_options){ .set = set }, &opt),
                ATTO_E_MEMORY, "limit");
    assert_true(opt == NULL && !m.p[0]->is_packed);
    expect_param(&m, 0, "optim");
    drop_model(&m);
    atto_device_close(dev);
}

/* A changed value is a changed version, which backward asks for; gradients are used up. */
static void optim_step_counts_versions(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = add_param(&m, test_dev, 4, ATTO_F32);
    const atto_param_set set = set_of(&m);
    atto_optimizer *opt;
    atto_tensor grad;
    MUST(atto_sgd_create(NULL, 0.1, &(atto_sgd_options){ .set = set }, &opt));
    const uint64_t version = p->version;
    put_grad(p, m.g[0]);
    MUST(atto_param_grad(p, &grad));
    MUST(atto_optimizer_step(opt, 0.1));
    assert_true(p->version == version + 1);
    EXPECT_FAIL(atto_param_grad(p, &grad), ATTO_E_STATE, "none");
    atto_optimizer_free(opt);
    drop_model(&m);
}

/* What a backward pass of one's own sees: overwrite first, then add, until the step; and frozen ones are
 * not given out. */
static void optim_takes_gradients_of_ones_own(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = add_param(&m, test_dev, 2, ATTO_F32);
    const atto_param_set set = set_of(&m);
    atto_optimizer *opt;
    atto_tensor grad;
    bool add;
    double values[2];
    put_value(p, (double[]){ 1.0, 1.0 });
    MUST(atto_sgd_create(NULL, 1.0, &(atto_sgd_options){ .set = set }, &opt));
    for (int s = 0; s < 2; s++) {
        MUST(atto_param_grad_target(p, &grad, &add));
        assert_false(add);
        put(&grad, (double[]){ 0.25, 0.5 });
        MUST(atto_param_grad_target(p, &grad, &add));
        assert_true(add);
        MUST(atto_optimizer_step(opt, 1.0));
    }
    get(&p->value, values);
    assert_true(values[0] == 0.5 && values[1] == 0.0);
    EXPECT_FAIL(atto_param_grad_target(NULL, &grad, &add), ATTO_E_NULL, "p is NULL");
    EXPECT_FAIL(atto_param_grad_target(p, NULL, &add), ATTO_E_NULL, "out");
    EXPECT_FAIL(atto_param_grad_target(p, &grad, NULL), ATTO_E_NULL, "add");
    atto_param_freeze(p, true);
    EXPECT_FAIL(atto_param_grad_target(p, &grad, &add), ATTO_E_STATE, "frozen");
    atto_optimizer_free(opt);
    drop_model(&m);
}

static void optim_momentum_can_be_cycled(void **state)
{
    (void)state;
    static const oracle_optim kinds[] = {
        { .method = ORACLE_SGD, .momentum = 0.95 },
        { .method = ORACLE_ADAM, .beta1 = 0.95, .beta2 = 0.999, .eps = 1e-8 }
    };
    for (int i = 0; i < 2; i++) {
        oracle_optim o = kinds[i];
        model m = { 0 };
        atto_param *p = add_param(&m, test_dev, 50, ATTO_F32);
        const atto_param_set set = set_of(&m);
        atto_optimizer *opt;
        MUST(make(&o, 0.1, &set, &opt));
        for (int s = 0; s < 10; s++) {
            o.momentum = i ? 0.0 : atto_schedule_one_cycle_momentum(s, 10, 0.85, 0.95, NULL);
            o.beta1 = i ? atto_schedule_one_cycle_momentum(s, 10, 0.85, 0.95, NULL) : 0.0;
            MUST(atto_optimizer_set_momentum(opt, i ? o.beta1 : o.momentum));
            give_grads(&m, s, NULL);
            MUST(atto_optimizer_step(opt, 0.1));
            step_oracle(&m, 0, &o, 0.1, 1.0, 1.0);
        }
        expect_param(&m, 0, "optim");
        EXPECT_FAIL(atto_optimizer_set_momentum(opt, -0.5), ATTO_E_ARGUMENT, "-0.5");
        if (i) EXPECT_FAIL(atto_optimizer_set_momentum(opt, 1.0), ATTO_E_ARGUMENT, "less than 1");
        (void)p;
        atto_optimizer_free(opt);
        drop_model(&m);
    }
}

/* ---- refusals ---- */

static void optim_refuses_illegal_numbers(void **state)
{
    (void)state;
    model m = { 0 };
    add_param(&m, test_dev, 4, ATTO_F32);
    const atto_param_set set = set_of(&m);
    atto_optimizer *opt;
    static const double bad[] = { -0.5, NAN, INFINITY };
#define REFUSED(call, words) EXPECT_FAIL(call, ATTO_E_ARGUMENT, words)
#define SGD(lr, ...)         atto_sgd_create(NULL, lr, &(atto_sgd_options){ .set = set, __VA_ARGS__ }, &opt)
#define ADAM(...)            atto_adam_create(NULL, 0.1, &(atto_adam_options){ .set = set, __VA_ARGS__ }, &opt)
#define RMSPROP(...) \
    atto_rmsprop_create(NULL, 0.1, &(atto_rmsprop_options){ .set = set, __VA_ARGS__ }, &opt)
#define ADAMW(decay, ...) \
    atto_adamw_create(NULL, 0.1, decay, &(atto_adamw_options){ .set = set, __VA_ARGS__ }, &opt)
    for (int i = 0; i < 3; i++) {
        REFUSED(SGD(bad[i], .momentum = 0.0), "sgd|lr");
        REFUSED(SGD(0.1, .momentum = bad[i]), "sgd|momentum");
        REFUSED(SGD(0.1, .weight_decay = bad[i]), "sgd|weight_decay");
        if (i) REFUSED(SGD(0.1, .dampening = bad[i]), "sgd|dampening");
        REFUSED(ADAM(.beta1 = bad[i]), "adam|beta1");
        REFUSED(ADAM(.beta2 = bad[i]), "adam|beta2");
        REFUSED(ADAM(.eps = bad[i]), "adam|eps");
        REFUSED(ADAMW(bad[i], .eps = 0.0), "adamw|weight_decay");
        REFUSED(ADAMW(0.1, .beta1 = bad[i]), "adamw|beta1");
        REFUSED(RMSPROP(.alpha = bad[i]), "rmsprop|alpha");
        REFUSED(RMSPROP(.eps = bad[i]), "rmsprop|eps");
        REFUSED(RMSPROP(.momentum = bad[i]), "rmsprop|momentum");
    }
    REFUSED(ADAM(.beta1 = 1.0), "beta1|without 1");
    REFUSED(ADAM(.beta2 = 1.0), "beta2|without 1");
    REFUSED(SGD(0.1, .nesterov = true), "nesterov");
    REFUSED(SGD(0.1, .nesterov = true, .momentum = 0.9, .dampening = 0.1), "nesterov");
    REFUSED(SGD(0.1, .reserved = { 0, 1 }), "reserved");
    REFUSED(ADAM(.reserved = { 0, 1 }), "reserved");
    REFUSED(ADAMW(0.1, .reserved = { 0, 1 }), "reserved");
    REFUSED(RMSPROP(.reserved = { 0, 1 }), "reserved");
    assert_null(opt);
    assert_false(m.p[0]->is_packed);
    drop_model(&m);
}

static void optim_refuses_bad_sets(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = add_param(&m, test_dev, 4, ATTO_F32);
    atto_param *hole[] = { p, NULL };
    atto_optimizer *opt, *owner;
    atto_param_set set = set_of(&m);
#define MAKE(s) atto_sgd_create(NULL, 0.1, &(atto_sgd_options){ .set = s }, &opt)
    EXPECT_FAIL(atto_sgd_create(NULL, 0.1, NULL, &opt), ATTO_E_NULL, "neither");
    EXPECT_FAIL(atto_sgd_create(NULL, 0.1, &(atto_sgd_options){ .set = set }, NULL), ATTO_E_NULL,
                "out");
    EXPECT_FAIL(MAKE(((atto_param_set){ .params = hole, .count = 2 })), ATTO_E_NULL, "params[1]");
    EXPECT_FAIL(MAKE(((atto_param_set){ .params = hole, .count = 0 })), ATTO_E_ARGUMENT,
                "no param");
    EXPECT_FAIL(MAKE(((atto_param_set){ .params = hole, .count = -1 })), ATTO_E_ARGUMENT, "-1");
    set.group_count = 1;
    EXPECT_FAIL(MAKE(set), ATTO_E_NULL, "groups");
    const atto_param_group bad[] = { { .lr_factor = -0.5 },
                                     { .has_weight_decay = true, .weight_decay = NAN },
                                     { .reserved = { 1 } } };
    static const char *const words[] = { "lr_factor", "weight_decay", "reserved" };
    for (int i = 0; i < 3; i++) {
        set.groups = &bad[i];
        EXPECT_FAIL(MAKE(set), ATTO_E_ARGUMENT, words[i]);
    }
    set.group_count = -1;
    EXPECT_FAIL(MAKE(set), ATTO_E_ARGUMENT, "group_count");
    set = set_of(&m);
    MUST(atto_sgd_create(NULL, 0.1, &(atto_sgd_options){ .set = set }, &owner));
    EXPECT_FAIL(MAKE(set), ATTO_E_STATE, "block.weight|another optimiser");
    assert_null(opt);
    atto_optimizer_free(owner);

    atto_device *other;
    model far = { 0 };
    MUST(atto_device_open("cpu", NULL, &other));
    atto_param *both[] = { p, add_param(&far, other, 3, ATTO_F32) };
    EXPECT_FAIL(MAKE(((atto_param_set){ .params = both, .count = 2 })), ATTO_E_DEVICE, "is on");
    assert_true(!p->is_packed && !far.p[0]->is_packed);
    drop_model(&far);
    atto_device_close(other);
    drop_model(&m);
}

static void optim_calls_refuse_bad_arguments(void **state)
{
    (void)state;
    model m = { 0 };
    atto_param *p = add_param(&m, test_dev, 4, ATTO_F32);
    const atto_param_set set = set_of(&m);
    atto_optimizer *opt;
    atto_tensor t;
    float number;
    int64_t count;
    void *data;
    MUST(atto_sgd_create(NULL, 0.1, &(atto_sgd_options){ .set = set }, &opt));
    EXPECT_FAIL(atto_optimizer_step(NULL, 0.1), ATTO_E_NULL, "opt");
    EXPECT_FAIL(atto_optimizer_step(opt, -1.0), ATTO_E_ARGUMENT, "lr|-1");
    EXPECT_FAIL(atto_optimizer_step(opt, NAN), ATTO_E_ARGUMENT, "lr");
    EXPECT_FAIL(atto_optimizer_step(opt, INFINITY), ATTO_E_ARGUMENT, "lr");
    EXPECT_FAIL(atto_optimizer_set_momentum(NULL, 0.1), ATTO_E_NULL, "opt");
    EXPECT_FAIL(atto_optimizer_set_momentum(opt, 0.1), ATTO_E_STATE, "without momentum");
    EXPECT_FAIL(atto_optimizer_clip_norm(NULL, 1.0), ATTO_E_NULL, "opt");
    EXPECT_FAIL(atto_optimizer_clip_norm(opt, -1.0), ATTO_E_ARGUMENT, "max_norm");
    EXPECT_FAIL(atto_optimizer_clip_norm(opt, NAN), ATTO_E_ARGUMENT, "max_norm");
    EXPECT_FAIL(atto_optimizer_norm(NULL, &number), ATTO_E_NULL, "opt");
    EXPECT_FAIL(atto_optimizer_norm(opt, NULL), ATTO_E_NULL, "out");
    EXPECT_FAIL(atto_optimizer_norm(opt, &number), ATTO_E_STATE, "measure");
    EXPECT_FAIL(atto_optimizer_norm_tensor(opt, &t), ATTO_E_STATE, "measure");
    EXPECT_FAIL(atto_optimizer_loss_scale(NULL, &t), ATTO_E_NULL, "opt");
    EXPECT_FAIL(atto_optimizer_skipped(opt, NULL), ATTO_E_NULL, "out");
    MUST(atto_optimizer_skipped(opt, &count));
    assert_int_equal(count, 0);
#define SCALE(...) atto_optimizer_scale_loss(opt, &(atto_loss_scale_options){ __VA_ARGS__ })
    EXPECT_FAIL(atto_optimizer_scale_loss(NULL, NULL), ATTO_E_NULL, "opt");
    EXPECT_FAIL(SCALE(.initial = -1.0), ATTO_E_ARGUMENT, "initial");
    EXPECT_FAIL(SCALE(.initial = 1e39), ATTO_E_ARGUMENT, "initial");
    EXPECT_FAIL(SCALE(.growth = 1.0), ATTO_E_ARGUMENT, "growth");
    EXPECT_FAIL(SCALE(.backoff = 1.0), ATTO_E_ARGUMENT, "backoff");
    EXPECT_FAIL(SCALE(.growth_interval = -1), ATTO_E_ARGUMENT, "growth_interval");
    EXPECT_FAIL(SCALE(.reserved = { 1 }), ATTO_E_ARGUMENT, "reserved");
    EXPECT_FAIL(atto_optimizer_state(opt, p, "exp_avg", &t), ATTO_E_ARGUMENT, "exp_avg");
    EXPECT_FAIL(atto_optimizer_state(opt, p, "master", &t), ATTO_E_ARGUMENT, "master");
    EXPECT_FAIL(atto_optimizer_state(opt, NULL, "step", &t), ATTO_E_NULL, "p is NULL");
    EXPECT_FAIL(atto_optimizer_grad_chunk(opt, 1, &t), ATTO_E_ARGUMENT, "0 to 0");
    EXPECT_FAIL(atto_optimizer_grad_chunk(opt, 0, NULL), ATTO_E_NULL, "out");
    put_grad(p, m.g[0]);
    const atto_tensor value = atto_param_value(p);
    MUST(atto_tensor_map(&value, ATTO_MAP_READ, &data));
    EXPECT_FAIL(atto_optimizer_step(opt, 0.1), ATTO_E_STATE, "optimizer_step|mapped");
    assert_true(p->has_grad);
    MUST(atto_tensor_unmap(&value));
    assert_int_equal(atto_optimizer_param_count(NULL), 0);
    assert_int_equal(atto_optimizer_chunk_count(NULL), 0);
    atto_optimizer_zero_grad(NULL);
    atto_optimizer_free(opt);
    drop_model(&m);
}

/* ---- schedules ---- */

static double schedule_value(const char *name, int64_t step)
{
    static const int64_t milestones[] = { 3, 11, 20 };
    const atto_one_cycle_options odd = { .pct_start = 0.21,
                                         .div_factor = 10.0,
                                         .final_div_factor = 100.0 };
    const atto_one_cycle_options linear = { .linear = true }, three = { .three_phase = true };
    if (strcmp(name, "step") == 0) return atto_schedule_step(step, 7, 0.5, 0.1);
    if (strcmp(name, "multi_step") == 0)
        return atto_schedule_multi_step(step, milestones, 3, 0.5, 0.3);
    if (strcmp(name, "exponential") == 0) return atto_schedule_exponential(step, 0.5, 0.9);
    if (strcmp(name, "linear") == 0) return atto_schedule_linear(step, 12, 0.5 / 3.0, 0.5);
    if (strcmp(name, "cosine") == 0) return atto_schedule_cosine(step, 25, 0.5, 0.01);
    if (strcmp(name, "one_cycle") == 0) return atto_schedule_one_cycle(step, 50, 0.8, NULL);
    if (strcmp(name, "one_cycle_odd") == 0) return atto_schedule_one_cycle(step, 37, 0.8, &odd);
    if (strcmp(name, "one_cycle_linear") == 0)
        return atto_schedule_one_cycle(step, 50, 0.8, &linear);
    if (strcmp(name, "one_cycle_three") == 0) return atto_schedule_one_cycle(step, 50, 0.8, &three);
    if (strcmp(name, "one_cycle_momentum") == 0)
        return atto_schedule_one_cycle_momentum(step, 50, 0.85, 0.95, NULL);
    malformed(name);
    return 0.0;
}

/* PyTorch computes most of these step by step from the one before: a rounding of 2^-53 each. */
static void schedules_match_pytorch(void **state)
{
    (void)state;
    for (int i = 0; i < golden.schedule_count; i++) {
        const golden_schedule *s = &golden.schedules[i];
        for (int step = 0; step < s->steps; step++) {
            const double got = schedule_value(s->name, step), want = s->values[step];
            if (fabs(got - want) > 8 * (step + 1) * 0x1p-53 * 0.8)
                fail_msg("%s at step %d is %.17g, PyTorch has %.17g", s->name, step, got, want);
        }
    }
}

static void schedules_hold_at_their_ends(void **state)
{
    (void)state;
    assert_true(atto_schedule_step(-5, 0, 0.5, 0.1) == 0.5);
    assert_true(atto_schedule_step(3, 0, 1.0, 0.5) == 0.125);
    assert_true(atto_schedule_multi_step(5, NULL, 3, 0.5, 0.1) == 0.5);
    assert_true(atto_schedule_linear(0, 0, 0.1, 0.5) == 0.5);
    assert_true(atto_schedule_linear(100, 10, 0.1, 0.5) == 0.5);
    assert_true(atto_schedule_cosine(7, 0, 0.5, 0.1) == 0.5);
    assert_true(atto_schedule_one_cycle(99, 100, 1.0, NULL) ==
                atto_schedule_one_cycle(5000, 100, 1.0, NULL));
    assert_true(atto_schedule_one_cycle(0, 1, 1.0, NULL) > 0.0);
    assert_true(atto_schedule_warmup_cosine(0, 4, 12, 1.0, 0.0) == 0.25);
    assert_true(atto_schedule_warmup_cosine(3, 4, 12, 1.0, 0.0) == 1.0);
    assert_true(atto_schedule_warmup_cosine(4, 4, 12, 1.0, 0.0) == 1.0);
    assert_true(fabs(atto_schedule_warmup_cosine(8, 4, 12, 1.0, 0.5) - 0.75) < 1e-15);
    assert_true(atto_schedule_warmup_cosine(12, 4, 12, 1.0, 0.125) == 0.125);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(golden_file_is_whole, read_golden),
    cmocka_unit_test(optim_oracle_matches_pytorch),
    cmocka_unit_test(optim_matches_pytorch),
    cmocka_unit_test(optim_matches_oracle),
    cmocka_unit_test(optim_defaults_are_pytorchs),
    cmocka_unit_test(optim_takes_ties_once_and_leaves_frozen_ones),
    cmocka_unit_test(optim_leaves_later_frozen_ones),
    cmocka_unit_test(optim_packs_into_chunks),
    cmocka_unit_test(optim_leaves_parameters_without_a_gradient),
    cmocka_unit_test(optim_groups_take_what_they_name),
    cmocka_unit_test(optim_trains_a_module),
    cmocka_unit_test(optim_master_copy_remembers_small_steps),
    cmocka_unit_test(optim_clips_the_norm_over_all_chunks),
    cmocka_unit_test(optim_clips_infinite_and_nan_norms_as_pytorch),
    cmocka_unit_test(optim_scales_the_loss_as_pytorch),
    cmocka_unit_test(optim_scaled_gradients_do_not_underflow),
    cmocka_unit_test(optim_scale_grows_but_stays_finite),
    cmocka_unit_test(optim_clips_what_is_unscaled),
    cmocka_unit_test(optim_of_many_tensors_costs_few_launches),
    cmocka_unit_test(optim_is_the_same_bits_each_time),
    cmocka_unit_test(optim_any_order_of_destruction),
    cmocka_unit_test_setup_teardown(optim_survives_every_failing_allocation, close_test_device,
                                    reopen_test_device),
    cmocka_unit_test(optim_survives_a_full_device),
    cmocka_unit_test(optim_step_counts_versions),
    cmocka_unit_test(optim_takes_gradients_of_ones_own),
    cmocka_unit_test(optim_momentum_can_be_cycled),
    cmocka_unit_test(optim_refuses_illegal_numbers),
    cmocka_unit_test(optim_refuses_bad_sets),
    cmocka_unit_test(optim_calls_refuse_bad_arguments),
    cmocka_unit_test(schedules_match_pytorch),
    cmocka_unit_test(schedules_hold_at_their_ends),
};

TEST_MAIN("optim", tests)
