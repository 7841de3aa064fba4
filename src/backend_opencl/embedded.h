/* SPDX-License-Identifier: MIT */
/* The kernel files inside the library; src/cl/embed.cmake writes the table. */
#ifndef ATTO_EMBEDDED_H
#define ATTO_EMBEDDED_H

#include <stddef.h>

typedef struct atto__embedded {
    const char *name;          /* "act.cl" */
    const unsigned char *text; /* ends in a NUL that bytes does not count */
    size_t bytes;
} atto__embedded;

extern const atto__embedded atto__embedded_files[];
extern const int atto__embedded_count;

#endif
