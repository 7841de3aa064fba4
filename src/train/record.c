/* SPDX-License-Identifier: MIT */
/* Recording: an op runs forward, and a node remembers what its backward will need. */
#include <attocl/record.h>

#include <string.h>

#include "layers/checks.h"
#include "train/tape.h"

/* ---- nodes ---- */

#define ARGS_ALIGN 16

atto_status atto__tape_push_node(atto_tape *tape, const atto_op_class *cls, const void *args,
                                 size_t args_bytes, atto_node **out)
{
    const size_t bytes = (args_bytes + ARGS_ALIGN - 1) / ARGS_ALIGN * ARGS_ALIGN;
    ATTO_TRY(atto__tape_may_record(tape));
    ATTO_TRY(atto__list_room(&tape->nodes, 1, sizeof(atto_node)));
    ATTO_TRY(atto__list_room(&tape->args, bytes, 1));
    atto_node *node = &atto__nodes(tape)[tape->nodes.count++];
    memset(node, 0, sizeof *node);
    node->cls = cls;
    node->op = ATTO_OP_COUNT;
    node->args_at = tape->args.count;
    if (args_bytes > 0) memcpy((char *)tape->args.items + node->args_at, args, args_bytes);
    tape->args.count += bytes;
    *out = node;
    return ATTO_OK;
}

void atto__node_hold(atto_tape *tape, const atto_node *node)
{
    for (int32_t i = 0; i < node->input_count; i++)
        if (node->held_inputs >> i & 1) atto__values(tape)[node->inputs[i]].holds++;
    for (int32_t i = 0; i < node->result_count; i++)
        if (node->held_results >> i & 1) atto__values(tape)[node->results[i]].holds++;
}

/* ---- ops of the table ---- */

/* One recording, from the caller's words to the node. */
typedef struct recording {
    atto_tape *tape;
    const atto__op_info *info;
    atto_op op;
    void *args;
    const atto__binding *inputs;
    int32_t input_count;
    const atto__result *results;
    int32_t result_count;
    int32_t slots[ATTO_NODE_INPUTS]; /* the inputs as autocast hands them on, */
    int32_t grads[ATTO_NODE_INPUTS]; /* and where their gradients go */
    bool wants_grad;
    atto_tensor made[ATTO_NODE_RESULTS];
    atto_var vars[ATTO_NODE_RESULTS]; /* of those that were made, once they are pushed */
} recording;

static const atto_tensor **slot_of(void *args, size_t field)
{
    return (const atto_tensor **)(void *)((char *)args + field);
}

static bool find_inputs(recording *r)
{
    for (int32_t i = 0; i < r->input_count; i++) {
        const atto__value *value =
            atto__tape_value(r->tape, r->info->name[ATTO_FORWARD], r->inputs[i].v);
        if (!value) return false;
        r->slots[i] = r->grads[i] = r->inputs[i].v.slot;
        r->wants_grad = r->wants_grad || (r->tape->records && value->needs_grad);
    }
    return true;
}

static atto_status cast_inputs(recording *r)
{
    const atto_dtype dtype = atto__autocast_dtype(r->tape, r->op, r->args, r->inputs,
                                                  r->input_count, r->results[0].like_inputs);
    for (int32_t i = 0; dtype && i < r->input_count; i++)
        if (atto__autocast_applies(r->tape, &r->inputs[i], dtype))
            ATTO_TRY(
                atto__autocast_value(r->tape, &r->inputs[i], dtype, &r->slots[i], &r->grads[i]));
    return ATTO_OK;
}

/* The recording's own holds on what autocast has made. */
static void drop_casts(const recording *r)
{
    for (int32_t i = 0; i < r->input_count; i++)
        if (r->slots[i] != r->inputs[i].v.slot)
            atto__value_drop(&atto__values(r->tape)[r->slots[i]]);
}

/* Of those that follow the inputs: that of the first float, or without floats of the first. */
static atto_dtype result_dtype(const recording *r, int32_t i)
{
    if (!r->results[i].like_inputs) return r->results[i].dtype;
    for (int32_t k = 0; k < r->input_count; k++) {
        const atto_dtype dtype = atto__values(r->tape)[r->slots[k]].tensor.dtype;
        if (atto__is_float(dtype)) return dtype;
    }
    return atto__values(r->tape)[r->slots[0]].tensor.dtype;
}

/* Points the args at the inputs' tensors, which stay where they are until the next value is
 * pushed. */
static void place_inputs(recording *r)
{
    for (int32_t i = 0; i < r->input_count; i++)
        *slot_of(r->args, r->inputs[i].field) = &atto__values(r->tape)[r->slots[i]].tensor;
    if (!atto__is_float(result_dtype(r, 0))) r->wants_grad = false; /* integers have no gradient */
}

atto_status atto__alloc_innermost(atto_device *dev, atto_dtype dtype, atto_shape shape,
                                  int32_t innermost, atto_tensor *out)
{
    if (innermost >= shape.rank - 1) return atto_tensor_alloc(dev, dtype, shape, out);
    atto_shape stored = shape;
    int32_t order[ATTO_MAX_RANK], last = shape.rank - 1;
    for (int32_t d = 0; d < shape.rank; d++) {
        order[d] = d < innermost ? d : d > innermost ? d - 1 : last;
        stored.dim[order[d]] = shape.dim[d];
    }
    ATTO_TRY(atto_tensor_alloc(dev, dtype, stored, out));
    return atto_tensor_permute(out, order, out);
}

/* Dimensions from the largest stride down; false where elements repeat. */
static bool order_in_memory(const atto_tensor *t, int32_t *order)
{
    for (int32_t d = 0; d < t->rank; d++) {
        int32_t at = d;
        if (t->stride[d] <= 0) return false;
        for (; at > 0 && t->stride[order[at - 1]] < t->stride[d]; at--) order[at] = order[at - 1];
        order[at] = d;
    }
    return true;
}

atto_status atto__alloc_ordered(atto_device *dev, atto_dtype dtype, atto_shape shape,
                                const atto_tensor *like, atto_tensor *out)
{
    int32_t order[ATTO_MAX_RANK], inverse[ATTO_MAX_RANK];
    const int32_t rank = shape.rank;
    if (rank == 0 || like->stride[rank - 1] != 1 || !order_in_memory(like, order))
        return atto_tensor_alloc(dev, dtype, shape, out);
    atto_shape stored = shape;
    for (int32_t i = 0; i < rank; i++) {
        stored.dim[i] = shape.dim[order[i]];
        inverse[order[i]] = i;
    }
    ATTO_TRY(atto_tensor_alloc(dev, dtype, stored, out));
    return atto_tensor_permute(out, inverse, out);
}

static atto_status alloc_result(const recording *r, int32_t i, atto_tensor *out)
{
    const atto__result *result = &r->results[i];
    const atto_dtype dtype = result_dtype(r, i);
    const int32_t innermost = result->moves ? result->innermost : result->shape.rank - 1;
    if (!result->ordered)
        return atto__alloc_innermost(r->tape->dev, dtype, result->shape, innermost, out);
    const atto__value *leader = &atto__values(r->tape)[r->slots[result->leader]];
    return atto__alloc_ordered(r->tape->dev, dtype, result->shape, &leader->tensor, out);
}

static atto_status make_results(recording *r)
{
    for (int32_t i = 0; i < r->result_count; i++) {
        const atto__result *result = &r->results[i];
        if (result->only_saved && !r->wants_grad) continue;
        ATTO_TRY(alloc_result(r, i, &r->made[i]));
        *slot_of(r->args, result->field) = &r->made[i];
    }
    return ATTO_OK;
}

static bool is_read_backward(const recording *r, size_t offset)
{
    int32_t count;
    const atto__field *fields = r->info->fields(&count);
    for (int32_t f = 0; f < count; f++)
        if (fields[f].offset == offset) return fields[f].role & ATTO_FIELD_READ_BACKWARD;
    return false;
}

/* A result that only backward reads is a value that nobody names. */
static atto_status push_result(recording *r, int32_t i, atto_node *node)
{
    ATTO_TRY(atto__tape_push(r->tape, &r->made[i], &r->vars[i]));
    node->results[node->result_count] = r->vars[i].slot;
    node->result_fields[node->result_count] = r->results[i].field;
    if (is_read_backward(r, r->results[i].field) && !r->results[i].not_read)
        node->held_results |= 1u << node->result_count;
    node->result_count++;
    return ATTO_OK;
}

/* Gradients of the result lead to the node. */
static void lead_back(const recording *r, int32_t slot)
{
    atto__value *value = &atto__values(r->tape)[slot];
    value->node = (int32_t)r->tape->nodes.count - 1;
    value->needs_grad = true;
}

static atto_status push_node(recording *r, atto_var *out)
{
    atto_node *node;
    ATTO_TRY(
        atto__tape_push_node(r->tape, &atto__table_op_class, r->args, r->info->args_bytes, &node));
    node->op = r->op;
    for (int32_t i = 0; i < r->input_count; i++) {
        node->inputs[i] = r->slots[i];
        node->grads[i] = r->grads[i];
        node->input_fields[i] = r->inputs[i].field;
        node->passes[i] = r->inputs[i].passes;
        if (is_read_backward(r, r->inputs[i].field) && !r->inputs[i].not_read)
            node->held_inputs |= 1u << i;
    }
    node->input_count = r->input_count;
    for (int32_t i = 0; i < r->result_count; i++)
        if (r->made[i].dtype != 0) ATTO_TRY(push_result(r, i, node));
    atto__node_hold(r->tape, node);
    for (int32_t i = 1; i < r->result_count; i++) {
        if (r->results[i].has_grad) lead_back(r, r->vars[i].slot);
        if (r->vars[i].generation == 0 || r->results[i].also) continue;
        atto__value *saved = &atto__values(r->tape)[r->vars[i].slot];
        saved->is_named = false;
        atto__value_drop(saved);
    }
    lead_back(r, node->results[0]);
    *out = (atto_var){ node->results[0], r->tape->generation };
    return ATTO_OK;
}

static atto_status run_and_record(recording *r, atto_var *out)
{
    ATTO_TRY(cast_inputs(r));
    place_inputs(r);
    ATTO_TRY(make_results(r));
    ATTO_TRY(atto__run(r->tape->dev, r->op, ATTO_FORWARD, r->args));
    if (r->wants_grad) return push_node(r, out);
    for (int32_t i = 1; i < r->result_count; i++)
        if (r->results[i].also) ATTO_TRY(atto__tape_push(r->tape, &r->made[i], &r->vars[i]));
    return atto__tape_push(r->tape, &r->made[0], out);
}

atto_var atto__record_op(atto_tape *tape, atto_op op, void *args, const atto__binding *inputs,
                         int32_t input_count, const atto__result *results, int32_t result_count)
{
    recording r = { .tape = tape,
                    .info = atto__op(op),
                    .op = op,
                    .args = args,
                    .inputs = inputs,
                    .input_count = input_count,
                    .results = results,
                    .result_count = result_count };
    atto_var out = atto__no_var();
    if (!find_inputs(&r)) return out;
    const bool failed = atto__tape_fail(tape, run_and_record(&r, &out)) != ATTO_OK;
    if (failed) out = atto__no_var();
    drop_casts(&r);
    for (int32_t i = 1; i < result_count; i++)
        if (results[i].also) *results[i].also = failed ? atto__no_var() : r.vars[i];
    for (int32_t i = 0; i < result_count; i++)
        atto_tensor_free(&r.made[i]); /* what was not pushed */
    return out;
}

/* ---- ops of users ---- */

static atto_status check_record(const atto_tape *tape, const atto_op_class *cls, const void *args,
                                size_t args_bytes, const atto_var *inputs, int32_t count,
                                const atto_tensor *output)
{
    ATTO_REQUIRE(cls && cls->name && cls->backward && output, ATTO_E_NULL, "record: %s is NULL",
                 !cls             ? "cls"
                 : !cls->name     ? "the class's name"
                 : !cls->backward ? "the class's backward"
                                  : "output");
    ATTO_REQUIRE(args || args_bytes == 0, ATTO_E_NULL, "%s: args is NULL", cls->name);
    ATTO_REQUIRE(count >= 0 && count <= ATTO_NODE_INPUTS, ATTO_E_ARGUMENT,
                 "%s: %d inputs, expected 0 to %d", cls->name, (int)count, ATTO_NODE_INPUTS);
    ATTO_REQUIRE(inputs || count == 0, ATTO_E_NULL, "%s: inputs is NULL", cls->name);
    const atto_status status = atto__tape_takes(tape, "the output", output);
    return status == ATTO_OK ? ATTO_OK : atto__fail_in(status, "%s: ", cls->name);
}

/* holds: backward reads the tensors. */
static atto_status record_users(atto_tape *tape, const atto_op_class *cls, const void *args,
                                size_t args_bytes, const atto_var *inputs, int32_t count,
                                bool holds, atto_tensor *output, atto_var *out)
{
    bool wants_grad = false;
    for (int32_t i = 0; i < count; i++) {
        const atto__value *value = atto__tape_value(tape, cls->name, inputs[i]);
        if (!value) return tape->status;
        wants_grad = wants_grad || (tape->records && value->needs_grad);
    }
    ATTO_TRY(atto__tape_push(tape, output, out));
    if (!wants_grad) return ATTO_OK;
    atto_node *node;
    ATTO_TRY(atto__tape_push_node(tape, cls, args, args_bytes, &node));
    for (int32_t i = 0; i < count; i++) node->inputs[i] = node->grads[i] = inputs[i].slot;
    node->input_count = count;
    node->results[0] = out->slot;
    node->result_count = 1;
    node->held_inputs = holds ? (1u << count) - 1 : 0;
    node->held_results = holds;
    atto__node_hold(tape, node);
    atto__value *value = &atto__values(tape)[out->slot];
    value->node = (int32_t)tape->nodes.count - 1;
    value->needs_grad = true;
    return ATTO_OK;
}

static atto_var record(atto_tape *tape, const atto_op_class *cls, const void *args,
                       size_t args_bytes, const atto_var *inputs, int32_t count, bool holds,
                       atto_tensor *output)
{
    atto_var out = atto__no_var();
    if (tape && tape->status == ATTO_OK) {
        atto_status status = check_record(tape, cls, args, args_bytes, inputs, count, output);
        if (status == ATTO_OK)
            status = record_users(tape, cls, args, args_bytes, inputs, count, holds, output, &out);
        if (atto__tape_fail(tape, status) != ATTO_OK) out = atto__no_var();
    }
    atto_tensor_free(output); /* unless it was taken over */
    return out;
}

atto_var atto_record(atto_tape *tape, const atto_op_class *cls, const void *args, size_t args_bytes,
                     const atto_var *inputs, int32_t count, atto_tensor *output)
{
    return record(tape, cls, args, args_bytes, inputs, count, true, output);
}

atto_var atto__record_unread(atto_tape *tape, const atto_op_class *cls, const void *args,
                             size_t args_bytes, const atto_var *inputs, int32_t count,
                             atto_tensor *output)
{
    return record(tape, cls, args, args_bytes, inputs, count, false, output);
}
