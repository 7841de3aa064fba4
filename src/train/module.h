/* SPDX-License-Identifier: MIT */
/* What the library's own modules know of modules. */
#ifndef ATTO_MODULE_H
#define ATTO_MODULE_H

#include <attocl/module.h>

#include "train/tape.h"

bool atto__module_is(const atto_module *m, const atto_module_class *cls);

/* Parameters and children together, in order of registration; NULL where entry i is the other kind. */
int32_t atto__module_count(const atto_module *m);
atto_param *atto__module_param_at(const atto_module *m, int32_t i);
atto_module *atto__module_child_at(const atto_module *m, int32_t i);

#endif
