/* SPDX-License-Identifier: MIT */
/* Failures of an example: a status and one message, whether it or the library found the problem. */
#ifndef EXAMPLES_FAILURE_H
#define EXAMPLES_FAILURE_H

#include <attocl.h>

#if defined(__GNUC__)
#define FAILURE_FORMAT __attribute__((format(printf, 2, 3)))
#else
#define FAILURE_FORMAT
#endif

/* Keeps the message for failure_message and returns the status. */
FAILURE_FORMAT atto_status failure(atto_status status, const char *format, ...);

/* Message of the last failure(); before the first what the library said last. */
const char *failure_message(void);

/* Passes the failure of a function that uses failure() up. */
#define TRY(call)                         \
    do {                                  \
        const atto_status try_ = (call);  \
        if (try_ != ATTO_OK) return try_; \
    } while (0)

/* Passes a failure of the library up, with the library's message. */
#define TRY_ATTO(call)                                                      \
    do {                                                                    \
        const atto_status try_ = (call);                                    \
        if (try_ != ATTO_OK) return failure(try_, "%s", atto_last_error()); \
    } while (0)

#endif
