/* SPDX-License-Identifier: MIT */
/* Meters: a sum on the device, a count on the host. */
#include <attocl/meter.h>

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "train/tape.h"

struct atto_meter {
    atto_device *dev; /* holds a reference */
    atto_tensor sum;
    int64_t count;
};

atto_status atto_meter_create(atto_device *dev, atto_meter **out)
{
    ATTO_REQUIRE(out, ATTO_E_NULL, "meter_create: out is NULL");
    *out = NULL;
    ATTO_REQUIRE(dev, ATTO_E_NULL, "meter_create: dev is NULL");
    atto_meter *m = atto__alloc(sizeof *m);
    ATTO_REQUIRE(m, ATTO_E_MEMORY, "meter_create: out of host memory");
    memset(m, 0, sizeof *m);
    atto_status status = atto_tensor_alloc(dev, ATTO_F32, atto_shape0(), &m->sum);
    if (status == ATTO_OK) status = atto_tensor_fill(&m->sum, 0.0);
    if (status != ATTO_OK) {
        atto_tensor_free(&m->sum);
        atto__free(m);
        return atto__fail_in(status, "meter_create: ");
    }
    m->dev = dev;
    atto__device_retain(dev);
    *out = m;
    return ATTO_OK;
}

void atto_meter_free(atto_meter *m)
{
    if (!m) return;
    atto_tensor_free(&m->sum);
    atto__device_release(m->dev);
    atto__free(m);
}

static atto_status add(atto_meter *m, const atto_tensor *t)
{
    ATTO_REQUIRE(m, ATTO_E_NULL, "meter_add: m is NULL");
    ATTO_REQUIRE(t->dtype == ATTO_F32 && atto_tensor_numel(t) == 1, ATTO_E_ARGUMENT,
                 "meter_add: the value is not one f32 element");
    atto_tensor scalar = *t;
    scalar.rank = 0;
    ATTO_TRY(atto__accumulate(m->dev, &m->sum, &scalar));
    m->count++;
    return ATTO_OK;
}

void atto_meter_add(atto_meter *m, atto_tape *tape, atto_var v)
{
    const atto_tensor *t = atto__tape_tensor(tape, "meter_add", v);
    if (t) atto__tape_fail(tape, add(m, t));
}

atto_status atto_meter_take(atto_meter *m, double *mean)
{
    ATTO_REQUIRE(m && mean, ATTO_E_NULL, "meter_take: %s is NULL", m ? "mean" : "m");
    float sum = 0.0f;
    const int64_t count = m->count;
    const atto_status status = atto_tensor_read(&m->sum, &sum);
    if (status != ATTO_OK && status != ATTO_E_INDEX) return status;
    ATTO_TRY(atto_tensor_fill(&m->sum, 0.0)); /* also what bad data has made NaN */
    m->count = 0;
    if (status == ATTO_OK) *mean = count > 0 ? (double)sum / (double)count : (double)NAN;
    return status;
}
