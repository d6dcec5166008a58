/* Bugs of other attention code, as tests that they are not here: kinds 12, 13 and 18, of shapes,
 * strides, sizes and manners. */
#include "fixture.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "error_model.h"
#include "generated_layer.h"

static mha_status attend(const struct mha_tensor *q, const struct mha_tensor *k,
                         const struct mha_tensor *v, const struct mha_options *options,
                         const struct mha_tensor *out)
{
    struct mha_inputs inputs = { .query = q, .key = k, .value = v };
    return mha_attention(ctx, &inputs, options, &(struct mha_outputs){ .out = out });
}

/* ---- kind 12: shapes, strides, empties ------------------------------------------------------- */

/* [B, n1, n2, n3] whose axes 1 and 2 are swapped in memory, with `gap` elements behind each row. */
static struct mha_tensor swapped(float *data, int64_t B, int64_t n1, int64_t n2, int64_t n3,
                                 int64_t gap)
{
    struct mha_tensor t = mha_tensor_4d(data, MHA_FLOAT32, B, n1, n2, n3);
    t.strides[1] = n3 + gap;
    t.strides[2] = n1 * (n3 + gap);
    t.strides[0] = n2 * t.strides[2];
    return t;
}

/* Copies between two [B, n1, n2, n3] views. */
static void copy_view(const struct mha_tensor *to, const struct mha_tensor *from)
{
    int64_t count = mha_tensor_count(from);
    for (int64_t e = 0; e < count; e++) {
        int64_t rest = e, at[2] = { 0, 0 };
        for (int axis = 3; axis >= 0; axis--) {
            at[0] += rest % from->shape[axis] * to->strides[axis];
            at[1] += rest % from->shape[axis] * from->strides[axis];
            rest /= from->shape[axis];
        }
        ((float *)to->data)[at[0]] = ((const float *)from->data)[at[1]];
    }
}

enum { VB = 2, VL = 19, VH = 3, VD = 5, VN = VB * VL * VH * VD, VR = VB * VH * VL };

/* The same rows as [B, L, H, D] memory, as [B, H, L, D], and as columns of [B, L, 3, H, D]. */
static void kind_12_case_80_strides_are_honoured(void **state)
{
    (void)state;
    static float plain[3][VN], turned[3][VN + VR * 2], packed[3 * VN];
    static float want[VN], got[VN + VR], back[VN];
    struct mha_tensor p[3], t[3], f[3], out = mha_tensor_4d(want, MHA_FLOAT32, VB, VL, VH, VD);
    for (int i = 0; i < 3; i++) {
        random_fill(plain[i], VN);
        p[i] = mha_tensor_4d(plain[i], MHA_FLOAT32, VB, VL, VH, VD);
        t[i] = swapped(turned[i], VB, VL, VH, VD, i);
        f[i] = mha_tensor_4d(packed + i * VH * VD, MHA_FLOAT32, VB, VL, VH, VD);
        f[i].strides[1] = 3 * VH * VD;
        f[i].strides[0] = VL * f[i].strides[1];
        copy_view(&t[i], &p[i]);
        copy_view(&f[i], &p[i]);
    }
    struct mha_options options = { .causal = 1 };
    check_status(ctx, attend(&p[0], &p[1], &p[2], &options, &out), MHA_OK);
    const struct mha_tensor *forms[] = { t, f };
    for (int form = 0; form < 2; form++) {
        struct mha_tensor to = swapped(got, VB, VL, VH, VD, 1);
        struct mha_tensor whole = mha_tensor_4d(back, MHA_FLOAT32, VB, VL, VH, VD);
        for (int64_t i = 0; i < COUNT(got); i++)
            got[i] = -77;
        const struct mha_tensor *x = forms[form];
        check_status(ctx, attend(&x[0], &x[1], &x[2], &options, &to), MHA_OK);
        copy_view(&whole, &to);
        check_same_bits(form == 0 ? "swapped" : "packed", back, want, VN);
        for (int64_t i = VD; i < COUNT(got); i += VD + 1)
            assert_true(got[i] == -77); /* the gaps are nobody's */
    }
}

/* The other outputs with strides of their own. */
static void kind_12_case_80_strides_of_every_output_are_honoured(void **state)
{
    (void)state;
    enum { S = 7, W = VR * S, M = VB * VL * S };
    static float q[VN], k[VB * S * VH * VD], lse[VR], weights[W], mean[M];
    static float other_lse[VR], other_weights[W + VR], other_mean[M + VB * VL], back[W];
    random_fill(q, COUNT(q));
    random_fill(k, COUNT(k));
    struct mha_tensor tq = mha_tensor_4d(q, MHA_FLOAT32, VB, VL, VH, VD);
    struct mha_tensor tk = mha_tensor_4d(k, MHA_FLOAT32, VB, S, VH, VD);
    struct mha_tensor t[] = { mha_tensor_3d(lse, MHA_FLOAT32, VB, VH, VL),
                              mha_tensor_4d(weights, MHA_FLOAT32, VB, VH, VL, S),
                              mha_tensor_3d(mean, MHA_FLOAT32, VB, VL, S) };
    struct mha_tensor u[] = { t[0], swapped(other_weights, VB, VH, VL, S, 1), t[2] };
    u[0].data = other_lse;
    u[2].data = other_mean;
    /* Samples one after the other in reverse nesting: [L, B, S'] with a gap. The log-sum-exp's last
     * stride is 1, so its samples and heads swap: [H, B, L]. */
    u[0].strides[0] = VL;
    u[0].strides[1] = VB * VL;
    u[2].strides[0] = S + 1;
    u[2].strides[1] = VB * (S + 1);
    struct mha_inputs inputs = { .query = &tq, .key = &tk, .value = &tk };
    struct mha_outputs plain = { .lse = &t[0], .weights = &t[1], .weights_mean = &t[2] };
    struct mha_outputs strided = { .lse = &u[0], .weights = &u[1], .weights_mean = &u[2] };
    check_status(ctx, mha_attention(ctx, &inputs, NULL, &plain), MHA_OK);
    check_status(ctx, mha_attention(ctx, &inputs, NULL, &strided), MHA_OK);
    struct mha_tensor whole = mha_tensor_4d(back, MHA_FLOAT32, VB, VH, VL, S);
    copy_view(&whole, &u[1]);
    check_same_bits("weights", back, weights, W);
    for (int64_t b = 0; b < VB; b++) {
        for (int64_t h = 0; h < VH; h++)
            check_same_bits("lse", other_lse + (h * VB + b) * VL, lse + (b * VH + h) * VL, VL);
        for (int64_t l = 0; l < VL; l++)
            check_same_bits("mean", other_mean + (l * VB + b) * (S + 1), mean + (b * VL + l) * S,
                            S);
    }
}

static void kind_12_case_81_a_last_stride_other_than_one_is_refused(void **state)
{
    (void)state;
    static float data[4][64];
    static uint8_t bits[64];
    static const int64_t strides[] = { 0, 2, -1, INT64_MIN, INT64_MAX };
    for (int operand = 0; operand < 5; operand++)
        for (int64_t i = 0; i < COUNT(strides); i++)
            for (int axis = 0; axis < 4; axis++) {
                if (axis < 3 && strides[i] >= 0 && strides[i] != INT64_MAX)
                    continue; /* free, but for outputs and what no memory holds */
                struct mha_tensor t[5];
                for (int x = 0; x < 4; x++)
                    t[x] = mha_tensor_4d(data[x], MHA_FLOAT32, 2, 2, 2, 2);
                t[4] = mha_tensor_4d(bits, MHA_BOOL, 2, 2, 2, 2);
                t[operand].strides[axis] = strides[i];
                struct mha_options options = { .mask_kind = MHA_MASK_KEEP, .mask = &t[4] };
                memset(data[3], 0x5a, sizeof data[3]);
                mha_status status = attend(&t[0], &t[1], &t[2], &options, &t[3]);
                if (status != MHA_ERROR_LAYOUT && status != MHA_ERROR_OVERFLOW)
                    fail_msg("operand %d, axis %d, stride %" PRId64 ": %s", operand, axis,
                             strides[i], mha_status_text(status));
                for (size_t at = 0; at < sizeof data[3]; at++)
                    assert_true(((unsigned char *)data[3])[at] == 0x5a);
            }
    /* An axis of one element may have any stride, for it leads nowhere. */
    struct mha_tensor one = mha_tensor_4d(data[0], MHA_FLOAT32, 1, 1, 1, 1);
    struct mha_tensor to = mha_tensor_4d(data[3], MHA_FLOAT32, 1, 1, 1, 1);
    one.strides[3] = 5;
    to.strides[3] = 9;
    check_status(ctx, attend(&one, &one, &one, NULL, &to), MHA_OK);
}

/* Each size of each operand in turn is something impossible; never a signal, never OK. */
static void kind_12_case_82_no_size_stops_the_process(void **state)
{
    (void)state;
    static float data[4][2 * 3 * 4 * 5];
    static const int64_t sizes[] = { 0, -1, INT32_MAX, INT64_MAX, INT64_MIN };
    for (int operand = 0; operand < 4; operand++)
        for (int axis = -1; axis < 4; axis++) /* -1: the rank */
            for (int64_t i = 0; i < COUNT(sizes); i++) {
                struct mha_tensor t[4];
                for (int x = 0; x < 4; x++)
                    t[x] = mha_tensor_4d(data[x], MHA_FLOAT32, 2, 3, 4, 5);
                if (axis < 0)
                    t[operand].rank = (int32_t)sizes[i];
                else
                    t[operand].shape[axis] = sizes[i];
                if (axis < 0 && sizes[i] == INT64_MIN)
                    t[operand].rank = 7;
                data[3][0] = 77;
                mha_status status = attend(&t[0], &t[1], &t[2], NULL, &t[3]);
                assert_true(status != MHA_OK);
                assert_true(mha_context_message(ctx)[0] != '\0');
                assert_true(data[3][0] == 77);
            }

    /* No heads and no widths on all sides at once. */
    static const int axes[][2] = { { 2, 2 }, { 3, 3 } };
    for (int i = 0; i < 2; i++) {
        struct mha_tensor t = mha_tensor_4d(data[0], MHA_FLOAT32, 2, 3, 4, 5);
        struct mha_tensor to = mha_tensor_4d(data[3], MHA_FLOAT32, 2, 3, 4, 5);
        t.shape[axes[i][0]] = to.shape[axes[i][1]] = 0;
        check_status(ctx, attend(&t, &t, &t, NULL, &to), MHA_ERROR_ARGUMENT);
    }

    /* Modes and flags that are none. */
    static const int32_t modes[] = { -1, INT32_MAX, INT32_MIN };
    struct mha_tensor t = mha_tensor_4d(data[0], MHA_FLOAT32, 2, 3, 4, 5);
    struct mha_tensor to = mha_tensor_4d(data[3], MHA_FLOAT32, 2, 3, 4, 5);
    for (int64_t i = 0; i < COUNT(modes); i++) {
        int32_t m = modes[i];
        const struct mha_options wrong[] = {
            { .scale_mode = m },
            { .softcap_mode = m },
            { .mask_kind = m },
            { .causal = m },
            { .align = m },
            { .zero_attention = m },
            { .reserved = m },
            { .window = m == -1 ? 4 : m },
            { .window = MHA_WINDOW_LEFT, .window_left = m < 0 ? m : INT64_MIN },
            { .window = MHA_WINDOW_RIGHT, .window_right = m < 0 ? m : -1 },
        };
        for (int64_t x = 0; x < COUNT(wrong); x++)
            check_status(ctx, attend(&t, &t, &t, &wrong[x], &to), MHA_ERROR_ARGUMENT);
    }
}

static void kind_12_case_83_nothing_is_a_legal_amount(void **state)
{
    (void)state;
    enum { H = 3, D = 2 };
    float q[2 * 2 * H * D] = { 1, 2, 3 }, v[2 * 2 * H * D], out[2 * 2 * H * D];
    float lse[2 * 2 * H], weights[2 * H * 2 * 2];
    for (int i = 0; i < 2 * 2 * H * D; i++)
        v[i] = 5;
    for (int mix = 0; mix < 8; mix++) {
        int64_t B = mix & 1 ? 2 : 0, L = mix & 2 ? 2 : 0, S = mix & 4 ? 2 : 0;
        bool rows = B * L > 0, keys = B * S > 0;
        struct mha_tensor tq = mha_tensor_4d(rows ? q : NULL, MHA_FLOAT32, B, L, H, D);
        struct mha_tensor tk = mha_tensor_4d(keys ? q : NULL, MHA_FLOAT32, B, S, H, D);
        struct mha_tensor tv = mha_tensor_4d(keys ? v : NULL, MHA_FLOAT32, B, S, H, D);
        struct mha_tensor to = mha_tensor_4d(rows ? out : NULL, MHA_FLOAT32, B, L, H, D);
        struct mha_tensor tl = mha_tensor_3d(rows ? lse : NULL, MHA_FLOAT32, B, H, L);
        struct mha_tensor tw = mha_tensor_4d(rows && S > 0 ? weights : NULL, MHA_FLOAT32, B, H, L,
                                             S);
        struct mha_inputs in = { .query = &tq, .key = &tk, .value = &tv };
        struct mha_outputs outputs = { .out = &to, .lse = &tl, .weights = &tw };
        memset(out, 0xff, sizeof out);
        memset(lse, 0xff, sizeof lse);
        check_status(ctx, mha_attention(ctx, &in, NULL, &outputs), MHA_OK);
        for (int i = 0; i < 2 * 2 * H * D; i++)
            assert_true(rows ? out[i] == (S ? 5.0f : 0.0f) : isnan(out[i]));
        for (int i = 0; i < 2 * 2 * H; i++)
            assert_true(!rows ? isnan(lse[i]) : S ? isfinite(lse[i]) : lse[i] == -INFINITY);
    }
}

static void kind_12_case_84_every_pair_of_operands_is_compared(void **state)
{
    (void)state;
    enum { Q, K, V, OUT, RESIDUAL, MASK };
    static const struct {
        int operand, axis;
        int64_t size;
        const char *name;
    } wrong[] = {
        { V, 1, 6, "value" },
        { K, 1, 6, "value" },
        { K, 0, 1, "key" },
        { V, 0, 1, "value" },
        { V, 2, 1, "value" },
        { K, 3, 4, "key" },
        { K, 2, 4, "multiple" },
        { OUT, 0, 1, "out" },
        { OUT, 1, 4, "out" },
        { OUT, 2, 3, "out" },
        { OUT, 3, 2, "out" },
        { RESIDUAL, 0, 1, "residual" },
        { RESIDUAL, 1, 1, "residual" },
        { RESIDUAL, 2, 1, "residual" },
        { RESIDUAL, 3, 1, "residual" },
        { MASK, 0, 3, "mask" },
        { MASK, 1, 2, "mask" },
        { MASK, 2, 2, "mask" },
        { MASK, 3, 4, "mask" },
    };
    static float data[6][2 * 3 * 6 * 7];
    for (int64_t i = -1; i < COUNT(wrong); i++) {
        struct mha_tensor t[] = {
            mha_tensor_4d(data[Q], MHA_FLOAT32, 2, 3, 6, 5),
            mha_tensor_4d(data[K], MHA_FLOAT32, 2, 5, 2, 5),
            mha_tensor_4d(data[V], MHA_FLOAT32, 2, 5, 2, 7),
            mha_tensor_4d(data[OUT], MHA_FLOAT32, 2, 3, 6, 7),
            mha_tensor_4d(data[RESIDUAL], MHA_FLOAT32, 2, 3, 6, 7),
            mha_tensor_4d(data[MASK], MHA_FLOAT32, 2, 6, 3, 5),
        };
        if (i >= 0) {
            struct mha_tensor *x = &t[wrong[i].operand];
            x->shape[wrong[i].axis] = wrong[i].size;
            *x = mha_tensor_4d(x->data, x->type, x->shape[0], x->shape[1], x->shape[2],
                               x->shape[3]);
        }
        struct mha_inputs in = {
            .query = &t[Q], .key = &t[K], .value = &t[V], .residual = &t[RESIDUAL]
        };
        struct mha_options options = { .mask_kind = MHA_MASK_ADDITIVE, .mask = &t[MASK] };
        struct mha_outputs outputs = { .out = &t[OUT] };
        data[OUT][0] = 77;
        mha_status status = mha_attention(ctx, &in, &options, &outputs);
        check_status(ctx, status, i < 0 ? MHA_OK : MHA_ERROR_SHAPE);
        if (i >= 0) {
            assert_true(data[OUT][0] == 77);
            check_contains(mha_context_message(ctx), wrong[i].name);
        }
    }
}

/* ---- kind 13: sizes and addresses ------------------------------------------------------------ */

static void kind_13_case_89_offsets_are_64_bits_wide(void **state)
{
    (void)state;
    enum { N = 3, D = 4 };
    static const int64_t strides[] = { INT64_C(1) << 30, (INT64_C(1) << 31) + 3 };
    float q[N * D], k[N * D], v[N * D], want[N * D];
    random_fill(q, N * D);
    random_fill(k, N * D);
    random_fill(v, N * D);
    struct mha_tensor tq = mha_tensor_4d(q, MHA_FLOAT32, 1, N, 1, D);
    struct mha_tensor tk = mha_tensor_4d(k, MHA_FLOAT32, 1, N, 1, D);
    struct mha_tensor tv = mha_tensor_4d(v, MHA_FLOAT32, 1, N, 1, D);
    struct mha_tensor to = mha_tensor_4d(want, MHA_FLOAT32, 1, N, 1, D);
    check_status(ctx, attend(&tq, &tk, &tv, NULL, &to), MHA_OK);
    for (int64_t i = 0; i < COUNT(strides); i++) {
        const float *from[] = { q, k, v };
        struct sparse far[4];
        struct mha_tensor t[4];
        for (int x = 0; x < 4; x++) {
            far[x] = sparse_make(N, strides[i], D);
            t[x] = mha_tensor_4d(far[x].data, MHA_FLOAT32, 1, N, 1, D);
            t[x].strides[1] = strides[i];
            for (int row = 0; row < N && x < 3; row++)
                memcpy(far[x].data + row * strides[i], from[x] + row * D, D * sizeof(float));
        }
        check_status(ctx, attend(&t[0], &t[1], &t[2], NULL, &t[3]), MHA_OK);
        for (int row = 0; row < N; row++)
            check_same_bits("out", far[3].data + row * strides[i], want + row * D, D);
        for (int x = 0; x < 4; x++)
            sparse_free(&far[x]);
    }
}

/* An allocator whose blocks end at an unreadable page when their size allows it, as all scratch
 * does, being a multiple of the alignment. */
static void *guarded_allocate(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    size_t whole = (bytes + alignment - 1) / alignment * alignment;
    return guarded((int64_t)whole);
}

static void guarded_release(void *user, void *block, size_t bytes)
{
    (void)user;
    (void)bytes;
    guarded_free(block);
}

static mha_context *context_guarded(void)
{
    static const struct mha_allocator allocator = { guarded_allocate, guarded_release, NULL };
    struct mha_context_options options = { .allocator = &allocator };
    mha_context *with = NULL;
    check_status(NULL, mha_context_create(&options, &with), MHA_OK);
    return with;
}

/* Each call has exactly the scratch that its query told, and an unreadable page behind it. */
static void kind_13_case_91_the_scratch_is_what_the_query_tells(void **state)
{
    (void)state;
    for (int i = 0; i < 700; i++) {
        struct generated_case c;
        generated_make(&c);
        mha_context *with = context_guarded();
        float *out = guarded_floats(c.B * c.L * c.H * c.Dv);
        struct mha_tensor to = mha_tensor_4d(out, MHA_FLOAT32, c.B, c.L, c.H, c.Dv);
        struct mha_outputs outputs = { .out = &to };
        int64_t bytes = 0;
        check_status(with, mha_attention_workspace(with, &c.inputs, &c.options, &outputs, &bytes),
                     MHA_OK);
        assert_int_equal(bytes % 64, 0);
        check_status(with, mha_context_reserve(with, bytes), MHA_OK);
        check_status(with, mha_attention(with, &c.inputs, &c.options, &outputs), MHA_OK);
        guarded_free(out);
        mha_context_free(with);
        generated_free(&c);
    }
    for (int i = 0; i < 300; i++) {
        struct generated_layer g;
        generated_layer_make(&g);
        mha_context *with = context_guarded();
        mha_layer *layer = NULL;
        struct mha_outputs outputs = { .out = &g.out };
        int64_t bytes = 0;
        check_status(with, mha_layer_create(with, &g.shape, &g.weights, g.ownership, &layer),
                     MHA_OK);
        check_status(with,
                     mha_forward_workspace(with, layer, &g.inputs, &g.options, &outputs, &bytes),
                     MHA_OK);
        assert_int_equal(bytes % 64, 0);
        check_status(with, mha_context_reserve(with, bytes), MHA_OK);
        check_status(with, mha_forward(with, layer, &g.inputs, &g.options, &outputs), MHA_OK);
        mha_layer_free(layer);
        mha_context_free(with);
        generated_layer_free(&g);
    }
}

static void kind_13_case_91_sizes_that_overflow_are_an_error(void **state)
{
    (void)state;
    const int64_t big = INT64_C(1) << 40;
    static const int64_t shapes[][4] = {
        { 1, 1, INT64_C(1) << 40, 1 },
        { 1, 1, 1, INT64_C(1) << 40 },
        { INT64_C(1) << 40, INT64_C(1) << 40, 1, 1 },
        { INT64_MAX, 2, 1, 1 },
    };
    for (int64_t i = 0; i < COUNT(shapes); i++) {
        const int64_t *n = shapes[i];
        struct mha_tensor t = mha_tensor_4d(NULL, MHA_FLOAT32, n[0], n[1], n[2], n[3]);
        int64_t bytes = 77;
        mha_status status = mha_attention_workspace(ctx, &(struct mha_inputs){ .query = &t }, NULL,
                                                    &(struct mha_outputs){ .out = &t }, &bytes);
        check_status(ctx, status, MHA_ERROR_OVERFLOW);
        assert_int_equal(bytes, 77);
    }
    /* Many rows alone are none: no scratch grows with them. */
    struct mha_tensor t = mha_tensor_4d(NULL, MHA_FLOAT32, 1, big, 1, 1);
    int64_t bytes = -1;
    check_status(ctx,
                 mha_attention_workspace(ctx, &(struct mha_inputs){ .query = &t }, NULL,
                                         &(struct mha_outputs){ .out = &t }, &bytes),
                 MHA_OK);
    assert_in_range(bytes, 1, 1 << 20);
}

/* Every operand of exactly its size before an unreadable page; each size in turn is n. */
static void attend_guarded(struct generated_case *c)
{
    const int64_t counts[] = { c->B * c->L * c->H * c->D,  c->B * c->S * c->G * c->D,
                               c->B * c->S * c->G * c->Dv, c->L * c->S,
                               c->B * c->L * c->H * c->Dv, c->B * c->H * c->L * c->S };
    float *f[6];
    for (int i = 0; i < 6; i++)
        f[i] = c->blocks[c->block_count++] = guarded_floats(counts[i]);
    uint8_t *bits = c->blocks[c->block_count++] = guarded(c->L * c->S);
    for (int64_t i = 0; i < c->L * c->S; i++)
        bits[i] = random_below(4) > 0;
    c->query = mha_tensor_4d(f[0], MHA_FLOAT32, c->B, c->L, c->H, c->D);
    c->key = mha_tensor_4d(f[1], MHA_FLOAT32, c->B, c->S, c->G, c->D);
    c->value = mha_tensor_4d(f[2], MHA_FLOAT32, c->B, c->S, c->G, c->Dv);
    c->inputs = (struct mha_inputs){ .query = &c->query, .key = &c->key, .value = &c->value };
    c->options.mask_kind = (int32_t)random_below(4);
    bool additive = c->options.mask_kind == MHA_MASK_ADDITIVE;
    c->mask = mha_tensor_4d(additive ? (void *)f[3] : bits, additive ? MHA_FLOAT32 : MHA_BOOL, 1, 1,
                            c->L, c->S);
    c->options.mask = &c->mask;
    struct mha_tensor out = mha_tensor_4d(f[4], MHA_FLOAT32, c->B, c->L, c->H, c->Dv);
    struct mha_tensor weights = mha_tensor_4d(f[5], MHA_FLOAT32, c->B, c->H, c->L, c->S);
    struct mha_outputs outputs = { .out = &out, .weights = &weights };
    check_status(ctx, mha_attention(ctx, &c->inputs, &c->options, &outputs), MHA_OK);
    struct reference_result want;
    reference_attention(&c->inputs, &c->options, &want);
    error_model_check(c, &want, &(struct float_arrays){ .out = f[4], .weights = f[5] });
    reference_free(&want);
}

static void kind_13_case_92_nothing_is_read_behind_an_operand(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= 70; n++)
        for (int which = 0; which < 5; which++) {
            struct generated_case c = { .B = 2, .L = 3, .S = 5, .H = 4, .G = 2, .D = 7, .Dv = 6 };
            int64_t *const sizes[] = { &c.L, &c.S, &c.D, &c.Dv, &c.G };
            *sizes[which] = n;
            c.H = which == 4 ? n : c.H;
            snprintf(c.text, sizeof c.text, "n %" PRId64 " at %d: ", n, which);
            attend_guarded(&c);
            generated_free(&c);
        }
}

/* ---- kind 18: manners ------------------------------------------------------------------------ */

static void kind_18_case_123_errno_is_left_alone(void **state)
{
    (void)state;
    float x[4] = { 1, 2, 3, 4 }, y[4];
    struct mha_tensor tx = mha_tensor_4d(x, MHA_FLOAT32, 1, 2, 1, 2);
    struct mha_tensor ty = mha_tensor_4d(y, MHA_FLOAT32, 1, 2, 1, 2), wrong = tx, view;
    struct mha_tensor rows = mha_tensor_2d(x, MHA_FLOAT32, 2, 2);
    wrong.strides[3] = 2;
    struct mha_layer_shape shape = { .E = 2, .H = 1 }, none = { 0 };
    struct mha_weights weights = { .w_q = &rows, .w_k = &rows, .w_v = &rows };
    struct mha_context_options unknown = { .isa = "abacus" };
    mha_context *other = NULL;
    mha_layer *layer = NULL;
    errno = 1234;
    check_status(ctx, attend(&tx, &tx, &tx, NULL, &ty), MHA_OK);
    assert_int_equal(errno, 1234);
    check_status(ctx, attend(&wrong, &tx, &tx, NULL, &ty), MHA_ERROR_LAYOUT);
    assert_int_equal(errno, 1234);
    check_status(ctx, mha_layer_create(ctx, &shape, &weights, MHA_COPY, &layer), MHA_OK);
    mha_layer_free(layer);
    assert_int_equal(errno, 1234);
    check_status(ctx, mha_layer_create(ctx, &none, &weights, MHA_COPY, &layer), MHA_ERROR_ARGUMENT);
    assert_int_equal(errno, 1234);
    check_status(NULL, mha_context_create(&unknown, &other), MHA_ERROR_ARGUMENT);
    assert_int_equal(errno, 1234);
    check_status(ctx, mha_context_reserve(ctx, -1), MHA_ERROR_ARGUMENT);
    check_status(ctx, mha_tensor_slice(ctx, &tx, 9, 0, 1, &view), MHA_ERROR_ARGUMENT);
    assert_int_equal(errno, 1234);
    check_status(ctx, mha_npy_read(ctx, "/no such directory/x.npy", &tx), MHA_ERROR_FILE);
    assert_int_equal(errno, 1234);
}

/* Results below the smallest normal number exist: nothing flushes them to zero. */
static void kind_18_case_124_subnormal_results_exist(void **state)
{
    (void)state;
    float q = 1, v = 0x1p-140f, out = 0, lse = 0;
    struct mha_tensor tq = mha_tensor_4d(&q, MHA_FLOAT32, 1, 1, 1, 1);
    struct mha_tensor tv = mha_tensor_4d(&v, MHA_FLOAT32, 1, 1, 1, 1);
    struct mha_tensor to = mha_tensor_4d(&out, MHA_FLOAT32, 1, 1, 1, 1);
    struct mha_tensor tl = mha_tensor_3d(&lse, MHA_FLOAT32, 1, 1, 1);
    struct mha_inputs inputs = { .query = &tq, .key = &tv, .value = &tv };
    struct mha_outputs outputs = { .out = &to, .lse = &tl };
    check_status(ctx, mha_attention(ctx, &inputs, NULL, &outputs), MHA_OK);
    assert_true(out == 0x1p-140f);
    assert_true(lse == 0x1p-140f); /* the score, whose exponential sums to one */
    volatile double tiny = 1e-310;
    assert_true(tiny * 1.0 != 0);
}

#if defined(__x86_64__)
/* The control word that the host chose is there after each call; its flags may be raised. */
static void kind_18_case_124_the_control_word_is_left_alone(void **state)
{
    (void)state;
    static const unsigned modes[] = { 0, _MM_FLUSH_ZERO_ON, _MM_FLUSH_ZERO_ON | 0x40,
                                      _MM_ROUND_TOWARD_ZERO, _MM_ROUND_UP };
    unsigned host = _mm_getcsr() & ~(unsigned)_MM_EXCEPT_MASK;
    struct generated_layer g;
    generated_layer_make(&g);
    for (int64_t i = 0; i < COUNT(modes); i++) {
        unsigned after[3];
        mha_layer *layer = NULL;
        struct mha_outputs outputs = { .out = &g.out };
        mha_status status[2];
        _mm_setcsr(host | modes[i]);
        status[0] = mha_layer_create(ctx, &g.shape, &g.weights, MHA_COPY, &layer);
        after[0] = _mm_getcsr();
        status[1] = mha_forward(ctx, layer, &g.inputs, &g.options, &outputs);
        after[1] = _mm_getcsr();
        mha_status refused = mha_forward(ctx, NULL, &g.inputs, &g.options, &outputs);
        after[2] = _mm_getcsr();
        _mm_setcsr(host);
        check_status(ctx, status[0], MHA_OK);
        check_status(ctx, status[1], MHA_OK);
        check_status(ctx, refused, MHA_ERROR_ARGUMENT);
        for (int x = 0; x < 3; x++)
            assert_int_equal(after[x] & ~(unsigned)_MM_EXCEPT_MASK, host | modes[i]);
        mha_layer_free(layer);
    }
    generated_layer_free(&g);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kind_12_case_80_strides_are_honoured),
        cmocka_unit_test(kind_12_case_80_strides_of_every_output_are_honoured),
        cmocka_unit_test(kind_12_case_81_a_last_stride_other_than_one_is_refused),
        cmocka_unit_test(kind_12_case_82_no_size_stops_the_process),
        cmocka_unit_test(kind_12_case_83_nothing_is_a_legal_amount),
        cmocka_unit_test(kind_12_case_84_every_pair_of_operands_is_compared),
        cmocka_unit_test(kind_13_case_89_offsets_are_64_bits_wide),
        cmocka_unit_test(kind_13_case_91_the_scratch_is_what_the_query_tells),
        cmocka_unit_test(kind_13_case_91_sizes_that_overflow_are_an_error),
        cmocka_unit_test(kind_13_case_92_nothing_is_read_behind_an_operand),
        cmocka_unit_test(kind_18_case_123_errno_is_left_alone),
        cmocka_unit_test(kind_18_case_124_subnormal_results_exist),
#if defined(__x86_64__)
        cmocka_unit_test(kind_18_case_124_the_control_word_is_left_alone),
#endif
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
