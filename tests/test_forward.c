/* mha_forward on random layers against float64; what must change no bit; and the workspace queries
 * of both roads, which must be exact. */
#include "fixture.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generated_layer.h"
#include "layer_model.h"
#include "reference.h"

/* ---- random layers --------------------------------------------------------------------------- */

/* The outputs beside `out`, contiguous and guarded. */
struct results {
    float *lse, *weights, *weights_mean;
    int64_t lse_count, weights_count, mean_count;
    struct mha_tensor t_lse, t_weights, t_mean;
    struct mha_outputs outputs; /* without `out` */
};

static void results_make(const struct generated_case *c, struct results *r)
{
    int64_t keys = c->S + c->extra;
    r->lse_count = c->B * c->H * c->L;
    r->weights_count = c->B * c->H * c->L * keys;
    r->mean_count = c->B * c->L * keys;
    r->lse = guarded_floats(r->lse_count);
    r->weights = guarded_floats(r->weights_count);
    r->weights_mean = guarded_floats(r->mean_count);
    r->t_lse = mha_tensor_3d(r->lse, MHA_FLOAT32, c->B, c->H, c->L);
    r->t_weights = mha_tensor_4d(r->weights, MHA_FLOAT32, c->B, c->H, c->L, keys);
    r->t_mean = mha_tensor_3d(r->weights_mean, MHA_FLOAT32, c->B, c->L, keys);
    r->outputs = (struct mha_outputs){ .lse = &r->t_lse,
                                       .weights = &r->t_weights,
                                       .weights_mean = &r->t_mean };
}

static void results_free(struct results *r)
{
    guarded_free(r->lse);
    guarded_free(r->weights);
    guarded_free(r->weights_mean);
}

static void same(const struct generated_layer *g, const char *what, const float *got,
                 const float *want, int64_t n)
{
    char text[sizeof g->text + 32];
    snprintf(text, sizeof text, "%s%s", g->text, what);
    check_same_bits(text, got, want, n);
}

static void run(mha_context *with, const mha_layer *layer, const struct generated_layer *g,
                const struct mha_inputs *inputs, const struct mha_outputs *outputs)
{
    mha_status status = mha_forward(with, layer, inputs, &g->options, outputs);
    if (status != MHA_OK)
        fail_msg("%s: %s", g->text, mha_context_message(with));
}

/* The layer of a problem. A copy must not look at the caller's weights any more, so they become
 * NaN; a borrowing layer reads them where they are. */
static mha_layer *make_layer(struct generated_layer *g)
{
    mha_layer *layer = NULL;
    check_status(ctx, mha_layer_create(ctx, &g->shape, &g->weights, g->ownership, &layer), MHA_OK);
    if (g->ownership == MHA_COPY)
        generated_layer_spoil_weights(g);
    return layer;
}

/* Each output alone, on another context whose scratch and outputs held other things before. */
static void check_alone(const mha_layer *layer, struct generated_layer *g, const float *out,
                        const struct results *together)
{
    struct counting counting;
    counting_init(&counting);
    mha_context *other = context_counting(&counting);
    struct mha_tensor like = generated_layer_twin(g, &g->out);
    struct results r;
    results_make(&g->core, &r);
    run(other, layer, g, &g->inputs, &(struct mha_outputs){ .out = &like });
    float *alone = rows_gather(&like);
    same(g, "out alone", alone, out, mha_tensor_count(&like));
    free(alone);

    struct mha_inputs inputs = g->inputs;
    inputs.residual = NULL;
    run(other, layer, g, &inputs, &(struct mha_outputs){ .lse = &r.t_lse });
    run(other, layer, g, &inputs, &(struct mha_outputs){ .weights = &r.t_weights });
    run(other, layer, g, &inputs, &(struct mha_outputs){ .weights_mean = &r.t_mean });
    same(g, "lse alone", r.lse, together->lse, r.lse_count);
    same(g, "weights alone", r.weights, together->weights, r.weights_count);
    same(g, "weights_mean alone", r.weights_mean, together->weights_mean, r.mean_count);
    results_free(&r);
    mha_context_free(other);
    assert_int_equal(counting.live, 0);
}

/* out = residual, which may be the query, key and value as well. */
static void check_in_place(const mha_layer *layer, struct generated_layer *g)
{
    struct mha_tensor beside = generated_layer_twin(g, g->inputs.residual);
    run(ctx, layer, g, &g->inputs, &(struct mha_outputs){ .out = &beside });
    struct mha_tensor on = *g->inputs.residual;
    on.flags = 0;
    float *before = rows_gather(&on);
    run(ctx, layer, g, &g->inputs, &(struct mha_outputs){ .out = &on });
    float *got = rows_gather(&on), *want = rows_gather(&beside);
    same(g, "in place", got, want, mha_tensor_count(&on));
    rows_scatter(&on, before);
    free(before);
    free(got);
    free(want);
}

/* Everything about one engine of the layer. */
static void check_engine(const mha_layer *layer, struct generated_layer *g,
                         const struct mha_weights *weights, const struct reference_result *want)
{
    struct results r;
    results_make(&g->core, &r);
    r.outputs.out = &g->out;
    run(ctx, layer, g, &g->inputs, &r.outputs);
    float *out = rows_gather(&g->out);
    layer_model_check(g->text, &g->shape, weights, &g->inputs, &g->options, want,
                      &(struct float_arrays){ out, r.lse, r.weights, r.weights_mean });

    check_alone(layer, g, out, &r);
    if (g->may_be_in_place)
        check_in_place(layer, g);
    if (g->self) { /* said in full */
        struct mha_inputs inputs = g->inputs;
        inputs.key = inputs.value = &g->query;
        struct mha_tensor like = generated_layer_twin(g, &g->out);
        run(ctx, layer, g, &inputs, &(struct mha_outputs){ .out = &like });
        float *full = rows_gather(&like);
        same(g, "query as key and value", full, out, mha_tensor_count(&like));
        free(full);
    }
    free(out);
    results_free(&r);
}

static void check_random_layer(struct generated_layer *g)
{
    struct reference_result want;
    reference_forward(&g->shape, &g->weights, &g->inputs, &g->options, &want);
    mha_layer *layer = make_layer(g);
    struct mha_weights weights = mha_layer_get_weights(layer);
    check_engine(layer, g, &weights, &want);
    check_status(ctx, mha_layer_pack(ctx, layer, MHA_PACK_KEEP), MHA_OK);
    check_engine(layer, g, &weights, &want);
    mha_layer_free(layer);
    reference_free(&want);
}

static void random_layers(void **state)
{
    (void)state;
    int64_t cases = case_count(500);
    for (int64_t i = 0; i < cases; i++) {
        struct generated_layer g;
        generated_layer_make(&g);
        check_random_layer(&g);
        generated_layer_free(&g);
    }
}

/* ---- a layer is its attention ---------------------------------------------------------------- */

/* Small multiples of 1/8, whose sums of products float32 holds exactly in any order. */
static void fill_eighths(float *data, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        data[i] = (float)(random_below(17) - 8) / 8;
}

/* y = x W^T + b by hand. */
static void project(const float *x, int64_t rows, int64_t K, const float *w, const float *b,
                    int64_t N, float *y)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < N; n++) {
            y[r * N + n] = b[n];
            for (int64_t k = 0; k < K; k++)
                y[r * N + n] += x[r * K + k] * w[n * K + k];
        }
}

static void forward_is_attention_on_projected_rows(void **state)
{
    (void)state;
    enum { B = 2, L = 37, S = 71, E = 11, EK = 13, EV = 17, H = 6, G = 3, D = 7, DV = 5 };
    static float x[B * L * E], y[B * S * EK], z[B * S * EV];
    static float wq[H * D * E], wk[G * D * EK], wv[G * DV * EV], bq[H * D], bk[G * D], bv[G * DV];
    static float q[B * L * H * D], k[B * S * G * D], v[B * S * G * DV], mask[H * L * S];
    static float got[B * L * H * DV], want[B * L * H * DV], got_lse[B * H * L], want_lse[B * H * L];
    fill_eighths(x, COUNT(x));
    fill_eighths(y, COUNT(y));
    fill_eighths(z, COUNT(z));
    fill_eighths(wq, COUNT(wq));
    fill_eighths(wk, COUNT(wk));
    fill_eighths(wv, COUNT(wv));
    fill_eighths(bq, COUNT(bq));
    fill_eighths(bk, COUNT(bk));
    fill_eighths(bv, COUNT(bv));
    random_fill(mask, COUNT(mask));
    project(x, B * L, E, wq, bq, H * D, q);
    project(y, B * S, EK, wk, bk, G * D, k);
    project(z, B * S, EV, wv, bv, G * DV, v);

    struct mha_tensor t[] = {
        mha_tensor_2d_const(wq, MHA_FLOAT32, H * D, E),
        mha_tensor_2d_const(wk, MHA_FLOAT32, G * D, EK),
        mha_tensor_2d_const(wv, MHA_FLOAT32, G * DV, EV),
        mha_tensor_1d_const(bq, MHA_FLOAT32, H * D),
        mha_tensor_1d_const(bk, MHA_FLOAT32, G * D),
        mha_tensor_1d_const(bv, MHA_FLOAT32, G * DV),
        mha_tensor_3d_const(x, MHA_FLOAT32, B, L, E),
        mha_tensor_3d_const(y, MHA_FLOAT32, B, S, EK),
        mha_tensor_3d_const(z, MHA_FLOAT32, B, S, EV),
        mha_tensor_3d(got, MHA_FLOAT32, B, L, H * DV),
        mha_tensor_3d(got_lse, MHA_FLOAT32, B, H, L),
        mha_tensor_4d_const(q, MHA_FLOAT32, B, L, H, D),
        mha_tensor_4d_const(k, MHA_FLOAT32, B, S, G, D),
        mha_tensor_4d_const(v, MHA_FLOAT32, B, S, G, DV),
        mha_tensor_4d(want, MHA_FLOAT32, B, L, H, DV),
        mha_tensor_3d(want_lse, MHA_FLOAT32, B, H, L),
        mha_tensor_4d_const(mask, MHA_FLOAT32, 1, H, L, S),
    };
    struct mha_layer_shape shape = {
        .E = E, .E_key = EK, .E_value = EV, .H = H, .G = G, .D = D, .Dv = DV
    };
    struct mha_weights weights = {
        .w_q = &t[0], .w_k = &t[1], .w_v = &t[2], .b_q = &t[3], .b_k = &t[4], .b_v = &t[5]
    };
    struct mha_options options = {
        .mask_kind = MHA_MASK_ADDITIVE, .mask = &t[16], .causal = 1, .align = MHA_ALIGN_BOTTOM_RIGHT
    };
    struct mha_inputs rows = { .query = &t[6], .key = &t[7], .value = &t[8] };
    struct mha_inputs heads = { .query = &t[11], .key = &t[12], .value = &t[13] };
    struct mha_outputs to = { .out = &t[9], .lse = &t[10] };
    struct mha_outputs wanted = { .out = &t[14], .lse = &t[15] };
    mha_layer *layer = NULL;
    check_status(ctx, mha_layer_create(ctx, &shape, &weights, MHA_BORROW, &layer), MHA_OK);
    check_status(ctx, mha_forward(ctx, layer, &rows, &options, &to), MHA_OK);
    check_status(ctx, mha_attention(ctx, &heads, &options, &wanted), MHA_OK);
    check_same_bits("out", got, want, COUNT(want));
    check_same_bits("lse", got_lse, want_lse, COUNT(want_lse));
    mha_layer_free(layer);
}

/* Six layers, each x = x + mha(x) in place: every step within its model, and the end within the
 * bound for float32 results of six layers that ran in double throughout. */
static void six_layers_stack(void **state)
{
    (void)state;
    enum { DEPTH = 6, B = 2, L = 19, E = 30, H = 5, N = B * L * E };
    static float x[N], before[N];
    static double exact[N];
    struct mha_options options = { .causal = 1 };
    random_fill(x, N);
    for (int i = 0; i < N; i++)
        exact[i] = (double)x[i];
    struct mha_tensor in_place = mha_tensor_3d(x, MHA_FLOAT32, B, L, E);
    struct mha_tensor seen = mha_tensor_3d_const(before, MHA_FLOAT32, B, L, E);
    struct mha_tensor exact_rows = mha_tensor_3d(exact, MHA_FLOAT64, B, L, E);
    struct mha_inputs inputs = { .query = &in_place, .residual = &in_place };
    struct mha_inputs seen_inputs = { .query = &seen, .residual = &seen };
    struct mha_inputs exact_inputs = { .query = &exact_rows, .residual = &exact_rows };
    for (int depth = 0; depth < DEPTH; depth++) {
        static float w[4][E * E], b[4][E];
        struct mha_tensor tw[4], tb[4];
        for (int i = 0; i < 4; i++) {
            random_fill(w[i], E * E);
            for (int e = 0; e < E * E; e++)
                w[i][e] *= 0.3f;
            random_fill(b[i], E);
            tw[i] = mha_tensor_2d_const(w[i], MHA_FLOAT32, E, E);
            tb[i] = mha_tensor_1d_const(b[i], MHA_FLOAT32, E);
        }
        struct mha_layer_shape shape = { .E = E, .H = H };
        struct mha_weights weights = { .w_q = &tw[0],
                                       .w_k = &tw[1],
                                       .w_v = &tw[2],
                                       .w_o = &tw[3],
                                       .b_q = &tb[0],
                                       .b_k = &tb[1],
                                       .b_v = &tb[2],
                                       .b_o = &tb[3] };
        mha_layer *layer = NULL;
        check_status(ctx, mha_layer_create(ctx, &shape, &weights, MHA_BORROW, &layer), MHA_OK);
        memcpy(before, x, sizeof x);
        struct mha_outputs outputs = { .out = &in_place };
        check_status(ctx, mha_forward(ctx, layer, &inputs, &options, &outputs), MHA_OK);
        struct reference_result want;
        reference_forward(&shape, &weights, &seen_inputs, &options, &want);
        layer_model_check("a step: ", &shape, &weights, &seen_inputs, &options, &want,
                          &(struct float_arrays){ .out = x });
        reference_free(&want);
        reference_forward(&shape, &weights, &exact_inputs, &options, &want);
        memcpy(exact, want.out, sizeof exact);
        reference_free(&want);
        mha_layer_free(layer);
    }
    check_close("six layers", x, exact, N, bound_of(exact, N, 0));
}

/* ---- workspace ------------------------------------------------------------------------------- */

/* A call of either road and its query. */
struct road {
    const mha_layer *layer; /* NULL: mha_attention */
    const struct mha_inputs *inputs;
    const struct mha_options *options;
    const char *text;
};

static void call(mha_context *with, const struct road *r, const struct mha_outputs *outputs)
{
    mha_status status = r->layer ? mha_forward(with, r->layer, r->inputs, r->options, outputs)
                                 : mha_attention(with, r->inputs, r->options, outputs);
    if (status != MHA_OK)
        fail_msg("%s: %s", r->text, mha_context_message(with));
}

static int64_t workspace(const struct road *r, const struct mha_inputs *inputs,
                         const struct mha_outputs *outputs)
{
    int64_t bytes = -1;
    mha_status status = r->layer
                            ? mha_forward_workspace(ctx, r->layer, inputs, r->options, outputs,
                                                    &bytes)
                            : mha_attention_workspace(ctx, inputs, r->options, outputs, &bytes);
    if (status != MHA_OK)
        fail_msg("%s: %s", r->text, mha_context_message(ctx));
    return bytes;
}

/* Allocations of two equal calls on a new context with that much reserved. */
static void count_allocations(const struct road *r, const struct mha_outputs *outputs,
                              int64_t reserved, int64_t wanted)
{
    struct counting counting;
    counting_init(&counting);
    mha_context *with = context_counting(&counting);
    check_status(with, mha_context_reserve(with, reserved), MHA_OK);
    int64_t before = counting.calls;
    call(with, r, outputs);
    if (counting.calls - before != wanted)
        fail_msg("%s: %" PRId64 " allocations after reserving %" PRId64 " bytes, wanted %" PRId64,
                 r->text, counting.calls - before, reserved, wanted);
    call(with, r, outputs);
    assert_int_equal(counting.calls - before, wanted);
    mha_context_free(with);
    assert_int_equal(counting.live, 0);
    assert_int_equal(counting.live_bytes, 0);
}

static void check_workspace(const struct road *r, const struct mha_outputs *outputs)
{
    int64_t bytes = workspace(r, r->inputs, outputs);
    if (bytes < 1)
        fail_msg("%s: a workspace of %" PRId64 " bytes", r->text, bytes);
    count_allocations(r, outputs, bytes, 0);
    count_allocations(r, outputs, bytes - 1, 1);

    /* The query needs no data. */
    struct mha_inputs shapes = *r->inputs;
    struct mha_tensor operands[3];
    const struct mha_tensor **const fields[3] = { &shapes.query, &shapes.key, &shapes.value };
    for (int i = 0; i < 3; i++)
        if (*fields[i]) {
            operands[i] = **fields[i];
            operands[i].data = NULL;
            *fields[i] = &operands[i];
        }
    assert_int_equal(workspace(r, &shapes, outputs), bytes);
}

static void workspace_of_attention_is_exact(void **state)
{
    (void)state;
    int64_t cases = case_count(1000);
    for (int64_t i = 0; i < cases; i++) {
        struct generated_case c;
        generated_make(&c);
        float *out = guarded_floats(c.B * c.L * c.H * c.Dv);
        struct mha_tensor t = mha_tensor_4d(out, MHA_FLOAT32, c.B, c.L, c.H, c.Dv);
        struct road r = { NULL, &c.inputs, &c.options, c.text };
        check_workspace(&r, &(struct mha_outputs){ .out = &t });
        guarded_free(out);
        generated_free(&c);
    }
}

static void workspace_of_forward_is_exact(void **state)
{
    (void)state;
    int64_t cases = case_count(300);
    for (int64_t i = 0; i < cases; i++) {
        struct generated_layer g;
        generated_layer_make(&g);
        mha_layer *layer = make_layer(&g);
        struct results results;
        results_make(&g.core, &results);
        results.outputs.out = &g.out;
        struct road r = { layer, &g.inputs, &g.options, g.text };
        check_workspace(&r, &results.outputs);
        results_free(&results);
        mha_layer_free(layer);
        generated_layer_free(&g);
    }
}

/* On one context: a call grows the scratch once, smaller ones and the same again do not, a larger
 * one does once more. */
static void scratch_grows_only_for_larger_calls(void **state)
{
    (void)state;
    enum { E = 12, H = 3, MOST = 40 };
    static float w[E * E], x[MOST * E], y[MOST * E];
    random_fill(w, COUNT(w));
    random_fill(x, COUNT(x));
    struct mha_tensor tw = mha_tensor_2d_const(w, MHA_FLOAT32, E, E);
    struct mha_layer_shape shape = { .E = E, .H = H };
    struct mha_weights weights = { .w_q = &tw, .w_k = &tw, .w_v = &tw, .w_o = &tw };
    struct counting counting;
    counting_init(&counting);
    mha_context *with = context_counting(&counting);
    mha_layer *layer = NULL;
    check_status(with, mha_layer_create(with, &shape, &weights, MHA_COPY, &layer), MHA_OK);
    static const struct {
        int64_t L, allocations;
    } steps[] = { { 20, 1 }, { 20, 0 }, { 19, 0 }, { 1, 0 }, { 0, 0 },
                  { 20, 0 }, { 40, 1 }, { 33, 0 }, { 40, 0 } };
    for (int64_t i = 0; i < COUNT(steps); i++) {
        struct mha_tensor rows = mha_tensor_3d_const(x, MHA_FLOAT32, 1, steps[i].L, E);
        struct mha_tensor to = mha_tensor_3d(y, MHA_FLOAT32, 1, steps[i].L, E);
        struct mha_inputs inputs = { .query = &rows };
        struct mha_outputs outputs = { .out = &to };
        int64_t before = counting.calls, live = counting.live;
        check_status(with, mha_forward(with, layer, &inputs, NULL, &outputs), MHA_OK);
        assert_int_equal(counting.calls - before, steps[i].allocations);
        /* The old scratch is given back. */
        assert_int_equal(counting.live, i == 0 ? live + 1 : live);
    }
    mha_layer_free(layer);
    mha_context_free(with);
    assert_int_equal(counting.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_layers),
        cmocka_unit_test(forward_is_attention_on_projected_rows),
        cmocka_unit_test(six_layers_stack),
        cmocka_unit_test(workspace_of_attention_is_exact),
        cmocka_unit_test(workspace_of_forward_is_exact),
        cmocka_unit_test(scratch_grows_only_for_larger_calls),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
