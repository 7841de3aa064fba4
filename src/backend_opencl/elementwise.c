/* SPDX-License-Identifier: MIT */
/* Elementwise ops on OpenCL: see src/cl/elementwise.cl. */
#include <stdio.h>

#include "fold.h"

#define FORMULA_NAME 32

static void add_tensor(atto__elementwise *call, const atto_tensor *t)
{
    if (t) call->tensors[call->count++] = t;
}

/* Bit 0: a is a number; bit 1: b is. */
static int32_t scalar_of(const atto_tensor *a, const atto_tensor *b)
{
    return (a ? 0 : 1) | (b ? 0 : 2);
}

static atto__elementwise call_of(const char *kernel, const char *formula,
                                 const atto__layout *layout)
{
    return (atto__elementwise){
        .file = "elementwise.cl", .kernel = kernel, .formula = formula, .layout = layout
    };
}

/* ---- unary ---- */

atto_status atto__opencl_unary_forward(atto_device *dev, const struct atto_unary_args *a,
                                       const atto__layout *layout)
{
    char formula[FORMULA_NAME];
    snprintf(formula, sizeof formula, "unary_%s", atto_unary_name(a->kind));
    atto__elementwise call = call_of("atto_unary_forward", formula, layout);
    add_tensor(&call, a->x);
    add_tensor(&call, a->y);
    atto__arg_float(&call.own, a->lo);
    atto__arg_float(&call.own, a->hi);
    return atto__elementwise_launch(dev, &call);
}

atto_status atto__opencl_unary_backward(atto_device *dev, const struct atto_unary_args *a,
                                        const atto__layout *layout)
{
    char formula[FORMULA_NAME];
    snprintf(formula, sizeof formula, "unary_%s_grad", atto_unary_name(a->kind));
    atto__elementwise call = call_of("atto_unary_backward", formula, layout);
    add_tensor(&call, a->x);
    add_tensor(&call, a->dy);
    add_tensor(&call, a->dx);
    atto__arg_float(&call.own, a->lo);
    atto__arg_float(&call.own, a->hi);
    atto__arg_uint(&call.own, a->add_dx);
    return atto__elementwise_launch(dev, &call);
}

/* Builds a kernel in its dense form, or in the one for single elements. */
static atto_status prepare(atto_device *dev, const char *kernel, const char *formula,
                           atto_dtype dtype, atto__form form)
{
    const atto__elementwise_knobs knobs = {
        .file = "elementwise.cl", .kernel = kernel, .formula = formula, .dtype = dtype, .form = form
    };
    atto__variant variant;
    atto__elementwise_variant(&knobs, &variant);
    return atto__prepare(dev, &variant);
}

atto_status atto__opencl_unary_prepare(atto_device *dev, atto_dtype dtype)
{
    ATTO_TRY(prepare(dev, "atto_unary_forward", "unary_exp", dtype, ATTO_FORM_DENSE));
    return prepare(dev, "atto_unary_backward", "unary_exp_grad", dtype, ATTO_FORM_DENSE);
}

/* ---- binary ---- */

static atto_status launch_binary(atto_device *dev, const struct atto_binary_args *a,
                                 const atto__layout *layout)
{
    char formula[FORMULA_NAME];
    snprintf(formula, sizeof formula, "binary_%s", atto_binary_name(a->kind));
    atto__elementwise call = call_of("atto_binary_forward", formula, layout);
    call.scalar = scalar_of(a->a, a->b);
    add_tensor(&call, a->a);
    add_tensor(&call, a->b);
    add_tensor(&call, a->y);
    atto__arg_float(&call.own, a->value);
    return atto__elementwise_launch(dev, &call);
}

atto_status atto__opencl_binary_forward(atto_device *dev, const struct atto_binary_args *a,
                                        const atto__layout *layout)
{
    return launch_binary(dev, a, layout);
}

static bool is_minus(atto_binary_kind kind, bool of_b)
{
    return kind == ATTO_BINARY_SUB && of_b;
}

/* One gradient. Where it is a sum over repetitions, its terms are formed as they are added. */
static atto_status binary_gradient(atto_device *dev, const struct atto_binary_args *a,
                                   const atto__layout *layout, const atto__gradient *to)
{
    char formula[FORMULA_NAME];
    if (!to->out) return ATTO_OK;
    snprintf(formula, sizeof formula, "binary_%s_%s", atto_binary_name(a->kind),
             to->of_b ? "db" : "da");
    const bool is_sign = atto__gradient_is_sign(a->kind);
    const atto_tensor *left = is_sign ? NULL : a->a;
    const atto_tensor *right = is_sign ? NULL : a->b;
    if (atto__is_summed(to->out)) {
        const atto__reduction r = { .fold = ATTO_FOLD_SUM,
                                    .in = a->dy,
                                    .out = to->out,
                                    .formula = is_sign ? NULL : formula,
                                    .a = left,
                                    .b = right,
                                    .value = a->value,
                                    .layout = layout,
                                    .divisor = is_minus(a->kind, to->of_b) ? -1.0f : 1.0f,
                                    .add = to->add };
        return atto__opencl_fold(dev, &r);
    }
    atto__elementwise call = call_of("atto_binary_backward", formula, layout);
    call.scalar = scalar_of(left, right);
    add_tensor(&call, left);
    add_tensor(&call, right);
    add_tensor(&call, a->dy);
    add_tensor(&call, to->out);
    atto__arg_float(&call.own, a->value);
    atto__arg_uint(&call.own, to->add);
    return atto__elementwise_launch(dev, &call);
}

atto_status atto__opencl_binary_backward(atto_device *dev, const struct atto_binary_args *a,
                                         const atto__layout *layout)
{
    const atto_tensor *inputs[] = { a->a, a->b, a->dy };
    atto__gradient pair[] = { { a->da, a->add_da, false }, { a->db, a->add_db, true } };
    atto__gradients_order(pair, inputs, 3);
    ATTO_TRY(binary_gradient(dev, a, layout, &pair[0]));
    return binary_gradient(dev, a, layout, &pair[1]);
}

atto_status atto__opencl_binary_prepare(atto_device *dev, atto_dtype dtype)
{
    ATTO_TRY(prepare(dev, "atto_binary_forward", "binary_mul", dtype, ATTO_FORM_DENSE));
    return prepare(dev, "atto_binary_backward", "binary_mul_da", dtype, ATTO_FORM_DENSE);
}

/* ---- cast ---- */

atto_status atto__opencl_cast_forward(atto_device *dev, const struct atto_cast_args *a,
                                      const atto__layout *layout)
{
    return atto__opencl_copy(dev, a->y, a->x, layout);
}

/* dx += dy: converted first, then added. */
atto_status atto__opencl_cast_backward(atto_device *dev, const struct atto_cast_args *a,
                                       const atto__layout *layout)
{
    if (!a->add_dx) return atto__opencl_copy(dev, a->dx, a->dy, layout);
    atto_buffer header;
    atto_tensor converted;
    ATTO_TRY(atto__scratch_like(dev, a->dx, a->dx->dtype, &header, &converted));
    ATTO_TRY(atto__opencl_copy(dev, &converted, a->dy, layout));
    const struct atto_binary_args sum = {
        .kind = ATTO_BINARY_ADD, .a = a->dx, .b = &converted, .y = a->dx
    };
    return launch_binary(dev, &sum, layout);
}

atto_status atto__opencl_cast_prepare(atto_device *dev, atto_dtype dtype)
{
    atto__variant variant;
    if (dtype != ATTO_F32) {
        atto__copy_variant(dtype, ATTO_F32, ATTO_FORM_DENSE, false, &variant);
        ATTO_TRY(atto__prepare(dev, &variant));
    }
    return prepare(dev, "atto_binary_forward", "binary_add", dtype, ATTO_FORM_DENSE);
}

/* ---- where and compare: an element a work-item ---- */

static atto_status launch_elements(atto_device *dev, const atto__elementwise *call,
                                   const atto__variant *variant)
{
    const atto__walk walk = atto__walk_of(call->layout, ATTO_FORM_ELEMENTS, 1);
    atto__args args;
    args.count = 0;
    for (int32_t i = 0; i < call->count; i++) atto__arg_tensor(&args, call->tensors[i]);
    atto__arg_walk(&args, &walk, call->tensors, call->count);
    atto__args_append(&args, &call->own);
    return atto__launch(dev, variant, &args, atto__walk_groups(dev, &walk));
}

static atto_status launch_where(atto_device *dev, const atto__elementwise *call, atto_dtype dtype)
{
    const atto__elementwise_knobs knobs = {
        .file = call->file,
        .kernel = call->kernel,
        .scalar = call->scalar,
        .wide_out = call->wide_out,
        .dtype = dtype,
        .form = ATTO_FORM_ELEMENTS,
        .wide = call->layout->wide,
    };
    atto__variant variant;
    atto__elementwise_variant(&knobs, &variant);
    return launch_elements(dev, call, &variant);
}

atto_status atto__opencl_where_forward(atto_device *dev, const struct atto_where_args *a,
                                       const atto__layout *layout)
{
    atto__elementwise call = call_of("atto_where_forward", NULL, layout);
    call.scalar = scalar_of(a->a, a->b);
    add_tensor(&call, a->cond);
    add_tensor(&call, a->a);
    add_tensor(&call, a->b);
    add_tensor(&call, a->y);
    atto__arg_float(&call.own, a->value);
    return launch_where(dev, &call, a->y->dtype);
}

static atto_status launch_where_gradient(atto_device *dev, const struct atto_where_args *a,
                                         const atto__layout *layout, const atto__gradient *to,
                                         bool wide_out)
{
    atto__elementwise call = call_of("atto_where_backward", NULL, layout);
    call.wide_out = wide_out;
    add_tensor(&call, a->cond);
    add_tensor(&call, a->dy);
    add_tensor(&call, to->out);
    atto__arg_uint(&call.own, to->of_b);
    atto__arg_uint(&call.own, to->add);
    return launch_where(dev, &call, a->dy->dtype);
}

static atto_status where_gradient(atto_device *dev, const struct atto_where_args *a,
                                  const atto__layout *layout, const atto__gradient *to)
{
    if (!to->out) return ATTO_OK;
    if (!atto__is_summed(to->out)) return launch_where_gradient(dev, a, layout, to, false);
    atto_buffer header;
    atto_tensor full;
    ATTO_TRY(atto__scratch_full(dev, layout, &header, &full));
    const atto__gradient whole = { &full, false, to->of_b };
    ATTO_TRY(launch_where_gradient(dev, a, layout, &whole, a->dy->dtype != ATTO_F32));
    const atto__reduction r = { .fold = ATTO_FOLD_SUM,
                                .in = &full,
                                .out = to->out,
                                .layout = layout,
                                .divisor = 1.0f,
                                .add = to->add };
    return atto__opencl_fold(dev, &r);
}

atto_status atto__opencl_where_backward(atto_device *dev, const struct atto_where_args *a,
                                        const atto__layout *layout)
{
    atto__gradient pair[] = { { a->da, a->add_da, false }, { a->db, a->add_db, true } };
    atto__gradients_order(pair, &a->dy, 1);
    ATTO_TRY(where_gradient(dev, a, layout, &pair[0]));
    return where_gradient(dev, a, layout, &pair[1]);
}

atto_status atto__opencl_where_prepare(atto_device *dev, atto_dtype dtype)
{
    ATTO_TRY(prepare(dev, "atto_where_forward", NULL, dtype, ATTO_FORM_ELEMENTS));
    return prepare(dev, "atto_where_backward", NULL, dtype, ATTO_FORM_ELEMENTS);
}

atto_status atto__opencl_compare_forward(atto_device *dev, const struct atto_compare_args *a,
                                         const atto__layout *layout)
{
    const bool is_integer = a->a->dtype == ATTO_I32 || a->a->dtype == ATTO_I64;
    atto__elementwise call = call_of("atto_compare_forward", NULL, layout);
    add_tensor(&call, a->a);
    add_tensor(&call, a->b);
    add_tensor(&call, a->y);
    atto__arg_float(&call.own, a->value);
    atto__arg_ulong(&call.own, is_integer && !a->b ? (uint64_t)(int64_t)a->value : 0);
    atto__variant variant;
    atto__compare_variant(a->a->dtype, atto_compare_name(a->kind), !a->b, layout->wide, &variant);
    return launch_elements(dev, &call, &variant);
}

/* Not reached: the check refuses it. */
atto_status atto__opencl_compare_backward(atto_device *dev, const struct atto_compare_args *a,
                                          const atto__layout *layout)
{
    (void)dev, (void)a, (void)layout;
    return ATTO_E_UNSUPPORTED;
}

atto_status atto__opencl_compare_prepare(atto_device *dev, atto_dtype dtype)
{
    atto__variant variant;
    atto__compare_variant(dtype, "eq", false, false, &variant);
    return atto__prepare(dev, &variant);
}
