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

/* ---- work items ------------------------------------------------------------------------------- */

/*
 * An item is some rows of x against the panels of up to ITEM_OUTPUTS outputs of one projection. Items
 * are numbered so that neighbours have the same rows: within a group of projections of the same x, by
 * rows, then by projection, then by outputs.
 */
struct group {
    int64_t begin, end; /* projections */
    struct parts rows;
    int64_t columns; /* items for some rows, of all projections together */
};

static int64_t columns_of(const struct mha_projection *p)
{
    return ceil_div(p->N, ITEM_OUTPUTS);
}

static bool same_rows(const struct mha_projection *p, const struct mha_projection *q)
{
    return p->x.data == q->x.data && p->x.b == q->x.b && p->x.l == q->x.l && p->B == q->B
           && p->L == q->L && p->K == q->K;
}

static struct group group_at(const struct mha_projection *projections, int64_t n, int64_t begin)
{
    const struct mha_projection *p = &projections[begin];
    struct group group = { .begin = begin,
                           .end = begin,
                           .rows = cut(p->B * p->L, MHA_PROJECT_ROWS) };
    for (; group.end < n && same_rows(p, &projections[group.end]); group.end++)
        group.columns += columns_of(&projections[group.end]);
    return group;
}

static int64_t count_items(const struct mha_projection *projections, int64_t n)
{
    int64_t items = 0;
    for (int64_t begin = 0; begin < n;) {
        struct group group = group_at(projections, n, begin);
        items += group.rows.count * group.columns;
        begin = group.end;
    }
    return items;
}

/* ---- scratch ---------------------------------------------------------------------------------- */

/* Few rows wait for the weights to come from memory: a panel's bytes then cost as much as the
 * multiply-adds of this many rows. */
enum { ROWS_OF_A_READ = 6 };

int64_t mha_project_lanes(const struct mha_projection *projections, int64_t n,
                          const struct mha_threads *threads)
{
    double work = 0;
    for (int64_t i = 0; i < n; i++) {
        const struct mha_projection *p = &projections[i];
        int64_t rows = p->B * p->L;
        if (rows > 0)
            work += (double)max_i64(rows, ROWS_OF_A_READ) * (double)p->K * (double)p->N;
    }
    return mha_threads_lanes(threads, work, count_items(projections, n));
}

void mha_project_lay_out(const struct mha_projection *projections, int64_t n,
                         const struct mha_threads *threads, struct mha_arena *arena,
                         struct mha_project_scratch *scratch)
{
    int64_t depth = 0, rows = 0;
    bool deep = false;
    for (int64_t i = 0; i < n; i++) {
        const struct mha_projection *p = &projections[i];
        depth = max_i64(depth, cut(p->K, MHA_PROJECT_DEPTH).size);
        rows = max_i64(rows, cut(p->B * p->L, MHA_PROJECT_ROWS).size);
        deep = deep || p->K > MHA_PROJECT_DEPTH;
    }
    scratch->lanes = mha_project_lanes(projections, n, threads);
    scratch->x_floats = rows * (depth + MHA_PROJECT_PAD);
    scratch->partial_floats = deep ? rows * ITEM_OUTPUTS : 0;
    scratch->x = mha_arena_floats(arena, scratch->lanes, 1, scratch->x_floats);
    scratch->partial = mha_arena_floats(arena, scratch->lanes, 1, scratch->partial_floats);
}

/* ---- the work --------------------------------------------------------------------------------- */

/* What the lanes of a run share. */
struct job {
    const struct mha_kernels *kernels;
    const struct mha_projection *projections;
    int64_t n;
    const struct mha_project_scratch *scratch;
    struct mha_items items;
};

/* A lane's memory, and whose rows it holds. */
struct lane {
    float *x, *partial;
    const struct mha_projection *copied; /* NULL: none, or not all inputs */
    int64_t copied_row;
};

/* Inputs k .. k + depth of some rows, side by side. */
static void copy_rows(const struct mha_projection *p, int64_t row, int64_t rows, int64_t k,
                      int64_t depth, int64_t stride, float *to)
{
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + i * stride, mha_project_row(&p->x, p->L, row + i) + k,
               (size_t)depth * sizeof *to);
}

/* `rows` rows from `row` to outputs n_begin and on. */
static void project_rows(const struct job *job, struct lane *lane, const struct mha_projection *p,
                         int64_t row, int64_t rows, int64_t n_begin)
{
    float *y[MHA_PROJECT_ROWS];
    const float *residual[MHA_PROJECT_ROWS];
    for (int64_t i = 0; i < rows; i++) {
        y[i] = mha_project_row(&p->y, p->L, row + i);
        residual[i] = p->residual.data ? mha_project_row(&p->residual, p->L, row + i) : NULL;
    }
    struct parts depths = cut(p->K, MHA_PROJECT_DEPTH);
    struct mha_project_tile tile = {
        .rows = rows,
        .x = lane->x,
        .x_stride = depths.size + MHA_PROJECT_PAD,
        .panel_stride = p->K * MHA_PANEL,
        .n_begin = n_begin,
        .n_end = min_i64(n_begin + ITEM_OUTPUTS, p->N),
        .width = p->width,
        .b = p->b,
        .residual = p->residual.data ? residual : NULL,
        .y = y,
        .residual_head = p->residual.h,
        .y_head = p->y.h,
        .partial = lane->partial,
        .partial_stride = ITEM_OUTPUTS,
    };
    bool copied = lane->copied && same_rows(lane->copied, p) && lane->copied_row == row;
    for (int64_t i = 0; i < depths.count; i++) {
        int64_t k = i * depths.size;
        tile.depth = min_i64(depths.size, p->K - k);
        tile.panels = p->panels + n_begin * p->K + k * MHA_PANEL;
        tile.first = i == 0;
        tile.last = i == depths.count - 1;
        if (!copied)
            copy_rows(p, row, rows, k, tile.depth, tile.x_stride, lane->x);
        job->kernels->project_f32(&tile);
    }
    lane->copied = depths.count == 1 ? p : NULL;
    lane->copied_row = row;
}

static void project_item(const struct job *job, struct lane *lane, int64_t item)
{
    struct group group = group_at(job->projections, job->n, 0);
    while (item >= group.rows.count * group.columns) {
        item -= group.rows.count * group.columns;
        group = group_at(job->projections, job->n, group.end);
    }
    int64_t row = item / group.columns * group.rows.size, column = item % group.columns;
    const struct mha_projection *p = &job->projections[group.begin];
    for (; column >= columns_of(p); p++)
        column -= columns_of(p);
    project_rows(job, lane, p, row, min_i64(group.rows.size, p->B * p->L - row),
                 column * ITEM_OUTPUTS);
}

static void project_lane(void *arg, int64_t index)
{
    struct job *job = arg;
    struct lane lane = {
        .x = job->scratch->x + index * job->scratch->x_floats,
        .partial = job->scratch->partial + index * job->scratch->partial_floats,
    };
    for (int64_t item, end; mha_items_take(&job->items, &item, &end);)
        for (; item < end; item++)
            project_item(job, &lane, item);
}

void mha_project_packed(mha_context *ctx, const struct mha_projection *projections, int64_t n,
                        const struct mha_project_scratch *scratch)
{
    struct job job = {
        .kernels = ctx->kernels, .projections = projections, .n = n, .scratch = scratch
    };
    int64_t lanes = min_i64(scratch->lanes, mha_project_lanes(projections, n, &ctx->threads));
    job.items.count = count_items(projections, n);
    job.items.lanes = lanes;
    mha_threads_run(&ctx->threads, lanes, project_lane, &job);
}
