/* Every refusal of a call on both roads: status, the argument's name in the message, and outputs
 * left untouched; and what must not be refused beside it. */
#include "problem.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void everything_at_once(void **state)
{
    (void)state;
    for (enum road road = ATTENTION; road < ROADS; road++) {
        struct problem p = problem_make(road);
        problem_give(&p, NONE);
        check_accepted(&p);
        /* Each output alone, and without each of the inputs that may be left out. */
        for (int i = RESIDUAL; i < OPERANDS; i++) {
            p = problem_make(road);
            problem_give(&p, i >= OUT ? 0xfu << OUT & ~WITHOUT(i) : WITHOUT(i));
            if (i > OUT)
                p.inputs.residual = NULL;
            if (i == MASK)
                p.options.mask_kind = MHA_MASK_OFF;
            if (i == OFFSETS)
                p.options.align = MHA_ALIGN_BOTTOM_RIGHT;
            if (i == BIAS_K || i == BIAS_V)
                problem_give(&p, WITHOUT(BIAS_K) | WITHOUT(BIAS_V) | WITHOUT(WEIGHTS)
                                     | WITHOUT(WEIGHTS_MEAN));
            check_accepted(&p);
        }
    }
}

/* ---- operands -------------------------------------------------------------------------------- */

static void wrong_rank(void **state)
{
    (void)state;
    for (enum road road = ATTENTION; road < ROADS; road++)
        for (int i = 0; i < OPERANDS; i++) {
            struct problem p = problem_make(road);
            problem_give(&p, NONE);
            int32_t rank = p.t[i].rank;
            p.t[i].rank = rank + 1;
            p.t[i].shape[rank] = 1;
            pack_strides(&p.t[i]);
            check_operand(&p, i, MHA_ERROR_SHAPE, " has the shape [");
            p.t[i].rank = rank - 1;
            pack_strides(&p.t[i]);
            check_operand(&p, i, MHA_ERROR_SHAPE, " has the shape [");
            p.t[i].rank = -1;
            check_operand(&p, i, MHA_ERROR_ARGUMENT, " has rank -1, wanted 0 to 6");
            p.t[i].rank = MHA_MAX_RANK + 1;
            check_operand(&p, i, MHA_ERROR_ARGUMENT, " has rank 7, wanted 0 to 6");
        }
}

static void wrong_type(void **state)
{
    (void)state;
    for (enum road road = ATTENTION; road < ROADS; road++)
        for (int i = 0; i < OPERANDS; i++) {
            struct problem p = problem_make(road);
            problem_give(&p, NONE);
            for (int32_t type = MHA_FLOAT32; type <= MHA_UINT64; type++) {
                bool right = i == MASK ? type == MHA_BOOL || type == MHA_UINT8
                             : i == QUERY_LENGTHS || i == KEY_LENGTHS || i == OFFSETS
                                 ? type == MHA_INT32 || type == MHA_INT64
                                 : type == MHA_FLOAT32;
                char text[48];
                p.t[i].type = type;
                snprintf(text, sizeof text, " is %s, wanted ", mha_type_text(type));
                if (!right)
                    check_operand(&p, i, MHA_ERROR_TYPE, text);
            }
            const int32_t none[] = { 0, -1, MHA_UINT64 + 1, INT32_MAX, INT32_MIN };
            for (int64_t n = 0; n < COUNT(none); n++) {
                p.t[i].type = none[n];
                check_operand(&p, i, MHA_ERROR_TYPE, " ");
            }
        }
    struct problem p = problem_make(ATTENTION);
    problem_give(&p, NONE);
    p.t[KEY_LENGTHS].type = MHA_FLOAT32; /* the message names both types that would do */
    check_refused(&p, MHA_ERROR_TYPE, "key_lengths is float32, wanted int32 or int64");
}

static void wrong_form(void **state)
{
    (void)state;
    for (enum road road = ATTENTION; road < ROADS; road++)
        for (int i = 0; i < OPERANDS; i++) {
            struct problem p = problem_make(road);
            problem_give(&p, NONE);
            const struct mha_tensor good = p.t[i];
            for (int32_t axis = 0; axis < good.rank; axis++) {
                p.t[i].shape[axis] = -1;
                check_operand(&p, i, MHA_ERROR_ARGUMENT, " has the shape [");
                check_contains(mha_context_message(ctx), "wanted no negative size");
                p.t[i].shape[axis] = INT64_MIN;
                check_operand(&p, i, MHA_ERROR_ARGUMENT, " has the shape [");
                p.t[i] = good;
                p.t[i].strides[axis] = INT64_MAX;
                check_operand(&p, i, MHA_ERROR_OVERFLOW, " of shape [");
                p.t[i] = good;
            }
            p.t[i].flags = 2;
            check_operand(&p, i, MHA_ERROR_ARGUMENT,
                          " has the flags 0x2, wanted 0 or MHA_READ_ONLY");
            p.t[i].flags = INT64_MIN;
            check_operand(&p, i, MHA_ERROR_ARGUMENT, " has the flags 0x8000000000000000");
            p.t[i] = good;
            p.t[i].data = NULL;
            char text[64];
            snprintf(text, sizeof text, "%s of shape [", operand_names[i]);
            check_refused_call(&p, MHA_ERROR_ARGUMENT, text);
            check_status(ctx, problem_call(&p), MHA_ERROR_ARGUMENT);
            check_contains(mha_context_message(ctx), "has no data (NULL)");
            p.t[i] = good;
            p.t[i].flags = MHA_READ_ONLY;
            if (i >= OUT)
                check_operand(&p, i, MHA_ERROR_LAYOUT, " is read-only");
            else
                check_accepted(&p);
            p.t[i].flags = 0;
            for (int32_t axis = 0; axis < good.rank - 1 && i >= OUT; axis++) {
                p.t[i].strides[axis] = 0;
                check_operand(&p, i, MHA_ERROR_LAYOUT, " of shape [");
                check_contains(mha_context_message(ctx),
                               "strides that give two elements one place");
                p.t[i] = good;
            }
        }
}

/* Which operand shows that a size of this one does not fit: the first of those checked that has the
 * same size, or this one itself. */
static const char *culprit(enum road road, int i, int32_t axis)
{
    if (i == QUERY && axis == 0)
        return "key has the shape [2, 5, ";
    if (i == QUERY && axis == 1)
        return "mask has the shape [2, 4, 3, 5]";
    if (i == KEY && axis == 1)
        return "value has the shape [2, 5, ";
    if (road == ATTENTION && i == QUERY && axis == 3)
        return "key has the shape [2, 5, 2, 7]";
    if (road == ATTENTION && i == VALUE && axis == 3)
        return "bias_v has the shape [2, 11]";
    return NULL;
}

static void wrong_shape(void **state)
{
    (void)state;
    for (enum road road = ATTENTION; road < ROADS; road++)
        for (int i = 0; i < OPERANDS; i++) {
            struct problem p = problem_make(road);
            problem_give(&p, NONE);
            const struct mha_tensor good = p.t[i];
            for (int32_t axis = 0; axis < good.rank; axis++)
                for (int step = -1; step <= 1; step += 2) {
                    bool heads = road == ATTENTION && axis == 2 && (i == QUERY || i == KEY);
                    p.t[i].shape[axis] += step;
                    pack_strides(&p.t[i]);
                    if (heads && (i == QUERY || step == 1))
                        check_refused(&p, MHA_ERROR_SHAPE,
                                      i == KEY    ? "query has H = 4 heads and key G = 3"
                                      : step == 1 ? "query has H = 5 heads and key G = 2"
                                                  : "query has H = 3 heads and key G = 2");
                    else if (heads) /* one head divides everything, but value has two */
                        check_refused(&p, MHA_ERROR_SHAPE, "value has the shape [2, 5, 2, 11]");
                    else if (i == MASK && p.t[i].shape[axis] == 1)
                        check_status(ctx, problem_call(&p), MHA_OK);
                    else if (culprit(road, i, axis))
                        check_refused(&p, MHA_ERROR_SHAPE, culprit(road, i, axis));
                    else
                        check_operand(&p, i, MHA_ERROR_SHAPE, " has the shape [");
                    p.t[i] = good;
                }
        }
}

static void missing_arguments(void **state)
{
    (void)state;
    const struct {
        uint32_t absent;
        const char *text;
    } cases[] = {
        { WITHOUT(QUERY), "query is NULL" },
        { WITHOUT(QUERY) | WITHOUT(KEY) | WITHOUT(VALUE), "query is NULL" },
        { WITHOUT(KEY), "key is NULL and value is not, wanted both" },
        { WITHOUT(VALUE), "value is NULL and key is not, wanted both" },
        { WITHOUT(BIAS_K), "bias_v is given without bias_k" },
        { WITHOUT(BIAS_V), "bias_k is given without bias_v" },
        { WITHOUT(MASK), "mask is NULL, but mask_kind asks for one" },
        { WITHOUT(OFFSETS), "offsets is NULL, but align is MHA_ALIGN_OFFSETS" },
        { WITHOUT(OUT), "residual is given, but out is NULL" },
        { WITHOUT(OUT) | WITHOUT(LSE) | WITHOUT(WEIGHTS) | WITHOUT(WEIGHTS_MEAN),
          "outputs has no tensor, wanted at least one" },
    };
    for (enum road road = ATTENTION; road < ROADS; road++) {
        struct problem p = problem_make(road);
        for (int64_t i = 0; i < COUNT(cases); i++) {
            problem_give(&p, cases[i].absent);
            check_refused(&p, MHA_ERROR_ARGUMENT, cases[i].text);
        }
    }
    struct problem p = problem_make(ATTENTION);
    problem_give(&p, NONE);
    int64_t bytes = -7;
    problem_remember();
    check_status(ctx, mha_attention(ctx, NULL, NULL, &p.outputs), MHA_ERROR_ARGUMENT);
    check_contains(mha_context_message(ctx), "mha_attention: inputs is NULL");
    check_status(ctx, mha_attention(ctx, &p.inputs, NULL, NULL), MHA_ERROR_ARGUMENT);
    check_contains(mha_context_message(ctx), "mha_attention: outputs is NULL");
    check_status(ctx, mha_attention_workspace(ctx, &p.inputs, NULL, &p.outputs, NULL),
                 MHA_ERROR_ARGUMENT);
    check_contains(mha_context_message(ctx), "mha_attention_workspace: bytes is NULL");
    check_status(ctx, mha_forward(ctx, problem_layer, NULL, NULL, &p.outputs), MHA_ERROR_ARGUMENT);
    check_contains(mha_context_message(ctx), "mha_forward: inputs is NULL");
    check_status(ctx, mha_forward(ctx, problem_layer, &p.inputs, NULL, NULL), MHA_ERROR_ARGUMENT);
    check_contains(mha_context_message(ctx), "mha_forward: outputs is NULL");
    check_status(ctx, mha_forward(ctx, NULL, &p.inputs, NULL, &p.outputs), MHA_ERROR_ARGUMENT);
    check_contains(mha_context_message(ctx), "mha_forward: layer is NULL");
    check_status(ctx, mha_forward_workspace(ctx, problem_layer, &p.inputs, NULL, &p.outputs, NULL),
                 MHA_ERROR_ARGUMENT);
    check_contains(mha_context_message(ctx), "mha_forward_workspace: bytes is NULL");
    assert_int_equal(mha_attention(NULL, &p.inputs, NULL, &p.outputs), MHA_ERROR_ARGUMENT);
    assert_int_equal(mha_forward(NULL, problem_layer, &p.inputs, NULL, &p.outputs),
                     MHA_ERROR_ARGUMENT);
    assert_int_equal(mha_attention_workspace(NULL, &p.inputs, NULL, &p.outputs, &bytes),
                     MHA_ERROR_ARGUMENT);
    assert_int_equal(
        mha_forward_workspace(NULL, problem_layer, &p.inputs, NULL, &p.outputs, &bytes),
        MHA_ERROR_ARGUMENT);
    assert_int_equal(bytes, -7);
    check_untouched();
}

/* A layer with a bias pair of its own takes no other. */
static void second_bias_pair(void **state)
{
    (void)state;
    struct problem p = problem_make(FORWARD);
    struct mha_layer_shape shape = mha_layer_get_shape(problem_layer);
    struct mha_weights weights = mha_layer_get_weights(problem_layer);
    weights.bias_k = &p.t[BIAS_K];
    weights.bias_v = &p.t[BIAS_V];
    mha_layer *own = NULL;
    check_status(ctx, mha_layer_create(ctx, &shape, &weights, MHA_BORROW, &own), MHA_OK);
    p.layer = own;
    problem_give(&p, NONE);
    check_refused(&p, MHA_ERROR_ARGUMENT,
                  "bias_k and bias_v are given, but the layer has a pair of its own");
    problem_give(&p, WITHOUT(BIAS_K) | WITHOUT(BIAS_V));
    check_accepted(&p);
    /* The layer's pair is memory that no output may overlap. */
    p.t[LSE].data = p.t[BIAS_V].data;
    check_refused_call(&p, MHA_ERROR_LAYOUT, "lse overlaps ");
    mha_layer_free(own);
}

/* ---- options --------------------------------------------------------------------------------- */

static void unknown_modes(void **state)
{
    (void)state;
    const struct {
        size_t at;
        const char *name;
        int32_t past; /* the first number that is none */
    } modes[] = {
        { offsetof(struct mha_options, scale_mode), "scale_mode", 2 },
        { offsetof(struct mha_options, softcap_mode), "softcap_mode", 2 },
        { offsetof(struct mha_options, mask_kind), "mask_kind", 4 },
        { offsetof(struct mha_options, causal), "causal", 2 },
        { offsetof(struct mha_options, align), "align", 3 },
        { offsetof(struct mha_options, window), "window", 4 },
        { offsetof(struct mha_options, zero_attention), "zero_attention", 2 },
        { offsetof(struct mha_options, reserved), "reserved", 1 },
    };
    for (enum road road = ATTENTION; road < ROADS; road++)
        for (int64_t i = 0; i < COUNT(modes); i++) {
            const int32_t values[] = { modes[i].past, modes[i].past + 8, -1, INT32_MAX, INT32_MIN };
            for (int64_t v = 0; v < COUNT(values); v++) {
                struct problem p = problem_make(road);
                problem_give(&p, NONE);
                char text[64];
                memcpy((char *)&p.options + modes[i].at, &values[v], sizeof values[v]);
                snprintf(text, sizeof text, "%s is %d, wanted ", modes[i].name, (int)values[v]);
                check_refused(&p, MHA_ERROR_ARGUMENT, text);
            }
        }
}

static void scale_and_softcap(void **state)
{
    (void)state;
    const float no_scales[] = { NAN, INFINITY, -INFINITY };
    const float scales[] = { 0, -0.25f, FLT_MIN, 0x1p-149f };
    const float no_caps[] = { NAN, INFINITY,         -INFINITY,       0,
                              -1,  0x1.fffffcp-127f, 0x1.000002p126f, FLT_MAX };
    const float caps[] = { 0x1p-126f, 0x1p126f, 1 };
    for (enum road road = ATTENTION; road < ROADS; road++) {
        struct problem p = problem_make(road);
        problem_give(&p, NONE);
        for (int64_t i = 0; i < COUNT(no_scales); i++) {
            p.options.scale = no_scales[i];
            check_refused(&p, MHA_ERROR_ARGUMENT, "scale is ");
        }
        for (int64_t i = 0; i < COUNT(scales); i++) {
            p.options.scale = scales[i];
            check_accepted(&p);
        }
        for (int64_t i = 0; i < COUNT(no_caps); i++) {
            p.options.softcap = no_caps[i];
            check_refused(&p, MHA_ERROR_ARGUMENT, "softcap is ");
            check_contains(mha_context_message(ctx), "wanted 2^-126 to 2^126");
        }
        for (int64_t i = 0; i < COUNT(caps); i++) {
            p.options.softcap = caps[i];
            check_status(ctx, problem_call(&p), MHA_OK);
        }
        /* What a mode does not ask for is not looked at. */
        p.options.scale_mode = MHA_SCALE_DEFAULT;
        p.options.softcap_mode = MHA_SOFTCAP_OFF;
        p.options.scale = p.options.softcap = NAN;
        check_accepted(&p);
    }
}

static void windows(void **state)
{
    (void)state;
    for (enum road road = ATTENTION; road < ROADS; road++) {
        struct problem p = problem_make(road);
        problem_give(&p, NONE);
        const int64_t negative[] = { -1, INT64_MIN };
        for (int64_t i = 0; i < COUNT(negative); i++) {
            p.options.window_left = negative[i];
            check_refused(&p, MHA_ERROR_ARGUMENT, "window_left is -");
            p.options.window_left = 0;
            p.options.window_right = negative[i];
            check_refused(&p, MHA_ERROR_ARGUMENT, "window_right is -");
            p.options.window_right = 0;
        }
        check_accepted(&p);
        p.options.window_left = p.options.window_right = INT64_MAX;
        p.options.causal = 0;
        check_accepted(&p);
        p.options.window = MHA_WINDOW_OFF;
        p.options.window_left = p.options.window_right = -5;
        check_accepted(&p);
    }
}

/* Kind of mask against its element type: nothing is guessed or reinterpreted (kind 3). */
static void kind_3_case_14_mask_type_against_kind(void **state)
{
    (void)state;
    for (enum road road = ATTENTION; road < ROADS; road++) {
        struct problem p = problem_make(road);
        problem_give(&p, NONE);
        p.t[MASK].type = MHA_FLOAT32;
        check_refused(&p, MHA_ERROR_TYPE,
                      "mask is float32, wanted bool or uint8 for mask_kind MHA_MASK_KEEP");
        p.options.mask_kind = MHA_MASK_DROP;
        check_refused(&p, MHA_ERROR_TYPE,
                      "mask is float32, wanted bool or uint8 for mask_kind MHA_MASK_DROP");
        p.options.mask_kind = MHA_MASK_ADDITIVE;
        check_accepted(&p);
        const int32_t types[] = { MHA_BOOL, MHA_UINT8, MHA_INT8, MHA_FLOAT16, MHA_INT32 };
        for (int64_t i = 0; i < COUNT(types); i++) {
            char text[96];
            p.t[MASK].type = types[i];
            snprintf(text, sizeof text,
                     "mask is %s, wanted float32 for mask_kind MHA_MASK_ADDITIVE",
                     mha_type_text(types[i]));
            check_refused(&p, MHA_ERROR_TYPE, text);
        }
        /* Off: no mask is looked at, not even a malformed one. */
        p.options.mask_kind = MHA_MASK_OFF;
        p.t[MASK] = (struct mha_tensor){ .rank = 99, .type = -1 };
        check_accepted(&p);
    }
    /* [1, 0] as numbers to add, and as keep. */
    const float one = 1, values[] = { 1, 0 }, add[] = { 1, 0 };
    const uint8_t keep[] = { 1, 0 };
    float out[2], q = 0;
    const struct mha_tensor tq = mha_tensor_4d_const(&q, MHA_FLOAT32, 1, 1, 1, 1);
    const struct mha_tensor tk = { .data = (void *)(uintptr_t)&one,
                                   .type = MHA_FLOAT32,
                                   .rank = 4,
                                   .shape = { 1, 2, 1, 1 },
                                   .flags = MHA_READ_ONLY };
    const struct mha_tensor tv = mha_tensor_4d_const(values, MHA_FLOAT32, 1, 2, 1, 1);
    const struct mha_tensor to = mha_tensor_4d(&out[0], MHA_FLOAT32, 1, 1, 1, 1);
    const struct mha_tensor additive = mha_tensor_4d_const(add, MHA_FLOAT32, 1, 1, 1, 2);
    const struct mha_tensor boolean = mha_tensor_4d_const(keep, MHA_UINT8, 1, 1, 1, 2);
    const struct mha_inputs inputs = { .query = &tq, .key = &tk, .value = &tv };
    const struct mha_outputs outputs = { .out = &to };
    struct mha_options options = { .mask_kind = MHA_MASK_ADDITIVE, .mask = &additive };
    const double want = 1 / (1 + exp(-1.0));
    check_status(ctx, mha_attention(ctx, &inputs, &options, &outputs), MHA_OK);
    check_close("additive", out, &want, 1, bound_of(&want, 1, 0));
    options = (struct mha_options){ .mask_kind = MHA_MASK_KEEP, .mask = &boolean };
    check_status(ctx, mha_attention(ctx, &inputs, &options, &outputs), MHA_OK);
    assert_true(out[0] == 1);
}

/* A length or an offset outside its range, at each sample and in both types. */
static void lengths_and_offsets(void **state)
{
    (void)state;
    const int64_t most = (int64_t)1 << 62;
    const struct {
        int operand;
        int64_t lo, hi;
        const char *wanted;
    } ranges[] = { { QUERY_LENGTHS, 0, L, "wanted 0 to L" },
                   { KEY_LENGTHS, 0, S, "wanted 0 to S" },
                   { OFFSETS, -most, most, "wanted -2^62 to 2^62" } };
    for (enum road road = ATTENTION; road < ROADS; road++)
        for (int64_t r = 0; r < COUNT(ranges); r++)
            for (int b = 0; b < B; b++)
                for (int wide = 0; wide < 2; wide++) {
                    int i = ranges[r].operand;
                    int64_t lo = ranges[r].lo, hi = ranges[r].hi;
                    const int64_t outside[] = { lo - 1,    hi + 1,    INT64_MIN,
                                                INT64_MAX, INT32_MIN, INT32_MAX };
                    struct problem p = problem_make(road);
                    problem_give(&p, NONE);
                    p.t[i].type = wide ? MHA_INT64 : MHA_INT32;
                    int32_t narrow[B] = { 0 };
                    int64_t long_ones[B] = { 0 };
                    for (int64_t v = 0; v < COUNT(outside); v++) {
                        int64_t value = outside[v];
                        if ((value >= lo && value <= hi) || (!wide && value != (int32_t)value))
                            continue;
                        char text[80];
                        narrow[b] = (int32_t)value;
                        long_ones[b] = value;
                        memcpy(p.t[i].data, wide ? (void *)long_ones : (void *)narrow,
                               wide ? sizeof long_ones : sizeof narrow);
                        snprintf(text, sizeof text, "%s[%d] is %lld, %s", operand_names[i], b,
                                 (long long)value, ranges[r].wanted);
                        check_refused_call(&p, MHA_ERROR_ARGUMENT, text);
                    }
                    for (int edge = 0; edge < 2; edge++) {
                        int64_t value = edge ? hi : lo;
                        value = wide                ? value
                                : value < INT32_MIN ? INT32_MIN
                                : value > INT32_MAX ? INT32_MAX
                                                    : value;
                        narrow[b] = (int32_t)value;
                        long_ones[b] = value;
                        memcpy(p.t[i].data, wide ? (void *)long_ones : (void *)narrow,
                               wide ? sizeof long_ones : sizeof narrow);
                        check_accepted(&p);
                    }
                }
    /* Offsets that no alignment asks for are not looked at. */
    struct problem p = problem_make(ATTENTION);
    problem_give(&p, NONE);
    p.options.align = MHA_ALIGN_TOP_LEFT;
    p.t[OFFSETS] = (struct mha_tensor){ .rank = 99, .type = -1 };
    check_accepted(&p);
}

/* Structs of a later release: the fields that are not known here must be zero. */
static void later_structs(void **state)
{
    (void)state;
    struct {
        struct mha_inputs inputs;
        int64_t tail;
    } later_inputs;
    struct {
        struct mha_options options;
        int64_t tail;
    } later_options;
    struct {
        struct mha_outputs outputs;
        int64_t tail;
    } later_outputs;
    struct problem p = problem_make(ATTENTION);
    problem_give(&p, NONE);
    memset(&later_inputs, 0, sizeof later_inputs);
    memset(&later_options, 0, sizeof later_options);
    memset(&later_outputs, 0, sizeof later_outputs);
    later_inputs.inputs = p.inputs;
    later_options.options = p.options;
    later_outputs.outputs = p.outputs;
    later_inputs.inputs.size = sizeof later_inputs;
    later_options.options.size = sizeof later_options;
    later_outputs.outputs.size = sizeof later_outputs;
    int64_t *const tails[] = { &later_inputs.tail, &later_options.tail, &later_outputs.tail };
    const char *const texts[] = { "inputs has a field at byte ", "options has a field at byte ",
                                  "outputs has a field at byte " };
    for (int i = 0; i < 3; i++) {
        *tails[i] = 1;
        check_status(ctx,
                     mha_attention(ctx, &later_inputs.inputs, &later_options.options,
                                   &later_outputs.outputs),
                     MHA_ERROR_UNSUPPORTED);
        check_contains(mha_context_message(ctx), texts[i]);
        *tails[i] = 0;
    }
    check_status(
        ctx,
        mha_attention(ctx, &later_inputs.inputs, &later_options.options, &later_outputs.outputs),
        MHA_OK);
}

/* Sizes that no release will have, in structs that end where memory ends. */
static void impossible_struct_sizes(void **state)
{
    (void)state;
    struct problem p = problem_make(ATTENTION);
    problem_give(&p, NONE);
    struct mha_inputs *inputs = guarded(sizeof *inputs);
    struct mha_options *options = guarded(sizeof *options);
    struct mha_outputs *outputs = guarded(sizeof *outputs);
    const int64_t sizes[] = { -1, 1, 8, INT_MAX, INT64_MAX, INT64_MIN };
    for (int64_t s = 0; s < COUNT(sizes); s++)
        for (int i = 0; i < 3; i++) {
            *inputs = p.inputs;
            *options = p.options;
            *outputs = p.outputs;
            memcpy(i == 0   ? (void *)inputs
                   : i == 1 ? (void *)options
                            : (void *)outputs,
                   &sizes[s], sizeof sizes[s]);
            char text[64];
            snprintf(text, sizeof text, "%s.size is %lld, wanted ",
                     i == 0   ? "inputs"
                     : i == 1 ? "options"
                              : "outputs",
                     (long long)sizes[s]);
            problem_remember();
            check_status(ctx, mha_attention(ctx, inputs, options, outputs), MHA_ERROR_ARGUMENT);
            check_contains(mha_context_message(ctx), text);
            check_untouched();
        }
    guarded_free(inputs);
    guarded_free(options);
    guarded_free(outputs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_at_once),
        cmocka_unit_test(wrong_rank),
        cmocka_unit_test(wrong_type),
        cmocka_unit_test(wrong_form),
        cmocka_unit_test(wrong_shape),
        cmocka_unit_test(missing_arguments),
        cmocka_unit_test(second_bias_pair),
        cmocka_unit_test(unknown_modes),
        cmocka_unit_test(scale_and_softcap),
        cmocka_unit_test(windows),
        cmocka_unit_test(kind_3_case_14_mask_type_against_kind),
        cmocka_unit_test(lengths_and_offsets),
        cmocka_unit_test(later_structs),
        cmocka_unit_test(impossible_struct_sizes),
    };
    return cmocka_run_group_tests(tests, problem_open, problem_close);
}
