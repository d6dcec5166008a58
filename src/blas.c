#include "blas.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include <cblas.h>

#include "threads.h"

/*
 * Some releases of OpenBLAS crash in cblas_sgemm_batch for small products (0.3.29 does up to about
 * M*N*K = 1e6, where it takes another path), and small products gain nothing from it.
 */
#define BATCH_MIN_WORK 1000000

/* Problems of one batch call at most: its arrays live on the stack, so nothing is allocated here. */
enum { BATCH = 64 };

const char *mha_blas_text(void)
{
#ifdef MHA_HAVE_OPENBLAS_CONFIG
    return openblas_get_config();
#else
    return "CBLAS";
#endif
}

static void gemm(const struct mha_gemm *p)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)p->M, (int)p->N, (int)p->K, 1.0f,
                p->A, (int)p->lda, p->B, (int)p->ldb, 1.0f, p->C, (int)p->ldc);
}

#ifdef MHA_HAVE_SGEMM_BATCH

static bool same_group(const struct mha_gemm *p, const struct mha_gemm *q)
{
    return p->M == q->M && p->N == q->N && p->K == q->K && p->lda == q->lda && p->ldb == q->ldb
           && p->ldc == q->ldc;
}

/* The group arrays of cblas_sgemm_batch. */
struct batch {
    CBLAS_TRANSPOSE trans_a[BATCH], trans_b[BATCH];
    blasint M[BATCH], N[BATCH], K[BATCH], lda[BATCH], ldb[BATCH], ldc[BATCH], size[BATCH];
    float alpha[BATCH], beta[BATCH];
    const float *A[BATCH], *B[BATCH];
    float *C[BATCH];
};

static void gemm_batch(const struct mha_gemm *problems, int64_t count)
{
    struct batch b;
    blasint groups = 0;
    for (int64_t i = 0; i < count; i++) {
        const struct mha_gemm *p = &problems[i];
        b.A[i] = p->A;
        b.B[i] = p->B;
        b.C[i] = p->C;
        if (i > 0 && same_group(p, p - 1)) {
            b.size[groups - 1]++;
            continue;
        }
        b.trans_a[groups] = CblasNoTrans;
        b.trans_b[groups] = CblasTrans;
        b.M[groups] = (blasint)p->M;
        b.N[groups] = (blasint)p->N;
        b.K[groups] = (blasint)p->K;
        b.lda[groups] = (blasint)p->lda;
        b.ldb[groups] = (blasint)p->ldb;
        b.ldc[groups] = (blasint)p->ldc;
        b.alpha[groups] = b.beta[groups] = 1.0f;
        b.size[groups++] = 1;
    }
    cblas_sgemm_batch(CblasRowMajor, b.trans_a, b.trans_b, b.M, b.N, b.K, b.alpha, b.A, b.lda, b.B,
                      b.ldb, b.beta, b.C, b.ldc, groups, b.size);
}

static bool worth_batching(const struct mha_gemm *problems, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if ((double)problems[i].M * (double)problems[i].N * (double)problems[i].K <= BATCH_MIN_WORK)
            return false;
    return count > 1;
}

static void multiply(const struct mha_gemm *problems, int64_t count)
{
    for (int64_t first = 0; first < count; first += BATCH) {
        int64_t n = min_i64(count - first, BATCH);
        if (worth_batching(problems + first, n))
            gemm_batch(problems + first, n);
        else
            for (int64_t i = 0; i < n; i++)
                gemm(&problems[first + i]);
    }
}

#else

static void multiply(const struct mha_gemm *problems, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        gemm(&problems[i]);
}

#endif

/* ---- the gate --------------------------------------------------------------------------------- */

/*
 * OpenBLAS has buffers for a number of simultaneous calls that its build fixes (256 in Debian's, at
 * least 50 in others) and ends the process, or crashes (0.3.21), when more threads call. So no
 * more than these are let in from here; others wait until one comes out.
 */
enum { GATE = 48 };

/* Calls inside, in the lower half, of the process in the upper half: what the parent's other threads
 * were doing when they were left behind by fork does not end in the child, and counts no more. */
static _Atomic uint64_t gate;

static void enter_gate(void)
{
    const uint64_t process = (uint64_t)mha_threads_process() << 32;
    uint64_t seen = atomic_load_explicit(&gate, memory_order_relaxed);
    /* Each look comes later than the one before it: hundreds may be waiting, and nobody waits much
     * more than twice as long as he must. */
    struct timespec pause = { .tv_nsec = 10000 };
    for (;;) {
        uint64_t inside = (seen & ~(uint64_t)UINT32_MAX) == process ? seen & UINT32_MAX : 0;
        if (inside == GATE) {
            nanosleep(&pause, NULL);
            pause.tv_nsec = pause.tv_nsec < 10000000 ? 2 * pause.tv_nsec : pause.tv_nsec;
            seen = atomic_load_explicit(&gate, memory_order_relaxed);
        } else if (atomic_compare_exchange_weak_explicit(&gate, &seen, process | (inside + 1),
                                                         memory_order_acquire,
                                                         memory_order_relaxed))
            return;
    }
}

static void leave_gate(void)
{
    atomic_fetch_sub_explicit(&gate, 1, memory_order_release);
}

void mha_blas_gemm(const struct mha_gemm *problems, int64_t count)
{
    enter_gate();
    multiply(problems, count);
    leave_gate();
}

/* ---- the self-check --------------------------------------------------------------------------- */

/* Leading dimensions larger than the rows and all sizes different: a BLAS that reads the integers
 * as others than they are gives other numbers, or reports an error and writes nothing. */
mha_status mha_blas_check(mha_context *ctx)
{
    mha_status status = MHA_OK;
    const float a[2 * 5] = { 1, 2, 3, 0, 0, 4, 5, 6 };
    const float b[2 * 4] = { 1, 0, 2, 0, 0, 3, 1 };
    float c[2 * 3] = { 10, 20, 0, 30, 40 };
    const float wanted[2 * 3] = { 17, 29, 0, 46, 61 };
    const struct mha_gemm product = {
        .M = 2, .N = 2, .K = 3, .A = a, .lda = 5, .B = b, .ldb = 4, .C = c, .ldc = 3
    };
    mha_blas_gemm(&product, 1);
    REQUIRE(ctx, memcmp(c, wanted, sizeof c) == 0, MHA_ERROR_BLAS,
            "the linked BLAS fails a product of 2x3 by 3x2 (integers of another width?): got "
            "%g %g %g %g, wanted 17 29 46 61",
            (double)c[0], (double)c[1], (double)c[3], (double)c[4]);
done:
    return status;
}
