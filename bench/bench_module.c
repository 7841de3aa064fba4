/* SPDX-License-Identifier: MIT */
/* Benchmark rows of modules around attention: MultiheadAttention of x with itself, and a layer of a
 * transformer's encoder, in a language model's sizes and a vision model's; and of recurrent layers,
 * which have steps for queries and no keys. Backward is timed behind a forward pass that is not: a
 * tape runs backward once what it has recorded. */
#include <string.h>

#include "bench.h"
#include "block.h"

/* What the row that runs has made. */
static struct {
    atto_device *dev;
    const bench_row *row;
    atto_dtype dtype;
    atto_module *module;
    atto_tape *tape;
    atto_var y;
} made;

void bench_module_drop(void)
{
    atto_tape_free(made.tape);
    atto_module_free(made.module);
    memset(&made, 0, sizeof made);
}

static int64_t heads_of(const bench_row *row, const bench_tensors *t)
{
    return t->x.shape[2] / row->attention.width;
}

static atto_status make_mha(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    const atto_multihead_attention_module_options options = { .batch_first = true,
                                                              .dtype = t->x.dtype };
    return atto_multihead_attention_create(dev, t->x.shape[2], heads_of(row, t), &options,
                                           &made.module);
}

/* GPT's and ViT's: norms first, four times as many features between the two linear layers, GELU. */
static atto_status make_block(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    const transformer_block_options options = { .dim_feedforward = 4 * t->x.shape[2],
                                                .dropout = ATTO_ZERO,
                                                .act = atto_gelu(),
                                                .batch_first = true,
                                                .norm_first = true,
                                                .dtype = t->x.dtype };
    return transformer_block_create(dev, t->x.shape[2], heads_of(row, t), &options, &made.module);
}

/* One layer with as many hidden features as x has. */
static atto_status make_rnn(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    const atto_rnn_module_options options = { .batch_first = true, .dtype = t->x.dtype };
    const int64_t features = t->x.shape[2];
    return strcmp(row->op, "lstm") == 0
               ? atto_lstm_create(dev, features, features, &options, &made.module)
               : atto_gru_create(dev, features, features, &options, &made.module);
}

static atto_status make_module(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    if (row->attention.keys == 0) return make_rnn(dev, row, t);
    return strcmp(row->op, "mha") == 0 ? make_mha(dev, row, t) : make_block(dev, row, t);
}

static atto_status make(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    if (made.dev == dev && made.row == row && made.dtype == t->x.dtype) return ATTO_OK;
    bench_module_drop();
    made.dev = dev;
    made.row = row;
    made.dtype = t->x.dtype;
    BENCH_TRY(make_module(dev, row, t));
    return atto_tape_create(dev, &made.tape);
}

static atto_status record(atto_device *dev, const bench_row *row, const bench_tensors *t,
                          bool with_backward)
{
    BENCH_TRY(make(dev, row, t));
    atto_tape_record(made.tape, with_backward);
    made.y = atto_apply(made.tape, made.module, atto_borrow(made.tape, &t->x, with_backward));
    return atto_tape_status(made.tape);
}

static atto_status forward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    BENCH_TRY(record(dev, row, t, false));
    return atto_tape_end(made.tape);
}

static atto_status before_backward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    return record(dev, row, t, true);
}

static atto_status forget(void *data, const char *key, atto_param *p)
{
    (void)data, (void)key;
    atto_param_zero_grad(p);
    return ATTO_OK;
}

/* Gradients of x and of all parameters, which are written and not added up. */
static atto_status backward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    (void)dev, (void)row;
    BENCH_TRY(atto_module_params(made.module, forget, NULL));
    BENCH_TRY(atto_backward_from(made.tape, made.y, &t->dy));
    return atto_tape_end(made.tape);
}

#define FLOATS   .default_dtypes = BENCH_FLOATS, .dtypes = BENCH_FLOATS
#define FORWARD  .pass = "forward", .call = forward, .flops = 4
#define BACKWARD .pass = "backward", .before = before_backward, .call = backward, .flops = 10
#define BOTH(name, ...)                                            \
    { .op = name, FORWARD, .attention = { __VA_ARGS__ }, FLOATS }, \
    {                                                              \
        .op = name, BACKWARD, .attention = { __VA_ARGS__ }, FLOATS \
    }

/* 4 squares of features are weights of queries, keys, values and heads; 8 more of the block's linear
 * layers. Of recurrent layers two for each gate. */
/* clang-format off */
const bench_row bench_module_rows[] = {
    BOTH("mha",               16, 16, 16, 512, 512, 64, false,  4),
    BOTH("mha",               64, 12, 12, 197, 197, 64, false,  4),
    BOTH("transformer block", 16, 16, 16, 512, 512, 64, false, 12),
    BOTH("transformer block", 64, 12, 12, 197, 197, 64, false, 12),
    BOTH("lstm",              64,  8,  8, 128,   0, 64, false,  8),
    BOTH("gru",               64,  8,  8, 128,   0, 64, false,  6),
};
/* clang-format on */

const int32_t bench_module_row_count = sizeof bench_module_rows / sizeof bench_module_rows[0];
