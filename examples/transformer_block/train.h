/* SPDX-License-Identifier: MIT */
/* The training of this example; everything around it is in transformer_block.c. */
#ifndef TRANSFORMER_BLOCK_TRAIN_H
#define TRANSFORMER_BLOCK_TRAIN_H

#include "network.h"
#include "task.h"

typedef struct train_options {
    network_options network;
    int64_t epochs, batch;
    double lr;     /* reached after WARMUP steps (train.c), then down to 0 along a cosine */
    uint64_t seed; /* of initial weights, order and dropout */
} train_options;

/* How many held-out positions and sequences are right. */
typedef struct train_score {
    double loss;                 /* mean over batches of what their positions have */
    double positions, sequences; /* fractions, 0 to 1 */
} train_score;

/* What the training tells its caller; none may be NULL. A status other than ATTO_OK from epoch_end ends the
 * training and is its result. */
typedef struct train_watch {
    void *data;
    void (*epoch_begin)(void *data, int64_t epoch);      /* from 1 */
    void (*step)(void *data, int64_t done, double loss); /* sequences, mean since the last call */
    atto_status (*epoch_end)(void *data, int64_t epoch, double train_loss, const train_score *score,
                             double seconds); /* of training, without the test */
} train_watch;

/*
 * Trains a network on one set and tests it on another, which was held out, after each epoch.
 *
 * said  [held_out->count, length]  out, the network's answers at the end
 *
 * A failure has a message in failure_message.
 */
atto_status train(atto_device *dev, const train_options *options, const task_set *set,
                  const task_set *held_out, const train_watch *watch, int32_t *said);

#endif
