/* SPDX-License-Identifier: MIT */
/* Pointwise losses on OpenCL: see src/cl/loss.cl.
 *
 *   forward    one launch without a reduction, or where a work-group is enough; else partial sums
 *              of stretches, then their sum
 *   backward   one launch for both gradients; one each, and a fold, for those that sum up
 *              repetitions
 */
#include "fold.h"

/* Partial sums, at most: a work-group adds them up in no time. By the shape alone, like the
 * stretches. */
#define PARTIALS 4096

#define LOSS_TENSORS 7

/* What a launch walks: the inputs, then its outputs; and what the loss knows of it. */
typedef struct call {
    atto_device *dev;
    const struct atto_loss_args *a;
    const atto_tensor *tensors[LOSS_TENSORS];
    int32_t count;
    atto__layout layout;
    atto__loss_knobs knobs;
} call;

static void add_tensor(call *k, const atto_tensor *t)
{
    if (t) k->tensors[k->count++] = t;
}

static call call_of(atto_device *dev, const struct atto_loss_args *a, const atto__layout *layout,
                    const char *kernel)
{
    const atto_tensor *weight = a->weight ? a->weight : a->pos_weight;
    call k = { .dev = dev, .a = a, .layout = *layout };
    k.knobs = (atto__loss_knobs){
        .kernel = kernel,
        .loss = atto_loss_name(a->kind),
        .dtype = a->x->dtype,
        .weight = weight ? weight->dtype : ATTO_F32,
        .weights = (a->weight ? 1 : 0) | (a->pos_weight ? 2 : 0),
        .wide = layout->wide,
    };
    add_tensor(&k, a->x);
    add_tensor(&k, a->target);
    add_tensor(&k, a->weight);
    add_tensor(&k, a->pos_weight);
    return k;
}

/* ---- walks ---- */

/* One element for a whole row: no vectors are loaded from it. */
static bool is_splat(const atto_tensor *t)
{
    return t->rank > 0 && t->stride[t->rank - 1] == 0;
}

/* The scalar loss, which is not walked, does not count. */
static bool is_dense(const call *k)
{
    bool dense = k->layout.rank <= 1;
    for (int32_t i = 0; i < k->count && k->layout.rank == 1; i++)
        dense = dense && k->tensors[i]->stride[0] == 1;
    return dense;
}

/* Decides how the call's tensors are walked. */
static atto__walk walk_of(call *k)
{
    const atto_tensor *others[LOSS_TENSORS];
    int32_t count = 0;
    for (int32_t i = 0; i < k->count; i++)
        if (!is_splat(k->tensors[i])) others[count++] = k->tensors[i];
    k->layout.dense = is_dense(k);
    const atto_dtype dtype = k->knobs.dtype;
    /* Nothing but splats: no row says whether it is made of whole vectors. */
    k->knobs.form = count > 0
                        ? atto__walk_form(others, count, &k->layout, atto__vector_elements(dtype))
                        : ATTO_FORM_ELEMENTS;
    return atto__walk_of(&k->layout, k->knobs.form, atto__run_elements(dtype, k->knobs.form));
}

/* Runs of the walk; a dense one may have a tail behind them. */
static int64_t runs_of(const atto__walk *walk)
{
    return walk->form == ATTO_FORM_DENSE ? walk->layout->numel / walk->run : walk->runs;
}

/* Runs of a work-item; sums of other numbers of them have other bits. Sizes are runs, and
 * 1 << (the kernel + 3 * which weights there are). */
static void choose_items(call *k, const atto__walk *walk)
{
    static const int32_t numbers[] = { 1, 2, 4 };
    const bool sums = strcmp(k->knobs.kernel, "atto_loss_sum") == 0;
    const bool backward = strcmp(k->knobs.kernel, "atto_loss_backward") == 0;
    const int32_t kind = sums ? 1 : backward ? 2 : 0, preset = atto__loss_items(&k->knobs);
    const atto__choice choice = { ATTO_CHOICE_LOSS,
                                  k->knobs.dtype,
                                  { runs_of(walk), (int64_t)1 << (kind + 3 * k->knobs.weights) } };
    atto__ways ways;
    if (!atto__choice_asks(k->dev, &choice)) return;
    ways.count = 0;
    atto__ways_add(&ways, &(atto__way){ { preset }, sums ? preset : 0 });
    for (int32_t i = 0; i < 3; i++)
        atto__ways_add(&ways, &(atto__way){ { numbers[i] }, sums ? numbers[i] : 0 });
    k->knobs.items = atto__choose(k->dev, &choice, &ways).number[0];
}

/* Work-groups that have ATTO_ITEMS runs a work-item. */
static int64_t groups_of(const call *k, const atto__walk *walk)
{
    const int64_t group = atto__opencl_of(k->dev)->group_size;
    return atto__group_count(runs_of(walk), group * atto__loss_items(&k->knobs));
}

/* beta, delta, or the positive class's weight where it is no tensor. */
static float number_of(const struct atto_loss_args *a)
{
    return a->kind == ATTO_LOSS_BCE_WITH_LOGITS ? 1.0f : a->threshold;
}

/* Tensors first .. end - 1 as pointers. */
static void arg_tensors(atto__args *args, const call *k, int32_t first, int32_t end)
{
    for (int32_t i = first; i < end; i++) atto__arg_tensor(args, k->tensors[i]);
}

static atto_status launch(const call *k, const atto__args *args, int64_t groups)
{
    atto__variant variant;
    atto__loss_variant(&k->knobs, &variant);
    return atto__launch(k->dev, &variant, args, groups);
}

/* ---- forward ---- */

static atto_status launch_each(atto_device *dev, const struct atto_loss_args *a,
                               const atto__layout *layout)
{
    call k = call_of(dev, a, layout, "atto_loss_each");
    add_tensor(&k, a->loss);
    const atto__walk walk = walk_of(&k);
    choose_items(&k, &walk);
    atto__args args;
    args.count = 0;
    arg_tensors(&args, &k, 0, k.count);
    atto__arg_walk(&args, &walk, k.tensors, k.count);
    atto__arg_float(&args, number_of(a));
    return launch(&k, &args, groups_of(&k, &walk));
}

static atto_status launch_sum(const call *k, const atto__walk *walk, const atto_tensor *out,
                              int64_t groups, int64_t steps, float divisor)
{
    atto__args args;
    args.count = 0;
    arg_tensors(&args, k, 0, k->count);
    atto__arg_tensor(&args, out);
    atto__arg_walk(&args, walk, k->tensors, k->count);
    atto__arg_float(&args, number_of(k->a));
    atto__arg_uint(&args, (uint32_t)steps);
    atto__arg_float(&args, divisor);
    return launch(k, &args, groups);
}

static atto_status launch_finish(atto_device *dev, const atto_tensor *partial,
                                 const atto_tensor *loss, int64_t count, float divisor)
{
    const atto__loss_knobs knobs = { .kernel = "atto_loss_finish" };
    atto__variant variant;
    atto__loss_variant(&knobs, &variant);
    atto__args args;
    args.count = 0;
    atto__arg_tensor(&args, partial);
    atto__arg_tensor(&args, loss);
    atto__arg_uint(&args, (uint32_t)count);
    atto__arg_float(&args, divisor);
    return atto__launch(dev, &variant, &args, 1);
}

static atto_status sum_losses(atto_device *dev, const struct atto_loss_args *a,
                              const atto__layout *layout)
{
    call k = call_of(dev, a, layout, "atto_loss_sum");
    const atto__walk walk = walk_of(&k);
    choose_items(&k, &walk);
    const int64_t units = groups_of(&k, &walk);
    const int64_t steps = atto__group_count(units, PARTIALS);
    const int64_t groups = atto__group_count(units, steps);
    const float divisor = (float)layout->folded;
    if (groups == 1) return launch_sum(&k, &walk, a->loss, 1, steps, divisor);
    atto_buffer header;
    atto_tensor partial;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &groups, &header, &partial));
    ATTO_TRY(launch_sum(&k, &walk, &partial, groups, steps, 1.0f));
    return launch_finish(dev, &partial, a->loss, groups, divisor);
}

atto_status atto__opencl_loss_forward(atto_device *dev, const struct atto_loss_args *a,
                                      const atto__layout *layout)
{
    return a->reduction == ATTO_REDUCTION_NONE ? launch_each(dev, a, layout)
                                               : sum_losses(dev, a, layout);
}

/* ---- backward ---- */

/* dx and dtarget of one launch; NULL = not of this one. */
typedef struct targets {
    const atto_tensor *dx, *dtarget;
    bool add_dx, add_dtarget;
} targets;

static atto_status launch_backward(atto_device *dev, const struct atto_loss_args *a,
                                   const atto__layout *layout, const targets *to)
{
    call k = call_of(dev, a, layout, "atto_loss_backward");
    k.knobs.each = a->reduction == ATTO_REDUCTION_NONE;
    k.knobs.gradients = (to->dx ? 1 : 0) | (to->dtarget ? 2 : 0);
    k.knobs.out = to->dx ? to->dx->dtype : to->dtarget->dtype;
    if (k.knobs.each) add_tensor(&k, a->dloss);
    const int32_t inputs = k.count;
    add_tensor(&k, to->dx);
    add_tensor(&k, to->dtarget);
    const atto__walk walk = walk_of(&k);
    choose_items(&k, &walk);
    atto__args args;
    args.count = 0;
    arg_tensors(&args, &k, 0, inputs);
    if (!k.knobs.each) atto__arg_tensor(&args, a->dloss);
    arg_tensors(&args, &k, inputs, k.count);
    atto__arg_walk(&args, &walk, k.tensors, k.count);
    atto__arg_float(&args, number_of(a));
    atto__arg_float(&args, (float)layout->folded);
    if (to->dx) atto__arg_uint(&args, to->add_dx);
    if (to->dtarget) atto__arg_uint(&args, to->add_dtarget);
    return launch(&k, &args, groups_of(&k, &walk));
}

/* A gradient that sums up repetitions: in full, then folded. */
static atto_status summed_gradient(atto_device *dev, const struct atto_loss_args *a,
                                   const atto__layout *layout, bool of_x)
{
    atto_buffer header;
    atto_tensor full;
    ATTO_TRY(atto__scratch_full(dev, layout, &header, &full));
    const targets whole = { .dx = of_x ? &full : NULL, .dtarget = of_x ? NULL : &full };
    ATTO_TRY(launch_backward(dev, a, layout, &whole));
    const atto__reduction r = { .fold = ATTO_FOLD_SUM,
                                .in = &full,
                                .out = of_x ? a->dx : a->dtarget,
                                .layout = layout,
                                .divisor = 1.0f,
                                .add = of_x ? a->add_dx : a->add_dtarget };
    return atto__opencl_fold(dev, &r);
}

atto_status atto__opencl_loss_backward(atto_device *dev, const struct atto_loss_args *a,
                                       const atto__layout *layout)
{
    targets straight = { a->dx, a->dtarget, a->add_dx, a->add_dtarget };
    if (a->dx && atto__is_summed(a->dx)) {
        ATTO_TRY(summed_gradient(dev, a, layout, true));
        straight.dx = NULL;
    }
    if (a->dtarget && atto__is_summed(a->dtarget)) {
        ATTO_TRY(summed_gradient(dev, a, layout, false));
        straight.dtarget = NULL;
    }
    return straight.dx || straight.dtarget ? launch_backward(dev, a, layout, &straight) : ATTO_OK;
}

atto_status atto__opencl_loss_prepare(atto_device *dev, atto_dtype dtype)
{
    static const char *const kernels[] = { "atto_loss_sum", "atto_loss_finish",
                                           "atto_loss_backward" };
    for (int32_t i = 0; i < 3; i++) {
        const atto__loss_knobs knobs = { .kernel = kernels[i],
                                         .loss = "mse",
                                         .dtype = dtype,
                                         .out = dtype,
                                         .gradients = i == 2 ? 1 : 0 };
        atto__variant variant;
        atto__loss_variant(&knobs, &variant);
        ATTO_TRY(atto__prepare(dev, &variant));
    }
    return ATTO_OK;
}
