/* SPDX-License-Identifier: MIT */
/* The CPU backend's table for one instruction level. A missing op is a link error. */
#include "backend_cpu/level.h"

const atto__vtable ATTO_LEVEL_NAME(vtable) = { .name = "cpu",
                                               .close = atto__cpu_close,
                                               .alloc = atto__cpu_alloc,
                                               .release = atto__cpu_release,
                                               .wrap = atto__cpu_wrap,
                                               .unwrap = atto__cpu_unwrap,
                                               .write = atto__cpu_write,
                                               .read = atto__cpu_read,
                                               .poll = atto__cpu_poll,
                                               .map = atto__cpu_map,
                                               .unmap = atto__cpu_unmap,
                                               .sync = atto__cpu_sync,
                                               .copy = ATTO_LEVEL_NAME(copy),
                                               .fill = ATTO_LEVEL_NAME(fill),
                                               .kernel_create = atto__cpu_kernel_create,
                                               .kernel_destroy = atto__cpu_kernel_destroy,
                                               .launch = atto__cpu_launch,
                                               .optim_norm = ATTO_LEVEL_NAME(optim_norm),
                                               .optim_begin = ATTO_LEVEL_NAME(optim_begin),
                                               .optim_step = ATTO_LEVEL_NAME(optim_step),
                                               .event_record = atto__cpu_event_record,
                                               .event_elapsed = atto__cpu_event_elapsed,
                                               .event_destroy = atto__cpu_event_destroy,
                                               .supports = atto__cpu_supports,
#define X(op, OP, layout, autocast, in_place, random, data_errors) \
    .op##_forward = ATTO_LEVEL_NAME(op##_forward), .op##_backward = ATTO_LEVEL_NAME(op##_backward),
                                               ATTO_OP_TABLE(X)
#undef X
};
