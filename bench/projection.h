/* One projection by itself, y = x W^T, which the public interface does only inside a layer. */
#ifndef PROJECTION_H
#define PROJECTION_H

#include <stdint.h>

struct bench_projection;

/* A projection with weights w [N, K], which are read as long as it lives; NULL without memory. */
struct bench_projection *bench_projection_create(int64_t K, int64_t N, const float *w);
void bench_projection_free(struct bench_projection *projection);

/* x [rows, K] to y [rows, N]. */
void bench_projection_run(const struct bench_projection *projection, int64_t rows, const float *x,
                          float *y);

#endif
