/* SPDX-License-Identifier: MIT */
/* The one way from a public op to a backend. */
#ifndef ATTO_RUN_H
#define ATTO_RUN_H

#include "layout.h"

typedef enum atto__direction { ATTO_FORWARD, ATTO_BACKWARD } atto__direction;

/* What a tensor field is to its op; the bits behind the role names of tables.h. */
enum {
    ATTO_FIELD_READ_FORWARD = 1,
    ATTO_FIELD_WRITE_FORWARD = 2,
    ATTO_FIELD_READ_BACKWARD = 4,
    ATTO_FIELD_WRITE_BACKWARD = 8,
    ATTO_FIELD_OPTIONAL_FORWARD = 16,
    ATTO_FIELD_OPTIONAL_BACKWARD = 32,

    ATTO_ROLE_IN = ATTO_FIELD_READ_FORWARD | ATTO_FIELD_READ_BACKWARD,
    ATTO_ROLE_IN_OPT = ATTO_ROLE_IN | ATTO_FIELD_OPTIONAL_FORWARD | ATTO_FIELD_OPTIONAL_BACKWARD,
    ATTO_ROLE_IN_NEEDED = ATTO_ROLE_IN | ATTO_FIELD_OPTIONAL_BACKWARD,
    ATTO_ROLE_IN_FWD = ATTO_FIELD_READ_FORWARD,
    ATTO_ROLE_IN_FWD_OPT = ATTO_ROLE_IN_FWD | ATTO_FIELD_OPTIONAL_FORWARD,
    ATTO_ROLE_STATE_OPT =
        ATTO_FIELD_READ_FORWARD | ATTO_FIELD_WRITE_FORWARD | ATTO_FIELD_OPTIONAL_FORWARD,
    ATTO_ROLE_OUT = ATTO_FIELD_WRITE_FORWARD,
    ATTO_ROLE_SAVED = ATTO_FIELD_WRITE_FORWARD | ATTO_FIELD_READ_BACKWARD,
    ATTO_ROLE_SAVED_OPT =
        ATTO_ROLE_SAVED | ATTO_FIELD_OPTIONAL_FORWARD | ATTO_FIELD_OPTIONAL_BACKWARD,
    ATTO_ROLE_SAVED_NEEDED = ATTO_ROLE_SAVED | ATTO_FIELD_OPTIONAL_BACKWARD,
    ATTO_ROLE_SAVED_FWD_OPT = ATTO_ROLE_SAVED | ATTO_FIELD_OPTIONAL_FORWARD,
    ATTO_ROLE_DIN = ATTO_FIELD_READ_BACKWARD,
    ATTO_ROLE_DIN_OPT = ATTO_FIELD_READ_BACKWARD | ATTO_FIELD_OPTIONAL_BACKWARD,
    ATTO_ROLE_DOUT = ATTO_FIELD_WRITE_BACKWARD | ATTO_FIELD_OPTIONAL_BACKWARD
};

typedef struct atto__field {
    const char *name;
    int32_t role;
    size_t offset;     /* of the tensor pointer in the args struct */
    size_t add_offset; /* of the bool add_<field>; 0 when there is none */
} atto__field;

/* What a backend gets to see of the tensors; tables.h describes the kinds. */
typedef enum atto__layout_kind {
    ATTO_LAYOUT_ELEMENTWISE,
    ATTO_LAYOUT_BROADCAST,
    ATTO_LAYOUT_ROWS,
    ATTO_LAYOUT_DENSE,
    ATTO_LAYOUT_CHANNELS,
    ATTO_LAYOUT_IMAGES,
    ATTO_LAYOUT_FILTERED,
    ATTO_LAYOUT_MATRICES,
    ATTO_LAYOUT_INNER
} atto__layout_kind;

/* What the table cannot say of an op with layout BROADCAST: atto__<op>_broadcast of its family.
 * args are checked. */
typedef struct atto__broadcast {
    /* The tensor that has the shape to which the others expand; NULL: none has, it is shape's. */
    const atto_tensor *(*full)(const void *args, atto__direction direction);

    /* Bit d: a tensor of fewer dimensions lacks dimension d of the full shape. NULL: it lacks the
     * first ones. */
    uint32_t (*dims)(const void *args, atto__direction direction);

    /* Whether the backend wants layout->index_stride to count the elements that an output sums up.
     * NULL: no. */
    bool (*indexed)(const void *args);

    /* What an output gets when the full shape is empty and it is not. NULL: 0. */
    double (*empty)(const void *args, atto__direction direction);

    /* The full shape where full returns NULL. */
    atto_shape (*shape)(const void *args);

    /* What layout->folded is to be. NULL: the product of the sizes that dims names. */
    int64_t (*folded)(const void *args);
} atto__broadcast;

/* What autocast does to the floats that an op is given; tables.h. */
typedef enum atto__autocast {
    ATTO_AUTOCAST_LOW,
    ATTO_AUTOCAST_F32,
    ATTO_AUTOCAST_WIDEST,
    ATTO_AUTOCAST_FLOW
} atto__autocast;

/* A row of the op table as data. */
typedef struct atto__op_info {
    const char *name[2]; /* by direction: "act_forward" */
    size_t args_bytes;
    size_t reserved_offset; /* of the args struct's reserved words */
    const atto__field *(*fields)(int32_t *count);
    atto__layout_kind layout;
    const atto__broadcast *broadcast;     /* NULL unless layout is BROADCAST */
    int32_t (*spatial)(const void *args); /* NULL unless layout is IMAGES or FILTERED */
    atto__autocast autocast;
    bool in_place;
    bool data_errors;
    /* Whether this call draws random numbers. */
    bool (*draws)(const void *args);
    atto_status (*check)(const void *args, atto__direction direction);
    atto_status (*call)(const atto__vtable *vt, atto__direction direction, atto_device *dev,
                        const void *args, const atto__layout *layout);
} atto__op_info;

const atto__op_info *atto__op(atto_op op);

/* Shapes, dtypes and numbers of a call whose required tensors are there; src/layers/<family>.c. */
#define X(op, OP, layout, autocast, in_place, random, data_errors) \
    atto_status atto__##op##_check(const struct atto_##op##_args *a, atto__direction direction);
ATTO_OP_TABLE(X)
#undef X

extern const atto__broadcast atto__binary_broadcast, atto__where_broadcast, atto__compare_broadcast,
    atto__reduce_broadcast, atto__loss_broadcast;

/* Layouts IMAGES and FILTERED: how many dimensions follow the channels, 1 (width) or 2 (height, width). */
int32_t atto__avg_pool_spatial(const void *args);
int32_t atto__max_pool_spatial(const void *args);
int32_t atto__conv_spatial(const void *args);
int32_t atto__resize_spatial(const void *args);

/* Room for the arguments of any op. */
typedef union atto__any_args {
#define X(op, OP, layout, autocast, in_place, random, data_errors) struct atto_##op##_args op;
    ATTO_OP_TABLE(X)
#undef X
} atto__any_args;

/* The tensor pointer of a field. */
static inline const atto_tensor **atto__field_of(void *args, const atto__field *field)
{
    return (const atto_tensor **)((char *)args + field->offset);
}

/* Whether the field is read or written in that direction. */
bool atto__field_reads(const atto__field *field, const void *args, atto__direction direction);
bool atto__field_writes(const atto__field *field, atto__direction direction);

/* Checks everything, answers empty calls, packs what the backend cannot walk, calls the backend,
 * and falls back to the CPU when a kernel cannot be built. */
atto_status atto__run(atto_device *dev, atto_op op, atto__direction direction, const void *args);

/* fallback.c: opens dev->cpu, once. */
atto_status atto__fallback_device(atto_device *dev);

/* fallback.c: the same call on the CPU backend, through host copies of the tensors' memory. args
 * and layout are what the device's own backend would have got. */
atto_status atto__fallback(atto_device *dev, atto_op op, atto__direction direction,
                           const void *args, const atto__layout *layout);

#endif
