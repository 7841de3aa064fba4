/* SPDX-License-Identifier: MIT */
/* What the tests of optimisers share: PyTorch's trajectories (golden/optim.txt), and parameters
 * whose answer the oracle knows. */
#ifndef OPTIM_MODEL_H
#define OPTIM_MODEL_H

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

extern struct golden {
    char torch[64];
    double start[N], grads[STEPS][N];
    int case_count, schedule_count;
    golden_case cases[MOST_CASES];
    double initial_scale;
    int interval;
    double scales[STEPS], scaled[STEPS][N];
    golden_schedule schedules[16];
} golden;

/* Fails: what is wrong with the file. */
void golden_malformed(const char *what);

/* A setup function of cmocka: reads the file. */
int golden_read(void **state);

/* ---- models ---- */

#define MOST_PARAMS 160

/* Parameters, what the oracle makes of them, and the gradients of the present step. */
typedef struct model {
    int count;
    atto_param *p[MOST_PARAMS];
    const char *keys[MOST_PARAMS];
    oracle_element *e[MOST_PARAMS];
    double *g[MOST_PARAMS];
} model;

int64_t param_numel(const atto_param *p);

/* Values exact in the dtype, in and out of a dense tensor. */
void put_doubles(const atto_tensor *t, const double *values);
void get_doubles(const atto_tensor *t, double *values);

/* A new value, as others write it; a gradient, as a backward pass does. */
void put_value(atto_param *p, const double *values);
void put_grad(atto_param *p, const double *values);

/* A parameter [n] with random values, on that device. */
atto_param *model_add(model *m, atto_device *dev, int64_t n, atto_dtype dtype);
void model_drop(model *m);
atto_param_set model_set(const model *m);

/* Gradients of several magnitudes, some exactly 0, for every parameter but those skipped. */
void model_give_grads(model *m, int step, bool (*skips)(int param, int step));

/* The oracle makes a step of parameter i with the gradient m->g[i]. */
void model_step(model *m, int i, const oracle_optim *o, double lr, double factor, double roundings);

/* Parameter i is where the oracle says. */
void model_expect(const model *m, int i, const char *what);

/* Parameter 2 has no gradient in the first steps, parameter 4 only now and then. */
bool skips_some(int param, int step);

/* Ten parameters of odd sizes and all dtypes, the last one large if wanted. */
void model_make_odd(model *m, bool large);

/* An optimiser of that case, through the public call. */
atto_status make_optimizer(const oracle_optim *o, double lr, const atto_param_set *set,
                           atto_optimizer **out);

/* What clip_grad_norm_ multiplies by, and its roundings in f32 for a norm over n elements. */
double clip_factor(const double *g, int64_t n, double max_norm);
double clip_roundings(int64_t n);

#endif
