/* SPDX-License-Identifier: MIT */
/* How depthwise convolutions are cut, and tiles of images: a pixel's channels in lanes. */
#ifndef ATTO_CPU_CONV_DEPTHWISE_TILE_H
#define ATTO_CPU_CONV_DEPTHWISE_TILE_H

#include "backend_cpu/conv_pass.h"
#include "backend_cpu/stream.h"

/* ---- axes ---- */

/* Output o is number o / phases of walk o % phases. */
typedef struct deep_axis {
    const atto__conv_walk *walks;
    int64_t phases, count;
} deep_axis;

static atto_status deep_axis_of(const conv *v, const atto__conv_axis *a, bool to_big,
                                deep_axis *out)
{
    atto_buffer header;
    atto_tensor list;
    out->phases = to_big ? atto__conv_phases(a) : 1;
    out->count = to_big ? a->big : a->small;
    const int64_t words = out->phases * (int64_t)(sizeof(atto__conv_walk) / sizeof(int64_t));
    ATTO_TRY(atto__scratch_tensor(v->dev, ATTO_I64, 1, &words, &header, &list));
    atto__conv_walk *walks = atto__memory(&list);
    for (int64_t i = 0; i < out->phases; i++)
        walks[i] = to_big ? atto__conv_walk_big(a, i) : atto__conv_walk_small(a);
    out->walks = walks;
    return ATTO_OK;
}

/* From the lowest to the highest of some rows, or columns. */
typedef struct deep_range {
    int64_t low, high;
} deep_range;

static const deep_range no_rows = { 0, -1 };

/* Divisions take as long as a few outputs, and most walks are the only one. */
static const atto__conv_walk *deep_walk(const deep_axis *a, int64_t output)
{
    return a->phases == 1 ? a->walks : &a->walks[output % a->phases];
}

static int64_t deep_number(const deep_axis *a, int64_t output)
{
    return a->phases == 1 ? output : output / a->phases;
}

/* What outputs first .. end read: of each walk the first one the lowest, the last one the
 * highest. */
static deep_range deep_reach(const deep_axis *a, int64_t first, int64_t end)
{
    deep_range r = { INT64_MAX, INT64_MIN };
    for (int64_t o = first; o < least(end, first + a->phases); o++) {
        const atto__conv_walk *w = deep_walk(a, o);
        if (w->taps > 0) r.low = least(r.low, deep_number(a, o) * w->in_step + w->at);
    }
    for (int64_t o = end - 1; o >= first && o >= end - a->phases; o--) {
        const atto__conv_walk *w = deep_walk(a, o);
        const int64_t high = deep_number(a, o) * w->in_step + w->at + (w->taps - 1) * w->at_step;
        if (w->taps > 0 && high > r.high) r.high = high;
    }
    return r.low > r.high ? no_rows : r;
}

/* Outputs that read nothing outside an image of this size are some more than first .. end. */
typedef struct deep_inside {
    int64_t first, end;
} deep_inside;

static deep_inside deep_inside_of(const deep_axis *a, int64_t size)
{
    deep_inside in = { 0, a->count };
    for (int64_t i = 0; i < a->phases; i++) {
        const atto__conv_walk *w = &a->walks[i];
        const int64_t room = size - 1 - w->at - (w->taps - 1) * w->at_step;
        const int64_t first = w->at < 0 ? atto__divide_up(-w->at, w->in_step) * a->phases : 0;
        if (w->taps == 0) continue;
        in.end = least(in.end, room < 0 ? 0 : (room / w->in_step + 1) * a->phases);
        if (first > in.first) in.first = first;
    }
    return in;
}

/* The end of the piece from output `at` to end that is inside, or is not. */
static int64_t deep_piece(deep_inside in, int64_t at, int64_t end)
{
    if (at < in.first) return least(end, in.first);
    return at < in.end ? least(end, in.end) : end;
}

static int64_t reach_length(deep_range r)
{
    return r.low > r.high ? 0 : r.high - r.low + 1;
}

/* The most inputs that n outputs in a row read. */
static int64_t deep_extent(const deep_axis *a, int64_t n)
{
    const int64_t steps = a->phases == 1 ? n - 1 : (n - 1) / a->phases + 1;
    return steps * a->walks[0].in_step + reach_length(deep_reach(a, 0, least(a->phases, a->count)));
}

/* ---- how the work is cut ---- */

#define DEEP_FLOATS     65536             /* of both tiles, if rows are short enough */
#define DEEP_COLUMNS    128               /* outputs of a tile's row, at most */
#define DEEP_BLOCKS     (256 / VEC_LANES) /* of channels_last: neighbours in memory */
#define DEEP_SUMMED     (64 / VEC_LANES)  /* the same for dw, whose sums want room in the cache */
#define DEEP_FEW_USES   4   /* of an input: more of them pay for its copy, which lies closer */
#define DEEP_FEW_INSIDE 8   /* outputs of a row between the edges: with less, copies cost less */
#define DEEP_UNITS      64  /* enough for threads */
#define DEEP_BAND       16  /* rows of one, at least */
#define DEEP_RUN        256 /* results of a channel that are finished at a time */

typedef struct deep_plan {
    const conv *v;
    deep_axis h, w;
    bool in_place; /* what is read is not copied, or at edges only; channels_last */
    deep_inside inside_h, inside_w;
    int64_t blocks, groups;    /* of a unit; units for all channels */
    int64_t columns, sections; /* outputs of a tile's row; tiles of a row */
    int64_t band, bands;       /* rows of a unit; units of a plane */
    int64_t rows;              /* of a tile */
    int64_t in_floats, out_floats, room_floats;
    float *room; /* of each worker: in, out, a run of each lane */
} deep_plan;

static int64_t whole_phases(int64_t n, const deep_axis *a)
{
    return n > a->phases ? round_up(n, a->phases) : n;
}

/* most: blocks of a unit where channels are innermost. */
static atto_status deep_plan_of(const conv *v, const atto_tensor *in, bool to_big, int64_t most,
                                deep_plan *p)
{
    const int64_t vectors = atto__divide_up(v->c.groups, VEC_LANES);
    p->v = v;
    ATTO_TRY(deep_axis_of(v, &v->c.h, to_big, &p->h));
    ATTO_TRY(deep_axis_of(v, &v->c.w, to_big, &p->w));
    const deep_inside inside_w = deep_inside_of(&p->w, in->shape[3]);
    const int64_t inputs = p->h.walks->in_step * p->w.walks->in_step; /* of an output */
    p->in_place = v->channels_last && in->dtype == ATTO_F32 &&
                  v->c.h.kernel * v->c.w.kernel <= DEEP_FEW_USES * inputs &&
                  inside_w.end - inside_w.first >= DEEP_FEW_INSIDE;
    if (p->in_place) {
        p->inside_h = deep_inside_of(&p->h, in->shape[2]);
        p->inside_w = inside_w;
    }
    p->groups = v->channels_last ? atto__divide_up(vectors, most) : vectors;
    p->blocks = atto__divide_up(vectors, p->groups);
    p->groups = atto__divide_up(vectors, p->blocks);
    p->sections = atto__divide_up(p->w.count, DEEP_COLUMNS);
    p->columns = whole_phases(atto__divide_up(p->w.count, p->sections), &p->w);
    p->sections = atto__divide_up(p->w.count, p->columns);
    const int64_t planes = v->c.batch * p->groups * p->sections;
    const int64_t wanted = atto__divide_up(DEEP_UNITS, planes > 0 ? planes : 1);
    const int64_t shortest = atto__divide_up(p->h.count, wanted);
    p->band = whole_phases(shortest > DEEP_BAND ? shortest : DEEP_BAND, &p->h);
    p->band = least(p->band, p->h.count);
    p->bands = atto__divide_up(p->h.count, p->band);
    const int64_t in_row = p->blocks * deep_extent(&p->w, p->columns) * VEC_LANES;
    const int64_t out_row = p->blocks * p->columns * VEC_LANES;
    p->rows = 1;
    while (p->rows < p->band &&
           deep_extent(&p->h, p->rows + 1) * in_row + (p->rows + 1) * out_row <= DEEP_FLOATS)
        p->rows++;
    if (p->rows > p->h.phases) p->rows -= p->rows % p->h.phases;
    p->in_floats = deep_extent(&p->h, p->rows) * in_row;
    p->out_floats = p->rows * out_row;
    p->room_floats = round_up(p->in_floats + p->out_floats + VEC_LANES * DEEP_RUN, 16);
    return scratch_floats(v->dev, p->room_floats * atto__cpu_most_threads(v->dev), &p->room);
}

/* ---- turning planes ---- */

/* Asks for what the next tile reads or writes: more than the first-level cache has room for. */
ATTO_INLINE void deep_prefetch(const void *from, int64_t at, atto_dtype dtype)
{
    const uintptr_t bytes = dtype == ATTO_F32 ? 4 : 2;
    __builtin_prefetch((const void *)((uintptr_t)from + (uintptr_t)at * bytes), 0, 2);
}

/* Neighbouring elements of so many channels; step: from one channel to the next; ahead: to those
 * that are read later. */
typedef struct deep_planes {
    const void *first;
    int64_t step, ahead;
    int32_t channels;
    atto_dtype dtype;
} deep_planes;

/* Elements at .. at + n of each channel, n <= VEC_LANES; zeros behind them. */
ATTO_INLINE void load_lanes(const deep_planes *s, int64_t at, int32_t n, atto_dtype dtype,
                            vec_u32 rows[VEC_LANES])
{
    float some[VEC_LANES * VEC_LANES];
    if (n < VEC_LANES) {
        memset(some, 0, sizeof some);
        for (int32_t k = 0; k < s->channels; k++)
            for (int32_t i = 0; i < n; i++)
                some[k * VEC_LANES + i] = vec_one_as(s->first, k * s->step + at + i, dtype);
        VEC_UNROLL
        for (int32_t k = 0; k < VEC_LANES; k++) rows[k] = (vec_u32)vec_load(some + k * VEC_LANES);
    } else if (s->channels == VEC_LANES) {
        VEC_UNROLL
        for (int32_t k = 0; k < VEC_LANES; k++) {
            deep_prefetch(s->first, k * s->step + at + s->ahead, dtype);
            rows[k] = (vec_u32)vec_load_as(s->first, k * s->step + at, dtype);
        }
    } else {
        VEC_UNROLL
        for (int32_t k = 0; k < VEC_LANES; k++)
            rows[k] = k < s->channels ? (vec_u32)vec_load_as(s->first, k * s->step + at, dtype)
                                      : (vec_u32){ 0 };
    }
}

/* n elements of each channel as rows of width pixels, which start pitch floats apart. The last
 * vectors of a run may overlap. */
ATTO_INLINE void turn_in_as(const deep_planes *s, int32_t n, int32_t width, float *to,
                            int64_t pitch, atto_dtype dtype)
{
    for (int32_t x = 0; x < n; x += VEC_LANES) {
        const int32_t at = n >= VEC_LANES && n - x < VEC_LANES ? n - VEC_LANES : x;
        const int32_t count = (int32_t)least(VEC_LANES, n - at);
        int32_t column = at % width;
        float *pixel = to + at / width * pitch + column * VEC_LANES;
        vec_u32 rows[VEC_LANES];
        load_lanes(s, at, count, dtype, rows);
        vec_transpose(rows);
        if (column + VEC_LANES <= width) {
            VEC_UNROLL
            for (int32_t i = 0; i < VEC_LANES; i++) vec_store(pixel + i * VEC_LANES, (vec)rows[i]);
            continue;
        }
        VEC_UNROLL
        for (int32_t i = 0; i < VEC_LANES; i++) {
            if (i >= count) continue;
            vec_store(pixel, (vec)rows[i]);
            pixel += VEC_LANES;
            if (++column < width) continue;
            pixel += pitch - (int64_t)width * VEC_LANES;
            column = 0;
        }
    }
}

static void turn_in(const deep_planes *s, int32_t n, int32_t width, float *to, int64_t pitch)
{
    if (s->dtype == ATTO_F16) {
        turn_in_as(s, n, width, to, pitch, ATTO_F16);
    } else if (s->dtype == ATTO_BF16) {
        turn_in_as(s, n, width, to, pitch, ATTO_BF16);
    } else {
        turn_in_as(s, n, width, to, pitch, ATTO_F32);
    }
}

static bool is_aligned(const float *at)
{
    return (uintptr_t)at % (4 * VEC_LANES) == 0;
}

/* n pixels as runs of so many channels, step floats apart. */
static void turn_out(const float *from, int32_t n, int32_t channels, float *to, int64_t step,
                     int64_t ahead, bool past_cache)
{
    past_cache = past_cache && step % VEC_LANES == 0 && n % VEC_LANES == 0 && is_aligned(to);
    for (int32_t x = 0; x < n; x += VEC_LANES) {
        const int32_t at = n >= VEC_LANES && n - x < VEC_LANES ? n - VEC_LANES : x;
        const int32_t count = (int32_t)least(VEC_LANES, n - at);
        vec_u32 rows[VEC_LANES];
        VEC_UNROLL
        for (int32_t i = 0; i < VEC_LANES; i++)
            rows[i] = i < count ? (vec_u32)vec_load(from + (at + i) * VEC_LANES) : (vec_u32){ 0 };
        vec_transpose(rows);
        if (past_cache) {
            VEC_UNROLL
            for (int32_t k = 0; k < VEC_LANES; k++)
                if (k < channels) vec_stream(to + k * step + at, (vec)rows[k]);
        } else if (count == VEC_LANES) {
            VEC_UNROLL
            for (int32_t k = 0; k < VEC_LANES; k++) {
                if (k >= channels) continue;
                deep_prefetch(to, k * step + at + ahead, ATTO_F32);
                vec_store(to + k * step + at, (vec)rows[k]);
            }
        } else {
            float some[VEC_LANES * VEC_LANES];
            VEC_UNROLL
            for (int32_t k = 0; k < VEC_LANES; k++) vec_store(some + k * VEC_LANES, (vec)rows[k]);
            for (int32_t k = 0; k < channels; k++)
                memcpy(to + k * step + at, some + k * VEC_LANES, (size_t)count * sizeof *to);
        }
    }
}

/* ---- tiles ---- */

/* Rows and columns of an image, of which some may be outside: zeros. */
typedef struct deep_tile {
    float *data;
    int64_t channel, blocks; /* the first channel */
    deep_range rows, columns;
} deep_tile;

static int64_t tile_pitch(const deep_tile *t)
{
    return reach_length(t->columns) * VEC_LANES;
}

static float *tile_row(const deep_tile *t, int64_t block, int64_t y)
{
    return t->data + (block * reach_length(t->rows) + y - t->rows.low) * tile_pitch(t);
}

static int32_t channels_of_block(const conv *v, const deep_tile *t, int64_t block)
{
    return (int32_t)least(VEC_LANES, v->c.groups - t->channel - block * VEC_LANES);
}

/* From elements of planes to those that are wanted later: of the same planes, or of the ones behind
 * them where `n` elements are a whole plane. */
static int64_t deep_ahead(const atto_tensor *t, int64_t n)
{
    return n == t->shape[2] * t->shape[3] ? VEC_LANES * t->stride[1] : 8 * VEC_LANES;
}

/* Rows y .. end of the image from column x on, `width` of them. */
static void load_planes(const conv *v, const atto_tensor *t, int64_t n, int64_t y, int64_t end,
                        int64_t x, int64_t width, const deep_tile *to)
{
    const bool joins = width == t->shape[3] && t->stride[2] == width;
    for (int64_t b = 0; b < to->blocks; b++) {
        const int64_t c = to->channel + b * VEC_LANES;
        const int64_t step = joins ? end - y : 1;
        for (int64_t i = y; i < end; i += step) {
            const deep_planes planes = { element(t, n, c, i, x), t->stride[1],
                                         deep_ahead(t, step * width), channels_of_block(v, to, b),
                                         t->dtype };
            turn_in(&planes, (int32_t)(step * width), (int32_t)width,
                    tile_row(to, b, i) + (x - to->columns.low) * VEC_LANES, tile_pitch(to));
        }
    }
}

ATTO_INLINE void load_pixels_as(const conv *v, const void *from, int64_t step, int64_t ahead,
                                int64_t width, const deep_tile *t, float *to, atto_dtype dtype)
{
    const int64_t block = tile_row(t, 1, 0) - tile_row(t, 0, 0);
    const int64_t whole = least(t->blocks, (v->c.groups - t->channel) / VEC_LANES);
    for (int64_t x = 0; x < width; x++) {
        float *pixel = to + x * VEC_LANES;
        for (int64_t b = 0; b < whole; b++) {
            const int64_t at = x * step + b * VEC_LANES;
            deep_prefetch(from, at + ahead, dtype);
            vec_store(pixel + b * block, vec_load_as(from, at, dtype));
        }
        for (int64_t b = whole; b < t->blocks; b++) {
            const int32_t channels = channels_of_block(v, t, b);
            for (int32_t k = 0; k < VEC_LANES; k++)
                pixel[b * block + k] =
                    k < channels ? vec_one_as(from, x * step + b * VEC_LANES + k, dtype) : 0.0f;
        }
    }
}

static void load_pixels(const conv *v, const atto_tensor *t, int64_t n, int64_t y, int64_t end,
                        int64_t x, int64_t width, const deep_tile *to)
{
    const int64_t step = t->stride[3], next = to->channel + to->blocks * VEC_LANES;
    int64_t ahead = (end - y) * t->stride[2]; /* to the next tile, or the next unit's */
    if (end == t->shape[2]) ahead = (next < v->c.groups ? next : t->stride[0]) - to->channel;
    for (int64_t i = y; i < end; i++) {
        const void *from = element(t, n, to->channel, i, x);
        float *row = tile_row(to, 0, i) + (x - to->columns.low) * VEC_LANES;
        if (t->dtype == ATTO_F16) {
            load_pixels_as(v, from, step, ahead, width, to, row, ATTO_F16);
        } else if (t->dtype == ATTO_BF16) {
            load_pixels_as(v, from, step, ahead, width, to, row, ATTO_BF16);
        } else {
            load_pixels_as(v, from, step, ahead, width, to, row, ATTO_F32);
        }
    }
}

/* Moves the tile down to other rows. Returns the first that is not there. */
static int64_t keep_rows(deep_tile *t, deep_range rows)
{
    const deep_tile old = *t;
    const int64_t keep = least(old.rows.high, rows.high) - rows.low + 1;
    t->rows = rows;
    if (keep <= 0 || rows.low < old.rows.low) return rows.low;
    const size_t bytes = (size_t)(keep * tile_pitch(t)) * sizeof *t->data;
    if (reach_length(rows) > reach_length(old.rows)) {
        for (int64_t b = t->blocks - 1; b >= 0; b--)
            memmove(tile_row(t, b, rows.low), tile_row(&old, b, rows.low), bytes);
    } else {
        for (int64_t b = 0; b < t->blocks; b++)
            memmove(tile_row(t, b, rows.low), tile_row(&old, b, rows.low), bytes);
    }
    return rows.low + keep;
}

static void clear_floats(float *from, const float *end)
{
    if (from < end) memset(from, 0, (size_t)(end - from) * sizeof *from);
}

/* Makes the tile hold these rows of image n. */
static void move_tile(const conv *v, const atto_tensor *t, int64_t n, deep_range rows,
                      deep_tile *to)
{
    const int64_t first = keep_rows(to, rows);
    const int64_t y = first > 0 ? first : 0, end = least(rows.high + 1, t->shape[2]);
    const int64_t x = to->columns.low > 0 ? to->columns.low : 0;
    const int64_t inside = least(to->columns.high + 1, t->shape[3]) - x;
    for (int64_t b = 0; b < to->blocks; b++) {
        float *zeros = tile_row(to, b, first); /* up to the next pixel inside */
        for (int64_t i = y; i < end && inside > 0; i++) {
            float *row = tile_row(to, b, i) + (x - to->columns.low) * VEC_LANES;
            clear_floats(zeros, row);
            zeros = row + inside * VEC_LANES;
        }
        clear_floats(zeros, tile_row(to, b, rows.high + 1));
    }
    if (inside <= 0 || y >= end) return;
    if (v->channels_last) {
        load_pixels(v, t, n, y, end, x, inside, to);
    } else {
        load_planes(v, t, n, y, end, x, inside, to);
    }
}

/* ---- views ---- */

/* Rows and columns of a tile, or of an image that lies as the tile would. */
typedef struct deep_view {
    float *data;
    int64_t block, row, pixel; /* steps */
    deep_range rows, columns;
    bool in_place, past_cache;
} deep_view;

static float *view_at(const deep_view *v, int64_t block, int64_t y, int64_t x)
{
    return v->data + block * v->block + (y - v->rows.low) * v->row +
           (x - v->columns.low) * v->pixel;
}

/* Whether vectors of these channels can be used where they are. */
static bool lies_in_vectors(const conv *v, const atto_tensor *t, const deep_tile *like)
{
    return v->channels_last && t->dtype == ATTO_F32 &&
           like->channel + like->blocks * VEC_LANES <= v->c.groups;
}

static deep_view view_in_place(const atto_tensor *t, int64_t n, int64_t channel, deep_range rows,
                               deep_range columns)
{
    return (deep_view){ .data = element(t, n, channel, rows.low, columns.low),
                        .block = VEC_LANES,
                        .row = t->stride[2],
                        .pixel = t->stride[3],
                        .rows = rows,
                        .columns = columns,
                        .in_place = true };
}

static deep_view view_in_tile(const conv *v, const atto_tensor *t, int64_t n, deep_range rows,
                              deep_range columns, deep_tile *tile)
{
    if (tile->columns.low != columns.low || tile->columns.high != columns.high)
        tile->rows = no_rows;
    tile->columns = columns;
    move_tile(v, t, n, rows, tile);
    const int64_t pitch = tile_pitch(tile);
    return (deep_view){ .data = tile->data,
                        .block = reach_length(rows) * pitch,
                        .row = pitch,
                        .pixel = VEC_LANES,
                        .rows = rows,
                        .columns = columns };
}

static bool range_is_inside(deep_range r, int64_t size)
{
    return reach_length(r) > 0 && r.low >= 0 && r.high < size;
}

/* In place if nothing of it is outside. */
static deep_view view_of(const conv *v, const atto_tensor *t, int64_t n, deep_range rows,
                         deep_range columns, deep_tile *tile)
{
    if (lies_in_vectors(v, t, tile) && range_is_inside(rows, t->shape[2]) &&
        range_is_inside(columns, t->shape[3]))
        return view_in_place(t, n, tile->channel, rows, columns);
    return view_in_tile(v, t, n, rows, columns, tile);
}

/* What of it is inside an image of this size; one element if nothing is. */
static deep_range clip_reach(deep_range r, int64_t size)
{
    const int64_t low = least(r.low > 0 ? r.low : 0, size - 1), high = least(r.high, size - 1);
    return (deep_range){ low, high > low ? high : low };
}

#endif
