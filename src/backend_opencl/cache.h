/* SPDX-License-Identifier: MIT */
/* Built kernels on disk. Whatever goes wrong here is a miss, never an error. */
#ifndef ATTO_CACHE_H
#define ATTO_CACHE_H

#include "device.h"

/* A 128-bit hash of all that a binary depends on, and that text's length. */
typedef struct atto__cache_key {
    uint64_t hash[2];
    uint64_t bytes;
} atto__cache_key;

/* Not with options.no_cache, and on PoCL, which has its own, only in a folder set by options. */
bool atto__cache_wanted(const atto_device *dev);

/* The kernel's source and options, device, driver, platform and library version. */
atto__cache_key atto__cache_key_of(const atto_device *dev, const char *kernel, const char *options,
                                   const char *source);

/* The binary, inside *file, which the caller releases with atto__free; NULL on a miss. */
const unsigned char *atto__cache_load(const atto_device *dev, const atto__cache_key *key,
                                      char **file, size_t *bytes);

void atto__cache_store(const atto_device *dev, const atto__cache_key *key,
                       const unsigned char *binary, size_t bytes);

#endif
