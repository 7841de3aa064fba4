/* SPDX-License-Identifier: MIT */
/* Checks that several families share. */
#include "layers/checks.h"

#include <inttypes.h>

#include "layout.h"

atto_status atto__probability_check(const char *what, float p, const atto_rng *rng)
{
    ATTO_REQUIRE(p >= 0.0f && p <= 1.0f, ATTO_E_ARGUMENT,
                 "%s: the dropout probability is %g, expected 0 to 1", what, (double)p);
    ATTO_REQUIRE(rng->kind == ATTO_RNG_PHILOX || rng->kind == ATTO_RNG_TRITON, ATTO_E_ARGUMENT,
                 "%s: %d is no kind of random generator", what, (int)rng->kind);
    return ATTO_OK;
}

atto_status atto__reduction_check(const char *what, atto_reduction reduction, atto_reduction last)
{
    static const char *const names[] = { "mean", "sum", "none", "batch mean" };
    ATTO_REQUIRE((int)reduction >= 0 && reduction <= ATTO_REDUCTION_BATCH_MEAN, ATTO_E_ARGUMENT,
                 "%s: reduction is %d, expected 0 to %d", what, (int)reduction, (int)last);
    ATTO_REQUIRE(reduction <= last, ATTO_E_ARGUMENT,
                 "%s: reduction is %s, expected mean, sum or none", what, names[reduction]);
    return ATTO_OK;
}

atto_status atto__elementwise_check(const char *what, const char *in_name, const atto_tensor *in,
                                    const char *out_name, const atto_tensor *out)
{
    char got[ATTO_SHAPE_TEXT], wanted[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(atto__shape_same(in, out), ATTO_E_SHAPE, "%s: %s is %s, expected %s's %s", what,
                 out_name, atto__shape_text(out, got), in_name, atto__shape_text(in, wanted));
    ATTO_REQUIRE(in->dtype == ATTO_F32 || in->dtype == ATTO_F16 || in->dtype == ATTO_BF16,
                 ATTO_E_DTYPE, "%s: %s is %s, expected f32, f16 or bf16", what, in_name,
                 atto_dtype_name(in->dtype));
    ATTO_REQUIRE(out->dtype == in->dtype, ATTO_E_DTYPE, "%s: %s is %s, expected %s's %s", what,
                 out_name, atto_dtype_name(out->dtype), in_name, atto_dtype_name(in->dtype));
    return ATTO_OK;
}

atto_status atto__dim_check(const char *what, int32_t dim, int32_t rank)
{
    ATTO_REQUIRE(dim >= -rank && dim < rank, ATTO_E_ARGUMENT, "%s: dim is %d, expected %d to %d",
                 what, (int)dim, (int)-rank, (int)(rank - 1));
    return ATTO_OK;
}

bool atto__is_float(atto_dtype dtype)
{
    return dtype == ATTO_F32 || dtype == ATTO_F16 || dtype == ATTO_BF16;
}

atto_status atto__image_check(const char *what, const char *name, const atto_tensor *x,
                              int32_t dims, int64_t most)
{
    char text[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(atto__is_float(x->dtype), ATTO_E_DTYPE, "%s: %s is %s, expected f32, f16 or bf16",
                 what, name, atto_dtype_name(x->dtype));
    ATTO_REQUIRE(x->rank == dims + 1 || x->rank == dims + 2, ATTO_E_SHAPE,
                 "%s: %s is %s, expected %s", what, name, atto__shape_text(x, text),
                 dims == 2 ? "[N, C, H, W] or [C, H, W]" : "[N, C, L] or [C, L]");
    for (int32_t d = x->rank - dims; d < x->rank; d++) {
        ATTO_REQUIRE(x->shape[d] > 0, ATTO_E_SHAPE, "%s: dimension %d of %s, %s, is empty", what,
                     (int)d, name, atto__shape_text(x, text));
        ATTO_REQUIRE(x->shape[d] <= most, ATTO_E_SHAPE,
                     "%s: dimension %d of %s, %s, is larger than %" PRId64, what, (int)d, name,
                     atto__shape_text(x, text), most);
    }
    return ATTO_OK;
}

atto_status atto__same_shape_check(const char *what, const char *name, const atto_tensor *t,
                                   atto_shape expected)
{
    const atto_tensor wanted = atto_tensor_of(NULL, ATTO_F32, expected, 0);
    char got_text[ATTO_SHAPE_TEXT], wanted_text[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(atto__shape_same(t, &wanted), ATTO_E_SHAPE, "%s: %s is %s, expected %s", what,
                 name, atto__shape_text(t, got_text), atto__shape_text(&wanted, wanted_text));
    return ATTO_OK;
}

static atto_status check_expected(const char *what, const atto__expected *e)
{
    if (!e->t) return ATTO_OK;
    ATTO_TRY(atto__same_shape_check(what, e->name, e->t, e->shape));
    ATTO_REQUIRE(e->t->dtype == e->dtype || (e->or_f32 && e->t->dtype == ATTO_F32), ATTO_E_DTYPE,
                 "%s: %s is %s, expected %s%s", what, e->name, atto_dtype_name(e->t->dtype),
                 atto_dtype_name(e->dtype), e->or_f32 && e->dtype != ATTO_F32 ? " or f32" : "");
    return ATTO_OK;
}

atto_status atto__tensors_check(const char *what, const atto__expected *list, size_t count)
{
    for (size_t i = 0; i < count; i++) ATTO_TRY(check_expected(what, &list[i]));
    return ATTO_OK;
}
