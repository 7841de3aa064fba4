/* SPDX-License-Identifier: MIT */
/* elementwise.cl - arithmetic element by element; broadcast tensors come with strides 0.
 *
 *   unary     y = f(x)               dx = f'(x, dy)         (+ dx)
 *   binary    y = f(a, b)            d = f'(a, b, dy)       (+ d)    one launch for each gradient
 *   where     y = cond ? a : b       d = cond ? dy : 0, or the other way round
 *   compare   y = a < b
 *
 * atto_elementwise.inc holds the walk of unary and binary. where and compare mix dtypes of
 * different sizes: each work-item takes one element, dense tensors too.
 *
 *   -D             default             meaning
 *   ATTO_FORMULA   attom_unary_neg     function of atto_math.h
 *   ATTO_SCALAR    0                   bit 0: the number value stands for a; bit 1: for b
 *   ATTO_FROM      f32                 compare: storage of a and b: f32 f16 bf16 i32 i64
 *   ATTO_COMPARE   eq                  compare: eq ne lt le gt ge
 *   ATTO_WIDE_OUT  0                   where, backward: 1: the gradient is f32, to be summed
 *   and those of atto_kernel.h and atto_elementwise.inc
 */
#include "atto_kernel.h"
#include "atto_dropout.h"

#ifndef ATTO_SCALAR
#define ATTO_SCALAR 0
#endif
#ifndef ATTO_WIDE_OUT
#define ATTO_WIDE_OUT 0
#endif
#ifndef ATTO_FROM
#define ATTO_FROM f32
#endif
#ifndef ATTO_COMPARE
#define ATTO_COMPARE eq
#endif

/* An operand as an input of the kernel, or none, and its element. */
#if ATTO_SCALAR & 1
#define ATTO_A_INPUT(F)
#define ATTO_A(k) value
#else
#define ATTO_A_INPUT(F) F(a)
#define ATTO_A(k)       a[k]
#endif
#if ATTO_SCALAR & 2
#define ATTO_B_INPUT(F)
#define ATTO_B(k) value
#else
#define ATTO_B_INPUT(F) F(b)
#define ATTO_B(k)       b[k]
#endif

/* Each kernel's default, so that the file compiles alone. */
#ifdef ATTO_FORMULA
#define ATTO_UNARY       ATTO_FORMULA
#define ATTO_UNARY_GRAD  ATTO_FORMULA
#define ATTO_BINARY      ATTO_FORMULA
#define ATTO_BINARY_GRAD ATTO_FORMULA
#else
#define ATTO_UNARY       attom_unary_neg
#define ATTO_UNARY_GRAD  attom_unary_neg_grad
#define ATTO_BINARY      attom_binary_add
#define ATTO_BINARY_GRAD attom_binary_add_da
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_unary_forward)
#define ATTO_NAME      atto_unary_forward
#define ATTO_INPUTS(F) F(x)
#define ATTO_NUMBERS   , const float lo, const float hi
#define ATTO_VALUE(k)  ATTO_UNARY(x[k], lo, hi)
#define ATTO_ADDS      0
#include "atto_elementwise.inc"
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_unary_backward)
#define ATTO_NAME      atto_unary_backward
#define ATTO_INPUTS(F) F(x) F(dy)
#define ATTO_NUMBERS   , const float lo, const float hi
#define ATTO_VALUE(k)  ATTO_UNARY_GRAD(x[k], dy[k], lo, hi)
#define ATTO_ADDS      1
#include "atto_elementwise.inc"
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_binary_forward)
#define ATTO_NAME      atto_binary_forward
#define ATTO_INPUTS(F) ATTO_A_INPUT(F) ATTO_B_INPUT(F)
#define ATTO_NUMBERS   , const float value
#define ATTO_VALUE(k)  ATTO_BINARY(ATTO_A(k), ATTO_B(k))
#define ATTO_ADDS      0
#include "atto_elementwise.inc"
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_binary_backward)
#define ATTO_NAME      atto_binary_backward
#define ATTO_INPUTS(F) ATTO_A_INPUT(F) ATTO_B_INPUT(F) F(dy)
#define ATTO_NUMBERS   , const float value
#define ATTO_VALUE(k)  ATTO_BINARY_GRAD(ATTO_A(k), ATTO_B(k), dy[k])
#define ATTO_ADDS      1
#include "atto_elementwise.inc"
#endif

/* ---- where ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_where_forward)
#define ATTO_POINTER(t) __global const ATTO_T *t, const ulong t##_at,
#define ATTO_STRIDE(t)  const atto_index4 t##_stride,
#define ATTO_LOAD(t)    const float t##_value = atto_load(t + t##_at, atto_dot(at, t##_stride));
#define ATTO_NONE(t)    const float t##_value = value;

ATTO_KERNEL void atto_where_forward_strided(__global const int *cond, const ulong cond_at,
                                            ATTO_A_INPUT(ATTO_POINTER) ATTO_B_INPUT(ATTO_POINTER)
                                                __global ATTO_T *y,
                                            const ulong y_at, ATTO_WALK_PARAMETERS,
                                            const atto_index4 cond_stride,
                                            ATTO_A_INPUT(ATTO_STRIDE) ATTO_B_INPUT(ATTO_STRIDE)
                                                const atto_index4 y_stride,
                                            const float value)
{
    const atto_index t = get_global_id(0);
    if (t >= runs) return;
    const atto_index4 at = atto_walk(t, size, magic, shift);
#if ATTO_SCALAR & 1
    ATTO_NONE(a)
#else
    ATTO_LOAD(a)
#endif
#if ATTO_SCALAR & 2
    ATTO_NONE(b)
#else
    ATTO_LOAD(b)
#endif
    const bool is_true = cond[cond_at + atto_dot(at, cond_stride)] != 0;
    atto_store(y + y_at, atto_dot(at, y_stride), is_true ? a_value : b_value);
}
#endif

/* The gradient of a where cond is not 0 (of_b 0), or of b where it is. */
#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_where_backward)
#if ATTO_WIDE_OUT
#define ATTO_GRAD_T           float
#define ATTO_GRAD_LOAD(p)     (*(p))
#define ATTO_GRAD_STORE(p, v) (*(p) = (v))
#else
#define ATTO_GRAD_T           ATTO_T
#define ATTO_GRAD_LOAD(p)     atto_load(p, 0)
#define ATTO_GRAD_STORE(p, v) atto_store(p, 0, v)
#endif

ATTO_KERNEL void atto_where_backward_strided(
    __global const int *cond, const ulong cond_at, __global const ATTO_T *dy, const ulong dy_at,
    __global ATTO_GRAD_T *d, const ulong d_at, ATTO_WALK_PARAMETERS, const atto_index4 cond_stride,
    const atto_index4 dy_stride, const atto_index4 d_stride, const uint of_b, const uint add)
{
    const atto_index t = get_global_id(0);
    if (t >= runs) return;
    const atto_index4 at = atto_walk(t, size, magic, shift);
    const bool is_false = cond[cond_at + atto_dot(at, cond_stride)] == 0;
    const float upstream = atto_load(dy + dy_at, atto_dot(at, dy_stride));
    float v = is_false == (of_b != 0) ? upstream : 0.0f;
    d += d_at + atto_dot(at, d_stride);
    if (add) v += ATTO_GRAD_LOAD(d);
    ATTO_GRAD_STORE(d, v);
}
#endif

/* ---- compare ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_compare_forward)
typedef int atto_i32;
typedef long atto_i64;
#define from_t ATTO_PASTE(atto_, ATTO_FROM)

/* What is compared: floats, or integers as long. */
#define ATTO_NUMBER_f32(v)  (v)
#define ATTO_NUMBER_f16(v)  atto_widen_f16(v)
#define ATTO_NUMBER_bf16(v) atto_widen_bf16(v)
#define ATTO_NUMBER_i32(v)  ((long)(v))
#define ATTO_NUMBER_i64(v)  (v)
#define ATTO_VALUE_f32      value
#define ATTO_VALUE_f16      value
#define ATTO_VALUE_bf16     value
#define ATTO_VALUE_i32      whole
#define ATTO_VALUE_i64      whole

#define ATTO_COMPARE_eq(a, b) ((a) == (b))
#define ATTO_COMPARE_ne(a, b) ((a) != (b))
#define ATTO_COMPARE_lt(a, b) ((a) < (b))
#define ATTO_COMPARE_le(a, b) ((a) <= (b))
#define ATTO_COMPARE_gt(a, b) ((a) > (b))
#define ATTO_COMPARE_ge(a, b) ((a) >= (b))

#define ATTO_NUMBER(v) ATTO_PASTE(ATTO_NUMBER_, ATTO_FROM)(v)

ATTO_KERNEL void atto_compare_forward_strided(__global const from_t *a, const ulong a_at,
#if !(ATTO_SCALAR & 2)
                                              __global const from_t *b, const ulong b_at,
#endif
                                              __global int *y, const ulong y_at,
                                              ATTO_WALK_PARAMETERS, const atto_index4 a_stride,
#if !(ATTO_SCALAR & 2)
                                              const atto_index4 b_stride,
#endif
                                              const atto_index4 y_stride, const float value,
                                              const long whole)
{
    const atto_index t = get_global_id(0);
    if (t >= runs) return;
    const atto_index4 at = atto_walk(t, size, magic, shift);
    const from_t left = a[a_at + atto_dot(at, a_stride)];
#if ATTO_SCALAR & 2
    const int holds = ATTO_PASTE(ATTO_COMPARE_, ATTO_COMPARE)(ATTO_NUMBER(left),
                                                              ATTO_PASTE(ATTO_VALUE_, ATTO_FROM));
#else
    const from_t right = b[b_at + atto_dot(at, b_stride)];
    const int holds =
        ATTO_PASTE(ATTO_COMPARE_, ATTO_COMPARE)(ATTO_NUMBER(left), ATTO_NUMBER(right));
#endif
    y[y_at + atto_dot(at, y_stride)] = holds;
}
#endif
