/* SPDX-License-Identifier: MIT */
/* Elementwise launches: which walk the tensors allow, and the arguments that belong to it. */
#ifndef ATTO_WALK_H
#define ATTO_WALK_H

#include "launch.h"
#include "rng.h"

/* How one launch goes over its tensors. */
typedef struct atto__walk {
    atto__form form;
    int32_t run;   /* elements a work-item takes (of a dense walk: of a vector) */
    int32_t items; /* dense: vectors a work-item takes */
    int64_t runs;
    int64_t size[4]; /* runs, not elements, in the last */
    const atto__layout *layout;
} atto__walk;

/* Dense or vectors where strides and offsets allow vectors of that many elements, else elements. */
atto__form atto__walk_form(const atto_tensor *const *tensors, int32_t count,
                           const atto__layout *layout, int32_t vector);

atto__walk atto__walk_of(const atto__layout *layout, atto__form form, int32_t run);

/* Arguments in the order of the kernels: n for a dense walk, ATTO_WALK_PARAMETERS and one stride
 * vector for each tensor otherwise. */
void atto__arg_walk(atto__args *args, const atto__walk *walk, const atto_tensor *const *tensors,
                    int32_t count);

/* What dropout of probability p is to a kernel, and the arguments of ATTO_DROPOUT_PARAMETERS; none
 * where it is none. */
atto__dropout_knob atto__dropout_knob_of(float p, atto_rng rng);
void atto__arg_dropout(atto__args *args, float p, atto_rng rng);

/* Whether a tensor begins at a multiple of `unit` elements, and so does every row of its last dimension. */
bool atto__rows_at_units(const atto_tensor *t, int32_t unit);

int64_t atto__walk_groups(const atto_device *dev, const atto__walk *walk);

/* Four sizes, and what divides by them: three arguments. */
void atto__arg_sizes(atto__args *args, bool wide, const int64_t *size);

/* What divides by one number: two arguments. */
void atto__arg_divider(atto__args *args, bool wide, int64_t size);

#define ATTO_ELEMENTWISE_TENSORS 4

/* A call of a family whose kernels have the parameters: tensors, walk, the op's own, dropout. */
typedef struct atto__elementwise {
    const char *file;    /* "act.cl" */
    const char *kernel;  /* "atto_act_forward" */
    const char *act;     /* activation name, or NULL */
    const char *formula; /* "binary_mul", or NULL */
    int32_t scalar;      /* binary: bit 0: a is a number, bit 1: b is */
    bool wide_out;       /* where: the output is f32 whatever the inputs are */
    const atto_tensor *tensors[ATTO_ELEMENTWISE_TENSORS];
    int32_t count;
    const atto__layout *layout;
    atto__args own;
    float p; /* dropout; 0 = none */
    atto_rng rng;
} atto__elementwise;

atto_status atto__elementwise_launch(atto_device *dev, const atto__elementwise *call);

#endif
