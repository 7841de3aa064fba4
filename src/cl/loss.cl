/* SPDX-License-Identifier: MIT */
/* loss.cl - pointwise losses.
 *
 *   each       loss = w f(x, t, a)                                   of every element
 *   sum        partial = sum of w f(x, t, a) over a work-group's runs, divided by divisor
 *   finish     loss = sum of the partials / divisor                  one work-group
 *   backward   dx = g w f_x(x, t, a)  (+ dx),   dt = g w f_t(x, t, a)  (+ dt)
 *              g = dloss / divisor
 *
 * w is the weight of an element, or 1; a the weight of the positive class, or one number. A run is
 * ATTO_RUN neighbouring elements: one 16-byte vector of x. A work-item has ATTO_ITEMS runs at a
 * time, ATTO_WG apart, all of which it loads before it uses any.
 *
 *   -D              default          meaning
 *   ATTO_FORMULA    attom_loss_mse   f, a function of atto_math.h; _dx and _dt are its derivatives
 *   ATTO_WEIGHTS    0                bit 0: there is w; bit 1: a is a tensor
 *   ATTO_WEIGHT     f32              storage of these two
 *   ATTO_EACH       0                backward: 1: each element has its dloss; 0: one for all
 *   ATTO_GRADIENTS  3                backward: bit 0: dx is wanted; bit 1: dt
 *   ATTO_OUT        ATTO_DTYPE       backward: storage of dx and dt; f32 for gradients to be summed
 *   ATTO_STRIDED    0                1: tensors have strides
 *   and those of atto_kernel.h
 */
#include "atto_kernel.h"
#include "atto_reduce.h"

#ifndef ATTO_FORMULA
#define ATTO_FORMULA attom_loss_mse
#endif
#ifndef ATTO_WEIGHTS
#define ATTO_WEIGHTS 0
#endif
#ifndef ATTO_WEIGHT
#define ATTO_WEIGHT f32
#endif
#ifndef ATTO_EACH
#define ATTO_EACH 0
#endif
#ifndef ATTO_GRADIENTS
#define ATTO_GRADIENTS 3
#endif
#ifndef ATTO_OUT
#define ATTO_OUT ATTO_DTYPE
#endif
#ifndef ATTO_STRIDED
#define ATTO_STRIDED 0
#endif

#define FORMULA_DX ATTO_PASTE(ATTO_FORMULA, _dx)
#define FORMULA_DT ATTO_PASTE(ATTO_FORMULA, _dt)

/* ---- runs of a tensor, whatever its dtype D ---- */

#define STORAGE(D)   ATTO_PASTE(atto_, D)
#define BYTES(D)     ATTO_PASTE(ATTO_BYTES_, D)
#define PER_RAW(D)   (16 / BYTES(D))         /* elements of 16 bytes */
#define RAWS(D)      (ATTO_RUN / PER_RAW(D)) /* that make a run */
#define WIDEN(D)     ATTO_PASTE(atto_widen_, D)
#define NARROW(D)    ATTO_PASTE(atto_narrow_, D)
#define UNPACK(D)    ATTO_PASTE(atto_unpack_, D)
#define PACK(D)      ATTO_PASTE(atto_pack_, D)
#define VECTOR_OF(p) ((__global uint4 *)(p))

#define BITS_f32(x)  as_uint(x)
#define BITS_f16(x)  (uint)(x)
#define BITS_bf16(x) (uint)(x)
#define TAKE_f32(u)  as_float(u)
#define TAKE_f16(u)  (ushort)(u)
#define TAKE_bf16(u) (ushort)(u)
#define BITS(D)      ATTO_PASTE(BITS_, D)
#define TAKE(D)      ATTO_PASTE(TAKE_, D)

/* FETCH_RUN: raw = the run from element at on, as it is stored; step 0: one element for all of it.
 * Nothing waits for it before WIDEN_RUN makes floats of it. */
#if ATTO_VECTORS
#define FETCH_RUN(D, p, at, step, raw)                                     \
    do {                                                                   \
        if ((step) == 0) { /* the same for all work-items */               \
            (raw)[0].x = BITS(D)((p)[at]);                                 \
        } else {                                                           \
            _Pragma("unroll") for (uint i = 0; i < RAWS(D); i++)(raw)[i] = \
                ((__global const uint4 *)(p))[(at) / PER_RAW(D) + i];      \
        }                                                                  \
    } while (0)
#define WIDEN_RUN(D, raw, step, v)                                             \
    do {                                                                       \
        if ((step) == 0) {                                                     \
            const float one = WIDEN(D)(TAKE(D)((raw)[0].x));                   \
            _Pragma("unroll") for (uint k = 0; k < ATTO_RUN; k++)(v)[k] = one; \
        } else {                                                               \
            _Pragma("unroll") for (uint i = 0; i < RAWS(D); i++)               \
                UNPACK(D)((raw)[i], (v) + i * PER_RAW(D));                     \
        }                                                                      \
    } while (0)
#define STORE_RUN(D, p, at, v)                                                                 \
    _Pragma("unroll") for (uint i = 0; i < RAWS(D); i++) VECTOR_OF(p)[(at) / PER_RAW(D) + i] = \
        PACK(D)((v) + i * PER_RAW(D))
#define RAW(D, name) uint4 name[ATTO_ITEMS][RAWS(D)]
#else
#define FETCH_RUN(D, p, at, step, raw) (raw)[0] = (p)[at]
#define WIDEN_RUN(D, raw, step, v)     (v)[0] = WIDEN(D)((raw)[0])
#define STORE_RUN(D, p, at, v)         (p)[at] = NARROW(D)((v)[0])
#define RAW(D, name)                   STORAGE(D) name[ATTO_ITEMS][1]
#endif

/* ---- what the kernels read ---- */

#if ATTO_WEIGHTS & 1
#define W_INPUT(F) F(w, ATTO_WEIGHT)
#define W(i)       w i
#else
#define W_INPUT(F)
#define W(i) 1.0f
#endif
#if ATTO_WEIGHTS & 2
#define A_INPUT(F) F(a, ATTO_WEIGHT)
#define A(i)       a i
#else
#define A_INPUT(F)
#define A(i) number
#endif
#define INPUTS(F) F(x, ATTO_DTYPE) F(t, ATTO_DTYPE) W_INPUT(F) A_INPUT(F)

/* The steps for one input; at: the run's coordinates, or its first element. */
#define PARAMETER(name, D)        __global const STORAGE(D) * name##_data, const ulong name##_at,
#define STRIDE_PARAMETER(name, D) , const atto_index4 name##_stride
#define ADVANCE(name, D)          name##_data += name##_at;
#define ARRAY(name, D)            RAW(D, name##_raw);
#define FETCH(name, D)            FETCH_RUN(D, name##_data, OFFSET(name), STEP(name), name##_raw[j]);
#define FLOATS(name, D)   \
    float name[ATTO_RUN]; \
    WIDEN_RUN(D, name##_raw[j], STEP(name), name);
#define TAIL(name, D) const float name = WIDEN(D)(name##_data[tail]);

#if ATTO_STRIDED
#define WALK(inputs) ATTO_WALK_PARAMETERS inputs(STRIDE_PARAMETER)
#define OFFSET(name) atto_dot(at, name##_stride)
#define STEP(name)   name##_stride.w
#define LOCATE(run)  const atto_index4 at = atto_walk(run, size, magic, shift)
#else
#define WALK(inputs) const atto_index n
#define OFFSET(name) at
#define STEP(name)   1
#define LOCATE(run)  const atto_index at = (run)*ATTO_RUN
#define runs         (n / ATTO_RUN)
#endif

/* The first of a work-item's runs, and the next. */
#define FIRST_RUN(group) \
    ((atto_index)(group) * (ATTO_WG * ATTO_ITEMS) + (atto_index)get_local_id(0))
#define RUN_OF(j) (first + (j)*ATTO_WG)

#define EACH_ITEM    _Pragma("unroll") for (uint j = 0; j < ATTO_ITEMS; j++)
#define EACH_ELEMENT _Pragma("unroll") for (uint k = 0; k < ATTO_RUN; k++)

#define VALUE(i)   (W(i) * ATTO_FORMULA(x i, t i, A(i)))
#define SLOPE_X(i) (W(i) * FORMULA_DX(x i, t i, A(i)))
#define SLOPE_T(i) (W(i) * FORMULA_DT(x i, t i, A(i)))

/* ---- each ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_loss_each)
ATTO_KERNEL void atto_loss_each(INPUTS(PARAMETER) __global float *loss, const ulong loss_at,
                                WALK(INPUTS)
#if ATTO_STRIDED
                                    ,
                                const atto_index4 loss_stride
#endif
                                ,
                                const float number)
{
    const atto_index first = FIRST_RUN(get_group_id(0));
    INPUTS(ARRAY)
    INPUTS(ADVANCE)
    loss += loss_at;
    EACH_ITEM
    {
        if (RUN_OF(j) >= runs) continue;
        LOCATE(RUN_OF(j));
        INPUTS(FETCH)
    }
    EACH_ITEM
    {
        if (RUN_OF(j) >= runs) continue;
        LOCATE(RUN_OF(j));
        INPUTS(FLOATS)
        float v[ATTO_RUN];
        EACH_ELEMENT v[k] = VALUE([k]);
        STORE_RUN(f32, loss, OFFSET(loss), v);
    }
#if !ATTO_STRIDED
    const atto_index tail = atto_tail_element(n);
    if (tail < n) {
        INPUTS(TAIL)
        loss[tail] = VALUE();
    }
#endif
}
#endif

/* ---- sum ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_loss_sum)
/* Work-group i has stretch i of steps * ATTO_ITEMS * ATTO_WG runs. */
ATTO_KERNEL void atto_loss_sum(INPUTS(PARAMETER) __global float *partial, const ulong partial_at,
                               WALK(INPUTS), const float number, const uint steps,
                               const float divisor)
{
    __local float scratch[ATTO_WG];
    float sum = 0.0f;
    INPUTS(ADVANCE)
    for (uint step = 0; step < steps; step++) {
        const atto_index first = FIRST_RUN((atto_index)get_group_id(0) * steps + step);
        INPUTS(ARRAY)
        EACH_ITEM
        {
            if (RUN_OF(j) >= runs) continue;
            LOCATE(RUN_OF(j));
            INPUTS(FETCH)
        }
        EACH_ITEM
        {
            if (RUN_OF(j) >= runs) continue;
            INPUTS(FLOATS)
            EACH_ELEMENT sum += VALUE([k]);
        }
    }
#if !ATTO_STRIDED
    const atto_index tail = atto_tail_element(n);
    if (tail < n) {
        INPUTS(TAIL)
        sum += VALUE();
    }
#endif
    sum = atto_row_sum(sum, scratch);
    if (get_local_id(0) == 0) partial[partial_at + get_group_id(0)] = sum / divisor;
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_loss_finish)
ATTO_KERNEL void atto_loss_finish(__global const float *partial, const ulong partial_at,
                                  __global float *loss, const ulong loss_at, const uint count,
                                  const float divisor)
{
    __local float scratch[ATTO_WG];
    const float share = atto_share_of_sum(partial + partial_at, count);
    const float sum = atto_row_sum(share, scratch);
    if (get_local_id(0) == 0) loss[loss_at] = sum / divisor;
}
#endif

/* ---- backward ---- */

#if ATTO_EACH
#define BACKWARD_INPUTS(F) INPUTS(F) F(g, f32)
#define G(i)               (g i)
#define DLOSS_PARAMETERS
#else
#define BACKWARD_INPUTS(F) INPUTS(F)
#define G(i)               g_of_all
#define DLOSS_PARAMETERS   __global const float *dloss, const ulong dloss_at,
#endif
#if ATTO_GRADIENTS & 1
#define DX_OUTPUT(F) F(dx, SLOPE_X)
#else
#define DX_OUTPUT(F)
#endif
#if ATTO_GRADIENTS & 2
#define DT_OUTPUT(F) F(dt, SLOPE_T)
#else
#define DT_OUTPUT(F)
#endif
#define OUTPUTS(F) DX_OUTPUT(F) DT_OUTPUT(F)

#define OUT_PARAMETER(name, slope)        __global STORAGE(ATTO_OUT) * name, const ulong name##_at,
#define OUT_STRIDE_PARAMETER(name, slope) , const atto_index4 name##_stride
#define ADD_PARAMETER(name, slope)        , const uint add_##name
#define OUT_ADVANCE(name, slope)          name += name##_at;
#define OLD_ARRAY(name, slope)            RAW(ATTO_OUT, old_##name##_raw);
#define OLD_FETCH(name, slope) \
    if (add_##name) FETCH_RUN(ATTO_OUT, name, OFFSET(name), STEP(name), old_##name##_raw[j]);
#define OUT_STORE(name, slope)                                         \
    {                                                                  \
        float v[ATTO_RUN], old[ATTO_RUN];                              \
        EACH_ELEMENT v[k] = G([k]) * slope([k]);                       \
        if (add_##name) {                                              \
            WIDEN_RUN(ATTO_OUT, old_##name##_raw[j], STEP(name), old); \
            EACH_ELEMENT v[k] += old[k];                               \
        }                                                              \
        STORE_RUN(ATTO_OUT, name, OFFSET(name), v);                    \
    }
#define OUT_TAIL(name, slope)                                                     \
    {                                                                             \
        const float v = G() * slope();                                            \
        const float old_##name = add_##name ? WIDEN(ATTO_OUT)(name[tail]) : 0.0f; \
        name[tail] = NARROW(ATTO_OUT)(add_##name ? v + old_##name : v);           \
    }

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_loss_backward)
ATTO_KERNEL void atto_loss_backward(BACKWARD_INPUTS(PARAMETER)
                                        DLOSS_PARAMETERS OUTPUTS(OUT_PARAMETER)
                                            WALK(BACKWARD_INPUTS)
#if ATTO_STRIDED
                                                OUTPUTS(OUT_STRIDE_PARAMETER)
#endif
                                                    ,
                                    const float number, const float divisor OUTPUTS(ADD_PARAMETER))
{
    const atto_index first = FIRST_RUN(get_group_id(0));
#if !ATTO_EACH
    const float g_of_all = dloss[dloss_at] / divisor;
#endif
    BACKWARD_INPUTS(ARRAY)
    OUTPUTS(OLD_ARRAY)
    BACKWARD_INPUTS(ADVANCE)
    OUTPUTS(OUT_ADVANCE)
    EACH_ITEM
    {
        if (RUN_OF(j) >= runs) continue;
        LOCATE(RUN_OF(j));
        BACKWARD_INPUTS(FETCH)
        OUTPUTS(OLD_FETCH)
    }
    EACH_ITEM
    {
        if (RUN_OF(j) >= runs) continue;
        LOCATE(RUN_OF(j));
        BACKWARD_INPUTS(FLOATS)
        OUTPUTS(OUT_STORE)
    }
#if !ATTO_STRIDED
    const atto_index tail = atto_tail_element(n);
    if (tail < n) {
        BACKWARD_INPUTS(TAIL)
        OUTPUTS(OUT_TAIL)
    }
#endif
}
#endif
