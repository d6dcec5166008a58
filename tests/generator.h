/* Random attention problems for tests: odd shapes, every memory layout the interface allows, every
 * option in any combination, and NaN and infinity where they must not matter or must arrive. */
#ifndef GENERATOR_H
#define GENERATOR_H

#include <stdbool.h>

#include "mha.h"

/*
 * A case holds operands for mha_attention. Its structs point into itself: never copy one. All
 * memory is guarded (it ends at an unreadable page), and that of float operands holds NaN between
 * the elements.
 */
struct generated_case {
    struct mha_inputs inputs;
    struct mha_options options;
    int64_t B, L, S, H, G, D, Dv;
    int64_t extra;  /* extra keys; weights have S + extra columns */
    char text[640]; /* the case in one line, to stand before the name of a compared array */

    struct mha_tensor query, key, value, residual, query_lengths, key_lengths, bias_k, bias_v;
    struct mha_tensor mask, offsets;
    void *blocks[16]; /* what generated_free frees */
    int64_t block_count;
    int64_t hidden_from, hidden_to; /* keys that the mask takes from every row; none if equal */
    bool moderate;                  /* no probability of a visible key underflows */
};

/* Draws the next case from random_bits. */
void generated_make(struct generated_case *c);
/* The same with few query rows, as decoding has them, and several splits of keys. */
void generated_make_few_rows(struct generated_case *c);
void generated_free(struct generated_case *c);

/* Element b of lengths or offsets, of either integer type. */
int64_t integer_at(const struct mha_tensor *t, int64_t b);

#endif
