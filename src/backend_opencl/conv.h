/* SPDX-License-Identifier: MIT */
/* What conv.c and conv_depthwise.c share. */
#ifndef ATTO_OPENCL_CONV_H
#define ATTO_OPENCL_CONV_H

#include "cl/atto_conv_flags.h"
#include "convolution.h"
#include "divide.h"
#include "layout.h"
#include "walk.h"

/* A call. */
typedef struct conv {
    atto_device *dev;
    const struct atto_conv_args *a;
    atto__convolution c;
    bool channels, wide;
} conv;

/* What a walk makes, and of which spots. */
typedef struct conv_result {
    const atto_tensor *out;
    int64_t outputs; /* channels of a group */
    atto__conv_walk h, w;
    bool fused; /* forward: bias, z, activation, residual */
    bool add;
    bool quads; /* the kernel stores four at a time where these are neighbours */
} conv_result;

static inline int64_t atto__conv_round_up(int64_t n, int64_t to)
{
    return atto__divide_up(n, to) * to;
}

static inline int64_t atto__conv_groups(const conv *v, int64_t items)
{
    return atto__group_count(items, atto__opencl_of(v->dev)->group_size);
}

static inline void atto__conv_arg_image(atto__args *args, const conv *v, const atto_tensor *t)
{
    atto__arg_tensor(args, t);
    atto__arg_index4(args, v->wide, t->stride);
}

/* Whether quads of elements begin at multiples of four along all other dimensions. */
static inline bool atto__conv_divides4(const atto_tensor *t, const int32_t *dims, int32_t count)
{
    bool all = t->offset % 4 == 0;
    for (int32_t i = 0; i < count; i++)
        all = all && (t->shape[dims[i]] == 1 || t->stride[dims[i]] % 4 == 0);
    return all;
}

atto_status atto__conv_launch(const conv *v, const atto__conv_knobs *knobs, const atto__args *args,
                              int64_t groups);

/* ATTO_CONV_OUT_PARAMETERS */
void atto__conv_arg_out(atto__args *args, const conv *v, const conv_result *r);

/* Slices, at most `most`, of a sum that so many work-groups share: the fewest with which nine
 * tenths of a device's places have work until the end. */
int64_t atto__conv_slices(int64_t groups, int64_t places, int64_t most);

/* dw from slices of sums, [slice][output][columns]: taps of all inputs of a group, these rounded up
 * to a vector where channels are innermost. */
atto_status atto__conv_finish_filter(const conv *v, int64_t inputs, int64_t vector,
                                     const atto_tensor *sums, int64_t columns, int64_t slices);

/* A dense copy in scratch, the second dimension innermost. */
atto_status atto__conv_copy_to_channels(const conv *v, const atto_tensor *t, atto_buffer *header,
                                        atto_tensor *out);

/* ---- conv_depthwise.c ---- */

static inline bool atto__conv_is_depthwise(const conv *v)
{
    return v->c.groups > 1 && v->c.big_channels == 1 && v->c.small_channels == 1;
}

atto_status atto__conv_depthwise(const conv *v, const atto_tensor *in, const conv_result *r,
                                 bool to_big);
atto_status atto__conv_depthwise_filter(const conv *v, const atto_tensor *big,
                                        const atto_tensor *small);

#endif
