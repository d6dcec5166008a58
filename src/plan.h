/* The plan of a call: every check, for all roads, in one place; behind it plain numbers flow. */
#ifndef MHA_PLAN_H
#define MHA_PLAN_H

#include "context.h"
#include "layer.h"
#include "tensor.h"

/* One integer a sample. */
struct mha_counts {
    const void *data; /* NULL: not given */
    int32_t type;     /* MHA_INT32 or MHA_INT64 */
    int64_t stride;
};
int64_t mha_counts_get(const struct mha_counts *counts, int64_t b);

struct mha_plan {
    int64_t B, L, S, H, G, D, Dv;
    int64_t extras; /* extra keys: bias pair, zero pair */

    /* Operands of the core. In mha_forward q, k and v are the projected rows in scratch, as are the
     * heads' outputs when there is a W_O. */
    struct mha_view q, k, v, residual, out;
    struct mha_view lse, weights, weights_mean;
    struct mha_view bias_k, bias_v; /* stride h from head to head */

    /* mha_forward only: rows [B, L, width], h unused. */
    struct mha_view query_rows, key_rows, value_rows, residual_rows, out_rows;

    struct mha_counts query_lengths, key_lengths, offsets;
    int32_t align;       /* enum mha_align_mode */
    int64_t left, right; /* reach of the window, INT64_MAX when unlimited */
    int32_t mask_kind;   /* enum mha_mask_kind */
    const char *mask;
    int64_t mask_b, mask_h, mask_l, mask_s; /* strides in elements, 0 where broadcast */
    int64_t mask_bytes;                     /* of one element */
    float scale;
    float softcap; /* 0: off */
};

/* What the plan is for: a call looks at data, lengths and overlap; a query only at shapes. */
enum mha_plan_purpose { MHA_PLAN_CALL, MHA_PLAN_QUERY };

/* Of mha_forward with that layer, or of mha_attention when it is NULL. */
mha_status mha_plan(mha_context *ctx, const mha_layer *layer, const struct mha_inputs *inputs,
                    const struct mha_options *options, const struct mha_outputs *outputs,
                    enum mha_plan_purpose purpose, struct mha_plan *plan);

#endif
