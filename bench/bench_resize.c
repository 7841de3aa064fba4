/* SPDX-License-Identifier: MIT */
/* Benchmark rows of resizing: [n / (64 56 56), 64, 56, 56] to twice the height and width,
 * contiguous and channels_last.
 *
 * Forward reads x once and writes y, backward reads dy and writes dx. */
#include "bench.h"

#define CHANNELS 64
#define EDGE     56
#define TWICE    (2 * EDGE)

enum { Y };

static int64_t batch_of(const bench_tensors *t)
{
    return atto_tensor_numel(&t->x) / (CHANNELS * EDGE * EDGE);
}

static atto_status run(atto_device *dev, const bench_row *row, const bench_tensors *t, bool back)
{
    const int64_t batch = batch_of(t);
    const bool last = bench_says(row, "channels_last");
    const atto_tensor x = bench_image(&t->x, batch, CHANNELS, EDGE, last);
    const atto_tensor dx = bench_image(&t->out, batch, CHANNELS, EDGE, last);
    const atto_tensor y = bench_image(&t->extra[Y], batch, CHANNELS, TWICE, last);
    const struct atto_resize_args a = { .x = &x,
                                        .y = &y,
                                        .dy = &y,
                                        .dx = &dx,
                                        .dims = 2,
                                        .mode = bench_says(row, "nearest") ? ATTO_RESIZE_NEAREST
                                                                           : ATTO_RESIZE_LINEAR };
    return back ? atto_resize_backward(dev, &a) : atto_resize_forward(dev, &a);
}

static atto_status forward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    return run(dev, row, t, false);
}

static atto_status backward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    return run(dev, row, t, true);
}

static atto_status prepare(atto_device *dev, const bench_row *row, bench_tensors *t)
{
    const int64_t n = batch_of(t) * CHANNELS * TWICE * TWICE;
    BENCH_TRY(atto_tensor_alloc(dev, t->x.dtype, atto_shape1(n), &t->extra[Y]));
    return run(dev, row, t, false);
}

/* 84 images of 64 x 112 x 112 as results. */
/* clang-format off */
#define ROW(name, pass_, reads_, writes_, flops_)                                                \
    { .op = name, .pass = #pass_, .call = pass_, .prepare = prepare,                             \
      .rows = (int64_t)84 * CHANNELS * EDGE, .cols = EDGE, .rows_each = CHANNELS * EDGE,         \
      .reads = reads_, .writes = writes_, .parts = 4.0,                                          \
      .flops = flops_, .default_dtypes = BENCH_DTYPE(ATTO_F32) | BENCH_DTYPE(ATTO_BF16),         \
      .dtypes = BENCH_FLOATS }
#define ROWS(name, flops) ROW(name, forward, 1, 0, flops), ROW(name, backward, 0, 1, flops)

const bench_row bench_resize_rows[] = {
    ROWS("resize nearest", 4), ROWS("resize nearest channels_last", 4),
    ROWS("resize linear", 32), ROWS("resize linear channels_last", 32),
};
/* clang-format on */

const int32_t bench_resize_row_count = sizeof bench_resize_rows / sizeof bench_resize_rows[0];
