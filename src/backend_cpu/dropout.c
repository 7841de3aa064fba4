/* SPDX-License-Identifier: MIT */
/* Dropout on the CPU.
 *
 *   forward    y  = drop(x)
 *   backward   dx = drop(dy)    (+ dx)
 */
#include <string.h>

#include "backend_cpu/mask.h"

typedef struct dropout_job {
    const atto_tensor *in, *out;
    bool add;
    const atto__layout *layout;
    atto__mask mask;
} dropout_job;

static void block(const void *job_, const block_at *at)
{
    const dropout_job *job = job_;
    float in_buffer[ATTO_BLOCK], out_buffer[ATTO_BLOCK];
    const span to = span_of(job->out, at);
    const float *in = load_block(span_of(job->in, at), in_buffer);
    float *out = job->add ? out_buffer : store_target(to, out_buffer);
    if (in != out) memcpy(out, in, (size_t)at->n * sizeof *out);
    if (job->mask.p > 0.0f) drop_block(out, &job->mask, job->layout, at);
    if (job->add) accumulate_block(out, to, in_buffer);
    store_block(out, to);
}

atto_status ATTO_LEVEL_NAME(dropout_forward)(atto_device *dev, const struct atto_dropout_args *a,
                                             const atto__layout *layout)
{
    const dropout_job job = { a->x, a->y, false, layout, atto__mask_of(a->p, a->rng) };
    return for_each_block(dev, layout, block, &job);
}

atto_status ATTO_LEVEL_NAME(dropout_backward)(atto_device *dev, const struct atto_dropout_args *a,
                                              const atto__layout *layout)
{
    const dropout_job job = { a->dy, a->dx, a->add_dx, layout, atto__mask_of(a->p, a->rng) };
    return for_each_block(dev, layout, block, &job);
}
