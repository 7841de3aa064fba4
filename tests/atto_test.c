/* SPDX-License-Identifier: MIT */
/* Device, tensors, data and comparison of atto_test.h. */
#define _POSIX_C_SOURCE 200809L
#include "atto_test.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SKIPPED     77
#define GUARD       64 /* canary elements before and after the room of a view */
#define CANARY_BYTE 0xA5
#define WORST_LIMIT 160
#define TEXT_SIZE   256

/* Read by the run time of a sanitizer, if there is one. Tests ask for more memory than there is. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

/* Leaks that are not ours: OpenCL drivers and the compilers inside them. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libpocl\nleak:libLLVM\nleak:libclang-cpp\nleak:libOpenCL\nleak:libigdrcl\n"
           "leak:libhwloc\n";
}

/* ---- the device under test ---- */

atto_device *test_dev;

const char *test_device_name(void)
{
    const char *name = getenv("ATTO_TEST_DEVICE");
    return name && *name ? name : "cpu";
}

const char *test_backend(void)
{
    const char *name = getenv("ATTO_TEST_NAME");
    return name && *name ? name : test_device_name();
}

bool test_on_opencl(void)
{
    atto_device_info info;
    if (test_dev && atto_device_describe(test_dev, &info) == ATTO_OK)
        return strcmp(info.backend, "opencl") == 0;
    return strcmp(test_device_name(), "cpu") != 0; /* not open yet, or closed for a while */
}

bool test_in_disguise(void)
{
    return getenv("ATTO_TEST_PART") || strstr(test_backend(), "-wide") ||
           strstr(test_backend(), "-small");
}

static void silence(void *user, atto_log_level level, const char *text)
{
    (void)user, (void)level, (void)text;
}

void test_broken_open(test_broken *b, const char *family)
{
    const atto_device_options options = { .kernel_dir = b->folder, .log = silence };
    strcpy(b->folder, "/tmp/atto-test-XXXXXX");
    assert_non_null(mkdtemp(b->folder));
    snprintf(b->path, sizeof b->path, "%s/%s.cl", b->folder, family);
    FILE *file = fopen(b->path, "w");
    assert_non_null(file);
    fputs("this is no OpenCL C;\n", file);
    fclose(file);
    MUST(atto_device_open(test_device_name(), &options, &b->dev));
}

void test_broken_close(test_broken *b, uint64_t fallbacks)
{
    atto_device_stats stats;
    MUST(atto_device_stats_get(b->dev, &stats));
    assert_int_equal(stats.fallbacks, fallbacks);
    atto_device_close(b->dev);
    remove(b->path);
    rmdir(b->folder);
}

/* Whether atto_device_list shows an OpenCL device. */
static bool opencl_is_there(void)
{
    atto_device_info infos[32];
    int32_t count = 0;
    if (atto_device_list(NULL, infos, 32, &count) != ATTO_OK) return true; /* let open complain */
    for (int32_t i = 0; i < count && i < 32; i++)
        if (strcmp(infos[i].backend, "opencl") == 0) return true;
    return false;
}

static void print_worst(void);

/* Building kernels is what tests on OpenCL spend their time with. */
static void print_kernels(void)
{
    atto_device_stats stats;
    if (!test_on_opencl() || atto_device_stats_get(test_dev, &stats) != ATTO_OK) return;
    printf("%" PRIu64 " kernels built, %" PRIu64 " loaded from the cache\n", stats.kernels_built,
           stats.kernels_loaded);
}

/* ATTO_TEST_FILTER: only the tests of that name; * and ? stand for any letters and any one. */
static int run_group(const char *family, const struct CMUnitTest *tests, size_t count)
{
    const char *filter = getenv("ATTO_TEST_FILTER");
    if (filter && filter[0]) cmocka_set_test_filter(filter);
    return _cmocka_run_group_tests(family, tests, count, NULL, NULL);
}

int test_main(const char *family, const struct CMUnitTest *tests, size_t count)
{
    if (test_on_opencl() && !opencl_is_there()) {
        printf("SKIPPED %s: no OpenCL device (install a driver, for example pocl-opencl-icd)\n",
               family);
        return SKIPPED;
    }
    if (atto_device_open(test_device_name(), NULL, &test_dev) != ATTO_OK) {
        printf("FAILED %s: cannot open device %s: %s\n", family, test_device_name(),
               atto_last_error());
        return 1;
    }
    atto_device_info info;
    if (atto_device_describe(test_dev, &info) == ATTO_OK)
        printf("%s on %s: %s, %s, %s\n", family, test_backend(), info.name, info.version,
               info.driver);
    const int failures = run_group(family, tests, count);
    print_worst();
    print_kernels();
    fflush(stdout);
    atto_device_close(test_dev);
    test_dev = NULL;
    if (failures == 0 && atto_set_allocator(NULL) != ATTO_OK) { /* E_STATE: something is held */
        printf("FAILED %s: memory leaks: %s\n", family, atto_last_error());
        return 1;
    }
    return failures != 0;
}

int test_main_host(const char *family, const struct CMUnitTest *tests, size_t count)
{
    return run_group(family, tests, count) != 0;
}

/* ---- statuses ---- */

void test_must(atto_status status, const char *call, const char *file, int line)
{
    if (status == ATTO_OK) return;
    print_error("%s\n  failed with %s: %s\n", call, atto_status_name(status), atto_last_error());
    _fail(file, line);
}

/* Whether text holds each '|'-separated word. */
static bool holds_words(const char *text, const char *words)
{
    while (*words) {
        const size_t length = strcspn(words, "|");
        char word[TEXT_SIZE];
        snprintf(word, sizeof word, "%.*s", (int)length, words);
        if (!strstr(text, word)) return false;
        words += length + (words[length] == '|');
    }
    return true;
}

void test_expect_fail(atto_status got, atto_status wanted, const char *words, const char *call,
                      const char *file, int line)
{
    const bool same = got == wanted;
    if (same && holds_words(atto_last_error(), words)) return;
    print_error("%s\n  gave %s, wanted %s\n  message: %s\n  wanted in it: %s\n", call,
                atto_status_name(got), atto_status_name(wanted), atto_last_error(), words);
    _fail(file, line);
}

/* ---- layouts ---- */

const char *test_layout_name(test_layout layout)
{
    static const char *const names[] = {
#define X(NAME, text) text,
        TEST_LAYOUT_TABLE(X)
#undef X
    };
    return layout < LAYOUT_COUNT ? names[layout] : "?";
}

/* Order of dimensions from the one with the largest stride to the smallest. */
static void stride_order(test_layout layout, int32_t rank, int32_t *order)
{
    for (int32_t i = 0; i < rank; i++) order[i] = layout == LAYOUT_TRANSPOSED ? rank - 1 - i : i;
    if (layout != LAYOUT_CHANNELS_LAST || rank < 3) return;
    for (int32_t i = 1; i + 1 < rank; i++) order[i] = i + 1;
    order[rank - 1] = 1;
}

/* Strides of the layout; returns the elements from the first to one past the last. */
static int64_t place(test_layout layout, atto_tensor *view)
{
    int32_t order[ATTO_MAX_RANK];
    stride_order(layout, view->rank, order);
    int64_t room = layout == LAYOUT_STEP2 ? 2 : 1;
    for (int32_t i = view->rank - 1; i >= 0; i--) {
        const int32_t d = order[i];
        view->stride[d] = room;
        if (view->shape[d] > 0) room *= view->shape[d];
        if (layout == LAYOUT_SCATTERED) room += 1 + i;
        if (layout == LAYOUT_PITCHED && i == view->rank - 1) room += 3;
        if (layout == LAYOUT_ALIGNED && i == view->rank - 1) room = (room + 15) / 8 * 8;
    }
    if (layout == LAYOUT_BROADCAST && view->rank > 0) {
        room = view->stride[0];
        view->stride[0] = 0;
    }
    return room;
}

/* Element of the buffer that the logical index reaches. */
static int64_t position(const atto_tensor *view, int64_t index)
{
    int64_t at = view->offset;
    for (int32_t d = view->rank - 1; d >= 0; d--) {
        at += index % view->shape[d] * view->stride[d];
        index /= view->shape[d];
    }
    return at;
}

/* ---- tensors with canaries ---- */

static void *allocate(size_t bytes)
{
    void *block = calloc(bytes ? bytes : 1, 1);
    assert_non_null(block);
    return block;
}

double *test_doubles(int64_t n)
{
    return allocate((size_t)n * sizeof(double));
}

static size_t host_bytes(const test_tensor *t)
{
    return (size_t)atto_tensor_numel(&t->whole) * atto_dtype_size(t->whole.dtype);
}

static void store(test_tensor *t, int64_t index, uint64_t bits)
{
    const size_t size = atto_dtype_size(t->view.dtype);
    memcpy(t->host + (size_t)t->at[index] * size, &bits, size); /* little-endian hosts */
}

static uint64_t load(const test_tensor *t, const unsigned char *host, int64_t index)
{
    const size_t size = atto_dtype_size(t->view.dtype);
    uint64_t bits = 0;
    memcpy(&bits, host + (size_t)t->at[index] * size, size);
    return bits;
}

void test_tensor_make(test_tensor *t, atto_device *dev, atto_dtype dtype, atto_shape shape,
                      test_layout layout)
{
    memset(t, 0, sizeof *t);
    t->view = atto_tensor_of(NULL, dtype, shape, 0);
    t->numel = atto_tensor_numel(&t->view);
    const int64_t room = place(layout, &t->view);
    if (t->numel == 0) return;
    const int64_t before = GUARD + (layout == LAYOUT_OFFSET ? 1 : layout == LAYOUT_OFFSET4 ? 4 : 0);
    MUST(atto_tensor_alloc(dev, dtype, atto_shape1(before + room + GUARD), &t->whole));
    t->view.buffer = t->whole.buffer;
    t->view.offset = before;
    t->host = allocate(host_bytes(t));
    t->at = allocate((size_t)t->numel * sizeof *t->at);
    for (int64_t i = 0; i < t->numel; i++) t->at[i] = position(&t->view, i);
    test_tensor_put(t, NULL);
}

void test_tensor_drop(test_tensor *t)
{
    atto_tensor_free(&t->whole);
    free(t->host);
    free(t->at);
    memset(t, 0, sizeof *t);
}

void test_tensor_put(test_tensor *t, const double *values)
{
    if (t->numel == 0) return;
    const bool floating = t->view.dtype != ATTO_I32 && t->view.dtype != ATTO_I64;
    memset(t->host, CANARY_BYTE, host_bytes(t));
    for (int64_t i = 0; i < t->numel; i++)
        store(t, i, oracle_encode(t->view.dtype, values ? values[i] : floating ? NAN : 77.0));
    MUST(atto_tensor_write(&t->whole, t->host));
}

void test_tensor_held(const test_tensor *t, double *values)
{
    for (int64_t i = 0; i < t->numel; i++)
        values[i] = oracle_decode(t->view.dtype, load(t, t->host, i));
}

/* The buffer as it is now; release with free. */
static unsigned char *fetch(const test_tensor *t)
{
    unsigned char *now = allocate(host_bytes(t));
    MUST(atto_tensor_read(&t->whole, now));
    return now;
}

/* First byte that differs from what was written, the view's own elements set aside; -1 if none. */
static int64_t broken_canary(const test_tensor *t, const unsigned char *now)
{
    const size_t size = atto_dtype_size(t->view.dtype);
    unsigned char *expected = allocate(host_bytes(t));
    memcpy(expected, t->host, host_bytes(t));
    for (int64_t i = 0; i < t->numel; i++)
        memcpy(expected + (size_t)t->at[i] * size, now + (size_t)t->at[i] * size, size);
    int64_t broken = -1;
    for (size_t i = 0; i < host_bytes(t) && broken < 0; i++)
        if (expected[i] != now[i]) broken = (int64_t)i;
    free(expected);
    return broken;
}

void test_tensor_bits(const test_tensor *t, uint64_t *bits)
{
    if (t->numel == 0) return;
    unsigned char *now = fetch(t);
    const int64_t broken = broken_canary(t, now);
    for (int64_t i = 0; i < t->numel; i++) bits[i] = load(t, now, i);
    free(now);
    if (broken >= 0)
        fail_msg("%s: canary overwritten at element %" PRId64
                 " of the buffer; the view is elements "
                 "%" PRId64 " to %" PRId64,
                 test_backend(), broken / (int64_t)atto_dtype_size(t->view.dtype), t->view.offset,
                 t->at[t->numel - 1]);
}

void test_tensor_get(const test_tensor *t, double *values)
{
    uint64_t *bits = allocate((size_t)t->numel * sizeof *bits);
    test_tensor_bits(t, bits);
    for (int64_t i = 0; i < t->numel; i++) values[i] = oracle_decode(t->view.dtype, bits[i]);
    free(bits);
}

bool test_tensor_untouched(const test_tensor *t)
{
    if (t->numel == 0) return true;
    unsigned char *now = fetch(t);
    const bool same = memcmp(now, t->host, host_bytes(t)) == 0;
    free(now);
    return same;
}

/* ---- data ---- */

uint64_t test_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* Uniform on [0, 1). */
static double unit(uint64_t *state)
{
    return (double)(test_random(state) >> 11) * 0x1p-53;
}

void test_uniform(uint64_t seed, double lo, double hi, atto_dtype dtype, double *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) out[i] = oracle_round(dtype, lo + (hi - lo) * unit(&seed));
}

/* Next number of the dtype away from zero (+1) or towards it (-1). */
static double neighbour(atto_dtype dtype, double value, int direction)
{
    const uint64_t bits = oracle_encode(dtype, value);
    if (value == 0.0) return oracle_tiny(dtype);
    return oracle_decode(dtype, direction > 0 ? bits + 1 : bits - 1);
}

static int64_t special_inputs(atto_activation act, atto_dtype dtype, double *out)
{
    const oracle_act *o = oracle_act_of(act.kind);
    double centres[16] = { 0.0, 1.0, 3.0, 6.0, 0.5, 20.0, 88.0, 1000.0 };
    int centre_count = 8;
    for (int i = 0; i < o->kink_count; i++) centres[centre_count++] = fabs(o->kinks[i]);
    if (o->kink_a) centres[centre_count++] = fabs((double)act.a);
    if (o->kink_b) centres[centre_count++] = fabs((double)act.b);
    int64_t n = 0;
    for (int i = 0; i < centre_count; i++) {
        const double c = oracle_round(dtype, centres[i]);
        const double near[3] = { c, neighbour(dtype, c, 1), neighbour(dtype, c, -1) };
        for (int k = 0; k < 3; k++) {
            out[n++] = near[k];
            out[n++] = -near[k];
        }
    }
    const double extremes[] = { oracle_tiny(dtype),        oracle_huge(dtype),
                                oracle_huge(dtype) / 2,    oracle_round(dtype, 1e-30),
                                oracle_round(dtype, 1e-3), INFINITY };
    for (size_t i = 0; i < sizeof extremes / sizeof extremes[0]; i++) {
        out[n++] = extremes[i];
        out[n++] = -extremes[i];
    }
    out[n++] = NAN;
    return n;
}

/* A third each: around the bends, up to the ends of exp, any magnitude. */
static double mixed(uint64_t *state)
{
    const double sign = test_random(state) & 1 ? 1.0 : -1.0;
    switch (test_random(state) % 3) {
    case 0:
        return sign * 8.0 * unit(state);
    case 1:
        return sign * 100.0 * unit(state);
    default:
        return sign * exp2(-40.0 + 60.0 * unit(state));
    }
}

void test_inputs(uint64_t seed, atto_activation act, atto_dtype dtype, double *out, int64_t n)
{
    double special[128];
    const int64_t count = special_inputs(act, dtype, special);
    const int64_t start = (int64_t)(test_random(&seed) % (uint64_t)count);
    for (int64_t i = 0; i < n; i++)
        out[i] = i < count ? special[(start + i) % count] : oracle_round(dtype, mixed(&seed));
}

int test_activations(atto_activation out[TEST_ACTIVATIONS_MAX])
{
    const atto_activation others[] = {
        atto_hardtanh(-0.25f, 3.0f),
        atto_softplus(5.0f, 20.0f),
        atto_softplus(0.5f, 3.0f),
        atto_leaky_relu(0.3f),
        atto_leaky_relu(-0.5f),
        atto_elu(0.7f),
        atto_elu(2.0f),
        atto_celu(0.5f),
        atto_celu(2.5f),
        atto_hardshrink(1.5f),
        atto_softshrink(0.0f),
        atto_softshrink(1.5f),
    };
    int n = 0;
    for (int kind = 0; kind < ATTO_ACT_COUNT; kind++)
        out[n++] = atto_activation_default((atto_activation_kind)kind);
    for (int i = 0; i < COUNT_OF(others); i++) out[n++] = others[i];
    return n;
}

/* ---- comparison ---- */

/* Worst error of each op, as a share of what was allowed; printed at the end. */
typedef struct worst {
    char key[48];
    double ratio;
} worst;
static worst worst_table[WORST_LIMIT];
static int worst_count;

static void note_worst(const test_about *about, double ratio)
{
    char key[sizeof worst_table[0].key];
    snprintf(key, sizeof key, "%s %s", about->op, atto_dtype_name(about->dtype));
    int i = 0;
    while (i < worst_count && strcmp(worst_table[i].key, key) != 0) i++;
    if (i == WORST_LIMIT) return;
    if (i == worst_count) {
        memcpy(worst_table[i].key, key, sizeof key);
        worst_count++;
    }
    worst_table[i].ratio = fmax(worst_table[i].ratio, ratio);
}

static void print_worst(void)
{
    if (worst_count == 0) return;
    printf("worst error as a share of what is allowed, %s:\n", test_backend());
    for (int i = 0; i < worst_count; i++)
        printf("  %-24s %.3f%s", worst_table[i].key, worst_table[i].ratio,
               i % 3 == 2 || i == worst_count - 1 ? "\n" : "");
}

/* "[2,3]" for a shape, "[1,0]" for where index is in it. */
static void shape_text(char *text, const atto_shape *shape, int64_t index, bool as_index)
{
    int64_t part[ATTO_MAX_RANK];
    for (int32_t d = shape->rank - 1; d >= 0; d--) {
        part[d] = as_index && shape->dim[d] > 0 ? index % shape->dim[d] : shape->dim[d];
        if (as_index && shape->dim[d] > 0) index /= shape->dim[d];
    }
    int at = snprintf(text, TEXT_SIZE, "[");
    for (int32_t d = 0; d < shape->rank; d++)
        at += snprintf(text + at, (size_t)(TEXT_SIZE - at), "%s%" PRId64, d ? "," : "", part[d]);
    snprintf(text + at, (size_t)(TEXT_SIZE - at), "]");
}

double test_share(atto_dtype dtype, double got, double want, double allowed)
{
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0.0 : INFINITY;
    if (isinf(want)) return got == want ? 0.0 : INFINITY;
    if (got == oracle_round(dtype, want)) return 0.0;
    const double lowest = oracle_round(dtype, want - allowed);
    const double highest = oracle_round(dtype, want + allowed);
    if (isinf(got)) return got == lowest || got == highest ? 1.0 : INFINITY;
    const double half_ulp =
        fmax(fabs(want) * oracle_unit(dtype), 0.5 * oracle_tiny(dtype)); /* at least */
    const double share = fabs(got - want) / (allowed + half_ulp);
    if (got < lowest || got > highest) return fmax(share, nextafter(1.0, 2.0));
    return fmin(share, 1.0);
}

/* Where the comparison is, for a report. */
typedef struct finding {
    int64_t first, bad;
    double worst;
} finding;

static void report(const test_about *about, const finding *f, const double *got, const double *want,
                   const double *allowed, int64_t n)
{
    char shape[TEXT_SIZE], index[TEXT_SIZE];
    shape_text(shape, &about->shape, 0, false);
    shape_text(index, &about->shape, f->first, true);
    fail_msg("%s on %s, %s, layout %s, shape %s, seed %" PRIu64 ":\n  element %s (index %" PRId64
             ") is %.9g, wanted %.9g, allowed +-%.3g and a rounding to %s\n  %" PRId64
             " of %" PRId64 " elements are wrong; worst error / allowed = %.3g",
             about->op, test_backend(), atto_dtype_name(about->dtype), about->layout, shape,
             about->seed, index, f->first, got[f->first], want[f->first],
             allowed ? allowed[f->first] : 0.0, atto_dtype_name(about->dtype), f->bad, n, f->worst);
}

void expect_close(const test_about *about, const double *got, const double *want,
                  const double *allowed, int64_t n)
{
    finding f = { -1, 0, 0.0 };
    for (int64_t i = 0; i < n; i++) {
        const double share = test_share(about->dtype, got[i], want[i], allowed[i]);
        f.worst = fmax(f.worst, share);
        if (share <= 1.0) continue;
        f.bad++;
        if (f.first < 0) f.first = i;
    }
    note_worst(about, f.worst);
    if (f.bad > 0) report(about, &f, got, want, allowed, n);
}

void test_judge(const test_tensor *t, const char *op, test_layout layout, uint64_t seed, int64_t n,
                const double *want, const double *terms, const double *old)
{
    if (!t->view.dtype) return;
    double *got = test_doubles(t->numel), *sum = test_doubles(t->numel);
    double *allowed = test_doubles(t->numel);
    const atto_shape shape = atto_shape_of(t->view.rank, t->view.shape);
    const test_about about = { op, test_layout_name(layout), t->view.dtype, shape, seed };
    test_tensor_get(t, got);
    for (int64_t i = 0; i < t->numel; i++) {
        const double kept = old ? old[i] : 0.0,
                     size = fabs(terms ? terms[i] : want[i]) + fabs(kept);
        sum[i] = want[i] + kept;
        allowed[i] = isfinite(sum[i]) ? atto_tol(op, t->view.dtype, n, size) : 0.0;
    }
    expect_close(&about, got, sum, allowed, t->numel);
    free(got), free(sum), free(allowed);
}

void expect_equal(const test_about *about, const double *got, const double *want, int64_t n)
{
    finding f = { -1, 0, INFINITY };
    for (int64_t i = 0; i < n; i++) {
        if (got[i] == want[i] || (isnan(got[i]) && isnan(want[i]))) continue;
        f.bad++;
        if (f.first < 0) f.first = i;
    }
    if (f.bad > 0) report(about, &f, got, want, NULL, n);
}
