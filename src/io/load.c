/*
 * A layer from the tensors of a file. Three questions the caller must answer, for no size can: what
 * the tensors are called, whether and how the three projections are fused, and which way the
 * matrices lie. What remains is arithmetic: find the tensors, resolve the sizes, check every shape,
 * read, sort the rows of a fused matrix by projection, hand over.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "io/safetensors.h"
#include "io/text.h"
#include "layer.h"
#include "tensor.h"

enum projection { Q, K, V, PROJECTIONS };

/* What a naming calls the tensors, after the prefix; NULL: it has none such. */
struct names {
    const char *w_fused, *b_fused;
    const char *w[PROJECTIONS], *b[PROJECTIONS];
    const char *w_o, *b_o;
    const char *bias_k, *bias_v;
};

static const struct names torch_names = {
    .w_fused = "in_proj_weight",
    .b_fused = "in_proj_bias",
    .w = { "q_proj_weight", "k_proj_weight", "v_proj_weight" },
    .w_o = "out_proj.weight",
    .b_o = "out_proj.bias",
    .bias_k = "bias_k",
    .bias_v = "bias_v",
};

static const struct names bert_names = {
    .w = { "self.query.weight", "self.key.weight", "self.value.weight" },
    .b = { "self.query.bias", "self.key.bias", "self.value.bias" },
    .w_o = "output.dense.weight",
    .b_o = "output.dense.bias",
};

struct loader {
    mha_context *ctx;
    const mha_safetensors *file;
    struct mha_layer_source source;
    struct mha_layer_shape shape;
    /* The tensors in the file; NULL: not there, or not wanted. */
    const struct mha_entry *w_fused, *b_fused;
    const struct mha_entry *w[PROJECTIONS], *b[PROJECTIONS];
    const struct mha_entry *w_o, *b_o;
    const struct mha_entry *bias_k, *bias_v;
    /* The projections: all rows, and the width of a row. */
    int64_t rows[PROJECTIONS], width[PROJECTIONS];
    /* Fused rows lie in groups: so many rows of Q, of K and of V in each. */
    int64_t groups, group_rows[PROJECTIONS];
};

/* ---- finding --------------------------------------------------------------------------------- */

static const struct mha_entry *find(const struct loader *loader, const char *name)
{
    return name ? mha_header_find(&loader->file->header, loader->source.prefix, name) : NULL;
}

static mha_status require(const struct loader *loader, const char *name,
                          const struct mha_entry **entry)
{
    mha_status status = MHA_OK;
    *entry = find(loader, name);
    REQUIRE(loader->ctx, *entry, MHA_ERROR_NOT_FOUND, "the file has no tensor \"%s%s\"",
            mha_text_show(loader->source.prefix).text, name);
done:
    return status;
}

static mha_status find_all(struct loader *loader, const struct names *names)
{
    mha_status status = MHA_OK;
    if (loader->source.fusion == MHA_FUSION_SEPARATE) {
        for (int p = Q; p < PROJECTIONS; p++)
            TRY(require(loader, names->w[p], &loader->w[p]));
    } else {
        TRY(require(loader, names->w_fused, &loader->w_fused));
    }
    TRY(require(loader, names->w_o, &loader->w_o));
    loader->b_fused = find(loader, names->b_fused);
    for (int p = Q; p < PROJECTIONS; p++)
        loader->b[p] = find(loader, names->b[p]);
    loader->b_o = find(loader, names->b_o);
    loader->bias_k = find(loader, names->bias_k);
    loader->bias_v = find(loader, names->bias_v);
    if (loader->bias_k || loader->bias_v) {
        TRY(require(loader, names->bias_k, &loader->bias_k));
        TRY(require(loader, names->bias_v, &loader->bias_v));
    }
done:
    return status;
}

static mha_status check_source(struct loader *loader, const struct names **names)
{
    mha_status status = MHA_OK;
    mha_context *ctx = loader->ctx;
    struct mha_layer_source *source = &loader->source;
    REQUIRE(ctx, source->naming == MHA_NAMING_TORCH || source->naming == MHA_NAMING_BERT,
            MHA_ERROR_ARGUMENT, "source.naming is %" PRId32 ", wanted one of enum mha_naming",
            source->naming);
    REQUIRE(ctx, source->fusion >= MHA_FUSION_SEPARATE && source->fusion <= MHA_FUSION_PER_GROUP,
            MHA_ERROR_ARGUMENT, "source.fusion is %" PRId32 ", wanted one of enum mha_fusion",
            source->fusion);
    REQUIRE(ctx, source->orientation == MHA_OUT_IN || source->orientation == MHA_IN_OUT,
            MHA_ERROR_ARGUMENT,
            "source.orientation is %" PRId32 ", wanted one of enum mha_orientation",
            source->orientation);
    REQUIRE(ctx, source->reserved == 0, MHA_ERROR_ARGUMENT,
            "source.reserved is %" PRId32 ", wanted 0", source->reserved);
    *names = source->naming == MHA_NAMING_TORCH ? &torch_names : &bert_names;
    REQUIRE(ctx, source->fusion == MHA_FUSION_SEPARATE || (*names)->w_fused, MHA_ERROR_ARGUMENT,
            "source.fusion is %" PRId32 ", but BERT's naming has separate matrices only",
            source->fusion);
    if (!source->prefix)
        source->prefix = "";
done:
    return status;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* A tensor's name as the subject of a message. */
struct label {
    char text[160];
};

static struct label label_of(const struct mha_entry *entry)
{
    struct label label;
    snprintf(label.text, sizeof label.text, "tensor \"%s\"", mha_text_show(entry->name).text);
    return label;
}

static mha_status check_float(const struct loader *loader, const struct mha_entry *entry)
{
    mha_status status = MHA_OK;
    REQUIRE(loader->ctx, mha_convert_possible(entry->stored.type, MHA_FLOAT32), MHA_ERROR_TYPE,
            "%s is %s, which is not converted to float32", label_of(entry).text, entry->dtype);
done:
    return status;
}

/* The two sizes of a matrix, whichever way it lies. */
static mha_status measure(const struct loader *loader, const struct mha_entry *entry, int64_t *out,
                          int64_t *in)
{
    mha_status status = MHA_OK;
    struct mha_tensor tensor = mha_convert_tensor(&entry->stored);
    REQUIRE(loader->ctx, tensor.rank == 2 && tensor.shape[0] > 0 && tensor.shape[1] > 0,
            MHA_ERROR_SHAPE, "%s has the shape %s, wanted a matrix with elements",
            label_of(entry).text, mha_tensor_text(&tensor).text);
    bool turned = loader->source.orientation == MHA_IN_OUT;
    *out = tensor.shape[turned];
    *in = tensor.shape[!turned];
done:
    return status;
}

static mha_status check_matrix(const struct loader *loader, const struct mha_entry *entry,
                               const char *out_symbol, int64_t out, const char *in_symbol,
                               int64_t in)
{
    mha_status status = MHA_OK;
    struct mha_tensor tensor = mha_convert_tensor(&entry->stored);
    bool turned = loader->source.orientation == MHA_IN_OUT;
    char symbols[48];
    snprintf(symbols, sizeof symbols, "[%s, %s]", turned ? in_symbol : out_symbol,
             turned ? out_symbol : in_symbol);
    int64_t wanted[2] = { turned ? in : out, turned ? out : in };
    TRY(mha_tensor_check_shape(loader->ctx, label_of(entry).text, &tensor, symbols, 2, wanted));
    TRY(check_float(loader, entry));
done:
    return status;
}

/* A bias, or PyTorch's [1, 1, n]. NULL is fine. */
static mha_status check_vector(const struct loader *loader, const struct mha_entry *entry,
                               const char *symbols, int32_t rank, int64_t n)
{
    mha_status status = MHA_OK;
    if (!entry)
        goto done;
    struct mha_tensor tensor = mha_convert_tensor(&entry->stored);
    int64_t wanted[3] = { 1, 1, 1 };
    wanted[rank - 1] = n;
    TRY(mha_tensor_check_shape(loader->ctx, label_of(entry).text, &tensor, symbols, rank, wanted));
    TRY(check_float(loader, entry));
done:
    return status;
}

static mha_status divide(const struct loader *loader, const struct mha_entry *entry,
                         const char *rows_symbol, int64_t rows, const char *heads_symbol,
                         int64_t heads, int64_t *width)
{
    mha_status status = MHA_OK;
    REQUIRE(loader->ctx, rows % heads == 0, MHA_ERROR_SHAPE,
            "%s has %s = %" PRId64 ", wanted a multiple of %s = %" PRId64, label_of(entry).text,
            rows_symbol, rows, heads_symbol, heads);
    *width = rows / heads;
done:
    return status;
}

static void fill(int64_t *size, int64_t found)
{
    if (*size == 0)
        *size = found;
}

/* Three matrices tell every size. */
static mha_status resolve_separate(struct loader *loader)
{
    mha_status status = MHA_OK;
    struct mha_layer_shape *s = &loader->shape;
    int64_t out[PROJECTIONS], in[PROJECTIONS];
    for (int p = Q; p < PROJECTIONS; p++)
        TRY(measure(loader, loader->w[p], &out[p], &in[p]));
    fill(&s->E, in[Q]);
    fill(&s->E_key, in[K]);
    fill(&s->E_value, in[V]);
    if (s->D == 0)
        TRY(divide(loader, loader->w[Q], "rows", out[Q], "H", s->H, &s->D));
    if (s->Dv == 0)
        TRY(divide(loader, loader->w[V], "rows", out[V], "G", s->G, &s->Dv));
done:
    return status;
}

/* One matrix tells E and the sum of all rows; the widths of heads are given, or the usual ones. */
static mha_status resolve_fused(struct loader *loader)
{
    mha_status status = MHA_OK;
    struct mha_layer_shape *s = &loader->shape;
    int64_t out, in;
    TRY(measure(loader, loader->w_fused, &out, &in));
    fill(&s->E, in);
    fill(&s->E_key, s->E);
    fill(&s->E_value, s->E);
    REQUIRE(loader->ctx, s->E_key == s->E && s->E_value == s->E, MHA_ERROR_SHAPE,
            "shape.E is %" PRId64 ", E_key %" PRId64 " and E_value %" PRId64
            ", wanted one width for the one matrix %s",
            s->E, s->E_key, s->E_value, label_of(loader->w_fused).text);
    if (s->D == 0)
        TRY(divide(loader, loader->w_fused, "E", s->E, "H", s->H, &s->D));
    fill(&s->Dv, s->D);
done:
    return status;
}

static mha_status check_sizes(struct loader *loader)
{
    mha_status status = MHA_OK;
    mha_context *ctx = loader->ctx;
    struct mha_layer_shape *s = &loader->shape;
    const struct {
        const char *name;
        int64_t size;
    } sizes[] = {
        { "E", s->E }, { "E_key", s->E_key }, { "E_value", s->E_value }, { "E_out", s->E_out },
        { "G", s->G }, { "D", s->D },         { "Dv", s->Dv },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        REQUIRE(ctx, sizes[i].size >= 0, MHA_ERROR_ARGUMENT,
                "shape.%s is %" PRId64 ", must not be negative", sizes[i].name, sizes[i].size);
    REQUIRE(ctx, s->H > 0, MHA_ERROR_ARGUMENT, "shape.H is %" PRId64 ", wanted at least 1", s->H);
    fill(&s->G, s->H);
    REQUIRE(ctx, s->H % s->G == 0, MHA_ERROR_ARGUMENT,
            "shape.H is %" PRId64 " and G %" PRId64 ", wanted H to be a multiple of G", s->H, s->G);
    REQUIRE(ctx, loader->source.fusion != MHA_FUSION_PER_HEAD || s->G == s->H, MHA_ERROR_ARGUMENT,
            "shape.H is %" PRId64 " and G %" PRId64 ", wanted them equal for rows fused per head",
            s->H, s->G);
done:
    return status;
}

/* Resolves the zeros of the shape, and what follows from them. */
static mha_status resolve(struct loader *loader)
{
    mha_status status = MHA_OK;
    struct mha_layer_shape *s = &loader->shape;
    int64_t out, in;
    TRY(check_sizes(loader));
    TRY(loader->w_fused ? resolve_fused(loader) : resolve_separate(loader));
    TRY(measure(loader, loader->w_o, &out, &in));
    fill(&s->E_out, out);
    const int64_t heads[PROJECTIONS] = { s->H, s->G, s->G };
    const int64_t widths[PROJECTIONS] = { s->D, s->D, s->Dv };
    const int64_t inputs[PROJECTIONS] = { s->E, s->E_key, s->E_value };
    int64_t all = 0;
    bool per_head = loader->source.fusion == MHA_FUSION_PER_HEAD;
    bool per_group = loader->source.fusion == MHA_FUSION_PER_GROUP;
    loader->groups = per_head || per_group ? s->G : 1;
    for (int p = Q; p < PROJECTIONS; p++) {
        REQUIRE(loader->ctx,
                mha_memory_product(heads[p], widths[p], &loader->rows[p])
                    && !__builtin_add_overflow(all, loader->rows[p], &all),
                MHA_ERROR_OVERFLOW,
                "shape has %" PRId64 " heads of width %" PRId64 ", more rows than can be counted",
                heads[p], widths[p]);
        loader->width[p] = inputs[p];
        loader->group_rows[p] = loader->rows[p] / loader->groups;
    }
done:
    return status;
}

static mha_status check_shapes(const struct loader *loader)
{
    mha_status status = MHA_OK;
    static const char *const rows[] = { "H*D", "G*D", "G*Dv" };
    static const char *const row_lists[] = { "[H*D]", "[G*D]", "[G*Dv]" };
    static const char *const widths[] = { "E", "E_key", "E_value" };
    const struct mha_layer_shape *s = &loader->shape;
    int64_t all = loader->rows[Q] + loader->rows[K] + loader->rows[V], heads = 0;
    if (loader->w_fused)
        TRY(check_matrix(loader, loader->w_fused, "H*D + G*D + G*Dv", all, "E", s->E));
    for (int p = Q; p < PROJECTIONS; p++) {
        if (loader->w[p])
            TRY(check_matrix(loader, loader->w[p], rows[p], loader->rows[p], widths[p],
                             loader->width[p]));
        TRY(check_vector(loader, loader->b[p], row_lists[p], 1, loader->rows[p]));
    }
    REQUIRE(loader->ctx, mha_memory_product(s->H, s->Dv, &heads), MHA_ERROR_OVERFLOW,
            "shape has %" PRId64 " heads of width %" PRId64 ", more than can be counted", s->H,
            s->Dv);
    TRY(check_matrix(loader, loader->w_o, "E_out", s->E_out, "H*Dv", heads));
    TRY(check_vector(loader, loader->b_fused, "[H*D + G*D + G*Dv]", 1, all));
    TRY(check_vector(loader, loader->b_o, "[E_out]", 1, s->E_out));
    TRY(check_vector(loader, loader->bias_k, "[1, 1, G*D]", 3, loader->rows[K]));
    TRY(check_vector(loader, loader->bias_v, "[1, 1, G*Dv]", 3, loader->rows[V]));
done:
    return status;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* The weights as float32 [out, in]. Fused ones are read as they lie and then sorted; where they lie
 * in one group, they are sorted already, and both are the same memory. */
struct weights {
    float *w[PROJECTIONS], *b[PROJECTIONS];
    float *w_fused, *b_fused;
    float *w_o, *b_o, *bias_k, *bias_v;
};

static void lay_out(const struct loader *loader, struct mha_arena *arena, struct weights *weights)
{
    const struct mha_layer_shape *s = &loader->shape;
    int64_t rows = 0, elements = 0;
    for (int p = Q; p < PROJECTIONS; p++) {
        rows += loader->rows[p];
        elements += loader->rows[p] * loader->width[p];
    }
    float *w = mha_arena_take(arena, elements, sizeof *w);
    float *b = mha_arena_take(arena, rows, sizeof *b);
    weights->w_fused = w;
    weights->b_fused = b;
    if (loader->groups > 1) {
        weights->w_fused = mha_arena_take(arena, elements, sizeof *w);
        weights->b_fused = mha_arena_take(arena, rows, sizeof *b);
    }
    for (int p = Q; arena->base && p < PROJECTIONS; p++) {
        weights->w[p] = w;
        weights->b[p] = b;
        w += loader->rows[p] * loader->width[p];
        b += loader->rows[p];
    }
    weights->w_o = mha_arena_take(arena, s->E_out * s->H * s->Dv, sizeof *w);
    weights->b_o = mha_arena_take(arena, s->E_out, sizeof *b);
    weights->bias_k = mha_arena_take(arena, loader->rows[K], sizeof *b);
    weights->bias_v = mha_arena_take(arena, loader->rows[V], sizeof *b);
}

/* Sorts fused rows by projection. */
static void sort_rows(const struct loader *loader, const float *fused, int64_t width,
                      float *const *sorted)
{
    for (int64_t group = 0; loader->groups > 1 && group < loader->groups; group++)
        for (int p = Q; p < PROJECTIONS; p++) {
            int64_t n = loader->group_rows[p] * width;
            memcpy(sorted[p] + group * n, fused, (size_t)n * sizeof *fused);
            fused += n;
        }
}

static mha_status read_tensor(const struct loader *loader, const struct mha_entry *entry,
                              const struct mha_tensor *into)
{
    return mha_convert_read(loader->ctx, &loader->file->file, &entry->stored, into);
}

/* Whichever way the matrix lies in the file, in memory it is [out, in]. */
static mha_status read_matrix(const struct loader *loader, const struct mha_entry *entry,
                              float *data, int64_t out, int64_t in)
{
    struct mha_tensor into = mha_tensor_2d(data, MHA_FLOAT32, out, in);
    if (loader->source.orientation == MHA_IN_OUT) {
        into = mha_tensor_2d(data, MHA_FLOAT32, in, out);
        into.strides[0] = 1;
        into.strides[1] = in;
    }
    return read_tensor(loader, entry, &into);
}

static mha_status read_vector(const struct loader *loader, const struct mha_entry *entry,
                              float *data)
{
    if (!entry)
        return MHA_OK;
    struct mha_tensor into = mha_convert_tensor(&entry->stored);
    into.type = MHA_FLOAT32;
    into.data = data;
    return read_tensor(loader, entry, &into);
}

static mha_status read_weights(const struct loader *loader, const struct weights *weights)
{
    mha_status status = MHA_OK;
    const struct mha_layer_shape *s = &loader->shape;
    int64_t all = loader->rows[Q] + loader->rows[K] + loader->rows[V];
    if (loader->w_fused) {
        TRY(read_matrix(loader, loader->w_fused, weights->w_fused, all, s->E));
        sort_rows(loader, weights->w_fused, s->E, weights->w);
    }
    if (loader->b_fused) {
        TRY(read_vector(loader, loader->b_fused, weights->b_fused));
        sort_rows(loader, weights->b_fused, 1, weights->b);
    }
    for (int p = Q; p < PROJECTIONS; p++) {
        if (loader->w[p])
            TRY(read_matrix(loader, loader->w[p], weights->w[p], loader->rows[p],
                            loader->width[p]));
        TRY(read_vector(loader, loader->b[p], weights->b[p]));
    }
    TRY(read_matrix(loader, loader->w_o, weights->w_o, s->E_out, s->H * s->Dv));
    TRY(read_vector(loader, loader->b_o, weights->b_o));
    TRY(read_vector(loader, loader->bias_k, weights->bias_k));
    TRY(read_vector(loader, loader->bias_v, weights->bias_v));
done:
    return status;
}

static mha_status make(const struct loader *loader, const struct weights *weights,
                       mha_layer **layer)
{
    const struct mha_layer_shape *s = &loader->shape;
    struct mha_tensor w[PROJECTIONS], b[PROJECTIONS];
    const struct mha_tensor *given[PROJECTIONS];
    for (int p = Q; p < PROJECTIONS; p++) {
        w[p] = mha_tensor_2d(weights->w[p], MHA_FLOAT32, loader->rows[p], loader->width[p]);
        b[p] = mha_tensor_1d(weights->b[p], MHA_FLOAT32, loader->rows[p]);
        given[p] = loader->b_fused || loader->b[p] ? &b[p] : NULL;
    }
    struct mha_tensor w_o = mha_tensor_2d(weights->w_o, MHA_FLOAT32, s->E_out, s->H * s->Dv);
    struct mha_tensor b_o = mha_tensor_1d(weights->b_o, MHA_FLOAT32, s->E_out);
    struct mha_tensor bias_k = mha_tensor_2d(weights->bias_k, MHA_FLOAT32, s->G, s->D);
    struct mha_tensor bias_v = mha_tensor_2d(weights->bias_v, MHA_FLOAT32, s->G, s->Dv);
    struct mha_weights all = {
        .w_q = &w[Q],
        .w_k = &w[K],
        .w_v = &w[V],
        .w_o = &w_o,
        .b_q = given[Q],
        .b_k = given[K],
        .b_v = given[V],
        .b_o = loader->b_o ? &b_o : NULL,
        .bias_k = loader->bias_k ? &bias_k : NULL,
        .bias_v = loader->bias_v ? &bias_v : NULL,
    };
    return mha_layer_make(loader->ctx, s, &all, MHA_COPY, layer);
}

mha_status mha_layer_load(mha_context *ctx, const mha_safetensors *file,
                          const struct mha_layer_source *source,
                          const struct mha_layer_shape *shape, mha_layer **layer)
{
    if (layer)
        *layer = NULL;
    if (!ctx)
        return MHA_ERROR_ARGUMENT;
    mha_status status = mha_context_enter(ctx, "mha_layer_load");
    if (status != MHA_OK)
        return status;
    struct loader loader = { .ctx = ctx, .file = file };
    struct weights weights = { 0 };
    struct mha_arena arena = { 0 };
    const struct names *names = NULL;
    void *block = NULL;
    int64_t block_bytes = 0;
    REQUIRE(ctx, file && source && shape && layer, MHA_ERROR_ARGUMENT, "%s is NULL",
            !file     ? "file"
            : !source ? "source"
            : !shape  ? "shape"
                      : "layer");
    TRY(mha_context_take_struct(ctx, "source", source, sizeof *source, sizeof *source,
                                &loader.source));
    TRY(mha_context_take_struct(ctx, "shape", shape, sizeof *shape, sizeof *shape, &loader.shape));
    loader.shape.size = 0;
    TRY(check_source(&loader, &names));
    TRY(find_all(&loader, names));
    TRY(resolve(&loader));
    TRY(check_shapes(&loader));
    lay_out(&loader, &arena, &weights);
    REQUIRE(ctx, arena.used >= 0, MHA_ERROR_OVERFLOW,
            "the weights in the file exceed 2^63 bytes of float32");
    block_bytes = arena.used;
    TRY(mha_context_allocate(ctx, "weights", block_bytes, &block));
    arena = (struct mha_arena){ .base = block };
    lay_out(&loader, &arena, &weights);
    TRY(read_weights(&loader, &weights));
    TRY(make(&loader, &weights, layer));
done:
    mha_memory_release(&ctx->allocator, block, block_bytes);
    return mha_context_leave(ctx, status);
}
