/* SPDX-License-Identifier: MIT */
/* What the normalising families share. */
#include "layers/norm.h"

#include <math.h>

float atto__or_default(float given, float standard)
{
    if (given == 0.0f) return standard;
    return given == (float)ATTO_ZERO ? 0.0f : given;
}

atto_status atto__eps_check(const char *what, float eps)
{
    ATTO_REQUIRE(eps >= 0.0f && eps < INFINITY, ATTO_E_ARGUMENT,
                 "%s: eps is %g, expected a number of 0 or more", what, (double)eps);
    return ATTO_OK;
}

atto_status atto__momentum_check(const char *what, float momentum)
{
    ATTO_REQUIRE(isfinite(momentum), ATTO_E_ARGUMENT, "%s: momentum is %g, expected a number", what,
                 (double)momentum);
    return ATTO_OK;
}

int32_t atto__norm_innermost(const atto_tensor *x)
{
    return atto__view_innermost(x) == 1 ? 1 : x->rank - 1;
}

/* ---- weight and bias ---- */

static atto_status add_constant(atto_module *m, const char *name, atto_dtype dtype,
                                atto_shape shape, double value, atto_param **out)
{
    ATTO_TRY(atto_module_param(m, name, dtype ? dtype : ATTO_F32, shape, out));
    return atto_param_init_constant(*out, value);
}

atto_status atto__affine_add(atto_module *m, atto_dtype dtype, atto_shape shape, bool has_bias,
                             atto__affine *out)
{
    ATTO_TRY(add_constant(m, "weight", dtype, shape, 1.0, &out->weight));
    return has_bias ? add_constant(m, "bias", dtype, shape, 0.0, &out->bias) : ATTO_OK;
}

void atto__affine_use(atto_tape *tape, const atto__affine *a, atto__affine_vars *out)
{
    out->weight = a->weight ? atto_use(tape, a->weight) : atto__no_var();
    out->bias = a->bias ? atto_use(tape, a->bias) : atto__no_var();
    out->weight_or_null = a->weight ? &out->weight : NULL;
    out->bias_or_null = a->bias ? &out->bias : NULL;
}

/* ---- running statistics ---- */

/* A tensor of the module's own, registered under its name. */
static atto_status add_buffer(atto_module *m, const char *name, atto_dtype dtype, atto_shape shape,
                              double value, atto_tensor *out)
{
    ATTO_TRY(atto_tensor_alloc(atto_module_device(m), dtype, shape, out));
    ATTO_TRY(atto_tensor_fill(out, value));
    return atto_module_buffer(m, name, out);
}

atto_status atto__running_add(atto_module *m, int64_t channels, atto__running *out)
{
    const atto_shape shape = atto_shape1(channels);
    ATTO_TRY(add_buffer(m, "running_mean", ATTO_F32, shape, 0.0, &out->mean));
    ATTO_TRY(add_buffer(m, "running_var", ATTO_F32, shape, 1.0, &out->var));
    return add_buffer(m, "num_batches_tracked", ATTO_I64, atto_shape0(), 0.0, &out->batches);
}

void atto__running_free(atto__running *r)
{
    atto_tensor_free(&r->mean);
    atto_tensor_free(&r->var);
    atto_tensor_free(&r->batches);
}

/* ---- on the host ---- */

atto_status atto__param_floats(const atto_param *p, float *out)
{
    atto_tensor wide;
    ATTO_TRY(
        atto_tensor_alloc(p->dev, ATTO_F32, atto_shape_of(p->value.rank, p->value.shape), &wide));
    atto_status status = atto_tensor_copy(&wide, &p->value);
    if (status == ATTO_OK) status = atto_tensor_read(&wide, out);
    atto_tensor_free(&wide);
    return status;
}
