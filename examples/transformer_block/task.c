/* SPDX-License-Identifier: MIT */
/* Sequences and answers. */
#include "task.h"

#include <stdlib.h>
#include <string.h>

#include "shuffle.h"

/* From symbols[n] to answers[n]. */
typedef void (*solver)(const int32_t *symbols, int64_t n, int32_t *answers);

static int ascending(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void sort(const int32_t *symbols, int64_t n, int32_t *answers)
{
    memcpy(answers, symbols, (size_t)n * sizeof *answers);
    qsort(answers, (size_t)n, sizeof *answers, ascending);
}

static void reverse(const int32_t *symbols, int64_t n, int32_t *answers)
{
    for (int64_t i = 0; i < n; i++) answers[i] = symbols[n - 1 - i];
}

static const struct {
    const char *name;
    solver solve;
} tasks[] = { { "sort", sort }, { "reverse", reverse } };

static solver find(const char *name)
{
    for (size_t i = 0; i < sizeof tasks / sizeof tasks[0]; i++)
        if (strcmp(tasks[i].name, name) == 0) return tasks[i].solve;
    return NULL;
}

atto_status task_check(const char *name)
{
    if (find(name) != NULL) return ATTO_OK;
    return failure(ATTO_E_ARGUMENT, "--task is '%s', expected one of %s", name, TASK_NAMES);
}

/* One in eight. The stream's own mixing serves as hash. */
static bool is_held_out(const int32_t *symbols, int64_t n)
{
    uint64_t hash = (uint64_t)n;
    for (int64_t i = 0; i < n; i++) {
        uint64_t state = hash ^ (uint64_t)symbols[i];
        hash = shuffle_random(&state);
    }
    return hash % 8 == 0;
}

/* Symbols of one sequence; returns how many. */
static int64_t draw_one(const task_options *o, uint64_t *state, int32_t *symbols)
{
    const int64_t shortest = (o->length + 1) / 2;
    const uint64_t lengths = (uint64_t)(o->length - shortest + 1);
    const int64_t n = shortest + (int64_t)(shuffle_random(state) % lengths);
    for (int64_t i = 0; i < n; i++)
        symbols[i] = (int32_t)(shuffle_random(state) % (uint64_t)o->symbols);
    return n;
}

/* The rest of a row behind its n symbols, and the answers. */
static void finish_row(const task_options *o, const task_set *set, int64_t row, int64_t n)
{
    const int64_t at = row * set->length;
    find(o->name)(set->symbols + at, n, set->answers + at);
    for (int64_t i = 0; i < set->length; i++) set->hidden[at + i] = i >= n;
    for (int64_t i = n; i < set->length; i++) {
        set->symbols[at + i] = (int32_t)o->symbols;
        set->answers[at + i] = TASK_NO_ANSWER;
    }
}

static atto_status fill(const task_options *o, bool held_out, const task_set *set)
{
    enum { TRIES = 10000 };
    uint64_t state = o->seed + held_out;
    state = shuffle_random(&state); /* where the stream starts: far from that of the next seed */
    for (int64_t row = 0; row < set->count; row++) {
        int tries = 0;
        int64_t n;
        do {
            n = draw_one(o, &state, set->symbols + row * set->length);
        } while (is_held_out(set->symbols + row * set->length, n) != held_out && ++tries < TRIES);
        if (tries == TRIES)
            return failure(
                ATTO_E_ARGUMENT,
                "--symbols %lld and --length %lld give too few sequences to hold some out",
                (long long)o->symbols, (long long)o->length);
        finish_row(o, set, row, n);
    }
    return ATTO_OK;
}

atto_status task_draw(const task_options *options, bool held_out, int64_t count, task_set *out)
{
    *out = (task_set){ .count = 0 };
    TRY(task_check(options->name));
    const size_t numbers = (size_t)(count * options->length);
    int32_t *room = malloc(3 * numbers * sizeof *room);
    if (room == NULL)
        return failure(ATTO_E_MEMORY, "no memory for %lld sequences", (long long)count);
    *out = (task_set){ count, options->length, room, room + numbers, room + 2 * numbers };
    const atto_status status = fill(options, held_out, out);
    if (status != ATTO_OK) task_free(out);
    return status;
}

void task_free(task_set *set)
{
    free(set->symbols);
    *set = (task_set){ .count = 0 };
}
