/* SPDX-License-Identifier: MIT */
/* Modules that only arrange: Sequential, Flatten, Identity. */
#include <inttypes.h>
#include <stdio.h>

#include "alloc.h"
#include "train/module.h"

/* ---- Sequential ---- */

static atto_var sequential_forward(atto_module *m, atto_tape *tape, atto_var x)
{
    for (int32_t i = 0; i < atto__module_count(m); i++) {
        atto_module *child = atto__module_child_at(m, i);
        if (!child) continue; /* a parameter that the user has added */
        const bool was_fine = tape->status == ATTO_OK;
        x = atto_apply(tape, child, x);
        if (was_fine) atto__tape_blame(tape, i, atto_module_class_name(child));
    }
    return x;
}

static const atto_module_class sequential_class = { .name = "Sequential",
                                                    .forward = sequential_forward };

atto_status atto_sequential_create(atto_device *dev, atto_module **m)
{
    return atto_module_create(dev, &sequential_class, NULL, m);
}

atto_status atto_sequential_add(atto_module *m, atto_module *child)
{
    ATTO_REQUIRE(m && child, ATTO_E_NULL, "sequential_add: %s is NULL", m ? "child" : "m");
    ATTO_REQUIRE(atto__module_is(m, &sequential_class), ATTO_E_ARGUMENT,
                 "sequential_add: the module is a %s, expected a Sequential",
                 atto_module_class_name(m));
    char name[16];
    snprintf(name, sizeof name, "%" PRId32, atto__module_count(m));
    return atto_module_child(m, name, child);
}

/* The child that was just made, if it was, goes to m alone. */
static atto_status append(atto_module *m, atto_status made, atto_module **child)
{
    ATTO_TRY(made);
    const atto_status status = atto_sequential_add(m, *child);
    atto_module_free(*child);
    return status;
}

/* Makes a child, atto_<name>_create's, and appends it. */
#define APPEND(m, name, ...)                                         \
    atto_module *child = NULL;                                       \
    ATTO_REQUIRE(m, ATTO_E_NULL, "sequential_" #name ": m is NULL"); \
    return append(m, atto_##name##_create(atto_module_device(m), __VA_ARGS__, &child), &child)

atto_status atto_sequential_linear(atto_module *m, int64_t in, int64_t out,
                                   const atto_linear_options *options)
{
    APPEND(m, linear, in, out, options);
}

atto_status atto_sequential_act(atto_module *m, atto_activation act, float dropout)
{
    APPEND(m, act, act, dropout);
}

atto_status atto_sequential_dropout(atto_module *m, float p)
{
    APPEND(m, dropout, p);
}

atto_status atto_sequential_flatten(atto_module *m, int32_t start)
{
    APPEND(m, flatten, start);
}

atto_status atto_sequential_softmax(atto_module *m, atto_softmax_kind kind, int32_t dim)
{
    APPEND(m, softmax, kind, dim);
}

atto_status atto_sequential_glu(atto_module *m, int32_t dim, atto_activation act)
{
    APPEND(m, glu, dim, act);
}

atto_status atto_sequential_lstm(atto_module *m, int64_t in, int64_t hidden,
                                 const atto_rnn_module_options *options)
{
    APPEND(m, lstm, in, hidden, options);
}

atto_status atto_sequential_gru(atto_module *m, int64_t in, int64_t hidden,
                                const atto_rnn_module_options *options)
{
    APPEND(m, gru, in, hidden, options);
}

atto_status atto_sequential_embedding(atto_module *m, int64_t count, int64_t dims,
                                      const atto_embedding_module_options *options)
{
    APPEND(m, embedding, count, dims, options);
}

atto_status atto_sequential_layer_norm(atto_module *m, atto_shape normalised,
                                       const atto_norm_options *options)
{
    APPEND(m, layer_norm, normalised, options);
}

atto_status atto_sequential_rms_norm(atto_module *m, atto_shape normalised,
                                     const atto_norm_options *options)
{
    APPEND(m, rms_norm, normalised, options);
}

atto_status atto_sequential_group_norm(atto_module *m, int64_t groups, int64_t channels,
                                       const atto_norm_options *options)
{
    APPEND(m, group_norm, groups, channels, options);
}

atto_status atto_sequential_instance_norm1d(atto_module *m, int64_t channels,
                                            const atto_instance_norm_module_options *options)
{
    APPEND(m, instance_norm1d, channels, options);
}

atto_status atto_sequential_instance_norm2d(atto_module *m, int64_t channels,
                                            const atto_instance_norm_module_options *options)
{
    APPEND(m, instance_norm2d, channels, options);
}

atto_status atto_sequential_batch_norm1d(atto_module *m, int64_t channels,
                                         const atto_batch_norm_module_options *options)
{
    APPEND(m, batch_norm1d, channels, options);
}

atto_status atto_sequential_batch_norm2d(atto_module *m, int64_t channels,
                                         const atto_batch_norm_module_options *options)
{
    APPEND(m, batch_norm2d, channels, options);
}

atto_status atto_sequential_conv1d(atto_module *m, int64_t in, int64_t out, int64_t kernel,
                                   const atto_conv_module_options *options)
{
    APPEND(m, conv1d, in, out, kernel, options);
}

atto_status atto_sequential_conv2d(atto_module *m, int64_t in, int64_t out, int64_t kernel_h,
                                   int64_t kernel_w, const atto_conv_module_options *options)
{
    APPEND(m, conv2d, in, out, kernel_h, kernel_w, options);
}

atto_status atto_sequential_conv_transpose1d(atto_module *m, int64_t in, int64_t out,
                                             int64_t kernel,
                                             const atto_conv_module_options *options)
{
    APPEND(m, conv_transpose1d, in, out, kernel, options);
}

atto_status atto_sequential_conv_transpose2d(atto_module *m, int64_t in, int64_t out,
                                             int64_t kernel_h, int64_t kernel_w,
                                             const atto_conv_module_options *options)
{
    APPEND(m, conv_transpose2d, in, out, kernel_h, kernel_w, options);
}

atto_status atto_sequential_avg_pool1d(atto_module *m, int64_t kernel,
                                       const atto_avg_pool_options *options)
{
    APPEND(m, avg_pool1d, kernel, options);
}

atto_status atto_sequential_avg_pool2d(atto_module *m, int64_t kernel_h, int64_t kernel_w,
                                       const atto_avg_pool_options *options)
{
    APPEND(m, avg_pool2d, kernel_h, kernel_w, options);
}

atto_status atto_sequential_max_pool1d(atto_module *m, int64_t kernel,
                                       const atto_max_pool_options *options)
{
    APPEND(m, max_pool1d, kernel, options);
}

atto_status atto_sequential_max_pool2d(atto_module *m, int64_t kernel_h, int64_t kernel_w,
                                       const atto_max_pool_options *options)
{
    APPEND(m, max_pool2d, kernel_h, kernel_w, options);
}

atto_status atto_sequential_adaptive_avg_pool1d(atto_module *m, int64_t out)
{
    APPEND(m, adaptive_avg_pool1d, out);
}

atto_status atto_sequential_adaptive_avg_pool2d(atto_module *m, int64_t out_h, int64_t out_w)
{
    APPEND(m, adaptive_avg_pool2d, out_h, out_w);
}

atto_status atto_sequential_adaptive_max_pool1d(atto_module *m, int64_t out)
{
    APPEND(m, adaptive_max_pool1d, out);
}

atto_status atto_sequential_adaptive_max_pool2d(atto_module *m, int64_t out_h, int64_t out_w)
{
    APPEND(m, adaptive_max_pool2d, out_h, out_w);
}

atto_status atto_sequential_upsample1d(atto_module *m, int64_t out,
                                       const atto_resize_options *options)
{
    APPEND(m, upsample1d, out, options);
}

atto_status atto_sequential_upsample2d(atto_module *m, int64_t out_h, int64_t out_w,
                                       const atto_resize_options *options)
{
    APPEND(m, upsample2d, out_h, out_w, options);
}

atto_status atto_sequential_zero_pad1d(atto_module *m, int64_t left, int64_t right)
{
    APPEND(m, zero_pad1d, left, right);
}

atto_status atto_sequential_zero_pad2d(atto_module *m, int64_t left, int64_t right, int64_t top,
                                       int64_t bottom)
{
    APPEND(m, zero_pad2d, left, right, top, bottom);
}

atto_status atto_sequential_constant_pad1d(atto_module *m, int64_t left, int64_t right,
                                           double value)
{
    APPEND(m, constant_pad1d, left, right, value);
}

atto_status atto_sequential_constant_pad2d(atto_module *m, int64_t left, int64_t right, int64_t top,
                                           int64_t bottom, double value)
{
    APPEND(m, constant_pad2d, left, right, top, bottom, value);
}

atto_status atto_sequential_reflection_pad1d(atto_module *m, int64_t left, int64_t right)
{
    APPEND(m, reflection_pad1d, left, right);
}

atto_status atto_sequential_reflection_pad2d(atto_module *m, int64_t left, int64_t right,
                                             int64_t top, int64_t bottom)
{
    APPEND(m, reflection_pad2d, left, right, top, bottom);
}

atto_status atto_sequential_replication_pad1d(atto_module *m, int64_t left, int64_t right)
{
    APPEND(m, replication_pad1d, left, right);
}

atto_status atto_sequential_replication_pad2d(atto_module *m, int64_t left, int64_t right,
                                              int64_t top, int64_t bottom)
{
    APPEND(m, replication_pad2d, left, right, top, bottom);
}

atto_status atto_sequential_circular_pad1d(atto_module *m, int64_t left, int64_t right)
{
    APPEND(m, circular_pad1d, left, right);
}

atto_status atto_sequential_circular_pad2d(atto_module *m, int64_t left, int64_t right, int64_t top,
                                           int64_t bottom)
{
    APPEND(m, circular_pad2d, left, right, top, bottom);
}

/* ---- Flatten ---- */

static atto_status flat_shape(const atto_tensor *x, int32_t start, atto_shape *out)
{
    const int32_t first = start < 0 ? start + x->rank : start;
    ATTO_REQUIRE(first >= 0 && first < x->rank, ATTO_E_SHAPE,
                 "Flatten: from dimension %d on of a tensor of rank %d", (int)start, (int)x->rank);
    *out = atto_shape_of(first + 1, x->shape);
    for (int32_t d = first + 1; d < x->rank; d++) out->dim[first] *= x->shape[d];
    return ATTO_OK;
}

static atto_var flatten_forward(atto_module *m, atto_tape *tape, atto_var x)
{
    const int32_t *start = atto_module_data(m);
    const atto_tensor *t = atto__tape_tensor(tape, "Flatten", x);
    atto_shape shape;
    if (!t || atto__tape_fail(tape, flat_shape(t, *start, &shape)) != ATTO_OK)
        return atto__no_var();
    return atto_reshape(tape, x, shape);
}

static const atto_module_class flatten_class = { .name = "Flatten",
                                                 .forward = flatten_forward,
                                                 .destroy = atto__free };

atto_status atto_flatten_create(atto_device *dev, int32_t start, atto_module **m)
{
    ATTO_REQUIRE(m, ATTO_E_NULL, "flatten_create: m is NULL");
    return atto__module_make(dev, "flatten_create", &flatten_class, &start, sizeof start, NULL,
                             NULL, m);
}

/* ---- Identity ---- */

static atto_var identity_forward(atto_module *m, atto_tape *tape, atto_var x)
{
    (void)m, (void)tape;
    return x;
}

static const atto_module_class identity_class = { .name = "Identity", .forward = identity_forward };

atto_status atto_identity_create(atto_device *dev, atto_module **m)
{
    return atto_module_create(dev, &identity_class, NULL, m);
}
