/* SPDX-License-Identifier: MIT */
/* From a kernel's name and options to a kernel that can be launched, built at most once. */
#ifndef ATTO_PROGRAM_H
#define ATTO_PROGRAM_H

#include "device.h"
#include "loader.h"

typedef struct atto__kernel {
    struct atto__kernel *next; /* in its bucket of the table */
    char *key;                 /* file, kernel and options */
    uint64_t hash;             /* of kernel and options */
    cl_program program;
    cl_kernel handle;
    atto_status status; /* ATTO_E_BUILD: tried, and it cannot be built */
    char *message;      /* then: why */
} atto__kernel;

#define ATTO_PROGRAM_BUCKETS 256

/* The kernels that a device has built or failed to build. */
typedef struct atto__programs {
    atto__kernel *buckets[ATTO_PROGRAM_BUCKETS];
} atto__programs;

/* The kernel of that file with those options (see variants.h). Arguments are set per launch. A
 * build that failed is not tried again: the message, which holds the whole log, is repeated. */
atto_status atto__program_kernel(atto_device *dev, const char *file, const char *kernel,
                                 const char *options, cl_kernel *out);

/* A kernel outside the table, built from text, which goes by the name file in messages; use_cache
 * where the text and options say all that the compiler reads. */
atto_status atto__program_build(atto_device *dev, const char *file, const char *text,
                                const char *kernel, const char *options, bool use_cache,
                                atto__kernel **out);
/* NULL is fine. */
void atto__program_destroy(atto__kernel *kernel);

void atto__programs_close(atto_device *dev);

#endif
