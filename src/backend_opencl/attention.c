/* SPDX-License-Identifier: MIT */
/* Attention on OpenCL: see src/cl/attention.cl.
 *
 *   forward    one kernel; or, where queries and heads are few, one for parts of the keys, and one that
 *              joins these
 *   backward   delta, then dk and dv in one kernel and dq in another
 */
#include "attention.h"

#include <inttypes.h>

#include "cl/atto_attention_sizes.h"
#include "walk.h"

/* Sizes that kernels count with. */
#define MOST (INT32_MAX - 1024)

#define JOIN_GROUP 64 /* work-items of a row, at most */

typedef struct call {
    atto_device *dev;
    const struct atto_attention_args *a;
    atto__attention p;
    bool vectors;
} call;

static atto_status check_size(const char *what, int64_t n)
{
    ATTO_REQUIRE(n <= MOST, ATTO_E_UNSUPPORTED, "%" PRId64 " %s, expected at most %d", n, what,
                 MOST);
    return ATTO_OK;
}

/* Rows begin at 16 bytes and are made of whole vectors. */
static bool vectors_fit(const atto_tensor *t)
{
    const int32_t unit = t ? atto__vector_elements(t->dtype) : 1;
    return !t || (t->shape[3] % unit == 0 && atto__rows_at_units(t, unit));
}

static atto_status begin(atto_device *dev, const struct atto_attention_args *a, bool backward,
                         call *c)
{
    *c = (call){ .dev = dev, .a = a };
    atto__attention_of(a, &c->p);
    ATTO_TRY(check_size("heads of all batches", c->p.batches * c->p.heads));
    ATTO_TRY(check_size("queries", c->p.queries));
    ATTO_TRY(check_size("keys", c->p.keys));
    c->vectors = vectors_fit(a->q) && vectors_fit(a->k) && vectors_fit(a->v) &&
                 (!backward || vectors_fit(a->dy));
    return ATTO_OK;
}

/* ---- launches ---- */

static atto__attention_knobs knobs_of(const call *c, const char *kernel, atto__attention_tile tile)
{
    return (atto__attention_knobs){ .kernel = kernel,
                                    .dtype = c->a->q->dtype,
                                    .head = c->p.d,
                                    .out = c->p.e,
                                    .mask = c->p.mask_kind,
                                    .mask_dtype = c->a->mask ? c->a->mask->dtype : ATTO_F32,
                                    .dropout = atto__dropout_knob_of(c->a->dropout, c->a->rng),
                                    .vectors = c->vectors,
                                    .loops = c->dev->info.kind == ATTO_KIND_OPENCL_CPU,
                                    .tile = tile };
}

/* The tile on this device for sums of so many columns together, beside so many tiles of scores that are in
 * registers at a time. */
static atto_status choose_tile(atto_device *dev, int64_t rows, int32_t scores, int32_t columns,
                               atto__attention_tile *out)
{
    const int32_t most = (int32_t)atto__opencl_of(dev)->group_size;
    const uint64_t room = dev->info.local_bytes;
    for (int32_t i = 0; i < ATTO_ATTENTION_TILES; i++) {
        *out = atto__attention_tiles[i];
        if (atto__attention_tile_items(out) <= most && atto__attention_tile_bytes(out) <= room &&
            atto__attention_tile_fits(out, rows, scores, columns))
            return ATTO_OK;
    }
    return atto__fail(ATTO_E_BUILD,
                      "attention: no tile fits work-groups of %d and %llu bytes of local "
                      "memory",
                      (int)most, (unsigned long long)room);
}

static void arg_heads(atto__args *args, const atto_tensor *t, const atto__heads *strides)
{
    const int64_t step[4] = { strides->batch, strides->head, strides->row, 0 };
    atto__arg_optional(args, t);
    atto__arg_index4(args, true, step);
}

static void arg_lse(atto__args *args, const call *c)
{
    arg_heads(args, c->a->lse, &c->p.lse);
    arg_heads(args, c->a->lse_low, &c->p.lse_low);
    atto__arg_uint(args, (c->a->lse ? 1u : 0u) | (c->a->lse_low ? 2u : 0u));
}

/* ATTO_SCENE_PARAMETERS, batches before them. */
static void arg_scene(atto__args *args, const call *c)
{
    const atto__attention *p = &c->p;
    atto__arg_uint(args, (uint32_t)p->batches);
    atto__arg_uint(args, (uint32_t)p->heads);
    atto__arg_uint(args, (uint32_t)p->shared);
    atto__arg_uint(args, (uint32_t)p->queries);
    atto__arg_uint(args, (uint32_t)p->keys);
    atto__arg_ulong(args, (uint64_t)p->seen);
    atto__arg_uint(args, p->is_causal);
    atto__arg_float(args, p->scale);
    if (p->mask_kind != ATTO_MASK_NONE) {
        const int64_t step[4] = { p->mask.batch, p->mask.head, p->mask.row, p->mask_key };
        atto__arg_tensor(args, c->a->mask);
        atto__arg_index4(args, true, step);
    }
    atto__arg_dropout(args, c->a->dropout, c->a->rng);
}

static atto_status launch(const call *c, const atto__attention_knobs *knobs, const atto__args *args,
                          int64_t groups)
{
    atto__variant variant;
    atto__attention_variant(knobs, &variant);
    const int32_t group = knobs->group ? knobs->group : atto__attention_tile_items(&knobs->tile);
    return atto__launch_sized(c->dev, &variant, args, groups, group);
}

/* ---- forward ---- */

/* Work-groups that a multiprocessor is to have at least, and tiles of keys of a part. */
#define LEAST_GROUPS 4
#define LEAST_TILES  2

/* Keys of a part, whole tiles; all of them where there are work-groups enough. */
static int64_t part_keys(const call *c, const atto__attention_tile *tile, int64_t groups)
{
    const int64_t wanted = (int64_t)c->dev->info.compute_units * LEAST_GROUPS;
    const int64_t tiles = (c->p.keys + tile->n - 1) / tile->n;
    if (2 * groups > wanted || tiles < 2 * LEAST_TILES) return c->p.keys;
    const int64_t parts = (wanted + groups - 1) / groups, share = (tiles + parts - 1) / parts;
    return (share < LEAST_TILES ? LEAST_TILES : share) * tile->n;
}

static atto_status join_parts(const call *c, const atto_tensor *partial, int64_t parts)
{
    const atto__attention *p = &c->p;
    const int32_t most = (int32_t)atto__opencl_of(c->dev)->group_size;
    const int64_t rows = p->batches * p->heads * p->queries;
    const atto__attention_knobs knobs = { .kernel = "atto_attention_join",
                                          .dtype = c->a->q->dtype,
                                          .out = p->e,
                                          .group = most < JOIN_GROUP ? most : JOIN_GROUP };
    atto__args args;
    args.count = 0;
    atto__arg_tensor(&args, partial);
    arg_heads(&args, c->a->y, &p->y);
    arg_lse(&args, c);
    atto__arg_uint(&args, (uint32_t)parts);
    atto__arg_uint(&args, (uint32_t)p->heads);
    atto__arg_uint(&args, (uint32_t)p->queries);
    atto__arg_ulong(&args, (uint64_t)rows);
    return launch(c, &knobs, &args, rows);
}

static void arg_forward(atto__args *args, const call *c)
{
    const struct atto_attention_args *a = c->a;
    args->count = 0;
    arg_heads(args, a->q, &c->p.q);
    arg_heads(args, a->k, &c->p.k);
    arg_heads(args, a->v, &c->p.v);
    arg_heads(args, a->y, &c->p.y);
    arg_lse(args, c);
}

/* In parts of so many keys. */
static atto_status run_parts(const call *c, const atto__attention_tile *tile, int64_t groups,
                             int64_t keys)
{
    const atto__attention *p = &c->p;
    const int64_t parts = (p->keys + keys - 1) / keys;
    const int64_t shape[] = { parts, p->batches * p->heads * p->queries,
                              ATTO_ATTENTION_PART(p->e) };
    atto_buffer header;
    atto_tensor partial;
    ATTO_TRY(atto__scratch_tensor(c->dev, ATTO_F32, 3, shape, &header, &partial));
    atto__attention_knobs knobs = knobs_of(c, "atto_attention_forward", *tile);
    knobs.parts = true;
    atto__args args;
    arg_forward(&args, c);
    atto__arg_tensor(&args, &partial);
    atto__arg_uint(&args, (uint32_t)keys);
    arg_scene(&args, c);
    ATTO_TRY(launch(c, &knobs, &args, groups * parts));
    return join_parts(c, &partial, parts);
}

atto_status atto__opencl_attention_forward(atto_device *dev, const struct atto_attention_args *a,
                                           const atto__layout *layout)
{
    (void)layout;
    call c;
    atto__attention_tile tile;
    ATTO_TRY(begin(dev, a, false, &c));
    ATTO_TRY(choose_tile(dev, c.p.queries, 1, c.p.e, &tile));
    const int64_t groups = c.p.batches * c.p.heads * atto__group_count(c.p.queries, tile.m);
    const int64_t keys = part_keys(&c, &tile, groups);
    if (keys < c.p.keys) return run_parts(&c, &tile, groups, keys);
    const atto__attention_knobs knobs = knobs_of(&c, "atto_attention_forward", tile);
    atto__args args;
    arg_forward(&args, &c);
    arg_scene(&args, &c);
    return launch(&c, &knobs, &args, groups);
}

/* ---- backward ---- */

static atto_status sum_deltas(const call *c, const atto_tensor *delta)
{
    const atto__attention *p = &c->p;
    const int32_t group = (int32_t)atto__opencl_of(c->dev)->group_size;
    const int64_t rows = p->batches * p->heads * p->queries;
    const atto__attention_knobs knobs = {
        .kernel = "atto_attention_delta", .dtype = c->a->q->dtype, .out = p->e, .group = group
    };
    atto__args args;
    args.count = 0;
    arg_heads(&args, c->a->y, &p->y);
    arg_heads(&args, c->a->dy, &p->dy);
    atto__arg_tensor(&args, delta);
    atto__arg_uint(&args, (uint32_t)p->heads);
    atto__arg_uint(&args, (uint32_t)p->queries);
    atto__arg_ulong(&args, (uint64_t)rows);
    return launch(c, &knobs, &args, atto__group_count(rows, group / ATTO_ATTENTION_ACROSS));
}

/* What both kernels read. */
static void arg_inputs(atto__args *args, const call *c, const atto_tensor *delta)
{
    const struct atto_attention_args *a = c->a;
    arg_heads(args, a->q, &c->p.q);
    arg_heads(args, a->k, &c->p.k);
    arg_heads(args, a->v, &c->p.v);
    arg_heads(args, a->dy, &c->p.dy);
    arg_lse(args, c);
    atto__arg_tensor(args, delta);
}

/* What is wanted, and the kernels' tiles. */
typedef struct backward_plan {
    bool keys, queries;
    atto__attention_tile of_keys, of_queries;
} backward_plan;

static atto_status prepare(const call *c, const atto__attention_knobs *knobs)
{
    atto__variant variant;
    atto__attention_variant(knobs, &variant);
    return atto__prepare(c->dev, &variant);
}

/* Everything is built before anything runs: a call that cannot be built whole runs elsewhere, and must
 * not find that a gradient was added already. */
static atto_status plan_backward(const call *c, backward_plan *plan)
{
    const struct atto_attention_args *a = c->a;
    const atto__attention *p = &c->p;
    *plan = (backward_plan){ .keys = (a->dk || a->dv) && p->keys > 0,
                             .queries = a->dq && p->queries > 0 };
    /* a tile of dropped scores besides */
    const int32_t scores = atto__dropout_knob_of(a->dropout, a->rng) == ATTO_DROPOUT_NONE ? 1 : 2;
    ATTO_TRY(choose_tile(c->dev, p->keys, scores, p->d + p->e, &plan->of_keys));
    ATTO_TRY(choose_tile(c->dev, p->queries, 1, p->d, &plan->of_queries));
    const atto__attention_knobs keys = knobs_of(c, "atto_attention_keys", plan->of_keys);
    const atto__attention_knobs queries = knobs_of(c, "atto_attention_queries", plan->of_queries);
    if (plan->keys) ATTO_TRY(prepare(c, &keys));
    return plan->queries ? prepare(c, &queries) : ATTO_OK;
}

/* One kernel for both gradients: where one is not wanted it is not stored. */
static atto_status run_keys(const call *c, const backward_plan *plan, const atto_tensor *delta)
{
    const struct atto_attention_args *a = c->a;
    const atto__attention_knobs knobs = knobs_of(c, "atto_attention_keys", plan->of_keys);
    const int64_t heads = c->p.batches * (c->p.heads / c->p.shared);
    atto__args args;
    args.count = 0;
    arg_inputs(&args, c, delta);
    arg_heads(&args, a->dk, &c->p.dk);
    arg_heads(&args, a->dv, &c->p.dv);
    atto__arg_uint(&args, (a->dk ? 1u : 0u) | (a->dv ? 2u : 0u));
    atto__arg_uint(&args, (a->add_dk ? 1u : 0u) | (a->add_dv ? 2u : 0u));
    arg_scene(&args, c);
    return launch(c, &knobs, &args, heads * atto__group_count(c->p.keys, plan->of_keys.m));
}

static atto_status run_queries(const call *c, const backward_plan *plan, const atto_tensor *delta)
{
    const atto__attention_knobs knobs = knobs_of(c, "atto_attention_queries", plan->of_queries);
    const int64_t heads = c->p.batches * c->p.heads;
    atto__args args;
    args.count = 0;
    arg_inputs(&args, c, delta);
    arg_heads(&args, c->a->dq, &c->p.dq);
    atto__arg_uint(&args, c->a->add_dq);
    arg_scene(&args, c);
    return launch(c, &knobs, &args, heads * atto__group_count(c->p.queries, plan->of_queries.m));
}

atto_status atto__opencl_attention_backward(atto_device *dev, const struct atto_attention_args *a,
                                            const atto__layout *layout)
{
    (void)layout;
    call c;
    backward_plan plan;
    atto_buffer header;
    atto_tensor delta;
    ATTO_TRY(begin(dev, a, true, &c));
    ATTO_TRY(plan_backward(&c, &plan));
    const int64_t rows = c.p.batches * c.p.heads * c.p.queries, floats = rows > 0 ? rows : 1;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &floats, &header, &delta));
    if (rows > 0) ATTO_TRY(sum_deltas(&c, &delta));
    if (plan.keys) ATTO_TRY(run_keys(&c, &plan, &delta));
    return plan.queries ? run_queries(&c, &plan, &delta) : ATTO_OK;
}

atto_status atto__opencl_attention_prepare(atto_device *dev, atto_dtype dtype)
{
    static const char *const kernels[] = { "atto_attention_forward", "atto_attention_keys",
                                           "atto_attention_queries" };
    for (int32_t i = 0; i < 3; i++) {
        atto__attention_knobs knobs = { .kernel = kernels[i],
                                        .dtype = dtype,
                                        .head = 64,
                                        .out = 64,
                                        .mask_dtype = ATTO_F32,
                                        .vectors = true,
                                        .loops = dev->info.kind == ATTO_KIND_OPENCL_CPU };
        atto__variant variant;
        ATTO_TRY(choose_tile(dev, 64, 1, i == 1 ? 128 : 64, &knobs.tile));
        atto__attention_variant(&knobs, &variant);
        ATTO_TRY(atto__prepare(dev, &variant));
    }
    return ATTO_OK;
}
