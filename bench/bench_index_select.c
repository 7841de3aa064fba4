/* SPDX-License-Identifier: MIT */
/* Benchmark rows of embeddings: positions [rows, 768] of a table of 50257 (that of GPT-2), or of as
 * much of it as rows are of those listed.
 *
 * Forward reads and writes a row for each position. Backward reads dy and writes all of dx. Indices
 * do not count. */
#include "bench.h"

enum { TABLE, INDEX };

#define VOCABULARY 50257

static atto_status forward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    (void)row;
    const struct atto_index_select_args a = { .x = &t->extra[TABLE],
                                              .index = &t->extra[INDEX],
                                              .y = &t->out };
    return atto_index_select_forward(dev, &a);
}

static atto_status backward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    (void)row;
    const struct atto_index_select_args a = { .index = &t->extra[INDEX],
                                              .dy = &t->dy,
                                              .dx = &t->extra[TABLE] };
    return atto_index_select_backward(dev, &a);
}

static atto_status prepare(atto_device *dev, const bench_row *row, bench_tensors *t)
{
    const int64_t positions = t->x.shape[0], cols = t->x.shape[1];
    const int64_t count = (VOCABULARY * positions + row->rows - 1) / row->rows;
    BENCH_TRY(atto_tensor_alloc(dev, t->x.dtype, atto_shape2(count, cols), &t->extra[TABLE]));
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_I32, atto_shape1(positions), &t->extra[INDEX]));
    BENCH_TRY(atto_tensor_fill(&t->extra[TABLE], 0.5));
    return bench_write_labels(count, &t->extra[INDEX]);
}

/* clang-format off */
#define ROW(name, pass_, rows_, reads_, writes_, parts_, flops_)                              \
    { .op = name, .pass = #pass_, .call = pass_, .prepare = prepare, .rows = rows_,           \
      .cols = 768, .at_most = true, .reads = reads_, .writes = writes_, .parts = parts_,      \
      .flops = flops_, .default_dtypes = BENCH_FLOATS, .dtypes = BENCH_FLOATS }
#define PARTS(rows_) ((double)VOCABULARY / (rows_))

const bench_row bench_index_select_rows[] = {
    ROW("embedding",     forward,  65536, 1, 1, 0.0, 0),
    ROW("embedding",     backward, 65536, 1, 0, PARTS(65536), 1),
    ROW("embedding few", forward,  8192,  1, 1, 0.0, 0),
    ROW("embedding few", backward, 8192,  1, 0, PARTS(8192), 1),
};
/* clang-format on */

const int32_t bench_index_select_row_count =
    sizeof bench_index_select_rows / sizeof bench_index_select_rows[0];
