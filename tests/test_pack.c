/* Packed layers: the bits of the whole road against the scalar oracle, which engine is in use, what
 * happens to the originals, failing allocations, and the workspace query. */
#include "fixture.h"

#include <stdlib.h>
#include <string.h>

#include "canonical.h"

/* A layer of unequal sizes with its weights, and rows for it. */
struct subject {
    int64_t B, L, E, H, G, D, Dv, E_out;
    float *w_q, *w_k, *w_v, *w_o, *b_q, *b_k, *b_v, *b_o, *x, *y;
    struct mha_tensor t[8], tx, ty;
    struct mha_layer_shape shape;
    struct mha_weights weights;
};

static void subject_make(struct subject *s)
{
    s->w_q = guarded_floats(s->H * s->D * s->E);
    s->w_k = guarded_floats(s->G * s->D * s->E);
    s->w_v = guarded_floats(s->G * s->Dv * s->E);
    s->w_o = guarded_floats(s->E_out * s->H * s->Dv);
    s->b_q = guarded_floats(s->H * s->D);
    s->b_k = guarded_floats(s->G * s->D);
    s->b_v = guarded_floats(s->G * s->Dv);
    s->b_o = guarded_floats(s->E_out);
    s->x = guarded_floats(s->B * s->L * s->E);
    s->y = guarded_floats(s->B * s->L * s->E_out);
    s->t[0] = mha_tensor_2d(s->w_q, MHA_FLOAT32, s->H * s->D, s->E);
    s->t[1] = mha_tensor_2d(s->w_k, MHA_FLOAT32, s->G * s->D, s->E);
    s->t[2] = mha_tensor_2d(s->w_v, MHA_FLOAT32, s->G * s->Dv, s->E);
    s->t[3] = mha_tensor_2d(s->w_o, MHA_FLOAT32, s->E_out, s->H * s->Dv);
    s->t[4] = mha_tensor_1d(s->b_q, MHA_FLOAT32, s->H * s->D);
    s->t[5] = mha_tensor_1d(s->b_k, MHA_FLOAT32, s->G * s->D);
    s->t[6] = mha_tensor_1d(s->b_v, MHA_FLOAT32, s->G * s->Dv);
    s->t[7] = mha_tensor_1d(s->b_o, MHA_FLOAT32, s->E_out);
    s->tx = mha_tensor_3d_const(s->x, MHA_FLOAT32, s->B, s->L, s->E);
    s->ty = mha_tensor_3d(s->y, MHA_FLOAT32, s->B, s->L, s->E_out);
    s->shape = (struct mha_layer_shape){
        .E = s->E, .E_out = s->E_out, .H = s->H, .G = s->G, .D = s->D, .Dv = s->Dv
    };
    s->weights = (struct mha_weights){ .w_q = &s->t[0],
                                       .w_k = &s->t[1],
                                       .w_v = &s->t[2],
                                       .w_o = &s->t[3],
                                       .b_q = &s->t[4],
                                       .b_k = &s->t[5],
                                       .b_v = &s->t[6],
                                       .b_o = &s->t[7] };
}

static void subject_free(struct subject *s)
{
    float *const blocks[] = { s->w_q, s->w_k, s->w_v, s->w_o, s->b_q,
                              s->b_k, s->b_v, s->b_o, s->x,   s->y };
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        guarded_free(blocks[i]);
}

static mha_layer *subject_layer(const struct subject *s, int32_t ownership)
{
    mha_layer *layer = NULL;
    check_status(ctx, mha_layer_create(ctx, &s->shape, &s->weights, ownership, &layer), MHA_OK);
    return layer;
}

static float *floats(int64_t n)
{
    return malloc((size_t)n * sizeof(float) + 1);
}

/* The road by hand: three projections, the attention, W_O with bias and residual. */
static float *expected(const struct subject *s, const struct mha_options *options, bool residual)
{
    int64_t rows = s->B * s->L;
    float *q = floats(rows * s->H * s->D), *k = floats(rows * s->G * s->D);
    float *v = floats(rows * s->G * s->Dv), *y = floats(rows * s->E_out);
    canonical_project(s->x, s->w_q, s->b_q, NULL, rows, s->E, s->H * s->D, q);
    canonical_project(s->x, s->w_k, s->b_k, NULL, rows, s->E, s->G * s->D, k);
    canonical_project(s->x, s->w_v, s->b_v, NULL, rows, s->E, s->G * s->Dv, v);
    struct mha_tensor tq = mha_tensor_4d(q, MHA_FLOAT32, s->B, s->L, s->H, s->D);
    struct mha_tensor tk = mha_tensor_4d(k, MHA_FLOAT32, s->B, s->L, s->G, s->D);
    struct mha_tensor tv = mha_tensor_4d(v, MHA_FLOAT32, s->B, s->L, s->G, s->Dv);
    struct mha_inputs inputs = { .query = &tq, .key = &tk, .value = &tv };
    struct canonical_result heads;
    canonical_attention(&inputs, options, &heads);
    canonical_project(heads.out, s->w_o, s->b_o, residual ? s->x : NULL, rows, s->H * s->Dv,
                      s->E_out, y);
    canonical_free(&heads);
    free(q);
    free(k);
    free(v);
    return y;
}

static void check_bits(int64_t B, int64_t L, int64_t E, int64_t H, int64_t G, int64_t D, int64_t Dv,
                       int64_t E_out)
{
    struct subject s = { B, L, E, H, G, D, Dv, E_out, .x = NULL };
    struct mha_options options = { .causal = (int32_t)random_below(2) };
    subject_make(&s);
    mha_layer *layer = subject_layer(&s, MHA_COPY);
    check_status(ctx, mha_layer_pack(ctx, layer, MHA_PACK_DROP), MHA_OK);
    bool residual = E == E_out;
    float *want = expected(&s, &options, residual);
    struct mha_inputs inputs = { .query = &s.tx, .residual = residual ? &s.tx : NULL };
    struct mha_outputs outputs = { .out = &s.ty };
    check_status(ctx, mha_forward(ctx, layer, &inputs, &options, &outputs), MHA_OK);
    check_same_bits("packed layer", s.y, want, B * L * E_out);
    free(want);
    mha_layer_free(layer);
    subject_free(&s);
}

static void the_road_has_the_canonical_bits(void **state)
{
    (void)state;
    if (strcmp(mha_context_isa(ctx), "generic") == 0)
        skip(); /* has bits of its own */
    check_bits(2, 5, 12, 6, 3, 11, 13, 12);
    check_bits(1, 1, 64, 4, 4, 16, 16, 64);
    check_bits(3, 67, 48, 3, 1, 16, 32, 31);  /* more than one block of rows */
    check_bits(1, 7, 1029, 2, 2, 5, 7, 1029); /* more than one block of inputs */
    check_bits(1, 3, 2, 70, 35, 3, 33, 17);   /* and after the core */
    for (int i = 0; i < 40; i++) {
        int64_t G = 1 + random_below(3);
        check_bits(1 + random_below(3), 1 + random_below(20), 1 + random_below(50),
                   G * (1 + random_below(3)), G, 1 + random_below(40), 1 + random_below(40),
                   1 + random_below(50));
    }
}

static void run(const mha_layer *layer, struct subject *s, float *copy)
{
    struct mha_inputs inputs = { .query = &s->tx };
    struct mha_outputs outputs = { .out = &s->ty };
    check_status(ctx, mha_forward(ctx, layer, &inputs, NULL, &outputs), MHA_OK);
    memcpy(copy, s->y, (size_t)(s->B * s->L * s->E_out) * sizeof *copy);
}

/* Panels follow the weights only when told. */
static void packing_again_takes_new_weights(void **state)
{
    (void)state;
    struct subject s = { 1, 5, 8, 2, 2, 4, 4, 8, .x = NULL };
    subject_make(&s);
    int64_t n = s.B * s.L * s.E_out;
    float *before = floats(n), *after = floats(n);
    mha_layer *layer = subject_layer(&s, MHA_BORROW);
    assert_string_equal(mha_layer_engine(layer), "blas");
    check_status(ctx, mha_layer_pack(ctx, layer, MHA_PACK_KEEP), MHA_OK);
    assert_string_equal(mha_layer_engine(layer), "packed");
    run(layer, &s, before);

    for (int64_t i = 0; i < s.E_out * s.H * s.Dv; i++)
        s.w_o[i] = 2 * s.w_o[i];
    memset(s.b_o, 0, (size_t)s.E_out * sizeof *s.b_o);
    run(layer, &s, after);
    assert_memory_not_equal(before, after, (size_t)n * sizeof *after); /* biases are no panels */
    run(layer, &s, before);
    check_status(ctx, mha_layer_pack(ctx, layer, MHA_PACK_KEEP), MHA_OK);
    run(layer, &s, after);
    for (int64_t i = 0; i < n; i++)
        before[i] = 2 * before[i];
    check_same_bits("after packing again", after, before, n);

    check_status(ctx, mha_layer_changed(ctx, layer), MHA_OK);
    assert_string_equal(mha_layer_engine(layer), "blas");
    mha_layer_free(layer);
    free(before);
    free(after);
    subject_free(&s);
}

static void dropped_originals_are_gone(void **state)
{
    (void)state;
    struct counting counting;
    counting_init(&counting);
    mha_context *plain = ctx;
    ctx = context_counting(&counting);
    struct subject s = { 1, 5, 64, 2, 2, 32, 32, 64, .x = NULL };
    subject_make(&s);
    float *before = floats(s.L * s.E), *after = floats(s.L * s.E);
    mha_layer *layer = subject_layer(&s, MHA_COPY);
    check_status(ctx, mha_layer_pack(ctx, layer, MHA_PACK_KEEP), MHA_OK);
    run(layer, &s, before);
    int64_t bytes = counting.live_bytes;
    check_status(ctx, mha_layer_pack(ctx, layer, MHA_PACK_DROP), MHA_OK);
    assert_true(counting.live_bytes <= bytes - 4 * 64 * 64 * (int64_t)sizeof(float));
    run(layer, &s, after);
    check_same_bits("after dropping", after, before, s.L * s.E);

    struct mha_weights weights = mha_layer_get_weights(layer);
    assert_null(weights.w_q);
    assert_null(weights.w_o);
    assert_non_null(weights.b_q);
    check_status(ctx, mha_layer_changed(ctx, layer), MHA_ERROR_ARGUMENT);
    check_contains(mha_context_message(ctx), "MHA_PACK_DROP");
    check_status(ctx, mha_layer_pack(ctx, layer, MHA_PACK_KEEP), MHA_OK); /* nothing to do */
    run(layer, &s, after);
    check_same_bits("after packing once more", after, before, s.L * s.E);
    mha_layer_free(layer);
    mha_context_free(ctx);
    assert_int_equal(counting.live, 0);
    ctx = plain;
    free(before);
    free(after);
    subject_free(&s);
}

static void a_failed_allocation_changes_nothing(void **state)
{
    (void)state;
    struct counting counting;
    counting_init(&counting);
    mha_context *plain = ctx;
    ctx = context_counting(&counting);
    struct subject s = { 1, 3, 8, 2, 2, 4, 4, 8, .x = NULL };
    subject_make(&s);
    mha_layer *layer = subject_layer(&s, MHA_COPY);
    counting.fail_at = counting.calls + 1;
    check_status(ctx, mha_layer_pack(ctx, layer, MHA_PACK_DROP), MHA_ERROR_MEMORY);
    check_contains(mha_context_message(ctx), "mha_layer_pack: no memory for the panels");
    assert_string_equal(mha_layer_engine(layer), "blas");
    assert_non_null(mha_layer_get_weights(layer).w_q);
    check_status(ctx, mha_layer_pack(ctx, layer, MHA_PACK_DROP), MHA_OK);
    mha_layer_free(layer);
    mha_context_free(ctx);
    assert_int_equal(counting.live, 0);
    ctx = plain;
    subject_free(&s);
}

static void bad_arguments(void **state)
{
    (void)state;
    struct subject s = { 1, 3, 8, 2, 2, 4, 4, 8, .x = NULL };
    subject_make(&s);
    mha_layer *layer = subject_layer(&s, MHA_COPY);
    check_status(ctx, mha_layer_pack(NULL, layer, MHA_PACK_KEEP), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_layer_pack(ctx, NULL, MHA_PACK_KEEP), MHA_ERROR_ARGUMENT);
    check_contains(mha_context_message(ctx), "layer is NULL");
    check_status(ctx, mha_layer_pack(ctx, layer, 2), MHA_ERROR_ARGUMENT);
    check_contains(mha_context_message(ctx), "originals is 2");
    check_status(ctx, mha_layer_changed(NULL, layer), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_layer_changed(ctx, NULL), MHA_ERROR_ARGUMENT);
    assert_string_equal(mha_layer_engine(NULL), "");
    mha_layer_free(layer);
    subject_free(&s);
}

/* After the exact reserve a packed call allocates nothing; after one byte less, once. */
static void the_workspace_is_exact(void **state)
{
    (void)state;
    struct subject s = { 2, 5, 12, 6, 3, 11, 13, 12, .x = NULL };
    subject_make(&s);
    mha_layer *layer = subject_layer(&s, MHA_COPY);
    check_status(ctx, mha_layer_pack(ctx, layer, MHA_PACK_KEEP), MHA_OK);
    struct mha_inputs inputs = { .query = &s.tx, .residual = &s.tx };
    struct mha_outputs outputs = { .out = &s.ty };
    for (int64_t less = 0; less < 2; less++) {
        struct counting counting;
        counting_init(&counting);
        mha_context *other = context_counting(&counting);
        int64_t bytes = 0;
        check_status(other, mha_forward_workspace(other, layer, &inputs, NULL, &outputs, &bytes),
                     MHA_OK);
        check_status(other, mha_context_reserve(other, bytes - less), MHA_OK);
        int64_t calls = counting.calls;
        check_status(other, mha_forward(other, layer, &inputs, NULL, &outputs), MHA_OK);
        assert_int_equal(counting.calls, calls + less);
        mha_context_free(other);
    }
    mha_layer_free(layer);
    subject_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_road_has_the_canonical_bits),
        cmocka_unit_test(packing_again_takes_new_weights),
        cmocka_unit_test(dropped_originals_are_gone),
        cmocka_unit_test(a_failed_allocation_changes_nothing),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(the_workspace_is_exact),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
