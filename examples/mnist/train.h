/* SPDX-License-Identifier: MIT */
/* The training of this example; everything around it is in mnist.c. */
#ifndef MNIST_TRAIN_H
#define MNIST_TRAIN_H

#include "data.h"

typedef struct train_options {
    int64_t epochs, batch;
    double lr, momentum;
    bool constant_lr; /* else it falls to 0 along a cosine */
    double dropout;   /* behind the hidden layers */
    atto_dtype amp;   /* f16 or bf16: mixed precision; f32: none */
    uint64_t seed;    /* of initial weights, order and dropout */
} train_options;

/* After every STEPS_PER_REPORT steps (train.c), and at the end of an epoch. */
typedef struct train_step {
    int64_t epoch; /* from 1 */
    int64_t done;  /* images of this epoch so far */
    double loss;   /* mean over the steps since the last report, of their batches' means */
} train_step;

/* After an epoch. */
typedef struct train_epoch {
    int64_t epoch;        /* from 1 */
    double train_loss;    /* mean over the epoch's steps, with dropout, while weights change */
    double test_loss;     /* mean over the test images */
    double test_accuracy; /* fraction of them, 0 to 1 */
    double seconds;       /* of training, without the test */
} train_epoch;

/* What the training tells its caller; none may be NULL. A status other than ATTO_OK from epoch_end
 * ends the training and is its result. */
typedef struct train_watch {
    void *data;
    void (*epoch_begin)(void *data, int64_t epoch);
    void (*step)(void *data, const train_step *step);
    atto_status (*epoch_end)(void *data, const train_epoch *epoch);
} train_watch;

/* Trains a network on data->train and tests it on data->test after each epoch. A failure has a
 * message in failure_message. */
atto_status train(atto_device *dev, const train_options *options, const mnist_data *data,
                  const train_watch *watch);

#endif
