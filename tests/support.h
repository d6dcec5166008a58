/* What every test program shares: CMocka, the one comparison, random numbers with a printed seed,
 * memory that ends at an unreadable page, and allocators that count and fail. */
#ifndef SUPPORT_H
#define SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "mha.h"

/* THREAD_SANITIZER or ADDRESS_SANITIZER is defined where that is at work. */
#if defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZER 1
#elif defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZER 1
#elif __has_feature(address_sanitizer)
#define ADDRESS_SANITIZER 1
#endif
#endif

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof(array)[0]))

/*
 * The one comparison of floats: fails the running test, printing what, index, got, wanted and bound,
 * unless |got[i] - want[i]| <= bound for every i. A NaN fails against a number, and equals only a
 * wanted NaN; infinities equal only themselves.
 */
void check_close(const char *what, const float *got, const double *want, int64_t n, double bound);

/* The bound of the design for float32 results: max(2e-6 * largest |want|, 4 * f32err). */
double bound_of(const double *want, int64_t n, double f32err);

/* Equal bits, NaN compared as a class (any NaN equals any NaN). Prints the first difference. */
void check_same_bits(const char *what, const float *got, const float *want, int64_t n);

/* Fails unless `got` is `want`; prints both texts and the context's message. */
void check_status(const mha_context *ctx, mha_status got, mha_status want);

/* Fails unless `text` contains `part`. */
void check_contains(const char *text, const char *part);

/* Random numbers: a 64-bit generator seeded from the environment variable MHA_TEST_SEED, or 1; the
 * seed is printed once. random_float is uniform in [-1, 1), random_below in 0..n-1. */
uint64_t random_bits(void);
float random_float(void);
int64_t random_below(int64_t n);
void random_fill(float *data, int64_t n);

/* How many random cases a test makes: the environment variable MHA_TEST_CASES, or `usual`. */
int64_t case_count(int64_t usual);

/* `bytes` bytes that end exactly at an unreadable page, zeroed; freed by guarded_free. Not NULL. */
void *guarded(int64_t bytes);
float *guarded_floats(int64_t n); /* random values */
void guarded_free(void *block);

/* An allocator that counts and can fail. live and bytes fall again at release. */
struct counting {
    struct mha_allocator allocator; /* hand &counting.allocator to mha_context_options */
    int64_t calls;                  /* allocations asked for so far */
    int64_t live;                   /* blocks not released */
    int64_t live_bytes;
    int64_t most_bytes; /* that were live at one time */
    int64_t fail_at;    /* the call with this number (from 1) returns NULL; 0: none */
};
void counting_init(struct counting *counting);

/* A context or fail. `context_plain` has default options, so MHA_ISA picks the level. */
mha_context *context_plain(void);
mha_context *context_counting(struct counting *counting);

#endif
