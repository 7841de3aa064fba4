/* SPDX-License-Identifier: MIT */
/* bench/peer.py as a child process: a question is a line of JSON, an answer is a line. */
#include "peer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "talk.h"

static const char *const names[PEER_COUNT] = {
#define X(NAME, name) #name,
    PEER_TABLE(X)
#undef X
};

const char *peer_name(int which)
{
    return names[which];
}

bool peer_parse(const char *list, peer_options *options)
{
    while (*list) {
        const size_t length = strcspn(list, ",");
        int which = 0;
        while (which < PEER_COUNT &&
               (strlen(names[which]) != length || strncmp(names[which], list, length) != 0))
            which++;
        if (which == PEER_COUNT) return false;
        options->wanted[which] = true;
        list += length + (list[length] == ',');
    }
    return true;
}

struct peer {
    talk *talk;
    const char *device; /* of the questions */
    int threads, samples, cuda_device;
    char versions[TALK_LINE];
};

#if defined(_WIN32)

peer *peer_start(const peer_options *options, const bench *b)
{
    (void)options, (void)b;
    fputs("attocl bench: --compare is not available on Windows\n", stderr);
    return NULL;
}

bool peer_plot(const peer_options *options, const char *json_path, const char *picture_path)
{
    (void)options, (void)json_path, (void)picture_path;
    fputs("attocl bench: --picture is not available on Windows\n", stderr);
    return false;
}

#else

#include <sys/wait.h>
#include <unistd.h>

/* ---- the scripts ---- */

/* Whether this program is the one in the folder where it was built. */
static bool is_not_installed(void)
{
    char here[TALK_LINE];
    const ssize_t length = readlink("/proc/self/exe", here, sizeof here - 1);
    const size_t folder = strlen(ATTO_BUILD_FOLDER);
    if (length < 0) return false;
    here[length] = 0;
    return strncmp(here, ATTO_BUILD_FOLDER, folder) == 0 && here[folder] == '/';
}

/* Beside the sources that this was built from, or where they were installed; NULL with a message. An
 * installed program runs nothing from elsewhere. */
static const char *find_script(const char *name, char *path, size_t bytes)
{
    const char *folder = is_not_installed() ? ATTO_BENCH_FOLDER : ATTO_INSTALLED_FOLDER;
    const int used = snprintf(path, bytes, "%s/%s", folder, name);
    if (used > 0 && (size_t)used < bytes && access(path, R_OK) == 0) return path;
    fprintf(stderr, "attocl bench: %s is not in %s\n", name, folder);
    return NULL;
}

static const char *python_of(const peer_options *options)
{
    return options->python ? options->python : "python3";
}

/* The peer keeps the memory that it frees, as a program does that runs for long; or glibc would
 * give every result of some megabytes back and page it in again. */
static void keep_memory(void)
{
    setenv("MALLOC_MMAP_MAX_", "0", 0);
    setenv("MALLOC_TRIM_THRESHOLD_", "17179869184", 0);
}

/* Its first line says what it found, and takes as long as loading PyTorch does. */
static bool start_script(peer *p, const peer_options *options, const char *script)
{
    const char *reason;
    const char *const argv[] = { python_of(options), script,
                                 options->attorch ? options->attorch : "", NULL };
    keep_memory();
    p->talk = talk_start("attocl bench", argv, options->timeout_s);
    const char *line = p->talk ? talk_answer(p->talk, &reason) : NULL;
    if (line) snprintf(p->versions, sizeof p->versions, "%s", line);
    return line != NULL;
}

peer *peer_start(const peer_options *options, const bench *b)
{
    char path[4096];
    const char *script = find_script("peer.py", path, sizeof path);
    peer *p = script ? calloc(1, sizeof *p) : NULL;
    if (!p) return NULL;
    p->device = b->is_cpu ? "cpu" : "cuda";
    p->cuda_device = options->cuda_device;
    p->threads = b->is_cpu ? b->info.compute_units : 1;
    p->samples = b->options.samples;
    if (start_script(p, options, script)) return p;
    fprintf(stderr, "attocl bench: --compare: %s %s did not start; is PyTorch installed there?\n",
            python_of(options), script);
    peer_stop(p);
    return NULL;
}

bool peer_plot(const peer_options *options, const char *json_path, const char *picture_path)
{
    char path[4096];
    int state = -1;
    const char *script = find_script("plot.py", path, sizeof path);
    if (!script) return false;
    fflush(stdout);
    const pid_t process = fork();
    if (process == 0) {
        execlp(python_of(options), python_of(options), script, json_path, picture_path,
               (char *)NULL);
        fprintf(stderr, "attocl bench: %s cannot be started\n", python_of(options));
        _exit(127);
    }
    return process > 0 && waitpid(process, &state, 0) == process && WIFEXITED(state) &&
           WEXITSTATUS(state) == 0;
}

#endif

/* ---- questions ---- */

static void write_shape(FILE *to, const atto_shape *shape)
{
    for (int32_t i = 0; i < shape->rank; i++)
        fprintf(to, "%s%" PRId64, i ? ", " : "", shape->dim[i]);
}

static void write_question(FILE *to, const peer *p, int which, const bench_case *c,
                           const bench_result *r)
{
    const bench_row *row = c->row;
    fprintf(to,
            "{\"peer\": \"%s\", \"op\": \"%s\", \"pass\": \"%s\", \"dtype\": \"%s\", \"layout\": "
            "\"%s\", \"device\": \"%s\", \"index\": %d, \"threads\": %d, \"samples\": %d, "
            "\"dropout\": %.9g, \"shape\": [",
            names[which], row->op, row->pass, atto_dtype_name(c->dtype),
            bench_layout_name(row->layout), p->device, p->cuda_device, p->threads, p->samples,
            (double)row->dropout);
    write_shape(to, &r->shape);
    fputs("]}\n", to);
}

double peer_measure(peer *p, int which, const bench_case *c, const bench_result *r,
                    const char **reason)
{
    if (!talk_is_over(p->talk)) write_question(talk_question(p->talk), p, which, c, r);
    const char *answer = talk_answer(p->talk, reason);
    if (!answer) return (double)NAN;
    char *end;
    const double ms = strtod(answer, &end);
    if (end != answer && *end == '\0' && ms > 0.0) return ms;
    *reason = strncmp(answer, "- ", 2) == 0 ? answer + 2 : answer;
    return (double)NAN;
}

const char *peer_versions(const peer *p)
{
    return p->versions;
}

bool peer_is_lost(const peer *p)
{
    return talk_is_over(p->talk);
}

void peer_stop(peer *p)
{
    if (!p) return;
    talk_stop(p->talk);
    free(p);
}
