/* SPDX-License-Identifier: MIT */
/* Gated linear units on OpenCL: see src/cl/glu.cl. */
#include <attocl/glu.h>

#include "axis.h"
#include "walk.h"

/* 32 bits are enough below so many elements of x. */
#define MOST_NARROW (INT32_MAX - (1 << 24))

/* A call, its tensors in the kernel's order. */
typedef struct call {
    atto_device *dev;
    const struct atto_glu_args *a;
    const char *kernel;
    const atto_tensor *tensors[3];
    int32_t count;
} call;

/* Halves and tensors can be moved 16 bytes at a time. */
static bool takes_vectors(const call *k, int64_t width)
{
    const int32_t vector = atto__vector_elements(k->a->x->dtype);
    bool all = width % vector == 0;
    for (int32_t i = 0; i < k->count; i++) all = all && k->tensors[i]->offset % vector == 0;
    return all;
}

static atto_status launch(const call *k)
{
    const atto_tensor *x = k->a->x;
    const atto__axis axis = atto__axis_of(x, k->a->dim);
    const int64_t width = axis.size / 2 * axis.step;
    const bool vectors = takes_vectors(k, width);
    const bool wide = k->dev->options.set.index_bits == 64 || 2 * axis.outer * width > MOST_NARROW;
    atto__variant variant;
    atto__glu_variant(k->kernel, atto_activation_name(k->a->act.kind), x->dtype, vectors, wide,
                      &variant);

    const int64_t per_row = vectors ? width / atto__vector_elements(x->dtype) : width;
    atto__args args;
    args.count = 0;
    for (int32_t i = 0; i < k->count; i++) atto__arg_tensor(&args, k->tensors[i]);
    atto__arg_index(&args, wide, axis.outer * per_row);
    atto__arg_index(&args, wide, per_row);
    atto__arg_index(&args, wide, width);
    atto__arg_divider(&args, wide, per_row);
    atto__arg_float(&args, k->a->act.a);
    atto__arg_float(&args, k->a->act.b);
    if (k->count == 3) atto__arg_uint(&args, k->a->add_dx);
    const int64_t group = atto__opencl_of(k->dev)->group_size;
    return atto__launch(k->dev, &variant, &args,
                        atto__group_count(axis.outer * per_row, group * ATTO_DENSE_ITEMS));
}

atto_status atto__opencl_glu_forward(atto_device *dev, const struct atto_glu_args *a,
                                     const atto__layout *layout)
{
    (void)layout;
    return launch(&(call){ dev, a, "atto_glu_forward", { a->x, a->y }, 2 });
}

atto_status atto__opencl_glu_backward(atto_device *dev, const struct atto_glu_args *a,
                                      const atto__layout *layout)
{
    (void)layout;
    return launch(&(call){ dev, a, "atto_glu_backward", { a->x, a->dy, a->dx }, 3 });
}

atto_status atto__opencl_glu_prepare(atto_device *dev, atto_dtype dtype)
{
    atto__variant variant;
    atto__glu_variant("atto_glu_forward", "sigmoid", dtype, true, false, &variant);
    ATTO_TRY(atto__prepare(dev, &variant));
    atto__glu_variant("atto_glu_backward", "sigmoid", dtype, true, false, &variant);
    return atto__prepare(dev, &variant);
}
