/* SPDX-License-Identifier: MIT */
/* Functions that exist once per instruction level (compiled with ATTO_LEVEL=base, avx2, avx512). */
#ifndef ATTO_CPU_LEVEL_H
#define ATTO_CPU_LEVEL_H

#include "backend_cpu/cpu.h"

extern const atto__vtable ATTO_LEVEL_NAME(vtable);

atto_status ATTO_LEVEL_NAME(copy)(atto_device *dev, const atto_tensor *dst, const atto_tensor *src,
                                  const atto__layout *layout);
atto_status ATTO_LEVEL_NAME(fill)(atto_device *dev, const atto_tensor *dst, uint64_t bits,
                                  const atto__layout *layout);

atto_status ATTO_LEVEL_NAME(optim_norm)(atto_device *dev, const struct atto__optim_args *a);
atto_status ATTO_LEVEL_NAME(optim_begin)(atto_device *dev, const struct atto__optim_args *a);
atto_status ATTO_LEVEL_NAME(optim_step)(atto_device *dev, const struct atto__optim_args *a);

#define X(op, OP, shape_rule, autocast, in_place, random, data_errors)                             \
    atto_status ATTO_LEVEL_NAME(op##_forward)(atto_device * dev, const struct atto_##op##_args *a, \
                                              const atto__layout *layout);                         \
    atto_status ATTO_LEVEL_NAME(op##_backward)(                                                    \
        atto_device * dev, const struct atto_##op##_args *a, const atto__layout *layout);
ATTO_OP_TABLE(X)
#undef X

#endif
