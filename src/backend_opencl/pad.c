/* SPDX-License-Identifier: MIT */
/* Padding on OpenCL: see src/cl/pad.cl. */
#include "padding.h"

#include "tensor.h"
#include "walk.h"

/* A call: the tensor it writes, and the one it reads. */
typedef struct job {
    const struct atto_pad_args *a;
    const atto_tensor *from, *to;
    atto__padding p;
    bool backward;
} job;

/* Vectors are in x, or in what is around it, as a whole; at least those of the result can be. */
static atto__form form_of(const job *j, int32_t unit)
{
    const pad_axis *inner = &j->p.axis[j->p.count - 1];
    const bool splits = j->a->mode != ATTO_PAD_CONSTANT && j->p.is_padded[j->p.count - 1];
    const int64_t row = j->backward ? inner->in : inner->out;
    const bool has_whole = inner->in % unit == 0 && inner->out % unit == 0 &&
                           inner->before % unit == 0 && j->from->offset % unit == 0;
    if (j->to->offset % unit != 0) return ATTO_FORM_ELEMENTS;
    if (has_whole && !splits) return ATTO_FORM_VECTORS;
    return row >= unit ? ATTO_FORM_RUNS : ATTO_FORM_ELEMENTS;
}

/* Four axes, from number first on, of those that stand right-aligned in `axes`. */
static void arg_axes(atto__args *args, const job *j, int32_t axes, int32_t first, bool wide)
{
    int64_t size[4], other[4], before[4], step[4], steps[ATTO_MAX_RANK];
    atto__padding_steps(&j->p, !j->backward, steps);
    for (int32_t k = 0; k < 4; k++) {
        const int32_t d = first + k - (axes - j->p.count);
        const pad_axis a = d < 0 ? (pad_axis){ 1, 1, 0 } : j->p.axis[d];
        size[k] = j->backward ? a.in : a.out;
        other[k] = j->backward ? a.out : a.in;
        before[k] = a.before;
        step[k] = d < 0 ? 0 : steps[d];
    }
    atto__arg_sizes(args, wide, size);
    atto__arg_index4(args, wide, other);
    atto__arg_index4(args, wide, before);
    atto__arg_index4(args, wide, step);
}

static atto_status launch(atto_device *dev, const job *j, const atto__layout *layout)
{
    const int64_t n = atto_tensor_numel(j->to);
    const int32_t unit = atto__vector_elements(j->to->dtype);
    const atto__form form = form_of(j, unit);
    const int64_t run = form == ATTO_FORM_ELEMENTS ? 1 : unit;
    const atto__pad_knobs knobs = { .backward = j->backward,
                                    .dtype = j->to->dtype,
                                    .mode = (int32_t)j->a->mode,
                                    .axes = j->p.count > 4 ? 8 : 4,
                                    .form = form,
                                    .wide = layout->wide };
    atto__variant variant;
    atto__pad_variant(&knobs, &variant);

    atto__args args;
    args.count = 0;
    if (j->from->buffer)
        atto__arg_tensor(&args, j->from);
    else
        atto__arg_optional(&args, NULL); /* nothing is read */
    atto__arg_tensor(&args, j->to);
    atto__arg_index(&args, layout->wide, n);
    if (j->backward)
        atto__arg_uint(&args, j->a->add_dx);
    else
        atto__arg_ulong(&args, atto__bits_of(j->to->dtype, j->a->value));
    for (int32_t first = knobs.axes - 4; first >= 0; first -= 4)
        arg_axes(&args, j, knobs.axes, first, layout->wide);
    return atto__launch(
        dev, &variant, &args,
        atto__group_count(atto__group_count(n, run), atto__opencl_of(dev)->group_size));
}

atto_status atto__opencl_pad_forward(atto_device *dev, const struct atto_pad_args *a,
                                     const atto__layout *layout)
{
    const job j = { a, a->x, a->y, atto__padding_of(a, a->x, a->y, layout->channels_last), false };
    return launch(dev, &j, layout);
}

atto_status atto__opencl_pad_backward(atto_device *dev, const struct atto_pad_args *a,
                                      const atto__layout *layout)
{
    const job j = { a, a->dy, a->dx, atto__padding_of(a, a->dx, a->dy, layout->channels_last),
                    true };
    return launch(dev, &j, layout);
}

atto_status atto__opencl_pad_prepare(atto_device *dev, atto_dtype dtype)
{
    for (int32_t i = 0; i < 2; i++) {
        const atto__pad_knobs knobs = {
            .backward = i == 1, .dtype = dtype, .axes = 4, .form = ATTO_FORM_RUNS
        };
        atto__variant variant;
        atto__pad_variant(&knobs, &variant);
        ATTO_TRY(atto__prepare(dev, &variant));
    }
    return ATTO_OK;
}
