/*
 * NumPy's .npy: "\x93NUMPY", version, length of the header, header, data.
 *
 * The header is the text of a Python dict. Only what NumPy writes, and harmless variants of it, is
 * taken: the three keys in any order and each once, either quote, blanks, a comma after the last
 * item. It is read through a small window rather than into memory of its own, because it is mostly
 * padding and these functions allocate nothing.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "io/convert.h"
#include "io/text.h"
#include "tensor.h"

/* Longest header to accept, which is also the longest that version 1 can express: versions 2 and 3
 * exist for records with many fields, which are refused anyway. */
#define HEADER_LIMIT 65536

static const struct {
    char code[3]; /* what follows the byte order */
    int32_t type;
} codes[] = {
    { "b1", MHA_BOOL },    { "?", MHA_BOOL },    { "i1", MHA_INT8 },    { "u1", MHA_UINT8 },
    { "i2", MHA_INT16 },   { "u2", MHA_UINT16 }, { "i4", MHA_INT32 },   { "u4", MHA_UINT32 },
    { "i8", MHA_INT64 },   { "u8", MHA_UINT64 }, { "f2", MHA_FLOAT16 }, { "f4", MHA_FLOAT32 },
    { "f8", MHA_FLOAT64 },
};

/* ---- the header's characters ----------------------------------------------------------------- */

struct reader {
    mha_context *ctx;
    const struct mha_file *file;
    struct mha_shown_text path; /* for messages */
    int64_t window_at;          /* file offset of the window */
    int64_t window_bytes;
    int64_t at;  /* file offset of the next character */
    int64_t end; /* file offset behind the header */
    char window[256];
};

/* The next character without taking it, 0 behind the last one; a zero byte in a file is refused as
 * any other odd character by whoever looks at it. */
static mha_status peek(struct reader *reader, char *c)
{
    mha_status status = MHA_OK;
    *c = 0;
    if (reader->at >= reader->end)
        goto done;
    if (reader->at >= reader->window_at + reader->window_bytes) {
        reader->window_at = reader->at;
        reader->window_bytes = min_i64(reader->end - reader->at, sizeof reader->window);
        TRY(mha_file_read(reader->ctx, reader->file, reader->at, reader->window,
                          reader->window_bytes));
    }
    *c = reader->window[reader->at - reader->window_at];
done:
    return status;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Like peek, after passing blanks. */
static mha_status peek_mark(struct reader *reader, char *c)
{
    mha_status status = MHA_OK;
    TRY(peek(reader, c));
    while (is_blank(*c)) {
        reader->at++;
        TRY(peek(reader, c));
    }
done:
    return status;
}

/* Takes `mark` if it comes next, after blanks. */
static mha_status see(struct reader *reader, char mark, bool *seen)
{
    mha_status status = MHA_OK;
    char c;
    TRY(peek_mark(reader, &c));
    *seen = c == mark;
    reader->at += *seen;
done:
    return status;
}

static mha_status expect(struct reader *reader, bool condition, const char *wanted)
{
    mha_status status = MHA_OK;
    REQUIRE(reader->ctx, condition, MHA_ERROR_FORMAT,
            "\"%s\": byte %" PRId64 " of the header: wanted %s", reader->path.text, reader->at,
            wanted);
done:
    return status;
}

static mha_status take_mark(struct reader *reader, char mark, const char *wanted)
{
    mha_status status = MHA_OK;
    bool seen;
    TRY(see(reader, mark, &seen));
    TRY(expect(reader, seen, wanted));
done:
    return status;
}

/* A string in either quote. Nothing that belongs here needs an escape. */
static mha_status take_string(struct reader *reader, char *text, size_t room)
{
    mha_status status = MHA_OK;
    char quote, c;
    size_t length = 0;
    TRY(peek_mark(reader, &quote));
    TRY(expect(reader, quote == '\'' || quote == '"', "a string"));
    reader->at++;
    for (;;) {
        TRY(peek(reader, &c));
        if (c == quote)
            break;
        TRY(expect(reader, c >= ' ' && c <= '~' && c != '\\', "a plain character"));
        TRY(expect(reader, length + 1 < room, "a shorter string"));
        text[length++] = c;
        reader->at++;
    }
    reader->at++;
    text[length] = 0;
done:
    return status;
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Letters, digits and underscores, as many as there are. */
static mha_status take_word(struct reader *reader, char *text, size_t room)
{
    mha_status status = MHA_OK;
    char c;
    size_t length = 0;
    TRY(peek_mark(reader, &c));
    while (is_word(c)) {
        TRY(expect(reader, length + 1 < room, "a shorter word or number"));
        text[length++] = c;
        reader->at++;
        TRY(peek(reader, &c));
    }
    text[length] = 0;
done:
    return status;
}

/* ---- the header's values --------------------------------------------------------------------- */

static mha_status take_descr(struct reader *reader, struct mha_stored *stored)
{
    mha_status status = MHA_OK;
    char text[64], c;
    TRY(peek_mark(reader, &c));
    REQUIRE(reader->ctx, c != '[', MHA_ERROR_TYPE,
            "\"%s\" holds records, wanted bool, integers or floats", reader->path.text);
    TRY(take_string(reader, text, sizeof text));
    char order = text[0];
    const char *code = text + (order != 0);
    if (strcmp(text, "?") == 0) { /* bool in its short form, which goes without an order */
        order = '|';
        code = text;
    }
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (strcmp(code, codes[i].code) == 0)
            stored->type = codes[i].type;
    int64_t bytes = mha_type_bytes(stored->type);
    REQUIRE(reader->ctx, bytes > 0, MHA_ERROR_TYPE,
            "\"%s\" has the descr \"%s\", wanted b1, i1 to i8, u1 to u8, f2, f4 or f8",
            reader->path.text, mha_text_show(text).text);
    /* "|" says that order does not matter, so it cannot stand before a type of several bytes. */
    REQUIRE(reader->ctx,
            order == '<' || order == '>' || order == '=' || (order == '|' && bytes == 1),
            MHA_ERROR_TYPE,
            "\"%s\" has the descr \"%s\", wanted <, >, = or, for single bytes, | before the type",
            reader->path.text, mha_text_show(text).text);
    bool host_is_big = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;
    stored->big_endian = order == '>' || (order == '=' && host_is_big);
done:
    return status;
}

static mha_status take_order(struct reader *reader, struct mha_stored *stored)
{
    mha_status status = MHA_OK;
    char word[16];
    TRY(take_word(reader, word, sizeof word));
    stored->column_major = strcmp(word, "True") == 0;
    TRY(expect(reader, stored->column_major || strcmp(word, "False") == 0, "True or False"));
done:
    return status;
}

/* A tuple: "()", "(3,)", "(3, 4)", "(3, 4,)"; "(3)" is a number to Python. */
static mha_status take_shape(struct reader *reader, struct mha_stored *stored)
{
    mha_status status = MHA_OK;
    bool closed, comma = false;
    TRY(take_mark(reader, '(', "a tuple of sizes"));
    stored->rank = 0;
    for (;;) {
        TRY(see(reader, ')', &closed));
        if (closed)
            break;
        TRY(expect(reader, stored->rank == 0 || comma, "a comma or )"));
        char number[24];
        uint64_t size;
        TRY(take_word(reader, number, sizeof number));
        TRY(expect(reader,
                   mha_text_uint64(number, (int64_t)strlen(number), &size) && size <= INT64_MAX,
                   "a size from 0 to 2^63 - 1"));
        REQUIRE(reader->ctx, stored->rank < MHA_MAX_RANK, MHA_ERROR_LIMIT,
                "\"%s\" has more than %d axes", reader->path.text, MHA_MAX_RANK);
        stored->shape[stored->rank++] = (int64_t)size;
        TRY(see(reader, ',', &comma));
    }
    TRY(expect(reader, stored->rank != 1 || comma, "a comma in a tuple of one"));
done:
    return status;
}

static mha_status take_item(struct reader *reader, struct mha_stored *stored, unsigned *seen)
{
    mha_status status = MHA_OK;
    static const char *const keys[] = { "descr", "fortran_order", "shape" };
    char key[16];
    TRY(take_string(reader, key, sizeof key));
    int which = 0;
    while (which < 3 && strcmp(key, keys[which]) != 0)
        which++;
    TRY(expect(reader, which < 3, "one of the keys descr, fortran_order and shape"));
    TRY(expect(reader, !(*seen >> which & 1), "each key once"));
    *seen |= 1u << which;
    TRY(take_mark(reader, ':', "a colon"));
    TRY(which == 0   ? take_descr(reader, stored)
        : which == 1 ? take_order(reader, stored)
                     : take_shape(reader, stored));
done:
    return status;
}

static mha_status take_header(struct reader *reader, struct mha_stored *stored)
{
    mha_status status = MHA_OK;
    unsigned seen = 0;
    bool closed, comma = true;
    TRY(take_mark(reader, '{', "{"));
    for (;;) {
        TRY(see(reader, '}', &closed));
        if (closed)
            break;
        TRY(expect(reader, comma, "a comma or }"));
        TRY(take_item(reader, stored, &seen));
        TRY(see(reader, ',', &comma));
    }
    TRY(expect(reader, seen == 7, "the keys descr, fortran_order and shape"));
    char c;
    TRY(peek_mark(reader, &c));
    TRY(expect(reader, reader->at == reader->end, "nothing but blanks after }"));
done:
    return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Magic, version and length: sets where the header starts and ends. */
static mha_status read_preamble(struct reader *reader)
{
    mha_status status = MHA_OK;
    mha_context *ctx = reader->ctx;
    const char *path = reader->path.text;
    unsigned char start[12] = { 0 };
    int64_t bytes = reader->file->bytes;
    TRY(mha_file_read(ctx, reader->file, 0, start, min_i64(bytes, sizeof start)));
    REQUIRE(ctx, bytes >= 10 && memcmp(start, "\x93NUMPY", 6) == 0, MHA_ERROR_FORMAT,
            "\"%s\" does not start as an .npy file", path);
    REQUIRE(ctx, start[6] >= 1 && start[6] <= 3 && start[7] == 0, MHA_ERROR_FORMAT,
            "\"%s\" has the version %d.%d, wanted 1.0, 2.0 or 3.0", path, start[6], start[7]);
    int64_t length = start[8] | start[9] << 8;
    reader->at = 10;
    if (start[6] > 1) {
        length |= (int64_t)start[10] << 16 | (int64_t)start[11] << 24;
        reader->at = 12;
    }
    REQUIRE(ctx, length <= bytes - reader->at, MHA_ERROR_FORMAT,
            "\"%s\" has %" PRId64 " bytes, too few for its header of %" PRId64, path, bytes,
            length);
    REQUIRE(ctx, length <= HEADER_LIMIT, MHA_ERROR_LIMIT,
            "\"%s\" has a header of %" PRId64 " bytes, wanted at most %d", path, length,
            HEADER_LIMIT);
    reader->end = reader->at + length;
done:
    return status;
}

/* Opens a file and checks all there is to check; the file is left open, also on failure. */
static mha_status open_array(mha_context *ctx, const char *path, struct mha_file *file,
                             struct mha_stored *stored)
{
    mha_status status = MHA_OK;
    TRY(mha_file_open(ctx, path, file));
    struct reader reader = { .ctx = ctx, .file = file, .path = mha_text_show(path) };
    *stored = (struct mha_stored){ 0 };
    TRY(read_preamble(&reader));
    TRY(take_header(&reader, stored));
    stored->offset = reader.end;
    int64_t bytes = 0;
    REQUIRE(ctx, mha_convert_bytes(stored, 8 * mha_type_bytes(stored->type), &bytes),
            MHA_ERROR_FORMAT, "\"%s\" claims more elements than any file can hold",
            reader.path.text);
    REQUIRE(ctx, bytes == file->bytes - reader.end, MHA_ERROR_FORMAT,
            "\"%s\" has %" PRId64 " bytes of data, wanted %" PRId64 " by its header",
            reader.path.text, file->bytes - reader.end, bytes);
done:
    return status;
}

mha_status mha_npy_shape(mha_context *ctx, const char *path, struct mha_tensor *tensor)
{
    if (!ctx)
        return MHA_ERROR_ARGUMENT;
    mha_status status = mha_context_enter(ctx, "mha_npy_shape");
    if (status != MHA_OK)
        return status;
    struct mha_file file = { .descriptor = -1 };
    struct mha_stored stored;
    REQUIRE(ctx, tensor, MHA_ERROR_ARGUMENT, "tensor is NULL");
    TRY(open_array(ctx, path, &file, &stored));
    *tensor = mha_convert_tensor(&stored);
done:
    mha_file_close(&file);
    return mha_context_leave(ctx, status);
}

mha_status mha_npy_read(mha_context *ctx, const char *path, const struct mha_tensor *into)
{
    if (!ctx)
        return MHA_ERROR_ARGUMENT;
    mha_status status = mha_context_enter(ctx, "mha_npy_read");
    if (status != MHA_OK)
        return status;
    struct mha_file file = { .descriptor = -1 };
    struct mha_stored stored;
    TRY(mha_tensor_check_output(ctx, "into", into));
    TRY(open_array(ctx, path, &file, &stored));
    TRY(mha_convert_check(ctx, "the file", &stored, into));
    TRY(mha_convert_read(ctx, &file, &stored, into));
done:
    mha_file_close(&file);
    return mha_context_leave(ctx, status);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Everything mha_tensor_check asks but a last stride of 1: a writer takes any view. */
static mha_status check_source(mha_context *ctx, const struct mha_tensor *tensor)
{
    mha_status status = MHA_OK;
    static const int32_t axes[MHA_MAX_RANK] = { 0, 1, 2, 3, 4, 5 };
    REQUIRE(ctx, tensor, MHA_ERROR_ARGUMENT, "tensor is NULL");
    struct mha_tensor dense = *tensor;
    int32_t last = tensor->rank - 1;
    if (last >= 0 && last < MHA_MAX_RANK)
        dense.strides[last] = 1;
    TRY(mha_tensor_check(ctx, "tensor", &dense));
    REQUIRE(ctx, last < 0 || tensor->shape[last] <= 1 || tensor->strides[last] >= 0,
            MHA_ERROR_LAYOUT,
            "tensor has the stride %" PRId64 " on its last axis, wanted none "
            "below 0",
            tensor->strides[last]);
    REQUIRE(ctx, mha_tensor_permute(NULL, tensor, axes, &dense) == MHA_OK, MHA_ERROR_OVERFLOW,
            "tensor of shape %s spans more memory than a pointer can address",
            mha_tensor_text(tensor).text);
    struct mha_stored stored = { .rank = tensor->rank };
    memcpy(stored.shape, tensor->shape, sizeof stored.shape);
    int64_t bytes = 0;
    REQUIRE(ctx, mha_convert_bytes(&stored, 8 * mha_type_bytes(tensor->type), &bytes),
            MHA_ERROR_OVERFLOW, "tensor has the shape %s, more than any file can hold",
            mha_tensor_text(tensor).text);
    REQUIRE(ctx, tensor->type != MHA_BFLOAT16, MHA_ERROR_TYPE,
            "tensor is bfloat16, which .npy files cannot hold");
done:
    return status;
}

/* Writes version 1 of the format: the padding puts the data at a multiple of 64 bytes. */
static mha_status append_header(mha_context *ctx, struct mha_file_draft *draft,
                                const struct mha_tensor *tensor)
{
    char header[320] = "\x93NUMPY\x01";
    size_t i = 0;
    while (codes[i].type != tensor->type)
        i++;
    int used = 10;
    used += snprintf(header + used, sizeof header - (size_t)used,
                     "{'descr': '%c%s', 'fortran_order': False, 'shape': (",
                     mha_type_bytes(tensor->type) == 1 ? '|' : '<', codes[i].code);
    for (int32_t axis = 0; axis < tensor->rank; axis++)
        used += snprintf(header + used, sizeof header - (size_t)used, "%s%" PRId64 "%s",
                         axis ? " " : "", tensor->shape[axis],
                         axis < tensor->rank - 1 || axis == 0 ? "," : "");
    used += snprintf(header + used, sizeof header - (size_t)used, "), }");
    int total = (used + 1 + 63) / 64 * 64;
    memset(header + used, ' ', (size_t)(total - used));
    header[total - 1] = '\n';
    header[8] = (char)((total - 10) & 0xff);
    header[9] = (char)((total - 10) >> 8);
    return mha_file_append(ctx, draft, header, total);
}

mha_status mha_npy_write(mha_context *ctx, const char *path, const struct mha_tensor *tensor)
{
    if (!ctx)
        return MHA_ERROR_ARGUMENT;
    mha_status status = mha_context_enter(ctx, "mha_npy_write");
    if (status != MHA_OK)
        return status;
    struct mha_file_draft draft = { .descriptor = -1 };
    TRY(check_source(ctx, tensor));
    TRY(mha_file_begin(ctx, path, &draft));
    TRY(append_header(ctx, &draft, tensor));
    TRY(mha_convert_write(ctx, &draft, tensor));
done:
    if (draft.descriptor >= 0)
        status = mha_file_finish(ctx, &draft, status);
    return mha_context_leave(ctx, status);
}
