/* SPDX-License-Identifier: MIT */
/* The tensors that are measured: random normal data in enough sets that no cache holds them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define COLS    4096
#define PITCH   (COLS + 64)
#define PATTERN (1 << 18) /* values made on the host; the rest of a tensor repeats them */

/* xorshift64* (Vigna 2014): enough for data whose only job is to be ordinary. */
static double uniform(uint64_t *state)
{
    uint64_t s = *state;
    s ^= s >> 12;
    s ^= s << 25;
    s ^= s >> 27;
    *state = s;
    return ((double)((s * 0x2545f4914f6cdd1dULL) >> 11) + 0.5) / 9007199254740992.0;
}

/* Box and Muller 1958. */
void bench_normal(float *out, int64_t n, uint64_t seed)
{
    const float smallest = 0x1p-13f;
    uint64_t state = seed * 0x9e3779b97f4a7c15ULL + 1;
    for (int64_t i = 0; i < n; i++) {
        const double radius = sqrt(-2.0 * log(uniform(&state)));
        const float v = (float)(radius * cos(6.283185307179586 * uniform(&state)));
        out[i] = fabsf(v) < smallest ? copysignf(smallest, v) : v;
    }
}

/* Doubles the filled front of a dense tensor until it is full. */
static atto_status repeat_front(const atto_tensor *flat, int64_t filled)
{
    const int64_t n = flat->shape[0];
    while (filled < n) {
        const int64_t count = filled < n - filled ? filled : n - filled;
        atto_tensor from, to;
        BENCH_TRY(atto_tensor_slice(flat, 0, 0, count, 1, &from));
        BENCH_TRY(atto_tensor_slice(flat, 0, filled, filled + count, 1, &to));
        BENCH_TRY(atto_tensor_copy(&to, &from));
        filled += count;
    }
    return ATTO_OK;
}

/* The first count elements = the pattern, converted to the dtype of flat on the device. */
static atto_status write_front(atto_device *dev, const atto_tensor *flat, const float *pattern,
                               int64_t count)
{
    atto_tensor wide, front;
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(count), &wide));
    atto_status status = atto_tensor_write(&wide, pattern);
    if (status == ATTO_OK) status = atto_tensor_slice(flat, 0, 0, count, 1, &front);
    if (status == ATTO_OK) status = atto_tensor_copy(&front, &wide);
    atto_tensor_free(&wide);
    return status;
}

atto_status bench_fill_normal(atto_device *dev, const atto_tensor *flat, uint64_t seed)
{
    const int64_t n = flat->shape[0];
    const int64_t count = n < PATTERN ? n : PATTERN;
    float *pattern = malloc((size_t)count * sizeof *pattern);
    if (pattern == NULL) return ATTO_E_MEMORY;
    bench_normal(pattern, count, seed);
    atto_status status = write_front(dev, flat, pattern, count);
    free(pattern);
    return status == ATTO_OK ? repeat_front(flat, count) : status;
}

int64_t bench_elements(const bench *b, atto_dtype dtype)
{
    return b->doubles_halves && dtype != ATTO_F32 ? 2 * b->options.elements : b->options.elements;
}

static int64_t scaled_rows(const bench_row *row, int64_t n)
{
    const double share = (double)n / (1 << 26);
    const int64_t each = row->rows_each > 0 ? row->rows_each : 1;
    const int64_t rows = (int64_t)((double)row->rows * share) / each * each;
    if (share >= 1 && row->at_most) return row->rows;
    return rows > 0 ? rows : each;
}

/* The logical shape of a row's tensors: its own, or n elements in its layout; n is rounded down to
 * whole rows. */
static atto_shape shape_of(const bench_row *row, int64_t n)
{
    const bench_layout layout = row->layout;
    if (row->rows > 0) return atto_shape2(scaled_rows(row, n), row->cols);
    if (layout == BENCH_DENSE) return atto_shape1(n);
    return n < COLS ? atto_shape2(1, n) : atto_shape2(n / COLS, COLS);
}

static int64_t numel(atto_shape s)
{
    int64_t n = 1;
    for (int32_t d = 0; d < s.rank; d++) n *= s.dim[d];
    return n;
}

/* A tensor of that logical shape over memory of its own; contents are undefined. */
static atto_status make_tensor(atto_device *dev, atto_dtype dtype, atto_shape shape,
                               bench_layout layout, atto_tensor *out)
{
    const int64_t stored = layout == BENCH_PITCHED ? shape.dim[0] * PITCH : numel(shape);
    atto_tensor flat;
    BENCH_TRY(atto_tensor_alloc(dev, dtype, atto_shape1(stored), &flat));
    *out = atto_tensor_of(flat.buffer, dtype, shape, 0);
    if (layout == BENCH_PITCHED) out->stride[0] = PITCH;
    if (layout == BENCH_TRANSPOSED) {
        out->stride[0] = 1;
        out->stride[1] = shape.dim[0];
    }
    return ATTO_OK;
}

/* The memory of such a tensor as one row. */
static atto_tensor flat_of(const atto_tensor *t, bench_layout layout)
{
    const int64_t n = layout == BENCH_PITCHED ? t->shape[0] * PITCH : atto_tensor_numel(t);
    return atto_tensor_of(t->buffer, t->dtype, atto_shape1(n), 0);
}

/* The first set gets new values, the others copies of them. */
static atto_status fill_input(bench *b, const atto_tensor *t, const atto_tensor *first,
                              bench_layout layout, uint64_t seed)
{
    const atto_tensor to = flat_of(t, layout);
    if (first == NULL) return bench_fill_normal(b->dev, &to, seed);
    const atto_tensor from = flat_of(first, layout);
    return atto_tensor_copy(&to, &from);
}

static void free_set(bench_tensors *t)
{
    atto_tensor *const all[] = { &t->x, &t->dy, &t->out, &t->w, &t->b, &t->z, &t->dw, &t->db };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) atto_tensor_free(all[i]);
    for (int32_t i = 0; i < BENCH_EXTRAS; i++) atto_tensor_free(&t->extra[i]);
}

static int64_t largest(const bench_matrix *s)
{
    const int64_t mn = s->m > s->n ? s->m : s->n;
    return mn > s->k ? mn : s->k;
}

static int64_t most_elements(const bench_matrix *s)
{
    const int64_t mn = s->m * s->n, mk = s->m * s->k, nk = s->n * s->k;
    const int64_t outer = mn > mk ? mn : mk;
    return outer > nk ? outer : nk;
}

bench_matrix bench_matrix_of(const bench *b, const bench_row *row)
{
    bench_matrix s = row->matrix;
    int64_t *const sizes[] = { &s.m, &s.n, &s.k };
    for (int i = 0; i < 3 && b->is_cpu; i++)
        if (*sizes[i] >= 1024) *sizes[i] /= 4;
    while (s.batch > 1 && s.batch * most_elements(&s) > b->options.elements) s.batch /= 2;
    while (largest(&s) > 1 && most_elements(&s) > b->options.elements) {
        const int64_t top = largest(&s);
        for (int i = 0; i < 3; i++)
            if (*sizes[i] == top) *sizes[i] = top / 2;
    }
    return s;
}

/* [rows, columns], of a batch that many of them. */
static atto_shape matrices(int64_t batch, int64_t rows, int64_t columns)
{
    return batch > 0 ? atto_shape3(batch, rows, columns) : atto_shape2(rows, columns);
}

/* Every tensor that linear or matmul may use, in the dtype of x. */
static atto_status allocate_matrices(bench *b, const bench_case *c, bench_tensors *out)
{
    const bench_matrix s = bench_matrix_of(b, c->row);
    const bool backward = strcmp(c->row->pass, "backward") == 0;
    const atto_shape mk = matrices(s.batch, s.m, s.k), mn = matrices(s.batch, s.m, s.n);
    const atto_shape nk = matrices(s.shared ? 0 : s.batch, s.n, s.k), n = atto_shape1(s.n);
    const struct {
        atto_tensor *t;
        atto_shape shape;
    } parts[] = { { &out->x, mk },  { &out->w, nk }, { &out->b, n },
                  { &out->dy, mn }, { &out->z, mn }, { &out->out, backward ? mk : mn },
                  { &out->dw, nk }, { &out->db, n } };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        BENCH_TRY(make_tensor(b->dev, c->dtype, parts[i].shape, BENCH_DENSE, parts[i].t));
    return ATTO_OK;
}

static int64_t heads_elements(const bench_heads *s)
{
    const int64_t queries = s->heads * s->queries, keys = s->shared * s->keys;
    return s->batches * s->width * (queries > keys ? queries : keys);
}

bench_heads bench_heads_of(const bench *b, const bench_row *row)
{
    bench_heads s = row->attention;
    if (b->is_cpu && s.weights > 0) s.batches = (s.batches + 7) / 8;
    if (b->is_cpu && s.queries >= 1024) s.queries /= 4;
    if (b->is_cpu && s.keys >= 1024) s.keys /= 4;
    while (s.batches > 1 && heads_elements(&s) > b->options.elements) s.batches /= 2;
    while (s.shared > 1 && heads_elements(&s) > b->options.elements) {
        s.heads /= 2;
        s.shared /= 2;
    }
    while (heads_elements(&s) > b->options.elements && (s.queries > 1 || s.keys > 1)) {
        if (s.queries > 1) s.queries /= 2;
        if (s.keys > 1) s.keys /= 2;
    }
    return s;
}

/* Queries, keys and values, y in z, and what has their shapes. */
static atto_status allocate_heads(bench *b, const bench_case *c, bench_tensors *out)
{
    const bench_heads s = bench_heads_of(b, c->row);
    const atto_shape q = atto_shape4(s.batches, s.heads, s.queries, s.width);
    const atto_shape k = atto_shape4(s.batches, s.shared, s.keys, s.width);
    const struct {
        atto_tensor *t;
        atto_shape shape;
    } parts[] = { { &out->x, q }, { &out->w, k },   { &out->b, k },  { &out->dy, q },
                  { &out->z, q }, { &out->out, q }, { &out->dw, k }, { &out->db, k } };
    const bool forward = strcmp(c->row->pass, "forward") == 0;
    if (s.weights > 0) { /* [N, T, E]; the rest is the module's */
        const atto_shape x = atto_shape3(s.batches, s.queries, s.heads * s.width);
        BENCH_TRY(make_tensor(b->dev, c->dtype, x, BENCH_DENSE, &out->x));
        return make_tensor(b->dev, c->dtype, x, BENCH_DENSE, &out->dy);
    }
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const atto_tensor *t = parts[i].t;
        if (forward && (t == &out->dy || t == &out->dw || t == &out->db)) continue;
        BENCH_TRY(make_tensor(b->dev, c->dtype, parts[i].shape, BENCH_DENSE, parts[i].t));
    }
    return ATTO_OK;
}

/* Elements of the larger image, and of the filter. */
static int64_t image_elements(const bench_images *s)
{
    const int64_t edge = bench_images_out(s);
    const int64_t x = s->channels * s->edge * s->edge, y = s->outputs * edge * edge;
    return s->batch * (x > y ? x : y);
}

static int64_t filter_elements(const bench_images *s)
{
    return s->outputs * (s->channels / s->groups) * s->kernel * s->kernel;
}

/* Half as many channels, groups too where there is one for each. */
static bool halve_channels(bench_images *s)
{
    const int64_t least = s->groups == s->channels ? 2 : 2 * s->groups;
    if (s->channels < least || s->outputs < least) return false;
    if (s->groups == s->channels) s->groups /= 2;
    s->channels /= 2;
    s->outputs /= 2;
    return true;
}

bench_images bench_images_of(const bench *b, const bench_row *row)
{
    bench_images s = row->images;
    const int64_t most = b->options.elements;
    if (b->is_cpu) s.batch = (s.batch + 7) / 8;
    while (s.batch > 1 && image_elements(&s) > most) s.batch /= 2;
    while (s.edge / 2 >= s.kernel && image_elements(&s) > most) s.edge /= 2;
    while ((filter_elements(&s) > most || image_elements(&s) > most) && halve_channels(&s)) {
    }
    return s;
}

int64_t bench_images_out(const bench_images *s)
{
    return s->transposed ? (s->edge - 1) * s->stride - 2 * s->padding + s->kernel
                         : (s->edge + 2 * s->padding - s->kernel) / s->stride + 1;
}

bool bench_says(const bench_row *row, const char *word)
{
    return strstr(row->op, word) != NULL;
}

static const int32_t channels_last_order[] = { 0, 3, 1, 2 };

atto_tensor bench_image(const atto_tensor *t, int64_t batch, int64_t channels, int64_t edge,
                        bool channels_last)
{
    const atto_shape last = atto_shape4(batch, edge, edge, channels);
    const atto_shape rows = atto_shape4(batch, channels, edge, edge);
    atto_tensor image = atto_tensor_of(t->buffer, t->dtype, channels_last ? last : rows, 0);
    if (channels_last) atto_tensor_permute(&image, channels_last_order, &image);
    return image;
}

/* [n, c, h, w], of which channels may be innermost. */
static atto_status make_image(bench *b, atto_dtype dtype, atto_shape shape, bool last,
                              atto_tensor *out)
{
    if (!last) return make_tensor(b->dev, dtype, shape, BENCH_DENSE, out);
    const int64_t *n = shape.dim;
    BENCH_TRY(make_tensor(b->dev, dtype, atto_shape4(n[0], n[2], n[3], n[1]), BENCH_DENSE, out));
    return atto_tensor_permute(out, channels_last_order, out);
}

static atto_status allocate_images(bench *b, const bench_case *c, bench_tensors *out)
{
    const bench_images s = bench_images_of(b, c->row);
    const int64_t edge = bench_images_out(&s);
    const atto_shape x = atto_shape4(s.batch, s.channels, s.edge, s.edge);
    const atto_shape y = atto_shape4(s.batch, s.outputs, edge, edge);
    const atto_shape w = s.transposed
                             ? atto_shape4(s.channels, s.outputs / s.groups, s.kernel, s.kernel)
                             : atto_shape4(s.outputs, s.channels / s.groups, s.kernel, s.kernel);
    const struct {
        atto_tensor *t;
        atto_shape shape;
    } parts[] = { { &out->x, x }, { &out->w, w },   { &out->dy, y },
                  { &out->z, y }, { &out->out, x }, { &out->dw, w } };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        BENCH_TRY(make_image(b, c->dtype, parts[i].shape, s.channels_last, parts[i].t));
    return ATTO_OK;
}

static atto_status allocate_set(bench *b, const bench_case *c, bench_tensors *out)
{
    if (c->row->matrix.m > 0) return allocate_matrices(b, c, out);
    if (c->row->attention.width > 0) return allocate_heads(b, c, out);
    if (c->row->images.batch > 0) return allocate_images(b, c, out);
    const bench_layout layout = c->row->layout;
    const bench_layout out_layout = layout == BENCH_TRANSPOSED ? BENCH_DENSE : layout;
    const atto_shape shape = shape_of(c->row, bench_elements(b, c->dtype));
    const atto_dtype out_dtype = c->row->out_dtype ? c->row->out_dtype : c->dtype;
    BENCH_TRY(make_tensor(b->dev, c->dtype, shape, layout, &out->x));
    BENCH_TRY(make_tensor(b->dev, c->dtype, shape, layout, &out->dy));
    return make_tensor(b->dev, out_dtype, shape, out_layout, &out->out);
}

/* first is NULL for the first set. Inputs that the row does not have are zeroed and stay so. */
static atto_status fill_set(bench *b, const bench_tensors *t, const bench_tensors *first,
                            bench_layout layout)
{
    const atto_tensor *const inputs[] = { &t->x, &t->dy, &t->w, &t->b, &t->z };
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        const size_t where = (size_t)((const char *)inputs[i] - (const char *)t);
        const atto_tensor *model =
            first ? (const atto_tensor *)(const void *)((const char *)first + where) : NULL;
        if (inputs[i]->buffer != NULL)
            BENCH_TRY(fill_input(b, inputs[i], model, layout, 1 + (uint64_t)i));
    }
    return ATTO_OK;
}

/* The next set; all of it is released on failure. */
static atto_status make_set(bench *b, const bench_case *c)
{
    bench_tensors t;
    memset(&t, 0, sizeof t);
    atto_status status = allocate_set(b, c, &t);
    if (status == ATTO_OK)
        status = fill_set(b, &t, b->set_count > 0 ? &b->sets[0] : NULL, c->row->layout);
    if (status == ATTO_OK && c->row->prepare) status = c->row->prepare(b->dev, c->row, &t);
    if (status == ATTO_OK) status = atto_device_sync(b->dev); /* memory is only now really there */
    if (status == ATTO_OK)
        b->sets[b->set_count++] = t;
    else
        free_set(&t);
    return status;
}

/* Linux says it in /sys. Not sysconf: in a virtual machine glibc adds up the caches of the whole
 * processor, ten times what this machine has. */
int64_t bench_last_level_cache(void)
{
    FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    long long kib = 0;
    if (file != NULL && fscanf(file, "%lldK", &kib) != 1) kib = 0;
    if (file != NULL) fclose(file);
    return kib > 0 ? kib << 10 : 32 << 20;
}

/* Bytes of a set, and those of it that a call moves. */
static int64_t set_bytes(const bench *b, const bench_case *c, int64_t *moved)
{
    const int64_t size = (int64_t)atto_dtype_size(c->dtype);
    if (c->row->attention.width > 0) {
        const bench_heads s = bench_heads_of(b, c->row);
        const int64_t queries = s.heads * s.queries, keys = s.shared * s.keys;
        if (s.weights >
            0) { /* with what its ops hand on: as much as x for each square of weights */
            const int64_t x = s.batches * s.width * size * queries;
            *moved = (2 + s.weights) * x;
            return 2 * x;
        }
        *moved = 2 * s.batches * s.width * size * (queries + keys); /* at the least */
        return 2 * *moved;
    }
    if (c->row->images.batch > 0) {
        const bench_images s = bench_images_of(b, c->row);
        const int64_t edge = bench_images_out(&s);
        *moved = s.batch * size * (s.channels * s.edge * s.edge + s.outputs * edge * edge);
        return 2 * *moved;
    }
    if (c->row->matrix.m == 0) {
        const int64_t tensor = numel(shape_of(c->row, bench_elements(b, c->dtype))) * size;
        *moved = tensor * (c->row->reads + c->row->writes);
        return 3 * tensor;
    }
    const bench_matrix s = bench_matrix_of(b, c->row);
    const int64_t batch = s.batch > 0 ? s.batch : 1;
    *moved = batch * size * (s.m * s.k + s.n * s.k + s.m * s.n); /* at the least */
    return batch * size * (2 * s.m * s.k + 2 * s.n * s.k + 3 * s.m * s.n);
}

/* How many sets make ten times the last-level cache (CPU) or 1 GiB (GPU), within an eighth of the
 * device's memory. */
static int32_t sets_wanted(const bench *b, const bench_case *c)
{
    int64_t moved;
    const int64_t bytes = set_bytes(b, c, &moved);
    const int64_t target = b->is_cpu ? 10 * bench_last_level_cache() : (int64_t)1 << 30;
    const int64_t most = (int64_t)(b->info.memory_bytes / 8) / bytes;
    int64_t n = (target + moved - 1) / moved;
    if (b->info.memory_bytes > 0 && n > most) n = most;
    if (n > BENCH_MAX_SETS) n = BENCH_MAX_SETS;
    return n < 1 ? 1 : (int32_t)n;
}

/* Of their own, beside which the options' elements do not count. */
static bool has_sizes(const bench_row *row)
{
    return row->matrix.m > 0 || row->attention.width > 0 || row->images.batch > 0;
}

static bool same_tensors(const bench_case *a, const bench_case *b)
{
    if (a->row != NULL && (has_sizes(a->row) || has_sizes(b->row)))
        return a->row == b->row && a->dtype == b->dtype;
    return a->row != NULL && a->dtype == b->dtype && a->row->layout == b->row->layout &&
           a->row->out_dtype == b->row->out_dtype && a->row->rows == b->row->rows &&
           a->row->cols == b->row->cols && a->row->prepare == b->row->prepare;
}

atto_status bench_make_sets(bench *b, const bench_case *c)
{
    if (!same_tensors(&b->made_for, c)) bench_free_sets(b);
    b->made_for = *c;
    const int32_t wanted = sets_wanted(b, c);
    while (b->set_count < wanted) {
        const atto_status status = make_set(b, c);
        if (status == ATTO_E_MEMORY && b->set_count > 0) break; /* the largest that fits */
        if (status != ATTO_OK) return status;
    }
    return ATTO_OK;
}

void bench_free_sets(bench *b)
{
    for (int32_t i = 0; i < b->set_count; i++) free_set(&b->sets[i]);
    bench_optim_drop();
    bench_module_drop();
    if (b->set_count > 0) (void)atto_device_trim(b->dev); /* the next sets have other sizes */
    b->set_count = 0;
    b->next = 0;
    b->made_for = (bench_case){ 0 };
}

atto_status bench_write_labels(int64_t classes, const atto_tensor *labels)
{
    const int64_t rows = labels->shape[0];
    int32_t *data = malloc((size_t)rows * sizeof *data);
    if (data == NULL) return ATTO_E_MEMORY;
    for (int64_t i = 0; i < rows; i++) data[i] = (int32_t)(i * 7919 % classes);
    const atto_status status = atto_tensor_write(labels, data);
    free(data);
    return status;
}
