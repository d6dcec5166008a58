/*
 * The tokenizer of BERT's uncased models: text to the numbers of a vocabulary's pieces.
 *
 * Text is cleaned, lower-cased and freed of accents, split at blanks and around each punctuation
 * mark and Chinese character, and every word is spelled with the longest pieces there are:
 * "misuse" is mis ##use.
 */
#ifndef WORDPIECE_H
#define WORDPIECE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reason.h"

struct wordpiece;

/* Reads a vocabulary, one piece a line; a piece's number is that of its line, from 0. */
bool wordpiece_open(const char *path, struct wordpiece **wordpiece, struct reason *why);
void wordpiece_close(struct wordpiece *wordpiece);

/* How many pieces there are, the text of one of them, and the number of [PAD]. */
int32_t wordpiece_count(const struct wordpiece *wordpiece);
const char *wordpiece_text(const struct wordpiece *wordpiece, int32_t id);
int32_t wordpiece_padding(const struct wordpiece *wordpiece);

/*
 * Writes [CLS], the pieces of `bytes` bytes of UTF-8, and [SEP] to `ids`: at most `limit` (>= 2)
 * numbers, what does not fit being left out before [SEP]. Bytes that are not UTF-8 are passed over.
 * [CLS], [SEP], [PAD], [UNK] and [MASK], written just so in the text, stand for themselves. False
 * when memory runs out.
 */
bool wordpiece_encode(const struct wordpiece *wordpiece, const char *text, size_t bytes,
                      int32_t limit, int32_t *ids, int32_t *count, struct reason *why);

#endif
