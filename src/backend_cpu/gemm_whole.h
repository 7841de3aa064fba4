/* SPDX-License-Identifier: MIT */
/* Products of which one operand is packed as a whole.
 *
 * Where A has so few rows, or B so few columns, all of it is packed first; then a unit packs a piece
 * of the other one, block by block of K, and multiplies each while it is in its cache, instead of
 * waiting until all threads have packed a block. The order of additions is that of gemm.c's steps. */
#ifndef ATTO_CPU_GEMM_WHOLE_H
#define ATTO_CPU_GEMM_WHOLE_H

#include "backend_cpu/gemm_blocks.h"
#include "backend_cpu/loops.h"

/* Lines and floats that such an operand has at most. */
#define WHOLE_LINES  512
#define WHOLE_FLOATS (1 << 20)

/* Panels of a piece, and floats of its blocks. */
#define PIECE_PANELS 8
#define PIECE_FLOATS 81920

/* Columns that rows of a unit are multiplied with at a time. */
#define BAND_COLUMNS 512
_Static_assert(BAND_COLUMNS <= ATTO_GEMM_RUN, "a band is finished in runs");

typedef struct whole_plan {
    const atto__gemm *g;
    bool of_a; /* all of A, and units are columns of B; else the other way round */
    int64_t k_block, k_blocks;
    int64_t lines; /* of the whole one, up to a whole panel */
    int32_t piece; /* lines of the other one in a unit, whole panels */
    float *whole;  /* packed, [k_blocks][lines * k_block] */
    float *own;    /* of each worker: a packed piece; sums, where C has no place for them */
    int64_t own_floats;
} whole_plan;

/* A part of a unit's product, whole panels: what is multiplied, and then finished, at a time. */
typedef struct band {
    int32_t row, rows, column, columns;
    float *sums;
    int64_t stride;
} band;

static int32_t depth_at(const whole_plan *p, int64_t block)
{
    return (int32_t)least(p->k_block, p->g->k - block * p->k_block);
}

static int64_t pieces_of(const whole_plan *p)
{
    return atto__divide_up(p->of_a ? p->g->n : p->g->m, p->piece);
}

static int64_t whole_groups(const whole_plan *p)
{
    return atto__divide_up(p->lines, p->of_a ? GROUP_ROWS : GROUP_COLUMNS);
}

static int64_t whole_units(const void *job, int64_t stage)
{
    const whole_plan *p = job;
    return stage == 0 ? p->k_blocks * whole_groups(p) : pieces_of(p);
}

static void pack_whole(const whole_plan *p, int64_t unit)
{
    const atto__gemm *g = p->g;
    const int64_t block = unit / whole_groups(p), group = unit % whole_groups(p);
    const int32_t depth = depth_at(p, block);
    float *to = p->whole + block * p->lines * p->k_block;
    if (p->of_a) {
        const int64_t row = group * GROUP_ROWS;
        pack_a(g, row, block * p->k_block, (int32_t)least(GROUP_ROWS, g->m - row), depth,
               to + row * depth);
    } else {
        const int64_t column = group * GROUP_COLUMNS;
        pack_b(g, column, block * p->k_block, (int32_t)least(GROUP_COLUMNS, g->n - column), depth,
               to + column * depth);
    }
}

static void multiply_in_band(const band *b, int32_t i, int32_t j, int32_t depth, const float *pa,
                             const float *pb, bool add)
{
    multiply_tile(depth, pa + (int64_t)i * depth, pb + (int64_t)j * depth,
                  b->sums + (i - b->row) * b->stride + j - b->column, b->stride,
                  (int32_t)least(TILE_ROWS, b->row + b->rows - i),
                  (int32_t)least(TILE_COLUMNS, b->column + b->columns - j), add);
}

/* pa, pb: panels of the unit's first row and column. */
static void multiply_band(const band *b, int32_t depth, const float *pa, const float *pb, bool add)
{
    const int32_t end_row = b->row + b->rows, end_column = b->column + b->columns;
    if (TILE_STREAMS_B) {
        for (int32_t i = b->row; i < end_row; i += TILE_ROWS)
            for (int32_t j = b->column; j < end_column; j += TILE_COLUMNS)
                multiply_in_band(b, i, j, depth, pa, pb, add);
    } else {
        for (int32_t j = b->column; j < end_column; j += TILE_COLUMNS)
            for (int32_t i = b->row; i < end_row; i += TILE_ROWS)
                multiply_in_band(b, i, j, depth, pa, pb, add);
    }
}

/* Where B has so few columns that packing A would cost more than it saves, tiles read A's rows where
 * they lie. (With short vectors the packed order is the better one.) */
#define POINT_COLUMNS 128

static bool points_at_rows(const whole_plan *p)
{
    return TILE_STREAMS_B && !p->of_a && p->g->point_a && p->g->n <= POINT_COLUMNS;
}

/* The band's rows from where they lie; row: of C, the unit's first one. */
static void multiply_lying_band(const whole_plan *p, const band *b, int64_t row, int64_t block,
                                const float *pb)
{
    const atto__gemm *g = p->g;
    const int32_t depth = depth_at(p, block);
    atto__gemm_run runs[ATTO_GEMM_RUNS];
    for (int32_t i = b->row; i < b->row + b->rows; i += TILE_ROWS) {
        const int32_t rows = (int32_t)least(TILE_ROWS, b->row + b->rows - i);
        const int32_t count =
            g->point_a(g->job, row + i, g->first_k + block * p->k_block, rows, depth, runs);
        for (int32_t j = b->column; j < b->column + b->columns; j += TILE_COLUMNS)
            multiply_tile_runs(runs, count, pb + (int64_t)j * depth,
                               b->sums + (i - b->row) * b->stride + j - b->column, b->stride, rows,
                               (int32_t)least(TILE_COLUMNS, b->column + b->columns - j),
                               block > 0 || g->accumulate);
    }
}

/* Rows of a unit's band in A's units, columns in B's. */
static int32_t band_rows(const whole_plan *p)
{
    return p->of_a ? TASK_PANELS * TILE_ROWS : p->piece;
}

static int32_t band_columns(const whole_plan *p)
{
    return p->of_a ? p->piece : BAND_COLUMNS;
}

/* Sums of a band that is finished at once have no other place: the next one takes it. */
static void place_sums(const whole_plan *p, int64_t row, int64_t column, float *own, band *b)
{
    const atto__gemm *g = p->g;
    if (g->c) {
        b->stride = g->c_stride;
        b->sums = g->c + (row + b->row) * g->c_stride + column + b->column;
    } else if (p->k_blocks == 1) {
        b->stride = band_columns(p);
        b->sums = own;
    } else {
        b->stride = p->of_a ? p->piece : g->n;
        b->sums = own + b->row * b->stride + b->column;
    }
}

static void multiply_piece(const whole_plan *p, int64_t unit, float *own)
{
    const atto__gemm *g = p->g;
    const int64_t row = p->of_a ? 0 : unit * p->piece, column = p->of_a ? unit * p->piece : 0;
    const int32_t rows = (int32_t)(p->of_a ? g->m : least(p->piece, g->m - row));
    const int32_t columns = (int32_t)(p->of_a ? least(p->piece, g->n - column) : g->n);
    float *sums = own + p->piece * p->k_block;
    for (int64_t block = 0; block < p->k_blocks; block++) {
        const int32_t depth = depth_at(p, block);
        const float *whole = p->whole + block * p->lines * p->k_block;
        if (p->of_a) {
            pack_b(g, column, block * p->k_block, columns, depth, own);
        } else if (!points_at_rows(p)) {
            pack_a(g, row, block * p->k_block, rows, depth, own);
        }
        for (int32_t i = 0; i < rows; i += band_rows(p))
            for (int32_t j = 0; j < columns; j += band_columns(p)) {
                band b = { i,    (int32_t)least(band_rows(p), rows - i),
                           j,    (int32_t)least(band_columns(p), columns - j),
                           NULL, 0 };
                place_sums(p, row, column, sums, &b);
                if (points_at_rows(p)) {
                    multiply_lying_band(p, &b, row, block, whole);
                } else {
                    multiply_band(&b, depth, p->of_a ? whole : own, p->of_a ? own : whole,
                                  block > 0 || g->accumulate);
                }
                if (block == p->k_blocks - 1)
                    finish_lines(g, row + b.row, b.rows, column + b.column, b.columns, b.sums,
                                 b.stride);
            }
    }
    end_stream();
}

static void whole_run(const void *job, int64_t stage, int64_t unit, int32_t worker)
{
    const whole_plan *p = job;
    if (stage == 0) {
        pack_whole(p, unit);
    } else {
        multiply_piece(p, unit, p->own + worker * p->own_floats);
    }
}

/* Panels of a piece: so that threads are done at the same time, in few pieces, each of which has to
 * read the whole operand again, and none of which is too large for a second-level cache. */
static int32_t piece_of(const atto__gemm *g, bool of_a, int32_t threads)
{
    const int32_t panel = of_a ? TILE_COLUMNS : TILE_ROWS;
    const int64_t panels = atto__divide_up(of_a ? g->n : g->m, panel);
    int64_t best = 1, least_cost = INT64_MAX;
    for (int64_t piece = 1; piece <= PIECE_PANELS; piece++) {
        if (piece > 1 && piece * panel * k_block_of(g) > PIECE_FLOATS) break;
        const int64_t turns = atto__divide_up(atto__divide_up(panels, piece), threads);
        const int64_t cost = turns * (4 * piece + 1);
        if (cost <= least_cost) {
            least_cost = cost;
            best = piece;
        }
    }
    return (int32_t)best * panel;
}

/* Whether there are pieces for all threads, and the whole operand is not much memory. The bits are
 * those of run_packed, so that the choice may depend on threads. */
static bool fits_whole(const atto__gemm *g, bool of_a, int32_t threads)
{
    const int32_t busy = threads_for(g, threads);
    const int64_t lines = of_a ? g->m : g->n, others = of_a ? g->n : g->m;
    return lines <= WHOLE_LINES && g->k > 0 &&
           round_up(lines, of_a ? TILE_ROWS : TILE_COLUMNS) * g->k <= WHOLE_FLOATS &&
           atto__divide_up(others, piece_of(g, of_a, busy)) >= busy;
}

static bool is_whole(const atto__gemm *g, int32_t threads)
{
    return fits_whole(g, g->m <= g->n, threads);
}

static whole_plan plan_whole(const atto__gemm *g, int32_t threads)
{
    whole_plan p = { .g = g, .of_a = g->m <= g->n, .k_block = k_block_of(g) };
    p.lines = p.of_a ? round_up(g->m, TILE_ROWS) : round_up(g->n, TILE_COLUMNS);
    p.k_blocks = atto__divide_up(g->k, p.k_block);
    p.piece = piece_of(g, p.of_a, threads);
    const int64_t rows = p.of_a && p.k_blocks > 1 ? g->m : band_rows(&p);
    const int64_t columns = !p.of_a && p.k_blocks > 1 ? g->n : band_columns(&p);
    p.own_floats = p.piece * p.k_block + (g->c ? 0 : rows * columns);
    return p;
}

#endif
