#include "encoder.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    E = ENCODER_WIDTH,
    F = 4 * E, /* width inside a feed-forward step */
    P = 512    /* positions that the model knows */
};

static const double norm_epsilon = 1e-12;

struct norm {
    float gain[E];
    float bias[E];
};

struct layer {
    mha_layer *attention;
    struct norm attention_norm;
    float w1[F][E], b1[F];
    float w2[E][F], b2[E];
    struct norm output_norm;
};

struct encoder {
    mha_context *ctx;
    float word[ENCODER_PIECES][E];
    float position[P][E];
    float type[2][E];
    struct norm embedding_norm;
    struct layer layers[ENCODER_LAYERS];

    /* A batch on its way through the layers. */
    int64_t rows; /* that there is room for */
    float *x;     /* [rows, E] */
    float *inner; /* [rows, F] */
};

/* ---- Loading -------------------------------------------------------------------------------- */

/* Reads the tensor "<prefix><name>", which must be [n0, n1], or [n0] when n1 is 0. */
static mha_status read_tensor(mha_context *ctx, const mha_safetensors *file, const char *prefix,
                              const char *name, float *into, int64_t n0, int64_t n1)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    struct mha_tensor tensor = n1 ? mha_tensor_2d(into, MHA_FLOAT32, n0, n1)
                                  : mha_tensor_1d(into, MHA_FLOAT32, n0);
    return mha_safetensors_read(ctx, file, full, &tensor);
}

static mha_status read_norm(mha_context *ctx, const mha_safetensors *file, const char *prefix,
                            struct norm *norm)
{
    mha_status status = read_tensor(ctx, file, prefix, "LayerNorm.weight", norm->gain, E, 0);
    return status ? status : read_tensor(ctx, file, prefix, "LayerNorm.bias", norm->bias, E, 0);
}

static bool load_layer(mha_context *ctx, const mha_safetensors *file, int number,
                       struct layer *layer)
{
    char prefix[64], attention[64], attention_output[64], output[64];
    snprintf(prefix, sizeof prefix, "encoder.layer.%d.", number);
    snprintf(attention, sizeof attention, "encoder.layer.%d.attention.", number);
    snprintf(attention_output, sizeof attention_output, "encoder.layer.%d.attention.output.",
             number);
    snprintf(output, sizeof output, "encoder.layer.%d.output.", number);

    struct mha_layer_shape shape = { .E = E, .H = ENCODER_HEADS };
    struct mha_layer_source source = { .prefix = attention,
                                       .naming = MHA_NAMING_BERT,
                                       .fusion = MHA_FUSION_SEPARATE };
    return !mha_layer_load(ctx, file, &source, &shape, &layer->attention)
           && !read_norm(ctx, file, attention_output, &layer->attention_norm)
           && !read_tensor(ctx, file, prefix, "intermediate.dense.weight", layer->w1[0], F, E)
           && !read_tensor(ctx, file, prefix, "intermediate.dense.bias", layer->b1, F, 0)
           && !read_tensor(ctx, file, prefix, "output.dense.weight", layer->w2[0], E, F)
           && !read_tensor(ctx, file, prefix, "output.dense.bias", layer->b2, E, 0)
           && !read_norm(ctx, file, output, &layer->output_norm);
}

static bool load(struct encoder *encoder, const mha_safetensors *file)
{
    mha_context *ctx = encoder->ctx;
    const char *prefix = "embeddings.";
    float *word = encoder->word[0], *position = encoder->position[0], *type = encoder->type[0];
    if (read_tensor(ctx, file, prefix, "word_embeddings.weight", word, ENCODER_PIECES, E)
        || read_tensor(ctx, file, prefix, "position_embeddings.weight", position, P, E)
        || read_tensor(ctx, file, prefix, "token_type_embeddings.weight", type, 2, E)
        || read_norm(ctx, file, prefix, &encoder->embedding_norm))
        return false;
    for (int i = 0; i < ENCODER_LAYERS; i++) {
        if (!load_layer(ctx, file, i, &encoder->layers[i]))
            return false;
    }
    return true;
}

bool encoder_open(mha_context *ctx, const char *path, struct encoder **encoder, struct reason *why)
{
    mha_safetensors *file = NULL;
    *encoder = calloc(1, sizeof **encoder);
    if (!*encoder)
        return failed(why, "out of memory for the model");
    (*encoder)->ctx = ctx;
    bool ok = !mha_safetensors_open(ctx, path, 0, &file) && load(*encoder, file);
    if (!ok) {
        failed(why, "%s: %s", path, mha_context_message(ctx));
        encoder_close(*encoder);
        *encoder = NULL;
    }
    mha_safetensors_close(file);
    return ok;
}

void encoder_close(struct encoder *encoder)
{
    if (!encoder)
        return;
    for (int i = 0; i < ENCODER_LAYERS; i++)
        mha_layer_free(encoder->layers[i].attention);
    free(encoder->x);
    free(encoder->inner);
    free(encoder);
}

/* ---- Steps ---------------------------------------------------------------------------------- */

/* Every row to mean 0 and variance 1, then gain and bias. The sums are doubles: six layers of them
 * one after another would show in the seventh digit. */
static void normalise(float *x, int64_t rows, const struct norm *norm)
{
    for (float *row = x; row < x + rows * E; row += E) {
        double mean = 0, variance = 0;
        for (int i = 0; i < E; i++)
            mean += row[i];
        mean /= E;
        for (int i = 0; i < E; i++)
            variance += (row[i] - mean) * (row[i] - mean);
        double scale = 1 / sqrt(variance / E + norm_epsilon);
        for (int i = 0; i < E; i++)
            row[i] = (float)((row[i] - mean) * scale * norm->gain[i] + norm->bias[i]);
    }
}

/* What goes into the first layer. Rows beyond a sentence's length hold [PAD]: no one looks. */
static void look_up(struct encoder *encoder, const struct batch *batch)
{
    float *row = encoder->x;
    for (int64_t b = 0; b < batch->B; b++) {
        for (int64_t s = 0; s < batch->S; s++, row += E) {
            const float *word = encoder->word[batch->ids[b][s]];
            for (int i = 0; i < E; i++)
                row[i] = word[i] + encoder->position[s][i] + encoder->type[0][i];
        }
    }
    normalise(encoder->x, batch->B * batch->S, &encoder->embedding_norm);
}

/* x = x + attention(x). The residual is added where the layer writes its output, and the output is
 * the very tensor that came in. */
static bool attend(struct encoder *encoder, const struct layer *layer, const struct batch *batch,
                   float *weights)
{
    int64_t B = batch->B, S = batch->S;
    struct mha_tensor x = mha_tensor_3d(encoder->x, MHA_FLOAT32, B, S, E);
    struct mha_tensor lengths = mha_tensor_1d_const(batch->lengths, MHA_INT32, B);
    struct mha_tensor w = mha_tensor_4d(weights, MHA_FLOAT32, B, ENCODER_HEADS, S, S);
    struct mha_inputs inputs = {
        .query = &x, .residual = &x, .query_lengths = &lengths, .key_lengths = &lengths
    };
    struct mha_outputs outputs = { .out = &x, .weights = weights ? &w : NULL };
    return !mha_forward(encoder->ctx, layer->attention, &inputs, NULL, &outputs);
}

/* x = x + W2 gelu(W1 x + b1) + b2, with the exact gelu: u times the normal distribution's share
 * below u. */
static void feed_forward(struct encoder *encoder, const struct layer *layer, int64_t rows)
{
    float *x = encoder->x, *inner = encoder->inner;
    const float sqrt_half = 0.70710678f;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, F, E, 1, x, E, layer->w1[0], E,
                0, inner, F);
    for (float *row = inner; row < inner + rows * F; row += F) {
        for (int i = 0; i < F; i++) {
            float u = row[i] + layer->b1[i];
            row[i] = 0.5f * u * erfcf(-u * sqrt_half);
        }
    }
    for (float *row = x; row < x + rows * E; row += E) {
        for (int i = 0; i < E; i++)
            row[i] += layer->b2[i];
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, E, F, 1, inner, F, layer->w2[0],
                F, 1, x, E);
}

/* The mean of a sentence's rows, scaled to length 1. */
static void pool(const float *x, int64_t length, float *embedding)
{
    double sum[E] = { 0 }, square = 0;
    for (int64_t s = 0; s < length; s++) {
        for (int i = 0; i < E; i++)
            sum[i] += x[s * E + i];
    }
    for (int i = 0; i < E; i++)
        square += sum[i] * sum[i];
    for (int i = 0; i < E; i++)
        embedding[i] = square > 0 ? (float)(sum[i] / sqrt(square)) : 0;
}

static bool make_room(struct encoder *encoder, int64_t rows, struct reason *why)
{
    if (rows <= encoder->rows)
        return true;
    free(encoder->x);
    free(encoder->inner);
    encoder->x = malloc((size_t)rows * E * sizeof *encoder->x);
    encoder->inner = malloc((size_t)rows * F * sizeof *encoder->inner);
    encoder->rows = encoder->x && encoder->inner ? rows : 0;
    return encoder->rows == rows || failed(why, "out of memory for a batch");
}

bool encoder_run(struct encoder *encoder, const struct batch *batch, float *embeddings,
                 struct reason *why)
{
    int64_t B = batch->B, S = batch->S, rows = B * S;
    if (!make_room(encoder, rows, why))
        return false;
    look_up(encoder, batch);
    for (int i = 0; i < ENCODER_LAYERS; i++) {
        const struct layer *layer = &encoder->layers[i];
        if (!attend(encoder, layer, batch, batch->weights[i]))
            return failed(why, "layer %d: %s", i + 1, mha_context_message(encoder->ctx));
        normalise(encoder->x, rows, &layer->attention_norm);
        feed_forward(encoder, layer, rows);
        normalise(encoder->x, rows, &layer->output_norm);
    }
    for (int64_t b = 0; b < B; b++)
        pool(encoder->x + b * S * E, batch->lengths[b], embeddings + b * E);
    return true;
}
