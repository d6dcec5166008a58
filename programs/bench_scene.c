/* The scenes of the benchmark. */
#include "bench_scene.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "command.h"

/* ---- the table ---- */

static const int32_t padded_lengths[] = { 20, 35, 51, 66, 82, 97, 113, 128 };

static const struct bench_scene attentions[] = {
    { "minilm", .B = 8, .H = 12, .G = 12, .L = 128, .S = 128, .D = 32 },
    { "bert", .B = 8, .H = 12, .G = 12, .L = 128, .S = 128, .D = 64 },
    { "bert512", .B = 1, .H = 12, .G = 12, .L = 512, .S = 512, .D = 64 },
    { "vit", .B = 8, .H = 12, .G = 12, .L = 197, .S = 197, .D = 64 },
    { "gpt2", .B = 1, .H = 12, .G = 12, .L = 1024, .S = 1024, .D = 64, .causal = true },
    { "llama2k", .B = 1, .H = 32, .G = 8, .L = 2048, .S = 2048, .D = 128, .causal = true },
    { "whisper", .B = 1, .H = 8, .G = 8, .L = 1500, .S = 1500, .D = 64 },
    { "sd-cross", .B = 1, .H = 8, .G = 8, .L = 4096, .S = 77, .D = 40 },
    { "swin", .B = 64, .H = 3, .G = 3, .L = 49, .S = 49, .D = 32, .bias = true },
    { "long8k", .B = 1, .H = 4, .G = 4, .L = 8192, .S = 8192, .D = 64, .causal = true },
    { "window8k", .B = 1, .H = 4, .G = 4, .L = 8192, .S = 8192, .D = 64, .causal = true,
      .window = 512 },
    { "padded", .B = 8, .H = 12, .G = 12, .L = 128, .S = 128, .D = 64, .lengths = padded_lengths },
};

static const struct bench_scene layers[] = {
    { "tiny", .B = 1, .L = 16, .E = 128, .H = 4 },
    { "minilm-layer", .B = 8, .L = 128, .E = 384, .H = 12 },
    { "bert-layer", .B = 8, .L = 128, .E = 768, .H = 12 },
    { "bert512-layer", .B = 1, .L = 512, .E = 768, .H = 12 },
    { "vit-layer", .B = 8, .L = 197, .E = 768, .H = 12 },
    { "gpt2-layer", .B = 1, .L = 1024, .E = 768, .H = 12, .causal = true },
    { "large-layer", .B = 1, .L = 512, .E = 1024, .H = 16 },
    { "token-layer", .B = 1, .L = 1, .E = 768, .H = 12 },
    { "batch-layer", .B = 8, .L = 1, .E = 768, .H = 12 },
};

/* Each layer is a scene with each of these engines, under the name with the suffix. */
static const struct {
    enum bench_engine engine;
    const char *suffix;
} engines[] = {
    { BENCH_PACKED, "" },
    { BENCH_PLAIN, "-plain" },
};

enum {
    N_ATTENTIONS = sizeof attentions / sizeof attentions[0],
    N_LAYERS = sizeof layers / sizeof layers[0],
    N_ENGINES = sizeof engines / sizeof engines[0]
};

bool bench_scene_get(int64_t index, struct bench_scene *scene)
{
    if (index < N_ATTENTIONS) {
        *scene = attentions[index];
        return true;
    }
    index -= N_ATTENTIONS;
    if (index >= N_LAYERS * N_ENGINES)
        return false;
    const struct bench_scene *layer = &layers[index / N_ENGINES];
    *scene = *layer;
    scene->engine = engines[index % N_ENGINES].engine;
    scene->S = layer->L;
    scene->G = layer->H;
    scene->D = layer->E / layer->H;
    snprintf(scene->name, sizeof scene->name, "%s%s", layer->name,
             engines[index % N_ENGINES].suffix);
    return true;
}

/* ---- what a scene costs ---- */

int64_t bench_scene_pairs(const struct bench_scene *scene)
{
    int64_t pairs = 0;
    for (int64_t b = 0; b < scene->B; b++) {
        int64_t L = scene->lengths ? scene->lengths[b] : scene->L;
        int64_t S = scene->lengths ? scene->lengths[b] : scene->S;
        for (int64_t l = 0; l < L; l++) {
            int64_t sees = scene->causal && l + 1 < S ? l + 1 : S;
            pairs += scene->window && sees > scene->window ? scene->window : sees;
        }
    }
    return pairs;
}

double bench_scene_flops(const struct bench_scene *scene)
{
    double attention = 4.0 * (double)bench_scene_pairs(scene) * (double)(scene->H * scene->D);
    double rows = (double)(scene->B * scene->L), E = (double)scene->E;
    return attention + 2 * rows * E * 4 * E;
}

double bench_scene_bytes(const struct bench_scene *scene)
{
    double rows = (double)(scene->B * scene->L), E = (double)scene->E;
    if (scene->E > 0)
        return 4 * (2 * rows * E + 4 * E * E + 4 * E);
    double queries = rows * (double)(scene->H * scene->D);
    double keys = (double)(scene->B * scene->S * scene->G * scene->D);
    double bias = scene->bias ? (double)(scene->H * scene->L * scene->S) : 0;
    return 4 * (2 * queries + 2 * keys + bias);
}

/* ---- making one ---- */

/* Memory as the library would take it: large pages where the system has them. Freed by free. */
static float *allocate(int64_t n)
{
    enum { LARGE_PAGE = 2 << 20 };
    size_t bytes = (size_t)n * sizeof(float);
    size_t unit = bytes < LARGE_PAGE ? 64 : LARGE_PAGE;
    bytes = (bytes + unit - 1) / unit * unit;
    float *block = aligned_alloc(unit, bytes ? bytes : unit);
    if (block && unit == LARGE_PAGE)
        (void)madvise(block, bytes, MADV_HUGEPAGE); /* a wish; without it only slower */
    return block;
}

/* Roughly normal numbers of variance `deviation` squared: the sum of three uniform ones, from a
 * generator of 64 bits (G. Marsaglia, "Xorshift RNGs", 2003). */
static float *random_array(uint64_t *state, int64_t n, double deviation)
{
    float *array = allocate(n);
    for (int64_t i = 0; array && i < n; i++) {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        int64_t thirds = 0;
        for (int part = 0; part < 3; part++)
            thirds += (int64_t)(*state >> (1 + 21 * part) & 0x1fffff) - 0x100000;
        array[i] = (float)((double)thirds / 0x100000 * deviation);
    }
    return array;
}

static int no_memory(const struct bench_scene *scene)
{
    return command_fail("not enough memory for the scene %s", scene->name);
}

/* Contiguous [B, H, L, D] memory as the [B, L, H, D] that the library takes. */
static struct mha_tensor heads_view(float *data, int64_t B, int64_t L, int64_t H, int64_t D)
{
    struct mha_tensor view = mha_tensor_4d(data, MHA_FLOAT32, B, L, H, D);
    view.strides[1] = D;
    view.strides[2] = L * D;
    return view;
}

static int make_attention(const struct bench_scene *scene, uint64_t *state, struct bench_case *made)
{
    int64_t B = scene->B, H = scene->H, G = scene->G, L = scene->L, S = scene->S, D = scene->D;
    made->query = random_array(state, B * H * L * D, 1);
    made->key = random_array(state, B * G * S * D, 1);
    made->value = random_array(state, B * G * S * D, 1);
    made->out = allocate(B * H * L * D);
    if (!made->query || !made->key || !made->value || !made->out)
        return no_memory(scene);
    made->query_view = heads_view(made->query, B, L, H, D);
    made->key_view = heads_view(made->key, B, S, G, D);
    made->value_view = heads_view(made->value, B, S, G, D);
    made->out_view = heads_view(made->out, B, L, H, D);
    made->inputs.key = &made->key_view;
    made->inputs.value = &made->value_view;

    if (scene->bias) {
        made->bias = random_array(state, H * L * S, 1);
        if (!made->bias)
            return no_memory(scene);
        made->bias_view = mha_tensor_4d(made->bias, MHA_FLOAT32, 1, H, L, S);
        made->options.mask_kind = MHA_MASK_ADDITIVE;
        made->options.mask = &made->bias_view;
    }
    if (scene->lengths) {
        made->lengths_view = mha_tensor_1d_const(scene->lengths, MHA_INT32, B);
        made->inputs.query_lengths = &made->lengths_view;
        made->inputs.key_lengths = &made->lengths_view;
    }
    return COMMAND_OK;
}

static int make_layer(mha_context *ctx, const struct bench_scene *scene, uint64_t *state,
                      struct bench_case *made)
{
    int64_t B = scene->B, L = scene->L, E = scene->E;
    struct mha_tensor weights[4], biases[4];
    made->query = random_array(state, B * L * E, 1);
    made->out = allocate(B * L * E);
    if (!made->query || !made->out)
        return no_memory(scene);
    for (int i = 0; i < 4; i++) {
        made->weights[i] = random_array(state, E * E, 1 / sqrt((double)E));
        made->biases[i] = random_array(state, E, 0.1);
        if (!made->weights[i] || !made->biases[i])
            return no_memory(scene);
        weights[i] = mha_tensor_2d_const(made->weights[i], MHA_FLOAT32, E, E);
        biases[i] = mha_tensor_1d_const(made->biases[i], MHA_FLOAT32, E);
    }
    made->query_view = mha_tensor_3d(made->query, MHA_FLOAT32, B, L, E);
    made->out_view = mha_tensor_3d(made->out, MHA_FLOAT32, B, L, E);

    struct mha_layer_shape shape = { .E = E, .H = scene->H };
    struct mha_weights all = { .w_q = &weights[0],
                               .w_k = &weights[1],
                               .w_v = &weights[2],
                               .w_o = &weights[3],
                               .b_q = &biases[0],
                               .b_k = &biases[1],
                               .b_v = &biases[2],
                               .b_o = &biases[3] };
    mha_status status = mha_layer_create(ctx, &shape, &all, MHA_BORROW, &made->layer);
    if (status == MHA_OK && scene->engine == BENCH_PACKED)
        status = mha_layer_pack(ctx, made->layer, MHA_PACK_KEEP);
    return status == MHA_OK ? COMMAND_OK : command_fail_library(ctx, status);
}

int bench_case_create(mha_context *ctx, const struct bench_scene *scene, struct bench_case *made)
{
    uint64_t state = 0x2545f4914f6cdd1d;
    *made = (struct bench_case){ .scene = *scene };
    made->inputs.query = &made->query_view;
    made->outputs.out = &made->out_view;
    made->options.causal = scene->causal;
    if (scene->window) {
        made->options.window = MHA_WINDOW_LEFT;
        made->options.window_left = scene->window - 1;
    }
    return scene->engine == BENCH_ATTENTION ? make_attention(scene, &state, made)
                                            : make_layer(ctx, scene, &state, made);
}

void bench_case_free(struct bench_case *made)
{
    mha_layer_free(made->layer);
    for (int i = 0; i < 4; i++) {
        free(made->weights[i]);
        free(made->biases[i]);
    }
    free(made->query);
    free(made->key);
    free(made->value);
    free(made->bias);
    free(made->out);
    *made = (struct bench_case){ 0 };
}

/* ---- running it ---- */

mha_status bench_case_run(mha_context *ctx, const struct bench_case *made)
{
    if (!made->layer)
        return mha_attention(ctx, &made->inputs, &made->options, &made->outputs);
    return mha_forward(ctx, made->layer, &made->inputs, &made->options, &made->outputs);
}

mha_status bench_case_workspace(mha_context *ctx, const struct bench_case *made, int64_t *bytes)
{
    if (!made->layer)
        return mha_attention_workspace(ctx, &made->inputs, &made->options, &made->outputs, bytes);
    return mha_forward_workspace(ctx, made->layer, &made->inputs, &made->options, &made->outputs,
                                 bytes);
}

int64_t bench_case_results(const struct bench_case *made)
{
    const struct bench_scene *scene = &made->scene;
    return scene->B * scene->L * scene->H * scene->D;
}
