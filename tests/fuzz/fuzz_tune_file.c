/* SPDX-License-Identifier: MIT */
/* Tuning files: of any text the lines that are ones are read, and what was read survives being
 * written. */
#include "alloc.h"
#include "bytes.h"
#include "device.h"

#include <dirent.h>

static char folder[512], path[1024];
static atto_device *dev; /* no backend: its name, its options and its tuner */

static void remove_folder(void)
{
    unlink(path);
    rmdir(folder);
    free(dev);
}

/* Where the device's file is: the one that storing nothing makes. */
static void find_path(void)
{
    MUST_HOLD(atto__tuner_open(dev) == ATTO_OK, "%s", atto_last_error());
    dev->tuner->changed = true;
    atto__tuner_close(dev);
    DIR *list = opendir(folder);
    MUST_HOLD(list, "%s cannot be read", folder);
    for (const struct dirent *entry; (entry = readdir(list)) != NULL;)
        if (entry->d_name[0] != '.') snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    closedir(list);
    MUST_HOLD(path[0], "no file was written");
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    make_folder(folder, sizeof folder);
    dev = calloc(1, sizeof *dev);
    MUST_HOLD(dev, "no memory");
    dev->options.set.cache_dir = folder;
    snprintf(dev->info.name, sizeof dev->info.name, "a device of which nothing is built in");
    find_path();
    atexit(remove_folder);
    return 0;
}

/* Entries of a choice have different keys, and there is room for them. */
static void check_tuner(const atto__tuner *tuner)
{
    for (int32_t i = 0; i < ATTO_CHOICE_COUNT; i++) {
        MUST_HOLD(tuner->known[i].count <= tuner->known[i].capacity, "%s",
                  atto__choice_text((atto__choice_name)i));
        for (int32_t j = 0; j < tuner->known[i].count; j++) {
            const atto__tuned *one = &tuner->known[i].list[j];
            MUST_HOLD(atto__tuner_find(tuner, (atto__choice_name)i, one->key) == one,
                      "%s has a key twice", atto__choice_text((atto__choice_name)i));
        }
    }
}

static int32_t from_files(const atto__tuner *tuner, int32_t choice)
{
    int32_t n = 0;
    for (int32_t j = 0; j < tuner->known[choice].count; j++)
        n += tuner->known[choice].list[j].source == ATTO_FROM_FILE;
    return n;
}

/* What came from a file is the same in both, number for number. */
static void compare(const atto__tuner *a, const atto__tuner *b)
{
    for (int32_t i = 0; i < ATTO_CHOICE_COUNT; i++) {
        const atto__choice_name name = (atto__choice_name)i;
        MUST_HOLD(from_files(a, i) == from_files(b, i), "%s: %d entries became %d",
                  atto__choice_text(name), (int)from_files(a, i), (int)from_files(b, i));
        for (int32_t j = 0; j < a->known[i].count; j++) {
            const atto__tuned *one = &a->known[i].list[j];
            if (one->source != ATTO_FROM_FILE) continue;
            const atto__tuned *other = atto__tuner_find(b, name, one->key);
            MUST_HOLD(other &&
                          memcmp(other->way.number, one->way.number, sizeof one->way.number) == 0,
                      "%s: an entry is lost or has changed", atto__choice_text(name));
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    put_file(path, data, size);
    MUST_HOLD(atto__tuner_open(dev) == ATTO_OK, "%s", atto_last_error());
    check_tuner(dev->tuner);
    atto__tuner *first = dev->tuner;
    first->changed = true;
    atto__tuner_store(dev);
    MUST_HOLD(atto__tuner_open(dev) == ATTO_OK, "%s", atto_last_error());
    check_tuner(dev->tuner);
    compare(first, dev->tuner);
    atto__tuner_close(dev);
    dev->tuner = first;
    atto__tuner_close(dev);
    return 0;
}
