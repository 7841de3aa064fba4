/* SPDX-License-Identifier: MIT */
/* Escapes for XML 1.0. */
#include "xml.h"

#include <stdint.h>
#include <string.h>

/* Character at s and its bytes in *length; 0 when s starts with none that XML allows. */
static uint32_t character(const unsigned char *s, int *length)
{
    static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 }; /* with that many bytes */
    const int n = s[0] < 0x80 ? 1 : s[0] < 0xc0 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    uint32_t c = n == 1 ? s[0] : s[0] & (0x7fu >> n);
    *length = 1;
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0; /* the end of the text too */
        c = c << 6 | (s[i] & 0x3fu);
    }
    if (n == 0 || s[0] >= 0xf8 || c < least[n] || c > 0x10ffff) return 0;
    if (c < 0x20 && c != '\t' && c != '\n') return 0;
    if ((c >= 0xd800 && c <= 0xdfff) || c == 0xfffe || c == 0xffff) return 0;
    *length = n;
    return c;
}

static const char *entity(uint32_t c)
{
    switch (c) {
    case 0:
        return "?";
    case '&':
        return "&amp;";
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '"':
        return "&quot;";
    case '\'':
        return "&#39;";
    }
    return NULL;
}

void xml_text(FILE *file, const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    while (*s != '\0') {
        int length;
        const char *escaped = entity(character(s, &length));
        if (escaped != NULL)
            fputs(escaped, file);
        else
            fwrite(s, 1, (size_t)length, file);
        s += length;
    }
}
