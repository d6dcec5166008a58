/* Layers: how sizes resolve, what is refused and in which words, copies and borrowed weights, and
 * the published cases of head layout (kind 5) and weight orientation (kind 14). */
#include "fixture.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "reference.h"

/* ---- a layer's weights ----------------------------------------------------------------------- */

enum { W_Q, W_K, W_V, W_O, B_Q, B_K, B_V, B_O, BIAS_K, BIAS_V, WEIGHTS };

static const char *const names[WEIGHTS] = { "w_q", "w_k", "w_v", "w_o",    "b_q",
                                            "b_k", "b_v", "b_o", "bias_k", "bias_v" };

/* All ten weights of a shape without zeros, random, each at the end of readable memory, rows
 * `padding` elements apart. */
struct set {
    struct mha_layer_shape shape;
    struct mha_weights weights;
    struct mha_tensor t[WEIGHTS];
    float *memory[WEIGHTS];
    int64_t count[WEIGHTS];
};

static void point(struct set *s, int which, bool given)
{
    const struct mha_tensor **const fields[WEIGHTS] = {
        &s->weights.w_q, &s->weights.w_k, &s->weights.w_v, &s->weights.w_o,    &s->weights.b_q,
        &s->weights.b_k, &s->weights.b_v, &s->weights.b_o, &s->weights.bias_k, &s->weights.bias_v,
    };
    *fields[which] = given ? &s->t[which] : NULL;
}

static const struct mha_tensor *given(const struct mha_weights *w, int which)
{
    const struct mha_tensor *const fields[WEIGHTS] = {
        w->w_q, w->w_k, w->w_v, w->w_o, w->b_q, w->b_k, w->b_v, w->b_o, w->bias_k, w->bias_v
    };
    return fields[which];
}

static void set_make(struct set *s, const struct mha_layer_shape *shape, int64_t padding)
{
    const struct mha_layer_shape *r = shape;
    const int64_t sizes[WEIGHTS][2] = {
        { r->H * r->D, r->E },
        { r->G * r->D, r->E_key },
        { r->G * r->Dv, r->E_value },
        { r->E_out, r->H * r->Dv },
        { r->H * r->D, 0 },
        { r->G * r->D, 0 },
        { r->G * r->Dv, 0 },
        { r->E_out, 0 },
        { r->G, r->D },
        { r->G, r->Dv },
    };
    *s = (struct set){ .shape = *shape };
    for (int i = 0; i < WEIGHTS; i++) {
        int64_t rows = sizes[i][0], columns = sizes[i][1], stride = columns + padding;
        s->count[i] = columns ? (rows - 1) * stride + columns : rows;
        s->memory[i] = guarded_floats(s->count[i]);
        s->t[i] = columns ? mha_tensor_2d_const(s->memory[i], MHA_FLOAT32, rows, columns)
                          : mha_tensor_1d_const(s->memory[i], MHA_FLOAT32, rows);
        if (columns)
            s->t[i].strides[0] = stride;
        point(s, i, true);
    }
}

static void set_free(struct set *s)
{
    for (int i = 0; i < WEIGHTS; i++)
        guarded_free(s->memory[i]);
}

/* Every size another, none of them derived. */
static const struct mha_layer_shape odd = {
    .E = 7, .E_key = 11, .E_value = 13, .E_out = 17, .H = 6, .G = 3, .D = 5, .Dv = 2
};

/* Not made: nothing allocated, no layer, that message. */
static void refused(const struct mha_layer_shape *shape, const struct mha_weights *weights,
                    int32_t ownership, mha_status want, const char *text)
{
    int64_t calls = counter.calls;
    mha_layer *layer = (mha_layer *)&calls;
    check_status(ctx, mha_layer_create(ctx, shape, weights, ownership, &layer), want);
    assert_null(layer);
    assert_int_equal(counter.calls, calls);
    check_contains(mha_context_message(ctx), "mha_layer_create: ");
    check_contains(mha_context_message(ctx), text);
}

static mha_layer *made(const struct mha_layer_shape *shape, const struct mha_weights *weights,
                       int32_t ownership)
{
    int64_t calls = counter.calls;
    mha_layer *layer = NULL;
    check_status(ctx, mha_layer_create(ctx, shape, weights, ownership, &layer), MHA_OK);
    assert_non_null(layer);
    assert_int_equal(counter.calls, calls + (ownership == MHA_COPY ? 2 : 1));
    return layer;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static void check_sizes(const struct mha_layer_shape *got, const struct mha_layer_shape *want)
{
    assert_int_equal(got->size, sizeof *got);
    assert_int_equal(got->E, want->E);
    assert_int_equal(got->E_key, want->E_key);
    assert_int_equal(got->E_value, want->E_value);
    assert_int_equal(got->E_out, want->E_out);
    assert_int_equal(got->H, want->H);
    assert_int_equal(got->G, want->G);
    assert_int_equal(got->D, want->D);
    assert_int_equal(got->Dv, want->Dv);
    assert_int_equal(got->zero_attention, want->zero_attention);
    assert_int_equal(got->reserved, 0);
}

static void shapes_resolve(void **state)
{
    (void)state;
    const struct {
        bool has_w_o;
        struct mha_layer_shape given, resolved;
    } cases[] = {
        { true,
          { .E = 12, .H = 3 },
          { .E = 12, .E_key = 12, .E_value = 12, .E_out = 12, .H = 3, .G = 3, .D = 4, .Dv = 4 } },
        { false,
          { .E = 12, .H = 3 },
          { .E = 12, .E_key = 12, .E_value = 12, .E_out = 12, .H = 3, .G = 3, .D = 4, .Dv = 4 } },
        { true,
          { .E = 12, .H = 4, .G = 2, .E_key = 5 },
          { .E = 12, .E_key = 5, .E_value = 5, .E_out = 12, .H = 4, .G = 2, .D = 3, .Dv = 3 } },
        { true,
          { .E = 12, .H = 4, .E_value = 5 },
          { .E = 12, .E_key = 12, .E_value = 5, .E_out = 12, .H = 4, .G = 4, .D = 3, .Dv = 3 } },
        { true,
          { .E = 7, .H = 3, .D = 5 }, /* E / H is not asked for, so it need not be whole */
          { .E = 7, .E_key = 7, .E_value = 7, .E_out = 7, .H = 3, .G = 3, .D = 5, .Dv = 5 } },
        { true,
          { .E = 7, .H = 3, .D = 5, .Dv = 2, .E_out = 9, .zero_attention = 1 },
          { .E = 7,
            .E_key = 7,
            .E_value = 7,
            .E_out = 9,
            .H = 3,
            .G = 3,
            .D = 5,
            .Dv = 2,
            .zero_attention = 1 } },
        { false,
          { .E = 7, .H = 3, .D = 5, .Dv = 2 }, /* the concat is the output */
          { .E = 7, .E_key = 7, .E_value = 7, .E_out = 6, .H = 3, .G = 3, .D = 5, .Dv = 2 } },
        { false,
          { .E = 7, .H = 3, .D = 5, .Dv = 2, .E_out = 6 },
          { .E = 7, .E_key = 7, .E_value = 7, .E_out = 6, .H = 3, .G = 3, .D = 5, .Dv = 2 } },
        { true, odd, odd },
    };
    for (int64_t i = 0; i < COUNT(cases); i++) {
        struct set s;
        set_make(&s, &cases[i].resolved, 0);
        if (!cases[i].has_w_o) {
            point(&s, W_O, false);
            point(&s, B_O, false);
        }
        mha_layer *layer = made(&cases[i].given, &s.weights, MHA_BORROW);
        struct mha_layer_shape shape = mha_layer_get_shape(layer);
        check_sizes(&shape, &cases[i].resolved);
        mha_layer_free(layer);
        set_free(&s);
    }
    struct mha_layer_shape none = mha_layer_get_shape(NULL);
    check_sizes(&none, &(struct mha_layer_shape){ 0 });
}

static void shape_refusals(void **state)
{
    (void)state;
    const struct {
        struct mha_layer_shape shape;
        mha_status status;
        const char *text;
    } cases[] = {
        { { .H = 2 }, MHA_ERROR_ARGUMENT, "shape.E is 0, wanted at least 1" },
        { { .E = -1, .H = 2 }, MHA_ERROR_ARGUMENT, "shape.E is -1, " },
        { { .E = 8 }, MHA_ERROR_ARGUMENT, "shape.H is 0, wanted at least 1" },
        { { .E = 8, .H = -2 }, MHA_ERROR_ARGUMENT, "shape.H is -2, " },
        { { .E = 8, .H = 2, .E_key = -3 }, MHA_ERROR_ARGUMENT, "shape.E_key is -3, " },
        { { .E = 8, .H = 2, .E_value = -4 }, MHA_ERROR_ARGUMENT, "shape.E_value is -4, " },
        { { .E = 8, .H = 2, .E_out = -5 }, MHA_ERROR_ARGUMENT, "shape.E_out is -5, " },
        { { .E = 8, .H = 2, .G = -6 }, MHA_ERROR_ARGUMENT, "shape.G is -6, " },
        { { .E = 8, .H = 2, .D = -7 }, MHA_ERROR_ARGUMENT, "shape.D is -7, " },
        { { .E = 8, .H = 2, .Dv = -8 }, MHA_ERROR_ARGUMENT, "shape.Dv is -8, " },
        { { .E = INT64_MIN, .H = 2 }, MHA_ERROR_ARGUMENT, "shape.E is -9223372036854775808, " },
        { { .E = 8, .H = INT64_MIN }, MHA_ERROR_ARGUMENT, "shape.H is -9223372036854775808, " },
        { { .E = 8, .H = 4, .G = 3 }, MHA_ERROR_ARGUMENT, "shape.H is 4 and G 3, wanted" },
        { { .E = 8, .H = 2, .G = 4 }, MHA_ERROR_ARGUMENT, "shape.H is 2 and G 4, wanted" },
        { { .E = 2, .H = 4 }, MHA_ERROR_ARGUMENT, "E = 2 is no multiple of H = 4" },
        { { .E = 8, .H = 2, .zero_attention = 2 },
          MHA_ERROR_ARGUMENT,
          "shape.zero_attention is 2, wanted 0 or 1" },
        { { .E = 8, .H = 2, .zero_attention = -1 },
          MHA_ERROR_ARGUMENT,
          "shape.zero_attention is -1, " },
        { { .E = 8, .H = 2, .reserved = 1 }, MHA_ERROR_ARGUMENT, "shape.reserved is 1, wanted 0" },
        { { .E = (int64_t)1 << 31, .H = 2 },
          MHA_ERROR_OVERFLOW,
          "shape.E is 2147483648, more than" },
        { { .E = INT64_MAX, .H = 1 }, MHA_ERROR_OVERFLOW, "shape.E is 9223372036854775807, " },
        { { .E = 8, .H = INT64_MAX, .D = 1 },
          MHA_ERROR_OVERFLOW,
          "shape.H is 9223372036854775807" },
        { { .E = 8, .H = 2, .E_key = INT64_MAX }, MHA_ERROR_OVERFLOW, "shape.E_key is 9223372036" },
        { { .E = 8, .H = 2, .E_value = INT64_MAX }, MHA_ERROR_OVERFLOW, "shape.E_value is 92233" },
        { { .E = 8, .H = 2, .E_out = INT64_MAX }, MHA_ERROR_OVERFLOW, "shape.E_out is 922337203" },
        { { .E = 8, .H = 2, .G = INT64_MAX }, MHA_ERROR_OVERFLOW, "shape.G is 922337203685477580" },
        { { .E = 8, .H = 2, .D = INT64_MAX }, MHA_ERROR_OVERFLOW, "shape.D is 922337203685477580" },
        { { .E = 8, .H = 2, .Dv = INT64_MAX }, MHA_ERROR_OVERFLOW, "shape.Dv is 9223372036854775" },
        /* Each fits a BLAS integer, their product does not. */
        { { .E = 8, .H = 1 << 16, .D = 1 << 15 }, MHA_ERROR_OVERFLOW, "shape.H * D is 2147483648" },
        { { .E = 8, .H = INT_MAX, .D = INT_MAX }, MHA_ERROR_OVERFLOW, "shape.H * D is 46116860" },
        { { .E = 8, .H = 1 << 16, .D = 1, .Dv = 1 << 15 },
          MHA_ERROR_OVERFLOW,
          "shape.H * Dv is 2147483648" },
    };
    struct set s;
    set_make(&s, &odd, 0);
    for (int64_t i = 0; i < COUNT(cases); i++)
        for (int32_t ownership = MHA_COPY; ownership <= MHA_BORROW; ownership++)
            refused(&cases[i].shape, &s.weights, ownership, cases[i].status, cases[i].text);
    point(&s, W_O, false);
    refused(&odd, &s.weights, MHA_COPY, MHA_ERROR_SHAPE,
            "shape.E_out is 17, but without w_o the output is the concat of width H*Dv = 12");
    set_free(&s);
}

static void argument_refusals(void **state)
{
    (void)state;
    struct set s;
    set_make(&s, &odd, 0);
    refused(NULL, &s.weights, MHA_COPY, MHA_ERROR_ARGUMENT, "shape is NULL");
    refused(&odd, NULL, MHA_COPY, MHA_ERROR_ARGUMENT, "weights is NULL");
    const int32_t unknown[] = { 2, -1, INT32_MAX, INT32_MIN };
    for (int64_t i = 0; i < COUNT(unknown); i++)
        refused(&odd, &s.weights, unknown[i], MHA_ERROR_ARGUMENT, "ownership is ");
    check_status(ctx, mha_layer_create(ctx, &odd, &s.weights, MHA_COPY, NULL), MHA_ERROR_ARGUMENT);
    check_contains(mha_context_message(ctx), "mha_layer_create: layer is NULL");
    mha_layer *layer = (mha_layer *)&s;
    assert_int_equal(mha_layer_create(NULL, &odd, &s.weights, MHA_COPY, &layer),
                     MHA_ERROR_ARGUMENT);
    assert_null(layer);
    mha_layer_free(NULL);

    struct {
        struct mha_layer_shape known;
        int64_t tail;
    } shape = { odd, 0 };
    struct {
        struct mha_weights known;
        int64_t tail;
    } weights = { s.weights, 0 };
    shape.known.size = sizeof shape;
    weights.known.size = sizeof weights;
    mha_layer_free(made(&shape.known, &weights.known, MHA_COPY));
    shape.tail = 1;
    refused(&shape.known, &weights.known, MHA_COPY, MHA_ERROR_UNSUPPORTED, "shape has a field at");
    shape.tail = 0;
    weights.tail = 1;
    refused(&shape.known, &weights.known, MHA_COPY, MHA_ERROR_UNSUPPORTED,
            "weights has a field at");
    weights.known.size = 8;
    refused(&shape.known, &weights.known, MHA_COPY, MHA_ERROR_ARGUMENT,
            "weights.size is 8, wanted");
    shape.known.size = -1;
    refused(&shape.known, &weights.known, MHA_COPY, MHA_ERROR_ARGUMENT, "shape.size is -1, wanted");
    set_free(&s);
}

/* ---- weights --------------------------------------------------------------------------------- */

/* One weight in turn has another shape, type, layout, or no memory: it is named. */
static void weight_refusals(void **state)
{
    (void)state;
    const char *const wanted[WEIGHTS] = {
        "wanted [H*D, E] = [30, 7]",
        "wanted [G*D, E_key] = [15, 11]",
        "wanted [G*Dv, E_value] = [6, 13]",
        "wanted [E_out, H*Dv] = [17, 12]",
        "wanted [H*D] = [30]",
        "wanted [G*D] = [15]",
        "wanted [G*Dv] = [6]",
        "wanted [E_out] = [17]",
        "wanted [G, D] = [3, 5]",
        "wanted [G, Dv] = [3, 2]",
    };
    struct set s;
    set_make(&s, &odd, 0);
    for (int i = 0; i < WEIGHTS; i++) {
        const struct mha_tensor good = s.t[i];
        char text[64];
        for (int32_t axis = 0; axis < good.rank; axis++)
            for (int64_t step = -1; step <= 1; step += 2) {
                s.t[i].shape[axis] += step;
                snprintf(text, sizeof text, "%s has the shape [", names[i]);
                refused(&odd, &s.weights, MHA_COPY, MHA_ERROR_SHAPE, text);
                check_contains(mha_context_message(ctx), wanted[i]);
                s.t[i] = good;
            }
        s.t[i].rank++;
        s.t[i].shape[good.rank] = s.t[i].strides[good.rank] = 1;
        s.t[i].strides[good.rank - 1] = 1;
        refused(&odd, &s.weights, MHA_COPY, MHA_ERROR_SHAPE, wanted[i]);
        s.t[i] = good;
        s.t[i].type = MHA_FLOAT64;
        snprintf(text, sizeof text, "%s is float64, wanted float32", names[i]);
        refused(&odd, &s.weights, MHA_COPY, MHA_ERROR_TYPE, text);
        s.t[i] = good;
        s.t[i].data = NULL;
        snprintf(text, sizeof text, "%s of shape [", names[i]);
        refused(&odd, &s.weights, MHA_BORROW, MHA_ERROR_ARGUMENT, text);
        check_contains(mha_context_message(ctx), "has no data (NULL)");
        s.t[i] = good;
        s.t[i].strides[good.rank - 1] = 2;
        snprintf(text, sizeof text, "%s has the stride 2 on its last axis, wanted 1", names[i]);
        refused(&odd, &s.weights, MHA_COPY, MHA_ERROR_LAYOUT, text);
        s.t[i] = good;
        if (good.rank == 2) {
            s.t[i].strides[0] = good.shape[1] - 1;
            snprintf(text, sizeof text, "%s has the row stride %d, wanted at least the %d of a row",
                     names[i], (int)good.shape[1] - 1, (int)good.shape[1]);
            refused(&odd, &s.weights, MHA_BORROW, MHA_ERROR_LAYOUT, text);
            s.t[i].strides[0] = (int64_t)1 << 31;
            snprintf(text, sizeof text, "%s has the row stride 2147483648, more than", names[i]);
            refused(&odd, &s.weights, MHA_BORROW, MHA_ERROR_OVERFLOW, text);
            s.t[i] = good;
        }
    }
    set_free(&s);
}

static void missing_weights(void **state)
{
    (void)state;
    struct set s;
    set_make(&s, &odd, 0);
    const char *const needed[] = { "weights.w_q is NULL", "weights.w_k is NULL",
                                   "weights.w_v is NULL" };
    for (int i = W_Q; i <= W_V; i++) {
        point(&s, i, false);
        refused(&odd, &s.weights, MHA_COPY, MHA_ERROR_ARGUMENT, needed[i]);
        point(&s, i, true);
    }
    point(&s, BIAS_K, false);
    refused(&odd, &s.weights, MHA_COPY, MHA_ERROR_ARGUMENT,
            "weights.bias_v is given without bias_k");
    point(&s, BIAS_K, true);
    point(&s, BIAS_V, false);
    refused(&odd, &s.weights, MHA_COPY, MHA_ERROR_ARGUMENT,
            "weights.bias_k is given without bias_v");
    point(&s, BIAS_V, true);
    struct mha_layer_shape shape = odd;
    shape.E_out = 0;
    s.t[B_O] = mha_tensor_1d_const(s.memory[B_O], MHA_FLOAT32, 12);
    point(&s, W_O, false);
    refused(&shape, &s.weights, MHA_COPY, MHA_ERROR_ARGUMENT, "weights.b_o is given without w_o");
    set_free(&s);

    /* Every subset of those that may be missing is a layer, and gives back what it was given. */
    for (int subset = 0; subset < 1 << 6; subset++) {
        set_make(&s, &odd, 0);
        bool has_w_o = subset & 1, has_pair = subset & 2;
        point(&s, W_O, has_w_o);
        point(&s, B_O, has_w_o && (subset & 4));
        point(&s, BIAS_K, has_pair);
        point(&s, BIAS_V, has_pair);
        point(&s, B_Q, subset & 8);
        point(&s, B_K, subset & 16);
        point(&s, B_V, subset & 32);
        shape.E_out = has_w_o ? odd.E_out : 0;
        mha_layer *layer = made(&shape, &s.weights, subset % 3 ? MHA_COPY : MHA_BORROW);
        struct mha_weights got = mha_layer_get_weights(layer);
        assert_int_equal(got.size, sizeof got);
        for (int i = 0; i < WEIGHTS; i++)
            assert_int_equal(given(&got, i) != NULL, given(&s.weights, i) != NULL);
        mha_layer_free(layer);
        set_free(&s);
    }
    struct mha_weights none = mha_layer_get_weights(NULL);
    for (int i = 0; i < WEIGHTS; i++)
        assert_null(given(&none, i));
}

/* ---- running --------------------------------------------------------------------------------- */

/* A forward pass with self made rows; `out` has room for B * L * width. */
enum { B = 2, L = 3, S = 5 };

struct pass {
    float *query, *key, *value;
    struct mha_tensor t_query, t_key, t_value;
    struct mha_inputs inputs;
};

static void pass_make(struct pass *p)
{
    p->query = guarded_floats(B * L * odd.E);
    p->key = guarded_floats(B * S * odd.E_key);
    p->value = guarded_floats(B * S * odd.E_value);
    p->t_query = mha_tensor_3d_const(p->query, MHA_FLOAT32, B, L, odd.E);
    p->t_key = mha_tensor_3d_const(p->key, MHA_FLOAT32, B, S, odd.E_key);
    p->t_value = mha_tensor_3d_const(p->value, MHA_FLOAT32, B, S, odd.E_value);
    p->inputs = (struct mha_inputs){ .query = &p->t_query, .key = &p->t_key, .value = &p->t_value };
}

static void pass_free(struct pass *p)
{
    guarded_free(p->query);
    guarded_free(p->key);
    guarded_free(p->value);
}

static void run(mha_context *c, const mha_layer *layer, const struct pass *p, float *out)
{
    struct mha_layer_shape shape = mha_layer_get_shape(layer);
    struct mha_tensor t = mha_tensor_3d(out, MHA_FLOAT32, B, L, shape.E_out);
    check_status(c, mha_forward(c, layer, &p->inputs, NULL, &(struct mha_outputs){ .out = &t }),
                 MHA_OK);
}

static void check_against_reference(const struct set *s, const struct pass *p, const float *out)
{
    struct reference_result want;
    reference_forward(&s->shape, &s->weights, &p->inputs, NULL, &want);
    check_close("out", out, want.out, want.out_count, bound_of(want.out, want.out_count, 0));
    reference_free(&want);
}

/* Copied or borrowed, rows together or apart: the same numbers, and those of the formula. */
static void copied_and_borrowed(void **state)
{
    (void)state;
    for (int64_t padding = 0; padding <= 3; padding += 3) {
        struct set s;
        struct pass p;
        float copied[B * L * 17], borrowed[B * L * 17], again[B * L * 17];
        set_make(&s, &odd, padding);
        pass_make(&p);
        mha_layer *copy = made(&odd, &s.weights, MHA_COPY);
        mha_layer *borrow = made(&odd, &s.weights, MHA_BORROW);
        run(ctx, copy, &p, copied);
        run(ctx, borrow, &p, borrowed);
        check_against_reference(&s, &p, copied);
        check_same_bits("borrowed", borrowed, copied, COUNT(copied));

        struct mha_weights lent = mha_layer_get_weights(borrow);
        struct mha_weights own = mha_layer_get_weights(copy);
        for (int i = 0; i < WEIGHTS; i++) {
            const struct mha_tensor *a = given(&lent, i), *b = given(&own, i);
            assert_memory_equal(a, &s.t[i], sizeof *a);
            assert_int_equal(b->flags, 0);
            assert_int_equal(b->rank, s.t[i].rank);
            assert_memory_equal(b->shape, s.t[i].shape, (size_t)b->rank * sizeof *b->shape);
            int64_t rows = b->rank == 2 ? b->shape[0] : 1, columns = b->shape[b->rank - 1];
            for (int64_t row = 0; row < rows; row++)
                assert_memory_equal((float *)b->data + row * b->strides[0] * (b->rank - 1),
                                    s.memory[i] + row * (columns + padding),
                                    (size_t)columns * sizeof(float));
        }

        /* The caller's memory belongs to the borrower only; the copy may be written through. */
        for (int i = 0; i < WEIGHTS; i++)
            random_fill(s.memory[i], s.count[i]);
        run(ctx, copy, &p, again);
        check_same_bits("copy, caller's memory changed", again, copied, COUNT(copied));
        run(ctx, borrow, &p, borrowed);
        check_against_reference(&s, &p, borrowed);
        for (int i = 0; i < WEIGHTS; i++) {
            const struct mha_tensor *to = given(&own, i);
            int64_t rows = to->rank == 2 ? to->shape[0] : 1, columns = to->shape[to->rank - 1];
            for (int64_t row = 0; row < rows; row++)
                memcpy((float *)to->data + row * columns, s.memory[i] + row * (columns + padding),
                       (size_t)columns * sizeof(float));
        }
        run(ctx, copy, &p, again);
        check_same_bits("copy, written through", again, borrowed, COUNT(again));
        mha_layer_free(copy);
        mha_layer_free(borrow);
        pass_free(&p);
        set_free(&s);
    }
}

/* A layer lives on after its context, with that context's allocator; any other may use it. */
static void outlives_its_context(void **state)
{
    (void)state;
    struct set s;
    struct pass p;
    struct counting other;
    float out[B * L * 17];
    set_make(&s, &odd, 1);
    pass_make(&p);
    counting_init(&other);
    mha_context *short_lived = context_counting(&other);
    mha_layer *layer = NULL;
    check_status(short_lived, mha_layer_create(short_lived, &odd, &s.weights, MHA_COPY, &layer),
                 MHA_OK);
    mha_context_free(short_lived);
    assert_int_equal(other.live, 2);
    run(ctx, layer, &p, out);
    check_against_reference(&s, &p, out);
    errno = EXDEV;
    mha_layer_free(layer);
    assert_int_equal(errno, EXDEV);
    assert_int_equal(other.live, 0);
    assert_int_equal(other.live_bytes, 0);
    pass_free(&p);
    set_free(&s);
}

static void no_memory(void **state)
{
    (void)state;
    struct set s;
    set_make(&s, &odd, 0);
    for (int32_t ownership = MHA_COPY; ownership <= MHA_BORROW; ownership++) {
        int64_t live = counter.live;
        mha_layer *layer = (mha_layer *)&s;
        counter.fail_at = counter.calls + 1;
        check_status(ctx, mha_layer_create(ctx, &odd, &s.weights, ownership, &layer),
                     MHA_ERROR_MEMORY);
        counter.fail_at = 0;
        assert_null(layer);
        assert_int_equal(counter.live, live);
        check_contains(mha_context_message(ctx), "mha_layer_create: no memory for the layer");
    }
    set_free(&s);
}

/* ---- published cases ------------------------------------------------------------------------- */

/* A width that heads do not divide: both numbers are named, and nothing is cut off. */
static void kind_5_case_29_width_is_no_multiple_of_heads(void **state)
{
    (void)state;
    struct set s;
    struct mha_layer_shape shape = {
        .E = 10, .E_key = 10, .E_value = 10, .E_out = 10, .H = 2, .G = 2, .D = 5, .Dv = 5
    };
    set_make(&s, &shape, 0);
    shape = (struct mha_layer_shape){ .E = 10, .H = 3 };
    refused(&shape, &s.weights, MHA_COPY, MHA_ERROR_ARGUMENT, "E = 10 is no multiple of H = 3");
    shape.H = 2;
    mha_layer *layer = made(&shape, &s.weights, MHA_COPY);
    assert_int_equal(mha_layer_get_shape(layer).D, 5);
    mha_layer_free(layer);
    set_free(&s);
}

/* E = 6, two heads of width 4: all ones give v = 6 in each of 8 places and 48 in each of 6. */
static void kind_5_case_30_head_width_of_its_own(void **state)
{
    (void)state;
    float ones[48], x[6], y[6];
    for (int i = 0; i < 48; i++)
        ones[i] = 1;
    for (int i = 0; i < 6; i++)
        x[i] = 1;
    const struct mha_tensor in = mha_tensor_2d_const(ones, MHA_FLOAT32, 8, 6);
    const struct mha_tensor back = mha_tensor_2d_const(ones, MHA_FLOAT32, 6, 8);
    const struct mha_weights weights = { .w_q = &in, .w_k = &in, .w_v = &in, .w_o = &back };
    const struct mha_weights wrong = { .w_q = &in, .w_k = &in, .w_v = &in, .w_o = &in };
    struct mha_layer_shape shape = { .E = 6, .H = 2, .D = 4 };
    refused(&shape, &wrong, MHA_COPY, MHA_ERROR_SHAPE,
            "w_o has the shape [8, 6], wanted [E_out, H*Dv] = [6, 8]");
    mha_layer *layer = made(&shape, &weights, MHA_COPY);
    const struct mha_tensor tx = mha_tensor_3d_const(x, MHA_FLOAT32, 1, 1, 6);
    const struct mha_tensor ty = mha_tensor_3d(y, MHA_FLOAT32, 1, 1, 6);
    check_status(ctx,
                 mha_forward(ctx, layer, &(struct mha_inputs){ .query = &tx }, NULL,
                             &(struct mha_outputs){ .out = &ty }),
                 MHA_OK);
    for (int i = 0; i < 6; i++)
        assert_true(y[i] == 48);
    mha_layer_free(layer);
    /* The width that E / H would give is not taken: a weight decides against the shape. */
    shape.D = 0;
    refused(&shape, &weights, MHA_COPY, MHA_ERROR_SHAPE,
            "w_q has the shape [8, 6], wanted [H*D, E] = [6, 6]");
}

/* y = x W^T with W = [[1, 2], [3, 4]]: [1, 1] becomes [3, 7], on the way in and on the way out. */
static void kind_14_case_96_weights_are_out_in(void **state)
{
    (void)state;
    const float w[] = { 1, 2, 3, 4 }, unit[] = { 1, 0, 0, 1 }, x[] = { 1, 1 };
    const struct mha_tensor tw = mha_tensor_2d_const(w, MHA_FLOAT32, 2, 2);
    const struct mha_tensor ti = mha_tensor_2d_const(unit, MHA_FLOAT32, 2, 2);
    const struct mha_tensor tx = mha_tensor_3d_const(x, MHA_FLOAT32, 1, 1, 2);
    const struct mha_layer_shape shape = { .E = 2, .H = 1 };
    const struct mha_weights both[] = { { .w_q = &ti, .w_k = &ti, .w_v = &tw, .w_o = &ti },
                                        { .w_q = &ti, .w_k = &ti, .w_v = &ti, .w_o = &tw } };
    for (int64_t i = 0; i < COUNT(both); i++) {
        float y[2];
        const struct mha_tensor ty = mha_tensor_3d(y, MHA_FLOAT32, 1, 1, 2);
        mha_layer *layer = made(&shape, &both[i], MHA_COPY);
        check_status(ctx,
                     mha_forward(ctx, layer, &(struct mha_inputs){ .query = &tx }, NULL,
                                 &(struct mha_outputs){ .out = &ty }),
                     MHA_OK);
        assert_true(y[0] == 3 && y[1] == 7);
        mha_layer_free(layer);
    }
    /* The same of queries and keys, seen through the scores: with one more key of zeros,
     * lse = ln(e^(q.k/8) + 1), and q.k = 3 + 7 whichever of the two W meets. */
    const struct mha_weights scores[] = { { .w_q = &tw, .w_k = &ti, .w_v = &ti },
                                          { .w_q = &ti, .w_k = &tw, .w_v = &ti } };
    for (int64_t i = 0; i < COUNT(scores); i++) {
        float lse;
        const double want = log(exp(10.0 * 0.125) + 1);
        const struct mha_tensor tl = mha_tensor_3d(&lse, MHA_FLOAT32, 1, 1, 1);
        const struct mha_options options = { .scale_mode = MHA_SCALE_VALUE,
                                             .scale = 0.125f,
                                             .zero_attention = 1 };
        const float skew[] = { 1, 3 };
        const struct mha_tensor ts = mha_tensor_3d_const(skew, MHA_FLOAT32, 1, 1, 2);
        mha_layer *layer = made(&shape, &scores[i], MHA_COPY);
        check_status(ctx,
                     mha_forward(ctx, layer, &(struct mha_inputs){ .query = &tx }, &options,
                                 &(struct mha_outputs){ .lse = &tl }),
                     MHA_OK);
        check_close("lse", &lse, &want, 1, bound_of(&want, 1, 0));
        /* Query [1, 3], key [1, 1]: W turns the query into [7, 15], so q.k = 22; or the key into
         * [3, 7], so q.k = 24. With W the other way round it is 24 and 22. */
        const double other = log(exp((i == 0 ? 22.0 : 24.0) * 0.125) + 1);
        check_status(ctx,
                     mha_forward(ctx, layer,
                                 &(struct mha_inputs){ .query = &ts, .key = &tx, .value = &tx },
                                 &options, &(struct mha_outputs){ .lse = &tl }),
                     MHA_OK);
        check_close("lse", &lse, &other, 1, bound_of(&other, 1, 0));
        mha_layer_free(layer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_resolve),
        cmocka_unit_test(shape_refusals),
        cmocka_unit_test(argument_refusals),
        cmocka_unit_test(weight_refusals),
        cmocka_unit_test(missing_weights),
        cmocka_unit_test(copied_and_borrowed),
        cmocka_unit_test(outlives_its_context),
        cmocka_unit_test(no_memory),
        cmocka_unit_test(kind_5_case_29_width_is_no_multiple_of_heads),
        cmocka_unit_test(kind_5_case_30_head_width_of_its_own),
        cmocka_unit_test(kind_14_case_96_weights_are_out_in),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
