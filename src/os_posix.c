/* SPDX-License-Identifier: MIT */
/* os.h on POSIX systems. */
#define _GNU_SOURCE     /* sched_getcpu, cpu_set_t */
#define _DEFAULT_SOURCE /* _SC_PHYS_PAGES, beyond POSIX */
#define _POSIX_C_SOURCE 200809L
#include "os.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "alloc.h"

void atto__lock(atto__mutex *mutex)
{
    pthread_mutex_lock(mutex);
}

void atto__unlock(atto__mutex *mutex)
{
    pthread_mutex_unlock(mutex);
}

void *atto__library_open(const char *name)
{
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

void *atto__library_symbol(void *library, const char *name)
{
    return dlsym(library, name);
}

void atto__library_close(void *library)
{
    if (library) dlclose(library);
}

double atto__clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void atto__yield(void)
{
    sched_yield();
}

void atto__nap(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = 1 }, NULL);
}

#if defined(__linux__) && defined(CPU_SET)

int32_t atto__processor(void)
{
    return sched_getcpu();
}

/* Forbidding the processor moves the thread at once, allowing it again does not move it back. */
void atto__leave_processor(int32_t processor)
{
    cpu_set_t allowed, others;
    if (processor < 0 || sched_getcpu() != processor) return;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    others = allowed;
    CPU_CLR((size_t)processor, &others);
    if (CPU_COUNT(&others) == 0) return;
    if (sched_setaffinity(0, sizeof others, &others) == 0)
        sched_setaffinity(0, sizeof allowed, &allowed);
}

#else

int32_t atto__processor(void)
{
    return -1;
}

void atto__leave_processor(int32_t processor)
{
    (void)processor;
}

#endif

uint64_t atto__process_id(void)
{
    return (uint64_t)getpid();
}

uint64_t atto__memory_bytes(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && bytes > 0 ? (uint64_t)pages * (uint64_t)bytes : 0;
}

#define LARGE_PAGE_BYTES ((uintptr_t)2 << 20)

/* Advice: a kernel that does not take it leaves the pages small. */
void atto__prefer_large_pages(void *block, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    const uintptr_t begin =
        ((uintptr_t)block + LARGE_PAGE_BYTES - 1) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
    const uintptr_t end = ((uintptr_t)block + bytes) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
    if (begin < end) (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#else
    (void)block, (void)bytes;
#endif
}

/* Reads until the end; the size that stat told is only a hint, the file may be changing. */
static char *read_all(int file, size_t size, size_t *bytes)
{
    char *data = atto__alloc(size + 1);
    size_t have = 0;
    while (data && have < size) {
        const ssize_t got = read(file, data + have, size - have);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        have += (size_t)got;
    }
    *bytes = have;
    return data;
}

char *atto__file_read(const char *path, size_t limit, size_t *bytes)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return NULL;
    struct stat info;
    char *data = NULL;
    if (fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size >= 0 &&
        (uint64_t)info.st_size <= limit)
        data = read_all(file, (size_t)info.st_size, bytes);
    close(file);
    return data;
}

static bool write_all(int file, const char *data, size_t bytes)
{
    while (bytes > 0) {
        const ssize_t done = write(file, data, bytes);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        data += done;
        bytes -= (size_t)done;
    }
    return true;
}

bool atto__file_write_atomic(const char *path, const void *data, size_t bytes)
{
    char *temporary = atto__format("%s.XXXXXX", path);
    if (!temporary) return false;
    const int file = mkstemp(temporary);
    bool ok = file >= 0;
    if (ok) {
        ok = write_all(file, data, bytes);
        ok = close(file) == 0 && ok;
        ok = ok && rename(temporary, path) == 0;
        if (!ok) unlink(temporary);
    }
    atto__free(temporary);
    return ok;
}

bool atto__make_folders(const char *path)
{
    char *copy = atto__strdup(path);
    if (!copy) return false;
    for (char *at = copy + (*copy == '/'); *at; at++) {
        if (*at != '/') continue;
        *at = '\0';
        mkdir(copy, 0700);
        *at = '/';
    }
    mkdir(copy, 0700);
    struct stat info;
    const bool ok = stat(copy, &info) == 0 && S_ISDIR(info.st_mode);
    atto__free(copy);
    return ok;
}

char *atto__cache_folder(void)
{
    const char *cache = getenv("XDG_CACHE_HOME");
    if (cache && cache[0] == '/') return atto__format("%s/attocl", cache);
    const char *home = getenv("HOME");
    if (home && home[0] == '/') return atto__format("%s/.cache/attocl", home);
    return NULL;
}
