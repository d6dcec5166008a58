/* What the program prints. */
#ifndef REPORT_H
#define REPORT_H

#include <mha.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "encoder.h"
#include "reason.h"

struct sentence {
    char *text;
    size_t bytes;
};

/* One line of ENCODER_WIDTH numbers, exact to the last bit of each. */
void report_numbers(const float embedding[ENCODER_WIDTH]);

/* The cosine of every two sentences as a table. */
void report_cosines(const struct sentence *sentences, float (*embeddings)[ENCODER_WIDTH],
                    int64_t count);

/* The largest difference from the tensor sentences/out.embedding of a .safetensors file, which must
 * be of as many sentences; NaN where there is a NaN. */
bool report_difference(mha_context *ctx, const char *path, float (*embeddings)[ENCODER_WIDTH],
                       int64_t count, double *largest, struct reason *why);

/* Copies text to `room` bytes, cut to fit `columns` of a terminal; what cannot be shown becomes a
 * blank or U+FFFD. Returns the columns used. */
int report_fit(const char *text, size_t bytes, int columns, char *fitted, size_t room);

#endif
