/*
 * all-MiniLM-L6-v2: the encoder that turns a sentence into 384 numbers.
 *
 *   x = norm(word + position + type)
 *   six times:  x = norm(x + attention(x))          the attention and its residual are libmha's
 *               x = norm(x + W2 gelu(W1 x + b1) + b2)
 *   embedding = mean of x over the sentence's tokens, scaled to length 1
 *
 * (W. Wang et al., "MiniLM", 2020; N. Reimers and I. Gurevych, "Sentence-BERT", 2019.)
 */
#ifndef ENCODER_H
#define ENCODER_H

#include <mha.h>
#include <stdbool.h>
#include <stdint.h>

#include "reason.h"

enum {
    ENCODER_LAYERS = 6,
    ENCODER_HEADS = 12,
    ENCODER_WIDTH = 384,
    ENCODER_PIECES = 30522, /* of the vocabulary */
    ENCODER_TOKENS = 256    /* the longest sentence */
};

struct encoder;

/* Sentences to encode together: B of them, padded to S tokens, the longest of their lengths. */
struct batch {
    int64_t B;
    int64_t S;
    int32_t (*ids)[ENCODER_TOKENS]; /* [B]; the first S of each row count */
    int32_t *lengths;               /* [B] */
    float *weights[ENCODER_LAYERS]; /* where a layer's attention goes, [B, H, S, S]; or NULL */
};

/* Reads the model's weights from a .safetensors file. The context must outlive the encoder. */
bool encoder_open(mha_context *ctx, const char *path, struct encoder **encoder, struct reason *why);
void encoder_close(struct encoder *encoder);

/* Writes one embedding a sentence, [B, ENCODER_WIDTH]. Memory for a batch is kept for later ones
 * and grows only when a batch has more tokens than any before. */
bool encoder_run(struct encoder *encoder, const struct batch *batch, float *embeddings,
                 struct reason *why);

#endif
