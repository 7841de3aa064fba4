/* SPDX-License-Identifier: MIT */
/* Key-value caches: two tensors with room, of which slices are filled and shown. */
#include <attocl/kv_cache.h>

#include <inttypes.h>
#include <string.h>

#include "alloc.h"
#include "layers/checks.h"
#include "train/tape.h"

#define POSITIONS 2 /* the dimension that grows */

struct atto_kv_cache {
    atto_device *dev; /* holds a reference */
    atto_tensor k, v; /* [batch, heads, capacity, dims] */
    int64_t length;
};

static atto_status check_sizes(atto_dtype dtype, const atto_kv_cache_sizes *s)
{
    ATTO_TRY(atto__reserved_check("kv_cache_create: sizes", s->reserved));
    ATTO_REQUIRE(atto__is_float(dtype), ATTO_E_DTYPE,
                 "kv_cache_create: dtype is %s, expected f32, f16 or bf16", atto_dtype_name(dtype));
    const struct {
        const char *name;
        int64_t size;
    } sizes[] = { { "batch", s->batch },
                  { "heads", s->heads },
                  { "capacity", s->capacity },
                  { "dims", s->dims },
                  { "value_dims", s->value_dims } };
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        ATTO_REQUIRE(sizes[i].size >= 0, ATTO_E_SHAPE,
                     "kv_cache_create: %s is %" PRId64 ", expected 0 or more", sizes[i].name,
                     sizes[i].size);
    return ATTO_OK;
}

static atto_status take_memory(atto_kv_cache *c, atto_dtype dtype, const atto_kv_cache_sizes *s)
{
    const int64_t values = s->value_dims > 0 ? s->value_dims : s->dims;
    const atto_shape k = atto_shape4(s->batch, s->heads, s->capacity, s->dims);
    const atto_shape v = atto_shape4(s->batch, s->heads, s->capacity, values);
    ATTO_TRY(atto_tensor_alloc(c->dev, dtype, k, &c->k));
    return atto_tensor_alloc(c->dev, dtype, v, &c->v);
}

atto_status atto_kv_cache_create(atto_device *dev, atto_dtype dtype,
                                 const atto_kv_cache_sizes *sizes, atto_kv_cache **out)
{
    ATTO_REQUIRE(out, ATTO_E_NULL, "kv_cache_create: out is NULL");
    *out = NULL;
    ATTO_REQUIRE(dev && sizes, ATTO_E_NULL, "kv_cache_create: %s is NULL", dev ? "sizes" : "dev");
    ATTO_TRY(check_sizes(dtype, sizes));
    atto_kv_cache *c = atto__alloc(sizeof *c);
    ATTO_REQUIRE(c, ATTO_E_MEMORY, "kv_cache_create: out of host memory");
    c->dev = dev;
    atto__device_retain(dev);
    const atto_status status = take_memory(c, dtype, sizes);
    if (status != ATTO_OK) {
        atto_kv_cache_free(c);
        return atto__fail_in(status, "kv_cache_create: ");
    }
    *out = c;
    return ATTO_OK;
}

void atto_kv_cache_free(atto_kv_cache *cache)
{
    if (!cache) return;
    atto_tensor_free(&cache->k);
    atto_tensor_free(&cache->v);
    atto__device_release(cache->dev);
    atto__free(cache);
}

int64_t atto_kv_cache_length(const atto_kv_cache *cache)
{
    return cache ? cache->length : 0;
}

atto_status atto_kv_cache_truncate(atto_kv_cache *cache, int64_t length)
{
    ATTO_REQUIRE(cache, ATTO_E_NULL, "kv_cache_truncate: cache is NULL");
    ATTO_REQUIRE(length >= 0 && length <= cache->length, ATTO_E_ARGUMENT,
                 "kv_cache_truncate: length is %" PRId64 ", expected 0 to %" PRId64, length,
                 cache->length);
    cache->length = length;
    return ATTO_OK;
}

/* ---- append ---- */

/* As many new positions as count, everything else as the cache has it. */
static atto_status check_part(const char *name, const atto_tensor *t, const atto_tensor *room,
                              int64_t count)
{
    char got[ATTO_SHAPE_TEXT], wanted[ATTO_SHAPE_TEXT];
    atto_tensor like = *room;
    like.shape[POSITIONS] = count;
    ATTO_REQUIRE(atto__is_float(t->dtype), ATTO_E_DTYPE,
                 "kv_cache_append: %s is %s, expected f32, f16 or bf16", name,
                 atto_dtype_name(t->dtype));
    ATTO_REQUIRE(atto__shape_same(t, &like), ATTO_E_SHAPE, "kv_cache_append: %s is %s, expected %s",
                 name, atto__shape_text(t, got), atto__shape_text(&like, wanted));
    return ATTO_OK;
}

static atto_status check_append(const atto_kv_cache *c, const atto_tape *tape, const atto_tensor *k,
                                const atto_tensor *v)
{
    ATTO_REQUIRE(c, ATTO_E_NULL, "kv_cache_append: cache is NULL");
    ATTO_REQUIRE(c->dev == tape->dev, ATTO_E_DEVICE,
                 "kv_cache_append: the cache lives on another device than the tape");
    const int64_t count = k->rank == 4 ? k->shape[POSITIONS] : 1; /* any number would fit */
    ATTO_TRY(check_part("k", k, &c->k, count));
    ATTO_TRY(check_part("v", v, &c->v, count));
    ATTO_REQUIRE(count <= c->k.shape[POSITIONS] - c->length, ATTO_E_STATE,
                 "kv_cache_append: %" PRId64 " positions more than the %" PRId64
                 " filled exceed the capacity of %" PRId64,
                 count, c->length, c->k.shape[POSITIONS]);
    return ATTO_OK;
}

static atto_status copy_part(const atto_tensor *room, const atto_tensor *part, int64_t from)
{
    atto_tensor place;
    ATTO_TRY(atto_tensor_slice(room, POSITIONS, from, from + part->shape[POSITIONS], 1, &place));
    return atto_tensor_copy(&place, part);
}

static atto_status append(atto_kv_cache *c, const atto_tape *tape, const atto_tensor *k,
                          const atto_tensor *v)
{
    ATTO_TRY(check_append(c, tape, k, v));
    ATTO_TRY(copy_part(&c->k, k, c->length));
    ATTO_TRY(copy_part(&c->v, v, c->length));
    c->length += k->shape[POSITIONS];
    return ATTO_OK;
}

static atto_var filled(const atto_kv_cache *c, atto_tape *tape, const atto_tensor *room)
{
    atto_tensor part;
    const atto_status status = atto_tensor_slice(room, POSITIONS, 0, c->length, 1, &part);
    return atto__tape_fail(tape, status) == ATTO_OK ? atto_borrow(tape, &part, false)
                                                    : atto__no_var();
}

void atto_kv_cache_append(atto_kv_cache *cache, atto_tape *tape, atto_var k, atto_var v,
                          atto_var *all_k, atto_var *all_v)
{
    if (all_k) *all_k = atto__no_var();
    if (all_v) *all_v = atto__no_var();
    const atto_tensor *keys = atto__tape_tensor(tape, "kv_cache_append", k);
    const atto_tensor *values = keys ? atto__tape_tensor(tape, "kv_cache_append", v) : NULL;
    if (!values || atto__tape_fail(tape, append(cache, tape, keys, values)) != ATTO_OK) return;
    if (all_k) *all_k = filled(cache, tape, &cache->k);
    if (all_v) *all_v = filled(cache, tape, &cache->v);
}
