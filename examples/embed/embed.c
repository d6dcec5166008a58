/*
 * embed - sentence embeddings on libmha: a line of text in, 384 numbers out.
 *
 * This file is the program around the model: options, batches of sentences, pictures. The model is
 * in encoder.c, which is the place to see how a layer is loaded and run.
 */
#include <errno.h>
#include <getopt.h>
#include <mha.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "encoder.h"
#include "heatmap.h"
#include "reason.h"
#include "report.h"
#include "wordpiece.h"

enum { E = ENCODER_WIDTH, LARGEST_BATCH = 4096 };

/* The layers whose attention --heatmap draws: the first looks at words, the last at meanings. */
static const int drawn_layers[] = { 0, ENCODER_LAYERS - 1 };
enum { DRAWN_LAYERS = sizeof drawn_layers / sizeof drawn_layers[0] };

struct options {
    const char *model;
    const char *compare; /* each may be NULL */
    const char *heatmap;
    int batch;
    bool cosine;
};

struct embed {
    struct options options;
    mha_context *ctx;
    struct wordpiece *wordpiece;
    struct encoder *encoder;

    struct batch batch;   /* the sentences not encoded yet, the last batch.B there are */
    int64_t weights_room; /* numbers in each batch.weights */
    struct sentence *sentences;
    float (*embeddings)[E];
    int64_t count, room; /* of both */
    int64_t number;      /* sentences read since the program began */
    double seconds;      /* spent in the encoder */
};

/* ---- Options -------------------------------------------------------------------------------- */

static const char usage[] =
    "usage: embed --model DIR [OPTION]... < SENTENCES\n"
    "Reads sentences, one a line, and prints the embedding of each: a line of 384 numbers.\n"
    "\n"
    "  --model DIR      where model.safetensors and vocab.txt are; fetch-model puts them there\n"
    "  --cosine         print a table of the sentences' cosines instead\n"
    "  --compare FILE   print the largest difference from the tensor sentences/out.embedding of\n"
    "                   a .safetensors file, and the time a sentence took, instead\n"
    "  --heatmap DIR    draw the attention of the first and last layer for each sentence to DIR\n"
    "  --batch N        encode N sentences at a time, 1 to 4096; 32 if not given\n"
    "  --help           print this and exit\n"
    "\n"
    "The environment variable MHA_COMMAND names the command that draws, if not the installed mha.\n"
    "Exit status: 0 success, 1 failure, 2 wrong usage.\n";

/* Returns false with the exit status when there is nothing more to do. */
static bool parse_options(int argc, char **argv, struct options *options, int *exit_status)
{
    static const struct option known[] = { { "model", required_argument, NULL, 'm' },
                                           { "cosine", no_argument, NULL, 'c' },
                                           { "compare", required_argument, NULL, 'd' },
                                           { "heatmap", required_argument, NULL, 'p' },
                                           { "batch", required_argument, NULL, 'b' },
                                           { "help", no_argument, NULL, 'h' },
                                           { NULL, 0, NULL, 0 } };
    char *end = NULL;
    long batch = 32;
    *options = (struct options){ 0 };
    *exit_status = 2;
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (option) {
        case 'm': options->model = optarg; break;
        case 'c': options->cosine = true; break;
        case 'd': options->compare = optarg; break;
        case 'p': options->heatmap = optarg; break;
        case 'b':
            batch = strtol(optarg, &end, 10);
            if (end == optarg || *end || batch < 1 || batch > LARGEST_BATCH)
                return fprintf(stderr, "embed: --batch takes a number from 1 to %d, not '%s'\n",
                               LARGEST_BATCH, optarg),
                       false;
            break;
        case 'h':
            fputs(usage, stdout);
            *exit_status = 0;
            return false;
        default: return false; /* getopt_long has told */
        }
    }
    options->batch = (int)batch;
    if (optind < argc)
        fprintf(stderr, "embed: unexpected argument '%s' (sentences come from standard input)\n",
                argv[optind]);
    else if (!options->model)
        fprintf(stderr, "embed: --model DIR is missing; see embed --help\n");
    return optind == argc && options->model;
}

/* ---- Sentences ------------------------------------------------------------------------------ */

static bool grow_sentences(struct embed *embed, struct reason *why)
{
    if (embed->count < embed->room)
        return true;
    int64_t room = embed->room ? 2 * embed->room : embed->options.batch;
    struct sentence *sentences = realloc(embed->sentences, (size_t)room * sizeof *sentences);
    if (sentences)
        embed->sentences = sentences;
    void *embeddings = realloc(embed->embeddings, (size_t)room * sizeof *embed->embeddings);
    if (embeddings)
        embed->embeddings = embeddings;
    if (!sentences || !embeddings)
        return failed(why, "out of memory for %lld sentences", (long long)room);
    embed->room = room;
    return true;
}

static void forget_sentences(struct embed *embed)
{
    for (int64_t i = 0; i < embed->count; i++)
        free(embed->sentences[i].text);
    embed->count = 0;
}

/* Puts one more sentence into the batch. */
static bool add_sentence(struct embed *embed, const char *text, size_t bytes, struct reason *why)
{
    struct batch *batch = &embed->batch;
    int32_t *ids = batch->ids[batch->B], *length = &batch->lengths[batch->B];
    if (!grow_sentences(embed, why)
        || !wordpiece_encode(embed->wordpiece, text, bytes, ENCODER_TOKENS, ids, length, why))
        return false;
    for (int32_t s = *length; s < ENCODER_TOKENS; s++)
        ids[s] = wordpiece_padding(embed->wordpiece);

    char *copy = malloc(bytes + 1);
    if (!copy)
        return failed(why, "out of memory for a sentence");
    memcpy(copy, text, bytes);
    embed->sentences[embed->count++] = (struct sentence){ .text = copy, .bytes = bytes };
    embed->number++;
    batch->B++;
    batch->S = *length > batch->S ? *length : batch->S;
    return true;
}

/* ---- Pictures ------------------------------------------------------------------------------- */

/* Room for the attention of the layers that will be drawn. */
static bool grow_weights(struct embed *embed, struct reason *why)
{
    struct batch *batch = &embed->batch;
    int64_t count = batch->B * ENCODER_HEADS * batch->S * batch->S;
    if (count <= embed->weights_room)
        return true;
    embed->weights_room = 0;
    for (int i = 0; i < DRAWN_LAYERS; i++) {
        float **weights = &batch->weights[drawn_layers[i]];
        free(*weights);
        *weights = malloc((size_t)count * sizeof **weights);
        if (!*weights)
            return failed(why, "out of memory for the attention's weights");
    }
    embed->weights_room = count;
    return true;
}

/* Draws one layer's attention for sentence b of the batch: a view without the other sentences and
 * the padding, [H, L, L], is cut out of the weights without a copy. */
static bool draw(struct embed *embed, int64_t b, int layer, struct reason *why)
{
    mha_context *ctx = embed->ctx;
    const struct batch *batch = &embed->batch;
    int64_t L = batch->lengths[b], H = ENCODER_HEADS, shape[] = { H, L, L };
    struct mha_tensor view = mha_tensor_4d(batch->weights[layer], MHA_FLOAT32, batch->B, H,
                                           batch->S, batch->S);
    if (mha_tensor_slice(ctx, &view, 0, b, 1, &view) || mha_tensor_slice(ctx, &view, 2, 0, L, &view)
        || mha_tensor_slice(ctx, &view, 3, 0, L, &view)
        || mha_tensor_reshape(ctx, &view, 3, shape, &view))
        return failed(why, "%s", mha_context_message(ctx));

    const char *tokens[ENCODER_TOKENS];
    for (int64_t i = 0; i < L; i++)
        tokens[i] = wordpiece_text(embed->wordpiece, batch->ids[b][i]);
    char title[256], stem[4096];
    const struct sentence *sentence = &embed->sentences[embed->count - batch->B + b];
    int used = snprintf(title, sizeof title, "layer %d: ", layer + 1);
    report_fit(sentence->text, sentence->bytes, 60, title + used, sizeof title - (size_t)used);
    used = snprintf(stem, sizeof stem, "%s/sentence-%03lld-layer-%d", embed->options.heatmap,
                    (long long)(embed->number - batch->B + b + 1), layer + 1);
    if ((size_t)used >= sizeof stem)
        return failed(why, "the name of the directory for pictures is too long");
    return heatmap_draw(ctx, stem, &view, tokens, title, why);
}

/* ---- Running -------------------------------------------------------------------------------- */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Encodes the sentences of the batch and empties it. Numbers are printed at once; the tables at the
 * end need all sentences. */
static bool finish_batch(struct embed *embed, struct reason *why)
{
    struct batch *batch = &embed->batch;
    const struct options *options = &embed->options;
    if (batch->B == 0)
        return true;
    float(*embeddings)[E] = embed->embeddings + (embed->count - batch->B);
    if (options->heatmap && !grow_weights(embed, why))
        return false;
    double start = now();
    if (!encoder_run(embed->encoder, batch, embeddings[0], why))
        return false;
    embed->seconds += now() - start;

    for (int64_t b = 0; options->heatmap && b < batch->B; b++) {
        for (int i = 0; i < DRAWN_LAYERS; i++) {
            if (!draw(embed, b, drawn_layers[i], why))
                return false;
        }
    }
    if (!options->cosine && !options->compare) {
        for (int64_t b = 0; b < batch->B; b++)
            report_numbers(embeddings[b]);
        forget_sentences(embed);
    }
    batch->B = batch->S = 0;
    return true;
}

static bool read_sentences(struct embed *embed, struct reason *why)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    bool ok = true;
    while (ok && (length = getline(&line, &room, stdin)) >= 0) {
        if (length > 0 && line[length - 1] == '\n')
            length--;
        if (length > 0 && line[length - 1] == '\r')
            length--;
        ok = add_sentence(embed, line, (size_t)length, why)
             && (embed->batch.B < embed->options.batch || finish_batch(embed, why));
    }
    free(line);
    if (ok && !feof(stdin))
        return failed(why, "standard input: %s", strerror(errno));
    return ok && finish_batch(embed, why);
}

static bool report(struct embed *embed, struct reason *why)
{
    const struct options *options = &embed->options;
    double largest = 0;
    if (options->compare
        && !report_difference(embed->ctx, options->compare, embed->embeddings, embed->count,
                              &largest, why))
        return false;
    if (options->cosine)
        report_cosines(embed->sentences, embed->embeddings, embed->count);
    if (options->cosine && options->compare)
        printf("\n");
    if (options->compare) {
        printf("largest difference from the recorded embeddings: %.3g\n", largest);
        printf("time a sentence: %.2f ms\n",
               embed->count ? 1e3 * embed->seconds / (double)embed->count : 0.0);
    }
    return (fflush(stdout) == 0 && !ferror(stdout))
           || failed(why, "standard output: cannot be written");
}

static bool open_model(struct embed *embed, struct reason *why)
{
    const struct options *options = &embed->options;
    char path[4096];
    snprintf(path, sizeof path, "%s/vocab.txt", options->model);
    if (!wordpiece_open(path, &embed->wordpiece, why))
        return false;
    if (wordpiece_count(embed->wordpiece) != ENCODER_PIECES)
        return failed(why, "%s: has %d pieces, the model %d", path,
                      wordpiece_count(embed->wordpiece), ENCODER_PIECES);
    snprintf(path, sizeof path, "%s/model.safetensors", options->model);
    if (!encoder_open(embed->ctx, path, &embed->encoder, why))
        return false;

    size_t B = (size_t)options->batch;
    embed->batch.ids = malloc(B * sizeof *embed->batch.ids);
    embed->batch.lengths = malloc(B * sizeof *embed->batch.lengths);
    if (!embed->batch.ids || !embed->batch.lengths)
        return failed(why, "out of memory for a batch of %d", options->batch);
    if (options->heatmap && mkdir(options->heatmap, 0777) != 0 && errno != EEXIST)
        return failed(why, "%s: %s", options->heatmap, strerror(errno));
    return true;
}

static void close_model(struct embed *embed)
{
    forget_sentences(embed);
    free(embed->sentences);
    free(embed->embeddings);
    for (int i = 0; i < ENCODER_LAYERS; i++)
        free(embed->batch.weights[i]);
    free(embed->batch.ids);
    free(embed->batch.lengths);
    encoder_close(embed->encoder);
    wordpiece_close(embed->wordpiece);
    mha_context_free(embed->ctx);
}

int main(int argc, char **argv)
{
    struct embed embed = { 0 };
    struct reason why = { "" };
    int exit_status;
    if (!parse_options(argc, argv, &embed.options, &exit_status))
        return exit_status;

    struct mha_context_options context = { .message = why.text, .message_bytes = sizeof why.text };
    bool ok = !mha_context_create(&context, &embed.ctx) && open_model(&embed, &why)
              && read_sentences(&embed, &why) && report(&embed, &why);
    if (!ok)
        fprintf(stderr, "embed: %s\n", why.text);
    close_model(&embed);
    return ok ? 0 : 1;
}
