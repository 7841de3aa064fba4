/* SPDX-License-Identifier: MIT */
/* The choke point: every op call, on every backend, passes through `atto__run`. */
#include "run.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "tensor.h"

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
#define ADD_IN(type, field)     0
#define ADD_IN_FWD(type, field) 0
#define ADD_OUT(type, field)    0
#define ADD_DIN(type, field)    0
#define ADD_DOUT(type, field)   offsetof(type, add_##field)

/* Whether a call draws random numbers: what the table's column random becomes. */
#define DRAWS_DROPS_BY(field) (((const args *)given)->field > 0.0f)
#define DRAWS_FIXED           (given == NULL) /* never */

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
#define IS_ELEMENTWISE 1
#define IS_IN_PLACE    1
#define IS_DISTINCT    0
#define IS_DATA_ERRORS 1
#define IS_NONE        0
static const atto__op_info ops[] = {
#define X(op, OP, shape_rule, autocast, in_place, random, data_errors)                                 \
    { #op, sizeof(struct atto_##op##_args), offsetof(struct atto_##op##_args, reserved),           \
      fields_##op, IS_##shape_rule, IS_##in_place, IS_##data_errors, draws_##op,                      \
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

typedef struct operand {
    const atto__field *field;
    const atto_tensor *given; /* the caller's view */
    atto_tensor view;         /* what the backend gets: merged dimensions */
    atto_tensor packed;       /* a dense copy in scratch, if is_packed */
    atto_buffer buffer;       /* its header */
    bool reads, writes, is_packed;
} operand;

typedef struct call {
    atto_device *dev;
    const atto__op_info *op;
    atto__direction direction;
    const void *args;
    operand operands[ATTO_MAX_TENSORS]; /* fields that take part, outputs first */
    int32_t count;
} call;

static const char *direction_name(atto__direction direction)
{
    return direction == ATTO_FORWARD ? "forward" : "backward";
}

static void add_operand(call *c, const atto__field *field, const atto_tensor *given)
{
    operand *o = &c->operands[c->count++];
    o->field = field;
    o->given = given;
    o->reads = atto__field_reads(field, c->args, c->direction);
    o->writes = atto__field_writes(field, c->direction);
    o->is_packed = false;
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
            ATTO_REQUIRE(given || (field->role & optional), ATTO_E_NULL, "%s_%s: %s is NULL",
                         c->op->name, direction_name(c->direction), field->name);
            if (given) add_operand(c, field, given);
        }
    }
    return ATTO_OK;
}

static atto_status check_operand(const call *c, const operand *o)
{
    char what[96];
    snprintf(what, sizeof what, "%s_%s: %s", c->op->name, direction_name(c->direction),
             o->field->name);
    ATTO_TRY(atto__view_check(o->given, what));
    const atto_device *owner = atto_tensor_device(o->given);
    ATTO_REQUIRE(!owner || owner == c->dev, ATTO_E_DEVICE,
                 "%s belongs to another device (%s) than dev (%s)", what, owner->info.name,
                 c->dev->info.name);
    ATTO_REQUIRE(!o->writes || atto__view_distinct(o->given), ATTO_E_STRIDE,
                 "%s: elements of an output overlap each other", what);
    return ATTO_OK;
}

/* An output shares no element with another tensor of the call, unless the op allows exactly the
 * same view of an input. */
static atto_status check_aliases(const call *c)
{
    for (int32_t i = 0; i < c->count; i++) {
        const operand *out = &c->operands[i];
        for (int32_t j = 0; out->writes && j < c->count; j++) {
            const operand *other = &c->operands[j];
            if (i == j || !atto__view_overlap(out->given, other->given)) continue;
            const bool exact =
                c->op->in_place && !other->writes && atto__view_same(out->given, other->given);
            ATTO_REQUIRE(exact, ATTO_E_ALIAS, "%s_%s: %s overlaps %s", c->op->name,
                         direction_name(c->direction), out->field->name, other->field->name);
        }
    }
    return ATTO_OK;
}

static atto_status check_reserved(const call *c)
{
    const uint64_t *reserved =
        (const uint64_t *)(const void *)((const char *)c->args + c->op->reserved_offset);
    for (int32_t i = 0; i < 4; i++)
        ATTO_REQUIRE(reserved[i] == 0, ATTO_E_ARGUMENT,
                     "%s_%s: reserved[%d] is not 0; zero the struct before filling it", c->op->name,
                     direction_name(c->direction), (int)i);
    return ATTO_OK;
}

static atto_status check_call(call *c)
{
    ATTO_TRY(check_reserved(c));
    ATTO_TRY(collect(c));
    for (int32_t i = 0; i < c->count; i++) ATTO_TRY(check_operand(c, &c->operands[i]));
    ATTO_TRY(c->op->check(c->args, c->direction));
    return check_aliases(c);
}

static bool has_work(const call *c)
{
    for (int32_t i = 0; i < c->count; i++)
        if (c->operands[i].writes && atto_tensor_numel(c->operands[i].given) > 0) return true;
    return false;
}

/* ---- strides ---- */

/* Replaces an operand by a dense copy in scratch; one that is read gets its contents. */
static atto_status pack(call *c, operand *o)
{
    ATTO_REQUIRE(!c->dev->options.set.no_hidden_copies, ATTO_E_STRIDE,
                 "%s_%s: %s has strides that need a packed copy, which the device's options forbid",
                 c->op->name, direction_name(c->direction), o->field->name);
    ATTO_TRY(atto__scratch_tensor(c->dev, o->given->dtype, o->given->rank, o->given->shape,
                                  &o->buffer, &o->packed));
    o->view = o->packed;
    o->is_packed = true;
    c->dev->stats.hidden_copies++;
    return o->reads ? atto__copy(c->dev, &o->packed, o->given) : ATTO_OK;
}

/* Packed outputs go back where they belong. */
static atto_status unpack(call *c)
{
    for (int32_t i = 0; i < c->count; i++) {
        const operand *o = &c->operands[i];
        if (o->is_packed && o->writes) ATTO_TRY(atto__copy(c->dev, o->given, &o->packed));
    }
    return ATTO_OK;
}

static bool try_merge(call *c, atto__layout *layout)
{
    atto_tensor *walk[ATTO_MAX_TENSORS];
    for (int32_t i = 0; i < c->count; i++) walk[i] = &c->operands[i].view;
    return atto__layout_merge(walk, c->count, c->op->draws(c->args),
                              c->dev->options.set.index_bits == 64, layout);
}

/* Merges the tensors of an elementwise call; when they need too many dimensions together, packs all
 * of them, which makes them dense. */
static atto_status canonicalise(call *c, atto__layout *layout)
{
    if (try_merge(c, layout)) return ATTO_OK;
    for (int32_t i = 0; i < c->count; i++) ATTO_TRY(pack(c, &c->operands[i]));
    ATTO_REQUIRE(try_merge(c, layout), ATTO_E_STRIDE, "%s_%s: strides cannot be walked",
                 c->op->name, direction_name(c->direction));
    return ATTO_OK;
}

/* ---- run ---- */

/* Once per op and direction: what runs elsewhere, and why. */
static void warn_fallback(call *c, atto_op op)
{
    bool *warned = &c->dev->warned[op][c->direction];
    if (!*warned)
        atto__log(c->dev, ATTO_LOG_WARNING, "%s_%s runs on the CPU instead of %s: %s", c->op->name,
                  direction_name(c->direction), c->dev->info.name, atto_last_error());
    *warned = true;
}

/* args: a copy of the caller's struct whose tensors are the canonical views. */
static atto_status dispatch(call *c, atto_op op, const void *args, const atto__layout *layout)
{
    const atto_status status = c->op->call(c->dev->vt, c->direction, c->dev, args, layout);
    if (status != ATTO_E_BUILD || c->dev->options.set.no_fallback) return status;
    warn_fallback(c, op);
    c->dev->stats.fallbacks++;
    return atto__fallback(c->dev, op, c->direction, args, layout);
}

static atto_status execute(call *c, atto_op op)
{
    atto__any_args args;
    memcpy(&args, c->args, c->op->args_bytes);
    atto__layout merged;
    const atto__layout *layout = c->op->elementwise ? &merged : NULL;
    for (int32_t i = 0; i < c->count; i++) c->operands[i].view = *c->operands[i].given;
    if (layout) ATTO_TRY(canonicalise(c, &merged));
    for (int32_t i = 0; i < c->count; i++)
        *atto__field_of(&args, c->operands[i].field) = &c->operands[i].view;
    ATTO_TRY(dispatch(c, op, &args, layout));
    c->dev->error_armed = c->dev->error_armed || c->op->data_errors;
    return unpack(c);
}

atto_status atto__run(atto_device *dev, atto_op op, atto__direction direction, const void *args)
{
    call c = { .dev = dev, .op = &ops[op], .direction = direction, .args = args };
    ATTO_REQUIRE(dev && args, ATTO_E_NULL, "%s_%s: %s is NULL", c.op->name,
                 direction_name(direction), dev ? "the args struct" : "dev");
    ATTO_TRY(atto__device_check(dev));
    ATTO_TRY(check_call(&c));
    if (!has_work(&c)) return ATTO_OK;
    atto__scratch_reset(dev);
    ATTO_TRY(execute(&c, op));
    return atto__device_finish_call(dev);
}
