/* SPDX-License-Identifier: MIT */
/* Group norm on OpenCL, by the kernels of batch norm: see src/cl/batch_norm.cl.
 *
 *   forward    moments of groups, which are one run each, or of channels where those are
 *              neighbours; their merging; y
 *   backward   sums of images' channels; db and dw over images; those of groups; dx
 */
#include "channels.h"
#include "tensor.h"

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
        .momentum = a->momentum,
        .eps = a->eps,
    };
}

/* The channels of all images as those of one. */
static atto_status begin_channels(atto_device *dev, const struct atto_batch_norm_args *b,
                                  int64_t groups, const atto__layout *layout, atto__bn_plan *p)
{
    const atto__batch_norm g = atto__batch_norm_of(b->x, false);
    const bool last = layout->channels_last || g.size == 1;
    memset(p, 0, sizeof *p);
    p->dev = dev;
    p->a = b;
    p->g = (atto__batch_norm){ last ? g.size : 1, g.n * g.channels, last ? 1 : g.size, g.size };
    p->backward = b->dy != NULL;
    p->last = last;
    p->per_stat = g.channels / groups;
    p->params = g.channels;
    return atto__bn_begin(p);
}

/* Row-major, a group is a run, and so a channel of its own. */
static atto_status begin_groups(const atto__bn_plan *channels, const struct atto_batch_norm_args *b,
                                atto__bn_plan *p)
{
    const int64_t size = channels->per_stat * channels->g.size;
    memset(p, 0, sizeof *p);
    p->dev = channels->dev;
    p->a = b;
    p->g = (atto__batch_norm){ 1, channels->g.channels / channels->per_stat, size, size };
    p->per_stat = 1;
    p->params = p->g.channels;
    return atto__bn_begin(p);
}

/* ---- forward ---- */

/* Running statistics of each image, which are averaged. */
typedef struct running {
    atto_tensor each, averages; /* [2, n, channels], [2, channels] */
    atto_tensor mean, var;      /* [n, channels], in each */
    atto_buffer headers[2];
} running;

static atto_tensor part_of(const atto_tensor *t, int64_t which, atto_shape shape)
{
    const int64_t half = atto_tensor_numel(t) / 2;
    return atto_tensor_of(t->buffer, ATTO_F32, shape, t->offset + which * half);
}

/* Each image begins with what all have together. */
static atto_status repeat(atto_device *dev, const atto_tensor *from, const atto_tensor *to)
{
    atto_tensor repeated = *from;
    repeated.rank = 2;
    repeated.shape[0] = to->shape[0], repeated.shape[1] = from->shape[0];
    repeated.stride[1] = from->stride[0], repeated.stride[0] = 0;
    return atto__copy(dev, to, &repeated);
}

static atto_status begin_running(atto_device *dev, const struct atto_group_norm_args *a, running *r)
{
    const int64_t n = a->x->shape[0], channels = a->x->shape[1];
    const int64_t each = 2 * n * channels, averages = 2 * channels;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &each, &r->headers[0], &r->each));
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &averages, &r->headers[1], &r->averages));
    r->mean = part_of(&r->each, 0, atto_shape2(n, channels));
    r->var = part_of(&r->each, 1, atto_shape2(n, channels));
    ATTO_TRY(repeat(dev, a->running_mean, &r->mean));
    return repeat(dev, a->running_var, &r->var);
}

static atto_status end_running(const atto__bn_plan *p, const struct atto_group_norm_args *a,
                               const running *r)
{
    const int64_t n = a->x->shape[0], channels = a->x->shape[1];
    const atto__bn_pairs images = { .from = &r->each,
                                    .channels = channels,
                                    .count = n,
                                    .apart = channels,
                                    .second = n * channels,
                                    .sums = &r->averages,
                                    .values = (float)n };
    ATTO_TRY(atto__bn_join(p, &images));
    const atto_tensor mean = part_of(&r->averages, 0, atto_shape1(channels));
    const atto_tensor var = part_of(&r->averages, 1, atto_shape1(channels));
    ATTO_TRY(atto__copy(p->dev, a->running_mean, &mean));
    return atto__copy(p->dev, a->running_var, &var);
}

/* mean and rstd of p's groups, found by q. */
static atto_status find_statistics(atto__bn_plan *p, atto__bn_plan *q)
{
    const struct atto_batch_norm_args *a = q->a;
    q->mean = a->mean ? *a->mean : atto__bn_half(q, 0);
    q->rstd = a->rstd ? *a->rstd : atto__bn_half(q, 1);
    ATTO_TRY(atto__bn_moments(q));
    ATTO_TRY(atto__bn_finish(q));
    p->mean = q->mean, p->rstd = q->rstd;
    return ATTO_OK;
}

atto_status atto__opencl_group_norm_forward(atto_device *dev, const struct atto_group_norm_args *a,
                                            const atto__layout *layout)
{
    const struct atto_batch_norm_args b = as_batch_norm(a, false);
    struct atto_batch_norm_args moments = b;
    atto__bn_plan channels, groups;
    running r;
    if (a->x->shape[0] == 0) return ATTO_OK; /* running statistics stay */
    if (atto__group_norm_of(a).values == 0) return atto__bn_no_values(dev, a->mean, a->rstd);
    if (a->running_mean) {
        ATTO_TRY(begin_running(dev, a, &r));
        moments.running_mean = &r.mean, moments.running_var = &r.var;
    }
    moments.w = moments.b = NULL;
    ATTO_TRY(begin_channels(dev, &b, a->groups, layout, &channels));
    if (channels.last)
        ATTO_TRY(begin_channels(dev, &moments, a->groups, layout, &groups));
    else
        ATTO_TRY(begin_groups(&channels, &moments, &groups));
    ATTO_TRY(atto__bn_ensure(&channels, "atto_batch_norm_apply"));
    ATTO_TRY(find_statistics(&channels, &groups));
    if (a->running_mean) ATTO_TRY(end_running(&channels, a, &r));
    return atto__bn_apply(&channels);
}

/* ---- backward ---- */

/* Sums of images' channels to those of groups, as dx needs them. */
static atto_status launch_groups(const atto__bn_plan *p, int64_t values, const atto_tensor *means)
{
    atto__args args;
    args.count = 0;
    atto__arg_memory(&args, atto__memory(&p->numbers));
    atto__arg_memory(&args, atto__memory(means));
    atto__arg_optional(&args, p->w);
    atto__arg_ulong(&args, (uint64_t)p->g.channels);
    atto__arg_ulong(&args, (uint64_t)p->per_stat);
    atto__arg_ulong(&args, (uint64_t)p->params);
    atto__arg_float(&args, (float)values);
    return atto__bn_merge(p, "atto_group_norm_groups", ATTO_F32, &args, p->g.channels / p->per_stat,
                          p->per_stat);
}

/* Sums of slabs to p's numbers. */
static atto_status find_sums(const atto__bn_plan *p)
{
    atto__bn_pairs slabs = atto__bn_slabs(p);
    slabs.sums = &p->numbers;
    ATTO_TRY(atto__bn_sums(p));
    return atto__bn_join(p, &slabs);
}

static atto_status write_dx(const atto__bn_plan *p, const struct atto_group_norm_args *a)
{
    const int64_t size = 2 * a->x->shape[0] * a->groups;
    atto_tensor means;
    atto_buffer header;
    ATTO_TRY(atto__scratch_tensor(p->dev, ATTO_F32, 1, &size, &header, &means));
    ATTO_TRY(launch_groups(p, atto__group_norm_of(a).values, &means));
    return atto__bn_dx(p, &means);
}

atto_status atto__opencl_group_norm_backward(atto_device *dev, const struct atto_group_norm_args *a,
                                             const atto__layout *layout)
{
    const struct atto_batch_norm_args b = as_batch_norm(a, true);
    const int64_t n = a->x->shape[0], channels = a->x->shape[1];
    const bool empty = n == 0 || atto__group_norm_of(a).values == 0;
    atto__bn_plan p;
    ATTO_TRY(begin_channels(dev, &b, a->groups, layout, &p));
    p.mean = *a->mean, p.rstd = *a->rstd;
    if (a->dx && !empty) ATTO_TRY(atto__bn_ensure(&p, "atto_batch_norm_dx"));
    if (!empty) ATTO_TRY(find_sums(&p));
    const atto__bn_pairs images = { .from = &p.numbers,
                                    .channels = channels,
                                    .count = empty ? 0 : n,
                                    .apart = channels,
                                    .second = n * channels,
                                    .dw = a->dw,
                                    .db = a->db,
                                    .values = 1.0f };
    if (a->dw || a->db) ATTO_TRY(atto__bn_join(&p, &images));
    return a->dx && !empty ? write_dx(&p, a) : ATTO_OK;
}

atto_status atto__opencl_group_norm_prepare(atto_device *dev, atto_dtype dtype)
{
    ATTO_TRY(atto__opencl_batch_norm_prepare(dev, dtype));
    return atto__bn_prepare(dev, "atto_group_norm_groups", dtype);
}
