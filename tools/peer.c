/* SPDX-License-Identifier: MIT */
/* A child process with two pipes: a question is a line of JSON, an answer is a line. */
#include "peer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

#if defined(_WIN32)

peer *peer_start(const peer_options *options, const bench *b, const char **versions)
{
    (void)options, (void)b, (void)versions;
    fputs("attocl bench: --compare is not available on Windows\n", stderr);
    return NULL;
}

double peer_measure(peer *p, int which, const bench_case *c, const bench_result *r,
                    const char **reason)
{
    (void)p, (void)which, (void)c, (void)r;
    *reason = "not available";
    return (double)NAN;
}

void peer_stop(peer *p)
{
    (void)p;
}

bool peer_plot(const peer_options *options, const char *json_path, const char *picture_path)
{
    (void)options, (void)json_path, (void)picture_path;
    fputs("attocl bench: --picture is not available on Windows\n", stderr);
    return false;
}

#else

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINE_BYTES 1024

struct peer {
    pid_t process;
    FILE *questions, *answers;
    const char *device; /* of the questions */
    int threads, samples;
    char versions[LINE_BYTES], answer[LINE_BYTES];
    bool gone;
};

/* ---- the scripts ---- */

/* Beside the sources this was built from, or where they were installed; NULL with a message. */
static const char *find_script(const char *name, char *path, size_t bytes)
{
    static const char *const folders[] = { ATTO_BENCH_FOLDER, ATTO_INSTALLED_FOLDER };
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        const int used = snprintf(path, bytes, "%s/%s", folders[i], name);
        if (used > 0 && (size_t)used < bytes && access(path, R_OK) == 0) return path;
    }
    fprintf(stderr, "attocl bench: %s is neither in %s nor in %s\n", name, folders[0], folders[1]);
    return NULL;
}

static const char *python_of(const peer_options *options)
{
    return options->python ? options->python : "python3";
}

/* ---- lines ---- */

static bool read_line(peer *p, char *line)
{
    if (!fgets(line, LINE_BYTES, p->answers)) {
        p->gone = true;
        return false;
    }
    line[strcspn(line, "\n")] = '\0';
    return true;
}

static void write_shape(FILE *to, const atto_shape *shape)
{
    for (int32_t i = 0; i < shape->rank; i++)
        fprintf(to, "%s%" PRId64, i ? ", " : "", shape->dim[i]);
}

static void ask(peer *p, int which, const bench_case *c, const bench_result *r)
{
    const bench_row *row = c->row;
    fprintf(p->questions,
            "{\"peer\": \"%s\", \"op\": \"%s\", \"pass\": \"%s\", \"dtype\": \"%s\", \"layout\": "
            "\"%s\", \"device\": \"%s\", \"threads\": %d, \"samples\": %d, \"dropout\": %.9g, "
            "\"shape\": [",
            names[which], row->op, row->pass, atto_dtype_name(c->dtype),
            bench_layout_name(row->layout), p->device, p->threads, p->samples,
            (double)row->dropout);
    write_shape(p->questions, &r->shape);
    fputs("]}\n", p->questions);
    fflush(p->questions);
}

double peer_measure(peer *p, int which, const bench_case *c, const bench_result *r,
                    const char **reason)
{
    char *end = p->answer;
    *reason = "the peer has ended";
    if (p->gone) return (double)NAN;
    ask(p, which, c, r);
    if (!read_line(p, p->answer)) return (double)NAN;
    const double ms = strtod(p->answer, &end);
    if (end != p->answer && *end == '\0' && ms > 0.0) return ms;
    *reason = strncmp(p->answer, "- ", 2) == 0 ? p->answer + 2 : p->answer;
    return (double)NAN;
}

/* ---- the process ---- */

/* The peer keeps the memory that it frees, as a program does that runs for long; or glibc would give
 * every result of some megabytes back and page it in again. */
static void keep_memory(void)
{
    setenv("MALLOC_MMAP_MAX_", "0", 0);
    setenv("MALLOC_TRIM_THRESHOLD_", "17179869184", 0);
}

static void become_peer(const peer_options *options, const char *script, int in, int out)
{
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    keep_memory();
    execlp(python_of(options), python_of(options), script, options->attorch ? options->attorch : "",
           (char *)NULL);
    fprintf(stderr, "attocl bench: %s cannot be started\n", python_of(options));
    _exit(127);
}

static void close_pair(const int *pair)
{
    close(pair[0]);
    close(pair[1]);
}

/* Questions go down in[1], answers come up out[0]. */
static bool start_process(peer *p, const peer_options *options, const char *script)
{
    int in[2], out[2];
    if (pipe(in) != 0) return false;
    if (pipe(out) != 0) {
        close_pair(in);
        return false;
    }
    fflush(stdout);
    p->process = fork();
    if (p->process == 0) {
        close(in[1]);
        close(out[0]);
        become_peer(options, script, in[0], out[1]);
    }
    close(in[0]);
    close(out[1]);
    p->questions = fdopen(in[1], "w");
    p->answers = fdopen(out[0], "r");
    return p->process > 0 && p->questions && p->answers;
}

void peer_stop(peer *p)
{
    if (!p) return;
    if (p->questions) fclose(p->questions); /* it ends when there is nothing to read */
    if (p->answers) fclose(p->answers);
    if (p->process > 0) waitpid(p->process, NULL, 0);
    free(p);
}

peer *peer_start(const peer_options *options, const bench *b, const char **versions)
{
    char path[4096];
    const char *script = find_script("peer.py", path, sizeof path);
    peer *p = script ? calloc(1, sizeof *p) : NULL;
    if (!p) return NULL;
    p->device = b->is_cpu ? "cpu" : "cuda";
    p->threads = b->is_cpu ? b->info.compute_units : 1;
    p->samples = b->options.samples;
    signal(SIGPIPE, SIG_IGN); /* a peer that has died is an answer that does not come */
    if (start_process(p, options, script) && read_line(p, p->versions)) {
        *versions = p->versions;
        return p;
    }
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
