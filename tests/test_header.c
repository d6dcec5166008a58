/* The header of .safetensors files, text by text: what is taken, and all that is refused. Damaged
 * files and reading are in test_safetensors.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "fixture.h"

/* Opens a file made of this header and `n` bytes of data and expects a status. An opened file is
 * returned, else NULL. */
static mha_safetensors *open_text(const char *header, int64_t n, mha_status want)
{
    static unsigned char data[64];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)i;
    mha_safetensors *file = (mha_safetensors *)&data;
    const char *path = file_write_safetensors("text.safetensors", header, data, n);
    mha_status got = mha_safetensors_open(ctx, path, 0, &file);
    if (got != want)
        print_error("%s\n", header);
    check_status(ctx, got, want);
    if (got != MHA_OK) {
        assert_null(file);
        check_contains(mha_context_message(ctx), "mha_safetensors_open: \"");
        check_contains(mha_context_message(ctx), "text.safetensors");
    }
    return file;
}

struct text_case {
    const char *header;
    mha_status want;
    int32_t bytes; /* of data */
};

static void check_texts(const struct text_case *cases, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        mha_safetensors_close(open_text(cases[i].header, cases[i].bytes, cases[i].want));
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void kind_15_case_101_offsets(void **state)
{
    (void)state;
    static const struct text_case cases[] = {
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[1000,1000],\"data_offsets\":[0,4]}}",
          MHA_ERROR_FORMAT, 4 },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[1000,1000],\"data_offsets\":[0,4000000]}}",
          MHA_ERROR_FORMAT, 4 },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", MHA_OK, 8 },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", MHA_OK, 4 },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", MHA_OK, 0 },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,4]}}", MHA_ERROR_FORMAT, 4 },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", MHA_ERROR_FORMAT, 8 },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", MHA_ERROR_FORMAT,
          12 },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":"
          "[18446744073709551608,18446744073709551615]}}",
          MHA_ERROR_FORMAT, 8 },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,18446744073709551624]}}",
          MHA_ERROR_FORMAT, 8 },
    };
    check_texts(cases, COUNT(cases));
    open_text(cases[0].header, 4, MHA_ERROR_FORMAT);
    check_contains(mha_context_message(ctx), "\"t\" has 4 bytes of data, wanted 4000000");
    open_text(cases[1].header, 4, MHA_ERROR_FORMAT);
    check_contains(mha_context_message(ctx), "\"t\" lies at 0 to 4000000 of 4 bytes");
    open_text(cases[6].header, 8, MHA_ERROR_FORMAT);
    check_contains(mha_context_message(ctx), "\"t\" lies at 8 to 0 of 8 bytes");
}

static void kind_15_case_102_products_that_wrap(void **state)
{
    (void)state;
    static const struct text_case cases[] = {
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,16]}}",
          MHA_ERROR_FORMAT, 16 },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}",
          MHA_ERROR_FORMAT, 0 },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[0,4294967296,4294967296],"
          "\"data_offsets\":[0,0]}}",
          MHA_ERROR_FORMAT, 0 },
        { "{\"t\":{\"dtype\":\"F32\",\"shape\":[18446744073709551615,0],\"data_offsets\":[0,0]}}",
          MHA_ERROR_FORMAT, 0 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[18446744073709551616],\"data_offsets\":[0,0]}}",
          MHA_ERROR_FORMAT, 0 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[18446744073709551617],\"data_offsets\":[0,1]}}",
          MHA_ERROR_FORMAT, 1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[9223372036854775808],\"data_offsets\":[0,0]}}",
          MHA_ERROR_FORMAT, 0 },
        { "{\"t\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}",
          MHA_ERROR_FORMAT, 0 },
    };
    check_texts(cases, COUNT(cases));
}

static void kind_15_case_103_tiling(void **state)
{
    (void)state;
#define KV(k, v)                                                                                   \
    "{\"k\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[" k "]},"                           \
    "\"v\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[" v "]}}"
    static const struct text_case cases[] = {
        { KV("0,16", "16,32"), MHA_OK, 32 },
        { KV("16,32", "0,16"), MHA_OK, 32 },
        { KV("0,16", "0,16"), MHA_ERROR_FORMAT, 16 },
        { KV("0,16", "0,16"), MHA_ERROR_FORMAT, 32 },
        { KV("0,16", "8,24"), MHA_ERROR_FORMAT, 24 },
        { KV("0,16", "20,36"), MHA_ERROR_FORMAT, 36 },
        { KV("4,20", "20,36"), MHA_ERROR_FORMAT, 36 },
        { KV("0,16", "16,32"), MHA_ERROR_FORMAT, 36 },
        { KV("0,16", "16,32"), MHA_ERROR_FORMAT, 31 },
        { "{}", MHA_OK, 0 },
        { "{}", MHA_ERROR_FORMAT, 1 },
    };
#undef KV
    check_texts(cases, COUNT(cases));
    open_text(cases[4].header, 24, MHA_ERROR_FORMAT);
    check_contains(mha_context_message(ctx), "\"v\" overlaps the one before by 8 bytes");
    open_text(cases[5].header, 36, MHA_ERROR_FORMAT);
    check_contains(mha_context_message(ctx), "\"v\" leaves a hole of 4 bytes before it");
    /* Tensors come in the order of their data, and empty ones may lie between. */
    mha_safetensors *file = open_text(
        "{\"last\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]},"
        "\"none\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[3,3]},"
        "\"also\":{\"dtype\":\"F8_E4M3\",\"shape\":[5,0],\"data_offsets\":[3,3]},"
        "\"first\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}",
        5, MHA_OK);
    static const char *const names[] = { "first", "none", "also", "last" };
    assert_int_equal(mha_safetensors_count(file), 4);
    for (int64_t i = 0; i < 4; i++)
        assert_string_equal(mha_safetensors_name(file, i), names[i]);
    assert_null(mha_safetensors_name(file, -1));
    assert_null(mha_safetensors_name(file, 4));
    uint8_t got[2];
    struct mha_tensor tensor = mha_tensor_1d(got, MHA_UINT8, 2);
    check_status(ctx, mha_safetensors_read(ctx, file, "last", &tensor), MHA_OK);
    assert_true(got[0] == 3 && got[1] == 4);
    mha_safetensors_close(file);
}

/* ---- the grammar ----------------------------------------------------------------------------- */

#define T "{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}"

static void json_grammar(void **state)
{
    (void)state;
    static const struct text_case cases[] = {
        { "{\"t\":" T "}", MHA_OK, 1 },
        { "{ \"t\"\t:\n{ \"data_offsets\" : [ 0 , 1 ] , \"shape\" : [ 1 ] ,\r\"dtype\" : \"U8\" } "
          "} \n  ",
          MHA_OK, 1 },
        { "{\"\":" T "}", MHA_OK, 1 },
        { "{\"t\":{\"\\u0064type\":\"\\u00558\",\"shape\":[1],\"data_offsets\":[0,1]}}", MHA_OK,
          1 },
        { "{\"__metadata__\":{\"format\":\"pt\",\"\":\"\\u0000\"},\"t\":" T "}", MHA_OK, 1 },
        { "{\"t\":" T ",\"__metadata__\":{}}", MHA_OK, 1 },
        /* marks */
        { "{\"t\":" T ",}", MHA_ERROR_FORMAT, 1 },
        { "{,\"t\":" T "}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\"" T "}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\"::" T "}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\"," T "}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":" T "}}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":" T "", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":" T "]", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":" T "}x", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":" T "}{}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":" T "},\"u\"", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":" T "} 1", MHA_ERROR_FORMAT, 1 },
        { " {\"t\":" T "}", MHA_ERROR_FORMAT, 1 },
        { "[{\"t\":" T "}]", MHA_ERROR_FORMAT, 1 },
        { "\"t\":" T "", MHA_ERROR_FORMAT, 1 },
        { "null", MHA_ERROR_FORMAT, 0 },
        { "{\"t\":" T " \"u\":" T "}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":" T ",,\"u\":" T "}", MHA_ERROR_FORMAT, 1 },
        { "{t:" T "}", MHA_ERROR_FORMAT, 1 },
        { "{'t':" T "}", MHA_ERROR_FORMAT, 1 },
        { "{1:" T "}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":1}", MHA_ERROR_FORMAT, 0 },
        { "{\"t\":null}", MHA_ERROR_FORMAT, 0 },
        { "{\"t\":\"x\"}", MHA_ERROR_FORMAT, 0 },
        { "{\"t\":[]}", MHA_ERROR_FORMAT, 0 },
        { "{\"t\":{}}", MHA_ERROR_FORMAT, 0 },
        { "{\"t\"}", MHA_ERROR_FORMAT, 0 },
        { "{\"t\":}", MHA_ERROR_FORMAT, 0 },
        { "{:}", MHA_ERROR_FORMAT, 0 },
        { "  ", MHA_ERROR_FORMAT, 0 },
        { "{\"t\":\"a\":\"b\":" T "}", MHA_ERROR_FORMAT, 1 },
        /* keys */
        { "{\"t\":{\"shape\":[1],\"data_offsets\":[0,1]}}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[1]}}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
          MHA_ERROR_FORMAT, 1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,1]}}",
          MHA_ERROR_FORMAT, 1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":1}}",
          MHA_ERROR_FORMAT, 1 },
        { "{\"t\":{\"dtype\":\"U8\",\"Shape\":[1],\"data_offsets\":[0,1]}}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":" T ",\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
          MHA_ERROR_FORMAT, 2 },
        { "{\"t\":" T ",\"\\u0074\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
          MHA_ERROR_FORMAT, 2 },
        { "{\"__metadata__\":{},\"__metadata__\":{}}", MHA_ERROR_FORMAT, 0 },
        { "{\"__metadata__\":{\"a\":1}}", MHA_ERROR_FORMAT, 0 },
        { "{\"__metadata__\":{\"a\":{}}}", MHA_ERROR_FORMAT, 0 },
        { "{\"__metadata__\":{\"a\":\"b\",}}", MHA_ERROR_FORMAT, 0 },
        { "{\"__metadata__\":{\"a\" \"b\"}}", MHA_ERROR_FORMAT, 0 },
        { "{\"__metadata__\":{\"a\"}}", MHA_ERROR_FORMAT, 0 },
        { "{\"__metadata__\":[]}", MHA_ERROR_FORMAT, 0 },
        { "{\"__metadata__\":null}", MHA_ERROR_FORMAT, 0 },
        /* values */
        { "{\"t\":{\"dtype\":\"u8\",\"shape\":[1],\"data_offsets\":[0,1]}}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":{\"dtype\":\"U8 \",\"shape\":[1],\"data_offsets\":[0,1]}}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":{},\"data_offsets\":[0,1]}}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[1,],\"data_offsets\":[0,1]}}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[,1],\"data_offsets\":[0,1]}}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[1 1],\"data_offsets\":[0,1]}}", MHA_ERROR_FORMAT,
          1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[1}],\"data_offsets\":[0,1]}}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[\"1\"],\"data_offsets\":[0,1]}}", MHA_ERROR_FORMAT,
          1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[[1]],\"data_offsets\":[0,1]}}", MHA_ERROR_FORMAT,
          1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", MHA_ERROR_FORMAT,
          1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[1e0],\"data_offsets\":[0,1]}}", MHA_ERROR_FORMAT,
          1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[01],\"data_offsets\":[0,1]}}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[-0],\"data_offsets\":[0,0]}}", MHA_ERROR_FORMAT, 0 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[true],\"data_offsets\":[0,1]}}", MHA_ERROR_FORMAT,
          1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}", MHA_ERROR_FORMAT,
          1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[]}}", MHA_ERROR_FORMAT, 1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1],\"data_offsets\":[0,1]}}", MHA_OK, 1 },
        { "{\"t\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}",
          MHA_ERROR_LIMIT, 1 },
    };
    check_texts(cases, COUNT(cases));
}

static void names_are_resolved_and_shown_safely(void **state)
{
    (void)state;
    static const struct {
        const char *json, *name; /* name NULL: a format error */
    } cases[] = {
        { "plain.weight", "plain.weight" },
        { "\\\"\\\\\\/\\b\\f\\n\\r\\t", "\"\\/\b\f\n\r\t" },
        { "\\u0041\\u00e9\\u20ac\\ud83d\\ude00", "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80" },
        { "\\uD83D\\uDE00", "\xf0\x9f\x98\x80" },
        { "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80" },
        { "\x7f", "\x7f" },
        { "\\u0000", NULL },
        { "a\\u0000b", NULL },
        { "\\ud83d", NULL },
        { "\\ude00", NULL },
        { "\\ud83dx", NULL },
        { "\\ud83d\\n", NULL },
        { "\\ud83d\\u0041", NULL },
        { "\\ud83d\\ud83d", NULL },
        { "\\u12", NULL },
        { "\\u12g4", NULL },
        { "\\x41", NULL },
        { "\\", NULL },
        { "\n", NULL },
        { "\x01", NULL },
        { "\x80", NULL },
        { "\xc3", NULL },
        { "\xc3x", NULL },
        { "\xc0\xaf", NULL },
        { "\xc1\x81", NULL },
        { "\xe0\x80\x80", NULL },
        { "\xed\xa0\x80", NULL },
        { "\xf0\x80\x80\x80", NULL },
        { "\xf4\x90\x80\x80", NULL },
        { "\xf5\x80\x80\x80", NULL },
        { "\xe2\x82", NULL },
        { "\xff", NULL },
    };
    for (int64_t i = 0; i < COUNT(cases); i++) {
        char header[256];
        snprintf(header, sizeof header, "{\"%s\":" T "}", cases[i].json);
        mha_safetensors *file = open_text(header, 1, cases[i].name ? MHA_OK : MHA_ERROR_FORMAT);
        if (!cases[i].name)
            continue;
        assert_string_equal(mha_safetensors_name(file, 0), cases[i].name);
        struct mha_tensor tensor;
        check_status(ctx, mha_safetensors_shape(ctx, file, cases[i].name, &tensor), MHA_OK);
        assert_int_equal(tensor.type, MHA_UINT8);
        mha_safetensors_close(file);
    }
    mha_safetensors *file = open_text("{}", 0, MHA_OK);
    struct mha_tensor tensor;
    check_status(ctx, mha_safetensors_shape(ctx, file, "\x1b[31m\n\"\xc3\xa9", &tensor),
                 MHA_ERROR_NOT_FOUND);
    check_contains(mha_context_message(ctx), "\"\\x1b[31m\\x0a\\\"\\xc3\\xa9\"");
    char name[3000];
    memset(name, '\n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    check_status(ctx, mha_safetensors_shape(ctx, file, name, &tensor), MHA_ERROR_NOT_FOUND);
    check_contains(mha_context_message(ctx), "\\x0a...\"");
    mha_safetensors_close(file);
}

static void zero_bytes_in_the_header(void **state)
{
    (void)state;
    static const char text[] = "{\"t\":" T "}  ";
    char bytes[8 + sizeof text];
    for (size_t at = 0; at < sizeof text - 1; at++) {
        memset(bytes, 0, sizeof bytes);
        bytes[0] = sizeof text - 1;
        memcpy(bytes + 8, text, sizeof text - 1);
        bytes[8 + at] = 0;
        mha_safetensors *file;
        const char *path = file_write("zero", bytes, sizeof bytes);
        check_status(ctx, mha_safetensors_open(ctx, path, 0, &file), MHA_ERROR_FORMAT);
    }
}

/* A parser that recurses, or searches backwards at each bracket, would be felt here. */
static void deep_or_crowded_headers(void **state)
{
    (void)state;
    enum { N = 2000000 };
    char *header = malloc(N + 1);
    assert_non_null(header);
    static const char *const fills[] = { "{",  "[",  "[]", "{}",      "\"a\":",
                                         "1,", "\"", ",",  "{\"a\":", "\"a\":{}," };
    for (int64_t i = 0; i < COUNT(fills); i++) {
        size_t length = strlen(fills[i]);
        for (size_t at = 0; at + length <= N; at += length)
            memcpy(header + at, fills[i], length);
        header[0] = '{';
        header[N / length * length] = 0;
        mha_safetensors *file;
        const char *path = file_write_safetensors("deep", header, NULL, 0);
        check_status(ctx, mha_safetensors_open(ctx, path, 0, &file), MHA_ERROR_FORMAT);
    }
    memset(header, '[', N / 2);
    memset(header + N / 2, ']', N / 2);
    memcpy(header, "{\"a\":", 5);
    header[N - 5] = '}';
    header[N - 4] = 0;
    mha_safetensors *file;
    const char *path = file_write_safetensors("deep", header, NULL, 0);
    check_status(ctx, mha_safetensors_open(ctx, path, 0, &file), MHA_ERROR_FORMAT);
    free(header);
}

/* ---- types ----------------------------------------------------------------------------------- */

static void every_dtype(void **state)
{
    (void)state;
    static const struct {
        const char *dtype;
        int32_t type, bits;
    } cases[] = {
        { "BOOL", MHA_BOOL, 8 },
        { "U8", MHA_UINT8, 8 },
        { "I8", MHA_INT8, 8 },
        { "I16", MHA_INT16, 16 },
        { "U16", MHA_UINT16, 16 },
        { "I32", MHA_INT32, 32 },
        { "U32", MHA_UINT32, 32 },
        { "I64", MHA_INT64, 64 },
        { "U64", MHA_UINT64, 64 },
        { "F16", MHA_FLOAT16, 16 },
        { "BF16", MHA_BFLOAT16, 16 },
        { "F32", MHA_FLOAT32, 32 },
        { "F64", MHA_FLOAT64, 64 },
        { "F8_E5M2", 0, 8 },
        { "F8_E4M3", 0, 8 },
        { "F8_E8M0", 0, 8 },
        { "F8_E4M3FNUZ", 0, 8 },
        { "F8_E5M2FNUZ", 0, 8 },
        { "C64", 0, 64 },
        { "F4", 0, 4 },
        { "F6_E2M3", 0, 6 },
        { "F6_E3M2", 0, 6 },
    };
    for (int64_t i = 0; i < COUNT(cases); i++) {
        char header[128];
        for (int n = 1; n <= 4; n++) {
            int bits = n * cases[i].bits;
            snprintf(header, sizeof header,
                     "{\"t\":{\"dtype\":\"%s\",\"shape\":[%d],\"data_offsets\":[0,%d]}}",
                     cases[i].dtype, n, bits / 8);
            bool whole = bits % 8 == 0;
            mha_safetensors *file = open_text(header, bits / 8, whole ? MHA_OK : MHA_ERROR_FORMAT);
            if (!whole)
                continue;
            struct mha_tensor tensor;
            check_status(ctx, mha_safetensors_shape(ctx, file, "t", &tensor), MHA_OK);
            assert_int_equal(tensor.type, cases[i].type);
            assert_int_equal(tensor.rank, 1);
            assert_int_equal(tensor.shape[0], n);
            unsigned char got[32] = { 200 };
            tensor = mha_tensor_1d(got, cases[i].type ? cases[i].type : MHA_FLOAT32, n);
            mha_status read = mha_safetensors_read(ctx, file, "t", &tensor);
            check_status(ctx, read, cases[i].type ? MHA_OK : MHA_ERROR_TYPE);
            if (read == MHA_OK) {
                for (int b = 0; b < bits / 8; b++)
                    assert_int_equal(got[b], b);
            } else {
                check_contains(mha_context_message(ctx), cases[i].dtype);
                assert_int_equal(got[0], 200);
            }
            mha_safetensors_close(file);
        }
    }
}

static void kind_18_case_126_comma_in_the_locale(void **state)
{
    locale_with_comma();
    json_grammar(state);
    kind_15_case_103_tiling(state);
    locale_back();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kind_15_case_101_offsets),
        cmocka_unit_test(kind_15_case_102_products_that_wrap),
        cmocka_unit_test(kind_15_case_103_tiling),
        cmocka_unit_test(json_grammar),
        cmocka_unit_test(names_are_resolved_and_shown_safely),
        cmocka_unit_test(zero_bytes_in_the_header),
        cmocka_unit_test(deep_or_crowded_headers),
        cmocka_unit_test(every_dtype),
        cmocka_unit_test(kind_18_case_126_comma_in_the_locale),
    };
    return cmocka_run_group_tests_name("header", tests, files_setup, files_teardown);
}
