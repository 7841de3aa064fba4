/* SPDX-License-Identifier: MIT */
/* Inside an optimiser: what it trains, and where that lies. */
#ifndef ATTO_OPTIMIZER_H
#define ATTO_OPTIMIZER_H

#include <attocl/optimizer.h>

#include "device.h"
#include "optim.h"
#include "train/param.h"

/* A parameter and its place. Its index is its segment. */
typedef struct atto__trained {
    atto_param *p; /* holds a reference */
    int32_t group;
    int32_t chunk;
    int64_t first_block; /* in the chunk */
    int64_t blocks;
    uint64_t version; /* of the value, when the master copy was last equal to it */
    bool moved;       /* the chunk is its storage */
} atto__trained;

/* Parameters of one dtype, side by side; every tensor is one vector of whole blocks. */
typedef struct atto__chunk {
    atto_dtype dtype;
    int64_t blocks;
    int64_t first_span; /* of its partials */
    atto_tensor value, grad;
    atto_tensor master; /* f32; none for f32 values */
    atto_tensor shadow; /* of f32 values that autocast reads in f16 or bf16; none before it does */
    atto_tensor state[ATTO_OPTIM_STATES];
    atto_tensor segment_of; /* i32 [blocks] */
    bool is_active;         /* some segment has a gradient in this step */
} atto__chunk;

struct atto_optimizer {
    atto_device *dev; /* holds a reference */
    const char *name; /* "adamw" */
    double lr;
    atto__optim_method method;
    atto__optim_numbers numbers;
    uint32_t mode; /* bits of atto_optim.h */
    float max_norm;

    atto__trained *trained;
    int32_t trained_count;
    atto__chunk *chunks;
    int32_t chunk_count;
    int32_t group_count; /* the base group is the last */
    int64_t spans;

    /* Tables on the device, see atto_optim.h, and what the host last wrote. */
    atto_tensor flags, group_of, groups, steps, coefficients, partials, control;
    int32_t *flags_written, *flags_next;
    bool flags_known;

    bool warned; /* that a kernel cannot be built */
};

/* How to make one. Numbers are final: no defaults, no ATTO_ZERO. */
typedef struct atto__optimizer_spec {
    const char *name;
    int32_t kind; /* ATTO_OPTIM_SGD, ... */
    double lr, weight_decay;
    double momentum, dampening;
    double beta1, beta2, eps; /* RMSprop's alpha is beta2 */
    bool nesterov, maximize, centered, decoupled;
    const atto_param_set *set;
    int64_t chunk_bytes; /* 0 = 1 GiB; tests make small ones */
} atto__optimizer_spec;

/* Checks the spec and makes the optimiser. */
atto_status atto__optimizer_create(const atto__optimizer_spec *spec, atto_module *net,
                                   atto_optimizer **out);

/* pack.c: everything trainable moves into chunks. o has its method and knows its groups' number. */
atto_status atto__optimizer_pack(atto_optimizer *o, const atto__optimizer_spec *spec);

/* pack.c: adds a parameter unless it is frozen, empty, or there already. */
atto_status atto__optimizer_add(atto_optimizer *o, const atto_param_set *set, const char *key,
                                atto_param *p);

/* optimizer_net.c: adds those of a module. */
atto_status atto__optimizer_add_net(atto_optimizer *o, const atto_param_set *set,
                                    const atto_module *net);

/* optimizer_net.c: whether the parameter is one of the module's. */
atto_status atto__module_has(const atto_module *m, const atto_param *p, bool *out);

/* An option whose 0 stands for something else. */
static inline double atto__or_default(double value, double standard)
{
    return value == 0.0 ? standard : value;
}

/* The three slots of a backend. */
typedef enum atto__optim_part {
    ATTO_OPTIM_NORM,
    ATTO_OPTIM_BEGIN,
    ATTO_OPTIM_STEP
} atto__optim_part;

typedef atto_status (*atto__optim_function)(atto_device *dev, const struct atto__optim_args *a);

static inline atto__optim_function atto__optim_slot(const atto__vtable *vt, atto__optim_part part)
{
    return part == ATTO_OPTIM_NORM    ? vt->optim_norm
           : part == ATTO_OPTIM_BEGIN ? vt->optim_begin
                                      : vt->optim_step;
}

/* optimizer_fallback.c: that part on the CPU backend, through host copies. */
atto_status atto__optim_fallback(atto_device *dev, atto__optim_part part,
                                 const struct atto__optim_args *args);

/* pack.c: a vector of n zeros. Also the elements that belong to no parameter stay 0. */
atto_status atto__optimizer_zeros(const atto_optimizer *o, atto_dtype dtype, int64_t n,
                                  atto_tensor *out);

/* A parameter's elements of one of its chunk's vectors, in its shape. */
atto_tensor atto__optimizer_view(const atto__trained *t, const atto_tensor *vector);

#endif
