/* SPDX-License-Identifier: MIT */
/* What is learned: short sequences of symbols, and the same symbols in another order. */
#ifndef TRANSFORMER_BLOCK_TASK_H
#define TRANSFORMER_BLOCK_TASK_H

#include <stdint.h>

#include "failure.h"

/* Names of the tasks, as a list for messages: "sort, reverse". */
#define TASK_NAMES "sort, reverse"

typedef struct task_options {
    const char *name; /* one of TASK_NAMES */
    int64_t symbols;  /* different ones: 0 ... symbols - 1 */
    int64_t length;   /* of the longest sequence; the shortest has half of that, rounded up */
    uint64_t seed;
} task_options;

/* Sequences, one a row; positions behind the end of a sequence are hidden. */
typedef struct task_set {
    int64_t count, length;
    int32_t *symbols; /* [count, length]  the number of symbols where hidden */
    int32_t *hidden;  /* [count, length]  1 behind the end, else 0 */
    int32_t *answers; /* [count, length]  what is to be said there; TASK_NO_ANSWER where hidden */
} task_set;

enum { TASK_NO_ANSWER = -100 }; /* the label that cross-entropy leaves out */

/* ATTO_E_ARGUMENT, with a message, unless there is such a task. */
atto_status task_check(const char *name);

/*
 * Draws count sequences. A hash of a sequence says whether it is held out, which is one in eight: those
 * for training and those held out have none in common. Release with task_free; zeroed on failure.
 * Returns ATTO_E_MEMORY; ATTO_E_ARGUMENT: so few sequences exist that none of that side was found.
 */
atto_status task_draw(const task_options *options, bool held_out, int64_t count, task_set *out);

/* A zeroed set is fine. */
void task_free(task_set *set);

#endif
