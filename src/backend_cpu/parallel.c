/* SPDX-License-Identifier: MIT */
/* Handing out units to OpenMP's threads: the only parallel region of the library. */
#include "backend_cpu/parallel.h"

#include <stdatomic.h>
#include <stdbool.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "os.h"

/* Looks before a waiting thread offers its processor to others, some microseconds; and before it
 * sleeps, which is the only thing that lets a thread start that was queued behind this one. */
#define PAUSES 300
#define OFFERS 100

/* Ranges per thread in a plain loop: how much of it a late thread may hold up. */
#define RANGES_PER_THREAD 16

/* Seconds of waiting for threads, more than the region's work took, that count as harm; and how
 * many times as long nobody is waited for after that. A quiet system wakes a thread in a tenth of
 * the first. */
#define LONG_WAIT 5e-4
#define REST      16
#define MOST_WAIT 0.05 /* that counts: longer ones are those of a process that was stopped */

/* Counters that different threads change at the same time have a cache line each. */
typedef struct team {
    const atto__work *work;
    _Alignas(64) atomic_llong next;    /* unit to be handed out, counted through all stages */
    _Alignas(64) atomic_llong done;    /* units finished */
    _Alignas(64) atomic_llong arrived; /* threads that found nothing left */
} team;

static void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void wait_until(atomic_llong *count, long long wanted)
{
    int32_t looks = 0;
    while (atomic_load_explicit(count, memory_order_acquire) < wanted) {
        if (looks < PAUSES) {
            pause_briefly();
        } else if (looks < PAUSES + OFFERS) {
            atto__yield();
        } else {
            atto__nap();
            continue;
        }
        looks++;
    }
}

/* A unit may start when those of all stages before are done. They have been handed out before, so
 * somebody is at work on each of them: nobody waits for ever. */
static void take_units(team *t, int32_t worker)
{
    const atto__work *work = t->work;
    long long first = 0, unit = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);
    for (int64_t stage = 0; stage < work->stages; stage++) {
        const long long end = first + work->units(work->job, stage);
        if (unit < end) wait_until(&t->done, first);
        for (; unit < end; unit = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed)) {
            work->run(work->job, stage, unit - first, worker);
            atomic_fetch_add_explicit(&t->done, 1, memory_order_release);
        }
        first = end;
    }
}

/* In microseconds of atto__clock. */
static atomic_llong alone_until;

bool atto__parallel_hurts(void)
{
    const long long until = atomic_load_explicit(&alone_until, memory_order_relaxed);
    return until > 0 && (long long)(1e6 * atto__clock()) < until;
}

static void note_wait(double waited, double worked)
{
    if (waited < LONG_WAIT || waited < worked) return;
    const double counted = waited < MOST_WAIT ? waited : MOST_WAIT;
    const long long until = (long long)(1e6 * (atto__clock() + REST * counted));
    atomic_store_explicit(&alone_until, until, memory_order_relaxed);
}

static void run_alone(const atto__work *work)
{
    for (int64_t stage = 0; stage < work->stages; stage++) {
        const int64_t units = work->units(work->job, stage);
        for (int64_t unit = 0; unit < units; unit++) work->run(work->job, stage, unit, 0);
    }
}

#ifdef _OPENMP

/* The first thread waits for the others here, where it lets them use its processor, and not in the
 * barrier at the end of the region, where it would not. Linux may wake a thread on the processor of
 * the one that woke it, and both would share it for many regions: the thread moves over. */
static void run_together(int32_t threads, const atto__work *work)
{
    team t = { .work = work };
    const int32_t processor = atto__processor();
    const double start = atto__clock();
    double began = start, finished = start; /* the first thread's work */
#pragma omp parallel num_threads(threads)
    {
        const int32_t worker = omp_get_thread_num();
        const bool first = worker == 0;
        if (first) began = atto__clock();
        if (!first) atto__leave_processor(processor);
        take_units(&t, worker);
        if (first) finished = atto__clock();
        atomic_fetch_add_explicit(&t.arrived, 1, memory_order_release);
        if (first) wait_until(&t.arrived, omp_get_num_threads());
    }
    note_wait(began - start + atto__clock() - finished, finished - began);
}

#else

static void run_together(int32_t threads, const atto__work *work)
{
    (void)threads, (void)take_units, (void)note_wait;
    run_alone(work);
}

#endif

void atto__parallel(int32_t threads, const atto__work *work)
{
    if (threads > 1) {
        run_together(threads, work);
    } else {
        run_alone(work);
    }
}

/* ---- plain loops ---- */

typedef struct loop {
    atto__range_fn body;
    const void *job;
    int64_t n, range;
} loop;

static int64_t loop_units(const void *job, int64_t stage)
{
    (void)stage;
    const loop *l = job;
    return (l->n + l->range - 1) / l->range;
}

static void loop_run(const void *job, int64_t stage, int64_t unit, int32_t worker)
{
    (void)stage, (void)worker;
    const loop *l = job;
    const int64_t begin = unit * l->range;
    l->body(l->job, begin, l->n - begin < l->range ? l->n : begin + l->range);
}

void atto__parallel_for(int32_t threads, int64_t n, atto__range_fn body, const void *job)
{
    if (threads > n) threads = (int32_t)n;
    if (threads <= 1) {
        if (n > 0) body(job, 0, n);
        return;
    }
    const int64_t ranges = (int64_t)threads * RANGES_PER_THREAD;
    const loop l = { body, job, n, (n + ranges - 1) / ranges };
    atto__parallel(threads, &(atto__work){ 1, loop_units, loop_run, &l });
}
