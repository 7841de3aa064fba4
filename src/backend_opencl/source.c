/* SPDX-License-Identifier: MIT */
/* Finds kernel files and expands their includes. */
#include "source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "embedded.h"
#include "os.h"

#define LARGEST_FILE ((size_t)16 << 20)
#define MOST_FILES   32
#define LONGEST_NAME 80 /* a user's kernel has at most 63 characters, and .cl */

typedef struct expansion {
    const atto_device *dev;
    char *text;
    size_t length, capacity;
    bool is_users;                       /* the text comes from outside the library */
    char seen[MOST_FILES][LONGEST_NAME]; /* files already put in */
    int32_t seen_count;
} expansion;

static atto_status append(expansion *e, const char *text, size_t length)
{
    if (e->length + length + 1 > e->capacity) {
        const size_t capacity = 2 * (e->length + length + 1);
        char *larger = atto__alloc(capacity);
        ATTO_REQUIRE(larger, ATTO_E_MEMORY, "out of host memory for a kernel's source");
        if (e->length > 0) memcpy(larger, e->text, e->length);
        atto__free(e->text);
        e->text = larger;
        e->capacity = capacity;
    }
    memcpy(e->text + e->length, text, length);
    e->length += length;
    e->text[e->length] = '\0';
    return ATTO_OK;
}

static atto_status append_line_directive(expansion *e, int32_t line, const char *file)
{
    char text[LONGEST_NAME + 32];
    const int n = snprintf(text, sizeof text, "#line %d \"%s\"\n", (int)line, file);
    return append(e, text, (size_t)n);
}

/* The file in the folder that overrides the library's; NULL if there is none. */
static char *read_override(const atto_device *dev, const char *file)
{
    const char *folder = dev->options.set.kernel_dir;
    char *path = folder ? atto__format("%s/%s", folder, file) : NULL;
    size_t bytes;
    char *text = path ? atto__file_read(path, LARGEST_FILE, &bytes) : NULL;
    if (text) atto__log(dev, ATTO_LOG_INFO, "kernel file %s instead of the library's", path);
    atto__free(path);
    return text;
}

/* A copy of the file's text, from the folder that overrides the library or from the library. */
static atto_status read_file(const atto_device *dev, const char *file, char **out)
{
    *out = read_override(dev, file);
    if (*out) return ATTO_OK;
    for (int i = 0; i < atto__embedded_count; i++) {
        const atto__embedded *embedded = &atto__embedded_files[i];
        if (strcmp(embedded->name, file) != 0) continue;
        *out = atto__alloc(embedded->bytes + 1);
        ATTO_REQUIRE(*out, ATTO_E_MEMORY, "out of host memory for a kernel's source");
        memcpy(*out, embedded->text, embedded->bytes);
        return ATTO_OK;
    }
    return atto__fail(ATTO_E_BUILD, "kernel file \"%s\" not found", file);
}

static bool seen(const expansion *e, const char *file)
{
    for (int32_t i = 0; i < e->seen_count; i++)
        if (strcmp(e->seen[i], file) == 0) return true;
    return false;
}

static bool is_known(const expansion *e, const char *file)
{
    for (int i = 0; i < atto__embedded_count; i++)
        if (strcmp(atto__embedded_files[i].name, file) == 0) return true;
    return !e->is_users;
}

/* The name between the quotes of an #include "..." line; *rest is what stands behind it. */
static bool parse_include(const char *line, size_t length, char *name, const char **rest)
{
    const char *end = line + length;
    const char *at = line + strspn(line, " \t");
    if (*at++ != '#') return false;
    at += strspn(at, " \t");
    if (strncmp(at, "include", 7) != 0) return false;
    at += 7;
    at += strspn(at, " \t");
    if (*at != '"') return false;
    const char *close = memchr(at + 1, '"', (size_t)(end - at - 1));
    if (!close || close - at - 1 >= LONGEST_NAME) return false;
    memcpy(name, at + 1, (size_t)(close - at - 1));
    name[close - at - 1] = '\0';
    *rest = close + 1;
    return true;
}

static atto_status put_file(expansion *e, const char *file);

/* Copies text line by line, with other files in place of the lines that include them. */
static atto_status put_lines(expansion *e, const char *file, const char *text)
{
    int32_t number = 1;
    for (const char *line = text; *line; number++) {
        const char *newline = strchr(line, '\n');
        const size_t length = newline ? (size_t)(newline - line) : strlen(line);
        char name[LONGEST_NAME];
        const char *rest = line;
        if (parse_include(line, length, name, &rest) && is_known(e, name)) {
            const atto_status status = put_file(e, name);
            if (status != ATTO_OK) return atto__fail_in(status, "%s:%d: ", file, (int)number);
            ATTO_TRY(append_line_directive(e, number, file));
        } else {
            rest = line;
        }
        ATTO_TRY(append(e, rest, length - (size_t)(rest - line)));
        ATTO_TRY(append(e, "\n", 1));
        line += length + (newline ? 1 : 0);
    }
    return ATTO_OK;
}

/* The text as the file of that name. */
static atto_status put_text(expansion *e, const char *file, const char *text)
{
    ATTO_REQUIRE(e->seen_count < MOST_FILES, ATTO_E_BUILD, "more than %d kernel files included",
                 MOST_FILES);
    snprintf(e->seen[e->seen_count++], LONGEST_NAME, "%s", file);
    ATTO_TRY(append_line_directive(e, 1, file));
    return put_lines(e, file, text);
}

/* A template, named .inc, is put in each time, with other macros before it. */
static bool is_template(const char *file)
{
    const size_t length = strlen(file);
    return length > 4 && strcmp(file + length - 4, ".inc") == 0;
}

static atto_status put_file(expansion *e, const char *file)
{
    if (seen(e, file) && !is_template(file)) return ATTO_OK;
    char *text;
    ATTO_TRY(read_file(e->dev, file, &text));
    const atto_status status = put_text(e, file, text);
    atto__free(text);
    return status;
}

atto_status atto__source_expand(const atto_device *dev, const char *file, const char *text,
                                char **out)
{
    expansion e = { .dev = dev, .is_users = text != NULL };
    const atto_status status = text ? put_text(&e, file, text) : put_file(&e, file);
    *out = e.text;
    if (status != ATTO_OK) {
        atto__free(e.text);
        *out = NULL;
    }
    return status;
}

/* ---- naming lines in build logs ---- */

/* What compilers call a text that has no file: NVIDIA's and Oclgrind's, which ignore #line. */
static const char *const unnamed[] = { "<kernel>:", "input.cl:" };

/* The first of these names in log, or NULL; *length is that of the name. */
static const char *find_unnamed(const char *log, size_t *length)
{
    const char *first = NULL;
    for (size_t i = 0; i < sizeof unnamed / sizeof unnamed[0]; i++) {
        const char *found = strstr(log, unnamed[i]);
        if (!found || (first && first < found)) continue;
        first = found;
        *length = strlen(unnamed[i]);
    }
    return first;
}

/* What the text calls its physical line number: the last #line directive before it, counted on. */
static void name_line(const char *source, long number, char *file, long *line)
{
    file[0] = '\0';
    *line = number;
    for (long at = 1; *source && at < number; at++) {
        const char *newline = strchr(source, '\n');
        int start = 0;
        if (sscanf(source, "#line %d \"%79[^\"]\"", &start, file) == 2)
            *line = start + number - at - 1;
        if (!newline) return;
        source = newline + 1;
    }
}

char *atto__source_name_lines(const char *source, const char *log)
{
    expansion e = { 0 };
    atto_status status = append(&e, "", 0);
    for (const char *at = log; status == ATTO_OK && *at;) {
        size_t name_length = 0;
        const char *found = find_unnamed(at, &name_length);
        const size_t before = found ? (size_t)(found - at) : strlen(at);
        status = append(&e, at, before);
        at += before;
        if (!found) continue;
        char *digits_end;
        char name[LONGEST_NAME + 32], file[LONGEST_NAME];
        long line = strtol(found + name_length, &digits_end, 10);
        name_line(source, line, file, &line);
        const int n = snprintf(name, sizeof name, "%s:%ld", file[0] ? file : "<kernel>", line);
        if (status == ATTO_OK) status = append(&e, name, (size_t)n);
        at = digits_end;
    }
    if (status == ATTO_OK) return e.text;
    atto__free(e.text);
    return NULL;
}
