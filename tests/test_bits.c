/*
 * What no bit may depend on, on both roads and with any options: the number of threads, the batch
 * around a sample, how its rows are cut into calls, how operands lie in memory, the caller's control
 * word, and the instruction-set level. Random cases for each; test_attend holds the same kind of
 * cases against the oracles, test_threads has executors and lanes that meet in every order.
 *
 * The linker puts a function of this file in front of the library's (--wrap), so that the smallest
 * call is shared by all threads.
 */
#include "fixture.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "canonical.h"
#include "generated_layer.h"
#include "threads.h"

int64_t __wrap_mha_threads_lanes(const struct mha_threads *threads, double work, int64_t items);
int64_t __wrap_mha_threads_lanes(const struct mha_threads *threads, double work, int64_t items)
{
    (void)work;
    int64_t lanes = threads->count < items ? threads->count : items;
    return lanes > 1 ? lanes : 1;
}

/* ---- contexts --------------------------------------------------------------------------------- */

static const int64_t thread_counts[] = { 2, 3, 7 };
enum { POOLS = sizeof thread_counts / sizeof thread_counts[0], MOST_LEVELS = 4 };

static mha_context *pools[POOLS];
/* The other levels of this machine that have the canonical bits. */
static mha_context *others[MOST_LEVELS];
static int64_t other_count;

static bool is_canonical(void)
{
    return strcmp(mha_context_isa(ctx), "generic") != 0;
}

static int open_contexts(void **state)
{
    static const char *const canonical[] = { "avx2", "avx512", "neon" };
    open_context(state);
    for (int i = 0; i < POOLS; i++)
        if (mha_context_create(&(struct mha_context_options){ .threads = thread_counts[i] },
                               &pools[i])
            != MHA_OK)
            return -1;
    for (int64_t i = 0; i < COUNT(canonical) && is_canonical(); i++)
        if (strcmp(canonical[i], mha_context_isa(ctx)) != 0
            && mha_context_create(&(struct mha_context_options){ .isa = canonical[i] },
                                  &others[other_count])
                   == MHA_OK)
            other_count++;
    return 0;
}

static int close_contexts(void **state)
{
    for (int i = 0; i < POOLS; i++)
        mha_context_free(pools[i]);
    for (int64_t i = 0; i < other_count; i++)
        mha_context_free(others[i]);
    return close_context(state);
}

/* ---- a call and its results ------------------------------------------------------------------- */

struct call {
    const mha_layer *layer; /* NULL: mha_attention */
    const struct mha_inputs *inputs;
    const struct mha_options *options;
    int64_t B, L, S, H, keys; /* keys with the extra ones */
    int64_t widths[2];        /* of `out` behind B and L: H and Dv, or the layer's width and 0 */
    const char *text;
};

/* All outputs, contiguous and guarded, with random numbers in them. */
struct results {
    float *data[4];
    int64_t count[4];
    struct mha_tensor t[4];
    struct mha_outputs outputs;
};

static const char *const output_names[4] = { "out", "lse", "weights", "weights_mean" };
/* The axes of samples and rows of each. */
static const int sample_axis = 0;
static const int row_axes[4] = { 1, 2, 2, 1 };

static void point_at(struct mha_outputs *outputs, struct mha_tensor *t)
{
    *outputs = (struct mha_outputs){
        .out = &t[0], .lse = &t[1], .weights = &t[2], .weights_mean = &t[3]
    };
}

static void results_make(const struct call *c, struct results *r)
{
    int64_t B = c->B, L = c->L, n = c->widths[1];
    r->t[0] = n ? mha_tensor_4d(NULL, MHA_FLOAT32, B, L, c->widths[0], n)
                : mha_tensor_3d(NULL, MHA_FLOAT32, B, L, c->widths[0]);
    r->t[1] = mha_tensor_3d(NULL, MHA_FLOAT32, B, c->H, L);
    r->t[2] = mha_tensor_4d(NULL, MHA_FLOAT32, B, c->H, L, c->keys);
    r->t[3] = mha_tensor_3d(NULL, MHA_FLOAT32, B, L, c->keys);
    for (int i = 0; i < 4; i++) {
        r->count[i] = mha_tensor_count(&r->t[i]);
        r->t[i].data = r->data[i] = guarded_floats(r->count[i]);
    }
    point_at(&r->outputs, r->t);
}

static void results_free(struct results *r)
{
    for (int i = 0; i < 4; i++)
        guarded_free(r->data[i]);
}

/* Compares the first `n` outputs, and makes them something else for the next call. */
static void check_first(const struct call *c, const char *what, struct results *got,
                        const struct results *want, int n)
{
    for (int i = 0; i < n; i++) {
        char text[1200];
        snprintf(text, sizeof text, "%s%s: %s", c->text, what, output_names[i]);
        check_same_bits(text, got->data[i], want->data[i], got->count[i]);
        random_fill(got->data[i], got->count[i]);
    }
}

static void check_same(const struct call *c, const char *what, struct results *got,
                       const struct results *want)
{
    check_first(c, what, got, want, 4);
}

static mha_status make_call(mha_context *with, const struct call *c,
                            const struct mha_inputs *inputs, const struct mha_options *options,
                            const struct mha_outputs *outputs)
{
    return c->layer ? mha_forward(with, c->layer, inputs, options, outputs)
                    : mha_attention(with, inputs, options, outputs);
}

static void run(mha_context *with, const struct call *c, const struct mha_inputs *inputs,
                const struct mha_options *options, const struct mha_outputs *outputs)
{
    if (make_call(with, c, inputs, options, outputs) != MHA_OK)
        fail_msg("%s: %s", c->text, mha_context_message(with));
}

/* ---- threads, levels, control words ----------------------------------------------------------- */

static void check_threads(const struct call *c, struct results *got, const struct results *want)
{
    for (int i = 0; i < POOLS; i++) {
        char what[32];
        snprintf(what, sizeof what, "%" PRId64 " threads", thread_counts[i]);
        run(pools[i], c, c->inputs, c->options, &got->outputs);
        check_same(c, what, got, want);
        /* Without weights the threads may share the keys of a tile. */
        struct mha_outputs two = { .out = got->outputs.out, .lse = got->outputs.lse };
        run(pools[i], c, c->inputs, c->options, &two);
        check_first(c, what, got, want, 2);
    }
}

static void check_levels(const struct call *c, struct results *got, const struct results *want)
{
    for (int64_t i = 0; i < other_count; i++) {
        run(others[i], c, c->inputs, c->options, &got->outputs);
        check_same(c, mha_context_isa(others[i]), got, want);
    }
}

/* Subnormal inputs and results are zeros for a host that says so, but not in a call. */
static void check_flushing(const struct call *c, struct results *got, const struct results *want)
{
#if defined(__x86_64__)
    const unsigned flush = 0x8040; /* FTZ and DAZ */
    mha_context *const with[] = { ctx, pools[1] };
    for (int64_t i = 0; i < COUNT(with); i++) {
        unsigned host = _mm_getcsr();
        _mm_setcsr(host | flush);
        mha_status status = make_call(with[i], c, c->inputs, c->options, &got->outputs);
        _mm_setcsr(host);
        check_status(with[i], status, MHA_OK);
        check_same(c, "FTZ and DAZ", got, want);
    }
#else
    (void)c;
    (void)got;
    (void)want;
#endif
}

/* ---- samples and rows alone ------------------------------------------------------------------- */

enum { MOST_SAMPLES = 3 };

/* Samples b..b+nb-1 and their query rows l..l+nl-1 as a call that writes where the whole would. */
struct part {
    struct mha_tensor query, key, value, residual, mask, query_lengths, key_lengths, offsets;
    int64_t lengths[MOST_SAMPLES], positions[MOST_SAMPLES];
    struct mha_inputs inputs;
    struct mha_options options;
    struct mha_tensor to[4];
    struct mha_outputs outputs;
};

/* *field = a copy of its tensor, in `copy`, that has only elements first..first+n-1 of an axis. */
static void narrow(const struct mha_tensor **field, struct mha_tensor *copy, int axis,
                   int64_t first, int64_t n)
{
    if (!*field)
        return;
    *copy = **field;
    *field = copy;
    copy->data = (char *)copy->data + first * copy->strides[axis] * mha_type_bytes(copy->type);
    copy->shape[axis] = n;
}

/* Whose position row 0 of sample b has. */
static int64_t first_position(const struct call *c, int64_t b)
{
    const struct mha_inputs *in = c->inputs;
    if (c->options->align == MHA_ALIGN_OFFSETS)
        return integer_at(c->options->offsets, b);
    if (c->options->align != MHA_ALIGN_BOTTOM_RIGHT)
        return 0;
    return (in->key_lengths ? integer_at(in->key_lengths, b) : c->S)
           - (in->query_lengths ? integer_at(in->query_lengths, b) : c->L);
}

/* The farthest position that a call takes; beyond it nothing changes any more. */
static int64_t at_most_farthest(int64_t position)
{
    const int64_t farthest = INT64_C(1) << 62;
    return position < farthest ? position : farthest;
}

/* Fewer rows: where they stand, and how many there are, has to be said. */
static void cut_rows(const struct call *c, int64_t b, int64_t nb, int64_t l, int64_t nl,
                     struct part *p)
{
    narrow(&p->inputs.query, &p->query, 1, l, nl);
    narrow(&p->inputs.residual, &p->residual, 1, l, nl);
    if (p->options.mask && p->mask.shape[2] > 1)
        narrow(&p->options.mask, &p->mask, 2, l, nl);
    for (int64_t i = 0; i < nb; i++) {
        p->positions[i] = at_most_farthest(first_position(c, b + i) + l);
        int64_t rows = c->inputs->query_lengths ? integer_at(c->inputs->query_lengths, b + i) - l
                                                : nl;
        p->lengths[i] = rows < 0 ? 0 : rows < nl ? rows : nl;
    }
    p->offsets = mha_tensor_1d_const(p->positions, MHA_INT64, nb);
    p->options.align = MHA_ALIGN_OFFSETS;
    p->options.offsets = &p->offsets;
    p->query_lengths = mha_tensor_1d_const(p->lengths, MHA_INT64, nb);
    p->inputs.query_lengths = c->inputs->query_lengths ? &p->query_lengths : NULL;
}

static void run_part(mha_context *with, const struct call *c, int64_t b, int64_t nb, int64_t l,
                     int64_t nl, const struct results *into)
{
    struct part p = { .inputs = *c->inputs, .options = *c->options };
    if (!p.inputs.key)
        p.inputs.key = p.inputs.value = p.inputs.query;
    narrow(&p.inputs.query, &p.query, 0, b, nb);
    narrow(&p.inputs.key, &p.key, 0, b, nb);
    narrow(&p.inputs.value, &p.value, 0, b, nb);
    narrow(&p.inputs.residual, &p.residual, 0, b, nb);
    narrow(&p.inputs.query_lengths, &p.query_lengths, 0, b, nb);
    narrow(&p.inputs.key_lengths, &p.key_lengths, 0, b, nb);
    if (p.options.align == MHA_ALIGN_OFFSETS)
        narrow(&p.options.offsets, &p.offsets, 0, b, nb);
    bool broadcast = p.options.mask && p.options.mask->shape[0] == 1;
    narrow(&p.options.mask, &p.mask, 0, broadcast ? 0 : b, broadcast ? 1 : nb);
    if (nl < c->L)
        cut_rows(c, b, nb, l, nl, &p);
    for (int i = 0; i < 4; i++) {
        const struct mha_tensor *field = &into->t[i];
        narrow(&field, &p.to[i], sample_axis, b, nb);
        narrow(&field, &p.to[i], row_axes[i], l, nl);
    }
    point_at(&p.outputs, p.to);
    run(with, c, &p.inputs, &p.options, &p.outputs);
}

static mha_context *any_context(void)
{
    int64_t i = random_below(POOLS + 1);
    return i == 0 ? ctx : pools[i - 1];
}

/* Chunks of rows around the sizes of register tiles and tiles of all levels; 0 is any of them. */
static const int64_t chunks[] = { 1, 2, 5, 11, 12, 13, 16, 17, 48, 49, 0 };

static void check_parts(const struct call *c, struct results *got, const struct results *want)
{
    for (int64_t b = 0; b < c->B; b++)
        run_part(any_context(), c, b, 1, 0, c->L, got);
    check_same(c, "samples alone", got, want);
    for (int64_t i = 0; i < COUNT(chunks); i++) {
        if (chunks[i] >= c->L)
            continue;
        char what[64];
        snprintf(what, sizeof what, "chunks of %" PRId64 " rows", chunks[i]);
        int64_t nb = chunks[i] % 2 ? 1 : c->B;
        for (int64_t b = 0; b < c->B; b += nb)
            for (int64_t l = 0, nl; l < c->L; l += nl) {
                nl = chunks[i] ? chunks[i] : chunks[random_below(COUNT(chunks) - 1)];
                nl = nl < c->L - l ? nl : c->L - l;
                run_part(any_context(), c, b, nb, l, nl, got);
            }
        check_same(c, what, got, want);
    }
}

/* ---- where operands lie ----------------------------------------------------------------------- */

/* The same tensor in memory of its own without gaps, its first two axes after the last swapped ones:
 * [B, L, H, D] as it is, or with the axes 1 and 2 (of rows: 0 and 1) in the other order. */
static void lay_again(const struct mha_tensor **field, struct mha_tensor *copy, bool swap,
                      void **block)
{
    if (!*field)
        return;
    const struct mha_tensor *from = *field;
    int64_t bytes = mha_type_bytes(from->type), stride = 1;
    *copy = *from;
    for (int axis = from->rank - 1; axis >= 0; axis--) {
        int first = from->rank - 3, to = axis; /* the swapped axes are first and first + 1 */
        if (swap && from->rank >= 3 && axis >= first && axis <= first + 1)
            to = 2 * first + 1 - axis;
        copy->strides[to] = stride;
        stride *= from->shape[to];
    }
    copy->data = *block = guarded(stride * bytes);
    for (int64_t e = 0; e < stride; e++) {
        int64_t rest = e, source = 0, target = 0;
        for (int axis = from->rank - 1; axis >= 0; axis--) {
            source += rest % from->shape[axis] * from->strides[axis];
            target += rest % from->shape[axis] * copy->strides[axis];
            rest /= from->shape[axis];
        }
        memcpy((char *)copy->data + target * bytes, (const char *)from->data + source * bytes,
               (size_t)bytes);
    }
    *field = copy;
}

static void check_layouts(const struct call *c, struct results *got, const struct results *want)
{
    for (int swap = 0; swap < 2; swap++) {
        struct part p = { .inputs = *c->inputs, .options = *c->options };
        void *blocks[7] = { NULL };
        lay_again(&p.inputs.query, &p.query, swap, &blocks[0]);
        lay_again(&p.inputs.key, &p.key, swap, &blocks[1]);
        lay_again(&p.inputs.value, &p.value, swap, &blocks[2]);
        lay_again(&p.inputs.residual, &p.residual, swap, &blocks[3]);
        lay_again(&p.inputs.query_lengths, &p.query_lengths, false, &blocks[4]);
        lay_again(&p.inputs.key_lengths, &p.key_lengths, false, &blocks[5]);
        lay_again(&p.options.mask, &p.mask, swap, &blocks[6]);
        run(any_context(), c, &p.inputs, &p.options, &got->outputs);
        check_same(c, swap ? "[B, H, L, D] or [L, B, E]" : "without gaps", got, want);
        for (int64_t i = 0; i < COUNT(blocks); i++)
            guarded_free(blocks[i]);
    }
}

/* ---- the roads -------------------------------------------------------------------------------- */

static void check_everything(const struct call *c, const struct results *want)
{
    struct results got;
    results_make(c, &got);
    check_threads(c, &got, want);
    check_levels(c, &got, want);
    check_flushing(c, &got, want);
    check_parts(c, &got, want);
    check_layouts(c, &got, want);
    results_free(&got);
}

static void check_attention(const struct generated_case *g, bool oracle)
{
    struct call c = { .inputs = &g->inputs,
                      .options = &g->options,
                      .B = g->B,
                      .L = g->L,
                      .S = g->S,
                      .H = g->H,
                      .keys = g->S + g->extra,
                      .widths = { g->H, g->Dv },
                      .text = g->text };
    struct results want;
    results_make(&c, &want);
    run(ctx, &c, c.inputs, c.options, &want.outputs);
    if (oracle && is_canonical()) {
        struct canonical_result bits;
        canonical_attention(&g->inputs, &g->options, &bits);
        const float *const from[4] = { bits.out, bits.lse, bits.weights, bits.weights_mean };
        for (int i = 0; i < 4; i++)
            check_same_bits(g->text, want.data[i], from[i], want.count[i]);
        canonical_free(&bits);
    }
    check_everything(&c, &want);
    results_free(&want);
}

static void check_cases(int64_t n, void (*make)(struct generated_case *g), bool oracle)
{
    for (; n > 0; n--) {
        struct generated_case g;
        make(&g);
        check_attention(&g, oracle);
        generated_free(&g);
    }
}

static void bits_of_attention(void **state)
{
    (void)state;
    check_cases(case_count(60), generated_make, false);
}

static void bits_of_few_rows(void **state)
{
    (void)state;
    check_cases(case_count(30), generated_make_few_rows, true);
}

/* A layer by the BLAS: threads and the caller's control word, which is all that is promised. Then
 * the same layer packed. */
static void bits_of_layers(void **state)
{
    (void)state;
    for (int64_t n = case_count(60); n > 0; n--) {
        struct generated_layer g;
        generated_layer_make(&g);
        mha_layer *layer = NULL;
        check_status(ctx, mha_layer_create(ctx, &g.shape, &g.weights, g.ownership, &layer), MHA_OK);
        struct call c = { .layer = layer,
                          .inputs = &g.inputs,
                          .options = &g.options,
                          .B = g.core.B,
                          .L = g.core.L,
                          .S = g.self ? g.core.L : g.core.S,
                          .H = g.core.H,
                          .keys = g.core.S + g.core.extra,
                          .widths = { g.out.shape[2], 0 },
                          .text = g.text };
        struct results want, got;
        results_make(&c, &want);
        results_make(&c, &got);
        run(ctx, &c, c.inputs, c.options, &want.outputs);
        check_threads(&c, &got, &want);
        check_flushing(&c, &got, &want);
        results_free(&got);

        check_status(ctx, mha_layer_pack(ctx, layer, MHA_PACK_KEEP), MHA_OK);
        run(ctx, &c, c.inputs, c.options, &want.outputs);
        check_everything(&c, &want);
        results_free(&want);
        mha_layer_free(layer);
        generated_layer_free(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_of_attention),
        cmocka_unit_test(bits_of_few_rows),
        cmocka_unit_test(bits_of_layers),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
