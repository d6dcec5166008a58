#include "by_hand.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t at_least_one(int64_t size)
{
    return size ? size : 1;
}

static void resolve(struct by_hand *p)
{
    p->B = at_least_one(p->B);
    p->L = at_least_one(p->L);
    p->S = at_least_one(p->S);
    p->H = at_least_one(p->H);
    p->G = at_least_one(p->G);
    p->D = at_least_one(p->D);
    p->Dv = at_least_one(p->Dv);
}

/* A guarded copy of the numbers. */
static float *copy(const float *from, int64_t n)
{
    float *to = guarded(n * (int64_t)sizeof *to);
    for (int64_t i = 0; i < n && from; i++)
        to[i] = from[i];
    return to;
}

static struct mha_tensor identity(int64_t n)
{
    float *w = guarded(n * n * (int64_t)sizeof *w);
    for (int64_t i = 0; i < n; i++)
        w[i * n + i] = 1;
    return mha_tensor_2d(w, MHA_FLOAT32, n, n);
}

static void run_attention(mha_context *ctx, struct by_hand *p, struct mha_inputs *in)
{
    int64_t extra = (in->bias_k != NULL) + p->options.zero_attention, keys = p->S + extra;
    int64_t n = p->B * p->L * p->H;
    assert_true(n * p->Dv <= BY_HAND_ROOM && n * keys <= BY_HAND_ROOM);
    struct mha_tensor out = mha_tensor_4d(p->out, MHA_FLOAT32, p->B, p->L, p->H, p->Dv);
    struct mha_tensor lse = mha_tensor_3d(p->lse, MHA_FLOAT32, p->B, p->H, p->L);
    struct mha_tensor weights = mha_tensor_4d(p->weights, MHA_FLOAT32, p->B, p->H, p->L, keys);
    struct mha_tensor mean = mha_tensor_3d(p->weights_mean, MHA_FLOAT32, p->B, p->L, keys);
    struct mha_outputs all = {
        .out = &out, .lse = &lse, .weights = &weights, .weights_mean = &mean
    };
    check_status(ctx, mha_attention(ctx, in, &p->options, &all), MHA_OK);

    float alone[BY_HAND_ROOM];
    memset(alone, 0xff, sizeof alone);
    out.data = alone;
    struct mha_outputs one = { .out = &out };
    check_status(ctx, mha_attention(ctx, in, &p->options, &one), MHA_OK);
    check_same_bits("out alone", alone, p->out, n * p->Dv);
}

static void run_forward(mha_context *ctx, struct by_hand *p, const struct mha_inputs *heads)
{
    struct mha_tensor w_q = identity(p->H * p->D), w_k = identity(p->G * p->D);
    struct mha_tensor w_v = identity(p->G * p->Dv);
    struct mha_layer_shape shape = { .E = p->H * p->D,
                                     .E_key = p->G * p->D,
                                     .E_value = p->G * p->Dv,
                                     .H = p->H,
                                     .G = p->G,
                                     .D = p->D,
                                     .Dv = p->Dv };
    struct mha_weights w = { .w_q = &w_q, .w_k = &w_k, .w_v = &w_v };
    struct mha_tensor q = mha_tensor_3d(heads->query->data, MHA_FLOAT32, p->B, p->L, shape.E);
    struct mha_tensor k = mha_tensor_3d(heads->key->data, MHA_FLOAT32, p->B, p->S, shape.E_key);
    struct mha_tensor v = mha_tensor_3d(heads->value->data, MHA_FLOAT32, p->B, p->S, shape.E_value);
    float got[BY_HAND_ROOM];
    memset(got, 0xff, sizeof got);
    struct mha_tensor out = mha_tensor_3d(got, MHA_FLOAT32, p->B, p->L, p->H * p->Dv);
    struct mha_inputs in = *heads;
    in.query = &q;
    in.key = &k;
    in.value = &v;
    mha_layer *layer = NULL;
    check_status(ctx, mha_layer_create(ctx, &shape, &w, MHA_BORROW, &layer), MHA_OK);
    struct mha_outputs outputs = { .out = &out };
    check_status(ctx, mha_forward(ctx, layer, &in, &p->options, &outputs), MHA_OK);
    check_same_bits("out of an identity layer", got, p->out, p->B * p->L * p->H * p->Dv);
    mha_layer_free(layer);
    guarded_free(w_q.data);
    guarded_free(w_k.data);
    guarded_free(w_v.data);
}

void by_hand_run(mha_context *ctx, struct by_hand *p)
{
    resolve(p);
    float *q = copy(p->q, p->B * p->L * p->H * p->D);
    float *k = copy(p->k, p->B * p->S * p->G * p->D);
    float *v = copy(p->v, p->B * p->S * p->G * p->Dv);
    struct mha_tensor tq = mha_tensor_4d(q, MHA_FLOAT32, p->B, p->L, p->H, p->D);
    struct mha_tensor tk = mha_tensor_4d(k, MHA_FLOAT32, p->B, p->S, p->G, p->D);
    struct mha_tensor tv = mha_tensor_4d(v, MHA_FLOAT32, p->B, p->S, p->G, p->Dv);
    struct mha_inputs in = p->inputs;
    in.query = &tq;
    in.key = &tk;
    in.value = &tv;
    memset(p->out, 0xff, sizeof p->out);
    memset(p->lse, 0xff, sizeof p->lse);
    memset(p->weights, 0xff, sizeof p->weights);
    memset(p->weights_mean, 0xff, sizeof p->weights_mean);
    run_attention(ctx, p, &in);
    run_forward(ctx, p, &in);
    guarded_free(q);
    guarded_free(k);
    guarded_free(v);
}

void by_hand_check(mha_context *ctx, struct by_hand *p, const double *want)
{
    by_hand_run(ctx, p);
    int64_t n = p->B * p->L * p->H * p->Dv;
    check_close("out", p->out, want, n, bound_of(want, n, 0));
}
