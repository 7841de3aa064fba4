/* SPDX-License-Identifier: MIT */
/* Convolutions whose groups have some channels each: too few for products that are worth packing.
 * Images are read along their rows, and sums of some outputs stay in registers:
 *
 *   small, big   sum[o][x] += w[tap][o] plane[place(tap) + x]      spots x of rows as they lie, with
 *                                                                  what is between them
 *   dw           sum[o][tap][lane] += dz[o][x] plane[place(tap) + x]     row by row
 */
#ifndef ATTO_CPU_CONV_GROUPED_H
#define ATTO_CPU_CONV_GROUPED_H

#include "backend_cpu/conv_pass.h"

#define GROUP_CHANNELS 16 /* as many at most, of both images */
#define GROUP_OUTPUTS  4  /* whose sums are in registers, */
#if VEC_LANES == 16
#define GROUP_VECS 4 /* for so many vectors of spots, */
#define GROUP_TAPS 4 /* or for so many taps */
#else
#define GROUP_VECS 2
#define GROUP_TAPS 2
#endif
#define GROUP_SPOTS (GROUP_VECS * VEC_LANES)

/* Spots whose sums stand in a buffer, of all channels together and of one. */
#define GROUP_SUMS (1 << 16)
#define GROUP_RUN  1024
_Static_assert(GROUP_RUN <= ATTO_GEMM_RUN, "a run is finished at once");

static bool is_grouped(const conv *v)
{
    return v->c.groups > 1 && v->c.small_channels <= GROUP_CHANNELS &&
           v->c.big_channels <= GROUP_CHANNELS;
}

/* ---- small and big ---- */

typedef struct grouped_job {
    const pass *p;
    const image *in;
    window_taps taps;
    int64_t inputs, groups;
    const float *weights;  /* [group][outputs / GROUP_OUTPUTS][taps][GROUP_OUTPUTS] */
    int64_t weight_floats; /* of a group */
    int64_t rows, columns; /* of a band: outputs that are in the buffer at a time */
    float *own;            /* of each worker: sums, and spots of them turned into pixels */
    int64_t own_floats;
} grouped_job;

/* Columns of the buffer of one channel's sums. */
static int64_t sums_pitch(const grouped_job *j)
{
    return round_up((j->rows - 1) * j->in->row + j->columns, GROUP_SPOTS);
}

static void pack_group_filters(const void *job, int64_t begin, int64_t end)
{
    const grouped_job *j = job;
    const pass *p = j->p;
    for (int64_t group = begin; group < end; group++) {
        filter_matrix f = p->filter;
        const int64_t first = group * p->v->c.small_channels;
        f.data = element(p->v->a->w, first, 0, p->h.tap, p->w.tap);
        f.limit -= first * p->v->a->w->stride[0];
        pack_filter(&f, 0, 0, (int32_t)p->channels, (int32_t)j->taps.count, GROUP_OUTPUTS,
                    (float *)(uintptr_t)j->weights + group * j->weight_floats);
    }
}

/* GROUP_SPOTS sums of each of GROUP_OUTPUTS outputs. */
ATTO_INLINE void grouped_block(const float *from, const window_taps *taps, const float *w,
                               float *out, int64_t pitch)
{
    vec sum[GROUP_OUTPUTS][GROUP_VECS];
    VEC_UNROLL
    for (int32_t o = 0; o < GROUP_OUTPUTS; o++) {
        VEC_UNROLL
        for (int32_t i = 0; i < GROUP_VECS; i++) sum[o][i] = (vec){ 0 };
    }
    for (int64_t t = 0; t < taps->count; t++, w += GROUP_OUTPUTS) {
        const float *at = from + taps->start[t];
        vec x[GROUP_VECS];
        VEC_UNROLL
        for (int32_t i = 0; i < GROUP_VECS; i++) x[i] = vec_load(at + i * VEC_LANES);
        VEC_UNROLL
        for (int32_t o = 0; o < GROUP_OUTPUTS; o++) {
            const vec weight = vec_all(w[o]);
            VEC_UNROLL
            for (int32_t i = 0; i < GROUP_VECS; i++) sum[o][i] += weight * x[i];
        }
    }
    VEC_UNROLL
    for (int32_t o = 0; o < GROUP_OUTPUTS; o++) {
        VEC_UNROLL
        for (int32_t i = 0; i < GROUP_VECS; i++)
            vec_store(out + o * pitch + i * VEC_LANES, sum[o][i]);
    }
}

/* The same operations for one spot of one output. */
static float grouped_one(const float *from, const window_taps *taps, const float *w)
{
    vec sum = { 0 };
    for (int64_t t = 0; t < taps->count; t++)
        sum += vec_all(w[t * GROUP_OUTPUTS]) * vec_all(from[taps->start[t]]);
    return sum[0];
}

/* n spots from memory on, of GROUP_OUTPUTS outputs. */
static void grouped_spots(const grouped_job *j, const float *from, int64_t furthest, const float *w,
                          int64_t n, float *out, int64_t pitch)
{
    const int64_t room = j->in->limit - from - furthest;
    int64_t x = 0;
    for (; x < n && x + GROUP_SPOTS <= room; x += GROUP_SPOTS)
        grouped_block(from + x, &j->taps, w, out + x, pitch);
    for (; x < n; x++)
        for (int32_t o = 0; o < GROUP_OUTPUTS; o++)
            out[o * pitch + x] = grouped_one(from + x, &j->taps, w + o);
}

/* Outputs that are in the buffer at a time. */
typedef struct band_at {
    int64_t n, y, x, rows, columns;
} band_at;

/* Sums of a group's outputs in a band: out has a row of pitch for each, one spot after the other. */
static void sum_band(const grouped_job *j, int64_t group, const band_at *b, float *out)
{
    const image *in = j->in;
    const int64_t pitch = sums_pitch(j), spots = (b->rows - 1) * in->row + b->columns;
    const float *from =
        in->data + b->n * in->batch + group * j->inputs * in->channel + b->y * in->row + b->x;
    int64_t furthest = 0;
    for (int64_t t = 0; t < j->taps.count; t++)
        if (j->taps.start[t] > furthest) furthest = j->taps.start[t];
    for (int64_t o = 0; o < j->p->channels; o += GROUP_OUTPUTS)
        grouped_spots(j, from, furthest, j->weights + group * j->weight_floats + o * j->taps.count,
                      spots, out + o * pitch, pitch);
    for (int64_t o = 0; o < j->p->channels && b->columns < in->row; o++)
        for (int64_t row = 1; row < b->rows; row++)
            memmove(out + o * pitch + row * b->columns, out + o * pitch + row * in->row,
                    (size_t)b->columns * sizeof *out);
}

static int64_t spot_of(const pass *p, const band_at *b)
{
    return (b->n * p->h.count + b->y) * p->w.count + b->x;
}

/* Outputs along rows: one group. */
static void finish_group(const grouped_job *j, int64_t group, const band_at *b, float *own)
{
    pass p = *j->p;
    p.channel = group * p.channels;
    sum_band(j, group, b, own);
    finish_spots(&p, 0, (int32_t)p.channels, spot_of(&p, b), (int32_t)(b->rows * b->columns), own,
                 sums_pitch(j));
}

/* VEC_LANES spots of all channels as pixels. */
static void turn_spots(const float *sums, int64_t pitch, int64_t channels, float *pixels)
{
    for (int64_t c = 0; c < channels; c += VEC_LANES) {
        vec_u32 square[VEC_LANES];
        VEC_UNROLL
        for (int32_t i = 0; i < VEC_LANES; i++)
            square[i] = (vec_u32)vec_load(sums + (c + i) * pitch);
        vec_transpose(square);
        VEC_UNROLL
        for (int32_t i = 0; i < VEC_LANES; i++)
            vec_store(pixels + i * channels + c, (vec)square[i]);
    }
}

/* Outputs along channels: all groups. */
static void finish_pixels(const grouped_job *j, const band_at *b, float *own)
{
    pass p = *j->p;
    const int64_t channels = j->groups * p.channels, room = round_up(channels, VEC_LANES);
    const int64_t pitch = sums_pitch(j), spots = b->rows * b->columns;
    float *pixels = own + (room + GROUP_OUTPUTS) * pitch;
    for (int64_t group = 0; group < j->groups; group++)
        sum_band(j, group, b, own + group * p.channels * pitch);
    p.channel = 0;
    p.channels = channels;
    for (int64_t x = 0; x < spots; x += VEC_LANES) {
        turn_spots(own + x, pitch, room, pixels);
        for (int64_t c = 0; c < channels; c += GROUP_RUN)
            finish_channels(&p, spot_of(&p, b) + x, (int32_t)least(VEC_LANES, spots - x), c,
                            (int32_t)least(GROUP_RUN, channels - c), pixels + c, room);
    }
}

static int64_t grouped_units(const void *job, int64_t stage)
{
    (void)stage;
    const grouped_job *j = job;
    const pass *p = j->p;
    return p->v->c.batch * atto__divide_up(p->h.count, j->rows) *
           atto__divide_up(p->w.count, j->columns) * (p->by_spots ? 1 : j->groups);
}

static void grouped_run(const void *job, int64_t stage, int64_t unit, int32_t worker)
{
    (void)stage;
    const grouped_job *j = job;
    const pass *p = j->p;
    const int64_t down = atto__divide_up(p->h.count, j->rows);
    const int64_t across = atto__divide_up(p->w.count, j->columns);
    const int64_t groups = p->by_spots ? 1 : j->groups, band = unit / groups;
    float *own = j->own + worker * j->own_floats;
    band_at b = { .n = band / across / down,
                  .y = band / across % down * j->rows,
                  .x = band % across * j->columns };
    b.rows = least(j->rows, p->h.count - b.y);
    b.columns = least(j->columns, p->w.count - b.x);
    if (p->by_spots) {
        finish_pixels(j, &b, own);
    } else {
        finish_group(j, unit % groups, &b, own);
    }
    end_stream();
}

/* Some rows, where little lies between them, or a part of one. */
static void cut_bands(grouped_job *j)
{
    const pass *p = j->p;
    const int64_t channels = p->by_spots ? j->groups * p->channels : 1;
    const int64_t most = least(GROUP_RUN, round_up(GROUP_SUMS / channels + 1, GROUP_SPOTS));
    const bool dense = j->in->row >= p->w.count && 2 * j->in->row <= 3 * p->w.count;
    j->rows = dense && j->in->row <= most ? least(most / j->in->row, p->h.count) : 1;
    j->columns = least(p->w.count, most);
}

/* A walk of all groups. */
static atto_status multiply_grouped(pass *p, const image *in, bool to_big)
{
    const conv *v = p->v;
    const int32_t scratch = v->dev->scratch_count, most = atto__cpu_most_threads(v->dev);
    grouped_job j = { .p = p, .in = in, .groups = v->c.groups };
    j.inputs = to_big ? v->c.small_channels : v->c.big_channels;
    p->channels = to_big ? v->c.big_channels : v->c.small_channels;
    p->plain = is_plain(p);
    p->streams = streams_to(p->out);
    ATTO_TRY(list_taps(v, in, &p->h, &p->w, j.inputs, &j.taps));
    ATTO_TRY(filter_of(v, &p->h, &p->w, to_big, false, 0, &p->filter));
    float *weights;
    j.weight_floats = round_up(p->channels, GROUP_OUTPUTS) * j.taps.count;
    ATTO_TRY(scratch_floats(v->dev, j.groups * j.weight_floats, &weights));
    j.weights = weights;
    const int64_t outputs = v->c.batch * p->h.count * p->w.count * j.groups * p->channels;
    atto__parallel_for(threads_for(v, outputs), j.groups, pack_group_filters, &j);
    cut_bands(&j);
    const int64_t channels = p->by_spots ? j.groups * p->channels : p->channels;
    const int64_t room = round_up(channels, VEC_LANES);
    j.own_floats = (room + GROUP_OUTPUTS) * sums_pitch(&j) + VEC_LANES * room;
    ATTO_TRY(scratch_floats(v->dev, most * j.own_floats, &j.own));
    atto__parallel(threads_for(v, outputs), &(atto__work){ 1, grouped_units, grouped_run, &j });
    atto__scratch_release(v->dev, scratch);
    return ATTO_OK;
}

/* ---- dw ---- */

typedef struct grouped_filter {
    const conv *v;
    const image *in, *small;
    window_taps taps;
    int64_t batch, rows, columns; /* of the small image */
    float *sums;                  /* [groups][outputs][taps] */
} grouped_filter;

/* The first of a vector's lanes. */
ATTO_INLINE vec_u32 first_lanes(int32_t n)
{
    vec_u32 mask;
    for (int32_t i = 0; i < VEC_LANES; i++) mask[i] = i < n ? UINT32_MAX : 0;
    return mask;
}

/* n floats of a row, and zeros. */
ATTO_INLINE vec load_first(const float *from, int32_t n, vec_u32 mask, bool room)
{
    if (room) return (vec)((vec_u32)vec_load(from) & mask);
    float some[VEC_LANES] = { 0 };
    memcpy(some, from, (size_t)n * sizeof *some);
    return vec_load(some);
}

ATTO_INLINE void add_products_of(const vec dz[GROUP_OUTPUTS], const vec x[GROUP_TAPS],
                                 vec sum[GROUP_OUTPUTS][GROUP_TAPS])
{
    VEC_UNROLL
    for (int32_t o = 0; o < GROUP_OUTPUTS; o++) {
        VEC_UNROLL
        for (int32_t t = 0; t < GROUP_TAPS; t++) sum[o][t] += dz[o] * x[t];
    }
}

/* Products of a row of the small image with windows. */
ATTO_INLINE void add_row(const float *const *dz, const float *const *x, int32_t n, vec_u32 mask,
                         bool room, vec sum[GROUP_OUTPUTS][GROUP_TAPS])
{
    vec a[GROUP_OUTPUTS], b[GROUP_TAPS];
    int32_t at = 0;
    for (; at + VEC_LANES <= n; at += VEC_LANES) {
        VEC_UNROLL
        for (int32_t o = 0; o < GROUP_OUTPUTS; o++) a[o] = vec_load(dz[o] + at);
        VEC_UNROLL
        for (int32_t t = 0; t < GROUP_TAPS; t++) b[t] = vec_load(x[t] + at);
        add_products_of(a, b, sum);
    }
    if (at == n) return;
    VEC_UNROLL
    for (int32_t o = 0; o < GROUP_OUTPUTS; o++) a[o] = load_first(dz[o] + at, n - at, mask, room);
    VEC_UNROLL
    for (int32_t t = 0; t < GROUP_TAPS; t++) b[t] = load_first(x[t] + at, n - at, mask, room);
    add_products_of(a, b, sum);
}

/* Weights of GROUP_OUTPUTS outputs and GROUP_TAPS taps. Those behind the last are the last's. */
static void sum_weights(const grouped_filter *f, int64_t group, int64_t output, int64_t tap)
{
    const int64_t outputs = f->v->c.small_channels, inputs = f->v->c.big_channels;
    const float *dz[GROUP_OUTPUTS], *x[GROUP_TAPS];
    const float *small[GROUP_OUTPUTS], *big[GROUP_TAPS], *last_dz = f->small->data;
    const float *last_x = f->in->data;
    vec sum[GROUP_OUTPUTS][GROUP_TAPS];
    for (int32_t o = 0; o < GROUP_OUTPUTS; o++) {
        small[o] = channel_of(f->small, group * outputs + least(output + o, outputs - 1));
        if (small[o] > last_dz) last_dz = small[o];
        for (int32_t t = 0; t < GROUP_TAPS; t++) sum[o][t] = (vec){ 0 };
    }
    for (int32_t t = 0; t < GROUP_TAPS; t++) {
        big[t] = channel_of(f->in, group * inputs);
        if (big[t]) big[t] += f->taps.start[least(tap + t, f->taps.count - 1)];
        if (big[t] > last_x) last_x = big[t];
    }
    const int32_t columns = (int32_t)f->columns;
    const vec_u32 mask = first_lanes(columns % VEC_LANES);
    const int64_t whole = round_up(columns, VEC_LANES);
    for (int64_t row = 0; row < f->batch * f->rows; row++) {
        const int64_t n = row / f->rows, y = row % f->rows;
        const int64_t at = n * f->small->batch + y * f->small->row;
        const int64_t from = n * f->in->batch + y * f->in->row;
        const bool room =
            f->small->limit - last_dz >= at + whole && f->in->limit - last_x >= from + whole;
        for (int32_t o = 0; o < GROUP_OUTPUTS; o++) dz[o] = small[o] + at;
        for (int32_t t = 0; t < GROUP_TAPS; t++) x[t] = big[t] + from;
        add_row(dz, x, columns, mask, room, sum);
    }
    float *to = f->sums + (group * outputs + output) * f->taps.count + tap;
    for (int32_t o = 0; o < least(GROUP_OUTPUTS, outputs - output); o++)
        for (int32_t t = 0; t < least(GROUP_TAPS, f->taps.count - tap); t++)
            to[o * f->taps.count + t] = vec_sum(sum[o][t]);
}

static void sum_group_filters(const void *job, int64_t begin, int64_t end)
{
    const grouped_filter *f = job;
    const int64_t blocks = atto__divide_up(f->v->c.small_channels, GROUP_OUTPUTS);
    for (int64_t unit = begin; unit < end; unit++)
        for (int64_t tap = 0; tap < f->taps.count; tap += GROUP_TAPS)
            sum_weights(f, unit / blocks, unit % blocks * GROUP_OUTPUTS, tap);
}

/* sums: [small channels][taps of rows] */
static atto_status multiply_grouped_filter(const conv *v, const image *in, const image *small,
                                           const atto__conv_walk *h, const atto__conv_walk *w,
                                           float **sums)
{
    grouped_filter f = { .v = v, .in = in, .small = small };
    f.batch = v->c.batch;
    f.rows = h->count;
    f.columns = w->count;
    ATTO_TRY(list_taps(v, in, h, w, v->c.big_channels, &f.taps));
    const int64_t channels = v->c.groups * v->c.small_channels;
    ATTO_TRY(scratch_floats(v->dev, channels * f.taps.count, &f.sums));
    const int64_t work = channels * f.taps.count * f.batch * f.rows * f.columns;
    atto__parallel_for(threads_for(v, work),
                       v->c.groups * atto__divide_up(v->c.small_channels, GROUP_OUTPUTS),
                       sum_group_filters, &f);
    *sums = f.sums;
    return ATTO_OK;
}

#endif
