/* SPDX-License-Identifier: MIT */
/* The operating system, as little of it as we need: POSIX in os_posix.c, Windows in os_win32.c. */
#ifndef ATTO_OS_H
#define ATTO_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#include <windows.h>
typedef SRWLOCK atto__mutex;
#define ATTO_MUTEX_INIT SRWLOCK_INIT
#else
#include <pthread.h>
typedef pthread_mutex_t atto__mutex;
#define ATTO_MUTEX_INIT PTHREAD_MUTEX_INITIALIZER
#endif

/* Locks are static, made with ATTO_MUTEX_INIT, and never destroyed. */
void atto__lock(atto__mutex *mutex);
void atto__unlock(atto__mutex *mutex);

/* Shared libraries. open returns NULL without a message; the library stays loaded until close. */
void *atto__library_open(const char *name);
void *atto__library_symbol(void *library, const char *name);
void atto__library_close(void *library);

/* Monotonic seconds. */
double atto__clock(void);

/* Lets another thread have this processor, if one wants it. */
void atto__yield(void);

/* Sleeps as briefly as the system can, some tens of microseconds. */
void atto__nap(void);

/* The processor that the calling thread runs on, or -1; moves the thread to another one if it runs
 * on that and may run elsewhere (Linux; elsewhere nothing happens). Where it may run stays as it
 * was. */
int32_t atto__processor(void);
void atto__leave_processor(int32_t processor);

/* Number of this process; used in names of temporary files and to notice fork. */
uint64_t atto__process_id(void);

/* Total memory of the machine; 0 when the system does not tell. */
uint64_t atto__memory_bytes(void);

/* Asks for large pages behind a block that nothing has touched yet (Linux; elsewhere nothing
 * happens): a matrix then takes some hundred times fewer page faults and address translations. */
void atto__prefer_large_pages(void *block, size_t bytes);

/* Files. read returns a NUL-terminated block of *bytes (without the NUL) from atto__alloc, or NULL;
 * limit guards against reading what cannot be ours. write_atomic writes a private temporary file in
 * the same folder and renames it; a reader sees the old or the new file, never a part. */
char *atto__file_read(const char *path, size_t limit, size_t *bytes);
bool atto__file_write_atomic(const char *path, const void *data, size_t bytes);

/* Creates a folder and its parents, private to the user; true if it is there afterwards. */
bool atto__make_folders(const char *path);

/* Default folder of the kernel cache, from atto__alloc; NULL if the system names no home. */
char *atto__cache_folder(void);

#endif
