/* SPDX-License-Identifier: MIT */
/* Benchmark rows of pooling over [n / (64 112 112), 64, 112, 112], contiguous and channels_last.
 *
 * Forward reads x once and writes y and 32-bit indices, backward reads those and writes dx. */
#include "bench.h"

#define CHANNELS 64
#define EDGE     112

enum { Y, INDICES };

/* What a pair of rows runs. */
typedef struct pooling {
    int64_t kernel, stride, padding, out;
    bool is_max, channels_last;
} pooling;

static int64_t batch_of(const bench_tensors *t)
{
    return atto_tensor_numel(&t->x) / (CHANNELS * EDGE * EDGE);
}

static atto_pool_window window_of(const pooling *p)
{
    return (atto_pool_window){ .dims = 2,
                               .kernel = { p->kernel, p->kernel },
                               .stride = { p->stride, p->stride },
                               .padding = { p->padding, p->padding },
                               .dilation = { 1, 1 } };
}

static atto_status run(atto_device *dev, const bench_tensors *t, const pooling *p, bool back)
{
    const int64_t batch = batch_of(t);
    const atto_tensor x = bench_image(&t->x, batch, CHANNELS, EDGE, p->channels_last);
    const atto_tensor y = bench_image(&t->extra[Y], batch, CHANNELS, p->out, p->channels_last);
    const atto_tensor indices =
        bench_image(&t->extra[INDICES], batch, CHANNELS, p->out, p->channels_last);
    const atto_tensor dx = bench_image(&t->out, batch, CHANNELS, EDGE, p->channels_last);
    const struct atto_max_pool_args max = {
        .x = &x, .y = &y, .indices = &indices, .dy = &y, .dx = &dx, .window = window_of(p)
    };
    const struct atto_avg_pool_args avg = {
        .x = &x, .y = &y, .dy = &y, .dx = &dx, .window = window_of(p)
    };
    if (p->is_max)
        return back ? atto_max_pool_backward(dev, &max) : atto_max_pool_forward(dev, &max);
    return back ? atto_avg_pool_backward(dev, &avg) : atto_avg_pool_forward(dev, &avg);
}

static atto_status prepare_for(atto_device *dev, bench_tensors *t, const pooling *p)
{
    const int64_t n = batch_of(t) * CHANNELS * p->out * p->out;
    BENCH_TRY(atto_tensor_alloc(dev, t->x.dtype, atto_shape1(n), &t->extra[Y]));
    if (p->is_max) BENCH_TRY(atto_tensor_alloc(dev, ATTO_I32, atto_shape1(n), &t->extra[INDICES]));
    return run(dev, t, p, false); /* indices for backward */
}

/* Name of the functions, and their numbers. */
#define CALLS(X)                            \
    X(max_2, 2, 2, 0, 56, true, false)      \
    X(max_2_last, 2, 2, 0, 56, true, true)  \
    X(max_3, 3, 2, 1, 56, true, false)      \
    X(max_3_last, 3, 2, 1, 56, true, true)  \
    X(avg_2, 2, 2, 0, 56, false, false)     \
    X(avg_2_last, 2, 2, 0, 56, false, true) \
    X(avg_3, 3, 2, 1, 56, false, false)     \
    X(avg_3_last, 3, 2, 1, 56, false, true) \
    X(avg_all, EDGE, 1, 0, 1, false, false) \
    X(avg_all_last, EDGE, 1, 0, 1, false, true)

#define X(name, kernel, stride, padding, out, is_max, last)                                     \
    static const pooling name = { kernel, stride, padding, out, is_max, last };                 \
    static atto_status name##_forward(atto_device *dev, const bench_row *row,                   \
                                      const bench_tensors *t)                                   \
    {                                                                                           \
        (void)row;                                                                              \
        return run(dev, t, &name, false);                                                       \
    }                                                                                           \
    static atto_status name##_backward(atto_device *dev, const bench_row *row,                  \
                                       const bench_tensors *t)                                  \
    {                                                                                           \
        (void)row;                                                                              \
        return run(dev, t, &name, true);                                                        \
    }                                                                                           \
    static atto_status name##_prepare(atto_device *dev, const bench_row *row, bench_tensors *t) \
    {                                                                                           \
        (void)row;                                                                              \
        return prepare_for(dev, t, &name);                                                      \
    }
CALLS(X)
#undef X

/* 84 images of 64 x 112 x 112 where the options say 67,108,864 elements. */
/* clang-format off */
#define ROWS(name, op_, parts_, words_, dtypes_)                                              \
    { .op = op_, .pass = "forward", .call = name##_forward, .prepare = name##_prepare,        \
      .rows = (int64_t)84 * CHANNELS * EDGE, .cols = EDGE, .rows_each = CHANNELS * EDGE,      \
      .reads = 1, .parts = parts_,                                                            \
      .words = words_, .flops = 1, .default_dtypes = dtypes_, .dtypes = BENCH_FLOATS },       \
    { .op = op_, .pass = "backward", .call = name##_backward, .prepare = name##_prepare,      \
      .rows = (int64_t)84 * CHANNELS * EDGE, .cols = EDGE, .rows_each = CHANNELS * EDGE,      \
      .writes = 1, .parts = parts_,                                                           \
      .words = words_, .flops = 1, .default_dtypes = dtypes_, .dtypes = BENCH_FLOATS },
#define BOTH (BENCH_DTYPE(ATTO_F32) | BENCH_DTYPE(ATTO_BF16))

const bench_row bench_pool_rows[] = {
    ROWS(max_2,        "max_pool 2/2",                      0.25, 0.25, BOTH)
    ROWS(max_2_last,   "max_pool 2/2 channels_last",        0.25, 0.25, BOTH)
    ROWS(max_3,        "max_pool 3/2",                      0.25, 0.25, BOTH)
    ROWS(max_3_last,   "max_pool 3/2 channels_last",        0.25, 0.25, BOTH)
    ROWS(avg_2,        "avg_pool 2/2",                      0.25, 0.0,  BOTH)
    ROWS(avg_2_last,   "avg_pool 2/2 channels_last",        0.25, 0.0,  BOTH)
    ROWS(avg_3,        "avg_pool 3/2",                      0.25, 0.0,  BOTH)
    ROWS(avg_3_last,   "avg_pool 3/2 channels_last",        0.25, 0.0,  BOTH)
    ROWS(avg_all,      "avg_pool global",                   0.0,  0.0,  BOTH)
    ROWS(avg_all_last, "avg_pool global channels_last",     0.0,  0.0,  BOTH)
};
/* clang-format on */

const int32_t bench_pool_row_count = sizeof bench_pool_rows / sizeof bench_pool_rows[0];
