/* SPDX-License-Identifier: MIT */
/* Reductions for other files of the OpenCL backend. */
#ifndef ATTO_FOLD_H
#define ATTO_FOLD_H

#include "reduction.h"
#include "walk.h"

/* reduce.c: one launch, or two where one would have too few work-groups. */
atto_status atto__opencl_fold(atto_device *dev, const atto__reduction *r);

#endif
