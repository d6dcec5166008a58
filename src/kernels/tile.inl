/* A tile from its rows to its rows: what comes before and after the walk over the keys. */

/* Scaled query rows into the lanes. */
static void pack_queries(const struct work *w)
{
    const struct mha_attend_tile *t = w->tile;
    const vf scale = vf_set1(t->scale);
    for (int column = 0; column < w->columns; column++) {
        int64_t x = 0;
        for (; x + LANES <= t->D; x += LANES) {
            vf block[LANES];
            for (int i = 0; i < LANES; i++)
                block[i] = vf_mul(vf_load(row_in(w, column, i)->q + x), scale);
            vf_transpose(block);
            for (int i = 0; i < LANES; i++)
                vf_store(w->q + (x + i) * ROWS + column * LANES, block[i]);
        }
        for (; x < t->D; x++)
            for (int i = 0; i < LANES; i++)
                w->q[x * ROWS + column * LANES + i] = row_in(w, column, i)->q[x] * t->scale;
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

/* total_o becomes the output; says whether any of it is NaN. The fma with +0 leaves no -0. */
static int divide_by_sum(const struct work *w)
{
    const vf zero = vf_set1(0.0f);
    vm nan = vm_ne(zero, zero);
    for (int column = 0; column < w->columns; column++) {
        int64_t at = column * LANES;
        vf l = vf_load(w->total_l + at);
        vf inv = vf_select(vm_ne(l, zero), vf_div(vf_set1(1.0f), l), zero);
        vf_store(w->inv + at, inv);
        for (int64_t y = 0; y < w->tile->Dv; y++) {
            vf o = vf_fma(vf_load(w->total_o + y * ROWS + at), inv, zero);
            vf_store(w->total_o + y * ROWS + at, o);
            nan = vm_or(nan, vm_ne(o, o));
        }
    }
    return vm_any(nan);
}

/* The outputs of a column to its rows, with the residual. */
static void store_outputs(const struct work *w, int column)
{
    const struct mha_attend_tile *t = w->tile;
    const struct mha_attend_row *row = &t->rows[column * LANES];
    const float *o = w->total_o + column * LANES;
    int64_t lanes = t->n_rows - column * LANES, y = 0;
    for (; y + LANES <= t->Dv; y += LANES) {
        vf block[LANES];
        for (int i = 0; i < LANES; i++)
            block[i] = vf_load(o + (y + i) * ROWS);
        vf_transpose(block);
        for (int i = 0; i < LANES && i < lanes; i++) {
            const float *residual = row[i].residual;
            vf_store(row[i].out + y,
                     residual ? vf_add(block[i], vf_load(residual + y)) : block[i]);
        }
    }
    for (; y < t->Dv; y++)
        for (int i = 0; i < LANES && i < lanes; i++) {
            float value = o[y * ROWS + i];
            row[i].out[y] = row[i].residual ? value + row[i].residual[y] : value;
        }
}

/* Output and log-sum-exp to the rows. */
static void store_rows(const struct work *w)
{
    const struct mha_attend_tile *t = w->tile;
    for (int column = 0; column < w->columns; column++) {
        float lse[LANES];
        vf l = vf_load(w->total_l + column * LANES);
        vf sum = vf_add(vf_load(w->total_m + column * LANES), ln(l));
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
    float **const parts[] = { &w->q,   &w->o,       &w->total_o, &w->s,  &w->p,  &w->add,
                              &w->m,   &w->l,       &w->total_m, &w->total_l, &w->lo, &w->hi,
                              &w->inv };
    const int64_t heights[] = { t->D, t->Dv, t->Dv, BLOCK, BLOCK, BLOCK, 1, 1, 1, 1, 1, 1, 1 };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i] = at;
        at += heights[i] * ROWS;
    }
}

static void attend_f32(const struct mha_attend_tile *tile)
{
    struct work w = { .tile = tile, .columns = (int)((tile->n_rows + LANES - 1) / LANES) };
    int64_t lo, hi;
    lay_out(&w);
    if (tile->softcap != 0)
        w.cap_scale = 2 * 0x1.715476p+0f / tile->softcap;
    pack_queries(&w);
    find_ranges(&w, &lo, &hi);

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
