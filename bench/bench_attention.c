/* SPDX-License-Identifier: MIT */
/* Benchmark rows of attention: a language model's layers, full and causal, a vision model's, and one
 * query beside a cache of keys. */
#include "bench.h"

static struct atto_attention_args args_of(const bench_row *row, const bench_tensors *t)
{
    return (struct atto_attention_args){
        .q = &t->x,
        .k = &t->w,
        .v = &t->b,
        .y = &t->z,
        .lse = &t->extra[0],
        .lse_low = &t->extra[1],
        .causal = row->attention.causal ? ATTO_CAUSAL_TOP_LEFT : ATTO_CAUSAL_NONE,
    };
}

static atto_status forward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    struct atto_attention_args a = args_of(row, t);
    a.y = &t->out;
    return atto_attention_forward(dev, &a);
}

static atto_status backward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    struct atto_attention_args a = args_of(row, t);
    a.dy = &t->dy;
    a.dq = &t->out;
    a.dk = &t->dw;
    a.dv = &t->db;
    return atto_attention_backward(dev, &a);
}

/* lse and lse_low, and y for backward. */
static atto_status prepare(atto_device *dev, const bench_row *row, bench_tensors *t)
{
    const int64_t *q = t->x.shape;
    const atto_shape rows = atto_shape3(q[0], q[1], q[2]);
    for (int i = 0; i < 2; i++) BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, rows, &t->extra[i]));
    const struct atto_attention_args a = args_of(row, t);
    return atto_attention_forward(dev, &a);
}

#define FLOATS   .default_dtypes = BENCH_FLOATS, .dtypes = BENCH_FLOATS, .prepare = prepare
#define FORWARD  .pass = "forward", .call = forward, .flops = 4
#define BACKWARD .pass = "backward", .call = backward, .flops = 10
#define BOTH(name, ...)                                            \
    { .op = name, FORWARD, .attention = { __VA_ARGS__ }, FLOATS }, \
    {                                                              \
        .op = name, BACKWARD, .attention = { __VA_ARGS__ }, FLOATS \
    }

/* clang-format off */
const bench_row bench_attention_rows[] = {
    BOTH("attention causal", 16, 16, 16, 2048, 2048,  64, true, 0),
    BOTH("attention",        16, 16, 16, 2048, 2048,  64, false, 0),
    BOTH("attention causal",  4, 32, 32, 4096, 4096, 128, true, 0),
    BOTH("attention",        64, 12, 12,  197,  197,  64, false, 0),
    { .op = "attention", FORWARD, .attention = { 1, 32, 8, 1, 8192, 128, false, 0 }, FLOATS },
};
/* clang-format on */

const int32_t bench_attention_row_count =
    sizeof bench_attention_rows / sizeof bench_attention_rows[0];
