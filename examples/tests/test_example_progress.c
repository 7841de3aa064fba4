/* SPDX-License-Identifier: MIT */
/* The progress line: its text for every width, on a pipe, and on a pseudo-terminal. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "atto_test.h"
#include "progress.h"

static double now; /* seconds; the tests let it pass */

static double fake_clock(void)
{
    return now;
}

/* ---- the text ---- */

static const progress_view half = { 3, 10, 5000, 10000, 0.12345, 2.0, "images" };

static void progress_format_leaves_out_what_does_not_fit(void **state)
{
    (void)state;
    static const struct {
        int width;
        const char *wanted;
    } rows[] = {
        { 100, "epoch 3/10 [####################....................]  50%  loss 0.1235  "
               "2500 images/s  0:30 left" },
        { 80, "epoch 3/10 [###########...........]  50%  loss 0.1235  2500 images/s  "
              "0:30 left" },
        { 50, "epoch 3/10  50%  loss 0.1235  2500 images/s" },
        { 34, "epoch 3/10  50%  loss 0.1235" },
        { 16, "epoch 3/10  50%" },
        { 15, "epoch 3/10 " },
        { 5, "epoc" },
        { 1, "" },
        { 0, "" },
    };
    char line[256];
    for (int i = 0; i < COUNT_OF(rows); i++)
        assert_string_equal(progress_format(&half, rows[i].width, line, sizeof line),
                            rows[i].wanted);
}

static void progress_format_is_shorter_than_any_width(void **state)
{
    (void)state;
    static const progress_view views[] = {
        { 1, 1, 0, 0, 0, 0, "images" },
        { 1, 10, 0, 100, (double)NAN, 0, "images" },
        { 10000, 10000, 1, 1, 1, 1, "images" },
        { 1, 10000, 1, 1000000000, -1e-30, 1e9, "images" },
        { 1, 1, 200, 100, 1e300, 1, "images" },
        { INT64_MAX, INT64_MAX, INT64_MAX, 1, (double)INFINITY, 1e-9, "images" },
    };
    char line[96];
    for (int i = 0; i < COUNT_OF(views); i++)
        for (int width = -1; width < 300; width++) {
            progress_format(&views[i], width, line, sizeof line);
            assert_true(strlen(line) < sizeof line);
            assert_true(width < 1 || (int)strlen(line) < width);
            assert_null(strchr(line, '\n'));
        }
}

static void progress_format_shows_what_is_not_known(void **state)
{
    (void)state;
    const progress_view start = { 1, 2, 0, 100, (double)NAN, 0.0, "images" };
    char line[256];
    progress_format(&start, 120, line, sizeof line);
    assert_non_null(strstr(line, "  0%  loss -       0 images/s  - left"));
    const progress_view hours = { 1, 2, 50, 100, 1, 3600.0, "tokens" };
    assert_non_null(
        strstr(progress_format(&hours, 120, line, sizeof line), " 0 tokens/s  3:00:00 left"));
}

/* ---- a run of two epochs ---- */

/* 1000 steps in 2 seconds for each epoch. */
static void run(FILE *out)
{
    progress p = progress_start(out, 2, "images");
    p.clock = fake_clock;
    for (int epoch = 1; epoch <= 2; epoch++) {
        progress_epoch(&p, epoch, 1000);
        for (int done = 1; done <= 1000; done++) {
            now += 0.002;
            progress_step(&p, done, done == 1000 ? 0.25 : (double)NAN);
        }
        progress_epoch_end(&p, "loss 0.2500");
    }
    progress_clear(&p);
}

#define PLAIN_LINES                                  \
    "epoch 1/2  loss 0.2500  500 images/s  2.00 s\n" \
    "epoch 2/2  loss 0.2500  500 images/s  2.00 s\n"

static void progress_on_a_pipe_is_one_plain_line_per_epoch(void **state)
{
    (void)state;
    int ends[2];
    char text[4096];
    setenv("TERM", "xterm", 1);
    assert_int_equal(pipe(ends), 0);
    FILE *out = fdopen(ends[1], "w");
    run(out);
    fclose(out);
    const ssize_t n = read(ends[0], text, sizeof text - 1);
    close(ends[0]);
    text[n > 0 ? n : 0] = '\0';
    assert_string_equal(text, PLAIN_LINES);
}

/* ---- on a pseudo-terminal ---- */

/* What run() writes to a terminal of that width; "\r\n" stays for the line ends. A child writes,
 * since a terminal that nobody reads would block it. */
static void run_on_terminal(int width, char *text, size_t bytes)
{
    const struct winsize size = { .ws_row = 24, .ws_col = (unsigned short)width };
    const int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) skip();
    const int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    if (slave < 0) skip();
    assert_int_equal(ioctl(slave, TIOCSWINSZ, &size), 0);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(master); /* else it would wait for itself once the parent stops reading */
        FILE *out = fdopen(slave, "w");
        run(out);
        _exit(fclose(out));
    }
    close(slave);
    size_t used = 0;
    ssize_t n; /* fails when the child has closed its end */
    while (used + 1 < bytes && (n = read(master, text + used, bytes - 1 - used)) > 0)
        used += (size_t)n;
    text[used] = '\0';
    close(master);
    waitpid(child, NULL, 0);
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (text = strstr(text, what); text != NULL; text = strstr(text + 1, what)) n++;
    return n;
}

/* Takes away carriage return, erasing and colours, as a terminal would. */
static size_t visible(const char *from, size_t n)
{
    size_t cells = 0;
    for (size_t i = 0; i < n; i++) {
        if (from[i] == '\033')
            while (i < n && !(from[i] >= 'A' && from[i] <= 'z' && from[i] != '[')) i++;
        else
            cells += from[i] >= ' ';
    }
    return cells;
}

static void progress_on_a_terminal_redraws_ten_times_a_second(void **state)
{
    (void)state;
    static char text[16384];
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    run_on_terminal(70, text, sizeof text);
    const int draws = count(text, "epoch 1/2 ") - 1; /* and the plain line at the end */
    assert_in_range(draws, 18, 21);
    assert_int_equal(count(text, "images/s  2.00 s\r\n"), 2);
    assert_true(count(text, "\033[32m#") > 10);
    for (const char *at = text; *at != '\0';) {
        const size_t n = strcspn(at + 1, "\r\n") + 1;
        assert_true(visible(at, n) < 70);
        at += n;
    }
}

static void progress_respects_no_color(void **state)
{
    (void)state;
    static char text[16384];
    setenv("TERM", "xterm", 1);
    setenv("NO_COLOR", "1", 1);
    run_on_terminal(80, text, sizeof text);
    assert_true(count(text, "\r") > 30);
    assert_int_equal(count(text, "\033[32m"), 0);
    setenv("NO_COLOR", "", 1); /* empty is as good as not set */
    run_on_terminal(80, text, sizeof text);
    assert_true(count(text, "\033[32m") > 0);
    unsetenv("NO_COLOR");
}

static void progress_on_a_dumb_terminal_is_plain(void **state)
{
    (void)state;
    static const char *const terms[] = { "dumb", "", NULL };
    for (int i = 0; i < COUNT_OF(terms); i++) {
        char text[4096];
        if (terms[i] == NULL)
            unsetenv("TERM");
        else
            setenv("TERM", terms[i], 1);
        run_on_terminal(80, text, sizeof text);
        assert_int_equal(count(text, "\r\n"), 2);
        assert_int_equal(count(text, "\r"), 2);
        assert_int_equal(count(text, "\033"), 0);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(progress_format_leaves_out_what_does_not_fit),
    cmocka_unit_test(progress_format_is_shorter_than_any_width),
    cmocka_unit_test(progress_format_shows_what_is_not_known),
    cmocka_unit_test(progress_on_a_pipe_is_one_plain_line_per_epoch),
    cmocka_unit_test(progress_on_a_terminal_redraws_ten_times_a_second),
    cmocka_unit_test(progress_respects_no_color),
    cmocka_unit_test(progress_on_a_dumb_terminal_is_plain),
};
TEST_MAIN_HOST("example.progress", tests)
