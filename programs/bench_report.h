/* What the benchmark found, as a table and as JSON. */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include <stdio.h>

#include "bench_check.h"
#include "bench_scene.h"

struct bench_result {
    struct bench_scene scene;
    bool right; /* the check passed; the times are only set then */
    struct bench_verdict verdict;
    double median, least, spread; /* seconds; spread: between the quartiles */
    double read;                  /* bytes per second that a plain read of as much memory reaches */
    int64_t workspace;            /* bytes */
};

struct bench_report {
    const char *cpu, *isa, *blas;
    int64_t threads;
    double peak; /* operations per second of plain multiply-adds, measured in the same run */
    const struct bench_result *results;
    int64_t n_results;
};

/* Prints the report as a table for people. */
void bench_report_print(const struct bench_report *report);

/* Writes it as JSON to a file, or to stdout for "-"; returns an exit code. */
int bench_report_write(const struct bench_report *report, const char *path);

#endif
