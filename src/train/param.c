/* SPDX-License-Identifier: MIT */
/* Parameters: their storage, and where it moves. */
#include "train/param.h"

#include <string.h>

#include "alloc.h"
#include "layers/checks.h"

atto_status atto_param_create(atto_device *dev, atto_dtype dtype, atto_shape shape,
                              atto_param **out)
{
    ATTO_REQUIRE(out, ATTO_E_NULL, "param_create: out is NULL");
    *out = NULL;
    ATTO_REQUIRE(dev, ATTO_E_NULL, "param_create: dev is NULL");
    ATTO_REQUIRE(atto__is_float(dtype), ATTO_E_DTYPE,
                 "param_create: dtype is %s, expected f32, f16 or bf16", atto_dtype_name(dtype));
    atto_param *p = atto__alloc(sizeof *p);
    ATTO_REQUIRE(p, ATTO_E_MEMORY, "param_create: out of host memory");
    memset(p, 0, sizeof *p);
    const atto_status status = atto_tensor_alloc(dev, dtype, shape, &p->value);
    if (status != ATTO_OK) {
        atto__free(p);
        return atto__fail_in(status, "param_create: ");
    }
    atomic_init(&p->references, 1);
    p->dev = dev;
    atto__device_retain(dev);
    *out = p;
    return ATTO_OK;
}

void atto_param_retain(atto_param *p)
{
    if (p) atomic_fetch_add(&p->references, 1);
}

void atto_param_free(atto_param *p)
{
    if (!p || atomic_fetch_sub(&p->references, 1) > 1) return;
    atto_tensor_free(&p->value);
    atto_tensor_free(&p->grad);
    atto_tensor_free(&p->shadow);
    atto__device_release(p->dev);
    atto__free(p);
}

atto_tensor atto_param_value(const atto_param *p)
{
    return p ? p->value : (atto_tensor){ 0 };
}

atto_status atto_param_grad(const atto_param *p, atto_tensor *out)
{
    ATTO_REQUIRE(p && out, ATTO_E_NULL, "param_grad: %s is NULL", p ? "out" : "p");
    memset(out, 0, sizeof *out);
    ATTO_REQUIRE(p->has_grad, ATTO_E_STATE,
                 "param_grad: there is none: no backward in this step, or the parameter is frozen");
    *out = p->grad;
    return ATTO_OK;
}

atto_status atto_param_grad_target(atto_param *p, atto_tensor *out, bool *add)
{
    ATTO_REQUIRE(p && out && add, ATTO_E_NULL, "param_grad_target: %s is NULL",
                 !p     ? "p"
                 : !out ? "out"
                        : "add");
    memset(out, 0, sizeof *out);
    ATTO_REQUIRE(!p->frozen, ATTO_E_STATE, "param_grad_target: the parameter is frozen");
    const atto_tensor *grad;
    ATTO_TRY(atto__param_grad_slot(p, &grad, add));
    *out = *grad;
    return ATTO_OK;
}

atto_status atto_param_write(atto_param *p, const void *data)
{
    ATTO_REQUIRE(p, ATTO_E_NULL, "param_write: p is NULL");
    p->version++;
    return atto_tensor_write(&p->value, data);
}

atto_status atto_param_read(const atto_param *p, void *data)
{
    ATTO_REQUIRE(p, ATTO_E_NULL, "param_read: p is NULL");
    return atto_tensor_read(&p->value, data);
}

void atto_param_changed(atto_param *p)
{
    if (p) p->version++;
}

void atto_param_zero_grad(atto_param *p)
{
    if (p) p->has_grad = false;
}

/* Unless its memory is part of a chunk, a frozen parameter's gradient is given back. */
void atto_param_freeze(atto_param *p, bool frozen)
{
    if (!p) return;
    p->frozen = frozen;
    if (frozen) p->has_grad = false;
    if (frozen && !p->is_packed) atto_tensor_free(&p->grad);
}

bool atto_param_is_frozen(const atto_param *p)
{
    return p && p->frozen;
}

atto_status atto__param_grad_slot(atto_param *p, const atto_tensor **out, bool *add)
{
    if (p->grad.dtype == 0) {
        const atto_shape shape = atto_shape_of(p->value.rank, p->value.shape);
        ATTO_TRY(atto_tensor_alloc(p->dev, p->value.dtype, shape, &p->grad));
    }
    *out = &p->grad;
    *add = p->has_grad;
    p->has_grad = true;
    return ATTO_OK;
}

atto_status atto__param_as(atto_param *p, atto_dtype dtype, const atto_tensor **out)
{
    if (p->shadow.dtype != dtype) {
        atto_tensor_free(&p->shadow);
        p->shadow_stamp = 0;
        const atto_shape shape = atto_shape_of(p->value.rank, p->value.shape);
        ATTO_TRY(atto_tensor_alloc(p->dev, dtype, shape, &p->shadow));
    }
    if (!atto__param_has_shadow(p)) ATTO_TRY(atto_tensor_copy(&p->shadow, &p->value));
    p->shadow_stamp = atto__param_stamp(p);
    *out = &p->shadow;
    return ATTO_OK;
}

static atto_status move_tensor(atto_tensor *from, const atto_tensor *to, bool copy)
{
    if (copy) ATTO_TRY(atto_tensor_copy(to, from));
    atto_tensor_free(from);
    atto_tensor_retain(to);
    *from = *to;
    return ATTO_OK;
}

atto_status atto__param_move(atto_param *p, const atto_tensor *value, const atto_tensor *grad)
{
    ATTO_TRY(move_tensor(&p->value, value, true));
    p->is_packed = true;
    p->shadow_stamp = 0; /* the new buffer has counts of its own */
    return grad ? move_tensor(&p->grad, grad, p->has_grad) : ATTO_OK;
}
