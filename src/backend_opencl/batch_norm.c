/* SPDX-License-Identifier: MIT */
/* Batch norm on OpenCL: see src/cl/batch_norm.cl.
 *
 *   forward    moments of slabs, their merging, y; outside training only y (and what is to be saved)
 *   backward   sums of slabs, their sum, dx and dresidual
 */
#include "batch_norm.h"

#include "launch.h"
#include "tensor.h"

/* How a call is cut up: the kernels' words. */
typedef struct plan {
    atto_device *dev;
    const struct atto_batch_norm_args *a;
    atto__batch_norm g;
    bool last, vectors, wide;
    int64_t run; /* elements of a unit */
    int64_t kept, per_run, folded, per_slab, slabs, strips;
    int32_t columns;
    const atto_tensor *w, *b; /* in f32; NULL = none */
    atto_tensor converted[2], partial, numbers;
    atto_buffer headers[4];
    atto_tensor mean, rstd; /* what kernels read */
} plan;

/* Elements that a lane loads before it uses them (UNITS units in the kernels). */
#define UNITS_OF(run) ((run) > 4 ? 2 : 4)

/* Channels (units of them) that work-items of a work-group have side by side: 512 bytes. */
#define MOST_COLUMNS 32

/* Work-groups that are enough for any device. */
#define GROUPS 2048

static bool is_aligned(const atto_tensor *t, int64_t vector)
{
    return !t || t->offset % vector == 0;
}

static void choose_units(plan *p)
{
    const struct atto_batch_norm_args *a = p->a;
    const int64_t vector = atto__vector_elements(a->x->dtype);
    p->last = p->g.size == 1;
    p->vectors = (p->last ? p->g.channels : p->g.size) % vector == 0;
    const atto_tensor *all[] = { a->x, a->residual, a->y, a->dy, a->dx, a->dresidual };
    for (int32_t i = 0; i < 6; i++) p->vectors = p->vectors && is_aligned(all[i], vector);
    p->run = p->vectors ? vector : 1;
    p->kept = p->last ? p->g.channels / p->run : p->g.channels;
    p->per_run = p->g.size / (p->last ? 1 : p->run);
    p->folded = p->g.n * p->per_run;
}

/* Slabs depend on the shape, and on the work-group's size. */
static void choose_slabs(plan *p)
{
    const int32_t group = (int32_t)atto__opencl_of(p->dev)->group_size;
    p->columns = 1;
    while (p->last && p->columns < MOST_COLUMNS && p->columns < group && p->columns < p->kept)
        p->columns *= 2;
    p->strips = atto__group_count(p->kept, p->columns);
    const int64_t step = group / p->columns * UNITS_OF(p->run);
    int64_t slabs = atto__group_count(GROUPS, p->strips);
    const int64_t most = atto__group_count(p->folded, 2 * step);
    if (slabs > most) slabs = most;
    p->per_slab = atto__group_count(atto__group_count(p->folded, slabs), step) * step;
    p->slabs = atto__group_count(p->folded, p->per_slab);
    p->wide = p->dev->options.set.index_bits == 64 || p->folded >= INT32_MAX / 2 ||
              p->g.channels >= INT32_MAX / 2;
}

static atto_status take(plan *p, int32_t header, int64_t count, atto_tensor *out)
{
    return atto__scratch_tensor(p->dev, ATTO_F32, 1, &count, &p->headers[header], out);
}

/* w or b as f32. */
static atto_status widen(plan *p, int32_t which, const atto_tensor *t, const atto_tensor **out)
{
    *out = t;
    if (!t || t->dtype == ATTO_F32) return ATTO_OK;
    ATTO_TRY(take(p, which, p->g.channels, &p->converted[which]));
    ATTO_TRY(atto__copy(p->dev, &p->converted[which], t));
    *out = &p->converted[which];
    return ATTO_OK;
}

/* numbers: two arrays [channels]: mean and rstd, or sums. */
static atto_status begin(atto_device *dev, const struct atto_batch_norm_args *a, plan *p)
{
    memset(p, 0, sizeof *p);
    p->dev = dev;
    p->a = a;
    p->g = atto__batch_norm_of(a->x);
    choose_units(p);
    choose_slabs(p);
    ATTO_TRY(widen(p, 0, a->w, &p->w));
    ATTO_TRY(widen(p, 1, a->b, &p->b));
    ATTO_TRY(take(p, 2, p->slabs * 2 * p->g.channels, &p->partial));
    return take(p, 3, 2 * p->g.channels, &p->numbers);
}

/* ---- launches ---- */

static atto__variant variant_of(const plan *p, const char *kernel, atto_dtype out)
{
    const atto__batch_norm_knobs knobs = {
        .kernel = kernel,
        .act = atto_activation_name(p->a->act.kind),
        .dtype = p->a->x->dtype,
        .out = out,
        .last = p->last,
        .vectors = p->vectors,
        .wide = p->wide,
    };
    atto__variant variant;
    atto__batch_norm_variant(&knobs, &variant);
    return variant;
}

static void arg_optional(atto__args *args, const atto_tensor *t)
{
    const atto_tensor none = atto_tensor_of(NULL, ATTO_F32, atto_shape1(0), 0);
    atto__arg_tensor(args, t ? t : &none);
}

/* PLACE_PARAMETERS */
static void arg_place(atto__args *args, const plan *p)
{
    const int64_t numbers[] = { p->g.channels, p->kept,     p->per_run,
                                p->folded,     p->per_slab, p->strips };
    for (int32_t i = 0; i < 6; i++) atto__arg_index(args, p->wide, numbers[i]);
    atto__arg_uint(args, (uint32_t)p->columns);
}

/* CHANNEL_PARAMETERS */
static void arg_channels(atto__args *args, const plan *p)
{
    atto__arg_tensor(args, &p->mean);
    atto__arg_tensor(args, &p->rstd);
    arg_optional(args, p->w);
    arg_optional(args, p->b);
}

static atto_status launch_slabs(const plan *p, const char *kernel, const atto__args *args)
{
    const atto__variant variant = variant_of(p, kernel, ATTO_F32);
    return atto__launch(p->dev, &variant, args, p->strips * p->slabs);
}

/* Channels of a work-group of the kernels that merge slabs. */
static int64_t merging_groups(const plan *p)
{
    const int64_t group = atto__opencl_of(p->dev)->group_size;
    return atto__group_count(p->g.channels,
                             group > ATTO_BATCH_NORM_LANES ? group / ATTO_BATCH_NORM_LANES : 1);
}

/* ---- forward ---- */

static atto_status launch_moments(const plan *p)
{
    atto__args args;
    args.count = 0;
    atto__arg_tensor(&args, p->a->x);
    atto__arg_memory(&args, atto__memory(&p->partial));
    arg_place(&args, p);
    return launch_slabs(p, "atto_batch_norm_moments", &args);
}

static atto_status launch_finish(const plan *p)
{
    const struct atto_batch_norm_args *a = p->a;
    const atto__variant variant = variant_of(p, "atto_batch_norm_finish", ATTO_F32);
    atto__args args;
    args.count = 0;
    atto__arg_memory(&args, atto__memory(&p->partial));
    atto__arg_tensor(&args, &p->mean);
    atto__arg_tensor(&args, &p->rstd);
    arg_optional(&args, a->running_mean);
    arg_optional(&args, a->running_var);
    arg_optional(&args, a->batches);
    atto__arg_ulong(&args, (uint64_t)p->g.channels);
    atto__arg_ulong(&args, (uint64_t)(a->training ? p->slabs : 0));
    atto__arg_ulong(&args, (uint64_t)p->folded);
    atto__arg_ulong(&args, (uint64_t)p->per_slab);
    atto__arg_uint(&args, p->last ? 1 : (uint32_t)p->run);
    atto__arg_float(&args, a->momentum);
    atto__arg_uint(&args, a->cumulative && a->batches);
    atto__arg_float(&args, a->eps);
    return atto__launch(p->dev, &variant, &args, merging_groups(p));
}

static atto_status launch_apply(const plan *p)
{
    const struct atto_batch_norm_args *a = p->a;
    atto__args args;
    args.count = 0;
    atto__arg_tensor(&args, a->x);
    arg_optional(&args, a->residual);
    atto__arg_tensor(&args, a->y);
    arg_optional(&args, a->training ? a->batches : NULL);
    arg_channels(&args, p);
    arg_place(&args, p);
    atto__arg_float(&args, a->act.a);
    atto__arg_float(&args, a->act.b);
    return launch_slabs(p, "atto_batch_norm_apply", &args);
}

/* Half of the scratch for two arrays. */
static atto_tensor half_of(const plan *p, int64_t which)
{
    atto_tensor half = p->numbers;
    half.shape[0] = p->g.channels;
    half.offset += which * p->g.channels;
    return half;
}

/* No values: no mean, and nothing to learn from. */
static atto_status no_values(const struct atto_batch_norm_args *a)
{
    if (a->mean) ATTO_TRY(atto_tensor_fill(a->mean, NAN));
    return a->rstd ? atto_tensor_fill(a->rstd, NAN) : ATTO_OK;
}

atto_status atto__opencl_batch_norm_forward(atto_device *dev, const struct atto_batch_norm_args *a,
                                            const atto__layout *layout)
{
    (void)layout;
    plan p;
    const atto__batch_norm g = atto__batch_norm_of(a->x);
    if (g.channels == 0) return ATTO_OK;
    if (g.values == 0 && a->training) return no_values(a);
    ATTO_TRY(begin(dev, a, &p));
    p.mean = a->mean ? *a->mean : half_of(&p, 0);
    p.rstd = a->rstd ? *a->rstd : half_of(&p, 1);
    if (a->training) ATTO_TRY(launch_moments(&p));
    ATTO_TRY(launch_finish(&p));
    return g.values > 0 ? launch_apply(&p) : ATTO_OK;
}

/* ---- backward ---- */

/* GRADIENT_PARAMETERS; b and residual matter to an activation alone. */
static void arg_gradient(atto__args *args, const plan *p)
{
    const struct atto_batch_norm_args *a = p->a;
    args->count = 0;
    atto__arg_tensor(args, a->x);
    atto__arg_tensor(args, a->dy);
    arg_optional(args, a->act.kind == ATTO_ACT_IDENTITY ? NULL : a->residual);
    arg_channels(args, p);
    arg_place(args, p);
    atto__arg_float(args, a->act.a);
    atto__arg_float(args, a->act.b);
}

static atto_status launch_sums(const plan *p)
{
    atto__args args;
    arg_gradient(&args, p);
    atto__arg_memory(&args, atto__memory(&p->partial));
    return launch_slabs(p, "atto_batch_norm_sums", &args);
}

/* dw and db; of two dtypes one at a time. sums NULL: not for dx. */
static atto_status launch_join(const plan *p, const atto_tensor *dw, const atto_tensor *db,
                               bool sums)
{
    const struct atto_batch_norm_args *a = p->a;
    const atto_dtype out = dw ? dw->dtype : db ? db->dtype : ATTO_F32;
    const atto__variant variant = variant_of(p, "atto_batch_norm_join", out);
    atto__args args;
    args.count = 0;
    atto__arg_memory(&args, atto__memory(&p->partial));
    atto__arg_memory(&args, sums ? atto__memory(&p->numbers) : NULL);
    arg_optional(&args, dw);
    arg_optional(&args, db);
    atto__arg_ulong(&args, (uint64_t)p->g.channels);
    atto__arg_ulong(&args, (uint64_t)(p->g.values > 0 ? p->slabs : 0));
    atto__arg_float(&args, (float)p->g.values);
    atto__arg_uint(&args, a->add_dw);
    atto__arg_uint(&args, a->add_db);
    return atto__launch(p->dev, &variant, &args, merging_groups(p));
}

static atto_status join(const plan *p, bool sums)
{
    const struct atto_batch_norm_args *a = p->a;
    if (!a->dw || !a->db || a->dw->dtype == a->db->dtype) return launch_join(p, a->dw, a->db, sums);
    ATTO_TRY(launch_join(p, a->dw, NULL, sums));
    return launch_join(p, NULL, a->db, false);
}

static atto_status launch_dx(const plan *p, bool sums)
{
    const struct atto_batch_norm_args *a = p->a;
    atto__args args;
    arg_gradient(&args, p);
    atto__arg_memory(&args, sums ? atto__memory(&p->numbers) : NULL);
    arg_optional(&args, a->dx);
    arg_optional(&args, a->dresidual);
    atto__arg_uint(&args, a->add_dx);
    atto__arg_uint(&args, a->add_dresidual);
    return launch_slabs(p, "atto_batch_norm_dx", &args);
}

atto_status atto__opencl_batch_norm_backward(atto_device *dev, const struct atto_batch_norm_args *a,
                                             const atto__layout *layout)
{
    (void)layout;
    plan p;
    if (a->x->shape[1] == 0) return ATTO_OK;
    ATTO_TRY(begin(dev, a, &p));
    p.mean = *a->mean, p.rstd = *a->rstd;
    const bool empty = p.g.values == 0, sums = a->training && a->dx;
    if (a->dw || a->db || sums) {
        if (!empty) ATTO_TRY(launch_sums(&p));
        ATTO_TRY(join(&p, sums));
    }
    return !empty && (a->dx || a->dresidual) ? launch_dx(&p, sums) : ATTO_OK;
}

/* Images in that dtype, row-major. */
atto_status atto__opencl_batch_norm_prepare(atto_device *dev, atto_dtype dtype)
{
    static const char *const kernels[] = { "atto_batch_norm_moments", "atto_batch_norm_finish",
                                           "atto_batch_norm_apply",   "atto_batch_norm_sums",
                                           "atto_batch_norm_join",    "atto_batch_norm_dx" };
    for (int32_t i = 0; i < 6; i++) {
        const atto__batch_norm_knobs knobs = { .kernel = kernels[i],
                                               .act = "identity",
                                               .dtype = dtype,
                                               .out = ATTO_F32,
                                               .vectors = true };
        atto__variant variant;
        atto__batch_norm_variant(&knobs, &variant);
        ATTO_TRY(atto__prepare(dev, &variant));
    }
    return ATTO_OK;
}
