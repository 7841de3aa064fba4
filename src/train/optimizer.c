/* SPDX-License-Identifier: MIT */
/* Optimisers: making them, their numbers, and what can be asked of them. */
#include "train/optimizer.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "alloc.h"

/* ---- numbers ---- */

/* A number of options: 0 is the default, ATTO_ZERO is 0. */
static double resolve(double value, double standard)
{
    if (value == 0.0) return standard;
    return value == ATTO_ZERO ? 0.0 : value;
}

/* At least 0, and finite as f32. */
static atto_status check_positive(const char *name, const char *what, double value)
{
    ATTO_REQUIRE(value >= 0.0 && value <= FLT_MAX, ATTO_E_ARGUMENT,
                 "%s: %s is %g, expected 0 or more, finite as f32", name, what, value);
    return ATTO_OK;
}

/* From 0 to 1; 1 itself only where closed. */
static atto_status check_share(const char *name, const char *what, double value, bool closed)
{
    ATTO_REQUIRE(value >= 0.0 && (value < 1.0 || (closed && value == 1.0)), ATTO_E_ARGUMENT,
                 "%s: %s is %g, expected 0 to 1%s", name, what, value, closed ? "" : ", without 1");
    return ATTO_OK;
}

static atto_status check_groups(const atto__optimizer_spec *spec)
{
    const atto_param_set *set = spec->set;
    ATTO_REQUIRE(set->group_count >= 0, ATTO_E_ARGUMENT, "%s_create: group_count is %d", spec->name,
                 (int)set->group_count);
    ATTO_REQUIRE(set->groups || set->group_count == 0, ATTO_E_NULL,
                 "%s_create: groups is NULL, but group_count is %d", spec->name,
                 (int)set->group_count);
    for (int32_t i = 0; i < set->group_count; i++) {
        const atto_param_group *g = &set->groups[i];
        ATTO_TRY(atto__reserved_check("a parameter group", g->reserved));
        if (g->lr_factor != ATTO_ZERO)
            ATTO_TRY(check_positive(spec->name, "a group's lr_factor", g->lr_factor));
        if (g->has_weight_decay)
            ATTO_TRY(check_positive(spec->name, "a group's weight_decay", g->weight_decay));
    }
    return ATTO_OK;
}

static atto_status check_spec(const atto__optimizer_spec *s)
{
    ATTO_TRY(check_positive(s->name, "lr", s->lr));
    ATTO_TRY(check_positive(s->name, "weight_decay", s->weight_decay));
    ATTO_TRY(check_positive(s->name, "momentum", s->momentum));
    ATTO_REQUIRE(fabs(s->dampening) <= FLT_MAX, ATTO_E_ARGUMENT, "%s: dampening is %g", s->name,
                 s->dampening);
    ATTO_REQUIRE(!s->nesterov || (s->momentum > 0.0 && s->dampening == 0.0), ATTO_E_ARGUMENT,
                 "%s: nesterov needs momentum > 0 and dampening 0, got %g and %g", s->name,
                 s->momentum, s->dampening);
    ATTO_TRY(check_share(s->name, "beta1", s->beta1, false));
    if (s->kind == ATTO_OPTIM_ADAM) ATTO_TRY(check_share(s->name, "beta2", s->beta2, false));
    if (s->kind == ATTO_OPTIM_RMSPROP) ATTO_TRY(check_share(s->name, "alpha", s->beta2, true));
    ATTO_TRY(check_positive(s->name, "eps", s->eps));
    return check_groups(s);
}

/* Adam's bias corrections; without them the logarithm of 0 makes them 1. */
static float ln_or_none(const atto__optimizer_spec *s, double beta)
{
    return s->kind == ATTO_OPTIM_ADAM && beta > 0.0 ? (float)log(beta) : -INFINITY;
}

/* Complements are taken in double: of 0.999 as a float four digits would be left. */
static void set_numbers(atto_optimizer *o, const atto__optimizer_spec *s)
{
    o->method = (atto__optim_method){ s->kind, s->momentum > 0.0, s->centered };
    o->numbers = (atto__optim_numbers){
        .momentum = (float)s->momentum,
        .weight1 = (float)(1.0 - s->beta1),
        .beta2 = (float)s->beta2,
        .weight2 = (float)(1.0 - s->beta2),
        .eps = (float)s->eps,
        .nesterov = s->nesterov,
        .ln_beta1 = ln_or_none(s, s->beta1),
        .ln_beta2 = ln_or_none(s, s->beta2),
        .fresh = (float)(1.0 - s->dampening),
    };
    if (s->decoupled) o->mode |= ATTO_OPTIM_DECOUPLED;
    if (s->maximize) o->mode |= ATTO_OPTIM_MAXIMIZES;
}

/* ---- make and free ---- */

static atto_status add_list(atto_optimizer *o, const atto_param_set *set)
{
    ATTO_REQUIRE(set->count >= 0, ATTO_E_ARGUMENT, "%s_create: count is %d", o->name,
                 (int)set->count);
    for (int32_t i = 0; i < set->count; i++) {
        const char *key = set->keys && set->keys[i] ? set->keys[i] : "";
        ATTO_REQUIRE(set->params[i], ATTO_E_NULL, "%s_create: params[%d] is NULL", o->name, (int)i);
        ATTO_TRY(atto__optimizer_add(o, set, key, set->params[i]));
    }
    return ATTO_OK;
}

static atto_status build(atto_optimizer *o, const atto__optimizer_spec *spec, atto_module *net)
{
    const atto_param_set *set = spec->set;
    ATTO_TRY(net ? atto__optimizer_add_net(o, set, net) : add_list(o, set));
    ATTO_REQUIRE(o->trained_count > 0, ATTO_E_ARGUMENT,
                 "%s_create: there is no parameter to train: none at all, or all are frozen",
                 o->name);
    ATTO_TRY(atto__device_check(o->dev));
    ATTO_TRY(atto__optimizer_pack(o, spec));
    return atto__device_finish_call(o->dev);
}

atto_status atto__optimizer_create(const atto__optimizer_spec *spec, atto_module *net,
                                   atto_optimizer **out)
{
    ATTO_REQUIRE(out, ATTO_E_NULL, "%s_create: out is NULL", spec->name);
    *out = NULL;
    ATTO_REQUIRE((net != NULL) != (spec->set->params != NULL), ATTO_E_NULL,
                 "%s_create: %s net and params given, expected one of them", spec->name,
                 net ? "both" : "neither");
    ATTO_TRY(check_spec(spec));
    atto_optimizer *o = atto__alloc(sizeof *o);
    ATTO_REQUIRE(o, ATTO_E_MEMORY, "%s_create: out of host memory", spec->name);
    o->name = spec->name;
    o->lr = spec->lr;
    o->group_count = spec->set->group_count + 1;
    set_numbers(o, spec);
    const atto_status status = build(o, spec, net);
    if (status != ATTO_OK) {
        atto_optimizer_free(o);
        return status;
    }
    *out = o;
    return ATTO_OK;
}

/* The parameter keeps its value, and a gradient that somebody may still want. */
static void let_go(atto__trained *t)
{
    if (t->moved) t->p->is_packed = false;
    if (t->moved && !t->p->has_grad) atto_tensor_free(&t->p->grad);
    atto_param_free(t->p);
}

static void free_chunk(atto__chunk *c)
{
    atto_tensor_free(&c->value);
    atto_tensor_free(&c->grad);
    atto_tensor_free(&c->master);
    atto_tensor_free(&c->shadow);
    for (int32_t i = 0; i < ATTO_OPTIM_STATES; i++) atto_tensor_free(&c->state[i]);
    atto_tensor_free(&c->segment_of);
}

void atto_optimizer_free(atto_optimizer *o)
{
    if (!o) return;
    for (int32_t i = 0; i < o->trained_count; i++) let_go(&o->trained[i]);
    for (int32_t i = 0; o->chunks && i < o->chunk_count; i++) free_chunk(&o->chunks[i]);
    atto_tensor *tables[] = { &o->flags,        &o->group_of, &o->groups, &o->steps,
                              &o->coefficients, &o->partials, &o->control };
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) atto_tensor_free(tables[i]);
    atto__free(o->flags_written);
    atto__free(o->flags_next);
    atto__free(o->trained);
    atto__free(o->chunks);
    if (o->dev) atto__device_release(o->dev);
    atto__free(o);
}

/* ---- the four methods ---- */

atto_status atto_sgd_create(atto_module *net, double lr, const atto_sgd_options *options,
                            atto_optimizer **out)
{
    const atto_sgd_options standard = { 0 };
    const atto_sgd_options *given = options ? options : &standard;
    if (out) *out = NULL;
    ATTO_TRY(atto__reserved_check("sgd_create: options", given->reserved));
    const atto__optimizer_spec spec = {
        .name = "sgd",
        .kind = ATTO_OPTIM_SGD,
        .lr = lr,
        .weight_decay = given->weight_decay,
        .momentum = given->momentum,
        .dampening = given->dampening,
        .nesterov = given->nesterov,
        .maximize = given->maximize,
        .set = &given->set,
    };
    return atto__optimizer_create(&spec, net, out);
}

atto_status atto_adam_create(atto_module *net, double lr, const atto_adam_options *options,
                             atto_optimizer **out)
{
    const atto_adam_options standard = { 0 };
    const atto_adam_options *given = options ? options : &standard;
    if (out) *out = NULL;
    ATTO_TRY(atto__reserved_check("adam_create: options", given->reserved));
    const atto__optimizer_spec spec = {
        .name = "adam",
        .kind = ATTO_OPTIM_ADAM,
        .lr = lr,
        .weight_decay = given->weight_decay,
        .beta1 = resolve(given->beta1, 0.9),
        .beta2 = resolve(given->beta2, 0.999),
        .eps = resolve(given->eps, 1e-8),
        .maximize = given->maximize,
        .set = &given->set,
    };
    return atto__optimizer_create(&spec, net, out);
}

atto_status atto_adamw_create(atto_module *net, double lr, double weight_decay,
                              const atto_adamw_options *options, atto_optimizer **out)
{
    const atto_adamw_options standard = { 0 };
    const atto_adamw_options *given = options ? options : &standard;
    if (out) *out = NULL;
    ATTO_TRY(atto__reserved_check("adamw_create: options", given->reserved));
    const atto__optimizer_spec spec = {
        .name = "adamw",
        .kind = ATTO_OPTIM_ADAM,
        .decoupled = true,
        .lr = lr,
        .weight_decay = weight_decay,
        .beta1 = resolve(given->beta1, 0.9),
        .beta2 = resolve(given->beta2, 0.999),
        .eps = resolve(given->eps, 1e-8),
        .maximize = given->maximize,
        .set = &given->set,
    };
    return atto__optimizer_create(&spec, net, out);
}

atto_status atto_rmsprop_create(atto_module *net, double lr, const atto_rmsprop_options *options,
                                atto_optimizer **out)
{
    const atto_rmsprop_options standard = { 0 };
    const atto_rmsprop_options *given = options ? options : &standard;
    if (out) *out = NULL;
    ATTO_TRY(atto__reserved_check("rmsprop_create: options", given->reserved));
    const atto__optimizer_spec spec = {
        .name = "rmsprop",
        .kind = ATTO_OPTIM_RMSPROP,
        .lr = lr,
        .weight_decay = given->weight_decay,
        .momentum = given->momentum,
        .beta2 = resolve(given->alpha, 0.99),
        .eps = resolve(given->eps, 1e-8),
        .centered = given->centered,
        .maximize = given->maximize,
        .set = &given->set,
    };
    return atto__optimizer_create(&spec, net, out);
}

/* ---- questions ---- */

void atto_optimizer_zero_grad(atto_optimizer *opt)
{
    for (int32_t i = 0; opt && i < opt->trained_count; i++) atto_param_zero_grad(opt->trained[i].p);
}

int64_t atto_optimizer_param_count(const atto_optimizer *opt)
{
    int64_t count = 0;
    for (int32_t i = 0; opt && i < opt->trained_count; i++)
        count += atto_tensor_numel(&opt->trained[i].p->value);
    return count;
}

double atto_optimizer_lr(const atto_optimizer *opt)
{
    return opt ? opt->lr : 0.0;
}

int32_t atto_optimizer_chunk_count(const atto_optimizer *opt)
{
    return opt ? opt->chunk_count : 0;
}

atto_status atto_optimizer_grad_chunk(const atto_optimizer *opt, int32_t i, atto_tensor *out)
{
    ATTO_REQUIRE(opt && out, ATTO_E_NULL, "optimizer_grad_chunk: %s is NULL", opt ? "out" : "opt");
    memset(out, 0, sizeof *out);
    ATTO_REQUIRE(i >= 0 && i < opt->chunk_count, ATTO_E_ARGUMENT,
                 "optimizer_grad_chunk: %d, expected 0 to %d", (int)i, (int)opt->chunk_count - 1);
    *out = opt->chunks[i].grad;
    return ATTO_OK;
}

/* PyTorch's name for state i of a method. */
static const char *state_name(const atto__optim_method *method, int32_t i)
{
    static const char *const names[][ATTO_OPTIM_STATES] = {
        [ATTO_OPTIM_SGD] = { "momentum_buffer", "", "" },
        [ATTO_OPTIM_ADAM] = { "exp_avg", "exp_avg_sq", "" },
        [ATTO_OPTIM_RMSPROP] = { "square_avg", "grad_avg", "momentum_buffer" },
    };
    return names[method->kind][i];
}

/* The chunk's vector of that name; NULL if there is none. */
static const atto_tensor *vector_named(const atto_optimizer *o, const atto__chunk *c,
                                       const char *name)
{
    if (strcmp(name, "master") == 0) return c->master.buffer ? &c->master : NULL;
    for (int32_t i = 0; i < ATTO_OPTIM_STATES; i++)
        if (c->state[i].buffer && strcmp(name, state_name(&o->method, i)) == 0) return &c->state[i];
    return NULL;
}

atto_status atto_optimizer_state(const atto_optimizer *opt, const atto_param *p, const char *name,
                                 atto_tensor *out)
{
    ATTO_REQUIRE(opt && p && name && out, ATTO_E_NULL, "optimizer_state: %s is NULL",
                 !opt    ? "opt"
                 : !p    ? "p"
                 : !name ? "name"
                         : "out");
    memset(out, 0, sizeof *out);
    int32_t s = 0;
    while (s < opt->trained_count && opt->trained[s].p != p) s++;
    ATTO_REQUIRE(s < opt->trained_count, ATTO_E_ARGUMENT,
                 "optimizer_state: the parameter is not one of this optimiser");
    if (strcmp(name, "step") == 0) {
        *out = atto_tensor_of(opt->steps.buffer, ATTO_I32, atto_shape1(1), s);
        return ATTO_OK;
    }
    const atto__trained *t = &opt->trained[s];
    const atto_tensor *vector = vector_named(opt, &opt->chunks[t->chunk], name);
    ATTO_REQUIRE(vector, ATTO_E_ARGUMENT, "optimizer_state: %s keeps no \"%s\" of this parameter",
                 opt->name, name);
    *out = atto__optimizer_view(t, vector);
    return ATTO_OK;
}
