/* The bit oracle: docs/numerics.md as scalar code, one query row at a time. It shares nothing with
 * src/ but the structs of mha.h, and checks nothing: operands must be what mha_attention takes. */
#ifndef CANONICAL_H
#define CANONICAL_H

#include "mha.h"

/* What came out, contiguous. S counts the extra keys too, so weights are [B, H, L, S]. */
struct canonical_result {
    int64_t B, L, S, H, Dv;
    float *out;          /* [B, L, H, Dv] */
    float *lse;          /* [B, H, L] */
    float *weights;      /* [B, H, L, S] */
    float *weights_mean; /* [B, L, S] */
};

/* The shapes of mha_attention; options may be NULL. The residual is read, never written. */
void canonical_attention(const struct mha_inputs *inputs, const struct mha_options *options,
                         struct canonical_result *result);
void canonical_free(struct canonical_result *result);

/* A packed projection: y[row][n] = x[row] . w[n] + b[n] + residual[row][n]. x is [rows, K], w [N, K], y and
 * residual [rows, N], all contiguous; b and residual may be NULL. */
void canonical_project(const float *x, const float *w, const float *b, const float *residual,
                       int64_t rows, int64_t K, int64_t N, float *y);

/* The three functions of section 3, for kernel tests. */
float canonical_exp2(float t);          /* 2^t, t <= 0 */
float canonical_ln(float x);            /* natural logarithm, x positive and normal, or +inf */
float canonical_tanh(float s, float k); /* tanh(s * k / (2 log2 e)) */

#endif
