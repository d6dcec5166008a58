#include <string.h>

#include "project.h"

/* Outputs of one work item: few enough to share a projection out, many enough to pay for copying x. */
enum { ITEM_PANELS = 12, ITEM_OUTPUTS = ITEM_PANELS * MHA_PANEL };

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

int64_t mha_project_panel_floats(int64_t N, int64_t K)
{
    int64_t count = 0;
    return mha_memory_product(ceil_div(N, MHA_PANEL) * MHA_PANEL, K, &count) ? count : -1;
}

void mha_project_pack(const float *w, int64_t w_stride, int64_t N, int64_t K, float *panels)
{
    for (int64_t first = 0; first < N; first += MHA_PANEL, panels += MHA_PANEL * K)
        for (int64_t i = 0; i < MHA_PANEL; i++) {
            const float *row = w + (first + i) * w_stride;
            for (int64_t k = 0; k < K; k++)
                panels[k * MHA_PANEL + i] = first + i < N ? row[k] : 0.0f;
        }
}

/* A product of n, cut into equal parts of at most `most`. */
struct parts {
    int64_t count, size;
};

static struct parts cut(int64_t n, int64_t most)
{
    int64_t count = ceil_div(n, most);
    return (struct parts){ count, count ? ceil_div(n, count) : 0 };
}

void mha_project_lay_out(const struct mha_projection *projections, int64_t n,
                         struct mha_arena *arena, struct mha_project_scratch *scratch)
{
    int64_t depth = 0;
    bool deep = false;
    for (int64_t i = 0; i < n; i++) {
        depth = max_i64(depth, cut(projections[i].K, MHA_PROJECT_DEPTH).size);
        deep = deep || projections[i].K > MHA_PROJECT_DEPTH;
    }
    scratch->x = mha_arena_floats(arena, MHA_PROJECT_ROWS, 1, depth + MHA_PROJECT_PAD);
    scratch->partial = mha_arena_floats(arena, deep ? MHA_PROJECT_ROWS : 0, 1, ITEM_OUTPUTS);
}

/* Row r of the [B, L] rows in order. */
static float *row_at(const struct mha_view *v, int64_t L, int64_t r)
{
    return v->data + r / L * v->b + r % L * v->l;
}

/* The rows of one work item and what was copied of them last. */
struct block {
    int64_t row, rows;
    float *y[MHA_PROJECT_ROWS];
    const float *residual[MHA_PROJECT_ROWS];
};

/* Inputs k .. k + depth of the block's rows, side by side. */
static void copy_rows(const struct mha_projection *p, const struct block *block, int64_t k,
                      int64_t depth, int64_t stride, float *to)
{
    for (int64_t i = 0; i < block->rows; i++)
        memcpy(to + i * stride, row_at(&p->x, p->L, block->row + i) + k,
               (size_t)depth * sizeof *to);
}

/* One work item: some rows to outputs n_begin .. n_end of one projection. x is copied unless it is
 * there already, from the item before. */
static void project_item(const struct mha_kernels *kernels, const struct mha_projection *p,
                         struct block *block, int64_t n_begin, bool copied,
                         const struct mha_project_scratch *scratch)
{
    for (int64_t i = 0; i < block->rows; i++) {
        block->y[i] = row_at(&p->y, p->L, block->row + i);
        block->residual[i] =
            p->residual.data ? row_at(&p->residual, p->L, block->row + i) : NULL;
    }
    struct parts depths = cut(p->K, MHA_PROJECT_DEPTH);
    struct mha_project_tile tile = {
        .rows = block->rows,
        .x = scratch->x,
        .x_stride = depths.size + MHA_PROJECT_PAD,
        .panel_stride = p->K * MHA_PANEL,
        .n_begin = n_begin,
        .n_end = min_i64(n_begin + ITEM_OUTPUTS, p->N),
        .width = p->width,
        .b = p->b,
        .residual = p->residual.data ? block->residual : NULL,
        .y = block->y,
        .residual_head = p->residual.h,
        .y_head = p->y.h,
        .partial = scratch->partial,
        .partial_stride = ITEM_OUTPUTS,
    };
    for (int64_t i = 0; i < depths.count; i++) {
        int64_t k = i * depths.size;
        tile.depth = min_i64(depths.size, p->K - k);
        tile.panels = p->panels + n_begin * p->K + k * MHA_PANEL;
        tile.first = i == 0;
        tile.last = i == depths.count - 1;
        if (!copied || depths.count > 1)
            copy_rows(p, block, k, tile.depth, tile.x_stride, scratch->x);
        kernels->project_f32(&tile);
    }
}

static bool same_rows(const struct mha_projection *p, const struct mha_projection *q)
{
    return p->x.data == q->x.data && p->x.b == q->x.b && p->x.l == q->x.l && p->B == q->B
           && p->L == q->L && p->K == q->K;
}

void mha_project_packed(const struct mha_kernels *kernels, const struct mha_projection *projections,
                        int64_t n, const struct mha_project_scratch *scratch)
{
    struct block block;
    for (int64_t begin = 0, end; begin < n; begin = end) {
        const struct mha_projection *p = &projections[begin];
        for (end = begin + 1; end < n && same_rows(p, &projections[end]); end++)
            continue;
        struct parts rows = cut(p->B * p->L, MHA_PROJECT_ROWS);
        for (int64_t i = 0; i < rows.count; i++) {
            block.row = i * rows.size;
            block.rows = min_i64(rows.size, p->B * p->L - block.row);
            bool copied = false;
            for (int64_t j = begin; j < end; j++)
                for (int64_t n0 = 0; n0 < projections[j].N; n0 += ITEM_OUTPUTS) {
                    project_item(kernels, &projections[j], &block, n0, copied, scratch);
                    copied = true;
                }
        }
    }
}
