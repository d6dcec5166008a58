/* Memory that will be wanted soon, on its way while a tile computes. */

/*
 * The walk over the keys calls look_ahead after each of its steps, which fetches a few rows: of the
 * next tile its queries, outputs and, when the head changes, its first keys and values; of this tile
 * the next block of keys and values, where the processor would not see them coming.
 */
struct ahead {
    const struct mha_attend_tile *tile, *next; /* next may be NULL */
    int64_t first, keys;                       /* of the next tile's keys, how many are worth it */
    int64_t at, end;                           /* of the next tile: first its rows, then those keys */
    int64_t pace;                              /* so many a step */
    int own;                                   /* are this tile's keys worth it? */
    int64_t key, key_end;                      /* those to fetch */
    int64_t key_pace;                          /* so many a step */
};

static inline void fetch_row(const float *row, int64_t width)
{
    for (int64_t x = 0; x < width; x += LANES)
        __builtin_prefetch(row + x, 0, 2);
}

static void fetch_rows(struct ahead *ahead)
{
    const struct mha_attend_tile *tile = ahead->tile, *next = ahead->next;
    int64_t stop = clamp(ahead->key + ahead->key_pace, 0, ahead->key_end);
    for (; ahead->key < stop; ahead->key++) {
        fetch_row(tile->k + ahead->key * tile->k_stride, tile->D);
        if (tile->Dv > 0)
            fetch_row(tile->v + ahead->key * tile->v_stride, tile->Dv);
    }
    stop = clamp(ahead->at + ahead->pace, 0, ahead->end);
    for (; ahead->at < stop; ahead->at++) {
        int64_t i = ahead->at;
        if (i < next->n_rows) {
            fetch_row(next->rows[i].q, next->D);
            fetch_row(next->rows[i].out, next->Dv);
            continue;
        }
        i += ahead->first - next->n_rows;
        fetch_row(next->k + i * next->k_stride, next->D);
        if (next->Dv > 0)
            fetch_row(next->v + i * next->v_stride, next->Dv);
    }
}

static inline void look_ahead(struct ahead *ahead)
{
    if (ahead->at < ahead->end || ahead->key < ahead->key_end)
        fetch_rows(ahead);
}

/* The block of this tile's keys that comes next. The first blocks are there or were fetched by the tile
 * before. */
static inline void look_at_block(struct ahead *ahead, int64_t first, int64_t lo, int64_t hi)
{
    if (!ahead->own || first < lo + 2 * BLOCK)
        return;
    ahead->key = first;
    ahead->key_end = first + BLOCK < hi ? first + BLOCK : hi;
}

/* What to fetch, and how fast while the keys are walked. */
static struct ahead plan_ahead(const struct work *w, const struct mha_attend_tile *next)
{
    enum { MOST_KEYS = 256 }; /* half a second-level cache of 512 KiB at D = Dv = 128 */
    const struct mha_attend_tile *t = w->tile;
    struct ahead ahead = { .tile = t };
    if (w->lo_key == w->hi_key)
        return ahead;
    int64_t steps = w->orientation->steps(w);
    ahead.own = t->k_stride > 4 * t->D; /* rows of several heads, one after the other */
    ahead.key_pace = ceil_div(BLOCK, steps);
    if (!next)
        return ahead;
    ahead.next = next;
    if (next->k != t->k) {
        ahead.first = next->rows[0].lo;
        ahead.keys = clamp(next->rows[next->n_rows - 1].hi - ahead.first, 0, MOST_KEYS);
    }
    ahead.end = next->n_rows + ahead.keys;
    ahead.pace = ceil_div(ahead.end, steps * ceil_div(w->hi_key - w->lo_key, BLOCK));
    return ahead;
}
