/* SPDX-License-Identifier: MIT */
/* Convolution on the CPU: products from gemm.c over windows (window.h) that are packed as they are
 * needed, and what is fused with them. convolution.h says which sums there are.
 *
 *   order      small, big                    dw
 *   rows       w [outputs, taps] times       small image [outputs, spots] times
 *              windows [taps, spots]         windows [spots, taps]
 *   channels   windows [spots, taps] times   small image [outputs, spots] times
 *              w [taps, outputs]             windows [spots, taps]
 *
 * In rows dw takes spots with the columns between the rows of a plane, so that they are one run in
 * memory for every tap; they are zeros on both sides. Groups follow one another. Depthwise
 * convolutions have loops of their own (conv_depthwise.h). */
#include "backend_cpu/act.h"
#include "backend_cpu/gemm.h"
#include "backend_cpu/rows.h"
#include "backend_cpu/window.h"

_Static_assert(ATTO_GEMM_RUN <= ATTO_BLOCK, "a run of gemm.h must fit a block of loops.h");

/* An image as float memory: the tensor's own or planes. */
typedef struct image {
    const float *data, *limit;
    int64_t batch, channel, row, pixel; /* steps */
    int64_t before_h, before_w;         /* zeros in front */
    int64_t split_h, split_w;           /* planes of rows: phases, */
    int64_t phase_h, phase_w;           /* and the steps between them */
} image;

/* What one call works with. */
typedef struct conv {
    atto_device *dev;
    const struct atto_conv_args *a;
    atto__convolution c;
    bool channels_last;
} conv;

static atto_status scratch_floats(atto_device *dev, int64_t n, float **out)
{
    atto_buffer header;
    atto_tensor t;
    const int64_t room = n > 0 ? n : 1;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &room, &header, &t));
    *out = atto__memory(&t);
    return ATTO_OK;
}

/* Memory of element [n, c, h, w]; NULL where there is none. */
static void *element(const atto_tensor *t, int64_t n, int64_t c, int64_t h, int64_t w)
{
    if (!t->buffer) return NULL;
    const int64_t at =
        t->offset + n * t->stride[0] + c * t->stride[1] + h * t->stride[2] + w * t->stride[3];
    return (char *)atto__memory(t) + at * (int64_t)atto_dtype_size(t->dtype);
}

static int32_t threads_for(const conv *v, int64_t work)
{
    return work < ATTO_SERIAL_BELOW ? 1 : atto__cpu_threads(v->dev);
}

/* ---- images ---- */

/* First and last input that walks read. */
typedef struct reach {
    int64_t low, high;
} reach;

static reach reach_of(const atto__conv_walk *w, reach so_far)
{
    if (w->taps == 0) return so_far;
    const int64_t high = (w->count - 1) * w->in_step + w->at + (w->taps - 1) * w->at_step;
    return (reach){ least(so_far.low, w->at), high > so_far.high ? high : so_far.high };
}

/* Every element that the image has, so that planes can be cut. */
static const reach nothing = { INT64_MAX, INT64_MIN };

static bool stays_inside(reach r, int64_t size)
{
    return r.low > r.high || (r.low >= 0 && r.high < size);
}

static const float *limit_of(const atto_tensor *t)
{
    int64_t last = 0;
    if (!t->buffer) return NULL;
    for (int32_t d = 0; d < 4; d++) last += (t->shape[d] - 1) * t->stride[d];
    return (const float *)element(t, 0, 0, 0, 0) + last + 1;
}

static image image_in_place(const atto_tensor *t)
{
    return (image){ .data = element(t, 0, 0, 0, 0),
                    .limit = limit_of(t),
                    .batch = t->stride[0],
                    .channel = t->stride[1],
                    .row = t->stride[2],
                    .pixel = t->stride[3],
                    .split_h = 1,
                    .split_w = 1 };
}

typedef struct plane_job {
    const atto_tensor *t;
    image to;
    float *planes;
    int64_t rows, columns; /* of a plane, without its phases */
    bool channels_last;
} plane_job;

/* A row of elements as floats where they belong, every step-th. */
static void copy_split(const plane_job *j, const float *from, int64_t n, float *to)
{
    const int64_t split = j->to.split_w;
    if (split == 1) {
        memcpy(to + j->to.before_w, from, (size_t)n * sizeof *to);
        return;
    }
    for (int64_t first = 0; first < least(split, n); first++) {
        const int64_t at = first + j->to.before_w;
        float *phase = to + at % split * j->to.phase_w + at / split;
        const int64_t count = atto__divide_up(n - first, split);
        for (int64_t i = 0; i < count; i++) phase[i] = from[first + i * split];
    }
}

/* Row y of the planes of image n, channel c; y counts from the zeros on. */
static void fill_row(const plane_job *j, int64_t n, int64_t c, int64_t y)
{
    float *to = j->planes + n * j->to.batch + c * j->to.channel +
                y % j->to.split_h * j->to.phase_h + y / j->to.split_h * j->to.row;
    const int64_t h = y - j->to.before_h;
    for (int64_t p = 0; p < j->to.split_w; p++)
        memset(to + p * j->to.phase_w, 0, (size_t)j->to.row * sizeof *to);
    if (h < 0 || h >= j->t->shape[2]) return;
    const int64_t wanted = least(j->t->shape[3], j->columns - j->to.before_w);
    float buffer[ATTO_BLOCK];
    if (j->t->dtype == ATTO_F32) {
        copy_split(j, element(j->t, n, c, h, 0), wanted, to);
        return;
    }
    for (int64_t w = 0; w < wanted; w += ATTO_BLOCK / 2) {
        const int32_t count = (int32_t)least(ATTO_BLOCK / 2, wanted - w);
        const span from = { element(j->t, n, c, h, w), 1, count, j->t->dtype };
        const float *values = load_block(from, buffer);
        for (int32_t i = 0; i < count; i++) {
            const int64_t at = w + i + j->to.before_w;
            to[at % j->to.split_w * j->to.phase_w + at / j->to.split_w] = values[i];
        }
    }
}

/* The same of all channels of a row, which are innermost. */
static void fill_pixels(const plane_job *j, int64_t n, int64_t y)
{
    const int64_t channels = j->t->shape[1], h = y - j->to.before_h;
    float *to = j->planes + n * j->to.batch + y * j->to.row;
    memset(to, 0, (size_t)j->to.row * sizeof *to);
    if (h < 0 || h >= j->t->shape[2]) return;
    const int64_t wanted = least(j->t->shape[3], j->columns - j->to.before_w);
    for (int64_t w = 0; w < wanted; w++) {
        float *pixel = to + (w + j->to.before_w) * channels;
        for (int64_t c = 0; c < channels; c += ATTO_BLOCK) {
            const int32_t count = (int32_t)least(ATTO_BLOCK, channels - c);
            const span from = { element(j->t, n, c, h, w), 1, count, j->t->dtype };
            const float *values = load_block(from, pixel + c);
            if (values != pixel + c) memcpy(pixel + c, values, (size_t)count * sizeof *values);
        }
    }
}

static void fill_planes(const void *job, int64_t begin, int64_t end)
{
    const plane_job *j = job;
    const int64_t rows = j->rows;
    for (int64_t i = begin; i < end; i++) {
        if (j->channels_last) {
            fill_pixels(j, i / rows, i % rows);
        } else {
            fill_row(j, i / rows / j->t->shape[1], i / rows % j->t->shape[1], i % rows);
        }
    }
}

static int64_t zeros_before(reach r)
{
    return r.low <= r.high && r.low < 0 ? -r.low : 0;
}

/* A copy with zeros around what walks of these reaches read; step_h, step_w: their in_step. */
static atto_status make_planes(const conv *v, const atto_tensor *t, reach h, reach w,
                               int64_t step_h, int64_t step_w, image *out)
{
    plane_job j = { .t = t, .channels_last = v->channels_last };
    image *to = &j.to;
    to->before_h = zeros_before(h);
    to->before_w = zeros_before(w);
    to->split_h = v->channels_last ? 1 : step_h;
    to->split_w = v->channels_last ? 1 : step_w;
    const int64_t high = to->before_h + (h.high > 0 ? h.high : 0) + 1;
    const int64_t wide = to->before_w + (w.high > 0 ? w.high : 0) + 1;
    j.rows = round_up(high, to->split_h);
    j.columns = round_up(wide, to->split_w);
    to->pixel = v->channels_last ? t->shape[1] : 1;
    to->row = j.columns / to->split_w * to->pixel;
    to->phase_w = j.rows / to->split_h * to->row;
    to->phase_h = to->split_w * to->phase_w;
    to->channel = v->channels_last ? 1 : j.rows * j.columns;
    to->batch = t->shape[1] * j.rows * j.columns;
    const int64_t floats = t->shape[0] * to->batch;
    ATTO_TRY(scratch_floats(v->dev, floats + WINDOW_SLACK, &j.planes));
    memset(j.planes + floats, 0, WINDOW_SLACK * sizeof *j.planes);
    to->data = j.planes;
    to->limit = j.planes + floats + WINDOW_SLACK;
    const int64_t rows = t->shape[0] * j.rows * (v->channels_last ? 1 : t->shape[1]);
    atto__parallel_for(threads_for(v, floats), rows, fill_planes, &j);
    *out = *to;
    return ATTO_OK;
}

/* ---- spots and taps ---- */

static window_spots spots_of(const conv *v, const image *m, const atto__conv_walk *h,
                             const atto__conv_walk *w)
{
    window_spots s = { h->count, w->count, m->batch, m->row, m->pixel };
    if (v->channels_last) {
        s.row *= h->in_step;
        s.step *= w->in_step;
    } else if (s.row == s.width || s.height == 1) { /* one run */
        s.width *= s.height;
        s.height = 1;
    }
    return s;
}

static int64_t row_place(const image *m, const atto__conv_walk *h, int64_t t)
{
    const int64_t at = h->at + t * h->at_step + m->before_h;
    return at % m->split_h * m->phase_h + at / m->split_h * m->row;
}

static int64_t column_place(const image *m, const atto__conv_walk *w, int64_t t)
{
    const int64_t at = w->at + t * w->at_step + m->before_w;
    return at % m->split_w * m->phase_w + at / m->split_w * m->pixel;
}

/* Taps of a row that are neighbours with all their channels: one run. */
static bool joins_columns(const conv *v, const image *m, const atto__conv_walk *w, int64_t channels)
{
    return v->channels_last && v->c.groups == 1 && w->at_step == 1 && m->pixel == channels;
}

/* Taps of one group over its channels, of which the first is channel. */
static atto_status list_taps(const conv *v, const image *m, const atto__conv_walk *h,
                             const atto__conv_walk *w, int64_t channels, window_taps *out)
{
    const bool joins = joins_columns(v, m, w, channels);
    const int64_t across = joins ? least(w->taps, 1) : w->taps;
    const int64_t copies = v->channels_last ? 1 : channels;
    const int64_t count = copies * h->taps * across, room = count > 0 ? count : 1;
    atto_buffer header;
    atto_tensor list;
    ATTO_TRY(atto__scratch_tensor(v->dev, ATTO_I64, 1, &room, &header, &list));
    int64_t *start = atto__memory(&list), n = 0;
    for (int64_t c = 0; c < copies; c++)
        for (int64_t i = 0; i < h->taps; i++)
            for (int64_t j = 0; j < across; j++)
                start[n++] = c * m->channel + row_place(m, h, i) + column_place(m, w, j);
    out->start = start;
    out->run = !v->channels_last ? 1 : joins ? w->taps * channels : channels;
    out->count = channels * h->taps * w->taps;
    return ATTO_OK;
}

/* ---- filters ---- */

/* One group's filter as a matrix [outputs, taps] of a walk. */
typedef struct filter_job {
    const conv *v;
    const atto_tensor *w;
    const atto__conv_walk *h_walk, *w_walk;
    bool to_big; /* outputs are channels of the big image */
    int64_t group, outputs, inputs;
    float *to;
} filter_job;

static float weight(const filter_job *j, int64_t output, int64_t input, int64_t i, int64_t k)
{
    const int64_t small = j->group * j->v->c.small_channels + (j->to_big ? input : output);
    const void *at =
        element(j->w, small, j->to_big ? output : input, j->h_walk->tap + i * j->h_walk->tap_step,
                j->w_walk->tap + k * j->w_walk->tap_step);
    return vec_one_as(at, 0, j->w->dtype);
}

/* Outputs that are copied together, since their weights may be neighbours. */
#define FILTER_BLOCK 16

static void copy_filter(const void *job, int64_t begin, int64_t end)
{
    const filter_job *j = job;
    const int64_t taps = j->h_walk->taps * j->w_walk->taps, row = j->inputs * taps;
    for (int64_t input = 0; input < j->inputs; input++) {
        for (int64_t o = begin * FILTER_BLOCK; o < least(end * FILTER_BLOCK, j->outputs); o++) {
            float *to = j->to + o * row + (j->v->channels_last ? input : input * taps);
            const int64_t step = j->v->channels_last ? j->inputs : 1;
            for (int64_t i = 0; i < j->h_walk->taps; i++)
                for (int64_t k = 0; k < j->w_walk->taps; k++, to += step)
                    *to = weight(j, o, input, i, k);
        }
    }
}

/* Whether dimensions, the innermost first, follow each other without gaps. */
static bool are_one_run(const atto_tensor *t, const int32_t *dims, int32_t count)
{
    int64_t expected = 1;
    for (int32_t i = 0; i < count; i++) {
        if (t->shape[dims[i]] != 1 && t->stride[dims[i]] != expected) return false;
        expected *= t->shape[dims[i]];
    }
    return true;
}

static bool has_runs_of_taps(const conv *v, const atto_tensor *w)
{
    static const int32_t rows[] = { 3, 2, 1 }, channels[] = { 1, 3, 2 };
    return are_one_run(w, v->channels_last ? channels : rows, 3);
}

/* The matrix of one group: as it lies, or a copy. */
static atto_status filter_of(const conv *v, const atto__conv_walk *h, const atto__conv_walk *w,
                             bool to_big, int64_t group, atto__gemm_side *out)
{
    const atto_tensor *t = v->a->w;
    const int64_t first = group * v->c.small_channels;
    if (!to_big && has_runs_of_taps(v, t)) {
        *out = (atto__gemm_side){ element(t, first, 0, 0, 0), t->stride[0], t->dtype, true };
        return ATTO_OK;
    }
    filter_job j = { v, t, h, w, to_big, group, v->c.small_channels, v->c.big_channels, NULL };
    if (to_big) {
        j.outputs = v->c.big_channels;
        j.inputs = v->c.small_channels;
    }
    const int64_t taps = j.inputs * h->taps * w->taps;
    ATTO_TRY(scratch_floats(v->dev, j.outputs * taps, &j.to));
    atto__parallel_for(threads_for(v, j.outputs * taps), atto__divide_up(j.outputs, FILTER_BLOCK),
                       copy_filter, &j);
    *out = (atto__gemm_side){ j.to, taps, ATTO_F32, true };
    return ATTO_OK;
}

/* ---- small and big ---- */

/* One product: windows, and where its sums go. */
typedef struct pass {
    const conv *v;
    window_matrix windows;
    const atto_tensor *out;
    const struct atto_conv_args *fused; /* NULL: a gradient, added to what is there or not */
    bool add;
    int64_t channel; /* the group's first of out */
    atto__conv_walk h, w;
} pass;

/* Where a run of results goes: along width (every w.step-th), or along channels. */
typedef struct place {
    int64_t n, c, h, w;
} place;

static span run_at(const pass *p, const atto_tensor *t, const place *at, int32_t n)
{
    const int64_t step = p->v->channels_last ? 1 : p->w.step;
    return (span){ element(t, at->n, at->c, at->h, at->w), step, n, t->dtype };
}

static void add_bias(const pass *p, int64_t channel, int32_t n, float *values)
{
    const atto_tensor *b = p->fused->b;
    float buffer[ATTO_BLOCK];
    const int32_t count = p->v->channels_last ? n : 1;
    const char *memory = atto__memory(b);
    const float *bias =
        load_block((span){ (void *)(uintptr_t)(memory + (b->offset + channel) *
                                                            (int64_t)atto_dtype_size(b->dtype)),
                           1, count, b->dtype },
                   buffer);
    if (count == n) {
        for (int32_t i = 0; i < n; i++) values[i] += bias[i];
    } else {
        for (int32_t i = 0; i < n; i++) values[i] += bias[0];
    }
}

/* From n sums to what is stored. */
static void finish_run(const pass *p, const place *at, int32_t n, float *values)
{
    const struct atto_conv_args *a = p->fused;
    float buffer[ATTO_BLOCK];
    if (a) {
        if (a->b) add_bias(p, at->c, n, values);
        if (a->z) store_block(values, run_at(p, a->z, at, n));
        if (a->act.kind != ATTO_ACT_IDENTITY)
            ATTO_LEVEL_NAME(act_loops)[a->act.kind].f(values, values, n, a->act.a, a->act.b);
        if (a->residual) accumulate_block(values, run_at(p, a->residual, at, n), buffer);
    } else if (p->add) {
        accumulate_block(values, run_at(p, p->out, at, n), buffer);
    }
    store_block(values, run_at(p, p->out, at, n));
}

static place place_of(const pass *p, int64_t spot, int64_t channel)
{
    const int64_t row = spot / p->w.count;
    return (place){ row / p->h.count, p->channel + channel,
                    p->h.first + row % p->h.count * p->h.step,
                    p->w.first + spot % p->w.count * p->w.step };
}

/* Hook of rows: a channel's spots. Rows of an output that follow each other are one run. */
static void finish_spots(const void *job, int64_t channel, int64_t spot, int32_t n, float *values)
{
    const pass *p = job;
    const atto_tensor *t = p->out;
    const bool joins = p->w.step == 1 && p->h.step == 1 && !p->fused && t->stride[2] == t->shape[3];
    const int64_t width = joins ? p->h.count * p->w.count : p->w.count;
    for (int32_t i = 0; i < n;) {
        const int32_t run = (int32_t)least(width - (spot + i) % width, n - i);
        const place at = place_of(p, spot + i, channel);
        finish_run(p, &at, run, values + i);
        i += run;
    }
}

/* Hook of channels: a spot's channels. */
static void finish_channels(const void *job, int64_t spot, int64_t channel, int32_t n,
                            float *values)
{
    const pass *p = job;
    const place at = place_of(p, spot, channel);
    finish_run(p, &at, n, values);
}

static void pack_spots_across(const void *job, int64_t first, int64_t k, int32_t n, int32_t depth,
                              float *to)
{
    const pass *p = job;
    for (int32_t at = 0; at < n; at += GROUP_COLUMNS)
        pack_windows_across(&p->windows, true, first + at, k, (int32_t)least(GROUP_COLUMNS, n - at),
                            depth, TILE_COLUMNS, to + (int64_t)at * depth);
}

static void pack_taps_along(const void *job, int64_t first, int64_t k, int32_t n, int32_t depth,
                            float *to)
{
    const pass *p = job;
    pack_windows_along(&p->windows, false, first, k, n, depth, TILE_ROWS, to);
}

/* Outputs of one group along two walks. */
static atto_status multiply(pass *p, const image *in, bool to_big, int64_t group)
{
    const conv *v = p->v;
    const int64_t inputs = to_big ? v->c.small_channels : v->c.big_channels;
    const int64_t outputs = to_big ? v->c.big_channels : v->c.small_channels;
    const int64_t spots = v->c.batch * p->h.count * p->w.count;
    p->channel = group * outputs;
    p->windows = (window_matrix){ .data = in->data + group * inputs * in->channel,
                                  .limit = in->limit,
                                  .spots = spots_of(v, in, &p->h, &p->w) };
    ATTO_TRY(list_taps(v, in, &p->h, &p->w, inputs, &p->windows.taps));
    atto__gemm_side filter;
    ATTO_TRY(filter_of(v, &p->h, &p->w, to_big, group, &filter));
    atto__gemm g = { .m = outputs, .n = spots, .k = p->windows.taps.count, .job = p };
    if (v->channels_last) {
        g.m = spots;
        g.n = outputs;
        g.b = filter;
        g.pack_a = pack_taps_along;
        g.finish = finish_channels;
    } else {
        g.a = filter;
        g.pack_b = pack_spots_across;
        g.finish = finish_spots;
    }
    return ATTO_LEVEL_NAME(gemm)(v->dev, &g);
}

/* Every group's outputs; scratch of one group serves the next. */
static atto_status multiply_groups(pass *p, const image *in, bool to_big)
{
    const int32_t scratch = p->v->dev->scratch_count;
    for (int64_t group = 0; group < p->v->c.groups; group++) {
        ATTO_TRY(multiply(p, in, to_big, group));
        atto__scratch_release(p->v->dev, scratch);
    }
    return ATTO_OK;
}

/* The image that walks of these reaches read. */
static atto_status image_for(const conv *v, const atto_tensor *t, reach h, reach w, int64_t step_h,
                             int64_t step_w, image *out)
{
    const bool one_step = v->channels_last || (step_h == 1 && step_w == 1);
    if (t->dtype == ATTO_F32 && one_step && stays_inside(h, t->shape[2]) &&
        stays_inside(w, t->shape[3])) {
        *out = image_in_place(t);
        return ATTO_OK;
    }
    return make_planes(v, t, h, w, step_h, step_w, out);
}

static atto_status run_small(const conv *v, const atto_tensor *big, pass *p)
{
    image in;
    p->h = atto__conv_walk_small(&v->c.h);
    p->w = atto__conv_walk_small(&v->c.w);
    ATTO_TRY(image_for(v, big, reach_of(&p->h, nothing), reach_of(&p->w, nothing), p->h.in_step,
                       p->w.in_step, &in));
    return multiply_groups(p, &in, false);
}

static reach reach_of_phases(const atto__conv_axis *a)
{
    reach r = nothing;
    for (int64_t phase = 0; phase < atto__conv_phases(a); phase++) {
        const atto__conv_walk w = atto__conv_walk_big(a, phase);
        r = reach_of(&w, r);
    }
    return r;
}

static atto_status run_big(const conv *v, const atto_tensor *small, pass *p)
{
    image in;
    ATTO_TRY(image_for(v, small, reach_of_phases(&v->c.h), reach_of_phases(&v->c.w), 1, 1, &in));
    for (int64_t i = 0; i < atto__conv_phases(&v->c.h); i++) {
        for (int64_t k = 0; k < atto__conv_phases(&v->c.w); k++) {
            p->h = atto__conv_walk_big(&v->c.h, i);
            p->w = atto__conv_walk_big(&v->c.w, k);
            ATTO_TRY(multiply_groups(p, &in, true));
        }
    }
    return ATTO_OK;
}

/* ---- dw ---- */

typedef struct filter_pass {
    const conv *v;
    window_matrix windows;
    int64_t pitch, width, used; /* rows: of a plane's rows; their outputs; spots with outputs */
    int64_t group;
} filter_pass;

/* Spots of rows are a multiple of a vector's: pieces of k begin and end with them. */
#define SPOT_STEP 16

/* Windows of the columns between the rows are zeros: they may hold anything. */
static void clear_between(const filter_pass *p, int64_t k, int32_t depth, int32_t width, float *to)
{
    const int64_t spots = p->windows.spots.width;
    if (p->pitch == p->width && p->used == spots) return;
    for (int32_t i = 0; i < depth; i++) {
        const int64_t spot = (k + i) % spots;
        if (spot >= p->used || spot % p->pitch >= p->width)
            memset(to + (int64_t)i * width, 0, (size_t)width * sizeof *to);
    }
}

static void pack_spots_along(const void *job, int64_t first, int64_t k, int32_t n, int32_t depth,
                             float *to)
{
    const filter_pass *p = job;
    pack_windows_along(&p->windows, true, first, k, n, depth, TILE_COLUMNS, to);
    for (int32_t at = 0; at < n; at += TILE_COLUMNS)
        clear_between(p, k, depth, TILE_COLUMNS, to + (int64_t)at * depth);
}

static void pack_taps_across(const void *job, int64_t first, int64_t k, int32_t n, int32_t depth,
                             float *to)
{
    const filter_pass *p = job;
    for (int32_t at = 0; at < n; at += GROUP_COLUMNS)
        pack_windows_across(&p->windows, false, first + at, k,
                            (int32_t)least(GROUP_COLUMNS, n - at), depth, TILE_COLUMNS,
                            to + (int64_t)at * depth);
}

/* A run of dw's row: taps of one channel, or channels of one tap, one after the other. */
static void finish_filter(const void *job, int64_t output, int64_t tap, int32_t n, float *values)
{
    const filter_pass *p = job;
    const struct atto_conv_args *a = p->v->a;
    const atto_tensor *t = a->dw;
    const int64_t inputs = t->shape[1], kh = t->shape[2], kw = t->shape[3];
    const int64_t small = p->group * p->v->c.small_channels + output;
    const int64_t run = p->v->channels_last ? inputs : kw;
    float buffer[ATTO_BLOCK];
    for (int32_t i = 0; i < n;) {
        const int64_t at = tap + i;
        const int32_t count = (int32_t)least(run - at % run, n - i);
        void *memory = p->v->channels_last
                           ? element(t, small, at % inputs, at / inputs / kw, at / inputs % kw)
                           : element(t, small, at / kw / kh, at / kw % kh, at % kw);
        const span to = { memory, 1, count, t->dtype };
        if (a->add_dw) accumulate_block(values + i, to, buffer);
        store_block(values + i, to);
        i += count;
    }
}

typedef struct spread_job {
    const atto_tensor *t;
    float *to;
    int64_t image, pitch; /* floats of an image and of its rows */
} spread_job;

/* The small image as [channels][batch][image] with zeros between its rows. */
static void spread(const void *job, int64_t begin, int64_t end)
{
    const spread_job *j = job;
    const int64_t height = j->t->shape[2], width = j->t->shape[3];
    for (int64_t i = begin; i < end; i++) {
        const int64_t c = i / j->t->shape[0], n = i % j->t->shape[0];
        float *to = j->to + i * j->image;
        memset(to, 0, (size_t)j->image * sizeof *to);
        for (int64_t h = 0; h < height; h++)
            for (int64_t w = 0; w < width; w += ATTO_BLOCK) {
                const int32_t count = (int32_t)least(ATTO_BLOCK, width - w);
                float *row = to + h * j->pitch + w;
                const float *values =
                    load_block((span){ element(j->t, n, c, h, w), 1, count, j->t->dtype }, row);
                if (values != row) memcpy(row, values, (size_t)count * sizeof *row);
            }
    }
}

/* Of rows: both images with columns between their rows. */
static atto_status prepare_rows(const conv *v, const atto_tensor *small, const image *in,
                                filter_pass *p, atto__gemm *g)
{
    const int64_t height = small->shape[2], width = small->shape[3];
    p->pitch = in->row;
    p->width = width;
    p->used = (height - 1) * in->row + width;
    const int64_t spots = round_up(p->used, SPOT_STEP);
    p->windows.spots = (window_spots){ 1, spots, in->batch, 0, 1 };
    spread_job j = { small, NULL, spots, in->row };
    const int64_t planes = small->shape[0] * small->shape[1];
    ATTO_TRY(scratch_floats(v->dev, planes * spots, &j.to));
    atto__parallel_for(threads_for(v, planes * spots), planes, spread, &j);
    g->k = small->shape[0] * spots;
    g->a = (atto__gemm_side){ j.to, g->k, ATTO_F32, true };
    g->pack_b = pack_spots_along;
    return ATTO_OK;
}

/* Of channels: the small image is a matrix, if nothing lies between its pixels. */
static atto_status prepare_channels(const conv *v, const atto_tensor *small, const image *in,
                                    const atto__conv_walk *h, const atto__conv_walk *w,
                                    filter_pass *p, atto__gemm *g)
{
    static const int32_t pixels[] = { 1, 3, 2, 0 };
    image dense = image_in_place(small);
    if (!are_one_run(small, pixels, 4) || small->dtype != ATTO_F32) {
        const reach all_h = { 0, small->shape[2] - 1 }, all_w = { 0, small->shape[3] - 1 };
        ATTO_TRY(make_planes(v, small, all_h, all_w, 1, 1, &dense));
    }
    p->windows.spots = spots_of(v, in, h, w);
    g->k = v->c.batch * h->count * w->count;
    g->a = (atto__gemm_side){ dense.data, small->shape[1], ATTO_F32, false };
    g->pack_b = pack_taps_across;
    return ATTO_OK;
}

static atto_status multiply_filter(const conv *v, const image *in, atto__gemm *g, filter_pass *p,
                                   const atto__conv_walk *h, const atto__conv_walk *w)
{
    const int32_t scratch = v->dev->scratch_count;
    const atto_tensor *dw = v->a->dw;
    const bool whole = dw->dtype == ATTO_F32 && has_runs_of_taps(v, dw);
    const float *small = g->a.data;
    for (p->group = 0; p->group < v->c.groups; p->group++) {
        const int64_t first = p->group * v->c.small_channels;
        p->windows.data = in->data + p->group * v->c.big_channels * in->channel;
        ATTO_TRY(list_taps(v, in, h, w, v->c.big_channels, &p->windows.taps));
        g->a.data = small + first * (v->channels_last ? 1 : g->a.stride);
        g->c = whole ? element(dw, first, 0, 0, 0) : NULL;
        g->c_stride = dw->stride[0];
        g->accumulate = whole && v->a->add_dw;
        g->finish = whole ? NULL : finish_filter;
        ATTO_TRY(ATTO_LEVEL_NAME(gemm)(v->dev, g));
        atto__scratch_release(v->dev, scratch);
    }
    return ATTO_OK;
}

static atto_status run_filter(const conv *v, const atto_tensor *big, const atto_tensor *small)
{
    const atto__conv_walk h = atto__conv_walk_small(&v->c.h), w = atto__conv_walk_small(&v->c.w);
    const reach high = reach_of(&h, nothing), wide = reach_of(&w, nothing);
    image in;
    if (v->channels_last) {
        ATTO_TRY(image_for(v, big, high, wide, h.in_step, w.in_step, &in));
    } else {
        ATTO_TRY(make_planes(v, big, high, wide, h.in_step, w.in_step, &in));
    }
    filter_pass p = { .v = v, .windows = { .limit = in.limit } };
    atto__gemm g = { .m = v->c.small_channels,
                     .n = v->c.big_channels * h.taps * w.taps,
                     .job = &p };
    ATTO_TRY(v->channels_last ? prepare_channels(v, small, &in, &h, &w, &p, &g)
                              : prepare_rows(v, small, &in, &p, &g));
    return multiply_filter(v, &in, &g, &p, &h, &w);
}

/* ---- db: sums of rows of images, then of those in order ---- */

typedef struct bias_job {
    const conv *v;
    const atto_tensor *dz;
    float *partial; /* [batch height, channels] */
} bias_job;

static void sum_row(const bias_job *j, int64_t row)
{
    const atto_tensor *t = j->dz;
    const int64_t n = row / t->shape[2], h = row % t->shape[2], channels = t->shape[1];
    float *sums = j->partial + row * channels, buffer[ATTO_BLOCK];
    memset(sums, 0, (size_t)channels * sizeof *sums);
    const int64_t outer = j->v->channels_last ? t->shape[3] : channels;
    const int64_t inner = j->v->channels_last ? channels : t->shape[3];
    for (int64_t i = 0; i < outer; i++)
        for (int64_t k = 0; k < inner; k += ATTO_BLOCK) {
            const int32_t count = (int32_t)least(ATTO_BLOCK, inner - k);
            void *memory = j->v->channels_last ? element(t, n, k, h, i) : element(t, n, i, h, k);
            const float *values = load_block((span){ memory, 1, count, t->dtype }, buffer);
            if (j->v->channels_last) {
                for (int32_t c = 0; c < count; c++) sums[k + c] += values[c];
            } else {
                sums[i] += block_sum(values, count);
            }
        }
}

static void sum_rows(const void *job, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; row++) sum_row(job, row);
}

static void store_bias(const bias_job *j)
{
    const struct atto_conv_args *a = j->v->a;
    const int64_t rows = j->dz->shape[0] * j->dz->shape[2], channels = j->dz->shape[1];
    float sums[ATTO_BLOCK], buffer[ATTO_BLOCK];
    for (int64_t c = 0; c < channels; c += ATTO_BLOCK) {
        const int32_t n = (int32_t)least(ATTO_BLOCK, channels - c);
        memset(sums, 0, sizeof sums);
        for (int64_t row = 0; row < rows; row++)
            for (int32_t i = 0; i < n; i++) sums[i] += j->partial[row * channels + c + i];
        char *memory = atto__memory(a->db);
        const span to = { memory + (a->db->offset + c) * (int64_t)atto_dtype_size(a->db->dtype), 1,
                          n, a->db->dtype };
        if (a->add_db) accumulate_block(sums, to, buffer);
        store_block(sums, to);
    }
}

static atto_status run_bias(const conv *v, const atto_tensor *dz)
{
    bias_job j = { v, dz, NULL };
    const int64_t rows = dz->shape[0] * dz->shape[2];
    ATTO_TRY(scratch_floats(v->dev, rows * dz->shape[1], &j.partial));
    atto__parallel_for(threads_for(v, atto_tensor_numel(dz)), rows, sum_rows, &j);
    store_bias(&j);
    return ATTO_OK;
}

/* ---- dz ---- */

typedef struct dz_job {
    const struct atto_conv_args *a;
    const atto_tensor *dz;
    bool channels_last;
} dz_job;

/* Rows of the unit dimension: along width, or along channels. */
static void derive_rows(const void *job, int64_t begin, int64_t end)
{
    const dz_job *j = job;
    const atto_tensor *t = j->dz;
    const int32_t inner = j->channels_last ? 1 : 3, outer = j->channels_last ? 3 : 1;
    float dy_buffer[ATTO_BLOCK], z_buffer[ATTO_BLOCK];
    for (int64_t i = begin; i < end; i++) {
        const int64_t n = i / (t->shape[2] * t->shape[outer]);
        const int64_t h = i / t->shape[outer] % t->shape[2], o = i % t->shape[outer];
        for (int64_t k = 0; k < t->shape[inner]; k += ATTO_BLOCK) {
            const int64_t c = j->channels_last ? k : o, w = j->channels_last ? o : k;
            const int32_t count = (int32_t)least(ATTO_BLOCK, t->shape[inner] - k);
            const span dy = { element(j->a->dy, n, c, h, w), 1, count, j->a->dy->dtype };
            const span z = { element(j->a->z, n, c, h, w), 1, count, j->a->z->dtype };
            ATTO_LEVEL_NAME(act_loops)
            [j->a->act.kind].df(load_block(z, z_buffer), load_block(dy, dy_buffer),
                                element(t, n, c, h, w), count, j->a->act.a, j->a->act.b);
        }
    }
}

/* dz as an f32 image in scratch; dy itself without an activation. */
static atto_status make_dz(const conv *v, atto_buffer *header, atto_tensor *made,
                           const atto_tensor **dz)
{
    *dz = v->a->dy;
    if (v->a->act.kind == ATTO_ACT_IDENTITY) return ATTO_OK;
    const int64_t *s = v->a->dy->shape;
    ATTO_TRY(atto__scratch_tensor(v->dev, ATTO_F32, 4, s, header, made));
    if (v->channels_last) {
        made->stride[0] = s[1] * s[2] * s[3];
        made->stride[1] = 1;
        made->stride[2] = s[1] * s[3];
        made->stride[3] = s[1];
    }
    const dz_job j = { v->a, made, v->channels_last };
    const int64_t rows = s[0] * s[2] * (v->channels_last ? s[3] : s[1]);
    atto__parallel_for(threads_for(v, atto_tensor_numel(made)), rows, derive_rows, &j);
    *dz = made;
    return ATTO_OK;
}

/* ---- calls ---- */

static bool has_elements(const atto_tensor *t)
{
    return t && atto_tensor_numel(t) > 0;
}

atto_status ATTO_LEVEL_NAME(conv_forward)(atto_device *dev, const struct atto_conv_args *a,
                                          const atto__layout *layout)
{
    const bool transposed = a->window.transposed;
    const conv v = { dev, a,
                     atto__convolution_of(&a->window, transposed ? a->y : a->x,
                                          transposed ? a->x : a->y, a->w),
                     layout->channels_last };
    pass p = { .v = &v, .out = a->y, .fused = a };
    dev->stats.launches++;
    return transposed ? run_big(&v, a->x, &p) : run_small(&v, a->x, &p);
}

/* dx: the other way than forward. */
static atto_status run_dx(const conv *v, const atto_tensor *dz)
{
    const struct atto_conv_args *a = v->a;
    pass p = { .v = v, .out = a->dx, .add = a->add_dx };
    return a->window.transposed ? run_small(v, dz, &p) : run_big(v, dz, &p);
}

atto_status ATTO_LEVEL_NAME(conv_backward)(atto_device *dev, const struct atto_conv_args *a,
                                           const atto__layout *layout)
{
    const atto_tensor *x = a->x ? a->x : a->dx, *w = a->w ? a->w : a->dw, *dz;
    conv v = { .dev = dev, .a = a, .channels_last = layout->channels_last };
    const bool transposed = a->window.transposed;
    if (x && w)
        v.c = atto__convolution_of(&a->window, transposed ? a->dy : x, transposed ? x : a->dy, w);
    atto_buffer header;
    atto_tensor made;
    dev->stats.launches++;
    ATTO_TRY(make_dz(&v, &header, &made, &dz));
    if (has_elements(a->dx)) ATTO_TRY(run_dx(&v, dz));
    if (has_elements(a->dw)) ATTO_TRY(transposed ? run_filter(&v, dz, x) : run_filter(&v, x, dz));
    return has_elements(a->db) ? run_bias(&v, dz) : ATTO_OK;
}
