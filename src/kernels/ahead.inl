/* Memory that will be wanted soon, on its way while a tile computes. */

/*
 * The walk over the keys calls look_ahead after each of its steps, which fetches a few rows: of the
 * next tile its queries, outputs and, when the head changes, its first keys and values; of this
 * tile the masks of the next block, and its keys and values where the processor would not see them
 * coming.
 */
struct ahead {
    const struct mha_attend_tile *tile, *next; /* next may be NULL */
    int64_t first, keys;                       /* of the next tile's keys, how many are worth it */
    int64_t at, end;                           /* of the next tile: first its rows, then those keys */
    int64_t pace;                              /* so many a step */
    int64_t block, block_keys;                 /* of this tile: its next block, keys that are worth it */
    int64_t block_at, block_end;               /* first those keys, then the masks of its rows */
    int64_t block_pace;                        /* so many a step */
    int own;                                   /* are this tile's keys worth it? */
};

/* Always inline, because gcc drops calls of functions that do nothing but prefetch. */
VEC_INLINE void fetch_row(const float *row, int64_t width)
{
    for (int64_t x = 0; x < width; x += LANES)
        __builtin_prefetch(row + x, 0, 2);
}

/* Key and value of a tile. */
VEC_INLINE void fetch_key(const struct mha_attend_tile *t, int64_t key)
{
    fetch_row(t->k + key * t->k_stride, t->D);
    if (t->Dv > 0)
        fetch_row(t->v + key * t->v_stride, t->Dv);
}

/* Are the masks of a block worth it? */
static inline int fetches_masks(const struct mha_attend_tile *t)
{
    return t->mask_kind == MHA_ATTEND_ADDITIVE && t->mask_stride == 1;
}

/* The mask of a row for the block at `first`. */
VEC_INLINE void fetch_mask(const struct mha_attend_tile *t, const struct mha_attend_row *row,
                              int64_t first)
{
    fetch_row((const float *)row->mask + first, (t->S < first + BLOCK ? t->S : first + BLOCK) - first);
}

static void fetch_rows(struct ahead *ahead)
{
    const struct mha_attend_tile *tile = ahead->tile, *next = ahead->next;
    int64_t stop = clamp(ahead->block_at + ahead->block_pace, 0, ahead->block_end);
    for (; ahead->block_at < stop; ahead->block_at++) {
        if (ahead->block_at < ahead->block_keys)
            fetch_key(tile, ahead->block + ahead->block_at);
        else
            fetch_mask(tile, &tile->rows[ahead->block_at - ahead->block_keys], ahead->block);
    }
    stop = clamp(ahead->at + ahead->pace, 0, ahead->end);
    for (; ahead->at < stop; ahead->at++) {
        if (ahead->at >= next->n_rows) {
            fetch_key(next, ahead->first + ahead->at - next->n_rows);
            continue;
        }
        const struct mha_attend_row *row = &next->rows[ahead->at];
        fetch_row(row->q, next->D);
        fetch_row(row->out, next->Dv);
    }
}

static inline void look_ahead(struct ahead *ahead)
{
    if (ahead->at < ahead->end || ahead->block_at < ahead->block_end)
        fetch_rows(ahead);
}

/* The block at `first`, which comes next. Keys of the first blocks are there or were fetched by the tile
 * before. */
static inline void look_at_block(struct ahead *ahead, int64_t first, int64_t lo, int64_t hi)
{
    if (first >= hi)
        return;
    ahead->block = first;
    ahead->block_at = 0;
    ahead->block_keys = ahead->own && first >= lo + 2 * BLOCK ? clamp(hi - first, 0, BLOCK) : 0;
    ahead->block_end = ahead->block_keys + (fetches_masks(ahead->tile) ? ahead->tile->n_rows : 0);
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
    ahead.block_pace = ceil_div(BLOCK + (fetches_masks(t) ? t->n_rows : 0), steps);
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
