/*
 * The kernels: what changes with the instruction set. One table per level, made of the same sources
 * over another vector vocabulary; the context keeps a pointer to the one in use.
 *
 * Kernels check nothing. Every argument was checked at the door, and plain numbers arrive here.
 */
#ifndef MHA_KERNELS_H
#define MHA_KERNELS_H

#include <stddef.h>
#include <stdint.h>

enum {
    MHA_MANY_ROWS = 48, /* rows, at most, that are computed with rows in the lanes: three vectors */
    MHA_FEW_ROWS = 12,  /* rows, at most, that are computed with keys in the lanes */
    MHA_TILE_ROWS = MHA_MANY_ROWS + MHA_FEW_ROWS, /* query rows of a tile at most */
    MHA_BLOCK = 64,                               /* keys of a block, counted from key 0 */
    MHA_SPLIT = 512                               /* keys of a split, counted from key 0 */
};

/* One query row: D floats at q. It sees the keys lo <= j < hi that its mask leaves, then the extra
 * keys. Outputs that are NULL are not wanted. */
struct mha_attend_row {
    const float *q;
    int64_t lo, hi;        /* 0 <= lo <= hi <= S; keys outside are never read */
    const void *mask;      /* the mask element of key 0 */
    int64_t sees_extra;    /* 1, or 0: not even the extra keys */
    const float *residual; /* Dv floats added to the output, or NULL; may be `out` itself */
    float *out;            /* Dv floats, not NULL when Dv > 0 */
    float *lse;            /* one float */
    float *weights;        /* S + extras floats */
    float *weights_mean;   /* the same, summed over heads; see mean_step */
};

enum mha_mean_step {
    MHA_MEAN_FIRST = 1, /* weights_mean starts here: earlier contents are ignored */
    MHA_MEAN_LAST = 2   /* and ends here: the sum is divided by `heads` */
};

enum mha_attend_mask {
    MHA_ATTEND_UNMASKED = 0,
    MHA_ATTEND_KEEP = 1,    /* bytes, nonzero keeps */
    MHA_ATTEND_DROP = 2,    /* bytes, nonzero drops */
    MHA_ATTEND_ADDITIVE = 3 /* floats */
};

/* Some query rows against the keys of one key/value head. */
struct mha_attend_tile {
    const struct mha_attend_row *rows;
    int64_t n_rows; /* 1..MHA_TILE_ROWS */

    const float *k, *v; /* row j is D floats at k + j * k_stride, Dv floats at v + j * v_stride */
    int64_t k_stride, v_stride;
    int64_t D, S;
    int64_t Dv; /* 0: no row wants its output */

    const float *extra_k, *extra_v; /* [extras, D] and [extras, Dv], contiguous */
    int64_t extras;                 /* 0..2 */

    float scale;
    float softcap;       /* 0: off */
    int32_t mask_kind;   /* enum mha_attend_mask */
    int64_t mask_stride; /* elements from key to key: 1, or 0 where the mask is broadcast */

    int32_t mean_step; /* enum mha_mean_step, or-ed */
    float heads;       /* divisor of the head mean */

    float *scratch; /* mha_attend_tile_floats(D, Dv) floats at a multiple of 64 bytes */
};

/*
 * Floats of scratch for one tile, D and Dv being below 2^31: what the larger of two ways needs, and five
 * numbers a row. Many rows: the query and two outputs with rows in the lanes, three blocks of keys
 * (scores, probabilities, mask), two more numbers a row. Few rows: a block of keys turned, one of value
 * tails, scores and probabilities, the query and two outputs filled up to sixteens.
 */
static inline int64_t mha_attend_tile_floats(int64_t D, int64_t Dv)
{
    int64_t many = MHA_MANY_ROWS * (D + 2 * Dv + 3 * MHA_BLOCK + 2);
    int64_t few = MHA_BLOCK * (D + 16) + MHA_FEW_ROWS * (2 * MHA_BLOCK + D + 2 * (Dv + 15)) + 16;
    return (many > few ? many : few) + MHA_MANY_ROWS * 5;
}

/* Floats of what a tile of so many rows keeps of one split: m, l and o, whichever way its pieces are laid
 * out. */
static inline int64_t mha_attend_part_floats(int64_t rows, int64_t Dv)
{
    int64_t many = rows > MHA_FEW_ROWS ? MHA_MANY_ROWS * Dv : 0;
    int64_t few = (rows > MHA_FEW_ROWS ? MHA_FEW_ROWS : rows) * ((Dv + 15) / 16 * 16);
    return many + few + MHA_MANY_ROWS * 6;
}

enum {
    MHA_PANEL = 16,           /* outputs of a panel of weights */
    MHA_PROJECT_ROWS = 192,   /* rows of a projection tile at most */
    MHA_PROJECT_DEPTH = 1024, /* its inputs at most */
    MHA_PROJECT_PAD = 16      /* floats between its rows, so that they do not share cache sets */
};

/*
 * Some rows of a packed projection against some panels, for a block of the inputs k. The outputs are
 * n_begin <= n < n_end, n_begin a multiple of MHA_PANEL; output n is at (n / width) * head + n % width
 * in a row of y or the residual. A y row may be its own residual row.
 */
struct mha_project_tile {
    int64_t rows, depth; /* 1..MHA_PROJECT_ROWS, 1..MHA_PROJECT_DEPTH */
    const float *x;      /* [rows, depth], rows x_stride floats apart */
    int64_t x_stride;
    const float *panels;  /* of output n_begin, at the block's first k */
    int64_t panel_stride; /* floats from panel to panel */
    int64_t n_begin, n_end;
    int64_t width;
    const float *b;               /* [N], or NULL */
    const float *const *residual; /* [rows], or NULL */
    float *const *y;              /* [rows] */
    int64_t residual_head, y_head;
    int64_t first, last; /* is this the first, the last block of k? */
    float *partial;      /* [rows, panels * 16] sums between blocks */
    int64_t partial_stride;
};

struct mha_kernels {
    const char *isa; /* "generic", "avx2", "avx512", "neon" */

    /* Attention of one tile, by docs/numerics.md: all outputs of all its rows. Rows are read whole
     * before the first output is written, so an output may be its own row's residual or query.
     * `next` is the tile that this thread will do next, as far as known, or NULL: its operands come
     * nearer meanwhile. */
    void (*attend_f32)(const struct mha_attend_tile *tile, const struct mha_attend_tile *next);

    /* The same in steps, for threads that share the keys of a tile: the sums over each split's keys go
     * to its mha_attend_part_floats of `parts`, at a multiple of 64 bytes; when all splits are there,
     * joining them gives the outputs. */
    void (*attend_split_f32)(const struct mha_attend_tile *tile, int64_t split, float *parts);
    void (*attend_join_f32)(const struct mha_attend_tile *tile, float *parts);

    /* A tile of a packed projection, by the same page: y = x W^T + b (+ residual). */
    void (*project_f32)(const struct mha_project_tile *tile);
};

extern const struct mha_kernels mha_kernels_generic;
extern const struct mha_kernels mha_kernels_avx2;   /* x86-64 only */
extern const struct mha_kernels mha_kernels_avx512; /* the same */
extern const struct mha_kernels mha_kernels_neon;   /* 64-bit Arm only */

#endif
