/* SPDX-License-Identifier: MIT */
/* All host memory of the library comes from here, so that it can be replaced, counted and failed.
 */
#ifndef ATTO_ALLOC_H
#define ATTO_ALLOC_H

#include <stddef.h>

/* Zeroed memory, or NULL. bytes may be 0 (then a valid pointer is returned). */
void *atto__alloc(size_t bytes);

/* Uninitialised memory aligned to 64 bytes, or NULL. Release with atto__free_aligned. */
void *atto__alloc_aligned(size_t bytes);

/* NULL is fine. */
void atto__free(void *pointer);
void atto__free_aligned(void *pointer);

/* Copies of text; NULL when out of memory (or when text is NULL). */
char *atto__strdup(const char *text);
char *atto__format(const char *format, ...);

#endif
