/* SPDX-License-Identifier: MIT */
/* Recurrent cells on OpenCL: see src/cl/rnn.cl. */
#include <attocl/rnn.h>

#include "cl/atto_rnn_flags.h"
#include "layout.h"
#include "walk.h"

/* 32 bits are enough below so many elements. */
#define MOST_NARROW (INT32_MAX - (1 << 24))

#define MOST_TENSORS 7

/* A call, its tensors in the kernel's order; NULL where one is not there. */
typedef struct call {
    const char *kernel;
    const atto_tensor *tensors[MOST_TENSORS];
    int32_t count;
    const atto_tensor *state; /* one of [rows, H] */
    uint32_t has;
} call;

/* Rows can be moved 16 bytes at a time, and need 64-bit offsets. */
static void survey(const atto_device *dev, const call *k, bool *vectors, bool *wide)
{
    const int32_t vector = atto__vector_elements(k->state->dtype);
    const int64_t width = k->state->shape[1];
    *vectors = width % vector == 0;
    *wide = dev->options.set.index_bits == 64;
    for (int32_t i = 0; i < k->count; i++) {
        const atto_tensor *t = k->tensors[i];
        if (!t) continue;
        *vectors = *vectors && t->offset % vector == 0 && t->stride[0] % vector == 0;
        *wide = *wide || atto__extent(t) > MOST_NARROW || k->state->shape[0] * width > MOST_NARROW;
    }
}

static atto_status launch(atto_device *dev, const call *k)
{
    bool vectors, wide;
    survey(dev, k, &vectors, &wide);
    const atto__rnn_knobs knobs = { k->kernel, k->state->dtype, vectors, wide };
    atto__variant variant;
    atto__rnn_variant(&knobs, &variant);
    const int64_t run = vectors ? atto__vector_elements(k->state->dtype) : 1;
    const int64_t width = k->state->shape[1], per_row = width / run;
    const int64_t runs = k->state->shape[0] * per_row;
    atto__args args;
    args.count = 0;
    for (int32_t i = 0; i < k->count; i++) atto__arg_matrix(&args, wide, k->tensors[i]);
    atto__arg_index(&args, wide, runs);
    atto__arg_index(&args, wide, per_row);
    atto__arg_index(&args, wide, width);
    atto__arg_divider(&args, wide, per_row);
    atto__arg_uint(&args, k->has);
    return atto__launch(dev, &variant, &args,
                        atto__group_count(runs, atto__opencl_of(dev)->group_size));
}

static uint32_t bit(bool is_set, uint32_t value)
{
    return is_set ? value : 0;
}

atto_status atto__opencl_lstm_cell_forward(atto_device *dev, const struct atto_lstm_cell_args *a,
                                           const atto__layout *layout)
{
    (void)layout;
    const call k = { "atto_lstm_cell_forward",
                     { a->x, a->c, a->y, a->cy, a->gates },
                     5,
                     a->c,
                     bit(a->gates, ATTO_RNN_GATES) };
    return launch(dev, &k);
}

atto_status atto__opencl_lstm_cell_backward(atto_device *dev, const struct atto_lstm_cell_args *a,
                                            const atto__layout *layout)
{
    (void)layout;
    const call k = { "atto_lstm_cell_backward",
                     { a->c, a->cy, a->gates, a->dy, a->dcy, a->dx, a->dc },
                     7,
                     a->c,
                     bit(a->dy, ATTO_RNN_DY) | bit(a->dcy, ATTO_RNN_DCY) | bit(a->dx, ATTO_RNN_DX) |
                         bit(a->dc, ATTO_RNN_DH) | bit(a->add_dx, ATTO_RNN_ADD_DX) |
                         bit(a->add_dc, ATTO_RNN_ADD_DH) };
    return launch(dev, &k);
}

atto_status atto__opencl_gru_cell_forward(atto_device *dev, const struct atto_gru_cell_args *a,
                                          const atto__layout *layout)
{
    (void)layout;
    const call k = { "atto_gru_cell_forward",
                     { a->x, a->u, a->h, a->y, a->gates },
                     5,
                     a->h,
                     bit(a->gates, ATTO_RNN_GATES) };
    return launch(dev, &k);
}

atto_status atto__opencl_gru_cell_backward(atto_device *dev, const struct atto_gru_cell_args *a,
                                           const atto__layout *layout)
{
    (void)layout;
    const call k = { "atto_gru_cell_backward",
                     { a->h, a->gates, a->dy, a->dx, a->du, a->dh },
                     6,
                     a->h,
                     bit(a->dx, ATTO_RNN_DX) | bit(a->du, ATTO_RNN_DU) | bit(a->dh, ATTO_RNN_DH) |
                         bit(a->add_dx, ATTO_RNN_ADD_DX) | bit(a->add_du, ATTO_RNN_ADD_DU) |
                         bit(a->add_dh, ATTO_RNN_ADD_DH) };
    return launch(dev, &k);
}

static atto_status prepare(atto_device *dev, const char *kernel, atto_dtype dtype)
{
    const atto__rnn_knobs knobs = { kernel, dtype, true, false };
    atto__variant variant;
    atto__rnn_variant(&knobs, &variant);
    return atto__prepare(dev, &variant);
}

atto_status atto__opencl_lstm_cell_prepare(atto_device *dev, atto_dtype dtype)
{
    ATTO_TRY(prepare(dev, "atto_lstm_cell_forward", dtype));
    return prepare(dev, "atto_lstm_cell_backward", dtype);
}

atto_status atto__opencl_gru_cell_prepare(atto_device *dev, atto_dtype dtype)
{
    ATTO_TRY(prepare(dev, "atto_gru_cell_forward", dtype));
    return prepare(dev, "atto_gru_cell_backward", dtype);
}
