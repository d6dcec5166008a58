/* Bugs of other attention code, as tests that they are not here: kinds 5, 8, 9 and 11, from heads
 * and scores to one answer on every path. */
#include "fixture.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "by_hand.h"
#include "error_model.h"

#define WANT(...) ((const double[]){ __VA_ARGS__ })
#define FLOATS(...) ((const float[]){ __VA_ARGS__ })

/* ---- kind 5: head layout --------------------------------------------------------------------- */

static void kind_5_case_27_query_heads_share_key_heads_in_runs(void **state)
{
    (void)state;
    struct by_hand four = { .H = 4, .G = 2, .v = FLOATS(10, 20) };
    by_hand_check(ctx, &four, WANT(10, 10, 20, 20));
    struct by_hand six = { .H = 6, .G = 2, .v = FLOATS(10, 20) };
    by_hand_check(ctx, &six, WANT(10, 10, 10, 20, 20, 20));

    float data[6] = { 0 };
    static const struct {
        int64_t H, G;
        mha_status status;
    } wrong[] = { { 3, 2, MHA_ERROR_SHAPE },
                  { 2, 3, MHA_ERROR_SHAPE },
                  { 2, 0, MHA_ERROR_ARGUMENT } };
    for (int64_t i = 0; i < COUNT(wrong); i++) {
        struct mha_tensor q = mha_tensor_4d(data, MHA_FLOAT32, 1, 1, wrong[i].H, 1);
        struct mha_tensor k = mha_tensor_4d(data, MHA_FLOAT32, 1, 1, wrong[i].G, 1);
        float out[3];
        struct mha_tensor to = mha_tensor_4d(out, MHA_FLOAT32, 1, 1, wrong[i].H, 1);
        struct mha_inputs inputs = { .query = &q, .key = &k, .value = &k };
        mha_status status = mha_attention(ctx, &inputs, NULL, &(struct mha_outputs){ .out = &to });
        check_status(ctx, status, wrong[i].status);
    }
}

/* ---- kind 8: scores -------------------------------------------------------------------------- */

static void kind_8_case_51_the_softcap_comes_before_the_mask(void **state)
{
    (void)state;
    static const uint8_t keep[] = { 1, 0 };
    const float add[] = { 0, -INFINITY };
    struct mha_tensor bytes = mha_tensor_4d_const(keep, MHA_UINT8, 1, 1, 1, 2);
    struct mha_tensor numbers = mha_tensor_4d_const(add, MHA_FLOAT32, 1, 1, 1, 2);
    struct by_hand p = { .S = 2,
                         .q = FLOATS(1),
                         .k = FLOATS(1, 1),
                         .v = FLOATS(3, 9),
                         .options = { .softcap_mode = MHA_SOFTCAP_TANH,
                                      .softcap = 2,
                                      .mask_kind = MHA_MASK_KEEP,
                                      .mask = &bytes } };
    by_hand_run(ctx, &p);
    check_same_bits("weights", p.weights, FLOATS(1, 0), 2);
    check_close("lse", p.lse, WANT(2 * tanh(0.5)), 1, bound_of(WANT(0.9242343145), 1, 0));
    p.options.mask_kind = MHA_MASK_ADDITIVE;
    p.options.mask = &numbers;
    by_hand_run(ctx, &p);
    check_same_bits("weights", p.weights, FLOATS(1, 0), 2);
    /* A bias is added to the capped score, not capped with it. */
    const float bias[] = { 0, 10 };
    numbers.data = (void *)bias;
    by_hand_run(ctx, &p);
    check_close("weights", p.weights, WANT(1 / (1 + exp(10)), 1 / (1 + exp(-10))), 2, 2e-6);
}

static void kind_8_case_52_the_scale_is_that_of_the_logical_width(void **state)
{
    (void)state;
    struct by_hand p = { .D = 3, .q = FLOATS(1, 1, 1), .k = FLOATS(1, 1, 1) };
    by_hand_run(ctx, &p);
    check_close("lse", p.lse, WANT(1.7320508075688772), 1, bound_of(WANT(1.7320508), 1, 0));

    struct by_hand two = { .S = 2,
                           .q = FLOATS(1),
                           .k = FLOATS(5, -5),
                           .v = FLOATS(1, 2),
                           .options = { .scale_mode = MHA_SCALE_VALUE, .scale = 0 } };
    by_hand_run(ctx, &two);
    check_same_bits("weights", two.weights, FLOATS(0.5f, 0.5f), 2);
    two.options.scale = -2;
    by_hand_run(ctx, &two);
    check_close("lse", two.lse, WANT(10 + log1p(exp(-20))), 1, bound_of(WANT(10), 1, 0));
    /* Without the mode the value is not read. */
    two.options.scale_mode = MHA_SCALE_DEFAULT;
    two.options.scale = NAN;
    by_hand_run(ctx, &two);
    check_close("lse", two.lse, WANT(5 + log1p(exp(-10))), 1, bound_of(WANT(5), 1, 0));
}

/* ---- kind 9: range --------------------------------------------------------------------------- */

static void kind_9_case_59_large_scores_do_not_overflow(void **state)
{
    (void)state;
    struct by_hand p = {
        .S = 3, .q = FLOATS(1), .k = FLOATS(1e4f, 0, -1e4f), .v = FLOATS(7, 8, 9)
    };
    by_hand_run(ctx, &p);
    check_same_bits("weights", p.weights, FLOATS(1, 0, 0), 3);
    struct by_hand huge = { .S = 2, .q = FLOATS(1), .k = FLOATS(3e38f, 3e38f), .v = FLOATS(7, 8) };
    by_hand_run(ctx, &huge);
    check_same_bits("weights", huge.weights, FLOATS(0.5f, 0.5f), 2);
    check_same_bits("out", huge.out, FLOATS(7.5f), 1);
    struct by_hand equal = {
        .S = 4, .q = FLOATS(1), .k = FLOATS(1e30f, 1e30f, 1e30f, 1e30f), .v = FLOATS(1, 2, 3, 4)
    };
    by_hand_run(ctx, &equal);
    check_same_bits("weights", equal.weights, FLOATS(0.25f, 0.25f, 0.25f, 0.25f), 4);
    check_same_bits("out", equal.out, FLOATS(2.5f), 1);
}

/* One query, one head, D = 1, any number of keys: all outputs. */
struct line {
    float out, lse, *weights;
};

static struct line line_run(float q, const float *k, const float *v, int64_t S,
                            const struct mha_options *options)
{
    struct line line = { NAN, NAN, guarded_floats(S) };
    struct mha_tensor tq = mha_tensor_4d_const(&q, MHA_FLOAT32, 1, 1, 1, 1);
    struct mha_tensor tk = mha_tensor_4d_const(k, MHA_FLOAT32, 1, S, 1, 1);
    struct mha_tensor tv = mha_tensor_4d_const(v, MHA_FLOAT32, 1, S, 1, 1);
    struct mha_tensor out = mha_tensor_4d(&line.out, MHA_FLOAT32, 1, 1, 1, 1);
    struct mha_tensor lse = mha_tensor_3d(&line.lse, MHA_FLOAT32, 1, 1, 1);
    struct mha_tensor weights = mha_tensor_4d(line.weights, MHA_FLOAT32, 1, 1, 1, S);
    struct mha_inputs inputs = { .query = &tq, .key = &tk, .value = &tv };
    struct mha_outputs outputs = { .out = &out, .lse = &lse, .weights = &weights };
    check_status(ctx, mha_attention(ctx, &inputs, options, &outputs), MHA_OK);
    return line;
}

static void kind_9_case_60_many_equal_weights_add_up_to_one(void **state)
{
    (void)state;
    static const int64_t sizes[] = { 512, 4096 };
    static float k[4096], ones[4096], index[4096];
    for (int64_t i = 0; i < COUNT(sizes); i++) {
        int64_t S = sizes[i];
        for (int64_t j = 0; j < S; j++) {
            k[j] = random_float();
            ones[j] = 1;
            index[j] = (float)j;
        }
        /* Sums of integers below 2^24, and divisors that are powers of two: exact. */
        struct line one = line_run(0, k, ones, S, NULL), mean = line_run(0, k, index, S, NULL);
        assert_true(one.out == 1);
        assert_true(mean.out == (float)(S - 1) / 2);
        for (int64_t j = 0; j < S; j++)
            assert_true(one.weights[j] == 1 / (float)S);
        check_close("lse", &one.lse, WANT(log((double)S)), 1, bound_of(WANT(log((double)S)), 1, 0));
        guarded_free(one.weights);
        guarded_free(mean.weights);
    }
}

static void kind_9_case_62_a_masked_first_tile_changes_nothing(void **state)
{
    (void)state;
    /* Blocks have 64 keys and splits 512: three of each and one key more. */
    static const int64_t sizes[] = { 193, 1537 };
    static float k[1537], v[1537];
    static uint8_t keep[1537];
    for (int64_t i = 0; i < COUNT(sizes); i++) {
        int64_t S = sizes[i];
        const int64_t only[] = { 0, 63, 64, S / 2, S - 2, S - 1 };
        random_fill(k, S);
        random_fill(v, S);
        struct mha_tensor mask = mha_tensor_4d_const(keep, MHA_BOOL, 1, 1, 1, S);
        struct mha_options options = { .mask_kind = MHA_MASK_KEEP, .mask = &mask };
        for (int64_t o = 0; o < COUNT(only); o++) {
            memset(keep, 0, sizeof keep);
            keep[only[o]] = 1;
            struct line line = line_run(3, k, v, S, &options);
            assert_true(line.out == v[only[o]]);
            for (int64_t j = 0; j < S; j++)
                assert_true(line.weights[j] == (j == only[o] ? 1 : 0));
            guarded_free(line.weights);
        }
        for (int64_t j = 0; j < S; j++)
            k[j] = -6e4f;
        struct line line = line_run(1, k, v, S, NULL);
        double mean = 0;
        for (int64_t j = 0; j < S; j++) {
            assert_true(line.weights[j] == 1 / (float)S);
            mean += (double)v[j] / (double)S;
        }
        check_close("out", &line.out, &mean, 1, bound_of(WANT(1), 1, 0)); /* |v| <= 1 */
        guarded_free(line.weights);
    }
}

/* ---- kind 11: one answer on every path ------------------------------------------------------- */

/* A case of generator.h made by hand: contiguous random operands of these sizes. */
static void make_case(struct generated_case *c)
{
    const int64_t counts[] = { c->B * c->L * c->H * c->D, c->B * c->S * c->G * c->D,
                               c->B * c->S * c->G * c->Dv };
    for (int i = 0; i < 3; i++)
        c->blocks[c->block_count++] = guarded_floats(counts[i]);
    c->query = mha_tensor_4d(c->blocks[0], MHA_FLOAT32, c->B, c->L, c->H, c->D);
    c->key = mha_tensor_4d(c->blocks[1], MHA_FLOAT32, c->B, c->S, c->G, c->D);
    c->value = mha_tensor_4d(c->blocks[2], MHA_FLOAT32, c->B, c->S, c->G, c->Dv);
    c->inputs.query = &c->query;
    c->inputs.key = &c->key;
    c->inputs.value = &c->value;
}

/* Runs a case and compares everything wanted with the oracle; `out` is handed back if asked for. */
static void check_case(struct generated_case *c, bool wants_weights, float *out_copy)
{
    int64_t keys = c->S + c->extra, rows = c->B * c->L * c->H;
    float *out = guarded_floats(rows * c->Dv), *lse = guarded_floats(rows);
    float *weights = guarded_floats(rows * keys);
    struct mha_tensor t_out = mha_tensor_4d(out, MHA_FLOAT32, c->B, c->L, c->H, c->Dv);
    struct mha_tensor t_lse = mha_tensor_3d(lse, MHA_FLOAT32, c->B, c->H, c->L);
    struct mha_tensor t_weights = mha_tensor_4d(weights, MHA_FLOAT32, c->B, c->H, c->L, keys);
    struct mha_outputs outputs = { .out = &t_out,
                                   .lse = &t_lse,
                                   .weights = wants_weights ? &t_weights : NULL };
    check_status(ctx, mha_attention(ctx, &c->inputs, &c->options, &outputs), MHA_OK);
    struct reference_result want;
    reference_attention(&c->inputs, &c->options, &want);
    error_model_check(c, &want,
                      &(struct float_arrays){
                          .out = out, .lse = lse, .weights = wants_weights ? weights : NULL });
    reference_free(&want);
    if (out_copy)
        memcpy(out_copy, out, (size_t)(rows * c->Dv) * sizeof *out);
    guarded_free(out);
    guarded_free(lse);
    guarded_free(weights);
}

/* Takes the next digit of a combination's number. */
static int choose(int *rest, int n)
{
    int digit = *rest % n;
    *rest /= n;
    return digit;
}

/* Every combination of the options, prefill and decode, with and without weights: an option that is
 * ignored anywhere gives another number than the oracle. */
static void kind_11_case_73_every_option_counts_on_every_path(void **state)
{
    (void)state;
    enum { S = 70, H = 6, D = 5, DV = 3, MOST = 7 };
    static uint8_t bits[H * MOST * S];
    static float numbers[H * MOST * S], bias_k[3 * D], bias_v[3 * DV];
    const int64_t lengths[] = { 61, 70 };
    for (int64_t i = 0; i < COUNT(bits); i++)
        bits[i] = random_below(3) == 0;
    random_fill(numbers, COUNT(numbers));
    random_fill(bias_k, COUNT(bias_k));
    random_fill(bias_v, COUNT(bias_v));
    for (int combination = 0; combination < 2 * 4 * 2 * 2 * 4 * 2 * 2 * 2; combination++) {
        int rest = combination;
        struct generated_case c = { .B = 2, .S = S, .H = H, .D = D, .Dv = DV };
        c.L = choose(&rest, 2) ? 1 : MOST;
        c.options.mask_kind = choose(&rest, 4);
        bool wants_weights = choose(&rest, 2);
        c.options.softcap_mode = choose(&rest, 2);
        c.options.window = choose(&rest, 4);
        c.options.causal = choose(&rest, 2);
        c.G = choose(&rest, 2) ? 3 : H;
        bool extras = choose(&rest, 2);
        c.options.softcap = 0.75f;
        c.options.window_left = 40;
        c.options.window_right = 3;
        c.options.align = MHA_ALIGN_BOTTOM_RIGHT;
        c.mask = c.options.mask_kind == MHA_MASK_ADDITIVE
                     ? mha_tensor_4d(numbers, MHA_FLOAT32, 1, H, c.L, S)
                     : mha_tensor_4d(bits, MHA_BOOL, 1, H, c.L, S);
        c.options.mask = &c.mask;
        c.key_lengths = mha_tensor_1d_const(lengths, MHA_INT64, 2);
        c.inputs.key_lengths = &c.key_lengths;
        make_case(&c);
        if (extras) {
            c.bias_k = mha_tensor_2d(bias_k, MHA_FLOAT32, c.G > 3 ? 1 : 3, D);
            c.bias_v = mha_tensor_2d(bias_v, MHA_FLOAT32, c.G > 3 ? 1 : 3, DV);
            c.bias_k.shape[0] = c.bias_v.shape[0] = c.G;
            if (c.G > 3) /* one pair for all heads */
                c.bias_k.strides[0] = c.bias_v.strides[0] = 0;
            c.inputs.bias_k = &c.bias_k;
            c.inputs.bias_v = &c.bias_v;
            c.options.zero_attention = 1;
            c.extra = 2;
        }
        snprintf(c.text, sizeof c.text, "combination %d: ", combination);
        check_case(&c, wants_weights, NULL);
        generated_free(&c);
    }
}

static void kind_11_case_74_every_remainder_of_every_size(void **state)
{
    (void)state;
    static const int64_t rows[] = { 1, 2, 7, 33 }, widths[] = { 1, 3, 8, 33, 64 };
    for (int64_t S = 1; S <= 130; S++)
        for (int64_t r = 0; r < COUNT(rows); r++)
            for (int64_t w = 0; w < COUNT(widths); w++) {
                struct generated_case c = { .B = 1,
                                            .L = rows[r],
                                            .S = S,
                                            .H = 2,
                                            .G = 2,
                                            .D = widths[w],
                                            .Dv = widths[(w + S) % 5] };
                snprintf(c.text, sizeof c.text,
                         "L %" PRId64 " S %" PRId64 " D %" PRId64 " Dv %" PRId64 ": ", c.L, c.S,
                         c.D, c.Dv);
                make_case(&c);
                if ((S + r + w) % 3 == 0) /* one key/value head behind both */
                    c.key.strides[2] = c.value.strides[2] = 0;
                check_case(&c, false, NULL);
                generated_free(&c);
            }
}

static void kind_11_case_75_all_sizes_differ(void **state)
{
    (void)state;
    struct generated_case c = { .B = 2, .L = 5, .S = 7, .H = 6, .G = 3, .D = 11, .Dv = 13 };
    make_case(&c);
    check_case(&c, true, NULL);
    generated_free(&c);
}

static void kind_11_case_76_the_same_bits_each_time_and_in_any_batch(void **state)
{
    (void)state;
    enum { B = 3, L = 50, S = 600, H = 4, D = 24, ROW = L * H * D };
    struct generated_case c = { .B = B, .L = L, .S = S, .H = H, .G = 2, .D = D, .Dv = D };
    static float first[B * ROW], again[B * ROW], alone[ROW];
    make_case(&c);
    check_case(&c, true, first);
    struct mha_tensor out = mha_tensor_4d(again, MHA_FLOAT32, B, L, H, D);
    struct mha_outputs outputs = { .out = &out };
    for (int i = 0; i < 20; i++) {
        mha_context *other = context_plain();
        memset(again, i, sizeof again);
        check_status(other, mha_attention(i % 2 ? ctx : other, &c.inputs, NULL, &outputs), MHA_OK);
        check_same_bits("again", again, first, B * ROW);
        mha_context_free(other);
    }
    for (int64_t b = 0; b < B; b++) {
        struct mha_tensor t[4] = { c.query, c.key, c.value };
        for (int i = 0; i < 3; i++)
            check_status(ctx, mha_tensor_slice(ctx, &t[i], 0, b, 1, &t[i]), MHA_OK);
        t[3] = mha_tensor_4d(alone, MHA_FLOAT32, 1, L, H, D);
        struct mha_inputs inputs = { .query = &t[0], .key = &t[1], .value = &t[2] };
        outputs.out = &t[3];
        check_status(ctx, mha_attention(ctx, &inputs, NULL, &outputs), MHA_OK);
        check_same_bits("a sample alone", alone, first + b * ROW, ROW);
    }
    generated_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kind_5_case_27_query_heads_share_key_heads_in_runs),
        cmocka_unit_test(kind_8_case_51_the_softcap_comes_before_the_mask),
        cmocka_unit_test(kind_8_case_52_the_scale_is_that_of_the_logical_width),
        cmocka_unit_test(kind_9_case_59_large_scores_do_not_overflow),
        cmocka_unit_test(kind_9_case_60_many_equal_weights_add_up_to_one),
        cmocka_unit_test(kind_9_case_62_a_masked_first_tile_changes_nothing),
        cmocka_unit_test(kind_11_case_73_every_option_counts_on_every_path),
        cmocka_unit_test(kind_11_case_74_every_remainder_of_every_size),
        cmocka_unit_test(kind_11_case_75_all_sizes_differ),
        cmocka_unit_test(kind_11_case_76_the_same_bits_each_time_and_in_any_batch),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
