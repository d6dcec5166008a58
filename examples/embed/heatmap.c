#include "heatmap.h"

#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* The command that was installed with the library, unless the environment names another. */
static const char *command(void)
{
    const char *chosen = getenv("MHA_COMMAND");
    return chosen && *chosen ? chosen : EMBED_MHA_COMMAND;
}

static bool write_tokens(const char *path, const char *const *tokens, int64_t count,
                         struct reason *why)
{
    FILE *file = fopen(path, "w");
    if (!file)
        return failed(why, "%s: %s", path, strerror(errno));
    for (int64_t i = 0; i < count; i++)
        fprintf(file, "%s\n", tokens[i]);
    bool ok = !ferror(file);
    ok = fclose(file) == 0 && ok;
    return ok || failed(why, "%s: cannot be written", path);
}

/* Runs a program to its end. Its words go to standard error: standard output is for numbers. */
static bool run(char *const *arguments, struct reason *why)
{
    posix_spawn_file_actions_t actions;
    pid_t child = 0;
    int status = 0;
    int error = posix_spawn_file_actions_init(&actions);
    if (!error) {
        error = posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
        if (!error)
            error = posix_spawnp(&child, arguments[0], &actions, NULL, arguments, environ);
        posix_spawn_file_actions_destroy(&actions);
    }
    if (error)
        return failed(why, "%s: %s", arguments[0], strerror(error));
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR)
            return failed(why, "%s: %s", arguments[0], strerror(errno));
    }
    if (WIFSIGNALED(status))
        return failed(why, "%s %s: ended by signal %d", arguments[0], arguments[1],
                      WTERMSIG(status));
    return WEXITSTATUS(status) == 0
           || failed(why, "%s %s: exit status %d", arguments[0], arguments[1], WEXITSTATUS(status));
}

bool heatmap_draw(mha_context *ctx, const char *stem, const struct mha_tensor *weights,
                  const char *const *tokens, const char *title, struct reason *why)
{
    size_t room = strlen(stem) + sizeof ".tokens.txt";
    char *npy = malloc(room), *txt = malloc(room), *png = malloc(room);
    bool ok = (npy && txt && png) || failed(why, "out of memory");
    if (ok) {
        snprintf(npy, room, "%s.npy", stem);
        snprintf(txt, room, "%s.tokens.txt", stem);
        snprintf(png, room, "%s.png", stem);
        const char *arguments[] = { command(),  "heatmap", npy,       "-o",  png,
                                    "--labels", txt,       "--title", title, NULL };
        ok = (!mha_npy_write(ctx, npy, weights) || failed(why, "%s", mha_context_message(ctx)))
             && write_tokens(txt, tokens, weights->shape[1], why)
             && run((char *const *)arguments, why);
    }
    free(npy);
    free(txt);
    free(png);
    return ok;
}
