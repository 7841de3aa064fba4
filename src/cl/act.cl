/* SPDX-License-Identifier: MIT */
/* act.cl - activations, with dropout behind them.
 *
 *   forward    y  = drop(act(x))
 *   backward   dx = drop(act'(x) * dy)   (+ dx)
 *
 * atto_elementwise.inc holds the walk.
 *
 *   -D        default         meaning
 *   ATTO_ACT  attom_identity  function of atto_math.h; its derivative is ATTO_ACT with _grad
 *   and those of atto_kernel.h and atto_dropout.h
 */
#include "atto_kernel.h"
#include "atto_dropout.h"

#ifndef ATTO_ACT
#define ATTO_ACT attom_identity
#endif
#define ATTO_ACT_GRAD ATTO_PASTE(ATTO_ACT, _grad)

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_act_forward)
#define ATTO_NAME      atto_act_forward
#define ATTO_INPUTS(F) F(x)
#define ATTO_NUMBERS   , const float a, const float b
#define ATTO_VALUE(k)  ATTO_ACT(x[k], a, b)
#define ATTO_ADDS      0
#include "atto_elementwise.inc"
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_act_backward)
#define ATTO_NAME      atto_act_backward
#define ATTO_INPUTS(F) F(x) F(dy)
#define ATTO_NUMBERS   , const float a, const float b
#define ATTO_VALUE(k)  (ATTO_ACT_GRAD(x[k], a, b) * dy[k])
#define ATTO_ADDS      1
#include "atto_elementwise.inc"
#endif
