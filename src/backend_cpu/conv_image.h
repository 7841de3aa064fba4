/* SPDX-License-Identifier: MIT */
/* The images that convolutions read, as floats, and where spots and taps lie in them: window.h. */
#ifndef ATTO_CPU_CONV_IMAGE_H
#define ATTO_CPU_CONV_IMAGE_H

#include "backend_cpu/gemm.h"
#include "backend_cpu/rows.h"
#include "backend_cpu/window.h"

/* An image as float memory: the tensor's own or planes. */
typedef struct image {
    const float *data, *limit;
    int64_t batch, channel, row, pixel; /* steps */
    int64_t before_h, before_w;         /* zeros in front */
    int64_t split_h, split_w;           /* planes of rows: phases, */
    int64_t phase_h, phase_w;           /* and the steps between them */
    bool pixels;                        /* the channels of a pixel are neighbours */
    bool has_edges;                     /* as it lies, though walks reach over its edges */
} image;

/* An image without elements has no memory. */
static inline const float *channel_of(const image *in, int64_t channel)
{
    return in->data ? in->data + channel * in->channel : NULL;
}

/* What one call works with. */
typedef struct conv {
    atto_device *dev;
    const struct atto_conv_args *a;
    atto__convolution c;
    bool channels_last;
} conv;

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

/* As many bits at most, of all taps. */
#define EDGE_BITS (1 << 24)

/* ---- images ---- */

/* First and last input that walks read; the phases among those of planes that they meet. */
typedef struct reach {
    int64_t low, high;
    uint64_t phases;
} reach;

/* Phases by number, as far as there are bits; all of a step that has more. */
static uint64_t phases_of(const atto__conv_walk *w)
{
    uint64_t met = 0;
    if (w->in_step > 64) return UINT64_MAX;
    const int64_t before = w->at < 0 ? -w->at : 0;
    for (int64_t t = 0; t < least(w->taps, w->in_step); t++)
        met |= (uint64_t)1 << (w->at + before + t * w->at_step) % w->in_step;
    return met;
}

static bool meets_phase(uint64_t phases, int64_t phase)
{
    return phase >= 64 || (phases >> phase & 1);
}

static reach reach_of(const atto__conv_walk *w, reach so_far)
{
    if (w->taps == 0) return so_far;
    const int64_t high = (w->count - 1) * w->in_step + w->at + (w->taps - 1) * w->at_step;
    return (reach){ least(so_far.low, w->at), high > so_far.high ? high : so_far.high,
                    so_far.phases | phases_of(w) };
}

static const reach nothing = { INT64_MAX, INT64_MIN, 0 };

static bool stays_inside(reach r, int64_t size)
{
    return r.low > r.high || (r.low >= 0 && r.high < size);
}

/* Behind the last element; NULL where there is no memory. */
static const char *end_of(const atto_tensor *t)
{
    const char *last =
        element(t, t->shape[0] - 1, t->shape[1] - 1, t->shape[2] - 1, t->shape[3] - 1);
    return last ? last + atto_dtype_size(t->dtype) : NULL;
}

static image image_in_place(const atto_tensor *t, bool pixels)
{
    return (image){ .data = element(t, 0, 0, 0, 0),
                    .limit = (const float *)end_of(t),
                    .pixels = pixels,
                    .batch = t->stride[0],
                    .channel = t->stride[1],
                    .row = t->stride[2],
                    .pixel = !pixels && t->shape[3] == 1 ? 1 : t->stride[3],
                    .split_h = 1,
                    .split_w = 1 };
}

typedef struct plane_job {
    const atto_tensor *t;
    image to;
    float *planes;
    int64_t rows, columns; /* of a plane, without its phases */
    uint64_t phases_h, phases_w;
} plane_job;

/* Every other of n elements to `even`, from the first one on, and the rest to `odd`; NULL: nowhere.
 * Returns how many are done, whole vectors of both. */
static int64_t deal_two(const float *from, int64_t n, float *even, float *odd)
{
    int64_t i = 0;
    for (; i + 2 * VEC_LANES <= n; i += 2 * VEC_LANES) {
        const vec a = vec_load(from + i), b = vec_load(from + i + VEC_LANES);
        if (even) vec_store(even + i / 2, vec_even(a, b));
        if (odd) vec_store(odd + i / 2, vec_odd(a, b));
    }
    return i;
}

static int64_t deal_four(const float *from, int64_t n, float *const to[4])
{
    int64_t i = 0;
    for (; i + 4 * VEC_LANES <= n; i += 4 * VEC_LANES) {
        const vec a = vec_load(from + i), b = vec_load(from + i + VEC_LANES);
        const vec c = vec_load(from + i + 2 * VEC_LANES), d = vec_load(from + i + 3 * VEC_LANES);
        const vec even[2] = { vec_even(a, b), vec_even(c, d) };
        const vec odd[2] = { vec_odd(a, b), vec_odd(c, d) };
        if (to[0]) vec_store(to[0] + i / 4, vec_even(even[0], even[1]));
        if (to[1]) vec_store(to[1] + i / 4, vec_even(odd[0], odd[1]));
        if (to[2]) vec_store(to[2] + i / 4, vec_odd(even[0], even[1]));
        if (to[3]) vec_store(to[3] + i / 4, vec_odd(odd[0], odd[1]));
    }
    return i;
}

/* Elements of a row from column w on, as floats, to where they belong. */
static void copy_split(const plane_job *j, const float *from, int64_t w, int64_t n, float *to)
{
    const int64_t split = j->to.split_w;
    if (split == 1) {
        memcpy(to + w + j->to.before_w, from, (size_t)n * sizeof *to);
        return;
    }
    float *phase[4] = { NULL };
    int64_t done = 0;
    for (int64_t first = 0; first < least(split, 4); first++) {
        const int64_t at = w + first + j->to.before_w;
        if (meets_phase(j->phases_w, at % split))
            phase[first] = to + at % split * j->to.phase_w + at / split;
    }
    if (split == 2) done = deal_two(from, n, phase[0], phase[1]);
    if (split == 4) done = deal_four(from, n, phase);
    for (int64_t first = done; first < least(done + split, n); first++) {
        const int64_t at = w + first + j->to.before_w;
        if (!meets_phase(j->phases_w, at % split)) continue;
        float *rest = to + at % split * j->to.phase_w + at / split;
        const int64_t count = atto__divide_up(n - first, split);
        for (int64_t i = 0; i < count; i++) rest[i] = from[first + i * split];
    }
}

/* Row y of the planes of image n, channel c; y counts from the zeros on. */
static void fill_row(const plane_job *j, int64_t n, int64_t c, int64_t y)
{
    float *to = j->planes + n * j->to.batch + c * j->to.channel +
                y % j->to.split_h * j->to.phase_h + y / j->to.split_h * j->to.row;
    const int64_t h = y - j->to.before_h;
    if (!meets_phase(j->phases_h, y % j->to.split_h)) return;
    for (int64_t p = 0; p < j->to.split_w; p++)
        if (meets_phase(j->phases_w, p))
            memset(to + p * j->to.phase_w, 0, (size_t)j->to.row * sizeof *to);
    if (h < 0 || h >= j->t->shape[2]) return;
    const int64_t wanted = least(j->t->shape[3], j->columns - j->to.before_w);
    float buffer[ATTO_BLOCK];
    for (int64_t w = 0; w < wanted; w += ATTO_BLOCK) {
        const int32_t count = (int32_t)least(ATTO_BLOCK, wanted - w);
        const span from = { element(j->t, n, c, h, w), j->t->stride[3], count, j->t->dtype };
        copy_split(j, load_block(from, buffer), w, count, to);
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

/* Some channels of one pixel after the other, as floats, become rows of planes. */
static void turn_pixels(const float *from, int64_t pixel, int32_t pixels, int32_t channels,
                        int64_t plane, float *to)
{
    vec_u32 square[VEC_LANES];
    VEC_UNROLL
    for (int32_t i = 0; i < VEC_LANES; i++) {
        square[i] = (vec_u32){ 0 };
        if (i < pixels) square[i] = (vec_u32)vec_load(from + i * pixel);
    }
    vec_transpose(square);
    for (int32_t i = 0; i < channels; i++)
        memcpy(to + i * plane, &square[i], (size_t)pixels * sizeof *to);
}

/* Row y of the planes of all channels of image n, whose pixels have theirs side by side. */
static void fill_turned(const plane_job *j, int64_t n, int64_t y)
{
    const int64_t channels = j->t->shape[1], h = y - j->to.before_h;
    float *to = j->planes + n * j->to.batch + y * j->to.row;
    for (int64_t c = 0; c < channels; c++)
        memset(to + c * j->to.channel, 0, (size_t)j->to.row * sizeof *to);
    if (h < 0 || h >= j->t->shape[2]) return;
    const int64_t wanted = least(j->t->shape[3], j->columns - j->to.before_w);
    const float *from = element(j->t, n, 0, h, 0);
    for (int64_t w = 0; w < wanted; w += VEC_LANES)
        for (int64_t c = 0; c < channels; c += VEC_LANES)
            turn_pixels(from + w * j->t->stride[3] + c, j->t->stride[3],
                        (int32_t)least(VEC_LANES, wanted - w), VEC_LANES, j->to.channel,
                        to + c * j->to.channel + w + j->to.before_w);
}

/* Whether rows are best filled from whole vectors of channels. */
static bool turns(const plane_job *j)
{
    return !j->to.pixels && j->t->dtype == ATTO_F32 && j->t->stride[1] == 1 &&
           j->t->stride[3] > 1 && j->t->shape[1] % VEC_LANES == 0 && j->to.split_h == 1 &&
           j->to.split_w == 1;
}

static void fill_planes(const void *job, int64_t begin, int64_t end)
{
    const plane_job *j = job;
    const int64_t rows = j->rows;
    for (int64_t i = begin; i < end; i++) {
        if (j->to.pixels) {
            fill_pixels(j, i / rows, i % rows);
        } else if (turns(j)) {
            fill_turned(j, i / rows, i % rows);
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
static atto_status make_planes(const conv *v, const atto_tensor *t, bool pixels, reach h, reach w,
                               int64_t step_h, int64_t step_w, image *out)
{
    plane_job j = { .t = t, .phases_h = h.phases, .phases_w = w.phases };
    image *to = &j.to;
    to->pixels = pixels;
    to->before_h = zeros_before(h);
    to->before_w = zeros_before(w);
    to->split_h = pixels ? 1 : step_h;
    to->split_w = pixels ? 1 : step_w;
    if (to->split_h == 1) j.phases_h = 1;
    if (to->split_w == 1) j.phases_w = 1;
    const int64_t high = to->before_h + (h.high > 0 ? h.high : 0) + 1;
    const int64_t wide = to->before_w + (w.high > 0 ? w.high : 0) + 1;
    j.rows = round_up(high, to->split_h);
    j.columns = round_up(wide, to->split_w);
    to->pixel = pixels ? t->shape[1] : 1;
    to->row = j.columns / to->split_w * to->pixel;
    to->phase_w = j.rows / to->split_h * to->row;
    to->phase_h = to->split_w * to->phase_w;
    to->channel = pixels ? 1 : j.rows * j.columns;
    to->batch = t->shape[1] * j.rows * j.columns;
    const int64_t floats = t->shape[0] * to->batch;
    ATTO_TRY(scratch_floats(v->dev, floats + WINDOW_SLACK, &j.planes));
    memset(j.planes + floats, 0, WINDOW_SLACK * sizeof *j.planes);
    to->data = j.planes;
    to->limit = j.planes + floats + WINDOW_SLACK;
    const int64_t rows = t->shape[0] * j.rows * (pixels || turns(&j) ? 1 : t->shape[1]);
    atto__parallel_for(threads_for(v, floats), rows, fill_planes, &j);
    *out = *to;
    return ATTO_OK;
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

static bool is_inside(const atto_tensor *t, reach h, reach w)
{
    return t->dtype == ATTO_F32 && stays_inside(h, t->shape[2]) && stays_inside(w, t->shape[3]);
}

/* The image that walks of these reaches read, with the channels or the columns innermost. */
static atto_status image_for(const conv *v, const atto_tensor *t, bool pixels, reach h, reach w,
                             int64_t step_h, int64_t step_w, image *out)
{
    const bool one_step = pixels || (step_h == 1 && step_w == 1);
    if (one_step && pixels == v->channels_last && is_inside(t, h, w)) {
        *out = image_in_place(t, pixels);
        return ATTO_OK;
    }
    return make_planes(v, t, pixels, h, w, step_h, step_w, out);
}

/* ---- edges ---- */

/* Whether the walks have an output for every element of an image whose rows follow each other: then
 * it needs no copy with zeros. */
static bool fits_edges(const conv *v, const atto_tensor *t, const atto__conv_walk *h,
                       const atto__conv_walk *w)
{
    const int64_t taps = h->taps * w->taps;
    return t->dtype == ATTO_F32 && t->buffer && !v->channels_last && h->in_step == 1 &&
           w->in_step == 1 && h->count == t->shape[2] && w->count == t->shape[3] &&
           t->stride[2] == t->shape[3] && (t->stride[3] == 1 || t->shape[3] == 1) && taps > 0 &&
           taps <= EDGE_TAPS && taps * h->count * w->count <= EDGE_BITS;
}

static int64_t within(int64_t at, int64_t size)
{
    return at < 0 ? 0 : least(at, size);
}

/* The bits of one tap: a row's columns from left to right are inside. */
static void mark_inside(const atto__conv_walk *h, int64_t down, int64_t left, int64_t right,
                        int64_t width, uint8_t *bits)
{
    for (int64_t y = within(-down, h->count); y < within(h->count - down, h->count); y++)
        for (int64_t spot = y * width + left; spot < y * width + right; spot++)
            bits[spot / 8] |= (uint8_t)(1u << spot % 8);
}

/* Bits for the walks of fits_edges. */
static atto_status list_edges(const conv *v, const atto__conv_walk *h, const atto__conv_walk *w,
                              window_edges *out)
{
    const int64_t bytes = h->count * w->count / 8 + 8, taps = h->taps * w->taps;
    float *floats;
    ATTO_TRY(scratch_floats(v->dev, atto__divide_up(taps * bytes, 4), &floats));
    uint8_t *bits = (uint8_t *)floats;
    memset(bits, 0, (size_t)(taps * bytes));
    for (int64_t tap = 0; tap < taps; tap++) {
        const int64_t down = h->at + tap / w->taps * h->at_step;
        const int64_t right = w->at + tap % w->taps * w->at_step;
        mark_inside(h, down, within(-right, w->count), within(w->count - right, w->count), w->count,
                    bits + tap * bytes);
    }
    *out = (window_edges){ bits, bytes, (int32_t)taps };
    return ATTO_OK;
}

/* ---- spots and taps ---- */

static window_spots spots_of(const image *m, const atto__conv_walk *h, const atto__conv_walk *w)
{
    window_spots s = { h->count, w->count, m->batch, m->row * h->in_step / m->split_h,
                       m->pixel * w->in_step / m->split_w };
    if (!m->pixels && s.step == 1 && (s.row == s.width || s.height == 1)) { /* one run */
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
    return m->pixels && v->c.groups == 1 && w->at_step == 1 && m->pixel == channels;
}

static atto_status scratch_places(atto_device *dev, int64_t n, int64_t **out)
{
    atto_buffer header;
    atto_tensor list;
    const int64_t room = n > 0 ? n : 1;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_I64, 1, &room, &header, &list));
    *out = atto__memory(&list);
    return ATTO_OK;
}

/* Taps of one group over its channels, of which the first is channel. */
static atto_status list_taps(const conv *v, const image *m, const atto__conv_walk *h,
                             const atto__conv_walk *w, int64_t channels, window_taps *out)
{
    const bool joins = joins_columns(v, m, w, channels);
    const int64_t across = joins ? least(w->taps, 1) : w->taps;
    const int64_t copies = m->pixels ? 1 : channels;
    int64_t *start, n = 0;
    ATTO_TRY(scratch_places(v->dev, copies * h->taps * across, &start));
    for (int64_t c = 0; c < copies; c++)
        for (int64_t i = 0; i < h->taps; i++)
            for (int64_t j = 0; j < across; j++)
                start[n++] = c * m->channel + row_place(m, h, i) + column_place(m, w, j);
    out->start = start;
    out->run = !m->pixels ? 1 : joins ? w->taps * channels : channels;
    out->count = channels * h->taps * w->taps;
    return ATTO_OK;
}

#endif
