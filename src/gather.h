/* SPDX-License-Identifier: MIT */
/* What both backends derive from the arguments of gather, and the scratch that some calls need. */
#ifndef ATTO_GATHER_H
#define ATTO_GATHER_H

#include <attocl/gather.h>

#include "device.h"
#include "indices.h"

/* The index as [outer, count, inner]. The element of (o, row, i) stands at o * outer_step + row *
 * row_step + i in source, x's or dx's part that lies beside the index. */
typedef struct atto__gather {
    int64_t outer, count, inner, rows;
    int64_t outer_step, row_step;
    atto_tensor source; /* the caller's tensor, or dense scratch, */
    atto_buffer header;
    bool is_scratch;
} atto__gather;

/* Forward: x is dense, and copied only where the index leaves out so much of it that two steps do
 * not lead through it. */
atto_status atto__gather_begin(atto_device *dev, const struct atto_gather_args *a,
                               atto__gather *out);

/* Backward: source is what gradients are added to, in f32, zeroed or with the old values; scratch
 * where dx is not f32 or cannot be walked. end rounds it to dx. */
atto_status atto__gather_begin_sums(atto_device *dev, const struct atto_gather_args *a,
                                    atto__gather *out);
atto_status atto__gather_end_sums(atto_device *dev, const struct atto_gather_args *a,
                                  const atto__gather *g);

#endif
