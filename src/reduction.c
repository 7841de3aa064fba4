/* SPDX-License-Identifier: MIT */
/* Sorts the dimensions of a reduction. */
#include "reduction.h"

#include "layout.h"

#define LAST (ATTO_MERGED_RANK - 1)

static void push(int64_t *list, int64_t value)
{
    for (int32_t d = 0; d < LAST; d++) list[d] = list[d + 1];
    list[LAST] = value;
}

static int64_t stride_of(const atto_tensor *t, int32_t d)
{
    return t ? t->stride[d] : 0;
}

static void push_kept(atto__fold_plan *p, const atto__reduction *r, int32_t d)
{
    push(p->kept_size, r->layout->shape[d]);
    push(p->kept_in, r->in->stride[d]);
    push(p->kept_out, r->out->stride[d]);
    push(p->kept_match, stride_of(r->match, d));
    push(p->kept_share, stride_of(r->share, d));
    push(p->kept_a, stride_of(r->a, d));
    push(p->kept_b, stride_of(r->b, d));
    p->outputs *= r->layout->shape[d];
    p->kept_rank++;
}

static void push_folded(atto__fold_plan *p, const atto__reduction *r, int32_t d)
{
    push(p->size, r->layout->shape[d]);
    push(p->in, r->in->stride[d]);
    push(p->a, stride_of(r->a, d));
    push(p->b, stride_of(r->b, d));
    push(p->index, r->layout->index_stride[d]);
    p->length *= r->layout->shape[d];
    p->rank++;
}

atto__fold_plan atto__fold_plan_of(const atto__reduction *r)
{
    atto__fold_plan p = {
        .kept_size = { 1, 1, 1, 1 }, .size = { 1, 1, 1, 1 }, .outputs = 1, .length = 1
    };
    for (int32_t d = 0; d < r->layout->rank; d++) {
        p.rows = r->out->stride[d] == 0;
        if (p.rows) {
            push_folded(&p, r, d);
        } else {
            push_kept(&p, r, d);
        }
    }
    return p;
}

bool atto__is_summed(const atto_tensor *view)
{
    for (int32_t d = 0; d < view->rank; d++)
        if (view->stride[d] == 0) return true;
    return false;
}

int64_t atto__dense_like(const atto_tensor *like, atto_tensor *out)
{
    int64_t stride = 1;
    *out = *like;
    for (int32_t d = like->rank - 1; d >= 0; d--) {
        const bool kept = like->stride[d] != 0;
        out->stride[d] = kept ? stride : 0;
        if (kept) stride *= like->shape[d];
    }
    return stride;
}

atto_status atto__scratch_like(atto_device *dev, const atto_tensor *like, atto_dtype dtype,
                               atto_buffer *buffer, atto_tensor *out)
{
    atto_tensor flat, view;
    const int64_t n = atto__dense_like(like, &view);
    ATTO_TRY(atto__scratch_tensor(dev, dtype, 1, &n, buffer, &flat));
    *out = view;
    out->buffer = flat.buffer;
    out->offset = 0;
    out->dtype = dtype;
    return ATTO_OK;
}

atto__reduction atto__reduction_of(const struct atto_reduce_args *a, const atto__layout *layout)
{
    static const atto__fold folds[] = {
        [ATTO_REDUCE_SUM] = ATTO_FOLD_SUM,    [ATTO_REDUCE_MEAN] = ATTO_FOLD_SUM,
        [ATTO_REDUCE_MAX] = ATTO_FOLD_MAX,    [ATTO_REDUCE_MIN] = ATTO_FOLD_MAX,
        [ATTO_REDUCE_ARGMAX] = ATTO_FOLD_ARG, [ATTO_REDUCE_ARGMIN] = ATTO_FOLD_ARG,
    };
    atto__reduction r = {
        .fold = folds[a->kind], .in = a->x, .out = a->y, .layout = layout, .divisor = 1.0f
    };
    r.negate = a->kind == ATTO_REDUCE_MIN || a->kind == ATTO_REDUCE_ARGMIN;
    if (a->kind == ATTO_REDUCE_MEAN) r.divisor = (float)layout->folded;
    return r;
}

atto__reduction atto__ties_of(const struct atto_reduce_args *a, const atto__layout *layout,
                              const atto_tensor *share)
{
    return (atto__reduction){ .fold = ATTO_FOLD_TIES,
                              .in = a->x,
                              .out = share,
                              .match = a->y,
                              .share = a->dy,
                              .layout = layout,
                              .divisor = 1.0f };
}

atto_status atto__scratch_full(atto_device *dev, const atto__layout *layout, atto_buffer *buffer,
                               atto_tensor *out)
{
    return atto__scratch_tensor(dev, ATTO_F32, layout->rank, layout->shape, buffer, out);
}

void atto__gradients_order(atto__gradient *pair, const atto_tensor *const *inputs, int32_t count)
{
    const atto__gradient first = pair[0];
    for (int32_t i = 0; first.out && i < count; i++) {
        if (!inputs[i] || !atto__view_overlap(first.out, inputs[i])) continue;
        pair[0] = pair[1];
        pair[1] = first;
        return;
    }
}

#define SIGNS  true
#define VALUES false
static const bool gradient_is_sign[] = {
#define X(NAME, name, gradient) gradient,
    ATTO_BINARY_TABLE(X)
#undef X
};

bool atto__gradient_is_sign(atto_binary_kind kind)
{
    return (int)kind >= 0 && kind < ATTO_BINARY_COUNT && gradient_is_sign[kind];
}
