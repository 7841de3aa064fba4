/* SPDX-License-Identifier: MIT */
/* What was measured, as text: a file for each device beside the kernel cache. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "device.h"
#include "os.h"
#include "tune.h"

/* Another number wherever the numbers of a way change their meaning. */
#define FORMAT       1
#define LARGEST_FILE ((size_t)1 << 20)

/* ---- lines ---- */

static bool name_of(const char *text, atto__choice_name *out)
{
    for (int32_t i = 0; i < ATTO_CHOICE_COUNT; i++) {
        *out = (atto__choice_name)i;
        if (strcmp(text, atto__choice_text(*out)) == 0) return true;
    }
    return false;
}

static bool dtype_of(const char *text, atto_dtype *out)
{
    static const atto_dtype all[] = {
#define X(NAME, name, value, bytes) ATTO_##NAME,
        ATTO_DTYPE_TABLE(X)
#undef X
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        *out = all[i];
        if (strcmp(text, atto_dtype_name(all[i])) == 0) return true;
    }
    return false;
}

static void read_line(atto__tuner *tuner, const char *line, atto__source source)
{
    char name[32], dtype[8];
    atto__choice choice;
    atto__tuned entry = { .source = source };
    int64_t *size = choice.size;
    int32_t *number = entry.way.number;
    const int found = sscanf(line,
                             "%31s %7s %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd32
                             " %" SCNd32 " %" SCNd32 " %" SCNd32,
                             name, dtype, &size[0], &size[1], &size[2], &size[3], &number[0],
                             &number[1], &number[2], &number[3]);
    if (found != 2 + ATTO_CHOICE_SIZES + ATTO_WAY_NUMBERS) return;
    if (!name_of(name, &choice.name) || !dtype_of(dtype, &choice.dtype)) return;
    entry.key = atto__choice_key(&choice);
    atto__tuner_enter(tuner, choice.name, &entry);
}

void atto__tuner_read(atto__tuner *tuner, const char *text, atto__source source)
{
    char line[160];
    while (*text) {
        const size_t length = strcspn(text, "\n");
        if (length < sizeof line) {
            memcpy(line, text, length);
            line[length] = '\0';
            read_line(tuner, line, source);
        }
        text += length + (text[length] == '\n');
    }
}

/* The sizes that a key stands for. */
static void sizes_of(uint64_t key, int64_t *size)
{
    for (int32_t i = ATTO_CHOICE_SIZES - 1; i >= 0; i--, key >>= 6)
        size[i] = (key & 63) > 0 ? (int64_t)1 << ((key & 63) - 1) : 0;
}

static int write_line(char *out, size_t bytes, atto__choice_name name, const atto__tuned *entry)
{
    int64_t size[ATTO_CHOICE_SIZES];
    const int32_t *number = entry->way.number;
    const atto_dtype dtype = (atto_dtype)(entry->key >> (6 * ATTO_CHOICE_SIZES));
    sizes_of(entry->key, size);
    return snprintf(out, bytes,
                    "%s %s %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId32 " %" PRId32
                    " %" PRId32 " %" PRId32 "\n",
                    atto__choice_text(name), atto_dtype_name(dtype), size[0], size[1], size[2],
                    size[3], number[0], number[1], number[2], number[3]);
}

/* ---- the file ---- */

static uint64_t hash_text(uint64_t hash, const char *text)
{
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001b3u; /* FNV-1a */
    return (hash ^ 0xff) * 0x100000001b3u;
}

static char *folder_of(const atto_device *dev)
{
    const char *chosen = dev->options.set.cache_dir;
    if (dev->options.set.no_cache) return NULL;
    return chosen ? atto__strdup(chosen) : atto__cache_folder();
}

/* A file for each device, OpenCL platform, driver, version of the library, and device that is being
 * played. */
static char *path_of(const atto_device *dev, const char *folder)
{
    uint64_t hash = 0xcbf29ce484222325u;
    hash = hash_text(hash, atto_version());
    hash = hash_text(hash, dev->info.platform);
    hash = hash_text(hash, dev->info.name);
    hash = hash_text(hash, dev->info.driver);
    hash = (hash ^ (uint64_t)dev->info.max_work_group) * 0x100000001b3u;
    hash = (hash ^ dev->options.set.portable) * 0x100000001b3u;
    return folder ? atto__format("%s/tuning-%d-%016" PRIx64 ".txt", folder, FORMAT, hash) : NULL;
}

static void read_file(const atto_device *dev, atto__tuner *tuner)
{
    char *folder = folder_of(dev), *path = path_of(dev, folder);
    size_t bytes = 0;
    char *text = path ? atto__file_read(path, LARGEST_FILE, &bytes) : NULL;
    if (text) atto__tuner_read(tuner, text, ATTO_FROM_FILE);
    atto__free(text);
    atto__free(path);
    atto__free(folder);
}

/* All but what is ours, from atto__alloc; NULL when out of memory. */
static char *text_of(const atto_device *dev)
{
    const atto__tuner *tuner = dev->tuner;
    size_t lines = 0;
    for (int32_t i = 0; i < ATTO_CHOICE_COUNT; i++) lines += (size_t)tuner->known[i].count;
    const size_t room = 512 + 160 * lines;
    char *text = atto__alloc(room);
    if (!text) return NULL;
    size_t used =
        (size_t)snprintf(text, room, "# attocl %s on %s (%s, driver %s)\n", atto_version(),
                         dev->info.name, dev->info.platform, dev->info.driver);
    for (int32_t i = 0; i < ATTO_CHOICE_COUNT; i++)
        for (int32_t j = 0; j < tuner->known[i].count; j++) {
            const atto__tuned *entry = &tuner->known[i].list[j];
            if (entry->source == ATTO_FROM_BUILTIN) continue;
            used += (size_t)write_line(text + used, room - used, (atto__choice_name)i, entry);
        }
    return text;
}

void atto__tuner_store(atto_device *dev)
{
    if (!dev->tuner->changed) return;
    char *folder = folder_of(dev), *path = path_of(dev, folder);
    read_file(dev, dev->tuner); /* what another process has measured since */
    char *text = path ? text_of(dev) : NULL;
    if (text && !(atto__make_folders(folder) && atto__file_write_atomic(path, text, strlen(text))))
        atto__log(dev, ATTO_LOG_WARNING, "%s cannot be written: what was tuned is lost", path);
    else if (text)
        atto__log(dev, ATTO_LOG_INFO, "tuned for %s: %s", dev->info.name, path);
    dev->tuner->changed = false;
    atto__free(text);
    atto__free(path);
    atto__free(folder);
}

/* ---- open and close ---- */

atto_status atto__tuner_open(atto_device *dev)
{
    dev->tuner = atto__alloc(sizeof *dev->tuner);
    ATTO_REQUIRE(dev->tuner, ATTO_E_MEMORY, "device_open: out of host memory");
    dev->tuner->clock = atto__clock;
    dev->tuner->on_first_use = dev->options.set.tune_on_first_use;
    read_file(dev, dev->tuner);
    atto__tuner_read_builtin(dev->tuner, &dev->info);
    return ATTO_OK;
}

void atto__tuner_close(atto_device *dev)
{
    if (!dev->tuner) return;
    atto__tuner_store(dev);
    for (int32_t i = 0; i < ATTO_CHOICE_COUNT; i++) atto__free(dev->tuner->known[i].list);
    atto__free(dev->tuner);
    dev->tuner = NULL;
}
