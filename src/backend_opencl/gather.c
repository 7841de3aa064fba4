/* SPDX-License-Identifier: MIT */
/* Elements that an index names on OpenCL: see src/cl/gather.cl. */
#include "gather.h"

#include "cl/atto_gather_sizes.h"
#include "walk.h"

#define MOST_NARROW (INT32_MAX - (1 << 24))

static bool is_wide(const atto_device *dev, int64_t elements)
{
    return dev->options.set.index_bits == 64 || elements > MOST_NARROW;
}

static void arg_steps(atto__args *args, const atto__gather *g)
{
    atto__arg_ulong(args, (uint64_t)g->rows);
    atto__arg_ulong(args, (uint64_t)g->outer_step);
    atto__arg_ulong(args, (uint64_t)g->row_step);
}

static atto_status launch(atto_device *dev, const atto__gather_knobs *knobs, const atto__args *args,
                          int64_t items)
{
    atto__variant variant;
    atto__gather_variant(knobs, &variant);
    return atto__launch(dev, &variant, args,
                        atto__group_count(items, atto__opencl_of(dev)->group_size));
}

atto_status atto__opencl_gather_forward(atto_device *dev, const struct atto_gather_args *a,
                                        const atto__layout *layout)
{
    (void)layout;
    atto__gather g;
    ATTO_TRY(atto__gather_begin(dev, a, &g));
    const int64_t n = atto_tensor_numel(a->y), sizes[4] = { 1, 1, g.count, g.inner };
    const atto__gather_knobs knobs = { .kernel = "atto_gather_forward",
                                       .dtype = a->y->dtype,
                                       .index = a->index->dtype,
                                       .wide = is_wide(dev, n) };
    atto__args args;
    args.count = 0;
    atto__arg_tensor(&args, &g.source);
    atto__arg_tensor(&args, a->index);
    atto__arg_tensor(&args, a->y);
    atto__arg_error_word(&args, dev);
    arg_steps(&args, &g);
    atto__arg_index(&args, knobs.wide, n);
    atto__arg_sizes(&args, knobs.wide, sizes);
    return launch(dev, &knobs, &args, (n + ATTO_DENSE_ITEMS - 1) / ATTO_DENSE_ITEMS);
}

/* Lines that a work-group takes: long ones that are next to few neighbours. Rounds are counted in 32 bits
 * with the work-items. */
#define SHORT_LINE      64
#define FEW_NEIGHBOURS  16
#define MOST_IN_A_GROUP (1 << 20)

static bool is_for_groups(const atto__gather *g)
{
    return g->inner <= FEW_NEIGHBOURS && g->count >= SHORT_LINE && g->count <= MOST_IN_A_GROUP;
}

/* Rows of sums that a work-group has in local memory, for ATTO_GATHER_COLUMNS lines. */
#define TILE_ROWS (ATTO_GATHER_GROUP / ATTO_GATHER_COLUMNS * ATTO_GATHER_ROWS)

/* Work-groups that read the same lines, each for its own rows. Eleven of them take less than half of the time of
 * sums in memory on the H200, 4096 lines of 4096; a CPU has nothing to hide a second reading behind. */
#define MOST_READERS     16
#define MOST_READERS_CPU 2

static int64_t row_blocks(const atto__gather *g)
{
    return (g->rows + TILE_ROWS - 1) / TILE_ROWS;
}

/* Lines with neighbours whose sums fit the local memory of few work-groups. */
static bool is_for_tiles(const atto_device *dev, const atto__gather *g)
{
    const bool is_cpu = dev->info.kind == ATTO_KIND_OPENCL_CPU;
    return g->inner > FEW_NEIGHBOURS && g->count >= SHORT_LINE &&
           atto__opencl_of(dev)->group_size >= ATTO_GATHER_GROUP &&
           dev->info.local_bytes >= sizeof(float) * ATTO_GATHER_TILE &&
           row_blocks(g) <= (is_cpu ? MOST_READERS_CPU : MOST_READERS);
}

static void arg_sums(atto__args *args, atto_device *dev, const struct atto_gather_args *a,
                     const atto__gather *g)
{
    args->count = 0;
    atto__arg_tensor(args, a->index);
    atto__arg_tensor(args, a->dy);
    atto__arg_tensor(args, &g->source);
    atto__arg_error_word(args, dev);
    arg_steps(args, g);
    atto__arg_ulong(args, (uint64_t)g->count);
}

static atto_status add_tiles(atto_device *dev, const struct atto_gather_args *a,
                             const atto__gather *g)
{
    const int64_t columns = (g->inner + ATTO_GATHER_COLUMNS - 1) / ATTO_GATHER_COLUMNS;
    const atto__gather_knobs knobs = { .kernel = "atto_gather_backward_tile",
                                       .dtype = a->dy->dtype,
                                       .index = a->index->dtype,
                                       .group = ATTO_GATHER_GROUP };
    atto__variant variant;
    atto__args args;
    arg_sums(&args, dev, a, g);
    atto__arg_ulong(&args, (uint64_t)g->inner);
    atto__arg_uint(&args, (uint32_t)row_blocks(g));
    atto__arg_uint(&args, (uint32_t)columns);
    atto__gather_variant(&knobs, &variant);
    return atto__launch_sized(dev, &variant, &args, g->outer * columns * row_blocks(g),
                              ATTO_GATHER_GROUP);
}

static atto_status add_lines(atto_device *dev, const struct atto_gather_args *a,
                             const atto__gather *g)
{
    const bool groups = is_for_groups(g);
    const int64_t lines = g->outer * g->inner, sizes[4] = { 1, 1, 1, g->inner };
    const atto__gather_knobs knobs = { .kernel = groups ? "atto_gather_backward_line"
                                                        : "atto_gather_backward",
                                       .dtype = a->dy->dtype,
                                       .index = a->index->dtype,
                                       .wide = !groups && is_wide(dev, lines) };
    atto__args args;
    arg_sums(&args, dev, a, g);
    if (groups) {
        atto__arg_ulong(&args, (uint64_t)g->inner);
        return launch(dev, &knobs, &args, lines * atto__opencl_of(dev)->group_size);
    }
    atto__arg_index(&args, knobs.wide, lines);
    atto__arg_sizes(&args, knobs.wide, sizes);
    return launch(dev, &knobs, &args, lines);
}

atto_status atto__opencl_gather_backward(atto_device *dev, const struct atto_gather_args *a,
                                         const atto__layout *layout)
{
    (void)layout;
    atto__gather g;
    ATTO_TRY(atto__gather_begin_sums(dev, a, &g));
    if (atto_tensor_numel(a->index) == 0) return ATTO_OK;
    ATTO_TRY(is_for_tiles(dev, &g) ? add_tiles(dev, a, &g) : add_lines(dev, a, &g));
    return atto__gather_end_sums(dev, a, &g);
}

atto_status atto__opencl_gather_prepare(atto_device *dev, atto_dtype dtype)
{
    static const char *const kernels[] = { "atto_gather_forward", "atto_gather_backward",
                                           "atto_gather_backward_line",
                                           "atto_gather_backward_tile" };
    for (int32_t i = 0; i < 4; i++) {
        const atto__gather_knobs knobs = { .kernel = kernels[i],
                                           .dtype = dtype,
                                           .group = i == 3 ? ATTO_GATHER_GROUP : 0,
                                           .index = ATTO_I64 };
        atto__variant variant;
        atto__gather_variant(&knobs, &variant);
        ATTO_TRY(atto__prepare(dev, &variant));
    }
    return ATTO_OK;
}
