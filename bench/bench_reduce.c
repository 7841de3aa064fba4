/* SPDX-License-Identifier: MIT */
/* Benchmark rows of the reduce family, over [n / 4096, 4096]: rows (the inner dimension), columns
 * (the outer one), all elements, and what backward spreads. */
#include "bench.h"

#define COLUMNS 4096

static atto_tensor matrix_of(const atto_tensor *t)
{
    const int64_t rows = atto_tensor_numel(t) / COLUMNS;
    return atto_tensor_of(t->buffer, t->dtype, atto_shape2(rows > 0 ? rows : 1, COLUMNS), 0);
}

/* A part of t's buffer that is large enough: the results. */
static atto_tensor results_of(const atto_tensor *t, atto_dtype dtype, atto_shape shape)
{
    return atto_tensor_of(t->buffer, dtype, shape, 0);
}

static bool is_arg(atto_reduce_kind kind)
{
    return kind == ATTO_REDUCE_ARGMAX || kind == ATTO_REDUCE_ARGMIN;
}

static atto_status forward(atto_device *dev, const bench_row *row, const bench_tensors *t,
                           int32_t dim, atto_shape shape)
{
    const atto_tensor x = matrix_of(&t->x);
    const atto_dtype dtype = is_arg(row->reduce) ? ATTO_I32 : x.dtype;
    const atto_tensor y = results_of(&t->out, dtype, shape);
    const struct atto_reduce_args a = {
        .x = &x, .y = &y, .kind = row->reduce, .dims = { dim }, .dim_count = shape.rank
    };
    return atto_reduce_forward(dev, &a);
}

static atto_status rows(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    return forward(dev, row, t, 1, atto_shape1(matrix_of(&t->x).shape[0]));
}

static atto_status columns(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    return forward(dev, row, t, 0, atto_shape1(COLUMNS));
}

static atto_status all(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    return forward(dev, row, t, 0, atto_shape0());
}

static atto_status spread_rows(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    const atto_tensor dx = matrix_of(&t->out);
    const atto_tensor dy = results_of(&t->dy, dx.dtype, atto_shape1(dx.shape[0]));
    const struct atto_reduce_args a = {
        .dy = &dy, .dx = &dx, .kind = row->reduce, .dims = { 1 }, .dim_count = 1
    };
    return atto_reduce_backward(dev, &a);
}

#define EACH .default_dtypes = BENCH_FLOATS, .dtypes = BENCH_FLOATS
#define F32  .default_dtypes = BENCH_F32_ONLY, .dtypes = BENCH_FLOATS
#define ROW(NAME, name) \
    .op = name, .pass = "forward", .reduce = ATTO_REDUCE_##NAME, .reads = 1, .flops = 1

/* clang-format off */
const bench_row bench_reduce_rows[] = {
    { ROW(SUM,    "sum rows"),       .call = rows,    EACH },
    { ROW(SUM,    "sum columns"),    .call = columns, EACH },
    { ROW(SUM,    "sum all"),        .call = all,     EACH },
    { ROW(MAX,    "max rows"),       .call = rows,    F32 },
    { ROW(MAX,    "max columns"),    .call = columns, F32 },
    { ROW(ARGMAX, "argmax rows"),    .call = rows,    F32 },
    { ROW(ARGMAX, "argmax columns"), .call = columns, F32 },
    { ROW(ARGMAX, "argmax all"),     .call = all,     F32 },
    { .op = "mean rows", .pass = "backward", .reduce = ATTO_REDUCE_MEAN, .call = spread_rows,
      .writes = 1, .flops = 1, EACH },
};
/* clang-format on */

const int32_t bench_reduce_row_count = sizeof bench_reduce_rows / sizeof bench_reduce_rows[0];
