/* SPDX-License-Identifier: MIT */
/* Elements that an index names, on the CPU.
 *
 *   forward    y[o][j][i] = x[o][index[o][j][i]][i]
 *   backward   dx[o][index[o][j][i]][i] += dy[o][j][i], j ascending
 *
 * Forward goes over y in any pieces. Backward is shared out by lines along dim: no two threads add
 * to one element.
 */
#include "gather.h"

#include <string.h>

#include "backend_cpu/index.h"
#include "divide.h"

#define COLUMNS 256 /* neighbouring lines of a unit of work */

typedef struct job {
    const struct atto_gather_args *a;
    const atto__gather *g;
    atomic_uint *errors; /* the device's error word */
} job;

/* ---- forward ---- */

static void put_nan(char *to, size_t size)
{
    const uint16_t half = ATTO_NAN_HALF;
    for (size_t i = 0; i < size; i += sizeof half) memcpy(to + i, &half, sizeof half);
}

/* Elements of y, an f32 or 16 bits of one. */
static void forward_range(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    const atto__gather *g = j->g;
    const size_t size = atto_dtype_size(j->a->y->dtype);
    int64_t i = begin % g->inner, row = begin / g->inner; /* row = o * count + j */
    char *to = dense_span(j->a->y, begin, 1).first;
    for (int64_t at = begin; at < end; at++, to += size) {
        const int64_t named = index_of(j->a->index, at, g->rows, j->errors);
        const int64_t from = row / g->count * g->outer_step + named * g->row_step + i;
        if (named < 0)
            put_nan(to, size);
        else if (size == 4)
            memcpy(to, dense_span(&g->source, from, 1).first, 4);
        else
            memcpy(to, dense_span(&g->source, from, 1).first, 2);
        if (++i == g->inner) i = 0, row++;
    }
}

atto_status ATTO_LEVEL_NAME(gather_forward)(atto_device *dev, const struct atto_gather_args *a,
                                            const atto__layout *layout)
{
    (void)layout;
    const int64_t n = atto_tensor_numel(a->y);
    atto__gather g;
    ATTO_TRY(atto__gather_begin(dev, a, &g));
    const job j = { a, &g, dev->error_word->memory };
    dev->stats.launches++;
    atto__parallel_for(index_threads(dev, n), n, forward_range, &j);
    return ATTO_OK;
}

/* ---- backward ---- */

/* n neighbouring lines of outer index o, from i on. */
static void add_lines(const job *j, int64_t o, int64_t i, int32_t n)
{
    const atto__gather *g = j->g;
    float *sums = (float *)dense_span(&g->source, o * g->outer_step + i, 1).first;
    float buffer[COLUMNS];
    for (int64_t row = 0; row < g->count; row++) {
        const int64_t at = (o * g->count + row) * g->inner + i;
        const float *dy = load_block(dense_span(j->a->dy, at, n), buffer);
        for (int32_t k = 0; k < n; k++) {
            const int64_t named = index_of(j->a->index, at + k, g->rows, j->errors);
            if (named >= 0) sums[named * g->row_step + k] += dy[k];
        }
    }
}

static void backward_units(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    const int64_t pieces = atto__divide_up(j->g->inner, COLUMNS);
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t i = unit % pieces * COLUMNS, left = j->g->inner - i;
        add_lines(j, unit / pieces, i, (int32_t)(left < COLUMNS ? left : COLUMNS));
    }
}

atto_status ATTO_LEVEL_NAME(gather_backward)(atto_device *dev, const struct atto_gather_args *a,
                                             const atto__layout *layout)
{
    (void)layout;
    const int64_t n = atto_tensor_numel(a->index);
    atto__gather g;
    dev->stats.launches++;
    ATTO_TRY(atto__gather_begin_sums(dev, a, &g));
    if (n == 0) return ATTO_OK;
    const job j = { a, &g, dev->error_word->memory };
    atto__parallel_for(index_threads(dev, n), g.outer * atto__divide_up(g.inner, COLUMNS),
                       backward_units, &j);
    return atto__gather_end_sums(dev, a, &g);
}
