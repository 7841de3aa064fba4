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
 * Filters and images are packed from where they lie. Images of few channels are read and written
 * along their rows in either order. Groups follow one another; those of some channels
 * (conv_grouped.h) and depthwise convolutions (conv_depthwise.h) have loops of their own. */
#include "backend_cpu/gemm.h"

#include <stdatomic.h>

#include "backend_cpu/conv_depthwise.h"
#include "backend_cpu/conv_depthwise_filter.h"
#include "backend_cpu/conv_grouped.h"

_Static_assert(ATTO_GEMM_RUN <= ATTO_BLOCK, "a run of gemm.h must fit a block of loops.h");

/* ---- small and big ---- */

static void pack_spots(const pass *p, int64_t first, int64_t k, int32_t n, int32_t depth,
                       int32_t width, float *to)
{
    if (p->windows.edges.taps > 0) {
        pack_windows_inside(&p->windows, first, k, n, depth, to);
    } else if (p->pixels) {
        pack_windows_along(&p->windows, false, first, k, n, depth, width, to);
    } else {
        pack_windows_across(&p->windows, true, first, k, n, depth, width, to);
    }
}

static void pack_spots_a(const void *job, int64_t first, int64_t k, int32_t n, int32_t depth,
                         float *to)
{
    pack_spots(job, first, k, n, depth, TILE_ROWS, to);
}

static void pack_spots_b(const void *job, int64_t first, int64_t k, int32_t n, int32_t depth,
                         float *to)
{
    pack_spots(job, first, k, n, depth, TILE_COLUMNS, to);
}

/* Where the pixels of n spots lie for depth taps from k on: runs of a tap's channels. */
static int32_t point_spots(const void *job, int64_t first, int64_t k, int32_t n, int32_t depth,
                           atto__gemm_run *runs)
{
    const pass *p = job;
    const int64_t channels = p->windows.taps.run, image_spots = p->h.count * p->w.count;
    const float *pixel[TILE_ROWS]; /* of the spot itself, which need not exist */
    int64_t y[TILE_ROWS], x[TILE_ROWS];
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        const int64_t spot = (first + i) % image_spots;
        y[i] = spot / p->w.count * p->h.in_step + p->h.at;
        x[i] = spot % p->w.count * p->w.in_step + p->w.at;
        pixel[i] = p->windows.data + (first + i) / image_spots * p->in->batch;
    }
    for (int32_t at = 0; at < depth; count++) {
        const int64_t tap = (k + at) / channels, channel = (k + at) % channels;
        const int64_t down = tap / p->w.taps * p->h.at_step, right = tap % p->w.taps * p->w.at_step;
        atto__gemm_run *run = runs + count;
        run->n = (int32_t)least(channels - channel, depth - at);
        for (int32_t i = 0; i < TILE_ROWS; i++) {
            run->rows[i] = p->zeros;
            if (i < n && y[i] + down >= 0 && y[i] + down < p->height && x[i] + right >= 0 &&
                x[i] + right < p->width)
                run->rows[i] =
                    pixel[i] + (y[i] + down) * p->in->row + (x[i] + right) * p->in->pixel + channel;
        }
        at += run->n;
    }
    return count;
}

static void pack_lying_spots(const void *job, int64_t first, int64_t k, int32_t n, int32_t depth,
                             float *to)
{
    atto__gemm_run runs[ATTO_GEMM_RUNS];
    for (int32_t at = 0; at < n; at += TILE_ROWS) {
        const int32_t rows = (int32_t)least(TILE_ROWS, n - at);
        const int32_t count = point_spots(job, first + at, k, rows, depth, runs);
        float *panel = to + (int64_t)at * depth;
        for (int32_t i = 0; i < count; i++) {
            pack_pointers_along_k(runs[i].rows, rows, runs[i].n, runs[i].n, TILE_ROWS, panel);
            panel += (int64_t)runs[i].n * TILE_ROWS;
        }
    }
}

static void pack_filter_a(const void *job, int64_t first, int64_t k, int32_t n, int32_t depth,
                          float *to)
{
    const pass *p = job;
    pack_filter(&p->filter, first, k, n, depth, TILE_ROWS, to);
}

static void pack_filter_b(const void *job, int64_t first, int64_t k, int32_t n, int32_t depth,
                          float *to)
{
    const pass *p = job;
    pack_filter(&p->filter, first, k, n, depth, TILE_COLUMNS, to);
}

/* Results of so few multiplications each that storing them counts. */
#define FEW_TAPS 512

/* Whether spots are the rows of a matrix in memory, as sums of spots are. */
static bool is_matrix(const pass *p)
{
    const atto_tensor *t = p->out;
    return p->by_spots && p->across == 0 && t->dtype == ATTO_F32 && p->h.step == 1 &&
           p->w.step == 1 && (t->shape[1] == 1 || t->stride[1] == 1) &&
           (t->shape[2] == 1 || t->stride[2] == t->shape[3] * t->stride[3]) &&
           (t->shape[0] == 1 || t->stride[0] == t->shape[2] * t->shape[3] * t->stride[3]);
}

/* The product of p's windows and filter, of which rows are the rows. whole: taps are neighbours. */
static atto_status multiply(pass *p, int64_t rows, bool whole)
{
    p->plain = is_plain(p);
    p->streams = streams_to(p->out) && p->windows.taps.count <= FEW_TAPS;
    const int64_t spots = p->v->c.batch * p->h.count * p->w.count;
    const atto__gemm_side filter = { p->filter.data, p->filter.step, p->filter.dtype, true };
    atto__gemm g = { .m = rows, .n = spots, .k = p->windows.taps.count, .job = p };
    if (p->by_spots) {
        g.m = spots;
        g.n = rows;
        g.b = filter;
        g.pack_a = p->zeros ? pack_lying_spots : pack_spots_a;
        g.point_a = p->zeros ? point_spots : NULL;
        g.pack_b = whole ? NULL : pack_filter_b;
        g.finish_rows = finish_channels;
        if (is_matrix(p) && !p->streams) {
            g.c = element(p->out, 0, p->channel, 0, 0);
            g.c_stride = p->out->stride[3];
            g.accumulate = p->add;
            if (is_plain(p) || p->add) g.finish_rows = NULL;
        }
    } else {
        g.a = filter;
        g.pack_a = whole ? NULL : pack_filter_a;
        g.pack_b = pack_spots_b;
        g.finish_rows = finish_spots;
    }
    return ATTO_LEVEL_NAME(gemm)(p->v->dev, &g);
}

static int64_t inputs_of(const conv *v, bool to_big)
{
    return to_big ? v->c.small_channels : v->c.big_channels;
}

static int64_t outputs_of(const conv *v, bool to_big)
{
    return to_big ? v->c.big_channels : v->c.small_channels;
}

/* Windows of one group along p's walks. */
static atto_status take_windows(pass *p, const image *in, bool to_big, int64_t group)
{
    const conv *v = p->v;
    const int64_t inputs = inputs_of(v, to_big);
    p->pixels = in->pixels;
    p->channels = outputs_of(v, to_big);
    p->channel = group * p->channels;
    p->windows = (window_matrix){ .data = channel_of(in, group * inputs),
                                  .limit = in->limit,
                                  .spots = spots_of(in, &p->h, &p->w) };
    p->in = in;
    if (p->zeros) {
        p->windows.taps = (window_taps){ NULL, inputs, inputs * p->h.taps * p->w.taps };
        return ATTO_OK;
    }
    if (in->has_edges) ATTO_TRY(list_edges(v, &p->h, &p->w, &p->windows.edges));
    return list_taps(v, in, &p->h, &p->w, inputs, &p->windows.taps);
}

/* Every group's outputs; scratch of one group serves the next. */
static atto_status multiply_groups(pass *p, const image *in, bool to_big)
{
    const conv *v = p->v;
    const int32_t scratch = v->dev->scratch_count;
    if (is_grouped(v)) return multiply_grouped(p, in, to_big);
    const bool whole = !to_big && has_runs_of_taps(v->a->w, in->pixels);
    for (int64_t group = 0; group < v->c.groups; group++) {
        ATTO_TRY(take_windows(p, in, to_big, group));
        ATTO_TRY(filter_of(v, &p->h, &p->w, to_big, in->pixels, group, &p->filter));
        ATTO_TRY(multiply(p, p->channels, whole));
        atto__scratch_release(v->dev, scratch);
    }
    return ATTO_OK;
}

/* So few channels of an image fill no vector: it is better read along its rows, where windows
 * overlap, and written along them. */
#define FEW_CHANNELS 8

static bool overlaps(const atto__conv_axis *a)
{
    return a->kernel > a->stride;
}

static bool reads_pixels(const conv *v, bool to_big)
{
    const bool few = inputs_of(v, to_big) <= FEW_CHANNELS && v->c.groups == 1;
    if (few && overlaps(&v->c.h) && overlaps(&v->c.w)) return false;
    return v->channels_last && !is_grouped(v);
}

static bool writes_pixels(const conv *v, bool to_big)
{
    const bool few = outputs_of(v, to_big) <= FEW_CHANNELS && v->c.groups == 1;
    return v->channels_last && !few;
}

/* Whether packing takes the columns of a stride from where they lie. */
static bool steps_over(const conv *v, const atto_tensor *big, const pass *p)
{
    const int64_t step = p->w.in_step;
    return (step == 2 || step == 4) && !v->channels_last && !is_grouped(v) &&
           (big->stride[3] == 1 || big->shape[3] == 1) &&
           is_inside(big, reach_of(&p->h, nothing), reach_of(&p->w, nothing));
}

/* Whether windows overlap, and may reach over an edge. */
static bool has_windows(const conv *v)
{
    return !is_grouped(v) && (v->c.h.kernel > 1 || v->c.w.kernel > 1);
}

/* Channels of so many bytes are worth a pointer; at so many fit the runs of a block of k. */
#define LYING_CHANNELS 16
_Static_assert(ATTO_GEMM_RUNS >= 640 / LYING_CHANNELS + 2, "runs of a block of k");

/* Whether spots are rows of a product that reads pixels where they lie. */
static bool reads_lying(const conv *v, const atto_tensor *t, const pass *p, bool to_big)
{
    return p->by_spots && reads_pixels(v, to_big) && !is_grouped(v) && t->dtype == ATTO_F32 &&
           inputs_of(v, to_big) >= LYING_CHANNELS;
}

static atto_status take_lying(const conv *v, const atto_tensor *t, pass *p, image *in)
{
    float *zeros;
    ATTO_TRY(scratch_floats(v->dev, t->shape[1], &zeros));
    memset(zeros, 0, (size_t)t->shape[1] * sizeof *zeros);
    *in = image_in_place(t, true);
    p->zeros = zeros;
    p->height = t->shape[2];
    p->width = t->shape[3];
    return ATTO_OK;
}

static atto_status run_small(const conv *v, const atto_tensor *big, pass *p)
{
    image in;
    if (is_depthwise(v)) return multiply_deep(p, big, false);
    p->h = atto__conv_walk_small(&v->c.h);
    p->w = atto__conv_walk_small(&v->c.w);
    p->by_spots = writes_pixels(v, false);
    if (reads_lying(v, big, p, false)) {
        ATTO_TRY(take_lying(v, big, p, &in));
    } else if (has_windows(v) && fits_edges(v, big, &p->h, &p->w)) {
        in = image_in_place(big, false);
        in.has_edges = true;
    } else if (steps_over(v, big, p)) {
        in = image_in_place(big, false);
    } else {
        ATTO_TRY(image_for(v, big, reads_pixels(v, false), reach_of(&p->h, nothing),
                           reach_of(&p->w, nothing), p->h.in_step, p->w.in_step, &in));
    }
    return multiply_groups(p, &in, false);
}

/* ---- big: phases side by side, or one by one ---- */

/* Products that have up to so many rows in all phases together are one, though some of its weights
 * are zeros. */
#define FEW_ROWS TILE_ROWS

static bool can_merge(const conv *v)
{
    const int64_t phases = atto__conv_phases(&v->c.h) * atto__conv_phases(&v->c.w);
    return phases > 1 && v->c.h.dilation == 1 && v->c.w.dilation == 1 && !is_grouped(v);
}

static bool shares_taps(const atto__conv_axis *a)
{
    return atto__conv_phases(a) * atto__conv_walk_phases(a).taps == a->kernel;
}

static bool has_few_rows(const conv *v)
{
    const int64_t h = atto__conv_phases(&v->c.h), w = atto__conv_phases(&v->c.w);
    const int64_t high = atto__conv_walk_phases(&v->c.h).taps;
    const int64_t wide = atto__conv_walk_phases(&v->c.w).taps;
    return h * w * v->c.big_channels <= FEW_ROWS &&
           h * high * w * wide <= 2 * v->c.h.kernel * v->c.w.kernel;
}

typedef struct finite_job {
    const image *in;
    atomic_bool *found; /* something that is not finite */
} finite_job;

static void look_for_infinity(const void *job, int64_t begin, int64_t end)
{
    const finite_job *j = job;
    const float *from = j->in->data + begin * ATTO_BLOCK;
    const int64_t n = least((end - begin) * ATTO_BLOCK, j->in->limit - from);
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += 0.0f * from[i];
    if (sum != 0.0f) atomic_store_explicit(j->found, true, memory_order_relaxed);
}

/* Whether zeros of a filter may meet every element. */
static bool is_finite(const conv *v, const image *in)
{
    atomic_bool found = false;
    const int64_t n = in->limit - in->data;
    const finite_job j = { in, &found };
    atto__parallel_for(threads_for(v, n), atto__divide_up(n, ATTO_BLOCK), look_for_infinity, &j);
    return !found;
}

/* Whether the product is one for all phases: they read the same windows, or have few rows. */
static bool merges_phases(const conv *v, const image *in)
{
    if (!can_merge(v)) return false;
    return (shares_taps(&v->c.h) && shares_taps(&v->c.w)) || (has_few_rows(v) && is_finite(v, in));
}

static atto_status run_merged(pass *p, const image *in)
{
    const conv *v = p->v;
    const int32_t scratch = v->dev->scratch_count;
    const int64_t phases = atto__conv_phases(&v->c.h) * atto__conv_phases(&v->c.w);
    p->h = atto__conv_walk_phases(&v->c.h);
    p->w = atto__conv_walk_phases(&v->c.w);
    p->across = atto__conv_phases(&v->c.w);
    for (int64_t group = 0; group < v->c.groups; group++) {
        ATTO_TRY(take_windows(p, in, true, group));
        ATTO_TRY(merged_filter(v, in->pixels, group, &p->filter));
        ATTO_TRY(multiply(p, phases * p->channels, true));
        atto__scratch_release(v->dev, scratch);
    }
    return ATTO_OK;
}

static void clear_rows(const void *job, int64_t begin, int64_t end)
{
    const pass *p = job;
    const atto_tensor *t = p->out;
    const int32_t inner = p->v->channels_last ? 1 : 3, outer = p->v->channels_last ? 3 : 1;
    const size_t bytes = (size_t)t->shape[inner] * atto_dtype_size(t->dtype);
    for (int64_t i = begin; i < end; i++) {
        const int64_t n = i / (t->shape[2] * t->shape[outer]);
        const int64_t h = i % t->shape[2], k = i / t->shape[2] % t->shape[outer];
        memset(inner == 1 ? element(t, n, 0, h, k) : element(t, n, k, h, 0), 0, bytes);
    }
}

static bool has_idle_phases(const atto__conv_axis *a)
{
    for (int64_t i = 0; i < atto__conv_phases(a); i++)
        if (atto__conv_walk_big(a, i).taps == 0) return true;
    return false;
}

/* Gradients that no tap meets are zero, or stay what they are: no product has to say so. */
static bool skips_idle_phases(const pass *p)
{
    const conv *v = p->v;
    const atto_tensor *t = p->out;
    if (p->fused || !(has_idle_phases(&v->c.h) || has_idle_phases(&v->c.w))) return false;
    const int64_t rows = t->shape[0] * t->shape[2] * t->shape[v->channels_last ? 3 : 1];
    if (!p->add) atto__parallel_for(threads_for(v, atto_tensor_numel(t)), rows, clear_rows, p);
    return true;
}

static atto_status run_phases(pass *p, const image *in)
{
    const conv *v = p->v;
    const bool skips = skips_idle_phases(p);
    for (int64_t i = 0; i < atto__conv_phases(&v->c.h); i++) {
        for (int64_t k = 0; k < atto__conv_phases(&v->c.w); k++) {
            p->h = atto__conv_walk_big(&v->c.h, i);
            p->w = atto__conv_walk_big(&v->c.w, k);
            if (!skips || p->h.taps * p->w.taps > 0) ATTO_TRY(multiply_groups(p, in, true));
        }
    }
    return ATTO_OK;
}

/* Whether edges stand for zeros in every phase, side by side or one by one. */
static bool phases_fit_edges(const conv *v, const atto_tensor *small)
{
    if (can_merge(v)) {
        const atto__conv_walk h = atto__conv_walk_phases(&v->c.h);
        const atto__conv_walk w = atto__conv_walk_phases(&v->c.w);
        if (!fits_edges(v, small, &h, &w)) return false;
    }
    for (int64_t i = 0; i < atto__conv_phases(&v->c.h); i++)
        for (int64_t k = 0; k < atto__conv_phases(&v->c.w); k++) {
            const atto__conv_walk h = atto__conv_walk_big(&v->c.h, i);
            const atto__conv_walk w = atto__conv_walk_big(&v->c.w, k);
            if (h.taps * w.taps > 0 && !fits_edges(v, small, &h, &w)) return false;
        }
    return true;
}

/* What phases read, one by one and side by side. */
static reach reach_of_all(const conv *v, const atto__conv_axis *a)
{
    const atto__conv_walk all = atto__conv_walk_phases(a);
    const reach each = reach_of_phases(a);
    return can_merge(v) ? reach_of(&all, each) : each;
}

static atto_status run_big(const conv *v, const atto_tensor *small, pass *p)
{
    image in;
    if (is_depthwise(v)) return multiply_deep(p, small, true);
    p->by_spots = writes_pixels(v, true);
    if (reads_lying(v, small, p, true)) {
        ATTO_TRY(take_lying(v, small, p, &in));
    } else if (has_windows(v) && phases_fit_edges(v, small)) {
        in = image_in_place(small, false);
        in.has_edges = true;
    } else {
        ATTO_TRY(image_for(v, small, reads_pixels(v, true), reach_of_all(v, &v->c.h),
                           reach_of_all(v, &v->c.w), 1, 1, &in));
    }
    return merges_phases(v, &in) ? run_merged(p, &in) : run_phases(p, &in);
}

/* ---- dw ---- */

typedef struct filter_pass {
    const conv *v;
    bool pixels;                  /* channels are the innermost taps */
    window_matrix windows, small; /* small: pixels as spots, channels as taps */
    int64_t group;
} filter_pass;

static void pack_small_along(const void *job, int64_t first, int64_t k, int32_t n, int32_t depth,
                             float *to)
{
    const filter_pass *p = job;
    pack_windows_along(&p->small, true, first, k, n, depth, TILE_ROWS, to);
}

static void pack_spots_along(const void *job, int64_t first, int64_t k, int32_t n, int32_t depth,
                             float *to)
{
    const filter_pass *p = job;
    pack_windows_along(&p->windows, true, first, k, n, depth, TILE_COLUMNS, to);
}

static void pack_taps_across(const void *job, int64_t first, int64_t k, int32_t n, int32_t depth,
                             float *to)
{
    const filter_pass *p = job;
    pack_windows_across(&p->windows, false, first, k, n, depth, TILE_COLUMNS, to);
}

/* A run of dw's row: taps of one channel, or channels of one tap, one after the other. */
static void finish_filter(const void *job, int64_t output, int64_t tap, int32_t n, float *values)
{
    const filter_pass *p = job;
    const struct atto_conv_args *a = p->v->a;
    const atto_tensor *t = a->dw;
    const int64_t inputs = t->shape[1], kh = t->shape[2], kw = t->shape[3];
    const int64_t small = p->group * p->v->c.small_channels + output;
    const int64_t run = p->pixels ? inputs : kw;
    float buffer[ATTO_BLOCK];
    for (int32_t i = 0; i < n;) {
        const int64_t at = tap + i;
        const int32_t count = (int32_t)least(run - at % run, n - i);
        void *memory = p->pixels
                           ? element(t, small, at % inputs, at / inputs / kw, at / inputs % kw)
                           : element(t, small, at / kw / kh, at / kw % kh, at % kw);
        const span to = { memory, t->stride[p->pixels ? 1 : 3], count, t->dtype };
        if (a->add_dw) accumulate_block(values + i, to, buffer);
        store_block(values + i, to);
        i += count;
    }
}

/* The walk that takes every element of an axis as it is. */
static atto__conv_walk all_of(int64_t size)
{
    return (atto__conv_walk){ .count = size, .step = 1, .in_step = 1, .at_step = 1, .taps = 1 };
}

/* Of rows: the small image as windows of one element, channels as taps. */
static atto_status prepare_rows(const conv *v, const atto_tensor *small, filter_pass *p,
                                atto__gemm *g)
{
    const atto__conv_walk h = all_of(small->shape[2]), w = all_of(small->shape[3]);
    image in;
    ATTO_TRY(image_for(v, small, false, reach_of(&h, nothing), reach_of(&w, nothing), 1, 1, &in));
    p->small =
        (window_matrix){ .data = in.data, .limit = in.limit, .spots = spots_of(&in, &h, &w) };
    g->pack_a = pack_small_along;
    g->pack_b = pack_spots_along;
    return list_taps(v, &in, &h, &w, small->shape[1], &p->small.taps);
}

/* Of channels: the small image is a matrix, if nothing lies between its pixels. */
static atto_status prepare_channels(const conv *v, const atto_tensor *small, atto__gemm *g)
{
    static const int32_t pixels[] = { 1, 3, 2, 0 };
    image dense = image_in_place(small, true);
    if (!are_one_run(small, pixels, 4) || small->dtype != ATTO_F32) {
        const reach all_h = { 0, small->shape[2] - 1, 1 }, all_w = { 0, small->shape[3] - 1, 1 };
        ATTO_TRY(make_planes(v, small, true, all_h, all_w, 1, 1, &dense));
    }
    g->a = (atto__gemm_side){ dense.data, small->shape[1], ATTO_F32, false };
    g->pack_b = pack_taps_across;
    return ATTO_OK;
}

static atto_status multiply_filter(const conv *v, const image *in, atto__gemm *g, filter_pass *p,
                                   const atto__conv_walk *h, const atto__conv_walk *w)
{
    const int32_t scratch = v->dev->scratch_count;
    const atto_tensor *dw = v->a->dw;
    const bool whole = dw->dtype == ATTO_F32 && has_runs_of_taps(dw, v->channels_last);
    const float *small = g->a.data;
    const int64_t *taps = p->small.taps.start;
    for (p->group = 0; p->group < v->c.groups; p->group++) {
        const int64_t first = p->group * v->c.small_channels;
        p->windows.data = channel_of(in, p->group * v->c.big_channels);
        ATTO_TRY(list_taps(v, in, h, w, v->c.big_channels, &p->windows.taps));
        if (small) g->a.data = small + first;
        if (taps) p->small.taps.start = taps + first;
        g->c = whole ? element(dw, first, 0, 0, 0) : NULL;
        g->c_stride = dw->stride[0];
        g->accumulate = whole && v->a->add_dw;
        g->finish = whole ? NULL : finish_filter;
        ATTO_TRY(ATTO_LEVEL_NAME(gemm)(v->dev, g));
        atto__scratch_release(v->dev, scratch);
    }
    return ATTO_OK;
}

typedef struct store_job {
    const conv *v;
    float *sums; /* [small channels][taps of rows] */
    int64_t taps;
} store_job;

static void store_filters(const void *job, int64_t begin, int64_t end)
{
    const store_job *j = job;
    const filter_pass p = { .v = j->v };
    for (int64_t i = begin; i < end; i++)
        for (int64_t tap = 0; tap < j->taps; tap += ATTO_BLOCK)
            finish_filter(&p, i, tap, (int32_t)least(ATTO_BLOCK, j->taps - tap),
                          j->sums + i * j->taps + tap);
}

static atto_status run_grouped_filter(const conv *v, const image *in, const atto_tensor *small,
                                      const atto__conv_walk *h, const atto__conv_walk *w)
{
    const atto__conv_walk all_h = all_of(h->count), all_w = all_of(w->count);
    store_job j = { .v = v, .taps = v->c.big_channels * h->taps * w->taps };
    image dz;
    ATTO_TRY(image_for(v, small, false, reach_of(&all_h, nothing), reach_of(&all_w, nothing), 1, 1,
                       &dz));
    ATTO_TRY(multiply_grouped_filter(v, in, &dz, h, w, &j.sums));
    const int64_t channels = v->c.groups * v->c.small_channels;
    atto__parallel_for(threads_for(v, channels * j.taps), channels, store_filters, &j);
    return ATTO_OK;
}

static atto_status run_filter(const conv *v, const atto_tensor *big, const atto_tensor *small)
{
    const atto__conv_walk h = atto__conv_walk_small(&v->c.h), w = atto__conv_walk_small(&v->c.w);
    image in;
    if (is_depthwise(v)) return multiply_deep_filter(v, big, small);
    const bool pixels = v->channels_last && !is_grouped(v);
    ATTO_TRY(image_for(v, big, pixels, reach_of(&h, nothing), reach_of(&w, nothing), h.in_step,
                       w.in_step, &in));
    if (is_grouped(v)) return run_grouped_filter(v, &in, small, &h, &w);
    filter_pass p = { .v = v,
                      .pixels = pixels,
                      .windows = { .limit = in.limit, .spots = spots_of(&in, &h, &w) } };
    atto__gemm g = { .m = v->c.small_channels,
                     .n = v->c.big_channels * h.taps * w.taps,
                     .k = v->c.batch * h.count * w.count,
                     .job = &p };
    ATTO_TRY(v->channels_last ? prepare_channels(v, small, &g) : prepare_rows(v, small, &p, &g));
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
