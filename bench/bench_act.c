/* SPDX-License-Identifier: MIT */
/* Benchmark rows of the act family: every activation, and GELU with dropout behind it. */
#include "bench.h"

static struct atto_act_args arguments(const bench_row *row)
{
    return (struct atto_act_args){ .act = row->act, .dropout = row->dropout, .rng = { .seed = 1 } };
}

static atto_status forward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    struct atto_act_args a = arguments(row);
    a.x = &t->x;
    a.y = &t->out;
    return atto_act_forward(dev, &a);
}

static atto_status backward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    struct atto_act_args a = arguments(row);
    a.x = &t->x;
    a.dy = &t->dy;
    a.dx = &t->out;
    return atto_act_backward(dev, &a);
}

/* Every activation runs on f32; those people train with run on each dtype. */
#define DTYPES(NAME)                                                         \
    (ATTO_ACT_##NAME == ATTO_ACT_RELU || ATTO_ACT_##NAME == ATTO_ACT_GELU || \
             ATTO_ACT_##NAME == ATTO_ACT_SILU                                \
         ? BENCH_FLOATS                                                      \
         : BENCH_F32_ONLY)

#define FORWARD  .pass = "forward", .call = forward, .reads = 1, .writes = 1, .flops = 1
#define BACKWARD .pass = "backward", .call = backward, .reads = 2, .writes = 1, .flops = 2

/* The identity's derivative does not need x. */
#define BACKWARD_OF(NAME)                              \
    .pass = "backward", .call = backward, .writes = 1, \
    .reads = ATTO_ACT_##NAME == ATTO_ACT_IDENTITY ? 1 : 2, .flops = 2

/* clang-format off */
const bench_row bench_act_rows[] = {
#define X(NAME, name, parameters, a, b, default_a, default_b, rule)                                \
    { .op = #name, FORWARD, .act = { ATTO_ACT_##NAME, default_a, default_b },                      \
      .default_dtypes = DTYPES(NAME), .dtypes = BENCH_FLOATS },                                    \
    { .op = #name, BACKWARD_OF(NAME), .act = { ATTO_ACT_##NAME, default_a, default_b },                     \
      .default_dtypes = DTYPES(NAME), .dtypes = BENCH_FLOATS },
    ATTO_ACTIVATION_TABLE(X)
#undef X
#define GELU .act = { ATTO_ACT_GELU, 0, 0 }, .default_dtypes = BENCH_FLOATS, .dtypes = BENCH_FLOATS
    { .op = "gelu+dropout", FORWARD,  GELU, .dropout = 0.5f },
    { .op = "gelu+dropout", BACKWARD, GELU, .dropout = 0.5f },
    { .op = "gelu",         FORWARD,  GELU, .layout = BENCH_PITCHED },
    { .op = "gelu",         BACKWARD, GELU, .layout = BENCH_PITCHED },
    { .op = "gelu",         FORWARD,  GELU, .layout = BENCH_TRANSPOSED },
    { .op = "gelu",         BACKWARD, GELU, .layout = BENCH_TRANSPOSED },
};
/* clang-format on */

const int32_t bench_act_row_count = sizeof bench_act_rows / sizeof bench_act_rows[0];
