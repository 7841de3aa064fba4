/* SPDX-License-Identifier: MIT */
/* Measured choices: what is chosen when, what a measurement refuses, what is remembered, and
 * CLBlast as one of the ways to multiply. */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "alloc.h"
#include "atto_test.h"
#include "device.h"
#include "tune_call.h"

#define N 1000

/* ---- what the library says ---- */

static char said[1 << 16];

static void listen(void *data, atto_log_level level, const char *message)
{
    (void)data;
    (void)level;
    const size_t used = strlen(said);
    snprintf(said + used, sizeof said - used, "%s\n", message);
}

/* ---- a table without a device ---- */

static atto__choice choice_of(int64_t a, int64_t b)
{
    return (atto__choice){ ATTO_CHOICE_GEMM, ATTO_F32, { a, b } };
}

static void tune_sizes_count_up_to_powers_of_two(void **state)
{
    (void)state;
    const atto__choice exact = choice_of(4096, 1);
    const struct {
        int64_t a, b;
        bool same;
    } others[] = { { 4095, 1, true },      { 2049, 1, true },  { 2048, 1, false },
                   { 4097, 1, false },     { 4096, 0, false }, { 4096, 2, false },
                   { INT64_MAX, 1, false } };
    for (int i = 0; i < COUNT_OF(others); i++) {
        const atto__choice other = choice_of(others[i].a, others[i].b);
        assert_int_equal(atto__choice_key(&exact) == atto__choice_key(&other), others[i].same);
    }
    atto__choice half = exact;
    half.dtype = ATTO_F16;
    assert_true(atto__choice_key(&exact) != atto__choice_key(&half));
}

static void enter(atto__tuner *tuner, uint64_t key, int32_t number, atto__source source)
{
    const atto__tuned entry = { key, { { number }, 0 }, source, 0 };
    assert_true(atto__tuner_enter(tuner, ATTO_CHOICE_GEMM, &entry));
}

static int32_t known(const atto__tuner *tuner, uint64_t key)
{
    const atto__tuned *entry = atto__tuner_find(tuner, ATTO_CHOICE_GEMM, key);
    return entry ? entry->way.number[0] : -1;
}

static void drop_entries(atto__tuner *tuner)
{
    for (int i = 0; i < ATTO_CHOICE_COUNT; i++) atto__free(tuner->known[i].list);
    memset(tuner, 0, sizeof *tuner);
}

static void tune_lets_the_first_source_count(void **state)
{
    (void)state;
    atto__tuner tuner = { 0 };
    for (uint64_t key = 0; key < 100; key++) {
        enter(&tuner, key, 1, ATTO_FROM_FILE);
        enter(&tuner, key, 2, ATTO_FROM_BUILTIN);
    }
    assert_int_equal(tuner.known[ATTO_CHOICE_GEMM].count, 100);
    assert_int_equal(known(&tuner, 99), 1);
    enter(&tuner, 99, 3, ATTO_FROM_DEVICE);
    enter(&tuner, 99, 1, ATTO_FROM_FILE);
    assert_int_equal(known(&tuner, 99), 3);
    assert_int_equal(known(&tuner, 100), -1);
    drop_entries(&tuner);
}

static void tune_skips_lines_that_are_none(void **state)
{
    (void)state;
    static const char text[] = "# a comment\n"
                               "gemm f32 8 8 8 1 5 0 0 0\n"
                               "gemm f32 8 8 8 1 6 0 0\n"    /* a number is missing */
                               "gemm f8 16 8 8 1 7 0 0 0\n"  /* no dtype */
                               "game f32 16 8 8 1 7 0 0 0\n" /* no choice */
                               "gemm f32 16 x 8 1 7 0 0 0\n" /* no number */
                               "gemm f32 99999999999999999999999999 8 8 1 7 0 0 0\n"
                               "\n\n   \n"
                               "gemm f32 32 8 8 1 9 0 0 0"; /* without an end */
    atto__tuner tuner = { 0 };
    char line[400];
    memset(line, 'g', sizeof line - 1);
    line[sizeof line - 1] = '\0';
    atto__tuner_read(&tuner, line, ATTO_FROM_FILE);
    assert_int_equal(tuner.known[ATTO_CHOICE_GEMM].count, 0);
    atto__tuner_read(&tuner, text, ATTO_FROM_FILE);
    atto__choice choice = { ATTO_CHOICE_GEMM, ATTO_F32, { 8, 8, 8, 1 } };
    assert_int_equal(known(&tuner, atto__choice_key(&choice)), 5);
    choice.size[0] = 32;
    assert_int_equal(known(&tuner, atto__choice_key(&choice)), 9);
    choice.size[0] = 16;
    assert_int_equal(known(&tuner, atto__choice_key(&choice)), -1);
    drop_entries(&tuner);
}

static void tune_results_agree_within_roundings(void **state)
{
    (void)state;
    const float expected[4] = { 1.0f, -100.0f, NAN, INFINITY };
    const struct {
        float got[4];
        bool agrees;
    } cases[] = {
        { { 1.0f, -100.0f, NAN, INFINITY }, true },
        { { 1.001f, -100.0f, NAN, INFINITY }, true }, /* a share of the largest, 100 */
        { { 1.0f, -99.0f, NAN, INFINITY }, false },   /* wrong by 1e-2 */
        { { 1.0f, -100.0f, 0.0f, INFINITY }, false },
        { { NAN, -100.0f, NAN, INFINITY }, false },
        { { 1.0f, -100.0f, NAN, -INFINITY }, false },
        { { 1.0f, -100.0f, NAN, 1e30f }, false },
    };
    for (int i = 0; i < COUNT_OF(cases); i++)
        assert_int_equal(atto__results_agree(ATTO_F32, expected, cases[i].got, 4, false),
                         cases[i].agrees);
    assert_false(atto__results_agree(ATTO_F32, expected, cases[1].got, 4, true));
    assert_false(atto__results_agree(ATTO_I32, (int32_t[]){ 3 }, (int32_t[]){ 4 }, 1, false));
}

/* ---- a backend that misbehaves ----
 *
 * The CPU backend, but y = relu(x) comes in ways of the test's own. */

typedef enum misdeed { FINE, SLOW, FAST, NOT_A_NUMBER, OFF, BROKEN, LAZY, SAME_AS_FAST } misdeed;

static misdeed offered[8];
static int32_t offered_count, used[SAME_AS_FAST + 1];
static atto__vtable bad_backend;

/* What the ways take is counted, not measured: a busy machine changes nothing. */
static double counted_seconds;

static double counted_clock(void)
{
    return counted_seconds;
}

static void write_relu(const struct atto_act_args *a, double error)
{
    const float *x = (const float *)atto__memory(a->x) + a->x->offset;
    float *y = (float *)atto__memory(a->y) + a->y->offset;
    for (int64_t i = 0; i < atto_tensor_numel(a->y); i++) y[i] = x[i] > 0.0f ? x[i] : 0.0f;
    y[N / 2] += (float)error;
}

static atto_status bad_relu(atto_device *dev, const struct atto_act_args *a,
                            const atto__layout *layout)
{
    (void)layout;
    const atto__choice choice = { ATTO_CHOICE_ELEMENTWISE, ATTO_F32, { N } };
    atto__ways ways;
    ways.count = 0;
    for (int32_t i = 0; i < offered_count; i++)
        atto__ways_add(&ways, &(atto__way){ .number = { offered[i] }, .order = offered[i] >= OFF });
    const misdeed deed = (misdeed)atto__choose(dev, &choice, &ways).number[0];
    used[deed]++;
    if (deed == BROKEN) return atto__fail(ATTO_E_BUILD, "no such kernel");
    counted_seconds += deed == SLOW ? 8e-4 : deed == FINE ? 4e-4 : 5e-5;
    if (deed != LAZY) write_relu(a, deed == OFF ? 1e-2 : deed == NOT_A_NUMBER ? (double)NAN : 0.0);
    return ATTO_OK;
}

/* A CPU device with that backend. */
static atto_device *open_bad(bool first_use)
{
    atto_device *dev;
    const atto_device_options options = {
        .ignore_environment = true, .no_cache = true, .tune_on_first_use = first_use, .log = listen
    };
    said[0] = '\0';
    memset(used, 0, sizeof used);
    MUST(atto_device_open("cpu", &options, &dev));
    bad_backend = *dev->vt;
    bad_backend.act_forward = bad_relu;
    dev->vt = &bad_backend;
    MUST(atto__tuner_open(dev));
    dev->tuner->clock = counted_clock;
    return dev;
}

static void offer(const misdeed *deeds, int32_t count)
{
    memcpy(offered, deeds, (size_t)count * sizeof *deeds);
    offered_count = count;
}
#define OFFER(...) \
    offer((const misdeed[]){ __VA_ARGS__ }, COUNT_OF(((const misdeed[]){ __VA_ARGS__ })))

/* Runs relu once and checks it. */
static void run_relu(atto_device *dev)
{
    float data[N];
    atto_tensor x, y;
    for (int i = 0; i < N; i++) data[i] = (float)(i % 7) / 3.0f - 1.0f;
    MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(N), &x));
    MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(N), &y));
    MUST(atto_tensor_write(&x, data));
    MUST(atto_tensor_fill(&y, 77.0));
    const struct atto_act_args a = { .x = &x, .y = &y, .act = atto_relu() };
    MUST(atto_act_forward(dev, &a));
    MUST(atto_tensor_read(&y, data));
    for (int i = 0; i < N; i++) {
        const float v = (float)(i % 7) / 3.0f - 1.0f;
        assert_float_equal(data[i], v > 0.0f ? v : 0.0f, 0.0);
    }
    atto_tensor_free(&x);
    atto_tensor_free(&y);
}

/* The way that a call takes afterwards. */
static misdeed way_now(atto_device *dev)
{
    memset(used, 0, sizeof used);
    run_relu(dev);
    for (int i = 0; i <= SAME_AS_FAST; i++)
        if (used[i]) return (misdeed)i;
    return FINE;
}

static void tune_takes_a_faster_way(void **state)
{
    (void)state;
    atto_device *dev = open_bad(false);
    OFFER(FINE, SLOW, FAST);
    run_relu(dev);
    assert_int_equal(used[SLOW] + used[FAST], 0); /* nothing is measured unasked */
    MUST(atto_device_tune(dev, true));
    run_relu(dev);
    assert_non_null(strstr(said, "elementwise f32 1000 0 0 0: vectors 2"));
    const int32_t fast = used[FAST];
    run_relu(dev); /* known now */
    assert_int_equal(used[FAST], fast + 1);
    MUST(atto_device_tune(dev, false));
    assert_int_equal(way_now(dev), FAST);
    atto_device_close(dev);
}

static void tune_refuses_wrong_and_failing_ways(void **state)
{
    (void)state;
    static const misdeed deeds[] = { NOT_A_NUMBER, OFF, BROKEN, LAZY };
    for (int i = 0; i < COUNT_OF(deeds); i++) {
        atto_device *dev = open_bad(false);
        OFFER(FINE, deeds[i]);
        MUST(atto_device_tune(dev, true));
        run_relu(dev);
        assert_true(used[deeds[i]] > 0);
        assert_non_null(
            strstr(said, deeds[i] == BROKEN ? "0 wrong, 1 failed" : "1 wrong, 0 failed"));
        MUST(atto_device_tune(dev, false));
        assert_int_equal(way_now(dev), FINE);
        atto_device_close(dev);
    }
    atto_device *dev = open_bad(false);
    OFFER(FINE, NOT_A_NUMBER, OFF, BROKEN, SLOW, LAZY, FAST);
    MUST(atto_device_tune(dev, true));
    run_relu(dev);
    MUST(atto_device_tune(dev, false));
    assert_int_equal(way_now(dev), FAST);
    atto_device_close(dev);
}

/* SAME_AS_FAST has another order of sums; what has been measured once stays. */
static void tune_on_first_use_keeps_the_bits(void **state)
{
    (void)state;
    atto_device *dev = open_bad(true);
    OFFER(FINE, SAME_AS_FAST);
    run_relu(dev);
    assert_int_equal(used[SAME_AS_FAST], 0);
    OFFER(FINE, FAST, SAME_AS_FAST);
    assert_int_equal(way_now(dev), FINE);
    atto_device_close(dev);

    dev = open_bad(true);
    run_relu(dev);
    assert_int_equal(way_now(dev), FAST);
    assert_int_equal(used[SAME_AS_FAST], 0);
    MUST(atto_device_tune(dev, true)); /* says that all may be tried */
    run_relu(dev);
    assert_true(used[SAME_AS_FAST] > 0);
    atto_device_close(dev);
}

static void tune_does_not_take_unknown_ways(void **state)
{
    (void)state;
    atto_device *dev = open_bad(false);
    atto__tuner_read(dev->tuner, "elementwise f32 1000 0 0 0 4711 0 0 0", ATTO_FROM_FILE);
    OFFER(FINE, SLOW);
    assert_int_equal(way_now(dev), FINE);
    atto_device_close(dev);
}

/* ---- a real device ---- */

static char *make_folder(void)
{
    static char folder[32];
    snprintf(folder, sizeof folder, "/tmp/atto-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    return folder;
}

static void remove_folder(const char *folder)
{
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    closedir(d);
    rmdir(folder);
}

/* The path of the file with what was tuned, or "". */
static const char *tuning_in(const char *folder)
{
    static char path[600];
    path[0] = '\0';
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d))
        if (strncmp(e->d_name, "tuning-", 7) == 0)
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
    closedir(d);
    return path;
}

/* folder NULL: nothing is read or written. */
static atto_device *open_in(const char *folder, const char *clblast, bool first_use)
{
    atto_device *dev;
    const atto_device_options options = { .ignore_environment = true, /* it names a folder, too */
                                          .cache_dir = folder,
                                          .no_cache = !folder,
                                          .clblast = clblast,
                                          .tune_on_first_use = first_use,
                                          .no_fallback = true,
                                          .log = listen };
    said[0] = '\0';
    MUST(atto_device_open(test_device_name(), &options, &dev));
    return dev;
}

/* Gradients through a layer of 24 x 20 x 40 with bias and GELU, dx and dw added to what is there:
 * y, dx, dw, db. */
typedef struct layer {
    float y[24 * 20], dx[24 * 40], dw[20 * 40], db[20];
} layer;

static void make(atto_device *dev, atto_shape shape, uint64_t seed, atto_tensor *out)
{
    const int64_t n = shape.dim[0] * (shape.rank > 1 ? shape.dim[1] : 1);
    double values[24 * 40];
    float data[24 * 40];
    test_uniform(seed, -1.0, 1.0, ATTO_F32, values, n);
    for (int64_t i = 0; i < n; i++) data[i] = (float)values[i];
    MUST(atto_tensor_alloc(dev, ATTO_F32, shape, out));
    MUST(atto_tensor_write(out, data));
}

static void run_layer(atto_device *dev, layer *out)
{
    enum { X, W, B, Y, Z, DY, DX, DW, DB, COUNT };
    const atto_shape shapes[COUNT] = { atto_shape2(24, 40), atto_shape2(20, 40),
                                       atto_shape1(20),     atto_shape2(24, 20),
                                       atto_shape2(24, 20), atto_shape2(24, 20),
                                       atto_shape2(24, 40), atto_shape2(20, 40),
                                       atto_shape1(20) };
    atto_tensor t[COUNT];
    for (int i = 0; i < COUNT; i++) make(dev, shapes[i], (uint64_t)i, &t[i]);
    struct atto_linear_args a = {
        .x = &t[X], .w = &t[W], .b = &t[B], .y = &t[Y], .z = &t[Z], .act = atto_gelu()
    };
    MUST(atto_linear_forward(dev, &a));
    a = (struct atto_linear_args){ .x = &t[X],
                                   .w = &t[W],
                                   .dy = &t[DY],
                                   .dx = &t[DX],
                                   .dw = &t[DW],
                                   .db = &t[DB],
                                   .add_dx = true,
                                   .add_dw = true };
    MUST(atto_linear_backward(dev, &a));
    MUST(atto_tensor_read(&t[Y], out->y));
    MUST(atto_tensor_read(&t[DX], out->dx));
    MUST(atto_tensor_read(&t[DW], out->dw));
    MUST(atto_tensor_read(&t[DB], out->db));
    for (int i = 0; i < COUNT; i++) atto_tensor_free(&t[i]);
}

/* Sums of at most 40 products of numbers up to 1: no two orders differ by more than 40 roundings of
 * 40. */
static void expect_near(const layer *a, const layer *b)
{
    const float *x = a->y, *y = b->y;
    for (size_t i = 0; i < sizeof *a / sizeof *x; i++)
        assert_float_equal(x[i], y[i], 40 * 40 * 0x1p-23);
}

static bool has_choices(void)
{
    if (test_on_opencl()) return true;
    printf("           skipped: the CPU backend has nothing to choose\n");
    return false;
}

static void tune_is_remembered(void **state)
{
    (void)state;
    if (!has_choices()) return;
    char *folder = make_folder();
    layer plain, tuned, later;
    atto_device *dev = open_in(folder, "0", false);
    run_layer(dev, &plain);
    MUST(atto_device_tune(dev, true));
    run_layer(dev, &tuned);
    expect_near(&plain, &tuned);
    assert_non_null(strstr(said, "gemm f32 24 20 40 1: "));
    assert_string_equal(tuning_in(folder), "");
    MUST(atto_device_tune(dev, false));
    assert_string_not_equal(tuning_in(folder), "");
    run_layer(dev, &tuned);
    atto_device_close(dev);

    dev = open_in(folder, "0", false);
    assert_true(dev->tuner->known[ATTO_CHOICE_GEMM].count >= 3);
    run_layer(dev, &later);
    assert_memory_equal(&tuned, &later, sizeof tuned);
    assert_null(strstr(said, "ms, default"));
    atto_device_close(dev);

    FILE *file = fopen(tuning_in(folder), "w"); /* damage is as good as nothing */
    assert_non_null(file);
    fputs("gemm f32 32 32 64 1 -7 99 1000000 3\ngemm f32 32 32 64 4 0 -1 0 0\nxyz", file);
    fclose(file);
    dev = open_in(folder, "0", false);
    run_layer(dev, &later);
    assert_memory_equal(&plain, &later, sizeof plain);
    atto_device_close(dev);
    remove_folder(folder);
}

static void tune_on_first_use_leaves_results_alone(void **state)
{
    (void)state;
    if (!has_choices()) return;
    char *folder = make_folder();
    layer plain, tuned;
    atto_device *dev = open_in(folder, "0", false);
    run_layer(dev, &plain);
    atto_device_close(dev);
    dev = open_in(folder, "0", true);
    run_layer(dev, &tuned);
    assert_memory_equal(&plain, &tuned, sizeof plain);
    atto_device_close(dev); /* which writes, too */
    assert_string_not_equal(tuning_in(folder), "");
    remove_folder(folder);
}

static void tune_writes_no_file_without_a_cache(void **state)
{
    (void)state;
    if (!has_choices()) return;
    char *folder = make_folder();
    atto_device *dev;
    const atto_device_options options = { .ignore_environment = true,
                                          .cache_dir = folder,
                                          .no_cache = true };
    layer out;
    MUST(atto_device_open(test_device_name(), &options, &dev));
    MUST(atto_device_tune(dev, true));
    run_layer(dev, &out);
    MUST(atto_device_tune(dev, false));
    atto_device_close(dev);
    assert_string_equal(tuning_in(folder), "");
    remove_folder(folder);
}

static void tune_refuses_null(void **state)
{
    (void)state;
    EXPECT_FAIL(atto_device_tune(NULL, true), ATTO_E_NULL, "device_tune|dev");
}

/* ---- ops whose ways all have the same bits ---- */

#define CHANNELS    8
#define MOST_VALUES (2 * CHANNELS * 19 * 16)

/* Maxima of 3 x 3, vertical stride 2, of two images of h x w whose channels lie innermost. */
typedef struct maxima {
    int64_t h, w, padding, stride;
    bool ceil_mode;
    atto_dtype dtype, index;
    int32_t down, group; /* of the way to compare with */
} maxima;

/* Whole numbers, -infinity and NaN: most windows have equal maxima, some nothing else. */
static void make_image(atto_device *dev, atto_dtype dtype, int64_t h, int64_t w, atto_tensor *out)
{
    static double values[MOST_VALUES];
    static float data[MOST_VALUES];
    const int32_t order[] = { 0, 3, 1, 2 };
    const atto_shape shape = atto_shape4(2, h, w, CHANNELS);
    const int64_t n = 2 * h * w * CHANNELS;
    atto_tensor numbers;
    test_uniform(7, -2.0, 2.0, ATTO_F32, values, n);
    for (int64_t i = 0; i < n; i++)
        data[i] = i % 67 == 5 ? NAN : i % 1000 < 300 ? -INFINITY : floorf((float)values[i]);
    MUST(atto_tensor_alloc(dev, ATTO_F32, shape, &numbers));
    MUST(atto_tensor_write(&numbers, data));
    MUST(atto_tensor_alloc(dev, dtype, shape, out));
    MUST(atto_tensor_copy(out, &numbers));
    MUST(atto_tensor_permute(out, order, out));
    atto_tensor_free(&numbers);
}

/* Outputs along an axis; padding is at most 1, so that no window begins behind it. */
static int64_t outputs_of(const maxima *m, int64_t in, int64_t stride)
{
    const int64_t steps = in + 2 * m->padding - 3;
    return (m->ceil_mode ? (steps + stride - 1) / stride : steps / stride) + 1;
}

/* y, then indices, as they are stored. */
static void run_maxima(atto_device *dev, const maxima *m, unsigned char *out)
{
    const int64_t oh = outputs_of(m, m->h, 2), ow = outputs_of(m, m->w, m->stride);
    atto_tensor x, y, indices;
    make_image(dev, m->dtype, m->h, m->w, &x);
    make_image(dev, m->dtype, oh, ow, &y);
    make_image(dev, m->index, oh, ow, &indices);
    const struct atto_max_pool_args a = { .x = &x,
                                          .y = &y,
                                          .indices = &indices,
                                          .window = { .dims = 2,
                                                      .kernel = { 3, 3 },
                                                      .stride = { 2, m->stride },
                                                      .padding = { m->padding, m->padding },
                                                      .dilation = { 1, 1 },
                                                      .ceil_mode = m->ceil_mode } };
    MUST(atto_max_pool_forward(dev, &a));
    MUST(atto_tensor_read(&y, out));
    MUST(atto_tensor_read(&indices,
                          out + atto_tensor_numel(&y) * (int64_t)atto_dtype_size(m->dtype)));
    atto_tensor_free(&x);
    atto_tensor_free(&y);
    atto_tensor_free(&indices);
}

/* Heights that outputs below each other divide and do not, windows that reach over each edge and
 * none. */
static void max_pool_shares_rows_bit_for_bit(void **state)
{
    (void)state;
    static const maxima rows[] = {
        { 16, 9, 1, 2, false, ATTO_F32, ATTO_I32, 4, 0 },
        { 13, 8, 1, 2, false, ATTO_BF16, ATTO_I64, 2, 0 },
        { 15, 10, 0, 3, false, ATTO_F16, ATTO_I32, 8, 64 },
        { 18, 7, 0, 1, true, ATTO_F32, ATTO_I64, 1, 0 },
        { 3, 16, 1, 2, true, ATTO_BF16, ATTO_I32, 4, 0 },
    };
    static unsigned char plain[10 * MOST_VALUES], shared[10 * MOST_VALUES];
    if (!has_choices()) return;
    for (int i = 0; i < COUNT_OF(rows); i++) {
        const maxima *m = &rows[i];
        const int64_t n = outputs_of(m, m->h, 2) * outputs_of(m, m->w, m->stride) * 2 * CHANNELS;
        char line[120];
        snprintf(line, sizeof line, "pool_forward %s %d %d 9 %d %d %d 0 0",
                 atto_dtype_name(m->dtype), (int)(m->h * m->w * 2 * CHANNELS), (int)n,
                 1 << (1 + 2 + (m->index == ATTO_I64 ? 8 : 4)), (int)m->down, (int)m->group);
        memset(plain, 0, sizeof plain);
        memset(shared, 0, sizeof shared);
        atto_device *dev = open_in(NULL, "0", false);
        run_maxima(dev, m, plain);
        assert_null(strstr(said, "atto_pool_forward_down"));
        atto__tuner_read(dev->tuner, line, ATTO_FROM_FILE);
        run_maxima(dev, m, shared);
        assert_non_null(strstr(said, "built atto_pool_forward_down"));
        assert_memory_equal(plain, shared, sizeof plain);
        atto_device_close(dev);
    }
}

/* Gradients of a mean of whole images and of a gated unit of 5 x 2 x 48. */
static void run_mean_and_gate(atto_device *dev)
{
    atto_tensor x, dx, dy;
    make_image(dev, ATTO_F32, 5, 6, &dx);
    make_image(dev, ATTO_F32, 1, 1, &dy);
    const struct atto_avg_pool_args mean = {
        .dy = &dy, .dx = &dx, .add_dx = true, .window = { .dims = 2, .adaptive = true }
    };
    MUST(atto_avg_pool_backward(dev, &mean));
    atto_tensor_free(&dx);
    atto_tensor_free(&dy);
    make(dev, atto_shape2(5, 96), 1, &x);
    make(dev, atto_shape2(5, 96), 2, &dx);
    make(dev, atto_shape2(5, 48), 3, &dy);
    struct atto_glu_args gate = { .x = &x, .y = &dy, .dim = 1, .act = atto_silu() };
    MUST(atto_glu_forward(dev, &gate));
    gate = (struct atto_glu_args){ .x = &x, .dy = &dy, .dx = &dx, .dim = 1, .act = atto_silu() };
    MUST(atto_glu_backward(dev, &gate));
    atto_tensor_free(&x);
    atto_tensor_free(&dx);
    atto_tensor_free(&dy);
}

/* A small device has few work-groups to try. */
static void tune_finds_all_ways_of_pooling_and_glu_alike(void **state)
{
    (void)state;
    static const char *const choices[] = {
        "pool_forward f32 2304 640 9 128: ", "pool_backward f32 480 16 30 4: ",
        "glu_forward f32 60 4 0 0: ", "glu_backward f32 60 4 0 0: "
    };
    static const char *const ways[] = { "(10 ways)", "(8 ways)", "(6 ways)", "(6 ways)" };
    static unsigned char out[10 * MOST_VALUES];
    const maxima m = { 16, 9, 1, 2, false, ATTO_F32, ATTO_I32, 0, 0 };
    const atto_device_options options = {
        .ignore_environment = true, .no_cache = true, .max_work_group = 128, .log = listen
    };
    if (!has_choices()) return;
    atto_device *dev;
    said[0] = '\0';
    MUST(atto_device_open(test_device_name(), &options, &dev));
    MUST(atto_device_tune(dev, true));
    run_maxima(dev, &m, out);
    run_mean_and_gate(dev);
    for (int i = 0; i < COUNT_OF(choices); i++) {
        const char *line = strstr(said, choices[i]);
        assert_non_null(line);
        assert_non_null(strstr(line, ways[i]));
    }
    assert_null(strstr(said, " wrong, ")); /* nor failed */
    atto_device_close(dev);
}

/* A mean and its gradient over 5 x 2 x 48, batch norm over two images of 8 channels. */
static void run_loss_and_norm(atto_device *dev)
{
    atto_tensor x, dx, target, loss, w, mean, rstd;
    make(dev, atto_shape2(10, 48), 1, &x);
    make(dev, atto_shape2(10, 48), 7, &dx);
    make(dev, atto_shape2(10, 48), 2, &target);
    make(dev, atto_shape0(), 3, &loss);
    make(dev, atto_shape1(8), 4, &w);
    make(dev, atto_shape1(8), 5, &mean);
    make(dev, atto_shape1(8), 6, &rstd);
    struct atto_loss_args a = { .x = &x, .target = &target, .loss = &loss };
    a.reduction = ATTO_REDUCTION_MEAN;
    MUST(atto_loss_forward(dev, &a));
    a = (struct atto_loss_args){ .x = &x, .target = &target, .dloss = &loss, .dx = &dx };
    a.reduction = ATTO_REDUCTION_MEAN;
    MUST(atto_loss_backward(dev, &a));
    atto_tensor images = x, y = dx;
    images.rank = y.rank = 3;
    images.shape[0] = y.shape[0] = 2, images.shape[1] = y.shape[1] = 8;
    images.shape[2] = y.shape[2] = 30;
    images.stride[0] = y.stride[0] = 240, images.stride[1] = y.stride[1] = 30;
    images.stride[2] = y.stride[2] = 1;
    const struct atto_batch_norm_args norm = {
        .x = &images, .y = &y, .w = &w, .mean = &mean, .rstd = &rstd, .training = true, .eps = 1e-5f
    };
    MUST(atto_batch_norm_forward(dev, &norm));
    atto_tensor *const all[] = { &x, &dx, &target, &loss, &w, &mean, &rstd };
    for (int i = 0; i < COUNT_OF(all); i++) atto_tensor_free(all[i]);
}

static void tune_finds_ways_of_losses_and_channels(void **state)
{
    (void)state;
    static const char *const lines[] = { "loss f32 120 2 0 0: ", "loss f32 120 4 0 0: ",
                                         "channels f32 480 8 60 1: " };
    static const char *const ways[] = { "(3 ways)", "(3 ways)", "(5 ways)" };
    const atto_device_options options = { .ignore_environment = true,
                                          .no_cache = true,
                                          .log = listen };
    if (!has_choices()) return;
    atto_device *dev;
    said[0] = '\0';
    MUST(atto_device_open(test_device_name(), &options, &dev));
    MUST(atto_device_tune(dev, true));
    run_loss_and_norm(dev);
    for (int i = 0; i < COUNT_OF(lines); i++) {
        const char *line = strstr(said, lines[i]);
        assert_non_null(line);
        assert_non_null(strstr(line, ways[i]));
    }
    assert_null(strstr(said, " wrong, ")); /* nor failed */
    atto_device_close(dev);
}

/* ---- CLBlast ---- */

/* The layer's products shall go to CLBlast. */
static const char clblast_lines[] = "gemm f32 24 20 40 1 2 0 1 0\n"
                                    "gemm f32 24 40 20 4 2 0 1 0\n"
                                    "gemm f32 20 40 24 8 2 0 1 0\n";

#ifdef FAKE_CLBLAST_PATH
static int32_t fake_calls(void)
{
    void *library = dlopen(FAKE_CLBLAST_PATH, RTLD_NOW);
    assert_non_null(library);
    const int *calls = dlsym(library, "fake_clblast_calls");
    assert_non_null(calls);
    return *calls; /* stays loaded */
}

static void run_with(const char *library, const char *mode, layer *out)
{
    setenv("FAKE_CLBLAST", mode, 1);
    atto_device *dev = open_in(NULL, library, false);
    atto__tuner_read(dev->tuner, clblast_lines, ATTO_FROM_FILE);
    run_layer(dev, out);
    run_layer(dev, out);
    atto_device_close(dev);
    unsetenv("FAKE_CLBLAST");
}

static void clblast_multiplies_where_it_was_faster(void **state)
{
    (void)state;
    if (!has_choices()) return;
    layer plain, product;
    run_with("0", "right", &plain);
    const int32_t before = fake_calls();
    run_with(FAKE_CLBLAST_PATH, "right", &product);
    assert_int_equal(fake_calls() - before, 260 + 2 * 3); /* its test, and the layer's twice */
    expect_near(&plain, &product);
    assert_null(strstr(said, "CLBlast is not used"));
}

static void clblast_that_computes_wrong_is_noticed(void **state)
{
    (void)state;
    static const char *const modes[] = { "wrong", "nan", "fails" };
    if (!has_choices()) return;
    layer plain, product;
    run_with("0", "right", &plain);
    for (int i = 0; i < COUNT_OF(modes); i++) {
        const int32_t before = fake_calls();
        run_with(FAKE_CLBLAST_PATH, modes[i], &product);
        assert_memory_equal(&plain, &product, sizeof plain);
        assert_non_null(strstr(said, "CLBlast is not used"));
        assert_true(fake_calls() - before <= 1); /* and not called again */
    }
}

static void tune_notices_wrong_products_of_clblast(void **state)
{
    (void)state;
    if (!has_choices()) return;
    layer out;
    setenv("FAKE_CLBLAST", "right", 1);
    atto_device *dev = open_in(NULL, FAKE_CLBLAST_PATH, false);
    atto__tuner_read(dev->tuner, clblast_lines, ATTO_FROM_FILE);
    run_layer(dev, &out); /* passes the library's test */
    setenv("FAKE_CLBLAST", "wrong", 1);
    MUST(atto_device_tune(dev, true));
    run_layer(dev, &out);
    assert_non_null(strstr(said, "engine 2 tile 0 slices 1 computes something else"));
    atto_device_close(dev);
    unsetenv("FAKE_CLBLAST");
}
#endif

static void without_clblast_nothing_is_missing(void **state)
{
    (void)state;
    if (!has_choices()) return;
    layer plain, product;
    atto_device *dev = open_in(NULL, "0", false);
    run_layer(dev, &plain);
    atto_device_close(dev);
    dev = open_in(NULL, "/no/such/library.so", false);
    atto__tuner_read(dev->tuner, clblast_lines, ATTO_FROM_FILE);
    run_layer(dev, &product);
    assert_memory_equal(&plain, &product, sizeof plain);
    atto_device_close(dev);
}

static void clblast_itself_is_right_or_refused(void **state)
{
    (void)state;
    if (!has_choices()) return;
    void *library = dlopen("libclblast.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("           skipped: libclblast.so.1 is not installed\n");
        return;
    }
    dlclose(library);
    layer plain, product;
    atto_device *dev = open_in(NULL, "0", false);
    run_layer(dev, &plain);
    atto_device_close(dev);
    dev = open_in(NULL, "libclblast.so.1", false);
    atto__tuner_read(dev->tuner, clblast_lines, ATTO_FROM_FILE);
    run_layer(dev, &product);
    expect_near(&plain, &product);
    printf("           CLBlast is %s\n", strstr(said, "CLBlast is not used") ? "refused" : "used");
    atto_device_close(dev);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(tune_sizes_count_up_to_powers_of_two),
    cmocka_unit_test(tune_lets_the_first_source_count),
    cmocka_unit_test(tune_skips_lines_that_are_none),
    cmocka_unit_test(tune_results_agree_within_roundings),
    cmocka_unit_test(tune_takes_a_faster_way),
    cmocka_unit_test(tune_refuses_wrong_and_failing_ways),
    cmocka_unit_test(tune_on_first_use_keeps_the_bits),
    cmocka_unit_test(tune_does_not_take_unknown_ways),
    cmocka_unit_test(tune_is_remembered),
    cmocka_unit_test(tune_on_first_use_leaves_results_alone),
    cmocka_unit_test(tune_writes_no_file_without_a_cache),
    cmocka_unit_test(tune_refuses_null),
    cmocka_unit_test(max_pool_shares_rows_bit_for_bit),
    cmocka_unit_test(tune_finds_all_ways_of_pooling_and_glu_alike),
    cmocka_unit_test(tune_finds_ways_of_losses_and_channels),
#ifdef FAKE_CLBLAST_PATH
    cmocka_unit_test(clblast_multiplies_where_it_was_faster),
    cmocka_unit_test(clblast_that_computes_wrong_is_noticed),
    cmocka_unit_test(tune_notices_wrong_products_of_clblast),
#endif
    cmocka_unit_test(without_clblast_nothing_is_missing),
    cmocka_unit_test(clblast_itself_is_right_or_refused),
};
TEST_MAIN("tune", tests)
