#include "memory.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

bool mha_memory_product(int64_t a, int64_t b, int64_t *product)
{
    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, product)) {
        *product = -1;
        return false;
    }
    return true;
}

/* A block of that many bytes holds two whole huge pages at least, so the addresses that alignment
 * may cost stay below half of it; and a smaller one is read fast with the usual pages. */
#define LARGE_BYTES (2 * MHA_HUGE_PAGE)

/* Asks for huge pages under the block, where none of them reaches beyond it. That is a wish: a system
 * that has none leaves everything as it is. */
static void advise_huge_pages(void *block, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    (void)madvise(block, bytes / MHA_HUGE_PAGE * MHA_HUGE_PAGE, MADV_HUGEPAGE);
#else
    (void)block;
    (void)bytes;
#endif
}

static void *allocate_default(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    int host_errno = errno;
    bool large = bytes >= LARGE_BYTES;
    if (large && alignment < MHA_HUGE_PAGE)
        alignment = MHA_HUGE_PAGE;
    void *block = NULL;
    if (bytes > PTRDIFF_MAX - alignment || posix_memalign(&block, alignment, bytes) != 0)
        block = NULL;
    else if (large)
        advise_huge_pages(block, bytes);
    errno = host_errno;
    return block;
}

static void release_default(void *user, void *block, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(block);
}

const struct mha_allocator mha_memory_default = { allocate_default, release_default, NULL };

void *mha_memory_allocate(const struct mha_allocator *allocator, int64_t bytes)
{
    if (bytes < 0 || (uint64_t)bytes > PTRDIFF_MAX)
        return NULL;
    return allocator->allocate(allocator->user, (size_t)max_i64(bytes, 1), MHA_ALIGNMENT);
}

void mha_memory_release(const struct mha_allocator *allocator, void *block, int64_t bytes)
{
    if (block)
        allocator->release(allocator->user, block, (size_t)max_i64(bytes, 1));
}

void *mha_arena_take(struct mha_arena *arena, int64_t count, int64_t element_bytes)
{
    int64_t bytes = 0, end = 0;
    if (arena->used < 0 || !mha_memory_product(count, element_bytes, &bytes)
        || __builtin_add_overflow(bytes, MHA_ALIGNMENT - 1, &bytes)
        || __builtin_add_overflow(arena->used, bytes / MHA_ALIGNMENT * MHA_ALIGNMENT, &end)) {
        arena->used = -1;
        return NULL;
    }
    void *piece = arena->base ? arena->base + arena->used : NULL;
    arena->used = end;
    return piece;
}

float *mha_arena_floats(struct mha_arena *arena, int64_t rows, int64_t heads, int64_t width)
{
    int64_t count = 0;
    if (!mha_memory_product(rows, heads, &count) || !mha_memory_product(count, width, &count))
        count = -1;
    return mha_arena_take(arena, count, sizeof(float));
}
