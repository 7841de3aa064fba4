/* SPDX-License-Identifier: MIT */
/* Meters: means of scalars that stay on the device until somebody asks. */
#ifndef ATTOCL_METER_H
#define ATTOCL_METER_H

#include <attocl/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Adds up values of one element; meant for losses. The sum is a running f32 on the device: of n
 * values of one sign it is off by at most about n * 2^-24 of itself, so take it now and then. */
typedef struct atto_meter atto_meter;

/** @param out NULL on failure; give it back with atto_meter_free. ATTO_E_NULL, ATTO_E_MEMORY */
ATTO_API atto_status atto_meter_create(atto_device *dev, atto_meter **out);

/** NULL is fine. */
ATTO_API void atto_meter_free(atto_meter *m);

/** Adds a value, an f32 of one element (else ATTO_E_ARGUMENT), without waiting. Errors go to the
 * tape. */
ATTO_API void atto_meter_add(atto_meter *m, atto_tape *tape, atto_var v);

/**
 * The mean of what was added since the last call, NaN if nothing was; waits, and starts afresh.
 *
 * Returns ATTO_E_NULL, and as atto_tensor_read: ATTO_E_INDEX (once) if a kernel found bad data,
 *         ATTO_E_BACKEND, ATTO_E_LOST. Then *mean is untouched; after ATTO_E_INDEX the meter starts
 *         afresh, else nothing is forgotten
 */
ATTO_API atto_status atto_meter_take(atto_meter *m, double *mean);

#ifdef __cplusplus
}
#endif

#endif
