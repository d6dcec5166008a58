#include "plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* A call being checked: copies of the public structs and what is known so far. */
struct draft {
    mha_context *ctx;
    bool look;              /* at data, lengths and overlap: a call, not a query */
    const mha_layer *layer; /* NULL in mha_attention */
    struct mha_inputs in;
    struct mha_options opt;
    struct mha_outputs out;
    struct mha_tensor self; /* stands for key and value in self attention */
    struct mha_plan *plan;
};

/* ---- small pieces ----------------------------------------------------------------------------- */

int64_t mha_counts_get(const struct mha_counts *counts, int64_t b)
{
    if (counts->type == MHA_INT32)
        return ((const int32_t *)counts->data)[b * counts->stride];
    return ((const int64_t *)counts->data)[b * counts->stride];
}

/* Any nonzero address, for operands a query does not look at: their presence is what counts.
 * Nothing is read or written there. */
static const float presence;

static float *data_of(const struct draft *d, const struct mha_tensor *tensor)
{
    return d->look && tensor->data ? tensor->data : (float *)&presence;
}

/* Strides of a tensor whose axes 0, 1, 2 are B, L, head. Axis 2 of rows [B, L, width] is no head. */
static struct mha_view view_of(const struct draft *d, const struct mha_tensor *tensor, bool heads)
{
    if (!tensor)
        return (struct mha_view){ 0 };
    return (struct mha_view){
        .data = data_of(d, tensor),
        .b = mha_tensor_stride(tensor, 0),
        .l = mha_tensor_stride(tensor, 1),
        .h = heads ? mha_tensor_stride(tensor, 2) : 0,
    };
}

/* An input of that type and rank, well-formed; its sizes are checked by the caller. */
static mha_status check_input(const struct draft *d, const char *name,
                              const struct mha_tensor *tensor, int32_t type, int32_t rank,
                              const char *symbols)
{
    mha_status status = MHA_OK;
    TRY(d->look ? mha_tensor_check(d->ctx, name, tensor)
                : mha_tensor_check_layout(d->ctx, name, tensor));
    TRY(mha_tensor_check_type(d->ctx, name, tensor, type));
    REQUIRE(d->ctx, tensor->rank == rank, MHA_ERROR_SHAPE,
            "%s has the shape %s, wanted rank %" PRId32 ": %s", name, mha_tensor_text(tensor).text,
            rank, symbols);
done:
    return status;
}

/* The same, and of exactly that shape. */
static mha_status check_input_shape(const struct draft *d, const char *name,
                                    const struct mha_tensor *tensor, const char *symbols,
                                    int32_t rank, const int64_t *shape)
{
    mha_status status = MHA_OK;
    TRY(check_input(d, name, tensor, MHA_FLOAT32, rank, symbols));
    TRY(mha_tensor_check_shape(d->ctx, name, tensor, symbols, rank, shape));
done:
    return status;
}

static mha_status check_output(const struct draft *d, const char *name,
                               const struct mha_tensor *tensor, const char *symbols, int32_t rank,
                               const int64_t *shape)
{
    mha_status status = MHA_OK;
    TRY(d->look ? mha_tensor_check_output(d->ctx, name, tensor)
                : mha_tensor_check_output_layout(d->ctx, name, tensor));
    TRY(mha_tensor_check_type(d->ctx, name, tensor, MHA_FLOAT32));
    TRY(mha_tensor_check_shape(d->ctx, name, tensor, symbols, rank, shape));
done:
    return status;
}

/* ---- inputs ----------------------------------------------------------------------------------- */

/* key = value = NULL is the query; one of them alone is an error. */
static mha_status resolve_self(struct draft *d)
{
    mha_status status = MHA_OK;
    REQUIRE(d->ctx, d->in.query, MHA_ERROR_ARGUMENT, "query is NULL");
    REQUIRE(d->ctx, !d->in.key == !d->in.value, MHA_ERROR_ARGUMENT,
            "%s is NULL and %s is not, wanted both (or neither: self attention)",
            d->in.key ? "value" : "key", d->in.key ? "key" : "value");
    if (!d->in.key) {
        d->self = *d->in.query;
        d->in.key = d->in.value = &d->self;
    }
done:
    return status;
}

static mha_status check_heads(const struct draft *d)
{
    mha_status status = MHA_OK;
    const struct mha_plan *p = d->plan;
    const struct {
        const char *what;
        int64_t size;
    } sizes[] = { { "query heads H", p->H },
                  { "key/value heads G", p->G },
                  { "head width D", p->D },
                  { "value head width Dv", p->Dv } };
    for (int i = 0; i < 4; i++) {
        REQUIRE(d->ctx, sizes[i].size > 0, MHA_ERROR_ARGUMENT, "%s is 0, wanted at least 1",
                sizes[i].what);
        REQUIRE(d->ctx, sizes[i].size <= INT32_MAX, MHA_ERROR_OVERFLOW,
                "%s is %" PRId64 ", wanted at most 2^31 - 1", sizes[i].what, sizes[i].size);
    }
    REQUIRE(d->ctx, p->H % p->G == 0, MHA_ERROR_SHAPE,
            "query has H = %" PRId64 " heads and key G = %" PRId64
            ", wanted H to be a multiple of G",
            p->H, p->G);
done:
    return status;
}

/* mha_attention: query [B, L, H, D], key [B, S, G, D], value [B, S, G, Dv]. */
static mha_status check_heads_operands(struct draft *d)
{
    mha_status status = MHA_OK;
    struct mha_plan *p = d->plan;
    TRY(check_input(d, "query", d->in.query, MHA_FLOAT32, 4, "[B, L, H, D]"));
    TRY(check_input(d, "key", d->in.key, MHA_FLOAT32, 4, "[B, S, G, D]"));
    TRY(check_input(d, "value", d->in.value, MHA_FLOAT32, 4, "[B, S, G, Dv]"));
    p->B = d->in.query->shape[0];
    p->L = d->in.query->shape[1];
    p->H = d->in.query->shape[2];
    p->D = d->in.query->shape[3];
    p->S = d->in.key->shape[1];
    p->G = d->in.key->shape[2];
    p->Dv = d->in.value->shape[3];
    TRY(check_heads(d));
    TRY(mha_tensor_check_shape(d->ctx, "key", d->in.key, "[B, S, G, D]", 4,
                               (int64_t[]){ p->B, p->S, p->G, p->D }));
    TRY(mha_tensor_check_shape(d->ctx, "value", d->in.value, "[B, S, G, Dv]", 4,
                               (int64_t[]){ p->B, p->S, p->G, p->Dv }));
    p->q = view_of(d, d->in.query, true);
    p->k = view_of(d, d->in.key, true);
    p->v = view_of(d, d->in.value, true);
done:
    return status;
}

/* mha_forward: query [B, L, E], key [B, S, E_key], value [B, S, E_value]. */
static mha_status check_row_operands(struct draft *d)
{
    mha_status status = MHA_OK;
    struct mha_plan *p = d->plan;
    const struct mha_layer_shape *s = &d->layer->shape;
    TRY(check_input(d, "query", d->in.query, MHA_FLOAT32, 3, "[B, L, E]"));
    TRY(check_input(d, "key", d->in.key, MHA_FLOAT32, 3, "[B, S, E_key]"));
    TRY(check_input(d, "value", d->in.value, MHA_FLOAT32, 3, "[B, S, E_value]"));
    p->B = d->in.query->shape[0];
    p->L = d->in.query->shape[1];
    p->S = d->in.key->shape[1];
    p->H = s->H;
    p->G = s->G;
    p->D = s->D;
    p->Dv = s->Dv;
    bool self = d->in.key == &d->self;
    TRY(mha_tensor_check_shape(d->ctx, "query", d->in.query, "[B, L, E]", 3,
                               (int64_t[]){ p->B, p->L, s->E }));
    TRY(mha_tensor_check_shape(d->ctx, self ? "query (as key)" : "key", d->in.key, "[B, S, E_key]",
                               3, (int64_t[]){ p->B, p->S, s->E_key }));
    TRY(mha_tensor_check_shape(d->ctx, self ? "query (as value)" : "value", d->in.value,
                               "[B, S, E_value]", 3, (int64_t[]){ p->B, p->S, s->E_value }));
    p->query_rows = view_of(d, d->in.query, false);
    p->key_rows = view_of(d, d->in.key, false);
    p->value_rows = view_of(d, d->in.value, false);
done:
    return status;
}

/* The pair of the inputs or of the layer, and the number of extra keys. */
static mha_status check_extras(struct draft *d)
{
    mha_status status = MHA_OK;
    struct mha_plan *p = d->plan;
    const struct mha_tensor *k = d->in.bias_k, *v = d->in.bias_v;
    REQUIRE(d->ctx, !k == !v, MHA_ERROR_ARGUMENT, "%s is given without %s", k ? "bias_k" : "bias_v",
            k ? "bias_v" : "bias_k");
    bool own = d->layer && mha_layer_has(d->layer, MHA_BIAS_K);
    REQUIRE(d->ctx, !k || !own, MHA_ERROR_ARGUMENT,
            "bias_k and bias_v are given, but the layer has a pair of its own");
    if (k) {
        TRY(check_input_shape(d, "bias_k", k, "[G, D]", 2, (int64_t[]){ p->G, p->D }));
        TRY(check_input_shape(d, "bias_v", v, "[G, Dv]", 2, (int64_t[]){ p->G, p->Dv }));
    }
    if (own) {
        k = &d->layer->weight[MHA_BIAS_K];
        v = &d->layer->weight[MHA_BIAS_V];
    }
    if (k) {
        p->bias_k = (struct mha_view){ .data = data_of(d, k), .h = mha_tensor_stride(k, 0) };
        p->bias_v = (struct mha_view){ .data = data_of(d, v), .h = mha_tensor_stride(v, 0) };
    }
    REQUIRE(d->ctx, d->opt.zero_attention == 0 || d->opt.zero_attention == 1, MHA_ERROR_ARGUMENT,
            "zero_attention is %" PRId32 ", wanted 0 or 1", d->opt.zero_attention);
    bool zero = d->opt.zero_attention || (d->layer && d->layer->shape.zero_attention);
    p->extras = (k ? 1 : 0) + (zero ? 1 : 0);
done:
    return status;
}

/* One integer a sample, each within lo..hi. */
static mha_status check_counts(const struct draft *d, const char *name,
                               const struct mha_tensor *tensor, int64_t lo, int64_t hi,
                               const char *wanted, struct mha_counts *counts)
{
    mha_status status = MHA_OK;
    if (!tensor)
        goto done;
    int32_t type = tensor->type;
    REQUIRE(d->ctx, type == MHA_INT32 || type == MHA_INT64, MHA_ERROR_TYPE,
            "%s is %s, wanted int32 or int64", name, mha_type_text(type));
    TRY(check_input(d, name, tensor, type, 1, "[B]"));
    TRY(mha_tensor_check_shape(d->ctx, name, tensor, "[B]", 1, &d->plan->B));
    *counts = (struct mha_counts){ tensor->data, type, mha_tensor_stride(tensor, 0) };
    for (int64_t b = 0; b < d->plan->B && d->look; b++) {
        int64_t count = mha_counts_get(counts, b);
        REQUIRE(d->ctx, count >= lo && count <= hi, MHA_ERROR_ARGUMENT,
                "%s[%" PRId64 "] is %" PRId64 ", wanted %s", name, b, count, wanted);
    }
done:
    return status;
}

/* ---- options ---------------------------------------------------------------------------------- */

static mha_status check_mask(const struct draft *d)
{
    mha_status status = MHA_OK;
    struct mha_plan *p = d->plan;
    const struct mha_tensor *mask = d->opt.mask;
    int32_t kind = d->opt.mask_kind;
    REQUIRE(d->ctx, kind >= MHA_MASK_OFF && kind <= MHA_MASK_ADDITIVE, MHA_ERROR_ARGUMENT,
            "mask_kind is %" PRId32 ", wanted one of enum mha_mask_kind", kind);
    if (kind == MHA_MASK_OFF)
        goto done;
    REQUIRE(d->ctx, mask, MHA_ERROR_ARGUMENT, "mask is NULL, but mask_kind asks for one");
    bool additive = kind == MHA_MASK_ADDITIVE;
    bool fits = additive ? mask->type == MHA_FLOAT32
                         : mask->type == MHA_BOOL || mask->type == MHA_UINT8;
    REQUIRE(d->ctx, fits, MHA_ERROR_TYPE, "mask is %s, wanted %s for mask_kind %s",
            mha_type_text(mask->type), additive ? "float32" : "bool or uint8",
            additive                ? "MHA_MASK_ADDITIVE"
            : kind == MHA_MASK_KEEP ? "MHA_MASK_KEEP"
                                    : "MHA_MASK_DROP");
    TRY(check_input(d, "mask", mask, mask->type, 4, "[B, H, L, S]"));
    const int64_t full[4] = { p->B, p->H, p->L, p->S };
    for (int axis = 0; axis < 4; axis++)
        REQUIRE(d->ctx, mask->shape[axis] == full[axis] || mask->shape[axis] == 1, MHA_ERROR_SHAPE,
                "mask has the shape %s, wanted [B, H, L, S] = [%" PRId64 ", %" PRId64 ", %" PRId64
                ", %" PRId64 "] or 1 on an axis",
                mha_tensor_text(mask).text, full[0], full[1], full[2], full[3]);
    p->mask_kind = kind;
    p->mask = mask->data;
    p->mask_b = mha_tensor_stride(mask, 0);
    p->mask_h = mha_tensor_stride(mask, 1);
    p->mask_l = mha_tensor_stride(mask, 2);
    p->mask_s = mha_tensor_stride(mask, 3);
    p->mask_bytes = mha_type_bytes(mask->type);
done:
    return status;
}

static mha_status check_window(const struct draft *d)
{
    mha_status status = MHA_OK;
    struct mha_plan *p = d->plan;
    const struct mha_options *o = &d->opt;
    REQUIRE(d->ctx, o->causal == 0 || o->causal == 1, MHA_ERROR_ARGUMENT,
            "causal is %" PRId32 ", wanted 0 or 1", o->causal);
    REQUIRE(d->ctx, (o->window & ~(MHA_WINDOW_LEFT | MHA_WINDOW_RIGHT)) == 0, MHA_ERROR_ARGUMENT,
            "window is %" PRId32 ", wanted flags of enum mha_window_flag", o->window);
    p->left = p->right = INT64_MAX;
    if (o->window & MHA_WINDOW_LEFT) {
        REQUIRE(d->ctx, o->window_left >= 0, MHA_ERROR_ARGUMENT,
                "window_left is %" PRId64 ", must not be negative", o->window_left);
        p->left = o->window_left;
    }
    if (o->window & MHA_WINDOW_RIGHT) {
        REQUIRE(d->ctx, o->window_right >= 0, MHA_ERROR_ARGUMENT,
                "window_right is %" PRId64 ", must not be negative", o->window_right);
        p->right = o->window_right;
    }
    if (o->causal)
        p->right = 0;

    REQUIRE(d->ctx, o->align >= MHA_ALIGN_TOP_LEFT && o->align <= MHA_ALIGN_OFFSETS,
            MHA_ERROR_ARGUMENT, "align is %" PRId32 ", wanted one of enum mha_align_mode",
            o->align);
    p->align = o->align;
    if (o->align == MHA_ALIGN_OFFSETS) {
        REQUIRE(d->ctx, o->offsets, MHA_ERROR_ARGUMENT,
                "offsets is NULL, but align is MHA_ALIGN_OFFSETS");
        int64_t most = (int64_t)1 << 62;
        TRY(check_counts(d, "offsets", o->offsets, -most, most, "-2^62 to 2^62", &p->offsets));
    }
done:
    return status;
}

static mha_status check_score_options(const struct draft *d)
{
    mha_status status = MHA_OK;
    struct mha_plan *p = d->plan;
    const struct mha_options *o = &d->opt;
    REQUIRE(d->ctx, o->scale_mode == MHA_SCALE_DEFAULT || o->scale_mode == MHA_SCALE_VALUE,
            MHA_ERROR_ARGUMENT, "scale_mode is %" PRId32 ", wanted one of enum mha_scale_mode",
            o->scale_mode);
    p->scale = (float)(1.0 / sqrt((double)p->D));
    if (o->scale_mode == MHA_SCALE_VALUE) {
        REQUIRE(d->ctx, isfinite(o->scale), MHA_ERROR_ARGUMENT,
                "scale is %g, wanted a finite number", (double)o->scale);
        p->scale = o->scale;
    }
    REQUIRE(d->ctx, o->softcap_mode == MHA_SOFTCAP_OFF || o->softcap_mode == MHA_SOFTCAP_TANH,
            MHA_ERROR_ARGUMENT, "softcap_mode is %" PRId32 ", wanted one of enum mha_softcap_mode",
            o->softcap_mode);
    p->softcap = 0;
    if (o->softcap_mode == MHA_SOFTCAP_TANH) {
        REQUIRE(d->ctx, o->softcap >= 0x1p-126f && o->softcap <= 0x1p126f, MHA_ERROR_ARGUMENT,
                "softcap is %g, wanted 2^-126 to 2^126", (double)o->softcap);
        p->softcap = o->softcap;
    }
    REQUIRE(d->ctx, o->reserved == 0, MHA_ERROR_ARGUMENT,
            "options.reserved is %" PRId32 ", wanted 0", o->reserved);
done:
    return status;
}

/* ---- outputs ---------------------------------------------------------------------------------- */

/* Why the layer's output has the width it has, for whoever wanted another. */
static const char *width_cause(const struct draft *d, char *text, size_t bytes)
{
    const struct mha_layer_shape *s = &d->layer->shape;
    text[0] = '\0';
    if (!mha_layer_has(d->layer, MHA_W_O))
        snprintf(text, bytes,
                 ": the layer has no W_O to bring the concat of width H*Dv = %" PRId64
                 " back to E = %" PRId64,
                 s->H * s->Dv, s->E);
    else if (s->E_out != s->E)
        snprintf(text, bytes,
                 ": W_O [%" PRId64 ", %" PRId64 "] leads to width %" PRId64
                 ", not back to E = %" PRId64,
                 s->E_out, s->H * s->Dv, s->E_out, s->E);
    return text;
}

/* The residual has the very shape of the output. */
static mha_status check_residual(const struct draft *d, int32_t rank, const char *symbols,
                                 const int64_t *shape)
{
    mha_status status = MHA_OK;
    const struct mha_tensor *residual = d->in.residual;
    if (!residual)
        goto done;
    REQUIRE(d->ctx, d->out.out, MHA_ERROR_ARGUMENT, "residual is given, but out is NULL");
    TRY(d->look ? mha_tensor_check(d->ctx, "residual", residual)
                : mha_tensor_check_layout(d->ctx, "residual", residual));
    TRY(mha_tensor_check_type(d->ctx, "residual", residual, MHA_FLOAT32));
    bool same = residual->rank == rank;
    for (int32_t axis = 0; axis < rank && same; axis++)
        same = residual->shape[axis] == shape[axis];
    struct mha_tensor output = { .rank = rank };
    for (int32_t axis = 0; axis < rank; axis++)
        output.shape[axis] = shape[axis];
    char cause[160] = "";
    if (!same && d->layer)
        width_cause(d, cause, sizeof cause);
    REQUIRE(
        d->ctx, same, MHA_ERROR_SHAPE,
        "residual has the shape %s and the output %s = %s%s; a residual is never broadcast, cut "
        "or padded",
        mha_tensor_text(residual).text, symbols, mha_tensor_text(&output).text, cause);
done:
    return status;
}

static mha_status check_outputs(const struct draft *d)
{
    mha_status status = MHA_OK;
    struct mha_plan *p = d->plan;
    const struct mha_outputs *o = &d->out;
    int64_t keys = p->S + p->extras;
    REQUIRE(d->ctx, o->out || o->lse || o->weights || o->weights_mean, MHA_ERROR_ARGUMENT,
            "outputs has no tensor, wanted at least one");
    if (d->layer) {
        const int64_t shape[] = { p->B, p->L, mha_layer_out_width(d->layer) };
        const char *symbols = mha_layer_has(d->layer, MHA_W_O) ? "[B, L, E_out]" : "[B, L, H*Dv]";
        TRY(check_residual(d, 3, symbols, shape));
        if (o->out)
            TRY(check_output(d, "out", o->out, symbols, 3, shape));
        p->out_rows = view_of(d, o->out, false);
        p->residual_rows = view_of(d, d->in.residual, false);
    } else {
        const int64_t shape[] = { p->B, p->L, p->H, p->Dv };
        TRY(check_residual(d, 4, "[B, L, H, Dv]", shape));
        if (o->out)
            TRY(check_output(d, "out", o->out, "[B, L, H, Dv]", 4, shape));
        p->out = view_of(d, o->out, true);
        p->residual = view_of(d, d->in.residual, true);
    }
    if (o->lse) {
        TRY(check_output(d, "lse", o->lse, "[B, H, L]", 3, (int64_t[]){ p->B, p->H, p->L }));
        p->lse = (struct mha_view){ data_of(d, o->lse), mha_tensor_stride(o->lse, 0),
                                    mha_tensor_stride(o->lse, 2), mha_tensor_stride(o->lse, 1) };
    }
    if (o->weights) {
        TRY(check_output(d, "weights", o->weights, "[B, H, L, S + extra keys]", 4,
                         (int64_t[]){ p->B, p->H, p->L, keys }));
        p->weights = (struct mha_view){ data_of(d, o->weights), mha_tensor_stride(o->weights, 0),
                                        mha_tensor_stride(o->weights, 2),
                                        mha_tensor_stride(o->weights, 1) };
    }
    if (o->weights_mean) {
        TRY(check_output(d, "weights_mean", o->weights_mean, "[B, L, S + extra keys]", 3,
                         (int64_t[]){ p->B, p->L, keys }));
        p->weights_mean = view_of(d, o->weights_mean, false);
    }
done:
    return status;
}

/* Is `out` the very view that is the residual and this input? */
static bool is_in_place(const struct draft *d, const struct mha_tensor *in)
{
    return d->in.residual && mha_tensor_same_view(d->out.out, d->in.residual)
           && mha_tensor_same_view(d->out.out, in);
}

/*
 * No output may overlap an input, another output, or a weight, but `out` may be the residual and with
 * it some inputs: each element of the residual is read just before its sum is written. The query,
 * key and value rows of mha_forward are used up by then; of mha_attention's operands only the query
 * rows are, each by its own tile.
 */
static mha_status check_overlaps(const struct draft *d)
{
    mha_status status = MHA_OK;
    bool self = d->in.key == &d->self;
    const struct {
        const char *name;
        const struct mha_tensor *tensor;
        bool may_be_out;
    } outputs[] = { { "out", d->out.out, false },
                    { "lse", d->out.lse, false },
                    { "weights", d->out.weights, false },
                    { "weights_mean", d->out.weights_mean, false } },
      inputs[] = { { "query", d->in.query, true },
                   { self ? "query (as key)" : "key", d->in.key, d->layer != NULL },
                   { self ? "query (as value)" : "value", d->in.value, d->layer != NULL },
                   { "residual", d->in.residual, true },
                   { "query_lengths", d->in.query_lengths, false },
                   { "key_lengths", d->in.key_lengths, false },
                   { "bias_k", d->in.bias_k, false },
                   { "bias_v", d->in.bias_v, false },
                   { "mask", d->opt.mask_kind ? d->opt.mask : NULL, false },
                   { "offsets", d->opt.align == MHA_ALIGN_OFFSETS ? d->opt.offsets : NULL,
                     false } };
    enum {
        OUTPUTS = sizeof outputs / sizeof outputs[0],
        INPUTS = sizeof inputs / sizeof inputs[0]
    };
    for (int o = 0; o < OUTPUTS; o++) {
        const struct mha_tensor *output = outputs[o].tensor;
        if (!output)
            continue;
        for (int i = 0; i < INPUTS; i++)
            REQUIRE(d->ctx,
                    !inputs[i].tensor || !mha_tensor_overlap(output, inputs[i].tensor)
                        || (o == 0 && inputs[i].may_be_out && is_in_place(d, inputs[i].tensor)),
                    MHA_ERROR_LAYOUT, "%s overlaps %s in memory", outputs[o].name, inputs[i].name);
        for (int i = 0; i < o; i++)
            REQUIRE(d->ctx, !outputs[i].tensor || !mha_tensor_overlap(output, outputs[i].tensor),
                    MHA_ERROR_LAYOUT, "%s overlaps %s in memory", outputs[o].name, outputs[i].name);
        for (int i = 0; i < MHA_WEIGHTS && d->layer; i++)
            REQUIRE(d->ctx, !mha_tensor_overlap(output, &d->layer->weight[i]), MHA_ERROR_LAYOUT,
                    "%s overlaps a weight of the layer in memory", outputs[o].name);
    }
done:
    return status;
}

/* ---- the plan --------------------------------------------------------------------------------- */

/* So few that sums of several such counts fit 64 bits. */
#define MOST_ELEMENTS ((int64_t)1 << 60)

/* Counts that loops and scratch make of the sizes fit 64 bits, also those of one sample when there
 * is none. */
static mha_status check_products(const struct draft *d)
{
    mha_status status = MHA_OK;
    const struct mha_plan *p = d->plan;
    int64_t width = max_i64(p->D, p->Dv), B = max_i64(p->B, 1), rows = 0, keys = 0;
    bool fit = mha_memory_product(B, p->L, &rows) && mha_memory_product(rows, p->H, &rows)
               && mha_memory_product(rows, width, &rows) && mha_memory_product(B, p->S, &keys)
               && mha_memory_product(keys, p->G, &keys) && mha_memory_product(keys, width, &keys)
               && rows <= MOST_ELEMENTS && keys <= MOST_ELEMENTS;
    REQUIRE(d->ctx, fit, MHA_ERROR_OVERFLOW,
            "B = %" PRId64 ", L = %" PRId64 ", S = %" PRId64 ", H = %" PRId64
            " make more than 2^60 elements",
            p->B, p->L, p->S, p->H);
done:
    return status;
}

static mha_status make_plan(struct draft *d, const struct mha_inputs *inputs,
                            const struct mha_options *options, const struct mha_outputs *outputs)
{
    mha_status status = MHA_OK;
    struct mha_plan *p = d->plan;
    *p = (struct mha_plan){ 0 };
    REQUIRE(d->ctx, inputs && outputs, MHA_ERROR_ARGUMENT, "%s is NULL",
            inputs ? "outputs" : "inputs");
    TRY(mha_context_take_struct(d->ctx, "inputs", inputs, sizeof d->in, sizeof d->in, &d->in));
    TRY(mha_context_take_struct(d->ctx, "options", options, sizeof d->opt, sizeof d->opt, &d->opt));
    TRY(mha_context_take_struct(d->ctx, "outputs", outputs, sizeof d->out, sizeof d->out, &d->out));
    TRY(resolve_self(d));
    TRY(d->layer ? check_row_operands(d) : check_heads_operands(d));
    TRY(check_products(d));
    TRY(check_extras(d));
    TRY(check_counts(d, "query_lengths", d->in.query_lengths, 0, p->L, "0 to L",
                     &p->query_lengths));
    TRY(check_counts(d, "key_lengths", d->in.key_lengths, 0, p->S, "0 to S", &p->key_lengths));
    TRY(check_score_options(d));
    TRY(check_mask(d));
    TRY(check_window(d));
    TRY(check_outputs(d));
    if (d->look)
        TRY(check_overlaps(d));
done:
    return status;
}

mha_status mha_plan(mha_context *ctx, const mha_layer *layer, const struct mha_inputs *inputs,
                    const struct mha_options *options, const struct mha_outputs *outputs,
                    enum mha_plan_purpose purpose, struct mha_plan *plan)
{
    struct draft d = { .ctx = ctx, .look = purpose == MHA_PLAN_CALL, .layer = layer, .plan = plan };
    return make_plan(&d, inputs, options, outputs);
}
