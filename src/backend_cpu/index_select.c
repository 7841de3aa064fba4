/* SPDX-License-Identifier: MIT */
/* Rows that an index names, on the CPU.
 *
 *   forward    y[o][p] = x[o][index[p]]
 *   backward   dx[o][r] = sum of dy[o][p] over the positions p of row r, in their order
 *
 * x is [outer, n, inner]. Backward sorts the positions by their rows, each row's ascending, by
 * counting; then rows are shared out to threads, in pieces of columns.
 */
#include <string.h>

#include "axis.h"
#include "backend_cpu/index.h"
#include "divide.h"

#define COPIED  16384 /* elements of a row that are moved in one piece */
#define COLUMNS 256   /* elements of a row that are summed in one piece */
#define SUMMED  4096  /* elements of dx in a unit of work, if rows are short */

typedef struct job {
    const struct atto_index_select_args *a;
    atto__axis x; /* or dx */
    int64_t positions;
    atomic_uint *errors; /* the device's error word */
    int64_t pieces;      /* of a row, in columns */
    int64_t rows_each;   /* backward: rows of a unit */
    int64_t *first;      /* backward: [n + 1], where in order a row's positions begin */
    int64_t *order;      /* backward: positions by rows */
} job;

static job job_of(atto_device *dev, const struct atto_index_select_args *a, const atto_tensor *x)
{
    return (job){ .a = a,
                  .x = atto__axis_of(x, a->dim),
                  .positions = atto_tensor_numel(a->index),
                  .errors = dev->error_word->memory };
}

/* ---- forward ---- */

static void move(char *to, const char *from, size_t bytes)
{
    if (bytes == 2)
        memcpy(to, from, 2);
    else if (bytes == 4)
        memcpy(to, from, 4);
    else
        memcpy(to, from, bytes);
}

static void put_nan(char *to, size_t bytes)
{
    const uint16_t half = ATTO_NAN_HALF;
    for (size_t i = 0; i < bytes; i += sizeof half) memcpy(to + i, &half, sizeof half);
}

/* A unit is a piece of a row of y. */
static void forward_rows(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    const atto_tensor *x = j->a->x;
    const size_t size = atto_dtype_size(x->dtype);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t row = unit / j->pieces, col = unit % j->pieces * COPIED;
        const int64_t left = j->x.step - col;
        const int32_t n = (int32_t)(left < COPIED ? left : COPIED);
        const int64_t i = index_of(j->a->index, row % j->positions, j->x.size, j->errors);
        const span to = dense_span(j->a->y, row * j->x.step + col, n);
        if (i < 0) {
            put_nan(to.first, (size_t)n * size);
            continue;
        }
        const int64_t at = (row / j->positions * j->x.size + i) * j->x.step + col;
        move(to.first, dense_span(x, at, n).first, (size_t)n * size);
    }
}

atto_status ATTO_LEVEL_NAME(index_select_forward)(atto_device *dev,
                                                  const struct atto_index_select_args *a,
                                                  const atto__layout *layout)
{
    (void)layout;
    job j = job_of(dev, a, a->x);
    const int64_t rows = j.x.outer * j.positions;
    j.pieces = atto__divide_up(j.x.step, COPIED);
    dev->stats.launches++;
    atto__parallel_for(index_threads(dev, rows * j.x.step), rows * j.pieces, forward_rows, &j);
    return ATTO_OK;
}

/* ---- backward ---- */

/* The row that position p adds to; -1: none. */
static int64_t row_of(const job *j, int64_t p)
{
    const int64_t row = index_of(j->a->index, p, j->x.size, j->errors);
    return j->a->has_padding && row == j->a->padding ? -1 : row;
}

/* Counts, which become beginnings; first[r + 1] is that of row r until the positions are placed,
 * which leaves it at the row's end. */
static void sort_positions(job *j)
{
    int64_t *first = j->first;
    memset(first, 0, (size_t)(j->x.size + 2) * sizeof *first);
    for (int64_t p = 0; p < j->positions; p++) {
        const int64_t row = row_of(j, p);
        if (row >= 0) first[row + 2]++;
    }
    for (int64_t r = 0; r < j->x.size; r++) first[r + 2] += first[r + 1];
    for (int64_t p = 0; p < j->positions; p++) {
        const int64_t row = row_of(j, p);
        if (row >= 0) j->order[first[row + 1]++] = p;
    }
}

/* n columns of a row of dx, from col on. */
static void sum_piece(const job *j, int64_t o, int64_t row, int64_t col, int32_t n)
{
    const struct atto_index_select_args *a = j->a;
    const span to = dense_span(a->dx, (o * j->x.size + row) * j->x.step + col, n);
    const int64_t begin = j->first[row], end = j->first[row + 1];
    float sum[COLUMNS], buffer[COLUMNS];
    if (begin == end) {
        if (!a->add_dx) memset(to.first, 0, (size_t)n * atto_dtype_size(to.dtype));
        return;
    }
    if (a->add_dx)
        memcpy(sum, load_block(to, buffer), (size_t)n * sizeof *sum);
    else
        memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t k = begin; k < end; k++) {
        const int64_t at = (o * j->positions + j->order[k]) * j->x.step + col;
        accumulate_block(sum, dense_span(a->dy, at, n), buffer);
    }
    store_block(sum, to);
}

/* A unit is some rows of one outer index, in pieces of columns. */
static void backward_units(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    const int64_t chunks = atto__divide_up(j->x.size, j->rows_each);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t chunk = unit / j->pieces, col = unit % j->pieces * COLUMNS;
        const int64_t o = chunk / chunks, row = chunk % chunks * j->rows_each;
        const int64_t rest = j->x.step - col, left = j->x.size - row;
        const int64_t rows = left < j->rows_each ? left : j->rows_each;
        for (int64_t r = row; r < row + rows; r++)
            sum_piece(j, o, r, col, (int32_t)(rest < COLUMNS ? rest : COLUMNS));
    }
}

atto_status ATTO_LEVEL_NAME(index_select_backward)(atto_device *dev,
                                                   const struct atto_index_select_args *a,
                                                   const atto__layout *layout)
{
    (void)layout;
    job j = job_of(dev, a, a->dx);
    const int64_t rows = j.x.size + 2, places = j.positions + 1; /* there is no block of 0 bytes */
    const int64_t width = j.x.step < COLUMNS ? j.x.step : COLUMNS;
    atto_buffer headers[2];
    atto_tensor first, order;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_I64, 1, &rows, &headers[0], &first));
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_I64, 1, &places, &headers[1], &order));
    j.first = atto__memory(&first);
    j.order = atto__memory(&order);
    j.pieces = atto__divide_up(j.x.step, COLUMNS);
    j.rows_each = SUMMED / width;
    dev->stats.launches++;
    sort_positions(&j);
    const int64_t work = j.x.outer * (j.x.size + j.positions) * j.x.step;
    atto__parallel_for(index_threads(dev, work),
                       j.x.outer * atto__divide_up(j.x.size, j.rows_each) * j.pieces,
                       backward_units, &j);
    return ATTO_OK;
}
