/* SPDX-License-Identifier: MIT */
/* Batch norm on the CPU.
 *
 *   forward    y = act(n w + b + residual),  n = (x - mean) rstd
 *   backward   dz = act'(n w + b + residual) dy,  db = sum of dz,  dw = sum of dz n
 *              dx = w rstd (dz - (db + n dw) / M),  in training
 *
 * Two shapes: [n, channels, size], whose runs of size elements have one channel, and rows of channels
 * (size 1). Both are cut into slabs along n by the shape alone; each has its own moments or sums, which
 * are merged in order.
 */
#include "batch_norm.h"

#include "backend_cpu/act.h"
#include "backend_cpu/channels.h"

typedef struct job {
    const struct atto_batch_norm_args *a;
    atto__batch_norm g;
    bool rows;                 /* of channels: size is 1 */
    int64_t slabs, per_slab;   /* of n */
    const float *mean, *rstd;  /* [channels] */
    const float *w, *b;        /* [channels] */
    float *first, *second;     /* [slabs, channels]: mean and squares, or sums of dz and dz n */
    float *mean_dz, *mean_dzn; /* [channels], of w dz and w dz n; 0 when they do not count */
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
    j->first[slab * j->g.channels + channel] = (float)m.mean;
    j->second[slab * j->g.channels + channel] = (float)m.squares;
}

static void slab_of_rows(const job *j, int64_t slab)
{
    const int64_t channels = j->g.channels, first = slab * j->per_slab;
    moments_of_rows(j->a->x, first * channels, end_of_slab(j, slab) - first, channels,
                    j->first + slab * channels, j->second + slab * channels);
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
        merge(&m, (double)((n - slab * j->per_slab) * j->g.size), (double)j->first[at],
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

static void use_batch(const job *j, float *mean, float *rstd)
{
    const struct atto_batch_norm_args *a = j->a;
    float *running_mean = floats_of(a->running_mean), *running_var = floats_of(a->running_var);
    const float share = count_batch(a);
    for (int64_t c = 0; c < j->g.channels; c++) {
        const moments m = moments_of_channel(j, c);
        const float var = (float)(m.squares / m.n);
        mean[c] = (float)m.mean;
        rstd[c] = attop_rsqrt(var + a->eps);
        if (!running_mean) continue;
        const float unbiased = (float)(m.squares / (m.n - 1.0));
        running_mean[c] = (1.0f - share) * running_mean[c] + share * mean[c];
        running_var[c] = (1.0f - share) * running_var[c] + share * unbiased;
    }
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

/* A block of elements, whose channels follow each other (step 1) or are all the same (step 0). */
typedef struct block {
    int64_t at, channel;
    int32_t n, step;
} block;

/* n = (x - mean) rstd */
ATTO_INLINE void normalise_by(const float *x, const float *mean, const float *rstd, float *out,
                              int32_t n, int32_t step)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) out[i] = (x[i] - mean[i * step]) * rstd[i * step];
}

static void normalise(const job *j, const block *k, float *out)
{
    float buffer[ATTO_BLOCK];
    const float *x = load_block(span_at(j->a->x, k->at, k->n), buffer);
    const float *mean = j->mean + k->channel, *rstd = j->rstd + k->channel;
    if (k->step)
        normalise_by(x, mean, rstd, out, k->n, 1);
    else
        normalise_by(x, mean, rstd, out, k->n, 0);
}

/* z = n w + b + residual */
ATTO_INLINE void affine_by(const float *v, const float *w, const float *b, float *out, int32_t n,
                           int32_t step)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) out[i] = v[i] * w[i * step] + b[i * step];
}

static void activate(const job *j, const block *k, const float *normal, float *z)
{
    const float *w = j->w + k->channel, *b = j->b + k->channel;
    if (k->step)
        affine_by(normal, w, b, z, k->n, 1);
    else
        affine_by(normal, w, b, z, k->n, 0);
    if (!j->a->residual) return;
    float buffer[ATTO_BLOCK];
    const float *residual = load_block(span_at(j->a->residual, k->at, k->n), buffer);
    ATTO_SIMD
    for (int32_t i = 0; i < k->n; i++) z[i] += residual[i];
}

/* Calls body for every block: of rows first to last, or runs. */
typedef void (*block_body)(const job *j, const block *k, void *state);

static void for_blocks(const job *j, int64_t run, block_body body, void *state)
{
    const int64_t length = j->rows ? j->g.channels : j->g.size;
    for (int64_t first = 0; first < length; first += ATTO_BLOCK) {
        const int64_t channel = j->rows ? first : run % j->g.channels;
        const block k = { run * length + first, channel, block_length(length - first), j->rows };
        body(j, &k, state);
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
    const span y = span_at(j->a->y, k->at, k->n);
    float *z = store_target(y, buffer);
    const atto_activation act = j->a->act;
    normalise(j, k, z);
    activate(j, k, z, z);
    if (act.kind != ATTO_ACT_IDENTITY)
        ATTO_LEVEL_NAME(act_loops)[act.kind].f(z, z, k->n, act.a, act.b);
    store_block(z, y);
}

static void forward_runs(const void *job_, int64_t begin, int64_t end)
{
    for (int64_t run = begin; run < end; run++) for_blocks(job_, run, write_y, NULL);
}

/* Slabs of moments, or of sums. */
static int64_t units_of(const job *j)
{
    return j->rows ? j->slabs : j->slabs * j->g.channels;
}

/* Scratch: two arrays for slabs, six of channels, of which the first two are *arrays. */
static atto_status begin(atto_device *dev, job *j, atto_buffer *header, float **arrays)
{
    atto_tensor scratch;
    const int64_t channels = j->g.channels, slabs = j->slabs * channels;
    const int64_t size = 6 * channels + 2 * slabs;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &size, header, &scratch));
    *arrays = atto__memory(&scratch);
    j->mean_dz = *arrays + 2 * channels;
    j->mean_dzn = j->mean_dz + channels;
    float *w = j->mean_dzn + channels, *b = w + channels;
    j->first = b + channels;
    j->second = j->first + slabs;
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
    if (a->training) {
        atto__parallel_for(threads, units_of(&j), moment_units, &j);
        use_batch(&j, mean, rstd);
    } else {
        use_running(&j, mean, rstd);
    }
    j.mean = mean, j.rstd = rstd;
    atto__parallel_for(threads, runs_of(&j), forward_runs, &j);
    return ATTO_OK;
}

/* ---- backward ---- */

/* dz, and n in normal. */
static void gradient(const job *j, const block *k, float *normal, float *dz)
{
    float buffer[ATTO_BLOCK], z[ATTO_BLOCK];
    const float *dy = load_block(span_at(j->a->dy, k->at, k->n), buffer);
    const atto_activation act = j->a->act;
    normalise(j, k, normal);
    if (act.kind == ATTO_ACT_IDENTITY) {
        memcpy(dz, dy, (size_t)k->n * sizeof *dz);
        return;
    }
    activate(j, k, normal, z);
    ATTO_LEVEL_NAME(act_loops)[act.kind].df(z, dy, dz, k->n, act.a, act.b);
}

/* Where a slab's sums are: those of the block's channels. */
typedef struct slab_sums {
    float *dz, *dzn;
} slab_sums;

static void add_sums(const job *j, const block *k, void *state)
{
    const slab_sums *sums = state;
    float normal[ATTO_BLOCK], dz[ATTO_BLOCK];
    gradient(j, k, normal, dz);
    float *sum_dz = sums->dz + k->channel, *sum_dzn = sums->dzn + k->channel;
    if (k->step) {
        ATTO_SIMD
        for (int32_t i = 0; i < k->n; i++) {
            sum_dz[i] += dz[i];
            sum_dzn[i] += dz[i] * normal[i];
        }
        return;
    }
    for (int32_t i = 0; i < k->n; i++) normal[i] *= dz[i];
    const row_of all = { dz, ATTO_F32 }, products = { normal, ATTO_F32 };
    *sum_dz += (float)sum_moments(all, k->n, 0.0f).sum;
    *sum_dzn += (float)sum_moments(products, k->n, 0.0f).sum;
}

static void sum_units(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    const int64_t channels = j->g.channels;
    for (int64_t unit = begin; unit < end; unit++) {
        const bool rows = j->rows;
        const int64_t slab = rows ? unit : unit / channels, channel = rows ? 0 : unit % channels;
        slab_sums sums = { j->first + slab * channels, j->second + slab * channels };
        for (int64_t c = channel; c < (rows ? channels : channel + 1); c++)
            sums.dz[c] = sums.dzn[c] = 0.0f;
        for (int64_t n = slab * j->per_slab; n < end_of_slab(j, slab); n++)
            for_blocks(j, rows ? n : n * channels + channel, add_sums, &sums);
    }
}

/* Sums over slabs, in order, to the first slab's. */
static void join_slabs(const job *j)
{
    const int64_t channels = j->g.channels;
    for (int64_t c = 0; c < channels; c++) {
        double dz = 0.0, dzn = 0.0;
        for (int64_t slab = 0; slab < j->slabs; slab++) {
            dz += (double)j->first[slab * channels + c];
            dzn += (double)j->second[slab * channels + c];
        }
        j->first[c] = (float)dz;
        j->second[c] = (float)dzn;
    }
}

/* Those sums to dw and db, and what dx needs of them. */
static void use_sums(const job *j)
{
    const int64_t channels = j->g.channels;
    for (int64_t c = 0; c < channels; c++) {
        const double scale = j->a->training ? (double)j->w[c] / (double)j->g.values : 0.0;
        j->mean_dz[c] = j->a->training ? (float)(scale * (double)j->first[c]) : 0.0f;
        j->mean_dzn[c] = j->a->training ? (float)(scale * (double)j->second[c]) : 0.0f;
    }
    put_parameter(j->a->db, j->first, channels, j->a->add_db);
    put_parameter(j->a->dw, j->second, channels, j->a->add_dw);
}

static void put(const atto_tensor *t, const block *k, float *values, bool add)
{
    float old[ATTO_BLOCK];
    const span to = span_at(t, k->at, k->n);
    if (add) accumulate_block(values, to, old);
    store_block(values, to);
}

/* rstd (w dz - mean_dz - n mean_dzn) */
ATTO_INLINE void dx_by(const job *j, const block *k, const float *normal, const float *dz,
                       float *out, int32_t step)
{
    const float *w = j->w + k->channel, *rstd = j->rstd + k->channel;
    const float *mean_dz = j->mean_dz + k->channel, *mean_dzn = j->mean_dzn + k->channel;
    ATTO_SIMD
    for (int32_t i = 0; i < k->n; i++)
        out[i] = rstd[i * step] *
                 ((w[i * step] * dz[i] - mean_dz[i * step]) - normal[i] * mean_dzn[i * step]);
}

static void write_dx(const job *j, const block *k, void *state)
{
    (void)state;
    float normal[ATTO_BLOCK], dz[ATTO_BLOCK], dx[ATTO_BLOCK];
    gradient(j, k, normal, dz);
    if (j->a->dx) {
        if (k->step)
            dx_by(j, k, normal, dz, dx, 1);
        else
            dx_by(j, k, normal, dz, dx, 0);
        put(j->a->dx, k, dx, j->a->add_dx);
    }
    if (j->a->dresidual) put(j->a->dresidual, k, dz, j->a->add_dresidual);
}

static void backward_runs(const void *job_, int64_t begin, int64_t end)
{
    for (int64_t run = begin; run < end; run++) for_blocks(job_, run, write_dx, NULL);
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
    if (a->dw || a->db || a->training)
        atto__parallel_for(threads, units_of(&j), sum_units, &j);
    else
        memset(j.first, 0, (size_t)(2 * j.slabs * j.g.channels) * sizeof *j.first);
    join_slabs(&j);
    use_sums(&j);
    if (a->dx || a->dresidual) atto__parallel_for(threads, runs_of(&j), backward_runs, &j);
    return ATTO_OK;
}
