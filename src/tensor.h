/* SPDX-License-Identifier: MIT */
/* What run.c and fallback.c need of tensor.c. */
#ifndef ATTO_TENSOR_H
#define ATTO_TENSOR_H

#include "device.h"

/* dst = src on one device, any rank: checks are done. Walks that do not merge to ATTO_MERGED_RANK
 * dimensions become several launches. */
atto_status atto__copy(atto_device *dev, const atto_tensor *dst, const atto_tensor *src);

/* A value of that dtype in the low bytes, rounded as atto_tensor_fill does. */
uint64_t atto__bits_of(atto_dtype dtype, double value);

/* Every element = value, rounded to the dtype; for backends and others inside a call, whose scratch
 * it leaves alone. */
atto_status atto__fill(atto_device *dev, const atto_tensor *t, double value);

#endif
