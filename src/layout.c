/* SPDX-License-Identifier: MIT */
/* Arithmetic on views: validity, extents, overlap, merging of dimensions. */
#include "layout.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Sizes and strides are checked to stay below this, so that sums of products cannot overflow. */
#define LIMIT (INT64_MAX / 16)

static bool multiply(int64_t a, int64_t b, int64_t *out)
{
    if (b != 0 && a > LIMIT / b) return false;
    *out = a * b;
    return true;
}

bool atto__shape_same(const atto_tensor *a, const atto_tensor *b)
{
    if (a->rank != b->rank) return false;
    for (int32_t d = 0; d < a->rank; d++)
        if (a->shape[d] != b->shape[d]) return false;
    return true;
}

const char *atto__shape_text(const atto_tensor *t, char *text)
{
    int at = snprintf(text, ATTO_SHAPE_TEXT, "[");
    for (int32_t d = 0; d < t->rank && d < ATTO_MAX_RANK; d++)
        at += snprintf(text + at, (size_t)(ATTO_SHAPE_TEXT - at), "%s%" PRId64, d ? "," : "",
                       t->shape[d]);
    snprintf(text + at, (size_t)(ATTO_SHAPE_TEXT - at), "]");
    return text;
}

int64_t atto__extent(const atto_tensor *t)
{
    int64_t extent = 1;
    for (int32_t d = 0; d < t->rank; d++) {
        if (t->shape[d] == 0) return 0;
        extent += (t->shape[d] - 1) * t->stride[d];
    }
    return extent;
}

static atto_status check_sizes(const atto_tensor *t, const char *what)
{
    int64_t numel = 1, extent = 1;
    for (int32_t d = 0; d < t->rank; d++) {
        ATTO_REQUIRE(t->shape[d] >= 0, ATTO_E_SHAPE,
                     "%s: size of dimension %d is %" PRId64 ", expected 0 or more", what, (int)d,
                     t->shape[d]);
        ATTO_REQUIRE(t->stride[d] >= 0, ATTO_E_STRIDE,
                     "%s: stride of dimension %d is %" PRId64 ", expected 0 or more", what, (int)d,
                     t->stride[d]);
    }
    for (int32_t d = 0; d < t->rank; d++) {
        const int64_t size = t->shape[d];
        int64_t reach = 0;
        const bool fits =
            multiply(numel, size, &numel) && (size < 2 || multiply(size - 1, t->stride[d], &reach));
        ATTO_REQUIRE(fits && reach <= LIMIT - extent, ATTO_E_SHAPE,
                     "%s: sizes and strides reach beyond 2^59 elements", what);
        extent += reach;
    }
    return ATTO_OK;
}

static atto_status check_buffer(const atto_tensor *t, const char *what)
{
    const int64_t extent = atto__extent(t);
    if (extent == 0) return ATTO_OK; /* empty: the buffer may be NULL */
    ATTO_REQUIRE(t->buffer, ATTO_E_NULL, "%s: buffer is NULL", what);
    ATTO_REQUIRE(!t->buffer->mapped, ATTO_E_STATE,
                 "%s: its buffer is mapped for the host; call atto_tensor_unmap first", what);
    const int64_t room = (int64_t)(t->buffer->bytes / atto_dtype_size(t->dtype));
    ATTO_REQUIRE(t->offset <= room && extent <= room - t->offset, ATTO_E_SHAPE,
                 "%s: the view ends at element %" PRId64 " of a buffer of %" PRId64 " elements",
                 what, t->offset + extent, room);
    return ATTO_OK;
}

atto_status atto__shape_check(const atto_tensor *t, const char *what)
{
    ATTO_REQUIRE(t->rank >= 0 && t->rank <= ATTO_MAX_RANK, ATTO_E_SHAPE,
                 "%s: rank is %d, expected 0 to %d", what, (int)t->rank, ATTO_MAX_RANK);
    ATTO_REQUIRE(atto_dtype_size(t->dtype) != 0, ATTO_E_DTYPE, "%s: %d is no dtype%s", what,
                 (int)t->dtype, t->dtype ? "" : " (a zeroed tensor: not allocated, or freed)");
    ATTO_TRY(check_sizes(t, what));
    ATTO_REQUIRE(t->offset >= 0 && t->offset <= LIMIT, ATTO_E_ARGUMENT,
                 "%s: offset is %" PRId64 ", expected 0 to %" PRId64, what, t->offset,
                 (int64_t)LIMIT);
    return ATTO_OK;
}

atto_status atto__view_check(const atto_tensor *t, const char *what)
{
    ATTO_TRY(atto__shape_check(t, what));
    return check_buffer(t, what);
}

/* Dimensions with more than one element, by falling stride; returns how many. */
static int32_t sort_dims(const atto_tensor *t, int64_t *shape, int64_t *stride)
{
    int32_t n = 0;
    for (int32_t d = 0; d < t->rank; d++) {
        if (t->shape[d] < 2) continue;
        int32_t at = n++;
        for (; at > 0 && stride[at - 1] < t->stride[d]; at--) {
            stride[at] = stride[at - 1];
            shape[at] = shape[at - 1];
        }
        stride[at] = t->stride[d];
        shape[at] = t->shape[d];
    }
    return n;
}

bool atto__view_rows(atto_tensor *t)
{
    const int32_t last = t->rank - 1;
    const int64_t columns = last >= 0 ? t->shape[last] : 1;
    if (columns > 1 && t->stride[last] != 1) return false;
    int64_t rows = 1, stride = columns;
    for (int32_t d = last - 1; d >= 0; d--) {
        if (t->shape[d] == 1) continue;
        if (rows > 1 && t->shape[d] > 1 && t->stride[d] != rows * stride) return false;
        if (rows == 1) stride = t->stride[d];
        rows *= t->shape[d];
    }
    t->rank = 2;
    t->shape[0] = rows;
    t->shape[1] = columns;
    t->stride[0] = stride;
    t->stride[1] = 1;
    return true;
}

void atto__view_move(atto_tensor *t, int32_t from, int32_t to)
{
    const int64_t size = t->shape[from], stride = t->stride[from];
    const int32_t step = from < to ? 1 : -1;
    for (int32_t d = from; d != to; d += step) {
        t->shape[d] = t->shape[d + step];
        t->stride[d] = t->stride[d + step];
    }
    t->shape[to] = size;
    t->stride[to] = stride;
}

bool atto__view_dense_by(const atto_tensor *t, int32_t innermost)
{
    atto_tensor moved = *t;
    if (t->rank > 0) atto__view_move(&moved, innermost, t->rank - 1);
    return atto__view_dense(&moved);
}

int32_t atto__view_innermost(const atto_tensor *t)
{
    for (int32_t c = 0; c < 2 && t->rank >= 3 && !atto__view_dense(t); c++)
        if (atto__view_dense_by(t, c)) return c;
    return t->rank - 1;
}

void atto__view_image(atto_tensor *t, int32_t spatial)
{
    const atto_tensor from = *t;
    t->rank = 4;
    for (int32_t d = 0; d < 4; d++) {
        t->shape[d] = 1;
        t->stride[d] = 0;
    }
    for (int32_t d = 0; d < from.rank; d++) {
        const int32_t behind = from.rank - 1 - d; /* dimensions to the right of it */
        const int32_t to = behind < spatial ? 3 - behind : 1 - (behind - spatial);
        t->shape[to] = from.shape[d];
        t->stride[to] = from.shape[d] == 1 ? 0 : from.stride[d];
    }
}

bool atto__image_unit(atto_tensor *t, bool channels_last)
{
    const int32_t d = channels_last ? 1 : 3;
    if (t->shape[d] > 1 && t->stride[d] != 1) return false;
    t->stride[d] = 1;
    return true;
}

bool atto__image_channels_last(const atto_tensor *t, int32_t spatial)
{
    atto_tensor image = *t;
    atto__view_image(&image, spatial);
    return !atto__image_unit(&image, false) && atto__image_unit(&image, true);
}

bool atto__view_expand(atto_tensor *view, const atto_tensor *full, uint32_t dims)
{
    atto_tensor out = *view;
    const int32_t lacks = full->rank - view->rank;
    if (lacks < 0) return false;
    if (dims == 0) dims = (1u << lacks) - 1u;
    out.rank = full->rank;
    int32_t from = 0;
    for (int32_t d = 0; d < full->rank; d++) {
        const bool lacking = lacks > 0 && (dims >> d & 1u);
        if (!lacking && from == view->rank) return false;
        const int64_t size = lacking ? 1 : view->shape[from];
        const int64_t stride = lacking ? 0 : view->stride[from];
        if (!lacking) from++;
        if (size != 1 && size != full->shape[d]) return false;
        out.shape[d] = full->shape[d];
        out.stride[d] = size == 1 ? 0 : stride;
    }
    if (from != view->rank) return false;
    *view = out;
    return true;
}

bool atto__view_matrices(const atto_tensor *t)
{
    for (int32_t d = t->rank - 2; d < t->rank; d++)
        if (t->shape[d] <= 1 || t->stride[d] == 1) return true;
    return false;
}

void atto__batch_join(atto_tensor *batch, const atto_tensor *t)
{
    const int32_t rank = batch->rank > t->rank ? batch->rank : t->rank;
    int64_t shape[ATTO_MAX_RANK] = { 0 };
    for (int32_t d = 0; d < rank; d++) {
        const int32_t ours = d - (rank - batch->rank), theirs = d - (rank - t->rank);
        const int64_t size = ours < 0 ? 1 : batch->shape[ours];
        shape[d] = size == 1 && theirs >= 0 ? t->shape[theirs] : size;
    }
    batch->rank = rank;
    memcpy(batch->shape, shape, sizeof shape);
}

void atto__view_batch(atto_tensor *view, const atto_tensor *batch)
{
    const atto_tensor from = *view;
    const int32_t lacks = batch->rank - from.rank;
    view->rank = batch->rank;
    for (int32_t d = 0; d < batch->rank; d++) {
        const bool is_matrix = d >= batch->rank - 2;
        const int64_t size = d < lacks ? 1 : from.shape[d - lacks];
        view->shape[d] = is_matrix ? size : batch->shape[d];
        view->stride[d] = is_matrix   ? from.stride[d - lacks]
                          : size == 1 ? 0
                          : size == 0 ? 1 /* 0 would mean that it is repeated */
                                      : from.stride[d - lacks];
    }
}

bool atto__view_dense(const atto_tensor *t)
{
    if (atto_tensor_numel(t) == 0) return true;
    int64_t stride = 1;
    for (int32_t d = t->rank - 1; d >= 0; d--) {
        if (t->shape[d] > 1 && t->stride[d] != stride) return false;
        stride *= t->shape[d];
    }
    return true;
}

bool atto__view_distinct(const atto_tensor *t)
{
    int64_t shape[ATTO_MAX_RANK], stride[ATTO_MAX_RANK];
    int64_t reach = 0; /* of the dimensions with smaller strides */
    if (atto_tensor_numel(t) == 0) return true;
    for (int32_t d = sort_dims(t, shape, stride) - 1; d >= 0; d--) {
        if (stride[d] <= reach) return false;
        reach += (shape[d] - 1) * stride[d];
    }
    return true;
}

bool atto__view_same(const atto_tensor *a, const atto_tensor *b)
{
    if (a->buffer != b->buffer || a->dtype != b->dtype || a->offset != b->offset ||
        !atto__shape_same(a, b))
        return false;
    for (int32_t d = 0; d < a->rank; d++)
        if (a->shape[d] > 1 && a->stride[d] != b->stride[d]) return false;
    return true;
}

/* A stride that two views share, and how many steps of it their elements are apart at most. */
typedef struct lattice_dim {
    int64_t stride, below, above;
} lattice_dim;

/* Whether two views have an element in common, one starting distance elements after the other: is
 * distance = sum of k[d] * stride[d] with -below[d] <= k[d] <= above[d]? Strides fall and nest, so at
 * each dimension only the two multiples around the rest can do. */
static bool lattice_hit(int64_t distance, const lattice_dim *dims, int32_t n)
{
    if (n == 0) return distance == 0;
    int64_t k = distance / dims->stride - (distance % dims->stride < 0);
    for (int32_t i = 0; i < 2; i++, k++)
        if (k >= -dims->below && k <= dims->above &&
            lattice_hit(distance - k * dims->stride, dims + 1, n - 1))
            return true;
    return false;
}

/* A view that has the larger of both sizes and the strides of both; false where these differ. */
static bool join_strides(const atto_tensor *a, const atto_tensor *b, atto_tensor *joint)
{
    if (a->dtype != b->dtype || a->rank != b->rank) return false;
    *joint = *a;
    for (int32_t d = 0; d < a->rank; d++) {
        if (a->shape[d] > 1 && b->shape[d] > 1 && a->stride[d] != b->stride[d]) return false;
        if (a->shape[d] < b->shape[d]) joint->shape[d] = b->shape[d];
        if (a->shape[d] < 2) joint->stride[d] = b->stride[d];
    }
    return true;
}

/* Dimensions of either view with more than one element, by falling stride; returns how many. */
static int32_t lattice_of(const atto_tensor *a, const atto_tensor *b, const atto_tensor *joint,
                          lattice_dim *dims)
{
    int32_t n = 0;
    for (int32_t d = 0; d < joint->rank; d++) {
        if (joint->shape[d] < 2) continue;
        int32_t at = n++;
        for (; at > 0 && dims[at - 1].stride < joint->stride[d]; at--) dims[at] = dims[at - 1];
        dims[at] = (lattice_dim){ joint->stride[d], a->shape[d] - 1, b->shape[d] - 1 };
    }
    return n;
}

bool atto__view_overlap(const atto_tensor *a, const atto_tensor *b)
{
    if (!a->buffer || a->buffer != b->buffer) return false;
    const int64_t size_a = (int64_t)atto_dtype_size(a->dtype);
    const int64_t size_b = (int64_t)atto_dtype_size(b->dtype);
    const int64_t start_a = a->offset * size_a, end_a = start_a + atto__extent(a) * size_a;
    const int64_t start_b = b->offset * size_b, end_b = start_b + atto__extent(b) * size_b;
    if (start_a == end_a || start_b == end_b || end_a <= start_b || end_b <= start_a) return false;
    atto_tensor joint;
    lattice_dim dims[ATTO_MAX_RANK];
    if (!join_strides(a, b, &joint) || !atto__view_distinct(&joint)) return true;
    return lattice_hit(a->offset - b->offset, dims, lattice_of(a, b, &joint, dims));
}

/* One dimension of the joint walk: its size, every tensor's stride, the logical index's stride. */
typedef struct walk_dim {
    int64_t size;
    int64_t stride[ATTO_MAX_TENSORS];
    int64_t index;
} walk_dim;

/* Dimensions with more than one element, ordered by the falling strides of the first tensor; equal
 * strides keep their order. */
static int32_t collect_dims(atto_tensor *const *tensors, int32_t n, walk_dim *dims)
{
    int32_t count = 0;
    int64_t index = 1;
    walk_dim logical[ATTO_MAX_RANK];
    for (int32_t d = tensors[0]->rank - 1; d >= 0; d--) {
        logical[d].size = tensors[0]->shape[d];
        logical[d].index = index;
        index *= logical[d].size;
        for (int32_t t = 0; t < n; t++) logical[d].stride[t] = tensors[t]->stride[d];
    }
    for (int32_t d = 0; d < tensors[0]->rank; d++) {
        if (logical[d].size < 2) continue;
        int32_t at = count++;
        for (; at > 0 && dims[at - 1].stride[0] < logical[d].stride[0]; at--)
            dims[at] = dims[at - 1];
        dims[at] = logical[d];
    }
    return count;
}

static bool mergeable(const walk_dim *outer, const walk_dim *inner, int32_t n, bool by_index)
{
    for (int32_t t = 0; t < n; t++)
        if (outer->stride[t] != inner->stride[t] * inner->size) return false;
    return !by_index || outer->index == inner->index * inner->size;
}

static int32_t merge_dims(walk_dim *dims, int32_t count, int32_t n, bool by_index)
{
    int32_t merged = 0;
    for (int32_t d = 0; d < count; d++) {
        if (merged > 0 && mergeable(&dims[merged - 1], &dims[d], n, by_index)) {
            const int64_t outer_size = dims[merged - 1].size;
            dims[merged - 1] = dims[d];
            dims[merged - 1].size *= outer_size;
        } else {
            dims[merged++] = dims[d];
        }
    }
    return merged;
}

static bool is_dense(const walk_dim *dims, int32_t rank, int32_t n, bool by_index)
{
    if (rank > 1) return false;
    for (int32_t t = 0; rank == 1 && t < n; t++)
        if (dims[0].stride[t] != 1) return false;
    return rank == 0 || !by_index || dims[0].index == 1;
}

static bool is_wide(const walk_dim *dims, int32_t rank, int32_t n, int64_t numel)
{
    bool wide = numel > INT32_MAX;
    for (int32_t t = 0; t < n; t++) {
        int64_t extent = 1;
        for (int32_t d = 0; d < rank; d++) extent += (dims[d].size - 1) * dims[d].stride[t];
        wide = wide || extent > INT32_MAX;
    }
    return wide;
}

bool atto__layout_merge(atto_tensor *const *tensors, int32_t n, bool by_index, bool force_wide,
                        atto__layout *out)
{
    walk_dim dims[ATTO_MAX_RANK];
    const int64_t numel = atto_tensor_numel(tensors[0]);
    const int32_t rank = merge_dims(dims, collect_dims(tensors, n, dims), n, by_index);
    if (rank > ATTO_MERGED_RANK) return false;
    memset(out, 0, sizeof *out);
    out->rank = rank;
    out->numel = numel;
    out->dense = is_dense(dims, rank, n, by_index);
    out->wide = force_wide || is_wide(dims, rank, n, numel);
    for (int32_t d = 0; d < rank; d++) {
        out->shape[d] = dims[d].size;
        out->index_stride[d] = dims[d].index;
    }
    for (int32_t t = 0; t < n; t++) {
        tensors[t]->rank = rank;
        for (int32_t d = 0; d < rank; d++) {
            tensors[t]->shape[d] = dims[d].size;
            tensors[t]->stride[d] = dims[d].stride[t];
        }
    }
    return true;
}
