/* SPDX-License-Identifier: MIT */
/* Negative log-likelihood on OpenCL: see src/cl/nll_loss.cl.
 *
 *   forward    losses of the positions with a work-group's sums, then the sum of these
 *   backward   the sum of weights, if the mean's divisor was not saved; then one pass over dx, or
 *              with add_dx over its elements at labels
 */
#include "nll_loss.h"
#include "tensor.h"
#include "walk.h"

/* Positions that a work-item has at a time (AT_ONCE in the kernels), also runs of rows. */
#define AT_ONCE 4

/* Work-groups that add up positions, at most. By the shape alone. */
#define PARTIALS 4096

/* Planes: work-items that are worth cutting the classes into slabs, and a slab's fewest classes. */
#define MANY_ITEMS   262144
#define SLAB_CLASSES 16

/* A float vector in scratch. */
typedef struct piece {
    atto_tensor view;
    atto_buffer header;
} piece;

typedef struct call {
    atto_device *dev;
    const struct atto_nll_loss_args *a;
    const atto_tensor *x; /* or dx */
    atto__nll_loss n;
    const atto_tensor *weight; /* in f32; NULL = none */
    piece converted;
} call;

static atto_status take_piece(atto_device *dev, int64_t n, piece *out)
{
    return atto__scratch_tensor(dev, ATTO_F32, 1, &n, &out->header, &out->view);
}

/* Weights are read as f32. */
static atto_status begin_call(atto_device *dev, const struct atto_nll_loss_args *a,
                              const atto_tensor *x, call *out)
{
    out->dev = dev;
    out->a = a;
    out->x = x;
    out->n = atto__nll_loss_of(x);
    out->weight = a->weight;
    if (!a->weight || a->weight->dtype == ATTO_F32) return ATTO_OK;
    ATTO_TRY(take_piece(dev, out->n.classes, &out->converted));
    out->weight = &out->converted.view;
    return atto__copy(dev, &out->converted.view, a->weight);
}

static int64_t group_size(const call *k)
{
    return atto__opencl_of(k->dev)->group_size;
}

/* RULE_PARAMETERS */
static void arg_rule(atto__args *args, const call *k)
{
    atto__arg_ulong(args, (uint64_t)k->n.classes);
    atto__arg_uint(args, k->a->has_ignore_index);
    atto__arg_ulong(args, (uint64_t)k->a->ignore_index);
}

static atto_status launch(const call *k, const char *kernel, bool vectors, bool wide,
                          const atto__args *args, int64_t groups)
{
    const atto__nll_loss_knobs knobs = {
        .kernel = kernel,
        .dtype = k->x->dtype,
        .target = k->a->target->dtype,
        .vectors = vectors,
        .wide = wide,
    };
    atto__variant variant;
    atto__nll_loss_variant(&knobs, &variant);
    return atto__launch(k->dev, &variant, args, groups);
}

/* ---- sums over positions ---- */

static atto_status launch_finish(const call *k, const atto_tensor *partial, int64_t count,
                                 const atto_tensor *loss, const atto_tensor *total)
{
    atto__args args;
    args.count = 0;
    atto__arg_tensor(&args, partial);
    atto__arg_optional(&args, loss);
    atto__arg_optional(&args, total);
    atto__arg_uint(&args, (uint32_t)count);
    atto__arg_uint(&args, k->a->reduction == ATTO_REDUCTION_MEAN);
    return launch(k, "atto_nll_loss_finish", false, false, &args, 1);
}

/* What a pass over the positions makes: each loss, their sum or mean, the sum of weights; NULL =
 * not wanted. */
typedef struct wanted {
    const atto_tensor *x; /* NULL: weights only */
    const atto_tensor *each, *loss, *total;
} wanted;

static atto_status go_over_positions(const call *k, const wanted *w)
{
    const int64_t units = atto__group_count(k->n.positions, AT_ONCE * group_size(k));
    const int64_t steps = atto__group_count(units, PARTIALS);
    const int64_t groups = atto__group_count(units, steps);
    const bool sums = w->loss || w->total;
    piece partial;
    if (sums) ATTO_TRY(take_piece(k->dev, 2 * groups, &partial));
    atto__args args;
    args.count = 0;
    atto__arg_optional(&args, w->x);
    atto__arg_tensor(&args, k->a->target);
    atto__arg_optional(&args, k->weight);
    atto__arg_optional(&args, w->each);
    atto__arg_optional(&args, sums ? &partial.view : NULL);
    atto__arg_error_word(&args, k->dev);
    atto__arg_ulong(&args, (uint64_t)k->n.positions);
    atto__arg_ulong(&args, (uint64_t)k->n.step);
    atto__arg_uint(&args, (uint32_t)steps);
    arg_rule(&args, k);
    ATTO_TRY(launch(k, "atto_nll_loss_positions", false, false, &args, groups));
    return sums ? launch_finish(k, &partial.view, groups, w->loss, w->total) : ATTO_OK;
}

atto_status atto__opencl_nll_loss_forward(atto_device *dev, const struct atto_nll_loss_args *a,
                                          const atto__layout *layout)
{
    (void)layout;
    const bool none = a->reduction == ATTO_REDUCTION_NONE;
    call k;
    ATTO_TRY(begin_call(dev, a, a->x, &k));
    const wanted w = { a->x, none ? a->loss : NULL, none ? NULL : a->loss, a->total };
    return go_over_positions(&k, &w);
}

/* ---- backward ---- */

/* BACKWARD_PARAMETERS */
static void arg_backward(atto__args *args, const call *k, const atto_tensor *total)
{
    atto__arg_tensor(args, k->a->target);
    atto__arg_optional(args, k->weight);
    atto__arg_tensor(args, k->a->dloss);
    atto__arg_optional(args, total);
    atto__arg_tensor(args, k->a->dx);
    atto__arg_error_word(args, k->dev);
    atto__arg_uint(args, k->a->reduction == ATTO_REDUCTION_NONE);
    atto__arg_ulong(args, (uint64_t)k->n.positions);
    arg_rule(args, k);
}

/* What the kernels divide by. */
static void arg_divisor(atto__args *args, bool wide, int64_t divisor)
{
    const int64_t size[4] = { 1, 1, 1, divisor };
    atto__arg_sizes(args, wide, size);
}

static bool is_wide(const call *k)
{
    return k->dev->options.set.index_bits == 64 ||
           k->n.positions * k->n.classes >= INT32_MAX - 4096; /* room for a work-group's vectors */
}

static atto_status launch_rows(const call *k, const atto_tensor *total)
{
    const int64_t vector = atto__vector_elements(k->x->dtype);
    const int64_t slots = k->n.positions * k->n.classes + k->a->dx->offset % vector;
    const int64_t vectors = atto__group_count(slots, vector);
    const bool wide = is_wide(k);
    atto__args args;
    args.count = 0;
    arg_backward(&args, k, total);
    arg_divisor(&args, wide, k->n.classes);
    return launch(k, "atto_nll_loss_rows", false, wide, &args,
                  atto__group_count(vectors, AT_ONCE * group_size(k)));
}

static atto_status launch_planes(const call *k, const atto_tensor *total)
{
    const int64_t vector = atto__vector_elements(k->x->dtype);
    const bool wide = is_wide(k);
    const bool vectors = k->n.step % vector == 0 && k->a->dx->offset % vector == 0;
    const int64_t run = vectors ? vector : 1, items = k->n.positions / run;
    int64_t slabs = atto__group_count(MANY_ITEMS, items);
    if (slabs > k->n.classes / SLAB_CLASSES) slabs = k->n.classes / SLAB_CLASSES;
    if (slabs < 1) slabs = 1;
    const int64_t per_slab = atto__group_count(k->n.classes, slabs);
    slabs = atto__group_count(k->n.classes, per_slab);
    const int64_t groups = atto__group_count(items, group_size(k));
    atto__args args;
    args.count = 0;
    arg_backward(&args, k, total);
    arg_divisor(&args, wide, k->n.step / run);
    atto__arg_index(&args, wide, groups);
    atto__arg_index(&args, wide, per_slab);
    return launch(k, "atto_nll_loss_planes", vectors, wide, &args, groups * slabs);
}

static atto_status launch_scatter(const call *k, const atto_tensor *total)
{
    atto__args args;
    args.count = 0;
    arg_backward(&args, k, total);
    atto__arg_ulong(&args, (uint64_t)k->n.step);
    return launch(k, "atto_nll_loss_scatter", false, false, &args,
                  atto__group_count(k->n.positions, group_size(k)));
}

/* total NULL: nothing is divided. */
static atto_status launch_backward(const call *k, const atto_tensor *total)
{
    if (k->a->add_dx) return launch_scatter(k, total);
    return k->n.step == 1 ? launch_rows(k, total) : launch_planes(k, total);
}

atto_status atto__opencl_nll_loss_backward(atto_device *dev, const struct atto_nll_loss_args *a,
                                           const atto__layout *layout)
{
    (void)layout;
    call k;
    piece total;
    ATTO_TRY(begin_call(dev, a, a->dx, &k));
    if (a->reduction != ATTO_REDUCTION_MEAN) return launch_backward(&k, NULL);
    if (a->total) return launch_backward(&k, a->total);
    ATTO_TRY(take_piece(dev, 1, &total));
    const wanted w = { NULL, NULL, NULL, &total.view };
    ATTO_TRY(go_over_positions(&k, &w));
    return launch_backward(&k, &total.view);
}

atto_status atto__opencl_nll_loss_prepare(atto_device *dev, atto_dtype dtype)
{
    static const char *const kernels[] = { "atto_nll_loss_positions", "atto_nll_loss_finish",
                                           "atto_nll_loss_rows" };
    for (int32_t i = 0; i < 3; i++) {
        const atto__nll_loss_knobs knobs = { .kernel = kernels[i],
                                             .dtype = dtype,
                                             .target = ATTO_I64 };
        atto__variant variant;
        atto__nll_loss_variant(&knobs, &variant);
        ATTO_TRY(atto__prepare(dev, &variant));
    }
    return ATTO_OK;
}
