/* SPDX-License-Identifier: MIT */
/* Group norm on the CPU.
 *
 *   forward    y = (x - mean) rstd w + b
 *   backward   db = sum of dy,  dw = sum of dy n,  n = (x - mean) rstd
 *              dx = rstd (w dy - [sum of w dy] / F - n [sum of w dy n] / F),  sums over the group
 *
 * Both have three steps for an image: collect numbers of its channels, finish them by groups, write the
 * result. A unit of an image is a channel's run of size elements, or, where channels are neighbours, a slab
 * of rows of them. Where there are enough images each is a thread's, which finds it in its cache when it
 * writes; else threads share units, step by step. Both are decided by the shape alone.
 */
#include "batch_norm.h"

#include "backend_cpu/channels.h"
#include "backend_cpu/rows.h"

/* So many images are shared out whole. */
#define ENOUGH_IMAGES 16

typedef struct job {
    const struct atto_group_norm_args *a;
    int64_t n, channels, size, values;     /* values: of a group */
    int64_t groups, per_group;             /* of an image; channels */
    bool last;                             /* channels are neighbours */
    int64_t units, slabs, per_slab;        /* of an image; a run is one slab of size rows */
    const float *w, *b;                    /* [channels] */
    float *mean, *rstd;                    /* [n, groups] */
    float *first, *second;                 /* [n, slabs, channels]: mean and squares, or two sums */
    float *shift, *scale, *offset, *slope; /* [n, channels]: what results are made with */
    float *dw, *db;                        /* [channels] */
    void (*collect)(const struct job *j, int64_t unit);
    void (*finish)(const struct job *j, int64_t image);
    void (*write)(const struct job *j, int64_t unit);
} job;

static job job_of(const struct atto_group_norm_args *a, const atto__layout *layout)
{
    const atto__group_norm g = atto__group_norm_of(a);
    job j = { .a = a,
              .n = g.n,
              .channels = g.channels,
              .size = g.size,
              .values = g.values,
              .groups = a->groups,
              .per_group = g.channels / a->groups,
              .last = layout->channels_last || g.size == 1,
              .slabs = 1,
              .per_slab = g.size };
    const int64_t most = g.size / 64; /* a slab costs arrays of all channels */
    if (j.last && most > 1) j.slabs = most < 32 ? most : 32;
    if (j.last && g.size > 0) {
        j.per_slab = (g.size + j.slabs - 1) / j.slabs;
        j.slabs = (g.size + j.per_slab - 1) / j.per_slab;
    }
    j.units = j.last ? j.slabs : g.channels;
    return j;
}

/* Rows of a slab, elements of a run. */
static int64_t rows_of(const job *j, int64_t slab)
{
    const int64_t left = j->size - slab * j->per_slab;
    return left < j->per_slab ? left : j->per_slab;
}

/* Where slabs of an image's channel have their numbers. */
static int64_t part_of(const job *j, int64_t image, int64_t slab, int64_t channel)
{
    return (image * j->slabs + slab) * j->channels + channel;
}

/* ---- blocks ---- */

/* A block of elements, whose channels follow each other (step 1) or are all the same (step 0). */
typedef struct block {
    int64_t at, number, part; /* in the tensor, in arrays [n, channels], in those of slabs */
    int32_t n, step;
} block;

typedef void (*block_body)(const job *j, const block *k);

static void for_run(const job *j, int64_t unit, block_body body)
{
    for (int64_t first = 0; first < j->size; first += ATTO_BLOCK) {
        const block k = { unit * j->size + first, unit, unit, block_length(j->size - first), 0 };
        body(j, &k);
    }
}

static void for_rows(const job *j, int64_t unit, block_body body)
{
    const int64_t image = unit / j->slabs, begin = unit % j->slabs * j->per_slab;
    const int64_t rows = rows_of(j, unit % j->slabs), channels = j->channels;
    for (int64_t row = image * j->size + begin; row < image * j->size + begin + rows; row++)
        for (int64_t first = 0; first < channels; first += ATTO_BLOCK) {
            const block k = { row * channels + first, image * channels + first,
                              unit * channels + first, block_length(channels - first), 1 };
            body(j, &k);
        }
}

static void for_blocks(const job *j, int64_t unit, block_body body)
{
    if (j->last)
        for_rows(j, unit, body);
    else
        for_run(j, unit, body);
}

/* ---- images, or units ---- */

static void whole_images(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    for (int64_t image = begin; image < end; image++) {
        const int64_t first = image * j->units;
        for (int64_t unit = first; unit < first + j->units; unit++) j->collect(j, unit);
        j->finish(j, image);
        for (int64_t unit = first; unit < first + j->units; unit++) j->write(j, unit);
    }
}

static void collect_units(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    for (int64_t unit = begin; unit < end; unit++) j->collect(j, unit);
}

static void write_units(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    for (int64_t unit = begin; unit < end; unit++) j->write(j, unit);
}

static void run(atto_device *dev, const job *j)
{
    const bool small = j->n * j->channels * j->size < ATTO_SERIAL_BELOW;
    const int32_t threads = small ? 1 : atto__cpu_threads(dev);
    dev->stats.launches++;
    if (j->n >= ENOUGH_IMAGES) {
        atto__parallel_for(threads, j->n, whole_images, j);
        return;
    }
    atto__parallel_for(threads, j->n * j->units, collect_units, j);
    for (int64_t image = 0; image < j->n; image++) j->finish(j, image);
    atto__parallel_for(threads, j->n * j->units, write_units, j);
}

/* Scratch for all that the job has in memory. b: the bias, which only forward may look at. */
static atto_status begin(atto_device *dev, job *j, const atto_tensor *b, atto_buffer *header)
{
    const int64_t stats = j->n * j->groups, numbers = j->n * j->channels;
    const int64_t parts = numbers * j->slabs;
    const int64_t size = 2 * (2 * j->channels + stats + parts) + 4 * numbers;
    atto_tensor scratch;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &size, header, &scratch));
    float *at = atto__memory(&scratch);
    j->w = parameter_of(j->a->w, 1.0f, j->channels, at);
    j->b = parameter_of(b, 0.0f, j->channels, at + j->channels);
    j->mean = stats > 0 && j->a->mean ? floats_of(j->a->mean) : at + 2 * j->channels;
    j->rstd = stats > 0 && j->a->rstd ? floats_of(j->a->rstd) : at + 2 * j->channels + stats;
    j->first = at + 2 * (j->channels + stats);
    j->second = j->first + parts;
    j->shift = j->second + parts;
    j->scale = j->shift + numbers;
    j->offset = j->scale + numbers;
    j->slope = j->offset + numbers;
    j->dw = j->slope + numbers;
    j->db = j->dw + j->channels;
    return ATTO_OK;
}

/* ---- forward ---- */

static void collect_moments(const job *j, int64_t unit)
{
    const int64_t image = unit / j->slabs, slab = unit % j->slabs;
    const int64_t at = (image * j->size + slab * j->per_slab) * j->channels;
    moments m = { 0.0, 0.0, 0.0 };
    if (j->last) {
        moments_of_rows(j->a->x, at, rows_of(j, slab), j->channels, j->first + unit * j->channels,
                        j->second + unit * j->channels);
        return;
    }
    merge_run(&m, j->a->x, unit * j->size, j->size);
    j->first[unit] = (float)m.mean;
    j->second[unit] = (float)m.squares;
}

static moments moments_of_group(const job *j, int64_t image, int64_t group)
{
    moments m = { 0.0, 0.0, 0.0 };
    for (int64_t slab = 0; slab < j->slabs; slab++)
        for (int64_t c = group * j->per_group; c < (group + 1) * j->per_group; c++) {
            const int64_t part = part_of(j, image, slab, c);
            merge(&m, (double)rows_of(j, slab), (double)j->first[part], (double)j->second[part]);
        }
    return m;
}

static void finish_forward(const job *j, int64_t image)
{
    for (int64_t group = 0; group < j->groups; group++) {
        const moments m = moments_of_group(j, image, group);
        const int64_t stat = image * j->groups + group;
        j->mean[stat] = (float)m.mean;
        j->rstd[stat] = attop_rsqrt((float)(m.squares / m.n) + j->a->eps);
    }
    for (int64_t c = 0; c < j->channels; c++) {
        const int64_t stat = image * j->groups + c / j->per_group, at = image * j->channels + c;
        j->shift[at] = j->mean[stat];
        j->scale[at] = j->rstd[stat] * j->w[c];
        j->offset[at] = j->b[c];
    }
}

ATTO_INLINE void y_by(const job *j, const block *k, const float *x, float *y, int32_t step)
{
    const float *shift = j->shift + k->number, *scale = j->scale + k->number;
    const float *offset = j->offset + k->number;
    ATTO_SIMD
    for (int32_t i = 0; i < k->n; i++)
        y[i] = (x[i] - shift[i * step]) * scale[i * step] + offset[i * step];
}

static void block_of_y(const job *j, const block *k)
{
    float of_x[ATTO_BLOCK], of_y[ATTO_BLOCK];
    const float *x = load_block(span_at(j->a->x, k->at, k->n), of_x);
    const span to = span_at(j->a->y, k->at, k->n);
    float *y = store_target(to, of_y);
    if (k->step)
        y_by(j, k, x, y, 1);
    else
        y_by(j, k, x, y, 0);
    store_block(y, to);
}

static void write_y(const job *j, int64_t unit)
{
    for_blocks(j, unit, block_of_y);
}

/* Means over the images of what each has, which has one group for each channel. */
static void update_running(const job *j)
{
    float *mean = floats_of(j->a->running_mean), *var = floats_of(j->a->running_var);
    const float share = j->a->momentum;
    for (int64_t c = 0; mean && c < j->channels; c++) {
        double means = 0.0, vars = 0.0;
        for (int64_t image = 0; image < j->n; image++) {
            const moments m = moments_of_group(j, image, c);
            means += m.mean;
            vars += m.squares / (m.n - 1.0);
        }
        mean[c] = (1.0f - share) * mean[c] + share * (float)(means / (double)j->n);
        var[c] = (1.0f - share) * var[c] + share * (float)(vars / (double)j->n);
    }
}

static void no_values(const struct atto_group_norm_args *a, int64_t stats)
{
    float *mean = floats_of(a->mean), *rstd = floats_of(a->rstd);
    for (int64_t i = 0; mean && i < stats; i++) mean[i] = NAN;
    for (int64_t i = 0; rstd && i < stats; i++) rstd[i] = NAN;
}

atto_status ATTO_LEVEL_NAME(group_norm_forward)(atto_device *dev,
                                                const struct atto_group_norm_args *a,
                                                const atto__layout *layout)
{
    job j = job_of(a, layout);
    atto_buffer header;
    if (j.n == 0) return ATTO_OK;
    if (j.values == 0) {
        no_values(a, j.n * j.groups);
        return ATTO_OK;
    }
    ATTO_TRY(begin(dev, &j, a->b, &header));
    j.collect = collect_moments, j.finish = finish_forward, j.write = write_y;
    run(dev, &j);
    update_running(&j);
    return ATTO_OK;
}

/* ---- backward ---- */

/* first += dy, second += dy (x - mean), of channels side by side. */
static void add_columns(const job *j, const block *k, const float *x, const float *dy)
{
    float *first = j->first + k->part, *second = j->second + k->part;
    const float *shift = j->shift + k->number;
    ATTO_SIMD
    for (int32_t i = 0; i < k->n; i++) {
        first[i] += dy[i];
        second[i] += dy[i] * (x[i] - shift[i]);
    }
}

/* The same of one channel. */
static void add_row(const job *j, const block *k, const float *x, const float *dy)
{
    float apart[ATTO_BLOCK];
    const float shift = j->shift[k->number];
    ATTO_SIMD
    for (int32_t i = 0; i < k->n; i++) apart[i] = x[i] - shift;
    j->first[k->part] += block_sum(dy, k->n);
    j->second[k->part] += block_dot(dy, apart, k->n);
}

static void block_of_sums(const job *j, const block *k)
{
    float of_x[ATTO_BLOCK], of_dy[ATTO_BLOCK];
    const float *x = load_block(span_at(j->a->x, k->at, k->n), of_x);
    const float *dy = load_block(span_at(j->a->dy, k->at, k->n), of_dy);
    if (k->step)
        add_columns(j, k, x, dy);
    else
        add_row(j, k, x, dy);
}

static void collect_sums(const job *j, int64_t unit)
{
    const int64_t numbers = j->last ? j->channels : 1;
    for (int64_t i = unit * numbers; i < (unit + 1) * numbers; i++)
        j->first[i] = j->second[i] = 0.0f;
    for_blocks(j, unit, block_of_sums);
}

/* Sums over slabs, to the first of them, the second times rstd: those of dy and of dy n. */
static void join_slabs(const job *j, int64_t image)
{
    for (int64_t c = 0; c < j->channels; c++) {
        double first = 0.0, second = 0.0;
        for (int64_t slab = 0; slab < j->slabs; slab++) {
            first += (double)j->first[part_of(j, image, slab, c)];
            second += (double)j->second[part_of(j, image, slab, c)];
        }
        const int64_t at = part_of(j, image, 0, c);
        j->first[at] = (float)first;
        j->second[at] = (float)(second * (double)j->rstd[image * j->groups + c / j->per_group]);
    }
}

static void finish_backward(const job *j, int64_t image)
{
    join_slabs(j, image);
    for (int64_t group = 0; group < j->groups; group++) {
        const int64_t begin_c = group * j->per_group, end_c = begin_c + j->per_group;
        const float rstd = j->rstd[image * j->groups + group];
        double first = 0.0, second = 0.0;
        for (int64_t c = begin_c; c < end_c; c++) {
            first += (double)j->w[c] * (double)j->first[part_of(j, image, 0, c)];
            second += (double)j->w[c] * (double)j->second[part_of(j, image, 0, c)];
        }
        for (int64_t c = begin_c; c < end_c; c++) {
            const int64_t at = image * j->channels + c;
            j->scale[at] = rstd * j->w[c];
            j->offset[at] = rstd * (float)(first / (double)j->values);
            j->slope[at] =
                rstd * (rstd * (float)(second / (double)j->values)); /* rstd^2 may be infinite */
        }
    }
}

ATTO_INLINE void dx_by(const job *j, const block *k, const float *x, const float *dy, float *dx,
                       int32_t step)
{
    const float *shift = j->shift + k->number, *scale = j->scale + k->number;
    const float *offset = j->offset + k->number, *slope = j->slope + k->number;
    ATTO_SIMD
    for (int32_t i = 0; i < k->n; i++)
        dx[i] = (scale[i * step] * dy[i] - offset[i * step]) -
                (x[i] - shift[i * step]) * slope[i * step];
}

static void block_of_dx(const job *j, const block *k)
{
    float of_x[ATTO_BLOCK], of_dy[ATTO_BLOCK], dx[ATTO_BLOCK], old[ATTO_BLOCK];
    const float *x = load_block(span_at(j->a->x, k->at, k->n), of_x);
    const float *dy = load_block(span_at(j->a->dy, k->at, k->n), of_dy);
    const span to = span_at(j->a->dx, k->at, k->n);
    if (k->step)
        dx_by(j, k, x, dy, dx, 1);
    else
        dx_by(j, k, x, dy, dx, 0);
    if (j->a->add_dx) accumulate_block(dx, to, old);
    store_block(dx, to);
}

static void write_dx(const job *j, int64_t unit)
{
    if (j->a->dx) for_blocks(j, unit, block_of_dx);
}

/* Sums over images; there may be none. */
static void put_parameters(const job *j)
{
    for (int64_t c = 0; c < j->channels; c++) {
        double first = 0.0, second = 0.0;
        for (int64_t image = 0; image < j->n && j->values > 0; image++) {
            first += (double)j->first[part_of(j, image, 0, c)];
            second += (double)j->second[part_of(j, image, 0, c)];
        }
        j->db[c] = (float)first;
        j->dw[c] = (float)second;
    }
    put_parameter(j->a->db, j->db, j->channels, j->a->add_db);
    put_parameter(j->a->dw, j->dw, j->channels, j->a->add_dw);
}

/* What the steps need of mean before they have begun. */
static void begin_backward(const job *j)
{
    for (int64_t image = 0; image < j->n; image++)
        for (int64_t c = 0; c < j->channels; c++)
            j->shift[image * j->channels + c] = j->mean[image * j->groups + c / j->per_group];
}

atto_status ATTO_LEVEL_NAME(group_norm_backward)(atto_device *dev,
                                                 const struct atto_group_norm_args *a,
                                                 const atto__layout *layout)
{
    job j = job_of(a, layout);
    atto_buffer header;
    ATTO_TRY(begin(dev, &j, NULL, &header));
    j.collect = collect_sums, j.finish = finish_backward, j.write = write_dx;
    if (j.n > 0 && j.values > 0) {
        begin_backward(&j);
        run(dev, &j);
    }
    put_parameters(&j);
    return ATTO_OK;
}
