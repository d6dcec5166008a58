/* The operators of PyTorch: nn.MultiheadAttention and scaled_dot_product_attention. */
#include "conformance.h"

#include <math.h>

/* Masks are boolean or float; which of the two, or 0 after a failure. */
static int32_t kind_of(struct run *run, const struct mha_tensor *mask, int32_t boolean_kind)
{
    if (mask->type == MHA_FLOAT32)
        return MHA_MASK_ADDITIVE;
    if (mask->type == MHA_BOOL || mask->type == MHA_UINT8)
        return boolean_kind;
    run_fail(run, "unsupported: a mask of %s", mha_type_text(mask->type));
    return MHA_MASK_OFF;
}

/* ------------------------------------------------------------------------------------------------
 * mha: torch.nn.MultiheadAttention
 * --------------------------------------------------------------------------------------------- */

static const char *const mha_attributes[] = {
    "embed_dim", "num_heads",      "kdim",          "vdim",
    "bias",      "add_bias_kv",    "add_zero_attn", "batch_first",
    "unbatched", "self_attention", "need_weights",  "is_causal_hint",
    "batch",     "tgt_len",        "src_len",       NULL,
};

static const char *const mha_inputs[] = {
    "x",
    "query",
    "key",
    "value",
    "in_proj_weight",
    "q_proj_weight",
    "k_proj_weight",
    "v_proj_weight",
    "in_proj_bias",
    "out_proj.weight",
    "out_proj.bias",
    "bias_k",
    "bias_v",
    "key_padding_mask",
    "attn_mask",
    "grad_output",
    NULL,
};

/* Rows as the library takes them, [B, L, E], whatever the layout of the case: a sample of its own
 * when unbatched, and sequence first by its strides. */
static struct mha_tensor *batch_first(struct run *run, const struct mha_tensor *rows)
{
    if (!rows)
        return NULL;
    if (rows->rank == 2)
        return run_reshape(run, rows, 3, (const int64_t[]){ 1, rows->shape[0], rows->shape[1] });
    bool as_it_is = run_integer(run, "batch_first", 0) != 0;
    return run_permute(run, rows, 3,
                       as_it_is ? (const int32_t[]){ 0, 1, 2 } : (const int32_t[]){ 1, 0, 2 });
}

/* The layer from its three matrices, stacked by rows in in_proj_weight or apart when the widths of
 * key and value differ; the biases are stacked in either case. */
static mha_layer *make_layer(struct run *run)
{
    int64_t E = run_integer(run, "embed_dim", 0), H = run_integer(run, "num_heads", 0);
    const struct mha_tensor *stacked = run_input(run, "in_proj_weight");
    const struct mha_tensor *bias = run_input(run, "in_proj_bias");
    const struct mha_tensor *bias_k = run_input(run, "bias_k");
    const struct mha_tensor *bias_v = run_input(run, "bias_v");
    run_agree(run, "bias", bias != NULL);
    run_agree(run, "add_bias_kv", bias_k != NULL);
    if (E <= 0 || H <= 0 || E % H != 0)
        run_fail(run, "embed_dim and num_heads are needed, the first a multiple of the second");
    if (!run_good(run))
        return NULL;

    int64_t D = E / H;
    struct mha_weights weights = {
        .w_q = stacked ? run_slice(run, stacked, 0, E) : run_floats(run, "q_proj_weight"),
        .w_k = stacked ? run_slice(run, stacked, E, E) : run_floats(run, "k_proj_weight"),
        .w_v = stacked ? run_slice(run, stacked, 2 * E, E) : run_floats(run, "v_proj_weight"),
        .w_o = run_floats(run, "out_proj.weight"),
        .b_q = run_slice(run, bias, 0, E),
        .b_k = run_slice(run, bias, E, E),
        .b_v = run_slice(run, bias, 2 * E, E),
        .b_o = run_input(run, "out_proj.bias"),
        .bias_k = run_reshape(run, bias_k, 2, (const int64_t[]){ H, D }),
        .bias_v = run_reshape(run, bias_v, 2, (const int64_t[]){ H, D }),
    };
    if (!run_good(run))
        return NULL;
    struct mha_layer_shape shape = {
        .E = E,
        .E_key = weights.w_k->shape[1],
        .E_value = weights.w_v->shape[1],
        .H = H,
        .zero_attention = run_integer(run, "add_zero_attn", 0) != 0,
    };
    run_agree(run, "kdim", shape.E_key);
    run_agree(run, "vdim", shape.E_value);
    return run_layer(run, &shape, &weights);
}

/* What a mask adds to the score of one pair. A boolean one, true meaning may NOT attend: -inf. */
static float mask_term(const struct mha_tensor *mask, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t index[4] = { b, h, i, j };
    int64_t offset = 0;
    for (int a = 0; a < 4; a++)
        offset += mask->shape[a] == 1 ? 0 : index[a] * mask->strides[a];
    if (mask->type == MHA_FLOAT32)
        return ((const float *)mask->data)[offset];
    return ((const uint8_t *)mask->data)[offset] ? -INFINITY : 0.0f;
}

/* One mask for two that both hold: boolean when both are, else additive. */
static struct mha_tensor *both_masks(struct run *run, const struct mha_tensor *attention,
                                     const struct mha_tensor *padding, int64_t B)
{
    bool boolean = attention->type != MHA_FLOAT32 && padding->type != MHA_FLOAT32;
    int64_t H = attention->shape[1], L = attention->shape[2], S = attention->shape[3];
    int64_t n = B * H * L * S;
    uint8_t *drop = run_memory(run, n, sizeof *drop);
    float *add = run_memory(run, n, sizeof *add);
    for (int64_t e = 0; e < n; e++) {
        int64_t b = e / (H * L * S), h = e / (L * S) % H, i = e / S % L, j = e % S;
        float one = mask_term(attention, b, h, i, j), two = mask_term(padding, b, h, i, j);
        bool excluded = one == -INFINITY || two == -INFINITY;
        drop[e] = excluded;
        add[e] = excluded ? -INFINITY : one + two;
    }
    struct mha_tensor *mask = run_memory(run, 1, sizeof *mask);
    *mask = boolean ? mha_tensor_4d_const(drop, MHA_BOOL, B, H, L, S)
                    : mha_tensor_4d_const(add, MHA_FLOAT32, B, H, L, S);
    return mask;
}

/* One mask of attn_mask, [L, S] or [B*H, L, S], and key_padding_mask, [B, S] or [S] unbatched. */
static void set_mask(struct run *run, int64_t B, int64_t L, int64_t S, struct mha_options *options)
{
    int64_t H = run_integer(run, "num_heads", 0);
    const struct mha_tensor *attention = run_input(run, "attn_mask");
    const struct mha_tensor *padding = run_input(run, "key_padding_mask");
    if (attention) {
        bool flat = attention->rank == 2;
        attention = run_reshape(run, attention, 4,
                                (const int64_t[]){ flat ? 1 : B, flat ? 1 : H, L, S });
    }
    padding = run_reshape(run, padding, 4, (const int64_t[]){ B, 1, 1, S });
    if (!run_good(run))
        return;
    options->mask = attention ? attention : padding;
    if (attention && padding && kind_of(run, attention, MHA_MASK_DROP)
        && kind_of(run, padding, MHA_MASK_DROP))
        options->mask = both_masks(run, attention, padding, B);
    if (options->mask)
        options->mask_kind = kind_of(run, options->mask, MHA_MASK_DROP);
}

/* attn_weights: per head [B, H, L, S'] or their mean [B, L, S'], without B when unbatched. */
static void set_weights(struct run *run, const struct mha_tensor *weights,
                        struct mha_outputs *outputs)
{
    bool per_head = run_says(run, "need_weights", "per_head");
    bool average = !run_has(run, "need_weights") || run_says(run, "need_weights", "average");
    if (!per_head && !average && (weights || !run_says(run, "need_weights", "none")))
        run_fail(run, "unsupported: need_weights that is not none, average or per_head");
    if (!weights || !run_good(run))
        return;
    const int64_t *shape = weights->shape;
    if (per_head) {
        if (weights->rank == 3)
            weights = run_reshape(run, weights, 4,
                                  (const int64_t[]){ 1, shape[0], shape[1], shape[2] });
        outputs->weights = weights;
    } else {
        if (weights->rank == 2)
            weights = run_reshape(run, weights, 3, (const int64_t[]){ 1, shape[0], shape[1] });
        outputs->weights_mean = weights;
    }
}

void run_mha(struct run *run)
{
    run_allow(run, mha_attributes, mha_inputs);
    struct mha_tensor *x = run_input(run, "x");
    bool self = x != NULL;
    struct mha_tensor *rows = self ? x : run_floats(run, "query");
    struct mha_inputs inputs = {
        .query = batch_first(run, rows),
        .key = self ? NULL : batch_first(run, run_floats(run, "key")),
        .value = self ? NULL : batch_first(run, run_floats(run, "value")),
    };
    if (!run_good(run))
        return;
    int64_t B = inputs.query->shape[0], L = inputs.query->shape[1];
    int64_t S = self ? L : inputs.key->shape[1];
    run_agree(run, "self_attention", self);
    run_agree(run, "unbatched", rows->rank == 2);
    run_agree(run, "batch", B);
    run_agree(run, "tgt_len", L);
    run_agree(run, "src_len", S);

    struct mha_options options = { 0 };
    set_mask(run, B, L, S, &options);
    /* The hint says that attn_mask is the causal one: both together mean the same. */
    options.causal = run_integer(run, "is_causal_hint", 0) != 0;
    struct mha_tensor *out = run_output(run, "output");
    struct mha_tensor *weights = run_output(run, "attn_weights");
    struct mha_outputs outputs = { .out = batch_first(run, out) };
    set_weights(run, weights, &outputs);

    mha_layer *layer = make_layer(run);
    if (run_good(run))
        run_call(run, mha_forward(run->ctx, layer, &inputs, &options, &outputs));
    mha_layer_free(layer);
    run_compare(run, "output", out);
    run_compare(run, "attn_weights", weights);
}

/* ------------------------------------------------------------------------------------------------
 * sdpa: torch.nn.functional.scaled_dot_product_attention
 * --------------------------------------------------------------------------------------------- */

static const char *const sdpa_attributes[] = {
    "batch",      "q_heads",   "kv_heads",   "q_len", "kv_len", "head_dim",
    "v_head_dim", "is_causal", "enable_gqa", "scale", NULL,
};

static const char *const sdpa_inputs[] = {
    "query", "key", "value", "attn_mask", "grad_output", NULL,
};

/* [B, H, L, d] memory as [B, L, H, d]. */
static struct mha_tensor *heads_inside(struct run *run, const struct mha_tensor *tensor)
{
    return run_permute(run, tensor, 4, (const int32_t[]){ 0, 2, 1, 3 });
}

/* A mask is broadcast from the right; here true means may attend. */
static void set_keep(struct run *run, struct mha_options *options)
{
    const struct mha_tensor *mask = run_input(run, "attn_mask");
    if (!mask)
        return;
    int64_t shape[4] = { 1, 1, 1, 1 };
    if (mask->rank > 4) {
        run_fail(run, "unsupported: a mask of %d axes", (int)mask->rank);
        return;
    }
    for (int32_t axis = 0; axis < mask->rank; axis++)
        shape[4 - mask->rank + axis] = mask->shape[axis];
    options->mask = run_reshape(run, mask, 4, shape);
    options->mask_kind = kind_of(run, mask, MHA_MASK_KEEP);
}

static void check_sizes(struct run *run, const struct mha_inputs *inputs)
{
    const struct mha_tensor *query = inputs->query, *key = inputs->key, *value = inputs->value;
    run_agree(run, "batch", query->shape[0]);
    run_agree(run, "q_len", query->shape[1]);
    run_agree(run, "kv_len", key->shape[1]);
    run_agree(run, "q_heads", query->shape[2]);
    run_agree(run, "kv_heads", key->shape[2]);
    run_agree(run, "head_dim", query->shape[3]);
    run_agree(run, "v_head_dim", value->shape[3]);
    if (query->shape[2] != key->shape[2] && !run_integer(run, "enable_gqa", 0))
        run_fail(run, "unsupported: other heads of keys without enable_gqa");
}

void run_sdpa(struct run *run)
{
    run_allow(run, sdpa_attributes, sdpa_inputs);
    struct mha_inputs inputs = {
        .query = heads_inside(run, run_floats(run, "query")),
        .key = heads_inside(run, run_floats(run, "key")),
        .value = heads_inside(run, run_floats(run, "value")),
    };
    if (!run_good(run))
        return;
    check_sizes(run, &inputs);

    /* A scale of "default" is text, any other a number. */
    struct mha_options options = { .causal = run_integer(run, "is_causal", 0) != 0 };
    if (run_has(run, "scale") && !run_says(run, "scale", "default")) {
        options.scale_mode = MHA_SCALE_VALUE;
        options.scale = (float)run_number(run, "scale", 0);
    }
    set_keep(run, &options);
    struct mha_tensor *out = run_output(run, "output");
    struct mha_tensor *weights = run_output(run, "attn_weights");
    struct mha_outputs outputs = { .out = heads_inside(run, out), .weights = weights };
    if (run_good(run))
        run_call(run, mha_attention(run->ctx, &inputs, &options, &outputs));
    run_compare(run, "output", out);
    run_compare(run, "attn_weights", weights);
}
