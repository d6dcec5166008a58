/*
 * The float64 oracle: attention and the layer as plain loops in double, written from the semantics
 * in mha.h and sharing nothing with the library but its structs. It is the specification by
 * example: slow, and with every key of every row looked at by itself.
 *
 * The oracle trusts its arguments (they come from tests): it checks no shapes and ignores `size`.
 */
#ifndef REFERENCE_H
#define REFERENCE_H

#include <stdint.h>

#include "mha.h"

/* S' is S plus the extra keys. All arrays are contiguous, row-major, and never NULL. */
struct reference_result {
    double *out;          /* [B, L, H, Dv]; of a layer [B, L, E_out], or [B, L, H*Dv] without W_O */
    double *lse;          /* [B, H, L] */
    double *weights;      /* [B, H, L, S'] */
    double *weights_mean; /* [B, L, S'] */
    int64_t out_count;    /* elements of each */
    int64_t lse_count;
    int64_t weights_count;
    int64_t weights_mean_count;
    double scale; /* the largest finite |out|, which bound_of of support.h turns into a tolerance */
};

/* What mha_attention should give. `options` may be NULL. Ends the program when memory runs out. */
void reference_attention(const struct mha_inputs *inputs, const struct mha_options *options,
                         struct reference_result *result);

/* What mha_forward of a layer made from `shape` and `weights` should give. */
void reference_forward(const struct mha_layer_shape *shape, const struct mha_weights *weights,
                       const struct mha_inputs *inputs, const struct mha_options *options,
                       struct reference_result *result);

/* Frees the arrays and zeroes the struct; a zeroed struct is fine. */
void reference_free(struct reference_result *result);

#endif
