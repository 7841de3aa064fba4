/* SPDX-License-Identifier: MIT */
/* attocl info: the library, every device with its limits or its problem, the kernel cache. */
#include <dirent.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tool.h"

static const char usage[] =
    "Usage: attocl info [OPTION]...\n"
    "Lists every device with its limits, or with the reason why it cannot be used.\n\n"
    "  -j, --json     JSON on standard output\n"
    "  -h, --help     this text\n";

#define PATH_BYTES 1024

typedef struct cache_use {
    char folder[PATH_BYTES]; /* empty when the system names no home */
    uint64_t files;
    uint64_t bytes;
} cache_use;

/* The rule of device.h, cache_dir: variable first, then the platform's folder for caches. */
static void cache_folder(char *out)
{
#if defined(_WIN32)
    const char *below = getenv("LOCALAPPDATA");
    const char *home = NULL;
#else
    const char *below = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    if (below != NULL && below[0] != '/') below = NULL;
#endif
    const char *given = getenv("ATTOCL_CACHE_DIR");
    out[0] = '\0';
    if (given != NULL && *given)
        snprintf(out, PATH_BYTES, "%s", given);
    else if (below != NULL && *below)
        snprintf(out, PATH_BYTES, "%s/attocl", below);
    else if (home != NULL && *home)
        snprintf(out, PATH_BYTES, "%s/.cache/attocl", home);
}

/* Adds up the files of a folder; one level of folders below it counts too. */
static void count_folder(const char *folder, int depth, cache_use *use)
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    if (dir == NULL) return;
    while ((entry = readdir(dir)) != NULL) {
        char path[PATH_BYTES + 256];
        struct stat s;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        const int length = snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (length >= (int)sizeof path || stat(path, &s) != 0) continue;
        if (S_ISDIR(s.st_mode) && depth == 0) count_folder(path, 1, use);
        if (!S_ISREG(s.st_mode)) continue;
        use->files++;
        use->bytes += (uint64_t)s.st_size;
    }
    closedir(dir);
}

static cache_use measure_cache(void)
{
    cache_use use = { .files = 0 };
    cache_folder(use.folder);
    if (use.folder[0] != '\0') count_folder(use.folder, 0, &use);
    return use;
}

static const char *kind_name(atto_device_kind kind)
{
    switch (kind) {
    case ATTO_KIND_CPU:
        return "CPU";
    case ATTO_KIND_OPENCL_CPU:
        return "CPU through OpenCL";
    case ATTO_KIND_ACCELERATOR:
        return "accelerator";
    case ATTO_KIND_INTEGRATED_GPU:
        return "integrated GPU";
    case ATTO_KIND_DISCRETE_GPU:
        return "discrete GPU";
    }
    return "?";
}

/* What the CPU could do if the environment did not hold it back; empty when not found. */
static void best_cpu_level(char *out, size_t bytes)
{
    const atto_device_options options = { .ignore_environment = true, .cpu_level = NULL };
    atto_device *dev;
    atto_device_info info;
    out[0] = '\0';
    if (atto_device_open("cpu", &options, &dev) != ATTO_OK) return;
    if (atto_device_describe(dev, &info) == ATTO_OK) snprintf(out, bytes, "%s", info.version);
    atto_device_close(dev);
}

static void print_size(const char *label, uint64_t bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024 && unit < 4) {
        value /= 1024;
        unit++;
    }
    printf("    %-14s %.4g %s\n", label, value, units[unit]);
}

static void print_device(const atto_device_info *d, const char *cpu_level)
{
    printf("\n[%d] %s\n", (int)d->index, d->name);
    printf("    %-14s %s\n", "kind", kind_name(d->kind));
    printf("    %-14s %s, %s\n", "backend", d->backend, d->platform);
    if (d->vendor[0]) printf("    %-14s %s\n", "vendor", d->vendor);
    if (d->kind == ATTO_KIND_CPU)
        printf("    %-14s %s in use, %s available\n", "instructions", d->version, cpu_level);
    else
        printf("    %-14s %s, driver %s\n", "version", d->version, d->driver);
    printf("    %-14s %d\n", d->kind == ATTO_KIND_CPU ? "threads" : "compute units",
           (int)d->compute_units);
    print_size("memory", d->memory_bytes);
    print_size("largest buffer", d->max_alloc_bytes);
    if (d->local_bytes > 0) print_size("local memory", d->local_bytes);
    if (d->max_work_group > 0) printf("    %-14s %d\n", "work-group", (int)d->max_work_group);
    if (d->problem[0]) printf("    %-14s %s\n", "PROBLEM", d->problem);
}

static void print_text(const atto_device_info *infos, int32_t n, const char *cpu_level,
                       const cache_use *cache)
{
    printf("attocl %s, ABI %d, SOVERSION %s\n", atto_version(), ATTO_ABI, ATTO_SOVERSION);
    printf("kernel cache: %s, %" PRIu64 " files, %" PRIu64 " bytes\n",
           cache->folder[0] ? cache->folder : "none", cache->files, cache->bytes);
    for (int32_t i = 0; i < n; i++) print_device(&infos[i], cpu_level);
}

static void json_device(json *j, const atto_device_info *d)
{
    json_open_object(j, NULL);
    json_integer(j, "index", d->index);
    json_string(j, "name", d->name);
    json_string(j, "kind", kind_name(d->kind));
    json_string(j, "vendor", d->vendor);
    json_string(j, "backend", d->backend);
    json_string(j, "platform", d->platform);
    json_string(j, "version", d->version);
    json_string(j, "driver", d->driver);
    json_integer(j, "compute_units", d->compute_units);
    json_integer(j, "max_work_group", d->max_work_group);
    json_integer(j, "memory_bytes", (int64_t)d->memory_bytes);
    json_integer(j, "max_alloc_bytes", (int64_t)d->max_alloc_bytes);
    json_integer(j, "local_bytes", (int64_t)d->local_bytes);
    json_string(j, "problem", d->problem[0] ? d->problem : NULL);
    json_close_object(j);
}

static bool print_json(const atto_device_info *infos, int32_t n, const char *cpu_level,
                       const cache_use *cache)
{
    json j;
    if (!json_open(&j, "-")) return false;
    json_open_object(&j, NULL);
    json_string(&j, "attocl", atto_version());
    json_integer(&j, "abi", ATTO_ABI);
    json_string(&j, "soversion", ATTO_SOVERSION);
    json_string(&j, "cpu_level_available", cpu_level);
    json_open_object(&j, "cache");
    json_string(&j, "folder", cache->folder[0] ? cache->folder : NULL);
    json_integer(&j, "files", (int64_t)cache->files);
    json_integer(&j, "bytes", (int64_t)cache->bytes);
    json_close_object(&j);
    json_open_array(&j, "devices");
    for (int32_t i = 0; i < n; i++) json_device(&j, &infos[i]);
    json_close_array(&j);
    json_close_object(&j);
    return json_finish(&j, "-");
}

static int show(bool as_json)
{
    const cache_use cache = measure_cache();
    char cpu_level[sizeof((atto_device_info *)0)->version];
    int32_t n;
    atto_device_info *infos = tool_list(NULL, &n);
    if (infos == NULL) return TOOL_FAILED;
    best_cpu_level(cpu_level, sizeof cpu_level);
    bool ok = true;
    if (as_json)
        ok = print_json(infos, n, cpu_level, &cache);
    else
        print_text(infos, n, cpu_level, &cache);
    free(infos);
    return ok ? TOOL_OK : TOOL_FAILED;
}

int tool_info(int argc, char **argv)
{
    static const struct option options[] = { { "json", no_argument, NULL, 'j' },
                                             { "help", no_argument, NULL, 'h' },
                                             { NULL, 0, NULL, 0 } };
    bool as_json = false;
    int option;
    while ((option = getopt_long(argc, argv, "jh", options, NULL)) != -1) {
        if (option == 'j')
            as_json = true;
        else if (option == 'h')
            return fputs(usage, stdout), TOOL_OK;
        else
            return tool_bad_option("info");
    }
    if (optind < argc) return tool_misuse("info", "unexpected argument '%s'", argv[optind]);
    return show(as_json);
}
