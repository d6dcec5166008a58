/* Which memory an output may lie in: none of an input, another output or a weight, but for the
 * residual's own place and what may share it. */
#include "problem.h"

#include <stdio.h>
#include <string.h>

static int64_t bytes_of(const struct mha_tensor *t)
{
    return mha_tensor_count(t) * mha_type_bytes(t->type);
}

/* Each output against each input and each other output: a common byte is refused, neighbours are
 * not. */
static void outputs_overlap_nothing(void **state)
{
    (void)state;
    for (enum road road = ATTENTION; road < ROADS; road++)
        for (int out = OUT; out < OPERANDS; out++)
            for (int other = 0; other < OPERANDS; other++) {
                if (other == out)
                    continue;
                struct problem p = problem_make(road);
                problem_give(&p, NONE);
                char text[64], *home = p.t[other].data;
                int64_t bytes = bytes_of(&p.t[other]), own = bytes_of(&p.t[out]);
                snprintf(text, sizeof text, "%s overlaps %s",
                         operand_names[other > out ? other : out],
                         operand_names[other > out ? out : other]);
                p.t[out].data = home + (bytes - 1) / 4 * 4;
                check_refused_call(&p, MHA_ERROR_LAYOUT, text);
                p.t[out].data = home - own + 4;
                check_refused_call(&p, MHA_ERROR_LAYOUT, text);
                p.t[out].data = home + 4;
                check_refused_call(&p, MHA_ERROR_LAYOUT, text);
                p.t[out].data = home + bytes;
                check_accepted(&p);
                p.t[out].data = home - own;
                check_accepted(&p);
            }
}

static void outputs_overlap_no_weight(void **state)
{
    (void)state;
    for (int out = OUT; out < OPERANDS; out++)
        for (int w = 0; w < 4; w++) {
            struct problem p = problem_make(FORWARD);
            problem_give(&p, NONE);
            float *first = problem_weights[w].data;
            float *places[] = { first, first + mha_tensor_count(&problem_weights[w]) - 1,
                                first - mha_tensor_count(&p.t[out]) + 1 };
            for (int64_t i = 0; i < COUNT(places); i++) {
                char text[64];
                p.t[out].data = places[i];
                snprintf(text, sizeof text, "%s overlaps a weight of the layer",
                         operand_names[out]);
                check_refused_call(&p, MHA_ERROR_LAYOUT, text);
            }
        }
}

/* Inputs may overlap each other as they like: views of one packed buffer. */
static void inputs_may_overlap(void **state)
{
    (void)state;
    struct problem p = problem_make(ATTENTION);
    problem_give(&p, NONE);
    p.t[KEY].data = p.t[VALUE].data = p.t[RESIDUAL].data = p.t[BIAS_K].data = p.t[BIAS_V]
                                                                                  .data = p.t[QUERY]
                                                                                              .data;
    check_accepted(&p);
}

/* mha_attention where the rows of the residual, of the query, of key and value are alike, so that
 * anything could be put in place of anything. */
enum { IN_Q = 0, IN_K = 1, IN_V = 2, IN_R = 3, SAME_L = 5 };

/* `views`: which of four memories query, key, value and residual (-1: none) lie in; each operand a
 * struct of its own, or (shared) one struct for each memory. */
static void in_place_problem(struct problem *p, const int *views, bool shared, bool heads_first)
{
    *p = (struct problem){ .road = ATTENTION };
    for (int m = 0; m < OPERANDS; m++)
        random_fill(problem_memory[m], ROOM);
    for (int i = QUERY; i <= RESIDUAL; i++) {
        if (views[i] < 0)
            continue;
        p->t[i] = mha_tensor_4d(problem_memory[views[i]], MHA_FLOAT32, B, SAME_L, H, D);
        if (heads_first) {
            p->t[i].strides[2] = SAME_L * D;
            p->t[i].strides[1] = D;
        }
        int at = QUERY;
        while (at < i && !(shared && views[at] == views[i]))
            at++;
        *problem_field(p, i) = &p->t[at];
    }
    p->t[LSE] = mha_tensor_3d(problem_memory[LSE], MHA_FLOAT32, B, H, SAME_L);
    p->t[WEIGHTS] = mha_tensor_4d(problem_memory[WEIGHTS], MHA_FLOAT32, B, H, SAME_L, SAME_L);
    p->t[WEIGHTS_MEAN] = mha_tensor_3d(problem_memory[WEIGHTS_MEAN], MHA_FLOAT32, B, SAME_L,
                                       SAME_L);
    for (int i = OUT; i < OPERANDS; i++)
        *problem_field(p, i) = &p->t[i];
}

/* In place of the residual, and of the query with it, while key and value are other memory. */
static void attention_in_place(void **state)
{
    (void)state;
    const struct {
        int views[4], out; /* out: the memory it takes the place of */
        bool allowed;
        const char *text;
    } cases[] = {
        { { 0, 1, 2, 3 }, 3, true, "" },
        { { 0, 1, 1, 3 }, 3, true, "" },
        { { 0, 1, 2, 0 }, 0, true, "" },
        { { 0, 1, 1, 0 }, 0, true, "" },
        { { 0, 1, 2, -1 }, 0, false, "out overlaps query" }, /* no residual: not a sum in place */
        { { 0, 1, 2, 3 }, 0, false, "out overlaps query" },
        { { 0, 1, 2, 3 }, 1, false, "out overlaps key" },
        { { 0, 1, 2, 3 }, 2, false, "out overlaps value" },
        { { 0, 1, 2, 1 }, 1, false, "out overlaps key" }, /* keys are read by later rows */
        { { 0, 1, 2, 2 }, 2, false, "out overlaps value" },
        { { 0, 1, 1, 1 }, 1, false, "out overlaps key" },
        { { 0, 0, 2, 0 }, 0, false, "out overlaps key" },
        { { 0, 2, 0, 0 }, 0, false, "out overlaps value" },
        { { 0, 0, 0, 0 }, 0, false, "out overlaps key" },
        { { 0, -1, -1, 0 }, 0, false, "out overlaps query (as key)" },
        { { 0, -1, -1, -1 }, 0, false, "out overlaps query" },
    };
    for (int64_t i = 0; i < COUNT(cases); i++)
        for (int form = 0; form < 4; form++) {
            struct problem p;
            in_place_problem(&p, cases[i].views, form & 1, form & 2);
            p.t[OUT] = mha_tensor_4d(problem_memory[cases[i].out], MHA_FLOAT32, B, SAME_L, H, D);
            if (form & 2)
                p.t[OUT] = p.t[QUERY];
            p.t[OUT].data = problem_memory[cases[i].out];
            if (cases[i].allowed)
                check_accepted(&p);
            else
                check_refused_call(&p, MHA_ERROR_LAYOUT, cases[i].text);
            /* The very view only: not one element further, not by other strides. */
            in_place_problem(&p, cases[i].views, form & 1, form & 2);
            p.t[OUT] = p.t[QUERY];
            p.t[OUT].data = problem_memory[cases[i].out] + D;
            check_refused_call(&p, MHA_ERROR_LAYOUT, "out overlaps ");
        }
    struct problem p;
    in_place_problem(&p, (const int[]){ 0, 1, 2, 3 }, false, false);
    p.t[OUT] = p.t[RESIDUAL];
    p.t[OUT].strides[2] = SAME_L * D;
    p.t[OUT].strides[1] = D;
    check_refused_call(&p, MHA_ERROR_LAYOUT, "out overlaps residual");
}

/* The residual and the mask are one tensor, as their shapes allow here: the mask of one row must not
 * become the sum of another. */
static void residual_that_is_the_mask(void **state)
{
    (void)state;
    float square[25];
    random_fill(square, 25);
    const struct mha_tensor t = mha_tensor_4d(square, MHA_FLOAT32, 1, 5, 5, 1), q = t;
    const struct mha_tensor mask = mha_tensor_4d(square, MHA_FLOAT32, 1, 5, 5, 1);
    float before[25], k[5], v[5];
    memcpy(before, square, sizeof before);
    random_fill(k, 5);
    random_fill(v, 5);
    const struct mha_tensor tk = mha_tensor_4d(k, MHA_FLOAT32, 1, 1, 5, 1);
    const struct mha_tensor tv = mha_tensor_4d(v, MHA_FLOAT32, 1, 1, 5, 1);
    struct problem p = { .road = ATTENTION };
    p.inputs = (struct mha_inputs){ .query = &q, .key = &tk, .value = &tv, .residual = &t };
    p.options = (struct mha_options){ .mask_kind = MHA_MASK_ADDITIVE, .mask = &t };
    p.outputs.out = &t;
    check_refused_call(&p, MHA_ERROR_LAYOUT, "out overlaps mask");
    p.options.mask = &mask;
    check_refused_call(&p, MHA_ERROR_LAYOUT, "out overlaps mask");
    assert_memory_equal(square, before, sizeof before);
}

/* mha_forward in place of the residual, whatever else that is; with and without W_O. */
static void forward_in_place(void **state)
{
    (void)state;
    enum { W = 12 };
    float w[4][W * W];
    struct mha_tensor tw[4];
    for (int i = 0; i < 4; i++) {
        random_fill(w[i], W * W);
        tw[i] = mha_tensor_2d_const(w[i], MHA_FLOAT32, W, W);
    }
    const struct mha_layer_shape shape = { .E = W, .H = 3 };
    const struct {
        int views[4], out;
        bool allowed;
        const char *text;
    } cases[] = {
        { { 0, 1, 2, 3 }, 3, true, "" },
        { { 0, 1, 2, 0 }, 0, true, "" },
        { { 0, 1, 2, 1 }, 1, true, "" },
        { { 0, 1, 2, 2 }, 2, true, "" },
        { { 0, 0, 0, 0 }, 0, true, "" },
        { { 0, -1, -1, 0 }, 0, true, "" },
        { { 0, -1, -1, 3 }, 3, true, "" },
        { { 0, 1, 2, -1 }, 0, false, "out overlaps query" },
        { { 0, 1, 2, -1 }, 1, false, "out overlaps key" },
        { { 0, 1, 2, 3 }, 2, false, "out overlaps value" },
        { { 0, -1, -1, -1 }, 0, false, "out overlaps query" },
    };
    for (int has_w_o = 0; has_w_o < 2; has_w_o++) {
        const struct mha_weights weights = {
            .w_q = &tw[0], .w_k = &tw[1], .w_v = &tw[2], .w_o = has_w_o ? &tw[3] : NULL
        };
        mha_layer *square = NULL;
        check_status(ctx, mha_layer_create(ctx, &shape, &weights, MHA_COPY, &square), MHA_OK);
        for (int64_t i = 0; i < COUNT(cases); i++)
            for (int shared = 0; shared < 2; shared++) {
                struct problem p;
                in_place_problem(&p, cases[i].views, shared, false);
                p.road = FORWARD;
                p.layer = square;
                for (int t = QUERY; t <= RESIDUAL; t++)
                    if (cases[i].views[t] >= 0)
                        p.t[t] = mha_tensor_3d(problem_memory[cases[i].views[t]], MHA_FLOAT32, B,
                                               SAME_L, W);
                p.t[LSE] = mha_tensor_3d(problem_memory[LSE], MHA_FLOAT32, B, 3, SAME_L);
                p.t[WEIGHTS] = mha_tensor_4d(problem_memory[WEIGHTS], MHA_FLOAT32, B, 3, SAME_L,
                                             SAME_L);
                p.t[OUT] = mha_tensor_3d(problem_memory[cases[i].out], MHA_FLOAT32, B, SAME_L, W);
                if (cases[i].allowed)
                    check_accepted(&p);
                else
                    check_refused_call(&p, MHA_ERROR_LAYOUT, cases[i].text);
                p.t[OUT].data = problem_memory[cases[i].out] + W;
                check_refused_call(&p, MHA_ERROR_LAYOUT, "out overlaps ");
            }
        mha_layer_free(square);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_overlap_nothing),   cmocka_unit_test(outputs_overlap_no_weight),
        cmocka_unit_test(inputs_may_overlap),        cmocka_unit_test(attention_in_place),
        cmocka_unit_test(residual_that_is_the_mask), cmocka_unit_test(forward_in_place),
    };
    return cmocka_run_group_tests(tests, problem_open, problem_close);
}
