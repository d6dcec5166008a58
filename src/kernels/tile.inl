/* A tile from its rows to its rows: the walk over the keys, and what comes before and after it. */

/* What each column sees, and all of them together. */
static void find_ranges(struct work *w, int64_t *lo, int64_t *hi)
{
    const struct mha_attend_tile *t = w->tile;
    *lo = INT64_MAX;
    *hi = 0;
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
        *lo = some_lo < *lo ? some_lo : *lo;
        *hi = some_hi > *hi ? some_hi : *hi;
    }
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
    g->extra = 1;
}

static void start_sums(const struct work *w, const struct sums *sums)
{
    for (int64_t i = 0; i < ROWS; i++) {
        sums->m[i] = MINUS_INF;
        sums->l[i] = 0;
    }
    for (int64_t i = 0; i < w->outputs; i++)
        sums->o[i] = 0;
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

/* The first split goes into the total as it is: a merge would multiply it by e^0 and add zeros. */
static const struct sums *open_split(const struct work *w, int first)
{
    const struct sums *sums = first ? &w->total : &w->part;
    start_sums(w, sums);
    return sums;
}

static void close_split(const struct work *w, const struct sums *sums)
{
    if (sums == &w->part)
        merge_part(w);
}

/* All keys of the tile, split by split; the result is in w->total. */
static void attend_all(const struct work *w, int64_t lo, int64_t hi)
{
    const struct sums *sums = open_split(w, 1);
    int64_t split = lo / MHA_SPLIT * MHA_SPLIT;
    struct keys g;
    for (int64_t first = lo / BLOCK * BLOCK; first < hi; first += BLOCK) {
        if (first >= split + MHA_SPLIT) {
            close_split(w, sums);
            sums = open_split(w, 0);
            split += MHA_SPLIT;
        }
        look_at_block(w->ahead, first + BLOCK, lo, hi);
        if (find_group(w, first, &g))
            w->orientation->attend_keys(w, sums, &g);
    }
    close_split(w, sums);
    if (w->tile->extras > 0) {
        sums = open_split(w, lo >= hi);
        extra_group(w, &g);
        w->orientation->attend_keys(w, sums, &g);
        close_split(w, sums);
    }
}

/* total.l becomes 1 / l, and 0 where nothing was seen, and total.o the output; says whether any of it
 * is NaN. */
static int divide_by_sum(const struct work *w)
{
    const vf zero = vf_set1(0.0f);
    for (int64_t at = 0; at < w->columns * LANES; at += LANES) {
        vf l = vf_load(w->total.l + at);
        vf_store(w->inv + at, vf_select(vm_ne(l, zero), vf_div(vf_set1(1.0f), l), zero));
    }
    return w->orientation->divide_outputs(w);
}

/* Output and log-sum-exp to the rows. */
static void store_rows(const struct work *w)
{
    const struct mha_attend_tile *t = w->tile;
    for (int column = 0; column < w->columns; column++) {
        float lse[LANES];
        vf l = vf_load(w->total.l + column * LANES);
        vf sum = vf_add(vf_load(w->total.m + column * LANES), ln(l));
        vf_store(lse, vf_select(vm_ne(l, vf_set1(0.0f)), sum, vf_set1(MINUS_INF)));
        for (int64_t i = 0; i < LANES && column * LANES + i < t->n_rows; i++)
            if (t->rows[column * LANES + i].lse)
                *t->rows[column * LANES + i].lse = lse[i];
    }
    w->orientation->store_outputs(w);
}

/* The second walk over the keys [lo, hi), when a row wants its weights or their mean. */
static void tile_weights(const struct work *w, int64_t lo, int64_t hi)
{
    const struct mha_attend_tile *t = w->tile;
    int64_t n = t->S + t->extras;
    for (int64_t row = 0; row < t->n_rows; row++) {
        const struct mha_attend_row *r = &t->rows[row];
        for (int64_t j = 0; j < n && r->weights; j++)
            r->weights[j] = 0;
        for (int64_t j = 0; j < n && r->weights_mean && (t->mean_step & MHA_MEAN_FIRST); j++)
            r->weights_mean[j] = 0;
    }
    struct keys g;
    for (int64_t first = lo / BLOCK * BLOCK; first < hi; first += BLOCK)
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

static void lay_out(struct work *w)
{
    float *at = w->orientation->lay_out(w, w->tile->scratch);
    float **const parts[] = { &w->total.m, &w->total.l, &w->part.m, &w->part.l, &w->inv };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++, at += ROWS)
        *parts[i] = at;
}

/* A tile whose rows are laid out in one way. */
static void attend_rows(const struct orientation *orientation, const struct mha_attend_tile *tile,
                        const struct mha_attend_tile *next)
{
    struct work w = {
        .tile = tile,
        .orientation = orientation,
        .columns = (int)ceil_div(tile->n_rows, LANES),
    };
    int64_t lo, hi;
    lay_out(&w);
    if (tile->softcap != 0)
        w.cap_scale = 2 * 0x1.715476p+0f / tile->softcap;
    orientation->pack_rows(&w);
    find_ranges(&w, &lo, &hi);
    struct ahead ahead = plan_ahead(&w, next, lo, hi);
    w.ahead = &ahead;

    attend_all(&w, lo, hi);
    if (divide_by_sum(&w)) {
        w.careful = 1;
        attend_all(&w, lo, hi);
        divide_by_sum(&w);
    }
    store_rows(&w);
    if (tile->rows[0].weights || tile->rows[0].weights_mean)
        tile_weights(&w, lo, hi);
}

/*
 * Rows that fill vectors go through many_rows, up to FEW_ROWS left over through few_rows, and rows at
 * the end that see no key are no reason to open another vector.
 */
static void attend_f32(const struct mha_attend_tile *tile, const struct mha_attend_tile *next)
{
    struct mha_attend_tile part = *tile;
    int64_t seeing = tile->n_rows;
    while (seeing > 0 && tile->rows[seeing - 1].lo >= tile->rows[seeing - 1].hi)
        seeing--;
    int64_t few = seeing % LANES <= FEW_ROWS ? seeing % LANES : 0;
    const int64_t ends[] = { seeing - few, seeing, tile->n_rows };
    for (int64_t i = 0, row = 0; i < 3; row = ends[i++]) {
        part.rows = tile->rows + row;
        part.n_rows = ends[i] - row;
        if (part.n_rows > 0)
            attend_rows(part.n_rows <= FEW_ROWS ? &few_rows : &many_rows, &part, next);
        next = part.n_rows > 0 ? NULL : next;
    }
}
