/* SPDX-License-Identifier: MIT */
/* Threads of the CPU backend: work cut into units that are handed out one by one.
 *
 * What a unit computes may depend on its number alone, never on who computes it or on how many
 * threads there are; then results have the same bits with any number of threads.
 *
 * A thread that comes late finds nothing left to do and nobody who waited for it: the units of a
 * stage wait for the units of the stages before, not for threads. Static shares and barriers cost a
 * process that had been idle milliseconds for work of a tenth of one: the system wakes the second
 * thread on the processor where the first one soon spins in a barrier. */
#ifndef ATTO_PARALLEL_H
#define ATTO_PARALLEL_H

#include <stdbool.h>
#include <stdint.h>

/* Stages one after the other, each of so many units; worker is the number of the thread that runs
 * one. */
typedef struct atto__work {
    int64_t stages;
    int64_t (*units)(const void *job, int64_t stage);
    void (*run)(const void *job, int64_t stage, int64_t unit, int32_t worker);
    const void *job;
} atto__work;

/* Whether threads have just cost more than they gave, as they do where other programs keep the
 * processors busy: a region ends when its last thread has had a turn. Work is better done alone
 * then, for some time that ends by itself. */
bool atto__parallel_hurts(void);

/* Runs every unit, units of one stage side by side. Returns when all are done. */
void atto__parallel(int32_t threads, const atto__work *work);

/* A loop from 0 to n whose iterations do not depend on each other, in ranges begin <= i < end. */
typedef void (*atto__range_fn)(const void *job, int64_t begin, int64_t end);
void atto__parallel_for(int32_t threads, int64_t n, atto__range_fn body, const void *job);

#define ATTO_DO_PRAGMA(text) _Pragma(#text)
/* No iteration reads what another one writes; in and out may be the same block. */
#define ATTO_SIMD ATTO_DO_PRAGMA(omp simd)

#endif
