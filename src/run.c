/* SPDX-License-Identifier: MIT */
/* The choke point: every op call, on every backend, passes through `atto__run`. */
#include "run.h"

#include <stddef.h>
#include <string.h>

#include "operand.h"
#include "tune_call.h"

/* ---- the op table as data ---- */

/* A row whose check or slot is missing does not link. */
#define X(op, OP, shape_rule, autocast, in_place, random, data_errors)                           \
    static atto_status check_##op(const void *args, atto__direction direction)                   \
    {                                                                                            \
        return atto__##op##_check(args, direction);                                              \
    }                                                                                            \
    static atto_status call_##op(const atto__vtable *vt, atto__direction direction,              \
                                 atto_device *dev, const void *args, const atto__layout *layout) \
    {                                                                                            \
        return direction == ATTO_FORWARD ? vt->op##_forward(dev, args, layout)                   \
                                         : vt->op##_backward(dev, args, layout);                 \
    }
ATTO_OP_TABLE(X)
#undef X

/* A field's row: only gradients of inputs have a bool add_<field> beside them. */
#define ADD_IN(type, field)            0
#define ADD_IN_OPT(type, field)        0
#define ADD_IN_NEEDED(type, field)     0
#define ADD_IN_FWD(type, field)        0
#define ADD_IN_FWD_OPT(type, field)    0
#define ADD_STATE_OPT(type, field)     0
#define ADD_OUT(type, field)           0
#define ADD_SAVED(type, field)         0
#define ADD_SAVED_OPT(type, field)     0
#define ADD_SAVED_NEEDED(type, field)  0
#define ADD_SAVED_FWD_OPT(type, field) 0
#define ADD_DIN(type, field)           0
#define ADD_DIN_OPT(type, field)       0
#define ADD_DOUT(type, field)          offsetof(type, add_##field)

/* Whether a call draws random numbers: what the table's column random becomes. */
#define DRAWS_DROPS_BY(field) (((const args *)given)->field > 0.0f)
#define DRAWS_FIXED           ((const args *)given == NULL) /* never */

#define X(op, OP, shape_rule, autocast, in_place, random, data_errors) \
    static bool draws_##op(const void *given)                          \
    {                                                                  \
        typedef struct atto_##op##_args args;                          \
        return DRAWS_##random;                                         \
    }
ATTO_OP_TABLE(X)
#undef X

#define F(field, role) { #field, ATTO_ROLE_##role, offsetof(args, field), ADD_##role(args, field) },
#define X(op, OP, shape_rule, autocast, in_place, random, data_errors)                            \
    static const atto__field *fields_##op(int32_t *count)                                         \
    {                                                                                             \
        typedef struct atto_##op##_args args;                                                     \
        static const atto__field fields[] = { ATTO_##OP##_FIELDS(F) };                            \
        _Static_assert(sizeof fields / sizeof fields[0] <= ATTO_MAX_TENSORS, "too many tensors"); \
        *count = sizeof fields / sizeof fields[0];                                                \
        return fields;                                                                            \
    }
ATTO_OP_TABLE(X)
#undef X
#undef F

/* clang-format off */
#define IS_IN_PLACE    1
#define IS_DISTINCT    0
#define IS_DATA_ERRORS 1
#define IS_NONE        0
#define BROADCAST_ELEMENTWISE(op) NULL
#define BROADCAST_BROADCAST(op)   &atto__##op##_broadcast
#define BROADCAST_ROWS(op)        NULL
#define BROADCAST_DENSE(op)       NULL
#define BROADCAST_CHANNELS(op)    NULL
#define BROADCAST_IMAGES(op)      NULL
#define BROADCAST_FILTERED(op)    NULL
#define BROADCAST_MATRICES(op)    NULL
#define BROADCAST_INNER(op)       NULL
#define SPATIAL_ELEMENTWISE(op)   NULL
#define SPATIAL_BROADCAST(op)     NULL
#define SPATIAL_ROWS(op)          NULL
#define SPATIAL_DENSE(op)         NULL
#define SPATIAL_CHANNELS(op)      NULL
#define SPATIAL_IMAGES(op)        atto__##op##_spatial
#define SPATIAL_FILTERED(op)      atto__##op##_spatial
#define SPATIAL_MATRICES(op)      NULL
#define SPATIAL_INNER(op)         NULL
static const atto__op_info ops[] = {
#define X(op, OP, shape_rule, autocast, in_place, random, data_errors)                                 \
    { { #op "_forward", #op "_backward" }, sizeof(struct atto_##op##_args), offsetof(struct atto_##op##_args, reserved),           \
      fields_##op, ATTO_LAYOUT_##shape_rule, BROADCAST_##shape_rule(op), SPATIAL_##shape_rule(op), ATTO_AUTOCAST_##autocast, IS_##in_place, IS_##data_errors, draws_##op,                      \
      check_##op, call_##op },
    ATTO_OP_TABLE(X)
#undef X
};
/* clang-format on */

const atto__op_info *atto__op(atto_op op)
{
    return &ops[op];
}

static const atto_tensor *tensor_of(const void *args, const atto__field *field)
{
    return *(const atto_tensor *const *)((const char *)args + field->offset);
}

static bool adds(const void *args, const atto__field *field)
{
    return field->add_offset && *(const bool *)((const char *)args + field->add_offset);
}

bool atto__field_writes(const atto__field *field, atto__direction direction)
{
    return field->role &
           (direction == ATTO_FORWARD ? ATTO_FIELD_WRITE_FORWARD : ATTO_FIELD_WRITE_BACKWARD);
}

bool atto__field_reads(const atto__field *field, const void *args, atto__direction direction)
{
    const int32_t bit =
        direction == ATTO_FORWARD ? ATTO_FIELD_READ_FORWARD : ATTO_FIELD_READ_BACKWARD;
    return (field->role & bit) || (atto__field_writes(field, direction) && adds(args, field));
}

/* ---- one call ---- */

typedef struct call {
    atto_device *dev;
    const atto__op_info *op;
    atto__direction direction;
    const char *name; /* "act_forward" */
    const void *args;
    atto__operands operands;                     /* fields that take part, outputs first, */
    const atto__field *fields[ATTO_MAX_TENSORS]; /* and which they are */
} call;

static void add_operand(call *c, const atto__field *field, const atto_tensor *given)
{
    c->fields[c->operands.count] = field;
    atto__operand_add(&c->operands, field->name, given,
                      atto__field_reads(field, c->args, c->direction),
                      atto__field_writes(field, c->direction));
}

/* Collects the fields of this direction, outputs first; a required one that is missing fails. */
static atto_status collect(call *c)
{
    const int32_t optional =
        c->direction == ATTO_FORWARD ? ATTO_FIELD_OPTIONAL_FORWARD : ATTO_FIELD_OPTIONAL_BACKWARD;
    int32_t count;
    const atto__field *fields = c->op->fields(&count);
    for (int32_t pass = 0; pass < 2; pass++) {
        for (int32_t f = 0; f < count; f++) {
            const atto__field *field = &fields[f];
            const bool writes = atto__field_writes(field, c->direction);
            if (writes != (pass == 0) ||
                !(writes || atto__field_reads(field, c->args, c->direction)))
                continue;
            const atto_tensor *given = tensor_of(c->args, field);
            ATTO_REQUIRE(given || (field->role & optional), ATTO_E_NULL, "%s: %s is NULL", c->name,
                         field->name);
            if (given) add_operand(c, field, given);
        }
    }
    return ATTO_OK;
}

static atto_status check_reserved(const call *c)
{
    const char *reserved = (const char *)c->args + c->op->reserved_offset;
    return atto__reserved_check(c->name, (const uint64_t *)(const void *)reserved);
}

static atto_status check_call(call *c)
{
    ATTO_TRY(check_reserved(c));
    ATTO_TRY(collect(c));
    ATTO_TRY(atto__operands_check(&c->operands));
    ATTO_TRY(c->op->check(c->args, c->direction));
    return atto__operands_check_aliases(&c->operands, c->op->in_place);
}

static bool has_work(const atto__operands *set)
{
    for (int32_t i = 0; i < set->count; i++)
        if (set->list[i].writes && atto_tensor_numel(set->list[i].given) > 0) return true;
    return false;
}

/* ---- strides ---- */

static bool try_merge(call *c, atto__layout *layout)
{
    atto_tensor *walk[ATTO_MAX_TENSORS];
    for (int32_t i = 0; i < c->operands.count; i++) walk[i] = &c->operands.list[i].view;
    return atto__layout_merge(walk, c->operands.count, c->op->draws(c->args),
                              c->dev->options.set.index_bits == 64, layout);
}

/* Merges the tensors of an elementwise call; when they need too many dimensions together, packs all
 * of them, which makes them dense. */
static atto_status merge_together(call *c, atto__layout *layout)
{
    if (try_merge(c, layout)) return ATTO_OK;
    for (int32_t i = 0; i < c->operands.count; i++)
        ATTO_TRY(atto__operand_pack(&c->operands, &c->operands.list[i]));
    ATTO_REQUIRE(try_merge(c, layout), ATTO_E_STRIDE, "%s: strides cannot be walked", c->name);
    return ATTO_OK;
}

/* The tensor to which the others expand: one of the call's, or made. */
static const atto_tensor *full_of(const call *c, atto_tensor *made)
{
    const atto__broadcast *b = c->op->broadcast;
    const atto_tensor *full = b->full(c->args, c->direction);
    if (full) return full;
    *made = atto_tensor_of(NULL, ATTO_F32, b->shape(c->args), 0);
    return made;
}

/* A walk of expanded tensors is led by the full one; another could sort dimensions badly. counter,
 * if not NULL, goes along and becomes the layout's index. */
static bool try_merge_expanded(call *c, const atto_tensor *full, atto_tensor *counter,
                               atto__layout *layout)
{
    const atto_tensor *any = &c->operands.list[0].view; /* expanded, too */
    atto_tensor made = atto_tensor_of(NULL, ATTO_F32, atto_shape_of(any->rank, any->shape), 0);
    atto_tensor *walk[ATTO_MAX_TENSORS + 2];
    int32_t n = c->operands.count, leader = n;
    for (int32_t i = 0; i < n; i++) {
        walk[i] = &c->operands.list[i].view;
        if (c->operands.list[i].given_by_caller == full) leader = i;
    }
    if (leader == n) walk[n++] = &made; /* no tensor of the call */
    atto_tensor *first = walk[leader];
    walk[leader] = walk[0];
    walk[0] = first;
    if (counter) walk[n++] = counter;
    if (!atto__layout_merge(walk, n, false, c->dev->options.set.index_bits == 64, layout))
        return false;
    for (int32_t d = 0; counter && d < layout->rank; d++)
        layout->index_stride[d] = counter->stride[d];
    return true;
}

static bool repeats(const atto_tensor *t)
{
    for (int32_t d = 0; d < t->rank; d++)
        if (t->shape[d] > 1 && t->stride[d] == 0) return true;
    return false;
}

/* A reduced tensor's stride 0 shall mean a folded dimension; one that repeats its own is packed. */
static atto_status pack_repeating(call *c, const atto_tensor *full)
{
    for (int32_t i = 0; i < c->operands.count; i++) {
        atto__operand *o = &c->operands.list[i];
        const bool reduced = !atto__shape_same(o->given, full);
        if (reduced && repeats(o->given)) ATTO_TRY(atto__operand_pack(&c->operands, o));
    }
    return ATTO_OK;
}

static int64_t product_of(const atto_tensor *full, uint32_t dims)
{
    int64_t n = 1;
    for (int32_t d = 0; d < full->rank; d++)
        if (dims >> d & 1u) n *= full->shape[d];
    return n;
}

/* Expands tensors by strides 0 and merges them; packs all when that takes too many dimensions. */
static atto_status merge_expanded(call *c, atto__layout *layout)
{
    const atto__broadcast *b = c->op->broadcast;
    atto_tensor made;
    const atto_tensor *full = full_of(c, &made);
    const uint32_t dims = b->dims ? b->dims(c->args, c->direction) : 0;
    if (b->dims) ATTO_TRY(pack_repeating(c, full));
    for (int32_t i = 0; i < c->operands.count; i++)
        atto__view_expand(&c->operands.list[i].view, full, dims);
    const bool indexed = b->indexed && b->indexed(c->args);
    atto_tensor counter = atto__folded_counter(full, dims);
    if (!try_merge_expanded(c, full, indexed ? &counter : NULL, layout)) {
        ATTO_TRY(atto__operands_pack_expanded(&c->operands, full, dims, &counter));
        ATTO_REQUIRE(try_merge_expanded(c, full, indexed ? &counter : NULL, layout), ATTO_E_STRIDE,
                     "%s: strides cannot be walked", c->name);
    }
    layout->folded = b->folded ? b->folded(c->args) : product_of(full, dims);
    return ATTO_OK;
}

/* Each tensor for itself as a matrix of rows. */
static atto_status merge_rows(call *c)
{
    for (int32_t i = 0; i < c->operands.count; i++) {
        atto__operand *o = &c->operands.list[i];
        if (atto__view_rows(&o->view)) continue;
        ATTO_TRY(atto__operand_pack(&c->operands, o));
        ATTO_REQUIRE(atto__view_rows(&o->view), ATTO_E_STRIDE, "%s: %s cannot be packed", c->name,
                     o->name);
    }
    return ATTO_OK;
}

static atto_status make_one_dense(call *c, atto__operand *o)
{
    if (atto_tensor_numel(o->given) == 0 || atto__view_dense(o->given)) return ATTO_OK;
    return atto__operand_pack(&c->operands, o);
}

static atto_status make_dense(call *c)
{
    for (int32_t i = 0; i < c->operands.count; i++)
        ATTO_TRY(make_one_dense(c, &c->operands.list[i]));
    return ATTO_OK;
}

/* ---- images ---- */

/* The images of a call are its tensors of the highest rank; of an op that knows its images'
 * dimensions, those that have as many. */
static bool is_image(const call *c, const atto_tensor *t)
{
    if (c->op->spatial) return t->rank > c->op->spatial(c->args);
    for (int32_t i = 0; i < c->operands.count; i++)
        if (c->operands.list[i].given->rank > t->rank) return false;
    return true;
}

/* The filters of FILTERED. */
static bool is_filter(const call *c, int32_t i)
{
    const char *name = c->operands.list[i].name;
    return c->op->layout == ATTO_LAYOUT_FILTERED &&
           (strcmp(name, "w") == 0 || strcmp(name, "dw") == 0);
}

/* The largest image, of equals the first, which is an output where there is one, says how all of
 * them lie: it would cost most to copy. */
static atto__operand *largest_image(call *c)
{
    atto__operand *largest = NULL;
    for (int32_t i = 0; i < c->operands.count; i++) {
        atto__operand *o = &c->operands.list[i];
        if (!is_image(c, o->given) || is_filter(c, i)) continue;
        if (!largest || atto_tensor_numel(o->given) > atto_tensor_numel(largest->given))
            largest = o;
    }
    return largest;
}

/* Whether the op can walk the view as one with channels innermost, or with the last dimension. */
static bool lies(const call *c, atto_tensor *view, bool channels_last)
{
    if (c->op->spatial) return atto__image_unit(view, channels_last);
    if (channels_last && view->rank < 2) return false;
    return atto__view_dense_by(view, channels_last ? 1 : view->rank - 1);
}

/* Packs an image so that the copy has channels, or the last dimension, innermost. A filter's copy is
 * not a hidden one: kernels pack filters whatever they lie like. */
static atto_status pack_image(call *c, atto__operand *o, bool channels_last, bool filter)
{
    const int32_t last = o->view.rank - 1;
    o->shaped = o->view;
    if (channels_last) atto__view_move(&o->shaped, 1, last);
    o->given = &o->shaped;
    ATTO_TRY(filter ? atto__operand_arrange(&c->operands, o) : atto__operand_pack(&c->operands, o));
    if (channels_last) atto__view_move(&o->view, last, 1);
    ATTO_REQUIRE(lies(c, &o->view, channels_last), ATTO_E_STRIDE, "%s: %s cannot be packed",
                 c->name, o->name);
    return ATTO_OK;
}

static void widen_layout(const atto_tensor *t, atto__layout *layout)
{
    const int64_t extent = atto__extent(t), numel = atto_tensor_numel(t);
    layout->wide = layout->wide || extent > INT32_MAX || numel > INT32_MAX;
}

static atto_status merge_image(call *c, int32_t i, const atto__layout *layout)
{
    atto__operand *o = &c->operands.list[i];
    const bool is_empty = atto_tensor_numel(&o->view) == 0;
    if (is_empty || lies(c, &o->view, layout->channels_last)) return ATTO_OK;
    return pack_image(c, o, layout->channels_last, is_filter(c, i));
}

/* All images lie as the largest does: channels innermost, or the last dimension. Others are
 * dense. */
static atto_status merge_images(call *c, atto__layout *layout)
{
    bool images[ATTO_MAX_TENSORS];
    atto__operand *largest = largest_image(c);
    for (int32_t i = 0; i < c->operands.count; i++) {
        atto__operand *o = &c->operands.list[i];
        images[i] = is_image(c, o->given);
        if (c->op->spatial && images[i]) atto__view_image(&o->view, c->op->spatial(c->args));
    }
    memset(layout, 0, sizeof *layout);
    layout->wide = c->dev->options.set.index_bits == 64;
    layout->channels_last = !lies(c, &largest->view, false) && lies(c, &largest->view, true);
    for (int32_t i = 0; i < c->operands.count; i++) {
        atto__operand *o = &c->operands.list[i];
        ATTO_TRY(images[i] ? merge_image(c, i, layout) : make_one_dense(c, o));
        widen_layout(&o->view, layout);
    }
    return ATTO_OK;
}

/* ---- matrices, and tensors whose last dimension has unit stride ---- */

/* Packs a tensor; what its first dims dimensions repeat, once. */
static atto_status pack_once(call *c, atto__operand *o, int32_t dims)
{
    const atto_tensor *given = o->given;
    o->shaped = *given;
    for (int32_t d = 0; d < dims; d++)
        if (given->stride[d] == 0 && !o->writes) o->shaped.shape[d] = 1;
    o->given = &o->shaped;
    ATTO_TRY(atto__operand_pack(&c->operands, o));
    for (int32_t d = 0; d < dims; d++) {
        if (o->view.shape[d] == given->shape[d]) continue;
        o->view.shape[d] = given->shape[d];
        o->view.stride[d] = 0;
    }
    return ATTO_OK;
}

static atto_status pack_matrices(call *c, atto__operand *o)
{
    if (atto_tensor_numel(o->given) == 0 || atto__view_matrices(o->given)) return ATTO_OK;
    return pack_once(c, o, o->given->rank - 2);
}

/* All tensors get the shape of the batch; each one's matrices stay what they are. */
static atto_status merge_matrices(call *c)
{
    atto_tensor batch = { .rank = 0 };
    for (int32_t i = 0; i < c->operands.count; i++)
        atto__batch_join(&batch, c->operands.list[i].given);
    for (int32_t i = 0; i < c->operands.count; i++) {
        ATTO_TRY(pack_matrices(c, &c->operands.list[i]));
        atto__view_batch(&c->operands.list[i].view, &batch);
    }
    return ATTO_OK;
}

static atto_status make_inner(call *c)
{
    for (int32_t i = 0; i < c->operands.count; i++) {
        atto__operand *o = &c->operands.list[i];
        const int32_t last = o->given->rank - 1;
        if (last < 0 || o->given->shape[last] <= 1 || o->given->stride[last] == 1) continue;
        if (atto_tensor_numel(o->given) > 0) ATTO_TRY(pack_once(c, o, last));
    }
    return ATTO_OK;
}

/* Brings the operands' views into the form that the op table names. */
static atto_status canonicalise(call *c, atto__layout *merged)
{
    switch (c->op->layout) {
    case ATTO_LAYOUT_ELEMENTWISE:
        return merge_together(c, merged);
    case ATTO_LAYOUT_BROADCAST:
        return merge_expanded(c, merged);
    case ATTO_LAYOUT_ROWS:
        return merge_rows(c);
    case ATTO_LAYOUT_CHANNELS:
    case ATTO_LAYOUT_IMAGES:
    case ATTO_LAYOUT_FILTERED:
        return merge_images(c, merged);
    case ATTO_LAYOUT_MATRICES:
        return merge_matrices(c);
    case ATTO_LAYOUT_INNER:
        return make_inner(c);
    case ATTO_LAYOUT_DENSE:
        break;
    }
    return make_dense(c);
}

/* ---- run ---- */

/* Once per op and direction: what runs elsewhere, and why. */
static void warn_fallback(call *c, atto_op op)
{
    bool *warned = &c->dev->warned[op][c->direction];
    if (!*warned)
        atto__log(c->dev, ATTO_LOG_WARNING, "%s runs on the CPU instead of %s: %s", c->name,
                  c->dev->info.name, atto_last_error());
    *warned = true;
}

/* A way that was measured, but cannot be built here, does not count. A call that asks for what is
 * to be measured is measured behind its run. */
static atto_status call_backend(call *c, const void *args, const atto__layout *layout)
{
    atto__tuner *tuner = c->dev->tuner;
    if (!tuner) return c->op->call(c->dev->vt, c->direction, c->dev, args, layout);
    tuner->open.count = 0;
    atto_status status = c->op->call(c->dev->vt, c->direction, c->dev, args, layout);
    if (status == ATTO_E_BUILD) {
        tuner->presets_only = true;
        status = c->op->call(c->dev->vt, c->direction, c->dev, args, layout);
        tuner->presets_only = false;
    }
    if (status != ATTO_OK || tuner->open.count == 0) return status;
    return atto__tune_call(c->dev, c->op, c->direction, args, layout);
}

/* args: a copy of the caller's struct whose tensors are the canonical views. */
static atto_status dispatch(call *c, atto_op op, const void *args, const atto__layout *layout)
{
    const atto_status status = call_backend(c, args, layout);
    if (status != ATTO_E_BUILD || c->dev->options.set.no_fallback) return status;
    warn_fallback(c, op);
    c->dev->stats.fallbacks++;
    return atto__fallback(c->dev, op, c->direction, args, layout);
}

/* Nothing to go over, yet something to write: sums of no terms. */
static atto_status write_empty(call *c)
{
    const atto__broadcast *b = c->op->broadcast;
    for (int32_t i = 0; i < c->operands.count; i++) {
        const atto__operand *o = &c->operands.list[i];
        if (o->writes && !o->reads)
            ATTO_TRY(atto_tensor_fill(o->given, b->empty ? b->empty(c->args, c->direction) : 0.0));
    }
    return ATTO_OK;
}

static bool is_empty_sum(const call *c)
{
    atto_tensor made;
    return c->op->broadcast && atto_tensor_numel(full_of(c, &made)) == 0;
}

static atto_status execute(call *c, atto_op op)
{
    if (is_empty_sum(c)) return write_empty(c);
    atto__any_args args;
    memcpy(&args, c->args, c->op->args_bytes);
    atto__layout merged;
    const bool walks = c->op->layout == ATTO_LAYOUT_ELEMENTWISE || c->op->broadcast ||
                       c->op->spatial || c->op->layout == ATTO_LAYOUT_CHANNELS;
    const atto__layout *layout = walks ? &merged : NULL;
    ATTO_TRY(canonicalise(c, &merged));
    for (int32_t i = 0; i < c->operands.count; i++)
        *atto__field_of(&args, c->fields[i]) = &c->operands.list[i].view;
    ATTO_TRY(dispatch(c, op, &args, layout));
    c->dev->error_armed = c->dev->error_armed || c->op->data_errors;
    return atto__operands_unpack(&c->operands);
}

atto_status atto__run(atto_device *dev, atto_op op, atto__direction direction, const void *args)
{
    call c; /* not zeroed: it is large */
    c.dev = dev;
    c.op = &ops[op];
    c.direction = direction;
    c.name = c.op->name[direction];
    c.args = args;
    c.operands.dev = dev;
    c.operands.call = c.name;
    c.operands.count = 0;
    ATTO_REQUIRE(dev && args, ATTO_E_NULL, "%s: %s is NULL", c.name,
                 dev ? "the args struct" : "dev");
    ATTO_TRY(atto__device_check(dev));
    ATTO_TRY(check_call(&c));
    if (!has_work(&c.operands)) return ATTO_OK;
    atto__scratch_reset(dev);
    atto__operands_count_writes(&c.operands);
    ATTO_TRY(execute(&c, op));
    return atto__device_finish_call(dev);
}
