/* The bit oracle itself: its functions against libm, its attention against the float64 oracle on
 * random problems, against values worked out by hand, and against bits that must never move. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "canonical.h"
#include "error_model.h"
#include "generator.h"
#include "reference.h"
#include "support.h"

#define LN2 0.6931471805599453
#define LN3 1.0986122886681098
#define LN4 1.3862943611198906

/* ------------------------------------------------------------------------------------------------
 * The functions
 * --------------------------------------------------------------------------------------------- */

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* |got - want| in units of the last place of want. */
static double ulps(float got, double want)
{
    int exponent;
    frexp(want, &exponent);
    return fabs((double)got - want) / ldexp(1, exponent - 24);
}

static void check_exp2(float t)
{
    double want = exp2((double)t);
    double error = fabs((double)canonical_exp2(t) - want) / want;
    if (!(error <= 1.72e-7))
        fail_msg("exp2(%a): relative error %.4g", (double)t, error);
}

static void exp2_is_accurate(void **state)
{
    (void)state;
    for (uint32_t bits = bits_of(-0.0f); bits <= bits_of(-126.0f); bits += 211)
        check_exp2(float_of(bits));
    for (int i = 0; i <= 126 * 16384; i++)
        check_exp2(-(float)i / 16384);
}

static void check_ln(float x)
{
    double error = ulps(canonical_ln(x), log((double)x));
    if (!(error <= 0.83))
        fail_msg("ln(%a): %.4g ulp", (double)x, error);
}

static void ln_is_accurate(void **state)
{
    (void)state;
    for (uint32_t bits = bits_of(0x1p-126f); bits < bits_of(INFINITY); bits += 307)
        if (bits != bits_of(1))
            check_ln(float_of(bits));
    for (uint32_t bits = bits_of(1) + 1; bits <= bits_of(4); bits += 7) /* sums of a softmax */
        check_ln(float_of(bits));
}

/* k belongs to a softcap of c; the argument of tanh is s * k * ln(2) / 2. */
static void check_tanh(float s, float k)
{
    double want = tanh((double)s * (double)k * (LN2 / 2));
    double error = ulps(canonical_tanh(s, k), want);
    if (!(error <= 3.03))
        fail_msg("tanh_k(%a, %a): %.4g ulp", (double)s, (double)k, error);
    if (bits_of(canonical_tanh(-s, k)) != bits_of(-canonical_tanh(s, k)))
        fail_msg("tanh_k is not odd at (%a, %a)", (double)s, (double)k);
}

static void tanh_is_accurate(void **state)
{
    static const float caps[] = { 1, 30, 50, 0.3f };
    (void)state;
    for (int64_t i = 0; i < COUNT(caps); i++) {
        float k = (2 * 0x1.715476p+0f) / caps[i];
        for (uint32_t bits = bits_of(0x1p-60f); bits < bits_of(0x1p12f); bits += 499)
            check_tanh(float_of(bits), k);
    }
}

static void special_values(void **state)
{
    (void)state;
    const float got[] = {
        canonical_exp2(NAN),
        canonical_exp2(0),
        canonical_exp2(-0.0f),
        canonical_exp2(-1),
        canonical_exp2(-126),
        canonical_exp2(nextafterf(-126, -127)),
        canonical_exp2(-127),
        canonical_exp2(-INFINITY),
        canonical_ln(1),
        canonical_ln(NAN),
        canonical_ln(INFINITY),
        canonical_tanh(0, 1),
        canonical_tanh(-0.0f, 1),
        canonical_tanh(INFINITY, 1),
        canonical_tanh(-INFINITY, 1),
        canonical_tanh(NAN, 1),
        canonical_tanh(-3e38f, 2e38f),
    };
    const float want[] = { NAN, 1,        1, 0.5f,  0x1p-126f, 0,  0,   0, 0,
                           NAN, INFINITY, 0, -0.0f, 1,         -1, NAN, -1 };
    check_same_bits("special", got, want, COUNT(got));
}

/* ------------------------------------------------------------------------------------------------
 * Random problems against the float64 oracle
 * --------------------------------------------------------------------------------------------- */

static void agrees_with_the_float64_oracle(void **state)
{
    (void)state;
    int64_t cases = case_count(2500);
    for (int64_t n = 0; n < cases; n++) {
        struct generated_case c;
        struct canonical_result got;
        struct reference_result want;
        generated_make(&c);
        canonical_attention(&c.inputs, &c.options, &got);
        reference_attention(&c.inputs, &c.options, &want);
        struct float_arrays arrays = { got.out, got.lse, got.weights, got.weights_mean };
        error_model_check(&c, &want, &arrays);
        canonical_free(&got);
        reference_free(&want);
        generated_free(&c);
    }
}

/* The bound of the design alone, on shapes that people use. */
static void is_accurate_on_ordinary_shapes(void **state)
{
    static const int64_t shapes[][2] = { { 128, 32 }, { 512, 64 }, { 2048, 128 } };
    (void)state;
    for (int64_t n = 0; n < COUNT(shapes); n++) {
        enum { L = 20, H = 2 };
        int64_t S = shapes[n][0], D = shapes[n][1];
        float *q = guarded_floats(L * H * D), *k = guarded_floats(S * H * D);
        float *v = guarded_floats(S * H * D);
        struct mha_tensor query = mha_tensor_4d_const(q, MHA_FLOAT32, 1, L, H, D);
        struct mha_tensor key = mha_tensor_4d_const(k, MHA_FLOAT32, 1, S, H, D);
        struct mha_tensor value = mha_tensor_4d_const(v, MHA_FLOAT32, 1, S, H, D);
        struct mha_inputs inputs = { .query = &query, .key = &key, .value = &value };
        struct canonical_result got;
        struct reference_result want;
        canonical_attention(&inputs, NULL, &got);
        reference_attention(&inputs, NULL, &want);
        check_close("out", got.out, want.out, want.out_count,
                    bound_of(want.out, want.out_count, 0));
        check_close("lse", got.lse, want.lse, want.lse_count,
                    bound_of(want.lse, want.lse_count, 0));
        check_close("weights", got.weights, want.weights, want.weights_count,
                    bound_of(want.weights, want.weights_count, 0));
        check_close("weights_mean", got.weights_mean, want.weights_mean, want.weights_mean_count,
                    bound_of(want.weights_mean, want.weights_mean_count, 0));
        canonical_free(&got);
        reference_free(&want);
        guarded_free(q);
        guarded_free(k);
        guarded_free(v);
    }
}

/* ------------------------------------------------------------------------------------------------
 * Values by hand: one sample, one head, width 1, scale 1 unless said otherwise
 * --------------------------------------------------------------------------------------------- */

static const float zeros[2048];
static const float one_to_six[] = { 1, 2, 3, 4, 5, 6 };

struct small {
    int64_t L, S;
    const float *q, *k, *v;
    const float *bias;   /* additive mask [1, 1, L, S] */
    const uint8_t *keep; /* KEEP mask [1, 1, L, S] */
    int64_t key_length;  /* 0: S */
    struct mha_options options;
};

static struct canonical_result attend(const struct small *s)
{
    struct mha_tensor query = mha_tensor_4d_const(s->q, MHA_FLOAT32, 1, s->L, 1, 1);
    struct mha_tensor key = mha_tensor_4d_const(s->k, MHA_FLOAT32, 1, s->S, 1, 1);
    struct mha_tensor value = mha_tensor_4d_const(s->v, MHA_FLOAT32, 1, s->S, 1, 1);
    struct mha_tensor lengths = mha_tensor_1d_const(&s->key_length, MHA_INT64, 1);
    struct mha_tensor mask;
    struct mha_inputs inputs = { .query = &query, .key = &key, .value = &value };
    struct mha_options options = s->options;
    struct canonical_result result;
    if (s->key_length)
        inputs.key_lengths = &lengths;
    if (s->keep || s->bias) {
        mask = s->keep ? mha_tensor_4d_const(s->keep, MHA_UINT8, 1, 1, s->L, s->S)
                       : mha_tensor_4d_const(s->bias, MHA_FLOAT32, 1, 1, s->L, s->S);
        options.mask = &mask;
        options.mask_kind = s->keep ? MHA_MASK_KEEP : MHA_MASK_ADDITIVE;
    }
    canonical_attention(&inputs, &options, &result);
    return result;
}

/* Checks the output, and where they are given log-sum-exp and weights. */
static void expect(const char *what, const struct small *s, const double *out, const double *lse,
                   const double *weights)
{
    struct canonical_result result = attend(s);
    check_close(what, result.out, out, s->L, 1e-6);
    if (lse)
        check_close(what, result.lse, lse, s->L, bound_of(lse, s->L, 2.5e-7));
    if (weights) {
        check_close(what, result.weights, weights, s->L * s->S, 1e-6);
        check_close(what, result.weights_mean, weights, s->L * s->S, 1e-6);
    }
    canonical_free(&result);
}

#define WANT(...) ((const double[]){ __VA_ARGS__ })
#define FLOATS(...) ((const float[]){ __VA_ARGS__ })
#define BYTES(...) ((const uint8_t[]){ __VA_ARGS__ })

static void empty_rows(void **state)
{
    (void)state;
    struct small s = { .L = 2,
                       .S = 2,
                       .q = FLOATS(1, 1),
                       .k = FLOATS(0, (float)LN3),
                       .v = FLOATS(4, 8),
                       .keep = BYTES(0, 0, 1, 1) };
    expect("first row empty", &s, WANT(0, 7), WANT(-INFINITY, LN4), WANT(0, 0, .25, .75));

    s.keep = BYTES(0, 0, 0, 1);
    expect("one key", &s, WANT(0, 8), WANT(-INFINITY, LN3), WANT(0, 0, 0, 1));

    struct small one = { .L = 1, .S = 2, .q = FLOATS(1), .k = s.k, .v = s.v };
    expect("no mask", &one, WANT(7), WANT(LN4), NULL);
    one.bias = FLOATS(-INFINITY, -INFINITY);
    expect("-inf twice", &one, WANT(0), WANT(-INFINITY), WANT(0, 0));
    one.bias = FLOATS(-3.40282347e38f, -3.40282347e38f);
    expect("-FLT_MAX twice", &one, WANT(6), WANT(-0x1.fffffep127), WANT(.5, .5));
}

static void masked_is_absent(void **state)
{
    (void)state;
    struct small s = { .L = 1,
                       .S = 2,
                       .q = FLOATS(1),
                       .k = FLOATS(0, NAN),
                       .v = FLOATS(4, NAN),
                       .keep = BYTES(1, 0) };
    expect("NaN", &s, WANT(4), WANT(0), WANT(1, 0));
    s.k = s.v = FLOATS(4, INFINITY);
    expect("inf", &s, WANT(4), WANT(4), WANT(1, 0));
    s.keep = NULL;
    s.bias = FLOATS(0, -INFINITY);
    expect("inf under -inf", &s, WANT(4), WANT(4), WANT(1, 0));

    s = (struct small){ .L = 1,
                        .S = 2,
                        .q = FLOATS(-20000),
                        .k = FLOATS(1, 0),
                        .v = FLOATS(1, 100),
                        .keep = BYTES(1, 0) };
    expect("far below", &s, WANT(1), WANT(-20000), WANT(1, 0));
}

static void causal_with_lengths_and_masks(void **state)
{
    (void)state;
    struct small s = { .L = 3,
                       .S = 3,
                       .q = zeros,
                       .k = zeros,
                       .v = FLOATS(1, 2, 4),
                       .key_length = 2,
                       .options = { .causal = 1 } };
    expect("last key padded", &s, WANT(1, 1.5, 1.5), NULL, NULL);
    s.key_length = 0;
    s.keep = BYTES(0, 1, 1, 0, 1, 1, 0, 1, 1);
    expect("first key padded", &s, WANT(0, 2, 3), NULL, NULL);
}

static void causal_alignment(void **state)
{
    (void)state;
    struct small s = {
        .L = 1, .S = 4, .q = zeros, .k = zeros, .v = one_to_six, .options = { .causal = 1 }
    };
    expect("1 of 4, top left", &s, WANT(1), NULL, NULL);
    s.options.align = MHA_ALIGN_BOTTOM_RIGHT;
    expect("1 of 4, bottom right", &s, WANT(2.5), NULL, NULL);
    s.L = 2;
    s.S = 5;
    expect("2 of 5, bottom right", &s, WANT(2.5, 3), NULL, NULL);
    s.L = 3;
    s.S = 2;
    s.v = FLOATS(1, 3);
    expect("3 of 2, bottom right", &s, WANT(0, 1, 2), NULL, NULL);
    s.options.align = MHA_ALIGN_TOP_LEFT;
    expect("3 of 2, top left", &s, WANT(1, 2, 2), NULL, NULL);
}

static void windows(void **state)
{
    (void)state;
    struct small s = { .L = 5,
                       .S = 5,
                       .q = zeros,
                       .k = zeros,
                       .v = one_to_six,
                       .options = { .causal = 1, .window = MHA_WINDOW_LEFT, .window_left = 1 } };
    expect("left 1", &s, WANT(1, 1.5, 2.5, 3.5, 4.5), NULL, NULL);
    s.options.window_left = 2;
    expect("left 2", &s, WANT(1, 1.5, 2, 3, 4), NULL, NULL);
    s.L = 1;
    s.S = 6;
    s.options.align = MHA_ALIGN_BOTTOM_RIGHT;
    expect("decode", &s, WANT(5), NULL, NULL);
}

/* Six tokens at once and in chunks of 1, 2 and 3 give the same bits. */
static void chunked_prefill(void **state)
{
    static const int64_t starts[] = { 0, 1, 3, 6 };
    (void)state;
    float x[6];
    random_fill(x, 6);
    struct small s = { .L = 6, .S = 6, .q = x, .k = x, .v = one_to_six };
    s.options = (struct mha_options){
        .causal = 1, .align = MHA_ALIGN_BOTTOM_RIGHT, .window = MHA_WINDOW_LEFT, .window_left = 2
    };
    struct canonical_result whole = attend(&s);
    for (int n = 0; n < 3; n++) {
        s.q = x + starts[n];
        s.L = starts[n + 1] - starts[n];
        s.S = starts[n + 1];
        struct canonical_result part = attend(&s);
        check_same_bits("chunk", part.out, whole.out + starts[n], s.L);
        check_same_bits("chunk", part.lse, whole.lse + starts[n], s.L);
        canonical_free(&part);
    }
    canonical_free(&whole);
}

static void grouped_heads(void **state)
{
    (void)state;
    for (int64_t H = 4; H <= 6; H += 2) {
        const double want[2][6] = { { 10, 10, 20, 20 }, { 10, 10, 10, 20, 20, 20 } };
        struct mha_tensor query = mha_tensor_4d_const(zeros, MHA_FLOAT32, 1, 1, H, 1);
        struct mha_tensor key = mha_tensor_4d_const(zeros, MHA_FLOAT32, 1, 1, 2, 1);
        struct mha_tensor value = mha_tensor_4d_const(FLOATS(10, 20), MHA_FLOAT32, 1, 1, 2, 1);
        struct mha_inputs inputs = { .query = &query, .key = &key, .value = &value };
        struct canonical_result result;
        canonical_attention(&inputs, NULL, &result);
        check_close("grouped", result.out, want[H == 6], H, 0);
        canonical_free(&result);
    }
}

static void softcap_comes_before_the_mask(void **state)
{
    (void)state;
    struct small s = { .L = 1,
                       .S = 2,
                       .q = FLOATS(1),
                       .k = FLOATS(1, 1),
                       .v = FLOATS(3, 5),
                       .keep = BYTES(1, 0),
                       .options = { .softcap_mode = MHA_SOFTCAP_TANH, .softcap = 2 } };
    expect("keep", &s, WANT(3), WANT(2 * tanh(0.5)), WANT(1, 0));
    s.keep = NULL;
    s.bias = FLOATS(0, -INFINITY);
    expect("additive", &s, WANT(3), WANT(2 * tanh(0.5)), WANT(1, 0));
}

static void scale(void **state)
{
    (void)state;
    struct mha_tensor query = mha_tensor_4d_const(FLOATS(1, 1, 1), MHA_FLOAT32, 1, 1, 1, 3);
    struct mha_tensor key = mha_tensor_4d_const(FLOATS(1, 1, 1, 5, 5, 5), MHA_FLOAT32, 1, 2, 1, 3);
    struct mha_inputs inputs = { .query = &query, .key = &key, .value = &key };
    struct mha_options options = { .scale_mode = MHA_SCALE_VALUE, .scale = 0 };
    struct canonical_result result;
    canonical_attention(&inputs, &options, &result);
    check_close("scale 0", result.weights, WANT(0.5, 0.5), 2, 0);
    canonical_free(&result);
    key.shape[1] = 1;
    canonical_attention(&inputs, NULL, &result);
    check_close("default scale", result.lse, WANT(1.7320508075688772), 1, 1e-6);
    canonical_free(&result);
}

static void large_scores(void **state)
{
    (void)state;
    struct small s = {
        .L = 1, .S = 3, .q = FLOATS(1), .k = FLOATS(1e4f, 0, -1e4f), .v = FLOATS(3, 5, 7)
    };
    expect("1e4", &s, WANT(3), WANT(1e4), WANT(1, 0, 0));
    s.S = 2;
    s.k = FLOATS(3e38f, 3e38f);
    expect("3e38", &s, WANT(4), WANT((double)3e38f), WANT(.5, .5));
    s.S = 3;
    s.k = FLOATS(1e30f, 1e30f, 1e30f);
    expect("1e30", &s, WANT(5), WANT((double)1e30f), WANT(1 / 3., 1 / 3., 1 / 3.));
}

/* Three blocks, or three splits, and one key: where the visible keys lie makes no difference. */
static void visible_keys_anywhere(void **state)
{
    static const int64_t sizes[] = { 3 * 64 + 1, 3 * 512 + 1 };
    static float low[3 * 512 + 1], values[3 * 512 + 1];
    static uint8_t keep[3 * 512 + 1];
    (void)state;
    for (int64_t n = 0; n < COUNT(sizes); n++) {
        struct small s = { .L = 1, .S = sizes[n], .q = FLOATS(1), .k = low, .v = values };
        for (int64_t j = 0; j < s.S; j++) {
            low[j] = -6e4f;
            values[j] = (float)(j - s.S / 2);
        }
        expect("uniform", &s, WANT(0), WANT(-6e4 + log((double)s.S)), NULL);
        s.keep = keep;
        for (int64_t j = 0; j < s.S; j += s.S - 1) {
            memset(keep, 0, sizeof keep);
            keep[j] = 1;
            expect("only key", &s, WANT((double)values[j]), WANT(-6e4), NULL);
        }
    }
}

/* -2^-149 of the first split, rescaled for the second, is a zero, and comes out as +0; divided by
 * the sum of two equal keys it keeps its sign. */
static void signs_of_zeros(void **state)
{
    static float keys[513] = { [512] = 20 }, values[513] = { -0x1p-149f };
    (void)state;
    struct small s = { .L = 1, .S = 513, .q = FLOATS(1), .k = keys, .v = values };
    struct canonical_result result = attend(&s);
    check_same_bits("underflow in the merge", result.out, FLOATS(0), 1);
    canonical_free(&result);
    s.S = 2;
    result = attend(&s);
    check_same_bits("underflow at the end", result.out, FLOATS(-0.0f), 1);
    canonical_free(&result);
}

/* Weights 1, 2, 1 for the key, the learned pair and the zero pair; the mask takes only the key. */
static void extra_keys(void **state)
{
    (void)state;
    int64_t rows = 1;
    uint8_t drop = 1;
    struct mha_tensor query = mha_tensor_4d_const(FLOATS(1, 1), MHA_FLOAT32, 1, 2, 1, 1);
    struct mha_tensor key = mha_tensor_4d_const(zeros, MHA_FLOAT32, 1, 1, 1, 1);
    struct mha_tensor value = mha_tensor_4d_const(FLOATS(4), MHA_FLOAT32, 1, 1, 1, 1);
    struct mha_tensor residual = mha_tensor_4d_const(FLOATS(100, 200), MHA_FLOAT32, 1, 2, 1, 1);
    struct mha_tensor lengths = mha_tensor_1d_const(&rows, MHA_INT64, 1);
    struct mha_tensor bias_k = mha_tensor_2d_const(FLOATS((float)LN2), MHA_FLOAT32, 1, 1);
    struct mha_tensor bias_v = mha_tensor_2d_const(FLOATS(8), MHA_FLOAT32, 1, 1);
    struct mha_tensor mask = mha_tensor_4d_const(&drop, MHA_BOOL, 1, 1, 1, 1);
    struct mha_inputs inputs = { .query = &query,
                                 .key = &key,
                                 .value = &value,
                                 .residual = &residual,
                                 .query_lengths = &lengths,
                                 .bias_k = &bias_k,
                                 .bias_v = &bias_v };
    struct mha_options options = { .zero_attention = 1 };
    struct canonical_result result;
    canonical_attention(&inputs, &options, &result);
    check_close("weights", result.weights, WANT(.25, .5, .25, 0, 0, 0), 6, 1e-6);
    check_close("out", result.out, WANT(105, 200), 2, 1e-5);
    check_close("lse", result.lse, WANT(LN4, -INFINITY), 2, 1e-6);
    canonical_free(&result);
    options.mask = &mask;
    options.mask_kind = MHA_MASK_DROP;
    canonical_attention(&inputs, &options, &result);
    check_close("weights", result.weights, WANT(0, 2 / 3., 1 / 3., 0, 0, 0), 6, 1e-6);
    canonical_free(&result);
}

/* ------------------------------------------------------------------------------------------------
 * Bits of version 1 of docs/numerics.md (its section 9)
 * --------------------------------------------------------------------------------------------- */

static void draw(uint32_t *x, float *data, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        *x = *x * 1664525u + 1013904223u;
        data[i] = (float)((int32_t)(*x >> 8) - (1 << 23)) / (float)(1 << 23);
    }
}

static void hash(uint64_t *h, const float *data, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        for (int shift = 0; shift < 32; shift += 8)
            *h = (*h ^ (bits_of(data[i]) >> shift & 255)) * 0x100000001b3u;
}

static void function_bits(void **state)
{
    (void)state;
    const float got[] = { canonical_exp2(-0.3f),
                          canonical_exp2(-77.77f),
                          canonical_ln(3),
                          canonical_ln(1000.5f),
                          canonical_tanh(0.7f, 0x1.715476p+1f),
                          canonical_tanh(-1e-3f, 0.1f) };
    const float want[] = { 0x1.9fdf8ap-1f, 0x1.2c3f16p-78f, 0x1.193ea8p+0f,
                           0x1.ba20dap+2f, 0x1.356fbp-1f,   -0x1.22ba1ep-15f };
    check_same_bits("function", got, want, COUNT(want));
}

/* Rows of the first sample see 17 to 64 keys, those of the second about 1000. */
static void attention_bits(void **state)
{
    enum { B = 2, L = 48, S = 1100, H = 2, D = 5, Dv = 3 };
    static float q[B * L * H * D], k[B * S * D], v[B * S * Dv], bias[S], bias_k[D], bias_v[Dv];
    static float residual[B * L * H * Dv];
    static const int32_t starts[B] = { 16, 1050 };
    (void)state;
    uint32_t x = 1;
    draw(&x, q, COUNT(q));
    draw(&x, k, COUNT(k));
    draw(&x, v, COUNT(v));
    draw(&x, bias, COUNT(bias));
    draw(&x, bias_k, COUNT(bias_k));
    draw(&x, bias_v, COUNT(bias_v));
    draw(&x, residual, COUNT(residual));
    for (int64_t j = 3; j < S; j += 7)
        bias[j] = -INFINITY;
    struct mha_tensor query = mha_tensor_4d_const(q, MHA_FLOAT32, B, L, H, D);
    struct mha_tensor key = mha_tensor_4d_const(k, MHA_FLOAT32, B, S, 1, D);
    struct mha_tensor value = mha_tensor_4d_const(v, MHA_FLOAT32, B, S, 1, Dv);
    struct mha_tensor mask = mha_tensor_4d_const(bias, MHA_FLOAT32, 1, 1, 1, S);
    struct mha_tensor offsets = mha_tensor_1d_const(starts, MHA_INT32, B);
    struct mha_tensor pair_k = mha_tensor_2d_const(bias_k, MHA_FLOAT32, 1, D);
    struct mha_tensor pair_v = mha_tensor_2d_const(bias_v, MHA_FLOAT32, 1, Dv);
    struct mha_tensor added = mha_tensor_4d_const(residual, MHA_FLOAT32, B, L, H, Dv);
    struct mha_inputs inputs = { .query = &query,
                                 .key = &key,
                                 .value = &value,
                                 .residual = &added,
                                 .bias_k = &pair_k,
                                 .bias_v = &pair_v };
    struct mha_options options = {
        .scale_mode = MHA_SCALE_VALUE,
        .scale = 3,
        .softcap_mode = MHA_SOFTCAP_TANH,
        .softcap = 3,
        .mask_kind = MHA_MASK_ADDITIVE,
        .mask = &mask,
        .causal = 1,
        .align = MHA_ALIGN_OFFSETS,
        .offsets = &offsets,
        .window = MHA_WINDOW_LEFT,
        .window_left = 1000,
        .zero_attention = 1,
    };
    struct canonical_result r;
    canonical_attention(&inputs, &options, &r);
    uint64_t h = 0xcbf29ce484222325u;
    hash(&h, r.out, B * L * H * Dv);
    hash(&h, r.lse, B * H * L);
    hash(&h, r.weights, B * H * L * (S + 2));
    hash(&h, r.weights_mean, B * L * (S + 2));
    if (h != 0x8c39448f7350b961u)
        fail_msg("hash %016" PRIx64 ", out[0] %a, lse[0] %a", h, (double)r.out[0],
                 (double)r.lse[0]);
    canonical_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp2_is_accurate),
        cmocka_unit_test(ln_is_accurate),
        cmocka_unit_test(tanh_is_accurate),
        cmocka_unit_test(special_values),
        cmocka_unit_test(agrees_with_the_float64_oracle),
        cmocka_unit_test(is_accurate_on_ordinary_shapes),
        cmocka_unit_test(empty_rows),
        cmocka_unit_test(masked_is_absent),
        cmocka_unit_test(causal_with_lengths_and_masks),
        cmocka_unit_test(causal_alignment),
        cmocka_unit_test(windows),
        cmocka_unit_test(chunked_prefill),
        cmocka_unit_test(grouped_heads),
        cmocka_unit_test(softcap_comes_before_the_mask),
        cmocka_unit_test(scale),
        cmocka_unit_test(large_scores),
        cmocka_unit_test(visible_keys_anywhere),
        cmocka_unit_test(signs_of_zeros),
        cmocka_unit_test(extra_keys),
        cmocka_unit_test(function_bits),
        cmocka_unit_test(attention_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
