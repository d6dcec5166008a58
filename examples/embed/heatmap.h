/* Pictures of the attention, drawn by libmha's command `mha heatmap`. */
#ifndef HEATMAP_H
#define HEATMAP_H

#include <mha.h>
#include <stdbool.h>
#include <stdint.h>

#include "reason.h"

/*
 * Draws all heads of one sentence's attention to STEM.png, the tokens on both axes, from
 * STEM.npy (the weights) and STEM.tokens.txt (the tokens, one a line), which stay beside it.
 *
 *   weights   [H, L, L], any strides
 *   tokens    L texts
 */
bool heatmap_draw(mha_context *ctx, const char *stem, const struct mha_tensor *weights,
                  const char *const *tokens, const char *title, struct reason *why);

#endif
