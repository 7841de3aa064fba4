/* SPDX-License-Identifier: MIT */
/* Rotary position embedding on OpenCL: see src/cl/rope.cl. */
#include "rope.h"

#include "walk.h"

#define MOST_NARROW (INT32_MAX - (1 << 24))

/* ---- vectors ---- */

/* What is turned and what is copied are whole vectors, and so are their angles. */
static bool takes_vectors(const atto__turn *t)
{
    const int32_t unit = atto__vector_elements(t->from->dtype);
    const int64_t part = t->neighbours ? 2 * t->half : t->half;
    const int32_t angles = t->neighbours && unit == 4 ? 2 : 4; /* aligned to so many floats */
    return part % unit == 0 && t->d % unit == 0 && atto__rows_at_units(t->from, unit) &&
           atto__rows_at_units(t->to, unit) && atto__rows_at_units(t->cos, angles) &&
           atto__rows_at_units(t->sin, angles);
}

/* ---- launch ---- */

static void arg_steps(atto__args *args, const atto_tensor *t)
{
    const int64_t steps[4] = { t->stride[0], t->stride[1], t->stride[2], 0 };
    atto__arg_index4(args, true, steps);
}

static void arg_rows(atto__args *args, const atto__turn *t, const atto_device *dev)
{
    if (t->position) {
        atto__arg_tensor(args, t->position);
        atto__arg_ulong(args, (uint64_t)t->position_batch);
        atto__arg_ulong(args, (uint64_t)t->position_step);
        atto__arg_error_word(args, dev);
    } else {
        atto__arg_ulong(args, (uint64_t)t->offset);
    }
    atto__arg_ulong(args, (uint64_t)t->rows);
    atto__arg_ulong(args, (uint64_t)t->cos->stride[0]);
    atto__arg_ulong(args, (uint64_t)t->sin->stride[0]);
    atto__arg_ulong(args, (uint64_t)t->half);
}

static atto_status launch(atto_device *dev, const atto__turn *t)
{
    const bool vectors = takes_vectors(t);
    const int64_t run = vectors ? atto__vector_elements(t->from->dtype) : 1;
    const int64_t turned = vectors && t->neighbours ? 2 * t->half : t->half;
    const int32_t heads = t->heads > 1 ? ATTO_ROPE_HEADS : 1;
    const int64_t groups = (t->heads + heads - 1) / heads;
    const bool inside = groups > 1 && t->to->stride[1] < t->to->stride[2]; /* as memory lies */
    const int64_t sizes[4] = { 1, inside ? t->length : groups, inside ? groups : t->length,
                               (turned + t->d - 2 * t->half) / run };
    const int64_t n = t->batches * groups * t->length * sizes[3];
    const bool wide = dev->options.set.index_bits == 64 || n > MOST_NARROW;
    const atto__rope_knobs knobs = { .dtype = t->from->dtype,
                                     .position = t->position ? t->position->dtype : (atto_dtype)0,
                                     .neighbours = t->neighbours,
                                     .vectors = vectors,
                                     .heads = heads,
                                     .wide = wide };
    atto__variant variant;
    atto__rope_variant(&knobs, &variant);

    atto__args args;
    args.count = 0;
    atto__arg_tensor(&args, t->from);
    atto__arg_tensor(&args, t->to);
    atto__arg_tensor(&args, t->cos);
    atto__arg_tensor(&args, t->sin);
    arg_rows(&args, t, dev);
    atto__arg_index(&args, wide, t->heads);
    arg_steps(&args, t->from);
    arg_steps(&args, t->to);
    atto__arg_float(&args, t->sign);
    atto__arg_uint(&args, t->add);
    atto__arg_uint(&args, inside);
    atto__arg_index(&args, wide, n);
    atto__arg_sizes(&args, wide, sizes);
    return atto__launch(dev, &variant, &args,
                        atto__group_count(n, atto__opencl_of(dev)->group_size));
}

atto_status atto__opencl_rope_forward(atto_device *dev, const struct atto_rope_args *a,
                                      const atto__layout *layout)
{
    const atto__turn t = atto__turn_of(a, false);
    (void)layout;
    return launch(dev, &t);
}

atto_status atto__opencl_rope_backward(atto_device *dev, const struct atto_rope_args *a,
                                       const atto__layout *layout)
{
    const atto__turn t = atto__turn_of(a, true);
    (void)layout;
    return launch(dev, &t);
}

atto_status atto__opencl_rope_prepare(atto_device *dev, atto_dtype dtype)
{
    for (int32_t i = 0; i < 2; i++) {
        const atto__rope_knobs knobs = {
            .dtype = dtype, .neighbours = i == 1, .vectors = true, .heads = ATTO_ROPE_HEADS
        };
        atto__variant variant;
        atto__rope_variant(&knobs, &variant);
        ATTO_TRY(atto__prepare(dev, &variant));
    }
    return ATTO_OK;
}
