/* SPDX-License-Identifier: MIT */
/* Softmax on OpenCL: see src/cl/softmax.cl. */
#include "axis.h"
#include "rows.h"

/* A call, its tensors in the kernel's order. */
typedef struct call {
    atto_device *dev;
    const struct atto_softmax_args *a;
    bool backward;
    atto__axis axis;
    const atto_tensor *tensors[3];
    int32_t count;
} call;

static call call_of(atto_device *dev, const struct atto_softmax_args *a, bool backward)
{
    return (call){ .dev = dev,
                   .a = a,
                   .backward = backward,
                   .axis = atto__axis_of(a->y, a->dim),
                   .tensors = { backward ? a->y : a->x, backward ? a->dy : a->y, a->dx },
                   .count = backward ? 3 : 2 };
}

/* Backward holds y and dy. */
static int32_t floats_of(const call *k, int32_t room)
{
    return k->backward ? room / 2 : room;
}

static atto__softmax_knobs knobs_of(const call *k, const char *kernel)
{
    return (atto__softmax_knobs){ .kernel = kernel,
                                  .kind = k->a->kind,
                                  .dtype = k->a->y->dtype,
                                  .wide = atto__row_is_wide(k->dev, k->axis.size, k->axis.step) };
}

static void arg_tensors(atto__args *args, const call *k)
{
    args->count = 0;
    for (int32_t i = 0; i < k->count; i++) atto__arg_tensor(args, k->tensors[i]);
}

/* ---- rows ---- */

static atto_status launch_rows(const call *k)
{
    atto__softmax_knobs knobs =
        knobs_of(k, k->backward ? "atto_softmax_backward" : "atto_softmax_forward");
    const int64_t slots = atto__row_slots(k->tensors[0], k->axis.size, 1);
    knobs.row = atto__row_choose(
        k->dev, k->backward ? ATTO_CHOICE_SOFTMAX_BACKWARD : ATTO_CHOICE_SOFTMAX_FORWARD,
        knobs.dtype, slots, k->axis.outer, floats_of(k, atto__row_floats(k->dev)));
    atto__variant variant;
    atto__softmax_variant(&knobs, &variant);

    atto__args args;
    arg_tensors(&args, k);
    atto__arg_ulong(&args, (uint64_t)k->axis.outer);
    atto__arg_index(&args, knobs.wide, k->axis.size);
    if (k->backward) atto__arg_uint(&args, k->a->add_dx);
    const int64_t rows = atto__rows_per_group(k->dev, &knobs.row);
    return atto__launch_sized(k->dev, &variant, &args, atto__group_count(k->axis.outer, rows),
                              atto__row_group(k->dev, &knobs.row));
}

/* ---- columns ---- */

/* Columns side by side can be moved 16 bytes at a time. */
static bool takes_vectors(const call *k)
{
    const int32_t vector = atto__vector_elements(k->a->y->dtype);
    bool all = k->axis.step % vector == 0;
    for (int32_t i = 0; i < k->count; i++) all = all && k->tensors[i]->offset % vector == 0;
    return all;
}

static atto_status launch_columns(const call *k)
{
    const bool vectors = takes_vectors(k);
    const atto__opencl *cl = atto__opencl_of(k->dev);
    const int32_t group = (int32_t)cl->group_size;
    const int32_t elements =
        atto__column_elements(k->backward, k->a->y->dtype, vectors, cl->nvidia > 0);
    atto__softmax_knobs knobs =
        knobs_of(k, k->backward ? "atto_softmax_backward_columns" : "atto_softmax_forward_columns");
    knobs.has_columns = true;
    knobs.column = atto__column_knobs_for(k->axis.size, knobs.dtype, vectors, group, elements);
    atto__variant variant;
    atto__softmax_variant(&knobs, &variant);

    const int32_t run = knobs.column.vectors ? atto__vector_elements(knobs.dtype) : 1;
    const int64_t per_row = k->axis.step / run, runs = k->axis.outer * per_row;
    atto__args args;
    arg_tensors(&args, k);
    atto__arg_ulong(&args, (uint64_t)runs);
    atto__arg_index(&args, knobs.wide, k->axis.size);
    atto__arg_index(&args, knobs.wide, k->axis.step);
    atto__arg_index(&args, knobs.wide, per_row);
    if (k->backward) atto__arg_uint(&args, k->a->add_dx);
    return atto__launch(k->dev, &variant, &args,
                        atto__group_count(runs, group / knobs.column.deep));
}

/* ---- calls ---- */

static atto_status launch(const call *k)
{
    return k->axis.step == 1 ? launch_rows(k) : launch_columns(k);
}

atto_status atto__opencl_softmax_forward(atto_device *dev, const struct atto_softmax_args *a,
                                         const atto__layout *layout)
{
    (void)layout;
    const call k = call_of(dev, a, false);
    return launch(&k);
}

atto_status atto__opencl_softmax_backward(atto_device *dev, const struct atto_softmax_args *a,
                                          const atto__layout *layout)
{
    (void)layout;
    const call k = call_of(dev, a, true);
    return launch(&k);
}

atto_status atto__opencl_softmax_prepare(atto_device *dev, atto_dtype dtype)
{
    atto__softmax_knobs knobs = { .kernel = "atto_softmax_forward",
                                  .dtype = dtype,
                                  .row = { .items = 2, .held = true } };
    atto__variant variant;
    atto__softmax_variant(&knobs, &variant);
    ATTO_TRY(atto__prepare(dev, &variant));
    knobs.kernel = "atto_softmax_backward";
    atto__softmax_variant(&knobs, &variant);
    return atto__prepare(dev, &variant);
}
