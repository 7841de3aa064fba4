/* SPDX-License-Identifier: MIT */
/* Inputs that lie transposed: elements are neighbours along the dimension before the last one.
 *
 * A block of such an input has each element in another line of memory. Tiles are transposed in
 * registers instead, and then taken row by row as blocks. Tiles that follow each other have the
 * same columns, and lie in the same pages. */
#ifndef ATTO_CPU_TURNED_H
#define ATTO_CPU_TURNED_H

#include "backend_cpu/loops.h"
#include "backend_cpu/vec.h"

#define TURNED_ROWS   32
#define TURNED_COLS   256
#define TURNED_INPUTS 2

/* The tile that a block is a row of. */
struct turned_tile {
    const atto_tensor *input[TURNED_INPUTS]; /* NULL: not transposed */
    int32_t row;
    float values[TURNED_INPUTS][TURNED_ROWS][TURNED_COLS];
};

/* An input's block: a row of a tile, or where it lies. */
static inline span input_of(const atto_tensor *t, const block_at *at)
{
    for (int32_t k = 0; k < TURNED_INPUTS && at->tile; k++)
        if (at->tile->input[k] == t)
            return (span){ (void *)at->tile->values[k][at->tile->row], 1, at->n, ATTO_F32 };
    return span_of(t, at);
}

static inline const float *load_input(const atto_tensor *t, const block_at *at, float *buffer)
{
    return load_block(input_of(t, at), buffer);
}

static inline bool is_transposed(const atto_tensor *t)
{
    const int32_t last = t->rank - 1;
    return last > 0 && t->dtype == ATTO_F32 && t->stride[last] != 1 && t->stride[last - 1] == 1 &&
           t->shape[last] >= VEC_LANES && t->shape[last - 1] >= VEC_LANES;
}

/* VEC_LANES rows of as many columns that lie so far apart. */
ATTO_INLINE void turn_square(const float *from, int64_t apart, float *to)
{
    vec_u32 rows[VEC_LANES];
    VEC_UNROLL
    for (int32_t i = 0; i < VEC_LANES; i++) rows[i] = (vec_u32)vec_load(from + i * apart);
    vec_transpose(rows);
    VEC_UNROLL
    for (int32_t i = 0; i < VEC_LANES; i++) vec_store(to + i * TURNED_COLS, (vec)rows[i]);
}

static inline void turn(const float *from, int64_t apart, int32_t rows, int32_t cols,
                        float to[][TURNED_COLS])
{
    const int32_t whole_rows = rows - rows % VEC_LANES, whole_cols = cols - cols % VEC_LANES;
    for (int32_t r = 0; r < whole_rows; r += VEC_LANES)
        for (int32_t c = 0; c < whole_cols; c += VEC_LANES)
            turn_square(from + c * apart + r, apart, &to[r][c]);
    for (int32_t r = 0; r < rows; r++)
        for (int32_t c = r < whole_rows ? whole_cols : 0; c < cols; c++)
            to[r][c] = from[c * apart + r];
}

typedef struct tile_walk {
    const atto__layout *layout;
    const atto_tensor *input[TURNED_INPUTS];
    int64_t down, across; /* tiles */
    block_fn body;
    const void *job;
} tile_walk;

/* The first block of a tile, and how many there are. */
static inline block_at locate_tile(const tile_walk *w, int64_t unit, int32_t *rows)
{
    const atto__layout *l = w->layout;
    const int32_t last = l->rank - 1;
    const int64_t row = unit % w->down * TURNED_ROWS;
    const int64_t col = unit / w->down % w->across * TURNED_COLS;
    const int64_t left = l->shape[last - 1] - row, left_cols = l->shape[last] - col;
    block_at at = { .n = (int32_t)(left_cols < TURNED_COLS ? left_cols : TURNED_COLS) };
    *rows = (int32_t)(left < TURNED_ROWS ? left : TURNED_ROWS);
    at.coordinate[last] = col;
    at.coordinate[last - 1] = row;
    int64_t outer = unit / w->down / w->across;
    for (int32_t d = last - 2; d >= 0; d--) {
        at.coordinate[d] = outer % l->shape[d];
        outer /= l->shape[d];
    }
    return at;
}

static inline void walk_tiles(const void *walk_, int64_t begin, int64_t end)
{
    const tile_walk *w = walk_;
    const int32_t last = w->layout->rank - 1;
    struct turned_tile tile;
    for (int32_t k = 0; k < TURNED_INPUTS; k++) tile.input[k] = w->input[k];
    for (int64_t unit = begin; unit < end; unit++) {
        int32_t rows;
        block_at at = locate_tile(w, unit, &rows);
        for (int32_t k = 0; k < TURNED_INPUTS; k++) {
            if (!tile.input[k]) continue;
            const span s = span_of(tile.input[k], &at);
            turn(s.first, s.stride, rows, at.n, tile.values[k]);
        }
        at.tile = &tile;
        for (tile.row = 0; tile.row < rows; tile.row++, at.coordinate[last - 1]++)
            w->body(w->job, &at);
    }
    end_stream();
}

/* for_each_block where body finds inputs, one or two, by input_of; the second may be NULL. */
static inline atto_status for_each_tile(atto_device *dev, const atto__layout *l,
                                        const atto_tensor *first, const atto_tensor *second,
                                        block_fn body, const void *job)
{
    tile_walk w = { .layout = l, .body = body, .job = job };
    if (is_transposed(first)) w.input[0] = first;
    if (second && is_transposed(second)) w.input[1] = second;
    if (!w.input[0] && !w.input[1]) return for_each_block(dev, l, body, job);
    const int64_t rows = l->shape[l->rank - 2], cols = l->shape[l->rank - 1];
    w.down = (rows + TURNED_ROWS - 1) / TURNED_ROWS;
    w.across = (cols + TURNED_COLS - 1) / TURNED_COLS;
    const int32_t threads = l->numel < ATTO_SERIAL_BELOW ? 1 : atto__cpu_threads(dev);
    dev->stats.launches++;
    atto__parallel_for(threads, l->numel / (rows * cols) * w.down * w.across, walk_tiles, &w);
    return ATTO_OK;
}

#endif
