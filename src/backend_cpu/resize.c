/* SPDX-License-Identifier: MIT */
/* Resizing on the CPU.
 *
 *   forward    y = sum of the up to four elements of x around its place, each times its share
 *   backward   dx = sum of dy over the elements of y that x's element is in, each times that share
 *              (+ dx)
 *
 * Places and shares of both axes are written down first. Then a unit of work is a row of the
 * result, in two storage orders, as the layout IMAGES gives them:
 *
 *   rows       unit stride along width: two rows become one, whose neighbours are taken then;
 *              backward the same in reverse
 *   channels   unit stride along channels, which are what loops go along
 */
#include <string.h>

#include "backend_cpu/loops.h"
#include "backend_cpu/vec.h"
#include "resizing.h"

/* Elements of y's rows, and of those of x that they need, at a time. */
#define PIECE  512
#define SOURCE 2048

/* An axis: for y's place o, (1 - part[o]) of x's low[o] and part[o] of high[o]; places with
 * low >= i begin at first[i], i = 0 .. in. */
typedef struct axis {
    resize_axis a;
    int32_t *low, *high, *first;
    float *part;
} axis;

typedef struct job {
    atto__resizing r;
    axis h, w;
    const atto_tensor *x, *y; /* backward: dx, dy */
    bool add;
} job;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- axes ---- */

static void fill_axis(int how, axis *x)
{
    int64_t next = 0; /* of first */
    for (int64_t o = 0; o < x->a.out; o++) {
        const int64_t low = resize_at(how, x->a, o, &x->part[o]);
        x->low[o] = (int32_t)low;
        x->high[o] = (int32_t)(how != RESIZE_NEAREST && low + 1 < x->a.in ? low + 1 : low);
        while (next <= low) x->first[next++] = (int32_t)o;
    }
    while (next <= x->a.in) x->first[next++] = (int32_t)x->a.out;
}

/* In scratch. */
static atto_status make_axis(atto_device *dev, int how, resize_axis a, atto_buffer *header,
                             axis *out)
{
    const int64_t words = 3 * a.out + a.in + 1;
    atto_tensor scratch;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_I32, 1, &words, header, &scratch));
    int32_t *memory = atto__memory(&scratch);
    *out = (axis){ .a = a,
                   .low = memory,
                   .high = memory + a.out,
                   .first = memory + 2 * a.out,
                   .part = (float *)(void *)(memory + 2 * a.out + a.in + 1) };
    fill_axis(how, out);
    return ATTO_OK;
}

static atto_status make_job(atto_device *dev, const struct atto_resize_args *a,
                            const atto_tensor *x, const atto_tensor *y, atto_buffer *headers,
                            job *j)
{
    *j = (job){ .r = atto__resizing_of(a, x, y), .x = x, .y = y, .add = a->add_dx };
    ATTO_TRY(make_axis(dev, j->r.how, j->r.h, &headers[0], &j->h));
    return make_axis(dev, j->r.how, j->r.w, &headers[1], &j->w);
}

/* Places of y with a share in x's elements first to last: begin to end - 1. */
static void places_of(const job *j, const axis *x, int64_t first, int64_t last, int64_t *begin,
                      int64_t *end)
{
    const int64_t from = j->r.how == RESIZE_NEAREST ? first : first - 1;
    *begin = from < 0 ? 0 : x->first[from];
    *end = x->first[last + 1];
}

static float share_of(const axis *x, int64_t o, int64_t i)
{
    return (x->low[o] == i ? 1.0f - x->part[o] : 0.0f) + (x->high[o] == i ? x->part[o] : 0.0f);
}

/* n elements from [b, c, h, w] on, along the unit stride. */
static span span_at(const atto_tensor *t, int64_t b, int64_t c, int64_t h, int64_t w, int64_t n)
{
    const int64_t at =
        t->offset + b * t->stride[0] + c * t->stride[1] + h * t->stride[2] + w * t->stride[3];
    char *memory = atto__memory(t);
    return (span){ memory + at * (int64_t)atto_dtype_size(t->dtype), 1, (int32_t)n, t->dtype };
}

/* ---- forward ---- */

static void pick_words(const uint32_t *from, uint32_t *to, const int32_t *low, int64_t n)
{
    for (int64_t o = 0; o < n; o++) to[o] = from[low[o]];
}

static void pick_halves(const uint16_t *from, uint16_t *to, const int32_t *low, int64_t n)
{
    for (int64_t o = 0; o < n; o++) to[o] = from[low[o]];
}

static void pick_row(const job *j, int64_t b, int64_t c, int64_t oh)
{
    const span from = span_at(j->x, b, c, j->h.low[oh], 0, 1);
    const span to = span_at(j->y, b, c, oh, 0, 1);
    if (atto_dtype_size(to.dtype) == 4)
        pick_words(from.first, to.first, j->w.low, j->w.a.out);
    else
        pick_halves(from.first, to.first, j->w.low, j->w.a.out);
}

/* v = (1 - part) v + part other */
static void mix_rows(const float *upper, const float *lower, float part, float *v, int32_t n)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) v[i] = (1.0f - part) * upper[i] + part * lower[i];
}

/* v[0] is x's element number base. */
static void mix_neighbours(const axis *w, int64_t first, int32_t n, const float *v, int32_t base,
                           float *to)
{
    const int32_t *low = w->low + first, *high = w->high + first;
    const float *part = w->part + first;
    ATTO_SIMD
    for (int32_t o = 0; o < n; o++)
        to[o] = (1.0f - part[o]) * v[low[o] - base] + part[o] * v[high[o] - base];
}

/* Elements first to first + n - 1 of a row of y, made of few enough of x's. */
static void mix_piece(const job *j, int64_t b, int64_t c, int64_t oh, int64_t first, int32_t n)
{
    float upper[SOURCE], lower[SOURCE], mixed[SOURCE], out[PIECE];
    const int32_t base = j->w.low[first];
    const int32_t count = j->w.high[first + n - 1] - base + 1;
    const span to = span_at(j->y, b, c, oh, first, n);
    float *target = store_target(to, out);
    const float *v = load_block(span_at(j->x, b, c, j->h.low[oh], base, count), upper);
    if (j->h.a.in > 1) {
        const float *other = load_block(span_at(j->x, b, c, j->h.high[oh], base, count), lower);
        mix_rows(v, other, j->h.part[oh], mixed, count);
        v = mixed;
    }
    mix_neighbours(&j->w, first, n, v, base, target);
    store_block(target, to);
}

/* How many of y's elements from first on need at most SOURCE of x's. */
static int32_t piece_from(const axis *w, int64_t first)
{
    int32_t n = (int32_t)least(PIECE, w->a.out - first);
    while (n > 1 && w->high[first + n - 1] - w->low[first] >= SOURCE) n /= 2;
    return n;
}

static void mix_row(const job *j, int64_t b, int64_t c, int64_t oh)
{
    int32_t n;
    for (int64_t first = 0; first < j->w.a.out; first += n) {
        n = piece_from(&j->w, first);
        mix_piece(j, b, c, oh, first, n);
    }
}

static void forward_rows(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t plane = unit / j->h.a.out, oh = unit % j->h.a.out;
        const int64_t b = plane / j->r.channels, c = plane % j->r.channels;
        if (j->r.how == RESIZE_NEAREST)
            pick_row(j, b, c, oh);
        else
            mix_row(j, b, c, oh);
    }
}

/* PIECE channels at most of a pixel of y. */
static void mix_pixel(const job *j, int64_t b, int64_t c, int64_t oh, int64_t ow, int32_t n)
{
    float buffer[4][PIECE], out[PIECE];
    const int64_t rows[2] = { j->h.low[oh], j->h.high[oh] };
    const int64_t columns[2] = { j->w.low[ow], j->w.high[ow] };
    const float down = j->h.part[oh], right = j->w.part[ow];
    const span to = span_at(j->y, b, c, oh, ow, n);
    float *target = store_target(to, out);
    const float *v[4];
    for (int k = 0; k < 4; k++)
        v[k] = load_block(span_at(j->x, b, c, rows[k / 2], columns[k % 2], n), buffer[k]);
    if (j->h.a.in == 1) {
        mix_rows(v[0], v[1], right, target, n);
    } else {
        ATTO_SIMD
        for (int32_t i = 0; i < n; i++)
            target[i] = (1.0f - down) * ((1.0f - right) * v[0][i] + right * v[1][i]) +
                        down * ((1.0f - right) * v[2][i] + right * v[3][i]);
    }
    store_block(target, to);
}

static void forward_channels(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    const int64_t channels = j->r.channels;
    const size_t bytes = (size_t)channels * atto_dtype_size(j->y->dtype);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t b = unit / j->h.a.out, oh = unit % j->h.a.out;
        for (int64_t ow = 0; ow < j->w.a.out; ow++) {
            if (j->r.how == RESIZE_NEAREST)
                memcpy(span_at(j->y, b, 0, oh, ow, 1).first,
                       span_at(j->x, b, 0, j->h.low[oh], j->w.low[ow], 1).first, bytes);
            for (int64_t c = 0; j->r.how != RESIZE_NEAREST && c < channels; c += PIECE)
                mix_pixel(j, b, c, oh, ow, (int32_t)least(PIECE, channels - c));
        }
    }
}

/* ---- backward ---- */

/* sum[k] += share v[k] */
static void add_scaled(const float *v, float share, float *sum, int32_t n)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) sum[i] += share * v[i];
}

/* What n places of y from one on give to x's elements, of which sum[0] is number base. */
static void spread(const job *j, const float *v, int64_t from, int32_t n, int64_t base, float *sum)
{
    const int32_t *low = j->w.low + from, *high = j->w.high + from;
    const float *part = j->w.part + from;
    for (int32_t o = 0; o < n; o++) {
        sum[low[o] - base] += (1.0f - part[o]) * v[o];
        if (j->r.how != RESIZE_NEAREST) sum[high[o] - base] += part[o] * v[o];
    }
}

/* What rows of dy give to row ih of dx, for n places from first on. */
static void sum_rows(const job *j, int64_t b, int64_t c, int64_t ih, int64_t first, int32_t n,
                     float *sum)
{
    float buffer[PIECE];
    int64_t begin, end;
    places_of(j, &j->h, ih, ih, &begin, &end);
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t oh = begin; oh < end; oh++)
        add_scaled(load_block(span_at(j->y, b, c, oh, first, n), buffer), share_of(&j->h, oh, ih),
                   sum, n);
}

/* Elements first to first + n - 1 of a row of dx. */
static void backward_piece(const job *j, int64_t b, int64_t c, int64_t ih, int64_t first, int32_t n)
{
    /* One more on either side gets what is others'. */
    float sum[PIECE + 2], rows[PIECE], old[PIECE];
    int64_t begin, end;
    places_of(j, &j->w, first, first + n - 1, &begin, &end);
    memset(sum, 0, sizeof sum);
    for (int64_t from = begin; from < end; from += PIECE) {
        const int32_t count = (int32_t)least(PIECE, end - from);
        sum_rows(j, b, c, ih, from, count, rows);
        spread(j, rows, from, count, first - 1, sum);
    }
    const span to = span_at(j->x, b, c, ih, first, n);
    if (j->add) accumulate_block(sum + 1, to, old);
    store_block(sum + 1, to);
}

static void backward_rows(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t plane = unit / j->h.a.in, ih = unit % j->h.a.in;
        for (int64_t first = 0; first < j->w.a.in; first += PIECE)
            backward_piece(j, plane / j->r.channels, plane % j->r.channels, ih, first,
                           (int32_t)least(PIECE, j->w.a.in - first));
    }
}

/* sum[k] = share v[k] */
static void set_scaled(const float *v, float share, float *sum, int32_t n)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) sum[i] = share * v[i];
}

/* PIECE channels at most of a pixel of dx, which rows top to bottom - 1 of dy have a share in. */
static void backward_pixel(const job *j, int64_t b, int64_t c, int64_t ih, int64_t iw, int64_t top,
                           int64_t bottom, int32_t n)
{
    float own[PIECE], buffer[PIECE];
    const span to = span_at(j->x, b, c, ih, iw, n);
    float *sum = j->add ? own : store_target(to, own);
    int64_t left, right;
    places_of(j, &j->w, iw, iw, &left, &right);
    if (top == bottom || left == right) memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t oh = top; oh < bottom; oh++) {
        const float down = share_of(&j->h, oh, ih);
        for (int64_t ow = left; ow < right; ow++) {
            const float *v = load_block(span_at(j->y, b, c, oh, ow, n), buffer);
            const float share = down * share_of(&j->w, ow, iw);
            if (oh == top && ow == left)
                set_scaled(v, share, sum, n);
            else
                add_scaled(v, share, sum, n);
        }
    }
    if (j->add) accumulate_block(sum, to, buffer);
    store_block(sum, to);
}

static void backward_channels(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t b = unit / j->h.a.in, ih = unit % j->h.a.in;
        int64_t top, bottom;
        places_of(j, &j->h, ih, ih, &top, &bottom);
        for (int64_t iw = 0; iw < j->w.a.in; iw++)
            for (int64_t c = 0; c < j->r.channels; c += PIECE)
                backward_pixel(j, b, c, ih, iw, top, bottom,
                               (int32_t)least(PIECE, j->r.channels - c));
    }
}

/* ---- calls ---- */

static int32_t threads_for(const atto_device *dev, const job *j)
{
    const int64_t x = atto_tensor_numel(j->x), y = atto_tensor_numel(j->y);
    return (x > y ? x : y) < ATTO_SERIAL_BELOW ? 1 : atto__cpu_threads(dev);
}

atto_status ATTO_LEVEL_NAME(resize_forward)(atto_device *dev, const struct atto_resize_args *a,
                                            const atto__layout *layout)
{
    atto_buffer headers[2];
    job j;
    ATTO_TRY(make_job(dev, a, a->x, a->y, headers, &j));
    const int64_t units = j.r.batch * j.h.a.out * (layout->channels_last ? 1 : j.r.channels);
    dev->stats.launches++;
    atto__parallel_for(threads_for(dev, &j), units,
                       layout->channels_last ? forward_channels : forward_rows, &j);
    return ATTO_OK;
}

atto_status ATTO_LEVEL_NAME(resize_backward)(atto_device *dev, const struct atto_resize_args *a,
                                             const atto__layout *layout)
{
    atto_buffer headers[2];
    job j;
    ATTO_TRY(make_job(dev, a, a->dx, a->dy, headers, &j));
    const int64_t units = j.r.batch * j.h.a.in * (layout->channels_last ? 1 : j.r.channels);
    dev->stats.launches++;
    atto__parallel_for(threads_for(dev, &j), units,
                       layout->channels_last ? backward_channels : backward_rows, &j);
    return ATTO_OK;
}
