/* SPDX-License-Identifier: MIT */
/* The caching pool. */
#include "pool.h"

#include <inttypes.h>

#include "alloc.h"
#include "device.h"

#define SMALLEST 512 /* bytes */

/* Under AddressSanitizer, what a CPU's block has behind the bytes that were asked for, and all of an
 * unused block, may not be touched. */
#if defined(__SANITIZE_ADDRESS__)
#define POISONS 1
#elif defined(__has_feature)
#define POISONS __has_feature(address_sanitizer)
#else
#define POISONS 0
#endif

#if POISONS
#include <sanitizer/asan_interface.h>

static void poison_behind(const atto_device *dev, const atto__block *block, size_t bytes)
{
    if (dev->info.kind != ATTO_KIND_CPU) return;
    ASAN_UNPOISON_MEMORY_REGION(block->memory, bytes);
    ASAN_POISON_MEMORY_REGION((char *)block->memory + bytes, block->bytes - bytes);
}
#else
static void poison_behind(const atto_device *dev, const atto__block *block, size_t bytes)
{
    (void)dev, (void)block, (void)bytes;
}
#endif

/* Class of a block that is exactly as large as asked for, and goes back to the driver when freed:
 * a request near the device's largest allocation, which its class would exceed. */
#define EXACT (-1)

/* Size class of a request and the bytes of that class: eighths between powers of two. */
static int32_t size_class(size_t bytes, size_t *class_bytes)
{
    size_t power = SMALLEST;
    int32_t doublings = 0;
    while (power <= bytes / 2) {
        power *= 2;
        doublings++;
    }
    const size_t step = power / 8;
    size_t eighths = bytes <= power ? 0 : (bytes - power + step - 1) / step;
    *class_bytes = power + eighths * step;
    return doublings * 8 + (int32_t)eighths;
}

static void release(atto_device *dev, atto__block *block)
{
    poison_behind(dev, block, block->bytes);
    dev->vt->release(dev, block->memory);
    dev->stats.bytes_reserved -= block->bytes;
    atto__free(block);
}

void atto__pool_trim(atto_device *dev)
{
    for (int32_t c = 0; c < ATTO_POOL_CLASSES; c++) {
        while (dev->pool.free[c]) {
            atto__block *block = dev->pool.free[c];
            dev->pool.free[c] = block->next;
            release(dev, block);
        }
    }
}

/* Asks the backend, within the limit that options set. */
static atto_status allocate(atto_device *dev, size_t bytes, void **memory)
{
    const uint64_t limit = dev->options.set.max_memory_bytes;
    ATTO_REQUIRE(limit == 0 || (dev->stats.bytes_reserved <= limit &&
                                bytes <= limit - dev->stats.bytes_reserved),
                 ATTO_E_MEMORY,
                 "%zu bytes more than the %" PRIu64 " held would exceed the limit of %" PRIu64
                 " bytes set for this device",
                 bytes, dev->stats.bytes_reserved, limit);
    ATTO_TRY(dev->vt->alloc(dev, bytes, memory));
    dev->stats.allocations++;
    dev->stats.bytes_reserved += bytes;
    return ATTO_OK;
}

static atto_status new_block(atto_device *dev, size_t bytes, int32_t size_class_, atto__block **out)
{
    atto__block *block = atto__alloc(sizeof *block);
    ATTO_REQUIRE(block, ATTO_E_MEMORY, "out of host memory for a %zu-byte record", sizeof *block);
    block->bytes = bytes;
    block->size_class = size_class_;
    atto_status status = allocate(dev, bytes, &block->memory);
    if (status == ATTO_E_MEMORY) {
        atto__pool_trim(dev);
        status = allocate(dev, bytes, &block->memory);
    }
    if (status != ATTO_OK) {
        atto__free(block);
        return status;
    }
    *out = block;
    return ATTO_OK;
}

atto_status atto__pool_take(atto_device *dev, size_t bytes, atto__block **out)
{
    ATTO_REQUIRE(bytes <= SIZE_MAX / 2, ATTO_E_MEMORY, "%zu bytes are more than any device has",
                 bytes);
    size_t class_bytes;
    const int32_t c = size_class(bytes, &class_bytes);
    const uint64_t most = dev->info.max_alloc_bytes;
    if (most != 0 && class_bytes > most) return new_block(dev, bytes, EXACT, out);
    atto__block *block = dev->pool.free[c];
    if (block) {
        dev->pool.free[c] = block->next;
        block->next = NULL;
    } else {
        ATTO_TRY(new_block(dev, class_bytes, c, &block));
    }
    poison_behind(dev, block, bytes);
    *out = block;
    return ATTO_OK;
}

atto_status atto__pool_adopt(void *memory, size_t bytes, const atto__foreign *foreign,
                             atto__block **out)
{
    atto__block *block = atto__alloc(sizeof *block);
    ATTO_REQUIRE(block, ATTO_E_MEMORY, "out of host memory for a %zu-byte record", sizeof *block);
    *block = (atto__block){ .memory = memory, .bytes = bytes, .foreign = *foreign };
    *out = block;
    return ATTO_OK;
}

static void give_to_owner(atto_device *dev, atto__block *block)
{
    const atto__foreign foreign = block->foreign;
    foreign.let_go(dev, block->memory);
    atto__free(block);
    if (foreign.release) foreign.release(foreign.user, foreign.data);
}

void atto__pool_give(atto_device *dev, atto__block *block)
{
    if (!block) return;
    if (block->foreign.let_go) {
        give_to_owner(dev, block);
        return;
    }
    if (block->size_class == EXACT) {
        release(dev, block);
        return;
    }
    poison_behind(dev, block, 0);
    block->next = dev->pool.free[block->size_class];
    dev->pool.free[block->size_class] = block;
}
