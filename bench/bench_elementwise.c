/* SPDX-License-Identifier: MIT */
/* Benchmark rows of the elementwise family: tensors of one shape, a number, a row and a column that
 * repeat over [n / 4096, 4096]. */
#include "bench.h"

#define COLUMNS 4096

/* The tensor's elements as a matrix. */
static atto_tensor matrix_of(const atto_tensor *t)
{
    const int64_t rows = atto_tensor_numel(t) / COLUMNS;
    return atto_tensor_of(t->buffer, t->dtype, atto_shape2(rows > 0 ? rows : 1, COLUMNS), 0);
}

static atto_tensor row_of(const atto_tensor *t)
{
    return atto_tensor_of(t->buffer, t->dtype, atto_shape1(COLUMNS), 0);
}

static atto_tensor column_of(const atto_tensor *t)
{
    const int64_t rows = matrix_of(t).shape[0];
    return atto_tensor_of(t->buffer, t->dtype, atto_shape2(rows, 1), 0);
}

static atto_status unary_forward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    const struct atto_unary_args a = { .x = &t->x, .y = &t->out, .kind = row->unary };
    return atto_unary_forward(dev, &a);
}

static atto_status unary_backward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    const struct atto_unary_args a = {
        .x = &t->x, .dy = &t->dy, .dx = &t->out, .kind = row->unary
    };
    return atto_unary_backward(dev, &a);
}

static atto_status binary(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    const struct atto_binary_args a = {
        .a = &t->x, .b = &t->dy, .y = &t->out, .kind = row->binary
    };
    return atto_binary_forward(dev, &a);
}

static atto_status binary_number(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    const struct atto_binary_args a = {
        .a = &t->x, .y = &t->out, .kind = row->binary, .value = 2.0f
    };
    return atto_binary_forward(dev, &a);
}

static atto_status binary_row(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    const atto_tensor a = matrix_of(&t->x), b = row_of(&t->dy), y = matrix_of(&t->out);
    const struct atto_binary_args args = { .a = &a, .b = &b, .y = &y, .kind = row->binary };
    return atto_binary_forward(dev, &args);
}

static atto_status binary_column(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    const atto_tensor a = matrix_of(&t->x), b = column_of(&t->dy), y = matrix_of(&t->out);
    const struct atto_binary_args args = { .a = &a, .b = &b, .y = &y, .kind = row->binary };
    return atto_binary_forward(dev, &args);
}

/* The gradient of the row: of a sum it is one pass over dy, of a product a and dy as well. */
static atto_status binary_row_grad(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    const atto_tensor a = matrix_of(&t->x), dy = matrix_of(&t->dy), db = row_of(&t->out);
    const struct atto_binary_args args = { .a = &a, .dy = &dy, .db = &db, .kind = row->binary };
    return atto_binary_backward(dev, &args);
}

#define EACH .default_dtypes = BENCH_FLOATS, .dtypes = BENCH_FLOATS
#define F32  .default_dtypes = BENCH_F32_ONLY, .dtypes = BENCH_FLOATS
#define UNARY(NAME, name)             \
    { .op = name,                     \
      .pass = "forward",              \
      .call = unary_forward,          \
      .unary = ATTO_UNARY_##NAME,     \
      .reads = 1,                     \
      .writes = 1,                    \
      .flops = 1,                     \
      F32 },                          \
        { .op = name,                 \
          .pass = "backward",         \
          .call = unary_backward,     \
          .unary = ATTO_UNARY_##NAME, \
          .reads = 2,                 \
          .writes = 1,                \
          .flops = 2,                 \
          F32 },
#define BINARY(NAME, name, use) .op = name, .pass = use, .binary = ATTO_BINARY_##NAME, .flops = 1

/* clang-format off */
const bench_row bench_elementwise_rows[] = {
    UNARY(EXP, "exp") UNARY(LOG, "log") UNARY(RSQRT, "rsqrt") UNARY(CLAMP, "clamp")
    { BINARY(ADD, "add", "forward"),     .call = binary,          .reads = 2, .writes = 1, EACH },
    { BINARY(MUL, "mul", "forward"),     .call = binary,          .reads = 2, .writes = 1, EACH },
    { BINARY(DIV, "div", "forward"),     .call = binary,          .reads = 2, .writes = 1, F32 },
    { BINARY(POW, "pow", "forward"),     .call = binary,          .reads = 2, .writes = 1, F32 },
    { BINARY(ADD, "add number", "forward"), .call = binary_number, .reads = 1, .writes = 1, EACH },
    { BINARY(MUL, "mul row", "forward"),    .call = binary_row,    .reads = 1, .writes = 1, EACH },
    { BINARY(MUL, "mul column", "forward"), .call = binary_column, .reads = 1, .writes = 1, EACH },
    { BINARY(ADD, "add row", "backward"),   .call = binary_row_grad, .reads = 1, EACH },
    { BINARY(MUL, "mul row", "backward"),   .call = binary_row_grad, .reads = 2, EACH },
};
/* clang-format on */

const int32_t bench_elementwise_row_count =
    sizeof bench_elementwise_rows / sizeof bench_elementwise_rows[0];
