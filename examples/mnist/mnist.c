/* SPDX-License-Identifier: MIT */
/* Learns handwritten digits: command line, data, progress, figures and curves. The network and its
 * training are in train.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "csv.h"
#include "curves.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "train.h"

typedef struct settings {
    const char *device, *data, *csv, *plot;
    train_options train;
} settings;

static settings defaults(void)
{
    return (settings){
        .device = "auto",
        .data = MNIST_DATA_DIR,
        .train = { .epochs = 5,
                   .batch = 64,
                   .lr = 0.05,
                   .momentum = 0.9,
                   .dropout = 0.2,
                   .amp = ATTO_F32,
                   .seed = 1 },
    };
}

static int parse(settings *s, int argc, char **argv)
{
    const option_row rows[] = {
        OPTION_DEVICE(&s->device),
        OPTION_EPOCHS(&s->train.epochs),
        OPTION_BATCH(&s->train.batch, 60000),
        OPTION_LR(&s->train.lr),
        { "constant-lr", 0, OPTION_FLAG, &s->train.constant_lr, 0, 0, NULL,
          "keep the learning rate; else it falls to 0 along a cosine" },
        { "momentum", 'm', OPTION_NUMBER, &s->train.momentum, 0, 0.999, "X",
          "share of the last step in the next" },
        { "dropout", 'o', OPTION_NUMBER, &s->train.dropout, 0, 1, "P",
          "probability of dropping a hidden unit" },
        OPTION_AMP(&s->train.amp),
        OPTION_RANDOM(&s->train.seed),
        OPTION_CSV(&s->csv),
        OPTION_PLOT(&s->plot),
        OPTION_DATA(&s->data),
    };
    const option_page page = { "mnist",
                               "Trains a network of three layers to read handwritten digits and "
                               "tests it after each epoch.\n",
                               rows, (int)(sizeof rows / sizeof rows[0]) };
    return options_parse(&page, argc, argv);
}

/* ---- what the training reports ---- */

/* One array per curve, as long as epochs are done. */
typedef struct history {
    int64_t count;
    double *epoch, *train_loss, *test_loss, *test_accuracy;
} history;

typedef struct run {
    const settings *settings;
    const mnist_data *data;
    progress progress;
    csv csv;
    history history;
} run;

static atto_status flush_output(void)
{
    return output_flush(stdout, "standard output");
}

static void on_epoch_begin(void *data, int64_t epoch)
{
    run *r = data;
    progress_epoch(&r->progress, epoch, r->data->train.count);
}

static void on_step(void *data, const train_step *step)
{
    run *r = data;
    progress_step(&r->progress, step->done, step->loss);
}

static atto_status on_epoch_end(void *data, const train_epoch *e)
{
    run *r = data;
    history *h = &r->history;
    char metrics[120];
    snprintf(metrics, sizeof metrics, "loss %.4f  test loss %.4f  test accuracy %.2f %%",
             e->train_loss, e->test_loss, 100 * e->test_accuracy);
    progress_epoch_end(&r->progress, metrics);
    TRY(flush_output());
    h->epoch[h->count] = (double)e->epoch;
    h->train_loss[h->count] = e->train_loss;
    h->test_loss[h->count] = e->test_loss;
    h->test_accuracy[h->count++] = e->test_accuracy;
    if (r->settings->csv == NULL) return ATTO_OK;
    const double row[] = { (double)e->epoch, e->train_loss, e->test_loss, e->test_accuracy,
                           e->seconds };
    return csv_row(&r->csv, row);
}

/* ---- the run ---- */

static atto_status history_create(history *h, int64_t epochs)
{
    double *room = calloc((size_t)epochs, 4 * sizeof *room);
    if (room == NULL) return failure(ATTO_E_MEMORY, "no memory for %lld epochs", (long long)epochs);
    *h = (history){ 0, room, room + epochs, room + 2 * epochs, room + 3 * epochs };
    return ATTO_OK;
}

static atto_status plot(const history *h, const char *path, const char *device)
{
    const curve losses[] = { { "training", h->epoch, h->train_loss, h->count, 1 },
                             { "test", h->epoch, h->test_loss, h->count, 2 } };
    const curve accuracy = { "test", h->epoch, h->test_accuracy, h->count, 2 };
    const curve_panel panels[] = { { "Loss", "epoch", "cross entropy", losses, 2 },
                                   { "Accuracy", "epoch", "fraction right", &accuracy, 1 } };
    char title[200];
    snprintf(title, sizeof title, "MNIST on %s", device);
    return curves_write(path, title, panels, 2);
}

static atto_status open_csv(run *r)
{
    static const char *const columns[] = { "epoch", "train_loss", "test_loss", "test_accuracy",
                                           "seconds" };
    return csv_open(&r->csv, r->settings->csv, columns, 5);
}

/* Before the training, so that it is not in vain. */
static atto_status open_files(run *r)
{
    const settings *s = r->settings;
    if (s->csv != NULL) TRY(output_try(s->csv));
    if (s->plot != NULL) TRY(output_try(s->plot));
    if (s->csv != NULL && s->plot != NULL && output_same(s->csv, s->plot))
        return failure(ATTO_E_ARGUMENT, "--csv %s and --plot %s are the same file", s->csv,
                       s->plot);
    return s->csv != NULL ? open_csv(r) : ATTO_OK;
}

static atto_status train_and_report(run *r, atto_device *dev)
{
    const train_watch watch = { r, on_epoch_begin, on_step, on_epoch_end };
    atto_device_info info;
    TRY_ATTO(atto_device_describe(dev, &info));
    printf("%s (%s), %lld training and %lld test images\n", info.name, info.backend,
           (long long)r->data->train.count, (long long)r->data->test.count);
    TRY(flush_output());
    TRY(history_create(&r->history, r->settings->train.epochs));
    TRY(open_files(r));
    TRY(train(dev, &r->settings->train, r->data, &watch));
    return r->settings->plot != NULL ? plot(&r->history, r->settings->plot, info.name) : ATTO_OK;
}

static atto_status run_with(const settings *s, mnist_data *data, atto_device **dev)
{
    TRY(mnist_load(s->data, data));
    TRY_ATTO(atto_device_open(s->device, NULL, dev));
    run r = { .settings = s, .data = data };
    r.progress = progress_start(stdout, s->train.epochs, "images");
    atto_status status = train_and_report(&r, *dev);
    progress_clear(&r.progress);
    const atto_status closed = csv_close(&r.csv);
    if (status == ATTO_OK) status = closed;
    free(r.history.epoch);
    return status;
}

int main(int argc, char **argv)
{
    settings s = defaults();
    const int code = parse(&s, argc, argv);
    if (code != OPTIONS_RUN) return code;
    mnist_data data = { .train = { .count = 0 } };
    atto_device *dev = NULL;
    const atto_status status = run_with(&s, &data, &dev);
    if (status != ATTO_OK)
        fprintf(stderr, "mnist: %s: %s\n", atto_status_name(status), failure_message());
    atto_device_close(dev);
    mnist_free(&data);
    return status == ATTO_OK ? OPTIONS_OK : OPTIONS_FAILED;
}
