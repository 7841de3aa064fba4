/* SPDX-License-Identifier: MIT */
/* Inside a tape: its values and nodes, and how the recording functions of the families use them. */
#ifndef ATTO_TAPE_H
#define ATTO_TAPE_H

#include <attocl/tape.h>

#include "run.h"
#include "train/param.h"

/* A value of the step. Its slot stays until the step ends; its tensor may go earlier. */
typedef struct atto__value {
    atto_tensor tensor; /* without buffer once nobody needs it: shape and dtype stay */
    atto_tensor grad;   /* without gaps; no buffer as long as there is none */
    atto_param *param;  /* holds a reference; its gradient goes there instead */
    uint64_t version;   /* of the parameter when it was used first */
    int32_t holds;      /* nodes that need the tensor, and one while the user may name it */
    int32_t node;       /* that computed it, or -1 */
    int32_t source;     /* slot of the value whose memory it shows: its own, or a view's input */
    bool is_named;      /* the user may name it: its scope is open */
    bool is_borrowed;   /* the caller has the tensor as well */
    bool needs_grad;
    atto_tensor cast;     /* what autocast has made of it, for as long as the user may name it, */
    uint64_t cast_writes; /* when its memory had been written to so often */
} atto__value;

#define ATTO_NODE_RESULTS 4

/* A recorded op: forward has run, backward will. */
struct atto_node {
    const atto_op_class *cls;
    atto_op op; /* ATTO_OP_COUNT: the user's */
    int32_t inputs[ATTO_NODE_INPUTS];
    size_t input_fields[ATTO_NODE_INPUTS]; /* offsets in the args struct */
    int32_t grads[ATTO_NODE_INPUTS];       /* which value gets the gradient: mostly the input */
    bool passes[ATTO_NODE_INPUTS];         /* the gradient is the output's */
    int32_t input_count;
    int32_t results[ATTO_NODE_RESULTS]; /* the first is the output */
    size_t result_fields[ATTO_NODE_RESULTS];
    int32_t result_count;
    uint32_t held_inputs, held_results; /* bit i: backward reads it, so the node holds its value */
    size_t args_at;                     /* in the tape's bytes */
    bool is_done;
};

/* Arrays that only grow, so that a steady step allocates nothing. */
typedef struct atto__list {
    void *items;
    size_t count, capacity; /* of items; of bytes for args */
} atto__list;

struct atto_tape {
    atto_device *dev; /* holds a reference */
    uint32_t generation;
    bool records;
    bool runs_back;      /* nothing may be recorded: pointers to values and nodes are out */
    atto_dtype autocast; /* f32: off */
    atto_rng rng;
    atto_status status; /* the step's first error */
    char message[1024];
    atto__list values, nodes, args, scopes; /* atto__value, atto_node, bytes, int32_t first slot */
};

static inline atto__value *atto__values(const atto_tape *tape)
{
    return tape->values.items;
}

static inline atto_node *atto__nodes(const atto_tape *tape)
{
    return tape->nodes.items;
}

/* Room for count more items of that size; they are counted by the caller. */
atto_status atto__list_room(atto__list *list, size_t count, size_t item_bytes);

/* Keeps the step's first error with the thread's message. Returns status. */
atto_status atto__tape_fail(atto_tape *tape, atto_status status);

/* Puts "2 (Linear): " before the message of the error, if there is one: where it arose. */
void atto__tape_blame(atto_tape *tape, int32_t index, const char *class_name);

/* No value, for recording functions that failed. */
static inline atto_var atto__no_var(void)
{
    return (atto_var){ -1, 0 };
}

/* The value behind a var; NULL, with the tape's error set, when there is an error already, the var
 * is of another step or its value is dead. call names the caller in the message. */
atto__value *atto__tape_value(atto_tape *tape, const char *call, atto_var v);

/* Whether backward would compute its gradient, were an op recorded now that has one for it. */
bool atto__tape_wants_grad(const atto_tape *tape, const atto__value *value);

/* Its tensor, for the shape rules of recording functions. */
const atto_tensor *atto__tape_tensor(atto_tape *tape, const char *call, atto_var v);

/* A tensor from outside: a sound view, of the tape's device. */
atto_status atto__tape_takes(const atto_tape *tape, const char *what, const atto_tensor *t);

/* ATTO_E_STATE while backward runs. */
atto_status atto__tape_may_record(const atto_tape *tape);

/* Adds a value that the user may name. *t is taken over, and zeroed. */
atto_status atto__tape_push(atto_tape *tape, atto_tensor *t, atto_var *out);

/* One hold less; the last one gives the tensor back. */
void atto__value_drop(atto__value *value);

/* Reserves the counters of n random numbers. */
atto_rng atto__tape_draw(atto_tape *tape, int64_t n);

/* ---- recording ops of the table ---- */

/* An input: the field of the args struct that it fills. */
typedef struct atto__binding {
    size_t field;
    atto_var v;
    bool passes;   /* its gradient is the output's, whatever field the op has for it */
    bool not_read; /* this call's backward does not read it, whatever the role says */
    bool f32_too;  /* the op takes it in f32, whatever the others are: autocast leaves it so */
    bool f32_grad; /* the op writes its gradient in f32, whatever it is itself */
} atto__binding;

/* An output to be made. */
typedef struct atto__result {
    size_t field;
    bool
        like_inputs; /* the dtype is that of the op's floats, as autocast leaves them, instead of */
    atto_dtype dtype;
    atto_shape shape;
    bool only_saved; /* for backward alone: made only if there will be one */
    bool not_read;   /* as above */
    bool moves;      /* dimension `innermost` is that in memory; else it is row-major */
    int32_t innermost;
    bool ordered; /* its dimensions follow each other in memory as those of input `leader` do */
    int32_t leader;
    atto_var *also; /* of the results behind the first: gets it, for the caller */
    bool has_grad;  /* of those: the op takes a gradient of it, as of the first */
} atto__result;

/* Runs the op forward and records it. Tensor fields of args are filled in here; results[0] is what
 * is returned. */
atto_var atto__record_op(atto_tape *tape, atto_op op, void *args, const atto__binding *inputs,
                         int32_t input_count, const atto__result *results, int32_t result_count);

/* atto_record of an op whose backward reads neither inputs nor output: shapes stay, memory need not. */
atto_var atto__record_unread(atto_tape *tape, const atto_op_class *cls, const void *args,
                             size_t args_bytes, const atto_var *inputs, int32_t count,
                             atto_tensor *output);

/* autocast.c: the dtype that autocast wants the float inputs of this call to have; 0 if it is off.
 * like_inputs: the result's dtype follows from theirs. */
atto_dtype atto__autocast_dtype(const atto_tape *tape, atto_op op, const void *args,
                                const atto__binding *inputs, int32_t count, bool like_inputs);

/* autocast.c: whether autocast brings that input to that dtype. */
bool atto__autocast_applies(const atto_tape *tape, const atto__binding *input, atto_dtype dtype);

/* autocast.c: a value of that dtype, which nobody names; one hold is the caller's. *grad is the
 * value that gets its gradient: itself, or with f32_grad the f32 one that it comes from. */
atto_status atto__autocast_value(atto_tape *tape, const atto__binding *input, atto_dtype dtype,
                                 int32_t *slot, int32_t *grad);

/* autocast.c: v in that dtype if autocast is on, for what is not an op of the table. */
atto_var atto__autocast_var(atto_tape *tape, atto_var v, atto_dtype dtype);

/* autocast.c: the widest dtype of both. */
atto_dtype atto__wider(atto_dtype a, atto_dtype b);

/* Adds a node behind the tape's others, with a copy of its args. The caller fills in the rest. */
atto_status atto__tape_push_node(atto_tape *tape, const atto_op_class *cls, const void *args,
                                 size_t args_bytes, atto_node **out);

/* The bits of held_inputs and held_results become holds. */
void atto__node_hold(atto_tape *tape, const atto_node *node);

/* backward.c: what ops of the table do backwards. */
extern const atto_op_class atto__table_op_class;

/* A new tensor without gaps; dimension innermost has stride 1, the others are row-major. */
atto_status atto__alloc_innermost(atto_device *dev, atto_dtype dtype, atto_shape shape,
                                  int32_t innermost, atto_tensor *out);

/* A new tensor without gaps whose dimensions follow each other in memory as those of like do, which has
 * as many and unit stride along its last one; row-major if it has not, or repeats elements. */
atto_status atto__alloc_ordered(atto_device *dev, atto_dtype dtype, atto_shape shape,
                                const atto_tensor *like, atto_tensor *out);

/* A tensor like t without gaps: heads side by side or channels_last if it is, else row-major. */
atto_status atto__alloc_like(atto_device *dev, const atto_tensor *t, atto_dtype dtype,
                             atto_tensor *out);

/* dst += src, of one dtype and shape. */
atto_status atto__accumulate(atto_device *dev, const atto_tensor *dst, const atto_tensor *src);

#endif
