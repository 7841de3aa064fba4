/* SPDX-License-Identifier: MIT */
/* Benchmark rows of the dropout family. */
#include "bench.h"

static atto_status forward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    const struct atto_dropout_args a = {
        .x = &t->x, .y = &t->out, .p = row->dropout, .rng = { .seed = 1 }
    };
    return atto_dropout_forward(dev, &a);
}

static atto_status backward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    const struct atto_dropout_args a = {
        .dy = &t->dy, .dx = &t->out, .p = row->dropout, .rng = { .seed = 1 }
    };
    return atto_dropout_backward(dev, &a);
}

#define COMMON                                                             \
    .op = "dropout", .dropout = 0.5f, .reads = 1, .writes = 1, .flops = 1, \
    .default_dtypes = BENCH_FLOATS, .dtypes = BENCH_FLOATS

/* clang-format off */
const bench_row bench_dropout_rows[] = {
    { COMMON, .pass = "forward",  .call = forward },
    { COMMON, .pass = "backward", .call = backward },
    { COMMON, .pass = "forward",  .call = forward, .layout = BENCH_PITCHED },
};
/* clang-format on */

const int32_t bench_dropout_row_count = sizeof bench_dropout_rows / sizeof bench_dropout_rows[0];
