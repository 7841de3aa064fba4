/* SPDX-License-Identifier: MIT */
/* Comma-separated values. */
#include "csv.h"

#include <errno.h>
#include <string.h>

#include "number.h"

static atto_status refuse(const csv *c)
{
    return failure(ATTO_E_IO, "%s: cannot be written: %s", c->path, strerror(errno));
}

static void put_name(FILE *file, const char *name)
{
    if (strpbrk(name, ",\"\r\n") == NULL) {
        fputs(name, file);
        return;
    }
    fputc('"', file);
    for (; *name != '\0'; name++) {
        if (*name == '"') fputc('"', file);
        fputc(*name, file);
    }
    fputc('"', file);
}

/* Ends the row and gives it to the system. */
static atto_status end_row(csv *c)
{
    fputc('\n', c->file);
    return fflush(c->file) == 0 && !ferror(c->file) ? ATTO_OK : refuse(c);
}

atto_status csv_open(csv *c, const char *path, const char *const *names, int columns)
{
    *c = (csv){ path, fopen(path, "wb"), columns };
    if (c->file == NULL) return refuse(c);
    for (int i = 0; i < columns; i++) {
        if (i > 0) fputc(',', c->file);
        put_name(c->file, names[i]);
    }
    return end_row(c);
}

atto_status csv_row(csv *c, const double *values)
{
    char text[NUMBER_BYTES];
    for (int i = 0; i < c->columns; i++)
        fprintf(c->file, "%s%s", i > 0 ? "," : "", number_text(values[i], 9, text));
    return end_row(c);
}

atto_status csv_close(csv *c)
{
    if (c->file == NULL) return ATTO_OK;
    const int result = fclose(c->file);
    c->file = NULL;
    return result == 0 ? ATTO_OK : refuse(c);
}
