/* SPDX-License-Identifier: MIT */
/* Benchmark rows of cross-entropy: logits [rows, cols], labels, the mean.
 *
 * Forward reads x once, backward reads x and writes dx; labels, lse and scalars do not count. */
#include "bench.h"

enum { LABELS, LOSS, LSE, TOTAL, DLOSS };

static struct atto_cross_entropy_args args_of(const bench_tensors *t)
{
    struct atto_cross_entropy_args a = { .x = &t->x,
                                         .target = &t->extra[LABELS],
                                         .loss = &t->extra[LOSS],
                                         .lse = &t->extra[LSE],
                                         .total = &t->extra[TOTAL],
                                         .dloss = &t->extra[DLOSS],
                                         .dx = &t->out };
    return a;
}

static atto_status forward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    (void)row;
    const struct atto_cross_entropy_args a = args_of(t);
    return atto_cross_entropy_forward(dev, &a);
}

static atto_status backward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    (void)row;
    const struct atto_cross_entropy_args a = args_of(t);
    return atto_cross_entropy_backward(dev, &a);
}

static atto_status prepare(atto_device *dev, const bench_row *row, bench_tensors *t)
{
    const atto_shape scalar = atto_shape_of(0, NULL), rows = atto_shape1(t->x.shape[0]);
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_I32, rows, &t->extra[LABELS]));
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, rows, &t->extra[LSE]));
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, scalar, &t->extra[LOSS]));
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, scalar, &t->extra[TOTAL]));
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, scalar, &t->extra[DLOSS]));
    BENCH_TRY(bench_write_labels(row->cols, &t->extra[LABELS]));
    BENCH_TRY(atto_tensor_fill(&t->extra[DLOSS], 1.0));
    return forward(dev, row, t); /* lse and total, for backward */
}

/* clang-format off */
#define FORWARD(rows_, cols_)                                                                 \
    { .op = "cross_entropy", .pass = "forward", .call = forward, .prepare = prepare,          \
      .rows = rows_, .cols = cols_, .reads = 1, .writes = 0, .flops = 4,                      \
      .default_dtypes = BENCH_DTYPE(ATTO_F32) | BENCH_DTYPE(ATTO_BF16), .dtypes = BENCH_FLOATS }
#define BACKWARD(rows_, cols_)                                                                \
    { .op = "cross_entropy", .pass = "backward", .call = backward, .prepare = prepare,        \
      .rows = rows_, .cols = cols_, .reads = 1, .writes = 1, .flops = 4,                      \
      .default_dtypes = BENCH_DTYPE(ATTO_F32) | BENCH_DTYPE(ATTO_BF16), .dtypes = BENCH_FLOATS }

const bench_row bench_cross_entropy_rows[] = {
    FORWARD(65536, 10),    BACKWARD(65536, 10),
    FORWARD(16384, 4096),  BACKWARD(16384, 4096),
    FORWARD(4096, 50257),  BACKWARD(4096, 50257),
};
/* clang-format on */

const int32_t bench_cross_entropy_row_count =
    sizeof bench_cross_entropy_rows / sizeof bench_cross_entropy_rows[0];
