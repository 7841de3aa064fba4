/* SPDX-License-Identifier: MIT */
/* Benchmark rows of softmax over the last dimension of [rows, cols], and over the first
 * ("columns").
 *
 * Forward reads x and writes y, backward reads y and dy and writes dx; what is read is read twice
 * where a row is too long to be held. */
#include "bench.h"

static atto_status forward(atto_device *dev, const bench_tensors *t, atto_softmax_kind kind,
                           int32_t dim)
{
    const struct atto_softmax_args a = { .x = &t->x, .y = &t->out, .kind = kind, .dim = dim };
    return atto_softmax_forward(dev, &a);
}

/* Any numbers do for y. */
static atto_status backward(atto_device *dev, const bench_tensors *t, atto_softmax_kind kind,
                            int32_t dim)
{
    const struct atto_softmax_args a = {
        .y = &t->x, .dy = &t->dy, .dx = &t->out, .kind = kind, .dim = dim
    };
    return atto_softmax_backward(dev, &a);
}

#define CALL(name, pass, kind, dim)                                                         \
    static atto_status name(atto_device *dev, const bench_row *row, const bench_tensors *t) \
    {                                                                                       \
        (void)row;                                                                          \
        return pass(dev, t, kind, dim);                                                     \
    }
CALL(softmax_forward, forward, ATTO_SOFTMAX_PLAIN, 1)
CALL(softmax_backward, backward, ATTO_SOFTMAX_PLAIN, 1)
CALL(log_forward, forward, ATTO_SOFTMAX_LOG, 1)
CALL(log_backward, backward, ATTO_SOFTMAX_LOG, 1)
CALL(columns_forward, forward, ATTO_SOFTMAX_PLAIN, 0)
CALL(columns_backward, backward, ATTO_SOFTMAX_PLAIN, 0)
#undef CALL

/* clang-format off */
#define FORWARD(name, call_, rows_, cols_, held_)                                                     \
    { .op = name, .pass = "forward", .call = call_, .rows = rows_, .cols = cols_,              \
      .reads = 1, .writes = 1, .held = held_, .flops = 4, .default_dtypes = BENCH_FLOATS, .dtypes = BENCH_FLOATS }
#define BACKWARD(name, call_, rows_, cols_, held_)                                                    \
    { .op = name, .pass = "backward", .call = call_, .rows = rows_, .cols = cols_,             \
      .reads = 2, .writes = 1, .held = held_, .flops = 4, .default_dtypes = BENCH_FLOATS, .dtypes = BENCH_FLOATS }

const bench_row bench_softmax_rows[] = {
    FORWARD("softmax", softmax_forward, 65536, 1024, true),  BACKWARD("softmax", softmax_backward, 65536, 1024, true),
    FORWARD("softmax", softmax_forward, 16384, 4096, true),  BACKWARD("softmax", softmax_backward, 16384, 4096, true),
    FORWARD("softmax", softmax_forward, 1335, 50257, true),  BACKWARD("softmax", softmax_backward, 1335, 50257, true),
    FORWARD("log_softmax", log_forward, 16384, 4096, true),  BACKWARD("log_softmax", log_backward, 16384, 4096, true),
    FORWARD("softmax columns", columns_forward, 64, 1048576, false),
    BACKWARD("softmax columns", columns_backward, 64, 1048576, false),
};
/* clang-format on */

const int32_t bench_softmax_row_count = sizeof bench_softmax_rows / sizeof bench_softmax_rows[0];
