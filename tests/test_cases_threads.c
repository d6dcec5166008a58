/*
 * Bugs of other libraries, as tests that they are not here: kinds 17 and 20, of threads and memory.
 * What goes wrong with threads in libraries like this one: settings of the BLAS changed behind the
 * host's back, children that hang after fork, layers that cannot be shared, processes full of
 * threads nobody asked for, small calls that threads make slow, memory that grows with L * S.
 */
#define _GNU_SOURCE /* sched_setaffinity */
#include "support.h"

#include <dirent.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "processors.h"

/* By which calls are slower, and fewer here. */
#if defined(THREAD_SANITIZER) || defined(ADDRESS_SANITIZER)
enum { SLOWER = 10 };
#else
enum { SLOWER = 1 };
#endif

/* Only OpenBLAS has them. */
extern int openblas_get_num_threads(void) __attribute__((weak));
extern void openblas_set_num_threads(int threads) __attribute__((weak));
/* Only a BLAS that is built with OpenMP brings them. */
extern int omp_get_max_threads(void) __attribute__((weak));
extern void omp_set_num_threads(int threads) __attribute__((weak));

/* ---- in front of the BLAS, put there by the linker -------------------------------------------- */

static atomic_int inside, most_inside;
static atomic_bool hold; /* who is inside stays there */

void __real_cblas_sgemm(int order, int trans_a, int trans_b, int M, int N, int K, float alpha,
                        const float *A, int lda, const float *B, int ldb, float beta, float *C,
                        int ldc);
void __wrap_cblas_sgemm(int order, int trans_a, int trans_b, int M, int N, int K, float alpha,
                        const float *A, int lda, const float *B, int ldb, float beta, float *C,
                        int ldc);
void __wrap_cblas_sgemm(int order, int trans_a, int trans_b, int M, int N, int K, float alpha,
                        const float *A, int lda, const float *B, int ldb, float beta, float *C,
                        int ldc)
{
    int now = atomic_fetch_add(&inside, 1) + 1, most = atomic_load(&most_inside);
    while (now > most && !atomic_compare_exchange_weak(&most_inside, &most, now))
        continue;
    while (atomic_load(&hold))
        nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
    __real_cblas_sgemm(order, trans_a, trans_b, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
    atomic_fetch_sub(&inside, 1);
}

static mha_context *context_with(int64_t threads)
{
    mha_context *ctx = NULL;
    if (mha_context_create(&(struct mha_context_options){ .threads = threads }, &ctx) != MHA_OK)
        fail_msg("no context");
    return ctx;
}

/* ---- the threads of this process -------------------------------------------------------------- */

static int64_t count_tasks(const char *name)
{
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    int64_t count = 0;
    for (struct dirent *entry; (entry = readdir(tasks));) {
        if (entry->d_name[0] == '.')
            continue;
        char path[300], comm[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = fopen(path, "r");
        if (!file || !fgets(comm, sizeof comm, file))
            comm[0] = '\0'; /* it has just ended */
        if (file)
            fclose(file);
        comm[strcspn(comm, "\n")] = '\0';
        count += *comm && (!name || strcmp(comm, name) == 0);
    }
    closedir(tasks);
    return count;
}

/* Workers that begin get their name, and joined threads leave /proc, a moment later. */
static void check_workers(int64_t want)
{
    int64_t got = -1;
    for (int tries = 0; tries < 2000 && got != want; tries++) {
        got = count_tasks("mha-worker");
        if (got != want)
            nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    assert_int_equal(got, want);
}

/* ---- a problem of two sizes ------------------------------------------------------------------- */

/* Self attention of 12 million multiply-adds, the exponentials counted: worth 7 threads. */
enum { L = 192, H = 4, D = 32, E = H * D };

struct problem {
    float x[L * E], out[L * E];
    struct mha_tensor t_x, t_out;   /* [1, L, H, D] */
    struct mha_tensor rows, sums;   /* the same as [1, L, E] */
    struct mha_inputs heads, whole; /* for mha_attention, for mha_forward */
    struct mha_outputs heads_out, whole_out;
};

static struct problem *problem_make(void)
{
    struct problem *p = calloc(1, sizeof *p);
    assert_non_null(p);
    for (int64_t i = 0; i < L * E; i++)
        p->x[i] = (float)(i * 7919 % 1009) / 512 - 1;
    p->t_x = mha_tensor_4d_const(p->x, MHA_FLOAT32, 1, L, H, D);
    p->t_out = mha_tensor_4d(p->out, MHA_FLOAT32, 1, L, H, D);
    p->rows = mha_tensor_3d_const(p->x, MHA_FLOAT32, 1, L, E);
    p->sums = mha_tensor_3d(p->out, MHA_FLOAT32, 1, L, E);
    p->heads.query = &p->t_x;
    p->heads_out.out = &p->t_out;
    p->whole.query = p->whole.residual = &p->rows;
    p->whole_out.out = &p->sums;
    return p;
}

static bool is_right(const struct problem *p, const float *want)
{
    return memcmp(p->out, want, sizeof p->out) == 0;
}

static mha_status attend(mha_context *ctx, struct problem *p)
{
    memset(p->out, 0xff, sizeof p->out);
    return mha_attention(ctx, &p->heads, NULL, &p->heads_out);
}

static mha_status forward(mha_context *ctx, const mha_layer *with, struct problem *p)
{
    memset(p->out, 0xff, sizeof p->out);
    return mha_forward(ctx, with, &p->whole, NULL, &p->whole_out);
}

static mha_layer *layer_make(mha_context *ctx)
{
    static float weights[E * E];
    for (int64_t i = 0; i < E * E; i++)
        weights[i] = (float)(i * 104729 % 1013) / 8192 - 0.0625f;
    struct mha_tensor w = mha_tensor_2d_const(weights, MHA_FLOAT32, E, E);
    struct mha_layer_shape shape = { .E = E, .H = H };
    struct mha_weights all = { .w_q = &w, .w_k = &w, .w_v = &w, .w_o = &w };
    mha_layer *layer = NULL;
    check_status(ctx, mha_layer_create(ctx, &shape, &all, MHA_COPY, &layer), MHA_OK);
    return layer;
}

/* What one thread makes of all. */
static float want_heads[L * E], want_whole[L * E], want_packed[L * E];
static mha_context *owner; /* of the layers */
static mha_layer *layer, *packed;

static int open_all(void **state)
{
    (void)state;
    struct problem *p = problem_make();
    owner = context_with(1);
    layer = layer_make(owner);
    check_status(owner, attend(owner, p), MHA_OK);
    memcpy(want_heads, p->out, sizeof want_heads);
    check_status(owner, forward(owner, layer, p), MHA_OK);
    memcpy(want_whole, p->out, sizeof want_whole);
    packed = layer_make(owner);
    check_status(owner, mha_layer_pack(owner, packed, MHA_PACK_DROP), MHA_OK);
    check_status(owner, forward(owner, packed, p), MHA_OK);
    memcpy(want_packed, p->out, sizeof want_packed);
    free(p);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    mha_layer_free(layer);
    mha_layer_free(packed);
    mha_context_free(owner);
    return 0;
}

/* ---- threads come by need and go with the context --------------------------------------------- */

static void kind_20_case_141_threads_come_by_need(void **state)
{
    (void)state;
    struct problem *p = problem_make();
    int64_t before = count_tasks(NULL);
    mha_context *ctx = context_with(8);
    assert_int_equal(count_tasks(NULL), before);

    /* A token of a width of 512 against 128 keys: too little to wake anyone. */
    static float token[512], keys[128 * 512], out[512];
    struct mha_tensor q = mha_tensor_4d(token, MHA_FLOAT32, 1, 1, 8, 64);
    struct mha_tensor k = mha_tensor_4d(keys, MHA_FLOAT32, 1, 128, 8, 64);
    struct mha_tensor o = mha_tensor_4d(out, MHA_FLOAT32, 1, 1, 8, 64);
    struct mha_inputs inputs = { .query = &q, .key = &k, .value = &k };
    struct mha_outputs outputs = { .out = &o };
    check_status(ctx, mha_attention(ctx, &inputs, NULL, &outputs), MHA_OK);
    /* Nor does what the keys' lengths leave of a large call. */
    int32_t length = 1;
    struct mha_tensor lengths = mha_tensor_1d(&length, MHA_INT32, 1);
    p->heads.key_lengths = &lengths;
    check_status(ctx, attend(ctx, p), MHA_OK);
    p->heads.key_lengths = NULL;
    /* Nor a layer of one token. */
    p->rows.shape[1] = p->sums.shape[1] = 1;
    check_status(ctx, forward(ctx, layer, p), MHA_OK);
    check_status(ctx, forward(ctx, packed, p), MHA_OK);
    p->rows.shape[1] = p->sums.shape[1] = L;
    assert_int_equal(count_tasks(NULL), before);

    for (int repeat = 0; repeat < 3; repeat++) {
        check_status(ctx, attend(ctx, p), MHA_OK);
        assert_true(is_right(p, want_heads));
        check_workers(6);
    }
    mha_context_free(ctx);
    check_workers(0);
    free(p);
}

/* Each signal's bit of a mask in /proc. */
static uint64_t bit(int signal)
{
    return UINT64_C(1) << (signal - 1);
}

static void workers_leave_signals_to_the_host(void **state)
{
    (void)state;
    struct problem *p = problem_make();
    mha_context *ctx = context_with(2);
    check_status(ctx, attend(ctx, p), MHA_OK);
    check_workers(1);
    DIR *tasks = opendir("/proc/self/task");
    int64_t seen = 0;
    for (struct dirent *entry; (entry = readdir(tasks));) {
        char path[300], line[256], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *file = fopen(path, "r");
        uint64_t blocked = 0;
        while (file && fgets(line, sizeof line, file)) {
            sscanf(line, "Name: %31s", name);
            sscanf(line, "SigBlk: %" SCNx64, &blocked);
        }
        if (file)
            fclose(file);
        if (strcmp(name, "mha-worker") != 0)
            continue;
        seen++;
        const int left[] = { SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGALRM, SIGPIPE, SIGPROF };
        const int own[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL };
        for (int64_t i = 0; i < COUNT(left); i++)
            assert_true(blocked & bit(left[i]));
        for (int64_t i = 0; i < COUNT(own); i++)
            assert_false(blocked & bit(own[i]));
    }
    closedir(tasks);
    assert_int_equal(seen, 1);
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    assert_false(sigismember(&now, SIGUSR1));
    mha_context_free(ctx);
    free(p);
}

static int64_t threads_of_all(void)
{
    mha_context *ctx = context_with(MHA_THREADS_ALL);
    int64_t threads = mha_context_threads(ctx);
    mha_context_free(ctx);
    return threads;
}

static int64_t at_most(int64_t threads, int64_t limit)
{
    return threads < limit ? threads : limit;
}

/* As many as the affinity of now has processors, but no more than the quota of the control group
 * (of which test_processors.c shows how it is read). */
static void kind_17_case_119_all_threads_are_those_the_process_may_use(void **state)
{
    (void)state;
    cpu_set_t before, some;
    int64_t quota = mha_processors_quota("");
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(threads_of_all(), at_most(CPU_COUNT(&before), quota));
    CPU_ZERO(&some);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &before))
            continue;
        CPU_SET(cpu, &some);
        assert_int_equal(sched_setaffinity(0, sizeof some, &some), 0);
        int64_t threads = threads_of_all();
        assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
        assert_int_equal(threads, at_most(CPU_COUNT(&some), quota));
    }
    assert_int_equal(threads_of_all(), at_most(CPU_COUNT(&before), quota));
}

/* ---- fork ------------------------------------------------------------------------------------- */

enum { SECONDS = 30 }; /* for a child that hangs; sanitizers are slow */

/* A child's life: 0 when all was right, or the number of the step that was not. */
static int live(mha_context *ctx, struct problem *p, bool grandchild)
{
    if (attend(ctx, p) != MHA_OK || !is_right(p, want_heads))
        return 1;
    if (forward(ctx, layer, p) != MHA_OK || !is_right(p, want_whole))
        return 2;
    if (forward(ctx, packed, p) != MHA_OK || !is_right(p, want_packed))
        return 5;
    if (grandchild) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(SECONDS);
            _exit(live(ctx, p, false));
        }
        int status;
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
            return 3;
    }
    if (attend(ctx, p) != MHA_OK || !is_right(p, want_heads))
        return 4;
    mha_context_free(ctx);
    return 0;
}

/* A child ends like any program, but for a search of leaks that takes longer than its life. */
_Noreturn static void end_child(int step)
{
#ifdef ADDRESS_SANITIZER
    _exit(step);
#else
    exit(step);
#endif
}

static void check_child(mha_context *ctx, struct problem *p)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(SECONDS);
        end_child(live(ctx, p, true));
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status)); /* else the alarm came */
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void kind_17_case_116_fork_before_and_after_use(void **state)
{
    (void)state;
#ifdef THREAD_SANITIZER
    skip(); /* it gives up on threads that the child of a process with threads makes */
#endif
    struct problem *p = problem_make();
    for (int repeat = 0; repeat < 50; repeat++) {
        mha_context *ctx = context_with(4);
        check_child(ctx, p);
        for (int after = 0; after < 2; after++) {
            check_status(ctx, attend(ctx, p), MHA_OK);
            assert_true(is_right(p, want_heads));
            check_child(ctx, p);
        }
        check_status(ctx, attend(ctx, p), MHA_OK);
        assert_true(is_right(p, want_heads));
        mha_context_free(ctx);
    }
    free(p);
}

/* The child of a process whose context was used there, and that frees it unused. */
static void kind_17_case_116_fork_and_free(void **state)
{
    (void)state;
    struct problem *p = problem_make();
    mha_context *ctx = context_with(3);
    check_status(ctx, attend(ctx, p), MHA_OK);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(SECONDS);
        mha_context_free(ctx);
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    mha_context_free(ctx);
    free(p);
}

/* ---- many threads of the host ----------------------------------------------------------------- */

/* A host thread with a context of its own. */
struct host {
    pthread_t thread;
    pthread_barrier_t *start;
    int64_t threads, calls;
    enum { ATTEND, PLAIN, PACKED } kind; /* mha_attention, or mha_forward with one of the layers */
    int64_t wrong;
};

static void *run_host(void *arg)
{
    struct host *host = arg;
    const mha_layer *const layers[] = { NULL, layer, packed };
    const float *const wants[] = { want_heads, want_whole, want_packed };
    struct problem *p = problem_make();
    mha_context *ctx = context_with(host->threads);
    pthread_barrier_wait(host->start);
    for (int64_t i = 0; i < host->calls; i++) {
        mha_status status = host->kind == ATTEND ? attend(ctx, p)
                                                 : forward(ctx, layers[host->kind], p);
        host->wrong += status != MHA_OK || !is_right(p, wants[host->kind]);
    }
    pthread_barrier_wait(host->start);
    mha_context_free(ctx);
    free(p);
    return NULL;
}

/* Runs `count` of them; calls `meanwhile` while they work. */
static void run_hosts(int64_t count, const struct host *kind, void (*meanwhile)(void))
{
    struct host *hosts = calloc((size_t)count, sizeof *hosts);
    pthread_barrier_t start;
    pthread_attr_t attributes;
    assert_non_null(hosts);
    pthread_barrier_init(&start, NULL, (unsigned)count + 1);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 1 << 20);
    for (int64_t i = 0; i < count; i++) {
        hosts[i] = *kind;
        hosts[i].start = &start;
        assert_int_equal(pthread_create(&hosts[i].thread, &attributes, run_host, &hosts[i]), 0);
    }
    pthread_barrier_wait(&start);
    if (meanwhile)
        meanwhile();
    pthread_barrier_wait(&start);
    for (int64_t i = 0; i < count; i++) {
        pthread_join(hosts[i].thread, NULL);
        assert_int_equal(hosts[i].wrong, 0);
    }
    pthread_attr_destroy(&attributes);
    pthread_barrier_destroy(&start);
    free(hosts);
}

enum { GATE = 48 }; /* of src/blas.c */

static int full, child_status;
static mha_status past_gate;
static bool past_gate_right;

static void kind_17_case_118_contexts_of_300_threads(void **state)
{
    (void)state;
    run_hosts(300, &(struct host){ .threads = 1, .calls = 1 }, NULL);
    run_hosts(300, &(struct host){ .threads = 1, .calls = 10 / SLOWER, .kind = PLAIN }, NULL);
    assert_in_range(atomic_load(&most_inside), 1, GATE);
}

/* All that may be are inside the BLAS, and others wait: attention and a child do not. */
static void pass_a_full_gate(void)
{
    for (int tries = 0; tries < 10000 && atomic_load(&inside) < GATE; tries++)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
    full = atomic_load(&inside);
    struct problem *p = problem_make();
    mha_context *ctx = context_with(2);
    past_gate = attend(ctx, p);
    past_gate_right = is_right(p, want_heads);
    child_status = 0;
#ifndef THREAD_SANITIZER
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(SECONDS);
        atomic_store(&hold, false);
        _exit(live(ctx, p, false));
    }
    waitpid(pid, &child_status, 0);
#endif
    mha_context_free(ctx);
    free(p);
    atomic_store(&hold, false);
}

static void kind_17_case_118_only_callers_of_the_blas_wait(void **state)
{
    (void)state;
    atomic_store(&hold, true);
    run_hosts(GATE + 12, &(struct host){ .threads = 1, .calls = 1, .kind = PLAIN },
              pass_a_full_gate);
    assert_int_equal(full, GATE);
    assert_int_equal(past_gate, MHA_OK);
    assert_true(past_gate_right);
    assert_int_equal(child_status, 0);
}

static void kind_17_case_120_one_layer_for_8_threads(void **state)
{
    (void)state;
    const int64_t calls = 1000 / SLOWER;
    run_hosts(8, &(struct host){ .threads = 1, .calls = calls, .kind = PLAIN }, NULL);
    run_hosts(8, &(struct host){ .threads = 2, .calls = calls / 5, .kind = PLAIN }, NULL);
    run_hosts(8, &(struct host){ .threads = 1, .calls = calls / 2, .kind = PACKED }, NULL);
    run_hosts(8, &(struct host){ .threads = 2, .calls = calls / 5, .kind = PACKED }, NULL);
}

/* A host thread with a layer and rows of its own; their width is another for each. */
struct own {
    pthread_t thread;
    int64_t width, calls, wrong;
    float *weights, *x, *out, *want; /* no want: nothing to compare with yet */
};

enum { OWN_ROWS = 24 };

static void *run_own(void *arg)
{
    struct own *own = arg;
    int64_t width = own->width, count = OWN_ROWS * width;
    struct mha_tensor w = mha_tensor_2d_const(own->weights, MHA_FLOAT32, width, width);
    struct mha_tensor rows = mha_tensor_3d_const(own->x, MHA_FLOAT32, 1, OWN_ROWS, width);
    struct mha_tensor sums = mha_tensor_3d(own->out, MHA_FLOAT32, 1, OWN_ROWS, width);
    struct mha_layer_shape shape = { .E = width, .H = 4 };
    struct mha_weights all = { .w_q = &w, .w_k = &w, .w_v = &w, .w_o = &w };
    struct mha_inputs inputs = { .query = &rows, .residual = &rows };
    struct mha_outputs outputs = { .out = &sums };
    mha_context *ctx = context_with(1);
    mha_layer *mine = NULL;
    own->wrong += mha_layer_create(ctx, &shape, &all, MHA_BORROW, &mine) != MHA_OK;
    for (int64_t i = 0; i < own->calls && own->wrong == 0; i++) {
        memset(own->out, 0xff, (size_t)count * sizeof *own->out);
        own->wrong += mha_forward(ctx, mine, &inputs, NULL, &outputs) != MHA_OK
                      || (own->want
                          && memcmp(own->out, own->want, (size_t)count * sizeof *own->out) != 0);
    }
    mha_layer_free(mine);
    mha_context_free(ctx);
    return NULL;
}

static void own_make(struct own *own, int64_t width)
{
    int64_t count = OWN_ROWS * width;
    *own = (struct own){ .width = width, .calls = 1 };
    own->weights = guarded_floats(width * width);
    own->x = guarded_floats(count);
    own->out = guarded_floats(count);
    run_own(own);
    assert_int_equal(own->wrong, 0);
    own->want = guarded_floats(count);
    memcpy(own->want, own->out, (size_t)count * sizeof *own->out);
}

static void kind_17_case_117_8_threads_with_data_of_their_own(void **state)
{
    (void)state;
    struct own own[8];
    for (int64_t i = 0; i < COUNT(own); i++)
        own_make(&own[i], 64 + i * 192 / 7 / 4 * 4);
    for (int64_t i = 0; i < COUNT(own); i++) {
        own[i].calls = 500 / SLOWER;
        assert_int_equal(pthread_create(&own[i].thread, NULL, run_own, &own[i]), 0);
    }
    for (int64_t i = 0; i < COUNT(own); i++) {
        pthread_join(own[i].thread, NULL);
        assert_int_equal(own[i].wrong, 0);
        guarded_free(own[i].weights);
        guarded_free(own[i].x);
        guarded_free(own[i].out);
        guarded_free(own[i].want);
    }
}

static int64_t tasks_at_rest, tasks_meanwhile;

static void count_meanwhile(void)
{
    tasks_meanwhile = count_tasks(NULL);
}

static void kind_17_case_119_no_threads_nobody_asked_for(void **state)
{
    (void)state;
    tasks_at_rest = count_tasks(NULL);
    run_hosts(8, &(struct host){ .threads = 1, .calls = 20 }, count_meanwhile);
    assert_in_range(tasks_meanwhile, tasks_at_rest, tasks_at_rest + 8);
}

/* ---- the BLAS's own setting ------------------------------------------------------------------- */

static void check_settings(void)
{
    assert_int_equal(openblas_get_num_threads(), 3);
    if (omp_get_max_threads)
        assert_int_equal(omp_get_max_threads(), 3);
}

static void settings_meanwhile(void)
{
    for (int i = 0; i < 1000; i++)
        check_settings();
}

static void kind_17_case_115_the_setting_of_the_blas_is_the_hosts(void **state)
{
    (void)state;
    if (!openblas_get_num_threads || !openblas_set_num_threads)
        skip();
    int before = openblas_get_num_threads();
    openblas_set_num_threads(3);
    if (omp_set_num_threads)
        omp_set_num_threads(3);
    struct problem *p = problem_make();
    for (int64_t threads = 1; threads <= 8; threads += 7) {
        mha_context *ctx = context_with(threads);
        check_status(ctx, forward(ctx, layer, p), MHA_OK);
        check_settings();
        check_status(ctx, forward(ctx, packed, p), MHA_OK);
        check_settings();
        check_status(ctx, mha_forward(ctx, layer, NULL, NULL, NULL), MHA_ERROR_ARGUMENT);
        check_settings();
        mha_layer *another = layer_make(ctx);
        check_status(ctx, mha_layer_pack(ctx, another, MHA_PACK_KEEP), MHA_OK);
        mha_layer_free(another);
        mha_context_free(ctx);
        check_settings();
    }
    for (int kind = ATTEND; kind <= PACKED; kind++)
        run_hosts(4, &(struct host){ .threads = 2, .calls = 20, .kind = kind }, settings_meanwhile);
    check_settings();
    openblas_set_num_threads(before);
    free(p);
}

/* ---- memory ----------------------------------------------------------------------------------- */

static int64_t workspace(mha_context *ctx, int64_t rows, int64_t keys, int64_t heads,
                         int64_t kv_heads)
{
    struct mha_tensor q = mha_tensor_4d(NULL, MHA_FLOAT32, 1, rows, heads, 128);
    struct mha_tensor k = mha_tensor_4d(NULL, MHA_FLOAT32, 1, keys, kv_heads, 128);
    struct mha_inputs inputs = { .query = &q, .key = &k, .value = &k };
    int64_t bytes = -1;
    struct mha_outputs outputs = { .out = &q };
    check_status(ctx, mha_attention_workspace(ctx, &inputs, NULL, &outputs, &bytes), MHA_OK);
    return bytes;
}

/* Rows and keys of calls that are worth 8 threads and have tiles for them. */
static const int64_t lengths_of_calls[][2] = { { 1024, 1024 },      { 1024, 16384 },
                                               { 16384, 1024 },     { 517, 4099 },
                                               { 4099, 517 },       { 16384, 16384 },
                                               { 1 << 20, 1 << 20 } };

static void kind_20_case_139_workspace_is_a_tile_a_thread(void **state)
{
    (void)state;
    mha_context *one = context_with(1), *eight = context_with(8);
    int64_t single = workspace(one, 48, 512, 8, 8);
    assert_true(single > 0);
    for (int64_t i = 0; i < COUNT(lengths_of_calls); i++) {
        int64_t rows = lengths_of_calls[i][0], keys = lengths_of_calls[i][1];
        assert_int_equal(workspace(one, rows, keys, 8, 8), single);
        assert_int_equal(workspace(eight, rows, keys, 8, 8), 8 * single);
    }
    assert_true(8 * single < 64 << 20);
    mha_context_free(one);
    mha_context_free(eight);
}

static void kind_20_case_140_shared_keys_take_no_more_workspace(void **state)
{
    (void)state;
    for (int64_t threads = 1; threads <= 8; threads++) {
        mha_context *ctx = context_with(threads);
        for (int64_t rows = 1; rows <= 1024; rows *= 4)
            for (int64_t kv_heads = 1; kv_heads <= 16; kv_heads *= 2)
                assert_true(workspace(ctx, rows, 500, 32, kv_heads)
                            <= workspace(ctx, rows, 500, 32, 32));
        mha_context_free(ctx);
    }
}

/* The workspace told is the one that is used, on threads too, and a call allocates nothing more. */
static void kind_13_case_91_workspace_suffices_on_threads(void **state)
{
    (void)state;
    struct problem *p = problem_make();
    for (int64_t threads = 1; threads <= 8; threads++) {
        struct counting counting;
        counting_init(&counting);
        mha_context *ctx = NULL;
        assert_int_equal(
            mha_context_create(&(struct mha_context_options){ .allocator = &counting.allocator,
                                                              .threads = threads },
                               &ctx),
            MHA_OK);
        int64_t heads = 0, whole = 0;
        check_status(ctx, mha_attention_workspace(ctx, &p->heads, NULL, &p->heads_out, &heads),
                     MHA_OK);
        check_status(ctx, mha_forward_workspace(ctx, layer, &p->whole, NULL, &p->whole_out, &whole),
                     MHA_OK);
        check_status(ctx, mha_context_reserve(ctx, heads), MHA_OK);
        int64_t calls = counting.calls;
        check_status(ctx, attend(ctx, p), MHA_OK);
        assert_int_equal(counting.calls, calls);
        check_status(ctx, mha_context_reserve(ctx, whole), MHA_OK);
        calls = counting.calls;
        check_status(ctx, forward(ctx, layer, p), MHA_OK);
        assert_true(is_right(p, want_whole));
        assert_int_equal(counting.calls, calls);
        mha_context_free(ctx);
        assert_int_equal(counting.live_bytes, 0);
    }
    free(p);
}

static int64_t most_resident(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (int64_t)usage.ru_maxrss * 1024;
}

/* Bytes that a call of so many rows and keys of 8 heads takes beyond its operands. A window keeps
 * the time short. */
static int64_t taken_by_call(int64_t threads, int64_t rows, int64_t keys)
{
    enum { HEADS = 8, WIDTH = 16 };
    int64_t all = (rows + keys) * HEADS * WIDTH;
    float *x = calloc((size_t)all, sizeof *x), *out = calloc((size_t)all, sizeof *out);
    assert_non_null(x);
    assert_non_null(out);
    random_fill(x, all);
    random_fill(out, all);
    struct mha_tensor t_q = mha_tensor_4d(x, MHA_FLOAT32, 1, rows, HEADS, WIDTH);
    struct mha_tensor t_k = mha_tensor_4d(x + rows * HEADS * WIDTH, MHA_FLOAT32, 1, keys, HEADS,
                                          WIDTH);
    struct mha_tensor t_out = mha_tensor_4d(out, MHA_FLOAT32, 1, rows, HEADS, WIDTH);
    struct mha_inputs inputs = { .query = &t_q, .key = &t_k, .value = &t_k };
    struct mha_options options = { .causal = 1, .window = MHA_WINDOW_LEFT, .window_left = 32 };
    struct mha_outputs outputs = { .out = &t_out };
    struct counting counting;
    counting_init(&counting);
    mha_context *ctx = NULL;
    assert_int_equal(
        mha_context_create(
            &(struct mha_context_options){ .allocator = &counting.allocator, .threads = threads },
            &ctx),
        MHA_OK);
    int64_t before = counting.live_bytes, resident = most_resident(), told = -1;
    check_status(ctx, mha_attention_workspace(ctx, &inputs, &options, &outputs, &told), MHA_OK);
    check_status(ctx, mha_attention(ctx, &inputs, &options, &outputs), MHA_OK);
    int64_t taken = counting.live_bytes - before;
    assert_int_equal(taken, told);
    assert_int_equal(counting.most_bytes, counting.live_bytes);
    assert_true(most_resident() - resident < 64 << 20);
    mha_context_free(ctx);
    free(x);
    free(out);
    return taken;
}

/* The scores of 16384 rows and keys of 8 heads would take 8 GiB. */
static void kind_20_case_139_memory_does_not_grow_with_scores(void **state)
{
    (void)state;
    for (int64_t threads = 1; threads <= 8; threads += 7) {
        int64_t least = taken_by_call(threads, 1024, 1024);
        assert_in_range(least, 1, 1 << 20);
        assert_int_equal(taken_by_call(threads, 16384, 16384), least);
        assert_int_equal(taken_by_call(threads, 16384, 4099), least);
        assert_int_equal(taken_by_call(threads, 4099, 16384), least);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kind_20_case_141_threads_come_by_need),
        cmocka_unit_test(workers_leave_signals_to_the_host),
        cmocka_unit_test(kind_17_case_119_all_threads_are_those_the_process_may_use),
        cmocka_unit_test(kind_17_case_116_fork_before_and_after_use),
        cmocka_unit_test(kind_17_case_116_fork_and_free),
        cmocka_unit_test(kind_17_case_118_contexts_of_300_threads),
        cmocka_unit_test(kind_17_case_118_only_callers_of_the_blas_wait),
        cmocka_unit_test(kind_17_case_117_8_threads_with_data_of_their_own),
        cmocka_unit_test(kind_17_case_120_one_layer_for_8_threads),
        cmocka_unit_test(kind_17_case_119_no_threads_nobody_asked_for),
        cmocka_unit_test(kind_17_case_115_the_setting_of_the_blas_is_the_hosts),
        cmocka_unit_test(kind_20_case_139_workspace_is_a_tile_a_thread),
        cmocka_unit_test(kind_20_case_139_memory_does_not_grow_with_scores),
        cmocka_unit_test(kind_20_case_140_shared_keys_take_no_more_workspace),
        cmocka_unit_test(kind_13_case_91_workspace_suffices_on_threads),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
