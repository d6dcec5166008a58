#include "attend.h"

#include <string.h>

#include "visible.h"

/*
 * How a call is cut into items. The rows of one sample that share a key/value head make a list: those
 * of all query heads that read it, head after head. A list is cut into tiles, and an item is a tile.
 *
 * A head mean adds its heads in ascending order. When it is wanted, lists are the rows of one head,
 * and an item is the tile at the same rows of all heads, one after the other.
 *
 * Few tiles are too few for many lanes, as when one token is decoded against a long context. Then an
 * item is one split of a tile's keys, and whoever does the last of a tile's splits joins them all.
 */
struct cut {
    int64_t rows;  /* of a list */
    int64_t tiles; /* of a list */
    int64_t lists; /* of a sample, of which an item names one: 1 where it is all heads */
    int64_t items;
    int64_t item_tiles; /* of an item: 1, or H where it is all heads */
};

static struct cut cut_call(const struct mha_plan *plan)
{
    bool mean = plan->weights_mean.data != NULL;
    struct cut cut = {
        .rows = mean ? plan->L : plan->L * (plan->H / plan->G),
        .lists = mean ? 1 : plan->G,
        .item_tiles = mean ? plan->H : 1,
    };
    /* A few rows at the end are part of the last tile. */
    int64_t rest = cut.rows % MHA_MANY_ROWS, whole = cut.rows / MHA_MANY_ROWS;
    cut.tiles = whole + (rest > (whole > 0 ? MHA_FEW_ROWS : 0));
    cut.items = plan->B * cut.lists * cut.tiles;
    return cut;
}

/* Multiply-adds for one query row and one key. The exponential counts like a width of 16. */
static double pair_work(const struct mha_plan *plan, bool wants_out)
{
    bool weights = plan->weights.data || plan->weights_mean.data;
    return (double)plan->D * (weights ? 2 : 1) + (wants_out ? (double)plan->Dv : 0) + 16;
}

/* Into how many splits the keys of a tile are shared. With weights they are not: a second walk over all
 * keys would be left to one lane. */
static int64_t plan_splits(const struct mha_plan *plan, const struct cut *cut, int64_t lanes)
{
    enum { ENOUGH = 4 }; /* tiles a lane, after which the last to come leave at most a fifth idle */
    bool weights = plan->weights.data || plan->weights_mean.data;
    if (lanes == 1 || weights || cut->items >= ENOUGH * lanes)
        return 1;
    return max_i64(plan->S / MHA_SPLIT + (plan->S % MHA_SPLIT != 0), 1);
}

/* Floats of the parts of a tile. */
static int64_t parts_floats(const struct mha_plan *plan, const struct cut *cut, int64_t splits)
{
    return splits * mha_attend_part_floats(min_i64(cut->rows, MHA_TILE_ROWS), plan->Dv);
}

static void lay_out_parts(const struct mha_plan *plan, const struct cut *cut,
                          struct mha_arena *arena, struct mha_attend_scratch *scratch)
{
    scratch->parts = mha_arena_floats(arena, cut->items, 1,
                                      parts_floats(plan, cut, scratch->splits));
    scratch->missing = mha_arena_take(arena, cut->items, sizeof *scratch->missing);
}

void mha_attend_lay_out(const struct mha_plan *plan, const struct mha_threads *threads,
                        struct mha_arena *arena, struct mha_attend_scratch *scratch)
{
    /* By shapes alone, which is all that a workspace query has. Of a layer's plan `out` may still be
     * missing here. */
    double keys = (double)plan->S + (double)plan->extras;
    double work = (double)plan->B * (double)plan->H * (double)plan->L * keys
                  * pair_work(plan, true);
    struct cut cut = cut_call(plan);
    scratch->lanes = mha_threads_lanes(threads, work, INT64_MAX);
    scratch->splits = plan_splits(plan, &cut, scratch->lanes);
    if (scratch->splits == 1)
        scratch->lanes = min_i64(scratch->lanes, max_i64(cut.items, 1));
    else
        lay_out_parts(plan, &cut, arena, scratch);
    scratch->tiles = mha_arena_floats(arena, scratch->lanes, 1,
                                      mha_attend_tile_floats(plan->D, plan->Dv));
    scratch->extra_k = mha_arena_floats(arena, plan->G, plan->extras, plan->D);
    scratch->extra_v = mha_arena_floats(arena, plan->G, plan->extras, plan->Dv);
}

/* About the multiply-adds for what rows see of keys, judged by four rows a sample; not counted any
 * further once there are `enough`. */
static double visible_work(const struct mha_plan *plan, double enough)
{
    enum { PROBES = 4 };
    double a_pair = pair_work(plan, plan->out.data) * (double)plan->H, work = 0;
    for (int64_t b = 0; b < plan->B && work < enough; b++) {
        struct mha_visible sample = mha_visible_sample(plan, b);
        double keys = 0;
        for (int64_t probe = 0; probe < PROBES; probe++) {
            int64_t lo, hi, row = sample.queries / PROBES * probe + sample.queries / (2 * PROBES);
            if (mha_visible_row(&sample, row, &lo, &hi))
                keys += (double)(hi - lo + plan->extras);
        }
        work += keys / (double)PROBES * (double)sample.queries * a_pair;
    }
    return work;
}

mha_status mha_attend_prepare(mha_context *ctx, const struct mha_plan *plan,
                              struct mha_attend_scratch *scratch)
{
    if (scratch->lanes > 1) {
        double enough = (double)scratch->lanes * MHA_LANE_WORK;
        double work = visible_work(plan, enough);
        scratch->lanes = min_i64(scratch->lanes, mha_threads_lanes(&ctx->threads, work, INT64_MAX));
        if (scratch->lanes == 1)
            scratch->splits = 1;
    }
    return mha_context_prepare_threads(ctx, scratch->lanes);
}

/* The extra keys and values of each head, one after the other: the bias pair, then zeros. */
static void gather_extras(const struct mha_view *bias, int64_t G, int64_t extras, int64_t width,
                          float *to)
{
    for (int64_t g = 0; g < G; g++)
        for (int64_t extra = 0; extra < extras; extra++, to += width) {
            if (bias->data && extra == 0)
                memcpy(to, bias->data + g * bias->h, (size_t)width * sizeof *to);
            else
                memset(to, 0, (size_t)width * sizeof *to);
        }
}

static float *row_of(const struct mha_view *view, int64_t b, int64_t l, int64_t h)
{
    return view->data ? view->data + b * view->b + l * view->l + h * view->h : NULL;
}

/* What the lanes of a call share. */
struct job {
    const struct mha_kernels *kernels;
    const struct mha_plan *plan;
    const struct mha_attend_scratch *scratch;
    struct cut cut;
    bool falling; /* later rows see more keys: the last tile of a list comes first */
    struct mha_items items;
};

/* A tile with the rows it points to. */
struct full_tile {
    struct mha_attend_tile tile;
    struct mha_attend_row rows[MHA_TILE_ROWS];
};

/* What all tiles of a lane have in common. */
static void set_common(const struct job *job, int64_t lane, struct full_tile *full)
{
    const struct mha_plan *plan = job->plan;
    full->tile = (struct mha_attend_tile){
        .rows = full->rows,
        .k_stride = plan->k.l,
        .v_stride = plan->v.l,
        .D = plan->D,
        .Dv = plan->out.data ? plan->Dv : 0,
        .S = plan->S,
        .extras = plan->extras,
        .scale = plan->scale,
        .softcap = plan->softcap,
        .mask_kind = plan->mask_kind,
        .mask_stride = plan->mask_s,
        .heads = (float)plan->H,
        .scratch = job->scratch->tiles + lane * mha_attend_tile_floats(plan->D, plan->Dv),
    };
}

/* Query row l of head h, without what it sees. */
static inline struct mha_attend_row first_row(const struct mha_plan *plan, int64_t b, int64_t l,
                                              int64_t h)
{
    struct mha_attend_row row = {
        .q = row_of(&plan->q, b, l, h),
        .residual = row_of(&plan->residual, b, l, h),
        .out = row_of(&plan->out, b, l, h),
        .lse = row_of(&plan->lse, b, l, h),
        .weights = row_of(&plan->weights, b, l, h),
        .weights_mean = row_of(&plan->weights_mean, b, l, 0),
    };
    if (plan->mask)
        row.mask = plan->mask
                   + (b * plan->mask_b + h * plan->mask_h + l * plan->mask_l) * plan->mask_bytes;
    return row;
}

/* The row after it, of the same head. */
static inline void step_row(const struct mha_plan *plan, struct mha_attend_row *row)
{
    row->q += plan->q.l;
    if (row->residual)
        row->residual += plan->residual.l;
    if (row->out)
        row->out += plan->out.l;
    if (row->lse)
        row->lse += plan->lse.l;
    if (row->weights)
        row->weights += plan->weights.l;
    if (row->weights_mean)
        row->weights_mean += plan->weights_mean.l;
    if (row->mask)
        row->mask = (const char *)row->mask + plan->mask_l * plan->mask_bytes;
}

/*
 * The `n` query rows of sample b from row `first` of the list of key/value head g. The list holds the
 * rows of all query heads that read this head, head after head: l + L * (h - g * H/G).
 */
static void set_rows(const struct mha_plan *plan, int64_t b, int64_t g, int64_t first, int64_t n,
                     struct mha_attend_row *rows)
{
    struct mha_visible sample = mha_visible_sample(plan, b);
    bool alike = mha_visible_alike(&sample, plan->L);
    int64_t h = g * (plan->H / plan->G) + first / plan->L, l = first % plan->L;
    int64_t lo, hi, sees_extra = mha_visible_row(&sample, l, &lo, &hi);
    struct mha_attend_row row = first_row(plan, b, l, h);
    for (int64_t i = 0; i < n; i++) {
        if (!alike)
            sees_extra = mha_visible_row(&sample, l, &lo, &hi);
        rows[i] = row;
        rows[i].lo = lo;
        rows[i].hi = hi;
        rows[i].sees_extra = sees_extra;
        if (++l < plan->L) {
            step_row(plan, &row);
        } else {
            l = 0;
            h++;
            row = first_row(plan, b, l, h);
        }
    }
}

/* Tile `at` of an item: the only one, or that of head `at` when the item is all heads. */
static void set_tile(const struct job *job, int64_t item, int64_t at, struct full_tile *full)
{
    const struct mha_plan *plan = job->plan;
    const struct cut *cut = &job->cut;
    struct mha_attend_tile *tile = &full->tile;
    int64_t place = item % cut->tiles, list = item / cut->tiles;
    int64_t b = list / cut->lists, g = list % cut->lists;
    if (job->falling)
        place = cut->tiles - 1 - place;
    int64_t first = place * MHA_MANY_ROWS;
    tile->n_rows = place == cut->tiles - 1 ? cut->rows - first : MHA_MANY_ROWS;
    if (cut->item_tiles > 1) {
        int64_t group = plan->H / plan->G;
        g = at / group;
        first += at % group * plan->L;
    }
    tile->mean_step = (at == 0 ? MHA_MEAN_FIRST : 0)
                      | (at == cut->item_tiles - 1 ? MHA_MEAN_LAST : 0);
    tile->k = row_of(&plan->k, b, 0, g);
    tile->v = row_of(&plan->v, b, 0, g);
    tile->extra_k = job->scratch->extra_k + g * plan->extras * plan->D;
    tile->extra_v = job->scratch->extra_v + g * plan->extras * plan->Dv;
    set_rows(plan, b, g, first, tile->n_rows, full->rows);
}

/* Each tile is set one ahead, so that the kernel can look at the next. */
static void attend_lane(void *arg, int64_t lane)
{
    struct job *job = arg;
    int64_t tiles = job->cut.item_tiles;
    struct full_tile two[2];
    set_common(job, lane, &two[0]);
    set_common(job, lane, &two[1]);
    for (int64_t item, end; mha_items_take(&job->items, &item, &end);) {
        int64_t at = item * tiles, last = end * tiles - 1;
        set_tile(job, item, 0, &two[at % 2]);
        for (; at < last; at++) {
            struct full_tile *next = &two[(at + 1) % 2];
            set_tile(job, (at + 1) / tiles, (at + 1) % tiles, next);
            job->kernels->attend_f32(&two[at % 2].tile, &next->tile);
        }
        job->kernels->attend_f32(&two[last % 2].tile, NULL);
    }
}

/* Items are splits of tiles. A tile's other parts are visible to the lane that finds none missing. */
static void share_lane(void *arg, int64_t lane)
{
    struct job *job = arg;
    int64_t splits = job->scratch->splits;
    int64_t floats = parts_floats(job->plan, &job->cut, splits);
    struct full_tile full;
    set_common(job, lane, &full);
    for (int64_t item, end; mha_items_take(&job->items, &item, &end);)
        for (; item < end; item++) {
            int64_t tile = item / splits;
            float *parts = job->scratch->parts + tile * floats;
            set_tile(job, tile, 0, &full);
            job->kernels->attend_split_f32(&full.tile, item % splits, parts);
            if (atomic_fetch_sub_explicit(&job->scratch->missing[tile], 1, memory_order_acq_rel)
                == 1)
                job->kernels->attend_join_f32(&full.tile, parts);
        }
}

void mha_attend(mha_context *ctx, const struct mha_plan *plan,
                const struct mha_attend_scratch *scratch)
{
    if (plan->B == 0 || plan->L == 0)
        return;
    gather_extras(&plan->bias_k, plan->G, plan->extras, plan->D, scratch->extra_k);
    gather_extras(&plan->bias_v, plan->G, plan->extras, plan->Dv, scratch->extra_v);
    struct job job = {
        .kernels = ctx->kernels,
        .plan = plan,
        .scratch = scratch,
        .cut = cut_call(plan),
        .falling = plan->right != INT64_MAX && plan->left == INT64_MAX,
    };
    job.items.count = job.cut.items * scratch->splits;
    job.items.lanes = scratch->lanes;
    for (int64_t tile = 0; tile < job.cut.items && scratch->splits > 1; tile++)
        atomic_init(&scratch->missing[tile], scratch->splits);
    mha_threads_run(&ctx->threads, scratch->lanes, scratch->splits > 1 ? share_lane : attend_lane,
                    &job);
}
