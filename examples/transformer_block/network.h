/* SPDX-License-Identifier: MIT */
/* A stack of transformer blocks that says a symbol at each position: a module of modules, with a
 * parameter and a buffer of its own, that takes two inputs. */
#ifndef TRANSFORMER_BLOCK_NETWORK_H
#define TRANSFORMER_BLOCK_NETWORK_H

#include "block.h"

typedef struct network_options {
    int64_t symbols; /* that are read and said; number `symbols` stands for none */
    int64_t length;  /* most positions */
    int64_t layers;  /* blocks */
    int64_t width;   /* features of a position: the blocks' d_model */
    int64_t heads;   /* of each block */
    bool sinusoidal; /* positions are waves, a buffer; else they are learned, a parameter */
    transformer_block_options block; /* of every block; batch_first is set */
} network_options;

/*
 * atto_apply2(tape, m, symbols, hidden): both are [N, T] of i32, T at most length; hidden is 1 where nobody
 * looks. The result are logits, [N, T, symbols].
 *
 *     x = embedding(symbols) + positions;  x = layers.i(x) ...;  y = head(norm(x))
 *
 * norm is there with norm_first, where a stack's last sums have none. *out is NULL on failure, and
 * failure_message tells; give it back with atto_module_free.
 */
atto_status network_create(atto_device *dev, const network_options *options, atto_module **out);

#endif
