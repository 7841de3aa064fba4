/* SPDX-License-Identifier: MIT */
/* Cache files: a header that says what must follow, then the driver's binary. */
#include "cache.h"

#include <inttypes.h>
#include <string.h>

#include "alloc.h"
#include "devices.h"
#include "opencl.h"
#include "os.h"

#define LARGEST_FILE ((size_t)64 << 20)

/* ---- FNV-1a, 128 bits ---- */

typedef struct hash128 {
    uint64_t high, low;
} hash128;

static const hash128 hash_start = { 0x6c62272e07bb0142u, 0x62b821756295c58du };

/* h times the prime 2^88 + 0x13b. */
static hash128 times_prime(hash128 h)
{
    const uint64_t below = (h.low & 0xffffffffu) * 0x13bu;
    const uint64_t above = (h.low >> 32) * 0x13bu + (below >> 32);
    hash128 r;
    r.low = (above << 32) | (below & 0xffffffffu);
    r.high = h.high * 0x13bu + (above >> 32) + (h.low << 24);
    return r;
}

static hash128 hash_bytes(hash128 h, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) {
        h.low ^= at[i];
        h = times_prime(h);
    }
    return h;
}

/* ---- keys ---- */

typedef struct key_text {
    hash128 hash;
    uint64_t bytes;
} key_text;

/* With its NUL, so that neighbouring texts cannot run into each other. */
static void add_text(key_text *key, const char *text)
{
    key->hash = hash_bytes(key->hash, text, strlen(text) + 1);
    key->bytes += strlen(text) + 1;
}

static void add_platform(key_text *key, const atto_device *dev)
{
    cl_platform_id platform = NULL;
    char text[128];
    atto__cl.GetDeviceInfo(atto__opencl_of(dev)->device, CL_DEVICE_PLATFORM, sizeof platform,
                           &platform, NULL);
    atto__platform_text(platform, CL_PLATFORM_VERSION, text, sizeof text);
    add_text(key, dev->info.platform);
    add_text(key, text);
}

atto__cache_key atto__cache_key_of(const atto_device *dev, const char *kernel, const char *options,
                                   const char *source)
{
    key_text text = { .hash = hash_start };
    add_text(&text, atto_version());
    add_platform(&text, dev);
    add_text(&text, dev->info.name);
    add_text(&text, dev->info.version);
    add_text(&text, dev->info.driver);
    add_text(&text, kernel);
    add_text(&text, options);
    add_text(&text, source);
    const atto__cache_key key = { { text.hash.high, text.hash.low }, text.bytes };
    return key;
}

/* ---- files ---- */

/* All numbers as this machine has them: a cache is not carried to another one. */
typedef struct header {
    char magic[16];
    uint64_t key_hash[2];
    uint64_t key_bytes;
    uint64_t binary_bytes;
    uint64_t checksum[2]; /* of the binary */
} header;

static header header_for(const atto__cache_key *key, const unsigned char *binary, size_t bytes)
{
    header h;
    memset(&h, 0, sizeof h);
    memcpy(h.magic, "attocl kernel 1", 16);
    memcpy(h.key_hash, key->hash, sizeof h.key_hash);
    h.key_bytes = key->bytes;
    h.binary_bytes = bytes;
    const hash128 sum = hash_bytes(hash_start, binary, bytes);
    h.checksum[0] = sum.high;
    h.checksum[1] = sum.low;
    return h;
}

bool atto__cache_wanted(const atto_device *dev)
{
    const bool pocl = strcmp(dev->info.platform, "Portable Computing Language") == 0;
    return !dev->options.set.no_cache && (!pocl || dev->options.set.cache_dir);
}

/* The folder, from atto__alloc; NULL if there is none. */
static char *cache_folder(const atto_device *dev)
{
    const char *chosen = dev->options.set.cache_dir;
    return chosen ? atto__strdup(chosen) : atto__cache_folder();
}

static char *file_path(const char *folder, const atto__cache_key *key)
{
    return folder ? atto__format("%s/%016" PRIx64 "%016" PRIx64 ".bin", folder, key->hash[0],
                                 key->hash[1])
                  : NULL;
}

/* Whether file is exactly what header_for would have put before its binary. */
static bool intact(const char *file, size_t bytes, const atto__cache_key *key)
{
    if (bytes <= sizeof(header)) return false;
    const unsigned char *binary = (const unsigned char *)file + sizeof(header);
    const header expected = header_for(key, binary, bytes - sizeof(header));
    return memcmp(file, &expected, sizeof expected) == 0;
}

const unsigned char *atto__cache_load(const atto_device *dev, const atto__cache_key *key,
                                      char **file, size_t *bytes)
{
    char *folder = cache_folder(dev);
    char *path = file_path(folder, key);
    size_t size = 0;
    *file = path ? atto__file_read(path, LARGEST_FILE, &size) : NULL;
    atto__free(path);
    atto__free(folder);
    if (*file && intact(*file, size, key)) {
        *bytes = size - sizeof(header);
        return (const unsigned char *)*file + sizeof(header);
    }
    atto__free(*file);
    *file = NULL;
    return NULL;
}

static bool write_file(const char *path, const header *h, const unsigned char *binary, size_t bytes)
{
    char *file = atto__alloc(sizeof *h + bytes);
    if (!file) return false;
    memcpy(file, h, sizeof *h);
    memcpy(file + sizeof *h, binary, bytes);
    const bool written = atto__file_write_atomic(path, file, sizeof *h + bytes);
    atto__free(file);
    return written;
}

void atto__cache_store(const atto_device *dev, const atto__cache_key *key,
                       const unsigned char *binary, size_t bytes)
{
    if (bytes > LARGEST_FILE - sizeof(header)) return;
    char *folder = cache_folder(dev);
    char *path = file_path(folder, key);
    const header h = header_for(key, binary, bytes);
    if (path && !(atto__make_folders(folder) && write_file(path, &h, binary, bytes)))
        atto__log(dev, ATTO_LOG_INFO, "no kernel cache: %s cannot be written", path);
    atto__free(path);
    atto__free(folder);
}
