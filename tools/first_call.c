/* SPDX-License-Identifier: MIT */
/* attocl bench --first-call: what a user waits for before the first result.
 *
 * Each figure needs a process in which nothing is warm, so this starts itself: once with an empty
 * cache folder (cold) and once more with the folder that the first run filled (warm). The drivers'
 * own caches are moved into that folder too, or nothing would ever be cold. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "tool.h"

#define ELEMENTS (1 << 20)

typedef struct first_call {
    double open_ms;
    double first_ms;  /* open returned -> first result is there; builds or loads the kernel */
    double second_ms; /* the same again */
    unsigned long long built, loaded; /* kernels */
} first_call;

static atto_status gelu_of_normal(atto_device *dev)
{
    static float data[ELEMENTS];
    atto_tensor t;
    struct atto_act_args a = { .x = &t, .y = &t, .act = atto_gelu() };
    atto_status status = atto_tensor_alloc(dev, ATTO_F32, atto_shape1(ELEMENTS), &t);
    if (status != ATTO_OK) return status;
    bench_normal(data, 1 << 12, 1);
    status = atto_tensor_write(&t, data);
    if (status == ATTO_OK) status = atto_act_forward(dev, &a);
    if (status == ATTO_OK) status = atto_device_sync(dev);
    atto_tensor_free(&t);
    return status;
}

static double ms_since(double start)
{
    return 1e3 * (bench_clock() - start);
}

static atto_status time_calls(atto_device *dev, first_call *out)
{
    atto_device_stats stats = { 0 };
    double start = bench_clock();
    atto_status status = gelu_of_normal(dev);
    out->first_ms = ms_since(start);
    start = bench_clock();
    if (status == ATTO_OK) status = gelu_of_normal(dev);
    out->second_ms = ms_since(start);
    if (status == ATTO_OK) status = atto_device_stats_get(dev, &stats);
    out->built = stats.kernels_built;
    out->loaded = stats.kernels_loaded;
    return status;
}

int tool_first_call_child(const char *device)
{
    first_call r;
    atto_device *dev;
    const double start = bench_clock();
    atto_status status = atto_device_open(device, NULL, &dev);
    if (status != ATTO_OK) return tool_fail("opening the device", status);
    r.open_ms = ms_since(start);
    status = time_calls(dev, &r);
    atto_device_close(dev);
    if (status != ATTO_OK) return tool_fail("first call", status);
    printf("%.6f %.6f %.6f %llu %llu\n", r.open_ms, r.first_ms, r.second_ms, r.built, r.loaded);
    return TOOL_OK;
}

#if defined(_WIN32)

int tool_first_call(const char *device, const char *json_path)
{
    (void)device;
    (void)json_path;
    return tool_misuse("bench", "--first-call is not available on Windows");
}

#else

#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATH_BYTES 4096

/* Removes a folder of our own making and what is in it; does not follow links. */
static void remove_tree(const char *path)
{
    struct stat s;
    DIR *dir = lstat(path, &s) == 0 && S_ISDIR(s.st_mode) ? opendir(path) : NULL;
    const struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char inner[PATH_BYTES];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name) < (int)sizeof inner)
            remove_tree(inner);
    }
    if (dir != NULL) closedir(dir);
    remove(path);
}

/* In the child: caches into folder, output into the pipe, this program again. */
static void become_child(const char *device, const char *folder, int out)
{
    setenv("ATTOCL_CACHE_DIR", folder, 1);
    setenv("CUDA_CACHE_PATH", folder, 1);
    setenv("POCL_CACHE_DIR", folder, 1);
    dup2(out, STDOUT_FILENO);
    execl("/proc/self/exe", "attocl", "bench", "--first-call-child", "--device", device,
          (char *)NULL);
    _exit(127);
}

/* True when the child ended well and said five numbers. */
static bool run_child(const char *device, const char *folder, first_call *out)
{
    int pipe_ends[2];
    if (pipe(pipe_ends) != 0) return false;
    const pid_t child = fork();
    if (child == 0) become_child(device, folder, pipe_ends[1]);
    close(pipe_ends[1]);
    FILE *in = child > 0 ? fdopen(pipe_ends[0], "r") : NULL;
    bool ok = in != NULL && fscanf(in, "%lf %lf %lf %llu %llu", &out->open_ms, &out->first_ms,
                                   &out->second_ms, &out->built, &out->loaded) == 5;
    if (in != NULL)
        fclose(in);
    else
        close(pipe_ends[0]);
    int status;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0 && ok;
}

static void report(json *j, const char *name, const first_call *r)
{
    printf("%-5s %10.1f %14.1f %15.2f %6llu %7llu\n", name, r->open_ms, r->first_ms, r->second_ms,
           r->built, r->loaded);
    if (j->file == NULL) return;
    json_open_object(j, name);
    json_number(j, "open_ms", r->open_ms);
    json_number(j, "first_call_ms", r->first_ms);
    json_number(j, "second_call_ms", r->second_ms);
    json_integer(j, "kernels_built", (int64_t)r->built);
    json_integer(j, "kernels_loaded", (int64_t)r->loaded);
    json_close_object(j);
}

static bool run_both(json *j, const char *device, const char *folder)
{
    static const char *const names[] = { "cold", "warm" };
    printf("%-5s %10s %14s %15s %6s %7s\n", "cache", "open ms", "first call ms", "second call ms",
           "built", "loaded");
    for (int i = 0; i < 2; i++) {
        first_call r;
        if (!run_child(device, folder, &r)) {
            fprintf(stderr, "attocl bench --first-call: the %s run failed\n", names[i]);
            return false;
        }
        report(j, names[i], &r);
    }
    return true;
}

int tool_first_call(const char *device, const char *json_path)
{
    const char *tmp = getenv("TMPDIR");
    char folder[PATH_BYTES];
    json j = { .file = NULL };
    snprintf(folder, sizeof folder, "%s/attocl-first-call-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (json_path != NULL && !json_open(&j, json_path)) return TOOL_FAILED;
    if (mkdtemp(folder) == NULL) {
        fprintf(stderr, "attocl: cannot make a folder in %s\n", tmp && *tmp ? tmp : "/tmp");
        return TOOL_FAILED;
    }
    if (j.file != NULL) json_open_object(&j, NULL);
    bool ok = run_both(&j, device != NULL ? device : "auto", folder);
    if (j.file != NULL) json_close_object(&j);
    if (json_path != NULL) ok = json_finish(&j, json_path) && ok;
    remove_tree(folder);
    return ok ? TOOL_OK : TOOL_FAILED;
}

#endif
