/*
 * Runs a program at one instruction-set level, or says that this cannot be done here:
 *
 *     at_level LEVEL [--needs FILE] PROGRAM [ARGUMENT...]
 *
 * The program finds the level in MHA_ISA and its status is that of at_level. The status is 77, which
 * CTest shows as skipped, when this processor lacks the level or there is no such file.
 */
#define _POSIX_C_SOURCE 200809L

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mha.h>

enum { SKIPPED = 77 };

int main(int argc, char **argv)
{
    bool needs = argc > 3 && strcmp(argv[2], "--needs") == 0;
    char **program = argv + (needs ? 4 : 2);
    if (argc < 3 || !*program) {
        fprintf(stderr, "usage: at_level LEVEL [--needs FILE] PROGRAM [ARGUMENT...]\n");
        return 2;
    }
    char message[512] = "";
    struct mha_context_options options = { .isa = argv[1],
                                           .message = message,
                                           .message_bytes = sizeof message };
    mha_context *ctx = NULL;
    mha_status status = mha_context_create(&options, &ctx);
    mha_context_free(ctx);
    if (status != MHA_OK) {
        fprintf(stderr, "%s\n", message);
        return status == MHA_ERROR_UNSUPPORTED ? SKIPPED : 1;
    }
    if (needs && access(argv[3], R_OK) != 0) {
        fprintf(stderr, "%s is not there: `./run test` fetches it\n", argv[3]);
        return SKIPPED;
    }
    if (setenv("MHA_ISA", argv[1], 1) != 0) {
        perror("setenv");
        return 1;
    }
    execvp(*program, program);
    perror(*program);
    return 1;
}
