/* SPDX-License-Identifier: MIT */
/* Benchmark rows of group norm with 32 groups, and of instance norm, over [n, 64, 56, 56],
 * row-major and channels_last.
 *
 * Forward reads x twice and writes y, backward reads x and dy twice and writes dx; channels do not
 * count. */
#include "bench.h"

#include <string.h>

#define CHANNELS 64
#define EDGE     56

enum { W, B, DW, DB, MEAN, RSTD };

/* [n, 64, 56, 56]; the row's name says how it lies. */
static atto_tensor images_of(const bench_row *row, const atto_tensor *t)
{
    const int32_t order[] = { 0, 3, 1, 2 };
    const int64_t n = atto_tensor_numel(t) / (CHANNELS * EDGE * EDGE);
    const bool last = strstr(row->op, "channels_last") != NULL;
    const atto_shape shape =
        last ? atto_shape4(n, EDGE, EDGE, CHANNELS) : atto_shape4(n, CHANNELS, EDGE, EDGE);
    atto_tensor images = atto_tensor_of(t->buffer, t->dtype, shape, t->offset);
    if (last) atto_tensor_permute(&images, order, &images);
    return images;
}

static int64_t groups_of(const bench_row *row)
{
    return strncmp(row->op, "instance", 8) == 0 ? CHANNELS : 32;
}

static atto_status call(atto_device *dev, const bench_row *row, const bench_tensors *t,
                        bool backward)
{
    const atto_tensor x = images_of(row, &t->x), dy = images_of(row, &t->dy);
    const atto_tensor out = images_of(row, &t->out);
    const struct atto_group_norm_args a = {
        .x = &x,
        .w = &t->extra[W],
        .b = &t->extra[B],
        .y = &out,
        .mean = &t->extra[MEAN],
        .rstd = &t->extra[RSTD],
        .dy = &dy,
        .dx = &out,
        .dw = &t->extra[DW],
        .db = &t->extra[DB],
        .groups = groups_of(row),
        .eps = 1e-5f,
    };
    return backward ? atto_group_norm_backward(dev, &a) : atto_group_norm_forward(dev, &a);
}

static atto_status forward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    return call(dev, row, t, false);
}

static atto_status backward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    return call(dev, row, t, true);
}

static atto_status make_extras(atto_device *dev, const bench_row *row, bench_tensors *t)
{
    const int64_t n = images_of(row, &t->x).shape[0];
    for (int i = W; i <= RSTD; i++) {
        const atto_shape shape = i < MEAN ? atto_shape1(CHANNELS) : atto_shape2(n, groups_of(row));
        BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, shape, &t->extra[i]));
    }
    BENCH_TRY(atto_tensor_fill(&t->extra[W], 1.25));
    BENCH_TRY(atto_tensor_fill(&t->extra[B], 0.5));
    return forward(dev, row, t); /* mean and rstd, for backward */
}

/* Two, because rows with the same one share their tensors. */
static atto_status prepare_groups(atto_device *dev, const bench_row *row, bench_tensors *t)
{
    return make_extras(dev, row, t);
}

static atto_status prepare_instances(atto_device *dev, const bench_row *row, bench_tensors *t)
{
    return make_extras(dev, row, t);
}

/* 334 images where the options say 67,108,864 elements. */
/* clang-format off */
#define PAIR(op_, prepare_)                                                                   \
    { .op = op_, .pass = "forward", .call = forward, .prepare = prepare_,                     \
      .rows = 334, .cols = CHANNELS * EDGE * EDGE, .reads = 2, .writes = 1, .flops = 8,       \
      .default_dtypes = BENCH_DTYPE(ATTO_F32) | BENCH_DTYPE(ATTO_BF16), .dtypes = BENCH_FLOATS }, \
    { .op = op_, .pass = "backward", .call = backward, .prepare = prepare_,                   \
      .rows = 334, .cols = CHANNELS * EDGE * EDGE, .reads = 4, .writes = 1, .flops = 14,      \
      .default_dtypes = BENCH_DTYPE(ATTO_F32) | BENCH_DTYPE(ATTO_BF16), .dtypes = BENCH_FLOATS }

const bench_row bench_group_norm_rows[] = {
    PAIR("group_norm", prepare_groups),
    PAIR("group_norm channels_last", prepare_groups),
    PAIR("instance_norm", prepare_instances),
    PAIR("instance_norm channels_last", prepare_instances),
};
/* clang-format on */

const int32_t bench_group_norm_row_count =
    sizeof bench_group_norm_rows / sizeof bench_group_norm_rows[0];
