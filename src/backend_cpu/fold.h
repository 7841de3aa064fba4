/* SPDX-License-Identifier: MIT */
/* Reductions for other files of the CPU backend. */
#ifndef ATTO_CPU_FOLD_H
#define ATTO_CPU_FOLD_H

#include "backend_cpu/level.h"
#include "reduction.h"

/* reduce.c. Slabs and the order of every sum depend on the shape alone. */
atto_status ATTO_LEVEL_NAME(fold)(atto_device *dev, const atto__reduction *r);

#endif
