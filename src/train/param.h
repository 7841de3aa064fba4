/* SPDX-License-Identifier: MIT */
/* What tape and optimisers know of a parameter. */
#ifndef ATTO_PARAM_H
#define ATTO_PARAM_H

#include <attocl/param.h>

#include "device.h"

struct atto_param {
    atto_device *dev; /* holds a reference */
    atomic_int references;
    atto_tensor value; /* dense; holds a reference to its buffer, which may be a whole chunk */
    atto_tensor grad;  /* like value; no buffer until it is first needed */
    bool frozen;
    bool has_grad;    /* grad is of this step: the next one adds */
    uint64_t version; /* counts changes of the value */
    bool is_packed;   /* an optimiser owns the storage */

    /* The value in another dtype, for autocast, and the value's stamp when it was written. */
    atto_tensor shadow;
    uint64_t shadow_stamp; /* 0: never */
};

/* Another one for each state of the value: every change that was told or seen counts. */
static inline uint64_t atto__param_stamp(const atto_param *p)
{
    return 1 + p->version + (p->value.buffer ? p->value.buffer->writes : 0);
}

static inline bool atto__param_has_shadow(const atto_param *p)
{
    return p->shadow_stamp == atto__param_stamp(p);
}

/* The value in another dtype, which costs a launch only if it has changed since. Borrowed: views of
 * it keep the buffer. */
atto_status atto__param_as(atto_param *p, atto_dtype dtype, const atto_tensor **out);

/* The place for a gradient; allocates it if there is none yet. *add tells whether it holds one of
 * this step, to which the next is added; afterwards it does. */
atto_status atto__param_grad_slot(atto_param *p, const atto_tensor **out, bool *add);

/* The storage becomes these views; contents are copied, and the old storage is given back. grad may
 * be NULL for a frozen parameter. */
atto_status atto__param_move(atto_param *p, const atto_tensor *value, const atto_tensor *grad);

#endif
