/* SPDX-License-Identifier: MIT */
/* Softmax: names, checks, the public calls, recording and modules. */
#include <stddef.h>

#include "alloc.h"
#include "layers/checks.h"
#include "train/module.h"

const char *atto_softmax_name(atto_softmax_kind kind)
{
    static const char *const names[] = {
#define X(NAME, name) #name,
        ATTO_SOFTMAX_TABLE(X)
#undef X
    };
    return (int)kind >= 0 && kind < ATTO_SOFTMAX_COUNT ? names[kind] : "?";
}

static atto_status check_kind(const char *what, atto_softmax_kind kind)
{
    ATTO_REQUIRE((int)kind >= 0 && kind < ATTO_SOFTMAX_COUNT, ATTO_E_ARGUMENT,
                 "%s: kind is %d, expected 0 to %d", what, (int)kind, ATTO_SOFTMAX_COUNT - 1);
    return ATTO_OK;
}

atto_status atto__softmax_check(const struct atto_softmax_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    const char *what = forward ? "softmax_forward" : "softmax_backward";
    const int32_t rank = a->y->rank;
    ATTO_TRY(check_kind(what, a->kind));
    ATTO_TRY(atto__dim_check(what, a->dim, rank > 0 ? rank : 1));
    if (forward) return atto__elementwise_check(what, "x", a->x, "y", a->y);
    ATTO_TRY(atto__elementwise_check(what, "y", a->y, "dy", a->dy));
    return a->dx ? atto__elementwise_check(what, "y", a->y, "dx", a->dx) : ATTO_OK;
}

atto_status atto_softmax_forward(atto_device *dev, const struct atto_softmax_args *a)
{
    return atto__run(dev, ATTO_OP_SOFTMAX, ATTO_FORWARD, a);
}

atto_status atto_softmax_backward(atto_device *dev, const struct atto_softmax_args *a)
{
    return atto__run(dev, ATTO_OP_SOFTMAX, ATTO_BACKWARD, a);
}

/* ---- on a tape ---- */

static atto_var record(atto_tape *tape, atto_softmax_kind kind, atto_var x, int32_t dim)
{
    const atto_tensor *t = atto__tape_tensor(tape, atto_softmax_name(kind), x);
    if (!t) return atto__no_var();
    struct atto_softmax_args args = { .kind = kind, .dim = dim };
    const atto__binding input = { .field = offsetof(struct atto_softmax_args, x), .v = x };
    const atto__result y = { .field = offsetof(struct atto_softmax_args, y),
                             .like_inputs = true,
                             .shape = atto_shape_of(t->rank, t->shape) };
    return atto__record_op(tape, ATTO_OP_SOFTMAX, &args, &input, 1, &y, 1);
}

#define X(NAME, name)                                              \
    atto_var atto_##name(atto_tape *tape, atto_var x, int32_t dim) \
    {                                                              \
        return record(tape, ATTO_SOFTMAX_##NAME, x, dim);          \
    }
ATTO_SOFTMAX_TABLE(X)
#undef X

/* ---- as modules ---- */

typedef struct softmax_module {
    atto_softmax_kind kind;
    int32_t dim;
} softmax_module;

static atto_var module_forward(atto_module *m, atto_tape *tape, atto_var x)
{
    const softmax_module *data = atto_module_data(m);
    return record(tape, data->kind, x, data->dim);
}

static const atto_module_class classes[] = {
    { .name = "Softmax", .forward = module_forward, .destroy = atto__free },
    { .name = "LogSoftmax", .forward = module_forward, .destroy = atto__free },
    { .name = "Softmin", .forward = module_forward, .destroy = atto__free },
};

atto_status atto_softmax_create(atto_device *dev, atto_softmax_kind kind, int32_t dim,
                                atto_module **m)
{
    ATTO_REQUIRE(m, ATTO_E_NULL, "softmax_create: m is NULL");
    *m = NULL;
    ATTO_TRY(check_kind("softmax_create", kind));
    const softmax_module data = { kind, dim };
    return atto__module_make(dev, "softmax_create", &classes[kind], &data, sizeof data, NULL, NULL,
                             m);
}
