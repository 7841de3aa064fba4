/* SPDX-License-Identifier: MIT */
/* Benchmark rows of the tensor functions: copy, conversion, fill. */
#include "bench.h"

static atto_status copy(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    (void)dev;
    (void)row;
    return atto_tensor_copy(&t->out, &t->x);
}

static atto_status fill(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    (void)dev;
    (void)row;
    return atto_tensor_fill(&t->out, 1.0);
}

#define EACH        .default_dtypes = BENCH_FLOATS, .dtypes = BENCH_FLOATS
#define FROM(dtype) .default_dtypes = BENCH_DTYPE(dtype), .dtypes = BENCH_DTYPE(dtype)
#define COPY        .pass = "-", .call = copy, .reads = 1, .writes = 1

/* clang-format off */
const bench_row bench_tensor_rows[] = {
    { .op = "copy",         COPY, EACH },
    { .op = "copy",         COPY, EACH, .layout = BENCH_PITCHED },
    { .op = "copy",         COPY, EACH, .layout = BENCH_TRANSPOSED },
    { .op = "cast to f16",  COPY, FROM(ATTO_F32),  .out_dtype = ATTO_F16 },
    { .op = "cast to bf16", COPY, FROM(ATTO_F32),  .out_dtype = ATTO_BF16 },
    { .op = "cast to f32",  COPY, FROM(ATTO_F16),  .out_dtype = ATTO_F32 },
    { .op = "cast to f32",  COPY, FROM(ATTO_BF16), .out_dtype = ATTO_F32 },
    { .op = "fill", .pass = "-", .call = fill, .writes = 1, EACH },
};
/* clang-format on */

const int32_t bench_tensor_row_count = sizeof bench_tensor_rows / sizeof bench_tensor_rows[0];
