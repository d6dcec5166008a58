/*
 * Many rows: up to 48 queries in the lanes of three vectors, keys and values as broadcast operands.
 * Scores S^T = K Q^T and outputs O^T = V^T P^T need K and V as they lie, the softmax is vertical, and
 * any D, Dv and number of keys runs without padding.
 *
 * Arrays have the lanes of the tile side by side: element (i, row) is at i * ROWS + row. The
 * vectors of a tile are its columns; each has the range of keys that its rows see together, and blocks
 * outside a column's range are not computed for it.
 */

static float *lay_out_many(struct work *w, float *at)
{
    const struct mha_attend_tile *t = w->tile;
    float **const parts[] = { &w->q, &w->s, &w->p, &w->add, &w->lo, &w->hi };
    const int64_t heights[] = { t->D, BLOCK, BLOCK, BLOCK, 1, 1 };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i] = at;
        at += heights[i] * ROWS;
    }
    w->outputs = t->Dv * ROWS;
    return at;
}

/* Where the probabilities of a block are: the scores are needed beside them only by the careful way. */
static inline float *probabilities(const struct work *w)
{
    return w->careful ? w->p : w->s;
}

static int64_t steps_of_many(const struct work *w)
{
    return ceil_div(w->columns, VEC_COLUMNS) * (BLOCK / VEC_ROWS + ceil_div(w->tile->Dv, VEC_ROWS));
}

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
static void pack_many(const struct work *w)
{
    int64_t D = w->tile->D, whole = D / LANES * LANES;
    for (int column = 0; column < w->columns; column++) {
        for (int64_t x = 0; x < whole; x += LANES)
            pack_block(w, column, x, LANES);
        if (whole < D)
            pack_block(w, column, whole, (int)(D - whole));
    }
}

/* ---- scores and outputs ------------------------------------------------------------------------ */

/* Scores of `rows` keys: s[r][c] = k_r . q_c; `most`, the largest of each lane, is kept up to date. */
VEC_INLINE void score_tile(const float *k, int64_t k_stride, const float *q, int64_t D, float *s,
                           float *most, const int rows, const int columns)
{
    vf acc[MOST_ROWS][MOST_COLUMNS];
    clear(acc);
    multiply(acc, k, k_stride, 1, q, ROWS, LANES, D, rows, columns);
    UNROLL
    for (int c = 0; c < columns; c++) {
        vf largest = vf_load(most + c * LANES);
        UNROLL
        for (int r = 0; r < rows; r++) {
            vf_store(s + r * ROWS + c * LANES, acc[r][c]);
            largest = vf_max(acc[r][c], largest);
        }
        vf_store(most + c * LANES, largest);
    }
}

/* Outputs y .. y + rows: o[y][c] = o[y][c] * alpha[c] + sum over keys of v_y p_c. */
VEC_INLINE void output_tile(const float *v, int64_t v_stride, const float *p, int64_t n, int fresh,
                            const float *alpha, float *o, const int rows, const int columns)
{
    vf acc[MOST_ROWS][MOST_COLUMNS];
    clear(acc);
    multiply(acc, v, 1, v_stride, p, ROWS, LANES, n, rows, columns);
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
        for (int c = 0; c < columns; c++) {
            float *at = o + r * ROWS + c * LANES;
            vf_store(at, fresh ? acc[r][c]
                               : vf_fma(vf_load(at), vf_load(alpha + c * LANES), acc[r][c]));
        }
}

/* The scores of a group of keys in some columns side by side, and the largest of each lane. */
VEC_INLINE void score_columns(const struct work *w, const struct keys *g, float *most, int column,
                              const int columns)
{
    UNROLL
    for (int c = 0; c < columns; c++)
        vf_store(most + (column + c) * LANES, vf_set1(MINUS_INF));
    for (int64_t j = g->begin, n; j < g->end; j += n) {
        const float *k = g->k + (j - g->begin) * g->k_stride;
        float *s = w->s + j * ROWS + column * LANES;
        n = take_rows(g->end - j, VEC_ROWS);
#define DO(rows)                                                                                   \
    score_tile(k, g->k_stride, w->q + column * LANES, w->tile->D, s, most + column * LANES, rows,  \
               columns)
        WITH_LITERAL(n, VEC_ROWS, DO)
#undef DO
        look_ahead(w->ahead);
    }
}

/* o = o * alpha + p v for a group of keys in some columns side by side. */
VEC_INLINE void output_columns(const struct work *w, const struct sums *sums,
                               const struct keys *g, const float *alpha, int column,
                               const int columns)
{
    const float *p = probabilities(w) + g->begin * ROWS + column * LANES;
    for (int64_t y = 0, n; y < w->tile->Dv; y += n) {
        float *o = sums->o + y * ROWS + column * LANES;
        n = take_rows(w->tile->Dv - y, VEC_ROWS);
#define DO(rows)                                                                                   \
    output_tile(g->v + y, g->v_stride, p, g->end - g->begin, g->fresh, alpha + column * LANES, o,  \
                rows, columns)
        WITH_LITERAL(n, VEC_ROWS, DO)
#undef DO
        look_ahead(w->ahead);
    }
}

/* The scores of a group of keys, in the columns that see any of it, and the largest of each row. */
static void block_scores(const struct work *w, const struct keys *g, float *most)
{
    for (int column = g->column, n; column < g->column_end; column += n) {
        n = g->column_end - column < VEC_COLUMNS ? g->column_end - column : VEC_COLUMNS;
#define DO(columns) score_columns(w, g, most, column, columns)
        WITH_LITERAL(n, VEC_COLUMNS, DO)
#undef DO
    }
}

/* The outputs of one column, each key counted in the lanes that see it and no others. */
static void careful_output(const struct work *w, const struct sums *sums, const struct keys *g,
                           int column, const float *alpha)
{
    for (int64_t y = 0; y < w->tile->Dv; y++) {
        vf acc = vf_set1(0.0f);
        for (int64_t j = g->begin; j < g->end; j++) {
            int64_t at = j * ROWS + column * LANES;
            vf value = vf_set1(g->v[(j - g->begin) * g->v_stride + y]);
            vm visible = vm_ne(vf_load(w->s + at), vf_set1(MINUS_INF));
            acc = vf_select(visible, vf_fma(value, vf_load(w->p + at), acc), acc);
        }
        float *o = sums->o + y * ROWS + column * LANES;
        vf_store(o, g->fresh ? acc : vf_fma(vf_load(o), vf_load(alpha + column * LANES), acc));
    }
}

/* o = o * alpha + p v for a group of keys. */
static void block_output(const struct work *w, const struct sums *sums, const struct keys *g,
                         const float *alpha)
{
    for (int column = g->column; column < g->column_end && w->careful; column++)
        careful_output(w, sums, g, column, alpha);
    for (int column = g->column, n; column < g->column_end && !w->careful; column += n) {
        n = g->column_end - column < VEC_COLUMNS ? g->column_end - column : VEC_COLUMNS;
#define DO(columns) output_columns(w, sums, g, alpha, column, columns)
        WITH_LITERAL(n, VEC_COLUMNS, DO)
#undef DO
    }
}

/* ---- scores to probabilities ------------------------------------------------------------------ */

/* Does the range of every row of a column leave the whole group? */
static inline int sees_all(const struct work *w, const struct keys *g, int column)
{
    return w->column[column].all_lo <= g->first + g->begin
           && w->column[column].all_hi >= g->first + g->end;
}

/* The additive mask of one column where all rows see all keys, with rows in the lanes. */
static void read_additive(const struct work *w, const struct keys *g, int column)
{
    enum { FEW = 2 }; /* keys, below which a transposition is not worth it */
    const float *mask[LANES];
    float *add = w->add + column * LANES;
    for (int lane = 0; lane < LANES; lane++)
        mask[lane] = (const float *)row_in(w, column, lane)->mask + g->first;
    for (int j = g->begin, n; j < g->end; j += n) {
        vf block[LANES];
        n = g->end - j < LANES ? g->end - j : LANES;
        if (n <= FEW) {
            for (int i = 0; i < n; i++)
                for (int lane = 0; lane < LANES; lane++)
                    add[(j + i) * ROWS + lane] = mask[lane][j + i];
            continue;
        }
        for (int lane = 0; lane < LANES; lane++)
            block[lane] = n == LANES ? vf_load(mask[lane] + j) : vf_load_first(mask[lane] + j, n);
        vf_transpose(block);
        for (int i = 0; i < n; i++)
            vf_store(add + (j + i) * ROWS, block[i]);
    }
}

/* The block's mask of one column as numbers to add, with rows in the lanes. */
static void read_mask(const struct work *w, const struct keys *g, int column)
{
    const struct mha_attend_tile *t = w->tile;
    if (t->mask_kind == MHA_ATTEND_ADDITIVE && t->mask_stride == 1 && sees_all(w, g, column)) {
        read_additive(w, g, column);
        return;
    }
    for (int j = g->begin, n; j < g->end; j += n) {
        float *add = w->add + j * ROWS + column * LANES;
        vf block[LANES];
        n = g->end - j < LANES ? g->end - j : LANES;
        for (int lane = 0; lane < LANES; lane++)
            block[lane] = mask_numbers(t, row_in(w, column, lane), g->first + j, n);
        vf_transpose(block);
        for (int i = 0; i < n; i++)
            vf_store(add + i * ROWS, block[i]);
    }
}

/* The range of each row of a column, as positions within the block. */
static void read_ranges(const struct work *w, const struct keys *g, int column)
{
    for (int lane = 0; lane < LANES; lane++) {
        int row = column * LANES + lane;
        row_range(row_in(w, column, lane), g, &w->lo[row], &w->hi[row]);
    }
}

/* Softcap, mask and range in place, for one column with `most` the largest score of each row so far;
 * returns the largest that is left. */
static vf finish_scores(const struct work *w, const struct keys *g, int column, const float *most)
{
    const struct mha_attend_tile *t = w->tile;
    const vf minus_inf = vf_set1(MINUS_INF);
    float *s = w->s + column * LANES;
    vf largest = minus_inf;

    int masked = t->mask_kind != MHA_ATTEND_UNMASKED && !g->extra; /* reads the ranges, too */
    int cut = g->extra || (!masked && !sees_all(w, g, column));
    if (!masked && !cut && t->softcap == 0)
        return vf_load(most + column * LANES);
    if (masked)
        read_mask(w, g, column);
    if (cut)
        read_ranges(w, g, column);
    const float *add = w->add + column * LANES;
    vf lo = cut ? vf_load(w->lo + column * LANES) : minus_inf;
    vf hi = cut ? vf_load(w->hi + column * LANES) : minus_inf;

    for (int j = g->begin; j < g->end; j++) {
        vf x = vf_load(s + j * ROWS);
        if (t->softcap != 0)
            x = vf_mul(vf_set1(t->softcap), tanh_scaled(x, vf_set1(w->cap_scale)));
        if (masked) {
            vf a = vf_load(add + j * ROWS);
            x = vf_select(vm_ne(a, minus_inf), vf_add(x, a), minus_inf);
        }
        if (cut) {
            vf at = vf_set1((float)j);
            x = vf_select(vm_lt(at, lo), minus_inf, x);
            x = vf_select(vm_lt(at, hi), x, minus_inf);
        }
        largest = vf_max(x, largest);
        vf_store(s + j * ROWS, x);
    }
    return largest;
}

/*
 * p = e^(s - base) for the keys begin <= j < end of a block in one column; returns their sum, in a
 * fixed order: t_i = ((p_i + p_i+16) + p_i+32) + p_i+48, where other keys count as +0, then halves.
 */
static vf exponentials(const float *s, float *p, vf base, int begin, int end)
{
    vf t[LANES];
    for (int i = 0; i < LANES && begin == 0 && end == BLOCK; i++)
        t[i] = exponentials_of_four(s + i * ROWS, p + i * ROWS, base, LANES * ROWS);
    for (int i = 0; i < LANES && !(begin == 0 && end == BLOCK); i++) {
        t[i] = vf_set1(0.0f);
        for (int j = i; j < end; j += LANES) {
            if (j < begin)
                continue;
            vf x = exp_nonpositive(vf_sub(vf_load(s + j * ROWS), base));
            vf_store(p + j * ROWS, x);
            t[i] = vf_add(t[i], x);
        }
    }
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            t[i] = vf_add(t[i], t[i + half]);
    return t[0];
}

/* One group of keys: everything from scores to the running output. */
static void attend_many(const struct work *w, const struct sums *sums, const struct keys *g)
{
    float alpha[ROWS], most[ROWS];
    block_scores(w, g, most);
    for (int column = g->column; column < g->column_end; column++) {
        int at = column * LANES;
        vf base, largest = finish_scores(w, g, column, most);
        vf factor = raise_maximum(sums, column, largest, &base);
        vf sum = exponentials(w->s + at, probabilities(w) + at, base, g->begin, g->end);
        add_probabilities(sums, column, factor, sum);
        vf_store(alpha + at, factor);
    }
    block_output(w, sums, g, alpha);
}

/* ---- joining, storing ---------------------------------------------------------------- */

/* total.o = total.o * a + part.o * b. */
static void merge_many(const struct work *w, const float *a, const float *b)
{
    for (int64_t y = 0; y < w->tile->Dv; y++)
        for (int64_t at = 0; at < w->columns * LANES; at += LANES) {
            float *to = w->total.o + y * ROWS + at;
            vf o = vf_mul(vf_load(w->part.o + y * ROWS + at), vf_load(b + at));
            vf_store(to, vf_fma(vf_load(to), vf_load(a + at), o));
        }
}

/* One number of the output of each row of a column. The fma with +0 leaves no -0. */
VEC_INLINE vf output_many(const struct work *w, int64_t y, int column)
{
    vf o = vf_load(w->total.o + y * ROWS + column * LANES);
    return vf_fma(o, vf_load(w->inv + column * LANES), vf_set1(0.0f));
}

/* Is any output NaN? */
static int any_nan_many(const struct work *w)
{
    const vf zero = vf_set1(0.0f);
    vm nan = vm_ne(zero, zero);
    for (int column = 0; column < w->columns; column++)
        for (int64_t y = 0; y < w->tile->Dv; y++) {
            vf o = output_many(w, y, column);
            nan = vm_or(nan, vm_ne(o, o));
        }
    return vm_any(nan);
}

/* Outputs y .. y + n of a column to its rows; says in which lanes any is NaN. */
VEC_INLINE vm store_block(const struct work *w, int column, int64_t y, int n)
{
    int64_t rows = w->tile->n_rows - column * LANES;
    const vf zero = vf_set1(0.0f);
    vm nan = vm_ne(zero, zero);
    vf block[LANES];
    for (int i = 0; i < LANES; i++) {
        block[i] = i < n ? output_many(w, y + i, column) : zero;
        nan = vm_or(nan, vm_ne(block[i], block[i]));
    }
    vf_transpose(block);
    for (int i = 0; i < LANES && i < rows; i++)
        store_vector(&w->tile->rows[column * LANES + i], y, n, block[i]);
    return nan;
}

static int store_many(const struct work *w)
{
    int64_t Dv = w->tile->Dv, whole = Dv / LANES * LANES;
    const vf zero = vf_set1(0.0f);
    vm nan = vm_ne(zero, zero);
    for (int column = 0; column < w->columns; column++) {
        for (int64_t y = 0; y < whole; y += LANES)
            nan = vm_or(nan, store_block(w, column, y, LANES));
        if (whole < Dv)
            nan = vm_or(nan, store_block(w, column, whole, (int)(Dv - whole)));
    }
    return vm_any(nan);
}

/* The weights of a group of keys to the rows, the first of them at index `at`. */
static void store_weights(const struct work *w, const struct keys *g, int column, int64_t at)
{
    const struct mha_attend_tile *t = w->tile;
    for (int64_t row = column * LANES; row < t->n_rows && row < (column + 1) * LANES; row++)
        store_row_weights(&t->rows[row], at, w->p + g->begin * ROWS + row, ROWS, g->end - g->begin);
}

/* w = e^(s - M) / L, with M and L of all keys. */
static void weigh_many(const struct work *w, const struct keys *g, int64_t at)
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

static const struct orientation many_rows = {
    .lay_out = lay_out_many,
    .steps = steps_of_many,
    .pack_rows = pack_many,
    .attend_keys = attend_many,
    .merge_outputs = merge_many,
    .any_nan = any_nan_many,
    .store_outputs = store_many,
    .weigh_keys = weigh_many,
};
