/* The attention core: cuts a call into tiles of query rows and hands them to the kernel. */
#ifndef MHA_ATTEND_H
#define MHA_ATTEND_H

#include "plan.h"

/* Memory of the core, from the call's arena. */
struct mha_attend_scratch {
    float *tile;     /* the kernel's, for one tile at a time */
    float *extra_k;  /* [G, extras, D] */
    float *extra_v;  /* [G, extras, Dv] */
};
void mha_attend_lay_out(const struct mha_plan *plan, struct mha_arena *arena,
                        struct mha_attend_scratch *scratch);

/* Computes every output that the plan's views want. Each element of an output is written once, by
 * the tile of its row, from operands alone: tiles may run in any order. */
void mha_attend(const struct mha_kernels *kernels, const struct mha_plan *plan,
                const struct mha_attend_scratch *scratch);

#endif
