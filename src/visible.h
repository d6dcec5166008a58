/* Which keys a query row sees, as far as positions tell: causal, window, lengths. */
#ifndef MHA_VISIBLE_H
#define MHA_VISIBLE_H

#include "plan.h"

/* What holds for all rows of a sample. */
struct mha_visible {
    int64_t queries, keys; /* the sample's lengths */
    int64_t offset;        /* position of query row 0 */
    int64_t left, right;   /* reach of the window */
};
struct mha_visible mha_visible_sample(const struct mha_plan *plan, int64_t b);

/* The keys lo <= j < hi that row i of the sample sees; empty ranges are lo = hi. Rows beyond the
 * query length see nothing, and false is returned for them: not even extra keys. */
bool mha_visible_row(const struct mha_visible *sample, int64_t i, int64_t *lo, int64_t *hi);

/* Do all L rows of the sample see the same keys? */
static inline bool mha_visible_alike(const struct mha_visible *sample, int64_t L)
{
    return sample->queries == L && sample->left == INT64_MAX && sample->right == INT64_MAX;
}

#endif
