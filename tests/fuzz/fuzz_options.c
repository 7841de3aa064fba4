/* SPDX-License-Identifier: MIT */
/* Device options and the ATTOCL_* variables: any text is taken or refused with a message, and what
 * was taken keeps its promises. */
#include "bytes.h"
#include "device.h"

static const char *const variables[] = {
    "ATTOCL_FALLBACK", "ATTOCL_HIDDEN_COPIES",  "ATTOCL_CACHE",       "ATTOCL_PORTABLE",
    "ATTOCL_TUNE",     "ATTOCL_PROFILE",        "ATTOCL_DEBUG",       "ATTOCL_THREADS",
    "ATTOCL_INDEX",    "ATTOCL_MAX_WORK_GROUP", "ATTOCL_LOCAL_BYTES", "ATTOCL_MEMORY",
    "ATTOCL_CPU",      "ATTOCL_CACHE_DIR",      "ATTOCL_KERNEL_DIR",  "ATTOCL_CBLAS",
    "ATTOCL_CLBLAST",  "ATTOCL_DEVICE",
};

enum { VARIABLES = sizeof variables / sizeof variables[0], TEXTS = 5 };

static void set_variables(bytes *b)
{
    const uint64_t which = take_word(b, 3);
    for (int32_t i = 0; i < VARIABLES; i++) {
        unsetenv(variables[i]);
        if (!(which >> i & 1)) continue;
        char *text = take_text(b);
        setenv(variables[i], text, 1);
        free(text);
    }
}

/* The struct's texts go to texts, NULL where it has none. */
static atto_device_options take_options(bytes *b, char **texts)
{
    const uint64_t flags = take_word(b, 2);
    atto_device_options o = {
        .ignore_environment = flags >> 0 & 1,
        .no_fallback = flags >> 1 & 1,
        .no_hidden_copies = flags >> 2 & 1,
        .no_cache = flags >> 3 & 1,
        .portable = flags >> 4 & 1,
        .sync = flags >> 5 & 1,
        .tune_on_first_use = flags >> 6 & 1,
        .profile = flags >> 7 & 1,
    };
    if (flags >> 8 & 1) {
        o.num_threads = (int32_t)take_word(b, 4);
        o.index_bits = (int32_t)take_word(b, 4);
        o.max_work_group = (int32_t)take_word(b, 4);
        o.max_local_bytes = (int32_t)take_word(b, 4);
        o.max_memory_bytes = take_word(b, 8);
    }
    for (int32_t i = 0; i < TEXTS; i++) texts[i] = flags >> (9 + i) & 1 ? take_text(b) : NULL;
    o.cpu_level = texts[0], o.cache_dir = texts[1], o.kernel_dir = texts[2];
    o.cblas = texts[3], o.clblast = texts[4];
    if (flags >> 14 & 1) o.reserved[take_byte(b) % 4] = take_word(b, 8);
    return o;
}

static size_t length(const char *text)
{
    return text ? strlen(text) : 0;
}

/* Everything is in range, and every text is a copy: the originals are gone. */
static void check_taken(const atto__options *o)
{
    const atto_device_options *set = &o->set;
    MUST_HOLD(set->num_threads >= 0 && set->num_threads <= 4096, "%d", (int)set->num_threads);
    MUST_HOLD(set->index_bits == 0 || set->index_bits == 32 || set->index_bits == 64, "%d",
              (int)set->index_bits);
    MUST_HOLD(set->max_work_group >= 0 && set->max_local_bytes >= 0, "%d %d",
              (int)set->max_work_group, (int)set->max_local_bytes);
    MUST_HOLD(!set->cpu_level || strcmp(set->cpu_level, "base") == 0 ||
                  strcmp(set->cpu_level, "avx2") == 0 || strcmp(set->cpu_level, "avx512") == 0,
              "%s", set->cpu_level);
    MUST_HOLD(length(set->cache_dir) + length(set->kernel_dir) + length(set->cblas) +
                      length(set->clblast) + length(o->device) <
                  6 * 256,
              "texts have grown");
    for (int32_t i = 0; i < 4; i++) MUST_HOLD(set->reserved[i] == 0, "%d", (int)i);
}

/* Without the environment the numbers stay as they are. */
static void check_kept(const atto_device_options *given, const atto_device_options *set)
{
    MUST_HOLD(given->num_threads == set->num_threads && given->index_bits == set->index_bits &&
                  given->max_memory_bytes == set->max_memory_bytes && given->sync == set->sync,
              "the environment was read");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bytes b = { .at = data, .left = size };
    char *texts[TEXTS];
    set_variables(&b);
    const bool none = take_flag(&b);
    const atto_device_options given = take_options(&b, texts);
    atto__options resolved;
    memset(&resolved, 0xa5, sizeof resolved);
    atto__fail(ATTO_OK, "%s", "");
    const atto_status status = atto__options_resolve(none ? NULL : &given, &resolved);
    for (int32_t i = 0; i < TEXTS; i++) free(texts[i]);
    for (int32_t i = 0; i < VARIABLES; i++) unsetenv(variables[i]);
    if (status == ATTO_OK) {
        check_taken(&resolved);
        if (!none && given.ignore_environment) check_kept(&given, &resolved.set);
    } else {
        MUST_HOLD(status == ATTO_E_ARGUMENT, "%s", atto_status_name(status));
        MUST_HOLD(atto_last_error()[0], "%s without a message", atto_status_name(status));
        MUST_HOLD(!resolved.device && !resolved.strings[0], "something is left");
    }
    atto__options_clear(&resolved);
    return 0;
}
