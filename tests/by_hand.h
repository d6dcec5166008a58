/* Small attention problems whose numbers are typed by hand, run on both roads. */
#ifndef BY_HAND_H
#define BY_HAND_H

#include "support.h"

#define BY_HAND_ROOM 256

/* Sizes that are 0 are 1; rows are contiguous, and NULL stands for zeros. */
struct by_hand {
    int64_t B, L, S, H, G, D, Dv;
    const float *q, *k, *v;   /* [B, L, H, D], [B, S, G, D], [B, S, G, Dv] */
    struct mha_inputs inputs; /* lengths and extra keys */
    struct mha_options options;
    float out[BY_HAND_ROOM];          /* [B, L, H, Dv] */
    float lse[BY_HAND_ROOM];          /* [B, H, L] */
    float weights[BY_HAND_ROOM];      /* [B, H, L, S'] */
    float weights_mean[BY_HAND_ROOM]; /* [B, L, S'] */
};

/*
 * Runs mha_attention for all outputs at once, then for `out` alone, and mha_forward of a layer
 * whose projections are the identity: `out` has the same bits each time.
 */
void by_hand_run(mha_context *ctx, struct by_hand *p);

/* Runs it and compares `out` with [B, L, H, Dv] numbers within bound_of of support.h. */
void by_hand_check(mha_context *ctx, struct by_hand *p, const double *want);

#endif
