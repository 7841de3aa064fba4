/* SPDX-License-Identifier: MIT */
/* What the library's own modules know of modules. */
#ifndef ATTO_MODULE_H
#define ATTO_MODULE_H

#include <attocl/module.h>

#include "train/tape.h"

/* Adds parameters, buffers and children to a new module; data is atto_module_data(m). */
typedef atto_status (*atto__module_fill)(atto_module *m, void *data, const void *options);

/* A module that holds a copy of data, which the class's destroy frees, filled by fill, or not if
 * that is NULL. call names the caller in messages; *out is NULL on failure. */
atto_status atto__module_make(atto_device *dev, const char *call, const atto_module_class *cls,
                              const void *data, size_t bytes, atto__module_fill fill,
                              const void *options, atto_module **out);

bool atto__module_is(const atto_module *m, const atto_module_class *cls);

/* Parameters and children together, in order of registration; NULL where entry i is the other
 * kind. */
int32_t atto__module_count(const atto_module *m);
atto_param *atto__module_param_at(const atto_module *m, int32_t i);
atto_module *atto__module_child_at(const atto_module *m, int32_t i);

#endif
