/* The BLAS, as far as this library needs it. Only blas.c knows cblas.h. */
#ifndef MHA_BLAS_H
#define MHA_BLAS_H

#include "context.h"

/* Sizes and leading dimensions must not exceed this: the BLAS may count in 32-bit integers. */
#define MHA_BLAS_MAX ((int64_t)INT32_MAX)

/* C[M, N] += A[M, K] B[N, K]^T, row-major: a projection with its bias already in C. Leading
 * dimensions are at least the row's width, also where there is a single row. */
struct mha_gemm {
    int64_t M, N, K;
    const float *A, *B;
    int64_t lda, ldb;
    float *C;
    int64_t ldc;
};

/*
 * Solves `count` problems, in any order; their outputs do not overlap. Problems of equal sizes form
 * groups of one cblas_sgemm_batch call where the BLAS has it and every group is worth it, else each
 * is a cblas_sgemm. In the calling thread, under the host's BLAS settings.
 */
void mha_blas_gemm(const struct mha_gemm *problems, int64_t count);

/* Fails with MHA_ERROR_BLAS when a tiny product comes out wrong: a BLAS whose integers have another
 * width than its header said, or one that is broken. */
mha_status mha_blas_check(mha_context *ctx);

#endif
