/*
 * The BLAS engine against a mock: src/blas.c is compiled here once more, with both BLAS functions
 * replaced, so that cblas_sgemm_batch is tested also where the BLAS has none. The mocks check what
 * they are handed and compute it by plain loops; layers of this program run on them too, since this
 * unit defines all that the library's own blas.c does.
 */
#include <cblas.h>

/* Replaced after cblas.h, which declares the batch function in newer releases only, and whose own
 * prototypes must not meet these. The mocks count in int, whatever the BLAS does. */
#define blasint int
#define cblas_sgemm mock_sgemm
#define cblas_sgemm_batch mock_sgemm_batch
#ifndef MHA_HAVE_SGEMM_BATCH
#define MHA_HAVE_SGEMM_BATCH
#endif
void mock_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE trans_a, CBLAS_TRANSPOSE trans_b, int M, int N,
                int K, float alpha, const float *A, int lda, const float *B, int ldb, float beta,
                float *C, int ldc);
void mock_sgemm_batch(CBLAS_ORDER order, const CBLAS_TRANSPOSE *trans_a,
                      const CBLAS_TRANSPOSE *trans_b, const int *M, const int *N, const int *K,
                      const float *alpha, const float **A, const int *lda, const float **B,
                      const int *ldb, const float *beta, float **C, const int *ldc, int group_count,
                      const int *group_size);

#include "../src/blas.c"

#include <stdlib.h>

#include "layer_model.h"
#include "support.h"

/* ---- the mocks ------------------------------------------------------------------------------- */

/* How the mocked sgemm is broken, for the self-check. */
enum fault { NO_FAULT, DOES_NOTHING, NO_BETA, FORGETS_LDA, FORGETS_LDB, FORGETS_LDC, NO_TRANSPOSE };

static enum fault fault;
static int64_t plain_calls, batch_calls;

static void multiply_by_hand(int M, int N, int K, const float *A, int lda, const float *B, int ldb,
                             float *C, int ldc)
{
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            float sum = 0;
            for (int k = 0; k < K; k++)
                sum += A[(int64_t)m * lda + k] * B[(int64_t)n * ldb + k];
            C[(int64_t)m * ldc + n] += sum;
        }
}

static void check_problem(int M, int N, int K, float alpha, const float *A, int lda, const float *B,
                          int ldb, float beta, const float *C, int ldc)
{
    assert_true(M > 0 && N > 0 && K > 0);
    assert_true(lda >= K && ldb >= K && ldc >= N);
    assert_true(alpha == 1.0f && beta == 1.0f);
    assert_true(A && B && C);
}

void mock_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE trans_a, CBLAS_TRANSPOSE trans_b, int M, int N,
                int K, float alpha, const float *A, int lda, const float *B, int ldb, float beta,
                float *C, int ldc)
{
    plain_calls++;
    assert_int_equal(order, CblasRowMajor);
    assert_int_equal(trans_a, CblasNoTrans);
    assert_int_equal(trans_b, CblasTrans);
    check_problem(M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
    lda = fault == FORGETS_LDA ? K : lda;
    ldb = fault == FORGETS_LDB ? K : ldb;
    ldc = fault == FORGETS_LDC ? N : ldc;
    if (fault == NO_BETA)
        for (int m = 0; m < M; m++)
            memset(C + m * ldc, 0, (size_t)N * sizeof *C);
    if (fault == NO_TRANSPOSE) /* B as [K, N] */
        for (int m = 0; m < M; m++)
            for (int n = 0; n < N; n++)
                for (int k = 0; k < K; k++)
                    C[m * ldc + n] += A[m * lda + k] * B[(k * ldb + n) % (N * ldb)];
    else if (fault != DOES_NOTHING)
        multiply_by_hand(M, N, K, A, lda, B, ldb, C, ldc);
}

/* What a test expects of the next batch call: the number of groups, then the size of each. */
static void expect_batch(int groups, const int *sizes)
{
    expect_value(mock_sgemm_batch, group_count, groups);
    for (int i = 0; i < groups; i++)
        expect_value(mock_sgemm_batch, size, sizes[i]);
}

void mock_sgemm_batch(CBLAS_ORDER order, const CBLAS_TRANSPOSE *trans_a,
                      const CBLAS_TRANSPOSE *trans_b, const int *M, const int *N, const int *K,
                      const float *alpha, const float **A, const int *lda, const float **B,
                      const int *ldb, const float *beta, float **C, const int *ldc, int group_count,
                      const int *group_size)
{
    batch_calls++;
    assert_int_equal(order, CblasRowMajor);
    check_expected(group_count);
    int problem = 0;
    for (int g = 0; g < group_count; g++) {
        int size = group_size[g];
        check_expected(size);
        assert_int_equal(trans_a[g], CblasNoTrans);
        assert_int_equal(trans_b[g], CblasTrans);
        /* The BLAS that crashes on small products must not see one. */
        assert_true((double)M[g] * N[g] * K[g] > 1e6);
        for (int i = 0; i < size; i++, problem++) {
            check_problem(M[g], N[g], K[g], alpha[g], A[problem], lda[g], B[problem], ldb[g],
                          beta[g], C[problem], ldc[g]);
            multiply_by_hand(M[g], N[g], K[g], A[problem], lda[g], B[problem], ldb[g], C[problem],
                             ldc[g]);
        }
    }
    assert_true(problem <= 64);
}

static int start(void **state)
{
    (void)state;
    fault = NO_FAULT;
    plain_calls = batch_calls = 0;
    return 0;
}

/* ---- lists of problems ----------------------------------------------------------------------- */

/* Sizes whose product is just above what a batch call is worth. */
enum { M = 2, N = 501, K = 1000, MOST = 200 };

/* Problems over shared operands of small integers, whose products are exact; each has its own C. */
struct list {
    float *A, *B, *C, *start;
    int64_t room; /* floats for each C */
    struct mha_gemm problem[MOST];
    int64_t count;
};

static float *floats(int64_t n)
{
    float *data = guarded_floats(n);
    for (int64_t i = 0; i < n; i++)
        data[i] = (float)(random_below(7) - 3);
    return data;
}

static void list_make(struct list *list)
{
    list->room = M * (N + 2);
    list->A = floats((M + MOST) * (K + 3));
    list->B = floats((N + MOST) * (K + 3));
    list->C = floats(MOST * list->room);
    list->start = floats(MOST * list->room);
    memcpy(list->C, list->start, (size_t)(MOST * list->room) * sizeof *list->C);
    list->count = 0;
}

static void list_free(struct list *list)
{
    guarded_free(list->A);
    guarded_free(list->B);
    guarded_free(list->C);
    guarded_free(list->start);
}

/* Each problem has operands of its own, so that mixed up pointers show. */
static struct mha_gemm *add(struct list *list, int64_t m, int64_t n, int64_t k)
{
    int64_t i = list->count++;
    list->problem[i] = (struct mha_gemm){
        .M = m,
        .N = n,
        .K = k,
        .A = list->A + i * 3,
        .lda = K,
        .B = list->B + i * 5,
        .ldb = K,
        .C = list->C + i * list->room,
        .ldc = N,
    };
    return &list->problem[i];
}

/* Solves the list and compares every C with the product, and what is beside it with what was. */
static void solve(struct list *list)
{
    mha_blas_gemm(list->problem, list->count);
    for (int64_t i = 0; i < list->count; i++) {
        const struct mha_gemm *p = &list->problem[i];
        multiply_by_hand((int)p->M, (int)p->N, (int)p->K, p->A, (int)p->lda, p->B, (int)p->ldb,
                         list->start + i * list->room, (int)p->ldc);
    }
    check_same_bits("C", list->C, list->start, MOST * list->room);
}

static void no_problem_is_no_call(void **state)
{
    (void)state;
    mha_blas_gemm(NULL, 0);
    assert_int_equal(plain_calls + batch_calls, 0);
}

static void one_problem_is_a_plain_call(void **state)
{
    (void)state;
    struct list list;
    list_make(&list);
    add(&list, M, N, K);
    solve(&list);
    assert_int_equal(plain_calls, 1);
    assert_int_equal(batch_calls, 0);
    list_free(&list);
}

static void equal_problems_form_one_group(void **state)
{
    (void)state;
    struct list list;
    list_make(&list);
    for (int i = 0; i < 7; i++)
        add(&list, M, N, K);
    expect_batch(1, (int[]){ 7 });
    solve(&list);
    assert_int_equal(batch_calls, 1);
    assert_int_equal(plain_calls, 0);
    list_free(&list);
}

static void each_difference_starts_a_group(void **state)
{
    (void)state;
    struct list list;
    list_make(&list);
    add(&list, M, N, K);
    add(&list, M, N, K);
    add(&list, M, N, K)->lda = K + 1;
    add(&list, M, N, K)->ldb = K + 2;
    add(&list, M, N, K)->ldb = K + 2;
    add(&list, M, N, K)->ldc = N + 1;
    add(&list, M, N - 1, K + 2)->lda = K + 2;
    list.problem[6].ldb = K + 2;
    add(&list, M + 1, 335, K - 1)->ldc = 335;
    add(&list, M + 1, 335, K)->ldc = 335;
    add(&list, M, N, K);
    expect_batch(8, (int[]){ 2, 1, 2, 1, 1, 1, 1, 1 });
    solve(&list);
    assert_int_equal(batch_calls, 1);
    assert_int_equal(plain_calls, 0);
    list_free(&list);
}

static void more_than_64_problems_take_several_calls(void **state)
{
    (void)state;
    struct list list;
    list_make(&list);
    for (int i = 0; i < 130; i++)
        add(&list, M, N, K);
    for (int i = 0; i < 40; i++)
        add(&list, M, N, K)->ldc = N + 1;
    expect_batch(1, (int[]){ 64 });
    expect_batch(1, (int[]){ 64 });
    expect_batch(2, (int[]){ 2, 40 });
    solve(&list);
    assert_int_equal(batch_calls, 3);
    assert_int_equal(plain_calls, 0);
    list_free(&list);
}

static void sixty_five_problems_are_a_batch_and_a_plain_call(void **state)
{
    (void)state;
    struct list list;
    list_make(&list);
    for (int i = 0; i < 65; i++)
        add(&list, M, N, K);
    expect_batch(1, (int[]){ 64 });
    solve(&list);
    assert_int_equal(batch_calls, 1);
    assert_int_equal(plain_calls, 1);
    list_free(&list);
}

/* Exactly 1,000,000 is small. Only the 64 problems around the small one go without a batch. */
static void one_small_problem_makes_its_chunk_plain(void **state)
{
    (void)state;
    struct list list;
    list_make(&list);
    for (int i = 0; i < 70; i++)
        add(&list, M, N, K);
    list.problem[63].N = 500;
    expect_batch(1, (int[]){ 6 });
    solve(&list);
    assert_int_equal(batch_calls, 1);
    assert_int_equal(plain_calls, 64);
    list_free(&list);

    list_make(&list);
    start(NULL);
    for (int i = 0; i < 70; i++)
        add(&list, M, N, K);
    list.problem[64].K = 1;
    expect_batch(1, (int[]){ 64 });
    solve(&list);
    assert_int_equal(batch_calls, 1);
    assert_int_equal(plain_calls, 6);
    list_free(&list);
}

/* ---- layers on the mocks --------------------------------------------------------------------- */

struct problem {
    int64_t B, L, E, H, G, D;
    int64_t gap; /* between the samples of the rows: they cannot be one product */
};

/* Runs a self-attention layer with the residual and compares it with the oracle. */
static void run_layer(const struct problem *p)
{
    int64_t q = p->H * p->D, k = p->G * p->D, rows = p->L * p->E + p->gap;
    float *w_q = guarded_floats(q * p->E), *w_k = guarded_floats(k * p->E);
    float *w_v = guarded_floats(k * p->E), *w_o = guarded_floats(p->E * q);
    float *b_q = guarded_floats(q), *b_o = guarded_floats(p->E);
    float *x = guarded_floats(p->B * rows), *y = guarded_floats(p->B * p->L * p->E);
    struct mha_tensor t[] = {
        mha_tensor_2d(w_q, MHA_FLOAT32, q, p->E),
        mha_tensor_2d(w_k, MHA_FLOAT32, k, p->E),
        mha_tensor_2d(w_v, MHA_FLOAT32, k, p->E),
        mha_tensor_2d(w_o, MHA_FLOAT32, p->E, q),
        mha_tensor_1d(b_q, MHA_FLOAT32, q),
        mha_tensor_1d(b_o, MHA_FLOAT32, p->E),
        mha_tensor_3d(x, MHA_FLOAT32, p->B, p->L, p->E),
        mha_tensor_3d(y, MHA_FLOAT32, p->B, p->L, p->E),
    };
    t[6].strides[0] = rows;
    for (int64_t i = 0; i < q * p->E; i++) /* scores that the softmax does not saturate */
        w_q[i] /= (float)p->E;
    struct mha_layer_shape shape = { .E = p->E, .H = p->H, .G = p->G, .D = p->D };
    struct mha_weights weights = {
        .w_q = &t[0], .w_k = &t[1], .w_v = &t[2], .w_o = &t[3], .b_q = &t[4], .b_o = &t[5]
    };
    struct mha_inputs inputs = { .query = &t[6], .residual = &t[6] };
    mha_context *ctx = context_plain();
    mha_layer *layer = NULL;
    check_status(ctx, mha_layer_create(ctx, &shape, &weights, MHA_BORROW, &layer), MHA_OK);
    plain_calls = 0; /* the self-check */
    struct mha_outputs outputs = { .out = &t[7] };
    check_status(ctx, mha_forward(ctx, layer, &inputs, NULL, &outputs), MHA_OK);
    struct reference_result want;
    reference_forward(&shape, &weights, &inputs, NULL, &want);
    layer_model_check("", &shape, &weights, &inputs, NULL, &want,
                      &(struct float_arrays){ .out = y });
    reference_free(&want);
    mha_layer_free(layer);
    mha_context_free(ctx);
    float *blocks[] = { w_q, w_k, w_v, w_o, b_q, b_o, x, y };
    for (int64_t i = 0; i < COUNT(blocks); i++)
        guarded_free(blocks[i]);
}

/* q, k and v are one batch of three products, W_O a product by itself. */
static void projections_of_a_layer_are_one_batch(void **state)
{
    (void)state;
    expect_batch(1, (int[]){ 3 });
    run_layer(&(struct problem){ .B = 2, .L = 33, .E = 128, .H = 4, .G = 4, .D = 32 });
    assert_int_equal(batch_calls, 1);
    assert_int_equal(plain_calls, 1);
}

/* Samples apart from each other and fewer key heads: q of each sample, then k and v of each, whose
 * sizes agree, in one call; the output has no gaps and W_O is one product. */
static void samples_and_grouped_heads_form_groups(void **state)
{
    (void)state;
    expect_batch(2, (int[]){ 3, 6 });
    run_layer(&(struct problem){ .B = 3, .L = 67, .E = 130, .H = 4, .G = 2, .D = 60, .gap = 7 });
    assert_int_equal(batch_calls, 1);
    assert_int_equal(plain_calls, 1);
}

/* The key projections are too small for the batch, so none of the products goes there. */
static void small_layer_runs_without_the_batch(void **state)
{
    (void)state;
    run_layer(&(struct problem){ .B = 2, .L = 67, .E = 130, .H = 4, .G = 1, .D = 30, .gap = 1 });
    assert_int_equal(batch_calls, 0);
    assert_int_equal(plain_calls, 7);
}

/* ---- the self-check -------------------------------------------------------------------------- */

static void kind_19_case_135_a_broken_blas_is_an_error(void **state)
{
    (void)state;
    static const enum fault faults[] = { DOES_NOTHING, NO_BETA,     FORGETS_LDA,
                                         FORGETS_LDB,  FORGETS_LDC, NO_TRANSPOSE };
    float w[4] = { 1, 2, 3, 4 };
    struct mha_tensor tw = mha_tensor_2d(w, MHA_FLOAT32, 2, 2);
    struct mha_layer_shape shape = { .E = 2, .H = 1 };
    struct mha_weights weights = { .w_q = &tw, .w_k = &tw, .w_v = &tw, .w_o = &tw };
    struct counting counting;
    counting_init(&counting);
    mha_context *ctx = context_counting(&counting);
    for (int64_t i = 0; i < COUNT(faults); i++) {
        fault = faults[i];
        mha_layer *layer = (mha_layer *)&counting; /* must become NULL */
        mha_status status = mha_layer_create(ctx, &shape, &weights, MHA_COPY, &layer);
        check_status(ctx, status, MHA_ERROR_BLAS);
        assert_null(layer);
        check_contains(mha_context_message(ctx), "mha_layer_create: the linked BLAS fails");
        assert_int_equal(counting.live, 1);
    }
    fault = NO_FAULT;
    mha_layer *layer = NULL;
    check_status(ctx, mha_layer_create(ctx, &shape, &weights, MHA_COPY, &layer), MHA_OK);
    mha_layer_free(layer);
    mha_context_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(no_problem_is_no_call, start),
        cmocka_unit_test_setup(one_problem_is_a_plain_call, start),
        cmocka_unit_test_setup(equal_problems_form_one_group, start),
        cmocka_unit_test_setup(each_difference_starts_a_group, start),
        cmocka_unit_test_setup(more_than_64_problems_take_several_calls, start),
        cmocka_unit_test_setup(sixty_five_problems_are_a_batch_and_a_plain_call, start),
        cmocka_unit_test_setup(one_small_problem_makes_its_chunk_plain, start),
        cmocka_unit_test_setup(projections_of_a_layer_are_one_batch, start),
        cmocka_unit_test_setup(samples_and_grouped_heads_form_groups, start),
        cmocka_unit_test_setup(small_layer_runs_without_the_batch, start),
        cmocka_unit_test_setup(kind_19_case_135_a_broken_blas_is_an_error, start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
