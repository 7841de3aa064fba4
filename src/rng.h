/* SPDX-License-Identifier: MIT */
/* What both backends pass to the dropout formulas: the mask of one call as plain numbers. */
#ifndef ATTO_RNG_H
#define ATTO_RNG_H

#include <math.h>
#include <stdint.h>

#include <attocl/rng.h>

typedef struct atto__mask {
    atto_rng rng;
    float p;
    float scale;        /* of kept elements: the float nearest to 1 / (1 - p), 0 when p = 1 */
    uint32_t threshold; /* Philox: kept when word >> 8 is at least this; 2^24 drops all */
} atto__mask;

static inline atto__mask atto__mask_of(float p, atto_rng rng)
{
    atto__mask mask = { rng, p, 0.0f, 0 };
    if (p < 1.0f) mask.scale = (float)(1.0 / (1.0 - (double)p));
    mask.threshold = (uint32_t)ceil((double)p * 16777216.0);
    return mask;
}

#endif
