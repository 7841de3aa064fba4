/* SPDX-License-Identifier: MIT */
/* Files of the kernel cache: what was stored comes back as it was, and a file that differs from it
 * in anything is a miss. */
#include "alloc.h"
#include "backend_opencl/cache.h"
#include "bytes.h"

#include <dirent.h>

static char folder[512];
static atto_device *dev; /* nothing but its options is looked at */

static void remove_folder(void)
{
    free(dev);
    rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    make_folder(folder, sizeof folder);
    dev = calloc(1, sizeof *dev);
    MUST_HOLD(dev, "no memory");
    dev->options.set.cache_dir = folder;
    atexit(remove_folder);
    return 0;
}

static void path_of(const atto__cache_key *key, char *path, size_t size)
{
    snprintf(path, size, "%s/%016llx%016llx.bin", folder, (unsigned long long)key->hash[0],
             (unsigned long long)key->hash[1]);
}

static char *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    MUST_HOLD(file, "%s was not written", path);
    MUST_HOLD(fseek(file, 0, SEEK_END) == 0, "%s", path);
    *size = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*size + 256); /* room to grow */
    MUST_HOLD(data && fread(data, 1, *size, file) == *size, "%s cannot be read", path);
    fclose(file);
    return data;
}

/* Changes some bytes, and the length. */
static size_t damage(bytes *b, char *data, size_t size)
{
    for (int64_t edits = take_number(b, 0, 4); edits > 0; edits--) {
        const size_t at = take_word(b, 2) % size;
        data[at] = (char)(data[at] ^ take_byte(b));
    }
    const uint8_t how = take_byte(b);
    if (how % 4 == 1) return take_word(b, 2) % (size + 1);
    if (how % 4 != 2) return size;
    const size_t more = take_byte(b);
    memset(data + size, take_byte(b), more);
    return size + more;
}

/* Whether storing the binary would write this file. */
static bool is_file_of(const atto__cache_key *key, const char *path, const unsigned char *binary,
                       size_t bytes, const char *file, size_t size)
{
    size_t again_size;
    atto__cache_store(dev, key, binary, bytes);
    char *again = read_file(path, &again_size);
    const bool same = again_size == size && memcmp(file, again, size) == 0;
    free(again);
    return same;
}

/* Loads a file that was put at path. Whatever is a hit is as the library would have written it:
 * libFuzzer learns from memcmp what a header should be. */
static void load(const atto__cache_key *key, const char *path, const char *data, size_t size,
                 bool must_hit)
{
    char *file;
    size_t bytes = 0;
    put_file(path, data, size);
    const unsigned char *found = atto__cache_load(dev, key, &file, &bytes);
    MUST_HOLD(!found == !file, "a file without a binary, or the other way round");
    MUST_HOLD(found || !must_hit, "a good file is a miss");
    if (found) {
        MUST_HOLD(bytes > 0 && bytes < size, "%zu bytes of %zu", bytes, size);
        MUST_HOLD(memcmp(data + size - bytes, found, bytes) == 0, "another binary");
        MUST_HOLD(is_file_of(key, path, found, bytes, data, size), "a bad file is a hit");
    }
    atto__free(file);
}

/* Stores the binary, damages the file, and loads it by the key or by another one. */
static void stored(bytes *b, const atto__cache_key *key, const char *path)
{
    atto__cache_key other = *key;
    bytes edits = { .at = b->at, .left = b->left < 32 ? b->left : 32 };
    b->at += edits.left, b->left -= edits.left;
    atto__cache_store(dev, key, b->at, b->left);
    size_t size;
    char *file = read_file(path, &size);
    load(key, path, file, size, b->left > 0);
    size = damage(&edits, file, size);
    if (take_chance(&edits, 4)) other.bytes ^= take_byte(&edits);
    load(&other, path, file, size, false);
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bytes b = { .at = data, .left = size };
    const bool raw = take_flag(&b);
    atto__cache_key key = { .bytes = take_byte(&b) };
    key.hash[0] = take_word(&b, 2), key.hash[1] = take_word(&b, 2);
    char path[640], *file;
    path_of(&key, path, sizeof path);
    if (raw) {
        load(&key, path, (const char *)b.at, b.left, false);
    } else {
        stored(&b, &key, path);
    }
    unlink(path);
    MUST_HOLD(!atto__cache_load(dev, &key, &file, &size) && !file, "no file is a hit");
    return 0;
}
