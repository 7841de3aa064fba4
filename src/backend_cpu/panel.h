/* SPDX-License-Identifier: MIT */
/* Sizes of a tile of a product, and of the panels that it is made of.
 *
 *   level     tile    registers: sums, B, the broadcast element of A (and a product without fma)
 *   AVX-512   14x32   28 + 2 + 1 of 32
 *   AVX2      6x16    12 + 2 + 1 of 16
 *   base      4x8      8 + 2 + 1 + 1 of 16
 */
#ifndef ATTO_CPU_PANEL_H
#define ATTO_CPU_PANEL_H

#include "backend_cpu/vec.h"
#include "divide.h"

#if VEC_LANES == 16
#define TILE_ROWS 14
#elif VEC_LANES == 8
#define TILE_ROWS 6
#else
#define TILE_ROWS 4
#endif
#define TILE_VECS    2
#define TILE_COLUMNS (TILE_VECS * VEC_LANES)

/* Panels in one unit of packing: rows across k are read in runs of some length. */
#define GROUP_PANELS  4
#define GROUP_ROWS    (GROUP_PANELS * TILE_ROWS)
#define GROUP_COLUMNS (GROUP_PANELS * TILE_COLUMNS)

static inline int64_t round_up(int64_t a, int64_t b)
{
    return atto__divide_up(a, b) * b;
}

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

#endif
