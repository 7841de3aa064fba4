/* SPDX-License-Identifier: MIT */
/* Files and streams that are written. */
#include "output.h"

#include <errno.h>
#include <string.h>

#if !defined(_WIN32)
#include <sys/stat.h>
#endif

static atto_status refuse(const char *name)
{
    return failure(ATTO_E_IO, "%s: cannot be written: %s", name, strerror(errno));
}

atto_status output_flush(FILE *out, const char *name)
{
    errno = EIO; /* for an earlier failure, whose reason nobody kept */
    return fflush(out) == 0 && !ferror(out) ? ATTO_OK : refuse(name);
}

atto_status output_try(const char *path)
{
    FILE *file = fopen(path, "ab");
    return file != NULL && fclose(file) == 0 ? ATTO_OK : refuse(path);
}

bool output_same(const char *a, const char *b)
{
#if defined(_WIN32)
    return strcmp(a, b) == 0;
#else
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && S_ISREG(x.st_mode) && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
#endif
}
