/* What every file of src/ shares: the error idiom and three small words. */
#ifndef MHA_COMMON_H
#define MHA_COMMON_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mha.h"

#ifdef __FINITE_MATH_ONLY__
#if __FINITE_MATH_ONLY__
#error "libmha needs NaN and infinity: build without -ffast-math and -ffinite-math-only"
#endif
#endif

/*
 * The error idiom. A function that can fail has a variable `status` and one label `done`:
 *
 *     mha_status status = MHA_OK;
 *     REQUIRE(ctx, n >= 0, MHA_ERROR_ARGUMENT, "n is %" PRId64 ", must not be negative", n);
 *     TRY(mha_step(ctx, n));
 * done:
 *     return status;
 *
 * The message says argument, got and wanted; the function's name is put before it by the context.
 */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status != MHA_OK)                                                                      \
            goto done;                                                                             \
    } while (0)

#define REQUIRE(ctx, condition, code, ...)                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            status = mha_context_fail((ctx), (code), __VA_ARGS__);                                 \
            goto done;                                                                             \
        }                                                                                          \
    } while (0)

static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

#endif
