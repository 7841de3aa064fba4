/* SPDX-License-Identifier: MIT */
/* Vectors of floats and of 32-bit words, as wide as the level's registers: one text for 4, 8 and 16
 * lanes. Everything is inlined: a shared copy of a function could be the one of a higher level. */
#ifndef ATTO_CPU_VEC_H
#define ATTO_CPU_VEC_H

#include <attocl/tensor.h>

#include "atto_math.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VEC_LANES 16
#elif defined(__AVX2__)
#define VEC_LANES 8
#else
#define VEC_LANES 4
#endif

typedef float vec __attribute__((vector_size(4 * VEC_LANES)));
typedef uint32_t vec_u32 __attribute__((vector_size(4 * VEC_LANES)));
typedef uint64_t vec_u64 __attribute__((vector_size(4 * VEC_LANES)));
typedef uint16_t vec_half __attribute__((vector_size(2 * VEC_LANES)));

/* The same in memory that is aligned to an element only. */
typedef float vec_memory __attribute__((vector_size(4 * VEC_LANES), aligned(4), may_alias));
typedef uint16_t vec_half_memory __attribute__((vector_size(2 * VEC_LANES), aligned(2), may_alias));

/* The next loop has a small constant trip count and is to disappear: arrays of vectors live in
 * registers only if every index is a constant. */
#ifdef __clang__
#define VEC_UNROLL _Pragma("clang loop unroll(full)")
#else
#define VEC_UNROLL _Pragma("GCC unroll 16")
#endif

ATTO_INLINE vec vec_load(const float *from)
{
    return *(const vec_memory *)from;
}

ATTO_INLINE void vec_store(float *to, vec v)
{
    *(vec_memory *)to = v;
}

/* Those lanes whose bits are set, and zeros. Nothing is read for the others. */
ATTO_INLINE vec vec_load_some(const float *from, uint32_t bits)
{
#if VEC_LANES == 16
    return (vec)_mm512_maskz_loadu_ps((__mmask16)bits, from);
#else
    if (bits == (1u << VEC_LANES) - 1) return vec_load(from);
    vec v = { 0 };
    for (int32_t i = 0; bits != 0; i++, bits >>= 1)
        if (bits & 1) v[i] = from[i];
    return v;
#endif
}

/* x in every lane. x - 0 is x for every x, so compilers make a broadcast of it; x + 0 is not. */
ATTO_INLINE vec vec_all(float x)
{
    return x - (vec){ 0 };
}

/* ---- storage to float, VEC_LANES elements from an index on ---- */

ATTO_INLINE vec_half vec_half_load(const void *from, int64_t at)
{
    return *(const vec_half_memory *)((const uint16_t *)from + at);
}

ATTO_INLINE vec vec_from_bf16(vec_half h)
{
    return (vec)(__builtin_convertvector(h, vec_u32) << 16);
}

/* attom_f16_to_f32 by lanes where there is no instruction for it. */
ATTO_INLINE vec vec_from_f16(vec_half h)
{
#if defined(__AVX512F__)
    return (vec)_mm512_cvtph_ps((__m256i)h);
#elif VEC_LANES == 8 && defined(__F16C__)
    return (vec)_mm256_cvtph_ps((__m128i)h);
#else
    const vec_u32 wide = __builtin_convertvector(h, vec_u32);
    const vec_u32 magnitude = (wide & 0x7fffu) << 13, sign = (wide & 0x8000u) << 16;
    const vec_u32 is_small = (vec_u32)(magnitude < (1u << 23));
    const vec_u32 is_special = (vec_u32)(magnitude >= (31u << 23));
    const vec least = (vec)((magnitude & 0u) + (113u << 23));
    const vec_u32 small = (vec_u32)((vec)(magnitude + (113u << 23)) - least);
    const vec_u32 normal = magnitude + (112u << 23) + (is_special & (112u << 23));
    return (vec)((small & is_small) | (normal & ~is_small) | sign);
#endif
}

ATTO_INLINE vec vec_load_as(const void *from, int64_t at, atto_dtype dtype)
{
    if (dtype == ATTO_F16) return vec_from_f16(vec_half_load(from, at));
    if (dtype == ATTO_BF16) return vec_from_bf16(vec_half_load(from, at));
    return vec_load((const float *)from + at);
}

ATTO_INLINE float vec_one_as(const void *from, int64_t at, atto_dtype dtype)
{
    if (dtype == ATTO_F16) return attom_f16_to_f32(((const uint16_t *)from)[at]);
    if (dtype == ATTO_BF16) return attom_bf16_to_f32(((const uint16_t *)from)[at]);
    return ((const float *)from)[at];
}

/* Asks for an element that will be loaded soon. It need not exist. */
ATTO_INLINE void vec_prefetch_as(const void *from, int64_t at, atto_dtype dtype)
{
    const uintptr_t bytes = dtype == ATTO_F32 ? 4 : 2;
    __builtin_prefetch((const void *)((uintptr_t)from + (uintptr_t)at * bytes));
}

/* ---- moving lanes ---- */

/* Lanes of a and b by number, those of b from VEC_LANES on. */
#ifdef __clang__
#define VEC_PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define VEC_PICK(a, b, ...) __builtin_shuffle(a, b, (vec_u32){ __VA_ARGS__ })
#endif

/* a0 b0 a1 b1 ...: the first half of both. */
ATTO_INLINE vec_u32 vec_zip_low(vec_u32 a, vec_u32 b)
{
#if VEC_LANES == 16
    return VEC_PICK(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#elif VEC_LANES == 8
    return VEC_PICK(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
    return VEC_PICK(a, b, 0, 4, 1, 5);
#endif
}

/* The second half of both. */
ATTO_INLINE vec_u32 vec_zip_high(vec_u32 a, vec_u32 b)
{
#if VEC_LANES == 16
    return VEC_PICK(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif VEC_LANES == 8
    return VEC_PICK(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    return VEC_PICK(a, b, 2, 6, 3, 7);
#endif
}

/* Every other lane of a and b, from the first one on; from the second one on. */
ATTO_INLINE vec vec_even(vec a, vec b)
{
#if VEC_LANES == 16
    return VEC_PICK(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
#elif VEC_LANES == 8
    return VEC_PICK(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
#else
    return VEC_PICK(a, b, 0, 2, 4, 6);
#endif
}

ATTO_INLINE vec vec_odd(vec a, vec b)
{
#if VEC_LANES == 16
    return VEC_PICK(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#elif VEC_LANES == 8
    return VEC_PICK(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#else
    return VEC_PICK(a, b, 1, 3, 5, 7);
#endif
}

/* One step of vec_transpose: row i meets row i + VEC_LANES / 2. */
ATTO_INLINE void vec_shuffle_rows(vec_u32 rows[VEC_LANES])
{
    vec_u32 out[VEC_LANES];
    VEC_UNROLL
    for (int32_t i = 0; i < VEC_LANES / 2; i++) {
        out[2 * i] = vec_zip_low(rows[i], rows[i + VEC_LANES / 2]);
        out[2 * i + 1] = vec_zip_high(rows[i], rows[i + VEC_LANES / 2]);
    }
    VEC_UNROLL
    for (int32_t i = 0; i < VEC_LANES; i++) rows[i] = out[i];
}

/* Element j of row i becomes element i of row j. A step moves the top bit of the row's number to
 * the bottom of the lane's; when all have moved, the two numbers have changed places. */
ATTO_INLINE void vec_transpose(vec_u32 rows[VEC_LANES])
{
    vec_shuffle_rows(rows);
    vec_shuffle_rows(rows);
#if VEC_LANES > 4
    vec_shuffle_rows(rows);
#endif
#if VEC_LANES > 8
    vec_shuffle_rows(rows);
#endif
}

/* Neighbours that so many lanes hold change places. */
#if VEC_LANES == 16
#define VEC_SWAP_8(v) VEC_PICK(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#define VEC_SWAP_4(v) VEC_PICK(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define VEC_SWAP_2(v) VEC_PICK(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define VEC_SWAP_1(v) VEC_PICK(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#elif VEC_LANES == 8
#define VEC_SWAP_4(v) VEC_PICK(v, v, 4, 5, 6, 7, 0, 1, 2, 3)
#define VEC_SWAP_2(v) VEC_PICK(v, v, 2, 3, 0, 1, 6, 7, 4, 5)
#define VEC_SWAP_1(v) VEC_PICK(v, v, 1, 0, 3, 2, 5, 4, 7, 6)
#else
#define VEC_SWAP_2(v) VEC_PICK(v, v, 2, 3, 0, 1)
#define VEC_SWAP_1(v) VEC_PICK(v, v, 1, 0, 3, 2)
#endif

/* a where the mask's bits are set, else b. */
ATTO_INLINE vec vec_choose(vec_u32 mask, vec a, vec b)
{
    return (vec)((mask & (vec_u32)a) | (~mask & (vec_u32)b));
}

/* The larger of two; b where they do not compare. Compilers do not see the instruction in the
 * choice. */
ATTO_INLINE vec vec_max(vec a, vec b)
{
#if VEC_LANES == 16
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif VEC_LANES == 8
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (vec)_mm_max_ps((__m128)a, (__m128)b);
#else
    return vec_choose((vec_u32)(a > b), a, b);
#endif
}

/* Sum of the lanes: halves are added to halves, always in this order. */
ATTO_INLINE float vec_sum(vec v)
{
#if VEC_LANES > 8
    v += VEC_SWAP_8(v);
#endif
#if VEC_LANES > 4
    v += VEC_SWAP_4(v);
#endif
    v += VEC_SWAP_2(v);
    v += VEC_SWAP_1(v);
    return v[0];
}

/* The largest lane. */
ATTO_INLINE float vec_top(vec v)
{
#if VEC_LANES > 8
    v = vec_max(v, VEC_SWAP_8(v));
#endif
#if VEC_LANES > 4
    v = vec_max(v, VEC_SWAP_4(v));
#endif
    v = vec_max(v, VEC_SWAP_2(v));
    v = vec_max(v, VEC_SWAP_1(v));
    return v[0];
}

#endif
