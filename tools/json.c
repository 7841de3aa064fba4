/* SPDX-License-Identifier: MIT */
/* The JSON writer: separators, indentation and escapes. */
#include "json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Bytes of the UTF-8 sequence at s, or 0 when it is none (RFC 3629, table 3-7 of Unicode). */
static int utf8_length(const unsigned char *s)
{
    const int length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (s[0] > 0xf4) return 0;
    for (int i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (s[0] == 0xe0 && s[1] < 0xa0) return 0; /* longer than needed */
    if (s[0] == 0xed && s[1] > 0x9f) return 0; /* surrogates */
    if (s[0] == 0xf0 && s[1] < 0x90) return 0;
    if (s[0] == 0xf4 && s[1] > 0x8f) return 0; /* beyond U+10FFFF */
    return length;
}

/* Writes one character and returns its bytes. */
static int put_character(FILE *file, const unsigned char *s)
{
    const int length = utf8_length(s);
    if (length == 0)
        fputc('?', file);
    else if (*s == '"' || *s == '\\')
        fprintf(file, "\\%c", *s);
    else if (*s < 0x20)
        fprintf(file, "\\u%04x", *s);
    else
        fwrite(s, 1, (size_t)length, file);
    return length == 0 ? 1 : length;
}

static void put_text(FILE *file, const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    fputc('"', file);
    while (*s != '\0') s += put_character(file, s);
    fputc('"', file);
}

/* What stands before a value: comma, new line, key. */
static void begin_value(json *j, const char *key)
{
    if (j->depth > 0) {
        bool *filled = &j->filled[j->depth - 1];
        fprintf(j->file, "%s\n%*s", *filled ? "," : "", 2 * j->depth, "");
        *filled = true;
    }
    if (key == NULL) return;
    put_text(j->file, key);
    fputs(": ", j->file);
}

static void open_group(json *j, const char *key, char bracket)
{
    begin_value(j, key);
    fputc(bracket, j->file);
    j->filled[j->depth] = false;
    j->depth++;
}

static void close_group(json *j, char bracket)
{
    j->depth--;
    if (j->filled[j->depth]) fprintf(j->file, "\n%*s", 2 * j->depth, "");
    fputc(bracket, j->file);
}

void json_open_object(json *j, const char *key)
{
    open_group(j, key, '{');
}

void json_close_object(json *j)
{
    close_group(j, '}');
}

void json_open_array(json *j, const char *key)
{
    open_group(j, key, '[');
}

void json_close_array(json *j)
{
    close_group(j, ']');
}

void json_string(json *j, const char *key, const char *value)
{
    begin_value(j, key);
    if (value == NULL)
        fputs("null", j->file);
    else
        put_text(j->file, value);
}

void json_number(json *j, const char *key, double value)
{
    begin_value(j, key);
    if (isfinite(value))
        fprintf(j->file, "%.9g", value);
    else
        fputs("null", j->file);
}

void json_integer(json *j, const char *key, int64_t value)
{
    begin_value(j, key);
    fprintf(j->file, "%" PRId64, value);
}

void json_bool(json *j, const char *key, bool value)
{
    begin_value(j, key);
    fputs(value ? "true" : "false", j->file);
}

static bool complain(const char *path)
{
    fprintf(stderr, "attocl: %s: %s\n", path, strerror(errno));
    return false;
}

bool json_open(json *j, const char *path)
{
    *j = (json){ .file = strcmp(path, "-") == 0 ? stdout : fopen(path, "w") };
    return j->file != NULL || complain(path);
}

bool json_finish(json *j, const char *path)
{
    fputc('\n', j->file);
    const bool written = fflush(j->file) == 0 && ferror(j->file) == 0;
    const bool closed = j->file == stdout || fclose(j->file) == 0;
    j->file = NULL;
    return (written && closed) || complain(path);
}
