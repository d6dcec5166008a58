/* A tile from its rows to its rows: what comes before and after the walk over the keys. */

/* Inputs x .. x + n of the query rows of a column, scaled, into its lanes. */
VEC_INLINE void pack_block(const struct work *w, int column, int64_t x, int n)
{
    const vf scale = vf_set1(w->tile->scale);
    vf block[LANES];
    for (int i = 0; i < LANES; i++) {
        const float *q = row_in(w, column, i)->q + x;
        block[i] = vf_mul(n == LANES ? vf_load(q) : vf_load_first(q, n), scale);
    }
    vf_transpose(block);
    for (int i = 0; i < n; i++)
        vf_store(w->q + (x + i) * ROWS + column * LANES, block[i]);
}

/* Scaled query rows into the lanes. */
static void pack_queries(const struct work *w)
{
    int64_t D = w->tile->D, whole = D / LANES * LANES;
    for (int column = 0; column < w->columns; column++) {
        for (int64_t x = 0; x < whole; x += LANES)
            pack_block(w, column, x, LANES);
        if (whole < D)
            pack_block(w, column, whole, (int)(D - whole));
    }
}

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

/* total.o becomes the output; says whether any of it is NaN. The fma with +0 leaves no -0. */
static int divide_by_sum(const struct work *w)
{
    const vf zero = vf_set1(0.0f);
    vm nan = vm_ne(zero, zero);
    for (int column = 0; column < w->columns; column++) {
        int64_t at = column * LANES;
        vf l = vf_load(w->total.l + at);
        vf inv = vf_select(vm_ne(l, zero), vf_div(vf_set1(1.0f), l), zero);
        vf_store(w->inv + at, inv);
        for (int64_t y = 0; y < w->tile->Dv; y++) {
            vf o = vf_fma(vf_load(w->total.o + y * ROWS + at), inv, zero);
            vf_store(w->total.o + y * ROWS + at, o);
            nan = vm_or(nan, vm_ne(o, o));
        }
    }
    return vm_any(nan);
}

/* Outputs y .. y + n of a column to its rows, with the residual. */
VEC_INLINE void store_block(const struct work *w, int column, int64_t y, int n)
{
    const struct mha_attend_row *row = &w->tile->rows[column * LANES];
    int64_t rows = w->tile->n_rows - column * LANES;
    vf block[LANES];
    for (int i = 0; i < LANES; i++)
        block[i] = i < n ? vf_load(w->total.o + (y + i) * ROWS + column * LANES) : vf_set1(0.0f);
    vf_transpose(block);
    for (int i = 0; i < LANES && i < rows; i++) {
        const float *residual = row[i].residual ? row[i].residual + y : NULL;
        float *out = row[i].out + y;
        if (n == LANES)
            vf_store(out, residual ? vf_add(block[i], vf_load(residual)) : block[i]);
        else
            vf_store_first(out, residual ? vf_add(block[i], vf_load_first(residual, n)) : block[i],
                           n);
    }
}

/* The outputs of a column to its rows. */
static void store_outputs(const struct work *w, int column)
{
    int64_t Dv = w->tile->Dv, whole = Dv / LANES * LANES;
    for (int64_t y = 0; y < whole; y += LANES)
        store_block(w, column, y, LANES);
    if (whole < Dv)
        store_block(w, column, whole, (int)(Dv - whole));
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
        store_outputs(w, column);
    }
}

/* Lays the scratch out as mha_attend_tile_floats counts it. */
static void lay_out(struct work *w)
{
    const struct mha_attend_tile *t = w->tile;
    float *at = t->scratch;
    float **const parts[] = { &w->q,       &w->total.o, &w->part.o, &w->s,      &w->p,
                              &w->add,     &w->total.m, &w->total.l, &w->part.m, &w->part.l,
                              &w->lo,      &w->hi,      &w->inv };
    const int64_t heights[] = { t->D, t->Dv, t->Dv, BLOCK, BLOCK, BLOCK, 1, 1, 1, 1, 1, 1, 1 };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i] = at;
        at += heights[i] * ROWS;
    }
}

/* How much of the next tile is worth fetching, and how fast while the keys [lo, hi) are walked. */
static struct ahead plan_ahead(const struct work *w, const struct mha_attend_tile *next, int64_t lo,
                               int64_t hi)
{
    enum { MOST_KEYS = 256 }; /* half a second-level cache of 512 KiB at D = Dv = 128 */
    const struct mha_attend_tile *t = w->tile;
    struct ahead ahead = { .next = next };
    if (!next || lo >= hi)
        return ahead;
    int64_t blocks = (hi - lo + BLOCK - 1) / BLOCK;
    int64_t groups = (w->columns + VEC_COLUMNS - 1) / VEC_COLUMNS;
    int64_t register_tiles = blocks * groups * (BLOCK / VEC_ROWS + t->Dv / VEC_ROWS);
    if (next->k != t->k) {
        ahead.first = next->rows[0].lo;
        ahead.keys = clamp(next->rows[next->n_rows - 1].hi - ahead.first, 0, MOST_KEYS);
    }
    ahead.end = 2 * (next->n_rows + ahead.keys);
    ahead.pace = (ahead.end + register_tiles - 1) / register_tiles;
    return ahead;
}

static void attend_f32(const struct mha_attend_tile *tile, const struct mha_attend_tile *next)
{
    struct work w = { .tile = tile, .columns = (int)((tile->n_rows + LANES - 1) / LANES) };
    int64_t lo, hi;
    lay_out(&w);
    if (tile->softcap != 0)
        w.cap_scale = 2 * 0x1.715476p+0f / tile->softcap;
    pack_queries(&w);
    find_ranges(&w, &lo, &hi);
    struct ahead ahead = plan_ahead(&w, next, lo, hi);
    w.ahead = &ahead;

    float *separate_p = w.p;
    w.p = w.s;
    attend_all(&w, lo, hi);
    if (divide_by_sum(&w)) {
        w.p = separate_p;
        w.careful = 1;
        attend_all(&w, lo, hi);
        divide_by_sum(&w);
    }
    store_rows(&w);
    if (tile->rows[0].weights || tile->rows[0].weights_mean)
        tile_weights(&w, lo, hi);
}
