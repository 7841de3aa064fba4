/* SPDX-License-Identifier: MIT */
/* dropout.cl - dropout on its own.
 *
 *   forward    y  = drop(x)
 *   backward   dx = drop(dy)   (+ dx)
 *
 * atto_elementwise.inc holds the walk. Knobs: those of atto_kernel.h and atto_dropout.h.
 */
#include "atto_kernel.h"
#include "atto_dropout.h"

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_dropout_forward)
#define ATTO_NAME      atto_dropout_forward
#define ATTO_INPUTS(F) F(x)
#define ATTO_NUMBERS
#define ATTO_VALUE(k) x[k]
#define ATTO_ADDS     0
#include "atto_elementwise.inc"
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_dropout_backward)
#define ATTO_NAME      atto_dropout_backward
#define ATTO_INPUTS(F) F(dy)
#define ATTO_NUMBERS
#define ATTO_VALUE(k) dy[k]
#define ATTO_ADDS     1
#include "atto_elementwise.inc"
#endif
