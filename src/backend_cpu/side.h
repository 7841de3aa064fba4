/* SPDX-License-Identifier: MIT */
/* Packing A and B as atto__gemm describes them. */
#ifndef ATTO_CPU_SIDE_H
#define ATTO_CPU_SIDE_H

#include "backend_cpu/gemm.h"
#include "backend_cpu/pack.h"
#include "backend_cpu/panel.h"

/* What a prologue makes at a time: [TILE_ROWS][STRIP_ALONG] elements at most along k for each panel
 * of the group, [STRIP_ACROSS][GROUP_ROWS] across. */
#define STRIP_ALONG  128
#define STRIP_ACROSS 32

static void pack_prologue_along(const atto__gemm *g, int64_t row, int64_t k, int32_t rows,
                                int32_t depth, float *to)
{
    float strip[TILE_ROWS * STRIP_ALONG];
    for (int32_t at = 0; at < depth; at += STRIP_ALONG) {
        const int32_t n = (int32_t)least(STRIP_ALONG, depth - at);
        for (int32_t i = 0; i < rows; i++)
            g->prologue(g->job, row + i, k + at, n, strip + i * STRIP_ALONG);
        pack_along_k(strip, STRIP_ALONG, ATTO_F32, rows, n, TILE_ROWS, to + at * TILE_ROWS);
    }
}

static void pack_prologue_across(const atto__gemm *g, int64_t row, int64_t k, int32_t rows,
                                 int32_t depth, float *to)
{
    float strip[STRIP_ACROSS * GROUP_ROWS];
    for (int32_t at = 0; at < depth; at += STRIP_ACROSS) {
        const int32_t n = (int32_t)least(STRIP_ACROSS, depth - at);
        for (int32_t i = 0; i < n; i++)
            g->prologue(g->job, k + at + i, row, rows, strip + i * GROUP_ROWS);
        pack_across_k(strip, GROUP_ROWS, ATTO_F32, rows, n, TILE_ROWS, to + at * TILE_ROWS,
                      (int64_t)depth * TILE_ROWS);
    }
}

static void pack_a_prologue(const atto__gemm *g, int64_t row, int64_t k, int32_t rows,
                            int32_t depth, float *to)
{
    for (int32_t i = 0; !g->a.along_k && i < rows; i += GROUP_ROWS)
        pack_prologue_across(g, row + i, k, (int32_t)least(GROUP_ROWS, rows - i), depth,
                             to + (int64_t)i * depth);
    for (int32_t i = 0; g->a.along_k && i < rows; i += TILE_ROWS)
        pack_prologue_along(g, row + i, k, (int32_t)least(TILE_ROWS, rows - i), depth,
                            to + (int64_t)i * depth);
}

/* Memory of a side from its index in C and k on. */
static const void *side_at(const atto__gemm_side *side, int64_t index, int64_t k)
{
    const int64_t at = side->along_k ? index * side->stride + k : k * side->stride + index;
    return (const char *)side->data + at * (int64_t)atto_dtype_size(side->dtype);
}

/* Panels of A's rows from row on, depth values of k from k on. */
static void pack_a(const atto__gemm *g, int64_t row, int64_t k, int32_t rows, int32_t depth,
                   float *to)
{
    if (g->pack_a) {
        g->pack_a(g->job, row, g->first_k + k, rows, depth, to);
    } else if (g->prologue) {
        pack_a_prologue(g, row, k, rows, depth, to);
    } else {
        pack_panels(side_at(&g->a, row, k), g->a.stride, g->a.dtype, g->a.along_k, rows, depth,
                    TILE_ROWS, to);
    }
}

/* Panels of B's columns from column on. */
static void pack_b(const atto__gemm *g, int64_t column, int64_t k, int32_t columns, int32_t depth,
                   float *to)
{
    if (g->pack_b) {
        g->pack_b(g->job, column, g->first_k + k, columns, depth, to);
    } else {
        pack_panels(side_at(&g->b, column, k), g->b.stride, g->b.dtype, g->b.along_k, columns,
                    depth, TILE_COLUMNS, to);
    }
}

#endif
