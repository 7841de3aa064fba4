/* SPDX-License-Identifier: MIT */
/* Attention as both backends run it: sizes, strides and which keys a query sees, from views that the
 * op table's INNER describes. */
#ifndef ATTO_ATTENTION_H
#define ATTO_ATTENTION_H

#include <attocl/attention.h>

#include "cl/atto_attention_sizes.h"
#include "device.h"
#include "rng.h"

/* Elements from one batch, head and row to the next; a dimension of size 1 has any. */
typedef struct atto__heads {
    int64_t batch, head, row;
} atto__heads;

typedef struct atto__attention {
    int64_t batches, heads, shared; /* shared: heads of queries for each one of keys */
    int64_t queries, keys;
    int32_t d, e;
    float scale;
    int64_t
        seen; /* keys that query 0 sees, and one more for each query; may be negative. keys if all
                     see all: see atto__keys_seen */
    bool is_causal;
    int32_t mask_kind; /* ATTO_MASK_NONE, _BOOLEAN, _ADDED */
    atto__heads q, k, v, y, dy, dq, dk, dv, mask;
    atto__heads lse, lse_low; /* whose rows are one number each */
    int64_t mask_key;         /* stride of mask along keys: 0 or 1 */
    atto__mask drop;
} atto__attention;

/* One query of each head that shares keys is a row of queries here, if these see the same keys. */
void atto__attention_of(const struct atto_attention_args *a, atto__attention *out);

/* Keys that a query sees are the first so many, mask aside. */
static inline int64_t atto__keys_seen(const atto__attention *p, int64_t query)
{
    const int64_t seen = p->is_causal ? p->seen + query : p->keys;
    return seen < 0 ? 0 : seen < p->keys ? seen : p->keys;
}

/* The first query that sees a key; queries if none does. */
static inline int64_t atto__first_query(const atto__attention *p, int64_t key)
{
    const int64_t first = p->is_causal ? key + 1 - p->seen : 0;
    return first < 0 ? 0 : first < p->queries ? first : p->queries;
}

#endif
