/*
 * A warm call asks nobody for anything: the second of two equal calls takes no memory from the heap,
 * and on one thread it makes no system call. The linker puts counters in front of the C library's
 * allocator for the library's objects (--wrap), and the kernel looks out for system calls: a child
 * that has warmed up lets it trap every one.
 */
#define _GNU_SOURCE /* SYS_, si_syscall */
#include "support.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the heap, put there by the linker --------------------------------------------------------- */

static atomic_long heap_calls;

#define COUNTED(type, name, parameters, arguments)                                                 \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters                                                                  \
    {                                                                                              \
        atomic_fetch_add(&heap_calls, 1);                                                          \
        return __real_##name arguments;                                                            \
    }

COUNTED(void *, malloc, (size_t bytes), (bytes))
COUNTED(void *, calloc, (size_t count, size_t bytes), (count, bytes))
COUNTED(void *, realloc, (void *block, size_t bytes), (block, bytes))
COUNTED(void *, aligned_alloc, (size_t alignment, size_t bytes), (alignment, bytes))
COUNTED(int, posix_memalign, (void **block, size_t alignment, size_t bytes),
        (block, alignment, bytes))
COUNTED(void, free, (void *block), (block))

/* Only OpenBLAS has it. */
extern void openblas_set_num_threads(int threads) __attribute__((weak));

/* ---- calls of every kind ----------------------------------------------------------------------- */

/* Enough for two threads in every step of a layer. */
enum { B = 2, L = 96, H = 4, D = 32, E = H * D };

struct subject {
    mha_context *ctx;
    mha_layer *plain, *packed;
    struct mha_inputs heads, rows;
    struct mha_options options;
    struct mha_outputs heads_out, rows_out;
};

static float x[B * L * E], y[B * L * E], weights[E * E];
static float lse[B * H * L], mean[B * L * L], scores[B * H * L * L];
static uint8_t keep[B * L * L];
static int32_t lengths[B] = { L, L - 7 };
static struct mha_tensor t_heads, t_heads_out, t_rows, t_rows_out, t_w, t_lse, t_mean, t_scores;
static struct mha_tensor t_keep, t_lengths;

static void subject_make(struct subject *s, int64_t threads)
{
    struct mha_context_options options = { .threads = threads };
    assert_int_equal(mha_context_create(&options, &s->ctx), MHA_OK);
    random_fill(x, COUNT(x));
    random_fill(weights, COUNT(weights));
    memset(keep, 1, sizeof keep);
    for (int64_t i = 0; i < COUNT(keep); i += 5)
        keep[i] = 0;
    t_heads = mha_tensor_4d_const(x, MHA_FLOAT32, B, L, H, D);
    t_heads_out = mha_tensor_4d(y, MHA_FLOAT32, B, L, H, D);
    t_rows = mha_tensor_3d_const(x, MHA_FLOAT32, B, L, E);
    t_rows_out = mha_tensor_3d(y, MHA_FLOAT32, B, L, E);
    t_w = mha_tensor_2d_const(weights, MHA_FLOAT32, E, E);
    t_lse = mha_tensor_3d(lse, MHA_FLOAT32, B, H, L);
    t_mean = mha_tensor_3d(mean, MHA_FLOAT32, B, L, L);
    t_scores = mha_tensor_4d(scores, MHA_FLOAT32, B, H, L, L);
    t_keep = mha_tensor_4d_const(keep, MHA_BOOL, B, 1, L, L);
    t_lengths = mha_tensor_1d_const(lengths, MHA_INT32, B);
    struct mha_layer_shape shape = { .E = E, .H = H };
    struct mha_weights all = { .w_q = &t_w, .w_k = &t_w, .w_v = &t_w, .w_o = &t_w };
    for (int i = 0; i < 2; i++)
        check_status(s->ctx,
                     mha_layer_create(s->ctx, &shape, &all, MHA_BORROW, i ? &s->packed : &s->plain),
                     MHA_OK);
    check_status(s->ctx, mha_layer_pack(s->ctx, s->packed, MHA_PACK_KEEP), MHA_OK);
    s->options = (struct mha_options){ .causal = 1,
                                       .mask_kind = MHA_MASK_KEEP,
                                       .mask = &t_keep,
                                       .softcap_mode = MHA_SOFTCAP_TANH,
                                       .softcap = 30,
                                       .zero_attention = 0 };
    s->heads = (struct mha_inputs){ .query = &t_heads, .key_lengths = &t_lengths };
    s->rows = (struct mha_inputs){ .query = &t_rows, .residual = &t_rows };
    s->heads_out = (struct mha_outputs){
        .out = &t_heads_out, .lse = &t_lse, .weights = &t_scores, .weights_mean = &t_mean
    };
    s->rows_out = (struct mha_outputs){ .out = &t_rows_out };
}

static void subject_free(struct subject *s)
{
    mha_layer_free(s->plain);
    mha_layer_free(s->packed);
    mha_context_free(s->ctx);
}

/* Each returns whether all was well; none may fail a test, for they run where nothing can be said. */
static bool attend(const struct subject *s)
{
    struct mha_outputs out = { .out = &t_heads_out };
    return mha_attention(s->ctx, &s->heads, NULL, &out) == MHA_OK;
}

static bool attend_with_options(const struct subject *s)
{
    return mha_attention(s->ctx, &s->heads, &s->options, &s->heads_out) == MHA_OK;
}

static bool attend_of_one_row(const struct subject *s)
{
    struct mha_tensor q = t_heads, o = t_heads_out;
    q.shape[1] = o.shape[1] = 1;
    struct mha_inputs inputs = { .query = &q, .key = &t_heads, .value = &t_heads };
    return mha_attention(s->ctx, &inputs, NULL, &(struct mha_outputs){ .out = &o }) == MHA_OK;
}

static bool forward_packed(const struct subject *s)
{
    return mha_forward(s->ctx, s->packed, &s->rows, &s->options, &s->rows_out) == MHA_OK;
}

static bool forward_plain(const struct subject *s)
{
    return mha_forward(s->ctx, s->plain, &s->rows, &s->options, &s->rows_out) == MHA_OK;
}

static bool query_workspace(const struct subject *s)
{
    int64_t bytes;
    return mha_attention_workspace(s->ctx, &s->heads, NULL, &s->heads_out, &bytes) == MHA_OK
           && mha_forward_workspace(s->ctx, s->packed, &s->rows, NULL, &s->rows_out, &bytes)
                  == MHA_OK
           && mha_context_reserve(s->ctx, bytes) == MHA_OK;
}

static bool add_residual(const struct subject *s)
{
    return mha_residual_add(s->ctx, &t_rows, &t_rows, &t_rows_out) == MHA_OK;
}

static bool be_refused(const struct subject *s)
{
    return mha_attention(s->ctx, &s->heads, &s->options, &s->rows_out) != MHA_OK
           && mha_context_message(s->ctx)[0] != '\0';
}

static const struct {
    const char *name;
    bool (*call)(const struct subject *s);
} calls[] = {
    { "attention", attend },
    { "attention with options and all outputs", attend_with_options },
    { "attention of one row", attend_of_one_row },
    { "a packed layer", forward_packed },
    { "a plain layer", forward_plain },
    { "the workspace queries and reserve", query_workspace },
    { "a sum", add_residual },
    { "a call that is refused", be_refused },
};

static void kind_20_case_141_a_warm_call_takes_nothing_from_the_heap(void **state)
{
    (void)state;
    for (int64_t threads = 1; threads <= 3; threads++) {
        struct subject s = { 0 };
        subject_make(&s, threads);
        assert_true(atomic_load(&heap_calls) > 0); /* the counters are where they should be */
        for (int64_t i = 0; i < COUNT(calls); i++) {
#ifdef MHA_TEST_STATIC_BLAS
            if (calls[i].call == forward_plain)
                continue;
#endif
            assert_true(calls[i].call(&s));
            long before = atomic_load(&heap_calls);
            for (int repeat = 0; repeat < 10; repeat++)
                assert_true(calls[i].call(&s));
            if (atomic_load(&heap_calls) != before)
                fail_msg("%s on %d threads: %ld allocations or releases in ten warm calls",
                         calls[i].name, (int)threads, atomic_load(&heap_calls) - before);
        }
        subject_free(&s);
    }
}

/* ---- system calls ------------------------------------------------------------------------------ */

enum { NOT_HERE = 77, WRONG = 78, TRAPPED = 79 };

/* What a child tells its parent. */
static volatile long *trapped;

static void note_call(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    if (*trapped < 0)
        *trapped = info->si_syscall;
    _exit(TRAPPED);
}

/* From here on every system call of this thread traps, but for its end. False where the system does
 * not do that: emulators do not. */
static bool trap_system_calls(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { .len = COUNT(rules), .filter = rules };
    struct sigaction action = { .sa_sigaction = note_call, .sa_flags = SA_SIGINFO };
    return sigaction(SIGSYS, &action, NULL) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
           && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

/* The child's life: its status. */
static int watch(const struct subject *s, bool (*call)(const struct subject *s))
{
    if (!call(s) || !call(s))
        return WRONG;
    if (!trap_system_calls())
        return NOT_HERE;
    for (int repeat = 0; repeat < 10; repeat++)
        if (!call(s))
            return WRONG;
    return 0;
}

/* The number of the first system call that was trapped, -1 for none, -2 where none can be. */
static long trap_in(const struct subject *s, bool (*call)(const struct subject *s))
{
    *trapped = -1;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(watch(s, call));
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_not_equal(WEXITSTATUS(status), WRONG);
    return WEXITSTATUS(status) == NOT_HERE ? -2 : *trapped;
}

static bool ask_for_process(const struct subject *s)
{
    (void)s;
    return syscall(SYS_getpid) > 0;
}

static void kind_20_case_141_a_warm_call_makes_no_system_call(void **state)
{
    (void)state;
#ifdef ADDRESS_SANITIZER
    skip(); /* it makes system calls of its own */
#endif
    trapped = mmap(NULL, sizeof *trapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                   0);
    assert_true((void *)trapped != MAP_FAILED);
    if (openblas_set_num_threads)
        openblas_set_num_threads(1); /* else it makes system calls to wait for its threads */
    struct subject s = { 0 };
    subject_make(&s, 1);
    long known = trap_in(&s, ask_for_process);
    for (int64_t i = 0; i < COUNT(calls) && known != -2; i++) {
        long number = trap_in(&s, calls[i].call);
        if (number != -1)
            fail_msg("%s makes the system call %ld", calls[i].name, number);
    }
    subject_free(&s);
    munmap((void *)(uintptr_t)trapped, sizeof *trapped);
    if (known == -2)
        skip();
    assert_int_equal(known, SYS_getpid); /* else the trap shows nothing */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kind_20_case_141_a_warm_call_takes_nothing_from_the_heap),
        cmocka_unit_test(kind_20_case_141_a_warm_call_makes_no_system_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
