/* The scenes of the benchmark: shapes that real users run, and numbers to run them on. */
#ifndef BENCH_SCENE_H
#define BENCH_SCENE_H

#include <stdbool.h>
#include <stdint.h>

#include "mha.h"

enum bench_engine {
    BENCH_ATTENTION, /* attention alone, no projections */
    BENCH_PLAIN,     /* a layer whose projections go through the BLAS */
    BENCH_PACKED     /* a layer with packed projections */
};

struct bench_scene {
    char name[32];
    enum bench_engine engine;
    int64_t B, H, G, L, S, D;
    int64_t E; /* model width of a layer, 0 for attention alone */
    bool causal;
    int64_t window;         /* keys that a query sees, its own among them; 0: no limit */
    bool bias;              /* an additive bias [H, L, S], the same for all samples */
    const int32_t *lengths; /* [B] valid queries and keys of each sample; NULL: all of them */
};

/* Scene number `index` from 0 on; false when there are no more. */
bool bench_scene_get(int64_t index, struct bench_scene *scene);

/* Pairs of a query and a key that it sees, over the samples of the batch, for one head. */
int64_t bench_scene_pairs(const struct bench_scene *scene);

/* Useful floating-point operations: pairs that nobody sees are not counted. */
double bench_scene_flops(const struct bench_scene *scene);

/* Bytes that have to be read or written once: operands, weights, result. */
double bench_scene_bytes(const struct bench_scene *scene);

/* A scene with memory, ready to run. Attention operands lie as [B, H, L, D] in memory, those of a
 * layer as [B, L, E]. */
struct bench_case {
    struct bench_scene scene;
    float *query, *key, *value; /* a layer has the query only */
    float *bias;
    float *weights[4], *biases[4]; /* of a layer: Q, K, V, O */
    float *out;
    mha_layer *layer;
    struct mha_tensor query_view, key_view, value_view, bias_view, lengths_view, out_view;
    struct mha_inputs inputs;
    struct mha_options options;
    struct mha_outputs outputs;
};

/* Makes the case, with the same random numbers each time, and frees it, half-made ones too; returns
 * an exit code. */
int bench_case_create(mha_context *ctx, const struct bench_scene *scene, struct bench_case *made);
void bench_case_free(struct bench_case *made);

/* The call that is measured, and the scratch memory it takes. */
mha_status bench_case_run(mha_context *ctx, const struct bench_case *made);
mha_status bench_case_workspace(mha_context *ctx, const struct bench_case *made, int64_t *bytes);

/* Elements of `out`. */
int64_t bench_case_results(const struct bench_case *made);

#endif
