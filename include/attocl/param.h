/* SPDX-License-Identifier: MIT */
/* Parameters: stable handles on tensors that are trained. */
#ifndef ATTOCL_PARAM_H
#define ATTOCL_PARAM_H

#include <attocl/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * A parameter: a value and, once it has been trained, a gradient. The handle stays; the storage
 * moves when an optimiser packs its parameters into large blocks, so views are asked for when they
 * are used, and not kept over the making of an optimiser.
 */
typedef struct atto_param atto_param;

/**
 * A new parameter, dense, contents undefined. Modules make theirs with atto_module_param.
 *
 * @param dtype  f32, f16 or bf16
 * @param out    NULL on failure; give it back with atto_param_free
 * Returns       ATTO_E_NULL, ATTO_E_DTYPE, ATTO_E_SHAPE, ATTO_E_MEMORY
 */
ATTO_API atto_status atto_param_create(atto_device *dev, atto_dtype dtype, atto_shape shape,
                                       atto_param **out);

/** One more owner, and one less. NULL is fine. */
ATTO_API void atto_param_retain(atto_param *p);
ATTO_API void atto_param_free(atto_param *p);

/** The value; zeroed for NULL. To change it use atto_param_write, or tell with
 * atto_param_changed. */
ATTO_API atto_tensor atto_param_value(const atto_param *p);

/** The gradient of this step. ATTO_E_STATE if there is none: no backward since the last optimiser
 * step or atto_param_zero_grad, or frozen. */
ATTO_API atto_status atto_param_grad(const atto_param *p, atto_tensor *out);

/** For backward passes of your own, the op tier's say: where a gradient goes, and whether it is to be
 * added to one of this step. The next atto_optimizer_step takes what is there. Borrowed.
 * ATTO_E_NULL; ATTO_E_STATE (frozen); ATTO_E_MEMORY. */
ATTO_API atto_status atto_param_grad_target(atto_param *p, atto_tensor *out, bool *add);

/** Host data, dense, of the parameter's dtype, in or out. Returns as atto_tensor_write and _read. */
ATTO_API atto_status atto_param_write(atto_param *p, const void *data);
ATTO_API atto_status atto_param_read(const atto_param *p, void *data);

/** The value was changed otherwise: a backward whose forward used the old one is ATTO_E_STATE. */
ATTO_API void atto_param_changed(atto_param *p);

/** The next gradient overwrites instead of adding. */
ATTO_API void atto_param_zero_grad(atto_param *p);

/** A frozen parameter gets no gradient, and no memory for one. */
ATTO_API void atto_param_freeze(atto_param *p, bool frozen);
ATTO_API bool atto_param_is_frozen(const atto_param *p);

#ifdef __cplusplus
}
#endif

#endif
