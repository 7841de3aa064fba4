/* SPDX-License-Identifier: MIT */
/* The training: AdamW, a learning rate that rises and falls, and cross-entropy of what is not hidden. */
#include "train.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "shuffle.h"

#define STEPS_PER_REPORT 20 /* a report waits for the device */
#define WARMUP           100
#define WEIGHT_DECAY     0.01
#define TEST_BATCH       500

typedef struct trainer {
    const train_options *options;
    const task_set *set, *held_out;
    const train_watch *watch;
    atto_device *dev;
    atto_module *net;
    atto_optimizer *adamw;
    atto_tape *tape;
    atto_meter *meter;
    int64_t *order;                      /* [set->count] */
    int32_t *symbols, *hidden, *answers; /* [batch, length] */
    int32_t *said;                       /* [held_out->count, length] */
    int64_t steps;                       /* done so far */
} trainer;

/* ---- a batch ---- */

static void copy_row(int32_t *to, const int32_t *from, int64_t to_row, int64_t from_row, int64_t n)
{
    memcpy(to + to_row * n, from + from_row * n, (size_t)n * sizeof *to);
}

/* Up to batch sequences order[first], ... of a set; order NULL: as they are. Returns how many. */
static int64_t gather(trainer *t, const task_set *set, const int64_t *order, int64_t first,
                      int64_t batch)
{
    const int64_t left = set->count - first, count = left < batch ? left : batch;
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = order != NULL ? order[first + i] : first + i;
        copy_row(t->symbols, set->symbols, i, row, set->length);
        copy_row(t->hidden, set->hidden, i, row, set->length);
        copy_row(t->answers, set->answers, i, row, set->length);
    }
    return count;
}

/* Logits of the batch, [count length, symbols], and their loss. */
static atto_var forward(trainer *t, int64_t count, atto_var *loss)
{
    atto_tape *tape = t->tape;
    const int64_t length = t->set->length;
    const atto_shape shape = atto_shape2(count, length);
    const atto_var symbols = atto_input(tape, ATTO_I32, shape, t->symbols);
    const atto_var hidden = atto_input(tape, ATTO_I32, shape, t->hidden);
    const atto_var answers = atto_input(tape, ATTO_I32, atto_shape1(count * length), t->answers);
    const atto_var y = atto_reshape(tape, atto_apply2(tape, t->net, symbols, hidden),
                                    atto_shape2(count * length, t->options->network.symbols));
    *loss = atto_cross_entropy(tape, y, answers, NULL); /* the mean where there is an answer */
    return y;
}

/* ---- training ---- */

static double learning_rate(const trainer *t)
{
    const train_options *o = t->options;
    const int64_t total = o->epochs * ((t->set->count + o->batch - 1) / o->batch);
    return atto_schedule_warmup_cosine(t->steps, WARMUP < total / 2 ? WARMUP : total / 2, total,
                                       o->lr, 0.0);
}

/* Enqueues one step; nothing here waits for the device. */
static atto_status step(trainer *t, int64_t first, int64_t *count)
{
    atto_var loss;
    *count = gather(t, t->set, t->order, first, t->options->batch);
    forward(t, *count, &loss);
    atto_meter_add(t->meter, t->tape, loss);
    TRY_ATTO(atto_backward(t->tape, loss));
    TRY_ATTO(atto_optimizer_step(t->adamw, learning_rate(t)));
    TRY_ATTO(atto_tape_end(t->tape));
    t->steps++;
    return ATTO_OK;
}

static atto_status train_epoch(trainer *t, int64_t epoch, double *mean_loss)
{
    const int64_t n = t->set->count;
    int64_t unreported = 0, count, steps = 0;
    double sum = 0.0, loss;
    shuffle(t->order, n, t->options->seed, epoch);
    for (int64_t done = 0; done < n; done += count) {
        TRY(step(t, done, &count));
        if (++unreported < STEPS_PER_REPORT && done + count < n) continue;
        TRY_ATTO(atto_meter_take(t->meter, &loss));
        t->watch->step(t->watch->data, done + count, loss);
        sum += loss * (double)unreported;
        steps += unreported;
        unreported = 0;
    }
    *mean_loss = sum / (double)steps;
    return ATTO_OK;
}

/* ---- test ---- */

/* The symbol that is said at each position of a batch, found on the device. */
static atto_status test_batch(trainer *t, int64_t first, int64_t *count, double *loss_sum)
{
    static const atto_reduce_options classes = { .dims = { -1 },
                                                 .dim_count = 1,
                                                 .position = ATTO_I32 };
    atto_var of_loss;
    float loss;
    *count = gather(t, t->held_out, NULL, first, TEST_BATCH);
    const atto_var y = forward(t, *count, &of_loss);
    const atto_var best = atto_reduce(t->tape, ATTO_REDUCE_ARGMAX, y, &classes);
    TRY_ATTO(atto_var_read(t->tape, best, t->said + first * t->held_out->length));
    TRY_ATTO(atto_var_read(t->tape, of_loss, &loss));
    TRY_ATTO(atto_tape_end(t->tape));
    *loss_sum += (double)loss * (double)*count;
    return ATTO_OK;
}

static void score(const trainer *t, train_score *out)
{
    const task_set *set = t->held_out;
    int64_t positions = 0, right = 0, whole = 0;
    for (int64_t row = 0; row < set->count; row++) {
        int64_t wrong = 0;
        for (int64_t i = row * set->length; i < (row + 1) * set->length; i++) {
            if (set->hidden[i]) continue;
            positions++;
            wrong += t->said[i] != set->answers[i];
            right += t->said[i] == set->answers[i];
        }
        whole += wrong == 0;
    }
    out->positions = (double)right / (double)positions;
    out->sequences = (double)whole / (double)set->count;
}

/* Without dropout and without recording; both switches go back on a failure too, since the network and the
 * tape outlive it. */
static atto_status test(trainer *t, train_score *out)
{
    const int64_t n = t->held_out->count;
    int64_t count;
    double loss_sum = 0.0;
    atto_status status = ATTO_OK;
    atto_module_train(t->net, false);
    atto_tape_record(t->tape, false);
    for (int64_t first = 0; first < n && status == ATTO_OK; first += count)
        status = test_batch(t, first, &count, &loss_sum);
    atto_tape_record(t->tape, true);
    atto_module_train(t->net, true);
    TRY(status);
    score(t, out);
    out->loss = loss_sum / (double)n;
    return ATTO_OK;
}

/* ---- all of it ---- */

static atto_status prepare(trainer *t)
{
    const int64_t batch = t->options->batch > TEST_BATCH ? t->options->batch : TEST_BATCH;
    const size_t numbers = (size_t)(batch * t->set->length);
    t->order = malloc((size_t)t->set->count * sizeof *t->order);
    t->symbols = malloc(3 * numbers * sizeof *t->symbols);
    if (t->order == NULL || t->symbols == NULL)
        return failure(ATTO_E_MEMORY, "no memory for batches of %lld sequences", (long long)batch);
    t->hidden = t->symbols + numbers;
    t->answers = t->hidden + numbers;
    atto_seed(t->dev, t->options->seed);
    TRY(network_create(t->dev, &t->options->network, &t->net));
    TRY_ATTO(atto_adamw_create(t->net, t->options->lr, WEIGHT_DECAY, NULL, &t->adamw));
    TRY_ATTO(atto_tape_create(t->dev, &t->tape));
    TRY_ATTO(atto_meter_create(t->dev, &t->meter));
    atto_tape_seed(t->tape, t->options->seed, 0);
    return ATTO_OK;
}

static atto_status run_epochs(trainer *t)
{
    for (int64_t epoch = 1; epoch <= t->options->epochs; epoch++) {
        double loss = 0.0;
        train_score result;
        t->watch->epoch_begin(t->watch->data, epoch);
        const double start = clock_seconds();
        TRY(train_epoch(t, epoch, &loss));
        const double seconds = clock_seconds() - start;
        TRY(test(t, &result));
        TRY(t->watch->epoch_end(t->watch->data, epoch, loss, &result, seconds));
    }
    return ATTO_OK;
}

atto_status train(atto_device *dev, const train_options *options, const task_set *set,
                  const task_set *held_out, const train_watch *watch, int32_t *said)
{
    trainer t = { .options = options,
                  .set = set,
                  .held_out = held_out,
                  .watch = watch,
                  .dev = dev,
                  .said = said };
    atto_status status = prepare(&t);
    if (status == ATTO_OK) status = run_epochs(&t);
    atto_meter_free(t.meter);
    atto_tape_free(t.tape);
    atto_optimizer_free(t.adamw);
    atto_module_free(t.net);
    free(t.order);
    free(t.symbols);
    return status;
}
