/* SPDX-License-Identifier: MIT */
/* Optimisers on OpenCL: see src/cl/optim.cl. */
#include "optim.h"
#include "launch.h"

/* Buffers of an optimiser are its own and are used from their front. */
static void arg_memory(atto__args *args, const atto_tensor *t)
{
    atto__arg_memory(args, atto__memory(t));
}

atto_status atto__opencl_optim_norm(atto_device *dev, const struct atto__optim_args *a)
{
    atto__variant variant;
    atto__optim_norm_variant(a->grad->dtype, &variant);
    atto__args args;
    args.count = 0;
    arg_memory(&args, a->grad);
    arg_memory(&args, a->segment_of);
    arg_memory(&args, a->flags);
    arg_memory(&args, a->control);
    arg_memory(&args, a->partials);
    atto__arg_uint(&args, (uint32_t)a->first_span);
    atto__arg_uint(&args, (uint32_t)a->blocks);
    return atto__launch(dev, &variant, &args, atto__group_count(a->blocks, ATTO_OPTIM_SPAN));
}

atto_status atto__opencl_optim_begin(atto_device *dev, const struct atto__optim_args *a)
{
    const atto__optim_numbers *n = &a->numbers;
    atto__variant variant;
    atto__optim_begin_variant(&variant);
    atto__args args;
    args.count = 0;
    arg_memory(&args, a->partials);
    arg_memory(&args, a->control);
    arg_memory(&args, a->flags);
    arg_memory(&args, a->group_of);
    arg_memory(&args, a->groups);
    arg_memory(&args, a->steps);
    arg_memory(&args, a->coefficients);
    atto__arg_uint(&args, (uint32_t)a->spans);
    atto__arg_uint(&args, (uint32_t)a->segments);
    atto__arg_uint(&args, a->mode);
    atto__arg_float(&args, a->lr);
    atto__arg_float(&args, a->max_norm);
    atto__arg_float(&args, n->ln_beta1);
    atto__arg_float(&args, n->ln_beta2);
    atto__arg_float(&args, n->fresh);
    atto__arg_float(&args, n->growth);
    atto__arg_float(&args, n->backoff);
    atto__arg_float(&args, n->growth_interval);
    return atto__launch(dev, &variant, &args, 1);
}

/* The kernel's parameters are square, mean, buffer; of SGD the buffer alone, which is its state
 * 0. */
static void arg_states(atto__args *args, const struct atto__optim_args *a)
{
    const bool is_adam = a->method.kind == ATTO_OPTIM_ADAM;
    const atto_tensor *order[] = { a->state[is_adam ? 1 : 0], a->state[is_adam ? 0 : 1],
                                   a->state[2] };
    for (int32_t i = 0; i < ATTO_OPTIM_STATES; i++)
        if (order[i]) arg_memory(args, order[i]);
}

atto_status atto__opencl_optim_step(atto_device *dev, const struct atto__optim_args *a)
{
    const atto__optim_numbers *n = &a->numbers;
    const int64_t items = a->blocks * (ATTO_OPTIM_BLOCK / atto__vector_elements(a->value->dtype));
    atto__variant variant;
    atto__optim_step_variant(&a->method, a->value->dtype, a->shadow ? a->shadow->dtype : 0,
                             &variant);
    atto__args args;
    args.count = 0;
    arg_memory(&args, a->segment_of);
    arg_memory(&args, a->coefficients);
    atto__arg_uint(&args, (uint32_t)a->blocks);
    atto__arg_float(&args, n->momentum);
    atto__arg_float(&args, n->weight1);
    atto__arg_float(&args, n->beta2);
    atto__arg_float(&args, n->weight2);
    atto__arg_float(&args, n->eps);
    atto__arg_uint(&args, n->nesterov);
    arg_memory(&args, a->grad);
    arg_memory(&args, a->value);
    if (a->master) arg_memory(&args, a->master);
    arg_states(&args, a);
    if (a->shadow) arg_memory(&args, a->shadow);
    return atto__launch(dev, &variant, &args,
                        atto__group_count(items, atto__opencl_of(dev)->group_size));
}
