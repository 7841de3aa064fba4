/* SPDX-License-Identifier: MIT */
/* The CPU backend's parts that do not depend on the instruction level. */
#ifndef ATTO_CPU_H
#define ATTO_CPU_H

#include "device.h"

/* Every level's symbols carry its name: ATTO_LEVEL_NAME(act_forward) is atto__cpu_act_forward_avx2
 * in the file compiled for AVX2. */
#define ATTO_PASTE_(a, b)  a##_##b
#define ATTO_PASTE(a, b)   ATTO_PASTE_(a, b)
#define ATTO_LEVEL_NAME(x) ATTO_PASTE(atto__cpu_##x, ATTO_LEVEL)

/* Threads for a parallel region: the option, else what OpenMP says; 1 in a forked child of the
 * process that first opened a CPU device: it has not got its parent's threads. */
int32_t atto__cpu_threads(const atto_device *dev);

/* The most that the above gives: plans that take memory are made for it, so that steps of equal
 * shapes take equal memory. */
int32_t atto__cpu_most_threads(const atto_device *dev);

/* Table slots that are the same at every level. */
void atto__cpu_close(atto_device *dev);
atto_status atto__cpu_alloc(atto_device *dev, size_t bytes, void **out);
void atto__cpu_release(atto_device *dev, void *memory);
atto_status atto__cpu_wrap(atto_device *dev, void *data, size_t bytes, void **out);
void atto__cpu_unwrap(atto_device *dev, void *memory);
atto_status atto__cpu_write(atto_device *dev, void *memory, size_t offset_bytes, const void *data,
                            size_t bytes);
atto_status atto__cpu_read(atto_device *dev, void *memory, size_t offset_bytes, void *data,
                           size_t bytes);
atto_status atto__cpu_poll(atto_device *dev, void *memory, uint32_t *word);
atto_status atto__cpu_map(atto_device *dev, void *memory, size_t offset_bytes, size_t bytes,
                          atto_map_mode mode, void **out);
atto_status atto__cpu_unmap(atto_device *dev, void *memory, void *mapped);
atto_status atto__cpu_sync(atto_device *dev);
atto_status atto__cpu_event_record(atto_device *dev, void **out);
atto_status atto__cpu_event_elapsed(atto_device *dev, void *start, void *end, double *out_ms);
void atto__cpu_event_destroy(atto_device *dev, void *event);
bool atto__cpu_supports(atto_device *dev, atto_op op, atto_dtype dtype);

/* kernel.c */
atto_status atto__cpu_kernel_create(atto_device *dev, const atto_kernel_source *source, void **out,
                                    atto__signature *signature);
void atto__cpu_kernel_destroy(atto_device *dev, void *kernel);
atto_status atto__cpu_launch(atto_device *dev, void *kernel, int64_t n, const atto_kernel_arg *args,
                             int32_t count);

#endif
