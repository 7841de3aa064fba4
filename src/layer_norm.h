/* SPDX-License-Identifier: MIT */
/* What both backends derive from the arguments of layer norm and RMS norm, which are one op to
 * them. */
#ifndef ATTO_LAYER_NORM_H
#define ATTO_LAYER_NORM_H

#include <attocl/layer_norm.h>

/* Rows of cols elements; tensors are dense, NULL where there is none. RMS norm is layer norm whose
 * mean is 0. */
typedef struct atto__row_norm {
    int64_t rows, cols;
    bool centred; /* layer norm */
    float eps;
    const atto_tensor *x, *w, *b, *y, *mean, *rstd, *dy, *dx, *dw, *db;
    bool add_dx, add_dw, add_db;
} atto__row_norm;

static inline void atto__row_norm_measure(atto__row_norm *n, int32_t dims)
{
    n->rows = n->cols = 1;
    for (int32_t d = 0; d < n->x->rank; d++)
        *(d < n->x->rank - dims ? &n->rows : &n->cols) *= n->x->shape[d];
}

static inline atto__row_norm atto__layer_norm_of(const struct atto_layer_norm_args *a)
{
    atto__row_norm n = {
        .centred = true,
        .eps = a->eps,
        .x = a->x,
        .w = a->w,
        .b = a->b,
        .y = a->y,
        .mean = a->mean,
        .rstd = a->rstd,
        .dy = a->dy,
        .dx = a->dx,
        .dw = a->dw,
        .db = a->db,
        .add_dx = a->add_dx,
        .add_dw = a->add_dw,
        .add_db = a->add_db,
    };
    atto__row_norm_measure(&n, a->dims);
    return n;
}

static inline atto__row_norm atto__rms_norm_of(const struct atto_rms_norm_args *a)
{
    atto__row_norm n = {
        .eps = a->eps,
        .x = a->x,
        .w = a->w,
        .y = a->y,
        .rstd = a->rstd,
        .dy = a->dy,
        .dx = a->dx,
        .dw = a->dw,
        .add_dx = a->add_dx,
        .add_dw = a->add_dw,
    };
    atto__row_norm_measure(&n, a->dims);
    return n;
}

#endif
