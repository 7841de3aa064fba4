/* SPDX-License-Identifier: MIT */
/* Convolutions with a group for each channel, one input and one output: no product has enough to do.
 * Lanes are channels, in both memory orders, so that a tap is one step of VEC_LANES floats for any
 * width and stride, and no lane is lost at the end of a row:
 *
 *   tiles of the images     [blocks][rows][columns][VEC_LANES] floats with zeros around the image;
 *                           planes are turned on their way in and out, channels_last is copied
 *                           where a tile pays, and written in place
 *   weights                 [blocks][taps][VEC_LANES]
 *   small, big   out[x]   = sum over taps of w[tap] in[place(tap) + x in_step]
 *   dw           dw[tap]  = sums over outputs of tiles, added up in order: of a part of the images,
 *                           then of parts
 *
 * A unit is a few blocks of an image, or a band of its rows. It goes down the image some rows at a
 * time; rows that are needed again stay in the tile. */
#ifndef ATTO_CPU_CONV_DEPTHWISE_H
#define ATTO_CPU_CONV_DEPTHWISE_H

#include "backend_cpu/conv_pass.h"
#include "backend_cpu/stream.h"

static bool is_depthwise(const conv *v)
{
    return v->c.groups > 1 && v->c.small_channels == 1 && v->c.big_channels == 1;
}

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

static const reach no_rows = { 0, -1 };

/* Divisions take as long as a few outputs, and most walks are the only one. */
static const atto__conv_walk *deep_walk(const deep_axis *a, int64_t output)
{
    return a->phases == 1 ? a->walks : &a->walks[output % a->phases];
}

static int64_t deep_number(const deep_axis *a, int64_t output)
{
    return a->phases == 1 ? output : output / a->phases;
}

/* What outputs first .. end read: of each walk the first one the lowest, the last one the highest. */
static reach deep_reach(const deep_axis *a, int64_t first, int64_t end)
{
    reach r = nothing;
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

static int64_t reach_length(reach r)
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
#define DEEP_BLOCKS     (64 / VEC_LANES)  /* of channels_last: neighbours in memory */
#define DEEP_STREAMED   (256 / VEC_LANES) /* the same where images are read in place */
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

/* most_in_place: blocks of a unit where what is read is not copied. */
static atto_status deep_plan_of(const conv *v, const atto_tensor *in, bool to_big,
                                int64_t most_in_place, deep_plan *p)
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
    const int64_t most = p->in_place ? most_in_place : DEEP_BLOCKS;
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
    reach rows, columns;
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
static int64_t keep_rows(deep_tile *t, reach rows)
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
static void move_tile(const conv *v, const atto_tensor *t, int64_t n, reach rows, deep_tile *to)
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
    reach rows, columns;
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

static deep_view view_in_place(const atto_tensor *t, int64_t n, int64_t channel, reach rows,
                               reach columns)
{
    return (deep_view){ .data = element(t, n, channel, rows.low, columns.low),
                        .block = VEC_LANES,
                        .row = t->stride[2],
                        .pixel = t->stride[3],
                        .rows = rows,
                        .columns = columns,
                        .in_place = true };
}

static deep_view view_in_tile(const conv *v, const atto_tensor *t, int64_t n, reach rows,
                              reach columns, deep_tile *tile)
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

/* In place if nothing of it is outside. */
static deep_view view_of(const conv *v, const atto_tensor *t, int64_t n, reach rows, reach columns,
                         deep_tile *tile)
{
    if (lies_in_vectors(v, t, tile) && reach_length(rows) > 0 && reach_length(columns) > 0 &&
        stays_inside(rows, t->shape[2]) && stays_inside(columns, t->shape[3]))
        return view_in_place(t, n, tile->channel, rows, columns);
    return view_in_tile(v, t, n, rows, columns, tile);
}

/* What of it is inside an image of this size; one element if nothing is. */
static reach clip_reach(reach r, int64_t size)
{
    const int64_t low = least(r.low > 0 ? r.low : 0, size - 1), high = least(r.high, size - 1);
    return (reach){ low, high > low ? high : low };
}

/* ---- weights ---- */

typedef struct deep_weights {
    const conv *v;
    float *to; /* [blocks][taps][VEC_LANES] */
} deep_weights;

/* Whether a channel's taps are one run in memory. */
static bool taps_are_run(const atto_tensor *w)
{
    return w->stride[3] == 1 && (w->shape[2] == 1 || w->stride[2] == w->shape[3]);
}

static void load_weights(const void *job, int64_t begin, int64_t end)
{
    const deep_weights *j = job;
    const atto_tensor *w = j->v->a->w;
    const int64_t kw = w->shape[3], taps = w->shape[2] * kw;
    const bool run = taps_are_run(w) && taps < INT32_MAX;
    for (int64_t b = begin; b < end; b++) {
        const int64_t c = b * VEC_LANES;
        float *to = j->to + b * taps * VEC_LANES;
        deep_planes planes = { element(w, c, 0, 0, 0), w->stride[0], 0,
                               (int32_t)least(VEC_LANES, j->v->c.groups - c), w->dtype };
        if (run) turn_in(&planes, (int32_t)taps, (int32_t)taps, to, 0);
        for (int64_t t = 0; !run && t < taps; t++) {
            planes.first = element(w, c, 0, t / kw, t % kw);
            turn_in(&planes, 1, 1, to + t * VEC_LANES, 0);
        }
    }
}

/* ---- small and big ---- */

/* Outputs of a row that the same taps meet. */
typedef struct deep_line {
    const float *from;
    int64_t down, pixel; /* floats from a row of taps to the next, from a pixel to the next */
    const float *w;
    int64_t w_down, w_right;
    int64_t rows, taps, in_step, at_step; /* taps of a row */
    float *to;
    int64_t to_step, n;
    bool past_cache; /* results go to memory only */
} deep_line;

ATTO_INLINE void put_vec(const deep_line *l, int64_t x, vec v)
{
    if (l->past_cache)
        vec_stream(l->to + x * l->to_step, v);
    else
        vec_store(l->to + x * l->to_step, v);
}

/* Outputs that are added up side by side. */
#define DEEP_MOST (VEC_LANES == 16 ? 8 : 4)

/* `count` outputs, of which x is the first. Each loads the pixels that the one before has not. */
ATTO_INLINE void deep_outputs(const deep_line *l, int64_t x, int32_t count, int32_t taps,
                              int32_t step)
{
    const float *first = l->from + x * step * l->pixel, *w = l->w;
    const int64_t pixel = l->pixel;
    vec sum[8];
    VEC_UNROLL
    for (int32_t i = 0; i < count; i++) sum[i] = (vec){ 0 };
    for (int64_t row = 0; row < l->rows; row++, first += l->down, w += l->w_down) {
        const float *from = first;
        vec weight[8], in[24];
        VEC_UNROLL
        for (int32_t k = 0; k < taps; k++) weight[k] = vec_load(w + k * l->w_right);
        VEC_UNROLL
        for (int32_t k = 0; k < taps - step; k++, from += pixel) in[k] = vec_load(from);
        VEC_UNROLL
        for (int32_t i = 0; i < count; i++) {
            VEC_UNROLL
            for (int32_t k = 0; k < step; k++, from += pixel)
                in[i * step + taps - step + k] = vec_load(from);
            VEC_UNROLL
            for (int32_t k = 0; k < taps; k++) sum[i] += weight[k] * in[i * step + k];
        }
    }
    VEC_UNROLL
    for (int32_t i = 0; i < count; i++) put_vec(l, x + i, sum[i]);
}

/* The same for any taps. */
ATTO_INLINE void deep_outputs_any(const deep_line *l, int64_t x, int32_t count)
{
    const int64_t step = l->in_step * l->pixel;
    vec sum[DEEP_MOST];
    VEC_UNROLL
    for (int32_t i = 0; i < count; i++) sum[i] = (vec){ 0 };
    for (int64_t row = 0; row < l->rows; row++)
        for (int64_t k = 0; k < l->taps; k++) {
            const float *from = l->from + row * l->down + k * l->at_step * l->pixel + x * step;
            const vec weight = vec_load(l->w + row * l->w_down + k * l->w_right);
            VEC_UNROLL
            for (int32_t i = 0; i < count; i++) sum[i] += weight * vec_load(from + i * step);
        }
    VEC_UNROLL
    for (int32_t i = 0; i < count; i++) put_vec(l, x + i, sum[i]);
}

/* Some of the last outputs are computed twice. */
ATTO_INLINE void deep_line_by(const deep_line *l, int32_t count, int32_t taps, int32_t step)
{
    int64_t x = 0;
    for (; x + count <= l->n; x += count) deep_outputs(l, x, count, taps, step);
    if (l->n - x > 4) {
        deep_outputs(l, l->n - count, count, taps, step);
    } else if (l->n > x) {
        deep_outputs(l, l->n - (count < 4 ? count : 4), (count < 4 ? count : 4), taps, step);
    }
}

/* Two outputs at least. Images of networks often are 7 wide, or a multiple. */
ATTO_INLINE void deep_line_as(const deep_line *l, int32_t taps, int32_t step)
{
    if (DEEP_MOST > 7 && l->n % 7 == 0 && l->n % DEEP_MOST != 0) {
        deep_line_by(l, 7, taps, step);
    } else if (l->n >= DEEP_MOST) {
        deep_line_by(l, DEEP_MOST, taps, step);
    } else if (l->n >= 4) {
        deep_line_by(l, 4, taps, step);
    } else {
        deep_line_by(l, 2, taps, step);
    }
}

static void deep_line_any(const deep_line *l)
{
    int64_t x = 0;
    for (; x + DEEP_MOST <= l->n; x += DEEP_MOST) deep_outputs_any(l, x, DEEP_MOST);
    for (; x < l->n; x++) deep_outputs_any(l, x, 1);
}

static void run_line(const deep_line *l)
{
    const int64_t step = l->at_step == 1 || l->taps == 1 ? l->in_step : 0;
    switch (l->n > 1 && l->taps < 8 ? 8 * step + l->taps : 0) {
    case 8 + 1:
        deep_line_as(l, 1, 1);
        break;
    case 8 + 2:
        deep_line_as(l, 2, 1);
        break;
    case 8 + 3:
        deep_line_as(l, 3, 1);
        break;
    case 8 + 4:
        deep_line_as(l, 4, 1);
        break;
    case 8 + 5:
        deep_line_as(l, 5, 1);
        break;
    case 8 + 7:
        deep_line_as(l, 7, 1);
        break;
    case 16 + 3:
        deep_line_as(l, 3, 2);
        break;
    case 16 + 5:
        deep_line_as(l, 5, 2);
        break;
    case 16 + 7:
        deep_line_as(l, 7, 2);
        break;
    default:
        deep_line_any(l);
    }
}

typedef struct deep_job {
    deep_plan plan;
    const pass *p;
    const atto_tensor *in;
    const float *weights;
    bool plain;      /* sums are stored as they are, */
    bool past_cache; /* and there are too many for the caches */
} deep_job;

/* Asks for one of `parts` parts of an image's row. */
static void ask_for_part(const deep_view *in, int64_t y, int64_t part, int64_t parts)
{
    const int64_t width = reach_length(in->columns);
    for (int64_t x = part * width / parts; x < (part + 1) * width / parts; x++)
        for (int64_t b = 0; b < parts; b++)
            deep_prefetch(view_at(in, b, y, x + in->columns.low), 0, ATTO_F32);
}

/* Asks for the block's part of what row y of outputs would read and write if it were `ahead` rows
 * further down. */
static void ask_for_rows(const deep_job *j, const deep_view *in, const deep_view *out,
                         int64_t block, int64_t blocks, int64_t y, int64_t ahead)
{
    const deep_axis *down = &j->plan.h;
    const atto__conv_walk *h = deep_walk(down, y);
    const int64_t first =
        deep_number(down, y + ahead) * h->in_step + h->at + (h->taps - 1) * h->at_step;
    for (int64_t i = first; i < least(first + h->in_step, j->in->shape[2]); i++)
        if (in->in_place && h == down->walks) ask_for_part(in, i, block, blocks);
    if (out->in_place && !out->past_cache && y + ahead < j->p->out->shape[2])
        ask_for_part(out, y + ahead, block, blocks);
}

/* Taps of one output that are inside an image of this size. */
static deep_inside clip_taps(const atto__conv_walk *w, int64_t number, int64_t size)
{
    const int64_t at = number * w->in_step + w->at;
    const int64_t first = at < 0 ? atto__divide_up(-at, w->at_step) : 0;
    int64_t end = w->taps;
    if (at + (w->taps - 1) * w->at_step >= size)
        end = at < size ? (size - 1 - at) / w->at_step + 1 : 0;
    return (deep_inside){ first, end > first ? end : first };
}

/* Outputs first .. end along a row, or down a column, of one block; fixed: which. Of more than one
 * all taps are there: in the image, or as zeros. */
static void deep_line_of(const deep_job *j, const deep_view *in, const deep_view *out,
                         const float *w, int64_t block, int64_t fixed, int64_t first, int64_t end,
                         bool down)
{
    const deep_axis *along = down ? &j->plan.h : &j->plan.w;
    const deep_axis *across = down ? &j->plan.w : &j->plan.h;
    const atto__conv_walk *a = deep_walk(across, fixed);
    const int64_t kw = j->plan.v->a->w->shape[3], a_number = deep_number(across, fixed);
    const int64_t w_along = (down ? kw : 1) * VEC_LANES, w_across = (down ? 1 : kw) * VEC_LANES;
    const deep_inside rows = clip_taps(a, a_number, j->in->shape[down ? 3 : 2]);
    deep_line l = { .down = a->at_step * (down ? in->pixel : in->row),
                    .pixel = down ? in->row : in->pixel,
                    .w_down = a->tap_step * w_across,
                    .to_step = along->phases * (down ? out->row : out->pixel),
                    .past_cache = out->past_cache };
    for (int64_t o = first; o < least(end, first + along->phases); o++) {
        const atto__conv_walk *c = deep_walk(along, o);
        deep_inside taps = { 0, c->taps };
        if (end - first == 1)
            taps = clip_taps(c, deep_number(along, o), j->in->shape[down ? 2 : 3]);
        l.taps = taps.end - taps.first;
        l.rows = l.taps > 0 ? rows.end - rows.first : 0;
        l.in_step = c->in_step;
        l.at_step = c->at_step;
        l.n = deep_number(along, end - 1 - o) + 1;
        l.to = view_at(out, block, down ? o : fixed, down ? fixed : o);
        l.w_right = c->tap_step * w_along;
        if (l.rows > 0) {
            const int64_t y = a_number * a->in_step + a->at + rows.first * a->at_step;
            const int64_t x = deep_number(along, o) * c->in_step + c->at + taps.first * c->at_step;
            l.from = view_at(in, block, down ? x : y, down ? y : x);
            l.w = w + (a->tap + rows.first * a->tap_step) * w_across +
                  (c->tap + taps.first * c->tap_step) * w_along;
        }
        run_line(&l);
    }
}

static bool rows_join(const atto_tensor *t)
{
    return !t || !t->buffer || t->stride[2] == t->shape[3];
}

/* Rows of a block of outputs, which are turned. */
static void store_planes(const deep_job *j, const place *first, int32_t channels, int64_t rows,
                         int64_t width, const float *from, float *values)
{
    const atto_tensor *out = j->p->out;
    const struct atto_conv_args *a = j->p->fused;
    const bool joins = width == out->shape[3] && rows_join(out) &&
                       (!a || (rows_join(a->z) && rows_join(a->residual)));
    const int64_t run = joins ? rows * width : width, most = j->plain ? run : DEEP_RUN;
    for (int64_t i = 0; i < rows * width; i += run)
        for (int64_t x = 0; x < run; x += most) {
            const int32_t n = (int32_t)least(most, run - x);
            const float *pixels = from + (i + x) * VEC_LANES;
            place at = *first;
            at.h += (i + x) / width;
            at.w += (i + x) % width;
            if (j->plain) {
                turn_out(pixels, n, channels, element(out, at.n, at.c, at.h, at.w), out->stride[1],
                         deep_ahead(out, n), j->past_cache);
                continue;
            }
            turn_out(pixels, n, channels, values, DEEP_RUN, 0, false);
            for (int32_t k = 0; k < channels; k++, at.c++)
                finish_run(j->p, &at, n, values + k * DEEP_RUN);
        }
}

/* A row of all blocks; block: floats from one to the next. */
static void store_pixels(const deep_job *j, const place *first, int64_t channels, int64_t width,
                         const float *from, int64_t block, float *values)
{
    const int64_t whole = channels / VEC_LANES * VEC_LANES;
    const atto_tensor *out = j->p->out;
    const int64_t ahead = j->plan.rows * out->stride[2];
    place at = *first;
    float *to = j->plain ? element(out, at.n, at.c, at.h, at.w) : values;
    for (int64_t x = 0; x < width; x++, at.w++, from += VEC_LANES) {
        const float *b = from;
        for (int64_t c = 0; c < whole; c += VEC_LANES, b += block) {
            if (j->plain) deep_prefetch(to, c + ahead, ATTO_F32);
            vec_store(to + c, vec_load(b));
        }
        if (whole < channels) memcpy(to + whole, b, (size_t)(channels - whole) * sizeof *to);
        if (j->plain) {
            to += out->stride[3];
        } else {
            finish_run(j->p, &at, (int32_t)channels, values);
        }
    }
}

static bool is_inside(deep_inside in, int64_t at)
{
    return at >= in.first && at < in.end;
}

/* Outputs y .. end of column x, which is at the edge of an image that is not copied. */
static void deep_edge(const deep_job *j, const deep_view *in, const deep_view *out, const float *w,
                      int64_t block, int64_t x, int64_t y, int64_t end)
{
    const deep_inside inside = j->plan.inside_h;
    for (int64_t next; y < end; y = next) {
        next = is_inside(inside, y) ? least(end, inside.end) : y + 1;
        deep_line_of(j, in, out, w, block, x, y, next, true);
    }
}

/* Outputs of rows y .. next and columns x .. end, of one block. */
static void deep_block(const deep_job *j, const deep_view *in, const deep_view *out,
                       const deep_tile *tile, int64_t block, int64_t y, int64_t next, int64_t x,
                       int64_t end)
{
    const deep_plan *p = &j->plan;
    const int64_t taps = p->v->c.h.kernel * p->v->c.w.kernel;
    const float *w = j->weights + (tile->channel + block * VEC_LANES) * taps;
    int64_t left = x, right = end; /* between edges */
    if (in->in_place) {
        left = least(end, p->inside_w.first > x ? p->inside_w.first : x);
        right = least(end, p->inside_w.end > left ? p->inside_w.end : left);
    }
    for (int64_t i = x; i < left; i++) deep_edge(j, in, out, w, block, i, y, next);
    for (int64_t i = y; i < next; i++) {
        ask_for_rows(j, in, out, block, tile->blocks, i, next - y);
        if (left < right) deep_line_of(j, in, out, w, block, i, left, right, false);
    }
    for (int64_t i = right; i < end; i++) deep_edge(j, in, out, w, block, i, y, next);
}

/* Outputs of rows y .. next and columns x .. end. room: of results. */
static void deep_outputs_of(const deep_job *j, int64_t n, int64_t y, int64_t next, int64_t x,
                            int64_t end, deep_tile *tile, float *room)
{
    const deep_plan *p = &j->plan;
    const conv *v = p->v;
    const reach rows = { y, next - 1 }, columns = { x, end - 1 };
    const int64_t width = end - x;
    const reach down = clip_reach(deep_reach(&p->h, y, next), j->in->shape[2]);
    const reach across = deep_reach(&p->w, x, end);
    deep_view in, out = { .data = room,
                          .block = (next - y) * width * VEC_LANES,
                          .row = width * VEC_LANES,
                          .pixel = VEC_LANES,
                          .rows = rows,
                          .columns = columns };
    if (p->in_place && lies_in_vectors(v, j->in, tile)) {
        in = view_in_place(j->in, n, tile->channel, down, clip_reach(across, j->in->shape[3]));
    } else {
        in = view_in_tile(v, j->in, n, down, across, tile);
    }
    if (j->plain && lies_in_vectors(v, j->p->out, tile))
        out = view_in_place(j->p->out, n, tile->channel, rows, columns);
    out.past_cache = out.in_place && j->past_cache && is_aligned(out.data) &&
                     out.row % VEC_LANES == 0 && out.pixel % VEC_LANES == 0;
    for (int64_t b = 0; b < tile->blocks; b++) deep_block(j, &in, &out, tile, b, y, next, x, end);
    if (out.in_place) return;
    float *values = room + p->out_floats;
    for (int64_t b = 0; !v->channels_last && b < tile->blocks; b++) {
        const place at = { n, tile->channel + b * VEC_LANES, y, x };
        store_planes(j, &at, channels_of_block(v, tile, b), next - y, width, view_at(&out, b, y, x),
                     values);
    }
    const int64_t channels = least(tile->blocks * VEC_LANES, v->c.groups - tile->channel);
    for (int64_t i = y; v->channels_last && i < next; i++) {
        const place at = { n, tile->channel, i, x };
        store_pixels(j, &at, channels, width, view_at(&out, 0, i, x), out.block, values);
    }
}

static deep_tile tile_of(const deep_plan *p, int64_t group, float *data)
{
    const int64_t vectors = atto__divide_up(p->v->c.groups, VEC_LANES);
    const int64_t vector = group * p->blocks;
    return (deep_tile){ data, vector * VEC_LANES, least(p->blocks, vectors - vector), no_rows,
                        no_rows };
}

static void deep_unit(const deep_job *j, int64_t unit, float *room)
{
    const deep_plan *p = &j->plan;
    const int64_t left = unit % p->sections * p->columns;
    const int64_t right = least(left + p->columns, p->w.count);
    const int64_t top = unit / p->sections % p->bands * p->band;
    const int64_t bottom = least(top + p->band, p->h.count);
    const int64_t group = unit / p->sections / p->bands;
    deep_tile tile = tile_of(p, group % p->groups, room);
    for (int64_t y = top; y < bottom; y += p->rows)
        deep_outputs_of(j, group / p->groups, y, least(y + p->rows, bottom), left, right, &tile,
                        room + p->in_floats);
    end_stream();
}

static int64_t deep_units(const void *job, int64_t stage)
{
    const deep_plan *p = &((const deep_job *)job)->plan;
    (void)stage;
    return p->v->c.batch * p->groups * p->bands * p->sections;
}

static void deep_run(const void *job, int64_t stage, int64_t unit, int32_t worker)
{
    const deep_job *j = job;
    (void)stage;
    deep_unit(j, unit, j->plan.room + worker * j->plan.room_floats);
}

static bool is_plain(const pass *p)
{
    const struct atto_conv_args *a = p->fused;
    if (p->out->dtype != ATTO_F32 || p->add) return false;
    return !a || (!a->b && !a->z && !a->residual && a->act.kind == ATTO_ACT_IDENTITY);
}

/* All sums of small, or of big, from the other image. */
static atto_status multiply_deep(pass *p, const atto_tensor *in, bool to_big)
{
    const conv *v = p->v;
    deep_job j = { .p = p, .in = in, .plain = is_plain(p) };
    j.past_cache = j.plain && streams_to(p->out);
    deep_weights weights = { .v = v };
    const int64_t outputs = atto_tensor_numel(p->out);
    if (outputs == 0) return ATTO_OK;
    const int64_t vectors = atto__divide_up(v->c.groups, VEC_LANES);
    const int64_t floats = vectors * VEC_LANES * v->c.h.kernel * v->c.w.kernel;
    p->w.step = 1;
    ATTO_TRY(deep_plan_of(v, in, to_big, DEEP_STREAMED, &j.plan));
    ATTO_TRY(scratch_floats(v->dev, floats, &weights.to));
    j.weights = weights.to;
    atto__parallel_for(threads_for(v, floats), vectors, load_weights, &weights);
    const int32_t threads = (int32_t)least(threads_for(v, outputs), deep_units(&j, 0));
    atto__parallel(threads, &(atto__work){ 1, deep_units, deep_run, &j });
    return ATTO_OK;
}

/* ---- dw ---- */

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
    const reach rows = { y, next - 1 }, columns = { x, end - 1 };
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
                end = is_inside(p->inside_h, y) ? deep_piece(p->inside_w, x, right) : right;
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
    ATTO_TRY(deep_plan_of(v, big, false, DEEP_BLOCKS, &d.plan));
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
