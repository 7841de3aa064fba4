/* SPDX-License-Identifier: MIT */
/* Benchmark rows of optimisers: one step over 150 parameters, sized like those of a transformer.
 * attocl bench -f "adamw step" -n 124439808 is GPT-2's size. */
#include <string.h>

#include "bench.h"

#define PARAMS 150

/* The optimiser of the row that runs; the tensors of the sets are not used. */
static struct {
    atto_device *dev;
    const bench_row *row;
    atto_dtype dtype;
    int64_t elements;
    atto_param *params[PARAMS];
    atto_optimizer *opt;
} made;

void bench_optim_drop(void)
{
    atto_optimizer_free(made.opt);
    for (int32_t i = 0; i < PARAMS; i++) atto_param_free(made.params[i]);
    memset(&made, 0, sizeof made);
}

/* Of 150 parameters the first has 31 % of the elements, as an embedding has; every third of the
 * others is a bias of 768; the rest share what is left. */
static int64_t size_of(int32_t i, int64_t elements)
{
    const int64_t bias = elements > 768 * 1000 ? 768 : 1;
    const int64_t first = elements * 31 / 100;
    const int32_t biases = (PARAMS - 1) / 3, weights = PARAMS - 1 - biases - 1;
    const int64_t weight = (elements - first - biases * bias) / (weights + 1);
    if (i == 0) return first;
    if (i == PARAMS - 1) return elements - first - biases * bias - weights * weight;
    return i % 3 == 0 ? bias : weight;
}

static atto_status make_optimizer(const bench_row *row)
{
    const atto_param_set set = { made.params, NULL, PARAMS, 0, NULL };
    if (strcmp(row->op, "sgd") == 0) {
        const atto_sgd_options sgd = { .momentum = 0.9, .set = set };
        return atto_sgd_create(NULL, 1e-3, &sgd, &made.opt);
    }
    if (strcmp(row->op, "rmsprop") == 0) {
        const atto_rmsprop_options rmsprop = { .set = set };
        return atto_rmsprop_create(NULL, 1e-3, &rmsprop, &made.opt);
    }
    const atto_adamw_options adamw = { .set = set };
    BENCH_TRY(atto_adamw_create(NULL, 1e-3, 0.01, &adamw, &made.opt));
    return atto_optimizer_clip_norm(made.opt, strcmp(row->pass, "clip") == 0 ? 1.0 : 0.0);
}

/* Values and gradients from N(0, 1). */
static atto_status make_params(atto_device *dev, const bench_tensors *t)
{
    for (int32_t i = 0; i < PARAMS; i++) {
        const atto_shape shape = atto_shape1(size_of(i, made.elements));
        atto_tensor grad;
        bool add;
        BENCH_TRY(atto_param_create(dev, t->x.dtype, shape, &made.params[i]));
        const atto_tensor value = atto_param_value(made.params[i]);
        BENCH_TRY(bench_fill_normal(dev, &value, 1));
        BENCH_TRY(atto_param_grad_target(made.params[i], &grad, &add));
        BENCH_TRY(bench_fill_normal(dev, &grad, 2));
    }
    return ATTO_OK;
}

static atto_status make(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    bench_optim_drop();
    made.dev = dev;
    made.row = row;
    made.dtype = t->x.dtype;
    made.elements = atto_tensor_numel(&t->x);
    BENCH_TRY(make_params(dev, t));
    return make_optimizer(row);
}

/* Gradients stay as they are; only that they count is said again. */
static atto_status step(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    if (made.dev != dev || made.row != row || made.dtype != t->x.dtype ||
        made.elements != atto_tensor_numel(&t->x))
        BENCH_TRY(make(dev, row, t));
    for (int32_t i = 0; i < PARAMS; i++) {
        atto_tensor grad;
        bool add;
        BENCH_TRY(atto_param_grad_target(made.params[i], &grad, &add));
    }
    return atto_optimizer_step(made.opt, 1e-3);
}

#define F32 .default_dtypes = BENCH_F32_ONLY, .dtypes = BENCH_F32_ONLY
#define SMALL                                                         \
    .default_dtypes = BENCH_DTYPE(ATTO_F16) | BENCH_DTYPE(ATTO_BF16), \
    .dtypes = BENCH_DTYPE(ATTO_F16) | BENCH_DTYPE(ATTO_BF16)

/* reads and writes in units of the value's dtype: of 16-bit values the gradient is one, the value
 * is one (written only), master and states are two each. */
/* clang-format off */
const bench_row bench_optim_rows[] = {
    { .op = "adamw",   .pass = "step", .call = step, .reads = 4, .writes = 3, .flops = 14, F32 },
    { .op = "adamw",   .pass = "step", .call = step, .reads = 7, .writes = 7, .flops = 14, SMALL },
    { .op = "adamw",   .pass = "clip", .call = step, .reads = 5, .writes = 3, .flops = 17, F32 },
    { .op = "sgd",     .pass = "step", .call = step, .reads = 3, .writes = 2, .flops = 6,  F32 },
    { .op = "rmsprop", .pass = "step", .call = step, .reads = 3, .writes = 2, .flops = 9,  F32 },
};
/* clang-format on */

const int32_t bench_optim_row_count = sizeof bench_optim_rows / sizeof bench_optim_rows[0];
