/* Comparison of float32 runs with the float64 oracle, by a bound that follows the numbers. */
#ifndef ERROR_MODEL_H
#define ERROR_MODEL_H

#include "generator.h"
#include "reference.h"

/* What a run in float32 gave, contiguous; NULL: not looked at. */
struct float_arrays {
    const float *out;          /* [B, L, H, Dv] */
    const float *lse;          /* [B, H, L] */
    const float *weights;      /* [B, H, L, S + extra] */
    const float *weights_mean; /* [B, L, S + extra] */
};

/*
 * Compares row by row within bound_of of support.h; a failure prints the case. The float32 error
 * that bound_of takes is a model's: a chain of n roundings over terms a_i is granted
 * sqrt(n) u sum|a_i| (u = 2^-24), and scores carry theirs through the softmax. Times the 4 of
 * bound_of that is the probabilistic bound of N. Higham and T. Mary, "A new approach to
 * probabilistic rounding error analysis", 2019. Large scores loosen the bound of their own row and
 * of no other.
 */
void error_model_check(const struct generated_case *c, const struct reference_result *want,
                       const struct float_arrays *got);

#endif
