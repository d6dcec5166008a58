#include "visible.h"

struct mha_visible mha_visible_sample(const struct mha_plan *plan, int64_t b)
{
    struct mha_visible sample = {
        .queries = plan->query_lengths.data ? mha_counts_get(&plan->query_lengths, b) : plan->L,
        .keys = plan->key_lengths.data ? mha_counts_get(&plan->key_lengths, b) : plan->S,
        .left = plan->left,
        .right = plan->right,
    };
    if (plan->align == MHA_ALIGN_BOTTOM_RIGHT)
        sample.offset = sample.keys - sample.queries;
    else if (plan->align == MHA_ALIGN_OFFSETS)
        sample.offset = mha_counts_get(&plan->offsets, b);
    return sample;
}

bool mha_visible_row(const struct mha_visible *sample, int64_t i, int64_t *lo, int64_t *hi)
{
    *lo = *hi = 0;
    if (i >= sample->queries)
        return false;
    /* Offsets stay within 2^62 and sizes of memory below that, so p itself cannot overflow. */
    int64_t p = sample->offset + i, first = 0, last = 0;
    if (sample->left == INT64_MAX || __builtin_sub_overflow(p, sample->left, &first))
        first = 0;
    if (sample->right == INT64_MAX || __builtin_add_overflow(p, sample->right, &last))
        last = sample->keys - 1;
    first = max_i64(first, 0);
    last = min_i64(last, sample->keys - 1);
    if (first <= last) {
        *lo = first;
        *hi = last + 1;
    }
    return true;
}
