/* SPDX-License-Identifier: MIT */
/* Sizes that attention's kernels and those who launch them share. Macros only: the host includes this
 * too. */
#ifndef ATTO_ATTENTION_SIZES_H
#define ATTO_ATTENTION_SIZES_H

/* Steps of a product of scores that a buffer of operands holds. */
#define ATTO_ATTENTION_STEPS 16

/* Bytes of local memory for a tile of m x n scores: two buffers, and the tile. */
#define ATTO_ATTENTION_BYTES(m, n) (4 * (2 * ATTO_ATTENTION_STEPS * ((m) + (n)) + (m) * (n)))

/* Floats that a part of the keys leaves of each query: E sums, the largest score, and the sum of
 * e^(score - largest). */
#define ATTO_ATTENTION_PART(e) ((e) + 2)

/* Work-items of a query in atto_attention_delta. */
#define ATTO_ATTENTION_ACROSS 8

/* What a mask is: ATTO_HIDING. */
#define ATTO_MASK_NONE    0
#define ATTO_MASK_BOOLEAN 1 /* i32, 0 hides */
#define ATTO_MASK_ADDED   2 /* numbers that are added */

#endif
