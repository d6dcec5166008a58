#include "wordpiece.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* A longer word is not spelled but unknown. */
enum { WORD_CHARACTERS = 100, WORD_BYTES = 4 * WORD_CHARACTERS };

enum { PAD, UNK, CLS, SEP, MASK, SPECIALS };
static const char *const special_texts[SPECIALS] = { "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]" };

struct piece {
    const char *text;
    size_t bytes;
    int32_t id;
};

struct wordpiece {
    char *file;           /* the whole vocabulary, each line closed by a NUL */
    struct piece *pieces; /* by number */
    struct piece *sorted; /* the same, by text */
    int32_t count;
    int32_t special[SPECIALS];
};

/* One text on its way to numbers. */
struct encoding {
    const struct wordpiece *wordpiece;
    int32_t *ids;
    int32_t count;
    int32_t room;
    char word[WORD_BYTES]; /* the word so far, without what goes beyond WORD_CHARACTERS */
    size_t word_bytes;
    size_t word_characters;
};

/* ---- The vocabulary ------------------------------------------------------------------------- */

static int compare_pieces(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The number of a piece, -1 when there is none of that text. */
static int32_t find_piece(const struct wordpiece *wordpiece, const char *text, size_t bytes)
{
    struct piece key = { .text = text, .bytes = bytes };
    const struct piece *found = bsearch(&key, wordpiece->sorted, (size_t)wordpiece->count,
                                        sizeof key, compare_pieces);
    return found ? found->id : -1;
}

static bool read_file(const char *path, char **text, size_t *bytes, struct reason *why)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return failed(why, "%s: %s", path, strerror(errno));
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    bool known = size >= 0 && size < INT32_MAX && fseek(file, 0, SEEK_SET) == 0;
    *bytes = known ? (size_t)size : 0;
    *text = malloc(*bytes + 1);
    bool read = known && *text && fread(*text, 1, *bytes, file) == *bytes;
    fclose(file);
    if (*text)
        (*text)[*bytes] = '\0';
    return read || failed(why, "%s: cannot be read", path);
}

/* Cuts the file into lines; a last line need not be closed, and lines may end in \r\n. */
static void cut_lines(struct wordpiece *wordpiece, size_t bytes)
{
    const char *end = wordpiece->file + bytes;
    for (char *line = wordpiece->file, *next; line < end; line = next + 1) {
        next = memchr(line, '\n', (size_t)(end - line));
        if (!next)
            next = wordpiece->file + bytes;
        size_t length = (size_t)(next - line);
        if (length && line[length - 1] == '\r')
            length--;
        line[length] = '\0';
        wordpiece->pieces[wordpiece->count] = (struct piece){ .text = line,
                                                              .bytes = length,
                                                              .id = wordpiece->count };
        wordpiece->count++;
    }
}

static bool load(struct wordpiece *wordpiece, const char *path, struct reason *why)
{
    size_t bytes = 0, lines = 1;
    if (!read_file(path, &wordpiece->file, &bytes, why))
        return false;
    for (size_t i = 0; i < bytes; i++)
        lines += wordpiece->file[i] == '\n';
    wordpiece->pieces = calloc(lines, sizeof *wordpiece->pieces);
    wordpiece->sorted = calloc(lines, sizeof *wordpiece->sorted);
    if (!wordpiece->pieces || !wordpiece->sorted)
        return failed(why, "%s: out of memory", path);

    cut_lines(wordpiece, bytes);
    size_t count = (size_t)wordpiece->count;
    memcpy(wordpiece->sorted, wordpiece->pieces, count * sizeof *wordpiece->pieces);
    qsort(wordpiece->sorted, count, sizeof *wordpiece->sorted, compare_pieces);
    for (int i = 0; i < SPECIALS; i++) {
        wordpiece->special[i] = find_piece(wordpiece, special_texts[i], strlen(special_texts[i]));
        if (wordpiece->special[i] < 0)
            return failed(why, "%s: no vocabulary of BERT's: it lacks %s", path, special_texts[i]);
    }
    return true;
}

bool wordpiece_open(const char *path, struct wordpiece **wordpiece, struct reason *why)
{
    *wordpiece = calloc(1, sizeof **wordpiece);
    if (!*wordpiece)
        return failed(why, "%s: out of memory", path);
    if (load(*wordpiece, path, why))
        return true;
    wordpiece_close(*wordpiece);
    *wordpiece = NULL;
    return false;
}

void wordpiece_close(struct wordpiece *wordpiece)
{
    if (!wordpiece)
        return;
    free(wordpiece->file);
    free(wordpiece->pieces);
    free(wordpiece->sorted);
    free(wordpiece);
}

int32_t wordpiece_count(const struct wordpiece *wordpiece)
{
    return wordpiece->count;
}

const char *wordpiece_text(const struct wordpiece *wordpiece, int32_t id)
{
    assert(id >= 0 && id < wordpiece->count);
    return wordpiece->pieces[id].text;
}

int32_t wordpiece_padding(const struct wordpiece *wordpiece)
{
    return wordpiece->special[PAD];
}

/* ---- Kinds of characters -------------------------------------------------------------------- */

static bool is_blank(int32_t c)
{
    utf8proc_category_t category = utf8proc_category(c);
    return c == '\t' || c == '\n' || c == '\r' || category == UTF8PROC_CATEGORY_ZS
           || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

/* Control and format characters, private ones, and the sign for what could not be decoded. */
static bool is_noise(int32_t c)
{
    utf8proc_category_t category = utf8proc_category(c);
    return c == 0xFFFD || category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF
           || category == UTF8PROC_CATEGORY_CO || category == UTF8PROC_CATEGORY_CS;
}

/* BERT counts all of ASCII that is neither letter nor digit, "$" and "+" too. */
static bool is_punctuation(int32_t c)
{
    if (c < 128)
        return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96)
               || (c >= 123 && c <= 126);
    utf8proc_category_t category = utf8proc_category(c);
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

/* The blocks of ideographs that are words of their own. The last but one begins 256 characters late
 * in the tokenizer that published models are used with; to agree with it counts for more here. */
static bool is_ideograph(int32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF)
           || (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B81F)
           || (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF)
           || (c >= 0x2F800 && c <= 0x2FA1F);
}

/* ---- Words to pieces ------------------------------------------------------------------------ */

static void put(struct encoding *encoding, int32_t id)
{
    if (encoding->count < encoding->room)
        encoding->ids[encoding->count++] = id;
}

/* The longest piece that begins the word, then the longest that goes on, and so on. Returns how
 * many there are, 0 when the word cannot be spelled. */
static int spell(const struct encoding *encoding, int32_t ids[WORD_CHARACTERS])
{
    char text[2 + WORD_BYTES] = "##"; /* a piece inside a word is listed with this before it */
    const char *word = encoding->word;
    int count = 0;
    for (size_t start = 0, end; start < encoding->word_bytes; start = end) {
        int32_t id = -1;
        for (end = encoding->word_bytes; end > start; end--) {
            if (end < encoding->word_bytes && (word[end] & 0xC0) == 0x80)
                continue; /* inside a character */
            memcpy(text + 2, word + start, end - start);
            id = start ? find_piece(encoding->wordpiece, text, 2 + end - start)
                       : find_piece(encoding->wordpiece, text + 2, end);
            if (id >= 0)
                break;
        }
        if (id < 0)
            return 0;
        ids[count++] = id;
    }
    return count;
}

static void end_word(struct encoding *encoding)
{
    int32_t ids[WORD_CHARACTERS];
    if (encoding->word_characters == 0)
        return;
    int count = encoding->word_characters > WORD_CHARACTERS ? 0 : spell(encoding, ids);
    for (int i = 0; i < count; i++)
        put(encoding, ids[i]);
    if (count == 0)
        put(encoding, encoding->wordpiece->special[UNK]);
    encoding->word_bytes = encoding->word_characters = 0;
}

static void add_to_word(struct encoding *encoding, int32_t c)
{
    if (encoding->word_characters < WORD_CHARACTERS)
        encoding->word_bytes += (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)encoding->word
                                                                    + encoding->word_bytes);
    encoding->word_characters++;
}

/* ---- Text to words -------------------------------------------------------------------------- */

/* Drops noise, makes every blank a space, and puts spaces around ideographs. `cleaned` has room for
 * twice the bytes: an ideograph has three at least and gets two more. Returns its length. */
static utf8proc_ssize_t clean(const utf8proc_uint8_t *text, size_t bytes, utf8proc_uint8_t *cleaned)
{
    utf8proc_uint8_t *to = cleaned;
    for (size_t at = 0; at < bytes;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t length = utf8proc_iterate(text + at, (utf8proc_ssize_t)(bytes - at), &c);
        at += length > 0 ? (size_t)length : 1;
        if (length <= 0)
            continue;
        if (is_blank(c)) {
            *to++ = ' ';
        } else if (is_ideograph(c)) {
            *to++ = ' ';
            to += utf8proc_encode_char(c, to);
            *to++ = ' ';
        } else if (!is_noise(c)) {
            to += utf8proc_encode_char(c, to);
        }
    }
    return to - cleaned;
}

/* Encodes text in which no special token is written. */
static bool encode_plain(struct encoding *encoding, const char *text, size_t bytes)
{
    utf8proc_uint8_t *cleaned = malloc(2 * bytes + 1), *decomposed = NULL;
    utf8proc_ssize_t length = UTF8PROC_ERROR_NOMEM;
    if (cleaned)
        length = utf8proc_map(cleaned, clean((const utf8proc_uint8_t *)text, bytes, cleaned),
                              &decomposed, UTF8PROC_DECOMPOSE);
    for (utf8proc_ssize_t at = 0; at < length && encoding->count < encoding->room;) {
        utf8proc_int32_t c;
        at += utf8proc_iterate(decomposed + at, length - at, &c);
        if (utf8proc_category(c) == UTF8PROC_CATEGORY_MN)
            continue; /* an accent, now that letters are decomposed */
        c = utf8proc_tolower(c);
        bool alone = is_punctuation(c);
        if (alone || c == ' ')
            end_word(encoding);
        if (c != ' ')
            add_to_word(encoding, c);
        if (alone)
            end_word(encoding);
    }
    end_word(encoding);
    free(decomposed);
    free(cleaned);
    return length >= 0;
}

/* Which special token is written at the start of the text; SPECIALS: none. */
static int special_at(const char *text, size_t bytes)
{
    int i = 0;
    while (i < SPECIALS
           && (bytes < strlen(special_texts[i])
               || memcmp(text, special_texts[i], strlen(special_texts[i])) != 0))
        i++;
    return i;
}

bool wordpiece_encode(const struct wordpiece *wordpiece, const char *text, size_t bytes,
                      int32_t limit, int32_t *ids, int32_t *count, struct reason *why)
{
    assert(limit >= 2);
    struct encoding encoding = { .wordpiece = wordpiece, .ids = ids, .room = limit - 1 };
    bool ok = true;
    size_t plain = 0, at = 0;
    put(&encoding, wordpiece->special[CLS]);
    while (ok && at < bytes && encoding.count < encoding.room) {
        int special = text[at] == '[' ? special_at(text + at, bytes - at) : SPECIALS;
        if (special == SPECIALS) {
            at++;
            continue;
        }
        ok = encode_plain(&encoding, text + plain, at - plain);
        put(&encoding, wordpiece->special[special]);
        plain = at += strlen(special_texts[special]);
    }
    ok = ok && encode_plain(&encoding, text + plain, at - plain);
    if (!ok)
        return failed(why, "out of memory for a text of %zu bytes", bytes);
    encoding.room = limit;
    put(&encoding, wordpiece->special[SEP]);
    *count = encoding.count;
    return true;
}
