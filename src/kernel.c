/* SPDX-License-Identifier: MIT */
/* Kernels of the user's: checks, and the way to the backend. */
#include <attocl/kernel.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "operand.h"

#define LONGEST_NAME  63
#define DEFAULT_GRAIN 1024

_Static_assert(ATTO_KERNEL_MAX_ARGS <= ATTO_MAX_TENSORS &&
                   ATTO_KERNEL_MAX_ARGS <= ATTO_SCRATCH_PIECES,
               "all arguments may be tensors, and all packed");

struct atto_kernel {
    atto_device *dev; /* holds a reference */
    void *handle;     /* the backend's own */
    bool strided, in_place;
    atto__signature signature;
    char call[sizeof "kernel " + LONGEST_NAME]; /* "kernel scale", in messages */
};

/* ---- create ---- */

static bool is_identifier(const char *name)
{
    const size_t length = strspn(name, "0123456789_"
                                       "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
    return length > 0 && length <= LONGEST_NAME && name[length] == '\0' &&
           !(name[0] >= '0' && name[0] <= '9');
}

static atto_status check_source(const atto_kernel_source *source)
{
    ATTO_REQUIRE(source->name, ATTO_E_NULL, "kernel_create: the source's name is NULL");
    ATTO_REQUIRE(is_identifier(source->name), ATTO_E_ARGUMENT,
                 "kernel_create: the name \"%.80s\" is no identifier of at most %d characters",
                 source->name, LONGEST_NAME);
    ATTO_REQUIRE(source->grain >= 0, ATTO_E_ARGUMENT,
                 "kernel_create: %s: grain is %" PRId64 ", expected 0 or more", source->name,
                 source->grain);
    return atto__reserved_check("kernel_create: the source", source->reserved);
}

static atto_status create(atto_device *dev, const atto_kernel_source *source, atto_kernel *kernel)
{
    atto_kernel_source filled = *source;
    if (filled.grain == 0) filled.grain = DEFAULT_GRAIN;
    if (!filled.options) filled.options = "";
    const atto_status status =
        dev->vt->kernel_create(dev, &filled, &kernel->handle, &kernel->signature);
    if (status != ATTO_OK) return atto__fail_in(status, "kernel_create: ");
    kernel->strided = source->strided;
    kernel->in_place = source->in_place;
    snprintf(kernel->call, sizeof kernel->call, "kernel %s", source->name);
    kernel->dev = dev;
    atto__device_retain(dev);
    return ATTO_OK;
}

atto_status atto_kernel_create(atto_device *dev, const atto_kernel_source *source,
                               atto_kernel **out)
{
    ATTO_REQUIRE(out, ATTO_E_NULL, "kernel_create: out is NULL");
    *out = NULL;
    ATTO_REQUIRE(dev && source, ATTO_E_NULL, "kernel_create: %s is NULL", dev ? "source" : "dev");
    ATTO_TRY(atto__device_check(dev));
    ATTO_TRY(check_source(source));
    atto_kernel *kernel = atto__alloc(sizeof *kernel);
    ATTO_REQUIRE(kernel, ATTO_E_MEMORY, "kernel_create: out of host memory");
    const atto_status status = create(dev, source, kernel);
    if (status != ATTO_OK) {
        atto__free(kernel);
        return status;
    }
    *out = kernel;
    return ATTO_OK;
}

void atto_kernel_destroy(atto_kernel *kernel)
{
    if (!kernel) return;
    kernel->dev->vt->kernel_destroy(kernel->dev, kernel->handle);
    atto__device_release(kernel->dev);
    atto__free(kernel);
}

/* ---- launch ---- */

typedef struct call {
    atto__operands operands;
    char names[ATTO_KERNEL_MAX_ARGS][24];       /* "argument 3" */
    atto_kernel_arg args[ATTO_KERNEL_MAX_ARGS]; /* what the backend gets */
} call;

static bool is_tensor(const atto_kernel_arg *arg)
{
    return arg->kind == ATTO_KERNEL_IN || arg->kind == ATTO_KERNEL_OUT ||
           arg->kind == ATTO_KERNEL_IN_OUT;
}

static bool is_number(const atto_kernel_arg *arg)
{
    switch (arg->kind) {
#define X(NAME, name, type) case ATTO_KERNEL_##NAME:
        ATTO_KERNEL_NUMBER_TABLE(X)
#undef X
        return true;
    default:
        return false;
    }
}

static atto_status collect(call *c, const atto_kernel_arg *args, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        const atto_kernel_arg *arg = &args[i];
        ATTO_REQUIRE(is_tensor(arg) || is_number(arg), ATTO_E_ARGUMENT,
                     "%s: argument %d: %d is no kind of argument", c->operands.call, (int)i,
                     (int)arg->kind);
        c->args[i] = *arg;
        if (is_number(arg)) {
            c->args[i].tensor = NULL;
            continue;
        }
        ATTO_REQUIRE(arg->tensor, ATTO_E_NULL, "%s: argument %d is NULL", c->operands.call, (int)i);
        snprintf(c->names[i], sizeof c->names[i], "argument %d", (int)i);
        atto__operand_add(&c->operands, c->names[i], arg->tensor, arg->kind != ATTO_KERNEL_OUT,
                          arg->kind != ATTO_KERNEL_IN);
    }
    return ATTO_OK;
}

#define FITTING "(a tensor is two, pointer and u64; n, a u64, comes last)"

/* The next parameter is what the argument wants it to be. */
static atto_status check_parameter(const call *c, const atto__signature *s, int32_t at,
                                   atto_kernel_arg_kind type)
{
    static const char *const names[] = { [ATTO_KERNEL_IN_OUT] = "a pointer",
#define X(NAME, name, type) [ATTO_KERNEL_##NAME] = "a number of type " #name,
                                         ATTO_KERNEL_NUMBER_TABLE(X)
#undef X
    };
    ATTO_REQUIRE(s->types[at] == type, ATTO_E_ARGUMENT,
                 "%s: parameter %d is %s, the arguments want %s there " FITTING, c->operands.call,
                 (int)at, names[s->types[at]], names[type]);
    return ATTO_OK;
}

/* Drivers do not notice, and read through a number as if it were a buffer. */
static atto_status check_signature(const call *c, const atto__signature *s, int32_t count)
{
    if (s->count < 0) return ATTO_OK;
    const int32_t wanted = count + c->operands.count + 1; /* a tensor is two parameters */
    ATTO_REQUIRE(wanted == s->count, ATTO_E_ARGUMENT,
                 "%s: the kernel has %d parameters, the arguments make %d " FITTING,
                 c->operands.call, (int)s->count, (int)wanted);
    if (!s->knows_types) return ATTO_OK;
    int32_t at = 0;
    for (int32_t i = 0; i < count; i++) {
        const bool tensor = is_tensor(&c->args[i]);
        ATTO_TRY(check_parameter(c, s, at++, tensor ? ATTO_KERNEL_IN_OUT : c->args[i].kind));
        if (tensor) ATTO_TRY(check_parameter(c, s, at++, ATTO_KERNEL_U64));
    }
    return check_parameter(c, s, at, ATTO_KERNEL_U64);
}

/* Packs what the kernel cannot walk, and puts the final views into the arguments. */
static atto_status place(call *c, bool strided, int32_t count)
{
    int32_t at = 0;
    for (int32_t i = 0; i < count; i++) {
        if (!c->args[i].tensor) continue;
        atto__operand *o = &c->operands.list[at++];
        if (!strided && !atto__view_dense(o->given)) ATTO_TRY(atto__operand_pack(&c->operands, o));
        c->args[i].tensor = &o->view;
    }
    return ATTO_OK;
}

atto_status atto_kernel_launch(atto_kernel *kernel, int64_t n, const atto_kernel_arg *args,
                               int32_t count)
{
    ATTO_REQUIRE(kernel, ATTO_E_NULL, "kernel_launch: kernel is NULL");
    atto_device *dev = kernel->dev;
    call c;
    c.operands.dev = dev;
    c.operands.call = kernel->call;
    c.operands.count = 0;
    ATTO_REQUIRE(count >= 0 && count <= ATTO_KERNEL_MAX_ARGS, ATTO_E_ARGUMENT,
                 "%s: %d arguments, expected 0 to %d", kernel->call, (int)count,
                 ATTO_KERNEL_MAX_ARGS);
    ATTO_REQUIRE(args || count == 0, ATTO_E_NULL, "%s: args is NULL", kernel->call);
    ATTO_REQUIRE(n >= 0, ATTO_E_ARGUMENT, "%s: n is %" PRId64 ", expected 0 or more", kernel->call,
                 n);
    ATTO_TRY(atto__device_check(dev));
    ATTO_TRY(collect(&c, args, count));
    ATTO_TRY(atto__operands_check(&c.operands));
    ATTO_TRY(atto__operands_check_aliases(&c.operands, kernel->in_place));
    ATTO_TRY(check_signature(&c, &kernel->signature, count));
    if (n == 0) return ATTO_OK;
    atto__scratch_reset(dev);
    atto__operands_count_writes(&c.operands);
    ATTO_TRY(place(&c, kernel->strided, count));
    dev->in_kernel = true;
    const atto_status status = dev->vt->launch(dev, kernel->handle, n, c.args, count);
    dev->in_kernel = false;
    if (status != ATTO_OK) return atto__fail_in(status, "%s: ", kernel->call);
    ATTO_TRY(atto__operands_unpack(&c.operands));
    return atto__device_finish_call(dev);
}
