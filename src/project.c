#include "project.h"

#include <string.h>

/* How the rows [B, L] of a projection fall into gemm problems: `count` runs of `rows` rows. */
struct runs {
    int64_t count, rows;
};

/* Can the BLAS step through rows of this width by this stride? Rows that repeat or overlap, and
 * strides beyond its integers, it cannot. */
static bool is_leading(int64_t stride, int64_t width)
{
    return stride >= width && stride <= MHA_BLAS_MAX;
}

static bool rows_lie_evenly(const struct mha_view *v, int64_t L, int64_t width)
{
    return L <= 1 || (L <= MHA_BLAS_MAX && is_leading(v->l, width));
}

static bool samples_lie_evenly(const struct mha_view *v, int64_t B, int64_t L, int64_t width)
{
    return B <= 1 || (L == 1 ? is_leading(v->b, width) : v->b == L * v->l);
}

static struct runs find_runs(const struct mha_projection *p)
{
    if (p->B == 0 || p->L == 0)
        return (struct runs){ 0, 0 };
    if (!rows_lie_evenly(&p->x, p->L, p->K) || !rows_lie_evenly(&p->y, p->L, p->N))
        return (struct runs){ p->B * p->L, 1 };
    if (p->B * p->L > MHA_BLAS_MAX || !samples_lie_evenly(&p->x, p->B, p->L, p->K)
        || !samples_lie_evenly(&p->y, p->B, p->L, p->N))
        return (struct runs){ p->B, p->L };
    return (struct runs){ 1, p->B * p->L };
}

int64_t mha_project_count(const struct mha_projection *projections, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += find_runs(&projections[i]).count;
    return count;
}

float *mha_project_row(const struct mha_view *view, int64_t L, int64_t r)
{
    return view->data + r / L * view->b + r % L * view->l;
}

/* y = b + residual: what the product is added to. */
static void start_rows(const struct mha_projection *p)
{
    for (int64_t r = 0; r < p->B * p->L; r++) {
        float *y = mha_project_row(&p->y, p->L, r);
        const float *residual = p->residual.data ? mha_project_row(&p->residual, p->L, r) : NULL;
        if (!residual && !p->b)
            memset(y, 0, (size_t)p->N * sizeof *y);
        else if (!residual)
            memcpy(y, p->b, (size_t)p->N * sizeof *y);
        else
            for (int64_t n = 0; n < p->N; n++)
                y[n] = p->b ? residual[n] + p->b[n] : residual[n];
    }
}

/* Leading dimension of a run: the step from row to row, any legal number for a single row. */
static int64_t leading(const struct mha_view *v, const struct mha_projection *p,
                       const struct runs *runs, int64_t width)
{
    return runs->rows == 1 ? width : p->L == 1 ? v->b : v->l;
}

void mha_project(const struct mha_projection *projections, int64_t n, struct mha_gemm *problems)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        const struct mha_projection *p = &projections[i];
        struct runs runs = find_runs(p);
        start_rows(p);
        for (int64_t run = 0; run < runs.count; run++)
            problems[count++] = (struct mha_gemm){
                .M = runs.rows,
                .N = p->N,
                .K = p->K,
                .A = mha_project_row(&p->x, p->L, run * runs.rows),
                .lda = leading(&p->x, p, &runs, p->K),
                .B = p->w,
                .ldb = p->w_stride,
                .C = mha_project_row(&p->y, p->L, run * runs.rows),
                .ldc = leading(&p->y, p, &runs, p->N),
            };
    }
    mha_blas_gemm(problems, count);
}
