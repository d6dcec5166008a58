/*
 * What the machine could do at most.
 *
 * Each level has two loops. One keeps twelve chains of multiply-adds in registers, enough for two
 * units of a latency of six; the other adds up memory, eight vectors at a time. Empty asm
 * statements keep the compiler from joining equal chains and from leaving out sums that nobody
 * reads.
 */
#include "bench_roof.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { CHAINS = 12, STREAMS = 8 };

/* ---- the loops ---- */

struct level {
    const char *isa;
    int64_t lanes;                                   /* floats of a vector */
    void (*multiply_add)(int64_t steps);             /* steps * CHAINS vectors */
    void (*read)(const float *data, int64_t blocks); /* blocks * STREAMS vectors */
};

/* Four floats, as far as the language itself goes. */
enum { GENERIC_LANES = 4 };

static void multiply_add_generic(int64_t steps)
{
    volatile float given = 0.5f;
    float factor = given, acc[CHAINS][GENERIC_LANES] = { { 0 } };
    for (int c = 0; c < CHAINS; c++)
        __asm__("" : "+m"(acc[c]));
    for (int64_t step = 0; step < steps; step++)
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++)
#pragma GCC unroll 4
            for (int i = 0; i < GENERIC_LANES; i++)
                acc[c][i] = acc[c][i] * factor + factor;
    for (int c = 0; c < CHAINS; c++)
        __asm__ volatile("" ::"m"(acc[c]));
}

static void read_generic(const float *data, int64_t blocks)
{
    float sum[STREAMS * GENERIC_LANES] = { 0 };
    for (int64_t block = 0; block < blocks; block++, data += STREAMS * GENERIC_LANES)
        for (int i = 0; i < STREAMS * GENERIC_LANES; i++)
            sum[i] += data[i];
    __asm__ volatile("" ::"m"(sum));
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void multiply_add_avx2(int64_t steps)
{
    volatile float given = 0.5f;
    __m256 factor = _mm256_set1_ps(given), acc[CHAINS];
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++) {
        acc[c] = factor;
        __asm__("" : "+x"(acc[c]));
    }
    for (int64_t step = 0; step < steps; step++)
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++)
            acc[c] = _mm256_fmadd_ps(acc[c], factor, factor);
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++)
        __asm__ volatile("" ::"x"(acc[c]));
}

__attribute__((target("avx2"))) static void read_avx2(const float *data, int64_t blocks)
{
    __m256 sum[STREAMS];
#pragma GCC unroll 8
    for (int i = 0; i < STREAMS; i++)
        sum[i] = _mm256_setzero_ps();
    for (int64_t block = 0; block < blocks; block++, data += STREAMS * 8)
#pragma GCC unroll 8
        for (int i = 0; i < STREAMS; i++)
            sum[i] = _mm256_add_ps(sum[i], _mm256_loadu_ps(data + 8 * i));
#pragma GCC unroll 8
    for (int i = 0; i < STREAMS; i++)
        __asm__ volatile("" ::"x"(sum[i]));
}

__attribute__((target("avx512f"))) static void multiply_add_avx512(int64_t steps)
{
    volatile float given = 0.5f;
    __m512 factor = _mm512_set1_ps(given), acc[CHAINS];
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++) {
        acc[c] = factor;
        __asm__("" : "+v"(acc[c]));
    }
    for (int64_t step = 0; step < steps; step++)
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++)
            acc[c] = _mm512_fmadd_ps(acc[c], factor, factor);
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++)
        __asm__ volatile("" ::"v"(acc[c]));
}

__attribute__((target("avx512f"))) static void read_avx512(const float *data, int64_t blocks)
{
    __m512 sum[STREAMS];
#pragma GCC unroll 8
    for (int i = 0; i < STREAMS; i++)
        sum[i] = _mm512_setzero_ps();
    for (int64_t block = 0; block < blocks; block++, data += STREAMS * 16)
#pragma GCC unroll 8
        for (int i = 0; i < STREAMS; i++)
            sum[i] = _mm512_add_ps(sum[i], _mm512_loadu_ps(data + 16 * i));
#pragma GCC unroll 8
    for (int i = 0; i < STREAMS; i++)
        __asm__ volatile("" ::"v"(sum[i]));
}
#elif defined(__aarch64__)
static void multiply_add_neon(int64_t steps)
{
    volatile float given = 0.5f;
    float32x4_t factor = vdupq_n_f32(given), acc[CHAINS];
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++) {
        acc[c] = factor;
        __asm__("" : "+w"(acc[c]));
    }
    for (int64_t step = 0; step < steps; step++)
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++)
            acc[c] = vfmaq_f32(factor, acc[c], factor);
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++)
        __asm__ volatile("" ::"w"(acc[c]));
}

static void read_neon(const float *data, int64_t blocks)
{
    float32x4_t sum[STREAMS];
#pragma GCC unroll 8
    for (int i = 0; i < STREAMS; i++)
        sum[i] = vdupq_n_f32(0);
    for (int64_t block = 0; block < blocks; block++, data += STREAMS * 4)
#pragma GCC unroll 8
        for (int i = 0; i < STREAMS; i++)
            sum[i] = vaddq_f32(sum[i], vld1q_f32(data + 4 * i));
#pragma GCC unroll 8
    for (int i = 0; i < STREAMS; i++)
        __asm__ volatile("" ::"w"(sum[i]));
}
#endif

static const struct level levels[] = {
    { "generic", GENERIC_LANES, multiply_add_generic, read_generic },
#if defined(__x86_64__)
    { "avx2", 8, multiply_add_avx2, read_avx2 },
    { "avx512", 16, multiply_add_avx512, read_avx512 },
#elif defined(__aarch64__)
    { "neon", 4, multiply_add_neon, read_neon },
#endif
};

static const struct level *find_level(const char *isa)
{
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if ((strcmp(isa, "avx2") == 0 && !avx2)
        || (strcmp(isa, "avx512") == 0 && !__builtin_cpu_supports("avx512f")))
        return NULL;
#endif
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
        if (strcmp(levels[i].isa, isa) == 0)
            return &levels[i];
    return NULL;
}

/* ---- threads that begin and end together ---- */

enum { TRIES = 5, LEAVE = TRIES + 1 };

struct team {
    const struct level *level;
    const float *data;
    int64_t rounds;      /* how often the work is done in one try */
    int64_t amount;      /* of one thread and round: steps, or blocks when there is data */
    atomic_int begun;    /* tries that the leader has begun, or LEAVE: there is nothing to do */
    atomic_int finished; /* tries that followers have finished, all together */
};

struct member {
    struct team *team;
    int64_t number;
    pthread_t thread;
};

static void work(const struct member *member)
{
    const struct team *team = member->team;
    int64_t part = team->amount * STREAMS * team->level->lanes;
    for (int64_t round = 0; round < team->rounds; round++) {
        if (team->data)
            team->level->read(team->data + member->number * part, team->amount);
        else
            team->level->multiply_add(team->amount);
    }
}

static void wait_for(atomic_int *counter, int64_t value)
{
    while (atomic_load(counter) < value)
        sched_yield();
}

static void *follow(void *argument)
{
    const struct member *member = argument;
    for (int i = 1; i <= TRIES; i++) {
        wait_for(&member->team->begun, i);
        if (atomic_load(&member->team->begun) == LEAVE)
            break;
        work(member);
        atomic_fetch_add(&member->team->finished, 1);
    }
    return NULL;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The shortest time that a try took this thread and its followers. */
static double lead(const struct member *self, int64_t followers)
{
    double best = 0;
    for (int i = 1; i <= TRIES; i++) {
        double begin = seconds();
        atomic_store(&self->team->begun, i);
        work(self);
        wait_for(&self->team->finished, i * followers);
        double time = seconds() - begin;
        best = i == 1 || time < best ? time : best;
    }
    return best;
}

/* Seconds of one try, 0 when a thread cannot be had. */
static double run_team(struct team *team, int64_t threads)
{
    struct member *members = calloc((size_t)threads, sizeof *members);
    if (!members)
        return 0;
    for (int64_t i = 0; i < threads; i++)
        members[i] = (struct member){ .team = team, .number = i };
    int64_t made = 1;
    while (made < threads
           && pthread_create(&members[made].thread, NULL, follow, &members[made]) == 0)
        made++;
    double best = 0;
    if (made == threads)
        best = lead(&members[0], threads - 1);
    else
        atomic_store(&team->begun, LEAVE);
    for (int64_t i = 1; i < made; i++)
        pthread_join(members[i].thread, NULL);
    free(members);
    return best;
}

/* ---- the two questions ---- */

double bench_roof_fma(const char *isa, int64_t threads)
{
    struct team team = { .level = find_level(isa), .rounds = 1, .amount = 100000 };
    if (!team.level)
        return 0;
    double time = run_team(&team, threads);
    double flops = 2.0 * CHAINS * (double)(team.level->lanes * team.amount * threads);
    return time > 0 ? flops / time : 0;
}

double bench_roof_read(const char *isa, int64_t threads, int64_t bytes)
{
    enum { LARGE_PAGE = 2 << 20, LEAST = 32 << 20 }; /* bytes to read in a try */
    struct team team = { .level = find_level(isa) };
    if (!team.level)
        return 0;
    int64_t block = STREAMS * team.level->lanes * (int64_t)sizeof(float);
    team.amount = (bytes / block + threads - 1) / threads;
    int64_t total = team.amount * threads * block;
    size_t room = ((size_t)total + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    float *data = total > 0 ? aligned_alloc(LARGE_PAGE, room) : NULL;
    if (!data)
        return 0;
    (void)madvise(data, room, MADV_HUGEPAGE); /* as the library does with large blocks */
    memset(data, 0, room);
    team.data = data;
    team.rounds = LEAST / total + 1;
    double time = run_team(&team, threads);
    free(data);
    return time > 0 ? (double)(total * team.rounds) / time : 0;
}
