/* SPDX-License-Identifier: MIT */
/* The answers of recurrent cells and layers, in double. */
#ifndef ORACLE_RNN_H
#define ORACLE_RNN_H

#include <stdbool.h>
#include <stdint.h>

/* A result, and all that an f32 evaluation may be off by, in u = 2^-24. */
typedef struct oracle_off {
    double *value, *off;
} oracle_off;

/* One step, behind the products; [rows, hidden], gates one behind the other in a row. */
typedef struct oracle_cell {
    int64_t rows, hidden;
    const double *x, *u;    /* of gates; u: a GRU's */
    const double *state;    /* c, or a GRU's h */
    const double *cy;       /* for gradients of an LSTM: as stored, */
    const double *gates;    /* as are these */
    const double *dy, *dcy; /* NULL = 0 */
} oracle_cell;

void oracle_lstm_forward(const oracle_cell *o, oracle_off y, oracle_off cy, oracle_off gates);
void oracle_lstm_backward(const oracle_cell *o, oracle_off dx, oracle_off dc);
void oracle_gru_forward(const oracle_cell *o, oracle_off y, oracle_off gates);
void oracle_gru_backward(const oracle_cell *o, oracle_off dx, oracle_off du, oracle_off dh);

/* Layers over sequences [length, batches, in], from the definition. */
typedef struct oracle_layers {
    bool is_lstm;
    int64_t length, batches, in, hidden;
    int layers, directions;
    const double *x;
    const double *(*weights)[4]; /* of each pass w_ih, w_hh, b_ih, b_hh; biases NULL = 0 */
    const double *h, *c;         /* [layers directions, batches, hidden]; NULL = 0 */
} oracle_layers;

/* y [length, batches, directions hidden], hy and cy like h. cy: not of a GRU. */
void oracle_layers_run(const oracle_layers *o, double *y, double *hy, double *cy);

#endif
