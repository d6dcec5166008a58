/* Text in files: numbers, strings and names, read and shown without regard to any locale. */
#ifndef MHA_IO_TEXT_H
#define MHA_IO_TEXT_H

#include "common.h"

/* A name from a file or a caller as a message may show it: printable ASCII, everything else as
 * \xNN, cut with "..." where it is long. By value: it needs no memory that could run out. */
struct mha_shown_text {
    char text[128];
};
struct mha_shown_text mha_text_show(const char *name);

/* The whole text as a decimal number: digits only, no sign, no leading zero, no wrap-around. */
bool mha_text_uint64(const char *text, int64_t length, uint64_t *value);

/*
 * Resolves the escapes of what stands between the quotes of a JSON string, in place, which never
 * lengthens it. False unless the result is valid UTF-8 and no control character stood there bare;
 * a \u0000 becomes a zero byte.
 */
bool mha_text_unescape(char *text, int64_t length, int64_t *new_length);

#endif
