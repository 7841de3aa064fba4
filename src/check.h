/* SPDX-License-Identifier: MIT */
/* Recording failures: the thread's message, and the macros that return it. */
#ifndef ATTO_CHECK_H
#define ATTO_CHECK_H

#include <stdint.h>
#include <stdio.h> /* mingw's name for its printf format */

#include <attocl/status.h>

#if defined(__MINGW32__)
#define ATTO_PRINTF(text, first) __attribute__((format(__MINGW_PRINTF_FORMAT, text, first)))
#elif defined(__GNUC__)
#define ATTO_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define ATTO_PRINTF(text, first)
#endif

/* Formats the thread's message (any length is kept up to 16 KiB, then cut) and returns status. */
atto_status atto__fail(atto_status status, const char *format, ...) ATTO_PRINTF(2, 3);

/* Puts "prefix" before the thread's message: a caller adds what it knows. Returns status. */
atto_status atto__fail_in(atto_status status, const char *format, ...) ATTO_PRINTF(2, 3);

/* The four reserved words of a public struct are 0; what names the struct's owner. */
atto_status atto__reserved_check(const char *what, const uint64_t reserved[4]);

/* ATTO_REQUIRE(rows > 0, ATTO_E_SHAPE, "softmax: ...", ...) fails with that message unless cond. */
#define ATTO_REQUIRE(cond, ...)                      \
    do {                                             \
        if (!(cond)) return atto__fail(__VA_ARGS__); \
    } while (0)

/* Passes a failure up. */
#define ATTO_TRY(call)                                          \
    do {                                                        \
        const atto_status atto_try_status = (call);             \
        if (atto_try_status != ATTO_OK) return atto_try_status; \
    } while (0)

#endif
