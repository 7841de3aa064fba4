/* SPDX-License-Identifier: MIT */
/* Copies and fills on OpenCL: see src/cl/tensor.cl. */
#include "walk.h"

static size_t byte_offset(const atto_tensor *t)
{
    return (size_t)t->offset * atto_dtype_size(t->dtype);
}

static size_t byte_size(const atto_tensor *t, const atto__layout *layout)
{
    return (size_t)layout->numel * atto_dtype_size(t->dtype);
}

/* Dense and of one dtype: the driver's own copy. */
static atto_status copy_bytes(atto_device *dev, const atto_tensor *dst, const atto_tensor *src,
                              const atto__layout *layout)
{
    ATTO_CL_TRY(dev, EnqueueCopyBuffer, atto__opencl_of(dev)->queue, atto__memory(src),
                atto__memory(dst), byte_offset(src), byte_offset(dst), byte_size(dst, layout), 0,
                NULL, NULL);
    return ATTO_OK;
}

atto_status atto__opencl_copy(atto_device *dev, const atto_tensor *dst, const atto_tensor *src,
                              const atto__layout *layout)
{
    const atto_tensor *tensors[] = { src, dst };
    if (layout->dense && src->dtype == dst->dtype) return copy_bytes(dev, dst, src, layout);
    const int32_t vector = atto__copy_elements(src->dtype, dst->dtype);
    const atto__form form = atto__walk_form(tensors, 2, layout, vector);
    const atto__walk walk = atto__walk_of(layout, form, form == ATTO_FORM_ELEMENTS ? 1 : vector);
    atto__variant variant;
    atto__copy_variant(src->dtype, dst->dtype, form, layout->wide, &variant);
    atto__args args;
    args.count = 0;
    atto__arg_tensor(&args, src);
    atto__arg_tensor(&args, dst);
    atto__arg_walk(&args, &walk, tensors, 2);
    return atto__launch(dev, &variant, &args, atto__walk_groups(dev, &walk));
}

static atto_status fill_walk(atto_device *dev, const atto_tensor *dst, uint64_t bits,
                             const atto__layout *layout)
{
    const int32_t vector = atto__vector_elements(dst->dtype);
    atto__form form = atto__walk_form(&dst, 1, layout, vector);
    if (form == ATTO_FORM_DENSE) /* fill_dense has cut it to whole vectors, or to less than one */
        form = layout->numel < vector ? ATTO_FORM_ELEMENTS : ATTO_FORM_VECTORS;
    const atto__walk walk = atto__walk_of(layout, form, form == ATTO_FORM_ELEMENTS ? 1 : vector);
    atto__variant variant;
    atto__fill_variant(dst->dtype, form, layout->wide, &variant);
    atto__args args;
    args.count = 0;
    atto__arg_tensor(&args, dst);
    atto__arg_walk(&args, &walk, &dst, 1);
    atto__arg_ulong(&args, bits);
    return atto__launch(dev, &variant, &args, atto__walk_groups(dev, &walk));
}

/* The whole vectors, then the fewer than 16 bytes behind them. Not by the driver: on an H200 its
 * fill has 0.4 of a kernel's speed, and counts patterns and their offset in 31 bits. */
static atto_status fill_dense(atto_device *dev, const atto_tensor *dst, uint64_t bits,
                              const atto__layout *layout)
{
    const int64_t whole =
        layout->numel / atto__vector_elements(dst->dtype) * atto__vector_elements(dst->dtype);
    atto__layout part = *layout;
    atto_tensor to = *dst;
    if (layout->rank == 0 || whole == 0 || whole == layout->numel)
        return fill_walk(dev, dst, bits, layout);
    part.numel = part.shape[0] = to.shape[0] = whole;
    ATTO_TRY(fill_walk(dev, &to, bits, &part));
    part.numel = part.shape[0] = to.shape[0] = layout->numel - whole;
    to.offset += whole;
    return fill_walk(dev, &to, bits, &part);
}

atto_status atto__opencl_fill(atto_device *dev, const atto_tensor *dst, uint64_t bits,
                              const atto__layout *layout)
{
    return layout->dense ? fill_dense(dev, dst, bits, layout) : fill_walk(dev, dst, bits, layout);
}
