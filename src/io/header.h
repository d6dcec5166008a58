/* The JSON header of a .safetensors file: which tensors there are, and where. */
#ifndef MHA_IO_HEADER_H
#define MHA_IO_HEADER_H

#include "io/convert.h"

/* A tensor as the header tells it. */
struct mha_entry {
    const char *name;         /* UTF-8, escapes resolved */
    const char *dtype;        /* "F32", "F8_E4M3", ... */
    struct mha_stored stored; /* the type is 0 where enum mha_type has none for the dtype */
    int64_t bytes;
};

/* All of them. One block of the context's allocator holds everything. */
struct mha_header {
    int64_t count;
    struct mha_entry *entries;        /* in the order of their data */
    const struct mha_entry **by_name; /* the same, in the order of strcmp */
    void *block;
    int64_t block_bytes;
};

/* Where the header lies in a file, and what the messages call the file. */
struct mha_header_source {
    const char *path;
    char *text;          /* the header; parsing resolves escapes in place */
    int64_t text_bytes;  /* at most INT32_MAX */
    int64_t data_offset; /* of the first data byte in the file */
    int64_t data_bytes;
};

/*
 * Parses and checks a header: a JSON object that maps names to { dtype, shape, data_offsets }, and
 * perhaps "__metadata__" to an object of strings; then nothing but blanks. Names are unique, sizes
 * are exact, and the data tile what the file holds without overlap, hole or tail. Linear in the
 * header, but for sorting the tensors. On failure `header` holds nothing.
 */
mha_status mha_header_parse(mha_context *ctx, const struct mha_header_source *source,
                            struct mha_header *header);

void mha_header_release(const struct mha_allocator *allocator, struct mha_header *header);

/* The tensor whose name is the prefix followed by the name, or NULL. */
const struct mha_entry *mha_header_find(const struct mha_header *header, const char *prefix,
                                        const char *name);

#endif
