/* Comparison of a layer's float32 runs with the float64 oracle: error_model.h with projections. */
#ifndef LAYER_MODEL_H
#define LAYER_MODEL_H

#include "error_model.h"

/*
 * Compares row by row within bound_of of support.h; `text` stands before the name of the array in a
 * failure. The float32 error is a model's, in units of u = 2^-24, each chain of n roundings over
 * terms a_i being granted sqrt(n) u sum|a_i| as in error_model.h:
 *
 *   projection  y = sum x w + b: the chain over the E terms, in whatever order the BLAS adds, its
 *               joining with b, and the result
 *   score       the chain over the D terms, and what the errors of q and k do to it; they are
 *               independent from element to element, so they add as squares
 *   heads       the scores' errors through the softmax, those of v, and the chain over the keys
 *   output      the errors of the heads through |W_O|, as sums (the elements of a head share their
 *               scores), the chain over the H*Dv terms, residual + b_O, and the result
 *
 * The shape may hold zeros where they stand for something; arrays of `got` are contiguous.
 */
void layer_model_check(const char *text, const struct mha_layer_shape *shape,
                       const struct mha_weights *weights, const struct mha_inputs *inputs,
                       const struct mha_options *options, const struct reference_result *want,
                       const struct float_arrays *got);

#endif
