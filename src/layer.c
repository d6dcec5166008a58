#include "layer.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "blas.h"
#include "project.h"
#include "tensor.h"

/* One row for each weight: its name, and the shape it must have in terms of the layer's sizes. */
struct weight_rule {
    const char *name, *symbols;
    int32_t rank;
    int64_t shape[2];
};

static void weight_rules(const struct mha_layer_shape *s, struct weight_rule *rules)
{
    int64_t q = s->H * s->D, k = s->G * s->D, v = s->G * s->Dv, heads = s->H * s->Dv;
    const struct weight_rule table[MHA_WEIGHTS] = {
        [MHA_W_Q] = { "w_q", "[H*D, E]", 2, { q, s->E } },
        [MHA_W_K] = { "w_k", "[G*D, E_key]", 2, { k, s->E_key } },
        [MHA_W_V] = { "w_v", "[G*Dv, E_value]", 2, { v, s->E_value } },
        [MHA_W_O] = { "w_o", "[E_out, H*Dv]", 2, { s->E_out, heads } },
        [MHA_B_Q] = { "b_q", "[H*D]", 1, { q } },
        [MHA_B_K] = { "b_k", "[G*D]", 1, { k } },
        [MHA_B_V] = { "b_v", "[G*Dv]", 1, { v } },
        [MHA_B_O] = { "b_o", "[E_out]", 1, { s->E_out } },
        [MHA_BIAS_K] = { "bias_k", "[G, D]", 2, { s->G, s->D } },
        [MHA_BIAS_V] = { "bias_v", "[G, Dv]", 2, { s->G, s->Dv } },
    };
    memcpy(rules, table, sizeof table);
}

static void list_weights(const struct mha_weights *w, const struct mha_tensor **list)
{
    const struct mha_tensor *const all[MHA_WEIGHTS] = {
        [MHA_W_Q] = w->w_q,       [MHA_W_K] = w->w_k,       [MHA_W_V] = w->w_v, [MHA_W_O] = w->w_o,
        [MHA_B_Q] = w->b_q,       [MHA_B_K] = w->b_k,       [MHA_B_V] = w->b_v, [MHA_B_O] = w->b_o,
        [MHA_BIAS_K] = w->bias_k, [MHA_BIAS_V] = w->bias_v,
    };
    memcpy(list, all, sizeof all);
}

static mha_status check_size(mha_context *ctx, const char *name, int64_t size)
{
    mha_status status = MHA_OK;
    REQUIRE(ctx, size > 0, MHA_ERROR_ARGUMENT, "shape.%s is %" PRId64 ", wanted at least 1", name,
            size);
    REQUIRE(ctx, size <= MHA_BLAS_MAX, MHA_ERROR_OVERFLOW,
            "shape.%s is %" PRId64 ", more than the %" PRId64 " of a BLAS integer", name, size,
            MHA_BLAS_MAX);
done:
    return status;
}

/* Fills the zeros of a shape in and checks the sizes and products. */
static mha_status resolve_shape(mha_context *ctx, bool has_w_o, struct mha_layer_shape *s)
{
    mha_status status = MHA_OK;
    TRY(check_size(ctx, "E", s->E));
    TRY(check_size(ctx, "H", s->H));
    s->E_value = s->E_value ? s->E_value : s->E_key ? s->E_key : s->E;
    s->E_key = s->E_key ? s->E_key : s->E;
    s->G = s->G ? s->G : s->H;
    TRY(check_size(ctx, "E_key", s->E_key));
    TRY(check_size(ctx, "E_value", s->E_value));
    TRY(check_size(ctx, "G", s->G));
    REQUIRE(ctx, s->H % s->G == 0, MHA_ERROR_ARGUMENT,
            "shape.H is %" PRId64 " and G %" PRId64 ", wanted H to be a multiple of G", s->H, s->G);
    if (s->D == 0) {
        REQUIRE(ctx, s->E % s->H == 0, MHA_ERROR_ARGUMENT,
                "shape.D is 0 for E / H, but E = %" PRId64 " is no multiple of H = %" PRId64, s->E,
                s->H);
        s->D = s->E / s->H;
    }
    s->Dv = s->Dv ? s->Dv : s->D;
    TRY(check_size(ctx, "D", s->D));
    TRY(check_size(ctx, "Dv", s->Dv));
    TRY(check_size(ctx, "H * D", s->H * s->D));
    TRY(check_size(ctx, "H * Dv", s->H * s->Dv));
    int64_t out = has_w_o ? s->E : s->H * s->Dv;
    s->E_out = s->E_out ? s->E_out : out;
    TRY(check_size(ctx, "E_out", s->E_out));
    REQUIRE(ctx, has_w_o || s->E_out == out, MHA_ERROR_SHAPE,
            "shape.E_out is %" PRId64 ", but without w_o the output is the concat of width H*Dv = "
            "%" PRId64,
            s->E_out, out);
    REQUIRE(ctx, s->zero_attention == 0 || s->zero_attention == 1, MHA_ERROR_ARGUMENT,
            "shape.zero_attention is %" PRId32 ", wanted 0 or 1", s->zero_attention);
    REQUIRE(ctx, s->reserved == 0, MHA_ERROR_ARGUMENT, "shape.reserved is %" PRId32 ", wanted 0",
            s->reserved);
done:
    return status;
}

static mha_status check_weight(mha_context *ctx, const struct weight_rule *rule,
                               const struct mha_tensor *tensor)
{
    mha_status status = MHA_OK;
    TRY(mha_tensor_check(ctx, rule->name, tensor));
    TRY(mha_tensor_check_type(ctx, rule->name, tensor, MHA_FLOAT32));
    TRY(mha_tensor_check_shape(ctx, rule->name, tensor, rule->symbols, rule->rank, rule->shape));
    int64_t stride = tensor->rank == 2 ? mha_tensor_stride(tensor, 0) : 0;
    REQUIRE(ctx, stride <= MHA_BLAS_MAX, MHA_ERROR_OVERFLOW,
            "%s has the row stride %" PRId64 ", more than the %" PRId64 " of a BLAS integer",
            rule->name, stride, MHA_BLAS_MAX);
    REQUIRE(ctx, tensor->rank < 2 || tensor->shape[0] <= 1 || stride >= tensor->shape[1],
            MHA_ERROR_LAYOUT,
            "%s has the row stride %" PRId64 ", wanted at least the %" PRId64 " of a row",
            rule->name, stride, tensor->shape[1]);
done:
    return status;
}

static mha_status check_weights(mha_context *ctx, const struct mha_tensor *const *given,
                                const struct weight_rule *rules)
{
    mha_status status = MHA_OK;
    for (int i = 0; i < MHA_WEIGHTS; i++) {
        REQUIRE(ctx, given[i] || i > MHA_W_V, MHA_ERROR_ARGUMENT, "weights.%s is NULL",
                rules[i].name);
        if (given[i])
            TRY(check_weight(ctx, &rules[i], given[i]));
    }
    REQUIRE(ctx, given[MHA_W_O] || !given[MHA_B_O], MHA_ERROR_ARGUMENT,
            "weights.b_o is given without w_o");
    REQUIRE(ctx, !given[MHA_BIAS_K] == !given[MHA_BIAS_V], MHA_ERROR_ARGUMENT,
            "weights.%s is given without %s", given[MHA_BIAS_K] ? "bias_k" : "bias_v",
            given[MHA_BIAS_K] ? "bias_v" : "bias_k");
done:
    return status;
}

/* Contiguous copies of the weights first .. end - 1 in the arena; it only measures when its base is
 * NULL. */
static void copy_weights(const struct mha_tensor *const *given, int first, int end,
                         struct mha_arena *arena, struct mha_tensor *copies)
{
    for (int i = first; i < end; i++) {
        if (!given[i])
            continue;
        int64_t rows = given[i]->rank == 2 ? given[i]->shape[0] : 1;
        int64_t columns = given[i]->shape[given[i]->rank - 1];
        float *to = mha_arena_floats(arena, rows, 1, columns);
        if (!arena->base)
            continue;
        const float *from = given[i]->data;
        int64_t stride = given[i]->rank == 2 ? mha_tensor_stride(given[i], 0) : 0;
        for (int64_t row = 0; row < rows; row++)
            memcpy(to + row * columns, from + row * stride, (size_t)columns * sizeof *to);
        copies[i] = given[i]->rank == 2 ? mha_tensor_2d(to, MHA_FLOAT32, rows, columns)
                                        : mha_tensor_1d(to, MHA_FLOAT32, columns);
    }
}

/* The blocks of a layer: the struct with its vectors, and the matrices, which can be dropped. */
static mha_status build(mha_context *ctx, const struct mha_tensor *const *given, bool copy,
                        struct mha_layer *draft, mha_layer **out)
{
    mha_status status = MHA_OK;
    void *block = NULL;
    struct mha_arena own = { 0 }, matrices = { 0 };
    mha_arena_take(&own, 1, sizeof *draft);
    if (copy) {
        copy_weights(given, 0, MHA_MATRICES, &matrices, draft->weight);
        copy_weights(given, MHA_MATRICES, MHA_WEIGHTS, &own, draft->weight);
        TRY(mha_context_allocate(ctx, "the layer's matrices", matrices.used, &draft->matrices));
        draft->matrices_bytes = matrices.used;
    }
    TRY(mha_context_allocate(ctx, "the layer", own.used, &block));
    draft->bytes = own.used;
    own = (struct mha_arena){ .base = block };
    mha_arena_take(&own, 1, sizeof *draft);
    if (copy) {
        matrices = (struct mha_arena){ .base = draft->matrices };
        copy_weights(given, 0, MHA_MATRICES, &matrices, draft->weight);
        copy_weights(given, MHA_MATRICES, MHA_WEIGHTS, &own, draft->weight);
    } else {
        for (int i = 0; i < MHA_WEIGHTS; i++)
            if (given[i])
                draft->weight[i] = *given[i];
    }
    memcpy(block, draft, sizeof *draft);
    *out = block;
done:
    if (status != MHA_OK)
        mha_memory_release(&ctx->allocator, draft->matrices, draft->matrices_bytes);
    return status;
}

mha_status mha_layer_make(mha_context *ctx, const struct mha_layer_shape *shape,
                          const struct mha_weights *weights, int32_t ownership, mha_layer **out)
{
    mha_status status = MHA_OK;
    struct mha_layer draft = { .allocator = ctx->allocator };
    struct mha_weights taken;
    const struct mha_tensor *given[MHA_WEIGHTS];
    struct weight_rule rules[MHA_WEIGHTS];
    REQUIRE(ctx, shape && weights, MHA_ERROR_ARGUMENT, "%s is NULL", shape ? "weights" : "shape");
    REQUIRE(ctx, ownership == MHA_COPY || ownership == MHA_BORROW, MHA_ERROR_ARGUMENT,
            "ownership is %" PRId32 ", wanted MHA_COPY or MHA_BORROW", ownership);
    TRY(mha_context_take_struct(ctx, "shape", shape, sizeof draft.shape, sizeof draft.shape,
                                &draft.shape));
    TRY(mha_context_take_struct(ctx, "weights", weights, sizeof taken, sizeof taken, &taken));
    list_weights(&taken, given);
    TRY(resolve_shape(ctx, given[MHA_W_O] != NULL, &draft.shape));
    weight_rules(&draft.shape, rules);
    TRY(check_weights(ctx, given, rules));
    TRY(mha_blas_check(ctx));
    TRY(build(ctx, given, ownership == MHA_COPY, &draft, out));
done:
    return status;
}

mha_status mha_layer_create(mha_context *ctx, const struct mha_layer_shape *shape,
                            const struct mha_weights *weights, int32_t ownership, mha_layer **layer)
{
    if (layer)
        *layer = NULL;
    if (!ctx)
        return MHA_ERROR_ARGUMENT;
    mha_status status = mha_context_enter(ctx, "mha_layer_create");
    if (status != MHA_OK)
        return status;
    REQUIRE(ctx, layer, MHA_ERROR_ARGUMENT, "layer is NULL");
    TRY(mha_layer_make(ctx, shape, weights, ownership, layer));
done:
    return mha_context_leave(ctx, status);
}

void mha_layer_free(mha_layer *layer)
{
    if (!layer)
        return;
    int host_errno = errno;
    struct mha_allocator allocator = layer->allocator;
    mha_memory_release(&allocator, layer->packed, layer->packed_bytes);
    mha_memory_release(&allocator, layer->matrices, layer->matrices_bytes);
    mha_memory_release(&allocator, layer, layer->bytes);
    errno = host_errno;
}

struct mha_layer_shape mha_layer_get_shape(const mha_layer *layer)
{
    struct mha_layer_shape shape = { .size = sizeof shape };
    if (layer) {
        shape = layer->shape;
        shape.size = sizeof shape;
    }
    return shape;
}

struct mha_weights mha_layer_get_weights(const mha_layer *layer)
{
    const struct mha_tensor *w[MHA_WEIGHTS] = { NULL };
    for (int i = 0; i < MHA_WEIGHTS && layer; i++)
        if (layer->weight[i].data)
            w[i] = &layer->weight[i];
    return (struct mha_weights){
        .size = sizeof(struct mha_weights),
        .w_q = w[MHA_W_Q],
        .w_k = w[MHA_W_K],
        .w_v = w[MHA_W_V],
        .w_o = w[MHA_W_O],
        .b_q = w[MHA_B_Q],
        .b_k = w[MHA_B_K],
        .b_v = w[MHA_B_V],
        .b_o = w[MHA_B_O],
        .bias_k = w[MHA_BIAS_K],
        .bias_v = w[MHA_BIAS_V],
    };
}

bool mha_layer_has(const mha_layer *layer, enum mha_weight which)
{
    return layer->weight[which].rank > 0;
}

const float *mha_layer_data(const mha_layer *layer, enum mha_weight which)
{
    return layer->weight[which].data;
}

int64_t mha_layer_out_width(const mha_layer *layer)
{
    return layer->shape.E_out;
}

/* ---- packing ---------------------------------------------------------------------------------- */

/* Panels of all matrices in the arena; it only measures when its base is NULL. */
static void pack_matrices(const mha_layer *layer, struct mha_arena *arena, const float **panels)
{
    for (int i = 0; i < MHA_MATRICES; i++) {
        const struct mha_tensor *w = &layer->weight[i];
        panels[i] = NULL;
        if (w->rank == 0)
            continue;
        int64_t floats = mha_project_panel_floats(w->shape[0], w->shape[1]);
        float *to = mha_arena_take(arena, floats, sizeof *to);
        if (arena->base)
            mha_project_pack(w->data, mha_tensor_stride(w, 0), w->shape[0], w->shape[1], to);
        panels[i] = to;
    }
}

static void drop_panels(mha_layer *layer)
{
    mha_memory_release(&layer->allocator, layer->packed, layer->packed_bytes);
    layer->packed = NULL;
    layer->packed_bytes = 0;
    memset(layer->panels, 0, sizeof layer->panels);
}

static void drop_matrices(mha_layer *layer)
{
    mha_memory_release(&layer->allocator, layer->matrices, layer->matrices_bytes);
    layer->matrices = NULL;
    layer->matrices_bytes = 0;
    for (int i = 0; i < MHA_MATRICES; i++)
        layer->weight[i].data = NULL;
}

mha_status mha_layer_pack(mha_context *ctx, mha_layer *layer, int32_t originals)
{
    if (!ctx)
        return MHA_ERROR_ARGUMENT;
    mha_status status = mha_context_enter(ctx, "mha_layer_pack");
    if (status != MHA_OK)
        return status;
    REQUIRE(ctx, layer, MHA_ERROR_ARGUMENT, "layer is NULL");
    REQUIRE(ctx, originals == MHA_PACK_KEEP || originals == MHA_PACK_DROP, MHA_ERROR_ARGUMENT,
            "originals is %" PRId32 ", wanted MHA_PACK_KEEP or MHA_PACK_DROP", originals);
    if (mha_layer_data(layer, MHA_W_Q)) {
        const float *panels[MHA_MATRICES];
        void *block = NULL;
        struct mha_arena arena = { 0 };
        pack_matrices(layer, &arena, panels);
        TRY(mha_context_check_scratch(ctx, arena.used));
        block = mha_memory_allocate(&layer->allocator, arena.used);
        REQUIRE(ctx, block, MHA_ERROR_MEMORY, "no memory for the panels (%" PRId64 " bytes)",
                arena.used);
        drop_panels(layer);
        layer->packed = block;
        layer->packed_bytes = arena.used;
        arena = (struct mha_arena){ .base = block };
        pack_matrices(layer, &arena, layer->panels);
    }
    if (originals == MHA_PACK_DROP)
        drop_matrices(layer);
done:
    return mha_context_leave(ctx, status);
}

mha_status mha_layer_changed(mha_context *ctx, mha_layer *layer)
{
    if (!ctx)
        return MHA_ERROR_ARGUMENT;
    mha_status status = mha_context_enter(ctx, "mha_layer_changed");
    if (status != MHA_OK)
        return status;
    REQUIRE(ctx, layer, MHA_ERROR_ARGUMENT, "layer is NULL");
    REQUIRE(ctx, mha_layer_data(layer, MHA_W_Q), MHA_ERROR_ARGUMENT,
            "layer was packed with MHA_PACK_DROP: its panels are the only weights it has");
    drop_panels(layer);
done:
    return mha_context_leave(ctx, status);
}

const char *mha_layer_engine(const mha_layer *layer)
{
    return !layer ? "" : layer->packed ? "packed" : "blas";
}
