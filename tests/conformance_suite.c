#include "conformance.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------
 * Lines and words
 * --------------------------------------------------------------------------------------------- */

struct line;

/* What a line may be, by its first word. */
struct keyword {
    const char *word;
    int64_t fewest, most;                                     /* words, itself included */
    bool blanks;                                              /* the last word may contain blanks */
    enum suite_role role;                                     /* of the arrays it lists */
    bool (*take)(struct line *line, struct suite_case *test); /* NULL: the line starts a case */
};

enum { MAX_WORDS = 7 };

/* The line being read: where it stands, and its words. */
struct line {
    const char *path;
    int64_t number;
    struct suite *suite;
    const struct keyword *keyword;
    char *words[MAX_WORDS];
    int64_t count;
};

static bool bad(const struct line *line, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static bool bad(const struct line *line, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "conformance: %s:%" PRId64 ": ", line->path, line->number);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return false;
}

static const char blanks[] = " \t\r";

/* Cuts a line into at most `most` words; the last one takes all that is left. */
static void cut(struct line *line, char *text, int64_t most)
{
    size_t length = strlen(text);
    while (length > 0 && strchr(blanks, text[length - 1]))
        text[--length] = '\0';
    line->count = 0;
    for (;;) {
        text += strspn(text, blanks);
        if (!*text)
            return;
        line->words[line->count++] = text;
        if (line->count == most)
            return;
        text += strcspn(text, blanks);
        if (*text)
            *text++ = '\0';
    }
}

static bool to_integer(const char *text, int64_t *value)
{
    char *end = NULL;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    *value = number;
    return end != text && !*end && errno == 0;
}

static bool to_number(const char *text, double *value)
{
    char *end = NULL;
    *value = strtod(text, &end);
    return end != text && !*end;
}

/* "2x3x4" as sizes of a contiguous tensor; no text is rank 0. */
static bool to_tensor(const char *text, int32_t type, struct mha_tensor *tensor)
{
    *tensor = (struct mha_tensor){ .type = type };
    while (*text) {
        char *end = NULL;
        errno = 0;
        long long size = strtoll(text, &end, 10);
        if (end == text || errno != 0 || size < 0 || tensor->rank == MHA_MAX_RANK)
            return false;
        tensor->shape[tensor->rank++] = size;
        text = end;
        if (*text == 'x' && text[1])
            text++;
        else if (*text)
            return false;
    }
    int64_t stride = 1;
    for (int32_t axis = tensor->rank - 1; axis >= 0; axis--) {
        tensor->strides[axis] = stride;
        if (__builtin_mul_overflow(stride, tensor->shape[axis] ? tensor->shape[axis] : 1, &stride))
            return false;
    }
    return mha_tensor_count(tensor) >= 0;
}

/* 0 for a name that is no type. */
static int32_t to_type(const char *text)
{
    for (int32_t type = MHA_FLOAT32; type <= MHA_UINT64; type++)
        if (strcmp(text, mha_type_text(type)) == 0)
            return type;
    return 0;
}

/* ------------------------------------------------------------------------------------------------
 * Lines by keyword
 * --------------------------------------------------------------------------------------------- */

static bool start_case(struct line *line)
{
    struct suite *suite = line->suite;
    const char *name = line->words[1];
    for (int64_t c = 0; c < suite->case_count; c++)
        if (strcmp(suite->cases[c].name, name) == 0)
            return bad(line, "a second case named %s", name);
    suite->cases[suite->case_count++] = (struct suite_case){
        .name = name,
        .arrays = suite->arrays + suite->array_count,
        .attributes = suite->attributes + suite->attribute_count,
        .weights = suite->weights + suite->weight_count,
        .errors = suite->errors + suite->error_count,
    };
    return true;
}

static bool take_op(struct line *line, struct suite_case *test)
{
    if (test->op)
        return bad(line, "a second op of case %s", test->name);
    test->op = line->words[1];
    return to_integer(line->words[2], &test->opset) || bad(line, "no opset: %s", line->words[2]);
}

static bool take_attribute(struct line *line, struct suite_case *test)
{
    char **words = line->words;
    struct suite_attribute attribute = {
        .kind = words[1][0],
        .name = words[2],
        .text = line->count == 4 ? words[3] : "",
    };
    if (words[1][1] || !strchr("ifsg", attribute.kind))
        return bad(line, "no kind of attribute: %s", words[1]);
    if (attribute.kind == 'i' && !to_integer(attribute.text, &attribute.integer))
        return bad(line, "attribute %s is no integer: %s", attribute.name, attribute.text);
    attribute.number = (double)attribute.integer;
    if (attribute.kind == 'f' && !to_number(attribute.text, &attribute.number))
        return bad(line, "attribute %s is no number: %s", attribute.name, attribute.text);
    for (int64_t a = 0; a < test->attribute_count; a++)
        if (strcmp(test->attributes[a].name, attribute.name) == 0)
            return bad(line, "a second attribute %s", attribute.name);
    test->attributes[test->attribute_count++] = attribute;
    line->suite->attribute_count++;
    return true;
}

static bool take_array(struct line *line, struct suite_case *test)
{
    enum suite_role role = line->keyword->role;
    char **words = line->words;
    bool scalar = line->count == 5; /* its shape is no text at all */
    struct suite_array array = { .role = role, .name = words[2], .key = words[scalar ? 4 : 5] };
    int32_t type = to_type(words[3]);
    if (!to_integer(words[1], &array.slot) || array.slot < 0)
        return bad(line, "no slot: %s", words[1]);
    if (!type)
        return bad(line, "no element type: %s", words[3]);
    if (!to_tensor(scalar ? "" : words[4], type, &array.tensor))
        return bad(line, "no shape: %s", words[4]);
    for (int64_t a = 0; a < test->array_count; a++) {
        const struct suite_array *other = &test->arrays[a];
        if (other->role == role
            && (other->slot == array.slot || strcmp(other->name, array.name) == 0))
            return bad(line, "a second %s %" PRId64 " or %s", words[0], array.slot, array.name);
    }
    test->arrays[test->array_count++] = array;
    line->suite->array_count++;
    return true;
}

static bool take_weight(struct line *line, struct suite_case *test)
{
    char **words = line->words;
    struct suite_weight weight = { .name = words[1], .key = words[2] };
    if (!to_tensor(words[3], MHA_FLOAT32, &weight.tensor))
        return bad(line, "no shape: %s", words[3]);
    if (!to_integer(words[4], &weight.offset) || weight.offset < 0)
        return bad(line, "no offset: %s", words[4]);
    test->weights[test->weight_count++] = weight;
    line->suite->weight_count++;
    return true;
}

static bool take_error(struct line *line, struct suite_case *test)
{
    struct suite_error error = { .name = line->words[1] };
    if (!to_number(line->words[2], &error.error) || !to_number(line->words[3], &error.scale)
        || !isfinite(error.error) || error.error < 0)
        return bad(line, "no error and scale: %s %s", line->words[2], line->words[3]);
    test->errors[test->error_count++] = error;
    line->suite->error_count++;
    return true;
}

static bool take_note(struct line *line, struct suite_case *test)
{
    test->informational |= strncmp(line->words[1], "informational", 13) == 0;
    return true;
}

/* What another runner compares with: checked but not kept, it would let wrong scales pass. */
static bool take_tolerance(struct line *line, struct suite_case *test)
{
    (void)test;
    double unused;
    return (to_number(line->words[1], &unused) && to_number(line->words[2], &unused))
           || bad(line, "no tolerances: %s %s", line->words[1], line->words[2]);
}

static const struct keyword keywords[] = {
    { .word = "case", .fewest = 2, .most = 2 },
    { .word = "op", .fewest = 3, .most = 3, .take = take_op },
    { .word = "attr", .fewest = 3, .most = 4, .blanks = true, .take = take_attribute },
    { .word = "in", .fewest = 5, .most = 6, .take = take_array, .role = SUITE_IN },
    { .word = "out", .fewest = 5, .most = 6, .take = take_array, .role = SUITE_OUT },
    { .word = "out64", .fewest = 5, .most = 6, .take = take_array, .role = SUITE_OUT64 },
    { .word = "grad", .fewest = 5, .most = 6, .take = take_array, .role = SUITE_GRAD },
    { .word = "weight", .fewest = 5, .most = 5, .take = take_weight },
    { .word = "f32err", .fewest = 4, .most = 4, .take = take_error },
    { .word = "tol", .fewest = 3, .most = 3, .take = take_tolerance },
    { .word = "note", .fewest = 2, .most = 2, .blanks = true, .take = take_note },
};

static bool take_line(struct line *line, char *text)
{
    struct suite *suite = line->suite;
    text += strspn(text, blanks);
    if (!*text)
        return true;
    size_t length = strcspn(text, blanks);
    const struct keyword *keyword = NULL;
    for (int64_t k = 0; k < COUNT(keywords); k++)
        if (strlen(keywords[k].word) == length && strncmp(keywords[k].word, text, length) == 0)
            keyword = &keywords[k];
    if (!keyword)
        return bad(line, "no keyword: %.*s", (int)length, text);

    /* One word more than there may be, so that it shows; or a last one with all its blanks. */
    cut(line, text, keyword->blanks ? keyword->most : keyword->most + 1);
    line->keyword = keyword;
    if (line->count < keyword->fewest || line->count > keyword->most)
        return bad(line, "too %s words after %s", line->count > keyword->most ? "many" : "few",
                   keyword->word);
    if (!keyword->take)
        return start_case(line);
    if (suite->case_count == 0)
        return bad(line, "%s before the first case", keyword->word);
    return keyword->take(line, &suite->cases[suite->case_count - 1]);
}

/* ------------------------------------------------------------------------------------------------
 * Files
 * --------------------------------------------------------------------------------------------- */

/* The whole file, closed by a NUL; NULL after a message. */
static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "conformance: %s: %s\n", path, strerror(errno));
        return NULL;
    }
    size_t room = 1 << 16, bytes = 0;
    char *text = malloc(room);
    while (text) {
        bytes += fread(text + bytes, 1, room - bytes - 1, file);
        if (bytes < room - 1)
            break;
        room *= 2;
        char *longer = realloc(text, room);
        if (!longer)
            free(text);
        text = longer;
    }
    const char *problem = !text                       ? "out of memory"
                          : ferror(file)              ? "cannot be read"
                          : memchr(text, '\0', bytes) ? "is no text: it contains a zero byte"
                                                      : NULL;
    fclose(file);
    if (problem) {
        fprintf(stderr, "conformance: %s: %s\n", path, problem);
        free(text);
        return NULL;
    }
    text[bytes] = '\0';
    return text;
}

/* One line can add one entry to one of the lists at most. */
static bool make_room(struct suite *suite)
{
    size_t lines = 1;
    for (const char *c = suite->text; *c; c++)
        lines += *c == '\n';
    suite->cases = calloc(lines, sizeof *suite->cases);
    suite->arrays = calloc(lines, sizeof *suite->arrays);
    suite->attributes = calloc(lines, sizeof *suite->attributes);
    suite->weights = calloc(lines, sizeof *suite->weights);
    suite->errors = calloc(lines, sizeof *suite->errors);
    if (suite->cases && suite->arrays && suite->attributes && suite->weights && suite->errors)
        return true;
    fprintf(stderr, "conformance: out of memory\n");
    return false;
}

static bool read_cases(const char *path, struct suite *suite)
{
    suite->text = read_text(path);
    if (!suite->text || !make_room(suite))
        return false;
    struct line line = { .path = path, .suite = suite };
    for (char *text = suite->text; text;) {
        char *next = strchr(text, '\n');
        if (next)
            *next++ = '\0';
        line.number++;
        if (!take_line(&line, text))
            return false;
        text = next;
    }
    if (suite->case_count == 0)
        return bad(&line, "no case");
    for (int64_t c = 0; c < suite->case_count; c++) {
        const struct suite_case *test = &suite->cases[c];
        int64_t outputs = 0;
        for (int64_t a = 0; a < test->array_count; a++)
            outputs += test->arrays[a].role == SUITE_OUT;
        if (!test->op || outputs == 0) {
            fprintf(stderr, "conformance: %s: case %s has no %s\n", path, test->name,
                    test->op ? "output" : "op");
            return false;
        }
    }
    return true;
}

static bool same_shape(const struct mha_tensor *a, const struct mha_tensor *b)
{
    return a->type == b->type && a->rank == b->rank
           && memcmp(a->shape, b->shape, (size_t)a->rank * sizeof a->shape[0]) == 0;
}

static bool open_arrays(mha_context *ctx, const char *path, struct suite *suite)
{
    if (mha_safetensors_open(ctx, path, 0, &suite->file) != MHA_OK) {
        fprintf(stderr, "conformance: %s: %s\n", path, mha_context_message(ctx));
        return false;
    }
    for (int64_t a = 0; a < suite->array_count; a++) {
        const struct suite_array *array = &suite->arrays[a];
        struct mha_tensor found;
        if (mha_safetensors_shape(ctx, suite->file, array->key, &found) != MHA_OK) {
            fprintf(stderr, "conformance: %s: %s\n", path, mha_context_message(ctx));
            return false;
        }
        if (!same_shape(&found, &array->tensor)) {
            char is[128], wanted[128];
            mha_tensor_shape_text(&found, is, sizeof is);
            mha_tensor_shape_text(&array->tensor, wanted, sizeof wanted);
            fprintf(stderr, "conformance: %s: %s is %s %s, the cases say %s %s\n", path, array->key,
                    mha_type_text(found.type), is, mha_type_text(array->tensor.type), wanted);
            return false;
        }
    }
    return true;
}

bool suite_open(mha_context *ctx, const char *stem, struct suite *suite)
{
    static const char cases[] = ".cases.txt", arrays[] = ".safetensors";
    *suite = (struct suite){ 0 };
    size_t room = strlen(stem) + sizeof arrays; /* the longer ending */
    char *path = malloc(room);
    if (!path) {
        fprintf(stderr, "conformance: out of memory\n");
        return false;
    }
    snprintf(path, room, "%s%s", stem, cases);
    bool good = read_cases(path, suite);
    snprintf(path, room, "%s%s", stem, arrays);
    good = good && open_arrays(ctx, path, suite);
    free(path);
    return good;
}

void suite_close(struct suite *suite)
{
    mha_safetensors_close(suite->file);
    free(suite->cases);
    free(suite->arrays);
    free(suite->attributes);
    free(suite->weights);
    free(suite->errors);
    free(suite->text);
    *suite = (struct suite){ 0 };
}
