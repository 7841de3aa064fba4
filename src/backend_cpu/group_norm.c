/* SPDX-License-Identifier: MIT */
/* Group norm on the CPU.
 *
 *   forward    y = (x - mean) rstd w + b
 *   backward   db = sum of dy,  dw = sum of dy n,  n = (x - mean) rstd
 *              dx = rstd (w dy - [sum of w dy] / F - n [sum of w dy n] / F),  sums over the group
 *
 * Both have three steps: collect numbers of channels, finish them by groups, write the result.
 * Portions do not need each other: a group of an image, or, where channels are neighbours, an
 * image. A unit of a portion is a channel's run of size elements, or a slab of rows of channels.
 * Where there are enough portions each is a thread's, which finds it in its cache when it writes;
 * else threads share units, step by step. Both are decided by the shape alone.
 */
#include "batch_norm.h"

#include "backend_cpu/channels.h"

/* So many portions are shared out whole. */
#define ENOUGH_PORTIONS 16

typedef struct job {
    const struct atto_group_norm_args *a;
    int64_t n, channels, size, values;     /* values: of a group */
    int64_t groups, per_group;             /* of an image; channels */
    bool last;                             /* channels are neighbours */
    int64_t portions, units;               /* of the tensor; of a portion */
    int64_t slabs, per_slab;               /* of an image; a run is one slab of size rows */
    int64_t ahead;                         /* elements that lie so far ahead are asked for */
    bool streams;                          /* results pass the caches by */
    const float *w, *b;                    /* [channels] */
    float *mean, *rstd;                    /* [n, groups] */
    double *means;                         /* [n, slabs, channels] */
    float *first, *second;                 /* likewise: two sums; second also squares */
    float *shift, *scale, *offset, *slope; /* [n, channels]: what results are made with */
    float *dw, *db;                        /* [channels] */
    void (*collect)(const struct job *j, int64_t unit);
    void (*finish)(const struct job *j, int64_t portion);
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
    j.portions = j.last ? g.n : g.n * a->groups;
    j.units = j.last ? j.slabs : j.per_group;
    if (a->x->dtype == ATTO_F32) j.ahead = j.last ? ATTO_BLOCK : j.size * j.per_group;
    return j;
}

/* Groups of an image, from begin to end. */
typedef struct group_range {
    int64_t image, begin, end;
} group_range;

static group_range groups_of(const job *j, int64_t portion)
{
    if (j->last) return (group_range){ portion, 0, j->groups };
    const int64_t group = portion % j->groups;
    return (group_range){ portion / j->groups, group, group + 1 };
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

/* Elements of one channel (step 0), or of rows of n channels that follow each other (step 1). */
typedef struct block {
    int64_t at, number, part; /* in the tensor, in arrays [n, channels], in those of slabs */
    int32_t n, rows, step;
} block;

static int32_t elements_of(const block *k)
{
    return k->n * k->rows;
}

typedef void (*block_body)(const job *j, const block *k);

static void for_run(const job *j, int64_t unit, block_body body)
{
    for (int64_t first = 0; first < j->size; first += ATTO_BLOCK) {
        const block k = { unit * j->size + first, unit, unit, block_length(j->size - first), 1, 0 };
        body(j, &k);
    }
}

static void for_rows(const job *j, int64_t unit, block_body body)
{
    const int64_t image = unit / j->slabs, slab = unit % j->slabs, channels = j->channels;
    const int64_t begin = image * j->size + slab * j->per_slab, end = begin + rows_of(j, slab);
    const int64_t fit = channels < ATTO_BLOCK ? ATTO_BLOCK / channels : 1;
    for (int64_t row = begin; row < end; row += fit)
        for (int64_t first = 0; first < channels; first += ATTO_BLOCK) {
            const int64_t rows = end - row < fit ? end - row : fit;
            const block k = { row * channels + first,  image * channels + first,
                              unit * channels + first, block_length(channels - first),
                              (int32_t)rows,           1 };
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

static const float *load(const atto_tensor *t, const block *k, float *buffer)
{
    return load_block(span_at(t, k->at, elements_of(k)), buffer);
}

/* ---- portions, or units ---- */

static void whole_portions(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    for (int64_t portion = begin; portion < end; portion++) {
        const int64_t first = portion * j->units;
        for (int64_t unit = first; unit < first + j->units; unit++) j->collect(j, unit);
        j->finish(j, portion);
        for (int64_t unit = first; unit < first + j->units; unit++) j->write(j, unit);
    }
    end_stream();
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
    end_stream();
}

static void run(atto_device *dev, const job *j)
{
    const bool small = j->n * j->channels * j->size < ATTO_SERIAL_BELOW;
    const int32_t threads = small ? 1 : atto__cpu_threads(dev);
    dev->stats.launches++;
    if (j->portions >= ENOUGH_PORTIONS) {
        atto__parallel_for(threads, j->portions, whole_portions, j);
        return;
    }
    atto__parallel_for(threads, j->portions * j->units, collect_units, j);
    for (int64_t portion = 0; portion < j->portions; portion++) j->finish(j, portion);
    atto__parallel_for(threads, j->portions * j->units, write_units, j);
}

/* Scratch for all that the job has in memory. b: the bias, which only forward may look at. */
static atto_status begin(atto_device *dev, job *j, const atto_tensor *b, atto_buffer *header)
{
    const int64_t stats = j->n * j->groups, numbers = j->n * j->channels;
    const int64_t parts = numbers * j->slabs;
    const int64_t size = 2 * (2 * j->channels + stats + 2 * parts) + 4 * numbers;
    atto_tensor scratch;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &size, header, &scratch));
    j->means = atto__memory(&scratch);
    float *at = (float *)(j->means + parts);
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
        moments_of_rows(j->a->x, at, rows_of(j, slab), j->channels, j->means + unit * j->channels,
                        j->second + unit * j->channels);
        return;
    }
    merge_run(&m, j->a->x, unit * j->size, j->size);
    j->means[unit] = m.mean;
    j->second[unit] = (float)m.squares;
}

static moments moments_of_group(const job *j, int64_t image, int64_t group)
{
    moments m = { 0.0, 0.0, 0.0 };
    for (int64_t slab = 0; slab < j->slabs; slab++)
        for (int64_t c = group * j->per_group; c < (group + 1) * j->per_group; c++) {
            const int64_t part = part_of(j, image, slab, c);
            merge(&m, (double)rows_of(j, slab), j->means[part], (double)j->second[part]);
        }
    return m;
}

static void finish_forward(const job *j, int64_t portion)
{
    const group_range r = groups_of(j, portion);
    for (int64_t group = r.begin; group < r.end; group++) {
        const moments m = moments_of_group(j, r.image, group);
        const int64_t stat = r.image * j->groups + group;
        j->mean[stat] = (float)m.mean;
        j->rstd[stat] = attop_rsqrt((float)(m.squares / m.n) + j->a->eps);
    }
    for (int64_t c = r.begin * j->per_group; c < r.end * j->per_group; c++) {
        const int64_t stat = r.image * j->groups + c / j->per_group;
        const int64_t at = r.image * j->channels + c;
        j->shift[at] = j->mean[stat];
        j->scale[at] = j->rstd[stat] * j->w[c];
        j->offset[at] = j->b[c];
    }
}

/* Row r of a block. Vectors pass the caches by, if they may. */
ATTO_INLINE void y_by(const job *j, const block *k, int32_t r, const float *x, float *y,
                      bool past_cache, int32_t step)
{
    const float *shift = j->shift + k->number, *scale = j->scale + k->number;
    const float *offset = j->offset + k->number;
    int32_t i = 0;
    x += r * k->n, y += r * k->n;
    for (; i + VEC_LANES <= k->n; i += VEC_LANES) {
        const vec d = vec_load(x + i) - numbers_at(shift, i, step);
        vec_prefetch_as(x + i, j->ahead, ATTO_F32);
        put_vec(y + i, d * numbers_at(scale, i, step) + numbers_at(offset, i, step), past_cache);
    }
    for (; i < k->n; i++) y[i] = (x[i] - shift[i * step]) * scale[i * step] + offset[i * step];
}

static void block_of_y(const job *j, const block *k)
{
    float of_x[ATTO_BLOCK], of_y[ATTO_BLOCK];
    const float *x = load(j->a->x, k, of_x);
    const span to = span_at(j->a->y, k->at, elements_of(k));
    float *y = store_target(to, of_y);
    const bool past_cache = j->streams && rows_aligned(y, k->n, k->rows);
    if (!k->step) y_by(j, k, 0, x, y, past_cache, 0);
    for (int32_t r = 0; r < k->rows && k->step; r++) y_by(j, k, r, x, y, past_cache, 1);
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
    j.streams = streams_to(a->y);
    run(dev, &j);
    update_running(&j);
    return ATTO_OK;
}

/* ---- backward ---- */

/* The block as floats. */
static grad_block load_grad(const job *j, const block *k, float *of_x, float *of_dy)
{
    return (grad_block){
        load(j->a->x, k, of_x), load(j->a->dy, k, of_dy), k->n, k->rows, k->step, j->ahead
    };
}

static void block_of_sums(const job *j, const block *k)
{
    float of_x[ATTO_BLOCK], of_dy[ATTO_BLOCK];
    const grad_block g = load_grad(j, k, of_x, of_dy);
    const grad_sums sums = { j->shift + k->number, j->scale + k->number, j->first + k->part,
                             j->second + k->part };
    add_grad_sums(&g, &sums);
}

static void collect_sums(const job *j, int64_t unit)
{
    const int64_t numbers = j->last ? j->channels : 1;
    for (int64_t i = unit * numbers; i < (unit + 1) * numbers; i++)
        j->first[i] = j->second[i] = 0.0f;
    for_blocks(j, unit, block_of_sums);
}

/* A channel's sums over slabs, to the first of them. */
static void join_slabs(const job *j, int64_t image, int64_t c)
{
    double first = 0.0, second = 0.0;
    for (int64_t slab = 0; slab < j->slabs; slab++) {
        first += (double)j->first[part_of(j, image, slab, c)];
        second += (double)j->second[part_of(j, image, slab, c)];
    }
    const int64_t at = part_of(j, image, 0, c);
    j->first[at] = (float)first;
    j->second[at] = (float)second;
}

static void finish_group(const job *j, int64_t image, int64_t group)
{
    const int64_t begin_c = group * j->per_group, end_c = begin_c + j->per_group;
    const float rstd = j->rstd[image * j->groups + group];
    double first = 0.0, second = 0.0;
    for (int64_t c = begin_c; c < end_c; c++) {
        join_slabs(j, image, c);
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

static void finish_backward(const job *j, int64_t portion)
{
    const group_range r = groups_of(j, portion);
    for (int64_t group = r.begin; group < r.end; group++) finish_group(j, r.image, group);
}

static void block_of_dx(const job *j, const block *k)
{
    float of_x[ATTO_BLOCK], of_dy[ATTO_BLOCK], of_dx[ATTO_BLOCK], old[ATTO_BLOCK];
    const grad_block g = load_grad(j, k, of_x, of_dy);
    const grad_numbers numbers = { j->shift + k->number, j->scale + k->number,
                                   j->offset + k->number, j->slope + k->number };
    const span to = span_at(j->a->dx, k->at, elements_of(k));
    float *dx = j->a->add_dx ? of_dx : store_target(to, of_dx);
    write_dx_rows(&g, &numbers, dx, j->streams);
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

/* What sums need before any step has begun; finish_group has another scale. */
static void begin_backward(const job *j)
{
    for (int64_t at = 0; at < j->n * j->channels; at++) {
        j->shift[at] = j->mean[at / j->per_group];
        j->scale[at] = j->rstd[at / j->per_group];
    }
}

atto_status ATTO_LEVEL_NAME(group_norm_backward)(atto_device *dev,
                                                 const struct atto_group_norm_args *a,
                                                 const atto__layout *layout)
{
    job j = job_of(a, layout);
    atto_buffer header;
    ATTO_TRY(begin(dev, &j, NULL, &header));
    j.collect = collect_sums, j.finish = finish_backward, j.write = write_dx;
    j.streams = a->dx && !a->add_dx && streams_to(a->dx);
    if (j.n > 0 && j.values > 0) {
        begin_backward(&j);
        run(dev, &j);
    }
    put_parameters(&j);
    return ATTO_OK;
}
