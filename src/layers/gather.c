/* SPDX-License-Identifier: MIT */
/* Elements that an index names: checks, the public calls, recording. */
#include <inttypes.h>
#include <stddef.h>

#include "layers/checks.h"
#include "train/tape.h"

/* x, or dx, which stands for it in backward, and the index beside it. */
static atto_status check_pair(const char *what, const char *name, const atto_tensor *x,
                              const atto_tensor *index, int32_t dim)
{
    ATTO_REQUIRE(atto__is_float(x->dtype), ATTO_E_DTYPE, "%s: %s is %s, expected f32, f16 or bf16",
                 what, name, atto_dtype_name(x->dtype));
    ATTO_REQUIRE(x->rank > 0, ATTO_E_SHAPE, "%s: %s has no dimension to gather from", what, name);
    ATTO_TRY(atto__dim_check(what, dim, x->rank));
    ATTO_REQUIRE(index->rank == x->rank, ATTO_E_SHAPE,
                 "%s: index has %d dimensions, expected %s's %d", what, (int)index->rank, name,
                 (int)x->rank);
    const int32_t along = dim < 0 ? dim + x->rank : dim;
    for (int32_t d = 0; d < x->rank; d++)
        ATTO_REQUIRE(d == along || index->shape[d] <= x->shape[d], ATTO_E_SHAPE,
                     "%s: index has %" PRId64 " elements along dimension %d, expected at most %s's "
                     "%" PRId64,
                     what, index->shape[d], (int)d, name, x->shape[d]);
    return ATTO_OK;
}

atto_status atto__gather_check(const struct atto_gather_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    const char *what = forward ? "gather_forward" : "gather_backward";
    const atto_tensor *x = forward ? a->x : a->dx, *index = a->index;
    ATTO_REQUIRE(index->dtype == ATTO_I32 || index->dtype == ATTO_I64, ATTO_E_DTYPE,
                 "%s: index is %s, expected i32 or i64", what, atto_dtype_name(index->dtype));
    if (!x) return ATTO_OK; /* nothing is wanted */
    ATTO_TRY(check_pair(what, forward ? "x" : "dx", x, index, a->dim));
    const atto_shape shape = atto_shape_of(index->rank, index->shape);
    const atto__expected parts[] = {
        { "y", forward ? a->y : NULL, shape, x->dtype, false },
        { "dy", forward ? NULL : a->dy, shape, x->dtype, false },
    };
    return atto__tensors_check(what, parts, COUNT_OF(parts));
}

atto_status atto_gather_forward(atto_device *dev, const struct atto_gather_args *a)
{
    return atto__run(dev, ATTO_OP_GATHER, ATTO_FORWARD, a);
}

atto_status atto_gather_backward(atto_device *dev, const struct atto_gather_args *a)
{
    return atto__run(dev, ATTO_OP_GATHER, ATTO_BACKWARD, a);
}

/* ---- on a tape ---- */

#define FIELD(name) offsetof(struct atto_gather_args, name)

atto_var atto_gather(atto_tape *tape, atto_var x, int32_t dim, atto_var index)
{
    const atto_tensor *t = atto__tape_tensor(tape, "gather", x);
    const atto_tensor *i = atto__tape_tensor(tape, "gather", index);
    if (!t || !i) return atto__no_var();
    struct atto_gather_args args = { .dim = dim };
    const atto__binding inputs[] = { { .field = FIELD(x), .v = x },
                                     { .field = FIELD(index), .v = index } };
    const atto__result y = { .field = FIELD(y),
                             .like_inputs = true,
                             .shape = atto_shape_of(i->rank, i->shape) };
    return atto__record_op(tape, ATTO_OP_GATHER, &args, inputs, 2, &y, 1);
}
