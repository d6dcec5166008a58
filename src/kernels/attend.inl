/*
 * Attention of one tile: up to 48 query rows in the lanes of three vectors, the keys of one key/value
 * head as broadcast operands. Scores S^T = K Q^T and outputs O^T = V^T P^T need K and V as they lie,
 * the softmax is vertical, and any D, Dv and number of keys runs without padding. This file walks the
 * keys; tile.inl has the beginning and the end of a tile, weights.inl the weights.
 *
 *   pack the rows, scaled, lanes across rows                         pack_queries
 *   for each split of 512 keys, for each block of 64
 *       s = q k                                                       block_scores
 *       softcap, mask, maximum of what is visible                     finish_scores
 *       p = e^(s - m), l and o rescaled                               block_softmax
 *       o += p v                                                      block_output
 *   join the splits                                                   merge_split
 *   divide by l, test for NaN                                         divide_by_sum
 *   store                                                             store_rows
 *   the weights, by a second walk over the keys                       tile_weights
 *
 * Lane-major arrays have the lanes of the tile side by side: element (i, row) is at
 * i * MHA_TILE_ROWS + row. The vectors of a tile are its columns; each has the range of keys that
 * its rows see together, and blocks outside a column's range are not computed for it.
 *
 * Masked means absent. A masked key's score becomes -inf by selection, so its p is +0 and only 0 times
 * a NaN or an infinity in its value could show: as a NaN in the output. Such a tile, rare, is done
 * again `careful`, where the output takes each key only in the lanes that see it. Thus the common
 * case pays one comparison an output, and no NaN of a masked key gets through.
 */

enum {
    ROWS = MHA_TILE_ROWS,
    BLOCK = MHA_BLOCK,
    COLUMNS = MHA_TILE_ROWS / LANES
};

#define MINUS_INF (-__builtin_inff())

/* What a row has of the keys so far. */
struct sums {
    float *m, *l; /* [ROWS]: largest score, sum of e^(s - m) */
    float *o;     /* [Dv][ROWS]: sum of e^(s - m) v */
};

/* The tile being worked on: where its parts lie in the scratch, and what each column sees. */
struct work {
    const struct mha_attend_tile *tile;
    float *q;                 /* [D][ROWS], scaled */
    float *s;                 /* [BLOCK][ROWS]: scores of a block, -inf where not visible */
    float *p;                 /* [BLOCK][ROWS]: probabilities; the same memory as s unless careful */
    float *add;               /* [BLOCK][ROWS]: the block's mask as numbers to add */
    struct sums total;        /* of all splits so far */
    struct sums part;         /* of the split after the first that is being walked */
    float *lo, *hi;           /* [ROWS]: keys of the block that the range of a row leaves */
    float *inv;               /* [ROWS]: 1 / total.l */
    float cap_scale;          /* 2 log2(e) / softcap */
    int careful;
    struct ahead *ahead;
    int columns;              /* in use: ceil(n_rows / LANES) */
    struct {
        int64_t lo, hi;       /* keys that some row sees */
        int64_t all_lo, all_hi; /* keys that all rows see, as far as ranges go */
    } column[COLUMNS];
};

/* Some keys that share a treatment: part of a block, or the extra keys. */
struct keys {
    const float *k, *v;         /* row 0 is the first key of the group */
    int64_t k_stride, v_stride;
    int64_t first;              /* position of the block's first key, a multiple of BLOCK */
    int begin, end;             /* the group within the block */
    int column, column_end;     /* columns that see any of it */
    int extra;                  /* the extra keys: no mask, no range */
};

static inline int64_t clamp(int64_t x, int64_t lo, int64_t hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

/* The row in a lane of a column; lanes beyond the last row repeat it, and nobody looks at them. */
static inline const struct mha_attend_row *row_in(const struct work *w, int column, int lane)
{
    int64_t row = column * LANES + lane, last = w->tile->n_rows - 1;
    return &w->tile->rows[row < last ? row : last];
}

/* ---- the next tile ----------------------------------------------------------------------------- */

/*
 * What this thread's next tile will read and write, on its way from memory while this tile computes:
 * its queries and outputs, and the first keys and values when the head changes. The walk takes a few
 * rows after each register tile.
 */
struct ahead {
    const struct mha_attend_tile *next; /* or NULL */
    int64_t first, keys;                /* of the next tile's keys, that are worth it */
    int64_t at, end;                    /* rows: queries, outputs, keys, values */
    int64_t pace;                       /* rows after each register tile */
};

static inline void fetch_row(const float *row, int64_t width)
{
    for (int64_t x = 0; x < width; x += LANES)
        __builtin_prefetch(row + x, 0, 2);
}

static void look_ahead(struct ahead *ahead)
{
    const struct mha_attend_tile *next = ahead->next;
    int64_t stop = ahead->at + ahead->pace < ahead->end ? ahead->at + ahead->pace : ahead->end;
    for (; ahead->at < stop; ahead->at++) {
        int64_t i = ahead->at, n = next->n_rows;
        if (i < n)
            fetch_row(next->rows[i].q, next->D);
        else if ((i -= n) < n)
            fetch_row(next->rows[i].out, next->Dv);
        else if ((i -= n) < ahead->keys)
            fetch_row(next->k + (ahead->first + i) * next->k_stride, next->D);
        else if (next->Dv > 0)
            fetch_row(next->v + (ahead->first + i - ahead->keys) * next->v_stride, next->Dv);
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
VEC_INLINE void output_tile(const float *v, int64_t v_stride, const float *p, int64_t n,
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
            vf_store(at, vf_fma(vf_load(at), vf_load(alpha + c * LANES), acc[r][c]));
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
        n = take_rows(g->end - j);
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
    const float *p = w->p + g->begin * ROWS + column * LANES;
    for (int64_t y = 0, n; y < w->tile->Dv; y += n) {
        float *o = sums->o + y * ROWS + column * LANES;
        n = take_rows(w->tile->Dv - y);
#define DO(rows)                                                                                   \
    output_tile(g->v + y, g->v_stride, p, g->end - g->begin, alpha + column * LANES, o, rows, columns)
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
        vf_store(o, vf_fma(vf_load(o), vf_load(alpha + column * LANES), acc));
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

/* Of a row, the mask at n <= LANES keys from `key` on as numbers to add: 0 or -inf for the boolean
 * kinds. Outside its range a row's mask is not read: there may be nothing behind it. */
VEC_INLINE vf mask_numbers(const struct mha_attend_tile *t, const struct mha_attend_row *r,
                           int64_t key, int64_t n)
{
    const float *numbers = r->mask;
    const uint8_t *bytes = r->mask;
    int additive = t->mask_kind == MHA_ATTEND_ADDITIVE, drop = t->mask_kind == MHA_ATTEND_DROP;
    int64_t begin = clamp(r->lo - key, 0, n), end = clamp(r->hi - key, 0, n);
    float value[LANES];
    if (begin == 0 && end == LANES && t->mask_stride == 1) {
        if (additive)
            return vf_load(numbers + key);
        for (int i = 0; i < LANES; i++)
            value[i] = (bytes[key + i] != 0) == drop ? MINUS_INF : 0.0f;
        return vf_load(value);
    }
    for (int i = 0; i < LANES; i++)
        value[i] = MINUS_INF;
    for (int64_t i = begin; i < end; i++) {
        int64_t at = (key + i) * t->mask_stride;
        value[i] = additive ? numbers[at] : (bytes[at] != 0) == drop ? MINUS_INF : 0.0f;
    }
    return vf_load(value);
}

/* The block's mask of one column as numbers to add, with rows in the lanes. */
static void read_mask(const struct work *w, const struct keys *g, int column)
{
    for (int j = g->begin, n; j < g->end; j += n) {
        float *add = w->add + j * ROWS + column * LANES;
        vf block[LANES];
        n = g->end - j < LANES ? g->end - j : LANES;
        for (int lane = 0; lane < LANES; lane++)
            block[lane] = mask_numbers(w->tile, row_in(w, column, lane), g->first + j, n);
        vf_transpose(block);
        for (int i = 0; i < n; i++)
            vf_store(add + i * ROWS, block[i]);
    }
}

/* The range of each row of a column, as positions within the block. */
static void read_ranges(const struct work *w, const struct keys *g, int column)
{
    for (int lane = 0; lane < LANES; lane++) {
        const struct mha_attend_row *r = row_in(w, column, lane);
        int64_t row = column * LANES + lane;
        int64_t lo = g->extra ? 0 : r->lo - g->first;
        int64_t hi = g->extra ? r->sees_extra * BLOCK : r->hi - g->first;
        w->lo[row] = lo < 0 ? 0.0f : lo > BLOCK ? (float)BLOCK : (float)lo;
        w->hi[row] = hi < 0 ? 0.0f : hi > BLOCK ? (float)BLOCK : (float)hi;
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
    int cut = g->extra
              || (!masked
                  && (w->column[column].all_lo > g->first + g->begin
                      || w->column[column].all_hi < g->first + g->end));
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

/* p = e^(s - base) at keys 0, 16, 32 and 48 from s; returns ((p_0 + p_16) + p_32) + p_48. */
VEC_INLINE vf exponentials_of_four(const float *s, float *p, vf base)
{
    vf sum = vf_set1(0.0f);
    UNROLL
    for (int at = 0; at < BLOCK * ROWS; at += VEC_CHAINS * LANES * ROWS) {
        vf x[VEC_CHAINS];
        UNROLL
        for (int c = 0; c < VEC_CHAINS; c++)
            x[c] = vf_sub(vf_load(s + at + c * LANES * ROWS), base);
        exp_nonpositive_side_by_side(x, VEC_CHAINS);
        UNROLL
        for (int c = 0; c < VEC_CHAINS; c++) {
            vf_store(p + at + c * LANES * ROWS, x[c]);
            sum = vf_add(sum, x[c]);
        }
    }
    return sum;
}

/*
 * p = e^(s - base) for the keys begin <= j < end of a block in one column; returns their sum, in a
 * fixed order: t_i = ((p_i + p_i+16) + p_i+32) + p_i+48, where other keys count as +0, then halves.
 */
static vf exponentials(const float *s, float *p, vf base, int begin, int end)
{
    vf t[LANES];
    for (int i = 0; i < LANES && begin == 0 && end == BLOCK; i++)
        t[i] = exponentials_of_four(s + i * ROWS, p + i * ROWS, base);
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

/*
 * Scores to probabilities for one column, with the maximum brought up to date; their sum joins l.
 * Returns alpha, by which the sums so far are to be multiplied.
 */
static vf block_softmax(const struct work *w, const struct sums *sums, const struct keys *g,
                        int column, vf largest)
{
    const vf minus_inf = vf_set1(MINUS_INF);
    const float *s = w->s + column * LANES;
    float *p = w->p + column * LANES;
    float *m = sums->m + column * LANES, *l = sums->l + column * LANES;

    vf m_new = vf_max(vf_load(m), largest);
    vf base = vf_select(vm_ne(m_new, minus_inf), m_new, vf_set1(0.0f));
    vf alpha = exp_nonpositive(vf_sub(vf_load(m), base));
    vf sum = exponentials(s, p, base, g->begin, g->end);
    vf_store(m, m_new);
    vf_store(l, vf_fma(vf_load(l), alpha, sum));
    return alpha;
}

/* One group of keys: everything from scores to the running output. */
static void attend_keys(const struct work *w, const struct sums *sums, const struct keys *g)
{
    float alpha[ROWS], most[ROWS];
    block_scores(w, g, most);
    for (int column = g->column; column < g->column_end; column++) {
        vf largest = finish_scores(w, g, column, most);
        vf_store(alpha + column * LANES, block_softmax(w, sums, g, column, largest));
    }
    block_output(w, sums, g, alpha);
}

/* ---- walking the keys ------------------------------------------------------------------------- */

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
    for (int64_t i = 0; i < w->tile->Dv * ROWS; i++)
        sums->o[i] = 0;
}

/* Joins a split to the ones before it. */
static void merge_part(const struct work *w)
{
    const struct sums *total = &w->total, *part = &w->part;
    const vf zero = vf_set1(0.0f), minus_inf = vf_set1(MINUS_INF);
    for (int column = 0; column < w->columns; column++) {
        int64_t at = column * LANES;
        vf m = vf_load(part->m + at), before = vf_load(total->m + at);
        vf m_new = vf_max(before, m);
        vf base = vf_select(vm_ne(m_new, minus_inf), m_new, zero);
        vf a = exp_nonpositive(vf_sub(before, base));
        vf b = exp_nonpositive(vf_sub(m, base));
        vf l = vf_mul(vf_load(part->l + at), b);
        vf_store(total->l + at, vf_fma(vf_load(total->l + at), a, l));
        vf_store(total->m + at, m_new);
        for (int64_t y = 0; y < w->tile->Dv; y++) {
            float *to = total->o + y * ROWS + at;
            vf o = vf_mul(vf_load(part->o + y * ROWS + at), b);
            vf_store(to, vf_fma(vf_load(to), a, o));
        }
    }
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
        if (find_group(w, first, &g))
            attend_keys(w, sums, &g);
    }
    close_split(w, sums);
    if (w->tile->extras > 0) {
        sums = open_split(w, lo >= hi);
        extra_group(w, &g);
        attend_keys(w, sums, &g);
        close_split(w, sums);
    }
}
