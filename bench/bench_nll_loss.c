/* SPDX-License-Identifier: MIT */
/* Benchmark rows of negative log-likelihood: logarithms of probabilities [rows, cols], labels, the
 * mean.
 *
 * Backward writes dx; labels and scalars do not count, and nothing else of forward is there to
 * count. */
#include "bench.h"

enum { LABELS, LOSS, TOTAL, DLOSS };

static struct atto_nll_loss_args args_of(const bench_tensors *t)
{
    struct atto_nll_loss_args a = { .x = &t->x,
                                    .target = &t->extra[LABELS],
                                    .loss = &t->extra[LOSS],
                                    .total = &t->extra[TOTAL],
                                    .dloss = &t->extra[DLOSS],
                                    .dx = &t->out };
    return a;
}

static atto_status forward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    (void)row;
    const struct atto_nll_loss_args a = args_of(t);
    return atto_nll_loss_forward(dev, &a);
}

static atto_status backward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    (void)row;
    const struct atto_nll_loss_args a = args_of(t);
    return atto_nll_loss_backward(dev, &a);
}

static atto_status prepare(atto_device *dev, const bench_row *row, bench_tensors *t)
{
    const atto_shape scalar = atto_shape_of(0, NULL), rows = atto_shape1(t->x.shape[0]);
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_I32, rows, &t->extra[LABELS]));
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, scalar, &t->extra[LOSS]));
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, scalar, &t->extra[TOTAL]));
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, scalar, &t->extra[DLOSS]));
    BENCH_TRY(bench_write_labels(row->cols, &t->extra[LABELS]));
    BENCH_TRY(atto_tensor_fill(&t->extra[DLOSS], 1.0));
    return forward(dev, row, t); /* total, for backward */
}

/* clang-format off */
#define BACKWARD(rows_, cols_)                                                                \
    { .op = "nll_loss", .pass = "backward", .call = backward, .prepare = prepare,             \
      .rows = rows_, .cols = cols_, .reads = 0, .writes = 1, .flops = 1,                      \
      .default_dtypes = BENCH_FLOATS, .dtypes = BENCH_FLOATS }

const bench_row bench_nll_loss_rows[] = {
    BACKWARD(65536, 10), BACKWARD(16384, 4096), BACKWARD(4096, 50257),
};
/* clang-format on */

const int32_t bench_nll_loss_row_count = sizeof bench_nll_loss_rows / sizeof bench_nll_loss_rows[0];
