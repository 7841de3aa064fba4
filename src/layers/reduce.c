/* SPDX-License-Identifier: MIT */
/* Reductions: names, checks, and the public calls. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "layers/checks.h"
#include "train/module.h"

const char *atto_reduce_name(atto_reduce_kind kind)
{
    static const char *const names[] = {
#define X(NAME, name) #name,
        ATTO_REDUCE_TABLE(X)
#undef X
    };
    return (int)kind >= 0 && kind < ATTO_REDUCE_COUNT ? names[kind] : "?";
}

static bool is_arg(atto_reduce_kind kind)
{
    return kind == ATTO_REDUCE_ARGMAX || kind == ATTO_REDUCE_ARGMIN;
}

static bool is_extreme(atto_reduce_kind kind)
{
    return kind == ATTO_REDUCE_MAX || kind == ATTO_REDUCE_MIN;
}

/* ---- dims ---- */

/* Bit d for each dimension of a tensor of that rank that is reduced. dims are checked. */
static uint32_t dims_of(const struct atto_reduce_args *a, int32_t rank)
{
    uint32_t bits = a->dim_count == 0 ? (1u << rank) - 1u : 0;
    for (int32_t i = 0; i < a->dim_count; i++)
        bits |= 1u << (a->dims[i] < 0 ? a->dims[i] + rank : a->dims[i]);
    return bits;
}

static atto_status check_dims(const char *what, const struct atto_reduce_args *a, int32_t rank)
{
    uint32_t seen = 0;
    ATTO_REQUIRE(a->dim_count >= 0 && a->dim_count <= rank, ATTO_E_ARGUMENT,
                 "%s: dim_count is %d, expected 0 to x's rank, %d", what, (int)a->dim_count,
                 (int)rank);
    for (int32_t i = 0; i < a->dim_count; i++) {
        const int32_t dim = a->dims[i];
        ATTO_REQUIRE(dim >= -rank && dim < rank, ATTO_E_ARGUMENT,
                     "%s: dims[%d] is %d, expected %d to %d", what, (int)i, (int)dim, (int)-rank,
                     (int)(rank - 1));
        const uint32_t bit = 1u << (dim < 0 ? dim + rank : dim);
        ATTO_REQUIRE(!(seen & bit), ATTO_E_ARGUMENT, "%s: dims names dimension %d twice", what,
                     (int)(dim < 0 ? dim + rank : dim));
        seen |= bit;
    }
    return ATTO_OK;
}

/* Elements of x over dims. */
static int64_t length_of(const struct atto_reduce_args *a, const atto_tensor *x)
{
    const uint32_t bits = dims_of(a, x->rank);
    int64_t n = 1;
    for (int32_t d = 0; d < x->rank; d++)
        if (bits >> d & 1u) n *= x->shape[d];
    return n;
}

/* y's shape where the dims are kept with size 1, or dropped. */
static atto_shape shape_of(const atto_tensor *x, uint32_t dims, bool keep)
{
    atto_shape shape = { 0, { 0 } };
    for (int32_t d = 0; d < x->rank; d++) {
        const bool reduced = dims >> d & 1u;
        if (!reduced || keep) shape.dim[shape.rank++] = reduced ? 1 : x->shape[d];
    }
    return shape;
}

static atto_status check_small(const char *what, const struct atto_reduce_args *a,
                               const atto_tensor *x, const char *name, const atto_tensor *t)
{
    char got[ATTO_SHAPE_TEXT], wanted[ATTO_SHAPE_TEXT];
    const uint32_t dims = dims_of(a, x->rank);
    const atto_tensor kept = atto_tensor_of(NULL, ATTO_F32, shape_of(x, dims, true), 0);
    const atto_tensor dropped = atto_tensor_of(NULL, ATTO_F32, shape_of(x, dims, false), 0);
    ATTO_REQUIRE(atto__shape_same(t, &kept) || atto__shape_same(t, &dropped), ATTO_E_SHAPE,
                 "%s: %s is %s, expected %s, or with size 1 for each dimension reduced", what, name,
                 atto__shape_text(t, got), atto__shape_text(&dropped, wanted));
    return ATTO_OK;
}

/* ---- checks ---- */

static atto_status check_like(const char *what, const char *name, const atto_tensor *t,
                              const char *x_name, const atto_tensor *x)
{
    ATTO_REQUIRE(t->dtype == x->dtype, ATTO_E_DTYPE, "%s: %s is %s, expected %s's %s", what, name,
                 atto_dtype_name(t->dtype), x_name, atto_dtype_name(x->dtype));
    return ATTO_OK;
}

static atto_status check_float(const char *what, const char *name, const atto_tensor *t)
{
    ATTO_REQUIRE(atto__is_float(t->dtype), ATTO_E_DTYPE, "%s: %s is %s, expected f32, f16 or bf16",
                 what, name, atto_dtype_name(t->dtype));
    return ATTO_OK;
}

static atto_status check_position(const char *what, const struct atto_reduce_args *a)
{
    ATTO_REQUIRE(a->y->dtype == ATTO_I32 || a->y->dtype == ATTO_I64, ATTO_E_DTYPE,
                 "%s: y is %s, expected i32 or i64", what, atto_dtype_name(a->y->dtype));
    ATTO_REQUIRE(a->y->dtype == ATTO_I64 || length_of(a, a->x) <= INT32_MAX, ATTO_E_ARGUMENT,
                 "%s: y is i32, which cannot count the %" PRId64 " elements reduced", what,
                 length_of(a, a->x));
    return ATTO_OK;
}

static atto_status check_forward(const char *what, const struct atto_reduce_args *a)
{
    ATTO_TRY(check_float(what, "x", a->x));
    ATTO_TRY(check_dims(what, a, a->x->rank));
    ATTO_TRY(check_small(what, a, a->x, "y", a->y));
    ATTO_TRY(is_arg(a->kind) ? check_position(what, a) : check_like(what, "y", a->y, "x", a->x));
    ATTO_REQUIRE(
        a->kind == ATTO_REDUCE_SUM || a->kind == ATTO_REDUCE_MEAN || length_of(a, a->x) > 0,
        ATTO_E_SHAPE, "%s: the %s of no elements does not exist", what, atto_reduce_name(a->kind));
    return ATTO_OK;
}

static atto_status check_backward(const char *what, const struct atto_reduce_args *a)
{
    const bool needs = is_extreme(a->kind);
    ATTO_REQUIRE(!is_arg(a->kind), ATTO_E_UNSUPPORTED, "%s: %s has no gradient", what,
                 atto_reduce_name(a->kind));
    ATTO_REQUIRE(!needs || (a->x && a->y), ATTO_E_NULL, "%s: %s is NULL, which dx of %s needs",
                 what, a->x ? "y" : "x", atto_reduce_name(a->kind));
    const atto_tensor *x = a->dx ? a->dx : a->x;
    const char *x_name = a->dx ? "dx" : "x";
    ATTO_TRY(check_float(what, "dy", a->dy));
    if (!x) return ATTO_OK; /* nothing is wanted */
    char got[ATTO_SHAPE_TEXT], wanted[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(!a->x || atto__shape_same(a->x, x), ATTO_E_SHAPE, "%s: x is %s, expected dx's %s",
                 what, atto__shape_text(a->x, got), atto__shape_text(x, wanted));
    ATTO_TRY(check_like(what, x_name, x, "dy", a->dy));
    ATTO_TRY(check_dims(what, a, x->rank));
    ATTO_TRY(check_small(what, a, x, "dy", a->dy));
    if (a->y) ATTO_TRY(check_small(what, a, x, "y", a->y));
    if (a->y) ATTO_TRY(check_like(what, "y", a->y, "dy", a->dy));
    return a->x ? check_like(what, "x", a->x, "dy", a->dy) : ATTO_OK;
}

atto_status atto__reduce_check(const struct atto_reduce_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    const char *what = forward ? "reduce_forward" : "reduce_backward";
    ATTO_REQUIRE((int)a->kind >= 0 && a->kind < ATTO_REDUCE_COUNT, ATTO_E_ARGUMENT,
                 "%s: %d is no reduction", what, (int)a->kind);
    return forward ? check_forward(what, a) : check_backward(what, a);
}

/* ---- how tensors expand ---- */

static const atto_tensor *full(const void *args, atto__direction direction)
{
    const struct atto_reduce_args *a = args;
    return direction == ATTO_FORWARD ? a->x : a->dx;
}

static uint32_t dims(const void *args, atto__direction direction)
{
    return dims_of(args, full(args, direction)->rank);
}

static bool indexed(const void *args)
{
    return is_arg(((const struct atto_reduce_args *)args)->kind);
}

static double empty(const void *args, atto__direction direction)
{
    (void)direction;
    return ((const struct atto_reduce_args *)args)->kind == ATTO_REDUCE_MEAN ? (double)NAN : 0.0;
}

const atto__broadcast atto__reduce_broadcast = {
    .full = full, .dims = dims, .indexed = indexed, .empty = empty
};

atto_status atto_reduce_forward(atto_device *dev, const struct atto_reduce_args *a)
{
    return atto__run(dev, ATTO_OP_REDUCE, ATTO_FORWARD, a);
}

atto_status atto_reduce_backward(atto_device *dev, const struct atto_reduce_args *a)
{
    return atto__run(dev, ATTO_OP_REDUCE, ATTO_BACKWARD, a);
}

/* ---- on a tape ---- */

atto_var atto_reduce(atto_tape *tape, atto_reduce_kind kind, atto_var x,
                     const atto_reduce_options *options)
{
    const atto_tensor *t = atto__tape_tensor(tape, "reduce", x);
    if (!t) return atto__no_var();
    const atto_reduce_options all = { .dim_count = 0 };
    const atto_reduce_options *o = options ? options : &all;
    struct atto_reduce_args args = { .kind = kind, .dim_count = o->dim_count };
    memcpy(args.dims, o->dims, sizeof args.dims);
    atto_status status = atto__reserved_check("reduce: options", o->reserved);
    if (status == ATTO_OK) status = check_dims("reduce", &args, t->rank);
    if (atto__tape_fail(tape, status) != ATTO_OK) return atto__no_var();
    const atto_dtype position = o->position ? o->position : ATTO_I64;
    const bool not_read = !is_extreme(kind);
    const atto__binding input = { .field = offsetof(struct atto_reduce_args, x),
                                  .v = x,
                                  .not_read = not_read };
    const atto__result y = { .field = offsetof(struct atto_reduce_args, y),
                             .like_inputs = !is_arg(kind),
                             .dtype = position,
                             .shape = shape_of(t, dims_of(&args, t->rank), o->keep),
                             .not_read = not_read };
    return atto__record_op(tape, ATTO_OP_REDUCE, &args, &input, 1, &y, 1);
}
