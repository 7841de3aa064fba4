/* SPDX-License-Identifier: MIT */
/* What every kernel starts from: storage types, 16-byte loads and stores, walks over strided
 * tensors.
 *
 *   -D               default  meaning
 *   ATTO_DTYPE       f32      storage of the tensors: f32, f16 or bf16; arithmetic is always float
 *   ATTO_INDEX       32       bits of an index; 32 when every relative offset is below 2^31
 *   ATTO_WG          256      work-items of a work-group, a power of two
 *   ATTO_GROUP       -        takes the place of ATTO_WG, which is the same for all kernels of a
 *                             device
 *   ATTO_ITEMS       2        dense kernels: vectors a work-item takes, ATTO_WG apart
 *   ATTO_RUN         ATTO_VEC elements of a work-item's array; strided kernels: along the innermost
 *                             dimension
 *   ATTO_VECTORS     1        1: those elements are one 16-byte vector; 0: they are moved one by
 *                             one
 *   ATTO_NVIDIA      -        compute capability times ten, on NVIDIA GPUs only
 *   ATTO_ONE_KERNEL  -        compile only the kernel whose ATTO_KERNEL_<name> is defined as well,
 *   ATTO_STRIDED     -        and of that one only the dense form (0) or the one for strides (1)
 *
 * A tensor is two arguments, its buffer and the view's first element (ulong).
 *
 * f16 and bf16 move as integers and are widened from a private copy: vload_half from global memory
 * reaches 0.37 of copy speed on an H200, vload_half8 0.26, this 1.00. cl_khr_fp16 is not needed. */
#ifndef ATTO_KERNEL_H
#define ATTO_KERNEL_H

#include "atto_math.h"

#ifndef ATTO_DTYPE
#define ATTO_DTYPE f32
#endif
#ifndef ATTO_INDEX
#define ATTO_INDEX 32
#endif
#ifndef ATTO_WG
#define ATTO_WG 256
#endif
#ifdef ATTO_GROUP
#undef ATTO_WG
#define ATTO_WG ATTO_GROUP
#endif
#ifndef ATTO_ITEMS
#define ATTO_ITEMS 2
#endif
#ifndef ATTO_RUN
#define ATTO_RUN ATTO_VEC
#endif
#ifndef ATTO_VECTORS
#define ATTO_VECTORS 1
#endif

/* ATTO_PASTE(attom_, ATTO_ACT) pastes after expanding. */
#define ATTO_PASTE_(a, b) a##b
#define ATTO_PASTE(a, b)  ATTO_PASTE_(a, b)

/* For functions that get an array. It stays in registers only if the loops over it unroll, which
 * needs them inlined and of constant length: a length as an argument is not enough (clang gives up
 * on the loop before it inlines, and the array goes to memory). */
#define ATTO_UNROLLED static inline __attribute__((always_inline))

/* The attribute of every kernel. */
#define ATTO_KERNEL __kernel __attribute__((reqd_work_group_size(ATTO_WG, 1, 1)))

/* ---- storage types ---- */

typedef float atto_f32;
typedef ushort atto_f16;
typedef ushort atto_bf16;
#define ATTO_T ATTO_PASTE(atto_, ATTO_DTYPE)

#define ATTO_BYTES_f32  4
#define ATTO_BYTES_f16  2
#define ATTO_BYTES_bf16 2
#define ATTO_VEC        (16 / ATTO_PASTE(ATTO_BYTES_, ATTO_DTYPE)) /* elements of 16 bytes */

static inline float atto_widen_f32(atto_f32 stored)
{
    return stored;
}

static inline float atto_widen_f16(atto_f16 stored)
{
    return vload_half(0, (const half *)&stored);
}

static inline float atto_widen_bf16(atto_bf16 stored)
{
    return attom_bf16_to_f32(stored);
}

static inline atto_f32 atto_narrow_f32(float value)
{
    return value;
}

/* To nearest, ties to even. */
static inline atto_f16 atto_narrow_f16(float value)
{
    atto_f16 stored;
    vstore_half_rte(value, 0, (half *)&stored);
    return stored;
}

static inline atto_bf16 atto_narrow_bf16(float value)
{
    return attom_f32_to_bf16(value);
}

#define atto_widen  ATTO_PASTE(atto_widen_, ATTO_DTYPE)
#define atto_narrow ATTO_PASTE(atto_narrow_, ATTO_DTYPE)

static inline float atto_load(__global const ATTO_T *p, size_t at)
{
    return atto_widen(p[at]);
}

static inline void atto_store(__global ATTO_T *p, size_t at, float value)
{
    p[at] = atto_narrow(value);
}

/* ---- 16 bytes, in registers ---- */

/* Vector to array and back. Not vloadn and vstoren: where those are real calls, the array would
 * have to be in memory. */
#define ATTO_SPLIT_2(vector, array) \
    do {                            \
        (array)[0] = (vector).s0;   \
        (array)[1] = (vector).s1;   \
    } while (0)
#define ATTO_SPLIT_4(vector, array)             \
    do {                                        \
        ATTO_SPLIT_2((vector).lo, array);       \
        ATTO_SPLIT_2((vector).hi, (array) + 2); \
    } while (0)
#define ATTO_SPLIT_8(vector, array)             \
    do {                                        \
        ATTO_SPLIT_4((vector).lo, array);       \
        ATTO_SPLIT_4((vector).hi, (array) + 4); \
    } while (0)
#define ATTO_JOIN_2(e) (e)[0], (e)[1]
#define ATTO_JOIN_4(e) ATTO_JOIN_2(e), ATTO_JOIN_2((e) + 2)
#define ATTO_JOIN_8(e) ATTO_JOIN_4(e), ATTO_JOIN_4((e) + 4)

ATTO_UNROLLED void atto_unpack_f32(uint4 raw, float *v)
{
    ATTO_SPLIT_4(as_float4(raw), v);
}

ATTO_UNROLLED uint4 atto_pack_f32(const float *v)
{
    return as_uint4((float4)(ATTO_JOIN_4(v)));
}

ATTO_UNROLLED void atto_unpack_f16(uint4 raw, float *v)
{
    const float8 wide = vload_half8(0, (const half *)&raw);
    ATTO_SPLIT_8(wide, v);
}

ATTO_UNROLLED uint4 atto_pack_f16(const float *v)
{
    uint4 raw;
    vstore_half8_rte((float8)(ATTO_JOIN_8(v)), 0, (half *)&raw);
    return raw;
}

/* The lower address is the lower half of a word. */
ATTO_UNROLLED void atto_unpack_bf16(uint4 raw, float *v)
{
    const float4 even = as_float4(raw << 16), odd = as_float4(raw & 0xffff0000u);
    v[0] = even.x;
    v[1] = odd.x;
    v[2] = even.y;
    v[3] = odd.y;
    v[4] = even.z;
    v[5] = odd.z;
    v[6] = even.w;
    v[7] = odd.w;
}

static inline uint atto_pack_pair_bf16(float even, float odd)
{
    /* One instruction instead of a dozen: bf16 GELU on an H200 0.70 -> 0.85 of copy speed. */
#if ATTO_NVIDIA >= 80
    uint pair;
    __asm__("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(odd), "f"(even));
    return pair;
#else
    return (uint)attom_f32_to_bf16(even) | ((uint)attom_f32_to_bf16(odd) << 16);
#endif
}

ATTO_UNROLLED uint4 atto_pack_bf16(const float *v)
{
    return (uint4)(atto_pack_pair_bf16(v[0], v[1]), atto_pack_pair_bf16(v[2], v[3]),
                   atto_pack_pair_bf16(v[4], v[5]), atto_pack_pair_bf16(v[6], v[7]));
}

#define atto_unpack ATTO_PASTE(atto_unpack_, ATTO_DTYPE)
#define atto_pack   ATTO_PASTE(atto_pack_, ATTO_DTYPE)

/* ---- a unit: a 16-byte vector, or without ATTO_VECTORS one element; as it is stored, which takes
 * half the registers where elements have 16 bits ---- */

#if ATTO_VECTORS
typedef uint4 atto_raw;
#else
typedef ATTO_T atto_raw;
#endif

/* at: the unit's first element */
static inline atto_raw atto_load_unit(__global const ATTO_T *p, size_t at)
{
#if ATTO_VECTORS
    return ((__global const uint4 *)p)[at / ATTO_VEC];
#else
    return p[at];
#endif
}

ATTO_UNROLLED void atto_widen_unit(atto_raw raw, float *v)
{
#if ATTO_VECTORS
    atto_unpack(raw, v);
#else
    v[0] = atto_widen(raw);
#endif
}

/* v += old, for gradients that accumulate. */
ATTO_UNROLLED void atto_add_run(float *v, const float *old)
{
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) v[k] += old[k];
}

/* ---- indices ---- */

#if ATTO_INDEX == 64
typedef ulong atto_index;
typedef ulong4 atto_index4;
#else
typedef uint atto_index;
typedef uint4 atto_index4;
#endif

/* ---- dense kernels ----
 *
 * A tensor starts at a multiple of 16 bytes; vector `at` is its elements from at * ATTO_VEC. Vector
 * v belongs to work-item v mod ATTO_WG of work-group v / (ATTO_WG * ATTO_ITEMS). The fewer than
 * ATTO_VEC elements behind the last vector go one each to the first work-items. */

static inline uint4 atto_fetch(__global const ATTO_T *p, size_t at)
{
    return ((__global const uint4 *)p)[at];
}

static inline void atto_put(__global ATTO_T *p, size_t at, uint4 raw)
{
    ((__global uint4 *)p)[at] = raw;
}

static inline atto_index atto_first_vector(void)
{
    return (atto_index)get_group_id(0) * (ATTO_WG * ATTO_ITEMS) + (atto_index)get_local_id(0);
}

/* The element behind the last vector that this work-item takes; n or more when there is none. */
static inline atto_index atto_tail_element(atto_index n)
{
    const atto_index lane = get_global_id(0);
    return lane < ATTO_VEC ? n / ATTO_VEC * ATTO_VEC + lane : n;
}

/* The vectors of one work-item, ATTO_WG apart from first; all are loaded before any is used. */
ATTO_UNROLLED void atto_fetch_items(__global const ATTO_T *p, atto_index first, atto_index vectors,
                                    uint4 *raw)
{
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++)
        if (first + j * ATTO_WG < vectors) raw[j] = atto_fetch(p, first + j * ATTO_WG);
}

/* ---- strided kernels ----
 *
 * Work-item t takes one run: ATTO_RUN elements along the innermost dimension, the last one of a row
 * perhaps fewer. Sizes and strides stand in a vector, innermost in .w; missing outer dimensions
 * have size 1, and size.w counts runs. */

/* runs = size.x * size.y * size.z * size.w; row = elements of the innermost dimension. */
#define ATTO_WALK_PARAMETERS                                                                \
    const atto_index runs, const atto_index row, const atto_index4 size, const uint4 magic, \
        const uint4 shift

/* n / d. For 32 bits, n < 2^31, by a product with 2^32 (2^shift - d) / d + 1, shift = ceil(log2 d).
 * Source: Granlund and Montgomery 1994, "Division by invariant integers using multiplication". */
static inline atto_index atto_divide(atto_index n, atto_index d, uint magic, uint shift)
{
#if ATTO_INDEX == 64
    return d == 1 ? n : n / d; /* the same branch for all work-items */
#else
    return (mul_hi(n, magic) + n) >> shift;
#endif
}

/* Coordinates of run t; .w is that of its first element. */
static inline atto_index4 atto_walk(atto_index t, atto_index4 size, uint4 magic, uint4 shift)
{
    atto_index4 at;
    const atto_index rows = atto_divide(t, size.w, magic.w, shift.w);
    at.w = (t - rows * size.w) * ATTO_RUN;
    const atto_index planes = atto_divide(rows, size.z, magic.z, shift.z);
    at.z = rows - planes * size.z;
    at.x = atto_divide(planes, size.y, magic.y, shift.y);
    at.y = planes - at.x * size.y;
    return at;
}

static inline atto_index atto_dot(atto_index4 at, atto_index4 stride)
{
    return at.x * stride.x + at.y * stride.y + at.z * stride.z + at.w * stride.w;
}

/* Element k of a run of count elements exists. */
#define ATTO_IN_RUN(k, count) (ATTO_RUN == 1 || (k) < (count))

/* Where vectors are loaded, one with step 0 is a single element. */
ATTO_UNROLLED void atto_load_run(__global const ATTO_T *p, atto_index at, atto_index step,
                                 atto_index count, float *v)
{
#if ATTO_VECTORS
    if (step == 0) { /* the same for all work-items */
        const float one = atto_load(p, at);
#pragma unroll
        for (uint k = 0; k < ATTO_RUN; k++) v[k] = one;
    } else {
        atto_unpack(atto_fetch(p, at / ATTO_VEC), v);
    }
#else
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++)
        v[k] = ATTO_IN_RUN(k, count) ? atto_load(p, at + k * step) : 0.0f;
#endif
}

ATTO_UNROLLED void atto_store_run(__global ATTO_T *p, atto_index at, atto_index step,
                                  atto_index count, const float *v)
{
#if ATTO_VECTORS
    atto_put(p, at / ATTO_VEC, atto_pack(v));
#else
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++)
        if (ATTO_IN_RUN(k, count)) atto_store(p, at + k * step, v[k]);
#endif
}

/* A unit of a gradient, v, or what stands there and v. */
ATTO_UNROLLED void atto_store_gradient(__global ATTO_T *out, atto_index at, float *v, uint add)
{
    float old[ATTO_RUN];
    if (add) {
        atto_widen_unit(atto_load_unit(out, at), old);
        atto_add_run(v, old);
    }
    atto_store_run(out, at, 1, ATTO_RUN, v);
}

#endif
