/* Projections: y = x W^T + b (+ residual), for any number of them in one go, on the BLAS. */
#ifndef MHA_PROJECT_H
#define MHA_PROJECT_H

#include "blas.h"
#include "tensor.h"

/* One projection of the rows x [B, L, K] to y [B, L, N]. */
struct mha_projection {
    int64_t B, L, K, N;
    struct mha_view x;
    const float *w; /* [N, K] */
    int64_t w_stride;
    const float *b;            /* [N], or NULL */
    struct mha_view residual;  /* [B, L, N], or data NULL; may be y itself */
    struct mha_view y;
};

/* How many gemm problems the projections make: rows that lie evenly in x and y are one problem. */
int64_t mha_project_count(const struct mha_projection *projections, int64_t n);

/* Computes all of them; `problems` has room for mha_project_count. */
void mha_project(const struct mha_projection *projections, int64_t n, struct mha_gemm *problems);

#endif
