/* SPDX-License-Identifier: MIT */
/* Benchmark rows of linear: a transformer's layer with GELU behind it, cubes, the layers of a small
 * classifier, and few rows at once. All with bias. */
#include "bench.h"

static struct atto_linear_args arguments(const bench_row *row, const bench_tensors *t)
{
    return (struct atto_linear_args){ .x = &t->x, .w = &t->w, .b = &t->b, .act = row->act };
}

static atto_status forward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    struct atto_linear_args a = arguments(row, t);
    a.y = &t->out;
    return atto_linear_forward(dev, &a);
}

/* All three gradients. */
static atto_status backward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    struct atto_linear_args a = arguments(row, t);
    a.dy = &t->dy;
    a.z = row->act.kind == ATTO_ACT_IDENTITY ? NULL : &t->z;
    a.dx = &t->out;
    a.dw = &t->dw;
    a.db = &t->db;
    return atto_linear_backward(dev, &a);
}

#define FORWARD  .pass = "forward", .call = forward, .flops = 2
#define BACKWARD .pass = "backward", .call = backward, .flops = 4
#define BOTH(name, kind, M, N, K) \
    ROW(name, FORWARD, kind, M, N, K), ROW(name, BACKWARD, kind, M, N, K)
#define ROW(name, way, kind, M, N, K)                                                            \
    {                                                                                            \
        .op = name, way, .matrix = { .m = M, .n = N, .k = K }, .act = { ATTO_ACT_##kind, 0, 0 }, \
        FLOATS                                                                                   \
    }
#define FLOATS .default_dtypes = BENCH_FLOATS, .dtypes = BENCH_FLOATS

/* clang-format off */
const bench_row bench_linear_rows[] = {
    BOTH("linear+gelu", GELU,     8192, 4096, 4096),
    BOTH("linear",      IDENTITY, 1024, 1024, 1024),
    BOTH("linear",      IDENTITY, 2048, 2048, 2048),
    BOTH("linear",      IDENTITY, 4096, 4096, 4096),
    BOTH("linear",      IDENTITY, 8000, 8000, 8000), /* beside a power of two: no cliff there */
    BOTH("linear",      IDENTITY, 8192, 8192, 8192),
    BOTH("linear",      IDENTITY,   64,  512,  784), /* 784 pixels to 512 features, a batch of 64 */
    BOTH("linear",      IDENTITY,    1, 4096, 4096),
    BOTH("linear",      IDENTITY,    8, 4096, 4096),
    BOTH("linear",      IDENTITY,   32, 4096, 4096),
};
/* clang-format on */

const int32_t bench_linear_row_count = sizeof bench_linear_rows / sizeof bench_linear_rows[0];
