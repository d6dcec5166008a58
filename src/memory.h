/* Memory: checked sizes, the host's allocator, and the arena that lays scratch out. */
#ifndef MHA_MEMORY_H
#define MHA_MEMORY_H

#include "common.h"

/* Everything this library allocates starts at a multiple of this, as does every piece of an arena:
 * a cache line, and a vector of sixteen floats. */
#define MHA_ALIGNMENT 64

/* *product = a * b; false, and *product = -1, when a factor is negative or the product does not fit. */
bool mha_memory_product(int64_t a, int64_t b, int64_t *product);

/* Where a block of the default allocator starts that is twice this or more: a huge page of x86-64, and
 * of 64-bit Arm with pages of 4 KiB. */
#define MHA_HUGE_PAGE ((size_t)2 << 20)

/* The C library's allocator in the struct's form. Large blocks lie on huge pages where the system
 * gives them: weights that are read straight through need a five-hundredth of the translations. */
extern const struct mha_allocator mha_memory_default;

/* `bytes` bytes at MHA_ALIGNMENT, or NULL; 0 bytes are one. Release takes NULL too. */
void *mha_memory_allocate(const struct mha_allocator *allocator, int64_t bytes);
void mha_memory_release(const struct mha_allocator *allocator, void *block, int64_t bytes);

/*
 * An arena hands out pieces of one block, in order. With a base of NULL it only measures: the same
 * function lays out buffers for the workspace query and for the call, so the two cannot differ.
 */
struct mha_arena {
    char *base;   /* NULL: measuring; pieces come out NULL */
    int64_t used; /* bytes taken so far, a multiple of MHA_ALIGNMENT; -1 once a size overflowed */
};

/* Takes count * element_bytes bytes; a count of -1 is one that overflowed. */
void *mha_arena_take(struct mha_arena *arena, int64_t count, int64_t element_bytes);

/* Takes [rows, heads, width] floats. */
float *mha_arena_floats(struct mha_arena *arena, int64_t rows, int64_t heads, int64_t width);

#endif
