/* SPDX-License-Identifier: MIT */
/* Networks with the weights that others have trained: ResNet-20, MobileNet and Silero VAD, built of
 * modules as an application would build them, give the outputs that pretrained/ has beside those
 * weights. The outputs are from another implementation, in double; single precision is within
 * 2e-5 of them, and 1e-4 is allowed. */
#include <stdio.h>
#include <stdlib.h>

#include "pretrained.h"

#define TOLERANCE 1e-4

/* ---- networks ---- */

/* A convolution and the batch norm behind it, which can be put into the former. */
typedef struct pair {
    atto_module *conv, *norm;
} pair;

/* A network and the file that its weights are from. */
typedef struct network {
    pretrained file;
    atto_module *top;
    pair pairs[32]; /* borrowed from the tree below top */
    int pair_count;
} network;

static void network_open(network *n, const char *name, void (*make)(network *))
{
    pretrained_open(&n->file, name);
    n->pair_count = 0;
    make(n);
    pretrained_expect_all_loaded(&n->file);
    atto_module_train(n->top, false);
}

static void network_close(network *n)
{
    atto_module_free(n->top);
    pretrained_close(&n->file);
}

/* A module with data of its own, which free releases. */
static void *make_module(const atto_module_class *cls, size_t data_size, atto_module **out)
{
    void *data = calloc(1, data_size);
    assert_non_null(data);
    MUST(atto_module_create(test_dev, cls, data, out));
    return data;
}

/* The parent keeps a reference, and ours goes. */
static atto_module *adopt(atto_module *parent, const char *name, atto_module *child)
{
    MUST(atto_module_child(parent, name, child));
    atto_module_free(child);
    return child;
}

static atto_module *append(atto_module *sequential, atto_module *child)
{
    MUST(atto_sequential_add(sequential, child));
    atto_module_free(child);
    return child;
}

static atto_var apply_pair(atto_tape *tape, const pair *p, atto_var x)
{
    return atto_apply(tape, p->norm, atto_apply(tape, p->conv, x));
}

/* ---- ResNet-20 ----
 *
 * He et al. 2015, "Deep Residual Learning for Image Recognition", section 4.2, with shortcuts that
 * have no weights. Modules are children under PyTorch's names, so that keys are those of the
 * file. */

typedef struct block {
    pair first, second;
    int64_t more; /* channels of zeros on each side of the shortcut; 0: it is the input itself */
} block;

typedef struct resnet {
    pair stem;
    atto_module *layers[3], *linear;
} resnet;

/* Every second row and column, and zeros as further channels. */
static atto_var narrow_and_widen(atto_tape *tape, atto_var x, int64_t more)
{
    const atto_avg_pool_options every_second = { .stride = { 2, 2 } };
    const int64_t channels[] = { 0, more, 0, 0 };
    x = atto_avg_pool2d(tape, x, 1, 1, &every_second);
    return atto_pad(tape, x, channels, channels, 0.0);
}

/* The second norm adds the shortcut before its ReLU. */
static atto_var block_forward(atto_module *m, atto_tape *tape, atto_var x)
{
    const block *b = atto_module_data(m);
    const atto_var inner = apply_pair(tape, &b->first, x);
    const atto_var shortcut = b->more ? narrow_and_widen(tape, x, b->more) : x;
    return atto_apply2(tape, b->second.norm, atto_apply(tape, b->second.conv, inner), shortcut);
}

static atto_var resnet_forward(atto_module *m, atto_tape *tape, atto_var x)
{
    const resnet *r = atto_module_data(m);
    const atto_reduce_options plane = { .dims = { 2, 3 }, .dim_count = 2 };
    x = apply_pair(tape, &r->stem, x);
    for (int i = 0; i < 3; i++) x = atto_apply(tape, r->layers[i], x);
    return atto_apply(tape, r->linear, atto_reduce(tape, ATTO_REDUCE_MEAN, x, &plane));
}

static const atto_module_class block_class = { .name = "BasicBlock",
                                               .forward = block_forward,
                                               .destroy = free };
static const atto_module_class resnet_class = { .name = "ResNet",
                                                .forward = resnet_forward,
                                                .destroy = free };

/* Children conv1 and bn1, or conv2 and bn2: 3 x 3 without bias, and a norm with ReLU. */
static pair resnet_pair(network *n, atto_module *parent, int number, int64_t in, int64_t out,
                        int64_t stride)
{
    const atto_conv_module_options conv = { .stride = { stride, stride },
                                            .padding = { 1, 1 },
                                            .no_bias = true };
    const atto_batch_norm_module_options norm = { .act = atto_relu() };
    pair p;
    MUST(atto_conv2d_create(test_dev, in, out, 3, 3, &conv, &p.conv));
    MUST(atto_batch_norm2d_create(test_dev, out, &norm, &p.norm));
    adopt(parent, number == 1 ? "conv1" : "conv2", p.conv);
    adopt(parent, number == 1 ? "bn1" : "bn2", p.norm);
    n->pairs[n->pair_count++] = p;
    return p;
}

static atto_module *make_block(network *n, int64_t in, int64_t out)
{
    atto_module *m;
    block *b = make_module(&block_class, sizeof *b, &m);
    b->first = resnet_pair(n, m, 1, in, out, in == out ? 1 : 2);
    b->second = resnet_pair(n, m, 2, out, out, 1);
    b->more = (out - in) / 2;
    return m;
}

static void make_resnet20(network *n)
{
    static const char *const names[] = { "layer1", "layer2", "layer3" };
    int64_t width = 16;
    resnet *r = make_module(&resnet_class, sizeof *r, &n->top);
    r->stem = resnet_pair(n, n->top, 1, 3, width, 1);
    for (int i = 0; i < 3; i++) {
        MUST(atto_sequential_create(test_dev, &r->layers[i]));
        adopt(n->top, names[i], r->layers[i]);
        for (int k = 0; k < 3; k++) {
            const int64_t in = width;
            if (i > 0 && k == 0) width *= 2;
            append(r->layers[i], make_block(n, in, width));
        }
    }
    MUST(atto_linear_create(test_dev, width, 10, NULL, &r->linear));
    adopt(n->top, "linear", r->linear);
    pretrained_load(&n->file, "", n->top);
}

/* ---- MobileNet ----
 *
 * Howard et al. 2017, "MobileNets", with a quarter of the channels. One module follows the other:
 * a Sequential, whose layers are loaded under the names that Keras has given them. */

/* Keras numbers modules of a kind: conv2d, conv2d_1, ... */
static void keras_load(network *n, const char *kind, int number, atto_module *m)
{
    char name[48];
    snprintf(name, sizeof name, "%s_%d", kind, number);
    pretrained_load(&n->file, number == 0 ? kind : name, m);
}

/* A convolution, and a norm with ReLU. TensorFlow's SAME is PyTorch's with a stride of 1; with one
 * of 2 and an even size it is a row and a column of zeros behind the image alone. */
static void keras_pair(network *n, const char *kind, int number, int64_t in, int64_t out,
                       int64_t kernel, int64_t stride, int64_t groups)
{
    const atto_conv_module_options conv = { .stride = { stride, stride },
                                            .same = stride == 1,
                                            .groups = groups };
    const atto_batch_norm_module_options norm = { .act = atto_relu(), .eps = 1e-3f };
    pair p;
    if (stride == 2) MUST(atto_sequential_zero_pad2d(n->top, 0, 1, 0, 1));
    MUST(atto_conv2d_create(test_dev, in, out, kernel, kernel, &conv, &p.conv));
    MUST(atto_batch_norm2d_create(test_dev, out, &norm, &p.norm));
    keras_load(n, kind, number, append(n->top, p.conv));
    keras_load(n, "batch_normalization", n->pair_count, append(n->top, p.norm));
    n->pairs[n->pair_count++] = p;
}

static void make_mobilenet(network *n)
{
    static const int64_t widths[] = {
        8, 16, 32, 32, 64, 64, 128, 128, 128, 128, 128, 128, 256, 256
    };
    atto_module *dense;
    MUST(atto_sequential_create(test_dev, &n->top));
    keras_pair(n, "conv2d", 0, 3, widths[0], 3, 2, 1);
    for (int i = 0; i + 1 < COUNT_OF(widths); i++) {
        const int64_t in = widths[i], out = widths[i + 1];
        keras_pair(n, "depthwise_conv2d", i, in, in, 3, i > 0 && out > in ? 2 : 1, in);
        keras_pair(n, "conv2d", i + 1, in, out, 1, 1, 1);
    }
    MUST(atto_sequential_avg_pool2d(n->top, 3, 3, NULL));
    MUST(atto_sequential_flatten(n->top, 1));
    MUST(atto_linear_create(test_dev, 256, 2, NULL, &dense));
    keras_load(n, "dense", 0, append(n->top, dense));
}

/* ---- Silero VAD ----
 *
 * Whether there is speech: spectra by a convolution, convolutions over them, and an LSTM cell
 * whose state goes from one chunk of samples to the next. */

enum { CONTEXT = 64, CHUNK = 512, BINS = 129, HIDDEN = 128, MOST_CHUNKS = 256 };

typedef struct silero {
    atto_module *stft_conv, *convs[4], *lstm_cell, *final_conv;
} silero;

/* A module that holds others; functions below do the work, since there is a state to pass on. */
static const atto_module_class silero_class = { .name = "SileroVad", .destroy = free };

static void make_silero(network *n)
{
    static const char *const names[] = { "conv1", "conv2", "conv3", "conv4" };
    static const int64_t widths[] = { BINS, 128, 64, 64, HIDDEN }, strides[] = { 1, 2, 2, 1 };
    const atto_conv_module_options stft = { .stride = { 128 }, .no_bias = true };
    const atto_conv_module_options last = { .act = atto_sigmoid() };
    silero *s = make_module(&silero_class, sizeof *s, &n->top);
    MUST(atto_conv1d_create(test_dev, 1, 2 * BINS, 256, &stft, &s->stft_conv));
    adopt(n->top, "stft_conv", s->stft_conv);
    for (int i = 0; i < 4; i++) {
        const atto_conv_module_options o = { .stride = { strides[i] },
                                             .padding = { 1 },
                                             .act = atto_relu() };
        MUST(atto_conv1d_create(test_dev, widths[i], widths[i + 1], 3, &o, &s->convs[i]));
        adopt(n->top, names[i], s->convs[i]);
    }
    MUST(atto_lstm_cell_create(test_dev, HIDDEN, HIDDEN, NULL, &s->lstm_cell));
    adopt(n->top, "lstm_cell", s->lstm_cell);
    MUST(atto_conv1d_create(test_dev, HIDDEN, 1, 1, &last, &s->final_conv));
    adopt(n->top, "final_conv", s->final_conv);
    pretrained_load(&n->file, "", n->top);
}

/* sqrt(re^2 + im^2) of the spectra's two halves: [N, 2 BINS, L] gives [N, BINS, L]. */
static atto_var magnitudes(atto_tape *tape, atto_var spectra)
{
    const int64_t halves[] = { BINS, BINS };
    atto_var part[2];
    atto_split(tape, spectra, 1, halves, 2, part);
    const atto_var squares =
        atto_add(tape, atto_mul(tape, part[0], part[0]), atto_mul(tape, part[1], part[1]));
    return atto_unary(tape, ATTO_UNARY_SQRT, squares);
}

/* [N, C, L] with channels innermost in memory: a reshape of the transposed view copies it. */
static atto_var to_channels_last(atto_tape *tape, atto_var x)
{
    atto_tensor t;
    MUST(atto_var_tensor(tape, x, &t));
    const int64_t n = t.shape[0], channels = t.shape[1], l = t.shape[2];
    x = atto_reshape(tape, atto_transpose(tape, x, 1, 2), atto_shape2(n * l, channels));
    return atto_transpose(tape, atto_reshape(tape, x, atto_shape3(n, l, channels)), 1, 2);
}

/* Chunks with their contexts, [N, 1, CONTEXT + CHUNK], to [N, HIDDEN]. */
static atto_var silero_encode(atto_tape *tape, const silero *s, atto_var x, bool channels_last)
{
    const int64_t before[] = { 0, 0, 0 }, after[] = { 0, 0, 64 };
    x = atto_pad_mode(tape, x, ATTO_PAD_REFLECT, before, after);
    x = magnitudes(tape, atto_apply(tape, s->stft_conv, x));
    if (channels_last) x = to_channels_last(tape, x);
    for (int i = 0; i < 4; i++) x = atto_apply(tape, s->convs[i], x);
    return atto_squeeze(tape, x, 2);
}

/* Hidden states, [N, HIDDEN], to probabilities, [N, 1, 1]. */
static atto_var silero_decide(atto_tape *tape, const silero *s, atto_var h)
{
    const atto_var x = atto_act(tape, h, atto_relu(), NULL);
    return atto_apply(tape, s->final_conv, atto_unsqueeze(tape, x, 2));
}

/* One chunk of a stream. h and c are the state, [1, HIDDEN], and become the new one. */
static float silero_step(atto_tape *tape, const silero *s, const float *samples, atto_tensor *h,
                         atto_tensor *c)
{
    float probability;
    const atto_var x = atto_input(tape, ATTO_F32, atto_shape3(1, 1, CONTEXT + CHUNK), samples);
    atto_var hidden = atto_borrow(tape, h, false), cell = atto_borrow(tape, c, false);
    const atto_rnn_states states = { .h = &hidden, .c = &cell, .cy = &cell };
    hidden = atto_rnn_apply(tape, s->lstm_cell, silero_encode(tape, s, x, false), &states);
    MUST(atto_var_read(tape, silero_decide(tape, s, hidden), &probability));
    atto_tensor_free(h);
    atto_tensor_free(c);
    MUST(atto_keep(tape, hidden, h));
    MUST(atto_keep(tape, cell, c));
    MUST(atto_tape_end(tape));
    return probability;
}

static atto_var use(atto_tape *tape, const atto_module *m, const char *key)
{
    atto_param *p;
    MUST(atto_module_find_param(m, key, &p));
    return atto_use(tape, p);
}

/* All chunks of a recording, [N, 1, CONTEXT + CHUNK]: one call for each layer, and the cell's
 * parameters in a network over the sequence. */
static atto_var silero_whole(atto_tape *tape, const silero *s, atto_var x, bool channels_last)
{
    const atto_var b_ih = use(tape, s->lstm_cell, "bias_ih");
    const atto_var b_hh = use(tape, s->lstm_cell, "bias_hh");
    const atto_rnn_weights weights = { .w_ih = use(tape, s->lstm_cell, "weight_ih"),
                                       .w_hh = use(tape, s->lstm_cell, "weight_hh"),
                                       .b_ih = &b_ih,
                                       .b_hh = &b_hh };
    x = atto_unsqueeze(tape, silero_encode(tape, s, x, channels_last), 1);
    return silero_decide(tape, s, atto_squeeze(tape, atto_lstm(tape, x, &weights, NULL), 1));
}

/* ---- running ---- */

static atto_tape *tape;

/* Nothing is recorded for backward. */
static int open_tape(void **state)
{
    (void)state;
    if (atto_tape_create(test_dev, &tape) != ATTO_OK) return -1;
    atto_tape_record(tape, false);
    return 0;
}

static int close_tape(void **state)
{
    (void)state;
    atto_tape_free(tape);
    return 0;
}

/* what: the line of the report at the end, which says how much of TOLERANCE was used. */
static void expect_outputs(const char *what, const float *got, const pretrained_array *a)
{
    const test_about about = { what, "", ATTO_F32, a->shape, 0 };
    double *wide = test_doubles(a->count), *want = test_doubles(a->count);
    double *allowed = test_doubles(a->count);
    float *reference = pretrained_floats(a);
    for (int64_t i = 0; i < a->count; i++) {
        wide[i] = (double)got[i];
        want[i] = (double)reference[i];
        allowed[i] = TOLERANCE;
    }
    expect_close(&about, wide, want, allowed, a->count);
    free(reference), free(wide), free(want), free(allowed);
}

static uint64_t hidden_copies(void)
{
    atto_device_stats stats;
    MUST(atto_device_stats_get(test_dev, &stats));
    return stats.hidden_copies;
}

/* Pixels of 0 to 255, [N, C, H, W] in the file, as (x / 255 - mean) / deviation of their channel.
 * channels_last: pixel by pixel in memory, as decoders write images. */
static atto_var put_images(const pretrained_array *a, const double *mean, const double *deviation,
                           bool channels_last)
{
    static const int32_t channels_first[] = { 0, 3, 1, 2 };
    const int64_t n = a->shape.dim[0], channels = a->shape.dim[1];
    const int64_t h = a->shape.dim[2], w = a->shape.dim[3], plane = h * w;
    float *pixels = pretrained_floats(a), *values = pretrained_floats(a);
    for (int64_t i = 0; i < a->count; i++) {
        const int64_t c = i / plane % channels, image = i / plane / channels;
        const int64_t at = channels_last ? (image * plane + i % plane) * channels + c : i;
        values[at] = (float)(((double)pixels[i] / 255.0 - mean[c]) / deviation[c]);
    }
    const atto_shape shape =
        channels_last ? atto_shape4(n, h, w, channels) : atto_shape4(n, channels, h, w);
    const atto_var x = atto_input(tape, ATTO_F32, shape, values);
    free(pixels), free(values);
    return channels_last ? atto_permute(tape, x, channels_first) : x;
}

/* So many of count ways are run, where a part of the cases is enough the first. */
static int ways(int count)
{
    return test_in_disguise() ? 1 : count;
}

/* In both formats, with batch norms of their own and with folded ones. No layer has to pack an
 * image. */
static void check_images(const char *name, void (*make)(network *), const double *mean,
                         const double *deviation)
{
    static network n;
    float logits[256];
    network_open(&n, name, make);
    const pretrained_array *images = pretrained_find(&n.file, "images");
    const pretrained_array *want = pretrained_find(&n.file, "logits");
    assert_true(want->count <= COUNT_OF(logits));
    for (int folded = 0; folded < 2; folded++) {
        for (int i = 0; folded && i < n.pair_count; i++)
            MUST(atto_conv_fold_batch_norm(n.pairs[i].conv, n.pairs[i].norm));
        for (int last = 0; last < ways(2); last++) {
            char what[48];
            const uint64_t copies = hidden_copies();
            const atto_var x = put_images(images, mean, deviation, last);
            MUST(atto_var_read(tape, atto_apply(tape, n.top, x), logits));
            MUST(atto_tape_end(tape));
            snprintf(what, sizeof what, "%s%s%s", name, folded ? " folded" : "",
                     last ? " last" : "");
            expect_outputs(what, logits, want);
            assert_int_equal(hidden_copies() - copies, 0);
        }
    }
    network_close(&n);
}

static void resnet20_gives_its_logits(void **state)
{
    (void)state;
    static const double mean[] = { 0.485, 0.456, 0.406 }, deviation[] = { 0.229, 0.224, 0.225 };
    check_images("resnet20_cifar10", make_resnet20, mean, deviation);
}

static void mobilenet_gives_its_logits(void **state)
{
    (void)state;
    static const double mean[] = { 0.0, 0.0, 0.0 }, deviation[] = { 1.0, 1.0, 1.0 };
    check_images("mobilenet025_vww96", make_mobilenet, mean, deviation);
}

/* The recording as [chunks, CONTEXT + CHUNK]: a chunk's context is the end of the one before it, of
 * the first one zeros. */
static float *read_chunks(const pretrained_array *a, int64_t chunks)
{
    const int64_t width = CONTEXT + CHUNK;
    float *samples = pretrained_floats(a), *out = calloc((size_t)(chunks * width), sizeof *out);
    assert_non_null(out);
    assert_int_equal(a->count, chunks * CHUNK);
    for (int64_t i = CONTEXT; i < chunks * width; i++)
        out[i] = samples[i / width * CHUNK + i % width - CONTEXT] / 32768.0f;
    free(samples);
    return out;
}

static void hear_stream(const silero *s, const float *chunks, const pretrained_array *want)
{
    float out[MOST_CHUNKS];
    atto_tensor h, c;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(1, HIDDEN), &h));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(1, HIDDEN), &c));
    MUST(atto_tensor_fill(&h, 0.0));
    MUST(atto_tensor_fill(&c, 0.0));
    for (int64_t i = 0; i < want->count; i++)
        out[i] = silero_step(tape, s, chunks + i * (CONTEXT + CHUNK), &h, &c);
    atto_tensor_free(&h);
    atto_tensor_free(&c);
    expect_outputs("silero_vad stream", out, want);
}

static void hear_whole(const silero *s, const float *chunks, const pretrained_array *want,
                       bool channels_last)
{
    float out[MOST_CHUNKS];
    const atto_shape shape = atto_shape3(want->count, 1, CONTEXT + CHUNK);
    const atto_var x = atto_input(tape, ATTO_F32, shape, chunks);
    MUST(atto_var_read(tape, silero_whole(tape, s, x, channels_last), out));
    MUST(atto_tape_end(tape));
    expect_outputs(channels_last ? "silero_vad whole last" : "silero_vad whole", out, want);
}

static void silero_vad_gives_its_probabilities(void **state)
{
    (void)state;
    static network n;
    network_open(&n, "silero_vad_16k", make_silero);
    const silero *s = atto_module_data(n.top);
    const pretrained_array *want = pretrained_find(&n.file, "probabilities");
    assert_true(want->count <= MOST_CHUNKS);
    float *chunks = read_chunks(pretrained_find(&n.file, "samples"), want->count);
    hear_stream(s, chunks, want);
    for (int way = 1; way < ways(3); way++) hear_whole(s, chunks, want, way == 2);
    free(chunks);
    network_close(&n);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(resnet20_gives_its_logits, open_tape, close_tape),
    cmocka_unit_test_setup_teardown(mobilenet_gives_its_logits, open_tape, close_tape),
    cmocka_unit_test_setup_teardown(silero_vad_gives_its_probabilities, open_tape, close_tape),
};

TEST_MAIN("pretrained", tests)
