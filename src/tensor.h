/* SPDX-License-Identifier: MIT */
/* What run.c and fallback.c need of tensor.c. */
#ifndef ATTO_TENSOR_H
#define ATTO_TENSOR_H

#include "device.h"

/* dst = src on one device, any rank: checks are done. Walks that do not merge to ATTO_MERGED_RANK
 * dimensions become several launches. */
atto_status atto__copy(atto_device *dev, const atto_tensor *dst, const atto_tensor *src);

/* A value of that dtype in the low bytes, rounded as atto_tensor_fill does. */
uint64_t atto__bits_of(atto_dtype dtype, double value);

/* Every element = value, rounded to the dtype; for backends and others inside a call, whose scratch
 * it leaves alone. */
atto_status atto__fill(atto_device *dev, const atto_tensor *t, double value);

/* A buffer of memory that is not the pool's: the backend's handle. On failure nothing is let go. */
atto_status atto__buffer_adopt(atto_device *dev, void *memory, size_t bytes,
                               const atto__foreign *foreign, atto_buffer **out);

/* The same of host memory, where the device can use it (ATTO_E_UNSUPPORTED). */
atto_status atto__buffer_wrap(atto_device *dev, void *data, size_t bytes,
                              void (*release)(void *user, void *data), void *user,
                              atto_buffer **out);

/* The same of a cl_mem of dev's context, of which it takes a reference; wanted: bytes that must be
 * there. For OpenCL devices; ATTO_E_UNSUPPORTED in a library without OpenCL. */
struct _cl_mem;
atto_status atto__buffer_of_opencl(atto_device *dev, struct _cl_mem *memory, size_t wanted,
                                   void (*release)(void *user, void *data), void *user,
                                   atto_buffer **out);

#endif
