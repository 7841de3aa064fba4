/* SPDX-License-Identifier: MIT */
/* Benchmark rows of layer norm and RMS norm: [rows, cols] over the last dimension, parameters in
 * f32.
 *
 * Forward reads x and writes y; backward reads x and dy and writes dx, with dw and db on the way.
 * What is as long as a row or a column does not count, but sums of dw and db take room that rows
 * could have. */
#include "bench.h"

enum { W, B, MEAN, RSTD, DW, DB };

static bool is_rms(const bench_row *row)
{
    return row->op[0] == 'r';
}

static atto_status call(atto_device *dev, const bench_row *row, const bench_tensors *t,
                        bool backward)
{
    const atto_tensor *e = t->extra;
    const struct atto_layer_norm_args layer = {
        .x = &t->x,
        .w = &e[W],
        .b = &e[B],
        .y = &t->out,
        .mean = &e[MEAN],
        .rstd = &e[RSTD],
        .dy = &t->dy,
        .dx = &t->out,
        .dw = &e[DW],
        .db = &e[DB],
        .dims = 1,
        .eps = 1e-5f,
    };
    const struct atto_rms_norm_args rms = {
        .x = &t->x,
        .w = &e[W],
        .y = &t->out,
        .rstd = &e[RSTD],
        .dy = &t->dy,
        .dx = &t->out,
        .dw = &e[DW],
        .dims = 1,
        .eps = 1e-5f,
    };
    if (is_rms(row))
        return backward ? atto_rms_norm_backward(dev, &rms) : atto_rms_norm_forward(dev, &rms);
    return backward ? atto_layer_norm_backward(dev, &layer) : atto_layer_norm_forward(dev, &layer);
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
    const atto_shape rows = atto_shape1(t->x.shape[0]), cols = atto_shape1(t->x.shape[1]);
    const int of_cols[] = { W, B, DW, DB }, of_rows[] = { MEAN, RSTD };
    for (int i = 0; i < 4; i++)
        BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, cols, &t->extra[of_cols[i]]));
    for (int i = 0; i < 2; i++)
        BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, rows, &t->extra[of_rows[i]]));
    BENCH_TRY(atto_tensor_fill(&t->extra[W], 1.25));
    BENCH_TRY(atto_tensor_fill(&t->extra[B], 0.5));
    return forward(dev, row, t); /* mean and rstd, for backward */
}

/* clang-format off */
#define PAIR(op_, sums_, rows_, cols_)                                                               \
    { .op = op_, .pass = "forward", .call = forward, .prepare = prepare,                      \
      .rows = rows_, .cols = cols_, .reads = 1, .writes = 1, .held = true, .flops = 8,                      \
      .default_dtypes = BENCH_DTYPE(ATTO_F32) | BENCH_DTYPE(ATTO_BF16), .dtypes = BENCH_FLOATS }, \
    { .op = op_, .pass = "backward", .call = backward, .prepare = prepare,                    \
      .rows = rows_, .cols = cols_, .reads = 2, .writes = 1, .held = true, .sums = sums_, .flops = 14,                     \
      .default_dtypes = BENCH_DTYPE(ATTO_F32) | BENCH_DTYPE(ATTO_BF16), .dtypes = BENCH_FLOATS }

/* The sweep of Triton's tutorial: 4096 rows of 512 i columns, i = 2 .. 31, in f16. */
#define SWEEP(i)                                                                              \
    { .op = "layer_norm sweep", .pass = "forward", .call = forward, .prepare = prepare,       \
      .rows = 4096, .cols = 512 * (i), .reads = 1, .writes = 1, .held = true, .flops = 8,     \
      .at_most = true, .on_request = true, .default_dtypes = BENCH_DTYPE(ATTO_F16),           \
      .dtypes = BENCH_FLOATS },  \
    { .op = "layer_norm sweep", .pass = "backward", .call = backward, .prepare = prepare,     \
      .rows = 4096, .cols = 512 * (i), .reads = 2, .writes = 1, .held = true, .sums = 2, .flops = 14,    \
      .at_most = true, .on_request = true, .default_dtypes = BENCH_DTYPE(ATTO_F16),           \
      .dtypes = BENCH_FLOATS }
#define SWEEP6(i) SWEEP(i), SWEEP(i + 1), SWEEP(i + 2), SWEEP(i + 3), SWEEP(i + 4), SWEEP(i + 5)

const bench_row bench_layer_norm_rows[] = {
    PAIR("layer_norm", 2, 1048576, 64),
    PAIR("layer_norm", 2, 65536, 1024),
    PAIR("layer_norm", 2, 16384, 4096),
    PAIR("layer_norm", 2, 4096, 16384),
    PAIR("rms_norm", 1, 65536, 1024),
    PAIR("rms_norm", 1, 16384, 4096),
    SWEEP6(2), SWEEP6(8), SWEEP6(14), SWEEP6(20), SWEEP6(26),
};
/* clang-format on */

const int32_t bench_layer_norm_row_count =
    sizeof bench_layer_norm_rows / sizeof bench_layer_norm_rows[0];
