/* SPDX-License-Identifier: MIT */
/* dw of depthwise convolutions: sums of taps over tiles, then parts of the images in order. */
#ifndef ATTO_CPU_CONV_DEPTHWISE_FILTER_H
#define ATTO_CPU_CONV_DEPTHWISE_FILTER_H

#include "backend_cpu/conv_depthwise_tile.h"

typedef struct deep_filter {
    deep_plan plan;
    const atto_tensor *big, *small;
    int64_t parts, span; /* bands of a part, of one image after the other */
    float *partial;      /* [parts][blocks][taps][VEC_LANES] */
} deep_filter;

/* Rows of outputs, and the first of the rows of taps that they are multiplied with. */
typedef struct deep_product {
    const float *big, *small;
    int64_t big_down, tap_down, small_down; /* from one row to the next */
    int64_t big_pixel, small_pixel;         /* from one pixel to the next */
    int64_t rows, n, taps, in_step, at_step;
    float *sums;
} deep_product;

#define DEEP_PIXELS 4

/* x .. x + count of a row. */
ATTO_INLINE void add_taps(const deep_product *p, const float *big, const float *small,
                          int32_t count, int32_t high, int32_t wide, int32_t step, vec *sum)
{
    vec dz[DEEP_PIXELS];
    VEC_UNROLL
    for (int32_t q = 0; q < count; q++) dz[q] = vec_load(small + q * p->small_pixel);
    VEC_UNROLL
    for (int32_t i = 0; i < high; i++, big += p->tap_down) {
        const float *from = big;
        vec in[16];
        VEC_UNROLL
        for (int32_t k = 0; k < wide - step; k++, from += p->big_pixel) in[k] = vec_load(from);
        VEC_UNROLL
        for (int32_t q = 0; q < count; q++) {
            VEC_UNROLL
            for (int32_t k = 0; k < step; k++, from += p->big_pixel)
                in[q * step + wide - step + k] = vec_load(from);
            VEC_UNROLL
            for (int32_t k = 0; k < wide; k++) sum[i * wide + k] += dz[q] * in[q * step + k];
        }
    }
}

/* `high` rows of `wide` taps. */
ATTO_INLINE void deep_taps(const deep_product *p, int32_t high, int32_t wide, int32_t step)
{
    vec sum[10];
    VEC_UNROLL
    for (int32_t i = 0; i < high * wide; i++) sum[i] = (vec){ 0 };
    for (int64_t y = 0; y < p->rows; y++) {
        const float *big = p->big + y * p->big_down, *small = p->small + y * p->small_down;
        int64_t x = 0;
        for (; x + DEEP_PIXELS <= p->n; x += DEEP_PIXELS)
            add_taps(p, big + x * step * p->big_pixel, small + x * p->small_pixel, DEEP_PIXELS,
                     high, wide, step, sum);
        big += x * step * p->big_pixel;
        small += x * p->small_pixel;
        switch (p->n - x) {
        case 3:
            add_taps(p, big, small, 3, high, wide, step, sum);
            break;
        case 2:
            add_taps(p, big, small, 2, high, wide, step, sum);
            break;
        case 1:
            add_taps(p, big, small, 1, high, wide, step, sum);
            break;
        default:;
        }
    }
    VEC_UNROLL
    for (int32_t i = 0; i < high * wide; i++) {
        float *to = p->sums + i * VEC_LANES;
        vec_store(to, vec_load(to) + sum[i]);
    }
}

/* One row of any taps. */
static void deep_taps_any(const deep_product *p)
{
    const int64_t step = p->in_step * p->big_pixel;
    for (int64_t k = 0; k < p->taps; k++) {
        float *to = p->sums + k * VEC_LANES;
        vec sum[DEEP_PIXELS] = { { 0 } };
        for (int64_t y = 0; y < p->rows; y++) {
            const float *big = p->big + y * p->big_down + k * p->at_step * p->big_pixel;
            const float *small = p->small + y * p->small_down;
            int64_t x = 0;
            for (; x + DEEP_PIXELS <= p->n; x += DEEP_PIXELS) {
                VEC_UNROLL
                for (int32_t i = 0; i < DEEP_PIXELS; i++)
                    sum[i] +=
                        vec_load(small + (x + i) * p->small_pixel) * vec_load(big + (x + i) * step);
            }
            for (; x < p->n; x++)
                sum[0] += vec_load(small + x * p->small_pixel) * vec_load(big + x * step);
        }
        vec_store(to, vec_load(to) + ((sum[0] + sum[1]) + (sum[2] + sum[3])));
    }
}

/* As many of `rows` rows of taps as go together. */
static int64_t run_product(const deep_product *p, int64_t rows)
{
    const int64_t step = p->at_step == 1 || p->taps == 1 ? p->in_step : 0;
    switch (p->taps < 8 ? 8 * step + p->taps : 0) {
    case 8 + 3:
        if (rows >= 3) return deep_taps(p, 3, 3, 1), 3;
        return deep_taps(p, 1, 3, 1), 1;
    case 8 + 5:
        if (rows >= 2) return deep_taps(p, 2, 5, 1), 2;
        return deep_taps(p, 1, 5, 1), 1;
    case 8 + 7:
        return deep_taps(p, 1, 7, 1), 1;
    case 16 + 3:
        if (rows >= 3) return deep_taps(p, 3, 3, 2), 3;
        return deep_taps(p, 1, 3, 2), 1;
    case 16 + 5:
        if (rows >= 2) return deep_taps(p, 2, 5, 2), 2;
        return deep_taps(p, 1, 5, 2), 1;
    case 16 + 7:
        return deep_taps(p, 1, 7, 2), 1;
    default:
        return deep_taps_any(p), 1;
    }
}

/* Adds what rows y .. next and columns x .. end of the small image make to the sums of blocks. */
static void deep_products_of(const deep_filter *d, int64_t n, int64_t y, int64_t next, int64_t x,
                             int64_t end, deep_tile *big_tile, deep_tile *small_tile, float *sums)
{
    const deep_plan *p = &d->plan;
    const atto__conv_walk *h = p->h.walks, *w = p->w.walks;
    const deep_range rows = { y, next - 1 }, columns = { x, end - 1 };
    const deep_view big =
        view_of(p->v, d->big, n, deep_reach(&p->h, y, next), deep_reach(&p->w, x, end), big_tile);
    small_tile->rows = no_rows;
    const deep_view small = view_of(p->v, d->small, n, rows, columns, small_tile);
    for (int64_t b = 0; b < big_tile->blocks; b++)
        for (int64_t i = 0; i < h->taps;) {
            const deep_product product = {
                .big = view_at(&big, b, big.rows.low + i * h->at_step, big.columns.low),
                .small = view_at(&small, b, y, x),
                .big_down = h->in_step * big.row,
                .tap_down = h->at_step * big.row,
                .small_down = small.row,
                .big_pixel = big.pixel,
                .small_pixel = small.pixel,
                .rows = next - y,
                .n = end - x,
                .taps = w->taps,
                .in_step = w->in_step,
                .at_step = w->at_step,
                .sums = sums + (b * h->taps + i) * w->taps * VEC_LANES,
            };
            i += run_product(&product, h->taps - i);
        }
}

/* A band of rows of image n. */
static void deep_filter_band(const deep_filter *d, int64_t n, int64_t top, deep_tile *big,
                             deep_tile *small, float *sums)
{
    const deep_plan *p = &d->plan;
    const int64_t bottom = least(top + p->band, p->h.count);
    for (int64_t left = 0; left < p->w.count; left += p->columns) {
        const int64_t right = least(left + p->columns, p->w.count);
        big->rows = no_rows;
        for (int64_t y = top, next; y < bottom; y = next) {
            next = deep_piece(p->inside_h, y, least(y + p->rows, bottom));
            for (int64_t x = left, end; x < right; x = end) {
                end = deep_is_inside(p->inside_h, y) ? deep_piece(p->inside_w, x, right) : right;
                deep_products_of(d, n, y, next, x, end, big, small, sums);
            }
        }
    }
}

/* A part of some blocks. */
static void deep_filter_unit(const deep_filter *d, int64_t unit, float *room)
{
    const deep_plan *p = &d->plan;
    const int64_t vectors = atto__divide_up(p->v->c.groups, VEC_LANES);
    const int64_t taps = p->h.walks->taps * p->w.walks->taps, part = unit / p->groups;
    deep_tile big = tile_of(p, unit % p->groups, room), small = big;
    small.data = room + p->in_floats;
    float *sums = d->partial + (part * vectors + big.channel / VEC_LANES) * taps * VEC_LANES;
    memset(sums, 0, (size_t)(big.blocks * taps * VEC_LANES) * sizeof *sums);
    const int64_t last = least((part + 1) * d->span, p->v->c.batch * p->bands);
    for (int64_t band = part * d->span; band < last; band++)
        deep_filter_band(d, band / p->bands, band % p->bands * p->band, &big, &small, sums);
}

static int64_t deep_filter_units(const void *job, int64_t stage)
{
    const deep_filter *d = job;
    (void)stage;
    return d->parts * d->plan.groups;
}

static void deep_filter_run(const void *job, int64_t stage, int64_t unit, int32_t worker)
{
    const deep_filter *d = job;
    (void)stage;
    deep_filter_unit(d, unit, d->plan.room + worker * d->plan.room_floats);
}

/* n taps from t on of a vector of channels. */
static void store_taps(const deep_filter *d, int64_t c, int64_t t, int32_t n, const float *sums)
{
    const conv *v = d->plan.v;
    const atto_tensor *dw = v->a->dw;
    const int32_t channels = (int32_t)least(VEC_LANES, v->c.groups - c);
    const int64_t kw = dw->shape[3];
    const int32_t run = taps_are_run(dw) ? n : 1;
    float values[VEC_LANES * DEEP_RUN], buffer[ATTO_BLOCK];
    turn_out(sums, n, channels, values, DEEP_RUN, 0, false);
    for (int32_t k = 0; k < channels; k++)
        for (int32_t i = 0; i < n; i += run) {
            const span to = { element(dw, c + k, 0, (t + i) / kw, (t + i) % kw), 1, run,
                              dw->dtype };
            if (v->a->add_dw) accumulate_block(values + k * DEEP_RUN + i, to, buffer);
            store_block(values + k * DEEP_RUN + i, to);
        }
}

/* dw of vectors of channels: sums of parts in order. */
static void store_filter(const void *job, int64_t begin, int64_t end)
{
    const deep_filter *d = job;
    const int64_t vectors = atto__divide_up(d->plan.v->c.groups, VEC_LANES);
    const int64_t taps = d->plan.h.walks->taps * d->plan.w.walks->taps;
    for (int64_t vector = begin; vector < end; vector++)
        for (int64_t t = 0; t < taps; t += DEEP_RUN) {
            float sums[DEEP_RUN * VEC_LANES];
            const int32_t n = (int32_t)least(DEEP_RUN, taps - t);
            for (int32_t i = 0; i < n; i++) {
                vec sum = { 0 };
                for (int64_t part = 0; part < d->parts; part++)
                    sum += vec_load(d->partial +
                                    ((part * vectors + vector) * taps + t + i) * VEC_LANES);
                vec_store(sums + i * VEC_LANES, sum);
            }
            store_taps(d, vector * VEC_LANES, t, n, sums);
        }
}

static atto_status multiply_deep_filter(const conv *v, const atto_tensor *big,
                                        const atto_tensor *small)
{
    deep_filter d = { .big = big, .small = small };
    const int64_t vectors = atto__divide_up(v->c.groups, VEC_LANES);
    const int64_t floats = vectors * v->c.h.kernel * v->c.w.kernel * VEC_LANES;
    const int64_t work = atto_tensor_numel(small);
    ATTO_TRY(deep_plan_of(v, big, false, DEEP_SUMMED, &d.plan));
    const int64_t bands = v->c.batch * d.plan.bands, wanted = DEEP_UNITS / d.plan.groups + 1;
    d.span = atto__divide_up(bands > 0 ? bands : 1, wanted);
    d.parts = atto__divide_up(bands, d.span);
    ATTO_TRY(scratch_floats(v->dev, d.parts * floats, &d.partial));
    const int32_t threads = (int32_t)least(threads_for(v, work), deep_filter_units(&d, 0));
    atto__parallel(threads, &(atto__work){ 1, deep_filter_units, deep_filter_run, &d });
    atto__parallel_for(threads_for(v, floats), vectors, store_filter, &d);
    return ATTO_OK;
}

#endif
