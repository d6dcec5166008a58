/* Checked sizes, the allocator behind its wrappers, and the arena. */
#include "support.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "memory.h"

#define TWO(power) ((int64_t)1 << (power))

/* ---- products -------------------------------------------------------------------------------- */

static void products(void **state)
{
    (void)state;
    const struct {
        int64_t a, b, product; /* -1: refused */
    } cases[] = {
        { 0, 0, 0 },
        { 0, INT64_MAX, 0 },
        { 1, INT64_MAX, INT64_MAX },
        { 6, 7, 42 },
        { TWO(31), TWO(31), TWO(62) },
        { TWO(31) - 1, TWO(32), (TWO(31) - 1) * TWO(32) },
        { TWO(31), TWO(32), -1 },
        { TWO(32), TWO(32), -1 }, /* 2^64: zero, if it were allowed to wrap */
        { 2, TWO(62), -1 },
        { 3, INT64_MAX / 3, INT64_MAX / 3 * 3 },
        { 3, INT64_MAX / 3 + 1, -1 },
        { INT64_MAX, INT64_MAX, -1 },
        { -1, 0, -1 },
        { -1, 5, -1 },
        { -2, INT64_MIN, -1 },
        { INT64_MIN, 0, -1 },
    };
    for (int64_t i = 0; i < COUNT(cases); i++)
        for (int swap = 0; swap < 2; swap++) {
            int64_t a = swap ? cases[i].b : cases[i].a, b = swap ? cases[i].a : cases[i].b;
            int64_t product = 12345;
            assert_int_equal(mha_memory_product(a, b, &product), cases[i].product != -1);
            assert_true(product == cases[i].product);
        }
    /* Two negative factors make a product that fits, and is none all the same. */
    int64_t product = 12345;
    assert_false(mha_memory_product(-3, -5, &product));
    assert_true(product == -1);
}

static void product_into_a_factor(void **state)
{
    (void)state;
    int64_t n = 7;
    assert_true(mha_memory_product(n, 11, &n));
    assert_true(n == 77);
    assert_false(mha_memory_product(n, INT64_MAX, &n));
    assert_true(n == -1);
    assert_false(mha_memory_product(n, 1, &n)); /* a refused product stays refused */
    assert_true(n == -1);
}

/* ---- allocator ------------------------------------------------------------------------------- */

static void default_allocator(void **state)
{
    (void)state;
    const int64_t sizes[] = { 0, 1, 63, 64, 65, 4095, 4096, 1000003 };
    for (int64_t i = 0; i < COUNT(sizes); i++) {
        char *block = mha_memory_allocate(&mha_memory_default, sizes[i]);
        assert_non_null(block);
        assert_int_equal((uintptr_t)block % MHA_ALIGNMENT, 0);
        memset(block, 0x5a, (size_t)sizes[i]);
        mha_memory_release(&mha_memory_default, block, sizes[i]);
    }
    mha_memory_release(&mha_memory_default, NULL, 8);
    /* Rounding up to an alignment would wrap to a tiny block. */
    const size_t beyond[] = { SIZE_MAX, SIZE_MAX - MHA_ALIGNMENT + 2, SIZE_MAX - MHA_HUGE_PAGE + 2,
                              PTRDIFF_MAX, PTRDIFF_MAX - MHA_ALIGNMENT + 1 };
    for (int64_t i = 0; i < COUNT(beyond); i++) {
        assert_null(mha_memory_default.allocate(NULL, beyond[i], MHA_ALIGNMENT));
        assert_null(mha_memory_default.allocate(NULL, beyond[i], 2 * MHA_HUGE_PAGE));
    }
}

/* Blocks of two huge pages and more start at one, whole up to their last byte; and errno is the
 * caller's, whether the system knows huge pages or not. */
static void large_blocks(void **state)
{
    (void)state;
    const size_t large = 2 * MHA_HUGE_PAGE;
    const size_t sizes[] = { large, large + 1, large + MHA_HUGE_PAGE - 1,
                             5 * MHA_HUGE_PAGE + 12345 };
    for (int64_t i = 0; i < COUNT(sizes); i++) {
        errno = 12345;
        char *block = mha_memory_allocate(&mha_memory_default, (int64_t)sizes[i]);
        assert_non_null(block);
        assert_int_equal(errno, 12345);
        assert_int_equal((uintptr_t)block % MHA_HUGE_PAGE, 0);
        memset(block, 0x5a, sizes[i]);
        mha_memory_release(&mha_memory_default, block, (int64_t)sizes[i]);
    }
    /* A host's alignment beyond that is kept. */
    char *block = mha_memory_default.allocate(NULL, large, 4 * MHA_HUGE_PAGE);
    assert_non_null(block);
    assert_int_equal((uintptr_t)block % (4 * MHA_HUGE_PAGE), 0);
    mha_memory_default.release(NULL, block, large);
}

/* Whether the mapping around an address was advised to have huge pages; -1 where nobody says. */
static int is_advised(const void *address)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512];
    bool inside = false;
    int found = -1;
    while (maps && found < 0 && fgets(line, sizeof line, maps)) {
        uintptr_t from, to;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2)
            inside = from <= (uintptr_t)address && (uintptr_t)address < to;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0)
            found = strstr(line, " hg") != NULL;
    }
    if (maps)
        fclose(maps);
    return found;
}

/* Whether advice about memory reaches the system: emulators may swallow it. */
static bool advice_is_heard(void)
{
    bool heard = false;
#ifdef MADV_HUGEPAGE
    size_t bytes = 2 * (size_t)MHA_HUGE_PAGE;
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(block != MAP_FAILED);
    heard = madvise(block, bytes, MADV_HUGEPAGE) == 0 && is_advised(block) == 1;
    munmap(block, bytes);
#endif
    return heard;
}

static void large_blocks_ask_for_huge_pages(void **state)
{
    (void)state;
    if (!advice_is_heard())
        skip();
    const int64_t large = 3 * (int64_t)MHA_HUGE_PAGE;
    char *block = mha_memory_allocate(&mha_memory_default, large);
    assert_non_null(block);
    int first = is_advised(block), last = is_advised(block + large - 1);
    mha_memory_release(&mha_memory_default, block, large);
    assert_int_equal(first, 1);
    assert_int_equal(last, 1);
}

/* What the wrappers hand on to the host's functions. */
struct record {
    int calls;
    size_t bytes, alignment;
    void *block;
};

static void *record_allocate(void *user, size_t bytes, size_t alignment)
{
    struct record *record = user;
    record->calls++;
    record->bytes = bytes;
    record->alignment = alignment;
    return record;
}

static void record_release(void *user, void *block, size_t bytes)
{
    struct record *record = user;
    record->calls++;
    record->bytes = bytes;
    record->block = block;
}

static void sizes_reach_the_host(void **state)
{
    (void)state;
    struct record record = { 0 };
    const struct mha_allocator allocator = { record_allocate, record_release, &record };
    const struct {
        int64_t asked;
        size_t handed_on;
    } cases[] = { { 0, 1 }, { 1, 1 }, { 100, 100 }, { INT64_MAX, INT64_MAX } };
    for (int64_t i = 0; i < COUNT(cases); i++) {
        record = (struct record){ 0 };
        assert_ptr_equal(mha_memory_allocate(&allocator, cases[i].asked), &record);
        assert_int_equal(record.bytes, cases[i].handed_on);
        assert_int_equal(record.alignment, MHA_ALIGNMENT);
        record = (struct record){ 0 };
        mha_memory_release(&allocator, &record, cases[i].asked);
        assert_int_equal(record.bytes, cases[i].handed_on);
        assert_ptr_equal(record.block, &record);
    }
    record = (struct record){ 0 };
    assert_null(mha_memory_allocate(&allocator, -1));
    assert_null(mha_memory_allocate(&allocator, INT64_MIN));
    mha_memory_release(&allocator, NULL, 100);
    assert_int_equal(record.calls, 0);
}

/* ---- arena ----------------------------------------------------------------------------------- */

enum { PIECES = 12 };

/* A layout as the library writes them: one function, run with and without memory. */
static void lay_out(struct mha_arena *arena, const int64_t *counts, const int64_t *element_bytes,
                    char **pieces)
{
    for (int i = 0; i < PIECES; i++)
        pieces[i] = i % 3 == 2 ? (char *)mha_arena_floats(arena, counts[i], i, element_bytes[i])
                               : (char *)mha_arena_take(arena, counts[i], element_bytes[i]);
}

static int64_t piece_bytes(int i, int64_t count, int64_t element_bytes)
{
    return i % 3 == 2 ? count * i * element_bytes * (int64_t)sizeof(float) : count * element_bytes;
}

/* Measuring is taking: the block that was measured holds every piece, disjoint and aligned, and its
 * last byte is used up to the alignment. */
static void measuring_is_taking(void **state)
{
    (void)state;
    for (int run = 0; run < 200; run++) {
        int64_t counts[PIECES], element_bytes[PIECES];
        char *pieces[PIECES];
        for (int i = 0; i < PIECES; i++) {
            counts[i] = random_below(40);
            element_bytes[i] = random_below(4) ? 1 + random_below(24) : 0;
        }
        struct mha_arena measure = { 0 };
        lay_out(&measure, counts, element_bytes, pieces);
        for (int i = 0; i < PIECES; i++)
            assert_null(pieces[i]);
        assert_int_equal(measure.used % MHA_ALIGNMENT, 0);

        char *block = guarded(measure.used);
        struct mha_arena arena = { .base = block };
        lay_out(&arena, counts, element_bytes, pieces);
        assert_int_equal(arena.used, measure.used);
        int64_t end = 0;
        for (int i = 0; i < PIECES; i++) {
            int64_t bytes = piece_bytes(i, counts[i], element_bytes[i]);
            assert_int_equal(pieces[i] - block, end);
            memset(pieces[i], 0x5a, (size_t)bytes);
            end += (bytes + MHA_ALIGNMENT - 1) / MHA_ALIGNMENT * MHA_ALIGNMENT;
        }
        assert_int_equal(end, arena.used);
        guarded_free(block);
    }
}

static void arena_overflow(void **state)
{
    (void)state;
    const struct {
        int64_t used, count, element_bytes, end;
    } cases[] = {
        { 0, TWO(62), 2, -1 },       /* the product */
        { 0, TWO(32), TWO(32), -1 }, /* a product that would wrap to 0 */
        { 0, INT64_MAX, 1, -1 },     /* the rounding up */
        { 0, INT64_MAX - 63, 1, INT64_MAX - 63 },
        { 64, INT64_MAX - 63, 1, -1 }, /* the sum */
        { TWO(62), TWO(60), 4, -1 },
        { TWO(62), TWO(60), 2, TWO(62) + TWO(61) },
        { 0, -1, 4, -1 }, /* a count that overflowed before */
        { 0, -1, 0, -1 },
        { 0, 4, -1, -1 },
        { -1, 0, 0, -1 }, /* an arena that overflowed before */
        { -1, 1, 1, -1 },
    };
    for (int64_t i = 0; i < COUNT(cases); i++) {
        struct mha_arena arena = { .used = cases[i].used };
        assert_null(mha_arena_take(&arena, cases[i].count, cases[i].element_bytes));
        assert_true(arena.used == cases[i].end);
    }
    /* No piece comes out of a block once a size overflowed. */
    char block[64];
    struct mha_arena arena = { .base = block };
    assert_null(mha_arena_take(&arena, INT64_MAX, 8));
    assert_null(mha_arena_take(&arena, 1, 1));
    assert_true(arena.used == -1);
}

static void arena_floats_overflow(void **state)
{
    (void)state;
    const int64_t cases[][3] = {
        { TWO(31), TWO(31), 1 },
        { TWO(31), TWO(32), 1 },
        { TWO(32), TWO(32), 0 },
        { TWO(21), TWO(21), TWO(21) },
        { 1, INT64_MAX / 4, 1 },
        { -1, 1, 1 },
        { 1, -1, 1 },
        { 1, 1, -1 },
        { 0, -1, 1 },
        { -1, -1, 1 },
    };
    for (int64_t i = 0; i < COUNT(cases); i++) {
        struct mha_arena arena = { 0 };
        assert_null(mha_arena_floats(&arena, cases[i][0], cases[i][1], cases[i][2]));
        assert_true(arena.used == -1);
    }
    struct mha_arena arena = { 0 };
    mha_arena_floats(&arena, TWO(20), TWO(20), TWO(18));
    assert_true(arena.used == TWO(60));
    mha_arena_floats(&arena, 0, INT64_MAX, INT64_MAX / 2);
    assert_true(arena.used == TWO(60));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products),
        cmocka_unit_test(product_into_a_factor),
        cmocka_unit_test(default_allocator),
        cmocka_unit_test(large_blocks),
        cmocka_unit_test(large_blocks_ask_for_huge_pages),
        cmocka_unit_test(sizes_reach_the_host),
        cmocka_unit_test(measuring_is_taking),
        cmocka_unit_test(arena_overflow),
        cmocka_unit_test(arena_floats_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
