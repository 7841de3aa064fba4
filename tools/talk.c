/* SPDX-License-Identifier: MIT */
/* Two pipes to a child process, and a limit to how long an answer may take. */
#include "talk.h"

#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)

talk *talk_start(const char *who, const char *const *argv, int timeout_s)
{
    (void)timeout_s;
    fprintf(stderr, "%s: %s cannot be asked on Windows\n", who, argv[0]);
    return NULL;
}

FILE *talk_question(talk *t)
{
    (void)t;
    return stderr;
}

const char *talk_answer(talk *t, const char **reason)
{
    (void)t;
    *reason = "not available";
    return NULL;
}

bool talk_is_over(const talk *t)
{
    (void)t;
    return true;
}

void talk_stop(talk *t)
{
    (void)t;
}

#else

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct talk {
    pid_t process;
    FILE *questions;
    int answers, timeout_s;
    const char *over; /* why there are no answers any more; NULL while there are */
    struct sigaction before;
    char line[TALK_LINE];
};

/* Seconds that a child has to end once it has nothing more to read. */
#define FAREWELL_S 3

/* A terminal's Ctrl-C does not reach a group of its own. Where there is no such signal, who reads
 * questions sees their end. */
static void die_with(pid_t parent)
{
#if defined(__linux__)
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    if (getppid() != parent) _exit(127); /* it was faster */
}

static void become_child(const char *who, const char *const *argv, int in, int out)
{
    setpgid(0, 0); /* with what it starts itself it can be ended */
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    execvp(argv[0], (char *const *)argv);
    fprintf(stderr, "%s: %s cannot be started\n", who, argv[0]);
    _exit(127);
}

static void close_pair(const int *pair)
{
    close(pair[0]);
    close(pair[1]);
}

/* A pipe that no other child inherits: one that held its end would keep this one from ending. Its
 * ends are behind the standard streams, which become_child replaces: ours may be closed. */
static bool open_pair(int *pair)
{
    int given[2];
    if (pipe(given) != 0) return false;
    for (int i = 0; i < 2; i++) pair[i] = fcntl(given[i], F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close_pair(given);
    if (pair[0] >= 0 && pair[1] >= 0) return true;
    close_pair(pair);
    return false;
}

/* Questions go down in[1], answers come up out[0]. */
static bool start_process(talk *t, const char *who, const char *const *argv)
{
    int in[2], out[2];
    if (!open_pair(in)) return false;
    if (!open_pair(out)) {
        close_pair(in);
        return false;
    }
    fflush(stdout);
    const pid_t parent = getpid();
    t->process = fork();
    if (t->process == 0) {
        die_with(parent);
        sigaction(SIGPIPE, &t->before, NULL);
        become_child(who, argv, in[0], out[1]);
    }
    if (t->process > 0) setpgid(t->process, t->process); /* whoever comes first */
    close(in[0]);
    close(out[1]);
    t->questions = fdopen(in[1], "w");
    if (!t->questions) close(in[1]);
    t->answers = out[0];
    return t->process > 0 && t->questions;
}

/* A child that has died is an answer that does not come, not the end of this program. */
static void ignore_broken_pipes(talk *t)
{
    struct sigaction ignore;
    memset(&ignore, 0, sizeof ignore);
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, &t->before);
}

talk *talk_start(const char *who, const char *const *argv, int timeout_s)
{
    talk *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->timeout_s = timeout_s;
    t->answers = -1;
    ignore_broken_pipes(t);
    if (start_process(t, who, argv)) return t;
    fprintf(stderr, "%s: %s: no process\n", who, argv[0]);
    talk_stop(t);
    return NULL;
}

FILE *talk_question(talk *t)
{
    return t->questions;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Whether there is something to read before the time is up. */
static bool wait_until(int file, double end)
{
    struct pollfd p = { .fd = file, .events = POLLIN };
    for (;;) {
        const double left = end - seconds();
        if (left <= 0.0) return false;
        if (poll(&p, 1, left > 1.0 ? 1000 : (int)(1e3 * left) + 1) > 0) return true;
    }
}

static void end_process(const talk *t)
{
    if (t->process > 0) kill(-t->process, SIGKILL);
}

/* A line of at most TALK_LINE - 1 characters; NULL, or why there is none. */
static const char *read_line(talk *t)
{
    const double end = seconds() + t->timeout_s;
    size_t used = 0;
    while (used < sizeof t->line - 1) {
        if (!wait_until(t->answers, end)) return "no answer in time";
        const ssize_t got = read(t->answers, t->line + used, sizeof t->line - 1 - used);
        if (got <= 0) return "the peer has ended";
        used += (size_t)got;
        if (t->line[used - 1] != '\n') continue;
        t->line[used - 1] = '\0';
        return NULL;
    }
    return "an answer without end";
}

const char *talk_answer(talk *t, const char **reason)
{
    if (!t->over) {
        fflush(t->questions);
        t->over = read_line(t);
        if (t->over) end_process(t);
    }
    *reason = t->over;
    return t->over ? NULL : t->line;
}

bool talk_is_over(const talk *t)
{
    return t->over != NULL;
}

/* Until it has ended of its own, or has been ended. */
static void wait_for_process(const talk *t)
{
    const struct timespec nap = { 0, 10000000 };
    const double end = seconds() + FAREWELL_S;
    while (waitpid(t->process, NULL, WNOHANG) == 0) {
        if (seconds() > end) end_process(t);
        nanosleep(&nap, NULL);
    }
}

void talk_stop(talk *t)
{
    if (!t) return;
    if (t->questions) fclose(t->questions);
    if (t->answers >= 0) close(t->answers);
    if (t->process > 0) wait_for_process(t);
    sigaction(SIGPIPE, &t->before, NULL);
    free(t);
}

#endif
