/* SPDX-License-Identifier: MIT */
/* The training: a network of three layers, stochastic gradient descent with momentum. */
#include "train.h"

#include <math.h>
#include <stdlib.h>

#include "clock.h"
#include "shuffle.h"

/* From one report of the loss, which waits for the device, to the next. */
#define STEPS_PER_REPORT 50

#define TEST_BATCH 1000

typedef struct trainer {
    const train_options *options;
    const mnist_data *data;
    const train_watch *watch;
    atto_device *dev;
    atto_module *net;
    atto_optimizer *sgd;
    atto_tape *tape;
    atto_meter *meter;
    atto_tensor loss_scale; /* borrowed from the optimiser; 1 where nothing is scaled */
    int64_t *order;         /* [train.count] */
    float *images;          /* [batch, 784] */
    int32_t *labels;        /* [batch] */
    float *logits;          /* [TEST_BATCH, 10] */
    int64_t steps;          /* done so far */
} trainer;

/* ---- the network ---- */

static atto_status add_layer(atto_module *net, int64_t in, int64_t out, double dropout)
{
    const atto_linear_options options = { .act = atto_relu(), .dropout = (float)dropout };
    return atto_sequential_linear(net, in, out, &options);
}

static atto_status build_network(trainer *t)
{
    const train_options *o = t->options;
    atto_seed(t->dev, o->seed);
    TRY_ATTO(atto_sequential_create(t->dev, &t->net));
    TRY_ATTO(add_layer(t->net, MNIST_PIXELS, 512, o->dropout));
    TRY_ATTO(add_layer(t->net, 512, 256, o->dropout));
    TRY_ATTO(atto_sequential_linear(t->net, 256, MNIST_CLASSES, NULL));
    return ATTO_OK;
}

/* ---- training ---- */

/* That of the options, or from there to 0 along a cosine over all steps. */
static double learning_rate(trainer *t)
{
    const train_options *o = t->options;
    const int64_t per_epoch = (t->data->train.count + o->batch - 1) / o->batch;
    const int64_t step = t->steps++;
    return o->constant_lr ? o->lr : atto_schedule_cosine(step, o->epochs * per_epoch, o->lr, 0.0);
}

/* Enqueues one step; nothing here waits for the device. */
static atto_status step(trainer *t, int64_t first, int64_t *count)
{
    atto_tape *tape = t->tape;
    *count = mnist_batch(&t->data->train, t->order, first, t->options->batch, t->images, t->labels);
    const atto_var x = atto_input(tape, ATTO_F32, atto_shape2(*count, MNIST_PIXELS), t->images);
    const atto_var labels = atto_input(tape, ATTO_I32, atto_shape1(*count), t->labels);
    const atto_var loss = atto_cross_entropy(tape, atto_apply(tape, t->net, x), labels, NULL);
    atto_meter_add(t->meter, tape, loss);
    TRY_ATTO(atto_backward_from(tape, loss, &t->loss_scale));
    TRY_ATTO(atto_optimizer_step(t->sgd, learning_rate(t)));
    TRY_ATTO(atto_tape_end(tape));
    return ATTO_OK;
}

/* Of the losses of an epoch's steps: a step counts the same whatever the size of its batch. */
typedef struct running_mean {
    double sum;
    int64_t steps;
} running_mean;

/* Waits for the mean loss of the steps since the last report, and tells it. */
static atto_status report(trainer *t, int64_t epoch, int64_t done, int64_t steps,
                          running_mean *epoch_loss)
{
    double loss;
    TRY_ATTO(atto_meter_take(t->meter, &loss));
    epoch_loss->sum += loss * (double)steps;
    epoch_loss->steps += steps;
    const train_step seen = { epoch, done, loss };
    t->watch->step(t->watch->data, &seen);
    return ATTO_OK;
}

static atto_status train_epoch_once(trainer *t, int64_t epoch, double *mean_loss)
{
    const int64_t n = t->data->train.count;
    running_mean loss = { 0.0, 0 };
    int64_t unreported = 0, count;
    shuffle(t->order, n, t->options->seed, epoch);
    for (int64_t done = 0; done < n; done += count) {
        TRY(step(t, done, &count));
        if (++unreported < STEPS_PER_REPORT && done + count < n) continue;
        TRY(report(t, epoch, done + count, unreported, &loss));
        unreported = 0;
    }
    *mean_loss = loss.sum / (double)loss.steps;
    return ATTO_OK;
}

/* ---- test ---- */

static int64_t count_right(const float *logits, const int32_t *labels, int64_t count)
{
    int64_t right = 0;
    for (int64_t i = 0; i < count; i++) {
        const float *row = logits + i * MNIST_CLASSES;
        int32_t best = 0;
        for (int32_t c = 1; c < MNIST_CLASSES; c++)
            if (row[c] > row[best]) best = c;
        right += best == labels[i];
    }
    return right;
}

/* Adds up over one batch. */
static atto_status test_batch(trainer *t, int64_t first, int64_t *count, double *loss_sum,
                              int64_t *right)
{
    float loss;
    atto_tape *tape = t->tape;
    *count = mnist_batch(&t->data->test, NULL, first, TEST_BATCH, t->images, t->labels);
    const atto_var x = atto_input(tape, ATTO_F32, atto_shape2(*count, MNIST_PIXELS), t->images);
    const atto_var labels = atto_input(tape, ATTO_I32, atto_shape1(*count), t->labels);
    const atto_var y = atto_apply(tape, t->net, x);
    TRY_ATTO(atto_var_read(tape, atto_cross_entropy(tape, y, labels, NULL), &loss));
    TRY_ATTO(atto_var_read(tape, atto_cast(tape, y, ATTO_F32), t->logits));
    TRY_ATTO(atto_tape_end(tape));
    *loss_sum += (double)loss * (double)*count;
    *right += count_right(t->logits, t->labels, *count);
    return ATTO_OK;
}

/* Without dropout and without recording. */
static atto_status test(trainer *t, train_epoch *result)
{
    const int64_t n = t->data->test.count;
    int64_t right = 0, count;
    double loss_sum = 0.0;
    atto_module_train(t->net, false);
    atto_tape_record(t->tape, false);
    for (int64_t first = 0; first < n; first += count)
        TRY(test_batch(t, first, &count, &loss_sum, &right));
    atto_tape_record(t->tape, true);
    atto_module_train(t->net, true);
    result->test_loss = loss_sum / (double)n;
    result->test_accuracy = (double)right / (double)n;
    return ATTO_OK;
}

/* ---- all of it ---- */

static atto_status make_room(trainer *t)
{
    const int64_t batch = t->options->batch > TEST_BATCH ? t->options->batch : TEST_BATCH;
    t->order = malloc((size_t)t->data->train.count * sizeof *t->order);
    t->images = malloc((size_t)batch * MNIST_PIXELS * sizeof *t->images);
    t->labels = malloc((size_t)batch * sizeof *t->labels);
    t->logits = malloc(TEST_BATCH * MNIST_CLASSES * sizeof *t->logits);
    if (t->order && t->images && t->labels && t->logits) return ATTO_OK;
    return failure(ATTO_E_MEMORY, "no memory for batches of %lld images", (long long)batch);
}

/* f16 needs the loss scale, for gradients that it has no numbers for; bf16 has f32's range. */
static atto_status set_precision(trainer *t)
{
    const atto_dtype amp = t->options->amp;
    TRY_ATTO(atto_tape_autocast(t->tape, amp));
    if (amp == ATTO_F16) TRY_ATTO(atto_optimizer_scale_loss(t->sgd, NULL));
    TRY_ATTO(atto_optimizer_loss_scale(t->sgd, &t->loss_scale));
    return ATTO_OK;
}

static atto_status prepare(trainer *t)
{
    TRY(make_room(t));
    TRY(build_network(t));
    const atto_sgd_options sgd = { .momentum = t->options->momentum };
    TRY_ATTO(atto_sgd_create(t->net, t->options->lr, &sgd, &t->sgd));
    TRY_ATTO(atto_tape_create(t->dev, &t->tape));
    TRY_ATTO(atto_meter_create(t->dev, &t->meter));
    atto_tape_seed(t->tape, t->options->seed, 0);
    return set_precision(t);
}

static atto_status run_epochs(trainer *t)
{
    for (int64_t epoch = 1; epoch <= t->options->epochs; epoch++) {
        train_epoch result = { .epoch = epoch };
        t->watch->epoch_begin(t->watch->data, epoch);
        const double start = clock_seconds();
        TRY(train_epoch_once(t, epoch, &result.train_loss));
        result.seconds = clock_seconds() - start;
        TRY(test(t, &result));
        TRY(t->watch->epoch_end(t->watch->data, &result));
    }
    return ATTO_OK;
}

atto_status train(atto_device *dev, const train_options *options, const mnist_data *data,
                  const train_watch *watch)
{
    trainer t = { .options = options, .data = data, .watch = watch, .dev = dev };
    atto_status status = prepare(&t);
    if (status == ATTO_OK) status = run_epochs(&t);
    atto_meter_free(t.meter);
    atto_tape_free(t.tape);
    atto_optimizer_free(t.sgd);
    atto_module_free(t.net);
    free(t.order);
    free(t.images);
    free(t.labels);
    free(t.logits);
    return status;
}
