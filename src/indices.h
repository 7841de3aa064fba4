/* SPDX-License-Identifier: MIT */
/* What index_select and gather share. */
#ifndef ATTO_INDICES_H
#define ATTO_INDICES_H

#include <attocl/tensor.h>

/* Bit of the device's error word: an index that names nothing. */
#define ATTO_ERROR_INDEX 2u

/* What takes the place of an element that an index does not name: NaN as f16 and as bf16, and both
 * halves of a NaN as f32. */
#define ATTO_NAN_HALF 0x7fc0u

#endif
