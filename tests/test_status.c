/* Status numbers and texts: both are fixed, and each number has a text of its own. */
#include "support.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* Written out once more: the numbers are part of the binary interface, so a change of the header
 * alone must fail here. */
static const struct {
    mha_status status;
    int number;
    const char *text;
} pinned[] = {
    { MHA_OK, 0, "ok" },
    { MHA_ERROR_ARGUMENT, 1, "bad argument" },
    { MHA_ERROR_SHAPE, 2, "shape mismatch" },
    { MHA_ERROR_TYPE, 3, "wrong element type" },
    { MHA_ERROR_LAYOUT, 4, "unusable memory layout" },
    { MHA_ERROR_OVERFLOW, 5, "size overflow" },
    { MHA_ERROR_MEMORY, 6, "out of memory" },
    { MHA_ERROR_UNSUPPORTED, 7, "unsupported" },
    { MHA_ERROR_BUSY, 8, "context busy" },
    { MHA_ERROR_FILE, 9, "file error" },
    { MHA_ERROR_FORMAT, 10, "malformed file" },
    { MHA_ERROR_LIMIT, 11, "file over a limit" },
    { MHA_ERROR_NOT_FOUND, 12, "not found" },
    { MHA_ERROR_BLAS, 13, "unusable BLAS" },
    { MHA_ERROR_THREAD, 14, "no thread" },
};

static void numbers_and_texts(void **state)
{
    (void)state;
    for (int64_t i = 0; i < COUNT(pinned); i++) {
        assert_int_equal((int)pinned[i].status, pinned[i].number);
        assert_int_equal(pinned[i].number, (int)i);
        assert_string_equal(mha_status_text(pinned[i].status), pinned[i].text);
        for (int64_t other = 0; other < i; other++)
            assert_string_not_equal(pinned[i].text, pinned[other].text);
    }
}

/* A status that the header gained and the table above did not has a text already. */
static void table_is_complete(void **state)
{
    (void)state;
    for (int number = (int)COUNT(pinned); number < 1000; number++)
        assert_string_equal(mha_status_text((mha_status)number), "unknown status");
}

static void unknown_numbers(void **state)
{
    (void)state;
    const int numbers[] = { -1, (int)COUNT(pinned), 255, INT_MAX, INT_MIN };
    for (int64_t i = 0; i < COUNT(numbers); i++)
        assert_string_equal(mha_status_text((mha_status)numbers[i]), "unknown status");
}

static void version(void **state)
{
    (void)state;
    char text[64];
    snprintf(text, sizeof text, "%d.%d.%d", MHA_VERSION_MAJOR, MHA_VERSION_MINOR,
             MHA_VERSION_PATCH);
    assert_string_equal(MHA_VERSION, text);
    assert_string_equal(mha_version(), text);
}

static void blas_text(void **state)
{
    (void)state;
    assert_non_null(mha_blas_text());
    assert_true(isprint((unsigned char)mha_blas_text()[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_and_texts), cmocka_unit_test(table_is_complete),
        cmocka_unit_test(unknown_numbers),   cmocka_unit_test(version),
        cmocka_unit_test(blas_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
