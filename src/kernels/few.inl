/*
 * Few rows: the queries are the broadcast operands. Sixteen keys at a time are turned into the lanes,
 * so that a vector of scores is one query against sixteen keys; for the outputs the values lie in
 * vectors as they are. That costs one transposition of the keys however many rows there are, and no
 * lane is idle when there is only one.
 *
 * Arrays have a row's numbers side by side: element (row, i) of the scores is at row * BLOCK + i.
 */

enum { KEYS_AT_ONCE = VEC_FEW_COLUMNS * LANES }; /* a divisor of BLOCK */

/* Floats of an output row: whole vectors. */
static inline int64_t out_width(const struct work *w)
{
    return whole_vectors(w->tile->Dv);
}

static float *lay_out_few(struct work *w, float *at)
{
    const struct mha_attend_tile *t = w->tile;
    float **const parts[] = { &w->kt, &w->vt, &w->s, &w->p, &w->q };
    const int64_t lengths[] = {
        t->D * KEYS_AT_ONCE, BLOCK * LANES, FEW_ROWS * BLOCK, FEW_ROWS * BLOCK, FEW_ROWS * t->D,
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i] = at;
        at += whole_vectors(lengths[i]);
    }
    w->outputs = t->n_rows * out_width(w);
    return at;
}

static int64_t steps_of_few(const struct work *w)
{
    int64_t tiles = BLOCK / KEYS_AT_ONCE + ceil_div(w->tile->Dv, KEYS_AT_ONCE);
    return BLOCK / LANES + ceil_div(w->tile->n_rows, VEC_FEW_ROWS) * tiles;
}

/* The query rows, scaled. */
static void pack_few(const struct work *w)
{
    const struct mha_attend_tile *t = w->tile;
    for (int64_t row = 0; row < t->n_rows; row++)
        for (int64_t x = 0; x < t->D; x++)
            w->q[row * t->D + x] = t->rows[row].q[x] * t->scale;
}

/* ---- scores ------------------------------------------------------------------------------------ */

/* Inputs x .. x + n of the keys j .. j + LANES of the block into the lanes; keys outside the group are
 * zeros. */
VEC_INLINE void turn_block(const struct keys *g, int64_t j, int64_t x, int n, float *kt)
{
    vf block[LANES];
    const float *k = g->k + (j - g->begin) * g->k_stride + x;
    for (int i = 0; i < LANES; i++)
        block[i] = j + i < g->begin || j + i >= g->end ? vf_set1(0.0f)
                   : n == LANES                        ? vf_load(k + i * g->k_stride)
                                                       : vf_load_first(k + i * g->k_stride, n);
    vf_transpose(block);
    for (int i = 0; i < n; i++)
        vf_store(kt + (x + i) * KEYS_AT_ONCE, block[i]);
}

/* The keys j .. j + LANES of the block into the lanes. */
static void turn_keys(const struct work *w, const struct keys *g, int64_t j, float *kt)
{
    int64_t D = w->tile->D, whole = D / LANES * LANES;
    for (int64_t x = 0; x < whole; x += LANES)
        turn_block(g, j, x, LANES, kt);
    if (whole < D)
        turn_block(g, j, whole, (int)(D - whole), kt);
    look_ahead(w->ahead);
}

/* Scores of some rows against some vectors of turned keys. */
VEC_INLINE void score_rows(const struct work *w, int64_t row, int64_t j, const int rows,
                           const int columns)
{
    vf acc[MOST_ROWS][MOST_COLUMNS];
    int64_t D = w->tile->D;
    clear(acc);
    multiply(acc, w->q + row * D, D, 1, w->kt, KEYS_AT_ONCE, LANES, D, rows, columns);
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
        for (int c = 0; c < columns; c++)
            vf_store(w->s + (row + r) * BLOCK + j + c * LANES, acc[r][c]);
}

/* Scores of all rows against the keys j .. j + columns * LANES of the block. */
VEC_INLINE void score_vectors(const struct work *w, const struct keys *g, int64_t j,
                              const int columns)
{
    for (int c = 0; c < columns; c++)
        turn_keys(w, g, j + c * LANES, w->kt + c * LANES);
    for (int64_t row = 0, n; row < w->tile->n_rows; row += n) {
        n = take_rows(w->tile->n_rows - row, VEC_FEW_ROWS);
#define DO(rows) score_rows(w, row, j, rows, columns)
        WITH_LITERAL(n, VEC_FEW_ROWS, DO)
#undef DO
        look_ahead(w->ahead);
    }
}

/* The vectors of a block that have keys of the group. */
static inline int first_vector(const struct keys *g)
{
    return g->begin / LANES;
}

static inline int end_vector(const struct keys *g)
{
    return (int)ceil_div(g->end, LANES);
}

static void score_few(const struct work *w, const struct keys *g)
{
    for (int vector = first_vector(g), n; vector < end_vector(g); vector += n) {
        int rest = end_vector(g) - vector;
        n = rest < VEC_FEW_COLUMNS ? rest : VEC_FEW_COLUMNS;
#define DO(columns) score_vectors(w, g, vector * LANES, columns)
        WITH_LITERAL(n, VEC_FEW_COLUMNS, DO)
#undef DO
    }
}

/* Softcap, mask and range in place for one row; returns the largest score that is left. Vectors without
 * keys of the group become -inf. */
static float finish_row(const struct work *w, const struct keys *g, int64_t row)
{
    static const float counting[LANES] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    const struct mha_attend_tile *t = w->tile;
    const struct mha_attend_row *r = &t->rows[row];
    const vf minus_inf = vf_set1(MINUS_INF);
    float *s = w->s + row * BLOCK, lo, hi;
    vf largest = minus_inf;
    int masked = t->mask_kind != MHA_ATTEND_UNMASKED && !g->extra;
    row_range(r, g, &lo, &hi);
    for (int vector = 0; vector < BLOCK / LANES; vector++) {
        int j = vector * LANES;
        vf x = vf_load(s + j);
        if (vector < first_vector(g) || vector >= end_vector(g)) {
            vf_store(s + j, minus_inf);
            continue;
        }
        if (t->softcap != 0)
            x = vf_mul(vf_set1(t->softcap), tanh_scaled(x, vf_set1(w->cap_scale)));
        if (masked) {
            vf a = mask_numbers(t, r, g->first + j, LANES);
            x = vf_select(vm_ne(a, minus_inf), vf_add(x, a), minus_inf);
        }
        vf at = vf_add(vf_load(counting), vf_set1((float)j));
        x = vf_select(vm_lt(at, vf_set1(lo)), minus_inf, x);
        x = vf_select(vm_lt(at, vf_set1(hi)), x, minus_inf);
        largest = vf_max(x, largest);
        vf_store(s + j, x);
    }
    return vf_top(largest);
}

/* ---- outputs ----------------------------------------------------------------------------------- */

/* o = o * alpha + p v for some rows and some vectors of outputs. */
VEC_INLINE void add_values(const float *p, const float *v, int64_t v_stride, int64_t n, int fresh,
                           const float *alpha, float *o, int64_t o_stride, const int rows,
                           const int columns)
{
    vf acc[MOST_ROWS][MOST_COLUMNS];
    clear(acc);
    multiply(acc, p, BLOCK, 1, v, v_stride, LANES, n, rows, columns);
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
        for (int c = 0; c < columns; c++) {
            float *at = o + r * o_stride + c * LANES;
            vf_store(at, fresh ? acc[r][c] : vf_fma(vf_load(at), vf_set1(alpha[r]), acc[r][c]));
        }
}

/* The same for all rows. */
VEC_INLINE void output_vectors(const struct work *w, const struct sums *sums, const struct keys *g,
                               const float *v, int64_t v_stride, const float *alpha, int64_t y,
                               const int columns)
{
    int64_t width = out_width(w);
    for (int64_t row = 0, n; row < w->tile->n_rows; row += n) {
        const float *p = w->p + row * BLOCK + g->begin;
        n = take_rows(w->tile->n_rows - row, VEC_FEW_ROWS);
#define DO(rows)                                                                                   \
    add_values(p, v, v_stride, g->end - g->begin, g->fresh, alpha + row, sums->o + row * width + y, \
               width, rows, columns)
        WITH_LITERAL(n, VEC_FEW_ROWS, DO)
#undef DO
        look_ahead(w->ahead);
    }
}

/* The last Dv % LANES numbers of the group's values, filled with zeros to whole vectors. */
static void copy_tails(const struct work *w, const struct keys *g, int64_t whole)
{
    int n = (int)(w->tile->Dv - whole);
    for (int64_t j = 0; j < g->end - g->begin; j++)
        vf_store(w->vt + j * LANES, vf_load_first(g->v + j * g->v_stride + whole, n));
}

/* Outputs y .. y + LANES of all rows, each key counted in the rows that see it and no others. */
static void careful_vector(const struct work *w, const struct sums *sums, const struct keys *g,
                           const float *v, int64_t v_stride, const float *alpha, int64_t y)
{
    for (int64_t row = 0; row < w->tile->n_rows; row++) {
        const float *s = w->s + row * BLOCK + g->begin, *p = w->p + row * BLOCK + g->begin;
        float *o = sums->o + row * out_width(w) + y;
        vf acc = vf_set1(0.0f);
        for (int64_t j = 0; j < g->end - g->begin; j++)
            if (s[j] != MINUS_INF)
                acc = vf_fma(vf_set1(p[j]), vf_load(v + j * v_stride), acc);
        vf_store(o, g->fresh ? acc : vf_fma(vf_load(o), vf_set1(alpha[row]), acc));
    }
}

/* o = o * alpha + p v for a group of keys. */
static void output_few(const struct work *w, const struct sums *sums, const struct keys *g,
                       const float *alpha)
{
    int64_t whole = w->tile->Dv / LANES * LANES;
    if (whole < w->tile->Dv)
        copy_tails(w, g, whole);
    for (int64_t y = 0; y < w->tile->Dv && w->careful; y += LANES)
        careful_vector(w, sums, g, y < whole ? g->v + y : w->vt, y < whole ? g->v_stride : LANES,
                       alpha, y);
    if (w->careful)
        return;
    for (int64_t y = 0, n; y < whole; y += n * LANES) {
        int64_t rest = (whole - y) / LANES;
        n = rest < VEC_FEW_COLUMNS ? rest : VEC_FEW_COLUMNS;
#define DO(columns) output_vectors(w, sums, g, g->v + y, g->v_stride, alpha, y, columns)
        WITH_LITERAL(n, VEC_FEW_COLUMNS, DO)
#undef DO
    }
    if (whole < w->tile->Dv)
        output_vectors(w, sums, g, w->vt, LANES, alpha, whole, 1);
}

/* One group of keys: everything from scores to the running output. */
static void attend_few(const struct work *w, const struct sums *sums, const struct keys *g)
{
    float largest[LANES], base[LANES], sum[LANES] = { 0 }, alpha[LANES];
    vf from, factor;
    score_few(w, g);
    for (int row = 0; row < LANES; row++)
        largest[row] = row < w->tile->n_rows ? finish_row(w, g, row) : MINUS_INF;
    factor = raise_maximum(sums, 0, vf_load(largest), &from);
    vf_store(alpha, factor);
    vf_store(base, from);
    for (int64_t row = 0; row < w->tile->n_rows; row++) {
        const float *s = w->s + row * BLOCK;
        sum[row] = vf_sum(exponentials_of_four(s, w->p + row * BLOCK, vf_set1(base[row]), LANES));
    }
    add_probabilities(sums, 0, factor, vf_load(sum));
    output_few(w, sums, g, alpha);
}

/* ---- joining, storing ---------------------------------------------------------------- */

/* total.o = total.o * a + part.o * b. */
static void merge_few(const struct work *w, const float *a, const float *b)
{
    int64_t width = out_width(w);
    for (int64_t row = 0; row < w->tile->n_rows; row++)
        for (int64_t at = row * width; at < (row + 1) * width; at += LANES) {
            vf o = vf_mul(vf_load(w->part.o + at), vf_set1(b[row]));
            vf_store(w->total.o + at, vf_fma(vf_load(w->total.o + at), vf_set1(a[row]), o));
        }
}

/* Outputs y .. y + LANES of a row. The fma with +0 leaves no -0. */
VEC_INLINE vf output_of_few(const struct work *w, int64_t row, int64_t y)
{
    vf o = vf_load(w->total.o + row * out_width(w) + y);
    return vf_fma(o, vf_set1(w->inv[row]), vf_set1(0.0f));
}

static int any_nan_few(const struct work *w)
{
    const vf zero = vf_set1(0.0f);
    vm nan = vm_ne(zero, zero);
    for (int64_t row = 0; row < w->tile->n_rows; row++)
        for (int64_t y = 0; y < w->tile->Dv; y += LANES) {
            vf o = output_of_few(w, row, y);
            nan = vm_or(nan, vm_ne(o, o));
        }
    return vm_any(nan);
}

static int store_few(const struct work *w)
{
    const vf zero = vf_set1(0.0f);
    vm nan = vm_ne(zero, zero);
    for (int64_t row = 0; row < w->tile->n_rows; row++)
        for (int64_t y = 0; y < w->tile->Dv; y += LANES) {
            vf o = output_of_few(w, row, y);
            nan = vm_or(nan, vm_ne(o, o));
            store_vector(&w->tile->rows[row], y, w->tile->Dv - y, o);
        }
    return vm_any(nan);
}

/* w = e^(s - M) / L, with M and L of all keys; the first of the group at index `at` of a row. */
static void weigh_few(const struct work *w, const struct keys *g, int64_t at)
{
    const vf zero = vf_set1(0.0f), minus_inf = vf_set1(MINUS_INF);
    score_few(w, g);
    for (int64_t row = 0; row < w->tile->n_rows; row++) {
        float *p = w->p + row * BLOCK;
        vf m = vf_set1(w->total.m[row]), inv = vf_set1(w->inv[row]);
        finish_row(w, g, row);
        for (int64_t j = 0; j < BLOCK; j += LANES) {
            vf s = vf_load(w->s + row * BLOCK + j);
            vf x = vf_mul(exp_nonpositive(vf_sub(s, m)), inv);
            vf_store(p + j, vf_select(vm_ne(s, minus_inf), x, zero));
        }
        store_row_weights(&w->tile->rows[row], at, p + g->begin, 1, g->end - g->begin);
    }
}

static const struct orientation few_rows = {
    .lay_out = lay_out_few,
    .steps = steps_of_few,
    .pack_rows = pack_few,
    .attend_keys = attend_few,
    .merge_outputs = merge_few,
    .any_nan = any_nan_few,
    .store_outputs = store_few,
    .weigh_keys = weigh_few,
};
