/* SPDX-License-Identifier: MIT */
/* Family attention: masks, causal, heads that share keys, more or fewer keys than queries, dropout. A
 * shape is [B, H, L, D]; without B it is one batch, whose values are half as wide. */
#include "grid.h"

enum { MASK_NONE, MASK_BOOL, MASK_ADDED, MASKS };

static const char *mask_text(int value)
{
    static const char *const names[MASKS] = { "none", "bool", "added" };
    return names[value];
}

static const char *causal_text(int value)
{
    static const char *const names[] = { "none", "top_left", "bottom_right" };
    return names[value];
}

static const char *keys_text(int value)
{
    static const char *const names[] = { "same", "fewer", "more" };
    return names[value];
}

static atto_shape shape_of_q(const grid_case *c)
{
    const int64_t *d = c->shape.dim;
    return c->shape.rank == 4 ? c->shape : atto_shape4(1, d[0], d[1], d[2]);
}

/* Of keys of that width; values have the same heads and positions. */
static atto_shape shape_of_keys(const grid_case *c, int64_t width)
{
    const atto_shape q = shape_of_q(c);
    const int64_t heads = q.dim[1], l = q.dim[2];
    const int64_t keys[] = { l, l / 2 + 1, l + l / 2 + 1 };
    const int64_t shared = !grid_int(c, "shared") ? heads : heads % 2 == 0 ? heads / 2 : 1;
    return atto_shape4(q.dim[0], shared, keys[grid_int(c, "keys")], width);
}

static int64_t value_width(const grid_case *c)
{
    const int64_t d = c->shape.dim[c->shape.rank - 1];
    return c->shape.rank == 4 ? d : d / 2 + 1;
}

static atto_shape shape_of_y(const grid_case *c)
{
    atto_shape y = shape_of_q(c);
    y.dim[3] = value_width(c);
    return y;
}

/* Of all probabilities. */
static atto_shape shape_of_p(const grid_case *c)
{
    atto_shape p = shape_of_q(c);
    p.dim[3] = shape_of_keys(c, 1).dim[2];
    return p;
}

static bool attention_exists(const grid_case *c)
{
    const int64_t width = c->shape.dim[c->shape.rank - 1];
    const int64_t probabilities = grid_product(shape_of_p(c), 0, 4);
    const bool keeps_mask = grid_get(c, "dropout") > 0.0; /* "keep" below, in f32 */
    return width <= ATTO_ATTENTION_MAX_HEAD && probabilities <= (keeps_mask ? 1 << 24 : 1 << 28);
}

static void build_attention(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const atto_shape q = shape_of_q(c), y = shape_of_y(c), p = shape_of_p(c);
    const atto_shape k = shape_of_keys(c, q.dim[3]), v = shape_of_keys(c, y.dim[3]);
    const atto_shape mask = atto_shape2(p.dim[2], p.dim[3]);
    const atto_shape rows = atto_shape3(q.dim[0], q.dim[1], q.dim[2]);
    const int kind = grid_int(c, "mask");
    grid_input(s, "q", c->dtype, q, GRID_NORMAL, 1);
    grid_input(s, "k", c->dtype, k, GRID_NORMAL, 3);
    grid_input(s, "v", c->dtype, v, GRID_NORMAL, 4);
    grid_input(s, "dy", c->dtype, y, GRID_NORMAL, 2);
    /* of normal numbers as integers two thirds are 0 */
    if (kind != MASK_NONE)
        grid_input(s, "mask", kind == MASK_BOOL ? ATTO_I32 : ATTO_F32, mask, GRID_NORMAL, 5);
    grid_output(s, "y", c->dtype, y, GRID_FORWARD, true);
    grid_output(s, "lse", ATTO_F32, rows, GRID_FORWARD, true);
    grid_output(s, "lse_low", ATTO_F32, rows, GRID_FORWARD, true);
    if (grid_get(c, "dropout") > 0.0) grid_output(s, "keep", ATTO_F32, p, GRID_FORWARD, true);
    grid_output(s, "dq", c->dtype, q, GRID_BACKWARD, true);
    grid_output(s, "dk", c->dtype, k, GRID_BACKWARD, true);
    grid_output(s, "dv", c->dtype, v, GRID_BACKWARD, true);
}

static const atto_rng rng = { 2017, 1, ATTO_RNG_PHILOX };

/* What dropout makes of ones: the mask that attention draws, too. */
static atto_status put_keep(atto_device *dev, const atto_tensor *keep, float p)
{
    const atto_status status = atto_tensor_fill(keep, 1.0);
    if (status != ATTO_OK) return status;
    return atto_dropout_forward(
        dev, &(struct atto_dropout_args){ .x = keep, .y = keep, .p = p, .rng = rng });
}

static atto_status call_attention(grid_scene *s, bool backward)
{
    const grid_case *c = grid_case_of(s);
    const struct atto_attention_args a = { .q = grid_at(s, "q"),
                                           .k = grid_at(s, "k"),
                                           .v = grid_at(s, "v"),
                                           .mask = grid_at(s, "mask"),
                                           .y = grid_at(s, "y"),
                                           .lse = grid_at(s, "lse"),
                                           .lse_low = grid_at(s, "lse_low"),
                                           .dy = grid_at(s, "dy"),
                                           .dq = grid_at(s, "dq"),
                                           .dk = grid_at(s, "dk"),
                                           .dv = grid_at(s, "dv"),
                                           .causal = (atto_causal)grid_int(c, "causal"),
                                           .dropout = (float)grid_get(c, "dropout"),
                                           .rng = rng };
    atto_device *dev = atto_tensor_device(a.q);
    const atto_tensor *keep = grid_at(s, "keep");
    if (backward) return atto_attention_backward(dev, &a);
    const atto_status status = keep ? put_keep(dev, keep, a.dropout) : ATTO_OK;
    return status == ATTO_OK ? atto_attention_forward(dev, &a) : status;
}

static void put_sums(grid_scene *s, const char *name, const oracle_sum *sums, int64_t numel)
{
    double *want = grid_want(s, name, numel), *terms = grid_terms(s, name, numel);
    for (int64_t i = 0; i < numel; i++) want[i] = sums[i].value, terms[i] = sums[i].terms;
    grid_allow(s, name, name[0] == 'd' ? "attention_grad" : "attention", 1);
}

static oracle_sum *sums_of(grid_scene *s, int64_t numel)
{
    return grid_array(s, (int64_t)(sizeof(oracle_sum) / sizeof(double)) * numel);
}

static void answer_keep(grid_scene *s, const oracle_attention *o)
{
    const int64_t n = o->batches * o->heads * o->queries * o->keys;
    double *want = grid_want(s, "keep", n);
    if (o->p == 0.0f) return;
    for (int64_t i = 0; i < n; i++)
        want[i] = oracle_keep(rng, o->p, i) ? oracle_keep_scale(o->p) : 0.0;
    grid_allow(s, "keep", "dropout", 1);
}

static void answer_attention(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const atto_shape q = shape_of_q(c), y = shape_of_y(c), v = shape_of_keys(c, y.dim[3]);
    const oracle_attention o = { .batches = q.dim[0],
                                 .heads = q.dim[1],
                                 .key_heads = v.dim[1],
                                 .queries = q.dim[2],
                                 .keys = v.dim[2],
                                 .d = q.dim[3],
                                 .e = y.dim[3],
                                 .q = grid_held(s, "q"),
                                 .k = grid_held(s, "k"),
                                 .v = grid_held(s, "v"),
                                 .mask = grid_held(s, "mask"),
                                 .mask_shape = atto_shape2(q.dim[2], v.dim[2]),
                                 .mask_hides = grid_int(c, "mask") == MASK_BOOL,
                                 .y = grid_held(s, "y"),
                                 .dy = grid_held(s, "dy"),
                                 .causal = (atto_causal)grid_int(c, "causal"),
                                 .p = (float)grid_get(c, "dropout"),
                                 .rng = rng,
                                 .lse = grid_held(s, "lse"),
                                 .with_low = true };
    const int64_t rows = o.batches * o.heads * o.queries, keys = grid_product(v, 0, 3);
    oracle_sum *sy = sums_of(s, rows * o.e), *lse = sums_of(s, rows), *dq = sums_of(s, rows * o.d);
    oracle_sum *dk = sums_of(s, keys * o.d), *dv = sums_of(s, keys * o.e);
    oracle_sum *low = sums_of(s, rows);
    oracle_attention_forward(&o, sy, lse, low);
    oracle_attention_backward(&o, dq, dk, dv);
    put_sums(s, "y", sy, rows * o.e);
    put_sums(s, "lse", lse, rows);
    put_sums(s, "lse_low", low, rows);
    put_sums(s, "dq", dq, rows * o.d);
    put_sums(s, "dk", dk, keys * o.d);
    put_sums(s, "dv", dv, keys * o.e);
    answer_keep(s, &o);
}

const grid_family grid_attention = {
    .name = "attention",
    .least_rank = 3,
    .most_rank = 4,
    .options = { { "causal", 3, { 0 }, causal_text },
                 { "mask", MASKS, { 0 }, mask_text },
                 { "shared", 2, { 0, 1 }, NULL },
                 { "dropout", 2, { 0, 0.25 }, NULL },
                 { "keys", 3, { 0 }, keys_text } },
    .exists = attention_exists,
    .build = build_attention,
    .call = call_attention,
    .answer = answer_attention,
};
