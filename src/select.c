/* SPDX-License-Identifier: MIT */
/* Which device a name means. Works on a list alone, so tests can play machines. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

#define LIST_TEXT 2048

/* "0: NVIDIA H200 (opencl); 1: ..." for messages; cut when the machine has very many. */
static const char *list_text(const atto_device_info *infos, int32_t n, char *text)
{
    size_t at = 0;
    text[0] = '\0';
    for (int32_t i = 0; i < n && at < LIST_TEXT - 1; i++) {
        const int wrote = snprintf(text + at, LIST_TEXT - at, "%s%d: %s (%s)", i ? "; " : "",
                                   (int)i, infos[i].name, infos[i].backend);
        if (wrote < 0) break;
        at += (size_t)wrote;
    }
    return text;
}

/* How many characters at the start of text and part agree, in any case. */
static size_t common(const char *text, const char *part)
{
    size_t i = 0;
    while (text[i] && part[i] && tolower((unsigned char)text[i]) == tolower((unsigned char)part[i]))
        i++;
    return i;
}

static bool contains(const char *text, const char *part)
{
    const size_t length = strlen(part);
    for (; *text; text++)
        if (common(text, part) == length) return true;
    return false;
}

static bool equals(const char *text, const char *part)
{
    return strlen(text) == strlen(part) && common(text, part) == strlen(part);
}

static bool is_backend(const char *name, const atto_device_info *infos, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (strcmp(infos[i].backend, name) == 0) return true;
    return false;
}

/* Usable devices by falling kind; equal kinds keep the order of the list. backend is NULL for all,
 * of which accelerators are not taken unasked. */
static void rank_devices(const atto_device_info *infos, int32_t n, const char *backend,
                         int32_t *order, int32_t *count)
{
    *count = 0;
    for (int32_t i = 0; i < n; i++) {
        if (infos[i].problem[0] || (backend && strcmp(infos[i].backend, backend) != 0)) continue;
        if (infos[i].kind == ATTO_KIND_ACCELERATOR && !backend) continue;
        int32_t at = (*count)++;
        for (; at > 0 && infos[order[at - 1]].kind < infos[i].kind; at--) order[at] = order[at - 1];
        order[at] = i;
    }
}

static atto_status select_number(const char *name, const atto_device_info *infos, int32_t n,
                                 int32_t *order, int32_t *count)
{
    char text[LIST_TEXT];
    errno = 0;
    const long long number = strtoll(name, NULL, 10);
    ATTO_REQUIRE(errno == 0 && number >= 0 && number < n, ATTO_E_ARGUMENT,
                 "device_open: device %s does not exist, expected 0 to %d: %s", name, (int)n - 1,
                 list_text(infos, n, text));
    order[0] = (int32_t)number;
    *count = 1;
    return ATTO_OK;
}

static bool is_number(const char *name)
{
    const char *digits = name + (*name == '-' || *name == '+');
    return *digits && strspn(digits, "0123456789") == strlen(digits);
}

/* Counts the devices whose name matches; the last one goes to *found. */
static int32_t count_matches(bool (*matches)(const char *, const char *), const char *name,
                             const atto_device_info *infos, int32_t n, int32_t *found)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!matches(infos[i].name, name)) continue;
        *found = i;
        count++;
    }
    return count;
}

/* A whole name goes before a part of one. */
static atto_status select_part(const char *name, const atto_device_info *infos, int32_t n,
                               int32_t *order, int32_t *count)
{
    char text[LIST_TEXT];
    int32_t matches = count_matches(equals, name, infos, n, order);
    if (matches == 0) matches = count_matches(contains, name, infos, n, order);
    ATTO_REQUIRE(matches != 0, ATTO_E_DEVICE, "device_open: no device is named like '%s': %s", name,
                 list_text(infos, n, text));
    ATTO_REQUIRE(matches == 1, ATTO_E_DEVICE,
                 "device_open: %d devices are named like '%s', use a number: %s", (int)matches,
                 name, list_text(infos, n, text));
    *count = 1;
    return ATTO_OK;
}

atto_status atto__select(const char *name, const atto_device_info *infos, int32_t n, int32_t *order,
                         int32_t *count)
{
    *count = 0;
    const bool automatic = strcmp(name, "auto") == 0;
    /* "opencl" means a backend also where it has no device */
    if (automatic || strcmp(name, "opencl") == 0 || is_backend(name, infos, n)) {
        rank_devices(infos, n, automatic ? NULL : name, order, count);
        char text[LIST_TEXT];
        ATTO_REQUIRE(
            *count > 0, ATTO_E_DEVICE,
            "device_open: no usable device for '%s' (no driver, or a library built without "
            "that backend); there are: %s",
            name, n > 0 ? list_text(infos, n, text) : "none");
        return ATTO_OK;
    }
    if (is_number(name)) return select_number(name, infos, n, order, count);
    ATTO_REQUIRE(name[0], ATTO_E_ARGUMENT, "device_open: the name is empty");
    return select_part(name, infos, n, order, count);
}
