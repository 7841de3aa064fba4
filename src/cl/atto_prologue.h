/* SPDX-License-Identifier: MIT */
/* The gradient behind an activation and dropout, from what is stored:
 *
 *     dz = drop(act'(z) * dy)
 *
 * Dropout comes last: a dropped element is 0 also where dy or z is not finite.
 *
 *   -D        default         meaning
 *   ATTO_A    f32             storage of dy and z
 *   ATTO_ACT  attom_identity  function of atto_math.h; its derivative is ATTO_ACT with _grad
 *   and those of atto_kernel.h and atto_dropout.h
 */
#ifndef ATTO_PROLOGUE_H
#define ATTO_PROLOGUE_H

#include "atto_quad.h"
#include "atto_gemm_flags.h"

#ifndef ATTO_A
#define ATTO_A f32
#endif
#define ATTO_A_T   ATTO_PASTE(atto_, ATTO_A)
#define ATTO_A_GET ATTO_PASTE(atto_get_quad_, ATTO_A)

typedef struct atto_prologue {
    atto_index columns; /* of dy: element [row, column] has the logical index row*columns+column */
    float a, b;
#if ATTO_DROPOUT
    atto_mask mask;
#endif
} atto_prologue;

#if ATTO_DROPOUT
#define ATTO_PROLOGUE_MASK , ATTO_MASK
#else
#define ATTO_PROLOGUE_MASK
#endif

/* The kernel's parameters act_a, act_b and those of dropout as one value. */
#define ATTO_PROLOGUE_OF(columns)                \
    {                                            \
        columns, act_a, act_b ATTO_PROLOGUE_MASK \
    }

/* v: four neighbours of dy in a row, from `column`, a multiple of 4; becomes dz. */
ATTO_UNROLLED void atto_prologue_quad(const atto_prologue *p, atto_index row, atto_index column,
                                      float *v, const float *z)
{
#if ATTO_READS_Z
    atto_act_grad_quad(v, z, p->a, p->b);
#endif
#if ATTO_DROPOUT
    atto_drop_quad(v, p->mask, (ulong)row * p->columns + column, p->columns % 4 == 0);
#endif
}

/* One element of dy; becomes dz. */
static inline float atto_prologue_one(const atto_prologue *p, atto_index row, atto_index column,
                                      float v, float z)
{
#if ATTO_READS_Z
    v = ATTO_ACT_GRAD(z, p->a, p->b) * v;
#endif
#if ATTO_DROPOUT
    v = atto_drop(v, p->mask, (ulong)row * p->columns + column);
#endif
    return v;
}

#endif
