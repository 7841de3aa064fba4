/* SPDX-License-Identifier: MIT */
/* Attention: sizes and strides. */
#include "attention.h"

#include <math.h>

static atto__heads strides_of(const atto_tensor *t)
{
    if (!t) return (atto__heads){ 0, 0, 0 };
    return (atto__heads){ t->stride[0], t->stride[1], t->stride[2] };
}

static atto__heads lse_strides(const atto_tensor *t)
{
    return t ? (atto__heads){ t->stride[0], t->stride[1], 1 } : (atto__heads){ 0, 0, 0 };
}

/* Dimension d of the four that mask broadcasts to. */
static int64_t mask_stride(const atto_tensor *mask, int32_t d)
{
    const int32_t own = d - (4 - mask->rank);
    return own < 0 || mask->shape[own] == 1 ? 0 : mask->stride[own];
}

static void put_mask(const atto_tensor *mask, atto__attention *out)
{
    if (!mask) return;
    out->mask_kind = mask->dtype == ATTO_I32 ? ATTO_MASK_BOOLEAN : ATTO_MASK_ADDED;
    out->mask = (atto__heads){ mask_stride(mask, 0), mask_stride(mask, 1), mask_stride(mask, 2) };
    out->mask_key = mask_stride(mask, 3);
}

/* Heads' strides as those of rows of the heads that share keys. */
static void fold_heads(atto__heads *t, int64_t shared)
{
    t->row = t->head;
    t->head *= shared;
}

static void fold(atto__attention *p)
{
    if (p->queries != 1 || p->shared == 1 || atto__keys_seen(p, 0) != p->keys) return;
    atto__heads *const of_queries[] = {
        &p->q, &p->y, &p->dy, &p->dq, &p->mask, &p->lse, &p->lse_low
    };
    for (int32_t i = 0; i < 7; i++) fold_heads(of_queries[i], p->shared);
    p->is_causal = false;
    p->queries = p->shared;
    p->heads /= p->shared;
    p->shared = 1;
}

void atto__attention_of(const struct atto_attention_args *a, atto__attention *out)
{
    const int64_t keys = a->k->shape[2], queries = a->q->shape[2], d = a->q->shape[3];
    *out =
        (atto__attention){ .batches = a->q->shape[0],
                           .heads = a->q->shape[1],
                           .shared = a->q->shape[1] / a->k->shape[1],
                           .queries = queries,
                           .keys = keys,
                           .d = (int32_t)d,
                           .e = (int32_t)a->v->shape[3],
                           .scale = a->scale != 0.0f ? a->scale : (float)(1.0 / sqrt((double)d)),
                           .seen = a->causal == ATTO_CAUSAL_BOTTOM_RIGHT ? keys - queries + 1 : 1,
                           .is_causal = a->causal != ATTO_CAUSAL_NONE,
                           .q = strides_of(a->q),
                           .k = strides_of(a->k),
                           .v = strides_of(a->v),
                           .y = strides_of(a->y),
                           .dy = strides_of(a->dy),
                           .dq = strides_of(a->dq),
                           .dk = strides_of(a->dk),
                           .dv = strides_of(a->dv),
                           .lse = lse_strides(a->lse),
                           .lse_low = lse_strides(a->lse_low),
                           .drop = atto__mask_of(a->dropout, a->rng) };
    put_mask(a->mask, out);
    fold(out);
}
