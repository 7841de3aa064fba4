/* SPDX-License-Identifier: MIT */
/* Philox4x32-10 over consecutive counters, a vector of counters at a time.
 *
 * One text for 4, 8 and 16 lanes. Compilers do not find the 32x32->64 multiply of the even lanes by
 * themselves (the plain loop over attom_philox runs at a tenth of the speed), so that is the one
 * line that differs by level. */
#ifndef ATTO_CPU_PHILOX_H
#define ATTO_CPU_PHILOX_H

#include "backend_cpu/vec.h"

/* The low 32 bits of each 64-bit lane times m. */
ATTO_INLINE vec_u64 multiply_even(vec_u64 a, uint32_t m)
{
#if defined(__AVX512F__)
    return (vec_u64)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi32((int)m));
#elif defined(__AVX2__)
    return (vec_u64)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi32((int)m));
#elif defined(__SSE2__)
    return (vec_u64)_mm_mul_epu32((__m128i)a, _mm_set1_epi32((int)m));
#else
    return (a & 0xffffffffu) * m;
#endif
}

/* All lanes times m: low and high halves of the products. */
ATTO_INLINE void multiply_wide(vec_u32 a, uint32_t m, vec_u32 *low, vec_u32 *high)
{
    const vec_u64 even = multiply_even((vec_u64)a, m);
    const vec_u64 odd = multiply_even((vec_u64)a >> 32, m);
    const uint64_t lower = 0xffffffffu;
    *low = (vec_u32)((even & lower) | (odd << 32));
    *high = (vec_u32)((even >> 32) | (odd & ~lower));
}

/* Words of the VEC_LANES counters that start at counter, in the order of the counters: 4 *
 * VEC_LANES words. */
ATTO_INLINE void philox_vector(uint64_t counter, uint64_t seed, uint32_t *words)
{
    vec_u32 c0, c1;
    for (int32_t lane = 0; lane < VEC_LANES; lane++) {
        c0[lane] = (uint32_t)(counter + (uint64_t)lane);
        c1[lane] = (uint32_t)((counter + (uint64_t)lane) >> 32);
    }
    vec_u32 c2 = c0 ^ c0, c3 = c2;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int32_t round = 0; round < 10; round++) {
        vec_u32 low0, high0, low1, high1;
        multiply_wide(c0, 0xD2511F53u, &low0, &high0);
        multiply_wide(c2, 0xCD9E8D57u, &low1, &high1);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const vec_u32 even0 = vec_zip_low(c0, c2), even1 = vec_zip_high(c0, c2);
    const vec_u32 odd0 = vec_zip_low(c1, c3), odd1 = vec_zip_high(c1, c3);
    const vec_u32 out[4] = { vec_zip_low(even0, odd0), vec_zip_high(even0, odd0),
                             vec_zip_low(even1, odd1), vec_zip_high(even1, odd1) };
    memcpy(words, out, sizeof out);
}

#endif
