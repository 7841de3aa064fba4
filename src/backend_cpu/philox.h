/* SPDX-License-Identifier: MIT */
/* Philox4x32-10 over consecutive counters, a vector of counters at a time.
 *
 * One text for 4, 8 and 16 lanes. Compilers do not find the 32x32->64 multiply of the even lanes by
 * themselves (the plain loop over attom_philox runs at a tenth of the speed), so that is the one
 * line that differs by level. */
#ifndef ATTO_CPU_PHILOX_H
#define ATTO_CPU_PHILOX_H

#include "atto_math.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define PHILOX_LANES 16
#elif defined(__AVX2__)
#define PHILOX_LANES 8
#else
#define PHILOX_LANES 4
#endif

typedef uint32_t philox_u32 __attribute__((vector_size(4 * PHILOX_LANES)));
typedef uint64_t philox_u64 __attribute__((vector_size(4 * PHILOX_LANES)));

/* The low 32 bits of each 64-bit lane times m. */
ATTO_INLINE philox_u64 multiply_even(philox_u64 a, uint32_t m)
{
#if defined(__AVX512F__)
    return (philox_u64)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi32((int)m));
#elif defined(__AVX2__)
    return (philox_u64)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi32((int)m));
#elif defined(__SSE2__)
    return (philox_u64)_mm_mul_epu32((__m128i)a, _mm_set1_epi32((int)m));
#else
    return (a & 0xffffffffu) * m;
#endif
}

/* All lanes times m: low and high halves of the products. */
ATTO_INLINE void multiply_wide(philox_u32 a, uint32_t m, philox_u32 *low, philox_u32 *high)
{
    const philox_u64 even = multiply_even((philox_u64)a, m);
    const philox_u64 odd = multiply_even((philox_u64)a >> 32, m);
    const uint64_t lower = 0xffffffffu;
    *low = (philox_u32)((even & lower) | (odd << 32));
    *high = (philox_u32)((even >> 32) | (odd & ~lower));
}

/* Lanes of a and b by number, those of b from PHILOX_LANES on. */
#ifdef __clang__
#define PHILOX_PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PHILOX_PICK(a, b, ...) __builtin_shuffle(a, b, (philox_u32){ __VA_ARGS__ })
#endif

/* a0 b0 a1 b1 ...: the first half of both. */
ATTO_INLINE philox_u32 zip_low(philox_u32 a, philox_u32 b)
{
#if PHILOX_LANES == 16
    return PHILOX_PICK(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#elif PHILOX_LANES == 8
    return PHILOX_PICK(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
    return PHILOX_PICK(a, b, 0, 4, 1, 5);
#endif
}

/* The second half of both. */
ATTO_INLINE philox_u32 zip_high(philox_u32 a, philox_u32 b)
{
#if PHILOX_LANES == 16
    return PHILOX_PICK(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif PHILOX_LANES == 8
    return PHILOX_PICK(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    return PHILOX_PICK(a, b, 2, 6, 3, 7);
#endif
}

/* Words of the PHILOX_LANES counters that start at counter, in the order of the counters: 4 *
 * PHILOX_LANES words. */
ATTO_INLINE void philox_vector(uint64_t counter, uint64_t seed, uint32_t *words)
{
    philox_u32 c0, c1;
    for (int32_t lane = 0; lane < PHILOX_LANES; lane++) {
        c0[lane] = (uint32_t)(counter + (uint64_t)lane);
        c1[lane] = (uint32_t)((counter + (uint64_t)lane) >> 32);
    }
    philox_u32 c2 = c0 ^ c0, c3 = c2;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int32_t round = 0; round < 10; round++) {
        philox_u32 low0, high0, low1, high1;
        multiply_wide(c0, 0xD2511F53u, &low0, &high0);
        multiply_wide(c2, 0xCD9E8D57u, &low1, &high1);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const philox_u32 even0 = zip_low(c0, c2), even1 = zip_high(c0, c2);
    const philox_u32 odd0 = zip_low(c1, c3), odd1 = zip_high(c1, c3);
    const philox_u32 out[4] = { zip_low(even0, odd0), zip_high(even0, odd0), zip_low(even1, odd1),
                                zip_high(even1, odd1) };
    memcpy(words, out, sizeof out);
}

#endif
