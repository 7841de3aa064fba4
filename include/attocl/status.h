/* SPDX-License-Identifier: MIT */
/* Status codes, their text, and the last detailed message of this thread. */
#ifndef ATTOCL_STATUS_H
#define ATTOCL_STATUS_H

#include <attocl/tables.h>

#if defined(_WIN32) && defined(ATTO_SHARED)
#ifdef ATTO_BUILDING
#define ATTO_API __declspec(dllexport)
#else
#define ATTO_API __declspec(dllimport)
#endif
#elif defined(__GNUC__) && !defined(_WIN32)
#define ATTO_API __attribute__((visibility("default")))
#else
#define ATTO_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** In options where 0 means the default: exactly 0. */
#define ATTO_ZERO (-1)

/** Result of every call that can fail: 0 is success, errors are negative. */
typedef enum atto_status {
#define X(NAME, value, text) ATTO_##NAME = value,
    ATTO_STATUS_TABLE(X)
#undef X
} atto_status;

/** Name of a status, for example "ATTO_E_SHAPE"; "ATTO_E_UNKNOWN" for a number that is none. */
ATTO_API const char *atto_status_name(atto_status status);

/** One-line meaning of a status, for example "shapes do not match". */
ATTO_API const char *atto_status_text(atto_status status);

/**
 * What the last failed call of this thread had to say: op, tensor, what was found, what was
 * expected. Empty before the first failure. A successful call leaves it alone. The text stays valid
 * until the next failing call of the same thread.
 */
ATTO_API const char *atto_last_error(void);

/** Version of the library that is linked, "MAJOR.MINOR.PATCH". */
ATTO_API const char *atto_version(void);

#ifdef __cplusplus
}
#endif

#endif
