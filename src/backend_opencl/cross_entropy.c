/* SPDX-License-Identifier: MIT */
/* Cross-entropy on OpenCL: see src/cl/cross_entropy.cl.
 *
 *   forward    a loss for each position, then their sum in rounds of work-groups
 *   backward   the sum of weights, if the mean's divisor was not saved; then the gradients
 */
#include "cross_entropy.h"
#include "launch.h"
#include "tensor.h"

/* Up to so many classes one work-item has a position, 32 work-items, 128: the fewer there are, the
 * more positions a work-group has under way. */
#define FEW_CLASSES    16
#define MEDIUM_CLASSES 1024
#define MANY_CLASSES   4096

/* Numbers that a work-item of atto_cross_entropy_sum adds up (TERMS in the kernels). */
#define SUM_TERMS 64

/* A float vector in scratch. */
typedef struct piece {
    atto_tensor view;
    atto_buffer header;
} piece;

typedef struct call {
    atto_device *dev;
    const struct atto_cross_entropy_args *a;
    atto__cross_entropy c;
    const atto_tensor *weight; /* in f32; NULL = none */
    piece converted;
    atto__lanes lanes;
} call;

static atto_status take_piece(atto_device *dev, int64_t n, piece *out)
{
    const int64_t size = n > 0 ? n : 1; /* there is no block of 0 bytes */
    return atto__scratch_tensor(dev, ATTO_F32, 1, &size, &out->header, &out->view);
}

/* Work-items of a position without a measurement. */
static atto__lanes lanes_of(const atto__cross_entropy *c)
{
    if (c->step != 1 || c->classes <= FEW_CLASSES) return ATTO_LANES_ONE;
    if (c->classes <= MEDIUM_CLASSES) return ATTO_LANES_WARP;
    return c->classes <= MANY_CLASSES ? ATTO_LANES_PART : ATTO_LANES_GROUP;
}

/* The number of a way is one of atto__lanes; where a position has one work-item, there is no other
 * way. */
static atto__lanes choose_lanes(atto_device *dev, const struct atto_cross_entropy_args *a,
                                const atto__cross_entropy *c, atto__choice_name name)
{
    const atto__lanes preset = lanes_of(c);
    const atto__choice choice = { name,
                                  a->x->dtype,
                                  { c->classes, atto__many(c->positions), 1 + c->smoothed } };
    atto__ways ways;
    if (preset == ATTO_LANES_ONE || !atto__choice_asks(dev, &choice)) return preset;
    ways.count = 0;
    atto__ways_add(&ways, &(atto__way){ { (int32_t)preset }, (int32_t)preset });
    for (int32_t lanes = ATTO_LANES_WARP; lanes <= ATTO_LANES_GROUP; lanes++)
        atto__ways_add(&ways, &(atto__way){ { lanes }, lanes });
    return (atto__lanes)atto__choose(dev, &choice, &ways).number[0];
}

/* Weights are read as f32. */
static atto_status begin_call(atto_device *dev, const struct atto_cross_entropy_args *a,
                              atto__choice_name name, call *out)
{
    out->dev = dev;
    out->a = a;
    out->c = atto__cross_entropy_of(a);
    out->lanes = choose_lanes(dev, a, &out->c, name);
    out->weight = a->weight;
    if (!a->weight || a->weight->dtype == ATTO_F32) return ATTO_OK;
    ATTO_TRY(take_piece(dev, out->c.classes, &out->converted));
    out->weight = &out->converted.view;
    return atto__copy(dev, &out->converted.view, a->weight);
}

/* ---- arguments ---- */

static bool is_wide(const call *k)
{
    return k->dev->options.set.index_bits == 64 || k->c.classes * k->c.step >= INT32_MAX / 2;
}

/* Positions of a work-group. */
static int64_t positions_per_group(const call *k)
{
    const int64_t group = atto__opencl_of(k->dev)->group_size;
    switch (k->lanes) {
    case ATTO_LANES_ONE:
        return group;
    case ATTO_LANES_WARP:
        return group > 32 ? group / 32 : 1;
    case ATTO_LANES_PART:
        return group > 128 ? group / 128 : 1;
    default:
        return 1;
    }
}

/* POSITION_PARAMETERS */
static void arg_positions(atto__args *args, const call *k, bool wide)
{
    atto__arg_ulong(args, (uint64_t)k->c.positions);
    atto__arg_index(args, wide, k->c.classes);
    atto__arg_index(args, wide, k->c.step);
    atto__arg_float(args, k->c.keep);
    atto__arg_float(args, k->c.spread);
    atto__arg_uint(args, k->a->has_ignore_index);
    atto__arg_ulong(args, (uint64_t)k->a->ignore_index);
}

/* Logits and their gradients are 16-byte vectors, and worth a kernel of their own. */
static bool is_whole(const call *k)
{
    const int32_t vector = atto__vector_elements(k->a->x->dtype);
    const bool aligned = k->c.classes % vector == 0 && k->a->x->offset % vector == 0 &&
                         (!k->a->dx || k->a->dx->offset % vector == 0);
    return aligned && (k->lanes == ATTO_LANES_PART || k->lanes == ATTO_LANES_GROUP);
}

static atto__variant variant_of(const call *k, const char *kernel)
{
    const atto__cross_entropy_knobs knobs = {
        .kernel = kernel,
        .dtype = k->a->x->dtype,
        .target = k->a->target->dtype,
        .lanes = k->lanes,
        .spread = k->c.smoothed,
        .whole = is_whole(k),
        .wide = is_wide(k),
    };
    atto__variant variant;
    atto__cross_entropy_variant(&knobs, &variant);
    return variant;
}

/* ---- sums over positions ---- */

static atto__variant sum_variant(void)
{
    const atto__cross_entropy_knobs knobs = { .kernel = "atto_cross_entropy_sum",
                                              .dtype = ATTO_F32,
                                              .target = ATTO_I64,
                                              .lanes = ATTO_LANES_GROUP };
    atto__variant variant;
    atto__cross_entropy_variant(&knobs, &variant);
    return variant;
}

/* Two arrays of one length, or one of them, and where their sums go; NULL = none. */
typedef struct sums {
    const atto_tensor *each, *share;
    const atto_tensor *loss, *total;
} sums;

static atto_status launch_sum(atto_device *dev, const sums *s, int64_t n, bool mean, int64_t groups)
{
    const atto__variant variant = sum_variant();
    atto__args args;
    args.count = 0;
    atto__arg_optional(&args, s->each);
    atto__arg_optional(&args, s->share);
    atto__arg_optional(&args, s->loss);
    atto__arg_optional(&args, s->total);
    atto__arg_ulong(&args, (uint64_t)n);
    atto__arg_uint(&args, mean);
    return atto__launch(dev, &variant, &args, groups);
}

/* In rounds, each a work-group for every so many numbers, until one work-group is enough. */
static atto_status sum_positions(atto_device *dev, const sums *s, int64_t n, bool mean)
{
    const int64_t per_group = SUM_TERMS * (int64_t)atto__opencl_of(dev)->group_size;
    const int64_t groups = atto__group_count(n, per_group);
    if (groups == 1) return launch_sum(dev, s, n, mean, 1);
    piece each, share;
    sums round = *s, rest = *s;
    if (s->each) {
        ATTO_TRY(take_piece(dev, groups, &each));
        round.loss = rest.each = &each.view;
    }
    if (s->share) {
        ATTO_TRY(take_piece(dev, groups, &share));
        round.total = rest.share = &share.view;
    }
    if (!s->each) round.loss = NULL;
    if (!s->share) round.total = NULL;
    ATTO_TRY(launch_sum(dev, &round, n, false, groups));
    return sum_positions(dev, &rest, groups, mean);
}

/* ---- forward ---- */

static int64_t groups_of(const call *k)
{
    return atto__group_count(k->c.positions, positions_per_group(k));
}

static atto_status launch_forward(const call *k, const atto_tensor *each, const atto_tensor *share)
{
    const atto__variant variant = variant_of(k, "atto_cross_entropy_forward");
    atto__args args;
    args.count = 0;
    atto__arg_tensor(&args, k->a->x);
    atto__arg_tensor(&args, k->a->target);
    atto__arg_optional(&args, k->weight);
    atto__arg_tensor(&args, each);
    atto__arg_optional(&args, share);
    atto__arg_optional(&args, k->a->lse);
    atto__arg_error_word(&args, k->dev);
    arg_positions(&args, k, is_wide(k));
    atto__arg_uint(&args, k->a->reduction != ATTO_REDUCTION_NONE);
    return atto__launch(k->dev, &variant, &args, groups_of(k));
}

atto_status atto__opencl_cross_entropy_forward(atto_device *dev,
                                               const struct atto_cross_entropy_args *a,
                                               const atto__layout *layout)
{
    (void)layout;
    const bool none = a->reduction == ATTO_REDUCTION_NONE;
    const bool mean = a->reduction == ATTO_REDUCTION_MEAN, weighs = mean || a->total;
    call k;
    piece each, share;
    ATTO_TRY(begin_call(dev, a, ATTO_CHOICE_CROSS_ENTROPY_FORWARD, &k));
    const int64_t groups = k.c.positions > 0 ? groups_of(&k) : 0;
    if (!none) ATTO_TRY(take_piece(dev, groups, &each));
    if (weighs) ATTO_TRY(take_piece(dev, groups, &share));
    if (groups > 0)
        ATTO_TRY(launch_forward(&k, none ? a->loss : &each.view, weighs ? &share.view : NULL));
    if (none && !a->total) return ATTO_OK;
    const sums s = { none ? NULL : &each.view, weighs ? &share.view : NULL, none ? NULL : a->loss,
                     a->total };
    return sum_positions(dev, &s, groups, mean);
}

/* ---- backward ---- */

/* The mean's divisor, which forward did not save, into *out. */
static atto_status sum_shares(const call *k, const atto_tensor *out)
{
    const atto__variant variant = variant_of(k, "atto_cross_entropy_share");
    piece share;
    ATTO_TRY(take_piece(k->dev, k->c.positions, &share));
    atto__args args;
    args.count = 0;
    atto__arg_tensor(&args, k->a->target);
    atto__arg_optional(&args, k->weight);
    atto__arg_tensor(&args, &share.view);
    arg_positions(&args, k, is_wide(k));
    const int64_t group = atto__opencl_of(k->dev)->group_size;
    ATTO_TRY(atto__launch(k->dev, &variant, &args, atto__group_count(k->c.positions, group)));
    const sums s = { NULL, &share.view, NULL, out };
    return sum_positions(k->dev, &s, k->c.positions, false);
}

/* total NULL: the divisor is the number. */
static atto_status launch_backward(const call *k, const atto_tensor *total, float divisor)
{
    const struct atto_cross_entropy_args *a = k->a;
    const atto__variant variant = variant_of(k, "atto_cross_entropy_backward");
    atto__args args;
    args.count = 0;
    atto__arg_tensor(&args, a->x);
    atto__arg_tensor(&args, a->target);
    atto__arg_optional(&args, k->weight);
    atto__arg_tensor(&args, a->dloss);
    atto__arg_optional(&args, a->lse);
    atto__arg_optional(&args, total);
    atto__arg_optional(&args, a->dx);
    atto__arg_optional(&args, a->dtarget);
    atto__arg_error_word(&args, k->dev);
    arg_positions(&args, k, is_wide(k));
    atto__arg_uint(&args, a->reduction == ATTO_REDUCTION_NONE);
    atto__arg_float(&args, divisor);
    atto__arg_uint(&args, a->add_dx);
    atto__arg_uint(&args, a->add_dtarget);
    return atto__launch(k->dev, &variant, &args, groups_of(k));
}

atto_status atto__opencl_cross_entropy_backward(atto_device *dev,
                                                const struct atto_cross_entropy_args *a,
                                                const atto__layout *layout)
{
    (void)layout;
    call k;
    piece total;
    ATTO_TRY(begin_call(dev, a, ATTO_CHOICE_CROSS_ENTROPY_BACKWARD, &k));
    if (a->reduction != ATTO_REDUCTION_MEAN) return launch_backward(&k, NULL, 1.0f);
    if (a->total) return launch_backward(&k, a->total, 1.0f);
    if (k.c.soft) return launch_backward(&k, NULL, (float)k.c.positions);
    ATTO_TRY(take_piece(dev, 1, &total));
    ATTO_TRY(sum_shares(&k, &total.view));
    return launch_backward(&k, &total.view, 1.0f);
}

atto_status atto__opencl_cross_entropy_prepare(atto_device *dev, atto_dtype dtype)
{
    atto__cross_entropy_knobs knobs = { .kernel = "atto_cross_entropy_forward",
                                        .dtype = dtype,
                                        .target = ATTO_I64,
                                        .lanes = ATTO_LANES_GROUP };
    atto__variant variant;
    atto__cross_entropy_variant(&knobs, &variant);
    ATTO_TRY(atto__prepare(dev, &variant));
    knobs.kernel = "atto_cross_entropy_backward";
    atto__cross_entropy_variant(&knobs, &variant);
    ATTO_TRY(atto__prepare(dev, &variant));
    variant = sum_variant();
    return atto__prepare(dev, &variant);
}
