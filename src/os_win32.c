/* SPDX-License-Identifier: MIT */
/* os.h on Windows. Paths are in the active code page. */
#include "os.h"

#include <stdlib.h>
#include <string.h>

#include "alloc.h"

void atto__lock(atto__mutex *mutex)
{
    AcquireSRWLockExclusive(mutex);
}

void atto__unlock(atto__mutex *mutex)
{
    ReleaseSRWLockExclusive(mutex);
}

void *atto__library_open(const char *name)
{
    return (void *)LoadLibraryA(name);
}

/* A function pointer and an object pointer have one size here; memcpy converts without a cast. */
void *atto__library_symbol(void *library, const char *name)
{
    const FARPROC function = GetProcAddress((HMODULE)library, name);
    void *pointer;
    memcpy(&pointer, &function, sizeof pointer);
    return pointer;
}

void atto__library_close(void *library)
{
    if (library) FreeLibrary((HMODULE)library);
}

double atto__clock(void)
{
    LARGE_INTEGER count, frequency;
    QueryPerformanceCounter(&count);
    QueryPerformanceFrequency(&frequency);
    return (double)count.QuadPart / (double)frequency.QuadPart;
}

void atto__yield(void)
{
    SwitchToThread();
}

void atto__nap(void)
{
    Sleep(1);
}

int32_t atto__processor(void)
{
    return -1;
}

void atto__leave_processor(int32_t processor)
{
    (void)processor;
}

uint64_t atto__process_id(void)
{
    return GetCurrentProcessId();
}

uint64_t atto__memory_bytes(void)
{
    MEMORYSTATUSEX status = { .dwLength = sizeof status };
    return GlobalMemoryStatusEx(&status) ? status.ullTotalPhys : 0;
}

void atto__prefer_large_pages(void *block, size_t bytes)
{
    (void)block, (void)bytes; /* they are a privilege there */
}

char *atto__file_read(const char *path, size_t limit, size_t *bytes)
{
    const HANDLE file = CreateFileA(path, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL,
                                    OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL);
    if (file == INVALID_HANDLE_VALUE) return NULL;
    LARGE_INTEGER size;
    char *data = NULL;
    DWORD got = 0;
    if (GetFileSizeEx(file, &size) && (uint64_t)size.QuadPart <= limit &&
        (uint64_t)size.QuadPart < MAXDWORD) {
        data = atto__alloc((size_t)size.QuadPart + 1);
        if (data && !ReadFile(file, data, (DWORD)size.QuadPart, &got, NULL)) {
            atto__free(data);
            data = NULL;
        }
    }
    CloseHandle(file);
    *bytes = got;
    return data;
}

static bool write_file(const char *path, const void *data, size_t bytes)
{
    const HANDLE file =
        CreateFileA(path, GENERIC_WRITE, 0, NULL, CREATE_NEW, FILE_ATTRIBUTE_NORMAL, NULL);
    if (file == INVALID_HANDLE_VALUE) return false;
    DWORD done = 0;
    const bool ok = bytes < MAXDWORD && WriteFile(file, data, (DWORD)bytes, &done, NULL) &&
                    done == (DWORD)bytes;
    return CloseHandle(file) && ok;
}

bool atto__file_write_atomic(const char *path, const void *data, size_t bytes)
{
    LARGE_INTEGER now;
    QueryPerformanceCounter(&now);
    char *temporary = atto__format("%s.%lu.%llx", path, (unsigned long)GetCurrentThreadId(),
                                   (unsigned long long)now.QuadPart);
    if (!temporary) return false;
    const bool ok = write_file(temporary, data, bytes) &&
                    MoveFileExA(temporary, path, MOVEFILE_REPLACE_EXISTING);
    if (!ok) DeleteFileA(temporary);
    atto__free(temporary);
    return ok;
}

bool atto__make_folders(const char *path)
{
    char *copy = atto__strdup(path);
    if (!copy) return false;
    for (char *at = copy; *at; at++) {
        if ((*at != '/' && *at != '\\') || at == copy || at[-1] == ':') continue;
        const char separator = *at;
        *at = '\0';
        CreateDirectoryA(copy, NULL);
        *at = separator;
    }
    CreateDirectoryA(copy, NULL);
    const DWORD attributes = GetFileAttributesA(copy);
    atto__free(copy);
    return attributes != INVALID_FILE_ATTRIBUTES && (attributes & FILE_ATTRIBUTE_DIRECTORY);
}

char *atto__cache_folder(void)
{
    const char *local = getenv("LOCALAPPDATA");
    return local && local[0] ? atto__format("%s\\attocl", local) : NULL;
}
