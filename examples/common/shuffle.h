/* SPDX-License-Identifier: MIT */
/* The order of an epoch: a permutation that depends on the seed and the epoch's number alone. */
#ifndef EXAMPLES_SHUFFLE_H
#define EXAMPLES_SHUFFLE_H

#include <stdint.h>

/* Next number of a stream of 64-bit numbers, splitmix64; *state is the seed at first.
 * Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", figure 17 */
uint64_t shuffle_random(uint64_t *state);

/* Fills order[n] with 0 ... n - 1 in an order drawn uniformly (Fisher and Yates), on every machine
 * the same for the same seed and epoch. Epoch e of a seed takes the stream that starts at the e-th
 * number of the seed's own stream, so that neighbouring seeds and epochs share nothing. */
void shuffle(int64_t *order, int64_t n, uint64_t seed, int64_t epoch);

#endif
