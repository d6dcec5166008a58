/* What the benchmark found, as a table and as JSON. */
#include "bench_report.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "command.h"

/* Operations per second that this scene did, from the least time. */
static double speed_of(const struct bench_result *result)
{
    return bench_scene_flops(&result->scene) / result->least;
}

static double bandwidth_of(const struct bench_result *result)
{
    return bench_scene_bytes(&result->scene) / result->least;
}

/* Does memory rule: does reading the operands take longer than the arithmetic at its peak? */
static bool memory_rules(const struct bench_report *report, const struct bench_result *result)
{
    return result->read > 0
           && bench_scene_bytes(&result->scene) / result->read
                  > bench_scene_flops(&result->scene) / report->peak;
}

/* ---- the table ---- */

static void print_row(const struct bench_report *report, const struct bench_result *result)
{
    printf("%-20s", result->scene.name);
    if (!result->right) {
        printf("  WRONG: error %.2g, allowed %.2g\n", result->verdict.error, result->verdict.bound);
        return;
    }
    printf("  %10.4f  %10.4f  %6.1f  %8.1f  %6.1f", 1e3 * result->median, 1e3 * result->least,
           100 * result->spread / result->median, 1e-9 * speed_of(result),
           100 * speed_of(result) / report->peak);
    if (memory_rules(report, result))
        printf("  %6.1f  %6.1f", 1e-9 * bandwidth_of(result),
               100 * bandwidth_of(result) / result->read);
    else
        printf("  %6s  %6s", "-", "-");
    printf("  %9.1f\n", (double)result->workspace / 1024);
}

void bench_report_print(const struct bench_report *report)
{
    printf("processor  %s\n", report->cpu);
    printf("level      %s, %" PRId64 " thread%s\n", report->isa, report->threads,
           report->threads == 1 ? "" : "s");
    printf("FMA peak   %.1f GFLOP/s, measured in this run\n", 1e-9 * report->peak);
    printf("BLAS       %s\n\n", report->blas);
    printf("%-20s  %10s  %10s  %6s  %8s  %6s  %6s  %6s  %9s\n", "scene", "median ms", "least ms",
           "+-%", "GFLOP/s", "peak %", "GB/s", "read %", "work KiB");
    for (int64_t i = 0; i < report->n_results; i++)
        print_row(report, &report->results[i]);
}

/* ---- JSON ---- */

/* A member of an object. Names of processors and libraries are printable ASCII almost always; what
 * is not is left out. */
static void write_text(FILE *file, const char *name, const char *text)
{
    fprintf(file, "\"%s\": \"", name);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', file);
        if (*text >= ' ' && *text <= '~')
            fputc(*text, file);
    }
    fputc('"', file);
}

static void write_result(FILE *file, const struct bench_report *report,
                         const struct bench_result *result)
{
    fputs("    {", file);
    write_text(file, "name", result->scene.name);
    fprintf(file, ", \"threads\": %" PRId64 ", ", report->threads);
    write_text(file, "isa", report->isa);
    fprintf(file, ", \"right\": %s, \"error\": %.3g, \"bound\": %.3g",
            result->right ? "true" : "false", result->verdict.error, result->verdict.bound);
    if (result->right) {
        fprintf(file, ", \"mha_ms\": %.6g, \"least_ms\": %.6g, \"spread_ms\": %.3g",
                1e3 * result->median, 1e3 * result->least, 1e3 * result->spread);
        fprintf(file, ", \"gflops\": %.5g, \"peak_share\": %.4g", 1e-9 * speed_of(result),
                speed_of(result) / report->peak);
        if (memory_rules(report, result))
            fprintf(file, ", \"gbps\": %.5g, \"read_share\": %.4g", 1e-9 * bandwidth_of(result),
                    bandwidth_of(result) / result->read);
        fprintf(file, ", \"workspace_bytes\": %" PRId64, result->workspace);
    }
    fputs("}", file);
}

int bench_report_write(const struct bench_report *report, const char *path)
{
    bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdout : fopen(path, "w");
    if (!file)
        return command_fail("%s: %s", path, strerror(errno));
    fputs("{\n  ", file);
    write_text(file, "cpu", report->cpu);
    fputs(",\n  \"versions\": {", file);
    write_text(file, "mha", mha_version());
    fputs(", ", file);
    write_text(file, "blas", report->blas);
    fprintf(file, "},\n  \"peak_gflops\": %.5g,\n  \"scenes\": [\n", 1e-9 * report->peak);
    for (int64_t i = 0; i < report->n_results; i++) {
        write_result(file, report, &report->results[i]);
        fputs(i + 1 < report->n_results ? ",\n" : "\n", file);
    }
    fputs("  ]\n}\n", file);
    if (standard)
        return COMMAND_OK;
    bool wrong = ferror(file) != 0;
    errno = 0;
    wrong |= fclose(file) != 0;
    return wrong ? command_fail("%s: %s", path, errno ? strerror(errno) : "write error")
                 : COMMAND_OK;
}
