/* SPDX-License-Identifier: MIT */
/* Benchmark rows of batch norm in training: images [images, channels, 56, 56], row-major, and rows [rows,
 * channels], which is what channels_last images are.
 *
 * Forward reads x twice and writes y, backward reads x and dy twice and writes dx; channels do not count. */
#include "bench.h"

enum { W, MEAN, RSTD, DW, DB };

#define IMAGE (56 * 56)

/* cols is channels times the image, or channels. */
static atto_tensor images_of(const bench_row *row, const atto_tensor *t)
{
    if (row->cols % IMAGE != 0) return *t;
    return atto_tensor_of(t->buffer, t->dtype, atto_shape4(t->shape[0], row->cols / IMAGE, 56, 56),
                          t->offset);
}

static int64_t channels_of(const bench_row *row)
{
    return row->cols % IMAGE == 0 ? row->cols / IMAGE : row->cols;
}

static atto_status call(atto_device *dev, const bench_row *row, const bench_tensors *t,
                        bool backward)
{
    const atto_tensor x = images_of(row, &t->x), dy = images_of(row, &t->dy);
    const atto_tensor out = images_of(row, &t->out);
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

/* clang-format off */
#define PAIR(rows_, cols_)                                                                    \
    { .op = "batch_norm", .pass = "forward", .call = forward, .prepare = prepare,             \
      .rows = rows_, .cols = cols_, .reads = 2, .writes = 1, .flops = 8,                      \
      .default_dtypes = BENCH_DTYPE(ATTO_F32) | BENCH_DTYPE(ATTO_BF16), .dtypes = BENCH_FLOATS }, \
    { .op = "batch_norm", .pass = "backward", .call = backward, .prepare = prepare,           \
      .rows = rows_, .cols = cols_, .reads = 4, .writes = 1, .flops = 14,                     \
      .default_dtypes = BENCH_DTYPE(ATTO_F32) | BENCH_DTYPE(ATTO_BF16), .dtypes = BENCH_FLOATS }

const bench_row bench_batch_norm_rows[] = {
    PAIR(334, 64 * IMAGE),
    PAIR(7133, 3 * IMAGE),
    PAIR(1048576, 64),
    PAIR(65536, 1024),
};
/* clang-format on */

const int32_t bench_batch_norm_row_count =
    sizeof bench_batch_norm_rows / sizeof bench_batch_norm_rows[0];
