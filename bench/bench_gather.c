/* SPDX-License-Identifier: MIT */
/* Benchmark rows of gather along the first dimension, an index for each element of [rows, 4096].
 *
 * Forward reads x and the index and writes y; backward reads dy and the index and writes dx. */
#include "bench.h"

enum { INDEX };

static atto_status forward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    (void)row;
    const struct atto_gather_args a = {
        .x = &t->x, .index = &t->extra[INDEX], .y = &t->out, .dim = 0
    };
    return atto_gather_forward(dev, &a);
}

static atto_status backward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    (void)row;
    const struct atto_gather_args a = {
        .index = &t->extra[INDEX], .dy = &t->dy, .dx = &t->out, .dim = 0
    };
    return atto_gather_backward(dev, &a);
}

static atto_status prepare(atto_device *dev, const bench_row *row, bench_tensors *t)
{
    (void)row;
    const int64_t rows = t->x.shape[0], cols = t->x.shape[1];
    atto_tensor flat;
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_I32, atto_shape1(rows * cols), &t->extra[INDEX]));
    BENCH_TRY(bench_write_labels(rows, &t->extra[INDEX]));
    BENCH_TRY(atto_tensor_reshape(&t->extra[INDEX], atto_shape2(rows, cols), &flat));
    t->extra[INDEX] = flat;
    return ATTO_OK;
}

/* clang-format off */
#define ROW(pass_, flops_)                                                                    \
    { .op = "gather", .pass = #pass_, .call = pass_, .prepare = prepare, .rows = 4096,        \
      .cols = 4096, .at_most = true, .reads = 1, .writes = 1, .words = 1, .flops = flops_,    \
      .default_dtypes = BENCH_FLOATS, .dtypes = BENCH_FLOATS }

const bench_row bench_gather_rows[] = { ROW(forward, 0), ROW(backward, 1) };
/* clang-format on */

const int32_t bench_gather_row_count = sizeof bench_gather_rows / sizeof bench_gather_rows[0];
