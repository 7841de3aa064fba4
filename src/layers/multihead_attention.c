/* SPDX-License-Identifier: MIT */
/* MultiheadAttention: a module of linear and attention. */
#include <inttypes.h>
#include <math.h>

#include "alloc.h"
#include "layers/checks.h"
#include "train/module.h"

typedef struct multihead {
    /* Borrowed from the module; NULL where there is none. */
    atto_param *in_proj_weight, *q_proj_weight, *k_proj_weight, *v_proj_weight;
    atto_param *in_proj_bias, *bias_k, *bias_v;
    atto_module *out_proj;
    int64_t embed, heads, kdim, vdim;
    float dropout;
    bool add_zero, batch_first;
} multihead;

/* One call: sizes, and the inputs' dimensions of positions and batches. */
typedef struct call {
    atto_tape *tape;
    const multihead *data;
    const atto_multihead_attention_options *o;
    int64_t batches, queries, keys;
    int64_t added; /* keys behind the caller's */
    int32_t position, batch;
    bool is_batched;
    float dropout;
} call;

static const char what[] = "multihead_attention";

/* ---- checks ---- */

static atto_status check_input(const call *c, const char *name, const atto_tensor *t,
                               int64_t positions, int64_t features)
{
    char got[ATTO_SHAPE_TEXT], wanted[ATTO_SHAPE_TEXT];
    atto_shape shape = atto_shape2(positions, features);
    if (c->is_batched)
        shape = c->data->batch_first ? atto_shape3(c->batches, positions, features)
                                     : atto_shape3(positions, c->batches, features);
    const atto_tensor expected = atto_tensor_of(NULL, ATTO_F32, shape, 0);
    ATTO_REQUIRE(atto__shape_same(t, &expected), ATTO_E_SHAPE, "%s: %s is %s, expected %s", what,
                 name, atto__shape_text(t, got), atto__shape_text(&expected, wanted));
    return ATTO_OK;
}

static atto_status check_rank(const char *name, const atto_tensor *t)
{
    char text[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(t->rank == 2 || t->rank == 3, ATTO_E_SHAPE,
                 "%s: %s is %s, expected two dimensions, or three with the batch", what, name,
                 atto__shape_text(t, text));
    return ATTO_OK;
}

/* Sizes from query and key, and whether value fits. */
static atto_status measure(call *c, const atto_tensor *q, const atto_tensor *k,
                           const atto_tensor *v)
{
    ATTO_TRY(check_rank("query", q));
    ATTO_TRY(check_rank("key", k));
    c->is_batched = q->rank == 3;
    c->position = c->is_batched && c->data->batch_first ? 1 : 0;
    c->batch = 1 - c->position;
    c->batches = c->is_batched ? q->shape[c->batch] : 1;
    c->queries = q->shape[c->position];
    c->keys = k->shape[k->rank == 3 ? c->position : 0];
    ATTO_TRY(check_input(c, "query", q, c->queries, c->data->embed));
    ATTO_TRY(check_input(c, "key", k, c->keys, c->data->kdim));
    return check_input(c, "value", v, c->keys, c->data->vdim);
}

/* A mask of one of two shapes. */
static atto_status check_mask(const char *name, const atto_tensor *t, atto_shape a, atto_shape b)
{
    char got[ATTO_SHAPE_TEXT], first[ATTO_SHAPE_TEXT], second[ATTO_SHAPE_TEXT];
    const atto_tensor of_a = atto_tensor_of(NULL, ATTO_F32, a, 0);
    const atto_tensor of_b = atto_tensor_of(NULL, ATTO_F32, b, 0);
    const bool is_one = a.rank == b.rank;
    ATTO_REQUIRE(atto__shape_same(t, &of_a) || atto__shape_same(t, &of_b), ATTO_E_SHAPE,
                 "%s: %s is %s, expected %s%s%s", what, name, atto__shape_text(t, got),
                 atto__shape_text(&of_a, first), is_one ? "" : " or ",
                 is_one ? "" : atto__shape_text(&of_b, second));
    ATTO_REQUIRE(t->dtype == ATTO_I32 || atto__is_float(t->dtype), ATTO_E_DTYPE,
                 "%s: %s is %s, expected i32 or a float", what, name, atto_dtype_name(t->dtype));
    return ATTO_OK;
}

/* ---- masks ---- */

/* Masks of a call so far: what attention takes, i32 of keys that are seen, or numbers to add. */
typedef struct masks {
    atto_var v;
    bool is_there, is_added;
} masks;

/* One more mask, whose elements other than 0 hide (i32) or are added, as [.., .., .., keys]. */
static void join_mask(const call *c, masks *m, atto_var v, atto_shape shape)
{
    atto_tape *tape = c->tape;
    const atto_tensor *t = atto__tape_tensor(tape, what, v);
    if (!t) return;
    const bool is_boolean = t->dtype == ATTO_I32;
    if (is_boolean && m->is_added)
        v = atto_masked_fill(tape, atto_cast(tape, v, ATTO_F32), v, -INFINITY);
    else if (is_boolean)
        v = atto_compare_number(tape, ATTO_COMPARE_EQ, v, 0.0f);
    else if (t->dtype != ATTO_F32)
        v = atto_cast(tape, v, ATTO_F32);
    v = atto_reshape(tape, v, shape);
    const int64_t before[4] = { 0 }, after[4] = { 0, 0, 0, c->added };
    if (c->added > 0) v = atto_pad(tape, v, before, after, m->is_added ? 0.0 : 1.0);
    m->v = m->is_there ? atto_add(tape, m->v, v) : v;
    m->is_there = true;
}

/* i32 [queries, keys], 1 where causal hides. */
static atto_var causal_mask(const call *c)
{
    const int64_t last = c->o->causal == ATTO_CAUSAL_BOTTOM_RIGHT ? c->keys - c->queries : 0;
    atto_tensor seen;
    if (atto__tape_fail(c->tape, atto_tril_mask(c->tape->dev, c->queries, c->keys, last, &seen)))
        return atto__no_var();
    const atto_var v = atto_borrow(c->tape, &seen, false);
    atto_tensor_free(&seen); /* the tape holds it */
    return atto_compare_number(c->tape, ATTO_COMPARE_EQ, v, 0.0f);
}

static bool is_float(atto_tape *tape, const atto_var *mask)
{
    const atto_tensor *t = mask ? atto__tape_tensor(tape, what, *mask) : NULL;
    return t && t->dtype != ATTO_I32;
}

static atto_status check_masks(const call *c)
{
    const atto_var *padding = c->o->key_padding_mask, *attention = c->o->attn_mask;
    const atto_shape of_pairs = atto_shape2(c->queries, c->keys);
    if (padding) {
        const atto_tensor *t = atto__tape_tensor(c->tape, what, *padding);
        const atto_shape shape =
            c->is_batched ? atto_shape2(c->batches, c->keys) : atto_shape1(c->keys);
        ATTO_TRY(t ? check_mask("key_padding_mask", t, shape, shape) : c->tape->status);
    }
    if (!attention) return ATTO_OK;
    const atto_tensor *t = atto__tape_tensor(c->tape, what, *attention);
    const atto_shape of_heads = atto_shape3(c->batches * c->data->heads, c->queries, c->keys);
    return t ? check_mask("attn_mask", t, of_pairs, of_heads) : c->tape->status;
}

/* All masks as one that broadcasts to [batches, heads, queries, keys]. by_hand: causal is among them.
 * What is left to attention costs no memory: one boolean mask stays boolean. */
static masks merge_masks(const call *c, bool by_hand)
{
    const atto_var *padding = c->o->key_padding_mask, *attention = c->o->attn_mask;
    const bool causal = by_hand && c->o->causal != ATTO_CAUSAL_NONE;
    masks m = { .v = atto__no_var() };
    if (atto__tape_fail(c->tape, check_masks(c)) != ATTO_OK) return m;
    m.is_added = c->o->weights || (padding != NULL) + (attention != NULL) + causal > 1 ||
                 is_float(c->tape, padding) || is_float(c->tape, attention);
    if (padding) join_mask(c, &m, *padding, atto_shape4(c->batches, 1, 1, c->keys));
    if (attention) {
        const atto_tensor *t = atto__tape_tensor(c->tape, what, *attention);
        const bool of_heads = t && t->rank == 3;
        join_mask(c, &m, *attention,
                  atto_shape4(of_heads ? c->batches : 1, of_heads ? c->data->heads : 1, c->queries,
                              c->keys));
    }
    if (causal) join_mask(c, &m, causal_mask(c), atto_shape4(1, 1, c->queries, c->keys));
    return m;
}

/* ---- projections ---- */

/* Part number i of three of in_proj_weight or in_proj_bias. */
static atto_var third_of(const call *c, atto_param *p, int64_t i)
{
    return atto_slice(c->tape, atto_use(c->tape, p), 0, i * c->data->embed,
                      (i + 1) * c->data->embed, 1);
}

static atto_var project(const call *c, atto_var x, int64_t i)
{
    const multihead *data = c->data;
    atto_param *const own[] = { data->q_proj_weight, data->k_proj_weight, data->v_proj_weight };
    const atto_var weight =
        own[i] ? atto_use(c->tape, own[i]) : third_of(c, data->in_proj_weight, i);
    if (!data->in_proj_bias) return atto_linear(c->tape, x, weight, NULL);
    const atto_var bias = third_of(c, data->in_proj_bias, i);
    return atto_linear(c->tape, x, weight, &(atto_linear_fused){ .bias = &bias });
}

/* The keys that options add, behind those of x. */
static atto_var add_keys(const call *c, atto_var x, atto_param *bias)
{
    if (bias) {
        const int64_t n = c->batches, e = c->data->embed;
        const atto_shape one = c->position == 0 ? atto_shape3(1, n, e) : atto_shape3(n, 1, e);
        const atto_var all[] = { x, atto_expand(c->tape, atto_use(c->tape, bias), one) };
        x = atto_concat(c->tape, all, 2, c->position);
    }
    if (!c->data->add_zero) return x;
    const int64_t before[3] = { 0 };
    int64_t after[3] = { 0 };
    after[c->position] = 1;
    return atto_pad(c->tape, x, before, after, 0.0);
}

/* [positions, batches, embed], or the other way round, as [batches, heads, positions, size]. */
static atto_var split_heads(const call *c, atto_var x, int64_t positions)
{
    const int64_t n = c->batches, h = c->data->heads, size = c->data->embed / h;
    const int32_t order[] = { c->batch, 2, c->position, 3 };
    const atto_shape shape =
        c->position == 0 ? atto_shape4(positions, n, h, size) : atto_shape4(n, positions, h, size);
    return atto_permute(c->tape, atto_reshape(c->tape, x, shape), order);
}

/* And back. */
static atto_var join_heads(const call *c, atto_var y)
{
    const int64_t n = c->batches, l = c->queries, e = c->data->embed;
    static const int32_t position_first[] = { 2, 0, 1, 3 }, batch_first[] = { 0, 2, 1, 3 };
    y = atto_permute(c->tape, y, c->position == 0 ? position_first : batch_first);
    return atto_reshape(c->tape, y, c->position == 0 ? atto_shape3(l, n, e) : atto_shape3(n, l, e));
}

/* ---- attention ---- */

/* With weights: softmax(q k^T / sqrt(size) + mask), whose rows are 0 where a query sees no key. */
static atto_var explicit_attention(const call *c, atto_var q, atto_var k, atto_var v)
{
    atto_tape *tape = c->tape;
    const float scale = (float)(1.0 / sqrt((double)(c->data->embed / c->data->heads)));
    const masks m = merge_masks(c, true);
    const bool has_mask = m.is_there && c->keys + c->added > 0; /* no keys have no largest number */
    atto_var z = atto_matmul(tape, atto_binary_number(tape, ATTO_BINARY_MUL, q, scale),
                             atto_transpose(tape, k, 2, 3));
    const atto_tensor *t = atto__tape_tensor(tape, what, z);
    if (!t) return z;
    const atto_dtype dtype = t->dtype;
    atto_var blind = atto__no_var();
    if (dtype != ATTO_F32) z = atto_cast(tape, z, ATTO_F32); /* which masks are in */
    if (has_mask) {
        const atto_reduce_options over_keys = { .dims = { 3 }, .dim_count = 1, .keep = true };
        const atto_var top = atto_reduce(tape, ATTO_REDUCE_MAX, m.v, &over_keys);
        blind = atto_compare_number(tape, ATTO_COMPARE_EQ, top, -INFINITY);
        z = atto_add(tape, z, atto_masked_fill(tape, m.v, blind, 0.0f));
    }
    atto_var p = atto_softmax(tape, z, -1);
    if (has_mask) p = atto_masked_fill(tape, p, blind, 0.0f);
    if (dtype != ATTO_F32) p = atto_cast(tape, p, dtype);
    if (c->dropout > 0.0f) p = atto_dropout(tape, p, c->dropout);
    const atto_reduce_options over_heads = { .dims = { 1 }, .dim_count = 1 };
    atto_var weights = c->o->each_head ? p : atto_reduce(tape, ATTO_REDUCE_MEAN, p, &over_heads);
    *c->o->weights = c->is_batched ? weights : atto_squeeze(tape, weights, 0);
    return atto_matmul(tape, p, v);
}

static atto_var fused_attention(const call *c, atto_var q, atto_var k, atto_var v)
{
    const bool by_hand = c->added > 0; /* added keys stay seen */
    const masks m = merge_masks(c, by_hand);
    const atto_attention_options options = { .mask = m.is_there ? &m.v : NULL,
                                             .causal = by_hand ? ATTO_CAUSAL_NONE : c->o->causal,
                                             .dropout = c->dropout };
    return atto_scaled_dot_product_attention(c->tape, q, k, v, &options);
}

static atto_var attend(const call *c, atto_var query, atto_var key, atto_var value)
{
    const multihead *data = c->data;
    const atto_var inputs[] = { query, key, value };
    atto_param *const biases[] = { NULL, data->bias_k, data->bias_v };
    atto_var heads[3];
    for (int32_t i = 0; i < 3; i++) {
        atto_var x = inputs[i];
        if (!c->is_batched) x = atto_unsqueeze(c->tape, x, c->batch);
        x = project(c, x, i);
        if (i > 0) x = add_keys(c, x, biases[i]);
        heads[i] = split_heads(c, x, i == 0 ? c->queries : c->keys + c->added);
    }
    const atto_var y = c->o->weights ? explicit_attention(c, heads[0], heads[1], heads[2])
                                     : fused_attention(c, heads[0], heads[1], heads[2]);
    const atto_var out = atto_apply(c->tape, data->out_proj, join_heads(c, y));
    return c->is_batched ? out : atto_squeeze(c->tape, out, c->batch);
}

/* ---- the module ---- */

static atto_var self_attention(atto_module *m, atto_tape *tape, atto_var x)
{
    return atto_multihead_attention(tape, m, x, x, x, NULL);
}

static const atto_module_class multihead_class = { .name = "MultiheadAttention",
                                                   .forward = self_attention,
                                                   .destroy = atto__free };

static atto_status check_call(const atto_module *m, const atto_multihead_attention_options *o)
{
    ATTO_REQUIRE(m, ATTO_E_NULL, "%s: m is NULL", what);
    ATTO_REQUIRE(atto__module_is(m, &multihead_class), ATTO_E_ARGUMENT,
                 "%s: the module is a %s, expected a MultiheadAttention", what,
                 atto_module_class_name(m));
    ATTO_REQUIRE(o->causal >= ATTO_CAUSAL_NONE && o->causal <= ATTO_CAUSAL_BOTTOM_RIGHT,
                 ATTO_E_ARGUMENT, "%s: causal is %d, expected 0 to 2", what, (int)o->causal);
    return atto__reserved_check("multihead_attention: options", o->reserved);
}

atto_var atto_multihead_attention(atto_tape *tape, atto_module *m, atto_var query, atto_var key,
                                  atto_var value, const atto_multihead_attention_options *options)
{
    const atto_multihead_attention_options none = { .weights = NULL };
    const atto_multihead_attention_options *o = options ? options : &none;
    if (o->weights) *o->weights = atto__no_var();
    if (!tape || tape->status != ATTO_OK) return atto__no_var();
    if (atto__tape_fail(tape, check_call(m, o)) != ATTO_OK) return atto__no_var();
    const multihead *data = atto_module_data(m);
    call c = { .tape = tape,
               .data = data,
               .o = o,
               .added = (data->bias_k != NULL) + data->add_zero,
               .dropout = atto_module_is_training(m) ? data->dropout : 0.0f };
    const atto_tensor *q = atto__tape_tensor(tape, what, query);
    const atto_tensor *k = atto__tape_tensor(tape, what, key);
    const atto_tensor *v = atto__tape_tensor(tape, what, value);
    if (!q || !k || !v || atto__tape_fail(tape, measure(&c, q, k, v)) != ATTO_OK)
        return atto__no_var();
    atto_scope_begin(tape);
    const atto_var out = attend(&c, query, key, value);
    const atto_var keep[] = { out, o->weights ? *o->weights : out };
    atto_scope_end(tape, keep, 2);
    return out;
}

/* Weights of Glorot's uniform distribution, from `in` features to `out`. */
static atto_status add_weight(atto_module *m, const char *name, atto_dtype dtype, int64_t out,
                              int64_t in, atto_param **p)
{
    ATTO_TRY(atto_module_param(m, name, dtype, atto_shape2(out, in), p));
    return atto_param_init_uniform(*p, sqrt(6.0 / (double)(in + out)));
}

static atto_status add_bias_kv(atto_module *m, multihead *data, atto_dtype dtype)
{
    const atto_shape shape = atto_shape3(1, 1, data->embed);
    const double deviation = 1.0 / sqrt((double)data->embed);
    ATTO_TRY(atto_module_param(m, "bias_k", dtype, shape, &data->bias_k));
    ATTO_TRY(atto_param_init_normal(data->bias_k, 0.0, deviation));
    ATTO_TRY(atto_module_param(m, "bias_v", dtype, shape, &data->bias_v));
    return atto_param_init_normal(data->bias_v, 0.0, deviation);
}

/* Its bias starts at 0, unlike that of other linear modules. */
static atto_status clear_bias(void *data, const char *key, atto_param *p)
{
    (void)data;
    return key[0] == 'b' ? atto_param_init_constant(p, 0.0) : ATTO_OK;
}

static atto_status add_out_proj(atto_module *m, multihead *data, bool no_bias, atto_dtype dtype)
{
    const atto_linear_options options = { .no_bias = no_bias, .dtype = dtype };
    atto_module *child;
    ATTO_TRY(atto_linear_create(atto_module_device(m), data->embed, data->embed, &options, &child));
    atto_status status = atto_module_params(child, clear_bias, NULL);
    if (status == ATTO_OK) status = atto_module_child(m, "out_proj", child);
    atto_module_free(child); /* m holds it */
    data->out_proj = child;
    return status;
}

/* Source: PyTorch 2.11 torch.nn.MultiheadAttention._reset_parameters. */
static atto_status add_params(atto_module *m, void *data_, const void *options)
{
    multihead *data = data_;
    const atto_multihead_attention_module_options *o = options;
    const atto_dtype dtype = o->dtype ? o->dtype : ATTO_F32;
    const int64_t e = data->embed;
    if (data->kdim == e && data->vdim == e) {
        ATTO_TRY(add_weight(m, "in_proj_weight", dtype, 3 * e, e, &data->in_proj_weight));
    } else {
        ATTO_TRY(add_weight(m, "q_proj_weight", dtype, e, e, &data->q_proj_weight));
        ATTO_TRY(add_weight(m, "k_proj_weight", dtype, e, data->kdim, &data->k_proj_weight));
        ATTO_TRY(add_weight(m, "v_proj_weight", dtype, e, data->vdim, &data->v_proj_weight));
    }
    if (!o->no_bias) {
        ATTO_TRY(
            atto_module_param(m, "in_proj_bias", dtype, atto_shape1(3 * e), &data->in_proj_bias));
        ATTO_TRY(atto_param_init_constant(data->in_proj_bias, 0.0));
    }
    if (o->add_bias_kv) ATTO_TRY(add_bias_kv(m, data, dtype));
    return add_out_proj(m, data, o->no_bias, dtype);
}

static atto_status check_module(const multihead *data,
                                const atto_multihead_attention_module_options *o)
{
    const char *create = "multihead_attention_create";
    ATTO_TRY(atto__reserved_check("multihead_attention_create: options", o->reserved));
    const struct {
        const char *name;
        int64_t size;
    } sizes[] = { { "embed_dim", data->embed },
                  { "num_heads", data->heads },
                  { "kdim", data->kdim },
                  { "vdim", data->vdim } };
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        ATTO_REQUIRE(sizes[i].size > 0, ATTO_E_SHAPE, "%s: %s is %" PRId64 ", expected 1 or more",
                     create, sizes[i].name, sizes[i].size);
    ATTO_REQUIRE(data->embed <= INT64_MAX / 3, ATTO_E_SHAPE,
                 "%s: embed_dim is %" PRId64 ", expected at most %" PRId64, create, data->embed,
                 INT64_MAX / 3);
    ATTO_REQUIRE(data->embed % data->heads == 0, ATTO_E_SHAPE,
                 "%s: embed_dim is %" PRId64 ", no multiple of num_heads, %" PRId64, create,
                 data->embed, data->heads);
    ATTO_REQUIRE(data->embed / data->heads <= ATTO_ATTENTION_MAX_HEAD, ATTO_E_SHAPE,
                 "%s: a head has %" PRId64 " features, expected at most %d", create,
                 data->embed / data->heads, ATTO_ATTENTION_MAX_HEAD);
    return atto__probability_check(create, o->dropout, &(atto_rng){ 0 });
}

atto_status atto_multihead_attention_create(atto_device *dev, int64_t embed_dim, int64_t num_heads,
                                            const atto_multihead_attention_module_options *options,
                                            atto_module **m)
{
    ATTO_REQUIRE(m, ATTO_E_NULL, "multihead_attention_create: m is NULL");
    *m = NULL;
    const atto_multihead_attention_module_options none = { .no_bias = false };
    const atto_multihead_attention_module_options *o = options ? options : &none;
    const multihead data = { .embed = embed_dim,
                             .heads = num_heads,
                             .kdim = o->kdim ? o->kdim : embed_dim,
                             .vdim = o->vdim ? o->vdim : embed_dim,
                             .dropout = o->dropout,
                             .add_zero = o->add_zero_attn,
                             .batch_first = o->batch_first };
    ATTO_TRY(check_module(&data, o));
    return atto__module_make(dev, "multihead_attention_create", &multihead_class, &data,
                             sizeof data, add_params, o, m);
}
