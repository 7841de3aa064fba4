/* SPDX-License-Identifier: MIT */
/* Sizes that gather's kernels and those who launch them share. Macros only: the host includes this too. */
#ifndef ATTO_GATHER_SIZES_H
#define ATTO_GATHER_SIZES_H

/* atto_gather_backward_tile: work-items of a work-group, neighbouring lines among them, and rows of each
 * line's sums that a work-item has in local memory, beside one for what is not its own. */
#define ATTO_GATHER_GROUP   64
#define ATTO_GATHER_COLUMNS 32
#define ATTO_GATHER_ROWS    191

/* Floats of a work-group. */
#define ATTO_GATHER_TILE (ATTO_GATHER_GROUP * (ATTO_GATHER_ROWS + 1))

#endif
