/* SPDX-License-Identifier: MIT */
/* Convolutions with a group for each channel, one input and one output: no product has enough to
 * do. This file has forward and dx; conv_depthwise_filter.h has dw, conv_depthwise_tile.h what both
 * read, conv_depthwise_line.h a row of outputs.
 *
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

#include "backend_cpu/conv_depthwise_line.h"

static bool is_depthwise(const conv *v)
{
    return v->c.groups > 1 && v->c.small_channels == 1 && v->c.big_channels == 1;
}

/* Forward or dx; in: the image that is read. */
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

static bool deep_is_inside(deep_inside in, int64_t at)
{
    return at >= in.first && at < in.end;
}

/* Outputs y .. end of column x, which is at the edge of an image that is not copied. */
static void deep_edge(const deep_job *j, const deep_view *in, const deep_view *out, const float *w,
                      int64_t block, int64_t x, int64_t y, int64_t end)
{
    const deep_inside inside = j->plan.inside_h;
    for (int64_t next; y < end; y = next) {
        next = deep_is_inside(inside, y) ? least(end, inside.end) : y + 1;
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
    const deep_range rows = { y, next - 1 }, columns = { x, end - 1 };
    const int64_t width = end - x;
    const deep_range down = clip_reach(deep_reach(&p->h, y, next), j->in->shape[2]);
    const deep_range across = deep_reach(&p->w, x, end);
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

/* Whether sums are stored as they are. */
static bool deep_is_plain(const pass *p)
{
    return p->out->dtype == ATTO_F32 && !p->add && is_plain(p);
}

/* All sums of small, or of big, from the other image. */
static atto_status multiply_deep(pass *p, const atto_tensor *in, bool to_big)
{
    const conv *v = p->v;
    deep_job j = { .p = p, .in = in, .plain = deep_is_plain(p) };
    j.past_cache = j.plain && streams_to(p->out);
    deep_weights weights = { .v = v };
    const int64_t outputs = atto_tensor_numel(p->out);
    if (outputs == 0) return ATTO_OK;
    const int64_t vectors = atto__divide_up(v->c.groups, VEC_LANES);
    const int64_t floats = vectors * VEC_LANES * v->c.h.kernel * v->c.w.kernel;
    p->w.step = 1;
    p->by_spots = v->channels_last;
    ATTO_TRY(deep_plan_of(v, in, to_big, DEEP_BLOCKS, &j.plan));
    ATTO_TRY(scratch_floats(v->dev, floats, &weights.to));
    j.weights = weights.to;
    atto__parallel_for(threads_for(v, floats), vectors, load_weights, &weights);
    const int32_t threads = (int32_t)least(threads_for(v, outputs), deep_units(&j, 0));
    atto__parallel(threads, &(atto__work){ 1, deep_units, deep_run, &j });
    return ATTO_OK;
}

#endif
