/*
 * Loads the library that is the argument, uses it with two threads, unloads it and forks: what it
 * left with the C library (a handler of fork) must have gone with it. Three times, because another
 * load may find the same addresses.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mha.h>

static int failures;

static void fail(const char *what)
{
    printf("%s\n", what);
    failures++;
}

/* The function of that name, put into *function, which is a pointer to some function. */
static void find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    if (!symbol)
        fail(dlerror());
    memcpy(function, &symbol, sizeof symbol);
}

static void use(void *library)
{
    enum { L = 512, H = 2, D = 32 };
    static float q[L * H * D], out[L * H * D];
    mha_status (*create)(const struct mha_context_options *, mha_context **);
    mha_status (*attention)(mha_context *, const struct mha_inputs *, const struct mha_options *,
                            const struct mha_outputs *);
    void (*release)(mha_context *);
    struct mha_tensor (*tensor)(void *, int32_t, int64_t, int64_t, int64_t, int64_t);
    find(library, "mha_context_create", &create);
    find(library, "mha_attention", &attention);
    find(library, "mha_context_free", &release);
    find(library, "mha_tensor_4d", &tensor);
    if (failures)
        return;
    struct mha_tensor t_q = tensor(q, MHA_FLOAT32, 1, L, H, D);
    struct mha_tensor t_out = tensor(out, MHA_FLOAT32, 1, L, H, D);
    struct mha_context_options options = { .threads = 2 };
    mha_context *ctx = NULL;
    if (create(&options, &ctx) != MHA_OK
        || attention(ctx, &(struct mha_inputs){ .query = &t_q }, NULL,
                     &(struct mha_outputs){ .out = &t_out })
               != MHA_OK)
        fail("the call failed");
    release(ctx);
}

/* Whether an object of that file is mapped. */
static int is_mapped(const char *path)
{
    const char *name = strrchr(path, '/') ? strrchr(path, '/') : path;
    char line[1024];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, name) != NULL;
    if (maps)
        fclose(maps);
    return found;
}

static void fork_once(void)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    int status = -1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        fail("a child of fork did not end well after unloading");
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    for (int i = 0; i < 3 && failures == 0; i++) {
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            fail(dlerror());
            return 1;
        }
        use(library);
        fork_once();
        dlclose(library);
        if (is_mapped(argv[1]))
            fail("the library is still there after dlclose");
        fork_once();
    }
    return failures != 0;
}
