/* Projections: y = x W^T + b (+ residual), for any number of them in one go, on one of two engines: the
 * BLAS over the weights as they are, or kernels of our own over packed weights. */
#ifndef MHA_PROJECT_H
#define MHA_PROJECT_H

#include "blas.h"
#include "tensor.h"

/* One projection of the rows x [B, L, K] to y [B, L, N / width, width]. */
struct mha_projection {
    int64_t B, L, K, N;
    struct mha_view x;
    const float *w; /* [N, K], for the BLAS */
    int64_t w_stride;
    const float *panels;      /* the same, packed by mha_project_pack; NULL: use the BLAS */
    const float *b;           /* [N], or NULL */
    struct mha_view residual; /* laid out like y, or data NULL; may be y itself */
    struct mha_view y;        /* the BLAS needs heads side by side: y.h = width */
    int64_t width;
};

/* Row r of the [B, L] rows of a view, in order. */
float *mha_project_row(const struct mha_view *view, int64_t L, int64_t r);

/* ---- packed ---------------------------------------------------------------------------------- */

/* Floats that the panels of [N, K] weights take; -1 on overflow. */
int64_t mha_project_panel_floats(int64_t N, int64_t K);

/* Copies weights into panels of sixteen outputs: element (n, k) is at [n / 16][k][n % 16]; missing
 * outputs of the last panel are zeros. */
void mha_project_pack(const float *w, int64_t w_stride, int64_t N, int64_t K, float *panels);

/* Scratch of packed projections, for each lane. */
struct mha_project_scratch {
    int64_t lanes;
    int64_t x_floats; /* of one lane */
    float *x;         /* copied rows */
    int64_t partial_floats;
    float *partial; /* sums between blocks of inputs */
};
void mha_project_lay_out(const struct mha_projection *projections, int64_t n,
                         const struct mha_threads *threads, struct mha_arena *arena,
                         struct mha_project_scratch *scratch);

/* How many lanes the projections are worth, at most those of the scratch. */
int64_t mha_project_lanes(const struct mha_projection *projections, int64_t n,
                          const struct mha_threads *threads);

/* Computes all of them, on threads that mha_context_prepare_threads has made for the scratch's lanes.
 * Neighbours of the same x share its copies. */
void mha_project_packed(mha_context *ctx, const struct mha_projection *projections, int64_t n,
                        const struct mha_project_scratch *scratch);

/* ---- by the BLAS ----------------------------------------------------------------------------- */

/* How many gemm problems the projections make: rows that lie evenly in x and y are one problem. */
int64_t mha_project_count(const struct mha_projection *projections, int64_t n);

/* Computes all of them; `problems` has room for mha_project_count. */
void mha_project(const struct mha_projection *projections, int64_t n, struct mha_gemm *problems);

#endif
