/* What the parts of the `mha` command share. */
#include "command.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- errors and output ---- */

static const char *command_name = "mha";

void command_begin(const char *name)
{
    command_name = name;
}

static void print_error(const char *format, va_list arguments, const char *hint)
{
    char text[2048];
    vsnprintf(text, sizeof text, format, arguments);
    char *line = command_escaped(text);
    fprintf(stderr, "%s: %s", command_name, line ? line : "not enough memory");
    if (hint)
        fprintf(stderr, " (%s %s)", command_name, hint);
    fputc('\n', stderr);
    free(line);
}

int command_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_error(format, arguments, NULL);
    va_end(arguments);
    return COMMAND_FAILED;
}

int command_wrong(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_error(format, arguments, "--help tells more");
    va_end(arguments);
    return COMMAND_USAGE;
}

int command_fail_library(const mha_context *ctx, mha_status status)
{
    const char *message = mha_context_message(ctx);
    return command_fail("%s", *message ? message : mha_status_text(status));
}

int command_help(const char *text)
{
    fputs(text, stdout);
    return COMMAND_OK;
}

int command_finish(int code)
{
    errno = 0;
    bool flushed = fflush(stdout) == 0;
    if (flushed && !ferror(stdout))
        return code;
    int failed = command_fail("cannot write the standard output: %s",
                              errno ? strerror(errno) : "write error");
    return code == COMMAND_OK ? failed : code;
}

/* ---- text ---- */

/* Bytes of the UTF-8 character at `text`, its number in *character; 0 when it is not one: overlong
 * forms, surrogates and numbers above U+10FFFF are none. */
static size_t decode(const unsigned char *text, uint32_t *character)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    size_t bytes = text[0] < 0x80   ? 1
                   : text[0] < 0xc0 ? 0
                   : text[0] < 0xe0 ? 2
                   : text[0] < 0xf0 ? 3
                   : text[0] < 0xf8 ? 4
                                    : 0;
    if (bytes == 0)
        return 0;
    uint32_t number = bytes == 1 ? text[0] : text[0] & (0x7fu >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        number = number << 6 | (text[i] & 0x3f);
    }
    if (number < least[bytes] || number > 0x10ffff || (number >= 0xd800 && number < 0xe000))
        return 0;
    *character = number;
    return bytes;
}

/* What a terminal would obey instead of showing it: controls, line and paragraph separators, and
 * marks that change the direction of writing. */
static bool is_control(uint32_t character)
{
    return character < 0x20 || (character >= 0x7f && character < 0xa0) || character == 0x061c
           || character == 0x200e || character == 0x200f
           || (character >= 0x2028 && character <= 0x202e)
           || (character >= 0x2066 && character <= 0x2069);
}

char *command_escaped(const char *text)
{
    enum { LONGEST = 10 }; /* \u{10ffff} */
    size_t length = strlen(text);
    char *line = length < SIZE_MAX / LONGEST - 1 ? malloc(length * LONGEST + 1) : NULL;
    if (!line)
        return NULL;
    char *end = line;
    const unsigned char *at = (const unsigned char *)text;
    while (*at) {
        uint32_t character = 0;
        size_t bytes = decode(at, &character);
        if (bytes == 0 || (bytes == 1 && is_control(character))) {
            const char *named = bytes ? strchr("\nn\tt\rr", *at) : NULL;
            end += named ? sprintf(end, "\\%c", named[1]) : sprintf(end, "\\x%02x", *at);
            at++;
        } else if (is_control(character)) {
            end += sprintf(end, "\\u{%" PRIx32 "}", character);
            at += bytes;
        } else {
            memcpy(end, at, bytes);
            end += bytes;
            at += bytes;
        }
    }
    *end = '\0';
    return line;
}

int64_t command_characters(const char *text)
{
    int64_t count = 0;
    for (; *text; text++)
        count += ((unsigned char)*text & 0xc0) != 0x80;
    return count;
}

const char *command_shape(const struct mha_tensor *tensor, char text[COMMAND_SHAPE_BYTES])
{
    mha_tensor_shape_text(tensor, text, COMMAND_SHAPE_BYTES);
    return text;
}

/* ---- paths ---- */

static_assert(COMMAND_PATH_BYTES >= PATH_MAX, "realpath writes as much");

bool command_destination(const char *path, char place[COMMAND_PATH_BYTES])
{
    if (realpath(path, place))
        return true;
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    if (errno != ENOENT || !*name)
        return false;

    /* No such file: a link that leads to none, or a name in a directory. */
    char next[COMMAND_PATH_BYTES] = "", link[COMMAND_PATH_BYTES];
    ssize_t length = readlink(path, link, sizeof link - 1);
    link[length < 0 ? 0 : length] = '\0';
    int parent = link[0] == '/' ? 0 : (int)(name - path);
    int needed = snprintf(next, sizeof next, "%.*s%s", parent, path, length < 0 ? "." : link);
    if (needed < (int)sizeof next && length >= 0)
        return command_destination(next, place);
    if (needed >= (int)sizeof next || !realpath(next, place))
        return false;
    size_t used = strlen(place);
    needed = snprintf(place + used, COMMAND_PATH_BYTES - used, "/%s", name);
    errno = ENAMETOOLONG;
    return needed < (int)(COMMAND_PATH_BYTES - used);
}

/* ---- options ---- */

bool command_integer(const char *text, int64_t *value)
{
    bool negative = *text == '-';
    if (strspn(text + negative, "0123456789") != strlen(text + negative) || !text[negative])
        return false;
    errno = 0;
    long long number = strtoll(text, NULL, 10);
    if (errno != 0)
        return false;
    *value = number;
    return true;
}

static bool parse_real(const char *text, float *value)
{
    /* strtod would skip blanks before the number. */
    if (!*text || strchr(" \t\n\v\f\r", *text))
        return false;
    char *end = NULL;
    double number = strtod(text, &end);
    if (end == text || *end || !isfinite(number) || fabs(number) > FLT_MAX)
        return false;
    *value = (float)number;
    return true;
}

static int take_word(const struct command_option *option, const char *text)
{
    char choice[256] = "";
    for (const struct command_word *word = option->words; word->name; word++) {
        if (strcmp(word->name, text) == 0) {
            *option->word = word->value;
            return COMMAND_OK;
        }
        size_t used = strlen(choice);
        snprintf(choice + used, sizeof choice - used, "%s%s", used ? ", " : "", word->name);
    }
    return command_wrong("--%s: '%s' is none of %s", option->name, text, choice);
}

static int take(const struct command_option *option, const char *text)
{
    if (option->given)
        *option->given = true;
    if (option->flag) {
        *option->flag = true;
    } else if (option->text) {
        *option->text = text;
    } else if (option->count) {
        if (!command_integer(text, option->count) || *option->count < option->least)
            return command_wrong("--%s: '%s' is not a whole number from %" PRId64 " to %" PRId64,
                                 option->name, text, option->least, INT64_MAX);
    } else if (option->real) {
        if (!parse_real(text, option->real))
            return command_wrong("--%s: '%s' is not a finite float32 number", option->name, text);
    } else {
        return take_word(option, text);
    }
    return COMMAND_OK;
}

/* The option that getopt_long stumbled over is in optopt: 0 for an unknown long name, a letter, or
 * LONG + the index of an option that we know. */
enum { LONG = 256, MOST_OPTIONS = 48 };

static int refuse(const struct command_option *options, int code, const char *word)
{
    if (optopt == 0)
        return command_wrong("unknown or ambiguous option '%s'", word);
    if (optopt >= LONG && code == '?')
        return command_wrong("option --%s takes no value", options[optopt - LONG].name);
    if (optopt >= LONG)
        return command_wrong("option --%s needs a value", options[optopt - LONG].name);
    return command_wrong(code == ':' ? "option -%c needs a value" : "unknown option -%c", optopt);
}

int command_parse(int argc, char **argv, const struct command_option *options)
{
    struct option names[MOST_OPTIONS + 1] = { { 0 } };
    char letters[2 * MOST_OPTIONS + 2] = ":";
    size_t used = 1;
    int count = 0;
    for (; options[count].name; count++) {
        assert(count < MOST_OPTIONS);
        int value = options[count].flag ? no_argument : required_argument;
        names[count] = (struct option){ options[count].name, value, NULL, LONG + count };
        if (options[count].letter) {
            letters[used++] = options[count].letter;
            if (value == required_argument)
                letters[used++] = ':';
        }
    }
    optind = 0; /* a fresh start */
    opterr = 0;
    for (;;) {
        int code = getopt_long(argc, argv, letters, names, NULL);
        if (code == -1)
            return COMMAND_OK;
        if (code == '?' || code == ':')
            return refuse(options, code, argv[optind - 1]);
        int index = code - LONG;
        if (code < LONG)
            for (index = 0; options[index].letter != code;)
                index++;
        int taken = take(&options[index], optarg);
        if (taken != COMMAND_OK)
            return taken;
    }
}

int command_no_operands(int argc, char **argv)
{
    return optind < argc ? command_wrong("unexpected argument '%s'", argv[optind]) : COMMAND_OK;
}

/* ---- the library's objects ---- */

int command_context(int64_t threads, mha_context **ctx)
{
    char message[512] = "";
    struct mha_context_options options = { .size = sizeof options,
                                           .message = message,
                                           .message_bytes = sizeof message,
                                           .threads = threads };
    mha_status status = mha_context_create(&options, ctx);
    if (status != MHA_OK)
        return command_fail("%s", *message ? message : mha_status_text(status));
    return COMMAND_OK;
}

int command_array(const char *what, struct mha_tensor *tensor)
{
    char shape[COMMAND_SHAPE_BYTES];
    int64_t count = mha_tensor_count(tensor);
    int64_t bytes = mha_type_bytes(tensor->type);
    tensor->data = NULL;
    if (count < 0 || bytes <= 0 || (uint64_t)count > SIZE_MAX / (uint64_t)bytes)
        return command_fail("%s: no memory holds %s", what, command_shape(tensor, shape));
    tensor->data = malloc(count ? (size_t)count * (size_t)bytes : 1);
    if (!tensor->data)
        return command_fail("%s: not enough memory for %s of %s", what,
                            command_shape(tensor, shape), mha_type_text(tensor->type));
    return COMMAND_OK;
}

int command_read(mha_context *ctx, const char *path, struct mha_tensor *tensor)
{
    mha_status status = mha_npy_shape(ctx, path, tensor);
    tensor->data = NULL;
    if (status != MHA_OK)
        return command_fail_library(ctx, status);
    if (tensor->type == MHA_FLOAT16 || tensor->type == MHA_FLOAT64)
        tensor->type = MHA_FLOAT32;
    int code = command_array(path, tensor);
    if (code != COMMAND_OK)
        return code;
    status = mha_npy_read(ctx, path, tensor);
    if (status != MHA_OK) {
        free(tensor->data);
        tensor->data = NULL;
        return command_fail_library(ctx, status);
    }
    return COMMAND_OK;
}
