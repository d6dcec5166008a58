/*
 * conformance [--weights FILE] [--packed] [--list] STEM
 *
 * Runs the suite STEM.cases.txt + STEM.safetensors, with packed layers if asked to: one line for each case, then the numbers of
 * cases that passed, failed and were skipped. Exit status 0 when nothing failed, 1 when something
 * did, 2 when the suite or the command line is malformed. The environment variable MHA_ISA selects
 * the instruction-set level, as for every program that uses the library.
 */
#include "conformance.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct operation {
    const char *name;
    void (*run)(struct run *run);
} operations[] = {
    { "mha", run_mha },
    { "sdpa", run_sdpa },
    { "bert_attention", run_bert_attention },
    { "bert_encoder", run_bert_encoder },
};

static void run_operator(struct run *run)
{
    for (int64_t o = 0; o < COUNT(operations); o++)
        if (strcmp(operations[o].name, run->test->op) == 0) {
            operations[o].run(run);
            return;
        }
    run_fail(run, "unsupported: operator %s", run->test->op);
}

static int64_t arrays_with_role(const struct suite_case *test, enum suite_role role)
{
    int64_t n = 0;
    for (int64_t a = 0; a < test->array_count; a++)
        n += test->arrays[a].role == role;
    return n;
}

/* Runs one case and prints its line; true when it passed. */
static bool run_case(struct run *run)
{
    const struct suite_case *test = run->test;
    const struct run_worst *worst = &run->worst;
    run->problem[0] = '\0';
    run->compared = 0;
    run->worst = (struct run_worst){ 0 };
    run_operator(run);
    if (run_good(run) && run->compared < arrays_with_role(test, SUITE_OUT))
        run_fail(run, "unsupported: an output that %s does not give", test->op);
    run_release(run);

    if (!run_good(run)) {
        printf("FAIL %s: %s\n", test->name, run->problem);
        return false;
    }
    if (!worst->name) {
        printf("pass %s: nothing but empty outputs", test->name);
    } else if (worst->ratio <= 1) {
        printf("pass %s: %s is off by %.3g, %.3f of the bound", test->name, worst->name,
               worst->error, worst->ratio);
    } else {
        printf("FAIL %s: %s[%" PRId64 "] is off by %.3g, %.3g of the bound %.3g: got %.9g, "
               "wanted %.9g\n",
               test->name, worst->name, worst->index, worst->error, worst->ratio, worst->bound,
               worst->got, worst->want);
        return false;
    }
    printf("%s\n", arrays_with_role(test, SUITE_GRAD) > 0 ? ", gradients skipped" : "");
    return true;
}

static int run_suite(struct run *run)
{
    int64_t passed = 0, failed = 0, skipped = 0;
    for (int64_t c = 0; c < run->suite->case_count; c++) {
        run->test = &run->suite->cases[c];
        if (run->test->informational) {
            printf("skip %s: informational\n", run->test->name);
            skipped++;
        } else if (run_case(run)) {
            passed++;
        } else {
            failed++;
        }
        fflush(stdout);
    }
    printf("%" PRId64 " passed, %" PRId64 " failed, %" PRId64 " skipped\n", passed, failed,
           skipped);
    return failed == 0 ? 0 : 1;
}

static void list_suite(const struct suite *suite)
{
    for (int64_t c = 0; c < suite->case_count; c++)
        printf("%s %s %" PRId64 "%s\n", suite->cases[c].name, suite->cases[c].op,
               suite->cases[c].opset, suite->cases[c].informational ? " informational" : "");
}

/* Where the model's weights are unless --weights says it. */
static const char *default_weights(void)
{
    static char path[4096];
    const char *directory = getenv("MHA_MODEL_DIR");
    snprintf(path, sizeof path, "%s/model.safetensors", directory ? directory : "build/model");
    return path;
}

static int usage(void)
{
    fprintf(stderr, "usage: conformance [--weights FILE] [--packed] [--list] STEM\n");
    return 2;
}

int main(int argc, char **argv)
{
    const char *stem = NULL, *weights = default_weights();
    bool list = false, packed = false;
    for (int a = 1; a < argc; a++) {
        if (strcmp(argv[a], "--list") == 0)
            list = true;
        else if (strcmp(argv[a], "--packed") == 0)
            packed = true;
        else if (strcmp(argv[a], "--weights") == 0 && a + 1 < argc)
            weights = argv[++a];
        else if (argv[a][0] == '-' || stem)
            return usage();
        else
            stem = argv[a];
    }
    if (!stem)
        return usage();

    char message[512] = "";
    struct mha_context_options options = { .message = message, .message_bytes = sizeof message };
    mha_context *ctx = NULL;
    if (mha_context_create(&options, &ctx) != MHA_OK) {
        fprintf(stderr, "conformance: %s\n", message);
        return 2;
    }
    int exit_status = 2;
    struct suite suite;
    if (suite_open(ctx, stem, &suite)) {
        struct run run = { .ctx = ctx, .suite = &suite, .packed = packed, .weights_path = weights };
        if (list)
            list_suite(&suite);
        exit_status = list ? 0 : run_suite(&run);
        mha_safetensors_close(run.weights);
    }
    suite_close(&suite);
    mha_context_free(ctx);
    return exit_status;
}
