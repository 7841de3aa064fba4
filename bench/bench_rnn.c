/* SPDX-License-Identifier: MIT */
/* Benchmark rows of recurrent cells behind their products, 512 hidden features. Layers are rows of
 * bench_module.c.
 *
 * An LSTM's cell reads 4 parts of gates and its state, and writes two states and the gates;
 * backward reads those and two gradients, and writes as many parts as forward has read. A GRU's
 * reads two times 3 parts and its state, and writes a state and 4 parts; backward reads these
 * and one gradient. */
#include <string.h>

#include "bench.h"

#define HIDDEN 512

/* Gates that out is not, and states. */
enum { GATES, STATE, Y, CY, DY, DCY, DSTATE };

static int64_t gates_of(const bench_row *row)
{
    return row->cols / HIDDEN;
}

static atto_status lstm_forward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    (void)row;
    const struct atto_lstm_cell_args a = {
        .x = &t->x, .c = &t->extra[STATE], .y = &t->extra[Y], .cy = &t->extra[CY], .gates = &t->out
    };
    return atto_lstm_cell_forward(dev, &a);
}

static atto_status lstm_backward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    (void)row;
    const struct atto_lstm_cell_args a = { .c = &t->extra[STATE],
                                           .cy = &t->extra[CY],
                                           .gates = &t->x,
                                           .dy = &t->extra[DY],
                                           .dcy = &t->extra[DCY],
                                           .dx = &t->out,
                                           .dc = &t->extra[DSTATE] };
    return atto_lstm_cell_backward(dev, &a);
}

static atto_status gru_forward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    (void)row;
    const struct atto_gru_cell_args a = {
        .x = &t->x, .u = &t->dy, .h = &t->extra[STATE], .y = &t->extra[Y], .gates = &t->extra[GATES]
    };
    return atto_gru_cell_forward(dev, &a);
}

static atto_status gru_backward(atto_device *dev, const bench_row *row, const bench_tensors *t)
{
    (void)row;
    const struct atto_gru_cell_args a = { .h = &t->extra[STATE],
                                          .gates = &t->extra[GATES],
                                          .dy = &t->extra[DY],
                                          .dx = &t->out,
                                          .du = &t->x,
                                          .dh = &t->extra[DSTATE] };
    return atto_gru_cell_backward(dev, &a);
}

/* Numbers that gates and states have, whatever reads them. */
static atto_status fill(atto_device *dev, const atto_tensor *t, int i)
{
    atto_tensor flat;
    if (i == GATES) return atto_tensor_fill(t, 0.75);
    BENCH_TRY(atto_tensor_reshape(t, atto_shape1(atto_tensor_numel(t)), &flat));
    return bench_fill_normal(dev, &flat, (uint64_t)i);
}

static atto_status prepare(atto_device *dev, const bench_row *row, bench_tensors *t)
{
    for (int i = GATES; i <= DSTATE; i++) {
        if (i == GATES && gates_of(row) == 4) continue;
        const atto_shape shape = atto_shape2(t->x.shape[0], i == GATES ? 4 * HIDDEN : HIDDEN);
        BENCH_TRY(atto_tensor_alloc(dev, t->x.dtype, shape, &t->extra[i]));
        BENCH_TRY(fill(dev, &t->extra[i], i));
    }
    return ATTO_OK;
}

/* clang-format off */
#define ROW(name, gates, pass_, call_, reads_, writes_, parts_)                                   \
    { .op = name, .pass = pass_, .call = call_, .prepare = prepare, .cols = gates * HIDDEN,       \
      .rows = (1 << 26) / (gates * HIDDEN), .reads = reads_, .writes = writes_, .parts = parts_,  \
      .flops = 4, .default_dtypes = BENCH_FLOATS, .dtypes = BENCH_FLOATS }

const bench_row bench_rnn_rows[] = {
    ROW("lstm cell", 4, "forward",  lstm_forward,  1, 1, 3.0 / 4.0),
    ROW("lstm cell", 4, "backward", lstm_backward, 1, 1, 5.0 / 4.0),
    ROW("gru cell",  3, "forward",  gru_forward,   2, 0, 6.0 / 3.0),
    ROW("gru cell",  3, "backward", gru_backward,  0, 2, 7.0 / 3.0),
};
/* clang-format on */

const int32_t bench_rnn_row_count = sizeof bench_rnn_rows / sizeof bench_rnn_rows[0];
