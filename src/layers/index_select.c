/* SPDX-License-Identifier: MIT */
/* Rows that an index names: checks, the public calls, recording, and embedding with its module. */
#include <inttypes.h>
#include <stddef.h>

#include "alloc.h"
#include "layers/checks.h"
#include "train/module.h"

static int32_t positive(int32_t dim, int32_t rank)
{
    return dim < 0 ? dim + rank : dim;
}

/* x, or dx, which stands for it in backward. */
static atto_status check_x(const char *what, const char *name, const atto_tensor *x, int32_t dim)
{
    ATTO_REQUIRE(atto__is_float(x->dtype), ATTO_E_DTYPE, "%s: %s is %s, expected f32, f16 or bf16",
                 what, name, atto_dtype_name(x->dtype));
    ATTO_REQUIRE(x->rank > 0, ATTO_E_SHAPE, "%s: %s has no dimension to select from", what, name);
    return atto__dim_check(what, dim, x->rank);
}

static atto_status check_index(const char *what, const atto_tensor *index)
{
    ATTO_REQUIRE(index->dtype == ATTO_I32 || index->dtype == ATTO_I64, ATTO_E_DTYPE,
                 "%s: index is %s, expected i32 or i64", what, atto_dtype_name(index->dtype));
    return ATTO_OK;
}

static atto_status check_padding(const char *what, bool has, int64_t padding, int64_t rows)
{
    ATTO_REQUIRE(!has || (padding >= 0 && padding < rows), ATTO_E_ARGUMENT,
                 "%s: padding is %" PRId64 ", expected one of %" PRId64 " rows, from 0", what,
                 padding, rows);
    return ATTO_OK;
}

/* x's shape with the index's in the place of dimension dim, which x has. */
static atto_status shape_of_y(const char *what, const atto_tensor *x, const atto_tensor *index,
                              int32_t dim, atto_shape *out)
{
    const int32_t at = positive(dim, x->rank);
    ATTO_REQUIRE(x->rank - 1 + index->rank <= ATTO_MAX_RANK, ATTO_E_SHAPE,
                 "%s: y would have %d dimensions, expected at most %d", what,
                 (int)(x->rank - 1 + index->rank), ATTO_MAX_RANK);
    *out = atto_shape0();
    for (int32_t d = 0; d < at; d++) out->dim[out->rank++] = x->shape[d];
    for (int32_t d = 0; d < index->rank; d++) out->dim[out->rank++] = index->shape[d];
    for (int32_t d = at + 1; d < x->rank; d++) out->dim[out->rank++] = x->shape[d];
    return ATTO_OK;
}

atto_status atto__index_select_check(const struct atto_index_select_args *a,
                                     atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    const char *what = forward ? "index_select_forward" : "index_select_backward";
    const atto_tensor *x = forward ? a->x : a->dx;
    atto_shape shape;
    ATTO_TRY(check_index(what, a->index));
    if (!x) return ATTO_OK; /* nothing is wanted */
    ATTO_TRY(check_x(what, forward ? "x" : "dx", x, a->dim));
    ATTO_TRY(check_padding(what, a->has_padding, a->padding, x->shape[positive(a->dim, x->rank)]));
    ATTO_TRY(shape_of_y(what, x, a->index, a->dim, &shape));
    const atto__expected parts[] = {
        { "y", forward ? a->y : NULL, shape, x->dtype, false },
        { "dy", forward ? NULL : a->dy, shape, x->dtype, false },
    };
    return atto__tensors_check(what, parts, COUNT_OF(parts));
}

atto_status atto_index_select_forward(atto_device *dev, const struct atto_index_select_args *a)
{
    return atto__run(dev, ATTO_OP_INDEX_SELECT, ATTO_FORWARD, a);
}

atto_status atto_index_select_backward(atto_device *dev, const struct atto_index_select_args *a)
{
    return atto__run(dev, ATTO_OP_INDEX_SELECT, ATTO_BACKWARD, a);
}

/* ---- on a tape ---- */

#define FIELD(name) offsetof(struct atto_index_select_args, name)

static atto_var record(atto_tape *tape, const char *what, atto_var x, atto_var index,
                       struct atto_index_select_args *args)
{
    const atto_tensor *t = atto__tape_tensor(tape, what, x);
    const atto_tensor *i = atto__tape_tensor(tape, what, index);
    atto_shape shape;
    if (!t || !i || atto__tape_fail(tape, check_x(what, "x", t, args->dim)) != ATTO_OK ||
        atto__tape_fail(tape, shape_of_y(what, t, i, args->dim, &shape)) != ATTO_OK)
        return atto__no_var();
    const atto__binding inputs[] = { { .field = FIELD(x), .v = x },
                                     { .field = FIELD(index), .v = index } };
    const atto__result y = { .field = FIELD(y), .like_inputs = true, .shape = shape };
    return atto__record_op(tape, ATTO_OP_INDEX_SELECT, args, inputs, 2, &y, 1);
}

atto_var atto_index_select(atto_tape *tape, atto_var x, int32_t dim, atto_var index)
{
    struct atto_index_select_args args = { .dim = dim };
    return record(tape, "index_select", x, index, &args);
}

atto_var atto_embedding(atto_tape *tape, atto_var weight, atto_var index,
                        const atto_embedding_options *options)
{
    struct atto_index_select_args args = { .dim = 0 };
    if (tape && options) {
        const atto_status status = atto__reserved_check("embedding: options", options->reserved);
        if (atto__tape_fail(tape, status) != ATTO_OK) return atto__no_var();
        args.has_padding = options->has_padding;
        args.padding = options->padding;
    }
    return record(tape, "embedding", weight, index, &args);
}

/* ---- as a module ---- */

typedef struct embedding_module {
    atto_param *weight; /* borrowed from the module */
    atto_embedding_options options;
    int64_t count, dims;
} embedding_module;

static atto_var embedding_forward(atto_module *m, atto_tape *tape, atto_var x)
{
    const embedding_module *data = atto_module_data(m);
    return atto_embedding(tape, atto_use(tape, data->weight), x, &data->options);
}

static const atto_module_class embedding_class = { .name = "Embedding",
                                                   .forward = embedding_forward,
                                                   .destroy = atto__free };

/* Source: PyTorch 2.11 torch.nn.Embedding.reset_parameters. */
static atto_status add_weight(atto_module *m, void *data_, const void *options)
{
    embedding_module *data = data_;
    const atto_embedding_module_options *o = options;
    const atto_dtype dtype = o->dtype ? o->dtype : ATTO_F32;
    const atto_shape shape = atto_shape2(data->count, data->dims);
    ATTO_TRY(atto_module_param(m, "weight", dtype, shape, &data->weight));
    ATTO_TRY(atto_param_init_normal(data->weight, 0.0, 1.0));
    if (!o->has_padding) return ATTO_OK;
    atto_tensor row = atto_param_value(data->weight);
    row.offset += o->padding * row.stride[0];
    row.shape[0] = 1;
    return atto_tensor_fill(&row, 0.0);
}

atto_status atto_embedding_create(atto_device *dev, int64_t count, int64_t dims,
                                  const atto_embedding_module_options *options, atto_module **m)
{
    const char *what = "embedding_create";
    const atto_embedding_module_options none = { .has_padding = false };
    const atto_embedding_module_options *o = options ? options : &none;
    ATTO_REQUIRE(m, ATTO_E_NULL, "%s: m is NULL", what);
    *m = NULL;
    ATTO_REQUIRE(count >= 0 && dims >= 0, ATTO_E_SHAPE, "%s: %s is %" PRId64 ", expected 0 or more",
                 what, count < 0 ? "count" : "dims", count < 0 ? count : dims);
    ATTO_TRY(atto__reserved_check("embedding_create: options", o->reserved));
    ATTO_TRY(check_padding(what, o->has_padding, o->padding, count));
    const embedding_module data = {
        .options = { .has_padding = o->has_padding, .padding = o->padding },
        .count = count,
        .dims = dims,
    };
    return atto__module_make(dev, what, &embedding_class, &data, sizeof data, add_weight, o, m);
}
