/* SPDX-License-Identifier: MIT */
/* Kernel text with its includes put in. */
#ifndef ATTO_SOURCE_H
#define ATTO_SOURCE_H

#include "device.h"

/* The file, or text under its name if that is not NULL, with every #include "..." replaced by that
 * file's text, once each, and #line directives so that build logs name the file that an editor
 * would open. Angle-bracket includes stay. Files come from options.kernel_dir if they are there,
 * else from the library. ATTO_E_BUILD if one is missing.
 *
 * An include counts as done wherever it stands, also inside an #if that is not taken, so kernel
 * files include at the top and unconditionally. In a user's text an unknown name stays, for the
 * compiler to find. Release *out with atto__free. */
atto_status atto__source_expand(const atto_device *dev, const char *file, const char *text,
                                char **out);

/* Some compilers count lines of the whole text, which they call <kernel>. A copy of log, from
 * atto__alloc, in which "<kernel>:12" is what the #line directives of source say, "act.cl:3"; NULL
 * when out of memory. */
char *atto__source_name_lines(const char *source, const char *log);

#endif
