/* .npy files, good, odd and hostile. What happens to the elements is in test_convert.c. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "fixture.h"

#define PLAIN "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"

static const float six[6] = { 1, 2, 3, 4, 5, 6 };

static mha_status status_of(const char *header, const void *data, int64_t n,
                            struct mha_tensor *tensor)
{
    return mha_npy_shape(ctx, file_write_npy("header.npy", header, data, n), tensor);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void kind_16_case_109_column_major(void **state)
{
    (void)state;
    static const float stored[6] = { 1, 4, 2, 5, 3, 6 };
    char header[119]; /* as NumPy pads it: the data start at byte 128 */
    snprintf(header, sizeof header, "%-117s\n",
             "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }");
    const char *path = file_write_npy("fortran.npy", header, stored, sizeof stored);
    struct mha_tensor tensor;
    float got[6];
    check_status(ctx, mha_npy_shape(ctx, path, &tensor), MHA_OK);
    assert_int_equal(tensor.rank, 2);
    assert_int_equal(tensor.shape[0], 2);
    assert_int_equal(tensor.shape[1], 3);
    assert_int_equal(tensor.strides[0], 3);
    assert_int_equal(tensor.strides[1], 1);
    tensor.data = got;
    check_status(ctx, mha_npy_read(ctx, path, &tensor), MHA_OK);
    check_same_bits("row-major", got, six, 6);
    assert_true(got[1] == 2);
}

static void kind_16_case_110_versions(void **state)
{
    (void)state;
    char file[128 + sizeof six];
    struct mha_tensor tensor;
    for (int version = 0; version < 256; version++) {
        int start = version == 1 ? 10 : 12;
        memset(file, ' ', 128);
        memcpy(file, "\x93NUMPY_\0\0\0\0\0", 12);
        file[6] = (char)version;
        file[8] = (char)(128 - start);
        memcpy(file + start, PLAIN, sizeof PLAIN - 1);
        file[127] = '\n';
        memcpy(file + 128, six, sizeof six);
        const char *path = file_write("version.npy", file, sizeof file);
        bool known = version >= 1 && version <= 3;
        check_status(ctx, mha_npy_shape(ctx, path, &tensor), known ? MHA_OK : MHA_ERROR_FORMAT);
        if (known) {
            float got[6];
            tensor.data = got;
            check_status(ctx, mha_npy_read(ctx, path, &tensor), MHA_OK);
            check_same_bits("data", got, six, 6);
            file[7] = 1;
            path = file_write("version.npy", file, sizeof file);
            check_status(ctx, mha_npy_shape(ctx, path, &tensor), MHA_ERROR_FORMAT);
            file[7] = 0;
        }
        if (version == 2 || version == 3) {
            memset(file + 8, 0xff, 4);
            path = file_write("version.npy", file, sizeof file);
            check_status(ctx, mha_npy_shape(ctx, path, &tensor), MHA_ERROR_FORMAT);
        }
    }
}

static void kind_16_case_111_big_endian(void **state)
{
    (void)state;
    static const unsigned char big[8] = { 0x3f, 0x80, 0, 0, 0x40, 0, 0, 0 };
    float got[2] = { 0, 0 };
    struct mha_tensor tensor = mha_tensor_1d(got, MHA_FLOAT32, 2);
    const char *path = file_write_npy(
        "big.npy", "{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }", big, sizeof big);
    check_status(ctx, mha_npy_read(ctx, path, &tensor), MHA_OK);
    assert_true(got[0] == 1 && got[1] == 2);
    /* "|" before a type of several bytes says nothing about them: refused, not guessed. */
    check_status(
        ctx,
        status_of("{'descr': '|f4', 'fortran_order': False, 'shape': (2,), }", big, 8, &tensor),
        MHA_ERROR_TYPE);
    check_contains(mha_context_message(ctx), "|f4");
}

static void kind_16_case_112_grammar(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        mha_status want;
        int32_t bytes; /* of data */
    } cases[] = {
        /* what Python writes, and its equals */
        { "{'shape': (2,), 'fortran_order': False, 'descr': '<f4'}", MHA_OK, 8 },
        { "{\"shape\":(2,),\"fortran_order\":False,\"descr\":\"<f4\",}", MHA_OK, 8 },
        { " { 'descr' : '<f4' , 'fortran_order' : False ,\n 'shape' : ( 2 , ) , } \n", MHA_OK, 8 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': ()}", MHA_OK, 4 },
        { "{'descr': '<f4', 'fortran_order': True, 'shape': ( )}", MHA_OK, 4 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2,)}", MHA_OK, 8 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (1,2,1,1,1,1)}", MHA_OK, 8 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (0,)}", MHA_OK, 0 },
        { "{'descr': '=f4', 'fortran_order': False, 'shape': (2,)}", MHA_OK, 8 },
        { "{'descr': '?', 'fortran_order': False, 'shape': (2,)}", MHA_OK, 2 },
        { "{'descr': '|?', 'fortran_order': False, 'shape': (2,)}", MHA_OK, 2 },
        /* types */
        { "{'descr': '|O', 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_TYPE, 8 },
        { "{'descr': '<U4', 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_TYPE, 8 },
        { "{'descr': '|S4', 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_TYPE, 8 },
        { "{'descr': '<c8', 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_TYPE, 16 },
        { "{'descr': '<f16', 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_TYPE, 32 },
        { "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_TYPE, 16 },
        { "{'descr': [('a','<f4')], 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_TYPE, 8 },
        { "{'descr': 'f4', 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_TYPE, 8 },
        { "{'descr': '?b1', 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_TYPE, 2 },
        { "{'descr': '!f4', 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_TYPE, 8 },
        { "{'descr': '', 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_TYPE, 8 },
        { "{'descr': '<f4 ', 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_TYPE, 8 },
        /* shapes */
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296,4294967296)}",
          MHA_ERROR_FORMAT, 0 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (0,4294967296,4294967296)}",
          MHA_ERROR_FORMAT, 0 },
        { "{'descr': '|u1', 'fortran_order': False, 'shape': (18446744073709551618,)}",
          MHA_ERROR_FORMAT, 2 },
        { "{'descr': '|u1', 'fortran_order': False, 'shape': (18446744073709551615,0)}",
          MHA_ERROR_FORMAT, 0 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2L,)}", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2)}", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': 2}", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': [2]}", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (,)}", MHA_ERROR_FORMAT, 4 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,,)}", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (,2)}", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2 1)}", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (02,)}", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (+2,)}", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2.0,)}", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (0x2,)}", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (1_0,)}", MHA_ERROR_FORMAT, 40 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,2)}", MHA_ERROR_LIMIT,
          8 },
        /* keys, words, marks */
        { "{'descr': '<f4', 'fortran_order': False}", MHA_ERROR_FORMAT, 4 },
        { "{'descr': '<f4', 'shape': (2,)}", MHA_ERROR_FORMAT, 8 },
        { "{'fortran_order': False, 'shape': (2,)}", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}",
          MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'a': 1}", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4', 'fortran_order': false, 'shape': (2,)}", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4', 'fortran_order': Falsely, 'shape': (2,)}", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4' 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4',, 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_FORMAT, 8 },
        { "{,'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_FORMAT, 8 },
        { "{'descr'; '<f4', 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_FORMAT, 8 },
        { "{'descr\": '<f4', 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '\\x3cf4', 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} #", MHA_ERROR_FORMAT, 8 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}}", MHA_ERROR_FORMAT, 8 },
        { "x{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_FORMAT, 8 },
        { "", MHA_ERROR_FORMAT, 8 },
        { "{}", MHA_ERROR_FORMAT, 4 },
        /* data of another size */
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_FORMAT, 7 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", MHA_ERROR_FORMAT, 9 },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (0,)}", MHA_ERROR_FORMAT, 4 },
    };
    static const char data[64];
    for (int64_t i = 0; i < COUNT(cases); i++) {
        struct mha_tensor tensor = { .rank = 77 };
        mha_status got = status_of(cases[i].header, data, cases[i].bytes, &tensor);
        if (got != cases[i].want)
            print_error("%s\n", cases[i].header);
        check_status(ctx, got, cases[i].want);
        if (got == MHA_OK)
            assert_int_equal(mha_tensor_count(&tensor) * mha_type_bytes(tensor.type),
                             cases[i].bytes);
        else
            assert_int_equal(tensor.rank, 77);
    }
}

static void kind_18_case_126_comma_in_the_locale(void **state)
{
    locale_with_comma();
    kind_16_case_112_grammar(state);
    kind_16_case_109_column_major(state);
    struct mha_tensor tensor = mha_tensor_2d_const(six, MHA_FLOAT32, 2, 3);
    check_status(ctx, mha_npy_write(ctx, file_path("comma.npy"), &tensor), MHA_OK);
    check_status(ctx, mha_npy_shape(ctx, file_path("comma.npy"), &tensor), MHA_OK);
    locale_back();
}

/* ---- damage ---------------------------------------------------------------------------------- */

static void truncated_at_every_byte(void **state)
{
    (void)state;
    struct mha_tensor tensor = mha_tensor_2d_const(six, MHA_FLOAT32, 2, 3);
    check_status(ctx, mha_npy_write(ctx, file_path("whole.npy"), &tensor), MHA_OK);
    int64_t n;
    char *bytes = file_read(file_path("whole.npy"), &n);
    assert_int_equal(n, 128 + 24);
    for (int64_t keep = 0; keep < n; keep++) {
        float got[6] = { 9, 9, 9, 9, 9, 9 };
        struct mha_tensor into = mha_tensor_2d(got, MHA_FLOAT32, 2, 3);
        const char *path = file_write("cut.npy", bytes, keep);
        check_status(ctx, mha_npy_shape(ctx, path, &tensor), MHA_ERROR_FORMAT);
        check_status(ctx, mha_npy_read(ctx, path, &into), MHA_ERROR_FORMAT);
        check_contains(mha_context_message(ctx), "cut.npy");
        assert_true(got[0] == 9 && got[5] == 9);
    }
    free(bytes);
}

/* Every byte before the data in turn becomes every other byte. Some files stay files; then the
 * shape fits the data, and they can be read into just that much memory. */
static void every_header_byte_replaced(void **state)
{
    (void)state;
    char header[80];
    snprintf(header, sizeof header, "%-63s\n", PLAIN);
    const char *path = file_write_npy("flip.npy", header, six, sizeof six);
    int64_t n;
    char *bytes = file_read(path, &n);
    int64_t still_good = 0;
    for (int64_t at = 0; at < n - (int64_t)sizeof six; at++) {
        for (int value = 0; value < 256; value++) {
            file_poke(path, at, (char)value);
            struct mha_tensor tensor;
            mha_status got = mha_npy_shape(ctx, path, &tensor);
            if (got == MHA_OK) {
                int64_t size = mha_tensor_count(&tensor) * mha_type_bytes(tensor.type);
                assert_int_equal(size, sizeof six);
                tensor.data = guarded(size);
                check_status(ctx, mha_npy_read(ctx, path, &tensor), MHA_OK);
                guarded_free(tensor.data);
                still_good++;
            } else if (got != MHA_ERROR_FORMAT && got != MHA_ERROR_TYPE) {
                fail_msg("byte %d as %d: %s", (int)at, value, mha_status_text(got));
            }
        }
        file_poke(path, at, bytes[at]);
    }
    assert_true(still_good > n - (int64_t)sizeof six); /* at least each byte as itself */
    free(bytes);
}

static void headers_beyond_the_limit(void **state)
{
    (void)state;
    struct mha_tensor tensor;
    for (int64_t length = 65535; length <= 65537; length++) {
        int64_t n = 12 + length + (int64_t)sizeof six;
        char *file = malloc((size_t)n);
        assert_non_null(file);
        memset(file, ' ', (size_t)n);
        memcpy(file, "\x93NUMPY\x02\0", 8);
        for (int i = 0; i < 4; i++)
            file[8 + i] = (char)(length >> 8 * i);
        memcpy(file + 12, PLAIN, sizeof PLAIN - 1);
        memcpy(file + 12 + length, six, sizeof six);
        const char *path = file_write("long.npy", file, n);
        check_status(ctx, mha_npy_shape(ctx, path, &tensor),
                     length <= 65536 ? MHA_OK : MHA_ERROR_LIMIT);
        free(file);
    }
}

/* ---- what is no file ------------------------------------------------------------------------- */

static void what_is_no_regular_file(void **state)
{
    (void)state;
    struct mha_tensor tensor;
    assert_int_equal(mkfifo(file_path("pipe"), 0600), 0);
    assert_int_equal(symlink(file_path("loop"), file_path("loop")), 0);
    const char *const paths[] = { file_path("missing"),
                                  file_path(""),
                                  file_path("pipe"),
                                  file_path("loop"),
                                  "/dev/zero",
                                  "/dev/null",
                                  "" };
    for (int64_t i = 0; i < COUNT(paths); i++) {
        errno = 1234;
        check_status(ctx, mha_npy_shape(ctx, paths[i], &tensor), MHA_ERROR_FILE);
        assert_int_equal(errno, 1234);
        check_contains(mha_context_message(ctx), "mha_npy_shape: \"");
    }
    check_status(ctx, mha_npy_shape(ctx, file_path("missing"), &tensor), MHA_ERROR_FILE);
    check_contains(mha_context_message(ctx), "no such file");
    check_status(ctx, mha_npy_shape(ctx, file_path(""), &tensor), MHA_ERROR_FILE);
    check_contains(mha_context_message(ctx), "a directory");
}

static void arguments(void **state)
{
    (void)state;
    float got[6];
    struct mha_tensor tensor = mha_tensor_2d(got, MHA_FLOAT32, 2, 3);
    const char *path = file_write_npy("good.npy", PLAIN, six, sizeof six);
    check_status(NULL, mha_npy_shape(NULL, path, &tensor), MHA_ERROR_ARGUMENT);
    check_status(NULL, mha_npy_read(NULL, path, &tensor), MHA_ERROR_ARGUMENT);
    check_status(NULL, mha_npy_write(NULL, path, &tensor), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_npy_shape(ctx, NULL, &tensor), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_npy_read(ctx, NULL, &tensor), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_npy_write(ctx, NULL, &tensor), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_npy_write(ctx, "", &tensor), MHA_ERROR_ARGUMENT);
    check_contains(mha_context_message(ctx), "path is empty");
    check_status(ctx, mha_npy_shape(ctx, path, NULL), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_npy_read(ctx, path, NULL), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_npy_write(ctx, path, NULL), MHA_ERROR_ARGUMENT);

    struct mha_tensor wrong = mha_tensor_2d(got, MHA_FLOAT32, 3, 2);
    check_status(ctx, mha_npy_read(ctx, path, &wrong), MHA_ERROR_SHAPE);
    check_contains(mha_context_message(ctx), "[3, 2]");
    check_contains(mha_context_message(ctx), "[2, 3]");
    wrong = mha_tensor_2d_const(got, MHA_FLOAT32, 2, 3);
    check_status(ctx, mha_npy_read(ctx, path, &wrong), MHA_ERROR_LAYOUT);
    wrong = tensor;
    wrong.strides[0] = 0;
    check_status(ctx, mha_npy_read(ctx, path, &wrong), MHA_ERROR_LAYOUT);
    wrong = tensor;
    wrong.data = NULL;
    check_status(ctx, mha_npy_read(ctx, path, &wrong), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_npy_write(ctx, path, &wrong), MHA_ERROR_ARGUMENT);
    wrong = tensor;
    wrong.strides[1] = -1;
    check_status(ctx, mha_npy_write(ctx, path, &wrong), MHA_ERROR_LAYOUT);
    wrong.strides[1] = INT64_MAX / 4;
    check_status(ctx, mha_npy_write(ctx, path, &wrong), MHA_ERROR_OVERFLOW);
    wrong.type = 99;
    check_status(ctx, mha_npy_write(ctx, path, &wrong), MHA_ERROR_TYPE);
    wrong = mha_tensor_1d(got, MHA_BFLOAT16, 2);
    check_status(ctx, mha_npy_write(ctx, path, &wrong), MHA_ERROR_TYPE);
    check_contains(mha_context_message(ctx), "bfloat16");
    check_status(ctx, mha_npy_read(ctx, path, &tensor), MHA_OK); /* the file is still the old one */
    check_same_bits("data", got, six, 6);
}

/* ---- writing --------------------------------------------------------------------------------- */

static void written_as_numpy_writes(void **state)
{
    (void)state;
    static const struct {
        int32_t rank, type;
        const char *header;
    } cases[] = {
        { 0, MHA_FLOAT32, "{'descr': '<f4', 'fortran_order': False, 'shape': (), }" },
        { 1, MHA_FLOAT64, "{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }" },
        { 2, MHA_UINT8, "{'descr': '|u1', 'fortran_order': False, 'shape': (1, 2), }" },
        { 3, MHA_BOOL, "{'descr': '|b1', 'fortran_order': False, 'shape': (1, 2, 3), }" },
        { 6, MHA_INT64, "{'descr': '<i8', 'fortran_order': False, 'shape': (1, 2, 3, 4, 5, 6), }" },
    };
    int64_t data[720];
    for (int i = 0; i < 720; i++)
        data[i] = i;
    for (int64_t i = 0; i < COUNT(cases); i++) {
        struct mha_tensor tensor = { .data = data, .type = cases[i].type, .rank = cases[i].rank };
        int64_t stride = 1;
        for (int32_t axis = tensor.rank - 1; axis >= 0; axis--) {
            tensor.shape[axis] = axis + 1;
            tensor.strides[axis] = stride;
            stride *= axis + 1;
        }
        check_status(ctx, mha_npy_write(ctx, file_path("new.npy"), &tensor), MHA_OK);
        char want[128];
        memcpy(want, "\x93NUMPY\x01\0v\0", 10);
        snprintf(want + 10, sizeof want - 10, "%-117s", cases[i].header);
        want[127] = '\n';
        int64_t n, bytes = stride * mha_type_bytes(tensor.type);
        char *got = file_read(file_path("new.npy"), &n);
        assert_int_equal(n, 128 + bytes);
        assert_memory_equal(got, want, 128);
        assert_memory_equal(got + 128, data, (size_t)bytes);
        free(got);
    }
}

/* Sizes that no file could hold are not written either, though an empty tensor may have them. */
static void empty_but_too_large(void **state)
{
    (void)state;
    struct mha_tensor tensor = { .type = MHA_FLOAT32, .rank = 6 };
    for (int32_t axis = 0; axis < 6; axis++)
        tensor.shape[axis] = axis ? 1000 : 0;
    const char *path = file_path("empty.npy");
    check_status(ctx, mha_npy_write(ctx, path, &tensor), MHA_OK);
    struct mha_tensor back;
    check_status(ctx, mha_npy_shape(ctx, path, &back), MHA_OK);
    assert_int_equal(back.shape[0], 0);
    assert_int_equal(back.shape[5], 1000);
    check_status(ctx, mha_npy_read(ctx, path, &back), MHA_OK);
    tensor.shape[5] = 1000000000;
    check_status(ctx, mha_npy_write(ctx, path, &tensor), MHA_ERROR_OVERFLOW);
}

static void written_from_any_strides(void **state)
{
    (void)state;
    enum { A = 11, B = 13, C = 17, N = A * B * C };
    static double memory[2 * N], want[N], got[N];
    for (int i = 0; i < 2 * N; i++)
        memory[i] = i;
    /* Every second element of memory laid out as [C, A, B], seen as [A, B, C]; and one row for all
     * of axis 0. */
    const int64_t strides[2][3] = { { 2 * B, 2, 2 * A * B }, { 0, 2, 2 * B } };
    for (int s = 0; s < 2; s++) {
        struct mha_tensor tensor = { .data = memory,
                                     .type = MHA_FLOAT64,
                                     .rank = 3,
                                     .shape = { A, B, C },
                                     .flags = MHA_READ_ONLY };
        memcpy(tensor.strides, strides[s], sizeof strides[s]);
        check_status(ctx, mha_npy_write(ctx, file_path("strides.npy"), &tensor), MHA_OK);
        for (int i = 0; i < N; i++)
            want[i] = (double)(i / (B * C) * strides[s][0] + i / C % B * strides[s][1]
                               + i % C * strides[s][2]);
        struct mha_tensor into = mha_tensor_3d(got, MHA_FLOAT64, A, B, C);
        check_status(ctx, mha_npy_read(ctx, file_path("strides.npy"), &into), MHA_OK);
        assert_memory_equal(got, want, sizeof want);
    }
}

/* A failure at any point leaves the old file and nothing else. */
static void failed_write_leaves_the_old_file(void **state)
{
    (void)state;
    static float large[40000];
    struct mha_tensor tensor = mha_tensor_2d_const(six, MHA_FLOAT32, 2, 3);
    struct mha_tensor big = mha_tensor_1d_const(large, MHA_FLOAT32, COUNT(large));
    const char *path = file_path("old.npy");
    check_status(ctx, mha_npy_write(ctx, path, &tensor), MHA_OK);
    int64_t files = files_count("");
    struct rlimit whole, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &whole), 0);
    signal(SIGXFSZ, SIG_IGN);
    static const rlim_t limits[] = { 0, 100, 128, 20000, 160127 };
    for (int64_t i = 0; i < COUNT(limits); i++) {
        small = whole;
        small.rlim_cur = limits[i];
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        mha_status got = mha_npy_write(ctx, path, &big);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &whole), 0);
        check_status(ctx, got, MHA_ERROR_FILE);
        check_contains(mha_context_message(ctx), "too large");
        assert_int_equal(files_count(""), files);
        float old[6];
        struct mha_tensor into = mha_tensor_2d(old, MHA_FLOAT32, 2, 3);
        check_status(ctx, mha_npy_read(ctx, path, &into), MHA_OK);
        check_same_bits("old", old, six, 6);
    }
    signal(SIGXFSZ, SIG_DFL);
    check_status(ctx, mha_npy_write(ctx, path, &big), MHA_OK);
    check_status(ctx, mha_npy_shape(ctx, path, &tensor), MHA_OK);
    assert_int_equal(tensor.shape[0], COUNT(large));
    assert_int_equal(files_count(""), files);
}

/* A pipe stands for all that is no regular file and must not be renamed over. A device would be the
 * graver case, but a test must not put one of the host's at risk. */
static void where_no_file_can_be_written(void **state)
{
    (void)state;
    struct mha_tensor tensor = mha_tensor_2d_const(six, MHA_FLOAT32, 2, 3);
    char long_path[5000];
    memset(long_path, 'x', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = 0;
    const char *pipe_path = file_path("pipe to keep");
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    static const char *const links[][2] = { { "pipe to keep", "to a pipe" },
                                            { ".", "to a directory" },
                                            { "to itself", "to itself" },
                                            { "nowhere/new.npy", "to nowhere" } };
    for (int64_t i = 0; i < COUNT(links); i++)
        assert_int_equal(symlink(links[i][0], file_path(links[i][1])), 0);
    int64_t files = files_count("");
    const char *const names[] = { "nowhere/new.npy", "",          "pipe to keep", "to a pipe",
                                  "to a directory",  "to itself", "to nowhere" };
    for (int64_t i = 0; i < COUNT(names); i++) {
        errno = 1234;
        check_status(ctx, mha_npy_write(ctx, file_path(names[i]), &tensor), MHA_ERROR_FILE);
        assert_int_equal(errno, 1234);
    }
    check_status(ctx, mha_npy_write(ctx, long_path, &tensor), MHA_ERROR_FILE);
    struct stat info;
    assert_int_equal(stat(file_path("to a pipe"), &info), 0);
    assert_true(S_ISFIFO(info.st_mode));
    for (int64_t i = 0; i < COUNT(links); i++) {
        assert_int_equal(lstat(file_path(links[i][1]), &info), 0);
        assert_true(S_ISLNK(info.st_mode));
    }
    assert_int_equal(files_count(""), files);
}

/* A writer that died, or one that is still at work, has left its draft: it is not touched. */
static void leftover_drafts(void **state)
{
    (void)state;
    struct mha_tensor tensor = mha_tensor_2d_const(six, MHA_FLOAT32, 2, 3);
    file_write("busy.npy.part0", "half", 4);
    file_write("busy.npy.part1", "half", 4);
    const char *path = file_path("busy.npy");
    check_status(ctx, mha_npy_write(ctx, path, &tensor), MHA_OK);
    check_status(ctx, mha_npy_shape(ctx, path, &tensor), MHA_OK);
    int64_t n;
    char *bytes = file_read(file_path("busy.npy.part0"), &n);
    assert_int_equal(n, 4);
    free(bytes);
    assert_int_equal(files_count("busy.npy"), 3);
    for (int i = 0; i < 100; i++) {
        char name[32];
        snprintf(name, sizeof name, "busy.npy.part%d", i);
        file_write(name, "", 0);
    }
    tensor = mha_tensor_2d_const(six, MHA_FLOAT32, 2, 3);
    path = file_path("busy.npy");
    check_status(ctx, mha_npy_write(ctx, path, &tensor), MHA_ERROR_FILE);
    check_contains(mha_context_message(ctx), "too many unfinished files");
}

static void permissions_follow_the_umask(void **state)
{
    (void)state;
    struct mha_tensor tensor = mha_tensor_2d_const(six, MHA_FLOAT32, 2, 3);
    mode_t old = umask(027);
    mha_status got = mha_npy_write(ctx, file_path("mode.npy"), &tensor);
    umask(old);
    check_status(ctx, got, MHA_OK);
    struct stat info;
    assert_int_equal(stat(file_path("mode.npy"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0640);
}

/* The umask is for new files, not for one that takes the place of another. */
static void a_replaced_file_leaves_its_permissions(void **state)
{
    (void)state;
    struct mha_tensor tensor = mha_tensor_2d_const(six, MHA_FLOAT32, 2, 3);
    static const struct {
        mode_t mode, mask;
    } cases[] = { { 0600, 0 }, { 0604, 077 }, { 0775, 022 }, { 0666, 0177 }, { 0440, 0 } };
    const char *path = file_write("kept mode.npy", "old", 3);
    for (int64_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(chmod(path, cases[i].mode), 0);
        mode_t old = umask(cases[i].mask);
        mha_status got = mha_npy_write(ctx, path, &tensor);
        umask(old);
        check_status(ctx, got, MHA_OK);
        struct stat info;
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(info.st_mode & 07777, cases[i].mode);
    }
}

/* Links stay, and lead to the new file: from their own directory, over other links, and also where
 * no file was before. */
static void written_through_links(void **state)
{
    (void)state;
    static const struct {
        const char *to, *link, *target;
    } cases[] = {
        { "target.npy", "link.npy", "target.npy" },
        { "link.npy", "link to link.npy", "target.npy" },
        { "../target.npy", "below/up.npy", "target.npy" },
        { "below/up.npy", "over below.npy", "target.npy" },
        { "fresh.npy", "dangling.npy", "fresh.npy" },
        { "below/fresh.npy", "dangling below.npy", "below/fresh.npy" },
    };
    file_write("target.npy", "old", 3);
    assert_int_equal(mkdir(file_path("below"), 0700), 0);
    for (int64_t i = 0; i < COUNT(cases); i++)
        assert_int_equal(symlink(cases[i].to, file_path(cases[i].link)), 0);
    int64_t files = files_count("");
    for (int64_t i = 0; i < COUNT(cases); i++) {
        struct mha_tensor tensor = mha_tensor_1d_const(six, MHA_FLOAT32, i + 1);
        check_status(ctx, mha_npy_write(ctx, file_path(cases[i].link), &tensor), MHA_OK);
        struct stat info;
        assert_int_equal(lstat(file_path(cases[i].link), &info), 0);
        assert_true(S_ISLNK(info.st_mode));
        assert_int_equal(lstat(file_path(cases[i].target), &info), 0);
        assert_true(S_ISREG(info.st_mode));
        struct mha_tensor back;
        check_status(ctx, mha_npy_shape(ctx, file_path(cases[i].target), &back), MHA_OK);
        assert_int_equal(back.shape[0], i + 1);
    }
    assert_int_equal(files_count(""), files + 1); /* fresh.npy */
    assert_int_equal(remove(file_path("below/up.npy")), 0);
    assert_int_equal(remove(file_path("below/fresh.npy")), 0);
    assert_int_equal(remove(file_path("below")), 0); /* nothing else was in it */
}

/* An absolute link, and one that leads to a path as long as paths may be. */
static void links_with_long_targets(void **state)
{
    (void)state;
    struct mha_tensor tensor = mha_tensor_2d_const(six, MHA_FLOAT32, 2, 3), back;
    assert_int_equal(symlink(file_path("absolute target.npy"), file_path("absolute.npy")), 0);
    check_status(ctx, mha_npy_write(ctx, file_path("absolute.npy"), &tensor), MHA_OK);
    check_status(ctx, mha_npy_shape(ctx, file_path("absolute target.npy"), &back), MHA_OK);
    char to[4096];
    for (size_t i = 0; i < sizeof to - 2; i += 2)
        memcpy(to + i, "./", 2);
    memcpy(to + sizeof to - 2, "x", 2);
    assert_int_equal(symlink(to, file_path("far.npy")), 0);
    check_status(ctx, mha_npy_write(ctx, file_path("far.npy"), &tensor), MHA_ERROR_FILE);
    check_contains(mha_context_message(ctx), "too long");
}

static void nothing_is_allocated(void **state)
{
    (void)state;
    struct counting counting;
    counting_init(&counting);
    mha_context *counted = context_counting(&counting);
    int64_t calls = counting.calls;
    float got[6];
    struct mha_tensor tensor = mha_tensor_2d(got, MHA_FLOAT32, 2, 3);
    const char *path = file_write_npy("count.npy", PLAIN, six, sizeof six);
    check_status(counted, mha_npy_shape(counted, path, &tensor), MHA_OK);
    tensor.data = got;
    check_status(counted, mha_npy_read(counted, path, &tensor), MHA_OK);
    check_status(counted, mha_npy_write(counted, path, &tensor), MHA_OK);
    assert_int_equal(counting.calls, calls);
    mha_context_free(counted);
    assert_int_equal(counting.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kind_16_case_109_column_major),
        cmocka_unit_test(kind_16_case_110_versions),
        cmocka_unit_test(kind_16_case_111_big_endian),
        cmocka_unit_test(kind_16_case_112_grammar),
        cmocka_unit_test(kind_18_case_126_comma_in_the_locale),
        cmocka_unit_test(truncated_at_every_byte),
        cmocka_unit_test(every_header_byte_replaced),
        cmocka_unit_test(headers_beyond_the_limit),
        cmocka_unit_test(what_is_no_regular_file),
        cmocka_unit_test(arguments),
        cmocka_unit_test(written_as_numpy_writes),
        cmocka_unit_test(empty_but_too_large),
        cmocka_unit_test(written_from_any_strides),
        cmocka_unit_test(failed_write_leaves_the_old_file),
        cmocka_unit_test(where_no_file_can_be_written),
        cmocka_unit_test(leftover_drafts),
        cmocka_unit_test(permissions_follow_the_umask),
        cmocka_unit_test(a_replaced_file_leaves_its_permissions),
        cmocka_unit_test(written_through_links),
        cmocka_unit_test(links_with_long_targets),
        cmocka_unit_test(nothing_is_allocated),
    };
    return cmocka_run_group_tests_name("npy", tests, files_setup, files_teardown);
}
