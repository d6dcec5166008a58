#include "io/text.h"

#include <string.h>

struct mha_shown_text mha_text_show(const char *name)
{
    static const char digits[] = "0123456789abcdef";
    struct mha_shown_text shown;
    char *to = shown.text;
    const char *room = shown.text + sizeof shown.text - sizeof "\\xNN...";
    for (; *name && to < room; name++) {
        unsigned char c = (unsigned char)*name;
        if (c < 0x20 || c > 0x7e) {
            *to++ = '\\';
            *to++ = 'x';
            *to++ = digits[c >> 4];
            *to++ = digits[c & 15];
            continue;
        }
        if (c == '"' || c == '\\')
            *to++ = '\\';
        *to++ = (char)c;
    }
    memcpy(to, *name ? "..." : "", *name ? sizeof "..." : 1);
    return shown;
}

bool mha_text_uint64(const char *text, int64_t length, uint64_t *value)
{
    uint64_t number = 0;
    if (length < 1 || (length > 1 && text[0] == '0'))
        return false;
    for (int64_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9' || __builtin_mul_overflow(number, 10u, &number)
            || __builtin_add_overflow(number, (uint64_t)(text[i] - '0'), &number))
            return false;
    }
    *value = number;
    return true;
}

/* ---- JSON strings ---------------------------------------------------------------------------- */

/* Bytes of the UTF-8 sequence of several bytes that `text` starts with, 0 when it is none. */
static int64_t sequence_length(const unsigned char *text, int64_t left)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 }; /* of each length */
    int64_t length = text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : 2;
    if (text[0] < 0xc2 || text[0] > 0xf4 || left < length)
        return 0;
    uint32_t code = text[0] & (0xffu >> (length + 1));
    for (int64_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (text[i] & 0x3fu);
    }
    bool surrogate = code >= 0xd800 && code <= 0xdfff;
    return code >= least[length] && code <= 0x10ffff && !surrogate ? length : 0;
}

static char *put_code(char *to, uint32_t code)
{
    if (code < 0x80) {
        *to++ = (char)code;
        return to;
    }
    int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = { 0, 0xc0, 0xe0, 0xf0 };
    *to++ = (char)(lead[more] | code >> 6 * more);
    while (more-- > 0)
        *to++ = (char)(0x80 | (code >> 6 * more & 0x3f));
    return to;
}

static bool take_hex(const char *text, int64_t left, uint32_t *unit)
{
    if (left < 4)
        return false;
    *unit = 0;
    for (int i = 0; i < 4; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return false;
        *unit = *unit << 4 | (uint32_t)digit;
    }
    return true;
}

/* What follows a backslash, as a code point; returns its length, 0 when it is no escape. Beyond
 * U+FFFF JSON writes two escapes, a high and a low surrogate. */
static int64_t take_escape(const char *text, int64_t left, uint32_t *code)
{
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const char *letter = left > 0 && text[0] ? strchr(letters, text[0]) : NULL;
    if (letter) {
        *code = (uint32_t)meant[letter - letters];
        return 1;
    }
    if (left < 1 || text[0] != 'u' || !take_hex(text + 1, left - 1, code))
        return 0;
    if (*code < 0xd800 || *code > 0xdfff)
        return 5;
    uint32_t low = 0;
    if (*code > 0xdbff || left < 7 || text[5] != '\\' || text[6] != 'u'
        || !take_hex(text + 7, left - 7, &low) || low < 0xdc00 || low > 0xdfff)
        return 0;
    *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
    return 11;
}

bool mha_text_unescape(char *text, int64_t length, int64_t *new_length)
{
    char *to = text;
    for (int64_t at = 0; at < length;) {
        unsigned char c = (unsigned char)text[at];
        int64_t taken = 1;
        uint32_t code = c;
        if (c == '\\') {
            taken = take_escape(text + at + 1, length - at - 1, &code);
            if (taken == 0)
                return false;
            to = put_code(to, code);
            at += 1 + taken;
            continue;
        }
        if (c >= 0x80)
            taken = sequence_length((const unsigned char *)text + at, length - at);
        if (c < 0x20 || taken == 0)
            return false;
        memmove(to, text + at, (size_t)taken);
        to += taken;
        at += taken;
    }
    *new_length = to - text;
    return true;
}
