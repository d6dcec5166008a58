/* mha run: a layer from a .safetensors file on .npy arrays. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"

static const char help_text[] =
    "usage: mha run --weights FILE --naming NAMING --fusion FUSION --heads H\n"
    "               --input X.npy --output Y.npy [OPTION]...\n"
    "\n"
    "Loads a multi-head attention layer from a .safetensors file and runs it on an array.\n"
    "The input is [B, L, E], or [L, E] for one sample; then key, value and results lack the B\n"
    "axis too. Floats of 16 and 64 bits are converted on reading; everything computes in\n"
    "float32.\n"
    "\n"
    "the layer:\n"
    "      --weights FILE          .safetensors file\n"
    "      --prefix TEXT           put before every tensor name, with its dot (default: nothing)\n"
    "      --naming NAMING         torch (in_proj_weight, out_proj.weight, ...)\n"
    "                              or bert (self.query.weight, output.dense.weight, ...)\n"
    "      --fusion FUSION         separate (three matrices) or one matrix with the rows of Q, K\n"
    "                              and V: blocks, per-head, per-group\n"
    "      --orientation WAY       out-in (default) or in-out, how matrices lie in the file\n"
    "      --heads H               query heads\n"
    "      --kv-heads G            key/value heads, a divisor of H (default: H)\n"
    "      --head-width D          width of a head (default: from the matrices)\n"
    "\n"
    "input:\n"
    "      --input X.npy           the query; also key and value unless they are given\n"
    "      --key K.npy             [B, S, E_key]; needs --value\n"
    "      --value V.npy           [B, S, E_value]; needs --key\n"
    "      --residual              add the input to the output\n"
    "      --query-lengths LIST    valid rows of each sample: numbers N,N,... or a .npy file of\n"
    "      --key-lengths LIST      int32 or int64 (a file called like a list: ./1,2)\n"
    "\n"
    "attention:\n"
    "      --causal                no key after the query's own position\n"
    "      --align CORNER          top-left (default): query i stands at key i; bottom-right: the\n"
    "                              last query stands at the last key\n"
    "      --window-left N         no key more than N before the query's position\n"
    "      --window-right N        no key more than N after it\n"
    "      --scale S               factor of the scores (default: 1/sqrt(D))\n"
    "      --softcap C             scores become C * tanh(score / C)\n"
    "      --mask M.npy            [B, H, L, S], axes of size 1 are repeated; a lower rank is\n"
    "                              taken with leading axes of size 1: [L, S] is [1, 1, L, S]\n"
    "      --mask-kind KIND        keep or drop (bool or uint8: nonzero keys are seen, or not)\n"
    "                              or additive (float: added to scores); needed with --mask\n"
    "      --zero-attention        one more key and value, all zero\n"
    "\n"
    "work:\n"
    "      --threads N             threads to work with (default: 1); no bit depends on it, but\n"
    "                              what the BLAS does by itself\n"
    "      --packed                pack the layer: projections without the BLAS\n"
    "      --verbose               say on the standard error which engine the layer took\n"
    "\n"
    "results:\n"
    "      --output Y.npy                [B, L, E_out]\n"
    "      --weights-output W.npy        attention weights [B, H, L, S']\n"
    "      --weights-mean-output W.npy   their mean over the heads [B, L, S']\n"
    "      --lse-output F.npy            log-sum-exp of each row of scores [B, H, L]\n"
    "                                    S' is S and the extra keys: a learned one, the zero one\n"
    "  -h, --help                        this text\n"
    "\n"
    "exit status: 0 success, 1 a file, the layer or a shape does not fit, 2 wrong usage\n";

/* What the options ask for. */
struct request {
    const char *weights;
    struct mha_layer_source source;
    struct mha_layer_shape shape;
    const char *input, *key, *value;
    const char *query_lengths, *key_lengths;
    const char *mask;
    bool residual, causal, zero_attention;
    bool scaled, capped, left, right;
    struct mha_options attention;
    int64_t threads;
    bool packed, verbose;
    const char *output, *weights_output, *mean_output, *lse_output;
};

/* Everything the call reads and writes; all data belongs to it. */
struct arrays {
    struct mha_tensor query, key, value;
    struct mha_tensor query_lengths, key_lengths;
    struct mha_tensor mask;
    struct mha_tensor out, weights, mean, lse;
    bool single; /* the input has no B axis, and neither have the results */
};

static const struct command_word namings[] = { { "torch", MHA_NAMING_TORCH },
                                               { "bert", MHA_NAMING_BERT },
                                               { 0 } };
static const struct command_word fusions[] = { { "separate", MHA_FUSION_SEPARATE },
                                               { "blocks", MHA_FUSION_BLOCKS },
                                               { "per-head", MHA_FUSION_PER_HEAD },
                                               { "per-group", MHA_FUSION_PER_GROUP },
                                               { 0 } };
static const struct command_word orientations[] = { { "out-in", MHA_OUT_IN },
                                                    { "in-out", MHA_IN_OUT },
                                                    { 0 } };
static const struct command_word corners[] = { { "top-left", MHA_ALIGN_TOP_LEFT },
                                               { "bottom-right", MHA_ALIGN_BOTTOM_RIGHT },
                                               { 0 } };
static const struct command_word mask_kinds[] = {
    { "keep", MHA_MASK_KEEP }, { "drop", MHA_MASK_DROP }, { "additive", MHA_MASK_ADDITIVE }, { 0 }
};

/* ---- the request ---- */

static bool same_file(const char *a, const char *b)
{
    char place_a[COMMAND_PATH_BYTES], place_b[COMMAND_PATH_BYTES];
    return strcmp(a, b) == 0
           || (command_destination(a, place_a) && command_destination(b, place_b)
               && strcmp(place_a, place_b) == 0);
}

static int check_outputs(const struct request *request)
{
    const char *paths[] = { request->output, request->weights_output, request->mean_output,
                            request->lse_output };
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            if (paths[i] && paths[j] && same_file(paths[i], paths[j]))
                return command_wrong("two results would be written to %s", paths[i]);
    return COMMAND_OK;
}

/* What must be given, and what must be given together. */
static int check_request(const struct request *request)
{
    const struct {
        bool given;
        const char *name;
    } needed[] = {
        { request->weights, "weights" },      { request->source.naming, "naming" },
        { request->source.fusion, "fusion" }, { request->shape.H, "heads" },
        { request->input, "input" },          { request->output, "output" },
    };
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (!needed[i].given)
            return command_wrong("--%s is needed", needed[i].name);
    if (!request->key != !request->value)
        return command_wrong("--key and --value go together");
    if (!request->mask != !request->attention.mask_kind)
        return command_wrong("--mask and --mask-kind go together");
    return check_outputs(request);
}

static void settle(struct request *request)
{
    struct mha_options *attention = &request->attention;
    attention->causal = request->causal;
    attention->zero_attention = request->zero_attention;
    attention->scale_mode = request->scaled ? MHA_SCALE_VALUE : MHA_SCALE_DEFAULT;
    attention->softcap_mode = request->capped ? MHA_SOFTCAP_TANH : MHA_SOFTCAP_OFF;
    attention->window = (request->left ? MHA_WINDOW_LEFT : MHA_WINDOW_OFF)
                        | (request->right ? MHA_WINDOW_RIGHT : MHA_WINDOW_OFF);
}

static int parse(int argc, char **argv, struct request *request, bool *help)
{
    struct mha_layer_source *source = &request->source;
    struct mha_layer_shape *shape = &request->shape;
    struct mha_options *attention = &request->attention;
    const struct command_option options[] = {
        { .name = "weights", .text = &request->weights },
        { .name = "prefix", .text = &source->prefix },
        { .name = "naming", .word = &source->naming, .words = namings },
        { .name = "fusion", .word = &source->fusion, .words = fusions },
        { .name = "orientation", .word = &source->orientation, .words = orientations },
        { .name = "heads", .count = &shape->H, .least = 1 },
        { .name = "kv-heads", .count = &shape->G, .least = 1 },
        { .name = "head-width", .count = &shape->D, .least = 1 },
        { .name = "input", .text = &request->input },
        { .name = "key", .text = &request->key },
        { .name = "value", .text = &request->value },
        { .name = "residual", .flag = &request->residual },
        { .name = "query-lengths", .text = &request->query_lengths },
        { .name = "key-lengths", .text = &request->key_lengths },
        { .name = "causal", .flag = &request->causal },
        { .name = "align", .word = &attention->align, .words = corners },
        { .name = "window-left", .count = &attention->window_left, .given = &request->left },
        { .name = "window-right", .count = &attention->window_right, .given = &request->right },
        { .name = "scale", .real = &attention->scale, .given = &request->scaled },
        { .name = "softcap", .real = &attention->softcap, .given = &request->capped },
        { .name = "mask", .text = &request->mask },
        { .name = "mask-kind", .word = &attention->mask_kind, .words = mask_kinds },
        { .name = "zero-attention", .flag = &request->zero_attention },
        { .name = "threads", .count = &request->threads, .least = 1 },
        { .name = "packed", .flag = &request->packed },
        { .name = "verbose", .flag = &request->verbose },
        { .name = "output", .text = &request->output },
        { .name = "weights-output", .text = &request->weights_output },
        { .name = "weights-mean-output", .text = &request->mean_output },
        { .name = "lse-output", .text = &request->lse_output },
        { .name = "help", .letter = 'h', .flag = help },
        { 0 },
    };
    int code = command_parse(argc, argv, options);
    if (code != COMMAND_OK || *help)
        return code;
    code = command_no_operands(argc, argv);
    if (code == COMMAND_OK)
        code = check_request(request);
    settle(request);
    return code;
}

/* ---- reading ---- */

/* The same tensor with `rank` axes, new ones of size 1 in front or lost ones of size 1 there. */
static int change_rank(mha_context *ctx, struct mha_tensor *tensor, int32_t rank)
{
    int64_t shape[MHA_MAX_RANK];
    for (int32_t i = 0; i < rank; i++) {
        int32_t axis = i + tensor->rank - rank;
        shape[i] = axis < 0 ? 1 : tensor->shape[axis];
    }
    mha_status status = mha_tensor_reshape(ctx, tensor, rank, shape, tensor);
    return status == MHA_OK ? COMMAND_OK : command_fail_library(ctx, status);
}

/* The query, key or value: [B, L, E], or [L, E] made that when the input has no B axis. */
static int read_rows(mha_context *ctx, const char *option, const char *path, bool single,
                     struct mha_tensor *tensor)
{
    int code = command_read(ctx, path, tensor);
    if (code != COMMAND_OK)
        return code;
    if (tensor->rank != (single ? 2 : 3)) {
        char shape[COMMAND_SHAPE_BYTES];
        return command_fail("--%s %s is %s, must have %s axes", option, path,
                            command_shape(tensor, shape),
                            single ? "2, as the input" : "3, as the input");
    }
    return single ? change_rank(ctx, tensor, 3) : COMMAND_OK;
}

static int read_query(mha_context *ctx, const char *path, struct arrays *arrays)
{
    char shape[COMMAND_SHAPE_BYTES];
    int code = command_read(ctx, path, &arrays->query);
    if (code != COMMAND_OK)
        return code;
    arrays->single = arrays->query.rank == 2;
    if (arrays->query.rank != 2 && arrays->query.rank != 3)
        return command_fail("--input %s is %s, must be [B, L, E] or [L, E]", path,
                            command_shape(&arrays->query, shape));
    return arrays->single ? change_rank(ctx, &arrays->query, 3) : COMMAND_OK;
}

static int read_mask(mha_context *ctx, const char *path, struct mha_tensor *mask)
{
    int code = command_read(ctx, path, mask);
    if (code != COMMAND_OK || mask->rank >= 4)
        return code;
    return change_rank(ctx, mask, 4);
}

/* "3,5,2" as an int64 tensor; the numbers are checked by the library. */
static int parse_lengths(const char *option, const char *list, struct mha_tensor *lengths)
{
    int64_t count = 1;
    for (const char *at = list; *at; at++)
        count += *at == ',';
    *lengths = mha_tensor_1d(NULL, MHA_INT64, count);
    int code = command_array(option, lengths);
    const char *at = list;
    for (int64_t i = 0; i < count && code == COMMAND_OK; i++) {
        char number[24] = "";
        size_t characters = strcspn(at, ",");
        if (characters < sizeof number)
            memcpy(number, at, characters);
        if (!command_integer(number, (int64_t *)lengths->data + i))
            code = command_wrong("--%s: '%s' is not a list of whole numbers", option, list);
        at += characters + 1;
    }
    return code;
}

static int read_lengths(mha_context *ctx, const char *option, const char *text,
                        struct mha_tensor *lengths)
{
    if (strspn(text, "-0123456789,") == strlen(text))
        return parse_lengths(option, text, lengths);
    return command_read(ctx, text, lengths);
}

static int read_arrays(mha_context *ctx, const struct request *request, struct arrays *arrays)
{
    int code = COMMAND_OK;
    if (request->query_lengths)
        code = read_lengths(ctx, "query-lengths", request->query_lengths, &arrays->query_lengths);
    if (code == COMMAND_OK && request->key_lengths)
        code = read_lengths(ctx, "key-lengths", request->key_lengths, &arrays->key_lengths);
    if (code == COMMAND_OK)
        code = read_query(ctx, request->input, arrays);
    if (code == COMMAND_OK && request->key)
        code = read_rows(ctx, "key", request->key, arrays->single, &arrays->key);
    if (code == COMMAND_OK && request->value)
        code = read_rows(ctx, "value", request->value, arrays->single, &arrays->value);
    if (code == COMMAND_OK && request->mask)
        code = read_mask(ctx, request->mask, &arrays->mask);
    return code;
}

static int read_layer(mha_context *ctx, const struct request *request, mha_layer **layer)
{
    mha_safetensors *file = NULL;
    mha_status status = mha_safetensors_open(ctx, request->weights, 0, &file);
    if (status == MHA_OK)
        status = mha_layer_load(ctx, file, &request->source, &request->shape, layer);
    if (status == MHA_OK && request->packed)
        status = mha_layer_pack(ctx, *layer, MHA_PACK_DROP);
    if (status == MHA_OK && request->verbose)
        fprintf(stderr, "mha run: the engine of the layer is \"%s\"\n", mha_layer_engine(*layer));
    int code = status == MHA_OK ? COMMAND_OK : command_fail_library(ctx, status);
    mha_safetensors_close(file);
    return code;
}

/* ---- computing ---- */

static int make_results(const struct request *request, const mha_layer *layer,
                        struct arrays *arrays)
{
    struct mha_layer_shape shape = mha_layer_get_shape(layer);
    int64_t B = arrays->query.shape[0];
    int64_t L = arrays->query.shape[1];
    int64_t S = request->key ? arrays->key.shape[1] : L;
    S += mha_layer_get_weights(layer).bias_k != NULL;
    S += request->zero_attention;

    arrays->out = mha_tensor_3d(NULL, MHA_FLOAT32, B, L, shape.E_out);
    arrays->weights = mha_tensor_4d(NULL, MHA_FLOAT32, B, shape.H, L, S);
    arrays->mean = mha_tensor_3d(NULL, MHA_FLOAT32, B, L, S);
    arrays->lse = mha_tensor_3d(NULL, MHA_FLOAT32, B, shape.H, L);
    int code = command_array(request->output, &arrays->out);
    if (code == COMMAND_OK && request->weights_output)
        code = command_array(request->weights_output, &arrays->weights);
    if (code == COMMAND_OK && request->mean_output)
        code = command_array(request->mean_output, &arrays->mean);
    if (code == COMMAND_OK && request->lse_output)
        code = command_array(request->lse_output, &arrays->lse);
    return code;
}

static int compute(mha_context *ctx, const struct request *request, const mha_layer *layer,
                   const struct arrays *arrays)
{
    const struct mha_inputs inputs = {
        .size = sizeof inputs,
        .query = &arrays->query,
        .key = request->key ? &arrays->key : NULL,
        .value = request->value ? &arrays->value : NULL,
        .residual = request->residual ? &arrays->query : NULL,
        .query_lengths = request->query_lengths ? &arrays->query_lengths : NULL,
        .key_lengths = request->key_lengths ? &arrays->key_lengths : NULL,
    };
    struct mha_options options = request->attention;
    options.size = sizeof options;
    options.mask = request->mask ? &arrays->mask : NULL;
    const struct mha_outputs outputs = {
        .size = sizeof outputs,
        .out = &arrays->out,
        .lse = request->lse_output ? &arrays->lse : NULL,
        .weights = request->weights_output ? &arrays->weights : NULL,
        .weights_mean = request->mean_output ? &arrays->mean : NULL,
    };
    mha_status status = mha_forward(ctx, layer, &inputs, &options, &outputs);
    return status == MHA_OK ? COMMAND_OK : command_fail_library(ctx, status);
}

static int write_result(mha_context *ctx, const char *path, bool single, struct mha_tensor *tensor)
{
    int code = single ? change_rank(ctx, tensor, tensor->rank - 1) : COMMAND_OK;
    if (code != COMMAND_OK)
        return code;
    mha_status status = mha_npy_write(ctx, path, tensor);
    return status == MHA_OK ? COMMAND_OK : command_fail_library(ctx, status);
}

static int write_results(mha_context *ctx, const struct request *request, struct arrays *arrays)
{
    bool single = arrays->single;
    int code = write_result(ctx, request->output, single, &arrays->out);
    if (code == COMMAND_OK && request->weights_output)
        code = write_result(ctx, request->weights_output, single, &arrays->weights);
    if (code == COMMAND_OK && request->mean_output)
        code = write_result(ctx, request->mean_output, single, &arrays->mean);
    if (code == COMMAND_OK && request->lse_output)
        code = write_result(ctx, request->lse_output, single, &arrays->lse);
    return code;
}

static void arrays_free(struct arrays *arrays)
{
    free(arrays->query.data);
    free(arrays->key.data);
    free(arrays->value.data);
    free(arrays->query_lengths.data);
    free(arrays->key_lengths.data);
    free(arrays->mask.data);
    free(arrays->out.data);
    free(arrays->weights.data);
    free(arrays->mean.data);
    free(arrays->lse.data);
}

int command_run(int argc, char **argv)
{
    bool help = false;
    struct request request = { 0 };
    int code = parse(argc, argv, &request, &help);
    if (code != COMMAND_OK)
        return code;
    if (help)
        return command_help(help_text);

    mha_context *ctx = NULL;
    mha_layer *layer = NULL;
    struct arrays arrays = { 0 };
    code = command_context(request.threads, &ctx);
    if (code == COMMAND_OK)
        code = read_arrays(ctx, &request, &arrays);
    if (code == COMMAND_OK)
        code = read_layer(ctx, &request, &layer);
    if (code == COMMAND_OK)
        code = make_results(&request, layer, &arrays);
    if (code == COMMAND_OK)
        code = compute(ctx, &request, layer, &arrays);
    if (code == COMMAND_OK)
        code = write_results(ctx, &request, &arrays);
    arrays_free(&arrays);
    mha_layer_free(layer);
    mha_context_free(ctx);
    return code;
}
