/* Bugs of other attention code, as tests that they are not here: kinds 1 to 4, which keys a query
 * sees. q = 0 stands for uniform weights; scores are q * k. */
#include "fixture.h"

#include <math.h>
#include <string.h>

#include "by_hand.h"

#define LN3 1.0986122886681098f
#define WANT(...) ((const double[]){ __VA_ARGS__ })
#define FLOATS(...) ((const float[]){ __VA_ARGS__ })

static const float LOWEST = -3.40282347e38f;

/* Masks [1, 1, L, S] of bytes or numbers. */
static struct mha_tensor bytes(const uint8_t *data, int64_t L, int64_t S)
{
    return mha_tensor_4d_const(data, MHA_UINT8, 1, 1, L, S);
}

static struct mha_tensor numbers(const float *data, int64_t L, int64_t S)
{
    return mha_tensor_4d_const(data, MHA_FLOAT32, 1, 1, L, S);
}

static void check_empty_row(const struct by_hand *p, int64_t row)
{
    for (int64_t y = 0; y < p->Dv; y++)
        assert_true(p->out[row * p->Dv + y] == 0);
    for (int64_t j = 0; j < p->S; j++)
        assert_true(p->weights[row * p->S + j] == 0 && p->weights_mean[row * p->S + j] == 0);
    assert_true(p->lse[row] == -INFINITY);
}

/* ---- kind 1: empty attention set ------------------------------------------------------------- */

static void kind_1_case_1_a_masked_row_is_zero_and_leaves_others_alone(void **state)
{
    (void)state;
    struct mha_tensor mask = bytes((const uint8_t[]){ 0, 0, 1, 1 }, 2, 2);
    struct by_hand p = { .L = 2,
                         .S = 2,
                         .q = FLOATS(1, 1),
                         .k = FLOATS(0, LN3),
                         .v = FLOATS(4, 8),
                         .options = { .mask_kind = MHA_MASK_KEEP, .mask = &mask } };
    by_hand_check(ctx, &p, WANT(0, 7));
    check_empty_row(&p, 0);
    check_close("weights", p.weights + 2, WANT(0.25, 0.75), 2, 2e-6);

    struct by_hand without = { .S = 2, .q = FLOATS(1), .k = p.k, .v = p.v };
    by_hand_run(ctx, &without);
    check_same_bits("out", p.out + 1, without.out, 1);
    check_same_bits("lse", p.lse + 1, without.lse, 1);
    check_same_bits("weights", p.weights + 2, without.weights, 2);
}

/* The neutral element, however the row came to be empty. */
static void kind_1_case_3_log_sum_exp_of_an_empty_row_is_minus_infinity(void **state)
{
    (void)state;
    const int64_t none = 0, one = 1, away = -9;
    struct mha_tensor keep = bytes((const uint8_t[]){ 0, 0 }, 1, 2);
    struct mha_tensor drop = bytes((const uint8_t[]){ 7, 255 }, 1, 2);
    struct mha_tensor add = numbers(FLOATS(-INFINITY, -INFINITY), 1, 2);
    struct mha_tensor no_keys = mha_tensor_1d_const(&none, MHA_INT64, 1);
    struct mha_tensor one_key = mha_tensor_1d_const(&one, MHA_INT64, 1);
    struct mha_tensor offset = mha_tensor_1d_const(&away, MHA_INT64, 1);
    struct mha_options causal = { .causal = 1, .align = MHA_ALIGN_OFFSETS, .offsets = &offset };
    struct by_hand rows[] = {
        { .options = { .mask_kind = MHA_MASK_KEEP, .mask = &keep } },
        { .options = { .mask_kind = MHA_MASK_DROP, .mask = &drop } },
        { .options = { .mask_kind = MHA_MASK_ADDITIVE, .mask = &add } },
        { .inputs = { .key_lengths = &no_keys } },
        { .inputs = { .query_lengths = &no_keys } },
        { .options = causal },
        { .inputs = { .key_lengths = &one_key },
          .options = { .mask_kind = MHA_MASK_DROP, .mask = &drop } },
    };
    for (int64_t i = 0; i < COUNT(rows); i++) {
        rows[i].S = 2;
        rows[i].q = FLOATS(1);
        rows[i].k = FLOATS(0, LN3);
        rows[i].v = FLOATS(2, 6);
        by_hand_run(ctx, &rows[i]);
        check_empty_row(&rows[i], 0);
    }
    struct by_hand full = { .S = 2, .q = FLOATS(1), .k = FLOATS(0, LN3), .v = FLOATS(2, 6) };
    by_hand_check(ctx, &full, WANT(5));
    check_close("lse", full.lse, WANT(1.3862943611198906), 1, bound_of(WANT(1.3862943611), 1, 0));
}

static void kind_1_case_6_minus_infinity_excludes_and_the_lowest_float_does_not(void **state)
{
    (void)state;
    struct mha_tensor mask = numbers(FLOATS(-INFINITY, -INFINITY), 1, 2);
    struct mha_tensor lowest = numbers(FLOATS(LOWEST, LOWEST), 1, 2);
    struct by_hand p = { .S = 2, .q = FLOATS(1), .k = FLOATS(0, LN3), .v = FLOATS(4, 8) };
    by_hand_check(ctx, &p, WANT(7));
    p.options = (struct mha_options){ .mask_kind = MHA_MASK_ADDITIVE, .mask = &mask };
    by_hand_check(ctx, &p, WANT(0));
    p.options.mask = &lowest;
    by_hand_check(ctx, &p, WANT(6));
    check_close("weights", p.weights, WANT(0.5, 0.5), 2, 0);
}

/* ---- kind 2: masked means absent ------------------------------------------------------------- */

static void kind_2_case_7_nan_and_infinity_in_a_masked_key_do_not_exist(void **state)
{
    (void)state;
    static const float garbage[] = { NAN, INFINITY, -INFINITY, 3e38f };
    const int64_t one = 1;
    struct mha_tensor keep = bytes((const uint8_t[]){ 1, 0 }, 1, 2);
    struct mha_tensor drop = bytes((const uint8_t[]){ 0, 1 }, 1, 2);
    struct mha_tensor add = numbers(FLOATS(0, -INFINITY), 1, 2);
    struct mha_tensor length = mha_tensor_1d_const(&one, MHA_INT64, 1);
    struct by_hand ways[] = {
        { .options = { .mask_kind = MHA_MASK_KEEP, .mask = &keep } },
        { .options = { .mask_kind = MHA_MASK_DROP, .mask = &drop } },
        { .options = { .mask_kind = MHA_MASK_ADDITIVE, .mask = &add } },
        { .inputs = { .key_lengths = &length } },
        { .options = { .causal = 1 } },
        { .options = { .window = MHA_WINDOW_RIGHT } },
    };
    for (int64_t i = 0; i < COUNT(ways); i++)
        for (int64_t g = 0; g < COUNT(garbage); g++) {
            struct by_hand p = ways[i];
            p.S = 2;
            p.q = FLOATS(1);
            p.k = FLOATS(0, garbage[g]);
            p.v = FLOATS(4, garbage[(g + 1) % COUNT(garbage)]);
            by_hand_check(ctx, &p, WANT(4));
            check_same_bits("weights", p.weights, FLOATS(1, 0), 2);
            check_same_bits("lse", p.lse, FLOATS(0), 1);
        }
}

/* The tail behind each length: NaN, zeros or large numbers there give the same bits. */
static void check_tails(int64_t S, int64_t len, int64_t L, int64_t D)
{
    static const float tails[] = { 0, NAN, 1e30f, INFINITY };
    float first[BY_HAND_ROOM], first_weights[BY_HAND_ROOM];
    float *q = guarded_floats(L * D), *k = guarded_floats(S * D), *v = guarded_floats(S * D);
    struct mha_tensor length = mha_tensor_1d_const(&len, MHA_INT64, 1);
    struct by_hand p = { .L = L,
                         .S = S,
                         .D = D,
                         .Dv = D,
                         .q = q,
                         .k = k,
                         .v = v,
                         .inputs = { .key_lengths = &length } };
    for (int64_t t = 0; t < COUNT(tails); t++) {
        for (int64_t i = len * D; i < S * D; i++)
            k[i] = v[i] = tails[t];
        by_hand_run(ctx, &p);
        if (t == 0) {
            memcpy(first, p.out, sizeof first);
            memcpy(first_weights, p.weights, sizeof first_weights);
            for (int64_t i = 0; i < L * D; i++)
                assert_true(isfinite(first[i]) && (len == 0 || first[i] != 0));
        }
        check_same_bits("out", p.out, first, L * D);
        check_same_bits("weights", p.weights, first_weights, L * S);
    }
    guarded_free(q);
    guarded_free(k);
    guarded_free(v);
}

static void kind_2_case_8_what_lies_behind_the_length_does_not_exist(void **state)
{
    (void)state;
    for (int64_t len = 0; len <= 8; len++)
        check_tails(8, len, 3, 5);
    for (int64_t len = 0; len <= 130; len++)
        check_tails(130, len, 1, 3);
}

static void kind_2_case_9_a_masked_key_never_wins(void **state)
{
    (void)state;
    struct mha_tensor keep = bytes((const uint8_t[]){ 1, 0 }, 1, 2);
    struct by_hand p = { .S = 2,
                         .q = FLOATS(-20000),
                         .k = FLOATS(1, 0),
                         .v = FLOATS(1, 100),
                         .options = { .mask_kind = MHA_MASK_KEEP, .mask = &keep } };
    by_hand_run(ctx, &p);
    check_same_bits("out", p.out, FLOATS(1), 1);
    check_same_bits("weights", p.weights, FLOATS(1, 0), 2);
    check_same_bits("lse", p.lse, FLOATS(-20000), 1);
}

static void kind_2_case_10_restrictions_do_not_add_up(void **state)
{
    (void)state;
    /* Causal, and key 0 away for all, and the lowest float where causal excludes already. */
    struct mha_tensor mask = numbers(FLOATS(-INFINITY, 0, 0, -INFINITY, 0, LOWEST, -INFINITY, 0, 0),
                                     3, 3);
    struct by_hand p = { .L = 3,
                         .S = 3,
                         .v = FLOATS(1, 2, 4),
                         .options = {
                             .causal = 1, .mask_kind = MHA_MASK_ADDITIVE, .mask = &mask } };
    by_hand_check(ctx, &p, WANT(0, 2, 3));
    check_empty_row(&p, 0);
    check_same_bits("weights", p.weights + 3, FLOATS(0, 1, 0, 0, 0.5f, 0.5f), 6);
}

/* ---- kind 3: what a mask means --------------------------------------------------------------- */

static void kind_3_case_13_keep_and_drop_are_opposites(void **state)
{
    (void)state;
    struct mha_tensor mask = bytes((const uint8_t[]){ 1, 1, 0 }, 1, 3);
    struct by_hand p = { .S = 3,
                         .v = FLOATS(1, 2, 3),
                         .options = { .mask_kind = MHA_MASK_KEEP, .mask = &mask } };
    by_hand_check(ctx, &p, WANT(1.5));
    p.options.mask_kind = MHA_MASK_DROP;
    by_hand_check(ctx, &p, WANT(3));
    mask.type = MHA_BOOL;
    by_hand_check(ctx, &p, WANT(3));
    p.options.mask_kind = MHA_MASK_KEEP;
    by_hand_check(ctx, &p, WANT(1.5));
}

static void kind_3_case_14_the_kind_of_a_mask_is_said_not_guessed(void **state)
{
    (void)state;
    struct mha_tensor add = numbers(FLOATS(1, 0), 1, 2);
    struct mha_tensor keep = bytes((const uint8_t[]){ 1, 0 }, 1, 2);
    struct by_hand p = { .S = 2,
                         .v = FLOATS(1, 2),
                         .options = { .mask_kind = MHA_MASK_ADDITIVE, .mask = &add } };
    by_hand_run(ctx, &p);
    check_close("weights", p.weights, WANT(0.7310585786300049, 0.2689414213699951), 2,
                bound_of(WANT(0.7310585786300049), 1, 0));
    p.options = (struct mha_options){ .mask_kind = MHA_MASK_KEEP, .mask = &keep };
    by_hand_run(ctx, &p);
    check_same_bits("weights", p.weights, FLOATS(1, 0), 2);

    static const struct {
        int32_t kind;
        bool numeric;
    } wrong[] = { { MHA_MASK_KEEP, true }, { MHA_MASK_DROP, true }, { MHA_MASK_ADDITIVE, false } };
    float q = 0, out = 77;
    struct mha_tensor one = mha_tensor_4d(&q, MHA_FLOAT32, 1, 1, 1, 1);
    struct mha_tensor to = mha_tensor_4d(&out, MHA_FLOAT32, 1, 1, 1, 1);
    for (int64_t i = 0; i < COUNT(wrong); i++) {
        struct mha_tensor mask = wrong[i].numeric ? numbers(&q, 1, 1)
                                                  : bytes((const uint8_t[]){ 1 }, 1, 1);
        struct mha_options options = { .mask_kind = wrong[i].kind, .mask = &mask };
        mha_status status = mha_attention(ctx, &(struct mha_inputs){ .query = &one }, &options,
                                          &(struct mha_outputs){ .out = &to });
        check_status(ctx, status, MHA_ERROR_TYPE);
        check_contains(mha_context_message(ctx), wrong[i].numeric ? "float32" : "uint8");
        assert_true(out == 77);
    }
}

static void kind_3_case_15_a_mask_has_its_batch_axis_before_its_head_axis(void **state)
{
    (void)state;
    /* [B, H, 1, S]: sample 0 may see key 0 and sample 1 key 1, in both heads. */
    static const uint8_t data[] = { 1, 0, 1, 0, 0, 1, 0, 1 };
    struct mha_tensor mask = mha_tensor_4d_const(data, MHA_BOOL, 2, 2, 1, 2);
    struct by_hand p = { .B = 2,
                         .H = 2,
                         .G = 2,
                         .S = 2,
                         .v = FLOATS(1, 1, 3, 3, 1, 1, 3, 3),
                         .options = { .mask_kind = MHA_MASK_KEEP, .mask = &mask } };
    by_hand_check(ctx, &p, WANT(1, 1, 3, 3));
    /* Broadcast over the heads; and heads that differ. */
    static const uint8_t narrow[] = { 1, 0, 0, 1 };
    mask = mha_tensor_4d_const(narrow, MHA_BOOL, 2, 1, 1, 2);
    by_hand_check(ctx, &p, WANT(1, 1, 3, 3));
    mask = mha_tensor_4d_const(narrow, MHA_BOOL, 1, 2, 1, 2);
    by_hand_check(ctx, &p, WANT(1, 3, 1, 3));
}

static void kind_3_case_16_key_padding_removes_columns_only(void **state)
{
    (void)state;
    const int32_t two = 2;
    struct mha_tensor length = mha_tensor_1d_const(&two, MHA_INT32, 1);
    struct mha_tensor keep = bytes((const uint8_t[]){ 1, 1, 0 }, 1, 3);
    struct by_hand p = { .L = 3,
                         .S = 3,
                         .v = FLOATS(1, 2, 4),
                         .options = { .causal = 1 },
                         .inputs = { .key_lengths = &length } };
    by_hand_check(ctx, &p, WANT(1, 1.5, 1.5));
    p.inputs.key_lengths = NULL;
    p.options.mask_kind = MHA_MASK_KEEP;
    p.options.mask = &keep;
    by_hand_check(ctx, &p, WANT(1, 1.5, 1.5));
}

static void kind_3_case_17_causal_and_padding_on_either_side(void **state)
{
    (void)state;
    struct mha_tensor keep = bytes((const uint8_t[]){ 0, 1, 1 }, 1, 3);
    struct by_hand p = { .L = 3,
                         .S = 3,
                         .v = FLOATS(1, 2, 4),
                         .options = { .causal = 1, .mask_kind = MHA_MASK_KEEP, .mask = &keep } };
    by_hand_check(ctx, &p, WANT(0, 2, 3));
    check_empty_row(&p, 0);
    /* And a window, and a length, all at once: row 2 is left with key 1. */
    const int64_t two = 2;
    struct mha_tensor length = mha_tensor_1d_const(&two, MHA_INT64, 1);
    p.inputs.key_lengths = &length;
    p.options.window = MHA_WINDOW_LEFT;
    p.options.window_left = 1;
    by_hand_check(ctx, &p, WANT(0, 2, 2));
}

/* ---- kind 4: causal and window geometry ------------------------------------------------------ */

static void kind_4_case_20_the_causal_rule_says_where_its_corner_is(void **state)
{
    (void)state;
    struct by_hand p = { .S = 4, .v = FLOATS(1, 2, 3, 4), .options = { .causal = 1 } };
    by_hand_check(ctx, &p, WANT(1));
    p.options.align = MHA_ALIGN_BOTTOM_RIGHT;
    by_hand_check(ctx, &p, WANT(2.5));
    struct by_hand two = { .L = 2,
                           .S = 5,
                           .v = FLOATS(1, 2, 3, 4, 5),
                           .options = { .causal = 1, .align = MHA_ALIGN_BOTTOM_RIGHT } };
    by_hand_check(ctx, &two, WANT(2.5, 3));
    /* The corner is that of the valid lengths, not of the buffer. */
    const int64_t three = 3;
    struct mha_tensor length = mha_tensor_1d_const(&three, MHA_INT64, 1);
    two.inputs.key_lengths = &length;
    by_hand_check(ctx, &two, WANT(1.5, 2));
    struct mha_tensor offset = mha_tensor_1d_const(&three, MHA_INT64, 1);
    two.inputs.key_lengths = NULL;
    two.options.align = MHA_ALIGN_OFFSETS;
    two.options.offsets = &offset;
    by_hand_check(ctx, &two, WANT(2.5, 3));
}

static void kind_4_case_21_more_queries_than_keys_change_no_alignment(void **state)
{
    (void)state;
    struct by_hand p = { .L = 3,
                         .S = 2,
                         .v = FLOATS(1, 3),
                         .options = { .causal = 1, .align = MHA_ALIGN_BOTTOM_RIGHT } };
    by_hand_check(ctx, &p, WANT(0, 1, 2));
    check_empty_row(&p, 0);
    p.options.align = MHA_ALIGN_TOP_LEFT;
    by_hand_check(ctx, &p, WANT(1, 2, 2));
}

static void kind_4_case_22_windows_are_inclusive_distances(void **state)
{
    (void)state;
    struct by_hand p = { .L = 5,
                         .S = 5,
                         .v = FLOATS(1, 2, 3, 4, 5),
                         .options = { .causal = 1, .window = MHA_WINDOW_LEFT, .window_left = 1 } };
    by_hand_check(ctx, &p, WANT(1, 1.5, 2.5, 3.5, 4.5));
    p.options.window_left = 2;
    by_hand_check(ctx, &p, WANT(1, 1.5, 2, 3, 4));
    p.options.window_left = 0;
    by_hand_check(ctx, &p, WANT(1, 2, 3, 4, 5));
    p.options = (struct mha_options){ .window = MHA_WINDOW_LEFT | MHA_WINDOW_RIGHT,
                                      .window_left = 1,
                                      .window_right = 2 };
    by_hand_check(ctx, &p, WANT(2, 2.5, 3.5, 4, 4.5));
    /* A side whose flag is off is unlimited, whatever its field says. */
    p.options.window = MHA_WINDOW_RIGHT;
    by_hand_check(ctx, &p, WANT(2, 2.5, 3, 3, 3));
    p.options.window = MHA_WINDOW_OFF;
    by_hand_check(ctx, &p, WANT(3, 3, 3, 3, 3));
}

static void kind_4_case_23_a_window_follows_the_position(void **state)
{
    (void)state;
    struct by_hand p = { .S = 6,
                         .v = FLOATS(1, 2, 3, 4, 5, 6),
                         .options = { .align = MHA_ALIGN_BOTTOM_RIGHT,
                                      .causal = 1,
                                      .window = MHA_WINDOW_LEFT,
                                      .window_left = 2 } };
    by_hand_check(ctx, &p, WANT(5));

    /* Six tokens in chunks of 1, 2 and 3 are six tokens at once, to the bit. */
    enum { T = 6, D = 5 };
    float q[T * D], k[T * D], v[T * D];
    random_fill(q, T * D);
    random_fill(k, T * D);
    random_fill(v, T * D);
    struct by_hand whole = {
        .L = T, .S = T, .D = D, .Dv = D, .q = q, .k = k, .v = v, .options = p.options
    };
    by_hand_run(ctx, &whole);
    for (int64_t chunk = 1, done = 0; chunk <= 3; done += chunk++) {
        struct by_hand part = { .L = chunk,
                                .S = done + chunk,
                                .D = D,
                                .Dv = D,
                                .q = q + done * D,
                                .k = k,
                                .v = v,
                                .options = p.options };
        by_hand_run(ctx, &part);
        check_same_bits("chunk", part.out, whole.out + done * D, chunk * D);
        check_same_bits("lse", part.lse, whole.lse + done, chunk);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kind_1_case_1_a_masked_row_is_zero_and_leaves_others_alone),
        cmocka_unit_test(kind_1_case_3_log_sum_exp_of_an_empty_row_is_minus_infinity),
        cmocka_unit_test(kind_1_case_6_minus_infinity_excludes_and_the_lowest_float_does_not),
        cmocka_unit_test(kind_2_case_7_nan_and_infinity_in_a_masked_key_do_not_exist),
        cmocka_unit_test(kind_2_case_8_what_lies_behind_the_length_does_not_exist),
        cmocka_unit_test(kind_2_case_9_a_masked_key_never_wins),
        cmocka_unit_test(kind_2_case_10_restrictions_do_not_add_up),
        cmocka_unit_test(kind_3_case_13_keep_and_drop_are_opposites),
        cmocka_unit_test(kind_3_case_14_the_kind_of_a_mask_is_said_not_guessed),
        cmocka_unit_test(kind_3_case_15_a_mask_has_its_batch_axis_before_its_head_axis),
        cmocka_unit_test(kind_3_case_16_key_padding_removes_columns_only),
        cmocka_unit_test(kind_3_case_17_causal_and_padding_on_either_side),
        cmocka_unit_test(kind_4_case_20_the_causal_rule_says_where_its_corner_is),
        cmocka_unit_test(kind_4_case_21_more_queries_than_keys_change_no_alignment),
        cmocka_unit_test(kind_4_case_22_windows_are_inclusive_distances),
        cmocka_unit_test(kind_4_case_23_a_window_follows_the_position),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
