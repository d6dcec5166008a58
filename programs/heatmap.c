/* mha heatmap: attention weights as a picture. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "picture.h"

static const char help_text[] =
    "usage: mha heatmap WEIGHTS.npy --output PICTURE.png|.svg [OPTION]...\n"
    "\n"
    "Draws attention weights [B, H, L, S], [H, L, S] or [L, S]: a panel a head, a row a query,\n"
    "a column a key. All panels of a picture share one scale, from 0 (or the least value, when\n"
    "one is below 0) to the greatest value. NaN and infinities have a colour of their own.\n"
    "\n"
    "options:\n"
    "  -o, --output PICTURE       .png or .svg file\n"
    "      --sample B             the sample to draw, counted from 0 (default: 0)\n"
    "      --head H               one head, counted from 0 (default: all heads)\n"
    "      --rows N               draw the first N queries only\n"
    "      --columns N            draw the first N keys only\n"
    "      --labels FILE          labels for both queries and keys, where L = S; UTF-8 text, one\n"
    "                             a line. Lines beyond what is drawn are left out, labels longer\n"
    "                             than 40 characters cut; control characters and bytes that are\n"
    "                             not UTF-8 are shown as \\n, \\xHH or \\u{HHHH}\n"
    "      --query-labels FILE    labels of the queries\n"
    "      --key-labels FILE      labels of the keys\n"
    "      --title TEXT           a title above the picture\n"
    "  -h, --help                 this text\n"
    "\n"
    "exit status: 0 success, 1 a file or a shape does not fit, or the picture would be larger\n"
    "than 16384 pixels a side, 2 wrong usage\n";

/* What the options ask for. */
struct request {
    const char *weights;
    const char *picture;
    const char *query_labels, *key_labels, *labels;
    const char *title;
    int64_t sample, head, rows, columns;
    bool one_head, fewer_rows, fewer_columns;
};

struct labels {
    char **texts;
    int64_t count;
};

static void labels_free(struct labels *labels)
{
    for (int64_t i = 0; i < labels->count; i++)
        free(labels->texts[i]);
    free(labels->texts);
}

/* A text of valid UTF-8 of more than 40 characters becomes its first 38 and a mark. The mark takes
 * three bytes, and at least as many are given up. */
static void shorten(char *text)
{
    enum { LONGEST = 40, KEPT = 38 };
    static const char mark[] = "\xe2\x80\xa6";
    if (command_characters(text) <= LONGEST)
        return;
    int64_t characters = 0;
    for (; characters <= KEPT; text++)
        characters += ((unsigned char)*text & 0xc0) != 0x80;
    memcpy(text - 1, mark, sizeof mark);
}

static int add_label(const char *path, const char *line, size_t bytes, struct labels *labels)
{
    if (strlen(line) != bytes)
        return command_fail("%s: line %" PRId64 " holds a zero byte, so it is no text", path,
                            labels->count + 1);
    char **texts = realloc(labels->texts, ((size_t)labels->count + 1) * sizeof *texts);
    if (!texts)
        return command_fail("%s: not enough memory", path);
    labels->texts = texts;
    texts[labels->count] = command_escaped(line);
    if (!texts[labels->count])
        return command_fail("%s: not enough memory", path);
    shorten(texts[labels->count]);
    labels->count++;
    return COMMAND_OK;
}

/* Reads the labels of an axis that has `size` places, `drawn` of them in the picture. */
static int read_labels(const char *path, int64_t drawn, int64_t size, struct labels *labels)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return command_fail("%s: %s", path, strerror(errno));
    int code = COMMAND_OK;
    char *line = NULL;
    size_t room = 0;
    ssize_t bytes = 0;
    errno = 0;
    while (code == COMMAND_OK && labels->count <= size
           && (bytes = getline(&line, &room, file)) >= 0) {
        if (bytes > 0 && line[bytes - 1] == '\n')
            line[--bytes] = '\0';
        if (bytes > 0 && line[bytes - 1] == '\r')
            line[--bytes] = '\0';
        code = add_label(path, line, (size_t)bytes, labels);
    }
    if (code == COMMAND_OK && bytes < 0 && !feof(file))
        code = command_fail("%s: %s", path, errno ? strerror(errno) : "read error");
    free(line);
    fclose(file);
    if (code == COMMAND_OK && labels->count < drawn)
        code = command_fail("%s has %" PRId64 " labels for %" PRId64 " to draw; --rows and "
                            "--columns draw fewer",
                            path, labels->count, drawn);
    if (code == COMMAND_OK && labels->count > size)
        code = command_fail("%s has more labels than the %" PRId64 " of the axis", path, size);
    return code;
}

/* cells = the axis `axis` of cells from `start` on, `length` long; the option asked for it. */
static int choose(mha_context *ctx, struct mha_tensor *cells, int32_t axis, int64_t start,
                  int64_t length)
{
    mha_status status = mha_tensor_slice(ctx, cells, axis, start, length, cells);
    return status == MHA_OK ? COMMAND_OK : command_fail_library(ctx, status);
}

static int check_place(const char *option, bool there, const char *things, int64_t count)
{
    if (there)
        return COMMAND_OK;
    return command_fail("--%s: the number of %s is only %" PRId64, option, things, count);
}

/* The weights as [H, L, S], then cut down to what is asked for. */
static int crop(mha_context *ctx, const struct request *request, struct mha_tensor *cells)
{
    int64_t shape[4] = { 1, 1, 1, 1 };
    for (int32_t i = 0; i < cells->rank; i++)
        shape[4 - cells->rank + i] = cells->shape[i];
    int code = check_place("sample", request->sample < shape[0], "samples", shape[0]);
    if (code == COMMAND_OK && request->one_head)
        code = check_place("head", request->head < shape[1], "heads", shape[1]);
    if (code == COMMAND_OK && request->fewer_rows)
        code = check_place("rows", request->rows <= shape[2], "queries", shape[2]);
    if (code == COMMAND_OK && request->fewer_columns)
        code = check_place("columns", request->columns <= shape[3], "keys", shape[3]);
    if (code != COMMAND_OK)
        return code;

    mha_status status = mha_tensor_reshape(ctx, cells, 4, shape, cells);
    if (status != MHA_OK)
        return command_fail_library(ctx, status);
    code = choose(ctx, cells, 0, request->sample, 1);
    if (code == COMMAND_OK && request->one_head)
        code = choose(ctx, cells, 1, request->head, 1);
    if (code == COMMAND_OK && request->fewer_rows)
        code = choose(ctx, cells, 2, 0, request->rows);
    if (code == COMMAND_OK && request->fewer_columns)
        code = choose(ctx, cells, 3, 0, request->columns);
    if (code != COMMAND_OK)
        return code;
    /* Dropped by hand: a reshape may refuse the strides of a view. */
    cells->rank = 3;
    for (int32_t i = 0; i < 3; i++) {
        cells->shape[i] = cells->shape[i + 1];
        cells->strides[i] = cells->strides[i + 1];
    }
    return COMMAND_OK;
}

static int read_cells(mha_context *ctx, const struct request *request, struct mha_tensor *weights)
{
    char shape[COMMAND_SHAPE_BYTES];
    int code = command_read(ctx, request->weights, weights);
    if (code != COMMAND_OK)
        return code;
    if (weights->type != MHA_FLOAT32)
        return command_fail("%s holds %s, must hold floats", request->weights,
                            mha_type_text(weights->type));
    if (weights->rank < 2 || weights->rank > 4)
        return command_fail("%s is %s, must be [B, H, L, S], [H, L, S] or [L, S]", request->weights,
                            command_shape(weights, shape));
    if (mha_tensor_count(weights) == 0)
        return command_fail("%s is %s: there is nothing to draw", request->weights,
                            command_shape(weights, shape));
    return COMMAND_OK;
}

static int draw(mha_context *ctx, const struct request *request, const struct mha_tensor *weights,
                struct labels *rows, struct labels *columns)
{
    int64_t L = weights->shape[weights->rank - 2];
    int64_t S = weights->shape[weights->rank - 1];
    if (request->labels && L != S)
        return command_fail("--labels is for as many queries as keys, not %" PRId64 " and %" PRId64
                            "; --query-labels and --key-labels tell them apart",
                            L, S);
    struct mha_tensor cells = *weights;
    int code = crop(ctx, request, &cells);
    const char *row_labels = request->labels ? request->labels : request->query_labels;
    const char *column_labels = request->labels ? request->labels : request->key_labels;
    if (code == COMMAND_OK && row_labels)
        code = read_labels(row_labels, cells.shape[1], L, rows);
    if (code == COMMAND_OK && column_labels)
        code = read_labels(column_labels, cells.shape[2], S, columns);
    if (code != COMMAND_OK)
        return code;

    char *title = request->title ? command_escaped(request->title) : NULL;
    if (request->title && !title)
        return command_fail("not enough memory");
    const struct picture picture = {
        .cells = cells,
        .first_head = weights->rank == 2 ? -1 : request->head,
        .title = title,
        .row_labels = rows->texts,
        .column_labels = columns->texts,
    };
    code = picture_save(&picture, request->picture);
    free(title);
    return code;
}

static int parse(int argc, char **argv, struct request *request, bool *help)
{
    const struct command_option options[] = {
        { .name = "output", .letter = 'o', .text = &request->picture },
        { .name = "sample", .count = &request->sample },
        { .name = "head", .count = &request->head, .given = &request->one_head },
        { .name = "rows", .count = &request->rows, .least = 1, .given = &request->fewer_rows },
        { .name = "columns",
          .count = &request->columns,
          .least = 1,
          .given = &request->fewer_columns },
        { .name = "labels", .text = &request->labels },
        { .name = "query-labels", .text = &request->query_labels },
        { .name = "key-labels", .text = &request->key_labels },
        { .name = "title", .text = &request->title },
        { .name = "help", .letter = 'h', .flag = help },
        { 0 },
    };
    int code = command_parse(argc, argv, options);
    if (code != COMMAND_OK || *help)
        return code;
    if (optind == argc)
        return command_wrong("no file of weights given");
    request->weights = argv[optind++];
    code = command_no_operands(argc, argv);
    if (code != COMMAND_OK)
        return code;
    if (!request->picture)
        return command_wrong("--output is needed");
    if (!picture_format(request->picture))
        return command_wrong("--output: '%s' ends neither in .png nor in .svg", request->picture);
    if (request->labels && (request->query_labels || request->key_labels))
        return command_wrong("--labels goes without --query-labels and --key-labels");
    return COMMAND_OK;
}

int command_heatmap(int argc, char **argv)
{
    bool help = false;
    struct request request = { 0 };
    int code = parse(argc, argv, &request, &help);
    if (code != COMMAND_OK)
        return code;
    if (help)
        return command_help(help_text);

    mha_context *ctx = NULL;
    struct mha_tensor weights = { 0 };
    struct labels rows = { 0 };
    struct labels columns = { 0 };
    code = command_context(1, &ctx);
    if (code == COMMAND_OK)
        code = read_cells(ctx, &request, &weights);
    if (code == COMMAND_OK)
        code = draw(ctx, &request, &weights, &rows, &columns);
    labels_free(&rows);
    labels_free(&columns);
    free(weights.data);
    mha_context_free(ctx);
    return code;
}
