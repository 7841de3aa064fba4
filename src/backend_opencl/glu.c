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

/* Runs of a work-item, and a work-group's size. Both leave the bits alone. Sizes are runs, and
 * elements of one. */
static void choose(const call *k, int64_t runs, int64_t run, atto__glu_knobs *knobs)
{
    const int32_t own = (int32_t)atto__opencl_of(k->dev)->group_size;
    const int32_t most = k->dev->info.max_work_group;
    const bool backward = k->count == 3;
    const atto__choice choice = { backward ? ATTO_CHOICE_GLU_BACKWARD : ATTO_CHOICE_GLU_FORWARD,
                                  knobs->dtype,
                                  { runs, run } };
    atto__ways ways;
    knobs->items = ATTO_DENSE_ITEMS;
    if (!atto__choice_asks(k->dev, &choice)) return;
    ways.count = 0;
    atto__ways_add_groups(&ways, ATTO_DENSE_ITEMS, own, most);
    atto__ways_add_groups(&ways, 1, own, most);
    atto__ways_add_groups(&ways, 4, own, most);
    const atto__way way = atto__choose(k->dev, &choice, &ways);
    knobs->items = way.number[0];
    knobs->group = way.number[1];
}

static atto_status launch(const call *k)
{
    const atto_tensor *x = k->a->x;
    const atto__axis axis = atto__axis_of(x, k->a->dim);
    const int64_t width = axis.size / 2 * axis.step;
    const bool vectors = takes_vectors(k, width);
    const bool wide = k->dev->options.set.index_bits == 64 || 2 * axis.outer * width > MOST_NARROW;
    const int64_t run = vectors ? atto__vector_elements(x->dtype) : 1, per_row = width / run;
    const int64_t runs = axis.outer * per_row;
    atto__glu_knobs knobs = { .kernel = k->kernel,
                              .act = atto_activation_name(k->a->act.kind),
                              .dtype = x->dtype,
                              .vectors = vectors,
                              .wide = wide };
    choose(k, runs, run, &knobs);
    atto__variant variant;
    atto__glu_variant(&knobs, &variant);

    atto__args args;
    args.count = 0;
    for (int32_t i = 0; i < k->count; i++) atto__arg_tensor(&args, k->tensors[i]);
    atto__arg_index(&args, wide, runs);
    atto__arg_index(&args, wide, per_row);
    atto__arg_index(&args, wide, width);
    atto__arg_divider(&args, wide, per_row);
    atto__arg_float(&args, k->a->act.a);
    atto__arg_float(&args, k->a->act.b);
    if (k->count == 3) atto__arg_uint(&args, k->a->add_dx);
    const int32_t own = (int32_t)atto__opencl_of(k->dev)->group_size;
    const int32_t group = knobs.group ? knobs.group : own;
    return atto__launch_sized(k->dev, &variant, &args, atto__group_count(runs, group * knobs.items),
                              group);
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
    atto__glu_knobs knobs = {
        .kernel = "atto_glu_forward", .act = "sigmoid", .dtype = dtype, .vectors = true
    };
    atto__variant variant;
    atto__glu_variant(&knobs, &variant);
    ATTO_TRY(atto__prepare(dev, &variant));
    knobs.kernel = "atto_glu_backward";
    atto__glu_variant(&knobs, &variant);
    return atto__prepare(dev, &variant);
}
