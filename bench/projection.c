#include "projection.h"

#include <stdlib.h>

#include "project.h"

struct bench_projection {
    mha_context *ctx;
    float *panels;
    struct mha_projection projection; /* but for its x and y */
    struct mha_project_scratch scratch;
};

/* Scratch in the context's memory, and its threads. */
static mha_status prepare(struct bench_projection *made)
{
    mha_status status = MHA_OK;
    struct mha_arena arena = { 0 };
    mha_project_lay_out(&made->projection, 1, &made->ctx->threads, &arena, &made->scratch);
    TRY(mha_context_grow(made->ctx, arena.used));
    arena = (struct mha_arena){ .base = made->ctx->scratch };
    mha_project_lay_out(&made->projection, 1, &made->ctx->threads, &arena, &made->scratch);
    TRY(mha_context_prepare_threads(made->ctx, made->scratch.lanes));
done:
    return status;
}

struct bench_projection *bench_projection_create(const char *isa, int64_t threads, int64_t rows,
                                                 int64_t K, int64_t N, const float *w)
{
    struct bench_projection *made = calloc(1, sizeof *made);
    struct mha_context_options options = { .isa = isa, .threads = threads };
    if (!made || mha_context_create(&options, &made->ctx) != MHA_OK) {
        free(made);
        return NULL;
    }
    made->panels = mha_memory_allocate(&mha_memory_default,
                                       mha_project_panel_floats(N, K) * (int64_t)sizeof(float));
    made->projection = (struct mha_projection){
        .B = 1, .L = rows, .K = K, .N = N, .width = N, .panels = made->panels
    };
    if (!made->panels || prepare(made) != MHA_OK) {
        bench_projection_free(made);
        return NULL;
    }
    mha_project_pack(w, K, N, K, made->panels);
    return made;
}

void bench_projection_free(struct bench_projection *projection)
{
    if (!projection)
        return;
    mha_context_free(projection->ctx);
    free(projection->panels);
    free(projection);
}

void bench_projection_run(struct bench_projection *projection, const float *x, float *y)
{
    struct mha_projection p = projection->projection;
    p.x = (struct mha_view){ (float *)(uintptr_t)x, p.L * p.K, p.K, p.K };
    p.y = (struct mha_view){ y, p.L * p.N, p.N, p.N };
    mha_project_packed(projection->ctx, &p, 1, &projection->scratch);
}
