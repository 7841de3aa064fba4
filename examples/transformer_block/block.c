/* SPDX-License-Identifier: MIT */
/* How a module is written, in the order in which one thinks of it:
 *
 *   data      a struct with the options and borrowed pointers to children: what forward needs. No
 *             activations, so that one module may stand in many places of a network
 *   forward   records ops and calls children, on the tape of the caller. Errors stick to the tape,
 *             so nothing is checked between two calls
 *   class     name and functions; one static constant for all modules of the kind
 *   create    makes data, then the module around it, then children and parameters. From the moment
 *             the module exists, freeing it frees all of them: one way out for every error */
#include "block.h"

#include <stdlib.h>

/* Children belong to the module, which frees them; these pointers only find them. */
typedef struct block {
    atto_module *self_attn, *linear1, *linear2, *norm1, *norm2;
    float dropout;
    bool norm_first;
} block;

/* ---- forward ---- */

/* One call: what the steps below share. */
typedef struct block_run {
    atto_tape *tape;
    const block *b;
    const transformer_block_call *call;
    float dropout; /* 0 in evaluation */
} block_run;

/* An op with dropout does not know of training and evaluation; the module says what holds. Linear and
 * MultiheadAttention are modules, and look themselves. */
static atto_var drop(const block_run *r, atto_var x)
{
    return r->dropout > 0.0f ? atto_dropout(r->tape, x, r->dropout) : x;
}

/* A child that takes more than atto_apply gives is called by its own function. */
static atto_var attend(const block_run *r, atto_var x)
{
    const atto_multihead_attention_options options = {
        .attn_mask = r->call->src_mask,
        .key_padding_mask = r->call->key_padding_mask,
        .causal = r->call->causal ? ATTO_CAUSAL_TOP_LEFT : ATTO_CAUSAL_NONE,
    };
    return drop(r, atto_multihead_attention(r->tape, r->b->self_attn, x, x, x, &options));
}

/* Activation and inner dropout are options of linear1, which does all three in one pass; the outer
 * dropout is one of linear2. */
static atto_var feed(const block_run *r, atto_var x)
{
    return atto_apply(r->tape, r->b->linear2, atto_apply(r->tape, r->b->linear1, x));
}

static atto_var norm_behind(const block_run *r, atto_var x)
{
    atto_tape *tape = r->tape;
    const atto_var y = atto_apply(tape, r->b->norm1, atto_add(tape, x, attend(r, x)));
    return atto_apply(tape, r->b->norm2, atto_add(tape, y, feed(r, y)));
}

static atto_var norm_before(const block_run *r, atto_var x)
{
    atto_tape *tape = r->tape;
    const atto_var y = atto_add(tape, x, attend(r, atto_apply(tape, r->b->norm1, x)));
    return atto_add(tape, y, feed(r, atto_apply(tape, r->b->norm2, y)));
}

static atto_var run(atto_tape *tape, atto_module *m, atto_var x, const transformer_block_call *call)
{
    const block *b = atto_module_data(m);
    const block_run r = { .tape = tape,
                          .b = b,
                          .call = call,
                          .dropout = atto_module_is_training(m) ? b->dropout : 0.0f };
    return b->norm_first ? norm_before(&r, x) : norm_behind(&r, x);
}

static const transformer_block_call nothing_hidden = { .src_mask = NULL };

/* What atto_apply calls, in a scope that it opens and closes. */
static atto_var block_forward(atto_module *m, atto_tape *tape, atto_var x)
{
    return run(tape, m, x, &nothing_hidden);
}

/* ---- class ---- */

/* An array, whose address no other string has. */
static const char block_name[] = "TransformerBlock";

static const atto_module_class block_class = {
    .name = block_name,
    .forward = block_forward,
    .destroy = free, /* of data alone, which holds nothing of its own */
};

/* ---- a call with more than one input ---- */

/* The tape's error for a module of another kind, whose data would be something else. The name's address
 * tells, not its text, which others may have chosen too. */
static bool is_block(atto_tape *tape, const atto_module *m)
{
    if (m != NULL && atto_module_class_name(m) == block_name) return true;
    atto_tape_fail(tape, m != NULL ? ATTO_E_ARGUMENT : ATTO_E_NULL,
                   m != NULL ? "transformer_block: m is no TransformerBlock"
                             : "transformer_block: m is NULL");
    return false;
}

/* atto_apply in long form: a scope, in which everything dies at its end but the result and what
 * backward needs. */
atto_var transformer_block(atto_tape *tape, atto_module *m, atto_var x,
                           const transformer_block_call *call)
{
    const atto_var none = { .generation = 0 };
    if (!is_block(tape, m)) return none;
    atto_scope_begin(tape);
    const atto_var y = run(tape, m, x, call != NULL ? call : &nothing_hidden);
    atto_scope_end(tape, &y, 1);
    return y;
}

/* ---- create ---- */

/* Registers a child that has just been made, if it has been: status is that of making it. The module takes
 * a reference of its own, so ours goes in any case. */
static atto_status adopt(atto_module *m, const char *name, atto_status status, atto_module *child)
{
    if (status == ATTO_OK) status = atto_module_child(m, name, child);
    atto_module_free(child); /* NULL is fine */
    return status != ATTO_OK ? failure(status, "%s: %s", name, atto_last_error()) : ATTO_OK;
}

static atto_status add_attention(atto_module *m, block *b, int64_t d_model, int64_t nhead,
                                 const transformer_block_options *o)
{
    const atto_multihead_attention_module_options options = { .dropout = b->dropout,
                                                              .no_bias = o->no_bias,
                                                              .batch_first = o->batch_first,
                                                              .dtype = o->dtype };
    const atto_status status = atto_multihead_attention_create(atto_module_device(m), d_model,
                                                               nhead, &options, &b->self_attn);
    return adopt(m, "self_attn", status, b->self_attn);
}

static atto_status add_linear(atto_module *m, const block *b, const char *name, int64_t in,
                              int64_t out, atto_activation act, const transformer_block_options *o,
                              atto_module **child)
{
    const atto_linear_options options = {
        .no_bias = o->no_bias, .act = act, .dropout = b->dropout, .dtype = o->dtype
    };
    const atto_status status = atto_linear_create(atto_module_device(m), in, out, &options, child);
    return adopt(m, name, status, *child);
}

static atto_status add_norm(atto_module *m, const char *name, int64_t d_model,
                            const transformer_block_options *o, atto_module **child)
{
    const atto_norm_options options = { .eps = o->layer_norm_eps,
                                        .no_bias = o->no_bias,
                                        .dtype = o->dtype };
    const atto_status status =
        atto_layer_norm_create(atto_module_device(m), atto_shape1(d_model), &options, child);
    return adopt(m, name, status, *child);
}

/* In PyTorch's order: it is that of the keys, and of the numbers drawn from the device's stream. Each child
 * draws its own initial values as PyTorch's does. */
static atto_status add_children(atto_module *m, block *b, int64_t d_model, int64_t nhead,
                                const transformer_block_options *o)
{
    const int64_t width = o->dim_feedforward != 0 ? o->dim_feedforward : 2048;
    const atto_activation act = o->act.kind != ATTO_ACT_IDENTITY ? o->act : atto_relu();
    TRY(add_attention(m, b, d_model, nhead, o));
    TRY(add_linear(m, b, "linear1", d_model, width, act, o, &b->linear1));
    TRY(add_linear(m, b, "linear2", width, d_model, atto_identity(), o, &b->linear2));
    TRY(add_norm(m, "norm1", d_model, o, &b->norm1));
    return add_norm(m, "norm2", d_model, o, &b->norm2);
}

/* What no child would find: most bad options are named by the child that they go to. */
static atto_status check(int64_t d_model, const transformer_block_options *o)
{
    if (d_model <= 0)
        return failure(ATTO_E_SHAPE, "transformer_block: d_model is %lld, expected 1 or more",
                       (long long)d_model);
    if (o->dim_feedforward < 0)
        return failure(ATTO_E_SHAPE,
                       "transformer_block: dim_feedforward is %lld, expected 1 or more",
                       (long long)o->dim_feedforward);
    return ATTO_OK;
}

atto_status transformer_block_create(atto_device *dev, int64_t d_model, int64_t nhead,
                                     const transformer_block_options *options, atto_module **out)
{
    static const transformer_block_options defaults = { .dropout = 0.0f };
    const transformer_block_options *o = options != NULL ? options : &defaults;
    if (out == NULL) return failure(ATTO_E_NULL, "transformer_block: out is NULL");
    *out = NULL;
    TRY(check(d_model, o));
    block *b = calloc(1, sizeof *b);
    if (b == NULL) return failure(ATTO_E_MEMORY, "transformer_block: no memory");
    b->dropout = o->dropout == 0.0f ? 0.1f : o->dropout == ATTO_ZERO ? 0.0f : o->dropout;
    b->norm_first = o->norm_first;
    atto_module *m;
    atto_status status = atto_module_create(dev, &block_class, b, &m);
    if (status != ATTO_OK) {
        free(b); /* there is no module yet that could own it */
        return failure(status, "%s", atto_last_error());
    }
    status = add_children(m, b, d_model, nhead, o);
    if (status != ATTO_OK) {
        atto_module_free(m); /* children and data too */
        return status;
    }
    *out = m;
    return ATTO_OK;
}
