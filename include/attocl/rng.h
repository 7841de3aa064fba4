/* SPDX-License-Identifier: MIT */
/* Random numbers by counter: the same bits on every backend, thread count and work-group size. */
#ifndef ATTOCL_RNG_H
#define ATTOCL_RNG_H

#include <attocl/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** How an element's index becomes a random word. */
typedef enum atto_rng_kind {
    /** Philox4x32-10, key = seed, 64-bit counter = offset + floor(i / 4), word i mod 4; kept when
     * word >> 8 is at least ceil(p * 2^24). */
    ATTO_RNG_PHILOX = 0,
    /** Triton's tl.rand: counter = the low 32 bits of offset + i, first word only, 31 bits. For
     * comparing masks with attorch; about half the speed. */
    ATTO_RNG_TRITON = 1
} atto_rng_kind;

/**
 * A position in a random stream; plain data. Two calls with equal values draw equal numbers.
 * Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
 */
typedef struct atto_rng {
    uint64_t seed;
    uint64_t offset; /**< in counters */
    atto_rng_kind kind;
} atto_rng;

/** Returns the current position and moves *rng past the n elements that it will serve. */
static inline atto_rng atto_rng_reserve(atto_rng *rng, int64_t n)
{
    atto_rng here = *rng;
    const uint64_t count = n > 0 ? (uint64_t)n : 0;
    rng->offset += rng->kind == ATTO_RNG_TRITON ? count : count / 4 + (count % 4 != 0);
    return here;
}

#ifdef __cplusplus
}
#endif

#endif
