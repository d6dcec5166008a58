/*
 * Threads inside a call: bits that do not depend on them, executors of the host, threads that
 * cannot be made, the caller's floating-point environment. The linker puts three functions of this file in
 * front of the library's and the system's (--wrap): so cases of any size are spread over all lanes,
 * lanes meet in any order, and the n-th thread cannot be made.
 */
#include "support.h"

#include <errno.h>
#include <fenv.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generator.h"
#include "threads.h"

/* ---- what the linker puts in front ------------------------------------------------------------ */

static bool spread;                    /* every call takes all the lanes it may */
static atomic_int taken_outside;       /* items that threads other than the caller took */
static pthread_t caller;               /* the thread that tests run on */
static int threads_asked, fail_thread; /* the fail_thread-th from 1 on cannot be made; 0: all can */

int64_t __real_mha_threads_lanes(const struct mha_threads *threads, double work, int64_t items);
int64_t __wrap_mha_threads_lanes(const struct mha_threads *threads, double work, int64_t items);
int64_t __wrap_mha_threads_lanes(const struct mha_threads *threads, double work, int64_t items)
{
    if (!spread)
        return __real_mha_threads_lanes(threads, work, items);
    int64_t lanes = threads->count < items ? threads->count : items;
    return lanes > 1 ? lanes : 1;
}

/* Lets others come first, a number of times that differs from item to item. */
bool __real_mha_items_take(struct mha_items *items, int64_t *first, int64_t *end);
bool __wrap_mha_items_take(struct mha_items *items, int64_t *first, int64_t *end);
bool __wrap_mha_items_take(struct mha_items *items, int64_t *first, int64_t *end)
{
    static atomic_uint turn;
    unsigned yields = atomic_fetch_add(&turn, 1) * 2654435761u >> 29;
    for (; spread && yields; yields--)
        sched_yield();
    bool got = __real_mha_items_take(items, first, end);
    if (got && !pthread_equal(pthread_self(), caller))
        atomic_fetch_add(&taken_outside, 1);
    return got;
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *arg)
{
    if (++threads_asked == fail_thread)
        return EAGAIN;
    return __real_pthread_create(thread, attributes, start, arg);
}

static int reset(void **state)
{
    (void)state;
    spread = false;
    fail_thread = threads_asked = 0;
    caller = pthread_self();
    return 0;
}

/* ---- contexts and results --------------------------------------------------------------------- */

static mha_context *context_with(int64_t threads, const struct mha_executor *executor)
{
    mha_context *ctx = NULL;
    char message[512] = "";
    struct mha_context_options options = { .threads = threads,
                                           .executor = executor,
                                           .message = message,
                                           .message_bytes = sizeof message };
    if (mha_context_create(&options, &ctx) != MHA_OK)
        fail_msg("no context: %s", message);
    return ctx;
}

/* All outputs of a case, contiguous and guarded. */
struct results {
    float *data[4];
    int64_t count[4];
    struct mha_tensor tensor[4];
    struct mha_outputs outputs;
};

static const char *const output_names[] = { "out", "lse", "weights", "weights_mean" };

static void results_make(const struct generated_case *c, struct results *r)
{
    int64_t keys = c->S + c->extra;
    r->count[0] = c->B * c->L * c->H * c->Dv;
    r->count[1] = c->B * c->H * c->L;
    r->count[2] = c->B * c->H * c->L * keys;
    r->count[3] = c->B * c->L * keys;
    for (int i = 0; i < 4; i++)
        r->data[i] = guarded_floats(r->count[i]);
    r->tensor[0] = mha_tensor_4d(r->data[0], MHA_FLOAT32, c->B, c->L, c->H, c->Dv);
    r->tensor[1] = mha_tensor_3d(r->data[1], MHA_FLOAT32, c->B, c->H, c->L);
    r->tensor[2] = mha_tensor_4d(r->data[2], MHA_FLOAT32, c->B, c->H, c->L, keys);
    r->tensor[3] = mha_tensor_3d(r->data[3], MHA_FLOAT32, c->B, c->L, keys);
    r->outputs = (struct mha_outputs){ .out = &r->tensor[0],
                                       .lse = &r->tensor[1],
                                       .weights = &r->tensor[2],
                                       .weights_mean = &r->tensor[3] };
}

static void results_free(struct results *r)
{
    for (int i = 0; i < 4; i++)
        guarded_free(r->data[i]);
}

static void results_same(const char *what, const struct results *got, const struct results *want)
{
    for (int i = 0; i < 4; i++) {
        char text[768];
        snprintf(text, sizeof text, "%s: %s", what, output_names[i]);
        check_same_bits(text, got->data[i], want->data[i], got->count[i]);
    }
}

static void run(mha_context *ctx, const struct generated_case *c, const struct mha_outputs *outputs)
{
    mha_status status = mha_attention(ctx, &c->inputs, &c->options, outputs);
    if (status != MHA_OK)
        fail_msg("%s: %s", c->text, mha_context_message(ctx));
}

/* Runs a case on a context, all outputs at once and then without the mean, which is cut otherwise,
 * and compares with what one thread gave. */
static void check_on(mha_context *ctx, const char *who, const struct generated_case *c,
                     const struct results *want)
{
    struct results got;
    char what[704];
    snprintf(what, sizeof what, "%s: %s", who, c->text);
    results_make(c, &got);
    run(ctx, c, &got.outputs);
    results_same(what, &got, want);
    random_fill(got.data[0], got.count[0]);
    random_fill(got.data[1], got.count[1]);
    random_fill(got.data[2], got.count[2]);
    got.outputs.weights_mean = NULL;
    run(ctx, c, &got.outputs);
    results_same(what, &got, want);
    results_free(&got);
}

/* ---- bits ------------------------------------------------------------------------------------- */

static const int64_t thread_counts[] = { 2, 3, 7, 8 };
enum { COUNTS = sizeof thread_counts / sizeof thread_counts[0] };

static void bits_of_random_cases(void **state)
{
    (void)state;
    mha_context *one = context_with(0, NULL), *many[COUNTS];
    for (int i = 0; i < COUNTS; i++)
        many[i] = context_with(thread_counts[i], NULL);
    int before = atomic_load(&taken_outside);
    for (int64_t n = case_count(150); n > 0; n--) {
        struct generated_case c;
        struct results want;
        generated_make(&c);
        results_make(&c, &want);
        spread = false;
        run(one, &c, &want.outputs);
        spread = true;
        for (int i = 0; i < COUNTS; i++) {
            char who[32];
            snprintf(who, sizeof who, "%" PRId64 " threads", thread_counts[i]);
            check_on(many[i], who, &c, &want);
        }
        results_free(&want);
        generated_free(&c);
    }
    assert_true(atomic_load(&taken_outside) > before);
    for (int i = 0; i < COUNTS; i++)
        mha_context_free(many[i]);
    mha_context_free(one);
}

/* A problem that is worth threads by itself. */
struct large {
    float *q, *k, *v, *out;
    struct mha_tensor t_q, t_k, t_v, t_out;
    struct mha_inputs inputs;
    struct mha_options options;
    struct mha_outputs outputs;
    int64_t count;
};

enum { LARGE_B = 2, LARGE_L = 131, LARGE_S = 157, LARGE_H = 6, LARGE_G = 3 };
enum { LARGE_D = 17, LARGE_DV = 19 };

static void large_make(struct large *p)
{
    int64_t q = LARGE_B * LARGE_L * LARGE_H * LARGE_D, k = LARGE_B * LARGE_S * LARGE_G * LARGE_D;
    int64_t v = LARGE_B * LARGE_S * LARGE_G * LARGE_DV;
    *p = (struct large){ .count = LARGE_B * LARGE_L * LARGE_H * LARGE_DV };
    p->q = guarded_floats(q);
    p->k = guarded_floats(k);
    p->v = guarded_floats(v);
    p->out = guarded_floats(p->count);
    p->t_q = mha_tensor_4d(p->q, MHA_FLOAT32, LARGE_B, LARGE_L, LARGE_H, LARGE_D);
    p->t_k = mha_tensor_4d(p->k, MHA_FLOAT32, LARGE_B, LARGE_S, LARGE_G, LARGE_D);
    p->t_v = mha_tensor_4d(p->v, MHA_FLOAT32, LARGE_B, LARGE_S, LARGE_G, LARGE_DV);
    p->t_out = mha_tensor_4d(p->out, MHA_FLOAT32, LARGE_B, LARGE_L, LARGE_H, LARGE_DV);
    p->inputs = (struct mha_inputs){ .query = &p->t_q, .key = &p->t_k, .value = &p->t_v };
    p->outputs = (struct mha_outputs){ .out = &p->t_out };
}

static void large_free(struct large *p)
{
    guarded_free(p->q);
    guarded_free(p->k);
    guarded_free(p->v);
    guarded_free(p->out);
}

static void large_run(mha_context *ctx, struct large *p)
{
    check_status(ctx, mha_attention(ctx, &p->inputs, &p->options, &p->outputs), MHA_OK);
}

/* What one thread makes of it, and NaN in place of the output. */
static float *large_want(struct large *p)
{
    mha_context *one = context_with(1, NULL);
    float *want = guarded_floats(p->count);
    large_run(one, p);
    memcpy(want, p->out, (size_t)p->count * sizeof *want);
    memset(p->out, 0xff, (size_t)p->count * sizeof *p->out);
    mha_context_free(one);
    return want;
}

/* Case 76: twenty times on each number of threads. */
static void bits_of_a_large_case(void **state)
{
    (void)state;
    struct large p;
    large_make(&p);
    for (int causal = 0; causal < 2; causal++) {
        p.options.causal = causal;
        float *want = large_want(&p);
        for (int i = 0; i < COUNTS; i++) {
            mha_context *ctx = context_with(thread_counts[i], NULL);
            for (int repeat = 0; repeat < 20; repeat++) {
                large_run(ctx, &p);
                check_same_bits("out", p.out, want, p.count);
                memset(p.out, 0xff, (size_t)p.count * sizeof *p.out);
            }
            mha_context_free(ctx);
        }
        guarded_free(want);
    }
    assert_true(threads_asked > 0);
    large_free(&p);
}

/* ---- items ------------------------------------------------------------------------------------ */

struct tally {
    struct mha_items items;
    atomic_int seen[1000];
};

static void tally_lane(void *arg, int64_t lane)
{
    (void)lane;
    struct tally *tally = arg;
    for (int64_t item, end; mha_items_take(&tally->items, &item, &end);)
        for (; item < end; item++)
            atomic_fetch_add(&tally->seen[item], 1);
}

/* Every item once, whatever the numbers. */
static void items_are_handed_out_once(void **state)
{
    (void)state;
    spread = true;
    static struct tally tally;
    for (int64_t lanes = 1; lanes <= 5; lanes++) {
        struct mha_threads threads = { .count = lanes };
        threads.workers = aligned_alloc(MHA_ALIGNMENT, (size_t)mha_threads_bytes(&threads) + 64);
        assert_int_equal(mha_threads_prepare(&threads, lanes), 0);
        for (int64_t count = 0; count < 1000; count = count * 3 / 2 + 1) {
            tally = (struct tally){ .items = { .count = count, .lanes = lanes } };
            mha_threads_run(&threads, lanes, tally_lane, &tally);
            for (int64_t i = 0; i < 1000; i++)
                assert_int_equal(atomic_load(&tally.seen[i]), i < count);
        }
        mha_threads_free(&threads);
        free(threads.workers);
    }
}

static void lanes_by_work(void **state)
{
    (void)state;
    struct mha_threads threads = { .count = 8 };
    const struct {
        double work;
        int64_t items, lanes;
    } cases[] = {
        { 0, 100, 1 },
        { 1.9 * MHA_LANE_WORK, 100, 1 },
        { 2 * MHA_LANE_WORK, 100, 2 },
        { 7.5 * MHA_LANE_WORK, 100, 7 },
        { 1e300, 100, 8 },
        { 1e300, 3, 3 },
        { 1e300, 0, 1 },
        { 1e300, INT64_MAX, 8 },
    };
    for (int64_t i = 0; i < COUNT(cases); i++)
        assert_int_equal(mha_threads_lanes(&threads, cases[i].work, cases[i].items),
                         cases[i].lanes);
}

/* ---- executors of the host -------------------------------------------------------------------- */

static int64_t runs, largest_n;

static void note_run(int64_t n)
{
    runs++;
    largest_n = n > largest_n ? n : largest_n;
}

static void run_serially(void *user, void (*fn)(void *arg, int64_t i), void *arg, int64_t n)
{
    assert_ptr_equal(user, &runs);
    note_run(n);
    for (int64_t i = 0; i < n; i++)
        fn(arg, i);
}

static void run_backwards(void *user, void (*fn)(void *arg, int64_t i), void *arg, int64_t n)
{
    assert_ptr_equal(user, &runs);
    note_run(n);
    for (int64_t i = n - 1; i >= 0; i--)
        fn(arg, i);
}

struct part {
    pthread_t thread;
    void (*fn)(void *arg, int64_t i);
    void *arg;
    int64_t i;
};

static void *run_part(void *arg)
{
    const struct part *part = arg;
    part->fn(part->arg, part->i);
    return NULL;
}

/* A thread for each, none on the calling one. */
static void run_on_threads(void *user, void (*fn)(void *arg, int64_t i), void *arg, int64_t n)
{
    assert_ptr_equal(user, &runs);
    note_run(n);
    struct part parts[16];
    assert_true(n <= COUNT(parts));
    for (int64_t i = 0; i < n; i++) {
        parts[i] = (struct part){ .fn = fn, .arg = arg, .i = i };
        assert_int_equal(__real_pthread_create(&parts[i].thread, NULL, run_part, &parts[i]), 0);
    }
    for (int64_t i = 0; i < n; i++)
        pthread_join(parts[i].thread, NULL);
}

static void executors(void **state)
{
    (void)state;
    const struct mha_executor hosts[] = { { run_serially, &runs },
                                          { run_backwards, &runs },
                                          { run_on_threads, &runs } };
    const char *const names[] = { "serial executor", "backward executor", "threaded executor" };
    mha_context *one = context_with(1, NULL), *ctx[COUNT(hosts)];
    for (int64_t i = 0; i < COUNT(hosts); i++) {
        struct mha_executor copied = hosts[i];
        ctx[i] = context_with(5, &copied);
        memset(&copied, 0, sizeof copied);
        assert_int_equal(mha_context_threads(ctx[i]), 5);
    }
    runs = largest_n = 0;
    for (int64_t n = case_count(100); n > 0; n--) {
        struct generated_case c;
        struct results want;
        generated_make(&c);
        results_make(&c, &want);
        spread = false;
        run(one, &c, &want.outputs);
        spread = true;
        for (int64_t i = 0; i < COUNT(hosts); i++)
            check_on(ctx[i], names[i], &c, &want);
        results_free(&want);
        generated_free(&c);
    }
    assert_true(runs > 0);
    assert_int_equal(largest_n, 5);
    assert_int_equal(threads_asked, 0);
    for (int64_t i = 0; i < COUNT(hosts); i++)
        mha_context_free(ctx[i]);
    mha_context_free(one);
}

/* It is not called for what is not worth it, nor for one thread. */
static void executor_by_need(void **state)
{
    (void)state;
    struct large p;
    large_make(&p);
    struct mha_executor host = { run_serially, &runs };
    mha_context *ctx = context_with(3, &host), *one = context_with(1, &host);
    runs = 0;
    large_run(one, &p);
    assert_int_equal(runs, 0);
    p.t_q.shape[1] = p.t_out.shape[1] = 1;
    large_run(ctx, &p);
    assert_int_equal(runs, 0);
    p.t_q.shape[1] = p.t_out.shape[1] = LARGE_L;
    large_run(ctx, &p);
    assert_int_equal(runs, 1);
    mha_context_free(ctx);
    mha_context_free(one);
    large_free(&p);
}

/* One query row, and what threads do with a long row of keys. */
struct long_row {
    float *q, *k, *out, *weights;
    struct mha_tensor t_q, t_k, t_out, t_weights;
    struct mha_inputs inputs;
};

enum { LONG_S = 20011, LONG_D = 131 };

static void long_row_make(struct long_row *p)
{
    p->q = guarded_floats(LONG_D);
    p->k = guarded_floats((int64_t)LONG_S * LONG_D);
    p->out = guarded_floats(LONG_D);
    p->weights = guarded_floats(LONG_S);
    random_fill(p->q, LONG_D);
    random_fill(p->k, (int64_t)LONG_S * LONG_D);
    p->t_q = mha_tensor_4d(p->q, MHA_FLOAT32, 1, 1, 1, LONG_D);
    p->t_k = mha_tensor_4d(p->k, MHA_FLOAT32, 1, LONG_S, 1, LONG_D);
    p->t_out = mha_tensor_4d(p->out, MHA_FLOAT32, 1, 1, 1, LONG_D);
    p->t_weights = mha_tensor_4d(p->weights, MHA_FLOAT32, 1, 1, 1, LONG_S);
    p->inputs = (struct mha_inputs){ .query = &p->t_q, .key = &p->t_k, .value = &p->t_k };
}

static void long_row_free(struct long_row *p)
{
    guarded_free(p->q);
    guarded_free(p->k);
    guarded_free(p->out);
    guarded_free(p->weights);
}

/* The keys of a single row are shared by as many lanes as their work is worth, but not where the weights
 * are wanted; a workspace of the size that was told suffices, and the result is the same. */
static void keys_of_a_row_are_shared(void **state)
{
    (void)state;
    struct long_row p;
    long_row_make(&p);
    struct mha_outputs all = { .out = &p.t_out, .weights = &p.t_weights };
    struct mha_outputs out = { .out = &p.t_out };
    mha_context *one = context_with(1, NULL);
    check_status(one, mha_attention(one, &p.inputs, NULL, &all), MHA_OK);
    float *want = guarded_floats(LONG_D);
    memcpy(want, p.out, LONG_D * sizeof *want);
    for (int64_t threads = 2; threads <= 8; threads++) {
        struct mha_executor host = { run_on_threads, &runs };
        mha_context *ctx = context_with(threads, &host);
        runs = largest_n = 0;
        random_fill(p.out, LONG_D);
        check_status(ctx, mha_attention(ctx, &p.inputs, NULL, &all), MHA_OK);
        check_same_bits("with weights", p.out, want, LONG_D);
        assert_int_equal(runs, 0);
        int64_t told = 0, least = 0, work = (int64_t)LONG_S * (2 * LONG_D + 16);
        check_status(ctx, mha_attention_workspace(ctx, &p.inputs, NULL, &out, &told), MHA_OK);
        check_status(one, mha_attention_workspace(one, &p.inputs, NULL, &out, &least), MHA_OK);
        random_fill(p.out, LONG_D);
        check_status(ctx, mha_attention(ctx, &p.inputs, NULL, &out), MHA_OK);
        check_same_bits("shared", p.out, want, LONG_D);
        assert_int_equal(runs, 1);
        int64_t lanes = work / MHA_LANE_WORK < threads ? work / MHA_LANE_WORK : threads;
        assert_int_equal(largest_n, lanes);
        /* What a row leaves of each split of 512 keys: its output, filled up, and m and l of a tile. */
        int64_t parts = (LONG_S / 512 + 1) * (LONG_D + 15 + 6 * 48) * 4;
        assert_true(told > lanes * least && told <= lanes * least + parts + 64);
        mha_context_free(ctx);
    }
    guarded_free(want);
    mha_context_free(one);
    long_row_free(&p);
}

static mha_context *busy, *other;
static struct large *nested;
static mha_status from_inside, from_thread, of_other;

static void *use_busy(void *arg)
{
    (void)arg;
    from_thread = mha_attention(busy, &nested->inputs, &nested->options, &nested->outputs);
    return NULL;
}

/* While a call runs: the same context here and on another thread, another context here. */
static void run_nested(void *user, void (*fn)(void *arg, int64_t i), void *arg, int64_t n)
{
    (void)user;
    pthread_t thread;
    int64_t bytes;
    from_inside = mha_attention(busy, &nested->inputs, &nested->options, &nested->outputs);
    assert_int_equal(mha_context_reserve(busy, 1), MHA_ERROR_BUSY);
    assert_int_equal(
        mha_attention_workspace(busy, &nested->inputs, &nested->options, &nested->outputs, &bytes),
        MHA_ERROR_BUSY);
    assert_int_equal(__real_pthread_create(&thread, NULL, use_busy, NULL), 0);
    pthread_join(thread, NULL);
    of_other = mha_attention(other, &nested->inputs, &nested->options, &nested->outputs);
    for (int64_t i = 0; i < n; i++)
        fn(arg, i);
}

static void nested_and_concurrent_use(void **state)
{
    (void)state;
    struct large p, inner;
    large_make(&p);
    large_make(&inner);
    float *want = large_want(&p), *inner_want = large_want(&inner);
    nested = &inner;
    struct mha_executor host = { run_nested, NULL };
    busy = context_with(2, &host);
    other = context_with(2, NULL);
    from_inside = from_thread = of_other = MHA_ERROR_FILE;
    large_run(busy, &p);
    assert_int_equal(from_inside, MHA_ERROR_BUSY);
    assert_int_equal(from_thread, MHA_ERROR_BUSY);
    check_status(other, of_other, MHA_OK);
    check_same_bits("out", p.out, want, p.count);
    check_same_bits("inner out", inner.out, inner_want, inner.count);
    mha_context_free(busy);
    mha_context_free(other);
    guarded_free(want);
    guarded_free(inner_want);
    large_free(&p);
    large_free(&inner);
}

/* ---- threads that cannot be made -------------------------------------------------------------- */

static void thread_creation_fails(void **state)
{
    (void)state;
    struct large p;
    large_make(&p);
    float *want = large_want(&p), *untouched = guarded_floats(p.count);
    memcpy(p.out, untouched, (size_t)p.count * sizeof *untouched);
    for (int n = 1; n <= 4; n++) {
        struct counting counting;
        counting_init(&counting);
        mha_context *ctx = NULL;
        assert_int_equal(
            mha_context_create(
                &(struct mha_context_options){ .allocator = &counting.allocator, .threads = 5 },
                &ctx),
            MHA_OK);
        spread = true;
        threads_asked = 0;
        fail_thread = n;
        check_status(ctx, mha_attention(ctx, &p.inputs, NULL, &p.outputs), MHA_ERROR_THREAD);
        check_contains(mha_context_message(ctx),
                       "mha_attention: the system would not make a thread");
        check_same_bits("untouched", p.out, untouched, p.count);
        int64_t calls = counting.calls;
        large_run(ctx, &p); /* now it can be made */
        check_same_bits("out", p.out, want, p.count);
        assert_int_equal(threads_asked, 5); /* those made before were kept */
        large_run(ctx, &p);
        assert_int_equal(threads_asked, 5);
        assert_int_equal(counting.calls, calls); /* threads take no memory of a call */
        mha_context_free(ctx);
        assert_int_equal(counting.live, 0);
        memcpy(p.out, untouched, (size_t)p.count * sizeof *untouched);
    }
    guarded_free(untouched);
    guarded_free(want);
    large_free(&p);
}

/* A packed layer in whose steps other numbers of threads are worth it; whichever cannot be made, it
 * is an error before anything is written. */
static void thread_creation_fails_for_a_packed_layer(void **state)
{
    (void)state;
    enum { ROWS = 500, WIDTH = 96, HEADS = 2, FLOATS = ROWS * WIDTH };
    float *w = guarded_floats(WIDTH * WIDTH), *x = guarded_floats(FLOATS);
    float *out = guarded_floats(FLOATS), *untouched = guarded_floats(FLOATS);
    float *want = guarded_floats(FLOATS);
    struct mha_tensor t_w = mha_tensor_2d_const(w, MHA_FLOAT32, WIDTH, WIDTH);
    struct mha_tensor t_x = mha_tensor_3d_const(x, MHA_FLOAT32, 1, ROWS, WIDTH);
    struct mha_tensor t_out = mha_tensor_3d(out, MHA_FLOAT32, 1, ROWS, WIDTH);
    struct mha_layer_shape shape = { .E = WIDTH, .H = HEADS };
    struct mha_weights all = { .w_q = &t_w, .w_k = &t_w, .w_v = &t_w, .w_o = &t_w };
    struct mha_inputs inputs = { .query = &t_x, .residual = &t_x };
    struct mha_outputs outputs = { .out = &t_out };
    mha_context *one = context_with(1, NULL);
    mha_layer *layer = NULL;
    check_status(one, mha_layer_create(one, &shape, &all, MHA_COPY, &layer), MHA_OK);
    check_status(one, mha_layer_pack(one, layer, MHA_PACK_DROP), MHA_OK);
    check_status(one, mha_forward(one, layer, &inputs, NULL, &outputs), MHA_OK);
    memcpy(want, out, FLOATS * sizeof *out);
    int failures = 0;
    for (int forced = 0; forced < 2; forced++)
        for (int n = 1; n <= 5; n++) {
            mha_context *ctx = context_with(6, NULL);
            spread = forced;
            threads_asked = 0;
            fail_thread = n;
            memcpy(out, untouched, FLOATS * sizeof *out);
            mha_status status = mha_forward(ctx, layer, &inputs, NULL, &outputs);
            if (threads_asked >= n) {
                failures++;
                check_status(ctx, status, MHA_ERROR_THREAD);
                check_contains(mha_context_message(ctx),
                               "mha_forward: the system would not make a thread");
                check_same_bits("untouched", out, untouched, FLOATS);
                status = mha_forward(ctx, layer, &inputs, NULL, &outputs); /* now it can be made */
            }
            check_status(ctx, status, MHA_OK);
            check_same_bits("out", out, want, FLOATS);
            mha_context_free(ctx);
        }
    assert_true(failures >= 5);
    mha_layer_free(layer);
    mha_context_free(one);
    float *const blocks[] = { w, x, out, untouched, want };
    for (int64_t i = 0; i < COUNT(blocks); i++)
        guarded_free(blocks[i]);
}

/* ---- the caller's floating-point environment -------------------------------------------------- */

#if defined(__x86_64__)
#include <xmmintrin.h>

static uint64_t environment(void)
{
    return _mm_getcsr();
}

static void set_environment(uint64_t word)
{
    _mm_setcsr((unsigned)word);
}

/* Flush to zero and subnormals are zero; each rounding; traps on division and invalid operations;
 * flags that are up. */
static const uint64_t environments[] = { 0x9fc0, 0x3f80, 0x5f80, 0x7f80, 0x1d00, 0x1fbf };
#elif defined(__aarch64__)
static uint64_t environment(void)
{
    uint64_t control, flags;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(control), "=r"(flags));
    return flags << 32 | control;
}

static void set_environment(uint64_t word)
{
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1"
                     :
                     : "r"(word & UINT32_MAX), "r"(word >> 32)
                     : "memory");
}

/* Flush to zero, each rounding, default NaN, flags that are up. */
static const uint64_t environments[] = { 1u << 24, 1u << 22, 2u << 22,
                                         3u << 22, 1u << 25, (uint64_t)0x1f << 32 };
#else
static uint64_t environment(void)
{
    return (uint64_t)fegetround();
}

static void set_environment(uint64_t word)
{
    fesetround((int)word);
}

static const uint64_t environments[] = { FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO };
#endif

static uint64_t thread_environment;
static atomic_bool thread_environment_kept;

static void *run_part_there(void *arg)
{
    set_environment(thread_environment);
    run_part(arg);
    if (environment() != thread_environment)
        atomic_store(&thread_environment_kept, false);
    return NULL;
}

/* Like run_on_threads, with the environment of the test in every thread. */
static void run_in_environment(void *user, void (*fn)(void *arg, int64_t i), void *arg, int64_t n)
{
    (void)user;
    struct part parts[16];
    assert_true(n <= COUNT(parts));
    for (int64_t i = 0; i < n; i++) {
        parts[i] = (struct part){ .fn = fn, .arg = arg, .i = i };
        int error = __real_pthread_create(&parts[i].thread, NULL, run_part_there, &parts[i]);
        assert_int_equal(error, 0);
    }
    for (int64_t i = 0; i < n; i++)
        pthread_join(parts[i].thread, NULL);
}

/* A call in an environment; returns that which it leaves. */
static uint64_t run_under(mha_context *ctx, struct large *p, uint64_t word, mha_status *status)
{
    uint64_t host = environment();
    set_environment(word);
    *status = mha_attention(ctx, &p->inputs, &p->options, &p->outputs);
    uint64_t left = environment();
    set_environment(host);
    return left;
}

static void check_environments(mha_context *(*make)(void), struct large *p, const float *want)
{
    for (int64_t i = 0; i < COUNT(environments); i++) {
        mha_context *ctx = make();
        for (int repeat = 0; repeat < 3; repeat++) {
            mha_status status;
            memset(p->out, 0xff, (size_t)p->count * sizeof *p->out);
            thread_environment = environments[i];
            atomic_store(&thread_environment_kept, true);
            uint64_t left = run_under(ctx, p, environments[i], &status);
            check_status(ctx, status, MHA_OK);
            assert_true(left == environments[i]);
            assert_true(atomic_load(&thread_environment_kept));
            check_same_bits("out", p->out, want, p->count);
        }
        mha_context_free(ctx);
    }
}

static mha_context *make_single(void)
{
    return context_with(1, NULL);
}

static mha_context *make_pool(void)
{
    return context_with(3, NULL);
}

static mha_context *make_hosted(void)
{
    static const struct mha_executor host = { run_in_environment, NULL };
    return context_with(3, &host);
}

static void floating_point_environment(void **state)
{
    (void)state;
    struct large p;
    large_make(&p);
    /* Subnormal values, so that outputs are subnormal, and a NaN row: flushing, another rounding
     * and a trap would all show. */
    for (int64_t i = 0; i < LARGE_B * LARGE_S * LARGE_G * LARGE_DV; i++)
        p.v[i] *= 0x1p-127f;
    p.k[3] = __builtin_inff();
    p.options.causal = 1;
    float *want = large_want(&p);
    int64_t subnormal = 0, nan = 0;
    for (int64_t i = 0; i < p.count; i++) {
        subnormal += want[i] != 0 && want[i] < 0x1p-126f && want[i] > -0x1p-126f;
        nan += want[i] != want[i];
    }
    assert_true(subnormal > p.count / 4);
    assert_true(nan > 0);
    spread = true;
    check_environments(make_single, &p, want);
    check_environments(make_pool, &p, want);
    check_environments(make_hosted, &p, want);
    guarded_free(want);
    large_free(&p);
}

/* Errors, too, leave the environment as it was; and other functions compute under the default. */
static void environment_of_other_calls(void **state)
{
    (void)state;
    mha_context *ctx = context_with(1, NULL);
    float x[3] = { 1, 0x1p-140f, 1 }, y[3] = { 0x1p-30f, 0x1p-140f, -0x1p-30f }, out[3];
    const float want[3] = { 1, 0x1p-139f, 1 };
    struct mha_tensor t_x = mha_tensor_1d(x, MHA_FLOAT32, 3);
    struct mha_tensor t_y = mha_tensor_1d(y, MHA_FLOAT32, 3);
    struct mha_tensor t_out = mha_tensor_1d(out, MHA_FLOAT32, 3);
    for (int64_t i = 0; i < COUNT(environments); i++) {
        uint64_t host = environment();
        set_environment(environments[i]);
        mha_status sum = mha_residual_add(ctx, &t_x, &t_y, &t_out);
        uint64_t after_sum = environment();
        mha_status refused = mha_attention(ctx, NULL, NULL, NULL);
        uint64_t after_error = environment();
        set_environment(host);
        check_status(ctx, sum, MHA_OK);
        check_status(ctx, refused, MHA_ERROR_ARGUMENT);
        assert_true(after_sum == environments[i]);
        assert_true(after_error == environments[i]);
        check_same_bits("sum", out, want, 3);
    }
    mha_context_free(ctx);
}

/* ---- the context's options -------------------------------------------------------------------- */

static void options(void **state)
{
    (void)state;
    assert_int_equal(mha_context_threads(NULL), 0);
    const struct {
        int64_t threads, resolved; /* 0: refused */
    } cases[] = { { 0, 1 },    { 1, 1 },  { 2, 2 },         { 1024, 1024 },
                  { 1025, 0 }, { -2, 0 }, { INT64_MAX, 0 }, { INT64_MIN, 0 } };
    for (int64_t i = 0; i < COUNT(cases); i++) {
        struct counting counting;
        counting_init(&counting);
        char message[512] = "";
        struct mha_context_options given = { .size = sizeof given,
                                             .allocator = &counting.allocator,
                                             .threads = cases[i].threads,
                                             .message = message,
                                             .message_bytes = sizeof message };
        mha_context *ctx = NULL;
        mha_status status = mha_context_create(&given, &ctx);
        assert_int_equal(status, cases[i].resolved ? MHA_OK : MHA_ERROR_ARGUMENT);
        assert_int_equal(mha_context_threads(ctx), cases[i].resolved);
        assert_int_equal(counting.calls, cases[i].resolved ? 1 : 0);
        if (!cases[i].resolved)
            check_contains(message, "threads is ");
        mha_context_free(ctx);
        assert_int_equal(counting.live_bytes, 0);
    }
    char message[512] = "";
    struct mha_executor without = { NULL, &runs };
    mha_context *ctx = NULL;
    struct mha_context_options given = { .executor = &without,
                                         .message = message,
                                         .message_bytes = sizeof message };
    assert_int_equal(mha_context_create(&given, &ctx), MHA_ERROR_ARGUMENT);
    assert_null(ctx);
    assert_string_equal(message, "mha_context_create: executor lacks run");
    assert_int_equal(threads_asked, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(options, reset),
        cmocka_unit_test_setup(lanes_by_work, reset),
        cmocka_unit_test_setup(items_are_handed_out_once, reset),
        cmocka_unit_test_setup(bits_of_random_cases, reset),
        cmocka_unit_test_setup(bits_of_a_large_case, reset),
        cmocka_unit_test_setup(executors, reset),
        cmocka_unit_test_setup(executor_by_need, reset),
        cmocka_unit_test_setup(keys_of_a_row_are_shared, reset),
        cmocka_unit_test_setup(nested_and_concurrent_use, reset),
        cmocka_unit_test_setup(thread_creation_fails, reset),
        cmocka_unit_test_setup(thread_creation_fails_for_a_packed_layer, reset),
        cmocka_unit_test_setup(floating_point_environment, reset),
        cmocka_unit_test_setup(environment_of_other_calls, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
