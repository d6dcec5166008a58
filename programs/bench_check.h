/* Is what the benchmark measures right? Sampled rows against a naive computation in double. */
#ifndef BENCH_CHECK_H
#define BENCH_CHECK_H

#include "bench_scene.h"

struct bench_verdict {
    double error; /* largest |got - expected| of the sampled rows */
    double bound; /* what is allowed: 2e-6 of the largest magnitude expected there */
};

/*
 * Judges the results that lie in made->out. Every one must be a number, and the sampled rows must
 * be near the expected ones: false when not. False too without memory; verdict->bound is then 0.
 */
bool bench_check(const struct bench_case *made, struct bench_verdict *verdict);

#endif
