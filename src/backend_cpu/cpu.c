/* SPDX-License-Identifier: MIT */
/* The CPU backend as a device: description, choice of the instruction level, memory, time. */
#include "backend_cpu/cpu.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

#include "alloc.h"
#include "backend_cpu/cblas.h"
#include "backend_cpu/parallel.h"
#include "os.h"

typedef struct cpu_device {
    int32_t threads;
    bool adapts; /* the number is not the user's: fewer where threads hurt */
    atto__cblas cblas;
} cpu_device;

/* The process that first opened a CPU device. OpenMP's threads are its; in a child made by fork
 * they are missing, and a parallel region would wait for them for ever. */
static atomic_ullong home_process;

static bool is_forked(void)
{
    unsigned long long home = 0;
    const unsigned long long here = atto__process_id();
    if (atomic_compare_exchange_strong(&home_process, &home, here)) return false;
    return home != here;
}

/* ---- levels ---- */

/* X(name, what the processor must have), for those of ATTO_CPU_LEVELS of CMake. */
#ifdef ATTO_CPU_HAS_AVX2
#define AVX2(X) X(avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#else
#define AVX2(X)
#endif
#ifdef ATTO_CPU_HAS_AVX512
#define AVX512(X)                                                                             \
    X(avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&      \
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && \
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("fma"))
#else
#define AVX512(X)
#endif
/* Worst first. */
#define LEVEL_TABLE(X) X(base, true) AVX2(X) AVX512(X)

#define X(name, supported) extern const atto__vtable atto__cpu_vtable_##name;
LEVEL_TABLE(X)
#undef X

typedef struct level {
    const char *name;
    const atto__vtable *vt;
} level;

static int rank_of(const char *level_name)
{
    return strcmp(level_name, "avx512") == 0 ? 2 : strcmp(level_name, "avx2") == 0 ? 1 : 0;
}

/* The best level that processor and build have, at most the one that options name. */
static level choose_level(const atto__options *options)
{
    const char *named = options->set.cpu_level;
    const int most = rank_of(named ? named : "avx512");
    level best = { "base", &atto__cpu_vtable_base };
#define X(level_name, supported)                     \
    if (rank_of(#level_name) <= most && (supported)) \
        best = (level){ #level_name, &atto__cpu_vtable_##level_name };
    LEVEL_TABLE(X)
#undef X
    return best;
}

/* ---- description ---- */

/* The processor's brand string, without the blanks that pad it. */
static void processor_name(char *out, size_t bytes)
{
    snprintf(out, bytes, "CPU");
#if defined(__x86_64__) || defined(__i386__)
    unsigned words[12], highest = __get_cpuid_max(0x80000000u, NULL);
    if (highest < 0x80000004u) return;
    for (unsigned i = 0; i < 3; i++)
        __cpuid(0x80000002u + i, words[4 * i], words[4 * i + 1], words[4 * i + 2],
                words[4 * i + 3]);
    char text[sizeof words + 1] = { 0 };
    memcpy(text, words, sizeof words);
    const char *start = text + strspn(text, " ");
    size_t length = strlen(start);
    while (length > 0 && start[length - 1] == ' ') length--;
    if (length > 0) snprintf(out, bytes, "%.*s", (int)length, start);
#endif
}

/* More threads than four times the processors, but at least so many, are not started: OpenMP ends
 * the process when the system refuses one. */
#define MOST_THREADS 16

static int32_t threads_of(const atto__options *options)
{
#ifdef _OPENMP
    const int32_t wanted =
        options->set.num_threads > 0 ? options->set.num_threads : omp_get_max_threads();
    const int32_t most =
        MOST_THREADS > 4 * omp_get_num_procs() ? MOST_THREADS : 4 * omp_get_num_procs();
    return wanted < most ? wanted : most;
#else
    (void)options;
    return 1;
#endif
}

static atto_status list(const atto__options *options, atto_device_info *infos, int32_t capacity,
                        int32_t *count)
{
    *count = 1;
    if (capacity < 1) return ATTO_OK;
    memset(infos, 0, sizeof *infos);
    processor_name(infos->name, sizeof infos->name);
    snprintf(infos->platform, sizeof infos->platform, "attocl");
    snprintf(infos->version, sizeof infos->version, "%s", choose_level(options).name);
    snprintf(infos->driver, sizeof infos->driver, "%s", atto_version());
    snprintf(infos->backend, sizeof infos->backend, "cpu");
    infos->kind = ATTO_KIND_CPU;
    infos->compute_units = threads_of(options);
    infos->memory_bytes = atto__memory_bytes();
    infos->max_alloc_bytes = infos->memory_bytes;
    return ATTO_OK;
}

static atto_status open_device(atto_device *dev, int32_t local_index)
{
    (void)local_index;
    cpu_device *cpu = atto__alloc(sizeof *cpu);
    ATTO_REQUIRE(cpu, ATTO_E_MEMORY, "device_open: out of host memory");
    cpu->threads = threads_of(&dev->options);
    cpu->adapts = dev->options.set.num_threads == 0;
    is_forked(); /* this process is home, unless another one was */
    const atto_status status = atto__cblas_open(&dev->options, &cpu->cblas);
    if (status != ATTO_OK) {
        atto__free(cpu);
        return status;
    }
    dev->impl = cpu;
    dev->vt = choose_level(&dev->options).vt;
    return ATTO_OK;
}

const atto__backend atto__cpu_backend = { "cpu", list, open_device };

int32_t atto__cpu_most_threads(const atto_device *dev)
{
    const cpu_device *cpu = dev->impl;
    return cpu->threads;
}

int32_t atto__cpu_threads(const atto_device *dev)
{
    const cpu_device *cpu = dev->impl;
    return is_forked() || (cpu->adapts && atto__parallel_hurts()) ? 1 : cpu->threads;
}

atto__sgemm_fn *atto__cpu_sgemm(const atto_device *dev)
{
    const cpu_device *cpu = dev->impl;
    return is_forked() ? NULL : cpu->cblas.sgemm;
}

/* ---- the slots that no level changes ---- */

void atto__cpu_close(atto_device *dev)
{
    cpu_device *cpu = dev->impl;
    atto__cblas_close(&cpu->cblas);
    atto__free(cpu);
}

atto_status atto__cpu_alloc(atto_device *dev, size_t bytes, void **out)
{
    (void)dev;
    *out = atto__alloc_aligned(bytes);
    ATTO_REQUIRE(*out, ATTO_E_MEMORY, "the host has no %zu bytes left", bytes);
    return ATTO_OK;
}

void atto__cpu_release(atto_device *dev, void *memory)
{
    (void)dev;
    atto__free_aligned(memory);
}

atto_status atto__cpu_wrap(atto_device *dev, void *data, size_t bytes, void **out)
{
    (void)dev, (void)bytes;
    *out = data;
    return ATTO_OK;
}

void atto__cpu_unwrap(atto_device *dev, void *memory)
{
    (void)dev, (void)memory;
}

atto_status atto__cpu_write(atto_device *dev, void *memory, size_t offset_bytes, const void *data,
                            size_t bytes)
{
    (void)dev;
    memcpy((char *)memory + offset_bytes, data, bytes);
    return ATTO_OK;
}

atto_status atto__cpu_read(atto_device *dev, void *memory, size_t offset_bytes, void *data,
                           size_t bytes)
{
    (void)dev;
    memcpy(data, (const char *)memory + offset_bytes, bytes);
    return ATTO_OK;
}

atto_status atto__cpu_poll(atto_device *dev, void *memory, uint32_t *word)
{
    (void)dev;
    if (word) *word = *(const uint32_t *)memory;
    return ATTO_OK;
}

atto_status atto__cpu_map(atto_device *dev, void *memory, size_t offset_bytes, size_t bytes,
                          atto_map_mode mode, void **out)
{
    (void)dev, (void)bytes, (void)mode;
    *out = (char *)memory + offset_bytes;
    return ATTO_OK;
}

atto_status atto__cpu_unmap(atto_device *dev, void *memory, void *mapped)
{
    (void)dev, (void)memory, (void)mapped;
    return ATTO_OK;
}

atto_status atto__cpu_sync(atto_device *dev)
{
    (void)dev;
    return ATTO_OK;
}

atto_status atto__cpu_event_record(atto_device *dev, void **out)
{
    (void)dev;
    double *seconds = atto__alloc(sizeof *seconds);
    ATTO_REQUIRE(seconds, ATTO_E_MEMORY, "event_record: out of host memory");
    *seconds = atto__clock();
    *out = seconds;
    return ATTO_OK;
}

atto_status atto__cpu_event_elapsed(atto_device *dev, void *start, void *end, double *out_ms)
{
    (void)dev;
    *out_ms = 1e3 * (*(const double *)end - *(const double *)start);
    return ATTO_OK;
}

void atto__cpu_event_destroy(atto_device *dev, void *event)
{
    (void)dev;
    atto__free(event);
}

bool atto__cpu_supports(atto_device *dev, atto_op op, atto_dtype dtype)
{
    (void)dev, (void)op;
    return dtype == ATTO_F32 || dtype == ATTO_F16 || dtype == ATTO_BF16;
}
