/* SPDX-License-Identifier: MIT */
/* The loop shapes of the CPU backend, and the load and store at the two ends of a block.
 *
 * An elementwise op is a function of one block: up to ATTO_BLOCK elements along the innermost
 * merged dimension, loaded to float, computed, stored. Blocks are cut by shape alone, so who
 * computes them never changes a bit of the result. */
#ifndef ATTO_LOOPS_H
#define ATTO_LOOPS_H

#include "atto_math.h"
#include "backend_cpu/level.h"
#include "backend_cpu/parallel.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

/* Floats per block: three of them with their sources stay in a 32 KiB first-level cache. */
#define ATTO_BLOCK 1024

/* Below this many elements starting threads costs more than it saves. */
#define ATTO_SERIAL_BELOW 32768

/* Where a block starts, in merged coordinates, and how long it is. */
typedef struct block_at {
    int64_t coordinate[ATTO_MERGED_RANK];
    int32_t n;
    const struct turned_tile *tile; /* turned.h; NULL: none */
} block_at;

typedef void (*block_fn)(const void *job, const block_at *at);

/* Coordinates of block number unit. The innermost dimension holds per_row blocks. */
static inline block_at locate_block(const atto__layout *l, int64_t per_row, int64_t unit)
{
    block_at at = { .n = 1 };
    if (l->rank == 0) return at;
    const int32_t last = l->rank - 1;
    const int64_t start = unit % per_row * ATTO_BLOCK;
    const int64_t left = l->shape[last] - start;
    at.n = (int32_t)(left < ATTO_BLOCK ? left : ATTO_BLOCK);
    at.coordinate[last] = start;
    int64_t row = unit / per_row;
    for (int32_t d = last - 1; d >= 0; d--) {
        at.coordinate[d] = row % l->shape[d];
        row /= l->shape[d];
    }
    return at;
}

/* Behind a thread's last store past the caches (stream.h), before others may read. */
ATTO_INLINE void end_stream(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

typedef struct block_walk {
    const atto__layout *layout;
    int64_t per_row;
    block_fn body;
    const void *job;
} block_walk;

static inline void walk_blocks(const void *walk_, int64_t begin, int64_t end)
{
    const block_walk *walk = walk_;
    for (int64_t unit = begin; unit < end; unit++) {
        const block_at at = locate_block(walk->layout, walk->per_row, unit);
        walk->body(walk->job, &at);
    }
    end_stream();
}

/* Runs body over every block of the walk, blocks shared out to threads. */
static inline atto_status for_each_block(atto_device *dev, const atto__layout *l, block_fn body,
                                         const void *job)
{
    const int64_t inner = l->rank > 0 ? l->shape[l->rank - 1] : 1;
    const int64_t per_row = (inner + ATTO_BLOCK - 1) / ATTO_BLOCK;
    const int64_t units = l->numel / inner * per_row;
    const int32_t threads = l->numel < ATTO_SERIAL_BELOW ? 1 : atto__cpu_threads(dev);
    const block_walk walk = { l, per_row, body, job };
    dev->stats.launches++;
    atto__parallel_for(threads, units, walk_blocks, &walk);
    return ATTO_OK;
}

/* A tensor's elements of one block. */
typedef struct span {
    void *first;
    int64_t stride; /* in elements */
    int32_t n;
    atto_dtype dtype;
} span;

static inline span span_of(const atto_tensor *t, const block_at *at)
{
    int64_t offset = t->offset;
    for (int32_t d = 0; d < t->rank; d++) offset += at->coordinate[d] * t->stride[d];
    char *memory = atto__memory(t);
    const int64_t stride = t->rank > 0 ? t->stride[t->rank - 1] : 1;
    return (span){ memory + offset * (int64_t)atto_dtype_size(t->dtype), stride, at->n, t->dtype };
}

static inline int64_t logical_index(const atto__layout *l, const block_at *at)
{
    int64_t index = 0;
    for (int32_t d = 0; d < l->rank; d++) index += at->coordinate[d] * l->index_stride[d];
    return index;
}

static inline int64_t inner_index_stride(const atto__layout *l)
{
    return l->rank > 0 ? l->index_stride[l->rank - 1] : 1;
}

/* ---- load: storage to float. Unit strides are separate loops because only they vectorise. ---- */

static inline void load_f32(const float *from, int64_t stride, float *to, int32_t n)
{
    for (int32_t i = 0; i < n; i++) to[i] = from[i * stride];
}

static inline void load_f16(const uint16_t *from, int64_t stride, float *to, int32_t n)
{
    if (stride == 1) {
        ATTO_SIMD
        for (int32_t i = 0; i < n; i++) to[i] = attom_f16_to_f32(from[i]);
    } else {
        for (int32_t i = 0; i < n; i++) to[i] = attom_f16_to_f32(from[i * stride]);
    }
}

static inline void load_bf16(const uint16_t *from, int64_t stride, float *to, int32_t n)
{
    if (stride == 1) {
        ATTO_SIMD
        for (int32_t i = 0; i < n; i++) to[i] = attom_bf16_to_f32(from[i]);
    } else {
        for (int32_t i = 0; i < n; i++) to[i] = attom_bf16_to_f32(from[i * stride]);
    }
}

/* The block as floats: in place when it is dense f32, else converted into buffer. */
static inline const float *load_block(span r, float *buffer)
{
    if (r.dtype == ATTO_F32 && r.stride == 1) return r.first;
    if (r.dtype == ATTO_F32) load_f32(r.first, r.stride, buffer, r.n);
    if (r.dtype == ATTO_F16) load_f16(r.first, r.stride, buffer, r.n);
    if (r.dtype == ATTO_BF16) load_bf16(r.first, r.stride, buffer, r.n);
    return buffer;
}

/* ---- store: float to storage ---- */

static inline void store_f32(const float *from, float *to, int64_t stride, int32_t n)
{
    for (int32_t i = 0; i < n; i++) to[i * stride] = from[i];
}

static inline void store_f16(const float *from, uint16_t *to, int64_t stride, int32_t n)
{
    if (stride == 1) {
        ATTO_SIMD
        for (int32_t i = 0; i < n; i++) to[i] = attom_f32_to_f16(from[i]);
    } else {
        for (int32_t i = 0; i < n; i++) to[i * stride] = attom_f32_to_f16(from[i]);
    }
}

static inline void store_bf16(const float *from, uint16_t *to, int64_t stride, int32_t n)
{
    if (stride == 1) {
        ATTO_SIMD
        for (int32_t i = 0; i < n; i++) to[i] = attom_f32_to_bf16(from[i]);
    } else {
        for (int32_t i = 0; i < n; i++) to[i * stride] = attom_f32_to_bf16(from[i]);
    }
}

/* Where results go before store_block: the tensor itself when it is dense f32, else buffer. */
static inline float *store_target(span r, float *buffer)
{
    return r.dtype == ATTO_F32 && r.stride == 1 ? r.first : buffer;
}

static inline void store_block(const float *from, span r)
{
    if (from == r.first) return;
    if (r.dtype == ATTO_F32) store_f32(from, r.first, r.stride, r.n);
    if (r.dtype == ATTO_F16) store_f16(from, r.first, r.stride, r.n);
    if (r.dtype == ATTO_BF16) store_bf16(from, r.first, r.stride, r.n);
}

/* Adds the block's present values to the results: what add_<gradient> asks for. */
static inline void accumulate_block(float *results, span r, float *buffer)
{
    const float *present = load_block(r, buffer);
    for (int32_t i = 0; i < r.n; i++) results[i] += present[i];
}

#endif
