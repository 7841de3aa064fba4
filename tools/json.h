/* SPDX-License-Identifier: MIT */
/* Writes JSON, nothing else: no tree, no parser, no memory.
 *
 * jansson would do it too, but the GPU machines of scripts/h200.sh have neither it nor a network,
 * and they are where the figures come from. */
#ifndef ATTO_JSON_H
#define ATTO_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define JSON_MAX_DEPTH 8

typedef struct json {
    FILE *file;
    int depth;
    bool filled[JSON_MAX_DEPTH]; /* whether the open object or array has a member already */
} json;

/* key is NULL inside an array and for the outermost value. */
void json_open_object(json *j, const char *key);
void json_close_object(json *j);
void json_open_array(json *j, const char *key);
void json_close_array(json *j);

/* Bytes that are not valid UTF-8 become '?'; NULL is null. */
void json_string(json *j, const char *key, const char *value);

/* Nine significant digits; NaN and infinities, which JSON lacks, become null. */
void json_number(json *j, const char *key, double value);
void json_integer(json *j, const char *key, int64_t value);
void json_bool(json *j, const char *key, bool value);

/* Opens path for writing ("-" = stdout); false with a message on stderr. */
bool json_open(json *j, const char *path);

/* Ends the text and closes the file; false with a message on stderr when a write failed. */
bool json_finish(json *j, const char *path);

#endif
