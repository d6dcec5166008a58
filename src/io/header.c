/*
 * jsmn cuts the text into tokens. What it lets pass (missing and doubled commas, values without
 * keys) is refused here: a cursor follows the grammar of this one kind of object, takes each mark
 * and each token in turn, and accounts for every byte in between. Parent links, and the bound on
 * nesting that is checked before, keep jsmn linear: without them each closing bracket costs a
 * search through all tokens.
 */
#define JSMN_STATIC
#define JSMN_STRICT
#define JSMN_PARENT_LINKS
#include <jsmn.h>

#include "io/header.h"

#include <inttypes.h>
#include <string.h>

#include "io/text.h"
#include "tensor.h"

/* Objects in the object, arrays in these. */
#define DEEPEST 3

static const struct dtype {
    char name[12];
    int32_t bits;
    int32_t type; /* 0: listed, but not to be read */
} dtypes[] = {
    { "F32", 32, MHA_FLOAT32 },
    { "F16", 16, MHA_FLOAT16 },
    { "BF16", 16, MHA_BFLOAT16 },
    { "F64", 64, MHA_FLOAT64 },
    { "I64", 64, MHA_INT64 },
    { "I32", 32, MHA_INT32 },
    { "I16", 16, MHA_INT16 },
    { "I8", 8, MHA_INT8 },
    { "U64", 64, MHA_UINT64 },
    { "U32", 32, MHA_UINT32 },
    { "U16", 16, MHA_UINT16 },
    { "U8", 8, MHA_UINT8 },
    { "BOOL", 8, MHA_BOOL },
    { "F8_E5M2", 8, 0 },
    { "F8_E4M3", 8, 0 },
    { "F8_E8M0", 8, 0 },
    { "F8_E4M3FNUZ", 8, 0 },
    { "F8_E5M2FNUZ", 8, 0 },
    { "C64", 64, 0 },
    { "F4", 4, 0 },
    { "F6_E2M3", 6, 0 },
    { "F6_E3M2", 6, 0 },
};

/* ---- the cursor ------------------------------------------------------------------------------ */

struct cursor {
    mha_context *ctx;
    struct mha_shown_text path; /* for messages */
    char *text;
    int64_t bytes;
    int64_t at; /* first byte not accounted for */
    const jsmntok_t *tokens;
    int64_t token_count;
    int64_t next; /* first token not accounted for */
};

static mha_status expect(const struct cursor *cursor, bool condition, const char *wanted)
{
    mha_status status = MHA_OK;
    REQUIRE(cursor->ctx, condition, MHA_ERROR_FORMAT,
            "\"%s\": byte %" PRId64 " of the header: wanted %s", cursor->path.text, cursor->at,
            wanted);
done:
    return status;
}

static void skip_blanks(struct cursor *cursor)
{
    for (; cursor->at < cursor->bytes; cursor->at++) {
        char c = cursor->text[cursor->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r')
            break;
    }
}

/* Takes `mark` if it comes next. */
static bool see(struct cursor *cursor, char mark)
{
    skip_blanks(cursor);
    bool seen = cursor->at < cursor->bytes && cursor->text[cursor->at] == mark;
    cursor->at += seen;
    return seen;
}

/* Takes a token that must begin right here. Of a string or number all is taken, of an object or
 * array the opening bracket. */
static mha_status take(struct cursor *cursor, jsmntype_t type, const char *wanted,
                       const jsmntok_t **taken)
{
    mha_status status = MHA_OK;
    skip_blanks(cursor);
    const jsmntok_t *token = &cursor->tokens[cursor->next];
    int quote = type == JSMN_STRING;
    TRY(expect(cursor,
               cursor->next < cursor->token_count && token->type == type
                   && token->start - quote == cursor->at,
               wanted));
    bool opens = type == JSMN_OBJECT || type == JSMN_ARRAY;
    cursor->at = opens ? token->start + 1 : token->end + quote;
    cursor->next++;
    *taken = token;
done:
    return status;
}

/* Takes a string; it is resolved in place and closed by a zero byte at or before its quote. That is
 * its only one, unless `zero_allowed`. */
static mha_status take_string(struct cursor *cursor, const char *wanted, bool zero_allowed,
                              const char **string)
{
    mha_status status = MHA_OK;
    const jsmntok_t *token;
    int64_t length = 0;
    TRY(take(cursor, JSMN_STRING, wanted, &token));
    char *text = cursor->text + token->start;
    TRY(expect(cursor, mha_text_unescape(text, token->end - token->start, &length),
               "UTF-8 and JSON escapes in the string before"));
    text[length] = 0;
    TRY(expect(cursor, zero_allowed || (int64_t)strlen(text) == length,
               "no zero character in the string before"));
    *string = text;
done:
    return status;
}

static mha_status take_number(struct cursor *cursor, uint64_t *number)
{
    mha_status status = MHA_OK;
    const jsmntok_t *token;
    TRY(take(cursor, JSMN_PRIMITIVE, "a number", &token));
    TRY(expect(cursor,
               mha_text_uint64(cursor->text + token->start, token->end - token->start, number),
               "a whole number below 2^64 before"));
done:
    return status;
}

/* ---- one tensor ------------------------------------------------------------------------------ */

/* What a tensor's object says. */
struct claim {
    const struct dtype *dtype;
    int32_t rank;
    int64_t shape[MHA_MAX_RANK];
    uint64_t offsets[2];
};

static mha_status take_dtype(struct cursor *cursor, struct claim *claim)
{
    mha_status status = MHA_OK;
    const char *name;
    TRY(take_string(cursor, "the name of a dtype", false, &name));
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(name, dtypes[i].name) == 0)
            claim->dtype = &dtypes[i];
    REQUIRE(cursor->ctx, claim->dtype, MHA_ERROR_FORMAT, "\"%s\" has the unknown dtype \"%s\"",
            cursor->path.text, mha_text_show(name).text);
done:
    return status;
}

static mha_status take_shape(struct cursor *cursor, struct claim *claim)
{
    mha_status status = MHA_OK;
    const jsmntok_t *token;
    TRY(take(cursor, JSMN_ARRAY, "an array of sizes", &token));
    if (see(cursor, ']'))
        goto done;
    do {
        uint64_t size;
        TRY(take_number(cursor, &size));
        REQUIRE(cursor->ctx, claim->rank < MHA_MAX_RANK, MHA_ERROR_LIMIT,
                "\"%s\": byte %" PRId64 " of the header: more than %d axes", cursor->path.text,
                cursor->at, MHA_MAX_RANK);
        TRY(expect(cursor, size <= INT64_MAX, "a size below 2^63 before"));
        claim->shape[claim->rank++] = (int64_t)size;
    } while (see(cursor, ','));
    TRY(expect(cursor, see(cursor, ']'), "] or a comma"));
done:
    return status;
}

static mha_status take_offsets(struct cursor *cursor, struct claim *claim)
{
    mha_status status = MHA_OK;
    const jsmntok_t *token;
    TRY(take(cursor, JSMN_ARRAY, "an array of two offsets", &token));
    TRY(take_number(cursor, &claim->offsets[0]));
    TRY(expect(cursor, see(cursor, ','), "a comma and the second offset"));
    TRY(take_number(cursor, &claim->offsets[1]));
    TRY(expect(cursor, see(cursor, ']'), "]"));
done:
    return status;
}

static mha_status take_field(struct cursor *cursor, struct claim *claim, unsigned *seen)
{
    mha_status status = MHA_OK;
    static const char *const keys[] = { "dtype", "shape", "data_offsets" };
    const char *key;
    TRY(take_string(cursor, "a key", false, &key));
    int which = 0;
    while (which < 3 && strcmp(key, keys[which]) != 0)
        which++;
    REQUIRE(cursor->ctx, which < 3, MHA_ERROR_FORMAT,
            "\"%s\" has the key \"%s\" in a tensor, wanted dtype, shape and data_offsets",
            cursor->path.text, mha_text_show(key).text);
    REQUIRE(cursor->ctx, !(*seen >> which & 1), MHA_ERROR_FORMAT,
            "\"%s\": byte %" PRId64 " of the header: the key %s is there twice", cursor->path.text,
            cursor->at, keys[which]);
    *seen |= 1u << which;
    TRY(expect(cursor, see(cursor, ':'), "a colon"));
    TRY(which == 0   ? take_dtype(cursor, claim)
        : which == 1 ? take_shape(cursor, claim)
                     : take_offsets(cursor, claim));
done:
    return status;
}

/* Do dtype, shape, offsets and file agree? Fills the entry. */
static mha_status settle(struct cursor *cursor, const struct mha_header_source *source,
                         const struct claim *claim, struct mha_entry *entry)
{
    mha_status status = MHA_OK;
    mha_context *ctx = cursor->ctx;
    struct mha_shown_text name = mha_text_show(entry->name);
    struct mha_stored stored = { .type = claim->dtype->type, .rank = claim->rank };
    memcpy(stored.shape, claim->shape, sizeof stored.shape);
    entry->dtype = claim->dtype->name;
    REQUIRE(ctx, mha_convert_bytes(&stored, claim->dtype->bits, &entry->bytes), MHA_ERROR_FORMAT,
            "\"%s\": tensor \"%s\" has a shape that is no number of bytes in %s", cursor->path.text,
            name.text, entry->dtype);
    uint64_t begin = claim->offsets[0], end = claim->offsets[1];
    REQUIRE(ctx, begin <= end && end <= (uint64_t)source->data_bytes, MHA_ERROR_FORMAT,
            "\"%s\": tensor \"%s\" lies at %" PRIu64 " to %" PRIu64 " of %" PRId64 " bytes of data",
            cursor->path.text, name.text, begin, end, source->data_bytes);
    REQUIRE(ctx, (int64_t)(end - begin) == entry->bytes, MHA_ERROR_FORMAT,
            "\"%s\": tensor \"%s\" has %" PRIu64 " bytes of data, wanted %" PRId64
            " by its shape and dtype",
            cursor->path.text, name.text, end - begin, entry->bytes);
    stored.offset = source->data_offset + (int64_t)begin;
    entry->stored = stored;
done:
    return status;
}

static mha_status take_tensor(struct cursor *cursor, const struct mha_header_source *source,
                              struct mha_entry *entry)
{
    mha_status status = MHA_OK;
    const jsmntok_t *token;
    struct claim claim = { 0 };
    unsigned seen = 0;
    TRY(take(cursor, JSMN_OBJECT, "an object that describes a tensor", &token));
    do
        TRY(take_field(cursor, &claim, &seen));
    while (see(cursor, ','));
    TRY(expect(cursor, see(cursor, '}'), "} or a comma"));
    TRY(expect(cursor, seen == 7, "dtype, shape and data_offsets in the object before"));
    TRY(settle(cursor, source, &claim, entry));
done:
    return status;
}

/* ---- the whole header ------------------------------------------------------------------------ */

/* "__metadata__": strings by name, which mean nothing here. */
static mha_status take_metadata(struct cursor *cursor)
{
    mha_status status = MHA_OK;
    const jsmntok_t *token;
    const char *string;
    TRY(take(cursor, JSMN_OBJECT, "an object of strings", &token));
    if (see(cursor, '}'))
        goto done;
    do {
        TRY(take_string(cursor, "a key", true, &string));
        TRY(expect(cursor, see(cursor, ':'), "a colon"));
        TRY(take_string(cursor, "a string", true, &string));
    } while (see(cursor, ','));
    TRY(expect(cursor, see(cursor, '}'), "} or a comma"));
done:
    return status;
}

static mha_status take_header(struct cursor *cursor, const struct mha_header_source *source,
                              struct mha_entry *entries, int64_t *count)
{
    mha_status status = MHA_OK;
    const jsmntok_t *token;
    bool metadata = false;
    *count = 0;
    TRY(take(cursor, JSMN_OBJECT, "an object", &token));
    if (!see(cursor, '}')) {
        do {
            const char *name;
            TRY(take_string(cursor, "a name", false, &name));
            TRY(expect(cursor, see(cursor, ':'), "a colon"));
            if (strcmp(name, "__metadata__") == 0) {
                TRY(expect(cursor, !metadata, "__metadata__ only once"));
                metadata = true;
                TRY(take_metadata(cursor));
            } else {
                entries[*count].name = name;
                TRY(take_tensor(cursor, source, &entries[*count]));
                (*count)++;
            }
        } while (see(cursor, ','));
        TRY(expect(cursor, see(cursor, '}'), "} or a comma"));
    }
    skip_blanks(cursor);
    TRY(expect(cursor, cursor->at == cursor->bytes, "nothing but blanks after the object"));
done:
    return status;
}

/* Refuses what nests too deep. (A zero byte, where the text ends for jsmn, is met later: no token
 * and no mark accounts for it.) */
static mha_status check_nesting(struct cursor *cursor)
{
    mha_status status = MHA_OK;
    int depth = 0;
    bool in_string = false;
    TRY(expect(cursor, cursor->text[0] == '{', "{"));
    for (int64_t i = 0; i < cursor->bytes; i++) {
        char c = cursor->text[i];
        cursor->at = i;
        if (c == '"')
            in_string = !in_string;
        else if (in_string)
            i += c == '\\';
        else if (c == '{' || c == '[')
            TRY(expect(cursor, ++depth <= DEEPEST, "no deeper nesting"));
        else if (c == '}' || c == ']')
            depth--;
    }
    cursor->at = 0;
done:
    return status;
}

/* ---- order ----------------------------------------------------------------------------------- */

typedef int compare_entries(const struct mha_entry *a, const struct mha_entry *b);

static int compare_places(const struct mha_entry *a, const struct mha_entry *b)
{
    if (a->stored.offset != b->stored.offset)
        return a->stored.offset < b->stored.offset ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? -1 : 1;
    return a < b ? -1 : a > b; /* empty tensors: in the order of the header */
}

static int compare_names(const struct mha_entry *a, const struct mha_entry *b)
{
    return strcmp(a->name, b->name);
}

static void sift(const struct mha_entry **list, int64_t root, int64_t n, compare_entries *compare)
{
    for (int64_t child = 2 * root + 1; child < n; child = 2 * root + 1) {
        if (child + 1 < n && compare(list[child], list[child + 1]) < 0)
            child++;
        if (compare(list[root], list[child]) >= 0)
            return;
        const struct mha_entry *swap = list[root];
        list[root] = list[child];
        list[child] = swap;
        root = child;
    }
}

/* Heap sort: n log n for whatever names a file makes up, and in place; qsort may take memory from
 * the C library. */
static void sort(const struct mha_entry **list, int64_t n, compare_entries *compare)
{
    for (int64_t root = n / 2 - 1; root >= 0; root--)
        sift(list, root, n, compare);
    for (int64_t last = n - 1; last > 0; last--) {
        const struct mha_entry *swap = list[0];
        list[0] = list[last];
        list[last] = swap;
        sift(list, 0, last, compare);
    }
}

/* ---- from text to entries -------------------------------------------------------------------- */

/* The data must follow each other from the first byte to the last. */
static mha_status check_tiling(const struct cursor *cursor, const struct mha_header_source *source,
                               const struct mha_entry *const *places, int64_t n)
{
    mha_status status = MHA_OK;
    int64_t end = source->data_offset, file_end = end + source->data_bytes;
    for (int64_t i = 0; i < n; i++) {
        int64_t begin = places[i]->stored.offset;
        struct mha_shown_text name = mha_text_show(places[i]->name);
        REQUIRE(cursor->ctx, begin >= end, MHA_ERROR_FORMAT,
                "\"%s\": tensor \"%s\" overlaps the one before by %" PRId64 " bytes",
                cursor->path.text, name.text, end - begin);
        REQUIRE(cursor->ctx, begin == end, MHA_ERROR_FORMAT,
                "\"%s\": tensor \"%s\" leaves a hole of %" PRId64 " bytes before it",
                cursor->path.text, name.text, begin - end);
        end += places[i]->bytes;
    }
    REQUIRE(cursor->ctx, end == file_end, MHA_ERROR_FORMAT,
            "\"%s\" has %" PRId64 " bytes behind its last tensor", cursor->path.text,
            file_end - end);
done:
    return status;
}

/* Copies the entries, in the order given, and their names into the header's block. */
static mha_status keep(const struct cursor *cursor, const struct mha_entry *const *order, int64_t n,
                       struct mha_header *header)
{
    mha_status status = MHA_OK;
    int64_t name_bytes = 0;
    for (int64_t i = 0; i < n; i++)
        name_bytes += (int64_t)strlen(order[i]->name) + 1;
    struct mha_header kept = { .count = n };
    struct mha_arena arena;
    char *names = NULL;
    for (int pass = 0; pass < 2; pass++) {
        arena = (struct mha_arena){ .base = kept.block };
        kept.entries = mha_arena_take(&arena, n, sizeof *kept.entries);
        kept.by_name = mha_arena_take(&arena, n, sizeof *kept.by_name);
        names = mha_arena_take(&arena, name_bytes, 1);
        kept.block_bytes = arena.used;
        if (pass == 0)
            TRY(mha_context_allocate(cursor->ctx, "the names of tensors", arena.used, &kept.block));
    }
    for (int64_t i = 0; i < n; i++) {
        kept.entries[i] = *order[i];
        kept.entries[i].name = names;
        kept.by_name[i] = &kept.entries[i];
        size_t length = strlen(order[i]->name) + 1;
        memcpy(names, order[i]->name, length);
        names += length;
    }
    sort(kept.by_name, n, compare_names);
    *header = kept;
done:
    return status;
}

static mha_status check_names(const struct cursor *cursor, const struct mha_header *header)
{
    mha_status status = MHA_OK;
    for (int64_t i = 1; i < header->count; i++)
        REQUIRE(cursor->ctx, compare_names(header->by_name[i - 1], header->by_name[i]) != 0,
                MHA_ERROR_FORMAT, "\"%s\" has two tensors with the name \"%s\"", cursor->path.text,
                mha_text_show(header->by_name[i]->name).text);
done:
    return status;
}

/* What is needed until the header is known. */
struct draft {
    jsmntok_t *tokens;
    struct mha_entry *entries; /* in the order of the text */
    const struct mha_entry **order;
    void *block;
    int64_t block_bytes;
};

/* Cuts the text into tokens: once to count them, once to keep them. */
static mha_status tokenize(struct cursor *cursor, struct draft *draft)
{
    mha_status status = MHA_OK;
    jsmn_parser parser;
    TRY(check_nesting(cursor));
    jsmn_init(&parser);
    int n = jsmn_parse(&parser, cursor->text, (size_t)cursor->bytes, NULL, 0);
    cursor->at = parser.pos;
    TRY(expect(cursor, n > 0, "JSON"));
    /* A name, an object, three keys, a dtype, two arrays and two offsets: a tensor takes ten tokens
     * before the next one can start. */
    int64_t most = n / 10 + 1;
    for (int pass = 0; pass < 2; pass++) {
        struct mha_arena arena = { .base = draft->block };
        draft->tokens = mha_arena_take(&arena, n, sizeof *draft->tokens);
        draft->entries = mha_arena_take(&arena, most, sizeof *draft->entries);
        draft->order = mha_arena_take(&arena, most, sizeof *draft->order);
        draft->block_bytes = arena.used;
        if (pass == 0)
            TRY(mha_context_allocate(cursor->ctx, "the tokens of a header", arena.used,
                                     &draft->block));
    }
    jsmn_init(&parser);
    n = jsmn_parse(&parser, cursor->text, (size_t)cursor->bytes, draft->tokens, (unsigned)n);
    cursor->at = parser.pos;
    TRY(expect(cursor, n > 0, "JSON"));
    cursor->tokens = draft->tokens;
    cursor->token_count = n;
    cursor->at = 0;
done:
    return status;
}

mha_status mha_header_parse(mha_context *ctx, const struct mha_header_source *source,
                            struct mha_header *header)
{
    mha_status status = MHA_OK;
    struct draft draft = { 0 };
    int64_t count = 0;
    struct cursor cursor = {
        .ctx = ctx,
        .path = mha_text_show(source->path),
        .text = source->text,
        .bytes = source->text_bytes,
    };
    *header = (struct mha_header){ 0 };
    TRY(tokenize(&cursor, &draft));
    TRY(take_header(&cursor, source, draft.entries, &count));
    for (int64_t i = 0; i < count; i++)
        draft.order[i] = &draft.entries[i];
    sort(draft.order, count, compare_places);
    TRY(check_tiling(&cursor, source, draft.order, count));
    TRY(keep(&cursor, draft.order, count, header));
    TRY(check_names(&cursor, header));
done:
    mha_memory_release(&ctx->allocator, draft.block, draft.block_bytes);
    if (status != MHA_OK)
        mha_header_release(&ctx->allocator, header);
    return status;
}

void mha_header_release(const struct mha_allocator *allocator, struct mha_header *header)
{
    mha_memory_release(allocator, header->block, header->block_bytes);
    *header = (struct mha_header){ 0 };
}

const struct mha_entry *mha_header_find(const struct mha_header *header, const char *prefix,
                                        const char *name)
{
    size_t prefix_length = strlen(prefix);
    int64_t low = 0, high = header->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const struct mha_entry *entry = header->by_name[middle];
        int order = strncmp(prefix, entry->name, prefix_length);
        if (order == 0)
            order = strcmp(name, entry->name + prefix_length);
        if (order == 0)
            return entry;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}
