/* SPDX-License-Identifier: MIT */
/* Attention on the CPU. */
#include "attention.h"

#include "backend_cpu/loops.h"

atto_status ATTO_LEVEL_NAME(attention_forward)(atto_device *dev,
                                               const struct atto_attention_args *a,
                                               const atto__layout *layout)
{
    (void)layout, (void)a;
    dev->stats.launches++;
    return ATTO_OK;
}

atto_status ATTO_LEVEL_NAME(attention_backward)(atto_device *dev,
                                                const struct atto_attention_args *a,
                                                const atto__layout *layout)
{
    (void)layout, (void)a;
    dev->stats.launches++;
    return ATTO_OK;
}
