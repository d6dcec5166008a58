/* A layer: sizes and weights. */
#ifndef MHA_LAYER_H
#define MHA_LAYER_H

#include "context.h"

enum mha_weight {
    MHA_W_Q,
    MHA_W_K,
    MHA_W_V,
    MHA_W_O,
    MHA_B_Q,
    MHA_B_K,
    MHA_B_V,
    MHA_B_O,
    MHA_BIAS_K,
    MHA_BIAS_V,
    MHA_WEIGHTS
};

enum { MHA_MATRICES = MHA_W_O + 1 }; /* the weights that can be packed come first */

struct mha_layer {
    struct mha_allocator allocator;
    int64_t bytes;                         /* of the block this struct and its vectors are in */
    struct mha_layer_shape shape;          /* every zero resolved */
    struct mha_tensor weight[MHA_WEIGHTS]; /* rank 0: the layer has none; data NULL: dropped */
    void *matrices;                        /* the block of copied matrices */
    int64_t matrices_bytes;
    const float *panels[MHA_MATRICES]; /* NULL: none, or not packed */
    void *packed;                      /* the block they are in; NULL: the BLAS is the engine */
    int64_t packed_bytes;
};

/* mha_layer_create behind its door. */
mha_status mha_layer_make(mha_context *ctx, const struct mha_layer_shape *shape,
                          const struct mha_weights *weights, int32_t ownership, mha_layer **layer);

/* Has the layer that weight, as it is or packed? */
bool mha_layer_has(const mha_layer *layer, enum mha_weight which);

/* The weight as it is, or NULL. */
const float *mha_layer_data(const mha_layer *layer, enum mha_weight which);

/* Width of the layer's output: E_out, or H*Dv without W_O. */
int64_t mha_layer_out_width(const mha_layer *layer);

#endif
