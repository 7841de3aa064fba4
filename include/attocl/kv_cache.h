/* SPDX-License-Identifier: MIT */
/* Keys and values of attention that grow token by token: what generating text needs beside a model. */
#ifndef ATTOCL_KV_CACHE_H
#define ATTOCL_KV_CACHE_H

#include <attocl/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Room for the keys and the values of one attention layer, [batch, heads, capacity, dims] each, of
 * which the first `length` positions are filled. It outlives steps of a tape and has no gradient.
 */
typedef struct atto_kv_cache atto_kv_cache;

/** Sizes of a cache. */
typedef struct atto_kv_cache_sizes {
    int64_t batch, heads; /**< heads of the keys, fewer than the queries' where those share them */
    int64_t capacity;     /**< positions at most */
    int64_t dims;         /**< of a key, and of a value */
    int64_t value_dims;   /**< of a value, if it has others; 0 = dims */
    uint64_t reserved[4]; /**< must be 0 */
} atto_kv_cache_sizes;

/** An empty cache. All memory is taken here. dtype is the one that attention will read: that of its q,
 * under autocast the tape's. ATTO_E_NULL, ATTO_E_DTYPE (not f32, f16 or bf16), ATTO_E_ARGUMENT (reserved
 * words), ATTO_E_SHAPE (a negative size), ATTO_E_MEMORY. */
ATTO_API atto_status atto_kv_cache_create(atto_device *dev, atto_dtype dtype,
                                          const atto_kv_cache_sizes *sizes, atto_kv_cache **out);

/** NULL is fine. */
ATTO_API void atto_kv_cache_free(atto_kv_cache *cache);

/** Positions that are filled. */
ATTO_API int64_t atto_kv_cache_length(const atto_kv_cache *cache);

/** Forgets positions from length on, 0 = all of them: another text, or a step back from a guess. Views
 * given before will show what is appended next: not between a forward and its backward.
 * ATTO_E_NULL, ATTO_E_ARGUMENT (length is not 0 to the present one). */
ATTO_API atto_status atto_kv_cache_truncate(atto_kv_cache *cache, int64_t length);

/**
 * Appends keys and values of new positions, and gives all there are.
 *
 * @param k         [batch, heads, L, dims], of any float dtype: converted as atto_tensor_copy does
 * @param v         [batch, heads, L, value_dims]
 * @param all_k     [batch, heads, length, dims], views of the cache without gradient, until the step
 *                  ends; NULL = not wanted
 * @param all_v     [batch, heads, length, value_dims], likewise
 *
 * Errors go to the tape, and nothing is appended: ATTO_E_NULL, ATTO_E_SHAPE, ATTO_E_DTYPE,
 * ATTO_E_DEVICE, ATTO_E_STATE (more than capacity).
 */
ATTO_API void atto_kv_cache_append(atto_kv_cache *cache, atto_tape *tape, atto_var k, atto_var v,
                                   atto_var *all_k, atto_var *all_v);

#ifdef __cplusplus
}
#endif

#endif
