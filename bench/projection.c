#include "projection.h"

#include <stdlib.h>

#include "project.h"

struct bench_projection {
    int64_t K, N;
    const float *w;
};

struct bench_projection *bench_projection_create(int64_t K, int64_t N, const float *w)
{
    struct bench_projection *made = malloc(sizeof *made);
    if (made)
        *made = (struct bench_projection){ K, N, w };
    return made;
}

void bench_projection_free(struct bench_projection *projection)
{
    free(projection);
}

void bench_projection_run(const struct bench_projection *projection, int64_t rows, const float *x,
                          float *y)
{
    int64_t K = projection->K, N = projection->N;
    struct mha_projection p = { .B = 1, .L = rows, .K = K, .N = N,
                                .x = { (float *)(uintptr_t)x, rows * K, K, K },
                                .w = projection->w, .w_stride = K,
                                .y = { y, rows * N, N, N } };
    struct mha_gemm problem; /* rows that lie evenly are one */
    mha_project(&p, 1, &problem);
}
