/*
 * Threads: runs a function in several lanes at once, on workers of its own or on the host's
 * executor, and hands out the items of a call among the lanes. Only threads.c knows pthreads.
 *
 * How a step of a call uses it:
 *
 *     lanes = mha_threads_lanes(&ctx->threads, multiply_adds, items);     how many are worth it
 *     ... scratch for so many lanes ...
 *     TRY(mha_context_prepare_threads(ctx, lanes));                       before any output
 *     mha_threads_run(&ctx->threads, lanes, work, &job);                  cannot fail
 *
 * where work(job, lane) takes items until there are none left. What an item is depends on shapes
 * only, and items write to disjoint memory: so no bit depends on who computes them, or when.
 */
#ifndef MHA_THREADS_H
#define MHA_THREADS_H

#include <stdatomic.h>

#include "memory.h"

struct mha_worker;

/* What a context has of threads. The workers lie in memory of the context and become threads when a
 * call first wants them. */
struct mha_threads {
    int64_t count;                /* lanes of a call at most, one of them the calling thread's */
    struct mha_executor executor; /* run NULL: own workers */
    struct mha_worker *workers;   /* mha_threads_bytes of memory */
    int64_t made;                 /* how many of the count - 1 are threads */
    uint32_t process;             /* whose threads they are: see mha_threads_process */
    bool spins;                   /* there are processors for all: wait a moment before sleeping */
};

/* Begins to count forks, unless that has begun: 0, or the error number of the system. Every context is
 * made after that. */
int mha_threads_watch_forks(void);

/* Another number in each process, parent or child of fork, that may hold the same memory. Costs no
 * system call. */
uint32_t mha_threads_process(void);

/* Memory that `workers` must point to before the first run, by count and executor. */
int64_t mha_threads_bytes(const struct mha_threads *threads);

/* Ends the workers, if they are this process's. */
void mha_threads_free(struct mha_threads *threads);

/*
 * The work that is worth a lane, in multiply-adds: what a core of today does in about 30
 * microseconds at its best. Waking a thread and waiting for it costs some 5 to 10 microseconds.
 */
#define MHA_LANE_WORK 1500000

/* How many lanes are worth it for so much work in so many items: 1..count. */
int64_t mha_threads_lanes(const struct mha_threads *threads, double multiply_adds, int64_t items);

/* Makes the workers for a run of `lanes` lanes where they are not there yet: 0, or the error number
 * of the system. Workers that could be made stay. */
int mha_threads_prepare(struct mha_threads *threads, int64_t lanes);

/*
 * Runs fn(arg, lane) for lane 0 and, at the same time where possible, for some or all of the lanes
 * up to `lanes`; no lane twice. Returns when all have returned. A lane whose thread does not come
 * before lane 0 has ended is left out, so fn has to work until nothing is left, whatever its lane
 * is. Everywhere the default floating-point environment holds.
 */
void mha_threads_run(struct mha_threads *threads, int64_t lanes,
                     void (*fn)(void *arg, int64_t lane), void *arg);

/* Items 0..count-1, handed out in ascending order; shared by the lanes of a run. */
struct mha_items {
    _Alignas(
        MHA_ALIGNMENT) _Atomic int64_t next; /* in a cache line with nothing else of the call */
    int64_t count;
    int64_t lanes;
};

/* Takes the next items, first <= item < end: many while there are many left, so that neighbours
 * meet in one lane's caches, and single ones at the end, so that no lane waits long. False when
 * none are left. */
bool mha_items_take(struct mha_items *items, int64_t *first, int64_t *end);

#endif
