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
    bool backward, last, vectors, wide;
    int64_t run; /* elements of a unit */
    int64_t kept, per_run, folded, per_slab, slabs, strips;
    int32_t columns;
    const atto_tensor *w, *b; /* in f32; NULL = none */
    atto_tensor converted[2], partial, numbers;
    atto_buffer headers[4];
    atto_tensor mean, rstd;   /* what kernels read */
    int64_t per_stat, params; /* of group norm; 1, channels */
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
    p->vectors = (p->last ? p->g.channels : p->g.size) % vector == 0;
    const atto_tensor *forward[] = { a->x, a->residual, a->y, NULL, NULL };
    const atto_tensor *backward[] = { a->x, a->residual, a->dy, a->dx, a->dresidual };
    for (int32_t i = 0; i < 5; i++)
        p->vectors = p->vectors && is_aligned(p->backward ? backward[i] : forward[i], vector);
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
    const int64_t size = count > 0 ? count : 1; /* there is no block of 0 bytes */
    return atto__scratch_tensor(p->dev, ATTO_F32, 1, &size, &p->headers[header], out);
}

/* w or b as f32. */
static atto_status widen(plan *p, int32_t which, const atto_tensor *t, const atto_tensor **out)
{
    *out = t;
    if (!t || t->dtype == ATTO_F32) return ATTO_OK;
    ATTO_TRY(take(p, which, p->params, &p->converted[which]));
    ATTO_TRY(atto__copy(p->dev, &p->converted[which], t));
    *out = &p->converted[which];
    return ATTO_OK;
}

/* numbers: two arrays [channels]: mean and rstd, or sums. p->g and what follows from the op are set. */
static atto_status begin_plan(plan *p)
{
    choose_units(p);
    choose_slabs(p);
    ATTO_TRY(widen(p, 0, p->a->w, &p->w));
    ATTO_TRY(widen(p, 1, p->a->b, &p->b));
    ATTO_TRY(take(p, 2, p->slabs * 2 * p->g.channels, &p->partial));
    return take(p, 3, 2 * p->g.channels, &p->numbers);
}

static atto_status begin(atto_device *dev, const struct atto_batch_norm_args *a, bool backward,
                         plan *p)
{
    memset(p, 0, sizeof *p);
    p->dev = dev;
    p->a = a;
    p->backward = backward;
    p->g = atto__batch_norm_of(a->x);
    p->last = p->g.size == 1;
    p->per_stat = 1;
    p->params = p->g.channels;
    return begin_plan(p);
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
    atto__arg_ulong(args, (uint64_t)p->per_stat);
    atto__arg_ulong(args, (uint64_t)p->params);
}

static atto_status launch_slabs(const plan *p, const char *kernel, const atto__args *args)
{
    const atto__variant variant = variant_of(p, kernel, ATTO_F32);
    return atto__launch(p->dev, &variant, args, p->strips * p->slabs);
}

/* Work-groups of the kernels that merge: so many channels. */
static int64_t merging_groups(const plan *p, int64_t channels)
{
    const int64_t group = atto__opencl_of(p->dev)->group_size;
    return atto__group_count(channels,
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
    return atto__launch(p->dev, &variant, &args, merging_groups(p, p->g.channels));
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
    ATTO_TRY(begin(dev, a, false, &p));
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

/* Pairs of numbers to be added up: see the kernel. */
typedef struct pairs {
    const atto_tensor *from;
    int64_t channels, count, apart, second;
    const atto_tensor *sums, *w; /* NULL = not wanted, 1 */
    float values;
} pairs;

/* dw and db, NULL = not there; of one dtype. */
static atto_status launch_join(const plan *p, const pairs *k, const atto_tensor *dw,
                               const atto_tensor *db)
{
    const struct atto_batch_norm_args *a = p->a;
    const atto_dtype out = dw ? dw->dtype : db ? db->dtype : ATTO_F32;
    const atto__variant variant = variant_of(p, "atto_batch_norm_join", out);
    atto__args args;
    args.count = 0;
    atto__arg_memory(&args, atto__memory(k->from));
    atto__arg_memory(&args, k->sums ? atto__memory(k->sums) : NULL);
    arg_optional(&args, dw);
    arg_optional(&args, db);
    arg_optional(&args, k->w);
    atto__arg_ulong(&args, (uint64_t)k->channels);
    atto__arg_ulong(&args, (uint64_t)k->count);
    atto__arg_ulong(&args, (uint64_t)k->apart);
    atto__arg_ulong(&args, (uint64_t)k->second);
    atto__arg_float(&args, k->values);
    atto__arg_uint(&args, a->add_dw);
    atto__arg_uint(&args, a->add_db);
    return atto__launch(p->dev, &variant, &args, merging_groups(p, k->channels));
}

/* Of two dtypes one at a time. */
static atto_status join(const plan *p, const pairs *k)
{
    const struct atto_batch_norm_args *a = p->a;
    if (!a->dw || !a->db || a->dw->dtype == a->db->dtype) return launch_join(p, k, a->dw, a->db);
    pairs rest = *k;
    rest.sums = NULL;
    ATTO_TRY(launch_join(p, k, a->dw, NULL));
    return launch_join(p, &rest, NULL, a->db);
}

/* What sums has left behind. */
static pairs slabs_of(const plan *p)
{
    return (pairs){ .from = &p->partial,
                    .channels = p->g.channels,
                    .count = p->g.values > 0 ? p->slabs : 0,
                    .apart = 2 * p->g.channels,
                    .second = p->g.channels,
                    .values = 1.0f };
}

/* sums NULL: they do not count. */
static atto_status launch_dx(const plan *p, const atto_tensor *sums)
{
    const struct atto_batch_norm_args *a = p->a;
    atto__args args;
    arg_gradient(&args, p);
    atto__arg_memory(&args, sums ? atto__memory(sums) : NULL);
    atto__arg_ulong(&args, (uint64_t)(p->g.channels / p->per_stat));
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
    ATTO_TRY(begin(dev, a, true, &p));
    p.mean = *a->mean, p.rstd = *a->rstd;
    const bool empty = p.g.values == 0, sums = a->training && a->dx;
    pairs k = slabs_of(&p);
    k.sums = sums ? &p.numbers : NULL;
    k.w = p.w;
    k.values = (float)p.g.values;
    if (a->dw || a->db || sums) {
        if (!empty) ATTO_TRY(launch_sums(&p));
        ATTO_TRY(join(&p, &k));
    }
    return !empty && (a->dx || a->dresidual) ? launch_dx(&p, k.sums) : ATTO_OK;
}

/* ---- group norm ---- */

/* What batch norm would get. */
static struct atto_batch_norm_args as_batch_norm(const struct atto_group_norm_args *a,
                                                 bool backward)
{
    return (struct atto_batch_norm_args){
        .x = a->x,
        .w = a->w,
        .b = backward ? NULL : a->b,
        .y = backward ? NULL : a->y,
        .mean = a->mean,
        .rstd = a->rstd,
        .dy = backward ? a->dy : NULL,
        .dx = backward ? a->dx : NULL,
        .dw = backward ? a->dw : NULL,
        .db = backward ? a->db : NULL,
        .add_dx = a->add_dx,
        .add_dw = a->add_dw,
        .add_db = a->add_db,
        .training = true,
        .eps = a->eps,
    };
}

/* x as one image of channels, which all images' are, or of groups. */
static atto_status begin_image(atto_device *dev, const struct atto_batch_norm_args *a,
                               int64_t channels, int64_t size, int64_t per_stat, int64_t params,
                               plan *p)
{
    memset(p, 0, sizeof *p);
    p->dev = dev;
    p->a = a;
    p->backward = a->dy != NULL;
    p->g = (atto__batch_norm){ 1, channels, size, size };
    p->per_stat = per_stat;
    p->params = params;
    return begin_plan(p);
}

atto_status atto__opencl_group_norm_forward(atto_device *dev, const struct atto_group_norm_args *a,
                                            const atto__layout *layout)
{
    (void)layout;
    const struct atto_batch_norm_args b = as_batch_norm(a, false);
    const atto__group_norm g = atto__group_norm_of(a);
    struct atto_batch_norm_args moments = b;
    plan groups, channels;
    if (g.n == 0 || g.channels == 0) return ATTO_OK;
    if (g.values == 0) return no_values(&b);
    moments.w = moments.b = NULL;
    ATTO_TRY(begin_image(dev, &moments, g.n * a->groups, g.values, 1, g.n * a->groups, &groups));
    groups.mean = a->mean ? *a->mean : half_of(&groups, 0);
    groups.rstd = a->rstd ? *a->rstd : half_of(&groups, 1);
    ATTO_TRY(launch_moments(&groups));
    ATTO_TRY(launch_finish(&groups));
    ATTO_TRY(begin_image(dev, &b, g.n * g.channels, g.size, g.channels / a->groups, g.channels,
                         &channels));
    channels.mean = groups.mean, channels.rstd = groups.rstd;
    return launch_apply(&channels);
}

/* Sums of images' channels to those of groups, as dx needs them. */
static atto_status launch_groups(const plan *p, int64_t values, const atto_tensor *means)
{
    const atto__variant variant = variant_of(p, "atto_group_norm_groups", ATTO_F32);
    atto__args args;
    args.count = 0;
    atto__arg_memory(&args, atto__memory(&p->numbers));
    atto__arg_memory(&args, atto__memory(means));
    arg_optional(&args, p->w);
    atto__arg_ulong(&args, (uint64_t)p->g.channels);
    atto__arg_ulong(&args, (uint64_t)p->per_stat);
    atto__arg_ulong(&args, (uint64_t)p->params);
    atto__arg_float(&args, (float)values);
    return atto__launch(p->dev, &variant, &args, merging_groups(p, p->g.channels / p->per_stat));
}

atto_status atto__opencl_group_norm_backward(atto_device *dev, const struct atto_group_norm_args *a,
                                             const atto__layout *layout)
{
    (void)layout;
    const struct atto_batch_norm_args b = as_batch_norm(a, true);
    const atto__group_norm g = atto__group_norm_of(a);
    plan p;
    atto_tensor means;
    atto_buffer header;
    if (g.channels == 0) return ATTO_OK;
    ATTO_TRY(
        begin_image(dev, &b, g.n * g.channels, g.size, g.channels / a->groups, g.channels, &p));
    const bool empty = g.n == 0 || g.values == 0;
    if (!empty) {
        p.mean = *a->mean, p.rstd = *a->rstd;
        pairs rows = slabs_of(&p);
        rows.sums = &p.numbers;
        ATTO_TRY(launch_sums(&p));
        ATTO_TRY(launch_join(&p, &rows, NULL, NULL));
    }
    const pairs images = { .from = &p.numbers,
                           .channels = g.channels,
                           .count = empty ? 0 : g.n,
                           .apart = g.channels,
                           .second = g.n * g.channels,
                           .values = 1.0f };
    if (a->dw || a->db) ATTO_TRY(join(&p, &images));
    if (!a->dx || empty) return ATTO_OK;
    const int64_t stats = g.n * a->groups, size = 2 * stats;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &size, &header, &means));
    ATTO_TRY(launch_groups(&p, g.values, &means));
    return launch_dx(&p, &means);
}

/* Images in that dtype, row-major. */
atto_status atto__opencl_group_norm_prepare(atto_device *dev, atto_dtype dtype)
{
    return atto__opencl_batch_norm_prepare(dev, dtype);
}

atto_status atto__opencl_batch_norm_prepare(atto_device *dev, atto_dtype dtype)
{
    static const char *const kernels[] = { "atto_batch_norm_moments", "atto_batch_norm_finish",
                                           "atto_batch_norm_apply",   "atto_batch_norm_sums",
                                           "atto_batch_norm_join",    "atto_batch_norm_dx",
                                           "atto_group_norm_groups" };
    for (int32_t i = 0; i < 7; i++) {
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
