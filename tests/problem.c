#include "problem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "reference.h"

mha_layer *problem_layer;
struct mha_tensor problem_weights[4];
_Alignas(8) float problem_memory[OPERANDS][ROOM];
static float remembered[OPERANDS][ROOM];

const char *const operand_names[OPERANDS] = {
    "query",  "key",  "value",   "residual", "query_lengths", "key_lengths", "bias_k",
    "bias_v", "mask", "offsets", "out",      "lse",           "weights",     "weights_mean",
};

int problem_open(void **state)
{
    open_context(state);
    const int64_t sizes[4][2] = {
        { H * D, E }, { G * D, E_KEY }, { G * Dv, E_VALUE }, { E_OUT, H * Dv }
    };
    for (int i = 0; i < 4; i++) {
        float *data = guarded_floats(sizes[i][0] * sizes[i][1]);
        problem_weights[i] = mha_tensor_2d(data, MHA_FLOAT32, sizes[i][0], sizes[i][1]);
    }
    const struct mha_layer_shape shape = {
        .E = E, .E_key = E_KEY, .E_value = E_VALUE, .E_out = E_OUT, .H = H, .G = G, .D = D, .Dv = Dv
    };
    const struct mha_weights weights = { .w_q = &problem_weights[0],
                                         .w_k = &problem_weights[1],
                                         .w_v = &problem_weights[2],
                                         .w_o = &problem_weights[3] };
    check_status(ctx, mha_layer_create(ctx, &shape, &weights, MHA_BORROW, &problem_layer), MHA_OK);
    return 0;
}

int problem_close(void **state)
{
    mha_layer_free(problem_layer);
    for (int i = 0; i < 4; i++)
        guarded_free(problem_weights[i].data);
    return close_context(state);
}

struct problem problem_make(enum road road)
{
    bool f = road == FORWARD;
    struct problem p = { .road = road, .layer = problem_layer };
    struct mha_tensor *t = p.t;
    float *m[OPERANDS];
    for (int i = 0; i < OPERANDS; i++) {
        random_fill(problem_memory[i], ROOM);
        m[i] = problem_memory[i] + MARGIN;
        if (i >= OUT)
            for (int at = 0; at < ROOM; at++)
                problem_memory[i][at] = NAN;
    }
    t[QUERY] = f ? mha_tensor_3d(m[QUERY], MHA_FLOAT32, B, L, E)
                 : mha_tensor_4d(m[QUERY], MHA_FLOAT32, B, L, H, D);
    t[KEY] = f ? mha_tensor_3d(m[KEY], MHA_FLOAT32, B, S, E_KEY)
               : mha_tensor_4d(m[KEY], MHA_FLOAT32, B, S, G, D);
    t[VALUE] = f ? mha_tensor_3d(m[VALUE], MHA_FLOAT32, B, S, E_VALUE)
                 : mha_tensor_4d(m[VALUE], MHA_FLOAT32, B, S, G, Dv);
    for (int i = RESIDUAL; i <= OUT; i += OUT - RESIDUAL)
        t[i] = f ? mha_tensor_3d(m[i], MHA_FLOAT32, B, L, E_OUT)
                 : mha_tensor_4d(m[i], MHA_FLOAT32, B, L, H, Dv);
    t[QUERY_LENGTHS] = mha_tensor_1d(m[QUERY_LENGTHS], MHA_INT32, B);
    t[KEY_LENGTHS] = mha_tensor_1d(m[KEY_LENGTHS], MHA_INT64, B);
    t[OFFSETS] = mha_tensor_1d(m[OFFSETS], MHA_INT64, B);
    memcpy(m[QUERY_LENGTHS], (const int32_t[]){ 1, 2 }, 2 * sizeof(int32_t));
    memcpy(m[KEY_LENGTHS], (const int64_t[]){ 4, 3 }, 2 * sizeof(int64_t));
    memcpy(m[OFFSETS], (const int64_t[]){ 1, -1 }, 2 * sizeof(int64_t));
    for (int at = 0; at < B * H * L * S; at++)
        ((uint8_t *)m[MASK])[at] = (uint8_t)random_below(3);
    t[BIAS_K] = mha_tensor_2d(m[BIAS_K], MHA_FLOAT32, G, D);
    t[BIAS_V] = mha_tensor_2d(m[BIAS_V], MHA_FLOAT32, G, Dv);
    t[MASK] = mha_tensor_4d(m[MASK], MHA_UINT8, B, H, L, S);
    t[LSE] = mha_tensor_3d(m[LSE], MHA_FLOAT32, B, H, L);
    t[WEIGHTS] = mha_tensor_4d(m[WEIGHTS], MHA_FLOAT32, B, H, L, S + 2);
    t[WEIGHTS_MEAN] = mha_tensor_3d(m[WEIGHTS_MEAN], MHA_FLOAT32, B, L, S + 2);
    p.options = (struct mha_options){
        .scale_mode = MHA_SCALE_VALUE,
        .scale = 0.5f,
        .softcap_mode = MHA_SOFTCAP_TANH,
        .softcap = 2,
        .mask_kind = MHA_MASK_KEEP,
        .causal = 1,
        .align = MHA_ALIGN_OFFSETS,
        .window = MHA_WINDOW_LEFT | MHA_WINDOW_RIGHT,
        .window_left = 3,
        .window_right = 1,
        .zero_attention = 1,
    };
    return p;
}

const struct mha_tensor **problem_field(struct problem *p, int operand)
{
    const struct mha_tensor **const fields[OPERANDS] = {
        &p->inputs.query,         &p->inputs.key,           &p->inputs.value,  &p->inputs.residual,
        &p->inputs.query_lengths, &p->inputs.key_lengths,   &p->inputs.bias_k, &p->inputs.bias_v,
        &p->options.mask,         &p->options.offsets,      &p->outputs.out,   &p->outputs.lse,
        &p->outputs.weights,      &p->outputs.weights_mean,
    };
    return fields[operand];
}

void problem_give(struct problem *p, uint32_t absent)
{
    for (int i = 0; i < OPERANDS; i++)
        *problem_field(p, i) = absent >> i & 1 ? NULL : &p->t[i];
}

mha_status problem_call(const struct problem *p)
{
    return p->road == FORWARD ? mha_forward(ctx, p->layer, &p->inputs, &p->options, &p->outputs)
                              : mha_attention(ctx, &p->inputs, &p->options, &p->outputs);
}

mha_status problem_query(const struct problem *p, int64_t *bytes)
{
    return p->road == FORWARD
               ? mha_forward_workspace(ctx, p->layer, &p->inputs, &p->options, &p->outputs, bytes)
               : mha_attention_workspace(ctx, &p->inputs, &p->options, &p->outputs, bytes);
}

void problem_remember(void)
{
    memcpy(remembered, problem_memory, sizeof remembered);
}

void check_untouched(void)
{
    assert_memory_equal(problem_memory, remembered, sizeof remembered);
}

/* The last message starts with that function's name and has `text` in it. */
static void check_message(const char *function, const char *text)
{
    const char *message = mha_context_message(ctx);
    if (strncmp(message, function, strlen(function)) != 0)
        fail_msg("\"%s\" does not start with \"%s\"", message, function);
    check_contains(message, text);
}

void check_call_message(const struct problem *p, const char *text)
{
    check_message(p->road == FORWARD ? "mha_forward: " : "mha_attention: ", text);
}

static void call_is_refused(const struct problem *p, mha_status want, const char *text)
{
    int64_t calls = counter.calls;
    problem_remember();
    check_status(ctx, problem_call(p), want);
    check_call_message(p, text);
    check_untouched();
    assert_int_equal(counter.calls, calls);
}

void check_refused(const struct problem *p, mha_status want, const char *text)
{
    int64_t bytes = -7, calls = counter.calls;
    check_status(ctx, problem_query(p, &bytes), want);
    check_message(p->road == FORWARD ? "mha_forward_workspace: " : "mha_attention_workspace: ",
                  text);
    assert_int_equal(bytes, -7);
    assert_int_equal(counter.calls, calls);
    call_is_refused(p, want, text);
}

void check_refused_call(const struct problem *p, mha_status want, const char *text)
{
    int64_t bytes = -7;
    call_is_refused(p, want, text);
    check_status(ctx, problem_query(p, &bytes), MHA_OK);
    assert_true(bytes > 0);
}

void check_accepted(const struct problem *p)
{
    struct reference_result want;
    if (p->road == FORWARD) {
        struct mha_layer_shape shape = mha_layer_get_shape(p->layer);
        struct mha_weights weights = mha_layer_get_weights(p->layer);
        reference_forward(&shape, &weights, &p->inputs, &p->options, &want);
    } else {
        reference_attention(&p->inputs, &p->options, &want);
    }
    int64_t bytes = 0;
    check_status(ctx, problem_query(p, &bytes), MHA_OK);
    check_status(ctx, problem_call(p), MHA_OK);
    const struct {
        const struct mha_tensor *t;
        const double *want;
        int64_t n;
    } outputs[] = { { p->outputs.out, want.out, want.out_count },
                    { p->outputs.lse, want.lse, want.lse_count },
                    { p->outputs.weights, want.weights, want.weights_count },
                    { p->outputs.weights_mean, want.weights_mean, want.weights_mean_count } };
    for (int i = 0; i < 4; i++) {
        const struct mha_tensor *t = outputs[i].t;
        double bound = bound_of(outputs[i].want, outputs[i].n, 0);
        for (int64_t e = 0; t && e < outputs[i].n; e++) {
            int64_t rest = e, at = 0;
            for (int32_t axis = t->rank - 1; axis >= 0; rest /= t->shape[axis--])
                at += rest % t->shape[axis] * t->strides[axis];
            check_close(operand_names[OUT + i], (float *)t->data + at, &outputs[i].want[e], 1,
                        bound);
        }
    }
    reference_free(&want);
}

void pack_strides(struct mha_tensor *tensor)
{
    int64_t stride = 1;
    for (int32_t axis = tensor->rank - 1; axis >= 0; axis--) {
        tensor->strides[axis] = stride;
        stride *= tensor->shape[axis];
    }
}

void check_operand(const struct problem *p, int operand, mha_status want, const char *text)
{
    char whole[128];
    snprintf(whole, sizeof whole, "%s%s", operand_names[operand], text);
    check_refused(p, want, whole);
}
