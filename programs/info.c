/* mha info: what would compute here. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"

static const char help_text[] =
    "usage: mha info\n"
    "\n"
    "Tells the library's version, the processor's name, how many threads this process may use, "
    "the\n"
    "instruction-set level in use and the BLAS found, one a line.\n"
    "\n"
    "options:\n"
    "  -h, --help    this text\n"
    "\n"
    "environment:\n"
    "  MHA_ISA    the level to use in place of the best one; shown when set\n"
    "\n"
    "exit status: 0 success, 1 no context could be made (MHA_ISA names a level that is unknown or\n"
    "that this machine lacks), 2 wrong usage\n";

static void print_line(const char *name, const char *text)
{
    char *line = command_escaped(text);
    printf("%-10s  %s\n", name, line ? line : "?");
    free(line);
}

int command_info(int argc, char **argv)
{
    bool help = false;
    const struct command_option options[] = {
        { .name = "help", .letter = 'h', .flag = &help },
        { 0 },
    };
    int code = command_parse(argc, argv, options);
    if (code != COMMAND_OK)
        return code;
    if (help)
        return command_help(help_text);
    code = command_no_operands(argc, argv);
    if (code != COMMAND_OK)
        return code;

    mha_context *ctx = NULL;
    code = command_context(MHA_THREADS_ALL, &ctx);
    if (code != COMMAND_OK)
        return code;
    print_line("version", mha_version());
    if (strcmp(mha_version(), MHA_VERSION) != 0)
        print_line("header", MHA_VERSION);
    print_line("processor", mha_context_cpu(ctx));
    printf("%-10s  %" PRId64 "\n", "threads", mha_context_threads(ctx));
    print_line("level", mha_context_isa(ctx));
    const char *asked = getenv("MHA_ISA");
    if (asked)
        print_line("MHA_ISA", asked);
    print_line("BLAS", mha_blas_text());
    mha_context_free(ctx);
    return COMMAND_OK;
}
