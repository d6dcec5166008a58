/* What the machine could do at most: multiply-adds and plain reading, by threads together. */
#ifndef BENCH_ROOF_H
#define BENCH_ROOF_H

#include <stdint.h>

/*
 * Both take an instruction-set level of the library by name and a number of threads, measure for a
 * few milliseconds and return the best of some tries; 0 for a level that this machine lacks, or
 * when there is no memory or no thread.
 *
 *   fma   floating-point operations per second of multiply-adds in registers (two each); the level
 *         generic has no fused ones and does both
 *   read  bytes per second of reading `bytes` bytes again and again, each thread its part of them
 */
double bench_roof_fma(const char *isa, int64_t threads);
double bench_roof_read(const char *isa, int64_t threads, int64_t bytes);

#endif
