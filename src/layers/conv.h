/* SPDX-License-Identifier: MIT */
/* What functions on a tape and modules share of convolutions. */
#ifndef ATTO_LAYERS_CONV_H
#define ATTO_LAYERS_CONV_H

#include <attocl/conv.h>
#include <attocl/record.h>

#include "train/tape.h"

/* Of kernels, strides, paddings, dilations and sizes: their products fit in 63 bits. */
#define ATTO_CONV_MOST INT32_MAX

/* What a recording function or a module is asked for. The window lacks the padding of `same`, which
 * the kernel decides. */
typedef struct atto__conv_request {
    const char *what;
    atto_conv_window window;
    int64_t output_padding[2];
    bool same;
    atto_pad_kind padding_mode;
    atto_activation act;
} atto__conv_request;

/* Options that functions and modules have in common. */
typedef struct atto__conv_geometry {
    const int64_t *stride, *padding, *dilation, *output_padding;
    int64_t groups;
    bool same;
    atto_pad_kind padding_mode;
} atto__conv_geometry;

/* Zeros of the options become what they stand for. */
atto_status atto__conv_request_make(const char *what, int32_t dims, bool transposed,
                                    const atto__conv_geometry *g, atto_activation act,
                                    atto__conv_request *r);

/* status: what making the request gave. */
atto_var atto__conv_record(atto_tape *tape, atto_status status, const atto__conv_request *r,
                           atto_var x, atto_var w, const atto_var *bias, const atto_var *residual);

#endif
