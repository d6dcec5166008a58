/* The attention core: cuts a call into tiles of query rows and hands them to the kernel. */
#ifndef MHA_ATTEND_H
#define MHA_ATTEND_H

#include "plan.h"

/* Memory of the core, from the call's arena. */
struct mha_attend_scratch {
    int64_t lanes;  /* how many may run at once */
    float *tiles;   /* the kernel's, for one tile of each lane */
    float *extra_k; /* [G, extras, D] */
    float *extra_v; /* [G, extras, Dv] */

    int64_t splits;           /* lanes share the keys of a tile by so many splits; 1: they do not */
    float *parts;             /* of each tile what its splits leave to be joined */
    _Atomic int64_t *missing; /* how many of a tile's parts are still to come */
};
void mha_attend_lay_out(const struct mha_plan *plan, const struct mha_threads *threads,
                        struct mha_arena *arena, struct mha_attend_scratch *scratch);

/* Decides how many of the lanes that were laid out are worth it for what the rows really see, and
 * makes their threads: the last step that can fail. */
mha_status mha_attend_prepare(mha_context *ctx, const struct mha_plan *plan,
                              struct mha_attend_scratch *scratch);

/* Computes every output that the plan's views want. Each element of an output is written once, by
 * the tile of its row, from operands alone: tiles may run in any order, on any thread. */
void mha_attend(mha_context *ctx, const struct mha_plan *plan,
                const struct mha_attend_scratch *scratch);

#endif
