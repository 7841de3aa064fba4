/* SPDX-License-Identifier: MIT */
/* The measuring core: which cases run, warm-up, samples, ceiling. */
#include "bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LATENCY_MS      0.02 /* a call faster than this says nothing about bandwidth */
#define SHORT_SAMPLE_MS 0.2  /* so short calls are repeated until a sample takes this long */
#define MAX_LAUNCHES    1000
#define WARM_MS         1.0 /* a call longer than this needs no more warming up */

double bench_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, int32_t n)
{
    qsort(values, (size_t)n, sizeof *values, ascending);
    return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

const char *bench_layout_name(bench_layout layout)
{
    static const char *const names[BENCH_LAYOUT_COUNT] = { "dense", "pitched", "transposed" };
    return names[layout];
}

/* Which cases. */

static void append_matrix(char *out, size_t size, const bench_matrix *s)
{
    char batch[24] = "";
    if (s->batch > 0) snprintf(batch, sizeof batch, "%" PRId64 "x", s->batch);
    snprintf(out, size, " %s%" PRId64 "x%" PRId64 "x%" PRId64, batch, s->m, s->n, s->k);
}

static void append_heads(char *out, size_t size, const bench_heads *s)
{
    snprintf(out, size, " %" PRId64 "x%" PRId64 "x%" PRId64 "x%" PRId64 "x%" PRId64 "x%" PRId64,
             s->batches, s->heads, s->shared, s->queries, s->keys, s->width);
}

static void append_images(char *out, size_t size, const bench_images *s)
{
    snprintf(out, size, " %" PRId64 "x%" PRId64 "x%" PRId64 "x%" PRId64 " %" PRId64 "/%" PRId64,
             s->batch, s->channels, s->edge, s->outputs, s->kernel, s->stride);
}

void bench_case_text(const bench_case *c, char *out, size_t size)
{
    const bench_row *row = c->row;
    const bench_matrix *matrix = &row->matrix;
    const int used = snprintf(out, size, "%s %s %s %s", row->op, row->pass,
                              atto_dtype_name(c->dtype), bench_layout_name(row->layout));
    if (matrix->m > 0 && used > 0 && (size_t)used < size)
        append_matrix(out + used, size - (size_t)used, matrix);
    if (row->attention.width > 0 && used > 0 && (size_t)used < size)
        append_heads(out + used, size - (size_t)used, &row->attention);
    if (row->images.batch > 0 && used > 0 && (size_t)used < size)
        append_images(out + used, size - (size_t)used, &row->images);
    if (row->rows > 0 && used > 0 && (size_t)used < size)
        snprintf(out + used, size - (size_t)used, " %" PRId64 "x%" PRId64, row->rows, row->cols);
}

static bool selected(const bench_options *options, const bench_case *c)
{
    const bench_row *row = c->row;
    const uint32_t dtypes =
        options->dtype ? BENCH_DTYPE(options->dtype) & row->dtypes : row->default_dtypes;
    char text[128];
    if ((dtypes & BENCH_DTYPE(c->dtype)) == 0) return false;
    if (row->on_request && options->filter == NULL) return false;
    bench_case_text(c, text, sizeof text);
    return options->filter == NULL || strstr(text, options->filter) != NULL;
}

static int32_t plan_table(const bench_options *options, atto_dtype dtype, const bench_row *rows,
                          int32_t count, bench_case *cases, int32_t capacity, int32_t at)
{
    for (int32_t i = 0; i < count; i++) {
        const bench_case c = { &rows[i], dtype };
        if (!selected(options, &c)) continue;
        if (at < capacity) cases[at] = c;
        at++;
    }
    return at;
}

int32_t bench_plan(const bench_options *options, bench_case *cases, int32_t capacity)
{
    int32_t n = 0;
    for (int dtype = ATTO_F32; dtype <= ATTO_BF16; dtype++) {
#define X(name)                                                                               \
    n = plan_table(options, (atto_dtype)dtype, bench_##name##_rows, bench_##name##_row_count, \
                   cases, capacity, n);
        BENCH_TABLES(X)
#undef X
    }
    return n;
}

/* Open and close. */

static void fill_defaults(bench *b, const bench_options *options)
{
    if (options != NULL) b->options = *options;
    if (b->options.samples <= 0) b->options.samples = b->options.quick ? 7 : 25;
    if (b->options.samples > BENCH_MAX_SAMPLES) b->options.samples = BENCH_MAX_SAMPLES;
    if (b->options.elements > 0) return;
    b->options.elements = b->is_cpu ? 1 << 24 : 1 << 26;
    b->doubles_halves = !b->is_cpu;
    if (b->options.quick) b->options.elements /= 8;
}

atto_status bench_open(const char *device, const bench_options *options, bench *b)
{
    const atto_device_options open = { .profile = true,
                                       .no_fallback = true,
                                       .log = options ? options->log : NULL,
                                       .log_data = options ? options->log_data : NULL };
    memset(b, 0, sizeof *b);
    BENCH_TRY(atto_device_open(device, &open, &b->dev));
    const atto_status status = atto_device_describe(b->dev, &b->info);
    if (status != ATTO_OK) {
        atto_device_close(b->dev);
        b->dev = NULL;
        return status;
    }
    b->is_cpu = b->info.kind == ATTO_KIND_CPU || b->info.kind == ATTO_KIND_OPENCL_CPU;
    b->events = b->info.kind != ATTO_KIND_CPU;
    fill_defaults(b, options);
    return ATTO_OK;
}

void bench_close(bench *b)
{
    if (b == NULL) return;
    bench_free_sets(b);
    atto_device_close(b->dev);
    memset(b, 0, sizeof *b);
}

/* One sample. */

static atto_status prepare_next(bench *b, const bench_case *c)
{
    return c->row->before ? c->row->before(b->dev, c->row, &b->sets[b->next]) : ATTO_OK;
}

static atto_status call_next(bench *b, const bench_case *c)
{
    const bench_tensors *set = &b->sets[b->next];
    b->next = (b->next + 1) % b->set_count;
    return c->row->call(b->dev, c->row, set);
}

/* Calls behind the first one have what goes before them inside the time: such rows get one. */
static atto_status call_times(bench *b, const bench_case *c, int32_t launches)
{
    for (int32_t i = 0; i < launches; i++) {
        if (i > 0) BENCH_TRY(prepare_next(b, c));
        BENCH_TRY(call_next(b, c));
    }
    return ATTO_OK;
}

static atto_status sample_wall(bench *b, const bench_case *c, int32_t launches, double *out_ms)
{
    BENCH_TRY(prepare_next(b, c));
    BENCH_TRY(atto_device_sync(b->dev));
    const double start = bench_clock();
    BENCH_TRY(call_times(b, c, launches));
    BENCH_TRY(atto_device_sync(b->dev));
    *out_ms = 1e3 * (bench_clock() - start);
    return ATTO_OK;
}

/* One untimed call first, or what goes before the timed one: while the device works on it the host
 * enqueues the rest, so the time between the events holds no host work. */
static atto_status sample_events(bench *b, const bench_case *c, int32_t launches, double *out_ms)
{
    atto_event *start = NULL, *end = NULL;
    BENCH_TRY(prepare_next(b, c));
    if (!c->row->before) BENCH_TRY(call_next(b, c));
    atto_status status = atto_event_record(b->dev, &start);
    if (status == ATTO_OK) status = call_times(b, c, launches);
    if (status == ATTO_OK) status = atto_event_record(b->dev, &end);
    if (status == ATTO_OK) status = atto_event_elapsed(start, end, out_ms);
    atto_event_destroy(start);
    atto_event_destroy(end);
    return status;
}

static atto_status sample(bench *b, const bench_case *c, int32_t launches, double *out_ms)
{
    if (c->row->before) launches = 1;
    BENCH_TRY(b->events ? sample_events(b, c, launches, out_ms)
                        : sample_wall(b, c, launches, out_ms));
    *out_ms /= launches;
    return ATTO_OK;
}

/* Builds the kernel, touches every set, and finds how many calls make a sample. */
static atto_status warm_up(bench *b, const bench_case *c, bench_result *out)
{
    atto_device_stats before, after;
    BENCH_TRY(atto_device_stats_get(b->dev, &before));
    BENCH_TRY(prepare_next(b, c));
    BENCH_TRY(call_times(b, c, b->set_count));
    BENCH_TRY(atto_device_stats_get(b->dev, &after));
    out->hidden_copies = after.hidden_copies != before.hidden_copies;

    double ms;
    BENCH_TRY(sample(b, c, 1, &ms));
    for (int i = 0; ms < WARM_MS && i < 3; i++) {
        double again;
        BENCH_TRY(sample(b, c, 8, &again));
        if (again < ms) ms = again;
    }
    out->launches = 1;
    if (ms >= LATENCY_MS) return ATTO_OK;
    const double launches = ms > 0 ? SHORT_SAMPLE_MS / ms + 1 : MAX_LAUNCHES;
    out->launches = launches < MAX_LAUNCHES ? (int32_t)launches : MAX_LAUNCHES;
    return ATTO_OK;
}

static atto_status take_samples(bench *b, const bench_case *c, bench_result *out)
{
    double ms[BENCH_MAX_SAMPLES];
    out->samples = b->options.samples;
    for (int32_t i = 0; i < out->samples; i++) BENCH_TRY(sample(b, c, out->launches, &ms[i]));
    out->median_ms = bench_median(ms, out->samples);
    out->min_ms = ms[0];
    out->latency = out->median_ms < LATENCY_MS;
    out->noisy = out->median_ms > 1.5 * out->min_ms;
    return ATTO_OK;
}

static double bytes_of(const atto_tensor *t)
{
    return (double)atto_tensor_numel(t) * (double)atto_dtype_size(t->dtype);
}

/* Each operand read and each result written once. z is read for the derivative of act only. */
static void count_matrix_work(const bench_case *c, const bench_tensors *t, bench_result *r)
{
    const int64_t batch = t->x.rank == 3 ? t->x.shape[0] : 0;
    const int64_t m = t->x.shape[t->x.rank - 2], n = t->w.shape[t->w.rank - 2];
    const int64_t k = t->x.shape[t->x.rank - 1];
    const bool backward = strcmp(c->row->pass, "backward") == 0;
    r->shape = batch > 0 ? atto_shape4(batch, m, n, k) : atto_shape3(m, n, k);
    r->flops = (double)c->row->flops * (double)m * (double)n * (double)k;
    if (batch > 0) r->flops *= (double)batch;
    r->bytes = bytes_of(&t->x) + bytes_of(&t->w) + bytes_of(&t->out);
    const double bias = batch > 0 ? 0.0 : bytes_of(&t->b);
    r->bytes += backward ? bytes_of(&t->dy) + bytes_of(&t->dw) + bias : bias;
    if (backward && c->row->act.kind != ATTO_ACT_IDENTITY) r->bytes += bytes_of(&t->z);
}

/* Queries, keys and values read and y written; backward reads y and dy and writes three gradients. A
 * module reads x and its weights, backward dy as well, and writes what is like them; each weight has a
 * product and a sum for each row, backward twice. */
static void count_attention(const bench *b, const bench_case *c, const bench_tensors *t,
                            bench_result *r)
{
    const bench_heads s = bench_heads_of(b, c->row);
    const bool backward = strcmp(c->row->pass, "backward") == 0;
    r->shape = (atto_shape){ 6, { s.batches, s.heads, s.shared, s.queries, s.keys, s.width } };
    const double pairs = (double)(s.batches * s.heads * s.queries) * (double)s.keys;
    r->flops = c->row->flops * pairs * (double)s.width * (s.causal ? 0.5 : 1.0);
    r->bytes = 2.0 * (bytes_of(&t->x) + bytes_of(&t->w)) * (backward ? 2.0 : 1.0);
    if (s.weights == 0) return;
    const double features = (double)(s.heads * s.width), rows = (double)(s.batches * s.queries);
    const double weights = (double)s.weights * features * features;
    r->flops += (backward ? 4.0 : 2.0) * rows * weights;
    r->bytes = (backward ? 3.0 : 2.0) * bytes_of(&t->x) +
               (backward ? 2.0 : 1.0) * weights * (double)atto_dtype_size(c->dtype);
}

/* Two images and a filter; two flops for each tap of an output. */
static void count_images(const bench *b, const bench_case *c, const bench_tensors *t,
                         bench_result *r)
{
    const bench_images s = bench_images_of(b, c->row);
    const int64_t small = s.transposed ? s.edge : bench_images_out(&s);
    r->shape = (atto_shape){
        8, { s.batch, s.channels, s.edge, s.outputs, s.kernel, s.stride, s.padding, s.groups }
    };
    r->flops = c->row->flops * (double)(s.batch * small * small * s.kernel * s.kernel) *
               (double)s.channels * (double)(s.outputs / s.groups);
    r->bytes = bytes_of(&t->x) + bytes_of(&t->dy) + bytes_of(&t->w);
}

static void count_work(const bench *b, const bench_case *c, const bench_tensors *t, bench_result *r)
{
    const atto_tensor *out = &t->out;
    if (c->row->matrix.m > 0) {
        count_matrix_work(c, t, r);
        return;
    }
    if (c->row->attention.width > 0) {
        count_attention(b, c, t, r);
        return;
    }
    if (c->row->images.batch > 0) {
        count_images(b, c, t, r);
        return;
    }
    const double n = (double)atto_tensor_numel(out);
    const int64_t size = (int64_t)atto_dtype_size(c->dtype);
    const int64_t column = c->row->reads * size + c->row->sums * (int64_t)sizeof(float);
    const bool again = c->row->held && c->row->cols * column > BENCH_ON_CHIP;
    r->shape = atto_shape_of(out->rank, out->shape);
    r->bytes = n * (double)(c->row->reads * size * (again ? 2 : 1) +
                            c->row->writes * (int64_t)atto_dtype_size(out->dtype));
    r->bytes += n * (c->row->parts * (double)size + 4.0 * c->row->words);
    r->flops = n * c->row->flops;
}

/* Everything but the ceiling. */
static atto_status measure(bench *b, const bench_case *c, bench_result *out)
{
    memset(out, 0, sizeof *out);
    BENCH_TRY(bench_make_sets(b, c));
    count_work(b, c, &b->sets[0], out);
    BENCH_TRY(warm_up(b, c, out));
    BENCH_TRY(take_samples(b, c, out));
    out->gb_per_s = 1e-6 * out->bytes / out->median_ms;
    if (c->row->matrix.m > 0 || c->row->attention.width > 0 || c->row->images.batch > 0)
        out->tflop_per_s = 1e-9 * out->flops / out->median_ms;
    return ATTO_OK;
}

atto_status bench_run(bench *b, const bench_case *c)
{
    BENCH_TRY(bench_make_sets(b, c));
    BENCH_TRY(prepare_next(b, c));
    BENCH_TRY(call_next(b, c));
    return atto_device_sync(b->dev);
}

/* The ceiling: the driver's copy, our own dense kernel that only moves, and the host's loop. */

static const bench_row *find_row(const bench_row *rows, int32_t count, const char *op)
{
    int32_t i = 0;
    while (i < count && strcmp(rows[i].op, op) != 0) i++;
    return i < count ? &rows[i] : NULL;
}

static void raise_ceiling(bench_ceiling *ceiling, double gb_per_s, const char *how)
{
    if (gb_per_s <= ceiling->gb_per_s) return;
    ceiling->gb_per_s = gb_per_s;
    ceiling->how = how;
}

static atto_status raise_by_row(bench *b, const bench_row *row, atto_dtype dtype,
                                bench_ceiling *ceiling)
{
    const bench_case c = { row, dtype };
    bench_result r;
    BENCH_TRY(measure(b, &c, &r));
    raise_ceiling(ceiling, r.gb_per_s, row->op);
    return ATTO_OK;
}

static atto_status measure_ceiling(bench *b, atto_dtype dtype)
{
    bench_ceiling *ceiling = &b->ceiling[dtype];
    if (ceiling->how != NULL) return ATTO_OK;
    BENCH_TRY(raise_by_row(b, find_row(bench_tensor_rows, bench_tensor_row_count, "copy"), dtype,
                           ceiling));
    BENCH_TRY(
        raise_by_row(b, find_row(bench_act_rows, bench_act_row_count, "identity"), dtype, ceiling));
    if (!b->is_cpu) return ATTO_OK;
    const int64_t bytes = bench_elements(b, dtype) * (int64_t)atto_dtype_size(dtype);
    const char *level = b->info.kind == ATTO_KIND_CPU ? b->info.version : NULL;
    raise_ceiling(ceiling, bench_host_ceiling(level, bytes, b->options.samples), "y = a*x");
    return ATTO_OK;
}

atto_status bench_measure(bench *b, const bench_case *c, bench_result *out)
{
    BENCH_TRY(measure_ceiling(b, c->dtype));
    BENCH_TRY(measure(b, c, out));
    out->floor_ms = 1e-6 * out->bytes / b->ceiling[c->dtype].gb_per_s;
    out->fraction = out->floor_ms / out->median_ms;
    return ATTO_OK;
}
