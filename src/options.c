/* SPDX-License-Identifier: MIT */
/* Device options: defaults, the caller's struct, and the environment, which wins. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "device.h"

/* How a variable's text becomes a field. OFF: the variable is positive ("ATTOCL_CACHE=0"), the
 * field negative (no_cache). WORD: true when the text is the row's word. */
typedef enum value_kind {
    KIND_ON,
    KIND_OFF,
    KIND_WORD,
    KIND_INT,
    KIND_BYTES,
    KIND_TEXT
} value_kind;

typedef struct option_row {
    const char *variable;
    value_kind kind;
    size_t offset;
    int64_t low, high; /* of integers */
    const char *words; /* the texts allowed, separated by '|'; NULL = any */
} option_row;

#define AT(field) offsetof(atto_device_options, field)

static const option_row rows[] = {
    { "ATTOCL_FALLBACK", KIND_OFF, AT(no_fallback), 0, 0, NULL },
    { "ATTOCL_HIDDEN_COPIES", KIND_OFF, AT(no_hidden_copies), 0, 0, NULL },
    { "ATTOCL_CACHE", KIND_OFF, AT(no_cache), 0, 0, NULL },
    { "ATTOCL_PORTABLE", KIND_ON, AT(portable), 0, 0, NULL },
    { "ATTOCL_TUNE", KIND_ON, AT(tune_on_first_use), 0, 0, NULL },
    { "ATTOCL_PROFILE", KIND_ON, AT(profile), 0, 0, NULL },
    { "ATTOCL_DEBUG", KIND_WORD, AT(sync), 0, 0, "sync" },
    { "ATTOCL_THREADS", KIND_INT, AT(num_threads), 0, 4096, NULL },
    { "ATTOCL_INDEX", KIND_INT, AT(index_bits), 0, 64, NULL },
    { "ATTOCL_MAX_WORK_GROUP", KIND_INT, AT(max_work_group), 0, INT32_MAX, NULL },
    { "ATTOCL_LOCAL_BYTES", KIND_INT, AT(max_local_bytes), 0, INT32_MAX, NULL },
    { "ATTOCL_MEMORY", KIND_BYTES, AT(max_memory_bytes), 0, INT64_MAX, NULL },
    { "ATTOCL_CPU", KIND_TEXT, AT(cpu_level), 0, 0, "base|avx2|avx512" },
    { "ATTOCL_CACHE_DIR", KIND_TEXT, AT(cache_dir), 0, 0, NULL },
    { "ATTOCL_KERNEL_DIR", KIND_TEXT, AT(kernel_dir), 0, 0, NULL },
    { "ATTOCL_CBLAS", KIND_TEXT, AT(cblas), 0, 0, NULL },
    { "ATTOCL_CLBLAST", KIND_TEXT, AT(clblast), 0, 0, NULL },
};

enum { ROWS = sizeof rows / sizeof rows[0] };

static bool is_one_of(const char *text, const char *words)
{
    const size_t length = strcspn(text, "|");
    if (text[length]) return false; /* several words */
    for (const char *word = words; word; word = strchr(word, '|')) {
        word += *word == '|';
        if (length > 0 && strncmp(word, text, length) == 0 &&
            (word[length] == '\0' || word[length] == '|'))
            return true;
    }
    return false;
}

/* A whole number with nothing behind it; sizes may end in K, M, G or T (powers of 1024). */
static bool parse_number(const char *text, bool sizes, int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || errno != 0) return false;
    const char *units = "KMGT";
    const char *unit = sizes && *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (unit) {
        const int shift = 10 * (int)(unit - units + 1);
        if (value < 0 || value > INT64_MAX >> shift) return false;
        value <<= shift;
        end++;
    }
    *out = value;
    return *end == '\0';
}

static atto_status apply_flag(const option_row *row, const char *text, bool *field)
{
    const bool one = strcmp(text, "1") == 0;
    ATTO_REQUIRE(one || strcmp(text, "0") == 0, ATTO_E_ARGUMENT, "%s is '%s', expected 0 or 1",
                 row->variable, text);
    *field = row->kind == KIND_ON ? one : !one;
    return ATTO_OK;
}

static atto_status apply_number(const option_row *row, const char *text, void *field)
{
    int64_t value;
    ATTO_REQUIRE(parse_number(text, row->kind == KIND_BYTES, &value) && value >= row->low &&
                     value <= row->high,
                 ATTO_E_ARGUMENT, "%s is '%s', expected a number from %" PRId64 " to %" PRId64,
                 row->variable, text, row->low, row->high);
    if (row->kind == KIND_BYTES) {
        *(uint64_t *)field = (uint64_t)value;
    } else {
        *(int32_t *)field = (int32_t)value;
    }
    return ATTO_OK;
}

static atto_status apply(const option_row *row, const char *text, atto_device_options *set)
{
    void *field = (char *)set + row->offset;
    ATTO_REQUIRE(!row->words || is_one_of(text, row->words), ATTO_E_ARGUMENT,
                 "%s is '%s', expected one of %s", row->variable, text, row->words);
    switch (row->kind) {
    case KIND_ON:
    case KIND_OFF:
        return apply_flag(row, text, field);
    case KIND_WORD:
        *(bool *)field = true;
        return ATTO_OK;
    case KIND_INT:
    case KIND_BYTES:
        return apply_number(row, text, field);
    case KIND_TEXT:
        *(const char **)field = text;
        return ATTO_OK;
    }
    return ATTO_OK;
}

static atto_status apply_environment(atto__options *out)
{
    for (int32_t i = 0; i < ROWS; i++) {
        const char *text = getenv(rows[i].variable);
        if (text && text[0]) ATTO_TRY(apply(&rows[i], text, &out->set));
    }
    const char *device = getenv("ATTOCL_DEVICE");
    if (device && device[0]) {
        out->device = atto__strdup(device);
        ATTO_REQUIRE(out->device, ATTO_E_MEMORY, "device_open: out of host memory");
    }
    return ATTO_OK;
}

/* What holds wherever a value came from. */
static atto_status check(const atto_device_options *set)
{
    ATTO_REQUIRE(set->num_threads >= 0 && set->num_threads <= 4096, ATTO_E_ARGUMENT,
                 "device options: num_threads is %d, expected 0 to 4096", (int)set->num_threads);
    ATTO_REQUIRE(set->index_bits == 0 || set->index_bits == 32 || set->index_bits == 64,
                 ATTO_E_ARGUMENT,
                 "device options: index_bits (ATTOCL_INDEX) is %d, expected 0, 32 or 64",
                 (int)set->index_bits);
    ATTO_REQUIRE(set->max_work_group >= 0 && set->max_local_bytes >= 0, ATTO_E_ARGUMENT,
                 "device options: max_work_group is %d and max_local_bytes %d, expected 0 or more",
                 (int)set->max_work_group, (int)set->max_local_bytes);
    ATTO_REQUIRE(!set->cpu_level || is_one_of(set->cpu_level, "base|avx2|avx512"), ATTO_E_ARGUMENT,
                 "device options: cpu_level is '%s', expected one of base|avx2|avx512",
                 set->cpu_level);
    return atto__reserved_check("device options", set->reserved);
}

static atto_status own_strings(atto__options *out)
{
    const char **fields[ATTO_OPTION_STRINGS] = { &out->set.cpu_level, &out->set.cache_dir,
                                                 &out->set.kernel_dir, &out->set.clblast,
                                                 &out->set.cblas };
    for (int32_t i = 0; i < ATTO_OPTION_STRINGS; i++) {
        if (!*fields[i]) continue;
        out->strings[i] = atto__strdup(*fields[i]);
        *fields[i] = out->strings[i];
        ATTO_REQUIRE(out->strings[i], ATTO_E_MEMORY, "device_open: out of host memory");
    }
    return ATTO_OK;
}

void atto__options_clear(atto__options *options)
{
    for (int32_t i = 0; i < ATTO_OPTION_STRINGS; i++) atto__free(options->strings[i]);
    atto__free(options->device);
    memset(options, 0, sizeof *options);
}

atto_status atto__options_resolve(const atto_device_options *options, atto__options *out)
{
    memset(out, 0, sizeof *out);
    if (options) out->set = *options;
    atto_status status = ATTO_OK;
    if (!out->set.ignore_environment) status = apply_environment(out);
    if (status == ATTO_OK) status = check(&out->set);
    if (status == ATTO_OK) status = own_strings(out);
    if (status != ATTO_OK) atto__options_clear(out);
    return status;
}
