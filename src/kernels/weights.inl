/* The weights of a tile: a second walk over its keys, once maximum and sum of all of them are known. */

/* The weights of a group of keys to the rows, the first of them at index `at`. */
static void store_weights(const struct work *w, const struct keys *g, int column, int64_t at)
{
    const struct mha_attend_tile *t = w->tile;
    for (int64_t row = column * LANES; row < t->n_rows && row < (column + 1) * LANES; row++) {
        const struct mha_attend_row *r = &t->rows[row];
        const float *p = w->p + g->begin * ROWS + row;
        for (int64_t j = 0; j < g->end - g->begin; j++) {
            if (r->weights)
                r->weights[at + j] = p[j * ROWS];
            if (r->weights_mean)
                r->weights_mean[at + j] += p[j * ROWS];
        }
    }
}

/* w = e^(s - M) / L, with M and L of all keys. */
static void weigh_keys(const struct work *w, const struct keys *g, int64_t at)
{
    const vf zero = vf_set1(0.0f), minus_inf = vf_set1(MINUS_INF);
    float most[ROWS];
    block_scores(w, g, most);
    for (int column = g->column; column < g->column_end; column++) {
        finish_scores(w, g, column, most);
        vf m = vf_load(w->total.m + column * LANES);
        vf inv = vf_load(w->inv + column * LANES);
        for (int j = g->begin; j < g->end; j++) {
            vf s = vf_load(w->s + j * ROWS + column * LANES);
            vf x = vf_mul(exp_nonpositive(vf_sub(s, m)), inv);
            vf_store(w->p + j * ROWS + column * LANES, vf_select(vm_ne(s, minus_inf), x, zero));
        }
        store_weights(w, g, column, at);
    }
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
            weigh_keys(w, &g, first + g.begin);
    if (t->extras > 0) {
        extra_group(w, &g);
        weigh_keys(w, &g, t->S);
    }
    for (int64_t row = 0; row < t->n_rows && (t->mean_step & MHA_MEAN_LAST); row++)
        for (int64_t j = 0; j < n && t->rows[row].weights_mean; j++)
            t->rows[row].weights_mean[j] /= t->heads;
}
