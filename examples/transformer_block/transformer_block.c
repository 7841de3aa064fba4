/* SPDX-License-Identifier: MIT */
/* Learns to put symbols in order with a stack of transformer blocks: command line, progress, figures and
 * curves. The block is in block.c, the network in network.c, its training in train.c. */
#include <stdlib.h>

#include "csv.h"
#include "curves.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "train.h"

#define HELD_OUT 1000 /* sequences */
#define SHOWN    3    /* of them, at the end */

typedef struct settings {
    const char *device, *csv, *plot;
    task_options task;
    int64_t sequences;
    double dropout;
    int64_t feed;
    bool gelu;
    train_options train;
} settings;

static settings defaults(void)
{
    return (settings){
        .device = "auto",
        .task = { .name = "sort", .symbols = 10, .length = 10 },
        .sequences = 12800,
        .feed = 64,
        .train = { .network = { .layers = 2, .width = 32, .heads = 4 },
                   .epochs = 4,
                   .batch = 64,
                   .lr = 0.003,
                   .seed = 1 },
    };
}

static int parse(settings *s, int argc, char **argv)
{
    network_options *net = &s->train.network;
    const option_row rows[] = {
        OPTION_DEVICE(&s->device),
        { "task", 't', OPTION_TEXT, &s->task.name, 0, 0, "NAME", "what is learned: " TASK_NAMES },
        { "symbols", 'y', OPTION_COUNT, &s->task.symbols, 2, 1000, "N", "different symbols" },
        { "length", 'L', OPTION_COUNT, &s->task.length, 1, 256, "N", "of the longest sequence" },
        { "sequences", 'n', OPTION_COUNT, &s->sequences, 1, 1e7, "N", "to learn from" },
        { "layers", 'a', OPTION_COUNT, &net->layers, 1, 100, "N", "blocks" },
        { "width", 'w', OPTION_COUNT, &net->width, 1, 4096, "N", "features of a position" },
        { "heads", 'H', OPTION_COUNT, &net->heads, 1, 256, "N", "of a block; they divide width" },
        { "feed", 'f', OPTION_COUNT, &s->feed, 1, 65536, "N",
          "features inside a block's feed-forward" },
        { "gelu", 0, OPTION_FLAG, &s->gelu, 0, 0, NULL, "GELU in blocks instead of ReLU" },
        { "norm-first", 0, OPTION_FLAG, &net->block.norm_first, 0, 0, NULL,
          "norms before attention and feed-forward, not behind" },
        { "no-bias", 0, OPTION_FLAG, &net->block.no_bias, 0, 0, NULL, "blocks without biases" },
        { "sinusoidal", 0, OPTION_FLAG, &net->sinusoidal, 0, 0, NULL,
          "positions are waves; else they are learned" },
        { "dropout", 'o', OPTION_NUMBER, &s->dropout, 0, 1, "P", "probability, in blocks" },
        OPTION_EPOCHS(&s->train.epochs),
        OPTION_BATCH(&s->train.batch, 65536),
        OPTION_LR(&s->train.lr),
        OPTION_RANDOM(&s->train.seed),
        OPTION_CSV(&s->csv),
        OPTION_PLOT(&s->plot),
    };
    const option_page page = { "transformer_block",
                               "Trains a stack of transformer blocks to sort or to reverse short "
                               "sequences of symbols\nand tests it on others after each epoch.\n",
                               rows, (int)(sizeof rows / sizeof rows[0]) };
    return options_parse(&page, argc, argv);
}

/* What the rows above could not say, and what none of them could find wrong alone. */
static atto_status complete(settings *s)
{
    network_options *net = &s->train.network;
    s->task.seed = s->train.seed;
    net->symbols = s->task.symbols;
    net->length = s->task.length;
    net->block.dim_feedforward = s->feed;
    net->block.dropout = (float)s->dropout > 0.0f ? (float)s->dropout : ATTO_ZERO;
    net->block.act = s->gelu ? atto_gelu() : atto_relu();
    if (net->width % net->heads != 0)
        return failure(ATTO_E_ARGUMENT, "--heads is %lld, which does not divide --width %lld",
                       (long long)net->heads, (long long)net->width);
    return task_check(s->task.name);
}

/* ---- what the training reports ---- */

/* One array per curve, as long as epochs are done. */
typedef struct history {
    int64_t count;
    double *epoch, *train_loss, *test_loss, *positions, *sequences;
} history;

typedef struct run {
    const settings *settings;
    task_set set, held_out;
    int32_t *said; /* [HELD_OUT, length] */
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
    progress_epoch(&r->progress, epoch, r->set.count);
}

static void on_step(void *data, int64_t done, double loss)
{
    run *r = data;
    progress_step(&r->progress, done, loss);
}

static atto_status on_epoch_end(void *data, int64_t epoch, double train_loss,
                                const train_score *score, double seconds)
{
    run *r = data;
    history *h = &r->history;
    char metrics[120];
    snprintf(metrics, sizeof metrics, "loss %.4f  test loss %.4f  positions right %.2f %%",
             train_loss, score->loss, 100 * score->positions);
    progress_epoch_end(&r->progress, metrics);
    TRY(flush_output());
    h->epoch[h->count] = (double)epoch;
    h->train_loss[h->count] = train_loss;
    h->test_loss[h->count] = score->loss;
    h->positions[h->count] = score->positions;
    h->sequences[h->count++] = score->sequences;
    if (r->settings->csv == NULL) return ATTO_OK;
    const double row[] = { (double)epoch,    train_loss,       score->loss,
                           score->positions, score->sequences, seconds };
    return csv_row(&r->csv, row);
}

/* ---- the result ---- */

static void print_symbols(const int32_t *symbols, const int32_t *hidden, int64_t n)
{
    for (int64_t i = 0; i < n && !hidden[i]; i++) printf(" %d", (int)symbols[i]);
}

static atto_status print_result(const run *r)
{
    const history *h = &r->history;
    const task_set *set = &r->held_out;
    const int64_t n = set->length;
    printf("\n%s: of %lld sequences that were held out, %.2f %% of the positions are right, and "
           "%.1f %% of the sequences as a whole\n",
           r->settings->task.name, (long long)set->count, 100 * h->positions[h->count - 1],
           100 * h->sequences[h->count - 1]);
    for (int64_t row = 0; row < SHOWN; row++) {
        fputs(" ", stdout);
        print_symbols(set->symbols + row * n, set->hidden + row * n, n);
        fputs("  ->", stdout);
        print_symbols(r->said + row * n, set->hidden + row * n, n);
        puts("");
    }
    return flush_output();
}

static atto_status plot(const run *r, const char *device)
{
    const history *h = &r->history;
    const curve losses[] = { { "training", h->epoch, h->train_loss, h->count, 1 },
                             { "held out", h->epoch, h->test_loss, h->count, 2 } };
    const curve right[] = { { "positions", h->epoch, h->positions, h->count, 2 },
                            { "sequences", h->epoch, h->sequences, h->count, 3 } };
    const curve_panel panels[] = { { "Loss", "epoch", "cross entropy", losses, 2 },
                                   { "Held out", "epoch", "fraction right", right, 2 } };
    char title[200];
    snprintf(title, sizeof title, "%s on %s", r->settings->task.name, device);
    return curves_write(r->settings->plot, title, panels, 2);
}

/* ---- the run ---- */

static atto_status make_room(run *r)
{
    const size_t epochs = (size_t)r->settings->train.epochs;
    double *room = calloc(epochs, 5 * sizeof *room);
    r->history = (history){ .epoch = room };
    r->said = calloc((size_t)(r->held_out.count * r->held_out.length), sizeof *r->said);
    if (room == NULL || r->said == NULL)
        return failure(ATTO_E_MEMORY, "no memory for %lld epochs",
                       (long long)r->settings->train.epochs);
    r->history = (history){
        0, room, room + epochs, room + 2 * epochs, room + 3 * epochs, room + 4 * epochs
    };
    return ATTO_OK;
}

/* Before the training, so that it is not in vain. */
static atto_status open_files(run *r)
{
    static const char *const columns[] = { "epoch",     "train_loss", "test_loss",
                                           "positions", "sequences",  "seconds" };
    const settings *s = r->settings;
    if (s->csv != NULL) TRY(output_try(s->csv));
    if (s->plot != NULL) TRY(output_try(s->plot));
    if (s->csv != NULL && s->plot != NULL && output_same(s->csv, s->plot))
        return failure(ATTO_E_ARGUMENT, "--csv %s and --plot %s are the same file", s->csv,
                       s->plot);
    return s->csv != NULL ? csv_open(&r->csv, s->csv, columns, 6) : ATTO_OK;
}

static atto_status train_and_report(run *r, atto_device *dev)
{
    const train_watch watch = { r, on_epoch_begin, on_step, on_epoch_end };
    const settings *s = r->settings;
    atto_device_info info;
    TRY_ATTO(atto_device_describe(dev, &info));
    printf("%s (%s), %lld sequences to learn from and %lld held out\n", info.name, info.backend,
           (long long)r->set.count, (long long)r->held_out.count);
    TRY(flush_output());
    TRY(make_room(r));
    TRY(open_files(r));
    TRY(train(dev, &s->train, &r->set, &r->held_out, &watch, r->said));
    progress_clear(&r->progress);
    TRY(print_result(r));
    return s->plot != NULL ? plot(r, info.name) : ATTO_OK;
}

static atto_status run_with(const settings *s, atto_device **dev)
{
    run r = { .settings = s };
    atto_status status = task_draw(&s->task, false, s->sequences, &r.set);
    if (status == ATTO_OK) status = task_draw(&s->task, true, HELD_OUT, &r.held_out);
    if (status == ATTO_OK) {
        status = atto_device_open(s->device, NULL, dev);
        if (status != ATTO_OK) failure(status, "%s", atto_last_error());
    }
    r.progress = progress_start(stdout, s->train.epochs, "sequences");
    if (status == ATTO_OK) status = train_and_report(&r, *dev);
    progress_clear(&r.progress);
    const atto_status closed = csv_close(&r.csv);
    if (status == ATTO_OK) status = closed;
    free(r.history.epoch);
    free(r.said);
    task_free(&r.held_out);
    task_free(&r.set);
    return status;
}

int main(int argc, char **argv)
{
    settings s = defaults();
    const int code = parse(&s, argc, argv);
    if (code != OPTIONS_RUN) return code;
    if (complete(&s) != ATTO_OK) {
        fprintf(stderr, "transformer_block: %s; try transformer_block --help\n", failure_message());
        return OPTIONS_USAGE;
    }
    atto_device *dev = NULL;
    const atto_status status = run_with(&s, &dev);
    if (status != ATTO_OK)
        fprintf(stderr, "transformer_block: %s: %s\n", atto_status_name(status), failure_message());
    atto_device_close(dev);
    return status == ATTO_OK ? OPTIONS_OK : OPTIONS_FAILED;
}
