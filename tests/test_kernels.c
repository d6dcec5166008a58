/* Every kernel of every level this CPU runs, called as attend.c calls it, at all sizes around vectors,
 * register tiles, blocks and splits. All memory, the scratch too, ends at an unreadable page. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "canonical.h"
#include "reference.h"

#include "../src/kernels/kernels.h"

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

static bool runs_here(const char *isa)
{
    mha_context *ctx = NULL;
    struct mha_context_options options = { .isa = isa };
    bool runs = mha_context_create(&options, &ctx) == MHA_OK;
    mha_context_free(ctx);
    return runs;
}

/* One problem for a kernel: some rows of one head, keys lo..hi of each chosen at random. */
struct problem {
    int64_t rows, S, D, Dv, extras;
    float *q, *k, *v, *extra_k, *extra_v;
    struct mha_attend_row row[MHA_TILE_ROWS];
    unsigned char *mask; /* [rows, S]: what the oracles see instead of lo and hi */
    float *out, *lse, *weights, *mean, *scratch;
};

static void problem_make(struct problem *p, int64_t rows, int64_t S, int64_t D, int64_t Dv)
{
    *p = (struct problem){ .rows = rows, .S = S, .D = D, .Dv = Dv, .extras = random_below(2) };
    p->q = guarded_floats(rows * D);
    p->k = guarded_floats(S * D);
    p->v = guarded_floats(S * Dv);
    p->extra_k = guarded_floats(p->extras * D);
    p->extra_v = guarded_floats(p->extras * Dv);
    p->mask = guarded(rows * S);
    p->out = guarded_floats(rows * Dv);
    p->lse = guarded_floats(rows);
    p->weights = guarded_floats(rows * (S + p->extras));
    p->mean = guarded_floats(rows * (S + p->extras));
    p->scratch = guarded(mha_attend_tile_floats(D, Dv) * (int64_t)sizeof(float));
    bool all = random_below(2) == 0;
    for (int64_t i = 0; i < rows; i++) {
        struct mha_attend_row *row = &p->row[i];
        row->hi = all ? S : random_below(S + 1);
        row->lo = all ? 0 : random_below(row->hi + 1);
        row->sees_extra = 1;
        row->q = p->q + i * D;
        row->out = p->out + i * Dv;
        row->lse = p->lse + i;
        row->weights = p->weights + i * (S + p->extras);
        row->weights_mean = p->mean + i * (S + p->extras);
        for (int64_t j = row->lo; j < row->hi; j++)
            p->mask[i * S + j] = 1;
    }
}

static void problem_free(struct problem *p)
{
    void *const blocks[] = { p->q,       p->k,   p->v,   p->extra_k, p->extra_v, p->mask,
                             p->scratch, p->out, p->lse, p->weights, p->mean };
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        guarded_free(blocks[i]);
}

/* The same problem in the interface's terms, for the oracles. */
struct question {
    struct mha_tensor q, k, v, extra_k, extra_v, mask;
    struct mha_inputs inputs;
    struct mha_options options;
};

static void question_make(struct question *o, struct problem *p)
{
    *o = (struct question){
        .q = mha_tensor_4d(p->q, MHA_FLOAT32, 1, p->rows, 1, p->D),
        .k = mha_tensor_4d(p->k, MHA_FLOAT32, 1, p->S, 1, p->D),
        .v = mha_tensor_4d(p->v, MHA_FLOAT32, 1, p->S, 1, p->Dv),
        .extra_k = mha_tensor_2d(p->extra_k, MHA_FLOAT32, 1, p->D),
        .extra_v = mha_tensor_2d(p->extra_v, MHA_FLOAT32, 1, p->Dv),
        .mask = mha_tensor_4d(p->mask, MHA_UINT8, 1, 1, p->rows, p->S),
    };
    o->inputs = (struct mha_inputs){ .query = &o->q, .key = &o->k, .value = &o->v };
    if (p->extras) {
        o->inputs.bias_k = &o->extra_k;
        o->inputs.bias_v = &o->extra_v;
    }
    o->options = (struct mha_options){ .mask_kind = MHA_MASK_KEEP, .mask = &o->mask };
}

/*
 * A bound for operands below 1, first order in u = 2^-24. A score's chain of D roundings over terms
 * whose sum is at most D / sqrt(D) errs by D sqrt(D) u; e^x turns that into a relative error, in the
 * numerator and in the denominator. The sums over the keys and the rest add at most (S + 10) u.
 */
static double bound(const struct problem *p)
{
    double D = (double)p->D, S = (double)(p->S + p->extras);
    return 0x1p-24 * (2 * D * sqrt(D) + S + 10);
}

static void check_answer(const char *name, struct problem *p, bool canonical)
{
    struct question o;
    question_make(&o, p);
    int64_t keys = p->rows * (p->S + p->extras);
    struct reference_result want;
    reference_attention(&o.inputs, &o.options, &want);
    check_close(name, p->out, want.out, want.out_count, bound(p));
    check_close(name, p->lse, want.lse, want.lse_count, bound(p));
    check_close(name, p->weights, want.weights, want.weights_count, bound(p));
    reference_free(&want);
    /* One head: its mean is itself. */
    check_same_bits(name, p->mean, p->weights, keys);
    if (canonical) {
        struct canonical_result bits;
        canonical_attention(&o.inputs, &o.options, &bits);
        check_same_bits(name, p->out, bits.out, p->rows * p->Dv);
        check_same_bits(name, p->lse, bits.lse, p->rows);
        check_same_bits(name, p->weights, bits.weights, keys);
        canonical_free(&bits);
    }
}

/* The same outputs, with each split for itself and the splits in any order. */
static void check_shared(const char *name, const struct mha_kernels *kernels,
                         const struct mha_attend_tile *tile, struct problem *p)
{
    int64_t splits = p->S / MHA_SPLIT + (p->S % MHA_SPLIT != 0), n = p->rows * p->Dv;
    int64_t keys = p->rows * (p->S + p->extras), step = random_below(2) == 0 ? 1 : -1;
    float *const got[] = { p->out, p->lse, p->weights };
    const int64_t counts[] = { n, p->rows, keys };
    float *parts = guarded_floats(splits * mha_attend_part_floats(p->rows, p->Dv)),
          *want[COUNT(got)];
    for (int64_t i = 0; i < COUNT(got); i++) {
        want[i] = guarded_floats(counts[i]);
        memcpy(want[i], got[i], (size_t)counts[i] * sizeof(float));
        memset(got[i], 0, (size_t)counts[i] * sizeof(float));
    }
    for (int64_t i = step > 0 ? 0 : splits - 1; i >= 0 && i < splits; i += step)
        kernels->attend_split_f32(tile, i, parts);
    kernels->attend_join_f32(tile, parts);
    for (int64_t i = 0; i < COUNT(got); i++) {
        check_same_bits(name, got[i], want[i], counts[i]);
        guarded_free(want[i]);
    }
    guarded_free(parts);
}

static void check_problem(struct problem *p)
{
    for (int64_t i = 0; i < COUNT(levels); i++) {
        if (!runs_here(levels[i]->isa))
            continue;
        char name[128];
        snprintf(name, sizeof name, "%s rows %d S %d D %d Dv %d", levels[i]->isa, (int)p->rows,
                 (int)p->S, (int)p->D, (int)p->Dv);
        struct mha_attend_tile tile = {
            .rows = p->row,
            .n_rows = p->rows,
            .k = p->k,
            .v = p->v,
            .k_stride = p->D,
            .v_stride = p->Dv,
            .D = p->D,
            .Dv = p->Dv,
            .S = p->S,
            .extra_k = p->extra_k,
            .extra_v = p->extra_v,
            .extras = p->extras,
            .scale = (float)(1.0 / sqrt((double)p->D)),
            .mean_step = MHA_MEAN_FIRST | MHA_MEAN_LAST,
            .heads = 1,
            .scratch = p->scratch,
        };
        levels[i]->attend_f32(&tile, NULL);
        check_answer(name, p, strcmp(levels[i]->isa, "generic") != 0);
        check_shared(name, levels[i], &tile, p);
    }
}

static void check_size(int64_t rows, int64_t S, int64_t D, int64_t Dv)
{
    struct problem p;
    problem_make(&p, rows, S, D, Dv);
    check_problem(&p);
    problem_free(&p);
}

/* Rows: around each vector of a tile. */
static void attend_f32_rows(void **state)
{
    (void)state;
    for (int64_t rows = 1; rows <= MHA_TILE_ROWS; rows++)
        check_size(rows, 1 + random_below(70), 1 + random_below(20), 1 + random_below(20));
}

/* The rows at the end see no key, however many they are. */
static void attend_f32_blind_rows(void **state)
{
    (void)state;
    for (int64_t seeing = 0; seeing < MHA_TILE_ROWS; seeing++) {
        struct problem p;
        problem_make(&p, MHA_TILE_ROWS, 1 + random_below(30), 1 + random_below(20),
                     1 + random_below(20));
        for (int64_t i = seeing; i < p.rows; i++)
            p.row[i].lo = p.row[i].hi = random_below(p.S + 1);
        memset(p.mask + seeing * p.S, 0, (size_t)((p.rows - seeing) * p.S));
        check_problem(&p);
        problem_free(&p);
    }
}

/* Keys: every remainder of the register tiles, around blocks and splits. */
static void attend_f32_keys(void **state)
{
    (void)state;
    for (int64_t S = 0; S <= 2 * MHA_BLOCK + 2; S++)
        check_size(1 + random_below(MHA_TILE_ROWS), S, 7, 5);
    for (int64_t S = MHA_SPLIT - 2; S <= MHA_SPLIT + 2; S++)
        check_size(19, S, 3, 2);
    for (int64_t rows = 1; rows <= MHA_TILE_ROWS; rows += 1 + random_below(12))
        check_size(rows, 2 * MHA_SPLIT + random_below(MHA_SPLIT), 2, 3);
    check_size(5, 2 * MHA_SPLIT + MHA_BLOCK + 1, 2, 3);
}

/* Widths: every remainder of the register tiles, up to three vectors and two. */
static void attend_f32_widths(void **state)
{
    (void)state;
    for (int64_t D = 1; D <= 50; D++)
        check_size(1 + random_below(MHA_TILE_ROWS), 1 + random_below(66), D, 51 - D);
    check_size(17, 65, 128, 257);
}

/* ---- project_f32 ------------------------------------------------------------------------------ */

enum { MOST_DEPTHS = 3 };

/* Rows x [rows, K] through panels of [N, K] weights, the inputs in `depths` blocks, outputs in heads of
 * `width` that lie `rows` rows apart. */
static void check_projection(int64_t rows, int64_t K, int64_t N, int64_t width, int64_t depths)
{
    int64_t panels = (N + MHA_PANEL - 1) / MHA_PANEL, heads = N / width;
    float *x = guarded_floats(rows * K), *w = guarded_floats(N * K), *b = guarded_floats(N);
    float *residual = guarded_floats(rows * N), *y = guarded_floats(rows * N);
    float *packed = guarded_floats(panels * MHA_PANEL * K), *want = guarded_floats(rows * N);
    float *partial = guarded_floats(rows * panels * MHA_PANEL);
    double *value = guarded(rows * N * (int64_t)sizeof *value);
    const float *residual_rows[MHA_PROJECT_ROWS];
    float *y_rows[MHA_PROJECT_ROWS];
    bool has_b = random_below(2), has_residual = random_below(2);
    for (int64_t i = 0; i < panels * MHA_PANEL; i++)
        for (int64_t k = 0; k < K; k++)
            packed[i / MHA_PANEL * MHA_PANEL * K + k * MHA_PANEL
                   + i % MHA_PANEL] = i < N ? w[i * K + k] : 0;
    for (int64_t i = 0; i < rows; i++) {
        residual_rows[i] = residual + i * N;
        y_rows[i] = y + i * width;
    }
    canonical_project(x, w, has_b ? b : NULL, has_residual ? residual : NULL, rows, K, N, want);
    for (int64_t i = 0; i < rows * N; i++)
        value[i] = want[i];
    for (int64_t level = 0; level < COUNT(levels); level++) {
        if (!runs_here(levels[level]->isa))
            continue;
        for (int64_t i = 0; i < depths; i++) {
            int64_t k = K * i / depths;
            levels[level]->project_f32(&(struct mha_project_tile){
                .rows = rows,
                .depth = K * (i + 1) / depths - k,
                .x = x + k,
                .x_stride = K,
                .panels = packed + k * MHA_PANEL,
                .panel_stride = K * MHA_PANEL,
                .n_end = N,
                .width = width,
                .b = has_b ? b : NULL,
                .residual = has_residual ? residual_rows : NULL,
                .y = y_rows,
                .residual_head = width,
                .y_head = rows * width,
                .first = i == 0,
                .last = i == depths - 1,
                .partial = partial,
                .partial_stride = panels * MHA_PANEL,
            });
        }
        char name[128];
        snprintf(name, sizeof name, "%s rows %d K %d N %d width %d", levels[level]->isa, (int)rows,
                 (int)K, (int)N, (int)width);
        for (int64_t row = 0; row < rows; row++)
            for (int64_t h = 0; h < heads; h++) {
                const float *got = y + (h * rows + row) * width;
                int64_t at = row * N + h * width;
                if (strcmp(levels[level]->isa, "generic") != 0)
                    check_same_bits(name, got, want + at, width);
                else /* sums of K products below 1, and two more numbers */
                    check_close(name, got, value + at, width,
                                0x1p-23 * (double)(K + 2) * (double)K);
            }
    }
    void *const blocks[] = { x, w, b, residual, y, packed, want, partial, value };
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        guarded_free(blocks[i]);
}

/* Every remainder of register tiles, panels and heads. */
static void project_f32_sizes(void **state)
{
    (void)state;
    for (int64_t rows = 1; rows <= 34; rows++)
        check_projection(rows, 1 + random_below(40), 3 * (1 + random_below(20)), 3, 1);
    for (int64_t N = 1; N <= 100; N++)
        check_projection(1 + random_below(20), 1 + random_below(20), N, N, 1);
    for (int64_t width = 1; width <= 40; width++)
        check_projection(5, 7, 4 * width, width, 1);
    check_projection(MHA_PROJECT_ROWS, 3, 19, 19, 1);
}

/* Sums that wait between blocks of inputs keep their bits. */
static void project_f32_depths(void **state)
{
    (void)state;
    for (int64_t K = MOST_DEPTHS; K <= 40; K++)
        check_projection(1 + random_below(20), K, 16 * (1 + random_below(5)), 16, MOST_DEPTHS);
    check_projection(9, 2 * MHA_PROJECT_DEPTH + 1, 33, 11, MOST_DEPTHS);
}

enum { KERNELS_TESTED = 4 };
_Static_assert(sizeof(struct mha_kernels)
                   == sizeof(const char *) + KERNELS_TESTED * sizeof(void (*)(void)),
               "every kernel of the table has its tests here");

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attend_f32_rows),   cmocka_unit_test(attend_f32_blind_rows),
        cmocka_unit_test(attend_f32_keys),   cmocka_unit_test(attend_f32_widths),
        cmocka_unit_test(project_f32_sizes), cmocka_unit_test(project_f32_depths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
