/* SPDX-License-Identifier: MIT */
/* How gemm.c cuts products, whichever way it computes them. */
#ifndef ATTO_CPU_GEMM_BLOCKS_H
#define ATTO_CPU_GEMM_BLOCKS_H

#include "backend_cpu/side.h"
#include "backend_cpu/tile.h"

/* Block sizes. A block of B stays in a second-level cache of 1 MiB; of K so much that a panel of A
 * (of B at the other levels) takes half of a first-level cache; up to K_WHOLE all of it, which saves
 * sums a way to memory and back. */
#if TILE_STREAMS_B
#define K_BLOCK       384
#define K_WHOLE       640
#define TASK_PANELS   1 /* of A */
#define TASK_COLUMNS  512
#define FINISH_PANELS 4 /* of B */
#else
#define K_BLOCK       256
#define K_WHOLE       256
#define TASK_PANELS   40
#define TASK_COLUMNS  128
#define FINISH_PANELS 8
#endif
#define COLUMN_BLOCK 512
#define ROW_BLOCK    2048

/* Multiplications that are worth another thread: some microseconds of them. */
#define THREAD_WORK (1 << 20)

/* Of so many threads those that have enough to do. */
static int32_t threads_for(const atto__gemm *g, int32_t threads)
{
    const double work = (double)g->m * (double)g->n * (double)g->k / THREAD_WORK;
    return work < threads - 1 ? 1 + (int32_t)work : threads;
}

/* Finishes rows of C, of which values has one every stride floats. */
static void finish_lines(const atto__gemm *g, int64_t row, int32_t rows, int64_t column, int32_t n,
                         float *values, int64_t stride)
{
    if (g->finish_rows) {
        g->finish_rows(g->job, g->first_row + row, rows, column, n, values, stride);
    } else if (g->finish) {
        for (int32_t i = 0; i < rows; i++)
            g->finish(g->job, g->first_row + row + i, column, n, values + i * stride);
    }
}

/* K divided evenly. */
static int64_t k_block_of(const atto__gemm *g)
{
    if (g->k == 0) return 1;
    if (g->k <= K_WHOLE) return round_up(g->k, VEC_LANES);
    return round_up(atto__divide_up(g->k, atto__divide_up(g->k, K_BLOCK)), VEC_LANES);
}

#endif
