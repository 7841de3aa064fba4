/* SPDX-License-Identifier: MIT */
/* Benchmark rows of padding: 3 pixels around [n / (64 112 112), 64, 112, 112], contiguous and
 * channels_last.
 *
 * Forward reads x once and writes y, backward reads dy and writes dx. */
#include "bench.h"

#define CHANNELS 64
#define EDGE     112
#define AROUND   3
#define WIDE     (EDGE + 2 * AROUND)

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
    const atto_tensor y = bench_image(&t->extra[Y], batch, CHANNELS, WIDE, last);
    const struct atto_pad_args a = { .x = &x,
                                     .y = &y,
                                     .dy = &y,
                                     .dx = &dx,
                                     .mode = bench_says(row, "reflect") ? ATTO_PAD_REFLECT
                                                                        : ATTO_PAD_CONSTANT,
                                     .before = { 0, 0, AROUND, AROUND },
                                     .after = { 0, 0, AROUND, AROUND } };
    return back ? atto_pad_backward(dev, &a) : atto_pad_forward(dev, &a);
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
    const int64_t n = batch_of(t) * CHANNELS * WIDE * WIDE;
    BENCH_TRY(atto_tensor_alloc(dev, t->x.dtype, atto_shape1(n), &t->extra[Y]));
    return run(dev, row, t, false);
}

/* 84 images of 64 x 112 x 112 where the options say 67,108,864 elements. */
/* clang-format off */
#define ROW(name, pass_, reads_, writes_)                                                        \
    { .op = name, .pass = #pass_, .call = pass_, .prepare = prepare,                             \
      .rows = (int64_t)84 * CHANNELS * EDGE, .cols = EDGE, .rows_each = CHANNELS * EDGE,         \
      .reads = reads_, .writes = writes_, .parts = (double)(WIDE * WIDE) / (EDGE * EDGE),        \
      .flops = 0, .default_dtypes = BENCH_DTYPE(ATTO_F32) | BENCH_DTYPE(ATTO_BF16),              \
      .dtypes = BENCH_FLOATS }
#define ROWS(name) ROW(name, forward, 1, 0), ROW(name, backward, 0, 1)

const bench_row bench_pad_rows[] = {
    ROWS("pad constant"), ROWS("pad constant channels_last"),
    ROWS("pad reflect"), ROWS("pad reflect channels_last"),
};
/* clang-format on */

const int32_t bench_pad_row_count = sizeof bench_pad_rows / sizeof bench_pad_rows[0];
