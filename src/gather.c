/* SPDX-License-Identifier: MIT */
#include "gather.h"

#include "tensor.h"

static int32_t positive(int32_t dim, int32_t rank)
{
    return dim < 0 ? dim + rank : dim;
}

/* Whether two dimensions before or behind dim that the index has cannot be walked as one: the inner
 * one is shorter than x's. */
static bool has_gaps(const atto_tensor *x, const atto_tensor *index, int32_t dim)
{
    int64_t before = 1; /* indices of the outer ones */
    for (int32_t d = 0; d < x->rank; d++) {
        if (d == dim) before = 1;
        if (d == dim) continue;
        if (before > 1 && x->shape[d] != index->shape[d]) return true;
        before *= index->shape[d];
    }
    return false;
}

/* The part of x beside the index: all along dim, elsewhere as much as the index has. */
static atto_tensor narrowed(const atto_tensor *x, const atto_tensor *index, int32_t dim)
{
    atto_tensor part = *x;
    for (int32_t d = 0; d < x->rank; d++)
        if (d != dim) part.shape[d] = index->shape[d];
    return part;
}

/* Sizes, and steps through a dense x. */
static void measure(const atto_tensor *x, const atto_tensor *index, int32_t dim, atto__gather *g)
{
    g->outer = g->inner = g->row_step = 1;
    g->count = index->shape[dim];
    g->rows = x->shape[dim];
    for (int32_t d = 0; d < x->rank; d++) {
        if (d < dim) g->outer *= index->shape[d];
        if (d > dim) g->inner *= index->shape[d];
        if (d > dim) g->row_step *= x->shape[d];
    }
    g->outer_step = g->rows * g->row_step;
    g->source = *x;
    g->is_scratch = false;
}

static atto_status take_scratch(atto_device *dev, const atto_tensor *part, atto_dtype dtype,
                                atto__gather *g)
{
    g->is_scratch = true;
    g->row_step = g->inner;
    g->outer_step = g->rows * g->inner;
    return atto__scratch_tensor(dev, dtype, part->rank, part->shape, &g->header, &g->source);
}

atto_status atto__gather_begin(atto_device *dev, const struct atto_gather_args *a,
                               atto__gather *out)
{
    const int32_t dim = positive(a->dim, a->x->rank);
    measure(a->x, a->index, dim, out);
    if (out->rows == 0 || !has_gaps(a->x, a->index, dim)) return ATTO_OK;
    const atto_tensor part = narrowed(a->x, a->index, dim);
    ATTO_TRY(take_scratch(dev, &part, part.dtype, out));
    return atto__copy(dev, &out->source, &part);
}

atto_status atto__gather_begin_sums(atto_device *dev, const struct atto_gather_args *a,
                                    atto__gather *out)
{
    const int32_t dim = positive(a->dim, a->dx->rank);
    measure(a->dx, a->index, dim, out);
    if (!a->add_dx) ATTO_TRY(atto__fill(dev, a->dx, 0.0));
    const bool is_empty = atto_tensor_numel(a->index) == 0;
    if (is_empty || (a->dx->dtype == ATTO_F32 && !has_gaps(a->dx, a->index, dim))) return ATTO_OK;
    const atto_tensor part = narrowed(a->dx, a->index, dim);
    ATTO_TRY(take_scratch(dev, &part, ATTO_F32, out));
    return a->add_dx ? atto__copy(dev, &out->source, &part) : atto__fill(dev, &out->source, 0.0);
}

atto_status atto__gather_end_sums(atto_device *dev, const struct atto_gather_args *a,
                                  const atto__gather *g)
{
    if (!g->is_scratch) return ATTO_OK;
    const atto_tensor part = narrowed(a->dx, a->index, positive(a->dim, a->dx->rank));
    return atto__copy(dev, &part, &g->source);
}
