/* SPDX-License-Identifier: MIT */
/* Builds programs, one kernel each, and keeps them in a table. */
#include "program.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "cache.h"
#include "devices.h"
#include "opencl.h"
#include "os.h"
#include "source.h"

/* ---- the table ---- */

/* In steps of eight bytes, because this is part of every launch. */
static uint64_t hash_text(uint64_t hash, const char *text)
{
    for (size_t left = strlen(text); left > 0;) {
        uint64_t word = 0;
        const size_t n = left < sizeof word ? left : sizeof word;
        memcpy(&word, text, n);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u; /* odd, near 2^64 / golden ratio */
        hash ^= hash >> 32;
        text += n;
        left -= n;
    }
    return hash;
}

static atto__kernel **bucket_of(atto_device *dev, uint64_t hash)
{
    return &atto__opencl_of(dev)->programs.buckets[hash % ATTO_PROGRAM_BUCKETS];
}

static atto__kernel *find(atto_device *dev, uint64_t hash, const char *file, const char *kernel,
                          const char *options)
{
    const size_t file_length = strlen(file), kernel_length = strlen(kernel);
    for (atto__kernel *k = *bucket_of(dev, hash); k; k = k->next) {
        const char *key = k->key;
        if (k->hash == hash && strncmp(key, file, file_length) == 0 &&
            strncmp(key + file_length + 1, kernel, kernel_length) == 0 &&
            strcmp(key + file_length + kernel_length + 2, options) == 0)
            return k;
    }
    return NULL;
}

void atto__program_destroy(atto__kernel *k)
{
    if (!k) return;
    if (k->handle) atto__cl.ReleaseKernel(k->handle);
    if (k->program) atto__cl.ReleaseProgram(k->program);
    atto__free(k->key);
    atto__free(k->message);
    atto__free(k);
}

void atto__programs_close(atto_device *dev)
{
    atto__programs *programs = &atto__opencl_of(dev)->programs;
    for (int32_t b = 0; b < ATTO_PROGRAM_BUCKETS; b++) {
        while (programs->buckets[b]) {
            atto__kernel *k = programs->buckets[b];
            programs->buckets[b] = k->next;
            atto__program_destroy(k);
        }
    }
}

/* ---- building ---- */

/* One build: what to compile, and how far it has come. */
typedef struct build {
    atto_device *dev;
    const char *file, *kernel;
    const char *text; /* NULL: that of the file */
    bool use_cache;
    char *options; /* for the compiler: standard, work-group size, knobs */
    char *source;
} build;

/* The compiler's words, or NULL. */
static char *raw_log(const build *b, cl_program program)
{
    const cl_device_id device = atto__opencl_of(b->dev)->device;
    size_t bytes = 0;
    atto__cl.GetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
    char *log = atto__alloc(bytes + 1);
    if (log && bytes > 0)
        atto__cl.GetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, bytes, log, NULL);
    return log;
}

/* The same with files and lines as the sources have them. */
static char *build_log(const build *b, cl_program program)
{
    char *raw = raw_log(b, program);
    char *log = raw ? atto__source_name_lines(b->source, raw) : NULL;
    atto__free(raw);
    return log;
}

static atto_status build_failed(const build *b, cl_program program, cl_int code)
{
    char *log = build_log(b, program);
    atto__log(b->dev, ATTO_LOG_WARNING, "%s: %s does not build with \"%s\":\n%s", b->file,
              b->kernel, b->options, log ? log : "");
    const atto_status status = atto__fail(
        ATTO_E_BUILD, "%s: %s does not build with \"%s\": clBuildProgram: %s (%d)\n%s", b->file,
        b->kernel, b->options, atto__cl_error_name(code), (int)code, log ? log : "");
    atto__free(log);
    return status;
}

/* Errors that building the same text again would meet again. */
static bool is_about_the_text(cl_int code)
{
    switch (code) {
    case CL_BUILD_PROGRAM_FAILURE:
    case CL_COMPILE_PROGRAM_FAILURE:
    case CL_LINK_PROGRAM_FAILURE:
    case CL_INVALID_BUILD_OPTIONS:
    case CL_INVALID_COMPILER_OPTIONS:
    case CL_COMPILER_NOT_AVAILABLE:
        return true;
    default:
        return false;
    }
}

/* Compiles program and takes the kernel out of it. */
static atto_status finish_program(const build *b, cl_program program, cl_kernel *kernel)
{
    const cl_device_id device = atto__opencl_of(b->dev)->device;
    cl_int code = atto__cl.BuildProgram(program, 1, &device, b->options, NULL, NULL);
    if (is_about_the_text(code)) return build_failed(b, program, code);
    if (code != CL_SUCCESS) return atto__cl_fail(b->dev, "clBuildProgram", code);
    *kernel = atto__cl.CreateKernel(program, b->kernel, &code);
    ATTO_REQUIRE(*kernel || code != CL_INVALID_KERNEL_NAME, ATTO_E_BUILD,
                 "%s: there is no kernel %s in it", b->file, b->kernel);
    return *kernel ? ATTO_OK : atto__cl_fail(b->dev, "clCreateKernel", code);
}

/* Warnings, for whoever listens. */
static void log_build(const build *b, cl_program program, double seconds)
{
    char *log = build_log(b, program);
    const bool empty = !log || log[strspn(log, " \n")] == '\0';
    atto__log(b->dev, ATTO_LOG_INFO, "built %s in %.0f ms: %s%s%s", b->kernel, 1e3 * seconds,
              b->options, empty ? "" : "\n", empty ? "" : log);
    atto__free(log);
}

static atto_status build_from_source(const build *b, atto__kernel *out)
{
    const char *text = b->source;
    cl_int code;
    const double start = atto__clock();
    out->program =
        atto__cl.CreateProgramWithSource(atto__opencl_of(b->dev)->context, 1, &text, NULL, &code);
    if (!out->program) return atto__cl_fail(b->dev, "clCreateProgramWithSource", code);
    ATTO_TRY(finish_program(b, out->program, &out->handle));
    b->dev->stats.kernels_built++;
    log_build(b, out->program, atto__clock() - start);
    return ATTO_OK;
}

/* True if the cache has a binary that works. A compiler's complaint about it is nobody's business.
 */
static bool build_from_cache(const build *b, const atto__cache_key *key, atto__kernel *out)
{
    atto__opencl *cl = atto__opencl_of(b->dev);
    size_t bytes;
    char *file;
    const unsigned char *binary = atto__cache_load(b->dev, key, &file, &bytes);
    if (!binary) return false;
    cl_int code, state = CL_SUCCESS;
    out->program = atto__cl.CreateProgramWithBinary(cl->context, 1, &cl->device, &bytes, &binary,
                                                    &state, &code);
    atto__free(file);
    if (out->program && state == CL_SUCCESS &&
        atto__cl.BuildProgram(out->program, 1, &cl->device, b->options, NULL, NULL) == CL_SUCCESS)
        out->handle = atto__cl.CreateKernel(out->program, b->kernel, &code);
    if (!out->handle) {
        if (out->program) atto__cl.ReleaseProgram(out->program);
        out->program = NULL;
        return false;
    }
    b->dev->stats.kernels_loaded++;
    atto__log(b->dev, ATTO_LOG_INFO, "loaded %s from the cache: %s", b->kernel, b->options);
    return true;
}

/* Which of a program's binaries is the device's, in a context that may have others; *count of them.
 * Some drivers list those that were built, others one for each device. */
static size_t binary_index(const build *b, cl_program program, size_t *count)
{
    size_t at = 0, bytes = 0;
    cl_uint devices = 0;
    atto__cl.GetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, 0, NULL, &bytes);
    *count = bytes / sizeof(size_t);
    if (*count == 1) return 0;
    atto__cl.GetProgramInfo(program, CL_PROGRAM_NUM_DEVICES, sizeof devices, &devices, NULL);
    cl_device_id *ids = atto__alloc(devices * sizeof *ids);
    if (!ids || devices != *count ||
        atto__cl.GetProgramInfo(program, CL_PROGRAM_DEVICES, devices * sizeof *ids, ids, NULL) !=
            CL_SUCCESS)
        *count = 0;
    while (at < *count && ids[at] != atto__opencl_of(b->dev)->device) at++;
    atto__free(ids);
    return at;
}

/* The binary that the driver made, into the cache; nothing happens if it does not give it. */
static void store_binary(const build *b, const atto__cache_key *key, cl_program program)
{
    size_t count;
    const size_t at = binary_index(b, program, &count);
    size_t *bytes = atto__alloc(count * sizeof *bytes);
    unsigned char **binaries = atto__alloc(count * sizeof *binaries); /* NULL: not wanted */
    if (at < count && bytes && binaries &&
        atto__cl.GetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, count * sizeof *bytes, bytes,
                                NULL) == CL_SUCCESS &&
        bytes[at] > 0) {
        binaries[at] = atto__alloc(bytes[at]);
        if (binaries[at] &&
            atto__cl.GetProgramInfo(program, CL_PROGRAM_BINARIES, count * sizeof *binaries,
                                    binaries, NULL) == CL_SUCCESS)
            atto__cache_store(b->dev, key, binaries[at], bytes[at]);
        atto__free(binaries[at]);
    }
    atto__free(binaries);
    atto__free(bytes);
}

static atto_status build_kernel(const build *b, atto__kernel *out)
{
    if (!b->use_cache || !atto__cache_wanted(b->dev)) return build_from_source(b, out);
    const atto__cache_key key = atto__cache_key_of(b->dev, b->kernel, b->options, b->source);
    if (build_from_cache(b, &key, out)) return ATTO_OK;
    ATTO_TRY(build_from_source(b, out));
    store_binary(b, &key, out->program);
    return ATTO_OK;
}

static char *compiler_options(const atto_device *dev, const char *knobs)
{
    const atto__opencl *cl = atto__opencl_of(dev);
    char version[64];
    atto__device_text(cl->device, CL_DEVICE_OPENCL_C_VERSION, version, sizeof version);
    const char *standard = atto__cl_std_option(version);
    char vendor[32] = "";
    if (cl->nvidia) snprintf(vendor, sizeof vendor, "-DATTO_NVIDIA=%u ", (unsigned)cl->nvidia);
    return atto__format("%s -DATTO_WG=%u %s%s", standard ? standard : "", (unsigned)cl->group_size,
                        vendor, knobs);
}

static atto_status build_new(build *b, const char *knobs, atto__kernel *out)
{
    b->options = compiler_options(b->dev, knobs);
    atto_status status = b->options ? atto__source_expand(b->dev, b->file, b->text, &b->source)
                                    : atto__fail(ATTO_E_MEMORY, "out of host memory");
    if (status == ATTO_OK) status = build_kernel(b, out);
    atto__free(b->options);
    atto__free(b->source);
    return status;
}

atto_status atto__program_build(atto_device *dev, const char *file, const char *text,
                                const char *kernel, const char *options, bool use_cache,
                                atto__kernel **out)
{
    build b = { .dev = dev, .file = file, .kernel = kernel, .text = text, .use_cache = use_cache };
    atto__kernel *k = atto__alloc(sizeof *k);
    ATTO_REQUIRE(k, ATTO_E_MEMORY, "out of host memory for a kernel");
    k->status = build_new(&b, options, k);
    if (k->status != ATTO_OK) {
        const atto_status status = k->status;
        atto__program_destroy(k);
        return status;
    }
    *out = k;
    return ATTO_OK;
}

/* Enters a kernel into the table, also one that cannot be built; other failures may pass, so they
 * are not kept. */
static atto_status add(atto_device *dev, uint64_t hash, const char *file, const char *kernel,
                       const char *options, atto__kernel **out)
{
    build b = { .dev = dev, .file = file, .kernel = kernel, .use_cache = true };
    atto__kernel *k = atto__alloc(sizeof *k);
    ATTO_REQUIRE(k, ATTO_E_MEMORY, "out of host memory for a kernel");
    k->hash = hash;
    k->key = atto__format("%s %s %s", file, kernel, options);
    k->status = k->key ? build_new(&b, options, k)
                       : atto__fail(ATTO_E_MEMORY, "out of host memory for a kernel");
    if (k->status == ATTO_E_BUILD) k->message = atto__strdup(atto_last_error());
    if (k->status != ATTO_OK && k->status != ATTO_E_BUILD) {
        const atto_status status = k->status;
        atto__program_destroy(k);
        return status;
    }
    atto__kernel **bucket = bucket_of(dev, hash);
    k->next = *bucket;
    *bucket = k;
    *out = k;
    return k->status;
}

atto_status atto__program_kernel(atto_device *dev, const char *file, const char *kernel,
                                 const char *options, cl_kernel *out)
{
    const uint64_t hash = hash_text(hash_text(0, kernel), options);
    atto__kernel *k = find(dev, hash, file, kernel, options);
    if (k && k->status != ATTO_OK)
        return atto__fail(k->status, "%s", k->message ? k->message : "a kernel cannot be built");
    if (!k) ATTO_TRY(add(dev, hash, file, kernel, options, &k));
    *out = k->handle;
    return ATTO_OK;
}
