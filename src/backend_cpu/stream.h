/* SPDX-License-Identifier: MIT */
/* Results that are too large for the caches: stores that pass them by, and loads that are asked for
 * while the row before is computed. A core has little memory parallelism of its own. */
#ifndef ATTO_CPU_STREAM_H
#define ATTO_CPU_STREAM_H

#include "backend_cpu/loops.h"
#include "backend_cpu/vec.h"

/* Outputs of so many bytes are streamed; smaller ones may be wanted in the cache. */
#define ATTO_STREAM_FROM ((int64_t)16 << 20)

static inline bool streams_to(const atto_tensor *t)
{
    return t->dtype == ATTO_F32 && atto_tensor_numel(t) >= ATTO_STREAM_FROM / 4;
}

/* Stores to memory that is aligned to a vector. */
ATTO_INLINE void vec_stream(float *to, vec v)
{
#if VEC_LANES == 16
    _mm512_stream_ps(to, (__m512)v);
#elif VEC_LANES == 8
    _mm256_stream_ps(to, (__m256)v);
#elif defined(__SSE2__)
    _mm_stream_ps(to, (__m128)v);
#else
    vec_store(to, v);
#endif
}

/* Copies a block of results to f32 memory that nobody reads soon. */
static inline void stream_block(const float *from, float *to, int32_t n)
{
    int32_t i = 0;
    for (; i < n && (uintptr_t)(to + i) % (4 * VEC_LANES) != 0; i++) to[i] = from[i];
    for (; i + VEC_LANES <= n; i += VEC_LANES) vec_stream(to + i, vec_load(from + i));
    for (; i < n; i++) to[i] = from[i];
}

/* Results to where they belong, past the caches or not. */
static inline void put_block(const float *values, span to, bool past_cache)
{
    if (past_cache)
        stream_block(values, to.first, to.n);
    else
        store_block(values, to);
}

/* Asks for a block that is dense. It need not exist. */
static inline void prefetch_block(span s)
{
    const int32_t line = s.dtype == ATTO_F32 ? 16 : 32;
    for (int32_t i = 0; i < s.n; i += line) vec_prefetch_as(s.first, i, s.dtype);
}

/* Loops over a block go chunk by chunk, and between chunks ask for the block behind it. */
#define ATTO_CHUNK 256

/* Asks for a chunk of the blocks behind x and t; what stands behind a buffer does no harm. Returns
 * the chunk's end. */
ATTO_INLINE int32_t ask_ahead(const float *x, const float *t, int32_t first, int32_t n)
{
    for (int32_t i = first; i < first + ATTO_CHUNK; i += 16) {
        vec_prefetch_as(x, i + ATTO_BLOCK, ATTO_F32);
        vec_prefetch_as(t, i + ATTO_BLOCK, ATTO_F32);
    }
    return first + ATTO_CHUNK < n ? first + ATTO_CHUNK : n;
}

#endif
