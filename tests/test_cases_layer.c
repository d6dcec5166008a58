/* Bugs of other attention code, as tests that they are not here: those of whole layers, of kinds 1,
 * 2, 5, 11, 12 and 13. */
#include "fixture.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layer_model.h"

#define FLOATS(...) ((const float[]){ __VA_ARGS__ })

/* ---- problems -------------------------------------------------------------------------------- */

/* A layer of contiguous guarded weights with rows to run it on. Sizes first, then problem_make. */
struct problem {
    int64_t B, L, S;
    struct mha_layer_shape shape; /* every size given */
    bool biases;
    struct mha_inputs inputs;
    struct mha_options options;
    struct mha_weights weights;
    struct mha_outputs outputs;
    struct mha_tensor w[8], query, key, value, out, lse, w_heads;
    mha_layer *layer;
    float *blocks[16];
    int64_t block_count;
};

static float *floats(struct problem *p, int64_t n)
{
    if (p->block_count == COUNT(p->blocks))
        fail_msg("a problem has too many blocks");
    return p->blocks[p->block_count++] = guarded_floats(n);
}

static struct mha_tensor matrix(struct problem *p, int64_t out, int64_t in)
{
    float *w = floats(p, out * in);
    for (int64_t i = 0; i < out * in; i++)
        w[i] *= 1.7f / sqrtf((float)in);
    return mha_tensor_2d(w, MHA_FLOAT32, out, in);
}

static struct mha_tensor vector(struct problem *p, int64_t n)
{
    return mha_tensor_1d(floats(p, n), MHA_FLOAT32, n);
}

static void problem_make(struct problem *p)
{
    const struct mha_layer_shape *s = &p->shape;
    struct mha_tensor *w = p->w;
    w[0] = matrix(p, s->H * s->D, s->E);
    w[1] = matrix(p, s->G * s->D, s->E_key);
    w[2] = matrix(p, s->G * s->Dv, s->E_value);
    w[3] = matrix(p, s->E_out, s->H * s->Dv);
    p->weights = (struct mha_weights){ .w_q = &w[0], .w_k = &w[1], .w_v = &w[2], .w_o = &w[3] };
    if (p->biases) {
        w[4] = vector(p, s->H * s->D);
        w[5] = vector(p, s->G * s->D);
        w[6] = vector(p, s->G * s->Dv);
        w[7] = vector(p, s->E_out);
        p->weights.b_q = &w[4];
        p->weights.b_k = &w[5];
        p->weights.b_v = &w[6];
        p->weights.b_o = &w[7];
    }
    p->query = mha_tensor_3d(floats(p, p->B * p->L * s->E), MHA_FLOAT32, p->B, p->L, s->E);
    p->key = mha_tensor_3d(floats(p, p->B * p->S * s->E_key), MHA_FLOAT32, p->B, p->S, s->E_key);
    p->value = mha_tensor_3d(floats(p, p->B * p->S * s->E_value), MHA_FLOAT32, p->B, p->S,
                             s->E_value);
    p->out = mha_tensor_3d(floats(p, p->B * p->L * s->E_out), MHA_FLOAT32, p->B, p->L, s->E_out);
    p->lse = mha_tensor_3d(floats(p, p->B * s->H * p->L), MHA_FLOAT32, p->B, s->H, p->L);
    p->w_heads = mha_tensor_4d(floats(p, p->B * s->H * p->L * p->S), MHA_FLOAT32, p->B, s->H, p->L,
                               p->S);
    p->inputs.query = &p->query;
    p->inputs.key = &p->key;
    p->inputs.value = &p->value;
    p->outputs = (struct mha_outputs){ .out = &p->out, .lse = &p->lse, .weights = &p->w_heads };
    check_status(ctx, mha_layer_create(ctx, s, &p->weights, MHA_BORROW, &p->layer), MHA_OK);
}

static void problem_free(struct problem *p)
{
    mha_layer_free(p->layer);
    for (int64_t i = 0; i < p->block_count; i++)
        guarded_free(p->blocks[i]);
}

static void problem_run(const struct problem *p)
{
    check_status(ctx, mha_forward(ctx, p->layer, &p->inputs, &p->options, &p->outputs), MHA_OK);
}

/* Runs a problem and compares it with the oracle. */
static void problem_check(const struct problem *p, const char *text)
{
    struct reference_result want;
    reference_forward(&p->shape, &p->weights, &p->inputs, &p->options, &want);
    problem_run(p);
    layer_model_check(text, &p->shape, &p->weights, &p->inputs, &p->options, &want,
                      &(struct float_arrays){ p->out.data, p->lse.data,
                                              p->outputs.weights ? p->w_heads.data : NULL, NULL });
    reference_free(&want);
}

static float *data_of(const struct mha_tensor *t)
{
    return t->data;
}

/* ---- kinds 1 and 2 --------------------------------------------------------------------------- */

static void kind_1_case_2_an_empty_row_is_the_output_bias(void **state)
{
    (void)state;
    static const uint8_t none[] = { 0 };
    const float b_o[] = { 0.5f, -0.25f }, residual[] = { 1, 2, 3, 4 };
    struct mha_tensor mask = mha_tensor_4d_const(none, MHA_BOOL, 1, 1, 1, 1);
    struct mha_tensor added = mha_tensor_3d_const(residual, MHA_FLOAT32, 1, 2, 2);
    struct problem p = {
        .B = 1,
        .L = 2,
        .S = 3,
        .biases = true,
        .shape = { .E = 2, .E_key = 2, .E_value = 2, .E_out = 2, .H = 1, .G = 1, .D = 2, .Dv = 2 },
        .options = { .mask_kind = MHA_MASK_KEEP, .mask = &mask }
    };
    problem_make(&p);
    memcpy(data_of(&p.w[7]), b_o, sizeof b_o);
    problem_run(&p);
    check_same_bits("out", p.out.data, FLOATS(0.5f, -0.25f, 0.5f, -0.25f), 4);
    check_same_bits("weights", p.w_heads.data, FLOATS(0, 0, 0, 0, 0, 0), 6);
    p.outputs.weights = NULL;
    problem_run(&p);
    check_same_bits("out alone", p.out.data, FLOATS(0.5f, -0.25f, 0.5f, -0.25f), 4);
    p.inputs.residual = &added;
    problem_run(&p);
    check_same_bits("with residual", p.out.data, FLOATS(1.5f, 1.75f, 3.5f, 3.75f), 4);
    problem_free(&p);
}

/* Heads that are empty leave the others' part: W_O sums what is there. */
static void kind_1_case_2_other_heads_keep_their_part(void **state)
{
    (void)state;
    static const uint8_t second_only[] = { 0, 1 };
    struct mha_tensor mask = mha_tensor_4d_const(second_only, MHA_BOOL, 1, 2, 1, 1);
    struct problem p = {
        .B = 1,
        .L = 1,
        .S = 1,
        .biases = true,
        .shape = { .E = 1, .E_key = 1, .E_value = 1, .E_out = 1, .H = 2, .G = 2, .D = 1, .Dv = 1 },
        .options = { .mask_kind = MHA_MASK_KEEP, .mask = &mask }
    };
    problem_make(&p);
    memcpy(data_of(&p.w[2]), FLOATS(2, 3), 2 * sizeof(float)); /* values 2 and 3 times the row */
    memcpy(data_of(&p.w[6]), FLOATS(0, 0), 2 * sizeof(float));
    memcpy(data_of(&p.w[3]), FLOATS(10, 100), 2 * sizeof(float));
    data_of(&p.w[7])[0] = 1;
    data_of(&p.value)[0] = 1;
    problem_run(&p);
    check_same_bits("out", p.out.data, FLOATS(301), 1);
    problem_free(&p);
}

/* The layer projects what lies behind the length, and still nothing of it arrives. */
static void kind_2_case_8_garbage_behind_the_length_does_not_pass_the_projections(void **state)
{
    (void)state;
    enum { S = 33, E = 19, N = 2 * 3 * E };
    static const float tails[] = { 0, NAN, 3e38f, INFINITY };
    float first[N];
    for (int32_t len = 0; len <= S; len++) {
        const int32_t lengths[] = { len, S };
        struct mha_tensor t = mha_tensor_1d_const(lengths, MHA_INT32, 2);
        struct problem p = { .B = 2,
                             .L = 3,
                             .S = S,
                             .biases = true,
                             .shape = { .E = E,
                                        .E_key = 11,
                                        .E_value = 13,
                                        .E_out = E,
                                        .H = 2,
                                        .G = 1,
                                        .D = 7,
                                        .Dv = 5 },
                             .inputs = { .key_lengths = &t } };
        problem_make(&p);
        for (int64_t i = 0; i < COUNT(tails); i++) {
            for (int64_t x = len * 11; x < S * 11; x++)
                data_of(&p.key)[x] = tails[i];
            for (int64_t x = len * 13; x < S * 13; x++)
                data_of(&p.value)[x] = tails[i];
            problem_check(&p, "");
            if (i == 0)
                memcpy(first, p.out.data, sizeof first);
            check_same_bits("out", p.out.data, first, N);
        }
        problem_free(&p);
    }
}

/* ---- kind 5: head layout --------------------------------------------------------------------- */

static void kind_5_case_28_heads_are_joined_token_by_token(void **state)
{
    (void)state;
    /* Each query sees its own key alone, so that heads are values: 1..4 of token 0, 5..8 of 1. */
    enum { L = 2, E = 4, H = 2 };
    float w[E * E] = { 0 }, x[L * E], out[L * E];
    for (int i = 0; i < E; i++)
        w[i * E + i] = 1;
    for (int i = 0; i < L * E; i++)
        x[i] = (float)(i + 1);
    struct mha_tensor tw = mha_tensor_2d(w, MHA_FLOAT32, E, E);
    struct mha_tensor tx = mha_tensor_3d(x, MHA_FLOAT32, 1, L, E);
    struct mha_tensor to = mha_tensor_3d(out, MHA_FLOAT32, 1, L, E);
    struct mha_layer_shape shape = { .E = E, .H = H };
    struct mha_options own = { .causal = 1, .window = MHA_WINDOW_LEFT };
    struct mha_inputs inputs = { .query = &tx };
    struct mha_outputs outputs = { .out = &to };
    for (int with_w_o = 0; with_w_o < 2; with_w_o++) {
        struct mha_weights weights = {
            .w_q = &tw, .w_k = &tw, .w_v = &tw, .w_o = with_w_o ? &tw : NULL
        };
        mha_layer *layer = NULL;
        check_status(ctx, mha_layer_create(ctx, &shape, &weights, MHA_COPY, &layer), MHA_OK);
        check_status(ctx, mha_forward(ctx, layer, &inputs, &own, &outputs), MHA_OK);
        check_same_bits("out", out, x, L * E);
        mha_layer_free(layer);
    }
}

static void kind_5_case_27_rows_of_w_q_are_those_of_its_heads(void **state)
{
    (void)state;
    /* Values 10 and 20 of two key/value heads; four query heads; W_O tells which is where. */
    struct problem p = {
        .B = 1,
        .L = 1,
        .S = 1,
        .shape = { .E = 1, .E_key = 1, .E_value = 1, .E_out = 1, .H = 4, .G = 2, .D = 1, .Dv = 1 }
    };
    problem_make(&p);
    memcpy(data_of(&p.w[2]), FLOATS(10, 20), 2 * sizeof(float));
    memcpy(data_of(&p.w[3]), FLOATS(1, 100, 10000, 1000), 4 * sizeof(float));
    data_of(&p.value)[0] = 1;
    problem_run(&p);
    check_same_bits("out", p.out.data, FLOATS(10 * 101 + 20 * 11000), 1);
    problem_free(&p);
}

/* ---- kind 11: one answer on every path ------------------------------------------------------- */

static void kind_11_case_72_padding_shortens_no_output(void **state)
{
    (void)state;
    enum { B = 2, L = 6 };
    const int64_t lengths[] = { 1, 1 };
    struct mha_tensor t = mha_tensor_1d_const(lengths, MHA_INT64, B);
    struct problem p = {
        .B = B,
        .L = L,
        .S = L,
        .biases = true,
        .shape = { .E = 5, .E_key = 5, .E_value = 5, .E_out = 5, .H = 1, .G = 1, .D = 5, .Dv = 5 },
        .inputs = { .key_lengths = &t }
    };
    problem_make(&p);
    for (int64_t i = 0; i < B * L * 5; i++)
        data_of(&p.out)[i] = NAN;
    problem_check(&p, "");
    /* All six rows see key 0 alone, so they agree. */
    for (int b = 0; b < B; b++)
        for (int l = 1; l < L; l++)
            check_same_bits("row", data_of(&p.out) + (b * L + l) * 5, data_of(&p.out) + b * L * 5,
                            5);
    problem_free(&p);
}

/* Takes the next digit of a combination's number. */
static int choose(int *rest, int n)
{
    int digit = *rest % n;
    *rest /= n;
    return digit;
}

static void kind_11_case_73_every_option_counts_in_a_layer(void **state)
{
    (void)state;
    enum { S = 67, H = 4, MOST = 5 };
    static uint8_t bits[H * MOST * S];
    static float numbers[H * MOST * S];
    for (int64_t i = 0; i < COUNT(bits); i++)
        bits[i] = random_below(3) == 0;
    random_fill(numbers, COUNT(numbers));
    for (int combination = 0; combination < 2 * 4 * 2 * 2 * 4 * 2 * 2 * 2; combination++) {
        int rest = combination;
        struct problem p = {
            .B = 2,
            .L = choose(&rest, 2) ? 1 : MOST,
            .S = S,
            .shape = { .E = 7, .E_key = 6, .E_value = 9, .E_out = 8, .H = H, .D = 3, .Dv = 5 },
            .options = { .softcap = 0.4f,
                         .window_left = 30,
                         .window_right = 3,
                         .align = MHA_ALIGN_BOTTOM_RIGHT }
        };
        p.options.mask_kind = choose(&rest, 4);
        bool wants_weights = choose(&rest, 2);
        p.options.softcap_mode = choose(&rest, 2);
        p.options.window = choose(&rest, 4);
        p.options.causal = choose(&rest, 2);
        p.shape.G = choose(&rest, 2) ? 2 : H;
        p.biases = choose(&rest, 2);
        struct mha_tensor mask = p.options.mask_kind == MHA_MASK_ADDITIVE
                                     ? mha_tensor_4d(numbers, MHA_FLOAT32, 1, H, p.L, S)
                                     : mha_tensor_4d(bits, MHA_BOOL, 1, H, p.L, S);
        p.options.mask = &mask;
        problem_make(&p);
        if (!wants_weights)
            p.outputs.weights = NULL;
        char text[32];
        snprintf(text, sizeof text, "combination %d: ", combination);
        problem_check(&p, text);
        problem_free(&p);
    }
}

static const struct mha_layer_shape all_differ = {
    .E = 17, .E_key = 19, .E_value = 23, .E_out = 29, .H = 6, .G = 3, .D = 11, .Dv = 13
};

static void kind_11_case_75_all_sizes_of_a_layer_differ(void **state)
{
    (void)state;
    struct problem p = { .B = 2, .L = 5, .S = 7, .shape = all_differ, .biases = true };
    problem_make(&p);
    problem_check(&p, "");
    problem_free(&p);
}

static void kind_11_case_76_a_layer_gives_the_same_bits_each_time(void **state)
{
    (void)state;
    struct problem p = { .B = 2, .L = 40, .S = 70, .shape = all_differ, .biases = true };
    problem_make(&p);
    problem_run(&p);
    enum { N = 2 * 40 * 29 };
    float first[N];
    memcpy(first, p.out.data, sizeof first);
    for (int i = 0; i < 20; i++) {
        memset(p.out.data, i, sizeof first);
        problem_run(&p);
        check_same_bits("again", p.out.data, first, N);
    }
    problem_free(&p);
}

/* ---- kind 12: shapes and contents ------------------------------------------------------------ */

static void kind_12_case_82_no_size_of_a_layer_stops_the_process(void **state)
{
    (void)state;
    static const int64_t sizes[] = { 0, -1, INT32_MAX, INT64_MAX, INT64_MIN };
    struct problem p = { .B = 1, .L = 1, .S = 1, .shape = all_differ };
    problem_make(&p);
    for (int64_t i = 0; i < COUNT(sizes); i++)
        for (int field = 0; field < 8; field++) {
            struct mha_layer_shape s = all_differ;
            int64_t *const fields[] = { &s.E, &s.E_key, &s.E_value, &s.E_out,
                                        &s.H, &s.G,     &s.D,       &s.Dv };
            *fields[field] = sizes[i]; /* a zero's default fits none of these weights */
            mha_layer *layer = NULL;
            mha_status status = mha_layer_create(ctx, &s, &p.weights, MHA_COPY, &layer);
            if (status == MHA_OK || layer)
                fail_msg("field %d = %" PRId64 " makes a layer", field, sizes[i]);
            assert_true(mha_context_message(ctx)[0] != '\0');
        }
    struct mha_layer_shape s = all_differ;
    s.H = 0;
    mha_layer *layer = NULL;
    check_status(ctx, mha_layer_create(ctx, &s, &p.weights, MHA_COPY, &layer), MHA_ERROR_ARGUMENT);
    problem_free(&p);
}

static void kind_12_case_83_a_layer_takes_nothing_for_an_amount(void **state)
{
    (void)state;
    for (int mix = 0; mix < 8; mix++) {
        struct problem p = { .B = mix & 1 ? 2 : 0,
                             .L = mix & 2 ? 2 : 0,
                             .S = mix & 4 ? 2 : 0,
                             .shape = all_differ,
                             .biases = true };
        problem_make(&p);
        if (p.B * p.L == 0)
            p.query.data = p.out.data = p.lse.data = NULL;
        if (p.B * p.S == 0)
            p.key.data = p.value.data = NULL;
        if (p.B * p.L * p.S == 0)
            p.w_heads.data = NULL;
        problem_check(&p, "");
        for (int64_t row = 0; row < p.B * p.L && p.S == 0; row++)
            check_same_bits("out", data_of(&p.out) + row * 29, data_of(&p.w[7]), 29);
        problem_free(&p);
    }
}

static void kind_12_case_84_a_layer_compares_its_operands(void **state)
{
    (void)state;
    enum { QUERY, KEY, VALUE, OUT, RESIDUAL };
    static const struct {
        int operand, axis;
        int64_t size;
        const char *part; /* of the message */
    } wrong[] = {
        { VALUE, 1, 6, "value" },
        { KEY, 1, 6, "value" },
        { KEY, 0, 1, "key" },
        { VALUE, 0, 1, "value" },
        { QUERY, 2, 16, "17" },
        { KEY, 2, 18, "19" },
        { VALUE, 2, 22, "23" },
        { OUT, 0, 1, "out" },
        { OUT, 1, 2, "out" },
        { OUT, 2, 17, "29" },
        { RESIDUAL, 0, 1, "residual" },
        { RESIDUAL, 1, 1, "residual" },
        { RESIDUAL, 2, 1, "residual" },
        { RESIDUAL, 2, 17, "W_O [29, 78] leads to width 29, not back to E = 17" },
    };
    struct problem p = { .B = 2, .L = 3, .S = 5, .shape = all_differ };
    problem_make(&p);
    static float zeros[2 * 6 * 32];
    p.outputs.weights = NULL;
    for (int64_t i = -1; i < COUNT(wrong); i++) {
        struct mha_tensor t[] = { p.query, p.key, p.value, p.out,
                                  mha_tensor_3d(zeros, MHA_FLOAT32, 2, 3, 29) };
        if (i >= 0) {
            struct mha_tensor *x = &t[wrong[i].operand];
            x->shape[wrong[i].axis] = wrong[i].size;
            void *room = wrong[i].operand == OUT ? p.out.data : zeros;
            *x = mha_tensor_3d(room, MHA_FLOAT32, x->shape[0], x->shape[1], x->shape[2]);
        }
        struct mha_inputs in = {
            .query = &t[QUERY], .key = &t[KEY], .value = &t[VALUE], .residual = &t[RESIDUAL]
        };
        struct mha_outputs outputs = { .out = &t[OUT] };
        data_of(&p.out)[0] = 77;
        mha_status status = mha_forward(ctx, p.layer, &in, NULL, &outputs);
        check_status(ctx, status, i < 0 ? MHA_OK : MHA_ERROR_SHAPE);
        if (i >= 0) {
            assert_true(data_of(&p.out)[0] == 77);
            check_contains(mha_context_message(ctx), wrong[i].part);
        }
    }
    problem_free(&p);
}

/* An allocator that knows its last block: after a reserve, the scratch. */
struct known {
    struct mha_allocator allocator;
    void *block;
    size_t bytes;
};

static void *known_allocate(void *user, size_t bytes, size_t alignment)
{
    struct known *known = user;
    known->bytes = bytes;
    return posix_memalign(&known->block, alignment, bytes) == 0 ? known->block : NULL;
}

static void known_release(void *user, void *block, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(block);
}

/* Outputs and scratch are written, never read before: NaN in them gives the bits that zeros give,
 * for every M (rows), N (heads' width) and K (row width) of the products from 1 to 33. */
static void kind_12_case_86_what_was_in_an_output_before_does_not_matter(void **state)
{
    (void)state;
    enum { MOST = 33 };
    static float w[4][MOST * MOST], x[MOST * MOST], out[2][MOST * MOST];
    struct known known = { .allocator = { known_allocate, known_release, &known } };
    struct mha_context_options options = { .allocator = &known.allocator };
    mha_context *with = NULL;
    check_status(NULL, mha_context_create(&options, &with), MHA_OK);
    check_status(with, mha_context_reserve(with, 1 << 20), MHA_OK);
    void *scratch = known.block;
    for (int i = 0; i < 4; i++)
        random_fill(w[i], MOST * MOST);
    random_fill(x, MOST * MOST);
    for (int64_t N = 1; N <= MOST; N++)
        for (int64_t K = 1; K <= MOST; K++) {
            struct mha_tensor in = mha_tensor_2d(w[0], MHA_FLOAT32, N, K), t[4] = { in, in, in };
            t[3] = mha_tensor_2d(NULL, MHA_FLOAT32, K, N);
            for (int i = 0; i < 4; i++)
                t[i].data = w[i];
            struct mha_layer_shape shape = { .E = K, .H = 1, .D = N };
            struct mha_weights weights = { .w_q = &t[0], .w_k = &t[1], .w_v = &t[2], .w_o = &t[3] };
            mha_layer *layer = NULL;
            check_status(ctx, mha_layer_create(ctx, &shape, &weights, MHA_BORROW, &layer), MHA_OK);
            for (int64_t M = 1; M <= MOST; M++) {
                struct mha_tensor rows = mha_tensor_3d(x, MHA_FLOAT32, 1, M, K);
                struct mha_inputs inputs = { .query = &rows };
                for (int nan = 0; nan < 2; nan++) {
                    struct mha_tensor to = mha_tensor_3d(out[nan], MHA_FLOAT32, 1, M, K);
                    struct mha_outputs outputs = { .out = &to };
                    int64_t bytes = 0;
                    check_status(
                        with, mha_forward_workspace(with, layer, &inputs, NULL, &outputs, &bytes),
                        MHA_OK);
                    memset(out[nan], nan ? 0xff : 0, sizeof out[nan]);
                    memset(scratch, nan ? 0xff : 0, (size_t)bytes);
                    check_status(with, mha_forward(with, layer, &inputs, NULL, &outputs), MHA_OK);
                }
                for (int64_t i = 0; i < M * K; i++)
                    assert_true(isfinite(out[0][i]));
                check_same_bits("out", out[1], out[0], M * K);
            }
            mha_layer_free(layer);
        }
    assert_ptr_equal(known.block, scratch);
    mha_context_free(with);
}

/* ---- kind 13: nothing behind an operand ------------------------------------------------------ */

static void kind_13_case_92_a_layer_reads_nothing_behind_its_operands(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= 70; n++)
        for (int which = 0; which < 8; which++) {
            struct problem p = { .B = 1,
                                 .L = 3,
                                 .S = 5,
                                 .biases = true,
                                 .shape = { .E = 7,
                                            .E_key = 6,
                                            .E_value = 5,
                                            .E_out = 9,
                                            .H = 2,
                                            .G = 1,
                                            .D = 4,
                                            .Dv = 3 } };
            int64_t *const sizes[] = {
                &p.L,           &p.S,       &p.shape.E, &p.shape.E_key, &p.shape.E_value,
                &p.shape.E_out, &p.shape.D, &p.shape.Dv
            };
            *sizes[which] = n;
            char text[32];
            snprintf(text, sizeof text, "n %d at %d: ", (int)n, which);
            problem_make(&p);
            problem_check(&p, text);
            problem_free(&p);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kind_1_case_2_an_empty_row_is_the_output_bias),
        cmocka_unit_test(kind_1_case_2_other_heads_keep_their_part),
        cmocka_unit_test(kind_2_case_8_garbage_behind_the_length_does_not_pass_the_projections),
        cmocka_unit_test(kind_5_case_27_rows_of_w_q_are_those_of_its_heads),
        cmocka_unit_test(kind_5_case_28_heads_are_joined_token_by_token),
        cmocka_unit_test(kind_11_case_72_padding_shortens_no_output),
        cmocka_unit_test(kind_11_case_73_every_option_counts_in_a_layer),
        cmocka_unit_test(kind_11_case_75_all_sizes_of_a_layer_differ),
        cmocka_unit_test(kind_11_case_76_a_layer_gives_the_same_bits_each_time),
        cmocka_unit_test(kind_12_case_82_no_size_of_a_layer_stops_the_process),
        cmocka_unit_test(kind_12_case_83_a_layer_takes_nothing_for_an_amount),
        cmocka_unit_test(kind_12_case_84_a_layer_compares_its_operands),
        cmocka_unit_test(kind_12_case_86_what_was_in_an_output_before_does_not_matter),
        cmocka_unit_test(kind_13_case_92_a_layer_reads_nothing_behind_its_operands),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
