#include "support.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void check_close(const char *what, const float *got, const double *want, int64_t n, double bound)
{
    for (int64_t i = 0; i < n; i++) {
        bool equal = isnan(want[i])   ? isnan(got[i])
                     : isinf(want[i]) ? (double)got[i] == want[i]
                                      : fabs((double)got[i] - want[i]) <= bound;
        if (!equal)
            fail_msg("%s[%" PRId64 "]: got %.9g, wanted %.9g, bound %.3g", what, i, (double)got[i],
                     want[i], bound);
    }
}

double bound_of(const double *want, int64_t n, double f32err)
{
    double scale = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(want[i]))
            scale = fmax(scale, fabs(want[i]));
    return fmax(2e-6 * scale, 4 * f32err);
}

void check_same_bits(const char *what, const float *got, const float *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t g, w;
        memcpy(&g, &got[i], sizeof g);
        memcpy(&w, &want[i], sizeof w);
        if (g != w && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("%s[%" PRId64 "]: got %a (%08" PRIx32 "), wanted %a (%08" PRIx32 ")", what, i,
                     (double)got[i], g, (double)want[i], w);
    }
}

void check_status(const mha_context *ctx, mha_status got, mha_status want)
{
    if (got != want)
        fail_msg("status: got \"%s\", wanted \"%s\"; message: %s", mha_status_text(got),
                 mha_status_text(want), mha_context_message(ctx));
}

void check_contains(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

static uint64_t random_state;

uint64_t random_bits(void)
{
    if (random_state == 0) {
        const char *text = getenv("MHA_TEST_SEED");
        uint64_t seed = text ? strtoull(text, NULL, 10) : 1;
        printf("MHA_TEST_SEED=%" PRIu64 "\n", seed);
        random_state = seed * 0x9e3779b97f4a7c15u + 1;
    }
    /* splitmix64 */
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

float random_float(void)
{
    return (float)((int64_t)(random_bits() >> 40) - (1 << 23)) / (float)(1 << 23);
}

int64_t random_below(int64_t n)
{
    return (int64_t)(random_bits() % (uint64_t)n);
}

void random_fill(float *data, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        data[i] = random_float();
}

int64_t case_count(int64_t usual)
{
    const char *text = getenv("MHA_TEST_CASES");
    return text ? strtoll(text, NULL, 10) : usual;
}

/* Layout: one page with the mapping's size, the data pages, the unreadable page. */
static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

void *guarded(int64_t bytes)
{
    size_t page = page_bytes();
    size_t data = ((size_t)bytes + page - 1) / page * page;
    size_t total = page + data + page;
    char *map = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map + page + data, page, PROT_NONE) != 0)
        fail_msg("no guarded memory of %" PRId64 " bytes", bytes);
    memcpy(map, &total, sizeof total);
    return map + page + data - (size_t)bytes;
}

float *guarded_floats(int64_t n)
{
    float *data = guarded(n * (int64_t)sizeof *data);
    random_fill(data, n);
    return data;
}

void guarded_free(void *block)
{
    if (!block)
        return;
    /* The size page lies before the page of the block's first byte; an empty block starts at the
     * unreadable page itself. */
    size_t page = page_bytes();
    char *map = (char *)((uintptr_t)block / page * page) - page;
    size_t total;
    memcpy(&total, map, sizeof total);
    munmap(map, total);
}

/* Each block remembers nothing: sizes come back at release and must agree in the balance. */
static void *counting_allocate(void *user, size_t bytes, size_t alignment)
{
    struct counting *counting = user;
    void *block = NULL;
    if (++counting->calls == counting->fail_at || posix_memalign(&block, alignment, bytes) != 0)
        return NULL;
    memset(block, 0xff, bytes); /* NaN: what a call reads unwritten shows */
    counting->live++;
    counting->live_bytes += (int64_t)bytes;
    if (counting->most_bytes < counting->live_bytes)
        counting->most_bytes = counting->live_bytes;
    return block;
}

static void counting_release(void *user, void *block, size_t bytes)
{
    struct counting *counting = user;
    counting->live--;
    counting->live_bytes -= (int64_t)bytes;
    free(block);
}

void counting_init(struct counting *counting)
{
    *counting = (struct counting){
        .allocator = { counting_allocate, counting_release, counting },
    };
}

mha_context *context_plain(void)
{
    mha_context *ctx = NULL;
    char message[512] = "";
    struct mha_context_options options = { .message = message, .message_bytes = sizeof message };
    if (mha_context_create(&options, &ctx) != MHA_OK)
        fail_msg("no context: %s", message);
    return ctx;
}

mha_context *context_counting(struct counting *counting)
{
    mha_context *ctx = NULL;
    struct mha_context_options options = { .allocator = &counting->allocator };
    if (mha_context_create(&options, &ctx) != MHA_OK)
        fail_msg("no context");
    return ctx;
}
