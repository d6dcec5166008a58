/* Files as this library uses them: regular ones, read at offsets, and replaced only when whole. */
#ifndef MHA_IO_FILE_H
#define MHA_IO_FILE_H

#include "context.h"

/* An open file. It has no position: each read names its offset, so any number of contexts may read
 * through one struct at the same time. */
struct mha_file {
    int descriptor; /* -1: closed */
    int64_t bytes;  /* size when it was opened */
};

/* Opens a regular file for reading. Anything else (a directory, a pipe, a device) is refused, and
 * never waited for. */
mha_status mha_file_open(mha_context *ctx, const char *path, struct mha_file *file);

/* Reads exactly `bytes` bytes; a file that ends before is MHA_ERROR_FILE. */
mha_status mha_file_read(mha_context *ctx, const struct mha_file *file, int64_t offset, void *data,
                         int64_t bytes);

/* Closes, once or more often; errno stays as it is. */
void mha_file_close(struct mha_file *file);

/* Longest path of a file to write, closing NUL included: what Linux itself takes. */
#define MHA_FILE_PATH 4096

/*
 * A new file in the making. It grows beside its target, under a name that nobody else uses, and
 * takes the target's place in one step at the end. So a reader sees the old file or the new one,
 * and a failure leaves the old one. (What survives a power failure is the file system's affair.)
 * Symbolic links to the target stay, and the new file has the old one's permissions.
 */
struct mha_file_draft {
    int descriptor;
    char path[MHA_FILE_PATH]; /* of the target, links followed */
    char name[MHA_FILE_PATH];
};

/* On failure there may be a draft all the same, to be ended: where `descriptor` is not -1. */
mha_status mha_file_begin(mha_context *ctx, const char *path, struct mha_file_draft *draft);
mha_status mha_file_append(mha_context *ctx, struct mha_file_draft *draft, const void *data,
                           int64_t bytes);

/* Ends a draft that mha_file_begin began: puts it in place when `status` is MHA_OK, else removes
 * it. Returns `status`, or what went wrong here. */
mha_status mha_file_finish(mha_context *ctx, struct mha_file_draft *draft, mha_status status);

#endif
