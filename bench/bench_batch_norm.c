/* SPDX-License-Identifier: MIT */
/* Benchmark rows of batch norm in training: images [images, channels, 56, 56] or 28 x 28,
 * row-major, and rows [rows, channels], which is what channels_last images are.
 *
 * Forward reads x twice and writes y, backward reads x and dy twice and writes dx; channels do not
 * count. With a residual and relu forward reads that too; backward reads x, dy and the residual,
 * writes dresidual, and reads that and x for dx. */
#include <string.h>

#include "bench.h"

enum { W, MEAN, RSTD, DW, DB, RESIDUAL, DRESIDUAL };

#define IMAGE (56 * 56)
#define SMALL (28 * 28)

/* Height and width of an image; 1 where rows are channels alone. */
static int64_t edge_of(const bench_row *row)
{
    if (strstr(row->op, "28x28")) return 28;
    return row->cols % IMAGE == 0 ? 56 : 1;
}

static int64_t channels_of(const bench_row *row)
{
    return row->cols / (edge_of(row) * edge_of(row));
}

static atto_tensor images_of(const bench_row *row, const atto_tensor *t)
{
    const int64_t edge = edge_of(row);
    if (edge == 1) return *t;
    return atto_tensor_of(t->buffer, t->dtype,
                          atto_shape4(t->shape[0], channels_of(row), edge, edge), t->offset);
}

static bool has_residual(const bench_row *row)
{
    return strstr(row->op, "+residual") != NULL;
}

static atto_status call(atto_device *dev, const bench_row *row, const bench_tensors *t,
                        bool backward)
{
    const atto_tensor x = images_of(row, &t->x), dy = images_of(row, &t->dy);
    const atto_tensor out = images_of(row, &t->out);
    const bool more = has_residual(row);
    const atto_tensor residual = more ? images_of(row, &t->extra[RESIDUAL]) : x;
    const atto_tensor dresidual = more ? images_of(row, &t->extra[DRESIDUAL]) : x;
    const struct atto_batch_norm_args a = {
        .x = &x,
        .w = &t->extra[W],
        .y = &out,
        .mean = &t->extra[MEAN],
        .rstd = &t->extra[RSTD],
        .dy = &dy,
        .dx = &out,
        .dw = &t->extra[DW],
        .db = &t->extra[DB],
        .residual = more ? &residual : NULL,
        .dresidual = more ? &dresidual : NULL,
        .act = { more ? ATTO_ACT_RELU : ATTO_ACT_IDENTITY, 0, 0 },
        .training = true,
        .momentum = 0.1f,
        .eps = 1e-5f,
    };
    return backward ? atto_batch_norm_backward(dev, &a) : atto_batch_norm_forward(dev, &a);
}

static atto_status forward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    return call(dev, row, t, false);
}

static atto_status backward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    return call(dev, row, t, true);
}

static atto_status prepare(atto_device *dev, const bench_row *row, bench_tensors *t)
{
    const atto_shape channels = atto_shape1(channels_of(row));
    for (int i = 0; i <= DB; i++)
        BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, channels, &t->extra[i]));
    BENCH_TRY(atto_tensor_fill(&t->extra[W], 1.25));
    return forward(dev, row, t); /* mean and rstd, for backward */
}

/* A function of its own, for rows of one shape and one prepare share their tensors. */
static atto_status prepare_both(atto_device *dev, const bench_row *row, bench_tensors *t)
{
    const atto_shape x = atto_shape_of(t->x.rank, t->x.shape);
    BENCH_TRY(atto_tensor_alloc(dev, t->x.dtype, x, &t->extra[RESIDUAL]));
    BENCH_TRY(atto_tensor_alloc(dev, t->x.dtype, x, &t->extra[DRESIDUAL]));
    BENCH_TRY(atto_tensor_fill(&t->extra[RESIDUAL], 0.25));
    return prepare(dev, row, t);
}

/* clang-format off */
#define ROW(op_, pass_, prepare_, rows_, cols_, reads_, writes_, flops_)                      \
    { .op = op_, .pass = #pass_, .call = pass_, .prepare = prepare_, .rows = rows_, .cols = cols_, \
      .at_most = (rows_) == 128,                                                               \
      .reads = reads_, .writes = writes_, .flops = flops_,                                    \
      .default_dtypes = BENCH_DTYPE(ATTO_F32) | BENCH_DTYPE(ATTO_BF16), .dtypes = BENCH_FLOATS }
#define PAIR(op, rows, cols)                                                                  \
    ROW(op, forward, prepare, rows, cols, 2, 1, 8), ROW(op, backward, prepare, rows, cols, 4, 1, 14)

const bench_row bench_batch_norm_rows[] = {
    PAIR("batch_norm", 334, 64 * IMAGE),
    PAIR("batch_norm", 7133, 3 * IMAGE),
    PAIR("batch_norm", 1048576, 64),
    PAIR("batch_norm", 65536, 1024),
    PAIR("batch_norm 28x28", 128, 256 * SMALL),
    ROW("batch_norm+residual+relu 28x28", forward, prepare_both, 128, 256 * SMALL, 3, 1, 10),
    ROW("batch_norm+residual+relu 28x28", backward, prepare_both, 128, 256 * SMALL, 5, 2, 16),
};
/* clang-format on */

const int32_t bench_batch_norm_row_count =
    sizeof bench_batch_norm_rows / sizeof bench_batch_norm_rows[0];
