/* SPDX-License-Identifier: MIT */
/* Host memory: the replaceable allocator and a count of what is held. */
#include "alloc.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <attocl/device.h>

#include "check.h"
#include "os.h"

#define ALIGNMENT 64

static void *default_allocate(void *data, size_t bytes)
{
    (void)data;
    return malloc(bytes);
}

static void default_release(void *data, void *pointer)
{
    (void)data;
    free(pointer);
}

static const atto_allocator default_allocator = { default_allocate, default_release, NULL };
static atto_allocator allocator = { default_allocate, default_release, NULL };
static atomic_llong held; /* pointers handed out and not yet returned */

atto_status atto_set_allocator(const atto_allocator *wanted)
{
    ATTO_REQUIRE(!wanted || (wanted->allocate && wanted->release), ATTO_E_NULL,
                 "set_allocator: allocate and release must both be given");
    ATTO_REQUIRE(atomic_load(&held) == 0, ATTO_E_STATE,
                 "set_allocator: %lld blocks of the present allocator are still in use; close all "
                 "devices and free all tensors first",
                 atomic_load(&held));
    allocator = wanted ? *wanted : default_allocator;
    return ATTO_OK;
}

static void *take(size_t bytes)
{
    void *pointer = allocator.allocate(allocator.data, bytes ? bytes : 1);
    if (pointer) atomic_fetch_add(&held, 1);
    return pointer;
}

void *atto__alloc(size_t bytes)
{
    void *pointer = take(bytes);
    if (pointer) memset(pointer, 0, bytes);
    return pointer;
}

void atto__free(void *pointer)
{
    if (!pointer) return;
    allocator.release(allocator.data, pointer);
    atomic_fetch_sub(&held, 1);
}

/* The pointer that the allocator gave stands just before the aligned block. */
void *atto__alloc_aligned(size_t bytes)
{
    if (bytes > SIZE_MAX - ALIGNMENT - sizeof(void *)) return NULL;
    char *raw = take(bytes + ALIGNMENT + sizeof(void *));
    if (!raw) return NULL;
    if (allocator.allocate == default_allocate) atto__prefer_large_pages(raw, bytes);
    const uintptr_t first = (uintptr_t)raw + sizeof(void *);
    char *aligned = raw + sizeof(void *) + (ALIGNMENT - first % ALIGNMENT) % ALIGNMENT;
    memcpy(aligned - sizeof(void *), &raw, sizeof(void *));
    return aligned;
}

void atto__free_aligned(void *pointer)
{
    if (!pointer) return;
    void *raw;
    memcpy(&raw, (char *)pointer - sizeof(void *), sizeof(void *));
    atto__free(raw);
}

char *atto__strdup(const char *text)
{
    if (!text) return NULL;
    const size_t bytes = strlen(text) + 1;
    char *copy = atto__alloc(bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

char *atto__format(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = length < 0 ? NULL : atto__alloc((size_t)length + 1);
    if (!text) return NULL;
    va_start(args, format);
    vsnprintf(text, (size_t)length + 1, format, args);
    va_end(args);
    return text;
}
