/* SPDX-License-Identifier: MIT */
/* Benchmark rows of rope: heads of 128 elements, 32 of them, 2048 positions, all elements turned; one behind
 * the other, [B, H, L, D], or side by side, [B, L, H, D].
 *
 * Both directions read one tensor and write one; the tables are small beside them. */

#include "bench.h"

#define HEADS     32
#define POSITIONS 2048
#define SIZE      128

enum { COS, SIN };

/* [rows, 128] as heads. */
static atto_status heads_of(const bench_row *row, const atto_tensor *t, atto_tensor *out)
{
    const int64_t batches = t->shape[0] / (HEADS * POSITIONS);
    if (!bench_says(row, "side by side"))
        return atto_tensor_reshape(t, atto_shape4(batches, HEADS, POSITIONS, SIZE), out);
    BENCH_TRY(atto_tensor_reshape(t, atto_shape4(batches, POSITIONS, HEADS, SIZE), out));
    return atto_tensor_permute(out, (int32_t[]){ 0, 2, 1, 3 }, out);
}

static struct atto_rope_args args_of(const bench_row *row, const bench_tensors *t)
{
    return (struct atto_rope_args){ .cos = &t->extra[COS],
                                    .sin = &t->extra[SIN],
                                    .pairing = bench_says(row, "neighbours") ? ATTO_ROPE_NEIGHBOURS
                                                                             : ATTO_ROPE_HALVES };
}

static atto_status forward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    struct atto_rope_args a = args_of(row, t);
    atto_tensor x, y;
    BENCH_TRY(heads_of(row, &t->x, &x));
    BENCH_TRY(heads_of(row, &t->out, &y));
    a.x = &x;
    a.y = &y;
    return atto_rope_forward(dev, &a);
}

static atto_status backward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    struct atto_rope_args a = args_of(row, t);
    atto_tensor dy, dx;
    BENCH_TRY(heads_of(row, &t->dy, &dy));
    BENCH_TRY(heads_of(row, &t->out, &dx));
    a.dy = &dy;
    a.dx = &dx;
    return atto_rope_backward(dev, &a);
}

static atto_status prepare(atto_device *dev, const bench_row *row, bench_tensors *t)
{
    (void)row;
    return atto_rope_tables(dev, POSITIONS, SIZE, NULL, &t->extra[COS], &t->extra[SIN]);
}

/* clang-format off */
#define ROW(name, pass_)                                                                     \
    { .op = name, .pass = #pass_, .call = pass_, .prepare = prepare, .rows = (1 << 26) / SIZE, \
      .cols = SIZE, .rows_each = HEADS * POSITIONS, .reads = 1, .writes = 1, .flops = 3,     \
      .default_dtypes = BENCH_FLOATS, .dtypes = BENCH_FLOATS }

const bench_row bench_rope_rows[] = {
    ROW("rope", forward), ROW("rope", backward),
    ROW("rope neighbours", forward), ROW("rope neighbours", backward),
    ROW("rope side by side", forward), ROW("rope side by side", backward),
};
/* clang-format on */

const int32_t bench_rope_row_count = sizeof bench_rope_rows / sizeof bench_rope_rows[0];
