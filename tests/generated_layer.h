/* Random problems for mha_forward: a layer of unequal sizes around a case of generator.h. */
#ifndef GENERATED_LAYER_H
#define GENERATED_LAYER_H

#include <stdbool.h>

#include "generator.h"
#include "sparse.h"

/*
 * The attention inside is the case `core`: its sizes, options, lengths and extra keys count, its
 * query, key, value and residual do not. Structs point into themselves: never copy one. Between the
 * elements of rows and weights lies NaN, as in keys that no row may see.
 */
struct generated_layer {
    struct generated_case core;
    struct mha_layer_shape shape;
    struct mha_weights weights;
    int32_t ownership; /* enum mha_ownership */
    struct mha_inputs inputs;
    struct mha_options options;
    struct mha_tensor out; /* somewhere to write to, of a layout of its own */
    bool self;             /* key and value are NULL */
    bool may_be_in_place;  /* there is a residual, and `out` may be its very view */
    char text[1024];       /* the problem in one line */

    struct mha_tensor query, key, value, residual;
    struct mha_tensor w[8]; /* w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o */
    void *blocks[32];
    int64_t block_count;
    struct sparse sparse[6];
    int64_t sparse_count;
};

/* Draws the next problem from random_bits. */
void generated_layer_make(struct generated_layer *g);
void generated_layer_free(struct generated_layer *g);

/* A view like the given one, of other memory full of NaN, freed with the problem. */
struct mha_tensor generated_layer_twin(struct generated_layer *g, const struct mha_tensor *like);

/* Makes every weight of the caller NaN. */
void generated_layer_spoil_weights(struct generated_layer *g);

/* The elements of rows [B, L, width], contiguous, to be freed; and back. */
float *rows_gather(const struct mha_tensor *rows);
void rows_scatter(const struct mha_tensor *rows, const float *elements);

#endif
