/* Sizes on both roads: none, too many, every extreme number in every field, and the arithmetic of
 * the workspace query. Among them published cases of kind 12 (shapes, strides, empties) and kind 13
 * (size arithmetic). */
#include "problem.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "generator.h"

/* ---- queries without memory ------------------------------------------------------------------ */

/* The query looks at shapes, strides and options: neither data nor lengths change its answer. */
static void queries_need_no_data(void **state)
{
    (void)state;
    for (enum road road = ATTENTION; road < ROADS; road++) {
        struct problem p = problem_make(road);
        problem_give(&p, NONE);
        int64_t with = 0, without = 0, calls = counter.calls;
        check_status(ctx, problem_query(&p, &with), MHA_OK);
        for (int i = 0; i < OPERANDS; i++)
            p.t[i].data = NULL;
        check_status(ctx, problem_query(&p, &without), MHA_OK);
        assert_int_equal(with, without);
        p.inputs.query_lengths = p.inputs.key_lengths = NULL;
        check_status(ctx, problem_query(&p, &without), MHA_OK);
        assert_int_equal(with, without);
        assert_int_equal(counter.calls, calls);
        /* Presence counts: outputs without data are outputs all the same. */
        problem_give(&p, WITHOUT(RESIDUAL) | WITHOUT(OUT));
        check_status(ctx, problem_query(&p, &without), MHA_OK);
        assert_true(road == ATTENTION ? without <= with : without < with);
    }
}

/* ---- every integer --------------------------------------------------------------------------- */

static const int64_t extremes[] = {
    -1, 0, 1, INT_MAX, INT_MIN, INT64_MAX, INT64_MIN, (int64_t)1 << 31, (int64_t)1 << 62
};

/* Whatever a call says, it says it; what it refuses, it leaves untouched. */
static void survives(const struct problem *p, bool run)
{
    int64_t bytes = -7;
    mha_status status = problem_query(p, &bytes);
    assert_in_range(status, MHA_OK, MHA_ERROR_BLAS);
    assert_true(status == MHA_OK ? bytes >= 0 : bytes == -7);
    if (!run)
        return;
    problem_remember();
    status = problem_call(p);
    assert_in_range(status, MHA_OK, MHA_ERROR_BLAS);
    if (status != MHA_OK) {
        check_call_message(p, "");
        check_untouched();
    }
}

static void every_integer_of_every_operand(void **state)
{
    (void)state;
    for (enum road road = ATTENTION; road < ROADS; road++)
        for (int i = 0; i < OPERANDS; i++)
            for (int64_t v = 0; v < COUNT(extremes); v++) {
                struct problem p = problem_make(road);
                problem_give(&p, NONE);
                const struct mha_tensor good = p.t[i];
                int64_t value = extremes[v];
                p.t[i].type = (int32_t)value == MHA_FLOAT32 ? 0 : (int32_t)value;
                survives(&p, true);
                p.t[i] = good;
                p.t[i].rank = (int32_t)value;
                survives(&p, true);
                p.t[i] = good;
                p.t[i].flags = value;
                survives(&p, true);
                p.t[i] = good;
                for (int32_t axis = 0; axis < MHA_MAX_RANK; axis++) {
                    p.t[i].shape[axis] = value;
                    survives(&p, true);
                    p.t[i] = good;
                    /* A stride that memory does not have cannot be found out: no call. */
                    p.t[i].strides[axis] = value;
                    survives(&p, axis >= good.rank);
                    p.t[i] = good;
                }
            }
}

static void every_integer_of_the_options(void **state)
{
    (void)state;
    const size_t narrow[] = {
        offsetof(struct mha_options, scale_mode),     offsetof(struct mha_options, softcap_mode),
        offsetof(struct mha_options, mask_kind),      offsetof(struct mha_options, causal),
        offsetof(struct mha_options, align),          offsetof(struct mha_options, window),
        offsetof(struct mha_options, zero_attention), offsetof(struct mha_options, reserved)
    };
    const size_t wide[] = { offsetof(struct mha_options, size),
                            offsetof(struct mha_options, window_left),
                            offsetof(struct mha_options, window_right) };
    for (enum road road = ATTENTION; road < ROADS; road++)
        for (int64_t v = 0; v < COUNT(extremes); v++) {
            struct problem p = problem_make(road);
            problem_give(&p, NONE);
            const struct mha_options good = p.options;
            for (int64_t i = 0; i < COUNT(narrow); i++) {
                int32_t value = (int32_t)extremes[v];
                p.options = good;
                memcpy((char *)&p.options + narrow[i], &value, sizeof value);
                survives(&p, true);
            }
            for (int64_t i = 0; i < COUNT(wide); i++) {
                p.options = good;
                memcpy((char *)&p.options + wide[i], &extremes[v], sizeof extremes[v]);
                survives(&p, true);
            }
        }
}

/* Sizes of nothing: empty operands have no memory to disagree with, so any number may stand beside
 * the zero, and any stride. */
static void every_integer_beside_a_zero(void **state)
{
    (void)state;
    const int64_t sizes[] = {
        0, 1, 3, INT_MAX, (int64_t)1 << 31, (int64_t)1 << 61, INT64_MAX - 1, INT64_MAX
    };
    const uint32_t pair = WITHOUT(BIAS_K) | WITHOUT(BIAS_V),
                   counts = WITHOUT(QUERY_LENGTHS) | WITHOUT(KEY_LENGTHS) | WITHOUT(OFFSETS)
                            | WITHOUT(MASK);
    for (enum road road = ATTENTION; road < ROADS; road++)
        for (int64_t l = 0; l < COUNT(sizes); l++)
            for (int64_t s = 0; s < COUNT(sizes); s++)
                for (int extra = 0; extra < 2; extra++) {
                    struct problem p = problem_make(road);
                    p.options = (struct mha_options){ .zero_attention = extra };
                    problem_give(&p, pair | counts);
                    for (int i = 0; i < OPERANDS; i++)
                        p.t[i].data = NULL;
                    for (int i = 0; i < OPERANDS; i++)
                        p.t[i].shape[0] = 0;
                    p.t[QUERY].shape[1] = p.t[OUT].shape[1] = p.t[RESIDUAL].shape[1] = sizes[l];
                    p.t[LSE].shape[2] = p.t[WEIGHTS].shape[2] = p.t[WEIGHTS_MEAN]
                                                                    .shape[1] = sizes[l];
                    p.t[KEY].shape[1] = p.t[VALUE].shape[1] = sizes[s];
                    p.t[WEIGHTS].shape[3] = p.t[WEIGHTS_MEAN].shape[2] = sizes[s]
                                                                                 > INT64_MAX - extra
                                                                             ? sizes[s]
                                                                             : sizes[s] + extra;
                    survives(&p, true);
                }
}

/* No rows, but keys beyond counting, all of them one and the same element: of width 1, so that the
 * counts come as close to 2^63 as they can. */
static void keys_beyond_counting(void **state)
{
    (void)state;
    float one = 1;
    const struct mha_tensor w = mha_tensor_2d_const(&one, MHA_FLOAT32, 1, 1);
    const struct mha_weights weights = { .w_q = &w, .w_k = &w, .w_v = &w, .w_o = &w };
    const struct mha_layer_shape shape = { .E = 1, .H = 1 };
    mha_layer *narrow = NULL;
    check_status(ctx, mha_layer_create(ctx, &shape, &weights, MHA_COPY, &narrow), MHA_OK);
    for (enum road road = ATTENTION; road < ROADS; road++)
        for (int power = 20; power < 63; power++) {
            struct problem p = problem_make(road);
            p.layer = narrow;
            p.options = (struct mha_options){ 0 };
            problem_give(&p, ~(WITHOUT(QUERY) | WITHOUT(KEY) | WITHOUT(VALUE) | WITHOUT(OUT)));
            for (int i = QUERY; i <= OUT; i++) {
                p.t[i].shape[0] = (int64_t)1 << (power / 2);
                p.t[i].shape[1] = i == KEY || i == VALUE ? (int64_t)1 << (power - power / 2) : 0;
                p.t[i].shape[2] = p.t[i].shape[3] = 1;
                p.t[i].strides[0] = p.t[i].strides[1] = 0;
            }
            survives(&p, power > 56); /* a call of fewer keys would go through them */
        }
    mha_layer_free(narrow);
}

/* Strides of an empty operand lead nowhere and are not followed. */
static void strides_of_empty_operands(void **state)
{
    (void)state;
    for (enum road road = ATTENTION; road < ROADS; road++)
        for (int64_t v = 0; v < COUNT(extremes); v++)
            for (int given = 0; given < 2; given++) {
                struct problem p = problem_make(road);
                problem_give(&p, WITHOUT(BIAS_K) | WITHOUT(BIAS_V) | WITHOUT(KEY_LENGTHS)
                                     | WITHOUT(WEIGHTS_MEAN));
                p.options.zero_attention = 0;
                const int empty[] = { KEY, VALUE, MASK, WEIGHTS };
                for (int64_t i = 0; i < COUNT(empty); i++) {
                    struct mha_tensor *t = &p.t[empty[i]];
                    t->shape[empty[i] == KEY || empty[i] == VALUE ? 1 : 3] = 0;
                    for (int32_t axis = 0; axis < t->rank - 1; axis++)
                        t->strides[axis] = extremes[v] < 0 ? 0 : extremes[v];
                    t->data = given ? t->data : NULL;
                }
                if (road == ATTENTION) { /* three samples, so that a stride is doubled */
                    for (int i = 0; i < OPERANDS; i++)
                        p.t[i].shape[0] = 3;
                    memcpy(p.t[QUERY_LENGTHS].data, (const int32_t[]){ 1, 2, 3 }, 12);
                    memcpy(p.t[OFFSETS].data, (const int64_t[]){ 1, 2, 3 }, 24);
                }
                check_status(ctx, problem_call(&p), MHA_OK);
            }
}

/* ---- published cases: shapes, strides, empties ----------------------------------------------- */

static void kind_12_case_81_inner_strides(void **state)
{
    (void)state;
    for (enum road road = ATTENTION; road < ROADS; road++)
        for (int i = 0; i < OPERANDS; i++) {
            struct problem p = problem_make(road);
            problem_give(&p, NONE);
            const struct mha_tensor good = p.t[i];
            const int64_t strides[] = { 2, 0, L, -1 };
            for (int64_t s = 0; s < COUNT(strides); s++) {
                char text[64];
                p.t[i].strides[good.rank - 1] = strides[s];
                snprintf(text, sizeof text,
                         strides[s] < 0 ? " has the stride -1 on axis %d, wanted none below 0"
                                        : " has the stride %d on its last axis, wanted 1",
                         strides[s] < 0 ? (int)good.rank - 1 : (int)strides[s]);
                check_operand(&p, i, MHA_ERROR_LAYOUT, text);
            }
            p.t[i] = good;
            if (good.rank > 1) {
                p.t[i].strides[0] = -good.strides[0];
                check_operand(&p, i, MHA_ERROR_LAYOUT, " has the stride -");
            }
        }
}

static void kind_12_case_82_zero_heads(void **state)
{
    (void)state;
    const struct {
        int64_t H, G, D, Dv;
        mha_status status;
        const char *text;
    } cases[] = {
        { 0, 2, 7, 11, MHA_ERROR_ARGUMENT, "query heads H is 0" },
        { 4, 0, 7, 11, MHA_ERROR_ARGUMENT, "key/value heads G is 0" },
        { 0, 0, 7, 11, MHA_ERROR_ARGUMENT, "query heads H is 0" },
        { 4, 2, 0, 11, MHA_ERROR_ARGUMENT, "head width D is 0" },
        { 4, 2, 7, 0, MHA_ERROR_ARGUMENT, "value head width Dv is 0" },
        { 4, 3, 7, 11, MHA_ERROR_SHAPE, "wanted H to be a multiple of G" },
        { 2, 4, 7, 11, MHA_ERROR_SHAPE, "wanted H to be a multiple of G" },
        { 1, 4, 7, 11, MHA_ERROR_SHAPE, "wanted H to be a multiple of G" },
    };
    for (int64_t i = 0; i < COUNT(cases); i++) {
        struct problem p = problem_make(ATTENTION);
        problem_give(&p, NONE);
        p.t[QUERY].shape[2] = cases[i].H;
        p.t[QUERY].shape[3] = p.t[KEY].shape[3] = cases[i].D;
        p.t[KEY].shape[2] = p.t[VALUE].shape[2] = cases[i].G;
        p.t[VALUE].shape[3] = cases[i].Dv;
        for (int t = QUERY; t <= VALUE; t++)
            pack_strides(&p.t[t]);
        check_refused(&p, cases[i].status, cases[i].text);
    }
}

/* All combinations of nothing and something; empty operands have no memory. */
static void kind_12_case_83_empties(void **state)
{
    (void)state;
    for (enum road road = ATTENTION; road < ROADS; road++)
        for (int empty = 0; empty < 8; empty++)
            for (int extra = 0; extra < 2; extra++) {
                struct problem p = problem_make(road);
                int64_t b = empty & 1 ? 0 : B, l = empty & 2 ? 0 : L, s = empty & 4 ? 0 : S;
                problem_give(&p, WITHOUT(QUERY_LENGTHS) | WITHOUT(KEY_LENGTHS)
                                     | (extra ? 0 : WITHOUT(BIAS_K) | WITHOUT(BIAS_V)));
                p.options.zero_attention = 0;
                for (int i = 0; i < OPERANDS; i++)
                    if (i != BIAS_K && i != BIAS_V)
                        p.t[i].shape[0] = b;
                p.t[QUERY].shape[1] = p.t[RESIDUAL].shape[1] = p.t[OUT].shape[1] = l;
                p.t[LSE].shape[2] = p.t[WEIGHTS].shape[2] = p.t[WEIGHTS_MEAN].shape[1] = l;
                p.t[MASK].shape[2] = l;
                p.t[KEY].shape[1] = p.t[VALUE].shape[1] = p.t[MASK].shape[3] = s;
                p.t[WEIGHTS].shape[3] = p.t[WEIGHTS_MEAN].shape[2] = s + extra;
                for (int i = 0; i < OPERANDS; i++) {
                    pack_strides(&p.t[i]);
                    if (mha_tensor_count(&p.t[i]) == 0)
                        p.t[i].data = NULL;
                }
                if (b > 0)
                    check_accepted(&p);
                check_status(ctx, problem_call(&p), MHA_OK);
                for (int64_t e = 0; s == 0 && !extra && e < b * H * l; e++)
                    assert_true(((float *)p.t[LSE].data)[e] == -INFINITY);
                if (b > 0 && l > 0 && s == 0 && !extra && road == ATTENTION)
                    check_same_bits("out of no keys", p.t[OUT].data, p.t[RESIDUAL].data,
                                    b * l * H * Dv);
            }
}

static void kind_12_case_84_key_and_value_lengths(void **state)
{
    (void)state;
    for (enum road road = ATTENTION; road < ROADS; road++)
        for (int64_t s = S - 1; s <= S + 1; s += 2) {
            struct problem p = problem_make(road);
            problem_give(&p, NONE);
            char text[96];
            p.t[VALUE].shape[1] = s;
            pack_strides(&p.t[VALUE]);
            snprintf(
                text, sizeof text,
                road == FORWARD
                    ? "value has the shape [2, %d, 19], wanted [B, S, E_value] = [2, 5, 19]"
                    : "value has the shape [2, %d, 2, 11], wanted [B, S, G, Dv] = [2, 5, 2, 11]",
                (int)s);
            check_refused(&p, MHA_ERROR_SHAPE, text);
        }
}

/* ---- published cases: size arithmetic -------------------------------------------------------- */

/* Addresses with memory behind them only where it is written; NULL where there are not enough. */
static float *sparse(int64_t floats)
{
    void *map = mmap(NULL, (size_t)floats * sizeof(float), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return map == MAP_FAILED ? NULL : map;
}

/* Row strides beyond the integers of a BLAS, and more rows than it can count. */
static void kind_13_case_90_beyond_blas_integers(void **state)
{
    (void)state;
    const int64_t stride = (int64_t)1 << 31, rows = stride + 1;
    struct problem p = problem_make(FORWARD);
    problem_give(&p, WITHOUT(QUERY_LENGTHS) | WITHOUT(KEY_LENGTHS) | WITHOUT(BIAS_K)
                         | WITHOUT(BIAS_V) | WITHOUT(MASK) | WITHOUT(OFFSETS) | WITHOUT(LSE)
                         | WITHOUT(WEIGHTS) | WITHOUT(WEIGHTS_MEAN));
    p.options = (struct mha_options){ 0 };
    int64_t bytes = 0;
    for (int i = 0; i < OPERANDS; i++)
        p.t[i].data = NULL;
    for (int many = 0; many < 2; many++) {
        int64_t b = many ? 1 : rows, l = many ? rows : 1;
        p.t[QUERY].shape[0] = p.t[KEY].shape[0] = p.t[VALUE].shape[0] = b;
        p.t[RESIDUAL].shape[0] = p.t[OUT].shape[0] = b;
        p.t[QUERY].shape[1] = p.t[RESIDUAL].shape[1] = p.t[OUT].shape[1] = l;
        p.t[KEY].shape[1] = p.t[VALUE].shape[1] = 1;
        for (int i = QUERY; i <= OUT; i++)
            pack_strides(&p.t[i]);
        check_status(ctx, problem_query(&p, &bytes), MHA_OK);
        int64_t floats = rows * H * (D + Dv) + b * G * (D + Dv);
        assert_true(bytes > floats * (int64_t)sizeof(float));
    }

    float *far[3];
    for (int i = 0; i < 3; i++) {
        far[i] = sparse(stride + E_OUT);
        if (!far[i])
            skip();
    }
    p = problem_make(FORWARD);
    problem_give(&p, WITHOUT(QUERY_LENGTHS) | WITHOUT(KEY_LENGTHS) | WITHOUT(BIAS_K)
                         | WITHOUT(BIAS_V) | WITHOUT(MASK) | WITHOUT(OFFSETS));
    p.options = (struct mha_options){ 0 };
    p.t[WEIGHTS].shape[3] = p.t[WEIGHTS_MEAN].shape[2] = S;
    const int apart[] = { QUERY, RESIDUAL, OUT };
    for (int i = 0; i < OPERANDS; i++) {
        p.t[i].shape[0] = 1;
        pack_strides(&p.t[i]);
    }
    for (int i = 0; i < 3; i++) {
        struct mha_tensor *t = &p.t[apart[i]];
        t->shape[1] = 2;
        for (int row = 0; row < 2; row++)
            random_fill(far[i] + row * stride, t->shape[2]);
        t->data = far[i];
        t->strides[1] = stride;
    }
    p.t[LSE].shape[2] = p.t[WEIGHTS].shape[2] = p.t[WEIGHTS_MEAN].shape[1] = 2;
    for (int i = LSE; i < OPERANDS; i++)
        pack_strides(&p.t[i]);
    check_accepted(&p);
    for (int i = 0; i < 3; i++)
        munmap(far[i], (size_t)(stride + E_OUT) * sizeof(float));
}

/* Blocks that end exactly at an unreadable page, and hold NaN. */
static int64_t tight_calls;

static void *tight_allocate(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    tight_calls++;
    size_t whole = (bytes + alignment - 1) / alignment * alignment;
    void *block = guarded((int64_t)whole);
    memset(block, 0xff, whole);
    return block;
}

static void tight_release(void *user, void *block, size_t bytes)
{
    (void)user;
    (void)bytes;
    guarded_free(block);
}

static mha_context *context_tight(void)
{
    static const struct mha_allocator tight = { tight_allocate, tight_release, NULL };
    mha_context *tight_context = NULL;
    const struct mha_context_options options = { .allocator = &tight };
    check_status(NULL, mha_context_create(&options, &tight_context), MHA_OK);
    return tight_context;
}

/* The query's answer is what the call takes, to the byte: it suffices, and nothing lies beyond it.
 * One byte less, and the call asks for more. */
static void kind_13_case_91_query_is_exact(void **state)
{
    (void)state;
    mha_context *outer = ctx;
    for (int run = 0; run < 1000; run++) {
        struct generated_case c;
        generated_make(&c);
        float *out = guarded_floats(c.B * c.L * c.H * c.Dv);
        const struct mha_tensor t = mha_tensor_4d(out, MHA_FLOAT32, c.B, c.L, c.H, c.Dv);
        const struct mha_outputs outputs = { .out = &t };
        int64_t bytes = 0;
        for (int less = 0; less < 2; less++) {
            ctx = context_tight();
            check_status(ctx, mha_attention_workspace(ctx, &c.inputs, &c.options, &outputs, &bytes),
                         MHA_OK);
            check_status(ctx, mha_context_reserve(ctx, bytes - less), MHA_OK);
            int64_t calls = tight_calls;
            check_status(ctx, mha_attention(ctx, &c.inputs, &c.options, &outputs), MHA_OK);
            assert_int_equal(tight_calls, calls + less);
            mha_context_free(ctx);
        }
        guarded_free(out);
        generated_free(&c);
    }
    for (uint32_t absent = 0; absent < 1u << OPERANDS; absent += 1 + (uint32_t)random_below(60)) {
        struct problem p = problem_make(FORWARD);
        problem_give(&p,
                     absent & ~(WITHOUT(QUERY) | WITHOUT(MASK) | WITHOUT(OFFSETS) | WITHOUT(LSE)));
        if (!p.inputs.key || !p.inputs.value || !p.outputs.out)
            continue;
        p.inputs.bias_k = p.inputs.bias_v ? p.inputs.bias_k : NULL;
        p.inputs.bias_v = p.inputs.bias_k ? p.inputs.bias_v : NULL;
        p.t[WEIGHTS].shape[3] = p.t[WEIGHTS_MEAN].shape[2] = S + 1 + (p.inputs.bias_k != NULL);
        pack_strides(&p.t[WEIGHTS]);
        pack_strides(&p.t[WEIGHTS_MEAN]);
        int64_t bytes = 0;
        for (int less = 0; less < 2; less++) {
            ctx = context_tight();
            check_status(ctx, problem_query(&p, &bytes), MHA_OK);
            check_status(ctx, mha_context_reserve(ctx, bytes - less), MHA_OK);
            int64_t calls = tight_calls;
            check_status(ctx, problem_call(&p), MHA_OK);
            assert_int_equal(tight_calls, calls + less);
            mha_context_free(ctx);
        }
    }
    ctx = outer;
}

static void kind_13_case_91_products_overflow(void **state)
{
    (void)state;
    struct problem p = problem_make(ATTENTION);
    problem_give(&p, NONE);
    for (int i = QUERY; i <= VALUE; i++)
        for (int32_t axis = 0; axis < 3; axis++)
            p.t[i].strides[axis] = 0; /* nothing but the count is too large */
    p.t[QUERY].shape[2] = (int64_t)1 << 40;
    check_refused(&p, MHA_ERROR_OVERFLOW,
                  "query heads H is 1099511627776, wanted at most 2^31 - 1");
    p.t[QUERY].shape[2] = H;
    p.t[KEY].shape[2] = p.t[VALUE].shape[2] = (int64_t)1 << 40;
    check_refused(&p, MHA_ERROR_OVERFLOW,
                  "key/value heads G is 1099511627776, wanted at most 2^31 - 1");
    p.t[KEY].shape[2] = p.t[VALUE].shape[2] = G;
    /* Each operand has a count, but the rows of the output do not. */
    for (int i = QUERY; i <= VALUE; i++) {
        p.t[i].shape[0] = (int64_t)1 << 30;
        p.t[i].shape[1] = (int64_t)1 << (i == QUERY ? 30 : 3);
        p.t[i].shape[2] = 1;
        p.t[i].shape[3] = i == VALUE ? Dv : 1;
    }
    check_refused(&p, MHA_ERROR_OVERFLOW,
                  "B = 1073741824, L = 1073741824, S = 8, H = 1 make more ");
    /* Each operand by itself: a shape that no pointer spans. */
    for (enum road road = ATTENTION; road < ROADS; road++)
        for (int i = 0; i < OPERANDS; i++) {
            p = problem_make(road);
            problem_give(&p, NONE);
            p.t[i].shape[0] = (int64_t)1 << 61;
            check_operand(&p, i, MHA_ERROR_OVERFLOW, " of shape [2305843009213693952");
        }
    /* Each array of the scratch fits, together they do not: keys that all repeat one. */
    p = problem_make(FORWARD);
    problem_give(&p, WITHOUT(QUERY_LENGTHS) | WITHOUT(KEY_LENGTHS) | WITHOUT(BIAS_K)
                         | WITHOUT(BIAS_V) | WITHOUT(MASK) | WITHOUT(OFFSETS) | WITHOUT(WEIGHTS)
                         | WITHOUT(WEIGHTS_MEAN));
    p.options = (struct mha_options){ 0 };
    p.t[KEY].shape[1] = p.t[VALUE].shape[1] = (int64_t)1 << 55;
    p.t[KEY].strides[1] = p.t[VALUE].strides[1] = 0;
    for (int i = 0; i < OPERANDS; i++)
        p.t[i].shape[0] = 1;
    check_refused(&p, MHA_ERROR_OVERFLOW, "the scratch memory for these sizes exceeds 2^63 bytes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queries_need_no_data),
        cmocka_unit_test(every_integer_of_every_operand),
        cmocka_unit_test(every_integer_of_the_options),
        cmocka_unit_test(every_integer_beside_a_zero),
        cmocka_unit_test(keys_beyond_counting),
        cmocka_unit_test(strides_of_empty_operands),
        cmocka_unit_test(kind_12_case_81_inner_strides),
        cmocka_unit_test(kind_12_case_82_zero_heads),
        cmocka_unit_test(kind_12_case_83_empties),
        cmocka_unit_test(kind_12_case_84_key_and_value_lengths),
        cmocka_unit_test(kind_13_case_90_beyond_blas_integers),
        cmocka_unit_test(kind_13_case_91_query_is_exact),
        cmocka_unit_test(kind_13_case_91_products_overflow),
    };
    return cmocka_run_group_tests(tests, problem_open, problem_close);
}
