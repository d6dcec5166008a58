/*
 * The operators of a BERT encoder: bert_attention, one attention block, and bert_encoder, from
 * token numbers to a sentence embedding. The library attends; the rest of the encoder is here, in
 * double, so that what differs from the expected numbers is the attention's doing.
 */
#include "conformance.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const double layer_norm_eps = 1e-12;

/* x = (x - mean) / sqrt(variance + eps) * gain + offset, row by row. */
static void layer_norm(double *x, int64_t rows, int64_t E, const float *gain, const float *offset)
{
    for (int64_t r = 0; r < rows; r++, x += E) {
        double mean = 0, variance = 0;
        for (int64_t e = 0; e < E; e++)
            mean += x[e] / (double)E;
        for (int64_t e = 0; e < E; e++)
            variance += (x[e] - mean) * (x[e] - mean) / (double)E;
        for (int64_t e = 0; e < E; e++)
            x[e] = (x[e] - mean) / sqrt(variance + layer_norm_eps) * (double)gain[e]
                   + (double)offset[e];
    }
}

/* attention_mask [B, L]: 1 for a token, 0 for padding. It hides keys; padding attends too. */
static void set_padding(struct run *run, int64_t B, int64_t L, struct mha_options *options)
{
    const struct mha_tensor *mask = run_input(run, "attention_mask");
    if (!mask)
        return;
    if (mask->type != MHA_INT64 || mask->rank != 2 || mask->shape[0] != B || mask->shape[1] != L) {
        run_fail(run, "attention_mask must be int64, one row for each sample");
        return;
    }
    uint8_t *keep = run_memory(run, B * L, sizeof *keep);
    for (int64_t e = 0; e < B * L; e++)
        keep[e] = ((const int64_t *)mask->data)[e] != 0;
    struct mha_tensor *view = run_memory(run, 1, sizeof *view);
    *view = mha_tensor_4d_const(keep, MHA_UINT8, B, 1, 1, L);
    options->mask = view;
    options->mask_kind = MHA_MASK_KEEP;
}

/* Rounds to what the library takes and gives. */
static void narrow(const double *from, float *to, int64_t n)
{
    for (int64_t e = 0; e < n; e++)
        to[e] = (float)from[e];
}

static void widen(const float *from, double *to, int64_t n)
{
    for (int64_t e = 0; e < n; e++)
        to[e] = (double)from[e];
}

/* ------------------------------------------------------------------------------------------------
 * bert_attention
 * --------------------------------------------------------------------------------------------- */

static const char *const attention_attributes[] = {
    "embed_dim", "num_heads", "head_dim", "batch", "len", "is_causal", NULL,
};

static const char *const attention_inputs[] = { "hidden", "attention_mask", NULL };

static const char *const block_weights[] = {
    "w_q", "b_q", "w_k", "b_k", "w_v", "b_v", "w_o", "b_o", "ln_g", "ln_b",
};

/* Calls the layer once, with or without W_O. */
static void call_layer(struct run *run, const struct mha_weights *weights,
                       const struct mha_inputs *inputs, const struct mha_options *options,
                       const struct mha_outputs *outputs)
{
    if (!run_good(run))
        return;
    struct mha_layer_shape shape = {
        .E = inputs->query->shape[2],
        .H = run_integer(run, "num_heads", 0),
        .D = run_integer(run, "head_dim", 0),
    };
    mha_layer *layer = run_layer(run, &shape, weights);
    if (run_good(run))
        run_call(run, mha_forward(run->ctx, layer, inputs, options, outputs));
    mha_layer_free(layer);
}

/* The residual sum as the library gives it, normalised. */
static void compare_norm(struct run *run, const struct mha_tensor *sum,
                         const struct mha_tensor *gain, const struct mha_tensor *offset)
{
    struct mha_tensor *out = run_output(run, "after_layernorm");
    if (!out)
        return;
    int64_t n = mha_tensor_count(sum), E = sum->shape[2];
    if (!gain || !offset || gain->shape[0] != E || offset->shape[0] != E) {
        run_fail(run, "after_layernorm needs weights ln_g and ln_b of the width");
        return;
    }
    double *x = run_memory(run, n, sizeof *x);
    widen(sum->data, x, n);
    layer_norm(x, n / E, E, gain->data, offset->data);
    narrow(x, out->data, n);
    run_compare(run, "after_layernorm", out);
}

void run_bert_attention(struct run *run)
{
    run_allow(run, attention_attributes, attention_inputs);
    const struct mha_tensor *hidden = run_floats(run, "hidden");
    struct mha_tensor *w[COUNT(block_weights)];
    int64_t found = 0;
    for (int64_t i = 0; i < COUNT(block_weights); i++) {
        w[i] = run_weight(run, block_weights[i]);
        found += w[i] != NULL;
    }
    if (found != run->test->weight_count)
        run_fail(run, "unsupported: a weight that bert_attention does not have");
    if (!run_good(run))
        return;
    run_agree(run, "batch", hidden->shape[0]);
    run_agree(run, "len", hidden->shape[1]);
    run_agree(run, "embed_dim", hidden->shape[2]);

    struct mha_weights heads = {
        .w_q = w[0],
        .b_q = w[1],
        .w_k = w[2],
        .b_k = w[3],
        .w_v = w[4],
        .b_v = w[5],
    };
    struct mha_weights whole = heads;
    whole.w_o = w[6];
    whole.b_o = w[7];
    struct mha_inputs plain = { .query = hidden };
    struct mha_inputs residual = { .query = hidden, .residual = hidden };
    struct mha_options options = { .causal = run_integer(run, "is_causal", 0) != 0 };
    set_padding(run, hidden->shape[0], hidden->shape[1], &options);

    struct mha_tensor *probabilities = run_output(run, "attn_probs");
    struct mha_tensor *context = run_output(run, "context");
    struct mha_tensor *projected = run_output(run, "attn_output");
    struct mha_tensor *sum = run_output(run, "residual_sum");
    if (context || probabilities)
        call_layer(run, &heads, &plain, &options,
                   &(struct mha_outputs){ .out = context, .weights = probabilities });
    if (projected)
        call_layer(run, &whole, &plain, &options, &(struct mha_outputs){ .out = projected });
    if (sum)
        call_layer(run, &whole, &residual, &options, &(struct mha_outputs){ .out = sum });
    run_compare(run, "attn_probs", probabilities);
    run_compare(run, "context", context);
    run_compare(run, "attn_output", projected);
    run_compare(run, "residual_sum", sum);
    if (sum)
        compare_norm(run, sum, w[8], w[9]);
}

/* ------------------------------------------------------------------------------------------------
 * bert_encoder
 * --------------------------------------------------------------------------------------------- */

static const char *const encoder_attributes[] = { "num_heads", NULL };
static const char *const encoder_inputs[] = { "input_ids", "attention_mask", NULL };

/* Heads of the encoder that the suites mean, when the case does not say. */
enum { ENCODER_HEADS = 12 };

/* A tensor of the model that must be there, of that shape; n1 = 0 for a vector. NULL is noted. */
static const float *weight(struct run *run, const char *prefix, const char *name, int64_t n0,
                           int64_t n1)
{
    char key[160];
    snprintf(key, sizeof key, "%s%s", prefix, name);
    const struct mha_tensor *tensor = run_model_tensor(run, key);
    if (!tensor) {
        run_fail(run, "the model has no %s", key);
        return NULL;
    }
    if (tensor->rank != (n1 ? 2 : 1) || tensor->shape[0] != n0 || (n1 && tensor->shape[1] != n1)) {
        char text[128];
        mha_tensor_shape_text(tensor, text, sizeof text);
        run_fail(run, "the model's %s is %s", key, text);
        return NULL;
    }
    return tensor->data;
}

/* y = x W^T + b, W being [out, in]. */
static double *dense(struct run *run, const double *x, int64_t rows, int64_t in, int64_t out,
                     const float *w, const float *b)
{
    double *y = run_memory(run, rows * out, sizeof *y);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < out; o++) {
            double sum = (double)b[o];
            for (int64_t e = 0; e < in; e++)
                sum += x[r * in + e] * (double)w[o * in + e];
            y[r * out + o] = sum;
        }
    return y;
}

/* word + position + token type 0, normalised: [B, L, E] as double. NULL after a problem. */
static double *embed(struct run *run, const struct mha_tensor *ids, int64_t *E)
{
    static const char prefix[] = "embeddings.";
    const struct mha_tensor *words = run_model_tensor(run, "embeddings.word_embeddings.weight");
    const struct mha_tensor *places = run_model_tensor(run,
                                                       "embeddings.position_embeddings.weight");
    if (!words || !places || words->rank != 2 || places->rank != 2) {
        run_fail(run, "the model has no tables of word and position embeddings");
        return NULL;
    }
    *E = words->shape[1];
    const float *types = weight(run, prefix, "token_type_embeddings.weight", 2, *E);
    const float *gain = weight(run, prefix, "LayerNorm.weight", *E, 0);
    const float *offset = weight(run, prefix, "LayerNorm.bias", *E, 0);
    int64_t L = ids->shape[1], rows = ids->shape[0] * L;
    if (places->shape[1] != *E || places->shape[0] < L)
        run_fail(run, "the model has no positions for %" PRId64 " tokens", L);
    if (!run_good(run))
        return NULL;
    double *x = run_memory(run, rows * *E, sizeof *x);
    for (int64_t r = 0; r < rows; r++) {
        int64_t id = ((const int64_t *)ids->data)[r];
        if (id < 0 || id >= words->shape[0]) {
            run_fail(run, "the model has no token %" PRId64, id);
            return NULL;
        }
        for (int64_t e = 0; e < *E; e++)
            x[r * *E + e] = (double)((const float *)words->data)[id * *E + e]
                            + (double)((const float *)places->data)[r % L * *E + e]
                            + (double)types[e];
    }
    layer_norm(x, rows, *E, gain, offset);
    return x;
}

/* x = LayerNorm(x + attention(x)): the residual sum is the library's. The layer comes through the
 * loader, which has its own way to the weights. */
static void attention_block(struct run *run, const char *prefix, double *x,
                            const struct mha_tensor *rows, const struct mha_options *options)
{
    char attention[96];
    snprintf(attention, sizeof attention, "%sattention.", prefix);
    int64_t E = rows->shape[2], n = mha_tensor_count(rows);
    const float *gain = weight(run, attention, "output.LayerNorm.weight", E, 0);
    const float *offset = weight(run, attention, "output.LayerNorm.bias", E, 0);
    struct mha_layer_source source = {
        .prefix = attention,
        .naming = MHA_NAMING_BERT,
        .fusion = MHA_FUSION_SEPARATE,
    };
    struct mha_layer_shape shape = { .H = run_integer(run, "num_heads", ENCODER_HEADS) };
    struct mha_inputs inputs = { .query = rows, .residual = rows };
    struct mha_outputs outputs = { .out = rows }; /* x = x + attention(x), in place */
    mha_layer *layer = NULL;
    if (!run_good(run))
        return;
    narrow(x, rows->data, n);
    if (run_call(run, mha_layer_load(run->ctx, run_model(run), &source, &shape, &layer)))
        run_call(run, mha_forward(run->ctx, layer, &inputs, options, &outputs));
    mha_layer_free(layer);
    widen(rows->data, x, n);
    if (run_good(run))
        layer_norm(x, n / E, E, gain, offset);
}

/* x = LayerNorm(x + W_2 gelu(W_1 x + b_1) + b_2), with the gelu that uses erf. */
static void feed_forward(struct run *run, const char *prefix, double *x, int64_t rows, int64_t E)
{
    int64_t F = 4 * E;
    const float *w_1 = weight(run, prefix, "intermediate.dense.weight", F, E);
    const float *b_1 = weight(run, prefix, "intermediate.dense.bias", F, 0);
    const float *w_2 = weight(run, prefix, "output.dense.weight", E, F);
    const float *b_2 = weight(run, prefix, "output.dense.bias", E, 0);
    const float *gain = weight(run, prefix, "output.LayerNorm.weight", E, 0);
    const float *offset = weight(run, prefix, "output.LayerNorm.bias", E, 0);
    if (!run_good(run))
        return;
    double *inner = dense(run, x, rows, E, F, w_1, b_1);
    for (int64_t e = 0; e < rows * F; e++)
        inner[e] = inner[e] / 2 * (1 + erf(inner[e] / sqrt(2.0)));
    const double *outer = dense(run, inner, rows, F, E, w_2, b_2);
    for (int64_t e = 0; e < rows * E; e++)
        x[e] += outer[e];
    layer_norm(x, rows, E, gain, offset);
}

/* The mean over each sample's tokens, brought to length 1: [B, E]. No element exceeds 1, so the
 * bound is at most 2e-6. */
static void compare_embedding(struct run *run, const struct mha_tensor *ids,
                              const struct mha_tensor *mask, const double *x, int64_t E)
{
    struct mha_tensor *out = run_output(run, "embedding");
    if (!out)
        return;
    int64_t B = ids->shape[0], L = ids->shape[1];
    if (out->rank != 2 || out->shape[0] != B || out->shape[1] != E) {
        run_fail(run, "embedding is not one row for each sample");
        return;
    }
    double *mean = run_memory(run, E, sizeof *mean);
    for (int64_t b = 0; b < B; b++) {
        memset(mean, 0, (size_t)E * sizeof *mean);
        for (int64_t i = 0; i < L; i++)
            if (!mask || ((const int64_t *)mask->data)[b * L + i])
                for (int64_t e = 0; e < E; e++)
                    mean[e] += x[(b * L + i) * E + e]; /* their number falls out below */
        double length = 0;
        for (int64_t e = 0; e < E; e++)
            length += mean[e] * mean[e];
        for (int64_t e = 0; e < E; e++)
            ((float *)out->data)[b * E + e] = (float)(mean[e] / sqrt(length));
    }
    run_compare(run, "embedding", out);
}

void run_bert_encoder(struct run *run)
{
    run_allow(run, encoder_attributes, encoder_inputs);
    const struct mha_tensor *ids = run_input(run, "input_ids");
    if (!ids || ids->type != MHA_INT64 || ids->rank != 2)
        run_fail(run, "bert_encoder needs input_ids, int64, [batch, length]");
    if (!run_good(run))
        return;
    int64_t B = ids->shape[0], L = ids->shape[1], E = 0;
    struct mha_options options = { 0 };
    set_padding(run, B, L, &options);
    const struct mha_tensor *mask = run_input(run, "attention_mask");
    double *x = embed(run, ids, &E);
    if (!run_good(run))
        return;

    float *memory = run_memory(run, B * L * E, sizeof *memory);
    struct mha_tensor rows = mha_tensor_3d(memory, MHA_FLOAT32, B, L, E);
    for (int layer = 0; run_good(run); layer++) {
        char prefix[64], last[128];
        snprintf(prefix, sizeof prefix, "encoder.layer.%d.", layer);
        snprintf(last, sizeof last, "%soutput.LayerNorm.weight", prefix);
        if (!run_model_tensor(run, last)) {
            if (layer == 0)
                run_fail(run, "the model has no %s", last);
            break;
        }
        attention_block(run, prefix, x, &rows, &options);
        feed_forward(run, prefix, x, B * L, E);
    }
    if (!run_good(run))
        return;
    struct mha_tensor *hidden = run_output(run, "last_hidden_state");
    if (hidden && mha_tensor_count(hidden) == B * L * E)
        narrow(x, hidden->data, B * L * E);
    run_compare(run, "last_hidden_state", hidden);
    compare_embedding(run, ids, mask, x, E);
}
