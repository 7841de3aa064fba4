/* SPDX-License-Identifier: MIT */
/* Division of sizes. */
#ifndef ATTO_DIVIDE_H
#define ATTO_DIVIDE_H

#include <stdint.h>

/* How many pieces of that size hold n >= 0. */
static inline int64_t atto__divide_up(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

#endif
