/* SPDX-License-Identifier: MIT */
/* What recurrent cells and layers share. */
#ifndef ATTO_LAYERS_RNN_H
#define ATTO_LAYERS_RNN_H

#include <attocl/record.h>

#include "train/tape.h"

/* Layers that lie on one another, and with both directions of each. */
#define ATTO_RNN_MOST_LAYERS 32
#define ATTO_RNN_MOST_PASSES (2 * ATTO_RNN_MOST_LAYERS)

/* w_hh has the shape [G H, H] with H > 0: *hidden is H. */
atto_status atto__rnn_hidden(atto_tape *tape, const char *what, const atto_rnn_weights *w,
                             int64_t *hidden);

/* Shapes of all four. */
atto_status atto__rnn_check_weights(atto_tape *tape, const char *what, const atto_rnn_weights *w,
                                    int64_t gates, int64_t in, int64_t hidden);

/* A new value of zeros. */
atto_status atto__rnn_zeros(atto_tape *tape, atto_dtype dtype, atto_shape shape, atto_var *out);

/* The shape with the last dimension times that many. */
static inline atto_shape atto__rnn_last(atto_shape shape, int64_t times)
{
    shape.dim[shape.rank - 1] *= times;
    return shape;
}

#endif
