/* SPDX-License-Identifier: MIT */
/* Transfers that do not wait: the caller's bytes are copied to pinned memory, and go on from there;
 * a word of the device comes back to pinned memory. */
#ifndef ATTO_STAGING_H
#define ATTO_STAGING_H

#include "backend.h"
#include "loader.h"

/* Larger uploads block instead. */
#define ATTO_STAGING_LIMIT   ((size_t)4 << 20)
#define ATTO_STAGING_BYTES   ((size_t)16 << 20)
#define ATTO_STAGING_RECORDS 256

/* One upload that may still be under way: its bytes end at `end`. */
typedef struct atto__upload {
    cl_event event;
    size_t end;
} atto__upload;

/* A ring of pinned memory. Free bytes run from head round to tail; uploads finish in the order in
 * which they were made, so each one that has finished moves tail. */
typedef struct atto__staging {
    cl_mem buffer; /* NULL until the first upload */
    char *memory;  /* where it is mapped */
    bool refused;  /* the driver gave no pinned memory: every upload blocks */
    size_t head, tail;
    atto__upload uploads[ATTO_STAGING_RECORDS];
    int32_t first, count; /* in uploads */
    cl_event answer;      /* the read of a polled word that is under way, or NULL */
} atto__staging;

/* The vtable's write. */
atto_status atto__staging_write(atto_device *dev, cl_mem memory, size_t offset, const void *data,
                                size_t bytes);

/* The vtable's poll. A read that is forgotten still writes its word; the next one comes behind it. */
atto_status atto__staging_poll(atto_device *dev, cl_mem memory, uint32_t *word);

/* The queue must be idle. */
void atto__staging_close(atto_device *dev);

#endif
