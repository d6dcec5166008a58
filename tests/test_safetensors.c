/* .safetensors files: opening, reading, sharing, and what damage does. The grammar of the header is
 * in test_header.c, what happens to the elements in test_convert.c. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "files.h"
#include "fixture.h"

#define TWO                                                                                        \
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"                             \
    "\"b\":{\"dtype\":\"I16\",\"shape\":[2,3],\"data_offsets\":[8,20]}}  "

/* A small file, opened; it stays there as "two.safetensors". */
static mha_safetensors *open_two(void)
{
    static const char data[20] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
    mha_safetensors *file = NULL;
    const char *path = file_write_safetensors("two.safetensors", TWO, data, sizeof data);
    check_status(ctx, mha_safetensors_open(ctx, path, 0, &file), MHA_OK);
    return file;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void kind_15_case_100_header_length(void **state)
{
    (void)state;
    struct counting counting;
    counting_init(&counting);
    mha_context *small = context_counting(&counting);
    char bytes[64] = { 0 };
    mha_safetensors *file = NULL;
    for (int64_t n = 0; n <= 9; n++) { /* too short for "{}" whatever they say */
        const char *path = file_write("short", bytes, n);
        check_status(small, mha_safetensors_open(small, path, 0, &file), MHA_ERROR_FORMAT);
    }
    static const uint64_t lengths[] = { UINT64_MAX,
                                        0xfffffffffffffffb,
                                        0x8000000000000000,
                                        0x7fffffffffffffff,
                                        0x100000000,
                                        57,
                                        64,
                                        1,
                                        0 };
    for (int64_t i = 0; i < COUNT(lengths); i++) {
        for (int b = 0; b < 8; b++)
            bytes[b] = (char)(lengths[i] >> 8 * b);
        bytes[8] = 'x';
        check_status(small, mha_safetensors_open(small, file_write("wrap", bytes, 9), 0, &file),
                     MHA_ERROR_FORMAT);
        check_status(small, mha_safetensors_open(small, file_write("wrap", bytes, 64), 0, &file),
                     MHA_ERROR_FORMAT);
        assert_null(file);
    }
    assert_in_range(counting.most_bytes, 1, 1 << 20);
    mha_context_free(small);
    assert_int_equal(counting.live, 0);
}

static void kind_15_case_104_unaligned(void **state)
{
    (void)state;
    static const float two[2] = { 1, 2 };
    unsigned char data[9] = { 77 };
    memcpy(data + 1, two, sizeof two);
    for (int pad = 0; pad < 8; pad++) {
        char header[256];
        snprintf(header, sizeof header,
                 "{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                 "\"f\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1,9]}}%*s",
                 pad, "");
        const char *path = file_write_safetensors("odd", header, data, sizeof data);
        mha_safetensors *file;
        check_status(ctx, mha_safetensors_open(ctx, path, 0, &file), MHA_OK);
        float got[2];
        uint16_t narrow[2];
        struct mha_tensor into = mha_tensor_1d(got, MHA_FLOAT32, 2);
        check_status(ctx, mha_safetensors_read(ctx, file, "f", &into), MHA_OK);
        check_same_bits("f", got, two, 2);
        into = mha_tensor_1d(narrow, MHA_BFLOAT16, 2);
        check_status(ctx, mha_safetensors_read(ctx, file, "f", &into), MHA_OK);
        assert_true(narrow[0] == 0x3f80 && narrow[1] == 0x4000);
        mha_safetensors_close(file);
    }
}

/* A header of 1e5 tensors, with the names in an order that is no help; returns its text. */
static char *many_tensors(int64_t n)
{
    char *header = malloc((size_t)n * 100 + 3), *to = header;
    assert_non_null(header);
    *to++ = '{';
    for (int64_t i = 0; i < n; i++)
        to += sprintf(to,
                      "%s\"layer.%" PRId64 ".weight\":{\"dtype\":\"U8\",\"shape\":[1,1],"
                      "\"data_offsets\":[%" PRId64 ",%" PRId64 "]}",
                      i ? "," : "", i * 77773 % n, i, i + 1);
    strcpy(to, "}");
    return header;
}

static void kind_15_case_105_large_headers(void **state)
{
    (void)state;
    enum { N = 100000 };
    static unsigned char data[N];
    for (int64_t i = 0; i < N; i++)
        data[i] = (unsigned char)(i * 31 % 251);
    char *header = many_tensors(N);
    const char *path = file_write_safetensors("many", header, data, N);
    struct counting counting;
    counting_init(&counting);
    mha_context *counted = context_counting(&counting);
    mha_safetensors *file;
    check_status(counted, mha_safetensors_open(counted, path, 0, &file), MHA_OK);
    assert_int_equal(mha_safetensors_count(file), N);
    for (int64_t i = 0; i < N; i += 997) {
        char name[40];
        uint8_t got = 0;
        snprintf(name, sizeof name, "layer.%" PRId64 ".weight", i * 77773 % N);
        assert_string_equal(mha_safetensors_name(file, i), name);
        struct mha_tensor into = mha_tensor_2d(&got, MHA_UINT8, 1, 1);
        check_status(counted, mha_safetensors_read(counted, file, name, &into), MHA_OK);
        assert_int_equal(got, data[i]);
    }
    mha_safetensors_close(file);
    /* Linear: a tensor's text is about 75 bytes, its 14 tokens and two entries about 600. */
    assert_in_range(counting.most_bytes, 1, 10 * (int64_t)strlen(header));

    /* A cap the caller sets, to the byte, with a status of its own. */
    int64_t length = (int64_t)strlen(header);
    check_status(counted, mha_safetensors_open(counted, path, 1024, &file), MHA_ERROR_LIMIT);
    assert_null(file);
    check_status(counted, mha_safetensors_open(counted, path, length - 1, &file), MHA_ERROR_LIMIT);
    check_status(counted, mha_safetensors_open(counted, path, length, &file), MHA_OK);
    mha_safetensors_close(file);
    mha_context_free(counted);
    assert_int_equal(counting.live, 0);
    free(header);
}

/* ---- arguments and odd files ----------------------------------------------------------------- */

static void arguments(void **state)
{
    (void)state;
    mha_safetensors *file = open_two();
    const char *path = file_path("two.safetensors");
    float got[2] = { 9, 9 };
    struct mha_tensor tensor = mha_tensor_1d(got, MHA_FLOAT32, 2);
    mha_safetensors *other = file;
    check_status(NULL, mha_safetensors_open(NULL, path, 0, &other), MHA_ERROR_ARGUMENT);
    assert_null(other);
    check_status(ctx, mha_safetensors_open(ctx, NULL, 0, &other), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_safetensors_open(ctx, path, 0, NULL), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_safetensors_open(ctx, path, -1, &other), MHA_ERROR_ARGUMENT);
    check_status(NULL, mha_safetensors_shape(NULL, file, "a", &tensor), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_safetensors_shape(ctx, NULL, "a", &tensor), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_safetensors_shape(ctx, file, NULL, &tensor), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_safetensors_shape(ctx, file, "a", NULL), MHA_ERROR_ARGUMENT);
    check_status(NULL, mha_safetensors_read(NULL, file, "a", &tensor), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_safetensors_read(ctx, NULL, "a", &tensor), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_safetensors_read(ctx, file, NULL, &tensor), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_safetensors_read(ctx, file, "a", NULL), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_safetensors_read(ctx, file, "A", &tensor), MHA_ERROR_NOT_FOUND);
    check_status(ctx, mha_safetensors_read(ctx, file, "", &tensor), MHA_ERROR_NOT_FOUND);
    check_status(ctx, mha_safetensors_read(ctx, file, "aa", &tensor), MHA_ERROR_NOT_FOUND);
    check_status(ctx, mha_safetensors_read(ctx, file, "b", &tensor), MHA_ERROR_SHAPE);
    check_contains(mha_context_message(ctx), "[2, 3]");
    tensor.type = MHA_INT32;
    check_status(ctx, mha_safetensors_read(ctx, file, "a", &tensor), MHA_ERROR_TYPE);
    tensor = mha_tensor_1d_const(got, MHA_FLOAT32, 2);
    check_status(ctx, mha_safetensors_read(ctx, file, "a", &tensor), MHA_ERROR_LAYOUT);
    tensor = mha_tensor_1d(NULL, MHA_FLOAT32, 2);
    check_status(ctx, mha_safetensors_read(ctx, file, "a", &tensor), MHA_ERROR_ARGUMENT);
    assert_true(got[0] == 9 && got[1] == 9);
    assert_int_equal(mha_safetensors_count(NULL), 0);
    assert_null(mha_safetensors_name(NULL, 0));
    mha_safetensors_close(NULL);
    mha_safetensors_close(file);
}

static void what_is_no_regular_file(void **state)
{
    (void)state;
    assert_int_equal(mkfifo(file_path("pipe"), 0600), 0);
    const char *const paths[] = { file_path("missing"), file_path(""), file_path("pipe"),
                                  "/dev/zero",          "/dev/null",   "" };
    for (int64_t i = 0; i < COUNT(paths); i++) {
        mha_safetensors *file;
        errno = 1234;
        check_status(ctx, mha_safetensors_open(ctx, paths[i], 0, &file), MHA_ERROR_FILE);
        assert_int_equal(errno, 1234);
        assert_null(file);
    }
}

static void a_file_that_shrinks(void **state)
{
    (void)state;
    mha_safetensors *file = open_two();
    const char *path = file_path("two.safetensors");
    file_write("two.safetensors", "", 0); /* the same file, cut in place */
    float got[2];
    struct mha_tensor tensor = mha_tensor_1d(got, MHA_FLOAT32, 2);
    check_status(ctx, mha_safetensors_read(ctx, file, "a", &tensor), MHA_ERROR_FILE);
    remove(path);
    errno = 1234;
    mha_safetensors_close(file);
    assert_int_equal(errno, 1234);
}

/* The host's allocator may change errno as it likes; closing a file does not. */
static void release_with_errno(void *user, void *block, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(block);
    errno = EXDEV;
}

static void closing_leaves_errno(void **state)
{
    (void)state;
    mha_safetensors_close(open_two());
    struct counting counting;
    counting_init(&counting);
    counting.allocator.release = release_with_errno;
    mha_context *own = context_counting(&counting);
    mha_safetensors *file;
    check_status(own, mha_safetensors_open(own, file_path("two.safetensors"), 0, &file), MHA_OK);
    errno = 1234;
    mha_safetensors_close(file);
    assert_int_equal(errno, 1234);
    mha_context_free(own);
}

/* ---- damage ---------------------------------------------------------------------------------- */

/* Whatever a damaged file says: when it opens, its tensors lie side by side in the file's data, and
 * each can be read into just its size. */
static void check_consistent(const mha_safetensors *file, int64_t data_bytes)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < mha_safetensors_count(file); i++) {
        const char *name = mha_safetensors_name(file, i);
        struct mha_tensor tensor;
        check_status(ctx, mha_safetensors_shape(ctx, file, name, &tensor), MHA_OK);
        int64_t size = mha_tensor_count(&tensor) * mha_type_bytes(tensor.type);
        if (tensor.type == 0)
            return; /* of a size that only the file knows */
        bytes += size;
        tensor.data = guarded(size);
        check_status(ctx, mha_safetensors_read(ctx, file, name, &tensor), MHA_OK);
        guarded_free(tensor.data);
    }
    assert_int_equal(bytes, data_bytes);
}

static void truncated_at_every_byte(void **state)
{
    (void)state;
    mha_safetensors *file = open_two();
    mha_safetensors_close(file);
    int64_t n;
    char *bytes = file_read(file_path("two.safetensors"), &n);
    for (int64_t keep = 0; keep < n; keep++) {
        const char *path = file_write("cut", bytes, keep);
        check_status(ctx, mha_safetensors_open(ctx, path, 0, &file), MHA_ERROR_FORMAT);
        assert_null(file);
        /* Also where the header is cut, and its length says so; but its two blanks may go. */
        if (keep < 8 || keep >= n - 20 - 2)
            continue;
        char header[256] = "";
        memcpy(header, bytes + 8, (size_t)(keep - 8));
        path = file_write_safetensors("cut", header, bytes + n - 20, 20);
        check_status(ctx, mha_safetensors_open(ctx, path, 0, &file), MHA_ERROR_FORMAT);
    }
    free(bytes);
}

static void every_header_byte_replaced(void **state)
{
    (void)state;
    mha_safetensors *file = open_two();
    mha_safetensors_close(file);
    const char *path = file_path("two.safetensors");
    int64_t n, opened = 0;
    char *bytes = file_read(path, &n);
    for (int64_t at = 0; at < n - 20; at++) {
        for (int value = 0; value < 256; value++) {
            file_poke(path, at, (char)value);
            mha_status got = mha_safetensors_open(ctx, path, 0, &file);
            if (got != MHA_OK) {
                if (got != MHA_ERROR_FORMAT)
                    fail_msg("byte %d as %d: %s", (int)at, value, mha_status_text(got));
                continue;
            }
            opened++;
            int64_t header = (unsigned char)(at == 0 ? value : bytes[0]);
            check_consistent(file, n - 8 - header);
            mha_safetensors_close(file);
        }
        file_poke(path, at, bytes[at]);
    }
    assert_true(opened > n - 20);
    free(bytes);
}

/* Longer damage: pieces of the header cut out, doubled, or exchanged. */
static void pieces_moved(void **state)
{
    (void)state;
    static const char text[] = "{\"__metadata__\":{\"x\":\"y\"}," /* and both tensors */
                               "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                               "\"b\":{\"dtype\":\"I16\",\"shape\":[2,3],\"data_offsets\":[8,20]}}";
    static const char data[20];
    for (int round = 0; round < 3000; round++) {
        char header[2 * sizeof text];
        strcpy(header, text);
        for (int step = 0; step <= round % 3; step++) {
            char piece[sizeof text] = "";
            size_t length = strlen(header);
            size_t from = (size_t)random_below((int64_t)length);
            size_t most = length - from < 12 ? length - from : 12;
            size_t size = 1 + (size_t)random_below((int64_t)most);
            memcpy(piece, header + from, size);
            if (random_below(2)) { /* cut out */
                memmove(header + from, header + from + size, length - from - size + 1);
                length -= size;
            }
            if (random_below(2) || length == 0) { /* put in elsewhere */
                size_t to = (size_t)random_below((int64_t)length + 1);
                memmove(header + to + size, header + to, length - to + 1);
                memcpy(header + to, piece, size);
            }
        }
        mha_safetensors *file;
        const char *path = file_write_safetensors("moved", header, data, sizeof data);
        if (mha_safetensors_open(ctx, path, 0, &file) == MHA_OK) {
            check_consistent(file, sizeof data);
            mha_safetensors_close(file);
        }
    }
}

/* ---- memory, sharing, manners ---------------------------------------------------------------- */

static void kind_18_case_123_every_allocation_fails_once(void **state)
{
    (void)state;
    mha_safetensors_close(open_two());
    const char *path = file_path("two.safetensors");
    struct counting counting;
    counting_init(&counting);
    mha_context *counted = context_counting(&counting);
    int64_t own = counting.live, failures = 0;
    for (int64_t n = 1;; n++) {
        mha_safetensors *file = (mha_safetensors *)&own;
        counting.fail_at = counting.calls + n;
        mha_status got = mha_safetensors_open(counted, path, 0, &file);
        counting.fail_at = 0;
        if (got == MHA_OK) {
            mha_safetensors_close(file);
            assert_int_equal(counting.live, own);
            break;
        }
        check_status(counted, got, MHA_ERROR_MEMORY);
        assert_null(file);
        assert_int_equal(counting.live, own);
        check_status(counted, mha_safetensors_open(counted, path, 0, &file), MHA_OK);
        mha_safetensors_close(file);
        failures++;
    }
    assert_true(failures >= 3);
    /* Reading needs no memory. */
    mha_safetensors *file;
    float got[2];
    struct mha_tensor into = mha_tensor_1d(got, MHA_FLOAT32, 2);
    check_status(counted, mha_safetensors_open(counted, path, 0, &file), MHA_OK);
    int64_t calls = counting.calls;
    check_status(counted, mha_safetensors_read(counted, file, "a", &into), MHA_OK);
    assert_int_equal(counting.calls, calls);
    mha_context_free(counted); /* the file does not need the context that opened it */
    check_status(ctx, mha_safetensors_read(ctx, file, "a", &into), MHA_OK);
    mha_safetensors_close(file);
    assert_int_equal(counting.live, 0);
    assert_int_equal(counting.live_bytes, 0);
}

/* A host whose allocator calls back into the same context gets an answer, not a deadlock. */
struct reentrant {
    mha_context *ctx;
    mha_status seen;
};

static void *reentrant_allocate(void *user, size_t bytes, size_t alignment)
{
    struct reentrant *reentrant = user;
    void *block = NULL;
    if (reentrant->ctx) {
        mha_safetensors *file;
        reentrant->seen = mha_safetensors_open(reentrant->ctx, "any", 0, &file);
        assert_null(file);
    }
    return posix_memalign(&block, alignment, bytes) == 0 ? block : NULL;
}

static void reentrant_release(void *user, void *block, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(block);
}

static void busy_context(void **state)
{
    (void)state;
    struct reentrant reentrant = { NULL, MHA_OK };
    struct mha_allocator allocator = { reentrant_allocate, reentrant_release, &reentrant };
    struct mha_context_options options = { .allocator = &allocator };
    mha_safetensors_close(open_two());
    mha_context *own = NULL;
    check_status(NULL, mha_context_create(&options, &own), MHA_OK);
    reentrant.ctx = own;
    mha_safetensors *file;
    const char *path = file_path("two.safetensors");
    check_status(own, mha_safetensors_open(own, path, 0, &file), MHA_OK);
    check_status(own, reentrant.seen, MHA_ERROR_BUSY);
    mha_safetensors_close(file);
    mha_context_free(own);
}

enum { READERS = 4, ROUNDS = 200, ROW = 6000 };

static const mha_safetensors *shared_file;

static void *read_rows(void *result)
{
    mha_context *own = context_plain();
    static const char *const names[] = { "a", "b", "c" };
    double *got = malloc(ROW * sizeof *got);
    for (int round = 0; round < ROUNDS; round++) {
        struct mha_tensor into = mha_tensor_1d(got, MHA_FLOAT64, ROW);
        int which = (round * 7 + *(int *)result) % 3;
        if (mha_safetensors_read(own, shared_file, names[which], &into) != MHA_OK)
            *(int *)result = -1000;
        for (int i = 0; i < ROW; i++)
            if (got[i] != which * ROW + i)
                *(int *)result = -1000;
    }
    free(got);
    mha_context_free(own);
    return NULL;
}

static void one_file_many_readers(void **state)
{
    (void)state;
    static float data[3 * ROW];
    for (int i = 0; i < 3 * ROW; i++)
        data[i] = (float)i;
    const char *path = file_write_safetensors(
        "shared",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[6000],\"data_offsets\":[0,24000]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[6000],\"data_offsets\":[24000,48000]},"
        "\"c\":{\"dtype\":\"F32\",\"shape\":[6000],\"data_offsets\":[48000,72000]}}",
        data, sizeof data);
    mha_safetensors *file;
    check_status(ctx, mha_safetensors_open(ctx, path, 0, &file), MHA_OK);
    shared_file = file;
    pthread_t threads[READERS];
    int results[READERS];
    for (int i = 0; i < READERS; i++) {
        results[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, read_rows, &results[i]), 0);
    }
    for (int i = 0; i < READERS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < READERS; i++)
        assert_int_equal(results[i], i);
    mha_safetensors_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kind_15_case_100_header_length),
        cmocka_unit_test(kind_15_case_104_unaligned),
        cmocka_unit_test(kind_15_case_105_large_headers),
        cmocka_unit_test(arguments),
        cmocka_unit_test(what_is_no_regular_file),
        cmocka_unit_test(a_file_that_shrinks),
        cmocka_unit_test(closing_leaves_errno),
        cmocka_unit_test(truncated_at_every_byte),
        cmocka_unit_test(every_header_byte_replaced),
        cmocka_unit_test(pieces_moved),
        cmocka_unit_test(kind_18_case_123_every_allocation_fails_once),
        cmocka_unit_test(busy_context),
        cmocka_unit_test(one_file_many_readers),
    };
    return cmocka_run_group_tests_name("safetensors", tests, files_setup, files_teardown);
}
