/* SPDX-License-Identifier: MIT */
/* Where a program writes: found out before the long work, and after it. */
#ifndef EXAMPLES_OUTPUT_H
#define EXAMPLES_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>

#include "failure.h"

/* Everything printed so far has arrived. Returns ATTO_E_IO with a message that begins with name. */
atto_status output_flush(FILE *out, const char *name);

/* The file can be written: creates it where there is none, else leaves what it holds.
 * Returns ATTO_E_IO with a message that names the file. */
atto_status output_try(const char *path);

/* Whether both are names of one file that exists: "x" and "./x", or a link. Devices never are. On
 * Windows the names are compared. */
bool output_same(const char *a, const char *b);

#endif
