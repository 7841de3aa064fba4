/* SPDX-License-Identifier: MIT */
/* Steps of an optimiser: clipping, loss scaling, and one launch for each chunk. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "layout.h"
#include "train/optimizer.h"

/* ---- settings ---- */

atto_status atto_optimizer_set_momentum(atto_optimizer *opt, double momentum)
{
    ATTO_REQUIRE(opt, ATTO_E_NULL, "optimizer_set_momentum: opt is NULL");
    const bool is_adam = opt->method.kind == ATTO_OPTIM_ADAM;
    ATTO_REQUIRE(momentum >= 0.0 && (is_adam ? momentum < 1.0 : momentum <= FLT_MAX),
                 ATTO_E_ARGUMENT, "optimizer_set_momentum: momentum is %g, expected 0 or more%s",
                 momentum, is_adam ? " and less than 1" : ", finite as f32");
    ATTO_REQUIRE(is_adam || opt->method.has_momentum, ATTO_E_STATE,
                 "optimizer_set_momentum: this %s was made without momentum", opt->name);
    if (is_adam) {
        opt->numbers.weight1 = (float)(1.0 - momentum);
        opt->numbers.ln_beta1 = (float)log(momentum); /* -INFINITY for 0 */
    } else {
        opt->numbers.momentum = (float)momentum;
    }
    return ATTO_OK;
}

static void set_mode(atto_optimizer *o, uint32_t bit, bool on)
{
    o->mode = on ? o->mode | bit : o->mode & ~bit;
}

atto_status atto_optimizer_clip_norm(atto_optimizer *opt, double max_norm)
{
    ATTO_REQUIRE(opt, ATTO_E_NULL, "optimizer_clip_norm: opt is NULL");
    ATTO_REQUIRE(max_norm >= 0.0, ATTO_E_ARGUMENT,
                 "optimizer_clip_norm: max_norm is %g, expected 0 or more", max_norm);
    const bool scales = opt->mode & ATTO_OPTIM_SCALES;
    set_mode(opt, ATTO_OPTIM_CLIPS, max_norm > 0.0 && max_norm < INFINITY);
    set_mode(opt, ATTO_OPTIM_MEASURES, max_norm > 0.0 || scales);
    opt->max_norm = (float)max_norm;
    return ATTO_OK;
}

atto_status atto_optimizer_scale_loss(atto_optimizer *opt, const atto_loss_scale_options *options)
{
    ATTO_REQUIRE(opt, ATTO_E_NULL, "optimizer_scale_loss: opt is NULL");
    const atto_loss_scale_options standard = { 0 };
    const atto_loss_scale_options *o = options ? options : &standard;
    ATTO_TRY(atto__reserved_check("optimizer_scale_loss: options", o->reserved));
    const double initial = atto__or_default(o->initial, 65536.0);
    const double growth = atto__or_default(o->growth, 2.0),
                 backoff = atto__or_default(o->backoff, 0.5);
    ATTO_REQUIRE(initial >= FLT_MIN && initial <= FLT_MAX, ATTO_E_ARGUMENT,
                 "optimizer_scale_loss: initial is %g, expected a normal f32 of more than 0",
                 initial);
    ATTO_REQUIRE(growth > 1.0 && growth <= FLT_MAX, ATTO_E_ARGUMENT,
                 "optimizer_scale_loss: growth is %g, expected more than 1, finite as f32", growth);
    ATTO_REQUIRE((float)backoff > 0.0f && (float)backoff < 1.0f, ATTO_E_ARGUMENT,
                 "optimizer_scale_loss: backoff is %g, expected 0 to 1 as f32, without the ends",
                 backoff);
    ATTO_REQUIRE(o->growth_interval >= 0, ATTO_E_ARGUMENT,
                 "optimizer_scale_loss: growth_interval is %d", (int)o->growth_interval);
    const int32_t interval = o->growth_interval ? o->growth_interval : 2000;
    ATTO_REQUIRE(o->good_steps >= 0 && o->good_steps < interval, ATTO_E_ARGUMENT,
                 "optimizer_scale_loss: good_steps is %d, expected 0 to %d", (int)o->good_steps,
                 (int)interval - 1);
    const float control[] = { [ATTO_CONTROL_SCALE] = o->off ? 1.0f : (float)initial,
                              [ATTO_CONTROL_GOOD] = (float)o->good_steps };
    const atto_tensor both = atto_tensor_of(opt->control.buffer, ATTO_F32, atto_shape1(2), 0);
    ATTO_TRY(atto_tensor_write(&both, control));
    opt->numbers.growth = (float)growth;
    opt->numbers.backoff = (float)backoff;
    opt->numbers.growth_interval = (float)interval;
    set_mode(opt, ATTO_OPTIM_SCALES, !o->off);
    set_mode(opt, ATTO_OPTIM_MEASURES, !o->off || opt->max_norm > 0.0f);
    return ATTO_OK;
}

atto_status atto_optimizer_loss_scale_options(const atto_optimizer *opt,
                                              atto_loss_scale_options *out)
{
    ATTO_REQUIRE(opt && out, ATTO_E_NULL, "optimizer_loss_scale_options: %s is NULL",
                 opt ? "out" : "opt");
    memset(out, 0, sizeof *out);
    out->off = !(opt->mode & ATTO_OPTIM_SCALES);
    if (out->off) return ATTO_OK;
    float control[ATTO_CONTROL_WORDS];
    ATTO_TRY(atto_tensor_read(&opt->control, control));
    out->initial = (double)control[ATTO_CONTROL_SCALE];
    out->growth = (double)opt->numbers.growth;
    out->backoff = (double)opt->numbers.backoff;
    out->growth_interval = (int32_t)opt->numbers.growth_interval;
    out->good_steps = (int32_t)control[ATTO_CONTROL_GOOD];
    return ATTO_OK;
}

/* ---- scalars on the device ---- */

static atto_tensor scalar_of(const atto_optimizer *o, int32_t word)
{
    return atto_tensor_of(o->control.buffer, ATTO_F32, atto_shape0(), word);
}

atto_status atto_optimizer_loss_scale(const atto_optimizer *opt, atto_tensor *out)
{
    ATTO_REQUIRE(opt && out, ATTO_E_NULL, "optimizer_loss_scale: %s is NULL", opt ? "out" : "opt");
    *out = scalar_of(opt, ATTO_CONTROL_SCALE);
    return ATTO_OK;
}

atto_status atto_optimizer_norm_tensor(const atto_optimizer *opt, atto_tensor *out)
{
    ATTO_REQUIRE(opt && out, ATTO_E_NULL, "optimizer_norm: %s is NULL", opt ? "out" : "opt");
    memset(out, 0, sizeof *out);
    ATTO_REQUIRE(opt->mode & ATTO_OPTIM_MEASURES, ATTO_E_STATE,
                 "optimizer_norm: steps do not measure it; call optimizer_clip_norm first");
    *out = scalar_of(opt, ATTO_CONTROL_NORM);
    return ATTO_OK;
}

atto_status atto_optimizer_norm(const atto_optimizer *opt, float *out)
{
    ATTO_REQUIRE(opt && out, ATTO_E_NULL, "optimizer_norm: %s is NULL", opt ? "out" : "opt");
    atto_tensor norm;
    ATTO_TRY(atto_optimizer_norm_tensor(opt, &norm));
    return atto_tensor_read(&norm, out);
}

atto_status atto_optimizer_skipped(const atto_optimizer *opt, int64_t *out)
{
    ATTO_REQUIRE(opt && out, ATTO_E_NULL, "optimizer_skipped: %s is NULL", opt ? "out" : "opt");
    const atto_tensor skipped = scalar_of(opt, ATTO_CONTROL_SKIPPED);
    float count = 0.0f;
    ATTO_TRY(atto_tensor_read(&skipped, &count));
    *out = (int64_t)count;
    return ATTO_OK;
}

/* ---- a step ---- */

/* Which segments have a gradient; false when none has. */
static bool gather_flags(atto_optimizer *o)
{
    bool any = false;
    for (int32_t i = 0; i < o->chunk_count; i++) o->chunks[i].is_active = false;
    for (int32_t s = 0; s < o->trained_count; s++) {
        const atto__trained *t = &o->trained[s];
        const bool has = t->p->has_grad && !t->p->frozen;
        o->flags_next[s] = has;
        o->chunks[t->chunk].is_active |= has;
        any = any || has;
    }
    return any;
}

static atto_status check_memory(const atto_optimizer *o)
{
    for (int32_t i = 0; i < o->chunk_count; i++) {
        ATTO_TRY(atto__view_check(&o->chunks[i].value, "optimizer_step: the parameters' memory"));
        ATTO_TRY(atto__view_check(&o->chunks[i].grad, "optimizer_step: the gradients' memory"));
    }
    return ATTO_OK;
}

/* To the device only when they changed; up to a million parameters that does not wait. */
static atto_status write_flags(atto_optimizer *o)
{
    const size_t bytes = (size_t)o->trained_count * sizeof *o->flags_next;
    if (o->flags_known && memcmp(o->flags_written, o->flags_next, bytes) == 0) return ATTO_OK;
    o->flags_known = false;
    ATTO_TRY(atto_tensor_write(&o->flags, o->flags_next));
    memcpy(o->flags_written, o->flags_next, bytes);
    o->flags_known = true;
    return ATTO_OK;
}

/* f16 and bf16 values that others have written since the last step become their masters. */
static atto_status refresh_masters(atto_optimizer *o)
{
    for (int32_t s = 0; s < o->trained_count; s++) {
        atto__trained *t = &o->trained[s];
        const atto_tensor *vector = &o->chunks[t->chunk].master;
        if (!vector->buffer || !o->flags_next[s] || t->version == t->p->version) continue;
        const atto_tensor master = atto__optimizer_view(t, vector);
        ATTO_TRY(atto_tensor_copy(&master, &t->p->value));
        t->version = t->p->version;
    }
    return ATTO_OK;
}

/* Whether a parameter still has its shadow in the vector of its chunk. */
static bool has_shadows(const atto_optimizer *o, const atto__chunk *c)
{
    for (int32_t s = 0; s < o->trained_count; s++) {
        const atto__trained *t = &o->trained[s];
        if (&o->chunks[t->chunk] == c && t->p->shadow.buffer == c->shadow.buffer) return true;
    }
    return false;
}

/* A parameter's shadow moves into its chunk's vector, which steps write. Of two dtypes in one chunk the
 * first has the vector, until nobody uses it; parameters of the other are cast when they are used, as all
 * are where there is no memory for a vector. */
static atto_status adopt_shadow(const atto_optimizer *o, const atto__trained *t)
{
    atto__chunk *c = &o->chunks[t->chunk];
    atto_tensor *shadow = &t->p->shadow;
    if (c->dtype != ATTO_F32 || !shadow->buffer || shadow->buffer == c->shadow.buffer)
        return ATTO_OK;
    if (c->shadow.dtype != shadow->dtype) {
        if (c->shadow.buffer && has_shadows(o, c)) return ATTO_OK;
        atto_tensor_free(&c->shadow);
        const atto_status status =
            atto__optimizer_zeros(o, shadow->dtype, c->blocks * ATTO_OPTIM_BLOCK, &c->shadow);
        if (status == ATTO_E_MEMORY) return ATTO_OK;
        ATTO_TRY(status);
    }
    const atto_tensor view = atto__optimizer_view(t, &c->shadow);
    ATTO_TRY(atto_tensor_copy(&view, shadow));
    atto_tensor_free(shadow);
    atto_tensor_retain(&view);
    *shadow = view;
    return ATTO_OK;
}

static atto_status adopt_shadows(const atto_optimizer *o)
{
    for (int32_t s = 0; s < o->trained_count; s++)
        if (o->flags_next[s]) ATTO_TRY(adopt_shadow(o, &o->trained[s]));
    return ATTO_OK;
}

static struct atto__optim_args args_of(const atto_optimizer *o, double lr)
{
    return (struct atto__optim_args){
        .method = o->method,
        .numbers = o->numbers,
        .mode = o->mode,
        .lr = (float)lr,
        .max_norm = o->max_norm,
        .segments = o->trained_count,
        .spans = o->mode & ATTO_OPTIM_MEASURES ? o->spans : 0,
        .flags = &o->flags,
        .group_of = &o->group_of,
        .groups = &o->groups,
        .steps = &o->steps,
        .coefficients = &o->coefficients,
        .partials = &o->partials,
        .control = &o->control,
    };
}

static void point_at(struct atto__optim_args *a, const atto__chunk *c)
{
    a->blocks = c->blocks;
    a->first_span = c->first_span;
    a->segment_of = &c->segment_of;
    a->value = &c->value;
    a->grad = &c->grad;
    a->master = c->master.buffer ? &c->master : NULL;
    a->shadow = c->shadow.buffer ? &c->shadow : NULL;
    for (int32_t i = 0; i < ATTO_OPTIM_STATES; i++)
        a->state[i] = c->state[i].buffer ? &c->state[i] : NULL;
}

/* On the device, or where its kernel cannot be built on the CPU. */
static atto_status run_part(atto_optimizer *o, atto__optim_part part,
                            const struct atto__optim_args *a)
{
    const atto_status status = atto__optim_slot(o->dev->vt, part)(o->dev, a);
    if (status != ATTO_E_BUILD || o->dev->options.set.no_fallback) return status;
    if (!o->warned)
        atto__log(o->dev, ATTO_LOG_WARNING, "%s runs on the CPU instead of %s: %s", o->name,
                  o->dev->info.name, atto_last_error());
    o->warned = true;
    o->dev->stats.fallbacks++;
    return atto__optim_fallback(o->dev, part, a);
}

/* Counts the step, and decides what is clipped or skipped. Chunks without a gradient have partials
 * as well: all of them are added up. */
static atto_status begin(atto_optimizer *o, struct atto__optim_args *a)
{
    for (int32_t i = 0; a->spans > 0 && i < o->chunk_count; i++) {
        point_at(a, &o->chunks[i]);
        ATTO_TRY(run_part(o, ATTO_OPTIM_NORM, a));
    }
    return run_part(o, ATTO_OPTIM_BEGIN, a);
}

static atto_status step_chunks(atto_optimizer *o, struct atto__optim_args *a)
{
    for (int32_t i = 0; i < o->chunk_count; i++) {
        if (!o->chunks[i].is_active) continue;
        point_at(a, &o->chunks[i]);
        ATTO_TRY(run_part(o, ATTO_OPTIM_STEP, a));
    }
    return ATTO_OK;
}

/* The value has changed, as far as the host knows: whether the step was skipped only the device
 * does. So a shadow is the value's if it was before; an old one stays old in a skipped step. */
static void use_up_gradient(const atto_optimizer *o, atto__trained *t, bool done)
{
    atto_param *p = t->p;
    const bool is_written =
        p->shadow.buffer && p->shadow.buffer == o->chunks[t->chunk].shadow.buffer;
    const bool follows = done && is_written && atto__param_has_shadow(p);
    p->has_grad = false;
    t->version = ++p->version;
    if (follows) p->shadow_stamp = atto__param_stamp(p);
}

static void use_up_gradients(const atto_optimizer *o, bool done)
{
    for (int32_t s = 0; s < o->trained_count; s++)
        if (o->flags_next[s]) use_up_gradient(o, &o->trained[s], done);
}

atto_status atto_optimizer_step(atto_optimizer *opt, double lr)
{
    ATTO_REQUIRE(opt, ATTO_E_NULL, "optimizer_step: opt is NULL");
    ATTO_REQUIRE(lr >= 0.0 && lr <= FLT_MAX, ATTO_E_ARGUMENT,
                 "optimizer_step: lr is %g, expected 0 or more, finite as f32", lr);
    ATTO_TRY(atto__device_check(opt->dev));
    if (!gather_flags(opt)) return ATTO_OK;
    ATTO_TRY(check_memory(opt));
    ATTO_TRY(write_flags(opt));
    ATTO_TRY(refresh_masters(opt));
    ATTO_TRY(adopt_shadows(opt));
    struct atto__optim_args args = args_of(opt, lr);
    ATTO_TRY(begin(opt, &args));
    const atto_status status = step_chunks(opt, &args);
    use_up_gradients(opt, status == ATTO_OK); /* after a failure too: some may be applied */
    return status == ATTO_OK ? atto__device_finish_call(opt->dev) : status;
}
