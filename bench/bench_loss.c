/* SPDX-License-Identifier: MIT */
/* Benchmark rows of pointwise losses: x and target of one shape.
 *
 * The mean reads both once; backward reads both and writes dx, or dx and dtarget. Without a
 * reduction each element's loss, which is f32, is written as well. */
#include "bench.h"

enum { LOSS, DLOSS, DTARGET };

static struct atto_loss_args args_of(const bench_row *row, const bench_tensors *t)
{
    struct atto_loss_args a = { .x = &t->x,
                                .target = &t->dy,
                                .loss = &t->extra[LOSS],
                                .dloss = &t->extra[DLOSS],
                                .dx = &t->out,
                                .kind = row->loss,
                                .threshold = 1.0f };
    return a;
}

static atto_status mean(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    const struct atto_loss_args a = args_of(row, t);
    return atto_loss_forward(dev, &a);
}

/* The losses go to out, which is f32. */
static atto_status each(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    struct atto_loss_args a = args_of(row, t);
    a.reduction = ATTO_REDUCTION_NONE;
    a.loss = &t->out;
    return atto_loss_forward(dev, &a);
}

static atto_status backward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    const struct atto_loss_args a = args_of(row, t);
    return atto_loss_backward(dev, &a);
}

static atto_status backward_both(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    struct atto_loss_args a = args_of(row, t);
    a.dtarget = &t->extra[DTARGET];
    return atto_loss_backward(dev, &a);
}

static atto_status prepare(atto_device *dev, const bench_row *row, bench_tensors *t)
{
    const atto_shape scalar = atto_shape_of(0, NULL);
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, scalar, &t->extra[LOSS]));
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, scalar, &t->extra[DLOSS]));
    if (row->call == backward_both)
        BENCH_TRY(atto_tensor_alloc(dev, t->x.dtype, atto_shape_of(t->x.rank, t->x.shape),
                                    &t->extra[DTARGET]));
    return atto_tensor_fill(&t->extra[DLOSS], 1.0);
}

#define ROW(KIND, name, use) \
    .op = name, .pass = use, .loss = ATTO_LOSS_##KIND, .prepare = prepare, .flops = 3
#define EACH .default_dtypes = BENCH_FLOATS, .dtypes = BENCH_FLOATS
#define F32  .default_dtypes = BENCH_F32_ONLY, .dtypes = BENCH_FLOATS

/* clang-format off */
const bench_row bench_loss_rows[] = {
    { ROW(MSE, "mse loss", "forward"),  .call = mean,     .reads = 2, EACH },
    { ROW(MSE, "mse loss", "backward"), .call = backward, .reads = 2, .writes = 1, EACH },
    { ROW(MSE, "mse loss each", "forward"), .call = each, .reads = 2, .writes = 1,
      .out_dtype = ATTO_F32, EACH },
    { ROW(MSE, "mse loss both", "backward"), .call = backward_both, .reads = 2, .writes = 2, F32 },
    { ROW(L1, "l1 loss", "forward"),  .call = mean,     .reads = 2, F32 },
    { ROW(L1, "l1 loss", "backward"), .call = backward, .reads = 2, .writes = 1, F32 },
    { ROW(SMOOTH_L1, "smooth l1 loss", "forward"),  .call = mean,     .reads = 2, F32 },
    { ROW(SMOOTH_L1, "smooth l1 loss", "backward"), .call = backward, .reads = 2, .writes = 1, F32 },
    { ROW(HUBER, "huber loss", "forward"),  .call = mean,     .reads = 2, F32 },
    { ROW(HUBER, "huber loss", "backward"), .call = backward, .reads = 2, .writes = 1, F32 },
    { ROW(BCE_WITH_LOGITS, "bce with logits", "forward"),  .call = mean,     .reads = 2, EACH },
    { ROW(BCE_WITH_LOGITS, "bce with logits", "backward"), .call = backward, .reads = 2, .writes = 1,
      EACH },
    { ROW(KL_DIV_LOG, "kl div log", "forward"),  .call = mean,     .reads = 2, F32 },
    /* dx is -g e^t: only the target is read */
    { ROW(KL_DIV_LOG, "kl div log", "backward"), .call = backward, .reads = 1, .writes = 1, F32 },
};
/* clang-format on */

const int32_t bench_loss_row_count = sizeof bench_loss_rows / sizeof bench_loss_rows[0];
