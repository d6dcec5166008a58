#define _GNU_SOURCE /* pthread_setname_np */
#include "threads.h"

#include <pthread.h>
#include <signal.h>

#include "cpu.h"

/* ---- forks ------------------------------------------------------------------------------------- */

/*
 * 1 and the forks between the process that first watched them and this one. It is global because
 * handlers of fork are; they have no argument. When a shared library is unloaded, the C library
 * forgets the handlers that came from it.
 */
static _Atomic uint32_t process;

static void count_fork(void)
{
    atomic_fetch_add_explicit(&process, 1, memory_order_relaxed);
}

/* Two threads that come here first at the same time install two handlers, which does no harm. */
int mha_threads_watch_forks(void)
{
    uint32_t unwatched = 0;
    if (mha_threads_process() != unwatched)
        return 0;
    int error = pthread_atfork(NULL, NULL, count_fork);
    if (error == 0)
        atomic_compare_exchange_strong_explicit(&process, &unwatched, 1, memory_order_relaxed,
                                                memory_order_relaxed);
    return error;
}

uint32_t mha_threads_process(void)
{
    return atomic_load_explicit(&process, memory_order_relaxed);
}

/* ---- workers ----------------------------------------------------------------------------------- */

/*
 * Each worker has a state that two threads change, itself and the one that calls run:
 *
 *     IDLE     looks for work                      -> ASLEEP by itself, ASKED or QUIT by the caller
 *     ASLEEP   waits for the condition             -> ASKED or QUIT by the caller
 *     ASKED    has a job and did not begin         -> RUNNING by itself, IDLE by the caller, who
 *                                                     has finished without it
 *     RUNNING  works                               -> IDLE by itself, AWAITED by the caller
 *     AWAITED  works, the caller waits for         -> IDLE by itself
 *              the condition
 *     QUIT     ends
 *
 * So the two are never both waiting, one condition serves them, and a worker that the system does
 * not schedule in time delays nobody. Each change is an acquire and a release: the job is visible
 * to the worker that finds ASKED, its results to the caller who finds IDLE.
 */
enum state { IDLE, ASLEEP, ASKED, RUNNING, AWAITED, QUIT };

struct mha_worker {
    _Alignas(MHA_ALIGNMENT) atomic_int state;
    bool spins;
    int64_t lane;
    void (*fn)(void *arg, int64_t lane); /* the job */
    void *arg;
    pthread_mutex_t mutex; /* held for the condition only, never while a job runs */
    pthread_cond_t changed;
    pthread_t thread;
};

/* Address space of a worker's stack: kernels need a few kilobytes, the rest is for callbacks of the
 * host and for its thread-local variables, which the C library takes from here. */
#define STACK_BYTES (512 * 1024)

/* Rounds of waiting before sleeping: 20 to 50 microseconds, the length of the gap between two
 * steps of a call. */
#define SPINS 1000

static bool change(struct mha_worker *worker, int from, int to)
{
    return atomic_compare_exchange_strong_explicit(&worker->state, &from, to, memory_order_acq_rel,
                                                   memory_order_acquire);
}

static int look(struct mha_worker *worker)
{
    return atomic_load_explicit(&worker->state, memory_order_acquire);
}

/* Waits until the state is no longer `state`; `waiting` is what it is while this thread sleeps. */
static void await_change(struct mha_worker *worker, int state, int waiting)
{
    for (int i = 0; i < SPINS && worker->spins && look(worker) == state; i++)
        mha_cpu_pause();
    if (look(worker) != state)
        return;
    pthread_mutex_lock(&worker->mutex);
    if (change(worker, state, waiting))
        while (look(worker) == waiting)
            pthread_cond_wait(&worker->changed, &worker->mutex);
    pthread_mutex_unlock(&worker->mutex);
}

/* Sets the state, and wakes the other thread if it sleeps on what it was. */
static void set_state(struct mha_worker *worker, int state, int waiting)
{
    if (atomic_exchange_explicit(&worker->state, state, memory_order_acq_rel) != waiting)
        return;
    pthread_mutex_lock(&worker->mutex); /* the other has begun to wait, or has not looked yet */
    pthread_mutex_unlock(&worker->mutex);
    pthread_cond_signal(&worker->changed);
}

static void *work(void *arg)
{
    struct mha_worker *worker = arg;
    pthread_setname_np(pthread_self(), "mha-worker");
    mha_cpu_floats_default();
    while (look(worker) != QUIT) {
        await_change(worker, IDLE, ASLEEP);
        if (!change(worker, ASKED, RUNNING))
            continue;
        worker->fn(worker->arg, worker->lane);
        set_state(worker, IDLE, AWAITED);
    }
    return NULL;
}

/* Signals are the host's business and go to its threads; faults of a worker are its own. */
static void block_signals(sigset_t *host)
{
    static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS };
    sigset_t blocked;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_BLOCK, &blocked, host);
}

static int start(struct mha_worker *worker, int64_t lane, bool spins)
{
    *worker = (struct mha_worker){
        .state = IDLE,
        .spins = spins,
        .lane = lane,
        .mutex = PTHREAD_MUTEX_INITIALIZER,
        .changed = PTHREAD_COND_INITIALIZER,
    };
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error != 0)
        return error;
    sigset_t host;
    error = pthread_attr_setstacksize(&attributes, STACK_BYTES);
    block_signals(&host);
    if (error == 0)
        error = pthread_create(&worker->thread, &attributes, work, worker);
    pthread_sigmask(SIG_SETMASK, &host, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

int64_t mha_threads_bytes(const struct mha_threads *threads)
{
    return threads->executor.run ? 0 : (threads->count - 1) * (int64_t)sizeof(struct mha_worker);
}

void mha_threads_free(struct mha_threads *threads)
{
    if (threads->made == 0 || threads->process != mha_threads_process())
        return;
    for (int64_t i = 0; i < threads->made; i++)
        set_state(&threads->workers[i], QUIT, ASLEEP);
    for (int64_t i = 0; i < threads->made; i++) {
        struct mha_worker *worker = &threads->workers[i];
        pthread_join(worker->thread, NULL);
        pthread_cond_destroy(&worker->changed);
        pthread_mutex_destroy(&worker->mutex);
    }
    threads->made = 0;
}

int64_t mha_threads_lanes(const struct mha_threads *threads, double multiply_adds, int64_t items)
{
    double worth = multiply_adds / MHA_LANE_WORK;
    int64_t lanes = min_i64(threads->count, items);
    if (worth < (double)lanes)
        lanes = (int64_t)worth;
    return max_i64(lanes, 1);
}

int mha_threads_prepare(struct mha_threads *threads, int64_t lanes)
{
    if (lanes <= 1 || threads->executor.run)
        return 0;
    /* A child has none of its parent's threads, and what it inherits of their locks may be held by
     * them for ever: the workers start anew. */
    if (threads->process != mha_threads_process())
        threads->made = 0;
    threads->process = mha_threads_process();
    for (; threads->made < lanes - 1; threads->made++) {
        int64_t i = threads->made;
        int error = start(&threads->workers[i], i + 1, threads->spins);
        if (error != 0)
            return error;
    }
    return 0;
}

/* ---- a run ------------------------------------------------------------------------------------ */

struct lane {
    void (*fn)(void *arg, int64_t lane);
    void *arg;
};

/* A lane on a thread of the host, whose floating-point environment may be anything. */
static void run_for_host(void *arg, int64_t i)
{
    const struct lane *lane = arg;
    uint64_t host_floats = mha_cpu_floats_default();
    lane->fn(lane->arg, i);
    mha_cpu_floats_restore(host_floats);
}

static void ask(struct mha_worker *worker, void (*fn)(void *arg, int64_t lane), void *arg)
{
    worker->fn = fn;
    worker->arg = arg;
    set_state(worker, ASKED, ASLEEP);
}

/* Takes the job back, or waits for its end. */
static void settle(struct mha_worker *worker)
{
    if (!change(worker, ASKED, IDLE))
        await_change(worker, RUNNING, AWAITED);
}

void mha_threads_run(struct mha_threads *threads, int64_t lanes,
                     void (*fn)(void *arg, int64_t lane), void *arg)
{
    if (lanes > 1 && threads->executor.run) {
        struct lane lane = { fn, arg };
        threads->executor.run(threads->executor.user, run_for_host, &lane, lanes);
        return;
    }
    assert(lanes <= 1 || lanes - 1 <= threads->made);
    for (int64_t i = 0; i < lanes - 1; i++)
        ask(&threads->workers[i], fn, arg);
    fn(arg, 0);
    for (int64_t i = 0; i < lanes - 1; i++)
        settle(&threads->workers[i]);
}

bool mha_items_take(struct mha_items *items, int64_t *first, int64_t *end)
{
    int64_t at = atomic_load_explicit(&items->next, memory_order_relaxed), n = 0;
    do {
        if (at >= items->count)
            return false;
        int64_t left = items->count - at;
        n = items->lanes == 1 ? left : max_i64(left / (2 * items->lanes), 1);
    } while (!atomic_compare_exchange_weak_explicit(&items->next, &at, at + n, memory_order_relaxed,
                                                    memory_order_relaxed));
    *first = at;
    *end = at + n;
    return true;
}
