/* The colours of weights: an even ramp from light to dark, and one for what is no number. */
#ifndef COLOUR_H
#define COLOUR_H

#include <stdbool.h>
#include <stdint.h>

#include "mha.h"

/* Shades are 0 (the lowest value) to COLOUR_TOP (the highest), and COLOUR_OTHER for NaN and
 * infinities. */
enum { COLOUR_TOP = 255, COLOUR_OTHER = 256, COLOUR_SHADES };

struct colour {
    double red, green, blue; /* sRGB, 0..1 */
};

/* The values that shades stand for. */
struct range {
    double low, high;
    bool has_others;
    const char *others; /* what these are */
};

/* From 0, or the least value below it, to the greatest value of [panels, rows, columns]. */
struct range colour_range(const struct mha_tensor *cells);

int32_t colour_shade(struct range range, float value);
void colour_palette(struct colour palette[COLOUR_SHADES]);

#endif
