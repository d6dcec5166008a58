/* mha bench: how fast the library is here, scene by scene. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench_check.h"
#include "bench_report.h"
#include "bench_roof.h"
#include "bench_scene.h"
#include "command.h"

static const char help_text[] =
    "usage: mha bench [--scene NAME[,NAME]...] [--threads N] [--isa LEVEL] [--json FILE]\n"
    "       mha bench --list\n"
    "\n"
    "Measures the library on scenes, which are shapes that real users run, and prints a table:\n"
    "median and least time of a call; the spread between the quartiles; useful operations per\n"
    "second by the least time (pairs of query and key that nobody sees are not counted), and\n"
    "their share of the peak of plain multiply-adds that the same run measures; where reading\n"
    "takes longer than computing, bytes per second and their share of a plain read of as much\n"
    "memory; and the scratch memory of a call. Before a scene is timed its result is compared\n"
    "with a naive computation in double, on sampled rows; a scene that fails gets no time.\n"
    "\n"
    "options:\n"
    "      --scene NAMES    only these scenes, with commas between them (default: all)\n"
    "      --threads N      threads of a call (default: 1)\n"
    "      --isa LEVEL      the instruction-set level to use (default: as MHA_ISA says, or the\n"
    "                       best one)\n"
    "      --json FILE      write the numbers there too; - is the standard output, which then has\n"
    "                       no table\n"
    "      --list           print the scenes and their sizes instead\n"
    "  -h, --help           this text\n"
    "\n"
    "exit status: 0 success, 1 a result was wrong or something could not be done, 2 wrong usage\n";

struct request {
    const char *names;
    const char *isa;
    const char *json;
    bool list;
    int64_t threads;
};

/* How long and how often at least. */
static const double warm_up_seconds = 0.1, measured_seconds = 0.5;
enum { WARM_UP_CALLS = 2, MEASURED_CALLS = 5, MOST_CALLS = 1 << 20 };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ---- which scenes ---- */

/* Is `name` one of the names in the list, which has commas between them? */
static bool is_named(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || !at[length]))
            return true;
    }
    return false;
}

/* The scenes asked for, in the table's order; every name in the list must be one. */
static int choose(const char *names, struct bench_result **chosen, int64_t *n)
{
    int64_t all = 0, named = 0;
    struct bench_scene scene;
    for (const char *at = names; at; at = strchr(at + 1, ','))
        named++;
    while (bench_scene_get(all, &scene))
        all++;
    *n = 0;
    *chosen = calloc((size_t)all, sizeof **chosen);
    if (!*chosen)
        return command_fail("not enough memory");
    for (int64_t i = 0; bench_scene_get(i, &scene); i++)
        if (!names || is_named(names, scene.name))
            (*chosen)[(*n)++].scene = scene;
    if (names && *n != named)
        return command_wrong("--scene: '%s' holds a name that is none, or one twice; "
                             "'mha bench --list' prints them",
                             names);
    return COMMAND_OK;
}

static void print_scenes(void)
{
    struct bench_scene scene;
    printf("%-20s  %-9s  %4s %4s %4s %5s %5s %4s %5s  %s\n", "scene", "what", "B", "H", "G", "L",
           "S", "D", "E", "options");
    for (int64_t i = 0; bench_scene_get(i, &scene); i++) {
        static const char *const what[] = { "attention", "plain", "packed" };
        printf("%-20s  %-9s  %4" PRId64 " %4" PRId64 " %4" PRId64 " %5" PRId64 " %5" PRId64
               " %4" PRId64 " %5" PRId64 "  ",
               scene.name, what[scene.engine], scene.B, scene.H, scene.G, scene.L, scene.S, scene.D,
               scene.E);
        printf("%s", scene.causal ? "causal " : "");
        printf("%s", scene.bias ? "bias " : "");
        if (scene.window)
            printf("window=%" PRId64 " ", scene.window);
        for (int64_t b = 0; scene.lengths && b < scene.B; b++)
            printf("%s%" PRId32, b ? "," : "lengths=", scene.lengths[b]);
        putchar('\n');
    }
}

/* ---- measuring ---- */

/* A plain layer computes its projections on the BLAS, whose threads belong to the program. OpenBLAS
 * takes their number by a function; another BLAS keeps what it was told by its own means. */
static void set_blas_threads(int64_t threads)
{
    void *symbol = dlsym(RTLD_DEFAULT, "openblas_set_num_threads");
    void (*set)(int) = NULL;
    memcpy(&set, &symbol, sizeof set);
    if (set)
        set((int)threads);
}

static int open_context(const struct request *request, mha_context **ctx)
{
    char message[512] = "";
    struct mha_context_options options = { .size = sizeof options,
                                           .isa = request->isa,
                                           .message = message,
                                           .message_bytes = sizeof message,
                                           .threads = request->threads };
    mha_status status = mha_context_create(&options, ctx);
    if (status != MHA_OK)
        return command_fail("%s", *message ? message : mha_status_text(status));
    set_blas_threads(request->threads);
    return COMMAND_OK;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Calls until there are enough of both calls and seconds; notes what each took. */
static int64_t call(mha_context *ctx, const struct bench_case *made, int64_t calls, double least,
                    double *times)
{
    int64_t n = 0;
    double begin = now(), last = begin;
    while (n < MOST_CALLS && (n < calls || last - begin < least)) {
        if (bench_case_run(ctx, made) != MHA_OK)
            return 0;
        double time = now();
        times[n++] = time - last;
        last = time;
    }
    return n;
}

/* Checks a case, then times it; returns an exit code. A wrong result is noted, no failure here. */
static int measure(mha_context *ctx, const struct bench_case *made, double *times,
                   struct bench_result *result)
{
    /* What a call leaves unwritten shall not pass for a result. */
    memset(made->out, 0xff, (size_t)bench_case_results(made) * sizeof *made->out);
    mha_status status = bench_case_workspace(ctx, made, &result->workspace);
    if (status == MHA_OK)
        status = bench_case_run(ctx, made);
    if (status != MHA_OK)
        return command_fail_library(ctx, status);
    result->right = bench_check(made, &result->verdict);
    if (!result->right)
        return COMMAND_OK;
    call(ctx, made, WARM_UP_CALLS, warm_up_seconds, times);
    int64_t n = call(ctx, made, MEASURED_CALLS, measured_seconds, times);
    if (n == 0)
        return command_fail("%s: %s", result->scene.name, mha_context_message(ctx));
    qsort(times, (size_t)n, sizeof *times, by_size);
    result->least = times[0];
    result->median = times[n / 2];
    result->spread = times[3 * n / 4] - times[n / 4];
    return COMMAND_OK;
}

/* One scene from its making to its numbers. The peak is looked for again before each, since other
 * work on the machine may have hidden it before. */
static int run_scene(mha_context *ctx, double *times, struct bench_report *report,
                     struct bench_result *result)
{
    struct bench_case made;
    int code = bench_case_create(ctx, &result->scene, &made);
    if (code == COMMAND_OK) {
        double peak = bench_roof_fma(report->isa, report->threads);
        report->peak = peak > report->peak ? peak : report->peak;
        result->read = bench_roof_read(report->isa, report->threads,
                                       (int64_t)bench_scene_bytes(&result->scene));
        code = measure(ctx, &made, times, result);
    }
    bench_case_free(&made);
    return code;
}

/* One line that is written over on a terminal, and one a scene elsewhere. */
static void show_progress(int64_t done, int64_t all, const char *name)
{
    bool terminal = isatty(STDERR_FILENO);
    if (done < all)
        fprintf(stderr, "%s[%" PRId64 "/%" PRId64 "] %s%s", terminal ? "\r\033[K" : "", done + 1,
                all, name, terminal ? "" : "\n");
    else if (terminal)
        fputs("\r\033[K", stderr);
    fflush(stderr);
}

static int run_scenes(const struct request *request, struct bench_result *results, int64_t n)
{
    mha_context *ctx = NULL;
    double *times = malloc(MOST_CALLS * sizeof *times);
    int code = times ? open_context(request, &ctx) : command_fail("not enough memory");
    struct bench_report report = { .threads = request->threads,
                                   .results = results,
                                   .blas = mha_blas_text() };
    if (code == COMMAND_OK) {
        report.isa = mha_context_isa(ctx);
        report.cpu = mha_context_cpu(ctx);
    }
    bool all_right = true;
    while (code == COMMAND_OK && report.n_results < n) {
        struct bench_result *result = &results[report.n_results];
        show_progress(report.n_results, n, result->scene.name);
        code = run_scene(ctx, times, &report, result);
        all_right = all_right && result->right;
        report.n_results++;
    }
    if (code == COMMAND_OK) {
        show_progress(n, n, "");
        if (!request->json || strcmp(request->json, "-") != 0)
            bench_report_print(&report);
        if (request->json)
            code = bench_report_write(&report, request->json);
    }
    if (code == COMMAND_OK && !all_right)
        code = command_fail("a result is wrong");
    mha_context_free(ctx);
    free(times);
    return code;
}

int command_bench(int argc, char **argv)
{
    struct request request = { .threads = 1 };
    bool help = false;
    const struct command_option options[] = {
        { .name = "scene", .text = &request.names },
        { .name = "isa", .text = &request.isa },
        { .name = "threads", .count = &request.threads, .least = 1 },
        { .name = "json", .text = &request.json },
        { .name = "list", .flag = &request.list },
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
    if (request.list) {
        print_scenes();
        return COMMAND_OK;
    }
    struct bench_result *results = NULL;
    int64_t n = 0;
    code = choose(request.names, &results, &n);
    if (code == COMMAND_OK)
        code = run_scenes(&request, results, n);
    free(results);
    return code;
}
