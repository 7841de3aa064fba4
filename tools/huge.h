/* SPDX-License-Identifier: MIT */
/* What the two halves of attocl selftest --huge share: three f16 tensors, and blocks of them on the
 * host. */
#ifndef ATTO_HUGE_H
#define ATTO_HUGE_H

#include <attocl.h>

enum { HUGE_BLOCK = 65536, HUGE_BLOCKS = 4 };

typedef struct huge {
    atto_device *dev, *reference;
    int64_t elements;
    atto_tensor x, dy, out; /* rank 1 */
    uint16_t raw_x[HUGE_BLOCK], raw_dy[HUGE_BLOCK], raw_got[HUGE_BLOCK], raw_want[HUGE_BLOCK];
    float x32[HUGE_BLOCK], dy32[HUGE_BLOCK], got[HUGE_BLOCK], want[HUGE_BLOCK];
} huge;

/* First, around 2^32 (or the middle when there is no such element), around 2^31 (or a quarter),
 * last. */
void huge_blocks(int64_t elements, int64_t *start, int64_t *length);

atto_status huge_read(const atto_tensor *t, int64_t start, int64_t n, void *out);

/* Ops on data so plain that every result is known. The tensors' contents are lost. */
bool huge_known(huge *h);

#endif
