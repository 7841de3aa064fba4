/* SPDX-License-Identifier: MIT */
/* splitmix64 and the shuffle of Fisher and Yates. */
#include "shuffle.h"

#define GOLDEN 0x9e3779b97f4a7c15u /* 2^64 divided by the golden ratio, made odd */

uint64_t shuffle_random(uint64_t *state)
{
    uint64_t z = *state += GOLDEN;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Uniform in 0 ... bound - 1. Numbers below 2^64 mod bound are drawn again: what remains is a
 * multiple of bound long, so that the remainder favours nobody. */
static uint64_t random_below(uint64_t *state, uint64_t bound)
{
    const uint64_t surplus = (0 - bound) % bound;
    uint64_t r = shuffle_random(state);
    while (r < surplus) r = shuffle_random(state);
    return r % bound;
}

void shuffle(int64_t *order, int64_t n, uint64_t seed, int64_t epoch)
{
    uint64_t start = seed + GOLDEN * (uint64_t)epoch; /* as if epoch numbers had been drawn */
    uint64_t state = shuffle_random(&start);
    for (int64_t i = 0; i < n; i++) order[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        const int64_t j = (int64_t)random_below(&state, (uint64_t)i + 1);
        const int64_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}
