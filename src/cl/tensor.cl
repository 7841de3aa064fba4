/* SPDX-License-Identifier: MIT */
/* tensor.cl - copies with conversion, and fills.
 *
 *   copy   dst = src, converted; sources may have stride 0
 *   fill   dst = a bit pattern
 *
 * Walks as in atto_kernel.h, except that a vector is ATTO_N elements, 16 bytes of the smaller of
 * the two types, so one side may move 32 or 64 bytes at a time.
 *
 *   -D         default  meaning
 *   ATTO_FROM  u32      storage of src: f32 f16 bf16 i32 i64; or u16 u32 u64 to move bits
 *   ATTO_TO    u32      storage of dst; u16 u32 u64 only together with the same ATTO_FROM
 *   and ATTO_INDEX, ATTO_WG, ATTO_ITEMS, ATTO_RUN, ATTO_VECTORS of atto_kernel.h
 */
#include "atto_kernel.h"

#ifndef ATTO_FROM
#define ATTO_FROM u32
#endif
#ifndef ATTO_TO
#define ATTO_TO u32
#endif

typedef int atto_i32;
typedef long atto_i64;
typedef ushort atto_u16;
typedef uint atto_u32;
typedef ulong atto_u64;
#define from_t ATTO_PASTE(atto_, ATTO_FROM)
#define to_t   ATTO_PASTE(atto_, ATTO_TO)

#define ATTO_BYTES_i32  4
#define ATTO_BYTES_i64  8
#define ATTO_BYTES_u16  2
#define ATTO_BYTES_u32  4
#define ATTO_BYTES_u64  8
#define ATTO_FROM_BYTES ATTO_PASTE(ATTO_BYTES_, ATTO_FROM)
#define ATTO_TO_BYTES   ATTO_PASTE(ATTO_BYTES_, ATTO_TO)
#if ATTO_FROM_BYTES < ATTO_TO_BYTES
#define ATTO_N (16 / ATTO_FROM_BYTES)
#else
#define ATTO_N (16 / ATTO_TO_BYTES)
#endif

#define ATTO_KIND_u16  0
#define ATTO_KIND_u32  0
#define ATTO_KIND_u64  0
#define ATTO_KIND_f32  1
#define ATTO_KIND_f16  1
#define ATTO_KIND_bf16 1
#define ATTO_KIND_i32  2
#define ATTO_KIND_i64  2
#define ATTO_FROM_KIND ATTO_PASTE(ATTO_KIND_, ATTO_FROM)
#define ATTO_TO_KIND   ATTO_PASTE(ATTO_KIND_, ATTO_TO)

/* ---- conversions ---- */

static inline int atto_float_to_i32(float v)
{
    if (isnan(v)) return 0;
    return v >= 2147483648.0f ? INT_MAX : v < -2147483648.0f ? INT_MIN : (int)v;
}

static inline long atto_float_to_i64(float v)
{
    if (isnan(v)) return 0;
    return v >= 9223372036854775808.0f   ? LONG_MAX
           : v < -9223372036854775808.0f ? LONG_MIN
                                         : (long)v;
}

static inline int atto_long_to_i32(long v)
{
    return v > INT_MAX ? INT_MAX : v < INT_MIN ? INT_MIN : (int)v;
}

static inline long atto_long_to_i64(long v)
{
    return v;
}

static inline float atto_long_to_f32(long v)
{
    return convert_float_rte(v);
}

/* Rounded to odd: the last bit remembers that something was cut, so that rounding once more, to a
 * type with fewer digits, is rounding v itself. */
static inline float atto_long_to_odd(long v)
{
    const float cut = convert_float_rtz(v);
    return as_float(as_uint(cut) | (convert_long_rtz(cut) != v));
}

static inline ushort atto_long_to_f16(long v)
{
    return atto_narrow_f16(atto_long_to_odd(v));
}

static inline ushort atto_long_to_bf16(long v)
{
    return atto_narrow_bf16(atto_long_to_odd(v));
}

static inline to_t convert_element(from_t v)
{
#if ATTO_FROM_KIND == 0
    return v;
#elif ATTO_FROM_KIND == 2
    return ATTO_PASTE(atto_long_to_, ATTO_TO)(v);
#elif ATTO_TO_KIND == 2
    return ATTO_PASTE(atto_float_to_, ATTO_TO)(ATTO_PASTE(atto_widen_, ATTO_FROM)(v));
#else
    return ATTO_PASTE(atto_narrow_, ATTO_TO)(ATTO_PASTE(atto_widen_, ATTO_FROM)(v));
#endif
}

/* ---- vectors of ATTO_N elements, in registers ---- */

/* The 16-byte vector type of a storage type, and its length. */
#define ATTO_LANES_f32  float4
#define ATTO_LANES_i32  int4
#define ATTO_LANES_u32  uint4
#define ATTO_LANES_f16  ushort8
#define ATTO_LANES_bf16 ushort8
#define ATTO_LANES_u16  ushort8
#define ATTO_LANES_i64  long2
#define ATTO_LANES_u64  ulong2
#define ATTO_COUNT_f32  4
#define ATTO_COUNT_i32  4
#define ATTO_COUNT_u32  4
#define ATTO_COUNT_f16  8
#define ATTO_COUNT_bf16 8
#define ATTO_COUNT_u16  8
#define ATTO_COUNT_i64  2
#define ATTO_COUNT_u64  2

#define ATTO_FROM_COUNT ATTO_PASTE(ATTO_COUNT_, ATTO_FROM)
#define ATTO_TO_COUNT   ATTO_PASTE(ATTO_COUNT_, ATTO_TO)
#define as_lanes        ATTO_PASTE(as_, ATTO_PASTE(ATTO_LANES_, ATTO_FROM))
#define to_lanes        ATTO_PASTE(ATTO_LANES_, ATTO_TO)
#define split_lanes     ATTO_PASTE(ATTO_SPLIT_, ATTO_FROM_COUNT)
#define join_lanes      ATTO_PASTE(ATTO_JOIN_, ATTO_TO_COUNT)

ATTO_UNROLLED void fetch_elements(__global const from_t *src, size_t at, from_t *element)
{
    __global const uint4 *words = (__global const uint4 *)(src + at);
#pragma unroll
    for (uint k = 0; k < ATTO_N; k += ATTO_FROM_COUNT)
        split_lanes(as_lanes(words[k / ATTO_FROM_COUNT]), element + k);
}

ATTO_UNROLLED void put_elements(__global to_t *dst, size_t at, const to_t *element)
{
    __global uint4 *words = (__global uint4 *)(dst + at);
#pragma unroll
    for (uint k = 0; k < ATTO_N; k += ATTO_TO_COUNT)
        words[k / ATTO_TO_COUNT] = as_uint4((to_lanes)(join_lanes(element + k)));
}

/* ATTO_N elements; both start at 16 bytes. */
ATTO_UNROLLED void copy_vector(__global const from_t *src, __global to_t *dst, size_t at)
{
    from_t in[ATTO_N];
    to_t out[ATTO_N];
    fetch_elements(src, at, in);
#pragma unroll
    for (uint k = 0; k < ATTO_N; k++) out[k] = convert_element(in[k]);
    put_elements(dst, at, out);
}

/* ---- kernels ---- */

#if !defined(ATTO_ONE_KERNEL) || (defined(ATTO_KERNEL_atto_copy) && !ATTO_STRIDED)
ATTO_KERNEL void atto_copy(__global const from_t *src, const ulong src_at, __global to_t *dst,
                           const ulong dst_at, const atto_index n)
{
    src += src_at;
    dst += dst_at;
    const atto_index vectors = n / ATTO_N;
    const atto_index first = atto_first_vector();
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++) {
        const atto_index at = first + j * ATTO_WG;
        if (at < vectors) copy_vector(src, dst, (size_t)at * ATTO_N);
    }

    const atto_index lane = get_global_id(0);
    const atto_index tail = vectors * ATTO_N + lane;
    if (lane < ATTO_N && tail < n) dst[tail] = convert_element(src[tail]);
}
#endif

#if !defined(ATTO_ONE_KERNEL) || (defined(ATTO_KERNEL_atto_copy) && ATTO_STRIDED)
ATTO_KERNEL void atto_copy_strided(__global const from_t *src, const ulong src_at,
                                   __global to_t *dst, const ulong dst_at, ATTO_WALK_PARAMETERS,
                                   const atto_index4 src_stride, const atto_index4 dst_stride)
{
    const atto_index t = get_global_id(0);
    if (t >= runs) return;
    const atto_index4 at = atto_walk(t, size, magic, shift);
    src += src_at + atto_dot(at, src_stride);
    dst += dst_at + atto_dot(at, dst_stride);
#if ATTO_VECTORS
    copy_vector(src, dst, 0);
#else
    *dst = convert_element(*src);
#endif
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_fill)
ATTO_KERNEL void atto_fill_strided(__global to_t *dst, const ulong dst_at, ATTO_WALK_PARAMETERS,
                                   const atto_index4 dst_stride, const ulong bits)
{
    const atto_index t = get_global_id(0);
    if (t >= runs) return;
    const atto_index4 at = atto_walk(t, size, magic, shift);
    dst += dst_at + atto_dot(at, dst_stride);
#if ATTO_VECTORS
    to_t out[ATTO_N];
#pragma unroll
    for (uint k = 0; k < ATTO_N; k++) out[k] = (to_t)bits;
    put_elements(dst, 0, out);
#else
    *dst = (to_t)bits;
#endif
}
#endif
