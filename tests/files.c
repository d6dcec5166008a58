#include "files.h"

#include <dirent.h>
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture.h"

static char directory[128];

int files_setup(void **state)
{
    const char *parent = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%.80s/mha-test-XXXXXX", parent ? parent : "/tmp");
    return mkdtemp(directory) ? open_context(state) : -1;
}

/* Goes through the files whose name starts with `start`; returns their number. */
static int64_t each_file(const char *start, int (*act)(const char *path))
{
    int64_t n = 0;
    DIR *list = opendir(directory);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0
            || strncmp(entry->d_name, start, strlen(start)) != 0)
            continue;
        n++;
        if (act)
            act(file_path(entry->d_name));
    }
    if (list)
        closedir(list);
    return n;
}

int files_teardown(void **state)
{
    int closed = close_context(state);
    each_file("", remove);
    return rmdir(directory) == 0 ? closed : -1;
}

const char *file_path(const char *name)
{
    static char paths[8][512];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

int64_t files_count(const char *start)
{
    return each_file(start, NULL);
}

static const char *write_parts(const char *name, const void *a, int64_t na, const void *b,
                               int64_t nb, const void *c, int64_t nc)
{
    const char *path = file_path(name);
    FILE *file = fopen(path, "wb");
    bool good = file && fwrite(a, 1, (size_t)na, file) == (size_t)na
                && (nb == 0 || fwrite(b, 1, (size_t)nb, file) == (size_t)nb)
                && (nc == 0 || fwrite(c, 1, (size_t)nc, file) == (size_t)nc);
    if (!file || fclose(file) != 0 || !good)
        fail_msg("cannot write %s", path);
    return path;
}

const char *file_write(const char *name, const void *bytes, int64_t n)
{
    return write_parts(name, bytes, n, NULL, 0, NULL, 0);
}

void file_poke(const char *path, int64_t at, char byte)
{
    int descriptor = open(path, O_WRONLY);
    if (descriptor < 0 || pwrite(descriptor, &byte, 1, (off_t)at) != 1 || close(descriptor) != 0)
        fail_msg("cannot change %s", path);
}

char *file_read(const char *path, int64_t *n)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0)
        fail_msg("cannot read %s", path);
    *n = ftell(file);
    rewind(file);
    char *bytes = malloc((size_t)*n + 1);
    if (!bytes || fread(bytes, 1, (size_t)*n, file) != (size_t)*n)
        fail_msg("cannot read %s", path);
    fclose(file);
    return bytes;
}

const char *file_write_safetensors(const char *name, const char *header, const void *data,
                                   int64_t n)
{
    unsigned char length[8];
    uint64_t bytes = strlen(header);
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(bytes >> 8 * i);
    return write_parts(name, length, 8, header, (int64_t)bytes, data, n);
}

const char *file_write_npy(const char *name, const char *header, const void *data, int64_t n)
{
    size_t bytes = strlen(header);
    char start[] = "\x93NUMPY\x01\x00__";
    start[8] = (char)(bytes & 0xff);
    start[9] = (char)(bytes >> 8);
    return write_parts(name, start, 10, header, (int64_t)bytes, data, n);
}

void locale_with_comma(void)
{
    static const char *const names[] = { "de_DE.UTF-8", "de_DE.utf8",  "de_AT.UTF-8", "fr_FR.UTF-8",
                                         "es_ES.UTF-8", "it_IT.UTF-8", "nl_NL.UTF-8", "pl_PL.UTF-8",
                                         "pt_BR.UTF-8", "ru_RU.UTF-8", "sv_SE.UTF-8", "de_DE" };
    for (int64_t i = 0; i < COUNT(names); i++)
        if (setlocale(LC_ALL, names[i]) && *localeconv()->decimal_point == ',')
            return;
    setlocale(LC_ALL, "C");
    print_message("no locale with a decimal comma is installed\n");
    skip();
}

void locale_back(void)
{
    char text[32];
    snprintf(text, sizeof text, "%.1f", 0.5);
    setlocale(LC_ALL, "C");
    assert_string_equal(text, "0,5");
}
