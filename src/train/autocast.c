/* SPDX-License-Identifier: MIT */
/* Autocast: which dtype the inputs of a recorded op are brought to, and the casts that do it.
 * docs/autocast.md has the lists. */
#include <attocl/record.h>

#include "layers/checks.h"
#include "train/tape.h"

/* ---- the switch ---- */

static atto_status check_switch(const atto_tape *tape, atto_dtype dtype)
{
    ATTO_REQUIRE(tape, ATTO_E_NULL, "tape_autocast: tape is NULL");
    ATTO_REQUIRE(atto__is_float(dtype), ATTO_E_DTYPE,
                 "tape_autocast: dtype is %s, expected f16, bf16, or f32 for none",
                 atto_dtype_name(dtype));
    ATTO_REQUIRE(!tape->runs_back, ATTO_E_STATE,
                 "tape_autocast: tape is running backwards; a backward function keeps its dtypes");
    return ATTO_OK;
}

atto_status atto_tape_autocast(atto_tape *tape, atto_dtype dtype)
{
    ATTO_TRY(check_switch(tape, dtype));
    tape->autocast = dtype;
    return ATTO_OK;
}

atto_dtype atto_tape_autocast_dtype(const atto_tape *tape)
{
    return tape ? tape->autocast : ATTO_F32;
}

/* ---- what an op is given ---- */

/* Kinds that are of another class than the rest of their op. */
static const struct {
    atto_op op;
    size_t kind_at; /* in the args struct */
    int32_t kind;
    atto__autocast autocast;
} apart[] = {
#define KIND(op) offsetof(struct atto_##op##_args, kind)
    { ATTO_OP_UNARY, KIND(unary), ATTO_UNARY_EXP, ATTO_AUTOCAST_F32 },
    { ATTO_OP_UNARY, KIND(unary), ATTO_UNARY_LOG, ATTO_AUTOCAST_F32 },
    { ATTO_OP_UNARY, KIND(unary), ATTO_UNARY_RSQRT, ATTO_AUTOCAST_F32 },
    { ATTO_OP_UNARY, KIND(unary), ATTO_UNARY_RECIPROCAL, ATTO_AUTOCAST_F32 },
    { ATTO_OP_BINARY, KIND(binary), ATTO_BINARY_POW, ATTO_AUTOCAST_F32 },
    { ATTO_OP_REDUCE, KIND(reduce), ATTO_REDUCE_MAX, ATTO_AUTOCAST_FLOW },
    { ATTO_OP_REDUCE, KIND(reduce), ATTO_REDUCE_MIN, ATTO_AUTOCAST_FLOW },
    { ATTO_OP_ACT, offsetof(struct atto_act_args, act.kind), ATTO_ACT_SOFTPLUS, ATTO_AUTOCAST_F32 },
#undef KIND
};

static atto__autocast class_of(atto_op op, const void *args)
{
    for (size_t i = 0; i < COUNT_OF(apart); i++) {
        const void *kind = (const char *)args + apart[i].kind_at;
        if (apart[i].op == op && *(const int32_t *)kind == apart[i].kind) return apart[i].autocast;
    }
    return atto__op(op)->autocast;
}

atto_dtype atto__wider(atto_dtype a, atto_dtype b)
{
    return a == b ? a : ATTO_F32; /* f16 has what bf16 lacks, and the other way round */
}

/* That of the first float, or the widest; 0 without any. What may be f32 beside others has no
 * say. */
static atto_dtype common_dtype(const atto_tape *tape, const atto__binding *inputs, int32_t count,
                               bool widest)
{
    atto_dtype common = 0;
    for (int32_t i = 0; i < count; i++) {
        const atto_dtype dtype = atto__values(tape)[inputs[i].v.slot].tensor.dtype;
        if (inputs[i].f32_too || !atto__is_float(dtype)) continue;
        if (common == 0) common = dtype;
        if (widest) common = atto__wider(common, dtype);
    }
    return common;
}

/* An op that gives f32 whatever it reads computes in f32 as well: a cast would change nothing. */
atto_dtype atto__autocast_dtype(const atto_tape *tape, atto_op op, const void *args,
                                const atto__binding *inputs, int32_t count, bool like_inputs)
{
    if (tape->autocast == ATTO_F32) return 0;
    const atto__autocast class = class_of(op, args);
    if (class == ATTO_AUTOCAST_LOW) return tape->autocast;
    if (class == ATTO_AUTOCAST_F32 && like_inputs) return ATTO_F32;
    return common_dtype(tape, inputs, count, class != ATTO_AUTOCAST_FLOW);
}

bool atto__autocast_applies(const atto_tape *tape, const atto__binding *input, atto_dtype dtype)
{
    const atto_dtype own = atto__values(tape)[input->v.slot].tensor.dtype;
    return atto__is_float(own) && own != dtype && !(input->f32_too && own == ATTO_F32);
}

/* ---- casts ---- */

/* The value in that dtype, made at the first use: a parameter's own shadow, or the value's cast.
 * Borrowed. */
static atto_status cast_of(atto_tape *tape, int32_t slot, atto_dtype dtype, const atto_tensor **out)
{
    atto__value *value = &atto__values(tape)[slot];
    if (value->param) return atto__param_as(value->param, dtype, out);
    *out = &value->cast;
    const atto_buffer *buffer = value->tensor.buffer;
    const uint64_t writes = buffer ? buffer->writes : 0;
    if (value->cast.dtype == dtype && value->cast_writes == writes) return ATTO_OK;
    atto_tensor_free(&value->cast); /* nodes may hold it */
    value->cast_writes = writes;
    ATTO_TRY(atto__alloc_like(tape->dev, &value->tensor, dtype, &value->cast));
    const atto_status status = atto_tensor_copy(&value->cast, &value->tensor);
    if (status != ATTO_OK) atto_tensor_free(&value->cast);
    return status;
}

/* Each use of a cast has its own way back, so that gradients add up in the dtype of the source. */
static atto_status push_cast_node(atto_tape *tape, int32_t from, int32_t to)
{
    const struct atto_cast_args args = { .add_dx = false };
    atto_node *node;
    ATTO_TRY(atto__tape_push_node(tape, &atto__table_op_class, &args, sizeof args, &node));
    node->op = ATTO_OP_CAST;
    node->inputs[0] = node->grads[0] = from;
    node->input_fields[0] = offsetof(struct atto_cast_args, x);
    node->input_count = 1;
    node->results[0] = to;
    node->result_fields[0] = offsetof(struct atto_cast_args, y);
    node->result_count = 1;
    atto__values(tape)[to].node = (int32_t)tape->nodes.count - 1;
    atto__values(tape)[to].needs_grad = true;
    return ATTO_OK;
}

atto_status atto__autocast_value(atto_tape *tape, const atto__binding *input, atto_dtype dtype,
                                 int32_t *slot, int32_t *grad)
{
    const int32_t from = input->v.slot;
    const atto_tensor *cast;
    atto_var to;
    ATTO_TRY(cast_of(tape, from, dtype, &cast));
    atto_tensor view = *cast;
    atto_tensor_retain(&view);
    const atto_status status = atto__tape_push(tape, &view, &to);
    atto_tensor_free(&view); /* unless it was taken over */
    ATTO_TRY(status);
    atto__value *value = &atto__values(tape)[to.slot];
    const atto__value *source = &atto__values(tape)[from];
    value->is_named = false;
    value->source = source->source;
    *slot = to.slot;
    *grad = input->f32_grad && source->tensor.dtype == ATTO_F32 ? from : to.slot;
    if (*grad == from || !source->needs_grad || !tape->records) return ATTO_OK;
    return push_cast_node(tape, from, to.slot);
}

atto_var atto__autocast_var(atto_tape *tape, atto_var v, atto_dtype dtype)
{
    const atto_tensor *t = atto__tape_tensor(tape, "autocast", v);
    const bool casts = t && tape->autocast != ATTO_F32 && atto__is_float(t->dtype);
    return casts && t->dtype != dtype ? atto_cast(tape, v, dtype) : v;
}
