/* What the parts of the `mha` command share: exit codes, errors in one line, options, arrays. */
#ifndef COMMAND_H
#define COMMAND_H

#include <stdbool.h>
#include <stdint.h>

#include "mha.h"

enum command_exit {
    COMMAND_OK = 0,
    COMMAND_FAILED = 1, /* the work could not be done */
    COMMAND_USAGE = 2   /* it was not asked for in the right way */
};

/* The parts. Each gets the words from its own name on and returns an exit code. */
int command_info(int argc, char **argv);
int command_inspect(int argc, char **argv);
int command_run(int argc, char **argv);
int command_heatmap(int argc, char **argv);
int command_bench(int argc, char **argv);

/* The name that errors begin with from now on, such as "mha run". A static text. */
void command_begin(const char *name);

/* Both print one line on stderr, whatever the arguments contain, and return COMMAND_FAILED and
 * COMMAND_USAGE. */
int command_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
int command_wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* command_fail with the last message of the library. */
int command_fail_library(const mha_context *ctx, mha_status status);

/* Prints a help text on stdout. */
int command_help(const char *text);

/* The exit code of the whole command: `code`, unless stdout could not take what was printed. */
int command_finish(int code);

/* A copy of `text` that is one line of valid UTF-8 without control characters: they, and bytes that
 * are not UTF-8, become \n, \xHH or \u{HHHH}. NULL without memory; the caller frees it. */
char *command_escaped(const char *text);

/* How many characters a text of valid UTF-8 has. */
int64_t command_characters(const char *text);

struct command_word {
    const char *name;
    int32_t value;
};

/* An option of a command. Exactly one of the pointers from `flag` to `word` is set and says what
 * the option takes and where that goes. A table of options ends with a NULL name. */
struct command_option {
    const char *name;  /* without the dashes */
    char letter;       /* the short form, or 0 */
    bool *flag;        /* no value */
    const char **text; /* any text */
    int64_t *count;    /* a whole number, at least `least` */
    float *real;       /* a finite float32 */
    int32_t *word;     /* one of `words`, which end with a NULL name */
    int64_t least;
    const struct command_word *words;
    bool *given; /* set when the option was there; may be NULL */
};

/* The place of the file that writing to `path` makes or replaces: absolute, links followed, also
 * where they lead to no file yet. False with errno when there is no such place. */
enum { COMMAND_PATH_BYTES = 4096 };
bool command_destination(const char *path, char place[COMMAND_PATH_BYTES]);

/* Reads all options; the operands are then argv[optind] to argv[argc - 1]. */
int command_parse(int argc, char **argv, const struct command_option *options);

/* COMMAND_USAGE when there are operands left. */
int command_no_operands(int argc, char **argv);

/* A whole number in decimal, nothing before or after it. False for anything else. */
bool command_integer(const char *text, int64_t *value);

/* A context for that many threads (see mha_context_options); NULL when it fails. */
int command_context(int64_t threads, mha_context **ctx);

/*
 * A tensor of the command owns its data: free(tensor.data). `command_array` allocates the data of a
 * tensor whose type and shape are filled in; `command_read` reads a .npy file, floats of any width
 * as float32 and everything else as it is. On failure data is NULL.
 */
int command_array(const char *what, struct mha_tensor *tensor);
int command_read(mha_context *ctx, const char *path, struct mha_tensor *tensor);

/* The tensor's shape as text; `text` is where it is put and what is returned. */
enum { COMMAND_SHAPE_BYTES = 160 };
const char *command_shape(const struct mha_tensor *tensor, char text[COMMAND_SHAPE_BYTES]);

#endif
