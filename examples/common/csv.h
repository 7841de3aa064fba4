/* SPDX-License-Identifier: MIT */
/* Tables of numbers as comma-separated values, row by row, so that an interrupted run leaves its
 * rows. The same bytes in every locale. */
#ifndef EXAMPLES_CSV_H
#define EXAMPLES_CSV_H

#include <stdio.h>

#include "failure.h"

typedef struct csv {
    const char *path; /* the caller's */
    FILE *file;       /* NULL when closed */
    int columns;
} csv;

/* Creates or empties the file and writes the names; those with a comma, quote or line end are
 * quoted (RFC 4180). Returns ATTO_E_IO with a message that names the file. */
atto_status csv_open(csv *c, const char *path, const char *const *names, int columns);

/* One row of as many values as there are columns: 9 significant digits; nan, inf and -inf as those
 * words. ATTO_E_IO when it cannot be written. */
atto_status csv_row(csv *c, const double *values);

/* A zeroed or closed table is fine. ATTO_E_IO when the last rows cannot be written. */
atto_status csv_close(csv *c);

#endif
