/* SPDX-License-Identifier: MIT */
/* Benchmark rows of matmul: attention's q k^T over heads, a batch of cubes, and a batch that shares
 * its right side.
 *
 * w is stored [n, k]: q k^T takes it as it is, transposed by a view; the others take the same memory
 * as [k, n]. */
#include <string.h>

#include "bench.h"

/* The tensor's matrices, which are b's or db's. */
static atto_tensor right_side(const bench_row *row, const atto_tensor *w)
{
    atto_tensor b = *w;
    const int32_t last = w->rank - 1;
    b.shape[last - 1] = w->shape[last];
    b.shape[last] = w->shape[last - 1];
    const bool turned = strcmp(row->op, "matmul qk") == 0;
    b.stride[last - 1] = turned ? 1 : b.shape[last];
    b.stride[last] = turned ? w->shape[last] : 1;
    return b;
}

static atto_status forward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    const atto_tensor b = right_side(row, &t->w);
    return atto_matmul_forward(dev,
                               &(struct atto_matmul_args){ .a = &t->x, .b = &b, .y = &t->out });
}

static atto_status backward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    const atto_tensor b = right_side(row, &t->w), db = right_side(row, &t->dw);
    const struct atto_matmul_args a = {
        .a = &t->x, .b = &b, .dy = &t->dy, .da = &t->out, .db = &db
    };
    return atto_matmul_backward(dev, &a);
}

#define FLOATS   .default_dtypes = BENCH_FLOATS, .dtypes = BENCH_FLOATS
#define FORWARD  .pass = "forward", .call = forward, .flops = 2
#define BACKWARD .pass = "backward", .call = backward, .flops = 4
#define BOTH(name, b, one, m, n, k)                                 \
    { .op = name, FORWARD, .matrix = { m, n, k, b, one }, FLOATS }, \
    {                                                               \
        .op = name, BACKWARD, .matrix = { m, n, k, b, one }, FLOATS \
    }

/* clang-format off */
const bench_row bench_matmul_rows[] = {
    BOTH("matmul qk",     256, false, 2048, 2048,  64), /* 16 sequences of 16 heads */
    BOTH("matmul",         64, false,  512,  512, 512),
    BOTH("matmul shared",  64, true,   512,  512, 512),
};
/* clang-format on */

const int32_t bench_matmul_row_count = sizeof bench_matmul_rows / sizeof bench_matmul_rows[0];
