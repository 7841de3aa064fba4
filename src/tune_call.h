/* SPDX-License-Identifier: MIT */
/* Measures a call in all the ways that it could run. */
#ifndef ATTO_TUNE_CALL_H
#define ATTO_TUNE_CALL_H

#include "run.h"

/* Runs a call that has just run again in copies of its outputs, in each way of each choice that is
 * to be measured, and enters the fastest one whose results agree with the first one's. What a way
 * does wrong, or that it fails, is logged and no error; args and layout are what the backend would
 * get. */
atto_status atto__tune_call(atto_device *dev, const atto__op_info *op, atto__direction direction,
                            const void *args, const atto__layout *layout);

/* Whether n elements are the same, or, of ways of two orders, as near as sums of two orders are. */
bool atto__results_agree(atto_dtype dtype, const void *expected, const void *got, int64_t n,
                         bool same_order);

#endif
