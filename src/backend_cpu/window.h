/* SPDX-License-Identifier: MIT */
/* Windows of an image as the matrix that a convolution multiplies, without storing it.
 *
 * Element [spot, tap] of the matrix is an element of the image: where the output `spot` reads for
 * `tap`. Its place in memory is the sum of the spot's and the tap's. What the padding holds is there,
 * too: as the image lies, where it needs no padding; in planes, a copy with zeros around it; or as
 * bits that say which spots a tap reads outside.
 *
 *   rows       unit stride along width. A tap is (channel, row, column) of the filter. Planes take
 *              strides apart, so that neighbouring spots read neighbours:
 *                  [batch][channel][row phase][column phase][rows][columns]
 *   channels   unit stride along channels. A tap is (row, column, channel)
 *
 * Packing makes panels of it as gemm.c wants them: `width` spots or taps side by side. */
#ifndef ATTO_CPU_WINDOW_H
#define ATTO_CPU_WINDOW_H

#include <string.h>

#include "backend_cpu/pack.h"
#include "backend_cpu/panel.h"
#include "convolution.h"

/* Floats behind planes that may be read, though not used. */
#define WINDOW_SLACK 32

/* Spot p = (n height + y) width + x lies at n image + y row + x step. */
typedef struct window_spots {
    int64_t height, width;
    int64_t image, row, step;
} window_spots;

/* Tap k lies at start[k / run] + k % run. */
typedef struct window_taps {
    const int64_t *start;
    int64_t run, count;
} window_taps;

/* As many taps as may have bits. */
#define EDGE_TAPS 64

/* Where windows reach over the edge of an image that has no zeros around it, and as many spots as
 * elements, one after the other: bit `spot` of tap k % taps says whether the tap is inside. */
typedef struct window_edges {
    const uint8_t *inside;
    int64_t bytes; /* of a tap's bits */
    int32_t taps;  /* 0: nothing reaches over an edge */
} window_edges;

typedef struct window_matrix {
    const float *data, *limit; /* limit: behind what may be read */
    window_spots spots;
    window_taps taps;
    window_edges edges;
} window_matrix;

/* Neighbours in memory: n elements at offset, of which the first has index `at` here. */
typedef struct window_piece {
    int64_t offset;
    int32_t at, n;
} window_piece;

ATTO_INLINE int64_t spot_place(const window_spots *s, int64_t spot)
{
    const int64_t row = spot / s->width;
    return row / s->height * s->image + row % s->height * s->row + spot % s->width * s->step;
}

ATTO_INLINE int64_t tap_place(const window_taps *t, int64_t tap)
{
    return t->run == 1 ? t->start[tap] : t->start[tap / t->run] + tap % t->run;
}

/* How many of the spots from one on are neighbours in memory, if step is 1; of the taps. */
ATTO_INLINE int64_t spot_run(const window_spots *s, int64_t spot)
{
    return s->width - spot % s->width;
}

ATTO_INLINE int64_t tap_run(const window_taps *t, int64_t tap)
{
    return t->run - tap % t->run;
}

/* Spots (or taps) first .. first + n, cut where they stop being neighbours and at each multiple of
 * width from first; n pieces at most. */
ATTO_INLINE int32_t cut_pieces(const window_matrix *m, bool of_spots, int64_t first, int32_t n,
                               int32_t width, window_piece *pieces)
{
    int32_t count = 0;
    for (int32_t at = 0; at < n; count++) {
        const int64_t run =
            of_spots ? spot_run(&m->spots, first + at) : tap_run(&m->taps, first + at);
        const int64_t room = least(width - at % width, n - at);
        pieces[count] = (window_piece){ of_spots ? spot_place(&m->spots, first + at)
                                                 : tap_place(&m->taps, first + at),
                                        at, (int32_t)least(run, room) };
        at += pieces[count].n;
    }
    return count;
}

/* Bits of VEC_LANES neighbouring spots from one of an image on. */
ATTO_INLINE uint32_t lanes_inside(const window_edges *e, int64_t tap, int64_t spot)
{
    uint32_t bits;
    memcpy(&bits, e->inside + tap * e->bytes + spot / 8, sizeof bits);
    return bits >> spot % 8 & ((1u << (VEC_LANES - 1)) * 2 - 1);
}

/* Places of the spots (or taps) first .. first + n. */
ATTO_INLINE void list_places(const window_matrix *m, bool of_spots, int64_t first, int32_t n,
                             int64_t *places)
{
    for (int32_t i = 0; i < n; i++)
        places[i] = of_spots ? spot_place(&m->spots, first + i) : tap_place(&m->taps, first + i);
}

/* ---- pieces across k ---- */

/* A piece of every row of panels: from `offset` behind a row's place to `to` in the first row. */
typedef struct window_copy {
    int64_t offset;
    float *to;
    int32_t n, vectors;
} window_copy;

#define WINDOW_PANELS 4   /* that are packed together, so that rows are read in longer runs */
#define WINDOW_DEPTH  256 /* places that are listed at a time */
#define WINDOW_AHEAD  8   /* rows that are asked for before they are copied */

/* A vector of every step-th element: 1, 2 or 4. */
ATTO_INLINE vec load_steps(const float *from, int64_t step)
{
    if (step == 1) return vec_load(from);
    const vec low = vec_even(vec_load(from), vec_load(from + VEC_LANES));
    if (step == 2) return low;
    from += 2 * VEC_LANES;
    return vec_even(low, vec_even(vec_load(from), vec_load(from + VEC_LANES)));
}

/* Whole vectors in ascending order: what spills over is overwritten by the next piece, or by the
 * next row of the panel. */
ATTO_INLINE void copy_spilling(const window_copy *c, int32_t count, const float *from, int64_t at,
                               int64_t step)
{
    for (int32_t p = 0; p < count; p++) {
        const float *in = from + c[p].offset;
        float *out = c[p].to + at;
        vec_store(out, load_steps(in, step));
        for (int32_t i = 1; i < c[p].vectors; i++)
            vec_store(out + i * VEC_LANES, load_steps(in + i * VEC_LANES * step, step));
    }
}

ATTO_INLINE void copy_exactly(const window_copy *c, int32_t count, const float *from, int64_t at,
                              int64_t step)
{
    for (int32_t p = 0; p < count; p++)
        for (int32_t i = 0; i < c[p].n; i++) c[p].to[at + i] = from[c[p].offset + i * step];
}

ATTO_INLINE void fetch_ahead(const window_copy *c, int32_t count, const float *from)
{
    for (int32_t p = 0; p < count; p++) {
        __builtin_prefetch(from + c[p].offset);
        __builtin_prefetch(from + c[p].offset + c[p].n - 1);
    }
}

/* Rows of panels, from the places of depth rows. The last rows of all are copied without spilling:
 * behind them there may be another panel, or another thread's. */
ATTO_INLINE void copy_rows(const window_matrix *m, const window_copy *copies, int32_t count,
                           int64_t step, const int64_t *places, int32_t depth, bool last,
                           int32_t width)
{
    int64_t furthest = 0;
    for (int32_t p = 0; p < count; p++) {
        const int64_t end = copies[p].offset + copies[p].vectors * VEC_LANES * step;
        if (end > furthest) furthest = end;
    }
    const int64_t room = m->limit - m->data - furthest;
    const int32_t spilled = last ? (VEC_LANES + width - 2) / width : 0; /* rows behind a row */
    for (int32_t i = 0; i < depth; i++) {
        const float *from = m->data + places[i];
        if (i + WINDOW_AHEAD < depth)
            fetch_ahead(copies, count, m->data + places[i + WINDOW_AHEAD]);
        if (places[i] <= room && i + spilled < depth) {
            copy_spilling(copies, count, from, (int64_t)i * width, step);
        } else {
            copy_exactly(copies, count, from, (int64_t)i * width, step);
        }
    }
}

/* Columns of the last panel that do not exist. */
static void clear_columns(int32_t first, int32_t depth, int32_t width, float *panel)
{
    for (int32_t i = 0; i < depth; i++)
        for (int32_t j = first; j < width; j++) panel[(int64_t)i * width + j] = 0.0f;
}

/* Some panels of n spots (of_spots), a step of 1, 2 or 4 apart in memory, or of taps, which are
 * neighbours, over depth of the others. */
ATTO_INLINE void pack_some_across(const window_matrix *m, bool of_spots, int64_t first, int64_t k,
                                  int32_t n, int32_t depth, int32_t width, float *to)
{
    window_piece pieces[WINDOW_PANELS * TILE_COLUMNS];
    window_copy copies[WINDOW_PANELS * TILE_COLUMNS];
    int64_t places[WINDOW_DEPTH];
    const int64_t step = of_spots ? m->spots.step : 1;
    const int32_t count = cut_pieces(m, of_spots, first, n, width, pieces);
    for (int32_t at = 0; at < depth; at += WINDOW_DEPTH) {
        const int32_t rows = (int32_t)least(WINDOW_DEPTH, depth - at);
        list_places(m, !of_spots, k + at, rows, places);
        for (int32_t p = 0; p < count; p++) {
            const int32_t panel = pieces[p].at / width;
            copies[p] = (window_copy){ pieces[p].offset,
                                       to + (int64_t)panel * depth * width + (int64_t)at * width +
                                           pieces[p].at % width,
                                       pieces[p].n, (pieces[p].n + VEC_LANES - 1) / VEC_LANES };
        }
        if (step == 1) copy_rows(m, copies, count, 1, places, rows, at + rows == depth, width);
        if (step == 2) copy_rows(m, copies, count, 2, places, rows, at + rows == depth, width);
        if (step == 4) copy_rows(m, copies, count, 4, places, rows, at + rows == depth, width);
    }
    if (n % width > 0)
        clear_columns(n % width, depth, width, to + (int64_t)(n / width) * depth * width);
}

/* ---- the same over edges: vectors of spots with zeros for what is outside ---- */

/* A piece of a vector of spots: lanes that belong to one image. */
typedef struct window_lanes {
    int64_t offset,
        spot; /* of lane 0, which need not exist; spots count from the image's first on */
    uint32_t lanes;
} window_lanes;

#define WINDOW_VECTORS (WINDOW_PANELS * TILE_VECS)

/* Cuts n spots into vectors, and these where an image ends. first[v]: vector v's first piece. */
ATTO_INLINE int32_t cut_lanes(const window_matrix *m, int64_t spot, int32_t n, window_lanes *pieces,
                              int32_t first[WINDOW_VECTORS + 1])
{
    int32_t count = 0;
    for (int32_t at = 0; at < n;) {
        const int32_t lane = at % VEC_LANES;
        if (lane == 0) first[at / VEC_LANES] = count;
        const int64_t run = least(spot_run(&m->spots, spot + at), VEC_LANES - lane);
        const int32_t lanes = (int32_t)least(run, n - at);
        pieces[count++] = (window_lanes){ spot_place(&m->spots, spot + at) - lane,
                                          (spot + at) % m->spots.width - lane,
                                          ((1u << (lanes - 1)) * 2 - 1) << lane };
        at += lanes;
    }
    first[(n + VEC_LANES - 1) / VEC_LANES] = count;
    return count;
}

ATTO_INLINE uint32_t piece_inside(const window_edges *e, int64_t tap, const window_lanes *p)
{
    const uint32_t bits =
        p->spot >= 0 ? lanes_inside(e, tap, p->spot) : lanes_inside(e, tap, 0) << -p->spot;
    return bits & p->lanes;
}

/* A row of panels, one place after the other: a vector for each piece. */
ATTO_INLINE void copy_lanes(const float *from, const window_lanes *pieces, const uint16_t *inside,
                            int64_t panel_floats, float *to)
{
    VEC_UNROLL
    for (int32_t v = 0; v < WINDOW_VECTORS; v++)
        vec_store(to + v / TILE_VECS * panel_floats + v % TILE_VECS * VEC_LANES,
                  vec_load_some(from + pieces[v].offset, inside[v]));
}

/* The same where images end within vectors, or before the last one. */
ATTO_INLINE void join_lanes(const float *from, const window_lanes *pieces, const uint16_t *inside,
                            const int32_t *start, int32_t vectors, int64_t panel_floats, float *to)
{
    const int32_t whole = (int32_t)round_up(vectors, TILE_VECS);
    for (int32_t v = 0; v < whole; v++) {
        vec_u32 x = { 0 };
        for (int32_t p = start[v]; v < vectors && p < start[v + 1]; p++)
            x |= (vec_u32)vec_load_some(from + pieces[p].offset, inside[p]);
        vec_store(to + v / TILE_VECS * panel_floats + v % TILE_VECS * VEC_LANES, (vec)x);
    }
}

/* Some panels of n spots over depth taps. */
ATTO_INLINE void pack_some_inside(const window_matrix *m, int64_t first, int64_t k, int32_t n,
                                  int32_t depth, float *to)
{
    window_lanes pieces[WINDOW_PANELS * TILE_COLUMNS];
    uint16_t inside[EDGE_TAPS * WINDOW_PANELS * TILE_COLUMNS];
    int32_t start[WINDOW_VECTORS + 1];
    const int32_t count = cut_lanes(m, first, n, pieces, start);
    const int32_t vectors = (n + VEC_LANES - 1) / VEC_LANES;
    const bool plain = count == WINDOW_VECTORS && vectors == WINDOW_VECTORS;
    for (int32_t tap = 0; tap < m->edges.taps; tap++)
        for (int32_t p = 0; p < count; p++)
            inside[tap * count + p] = (uint16_t)piece_inside(&m->edges, tap, pieces + p);
    int32_t tap = (int32_t)(k % m->edges.taps);
    for (int32_t i = 0; i < depth; i++, tap = tap + 1 < m->edges.taps ? tap + 1 : 0) {
        const float *from = m->data + m->taps.start[k + i];
        float *row = to + (int64_t)i * TILE_COLUMNS;
        if (plain) {
            copy_lanes(from, pieces, inside + tap * count, (int64_t)depth * TILE_COLUMNS, row);
        } else {
            join_lanes(from, pieces, inside + tap * count, start, vectors,
                       (int64_t)depth * TILE_COLUMNS, row);
        }
    }
}

/* pack_windows_across of spots, for panels of TILE_COLUMNS. */
ATTO_INLINE void pack_windows_inside(const window_matrix *m, int64_t first, int64_t k, int32_t n,
                                     int32_t depth, float *to)
{
    const int32_t step = WINDOW_PANELS * TILE_COLUMNS;
    for (int32_t at = 0; at < n; at += step)
        pack_some_inside(m, first + at, k, (int32_t)least(step, n - at), depth,
                         to + (int64_t)at * depth);
}

ATTO_INLINE void pack_windows_across(const window_matrix *m, bool of_spots, int64_t first,
                                     int64_t k, int32_t n, int32_t depth, int32_t width, float *to)
{
    for (int32_t at = 0; at < n; at += WINDOW_PANELS * width)
        pack_some_across(m, of_spots, first + at, k, (int32_t)least(WINDOW_PANELS * width, n - at),
                         depth, width, to + (int64_t)at * depth);
}

/* ---- pieces along k ---- */

/* Rows that may be longer than what is wanted of them are loaded in whole vectors. */
ATTO_INLINE void load_pointers(const float *const *from, int32_t rows, int32_t first, int32_t at,
                               vec_u32 square[VEC_LANES])
{
    VEC_UNROLL
    for (int32_t i = 0; i < VEC_LANES; i++) {
        square[i] = (vec_u32){ 0 };
        if (first + i < rows) {
            square[i] = (vec_u32)vec_load(from[first + i] + at);
            __builtin_prefetch(from[first + i] + at + PACK_AHEAD);
        }
    }
}

/* k <= VEC_LANES values of k of a panel. */
ATTO_INLINE void pack_square(const float *const *from, int32_t rows, int32_t at, int32_t k,
                             int32_t width, float *to)
{
    for (int32_t first = 0; first < width; first += VEC_LANES) {
        const int32_t last = width - first < VEC_LANES ? width - first : VEC_LANES;
        vec_u32 square[VEC_LANES];
        load_pointers(from, rows, first, at, square);
        vec_transpose(square);
        VEC_UNROLL
        for (int32_t i = 0; i < VEC_LANES; i++) {
            if (i + 1 < k) vec_store(to + i * width + first, (vec)square[i]);
            if (i + 1 == k) memcpy(to + i * width + first, &square[i], (size_t)last * sizeof *to);
        }
    }
}

/* pack_along_k from rows that lie anywhere: row i at from[i], of which room elements may be read. */
ATTO_INLINE void pack_pointers_along_k(const float *const *from, int32_t rows, int32_t k,
                                       int64_t room, int32_t width, float *to)
{
    int32_t at = 0;
    for (; at + VEC_LANES <= k; at += VEC_LANES)
        pack_square(from, rows, at, VEC_LANES, width, to + (int64_t)at * width);
    if (at < k && at + VEC_LANES <= room) {
        pack_square(from, rows, at, k - at, width, to + (int64_t)at * width);
        return;
    }
    for (; at < k; at++)
        for (int32_t i = 0; i < width; i++) to[at * width + i] = i < rows ? from[i][at] : 0.0f;
}

/* One panel of rows at places, over depth neighbouring spots (of_spots) or taps. */
ATTO_INLINE void pack_panel_along(const window_matrix *m, bool of_spots, const int64_t *places,
                                  int32_t rows, int64_t k, int32_t depth, int32_t width, float *to)
{
    const float *from[TILE_COLUMNS > TILE_ROWS ? TILE_COLUMNS : TILE_ROWS];
    int64_t furthest = 0;
    for (int32_t i = 0; i < rows; i++)
        if (places[i] > furthest) furthest = places[i];
    for (int32_t at = 0; at < depth;) {
        const int64_t run = of_spots ? spot_run(&m->spots, k + at) : tap_run(&m->taps, k + at);
        const int32_t n = (int32_t)least(run, depth - at);
        const int64_t place =
            of_spots ? spot_place(&m->spots, k + at) : tap_place(&m->taps, k + at);
        for (int32_t i = 0; i < rows; i++) from[i] = m->data + places[i] + place;
        pack_pointers_along_k(from, rows, n, m->limit - m->data - furthest - place, width,
                              to + (int64_t)at * width);
        at += n;
    }
}

/* Panels of n taps or (of_spots: k counts spots) or spots, over depth of the others, which are
 * neighbours in memory. */
ATTO_INLINE void pack_windows_along(const window_matrix *m, bool of_spots, int64_t first, int64_t k,
                                    int32_t n, int32_t depth, int32_t width, float *to)
{
    int64_t places[TILE_COLUMNS > TILE_ROWS ? TILE_COLUMNS : TILE_ROWS];
    for (int32_t at = 0; at < n; at += width) {
        const int32_t rows = (int32_t)least(width, n - at);
        list_places(m, !of_spots, first + at, rows, places);
        pack_panel_along(m, of_spots, places, rows, k, depth, width, to + (int64_t)at * depth);
    }
}

#endif
