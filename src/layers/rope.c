/* SPDX-License-Identifier: MIT */
/* Rotary position embedding: checks, the public calls, tables, recording. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "alloc.h"
#include "layers/checks.h"
#include "train/tape.h"

/* ---- checks ---- */

static atto_status check_numbers(const char *what, const struct atto_rope_args *a)
{
    ATTO_REQUIRE(a->pairing == ATTO_ROPE_HALVES || a->pairing == ATTO_ROPE_NEIGHBOURS,
                 ATTO_E_ARGUMENT, "%s: pairing is %d, expected 0 or 1", what, (int)a->pairing);
    ATTO_REQUIRE(a->offset >= 0, ATTO_E_ARGUMENT, "%s: offset is %" PRId64 ", expected 0 or more",
                 what, a->offset);
    ATTO_REQUIRE(!a->position || a->offset == 0, ATTO_E_ARGUMENT,
                 "%s: offset is %" PRId64 " beside position, expected 0", what, a->offset);
    return ATTO_OK;
}

/* x, or dy, which stands for it in backward. */
static atto_status check_x(const char *what, const char *name, const atto_tensor *x)
{
    char text[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(x->rank == 4, ATTO_E_SHAPE,
                 "%s: %s is %s, expected four dimensions: batch, heads, positions, head size", what,
                 name, atto__shape_text(x, text));
    ATTO_REQUIRE(atto__is_float(x->dtype), ATTO_E_DTYPE, "%s: %s is %s, expected f32, f16 or bf16",
                 what, name, atto_dtype_name(x->dtype));
    return ATTO_OK;
}

static atto_status check_tables(const char *what, const struct atto_rope_args *a, const char *name,
                                const atto_tensor *x)
{
    char text[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(a->cos->rank == 2, ATTO_E_SHAPE,
                 "%s: cos is %s, expected two dimensions: positions, half of what is turned", what,
                 atto__shape_text(a->cos, text));
    ATTO_REQUIRE(a->cos->shape[1] <= x->shape[3] / 2, ATTO_E_SHAPE,
                 "%s: cos is %s, expected at most %" PRId64 " columns, half of %s's last dimension",
                 what, atto__shape_text(a->cos, text), x->shape[3] / 2, name);
    const atto_shape shape = atto_shape_of(2, a->cos->shape);
    const atto__expected list[] = { { "cos", a->cos, shape, ATTO_F32, false },
                                    { "sin", a->sin, shape, ATTO_F32, false } };
    return atto__tensors_check(what, list, COUNT_OF(list));
}

static atto_status check_position(const char *what, const struct atto_rope_args *a,
                                  const char *name, const atto_tensor *x)
{
    const int64_t batches = x->shape[0], length = x->shape[2];
    char text[ATTO_SHAPE_TEXT];
    const atto_tensor *p = a->position;
    if (!p) {
        ATTO_REQUIRE(length <= a->cos->shape[0] && a->offset <= a->cos->shape[0] - length,
                     ATTO_E_SHAPE,
                     "%s: cos has %" PRId64 " rows, expected at least offset %" PRId64
                     " and %s's %" PRId64 " positions",
                     what, a->cos->shape[0], a->offset, name, length);
        return ATTO_OK;
    }
    ATTO_REQUIRE(p->dtype == ATTO_I32 || p->dtype == ATTO_I64, ATTO_E_DTYPE,
                 "%s: position is %s, expected i32 or i64", what, atto_dtype_name(p->dtype));
    const bool fits = (p->rank == 1 && p->shape[0] == length) ||
                      (p->rank == 2 && p->shape[0] == batches && p->shape[1] == length);
    ATTO_REQUIRE(fits, ATTO_E_SHAPE,
                 "%s: position is %s, expected [%" PRId64 "] or [%" PRId64 ",%" PRId64 "]", what,
                 atto__shape_text(p, text), length, batches, length);
    return ATTO_OK;
}

atto_status atto__rope_check(const struct atto_rope_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    const char *what = forward ? "rope_forward" : "rope_backward", *name = forward ? "x" : "dy";
    const atto_tensor *x = forward ? a->x : a->dy;
    ATTO_TRY(check_numbers(what, a));
    ATTO_TRY(check_x(what, name, x));
    ATTO_TRY(check_tables(what, a, name, x));
    ATTO_TRY(check_position(what, a, name, x));
    const atto_shape shape = atto_shape_of(4, x->shape);
    const atto__expected list[] = { { "y", forward ? a->y : NULL, shape, x->dtype, false },
                                    { "dx", forward ? NULL : a->dx, shape, x->dtype, false } };
    return atto__tensors_check(what, list, COUNT_OF(list));
}

atto_status atto_rope_forward(atto_device *dev, const struct atto_rope_args *a)
{
    return atto__run(dev, ATTO_OP_ROPE, ATTO_FORWARD, a);
}

atto_status atto_rope_backward(atto_device *dev, const struct atto_rope_args *a)
{
    return atto__run(dev, ATTO_OP_ROPE, ATTO_BACKWARD, a);
}

/* ---- tables ---- */

static atto_status check_table_options(const char *what, int64_t dims,
                                       const atto_rope_table_options *o)
{
    ATTO_TRY(atto__reserved_check("rope_tables: options", o->reserved));
    ATTO_REQUIRE(o->theta >= 0.0 && isfinite(o->theta), ATTO_E_ARGUMENT,
                 "%s: theta is %g, expected a positive number, or 0 for 10000", what, o->theta);
    ATTO_REQUIRE(o->factor >= 0.0 && isfinite(o->factor), ATTO_E_ARGUMENT,
                 "%s: factor is %g, expected a positive number, or 0 for 1", what, o->factor);
    ATTO_REQUIRE(o->scaling >= ATTO_ROPE_SCALING_NONE && o->scaling <= ATTO_ROPE_SCALING_NTK,
                 ATTO_E_ARGUMENT, "%s: scaling is %d, expected 0 to 2", what, (int)o->scaling);
    ATTO_REQUIRE(o->scaling != ATTO_ROPE_SCALING_NTK || dims >= 4, ATTO_E_ARGUMENT,
                 "%s: dims is %" PRId64 ", expected 4 or more with NTK scaling", what, dims);
    return ATTO_OK;
}

/* Turned by column i at position p: p * pace * theta^(-2i / dims). */
typedef struct angles {
    double theta, pace;
    int64_t dims;
} angles;

static angles angles_of(int64_t dims, const atto_rope_table_options *o)
{
    const double factor = o->factor != 0.0 ? o->factor : 1.0, r = (double)dims;
    angles a = { o->theta != 0.0 ? o->theta : 10000.0, 1.0, dims };
    if (o->scaling == ATTO_ROPE_SCALING_LINEAR) a.pace = 1.0 / factor;
    if (o->scaling == ATTO_ROPE_SCALING_NTK) a.theta *= pow(factor, r / (r - 2.0));
    return a;
}

static void fill_tables(const angles *a, int64_t positions, float *cos_to, float *sin_to)
{
    const int64_t half = a->dims / 2;
    for (int64_t i = 0; i < half; i++) {
        const double step = a->pace * pow(a->theta, -2.0 * (double)i / (double)a->dims);
        for (int64_t p = 0; p < positions; p++) {
            cos_to[p * half + i] = (float)cos((double)p * step);
            sin_to[p * half + i] = (float)sin((double)p * step);
        }
    }
}

static atto_status write_tables(const angles *a, const atto_tensor *cos_to,
                                const atto_tensor *sin_to)
{
    const int64_t n = atto_tensor_numel(cos_to);
    if (n == 0) return ATTO_OK;
    float *values = atto__alloc(2 * (size_t)n * sizeof *values);
    ATTO_REQUIRE(values, ATTO_E_MEMORY, "no memory for two tables of %" PRId64 " elements", n);
    fill_tables(a, cos_to->shape[0], values, values + n);
    atto_status status = atto_tensor_write(cos_to, values);
    if (status == ATTO_OK) status = atto_tensor_write(sin_to, values + n);
    atto__free(values);
    return status;
}

atto_status atto_rope_tables(atto_device *dev, int64_t positions, int64_t dims,
                             const atto_rope_table_options *options, atto_tensor *cos_out,
                             atto_tensor *sin_out)
{
    const char *what = "rope_tables";
    const atto_rope_table_options none = { .theta = 0.0 };
    const atto_rope_table_options *o = options ? options : &none;
    if (cos_out) memset(cos_out, 0, sizeof *cos_out);
    if (sin_out) memset(sin_out, 0, sizeof *sin_out);
    ATTO_REQUIRE(dev && cos_out && sin_out, ATTO_E_NULL, "%s: %s is NULL", what,
                 !dev      ? "dev"
                 : cos_out ? "sin"
                           : "cos");
    ATTO_REQUIRE(positions >= 0, ATTO_E_SHAPE, "%s: positions is %" PRId64 ", expected 0 or more",
                 what, positions);
    ATTO_REQUIRE(dims >= 0 && dims % 2 == 0, ATTO_E_SHAPE,
                 "%s: dims is %" PRId64 ", expected an even number", what, dims);
    ATTO_TRY(check_table_options(what, dims, o));
    const angles a = angles_of(dims, o);
    const atto_shape shape = atto_shape2(positions, dims / 2);
    atto_status status = atto_tensor_alloc(dev, ATTO_F32, shape, cos_out);
    if (status == ATTO_OK) status = atto_tensor_alloc(dev, ATTO_F32, shape, sin_out);
    if (status == ATTO_OK) status = write_tables(&a, cos_out, sin_out);
    if (status == ATTO_OK) return ATTO_OK;
    atto_tensor_free(cos_out);
    atto_tensor_free(sin_out);
    return atto__fail_in(status, "%s: ", what);
}

/* ---- on a tape ---- */

#define FIELD(name) offsetof(struct atto_rope_args, name)

static atto_status check_table_var(atto_tape *tape, const char *name, atto_var v)
{
    const atto__value *t = atto__tape_value(tape, "rope", v);
    if (!t) return tape->status;
    ATTO_REQUIRE(!atto__tape_wants_grad(tape, t), ATTO_E_UNSUPPORTED,
                 "rope: %s would need a gradient, which it never gets", name);
    return ATTO_OK;
}

atto_var atto_rope(atto_tape *tape, atto_var x, atto_var cos_table, atto_var sin_table,
                   const atto_rope_options *options)
{
    const atto_tensor *t = atto__tape_tensor(tape, "rope", x);
    struct atto_rope_args args = { .pairing = ATTO_ROPE_HALVES };
    if (!t || atto__tape_fail(tape, check_table_var(tape, "cos", cos_table)) != ATTO_OK ||
        atto__tape_fail(tape, check_table_var(tape, "sin", sin_table)) != ATTO_OK)
        return atto__no_var();
    if (options) {
        const atto_status status = atto__reserved_check("rope: options", options->reserved);
        if (atto__tape_fail(tape, status) != ATTO_OK) return atto__no_var();
        args.pairing = options->pairing;
        args.offset = options->offset;
    }
    if (atto__tape_fail(tape, check_x("rope", "x", t)) != ATTO_OK) return atto__no_var();
    const bool positioned = options && options->position;
    const atto__binding inputs[] = {
        { .field = FIELD(x), .v = x },
        { .field = FIELD(cos), .v = cos_table, .f32_too = true },
        { .field = FIELD(sin), .v = sin_table, .f32_too = true },
        { .field = FIELD(position), .v = positioned ? *options->position : x },
    };
    const atto__result y = {
        .field = FIELD(y), .like_inputs = true, .shape = atto_shape_of(4, t->shape), .ordered = true
    };
    return atto__record_op(tape, ATTO_OP_ROPE, &args, inputs, positioned ? 4 : 3, &y, 1);
}
