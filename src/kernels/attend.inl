/*
 * Attention of one tile: some query rows against the keys of one key/value head. Two orientations of
 * the same arithmetic, and the same bits:
 *
 *   many.inl   queries in the lanes, keys and values as they lie as broadcast operands
 *   few.inl    keys, then outputs in the lanes, queries as broadcast operands: for a dozen rows or less
 *
 * This file has what they share, tile.inl walks the keys:
 *
 *   pack the rows, scaled                                             pack_rows
 *   for each split of 512 keys, for each block of 64                  attend_keys:
 *       s = q k
 *       softcap, mask, maximum of what is visible
 *       p = e^(s - m), l and o rescaled
 *       o += p v
 *   join the splits                                                   merge_outputs
 *   store o / l, test it for NaN                                      store_outputs
 *   the weights, by a second walk over the keys                       weigh_keys
 *
 * Masked means absent. A masked key's score becomes -inf by selection, so its p is +0 and only 0 times
 * a NaN or an infinity in its value could show: as a NaN in the output. Such a tile, rare, is done
 * again `careful`, where the output takes each key only in the rows that see it. Thus the common
 * case pays one comparison an output, and no NaN of a masked key gets through.
 */

enum {
    ROWS = MHA_MANY_ROWS,
    FEW_ROWS = MHA_FEW_ROWS,
    BLOCK = MHA_BLOCK,
    COLUMNS = MHA_MANY_ROWS / LANES
};

#define MINUS_INF (-__builtin_inff())

/* What a row has of the keys so far: m, l and o lie one after the other. */
struct sums {
    float *m, *l; /* [ROWS]: largest score, sum of e^(s - m) */
    float *o;     /* sum of e^(s - m) v: [Dv][ROWS] of many rows, [rows][out_width] of few */
};

/* The tile being worked on: where its parts lie in the scratch, and what each column sees. A column is
 * sixteen rows, one vector of the numbers that a row has one of; few rows are one column. */
struct work {
    const struct mha_attend_tile *tile;
    const struct orientation *orientation;
    float *q;                 /* scaled rows: [D][ROWS] of many, [rows][D] of few */
    float *s;                 /* scores of a block, [BLOCK][ROWS] or [rows][BLOCK], -inf where hidden */
    float *p;                 /* its probabilities, alike */
    float *add;               /* many: [BLOCK][ROWS], the block's mask as numbers to add */
    float *kt;                /* few: [D][KEYS_AT_ONCE], some keys of the block in the lanes */
    float *vt;                /* few: [BLOCK][LANES], what of a value row is no whole vector */
    struct sums total;        /* of all splits so far */
    struct sums part;         /* of the split after the first that is being walked */
    float *lo, *hi;           /* many: [ROWS], keys of the block that the range of a row leaves */
    float *inv;               /* [ROWS]: 1 / total.l */
    float cap_scale;          /* 2 log2(e) / softcap */
    int careful;
    struct ahead *ahead;
    int64_t outputs;          /* floats of an o, whole vectors */
    int64_t lo_key, hi_key;   /* keys that some row sees: lo_key <= j < hi_key, or both 0 */
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
    int fresh;                  /* the first of their split: what is in o counts as zeros */
};

/* What lies differently when queries or when keys are in the lanes. */
struct orientation {
    float *(*lay_out)(struct work *w, float *at); /* its own arrays, and w->outputs; returns their end */
    int64_t (*steps)(const struct work *w);       /* calls of look_ahead for a whole block */
    void (*pack_rows)(const struct work *w);
    void (*attend_keys)(const struct work *w, const struct sums *sums, const struct keys *g);
    void (*merge_outputs)(const struct work *w, const float *a, const float *b);
    int (*any_nan)(const struct work *w);         /* among the outputs? */
    int (*store_outputs)(const struct work *w);   /* and: was any NaN? */
    void (*weigh_keys)(const struct work *w, const struct keys *g, int64_t at);
};

/* Floats of the sums of all rows. */
static inline int64_t sums_floats(const struct work *w)
{
    return 2 * ROWS + w->outputs;
}

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

/* Of a row, the mask at n <= LANES keys from `key` on as numbers to add: 0 or -inf for the boolean
 * kinds. Outside its range a row's mask is not read: there may be nothing behind it. */
VEC_INLINE vf mask_numbers(const struct mha_attend_tile *t, const struct mha_attend_row *r,
                           int64_t key, int64_t n)
{
    const float *numbers = r->mask;
    const uint8_t *bytes = r->mask;
    int additive = t->mask_kind == MHA_ATTEND_ADDITIVE, drop = t->mask_kind == MHA_ATTEND_DROP;
    int whole = r->lo <= key && key + n <= r->hi && t->mask_stride == 1;
    if (whole && additive)
        return n == LANES ? vf_load(numbers + key) : vf_load_first(numbers + key, (int)n);
    float value[LANES];
    if (whole && n == LANES) {
        for (int i = 0; i < LANES; i++)
            value[i] = (bytes[key + i] != 0) == drop ? MINUS_INF : 0.0f;
        return vf_load(value);
    }
    int64_t begin = clamp(r->lo - key, 0, n), end = clamp(r->hi - key, 0, n);
    for (int i = 0; i < LANES; i++)
        value[i] = MINUS_INF;
    for (int64_t i = begin; i < end; i++) {
        int64_t at = (key + i) * t->mask_stride;
        value[i] = additive ? numbers[at] : (bytes[at] != 0) == drop ? MINUS_INF : 0.0f;
    }
    return vf_load(value);
}

/* The keys of a group that the range of a row leaves, as positions within the block. */
static inline void row_range(const struct mha_attend_row *r, const struct keys *g, float *lo,
                             float *hi)
{
    *lo = (float)(g->extra ? 0 : clamp(r->lo - g->first, 0, BLOCK));
    *hi = (float)(g->extra ? r->sees_extra * g->end : clamp(r->hi - g->first, 0, BLOCK));
}

/* p = e^(s - base) at the vectors 0, 1, 2 and 3 of s, which lie `step` floats apart; returns
 * ((p_0 + p_1) + p_2) + p_3. */
VEC_INLINE vf exponentials_of_four(const float *s, float *p, vf base, const int step)
{
    vf sum = vf_set1(0.0f);
    UNROLL
    for (int i = 0; i < BLOCK / LANES; i += VEC_CHAINS) {
        vf x[VEC_CHAINS];
        UNROLL
        for (int c = 0; c < VEC_CHAINS; c++)
            x[c] = vf_sub(vf_load(s + (i + c) * step), base);
        exp_nonpositive_side_by_side(x, VEC_CHAINS);
        UNROLL
        for (int c = 0; c < VEC_CHAINS; c++) {
            vf_store(p + (i + c) * step, x[c]);
            sum = vf_add(sum, x[c]);
        }
    }
    return sum;
}

/* Brings the maximum of a column up to date with the largest scores of a group. Returns alpha, by which
 * the sums so far are to be multiplied; e^(s - base) are the group's probabilities. */
VEC_INLINE vf raise_maximum(const struct sums *sums, int column, vf largest, vf *base)
{
    const vf minus_inf = vf_set1(MINUS_INF);
    vf m = vf_load(sums->m + column * LANES), m_new = vf_max(m, largest);
    *base = vf_select(vm_ne(m_new, minus_inf), m_new, vf_set1(0.0f));
    vf_store(sums->m + column * LANES, m_new);
    return exp_nonpositive(vf_sub(m, *base));
}

/* l = l * alpha + the sum of a group's probabilities. */
VEC_INLINE void add_probabilities(const struct sums *sums, int column, vf alpha, vf sum)
{
    float *l = sums->l + column * LANES;
    vf_store(l, vf_fma(vf_load(l), alpha, sum));
}

/* Outputs y .. y + n of a row, or LANES of them if that is fewer, with the residual. */
VEC_INLINE void store_vector(const struct mha_attend_row *row, int64_t y, int64_t n, vf o)
{
    const float *residual = row->residual ? row->residual + y : NULL;
    float *out = row->out + y;
    if (n >= LANES)
        vf_store(out, residual ? vf_add(o, vf_load(residual)) : o);
    else
        vf_store_first(out, residual ? vf_add(o, vf_load_first(residual, (int)n)) : o, (int)n);
}

/* n weights of a row, which lie `step` floats apart, to where it wants them, the first at index `at`. */
static void store_row_weights(const struct mha_attend_row *r, int64_t at, const float *p, int step,
                              int64_t n)
{
    for (int64_t j = 0; j < n && r->weights; j++)
        r->weights[at + j] = p[j * step];
    for (int64_t j = 0; j < n && r->weights_mean; j++)
        r->weights_mean[at + j] += p[j * step];
}
