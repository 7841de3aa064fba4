/* SPDX-License-Identifier: MIT */
/* Reading an index, and the pieces of dense tensors that it names. */
#ifndef ATTO_CPU_INDEX_H
#define ATTO_CPU_INDEX_H

#include <stdatomic.h>

#include "backend_cpu/loops.h"
#include "indices.h"

/* The index at position p if it is one of n, else -1: then the device learns of it. */
static inline int64_t index_of(const atto_tensor *index, int64_t p, int64_t n, atomic_uint *errors)
{
    const void *memory = atto__memory(index);
    const int64_t at = index->offset + p;
    const int64_t i = index->dtype == ATTO_I64 ? ((const int64_t *)memory)[at]
                                               : (int64_t)((const int32_t *)memory)[at];
    if (i >= 0 && i < n) return i;
    atomic_fetch_or_explicit(errors, ATTO_ERROR_INDEX, memory_order_relaxed);
    return -1;
}

/* Elements at, at + 1, ... of a dense tensor. */
static inline span dense_span(const atto_tensor *t, int64_t at, int32_t n)
{
    char *memory = atto__memory(t);
    return (span){ memory + (t->offset + at) * (int64_t)atto_dtype_size(t->dtype), 1, n, t->dtype };
}

/* Threads for that many elements of work. */
static inline int32_t index_threads(const atto_device *dev, int64_t elements)
{
    return elements < ATTO_SERIAL_BELOW ? 1 : atto__cpu_threads(dev);
}

#endif
