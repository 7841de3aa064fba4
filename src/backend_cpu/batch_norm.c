/* SPDX-License-Identifier: MIT */
/* Batch norm on the CPU.
 *
 *   forward    y = act(n w + b + residual),  n = (x - mean) rstd
 *   backward   dz = act'(n w + b + residual) dy,  db = sum of dz,  dw = sum of dz n
 *              dx = w rstd (dz - (db + n dw) / M),  in training
 *
 * Two shapes: [n, channels, size], whose runs of size elements have one channel, and rows of
 * channels (size 1). Both are cut into slabs along n by the shape alone; each has its own moments
 * or sums, which are merged in order.
 */
#include "batch_norm.h"

#include "backend_cpu/act.h"
#include "backend_cpu/channels.h"
#include "backend_cpu/rows.h"

typedef struct job {
    const struct atto_batch_norm_args *a;
    atto__batch_norm g;
    bool rows;                     /* of channels: size is 1 */
    bool streams;                  /* results pass the caches by */
    int64_t slabs, per_slab;       /* of n */
    const float *mean, *rstd;      /* [channels] */
    const float *w, *b;            /* [channels] */
    double *means;                 /* [slabs, channels] */
    float *first, *second;         /* [slabs, channels]: sums of dz and dz n; second also squares */
    float *scale, *offset, *slope; /* [channels]: what dx is made with */
} job;

/* Slabs of rows, of which each costs arrays of all channels, or of images. */
static void cut(job *j, atto__batch_norm g, bool rows)
{
    j->g = g;
    j->rows = rows;
    const int64_t most = rows ? j->g.n / 64 : j->g.n;
    const int64_t slabs = most < 1 ? 1 : most < 32 ? most : 32;
    j->per_slab = (j->g.n + slabs - 1) / slabs;
    j->slabs = j->g.n > 0 ? (j->g.n + j->per_slab - 1) / j->per_slab : 1;
}

static int64_t end_of_slab(const job *j, int64_t slab)
{
    const int64_t end = (slab + 1) * j->per_slab;
    return end < j->g.n ? end : j->g.n;
}

static int32_t threads_for(const atto_device *dev, const job *j)
{
    return j->g.values * j->g.channels < ATTO_SERIAL_BELOW ? 1 : atto__cpu_threads(dev);
}

/* ---- moments ---- */

/* The runs of a channel in a slab. */
static void slab_of_runs(const job *j, int64_t slab, int64_t channel)
{
    moments m = { 0.0, 0.0, 0.0 };
    for (int64_t n = slab * j->per_slab; n < end_of_slab(j, slab); n++)
        merge_run(&m, j->a->x, (n * j->g.channels + channel) * j->g.size, j->g.size);
    j->means[slab * j->g.channels + channel] = m.mean;
    j->second[slab * j->g.channels + channel] = (float)m.squares;
}

static void slab_of_rows(const job *j, int64_t slab)
{
    const int64_t channels = j->g.channels, first = slab * j->per_slab;
    moments_of_rows(j->a->x, first * channels, end_of_slab(j, slab) - first, channels,
                    j->means + slab * channels, j->second + slab * channels);
}

/* Units are slabs of rows, or channels of slabs. */
static void moment_units(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    for (int64_t unit = begin; unit < end; unit++) {
        if (j->rows)
            slab_of_rows(j, unit);
        else
            slab_of_runs(j, unit / j->g.channels, unit % j->g.channels);
    }
}

static moments moments_of_channel(const job *j, int64_t channel)
{
    moments m = { 0.0, 0.0, 0.0 };
    for (int64_t slab = 0; slab < j->slabs; slab++) {
        const int64_t at = slab * j->g.channels + channel, n = end_of_slab(j, slab);
        merge(&m, (double)((n - slab * j->per_slab) * j->g.size), j->means[at],
              (double)j->second[at]);
    }
    return m;
}

/* The batch's weight in the running statistics; counts the batch. */
static float count_batch(const struct atto_batch_norm_args *a)
{
    if (!a->batches) return a->momentum;
    int64_t *batches = (int64_t *)atto__memory(a->batches) + a->batches->offset;
    *batches += 1;
    return a->cumulative ? 1.0f / (float)*batches : a->momentum;
}

/* A channel's moments to mean and rstd; share: the batch's weight in the running statistics. */
static void use_channel(const job *j, int64_t c, float share, float *mean, float *rstd)
{
    const struct atto_batch_norm_args *a = j->a;
    float *running_mean = floats_of(a->running_mean), *running_var = floats_of(a->running_var);
    const moments m = moments_of_channel(j, c);
    const float var = (float)(m.squares / m.n);
    mean[c] = (float)m.mean;
    rstd[c] = attop_rsqrt(var + a->eps);
    if (!running_mean) return;
    const float unbiased = (float)(m.squares / (m.n - 1.0));
    running_mean[c] = (1.0f - share) * running_mean[c] + share * mean[c];
    running_var[c] = (1.0f - share) * running_var[c] + share * unbiased;
}

static void use_batch(const job *j, float *mean, float *rstd)
{
    const float share = count_batch(j->a);
    for (int64_t c = 0; c < j->g.channels; c++) use_channel(j, c, share, mean, rstd);
}

static void use_running(const job *j, float *mean, float *rstd)
{
    const float *running_mean = floats_of(j->a->running_mean);
    const float *running_var = floats_of(j->a->running_var);
    for (int64_t c = 0; c < j->g.channels; c++) {
        mean[c] = running_mean[c];
        rstd[c] = attop_rsqrt(running_var[c] + j->a->eps);
    }
}

/* ---- blocks ---- */

/* n elements of a run, which has one channel (step 0), or of some rows of n channels each (step 1).
 * Elements from next on will be wanted soon. */
typedef struct block {
    int64_t at, channel, next;
    int32_t n, rows, step;
} block;

static int32_t elements_of(const block *k)
{
    return k->n * k->rows;
}

/* The block as floats; asks for the next one of the same tensor. */
static const float *load_ahead(const atto_tensor *t, const block *k, float *buffer)
{
    prefetch_block(span_at(t, k->next, elements_of(k)));
    return load_block(span_at(t, k->at, elements_of(k)), buffer);
}

/* z = n w + b + residual,  n = (x - mean) rstd. No residual: NULL. */
ATTO_INLINE void affine_by(const float *x, const float *mean, const float *rstd, const float *w,
                           const float *b, const float *residual, float *z, int32_t n, int32_t step)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) {
        const int32_t c = i * step;
        const float v = (x[i] - mean[c]) * rstd[c] * w[c] + b[c];
        z[i] = residual ? v + residual[i] : v;
    }
}

ATTO_INLINE void affine_rows(const job *j, const block *k, const float *x, const float *residual,
                             float *z)
{
    const int64_t c = k->channel;
    const float *mean = j->mean + c, *rstd = j->rstd + c, *w = j->w + c, *b = j->b + c;
    if (!k->step) affine_by(x, mean, rstd, w, b, residual, z, k->n, 0);
    for (int32_t r = 0; r < k->rows && k->step; r++) {
        const int32_t at = r * k->n;
        affine_by(x + at, mean, rstd, w, b, residual ? residual + at : NULL, z + at, k->n, 1);
    }
}

/* What the activation takes. */
static void preactivation(const job *j, const block *k, float *z)
{
    float of_x[ATTO_BLOCK], of_residual[ATTO_BLOCK];
    const float *x = load_ahead(j->a->x, k, of_x);
    if (j->a->residual)
        affine_rows(j, k, x, load_ahead(j->a->residual, k, of_residual), z);
    else
        affine_rows(j, k, x, NULL, z);
}

typedef void (*block_body)(const job *j, const block *k, void *state);

/* Calls body for every block of a run, or of a row of more channels than a block; the next run is
 * number next. */
static void for_blocks_of_run(const job *j, int64_t run, int64_t next, block_body body, void *state)
{
    const int64_t length = j->rows ? j->g.channels : j->g.size;
    for (int64_t first = 0; first < length; first += ATTO_BLOCK) {
        const int64_t channel = j->rows ? first : run % j->g.channels, at = run * length + first;
        const bool last = first + ATTO_BLOCK >= length;
        const block k = {
            at, channel, last ? next * length : at + ATTO_BLOCK, block_length(length - first),
            1,  j->rows
        };
        body(j, &k, state);
    }
}

/* The same for rows begin to end, as many at once as a block has room for. */
static void for_blocks_of_rows(const job *j, int64_t begin, int64_t end, block_body body,
                               void *state)
{
    const int64_t n = j->g.channels, fit = ATTO_BLOCK / n;
    for (int64_t row = begin; row < end; row += fit) {
        const int64_t rows = end - row < fit ? end - row : fit;
        const block k = { row * n, 0, (row + rows) * n, (int32_t)n, (int32_t)rows, 1 };
        body(j, &k, state);
    }
}

/* Calls body for every block of the runs begin to end that are so far apart. */
static void for_blocks(const job *j, int64_t begin, int64_t end, int64_t apart, block_body body,
                       void *state)
{
    if (j->rows && j->g.channels <= ATTO_BLOCK) {
        for_blocks_of_rows(j, begin, end, body, state);
    } else {
        for (int64_t run = begin; run < end; run += apart)
            for_blocks_of_run(j, run, run + apart, body, state);
    }
}

/* Rows, or runs of all channels. */
static int64_t runs_of(const job *j)
{
    return j->rows ? j->g.n : j->g.n * j->g.channels;
}

/* ---- forward ---- */

static void write_y(const job *j, const block *k, void *state)
{
    (void)state;
    float buffer[ATTO_BLOCK];
    const span y = span_at(j->a->y, k->at, elements_of(k));
    float *z = j->streams ? buffer : store_target(y, buffer);
    const atto_activation act = j->a->act;
    preactivation(j, k, z);
    if (act.kind != ATTO_ACT_IDENTITY)
        ATTO_LEVEL_NAME(act_loops)[act.kind].f(z, z, y.n, act.a, act.b);
    put_block(z, y, j->streams);
}

static void forward_runs(const void *job_, int64_t begin, int64_t end)
{
    for_blocks(job_, begin, end, 1, write_y, NULL);
    end_stream();
}

/* Slabs of moments, or of sums. */
static int64_t units_of(const job *j)
{
    return j->rows ? j->slabs : j->slabs * j->g.channels;
}

/* Scratch: three arrays for slabs, seven of channels, of which the first two are *arrays. */
static atto_status begin(atto_device *dev, job *j, atto_buffer *header, float **arrays)
{
    atto_tensor scratch;
    const int64_t channels = j->g.channels, slabs = j->slabs * channels;
    const int64_t size = 7 * channels + 4 * slabs;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &size, header, &scratch));
    j->means = atto__memory(&scratch);
    *arrays = (float *)(j->means + slabs);
    j->scale = *arrays + 2 * channels;
    j->offset = j->scale + channels;
    j->slope = j->offset + channels;
    float *w = j->slope + channels, *b = w + channels;
    j->first = b + channels;
    j->second = j->first + slabs;
    j->streams = streams_to(j->a->x);
    j->w = parameter_of(j->a->w, 1.0f, channels, w);
    j->b = parameter_of(j->a->b, 0.0f, channels, b);
    return ATTO_OK;
}

/* No values: no mean, and nothing to learn from. */
static void no_values(const job *j)
{
    float *mean = floats_of(j->a->mean), *rstd = floats_of(j->a->rstd);
    for (int64_t c = 0; mean && c < j->g.channels; c++) mean[c] = NAN;
    for (int64_t c = 0; rstd && c < j->g.channels; c++) rstd[c] = NAN;
}

/* Channels that a cache keeps between the passes over them: of so many bytes, and enough of
 * them. */
#define KEPT_BYTES ((int64_t)4 << 20)

static bool keeps_channels(const job *j, int32_t threads, int32_t tensors)
{
    return !j->rows && j->g.channels >= 4 * threads && j->g.values * 4 * tensors <= KEPT_BYTES;
}

static void write_channel(const job *j, int64_t channel, block_body body, void *state)
{
    for_blocks(j, channel, runs_of(j), j->g.channels, body, state);
}

typedef struct forward_job {
    const job *j;
    float share, *mean, *rstd;
} forward_job;

/* Channel after channel: its moments, then y. The same bits as in two passes over all. */
static void forward_channels(const void *job_, int64_t begin, int64_t end)
{
    const forward_job *f = job_;
    for (int64_t c = begin; c < end; c++) {
        for (int64_t slab = 0; slab < f->j->slabs; slab++) slab_of_runs(f->j, slab, c);
        use_channel(f->j, c, f->share, f->mean, f->rstd);
        write_channel(f->j, c, write_y, NULL);
    }
    end_stream();
}

atto_status ATTO_LEVEL_NAME(batch_norm_forward)(atto_device *dev,
                                                const struct atto_batch_norm_args *a,
                                                const atto__layout *layout)
{
    job j = { .a = a };
    const atto__batch_norm g = atto__batch_norm_of(a->x, layout->channels_last);
    atto_buffer header;
    float *arrays;
    if (g.channels == 0) return ATTO_OK;
    cut(&j, g, g.size == 1);
    if (j.g.values == 0 && a->training) {
        no_values(&j);
        return ATTO_OK;
    }
    ATTO_TRY(begin(dev, &j, &header, &arrays));
    float *mean = a->mean ? floats_of(a->mean) : arrays;
    float *rstd = a->rstd ? floats_of(a->rstd) : arrays + j.g.channels;
    const int32_t threads = threads_for(dev, &j);
    dev->stats.launches++;
    j.mean = mean, j.rstd = rstd;
    if (a->training && keeps_channels(&j, threads, 1)) {
        const forward_job f = { &j, count_batch(a), mean, rstd };
        atto__parallel_for(threads, j.g.channels, forward_channels, &f);
        return ATTO_OK;
    }
    if (a->training) {
        atto__parallel_for(threads, units_of(&j), moment_units, &j);
        use_batch(&j, mean, rstd);
    } else {
        use_running(&j, mean, rstd);
    }
    atto__parallel_for(threads, runs_of(&j), forward_runs, &j);
    return ATTO_OK;
}

/* ---- backward ---- */

/* dz, in buffer where it is not dy in place. */
static const float *gradient(const job *j, const block *k, float *buffer)
{
    float z[ATTO_BLOCK];
    const atto_activation act = j->a->act;
    if (act.kind == ATTO_ACT_IDENTITY)
        return load_block(span_at(j->a->dy, k->at, elements_of(k)), buffer);
    const float *dy = load_ahead(j->a->dy, k, buffer);
    preactivation(j, k, z);
    ATTO_LEVEL_NAME(act_loops)[act.kind].df(z, dy, buffer, elements_of(k), act.a, act.b);
    return buffer;
}

static grad_block load_grad(const job *j, const block *k, float *of_x, float *of_dz)
{
    const bool in_place = j->a->x->dtype == ATTO_F32 && j->a->act.kind == ATTO_ACT_IDENTITY;
    return (grad_block){ load_block(span_at(j->a->x, k->at, elements_of(k)), of_x),
                         gradient(j, k, of_dz),
                         k->n,
                         k->rows,
                         k->step,
                         in_place ? k->next - k->at : 0 };
}

/* Where a slab's sums are: those of the block's channels; and where the channel's dz is kept, or
 * NULL. */
typedef struct slab_sums {
    float *dz, *dzn, *kept;
} slab_sums;

/* Of the block's channel: its elements so far. */
static int64_t place_in_channel(const job *j, const block *k)
{
    return k->at / (j->g.channels * j->g.size) * j->g.size + k->at % j->g.size;
}

static void add_sums(const job *j, const block *k, void *state)
{
    const slab_sums *slab = state;
    float of_x[ATTO_BLOCK], of_dz[ATTO_BLOCK];
    float *to = slab->kept ? slab->kept + place_in_channel(j, k) : of_dz;
    const grad_block g = load_grad(j, k, of_x, to);
    const grad_sums sums = { j->mean + k->channel, j->rstd + k->channel, slab->dz + k->channel,
                             slab->dzn + k->channel };
    add_grad_sums(&g, &sums);
}

static void sum_rows(const job *j, int64_t slab)
{
    const int64_t channels = j->g.channels;
    slab_sums sums = { j->first + slab * channels, j->second + slab * channels, NULL };
    for (int64_t c = 0; c < channels; c++) sums.dz[c] = sums.dzn[c] = 0.0f;
    for_blocks(j, slab * j->per_slab, end_of_slab(j, slab), 1, add_sums, &sums);
}

static void sum_runs(const job *j, int64_t slab, int64_t channel, float *kept)
{
    const int64_t channels = j->g.channels, first = slab * j->per_slab;
    slab_sums sums = { j->first + slab * channels, j->second + slab * channels, kept };
    sums.dz[channel] = sums.dzn[channel] = 0.0f;
    for_blocks(j, first * channels + channel, end_of_slab(j, slab) * channels, channels, add_sums,
               &sums);
}

static void sum_units(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    for (int64_t unit = begin; unit < end; unit++) {
        if (j->rows)
            sum_rows(j, unit);
        else
            sum_runs(j, unit / j->g.channels, unit % j->g.channels, NULL);
    }
}

/* A channel's sums over slabs, in order, to the first slab's. */
static void join_channel(const job *j, int64_t c)
{
    const int64_t channels = j->g.channels;
    double dz = 0.0, dzn = 0.0;
    for (int64_t slab = 0; slab < j->slabs; slab++) {
        dz += (double)j->first[slab * channels + c];
        dzn += (double)j->second[slab * channels + c];
    }
    j->first[c] = (float)dz;
    j->second[c] = (float)dzn;
}

/* What dx needs of a channel's sums, which do not count where statistics are not the batch's. */
static void use_channel_sums(const job *j, int64_t c)
{
    const float rstd = j->rstd[c];
    const double share = j->a->training ? (double)j->w[c] / (double)j->g.values : 0.0;
    j->scale[c] = rstd * j->w[c];
    j->offset[c] = rstd * (float)(share * (double)j->first[c]);
    j->slope[c] =
        rstd * (rstd * (float)(share * (double)j->second[c])); /* rstd^2 may be infinite */
}

/* Those sums to dw and db. */
static void put_parameters(const job *j)
{
    put_parameter(j->a->db, j->first, j->g.channels, j->a->add_db);
    put_parameter(j->a->dw, j->second, j->g.channels, j->a->add_dw);
}

static void put_dresidual(const job *j, const block *k, const float *dz)
{
    float values[ATTO_BLOCK], old[ATTO_BLOCK];
    const span to = span_at(j->a->dresidual, k->at, elements_of(k));
    if (j->a->add_dresidual) {
        memcpy(values, dz, (size_t)to.n * sizeof *values);
        accumulate_block(values, to, old);
        dz = values;
    }
    put_block(dz, to, j->streams);
}

static void put_dx(const job *j, const block *k, const grad_block *g)
{
    float buffer[ATTO_BLOCK], old[ATTO_BLOCK];
    const grad_numbers numbers = { j->mean + k->channel, j->scale + k->channel,
                                   j->offset + k->channel, j->slope + k->channel };
    const span to = span_at(j->a->dx, k->at, elements_of(k));
    float *dx = j->a->add_dx ? buffer : store_target(to, buffer);
    write_dx_rows(g, &numbers, dx, j->streams && dx == to.first);
    if (j->a->add_dx) accumulate_block(dx, to, old);
    store_block(dx, to);
}

/* kept: the channel's dz, where add_sums has kept it, or NULL. */
static void write_dx(const job *j, const block *k, void *kept)
{
    float of_x[ATTO_BLOCK], of_dz[ATTO_BLOCK];
    grad_block g;
    if (kept) {
        const float *x = load_block(span_at(j->a->x, k->at, elements_of(k)), of_x);
        g = (grad_block){ x, (float *)kept + place_in_channel(j, k), k->n, 1, 0, 0 };
    } else {
        g = load_grad(j, k, of_x, of_dz);
    }
    if (j->a->dresidual) put_dresidual(j, k, g.dz);
    if (j->a->dx) put_dx(j, k, &g);
}

static void backward_runs(const void *job_, int64_t begin, int64_t end)
{
    for_blocks(job_, begin, end, 1, write_dx, NULL);
    end_stream();
}

/* ---- channel after channel ---- */

/* Neighbours in a unit: what is fetched ahead of a run belongs to the next channel. */
#define CHANNELS_OF_UNIT 8

typedef struct backward_job {
    const job *j;
    float *kept; /* [threads, values]: dz of the thread's channel; NULL: dy is dz */
} backward_job;

static int64_t units_of_channels(const void *job_, int64_t stage)
{
    (void)stage;
    const backward_job *b = job_;
    return (b->j->g.channels + CHANNELS_OF_UNIT - 1) / CHANNELS_OF_UNIT;
}

/* Each channel's sums, then its dx. */
static void backward_unit(const void *job_, int64_t stage, int64_t unit, int32_t worker)
{
    (void)stage;
    const backward_job *b = job_;
    const job *j = b->j;
    float *kept = b->kept ? b->kept + worker * j->g.values : NULL;
    for (int64_t c = unit * CHANNELS_OF_UNIT; c < (unit + 1) * CHANNELS_OF_UNIT; c++) {
        if (c >= j->g.channels) break;
        for (int64_t slab = 0; slab < j->slabs; slab++) sum_runs(j, slab, c, kept);
        join_channel(j, c);
        use_channel_sums(j, c);
        write_channel(j, c, write_dx, kept);
    }
    end_stream();
}

static atto_status backward_channels(atto_device *dev, const job *j, int32_t threads)
{
    backward_job b = { j, NULL };
    const int64_t size = threads * j->g.values;
    atto_buffer header;
    atto_tensor kept;
    if (j->a->act.kind != ATTO_ACT_IDENTITY) {
        ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &size, &header, &kept));
        b.kept = atto__memory(&kept);
    }
    atto__parallel(threads, &(atto__work){ 1, units_of_channels, backward_unit, &b });
    put_parameters(j);
    return ATTO_OK;
}

atto_status ATTO_LEVEL_NAME(batch_norm_backward)(atto_device *dev,
                                                 const struct atto_batch_norm_args *a,
                                                 const atto__layout *layout)
{
    job j = { .a = a };
    const atto__batch_norm g = atto__batch_norm_of(a->x, layout->channels_last);
    atto_buffer header;
    float *arrays;
    if (g.channels == 0) return ATTO_OK;
    cut(&j, g, g.size == 1);
    ATTO_TRY(begin(dev, &j, &header, &arrays));
    j.mean = floats_of(a->mean), j.rstd = floats_of(a->rstd);
    const int32_t threads = threads_for(dev, &j);
    dev->stats.launches++;
    if (a->training && (a->dx || a->dresidual) && keeps_channels(&j, threads, 2))
        return backward_channels(dev, &j, threads);
    if (a->dw || a->db || a->training)
        atto__parallel_for(threads, units_of(&j), sum_units, &j);
    else
        memset(j.first, 0, (size_t)(2 * j.slabs * j.g.channels) * sizeof *j.first);
    for (int64_t c = 0; c < g.channels; c++) join_channel(&j, c);
    for (int64_t c = 0; c < g.channels; c++) use_channel_sums(&j, c);
    put_parameters(&j);
    if (a->dx || a->dresidual) atto__parallel_for(threads, runs_of(&j), backward_runs, &j);
    return ATTO_OK;
}
