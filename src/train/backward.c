/* SPDX-License-Identifier: MIT */
/* Backward: nodes in reverse order, each gradient added where its value came from. */
#include <string.h>

#include "train/tape.h"

/* ---- where gradients go ---- */

atto_status atto__accumulate(atto_device *dev, const atto_tensor *dst, const atto_tensor *src)
{
    const struct atto_act_args a = {
        .x = src, .dy = src, .dx = dst, .add_dx = true, .act = atto_identity()
    };
    return atto_act_backward(dev, &a);
}

atto_status atto__alloc_like(atto_device *dev, const atto_tensor *t, atto_dtype dtype,
                             atto_tensor *out)
{
    const int32_t last = t->rank - 1;
    const atto_shape shape = atto_shape_of(t->rank, t->shape);
    if (t->rank == 4 && t->stride[last] == 1) return atto__alloc_ordered(dev, dtype, shape, t, out);
    return atto__alloc_innermost(dev, dtype, shape, atto__view_innermost(t), out);
}

static atto_status alloc_like(atto_device *dev, const atto_tensor *t, atto_tensor *out)
{
    return atto__alloc_like(dev, t, t->dtype, out);
}

static const char *name_of(const atto_node *node)
{
    return node->op == ATTO_OP_COUNT ? node->cls->name : atto__op(node->op)->name[ATTO_BACKWARD];
}

/* The gradient of a value that wants one; *add as in atto__param_grad_slot. */
static atto_status grad_slot(atto_tape *tape, int32_t slot, const atto_tensor **out, bool *add)
{
    atto__value *value = &atto__values(tape)[slot];
    if (value->param) return atto__param_grad_slot(value->param, out, add);
    ATTO_REQUIRE(value->node < 0 || !atto__nodes(tape)[value->node].is_done, ATTO_E_STATE,
                 "backward: %s was run already", name_of(&atto__nodes(tape)[value->node]));
    *add = value->grad.dtype != 0;
    if (!*add) ATTO_TRY(alloc_like(tape->dev, &value->tensor, &value->grad));
    *out = &value->grad;
    return ATTO_OK;
}

static bool has_grad(const atto_tape *tape, int32_t slot)
{
    const atto__value *value = &atto__values(tape)[slot];
    return value->param ? value->param->has_grad : value->grad.dtype != 0;
}

/* For a gradient that was begun, and never written. */
static void forget_grad(atto_tape *tape, int32_t slot)
{
    atto__value *value = &atto__values(tape)[slot];
    if (value->param)
        value->param->has_grad = false;
    else
        atto_tensor_free(&value->grad);
}

static bool wants_grad(const atto_tape *tape, int32_t slot)
{
    const atto__value *value = &atto__values(tape)[slot];
    return value->needs_grad && !atto_param_is_frozen(value->param);
}

/* ---- ops of the table ---- */

/* A backward call being put together: the args, and targets that two inputs share. */
typedef struct assembly {
    atto_tape *tape;
    const atto_node *node;
    atto__any_args args;
    const atto_tensor *targets[ATTO_NODE_INPUTS];
    int32_t target_count;
    struct {
        atto_tensor apart;         /* what the op writes instead */
        const atto_tensor *target; /* what it is added to afterwards */
    } shared[ATTO_NODE_INPUTS];
    int32_t shared_count;
} assembly;

/* The name of a gradient's field is that of its tensor with a d before it. */
static bool is_gradient_of(const atto__field *gradient, const atto__field *of)
{
    return gradient->name[0] == 'd' && strcmp(gradient->name + 1, of->name) == 0;
}

static const atto__field *field_at(const atto__field *fields, int32_t count, size_t offset)
{
    for (int32_t f = 0; f < count; f++)
        if (fields[f].offset == offset) return &fields[f];
    return NULL;
}

/* role: ATTO_ROLE_DOUT, or ATTO_ROLE_DIN, which may be optional. */
static const atto__field *gradient_field(const atto__field *fields, int32_t count, size_t offset,
                                         int32_t role)
{
    const atto__field *of = field_at(fields, count, offset);
    for (int32_t f = 0; of && f < count; f++)
        if ((fields[f].role & role) == role && is_gradient_of(&fields[f], of)) return &fields[f];
    return NULL;
}

static bool has_target(const assembly *a, const atto_tensor *target)
{
    for (int32_t i = 0; i < a->target_count; i++)
        if (a->targets[i] == target) return true;
    return false;
}

/* One value in two fields: the second gradient is computed apart and added. */
static atto_status share_target(assembly *a, const atto__field *field, const atto_tensor *target)
{
    atto_tensor *apart = &a->shared[a->shared_count].apart;
    ATTO_TRY(alloc_like(a->tape->dev, target, apart));
    a->shared[a->shared_count++].target = target;
    *atto__field_of(&a->args, field) = apart;
    return ATTO_OK;
}

static atto_status place_target(assembly *a, const atto__field *field, int32_t slot)
{
    const atto_tensor *target;
    bool add;
    ATTO_TRY(grad_slot(a->tape, slot, &target, &add));
    if (has_target(a, target)) return share_target(a, field, target);
    a->targets[a->target_count++] = target;
    *atto__field_of(&a->args, field) = target;
    *(bool *)((char *)&a->args + field->add_offset) = add;
    return ATTO_OK;
}

static const atto_tensor *held_tensor(const atto_tape *tape, int32_t slot, bool held)
{
    return held ? &atto__values(tape)[slot].tensor : NULL;
}

static atto_status assemble(assembly *a)
{
    const atto_node *node = a->node;
    const atto__op_info *info = atto__op(node->op);
    int32_t count;
    const atto__field *fields = info->fields(&count);
    memcpy(&a->args, (const char *)a->tape->args.items + node->args_at, info->args_bytes);
    for (int32_t i = 0; i < node->result_count; i++) {
        const size_t offset = node->result_fields[i];
        *atto__field_of(&a->args, field_at(fields, count, offset)) =
            held_tensor(a->tape, node->results[i], node->held_results >> i & 1);
        const atto__field *dy = gradient_field(fields, count, offset, ATTO_ROLE_DIN);
        const atto_tensor *grad = &atto__values(a->tape)[node->results[i]].grad;
        if (dy) *atto__field_of(&a->args, dy) = grad->dtype ? grad : NULL;
    }
    for (int32_t i = 0; i < node->input_count; i++) {
        const size_t offset = node->input_fields[i];
        *atto__field_of(&a->args, field_at(fields, count, offset)) =
            held_tensor(a->tape, node->inputs[i], node->held_inputs >> i & 1);
        const atto__field *dx = gradient_field(fields, count, offset, ATTO_ROLE_DOUT);
        if (dx && !node->passes[i] && wants_grad(a->tape, node->grads[i]))
            ATTO_TRY(place_target(a, dx, node->grads[i]));
    }
    return ATTO_OK;
}

/* An input whose gradient is the output's. */
static atto_status pass_gradient(atto_tape *tape, const atto_node *node, int32_t i)
{
    const atto_tensor *into;
    bool add;
    const atto__value *output = &atto__values(tape)[node->results[0]];
    if (!wants_grad(tape, node->grads[i])) return ATTO_OK;
    ATTO_TRY(grad_slot(tape, node->grads[i], &into, &add));
    return add ? atto__accumulate(tape->dev, into, &output->grad)
               : atto_tensor_copy(into, &output->grad);
}

static atto_status finish(assembly *a)
{
    for (int32_t i = 0; i < a->shared_count; i++)
        ATTO_TRY(atto__accumulate(a->tape->dev, a->shared[i].target, &a->shared[i].apart));
    for (int32_t i = 0; i < a->node->input_count; i++)
        if (a->node->passes[i]) ATTO_TRY(pass_gradient(a->tape, a->node, i));
    return ATTO_OK;
}

static atto_status table_backward(atto_tape *tape, atto_node *node)
{
    assembly a = { .tape = tape, .node = node };
    atto_status status = assemble(&a);
    if (status == ATTO_OK && a.target_count > 0)
        status = atto__run(tape->dev, node->op, ATTO_BACKWARD, &a.args);
    if (status == ATTO_OK) status = finish(&a);
    for (int32_t i = 0; i < a.shared_count; i++) atto_tensor_free(&a.shared[i].apart);
    return status;
}

const atto_op_class atto__table_op_class = { "an op", table_backward };

/* ---- one node ---- */

static atto_status check_versions(const atto_tape *tape, const atto_node *node)
{
    for (int32_t i = 0; i < node->input_count; i++) {
        const int32_t source = atto__values(tape)[node->inputs[i]].source;
        const atto__value *value = &atto__values(tape)[source];
        ATTO_REQUIRE(!value->param || value->param->version == value->version, ATTO_E_STATE,
                     "%s: a parameter was changed since the forward that used it", name_of(node));
    }
    return ATTO_OK;
}

/* What the node held is no longer needed, nor are its results' gradients. */
static void release(atto_tape *tape, atto_node *node)
{
    for (int32_t i = 0; i < node->input_count; i++)
        if (node->held_inputs >> i & 1) atto__value_drop(&atto__values(tape)[node->inputs[i]]);
    for (int32_t i = 0; i < node->result_count; i++)
        if (node->held_results >> i & 1) atto__value_drop(&atto__values(tape)[node->results[i]]);
    for (int32_t i = 0; i < node->result_count; i++)
        atto_tensor_free(&atto__values(tape)[node->results[i]].grad);
    node->is_done = true;
}

/* Gradients that a failing node began are forgotten: nothing is in them. */
static atto_status run_node(atto_tape *tape, atto_node *node)
{
    uint32_t had = 0;
    for (int32_t i = 0; i < node->input_count; i++)
        had |= (uint32_t)has_grad(tape, node->grads[i]) << i;
    tape->runs_back = true;
    atto_status status = node->cls->backward(tape, node);
    tape->runs_back = false;
    if (status == ATTO_OK) status = atto_tape_status(tape); /* it may have tried to record */
    for (int32_t i = 0; status != ATTO_OK && i < node->input_count; i++)
        if (!(had >> i & 1)) forget_grad(tape, node->grads[i]);
    return status;
}

/* One of its results counts. */
static bool is_wanted(const atto_tape *tape, const atto_node *node)
{
    bool any = false;
    for (int32_t i = 0; i < node->result_count; i++)
        any = any || atto__values(tape)[node->results[i]].grad.dtype != 0;
    return any && !node->is_done;
}

static atto_status run_back(atto_tape *tape)
{
    for (size_t i = tape->nodes.count; i > 0; i--) {
        atto_node *node = &atto__nodes(tape)[i - 1];
        if (!is_wanted(tape, node)) continue;
        ATTO_TRY(check_versions(tape, node));
        ATTO_TRY(run_node(tape, node));
        release(tape, node);
    }
    return ATTO_OK;
}

/* ---- backward ---- */

/* start += gradient, or = gradient; without a gradient, 1. */
static atto_status seed(atto_tape *tape, const atto_tensor *start, const atto_tensor *gradient,
                        bool add)
{
    if (gradient && add) return atto__accumulate(tape->dev, start, gradient);
    if (gradient) return atto_tensor_copy(start, gradient);
    if (!add) return atto_tensor_fill(start, 1.0);
    atto_tensor one;
    ATTO_TRY(alloc_like(tape->dev, start, &one));
    atto_status status = atto_tensor_fill(&one, 1.0);
    if (status == ATTO_OK) status = atto__accumulate(tape->dev, start, &one);
    atto_tensor_free(&one);
    return status;
}

/* From a live value on; checks that there is something to compute. */
static atto_status start(atto_tape *tape, const char *call, int32_t slot,
                         const atto_tensor *gradient)
{
    const atto_tensor *into;
    bool add;
    ATTO_REQUIRE(!tape->runs_back, ATTO_E_STATE, "%s: called by a backward function", call);
    ATTO_REQUIRE(
        atto__values(tape)[slot].needs_grad, ATTO_E_STATE,
        "%s: nothing to compute: no parameter or watched value led to this one, or nothing was "
        "recorded (atto_tape_record)",
        call);
    ATTO_TRY(grad_slot(tape, slot, &into, &add));
    const atto_status status = seed(tape, into, gradient, add);
    if (status != ATTO_OK && !add) forget_grad(tape, slot);
    return status == ATTO_OK ? run_back(tape) : status;
}

static atto_status backward_from_one(atto_tape *tape, atto_var loss)
{
    const atto_tensor *t = atto__tape_tensor(tape, "backward", loss);
    if (!t) return atto_tape_status(tape);
    char text[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(atto_tensor_numel(t) == 1, ATTO_E_SHAPE,
                 "backward: the loss is %s, expected one element (atto_backward_from takes any)",
                 atto__shape_text(t, text));
    return start(tape, "backward", loss.slot, NULL);
}

atto_status atto_backward(atto_tape *tape, atto_var loss)
{
    ATTO_REQUIRE(tape, ATTO_E_NULL, "backward: tape is NULL");
    ATTO_TRY(atto_tape_status(tape));
    return atto__tape_fail(tape, backward_from_one(tape, loss));
}

static atto_status backward_from(atto_tape *tape, atto_var v, const atto_tensor *gradient)
{
    ATTO_REQUIRE(gradient, ATTO_E_NULL, "backward_from: gradient is NULL");
    ATTO_TRY(atto__tape_takes(tape, "backward_from: the gradient", gradient));
    const atto_tensor *t = atto__tape_tensor(tape, "backward_from", v);
    if (!t) return atto_tape_status(tape);
    char got[ATTO_SHAPE_TEXT], wanted[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(t->dtype == gradient->dtype, ATTO_E_DTYPE,
                 "backward_from: the gradient is %s, expected %s", atto_dtype_name(gradient->dtype),
                 atto_dtype_name(t->dtype));
    ATTO_REQUIRE(atto__shape_same(t, gradient), ATTO_E_SHAPE,
                 "backward_from: the gradient is %s, expected %s", atto__shape_text(gradient, got),
                 atto__shape_text(t, wanted));
    return start(tape, "backward_from", v.slot, gradient);
}

atto_status atto_backward_from(atto_tape *tape, atto_var v, const atto_tensor *gradient)
{
    ATTO_REQUIRE(tape, ATTO_E_NULL, "backward_from: tape is NULL");
    ATTO_TRY(atto_tape_status(tape));
    return atto__tape_fail(tape, backward_from(tape, v, gradient));
}

/* ---- for backward functions of users ---- */

const void *atto_node_args(const atto_tape *tape, const atto_node *node)
{
    return (const char *)tape->args.items + node->args_at;
}

const atto_tensor *atto_node_input(const atto_tape *tape, const atto_node *node, int32_t i)
{
    if (i < 0 || i >= node->input_count) return NULL;
    return &atto__values(tape)[node->inputs[i]].tensor;
}

const atto_tensor *atto_node_output(const atto_tape *tape, const atto_node *node)
{
    return &atto__values(tape)[node->results[0]].tensor;
}

const atto_tensor *atto_node_output_grad(const atto_tape *tape, const atto_node *node)
{
    return &atto__values(tape)[node->results[0]].grad;
}

atto_status atto_node_input_grad(atto_tape *tape, const atto_node *node, int32_t i,
                                 const atto_tensor **out, bool *add)
{
    ATTO_REQUIRE(tape && node && out && add, ATTO_E_NULL, "node_input_grad: an argument is NULL");
    *out = NULL;
    *add = false;
    ATTO_REQUIRE(i >= 0 && i < node->input_count, ATTO_E_ARGUMENT,
                 "%s: there is no input %d, only %d", name_of(node), (int)i,
                 (int)node->input_count);
    if (!wants_grad(tape, node->grads[i])) return ATTO_OK;
    return grad_slot(tape, node->grads[i], out, add);
}
