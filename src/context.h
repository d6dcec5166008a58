/* The context: owner of threads, allocator, kernels, scratch and message; and the door of every
 * call. */
#ifndef MHA_CONTEXT_H
#define MHA_CONTEXT_H

#include <stdatomic.h>

#include "common.h"
#include "kernels/kernels.h"
#include "memory.h"
#include "threads.h"

struct mha_context {
    _Alignas(MHA_ALIGNMENT) atomic_flag busy; /* set while a call runs */
    int host_errno;                           /* errno and floating-point environment as the call */
    uint64_t host_floats;                     /* found them */
    const char *function; /* public name of the running call, put before its message */
    struct mha_allocator allocator;
    struct mha_threads threads;
    const struct mha_kernels *kernels; /* of the level in use */
    void *scratch;
    int64_t scratch_bytes;
    char cpu[64];
    char message[512];
};

/*
 * Every public function that takes a context enters it with its own name and leaves it with its
 * status:
 *
 *     mha_status status = mha_context_enter(ctx, "mha_thing");
 *     if (status != MHA_OK)
 *         return status;
 *     ...
 * done:
 *     return mha_context_leave(ctx, status);
 *
 * Between the two the default floating-point environment holds, and errno may be spoilt.
 *
 * A NULL context is entered and left without effect: functions that need one check it first.
 */
mha_status mha_context_enter(mha_context *ctx, const char *function);
mha_status mha_context_leave(mha_context *ctx, mha_status status);

/* Notes "<function>: <text>" as the last message (cut to its room) and returns `code`. ctx may be
 * NULL. Called through REQUIRE. */
mha_status mha_context_fail(mha_context *ctx, mha_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Like mha_memory_allocate with the context's allocator, but fails with a message naming `what`. */
mha_status mha_context_allocate(mha_context *ctx, const char *what, int64_t bytes, void **block);

/* Fails with MHA_ERROR_OVERFLOW for a scratch of -1 bytes: an arena that overflowed. */
mha_status mha_context_check_scratch(mha_context *ctx, int64_t bytes);

/* The same, and makes the scratch hold at least `bytes`. */
mha_status mha_context_grow(mha_context *ctx, int64_t bytes);

/* Makes the threads that a run of so many lanes needs, where they are not there yet. */
mha_status mha_context_prepare_threads(mha_context *ctx, int64_t lanes);

/*
 * Copies one of the public structs whose first field is int64_t size into `copy`, which has room
 * for `known` bytes, its fields not given being zero. `first` is the struct's length in the first
 * release. A NULL `given` is all zero. Fails for a size below `first` or nonzero unknown fields.
 */
mha_status mha_context_take_struct(mha_context *ctx, const char *name, const void *given,
                                   size_t first, size_t known, void *copy);

#endif
