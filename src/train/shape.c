/* SPDX-License-Identifier: MIT */
/* Shapes on a tape: views, which show their input's memory, and what joins. Backward needs shapes
 * and numbers only. */
#include <attocl/record.h>

#include <inttypes.h>
#include <string.h>

#include "layers/checks.h"
#include "layout.h"
#include "train/tape.h"

/* ---- views ---- */

/* Records a view of x, which is taken over: of x's memory, or of a copy. */
static atto_var record_view(atto_tape *tape, const atto_op_class *cls, const void *args,
                            size_t args_bytes, atto_var x, atto_tensor *view)
{
    const atto_tensor *from = atto__tape_tensor(tape, cls->name, x);
    const bool shares = from && view->buffer == from->buffer;
    const int32_t source = from ? atto__values(tape)[x.slot].source : -1;
    const atto_var y = atto__record_unread(tape, cls, args, args_bytes, &x, 1, view);
    if (shares && y.generation != 0) atto__values(tape)[y.slot].source = source;
    return y;
}

/* Of x, with the status of the call that made it. */
static atto_var take_view(atto_tape *tape, const atto_op_class *cls, const void *args,
                          size_t args_bytes, atto_var x, atto_status status, atto_tensor *view)
{
    if (status != ATTO_OK) {
        atto__tape_fail(tape, atto__fail_in(status, "%s: ", cls->name));
        return atto__no_var();
    }
    atto_tensor_retain(view);
    return record_view(tape, cls, args, args_bytes, x, view);
}

/* into = or += from */
static atto_status put(atto_tape *tape, const atto_tensor *into, const atto_tensor *from, bool add)
{
    return add ? atto__accumulate(tape->dev, into, from) : atto_tensor_copy(into, from);
}

/* ---- reshape ---- */

/* The output's gradient, seen with the input's shape. */
static atto_status reshape_backward(atto_tape *tape, atto_node *node)
{
    const atto_tensor *into;
    bool add;
    atto_tensor seen;
    ATTO_TRY(atto_node_input_grad(tape, node, 0, &into, &add));
    if (!into) return ATTO_OK;
    ATTO_TRY(atto_tensor_reshape(atto_node_output_grad(tape, node),
                                 atto_shape_of(into->rank, into->shape), &seen));
    return put(tape, into, &seen, add);
}

static const atto_op_class reshape_class = { "reshape", reshape_backward };

/* A view where the strides allow it, else a dense copy. */
static atto_status reshape(atto_tape *tape, const atto_tensor *x, atto_shape shape,
                           atto_tensor *out)
{
    const atto_status status = atto_tensor_reshape(x, shape, out);
    if (status == ATTO_OK) atto_tensor_retain(out);
    if (status != ATTO_E_STRIDE) return status;
    atto_tensor dense;
    ATTO_TRY(atto_tensor_alloc(tape->dev, x->dtype, atto_shape_of(x->rank, x->shape), &dense));
    const atto_status copied = atto_tensor_copy(&dense, x);
    if (copied == ATTO_OK) return atto_tensor_reshape(&dense, shape, out);
    atto_tensor_free(&dense);
    return copied;
}

atto_var atto_reshape(atto_tape *tape, atto_var x, atto_shape shape)
{
    const atto_tensor *from = atto__tape_tensor(tape, "reshape", x);
    atto_tensor view = { 0 };
    if (!from || atto__tape_fail(tape, reshape(tape, from, shape, &view)) != ATTO_OK)
        return atto__no_var();
    return record_view(tape, &reshape_class, NULL, 0, x, &view);
}

static atto_status check_dim(const char *call, int32_t dim, int32_t rank)
{
    ATTO_REQUIRE(rank <= ATTO_MAX_RANK, ATTO_E_SHAPE,
                 "%s: the result would have %d dimensions, expected at most %d", call, (int)rank,
                 ATTO_MAX_RANK);
    ATTO_REQUIRE(rank > 0, ATTO_E_ARGUMENT, "%s: dim is %d of a value that has no dimensions", call,
                 (int)dim);
    ATTO_REQUIRE(dim >= -rank && dim < rank, ATTO_E_ARGUMENT, "%s: dim is %d, expected %d to %d",
                 call, (int)dim, (int)-rank, (int)rank - 1);
    return ATTO_OK;
}

/* Dimension dim of a result of that rank; -1 with the tape's error. */
static int32_t new_dim(atto_tape *tape, const char *call, int32_t dim, int32_t rank)
{
    if (atto__tape_fail(tape, check_dim(call, dim, rank)) != ATTO_OK) return -1;
    return dim < 0 ? dim + rank : dim;
}

atto_var atto_unsqueeze(atto_tape *tape, atto_var x, int32_t dim)
{
    const atto_tensor *t = atto__tape_tensor(tape, "unsqueeze", x);
    const int32_t at = t ? new_dim(tape, "unsqueeze", dim, t->rank + 1) : -1;
    if (at < 0) return atto__no_var();
    atto_tensor view = *t;
    memmove(view.shape + at + 1, t->shape + at, (size_t)(t->rank - at) * sizeof *view.shape);
    memmove(view.stride + at + 1, t->stride + at, (size_t)(t->rank - at) * sizeof *view.stride);
    view.shape[at] = 1;
    view.stride[at] = at < t->rank ? t->shape[at] * t->stride[at] : 1;
    view.rank++;
    return take_view(tape, &reshape_class, NULL, 0, x, ATTO_OK, &view);
}

static atto_status squeeze(const atto_tensor *t, int32_t at, atto_tensor *view)
{
    ATTO_REQUIRE(t->shape[at] == 1, ATTO_E_SHAPE, "dimension %d has size %" PRId64 ", expected 1",
                 (int)at, t->shape[at]);
    const size_t behind = (size_t)(t->rank - at - 1);
    *view = *t;
    memmove(view->shape + at, t->shape + at + 1, behind * sizeof *view->shape);
    memmove(view->stride + at, t->stride + at + 1, behind * sizeof *view->stride);
    view->rank--;
    return ATTO_OK;
}

atto_var atto_squeeze(atto_tape *tape, atto_var x, int32_t dim)
{
    const atto_tensor *t = atto__tape_tensor(tape, "squeeze", x);
    const int32_t at = t ? new_dim(tape, "squeeze", dim, t->rank) : -1;
    atto_tensor view;
    if (at < 0) return atto__no_var();
    const atto_status status = squeeze(t, at, &view);
    if (status != ATTO_OK) atto__tape_fail(tape, atto__fail_in(status, "squeeze: "));
    return status == ATTO_OK ? take_view(tape, &reshape_class, NULL, 0, x, ATTO_OK, &view)
                             : atto__no_var();
}

/* ---- permute ---- */

typedef struct permutation {
    int32_t order[ATTO_MAX_RANK]; /* dimension i of the output is dimension order[i] of the input */
} permutation;

static atto_status permute_backward(atto_tape *tape, atto_node *node)
{
    const permutation *p = atto_node_args(tape, node);
    const atto_tensor *into, *dy = atto_node_output_grad(tape, node);
    int32_t inverse[ATTO_MAX_RANK];
    bool add;
    atto_tensor seen;
    ATTO_TRY(atto_node_input_grad(tape, node, 0, &into, &add));
    if (!into) return ATTO_OK;
    for (int32_t d = 0; d < dy->rank; d++) inverse[p->order[d]] = d;
    ATTO_TRY(atto_tensor_permute(dy, inverse, &seen));
    return put(tape, into, &seen, add);
}

static const atto_op_class permute_class = { "permute", permute_backward };

atto_var atto_permute(atto_tape *tape, atto_var x, const int32_t *order)
{
    const atto_tensor *t = atto__tape_tensor(tape, "permute", x);
    atto_tensor view = { 0 };
    permutation p = { { 0 } };
    if (!t) return atto__no_var();
    const atto_status status = atto_tensor_permute(t, order, &view);
    for (int32_t d = 0; status == ATTO_OK && d < t->rank; d++)
        p.order[d] = order[d] < 0 ? order[d] + t->rank : order[d];
    return take_view(tape, &permute_class, &p, sizeof p, x, status, &view);
}

atto_var atto_transpose(atto_tape *tape, atto_var x, int32_t dim0, int32_t dim1)
{
    const atto_tensor *t = atto__tape_tensor(tape, "transpose", x);
    const int32_t a = t ? new_dim(tape, "transpose", dim0, t->rank) : -1;
    const int32_t b = a < 0 ? -1 : new_dim(tape, "transpose", dim1, t->rank);
    int32_t order[ATTO_MAX_RANK];
    if (b < 0) return atto__no_var();
    for (int32_t d = 0; d < t->rank; d++) order[d] = d == a ? b : d == b ? a : d;
    return atto_permute(tape, x, order);
}

/* ---- slice, split ---- */

typedef struct range {
    int32_t dim;
    int64_t start, end, step;
} range;

static atto_status slice_backward(atto_tape *tape, atto_node *node)
{
    const range *r = atto_node_args(tape, node);
    const atto_tensor *into;
    bool add;
    atto_tensor part;
    ATTO_TRY(atto_node_input_grad(tape, node, 0, &into, &add));
    if (!into) return ATTO_OK;
    ATTO_TRY(atto_tensor_slice(into, r->dim, r->start, r->end, r->step, &part));
    if (!add) ATTO_TRY(atto_tensor_fill(into, 0.0));
    return put(tape, &part, atto_node_output_grad(tape, node), add);
}

static const atto_op_class slice_class = { "slice", slice_backward };

atto_var atto_slice(atto_tape *tape, atto_var x, int32_t dim, int64_t start, int64_t end,
                    int64_t step)
{
    const atto_tensor *t = atto__tape_tensor(tape, "slice", x);
    const range r = { dim, start, end, step };
    atto_tensor view = { 0 };
    if (!t) return atto__no_var();
    const atto_status status = atto_tensor_slice(t, dim, start, end, step, &view);
    return take_view(tape, &slice_class, &r, sizeof r, x, status, &view);
}

static atto_status check_split(const atto_tensor *t, int32_t at, const int64_t *sizes,
                               int32_t count)
{
    int64_t left = t->shape[at];
    for (int32_t i = 0; i < count; i++) {
        ATTO_REQUIRE(sizes[i] >= 0, ATTO_E_ARGUMENT,
                     "split: size %d is %" PRId64 ", expected 0 or more", (int)i, sizes[i]);
        left -= sizes[i] <= left ? sizes[i] : left + 1;
    }
    ATTO_REQUIRE(left == 0, ATTO_E_SHAPE,
                 "split: the sizes do not add up to the %" PRId64 " of dimension %d", t->shape[at],
                 (int)at);
    return ATTO_OK;
}

void atto_split(atto_tape *tape, atto_var x, int32_t dim, const int64_t *sizes, int32_t count,
                atto_var *out)
{
    for (int32_t i = 0; out && i < count; i++) out[i] = atto__no_var();
    const atto_tensor *t = atto__tape_tensor(tape, "split", x);
    const int32_t at = t ? new_dim(tape, "split", dim, t->rank) : -1;
    if (at < 0) return;
    if (count > 0 && (!sizes || !out))
        atto__tape_fail(tape,
                        atto__fail(ATTO_E_NULL, "split: %s is NULL", sizes ? "out" : "sizes"));
    else
        atto__tape_fail(tape, check_split(t, at, sizes, count));
    int64_t start = 0;
    for (int32_t i = 0; i < count && atto_tape_status(tape) == ATTO_OK; i++) {
        out[i] = atto_slice(tape, x, at, start, start + sizes[i], 1);
        start += sizes[i];
    }
}

/* ---- expand ---- */

/* The sum over the repetitions: that of an addition with something of the output's shape. */
static atto_status expand_backward(atto_tape *tape, atto_node *node)
{
    const atto_tensor *into;
    bool add;
    ATTO_TRY(atto_node_input_grad(tape, node, 0, &into, &add));
    if (!into) return ATTO_OK;
    const struct atto_binary_args a = {
        .kind = ATTO_BINARY_ADD, .dy = atto_node_output_grad(tape, node), .da = into, .add_da = add
    };
    return atto_binary_backward(tape->dev, &a);
}

static const atto_op_class expand_class = { "expand", expand_backward };

atto_var atto_expand(atto_tape *tape, atto_var x, atto_shape shape)
{
    const atto_tensor *t = atto__tape_tensor(tape, "expand", x);
    atto_tensor view = { 0 };
    if (!t) return atto__no_var();
    const atto_status status = atto_tensor_expand(t, shape, &view);
    return take_view(tape, &expand_class, NULL, 0, x, status, &view);
}

/* ---- concat, stack ---- */

/* Input i lies behind those before it in dimension dim of the output. */
static atto_status concat_backward(atto_tape *tape, atto_node *node)
{
    const int32_t dim = *(const int32_t *)atto_node_args(tape, node);
    int64_t start = 0;
    for (int32_t i = 0; i < node->input_count; i++) {
        const atto_tensor *into;
        bool add;
        atto_tensor part;
        const int64_t end = start + atto_node_input(tape, node, i)->shape[dim];
        ATTO_TRY(atto_node_input_grad(tape, node, i, &into, &add));
        ATTO_TRY(atto_tensor_slice(atto_node_output_grad(tape, node), dim, start, end, 1, &part));
        if (into) ATTO_TRY(put(tape, into, &part, add));
        start = end;
    }
    return ATTO_OK;
}

static const atto_op_class concat_class = { "concat", concat_backward };

/* The shape of the parts one behind the other. */
static atto_status joined_shape(const atto_tensor *const *parts, int32_t count, int32_t dim,
                                atto_shape *shape)
{
    const atto_tensor *first = parts[0];
    char got[ATTO_SHAPE_TEXT], wanted[ATTO_SHAPE_TEXT];
    *shape = atto_shape_of(first->rank, first->shape);
    for (int32_t i = 1; i < count; i++) {
        const atto_tensor *t = parts[i];
        bool fits = t->rank == first->rank && t->dtype == first->dtype;
        for (int32_t d = 0; fits && d < t->rank; d++)
            fits = d == dim || t->shape[d] == first->shape[d];
        ATTO_REQUIRE(fits, t->dtype == first->dtype ? ATTO_E_SHAPE : ATTO_E_DTYPE,
                     "concat: input %d is %s %s, beside %s %s, joined along dimension %d", (int)i,
                     atto_dtype_name(t->dtype), atto__shape_text(t, got),
                     atto_dtype_name(first->dtype), atto__shape_text(first, wanted), (int)dim);
        ATTO_REQUIRE(t->shape[dim] <= INT64_MAX - shape->dim[dim], ATTO_E_SHAPE,
                     "concat: too long");
        shape->dim[dim] += t->shape[dim];
    }
    return ATTO_OK;
}

static atto_status join(atto_tape *tape, const atto_tensor *const *parts, int32_t count,
                        int32_t dim, atto_tensor *out)
{
    atto_shape shape;
    int64_t start = 0;
    ATTO_TRY(joined_shape(parts, count, dim, &shape));
    ATTO_TRY(atto_tensor_alloc(tape->dev, parts[0]->dtype, shape, out));
    for (int32_t i = 0; i < count; i++) {
        atto_tensor part;
        const int64_t end = start + parts[i]->shape[dim];
        ATTO_TRY(atto_tensor_slice(out, dim, start, end, 1, &part));
        ATTO_TRY(atto_tensor_copy(&part, parts[i]));
        start = end;
    }
    return ATTO_OK;
}

/* At most ATTO_NODE_INPUTS values. */
static atto_var concat_few(atto_tape *tape, const atto_var *parts, int32_t count, int32_t dim)
{
    const atto_tensor *tensors[ATTO_NODE_INPUTS] = { NULL };
    atto_tensor out = { 0 };
    for (int32_t i = 0; i < count; i++) {
        tensors[i] = atto__tape_tensor(tape, "concat", parts[i]);
        if (!tensors[i]) return atto__no_var();
    }
    const int32_t at = new_dim(tape, "concat", dim, tensors[0]->rank);
    if (at < 0) return atto__no_var();
    if (atto__tape_fail(tape, join(tape, tensors, count, at, &out)) != ATTO_OK) {
        atto_tensor_free(&out);
        return atto__no_var();
    }
    return atto__record_unread(tape, &concat_class, &at, sizeof at, parts, count, &out);
}

/* One of the values, in that dtype (0: its own); stacks: given dimension dim. */
static atto_var one_part(atto_tape *tape, atto_var part, int32_t dim, bool stacks, atto_dtype dtype)
{
    if (dtype) part = atto__autocast_var(tape, part, dtype);
    return stacks ? atto_unsqueeze(tape, part, dim) : part;
}

/* More values than a node takes are joined in as many parts. */
static atto_var concat_any(atto_tape *tape, const atto_var *parts, int32_t count, int32_t dim,
                           bool stacks, atto_dtype dtype)
{
    atto_var few[ATTO_NODE_INPUTS];
    const int32_t most = ATTO_NODE_INPUTS, groups = count < most ? count : most;
    for (int32_t i = 0; i < groups; i++) {
        const int32_t begin = (int32_t)((int64_t)count * i / groups);
        const int32_t end = (int32_t)((int64_t)count * (i + 1) / groups);
        few[i] = end - begin > 1 ? concat_any(tape, parts + begin, end - begin, dim, stacks, dtype)
                                 : one_part(tape, parts[begin], dim, stacks, dtype);
    }
    return concat_few(tape, few, groups, dim);
}

static bool has_parts(atto_tape *tape, const char *call, const atto_var *parts, int32_t count)
{
    if (!tape || tape->status != ATTO_OK) return false;
    if (parts && count > 0) return true;
    atto__tape_fail(tape, parts ? atto__fail(ATTO_E_ARGUMENT, "%s: %d inputs, expected 1 or more",
                                             call, (int)count)
                                : atto__fail(ATTO_E_NULL, "%s: inputs is NULL", call));
    return false;
}

/* The widest of the floats, for autocast; 0 if it is off, or for integers. */
static atto_dtype widest(atto_tape *tape, const atto_var *parts, int32_t count)
{
    atto_dtype dtype = 0;
    for (int32_t i = 0; atto_tape_autocast_dtype(tape) != ATTO_F32 && i < count; i++) {
        const atto_tensor *t = atto__tape_tensor(tape, "concat", parts[i]);
        if (t && atto__is_float(t->dtype)) dtype = dtype ? atto__wider(dtype, t->dtype) : t->dtype;
    }
    return dtype;
}

static atto_var join_all(atto_tape *tape, const char *call, const atto_var *inputs, int32_t count,
                         int32_t dim, bool stacks)
{
    if (!has_parts(tape, call, inputs, count)) return atto__no_var();
    return concat_any(tape, inputs, count, dim, stacks, widest(tape, inputs, count));
}

atto_var atto_concat(atto_tape *tape, const atto_var *inputs, int32_t count, int32_t dim)
{
    return join_all(tape, "concat", inputs, count, dim, false);
}

atto_var atto_stack(atto_tape *tape, const atto_var *inputs, int32_t count, int32_t dim)
{
    return join_all(tape, "stack", inputs, count, dim, true);
}
