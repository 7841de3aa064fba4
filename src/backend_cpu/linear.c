/* SPDX-License-Identifier: MIT */
/* Linear on the CPU. */
#include "backend_cpu/mask.h"

static float element(const atto_tensor *t, int64_t row, int64_t column)
{
    const int64_t at = t->offset + row * t->stride[0] + column * t->stride[1];
    const void *memory = atto__memory(t);
    if (t->dtype == ATTO_F32) return ((const float *)memory)[at];
    const uint16_t bits = ((const uint16_t *)memory)[at];
    return t->dtype == ATTO_F16 ? attom_f16_to_f32(bits) : attom_bf16_to_f32(bits);
}

static void set_element(const atto_tensor *t, int64_t row, int64_t column, float value, bool add)
{
    const int64_t at = t->offset + row * t->stride[0] + column * t->stride[1];
    void *memory = atto__memory(t);
    if (add) value += element(t, row, column);
    if (t->dtype == ATTO_F32) {
        ((float *)memory)[at] = value;
    } else {
        ((uint16_t *)memory)[at] =
            t->dtype == ATTO_F16 ? attom_f32_to_f16(value) : attom_f32_to_bf16(value);
    }
}

typedef float (*scalar_fn)(float x, float a, float b);

static const scalar_fn functions[][2] = {
#define X(NAME, name, parameters, a, b, default_a, default_b, rule) \
    { attom_##name, attom_##name##_grad },
    ATTO_ACTIVATION_TABLE(X)
#undef X
};

static float dot(const atto_tensor *x, int64_t m, const atto_tensor *w, int64_t n)
{
    float sum = 0.0f;
    for (int64_t k = 0; k < x->shape[1]; k++) sum += element(x, m, k) * element(w, n, k);
    return sum;
}

static void forward_row(const struct atto_linear_args *a, const atto__mask *mask, int64_t m)
{
    const int64_t columns = a->y->shape[1];
    for (int64_t n = 0; n < columns; n++) {
        float v = dot(a->x, m, a->w, n) + (a->b ? element(a->b, 0, n) : 0.0f);
        if (a->z) set_element(a->z, m, n, v, false);
        v = functions[a->act.kind][0](v, a->act.a, a->act.b);
        if (mask->p > 0.0f)
            v = keep_one(mask, (uint64_t)(m * columns + n)) ? v * mask->scale : 0.0f;
        if (a->residual) v += element(a->residual, m, n);
        set_element(a->y, m, n, v, false);
    }
}

atto_status ATTO_LEVEL_NAME(linear_forward)(atto_device *dev, const struct atto_linear_args *a,
                                            const atto__layout *layout)
{
    (void)layout;
    const atto__mask mask = atto__mask_of(a->dropout, a->rng);
    const int32_t threads = atto__cpu_threads(dev);
    dev->stats.launches++;
    ATTO_PARALLEL_FOR(threads)
    for (int64_t m = 0; m < a->y->shape[0]; m++) forward_row(a, &mask, m);
    return ATTO_OK;
}

/* dz[m][n], from which all gradients follow. */
static float gradient(const struct atto_linear_args *a, const atto__mask *mask, int64_t m,
                      int64_t n)
{
    float v = element(a->dy, m, n);
    if (a->act.kind != ATTO_ACT_IDENTITY)
        v *= functions[a->act.kind][1](element(a->z, m, n), a->act.a, a->act.b);
    if (mask->p > 0.0f)
        v = keep_one(mask, (uint64_t)(m * a->dy->shape[1] + n)) ? v * mask->scale : 0.0f;
    return v;
}

static void dx_row(const struct atto_linear_args *a, const float *dz, int64_t m)
{
    const int64_t columns = a->dy->shape[1];
    for (int64_t k = 0; k < a->dx->shape[1]; k++) {
        float sum = 0.0f;
        for (int64_t n = 0; n < columns; n++) sum += dz[m * columns + n] * element(a->w, n, k);
        set_element(a->dx, m, k, sum, a->add_dx);
    }
}

static void dw_row(const struct atto_linear_args *a, const float *dz, int64_t n)
{
    const int64_t rows = a->dy->shape[0], columns = a->dy->shape[1];
    for (int64_t k = 0; a->dw && k < a->dw->shape[1]; k++) {
        float sum = 0.0f;
        for (int64_t m = 0; m < rows; m++) sum += dz[m * columns + n] * element(a->x, m, k);
        set_element(a->dw, n, k, sum, a->add_dw);
    }
    if (!a->db) return;
    float sum = 0.0f;
    for (int64_t m = 0; m < rows; m++) sum += dz[m * columns + n];
    set_element(a->db, 0, n, sum, a->add_db);
}

atto_status ATTO_LEVEL_NAME(linear_backward)(atto_device *dev, const struct atto_linear_args *a,
                                             const atto__layout *layout)
{
    (void)layout;
    const atto__mask mask = atto__mask_of(a->dropout, a->rng);
    const int32_t threads = atto__cpu_threads(dev);
    const int64_t rows = a->dy->shape[0], columns = a->dy->shape[1];
    atto_buffer header;
    atto_tensor scratch;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, (int64_t[]){ rows * columns + 1 }, &header,
                                  &scratch));
    float *dz = atto__memory(&scratch);
    dev->stats.launches++;
    ATTO_PARALLEL_FOR(threads)
    for (int64_t m = 0; m < rows; m++)
        for (int64_t n = 0; n < columns; n++) dz[m * columns + n] = gradient(a, &mask, m, n);
    if (a->dx) {
        ATTO_PARALLEL_FOR(threads)
        for (int64_t m = 0; m < rows; m++) dx_row(a, dz, m);
    }
    ATTO_PARALLEL_FOR(threads)
    for (int64_t n = 0; n < columns; n++) dw_row(a, dz, n);
    return ATTO_OK;
}
