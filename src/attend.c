#include "attend.h"

#include <string.h>

#include "visible.h"

void mha_attend_lay_out(const struct mha_plan *plan, struct mha_arena *arena,
                        struct mha_attend_scratch *scratch)
{
    scratch->tile = mha_arena_take(arena, mha_attend_tile_floats(plan->D, plan->Dv), sizeof(float));
    scratch->extra_k = mha_arena_floats(arena, plan->G, plan->extras, plan->D);
    scratch->extra_v = mha_arena_floats(arena, plan->G, plan->extras, plan->Dv);
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

/*
 * One tile: `n` query rows of sample b, from row `first` of the list of key/value head g. The list
 * holds the rows of all query heads that read this head, head after head: l + L * (h - g * H/G).
 */
static void attend_tile(const struct mha_kernels *kernels, const struct mha_plan *plan,
                        const struct mha_visible *sample, struct mha_attend_tile *tile, int64_t b,
                        int64_t g, int64_t first, int64_t n)
{
    struct mha_attend_row rows[MHA_TILE_ROWS];
    int64_t h = g * (plan->H / plan->G) + first / plan->L, l = first % plan->L;
    for (int64_t i = 0; i < n; i++) {
        struct mha_attend_row *row = &rows[i];
        *row = (struct mha_attend_row){
            .q = row_of(&plan->q, b, l, h),
            .residual = row_of(&plan->residual, b, l, h),
            .out = row_of(&plan->out, b, l, h),
            .lse = row_of(&plan->lse, b, l, h),
            .weights = row_of(&plan->weights, b, l, h),
            .weights_mean = row_of(&plan->weights_mean, b, l, 0),
        };
        row->sees_extra = mha_visible_row(sample, l, &row->lo, &row->hi);
        if (plan->mask)
            row->mask = plan->mask
                        + (b * plan->mask_b + h * plan->mask_h + l * plan->mask_l)
                              * plan->mask_bytes;
        if (++l == plan->L) {
            l = 0;
            h++;
        }
    }
    tile->rows = rows;
    tile->n_rows = n;
    tile->k = row_of(&plan->k, b, 0, g);
    tile->v = row_of(&plan->v, b, 0, g);
    kernels->attend_f32(tile);
}

/* What all tiles have in common. */
static struct mha_attend_tile common_tile(const struct mha_plan *plan)
{
    return (struct mha_attend_tile){
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
    };
}

void mha_attend(const struct mha_kernels *kernels, const struct mha_plan *plan,
                const struct mha_attend_scratch *scratch)
{
    if (plan->B == 0 || plan->L == 0)
        return;
    gather_extras(&plan->bias_k, plan->G, plan->extras, plan->D, scratch->extra_k);
    gather_extras(&plan->bias_v, plan->G, plan->extras, plan->Dv, scratch->extra_v);

    struct mha_attend_tile tile = common_tile(plan);
    tile.scratch = scratch->tile;
    int64_t group = plan->H / plan->G;
    for (int64_t b = 0; b < plan->B; b++) {
        struct mha_visible sample = mha_visible_sample(plan, b);
        /* A head mean adds its heads in ascending order, so all heads of a row follow each other;
         * then a tile is rows of one head. */
        int64_t run = plan->weights_mean.data ? plan->L : plan->L * group;
        int64_t runs = plan->L * plan->H / run;
        for (int64_t first = 0; first < run; first += MHA_TILE_ROWS)
            for (int64_t i = 0; i < runs; i++) {
                int64_t h = i * run / plan->L, g = h / group;
                tile.mean_step = (i == 0 ? MHA_MEAN_FIRST : 0) | (i == runs - 1 ? MHA_MEAN_LAST : 0);
                tile.extra_k = scratch->extra_k + g * plan->extras * plan->D;
                tile.extra_v = scratch->extra_v + g * plan->extras * plan->Dv;
                attend_tile(kernels, plan, &sample, &tile, b, g, (h - g * group) * plan->L + first,
                            min_i64(MHA_TILE_ROWS, run - first));
            }
    }
}
