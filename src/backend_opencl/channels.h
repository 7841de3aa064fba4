/* SPDX-License-Identifier: MIT */
/* The steps of batch norm's kernels, which group norm takes as well. */
#ifndef ATTO_OPENCL_CHANNELS_H
#define ATTO_OPENCL_CHANNELS_H

#include "batch_norm.h"
#include "launch.h"

/* How a call is cut up: the kernels' words. The first group is the caller's to set, all else is
 * 0. */
typedef struct atto__bn_plan {
    atto_device *dev;
    const struct atto_batch_norm_args *a;
    atto__batch_norm g; /* group norm: channels are those of all images */
    bool backward, last;
    int64_t per_stat, params; /* channels that share statistics (1); with parameters (g.channels) */

    bool vectors, wide;
    int64_t run; /* elements of a unit */
    int64_t kept, per_run, folded, strips;
    int64_t slabs, per_slab;      /* of kernels that fold numbers, */
    int64_t written, per_written; /* and of those that write elements */
    int32_t columns;
    const atto_tensor *w, *b; /* in f32; NULL = none */
    atto_tensor converted[2], partial, numbers;
    atto_buffer headers[4];
    atto_tensor mean, rstd; /* what kernels read; the caller sets them behind begin */
} atto__bn_plan;

/* Chooses the cuts, and takes scratch: numbers is two arrays [g.channels]. */
atto_status atto__bn_begin(atto__bn_plan *p);

/* One of the two arrays. */
atto_tensor atto__bn_half(const atto__bn_plan *p, int64_t which);

/* Forward: moments of slabs; mean, rstd and running statistics; y. */
atto_status atto__bn_moments(const atto__bn_plan *p);
atto_status atto__bn_finish(const atto__bn_plan *p);
atto_status atto__bn_apply(const atto__bn_plan *p);

/* Backward: sums of slabs. */
atto_status atto__bn_sums(const atto__bn_plan *p);

/* Pairs of numbers to be added up: see atto_batch_norm_join. */
typedef struct atto__bn_pairs {
    const atto_tensor *from;
    int64_t channels, count, apart, second;
    const atto_tensor *sums, *w; /* NULL = not wanted, 1 */
    const atto_tensor *dw, *db;  /* NULL = not wanted */
    float values;
} atto__bn_pairs;

/* What sums has left behind. */
atto__bn_pairs atto__bn_slabs(const atto__bn_plan *p);
atto_status atto__bn_join(const atto__bn_plan *p, const atto__bn_pairs *k);

/* dx and dresidual; sums NULL: they do not count. */
atto_status atto__bn_dx(const atto__bn_plan *p, const atto_tensor *sums);

/* Launches a kernel that merges what slabs, channels or images have of each of so many channels.
 * out: of dw, db; parts: that a channel has. */
atto_status atto__bn_merge(const atto__bn_plan *p, const char *kernel, atto_dtype out,
                           const atto__args *args, int64_t channels, int64_t parts);

/* No values: no mean, and nothing to learn from. Tensors may be NULL. */
atto_status atto__bn_no_values(atto_device *dev, const atto_tensor *mean, const atto_tensor *rstd);

/* Builds the kernel that a call ends with before it updates what it also reads (running statistics,
 * gradients that are added to): one that cannot be built sends the whole call to the CPU, which
 * would update them once more. */
atto_status atto__bn_ensure(const atto__bn_plan *p, const char *kernel);

/* Builds the kernel for row-major images in that dtype. */
atto_status atto__bn_prepare(atto_device *dev, const char *kernel, atto_dtype dtype);

#endif
