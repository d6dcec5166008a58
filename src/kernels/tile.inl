/* A tile from its rows to its rows: the walk over the keys, and what comes before and after it. */

/* What each column sees, and all of them together. */
static void find_ranges(struct work *w)
{
    const struct mha_attend_tile *t = w->tile;
    w->lo_key = INT64_MAX;
    w->hi_key = 0;
    for (int column = 0; column < w->columns; column++) {
        int64_t some_lo = INT64_MAX, some_hi = 0, all_lo = 0, all_hi = INT64_MAX;
        for (int64_t row = column * LANES; row < t->n_rows && row < (column + 1) * LANES; row++) {
            const struct mha_attend_row *r = &t->rows[row];
            all_lo = r->lo > all_lo ? r->lo : all_lo;
            all_hi = r->hi < all_hi ? r->hi : all_hi;
            if (r->lo >= r->hi) {
                all_hi = 0;
                continue;
            }
            some_lo = r->lo < some_lo ? r->lo : some_lo;
            some_hi = r->hi > some_hi ? r->hi : some_hi;
        }
        w->column[column].lo = some_lo;
        w->column[column].hi = some_hi;
        w->column[column].all_lo = all_lo;
        w->column[column].all_hi = all_hi;
        w->lo_key = some_lo < w->lo_key ? some_lo : w->lo_key;
        w->hi_key = some_hi > w->hi_key ? some_hi : w->hi_key;
    }
    if (w->hi_key == 0)
        w->lo_key = 0;
}

/* The part of the block at `first` that some column sees; false when none does. Columns between two
 * that see it come along: their own rows' ranges exclude what they do not see. */
static int find_group(const struct work *w, int64_t first, struct keys *g)
{
    const struct mha_attend_tile *t = w->tile;
    int64_t begin = BLOCK, end = 0;
    g->column = COLUMNS;
    g->column_end = 0;
    for (int column = 0; column < w->columns; column++) {
        int64_t lo = clamp(w->column[column].lo - first, 0, BLOCK);
        int64_t hi = clamp(w->column[column].hi - first, 0, BLOCK);
        if (lo >= hi)
            continue;
        begin = lo < begin ? lo : begin;
        end = hi > end ? hi : end;
        g->column = column < g->column ? column : g->column;
        g->column_end = column + 1;
    }
    if (begin >= end)
        return 0;
    g->first = first;
    g->begin = (int)begin;
    g->end = (int)end;
    g->extra = 0;
    g->k_stride = t->k_stride;
    g->v_stride = t->v_stride;
    g->k = t->k + (first + begin) * t->k_stride;
    g->v = t->v ? t->v + (first + begin) * t->v_stride : t->v;
    return 1;
}

/* The extra keys: a block of their own. */
static void extra_group(const struct work *w, struct keys *g)
{
    const struct mha_attend_tile *t = w->tile;
    *g = (struct keys){ .k = t->extra_k, .v = t->extra_v, .k_stride = t->D, .v_stride = t->Dv };
    g->end = (int)t->extras;
    g->column_end = w->columns;
    g->extra = g->fresh = 1;
}

static void start_sums(const struct work *w, const struct sums *sums)
{
    for (int64_t i = 0; i < w->columns * LANES; i++) {
        sums->m[i] = MINUS_INF;
        sums->l[i] = 0;
    }
}

static void clear_outputs(const struct work *w, const struct sums *sums)
{
    for (int64_t i = 0; i < w->outputs; i++)
        sums->o[i] = 0;
}

/* The keys of a split. Mostly its first group of keys is of all rows, and zeros before it are spared. */
static void attend_split(const struct work *w, const struct sums *sums, int64_t split)
{
    struct keys g;
    int64_t lo = clamp(w->lo_key, split * MHA_SPLIT, (split + 1) * MHA_SPLIT);
    int64_t hi = clamp(w->hi_key, split * MHA_SPLIT, (split + 1) * MHA_SPLIT);
    int fresh = 1;
    start_sums(w, sums);
    for (int64_t first = lo / BLOCK * BLOCK; first < hi; first += BLOCK) {
        look_at_block(w->ahead, first + BLOCK, w->lo_key, w->hi_key);
        if (!find_group(w, first, &g))
            continue;
        g.fresh = fresh && g.column == 0 && g.column_end == w->columns;
        if (fresh && !g.fresh)
            clear_outputs(w, sums);
        fresh = 0;
        w->orientation->attend_keys(w, sums, &g);
    }
    if (fresh)
        clear_outputs(w, sums);
}

/* Joins a split to the ones before it. */
static void merge_part(const struct work *w)
{
    const struct sums *total = &w->total, *part = &w->part;
    float a[ROWS], b[ROWS];
    for (int column = 0; column < w->columns; column++) {
        int at = column * LANES;
        vf base, m = vf_load(part->m + at), alpha = raise_maximum(total, column, m, &base);
        vf beta = exp_nonpositive(vf_sub(m, base));
        add_probabilities(total, column, alpha, vf_mul(vf_load(part->l + at), beta));
        vf_store(a + at, alpha);
        vf_store(b + at, beta);
    }
    w->orientation->merge_outputs(w, a, b);
}

/* The extra keys are a split of their own, after all others. */
static void attend_extras(const struct work *w)
{
    struct keys g;
    if (w->tile->extras == 0)
        return;
    start_sums(w, &w->part);
    extra_group(w, &g);
    w->orientation->attend_keys(w, &w->part, &g);
    merge_part(w);
}

/* The splits that have keys some row sees: first_split <= split < end_split. */
static inline int64_t first_split(const struct work *w)
{
    return w->lo_key / MHA_SPLIT;
}

static inline int64_t end_split(const struct work *w)
{
    return ceil_div(w->hi_key, MHA_SPLIT);
}

/* All keys of the tile, split by split; the result is in w->total. The first split goes there as it is:
 * a merge would multiply it by e^0 and add zeros. */
static void attend_all(const struct work *w)
{
    attend_split(w, &w->total, first_split(w));
    for (int64_t split = first_split(w) + 1; split < end_split(w); split++) {
        attend_split(w, &w->part, split);
        merge_part(w);
    }
    attend_extras(w);
}

/* The sum of each row as the factor 1 / l, 0 where nothing was seen. */
static void invert_sums(const struct work *w)
{
    const vf zero = vf_set1(0.0f);
    for (int64_t at = 0; at < w->columns * LANES; at += LANES) {
        vf l = vf_load(w->total.l + at);
        vf_store(w->inv + at, vf_select(vm_ne(l, zero), vf_div(vf_set1(1.0f), l), zero));
    }
}

/* The log-sum-exp of each row. */
static void store_lse(const struct work *w)
{
    const struct mha_attend_tile *t = w->tile;
    for (int column = 0; column < w->columns && t->rows[0].lse; column++) {
        float lse[LANES];
        vf l = vf_load(w->total.l + column * LANES);
        vf sum = vf_add(vf_load(w->total.m + column * LANES), ln(l));
        vf_store(lse, vf_select(vm_ne(l, vf_set1(0.0f)), sum, vf_set1(MINUS_INF)));
        for (int64_t i = 0; i < LANES && column * LANES + i < t->n_rows; i++)
            *t->rows[column * LANES + i].lse = lse[i];
    }
}

/* The second walk over the keys, when a row wants its weights or their mean. */
static void tile_weights(const struct work *w)
{
    const struct mha_attend_tile *t = w->tile;
    if (!t->rows[0].weights && !t->rows[0].weights_mean)
        return;
    int64_t n = t->S + t->extras;
    for (int64_t row = 0; row < t->n_rows; row++) {
        const struct mha_attend_row *r = &t->rows[row];
        for (int64_t j = 0; j < n && r->weights; j++)
            r->weights[j] = 0;
        for (int64_t j = 0; j < n && r->weights_mean && (t->mean_step & MHA_MEAN_FIRST); j++)
            r->weights_mean[j] = 0;
    }
    struct keys g;
    for (int64_t first = w->lo_key / BLOCK * BLOCK; first < w->hi_key; first += BLOCK)
        if (find_group(w, first, &g))
            w->orientation->weigh_keys(w, &g, first + g.begin);
    if (t->extras > 0) {
        extra_group(w, &g);
        w->orientation->weigh_keys(w, &g, t->S);
    }
    for (int64_t row = 0; row < t->n_rows && (t->mean_step & MHA_MEAN_LAST); row++)
        for (int64_t j = 0; j < n && t->rows[row].weights_mean; j++)
            t->rows[row].weights_mean[j] /= t->heads;
}

/* What total holds to the rows. Storing outputs tells whether any is NaN, but they may lie where the
 * residual is, which the careful way still needs. */
static void finish_rows(struct work *w)
{
    int residual = w->tile->rows[0].residual != NULL;
    invert_sums(w);
    int nan = residual ? w->orientation->any_nan(w) : w->orientation->store_outputs(w);
    if (nan) {
        w->careful = 1;
        attend_all(w);
        invert_sums(w);
    }
    if (nan || residual)
        w->orientation->store_outputs(w);
    store_lse(w);
    tile_weights(w);
}

/* ---- tiles and their pieces -------------------------------------------------------------------- */

static struct sums sums_at(float *at)
{
    return (struct sums){ .m = at, .l = at + ROWS, .o = at + 2 * ROWS };
}

/* Everything for a tile whose rows are laid out in one way. */
static void open_work(struct work *w, struct ahead *ahead, const struct orientation *orientation,
                      const struct mha_attend_tile *tile, const struct mha_attend_tile *next)
{
    *w = (struct work){
        .tile = tile,
        .orientation = orientation,
        .columns = (int)ceil_div(tile->n_rows, LANES),
        .ahead = ahead,
    };
    if (tile->softcap != 0)
        w->cap_scale = 2 * 0x1.715476p+0f / tile->softcap;
    float *at = orientation->lay_out(w, tile->scratch);
    w->total = sums_at(at);
    w->part = sums_at(at + sums_floats(w));
    w->inv = at + 2 * sums_floats(w);
    orientation->pack_rows(w);
    find_ranges(w);
    *ahead = plan_ahead(w, next);
}

/* A piece of a tile, and what lays out its rows. */
struct piece {
    const struct orientation *orientation;
    struct mha_attend_tile tile;
};

enum { PIECES = 4 };

/*
 * Rows that fill vectors go through many_rows, up to FEW_ROWS left over through few_rows, and rows at
 * the end that see no key are no reason to open another vector: they are pieces of their own, of which
 * no parts are kept. Returns how many pieces that makes.
 */
static int cut_tile(const struct mha_attend_tile *tile, struct piece pieces[PIECES])
{
    int64_t seeing = tile->n_rows;
    while (seeing > 0 && tile->rows[seeing - 1].lo >= tile->rows[seeing - 1].hi)
        seeing--;
    int64_t few = seeing % LANES <= FEW_ROWS ? seeing % LANES : 0;
    const int64_t ends[PIECES] = { seeing - few, seeing, clamp(tile->n_rows, seeing, seeing + ROWS),
                                   tile->n_rows };
    int n = 0;
    for (int64_t i = 0, row = 0; i < PIECES; row = ends[i++]) {
        if (ends[i] == row)
            continue;
        struct piece *piece = &pieces[n++];
        piece->tile = *tile;
        piece->tile.rows = tile->rows + row;
        piece->tile.n_rows = ends[i] - row;
        piece->orientation = piece->tile.n_rows <= FEW_ROWS ? &few_rows : &many_rows;
    }
    return n;
}

static void attend_f32(const struct mha_attend_tile *tile, const struct mha_attend_tile *next)
{
    struct piece pieces[PIECES];
    struct ahead ahead;
    struct work w;
    int n = cut_tile(tile, pieces);
    for (int i = 0; i < n; i++) {
        open_work(&w, &ahead, pieces[i].orientation, &pieces[i].tile, i == 0 ? next : NULL);
        attend_all(&w);
        finish_rows(&w);
    }
}

static void attend_split_f32(const struct mha_attend_tile *tile, int64_t split, float *parts)
{
    struct piece pieces[PIECES];
    struct ahead ahead;
    struct work w;
    int n = cut_tile(tile, pieces);
    parts += split * mha_attend_part_floats(tile->n_rows, tile->Dv);
    for (int i = 0; i < n; i++) {
        open_work(&w, &ahead, pieces[i].orientation, &pieces[i].tile, NULL);
        w.part = sums_at(parts);
        if (first_split(&w) <= split && split < end_split(&w))
            attend_split(&w, &w.part, split);
        parts += sums_floats(&w);
    }
}

static void attend_join_f32(const struct mha_attend_tile *tile, float *parts)
{
    struct piece pieces[PIECES];
    struct ahead ahead;
    struct work w;
    int n = cut_tile(tile, pieces);
    int64_t step = mha_attend_part_floats(tile->n_rows, tile->Dv);
    for (int i = 0; i < n; i++) {
        open_work(&w, &ahead, pieces[i].orientation, &pieces[i].tile, NULL);
        struct sums part = w.part;
        start_sums(&w, &w.total);
        clear_outputs(&w, &w.total);
        for (int64_t split = first_split(&w); split < end_split(&w); split++) {
            w.part = sums_at(parts + split * step);
            merge_part(&w);
        }
        w.part = part;
        attend_extras(&w);
        finish_rows(&w);
        parts += sums_floats(&w);
    }
}
