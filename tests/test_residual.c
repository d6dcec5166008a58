/* The residual: layers that stack because W_O leads back to the width of their input, layers that
 * do not and are told so, and the sum by itself. */
#include "fixture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "reference.h"

/* ---- layers with random weights -------------------------------------------------------------- */

struct weighted {
    struct mha_layer_shape shape;
    struct mha_weights weights;
    struct mha_tensor w_q, w_k, w_v, w_o, b_o;
    float *memory[5];
    mha_layer *layer;
};

static struct mha_tensor matrix(float **memory, int64_t rows, int64_t columns)
{
    *memory = guarded_floats(rows * columns);
    /* Rows of about unit gain, so that layers may follow each other. */
    for (int64_t i = 0; i < rows * columns; i++)
        (*memory)[i] /= sqrtf((float)columns);
    return mha_tensor_2d_const(*memory, MHA_FLOAT32, rows, columns);
}

/* Self attention over rows of width E; E_out 0: no W_O. */
static void weighted_make(struct weighted *w, int64_t E, int64_t H, int64_t D, int64_t Dv,
                          int64_t E_out)
{
    *w = (struct weighted){ .shape = { .E = E, .H = H, .D = D, .Dv = Dv, .E_out = E_out } };
    w->w_q = matrix(&w->memory[0], H * D, E);
    w->w_k = matrix(&w->memory[1], H * D, E);
    w->w_v = matrix(&w->memory[2], H * Dv, E);
    w->weights = (struct mha_weights){ .w_q = &w->w_q, .w_k = &w->w_k, .w_v = &w->w_v };
    if (E_out) {
        w->w_o = matrix(&w->memory[3], E_out, H * Dv);
        w->memory[4] = guarded_floats(E_out);
        w->b_o = mha_tensor_1d_const(w->memory[4], MHA_FLOAT32, E_out);
        w->weights.w_o = &w->w_o;
        w->weights.b_o = &w->b_o;
    }
    check_status(ctx, mha_layer_create(ctx, &w->shape, &w->weights, MHA_BORROW, &w->layer), MHA_OK);
    w->shape = mha_layer_get_shape(w->layer);
}

static void weighted_free(struct weighted *w)
{
    mha_layer_free(w->layer);
    for (int i = 0; i < 5; i++)
        guarded_free(w->memory[i]);
}

/* ---- the stack ------------------------------------------------------------------------------- */

enum { B = 2, L = 5, E = 12, DEPTH = 6 };

/* x += layer(x), six times in one buffer: each layer starts from what the one before it left. */
static void layers_stack_in_place(void **state)
{
    (void)state;
    enum { N = B * L * E };
    float *x = guarded_floats(N), before[N];
    const struct mha_tensor t = mha_tensor_3d(x, MHA_FLOAT32, B, L, E);
    const struct mha_tensor t_before = mha_tensor_3d_const(before, MHA_FLOAT32, B, L, E);
    const struct mha_inputs inputs = { .query = &t, .residual = &t };
    const struct mha_inputs inputs_before = { .query = &t_before, .residual = &t_before };
    const struct mha_outputs outputs = { .out = &t };
    for (int depth = 0; depth < DEPTH; depth++) {
        /* Heads of any number and width: H*Dv is 12, 12, 21, ..., and W_O leads back to 12. */
        struct weighted w;
        weighted_make(&w, E, depth + 1, 3 + depth, depth == 0 ? 12 : 5 + depth % 3, E);
        memcpy(before, x, sizeof before);
        check_status(ctx, mha_forward(ctx, w.layer, &inputs, NULL, &outputs), MHA_OK);
        struct reference_result want;
        reference_forward(&w.shape, &w.weights, &inputs_before, NULL, &want);
        check_close("x + layer(x)", x, want.out, N, bound_of(want.out, N, 0));
        reference_free(&want);
        weighted_free(&w);
    }
    guarded_free(x);
}

/* In place is nothing but a way to save memory: the same bits as with three buffers, and each step
 * within the bound of the formula. */
static void in_place_is_as_apart(void **state)
{
    (void)state;
    enum { N = B * L * E };
    const struct {
        int64_t H, D, Dv, E_out;
    } cases[] = {
        { 3, 4, 4, E }, { 2, 5, 3, E }, { 1, 1, 40, E }, { 4, 2, 3, 0 }, { 1, 5, 12, 0 }
    };
    for (int64_t i = 0; i < COUNT(cases); i++) {
        struct weighted w;
        weighted_make(&w, E, cases[i].H, cases[i].D, cases[i].Dv, cases[i].E_out);
        float *x = guarded_floats(N), *y = guarded_floats(N);
        const struct mha_tensor tx = mha_tensor_3d(x, MHA_FLOAT32, B, L, E);
        const struct mha_tensor ty = mha_tensor_3d(y, MHA_FLOAT32, B, L, E);
        const struct mha_inputs inputs = { .query = &tx, .residual = &tx };
        struct reference_result want;
        reference_forward(&w.shape, &w.weights, &inputs, NULL, &want);
        check_status(ctx,
                     mha_forward(ctx, w.layer, &inputs, NULL, &(struct mha_outputs){ .out = &ty }),
                     MHA_OK);
        check_close("out", y, want.out, N, bound_of(want.out, N, 0));
        check_status(ctx,
                     mha_forward(ctx, w.layer, &inputs, NULL, &(struct mha_outputs){ .out = &tx }),
                     MHA_OK);
        check_same_bits("in place", x, y, N);
        reference_free(&want);
        weighted_free(&w);
        guarded_free(x);
        guarded_free(y);
    }
}

/* ---- layers that do not stack ---------------------------------------------------------------- */

static void fill_nan(float *data, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        data[i] = NAN;
}

static void all_nan(const float *data, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        assert_true(isnan(data[i]));
}

/*
 * The residual of a layer whose output is not [B, L, E]: refused inside the layer, whatever shape
 * `out` has, and by the sum of its own. `cause` is what both shapes alone do not tell.
 */
static void check_misfit(const struct weighted *w, int64_t width, int64_t out_width,
                         const char *shapes, const char *cause)
{
    float *x = guarded_floats(B * L * width), *y = guarded_floats(B * L * w->shape.E);
    float *out = guarded_floats(B * L * out_width), *sum = guarded_floats(B * L * width);
    const struct mha_tensor query = mha_tensor_3d_const(y, MHA_FLOAT32, B, L, w->shape.E);
    const struct mha_tensor residual = mha_tensor_3d_const(x, MHA_FLOAT32, B, L, width);
    const struct mha_inputs plain = { .query = &query };
    const struct mha_inputs inputs = { .query = &query, .residual = &residual };
    const struct mha_tensor t_out = mha_tensor_3d(out, MHA_FLOAT32, B, L, out_width);
    const struct mha_tensor t_sum = mha_tensor_3d(sum, MHA_FLOAT32, B, L, width);
    const struct mha_tensor *const outs[] = { &t_out, &t_sum };
    const char *message = mha_context_message(ctx);
    for (int64_t i = 0; i < COUNT(outs); i++) {
        fill_nan(out, B * L * out_width);
        fill_nan(sum, B * L * width);
        const struct mha_outputs outputs = { .out = outs[i] };
        int64_t bytes = -7, calls = counter.calls;
        check_status(ctx, mha_forward(ctx, w->layer, &inputs, NULL, &outputs), MHA_ERROR_SHAPE);
        check_contains(message, "mha_forward: residual has the shape ");
        check_contains(message, shapes);
        check_contains(message, cause);
        check_contains(message, "a residual is never broadcast, cut or padded");
        check_status(ctx, mha_forward_workspace(ctx, w->layer, &inputs, NULL, &outputs, &bytes),
                     MHA_ERROR_SHAPE);
        check_contains(message, "mha_forward_workspace: residual has the shape ");
        check_contains(message, cause);
        assert_int_equal(bytes, -7);
        assert_int_equal(counter.calls, calls);
        all_nan(out, B * L * out_width);
        all_nan(sum, B * L * width);
    }

    /* Without the residual the layer does its work; then the sum by itself is refused. */
    check_status(ctx,
                 mha_forward(ctx, w->layer, &plain, NULL, &(struct mha_outputs){ .out = &t_out }),
                 MHA_OK);
    for (int64_t i = 0; i < COUNT(outs); i++) {
        if (i == 0) /* x + out into out: out must keep what the layer wrote */
            random_fill(out, B * L * out_width);
        float *before = guarded_floats(B * L * out_width);
        memcpy(before, out, (size_t)(B * L * out_width) * sizeof *out);
        check_status(ctx, mha_residual_add(ctx, &residual, &t_out, outs[i]), MHA_ERROR_SHAPE);
        char text[192], both[2][48];
        mha_tensor_shape_text(&residual, both[0], sizeof both[0]);
        mha_tensor_shape_text(&t_out, both[1], sizeof both[1]);
        snprintf(text, sizeof text, "mha_residual_add: y has the shape %s and x %s: ", both[1],
                 both[0]);
        check_contains(message, text);
        check_contains(message, "they differ in axis 2");
        check_contains(message, "only a W_O that leads back to the width of x");
        check_same_bits("out", out, before, B * L * out_width);
        all_nan(sum, B * L * width);
        guarded_free(before);
    }
    guarded_free(x);
    guarded_free(y);
    guarded_free(out);
    guarded_free(sum);
}

static void layer_without_w_o(void **state)
{
    (void)state;
    struct weighted w;
    weighted_make(&w, E, 2, 3, 4, 0);
    check_misfit(&w, E, 8, "[2, 5, 12] and the output [B, L, H*Dv] = [2, 5, 8]",
                 ": the layer has no W_O to bring the concat of width H*Dv = 8 back to E = 12;");
    weighted_free(&w);
    /* A concat that is as wide as E by chance fits, but not another width. */
    weighted_make(&w, E, 3, 5, 4, 0);
    check_misfit(&w, 7, 12, "[2, 5, 7] and the output [B, L, H*Dv] = [2, 5, 12]",
                 ": the layer has no W_O");
    weighted_free(&w);
}

static void layer_that_leads_elsewhere(void **state)
{
    (void)state;
    struct weighted w;
    /* To the concat's own width instead of E. */
    weighted_make(&w, E, 2, 3, 4, 8);
    check_misfit(&w, E, 8, "[2, 5, 12] and the output [B, L, E_out] = [2, 5, 8]",
                 ": W_O [8, 8] leads to width 8, not back to E = 12;");
    weighted_free(&w);
    weighted_make(&w, E, 2, 3, 5, 17);
    check_misfit(&w, E, 17, "[2, 5, 12] and the output [B, L, E_out] = [2, 5, 17]",
                 ": W_O [17, 10] leads to width 17, not back to E = 12;");
    weighted_free(&w);
    /* To a width of 1, which broadcasting would have hidden. */
    weighted_make(&w, E, 2, 3, 5, 1);
    check_misfit(&w, E, 1, "[2, 5, 12] and the output [B, L, E_out] = [2, 5, 1]",
                 ": W_O [1, 10] leads to width 1, not back to E = 12;");
    weighted_free(&w);
}

/* W_O leads back to E, and the residual has another width. */
static void residual_of_another_width(void **state)
{
    (void)state;
    struct weighted w;
    weighted_make(&w, E, 2, 3, 4, E);
    const int64_t widths[] = { 8, 1, 11, 13, 24 };
    for (int64_t i = 0; i < COUNT(widths); i++) {
        char shapes[96];
        snprintf(shapes, sizeof shapes, "[2, 5, %d] and the output [B, L, E_out] = [2, 5, 12];",
                 (int)widths[i]);
        check_misfit(&w, widths[i], E, shapes, "a residual is never broadcast");
    }
    weighted_free(&w);
}

/* ---- the sum by itself ----------------------------------------------------------------------- */

static void refused(const struct mha_tensor *x, const struct mha_tensor *y,
                    const struct mha_tensor *out, mha_status want, const char *text)
{
    check_status(ctx, mha_residual_add(ctx, x, y, out), want);
    check_contains(mha_context_message(ctx), "mha_residual_add: ");
    check_contains(mha_context_message(ctx), text);
}

/* [2, 1, 3] and [2, 3] are no sum, and neither are sizes of 1 that could be stretched. */
static void kind_12_case_85_no_broadcasting(void **state)
{
    (void)state;
    float x[6] = { 1, 2, 3, 4, 5, 6 }, y[6] = { 10, 20, 30, 40, 50, 60 }, out[18];
    fill_nan(out, COUNT(out));
    struct mha_tensor tx = mha_tensor_3d_const(x, MHA_FLOAT32, 2, 1, 3);
    struct mha_tensor ty = mha_tensor_2d_const(y, MHA_FLOAT32, 2, 3);
    struct mha_tensor to = mha_tensor_3d(out, MHA_FLOAT32, 2, 1, 3);
    refused(&tx, &ty, &to, MHA_ERROR_SHAPE,
            "y has the shape [2, 3] and x [2, 1, 3]: they differ in rank");
    const struct {
        int64_t n0, n1, n2;
        const char *text;
    } cases[] = {
        { 2, 1, 1, "y has the shape [2, 1, 1] and x [2, 1, 3]: they differ in axis 2" },
        { 1, 1, 3, "y has the shape [1, 1, 3] and x [2, 1, 3]: they differ in axis 0" },
        { 2, 2, 3, "y has the shape [2, 2, 3] and x [2, 1, 3]: they differ in axis 1" },
        { 3, 2, 1, "y has the shape [3, 2, 1] and x [2, 1, 3]: they differ in axis 0" },
        { 2, 1, 0, "y has the shape [2, 1, 0] and x [2, 1, 3]: they differ in axis 2" },
    };
    for (int64_t i = 0; i < COUNT(cases); i++) {
        float wide[12] = { 0 };
        ty = mha_tensor_3d_const(wide, MHA_FLOAT32, cases[i].n0, cases[i].n1, cases[i].n2);
        refused(&tx, &ty, &to, MHA_ERROR_SHAPE, cases[i].text);
    }
    /* The output neither gets more than the operands nor less. */
    ty = mha_tensor_3d_const(y, MHA_FLOAT32, 2, 1, 3);
    to = mha_tensor_3d(out, MHA_FLOAT32, 2, 3, 3);
    refused(&tx, &ty, &to, MHA_ERROR_SHAPE,
            "out has the shape [2, 3, 3] and x [2, 1, 3]: they differ in axis 1");
    to = mha_tensor_2d(out, MHA_FLOAT32, 2, 3);
    refused(&tx, &ty, &to, MHA_ERROR_SHAPE, "out has the shape [2, 3] and x [2, 1, 3]: ");
    all_nan(out, COUNT(out));

    to = mha_tensor_3d(out, MHA_FLOAT32, 2, 1, 3);
    check_status(ctx, mha_residual_add(ctx, &tx, &ty, &to), MHA_OK);
    for (int i = 0; i < 6; i++)
        assert_true(out[i] == 11 * (float)(i + 1));
    /* ... and in place of x. */
    tx.flags = 0;
    check_status(ctx, mha_residual_add(ctx, &tx, &ty, &tx), MHA_OK);
    check_same_bits("x", x, out, 6);
}

/* A random view of that shape in memory of its own, axes in any order of memory but the last. */
static struct mha_tensor random_layout(float *memory, int32_t rank, const int64_t *shape)
{
    struct mha_tensor t = { .data = memory, .type = MHA_FLOAT32, .rank = rank };
    int64_t stride = 1;
    bool placed[MHA_MAX_RANK] = { false };
    for (int32_t n = 0; n < rank; n++) {
        int32_t axis = rank - 1;
        while (n > 0 && placed[axis])
            axis = (int32_t)random_below(rank);
        placed[axis] = true;
        t.shape[axis] = shape[axis];
        t.strides[axis] = stride;
        stride *= shape[axis] + random_below(3);
        stride = stride > 0 ? stride : 1;
    }
    return t;
}

static float *element(const struct mha_tensor *t, int64_t e)
{
    float *at = t->data;
    for (int32_t axis = t->rank - 1; axis >= 0; axis--) {
        at += e % t->shape[axis] * t->strides[axis];
        e /= t->shape[axis];
    }
    return at;
}

/* Any rank from 0 to 6, any layout; out apart from both, in place of either, and x = y = out. What
 * lies between the elements stays. */
static void strides_and_places(void **state)
{
    (void)state;
    enum { ROOM = 4096 };
    static float memory[3][ROOM], before[3][ROOM];
    for (int run = 0; run < 2000; run++) {
        int64_t shape[MHA_MAX_RANK];
        int32_t rank = (int32_t)(run % (MHA_MAX_RANK + 1));
        for (int32_t axis = 0; axis < rank; axis++)
            shape[axis] = random_below(12) ? 1 + random_below(rank < 4 ? 5 : 2) : 0;
        struct mha_tensor t[3];
        for (int i = 0; i < 3; i++) {
            random_fill(memory[i], ROOM);
            t[i] = random_layout(memory[i], rank, shape);
        }
        if (random_below(3) == 0 && rank > 1)
            t[0].strides[0] = 0; /* an input may repeat its elements */
        memcpy(before, memory, sizeof before);
        bool repeats = rank > 1 && t[0].strides[0] == 0;
        int x = 0, y = random_below(4) ? 1 : 0;
        int out = random_below(2) ? 2 : random_below(2) || repeats ? 1 : x;
        if (out == 1 && y == 0)
            out = 2;
        check_status(ctx, mha_residual_add(ctx, &t[x], &t[y], &t[out]), MHA_OK);

        int64_t n = mha_tensor_count(&t[0]);
        for (int64_t e = 0; e < n; e++) {
            const float *a = before[x] + (element(&t[x], e) - memory[x]);
            const float *b = before[y] + (element(&t[y], e) - memory[y]);
            float want = *a + *b, *got = element(&t[out], e);
            check_same_bits("sum", got, &want, 1);
        }
        for (int64_t e = 0; e < n; e++) {
            int64_t at = element(&t[out], e) - memory[out];
            memory[out][at] = before[out][at];
        }
        assert_memory_equal(memory, before, sizeof before);
    }
}

/* One element more or less, or other strides: no longer the very view, so no longer in place. */
static void partial_overlap(void **state)
{
    (void)state;
    float data[24], before[24], other[12];
    random_fill(data, COUNT(data));
    random_fill(other, COUNT(other));
    memcpy(before, data, sizeof data);
    const struct mha_tensor free_one = mha_tensor_3d_const(other, MHA_FLOAT32, 2, 3, 2);
    for (int64_t shift = -11; shift <= 11; shift++) {
        const struct mha_tensor in = mha_tensor_3d_const(data + 12, MHA_FLOAT32, 2, 3, 2);
        const struct mha_tensor out = mha_tensor_3d(data + 12 + (shift < 0 ? shift : -shift),
                                                    MHA_FLOAT32, 2, 3, 2);
        if (shift == 0)
            continue;
        refused(&in, &free_one, &out, MHA_ERROR_LAYOUT, "out overlaps x ");
        refused(&free_one, &in, &out, MHA_ERROR_LAYOUT, "out overlaps y ");
    }
    struct mha_tensor turned = mha_tensor_3d(data, MHA_FLOAT32, 2, 3, 2);
    turned.strides[0] = 2;
    turned.strides[1] = 4;
    const struct mha_tensor in = mha_tensor_3d_const(data, MHA_FLOAT32, 2, 3, 2);
    refused(&in, &free_one, &turned, MHA_ERROR_LAYOUT, "out overlaps x ");
    /* In place of x, but over a part of y. */
    const struct mha_tensor x = mha_tensor_3d(data, MHA_FLOAT32, 2, 3, 2);
    const struct mha_tensor y = mha_tensor_3d_const(data + 6, MHA_FLOAT32, 2, 3, 2);
    refused(&x, &y, &x, MHA_ERROR_LAYOUT, "out overlaps y ");
    assert_memory_equal(data, before, sizeof data);
    /* Side by side in one buffer is apart: columns of one matrix. */
    struct mha_tensor left = mha_tensor_3d(data, MHA_FLOAT32, 2, 3, 2), right = left;
    left.strides[0] = right.strides[0] = 12;
    left.strides[1] = right.strides[1] = 4;
    right.data = data + 2;
    right.flags = MHA_READ_ONLY;
    check_status(ctx, mha_residual_add(ctx, &right, &free_one, &left), MHA_OK);
}

static void sum_refusals(void **state)
{
    (void)state;
    float data[3][6];
    struct mha_tensor t[3];
    const char *const names[] = { "x", "y", "out" };
    for (int i = 0; i < 3; i++)
        random_fill(data[i], 6);
    float before[18];
    memcpy(before, data, sizeof before);
    for (int i = 0; i < 3; i++) {
        const struct mha_tensor *p[3];
        char text[96];
        const struct {
            mha_status status;
            const char *text;
        } cases[] = {
            { MHA_ERROR_ARGUMENT, "%s is NULL" },
            { MHA_ERROR_ARGUMENT, "%s of shape [2, 3] has no data (NULL)" },
            { MHA_ERROR_TYPE, "%s is int32, wanted float32" },
            { MHA_ERROR_TYPE, "%s has the element type 99" },
            { MHA_ERROR_LAYOUT, "%s has the stride 2 on its last axis" },
            { MHA_ERROR_LAYOUT, "%s has the stride -3 on axis 0" },
            { MHA_ERROR_ARGUMENT, "%s has rank 7" },
            { MHA_ERROR_ARGUMENT, "%s has the shape [-1, 3]" },
            { MHA_ERROR_OVERFLOW, "%s of shape [2, 3] spans" },
            { MHA_ERROR_ARGUMENT, "%s has the flags 0x4" },
        };
        for (int64_t c = 0; c < COUNT(cases); c++) {
            for (int j = 0; j < 3; j++) {
                t[j] = mha_tensor_2d(data[j], MHA_FLOAT32, 2, 3);
                p[j] = &t[j];
            }
            switch (c) {
            case 0: p[i] = NULL; break;
            case 1: t[i].data = NULL; break;
            case 2: t[i].type = MHA_INT32; break;
            case 3: t[i].type = 99; break;
            case 4: t[i].strides[1] = 2; break;
            case 5: t[i].strides[0] = -3; break;
            case 6: t[i].rank = 7; break;
            case 7: t[i].shape[0] = -1; break;
            case 8: t[i].strides[0] = INT64_MAX; break;
            default: t[i].flags = 4; break;
            }
            snprintf(text, sizeof text, cases[c].text, names[i]);
            refused(p[0], p[1], p[2], cases[c].status, text);
        }
    }
    for (int j = 0; j < 3; j++)
        t[j] = mha_tensor_2d(data[j], MHA_FLOAT32, 2, 3);
    t[2].flags = MHA_READ_ONLY;
    refused(&t[0], &t[1], &t[2], MHA_ERROR_LAYOUT, "out is read-only");
    t[2].flags = 0;
    t[2].strides[0] = 0;
    refused(&t[0], &t[1], &t[2], MHA_ERROR_LAYOUT, "out of shape [2, 3] has strides that give");
    assert_int_equal(mha_residual_add(NULL, &t[0], &t[1], &t[0]), MHA_ERROR_ARGUMENT);
    assert_memory_equal(data, before, sizeof data);
}

/* A scalar, six axes of one element, and sums of nothing at all, without memory. */
static void smallest_sums(void **state)
{
    (void)state;
    float x = 1.5f, y = 2.25f, out = NAN;
    struct mha_tensor tx = { .data = &x, .type = MHA_FLOAT32 }, ty = tx, to = tx;
    ty.data = &y;
    to.data = &out;
    for (int32_t rank = 0; rank <= MHA_MAX_RANK; rank++) {
        tx.rank = ty.rank = to.rank = rank;
        if (rank > 0) {
            tx.shape[rank - 1] = ty.shape[rank - 1] = to.shape[rank - 1] = 1;
            tx.strides[rank - 1] = 1000; /* of a single element: never followed */
        }
        out = NAN;
        check_status(ctx, mha_residual_add(ctx, &tx, &ty, &to), MHA_OK);
        assert_true(out == 3.75f);
    }
    for (int32_t axis = 0; axis < MHA_MAX_RANK; axis++) {
        struct mha_tensor e = { .type = MHA_FLOAT32, .rank = MHA_MAX_RANK };
        for (int32_t other = 0; other < MHA_MAX_RANK; other++) {
            e.shape[other] = other == axis ? 0 : INT64_MAX;
            e.strides[other] = 1;
        }
        check_status(ctx, mha_residual_add(ctx, &e, &e, &e), MHA_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_stack_in_place),
        cmocka_unit_test(in_place_is_as_apart),
        cmocka_unit_test(layer_without_w_o),
        cmocka_unit_test(layer_that_leads_elsewhere),
        cmocka_unit_test(residual_of_another_width),
        cmocka_unit_test(kind_12_case_85_no_broadcasting),
        cmocka_unit_test(strides_and_places),
        cmocka_unit_test(partial_overlap),
        cmocka_unit_test(sum_refusals),
        cmocka_unit_test(smallest_sums),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
