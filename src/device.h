/* SPDX-License-Identifier: MIT */
/* The objects behind the opaque public types, and the services that backends and layers use. */
#ifndef ATTO_DEVICE_H
#define ATTO_DEVICE_H

#include <stdatomic.h>

#include <attocl/rng.h>

#include "backend.h"
#include "check.h"
#include "pool.h"
#include "tune.h"

#define ATTO_OPTION_STRINGS 5

/* Options after the environment was read; strings are owned copies or NULL. */
typedef struct atto__options {
    atto_device_options set;
    char *device; /* ATTOCL_DEVICE */
    char *strings[ATTO_OPTION_STRINGS];
} atto__options;

#define ATTO_SCRATCH_PIECES 32

struct atto_device {
    const atto__vtable *vt;
    void *impl; /* the backend's own */
    atomic_int references;
    atto__options options;
    atto_device_info info;
    atto_device_stats stats;
    atto__pool pool;

    /* Scratch of the call that is running; goes back to the pool when the next one starts. */
    atto__block *scratch[ATTO_SCRATCH_PIECES];
    int32_t scratch_count;

    /* Data errors found by kernels: one 32-bit word in device memory, read at sync and host reads
     * when an op that can set it has run since. */
    atto__block *error_word;
    bool error_armed;

    struct atto__tuner *tuner; /* NULL: a backend without choices */

    bool in_kernel; /* a user's C function runs: it must not call back */

    /* Sticky: a lost device fails every later call with this message. */
    bool lost;
    char lost_message[256];

    /* Where initial values of parameters come from. */
    atto_rng init_rng;

    /* Opened when an op first falls back. */
    atto_device *cpu;
    bool warned[ATTO_OP_COUNT][2]; /* one log line per op and direction */
};

struct atto_buffer {
    atto_device *dev; /* holds a reference */
    atto__block *block;
    size_t bytes;
    atomic_int references;
    void *mapped;    /* what atto_tensor_map gave, until unmap; else NULL */
    uint64_t writes; /* calls that were given it to write to; those of optimisers do not count */
    bool read_only;  /* memory of somebody who wants it unchanged */
};

/* The block's handle: a pointer on the CPU, a cl_mem on OpenCL. */
static inline void *atto__memory(const atto_tensor *t)
{
    return t->buffer->block->memory;
}

/* A log line, if the device has a callback. */
void atto__log(const atto_device *dev, atto_log_level level, const char *format, ...)
    ATTO_PRINTF(3, 4);

/* Same before a device exists. */
void atto__log_to(const atto__options *options, atto_log_level level, const char *format, ...)
    ATTO_PRINTF(3, 4);

/* Fails with the sticky message once the device is lost. */
atto_status atto__device_check(const atto_device *dev);

/* Marks the device lost and fails with ATTO_E_LOST and that message. */
atto_status atto__device_lose(atto_device *dev, const char *format, ...) ATTO_PRINTF(2, 3);

/* The end of a public call that enqueued something: waits and checks if options say so. */
atto_status atto__device_finish_call(atto_device *dev);

/* Scratch memory lives until the next call on dev. */
void atto__scratch_reset(atto_device *dev);

/* Gives back all but the first so many pieces. */
void atto__scratch_release(atto_device *dev, int32_t keep);

/* A dense scratch tensor. *buffer is storage for its header and must live as long as the tensor. */
atto_status atto__scratch_tensor(atto_device *dev, atto_dtype dtype, int32_t rank,
                                 const int64_t *shape, atto_buffer *buffer, atto_tensor *out);

/* Reads the error word if an op may have set it; ATTO_E_INDEX once if it did. Waits. */
atto_status atto__device_data_errors(atto_device *dev);

/* The same without waiting: an error may be told some calls late. */
atto_status atto__device_poll_errors(atto_device *dev);

/* Opens a device that its opener knows how to find: open gets dev with options and info and sets the
 * rest, as atto__backend's open does. */
atto_status atto__device_open_by(const atto_device_options *options, const atto_device_info *info,
                                 atto_status (*open)(atto_device *dev, const void *job),
                                 const void *job, atto_device **out);

/* The header of the program is of another ABI. */
atto_status atto__check_abi(const char *call, int32_t abi);

void atto__device_retain(atto_device *dev);
void atto__device_release(atto_device *dev);

/* options.c: copies options and applies the environment. Release with atto__options_clear. */
atto_status atto__options_resolve(const atto_device_options *options, atto__options *out);
void atto__options_clear(atto__options *options);

/* select.c: which of n listed devices a name means. order receives the candidates to try, best
 * first; more than one only for "auto" and "opencl". */
atto_status atto__select(const char *name, const atto_device_info *infos, int32_t n, int32_t *order,
                         int32_t *count);

#endif
