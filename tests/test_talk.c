/* SPDX-License-Identifier: MIT */
/* Child processes that are asked line by line: how they end. */
#include <poll.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "atto_test.h"
#include "talk.h"

static talk *start(const char *script)
{
    const char *const argv[] = { "sh", "-c", script, NULL };
    talk *t = talk_start("test_talk", argv, 1);
    assert_non_null(t);
    return t;
}

static void expect_answer(talk *t, const char *want)
{
    const char *reason, *answer = talk_answer(t, &reason);
    assert_non_null(answer);
    assert_string_equal(answer, want);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void talk_answers_each_question(void **state)
{
    (void)state;
    talk *t = start("exec cat");
    for (int i = 0; i < 2; i++) {
        fputs(i ? "two\n" : "one\n", talk_question(t));
        expect_answer(t, i ? "two" : "one");
    }
    assert_false(talk_is_over(t));
    talk_stop(t);
}

/* The first child sees the end of its questions though the second one lives: it says so in a pipe
 * of ours. */
static void talk_stops_the_first_of_two(void **state)
{
    (void)state;
    int ends[2];
    char said[8] = "";
    assert_int_equal(pipe(ends), 0);
    char script[64];
    snprintf(script, sizeof script, "cat; echo end > /dev/fd/%d", ends[1]); /* >& takes one digit */
    talk *first = start(script), *second = start("exec cat");
    talk_stop(first);
    struct pollfd p = { .fd = ends[0], .events = POLLIN };
    assert_int_equal(poll(&p, 1, 0), 1);
    assert_int_equal(read(ends[0], said, sizeof said), 4);
    close(ends[0]), close(ends[1]);
    talk_stop(second);
}

/* Whoever is late is ended, and what it has started too: nobody holds our pipe any more. */
static void talk_ends_who_is_late(void **state)
{
    (void)state;
    int ends[2];
    const char *reason = "";
    assert_int_equal(pipe(ends), 0);
    talk *t = start("sleep 60 & echo ready; wait; echo late");
    close(ends[1]);
    expect_answer(t, "ready");
    fputs("question\n", talk_question(t));
    assert_null(talk_answer(t, &reason));
    assert_string_equal(reason, "no answer in time");
    assert_true(talk_is_over(t));
    struct pollfd p = { .fd = ends[0], .events = POLLIN };
    assert_int_equal(poll(&p, 1, 5000), 1);
    assert_true((p.revents & POLLHUP) != 0);
    close(ends[0]);
    talk_stop(t);
}

/* A child that does not end with its questions does not keep us. */
static void talk_does_not_wait_for_ever(void **state)
{
    (void)state;
    const double begin = seconds();
    talk *t = start("echo ready; exec sleep 60");
    expect_answer(t, "ready");
    talk_stop(t);
    assert_true(seconds() - begin < 30);
}

/* The ends of the pipes then have the numbers of standard streams. */
static void talk_needs_no_standard_streams(void **state)
{
    (void)state;
    int status;
    const pid_t process = fork();
    if (process == 0) {
        const char *const argv[] = { "cat", NULL }, *reason;
        close(STDIN_FILENO), close(STDOUT_FILENO);
        talk *t = talk_start("test_talk", argv, 1);
        if (!t) _exit(1);
        fputs("one\n", talk_question(t));
        const char *answer = talk_answer(t, &reason);
        _exit(answer && strcmp(answer, "one") == 0 ? 0 : 2);
    }
    assert_int_equal(waitpid(process, &status, 0), process);
    assert_int_equal(status, 0);
}

/* Its parent ends without a word; nobody holds our pipe any more. */
static void talk_dies_with_its_parent(void **state)
{
    (void)state;
#if !defined(__linux__)
    skip(); /* nothing tells it */
#endif
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    const pid_t process = fork();
    if (process == 0) {
        const char *const argv[] = { "sh", "-c", "echo ready; exec sleep 60", NULL }, *reason;
        talk *t = talk_start("test_talk", argv, 1);
        _exit(t && talk_answer(t, &reason) ? 0 : 1);
    }
    close(ends[1]);
    assert_int_equal(waitpid(process, &status, 0), process);
    assert_int_equal(status, 0);
    struct pollfd p = { .fd = ends[0], .events = POLLIN };
    assert_int_equal(poll(&p, 1, 5000), 1);
    assert_true((p.revents & POLLHUP) != 0);
    close(ends[0]);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(talk_answers_each_question),     cmocka_unit_test(talk_stops_the_first_of_two),
    cmocka_unit_test(talk_ends_who_is_late),          cmocka_unit_test(talk_does_not_wait_for_ever),
    cmocka_unit_test(talk_needs_no_standard_streams), cmocka_unit_test(talk_dies_with_its_parent),
};
TEST_MAIN_HOST("talk", tests)
