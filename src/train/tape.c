/* SPDX-License-Identifier: MIT */
/* The tape as a store: values, scopes, steps, and the error that sticks. */
#include "train/tape.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "layers/checks.h"

/* Values of the last step of any tape are told from this one's. 0 is none. */
static atomic_uint last_generation;

static uint32_t next_generation(void)
{
    uint32_t generation;
    do generation = atomic_fetch_add(&last_generation, 1) + 1;
    while (generation == 0);
    return generation;
}

atto_status atto__list_room(atto__list *list, size_t count, size_t item_bytes)
{
    if (list->count + count <= list->capacity) return ATTO_OK;
    const size_t capacity = 2 * (list->count + count) + 16;
    void *larger = atto__alloc(capacity * item_bytes);
    ATTO_REQUIRE(larger, ATTO_E_MEMORY, "tape: out of host memory");
    if (list->count > 0) memcpy(larger, list->items, list->count * item_bytes);
    atto__free(list->items);
    list->items = larger;
    list->capacity = capacity;
    return ATTO_OK;
}

/* ---- create, free ---- */

atto_status atto_tape_create(atto_device *dev, atto_tape **out)
{
    ATTO_REQUIRE(out, ATTO_E_NULL, "tape_create: out is NULL");
    *out = NULL;
    ATTO_REQUIRE(dev, ATTO_E_NULL, "tape_create: dev is NULL");
    atto_tape *tape = atto__alloc(sizeof *tape);
    ATTO_REQUIRE(tape, ATTO_E_MEMORY, "tape_create: out of host memory");
    memset(tape, 0, sizeof *tape);
    tape->dev = dev;
    tape->generation = next_generation();
    tape->records = true;
    tape->autocast = ATTO_F32;
    atto__device_retain(dev);
    *out = tape;
    return ATTO_OK;
}

static void forget_values(atto_tape *tape)
{
    for (size_t i = 0; i < tape->values.count; i++) {
        atto__value *value = &atto__values(tape)[i];
        atto_tensor_free(&value->tensor);
        atto_tensor_free(&value->grad);
        atto_tensor_free(&value->cast);
        atto_param_free(value->param);
    }
    tape->values.count = tape->nodes.count = tape->args.count = tape->scopes.count = 0;
}

void atto_tape_free(atto_tape *tape)
{
    if (!tape) return;
    forget_values(tape);
    atto__free(tape->values.items);
    atto__free(tape->nodes.items);
    atto__free(tape->args.items);
    atto__free(tape->scopes.items);
    atto__device_release(tape->dev);
    atto__free(tape);
}

atto_device *atto_tape_device(const atto_tape *tape)
{
    return tape ? tape->dev : NULL;
}

/* ---- the error that sticks ---- */

atto_status atto__tape_fail(atto_tape *tape, atto_status status)
{
    if (status == ATTO_OK || tape->status != ATTO_OK) return status;
    tape->status = status;
    snprintf(tape->message, sizeof tape->message, "%s", atto_last_error());
    return status;
}

atto_status atto_tape_fail(atto_tape *tape, atto_status status, const char *message)
{
    ATTO_REQUIRE(tape, ATTO_E_NULL, "tape_fail: tape is NULL");
    if (message && status != ATTO_OK && tape->status == ATTO_OK) {
        char copy[sizeof tape->message]; /* it may be that of atto_last_error */
        snprintf(copy, sizeof copy, "%s", message);
        atto__fail(status, "%s", copy);
    }
    return atto__tape_fail(tape, status);
}

void atto__tape_blame(atto_tape *tape, int32_t index, const char *class_name)
{
    if (tape->status == ATTO_OK) return;
    char message[sizeof tape->message];
    memcpy(message, tape->message, sizeof message);
    const int begun =
        snprintf(tape->message, sizeof tape->message, "%d (%s): ", (int)index, class_name);
    if (begun < 0 || (size_t)begun >= sizeof message) return;
    const size_t room = sizeof message - (size_t)begun, length = strlen(message) + 1;
    memcpy(tape->message + begun, message, length < room ? length : room);
    tape->message[sizeof tape->message - 1] = 0;
}

atto_status atto_tape_status(const atto_tape *tape)
{
    ATTO_REQUIRE(tape, ATTO_E_NULL, "tape_status: tape is NULL");
    if (tape->status == ATTO_OK) return ATTO_OK;
    return atto__fail(tape->status, "%s", tape->message);
}

atto_status atto_tape_end(atto_tape *tape)
{
    ATTO_REQUIRE(tape, ATTO_E_NULL, "tape_end: tape is NULL");
    ATTO_REQUIRE(!tape->runs_back, ATTO_E_STATE, "tape_end: called by a backward function");
    const atto_status status = atto_tape_status(tape);
    forget_values(tape);
    tape->generation = next_generation();
    tape->status = ATTO_OK;
    return status == ATTO_OK ? atto__device_poll_errors(tape->dev) : status;
}

bool atto_tape_record(atto_tape *tape, bool on)
{
    if (!tape) return false;
    const bool before = tape->records;
    tape->records = on;
    return before;
}

/* ---- random numbers ---- */

void atto_tape_seed(atto_tape *tape, uint64_t seed, uint64_t offset)
{
    if (!tape) return;
    tape->rng.seed = seed;
    tape->rng.offset = offset;
}

bool atto__tape_wants_grad(const atto_tape *tape, const atto__value *value)
{
    return tape->records && value->needs_grad &&
           !(value->param && atto_param_is_frozen(value->param));
}

atto_rng atto__tape_draw(atto_tape *tape, int64_t n)
{
    return atto_rng_reserve(&tape->rng, n);
}

/* ---- values ---- */

atto__value *atto__tape_value(atto_tape *tape, const char *call, atto_var v)
{
    if (tape->status != ATTO_OK) return NULL;
    const bool is_ours =
        v.generation == tape->generation && v.slot >= 0 && (size_t)v.slot < tape->values.count;
    atto__value *value = is_ours ? &atto__values(tape)[v.slot] : NULL;
    if (value && value->is_named) return value;
    atto__tape_fail(tape, atto__fail(ATTO_E_STATE, "%s: the value is %s", call,
                                     value ? "dead: its scope has ended"
                                           : "of another step or another tape, or was never set"));
    return NULL;
}

const atto_tensor *atto__tape_tensor(atto_tape *tape, const char *call, atto_var v)
{
    if (!tape) return NULL;
    const atto__value *value = atto__tape_value(tape, call, v);
    return value ? &value->tensor : NULL;
}

atto_status atto__tape_may_record(const atto_tape *tape)
{
    ATTO_REQUIRE(!tape->runs_back, ATTO_E_STATE,
                 "tape: a backward function records; it may run ops only");
    return ATTO_OK;
}

atto_status atto__tape_push(atto_tape *tape, atto_tensor *t, atto_var *out)
{
    ATTO_TRY(atto__tape_may_record(tape));
    ATTO_TRY(atto__list_room(&tape->values, 1, sizeof(atto__value)));
    *out = (atto_var){ (int32_t)tape->values.count++, tape->generation };
    atto__value *value = &atto__values(tape)[out->slot];
    memset(value, 0, sizeof *value);
    value->tensor = *t;
    value->node = -1;
    value->source = out->slot;
    value->holds = 1;
    value->is_named = true;
    memset(t, 0, sizeof *t);
    return ATTO_OK;
}

void atto__value_drop(atto__value *value)
{
    if (--value->holds > 0) return;
    atto_tensor left = value->tensor;
    left.buffer = NULL;
    atto_tensor_free(&value->tensor);
    value->tensor = left;
}

atto_status atto__tape_takes(const atto_tape *tape, const char *what, const atto_tensor *t)
{
    ATTO_TRY(atto__view_check(t, what));
    const atto_device *owner = atto_tensor_device(t);
    ATTO_REQUIRE(!owner || owner == tape->dev, ATTO_E_DEVICE,
                 "%s belongs to another device than the tape", what);
    return ATTO_OK;
}

/* A value of a new tensor; what failed on the way is the tape's error. */
static atto_var push_or_fail(atto_tape *tape, atto_status status, atto_tensor *t)
{
    atto_var v = atto__no_var();
    if (status == ATTO_OK) status = atto__tape_push(tape, t, &v);
    if (status == ATTO_OK) return v;
    atto_tensor_free(t);
    atto__tape_fail(tape, status);
    return atto__no_var();
}

atto_var atto_input(atto_tape *tape, atto_dtype dtype, atto_shape shape, const void *data)
{
    if (!tape || tape->status != ATTO_OK) return atto__no_var();
    atto_tensor t = { 0 };
    atto_status status = atto_tensor_alloc(tape->dev, dtype, shape, &t);
    if (status == ATTO_OK) status = atto_tensor_write(&t, data);
    if (status != ATTO_OK) atto__fail_in(status, "input: ");
    return push_or_fail(tape, status, &t);
}

static atto_status borrow(atto_tape *tape, const atto_tensor *t, bool watch, atto_var *out)
{
    ATTO_REQUIRE(t, ATTO_E_NULL, "borrow: t is NULL");
    ATTO_TRY(atto__tape_takes(tape, "borrow: t", t));
    ATTO_REQUIRE(!watch || atto__is_float(t->dtype), ATTO_E_DTYPE,
                 "borrow: t is %s; only floats have a gradient to watch",
                 atto_dtype_name(t->dtype));
    atto_tensor copy = *t;
    ATTO_TRY(atto__tape_push(tape, &copy, out));
    atto_tensor_retain(t); /* its owner may be gone before backward: a loss with its weights */
    return ATTO_OK;
}

atto_var atto_borrow(atto_tape *tape, const atto_tensor *t, bool watch)
{
    if (!tape || tape->status != ATTO_OK) return atto__no_var();
    atto_var v = atto__no_var();
    if (atto__tape_fail(tape, borrow(tape, t, watch, &v)) != ATTO_OK) return atto__no_var();
    atto__value *value = &atto__values(tape)[v.slot];
    value->is_borrowed = true;
    value->needs_grad = watch && tape->records;
    return v;
}

atto_var atto_use(atto_tape *tape, atto_param *p)
{
    if (!tape || tape->status != ATTO_OK) return atto__no_var();
    atto_status status = p ? ATTO_OK : atto__fail(ATTO_E_NULL, "use: the parameter is NULL");
    atto_tensor view = atto_param_value(p);
    atto_var v = atto__no_var();
    if (status == ATTO_OK) status = atto__tape_push(tape, &view, &v);
    if (atto__tape_fail(tape, status) != ATTO_OK) return atto__no_var();
    atto__value *value = &atto__values(tape)[v.slot];
    atto_tensor_retain(&value->tensor); /* an optimiser may move the parameter meanwhile */
    atto_param_retain(p);
    value->param = p;
    value->version = p->version;
    value->needs_grad = !p->frozen && tape->records;
    return v;
}

atto_status atto_var_tensor(atto_tape *tape, atto_var v, atto_tensor *out)
{
    ATTO_REQUIRE(tape && out, ATTO_E_NULL, "var_tensor: %s is NULL", tape ? "out" : "tape");
    memset(out, 0, sizeof *out);
    const atto_tensor *t = atto__tape_tensor(tape, "var_tensor", v);
    if (!t) return atto_tape_status(tape);
    *out = *t;
    return ATTO_OK;
}

atto_status atto_var_grad(atto_tape *tape, atto_var v, atto_tensor *out)
{
    ATTO_REQUIRE(tape && out, ATTO_E_NULL, "var_grad: %s is NULL", tape ? "out" : "tape");
    memset(out, 0, sizeof *out);
    const atto__value *value = atto__tape_value(tape, "var_grad", v);
    if (!value) return atto_tape_status(tape);
    if (value->param) return atto_param_grad(value->param, out);
    ATTO_REQUIRE(value->grad.dtype != 0, ATTO_E_STATE,
                 "var_grad: there is none: the value is not watched, or no backward reached it");
    *out = value->grad;
    return ATTO_OK;
}

atto_status atto_var_read(atto_tape *tape, atto_var v, void *data)
{
    atto_tensor t;
    ATTO_TRY(atto_var_tensor(tape, v, &t));
    return atto_tensor_read(&t, data);
}

atto_status atto_keep(atto_tape *tape, atto_var v, atto_tensor *out)
{
    ATTO_REQUIRE(tape && out, ATTO_E_NULL, "keep: %s is NULL", tape ? "out" : "tape");
    memset(out, 0, sizeof *out);
    const atto__value *value = atto__tape_value(tape, "keep", v);
    if (!value) return atto_tape_status(tape);
    ATTO_REQUIRE(!value->is_borrowed && !value->param, ATTO_E_ARGUMENT, "keep: the value is a %s",
                 value->param ? "parameter" : "borrowed tensor");
    *out = value->tensor;
    atto_tensor_retain(out);
    return ATTO_OK;
}

/* ---- scopes ---- */

void atto_scope_begin(atto_tape *tape)
{
    if (!tape || tape->status != ATTO_OK) return;
    if (atto__tape_fail(tape, atto__list_room(&tape->scopes, 1, sizeof(int32_t))) != ATTO_OK)
        return;
    ((int32_t *)tape->scopes.items)[tape->scopes.count++] = (int32_t)tape->values.count;
}

static bool is_kept(const atto_tape *tape, const atto_var *keep, int32_t count, int32_t slot)
{
    for (int32_t i = 0; i < count; i++)
        if (keep[i].slot == slot && keep[i].generation == tape->generation) return true;
    return false;
}

static atto_status check_scope_end(const atto_tape *tape, const atto_var *keep, int32_t count)
{
    ATTO_REQUIRE(tape->scopes.count > 0, ATTO_E_STATE, "scope_end: no scope is open");
    ATTO_REQUIRE(count >= 0, ATTO_E_ARGUMENT, "scope_end: %d values to keep", (int)count);
    ATTO_REQUIRE(keep || count == 0, ATTO_E_NULL, "scope_end: keep is NULL");
    return ATTO_OK;
}

void atto_scope_end(atto_tape *tape, const atto_var *keep, int32_t count)
{
    if (!tape || tape->status != ATTO_OK) return;
    if (atto__tape_fail(tape, check_scope_end(tape, keep, count)) != ATTO_OK) return;
    const int32_t first = ((const int32_t *)tape->scopes.items)[--tape->scopes.count];
    for (int32_t slot = first; slot < (int32_t)tape->values.count; slot++) {
        atto__value *value = &atto__values(tape)[slot];
        if (!value->is_named || is_kept(tape, keep, count, slot)) continue;
        value->is_named = false;
        atto_tensor_free(&value->cast); /* nobody can ask for it any more */
        atto__value_drop(value);
    }
}
