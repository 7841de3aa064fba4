/* SPDX-License-Identifier: MIT */
/* Activations: names, checks, and the public calls. */
#include "layers/checks.h"

#include <math.h>
#include <stddef.h>

#include "alloc.h"
#include "train/module.h"

/* ---- the activation table ---- */

const char *atto_activation_name(atto_activation_kind kind)
{
    switch (kind) {
#define X(NAME, name, parameters, a, b, default_a, default_b, rule) \
    case ATTO_ACT_##NAME:                                           \
        return #name;
        ATTO_ACTIVATION_TABLE(X)
#undef X
    case ATTO_ACT_COUNT:
        break;
    }
    return "?";
}

atto_activation atto_activation_default(atto_activation_kind kind)
{
    switch (kind) {
#define X(NAME, name, parameters, a, b, default_a, default_b, rule) \
    case ATTO_ACT_##NAME:                                           \
        return (atto_activation){ kind, default_a, default_b };
        ATTO_ACTIVATION_TABLE(X)
#undef X
    case ATTO_ACT_COUNT:
        break;
    }
    return atto_identity();
}

/* The rules that the table names: a condition and what to say when it does not hold. */
static atto_status rule_ANY(const char *what, atto_activation act)
{
    (void)what, (void)act;
    return ATTO_OK;
}

static atto_status rule_FINITE(const char *what, atto_activation act)
{
    ATTO_REQUIRE(isfinite(act.a), ATTO_E_ARGUMENT,
                 "%s: %s's first number is infinite, expected a finite one", what,
                 atto_activation_name(act.kind));
    return ATTO_OK;
}

static atto_status rule_NONZERO(const char *what, atto_activation act)
{
    ATTO_REQUIRE(act.a != 0.0f, ATTO_E_ARGUMENT, "%s: %s's first number is 0, expected another one",
                 what, atto_activation_name(act.kind));
    return rule_FINITE(what, act);
}

static atto_status rule_NONNEGATIVE(const char *what, atto_activation act)
{
    ATTO_REQUIRE(act.a >= 0.0f, ATTO_E_ARGUMENT, "%s: %s's number is %g, expected 0 or more", what,
                 atto_activation_name(act.kind), (double)act.a);
    return ATTO_OK;
}

static atto_status rule_ORDERED(const char *what, atto_activation act)
{
    ATTO_REQUIRE(act.a < act.b, ATTO_E_ARGUMENT, "%s: %s's range is %g to %g, expected lo < hi",
                 what, atto_activation_name(act.kind), (double)act.a, (double)act.b);
    return ATTO_OK;
}

atto_status atto__activation_check(const char *what, atto_activation act)
{
    ATTO_REQUIRE((int)act.kind >= 0 && act.kind < ATTO_ACT_COUNT, ATTO_E_ARGUMENT,
                 "%s: %d is no activation", what, (int)act.kind);
    ATTO_REQUIRE(act.a == act.a && act.b == act.b, ATTO_E_ARGUMENT, "%s: a number of %s is NaN",
                 what, atto_activation_name(act.kind));
    switch (act.kind) {
#define X(NAME, name, parameters, a, b, default_a, default_b, rule) \
    case ATTO_ACT_##NAME:                                           \
        return rule_##rule(what, act);
        ATTO_ACTIVATION_TABLE(X)
#undef X
    case ATTO_ACT_COUNT:
        break;
    }
    return ATTO_OK;
}

/* ---- act ---- */

atto_status atto__act_check(const struct atto_act_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    const char *what = forward ? "act_forward" : "act_backward";
    ATTO_TRY(atto__activation_check(what, a->act));
    ATTO_TRY(atto__probability_check(what, a->dropout, &a->rng));
    if (forward) return atto__elementwise_check(what, "x", a->x, "y", a->y);
    ATTO_TRY(atto__elementwise_check(what, "x", a->x, "dy", a->dy));
    return a->dx ? atto__elementwise_check(what, "x", a->x, "dx", a->dx) : ATTO_OK;
}

atto_status atto_act_forward(atto_device *dev, const struct atto_act_args *a)
{
    return atto__run(dev, ATTO_OP_ACT, ATTO_FORWARD, a);
}

atto_status atto_act_backward(atto_device *dev, const struct atto_act_args *a)
{
    return atto__run(dev, ATTO_OP_ACT, ATTO_BACKWARD, a);
}

/* ---- on a tape, and as a module ---- */

atto_var atto_act(atto_tape *tape, atto_var x, atto_activation act, const atto_act_options *options)
{
    const atto_tensor *t = atto__tape_tensor(tape, "act", x);
    if (!t) return atto__no_var();
    struct atto_act_args args = { .act = act };
    if (options &&
        atto__tape_fail(tape, atto__reserved_check("act: options", options->reserved)) != ATTO_OK)
        return atto__no_var();
    if (options) args.dropout = options->dropout;
    if (args.dropout > 0.0f) args.rng = atto__tape_draw(tape, atto_tensor_numel(t));
    const atto__binding input = { .field = offsetof(struct atto_act_args, x), .v = x };
    const atto__result y = { .field = offsetof(struct atto_act_args, y),
                             .like_inputs = true,
                             .shape = atto_shape_of(t->rank, t->shape),
                             .moves = true,
                             .innermost = atto__view_innermost(t) };
    return atto__record_op(tape, ATTO_OP_ACT, &args, &input, 1, &y, 1);
}

typedef struct act_module {
    atto_activation act;
    float dropout;
} act_module;

static atto_var act_forward(atto_module *m, atto_tape *tape, atto_var x)
{
    const act_module *data = atto_module_data(m);
    const atto_act_options options = { .dropout =
                                           atto_module_is_training(m) ? data->dropout : 0.0f };
    return atto_act(tape, x, data->act, &options);
}

static const atto_module_class act_class = { .name = "Activation",
                                             .forward = act_forward,
                                             .destroy = atto__free };

atto_status atto_act_create(atto_device *dev, atto_activation act, float dropout, atto_module **m)
{
    ATTO_REQUIRE(m, ATTO_E_NULL, "act_create: m is NULL");
    *m = NULL;
    ATTO_TRY(atto__activation_check("act_create", act));
    ATTO_TRY(atto__probability_check("act_create", dropout, &(atto_rng){ 0 }));
    const act_module data = { act, dropout };
    return atto__module_make(dev, "act_create", &act_class, &data, sizeof data, NULL, NULL, m);
}
