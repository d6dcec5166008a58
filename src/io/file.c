/*
 * Files by descriptor, not by stdio stream: pread takes the offset with the call, so that reads
 * through a shared file need no lock, and a stream's buffer would come from the C library behind
 * the back of the host's allocator.
 */
#define _FILE_OFFSET_BITS 64

#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/text.h"

/* How many unfinished files of writers that died, or are still at work, may lie beside a target. */
#define DRAFT_NAMES 100

#define MOST_LINKS 40 /* on the way to a target, as Linux itself has it */

struct reason {
    char text[48];
};

/* In our own words: strerror answers in the host's language, and may share its memory. */
static struct reason reason_of(int number)
{
    struct reason reason;
    const char *text = number == ENOENT         ? "there is no such file or directory"
                       : number == EACCES       ? "permission denied"
                       : number == EPERM        ? "permission denied"
                       : number == EISDIR       ? "it is a directory"
                       : number == ENOTDIR      ? "a part of the path is no directory"
                       : number == ELOOP        ? "too many symbolic links"
                       : number == ENAMETOOLONG ? "the name is too long"
                       : number == EMFILE       ? "this process has too many open files"
                       : number == ENFILE       ? "this system has too many open files"
                       : number == ENOSPC       ? "no space left"
                       : number == EDQUOT       ? "no space left in the quota"
                       : number == EFBIG        ? "the file becomes too large"
                       : number == EROFS        ? "the file system is read-only"
                       : number == EIO          ? "input or output error"
                                                : NULL;
    if (text)
        snprintf(reason.text, sizeof reason.text, "%s", text);
    else
        snprintf(reason.text, sizeof reason.text, "system error %d", number);
    return reason;
}

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode)    ? "a directory"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

/* ---- reading --------------------------------------------------------------------------------- */

mha_status mha_file_open(mha_context *ctx, const char *path, struct mha_file *file)
{
    mha_status status = MHA_OK;
    *file = (struct mha_file){ .descriptor = -1 };
    REQUIRE(ctx, path, MHA_ERROR_ARGUMENT, "path is NULL");
    do /* non-blocking: a pipe without a writer would wait for one */
        file->descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    while (file->descriptor < 0 && errno == EINTR);
    REQUIRE(ctx, file->descriptor >= 0, MHA_ERROR_FILE, "\"%s\" cannot be opened: %s",
            mha_text_show(path).text, reason_of(errno).text);
    struct stat info;
    REQUIRE(ctx, fstat(file->descriptor, &info) == 0, MHA_ERROR_FILE,
            "\"%s\" cannot be examined: %s", mha_text_show(path).text, reason_of(errno).text);
    REQUIRE(ctx, S_ISREG(info.st_mode), MHA_ERROR_FILE, "\"%s\" is %s, wanted a regular file",
            mha_text_show(path).text, kind_of(info.st_mode));
    file->bytes = info.st_size;
done:
    if (status != MHA_OK)
        mha_file_close(file);
    return status;
}

mha_status mha_file_read(mha_context *ctx, const struct mha_file *file, int64_t offset, void *data,
                         int64_t bytes)
{
    mha_status status = MHA_OK;
    while (bytes > 0) {
        ssize_t got = pread(file->descriptor, data, (size_t)bytes, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        REQUIRE(ctx, got >= 0, MHA_ERROR_FILE, "reading byte %" PRId64 " of the file failed: %s",
                offset, reason_of(errno).text);
        REQUIRE(ctx, got > 0, MHA_ERROR_FILE,
                "the file ends at byte %" PRId64 ", it had %" PRId64 " when it was opened", offset,
                file->bytes);
        data = (char *)data + got;
        offset += got;
        bytes -= got;
    }
done:
    return status;
}

void mha_file_close(struct mha_file *file)
{
    int host_errno = errno;
    if (file->descriptor >= 0)
        close(file->descriptor);
    file->descriptor = -1;
    errno = host_errno;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Follows symbolic links at the end of a path, to a file or to where one would be. (realpath would
 * want the file to be there.) False with errno when that fails. */
static bool follow_links(char path[MHA_FILE_PATH])
{
    char link[MHA_FILE_PATH];
    for (int links = 0; links <= MOST_LINKS; links++) {
        ssize_t length = readlink(path, link, sizeof link);
        if (length < 0)
            return errno == EINVAL || errno == ENOENT; /* no link, or nothing at all */
        const char *slash = strrchr(path, '/');
        size_t start = slash && link[0] != '/' ? (size_t)(slash + 1 - path) : 0;
        if (start + (size_t)length >= MHA_FILE_PATH) {
            errno = ENAMETOOLONG;
            return false;
        }
        memcpy(path + start, link, (size_t)length);
        path[start + (size_t)length] = '\0';
    }
    errno = ELOOP;
    return false;
}

/* Opens the first of the names "PATH.part0", "PATH.part1", ... that is free. O_EXCL lets no two
 * writers have the same one, and a dead writer's leftover only costs its name. */
static int open_draft(struct mha_file_draft *draft, mode_t mode)
{
    int descriptor = -1;
    for (int number = 0; number < DRAFT_NAMES; number++) {
        int length = snprintf(draft->name, sizeof draft->name, "%s.part%d", draft->path, number);
        if (length < 0 || (size_t)length >= sizeof draft->name) {
            errno = ENAMETOOLONG;
            return -1;
        }
        do
            descriptor = open(draft->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        while (descriptor < 0 && errno == EINTR);
        if (descriptor >= 0 || errno != EEXIST)
            break;
    }
    return descriptor;
}

mha_status mha_file_begin(mha_context *ctx, const char *path, struct mha_file_draft *draft)
{
    mha_status status = MHA_OK;
    struct stat old;
    draft->descriptor = -1;
    REQUIRE(ctx, path, MHA_ERROR_ARGUMENT, "path is NULL");
    REQUIRE(ctx, *path, MHA_ERROR_ARGUMENT, "path is empty");
    size_t length = strlen(path);
    REQUIRE(ctx, length < sizeof draft->path, MHA_ERROR_FILE, "\"%s\" cannot be created: %s",
            mha_text_show(path).text, reason_of(ENAMETOOLONG).text);
    memcpy(draft->path, path, length + 1);
    /* Renaming over a link would cut it off from its file, over /dev/null be a poor way to discard
     * one. */
    bool replaces = stat(path, &old) == 0;
    REQUIRE(ctx, !replaces || S_ISREG(old.st_mode), MHA_ERROR_FILE,
            "\"%s\" is %s, wanted a regular file or none", mha_text_show(path).text,
            kind_of(old.st_mode));
    REQUIRE(ctx, follow_links(draft->path), MHA_ERROR_FILE, "\"%s\" cannot be created: %s",
            mha_text_show(path).text, reason_of(errno).text);
    mode_t mode = replaces ? old.st_mode & 0777 : 0666;
    draft->descriptor = open_draft(draft, mode);
    REQUIRE(ctx, draft->descriptor >= 0, MHA_ERROR_FILE, "\"%s\" cannot be created: %s",
            mha_text_show(draft->name).text,
            errno == EEXIST ? "too many unfinished files lie there" : reason_of(errno).text);
    /* The umask is for new files. */
    REQUIRE(ctx, !replaces || fchmod(draft->descriptor, mode) == 0, MHA_ERROR_FILE,
            "\"%s\" cannot have the mode of the file it replaces: %s",
            mha_text_show(draft->name).text, reason_of(errno).text);
done:
    return status;
}

mha_status mha_file_append(mha_context *ctx, struct mha_file_draft *draft, const void *data,
                           int64_t bytes)
{
    mha_status status = MHA_OK;
    while (bytes > 0) {
        ssize_t put = write(draft->descriptor, data, (size_t)bytes);
        if (put < 0 && errno == EINTR)
            continue;
        REQUIRE(ctx, put >= 0, MHA_ERROR_FILE, "\"%s\" cannot be written: %s",
                mha_text_show(draft->name).text, reason_of(errno).text);
        data = (const char *)data + put;
        bytes -= put;
    }
done:
    return status;
}

mha_status mha_file_finish(mha_context *ctx, struct mha_file_draft *draft, mha_status status)
{
    /* Some file systems tell of a full disk only here. */
    int closed = close(draft->descriptor);
    draft->descriptor = -1;
    if (status != MHA_OK)
        goto done;
    REQUIRE(ctx, closed == 0, MHA_ERROR_FILE, "\"%s\" cannot be written: %s",
            mha_text_show(draft->name).text, reason_of(errno).text);
    REQUIRE(ctx, rename(draft->name, draft->path) == 0, MHA_ERROR_FILE,
            "\"%s\" cannot be replaced: %s", mha_text_show(draft->path).text,
            reason_of(errno).text);
done:
    if (status != MHA_OK)
        unlink(draft->name);
    return status;
}
