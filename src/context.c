#include "context.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "processors.h"

mha_status mha_context_enter(mha_context *ctx, const char *function)
{
    if (!ctx)
        return MHA_OK;
    if (atomic_flag_test_and_set_explicit(&ctx->busy, memory_order_acquire))
        return MHA_ERROR_BUSY;
    ctx->host_errno = errno;
    ctx->host_floats = mha_cpu_floats_default();
    ctx->function = function;
    return MHA_OK;
}

mha_status mha_context_leave(mha_context *ctx, mha_status status)
{
    if (!ctx)
        return status;
    mha_cpu_floats_restore(ctx->host_floats);
    errno = ctx->host_errno;
    atomic_flag_clear_explicit(&ctx->busy, memory_order_release);
    return status;
}

mha_status mha_context_fail(mha_context *ctx, mha_status code, const char *format, ...)
{
    if (!ctx)
        return code;
    int used = snprintf(ctx->message, sizeof ctx->message, "%s: ", ctx->function);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(ctx->message + used, sizeof ctx->message - (size_t)used, format, arguments);
    va_end(arguments);
    return code;
}

mha_status mha_context_allocate(mha_context *ctx, const char *what, int64_t bytes, void **block)
{
    mha_status status = MHA_OK;
    *block = mha_memory_allocate(&ctx->allocator, bytes);
    REQUIRE(ctx, *block, MHA_ERROR_MEMORY, "no memory for %s (%" PRId64 " bytes)", what, bytes);
done:
    return status;
}

mha_status mha_context_check_scratch(mha_context *ctx, int64_t bytes)
{
    mha_status status = MHA_OK;
    REQUIRE(ctx, bytes >= 0, MHA_ERROR_OVERFLOW,
            "the scratch memory for these sizes exceeds 2^63 bytes");
done:
    return status;
}

mha_status mha_context_grow(mha_context *ctx, int64_t bytes)
{
    mha_status status = MHA_OK;
    TRY(mha_context_check_scratch(ctx, bytes));
    if (bytes <= ctx->scratch_bytes)
        goto done;
    void *scratch = NULL;
    TRY(mha_context_allocate(ctx, "scratch", bytes, &scratch));
    mha_memory_release(&ctx->allocator, ctx->scratch, ctx->scratch_bytes);
    ctx->scratch = scratch;
    ctx->scratch_bytes = bytes;
done:
    return status;
}

mha_status mha_context_prepare_threads(mha_context *ctx, int64_t lanes)
{
    mha_status status = MHA_OK;
    int error = mha_threads_prepare(&ctx->threads, lanes);
    REQUIRE(ctx, error == 0, MHA_ERROR_THREAD,
            "the system would not make a thread (%" PRId64 " wanted, %" PRId64 " there; error %d)",
            lanes - 1, ctx->threads.made, error);
done:
    return status;
}

/* No release has a longer struct: a size beyond is no size, and memory is not searched by it. */
#define MOST_STRUCT_BYTES 4096

mha_status mha_context_take_struct(mha_context *ctx, const char *name, const void *given,
                                   size_t first, size_t known, void *copy)
{
    mha_status status = MHA_OK;
    memset(copy, 0, known);
    if (!given)
        goto done;
    int64_t size = 0;
    memcpy(&size, given, sizeof size);
    if (size == 0)
        size = (int64_t)first;
    REQUIRE(ctx, size >= (int64_t)first && size <= MOST_STRUCT_BYTES, MHA_ERROR_ARGUMENT,
            "%s.size is %" PRId64 ", wanted 0 or %zu to %d", name, size, first, MOST_STRUCT_BYTES);
    memcpy(copy, given, (size_t)min_i64(size, (int64_t)known));
    for (int64_t at = (int64_t)known; at < size; at++)
        REQUIRE(ctx, ((const char *)given)[at] == 0, MHA_ERROR_UNSUPPORTED,
                "%s has a field at byte %" PRId64 " that version " MHA_VERSION " does not know",
                name, at);
done:
    return status;
}

/* ---- create and free ------------------------------------------------------------------------- */

/* Every level this library was built with, best first. */
static const struct mha_kernels *const levels[] = {
#if defined(__x86_64__)
    &mha_kernels_avx512,
    &mha_kernels_avx2,
#endif
#if defined(__aarch64__)
    &mha_kernels_neon,
#endif
    &mha_kernels_generic,
};

static void list_levels(char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof levels / sizeof levels[0] && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i ? ", " : "", levels[i]->isa);
}

/* The table of the level asked for, or the best that runs here. */
static mha_status choose_kernels(mha_context *ctx, const char *isa)
{
    mha_status status = MHA_OK;
    const char *source = "isa";
    if (!isa || !*isa) {
        source = "the environment variable MHA_ISA";
        isa = getenv("MHA_ISA");
    }
    bool forced = isa && *isa;
    char names[64];
    list_levels(names, sizeof names);
    for (size_t i = 0; i < sizeof levels / sizeof levels[0] && !ctx->kernels; i++)
        if (forced ? strcmp(levels[i]->isa, isa) == 0 : mha_cpu_runs(levels[i]->isa))
            ctx->kernels = levels[i];
    REQUIRE(ctx, ctx->kernels, MHA_ERROR_ARGUMENT, "%s is \"%.32s\", wanted one of %s", source, isa,
            names);
    REQUIRE(ctx, !forced || mha_cpu_runs(isa), MHA_ERROR_UNSUPPORTED,
            "%s is \"%s\", which this processor (%s) does not run", source, isa, ctx->cpu);
done:
    return status;
}

/* The context and, behind it, what its threads need. */
static int64_t context_bytes(const mha_context *ctx)
{
    return (int64_t)sizeof *ctx + mha_threads_bytes(&ctx->threads);
}

/* The number of threads asked for, zero and all resolved. */
static mha_status choose_threads(mha_context *ctx, const struct mha_context_options *options)
{
    mha_status status = MHA_OK;
    int64_t count = options->threads;
    REQUIRE(ctx, (count >= 0 && count <= MHA_MAX_THREADS) || count == MHA_THREADS_ALL,
            MHA_ERROR_ARGUMENT, "threads is %" PRId64 ", wanted 0..%d or MHA_THREADS_ALL (%d)",
            count, MHA_MAX_THREADS, MHA_THREADS_ALL);
    REQUIRE(ctx, !options->executor || options->executor->run, MHA_ERROR_ARGUMENT,
            "executor lacks run");
    int64_t allowed = count == 0 || count == 1 ? 1 : mha_processors_allowed();
    if (count == MHA_THREADS_ALL)
        count = min_i64(allowed, MHA_MAX_THREADS);
    ctx->threads = (struct mha_threads){
        .count = max_i64(count, 1),
        .spins = count <= allowed,
    };
    if (options->executor)
        ctx->threads.executor = *options->executor;
done:
    return status;
}

mha_status mha_context_create(const struct mha_context_options *options, mha_context **out)
{
    int host_errno = errno;
    mha_context *ctx = NULL;
    struct mha_context_options taken;
    mha_context draft = { .busy = ATOMIC_FLAG_INIT, .function = "mha_context_create" };
    mha_status status = mha_context_take_struct(&draft, "options", options, sizeof taken,
                                                sizeof taken, &taken);
    if (status != MHA_OK)
        goto done;
    REQUIRE(&draft, out, MHA_ERROR_ARGUMENT, "ctx is NULL");
    draft.allocator = taken.allocator ? *taken.allocator : mha_memory_default;
    REQUIRE(&draft, draft.allocator.allocate && draft.allocator.release, MHA_ERROR_ARGUMENT,
            "allocator lacks %s", draft.allocator.allocate ? "release" : "allocate");
    mha_cpu_name(draft.cpu, sizeof draft.cpu);
    TRY(choose_kernels(&draft, taken.isa));
    TRY(choose_threads(&draft, &taken));
    REQUIRE(&draft, mha_threads_watch_forks() == 0, MHA_ERROR_MEMORY,
            "the system has no memory for a handler of fork");
    void *block = NULL;
    TRY(mha_context_allocate(&draft, "the context", context_bytes(&draft), &block));
    ctx = block;
    *ctx = draft;
    ctx->threads.workers = (void *)(ctx + 1);
done:
    if (out)
        *out = ctx;
    if (status != MHA_OK && options && taken.message && taken.message_bytes > 0)
        snprintf(taken.message, (size_t)taken.message_bytes, "%s", draft.message);
    errno = host_errno;
    return status;
}

void mha_context_free(mha_context *ctx)
{
    if (!ctx)
        return;
    int host_errno = errno;
    mha_threads_free(&ctx->threads);
    struct mha_allocator allocator = ctx->allocator;
    mha_memory_release(&allocator, ctx->scratch, ctx->scratch_bytes);
    mha_memory_release(&allocator, ctx, context_bytes(ctx));
    errno = host_errno;
}

mha_status mha_context_reserve(mha_context *ctx, int64_t bytes)
{
    if (!ctx)
        return MHA_ERROR_ARGUMENT;
    mha_status status = mha_context_enter(ctx, "mha_context_reserve");
    if (status != MHA_OK)
        return status;
    REQUIRE(ctx, bytes >= 0, MHA_ERROR_ARGUMENT, "bytes is %" PRId64 ", must not be negative",
            bytes);
    TRY(mha_context_grow(ctx, bytes));
done:
    return mha_context_leave(ctx, status);
}

const char *mha_context_message(const mha_context *ctx)
{
    return ctx ? ctx->message : "";
}

const char *mha_context_isa(const mha_context *ctx)
{
    return ctx ? ctx->kernels->isa : "";
}

const char *mha_context_cpu(const mha_context *ctx)
{
    return ctx ? ctx->cpu : "";
}

int64_t mha_context_threads(const mha_context *ctx)
{
    return ctx ? ctx->threads.count : 0;
}
