/* SPDX-License-Identifier: MIT */
/* The golden file of optimisers, and models whose answer the oracle knows. */
#include "optim_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the file ---- */

struct golden golden;

void golden_malformed(const char *what)
{
    fail_msg(ATTO_GOLDEN_DIR "/optim.txt: %s; make it again with make_golden.py", what);
}

static void read_numbers(FILE *file, double *out, int n)
{
    for (int i = 0; i < n; i++)
        if (fscanf(file, "%lf", &out[i]) != 1) golden_malformed("a number is missing");
}

static oracle_method method_of(const char *name)
{
    static const char *const names[] = { "sgd", "adam", "adamw", "rmsprop" };
    for (int i = 0; i < COUNT_OF(names); i++)
        if (strcmp(name, names[i]) == 0) return (oracle_method)i;
    golden_malformed(name);
    return ORACLE_SGD;
}

static void read_case(FILE *file)
{
    golden_case *c = &golden.cases[golden.case_count++];
    char name[16];
    double v[11];
    if (fscanf(file, "%15s", name) != 1) golden_malformed("a method is missing");
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
        golden_malformed("a schedule");
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
            golden_malformed(word);
    }
}

int golden_read(void **state)
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
        golden_malformed("its head");
    read_numbers(file, golden.start, N);
    for (int s = 0; s < STEPS; s++) read_numbers(file, golden.grads[s], N);
    read_parts(file);
    fclose(file);
    return 0;
}

/* ---- models ---- */

int64_t param_numel(const atto_param *p)
{
    const atto_tensor value = atto_param_value(p);
    return atto_tensor_numel(&value);
}

/* Values exact in the tensor's dtype, through f32. */
void put_doubles(const atto_tensor *t, const double *values)
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

void get_doubles(const atto_tensor *t, double *values)
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

void put_value(atto_param *p, const double *values)
{
    const atto_tensor value = atto_param_value(p);
    put_doubles(&value, values);
    atto_param_changed(p);
}

/* As a backward pass would write it. */
void put_grad(atto_param *p, const double *values)
{
    const atto_tensor *grad;
    bool add;
    MUST(atto__param_grad_slot(p, &grad, &add));
    put_doubles(grad, values);
}

/* A parameter [n] with random values, on that device. */
atto_param *model_add(model *m, atto_device *dev, int64_t n, atto_dtype dtype)
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

void model_drop(model *m)
{
    for (int i = 0; i < m->count; i++) {
        atto_param_free(m->p[i]);
        free(m->e[i]);
        free(m->g[i]);
    }
    m->count = 0;
}

atto_param_set model_set(const model *m)
{
    return (atto_param_set){ .params = m->p, .keys = m->keys, .count = m->count };
}

/* Gradients of several magnitudes, some exactly 0, for every parameter but those skipped. */
void model_give_grads(model *m, int step, bool (*skips)(int param, int step))
{
    for (int i = 0; i < m->count; i++) {
        const int64_t n = param_numel(m->p[i]);
        const double size = i % 4 == 3 ? 1e-3 : 1.0;
        const atto_dtype dtype = m->p[i]->value.dtype;
        test_uniform((uint64_t)(1000 + 100 * step + i), -size, size, dtype, m->g[i], n);
        for (int64_t k = 0; k < n; k += 11) m->g[i][k] = 0.0;
        if (!skips || !skips(i, step)) put_grad(m->p[i], m->g[i]);
    }
}

void model_step(model *m, int i, const oracle_optim *o, double lr, double factor, double roundings)
{
    for (int64_t k = 0; k < param_numel(m->p[i]); k++)
        oracle_optim_step(o, &m->e[i][k], lr, m->g[i][k], factor, roundings);
}

/* Parameter i is where the oracle says; an f16 or bf16 one through its rounded master. */
void model_expect(const model *m, int i, const char *what)
{
    const int64_t n = param_numel(m->p[i]);
    const atto_tensor value = atto_param_value(m->p[i]);
    double *got = test_doubles(n), *want = test_doubles(n), *allowed = test_doubles(n);
    get_doubles(&value, got);
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

/* Parameter 2 has no gradient in the first steps, parameter 4 only now and then. */
bool skips_some(int param, int step)
{
    return (param == 2 && step < 3) || (param == 4 && step % 3 != 1);
}

void model_make_odd(model *m, bool large)
{
    static const struct {
        int64_t n;
        atto_dtype dtype;
    } list[] = { { 1, ATTO_F32 },    { 3, ATTO_F32 },     { 257, ATTO_F32 },  { 1, ATTO_F16 },
                 { 1023, ATTO_F16 }, { 1025, ATTO_BF16 }, { 1024, ATTO_F32 }, { 3000, ATTO_BF16 },
                 { 2049, ATTO_F16 }, { 100003, ATTO_F32 } };
    const int count = large ? COUNT_OF(list) : COUNT_OF(list) - 1;
    *m = (model){ 0 };
    for (int i = 0; i < count; i++) model_add(m, test_dev, list[i].n, list[i].dtype);
}

/* ---- making an optimiser of a case through the public calls ---- */

static double given(double value)
{
    return value == 0.0 ? ATTO_ZERO : value;
}

atto_status make_optimizer(const oracle_optim *o, double lr, const atto_param_set *set,
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

/* The norm's sum of n squares on any device: a chain of at most 64 in a work-item, 8 for its
 * vector, two trees of 8, n / 2^14 / 64 partials in a chain, and 4 for square and scale; halved by
 * the root, with 6 for it, 5 for the division and 3 for the factors. */
double clip_roundings(int64_t n)
{
    return 0.5 * (64 + 8 + 16 + 4 + (double)n / 16384.0 / 64.0) + 14.0;
}

/* ---- clipping ---- */

/* What clip_grad_norm_ multiplies by. */
double clip_factor(const double *g, int64_t n, double max_norm)
{
    double squares = 0.0;
    for (int64_t i = 0; i < n; i++) squares += g[i] * g[i];
    return max_norm == 0.0 ? 1.0 : fmin(1.0, max_norm / (sqrt(squares) + 1e-6));
}
