/* One packed projection by itself, y = x W^T, which the public interface does only inside a layer. */
#ifndef PROJECTION_H
#define PROJECTION_H

#include <stdint.h>

struct bench_projection;

/* A projection of x [rows, K] by weights w [N, K], which are packed here and not read again, on a
 * level (NULL: the best) and some threads; NULL without memory or level. */
struct bench_projection *bench_projection_create(const char *isa, int64_t threads, int64_t rows,
                                                 int64_t K, int64_t N, const float *w);
void bench_projection_free(struct bench_projection *projection);

/* x [rows, K] to y [rows, N]. */
void bench_projection_run(struct bench_projection *projection, const float *x, float *y);

#endif
