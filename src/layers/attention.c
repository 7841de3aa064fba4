/* SPDX-License-Identifier: MIT */
/* Attention: checks, the public calls and recording. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "layers/checks.h"
#include "train/tape.h"

/* ---- checks ---- */

static atto_status check_numbers(const char *what, const struct atto_attention_args *a)
{
    ATTO_REQUIRE(a->causal >= ATTO_CAUSAL_NONE && a->causal <= ATTO_CAUSAL_BOTTOM_RIGHT,
                 ATTO_E_ARGUMENT, "%s: causal is %d, expected 0 to 2", what, (int)a->causal);
    ATTO_REQUIRE(isfinite(a->scale), ATTO_E_ARGUMENT, "%s: scale is %g", what, (double)a->scale);
    return atto__probability_check(what, a->dropout, &a->rng);
}

static atto_status check_head(const char *what, const char *name, const atto_tensor *t)
{
    char text[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(t->rank == 4, ATTO_E_SHAPE,
                 "%s: %s is %s, expected four dimensions: batch, heads, positions, head size", what,
                 name, atto__shape_text(t, text));
    ATTO_REQUIRE(t->shape[3] >= 1 && t->shape[3] <= ATTO_ATTENTION_MAX_HEAD, ATTO_E_SHAPE,
                 "%s: %s is %s, whose last dimension is not 1 to %d", what, name,
                 atto__shape_text(t, text), ATTO_ATTENTION_MAX_HEAD);
    return ATTO_OK;
}

static atto_status check_heads_share(const char *what, const atto_tensor *q, const atto_tensor *k)
{
    const int64_t heads = q->shape[1], shared = k->shape[1];
    const bool fits = shared > 0 ? heads > 0 && heads % shared == 0 : heads == 0;
    ATTO_REQUIRE(fits, ATTO_E_SHAPE,
                 "%s: q has %" PRId64 " heads, expected a positive multiple of k's %" PRId64, what,
                 heads, shared);
    return ATTO_OK;
}

/* q alone, then what k and v must be beside it, and the shapes that follow. */
static atto_status check_inputs(const char *what, const struct atto_attention_args *a)
{
    ATTO_TRY(check_head(what, "q", a->q));
    ATTO_TRY(check_head(what, "k", a->k));
    ATTO_TRY(check_head(what, "v", a->v));
    ATTO_REQUIRE(atto__is_float(a->q->dtype), ATTO_E_DTYPE,
                 "%s: q is %s, expected f32, f16 or bf16", what, atto_dtype_name(a->q->dtype));
    ATTO_TRY(check_heads_share(what, a->q, a->k));
    const int64_t *q = a->q->shape, *k = a->k->shape;
    const atto__expected list[] = {
        { "k", a->k, atto_shape4(q[0], k[1], k[2], q[3]), a->q->dtype, false },
        { "v", a->v, atto_shape4(q[0], k[1], k[2], a->v->shape[3]), a->q->dtype, false },
    };
    return atto__tensors_check(what, list, COUNT_OF(list));
}

/* What a matrix of scores would be. */
static atto_tensor scores_of(const atto_tensor *q, const atto_tensor *k)
{
    const atto_shape shape = atto_shape4(q->shape[0], q->shape[1], q->shape[2], k->shape[2]);
    return atto_tensor_of(NULL, ATTO_F32, shape, 0);
}

static atto_status check_mask(const char *what, const struct atto_attention_args *a)
{
    char text[ATTO_SHAPE_TEXT], wanted[ATTO_SHAPE_TEXT];
    if (!a->mask) return ATTO_OK;
    const atto_tensor full = scores_of(a->q, a->k);
    atto_tensor view = *a->mask;
    ATTO_REQUIRE(view.rank >= 1 && view.rank <= 4 && atto__view_expand(&view, &full, 0),
                 ATTO_E_SHAPE, "%s: mask is %s, which does not broadcast to %s", what,
                 atto__shape_text(a->mask, text), atto__shape_text(&full, wanted));
    ATTO_REQUIRE(view.dtype == ATTO_I32 || view.dtype == ATTO_F32 || view.dtype == a->q->dtype,
                 ATTO_E_DTYPE, "%s: mask is %s, expected i32, f32%s%s", what,
                 atto_dtype_name(view.dtype), a->q->dtype == ATTO_F32 ? "" : " or q's ",
                 a->q->dtype == ATTO_F32 ? "" : atto_dtype_name(a->q->dtype));
    return ATTO_OK;
}

static atto_shape output_shape(const atto_tensor *q, const atto_tensor *v)
{
    return atto_shape4(q->shape[0], q->shape[1], q->shape[2], v->shape[3]);
}

static atto_shape lse_shape(const atto_tensor *q)
{
    return atto_shape3(q->shape[0], q->shape[1], q->shape[2]);
}

atto_status atto__attention_check(const struct atto_attention_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    const char *what = forward ? "attention_forward" : "attention_backward";
    ATTO_TRY(check_numbers(what, a));
    ATTO_TRY(check_inputs(what, a));
    ATTO_TRY(check_mask(what, a));
    const atto_dtype dtype = a->q->dtype;
    const atto_shape q = atto_shape_of(4, a->q->shape), k = atto_shape_of(4, a->k->shape);
    const atto_shape v = atto_shape_of(4, a->v->shape), y = output_shape(a->q, a->v);
    const atto__expected list[] = {
        { "y", a->y, y, dtype, false },
        { "lse", a->lse, lse_shape(a->q), ATTO_F32, false },
        { "lse_low", a->lse_low, lse_shape(a->q), ATTO_F32, false },
        { "dy", forward ? NULL : a->dy, y, dtype, false },
        { "dq", forward ? NULL : a->dq, q, dtype, false },
        { "dk", forward ? NULL : a->dk, k, dtype, false },
        { "dv", forward ? NULL : a->dv, v, dtype, false },
    };
    return atto__tensors_check(what, list, COUNT_OF(list));
}

atto_status atto_attention_forward(atto_device *dev, const struct atto_attention_args *p)
{
    return atto__run(dev, ATTO_OP_ATTENTION, ATTO_FORWARD, p);
}

atto_status atto_attention_backward(atto_device *dev, const struct atto_attention_args *p)
{
    return atto__run(dev, ATTO_OP_ATTENTION, ATTO_BACKWARD, p);
}

/* ---- on a tape ---- */

#define FIELD(name) offsetof(struct atto_attention_args, name)

static atto_status check_mask_var(const atto_tape *tape, const atto__value *mask)
{
    ATTO_REQUIRE(!atto__tape_wants_grad(tape, mask), ATTO_E_UNSUPPORTED,
                 "scaled_dot_product_attention: mask would need a gradient, which it gets in "
                 "atto_matmul and atto_softmax only");
    return ATTO_OK;
}

/* Fills in the args from options; false, with the tape's error, if they are none. */
static bool take_options(atto_tape *tape, const atto_attention_options *o,
                         struct atto_attention_args *args, int64_t probabilities)
{
    if (!o) return true;
    if (atto__tape_fail(tape, atto__reserved_check("scaled_dot_product_attention: options",
                                                   o->reserved)) != ATTO_OK)
        return false;
    if (o->mask) {
        const atto__value *mask = atto__tape_value(tape, "scaled_dot_product_attention", *o->mask);
        if (!mask || atto__tape_fail(tape, check_mask_var(tape, mask)) != ATTO_OK) return false;
    }
    args->causal = o->causal;
    args->scale = o->scale;
    args->dropout = o->dropout;
    if (o->dropout > 0.0f) args->rng = atto__tape_draw(tape, probabilities);
    return true;
}

atto_var atto_scaled_dot_product_attention(atto_tape *tape, atto_var q, atto_var k, atto_var v,
                                           const atto_attention_options *options)
{
    const char *what = "scaled_dot_product_attention";
    const atto_tensor *tq = atto__tape_tensor(tape, what, q);
    const atto_tensor *tk = atto__tape_tensor(tape, what, k);
    const atto_tensor *tv = atto__tape_tensor(tape, what, v);
    if (!tq || !tk || !tv) return atto__no_var();
    atto_tensor like_k = *tk, like_v = *tv; /* autocast may bring them together */
    like_k.dtype = like_v.dtype = tq->dtype;
    struct atto_attention_args args = { .q = tq, .k = &like_k, .v = &like_v };
    if (atto__tape_fail(tape, check_inputs(what, &args)) != ATTO_OK) return atto__no_var();
    const atto_tensor scores = scores_of(tq, tk);
    if (!take_options(tape, options, &args, atto_tensor_numel(&scores))) return atto__no_var();
    const bool masked = options && options->mask;
    const atto__binding inputs[] = {
        { .field = FIELD(q), .v = q },
        { .field = FIELD(k), .v = k },
        { .field = FIELD(v), .v = v },
        { .field = FIELD(mask), .v = masked ? *options->mask : q, .f32_too = true }
    };
    const atto__result results[] = {
        { .field = FIELD(y), .like_inputs = true, .shape = output_shape(tq, tv), .ordered = true },
        { .field = FIELD(lse), .dtype = ATTO_F32, .shape = lse_shape(tq), .only_saved = true },
        { .field = FIELD(lse_low), .dtype = ATTO_F32, .shape = lse_shape(tq), .only_saved = true },
    };
    return atto__record_op(tape, ATTO_OP_ATTENTION, &args, inputs, masked ? 4 : 3, results,
                           COUNT_OF(results));
}
