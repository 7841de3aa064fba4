/* SPDX-License-Identifier: MIT */
/* A child process that is asked line by line: a question is a line, and so is its answer. */
#ifndef ATTO_TALK_H
#define ATTO_TALK_H

#include <stdbool.h>
#include <stdio.h>

#define TALK_LINE 4096

typedef struct talk talk;

/* Starts a program found as execvp does; argv ends with NULL. An answer may take as long as
 * timeout_s. SIGPIPE is ignored until talk_stop. On Linux the child dies with the thread that has
 * started it. NULL with a message on stderr that begins with who
 * asks. */
talk *talk_start(const char *who, const char *const *argv, int timeout_s);

/* Where the next question goes. */
FILE *talk_question(talk *t);

/* Sends it and waits for a line of answer, until the next call; NULL when none came: the child has
 * ended, or took too long and has been ended, with all that it has started. *reason says so. */
const char *talk_answer(talk *t, const char **reason);

/* No answer will come any more. */
bool talk_is_over(const talk *t);

/* The child ends when it has nothing more to read, or is ended some seconds later. NULL is fine. */
void talk_stop(talk *t);

#endif
