/* Elements on their way from a file: float types against tables made by another road, byte orders,
 * storage orders, and every type of integer. */
#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "fixture.h"

/* Reads n elements of an .npy descr into `into` as another type. */
static void through_npy(const char *descr, const void *from, int64_t from_bytes, int64_t n,
                        int32_t type, void *into)
{
    char header[128];
    snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (%d,)}",
             descr, (int)n);
    const char *path = file_write_npy("convert.npy", header, from, n * from_bytes);
    struct mha_tensor tensor = mha_tensor_1d(into, type, n);
    check_status(ctx, mha_npy_read(ctx, path, &tensor), MHA_OK);
}

/* The same from a .safetensors file, which also knows BF16. */
static void through_safetensors(const char *dtype, const void *from, int64_t from_bytes, int64_t n,
                                int32_t type, void *into)
{
    char header[160];
    snprintf(header, sizeof header,
             "{\"t\":{\"dtype\":\"%s\",\"shape\":[%d],\"data_offsets\":[0,%d]}}", dtype, (int)n,
             (int)(n * from_bytes));
    const char *path = file_write_safetensors("convert.safetensors", header, from, n * from_bytes);
    mha_safetensors *file = NULL;
    check_status(ctx, mha_safetensors_open(ctx, path, 0, &file), MHA_OK);
    struct mha_tensor tensor = mha_tensor_1d(into, type, n);
    check_status(ctx, mha_safetensors_read(ctx, file, "t", &tensor), MHA_OK);
    mha_safetensors_close(file);
}

/* ---- an independent model of a small float type ---------------------------------------------- */

/* The value of 16 bits with so many of exponent, by ldexp; NaN for NaN. */
static double value_of(uint16_t bits, int exponent_bits)
{
    int fraction_bits = 15 - exponent_bits;
    int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
    int fraction = bits & ((1 << fraction_bits) - 1);
    int bias = (1 << (exponent_bits - 1)) - 1;
    double value = exponent == 2 * bias + 1 ? (fraction ? (double)NAN : (double)INFINITY)
                   : exponent == 0
                       ? ldexp(fraction, 1 - bias - fraction_bits)
                       : ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
    return bits >> 15 ? -value : value;
}

/* The nearest such bits by search among all of them; on a tie the even ones; beyond half a step
 * above the largest number, infinity. */
static uint16_t nearest_bits(double value, int exponent_bits)
{
    uint16_t infinity = (uint16_t)(((1 << exponent_bits) - 1) << (15 - exponent_bits));
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double size = fabs(value);
    uint16_t low = 0, high = (uint16_t)(infinity - 1);
    while (low < high) { /* the largest number that is not above */
        uint16_t middle = (uint16_t)((low + high + 1) / 2);
        if (value_of(middle, exponent_bits) <= size)
            low = middle;
        else
            high = (uint16_t)(middle - 1);
    }
    double below = value_of(low, exponent_bits);
    double above = low + 1 == infinity
                       ? below + (below - value_of((uint16_t)(low - 1), exponent_bits))
                       : value_of((uint16_t)(low + 1), exponent_bits);
    /* Exact: neighbours and what lies between them are within a factor of two, or are subnormal. */
    double down = size - below, up = above - size;
    bool upward = up < down || (up == down && low % 2 == 1);
    return (uint16_t)(sign | (uint16_t)(low + upward));
}

static void check_narrowed(double value, uint16_t got, int exponent_bits)
{
    uint16_t want = nearest_bits(value, exponent_bits);
    if (isnan(value) ? !isnan(value_of(got, exponent_bits)) : got != want)
        fail_msg("%a became %04x, wanted %04x", value, got, want);
}

/* ---- floats ---------------------------------------------------------------------------------- */

static void every_16_bit_float_widens_exactly(void **state)
{
    (void)state;
    enum { N = 65536 };
    static uint16_t bits[N];
    static float single[N];
    static double twice[N];
    for (int i = 0; i < N; i++)
        bits[i] = (uint16_t)i;
    for (int exponent_bits = 5; exponent_bits <= 8; exponent_bits += 3) {
        const char *dtype = exponent_bits == 5 ? "F16" : "BF16";
        through_safetensors(dtype, bits, 2, N, MHA_FLOAT32, single);
        through_safetensors(dtype, bits, 2, N, MHA_FLOAT64, twice);
        for (int i = 0; i < N; i++) {
            double want = value_of((uint16_t)i, exponent_bits);
            if (isnan(want) ? !isnan(single[i]) || !isnan(twice[i])
                            : (double)single[i] != want || twice[i] != want)
                fail_msg("%s %04x: got %a and %a, wanted %a", dtype, i, (double)single[i], twice[i],
                         want);
            assert_int_equal(!!signbit(single[i]), i >> 15);
        }
    }
}

static void every_16_bit_float_survives_a_round_trip(void **state)
{
    (void)state;
    enum { N = 65536 };
    static uint16_t bits[N], back[N];
    static float single[N];
    static double twice[N];
    for (int i = 0; i < N; i++)
        bits[i] = (uint16_t)i;
    for (int exponent_bits = 5; exponent_bits <= 8; exponent_bits += 3) {
        const char *dtype = exponent_bits == 5 ? "F16" : "BF16";
        int32_t type = exponent_bits == 5 ? MHA_FLOAT16 : MHA_BFLOAT16;
        uint16_t quiet = exponent_bits == 5 ? 0x200 : 0x40;
        for (int wide = 0; wide < 2; wide++) {
            through_safetensors(dtype, bits, 2, N, wide ? MHA_FLOAT64 : MHA_FLOAT32,
                                wide ? (void *)twice : (void *)single);
            through_safetensors(wide ? "F64" : "F32", wide ? (void *)twice : (void *)single,
                                wide ? 8 : 4, N, type, back);
            for (int i = 0; i < N; i++) {
                bool is_nan = isnan(value_of((uint16_t)i, exponent_bits));
                assert_int_equal(back[i], is_nan ? i | quiet : i);
            }
        }
    }
}

static void random_floats_round_to_the_nearest(void **state)
{
    (void)state;
    enum { N = 20000 };
    static float single[N];
    static double twice[N];
    static uint16_t got[N];
    for (int exponent_bits = 5; exponent_bits <= 8; exponent_bits += 3) {
        int32_t type = exponent_bits == 5 ? MHA_FLOAT16 : MHA_BFLOAT16;
        int widest = exponent_bits == 5 ? 18 : 129, lowest = exponent_bits == 5 ? -27 : -140;
        for (int i = 0; i < N; i++) {
            /* Uniform in the exponent; every third one halfway between two neighbours. */
            int exponent = lowest + (int)random_below(widest - lowest);
            twice[i] = ldexp(1 + fabs((double)random_float()), exponent);
            if (i % 3 == 0) {
                uint16_t near = (uint16_t)random_below(exponent_bits == 5 ? 0x7bff : 0x7f7f);
                twice[i] = (value_of(near, exponent_bits)
                            + value_of((uint16_t)(near + 1), exponent_bits))
                           / 2;
                if (i % 2)
                    twice[i] = nextafter(twice[i], i % 4 == 1 ? INFINITY : 0);
            }
            if (i % 5 == 0)
                twice[i] = -twice[i];
            single[i] = (float)twice[i];
        }
        through_npy("<f8", twice, 8, N, type, got);
        for (int i = 0; i < N; i++)
            check_narrowed(twice[i], got[i], exponent_bits);
        through_npy("<f4", single, 4, N, type, got);
        for (int i = 0; i < N; i++)
            check_narrowed((double)single[i], got[i], exponent_bits);
    }
}

static void doubles_become_floats_as_the_compiler_makes_them(void **state)
{
    (void)state;
    enum { N = 20000 };
    static double twice[N];
    static float got[N], want[N];
    for (int i = 0; i < N; i++) {
        uint64_t bits = random_bits();
        if (i % 2) { /* near the range of float32, its subnormals included */
            int exponent = -155 + (int)random_below(155 + 130);
            twice[i] = ldexp((double)random_float(), exponent);
        } else {
            memcpy(&twice[i], &bits, sizeof bits);
        }
    }
    twice[0] = 0x1.fffffefffffffp127; /* just below the halfway point to infinity */
    twice[2] = 0x1.ffffffp127;        /* on it */
    twice[4] = 0x1p-150;              /* a tie with zero */
    twice[6] = 0x1.0000000000001p-150;
    twice[8] = 4e-320;
    twice[10] = -0.0;
    for (int i = 0; i < N; i++)
        want[i] = (float)twice[i];
    through_npy("<f8", twice, 8, N, MHA_FLOAT32, got);
    for (int i = 0; i < N; i++)
        check_same_bits("float32", &got[i], &want[i], 1);
    assert_true(isinf(got[2]) && !isinf(got[0]));
    assert_int_equal(fesetround(FE_UPWARD), 0);
    feclearexcept(FE_ALL_EXCEPT);
    float upward[1];
    through_npy("<f8", (double[]){ 1 + 0x1p-40 }, 8, 1, MHA_FLOAT32, upward);
    int raised = fetestexcept(FE_INEXACT | FE_OVERFLOW | FE_INVALID);
    fesetround(FE_TONEAREST);
    assert_int_equal(raised, 0);
    assert_true(upward[0] == 1);
}

static void floats_become_the_same_doubles(void **state)
{
    (void)state;
    enum { N = 4096 };
    static float single[N];
    static double got[N];
    for (int i = 0; i < N; i++) {
        uint32_t bits = (uint32_t)random_bits();
        if (i % 4 == 0)
            bits &= 0x807fffff; /* subnormal */
        memcpy(&single[i], &bits, sizeof bits);
    }
    through_npy("<f4", single, 4, N, MHA_FLOAT64, got);
    for (int i = 0; i < N; i++) {
        double want = (double)single[i];
        assert_true(isnan(want) ? isnan(got[i]) : memcmp(&got[i], &want, sizeof want) == 0);
    }
}

/* Kind 9, case 61: bits that rounding by truncation or by a blind carry gets wrong. */
static void kind_9_case_61_float32_to_bfloat16(void **state)
{
    (void)state;
    static const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = {
        { 0x3e89ccd5, 0x3e8a }, { 0x3f808000, 0x3f80 }, { 0x3f818000, 0x3f82 },
        { 0x7f7fffff, 0x7f80 }, { 0x00000001, 0x0000 }, { 0x80000000, 0x8000 },
        { 0x7f800000, 0x7f80 }, { 0xff800000, 0xff80 },
    };
    static const uint32_t nans[] = { 0x7f800001, 0x7fff8c22, 0xff800001, 0xffffffff };
    for (int64_t i = 0; i < COUNT(cases); i++) {
        uint16_t got = 1;
        through_npy("<f4", &cases[i].from, 4, 1, MHA_BFLOAT16, &got);
        assert_int_equal(got, cases[i].to);
    }
    for (int64_t i = 0; i < COUNT(nans); i++) {
        uint16_t got = 1;
        through_npy("<f4", &nans[i], 4, 1, MHA_BFLOAT16, &got);
        assert_int_equal(got & 0x7fc0, 0x7fc0);
        assert_int_equal(got >> 15, nans[i] >> 31);
    }
}

/* ---- everything else ------------------------------------------------------------------------- */

static void every_type_in_both_byte_orders(void **state)
{
    (void)state;
    static const struct {
        const char *code;
        int32_t type;
    } types[] = {
        { "b1", MHA_BOOL },   { "i1", MHA_INT8 },    { "u1", MHA_UINT8 },   { "i2", MHA_INT16 },
        { "u2", MHA_UINT16 }, { "i4", MHA_INT32 },   { "u4", MHA_UINT32 },  { "i8", MHA_INT64 },
        { "u8", MHA_UINT64 }, { "f2", MHA_FLOAT16 }, { "f4", MHA_FLOAT32 }, { "f8", MHA_FLOAT64 },
    };
    enum { N = 700 }; /* more than a batch */
    unsigned char from[N * 8], big[N * 8], got[N * 8];
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (unsigned char)random_bits();
    for (int64_t t = 0; t < COUNT(types); t++) {
        int64_t bytes = mha_type_bytes(types[t].type);
        for (int64_t i = 0; i < N * bytes; i++)
            big[i] = from[i / bytes * bytes + bytes - 1 - i % bytes];
        for (int order = 0; order < 4; order++) {
            char descr[4] = { "<>=|"[order], types[t].code[0], types[t].code[1] };
            if (descr[0] == '|' && bytes > 1)
                continue;
            memset(got, 0, sizeof got);
            through_npy(descr, descr[0] == '>' ? big : from, bytes, N, types[t].type, got);
            assert_memory_equal(got, from, (size_t)(N * bytes));
        }
    }
}

static void other_types_are_not_converted(void **state)
{
    (void)state;
    int32_t whole[2] = { 7, 7 };
    const char *path = file_write_npy(
        "float.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", whole, 8);
    for (int32_t type = MHA_FLOAT32; type <= MHA_UINT64; type++) {
        bool is_float = type <= MHA_BFLOAT16;
        int64_t memory[2] = { 7, 7 };
        struct mha_tensor into = mha_tensor_1d(memory, type, 2);
        check_status(ctx, mha_npy_read(ctx, path, &into), is_float ? MHA_OK : MHA_ERROR_TYPE);
        if (!is_float)
            assert_true(memory[0] == 7 && memory[1] == 7);
    }
    path = file_write_npy("int.npy", "{'descr': '<i4', 'fortran_order': False, 'shape': (2,)}",
                          whole, 8);
    for (int32_t type = MHA_FLOAT32; type <= MHA_UINT64; type++) {
        int64_t memory[2] = { 5, 5 };
        struct mha_tensor into = mha_tensor_1d(memory, type, 2);
        check_status(ctx, mha_npy_read(ctx, path, &into),
                     type == MHA_INT32 ? MHA_OK : MHA_ERROR_TYPE);
    }
}

/* A file of 5 axes in either order into memory with gaps, more than one chunk long, against the
 * formula of the value at each index; what lies in the gaps stays. */
static void orders_and_strides(void **state)
{
    (void)state;
    enum { A = 3, B = 5, C = 7, D = 1, F = 61, N = A * B * C * D * F };
    static float stored[N], memory[2 * N + 4096];
    for (int column_major = 0; column_major < 2; column_major++) {
        for (int a = 0; a < A; a++)
            for (int b = 0; b < B; b++)
                for (int c = 0; c < C; c++)
                    for (int f = 0; f < F; f++)
                        stored[column_major ? a + A * (b + B * (c + C * f))
                                            : f + F * (c + C * (b + B * a))] = (float)(a * 100000
                                                                                       + b * 10000
                                                                                       + c * 1000
                                                                                       + f);
        const char *path = file_write_npy(
            "order.npy",
            column_major ? "{'descr': '<f4', 'fortran_order': True, 'shape': (3, 5, 7, 1, 61)}"
                         : "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 5, 7, 1, 61)}",
            stored, sizeof stored);
        for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
            memory[i] = -1;
        /* Axes 0 and 2 change places in memory; the rows of 61 have gaps of 2. */
        struct mha_tensor into = { .data = memory,
                                   .type = MHA_FLOAT32,
                                   .rank = 5,
                                   .shape = { A, B, C, D, F },
                                   .strides = { 63, 63 * A, 63 * A * B, 1, 1 } };
        check_status(ctx, mha_npy_read(ctx, path, &into), MHA_OK);
        int64_t written = 0;
        for (int a = 0; a < A; a++)
            for (int b = 0; b < B; b++)
                for (int c = 0; c < C; c++)
                    for (int f = 0; f < F; f++)
                        assert_true(memory[63 * (a + A * (b + B * c)) + f]
                                    == (float)(a * 100000 + b * 10000 + c * 1000 + f));
        for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
            written += memory[i] >= 0;
        assert_int_equal(written, N);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_16_bit_float_widens_exactly),
        cmocka_unit_test(every_16_bit_float_survives_a_round_trip),
        cmocka_unit_test(random_floats_round_to_the_nearest),
        cmocka_unit_test(doubles_become_floats_as_the_compiler_makes_them),
        cmocka_unit_test(floats_become_the_same_doubles),
        cmocka_unit_test(kind_9_case_61_float32_to_bfloat16),
        cmocka_unit_test(every_type_in_both_byte_orders),
        cmocka_unit_test(other_types_are_not_converted),
        cmocka_unit_test(orders_and_strides),
    };
    return cmocka_run_group_tests_name("convert", tests, files_setup, files_teardown);
}
