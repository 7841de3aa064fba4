/* SPDX-License-Identifier: MIT */
/* Matmul: checks, the public calls and recording. */
#include <inttypes.h>
#include <stddef.h>

#include "layers/checks.h"
#include "train/tape.h"

/* A tensor and its name in messages. */
typedef struct part {
    const char *name;
    const atto_tensor *t; /* NULL: not given */
} part;

/* ---- shapes ---- */

static int64_t rows_of(const atto_tensor *t)
{
    return t->shape[t->rank - 2];
}

static int64_t columns_of(const atto_tensor *t)
{
    return t->shape[t->rank - 1];
}

static atto_status check_rank(const char *what, part p)
{
    char text[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(!p.t || p.t->rank >= 2, ATTO_E_SHAPE,
                 "%s: %s is %s, expected two dimensions or more", what, p.name,
                 p.t ? atto__shape_text(p.t, text) : "");
    return ATTO_OK;
}

/* Size of the batch at distance `from_right` before the matrix. */
static int64_t batch_size(const atto_tensor *t, int32_t from_right)
{
    const int32_t d = t->rank - 3 - from_right;
    return d < 0 ? 1 : t->shape[d];
}

static atto_status check_batches(const char *what, part a, part b)
{
    char a_text[ATTO_SHAPE_TEXT], b_text[ATTO_SHAPE_TEXT];
    for (int32_t i = 0; i < ATTO_MAX_RANK - 2; i++) {
        const int64_t of_a = batch_size(a.t, i), of_b = batch_size(b.t, i);
        ATTO_REQUIRE(of_a == of_b || of_a == 1 || of_b == 1, ATTO_E_SHAPE,
                     "%s: the batches of %s, %s, and %s, %s, do not broadcast: %" PRId64
                     " beside %" PRId64,
                     what, a.name, atto__shape_text(a.t, a_text), b.name,
                     atto__shape_text(b.t, b_text), of_a, of_b);
    }
    return ATTO_OK;
}

/* The shape of a b. */
static atto_shape product_shape(const atto_tensor *a, const atto_tensor *b)
{
    atto_shape shape = { .rank = a->rank > b->rank ? a->rank : b->rank };
    for (int32_t i = 0; i < shape.rank - 2; i++) {
        const int64_t of_a = batch_size(a, i);
        shape.dim[shape.rank - 3 - i] = of_a == 1 ? batch_size(b, i) : of_a;
    }
    shape.dim[shape.rank - 2] = rows_of(a);
    shape.dim[shape.rank - 1] = columns_of(b);
    return shape;
}

/* a b exists, and what its shape is. */
static atto_status check_product(const char *what, part a, part b, atto_shape *out)
{
    char a_text[ATTO_SHAPE_TEXT], b_text[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(columns_of(a.t) == rows_of(b.t), ATTO_E_SHAPE,
                 "%s: %s is %s, whose columns are not the rows of %s, %s", what, a.name,
                 atto__shape_text(a.t, a_text), b.name, atto__shape_text(b.t, b_text));
    ATTO_TRY(check_batches(what, a, b));
    *out = product_shape(a.t, b.t);
    return ATTO_OK;
}

/* ---- checks ---- */

static atto_status check_dtype(const char *what, part p)
{
    ATTO_REQUIRE(!p.t || atto__is_float(p.t->dtype), ATTO_E_DTYPE,
                 "%s: %s is %s, expected f32, f16 or bf16", what, p.name,
                 p.t ? atto_dtype_name(p.t->dtype) : "");
    return ATTO_OK;
}

/* A result of that dtype, or f32. */
static atto_status check_stored(const char *what, part p, const char *like, atto_dtype dtype)
{
    ATTO_REQUIRE(!p.t || p.t->dtype == dtype || p.t->dtype == ATTO_F32, ATTO_E_DTYPE,
                 "%s: %s is %s, expected %s's %s%s", what, p.name,
                 p.t ? atto_dtype_name(p.t->dtype) : "", like, atto_dtype_name(dtype),
                 dtype == ATTO_F32 ? "" : " or f32");
    return ATTO_OK;
}

static atto_status check_same(const char *what, part p, part like)
{
    ATTO_REQUIRE(!p.t || !like.t || p.t->dtype == like.t->dtype, ATTO_E_DTYPE,
                 "%s: %s is %s, expected %s's %s", what, p.name,
                 p.t ? atto_dtype_name(p.t->dtype) : "", like.name,
                 like.t ? atto_dtype_name(like.t->dtype) : "");
    return ATTO_OK;
}

static atto_status check_shape(const char *what, part p, atto_shape shape)
{
    char got[ATTO_SHAPE_TEXT], wanted[ATTO_SHAPE_TEXT];
    const atto_tensor expected = atto_tensor_of(NULL, ATTO_F32, shape, 0);
    ATTO_REQUIRE(!p.t || atto__shape_same(p.t, &expected), ATTO_E_SHAPE,
                 "%s: %s is %s, expected %s", what, p.name, p.t ? atto__shape_text(p.t, got) : "",
                 atto__shape_text(&expected, wanted));
    return ATTO_OK;
}

static atto_status check_forward(const struct atto_matmul_args *p)
{
    const char *what = "matmul_forward";
    const part a = { "a", p->a }, b = { "b", p->b }, y = { "y", p->y };
    atto_shape shape;
    ATTO_REQUIRE(p->a && p->b, ATTO_E_NULL, "%s: %s is NULL", what, p->a ? "b" : "a");
    ATTO_TRY(check_dtype(what, a));
    ATTO_TRY(check_same(what, b, a));
    ATTO_TRY(check_rank(what, a));
    ATTO_TRY(check_rank(what, b));
    ATTO_TRY(check_product(what, a, b, &shape));
    ATTO_TRY(check_shape(what, y, shape));
    return check_stored(what, y, "a", p->a->dtype);
}

/* Of two that have one shape the one that is given. */
static part either(part input, part gradient)
{
    return input.t ? input : gradient;
}

static atto_status check_gradient(const char *what, part gradient, part input, part other)
{
    const part like = either(input, other);
    ATTO_TRY(check_dtype(what, gradient));
    ATTO_TRY(check_rank(what, gradient));
    if (gradient.t && input.t)
        ATTO_TRY(check_shape(what, gradient, atto_shape_of(input.t->rank, input.t->shape)));
    return like.t ? check_stored(what, gradient, like.name, like.t->dtype) : ATTO_OK;
}

static atto_status check_backward(const struct atto_matmul_args *p)
{
    const char *what = "matmul_backward";
    const part a = { "a", p->a }, b = { "b", p->b }, dy = { "dy", p->dy };
    const part da = { "da", p->da }, db = { "db", p->db }, like = either(a, b);
    atto_shape shape;
    ATTO_REQUIRE(!p->da || p->b, ATTO_E_NULL, "%s: b is NULL, which da needs", what);
    ATTO_REQUIRE(!p->db || p->a, ATTO_E_NULL, "%s: a is NULL, which db needs", what);
    const part inputs[] = { a, b, dy };
    for (int32_t i = 0; i < 3; i++) {
        ATTO_TRY(check_dtype(what, inputs[i]));
        ATTO_TRY(check_rank(what, inputs[i]));
    }
    ATTO_TRY(check_same(what, b, a));
    ATTO_TRY(check_gradient(what, da, a, b));
    ATTO_TRY(check_gradient(what, db, b, a));
    if (like.t) ATTO_TRY(check_stored(what, dy, like.name, like.t->dtype));
    if (!either(a, da).t || !either(b, db).t) return ATTO_OK; /* nothing is wanted */
    ATTO_TRY(check_product(what, either(a, da), either(b, db), &shape));
    return check_shape(what, dy, shape);
}

atto_status atto__matmul_check(const struct atto_matmul_args *a, atto__direction direction)
{
    return direction == ATTO_FORWARD ? check_forward(a) : check_backward(a);
}

atto_status atto_matmul_forward(atto_device *dev, const struct atto_matmul_args *p)
{
    return atto__run(dev, ATTO_OP_MATMUL, ATTO_FORWARD, p);
}

atto_status atto_matmul_backward(atto_device *dev, const struct atto_matmul_args *p)
{
    return atto__run(dev, ATTO_OP_MATMUL, ATTO_BACKWARD, p);
}

/* ---- on a tape ---- */

#define FIELD(name) offsetof(struct atto_matmul_args, name)

static atto_var record_matrices(atto_tape *tape, atto_var a, atto_var b)
{
    const atto_tensor *ta = atto__tape_tensor(tape, "matmul", a);
    const atto_tensor *tb = atto__tape_tensor(tape, "matmul", b);
    if (!ta || !tb) return atto__no_var();
    const part pa = { "a", ta }, pb = { "b", tb };
    struct atto_matmul_args args = { .add_da = false };
    atto__result y = { .field = FIELD(y), .like_inputs = true };
    if (atto__tape_fail(tape, check_product("matmul", pa, pb, &y.shape)) != ATTO_OK)
        return atto__no_var();
    const atto__binding inputs[] = { { .field = FIELD(a), .v = a, .f32_grad = true },
                                     { .field = FIELD(b), .v = b, .f32_grad = true } };
    return atto__record_op(tape, ATTO_OP_MATMUL, &args, inputs, 2, &y, 1);
}

/* A vector as a matrix of one row, or of one column. */
static atto_var as_matrix(atto_tape *tape, atto_var v, int64_t size, bool column)
{
    return atto_reshape(tape, v, column ? atto_shape2(size, 1) : atto_shape2(1, size));
}

/* y without the dimension that a vector was given. */
static atto_var without(atto_tape *tape, atto_var y, bool row, bool column)
{
    const atto_tensor *t = atto__tape_tensor(tape, "matmul", y);
    if (!t) return atto__no_var();
    atto_shape shape = atto_shape_of(t->rank, t->shape);
    if (row && !column) shape.dim[t->rank - 2] = shape.dim[t->rank - 1];
    shape.rank -= row + column;
    return atto_reshape(tape, y, shape);
}

static atto_status check_vectors(const atto_tensor *a, const atto_tensor *b)
{
    ATTO_REQUIRE(a->rank > 0 && b->rank > 0, ATTO_E_SHAPE,
                 "matmul: %s has no dimension, expected a vector or matrices",
                 a->rank > 0 ? "b" : "a");
    return ATTO_OK;
}

atto_var atto_matmul(atto_tape *tape, atto_var a, atto_var b)
{
    const atto_tensor *ta = atto__tape_tensor(tape, "matmul", a);
    const atto_tensor *tb = atto__tape_tensor(tape, "matmul", b);
    if (!ta || !tb || atto__tape_fail(tape, check_vectors(ta, tb)) != ATTO_OK)
        return atto__no_var();
    const bool row = ta->rank == 1, column = tb->rank == 1;
    const int64_t a_size = ta->shape[0], b_size = tb->shape[0]; /* pushing moves tensors */
    if (row) a = as_matrix(tape, a, a_size, false);
    if (column) b = as_matrix(tape, b, b_size, true);
    const atto_var y = record_matrices(tape, a, b);
    return row || column ? without(tape, y, row, column) : y;
}
