/* mha inspect: what .npy and .safetensors files hold. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"

static const char help_text[] =
    "usage: mha inspect [--header-limit BYTES] FILE...\n"
    "\n"
    "Lists the tensors of .npy and .safetensors files: name, type and shape, one tensor a line,\n"
    "then their number and the bytes of their data. What a file is shows in its first bytes, not\n"
    "in its name; the array of a .npy file is listed under the file's name. Types that the\n"
    "library does not know are shown as unknown, and their bytes are not counted. Control\n"
    "characters in names are shown as \\n, \\xHH or \\u{HHHH}. Only headers are read.\n"
    "\n"
    "options:\n"
    "      --header-limit BYTES    refuse a .safetensors header of more bytes (default: 100 MB)\n"
    "  -h, --help                  this text\n"
    "\n"
    "exit status: 0 success, 1 a file could not be read (the others are listed all the same),\n"
    "2 wrong usage\n";

struct line {
    char *name; /* escaped */
    char shape[COMMAND_SHAPE_BYTES];
    const char *type;
};

/* What is printed of one file. */
struct list {
    struct line *lines;
    int64_t count;
    int64_t bytes;
    int64_t unknown; /* tensors of unknown type */
};

static int list_create(const char *path, int64_t room, struct list *list)
{
    *list = (struct list){ .lines = calloc((size_t)room + 1, sizeof *list->lines) };
    return list->lines ? COMMAND_OK : command_fail("%s: not enough memory", path);
}

static void list_free(struct list *list)
{
    for (int64_t i = 0; i < list->count; i++)
        free(list->lines[i].name);
    free(list->lines);
}

static int list_add(struct list *list, const char *name, const struct mha_tensor *tensor)
{
    struct line *line = &list->lines[list->count];
    line->name = command_escaped(name);
    if (!line->name)
        return command_fail("%s: not enough memory", name);
    list->count++;
    command_shape(tensor, line->shape);
    line->type = tensor->type ? mha_type_text(tensor->type) : "unknown";
    if (tensor->type)
        list->bytes += mha_tensor_count(tensor) * mha_type_bytes(tensor->type);
    else
        list->unknown++;
    return COMMAND_OK;
}

static int64_t widest(int64_t width, const char *text)
{
    int64_t characters = command_characters(text);
    return characters > width ? characters : width;
}

static void print_column(const char *text, int64_t width)
{
    fputs(text, stdout);
    for (int64_t i = command_characters(text); i < width + 2; i++)
        putchar(' ');
}

static void list_print(const struct list *list)
{
    int64_t name_width = 0;
    int64_t type_width = 0;
    for (int64_t i = 0; i < list->count; i++) {
        name_width = widest(name_width, list->lines[i].name);
        type_width = widest(type_width, list->lines[i].type);
    }
    for (int64_t i = 0; i < list->count; i++) {
        print_column(list->lines[i].name, name_width);
        print_column(list->lines[i].type, type_width);
        puts(list->lines[i].shape);
    }
    printf("%" PRId64 " tensor%s, %" PRId64 " bytes", list->count, list->count == 1 ? "" : "s",
           list->bytes);
    if (list->unknown)
        printf(" and %" PRId64 " of unknown type", list->unknown);
    putchar('\n');
}

static int inspect_npy(mha_context *ctx, const char *path)
{
    struct mha_tensor tensor;
    mha_status status = mha_npy_shape(ctx, path, &tensor);
    if (status != MHA_OK)
        return command_fail_library(ctx, status);
    struct list list;
    int code = list_create(path, 1, &list);
    if (code == COMMAND_OK)
        code = list_add(&list, path, &tensor);
    if (code == COMMAND_OK)
        list_print(&list);
    list_free(&list);
    return code;
}

static int inspect_safetensors(mha_context *ctx, const char *path, int64_t header_limit)
{
    mha_safetensors *file = NULL;
    mha_status status = mha_safetensors_open(ctx, path, header_limit, &file);
    if (status != MHA_OK)
        return command_fail_library(ctx, status);
    int64_t count = mha_safetensors_count(file);
    struct list list;
    int code = list_create(path, count, &list);
    for (int64_t i = 0; i < count && code == COMMAND_OK; i++) {
        struct mha_tensor tensor;
        const char *name = mha_safetensors_name(file, i);
        status = mha_safetensors_shape(ctx, file, name, &tensor);
        if (status != MHA_OK)
            code = command_fail_library(ctx, status);
        else
            code = list_add(&list, name, &tensor);
    }
    if (code == COMMAND_OK)
        list_print(&list);
    list_free(&list);
    mha_safetensors_close(file);
    return code;
}

/* The first bytes of a regular file, and how many there are. What is none is not waited for. */
static int read_start(const char *path, char *start, size_t room, size_t *bytes)
{
    int code = COMMAND_OK;
    struct stat kind;
    ssize_t got = -1;
    int file = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (file < 0)
        return command_fail("%s: %s", path, strerror(errno));
    if (fstat(file, &kind) == 0 && !S_ISREG(kind.st_mode) && !S_ISDIR(kind.st_mode))
        code = command_fail("%s: not a regular file", path);
    else if ((got = read(file, start, room)) < 0)
        code = command_fail("%s: %s", path, strerror(errno));
    *bytes = got < 0 ? 0 : (size_t)got;
    close(file);
    return code;
}

static int inspect(mha_context *ctx, const char *path, int64_t header_limit)
{
    char start[9] = "";
    size_t bytes = 0;
    int code = read_start(path, start, sizeof start, &bytes);
    if (code != COMMAND_OK)
        return code;
    if (bytes >= 6 && memcmp(start, "\x93NUMPY", 6) == 0)
        return inspect_npy(ctx, path);
    /* A .safetensors file is eight bytes of length, then JSON that must begin with a brace. */
    if (bytes == sizeof start && start[8] == '{')
        return inspect_safetensors(ctx, path, header_limit);
    return command_fail("%s: neither a .npy nor a .safetensors file", path);
}

int command_inspect(int argc, char **argv)
{
    bool help = false;
    int64_t header_limit = 0;
    const struct command_option options[] = {
        { .name = "header-limit", .count = &header_limit, .least = 1 },
        { .name = "help", .letter = 'h', .flag = &help },
        { 0 },
    };
    int code = command_parse(argc, argv, options);
    if (code != COMMAND_OK)
        return code;
    if (help)
        return command_help(help_text);
    if (optind == argc)
        return command_wrong("no file given");

    mha_context *ctx = NULL;
    code = command_context(1, &ctx);
    if (code != COMMAND_OK)
        return code;
    bool several = argc - optind > 1;
    for (int i = optind; i < argc; i++) {
        if (several) {
            char *path = command_escaped(argv[i]);
            printf("%s%s:\n", i > optind ? "\n" : "", path ? path : "?");
            free(path);
        }
        if (inspect(ctx, argv[i], header_limit) != COMMAND_OK)
            code = COMMAND_FAILED;
    }
    mha_context_free(ctx);
    return code;
}
