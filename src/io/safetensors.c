/* .safetensors: 8 bytes with the length of the header, the header, the data. */
#include "io/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "io/text.h"
#include "tensor.h"

#define HEADER_LIMIT INT64_C(100000000)
#define PREAMBLE_BYTES 8
#define SHORTEST_HEADER 2 /* "{}" */

/* Takes nothing on trust: the length must fit the file before it becomes an allocation. */
static mha_status read_length(mha_context *ctx, const char *path, const struct mha_file *file,
                              int64_t limit, int64_t *length)
{
    mha_status status = MHA_OK;
    unsigned char start[PREAMBLE_BYTES];
    REQUIRE(ctx, file->bytes >= PREAMBLE_BYTES, MHA_ERROR_FORMAT,
            "\"%s\" has %" PRId64 " bytes, too few for a .safetensors file",
            mha_text_show(path).text, file->bytes);
    TRY(mha_file_read(ctx, file, 0, start, PREAMBLE_BYTES));
    uint64_t claimed = 0;
    for (int i = PREAMBLE_BYTES - 1; i >= 0; i--)
        claimed = claimed << 8 | start[i];
    REQUIRE(ctx, claimed >= SHORTEST_HEADER && claimed <= (uint64_t)file->bytes - PREAMBLE_BYTES,
            MHA_ERROR_FORMAT, "\"%s\" claims a header of %" PRIu64 " bytes in a file of %" PRId64,
            mha_text_show(path).text, claimed, file->bytes);
    REQUIRE(ctx, claimed <= (uint64_t)limit, MHA_ERROR_LIMIT,
            "\"%s\" has a header of %" PRIu64 " bytes, wanted at most %" PRId64,
            mha_text_show(path).text, claimed, limit);
    *length = (int64_t)claimed;
done:
    return status;
}

static mha_status read_header(mha_context *ctx, const char *path, const struct mha_file *file,
                              int64_t limit, struct mha_header *header)
{
    mha_status status = MHA_OK;
    struct mha_header_source source = { .path = path };
    void *text = NULL;
    TRY(read_length(ctx, path, file, limit, &source.text_bytes));
    TRY(mha_context_allocate(ctx, "a header", source.text_bytes, &text));
    TRY(mha_file_read(ctx, file, PREAMBLE_BYTES, text, source.text_bytes));
    source.text = text;
    source.data_offset = PREAMBLE_BYTES + source.text_bytes;
    source.data_bytes = file->bytes - source.data_offset;
    TRY(mha_header_parse(ctx, &source, header));
done:
    mha_memory_release(&ctx->allocator, text, source.text_bytes);
    return status;
}

mha_status mha_safetensors_open(mha_context *ctx, const char *path, int64_t header_limit,
                                mha_safetensors **file)
{
    if (file)
        *file = NULL;
    if (!ctx)
        return MHA_ERROR_ARGUMENT;
    mha_status status = mha_context_enter(ctx, "mha_safetensors_open");
    if (status != MHA_OK)
        return status;
    mha_safetensors *opened = NULL;
    void *block = NULL;
    REQUIRE(ctx, file, MHA_ERROR_ARGUMENT, "file is NULL");
    REQUIRE(ctx, header_limit >= 0, MHA_ERROR_ARGUMENT,
            "header_limit is %" PRId64 ", must not be negative", header_limit);
    TRY(mha_context_allocate(ctx, "a file", sizeof *opened, &block));
    opened = block;
    *opened = (mha_safetensors){ .allocator = ctx->allocator, .file = { .descriptor = -1 } };
    TRY(mha_file_open(ctx, path, &opened->file));
    int64_t limit = header_limit ? header_limit : HEADER_LIMIT;
    /* The parser counts in int. */
    TRY(read_header(ctx, path, &opened->file, min_i64(limit, INT32_MAX), &opened->header));
    *file = opened;
    opened = NULL;
done:
    mha_safetensors_close(opened);
    return mha_context_leave(ctx, status);
}

void mha_safetensors_close(mha_safetensors *file)
{
    if (!file)
        return;
    int host_errno = errno;
    struct mha_allocator allocator = file->allocator;
    mha_file_close(&file->file);
    mha_header_release(&allocator, &file->header);
    mha_memory_release(&allocator, file, sizeof *file);
    errno = host_errno;
}

int64_t mha_safetensors_count(const mha_safetensors *file)
{
    return file ? file->header.count : 0;
}

const char *mha_safetensors_name(const mha_safetensors *file, int64_t index)
{
    return file && index >= 0 && index < file->header.count ? file->header.entries[index].name
                                                            : NULL;
}

static mha_status find(mha_context *ctx, const mha_safetensors *file, const char *name,
                       const struct mha_entry **entry)
{
    mha_status status = MHA_OK;
    REQUIRE(ctx, file && name, MHA_ERROR_ARGUMENT, "%s is NULL", file ? "name" : "file");
    *entry = mha_header_find(&file->header, "", name);
    REQUIRE(ctx, *entry, MHA_ERROR_NOT_FOUND, "the file has no tensor \"%s\"",
            mha_text_show(name).text);
done:
    return status;
}

mha_status mha_safetensors_shape(mha_context *ctx, const mha_safetensors *file, const char *name,
                                 struct mha_tensor *tensor)
{
    if (!ctx)
        return MHA_ERROR_ARGUMENT;
    mha_status status = mha_context_enter(ctx, "mha_safetensors_shape");
    if (status != MHA_OK)
        return status;
    const struct mha_entry *entry;
    REQUIRE(ctx, tensor, MHA_ERROR_ARGUMENT, "tensor is NULL");
    TRY(find(ctx, file, name, &entry));
    *tensor = mha_convert_tensor(&entry->stored);
done:
    return mha_context_leave(ctx, status);
}

mha_status mha_safetensors_read(mha_context *ctx, const mha_safetensors *file, const char *name,
                                const struct mha_tensor *into)
{
    if (!ctx)
        return MHA_ERROR_ARGUMENT;
    mha_status status = mha_context_enter(ctx, "mha_safetensors_read");
    if (status != MHA_OK)
        return status;
    const struct mha_entry *entry;
    TRY(mha_tensor_check_output(ctx, "into", into));
    TRY(find(ctx, file, name, &entry));
    REQUIRE(ctx, entry->stored.type != 0, MHA_ERROR_TYPE,
            "tensor \"%s\" is %s, which this library does not read", mha_text_show(name).text,
            entry->dtype);
    TRY(mha_convert_check(ctx, "the tensor in the file", &entry->stored, into));
    TRY(mha_convert_read(ctx, &file->file, &entry->stored, into));
done:
    return mha_context_leave(ctx, status);
}
