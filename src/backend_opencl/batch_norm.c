/* SPDX-License-Identifier: MIT */
/* Batch norm on OpenCL: see src/cl/batch_norm.cl.
 *
 *   forward    moments of slabs, their merging, y; outside training only y (and what is to be
 *              saved)
 *   backward   sums of slabs, their sum, dx and dresidual
 */
#include "channels.h"
#include "tensor.h"
#include "walk.h"

/* Units that a lane loads before it uses them; as in the kernels. */
#define UNITS 4

/* Of a slab that a lane has at most, which bounds what moments lose. */
#define LANE_UNITS 64

/* Channels (units of them) that work-items of a work-group have side by side: 512 bytes. */
#define MOST_COLUMNS 32

/* Work-groups that are enough for any device, fewer where they fold numbers, and where those are
 * many. */
#define WRITING      8192
#define FOLDING      4096
#define FOLDING_LAST 1024

/* Channels and parts of one that few work-items merge; see merging_lanes. */
#define FEW_CHANNELS 4096
#define FEW_PARTS    8

/* Lanes of a row-major channel, at least. */
#define LEAST_LANES 8

static bool is_aligned(const atto_tensor *t, int64_t vector)
{
    return !t || t->offset % vector == 0;
}

static void choose_units(atto__bn_plan *p)
{
    const struct atto_batch_norm_args *a = p->a;
    const int64_t vector = atto__vector_elements(a->x->dtype);
    p->vectors = (p->last ? p->params : p->g.size) % vector == 0;
    const atto_tensor *forward[] = { a->x, a->residual, a->y, NULL, NULL };
    const atto_tensor *backward[] = { a->x, a->residual, a->dy, a->dx, a->dresidual };
    for (int32_t i = 0; i < 5; i++)
        p->vectors = p->vectors && is_aligned(p->backward ? backward[i] : forward[i], vector);
    p->run = p->vectors ? vector : 1;
    p->kept = p->last ? p->g.channels / p->run : p->g.channels;
    p->per_run = (p->last ? p->params : p->g.size) / p->run;
    p->folded = p->last ? p->g.n : p->g.n * p->per_run;
}

/* So many slabs or a little fewer, none of less than two steps; returns how many. */
static int64_t cut(const atto__bn_plan *p, int64_t step, int64_t slabs, int64_t *per_slab)
{
    const int64_t most = atto__group_count(p->folded, 2 * step);
    const int64_t each = atto__group_count(p->folded, slabs < most ? slabs : most);
    *per_slab = atto__group_count(each, step) * step;
    return atto__group_count(p->folded, *per_slab);
}

/* Work-groups of the kernels that fold numbers. Sizes are elements, units of channels, units that
 * are folded, and 1 << (channels are neighbours + 2 in backward). */
static int64_t folding_groups(const atto__bn_plan *p)
{
    static const int32_t others[] = { 512, 1024, 2048, 4096, 8192 };
    const int32_t preset = p->last ? FOLDING_LAST : FOLDING;
    const atto__choice choice = { ATTO_CHOICE_CHANNELS,
                                  p->a->x->dtype,
                                  { atto_tensor_numel(p->a->x), p->kept, p->folded,
                                    (int64_t)1 << (p->last + 2 * p->backward) } };
    atto__ways ways;
    if (!atto__choice_asks(p->dev, &choice)) return preset;
    ways.count = 0;
    atto__ways_add(&ways, &(atto__way){ { preset }, preset });
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        atto__ways_add(&ways, &(atto__way){ { others[i] }, others[i] });
    return atto__choose(p->dev, &choice, &ways).number[0];
}

/* Slabs depend on the shape, and on the work-group's size. */
static void choose_slabs(atto__bn_plan *p)
{
    const int32_t group = (int32_t)atto__opencl_of(p->dev)->group_size;
    int64_t lanes = group;
    if (p->last)
        while (group / lanes < MOST_COLUMNS && lanes > 1 && group / lanes < p->kept) lanes /= 2;
    else
        while (lanes > LEAST_LANES && lanes > p->folded / (2 * UNITS)) lanes /= 2;
    p->columns = (int32_t)(group / lanes);
    p->strips = atto__group_count(p->kept, p->columns);
    const int64_t step = lanes * UNITS;
    const int64_t least = atto__group_count(p->folded, lanes * LANE_UNITS);
    const int64_t folding = atto__group_count(folding_groups(p), p->strips);
    p->slabs = cut(p, step, folding > least ? folding : least, &p->per_slab);
    p->written = cut(p, step, atto__group_count(WRITING, p->strips), &p->per_written);
    p->wide = p->dev->options.set.index_bits == 64 || p->folded >= INT32_MAX / 2 ||
              p->g.channels >= INT32_MAX / 2 || atto_tensor_numel(p->a->x) >= INT32_MAX;
}

static atto_status take(atto__bn_plan *p, int32_t header, int64_t count, atto_tensor *out)
{
    const int64_t size = count > 0 ? count : 1; /* there is no block of 0 bytes */
    return atto__scratch_tensor(p->dev, ATTO_F32, 1, &size, &p->headers[header], out);
}

/* w or b as f32. */
static atto_status widen(atto__bn_plan *p, int32_t which, const atto_tensor *t,
                         const atto_tensor **out)
{
    *out = t;
    if (!t || t->dtype == ATTO_F32) return ATTO_OK;
    ATTO_TRY(take(p, which, p->params, &p->converted[which]));
    ATTO_TRY(atto__copy(p->dev, &p->converted[which], t));
    *out = &p->converted[which];
    return ATTO_OK;
}

atto_status atto__bn_begin(atto__bn_plan *p)
{
    choose_units(p);
    choose_slabs(p);
    ATTO_TRY(widen(p, 0, p->a->w, &p->w));
    ATTO_TRY(widen(p, 1, p->a->b, &p->b));
    ATTO_TRY(take(p, 2, p->slabs * 2 * p->g.channels, &p->partial));
    return take(p, 3, 2 * p->g.channels, &p->numbers);
}

static atto_status begin(atto_device *dev, const struct atto_batch_norm_args *a, bool backward,
                         const atto__layout *layout, atto__bn_plan *p)
{
    memset(p, 0, sizeof *p);
    p->dev = dev;
    p->a = a;
    p->backward = backward;
    p->g = atto__batch_norm_of(a->x, layout->channels_last);
    p->last = p->g.size == 1;
    p->per_stat = 1;
    p->params = p->g.channels;
    return atto__bn_begin(p);
}

/* ---- launches ---- */

/* Of a kernel that walks slabs. */
static atto__variant variant_of(const atto__bn_plan *p, const char *kernel)
{
    const atto__batch_norm_knobs knobs = {
        .kernel = kernel,
        .act = atto_activation_name(p->a->act.kind),
        .dtype = p->a->x->dtype,
        .last = p->last,
        .vectors = p->vectors,
        .wide = p->wide,
    };
    atto__variant variant;
    atto__batch_norm_variant(&knobs, &variant);
    return variant;
}

/* PLACE_PARAMETERS */
static void arg_place(atto__args *args, const atto__bn_plan *p, int64_t per_slab)
{
    const int64_t numbers[] = {
        p->g.channels, p->kept, p->per_run, p->folded, per_slab, p->strips
    };
    for (int32_t i = 0; i < 6; i++) atto__arg_index(args, p->wide, numbers[i]);
    atto__arg_uint(args, (uint32_t)p->columns);
    atto__arg_divider(args, p->wide, p->per_run);
}

/* CHANNEL_PARAMETERS */
static void arg_channels(atto__args *args, const atto__bn_plan *p)
{
    atto__arg_tensor(args, &p->mean);
    atto__arg_tensor(args, &p->rstd);
    atto__arg_optional(args, p->w);
    atto__arg_optional(args, p->b);
    atto__arg_ulong(args, (uint64_t)p->per_stat);
    atto__arg_ulong(args, (uint64_t)p->params);
}

static atto_status launch_slabs(const atto__bn_plan *p, const char *kernel, const atto__args *args,
                                int64_t slabs)
{
    const atto__variant variant = variant_of(p, kernel);
    return atto__launch(p->dev, &variant, args, p->strips * slabs);
}

/* Work-items that merge so many parts of a channel: a work-group where channels are few. 0 = all of
 * it. */
static int32_t merging_lanes(int64_t parts, int64_t channels)
{
    if (parts <= FEW_PARTS) return FEW_PARTS;
    return channels < FEW_CHANNELS ? 0 : 32;
}

atto_status atto__bn_merge(const atto__bn_plan *p, const char *kernel, atto_dtype out,
                           const atto__args *args, int64_t channels, int64_t parts)
{
    const int64_t group = atto__opencl_of(p->dev)->group_size;
    const atto__batch_norm_knobs knobs = { .kernel = kernel,
                                           .out = out,
                                           .lanes = merging_lanes(parts, channels) };
    atto__variant variant;
    atto__batch_norm_variant(&knobs, &variant);
    const int64_t lanes = knobs.lanes > 0 && knobs.lanes < group ? knobs.lanes : group;
    return atto__launch(p->dev, &variant, args, atto__group_count(channels, group / lanes));
}

/* ---- forward ---- */

atto_status atto__bn_moments(const atto__bn_plan *p)
{
    atto__args args;
    args.count = 0;
    atto__arg_tensor(&args, p->a->x);
    atto__arg_memory(&args, atto__memory(&p->partial));
    arg_place(&args, p, p->per_slab);
    return launch_slabs(p, "atto_batch_norm_moments", &args, p->slabs);
}

atto_status atto__bn_finish(const atto__bn_plan *p)
{
    const struct atto_batch_norm_args *a = p->a;
    atto__args args;
    args.count = 0;
    atto__arg_memory(&args, atto__memory(&p->partial));
    atto__arg_tensor(&args, &p->mean);
    atto__arg_tensor(&args, &p->rstd);
    atto__arg_optional(&args, a->running_mean);
    atto__arg_optional(&args, a->running_var);
    atto__arg_optional(&args, a->batches);
    atto__arg_ulong(&args, (uint64_t)p->g.channels);
    atto__arg_uint(&args, (uint32_t)p->per_stat);
    atto__arg_ulong(&args, (uint64_t)(a->training ? p->slabs : 0));
    atto__arg_ulong(&args, (uint64_t)p->folded);
    atto__arg_ulong(&args, (uint64_t)p->per_slab);
    atto__arg_uint(&args, p->last ? 1 : (uint32_t)p->run);
    atto__arg_float(&args, a->momentum);
    atto__arg_uint(&args, a->cumulative && a->batches);
    atto__arg_float(&args, a->eps);
    return atto__bn_merge(p, "atto_batch_norm_finish", ATTO_F32, &args, p->g.channels / p->per_stat,
                          p->slabs * p->per_stat);
}

atto_status atto__bn_apply(const atto__bn_plan *p)
{
    const struct atto_batch_norm_args *a = p->a;
    atto__args args;
    args.count = 0;
    atto__arg_tensor(&args, a->x);
    atto__arg_optional(&args, a->residual);
    atto__arg_tensor(&args, a->y);
    atto__arg_optional(&args, a->training ? a->batches : NULL);
    arg_channels(&args, p);
    arg_place(&args, p, p->per_written);
    atto__arg_float(&args, a->act.a);
    atto__arg_float(&args, a->act.b);
    return launch_slabs(p, "atto_batch_norm_apply", &args, p->written);
}

/* Half of the scratch for two arrays. */
atto_tensor atto__bn_half(const atto__bn_plan *p, int64_t which)
{
    atto_tensor half = p->numbers;
    half.shape[0] = p->g.channels;
    half.offset += which * p->g.channels;
    return half;
}

atto_status atto__bn_no_values(atto_device *dev, const atto_tensor *mean, const atto_tensor *rstd)
{
    if (mean) ATTO_TRY(atto__fill(dev, mean, (double)NAN));
    return rstd ? atto__fill(dev, rstd, (double)NAN) : ATTO_OK;
}

atto_status atto__bn_ensure(const atto__bn_plan *p, const char *kernel)
{
    const atto__variant variant = variant_of(p, kernel);
    return atto__prepare(p->dev, &variant);
}

atto_status atto__opencl_batch_norm_forward(atto_device *dev, const struct atto_batch_norm_args *a,
                                            const atto__layout *layout)
{
    atto__bn_plan p;
    const atto__batch_norm g = atto__batch_norm_of(a->x, layout->channels_last);
    if (g.channels == 0) return ATTO_OK;
    if (g.values == 0 && a->training) return atto__bn_no_values(dev, a->mean, a->rstd);
    ATTO_TRY(begin(dev, a, false, layout, &p));
    p.mean = a->mean ? *a->mean : atto__bn_half(&p, 0);
    p.rstd = a->rstd ? *a->rstd : atto__bn_half(&p, 1);
    if (a->training && g.values > 0) ATTO_TRY(atto__bn_ensure(&p, "atto_batch_norm_apply"));
    if (a->training) ATTO_TRY(atto__bn_moments(&p));
    ATTO_TRY(atto__bn_finish(&p));
    return g.values > 0 ? atto__bn_apply(&p) : ATTO_OK;
}

/* ---- backward ---- */

/* GRADIENT_PARAMETERS; b and residual matter to an activation alone. */
static void arg_gradient(atto__args *args, const atto__bn_plan *p, int64_t per_slab)
{
    const struct atto_batch_norm_args *a = p->a;
    args->count = 0;
    atto__arg_tensor(args, a->x);
    atto__arg_tensor(args, a->dy);
    atto__arg_optional(args, a->act.kind == ATTO_ACT_IDENTITY ? NULL : a->residual);
    arg_channels(args, p);
    arg_place(args, p, per_slab);
    atto__arg_float(args, a->act.a);
    atto__arg_float(args, a->act.b);
}

atto_status atto__bn_sums(const atto__bn_plan *p)
{
    atto__args args;
    arg_gradient(&args, p, p->per_slab);
    atto__arg_memory(&args, atto__memory(&p->partial));
    return launch_slabs(p, "atto_batch_norm_sums", &args, p->slabs);
}

/* dw and db are of one dtype. */
static atto_status launch_join(const atto__bn_plan *p, const atto__bn_pairs *k)
{
    const struct atto_batch_norm_args *a = p->a;
    const atto_dtype out = k->dw ? k->dw->dtype : k->db ? k->db->dtype : ATTO_F32;
    atto__args args;
    args.count = 0;
    atto__arg_memory(&args, atto__memory(k->from));
    atto__arg_memory(&args, k->sums ? atto__memory(k->sums) : NULL);
    atto__arg_optional(&args, k->dw);
    atto__arg_optional(&args, k->db);
    atto__arg_optional(&args, k->w);
    atto__arg_ulong(&args, (uint64_t)k->channels);
    atto__arg_ulong(&args, (uint64_t)k->count);
    atto__arg_ulong(&args, (uint64_t)k->apart);
    atto__arg_ulong(&args, (uint64_t)k->second);
    atto__arg_float(&args, k->values);
    atto__arg_uint(&args, a->add_dw);
    atto__arg_uint(&args, a->add_db);
    return atto__bn_merge(p, "atto_batch_norm_join", out, &args, k->channels, k->count);
}

/* Of two dtypes one at a time. */
atto_status atto__bn_join(const atto__bn_plan *p, const atto__bn_pairs *k)
{
    if (!k->dw || !k->db || k->dw->dtype == k->db->dtype) return launch_join(p, k);
    atto__bn_pairs first = *k, rest = *k;
    first.db = NULL;
    rest.dw = rest.sums = NULL;
    ATTO_TRY(launch_join(p, &first));
    return launch_join(p, &rest);
}

atto__bn_pairs atto__bn_slabs(const atto__bn_plan *p)
{
    return (atto__bn_pairs){ .from = &p->partial,
                             .channels = p->g.channels,
                             .count = p->g.values > 0 ? p->slabs : 0,
                             .apart = 2 * p->g.channels,
                             .second = p->g.channels,
                             .values = 1.0f };
}

atto_status atto__bn_dx(const atto__bn_plan *p, const atto_tensor *sums)
{
    const struct atto_batch_norm_args *a = p->a;
    atto__args args;
    arg_gradient(&args, p, p->per_written);
    atto__arg_memory(&args, sums ? atto__memory(sums) : NULL);
    atto__arg_ulong(&args, (uint64_t)(p->g.channels / p->per_stat));
    atto__arg_optional(&args, a->dx);
    atto__arg_optional(&args, a->dresidual);
    atto__arg_uint(&args, a->add_dx);
    atto__arg_uint(&args, a->add_dresidual);
    return launch_slabs(p, "atto_batch_norm_dx", &args, p->written);
}

atto_status atto__opencl_batch_norm_backward(atto_device *dev, const struct atto_batch_norm_args *a,
                                             const atto__layout *layout)
{
    atto__bn_plan p;
    if (a->x->shape[1] == 0) return ATTO_OK;
    ATTO_TRY(begin(dev, a, true, layout, &p));
    p.mean = *a->mean, p.rstd = *a->rstd;
    const bool empty = p.g.values == 0, sums = a->training && a->dx;
    const bool wants_dx = !empty && (a->dx || a->dresidual);
    if (wants_dx) ATTO_TRY(atto__bn_ensure(&p, "atto_batch_norm_dx"));
    atto__bn_pairs k = atto__bn_slabs(&p);
    k.sums = sums ? &p.numbers : NULL;
    k.w = p.w;
    k.dw = a->dw, k.db = a->db;
    k.values = (float)p.g.values;
    if (a->dw || a->db || sums) {
        if (!empty) ATTO_TRY(atto__bn_sums(&p));
        ATTO_TRY(atto__bn_join(&p, &k));
    }
    return wants_dx ? atto__bn_dx(&p, k.sums) : ATTO_OK;
}

atto_status atto__bn_prepare(atto_device *dev, const char *kernel, atto_dtype dtype)
{
    const atto__batch_norm_knobs knobs = {
        .kernel = kernel,
        .act = "identity",
        .dtype = dtype,
        .out = ATTO_F32,
        .vectors = true,
    };
    atto__variant variant;
    atto__batch_norm_variant(&knobs, &variant);
    return atto__prepare(dev, &variant);
}

/* Row-major images in that dtype. */
atto_status atto__opencl_batch_norm_prepare(atto_device *dev, atto_dtype dtype)
{
    static const char *const kernels[] = { "atto_batch_norm_moments", "atto_batch_norm_finish",
                                           "atto_batch_norm_apply",   "atto_batch_norm_sums",
                                           "atto_batch_norm_join",    "atto_batch_norm_dx" };
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
        ATTO_TRY(atto__bn_prepare(dev, kernels[i], dtype));
    return ATTO_OK;
}
