/* SPDX-License-Identifier: MIT */
/* Caching pool of device memory: freed blocks are kept by size class and handed out again.
 *
 * Reuse needs no waiting because all work of a device runs in one order. Classes are eighths of a
 * power of two, so at most 1/8 of a block is unused. */
#ifndef ATTO_POOL_H
#define ATTO_POOL_H

#include <attocl/device.h>

#define ATTO_POOL_CLASSES 512

/* Memory that is not the pool's: what becomes of it when nobody holds it any more. */
typedef struct atto__foreign {
    void (*let_go)(atto_device *dev, void *memory); /* the backend's: its handle */
    void (*release)(void *user, void *data);        /* the owner's, after that; may be NULL */
    void *user, *data;
} atto__foreign;

typedef struct atto__block {
    void *memory; /* the backend's handle */
    size_t bytes; /* of the class, >= what was asked for */
    int32_t size_class;
    struct atto__block *next; /* in its free list */
    atto__foreign foreign;    /* let_go is NULL where the memory is the pool's */
} atto__block;

typedef struct atto__pool {
    atto__block *free[ATTO_POOL_CLASSES];
} atto__pool;

/* A block of at least bytes > 0. When the driver has no memory left the pool is trimmed and the
 * request repeated once. ATTO_E_MEMORY names the sizes. */
atto_status atto__pool_take(atto_device *dev, size_t bytes, atto__block **out);

/* A block of memory that comes from elsewhere; foreign says how it goes back there. */
atto_status atto__pool_adopt(void *memory, size_t bytes, const atto__foreign *foreign,
                             atto__block **out);

/* Gives a block back for reuse, or to its owner; NULL is fine. */
void atto__pool_give(atto_device *dev, atto__block *block);

/* Returns all unused blocks to the driver. */
void atto__pool_trim(atto_device *dev);

#endif
