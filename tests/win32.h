/* SPDX-License-Identifier: MIT */
/* The functions of POSIX that tests use, on Windows. */
#ifndef ATTO_WIN32_H
#define ATTO_WIN32_H

#include <direct.h>
#include <io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline int setenv(const char *name, const char *value, int overwrite)
{
    if (!overwrite && getenv(name)) return 0;
    return _putenv_s(name, value);
}

static inline int unsetenv(const char *name)
{
    return _putenv_s(name, "");
}

static inline char *mkdtemp(char *path)
{
    return _mktemp(path) && _mkdir(path) == 0 ? path : NULL;
}

#endif
