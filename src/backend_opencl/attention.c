/* SPDX-License-Identifier: MIT */
/* Attention on OpenCL: see src/cl/attention.cl.
 *
 *   forward    one kernel
 *   backward   delta, then dk and dv in one kernel and dq in another
 */
#include "attention.h"

#include <inttypes.h>

#include "walk.h"

/* Sizes that kernels count with. */
#define MOST (INT32_MAX - 1024)

#define DELTA_ACROSS 8 /* work-items of a row, as in the kernel */

typedef struct call {
    atto_device *dev;
    const struct atto_attention_args *a;
    atto__attention p;
    bool vectors;
} call;

static atto_status check_size(const char *what, int64_t n)
{
    ATTO_REQUIRE(n <= MOST, ATTO_E_UNSUPPORTED, "attention: %" PRId64 " %s, expected at most %d", n,
                 what, MOST);
    return ATTO_OK;
}

/* Rows begin at 16 bytes and are made of whole vectors. */
static bool vectors_fit(const atto_tensor *t)
{
    if (!t) return true;
    const int32_t unit = atto__vector_elements(t->dtype);
    bool fits = t->offset % unit == 0 && t->shape[3] % unit == 0;
    for (int32_t d = 0; d < 3; d++) fits = fits && (t->shape[d] <= 1 || t->stride[d] % unit == 0);
    return fits;
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
                                    .mask = (int32_t)c->p.mask_kind,
                                    .mask_dtype = c->a->mask ? c->a->mask->dtype : ATTO_F32,
                                    .dropout = atto__dropout_knob_of(c->a->dropout, c->a->rng),
                                    .vectors = c->vectors,
                                    .loops = c->dev->info.kind == ATTO_KIND_OPENCL_CPU,
                                    .tile = tile };
}

/* The tile for sums of so many columns together, beside so many tiles of scores, on this device. */
static atto_status choose_tile(atto_device *dev, int32_t scores, int32_t columns,
                               atto__attention_tile *out)
{
    const int32_t most = (int32_t)atto__opencl_of(dev)->group_size;
    const uint64_t room = dev->info.local_bytes;
    for (int32_t i = 0; i < ATTO_ATTENTION_TILES; i++) {
        *out = atto__attention_tiles[i];
        if (atto__attention_tile_items(out) <= most && atto__attention_tile_bytes(out) <= room &&
            atto__attention_tile_fits(out, scores, columns))
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

static void arg_lse(atto__args *args, const atto_tensor *t)
{
    const atto__heads strides = { t ? t->stride[0] : 0, t ? t->stride[1] : 0, 1 };
    arg_heads(args, t, &strides);
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

static atto_status launch(const call *c, const char *kernel, const atto__attention_tile *tile,
                          const atto__args *args, int64_t heads, int64_t rows)
{
    const atto__attention_knobs knobs = knobs_of(c, kernel, *tile);
    atto__variant variant;
    atto__attention_variant(&knobs, &variant);
    return atto__launch_sized(c->dev, &variant, args, heads * atto__group_count(rows, tile->m),
                              atto__attention_tile_items(tile));
}

/* ---- forward ---- */

atto_status atto__opencl_attention_forward(atto_device *dev, const struct atto_attention_args *a,
                                           const atto__layout *layout)
{
    (void)layout;
    call c;
    atto__attention_tile tile;
    ATTO_TRY(begin(dev, a, false, &c));
    ATTO_TRY(choose_tile(dev, 1, c.p.e, &tile));
    atto__args args;
    args.count = 0;
    arg_heads(&args, a->q, &c.p.q);
    arg_heads(&args, a->k, &c.p.k);
    arg_heads(&args, a->v, &c.p.v);
    arg_heads(&args, a->y, &c.p.y);
    arg_lse(&args, a->lse);
    atto__arg_uint(&args, a->lse != NULL);
    arg_scene(&args, &c);
    return launch(&c, "atto_attention_forward", &tile, &args, c.p.batches * c.p.heads, c.p.queries);
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
    atto__variant variant;
    atto__attention_variant(&knobs, &variant);
    atto__args args;
    args.count = 0;
    arg_heads(&args, c->a->y, &p->y);
    arg_heads(&args, c->a->dy, &p->dy);
    atto__arg_tensor(&args, delta);
    atto__arg_uint(&args, (uint32_t)p->heads);
    atto__arg_uint(&args, (uint32_t)p->queries);
    atto__arg_ulong(&args, (uint64_t)rows);
    return atto__launch_sized(c->dev, &variant, &args,
                              atto__group_count(rows, group / DELTA_ACROSS), group);
}

/* What both kernels read. */
static void arg_inputs(atto__args *args, const call *c, const atto_tensor *delta)
{
    const struct atto_attention_args *a = c->a;
    arg_heads(args, a->q, &c->p.q);
    arg_heads(args, a->k, &c->p.k);
    arg_heads(args, a->v, &c->p.v);
    arg_heads(args, a->dy, &c->p.dy);
    arg_lse(args, a->lse);
    atto__arg_tensor(args, delta);
}

static atto_status run_keys(const call *c, const atto_tensor *delta)
{
    const struct atto_attention_args *a = c->a;
    atto__attention_tile tile;
    ATTO_TRY(choose_tile(c->dev, 2, c->p.d + c->p.e, &tile));
    atto__args args;
    args.count = 0;
    arg_inputs(&args, c, delta);
    arg_heads(&args, a->dk, &c->p.dk);
    arg_heads(&args, a->dv, &c->p.dv);
    atto__arg_uint(&args, (a->dk ? 1u : 0u) | (a->dv ? 2u : 0u));
    atto__arg_uint(&args, (a->add_dk ? 1u : 0u) | (a->add_dv ? 2u : 0u));
    arg_scene(&args, c);
    return launch(c, "atto_attention_keys", &tile, &args, c->p.batches * (c->p.heads / c->p.shared),
                  c->p.keys);
}

static atto_status run_queries(const call *c, const atto_tensor *delta)
{
    atto__attention_tile tile;
    ATTO_TRY(choose_tile(c->dev, 2, c->p.d, &tile));
    atto__args args;
    args.count = 0;
    arg_inputs(&args, c, delta);
    arg_heads(&args, c->a->dq, &c->p.dq);
    atto__arg_uint(&args, c->a->add_dq);
    arg_scene(&args, c);
    return launch(c, "atto_attention_queries", &tile, &args, c->p.batches * c->p.heads,
                  c->p.queries);
}

atto_status atto__opencl_attention_backward(atto_device *dev, const struct atto_attention_args *a,
                                            const atto__layout *layout)
{
    (void)layout;
    call c;
    atto_buffer header;
    atto_tensor delta;
    ATTO_TRY(begin(dev, a, true, &c));
    const int64_t rows = c.p.batches * c.p.heads * c.p.queries, floats = rows > 0 ? rows : 1;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &floats, &header, &delta));
    if (rows > 0) ATTO_TRY(sum_deltas(&c, &delta));
    if ((a->dk || a->dv) && c.p.keys > 0) ATTO_TRY(run_keys(&c, &delta));
    if (a->dq && rows > 0) ATTO_TRY(run_queries(&c, &delta));
    return ATTO_OK;
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
        ATTO_TRY(choose_tile(dev, i == 0 ? 1 : 2, i == 1 ? 128 : 64, &knobs.tile));
        atto__attention_variant(&knobs, &variant);
        ATTO_TRY(atto__prepare(dev, &variant));
    }
    return ATTO_OK;
}
