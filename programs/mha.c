/* The `mha` command: multi-head attention from the shell. */
#include <stdio.h>
#include <string.h>

#include "command.h"

static const char help[] =
    "usage: mha COMMAND [OPTION]... [FILE]...\n"
    "       mha --help | --version\n"
    "\n"
    "The Transformer's multi-head attention from the shell.\n"
    "\n"
    "commands:\n"
    "  info       the library, the processor and the BLAS in use\n"
    "  inspect    what a .npy or .safetensors file holds\n"
    "  run        a layer from a .safetensors file on .npy arrays\n"
    "  heatmap    attention weights as a picture\n"
    "  bench      how fast the library is here\n"
    "\n"
    "options:\n"
    "  -h, --help       this text; 'mha COMMAND --help' tells about one command\n"
    "  -V, --version    the version\n"
    "\n"
    "environment:\n"
    "  MHA_ISA    the instruction-set level to use in place of the best one: generic, avx2, neon\n"
    "\n"
    "exit status: 0 success, 1 the work failed, 2 wrong usage\n";

static const struct {
    const char *name;
    const char *title; /* what its errors begin with */
    int (*run)(int argc, char **argv);
} commands[] = {
    { "info", "mha info", command_info },    { "inspect", "mha inspect", command_inspect },
    { "run", "mha run", command_run },       { "heatmap", "mha heatmap", command_heatmap },
    { "bench", "mha bench", command_bench },
};

static int dispatch(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(argv[0], commands[i].name) == 0) {
            command_begin(commands[i].title);
            return commands[i].run(argc, argv);
        }
    }
    return command_wrong("unknown command '%s'", argv[0]);
}

/* The options before the command's name: they ask for a text and take no company. */
static int answer(int argc, char **argv)
{
    bool wants_help = strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0;
    bool wants_version = strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0;
    if (!wants_help && !wants_version)
        return command_wrong("unknown option '%s'", argv[1]);
    if (argc > 2)
        return command_wrong("unexpected argument '%s'", argv[2]);
    if (wants_help)
        return command_help(help);
    printf("mha %s\n", mha_version());
    return COMMAND_OK;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return command_wrong("no command given");
    int code = argv[1][0] == '-' ? answer(argc, argv) : dispatch(argc - 1, argv + 1);
    return command_finish(code);
}
