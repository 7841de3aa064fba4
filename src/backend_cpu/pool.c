/* SPDX-License-Identifier: MIT */
/* Pooling on the CPU.
 *
 *   forward    y = (sum of a window) / divisor, or its maximum and where that is
 *   backward   dx = sum over the windows that hold the element of dy / divisor, or of dy where the
 *              index is the element's
 *
 * Two storage orders, as the layout IMAGES gives them:
 *
 *   rows       unit stride along width. A unit of work is a row of y, or of dx. Means and plain
 *              maxima add up the rows of a window first; then tap j of all windows in a row are
 *              taken at once: elements o stride - padding + j dilation, o = 0, 1, ...
 *   channels   unit stride along channels, which are what loops go along
 */
#include <math.h>
#include <string.h>

#include "backend_cpu/rows.h"
#include "backend_cpu/stream.h"
#include "pooling.h"

/* Elements of an input row that stand in a buffer at a time. */
#define SEGMENT 4096

/* Strides up to this one are taken apart into phases by the gradients of rows. */
#define PHASES 4

typedef struct job {
    atto__pooling p;
    bool is_max;
    const atto_tensor *x, *y, *indices; /* backward: dx, dy; indices may be NULL */
    bool add;
    const float
        *column_count; /* means: [w.out], the part of the divisor that a window's width is */
    bool streams;      /* dx passes the caches by */
    /* backward along channels: first and last output of [w.in, 2]; means: 1 / parts of the
     * divisor */
    const int64_t *columns;
    const float *row_scale, *column_scale;
} job;

static job avg_job(const struct atto_avg_pool_args *a, const atto_tensor *x, const atto_tensor *y)
{
    return (job){ .p = atto__avg_pool_of(a, x, y), .x = x, .y = y, .add = a->add_dx };
}

static job max_job(const struct atto_max_pool_args *a, const atto_tensor *x, const atto_tensor *y)
{
    return (job){ .p = atto__pooling_of(x, y, &a->window),
                  .is_max = true,
                  .x = x,
                  .y = y,
                  .indices = a->indices,
                  .add = a->add_dx };
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t greatest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* n elements from [b, c, h, w] on, along the unit stride. */
static span span_at(const atto_tensor *t, int64_t b, int64_t c, int64_t h, int64_t w, int64_t n)
{
    const int64_t at =
        t->offset + b * t->stride[0] + c * t->stride[1] + h * t->stride[2] + w * t->stride[3];
    char *memory = atto__memory(t);
    return (span){ memory + at * (int64_t)atto_dtype_size(t->dtype), 1, (int32_t)n, t->dtype };
}

/* Positions as 32-bit numbers are as wide as floats. */
static bool has_short_positions(const atto__pooling *p)
{
    return p->h.in <= INT32_MAX / p->w.in;
}

static int32_t threads_for(const atto_device *dev, const job *j)
{
    return atto_tensor_numel(j->x) < ATTO_SERIAL_BELOW ? 1 : atto__cpu_threads(dev);
}

/* ---- folds: dense vectors into dense results ---- */

/* acc += v, v taken every step elements. */
static void fold_sum(float *restrict acc, const float *restrict v, int64_t step, int32_t n)
{
    if (step == 1) {
        ATTO_SIMD
        for (int32_t i = 0; i < n; i++) acc[i] += v[i];
    } else if (step == 2) {
        ATTO_SIMD
        for (int32_t i = 0; i < n; i++) acc[i] += v[2 * i];
    } else {
        for (int32_t i = 0; i < n; i++) acc[i] += v[i * step];
    }
}

/* Whether v takes the place of what stood before it: NaN always does. */
#define TAKES(v, best) (((v) > (best)) | ((v) != (v)))

static void fold_max(float *restrict acc, const float *restrict v, int64_t step, int32_t n)
{
    if (step == 1) {
        ATTO_SIMD
        for (int32_t i = 0; i < n; i++) acc[i] = TAKES(v[i], acc[i]) ? v[i] : acc[i];
    } else if (step == 2) {
        ATTO_SIMD
        for (int32_t i = 0; i < n; i++) acc[i] = TAKES(v[2 * i], acc[i]) ? v[2 * i] : acc[i];
    } else {
        for (int32_t i = 0; i < n; i++) acc[i] = TAKES(v[i * step], acc[i]) ? v[i * step] : acc[i];
    }
}

/* The same, with the position of v[i * step] = position + i * apart. */
static void fold_arg(float *restrict acc, int32_t *restrict at, const float *restrict v,
                     int64_t step, int32_t n, int32_t position, int32_t apart)
{
    if (step == 1) {
        ATTO_SIMD
        for (int32_t i = 0; i < n; i++) {
            const int32_t takes = TAKES(v[i], acc[i]);
            at[i] = takes ? position + i * apart : at[i];
            acc[i] = takes ? v[i] : acc[i];
        }
    } else if (step == 2) {
        ATTO_SIMD
        for (int32_t i = 0; i < n; i++) {
            const int32_t takes = TAKES(v[2 * i], acc[i]);
            at[i] = takes ? position + i * apart : at[i];
            acc[i] = takes ? v[2 * i] : acc[i];
        }
    } else {
        for (int32_t i = 0; i < n; i++) {
            const int32_t takes = TAKES(v[i * step], acc[i]);
            at[i] = takes ? position + i * apart : at[i];
            acc[i] = takes ? v[i * step] : acc[i];
        }
    }
}

static void set_all(float *v, float value, int32_t n)
{
    for (int32_t i = 0; i < n; i++) v[i] = value;
}

static void divide_all(float *v, float divisor, int32_t n)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) v[i] /= divisor;
}

/* Where positions go before store_positions: the tensor itself where they are as wide, else
 * buffer. */
static int32_t *position_target(span to, int32_t *buffer)
{
    return to.dtype == ATTO_I32 ? to.first : buffer;
}

static void store_positions(const int32_t *at, span to)
{
    if (to.dtype == ATTO_I32) return;
    int64_t *wide = to.first;
    ATTO_SIMD
    for (int32_t i = 0; i < to.n; i++) wide[i] = at[i];
}

static void store_position(int64_t at, span to)
{
    if (to.dtype == ATTO_I32) {
        *(int32_t *)to.first = (int32_t)at;
    } else {
        *(int64_t *)to.first = at;
    }
}

/* ---- one window by itself ---- */

static float load_one(const atto_tensor *x, int64_t b, int64_t c, int64_t h, int64_t w)
{
    float one[1] = { 0.0f };
    return *load_block(span_at(x, b, c, h, w, 1), one);
}

/* Any strides, any dilation, any position. */
static float max_of_window(const job *j, int64_t b, int64_t c, atto__pool_span h, atto__pool_span w,
                           int64_t *position)
{
    float best = -INFINITY;
    *position = -1;
    for (int64_t r = h.begin; r < h.end; r += j->p.h.dilation)
        for (int64_t q = w.begin; q < w.end; q += j->p.w.dilation) {
            const float v = load_one(j->x, b, c, r, q);
            if (*position >= 0 && !TAKES(v, best)) continue;
            best = v;
            *position = r * j->p.w.in + q;
        }
    return best;
}

/* n elements that follow each other from [b, c, h, w] on. */
static float sum_of_run(const job *j, int64_t b, int64_t c, int64_t h, int64_t w, int64_t n)
{
    float sum = 0.0f, buffer[ATTO_BLOCK];
    for (int64_t q = 0; q < n; q += ATTO_BLOCK) {
        const span s = span_at(j->x, b, c, h, w + q, least(ATTO_BLOCK, n - q));
        sum += block_sum(load_block(s, buffer), s.n);
    }
    return sum;
}

/* Row by row, or at once where whole rows follow each other. */
static float sum_of_window(const job *j, int64_t b, int64_t c, atto__pool_span h, atto__pool_span w)
{
    const int64_t n = w.end - w.begin;
    if (n == j->x->stride[2]) return sum_of_run(j, b, c, h.begin, w.begin, n * (h.end - h.begin));
    float sum = 0.0f;
    for (int64_t r = h.begin; r < h.end; r++) sum += sum_of_run(j, b, c, r, w.begin, n);
    return sum;
}

/* A row of y, window by window. */
static void row_by_windows(const job *j, int64_t b, int64_t c, int64_t oh)
{
    const atto__pool_span h = atto__pool_window_of(&j->p.h, oh);
    for (int64_t ow = 0; ow < j->p.w.out; ow++) {
        const atto__pool_span w = atto__pool_window_of(&j->p.w, ow);
        const span y = span_at(j->y, b, c, oh, ow, 1);
        int64_t position = -1;
        const float v = j->is_max
                            ? max_of_window(j, b, c, h, w, &position)
                            : sum_of_window(j, b, c, h, w) / atto__pool_divisor(&j->p, &h, &w);
        store_block(&v, y);
        if (j->indices) store_position(position, span_at(j->indices, b, c, oh, ow, 1));
    }
}

/* ---- forward along rows ---- */

/* Outputs first to first + n of a row, and what they see of an input row. */
typedef struct stretch {
    int64_t b, c, oh, first;
    int32_t n;
    int64_t from; /* element of the input row where their first window begins; may be below 0 */
    int64_t begin, end; /* elements of it that exist */
} stretch;

static stretch stretch_of(const job *j, int64_t b, int64_t c, int64_t oh, int64_t first, int64_t n)
{
    const atto__pool_axis *w = &j->p.w;
    const int64_t from = first * w->stride - w->padding;
    const int64_t to = from + (n - 1) * w->stride + (w->kernel - 1) * w->dilation + 1;
    const int64_t begin = greatest(from, 0);
    return (stretch){ b, c, oh, first, (int32_t)n, from, begin, greatest(begin, least(to, w->in)) };
}

/* Of outputs o = 0 .. n - 1 of a stretch those whose tap is in the row, and where it is for the
 * first of them. */
typedef struct tap {
    int32_t begin, n;
    int64_t at;
} tap;

static tap tap_of(const job *j, const stretch *s, int64_t number)
{
    const atto__pool_axis *w = &j->p.w;
    const int64_t at = s->from + number * w->dilation;
    const int64_t begin = at < 0 ? (-at + w->stride - 1) / w->stride : 0;
    const int64_t end = at < w->in ? (w->in - 1 - at) / w->stride + 1 : 0;
    const int64_t n = least(end, s->n) - begin;
    return (tap){ (int32_t)least(begin, s->n), (int32_t)greatest(n, 0), at + begin * w->stride };
}

/* Sums or plain maxima: the window's rows together, then the taps. */
static void fold_stretch(const job *j, const stretch *s, atto__pool_span h, float *acc)
{
    float buffer[SEGMENT], column[SEGMENT];
    const float *row = column;
    for (int64_t r = h.begin; r < h.end; r += j->p.h.dilation) {
        const span x = span_at(j->x, s->b, s->c, r, s->begin, s->end - s->begin);
        const bool first = r == h.begin, only = first && r + j->p.h.dilation >= h.end;
        const float *v = load_block(x, first && !only ? column : buffer);
        if (only) {
            row = v;
        } else if (first) {
            if (v != column) memcpy(column, v, (size_t)x.n * sizeof *v);
        } else if (j->is_max) {
            fold_max(column, v, 1, x.n);
        } else {
            fold_sum(column, v, 1, x.n);
        }
    }
    for (int64_t number = 0; number < j->p.w.kernel && h.begin < h.end; number++) {
        const tap t = tap_of(j, s, number);
        if (t.n == 0) continue;
        if (j->is_max) {
            fold_max(acc + t.begin, row + (t.at - s->begin), j->p.w.stride, t.n);
        } else {
            fold_sum(acc + t.begin, row + (t.at - s->begin), j->p.w.stride, t.n);
        }
    }
}

/* The first element of each window; -1 where there is none. */
static void start_positions(const job *j, const stretch *s, atto__pool_span h, int32_t *at)
{
    const bool is_plain = j->p.w.dilation == 1 && h.begin < h.end; /* no window is empty */
    const int32_t stride = (int32_t)j->p.w.stride;
    const int32_t row = (int32_t)(h.begin * j->p.w.in), from = (int32_t)s->from;
    ATTO_SIMD
    for (int32_t i = 0; i < s->n; i++)
        at[i] = row + (from + i * stride > 0 ? from + i * stride : 0);
    for (int32_t i = 0; !is_plain && i < s->n; i++) {
        const atto__pool_span w = atto__pool_window_of(&j->p.w, s->first + i);
        const bool is_empty = h.begin >= h.end || w.begin >= w.end;
        at[i] = is_empty ? -1 : row + (int32_t)w.begin;
    }
}

/* Maxima with positions: tap by tap in row-major order. */
static void fold_stretch_arg(const job *j, const stretch *s, atto__pool_span h, float *acc,
                             int32_t *at)
{
    float buffer[SEGMENT];
    const int32_t stride = (int32_t)j->p.w.stride;
    start_positions(j, s, h, at);
    for (int64_t r = h.begin; r < h.end; r += j->p.h.dilation) {
        const float *v =
            load_block(span_at(j->x, s->b, s->c, r, s->begin, s->end - s->begin), buffer);
        for (int64_t number = 0; number < j->p.w.kernel; number++) {
            const tap t = tap_of(j, s, number);
            if (t.n > 0)
                fold_arg(acc + t.begin, at + t.begin, v + (t.at - s->begin), stride, t.n,
                         (int32_t)(r * j->p.w.in + t.at), stride);
        }
    }
}

/* The part of the divisor that a window's height is. */
static float row_count(const job *j, atto__pool_span h)
{
    const atto__pool_span one = { 0, 1, 1 };
    return j->p.override != 0.0f ? 1.0f : atto__pool_divisor(&j->p, &h, &one);
}

static void divide_stretch(const job *j, const stretch *s, atto__pool_span h, float *acc)
{
    const float rows = row_count(j, h), *restrict count = j->column_count + s->first;
    ATTO_SIMD
    for (int32_t i = 0; i < s->n; i++) acc[i] /= rows * count[i];
}

static void forward_stretch(const job *j, const stretch *s)
{
    float buffer[ATTO_BLOCK];
    int32_t positions[ATTO_BLOCK];
    const atto__pool_span h = atto__pool_window_of(&j->p.h, s->oh);
    const span y = span_at(j->y, s->b, s->c, s->oh, s->first, s->n);
    float *acc = store_target(y, buffer);
    set_all(acc, j->is_max ? -INFINITY : 0.0f, s->n);
    if (j->indices) {
        const span to = span_at(j->indices, s->b, s->c, s->oh, s->first, s->n);
        int32_t *at = position_target(to, positions);
        fold_stretch_arg(j, s, h, acc, at);
        store_positions(at, to);
    } else {
        fold_stretch(j, s, h, acc);
    }
    if (!j->is_max) divide_stretch(j, s, h, acc);
    store_block(acc, y);
}

/* Outputs that are taken at once; 0: one by one, for there are no such taps, or they reach too
 * far. */
static int64_t stretch_length(const job *j)
{
    const atto__pool_axis *w = &j->p.w;
    const int64_t reach = (w->kernel - 1) * w->dilation + 1;
    const bool by_taps = w->kernel != 0 && w->kernel <= greatest(16, w->out) &&
                         reach <= SEGMENT / 2 && w->stride <= SEGMENT / 2 &&
                         has_short_positions(&j->p);
    return by_taps ? least(ATTO_BLOCK, (SEGMENT - reach) / w->stride + 1) : 0;
}

static void forward_rows(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    const int64_t step = stretch_length(j);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t oh = unit % j->p.h.out, plane = unit / j->p.h.out;
        const int64_t c = plane % j->p.channels, b = plane / j->p.channels;
        if (step == 0) row_by_windows(j, b, c, oh);
        for (int64_t first = 0; step > 0 && first < j->p.w.out; first += step) {
            const stretch s = stretch_of(j, b, c, oh, first, least(step, j->p.w.out - first));
            forward_stretch(j, &s);
        }
    }
}

/* ---- forward along channels ---- */

/* Elements of a window: where they lie in x, and their positions in the plane. */
#define TAPS         64
#define PIXELS_AHEAD 8
typedef struct taps {
    int32_t n;
    bool first; /* of the window: results begin at start and its position */
    float start;
    int32_t start_at;
    int64_t ahead; /* where an element lies that will be read soon */
    int64_t at[TAPS];
    int32_t position[TAPS];
} taps;

/* The rest of the window's elements from [*r, *q] on, as far as there is room. */
static void next_taps(const job *j, int64_t b, int64_t c, atto__pool_span h, atto__pool_span w,
                      int64_t *r, int64_t *q, taps *t)
{
    const int64_t *stride = j->x->stride, plane = j->x->offset + b * stride[0] + c;
    for (t->n = 0; *r < h.end && t->n < TAPS; *r += j->p.h.dilation, *q = w.begin) {
        const int64_t row = plane + *r * stride[2], position = *r * j->p.w.in;
        for (; *q < w.end; *q += j->p.w.dilation) {
            if (t->n == TAPS) return;
            t->at[t->n] = row + *q * stride[3];
            t->position[t->n++] = (int32_t)(position + *q);
        }
    }
}

/* Vectors of channels that are taken side by side: a pixel's lines follow each other in memory. */
#define SIDE_BY_SIDE 4

/* count vectors of channels over all taps; those of one dtype are one loop. */
ATTO_INLINE void fold_lanes(const taps *t, const void *x, int32_t i, atto_dtype dtype, bool is_max,
                            int32_t count, float *acc, int32_t *at)
{
    vec best[SIDE_BY_SIDE];
    vec_u32 where[SIDE_BY_SIDE];
    VEC_UNROLL
    for (int32_t v = 0; v < count; v++) {
        best[v] = vec_all(t->start);
        where[v] = (vec_u32){ 0 } + (uint32_t)t->start_at;
        if (t->first) continue;
        best[v] = vec_load(acc + i + v * VEC_LANES);
        if (at) memcpy(&where[v], at + i + v * VEC_LANES, sizeof where[v]);
    }
    for (int32_t k = 0; k < t->n; k++) {
        const vec_u32 position = (vec_u32){ 0 } + (uint32_t)t->position[k];
        VEC_UNROLL
        for (int32_t v = 0; v < count; v++) {
            const int64_t element = t->at[k] + i + v * VEC_LANES;
            const vec x_v = vec_load_as(x, element, dtype);
            vec_prefetch_as(x, element + t->ahead, dtype);
            const vec_u32 takes = (vec_u32)(x_v > best[v]) | (vec_u32)(x_v != x_v);
            where[v] = (takes & position) | (~takes & where[v]);
            best[v] = is_max ? vec_choose(takes, x_v, best[v]) : best[v] + x_v;
        }
    }
    VEC_UNROLL
    for (int32_t v = 0; v < count; v++) {
        vec_store(acc + i + v * VEC_LANES, best[v]);
        if (at) memcpy(at + i + v * VEC_LANES, &where[v], sizeof where[v]);
    }
}

ATTO_INLINE void fold_lane(const taps *t, const void *x, int32_t i, atto_dtype dtype, bool is_max,
                           float *acc, int32_t *at)
{
    if (t->first) acc[i] = t->start;
    if (t->first && at) at[i] = t->start_at;
    for (int32_t k = 0; k < t->n; k++) {
        const float v = vec_one_as(x, t->at[k] + i, dtype);
        const bool takes = TAKES(v, acc[i]);
        if (at && takes) at[i] = t->position[k];
        acc[i] = !is_max ? acc[i] + v : takes ? v : acc[i];
    }
}

ATTO_INLINE void fold_taps_as(const taps *t, const void *x, int32_t n, atto_dtype dtype,
                              bool is_max, float *acc, int32_t *at)
{
    int32_t i = 0;
    for (; i + SIDE_BY_SIDE * VEC_LANES <= n; i += SIDE_BY_SIDE * VEC_LANES)
        fold_lanes(t, x, i, dtype, is_max, SIDE_BY_SIDE, acc, at);
    for (; i + VEC_LANES <= n; i += VEC_LANES) fold_lanes(t, x, i, dtype, is_max, 1, acc, at);
    for (; i < n; i++) fold_lane(t, x, i, dtype, is_max, acc, at);
}

ATTO_INLINE void fold_taps_of(const taps *t, const job *j, int32_t n, bool is_max, float *acc,
                              int32_t *at)
{
    const void *x = atto__memory(j->x);
    if (j->x->dtype == ATTO_F32) fold_taps_as(t, x, n, ATTO_F32, is_max, acc, at);
    if (j->x->dtype == ATTO_F16) fold_taps_as(t, x, n, ATTO_F16, is_max, acc, at);
    if (j->x->dtype == ATTO_BF16) fold_taps_as(t, x, n, ATTO_BF16, is_max, acc, at);
}

static void fold_taps(const taps *t, const job *j, int32_t n, float *acc, int32_t *at)
{
    if (!j->is_max) {
        fold_taps_of(t, j, n, false, acc, NULL);
    } else if (at) {
        fold_taps_of(t, j, n, true, acc, at);
    } else {
        fold_taps_of(t, j, n, true, acc, NULL);
    }
}

/* n channels of one output. */
static void forward_pixel(const job *j, int64_t b, int64_t c, atto__pool_span h, atto__pool_span w,
                          float *acc, int32_t *at, int32_t n)
{
    int64_t r = h.begin, q = w.begin;
    const bool is_empty = h.begin >= h.end || w.begin >= w.end;
    taps t; /* the arrays are long: only what counts is set */
    t.n = 0;
    t.first = true;
    t.ahead = PIXELS_AHEAD * j->x->stride[3];
    t.start = j->is_max ? -INFINITY : 0.0f;
    t.start_at = is_empty ? -1 : (int32_t)(h.begin * j->p.w.in + w.begin);
    if (is_empty) fold_taps(&t, j, n, acc, at);
    while (!is_empty && r < h.end) {
        next_taps(j, b, c, h, w, &r, &q, &t);
        fold_taps(&t, j, n, acc, at);
        t.first = false;
    }
}

static void forward_channels(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    float acc[ATTO_BLOCK];
    int32_t positions[ATTO_BLOCK];
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t oh = unit % j->p.h.out, b = unit / j->p.h.out;
        const atto__pool_span h = atto__pool_window_of(&j->p.h, oh);
        for (int64_t ow = 0; ow < j->p.w.out; ow++) {
            const atto__pool_span w = atto__pool_window_of(&j->p.w, ow);
            const float divisor = j->is_max ? 1.0f : atto__pool_divisor(&j->p, &h, &w);
            for (int64_t c = 0; c < j->p.channels; c += ATTO_BLOCK) {
                const int32_t n = (int32_t)least(ATTO_BLOCK, j->p.channels - c);
                const span y = span_at(j->y, b, c, oh, ow, n);
                float *results = store_target(y, acc);
                if (j->indices) {
                    const span to = span_at(j->indices, b, c, oh, ow, n);
                    int32_t *at = position_target(to, positions);
                    forward_pixel(j, b, c, h, w, results, at, n);
                    store_positions(at, to);
                } else {
                    forward_pixel(j, b, c, h, w, results, NULL, n);
                }
                if (!j->is_max) divide_all(results, divisor, n);
                store_block(results, y);
            }
        }
    }
}

/* Channels of planes whose positions need 64 bits. */
static void forward_channels_wide(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    for (int64_t unit = begin; unit < end; unit++)
        for (int64_t c = 0; c < j->p.channels; c++)
            row_by_windows(j, unit / j->p.h.out, c, unit % j->p.h.out);
}

static atto_status run_forward(atto_device *dev, const job *j, const atto__layout *layout)
{
    const int64_t rows = j->p.batch * j->p.h.out;
    const bool wide = j->indices && !has_short_positions(&j->p);
    dev->stats.launches++;
    if (!layout->channels_last) {
        atto__parallel_for(threads_for(dev, j), rows * j->p.channels, forward_rows, j);
    } else {
        atto__parallel_for(threads_for(dev, j), rows,
                           wide ? forward_channels_wide : forward_channels, j);
    }
    return ATTO_OK;
}

/* j->column_count, in scratch. */
static atto_status count_columns(atto_device *dev, job *j, atto_buffer *header)
{
    atto_tensor scratch;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &j->p.w.out, header, &scratch));
    float *count = atto__memory(&scratch);
    for (int64_t o = 0; o < j->p.w.out; o++) {
        const atto__pool_span one = { 0, 1, 1 }, w = atto__pool_window_of(&j->p.w, o);
        count[o] = atto__pool_divisor(&j->p, &one, &w);
    }
    j->column_count = count;
    return ATTO_OK;
}

atto_status ATTO_LEVEL_NAME(avg_pool_forward)(atto_device *dev, const struct atto_avg_pool_args *a,
                                              const atto__layout *layout)
{
    atto_buffer header;
    job j = avg_job(a, a->x, a->y);
    ATTO_TRY(count_columns(dev, &j, &header));
    return run_forward(dev, &j, layout);
}

atto_status ATTO_LEVEL_NAME(max_pool_forward)(atto_device *dev, const struct atto_max_pool_args *a,
                                              const atto__layout *layout)
{
    const job j = max_job(a, a->x, a->y);
    return run_forward(dev, &j, layout);
}

/* ---- backward along rows ---- */

/* Elements first to first + n of row h of dx, and outputs out to out + outs of the row of y in
 * hand. */
typedef struct patch {
    int64_t b, c, h, first;
    int32_t n;
    int64_t out;
    int32_t outs;
} patch;

/* What a row of outputs has for the patch: a gradient, and perhaps the index it belongs to. */
typedef struct share {
    const float *dy;
    const int32_t *at; /* NULL: to all elements of the window */
    span indices;      /* as they are stored */
} share;

/* Every stride-th element of the patch, from phase on, gathers tap by tap. */
static void gather_phase(const job *j, const patch *p, const share *s, int64_t phase, float *part)
{
    const atto__pool_axis *w = &j->p.w;
    const int32_t count = (int32_t)((p->n - phase + w->stride - 1) / w->stride);
    const int32_t stride = (int32_t)w->stride;
    for (int64_t number = 0; number < w->kernel; number++) {
        const int64_t shifted = p->first + phase + w->padding - number * w->dilation;
        if (shifted % w->stride != 0) continue;
        const int64_t from = shifted / w->stride - p->out; /* output of the phase's first element */
        const int32_t begin = (int32_t)greatest(0, -from);
        const int32_t end = (int32_t)least(count, p->outs - from);
        if (begin >= end) continue;
        const float *restrict dy = s->dy + from + begin;
        float *restrict to = part + begin;
        if (!s->at) {
            ATTO_SIMD
            for (int32_t m = 0; m < end - begin; m++) to[m] += dy[m];
        } else {
            const int32_t *restrict at = s->at + from + begin;
            const int64_t element = p->first + phase + begin * w->stride;
            const int32_t position = (int32_t)(p->h * w->in + element);
            ATTO_SIMD
            for (int32_t m = 0; m < end - begin; m++)
                to[m] += at[m] == position + m * stride ? dy[m] : 0.0f;
        }
    }
}

/* Gradients of means spread over their windows. */
static void scatter_windows(const job *j, const patch *p, const float *dy, float *acc)
{
    for (int32_t o = 0; o < p->outs; o++) {
        const atto__pool_span w = atto__pool_window_of(&j->p.w, p->out + o);
        const int64_t begin = greatest(w.begin, p->first), end = least(w.end, p->first + p->n);
        const float d = dy[o];
        ATTO_SIMD
        for (int64_t q = begin; q < end; q++) acc[q - p->first] += d;
    }
}

static int64_t index_at(span indices, int64_t i)
{
    return indices.dtype == ATTO_I32 ? ((const int32_t *)indices.first)[i]
                                     : ((const int64_t *)indices.first)[i];
}

static void scatter_maxima(const job *j, const patch *p, const share *s, float *acc)
{
    const int64_t start = p->h * j->p.w.in + p->first;
    for (int32_t o = 0; o < p->outs; o++) {
        const int64_t index = index_at(s->indices, o);
        if (index >= start && index < start + p->n) acc[index - start] += s->dy[o];
    }
}

/* The patch's elements, by phases: element m stride + phase is part[phase][m]. */
static void interleave(const float part[PHASES][ATTO_BLOCK], int64_t stride, int32_t n, float *to)
{
    if (stride == 2) {
        ATTO_SIMD
        for (int32_t m = 0; m < n / 2; m++) {
            to[2 * m] = part[0][m];
            to[2 * m + 1] = part[1][m];
        }
        if (n % 2) to[n - 1] = part[0][n / 2];
    } else {
        for (int32_t i = 0; i < n; i++) to[i] = part[i % stride][i / stride];
    }
}

static bool has_phases(const atto__pooling *p)
{
    return p->w.kernel != 0 && p->w.stride <= PHASES && p->w.kernel <= greatest(16, p->w.out) &&
           has_short_positions(p);
}

/* The gradients of rows oh0 to oh1 over their divisors, added up. */
static void sum_rows(const job *j, const patch *p, int64_t oh0, int64_t oh1, float *sum)
{
    float buffer[ATTO_BLOCK];
    const float *count = j->column_count + p->out;
    set_all(sum, 0.0f, p->outs);
    for (int64_t oh = oh0; oh <= oh1; oh++) {
        const atto__pool_span h = atto__pool_window_of(&j->p.h, oh);
        const float rows = row_count(j, h);
        const float *dy = load_block(span_at(j->y, p->b, p->c, oh, p->out, p->outs), buffer);
        ATTO_SIMD
        for (int32_t o = 0; o < p->outs; o++) sum[o] += dy[o] / (rows * count[o]);
    }
}

static void gather(const job *j, const patch *p, const share *s, float part[PHASES][ATTO_BLOCK])
{
    if (has_phases(&j->p)) {
        for (int64_t phase = 0; phase < j->p.w.stride; phase++)
            gather_phase(j, p, s, phase, part[phase]);
    } else if (j->is_max) {
        scatter_maxima(j, p, s, part[0]);
    } else {
        scatter_windows(j, p, s->dy, part[0]);
    }
}

/* Positions as gather_phase wants them. */
static const int32_t *load_positions(span from, int32_t *buffer)
{
    if (from.dtype == ATTO_I32) return from.first;
    const int64_t *wide = from.first;
    ATTO_SIMD
    for (int32_t i = 0; i < from.n; i++) buffer[i] = (int32_t)wide[i];
    return buffer;
}

/* Row oh of y: gradients and indices. */
static void gather_maxima(const job *j, const patch *p, int64_t oh, float part[PHASES][ATTO_BLOCK])
{
    float buffer[ATTO_BLOCK];
    int32_t positions[ATTO_BLOCK];
    const span indices = span_at(j->indices, p->b, p->c, oh, p->out, p->outs);
    const share s = { load_block(span_at(j->y, p->b, p->c, oh, p->out, p->outs), buffer),
                      has_phases(&j->p) ? load_positions(indices, positions) : NULL, indices };
    gather(j, p, &s, part);
}

static void backward_patch(const job *j, patch *p)
{
    float part[PHASES][ATTO_BLOCK], whole[ATTO_BLOCK], sum[ATTO_BLOCK];
    const int64_t phases = has_phases(&j->p) ? j->p.w.stride : 1;
    const int64_t oh0 = atto__pool_first(&j->p.h, p->h), oh1 = atto__pool_last(&j->p.h, p->h);
    const int64_t last = atto__pool_last(&j->p.w, p->first + p->n - 1);
    for (int64_t phase = 0; phase < phases; phase++)
        set_all(part[phase], 0.0f, (int32_t)((p->n + phases - 1) / phases));
    for (p->out = atto__pool_first(&j->p.w, p->first); p->out <= last; p->out += p->outs) {
        p->outs = (int32_t)least(ATTO_BLOCK, last - p->out + 1);
        for (int64_t oh = oh0; j->is_max && oh <= oh1; oh++) gather_maxima(j, p, oh, part);
        if (j->is_max || oh0 > oh1) continue;
        sum_rows(j, p, oh0, oh1, sum);
        const share s = { sum, NULL, { 0 } };
        gather(j, p, &s, part);
    }
    float *results = part[0];
    if (phases > 1) interleave((const float(*)[ATTO_BLOCK])part, phases, p->n, results = whole);
    const span dx = span_at(j->x, p->b, p->c, p->h, p->first, p->n);
    if (j->add) accumulate_block(results, dx, sum);
    store_block(results, dx);
}

static void backward_rows(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    const int64_t step = ATTO_BLOCK / PHASES * PHASES;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t h = unit % j->p.h.in, plane = unit / j->p.h.in;
        for (int64_t first = 0; first < j->p.w.in; first += step) {
            patch p = { plane / j->p.channels,
                        plane % j->p.channels,
                        h,
                        first,
                        (int32_t)least(step, j->p.w.in - first),
                        0,
                        0 };
            backward_patch(j, &p);
        }
    }
}

/* ---- backward of maxima, plane by plane ---- */

/* Some planes of floats, whose rows follow each other in all tensors. */
static bool has_planes(const job *j)
{
    return j->is_max && j->p.batch * j->p.channels >= 4 && j->x->dtype == ATTO_F32 &&
           j->y->dtype == ATTO_F32 && j->x->stride[2] == j->p.w.in &&
           j->y->stride[2] == j->p.w.out && j->indices->stride[2] == j->p.w.out &&
           j->p.h.in <= INT32_MAX / j->p.w.in;
}

/* What stands at an index outside the plane counts for nothing. */
static void scatter_plane(const job *j, int64_t plane)
{
    const int64_t c = plane % j->p.channels, b = plane / j->p.channels;
    const int64_t elements = j->p.h.in * j->p.w.in, outputs = j->p.h.out * j->p.w.out;
    const span indices = span_at(j->indices, b, c, 0, 0, 0);
    const float *dy = span_at(j->y, b, c, 0, 0, 0).first;
    float *dx = span_at(j->x, b, c, 0, 0, 0).first;
    if (!j->add) memset(dx, 0, (size_t)elements * sizeof *dx);
    for (int64_t o = 0; o < outputs; o++) {
        const int64_t index = index_at(indices, o);
        if (index >= 0 && index < elements) dx[index] += dy[o];
    }
}

static void backward_planes(const void *job_, int64_t begin, int64_t end)
{
    for (int64_t plane = begin; plane < end; plane++) scatter_plane(job_, plane);
}

/* ---- backward along channels ---- */

/* Outputs whose windows reach over a pixel: where their channels lie. */
typedef struct outs {
    int32_t n;
    bool first; /* of the pixel: sums begin at 0 */
    int64_t dy[TAPS], index[TAPS];
    float scale[TAPS]; /* means: 1 / divisor */
} outs;

/* From [*oh, *ow] on, as far as there is room. */
static void next_outs(const job *j, int64_t b, int64_t c, const int64_t *rows,
                      const int64_t *columns, int64_t *oh, int64_t *ow, outs *o)
{
    const int64_t *s = j->y->stride, *at = j->indices ? j->indices->stride : s;
    const int64_t plane = j->y->offset + b * s[0] + c;
    const int64_t indices = j->indices ? j->indices->offset + b * at[0] + c : 0;
    for (o->n = 0; *oh <= rows[1] && o->n < TAPS; (*oh)++, *ow = columns[0])
        for (; *ow <= columns[1]; (*ow)++) {
            if (o->n == TAPS) return;
            o->dy[o->n] = plane + *oh * s[2] + *ow * s[3];
            o->index[o->n] = indices + *oh * at[2] + *ow * at[3];
            o->scale[o->n++] = j->is_max ? 1.0f : j->row_scale[*oh] * j->column_scale[*ow];
        }
}

/* count vectors of channels; at: 32-bit indices. */
ATTO_INLINE void gather_lanes(const outs *o, const void *dy, const int32_t *at, int32_t here,
                              int32_t i, atto_dtype dtype, bool is_max, int32_t count, bool streams,
                              float *acc)
{
    vec sum[SIDE_BY_SIDE];
    VEC_UNROLL
    for (int32_t v = 0; v < count; v++) {
        sum[v] = vec_all(0.0f);
        if (!o->first) sum[v] = vec_load(acc + i + v * VEC_LANES);
    }
    for (int32_t k = 0; k < o->n; k++) {
        const vec scale = vec_all(o->scale[k]);
        VEC_UNROLL
        for (int32_t v = 0; v < count; v++) {
            const vec d = vec_load_as(dy, o->dy[k] + i + v * VEC_LANES, dtype);
            vec_u32 index = { 0 };
            if (is_max) memcpy(&index, at + o->index[k] + i + v * VEC_LANES, sizeof index);
            sum[v] += is_max ? (vec)((vec_u32)(index == (uint32_t)here) & (vec_u32)d) : d * scale;
        }
    }
    VEC_UNROLL
    for (int32_t v = 0; v < count; v++) {
        if (streams)
            vec_stream(acc + i + v * VEC_LANES, sum[v]);
        else
            vec_store(acc + i + v * VEC_LANES, sum[v]);
    }
}

ATTO_INLINE int32_t gather_vectors_as(const outs *o, const job *j, int32_t here, int32_t n,
                                      atto_dtype dtype, bool is_max, bool streams, float *acc)
{
    int32_t i = 0;
    const void *dy = atto__memory(j->y);
    const int32_t *at = is_max ? atto__memory(j->indices) : NULL;
    for (; i + SIDE_BY_SIDE * VEC_LANES <= n; i += SIDE_BY_SIDE * VEC_LANES)
        gather_lanes(o, dy, at, here, i, dtype, is_max, SIDE_BY_SIDE, streams, acc);
    for (; i + VEC_LANES <= n; i += VEC_LANES)
        gather_lanes(o, dy, at, here, i, dtype, is_max, 1, streams, acc);
    return i;
}

ATTO_INLINE int32_t gather_vectors(const outs *o, const job *j, int32_t here, int32_t n,
                                   bool is_max, bool streams, float *acc)
{
    const atto_dtype dtype = j->y->dtype;
    if (dtype == ATTO_F16) return gather_vectors_as(o, j, here, n, ATTO_F16, is_max, false, acc);
    if (dtype == ATTO_BF16) return gather_vectors_as(o, j, here, n, ATTO_BF16, is_max, false, acc);
    return streams ? gather_vectors_as(o, j, here, n, ATTO_F32, is_max, true, acc)
                   : gather_vectors_as(o, j, here, n, ATTO_F32, is_max, false, acc);
}

/* Channels from i on, one by one. */
static void gather_rest(const outs *o, const job *j, int64_t here, int32_t i, int32_t n, float *acc)
{
    for (; i < n; i++) {
        if (o->first) acc[i] = 0.0f;
        for (int32_t k = 0; k < o->n; k++) {
            const float v = vec_one_as(atto__memory(j->y), o->dy[k] + i, j->y->dtype);
            if (!j->is_max) {
                acc[i] += v * o->scale[k];
                continue;
            }
            const span indices = { atto__memory(j->indices), 1, 0, j->indices->dtype };
            acc[i] += index_at(indices, o->index[k] + i) == here ? v : 0.0f;
        }
    }
}

/* n channels of one pixel; past_cache: where they go they are not read. */
static void backward_pixel(const job *j, int64_t b, int64_t c, int64_t h, int64_t w,
                           const int64_t *rows, float *acc, int32_t n, bool past_cache)
{
    outs o; /* the arrays are long: only what counts is set */
    o.first = true;
    const int64_t *columns = j->columns + 2 * w;
    const int64_t here = h * j->p.w.in + w;
    const bool is_short = !j->is_max || (j->indices->dtype == ATTO_I32 && here <= INT32_MAX);
    const int64_t outputs = (rows[1] - rows[0] + 1) * (columns[1] - columns[0] + 1);
    const bool streams = past_cache && outputs <= TAPS;
    int64_t oh = rows[0], ow = columns[0];
    do {
        int32_t done = 0;
        next_outs(j, b, c, rows, columns, &oh, &ow, &o);
        if (is_short && j->is_max)
            done = gather_vectors(&o, j, (int32_t)here, n, true, streams, acc);
        if (!j->is_max) done = gather_vectors(&o, j, 0, n, false, streams, acc);
        gather_rest(&o, j, here, done, n, acc);
        o.first = false;
    } while (oh <= rows[1] && columns[0] <= columns[1]);
}

static void backward_channels(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    float acc[ATTO_BLOCK], buffer[ATTO_BLOCK];
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t h = unit % j->p.h.in, b = unit / j->p.h.in;
        const int64_t rows[] = { atto__pool_first(&j->p.h, h), atto__pool_last(&j->p.h, h) };
        for (int64_t w = 0; w < j->p.w.in; w++)
            for (int64_t c = 0; c < j->p.channels; c += ATTO_BLOCK) {
                const int32_t n = (int32_t)least(ATTO_BLOCK, j->p.channels - c);
                const span dx = span_at(j->x, b, c, h, w, n);
                float *results = j->add ? acc : store_target(dx, acc);
                const bool past_cache =
                    j->streams && results == dx.first && (uintptr_t)results % sizeof(vec) == 0;
                backward_pixel(j, b, c, h, w, rows, results, n, past_cache);
                if (j->add) accumulate_block(results, dx, buffer);
                store_block(results, dx);
            }
    }
    end_stream();
}

/* What backward_channels looks up: j->columns, and for means the scales, in scratch. */
static atto_status tabulate(atto_device *dev, job *j, atto_buffer headers[2])
{
    atto_tensor columns, scales;
    const int64_t reach = 2 * j->p.w.in, outputs = j->p.h.out + j->p.w.out;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_I64, 1, &reach, &headers[0], &columns));
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &outputs, &headers[1], &scales));
    int64_t *column = atto__memory(&columns);
    for (int64_t w = 0; w < j->p.w.in; w++) {
        column[2 * w] = atto__pool_first(&j->p.w, w);
        column[2 * w + 1] = atto__pool_last(&j->p.w, w);
    }
    float *row_scale = atto__memory(&scales), *column_scale = row_scale + j->p.h.out;
    for (int64_t o = 0; o < j->p.h.out && !j->is_max; o++)
        row_scale[o] = 1.0f / row_count(j, atto__pool_window_of(&j->p.h, o));
    for (int64_t o = 0; o < j->p.w.out && !j->is_max; o++)
        column_scale[o] = 1.0f / j->column_count[o];
    j->columns = column, j->row_scale = row_scale, j->column_scale = column_scale;
    return ATTO_OK;
}

static atto_status run_backward(atto_device *dev, job *j, const atto__layout *layout)
{
    const int64_t rows = j->p.batch * j->p.h.in;
    atto_buffer headers[2];
    dev->stats.launches++;
    j->streams = !j->add && streams_to(j->x);
    if (layout->channels_last) {
        ATTO_TRY(tabulate(dev, j, headers));
        atto__parallel_for(threads_for(dev, j), rows, backward_channels, j);
    } else if (has_planes(j)) {
        atto__parallel_for(threads_for(dev, j), j->p.batch * j->p.channels, backward_planes, j);
    } else {
        atto__parallel_for(threads_for(dev, j), rows * j->p.channels, backward_rows, j);
    }
    return ATTO_OK;
}

atto_status ATTO_LEVEL_NAME(avg_pool_backward)(atto_device *dev, const struct atto_avg_pool_args *a,
                                               const atto__layout *layout)
{
    if (!a->dx) return ATTO_OK;
    atto_buffer header;
    job j = avg_job(a, a->dx, a->dy);
    ATTO_TRY(count_columns(dev, &j, &header));
    return run_backward(dev, &j, layout);
}

atto_status ATTO_LEVEL_NAME(max_pool_backward)(atto_device *dev, const struct atto_max_pool_args *a,
                                               const atto__layout *layout)
{
    if (!a->dx) return ATTO_OK;
    job j = max_job(a, a->dx, a->dy);
    return run_backward(dev, &j, layout);
}
