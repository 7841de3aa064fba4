/* SPDX-License-Identifier: MIT */
/* Status names and texts, and the message of the thread's last failure. */
#include <attocl/status.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

/* Room for a whole build log of a small kernel; longer ones reach the log callback whole. */
#define MESSAGE_BYTES 16384

static _Thread_local char message[MESSAGE_BYTES];

const char *atto_status_name(atto_status status)
{
    switch (status) {
#define X(NAME, value, text) \
    case ATTO_##NAME:        \
        return "ATTO_" #NAME;
        ATTO_STATUS_TABLE(X)
#undef X
    }
    return "ATTO_E_UNKNOWN";
}

const char *atto_status_text(atto_status status)
{
    switch (status) {
#define X(NAME, value, text) \
    case ATTO_##NAME:        \
        return text;
        ATTO_STATUS_TABLE(X)
#undef X
    }
    return "not a status of this library";
}

const char *atto_last_error(void)
{
    return message;
}

const char *atto_version(void)
{
    return ATTO_VERSION;
}

atto_status atto__fail(atto_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return status;
}

atto_status atto__fail_in(atto_status status, const char *format, ...)
{
    char prefix[256];
    va_list args;
    va_start(args, format);
    vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    const size_t prefix_length = strlen(prefix);
    const size_t room = sizeof message - 1 - prefix_length;
    size_t length = strlen(message);
    if (length > room) length = room;
    memmove(message + prefix_length, message, length);
    message[prefix_length + length] = '\0';
    memcpy(message, prefix, prefix_length);
    return status;
}

atto_status atto__reserved_check(const char *what, const uint64_t reserved[4])
{
    for (int i = 0; i < 4; i++)
        ATTO_REQUIRE(reserved[i] == 0, ATTO_E_ARGUMENT,
                     "%s: reserved[%d] is not 0; zero the struct before filling it", what, i);
    return ATTO_OK;
}
