/* SPDX-License-Identifier: MIT */
/* Benchmark rows of gated linear units: y is [rows, cols], x [rows, 2 cols].
 *
 * Forward reads x and writes y, backward reads x and dy and writes dx. */
#include "bench.h"

enum { X, DX };

static atto_status forward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    const struct atto_glu_args a = { .x = &t->extra[X], .y = &t->out, .act = row->act, .dim = -1 };
    return atto_glu_forward(dev, &a);
}

static atto_status backward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    const struct atto_glu_args a = {
        .x = &t->extra[X], .dy = &t->dy, .dx = &t->extra[DX], .act = row->act, .dim = -1
    };
    return atto_glu_backward(dev, &a);
}

/* x from the numbers of the small tensors, and dx. */
static atto_status prepare(atto_device *dev, const bench_row *row, bench_tensors *t)
{
    (void)row;
    const int64_t rows = t->x.shape[0], cols = t->x.shape[1];
    for (int i = 0; i < 2; i++)
        BENCH_TRY(atto_tensor_alloc(dev, t->x.dtype, atto_shape2(rows, 2 * cols), &t->extra[i]));
    const atto_tensor *const halves[] = { &t->x, &t->dy };
    for (int i = 0; i < 2; i++) {
        atto_tensor half = t->extra[X];
        half.shape[1] = cols;
        half.offset = i * cols;
        BENCH_TRY(atto_tensor_copy(&half, halves[i]));
    }
    return ATTO_OK;
}

/* clang-format off */
#define FORWARD(name, kind)                                                                    \
    { .op = name, .pass = "forward", .call = forward, .prepare = prepare, .act = { kind, 0, 0 }, \
      .rows = 8192, .cols = 4096, .reads = 2, .writes = 1, .flops = 3,                         \
      .default_dtypes = BENCH_FLOATS, .dtypes = BENCH_FLOATS }
#define BACKWARD(name, kind)                                                                   \
    { .op = name, .pass = "backward", .call = backward, .prepare = prepare, .act = { kind, 0, 0 }, \
      .rows = 8192, .cols = 4096, .reads = 3, .writes = 2, .flops = 8,                         \
      .default_dtypes = BENCH_FLOATS, .dtypes = BENCH_FLOATS }

const bench_row bench_glu_rows[] = {
    FORWARD("glu silu", ATTO_ACT_SILU), BACKWARD("glu silu", ATTO_ACT_SILU),
    FORWARD("glu gelu", ATTO_ACT_GELU), BACKWARD("glu gelu", ATTO_ACT_GELU),
};
/* clang-format on */

const int32_t bench_glu_row_count = sizeof bench_glu_rows / sizeof bench_glu_rows[0];
