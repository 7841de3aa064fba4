/* SPDX-License-Identifier: MIT */
/* The last message; an example has one thread. */
#include "failure.h"

#include <stdarg.h>
#include <stdio.h>

static char message[1024];

atto_status failure(atto_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return status;
}

const char *failure_message(void)
{
    return message[0] != '\0' ? message : atto_last_error();
}
