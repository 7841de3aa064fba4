/* SPDX-License-Identifier: MIT */
/* Plans and enqueues matrix products. */
#include "gemm.h"

#include <string.h>

#include "cl/atto_gemm_flags.h"
#include "clblast.h"
#include "divide.h"
#include "walk.h"

/* Work-groups and work-items that a GPU wants at the least, and work-items that a sum is cut for.
 * Constants, not the number of compute units: the order of a sum must not depend on that. An H200
 * has 132. */
#define ENOUGH_GROUPS 100
#define ENOUGH_ITEMS  12800
#define WANTED_ITEMS  32768

/* Of tiles whose work-groups share out k: these wait for memory most of the time, so more are
 * wanted. */
#define ENOUGH_SLICED_GROUPS 400
#define WANTED_SLICED_GROUPS 512

/* A slice of a sum is at least so long: a second kernel must be worth it. */
#define SLICE_K    1024
#define MAX_SLICES 32

/* Products of at most so many rows go to atto_gemm_rows, so many to a work-group. */
#define FEW_ROWS       8
#define ROWS_PER_GROUP 4
#define ROWS_LONG_K    2048 /* from here all work-items of a large work-group have work */

typedef enum engine { ENGINE_TILES, ENGINE_ROWS, ENGINE_CLBLAST } engine;

/* How one product runs. */
typedef struct plan {
    engine engine;
    const atto__gemm_tile *tile; /* of ENGINE_TILES */
    int32_t rows, lanes;         /* of ENGINE_ROWS: rows and work-items of a work-group */
    int64_t tiles;
    int64_t slices, slice; /* of k, and values of k in one */
} plan;

/* ---- planning ---- */

static bool is_cpu(const atto_device *dev)
{
    return dev->info.kind == ATTO_KIND_OPENCL_CPU;
}

/* Sums that a work-item can hold. Intel GPUs have 128 registers, which 8 or more work-items share:
 * with 8 x 8 sums ocloc spills. */
static int32_t most_sums(const atto_device *dev)
{
    return strstr(dev->info.vendor, "Intel(R)") ? 32 : 128;
}

static bool tile_fits(const atto_device *dev, const atto__gemm_tile *tile)
{
    return tile->item_m * tile->item_n <= most_sums(dev) &&
           atto__gemm_tile_items(tile) <= (int32_t)atto__opencl_of(dev)->group_size &&
           (uint64_t)atto__gemm_tile_local_bytes(tile) <= dev->info.local_bytes;
}

/* Of one product. */
static int64_t tile_count(const atto__gemm_tile *tile, const atto__gemm *g)
{
    return atto__divide_up(g->m, tile->m) * atto__divide_up(g->n, tile->n);
}

static int64_t inner_of(const atto__gemm *g)
{
    return g->batch.inner > 0 ? g->batch.inner : 1;
}

static int64_t products_of(const atto__gemm *g)
{
    return (g->batch.outer > 0 ? g->batch.outer : 1) * inner_of(g);
}

static int64_t most_slices(const atto__gemm *g)
{
    const int64_t slices = g->k / SLICE_K;
    return slices < 1 ? 1 : slices > MAX_SLICES ? MAX_SLICES : slices;
}

/* Work-groups that make a tile worth choosing. */
static int64_t enough_groups(const atto__gemm_tile *tile)
{
    const int64_t groups = ENOUGH_ITEMS / atto__gemm_tile_items(tile);
    return groups > ENOUGH_GROUPS ? groups : ENOUGH_GROUPS;
}

/* Half of the tile or more would be outside the result. */
static bool wastes(const atto__gemm_tile *tile, const atto__gemm *g)
{
    return (g->m <= tile->m / 2 && tile->m > 16) || (g->n <= tile->n / 2 && tile->n > 32);
}

static const atto__gemm_tile *tile_named(const char *name)
{
    for (int32_t i = 0; i < ATTO_GEMM_TILES; i++)
        if (strcmp(atto__gemm_tiles[i].name, name) == 0) return &atto__gemm_tiles[i];
    return NULL;
}

/* On a GPU the largest tile with which there is work for all; none has: the smallest of the list's
 * that the device can run. NULL if it can run none. */
static const atto__gemm_tile *choose_gpu_tile(const atto_device *dev, const atto__gemm *g)
{
    const atto__gemm_tile *last = NULL;
    for (int32_t i = 0; i < ATTO_GEMM_TILES; i++) {
        const atto__gemm_tile *tile = &atto__gemm_tiles[i];
        if (!tile_fits(dev, tile)) continue;
        if (last && last->slices > 1 && tile->slices == 1)
            break; /* only for devices without those */
        last = tile;
        const int64_t tiles = tile_count(tile, g) * products_of(g);
        if (!wastes(tile, g) && tiles * most_slices(g) >= enough_groups(tile)) break;
    }
    return last;
}

/* A CPU runs work-groups one after another in vectors of work-items. With PoCL on two Zen 5 cores
 * products of 256^3 take 8 times as long with tiles of 32 x 32 as with larger ones, which on the
 * other hand take twice as long to build: some seconds. */
#define CPU_LARGE_PRODUCT (1 << 21)

static const atto__gemm_tile *choose_cpu_tile(const atto_device *dev, const atto__gemm *g)
{
    static const char *const names[] = { "64x64", "32x32", "8x32" };
    const bool large = (double)g->m * (double)g->n * (double)g->k >= CPU_LARGE_PRODUCT;
    for (int32_t i = large ? 0 : 1; i < 3; i++)
        if (tile_fits(dev, tile_named(names[i]))) return tile_named(names[i]);
    return NULL;
}

static const atto__gemm_tile *choose_tile(const atto_device *dev, const atto__gemm *g)
{
    const atto__gemm_tile *forced = atto__opencl_of(dev)->gemm_tile;
    if (forced && tile_fits(dev, forced)) return forced;
    return is_cpu(dev) ? choose_cpu_tile(dev, g) : choose_gpu_tile(dev, g);
}

/* Slices of k with which there is work for all. */
static int64_t wanted_slices(const atto__gemm *g, const plan *p)
{
    const int64_t tiles = p->tiles * products_of(g);
    if (p->engine == ENGINE_ROWS)
        return tiles < ENOUGH_GROUPS ? WANTED_ITEMS / p->lanes / tiles : 1;
    if (p->tile->slices > 1) return tiles < ENOUGH_SLICED_GROUPS ? WANTED_SLICED_GROUPS / tiles : 1;
    return tiles < enough_groups(p->tile) ? WANTED_ITEMS / atto__gemm_tile_items(p->tile) / tiles
                                          : 1;
}

/* Cuts k in multiples of every tile's k. */
static void cut(const atto__gemm *g, int64_t slices, plan *p)
{
    if (slices > most_slices(g)) slices = most_slices(g);
    if (slices < 1) slices = 1;
    p->slice = atto__divide_up(atto__divide_up(g->k, slices), 64) * 64;
    if (p->slice == 0) p->slice = 64; /* k = 0 */
    p->slices = g->k > 0 ? atto__divide_up(g->k, p->slice) : 1;
}

static bool rows_fit(const atto_device *dev, const atto__gemm *g)
{
    return g->m <= FEW_ROWS && !g->a_transposed && !g->b_transposed && !g->prologue &&
           g->a->dtype == g->b->dtype && !atto__opencl_of(dev)->gemm_tile &&
           dev->info.local_bytes >= 16384;
}

static void plan_rows(const atto_device *dev, const atto__gemm *g, plan *p)
{
    const int32_t most = (int32_t)atto__opencl_of(dev)->group_size;
    p->engine = ENGINE_ROWS;
    p->rows = g->m == 1 ? 1 : ROWS_PER_GROUP;
    p->lanes = g->k >= ROWS_LONG_K && !is_cpu(dev) ? 256 : 64;
    if (p->lanes > most) p->lanes = most;
    p->tiles = atto__divide_up(g->m, p->rows) * atto__divide_up(g->n, 4);
}

static void plan_tiles(const atto__gemm *g, const atto__gemm_tile *tile, plan *p)
{
    p->engine = ENGINE_TILES;
    p->tile = tile;
    p->tiles = tile_count(tile, g);
}

/* Without a measurement. False if the device can run no tile. */
static bool preset_plan(const atto_device *dev, const atto__gemm *g, plan *p)
{
    memset(p, 0, sizeof *p);
    if (rows_fit(dev, g)) {
        plan_rows(dev, g, p);
    } else {
        const atto__gemm_tile *tile = choose_tile(dev, g);
        if (!tile) return false;
        plan_tiles(g, tile, p);
    }
    cut(g, wanted_slices(g, p), p);
    return true;
}

bool atto__gemm_cut_of(const atto_device *dev, const atto__gemm *sizes, bool may_cut,
                       atto__gemm_cut *out)
{
    atto__gemm g = *sizes;
    if (!may_cut && g.k > SLICE_K) g.k = SLICE_K;
    const atto__gemm_tile *tile = choose_tile(dev, &g);
    if (!tile) return false;
    plan p;
    memset(&p, 0, sizeof p);
    plan_tiles(&g, tile, &p);
    cut(&g, may_cut ? wanted_slices(&g, &p) : 1, &p);
    *out = (atto__gemm_cut){ tile, p.tiles, p.slices, p.slice };
    return true;
}

/* ---- measured plans ----
 *
 * A way's numbers are the engine, of tiles the one, and the slices. The sizes of a choice are m, n,
 * k and what kind of product it is. */

/* 1, 2, 3, 4, 5 for batches of less than 4, 16, 64, 256, and more. */
static int32_t batch_class(int64_t products)
{
    int32_t of = 1;
    for (; products >= 4 && of < 5; products /= 4) of++;
    return of;
}

/* Below 62, which is what a key has room for. A batch has no prologue. */
static int64_t kind_of(const atto__gemm *g)
{
    if (products_of(g) > 1) {
        const int32_t stored =
            g->a_transposed + 2 * g->b_transposed + 4 * (g->a->dtype != g->b->dtype);
        return INT64_C(1) << (stored + 8 * (1 + batch_class(products_of(g))));
    }
    const int32_t kind =
        g->a_transposed + 2 * g->b_transposed + 4 * g->prologue + 8 * (g->a->dtype != g->b->dtype);
    return INT64_C(1) << kind;
}

/* Each is its own order: tiles load k in pieces of their own. */
static void add_way(atto__ways *ways, const plan *p)
{
    const int32_t tile = p->tile ? (int32_t)(p->tile - atto__gemm_tiles) : 0;
    const atto__way way = { { (int32_t)p->engine, tile, (int32_t)p->slices }, ways->count };
    atto__ways_add(ways, &way);
}

/* Every tile that is not mostly empty, alone and with sums cut to give all work. */
static void add_tiles(const atto_device *dev, const atto__gemm *g, atto__ways *ways)
{
    for (int32_t i = 0; i < ATTO_GEMM_TILES; i++) {
        const atto__gemm_tile *tile = &atto__gemm_tiles[i];
        if (!tile_fits(dev, tile) || wastes(tile, g)) continue;
        for (int64_t slices = 1; slices <= most_slices(g) && slices <= 8; slices *= 2) {
            plan p = { .slices = 0 };
            plan_tiles(g, tile, &p);
            cut(g, slices, &p);
            if (slices == 1 || p.tiles * products_of(g) < enough_groups(tile)) add_way(ways, &p);
        }
    }
}

/* The library is not looked for unless it may be the answer. */
static bool may_be_clblast(const atto_device *dev, const atto__choice *choice)
{
    const atto__tuned *known = atto__tuner_find(dev->tuner, choice->name, atto__choice_key(choice));
    return atto__choice_lists(dev) || (known && known->way.number[0] == ENGINE_CLBLAST);
}

static void list_ways(atto_device *dev, const atto__gemm *g, const atto__choice *choice,
                      const plan *preset, atto__ways *ways)
{
    ways->count = 0;
    add_way(ways, preset);
    add_tiles(dev, g, ways);
    if (may_be_clblast(dev, choice) && atto__clblast_can(dev, g))
        add_way(ways, &(plan){ .engine = ENGINE_CLBLAST, .slices = 1 });
}

static void plan_way(const atto__gemm *g, const atto__way *way, plan *p)
{
    if ((engine)way->number[0] == ENGINE_ROWS) return; /* which only the preset can be */
    memset(p, 0, sizeof *p);
    if ((engine)way->number[0] == ENGINE_CLBLAST) {
        p->engine = ENGINE_CLBLAST;
        p->slices = 1;
        return;
    }
    plan_tiles(g, &atto__gemm_tiles[way->number[1]], p);
    cut(g, way->number[2], p);
}

/* foresees: the product may not come, or not so. */
static atto_status make_plan(atto_device *dev, const atto__gemm *g, bool foresees, plan *p)
{
    ATTO_REQUIRE(preset_plan(dev, g, p), ATTO_E_BUILD,
                 "work-groups of %d with %llu bytes are too small",
                 (int)atto__opencl_of(dev)->group_size, (unsigned long long)dev->info.local_bytes);
    const atto__choice choice = { ATTO_CHOICE_GEMM, g->a->dtype, { g->m, g->n, g->k, kind_of(g) } };
    if (atto__opencl_of(dev)->gemm_tile || !atto__choice_asks(dev, &choice)) return ATTO_OK;
    atto__ways ways;
    list_ways(dev, g, &choice, p, &ways);
    const atto__way way =
        foresees ? atto__foresee(dev, &choice, &ways) : atto__choose(dev, &choice, &ways);
    plan_way(g, &way, p);
    return ATTO_OK;
}

int64_t atto__gemm_passes(atto_device *dev, const atto__gemm *g)
{
    plan p;
    if (make_plan(dev, g, true, &p) != ATTO_OK || p.engine != ENGINE_TILES) return 1;
    return atto__divide_up(g->n, p.tile->n);
}

bool atto__gemm_use_tile(atto_device *dev, const char *name)
{
    atto__opencl *cl = atto__opencl_of(dev);
    cl->gemm_tile = name ? tile_named(name) : NULL;
    return !name || cl->gemm_tile;
}

/* ---- arguments ---- */

bool atto__matrix_wide(const atto_device *dev, const atto_tensor *t)
{
    if (dev->options.set.index_bits == 64) return true;
    if (!t) return false;
    const int64_t elements = t->shape[0] * t->shape[1]; /* logical indices, where rows repeat */
    const int64_t reach = (t->shape[0] - 1) * t->stride[0] + t->shape[1];
    return elements >= INT32_MAX || reach >= INT32_MAX;
}

static bool steps_divide(const atto__gemm *g, const struct atto__gemm_steps *s, int32_t elements)
{
    return (g->batch.outer <= 1 || s->outer % elements == 0) &&
           (g->batch.inner <= 1 || s->inner % elements == 0);
}

bool atto__matrix_divides(const atto_tensor *t, int32_t elements)
{
    return t->offset % elements == 0 && t->shape[1] % elements == 0 &&
           (t->shape[0] == 1 || t->stride[0] % elements == 0);
}

static bool is_wide(const atto_device *dev, const atto__gemm *g)
{
    const atto_tensor *all[] = { g->a, g->b, g->out, g->z, g->residual, g->prologue_z };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (atto__matrix_wide(dev, all[i])) return true;
    return false;
}

static bool quads_fit(const atto__gemm *g)
{
    return atto__matrix_divides(g->out, 4) && (!g->z || atto__matrix_divides(g->z, 4)) &&
           (!g->residual || atto__matrix_divides(g->residual, 4)) &&
           steps_divide(g, &g->batch.out, 4);
}

static uint32_t epilogue_flags(const atto__gemm *g)
{
    uint32_t flags = 0;
    if (g->bias) flags |= ATTO_EPILOGUE_BIAS;
    if (g->bias && g->bias->dtype == ATTO_F32) flags |= ATTO_EPILOGUE_BIAS_F32;
    if (g->z) flags |= ATTO_EPILOGUE_Z;
    if (g->residual) flags |= ATTO_EPILOGUE_RESIDUAL;
    if (g->add) flags |= ATTO_EPILOGUE_ADD;
    if (quads_fit(g)) flags |= ATTO_EPILOGUE_QUADS;
    return flags;
}

void atto__arg_epilogue(atto__args *args, const atto__gemm *g, bool wide)
{
    const atto_tensor none = { .rank = 2 };
    atto__arg_matrix(args, wide, g->out);
    atto__arg_tensor(args, g->bias ? g->bias : &none);
    atto__arg_matrix(args, wide, g->z);
    atto__arg_matrix(args, wide, g->residual);
    atto__arg_uint(args, epilogue_flags(g));
    atto__arg_float(args, g->act.a);
    atto__arg_float(args, g->act.b);
    atto__arg_dropout(args, g->dropout, g->rng);
}

atto__gemm_knobs atto__gemm_knobs_of(const atto__gemm *g)
{
    return (atto__gemm_knobs){
        .prologue = g->prologue,
        .act = atto_activation_name(g->act.kind),
        .dropout = atto__dropout_knob_of(g->dropout, g->rng),
    };
}

static void arg_steps(atto__args *args, const struct atto__gemm_steps *s)
{
    atto__arg_ulong(args, (uint64_t)s->outer);
    atto__arg_ulong(args, (uint64_t)s->inner);
}

static bool vectors_fit(const atto_tensor *t)
{
    return atto__matrix_divides(t, atto__vector_elements(t->dtype));
}

static bool batch_fits(const atto__gemm *g, const atto_tensor *t, const struct atto__gemm_steps *s)
{
    return vectors_fit(t) && steps_divide(g, s, atto__vector_elements(t->dtype));
}

static atto__gemm_knobs all_knobs(const atto_device *dev, const atto__gemm *g)
{
    atto__gemm_knobs knobs = atto__gemm_knobs_of(g);
    knobs.a = g->a->dtype;
    knobs.b = g->b->dtype;
    knobs.c = g->out->dtype;
    knobs.a_transposed = g->a_transposed;
    knobs.b_transposed = g->b_transposed;
    knobs.a_vectors =
        batch_fits(g, g->a, &g->batch.a) && (!g->prologue_z || vectors_fit(g->prologue_z));
    knobs.b_vectors = batch_fits(g, g->b, &g->batch.b);
    knobs.wide = is_wide(dev, g);
    return knobs;
}

/* ---- launches ---- */

static atto_status launch(atto_device *dev, const atto__gemm *g, const plan *p)
{
    const int64_t groups = p->tiles * p->slices * products_of(g);
    atto__gemm_knobs knobs = all_knobs(dev, g);
    knobs.wide = knobs.wide || groups >= INT32_MAX;
    atto__args args;
    args.count = 0;
    atto__arg_matrix(&args, knobs.wide, g->a);
    atto__arg_matrix(&args, knobs.wide, g->b);
    if (g->prologue) atto__arg_matrix(&args, knobs.wide, g->prologue_z);
    atto__arg_index(&args, knobs.wide, g->m);
    atto__arg_index(&args, knobs.wide, g->n);
    atto__arg_index(&args, knobs.wide, g->k);
    atto__arg_index(&args, knobs.wide, p->tiles);
    atto__arg_index(&args, knobs.wide, p->slice);
    atto__arg_ulong(&args, p->slices > 1 ? (uint64_t)(products_of(g) * g->m * g->n) : 0);
    atto__arg_index(&args, knobs.wide, p->slices);
    atto__arg_index(&args, knobs.wide, inner_of(g));
    arg_steps(&args, &g->batch.a);
    arg_steps(&args, &g->batch.b);
    arg_steps(&args, &g->batch.out);
    atto__arg_epilogue(&args, g, knobs.wide);

    atto__variant variant;
    if (p->tile) {
        atto__gemm_tile_variant(p->tile, &knobs, &variant);
    } else {
        atto__gemm_rows_variant(p->rows, p->lanes, &knobs, &variant);
    }
    const int32_t items = p->tile ? atto__gemm_tile_items(p->tile) : p->lanes;
    return atto__launch_sized(dev, &variant, &args, groups, items);
}

atto_status atto__gemm_finish(atto_device *dev, const atto__gemm *g, const atto_tensor *sums,
                              int64_t slices)
{
    atto__gemm_knobs knobs = atto__gemm_knobs_of(g);
    knobs.a = ATTO_F32;
    knobs.b = g->bias ? g->bias->dtype : ATTO_F32;
    knobs.c = g->out->dtype;
    const int64_t quads = products_of(g) * g->m * atto__divide_up(g->n, 4);
    knobs.wide = is_wide(dev, g) || quads >= INT32_MAX;
    atto__args args;
    args.count = 0;
    atto__arg_tensor(&args, sums);
    atto__arg_index(&args, knobs.wide, g->m);
    atto__arg_index(&args, knobs.wide, g->n);
    atto__arg_uint(&args, (uint32_t)slices);
    atto__arg_index(&args, knobs.wide, products_of(g));
    atto__arg_index(&args, knobs.wide, inner_of(g));
    arg_steps(&args, &g->batch.out);
    atto__arg_epilogue(&args, g, knobs.wide);
    atto__variant variant;
    atto__gemm_plain_variant("gemm.cl", "atto_gemm_finish", &knobs, &variant);
    return atto__launch(dev, &variant, &args,
                        atto__group_count(quads, atto__opencl_of(dev)->group_size));
}

/* What the slices store: plain sums, side by side in scratch. */
static atto__gemm without_epilogue(const atto__gemm *g, const atto_tensor *sums)
{
    atto__gemm plain = *g;
    plain.out = sums;
    plain.add = false;
    plain.bias = plain.z = plain.residual = NULL;
    plain.batch.out.outer = inner_of(g) * g->m * g->n;
    plain.batch.out.inner = g->m * g->n;
    if (!g->prologue) {
        plain.act = atto_identity();
        plain.dropout = 0.0f;
    }
    return plain;
}

static atto_status run_in_slices(atto_device *dev, const atto__gemm *g, const plan *p)
{
    atto_buffer buffer;
    atto_tensor sums;
    const int64_t shape[] = { p->slices * products_of(g) * g->m, g->n };
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 2, shape, &buffer, &sums));
    const atto__gemm plain = without_epilogue(g, &sums);
    ATTO_TRY(launch(dev, &plain, p));
    atto__gemm rest = *g;
    if (g->prologue) { /* which is done */
        rest.act = atto_identity();
        rest.dropout = 0.0f;
        rest.prologue = false;
    }
    return atto__gemm_finish(dev, &rest, &sums, p->slices);
}

static atto_status run_plan(atto_device *dev, const atto__gemm *g, const plan *p)
{
    return p->slices > 1 ? run_in_slices(dev, g, p) : launch(dev, g, p);
}

/* What CLBlast cannot do after all is done without it; a measurement wants to know. */
static atto_status run_clblast(atto_device *dev, const atto__gemm *g)
{
    plan p;
    const atto_status status = atto__clblast_run(dev, g);
    if (status != ATTO_E_UNSUPPORTED || dev->tuner->trial) return status;
    ATTO_TRY(make_plan(dev, g, true, &p));
    return run_plan(dev, g, &p);
}

atto_status atto__gemm_run(atto_device *dev, const atto__gemm *g)
{
    plan p;
    ATTO_TRY(make_plan(dev, g, false, &p));
    return p.engine == ENGINE_CLBLAST ? run_clblast(dev, g) : run_plan(dev, g, &p);
}

atto_status atto__gemm_prepare(atto_device *dev, atto_dtype dtype)
{
    const atto_tensor square = {
        .dtype = dtype, .rank = 2, .shape = { 64, 64 }, .stride = { 64, 1 }
    };
    const atto__gemm g = { .m = 64, .n = 64, .k = 64, .a = &square, .b = &square, .out = &square };
    plan p;
    ATTO_REQUIRE(preset_plan(dev, &g, &p), ATTO_E_BUILD, "work-groups are too small");
    const atto__gemm_knobs knobs = all_knobs(dev, &g);
    atto__variant variant;
    atto__gemm_tile_variant(p.tile, &knobs, &variant);
    return atto__prepare(dev, &variant);
}
