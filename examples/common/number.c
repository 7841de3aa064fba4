/* SPDX-License-Identifier: MIT */
/* Numbers as text, in no locale. */
#include "number.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A decimal point may have several bytes. */
void number_unlocalise(char *text)
{
    char *to = text;
    for (const char *from = text; *from != '\0'; from++) {
        if (strchr("0123456789+-e", *from) != NULL)
            *to++ = *from;
        else if (to == text || to[-1] != '.')
            *to++ = '.';
    }
    *to = '\0';
}

const char *number_text(double value, int digits, char out[NUMBER_BYTES])
{
    if (isnan(value)) return strcpy(out, "nan");
    if (isinf(value)) return strcpy(out, value > 0 ? "inf" : "-inf");
    snprintf(out, NUMBER_BYTES, "%.*g", digits, value);
    number_unlocalise(out);
    return out;
}
