/* SPDX-License-Identifier: MIT */
/* Rows that an index names on OpenCL: see src/cl/index_select.cl.
 *
 *   forward    one pass over y
 *   backward   dx = 0; then, a slab of positions after the other: the slab's positions by rows, and
 *              the rows' sums on top of what dx has
 */
#include "axis.h"
#include "indices.h"
#include "tensor.h"
#include "walk.h"

#define MOST_NARROW (INT32_MAX - (1 << 24))

/* Positions that are sorted together: a row with all of them takes their square of comparisons. */
#define SLAB 65536

typedef struct call {
    atto_device *dev;
    const struct atto_index_select_args *a;
    atto__axis x; /* or dx */
    int64_t positions;
} call;

static call call_of(atto_device *dev, const struct atto_index_select_args *a, const atto_tensor *x)
{
    return (call){ dev, a, atto__axis_of(x, a->dim), atto_tensor_numel(a->index) };
}

static int64_t group_size(const call *k)
{
    return atto__opencl_of(k->dev)->group_size;
}

static bool is_wide(const call *k, int64_t elements)
{
    return k->dev->options.set.index_bits == 64 || elements > MOST_NARROW;
}

/* Builds and enqueues. */
static atto_status launch(const call *k, const atto__index_select_knobs *knobs,
                          const atto__args *args, int64_t items)
{
    atto__variant variant;
    const int64_t group = knobs->group ? knobs->group : group_size(k);
    atto__index_select_variant(knobs, &variant);
    return atto__launch_sized(k->dev, &variant, args, atto__group_count(items, group),
                              (int32_t)group);
}

/* ---- forward ---- */

/* Whether the view's start and rows are multiples of so many bytes. */
static bool fits(const atto_tensor *t, int64_t row, int64_t bytes)
{
    const int64_t size = (int64_t)atto_dtype_size(t->dtype);
    return row * size % bytes == 0 && t->offset * size % bytes == 0;
}

/* A tensor that counts in units. */
static void arg_units(atto__args *args, const atto_tensor *t, int64_t unit)
{
    atto_tensor units = *t;
    units.offset = t->offset * (int64_t)atto_dtype_size(t->dtype) / unit;
    atto__arg_tensor(args, &units);
}

atto_status atto__opencl_index_select_forward(atto_device *dev,
                                              const struct atto_index_select_args *a,
                                              const atto__layout *layout)
{
    (void)layout;
    const call k = call_of(dev, a, a->x);
    const int64_t size = (int64_t)atto_dtype_size(a->x->dtype);
    const int64_t unit = fits(a->x, k.x.step, 16) && fits(a->y, k.x.step, 16) ? 16 : size;
    const int64_t per_row = k.x.step * size / unit, n = k.x.outer * k.positions * per_row;
    const int64_t sizes[4] = { 1, 1, k.positions, per_row };
    const atto__index_select_knobs knobs = { .kernel = "atto_index_select_forward",
                                             .unit = (int32_t)unit,
                                             .index = a->index->dtype,
                                             .wide = is_wide(&k, n) };
    atto__args args;
    args.count = 0;
    arg_units(&args, a->x, unit);
    atto__arg_tensor(&args, a->index);
    arg_units(&args, a->y, unit);
    atto__arg_error_word(&args, dev);
    atto__arg_ulong(&args, (uint64_t)k.x.size);
    atto__arg_index(&args, knobs.wide, n);
    atto__arg_sizes(&args, knobs.wide, sizes);
    return launch(&k, &knobs, &args, (n + ATTO_DENSE_ITEMS - 1) / ATTO_DENSE_ITEMS);
}

/* ---- backward: positions by rows ---- */

/* Words in scratch: of a slab's positions the first five, of rows the others. */
enum { ROW, SLOT, BUCKET, ORDER, HEAD, COUNT, BEGIN, PIECES };

typedef struct words {
    atto_tensor list[PIECES];
    atto_buffer headers[PIECES];
} words;

static atto_status take_words(const call *k, words *w)
{
    const int64_t most = k->positions < SLAB ? k->positions : SLAB, rows = k->x.size;
    for (int32_t i = 0; i < PIECES; i++) {
        const int64_t size = i < COUNT ? most : i == COUNT ? rows + 2 : rows;
        ATTO_TRY(atto__scratch_tensor(k->dev, ATTO_I32, 1, &size, &w->headers[i], &w->list[i]));
    }
    return ATTO_OK;
}

static void arg_words(atto__args *args, const words *w, int32_t piece)
{
    atto__arg_memory(args, atto__memory(&w->list[piece]));
}

static atto_status count_rows(const call *k, const words *w, int64_t first, int64_t n)
{
    const struct atto_index_select_args *a = k->a;
    const atto__index_select_knobs knobs = { .kernel = "atto_index_select_count",
                                             .index = a->index->dtype };
    atto_tensor slab = *a->index;
    atto__args args;
    slab.offset += first;
    ATTO_TRY(atto__fill(k->dev, &w->list[COUNT], 0.0));
    args.count = 0;
    atto__arg_tensor(&args, &slab);
    arg_words(&args, w, ROW);
    arg_words(&args, w, SLOT);
    arg_words(&args, w, COUNT);
    atto__arg_error_word(&args, k->dev);
    atto__arg_uint(&args, (uint32_t)n);
    atto__arg_ulong(&args, (uint64_t)k->x.size);
    atto__arg_uint(&args, a->has_padding);
    atto__arg_ulong(&args, (uint64_t)a->padding);
    return launch(k, &knobs, &args, n);
}

static atto_status place_rows(const call *k, const words *w, int64_t n)
{
    static const int32_t pieces[] = { ROW, SLOT, COUNT, BEGIN, HEAD };
    const atto__index_select_knobs knobs = { .kernel = "atto_index_select_place" };
    atto__args args;
    args.count = 0;
    for (int32_t i = 0; i < 5; i++) arg_words(&args, w, pieces[i]);
    atto__arg_uint(&args, (uint32_t)n);
    atto__arg_ulong(&args, (uint64_t)k->x.size);
    return launch(k, &knobs, &args, n);
}

static atto_status fill_slots(const call *k, const words *w, int64_t n)
{
    static const int32_t pieces[] = { ROW, SLOT, BEGIN, BUCKET };
    const atto__index_select_knobs knobs = { .kernel = "atto_index_select_fill" };
    atto__args args;
    args.count = 0;
    for (int32_t i = 0; i < 4; i++) arg_words(&args, w, pieces[i]);
    atto__arg_uint(&args, (uint32_t)n);
    return launch(k, &knobs, &args, n);
}

static atto_status rank_positions(const call *k, const words *w, int64_t n)
{
    static const int32_t pieces[] = { ROW, COUNT, BEGIN, BUCKET, ORDER };
    const atto__index_select_knobs knobs = { .kernel = "atto_index_select_rank" };
    atto__args args;
    args.count = 0;
    for (int32_t i = 0; i < 5; i++) arg_words(&args, w, pieces[i]);
    atto__arg_uint(&args, (uint32_t)n);
    return launch(k, &knobs, &args, n);
}

/* ---- backward: sums ---- */

static bool takes_vectors(const call *k, const atto_tensor *dx)
{
    const int32_t vector = atto__vector_elements(k->a->dy->dtype);
    return k->x.step % vector == 0 && k->a->dy->offset % vector == 0 && dx->offset % vector == 0;
}

/* Onto dx, or scratch in its place; add: onto what it has. */
static atto_status sum_rows(const call *k, const words *w, const atto_tensor *dx, int64_t first,
                            int64_t n, bool add)
{
    static const int32_t pieces[] = { COUNT, BEGIN, HEAD, ORDER };
    const bool vectors = takes_vectors(k, dx);
    const int64_t heads = n < k->x.size ? n : k->x.size, outer = k->x.outer;
    const int64_t runs = k->x.step / (vectors ? atto__vector_elements(k->a->dy->dtype) : 1);
    const int64_t items = heads * outer * runs, sizes[4] = { 1, 1, outer, runs };
    const bool small = group_size(k) < ATTO_INDEX_SUM_GROUP;
    const atto__index_select_knobs knobs = { .kernel = "atto_index_select_sum",
                                             .dtype = k->a->dy->dtype,
                                             .wide_out = dx->dtype != k->a->dy->dtype,
                                             .vectors = vectors,
                                             .group = small ? 0 : ATTO_INDEX_SUM_GROUP,
                                             .wide = is_wide(k, items) };
    atto__args args;
    args.count = 0;
    atto__arg_tensor(&args, k->a->dy);
    atto__arg_tensor(&args, dx);
    for (int32_t i = 0; i < 4; i++) arg_words(&args, w, pieces[i]);
    atto__arg_ulong(&args, (uint64_t)k->x.size);
    atto__arg_ulong(&args, (uint64_t)k->positions);
    atto__arg_ulong(&args, (uint64_t)first);
    atto__arg_uint(&args, add);
    atto__arg_sizes(&args, knobs.wide, sizes);
    return launch(k, &knobs, &args, items);
}

/* dx has the old values or, unless it holds anything, add_dx is false and it is all zeros. */
static atto_status add_slabs(const call *k, const atto_tensor *dx)
{
    words w;
    ATTO_TRY(take_words(k, &w));
    for (int64_t first = 0; first < k->positions; first += SLAB) {
        const int64_t left = k->positions - first, n = left < SLAB ? left : SLAB;
        ATTO_TRY(count_rows(k, &w, first, n));
        ATTO_TRY(place_rows(k, &w, n));
        ATTO_TRY(fill_slots(k, &w, n));
        ATTO_TRY(rank_positions(k, &w, n));
        ATTO_TRY(sum_rows(k, &w, dx, first, n, k->a->add_dx || first > 0));
    }
    return ATTO_OK;
}

/* The sums of several slabs, in f32, are rounded at the end. */
static atto_status add_rounded(const call *k)
{
    const atto_tensor *dx = k->a->dx;
    atto_buffer header;
    atto_tensor sums;
    ATTO_TRY(atto__scratch_tensor(k->dev, ATTO_F32, dx->rank, dx->shape, &header, &sums));
    ATTO_TRY(k->a->add_dx ? atto__copy(k->dev, &sums, dx) : atto__fill(k->dev, &sums, 0.0));
    ATTO_TRY(add_slabs(k, &sums));
    return atto__copy(k->dev, dx, &sums);
}

atto_status atto__opencl_index_select_backward(atto_device *dev,
                                               const struct atto_index_select_args *a,
                                               const atto__layout *layout)
{
    (void)layout;
    const call k = call_of(dev, a, a->dx);
    ATTO_REQUIRE(k.x.size <= INT32_MAX, ATTO_E_UNSUPPORTED,
                 "index_select_backward: dx has %lld rows, expected at most %d on OpenCL",
                 (long long)k.x.size, INT32_MAX);
    const bool rounds = k.positions > SLAB && a->dx->dtype != ATTO_F32;
    if (rounds) return add_rounded(&k);
    if (!a->add_dx) ATTO_TRY(atto__fill(dev, a->dx, 0.0));
    return k.positions > 0 ? add_slabs(&k, a->dx) : ATTO_OK;
}

atto_status atto__opencl_index_select_prepare(atto_device *dev, atto_dtype dtype)
{
    static const char *const kernels[] = { "atto_index_select_forward", "atto_index_select_count",
                                           "atto_index_select_place",   "atto_index_select_fill",
                                           "atto_index_select_rank",    "atto_index_select_sum" };
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        const atto__index_select_knobs knobs = {
            .kernel = kernels[i],
            .unit = 16,
            .index = ATTO_I64,
            .dtype = dtype,
            .vectors = true,
        };
        atto__variant variant;
        atto__index_select_variant(&knobs, &variant);
        ATTO_TRY(atto__prepare(dev, &variant));
    }
    return ATTO_OK;
}
